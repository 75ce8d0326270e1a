"""Numbers by which ``torch.compile`` finds simulations while it traces a call of one."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

SIMULATIONS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Every simulation of this process, by its number."""

_numbers = itertools.count()


def number_of(sim: Any) -> int:
    """Give a simulation, or a copy of one, a number of its own."""
    number = next(_numbers)
    SIMULATIONS[number] = sim
    return number
