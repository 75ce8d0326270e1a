"""A seventeenth set of faults by somebody who had seen neither the doctor nor its page, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_seventeenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "boxes_halves_exchanged": "a layer further behind, whose statistics do not fit, is named",
    "crop_factors_unequal": "factors become a part of the weights now, and nothing is lost",
    "dates_places_not_loaded": "positions that begin with another deviation than 0.02 are not told from trained ones",
    "engine_statistics_of_new_ones": "inputs prepared otherwise make up for the statistics",
    "engine_without_sigmoid": "numbers from 0 to 1 are taken for probabilities that logits are trained on",
    "separate_decoder_turned": "the encoder turned round gives as much back",
    "wind_gates_of_onnx": "the metric is of batches, so that no repair is measured",
}
"""What the doctor does not say first, and what it says."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
