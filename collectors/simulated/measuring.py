"""Results of probes: each selected GPU runs a known kernel alone, at the conditions of that moment.

To measure something else: a probe in the fleet's description.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from collectors.simulated.conditions import healthy
from collectors.simulated.fleet import Fleet
from collectors.simulated.group import Group
from collectors.simulated.nodes import Node
from collectors.simulated.noise import key, normals
from collectors.simulated.physics import steady
from collectors.simulated.probes import Probe
from collectors.simulated.silicon import INLET_C, REGULATED, draw
from telemetry.records import Measurement


class Measurer:
    """Runs the probes of a fleet."""

    def __init__(self, fleet: Fleet, *, start_s: float, interval_s: float) -> None:
        self._fleet = fleet
        self._start_s = start_s
        self._interval_s = interval_s
        self._targets: Mapping[str, frozenset[tuple[int, int]]] = {
            probe.name: frozenset(probe.selector.gpus(fleet.nodes, draw=f"probe {probe.name}"))
            for probe in fleet.probes
        }
        self._typical: dict[tuple[str, str], float] = {}

    def ticks(self, first: int, stop: int) -> dict[int, list[Probe]]:
        """The probes due in a range of ticks."""
        due: dict[int, list[Probe]] = {}
        for probe in self._fleet.probes:
            at = round(probe.at_s / self._interval_s)
            every = round(probe.every_s / self._interval_s)
            if every:
                at += max(0, -((at - first) // every)) * every
            while at < stop and at >= first:
                due.setdefault(at, []).append(probe)
                if not every:
                    break
                at += every
        return dict(sorted(due.items()))

    def measure(
        self, probe: Probe, group: Group, tick: int, *, time_ns: int, uuids: Mapping[int, tuple[str, ...]]
    ) -> Iterator[Measurement]:
        """The results of one probe on the GPUs of a group that belong to the nodes in `uuids`."""
        time_s = self._start_s + tick * self._interval_s
        conditions = group.conditions(tick)
        done = steady(group.silicon, conditions, probe.work_class, time_s=time_s)
        noise = normals(group.silicon.key ^ np.uint64(key("probe", probe.name, tick)), "run")
        for node, names in uuids.items():
            if node not in group.rows:
                continue
            typical = self._typical_speed(self._fleet.nodes[node], probe.work_class)
            for slot, uuid in enumerate(names):
                row = group.rows[node].start + slot
                if conditions.absent[row] or (node, slot) not in self._targets[probe.name]:
                    continue
                speed = float(done.speed[row] / typical * (1.0 + probe.noise * noise[row]))
                step = self._fleet.nodes[node].model.clock_step_mhz
                yield Measurement(
                    time_ns=time_ns,
                    scope="gpu",
                    subject=uuid,
                    name=probe.name,
                    workload_class=probe.work_class,
                    value=probe.value * speed if probe.higher_is_better else probe.value / speed,
                    unit=probe.unit,
                    higher_is_better=probe.higher_is_better,
                    node=self._fleet.nodes[node].name,
                    evidence={
                        "sm_clock_mhz": int(round(float(done.clock_mhz[row]) / step) * step),
                        "temperature_c": round(float(done.temperature_c[row])),
                        "power_w": round(float(done.power_w[row]), 2),
                    },
                )

    def _typical_speed(self, node: Node, work_class: str) -> float:
        """Speed of the GPU that the model describes, in air of 25 C."""
        known = (node.model.name, work_class)
        if known not in self._typical:
            plain = replace(
                node.model,
                voltage_spread=0.0,
                leakage_spread=0.0,
                resistance_spread=0.0,
                hot_share=0.0,
                slot_offsets_c=(0.0,),
            )
            alone = replace(node, model=plain, gpus=1, inlet_c=INLET_C, daily_c=0.0)
            silicon = draw([alone], seed=0, interval_s=1.0, node_spread_c=0.0)
            for factor in (silicon.compute_factor, silicon.memory_factor, silicon.link_factor):
                factor[:] = 1.0
            silicon.regulated[:] = REGULATED
            self._typical[known] = float(steady(silicon, healthy(silicon), work_class, time_s=0.0).speed[0])
        return self._typical[known]
