"""Checks the installed package, compiled engine included, against the reference on a stored program. Needs no torch."""

import sys
from pathlib import Path

import numpy as np

from intact8 import Program, verify
from intact8.program.samples import random_samples

FILE = Path(__file__).parents[1] / "tests" / "fixtures" / "0.1.0" / "network.safetensors"

if __name__ == "__main__":
    program = Program.load(FILE)
    report = verify(program, random_samples(program, 8), engines=("reference", "native"))
    versions = f"Python {sys.version.split()[0]}, numpy {np.__version__}"
    print(f"{versions}: {report.elements} integers, {report.mismatches} differ")
    sys.exit(not report.exact)
