"""A stock torchvision ResNet18 with a two-class head: pretrained, QAT, best checkpoint, int8, saved, served, measured.

    python examples/resnet18_two_classes.py [--fashion-mnist FOLDER] [--classes 2 4] [--size 64] [--pretrained FILE]

The whole way that tutorials go, without their changes to the network: no "quantizable" copy of ResNet18 with stubs and
FloatFunctional in it (eager-mode quantization needs them, because it swaps modules and cannot see the ``+=`` of a
residual block), no list of modules to fuse, no second observation after training, and figures that are measured.

Data: two classes of Fashion-MNIST that are easily confused, from the folder with its four .gz files; without one,
two of scikit-learn's handwritten digits. "Pretrained": ``--pretrained`` takes a state dict of torchvision's ResNet18.
Without one, nothing is downloaded: the network is first trained on the other eight classes of the same data, which is
a modest pretraining, but a real one. All images are enlarged to --size.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
import intact8.runtime
import intact8.train
from intact8.timing import Timing, interleaved

BATCH = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Data:
    """Images (N, 3, size, size) float32 and labels: 0 … of the other classes, and 0/1 of the two in question."""

    others: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Result:
    """What was measured. Accuracies are shares of the test images, latencies in seconds for one image."""

    accuracy: dict[str, float]
    best_epoch: int
    refused: str
    nbytes: dict[str, int]
    latency: dict[str, Timing]
    integers: int
    differ: int
    served_equal: bool
    engine: str


# -- data -------------------------------------------------------------------------------------------------------


def fashion_mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in 0..1 and labels, from the .gz files as they are distributed."""

    def read(name: str, header: int) -> Any:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header).copy()

    images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    return torch.from_numpy(images).float() / 255, torch.from_numpy(read(f"{part}-labels-idx1-ubyte.gz", 8)).long()


def sklearn_digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) in 0..1 and labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(labels).long()


def load(folder: Path | None, classes: tuple[int, int], size: int, images: int) -> Data:
    """``images`` for each part of the training, a quarter of it for validation, and all test images of two classes."""
    if folder is None:
        x, y = sklearn_digits()
        x_test, y_test, x, y = x[1300:], y[1300:], x[:1300], y[:1300]
    else:
        (x, y), (x_test, y_test) = fashion_mnist(folder, "train"), fashion_mnist(folder, "t10k")

    def part(x: Tensor, y: Tensor, wanted: list[int], count: int | None) -> tuple[Tensor, Tensor]:
        index = torch.isin(y, torch.tensor(wanted)).nonzero().flatten()[:count]
        labels = torch.searchsorted(torch.tensor(wanted), y[index])
        enlarged = F.interpolate(x[index], size=(size, size), mode="bilinear", antialias=True)
        return ((enlarged - 0.29) / 0.35).expand(-1, 3, -1, -1).contiguous(), labels

    others = sorted(set(range(10)) - set(classes))
    mine = sorted(classes)
    all_x, all_y = part(x, y, mine, images + images // 4)
    cut = len(all_x) * 4 // 5
    return Data(
        part(x, y, others, images),
        (all_x[:cut], all_y[:cut]),
        (all_x[cut:], all_y[cut:]),
        part(x_test, y_test, mine, None),
    )


# -- training ---------------------------------------------------------------------------------------------------


def resnet18(classes: int) -> nn.Module:
    """torchvision's, unmodified, with another head."""
    try:
        from torchvision import models
    except RuntimeError:  # a torchvision built for another torch: its compiled operators, not used here, are missing
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        models_without_operators.append(library)
        from torchvision import models
    return nn.Sequential(*list(models.resnet18().children())[:-1], nn.Flatten(), nn.Linear(512, classes))


models_without_operators: list[Any] = []
"""Keeps declarations of operators alive."""


def accuracy(predict: Callable[[Tensor], Any], data: tuple[Tensor, Tensor]) -> float:
    """Share of images whose largest logit is that of their label."""
    hits = 0
    with torch.no_grad():
        for x, y in zip(data[0].split(BATCH), data[1].split(BATCH), strict=True):
            hits += int((torch.as_tensor(predict(x)).cpu().argmax(1) == y).sum())
    return hits / len(data[1])


def one_epoch(net: nn.Module, data: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """An ordinary epoch. It does not know whether ``net`` is float32 or a simulation."""
    net.train()
    for index in torch.randperm(len(data[0])).split(BATCH):
        if len(index) > 1:
            optimizer.zero_grad()
            F.cross_entropy(net(data[0][index].to(DEVICE)), data[1][index].to(DEVICE)).backward()
            optimizer.step()


def pretrained(file: Path | None, data: Data, epochs: int) -> nn.Module:
    """A trained backbone under a new head for two classes."""
    net = resnet18(int(data.others[1].max()) + 1).to(DEVICE)
    if file is not None:  # the file's names are conv1 …, fc; here they are positions
        state = torch.load(file, weights_only=True)
        names = dict(zip(["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"], "014567", strict=True))
        state = {names[k.split(".")[0]] + k[k.index(".") :]: v for k, v in state.items() if not k.startswith("fc.")}
        net.load_state_dict({**net.state_dict(), **state})
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(epochs):
            one_epoch(net, data.others, optimizer)
    net[-1] = nn.Linear(512, 2).to(DEVICE)
    return net


def run(
    fashion: Path | None = None,
    classes: tuple[int, int] = (2, 4),
    *,
    size: int = 64,
    images: int = 3000,
    float_epochs: int = 2,
    qat_epochs: int = 4,
    file: Path | None = None,
    seconds: float = 4.0,
) -> Result:
    """Everything, in order."""
    torch.manual_seed(0)
    data = load(fashion, classes, size, images)
    net = pretrained(file, data, float_epochs)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    for _ in range(float_epochs):
        one_epoch(net, data.train, optimizer)
    of_float = accuracy(lambda x: net(x.to(DEVICE)), _evaluated(net, data.test))

    # Fusing conv + batch norm + ReLU and the residual adds is found in the captured graph; nothing is listed by hand.
    def prepare() -> Any:
        return intact8.prepare(net, data.train[0][:2].to(DEVICE), intact8.recipes.qat("learned"))

    sim = prepare()
    intact8.calibrate(sim, data.train[0][:256].split(BATCH))
    of_ptq = accuracy(lambda x: sim(x.to(DEVICE)), _evaluated(sim, data.test))

    # Train normally. The checkpoint of the best epoch holds parameters, scales, observers: all there is.
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=1e-4, scale_lr=1e-2, relative=True))
    schedule = intact8.train.Schedule(freeze_batchnorm=qat_epochs // 2, freeze_scales=qat_epochs - 1)
    best, best_epoch = -1.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(qat_epochs):
            one_epoch(sim, data.train, optimizer)
            schedule.step(sim)
            reached = accuracy(lambda x: sim(x.to(DEVICE)), _evaluated(sim, data.validation))
            if reached >= best:
                best, best_epoch = reached, epoch
                torch.save(sim.state_dict(), Path(folder) / "best.pth")

        # Reload it into a simulation prepared anew, as another process would.
        sim = prepare()
        sim.load_state_dict(torch.load(Path(folder) / "best.pth", weights_only=True))
        sim = sim.cpu().eval()
        of_qat = accuracy(sim, data.test)

        # A second prepare and calibration, as tutorials have them here, would throw away what was learned.
        try:
            intact8.prepare(sim, data.train[0][:2])
            refused = ""
        except intact8.StateError as error:
            refused = str(error)

        program = intact8.convert(sim)
        path = program.save(Path(folder) / "resnet18.safetensors")
        served = intact8.runtime.load(path, threads=torch.get_num_threads())
        report = intact8.verify(program, data.test[0][:64], sim=sim)
        with torch.no_grad():
            equal = np.array_equal(served(data.test[0][:64]).numpy(), sim(data.test[0][:64]).numpy())
        return Result(
            accuracy={"float32": of_float, "ptq": of_ptq, "qat": of_qat, "served": accuracy(served, data.test)},
            best_epoch=best_epoch, refused=refused, served_equal=equal, engine=served.info.engine,
            integers=report.elements, differ=report.mismatches,
            nbytes={"float32": len(safetensors.torch.save(net.state_dict())), "int8": path.stat().st_size},
            latency=_latency(net, served, data.test[0][:1], seconds),
        )  # fmt: skip


def _evaluated(net: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    net.eval()
    return data


def _latency(net: nn.Module, served: Any, image: Tensor, seconds: float) -> dict[str, Timing]:
    """One image, both from the same float tensor, taking turns; float32 in the layout that is faster on CPUs."""
    eager = copy.deepcopy(net).cpu().eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = image.to(memory_format=torch.channels_last)

    def float32() -> object:
        with torch.inference_mode():
            return eager(x)

    return interleaved({"float32": float32, "int8": lambda: served(image)}, seconds=seconds)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion-mnist", type=Path, help="folder with train-images-idx3-ubyte.gz and the others")
    parser.add_argument("--classes", type=int, nargs=2, default=None, help="2 4: pullover, coat; digits: 3 8")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--pretrained", type=Path, help="state dict of torchvision's ResNet18")
    args = parser.parse_args()
    classes = tuple(args.classes or ((3, 8) if args.fashion_mnist is None else (2, 4)))
    r = run(args.fashion_mnist, classes, size=args.size, images=args.images, file=args.pretrained)
    print(f"ResNet18, classes {classes[0]} and {classes[1]}, {args.size}×{args.size}, trained on {DEVICE}")
    for name, text in (
        ("float32", "float32"),
        ("ptq", "int8 after training"),
        ("qat", "int8 trained (QAT), simulation"),
        ("served", f"int8 trained (QAT), served by {r.engine}"),
    ):
        print(f"  {text:<40} {r.accuracy[name]:.2%}")
    print(f"  best epoch: {r.best_epoch + 1}; its checkpoint was reloaded into a simulation prepared anew")
    print(f"  integers that differ between simulation and engines: {r.differ:,} of {r.integers:,}")
    print(f"  outputs served equal the simulation's to the bit: {r.served_equal}")
    print(f"  a second prepare is refused: {r.refused}")
    size = {name: n / 1e6 for name, n in r.nbytes.items()}
    print(f"  size: {size['float32']:.1f} MB, {size['int8']:.1f} MB: {size['float32'] / size['int8']:.2f}× smaller")
    ms = {name: t.median * 1e3 for name, t in r.latency.items()}
    print(
        f"  one image, {torch.get_num_threads()} thread(s): {ms['float32']:.2f} ms, {ms['int8']:.2f} ms: "
        f"{ms['float32'] / ms['int8']:.2f}× faster"
    )


if __name__ == "__main__":
    main()
