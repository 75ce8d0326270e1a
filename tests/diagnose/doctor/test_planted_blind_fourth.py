"""A fourth set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="digits and texts come with scikit-learn")

from tests.diagnose.doctor.planted_blind_fourth import FAULTS, SOUND, plant, right
from tests.diagnose.doctor.planting import accusations, ask_about, marked

QUICK = ("price_relu", "classes_columns", "classes_missing")
"""Those of which network and examination take a second or two."""

MISSED = {
    "films_table_lost": "a table as initialized looks like one that was trained for a little while",
    "convnext_whole_norm": "it costs four answers in a hundred",
    "convnext_patches_transposed": "transposing all other kernels gives back more",
    "gru_head_bias": "all answers are off, which other units explain as well",
    "keywords_no_logarithm": "new statistics of the first batch norm give most answers back",
    "mobile_stem_padding": "it costs two answers in a hundred",
    "unet_raw": "new statistics of the first batch norm give the answers back",
}
"""What the doctor does not say first, and why."""


@pytest.mark.parametrize("name", [*QUICK, *marked(FAULTS.keys() - set(QUICK), MISSED, strict=False)])
def test_right_first(name: str) -> None:
    report = ask_about(lambda: plant(name), budget=120.0)
    assert right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize("name", marked(SOUND, MISSED, strict=False))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    assert not accusations(ask_about(SOUND[name], budget=120.0))
