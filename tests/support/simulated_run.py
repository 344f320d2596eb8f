"""A simulated fleet run to its end, with every sample by GPU; synthetic by construction.

To look at something else of a run: a method here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.simulated import Simulated
from telemetry.errors import EndOfInput
from telemetry.records import Event, Measurement, NodeInventory, SampleBatch

START_NS = 1_790_000_000 * 10**9
S = 10**9


def fleet(*faults: Mapping[str, Any], nodes: int = 2, gpus: int = 4, **changes: Any) -> dict[str, Any]:
    """A description: one rack of equal nodes `n1`, `n2`, ... each GPU busy on its own, and these faults."""
    return {
        "name": "test",
        "sites": [
            {
                "name": "s",
                "daily_c": 0,
                "racks": [{"name": "r", "nodes": [{"name": "n{i}", "count": nodes, "gpus": gpus}]}],
            }
        ],
        "workloads": [{"name": "w", "class": "compute", "synchronous": False, "utilization": 1.0}],
        "faults": list(faults),
        **changes,
    }


class Run:
    """All that a fleet told in `seconds`."""

    def __init__(self, description: Mapping[str, Any] | str, *, seconds: float, **arguments: Any) -> None:
        self.source = Simulated(fleet=description, start_ns=START_NS, duration_s=seconds, **arguments)
        self.batches: list[SampleBatch] = []
        self.arrivals: list[int] = []  # for each batch, the step that brought it
        self.inventory: list[NodeInventory] = []
        self.events: list[Event] = []
        self.measurements: list[Measurement] = []
        step = 0
        while True:
            try:
                reading = self.source.collect()
            except EndOfInput:
                break
            self.batches += reading.samples
            self.arrivals += [step] * len(reading.samples)
            self.inventory += reading.inventory
            self.events += reading.events
            self.measurements += reading.measurements
            step += 1
        self.source.close()

    def uuid(self, node: str, slot: int) -> str:
        """The UUID in a slot at the start."""
        first = next(inventory for inventory in self.inventory if inventory.node == node)
        return next(gpu.gpu_uuid for gpu in first.gpus if gpu.slot == slot)

    def times(self, uuid: str) -> NDArray[np.int64]:
        """Seconds since the start of a GPU's samples."""
        return (self._gathered(uuid, lambda batch: batch.time_ns) - START_NS) // S

    def values(self, uuid: str, metric: str) -> NDArray[Any]:
        """A metric of a GPU, in order of time; None where it was null or absent."""
        return self._gathered(uuid, lambda batch: batch.columns.get(metric, [None] * len(batch)))

    def between(self, uuid: str, metric: str, first: float, stop: float) -> NDArray[Any]:
        """The same for some seconds."""
        times = self.times(uuid)
        return self.values(uuid, metric)[(times >= first) & (times < stop)]

    def _gathered(self, uuid: str, read: Any) -> NDArray[Any]:
        parts, times = [], []
        for batch in self.batches:
            if uuid in batch.gpus:
                chosen = np.asarray(batch.gpu) == batch.gpus.index(uuid)
                parts.append(np.asarray(read(batch))[chosen])
                times.append(np.asarray(batch.time_ns)[chosen])
        if not parts:
            return np.zeros(0)
        return np.concatenate(parts)[np.argsort(np.concatenate(times), kind="stable")]
