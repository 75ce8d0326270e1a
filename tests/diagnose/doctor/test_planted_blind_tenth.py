"""A tenth set of faults by somebody who had not seen the doctor, in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind_tenth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

MISSED: dict[str, str] = {
    "bert_half_cased": "words that are gone leave nothing to put right",
    "clinic_hot_pixels": "four of the samples that are held apart reach further, as some do by chance",
    "shop_trained_on_large_facts": "the range of what is joined is said to clip, which makes most of the noise",
    "tagger_per_tensor": "the noise of all weights together is too small to be told",
}
"""What the doctor does not say first, and why."""


@pytest.mark.parametrize("name", marked(FAULTS, MISSED, strict=False))
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name))
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, {}, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name]))
