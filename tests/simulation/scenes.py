"""Tiny networks put through calibration, training, freezing and evaluation, and everything they compute on the way.

What one scene gives is a list of named arrays: scales, multipliers, outputs, gradients, parameters after a step.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture import Captured, capture
from intact8.fusion.fuse import fuse
from intact8.placement.place import place
from intact8.simulation.simulation import Simulation
from intact8.train.learned_scale import LearnedScale

TOLERANCE = 3e-3
"""Largest difference of a summary, relative to its norm. The rounding of float32 makes a tenth of it at most."""

SMALL = 0.05
"""Norms below count as this: gradients of biases before a batch norm are 0 but for rounding, which differs by 8e-5
between the kernels of two CPUs."""

KERNELS = ({"ATEN_CPU_CAPABILITY": "default"}, {"DNNL_MAX_CPU_ISA": "SSE41"}, {"ATEN_CPU_CAPABILITY": "avx2"})
"""Environments in which torch adds up in another order, as other computers do."""

RECORDED = Path(__file__).with_name("recorded.json")

Array = npt.NDArray[Any]


class Formula(nn.Module):
    """Layers and a formula that uses them."""

    def __init__(self, formula: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.formula = nn.ModuleDict(layers), formula

    def forward(self, *x: Tensor) -> Any:
        return self.formula(self.layers, *x)


def residual(m: Any, x: Tensor) -> Tensor:
    y = F.relu(m["n1"](m["c1"](x)))
    y = F.relu(m["n2"](m["c2"](y)) + y)
    return m["fc"](F.max_pool2d(y, 2).mean((2, 3)))


def leaky(m: Any, x: Tensor) -> Tensor:
    y = F.leaky_relu(m["c1"](x), 0.2)
    y = m["p1"](m["n1"](m["t1"](y)))
    y = m["p2"](m["d1"](y))
    return F.relu6(m["c2"](y) + y)


def sums(m: Any, x: Tensor) -> Any:
    a, b = m["c1"](x), F.hardtanh(m["c2"](x), -0.6, 0.9)
    s = F.relu(a - b) + x.mean((2, 3), keepdim=True)
    t = F.relu(a + a * 0.5 - 0.25) * torch.sigmoid(b)
    return torch.cat([s, a], 1), t + m["k"].weight[:4, :4, None].mT, (0.5 - 2 * b) - b * 3


def pools(m: Any, x: Tensor) -> Any:
    y = m["c1"](x)
    a = F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)
    b = F.relu(F.avg_pool2d(y, 3, 2, 1, ceil_mode=True))
    c = F.adaptive_avg_pool2d(y, (2, 3))
    return a, b, c, y.mean((1, 3)), F.avg_pool1d(y.flatten(2), 4, 3)


def shifts(m: Any, x: Tensor) -> Any:
    y = m["c1"](m["n1"](x))
    y = F.relu(m["n2"](F.max_pool2d(y, 2)))
    z = m["n3"](m["c2"](F.relu(m["d1"](F.relu(m["c3"](y))))))
    return F.pad(z, (1, 0, 0, 1), value=0.3) + 0.0, m["p"](z.roll(1, 2))


def attention(m: Any, x: Tensor) -> Tensor:
    h = m["n1"](m["e"](x))
    q, k, v = (m[n](h) for n in "qkv")
    p = (q @ k.mT / 2.0).softmax(-1)
    h = h + m["o"](p @ v)
    return m["f2"](F.gelu(m["f1"](m["n2"](h))))


def recurrent(m: Any, x: Tensor) -> Any:
    y, (h, c) = m["lstm"](x)
    z, g = m["gru"](y)
    return m["rnn"](z)[0], h, c, g


def codes(m: Any, x: Tensor, index: Tensor) -> Tensor:
    y = F.relu(m["a"](x)) + m["e"](index)
    return m["b"](y) + y[..., :3]


def conv(*args: Any, **options: Any) -> nn.Module:
    return nn.Conv2d(*args, **options)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "residual": (
        lambda: Formula(residual, c1=conv(2, 4, 3, bias=False), n1=nn.BatchNorm2d(4), c2=conv(4, 4, 3, padding=1),
                        n2=nn.BatchNorm2d(4), fc=nn.Linear(4, 3)),
        [(4, 2, 6, 6)],
    ),
    "leaky": (
        lambda: Formula(leaky, c1=conv(2, 4, 1), t1=nn.ConvTranspose2d(4, 4, 2, 2, groups=2, bias=False),
                        n1=nn.BatchNorm2d(4), p1=nn.PReLU(), d1=conv(4, 4, 3, padding=1, groups=4), p2=nn.PReLU(4),
                        c2=conv(4, 4, 1)),
        [(3, 2, 3, 4)],
    ),
    "sums": (
        lambda: Formula(sums, c1=conv(4, 4, 1), c2=conv(4, 4, 3, padding=1), k=nn.Linear(4, 4)),
        [(3, 4, 4, 4)],
    ),
    "pools": (lambda: Formula(pools, c1=conv(2, 3, 3)), [(3, 2, 7, 8)]),
    "shifts": (
        lambda: Formula(shifts, n1=nn.BatchNorm2d(2), c1=conv(2, 4, 3), n2=nn.BatchNorm2d(4), c3=conv(4, 4, 1),
                        d1=conv(4, 8, 2, groups=4), c2=conv(8, 4, 1), n3=nn.BatchNorm2d(4), p=nn.PReLU(4)),
        [(4, 2, 8, 8)],
    ),
    "attention": (
        lambda: Formula(attention, e=nn.Linear(4, 6), n1=nn.LayerNorm(6), q=nn.Linear(6, 4), k=nn.Linear(6, 4),
                        v=nn.Linear(6, 4), o=nn.Linear(4, 6), n2=nn.LayerNorm(6), f1=nn.Linear(6, 8),
                        f2=nn.Linear(8, 2)),
        [(3, 5, 4)],
    ),
    "recurrent": (
        lambda: Formula(recurrent, lstm=nn.LSTM(3, 4, bidirectional=True), gru=nn.GRU(8, 4),
                        rnn=nn.RNN(4, 4, nonlinearity="relu")),
        [(4, 3, 3)],
    ),
    "codes": (
        lambda: Formula(codes, a=nn.Linear(7, 5), e=nn.Embedding(9, 5), b=nn.Linear(5, 3)),
        [(4, 3, 7), (4, 3)],
    ),
}  # fmt: skip


class Scene(NamedTuple):
    """A network and what its recipe changes."""

    network: str
    recipe: dict[str, Any]


PHASES = ("train", "freeze", "train", "grow")
"""What happens after calibration; "grow" makes weights and biases larger than frozen scales were proved for."""


VARIANTS: dict[str, dict[str, Any]] = {
    "calibrated": {},
    "fixed": {"scales": "fixed", "residual": "fused", "nonlinear": "integer"},
    "observed": {"scales": "observed", "weight": {"granularity": "per_tensor"}, "leaky": "table", "smooth": 0.5},
    "learned": {"scales": "learned", "residual": "fused", "equalize": False, "portable": False},
    "lsq+": {"scales": "lsq+", "activation": {"bits": 4}, "weight": {"bits": 4}, "bias_correction": True},
    "pact": {"scales": "pact", "activation": {"dtype": "int8", "symmetric": True}, "nonlinear": "integer"},
    "plain": {"scales": "learned", "scale_gradient": "plain", "bias_correction": True, "smooth": 0.3,
              "weight": {"granularity": "per_tensor", "bits": 5}, "attention": "float"},
}  # fmt: skip
STATIC = ("residual", "leaky", "sums", "pools", "shifts", "attention")
CHAOTIC = ("attention", "lsq+")
"""In 4 bits a zero point of it lies at a tie, and hangs on the last bit of a float."""

SEEDS = {"attention": 1, "leaky": 1}
"""Seeds of weights other than 0: of 0, one activation of "attention learned" and of "leaky lsq+" lies at a tie."""

CODED: dict[str, dict[str, Any]] = {
    "dynamic": {"mode": "dynamic"},
    "dynamic-learned": {"mode": "dynamic", "scales": "learned", "rows": "per_tensor", "weight": {"bits": 4}},
    "dynamic-tensor": {"mode": "dynamic", "scales": "learned", "weight": {"granularity": "per_tensor"}},
    "weight-only": {"mode": "weight_only", "group": 3, "scales": "observed"},
    "weight-only-learned": {"mode": "weight_only", "group": 3, "scales": "learned"},
    "weight-only-tensor": {"mode": "weight_only", "weight": {"granularity": "per_tensor"}, "scales": "learned"},
}
SCENES: dict[str, Scene] = {
    **{f"{net} {name}": Scene(net, VARIANTS[name]) for net in STATIC for name in VARIANTS if (net, name) != CHAOTIC},
    **{f"codes {name}": Scene("codes", recipe) for name, recipe in CODED.items()},
    **{
        f"recurrent {name}": Scene("recurrent", recipe) for name, recipe in CODED.items() if recipe["mode"] == "dynamic"
    },
}


def data_of(shapes: list[tuple[int, ...]], seed: int, noise: float = 0.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    for position, shape in enumerate(shapes):
        if position:
            found.append(torch.randint(0, 9, shape, generator=generator))
        else:
            x = torch.randn(shape, generator=generator)
            found.append(x * (1 + noise * torch.randn(shape)))
    return found


def model_of(network: str) -> nn.Module:
    torch.manual_seed(SEEDS.get(network, 0))
    model = NETWORKS[network][0]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.2)
        if isinstance(module, nn.PReLU) and module.weight.numel() > 1:
            with torch.no_grad():
                module.weight.copy_(torch.tensor([-0.5, 0.0, 0.03, 0.9]))
    return model.eval()


@functools.cache
def captured(network: str) -> Captured:
    """A network, captured once for all its scenes."""
    return capture(model_of(network), tuple(data_of(NETWORKS[network][1], 0)))


def prepared(network: str, recipe: intact8.Recipe) -> Simulation:
    """What ``intact8.prepare`` makes."""
    found = captured(network)
    residual, leaky, masks = recipe.residual == "fused", recipe.leaky == "fused", recipe.nonlinear == "integer"
    fused = fuse(found.graph.copy(), found.tensors(), residual=residual, leaky=leaky, masks=masks)
    return Simulation(model_of(network), found, fused, place(fused.graph, recipe), recipe)


def flat(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else [t for part in y for t in flat(part)]


def play(scene: Scene, noise: float = 0.0) -> Iterator[tuple[str, Array]]:
    """Everything a scene computes, in order."""
    shapes = NETWORKS[scene.network][1]
    batches = [data_of(shapes, i, noise) for i in range(3)]
    activation = {"observer": "minmax", **scene.recipe.get("activation", {})}
    settings = {"bias_correction": False, **scene.recipe, "activation": activation}
    sim = prepared(scene.network, intact8.Recipe(**{"between_layers": "integer", **settings}))
    for point in sim.points.values():
        point.observed_qparams = functools.partial(short_qparams, point.observed_qparams)  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim.eval(), [tuple(b) for b in batches])
        yield from state(sim, "calibrated")
        yield from outputs(sim, batches[0], "calibrated")
        optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=0.05), lr=0.05)
        sim.train()
        for number, phase in enumerate(PHASES):
            if phase == "train":
                for b in batches[:2]:
                    optimizer.zero_grad()
                    found = [t for t in flat(sim(*b)) if t.dtype.is_floating_point]
                    yield from ((f"{number} forward {i}", t.detach().numpy()) for i, t in enumerate(found))
                    weigh = (torch.cos(torch.arange(t.numel()) * 1.7).reshape(t.shape) for t in found)
                    sum((t * w).sum() + 0.3 * t.square().sum() for t, w in zip(found, weigh, strict=True)).backward()
                    for name, p in sim.named_parameters():
                        if p.grad is not None:
                            yield f"{number} gradient {name}", p.grad.numpy().copy()
                    torch.nn.utils.clip_grad_norm_(sim.parameters(), 1.0)
                    optimizer.step()
                    for module in sim.modules():
                        if isinstance(module, LearnedScale):
                            module.value.data.copy_(short(module.value.detach()))
            elif phase == "freeze":
                sim.stop_observing()
                sim.freeze_batch_norm()
                sim.freeze_scales()
            elif phase == "grow":
                with torch.no_grad():
                    for name, p in sim.named_parameters():
                        p.mul_(1.7 if name.endswith("bias") else 1.3)
                    for p in (p for name, p in sim.named_parameters() if name.endswith("bias")):
                        p[0] += 2
            sim.eval()
            yield from outputs(sim, batches[2], f"{number} {phase}")
            yield from state(sim, f"{number} {phase}")
            sim.train()


def short(x: Tensor) -> Tensor:
    """Three digits: solving starts from these numbers, and what it finds depends on every bit of them."""
    return torch.tensor([float(f"{v:.3g}") for v in x.flatten().tolist()]).reshape(x.shape)


def short_qparams(observed: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    """What a point's observer says, with a scale of three digits."""
    scale, zero_point = observed()
    return float(f"{scale:.3g}"), zero_point


def outputs(sim: Any, batch: list[Tensor], when: str) -> Iterator[tuple[str, Array]]:
    with torch.no_grad():
        for i, t in enumerate(flat(sim(*batch))):
            yield f"{when} output {i}", t.numpy().copy()


def state(sim: Any, when: str) -> Iterator[tuple[str, Array]]:
    for name, point in sim.points.items():
        yield f"{when} point {name}", np.array([float(point.scale), int(point.zero_point)])
    for name, point in sim.all_weight_points.items():
        yield f"{when} weight {name}", point.scale.numpy().copy()
    for name, req in sim.requantizations.items():
        for role, buffer in req.named_buffers():
            if buffer.numel() and (role != "gain_error" or float(buffer)):
                yield f"{when} {role} {name}", 1e3 * buffer.numpy() if role == "gain_error" else buffer.numpy().copy()
    for name, buffer in sim.named_buffers():
        if name.endswith(("equalization.value", "mean_input.value", "running_mean", "running_var")):
            yield f"{when} {name}", buffer.numpy().copy()
    for name, module in sim.named_modules():
        if isinstance(module, LearnedScale):
            yield f"{when} factor {name}", np.array(module.factor)
            yield f"{when} floor {name}", module.smallest.numpy().copy()


def summary(array: Array) -> list[float]:
    """Norm and a weighted sum of an array: what is recorded of it."""
    x = np.nan_to_num(np.asarray(array, np.float64).reshape(-1), nan=1e3)
    n = np.arange(len(x))
    return [float(np.linalg.norm(x)), float(x @ np.cos(1.3 * n + 0.5))]


def difference(a: list[float], b: list[float]) -> float:
    """How much two summaries differ, relative to the norm."""
    return max(abs(p - q) for p, q in zip(a, b, strict=True)) / max(abs(a[0]), abs(b[0]), SMALL)


def recorded() -> dict[str, list[list[float] | None]]:
    """Scene → summaries in order; None for what the rounding of float32 may change."""
    found: dict[str, list[list[float] | None]] = json.loads(RECORDED.read_text())
    return found


def summaries(scene: Scene, noise: float = 0.0) -> list[list[float]]:
    """Summaries of everything in a scene."""
    return [summary(array) for _, array in play(scene, noise)]


def main() -> None:
    """Record anew: ``python -m tests.simulation.scenes``. None where the last bit of inputs or of kernels counts.

    With the argument ``here``: print what the kernels of this process give.
    """
    found = {title: summaries(scene) for title, scene in SCENES.items()}
    if sys.argv[1:] == ["here"]:
        print(json.dumps(found))
        return
    others = [{title: summaries(scene, noise) for title, scene in SCENES.items()} for noise in (1e-7, 1e-7, 3e-7)]
    for environment in KERNELS:
        command = [sys.executable, "-m", "tests.simulation.scenes", "here"]
        done = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True)
        others.append(json.loads(done.stdout.splitlines()[-1]))
    lines = []
    for title, entries in found.items():
        kept = [
            [float(f"{v:.5g}") for v in entry]
            if all(difference(entry, other[title][i]) < TOLERANCE / 10 for other in others)
            else None
            for i, entry in enumerate(entries)
        ]
        lines.append(f"{json.dumps(title)}: {json.dumps(kept, separators=(',', ':'))}")
    RECORDED.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
