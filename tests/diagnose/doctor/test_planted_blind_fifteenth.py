"""A fifteenth set of faults by somebody who had seen neither the doctor nor its page, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_fifteenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "dense_dead_transition": "the statistics of the next batch norm are said not to be those of its inputs",
    "ftt_loud_queries": "the layer's weights are said to be large, which they are",
    "points_cancel": "the statistics of the batch norms are said not to be those of their inputs, which they are not",
    "tcn_half_the_rate": "twice the dilation gives back a part of what half the rate takes",
    "tcn_machine_off": "the calibration data are said to be unlike the data, which they are",
}
"""What the doctor does not say first, and what it says."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
