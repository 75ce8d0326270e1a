"""Compiling a model of OpenVINO for the CPU, so that it computes what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from intact8.errors import EngineError

from .core import core

OPTIONS: dict[str, str | int] = {
    # bf16 is the default on CPUs that have it, and none of the proofs holds there.
    "INFERENCE_PRECISION_HINT": "f32",
    # Quantizing the inputs of float products at run time is fast and changes them.
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    # Kernels of fused elementwise operations are kept by a hash of them and their constants (2026.4) that is not
    # compared with anything else: x − 95 was given the kernel of x + 6. So none is kept for another node.
    "CPU_RUNTIME_CACHE_CAPACITY": 0,
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
}
"""What models are compiled with: every option that could change a value is set to leave it alone."""


def compile_model(model: Any, threads: int | None) -> Any:
    """Compile for the CPU, with every option that could change a value set to leave it alone.

    Args:
        model: an ``openvino.Model``.
        threads: threads of each inference; None leaves the choice to OpenVINO.

    Raises:
        EngineError: OpenVINO refuses the model.
    """
    config: dict[str, Any] = dict(OPTIONS)
    if threads is not None:
        config["INFERENCE_NUM_THREADS"] = threads
    with refusals():
        return core().compile_model(model, "CPU", config)


def refusal(what: str, where: str, why: str = "", first: str = "") -> EngineError:
    """Return the error of a program or an input that OpenVINO is not given.

    Args:
        what, where, why: see :class:`intact8.errors.EngineError`.
        first: what else the caller may do.
    """
    others = "run with engine='onednn', 'onnxruntime' or 'reference'"
    return EngineError(what, where=where, why=why, remedy=f"{first} before, or {others}" if first else others)


@contextmanager
def refusals(what: str = "OpenVINO refuses this program", where: str = "openvino") -> Iterator[None]:
    """Turn what OpenVINO raises into an EngineError."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise refusal(what, where, lines[-1] if lines else type(error).__name__) from error
