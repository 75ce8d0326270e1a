"""A third set of faults by somebody who had not seen the doctor: quick ones here, all in the long tests."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor import planted_blind_third, planted_blind_third_further
from tests.diagnose.doctor.planted_blind_third import SOUND
from tests.diagnose.doctor.planted_on_digits import examined, first_finding

PLANTS = planted_blind_third.PLANTS | planted_blind_third_further.PLANTS

QUICK = ("a_column_in_other_units", "infinite_variance", "weights_of_a_pixel_that_is_always_zero")
"""Those of which network and examination take a second or two."""


MISSED = {
    "relu_in_place_of_gelu": "float is right as often",
    "positions_not_loaded": "random numbers look like a table that training has moved little",
    "massive_activations": "layer norms take the channel back in float, and 30 dB are left",
    "activation_lost": "it costs nothing",
    "relu_in_place_of_relu6": "it costs nothing",
    "signed_input_as_unsigned": "the input of a recurrent layer is float32",
    "hardly_trained": "two of six layers are as initialized, and are named one by one",
    "filters_ten_times_as_large": "a factor of the next layer but one gives back as many answers",
}
"""What the doctor does not say first, and why."""


def marked(names: set[str]) -> list[object]:
    """Long tests, of which some are known to fail."""
    missed = {
        name: [pytest.mark.xfail(reason=why, raises=(AssertionError, IndexError))] for name, why in MISSED.items()
    }
    return [pytest.param(name, marks=[pytest.mark.long, *missed.get(name, [])]) for name in sorted(names)]


@pytest.mark.parametrize("name", [*QUICK, *marked(PLANTS.keys() - set(QUICK))])
def test_right_first(name: str) -> None:
    make, answers = PLANTS[name]
    first = first_finding(make)
    assert any(fnmatchcase(first.place, place) and first.cause == cause for place, cause in answers), str(first)


@pytest.mark.parametrize("name", marked(set(SOUND)))
def test_nothing_is_said_against_a_sound_network(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = examined(SOUND[name]())
    said = [finding for finding in report.findings if finding.severity != "note"]
    assert not said, [str(finding) for finding in said]
