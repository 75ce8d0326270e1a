"""A fifth set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.blind_networks_fifth import REAL
from tests.diagnose.doctor.planted_blind_fifth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

QUICK = ("price_thousands",)
"""Those of which network and examination take a second or two."""

MEASURED = {*REAL, "efficient"}
"""Networks whose weights, or data, lie in the folder of assets."""

MISSED = {
    "fashion_one_norm_trains": "training mode is said of the network; the message names the norm",
    "sentences_dropout": "training mode is said of the network; the message names the dropout",
    "speech_exchanged": "it costs three answers in a hundred",
    "vit_positions": "the patches' few weights look as they are initialized, a small table of positions does not",
}
"""What the doctor does not say first, and why."""

WEAK = {"speech": "its first coefficient is 48 times as wide as the median one, which costs noise: a warning says so"}
"""A network without a fault against which something is said."""


@pytest.mark.parametrize("name", [*QUICK, *marked(FAULTS.keys() - set(QUICK), MISSED, strict=True)])
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if FAULTS[name].subject in MEASURED:
        request.getfixturevalue("assets")
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, WEAK, strict=True))
def test_nothing_is_said_against_a_sound_network(name: str, request: pytest.FixtureRequest) -> None:
    if name in MEASURED:
        request.getfixturevalue("assets")
    assert not accusations(ask_about(SOUND[name]))
