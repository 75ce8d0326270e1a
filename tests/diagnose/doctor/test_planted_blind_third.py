"""A third set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor import planted_blind_third, planted_blind_third_further
from tests.diagnose.doctor.planted_blind_third import SOUND
from tests.diagnose.doctor.planted_on_digits import examined, first_finding

PLANTS = planted_blind_third.PLANTS | planted_blind_third_further.PLANTS

QUICK = ("a_column_in_other_units", "infinite_variance", "weights_of_a_pixel_that_is_always_zero")
"""Those of which network and examination take a second or two."""


def marked(names: set[str]) -> list[object]:
    """Long tests."""
    return [pytest.param(name, marks=pytest.mark.long) for name in sorted(names)]


@pytest.mark.parametrize("name", [*QUICK, *marked(PLANTS.keys() - set(QUICK))])
def test_right_first(name: str) -> None:
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert any(fnmatchcase(first.place, place) and first.cause == cause for place, cause in answers), str(first)


@pytest.mark.parametrize("name", marked(set(SOUND)))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(SOUND[name]())
    said = [finding for finding in report.findings if finding.severity != "note"]
    assert not said, [str(finding) for finding in said]
