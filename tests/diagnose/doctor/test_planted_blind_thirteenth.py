"""A thirteenth set of faults by somebody who had seen neither the doctor nor its page, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_thirteenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked


@pytest.mark.parametrize("name", marked(FAULTS, {}, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
