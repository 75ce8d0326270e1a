"""Programs as torch modules: inside other models, and inside what ``torch.compile`` compiles.

A program stands in torch's graphs as one operator, ``torch.ops.intact8.run``, of which ``torch.compile`` knows the
shapes and types of the results. It computes on the CPU and has no gradients. Files that torch.export.save or torch.jit
write of such a graph do not hold the program, which has a file of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

from intact8 import missing_torch

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise missing_torch(__name__, error) from error

from intact8.arithmetic.dimensions import computed, known, telling
from intact8.engines import admitted, run_flat
from intact8.engines.binding import bind, fixed_arguments, to_torch
from intact8.engines.shapes import sized
from intact8.errors import InputError
from intact8.nesting import spread, without_fixed
from intact8.outputs import rebuild
from intact8.program.dimensions import sized_near
from intact8.program.file import digest
from intact8.program.inputs import refuse_other_layouts
from intact8.program.program import Program, require_program

_modules: defaultdict[int, WeakSet[Module]] = defaultdict(WeakSet)
"""Modules by the number that graphs know them by."""


class Module(nn.Module):
    """A program as a module without parameters.

    Args:
        program: converted or loaded.
        engine: as for :meth:`intact8.Program.run`.
        layout: of inputs of four dimensions: "NCHW" or "NHWC".

    Example:
        >>> from intact8.opset.op import Op, Tensor
        >>> tensors = {"x": Tensor("x", "float32", (None, 2)), "q": Tensor("q", "uint8", (None, 2), 0.5, 10)}
        >>> program = Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
        >>> model = nn.Sequential(nn.Flatten(), Module(program, engine="reference"))
        >>> model(torch.tensor([[[1.0], [2.0]]]))
        tensor([[12, 14]], dtype=torch.uint8)
    """

    _number: int | None = None

    def __init__(self, program: Program, engine: str = "auto", layout: str = "NCHW") -> None:
        super().__init__()
        self.engine, self.layout = engine, layout
        self.program = program

    @property
    def program(self) -> Program:
        """The program. Another may be put in its place, and what is compiled is compiled anew."""
        return self._program

    @program.setter
    def program(self, program: Program) -> None:
        require_program(program, "intact8.torch.Module")
        self._program = program
        self._register()

    def _register(self) -> None:
        if self._number is not None:
            _modules[self._number].discard(self)
        self._names, self._structure = self.program.inputs, self.program.structure
        self._number = number = self.number()
        _modules[number].add(self)

    def number(self) -> int:
        """Return what graphs know the program by. It follows from what the program is: graphs lie in files that another
        process reads (of ``torch.export.save``, and those that ``torch.compile`` keeps), and must find no other there.
        """
        return int(digest(self.program)[:15], 16)

    def current(self) -> Program:
        """Return the program that a call runs now."""
        return self.program

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run on CPU tensors, nested as the model takes them; the outputs nest as the model's.

        Raises:
            InputError: see :meth:`intact8.Program.run`.
        """
        if named or len(inputs) != len(self._names) or not all(isinstance(x, Tensor) for x in inputs):
            values = spread(self._names, *without_fixed(inputs, named, self._names, *fixed_arguments(self.program)))
            missing = [name for name in self._names if name not in values]
            if missing:
                raise InputError("the input is missing", where=missing[0], remedy=f"give {', '.join(self._names)}")
            unknown = [name for name in values if name not in self._names]
            if unknown:
                remedy = f"the inputs are {', '.join(self._names)}"
                raise InputError("the program has no such input", where=unknown[0], remedy=remedy)
            inputs = tuple(values[name] for name in self._names)
        for name, x in zip(self._names, inputs, strict=True):
            if not isinstance(x, Tensor):
                what = f"expected a tensor, got {type(x).__name__}"
                raise InputError(what, where=name, remedy="give torch.as_tensor(x), or program.run(x)")
            if x.is_nested:  # which torch gives to no operator but its own
                refuse_other_layouts(name, x)
        outputs = torch.ops.intact8.run(list(inputs), self._number, self.engine, self.layout)
        return rebuild(self._structure, outputs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a copy, or what was pickled, known to graphs."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._register()

    def extra_repr(self) -> str:
        """Return what ``print`` shows in brackets."""
        return f"{self.program!r}, engine={self.engine!r}"


def programs(model: nn.Module) -> dict[str, Program]:
    """Return the programs inside a model, by the path of the module that runs each.

    Saved one by one, they are put back with ``model.set_submodule(path, intact8.torch.Module(program))``.

    Example:
        >>> programs(nn.Sequential(nn.ReLU()))
        {}
    """
    return {path: module.program for path, module in model.named_modules() if isinstance(module, Module)}


@torch.library.custom_op(
    "intact8::run", mutates_args=(), schema="(Tensor[] inputs, int program, str engine, str layout) -> Tensor[]"
)
def _run(inputs: Sequence[Tensor], number: int, engine: str, layout: str) -> list[Tensor]:
    program = _find(number).current()
    arrays = bind(program, inputs, {}, layout, admitted(program, engine))
    given = {x.data_ptr() for x in inputs}
    outputs = [to_torch(y) for y in run_flat(program, arrays, engine)]
    return [y.clone() if y.data_ptr() in given else y for y in outputs]


@torch.library.custom_op("intact8::gradient", mutates_args=(), schema="(Tensor[] inputs, Tensor[] outputs) -> Tensor[]")
def _gradient(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """Refuse the gradients of the inputs. It is an operator, since ``torch.compile`` looks at the way back of every
    model, and takes those of the outputs, without which it would be computed on the way there."""
    what, why = "a program has no gradients", "it computes integers"
    remedy = "detach what it reads (x.detach(), torch.no_grad()), or train the simulation that intact8.prepare returns"
    raise InputError(what, where="intact8.torch.Module", why=why, remedy=remedy)


@_gradient.register_fake
def _like(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _backward(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    given = [g for g in gradients if g is not None]
    return torch.ops.intact8.gradient(ctx.saved_tensors, given), None, None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[0])


_run.register_autograd(_backward, setup_context=_keep)


@_run.register_fake
def _shapes(inputs: Sequence[Tensor], number: int, engine: str, layout: str) -> list[Tensor]:
    """Return empty tensors of the shapes and types of the outputs."""
    program = _find(number).program
    sizes = _sizes(program, inputs, layout)
    two, three = (sized(sized_near(program, n), n).tensors for n in (2, 3))
    outputs = []
    for name in program.outputs:
        declared, shape = program.tensors[name], list[Any]()
        for d, a, b in zip(declared.shape, known(two[name].shape), known(three[name].shape), strict=True):
            if d is None:  # so many times the batch
                exact = 3 * a == 2 * b and a % 2 == 0 and None in sizes
                shape.append(a // 2 * sizes[None] if exact else torch.library.get_ctx().new_dynamic_size())
            else:
                shape.append(computed(d, {name: size for name, size in sizes.items() if name is not None}))
        outputs.append(torch.empty(shape, dtype=getattr(torch, declared.dtype)))
    return outputs


def _sizes(program: Program, inputs: Sequence[Tensor], layout: str) -> Mapping[str | None, Any]:
    """Return the size of every named dimension, and under None that of the batch; torch's symbols where it has them."""
    sizes: dict[str | None, Any] = {}
    for name, x in zip(program.inputs, inputs, strict=True):
        shape = program.tensors[name].shape
        if layout == "NHWC" and len(shape) == 4:
            shape = (shape[0], *shape[2:], shape[1])
        for d, size in zip(shape, x.shape, strict=True):
            if d is None:
                sizes.setdefault(None, size)
            elif (told := telling(d, size)) is not None:
                sizes.setdefault(*told)
    return sizes


def _find(number: int) -> Module:
    module = next(iter(_modules.get(number, ())), None)
    if module is None:
        what = f"program {number} is gone"
        why = (
            "its module was deleted, or a file of torch.export or torch.jit, which holds no program, brought the number"
        )
        remedy = "keep the module, or compile the model again; programs are saved by program.save"
        raise InputError(what, where="intact8::run", why=why, remedy=remedy)
    return module


__all__ = ["Module", "programs"]
