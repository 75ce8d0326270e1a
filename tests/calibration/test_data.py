from __future__ import annotations

import logging
import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intact8
from intact8.calibration.data import SLICE, batches, first_batch, length
from intact8.calibration.dynamic_dimensions import changing
from intact8.calibration.summary import CalibrationWarning
from intact8.diagnose.evaluate import _batches
from intact8.errors import CalibrationError

CPU = torch.device("cpu")
ONE = [("x", "float32", (None, 3))]
TWO = [("x", "float32", (None, 3)), ("ids", torch.int64, (None,))]
X, IDS = torch.arange(6.0).reshape(2, 3), torch.tensor([4, 5])


def calls(data: Any, specs: Any = ONE) -> list[Any]:
    return list(batches(data, specs, CPU))


def flat(call: Any) -> list[Tensor]:
    return [*call[0], *call[1].values()]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([X, X], id="list_of_tensors"),
        pytest.param([(X, IDS), (X, IDS)], id="tuples_with_labels"),
        pytest.param([[X, IDS, "path"], [X, IDS, "path"]], id="lists_with_labels"),
        pytest.param([(X,), (X,)], id="tuples_of_one"),
        pytest.param([{"x": X, "label": IDS}] * 2, id="dicts"),
        pytest.param([UserDict(x=X)] * 2, id="mappings"),
        pytest.param([({"x": X}, IDS)] * 2, id="dict_and_labels"),
        pytest.param([({"x": X},)] * 2, id="dict_alone"),
        pytest.param([X.numpy(), X.numpy()], id="arrays"),
        pytest.param(((X, X) for _ in range(2)), id="generator"),
        pytest.param(DataLoader(TensorDataset(X.repeat(2, 1), IDS.repeat(2)), batch_size=2), id="loader"),
    ],
)
def test_customary_data(data: Any) -> None:
    found = calls(data)
    assert len(found) == 2
    for call in found:
        (x,) = flat(call)
        assert torch.equal(x, X)


def test_two_inputs_by_position_and_by_key() -> None:
    for batch in ((X, IDS), (X, IDS, 7), {"ids": IDS, "x": X}):
        (call,) = calls([batch], TWO)
        assert [t.dtype for t in flat(call)] == [torch.float32, torch.int64]


def test_one_dict_that_holds_lists() -> None:
    specs = [(name, "float32", (None, 3)) for name in ("d.a", "d.b.0", "d.b.1")]
    given = {"a": X, "b": [X, X + 1]}
    for batch in ((given,), (given, IDS), {**given, "labels": IDS}, {"d": given}):
        ((args, kwargs),) = calls([batch], specs)
        taken = kwargs["d"] if kwargs else args[0]
        assert list(taken) == ["a", "b"] and torch.equal(taken["b"][1], X + 1)


class Pair(nn.Module):
    """Takes two tensors as one argument."""

    def forward(self, pair: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor:
        """Return their sum."""
        return (pair[0] + pair[1]) * scale


def test_labels_behind_nested_inputs_do_not_hide_lengths_that_change() -> None:
    data = [((torch.zeros(2, n), torch.zeros(2, 1)), IDS) for n in (5, 7)]
    found, whole = changing(Pair(), (data[0][0],), data)
    assert found.names == {"pair.0": {1: "sequence"}} and list(whole) == data


def test_a_model_that_takes_the_dict_itself() -> None:
    specs = [("batch.x", "float32", (None, 3)), ("batch.ids", "int64", (None,))]
    ((args, kwargs),) = calls([{"x": X, "ids": IDS, "more": 1}], specs)
    assert kwargs == {} and set(args[0]) == {"x", "ids"}


@pytest.mark.parametrize("whole", [torch.ones(70, 3), np.ones((70, 3), np.float32)], ids=["tensor", "array"])
def test_one_tensor_is_cut_into_batches(whole: Any) -> None:
    assert [len(c[0][0]) for c in calls(whole)] == [SLICE, SLICE, 70 - 2 * SLICE]
    assert length(whole, ONE) == 3
    fixed = [("x", "float32", (35, 3))]
    assert [len(c[0][0]) for c in calls(whole, fixed)] == [35, 35]
    assert length(whole, fixed) == 2


def test_length() -> None:
    assert length([X, X], ONE) == 2
    assert length({"x": X}, ONE) == 1
    assert length(iter([X]), ONE) is None
    assert length(DataLoader(TensorDataset(X), batch_size=1), ONE) == 2


def test_extra_keys_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "intact8"):
        calls([{"x": X, "label": IDS}] * 3)
    assert [r.getMessage().count("label") for r in caplog.records] == [1]


@pytest.mark.parametrize(
    ("data", "specs", "words"),
    [
        pytest.param([], ONE, "no batch", id="empty_list"),
        pytest.param(iter(()), ONE, "no batch", id="exhausted"),
        pytest.param(torch.empty(0, 3), ONE, "no batch", id="empty_tensor"),
        pytest.param([X, torch.empty(0, 3)], ONE, r"batch 1, input x: .*holds nothing", id="empty_batch"),
        pytest.param(
            [X, X.double()], ONE, r"batch 1, input x: expected dtype torch.float32, got torch.float64", id="float64"
        ),
        pytest.param([X.int()], ONE, r"batch 0.*float32, got torch.int32", id="int"),
        pytest.param([X.to(torch.uint8)], ONE, r"got torch.uint8", id="uint8"),
        pytest.param([X.numpy().astype(np.float64)], ONE, r"got torch.float64", id="array_float64"),
        pytest.param([np.array(["a"])], ONE, r"array of dtype <U1", id="array_of_text"),
        pytest.param(
            [X.T.contiguous()], ONE, r"expected shape \(batch, 3\), got \(3, 2\).*unless a convol", id="shape"
        ),
        pytest.param([X[0]], ONE, r"the batch dimension is missing", id="sample"),
        pytest.param([X], TWO, r"batch 0 has 1 elements.*2 inputs: x, ids", id="too_few"),
        pytest.param([{"y": X}], ONE, r"batch 0 has no 'x'.*\['y'\]", id="missing_key"),
        pytest.param(
            [{"y": X}], [("x", "float32", (None, 3))], r"name the entries after the model's inputs: x", id="remedy"
        ),
        pytest.param(["a.png"], ONE, r"expected a tensor, got str", id="paths"),
        pytest.param("folder", ONE, "type str", id="text"),
        pytest.param(3, ONE, "type int", id="number"),
        pytest.param(torch.tensor(1.0), ONE, "single number", id="scalar"),
    ],
)
def test_bad_data(data: Any, specs: Any, words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        calls(data, specs)


class Two(nn.Module):
    def forward(self, x: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
        return x * mask


@pytest.mark.parametrize(
    ("model", "data", "shapes"),
    [
        pytest.param(nn.Linear(3, 1), [(X, IDS)], [(2, 3)], id="labels_dropped"),
        pytest.param(Two(), [(X, X, IDS)], [(2, 3), (2, 3)], id="two_inputs"),
        pytest.param(Two(), [{"mask": X, "x": X, "label": IDS}], [(2, 3), (2, 3)], id="dict"),
        pytest.param(nn.Linear(3, 1), [X.numpy()], [(2, 3)], id="array"),
        pytest.param(nn.Linear(3, 1), torch.ones(70, 3), [(SLICE, 3)], id="tensor"),
    ],
)
def test_first_batch(model: nn.Module, data: Any, shapes: list[Any]) -> None:
    example, again = first_batch(model, data)
    tensors = example.values() if isinstance(example, dict) else example if isinstance(example, tuple) else [example]
    assert [tuple(t.shape) for t in tensors] == shapes
    assert again is data


def test_first_batch_does_not_lose_a_generators_first() -> None:
    _, again = first_batch(nn.Linear(3, 1), (X + i for i in range(3)))
    assert [float(b[0, 0]) for b in again] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "no batch"),
        (torch.empty(0, 3), "no sample"),
        (5, "type int"),
        ([{"z": X}], "no key of batch 0"),
        ([()], "batch 0 holds no input"),
    ],
)
def test_first_batch_refusals(data: Any, words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        first_batch(nn.Linear(3, 1), data)


def test_no_data_beside_example_inputs_are_refused() -> None:
    for empty, words in (([], "no batch"), (None, "of type NoneType")):
        with pytest.raises(CalibrationError, match=words):
            intact8.quantize(nn.Linear(3, 1), empty, example_inputs=X)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: torch.zeros(4, 3).to_sparse(), "sparse_coo tensors are not taken"),
        (lambda: torch.zeros(4, 3).to_mkldnn(), "mkldnn tensors are not taken"),
        (lambda: torch.nested.nested_tensor([torch.zeros(3)]), "nested tensors are not taken"),
        (lambda: torch.zeros(4, 3, device="meta"), "a tensor on meta has no values"),
    ],
    ids=["sparse", "mkldnn", "nested", "meta"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_numbers_in_memory_are_refused(made: Callable[[], torch.Tensor], said: str) -> None:
    model, data = nn.Linear(3, 2), made()
    for read in (lambda: first_batch(model, data), lambda: first_batch(model, [data]), lambda: length(data, ())):
        with pytest.raises(CalibrationError, match=said):
            read()


def test_numbers_of_the_other_byte_order_are_read() -> None:
    found, _ = first_batch(nn.Linear(3, 2), np.arange(6, dtype=">f4").reshape(2, 3))
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_mapped_files_that_cannot_be_written_are_copied_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.ones((80, 3), np.float32))
    data, read = np.load(tmp_path / "x.npy", mmap_mode="r"), list[int]()
    require = np.require
    monkeypatch.setattr(np, "require", lambda array, *args: (read.append(len(array)), require(array, *args))[1])
    torch.set_warn_always(True)  # else torch says it once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = calls(data)
            pairs = list(_batches((data, np.broadcast_to(np.int64(1), 80)), 64))
    finally:
        torch.set_warn_always(False)
    assert sum(len(args[0]) for args, _ in found) == sum(len(labels) for _, labels in pairs) == 80
    assert max(read) == 64


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, x, x)[0]
        return y


@pytest.mark.parametrize(
    ("model", "samples"), [(nn.LSTM(6, 8), 40), (Attention(), 40), (nn.LSTM(6, 8, batch_first=True), 5)]
)
def test_samples_are_counted_along_the_dimension_that_is_theirs(model: nn.Module, samples: int) -> None:
    x = torch.randn(5, 40, 6)
    assert intact8.calibrate(intact8.prepare(model.eval(), x), [x, x]).samples == 2 * samples


def test_a_whole_tensor_of_steps_first_is_cut_along_its_samples() -> None:
    sim = intact8.prepare(nn.LSTM(6, 8).eval(), torch.randn(40, 2, 6), dynamic_shapes={"input": {0: "steps"}})
    found = list(batches(torch.randn(50, 40, 6), sim.input_specs, torch.device("cpu")))
    assert [args[0].shape[:2] for args, _ in found] == [(50, SLICE), (50, 40 - SLICE)]
    assert length(torch.randn(50, 40, 6), sim.input_specs) == 2


class TwoTowers(nn.Module):
    """A model of pictures and texts, each of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.text = nn.Linear(4, 3), nn.Embedding(9, 3)

    def forward(self, picture: Tensor | None = None, text: Tensor | None = None) -> tuple[Tensor, ...]:
        made = [] if picture is None else [self.picture(picture)]
        return tuple(made if text is None else [*made, self.text(text)])


def test_inputs_that_are_all_optional_are_not_dropped_in_silence() -> None:
    batch = torch.randn(8, 4), torch.randint(0, 9, (8, 5))
    with pytest.warns(CalibrationWarning, match=r"of the 2 elements .*taken \(picture\).*\(picture, text\)"):
        first_batch(TwoTowers(), [batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        example, _ = first_batch(TwoTowers(), [(batch[0], torch.zeros(8, dtype=torch.long))])  # classes
        assert len(example) == 1
        example, _ = first_batch(TwoTowers(), [{"picture": batch[0], "text": batch[1]}])
        assert sorted(example) == ["picture", "text"]


class TwoTensors(nn.Module):
    """A model of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x) + self.layer(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [tuple, list])
def test_inputs_of_one_batch_that_were_given_as_data_are_told_from_batches(kind: type) -> None:
    """The message blamed the model, or example inputs that nobody had given."""
    model, data = TwoTensors(), kind((X, X))
    for use in (intact8.quantize, intact8.sensitivity):
        with pytest.raises(CalibrationError, match=rf"a {kind.__name__}, is a batch of one.*x, y.*as \[\(a, b\)\]"):
            use(model, data)
    sim = intact8.prepare(model, (X, X))
    with pytest.raises(CalibrationError, match=r"batch 0 has 1 elements.*one batch of them is \[\(a, b\)\]"):
        intact8.calibrate(sim, data)
    intact8.calibrate(sim, [data])


def test_what_a_model_does_not_run_without_is_no_label() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
            return self.layer(x) * scale[:, None] if shift is None else self.layer(x) + shift  # type: ignore[index]

    x, scale, labels = torch.randn(8, 4), torch.rand(8), torch.zeros(8, dtype=torch.int64)
    example, _ = first_batch(Scaled().eval(), [(x, scale, labels)])
    assert len(example) == 2 and example[1] is scale
    example, _ = first_batch(nn.Linear(4, 3), [(x, labels)])
    assert len(example) == 1
    assert Scaled().train().training


class Normed(nn.Module):
    """Normalizes over a sequence, which no program does with a length that changes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sequence, normalized and doubled."""
        return torch.nn.functional.layer_norm(x, x.shape[1:]) * 2


def test_why_lengths_that_differ_are_fixed_is_told() -> None:
    data = [torch.randn(4, length, 3) for length in (5, 7)]
    with pytest.raises(CalibrationError, match=r"got \(4, 7, 3\).*fixed to the example's size: sequence.*layer_norm"):
        intact8.quantize(Normed(), data)
