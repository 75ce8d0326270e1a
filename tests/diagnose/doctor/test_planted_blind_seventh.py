"""A seventh set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_seventh import FAULTS, SOUND, ask, plant, right
from tests.diagnose.doctor.planting import marked

QUICK: tuple[str, ...] = ()
"""Those of which network and examination take a second or two."""

MISSED: dict[str, str] = {}
"""What the doctor does not say first, and why."""

WEAK: dict[str, str] = {}
"""Networks without a fault against which something is said."""


@pytest.mark.parametrize("name", [*QUICK, *marked(FAULTS.keys() - set(QUICK), MISSED, strict=True)])
def test_right_first(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = ask(plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, WEAK, strict=True))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = ask(SOUND[name]())
    said = [finding for finding in report.findings if finding.severity != "note"]
    assert not said, [str(finding) for finding in said]
