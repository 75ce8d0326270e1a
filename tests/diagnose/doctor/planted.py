"""Trained networks with one planted fault each, and where and what the fault is.

Everything is planted through what a user can reach: weights of the module, the recipe, the calibration data, scales of
a simulation. Most faults keep the float network's function, so that float accuracy is no hint.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes

MINMAX = Recipe(activation=Scheme(observer="minmax"))


@dataclass(frozen=True)
class Planted:
    """One patient: what :func:`intact8.doctor` is given, and the right answer.

    Attributes:
        model, calibration, recipe, sim: as the user has them.
        x, y: representative labelled data, none of it among ``calibration``; of several inputs a tuple. ``y`` None:
            without labels.
        metric: a metric of the user's own.
        place: the layer whose fault it is, "calibration data" or "network".
        causes: answers that count as right.
    """

    model: nn.Module
    x: Any
    y: Any
    calibration: Any
    place: str
    causes: tuple[str, ...]
    recipe: Recipe | None = MINMAX
    sim: Any = None
    metric: Any = None


class World:
    """The assets, read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        sys.path.insert(0, str(root / "loaders"))
        threads = torch.get_num_threads()
        common = importlib.import_module("common")
        torch.set_num_threads(threads)  # the loaders choose one
        self.train, self.train_labels = common.fashion_mnist("train")
        self.test, self.test_labels = common.fashion_mnist("test")
        self._common = common
        self._imagenet: tuple[Tensor, Tensor] | None = None

    def net(self, kind: str) -> nn.Sequential:
        """A fresh copy of Fashion-MNIST ``cnn`` or ``dw``."""
        from safetensors.torch import load_file

        net = importlib.import_module("fashion_mnist").net(kind)
        net.load_state_dict(load_file(self.root / "fashion_mnist" / f"{kind}.safetensors"))
        result: nn.Sequential = net.eval()
        return result

    def mobilenet(self) -> nn.Module:
        """A fresh MobileNetV1 ×0.25."""
        result: nn.Module = importlib.import_module("mobilenetv1_025").load()
        return result

    def fashion(self, model: nn.Module, place: str, *causes: str, **rest: Any) -> Planted:
        """A patient on 1000 test images, calibrated on 128 training images unless ``rest`` says otherwise."""
        rest.setdefault("calibration", self.train[:128])
        return Planted(model, self.test[:1000], self.test_labels[:1000], place=place, causes=causes, **rest)

    def imagenet(self, model: nn.Module, place: str, *causes: str, **rest: Any) -> Planted:
        """A patient on 160 ImageNet images, calibrated on 40 others."""
        if self._imagenet is None:
            x, y = self._common.imagenet_500(step=2)
            self._imagenet = x, y
        x, y = self._imagenet
        held = torch.arange(len(x)) % 5 != 0
        rest.setdefault("calibration", x[~held][:40])
        return Planted(model, x[held][:160], y[held][:160], place=place, causes=causes, **rest)


Plant = Callable[[World], Planted]
PLANTS: dict[str, Plant] = {}


def plant(make: Plant) -> Plant:
    """Decorator: enter a patient under the function's name."""
    PLANTS[make.__name__] = make
    return make


def stretch(net: nn.Module, producer: str, consumer: str, factors: Tensor) -> None:
    """Multiply output channels of ``producer`` (its batch norm) and divide the same inputs of ``consumer``.

    With ReLU or leaky ReLU in between the function stays the same.
    """
    norm, layer = net.get_submodule(producer), net.get_submodule(consumer)
    with torch.no_grad():
        norm.weight.mul_(factors)
        norm.bias.mul_(factors)
        weight = layer.weight
        depthwise = isinstance(layer, nn.Conv2d) and layer.groups > 1
        shape = [-1, *[1] * (weight.dim() - 1)] if depthwise else [1, -1, *[1] * (weight.dim() - 2)]
        weight.div_(factors.reshape(shape))


def kill(norm: nn.Module, channels: list[int]) -> None:
    """Make output channels of a batch norm constant: zero behind a ReLU."""
    with torch.no_grad():
        norm.weight[channels] = 0
        norm.bias[channels] = -1


def ones(channels: int, **values: Any) -> Tensor:
    """Ones but for some channels: ``ones(4, _2=100.0)``."""
    out = torch.ones(channels)
    for key, value in values.items():
        out[int(key[1:])] = value
    return out


def calibrated(case: Planted) -> Any:
    """The simulation that the user would hold."""
    sim = intact8.prepare(case.model, case.calibration[:2], case.recipe)
    intact8.calibrate(sim, case.calibration)
    return sim.eval()


def ranged(case: Planted, layer: str) -> tuple[float, int]:
    """Scale and zero point that calibration gives a point."""
    point = calibrated(case).points[layer]
    return float(point.scale), int(point.zero_point)


def override(case: Planted, layer: str, **changes: Any) -> Planted:
    """The case with one more override."""
    given = {rule.match: rule.to_dict() for rule in case.recipe.rules}
    return replace(case, recipe=replace(case.recipe, overrides={**given, layer: changes}))


def changing(trained: Callable[[Any], nn.Module], patient: Callable[..., Planted]) -> Callable[..., Any]:
    """Return ``changed(kind, change)``, which makes a patient of a trained network to which something was done.

    Args:
        trained: gives the trained network of a class, which is copied.
        patient: makes a patient of a class and a network.
    """

    def changed(kind: Any, change: Callable[[Any], object], **rest: Any) -> Callable[[], Planted]:
        def make() -> Planted:
            net = copy.deepcopy(trained(kind))
            with torch.no_grad():
                change(net)
            return patient(kind, net, **rest)

        return make

    return changed


def writing(changed: Callable[..., Any]) -> Callable[[Any, str, Callable[[Tensor], object]], Callable[[], Planted]]:
    """Return ``written(kind, tensor, change)``: something is written into one tensor of a trained network."""

    def written(kind: Any, tensor: str, change: Callable[[Tensor], object]) -> Callable[[], Planted]:
        made: Callable[[], Planted] = changed(kind, lambda net: change(net.state_dict()[tensor]))
        return made

    return written


# -- channels and weights -------------------------------------------------------------------------------------------


@plant
def outlier_channel_cnn(w: World) -> Planted:
    net = w.net("cnn")
    stretch(net, "4", "7", ones(32, _5=100.0))
    return w.fashion(net, "3", "outlier_channel")


@plant
def outlier_channel_dw(w: World) -> Planted:
    net = w.net("dw")
    stretch(net, "13", "15", ones(64, _20=100.0))
    return w.fashion(net, "12", "outlier_channel", recipe=replace(MINMAX, equalize=False))


@plant
def outlier_channel_mobilenet(w: World) -> Planted:
    net = w.mobilenet()
    stretch(net, "stage2.2.1", "stage2.2.3", ones(128, _7=100.0))
    return w.imagenet(net, "stage2.2.0", "outlier_channel", recipe=recipes.default())


@plant
def channel_imbalance_depthwise(w: World) -> Planted:
    net = w.net("dw")
    generator = torch.Generator().manual_seed(0)
    stretch(net, "7", "9", torch.logspace(-2.3, 0, 32)[torch.randperm(32, generator=generator)])
    return w.fashion(net, "6", "channel_imbalance", recipe=replace(MINMAX, equalize=False))


@plant
def outlier_weight(w: World) -> Planted:
    net = w.net("cnn")
    kill(net[4], [11])
    with torch.no_grad():
        net[7].weight[:, 11] = 100 * net[7].weight.abs().amax((1, 2, 3)).reshape(-1, 1, 1)
    return w.fashion(net, "7", "outlier_weight")


@plant
def per_tensor_weight_cnn(w: World) -> Planted:
    return override(w.fashion(w.net("cnn"), "3", "per_tensor_weight"), "3", weight={"granularity": "per_tensor"})


@plant
def per_tensor_weight_mobilenet(w: World) -> Planted:
    case = w.imagenet(w.mobilenet(), "stage2.0.3", "per_tensor_weight", recipe=recipes.default())
    return override(case, "stage2.0.3", weight={"granularity": "per_tensor"})


@plant
def few_weight_bits(w: World) -> Planted:
    return override(w.fashion(w.net("dw"), "18", "few_bits"), "18", weight={"bits": 3})


@plant
def int4_weight_mobilenet(w: World) -> Planted:
    case = w.imagenet(w.mobilenet(), "stage1.2.3", "few_bits", recipe=recipes.default())
    return override(case, "stage1.2.3", weight={"bits": 4})


@plant
def few_activation_bits(w: World) -> Planted:
    return override(w.fashion(w.net("dw"), "9", "few_bits"), "9", activation={"bits": 3})


@plant
def bias_overflow(w: World) -> Planted:
    net = w.net("cnn")
    with torch.no_grad():
        net[4].bias[9] = -1e9  # dead behind the ReLU; its bias needs more than 32 bits
    return w.fashion(net, "3", "bias_overflow")


# -- ranges ---------------------------------------------------------------------------------------------------------


@plant
def clipped_range(w: World) -> Planted:
    case = w.fashion(w.net("cnn"), "3", "clipped_range")
    scale, zero = ranged(case, "3")
    return override(case, "3", activation={"fixed": (scale / 8, zero)})


@plant
def clipped_range_input(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "input", "clipped_range")
    scale, _ = ranged(case, "input")
    return replace(case, recipe=replace(case.recipe, inputs={"*": Scheme(fixed=(scale / 4, 70))}))


@plant
def clipped_range_mobilenet(w: World) -> Planted:
    case = w.imagenet(w.mobilenet(), "stage2.1.0", "clipped_range", recipe=recipes.default())
    scale, zero = ranged(case, "stage2.1.0")
    return override(case, "stage2.1.0", activation={"fixed": (scale / 8, zero)})


@plant
def clipping_observer(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "12", "clipped_range")
    return override(case, "12", activation={"observer": "percentile", "observer_args": {"percentile": 90.0}})


@plant
def wide_range(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "21", "wide_range")
    scale, zero = ranged(case, "21")
    return override(case, "21", activation={"fixed": (scale * 40, zero)})


@plant
def wide_range_set(w: World) -> Planted:
    case = w.fashion(w.net("cnn"), "7", "wide_range")
    sim = calibrated(case)
    sim.points["7"].set(float(sim.points["7"].scale) * 60, int(sim.points["7"].zero_point))
    return replace(case, sim=sim)


@plant
def zero_point(w: World) -> Planted:
    case = w.fashion(w.net("cnn"), "3", "zero_point")
    sim = calibrated(case)
    sim.points["3"].set(float(sim.points["3"].scale), 200)
    return replace(case, sim=sim)


@plant
def zero_point_input(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "input", "zero_point")
    scale, _ = ranged(case, "input")
    return replace(case, recipe=replace(case.recipe, inputs={"*": Scheme(fixed=(scale, 255))}))


@plant
def shared_range(w: World) -> Planted:
    net = w.net("dw")
    stretch(net, "4", "6", torch.full((16,), 30.0))
    case = w.fashion(net, "6", "shared_range")
    sim = calibrated(case)
    state = sim.state_dict()
    for leaf in ("scale", "zero_point"):
        state[f"quantizers.6.activation_point.{leaf}"] = state[f"quantizers.3.activation_point.{leaf}"].clone()
    sim.load_state_dict(state)
    return replace(case, sim=sim)


class Branches(nn.Module):
    """The third convolution as two halves behind each other's channels: one of them reads the inputs times 100."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.stem, self.pool = net[:3], net[6]
        self.left, self.right = copy.deepcopy(net[3:6]), copy.deepcopy(net[3:6])
        with torch.no_grad():
            for part, kept in ((self.left, slice(0, 16)), (self.right, slice(16, 32))):
                part[0].weight = nn.Parameter(part[0].weight[kept].clone())
                for name in ("weight", "bias"):
                    setattr(part[1], name, nn.Parameter(getattr(part[1], name)[kept].clone()))
                part[1].running_mean, part[1].running_var = part[1].running_mean[kept], part[1].running_var[kept]
                part[0].out_channels = part[1].num_features = 16
        self.head = net[7:]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.head(self.pool(torch.cat([self.left(x), self.right(x)], 1)))
        return y


@plant
def shared_range_cat(w: World) -> Planted:
    net = w.net("cnn")
    model = Branches(net)
    with torch.no_grad():
        for parameter in (model.right[1].weight, model.right[1].bias):
            parameter.mul_(100)
        model.head[0].weight[:, 16:].div_(100)
    return w.fashion(model.eval(), "cat", "shared_range")


class Cancelling(nn.Module):
    """The third convolution as the sum of two whose large parts cancel."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.stem, self.norm, self.rest = net[:3], net[4:7], net[7:]
        self.one, self.other = copy.deepcopy(net[3]), copy.deepcopy(net[3])
        with torch.no_grad():
            large = 20 * net[3].weight.flip(0)
            self.one.weight.copy_(net[3].weight / 2 + large)
            self.other.weight.copy_(net[3].weight / 2 - large)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.rest(self.norm(self.one(x) + self.other(x)))
        return y


@plant
def cancellation(w: World) -> Planted:
    return w.fashion(Cancelling(w.net("cnn")).eval(), "add", "cancellation")


# -- calibration data -----------------------------------------------------------------------------------------------


@plant
def one_class(w: World) -> Planted:
    dresses = w.train[w.train_labels == 3][:128]
    return w.fashion(w.net("dw"), "calibration data", "one_class", calibration=dresses)


@plant
def one_class_cnn(w: World) -> Planted:
    shirts = w.train[w.train_labels == 6][:128]
    return w.fashion(w.net("cnn"), "calibration data", "one_class", calibration=shirts)


@plant
def unnormalized(w: World) -> Planted:
    raw = (w.train[:128] * 0.3530 + 0.2860) * 255
    return w.fashion(w.net("cnn"), "calibration data", "unlike_data", calibration=raw)


@plant
def scaled_twice(w: World) -> Planted:
    dark = (w.train[:128] * 0.3530 + 0.2860) / 255
    return w.fashion(w.net("dw"), "calibration data", "unlike_data", calibration=dark)


@plant
def unnormalized_mobilenet(w: World) -> Planted:
    case = w.imagenet(w.mobilenet(), "calibration data", "unlike_data", recipe=recipes.default())
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return replace(case, calibration=(case.calibration * std.view(3, 1, 1) + mean.view(3, 1, 1)) * 255)


@plant
def outlier_image(w: World) -> Planted:
    images = w.train[:128].clone()
    images[77] *= 60
    return w.fashion(w.net("cnn"), "calibration data", "outlier_sample", calibration=images)


@plant
def constant_calibration(w: World) -> Planted:
    return w.fashion(w.net("dw"), "calibration data", "no_variety", calibration=w.train[3:4].repeat(64, 1, 1, 1))


@plant
def too_few_samples(w: World) -> Planted:
    return w.fashion(w.net("dw"), "calibration data", "too_few", calibration=w.train[8:10])


@plant
def last_batch_range(w: World) -> Planted:
    images = torch.cat([w.train[:128], w.train[128:160] * 0.05 - 0.7])
    moving = Scheme(observer="moving_average", observer_args={"averaging_constant": 1.0})
    return w.fashion(w.net("cnn"), "network", "moving_average", calibration=images, recipe=Recipe(activation=moving))


# -- training and structure -----------------------------------------------------------------------------------------


@plant
def frozen_too_early(w: World) -> Planted:
    case = w.fashion(w.net("cnn"), "3", "stale_range", recipe=recipes.qat("observed"))
    sim = calibrated(case)
    sim.freeze_scales()
    stretch(sim, "4", "7", torch.full((32,), 6.0))  # what further training did to the weights
    return replace(case, sim=sim.eval())


@plant
def stale_batch_norm(w: World) -> Planted:
    net = w.net("dw")
    with torch.no_grad():
        net[13].running_var.mul_(9)
        net[13].running_mean.mul_(0.3)
    return w.fashion(net, "12", "stale_batch_norm")


@plant
def left_float(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "12", "left_float", recipe=recipes.default())
    return replace(case, recipe=replace(case.recipe, overrides={"12": None}))


@plant
def dead_channels(w: World) -> Planted:
    net = w.net("cnn")
    kill(net[8], list(range(40)))
    return w.fashion(net, "7", "dead_channels", recipe=recipes.default())


class Chain(nn.Module):
    """A trained network with pairs of inverse rotations of its channels inside: nothing changes but the noise."""

    def __init__(self, net: nn.Sequential, pairs: int) -> None:
        super().__init__()
        self.before, self.after = net[:6], net[6:]
        rotations = []
        for seed in range(pairs):
            generator = torch.Generator().manual_seed(seed)
            q = torch.linalg.qr(torch.randn(32, 32, generator=generator))[0]
            for matrix in (q, q.T):
                layer = nn.Conv2d(32, 32, 1, bias=False)
                layer.weight = nn.Parameter(matrix.reshape(32, 32, 1, 1).clone())
                rotations.append(layer)
        self.rotations = nn.Sequential(*rotations)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(self.rotations(self.before(x)))
        return y


@plant
def accumulated(w: World) -> Planted:
    return w.fashion(Chain(w.net("cnn"), 24).eval(), "network", "accumulated")


# -- the same, but weak: little noise, close to what trained networks show by themselves ----------------------------


@plant
def weak_outlier_channel(w: World) -> Planted:
    net = w.net("cnn")
    stretch(net, "4", "7", ones(32, _5=8.0))
    return w.fashion(net, "3", "outlier_channel")


@plant
def weak_outlier_weight(w: World) -> Planted:
    net = w.net("cnn")
    kill(net[4], [11])
    with torch.no_grad():
        net[7].weight[:, 11] = 6 * net[7].weight.abs().amax((1, 2, 3)).reshape(-1, 1, 1)
    return w.fashion(net, "7", "outlier_weight")


@plant
def weak_clipped_range(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "12", "clipped_range")
    scale, zero = ranged(case, "12")
    return override(case, "12", activation={"fixed": (scale / 2.5, zero)})


@plant
def weak_wide_range(w: World) -> Planted:
    case = w.fashion(w.net("dw"), "6", "wide_range")
    scale, zero = ranged(case, "6")
    return override(case, "6", activation={"fixed": (scale * 5, zero)})


@plant
def weak_zero_point(w: World) -> Planted:
    case = w.fashion(w.net("cnn"), "7", "zero_point")
    sim = calibrated(case)
    sim.points["7"].set(float(sim.points["7"].scale), 90)
    return replace(case, sim=sim)


@plant
def weak_bits(w: World) -> Planted:
    return override(w.fashion(w.net("dw"), "15", "few_bits"), "15", weight={"bits": 5})


@plant
def weak_one_class(w: World) -> Planted:
    boots = w.train[w.train_labels == 9][:128]
    return w.fashion(w.net("cnn"), "calibration data", "one_class", calibration=boots, recipe=recipes.default())


@plant
def weak_scaled(w: World) -> Planted:
    unit = w.train[:128] * 0.3530 + 0.2860  # neither mean nor deviation taken out
    return w.fashion(w.net("dw"), "calibration data", "unlike_data", calibration=unit)


@plant
def weak_outlier_image(w: World) -> Planted:
    images = w.train[:128].clone()
    images[77] *= 4
    return w.fashion(w.net("dw"), "calibration data", "outlier_sample", calibration=images)


@plant
def weak_stale_batch_norm(w: World) -> Planted:
    net = w.net("dw")
    with torch.no_grad():
        net[13].running_var.mul_(3)
    return w.fashion(net, "12", "stale_batch_norm")


@plant
def bias_shift(w: World) -> Planted:
    """A constant is added before a layer and taken out behind it: the rounding of every weight adds up to a shift."""
    net = Chain(w.net("cnn"), 1)
    first, second = net.rotations
    first.bias = nn.Parameter(torch.full((32,), 30.0))
    second.bias = nn.Parameter(-second.weight.detach().flatten(1).sum(1) * 30)
    recipe = replace(MINMAX, bias_correction=False)
    return w.fashion(net.eval(), "rotations.1", "bias_shift", recipe=recipe)


@plant
def two_faults(w: World) -> Planted:
    """The larger of two has to come first."""
    case = override(w.fashion(w.net("dw"), "9", "few_bits"), "9", activation={"bits": 3})
    scale, zero = ranged(case, "21")
    return override(case, "21", activation={"fixed": (scale * 12, zero)})
