"""Faults of kinds and on networks that were not tried before: quick ones here, all of them in the long tests."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor import planted_by_strangers, planted_elsewhere, planted_further, planted_mistakes
from tests.diagnose.doctor.planted_on_digits import examined, first_finding

PLANTS = {
    **planted_mistakes.PLANTS,
    **planted_elsewhere.PLANTS,
    **planted_further.PLANTS,
    **planted_by_strangers.PLANTS,
}
MISSED = {
    "inverted_wide_depthwise": "the next activation cuts the channel off, and no answer changes",
    "conformer_without_norm": "float answers as well without the norm",
    "sound_stale_variance": "inputs ten times as large, whose mean is 0, give the same answers back",
    "resnet_vanished_layer": "it costs two answers in a hundred, and an activation gives them back",
    "resnext_stale_range": "the float weights are worse, too, and another scale gives most back",
    "scaled_dead_channels": "dead channels have no deviation, and without their means it is a little better",
    "transformer_queries": "another scale of one product gives a tenth back: nothing is said",
    "tabular_columns": "features in another order have the same means and variances, and cost 6 points",
}
"""Faults about which nothing, or something else, is said first, and why."""
QUICK = (
    "recurrent_exploded_weight",
    "plain_upside_down",
    "tabular_raw_calibration",
)


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(PLANTS.keys() - set(QUICK)))],
)
def test_right_first(name: str, request: pytest.FixtureRequest) -> None:
    if name in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[name], strict=True))
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert (first.place, first.cause) in answers


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_dynamic_recurrent_layer_is_healed() -> None:
    """No scheme suits such weights, so the layer stays float, and the accuracy is that of float again."""
    make, answers = PLANTS["recurrent_dynamic_imbalance"]
    report = examined(make(), remedies=True)
    assert (report.findings[0].place, report.findings[0].cause) in answers
    exact, before, after = (report.outcome(name).metric for name in ("float", "before", "after"))
    assert before < exact - 0.01 and after == exact
    assert [rule.match for rule in report.recipe.rules if rule.quantize is False] == ["lstm"]
