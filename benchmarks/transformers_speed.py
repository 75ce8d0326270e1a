"""Latency of a transformer encoder and an LSTM: float32, intact8 dynamic and static, and the peers.

    python benchmarks/transformers_speed.py [--models minilm lstm] [--batches 1 8] [--threads 1 2] [--contenders …]

``minilm`` is BERT in the size of MiniLM-L6 (384 wide, 6 layers, 12 heads) from transformers' configuration, at sequence
128; ``lstm`` has two layers of 512, sequence 64. Weights are random: nothing is downloaded, and shapes and operations,
not values, decide the time. Padding is masked inside the network, so that everybody takes one tensor. Otherwise as
``benchmarks/speed.py``. Needs pip install transformers; the peers as there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
import peers
from coverage import torchvision
from intact8 import recipes
from intact8.engines import get_engine
from latency import Call, Field, arguments, attempt, kept_networks, kept_program, run
from peers import ort_session

FLOAT, COMPILED, DYNAMIC = "torch fp32", "torch fp32 compiled", "intact8 dynamic/onednn"
NATIVE, OURS, OURS_OV, OURS_ORT = "intact8/native", "intact8/onednn", "intact8/openvino", "intact8/onnxruntime"
NATIVE_DYNAMIC, NATIVE_INTEGER = "intact8 dynamic/native", "intact8 integer/native"
AO, PT2E = "torch.ao dynamic", "torchao pt2e + compile"
ORT_DYNAMIC, ORT, NNCF = "ONNX Runtime dynamic", "ONNX Runtime static", "NNCF + OpenVINO"
INTACT = (NATIVE_DYNAMIC, DYNAMIC, NATIVE, NATIVE_INTEGER, OURS, OURS_OV, OURS_ORT)
INT8 = (*INTACT, AO, ORT_DYNAMIC, ORT, PT2E, NNCF)
FIELD = Field(
    (FLOAT, COMPILED, *INT8), INTACT, INT8,
    ((NATIVE, NNCF), (NATIVE_INTEGER, NNCF),
     (NATIVE_DYNAMIC, ORT_DYNAMIC), (DYNAMIC, AO), (DYNAMIC, ORT_DYNAMIC), (OURS, ORT), (OURS, PT2E),
     (OURS_ORT, ORT), (OURS_OV, NNCF)),
    "Speed of transformers and LSTMs",
    "Milliseconds per call, median (speed-up over float32 eager, share of the int8 peak of the same run, counting the\n"
    "products with weights). Contenders take turns, each with an untimed call (with two threads 20 ms of them) before\n"
    "a timed one. Random\n"
    "weights; the encoder reads 128 tokens, the LSTM 64 vectors.",
    libraries=("torch", "torchao", "transformers", "onnxruntime", "openvino", "nncf"),
)  # fmt: skip
MODELS = ("minilm", "lstm")
TOKENS, VOCABULARY, STEPS, WIDTH, CALIBRATION = 128, 30522, 64, 512, 16


class Encoder(nn.Module):
    """Token numbers (0: padding) → hidden states."""

    def __init__(self) -> None:
        super().__init__()
        torchvision()  # transformers imports it
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, TOKENS) int64 → (N, TOKENS, 384)."""
        mask = (x == 0)[:, None, None, :].float() * -10000.0
        y: Tensor = self.bert(input_ids=x, attention_mask=mask).last_hidden_state
        return y


class Recurrent(nn.Module):
    """Two layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, STEPS, WIDTH) → the same."""
        y: Tensor = self.lstm(x)[0]
        return y


def build(name: str) -> nn.Module:
    """A network with random weights, the same ones every time."""
    torch.manual_seed(0)
    return (Encoder() if name == "minilm" else Recurrent()).eval()


def samples(name: str, count: int, seed: int) -> Tensor:
    """Inputs; sentences differ in length."""
    generator = torch.Generator().manual_seed(seed)
    if name == "lstm":
        return torch.randn(count, STEPS, WIDTH, generator=generator)
    x = torch.randint(1, VOCABULARY, (count, TOKENS), generator=generator)
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (count, 1), generator=generator)
    return x.masked_fill(torch.arange(TOKENS) >= lengths, 0)


def count_macs(model: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates of the products with weights for one sample."""
    positions = x.shape[1]
    if isinstance(model, Recurrent):
        return positions * sum(p.numel() for n, p in model.named_parameters() if "weight" in n)
    return positions * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


class Network:
    """A network, quantized once by everybody.

    Args:
        name: one of MODELS.
        wanted: names of contenders.
        folder: where quantized networks lie or will lie.
    """

    def __init__(self, name: str, wanted: Sequence[str], folder: Path) -> None:
        self.name, self.model, self.wanted = name, build(name), wanted
        self.data = samples(name, CALIBRATION, 1)
        self.macs = count_macs(self.model, self.data)
        self.failed: dict[str, str] = {}
        folder /= name
        self.programs = {who: self._try(who, lambda who=who: self._program(folder, who)) for who in INTACT}  # type: ignore[misc]
        example = self.data[:2]
        self.ao = self._try(AO, lambda: peers.torch_ao_dynamic(build(name)))
        self.dynamic = self._try(ORT_DYNAMIC, lambda: peers.quantize_onnx_dynamic(build(name), example, folder))
        self.static = self._try(ORT, lambda: peers.quantize_onnx(build(name), self.data, folder))
        nncf = folder / "nncf.xml"
        transformer = name == "minilm"
        self.nncf = self._try(
            NNCF, lambda: peers.kept_openvino(nncf, lambda: peers.nncf_openvino(build(name), self.data, transformer))
        )

    def _program(self, folder: Path, who: str) -> intact8.Program:
        return kept_program(folder / who.replace("/", "-"), lambda: self._quantize(who))

    def _quantize(self, who: str) -> intact8.Program:
        default = recipes.default()
        recipe = {
            NATIVE_DYNAMIC: lambda: recipes.dynamic(),
            DYNAMIC: lambda: recipes.dynamic(),
            NATIVE: lambda: recipes.fast(),
            NATIVE_INTEGER: lambda: recipes.integer(),
            OURS: lambda: recipes.fast(),
            OURS_OV: lambda: replace(default, engines=(*default.engines, "openvino")),
            OURS_ORT: lambda: default,
        }[who]()
        return intact8.quantize(self.model, self.data.split(8), recipe=recipe)

    def _try(self, who: str, make: Callable[[], Any]) -> Any:
        return attempt(self.failed, who, make) if who in self.wanted else None

    def calls(self, batch: int, threads: int) -> dict[str, Call]:
        """What is timed, by contender."""
        x = samples(self.name, batch, 2)
        array = x.numpy()

        def ours(who: str) -> Call:
            program = self.programs[who]
            engine = who.split("/")[1]
            runner, name = get_engine(engine).prepare(program, threads=threads), program.inputs[0]
            if engine == "onednn":
                return lambda: runner.torch_call([x])[0]  # type: ignore[attr-defined]
            return lambda: runner({name: array})[0]

        def on(predict: Callable[[Any], Any], given: Any) -> Call:
            return lambda: predict(given)

        def session(path: Path) -> Call:
            running = ort_session(path, threads)
            return lambda: running.run(None, {"x": array})[0]

        made: dict[str, Callable[[], Call | None]] = {
            FLOAT: lambda: on(peers.without_grad(self.model), x),
            COMPILED: lambda: on(peers.torch_compiled(self.model, x), x),
            **{who: lambda who=who: ours(who) if self.programs[who] else None for who in INTACT},  # type: ignore[misc]
            AO: lambda: on(self.ao, x) if self.ao else None,
            ORT_DYNAMIC: lambda: session(self.dynamic) if self.dynamic else None,
            ORT: lambda: session(self.static) if self.static else None,
            PT2E: lambda: on(peers.torchao_pt2e(build(self.name), self.data, x), x),
            NNCF: lambda: on(peers.openvino_predict(self.nncf, x, threads), x) if self.nncf else None,
        }
        found = {who: self._try(who, made[who]) for who in self.wanted}
        return {who: call for who, call in found.items() if call is not None}


def main() -> None:
    """Run, print, write."""
    args = arguments(__doc__, FIELD, MODELS).parse_args()
    warnings.simplefilter("ignore")

    def subjects(name: str) -> Iterator[Network]:
        with kept_networks(args.folder) as folder:
            yield Network(name, args.contenders, folder)

    run(FIELD, args, "transformers-speed", subjects)


if __name__ == "__main__":
    main()
