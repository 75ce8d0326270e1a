"""A sixteenth set of faults by somebody who had seen neither the doctor nor its page, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_sixteenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "clean_slopes_lost": "slopes of their own in four layers are made up for by other units of the answers",
    "lander_rate_too_high": "the channels that died of it are named",
    "machine_relu": "the metric is of batches, so that no repair is measured",
}
"""What the doctor does not say first, and what it says."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
