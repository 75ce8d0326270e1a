"""What quantization-aware training costs: one step (forward, backward, optimizer) against the float32 step.

    python benchmarks/qat_step.py [--model resnet18] [--batch 8] [--size 224] [--threads 2] [--channels-last]

Contenders take turns within one run; figures are medians with quartiles, and their ratio to float32. Batch norm's
statistics are live, as they are for most of a training, except where a row says frozen: there the last phase of a
schedule runs, on the integers that ship. Memory is measured for each contender in a process of its own: how far the
resident set grows, at its peak, above what it is with the model built and the data loaded; and what autograd saves for
the backward pass, without parameters and buffers. The peer is torch.ao FX with its default configuration for x86. The
last table is the forward pass alone, in evaluation and without gradients: what calibration and diagnosis pay.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
import intact8.simulation.simulation
import intact8.train
from coverage import build
from intact8.timing import Timing, interleaved

FLOAT, PEER = "float32", "torch.ao FX"
OURS = ("learned", "learned, batch norm frozen", "observed", "fixed", "frozen")
CONTENDERS = (FLOAT, *(f"intact8 {kind}" for kind in OURS), PEER)
STEPS = 3
"""Steps of a memory measurement: the optimizer's state exists from the second on."""


def simulation(model: nn.Module, x: Tensor, kind: str) -> nn.Module:
    """A calibrated simulation in the phase ``kind`` names."""
    scales = kind if kind in ("observed", "fixed") else "learned"
    sim = intact8.prepare(model, x, intact8.recipes.qat(scales))
    intact8.calibrate(sim, [x])
    if kind == "learned, batch norm frozen":
        sim.freeze_batch_norm()
    if kind == "frozen":
        sim.freeze_batch_norm()
        sim.freeze_scales()
    return sim


def torch_ao(model: nn.Module, x: Tensor) -> nn.Module:
    """torch.ao FX: fake-quant modules, batch norm folded in the forward pass."""
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    prepared: nn.Module = prepare_qat_fx(copy.deepcopy(model).train(), get_default_qat_qconfig_mapping("x86"), (x,))
    return prepared


def contender(name: str, args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The network as ``name`` trains it, and a batch."""
    model = build(args.model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    torch.manual_seed(1)
    x = torch.randn(args.batch, 3, args.size, args.size)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    if name == PEER:
        model = torch_ao(model, x)
    elif name != FLOAT:
        model = simulation(model, x, name.removeprefix("intact8 "))
    return model, x


def training_step(model: nn.Module, x: Tensor) -> Callable[[], float]:
    """One step of cross entropy with SGD, momentum and weight decay; small enough to go nowhere."""
    model.train()
    groups: Any = model.parameters()
    if isinstance(model, intact8.simulation.simulation.Simulation):
        groups = intact8.train.parameter_groups(model, lr=1e-5)
    optimizer = torch.optim.SGD(groups, lr=1e-5, momentum=0.9, weight_decay=1e-4)
    target = torch.arange(len(x)) % 1000

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss)

    return step


# -- memory ---------------------------------------------------------------------------------------------------


def resident(key: str) -> int:
    """A line of /proc/self/status, in bytes: VmRSS is the resident set, VmHWM its peak since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def peak_memory(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Growth of the resident set in STEPS steps, and what autograd saves in one. MiB."""
    model, x = contender(name, args)
    step = training_step(model, x)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    baseline = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak: building and calibrating are not the step
    for _ in range(STEPS):
        step()
    peak = resident("VmHWM") - baseline
    return {"peak": peak / 2**20, "saved": saved_bytes(model, step) / 2**20}


def saved_bytes(model: nn.Module, step: Callable[[], object]) -> int:
    """Bytes of the distinct storages saved for backward that are no parameter or buffer."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step()
    return sum(seen.values())


def in_child(name: str, args: argparse.Namespace) -> dict[str, float]:
    """:func:`peak_memory` in a fresh process."""
    command = [sys.executable, __file__, "--child", name, *sys.argv[1:]]
    # One arena: with one per thread the peak depends on which thread happened to free what.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- tables ---------------------------------------------------------------------------------------------------


def ms(t: Timing) -> str:
    """Median (quartiles) in milliseconds."""
    return f"{t.median * 1e3:.0f} ({t.lower * 1e3:.0f}–{t.upper * 1e3:.0f})"


def step_table(names: list[str], args: argparse.Namespace) -> list[str]:
    """Time and memory of every contender."""
    memory = {name: in_child(name, args) for name in names} if not args.no_memory else {}
    calls = {name: training_step(*contender(name, args)) for name in names}
    timings = interleaved(calls, seconds=args.seconds)
    base = timings[FLOAT].median
    head = ["step", "ms, median (quartiles)", "ratio"] + ["peak MiB", "ratio", "saved MiB", "ratio"] * bool(memory)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, t in timings.items():
        cells = [name, ms(t), f"{t.median / base:.2f}"]
        for what in ("peak", "saved"):
            if memory:
                cells += [f"{memory[name][what]:.0f}", f"{memory[name][what] / memory[FLOAT][what]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def forward_table(args: argparse.Namespace) -> list[str]:
    """Evaluation without gradients."""
    calls: dict[str, Callable[[], object]] = {}
    for name in (FLOAT, "intact8 fixed"):
        model, x = contender(name, args)
        calls[name] = torch.no_grad()(partial(model.eval(), x))
    timings = interleaved(calls, seconds=args.seconds / 4)
    base = timings[FLOAT].median
    lines = ["| forward, evaluation | ms, median (quartiles) | ratio |", "|---|---|---|"]
    return lines + [f"| {n} | {ms(t)} | {t.median / base:.2f} |" for n, t in timings.items()]


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0, help="all contenders together")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="contenders besides float32")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, help="Markdown file to write as well")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(peak_memory(args.child, args)))
        return
    names = [FLOAT, *(n for n in CONTENDERS if n in args.only and n != FLOAT)]
    layout = "channels-last" if args.channels_last else "contiguous"
    title = f"{args.model}, {args.size} px, batch {args.batch}, {args.threads} thread(s), {layout}"
    facts = f"{title}; torch {torch.__version__}, {platform.machine()}"
    text = "\n".join([facts, "", *step_table(names, args), "", *forward_table(args)])
    print(text)
    if args.out is not None:
        args.out.write_text(f"# The training step\n\n{text}\n")


if __name__ == "__main__":
    main()
