"""The engine and its runner: checks, compiled models per batch size, numpy at the door."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from intact8.arithmetic.affine import dequantize
from intact8.arithmetic.dimensions import fits, show
from intact8.engines.batch_split import is_sample_wise
from intact8.engines.fork_safety import follow
from intact8.engines.openvino.numpy_quantizer import quantize_into
from intact8.engines.prepared_cache import PreparedCache, release_memory
from intact8.errors import InputError
from intact8.opset.op import Array, Op
from intact8.program.dimensions import sizes_near, sizes_of
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program

from .. import cpu
from ..binding import check_feed, empty_outputs, is_channels_last, refuse_empty
from ..spec import require
from .core import FORKED, LARGEST_INPUT, REMEDY, core, left_behind

if TYPE_CHECKING:
    from .infer_requests import Compiled
    from .plan import Feeds

SIZES = (8, 4, 2, 1)
"""Batch sizes that models are compiled for. Other batches run in parts of these, largest first: a new batch size then
costs no compilation (0.2 s and the weights once more for ResNet50), and larger models were not faster per sample."""

MODELS = 2 * len(SIZES) + 1
"""Compiled models a runner keeps: per batch size one for floats and one for bytes, and one more where every tensor was
asked for. (Bytes with channels first and last are models of their own.)"""


MORE_MODELS = 24
"""The same for programs whose sequences, say, may have any length: every length has models of its own."""

LARGE = 1 << 23
"""Bytes of a program from which the batch sizes share one compiled model (see ``batch_switch``). Making it takes
longer, and smaller ones feel its conditions."""

LENGTH = 32
"""Size of named dimensions in the model that is compiled at once, to say then and not later what cannot run."""


class OpenVinoEngine:
    """Runs programs on x86 CPUs through OpenVINO, bit for bit.

    Example:
        >>> OpenVinoEngine().name
        'openvino'
    """

    name = "openvino"

    def available(self) -> str | None:
        """None, or why it cannot run here and what to do."""
        if not cpu.is_x86():
            return "the openvino engine is proved on x86-64 CPUs only: use engine='reference' or 'onnxruntime'"
        if importlib.util.find_spec("openvino") is None:
            return "openvino is not installed: pip install 'intact8[openvino]'"
        return f"{FORKED}: {REMEDY}" if left_behind() else None

    def prepare(self, program: Program, *, threads: int | None = None) -> OpenVinoRunner:
        """Return a runner for ``program``.

        Args:
            program: a checked program.
            threads: threads of each inference; None leaves the choice to OpenVINO.

        Raises:
            EngineError: openvino or a CPU feature is missing, or an op cannot be built; it names the op.
        """
        require(self, program, threads)
        return OpenVinoRunner(program, threads)


class OpenVinoRunner:
    """A program compiled by OpenVINO. Safe to call from several threads.

    Shapes are static, because models of dynamic ones are slower (by up to a third on MobileNetV2). Programs that treat
    samples one by one (see ``batch_split``) run in parts of ``SIZES``, each with a compiled model made when first
    needed; for other programs every batch size gets its own, as does every size of a named dimension. The last ones
    used are kept.
    """

    def __init__(self, program: Program, threads: int | None) -> None:
        from .plan import Plan

        self.program = program
        self._threads = threads
        self._plan = Plan.of(program)
        self._in_parts = is_sample_wise(program)
        size = program.nbytes()
        self._large = self._in_parts and not program.dimensions and size >= LARGE
        self._models: PreparedCache[Compiled] = PreparedCache(MORE_MODELS if program.dimensions else MODELS, size)
        self._last: tuple[object, Callable[[Mapping[str, Array]], dict[str, Array]]] | None = None
        self._switched: dict[Feeds, tuple[int, ...]] = {}
        self._ops = {op.name: op for op in program.ops}
        self._takes_integers = frozenset(sole_quantizers(program))
        last = [self._ops[name] for name in program.outputs if name in self._ops]
        self._decoded = {op.name: self._decoder(op) for op in last if op.kind == "dequantize"}
        sources = [self._ops[n].inputs[0] if n in self._decoded else n for n in program.outputs]
        self._wanted = tuple(n for n in dict.fromkeys(sources) if n not in program.inputs)
        self._deployed(1, self._form({}))
        follow(self)

    @property
    def largest_part(self) -> int | None:
        """Samples that are run at once; None: all of a batch."""
        return SIZES[0] if self._in_parts else None

    def after_fork(self) -> None:
        """Forget what was compiled: OpenVINO cannot run here, and says so where it is asked to compile."""
        self._models.leak()
        self._last = None
        self._switched.clear()

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the flattened outputs as numpy arrays. See ``intact8.engines.base.Runner``."""
        # Of inputs like those of the last call nothing has to be found out again: 70 µs where others used the caches.
        like = tuple((name, x.shape, x.dtype) for name, x in inputs.items() if isinstance(x, np.ndarray))
        last, given = self._last, inputs
        if last is not None and last[0] == like and len(like) == len(inputs):
            self._check_values(inputs)
            found = last[1](inputs)
        else:
            last = None  # lets go of a model that may be replaced now
            given, batch = self._checked(inputs)
            if batch == 0:
                return empty_outputs(self.program, given)
            found = self._run(given, batch)
            if len(like) == len(inputs) and (batch in SIZES or not self._in_parts):
                self._last = like, self._deployed(batch, self._form(given))
        return [self._output(name, found, given) for name in self.program.outputs]

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every tensor by name. See ``intact8.engines.base.Runner``.

        A tensor that is a result cannot be fused away, so the model with every tensor as a result is not the deployed
        one. Where nothing is fed, the outputs, and the integers they are dequantized from, are therefore taken from
        the deployed model: a difference in between shows there.

        Raises:
            EngineError: a quantized tensor is off its grid: OpenVINO dropped a rounding.
        """
        given, batch = self._checked(inputs)
        refuse_empty(self.program, given)
        fed = check_feed(self.program, given, feed)
        form = self._form(given, fed)
        before = self._sources(form)
        outside = frozenset(op.name for op in before)
        skipped = outside | frozenset(fed)
        wanted = [op.name for op in self.program.ops if op.name not in skipped and op.kind != "dequantize"]
        found = given | fed
        if wanted:
            found |= self._model(batch, form, tuple(wanted)).run(batch, given | fed)
        if not fed:
            found |= self._run(given, batch)
        for op in before:
            x = found[op.inputs[0]]
            found[op.name] = quantize_into(np.empty(x.shape, np.uint8), op, self.program.tensors[op.name], x)
        for op in self.program.ops:
            if op.kind == "dequantize" and op.name not in found:
                found[op.name] = self._decoder(op)[found[op.inputs[0]]]
        return {name: np.asarray(found[name], order="C") for name in self.program.tensors}

    def kernels(self, batch: int = 1) -> dict[str, str]:
        """Return the kernel, with its precision, of every convolution and product: op name → "brgconv_avx512_I8" …"""
        return self._model(batch).kernels()

    def _decoder(self, op: Op) -> Array:
        """Build (q − z)·s of all 256 integers: one multiplication, as specified, and none at run time."""
        t = self.program.tensors[op.inputs[0]]
        return dequantize(np.arange(256), np.float32(t.scale or 1.0), int(t.zero_point or 0))

    def _output(self, name: str, found: Mapping[str, Array], given: Mapping[str, Array]) -> Array:
        if name in self._decoded:
            source = self._ops[name].inputs[0]
            return self._decoded[name].take(found[source] if source in found else given[source])
        return found[name].copy() if name in found else np.array(given[name])

    def _run(self, given: Mapping[str, Array], batch: int) -> dict[str, Array]:
        """Return what the deployed models give, by name."""
        form = self._form(given)
        if not self._in_parts or batch in SIZES:
            return self._deployed(batch, form)(given)
        batched = {name for name in given if None in self.program.tensors[name].shape}
        parts: list[dict[str, Array]] = []
        start = 0
        while start < batch:
            size = next(n for n in SIZES if n <= batch - start)
            part = {name: x[start : start + size] if name in batched else x for name, x in given.items()}
            parts.append(self._deployed(size, form)(part))
            start += size
        return {name: np.concatenate([part[name] for part in parts]) for name in self._wanted}

    def _sources(self, form: Feeds) -> list[Op]:
        from .plan import sources

        return sources(self._plan, form)

    def _form(self, given: Mapping[str, Array], fed: Collection[str] = ()) -> Feeds:
        """Return what the caller gives in which form."""
        from .plan import Feeds

        integers = frozenset(n for n in self._takes_integers if n in given and given[n].dtype == np.uint8)
        # The pass that quantizes floats writes any order; bytes stay in the one they come in.
        images = {n for n in self._takes_integers if len(self.program.tensors[n].shape) > 3}
        last = frozenset(n for n in images if n not in integers or is_channels_last(given[n]))
        sizes = sizes_of(self.program, given) if given else sizes_near(self.program, LENGTH)
        return Feeds(frozenset(fed), integers, last, tuple(sorted(sizes.items())))

    def _model(self, batch: int, form: Feeds | None = None, wanted: tuple[str, ...] | None = None) -> Compiled:
        """Return the compiled model for a batch size; by default the deployed one, of floats."""
        form = self._form({}) if form is None else form
        wanted = self._wanted if wanted is None else wanted
        return self._models.get(((batch,), form, wanted), lambda: self._compile(batch, form, wanted))

    def _deployed(self, batch: int, form: Feeds) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """Return the deployed model for a batch size. That of a large program is one for all sizes used so far."""
        core()  # says at once that a forked process cannot
        if not self._large:
            return self._model(batch, form).at(batch)
        known = self._switched.get(form, ())
        sizes = tuple(sorted({*known, batch}))
        if sizes != known:
            self._model(batch, form)  # alone, where it can be asked for its kernels
        made = self._models.get((sizes, form, self._wanted), lambda: self._switch(sizes, form))
        if sizes != known:
            self._switched[form], self._last = sizes, None
            for key in self._models:
                if key[0] != sizes and key[1:] == (form, self._wanted):
                    self._models.forget(key)
            release_memory(self.program.nbytes())
        return made.at(batch)

    def _switch(self, sizes: Sequence[int], form: Feeds) -> Compiled:
        from .build import build
        from .infer_requests import Compiled

        plan = self._plan.at(dict(form.sizes))
        return Compiled(plan.program, {n: build(plan, n, self._wanted, form) for n in sizes}, self._threads)

    def _compile(self, batch: int, form: Feeds, wanted: Sequence[str]) -> Compiled:
        from .checked_compile import compile_checked

        compiled, self._plan = compile_checked(self._plan, batch, form, wanted, self._threads)
        return compiled

    def _checked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
        """Return the inputs as arrays, and the batch size."""
        given: dict[str, Array] = {}
        batch: int | None = None
        for name in self.program.inputs:
            if name not in inputs:
                raise InputError("input is missing", where=name, remedy=f"give all of {list(self.program.inputs)}")
            x, t = np.asarray(inputs[name]), self.program.tensors[name]
            if x.dtype.name != t.dtype and not (x.dtype == np.uint8 and name in self._takes_integers):
                raise InputError(f"expected {t.dtype}, got {x.dtype}", where=name, remedy=f"x.astype('{t.dtype}')")
            self._check_shape(name, x)
            for declared, size in zip(t.shape, x.shape, strict=True):
                if declared is None:
                    if batch not in (None, size):
                        raise InputError(f"batch size {size} differs from that of another input, {batch}", where=name)
                    batch = size
            given[name] = x
        self._check_values(given)
        return given, 1 if batch is None else batch

    def _check_values(self, inputs: Mapping[str, Array]) -> None:
        for name, x in inputs.items():
            if x.dtype == np.int64 and x.size and max(int(x.max()), -int(x.min())) > LARGEST_INPUT:
                what = f"the openvino engine takes integers up to {LARGEST_INPUT}"
                raise InputError(what, where=name, remedy="run with engine='onednn', 'onnxruntime' or 'reference'")

    def _check_shape(self, name: str, x: Array) -> None:
        shape = self.program.tensors[name].shape
        if not fits(shape, x.shape):
            raise InputError(f"expected shape {show(shape)}, got {x.shape}", where=name)
