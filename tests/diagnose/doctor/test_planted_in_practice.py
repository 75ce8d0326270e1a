"""Faults of everyday practice, of practitioners and of hostile judges: quick ones here, all in the long tests."""

from __future__ import annotations

import fnmatch
import warnings
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="helpers of these tests read its digits")

from tests.diagnose.doctor import (
    planted_afresh,
    planted_at_work,
    planted_by_judges,
    planted_in_practice,
    planted_in_the_field,
)
from tests.diagnose.doctor.planted_on_digits import examined, first_finding
from tests.diagnose.doctor.shapes import patient

from intact8 import recipes
from intact8.diagnose.doctor import Finding

SETS = (planted_in_practice, planted_by_judges, planted_afresh, planted_in_the_field, planted_at_work)
PLANTS = {name: plant for plants in SETS for name, plant in plants.PLANTS.items()}
QUICK = ("text_one_class", "regress_bias", "growers_transposed", "squash_saturated")
MISSED = {
    "detect_noise_calibration": "one scale for a box and scores makes more noise, and is named",
    "bert_query_key_swapped": "it costs one answer in a hundred",
    "text_embedding_reinitialized": "a table as initialized looks like one that was trained for a little while",
    "lenet_huge_layer": "float answers no worse",
    "lenet_missing_activation": "float answers no worse",
    "moves_stale_observers": "the float weights are worse, too, which is named",
    "heads_zero_point": "another head makes more noise, and is named",
    "smooth_kernel_reversed": "float answers no worse",
    "patches_positions_transposed": "float answers no worse",
    "keyword_shrunk_after_freezing": "the float weights are worse, too, which is named",
    "tied_head_not_tied": "the table of words looks as it begins, and is named",
    "denoise_fresh_output": "numbers in other units say as much",
    "ghost_statistics_of_raw_images": "raw images, of which these are the statistics, give the same answers back",
    "squeeze_noise": "new statistics give a part back, and the network is wrong after them",
    "tied_positions_from_one": "what its answers are right about more is little beside what nobody can foretell",
    "pooling_states_transposed": "it costs 3 answers in a hundred",
}
"""Faults about which something else, or nothing, is said first, and why."""


def right(finding: Finding, answers: set[tuple[str, str]]) -> bool:
    """Whether a finding is one of the answers, in which a star stands for any end of a name."""
    return any(fnmatch.fnmatchcase(finding.place, place) and finding.cause == cause for place, cause in answers)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(PLANTS.keys() - set(QUICK)))]
)
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[name], strict=False))
    make, answers = PLANTS[name]
    assert right(first_finding(make), answers)


SOUND = [kind for plants in SETS for kind in plants.SOUND]
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


def test_a_wrong_float_network_is_not_to_be_quantized() -> None:
    make, _ = PLANTS["regress_bias"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = examined(make()).verdict
    assert not verdict.pays and "the float network is already wrong (6: exploded_channel)" in verdict.reason
