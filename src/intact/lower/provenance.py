"""Where a program came from: versions, the machine, the data."""

from __future__ import annotations

import datetime
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from intact import __version__

if TYPE_CHECKING:
    from intact.simulation.module import Simulation


def provenance(sim: Simulation) -> dict[str, Any]:
    """Versions, CPU features of this machine, calibration summary and date (UTC), as JSON values."""
    from intact.machine import cpu_features

    return {
        "intact": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "calibration": sim.calibration,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
