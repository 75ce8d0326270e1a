"""Where a program came from: versions, the machine, the data."""

from __future__ import annotations

import datetime
import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from intact8 import __version__
from intact8.nesting import arguments, is_plain

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation


def provenance(sim: Simulation) -> dict[str, Any]:
    """Return the versions, CPU features of this machine, calibration summary, equalization and date (UTC), as JSON
    values.

    ``equalized`` gives the factor of every channel of a layer whose channels were equalized: its integers stand for
    the float network's values divided by them, which whoever compares the two must know.
    """
    from intact8.machine import cpu_features

    layout = sim.captured.layout
    fixed = {name: value for name, value in layout.fixed_values().items() if _written(value)}
    factors = {place.name: sim.tensors[place.factor] for place in sim.equalized}
    equalized = {name: [float(str(v)) for v in f.cpu().numpy()] for name, f in factors.items() if bool((f != 1).any())}
    return {
        "intact8": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "calibration": sim.calibration,
        **({"equalized": equalized} if equalized else {}),
        **({"arguments": {"order": arguments(layout.keys), "fixed": fixed}} if fixed else {}),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _written(value: Any) -> bool:
    """Return whether a file can hold the value: infinite numbers are none of JSON's."""
    return is_plain(value) and not (isinstance(value, float) and not math.isfinite(value))
