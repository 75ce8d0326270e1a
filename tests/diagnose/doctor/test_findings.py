"""The order of findings, and what is made of those that are nobody's fault."""

from __future__ import annotations

import pytest

from intact8.diagnose.doctor.findings import tolerated
from intact8.diagnose.doctor.report import CALIBRATION, NETWORK, Finding


@pytest.mark.parametrize(
    ("loss", "divided", "order", "severity"),
    [
        (0.1, True, ["float_network_wrong", "unrepresentative", "no_integer_form"], "warning"),
        (0.0, True, ["float_network_wrong", "unrepresentative", "no_integer_form"], "note"),
        (0.1, False, ["unrepresentative", "float_network_wrong", "no_integer_form"], "error"),
    ],
)
def test_a_half_of_the_data_that_was_divided_here_is_nobodys_fault(
    loss: float, divided: bool, order: list[str], severity: str
) -> None:
    found = [
        Finding("unrepresentative", CALIBRATION, "error", "150 samples do not cover the ranges", "more"),
        Finding("float_network_wrong", NETWORK, "warning", "it is right on half of them", "train on"),
        Finding("no_integer_form", NETWORK, "note", "a table", "leave it"),
    ]
    told = tolerated(found, loss, 0.01, divided=divided)
    assert [f.cause for f in told] == order
    assert next(f for f in told if f.cause == "unrepresentative").severity == severity
