"""Latency of everybody side by side: float32, intact8 on three engines, and peers. A Markdown table and a JSON file.

    python benchmarks/speed.py [--models resnet18 …] [--batches 1 8] [--threads 1 2] [--contenders …]
        [--out FOLDER] [--folder FOLDER]

Contenders take turns within one run, so that a machine that slows down slows all of them; figures are medians, ratios
come with their quartiles. Outputs are compared with float32 before anything is timed. The machine's int8 peak is
measured in the same run and every int8 result also given as a share of it. Weights are random, batch norm statistics
real; shapes and operations, not values, decide the time. Peers need pip install nncf torchao; compiled ones a C++
compiler and minutes. What fails is reported as failed. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
import peers
from coverage import build
from intact8.engines import get_engine
from latency import Call, Field, arguments, attempt, kept_networks, kept_program, run
from peers import ort_session, quantize_onnx

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0")
FLOAT, COMPILED = "torch fp32", "torch fp32 compiled"
NATIVE, OURS, OURS_OV, OURS_ORT = "intact8/native", "intact8/onednn", "intact8/openvino", "intact8/onnxruntime"
AO, FROZEN, PT2E = "torch.ao FX", "torch.ao FX + jit", "torchao pt2e + compile"
ORT, NNCF = "ONNX Runtime static", "NNCF + OpenVINO"
INTACT = (NATIVE, OURS, OURS_OV, OURS_ORT)
INT8 = (*INTACT, AO, FROZEN, PT2E, ORT, NNCF)
FIELD = Field(
    (FLOAT, COMPILED, *INT8), INTACT, INT8,
    ((NATIVE, NNCF), (NATIVE, ORT), (OURS, AO), (OURS, ORT), (OURS, FROZEN), (OURS_OV, NNCF), (OURS_ORT, ORT)), "Speed",
    "Milliseconds per call, median (speed-up over float32 eager channels-last, share of the int8 peak of the\n"
    "same run). Contenders take turns, each with an untimed call (with two threads 20 ms of them) before a timed\n"
    "one. Random weights.",
)  # fmt: skip
CALIBRATION = 32


def count_macs(model: nn.Module, *inputs: Tensor) -> int:
    """Multiply-accumulates of all convolutions and linear layers for one input batch."""
    total = 0

    def hook(module: Any, _: Any, y: Tensor) -> None:
        nonlocal total
        total += y.numel() * module.weight[0].numel()

    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return total


class Network:
    """A network, quantized once by everybody.

    Args:
        name: of the model, see ``coverage.build``.
        size: of the square images.
        wanted: names of contenders.
        folder: where quantized networks lie or will lie.
    """

    def __init__(self, name: str, size: int, wanted: Sequence[str], folder: Path) -> None:
        self.name, self.size, self.model, self.wanted = name, size, build(name), wanted
        torch.manual_seed(1)
        self.data = torch.randn(CALIBRATION, 3, size, size)
        self.macs = count_macs(self.model, self.data[:1])
        self.failed: dict[str, str] = {}
        # onednn fuses a residual into its convolution; the other engines want it separate.
        self.programs = {
            who: self._program(folder, "fast" if who == OURS else "default") for who in INTACT if who in wanted
        }
        self.last = build(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.onnx = self._try(ORT, lambda: quantize_onnx(build(name), self.data, folder / name))
        self.ao = self._try(AO, lambda: peers.torch_ao_fx(build(name), self.data))
        nncf = folder / name / "nncf.xml"
        self.nncf = self._try(
            NNCF, lambda: peers.kept_openvino(nncf, lambda: peers.nncf_openvino(build(name), self.data))
        )

    def _program(self, folder: Path, recipe: str) -> intact8.Program:
        """The network by one of the named recipes."""

        def make() -> intact8.Program:
            return intact8.quantize(self.model, self.data.split(8), recipe=getattr(intact8.recipes, recipe)())

        return kept_program(folder / self.name / recipe, make)

    def _try(self, who: str, make: Callable[[], Any]) -> Any:
        return attempt(self.failed, who, make) if who in self.wanted else None

    def calls(self, batch: int, threads: int) -> dict[str, Call]:
        """What is timed: everybody starts from the same float32 images in memory of the layout it likes best."""
        x = torch.randn(batch, 3, self.size, self.size, generator=torch.Generator().manual_seed(2))
        last, array = x.contiguous(memory_format=torch.channels_last), x.numpy()

        def eager() -> Tensor:
            with torch.inference_mode():
                y: Tensor = self.last(last)
            return y

        def ours(who: str) -> Call:
            program = self.programs[who]
            runner, name = get_engine(who.removeprefix("intact8/")).prepare(program, threads=threads), program.inputs[0]
            if who == OURS:
                return lambda: runner.torch_call([x])[0]  # type: ignore[attr-defined]
            return lambda: runner({name: array})[0]

        def on(predict: Callable[[Any], Any], given: Any) -> Call:
            return lambda: predict(given)

        made: dict[str, Callable[[], Call | None]] = {
            FLOAT: lambda: eager,
            COMPILED: lambda: on(peers.torch_compiled(self.last, last), last),
            NATIVE: lambda: ours(NATIVE),
            OURS: lambda: ours(OURS),
            OURS_OV: lambda: ours(OURS_OV),
            OURS_ORT: lambda: ours(OURS_ORT),
            AO: lambda: on(self.ao, last) if self.ao else None,
            FROZEN: lambda: on(peers.torch_ao_frozen(build(self.name), self.data, last), last),
            PT2E: lambda: on(peers.torchao_pt2e(build(self.name), self.data, x), x),
            ORT: lambda: on(_session(self.onnx, threads), array) if self.onnx else None,
            NNCF: lambda: on(peers.openvino_predict(self.nncf, x, threads), x) if self.nncf else None,
        }
        found = {}
        for who in self.wanted:
            call = self._try(who, made[who])
            if call is not None:
                found[who] = call
        return found


def _session(path: Path, threads: int) -> Callable[[Any], Any]:
    session = ort_session(path, threads)
    return lambda array: session.run(None, {"x": array})[0]


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, FIELD, MODELS)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    def subjects(name: str) -> Iterator[Network]:
        with kept_networks(args.folder) as folder:
            yield Network(name, args.size, args.contenders, folder)

    run(FIELD, args, "speed", subjects)


if __name__ == "__main__":
    main()
