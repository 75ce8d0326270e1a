"""Simulated against executed, integer by integer: intact8 on every engine, and peers by what they offer themselves.

    python benchmarks/mismatches.py [--assets DIR] [--networks resnet18 …] [--flows "ONNX Runtime" …] [--out FILE]

Post-training quantization of three trained networks and of two of torchvision with random weights, the same calibration
images for everybody. Writes a Markdown page and a JSON file; interrupted, it goes on where it was. Peers need
pip install nncf torchao, and a C++ compiler. What a peer refuses is told in its words. Two networks at a time,
everybody with one thread.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import functools
import inspect
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import intact8
import peers
import qat_peers
from assets import fashion, folder, mobilenet
from coverage import build
from intact8.arithmetic.affine import dequantize
from intact8.engines import get_runner
from intact8.program.certify import uncertified
from latency import attempt, cpu_name, versions
from store import Store

Array = np.ndarray[Any, Any]
NETWORKS = ("fashion-cnn", "fashion-dw", "mobilenetv1_025", "resnet18", "mobilenet_v2")
ENGINES = ("reference", "onednn", "onnxruntime", "openvino")
BATCH, THREADS = 16, 1


class Subject(NamedTuple):
    """A network, images to calibrate on, and others to compare on (a multiple of BATCH)."""

    model: nn.Module
    calibration: Tensor
    images: Tensor


class Seen(NamedTuple):
    """What a network made of a batch: its integer tensors in a fixed order, and its output."""

    integers: Sequence[Array]
    output: Array


See = Callable[[Tensor], Seen]


class Execution(NamedTuple):
    """What is deployed. ``plain``: the same with no tensor but the output asked for, where asking could change it."""

    see: See
    plain: Callable[[Tensor], Any] | None = None


class Flow(NamedTuple):
    """A simulation and what is executed in its place.

    Attributes:
        simulate: same tensors, same order as the executions'.
        executions: by name.
        integer_output: the last integer tensor is the network's output; else that is float32.
        facts: for the JSON file.
    """

    simulate: See
    executions: dict[str, Execution]
    integer_output: bool
    facts: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default


@dataclass
class Tally:
    """Counts of one execution."""

    tensors: int = 0
    integers: int = 0
    differ: int = 0
    largest: int = 0
    output_integers: int = 0
    output_differ: int = 0
    output_largest: int = 0
    images: int = 0
    top1_differ: int = 0
    taps_change_output: bool = False

    def add(self, simulated: Seen, executed: Seen, integer_output: bool) -> None:
        """One batch more."""
        if [a.shape for a in simulated.integers] != [a.shape for a in executed.integers]:
            raise ValueError("the quantized tensors of simulation and execution do not correspond")
        self.tensors = len(simulated.integers)
        for a, b in zip(simulated.integers, executed.integers, strict=True):
            unequal = a != b
            count = int(np.count_nonzero(unequal))
            far = int(np.abs(a[unequal].astype(np.int64) - b[unequal].astype(np.int64)).max()) if count else 0
            self.integers += a.size
            self.differ += count
            self.largest = max(self.largest, far)
        if integer_output:
            self.output_integers += a.size
            self.output_differ += count
            self.output_largest = max(self.output_largest, far)
        self.images += len(simulated.output)
        self.top1_differ += int((simulated.output.argmax(1) != executed.output.argmax(1)).sum())


def measure(flow: Flow, images: Tensor) -> dict[str, Any]:
    """Every execution against the simulation, as JSON."""
    tallies = {name: Tally() for name in flow.executions}
    with torch.no_grad():
        for x in images.split(BATCH):
            simulated = flow.simulate(x)
            for name, (see, plain) in flow.executions.items():
                executed = see(x)
                tallies[name].add(simulated, executed, flow.integer_output)
                if plain is not None and not np.array_equal(np.asarray(plain(x)), executed.output):
                    tallies[name].taps_change_output = True
    return {**flow.facts, "executions": {name: vars(tally) for name, tally in tallies.items()}}


# -- intact8 ---------------------------------------------------------------------------------------------------


def default(subject: Subject) -> Flow:
    """The calibrated simulation against the program made from it, on each engine; ``intact8.recipes.default``."""
    return _ours(subject, intact8.recipes.default())


def accurate(subject: Subject) -> Flow:
    """The same; ``intact8.recipes.accurate``."""
    return _ours(subject, intact8.recipes.accurate())


def _ours(subject: Subject, recipe: intact8.Recipe) -> Flow:
    sim = intact8.prepare(subject.model, subject.calibration[:2], recipe)
    intact8.calibrate(sim, subject.calibration.split(32))
    program = intact8.convert(sim)
    names = program.integer_tensors()
    last = program.tensors[names[-1]]

    def seen(tensors: Any) -> Seen:
        integers = [tensors[name] for name in names]
        return Seen(integers, dequantize(integers[-1], np.float32(last.scale), int(last.zero_point or 0)))

    def execution(engine: str) -> Execution:
        alone = engine == "reference"  # numpy: no threads to choose, and nothing to fuse
        runner, name = get_runner(program, engine, None if alone else THREADS), program.inputs[0]
        plain = None if alone else lambda x: runner({name: x.numpy()})[0]
        return Execution(lambda x: seen(runner.tensors({name: x.numpy()})), plain)

    certified = [op.certificate for op in program.ops if op.certificate is not None]
    facts = {"certified": len(certified), "uncertified": len(uncertified(program)), "islands": len(program.islands())}
    return Flow(lambda x: seen(sim.integer_tensors([x])), {e: execution(e) for e in ENGINES}, True, facts)


# -- torch.ao FX ----------------------------------------------------------------------------------------------


def _fx_seen(collect: Callable[[Any, Tensor], qat_peers.Integers], network: Any) -> See:
    """Both ends of FX quantize their output, so its integers stand for it."""

    def see(x: Tensor) -> Seen:
        integers = [t.numpy() for t in collect(network, x)]
        return Seen(integers, integers[-1])

    return see


def fx_reference(subject: Subject) -> Flow:
    """``convert_to_reference_fx`` (dequantize → float32 operation → quantize) against ``convert_fx`` on x86, both of
    one ``prepare_fx`` with the default x86 qconfig.
    """
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx

    torch.backends.quantized.engine = "x86"
    model = copy.deepcopy(subject.model)
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (subject.calibration[:1],))
    with torch.no_grad():
        for x in subject.calibration.split(32):
            prepared(x)
    collect = qat_peers.fx_converted_integers
    reference = convert_to_reference_fx(copy.deepcopy(prepared))
    return Flow(_fx_seen(collect, reference), {"x86": Execution(_fx_seen(collect, convert_fx(prepared)))}, True)


def fx_fake(subject: Subject) -> Flow:
    """``prepare_qat_fx`` with the default x86 QAT qconfig, calibrated, not trained, in evaluation mode, observers off,
    against ``convert_fx`` of it on x86.
    """
    prepared = qat_peers.fx_prepare(subject.model, subject.calibration[:2]).eval()
    with torch.no_grad():
        for x in subject.calibration.split(32):
            prepared(x)
    qat_peers.fx_freeze_scales(prepared)
    deployed = _fx_seen(qat_peers.fx_converted_integers, qat_peers.fx_convert(prepared))
    return Flow(_fx_seen(qat_peers.fx_prepared_integers, prepared), {"x86": Execution(deployed)}, True)


# -- torchao pt2e ---------------------------------------------------------------------------------------------


def _tapped(converted: Any) -> tuple[Any, list[int]]:
    """The network with quantized activations before its output; which of them.

    Not those that go into an addition: inductor fuses it into the convolution only where nothing else reads them.
    """
    tapped = copy.deepcopy(converted)
    every = [n for n in tapped.graph.nodes if "quantized_decomposed.quantize_per_tensor" in str(n.target)]
    chosen = [i for i, n in enumerate(every) if not any("add" in str(u.target) for d in n.users for u in d.users)]
    output = next(n for n in tapped.graph.nodes if n.op == "output")
    output.args = ((*(every[i] for i in chosen), output.args[0][0]),)
    tapped.graph._codegen = torch.fx.graph.CodeGen()  # the exported structure of outputs no longer holds
    tapped.graph.eliminate_dead_code()
    tapped.recompile()
    return tapped, chosen


def _compiled(network: Any, example: Tensor) -> Any:
    """By inductor, weights frozen: with int8 kernels."""
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # type: ignore[attr-defined]
        compiled = torch.compile(network, dynamic=False)
        compiled(example)
    return compiled


def _last_is_output(network: Any) -> See:
    def see(x: Tensor) -> Seen:
        *integers, output = (t.numpy() for t in network(x))
        return Seen(integers, output)

    return see


def _inductor(tapped: Any, converted: Any, example: Tensor) -> dict[str, Execution]:
    torch._dynamo.reset()
    plain = None if converted is None else _compiled(converted, example)
    return {"inductor": Execution(_last_is_output(_compiled(tapped, example)), plain)}


def pt2e_reference(subject: Subject) -> Flow:
    """What ``convert_pt2e`` gives (quantize, dequantize and float32 operations), run as it is, against the same
    compiled by inductor with frozen weights (int8 kernels); X86InductorQuantizer, its defaults.
    """
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    example = subject.images[:BATCH]
    with torch.no_grad():
        exported = torch.export.export(copy.deepcopy(subject.model), (example,), strict=True).module()
        prepared = prepare_pt2e(exported, quantizer)
        for x in subject.calibration.split(BATCH):
            prepared(x)
        converted = convert_pt2e(prepared)
    tapped, _ = _tapped(converted)
    return Flow(_last_is_output(tapped), _inductor(tapped, converted, example), False)


def pt2e_fake(subject: Subject) -> Flow:
    """``prepare_qat_pt2e``, calibrated, not trained, in evaluation mode, observers off, against ``convert_pt2e`` of it
    compiled as above. It refuses a ReLU module that is used twice, as torchvision's ResNets have.
    """
    prepared = qat_peers.pt2e_prepare(subject.model, subject.calibration[:2])
    qat_peers.pt2e_mode(prepared, False)
    with torch.no_grad():
        for x in subject.calibration.split(32):
            prepared(x)
    qat_peers.pt2e_freeze_scales(prepared)
    tapped, chosen = _tapped(qat_peers.pt2e_convert(prepared))
    outputs: list[Tensor] = []
    prepared.register_forward_hook(lambda _, inputs, y: outputs.append(y))

    def simulate(x: Tensor) -> Seen:
        integers = qat_peers.pt2e_prepared_integers(prepared, x)
        return Seen([integers[i].numpy() for i in chosen], outputs.pop().numpy())

    # Tapped as the reference's graph is, whose output is compared with that of the network as it is: compiling is slow.
    return Flow(simulate, _inductor(tapped, None, subject.images[:BATCH]), False)


# -- ONNX Runtime ---------------------------------------------------------------------------------------------


def onnxruntime(subject: Subject) -> Flow:
    """The QDQ file of ``quantize_static`` with all graph optimizations off (float32 operations) against the same file
    with all on (int8 kernels). There is no other simulation.
    """
    import onnx
    import onnxruntime as ort

    def session(model: Any, level: Any) -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, THREADS
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    with tempfile.TemporaryDirectory() as name:
        model = onnx.load(str(peers.quantize_onnx(subject.model, subject.calibration, Path(name))))
    tapped = copy.deepcopy(model)
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            tapped.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.UINT8, None))
    off, on = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL

    def see(run: Any) -> See:
        def call(x: Tensor) -> Seen:
            output, *integers = run.run(None, {"x": x.numpy()})
            return Seen(integers, output)

        return call

    fast = session(model, on)
    execution = Execution(see(session(tapped, on)), lambda x: fast.run(None, {"x": x.numpy()})[0])
    return Flow(see(session(tapped, off)), {"optimized": execution}, True)


# -- NNCF and OpenVINO ----------------------------------------------------------------------------------------

PLAIN_FLOAT = {"LP_TRANSFORMS_MODE": False, "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""OpenVINO's CPU plugin with int8 kernels off: FakeQuantize and everything else in float32."""


class Points:
    """The FakeQuantize operations of an OpenVINO model whose results can be asked for.

    Not those that go into an addition: the CPU plugin fuses it into the convolution and drops the rounding, unless
    somebody asks for the result.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.clone()
        every = [op for op in self.model.get_ordered_ops() if op.get_type_name() == "FakeQuantize"]
        self.total = len(every)
        self.chosen = [i for i, op in enumerate(every) if not self._added(op)]
        operations = [every[i] for i in self.chosen]
        self.low, self.high = ([np.array(op.input_value(i).get_node().get_data()) for op in operations] for i in (3, 4))
        self.steps = [op.get_levels() - 1 for op in operations]
        self.model.add_outputs([op.output(0) for op in operations])

    def _added(self, op: Any) -> bool:
        return any(target.get_node().get_type_name() == "Add" for target in op.output(0).get_target_inputs())

    def integers(self, values: Sequence[Array]) -> list[Array]:
        """What float32 values on the grids of the points stand for.

        Raises:
            ValueError: they are not on these grids, so they are of other quantizers.
        """
        found = []
        for value, low, high, steps in zip(values, self.low, self.high, self.steps, strict=True):
            exact = (value - low) * (steps / (high - low))
            found.append(np.rint(exact).astype(np.int16))
            if np.abs(exact - found[-1]).max() > 0.05:
                raise ValueError("the quantizers of simulation and execution do not correspond")
        return found


def _openvino(model: Any, shape: Sequence[int], config: dict[str, Any]) -> Callable[[Tensor], list[Array]]:
    """Compiled for BATCH images: all outputs."""
    import openvino

    fixed = model.clone()
    fixed.reshape([BATCH, *shape])
    compiled = openvino.Core().compile_model(fixed, "CPU", {"INFERENCE_NUM_THREADS": THREADS, **config})
    return lambda x: [np.array(y) for y in compiled([x.numpy()]).values()]


def _openvino_flow(model: Any, points: Points, shape: Sequence[int], simulate: See | None) -> Flow:
    """``simulate``: instead of the model itself in float32."""

    def see(config: dict[str, Any]) -> See:
        run = _openvino(points.model, shape, config)

        def call(x: Tensor) -> Seen:
            output, *values = run(x)
            return Seen(points.integers(values), output)

        return call

    def execution(config: dict[str, Any]) -> Execution:
        plain = _openvino(model, shape, config)
        return Execution(see(config), lambda x: plain(x)[0])

    executions = {"default": execution({}), "float32 hint": execution({"INFERENCE_PRECISION_HINT": "f32"})}
    return Flow(simulate or see(PLAIN_FLOAT), executions, False)


def nncf_model(subject: Subject) -> Flow:
    """``nncf.quantize`` of the OpenVINO model: its FakeQuantize operations in float32, OpenVINO's int8 kernels off,
    against the same model compiled by default, and with a float32 hint (a row of its own where that differs).
    """
    model = peers.nncf_openvino(subject.model, subject.calibration)
    return _openvino_flow(model, Points(model), subject.images.shape[1:], None)


class Wrapped(nn.Module):
    """NNCF adds a child to the module it is given, which a Sequential would call."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.network(x)
        return y


def nncf_torch(subject: Subject) -> Flow:
    """``nncf.quantize`` of the torch module, the one it would train, run by torch, against ``openvino.convert_model``
    of it compiled as above.
    """
    import nncf
    import openvino
    from nncf.torch.quantization.layers import BaseQuantizer

    batches = subject.calibration.split(32)
    network = nncf.quantize(
        Wrapped(copy.deepcopy(subject.model)), nncf.Dataset(batches), subset_size=len(batches)
    ).eval()
    model = openvino.convert_model(network, example_input=subject.images[:1])
    points = Points(model)
    found: list[Array] = []
    for name, module in network.named_modules():
        if isinstance(module, BaseQuantizer) and "pre_hooks" not in name:  # those before a layer are its weights'
            module.register_forward_hook(lambda m, _, y: found.append(y.numpy().copy()))  # additions may be in place

    def simulate(x: Tensor) -> Seen:
        found.clear()
        output = network(x).numpy()
        if len(found) != points.total:
            raise ValueError(f"{len(found)} fake quantizers in torch, {points.total} in OpenVINO")
        return Seen(points.integers([found[i] for i in points.chosen]), output)

    return _openvino_flow(model, points, subject.images.shape[1:], simulate)


# -- all of them ----------------------------------------------------------------------------------------------

FLOWS: dict[str, Callable[[Subject], Flow]] = {
    "intact8, default": default,
    "intact8, accurate": accurate,
    "torch.ao FX, reference": fx_reference,
    "torch.ao FX, fake-quantized": fx_fake,
    "torchao pt2e, reference": pt2e_reference,
    "torchao pt2e, fake-quantized": pt2e_fake,
    "ONNX Runtime": onnxruntime,
    "NNCF, OpenVINO model": nncf_model,
    "NNCF, torch module": nncf_torch,
}
"""Each function's docstring says what is compared; it is printed."""


def subject(name: str, root: Path) -> Subject:
    """A network of NETWORKS with data."""
    if name.startswith("fashion"):
        task = fashion(root, name.removeprefix("fashion-"), 256)
        return Subject(task.model, task.calibration, task.held_out[:256])
    if name == "mobilenetv1_025":
        task = mobilenet(root)
        return Subject(task.model, task.calibration, task.held_out[:64])
    model = build(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # None served to build; torch.export in training mode refuses it
    torch.manual_seed(1)
    data = torch.randn(32 + 64, 3, 96, 96)  # the size of those that its batch norm statistics are of
    return Subject(model, data[:32], data[32:])


def share(differ: int, of: int, largest: int) -> str:
    """A cell: the share, or the count where it is tiny, and the largest difference."""
    if not differ:
        return "0"
    text = f"{100 * differ / of:.2f} %" if differ >= 1e-4 * of else f"{differ:,} of {of:,}"
    return f"{text} ({largest})"


Cells = dict[str, dict[str, Any]]
"""Network → tally, or why there is none."""


def rows(results: dict[str, Any]) -> dict[str, Cells]:
    """Of peers: by flow, and by execution where a flow's executions differ."""
    found: dict[str, Cells] = {}
    for flow in FLOWS:
        of = {key.split("/")[0]: r for key, r in results.items() if key.split("/")[1] == flow}
        names = list(dict.fromkeys(name for r in of.values() for name in r.get("executions", ())))
        cells = [{n: r.get("executions", {}).get(name, r) for n, r in of.items()} for name in names] or [of]
        if of and not flow.startswith("intact8"):
            found[flow] = cells[0]
            found |= {f"{flow}, {name}": c for name, c in zip(names[1:], cells[1:], strict=True) if c != cells[0]}
    return found


def matrix(results: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> list[str]:
    """Peers' flows by networks."""
    networks = [n for n in NETWORKS if any(key.startswith(f"{n}/") for key in results)]
    lines = [f"| flow | {' | '.join(networks)} |", "|---" * (1 + len(networks)) + "|"]
    for flow, of in rows(results).items():
        cells = ["–" if n not in of else "refused" if "refused" in of[n] else cell(of[n]) for n in networks]
        lines.append(f"| {flow} | {' | '.join(cells)} |")
    return lines


def own(results: dict[str, Any]) -> list[str]:
    """intact8's rows: counts, not shares."""
    head = ("network", "recipe", "certified operations, others", "integers, per engine", *ENGINES, "outputs, top-1")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, r in results.items():
        network, flow = key.split("/")
        if flow.startswith("intact8") and "refused" in r:
            lines.append(f"| {network} | {flow.split(', ')[1]} | refused |" + " |" * (len(head) - 3))
        elif flow.startswith("intact8"):
            tallies = [r["executions"][engine] for engine in ENGINES]
            output, top1 = (sum(t[what] for t in tallies) for what in ("output_differ", "top1_differ"))
            proofs = f"{r['certified'] - r['uncertified']}, {r['uncertified']}"
            counts = [f"{tallies[0]['integers']:,}", *(f"**{t['differ']}**" for t in tallies)]
            cells = [network, flow.split(", ")[1], proofs, *counts, f"{output}, {top1}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def output_cell(t: dict[str, Any]) -> str:
    """Integers of the output that differ, and images whose top-1 differs."""
    integers = (
        share(t["output_differ"], t["output_integers"], t["output_largest"]) if t["output_integers"] else "float32"
    )
    return f"{integers}; {100 * t['top1_differ'] / t['images']:.1f} %"


def markdown(about: dict[str, Any], results: dict[str, Any]) -> str:
    """The page, from whatever has been run."""
    order = [f"{network}/{flow}" for network in NETWORKS for flow in FLOWS]
    results = {key: results[key] for key in order if key in results}
    tallies = [(key, t) for key, r in results.items() for t in r.get("executions", {}).values()]
    images = {key.split("/")[0]: t["images"] for key, t in tallies}
    changed = [key.replace("/", ", ") for key, t in tallies if t["taps_change_output"]]
    return "\n".join([
        "# Simulated against executed", "", about["machine"], "", f"`{about['command']}`", "",
        "Post-training quantization, the same calibration images for everybody. Compared on other images: "
        + ", ".join(f"{n} on {name}" for name, n in images.items()) + ". The first three networks are trained and see "
        "real images; those of torchvision have random weights, batch norm statistics taken from data, and random "
        "images of 96 px: their logits are close to each other, and top-1 changes easily. Every network runs from its "
        "input to its output, so that an integer which differs because an earlier one does is counted, too.", "",
        "## intact8", "",
        "Integers of each engine that are not those of the simulation; output integers, and images whose top-1 "
        "differs, on any engine.", "", *own(results), "",
        "## Peers: integers", "",
        "Share of all compared integers that differ (the count where that is below 0.01 %); in brackets the largest "
        "difference.", "", *matrix(results, lambda t: share(t["differ"], t["integers"], t["largest"])), "",
        "## Peers: outputs", "",
        "Share of the output's integers that differ and the largest difference; share of images whose top-1 differs. "
        "Where the output is `float32` it is never quantized: there are no integers, and no scale to get them by.", "",
        *matrix(results, output_cell), "",
        "## What is compared", "",
        *(f"- {flow}: {' '.join((inspect.getdoc(make) or '').split()).replace('``', '`')}"
          for flow, make in FLOWS.items()), "",
        "No peer promises equality. First comes what it offers to evaluate or to train, then what it runs; both are of "
        "one calibration. All activations that are quantized are compared, in their order; peers quantize different "
        "ones, so numbers of integers differ from row to row. What goes into a residual addition is left out with "
        "pt2e and NNCF: asked for, it keeps the addition from being fused, and something else would be measured than "
        "what is deployed. That asking for the others changes nothing was checked by comparing outputs with those of "
        "the network when only its output is asked for (with pt2e on the rows of the reference): "
        + (f"they differ in {', '.join(changed)}." if changed else "the same bits.")
        + " [docs/arithmetic.md](../../docs/arithmetic.md) says where differences come from.", "",
        *(f"- refused: {key.replace('/', ', ')}: {r['refused']}" for key, r in results.items() if "refused" in r),
    ]).rstrip() + "\n"  # fmt: skip


def work(network: str, args: argparse.Namespace, about: dict[str, Any]) -> None:
    """Every flow of one network that there is no result of."""
    warnings.simplefilter("ignore")
    given = subject(network, folder(args.assets))
    torch.set_num_threads(THREADS)  # the loaders choose a number
    failed: dict[str, str] = {}

    def run(flow: str) -> dict[str, Any]:
        result = attempt(failed, flow, lambda: measure(FLOWS[flow](given), given.images))
        return {"refused": failed[flow]} if result is None else result

    for flow in args.flows:
        Store(args.out.with_suffix(".json"), about).once(f"{network}/{flow}", functools.partial(run, flow))


def main() -> None:
    """Run what is missing, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--flows", nargs="*", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--jobs", type=int, default=2, help="networks at a time")
    today = datetime.date.today().isoformat()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"{today}-mismatches")
    args = parser.parse_args()
    known = versions(("torch", "torchao", "onnxruntime", "openvino", "nncf"))
    machine = f"{cpu_name()}; " + ", ".join(f"{name} {version}" for name, version in known.items())
    about = {"machine": machine, "command": "python benchmarks/mismatches.py"}
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        # The last ones take longest.
        list(pool.map(functools.partial(work, args=args, about=about), reversed(args.networks)))
    text = markdown(about, Store(args.out.with_suffix(".json"), about).results)
    print(text)
    args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
