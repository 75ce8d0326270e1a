"""Random small integer networks with certified multipliers, and the exact integers of each of their tensors.

What an engine's compiler fuses, drops or reorders shows only where ops stand beside each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic import integer, windows
from intact8.arithmetic.resize import denominators, resize_linear
from intact8.arithmetic.tie_free import best_ratios, error_bound, largest_denominator, ratios_above
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

Array = npt.NDArray[Any]

SCALE = 0.0625


@dataclass
class Network:
    """A network in the making; ``exact`` holds the integers of every tensor."""

    rng: np.random.Generator
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    exact: dict[str, Array] = field(default_factory=dict)

    def program(self, outputs: tuple[str, ...]) -> Program:
        structure = {"list": list(range(len(outputs)))} if len(outputs) > 1 else 0
        return Program(dict(self.tensors), tuple(self.ops), ("x",), outputs, structure)

    def start(self, shape: tuple[int, ...]) -> str:
        x = self.rng.integers(0, 256, shape, dtype=np.uint8)
        return self._keep("x", x, int(self.rng.choice([0, 128, 255, 77])))

    def _keep(self, name: str, value: Array, z: int, scale: float = SCALE) -> str:
        self.tensors[name] = Tensor(name, "uint8", (None, *value.shape[1:]), scale, z)
        self.exact[name] = value
        return name

    def _op(self, op: Op, value: Array, z: int, scale: float = SCALE) -> str:
        self.ops.append(op)
        return self._keep(op.name, value, z, scale)

    def _name(self, kind: str) -> str:
        return f"{kind}.{len(self.ops)}"

    def z(self, name: str) -> int:
        return int(self.tensors[name].zero_point or 0)

    def _clamp(self) -> tuple[int, int, int]:
        """z, lo, hi: nothing, relu, relu6-like, or any ends."""
        kind = self.rng.integers(0, 4)
        z = int(self.rng.choice([0, 0, 30, 100] if kind in (1, 2) else [0, 128, 100, 200]))
        if kind == 0:
            return z, 0, 255
        if kind == 1:
            return z, z, 255
        if kind == 2:
            return z, z, int(self.rng.integers(z + 60, 256))
        return z, int(self.rng.integers(0, 60)), int(self.rng.integers(160, 256))

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        residual: str = "",
        leaky: bool = False,
        padding: int | None = None,
    ) -> str:
        rng, q = self.rng, self.exact[x]
        w = rng.integers(-63, 64, (outputs, q.shape[1] // groups, kernel, kernel), dtype=np.int8)
        pads, one = [kernel // 2 if padding is None else padding] * 2, [1, 1]
        acc = integer.conv_accumulate(q, self.z(x), w, None, [stride] * 2, pads, one, groups)
        spread = max(1, int(np.abs(acc).max()))
        bias = rng.integers(-spread // 4, spread // 4 + 1, outputs).astype(np.int32)
        acc = acc + bias.reshape(1, -1, 1, 1)
        m = rng.uniform(60, 250) / spread * np.exp(rng.normal(0, 0.3, outputs))
        z, lo, hi = self._clamp()
        arrays: dict[str, Array] = {"weight": w, "bias": bias}
        attrs: dict[str, Any] = {
            "stride": [stride] * 2, "padding": pads, "dilation": one, "output_padding": [0, 0], "groups": groups,
            "transposed": False, "lo": lo, "hi": hi, "residual_a": 0,
        }  # fmt: skip
        extra: dict[str, Any] = {}
        if residual:
            r = float(rng.uniform(0.3, 1.2))
            b_max = int(np.min(largest_denominator("affine", np.abs(bias) * m * 1.5 + 1, 255 * r + 1)))
            a, b = np.maximum(1, np.rint(m * b_max)).astype(np.int64), np.full(outputs, b_max, np.int64)
            attrs["residual_a"] = max(1, int(r * b_max))
            extra = {
                "residual": self.exact[residual].astype(np.int64) - self.z(residual), "residual_a": attrs["residual_a"],
            }  # fmt: skip
        else:
            form = "leaky" if leaky else "affine"
            a, b = ratios_above(m, largest_denominator(form, np.abs(bias) * m * 1.5 + 1))
            if leaky:
                below = ratios_above(m * rng.uniform(0.02, 0.5), largest_denominator(form, np.abs(bias) * m * 1.5 + 1))
                extra = {"a_neg": below[0], "b_neg": below[1]}
                arrays |= {k: v.astype(np.int32) for k, v in extra.items()}
        arrays |= {"a": a.astype(np.int32), "b": b.astype(np.int32)}
        y = integer.requantize(acc, a, b, z, lo, hi, 1, **extra)
        return self._op(Op(self._name("conv"), "conv", (x, residual) if residual else (x,), attrs, arrays), y, z)

    def add(self, x: str, y: str) -> str:
        rng = self.rng
        ratios = [float(v) for v in rng.uniform(0.3, 1.3, 2) * rng.choice([1, 1, 1, -1], 2)]
        b_max = int(largest_denominator("sum", 0.0, 255 * sum(map(abs, ratios)) * 1.05 + 8))
        a, b = best_ratios(ratios, b_max)
        assert error_bound("sum", 0.0, 255 * sum(map(abs, a)) / b) < 1 / (2 * b)
        z, lo, hi = self._clamp()
        value = integer.add([self.exact[x], self.exact[y]], [self.z(x), self.z(y)], a, b, z, lo, hi)
        return self._op(Op(self._name("add"), "add", (x, y), {"a": a, "b": b, "lo": lo, "hi": hi}), value, z)

    def mul(self, x: str, y: str) -> str:
        z, lo, hi = self._clamp()
        product = (self.exact[x].astype(np.int64) - self.z(x)) * (self.exact[y].astype(np.int64) - self.z(y))
        a, b = self._ratio(product)
        value = integer.requantize(product, a, b, z, lo, hi)
        return self._op(Op(self._name("mul"), "mul", (x, y), {"a": a, "b": b, "lo": lo, "hi": hi}), value, z)

    def mean(self, x: str) -> str:
        z, lo, hi = self._clamp()
        q = self.exact[x]
        acc = q.astype(np.int64).sum((2, 3), keepdims=True) - self.z(x) * q.shape[2] * q.shape[3]
        a, b = self._ratio(acc)
        attrs = {"dims": [2, 3], "keepdim": True, "a": a, "b": b, "lo": lo, "hi": hi}
        return self._op(Op(self._name("mean"), "mean", (x,), attrs), integer.requantize(acc, a, b, z, lo, hi), z)

    def _ratio(self, acc: Array) -> tuple[int, int]:
        m = np.array([self.rng.uniform(60, 200) / max(1, int(np.abs(acc).max()))])
        a, b = ratios_above(m, np.array([largest_denominator("scaled")]))
        return int(a[0]), int(b[0])

    def _move(self, kind: str, inputs: tuple[str, ...], attrs: dict[str, Any], value: Array) -> str:
        t = self.tensors[inputs[0]]
        return self._op(Op(self._name(kind), kind, inputs, attrs), value, self.z(inputs[0]), float(t.scale or 1))

    def max_pool(self, x: str) -> str:
        attrs = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
        value = windows.max_pool(self.exact[x], [3, 3], [1, 1], [1, 1], [1, 1], False)
        return self._move("max_pool", (x,), attrs, value)

    def avg_pool(self, x: str) -> str:
        include, q = bool(self.rng.random() < 0.5), self.exact[x]
        edges, n = windows.pool_windows(q.shape[2:], [3, 3], [1, 1], [1, 1], False, include)
        sizes = np.unique(n)
        gain = float(self.rng.uniform(0.7, 1.5))
        a, b = ratios_above(gain / sizes, np.full(len(sizes), largest_denominator("scaled")))
        z, lo, hi = self._clamp()
        rows = [[int(v) for v in row] for row in zip(sizes, a, b, strict=True)]
        attrs = {
            "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "ceil_mode": False, "count_include_pad": include,
            "multipliers": rows, "lo": lo, "hi": hi,
        }  # fmt: skip
        value = windows.average(q, self.z(x), edges, n, rows, z, lo, hi)
        return self._op(Op(self._name("avg_pool"), "avg_pool", (x,), attrs), value, z)

    def resize(self, x: str) -> str:
        q, corners = self.exact[x], bool(self.rng.random() < 0.5)
        size = [int(v) for v in self.rng.integers(2, 15, 2)]
        chosen = denominators(q.shape[2:], size, corners)
        attrs = {"size": size, "align_corners": corners, "denominators": chosen}
        return self._move("resize_linear", (x,), attrs, resize_linear(q, size, corners, chosen))

    def table(self, x: str, fn: str = "") -> str:
        """hardswish or silu of the integers' real values, or anything."""
        fn = fn or str(self.rng.choice(["hardswish", "silu", "sigmoid", "random"]))
        z, scale = (0, 1 / 256) if fn == "sigmoid" else (20, SCALE)
        v = (np.arange(256) - self.z(x)) * float(self.tensors[x].scale or 1)
        real = {
            "hardswish": v * np.clip(v + 3, 0, 6) / 6, "silu": v / (1 + np.exp(-v)), "sigmoid": 1 / (1 + np.exp(-v)),
        }.get(fn)  # fmt: skip
        entries = self.rng.permutation(256) if real is None else np.clip(np.rint(real / scale) + z, 0, 255)
        table = entries.astype(np.uint8)
        return self._op(
            Op(self._name("table"), "table", (x,), {"fn": fn}, {"table": table}), table[self.exact[x]], z, scale
        )

    def cat(self, x: str) -> str:
        back = self._move("roll", (x,), {"shifts": [1], "dims": [1]}, np.roll(self.exact[x], 1, 1))
        return self._move("cat", (x, back), {"axis": 1}, np.concatenate([self.exact[x], self.exact[back]], 1))

    def cut(self, x: str) -> str:
        half = self.exact[x].shape[1] // 2
        return self._move("slice", (x,), {"axis": 1, "start": 0, "end": half, "step": 1}, self.exact[x][:, :half])


def draw(seed: int, steps: int = 8) -> tuple[Program, Array, list[Array]]:
    """A program, its input and the exact outputs: the last tensor, and with some luck one in the middle."""
    rng = np.random.default_rng(seed)
    net = Network(rng)
    channels = int(rng.choice([8, 16, 24]))
    size = int(rng.integers(4, 12))
    net.start((int(rng.integers(1, 3)), channels, size, size))
    last = net.conv("x", channels, 3)
    for _ in range(steps):
        last = _step(net, last)
    outputs = [last]
    middle = str(rng.choice([op.name for op in net.ops]))
    if rng.random() < 0.3 and middle != last:
        outputs.append(middle)
    return net.program(tuple(outputs)), net.exact["x"], [net.exact[name] for name in outputs]


def _step(net: Network, x: str) -> str:
    rng, shape = net.rng, net.exact[x].shape
    channels = shape[1]
    same = [n for n, v in net.exact.items() if v.shape == shape and n != x]
    other = str(rng.choice(same)) if same else x
    kind = str(rng.choice(list(STEPS)))
    return STEPS[kind](net, x, other, channels)


def _block(net: Network, x: str, other: str, channels: int) -> str:
    """A residual block: the shortcut is x itself, or a projection of it."""
    inner = net.conv(x, channels, 3, groups=channels if net.rng.random() < 0.3 else 1)
    inner = net.conv(inner, channels, int(net.rng.choice([1, 3])))
    short = net.conv(x, channels, 1) if net.rng.random() < 0.4 else x
    return net.add(inner, short) if net.rng.random() < 0.5 else net.add(short, inner)


def _gate(net: Network, x: str, other: str, channels: int) -> str:
    """Squeeze and excitation."""
    s = net.conv(net.mean(x), channels, 1)
    return net.mul(x, net.table(s, "sigmoid") if net.rng.random() < 0.7 else s)


STEPS: dict[str, Any] = {
    "conv": lambda n, x, o, c: n.conv(x, c, int(n.rng.choice([1, 3])), groups=c if n.rng.random() < 0.4 else 1),
    "leaky": lambda n, x, o, c: n.conv(x, c, 3, leaky=True),
    "fused": lambda n, x, o, c: n.conv(x, c, int(n.rng.choice([1, 3])), residual=o),
    "block": _block,
    "add": lambda n, x, o, c: n.add(x, o),
    "mul": lambda n, x, o, c: n.mul(x, o),
    "gate": _gate,
    "max_pool": lambda n, x, o, c: n.max_pool(x),
    "avg_pool": lambda n, x, o, c: n.avg_pool(x),
    "activation": lambda n, x, o, c: n.table(n.conv(x, c, 3)),
    "table": lambda n, x, o, c: n.table(x),
    "resize": lambda n, x, o, c: n.resize(x),
    "cat": lambda n, x, o, c: n.conv(n.cat(x), c, 1),
    "cut": lambda n, x, o, c: n.conv(n.cut(x), c, 3) if c > 1 else n.conv(x, c, 3),
}
"""What a network is made of: network, last tensor, another of its shape, channels → new last tensor."""


def of_floats(program: Program, scale: float, *, lo: int, hi: int) -> Program:
    """``program``, of one input x, behind a quantization q of floats."""
    given = program.tensors["x"]
    tensors = {"x": replace(given, dtype="float32", scale=None, zero_point=None)}
    tensors |= {"q": replace(given, name="q", scale=scale)} | {n: t for n, t in program.tensors.items() if n != "x"}
    ops = [Op("q", "quantize", ("x",), {"lo": lo, "hi": hi})]
    ops += [replace(op, inputs=tuple("q" if n == "x" else n for n in op.inputs)) for op in program.ops]
    return replace(program, tensors=tensors, ops=tuple(ops))
