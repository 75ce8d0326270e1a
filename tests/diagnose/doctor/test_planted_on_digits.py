"""Faults on networks that the rules were not written on, most of them of the float network itself: a part of them here.

``python benchmarks/doctor.py`` runs them all.
"""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_on_digits import (
    PLANTS,
    Concatenating,
    Mlp,
    Residual,
    Transformer,
    case,
    examined,
    trained,
)

import intact8
from intact8.diagnose.doctor.float_causes import FLOAT_CAUSES

QUICK = ("mlp_exploded_weight", "mlp_dead_channels", "mlp_nan", "mlp_permuted_classes", "mlp_large_learning_rate")


def first_of(name: str) -> tuple[str, str, str, str]:
    """Place and cause as planted, and as they are said first."""
    planted = PLANTS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = examined(planted).findings
    first = (found[0].place, found[0].cause) if found else ("", "")
    return (planted.place, planted.causes[0], *first)


@pytest.mark.parametrize("name", QUICK)
def test_right_first(name: str) -> None:
    place, cause, said_place, said_cause = first_of(name)
    assert (said_place, said_cause) == (place, cause)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PLANTS.keys() - set(QUICK)))
def test_right_first_all(name: str) -> None:
    place, cause, said_place, said_cause = first_of(name)
    assert (said_place, said_cause) == (place, cause)


@pytest.mark.parametrize(
    "kind", [Mlp, *(pytest.param(k, marks=pytest.mark.long) for k in (Residual, Transformer, Concatenating))]
)
def test_nothing_is_said_against_a_sound_float_network(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(case(trained(kind), "", "", recipe=intact8.recipes.default()))
    wrong = [f for f in report.findings if f.cause in FLOAT_CAUSES and f.severity == "error"]
    assert not wrong, [str(finding) for finding in wrong]
