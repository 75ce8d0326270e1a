"""Facts about a machine, gathered in one place, so that the preflight can be asked about any other machine, too."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from intact8.engines.spec import SPECS
from intact8.machine import available_memory, cpu_features, native_library, read_text

PACKAGES = ("intact8", "safetensors", *dict.fromkeys(name for spec in SPECS.values() for name in spec.packages))

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
ISA_VARIABLES = (*ISA_LIMITS, "OPENBLAS_CORETYPE", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""Environment variables that choose other machine code than the CPU alone would."""


@dataclass(frozen=True)
class Facts:
    """A machine, as far as loading a program is concerned.

    Attributes:
        system: "Linux", "Darwin" or "Windows".
        machine: "x86_64", "aarch64" …
        cpu: model name of the CPU, "" where it cannot be read.
        features: CPU flags as Linux names them; empty where they cannot be read.
        python: version of Python.
        memory: bytes this process may still allocate, limits of containers included; None where unknown.
        glibc: version of the C library; None where it is another one, or unknown.
        glibcxx: newest GLIBCXX version of the C++ library that would be used; None where unknown.
        glibcxx_loaded: whether that library is in this process already, so that no other one will be used.
        packages: installed version of each package that matters here.
        wheels: package → platform tags of the wheel it was installed from; a package built here has none.
        environment: values of the environment variables that choose machine code.
        compiled: whether the compiled library of the native engine was built.

    Example:
        >>> here = Facts.here()
        >>> here.packages["numpy"].split(".")[0] in ("1", "2")
        True
    """

    system: str
    machine: str
    cpu: str = ""
    features: frozenset[str] = frozenset()
    python: str = ""
    memory: int | None = None
    glibc: str | None = None
    glibcxx: str | None = None
    glibcxx_loaded: bool = True
    packages: Mapping[str, str] = field(default_factory=dict)
    wheels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = True

    @staticmethod
    def here() -> Facts:
        """Gather the facts about this machine, now. Imports no engine."""
        import importlib.metadata  # a fifth of this package's import time

        from intact8 import __version__

        packages, wheels = {"intact8": __version__}, {}
        for name in PACKAGES[1:]:
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            about = distribution.read_text("METADATA") or ""
            found = re.search(r"^Version: (\S+)$", about, re.MULTILINE)
            packages[name] = found[1] if found else str(distribution.version)  # which parses all of it
            tags = re.findall(r"^Tag: \S+?-\S+?-(\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
            if tags:
                wheels[name] = tuple(tags)
        glibcxx, loaded = _glibcxx()
        return Facts(
            system=platform.system(),
            machine=platform.machine(),
            cpu=_model_name(),
            features=frozenset(cpu_features()),
            python=platform.python_version(),
            memory=available_memory(),
            glibc=_glibc(),
            glibcxx=glibcxx,
            glibcxx_loaded=loaded,
            packages=packages,
            wheels=wheels,
            environment={name: os.environ[name] for name in ISA_VARIABLES if name in os.environ},
            compiled=native_library() is not None,
        )

    @property
    def is_x86(self) -> bool:
        """Whether this is a 64-bit x86 machine."""
        return self.machine.lower() in ("x86_64", "amd64")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, sorted."""
        wheels = {name: list(tags) for name, tags in self.wheels.items()}
        return {**asdict(self), "features": sorted(self.features), "wheels": wheels}


def _model_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor()


def _glibc() -> str | None:
    name, version = platform.libc_ver()
    return version if name == "glibc" and version else None


def _glibcxx() -> tuple[str | None, bool]:
    """Return the newest symbol version of the C++ library in this process, else of the one the linker should find."""
    if platform.system() != "Linux":
        return None, False
    mapped = re.search(r"(/\S*libstdc\+\+\.so\.6\S*)$", read_text("/proc/self/maps"), re.MULTILINE)
    candidates = [mapped.group(1)] if mapped else _library_paths()
    for path in candidates:
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        minors = [tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)", data)]
        if minors:
            return ".".join(map(str, max(minors))), mapped is not None
    return None, False


def _library_paths() -> list[str]:
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    triple = f"{platform.machine()}-linux-gnu"
    folders += [f"/lib/{triple}", f"/usr/lib/{triple}", "/lib64", "/usr/lib64", "/usr/local/lib64", "/usr/lib", "/lib"]
    return [f"{folder}/libstdc++.so.6" for folder in folders]
