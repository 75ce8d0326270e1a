"""Shapes the checker derives are those torch computes; what is refused is what torch refuses, or is stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intact8.opset import output_shape
from intact8.opset.elementwise import matmul_shape
from intact8.opset.op import Op, Tensor
from intact8.opset.shapes import broadcast
from intact8.opset.violation import Violation

CONV = (None, F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (None, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
AVERAGE = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
LARGEST = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)


def shape_of(op: Op, *shapes: tuple[int | str | None, ...]) -> Any:
    """The derived shape, or None where the operation is refused."""
    try:
        return output_shape(op, [Tensor("x", "float32", s) for s in shapes], shapes[0])
    except Violation:
        return None


def torch_shape(function: Any, *args: Any) -> tuple[int, ...] | None:
    """The shape torch gives, or None where it refuses, or where nothing is left."""
    try:
        shape = tuple(function(*args).shape)
        return shape if 0 not in shape else None
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None


def test_convolutions() -> None:
    rng, fits = np.random.default_rng(0), 0
    for _ in range(600):
        rank, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        transposed = bool(rng.integers(0, 2))
        size, kernel, stride, dilation = (rng.integers(1, most, rank).tolist() for most in (9, 4, 4, 3))
        padding = rng.integers(0, 3, rank).tolist()
        extra = rng.integers(0, 3, rank).tolist() if transposed else [0] * rank
        inputs, outputs = (groups * int(rng.integers(1, 3)) for _ in range(2))
        lead = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
        weight = np.ones((*lead, *kernel), np.float32)
        channels = inputs + int(rng.random() < 0.1)
        attrs = {
            "stride": stride, "padding": padding, "dilation": dilation, "output_padding": extra, "groups": groups,
            "transposed": transposed,
        }  # fmt: skip
        op = Op("y", "float.conv", ("x",), attrs, {"weight": weight})
        x, w = torch.zeros(2, channels, *size), torch.from_numpy(weight)
        if transposed:
            want = torch_shape(TRANSPOSED[rank], x, w, None, stride, padding, extra, groups, dilation)
        else:
            want = torch_shape(CONV[rank], x, w, None, stride, padding, dilation, groups)
        assert shape_of(op, (2, channels, *size)) == want, (attrs, size, kernel)
        fits += want is not None
    assert fits > 200


@pytest.mark.parametrize("kind", ["float.avg_pool", "max_pool"])
def test_pools(kind: str) -> None:
    rng, fits = np.random.default_rng(1), 0
    for _ in range(600):
        rank = int(rng.integers(1, 4))
        size, kernel, stride = (rng.integers(1, most, rank).tolist() for most in (9, 5, 5))
        padding, ceil = rng.integers(0, 3, rank).tolist(), bool(rng.integers(0, 2))
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
        x = torch.zeros(2, 3, *size)
        if kind == "max_pool":
            attrs["dilation"] = dilation = rng.integers(1, 3, rank).tolist()
            if any(2 * p > k and 2 * p <= d * (k - 1) + 1 for p, k, d in zip(padding, kernel, dilation, strict=True)):
                continue  # torch compares the padding with the kernel, this with the window, which a dilation widens
            want = torch_shape(LARGEST[rank], x, kernel, stride, padding, dilation, ceil)
        else:
            attrs["count_include_pad"] = True
            if rank == 3 and any(k > n for k, n in zip(kernel, size, strict=True)):
                continue  # only torch's avg_pool3d wants inputs as large as the kernel before they are padded
            want = torch_shape(AVERAGE[rank], x, kernel, stride, padding, ceil, True)
        assert shape_of(Op("y", kind, ("x",), attrs), (2, 3, *size)) == want, (attrs, size)
        fits += want is not None
    assert fits > 150


def test_products_of_matrices() -> None:
    rng = np.random.default_rng(2)
    op, fits = Op("y", "float.matmul", ("x", "w")), 0
    for _ in range(400):
        left, right = (tuple(rng.integers(1, 3, int(rng.integers(1, 5))).tolist()) for _ in range(2))
        want = torch_shape(torch.matmul, torch.zeros(left), torch.zeros(right))
        if min(len(left), len(right)) < 2:
            want = None  # vectors are no matrices here
        assert shape_of(op, left, right) == want, (left, right)
        fits += want is not None
    assert fits > 60


def test_broadcasting() -> None:
    rng = np.random.default_rng(3)
    for _ in range(400):
        shapes = [tuple(rng.integers(1, 4, int(rng.integers(0, 4))).tolist()) for _ in range(2)]
        want = torch_shape(torch.add, *map(torch.zeros, shapes))
        try:
            assert broadcast(shapes) == want
        except Violation:
            assert want is None


def test_moves() -> None:
    rng = np.random.default_rng(4)
    for _ in range(400):
        shape = tuple(rng.integers(1, 5, int(rng.integers(1, 5))).tolist())
        x, rank = torch.zeros(shape), len(shape)
        axis = int(rng.integers(0, rank + 1))
        start, step = int(rng.integers(0, 4)), int(rng.integers(1, 4))
        end = start + int(rng.integers(0, 4))
        cut = Op("y", "slice", ("x",), {"axis": axis, "start": start, "end": end, "step": step})
        inside = axis < rank and start < end <= shape[axis]
        index = (*(slice(None),) * axis, slice(start, end, step))
        assert shape_of(cut, shape) == (tuple(x[index].shape) if inside else None)
        dims = rng.permutation(rank).tolist()
        assert shape_of(Op("y", "permute", ("x",), {"dims": dims}), shape) == tuple(x.permute(dims).shape)
        assert shape_of(Op("y", "permute", ("x",), {"dims": [*dims[1:], rank]}), shape) is None
        new = rng.integers(1, 5, int(rng.integers(1, 4))).tolist()
        if rng.random() < 0.5:
            new[int(rng.integers(0, len(new)))] = -1
        assert shape_of(Op("y", "reshape", ("x",), {"shape": new}), shape) == torch_shape(x.reshape, new), (shape, new)
        other = list(shape)
        other[int(rng.integers(0, rank))] += int(rng.integers(0, 2))
        if axis < rank:
            want = torch_shape(torch.cat, [x, torch.zeros(other)], axis)
            assert shape_of(Op("y", "cat", ("x", "w"), {"axis": axis}), shape, tuple(other)) == want


@pytest.mark.parametrize("keepdim", [True, False])
def test_reductions(keepdim: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        shape = tuple(rng.integers(1, 5, int(rng.integers(1, 5))).tolist())
        dims = rng.integers(0, len(shape) + 1, int(rng.integers(1, 3))).tolist()
        want = torch_shape(lambda s=shape, d=dims: torch.zeros(s).mean(d, keepdim))
        assert shape_of(Op("y", "float.mean", ("x",), {"dims": dims, "keepdim": keepdim}), shape) == want, (shape, dims)


REFUSED: dict[str, tuple[Op, tuple[int | str | None, ...]]] = {
    "a convolution over four dimensions": (
        Op("y", "float.conv", ("x",), {}, {"weight": np.ones((1, 1, 1, 1, 1, 1), np.float32)}), (1, 1, 1, 1, 1, 1)
    ),
    "a linear layer of another size": (
        Op("y", "float.linear", ("x",), {}, {"weight": np.ones((3, 4), np.float32)}), (2, 5)
    ),
    "a weight that is no matrix": (
        Op("y", "float.linear", ("x",), {}, {"weight": np.ones((3, 5, 1), np.float32)}), (2, 5)
    ),
    "codes that are no matrix": (
        Op("y", "float.decoded_linear", ("x",), {"bits": 8, "columns": 5, "group": 0},
           {"weight": np.ones((3, 5, 1), np.uint8), "scale": np.ones((3, 1), np.float32)}), (2, 5)
    ),
    "codes in a vector": (
        Op("y", "float.decoded_linear", ("x",), {"bits": 8, "columns": 5, "group": 0},
           {"weight": np.ones(3, np.uint8), "scale": np.ones((3, 1), np.float32)}), (2, 5)
    ),
    "a pool over four dimensions": (
        Op("y", "max_pool", ("x",), {"kernel": [1] * 4, "stride": [1] * 4, "padding": [0] * 4, "dilation": [1] * 4,
                                     "ceil_mode": False}), (1, 1, 1, 1, 1, 1)
    ),
    "a norm over more than there is": (
        Op("y", "float.layer_norm", ("x",), {"shape": [2, 2, 5], "eps": 1e-5}), (2, 5)
    ),
    "groups that do not divide": (Op("y", "float.group_norm", ("x",), {"groups": 2, "eps": 1e-5}), (2, 5, 1)),
    "channels of another number": (
        Op("y", "float.scale_shift", ("x",), {}, {"weight": np.ones(1, np.float32)}), (2, 5)
    ),
    "channels where there are none": (
        Op("y", "float.scale_shift", ("x",), {}, {"weight": np.ones(5, np.float32)}), (5,)
    ),
    "pads of another rank": (Op("y", "pad", ("x",), {"pads": [[0, 0]], "value": 0}), (2, 5)),
    "pads that leave nothing": (Op("y", "pad", ("x",), {"pads": [[0, 0], [-3, -2]], "value": 0}), (2, 5)),
    "a padded batch": (Op("y", "pad", ("x",), {"pads": [[1, 0], [0, 0]], "value": 0}), (None, 5)),
    "a cut batch": (Op("y", "slice", ("x",), {"axis": 0, "start": 0, "end": 1, "step": 1}), (None, 5)),
    "a joined batch": (Op("y", "cat", ("x",), {"axis": 0}), (None, 5)),
    "a rolled batch": (Op("y", "roll", ("x",), {"shifts": [1], "dims": [0]}), (None, 5)),
    "a roll beyond the rank": (Op("y", "roll", ("x",), {"shifts": [1], "dims": [2]}), (2, 5)),
    "shifts without dimensions": (Op("y", "roll", ("x",), {"shifts": [1, 1], "dims": [1]}), (2, 5)),
    "no room for the batch": (Op("y", "reshape", ("x",), {"shape": [2, 5]}), (None, 5)),
    "another product of sizes by name": (Op("y", "reshape", ("x",), {"shape": [4, 3]}), ("n", 2)),
    "a table of one dimension": (Op("y", "float.embedding", ("x",), {}, {"weight": np.ones(5, np.float32)}), (2,)),
    "two open sizes": (Op("y", "reshape", ("x",), {"shape": [-1, -1]}), (2, 5)),
    "an integer mean over the batch": (
        Op("y", "mean", ("x",), {"dims": [0], "keepdim": False, "a": 1, "b": 1, "lo": 0, "hi": 255}), (None, 5)
    ),
    "argmax over two dimensions": (
        Op("y", "float.reduce", ("x",), {"fn": "argmax", "dims": [0, 1], "keepdim": False}), (2, 5)
    ),
    "a bilinear image of one dimension": (
        Op("y", "upsample", ("x",), {"size": [4], "mode": "bilinear", "align_corners": False}), (1, 1, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    op, shape = REFUSED[case]
    assert shape_of(op, shape) is None


def test_matrices_of_any_rank_multiply() -> None:
    op = Op("y", "float.matmul", ("a", "b"))
    for left, right, out in (((2, 3, 4, 5), (3, 5, 6), (2, 3, 4, 6)), ((4, 5), (5, 6), (4, 6))):
        assert matmul_shape(op, [left, right], ()) == out
        with pytest.raises(Violation):
            matmul_shape(op, [left, (*right[:-2], 4, 6)], ())


def test_one_more_or_less_is_taken() -> None:
    assert shape_of(Op("y", "pad", ("x",), {"pads": [[0, 0], [-3, -1]], "value": 0}), (2, 5)) == (2, 1)
    assert shape_of(Op("y", "pad", ("x",), {"pads": [[0, 0], [1, 2]], "value": 0}), (None, 5)) == (None, 8)
    assert shape_of(Op("y", "roll", ("x",), {"shifts": [1], "dims": [1]}), (None, 5)) == (None, 5)
    assert shape_of(Op("y", "reshape", ("x",), {"shape": [-1, 2, 5]}), (None, 5)) == (None, 2, 5)
    assert shape_of(Op("y", "float.group_norm", ("x",), {"groups": 5, "eps": 1e-5}), (2, 5, 1)) == (2, 5, 1)


def test_more_than_eight_dimensions_are_refused_however_small() -> None:
    for dims, fits in ((8, True), (9, False)):
        op = Op("y", "reshape", ("x",), {"shape": [1] * dims}, {})
        assert (shape_of(op, (1, 1)) is not None) == fits


@pytest.mark.parametrize("role", ["stride", "padding", "dilation"])
def test_a_convolution_states_every_size_for_every_dimension(role: str) -> None:
    attrs = {
        "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1,
        "transposed": False,
    }  # fmt: skip
    weight = {"weight": np.ones((2, 2, 1, 1), np.float32)}
    assert shape_of(Op("y", "float.conv", ("x",), attrs, weight), (1, 2, 3, 3)) == (1, 2, 3, 3)
    for wrong in (attrs[role][:1], attrs[role] * 2):  # type: ignore[index]
        assert shape_of(Op("y", "float.conv", ("x",), {**attrs, role: wrong}, weight), (1, 2, 3, 3)) is None


def test_only_a_plain_recurrent_layer_names_its_function() -> None:
    attrs = {"hidden": 2, "bidirectional": False, "states": False, "lengths": False, "result": "steps"}
    for kind, gates in (("rnn", 1), ("gru", 3)):
        weights = {"weight_ih": np.ones((2 * gates, 3), np.float32), "weight_hh": np.ones((2 * gates, 2), np.float32)}
        for named in (True, False):
            given = attrs | ({"nonlinearity": "tanh"} if named else {})
            op = Op("y", f"float.{kind}", ("x",), given, weights)
            assert (shape_of(op, (5, 1, 3)) is not None) == (named == (kind == "rnn"))


@pytest.mark.parametrize("role", ["stride", "padding", "dilation"])
def test_a_pool_states_every_size_for_every_dimension(role: str) -> None:
    attrs = {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    assert shape_of(Op("y", "max_pool", ("x",), attrs), (1, 2, 3, 3)) == (1, 2, 2, 2)
    for wrong in (attrs[role][:1], attrs[role] * 2):  # type: ignore[index]
        assert shape_of(Op("y", "max_pool", ("x",), {**attrs, role: wrong}), (1, 2, 3, 3)) is None
