"""Declarations of the engines: what each is and needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

from intact8.errors import EngineError, require_number
from intact8.opset.proof import Evaluation
from intact8.program.certify import EVALUATIONS
from intact8.program.program import Program

from . import cpu
from .base import Engine

MIB = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class EngineSpec:
    """One engine.

    Attributes:
        name: as callers name it.
        home: where its class is, "module:Class".
        packages: packages it needs → lowest version.
        extra: the extra that installs them, ``intact8[extra]``.
        x86: whether it runs on 64-bit x86 only.
        features: x86 CPU flags it cannot do without.
        footprint: bytes its libraries take when loaded, roughly.
        limited: whether ``ONEDNN_MAX_CPU_ISA`` limits its kernels.
        compiled: whether it needs the library that is compiled with this package.
    """

    name: str
    home: str
    packages: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    x86: bool = False
    features: tuple[str, ...] = ()
    footprint: int = 0
    limited: bool = False
    compiled: bool = False

    @property
    def evaluation(self) -> Evaluation | None:
        """How it evaluates integer operations, which certificates rest on; None where it computes with integers."""
        return EVALUATIONS.get(self.name)

    def make(self) -> Engine:
        """Make the engine.

        Raises:
            EngineError: a library it is written with is missing.
        """
        module, _, kind = self.home.partition(":")
        try:
            engine: Engine = getattr(import_module(module), kind)()
        except ModuleNotFoundError as error:
            what, remedy = (
                "the engine's library is missing",
                f"pip install 'intact8[{self.extra}]', or engine='reference'",
            )
            raise EngineError(what, where=self.name, why=str(error), remedy=remedy) from error
        return engine


_HOME = "intact8.engines"

SPECS = {
    spec.name: spec
    for spec in (
        EngineSpec("reference", f"{_HOME}.reference:ReferenceEngine", {"numpy": "1.24"}),
        EngineSpec(
            "onnxruntime",
            f"{_HOME}.onnxruntime:OnnxRuntimeEngine",
            {"onnxruntime": "1.18", "onnx": "1.16"},
            "onnx",
            x86=False,
            features=("sse4_1",),
            footprint=80 * MIB,
            limited=False,
        ),
        EngineSpec(
            "openvino",
            f"{_HOME}.openvino:OpenVinoEngine",
            {"openvino": "2025.0"},
            "openvino",
            x86=True,
            features=("sse4_2",),
            footprint=120 * MIB,
            limited=True,
        ),
        EngineSpec(
            "onednn",
            f"{_HOME}.onednn:OnednnEngine",
            {"torch": "2.8"},
            "torch",
            x86=True,
            features=("sse4_1",),
            footprint=300 * MIB,
            limited=True,
        ),
        EngineSpec("native", f"{_HOME}.native:NativeEngine", {"numpy": "1.24"}, compiled=True),
    )
}
"""Name → engine, the slowest first."""


def require(engine: Engine, program: Program, threads: int | None) -> None:
    """Check what every engine needs before it prepares a program.

    Raises:
        EngineError: the engine cannot run here, ``threads`` is no number of 1 or more, or the program needs VNNI, which
            this CPU lacks or does not report.
    """
    reason = engine.available()
    if reason:
        raise EngineError(f"the {engine.name} engine cannot run", why=reason, remedy="see the reason")
    if threads is not None:
        require_number("threads", threads, 1, engine.name, error=EngineError)
    if lacks_vnni(engine.name, program):
        raise EngineError(
            "this program needs VNNI, which this CPU lacks or does not report",
            why="its weights use the whole int8 range, and x86 kernels without VNNI saturate pairs of products",
            remedy="convert with portable=True, or run with engine='native' or 'reference'",
        )


def lacks_vnni(engine: str, program: Program) -> bool:
    """Return whether that engine's kernels would need VNNI for the program, which this CPU lacks or does not report."""
    spec = SPECS.get(engine)
    if "vnni" not in program.needs or (spec is not None and (spec.compiled or spec.name == "reference")):
        return False
    return not cpu.adds_at_once(limited=spec is None or spec.limited)
