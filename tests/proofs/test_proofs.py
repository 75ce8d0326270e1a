"""The numbers of the code are those of the proofs, and the proofs hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from intact8.arithmetic import bit_packing, norms, softmax, tie_free

PROOFS = Path(__file__).parents[2] / "proofs"
HEADER = (PROOFS.parent / "native" / "engine" / "product.h").read_text()
NIBBLE_DEPTH = 1 << int(re.search(r"#define NIBBLE_DEPTH \(1 << (\d+)\)", HEADER)[1])  # type: ignore[index]
SUMS = (PROOFS.parent / "src" / "intact8" / "simulation" / "ops" / "exact_sums.py").read_text()
EXACT = re.search(r"^EXACT = 2\.0\*\*(\d+)$", SUMS, re.MULTILINE)[1]  # type: ignore[index]
AXIOMS = {
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
}
"""What Coq's real numbers and classical logic rest on."""


def test_the_counted_roundings_are_those_of_the_proofs() -> None:
    proved = {
        (table, form): tuple(map(int, numbers.split()))
        for table, form, numbers in re.findall(
            r"Definition (FORMS|OPENVINO)_(\w+) := Build_roundings ([\d ]+)\.", (PROOFS / "Roundings.v").read_text()
        )
    }
    counted = {("FORMS", form): tuple(n) for form, n in tie_free.FORMS.items()}
    assert proved == counted | {("OPENVINO", form): tuple(n) for form, n in tie_free.OPENVINO.items()}


def test_every_form_of_every_engine_has_a_theorem() -> None:
    defined = re.findall(r"Definition (\w+) := Build_roundings", (PROOFS / "Roundings.v").read_text())
    stated = [line for line in (PROOFS / "Forms.v").read_text().splitlines() if line.startswith("Theorem")]
    assert set(defined) <= set(re.findall(r"(?:FORMS|OPENVINO)_\w+", "\n".join(stated)))
    assert all(form in tie_free.FORMS for forms in tie_free.ROUNDINGS.values() for form in forms)


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("Float32.v", f"Definition u : R := / {int(1 / tie_free.U)}."),
        ("Contract.v", f"<= {int(tie_free.LARGEST_STEPS)} * INR (of_result k)."),
        ("Contract.v", f"some_reach : 49/100 <= reach <= {int(tie_free.STEPS)}."),
        ("Main.v", f"reach = {int(tie_free.STEPS)} \\/"),
        ("Main.v", "reach = IZR z + 1);"),
        ("Exact.v", f"(size o < 2 ^ {EXACT})%Z ->"),
        ("Exact.v", f"(first + {bit_packing.MIDDLE[4]}) + 16 * (second + {bit_packing.MIDDLE[4]})."),
        ("Rows.v", f"count row <= {norms.LONGEST_ROW} ->"),
        ("Rows.v", f"Forall (fun t => 0 <= t <= {softmax.PEAK}) row ->"),
        ("Rows.v", f"(count row <= {softmax.FLOAT32_TERMS} ->"),
        ("Exact.v", f"Z.of_nat (length products) <= {NIBBLE_DEPTH} ->"),
    ],
)
def test_other_constants(file: str, statement: str) -> None:
    assert statement in (PROOFS / file).read_text()
    assert tie_free.negative_steps(17) == 18


def test_the_proofs_hold(tmp_path: Path) -> None:
    """Coq checks every file; no proof is left open, and nothing is assumed but the axioms of the real numbers."""
    if shutil.which("coqc") is None:
        pytest.skip("coqc is not installed: apt-get install coq libcoq-flocq")
    files = re.findall(r"^\w+\.v$", (PROOFS / "_CoqProject").read_text(), re.MULTILINE)
    assert sorted(files) == sorted(p.name for p in PROOFS.glob("*.v"))
    printed = ""
    for file in files:
        shutil.copy(PROOFS / file, tmp_path)
        command = ["coqc", "-q", "-Q", ".", "Intact", file]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{file}: {done.stderr}"
        printed += done.stdout
    assert "Closed under the global context" in printed
    names = re.findall(r"^([A-Za-z_]+\.[A-Za-z_]+)", printed, re.MULTILINE)
    assert set(names) <= AXIOMS
    for file in files:
        assert not re.search(r"\b(Admitted|Axiom|Parameter|admit)\b", (PROOFS / file).read_text())
