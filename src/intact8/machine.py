"""What this machine is: CPU features by the names Linux gives them, and the memory that is left."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import re
import sys
from pathlib import Path

INT8_FEATURES = {
    "sse4_1": "the least onednn and onnxruntime run with",
    "sse4_2": "the least openvino runs with",
    "avx2": "256-bit int8 products, in pairs that can saturate in int16",
    "avx512bw": "512-bit int8 products, in pairs that can saturate in int16",
    "avx_vnni": "256-bit products of u8 and s8 added in int32 at once: nothing saturates",
    "avx512_vnni": "512-bit products of u8 and s8 added in int32 at once: nothing saturates",
    "amx_int8": "int8 matrix tiles",
    "asimddp": "Arm: dot products of int8",
    "i8mm": "Arm: int8 matrix products",
}
"""CPU flags that decide about int8, by Linux's names, and what each is good for."""


LARGE = 1 << 18
"""Bytes of a weight behind which freed memory is given back to the system."""


@functools.cache
def cpu_features() -> list[str]:
    """Return the instruction set extensions of this CPU, sorted (x86: the flags of /proc/cpuinfo); empty where
    unreadable.

    Example:
        >>> isinstance(cpu_features(), list)
        True
    """
    if sys.platform == "linux":
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
        return sorted(set(found.group(1).split())) if found else []
    import archspec.cpu.detect  # twenty milliseconds, for systems that have no such file

    return sorted(archspec.cpu.detect.detected_info().features)


def native_library() -> Path | None:
    """Return the file of the native engine's compiled library, None where it was not built; imports no engine.

    Example:
        >>> native_library() is None or native_library().name.startswith("_library")
        True
    """
    folder = Path(__file__).parent / "engines" / "native"
    found = importlib.machinery.PathFinder.find_spec("_library", [str(folder)])
    return None if found is None or found.origin is None else Path(found.origin)


def trim() -> None:
    """Give freed memory back to the system: glibc keeps what lies between objects that stay."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)


def trim_behind(weight: int) -> None:
    """Give back what a layer was worked on in, several times its weight of so many bytes, where that is worth the time.

    Without that, glibc keeps as much for every layer.
    """
    if weight >= LARGE:
        trim()


def available_memory() -> int | None:
    """Return the bytes that can be allocated before the machine or its container runs out; None where unknown."""
    bounds = []
    found = re.search(r"^MemAvailable:\s+(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE)
    if found:
        bounds.append(int(found.group(1)) * 1024)
    bounds += _container_memory()
    if sys.platform != "win32":
        import resource

        used = read_text("/proc/self/statm").split()
        for limit, column in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY and len(used) > column:
                bounds.append(max(soft - int(used[column]) * resource.getpagesize(), 0))
    return min(bounds, default=None)


def _container_memory() -> list[int]:
    """Return what the control groups of this process leave, version 2 and 1. Page cache counts as free."""
    left = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit, usage, key = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            folder, limit, usage = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            key = "total_inactive_file"
        else:
            continue
        for place in (folder + path, folder):  # inside a container its own group is the root
            most, used = read_text(f"{place}/{limit}").strip(), read_text(f"{place}/{usage}").strip()
            if most.isdigit() and used.isdigit():
                cache = re.search(rf"^{key} (\d+)$", read_text(f"{place}/memory.stat"), re.MULTILINE)
                left.append(max(int(most) - int(used) + (int(cache.group(1)) if cache else 0), 0))
                break
    return left


def read_text(path: str) -> str:
    """Return what a file of the system says, "" where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system, or not for this user
        return ""
