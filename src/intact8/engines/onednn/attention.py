"""Float attention as one compiled kernel, so that scores are never in memory as a whole.

softmax(q·kᵀ + mask)·v is several operations of the program. Float results differ in their last bits from those of the
separate calls, as float islands may. The kernel takes half the time of torch's one call, which besides gives zeros
where every key is masked (measured for 12 heads of 32 and 64, 128 to 2048 positions); without it, calls stay separate.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from intact8.opset.op import Op
from intact8.program.program import Program

from . import torch_native
from .lowering import OpContext, Step


@dataclass(frozen=True)
class AttentionChain:
    """One attention.

    Attributes:
        op: what takes the place of all: named after the last product, reads q, kᵀ, v and the mask, if there is one.
        inner: names of the operations before the last product.
        end: position of the last product among the program's operations.
    """

    op: Op
    inner: frozenset[str]
    end: int


def attention_chains(program: Program) -> dict[str, AttentionChain]:
    """Return the attentions of a program by the name of their first product; none where they are not compiled."""
    if _compiled() is None:
        return {}
    users: dict[str, list[tuple[int, Op]]] = {}
    for i, op in enumerate(program.ops):
        for name in op.inputs:
            users.setdefault(name, []).append((i, op))

    def reader(name: str) -> tuple[int, Op] | None:
        """Return the only operation that reads a tensor, if there is one."""
        found = users.get(name, [])
        return found[0] if len(found) == 1 and name not in program.outputs else None

    out = {}
    for op in program.ops:
        if op.kind != "float.matmul" or len(program.tensors[op.name].shape) != 4:
            continue
        if program.tensors[op.inputs[0]].shape[:2] != program.tensors[op.inputs[1]].shape[:2]:
            continue
        inner, mask, step = [op.name], tuple[str, ...](), reader(op.name)
        if step is not None and step[1].kind == "float.add" and step[1].inputs[:-1] == (inner[-1],):
            inner.append(step[1].name)
            mask, step = step[1].inputs[1:], reader(step[1].name)
        if step is None or step[1].kind != "float.softmax" or step[1].attrs["axis"] not in (-1, 3):
            continue
        if program.tensors[inner[-1]].shape != program.tensors[op.name].shape:
            continue  # a mask with more heads or samples than the scores
        inner.append(step[1].name)
        alone = len(step[1].inputs) == 1 and all(program.tensors[m].dtype == "float32" for m in mask)
        step = reader(step[1].name)
        if step is None or not alone or step[1].kind != "float.matmul" or step[1].inputs[0] != inner[-1]:
            continue
        end, last = step
        q, v = (program.tensors[n].shape for n in (op.inputs[0], last.inputs[1]))
        if (*q[:2], q[3]) != (*v[:2], v[3]):
            continue  # heads that share their values, or are of another width
        reads = (*op.inputs, last.inputs[1], *mask)
        out[op.name] = AttentionChain(
            Op(last.name, "float.attention", reads, module=last.module), frozenset(inner), end
        )
    return out


def _compiled() -> ModuleType | None:
    library = torch_native.load()
    return library if library is not None and library.can_attend() else None


def lower_attention(ctx: OpContext) -> Step:
    """Lower softmax(q·kᵀ + mask)·v of (N, heads, rows, width) tensors."""
    library = _compiled()
    assert library is not None  # otherwise there are no chains
    one_pass = library.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = _rows(q), _rows(k.mT), _rows(v)
        samples, heads, queries, width = q.shape
        keys = k.shape[2]
        # Rows of all heads of a position lie side by side, since the next operation joins the heads.
        y = torch.empty(samples, queries, heads, width, dtype=torch.float32).transpose(1, 2)
        added, room, strides = 0, 0, tuple[int, ...]((0, 0, 0))
        if mask is not None:
            mask = _rows(mask.expand(samples, heads, queries, keys))
            added, room, strides = mask.data_ptr(), torch_native.reach(mask, torch.float32), mask.stride()[:3]
        one_pass(
            *(q.data_ptr(), k.data_ptr(), v.data_ptr(), added, y.data_ptr(), samples, heads, queries, keys, width),
            *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *strides, *y.stride()[:3]),
            *(*(torch_native.reach(x, torch.float32) for x in (q, k, v)), room, y.nbytes),
        )
        return y

    return attend


def _rows(x: Tensor) -> Tensor:
    """Return the same tensor with the elements of each row side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
