"""What users do wrong, at the verbs: a clear error, named by class and words, and nothing half-done left behind."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intact8
import intact8.runtime
from intact8.calibration.distributed import checksum
from intact8.calibration.summary import CalibrationWarning

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

DATA = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.depthwise(self.stem(x)).mean((2, 3)))
        return y


def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def program() -> intact8.Program:
    return intact8.quantize(model(), DATA)


# -- models and example inputs --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["stem.0.weight", "head.bias"])
def test_weights_that_are_not_numbers(name: str, value: float) -> None:
    net = model()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[1] = value
    with pytest.raises(intact8.CaptureError) as caught:
        intact8.prepare(net, DATA[:2])
    assert name in str(caught.value) and caught.value.remedy


def test_weights_that_stop_being_numbers_after_calibration() -> None:
    sim = intact8.prepare(model(), DATA[:2])
    intact8.calibrate(sim, DATA)
    with torch.no_grad():
        sim.get_parameter("head.weight")[0, 0] = float("nan")
    with pytest.raises(intact8.IntactError, match="head"):
        intact8.convert(sim)


def test_a_model_without_values() -> None:
    with pytest.raises(intact8.CaptureError, match="meta"):
        intact8.prepare(model().to("meta"), DATA[:2].to("meta"))


def test_a_default_device_without_values_is_named() -> None:
    net = model()
    with torch.device("meta"), pytest.raises(intact8.InputError, match=r"default device is meta.*outside of torch\."):
        intact8.quantize(net, DATA)
    sim = intact8.prepare(net, DATA[:2])
    intact8.calibrate(sim, DATA)
    with torch.device("meta"), pytest.raises(intact8.InputError, match=r"default device is meta"):
        sim(DATA)


def test_data_without_values_of_their_own_are_named() -> None:
    net, hidden = model(), np.ma.masked_array(DATA.numpy(), DATA.numpy() > 0)
    sim = intact8.prepare(net, DATA[:2])
    for data in (hidden, [hidden]):
        with pytest.raises(intact8.CalibrationError, match="masked arrays are not taken"):
            intact8.calibrate(sim, data)
    with pytest.raises(intact8.CalibrationError, match="expected a tensor, got array of dtype"):
        intact8.calibrate(sim, [DATA.numpy().astype(np.longdouble)])
    intact8.calibrate(sim, DATA)
    for given, why in ((DATA.to("meta"), "on meta"), (DATA.to_sparse(), "sparse_coo tensors are not taken")):
        with pytest.raises(intact8.InputError, match=why):
            sim(given)
    inner = intact8.torch.Module(intact8.convert(sim))
    with pytest.raises(intact8.InputError, match=r"expected a tensor, got ndarray.*program\.run"):
        inner(DATA.numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_is_named(dtype: torch.dtype) -> None:
    net = model()
    sim = intact8.prepare(net, DATA[:2], intact8.recipes.qat("learned"))
    intact8.calibrate(sim, DATA)
    loss = sim.train()(DATA).sum()
    torch.set_default_dtype(dtype)
    try:
        for call in (lambda: intact8.quantize(net, DATA), lambda: sim(DATA), lambda: intact8.calibrate(sim, DATA)):
            with pytest.raises(intact8.InputError, match=r"numbers of dtype.*set_default_dtype\(torch.float32\)"):
                call()
        loss.backward()  # its buffers are those of C
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.grad is None or p.grad.dtype is torch.float32 for p in sim.parameters())


def test_a_model_that_cannot_be_captured_names_the_module() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Branch()))
    with pytest.raises(intact8.CaptureError, match=r"1\.0 \(Branch\)") as caught:
        intact8.quantize(net, torch.randn(8, 4))
    assert "control flow" in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize("given", [Net, {"state": 1}, None, "resnet18"], ids=["class", "dict", "None", "name"])
def test_no_model(given: Any) -> None:
    with pytest.raises(intact8.InputError, match=r"not a torch\.nn\.Module"):
        intact8.prepare(given, DATA[:2])
    with pytest.raises(intact8.InputError, match=r"not a torch\.nn\.Module"):
        intact8.quantize(given, DATA)


@pytest.mark.parametrize("example", [None, (), "x", DATA[:2, :2], DATA[:2].double(), DATA[:2].to(torch.uint8)],
                         ids=["None", "empty", "text", "channels", "double", "uint8"])  # fmt: skip
def test_example_inputs_that_do_not_fit(example: Any) -> None:
    with pytest.raises(intact8.IntactError) as caught:
        intact8.prepare(model(), example)
    assert caught.value.remedy


# -- recipes --------------------------------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing() -> None:
    with pytest.raises(intact8.RecipeError, match=r"heda.*matches no operation.*did you mean head"):
        intact8.prepare(model(), DATA[:2], intact8.Recipe(overrides={"heda": None}))


@pytest.mark.parametrize("recipe", [8, {"activation": {}}, intact8.recipes.default], ids=["number", "dict", "function"])
def test_something_else_than_a_recipe(recipe: Any) -> None:
    with pytest.raises(intact8.RecipeError, match="Recipe"):
        intact8.prepare(model(), DATA[:2], recipe)


# -- calibration data -----------------------------------------------------------------------------------------


def state(sim: Any) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return value.tolist() if isinstance(value, Tensor | np.ndarray) else value

    switches = [(p.observing, p.quantizing) for p in sim.points.values()]
    return repr((plain(dict(sim.state_dict())), sim.calibration, sim.training, switches))


def nan_in_the_second() -> list[Tensor]:
    bad = DATA[:16].clone()
    bad[3, 1, 2, 2] = float("nan")
    return [DATA[:16], bad]


BAD_DATA: dict[str, tuple[Any, str]] = {
    "empty list": (list, "no batch"),
    "empty tensor": (lambda: DATA[:0], "no batch|no sample|holds nothing"),
    "used up": (lambda: iter(()), "no batch"),
    "dtype": (lambda: [DATA.double()], r"batch 0, input x.*float32.*float64"),
    "uint8": (lambda: [DATA.to(torch.uint8)], r"batch 0, input x.*float32.*uint8"),
    "second shape": (lambda: [DATA, DATA[:, :, :5]], r"batch 1, input x.*\(batch, 3, 8, 8\).*\(64, 3, 5, 8\)"),
    "samples": (lambda: list(DATA), r"batch 0, input x.*batch dimension is missing"),
    "key": (lambda: [{"image": DATA}], r"batch 0 has no 'x'.*image"),
    "text": (lambda: "images/", "of type str"),
    "None": (lambda: None, "NoneType"),
    "numbers": (lambda: [1, 2], "expected a tensor, got int"),
    "nan": (nan_in_the_second, "batch 1, layer x.*(NaN|not finite|nan)"),
    "inf": (lambda: [DATA * 1e38 * 10], "batch 0, layer x"),
}


@pytest.mark.parametrize("case", sorted(BAD_DATA))
@pytest.mark.parametrize("before", ["fresh", "calibrated"])
def test_bad_calibration_data_change_nothing(case: str, before: str) -> None:
    data, words = BAD_DATA[case]
    sim = intact8.prepare(model(), DATA[:2]).eval()
    if before == "calibrated":
        intact8.calibrate(sim, DATA)
    saved = state(sim)
    with pytest.raises(intact8.CalibrationError, match=words) as caught:
        intact8.calibrate(sim, data())
    assert caught.value.remedy
    assert state(sim) == saved


def test_an_overflow_inside_names_the_layer() -> None:
    net = model()
    with torch.no_grad():
        net.get_parameter("stem.0.weight").mul_(1e30)
    sim = intact8.prepare(net, DATA[:2])
    with pytest.raises(intact8.CalibrationError, match=r"batch 0, layer (stem|depthwise)"):
        intact8.calibrate(sim, [1e15 * DATA])


@pytest.mark.parametrize("before", ["fresh", "calibrated"])
@pytest.mark.parametrize("at", [0, 2])
def test_ctrl_c_leaves_the_simulation_as_it_was(before: str, at: int) -> None:
    def interrupted() -> Iterator[Tensor]:
        for i, x in enumerate((3 * DATA).split(16)):
            if i == at:
                raise KeyboardInterrupt
            yield x

    sim = intact8.prepare(model(), DATA[:2]).eval()
    if before == "calibrated":
        intact8.calibrate(sim, DATA)
    saved, y = state(sim), sim(DATA[:4])
    with pytest.raises(KeyboardInterrupt):
        intact8.calibrate(sim, interrupted())
    assert state(sim) == saved
    assert torch.equal(sim(DATA[:4]), y)


def test_few_data_are_warned_about() -> None:
    with pytest.warns(CalibrationWarning, match="sample") as told:
        intact8.quantize(model(), DATA[:4])
    assert {warning.filename for warning in told} == {__file__}


def test_calibrating_what_is_no_simulation() -> None:
    with pytest.raises(intact8.StateError, match=r"not Net.*prepare"):
        intact8.calibrate(model(), DATA)  # type: ignore[arg-type]


# -- running --------------------------------------------------------------------------------------------------

BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "dtype": (DATA.double(), "float64"),
    "int64": (DATA.long(), "int64"),
    "channels": (DATA[:, :2], r"shape|\(64, 2, 8, 8\)"),
    "rank": (DATA[0], "shape|dimension"),
    "nothing": ((), "input"),
    "two": ((DATA, DATA), "input"),
    "list": ([[1.0]], "list|shape|dtype"),
    "nan": (DATA * float("nan"), "NaN|not finite"),
}


@pytest.mark.parametrize("engine", ["reference", "onednn", "auto"])
@pytest.mark.parametrize("case", sorted(BAD_INPUTS))
def test_bad_inputs_to_run(program: intact8.Program, case: str, engine: str) -> None:
    given, words = BAD_INPUTS[case]
    args = given if isinstance(given, tuple) else (given,)
    with pytest.raises(intact8.InputError, match=words) as caught:
        program.run(*args, engine=engine)
    assert caught.value.remedy


@pytest.mark.parametrize("engine", ["reference", "onednn", "onnxruntime", "openvino", "native"])
@pytest.mark.parametrize(("token", "recipe"), [(32, "default"), (-1, "default"), (40, "dynamic"), (32, "integer")])
def test_indices_outside_their_table(token: int, recipe: str, engine: str) -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 4)).eval()
    tokens = torch.randint(0, 32, (64, 5))
    text = intact8.quantize(net, tokens, getattr(intact8.recipes, recipe)())
    with pytest.raises(intact8.InputError, match=f"index {token} is outside the table of 32 rows"):
        text.run(tokens.masked_fill(tokens == 3, token), engine=engine)


def test_unknown_engine(program: intact8.Program) -> None:
    with pytest.raises(intact8.EngineError, match=r"no engine 'tensorrt'.*reference.*onednn"):
        program.run(DATA, engine="tensorrt")
    with pytest.raises(intact8.EngineError, match="no engine 'tensorrt'"):
        intact8.verify(program, DATA, engines=("tensorrt",))


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_simulation_takes_the_dtype_it_was_captured_with(calibrated: bool) -> None:
    """A program takes uint8 for integers of the grid: a simulation took them for values, with other results."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    sim = intact8.prepare(nn.Linear(4, 2), x)
    if calibrated:
        intact8.calibrate(sim, x)
    for dtype in (torch.uint8, torch.int64, torch.bool):
        with pytest.raises(intact8.InputError, match=r"input: expected dtype float32, got.*x\.to\(torch\.float32\)"):
            sim(x.to(dtype))
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(sim(x.to(dtype)), sim(x.to(dtype).float()))


class Chosen(nn.Module):
    """A model whose inputs have the names of arguments of ``run``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, engine: Tensor, layout: Tensor) -> Any:
        return self.layer(engine + layout)


def test_inputs_named_as_arguments_of_run() -> None:
    x = torch.randn(64, 4)
    program = intact8.quantize(Chosen().eval(), {"engine": x, "layout": x})
    assert program.run(x, x).shape == (64, 2)
    for given in ({"engine": x}, {"layout": x}):
        with pytest.raises(intact8.InputError, match=f"{next(iter(given))} is given by name.*give it by position"):
            program.run(x, **given)  # type: ignore[arg-type]


def test_wrong_arguments_to_a_simulation() -> None:
    sim = intact8.prepare(model(), DATA[:2])
    with pytest.raises(intact8.InputError, match=r"too many inputs.*give x"):
        sim(DATA, DATA)
    with pytest.raises(intact8.InputError):
        sim()


# -- files ----------------------------------------------------------------------------------------------------


def rewritten(path: Path, **metadata: str) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(metadata)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_damaged_files(program: intact8.Program, tmp_path: Path) -> None:
    path = program.save(tmp_path / "p.safetensors")
    whole = path.read_bytes()
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(intact8.ProgramError, match="damaged|not an intact8 program"):
            intact8.Program.load(path)
    path.write_bytes(os.urandom(5000))
    with pytest.raises(intact8.ProgramError, match="damaged|not an intact8 program"):
        intact8.Program.load(path)
    path.write_bytes(whole)
    rewritten(path, version="999")
    with pytest.raises(intact8.ProgramError, match=r"newer intact8 \(format 999\).*upgrade"):
        intact8.Program.load(path)
    with pytest.raises(intact8.ProgramError, match="cannot read"):
        intact8.Program.load(tmp_path / "absent.safetensors")


def test_unwritable_paths(program: intact8.Program, tmp_path: Path) -> None:
    with pytest.raises(intact8.ProgramError, match="does not exist"):
        program.save(tmp_path / "absent" / "p.safetensors")
    with pytest.raises(intact8.ProgramError, match="cannot write"):
        program.save(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(intact8.ProgramError, match="cannot write"):
        program.save(tmp_path / "file" / "p.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"], "nothing half-written"


class Writing(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x.add_(1))
        return y


def test_a_model_that_writes_into_its_input_leaves_the_data_alone() -> None:
    torch.manual_seed(0)
    net, data = Writing().eval(), torch.randn(64, 8)
    kept = data.clone()
    program = intact8.quantize(net, data)
    intact8.lint(net, data=data)
    batches, wrong = [(data, net(kept.clone()))], lambda y, right: (y - right).abs().mean()
    intact8.testing.assert_accuracy_drop(net, program, batches, wrong, at_most=0.1, higher_is_better=False)
    labels = net(kept.clone()).argmax(1)
    scores = intact8.evaluate({"float32": net, "int8": program}, [(data, labels)])
    assert scores.score("int8").value == float((program.run(kept).argmax(1) == labels).double().mean())
    intact8.report(program, data, model=net, labels=labels, seconds=0)
    intact8.tune(net, data, data, max_trials=1, seconds=0)
    assert torch.equal(data, kept)


class OfDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        y: Tensor = self.fc(given["x"]) * given["scale"]
        return y


def test_a_dict_that_is_one_argument_and_several_inputs() -> None:
    given = {"x": torch.randn(32, 4), "scale": torch.rand(32, 2)}
    with pytest.raises(intact8.CalibrationError, match=r"takes the dict itself, give the batch as \(\{...\},\)"):
        intact8.quantize(OfDict(), given)
    program = intact8.quantize(OfDict(), [(given,)], example_inputs=(given,))
    assert program.run(given).shape == (32, 2) and intact8.verify(program, (given,)).mismatches == 0
    with pytest.raises(intact8.InputError, match=r"a dict that is one argument is given as \(\{...\},\)"):
        intact8.verify(program, given)
    assert intact8.verify(program, (given,), "native").mismatches == 0
    with pytest.raises(intact8.EngineError, match="several inputs as one tuple"):
        intact8.verify(program, given["x"], given["scale"].numpy())


def ragged(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_every_verb(layout: torch.layout) -> None:
    net, x, nested = nn.Linear(4, 2).eval(), torch.randn(32, 4), ragged(layout)
    program = intact8.quantize(net, x)
    sim = intact8.prepare(net, x)
    verbs: dict[str, Callable[[], object]] = {
        "module": lambda: intact8.torch.Module(program)(nested),
        "module, by name": lambda: intact8.torch.Module(program)(input=nested),
        "run": lambda: program.run(nested),
        "verify": lambda: intact8.verify(program, [x, nested], "native"),
        "prepare": lambda: intact8.prepare(net, nested),
        "quantize": lambda: intact8.quantize(net, [x, nested]),
        "calibrate": lambda: intact8.calibrate(sim, [x, nested]),
        "compare": lambda: intact8.compare(net, program, [x, nested]),
    }
    for name, verb in verbs.items():
        with pytest.raises((intact8.InputError, intact8.CalibrationError), match=r"nested.*to_padded_tensor") as caught:
            verb()
        assert caught.value.__cause__ is None, name


def test_tensors_that_are_negative_by_a_bit_are_what_they_stand_for() -> None:
    net, x = nn.Linear(4, 2).eval(), torch.randn(32, 4)
    lazy = torch._neg_view(x)
    program = intact8.quantize(net, [-x])
    assert torch.equal(intact8.quantize(net, [lazy]).run(x), program.run(x))
    assert intact8.compare(net, program, [lazy], engine="native").samples == 32
    assert checksum([lazy]) == checksum([-x])


class Torn(Exception):
    """Raised by a loader of the user's."""


class TornLoader:
    def __init__(self, error: BaseException, *batches: Any) -> None:
        self.error, self.batches = error, batches

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        raise self.error


@pytest.mark.parametrize("error", [Torn("disk"), KeyError("k"), RuntimeError("r"), OSError(5, "io"), IndexError()])
def test_what_a_loader_raises_in_the_middle_is_its_own(error: Exception) -> None:
    """What the user's code raises goes through untouched, and what was there before is as it was."""
    net, x = nn.Linear(4, 2).eval(), torch.randn(16, 4)
    program, sim = intact8.quantize(net, [x, x]), intact8.prepare(net, x)
    torn, labelled = TornLoader(error, x, x), TornLoader(error, (x, torch.zeros(16, dtype=torch.int64)))
    verbs: dict[str, Callable[[], object]] = {
        "quantize": lambda: intact8.quantize(net, torn),
        "calibrate": lambda: intact8.calibrate(sim, torn),
        "verify": lambda: intact8.verify(program, torn, "native"),
        "evaluate": lambda: intact8.evaluate({"float": net, "int8": program}, labelled, engine="native"),
        "compare": lambda: intact8.compare(net, program, torn, engine="native"),
        "sensitivity": lambda: intact8.sensitivity(net, torn),
    }
    for name, verb in verbs.items():
        with pytest.raises(type(error)) as caught:
            verb()
        assert caught.value is error and error.__cause__ is None, name
    with pytest.raises(intact8.StateError):
        intact8.convert(sim)
    intact8.calibrate(sim, [x, x])
    assert torch.equal(intact8.convert(sim).run(x), intact8.convert(calibrated(net, x)).run(x))


def calibrated(net: nn.Module, x: Tensor) -> nn.Module:
    sim = intact8.prepare(net, x)
    intact8.calibrate(sim, [x, x])
    return sim


# -- paths and programs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [1, None, 2.5, b"net.safetensors", ["net"], io.BytesIO()], ids=lambda x: type(x).__name__
)
def test_what_is_no_path_is_refused_and_opens_nothing(program: intact8.Program, given: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: program.save(given),
        lambda: program.export(given, "onnx"),
        lambda: program.export_onnx(given),
        lambda: intact8.Program.load(given),
        lambda: intact8.runtime.load(given),
        lambda: intact8.Recipe().save(given),
        lambda: intact8.Recipe.load(given),
        lambda: intact8.migrate(given, data=DATA),
    ]
    if given is not None:
        calls.append(lambda: intact8.migrate(model(), given, data=DATA))
        calls.append(lambda: intact8.evaluate(program, (DATA, torch.zeros(len(DATA))), state=given))
        calls.append(lambda: intact8.tune(model(), DATA, journal=given, max_trials=1, seconds=0))
    before = os.fstat(1)
    for call in calls:
        with pytest.raises(intact8.IntactError, match="no path of|no reader for") as caught:
            call()
        assert caught.value.remedy
    assert os.fstat(1) == before  # a number would be the file that is open under it


def test_a_state_dict_or_another_file_alone_is_not_migrated() -> None:
    for given, message in [(model().state_dict(), "needs the code"), ("net.pth", r"no reader for \.pth files")]:
        with pytest.raises(intact8.InputError, match=message):
            intact8.migrate(given, data=DATA)


def test_one_name_is_not_taken_for_its_letters() -> None:
    """A glob in it would have been the pattern of everything."""
    assert [o.match for o in intact8.recipes.reconstruct(4, 8, eight="head*").overrides] == ["head*"]
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    data = [torch.randn(32, 4), torch.randn(32, 4)]
    assert [*intact8.torch.programs(intact8.split(net, data, modules="1"))] == ["1"]
    with pytest.raises(intact8.InputError, match="int names no modules"):
        intact8.split(net, data, modules=3)  # type: ignore[arg-type]


def test_a_name_that_is_too_long_is_no_preset() -> None:
    with pytest.raises(intact8.RecipeError, match="no such preset or file"):
        intact8.quantize(model(), DATA, recipe="n" * 300)


def test_verbs_that_take_programs_refuse_others(program: intact8.Program) -> None:
    for call in (intact8.verify, intact8.report):
        with pytest.raises(intact8.InputError, match="str is no program.*Program.load"):
            call("net.safetensors", DATA)  # type: ignore[operator]
    with pytest.raises(intact8.InputError, match="no program"):
        intact8.torch.Module(3)  # type: ignore[arg-type]
    with pytest.raises(intact8.EngineError, match="there is no engine"):
        program.run(DATA, engine=["native"])  # type: ignore[arg-type]


def test_verify_refuses_to_compare_with_nothing_or_with_what_is_no_simulation(program: intact8.Program) -> None:
    with pytest.raises(intact8.InputError, match="nothing to compare the reference with"):
        intact8.verify(program, DATA, engines=())
    for other in (program, model()):
        with pytest.raises(intact8.StateError, match=f"a simulation, not {type(other).__name__}"):
            intact8.verify(program, DATA, sim=other)  # type: ignore[arg-type]


def test_a_program_in_the_place_of_the_float_network(program: intact8.Program) -> None:
    for call in (lambda: intact8.compare(program, model(), DATA), lambda: intact8.doctor(program, DATA)):  # type: ignore[arg-type]
        with pytest.raises(intact8.InputError, match=r"the model is a Program, not a torch\.nn\.Module"):
            call()


def test_what_is_no_simulation_has_no_learned_scales() -> None:
    """A float network trains without a word otherwise, and nothing of it is quantized."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    for other in (model(), None):
        for call in (
            lambda: intact8.train.parameter_groups(other, lr=0.1),  # type: ignore[arg-type]  # noqa: B023
            lambda: intact8.train.check_optimizer(optimizer, other),  # type: ignore[arg-type]  # noqa: B023
        ):
            with pytest.raises(intact8.StateError, match=f"takes a simulation, not {type(other).__name__}"):
                call()
    inside = nn.Sequential(intact8.prepare(model(), DATA[:2], intact8.recipes.qat("learned")))
    assert len(intact8.train.parameter_groups(inside, lr=0.1)) == 2  # type: ignore[arg-type]


def test_programs_are_keys_of_dicts(program: intact8.Program) -> None:
    again = pickle.loads(pickle.dumps(program))
    assert {program: 1}[again] == 1 and len({program, again, intact8.quantize(model(), DATA[:32])}) == 2


@pytest.mark.parametrize("argument", ["compare", "sensitivity", "lint", "doctor", "tuning"])
def test_results_that_are_none_are_refused_by_a_report(program: intact8.Program, argument: str) -> None:
    with pytest.raises(intact8.InputError, match=f"{argument}=True is no result.*intact8"):
        intact8.report(program, DATA, seconds=0, **{argument: True})


def test_a_report_refuses_what_it_would_leave_out(program: intact8.Program) -> None:
    other = intact8.quantize(nn.Linear(5, 2), torch.randn(64, 5))
    with pytest.raises(intact8.InputError, match=r"takes other inputs.*float32 \('batch', 5\), not"):
        intact8.report(program, DATA, seconds=0, other=other)
    with pytest.raises(intact8.InputError, match="labels without data"):
        intact8.report(program, labels=[1, 2], seconds=0)
