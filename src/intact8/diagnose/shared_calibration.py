"""Calibration of many simulations of one network on the same data, in which observers are run once per tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.data import batches, device_of, samples
from intact8.calibration.run import STATISTICS, compute_scales
from intact8.capture.graph import Node
from intact8.diagnose.executors import unquantized
from intact8.simulation.quantized_tensor import Value, real
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.simulation import Simulation


class SharedCalibration:
    """Calibration data that simulations of one network are calibrated on, one after the other.

    Where the points of a simulation stand for tensors that were observed before, in the same way, their observers get
    the states that came of it; the result is that of a calibration on all batches, to the bit.

    Args:
        data: batches as for :func:`intact8.calibrate`.

    Example:
        >>> import intact8
        >>> data = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).split(32)
        >>> shared = SharedCalibration(data)
        >>> sims = [intact8.prepare(torch.nn.Linear(4, 2), data[0]) for _ in range(2)]
        >>> for sim in sims:
        ...     shared.calibrate(sim)
        >>> all(sim.calibrated for sim in sims)
        True
    """

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = list(data)
        self._states: dict[str, dict[str, Any]] = {}

    def calibrate(self, sim: Simulation) -> None:
        """Calibrate a simulation that has seen no data; what calibration warns about is not shown.

        Raises:
            CalibrationError: as :func:`intact8.calibrate`.
        """
        calls = []
        for call in batches(self.data, sim.input_specs, device_of(sim)):
            calls.append(call)
            if sum(map(samples, calls)) >= STATISTICS:
                break
        sim.collect_statistics(calls)
        keys = _keys(sim)
        if self._states.keys() >= set(keys.values()):
            for name, key in keys.items():
                sim.points[name].observer.load_state(self._states[key])
            for args, kwargs in batches(self.data, sim.input_specs, device_of(sim)):
                sim.keep(sim.flatten(args, kwargs))
            sim.resolve()
            return
        compute_scales(sim, self.data, shard="off", quiet=True)
        self._states |= {key: sim.points[name].observer.state() for name, key in keys.items()}


def _keys(sim: Simulation) -> dict[str, str]:
    """Return by point a text that is the same where an observer of the same kind sees the same numbers."""
    sums: dict[str, tuple[float, float]] = {}

    def visit(node: Node, inputs: Sequence[Value], output: Value) -> None:
        if node.name in sim.placed.point_of:
            y: Tensor = real(output).double()
            sums[node.name] = float(y.sum()), float(y.square().sum())

    with unquantized(sim), torch.no_grad():
        sim.run(list(sim.samples), visit=visit)

    def key(point: QuantPoint) -> str:
        observer = point.observer
        return repr((observer.kind, sorted(observer.args().items()), [(t, sums.get(t)) for t in point.tensors]))

    return {name: key(point) for name, point in sim.points.items()}
