"""Features of this machine that int8 kernels use. This module does not import torch."""

from __future__ import annotations

import os
import platform

from intact8.machine import cpu_features

LEVELS = ("sse41", "avx", "avx2", "avx2_vnni", "avx512_core", "avx512_core_vnni")
"""oneDNN's instruction sets that matter to int8, weakest first; the later AVX512 and AMX sets count as the last."""

# Names oneDNN accepts in ONEDNN_MAX_CPU_ISA, as an index into LEVELS. Unknown names and ALL or DEFAULT mean no limit.
_CAPS = {"SSE41": 0, "AVX": 1, "AVX2": 2, "AVX2_VNNI": 3, "AVX2_VNNI_2": 3, "AVX512_CORE": 4}


def flags() -> frozenset[str]:
    """Return CPU flags as Linux names them; empty where they cannot be read."""
    return frozenset(cpu_features())


def count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_x86() -> bool:
    """Return whether this is a 64-bit x86 machine, the only kind oneDNN has these int8 kernels for."""
    return platform.machine().lower() in {"x86_64", "amd64"}


def isa(cpu: frozenset[str] | None = None, limit: str | None = None) -> str:
    """The instruction set oneDNN will use: one of LEVELS.

    Args:
        cpu: CPU flags; this machine's by default. Where there are none torch is asked.
        limit: value of ``ONEDNN_MAX_CPU_ISA``; the environment's by default. oneDNN reads it once per process, so a
            change after the first int8 operation has no effect on it. (``ATEN_CPU_CAPABILITY`` limits torch's own
            kernels, which no proof here rests on, and not oneDNN's.)

    Example:
        >>> isa(frozenset({"avx", "avx2", "avx_vnni"}), "ALL")
        'avx2_vnni'
        >>> isa(frozenset({"avx", "avx2", "avx512bw", "avx512_vnni"}), "AVX512_CORE")
        'avx512_core'
    """
    cpu = flags() if cpu is None else cpu
    if not cpu:
        cpu = _ask_torch()
    cap = _CAPS.get((_limit() if limit is None else limit).upper(), len(LEVELS) - 1)
    best = 0
    for level, wanted in enumerate(("sse4_1", "avx", "avx2", "avx_vnni", "avx512bw", "avx512_vnni")):
        if wanted in cpu and level <= cap:
            best = level
    return LEVELS[best]


WITHOUT_AMX = frozenset({*_CAPS, "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"})
"""Values of ``ONEDNN_MAX_CPU_ISA`` that keep oneDNN from AMX."""


def uses_amx() -> bool:
    """Return whether oneDNN multiplies int8 matrices with AMX here: the CPU has it and the environment allows it."""
    return "amx_int8" in flags() and _limit().upper() not in WITHOUT_AMX


def _limit() -> str:
    """Return the strongest instruction set that the environment allows oneDNN."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "ALL"))


def has_vnni(level: str) -> bool:
    """Return whether u8·s8 products are added in int32 at once, so that no pair can saturate in int16."""
    return level in {"avx2_vnni", "avx512_core_vnni"}


def adds_at_once(limited: bool = True) -> bool:
    """Return whether the kernels of this machine are known not to saturate: u8·s8 products are added in int32 at once
    (VNNI), or the machine is not x86, and pairs are never added in int16.

    Args:
        limited: whether ``ONEDNN_MAX_CPU_ISA`` limits these kernels.
    """
    if not is_x86():
        return True
    known = flags()
    return bool(known) and has_vnni(isa(known, None if limited else "ALL"))


def _ask_torch() -> frozenset[str]:
    """Return the flags from torch, which does not report AVX-VNNI: VNNI is then denied rather than assumed."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    found = {"sse4_1"}
    if capability.startswith("AVX"):
        found |= {"avx", "avx2"}
    if capability.startswith("AVX512"):
        found.add("avx512bw")
    if torch.cpu._is_vnni_supported():
        found.add("avx512_vnni")
    return frozenset(found)
