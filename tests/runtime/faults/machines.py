"""Machines this one is not: what a load must say there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.program.build import certified, network, with_op

from intact8.golden import with_golden
from intact8.program.certify import certify
from intact8.program.program import Program
from intact8.runtime.facts import Facts

GIB = 1 << 30
AVX2 = frozenset({"sse4_1", "sse4_2", "avx", "avx2"})
GOOD = Facts(
    system="Linux", machine="x86_64", cpu="a CPU", features=AVX2 | {"avx512bw", "avx512_vnni"}, python="3.11.7",
    memory=8 * GIB, glibc="2.36", glibcxx="3.4.30",
    packages={"numpy": "2.1.0", "torch": "2.13.0+cpu", "onnx": "1.17.0", "onnxruntime": "1.20.1", "openvino": "2026.4"},
    wheels={
        "torch": ("manylinux_2_28_x86_64",), "onnxruntime": ("manylinux_2_27_x86_64.manylinux_2_28_x86_64",),
        "openvino": ("manylinux2014_x86_64",),
    },
)  # fmt: skip


def portable() -> Program:
    """Runs on any x86 CPU."""
    return with_golden(certified())


def needy() -> Program:
    """Needs VNNI on x86: kernels without it add two products in int16, and these saturate."""
    rng = np.random.default_rng(0)
    weight = rng.choice(np.int8([-127, 127]), (4, 3, 3, 3))
    arrays = {"weight": weight, "a": np.ones(4, np.int32), "b": np.full(4, 2001, np.int32)}
    program = certify(with_op(network(), "net.c1", arrays=arrays))
    assert program.needs == ("vnni",)
    return with_golden(program)


Machine = tuple[Callable[[], Program], str, dict[str, Any], str, str]
MACHINES: dict[str, Machine] = {
    "no VNNI": (needy, "onednn", {"features": AVX2}, "AVX512-VNNI or AVX-VNNI; found is AVX2", "portable=True"),
    "no VNNI, openvino": (needy, "openvino", {"features": AVX2}, "found is AVX2", "portable=True"),
    "no VNNI, onnxruntime": (needy, "onnxruntime", {"features": AVX2}, "found is AVX2", "engine='reference'"),
    "VNNI switched off": (
        needy, "openvino", {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}},
        "AVX512 (ONEDNN_MAX_CPU_ISA=AVX512_CORE)", "portable=True",
    ),
    "VNNI unknown": (needy, "onednn", {"features": frozenset()}, "cannot be read", "portable=True"),
    "old CPU": (portable, "onednn", {"features": frozenset({"sse2"})}, "no sse4_1", "engine='reference'"),
    "old CPU, onnxruntime": (portable, "onnxruntime", {"features": frozenset({"sse2"})}, "no sse4_1", "reference"),
    "old CPU, openvino": (portable, "openvino", {"features": frozenset({"sse4_1"})}, "no sse4_2", "reference"),
    "Arm, onednn": (portable, "onednn", {"machine": "aarch64"}, "found is aarch64", "onnxruntime"),
    "Arm, openvino": (portable, "openvino", {"machine": "aarch64"}, "found is aarch64", "onnxruntime"),
    "Arm Mac, onednn": (portable, "onednn", {"machine": "arm64", "system": "Darwin"}, "found is arm64", "onnxruntime"),
    "32-bit x86": (portable, "onednn", {"machine": "i686"}, "found is i686", "engine='reference'"),
    "Power": (portable, "openvino", {"machine": "ppc64le"}, "found is ppc64le", "engine='reference'"),
    "RISC-V, a wheel for x86": (portable, "onnxruntime", {"machine": "riscv64"}, "manylinux_2_27_x86_64", "reinstall"),
    "no torch": (portable, "onednn", {"packages": {}}, "not installed", "intact8[torch]"),
    "no openvino": (portable, "openvino", {"packages": {}}, "not installed", "intact8[openvino]"),
    "no onnx": (portable, "onnxruntime", {"packages": {"onnxruntime": "1.20"}}, "not installed", "intact8[onnx]"),
    "old torch": (portable, "onednn", {"packages": {"torch": "2.7.1"}}, "found is 2.7.1", "upgrade torch"),
    "old torch, longer": (portable, "onednn", {"packages": {"torch": "1.13.1+cu117"}}, "1.13.1+cu117", "upgrade"),
    "old onnxruntime": (
        portable, "onnxruntime", {"packages": {"onnxruntime": "1.9.0", "onnx": "1.17"}}, "found is 1.9.0", "upgrade",
    ),
    "old openvino": (portable, "openvino", {"packages": {"openvino": "2024.6.0"}}, "2024.6.0", "upgrade"),
    "old numpy": (portable, "reference", {"packages": {"numpy": "1.19.5"}}, "1.19.5", "upgrade numpy"),
    "a wheel for Arm": (portable, "onednn", {"wheels": {"torch": ("linux_aarch64",)}}, "linux_aarch64", "reinstall"),
    "old glibc": (portable, "onednn", {"glibc": "2.17"}, "glibc 2.28; found is 2.17", "newer system"),
    "old libstdc++": (portable, "onednn", {"glibcxx": "3.4.9"}, "GLIBCXX up to 3.4.24", "LD_LIBRARY_PATH"),
    "no memory": (portable, "onednn", {"memory": 100 << 20}, "found is 100 MiB", "free memory"),
    "no memory, reference": (portable, "reference", {"memory": 1000}, "found is 0 MiB", "free memory"),
}  # fmt: skip
"""Name → program, engine, what differs from GOOD, words of the refusal, words of its remedy."""
