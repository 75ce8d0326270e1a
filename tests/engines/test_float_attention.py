"""Float attention on onednn: one call in deployment, every tensor where they are asked for.

The compiled kernel has a form for each width of vectors. Those of this CPU are used; AVX2 ones are built by the tests,
so that CPUs with wider ones run them, too.
"""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from intact8.engines import engine_status, get_engine
from intact8.engines.onednn import torch_native
from intact8.engines.onednn.attention import lower_attention
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

HEADS, LENGTH, WIDTH = 4, 96, 16
SOURCES = Path(__file__).parents[2] / "native"


@pytest.fixture(scope="module")
def avx2(tmp_path_factory):
    """The compiled kernels as on a CPU without AVX-512."""
    include = sysconfig.get_paths()["include"]
    if not sys.platform.startswith("linux") or not shutil.which("cc") or not Path(include, "Python.h").is_file():
        pytest.skip("no C compiler (cc) with Python's headers here")
    path = tmp_path_factory.mktemp("avx2") / "_native.so"
    # The features asked for: of avx512f and its like, the fourth letter is a 5.
    flags = ["-O1", "-ffp-contract=off", "-D__builtin_cpu_supports(name)=(name[3] != '5')", f"-I{include}"]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, *SOURCES.glob("*.c"), "-o", path], check=True)
    loader = importlib.machinery.ExtensionFileLoader("_native", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(params=["native", "avx2"])
def compiled(request, monkeypatch):
    """Attention in one pass, on the widest vectors and on narrower ones."""
    library = torch_native.load()
    if library is None or not library.can_attend():
        pytest.skip("the compiled kernels were not built, or this CPU has no vectors for them")
    if request.param == "avx2":
        library = request.getfixturevalue("avx2")
        monkeypatch.setattr(torch_native, "load", lambda: library)
        assert library.can_attend()


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


@pytest.fixture(params=["compiled", "torch"])
def how(request, monkeypatch):
    """The compiled kernels, then what stands in for them."""
    if engine_status()["onednn"] is not None:
        pytest.skip(engine_status()["onednn"])
    if request.param == "torch":
        monkeypatch.setattr(torch_native, "load", lambda: None)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("batch", [2, 40], ids=["small", "large"])
def test_one_call_or_several_give_the_same_but_for_the_last_bits(batch, masked, how):
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
    times, library = runner.times(x), torch_native.load()
    assert set(times) == {op.name for op in program.ops}
    assert (times["s"] == times["p"] == 0) == (library is not None and library.can_attend())
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
def test_operands_that_widen_others(shapes, how):
    program, rng = attention(True, **shapes), np.random.default_rng(0)
    x = {n: rng.standard_normal((2, *program.tensors[n].shape[1:]), np.float32) for n in program.inputs}
    want = get_engine("reference").prepare(program)(x)[0]
    (y,) = get_engine("onednn").prepare(program, threads=1)(x)
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, atol=1e-5)


def test_programs_give_nan_where_there_is_no_key(how):
    program, rng = attention(True, mask=(1, LENGTH, LENGTH)), np.random.default_rng(0)
    x = {n: rng.standard_normal((2, *program.tensors[n].shape[1:]), np.float32) for n in program.inputs}
    x["m"][1, 0, 7] = -np.inf
    want = get_engine("reference").prepare(program)(x)[0]
    (y,) = get_engine("onednn").prepare(program, threads=1)(x)
    assert np.isnan(want[1, :, 7]).all()
    np.testing.assert_allclose(y, want, atol=1e-5)


def attend(q, k, v, mask=None):
    """The pass for these tensors; k as written, which programs turn."""
    given = (q, k.mT, v) if mask is None else (q, k.mT, v, mask)
    return lower_attention(SimpleNamespace(inputs=given))(*given)


def several(q, k, v, mask=None):
    """The same, operation by operation."""
    s = q @ k.mT
    return torch.softmax(s if mask is None else s + mask, -1) @ v


def heads(rng, queries, keys, width, samples=3, count=4):
    """q, divided by √width, k and v."""
    q, k, v = (
        torch.from_numpy(rng.standard_normal((samples, count, n, width), np.float32)) for n in (queries, keys, keys)
    )
    return q / width**0.5, k, v


def masks(rng, queries, keys, value):
    """Masks in every shape that broadcasts over three samples of four heads; no row is masked as a whole."""
    shapes = [(3, 1, 1, keys), (1, 1, queries, keys), (3, 4, queries, keys), (1, 4, 1, keys), (1, 1, 1, keys)]
    for shape in shapes:
        masked = rng.random(shape) < 0.4
        masked[..., rng.integers(keys)] = False
        yield torch.from_numpy(np.where(masked, np.float32(value), rng.standard_normal(shape, np.float32)))
    yield torch.from_numpy(rng.standard_normal((3, 4, queries, 1), np.float32))
    yield torch.from_numpy(rng.standard_normal((1, 1, 1, 1), np.float32))


def compare(q, k, v, mask=None):
    """Errors are those of float32: on the average no more than a small multiple of torch's."""
    y, t = attend(q, k, v, mask), several(q, k, v, mask)
    want = several(*(x if x is None else x.double() for x in (q, k, v, mask)))
    assert y.shape == t.shape and y.dtype == torch.float32
    errors = [float((x - want).square().mean().sqrt()) for x in (y, t)]
    assert errors[0] <= 4 * errors[1] + 2.0**-24 * float(v.abs().max()), (q.shape, k.shape, errors)


@pytest.mark.parametrize("width", [1, 7, 32, 33, 64, 80])
@pytest.mark.parametrize("keys", [1, 5, 17, 33, 50, 130])
def test_errors_are_those_of_float32(keys, width, compiled):
    rng = np.random.default_rng(keys * width)
    for queries in (1, 5, 6, 19):
        q, k, v = heads(rng, queries, keys, width)
        for scale in (0.1, 1.0, 4.0):
            compare(q * scale, k, v)
        for value in (-1e4, -np.inf):
            for mask in masks(rng, queries, keys, value):
                compare(q, k, v, mask)


def test_weights_from_one_to_none(compiled):
    """Scores 0 to −110 apart: exp down to where it is 0 in float32, too."""
    gaps = torch.linspace(0, 110, 4400).view(1, 1, 4400, 1)
    q, k = torch.cat([torch.zeros_like(gaps), -gaps], -1), torch.eye(2).view(1, 1, 2, 2)
    y = attend(q, k, torch.eye(2).view(1, 1, 2, 2))[0, 0].double()
    want = torch.softmax(q[0, 0].double(), -1)
    inside = gaps.view(-1) < 87
    np.testing.assert_allclose(y[inside], want[inside], rtol=5e-7)
    np.testing.assert_allclose(y[~inside], want[~inside], rtol=5e-7, atol=2.0**-125)


@pytest.mark.parametrize("keys", [1, 6, 16, 37])
def test_rows_without_a_key_are_nan_and_others_as_they_were(keys, compiled):
    q, k, v = heads(np.random.default_rng(0), 9, keys, 20)
    mask = torch.zeros(3, 1, 9, keys)
    before = attend(q, k, v, mask)
    mask[1, 0, 4], mask[2, 0, 8] = -torch.inf, -torch.inf
    y, t = attend(q, k, v, mask), several(q, k, v, mask)
    assert torch.equal(y.isnan(), t.isnan())
    assert y[1, :, 4].isnan().all() and y[2, :, 8].isnan().all() and int(y.isnan().sum()) == 2 * 4 * 20
    assert torch.equal(torch.where(t.isnan(), before, y), before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("at", [0, 3, 18])
def test_scores_that_are_no_numbers_spoil_their_row_only(at, bad, compiled):
    q, k, v = heads(np.random.default_rng(1), 13, 19, 20)
    mask = torch.zeros(3, 1, 13, 19)
    before = attend(q, k, v, mask)
    mask[1, 0, 5, at] = bad
    y = attend(q, k, v, mask)
    assert torch.equal(y.isnan(), several(q, k, v, mask).isnan())
    assert y[1, :, 5].isnan().all() and int(y.isnan().sum()) == 4 * 20
    assert torch.equal(torch.where(y.isnan(), before, y), before)
    q[0, 2, 12, 7] = torch.nan
    assert torch.equal(attend(q, k, v).isnan(), several(q, k, v).isnan())


def joint(q, k, v):
    """Views of one tensor (samples, rows, 3 · heads · width)."""
    whole = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2).flatten(2)
    return (x.unflatten(-1, q.shape[1::2]).transpose(1, 2) for x in whole.chunk(3, -1))


VIEWS = {
    "joint": joint,
    "keys turned": lambda q, k, v: (q, k.mT.contiguous().mT, v),
    "all turned": lambda q, k, v: (x.mT.contiguous().mT for x in (q, k, v)),
    "every other row": lambda q, k, v: (x.repeat_interleave(2, 2)[:, :, ::2] for x in (q, k, v)),
    "every other element": lambda q, k, v: (x.repeat_interleave(2, 3)[..., ::2] for x in (q, k, v)),
    "heads last": lambda q, k, v: (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in (q, k, v)),
    "rows of longer ones": lambda q, k, v: (torch.nn.functional.pad(x, (3, 5))[..., 3:-5] for x in (q, k, v)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [1, 7, 32, 40])
def test_bits_do_not_depend_on_the_layout(width, view, compiled):
    q, k, v = heads(np.random.default_rng(2), 17, 17, width)
    mask = torch.from_numpy(np.random.default_rng(3).standard_normal((3, 1, 17, 17), np.float32))
    turned = mask.mT.contiguous().mT
    for masked in (None, mask, turned, mask.expand(3, 4, 17, 17)):
        want = attend(q, k, v, None if masked is None else mask.expand(3, 4, 17, 17).contiguous())
        given = [x.clone(memory_format=torch.preserve_format) for x in (q, k, v)]
        assert torch.equal(attend(*VIEWS[view](q, k, v), masked), want)
        assert all(torch.equal(a, b) for a, b in zip((q, k, v), given, strict=True))


def test_one_tensor_for_all_samples(compiled):
    q, k, v = (x[:1] for x in heads(np.random.default_rng(4), 8, 21, 12))
    assert torch.equal(attend(*(x.expand(5, -1, -1, -1) for x in (q, k, v))), attend(q, k, v).expand(5, -1, -1, -1))


def test_a_row_does_not_depend_on_those_beside_it(compiled):
    q, k, v = heads(np.random.default_rng(5), 20, 21, 12)
    whole = attend(q, k, v)
    for i in range(20):
        assert torch.equal(attend(q[:, :, i : i + 1], k, v), whole[:, :, i : i + 1])
