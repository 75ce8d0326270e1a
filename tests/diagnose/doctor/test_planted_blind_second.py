"""A second set of faults by somebody who had never seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.blind_networks_second import ASSETS, ROOT
from tests.diagnose.doctor.planted_blind_second import NEEDS_ASSETS, PLANTS, SOUND
from tests.diagnose.doctor.planted_on_digits import examined, first_finding

QUICK = ("cal_sentinel", "nan_weight", "mode_train")
"""Those of which network and examination take a second or two."""


NOISE = {"tcn": {"clipped_range"}}
"""What makes about 30 dB of noise in sound networks, which is said as a warning."""


def marked(names: set[str], asset: set[str]) -> list[object]:
    """Long tests, of which some need assets."""
    skip = pytest.mark.skipif(not ROOT.is_dir(), reason="no assets beside the repository")
    return [pytest.param(n, marks=[pytest.mark.long, *([skip] if n in asset else [])]) for n in sorted(names)]


@pytest.mark.parametrize("name", [*QUICK, *marked(PLANTS.keys() - set(QUICK), NEEDS_ASSETS)])
def test_right_first(name: str) -> None:
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert any(fnmatchcase(first.place, place) and first.cause == cause for place, cause in answers), str(first)


@pytest.mark.parametrize("name", marked(set(SOUND), set(ASSETS)))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(SOUND[name]())
    said = [finding for finding in report.findings if finding.severity != "note"]
    assert {finding.cause for finding in said} == NOISE.get(name, set()), [str(finding) for finding in said]
