"""Faults of everyday practice and of hostile judges: quick ones here, all of them in the long tests."""

from __future__ import annotations

import fnmatch
import warnings
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="helpers of these tests read its digits")

from tests.diagnose.doctor import planted_afresh, planted_by_judges, planted_in_practice
from tests.diagnose.doctor.planted_on_digits import examined, first_finding
from tests.diagnose.doctor.shapes import patient

from intact8 import recipes
from intact8.diagnose.doctor import Finding

PLANTS = {**planted_in_practice.PLANTS, **planted_by_judges.PLANTS, **planted_afresh.PLANTS}
QUICK = ("generator_nan", "generator_percentile", "text_one_class", "detect_mixed_head", "regress_bias", "tcn_nan")
MISSED: dict[str, str] = {}
"""Faults about which something else, or nothing, is said first, and why."""


def right(finding: Finding, answers: set[tuple[str, str]]) -> bool:
    """Whether a finding is one of the answers, in which a star stands for any end of a name."""
    return any(fnmatch.fnmatchcase(finding.place, place) and finding.cause == cause for place, cause in answers)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(PLANTS.keys() - set(QUICK)))]
)
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[name], strict=True))
    make, answers = PLANTS[name]
    assert right(first_finding(make), answers)


SOUND = [*planted_in_practice.SOUND, *planted_by_judges.SOUND, *planted_afresh.SOUND]
NOISY = {"Detect": "shared_range", "Gpt": "accumulated", "Heads": "input_imbalance"}
"""What quantizing these networks costs by itself: a box in pixels has one scale with scores; 39 tensors make noise of
25 dB; and a head that was trained to give nothing gives more noise than that."""


@pytest.mark.long
@pytest.mark.parametrize("kind", SOUND, ids=[kind.__name__ for kind in SOUND])
def test_nothing_is_said_against_a_sound_network(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(patient(kind, recipe=recipes.default()))
    said = {finding.cause for finding in report.findings if finding.severity != "note"}
    assert said <= {NOISY.get(kind.__name__)}
