"""ONNX Runtime: the program as an ONNX model of its quantized operators, run on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.arithmetic.recurrent import GATES
from intact8.engines import cpu
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.opset.recurrent import not_finite
from intact8.program.dimensions import sizes_of
from intact8.program.inputs import images, outside, sole_quantizers
from intact8.program.program import Program

from ..binding import check_feed, check_inputs, empty_outputs, is_channels_last, is_empty, refuse_empty
from ..fork_safety import follow
from ..prepared_cache import PreparedCache
from ..spec import require

if TYPE_CHECKING:
    from intact8.export.onnx_builder import Choice

BEYOND = "out of data bounds"
"""The message of ONNX Runtime's Gather about an index outside of the table."""

SESSIONS = 5
"""Sessions a runner keeps: for float and uint8 inputs of both layouts, and where every tensor was asked for."""

WIDEST_GATE = 1024
"""Largest product of a GRU's new gate: results are then off by 2.4e-4 at most; states lie within ±1."""

MERGING = ["DoubleQDQPairsRemover"]
"""Optimizers that merge two quantizations, which rounds once where the program rounds twice."""


class OnnxRuntimeEngine:
    """Runs programs with ONNX Runtime's CPU kernels, bit for bit.

    Example:
        >>> OnnxRuntimeEngine().name
        'onnxruntime'
    """

    name = "onnxruntime"

    def available(self) -> str | None:
        """None, or why it cannot run here and what to do."""
        missing = [m for m in ("onnxruntime", "onnx") if importlib.util.find_spec(m) is None]
        return f"{' and '.join(missing)} not installed: pip install 'intact8[onnx]'" if missing else None

    def prepare(self, program: Program, *, threads: int | None = None) -> OnnxRuntimeRunner:
        """Return a runner for ``program``.

        Args:
            program: a checked program.
            threads: CPU threads; None leaves ONNX Runtime's choice (one per core).

        Raises:
            EngineError: a library or a CPU feature is missing, or an op cannot run here; it names the op.
        """
        require(self, program, threads)
        _refuse_wide_gates(program)
        return OnnxRuntimeRunner(program, threads)


def _refuse_wide_gates(program: Program) -> None:
    """Refuse GRUs of float32 whose reset gate would let through what a closed one has to hold back.

    ONNX Runtime's sigmoid ends at −2⁻²² where it should be 0. With hidden states within ±1, a product of the new gate
    is at most Σ|w| + |b|, and that many times 2⁻²² is what a result is off by.
    """
    for op in program.ops:
        if op.kind != "float.gru":
            continue
        size, roles = int(op.attrs["hidden"]), ("weight_hh", "weight_hh.reverse", "bias_hh", "bias_hh.reverse")
        found = {role: np.abs(op.arrays[role][2 * size :]).astype(np.float64) for role in roles if role in op.arrays}
        for suffix in ("", ".reverse")[: 1 + op.attrs["bidirectional"]]:
            most = float((found["weight_hh" + suffix].sum(1) + found.get("bias_hh" + suffix, 0.0)).max(initial=0.0))
            if most > WIDEST_GATE:
                raise EngineError(
                    "ONNX Runtime does not compute this GRU to float32's precision",
                    where=op.name,
                    why=f"a product of its new gate may reach {most:.3g}, and the gate that closes it ends at 2.4e-7",
                    remedy="run with engine='native', 'onednn' or 'reference'",
                )


class OnnxRuntimeRunner:
    """Sessions of one program, opened when first needed. Safe to call from several threads.

    Attributes:
        program: what it runs.
        forms: tables that are computed instead of looked up; see ``intact8.export.onnx_tables.choose``.
    """

    def __init__(self, program: Program, threads: int | None) -> None:
        self.program = program
        self._threads = threads
        quantizers = sole_quantizers(program)
        self._quantized_at_once, self._images = frozenset(quantizers), frozenset(images(program)) & quantizers.keys()
        self._sessions: PreparedCache[Any] = PreparedCache(SESSIONS, program.nbytes())
        self.forms = self._proved_forms()
        self._session(frozenset(), frozenset())  # a program that cannot run is refused now
        follow(self)

    def after_fork(self) -> None:
        """Drop all sessions, whose threads stayed in the parent process; new ones are opened when needed."""
        self._sessions.leak()

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the flattened outputs as numpy arrays. See ``intact8.engines.base.Runner``."""
        given = self._check(inputs)
        if is_empty(self.program, given):  # some kernels end the process
            return empty_outputs(self.program, given)
        given, last = self._as_read(given)
        session = self._session(self._integers(given), last)
        names = list(dict.fromkeys(self.program.outputs))
        found = dict(zip(names, self._run(session, names, given), strict=True))
        outputs = self.program.outputs
        return [found[n] if outputs.index(n) == i else found[n].copy() for i, n in enumerate(outputs)]

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every tensor by name. See ``intact8.engines.base.Runner``."""
        given = self._check(inputs)
        refuse_empty(self.program, given)
        fed = check_feed(self.program, given, feed)
        if fed.keys() >= {op.name for op in self.program.ops}:  # ONNX has no model that computes nothing
            return {name: (given | fed)[name] for name in self.program.tensors}
        session = self._session(self._integers(given), frozenset(), frozenset(fed), True)
        names = [out.name for out in session.get_outputs()]
        needed = {i.name for i in session.get_inputs()}
        values = self._run(session, names, {k: v for k, v in (given | fed).items() if k in needed})
        found = given | fed | dict(zip(names, values, strict=True))
        return {name: found[name] for name in self.program.tensors}

    def _run(self, session: Any, names: list[str], given: dict[str, Array]) -> list[Array]:
        try:
            # ascontiguousarray would give scalars a dimension.
            return list(session.run(names, {name: np.asarray(x, order="C") for name, x in given.items()}))
        except _failures() as error:
            culprit = self._culprit(str(error))
            if BEYOND in str(error):  # by which recurrent layers refuse what is not finite, too
                layer = any(op.name == culprit and op.kind in GATES for op in self.program.ops)
                raise (not_finite if layer else outside)(culprit, str(error)) from error
            what, remedy = (
                "ONNX Runtime cannot run this input",
                "change the batch size, or compare with engine='reference'",
            )
            raise InputError(what, where=culprit, why=str(error), remedy=remedy) from error

    def _integers(self, given: Mapping[str, Array]) -> frozenset[str]:
        """Return the inputs given as the uint8 integers themselves."""
        return frozenset(n for n in self._quantized_at_once if given[n].dtype == np.uint8)

    def _as_read(self, given: dict[str, Array]) -> tuple[dict[str, Array], frozenset[str]]:
        """Return the inputs as the deployed model takes them, and the names of those whose memory has channels last."""
        last = frozenset(name for name in self._images if is_channels_last(given[name]))
        return {n: x.transpose(0, 2, 3, 1) if n in last else x for n, x in given.items()}, last

    def _session(
        self,
        integers: frozenset[str],
        last: frozenset[str],
        fed: frozenset[str] = frozenset(),
        everything: bool = False,
    ) -> Any:
        """Inputs in ``integers`` are uint8, those in ``last`` have channels last."""
        key = integers, last, fed, everything
        return self._sessions.get(key, lambda: self._open(*key))

    def _proved_forms(self) -> dict[str, Choice]:
        """Return the tables that this machine computes faster than it looks them up; all 256 entries were compared."""
        from intact8.export.onnx import IR_VERSION, OPSET
        from intact8.export.onnx_tables import ENTRIES, candidates, choose

        model = candidates(self.program, OPSET, IR_VERSION)
        if model is None:
            return {}
        session = self._start(model.SerializeToString())
        names = [out.name for out in session.get_outputs()]
        return choose(self.program, dict(zip(names, session.run(names, {"entries": ENTRIES}), strict=True)))

    def _open(self, integers: frozenset[str], last: frozenset[str], fed: frozenset[str], everything: bool) -> Any:
        from intact8.export.onnx import build

        sides: dict[str, Any] = {"integers": integers, "fed": fed, "everything": everything, "nhwc": last}
        runtime: dict[str, Any] = {"byte_extremes": _version() >= (1, 24), "nan_is_least": cpu.is_x86()}
        model = build(self.program, contrib=True, forms=self.forms, **sides, **runtime)
        data = model.SerializeToString()
        del model  # the model is as large as the program, and the session makes its own copy
        return self._start(data)

    def _start(self, model: bytes) -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        # The model has quantized operators already; nothing shall be merged around float islands.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.log_severity_level = 4  # failures are raised, not printed
        options.inter_op_num_threads = 1
        if self._threads is not None:
            options.intra_op_num_threads = self._threads
        try:
            session = ort.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], disabled_optimizers=MERGING
            )
        except _failures() as error:
            what, remedy = (
                "ONNX Runtime does not take this program",
                "upgrade onnxruntime, or run with engine='reference'",
            )
            raise EngineError(what, where=self._culprit(str(error)), why=str(error), remedy=remedy) from error
        # The session keeps the bytes of the model to start again on another provider, which there is not.
        session.disable_fallback()
        session._model_bytes = None
        return session

    def _culprit(self, message: str) -> str:
        """Return the op that an error message of ONNX Runtime names; "" where it names none."""
        return max((op.name for op in self.program.ops if _mentions(message, op.name)), key=len, default="")

    def _check(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = check_inputs(self.program, inputs, self._quantized_at_once)
        sizes_of(self.program, given)
        return given


def _version() -> tuple[int, int]:
    """Return the major and minor version of ONNX Runtime."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return int(major), int(minor)


def _mentions(message: str, name: str) -> bool:
    """Return whether a node of the op ``name`` stands in the message: (name), 'name' or name/… of its inner nodes."""
    return any(f"{before}{name}{after}" in message for before in "('" for after in ")'/")


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors of ONNX Runtime, which have no base class of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)
