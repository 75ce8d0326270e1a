"""Random programs of every kind of operation, well typed or with types confused."""

from __future__ import annotations

from typing import Any

import numpy as np

from intact8.errors import ProgramError
from intact8.opset import KINDS, output_dtypes, output_shape
from intact8.opset.op import Op, Tensor
from intact8.opset.types import PLAIN, QUANTIZED
from intact8.opset.violation import Violation
from intact8.program.golden import Golden
from intact8.program.program import Program

from .shapes import BUILDERS, RANKS, Shape, Source, anything, known

NAMES = tuple(KINDS)
LARGEST = 1 << 15
"""Elements of a tensor."""


class Draft:
    """A program in the making.

    Args:
        s: random numbers.
        confusion: how often an operand or a result gets another type than the kind declares.
    """

    def __init__(self, s: Source, confusion: float) -> None:
        self.s, self.confusion = s, confusion
        self.batch = None if s.chance(0.8) else s.pick(1, 2)
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.ops: list[Op] = []

    def name(self) -> str:
        """Also such as engines and exporters make up for themselves."""
        taken = [op.name for op in self.ops[-3:]] + self.inputs[-2:]
        options = [f"t{len(self.tensors)}"] * 8
        if len(taken) > 1:
            options += [" + ".join(taken[-2:]), f"{taken[-1]}/Cast", f"{taken[-1]}.part0", f"{taken[-1]} (2)", "batch"]
        name = str(self.s.pick(*options))
        return name if name not in self.tensors else f"t{len(self.tensors)}"

    def tensor(self, kind: str, shape: Shape, like: Tensor | None = None) -> Tensor:
        """A description; quantized like another tensor where one is given."""
        name = self.name()
        if kind != QUANTIZED:
            return Tensor(name, kind, shape)
        if like is not None and like.quantized:
            return Tensor(name, "uint8", shape, like.scale, like.zero_point)
        scale = float(np.float32(self.s.pick(0.05, 0.5, 1.0, 0.001)))
        return Tensor(name, "uint8", shape, scale, self.s.pick(0, 128, 255, self.s.whole(0, 255)))

    def input(self, kind: str, shape: Shape, like: Tensor | None = None) -> str:
        """A new input, or one of other memory: permuted, cut, expanded."""
        s = self.s
        if len(shape) >= 2 and s.chance(0.2) and None not in shape[1:]:
            order = [0, *(1 + int(d) for d in s.rng.permutation(len(shape) - 1))]
            turned = tuple(shape[d] for d in order)
            source = self.input(kind, turned, like)
            return self.move("permute", source, shape, {"dims": [order.index(d) for d in range(len(shape))]})
        if len(shape) >= 2 and s.chance(0.15) and isinstance(shape[-1], int):
            wide = (*shape[:-1], shape[-1] + s.whole(1, 3))
            source = self.input(kind, wide, like)
            at = {"axis": len(shape) - 1, "start": wide[-1] - shape[-1], "end": wide[-1], "step": 1}
            return self.move("slice", source, shape, at)
        if len(shape) >= 2 and s.chance(0.05) and isinstance(shape[-1], int):
            source = self.input(kind, (*shape[:-1], 1), like)
            return self.move("expand", source, shape, {"shape": [-1 if d is None else d for d in shape]})
        t = self.tensor(kind, shape, like)
        self.tensors[t.name] = t
        self.inputs.append(t.name)
        return t.name

    def move(self, kind: str, source: str, shape: Shape, attrs: dict[str, Any]) -> str:
        t, x = self.tensor("float32", shape), self.tensors[source]
        self.tensors[t.name] = Tensor(t.name, x.dtype, shape, x.scale, x.zero_point)
        self.ops.append(Op(t.name, kind, (source,), attrs))
        return t.name

    def operand(self, kind: str, shape: Shape, like: Tensor | None = None) -> str:
        """Something of that type and shape."""
        wanted = "uint8" if kind == QUANTIZED else kind
        for name, t in self.tensors.items():
            same = (t.dtype, t.quantized, t.shape) == (wanted, kind == QUANTIZED, shape)
            if (
                same
                and self.s.chance(0.3)
                and (like is None or (t.scale, t.zero_point) == (like.scale, like.zero_point))
            ):
                return name
        return self.input(kind, shape, like)

    def extend(self, kind: str) -> None:
        """One more operation.

        Raises:
            Violation: what was drawn fits nothing.
        """
        s, entry = self.s, KINDS[kind]
        signature = s.pick(*entry.types)
        types = [str(s.pick(*sorted(allowed))) for allowed in signature.of(1 if signature.operands else 0)]
        builder = BUILDERS.get(kind, anything)
        first = self._first(kind, types)
        shape = self.tensors[first].shape if first else self._shape(kind)
        others, attrs, arrays = builder(s, kind, shape)
        if "dtype" in attrs or "dtype" in entry.attrs:
            attrs["dtype"] = signature.result or "float32"
        if first:
            fitting = [g for g in entry.types if not any(check(attrs.get(n)) for n, check in g.when.items())]
            signature = s.pick(*(fitting or entry.types))
            types = [str(s.pick(*sorted(allowed))) for allowed in signature.of(len(others) + 1)]
            types[0] = _type(self.tensors[first])
        inputs = [first] if first else []
        for i, other in enumerate(others):
            t = types[0] if not signature.result else types[i + 1]
            t = s.pick(*PLAIN, QUANTIZED) if s.chance(self.confusion) else t
            inputs.append(self.operand(t, other, self.tensors[first] if not signature.result else None))
        self._finish(Op(self.name(), kind, tuple(inputs), attrs, arrays))

    def _finish(self, op: Op) -> None:
        metas = [self.tensors[n] for n in op.inputs]
        declared: Shape = metas[0].shape if metas else ()
        if op.kind == "expand":
            declared = tuple(None if d == -1 else d for d in op.attrs["shape"])
        products = op.kind in ("conv", "linear")
        shape = output_shape(op, metas[:1] if products else metas, declared)
        if np.prod(known(shape)) > LARGEST:
            raise Violation("large")
        results = [str(op.arrays["value"].dtype)] if op.kind == "constant" else output_dtypes(op, metas)
        if not results or self.s.chance(self.confusion):
            results = [*PLAIN, QUANTIZED]
        shared = metas and (KINDS[op.kind].moves or KINDS[op.kind].shares_grid)
        t = self.tensor(self.s.pick(*results), shape, metas[0] if shared else None)
        self.ops.append(Op(t.name, op.kind, op.inputs, op.attrs, op.arrays))
        self.tensors[t.name] = t

    def _first(self, kind: str, types: list[str]) -> str:
        s = self.s
        if not types:
            return ""
        wanted = s.pick(*PLAIN, QUANTIZED) if s.chance(self.confusion) else types[0]
        ranks = RANKS.get(BUILDERS.get(kind, anything), (1, 2, 3, 4))
        fitting = [n for n, t in self.tensors.items() if _type(t) == wanted and len(t.shape) in ranks]
        if fitting and s.chance(0.75):
            return fitting[-1] if s.chance(0.7) else str(s.pick(*fitting))
        return self.operand(wanted, self._shape(kind))

    def _shape(self, kind: str) -> Shape:
        builder = BUILDERS.get(kind, anything)
        rank = self.s.pick(*RANKS.get(builder, (1, 2, 3, 4)))
        sizes = self.s.sizes(rank - 1, {1: 33, 2: 33, 3: 9, 4: 9, 5: 4}[rank])
        return (sizes[0], self.batch, *sizes[1:]) if rank == 3 and kind.split(".")[-1] in ("lstm", "gru", "rnn") else (
            self.batch, *sizes
        )  # fmt: skip

    def program(self) -> Program:
        """What has been made; the last tensor is an output, and sometimes others are."""
        names = [op.name for op in self.ops]
        more = [n for n in names[:-1] if self.s.chance(0.15)]
        golden = Golden(omitted="fuzz")
        used = {n for op in self.ops for n in op.inputs}
        inputs = [n for n in self.inputs if n in used]
        tensors = {n: self.tensors[n] for n in (*inputs, *names)}
        return Program(
            tensors, tuple(self.ops), tuple(inputs), (names[-1], *more), list_of(len(more) + 1), golden=golden
        )


def list_of(count: int) -> dict[str, Any]:
    return {"list": list(range(count))}


def _type(t: Tensor) -> str:
    return QUANTIZED if t.quantized else t.dtype


def make(seed: int, index: int, kinds: tuple[str, ...] = NAMES) -> tuple[Program, str] | None:
    """A program of one to four operations and the kind it begins with; None where nothing fits."""
    s = Source((seed, index))
    draft = Draft(s, s.pick(0.0, 0.0, 0.0, 0.25))
    wanted = kinds[index % len(kinds)]
    for step in range(s.pick(1, 1, 2, 3, 4)):
        for _ in range(6 if step == 0 else 2):
            tensors, inputs, ops = dict(draft.tensors), list(draft.inputs), list(draft.ops)
            try:
                draft.extend(wanted if step == 0 else s.pick(*NAMES))
                break
            except (Violation, ProgramError, ValueError):
                draft.tensors, draft.inputs, draft.ops = tensors, inputs, ops
    return (draft.program(), wanted) if draft.ops else None


def inputs_of(program: Program, index: int, batch: int) -> dict[str, Any]:
    """Values of all inputs: ordinary ones, extremes, indices beyond tables."""
    rng, out = np.random.default_rng((index, batch)), {}
    odd = rng.random() < 0.15
    for name in program.inputs:
        t = program.tensors[name]
        shape = [batch if d is None else d for d in t.shape]
        if t.dtype == "float32":
            x = (rng.standard_normal(shape) * rng.choice([0.5, 1.0, 40.0])).astype(np.float32)
            if odd and x.size:
                x.reshape(-1)[0] = rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-40])
        elif t.dtype == "int64":
            x = rng.integers(0, 3, shape)
            if odd and x.size:
                x.reshape(-1)[0] = rng.choice([-1, 40, 1 << 40, -(1 << 62)])
        elif t.dtype == "bool":
            x = rng.integers(0, 2, shape).astype(np.bool_)
        else:
            x = rng.integers(0, 256, shape).astype(np.uint8)
        out[name] = np.asarray(x)
    return out


__all__ = ["NAMES", "inputs_of", "make"]
