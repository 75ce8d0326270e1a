"""The operations a float node becomes compute what the node computes: with everything fused into it, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.floats import run_float
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.arithmetic import bit_packing as codes
from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Node
from intact8.engines import get_engine
from intact8.lower.float_islands import float_ops
from intact8.program.check import check


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


X, R = rand(2, 4, 5, 5), rand(2, 4, 5, 5) + 1
CLAMP, LEAKY, PRELU = (
    {"kind": "clamp", "min": -0.5, "max": 0.7},
    {"kind": "leaky_relu", "slope": 0.2},
    {"kind": "prelu"},
)
CONV = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
BN = {"bn": {"eps": 0.1, "momentum": 0.1}}
NORM = {
    "bn.running_mean": rand(4),
    "bn.running_var": rand(4).square() + 1,
    "bn.weight": rand(4) + 2,
    "bn.bias": rand(4),
}
WEIGHT = {"weight": rand(4, 4, 3, 3)}
CHAIN = {"chain": [{"op": "unary", "attrs": {"fn": "silu"}}, {"op": "prelu"}, {"op": "relu", "attrs": {}}]}
CASES: dict[str, tuple[str, dict[str, Any], list[Tensor], dict[str, Tensor]]] = {
    "conv": ("conv", {**CONV, "transposed": False}, [X], {**WEIGHT, "bias": rand(4)}),
    "conv with everything": (
        "conv", {**CONV, "transposed": False, **BN, "act": PRELU}, [X, R], {**WEIGHT, **NORM, "act.weight": rand(4)}
    ),
    "transposed conv": ("conv", {**CONV, "transposed": True, **BN, "act": CLAMP}, [X], {**WEIGHT, **NORM}),
    "linear": ("linear", {"act": LEAKY}, [X, R], {"weight": rand(5, 5), "bias": rand(5)}),
    "conv with norms at both ends": (
        "conv", {**CONV, "padding": [0, 0], "transposed": False, **BN, "pre": {"eps": 0.2, "momentum": 0.1}}, [X],
        {**WEIGHT, **NORM, **{f"pre.{role[3:]}": t.flip(0) for role, t in NORM.items()}},
    ),
    "linear behind a norm": (
        "linear", {"pre": BN["bn"], "act": LEAKY}, [rand(6, 4)],
        {"weight": rand(5, 4), **{f"pre.{role[3:]}": t for role, t in NORM.items()}},
    ),
    "linear without bias": ("linear", {}, [X], {"weight": rand(3, 5)}),
    "scale and shift": ("scale_shift", {"act": CLAMP}, [X, R], {"weight": rand(4), "bias": rand(4)}),
    "sum": ("add", {"act": CLAMP}, [X, R], {}), "difference": ("sub", {}, [X, R], {}),
    "product": ("mul", {"act": LEAKY}, [X, R], {}), "quotient": ("div", {}, [X, R.abs() + 1], {}),
    "scaled matrix product": ("matmul", {"mul": 0.25}, [X, R], {}), "matrix product": ("matmul", {}, [X, R], {}),
    "masked softmax": ("softmax", {"axis": 3}, [X, R[:, :1] > 1.5], {}), "softmax": ("softmax", {"axis": 1}, [X], {}),
    "chain": ("table", CHAIN, [X], {"chain.1.weight": rand(4)}),
    "mean": ("mean", {"dims": [2], "keepdim": True, "act": CLAMP}, [X], {}),
    "layer norm": ("layer_norm", {"shape": [5], "eps": 0.1}, [X], {"weight": rand(5).double(), "bias": rand(5)}),
    "embedding": ("embedding", {}, [torch.tensor([[0, 2]])], {"weight": rand(3, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_chain_is_the_node(case: str) -> None:
    kind, attrs, inputs, params = CASES[case]
    names = ("x", "y")[: len(inputs)]
    chain = [{"attrs": {}, **step} for step in attrs.get("chain", ())]
    whole = {**attrs, "chain": chain} if chain else attrs
    want = FLOAT_OPS[kind](whole, inputs, {k: v.float() for k, v in params.items()})
    node = Node("n", kind, list(names), attrs, {role: role for role in params}, shape=tuple(want.shape))
    ops = float_ops(node, names, params, module="m", note="why")
    values = {name: t.numpy() for name, t in zip(names, inputs, strict=True)}
    for op in ops:
        assert (op.module, op.note) == ("m", "why") and all(a.dtype == np.float32 for a in op.arrays.values())
        assert op.kind.startswith("float.") and set(op.inputs) <= set(values)
        values[op.name] = run_float(op.kind[6:], op.attrs, [values[name] for name in op.inputs], op.arrays)
    assert [op.name for op in ops] == [f"n.part{i}" for i in range(len(ops) - 1)] + ["n"]
    np.testing.assert_allclose(values["n"], want.numpy(), rtol=1e-4, atol=1e-4)


def test_moves_keep_their_name_and_requantization_is_nothing() -> None:
    (moved,) = float_ops(Node("n", "roll", ["x"], {"shifts": [1], "dims": [1]}), ("x",), {})
    assert (moved.kind, moved.attrs) == ("roll", {"shifts": [1], "dims": [1]})
    (same,) = float_ops(Node("n", "requantize", ["x"]), ("x",), {})
    assert run_float(same.kind[6:], same.attrs, [X.numpy()], {}).tolist() == X.numpy().tolist()
    constant = Node("c", "constant", [], {}, {"value": "v"}, shape=(3,))
    (op,) = float_ops(constant, (), {"v": torch.tensor([1, 2, 3])})
    assert op.kind == "constant" and op.arrays["value"].dtype == np.int64


@pytest.mark.parametrize(("bits", "group", "stored"), [
    (8, None, 0), (4, None, 0), (4, 8, 8), (4, 31, 31), (4, 32, 0), (4, 64, 0), (8, 16, 16),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::intact8.errors.AccuracyWarning")
def test_codes_stand_for_the_weights(bits: int, group: int | None, stored: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 6).eval()
    with torch.no_grad():
        model.weight[0, 0], model.weight[1, 3] = 0.5, -0.5
    program = intact8.quantize(model, torch.randn(4, 32), recipes.weight_only(bits, group))
    (op,) = [op for op in program.ops if op.kind == "float.decoded_linear"]
    assert op.attrs == {"bits": bits, "columns": 32, "group": stored}
    assert op.arrays["weight"].shape == (6, 32 if bits == 8 else 16)
    weight = codes.decode(op.arrays["weight"], op.arrays["scale"], **op.attrs)
    step = codes.spread(op.arrays["scale"], 32, stored)
    ends = np.abs(weight) > ((1 << (bits - 1)) - 1.01) * step  # scales may cut the ends off
    assert ((np.abs(weight - model.weight.detach().numpy()) <= 0.51 * step) | ends).all() and ends.mean() < 0.35
    assert op.arrays["bias"].tolist() == model.bias.detach().numpy().tolist()
    check(program)


@pytest.mark.parametrize("rows", ["per_row", "per_tensor"])
def test_dynamic_layers_store_integers(rows: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 6).eval()
    program = intact8.quantize(model, torch.randn(4, 32), recipes.dynamic(rows))
    (op,) = [op for op in program.ops if op.kind == "dynamic_linear"]
    assert op.attrs == {"granularity": rows} and op.arrays["weight"].dtype == np.int8
    assert set(op.arrays) == {"weight", "scale", "bias"}
    weight = op.arrays["weight"] * op.arrays["scale"][:, None]
    assert (np.abs(weight - model.weight.detach().numpy()) <= 0.51 * op.arrays["scale"][:, None]).all()


@pytest.mark.parametrize(("shape", "kind"), [((4,), "linear"), ((4, 6), "conv"), ((4, 6, 5), "conv")])
def test_a_norm_alone_is_a_layer_of_one_weight_per_channel(shape: tuple[int, ...], kind: str) -> None:
    torch.manual_seed(0)
    norm = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)[len(shape) - 1](4).eval()
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value += torch.rand(4)  # type: ignore[operator]
    x = torch.randn(64, *shape)
    # Ranges are those of the data: what an observer clips is not what this is about.
    program = intact8.quantize(norm, x, recipe=intact8.Recipe(activation={"observer": "minmax"}))
    (op,) = [op for op in program.ops if op.kind in ("linear", "conv")]
    assert op.kind == kind and np.count_nonzero(op.arrays["weight"]) == 4
    assert (program.run(x) - norm(x)).detach().abs().max() < 1.5 * (norm(x).max() - norm(x).min()).item() / 255
    if kind == "conv":
        ones, zeros = [1] * (len(shape) - 1), [0] * (len(shape) - 1)
        assert op.attrs["groups"] == 4 and op.attrs["stride"] == op.attrs["dilation"] == ones
        assert op.attrs["padding"] == op.attrs["output_padding"] == zeros


class Named(nn.Module):
    """A layer in whose module another one has the name that the first one's part would get."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({"part0": nn.Linear(8, 8)})
        self.weight = nn.Parameter(rand(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(nn.functional.linear(self.linear["part0"](x), self.weight))


@pytest.mark.parametrize("recipe", [recipes.dynamic(), recipes.weight_only()], ids=["dynamic", "weight only"])
def test_parts_get_names_that_no_node_has(recipe: intact8.Recipe) -> None:
    model, x = nn.Sequential(Named()), rand(4, 8)
    sim = intact8.prepare(model.eval(), x, recipe)
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    names = [op.name for op in program.ops]
    assert names == ["0.linear.part0", "0.linear.part0 (2)", "0.linear"]
    found = get_engine("reference").prepare(program).tensors({program.inputs[0]: x.numpy()})
    for name, value in sim.integer_tensors([x]).items():
        np.testing.assert_array_equal(value, found[name])
    np.testing.assert_allclose(program.run(x.numpy()), model(x).detach().numpy(), atol=0.3)
