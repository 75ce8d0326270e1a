"""What this machine is: CPU features by the names Linux gives them."""

from __future__ import annotations

import functools


@functools.cache
def cpu_features() -> list[str]:
    """Instruction set extensions of this CPU, sorted (x86: the flags of /proc/cpuinfo); empty where unreadable.

    Example:
        >>> isinstance(cpu_features(), list)
        True
    """
    import archspec.cpu.detect

    return sorted(archspec.cpu.detect.detected_info().features)
