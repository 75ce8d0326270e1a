"""Unmodified torchvision networks, compared at another batch size than the example's."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn

from intact8.capture.trace import capture

from .helpers import assert_same, randomize_batch_norms, run

SIZES = {
    "resnet18": 64, "resnet50": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "efficientnet_b0": 64,
    "shufflenet_v2_x1_0": 64, "googlenet": 64, "densenet121": 64, "squeezenet1_1": 64, "regnet_y_400mf": 64,
    "convnext_tiny": 64, "lraspp_mobilenet_v3_large": 64, "vit_b_16": 32, "swin_t": 64,
}  # fmt: skip

CONVERTED = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "googlenet", "regnet_y_400mf", "convnext_tiny", "densenet121",
    "resnet18", "mobilenet_v3_small",
)  # fmt: skip
"""Networks that ``tests/test_networks.py`` and ``tests/placement/test_networks.py`` capture as well."""

SLOW = ("swin_t", "lraspp_mobilenet_v3_large")

FAMILIES = [pytest.param(name, marks=pytest.mark.long) if name in CONVERTED + SLOW else name for name in SIZES]


@pytest.mark.parametrize("name", FAMILIES)
def test_graph_equals_model(torchvision: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    size = SIZES[name]
    options: dict[str, object] = {"weights": None}
    if name.startswith("lraspp"):
        options["weights_backbone"] = None
    if name == "googlenet":
        options |= {"init_weights": False}
    if name == "vit_b_16":
        options["image_size"] = size
    model = torchvision.models.get_model(name, **options)
    randomize_batch_norms(model)
    for key, parameter in model.named_parameters():
        if key.startswith("heads"):  # torchvision starts them at zero, and zero equals anything
            nn.init.normal_(parameter)
    assert model.training
    before = {k: v.clone() for k, v in model.state_dict().items()}
    captured = capture(model, torch.randn(1, 3, size, size))
    assert model.training and all(m.training for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert captured.graph.dynamic_batch
    model.eval()
    x = torch.randn(3, 3, size, size)
    with torch.no_grad():
        expected = model(x)
    assert_same(run(captured, x), expected)
    modules = dict(model.named_modules())
    for node in captured.graph:
        if node.op in ("conv", "batch_norm"):
            assert isinstance(modules[node.name], (nn.Conv2d, nn.BatchNorm2d))
        for param in node.params.values():
            assert param in captured.tensors()
