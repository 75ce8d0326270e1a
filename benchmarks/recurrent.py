"""LSTM and GRU: speed beside torch.ao's dynamic layers, and the trained BiLSTM of the assets, accuracy and bits.

    python benchmarks/recurrent.py [--assets DIR] [--threads 1 2] [--batch 1 8] [--seconds 3]

Speed: 2 layers of 512, 64 steps; all contenders interleaved in one run, medians with quartiles. Accuracy: SST-2's test
set, with every integer-made result of simulation, reference and onednn compared as bits.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from intact8.engines import get_engine
from intact8.timing import interleaved

DYNAMIC = intact8.Recipe(mode="dynamic")


def torch_ao(model: nn.Module) -> nn.Module:
    """torch.ao's dynamic quantization of the same network."""
    from torch.ao.quantization import quantize_dynamic

    quantized: nn.Module = quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear}, dtype=torch.qint8)
    return quantized


def converted(model: nn.Module, x: Tensor) -> tuple[Any, intact8.Program]:
    """Simulation and program."""
    sim = intact8.prepare(model, x[:2], DYNAMIC).eval()
    intact8.calibrate(sim, [x])
    return sim, intact8.convert(sim)


def speed(kind: Any, batch: int, threads: int, seconds: float) -> str:
    """One row: milliseconds of float32, torch.ao and intact8, and how many times faster than the other two."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model, x = kind(512, 512, 2, batch_first=True).eval(), torch.randn(batch, 64, 512)
    runner = get_engine("onednn").prepare(converted(model, x)[1], threads=threads)
    peer = torch_ao(nn.Sequential(model))  # a network's root is never exchanged
    assert "DynamicQuantized" in str(peer)
    with torch.inference_mode():
        times = interleaved(
            {"float": lambda: model(x), "ao": lambda: peer(x), "intact8": lambda: runner.torch_call([x])},
            seconds=seconds,
        )
    ms = " | ".join(f"{t.median * 1e3:.2f} ({t.lower * 1e3:.2f}–{t.upper * 1e3:.2f})" for t in times.values())
    ours = times["intact8"].median
    ratios = f"{times['float'].median / ours:.2f}× | {times['ao'].median / ours:.2f}×"
    return f"| {kind.__name__} | {batch} | {threads} | {ms} | {ratios} |"


def accuracy(assets: Path) -> list[str]:
    """Right answers of float32, torch.ao and intact8 on SST-2, and what differs between simulation and engines."""
    sys.path.insert(0, str(assets / "loaders"))
    import sst2
    from safetensors.torch import load_file

    *_, vocab = sst2.read("train")
    x, y, _ = sst2.read("test", vocab)
    model = sst2.BiLSTM(len(vocab) + 2)
    (path,) = (p for p in (assets / "sst2").glob("*.safetensors") if "lstm" in p.name.lower())
    model.load_state_dict(load_file(path))
    sim, program = converted(model.eval(), x[:256])
    report = intact8.verify(program, x, sim=sim, batch_size=256)
    with torch.inference_mode():
        found = {"float32": model(x), "torch.ao": torch_ao(model)(x), "intact8": torch.as_tensor(program.run(x))}
    rows = [f"| {name} | {100 * (v.argmax(1) == y).float().mean():.2f} |" for name, v in found.items()]
    return [*rows, "", f"{report.elements:,} results compared, {report.mismatches} differ"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| network | batch | threads | float32, ms | torch.ao, ms | intact8/onednn, ms | to float32 | to torch.ao |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in (nn.LSTM, nn.GRU):
        for threads in args.threads:
            for batch in args.batch:
                print(speed(kind, batch, threads, args.seconds), flush=True)
    if args.assets is not None:
        torch.set_num_threads(max(args.threads))
        print("\n| SST-2, BiLSTM | top-1, % |\n|---|---|")
        print("\n".join(accuracy(args.assets)))


if __name__ == "__main__":
    main()
