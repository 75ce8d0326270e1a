"""An eighth set of faults by somebody who had not seen the doctor, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_eighth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

NOWHERE = "the float network is said to be wrong, without a place"
BESIDE = "a place beside it, or a consequence, is named"
SECOND = "named, but not first"

MISSED: dict[str, str] = {
    "kim_kernels_reversed": "texts are said to be reversed, which comes to the same",
    "kim_table_not_trained": BESIDE,
    "pulse_sampled_slower": SECOND,
    "valve_sentinel": NOWHERE,
}
"""What the doctor does not say first, and what it says."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
