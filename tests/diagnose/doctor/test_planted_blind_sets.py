"""Sets of faults by people who had not seen the doctor, from the fourth on: quick ones here, all in the long tests.

A set has ``FAULTS`` and ``SOUND`` networks. ``MISSED`` tells of which faults the doctor says something else, ``WEAK``
of which sound networks it says something; ``QUICK`` are faults that take a second or two, and ``NEEDS_ASSETS`` networks
with weights or data in the folder of assets; ``STRICT`` where what is missed must be, and ``BUDGET`` in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

from tests.diagnose.doctor import (
    planted_blind_eighteenth,
    planted_blind_eighth,
    planted_blind_fifteenth,
    planted_blind_fifth,
    planted_blind_fourteenth,
    planted_blind_fourth,
    planted_blind_nineteenth,
    planted_blind_ninth,
    planted_blind_seventeenth,
    planted_blind_seventh,
    planted_blind_sixteenth,
    planted_blind_sixth,
    planted_blind_tenth,
    planted_blind_thirteenth,
    planted_blind_thirtieth,
    planted_blind_twelfth,
    planted_blind_twentieth,
    planted_blind_twentyeighth,
    planted_blind_twentyfifth,
    planted_blind_twentyfirst,
    planted_blind_twentyfourth,
    planted_blind_twentyninth,
    planted_blind_twentysecond,
    planted_blind_twentyseventh,
    planted_blind_twentysixth,
    planted_blind_twentythird,
)
from tests.diagnose.doctor.planting import accusations, ask_about

SETS = (
    planted_blind_fourth,
    planted_blind_fifth,
    planted_blind_sixth,
    planted_blind_seventh,
    planted_blind_eighth,
    planted_blind_ninth,
    planted_blind_tenth,
    planted_blind_twelfth,
    planted_blind_thirteenth,
    planted_blind_fourteenth,
    planted_blind_fifteenth,
    planted_blind_sixteenth,
    planted_blind_seventeenth,
    planted_blind_eighteenth,
    planted_blind_nineteenth,
    planted_blind_twentieth,
    planted_blind_twentyfirst,
    planted_blind_twentysecond,
    planted_blind_twentythird,
    planted_blind_twentyfourth,
    planted_blind_twentyfifth,
    planted_blind_twentysixth,
    planted_blind_twentyseventh,
    planted_blind_twentyeighth,
    planted_blind_twentyninth,
    planted_blind_thirtieth,
)


def parameters(part: str, failing: str) -> list[object]:
    """Return sets and names of ``part``, those of ``failing`` as tests that are known to fail, and why."""
    found = []
    for planted in SETS:
        names: Iterable[str] = getattr(planted, part)
        reasons: Mapping[str, str] = getattr(planted, failing, {})
        strict = getattr(planted, "STRICT", False)
        for name in sorted(names):
            marks = []
            if name in reasons:
                marks.append(pytest.mark.xfail(reason=reasons[name], raises=AssertionError, strict=strict))
            if part == "SOUND" or name not in getattr(planted, "QUICK", ()):
                marks.append(pytest.mark.long)
            found.append(pytest.param(planted, name, marks=marks, id=f"{planted.__name__.rpartition('_')[2]}-{name}"))
    return found


def budget(planted: ModuleType) -> dict[str, float]:
    """Return what a set says of the doctor's time."""
    return {"budget": planted.BUDGET} if hasattr(planted, "BUDGET") else {}


@pytest.mark.parametrize(("planted", "name"), parameters("FAULTS", "MISSED"))
def test_right_first(planted: ModuleType, name: str, request: pytest.FixtureRequest) -> None:
    if planted.FAULTS[name].subject in getattr(planted, "NEEDS_ASSETS", ()):
        request.getfixturevalue("assets")
    report = ask_about(lambda: planted.plant(name), **budget(planted))
    assert planted.right(name, report), [str(finding) for finding in report.findings[:3]]


@pytest.mark.parametrize(("planted", "name"), parameters("SOUND", "WEAK"))
def test_nothing_is_said_against_a_sound_network(
    planted: ModuleType, name: str, request: pytest.FixtureRequest
) -> None:
    if name in getattr(planted, "NEEDS_ASSETS", ()):
        request.getfixturevalue("assets")
    assert not accusations(ask_about(planted.SOUND[name], **budget(planted)))
