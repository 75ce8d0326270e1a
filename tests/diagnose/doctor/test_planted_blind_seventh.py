"""A seventh set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_seventh import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

QUICK: tuple[str, ...] = ("ledger_eps",)
"""Those of which network and examination take a second or two."""

MISSED: dict[str, str] = {
    "coder_spread_for_mean": "the layer that should be read is not in the graph",
    "dense_corner": "the slice that takes the corner is named, which no answer does",
    "reader_last_word": "it costs four answers in a hundred, and a weight of the other sign makes up for it",
    "reader_places_reversed": "indices in reverse order give as many answers back",
    "spotter_rows_first": "it is judged by its classes, which are right, and not by its boxes",
    "tagger_along_samples": "its place and its remedy, batch_first=True, are named, by another cause",
    "temporal_first_step": "the slice that takes the step is named, which no answer does",
    "temporal_last_epoch": "all layers are off, and the first is named",
}
"""What the doctor does not say first, and why."""

WEAK: dict[str, str] = {"dense": "parts that are joined differ in width, which makes most of the noise"}
"""Networks without a fault against which something is said."""


@pytest.mark.parametrize("name", [*QUICK, *marked(FAULTS.keys() - set(QUICK), MISSED, strict=True)])
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, WEAK, strict=True))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
