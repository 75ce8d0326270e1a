"""Calibration, training, freezing and solving again on tiny networks: every number is what it was when recorded.

The networks and recipes are in ``scenes.py``; each has one of the things that simulation and solver treat differently.
After an intended change ``python -m tests.simulation.scenes`` records anew.
"""

from __future__ import annotations

import pytest
from tests.simulation.scenes import SCENES, TOLERANCE, difference, play, recorded, summary

EXPECTED = recorded()


@pytest.mark.parametrize("title", SCENES)
def test_scene(title: str) -> None:
    entries = list(play(SCENES[title]))
    assert len(entries) == len(EXPECTED[title])
    for (name, array), expected in zip(entries, EXPECTED[title], strict=True):
        if expected is not None:
            assert difference(summary(array), expected) < TOLERANCE, name


def test_most_of_it_does_not_hang_on_the_last_bit() -> None:
    for title, entries in EXPECTED.items():
        assert sum(e is not None for e in entries) > 0.9 * len(entries), title
