"""What cannot be captured says where, why, and what to do."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import intact8
from intact8.capture.aten_call import HANDLERS
from intact8.capture.torch_export import not_followed
from intact8.capture.trace import FIXED_BATCH, TOGETHER, capture
from intact8.errors import CaptureError, CaptureWarning, InputError, InternalError


class Layer(nn.Module):
    """A module from a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)  # type: ignore[no-any-return]


def wrapped(function: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Layer(function)))


def counts(m: nn.Module, x: Tensor) -> Tensor:
    m.count.add_(1)
    return x * m.count


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x * 2 if x.sum() > 0 else x, "control flow"),
        (lambda m, x: torch.fft.fft(x).tanh().real, "complex numbers in this operation .operator aten.tanh"),
        (lambda m, x: F.dropout(x, 0.5, True), "active in eval mode"),
        (lambda m, x: F.batch_norm(x, None, None, training=True), "statistics from the batch"),
        (
            lambda m, x: torch.linalg.svdvals(x) * x.sum(),
            "a decomposition of a computed matrix .operator aten.linalg_svdvals",
        ),
        (lambda m, x: x[x > 0], "depends on the data.*aten.index.*a mask chooses"),
        (lambda m, x: x[torch.where(x > 0)], "depends on the data.*aten.where.*how many places are true.*mask"),
        (
            lambda m, x: torch.bincount(x.long().abs().flatten()).float(),
            "depends on the data.*aten.bincount.*how many values",
        ),
        (counts, "changes 1.0.count"),
        (lambda m, x: torch.polygamma(3, x), "aten.polygamma"),
        (lambda m, x: x + torch.rand_like(x), "random numbers"),
        (lambda m, x: torch.igamma(x, x), "aten.igamma"),
        (lambda m, x: torch.linalg.qr(x)[1] * x.sum(), "a decomposition of a computed matrix"),
        (lambda m, x: (x * 9).to(torch.int8).float(), "a cast to int8.*x.long"),
    ],
    ids=[
        "if",
        "fft",
        "dropout",
        "batch-norm",
        "svd",
        "mask",
        "places",
        "bincount",
        "state",
        "polygamma",
        "random",
        "igamma",
        "qr",
        "int8",
    ],
)
def test_refused_with_the_module_path(function: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(wrapped(function), torch.randn(3, 4))
    assert "1.0 (Layer)" in caught.value.where
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x * sum(range(x.shape[0])), r"test_refusals.py:\d+: the model reads the batch size as a number"),
        (lambda m, x: x * len(x), "this operation needs a fixed batch size"),
        (lambda m, x: x * torch.tensor(x.shape[0]), "a tensor that holds the number of samples"),
        (lambda m, x: torch.eye(x.shape[0]) @ x, "a constant as long as the batch"),
        (lambda m, x: x.masked_scatter(x > 0, x.flip(1)), "needs a fixed batch size .operator aten.masked_scatter"),
    ],
    ids=["range", "len", "tensor", "eye", "masked_scatter"],
)
def test_what_depends_on_the_number_of_samples_is_no_batch_and_says_so(function: Any, message: str) -> None:
    captured = capture(wrapped(function), torch.randn(3, 4))
    assert not captured.graph.dynamic_batch
    note = next(note for note in captured.notes if re.search(message, note))
    assert "Constraints" not in note and note.startswith((FIXED_BATCH, TOGETHER))


def test_model_is_restored_after_a_failure() -> None:
    model = wrapped(counts)
    with pytest.raises(CaptureError):
        capture(model, torch.randn(3, 4))
    assert all(m.training for m in model.modules()) and float(model[1][0].count) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[1].weight[0, 1] = value
    with pytest.raises(CaptureError, match=r"1\.weight: 1 of 9 values"):
        capture(model, torch.randn(2, 3))


def test_a_parameter_of_nothing_but_minus_infinity_is_a_constant_of_masks() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(3, 3)
            self.never = nn.Parameter(torch.tensor([float("-inf")]), requires_grad=False)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.where(mask, self.score(x), self.never).softmax(-1)

    model, mask = Masked(), torch.tensor([True, True, False])
    x = torch.randn(32, 3)
    program = intact8.quantize(model, [(x, mask.expand(32, 3).contiguous())])
    found = program.run(x, mask.expand(32, 3).contiguous())
    assert not found[:, 2].any() and (found - model(x, mask)).abs().max() < 0.05


def test_devices() -> None:
    with pytest.raises(CaptureError, match="meta"):
        capture(nn.Linear(3, 3, device="meta"), torch.randn(2, 3))
    with pytest.raises(CaptureError, match="example input is on meta, the model on cpu"):
        capture(nn.Linear(3, 3), torch.randn(2, 3, device="meta"))


@pytest.mark.parametrize(
    ("model", "inputs", "error", "message"),
    [
        (lambda x: x, torch.zeros(1), InputError, "not a torch.nn.Module"),
        ({"a": 1}, torch.zeros(1), InputError, "dict"),
        (nn.Linear(2, 2), 3, InputError, "example inputs of type int"),
        (nn.Linear(2, 2), (), InputError, "no tensor"),
        (nn.LazyLinear(2), torch.zeros(1, 2), CaptureError, "uninitialized"),
        (nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 3), CaptureError, r"0 \(Linear\): the model does not run"),
        (nn.Linear(2, 2).half(), torch.zeros(1, 2).half(), CaptureError, "float16"),
        (nn.Linear(2, 2), torch.zeros(1, 2).double(), CaptureError, r"dtype float64.*astype\('float32'\)"),
        (nn.Conv2d(2, 2, 1), torch.zeros(2, 4, 4), CaptureError, "batch of samples"),
        (nn.Linear(2, 2), torch.zeros(0, 2), CaptureError, "at least one sample"),
        (nn.Linear(2, 2), torch.eye(2).to_sparse(), InputError, "x.to_dense"),
        (nn.Linear(2, 2, dtype=torch.cfloat), torch.zeros(1, 2, dtype=torch.cfloat), CaptureError, "view_as_complex"),
        (nn.ReLU(), (torch.zeros(1), object()), InputError, "arg1: a object is given"),
        (nn.ReLU(), {"input": torch.zeros(1), "kind": torch.float32}, InputError, "kind: a dtype is given"),
    ],
    ids=[
        "function",
        "state-dict",
        "no-inputs",
        "empty",
        "lazy",
        "shape",
        "half",
        "double",
        "unbatched",
        "no-sample",
        "sparse",
        "complex",
        "object",
        "dtype",
    ],
)
def test_bad_input(model: Any, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        capture(model, inputs)


def test_no_parameters_is_fine() -> None:
    assert [n.op for n in capture(nn.ReLU(), torch.zeros(1, 2)).graph] == ["input", "relu"]


class Own(Exception):
    """What a model raises of its own."""


def raises(m: nn.Module, x: Tensor) -> Tensor:
    raise Own("of its own")


def test_what_a_model_raises_is_the_reason() -> None:
    with pytest.raises(CaptureError, match="does not run on the example inputs. Reason: of its own") as caught:
        capture(wrapped(raises), torch.randn(3, 4))
    assert isinstance(caught.value.__cause__, Own)


def test_faults_of_capture_name_the_operator_and_keep_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, "tanh", lambda call: 1 // 0)
    with pytest.raises(
        InternalError, match="1.0 .Layer..*capturing operator aten.tanh failed.*ZeroDivisionError"
    ) as caught:
        capture(wrapped(lambda m, x: x.tanh()), torch.randn(3, 4))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def decides(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


def test_control_flow_names_the_line_and_torch_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError, match=r"control flow, or the size of a tensor, depends on the values") as caught:
        capture(wrapped(decides), torch.randn(3, 4))
    line = decides.__code__.co_firstlineno + 2
    assert caught.value.where == f"1.0 (Layer), test_refusals.py:{line}"
    assert "torch.where" in caught.value.remedy
    assert capfd.readouterr() == ("", "")


def test_errors_of_the_model_name_the_line() -> None:
    with pytest.raises(CaptureError, match=r"1\.0 \(Layer\), test_refusals\.py:\d+: the model does not run"):
        capture(wrapped(raises), torch.randn(3, 4))


def test_transforms_of_functions() -> None:
    if torch.__version__.startswith("2.8."):
        pytest.skip("torch 2.8 does not export torch.vmap")
    captured = capture(wrapped(lambda m, x: torch.vmap(lambda row: row * row.sum())(x)), torch.randn(3, 4))
    assert captured.graph.dynamic_batch
    with pytest.raises(CaptureError, match="a transform of a function"):
        capture(wrapped(lambda m, x: torch.func.grad(lambda y: (y**3).sum())(x)), torch.randn(3, 4))
    layer = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match="differentiates a function. Reason: a program has no backward pass"):
        capture(wrapped(lambda m, x: torch.func.grad(lambda y: layer(y).square().sum())(x)), torch.randn(3, 4))


def test_operators_that_call_functions() -> None:
    with pytest.raises(CaptureError, match=r"flex_attention .operator flex_attention.*scaled_dot_product_attention"):
        capture(wrapped(lambda m, x: flex_attention(*(x[:, None, None],) * 3)), torch.randn(3, 4))


def test_operators_of_others_keep_their_namespace() -> None:
    @torch.library.custom_op("tests_of_refusals::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    with pytest.raises(CaptureError, match=r"not supported .operator tests_of_refusals\.twice"):
        capture(wrapped(lambda m, x: twice(x)), torch.randn(3, 4))


def test_sparse_weights() -> None:
    model = Layer(lambda m, x: torch.sparse.mm(m.weight, x))
    model.weight = nn.Parameter(torch.eye(4).to_sparse())
    with pytest.raises(CaptureError, match="weight: a sparse tensor"):
        capture(model, torch.randn(4, 3))
    model = Layer(lambda m, x: x + torch.sparse.mm(m.heads, x))
    model.register_buffer("heads", torch.eye(4).to_sparse(), persistent=False)
    with pytest.raises(CaptureError, match="heads: a sparse tensor"):
        capture(model, torch.randn(4, 3))


def test_sparse_buffers_that_the_forward_method_does_not_use() -> None:
    model = Layer(lambda m, x: x + m.other)
    model.register_buffer("heads", torch.eye(4).to_sparse(), persistent=False)
    model.register_buffer("other", torch.ones(4))
    before = list(model._buffers)
    program = intact8.quantize(nn.Sequential(model, nn.Linear(4, 2)).eval(), torch.randn(64, 4))
    assert program.run(torch.zeros(3, 4)).shape == (3, 2)
    assert list(model._buffers) == before and model.heads.layout == torch.sparse_coo


def remembers(m: nn.Module, x: Tensor) -> Tensor:
    m.state.rows = getattr(m.state, "rows", x.shape[0])
    return x.reshape(m.state.rows, 2, 2)


def test_what_another_export_left_in_a_model() -> None:
    model = wrapped(remembers)
    model[1][0].state = SimpleNamespace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with pytest.raises(CaptureError, match=r"1\.0 \(Layer\): state holds a size .*copy\.deepcopy"):
        capture(model, torch.randn(3, 4))


def failing(m: nn.Module, x: Tensor) -> Tensor:
    try:
        return x @ x
    except RuntimeError:
        return x * 2


def test_branches_that_failed_in_the_model_are_no_part_of_it() -> None:
    assert "affine_scalar" in [n.op for n in capture(wrapped(failing), torch.randn(3, 4)).graph]


def test_integers_that_programs_do_not_return() -> None:
    with pytest.raises(CaptureError, match=r"a tensor of dtype int16 is returned.*return y\.long\(\)"):
        capture(wrapped(lambda m, x: torch.ones(3, dtype=torch.int16)), torch.randn(3, 4))


def test_integers_of_32_bits_are_returned_as_int64() -> None:
    torch.manual_seed(0)  # with others a rounded largest number may be another one
    net, x = wrapped(lambda m, x: (x.relu(), (x.argmax(1) * 2**30).int())), torch.randn(32, 4)
    with pytest.warns(CaptureWarning, match="returned as int64: output 1 of the model"):
        program = intact8.quantize(net, [x])
    _, best = program.run(x)
    assert best.dtype == torch.int64 and torch.equal(best, net(x)[1].long())


def test_complex_outputs() -> None:
    with pytest.raises(CaptureError, match=r"complex numbers are returned.*view_as_real") as caught:
        capture(wrapped(lambda m, x: torch.fft.fft(x)), torch.randn(3, 4))
    assert caught.value.where == "output 0 of the model"


def test_a_module_that_converts_another_is_told_so() -> None:
    error = not_followed(nn.Linear(4, 4), RuntimeError("_apply(): Couldn't swap Linear.weight"))
    assert "the forward pass converts or moves a module" in str(error) and "leave its .to(...) out" in error.remedy


def foreign() -> dict[str, Any]:
    """Models that went through something else."""
    float_model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    exported = torch.export.export(float_model, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "exported": exported,
            "exported-module": exported.module(),
            "traced": torch.jit.trace(float_model, x),
            "holds-traced": nn.Sequential(torch.jit.trace(float_model, x)),
            "observed": nn.Sequential(float_model, torch.ao.quantization.MinMaxObserver()),
            "dynamic": torch.ao.quantization.quantize_dynamic(float_model),
        }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exported", "an ExportedProgram"),
        ("exported-module", "the module of an ExportedProgram"),
        ("traced", "TorchScript"),
        ("holds-traced", "^0: a part of the model is a TorchScript module"),
        ("observed", r"1 \(MinMaxObserver\): this model went through torch.ao"),
        ("dynamic", r"0 \(Linear\): this model went through torch.ao"),
    ],
)
def test_models_of_other_tools(name: str, message: str) -> None:
    model = foreign()[name]
    for verb in (intact8.prepare, intact8.quantize):
        with pytest.raises(InputError, match=message) as caught:
            verb(model, torch.randn(2, 4))
        assert caught.value.remedy
    stubs = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(4, 4))
    assert [n.op for n in capture(stubs, torch.randn(2, 4)).graph] == ["input", "linear"]


def test_layers_of_graphs_that_drop_loops_are_told_how_to_go_without() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return x[edges[:, edges[0] != edges[1]][0]]

    Layer.__module__ = "torch_geometric.nn.conv"
    with pytest.raises(CaptureError, match="add_self_loops = False and add them to the edges"):
        capture(nn.ModuleList([Layer()])[0], (torch.randn(3, 4), torch.randint(3, (2, 9))))


def test_a_forward_method_that_leaves_torch() -> None:
    with pytest.raises(CaptureError, match=r"test_refusals.py:\d+: the forward pass makes a NumPy array of a tensor"):
        capture(wrapped(lambda m, x: (x, [str(k) for k in x.argmax(1).numpy()])), torch.randn(3, 4))
