"""A sixth set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.blind_networks_sixth import REAL
from tests.diagnose.doctor.planted_blind_sixth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "colour_statistics_of_bytes": "inputs from 0 to 1 make the statistics fit as well, and give as many answers back",
    "mobile_maximum": "it takes away 14 % of the loss",
    "rhythm_clicks_widen": "that statistics differ is said first, with clicks; ranges without them would clip these",
    "sentiment_words_moved": "it is the indices that are said to be one less",
    "text_unmasked": "it costs one answer in a hundred",
}
"""What the doctor does not say first, and why."""

WEAK: dict[str, str] = {"auto": "two of 16 channels of a layer are dead, which is true"}
"""Networks without a fault against which something is said."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=True))
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if FAULTS[name].subject in REAL:
        request.getfixturevalue("assets")
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, WEAK, strict=True))
def test_nothing_is_said_against_a_sound_network(name: str, request: pytest.FixtureRequest) -> None:
    if name in REAL:
        request.getfixturevalue("assets")
    assert not accusations(ask_about(SOUND[name]))
