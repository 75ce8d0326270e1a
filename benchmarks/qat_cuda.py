"""What a QAT step (forward, backward, optimizer) costs on a GPU, beside plain float32 and torch.ao: Markdown tables.

    python benchmarks/qat_cuda.py [--models resnet18 resnet50 mobilenet_v2 vit] [--batch 64] [--seconds 20] [--out FILE]

Networks have random weights. Contenders take turns within one run, and every call waits for the device; figures are
medians with quartiles, and their ratio to float32 in the same number format (TF32 where --tf32). A contender that
fails is listed with its reason. `--device cpu --size 32 --batch 4 --models resnet18` tries the script without a GPU.
The last columns tell what the device held at most during a step (CUDA graphs keep it between steps), and how often a
step waits for the device. torch.ao's steps cannot be captured: they read numbers from the device.
"""

from __future__ import annotations

import argparse
import copy
import gc
import platform
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import intact8
import intact8.train
from coverage import build, torchvision
from intact8.simulation.simulation import Simulation
from intact8.timing import Timing, interleaved
from intact8.train import CudaGraphs

FLOAT = "float32"
Make = Callable[[nn.Module, Tensor], nn.Module]


class Step:
    """One training step of a network: cross entropy with SGD, momentum and weight decay."""

    def __init__(
        self, model: nn.Module, x: Tensor, *, autocast: bool = False, compiled: bool = False, graphed: bool = False
    ) -> None:
        model.train()
        simulated = isinstance(model, Simulation)
        groups: Any = intact8.train.parameter_groups(model, lr=1e-5) if simulated else model.parameters()
        self.optimizer = torch.optim.SGD(groups, lr=1e-5, momentum=0.9, weight_decay=1e-4)
        mode = "reduce-overhead" if simulated else "default"
        self.model: Any = torch.compile(model, mode=mode) if compiled else model
        if graphed:
            self.model = CudaGraphs(model) if simulated else torch.cuda.make_graphed_callables(model, (x,))
        self.x, self.target = x, torch.arange(len(x), device=x.device) % 1000
        self.autocast = autocast

    def __call__(self) -> None:
        """Train one step, and wait for the device."""
        self.launch()
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def launch(self) -> None:
        """Train one step without waiting."""
        self.optimizer.zero_grad()
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.autocast):
            output = self.model(self.x)
        loss = nn.functional.cross_entropy(output.float(), self.target)
        loss.backward()
        self.optimizer.step()


def ours(scales: str, frozen: bool = False) -> Make:
    """Return what makes a calibrated simulation that trains with ``scales`` fixed or learned."""

    def make(model: nn.Module, x: Tensor) -> nn.Module:
        sim = intact8.prepare(model, x[:2], intact8.recipes.qat(scales))
        intact8.calibrate(sim, [x[:32]])
        if frozen:
            sim.freeze_batch_norm()
            sim.freeze_scales()
        return sim

    return make


def torch_ao(learned: bool = False) -> Make:
    """Return what makes a torch.ao FX model, with its own observers or learned scales."""

    def make(model: nn.Module, x: Tensor) -> nn.Module:
        from torch.ao.quantization import QConfigMapping, get_default_qat_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_qat_fx

        mapping = get_default_qat_qconfig_mapping("x86")
        if learned:
            mapping = QConfigMapping().set_global(learned_qconfig())
        prepared: nn.Module = prepare_qat_fx(copy.deepcopy(model).train(), mapping, (x[:2],)).to(x.device)
        with torch.no_grad():
            prepared(x[:32])
        if learned:
            for module in prepared.modules():
                if hasattr(module, "enable_param_learning"):
                    module.enable_param_learning()
        return prepared

    return make


def learned_qconfig() -> Any:
    """The learnable fake quantization of torch.ao (LSQ), which has no default configuration."""
    from torch.ao.quantization import MovingAverageMinMaxObserver, QConfig
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    activation = Learnable.with_args(
        observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8, use_grad_scaling=True
    )
    weight = Learnable.with_args(
        observer=MovingAverageMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
        use_grad_scaling=True,
    )
    return QConfig(activation=activation, weight=weight)


def torch_ao_eager(name: str) -> Make:
    """Return what makes torchvision's quantizable network as torch.ao's eager mode trains it."""

    def make(model: nn.Module, x: Tensor) -> nn.Module:
        from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

        network = torchvision().models.quantization.__dict__[name](weights=None, quantize=False).train()
        network.fuse_model(is_qat=True)
        network.qconfig = get_default_qat_qconfig("x86")
        prepared: nn.Module = prepare_qat(network).to(x.device)
        return prepared

    return make


def contenders(name: str, *, compiled: bool) -> dict[str, tuple[Make | None, dict[str, bool]]]:
    """Name → (what makes the network from the float one, options of its step)."""
    found: dict[str, tuple[Make | None, dict[str, bool]]] = {
        FLOAT: (None, {}),
        "float, autocast bf16": (None, {"autocast": True}),
        "intact8, scales fixed (STE)": (ours("fixed"), {}),
        "intact8, scales learned (LSQ)": (ours("learned"), {}),
        "intact8, scales learned, autocast bf16": (ours("learned"), {"autocast": True}),
        "intact8, frozen": (ours("fixed", frozen=True), {}),
        f"{FLOAT}, CUDA graphs": (None, {"graphed": True}),
        "intact8, scales fixed, CUDA graphs": (ours("fixed"), {"graphed": True}),
        "intact8, scales learned, CUDA graphs": (ours("learned"), {"graphed": True}),
        "intact8, frozen, CUDA graphs": (ours("fixed", frozen=True), {"graphed": True}),
        "torch.ao FX": (torch_ao(), {}),
        "torch.ao FX, learned scales": (torch_ao(learned=True), {}),
        "torch.ao FX, autocast bf16": (torch_ao(), {"autocast": True}),
    }
    if name in ("resnet18", "resnet50", "mobilenet_v2"):
        found["torch.ao eager"] = (torch_ao_eager(name), {})
    if compiled:
        found[f"{FLOAT}, torch.compile"] = (None, {"compiled": True})
        found["intact8, scales learned, torch.compile reduce-overhead"] = (ours("learned"), {"compiled": True})
        found["torch.ao FX, torch.compile"] = (torch_ao(), {"compiled": True})
    return found


def network(name: str, size: int) -> nn.Module:
    """The float network: torchvision's, or a ViT of the size of ViT-S."""
    if name != "vit":
        return build(name, size=size)
    torch.manual_seed(0)
    widths = {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
    model: nn.Module = torchvision().models.VisionTransformer(image_size=size, patch_size=16, **widths)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    return model


def scalars_read(step: Step) -> int:
    """Return how often one step reads a number from the device, for which the CPU has to wait."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        step.launch()
    return sum(event.count for event in found.key_averages() if event.key == "aten::_local_scalar_dense")


def peak_memory(step: Step) -> float:
    """Return the MiB that the device holds at most during a step, beyond what it holds before."""
    if not step.x.is_cuda:
        return float("nan")
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(name: str, args: argparse.Namespace) -> list[str]:
    """The table of one network."""
    torch.manual_seed(1)
    x = torch.randn(args.batch, 3, args.size, args.size, device=args.device)
    model = network(name, args.size).to(args.device)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # without one, every layer reads its count of batches from the device
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    wanted = contenders(name, compiled=not args.no_compile)
    for label, (make, options) in wanted.items():
        if label != FLOAT and args.only and not any(part in label for part in args.only):
            continue
        try:
            step = Step(copy.deepcopy(model) if make is None else make(copy.deepcopy(model).eval(), x), x, **options)
            for _ in range(3):
                step()
            steps[label] = step
        except Exception as error:  # noqa: BLE001 - the table tells which contender fails, and why
            failed[label] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error) else ''}"
            if args.trace:
                traceback.print_exc()
        print(f"  {label}: {failed.get(label, 'ready')}", file=sys.stderr, flush=True)
    timings = interleaved(steps, seconds=args.seconds, least=args.least)
    base = timings[FLOAT].median
    lines = [
        f"## {name}, batch {args.batch}, {args.size} px",
        "",
        "| step | ms, median (quartiles) | ratio | peak MiB | waits for the device |",
        "|---|---|---|---|---|",
    ]
    for label in wanted:
        if label in timings:
            peak = "kept" if wanted[label][1].get("graphed") else f"{peak_memory(steps[label]):.0f}"
            extra = f"{peak} | {scalars_read(steps[label])}"
            lines.append(f"| {label} | {ms(timings[label])} | {timings[label].median / base:.2f} | {extra} |")
        elif label in failed:
            lines.append(f"| {label} | fails: {failed[label]} | | | |")
    return [*lines, ""]


def ms(t: Timing) -> str:
    """Median (quartiles) in milliseconds."""
    return f"{t.median * 1e3:.1f} ({t.lower * 1e3:.1f}–{t.upper * 1e3:.1f})"


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["resnet18", "resnet50", "mobilenet_v2", "vit"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="per network, all contenders together")
    parser.add_argument("--least", type=int, default=5, help="rounds made in any case")
    parser.add_argument("--only", nargs="*", help="parts of the names of contenders beside float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--tf32", action="store_true", help="TF32 in matrix products, too; convolutions have it anyway")
    parser.add_argument("--no-compile", action="store_true", help="leave out contenders with torch.compile")
    parser.add_argument("--trace", action="store_true", help="print tracebacks of contenders that fail")
    parser.add_argument("--out", type=Path, help="Markdown file to write as well")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine()
    formats = f"TF32 in convolutions {torch.backends.cudnn.allow_tf32}, in products {args.tf32}"
    layout = "channels-last" if args.channels_last else "contiguous"
    text = f"# The training step on a GPU\n\n{where}, torch {torch.__version__}; {formats}; {layout}\n"
    print(text, flush=True)
    for name in args.models:
        table = "\n".join(measure(name, args))
        print(table, flush=True)
        text += "\n" + table
        if args.out is not None:
            args.out.write_text(text)
        torch._dynamo.reset()
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
