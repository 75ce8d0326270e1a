"""Where a program came from: versions, the machine, the data."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from intact.simulation.module import Simulation


def provenance(sim: Simulation) -> dict[str, Any]:
    """Versions, CPU features of this machine, calibration summary and date (UTC), as JSON values."""
    from intact.machine import cpu_features

    try:
        version = importlib.metadata.version("intact")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "intact": version,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "calibration": sim.calibration,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
