"""Faults by kind of accident: quick ones here, all of them in the long tests and in ``benchmarks/doctor.py``."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor.planted_accidents import PLANTS
from tests.diagnose.doctor.planted_on_digits import first_finding

QUICK = ("mlp_exploded_bias", "mlp_lost_classes", "mlp_half_precision", "mlp_two_exploded_weights", "plain_nan_image")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted(PLANTS.keys() - set(QUICK)))]
)
def test_right_first(name: str) -> None:
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert (first.place, first.cause) in answers
