"""Large float attention on onednn: one call in deployment, every tensor where they are asked for."""

import numpy as np
import pytest

from intact.engines import get_engine
from intact.program.check import check
from intact.program.ops import Op, Tensor
from intact.program.program import Program

HEADS, LENGTH, WIDTH = 4, 96, 16


def attention(masked):
    shape, across = (None, HEADS, LENGTH, WIDTH), (None, HEADS, WIDTH, LENGTH)
    scores = (None, HEADS, LENGTH, LENGTH)
    tensors = {n: Tensor(n, "float32", s) for n, s in {"q": shape, "k": shape, "v": shape, "kt": across}.items()}
    tensors |= {n: Tensor(n, "float32", scores) for n in ("s", "a", "p")}
    tensors |= {"m": Tensor("m", "float32", (None, 1, 1, LENGTH)), "y": Tensor("y", "float32", shape)}
    ops = [
        Op("kt", "permute", ("k",), {"dims": [0, 1, 3, 2]}),
        Op("s", "float.matmul", ("q", "kt")),
        *([Op("a", "float.add", ("s", "m"))] if masked else []),
        Op("p", "float.softmax", ("a" if masked else "s",), {"axis": -1}),
        Op("y", "float.matmul", ("p", "v")),
    ]
    inputs = ("q", "k", "v", *(("m",) if masked else ()))
    used = {*inputs, *(op.name for op in ops)}
    program = Program({n: t for n, t in tensors.items() if n in used}, tuple(ops), inputs, ("y",))
    check(program)
    return program


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("batch", [2, 40], ids=["small", "large"])
def test_one_call_or_several_give_the_same_but_for_the_last_bits(batch, masked):
    rng = np.random.default_rng(0)
    program = attention(masked)
    x = {n: rng.standard_normal((batch, HEADS, LENGTH, WIDTH)).astype(np.float32) for n in "qkv"}
    if masked:
        x["m"] = np.where(rng.random((batch, 1, 1, LENGTH)) < 0.3, -1e4, 0).astype(np.float32)
    before = {n: a.copy() for n, a in x.items()}
    runner = get_engine("onednn").prepare(program, threads=1)
    every, want = runner.tensors(x), get_engine("reference").prepare(program)(x)[0]
    for y in (runner(x)[0], runner(x)[0], every["y"]):
        np.testing.assert_allclose(y, want, atol=1e-5)
    assert set(every) == set(program.tensors)
    assert set(runner.times(x)) == {op.name for op in program.ops}
    assert all((x[n] == a).all() for n, a in before.items())
