"""What is true of a simulated fleet: each GPU's speed in each class, and what was done to whom, when, and its verdict.

To tell more: a field in `truth_of`, written in docs/simulation.md.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from collectors.simulated.conditions import healthy
from collectors.simulated.fault import Fault
from collectors.simulated.faults import FAULTS
from collectors.simulated.fleet import Fleet
from collectors.simulated.group import generation_at
from collectors.simulated.physics import steady
from collectors.simulated.silicon import draw, gpu_uuid
from collectors.simulated.workloads import CLASSES

FORMAT = "isotach.truth/1"
_NODES_AT_ONCE = 256


def truth_of(fleet: Fleet, *, seed: int, start_ns: int, interval_s: float) -> dict[str, Any]:
    """The truth about the whole fleet, whichever part of it is published, ready for JSON.

    `speeds` are throughput alone, settled, without faults, relative to the median GPU of the same model; those of a
    fault are the same with that fault alone at its full size.
    """
    judge = _Judge(fleet, seed=seed, start_ns=start_ns, interval_s=interval_s)
    gpus: dict[str, dict[str, Any]] = {}
    for at in range(0, len(fleet.nodes), _NODES_AT_ONCE):
        gpus.update(judge.gpus(range(at, min(at + _NODES_AT_ONCE, len(fleet.nodes))), {}))
    raw: dict[str, dict[str, list[float]]] = {}
    for gpu in gpus.values():
        for name, speed in gpu["speeds"].items():
            raw.setdefault(gpu["model"], {}).setdefault(name, []).append(speed)
    typical = {model: {name: median(speeds) for name, speeds in by.items()} for model, by in raw.items()}
    for fault in fleet.faults:
        if fault.kind == "gpu_swap":
            gpus.update(judge.swapped(fault))
    for gpu in gpus.values():
        gpu["speeds"] = _relative(gpu["speeds"], typical[gpu["model"]])
    return {
        "format": FORMAT,
        "fleet": fleet.name,
        "seed": seed,
        "start_ns": start_ns,
        "gpus": gpus,
        "faults": [judge.fault(fault, gpus, typical) for fault in fleet.faults],
        "jobs": [
            {
                "workload": job.workload.name,
                "class": job.workload.work_class,
                "synchronous": job.workload.synchronous,
                "nodes": [fleet.nodes[node].name for node in job.nodes],
                "start_ns": start_ns + round(job.workload.start_s * 1e9),
                "end_ns": _ns(start_ns, job.workload.end_s),
            }
            for job in fleet.jobs
        ],
    }


class _Judge:
    def __init__(self, fleet: Fleet, *, seed: int, start_ns: int, interval_s: float) -> None:
        self._fleet = fleet
        self._seed = seed
        self._start_ns = start_ns
        self._interval_s = interval_s

    def gpus(
        self, nodes: Sequence[int], generations: dict[tuple[str, int], int], fault: Fault | None = None
    ) -> dict[str, dict[str, Any]]:
        """Every GPU of these nodes with its own speeds, not yet relative to the median."""
        there = [self._fleet.nodes[node] for node in nodes]
        silicon = draw(
            there,
            seed=self._seed,
            interval_s=self._interval_s,
            node_spread_c=self._fleet.node_spread_c,
            generations=generations,
        )
        conditions = healthy(silicon)
        places = [(node, slot) for node in nodes for slot in range(self._fleet.nodes[node].gpus)]
        if fault is not None and (apply := FAULTS[fault.kind].apply) is not None:
            targets = set(fault.targets)
            rows = np.array([row for row, place in enumerate(places) if place in targets], dtype=np.intp)
            if fault.kind == "drift":
                conditions.silicon[rows] *= 1.0 - fault.size
            else:
                apply(conditions, rows, fault, self._interval_s)
        speeds = {
            name: steady(silicon, conditions, name, time_s=self._start_ns / 1e9).speed.tolist() for name in CLASSES
        }
        found: dict[str, dict[str, Any]] = {}
        for row, (node, slot) in enumerate(places):
            its = self._fleet.nodes[node]
            uuid = gpu_uuid(self._seed, its.name, slot, generations.get((its.name, slot), 0))
            found[uuid] = {
                "node": its.name,
                "slot": slot,
                "model": its.model.product,
                "place": [list(level) for level in its.place],
                "speeds": {name: values[row] for name, values in speeds.items()},
            }
        return found

    def swapped(self, fault: Fault) -> Iterator[tuple[str, dict[str, Any]]]:
        """The GPUs that a swap brings."""
        tick = fault.ticks(self._interval_s)[0]
        names = {(self._fleet.nodes[node].name, slot) for node, slot in fault.targets}
        later = {name: generation_at(self._fleet, name, tick, self._interval_s) for name in names}
        for uuid, gpu in self.gpus(sorted({node for node, _ in fault.targets}), later).items():
            if (gpu["node"], gpu["slot"]) in names:
                yield uuid, gpu | {"from_ns": self._start_ns + round(fault.start_s * 1e9)}

    def fault(
        self, fault: Fault, gpus: dict[str, dict[str, Any]], typical: dict[str, dict[str, float]]
    ) -> dict[str, Any]:
        """One fault with its targets and what a right judge would say of them."""
        tick = fault.ticks(self._interval_s)[0]
        names = {
            (self._fleet.nodes[node].name, slot): generation_at(
                self._fleet, (self._fleet.nodes[node].name, slot), tick, self._interval_s
            )
            for node, slot in fault.targets
        }
        uuids = [gpu_uuid(self._seed, node, slot, generation) for (node, slot), generation in names.items()]
        nodes = sorted({node for node, _ in fault.targets})
        speeds: dict[str, dict[str, float]] = {}
        for at in range(0, len(nodes), _NODES_AT_ONCE):
            with_fault = self.gpus(nodes[at : at + _NODES_AT_ONCE], names, fault)
            speeds.update(
                {
                    uuid: _relative(gpu["speeds"], typical[gpu["model"]])
                    for uuid, gpu in with_fault.items()
                    if (gpu["node"], gpu["slot"]) in names
                }
            )
        return {
            "name": fault.name,
            "kind": fault.kind,
            "help": FAULTS[fault.kind].help,
            "gpus": uuids,
            "nodes": [self._fleet.nodes[node].name for node in nodes],
            "start_ns": self._start_ns + round(fault.start_s * 1e9),
            "end_ns": _ns(self._start_ns, fault.end_s),
            "size": fault.size,
            "tiers": list(fault.tiers),
            "causes": list(fault.causes),
            "speeds": speeds,
        }


def _relative(speeds: dict[str, float], typical: dict[str, float]) -> dict[str, float]:
    return {name: round(speed / typical[name], 6) for name, speed in speeds.items()}


def _ns(start_ns: int, seconds: float) -> int | None:
    return None if math.isinf(seconds) else start_ns + round(seconds * 1e9)
