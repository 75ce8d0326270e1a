"""Float attention on engines that may take it in one pass: the reference's numbers but for the last bits."""

import numpy as np
import pytest

from intact8.engines import engine_status, get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

HEADS, LENGTH, WIDTH = 4, 96, 16


def attention(masked, q=(HEADS, LENGTH), k=(HEADS, LENGTH), v=(HEADS, LENGTH), mask=(1, 1, LENGTH), values=WIDTH):
    """Heads and rows of the operands, and the width of v; a mask may have more than they."""
    scores, last = (q[0], q[1], k[1]), (WIDTH,)
    added = tuple(map(max, scores, mask)) if masked else scores
    shapes = {"q": q + last, "k": k + last, "v": (*v, values), "kt": (k[0], WIDTH, k[1]), "m": mask}
    shapes |= {"s": scores, "a": added, "p": added, "y": (max(added[0], v[0]), added[1], values)}
    tensors = {n: Tensor(n, "float32", (None, *shape)) for n, shape in shapes.items()}
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


@pytest.fixture(params=["onednn", "native"])
def engine(request):
    """An engine that can run here."""
    if engine_status()[request.param] is not None:
        pytest.skip(engine_status()[request.param])
    return get_engine(request.param)


def drawn(program, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal((batch, *program.tensors[n].shape[1:]), np.float32) for n in program.inputs}


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("batch", [2, 40], ids=["small", "large"])
def test_attention_and_all_its_tensors(batch, masked, engine):
    program = attention(masked)
    x = drawn(program, batch)
    if masked:
        x["m"] = np.where(np.random.default_rng(1).random((batch, 1, 1, LENGTH)) < 0.3, -1e4, 0).astype(np.float32)
    before = {n: a.copy() for n, a in x.items()}
    runner = engine.prepare(program, threads=1)
    every, want = runner.tensors(x), get_engine("reference").prepare(program)(x)[0]
    for y in (runner(x)[0], runner(x)[0], every["y"]):
        np.testing.assert_allclose(y, want, atol=1e-5)
    assert set(every) == set(program.tensors)
    assert set(runner.times(x)) == {op.name for op in program.ops}
    assert all((x[n] == a).all() for n, a in before.items())


WIDENED = {
    "heads": {"q": (1, 5), "k": (1, 7), "v": (1, 7), "mask": (3, 1, 7)},
    "heads of scores": {"q": (1, 5), "k": (1, 7), "v": (3, 7), "mask": (3, 1, 7)},
    "queries": {"q": (3, 1), "k": (3, 7), "v": (3, 7), "mask": (1, 5, 7)},
    "keys": {"q": (3, 5), "k": (3, 1), "v": (3, 7), "mask": (1, 1, 7)},
    "nothing": {"q": (3, 5), "k": (3, 7), "v": (3, 7), "mask": (1, 5, 7)},
    "heads of values": {"q": (1, 5), "k": (1, 7), "v": (3, 7), "mask": (1, 1, 7)},
    "the width of values": {"q": (3, 5), "k": (3, 7), "v": (3, 7), "mask": (1, 1, 7), "values": 40},
    "heads of queries": {"q": (3, 5), "k": (1, 7), "v": (3, 7), "mask": (1, 1, 7)},
}
"""What a mask, or another operand, has more of than the scores."""


@pytest.mark.parametrize("shapes", WIDENED.values(), ids=WIDENED)
def test_operands_that_widen_others(shapes, engine):
    program = attention(True, **shapes)
    x = drawn(program)
    want = get_engine("reference").prepare(program)(x)[0]
    (y,) = engine.prepare(program, threads=1)(x)
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize("keys", [1, 5, 17, 33, 130])
@pytest.mark.parametrize("queries", [1, 6, 19])
def test_any_number_of_queries_and_keys(queries, keys, engine):
    for masked in (False, True):
        program = attention(masked, q=(3, queries), k=(3, keys), v=(3, keys), mask=(1, queries, keys))
        x = drawn(program, 3)
        for scale in (0.1, 1.0, 4.0):
            given = x | {"q": x["q"] * np.float32(scale)}
            want = get_engine("reference").prepare(program)(given)[0]
            np.testing.assert_allclose(engine.prepare(program, threads=1)(given)[0], want, atol=1e-5)


def test_nan_where_there_is_no_key_and_in_no_other_row(engine):
    program = attention(True, mask=(1, LENGTH, LENGTH))
    x = drawn(program)
    runner = engine.prepare(program, threads=1)
    (before,) = runner(x)
    x["m"][1, 0, 7] = -np.inf
    want = get_engine("reference").prepare(program)(x)[0]
    (y,) = runner(x)
    assert np.isnan(want[1, :, 7]).all() and (np.isnan(y) == np.isnan(want)).all()
    assert (np.where(np.isnan(want), before, y) == before).all()


def test_a_row_does_not_depend_on_those_beside_it(engine):
    program = attention(False, q=(3, 20), k=(3, 21), v=(3, 21))
    x = drawn(program)
    (whole,) = engine.prepare(program, threads=1)(x)
    one = attention(False, q=(3, 1), k=(3, 21), v=(3, 21))
    for i in range(20):
        (row,) = engine.prepare(one, threads=1)(x | {"q": x["q"][:, :, i : i + 1]})
        np.testing.assert_allclose(row, whole[:, :, i : i + 1], atol=1e-5)
