"""Weights of 4 bits beside 8: CPU time of one call at batch 1 on one thread, and bytes of the file; with peers.

    python benchmarks/four_bits.py [--models linear lstm decoder] [--rounds 15] [--peers]

``linear`` is one layer of 4096 by 4096; ``lstm`` two layers of 512 over 64 steps; ``decoder`` one token of a network of
6 blocks of 768 with 64 tokens in its cache, whose weights (49 million) fit no cache. Weights are random. Contenders
take turns, each with an untimed call before the timed ones; CPU time of the process, so that other processes disturb
little. Peers: ONNX Runtime's MatMulNBits (blocks of 32, accuracy level 4: integer products) and OpenVINO with NNCF's
compressed weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.engines import get_engine
from latency import attempt, cosine
from peers import export_onnx, openvino_predict, ort_session, quantize_onnx_dynamic, without_grad

WIDTH, BLOCKS, HEADS, PAST, VOCABULARY = 768, 6, 12, 64, 8192
BLOCK = 32
"""Weights that share a scale in MatMulNBits."""


class Block(nn.Module):
    """One block of a decoder with a cache of fixed length."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        """(N, 1, WIDTH), (N, 2, HEADS, PAST, WIDTH / HEADS) → (N, 1, WIDTH)."""
        q, k, v = (
            t.reshape(-1, 1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in self.project(self.before(x)).chunk(3, 2)
        )
        k, v = torch.cat([past[:, 0], k], 2), torch.cat([past[:, 1], v], 2)
        scores = (q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(-1, 1, WIDTH))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return y


class Decoder(nn.Module):
    """One token and the keys and values before it → scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1 + 2 BLOCKS PAST, WIDTH) → (N, 1, VOCABULARY)."""
        past = x[:, 1:].reshape(-1, BLOCKS, 2, PAST, HEADS, WIDTH // HEADS).transpose(3, 4)
        x = x[:, :1]
        for i, block in enumerate(self.blocks):
            x = block(x, past[:, i])
        y: Tensor = self.head(self.norm(x))
        return y


class Recurrent(nn.Module):
    """Two layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(512, 512, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 64, 512) → the same."""
        y: Tensor = self.lstm(x)[0]
        return y


def build(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights, and two samples."""
    torch.manual_seed(0)
    made: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
        "linear": lambda: (nn.Sequential(nn.Linear(4096, 4096)), torch.randn(2, 1, 4096)),
        "lstm": lambda: (Recurrent(), torch.randn(2, 64, 512)),
        "decoder": lambda: (Decoder(), torch.randn(2, 1 + 2 * BLOCKS * PAST, WIDTH)),
    }
    model, x = made[name]()
    return model.eval(), x


def with_nibbles(source: Path, target: Path) -> Path:
    """Write an ONNX file whose products with constants are MatMulNBits nodes of integer products."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(source)
    constants = {c.name: c for c in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in constants:
            continue
        w = numpy_helper.to_array(constants[node.input[1]]).T  # (outputs, inputs)
        rows, columns = w.shape
        blocks = w.reshape(rows, columns // BLOCK, BLOCK)
        scale = np.abs(blocks).max(2) / 7
        q = np.clip(np.rint(blocks / scale[..., None]), -8, 7).astype(np.int8) + 8
        packed = (q[..., ::2] | q[..., 1::2] << 4).astype(np.uint8)
        name = node.input[1]
        parts = [
            numpy_helper.from_array(packed, f"{name}_q"),
            numpy_helper.from_array(scale.astype(np.float32), f"{name}_s"),
        ]
        model.graph.initializer.extend(parts)
        sizes = {"K": columns, "N": rows, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        inputs = [node.input[0], parts[0].name, parts[1].name]
        node.CopyFrom(
            helper.make_node("MatMulNBits", inputs, list(node.output), node.name, domain="com.microsoft", **sizes)
        )
        model.graph.initializer.remove(constants[name])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, target)
    return target


def compressed(model: nn.Module, x: Tensor, bits: int, folder: Path) -> tuple[Callable[[Tensor], Any], int]:
    """OpenVINO's call with weights that NNCF compressed, and bytes of the file."""
    import nncf
    import openvino as ov

    found = ov.convert_model(model, example_input=x)
    if bits == 8:
        found = nncf.compress_weights(found, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        found = nncf.compress_weights(
            found, mode=nncf.CompressWeightsMode.INT4_SYM, ratio=1.0, group_size=-1, all_layers=True
        )
    path = folder / f"ov{bits}.xml"
    ov.save_model(found, path, compress_to_fp16=False)
    return openvino_predict(found, x[:1], 1), path.with_suffix(".bin").stat().st_size


Contender = tuple[Callable[[], Any], int]
"""A call that returns the output, and bytes of the file."""


def own(model: nn.Module, x: Tensor, recipe: intact8.Recipe, folder: Path) -> Contender:
    """The native engine on a program of that recipe."""
    program = intact8.quantize(model, x.repeat(4, 1, 1), recipe=recipe)
    path = program.save(folder / "program.safetensors")
    runner = get_engine("native").prepare(program, threads=1)
    inputs = {program.inputs[0]: x[:1].numpy()}
    return lambda: runner(inputs)[0], path.stat().st_size


def onnx_session(path: Path, x: Tensor) -> Contender:
    """ONNX Runtime on a file."""
    session, given = ort_session(path, 1), {"x": x[:1].numpy()}
    return lambda: session.run(None, given)[0], path.stat().st_size


def predictor(made: tuple[Callable[[Tensor], Any], int], x: Tensor) -> Contender:
    """A predictor as a call."""
    predict, size = made
    return lambda: predict(x[:1]), size


def contenders(name: str, peers: bool, folder: Path, failed: dict[str, str]) -> dict[str, Contender]:
    """Return everybody's call and file."""
    model, x = build(name)
    default, float_path = recipes.default(), folder / "float.onnx"
    floats = without_grad(model)
    made: dict[str, Callable[[], Contender]] = {
        "torch float32": lambda: (lambda: floats(x[:1]), sum(p.numel() * 4 for p in model.parameters())),
        "intact8 dynamic, 8 bits": lambda: own(model, x, recipes.dynamic(), folder),
        "intact8 dynamic, 4 bits": lambda: own(model, x, recipes.dynamic(bits=4), folder),
    }
    if name == "linear":
        made["intact8 static, 8 bits"] = lambda: own(model, x, default, folder)
        made["intact8 static, 4 bits"] = lambda: own(model, x, recipes.w4a8(), folder)
    if peers:
        export_onnx(model, x, float_path)
        made |= {
            "ONNX Runtime dynamic, 8 bits": lambda: onnx_session(quantize_onnx_dynamic(model, x, folder), x),
            "ONNX Runtime MatMulNBits, 4 bits": lambda: onnx_session(with_nibbles(float_path, folder / "q.onnx"), x),
            "OpenVINO + NNCF, 8 bits": lambda: predictor(compressed(model, x, 8, folder), x),
            "OpenVINO + NNCF, 4 bits": lambda: predictor(compressed(model, x, 4, folder), x),
        }
    found = {who: attempt(failed, who, make) for who, make in made.items()}
    return {who: call for who, call in found.items() if call is not None}


def measure(found: dict[str, Contender], rounds: int) -> dict[str, tuple[float, float]]:
    """Return least and median milliseconds of CPU time of a call."""
    times: dict[str, list[float]] = {who: [] for who in found}
    for _ in range(rounds):
        for who, (call, _) in found.items():
            call()
            start, calls = time.process_time(), 0
            while time.process_time() - start < 0.02:
                call()
                calls += 1
            times[who].append((time.process_time() - start) / calls * 1e3)
    return {who: (min(t), statistics.median(t)) for who, t in times.items()}


def main() -> None:
    """Print one table per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["linear", "lstm", "decoder"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", action="store_true", help="also ONNX Runtime and OpenVINO")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in given.models:
        failed: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            found = contenders(name, given.peers, Path(folder), failed)
            want = np.asarray(found["torch float32"][0]())
            likeness = {who: cosine(np.asarray(call()), want) for who, (call, _) in found.items()}
            times = measure(found, given.rounds)
        print(f"\n### {name}\n\n| | ms, least (median) | MB of the file | cosine to float32 |\n|---|---|---|---|")
        for who, (least, median) in times.items():
            print(f"| {who} | {least:.3f} ({median:.3f}) | {found[who][1] / 1e6:.1f} | {likeness[who]:.4f} |")
        for who, why in failed.items():
            print(f"\n{who}: {why}")


if __name__ == "__main__":
    main()
