"""Modules of torch.ao, prepared and converted, replaced by modules of torch with marks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from intact8.errors import InputError
from intact8.migration.description import After, Description
from intact8.migration.grids import RANGES, ActivationGrid, Mark
from intact8.migration.layers import Weights, float_layer, folded
from intact8.migration.observers import (
    converted_grid,
    is_dynamic,
    is_float,
    observes,
    quantized_weight,
    refuse_wide,
    rows_on_grid,
    stored_by_torchao,
    torchao_weight,
    weight_grid,
    weight_observer,
)
from intact8.migration.torch_ao_recurrent import EMBEDDINGS, RECURRENT, Sequences

CONVERTED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
TRAINED = ("torch.ao.nn.qat", "torch.ao.nn.intrinsic.qat")
REFERENCE = ".quantized.reference"
FUSED = "torch.ao.nn.intrinsic"
LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
WATCHED = "activation_post_process"
RECURRENT_LAYERS = tuple(getattr(nn, name) for name in RECURRENT)


class Functional(nn.Module):
    """Additions, products and concatenations that were modules in torch.ao: FloatFunctional, QFunctional."""

    def __init__(self, mark: nn.Module | None) -> None:
        super().__init__()
        self.mark = mark

    def _marked(self, x: Tensor) -> Tensor:
        return x if self.mark is None else self.mark(x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + y."""
        return self._marked(x + y)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """Return max(x + y, 0)."""
        return self._marked(torch.relu(x + y))

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """Return x + y for a number y."""
        return x + y

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x·y."""
        return self._marked(x * y)

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """Return x·y for a number y."""
        return x * y

    def cat(self, x: list[Tensor], dim: int = 0) -> Tensor:
        """Return the tensors one behind the other."""
        return self._marked(torch.cat(x, dim=dim))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the matrix product."""
        return self._marked(torch.matmul(x, y))


class Refusing(nn.Module):
    """Stands where a tensor cannot be quantized; it raises when it is called."""

    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        """Raise the error."""
        raise self.error


class Reader:
    """Replaces modules, and enters what they say into a description.

    Args:
        described: where grids are entered.
        requantize: names or globs of layers whose weights may be quantized anew.

    Attributes:
        prepared: paths of modules of an FX graph that read what an observer watches.
        reference: whether an FX graph is of reference modules, which read floats that were integers.
    """

    def __init__(self, described: Description, requantize: Collection[str]) -> None:
        self.described, self.weights = described, Weights(described, requantize)
        self.sequences = Sequences(described, self.weights)
        self.prepared: set[str] = set()
        self.reference = False
        self._marks_of: dict[int, Mark | None] = {}

    def mark(self, observer: Any, name: str) -> Mark | None:
        """Return the mark of an observer, one for all its uses; None where the tensor stays float."""
        if id(observer) not in self._marks_of:
            refuse_wide(observer, name)
            grid = None if is_float(observer) else converted_grid(observer, name)
            self._marks_of[id(observer)] = None if grid is None else self.described.marks.make(grid)
        return self._marks_of[id(observer)]

    def replaced(self, path: str, m: Any) -> nn.Module | None:
        """Return what stands for a module, or None where it may stay.

        Raises:
            InputError: nothing can.
        """
        home, kind = type(m).__module__, type(m).__name__
        if stored_by_torchao(getattr(m, "weight", None)):
            return self._stored(path, m)
        if home.startswith(CONVERTED):
            return self._functional(path, m) if kind in ("FloatFunctional", "QFunctional") else self._converted(path, m)
        if hasattr(m, "weight_fake_quant"):
            return self._trained(path, m)
        if home.startswith("torch.ao.nn.quantizable") and kind == "LSTM":
            return self.sequences.static(path, m, self._functional_mark)
        if home.startswith(TRAINED) or (home.startswith("torch.ao.nn.quantizable") and kind != "MultiheadAttention"):
            raise unknown(path, m)
        return self._observed(path, m)

    def _stored(self, path: str, m: Any) -> nn.Module:
        """Return the float layer of one whose weight torchao's ``quantize_`` has replaced."""
        if type(m) is not nn.Linear:
            raise unknown(path, m)
        grid, mode = torchao_weight(m.weight, path)
        getattr(self.described, mode).add(path)
        return self._layer(path, m, grid, m.bias)

    def _functional(self, path: str, m: Any) -> nn.Module:
        try:
            return Functional(self._functional_mark(path, m))
        except InputError as error:  # blocks that add nothing have one, too: it matters where it is called
            return Functional(Refusing(error))

    def _functional_mark(self, path: str, m: Any) -> Mark | None:
        watched = getattr(m, WATCHED, None)
        if observes(watched):
            return self.mark(watched, path)
        converted = hasattr(m, "scale") and hasattr(m, "zero_point")
        return self._grid_mark(path, m) if converted else None

    # --- prepared ------------------------------------------------------------------------------------------------
    def _observed(self, path: str, m: Any) -> nn.Module | None:
        """Return a module of post-training quantization without its observer; a mark stands behind it."""
        watched = getattr(m, WATCHED, None)
        layer, activation = _parts(m)
        made: nn.Module | None = None
        qconfig = getattr(m, "qconfig", None) or getattr(layer, "qconfig", None)
        if qconfig is not None and type(m) in RECURRENT_LAYERS:
            return self.sequences.prepared(path, m, qconfig)
        if qconfig is not None and type(m) in (nn.Embedding, nn.EmbeddingBag) and "float_qparams" in _scheme(qconfig):
            return self.sequences.embedding(path, m, rows_on_grid(m.weight, weight_observer(qconfig, m.weight), path))
        if layer is not None and qconfig is not None and (observes(watched) or path in self.prepared):
            made = self._weighted(path, layer, qconfig)
            if activation is not None:
                made.register_forward_hook(After(activation))
        if not observes(watched):
            return made
        if made is None:
            made = m
            for hooks in (m._forward_hooks, m._forward_pre_hooks):
                for key in [k for k, hook in hooks.items() if "observer" in getattr(hook, "__name__", "")]:
                    del hooks[key]
            delattr(m, WATCHED)
        mark = self.mark(watched, path)
        if mark is not None:
            made.register_forward_hook(After(mark))
        return made

    def _weighted(self, path: str, layer: Any, qconfig: Any) -> nn.Module:
        """Return a float layer with the weight that conversion would give it."""
        if is_float(qconfig.weight()):
            self.described.notes.append(f"{path}: its weight stays float, as its qconfig says")
            return float_layer(layer, layer.weight.detach(), layer.bias)
        grid = weight_grid(layer.weight, weight_observer(qconfig, layer.weight), path)
        if is_dynamic(qconfig.activation()):
            self.described.dynamic.add(path)
        return self._layer(path, layer, grid, layer.bias)

    def _layer(self, path: str, like: Any, grid: Any, bias: Tensor | None) -> nn.Module:
        values = self.weights.enter(f"{path}.weight", grid, bool(getattr(like, "transposed", False)))
        return float_layer(like, values, bias)

    def _trained(self, path: str, m: Any) -> nn.Module:
        """Return the float layer of a module that trains with a fake-quantized weight."""
        if "Embedding" in type(m).__name__:
            return self.sequences.embedding(path, m, rows_on_grid(m.weight, m.weight_fake_quant, path))
        weight, bias = folded(m)
        made = self._layer(path, m, weight_grid(weight, m.weight_fake_quant, path), bias)
        if "ReLU" in type(m).__name__:
            made.register_forward_hook(After(nn.ReLU()))
        watched = getattr(m, WATCHED, None)
        mark = self.mark(watched, path) if observes(watched) else None
        if mark is not None:
            made.register_forward_hook(After(mark))
        return made

    # --- converted -----------------------------------------------------------------------------------------------
    def _grid_mark(self, path: str, m: Any, dtype: str = "uint8") -> Mark:
        grid = ActivationGrid(path, float(m.scale), int(m.zero_point), *RANGES[dtype], dtype)
        return self.described.marks.make(grid)

    def _converted(self, path: str, m: Any) -> nn.Module | None:
        """Return the float module of a converted one, with a mark behind it; None where its parts are replaced."""
        kind, dynamic = type(m).__name__, ".dynamic" in type(m).__module__
        if kind in RECURRENT and dynamic:
            return self.sequences.converted(path, m)
        if kind == "LSTM":
            return self.sequences.static(path, m, self._functional_mark)
        if kind in EMBEDDINGS:
            return self.sequences.embedding(path, m, m.weight().dequantize())
        if kind == "MultiheadAttention":
            m.__class__ = type(m).__base__  # the quantizable one, whose parts are replaced next
            return None
        if REFERENCE in type(m).__module__:
            return self._layer(path, m, quantized_weight(m.get_quantized_weight(), path), m.bias)
        if kind == "Quantize":
            made: nn.Module = nn.Identity()
            made.register_forward_hook(After(self._grid_mark(path, m, _qdtype(path, m.dtype))))
            return made
        if kind == "DeQuantize":
            made = nn.Identity()
            made.register_forward_hook(After(self.described.marks.make(None)))
            return made
        if kind.startswith(("Conv", "Linear")) and kind not in ("LinearTanh", "ConvAdd2d", "ConvAddReLU2d"):
            made = self._layer(path, m, quantized_weight(m.weight(), path), m.bias())
            if "LeakyReLU" in kind:
                made.register_forward_hook(After(nn.LeakyReLU(m.negative_slope)))
            elif "ReLU" in kind:
                made.register_forward_hook(After(nn.ReLU()))
            if dynamic:
                self.described.dynamic.add(path)
                return made
        elif kind in BUILDERS and not dynamic:
            made = BUILDERS[kind](m)
        else:
            raise unknown(path, m)
        if kind in KEEPS_GRID:
            return made.eval()
        made.register_forward_hook(After(self._grid_mark(path, m)))
        return made.eval()


def packed_layer(path: str, packed: Any, weights: Weights) -> nn.Module:
    """Return the float layer of packed parameters, as torch's operators for integers take them."""
    weight, bias = packed.unpack() if hasattr(packed, "unpack") else torch.ops.quantized.linear_unpack(packed)
    names = ("stride", "padding", "dilation", "output_padding")
    if hasattr(packed, "stride"):
        sizes: dict[str, Any] = {name: tuple(getattr(packed, name)()) for name in names}
        sizes |= {"groups": packed.groups(), "transposed": bool(packed.transpose())}
        outer, inner = weight.shape[:2]
        kernel = tuple(weight.shape[2:])
        groups = sizes["groups"]
        like = SimpleNamespace(
            kernel_size=kernel,
            in_channels=outer if sizes["transposed"] else inner * groups,
            out_channels=inner * groups if sizes["transposed"] else outer,
            **sizes,
        )
    else:
        like = SimpleNamespace(transposed=False)
    values = weights.enter(f"{path}.weight", quantized_weight(weight, path), like.transposed)
    return float_layer(like, values, bias)


def _scheme(qconfig: Any) -> str:
    return str(getattr(qconfig.weight(), "qscheme", ""))


def _qdtype(path: str, dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.q").removeprefix("torch.")
    if name not in RANGES:
        raise InputError(f"an activation of {name}", where=path, why="programs hold activations in 8 bits")
    return name


def unknown(path: str, m: Any) -> InputError:
    """Return the error for a module that has no counterpart here."""
    where = f"{path or 'the model itself'} ({type(m).__module__}.{type(m).__name__})"
    remedy = "put its float module in its place, or quantize the float model with intact8.quantize"
    return InputError("no reader knows this module", where=where, remedy=remedy)


def _parts(m: Any) -> tuple[Any, nn.Module | None]:
    """Return the layer with a weight in a module, alone or fused, and the activation fused to it."""
    if isinstance(m, LAYERS):
        return m, None
    if type(m).__module__.startswith(FUSED):
        children = [c for c in m.children() if not observes(c)]
        if children and isinstance(children[0], LAYERS) and len(children) <= 2 and not hasattr(m, "add"):
            rest = children[1:]
            if not rest or not isinstance(rest[0], nn.modules.batchnorm._BatchNorm):
                return children[0], rest[0] if rest else None
    return None, None


def _norm(m: Any) -> nn.Module:
    made = nn.BatchNorm2d(m.num_features, m.eps) if "2d" in type(m).__name__ else nn.BatchNorm3d(m.num_features, m.eps)
    made.load_state_dict({k: v for k, v in m.state_dict().items() if k in made.state_dict()}, strict=False)
    return made


def _norm_relu(m: Any) -> nn.Module:
    made = _norm(m)
    made.register_forward_hook(After(nn.ReLU()))
    return made


def _copied(kind: type[nn.Module], *names: str) -> Callable[[Any], nn.Module]:
    """Return what builds a float module from attributes of the converted one, with its parameters."""

    def build(m: Any) -> nn.Module:
        made = kind(*(getattr(m, name) for name in names))
        for name in ("weight", "bias"):
            value = getattr(m, name, None)
            if isinstance(value, Tensor):
                made.register_parameter(name, nn.Parameter(value.detach().dequantize()))
        return made

    return build


BUILDERS: dict[str, Callable[[Any], nn.Module]] = {
    "BatchNorm2d": _norm,
    "BatchNorm3d": _norm,
    "BNReLU2d": _norm_relu,
    "BNReLU3d": _norm_relu,
    "Hardswish": _copied(nn.Hardswish),
    "ELU": _copied(nn.ELU, "alpha"),
    "LeakyReLU": _copied(nn.LeakyReLU, "negative_slope"),
    "Sigmoid": _copied(nn.Sigmoid),
    "ReLU6": _copied(nn.ReLU6),
    "Dropout": _copied(nn.Dropout, "p"),
    "LayerNorm": _copied(nn.LayerNorm, "normalized_shape", "eps"),
    "GroupNorm": _copied(nn.GroupNorm, "num_groups", "num_channels", "eps"),
    "InstanceNorm1d": _copied(nn.InstanceNorm1d, "num_features", "eps"),
    "InstanceNorm2d": _copied(nn.InstanceNorm2d, "num_features", "eps"),
    "InstanceNorm3d": _copied(nn.InstanceNorm3d, "num_features", "eps"),
    "PReLU": _copied(nn.PReLU, "num_parameters"),
    "Softmax": _copied(nn.Softmax, "dim"),
}
"""Class of a converted module → what builds the float one."""

KEEPS_GRID = frozenset({"ReLU6", "Dropout"})
"""Converted modules whose result has the grid of what they read."""
