"""Faults by somebody who had never seen the doctor: quick ones here, all and sound networks in the long tests."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_blind import PLANTS, SAID, SOUND
from tests.diagnose.doctor.planted_on_digits import examined, first_finding

QUICK = ("mlp_transposed", "mlp_dropout_left_on", "mlp_weights_of_a_dead_pixel", "tab_one_row", "tab_percentile")
MISSED = {"det_box_bias_in_pixels": "its labels are of no form that is known, and no metric is given"}
"""Faults about which nothing is said, and why."""


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(PLANTS.keys() - set(QUICK)))]
)
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[name], strict=True))
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert (first.place, first.cause) in answers and SAID.get(name, "") in first.message


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SOUND))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(SOUND[name]())
    assert [finding for finding in report.findings if finding.severity != "note"] == []
