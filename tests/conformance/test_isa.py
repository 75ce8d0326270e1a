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

from intact8.machine import cpu_features

from .test_ops import PROVED, STATUS

CODE = """
import sys
import numpy as np
from dataclasses import replace
from tests.conformance import test_dynamic
from tests.conformance.suite import check_network, check_ops
from tests.conformance.build import draw
from intact8.engines import cpu, get_engine
from intact8.errors import EngineError

for engine, count in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    rng = np.random.default_rng(11)
    for kind in ("conv", "linear", "add", "mean", "pool"):
        check_ops(engine, kind, rng, wide=False, count=count)
    for seed in range(count // 4):
        check_network(engine, seed)

    narrow = draw("linear", rng, False).program
    demanding = replace(narrow, needs=("vnni",))
    try:
        get_engine(engine).prepare(demanding)
        print(engine, "taken", cpu.has_vnni(cpu.isa()))
    except EngineError as error:
        assert "portable=True" in str(error), error
        print(engine, "refused", cpu.has_vnni(cpu.isa()))
rng = np.random.default_rng(5)
for i in range(60):
    shape, outputs = (int(rng.integers(1, 9)), int(rng.integers(1, 300))), int(rng.integers(1, 50))
    test_dynamic.draw(rng, shape, outputs, test_dynamic.KINDS[i % 6], "per_row")
"""

LEVELS = {
    "avx512 without vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "INTACT8_ISA": "avx2"},
    "avx2 with vnni": {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "ATEN_CPU_CAPABILITY": "avx2", "INTACT8_ISA": "avx_vnni"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "INTACT8_ISA": "avx2"},
    "sse": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "INTACT8_ISA": "plain"},
}
MORE_THAN_AVX2 = {"avx512 without vnni": "avx512bw", "avx2 with vnni": "avx_vnni"}
"""Level → the feature without which libraries do there what they do at the level of AVX2."""

COUNTS = {"native": 40, "onednn": 40, "onnxruntime": 20, "openvino": 12}
"""Engine → programs of each kind."""


@pytest.mark.parametrize("level", LEVELS)
def test_portable_programs_are_exact_and_others_refused(level: str) -> None:
    """All engines in one process, as importing them takes longer than their programs; so do dynamic layers."""
    if MORE_THAN_AVX2.get(level, "avx2") not in cpu_features():
        pytest.skip("this CPU lacks what is held back: the row would be that of AVX2 again")
    # ONNX Runtime reads the CPU itself: one row is as good as four.
    engines = [name for name in PROVED if STATUS[name] is None and (name != "onnxruntime" or level == "avx2")]
    root = Path(__file__).parents[2]
    env = {**os.environ, **LEVELS[level], "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), *sys.path])}
    counts = [str(word) for engine in engines for word in (engine, COUNTS[engine])]
    run = subprocess.run([sys.executable, "-c", CODE, *counts], env=env, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines] == engines
    for engine, verdict, vnni in map(str.split, lines):
        if engine == "native":
            assert verdict == "taken", "its kernels never add pairs in int16 that may saturate"
        elif engine != "onnxruntime":
            assert verdict == ("taken" if vnni == "True" else "refused"), engine
