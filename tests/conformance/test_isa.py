"""Certificates hold on lesser CPUs: portable programs are exact everywhere, and what needs VNNI is refused without it.

The CPU is held back by the switches of the libraries: oneDNN's (torch and OpenVINO have copies of their own, and both
obey) and torch's. ONNX Runtime has no such switch; there its kernels are this machine's in every row.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_ops import ENGINES

CODE = """
import sys
import numpy as np
from dataclasses import replace
from tests.conformance.suite import check_network, check_ops
from tests.conformance.build import draw
from intact8.engines import cpu, get_engine
from intact8.errors import EngineError

engine, count = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(11)
for kind in ("conv", "linear", "add", "mean", "pool"):
    check_ops(engine, kind, rng, wide=False, count=count)
for seed in range(count // 4):
    check_network(engine, seed)

narrow = draw("linear", rng, False).program
demanding = replace(narrow, needs=("vnni",))
try:
    get_engine(engine).prepare(demanding)
    print("taken", cpu.has_vnni(cpu.isa()))
except EngineError as error:
    assert "portable=True" in str(error), error
    print("refused", cpu.has_vnni(cpu.isa()))
"""

LEVELS = {
    "avx512 without vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "INTACT8_ISA": "avx2"},
    "avx2 with vnni": {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "ATEN_CPU_CAPABILITY": "avx2", "INTACT8_ISA": "avx_vnni"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "INTACT8_ISA": "avx2"},
    "sse": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "INTACT8_ISA": "plain"},
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_portable_programs_are_exact_and_others_refused(engine: str, level: str) -> None:
    if engine == "onnxruntime" and level != "avx2":
        pytest.skip("ONNX Runtime reads the CPU itself: one row is as good as four")
    root = Path(__file__).parents[2]
    env = {**os.environ, **LEVELS[level], "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), *sys.path])}
    count = {"native": 40, "onednn": 40, "onnxruntime": 20, "openvino": 12}[engine]
    command = [sys.executable, "-c", CODE, engine, str(count)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout + run.stderr
    verdict, vnni = run.stdout.split()
    if engine == "native":
        assert verdict == "taken", "its kernels never add pairs in int16 that may saturate"
    elif engine != "onnxruntime":
        assert verdict == ("taken" if vnni == "True" else "refused")
