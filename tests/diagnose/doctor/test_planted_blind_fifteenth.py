"""A fifteenth set of faults by somebody who had seen neither the doctor nor its page, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_fifteenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "ads_crossed_clipped": "its numbers, which nobody normalized, make more noise still",
    "ads_table_not_loaded": "an embedding that was never trained is not told from one that was",
    "cells_activation_identity": "the activation is missed at the sum before it",
    "load_large_eps": "the eps is used twice, and one place put right gives nothing back",
    "query_queries_not_loaded": "queries that were never trained are not told from those that were",
    "voice_linear_filters": "the filters are fixed, and the layer behind them is said to be wrong",
}
"""What the doctor does not say first, and what it says."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
