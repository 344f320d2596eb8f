"""The collector of a simulated fleet: every call brings the next seconds of all its nodes.

To let it tell more: faults in `faults.py`, announcements in `announcements.py`; here only their order in time.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors import Reading
from collectors.simulated.announcements import Announcer
from collectors.simulated.disturbance import KINDS, Disturbance
from collectors.simulated.fault import Fault
from collectors.simulated.fleet import load_fleet
from collectors.simulated.group import Group, Segment, groups_of
from collectors.simulated.measuring import Measurer
from collectors.simulated.truth import truth_of
from telemetry.errors import EndOfInput, NoData, SettingsError
from telemetry.records import Measurement, SampleBatch

SOURCE = "simulated"
_MAX_STEP_TICKS = 3_600


class Simulated:
    """A fleet that does not exist, with all that goes wrong in fleets that do.

    Each `collect` returns the next `step_s` seconds, one batch a node, GPU by GPU in time order; the caller decides
    the pace. With `realtime` it raises NoData while that step still lies in the future of `clock_ns`, whose seconds
    count `speed` times from construction on. The same description and seed give the same values, whatever the step
    and the shard; `shard=(i, n)` publishes the i-th of n parts of the nodes. The truth is written to `truth` as JSON.
    Raises SettingsError for a wrong description, EndOfInput after `duration_s`.
    """

    def __init__(
        self,
        *,
        fleet: Mapping[str, object] | Path | str,
        start_ns: int,
        seed: int = 1,
        interval_s: float = 1.0,
        step_s: float = 10.0,
        shard: tuple[int, int] = (0, 1),
        truth: Path | None = None,
        realtime: bool = False,
        speed: float = 1.0,
        clock_ns: Callable[[], int] = time.time_ns,
        duration_s: float | None = None,
    ) -> None:
        part, parts = shard
        if not 0 <= part < parts:
            raise SettingsError(f"shard: expected (i, n) with 0 <= i < n, got {shard}")
        if not 0.1 <= interval_s <= 300.0:
            raise SettingsError(f"interval_s: expected 0.1 to 300 seconds, got {interval_s:g}")
        self._step = round(step_s / interval_s)
        if not 1 <= self._step <= _MAX_STEP_TICKS or abs(self._step * interval_s - step_s) > 1e-6:
            raise SettingsError(
                f"step_s: expected 1 to {_MAX_STEP_TICKS} whole intervals of {interval_s:g} s, got {step_s:g}"
            )
        if speed <= 0:
            raise SettingsError(f"speed: must be above 0, got {speed:g}")
        self._seed = seed
        self._start_ns = start_ns
        self._interval_s = interval_s
        self._interval_ns = round(interval_s * 1e9)
        self._realtime = realtime
        self._speed = speed
        self._clock_ns = clock_ns
        self._anchor_ns = clock_ns() if realtime else 0
        self._last_tick = None if duration_s is None else math.floor(duration_s / interval_s)
        self.fleet = load_fleet(fleet, seed=seed)
        total = len(self.fleet.nodes)
        own = range(part * total // parts, (part + 1) * total // parts)
        if not own:
            raise SettingsError(f"shard: part {part} of {parts} has none of the fleet's {total} nodes")
        self._own = frozenset(own)
        start_s = start_ns / 1e9
        self._groups = groups_of(self.fleet, own, seed=seed, interval_s=interval_s, start_s=start_s)
        self._announcer = Announcer(self.fleet, seed=seed, start_ns=start_ns, interval_s=interval_s)
        self._measurer = Measurer(self.fleet, start_s=start_s, interval_s=interval_s)
        self._uuids = {node: self._announcer.uuids(node, 0) for node in own}
        self._swapping = {
            node for fault in self.fleet.faults if fault.kind == "gpu_swap" for node, _ in fault.targets
        } & self._own
        self._disturbances: dict[int, Disturbance] = {}
        self._disturbing = {
            id(group): [fault for fault in group.faults if fault.kind in KINDS] for group in self._groups
        }
        self._withheld: list[tuple[int, SampleBatch]] = []
        self._tick = 0
        self._layouts: dict[tuple[int, int, int], tuple[NDArray[np.int64], NDArray[np.uint16]]] = {}
        if truth is not None:
            truth.write_text(json.dumps(self.truth(), allow_nan=False), encoding="utf-8")

    @property
    def next_time_ns(self) -> int:
        """Event time of the first sample of the next call."""
        return self._start_ns + self._tick * self._interval_ns

    def truth(self) -> dict[str, Any]:
        """What is true of the whole fleet; see docs/simulation.md for the fields."""
        return truth_of(self.fleet, seed=self._seed, start_ns=self._start_ns, interval_s=self._interval_s)

    def collect(self) -> Reading:
        """The next step of every node of this shard, with what nodes announce in it.

        A node has more than one batch in a reading only where its GPUs or metrics change inside the step, or where
        batches that were late arrive.
        """
        first, stop = self._tick, self._tick + self._step
        if self._last_tick is not None:
            stop = min(stop, self._last_tick)
            if first >= stop:
                raise EndOfInput(f"the simulated fleet {self.fleet.name} ran for its whole duration")
        if self._realtime:
            now_ns = self._anchor_ns + round((self._clock_ns() - self._anchor_ns) * self._speed)
            if self._start_ns + stop * self._interval_ns > now_ns:
                raise NoData("the next step of the simulated fleet is not over yet")
        probes = self._measurer.ticks(first, stop)
        samples: list[SampleBatch] = []
        measurements: list[Measurement] = []
        for group in self._groups:
            segments: list[Segment] = []
            for tick, due in probes.items():
                segments += group.advance(tick + 1)
                for probe in due:
                    own = {node: self._uuids_at(node, tick) for node in group.nodes if node in self._own}
                    measurements += self._measurer.measure(
                        probe, group, tick, time_ns=self._announcer.time_ns(tick), uuids=own
                    )
            segments += group.advance(stop)
            samples += self._batches(group, segments)
        self._tick = stop
        over = stop == self._last_tick  # what is still on its way comes with the last step
        arrived = [batch for due, batch in self._withheld if due <= stop or over]
        self._withheld = [(due, batch) for due, batch in self._withheld if due > stop and not over]
        return Reading(
            samples=[*samples, *arrived],
            inventory=[
                self._announcer.inventory(node, tick)
                for node in (sorted(self._own) if first == 0 else self._changing())
                for tick in self._announcer.changes(node, first, stop)
            ],
            events=list(self._announcer.events(self._own, first, stop)),
            measurements=measurements,
        )

    def close(self) -> None:
        """Nothing is held."""

    def _changing(self) -> list[int]:
        return sorted({node for fault in self.fleet.faults for node, _ in fault.targets} & self._own)

    def _uuids_at(self, node: int, tick: int) -> tuple[str, ...]:
        return self._announcer.uuids(node, tick) if node in self._swapping else self._uuids[node]

    def _batches(self, group: Group, segments: list[Segment]) -> Iterable[SampleBatch]:
        disturbed = self._disturbed(group, segments)
        for node in group.nodes:
            if node not in self._own:
                continue
            rows = group.rows[node]
            quiet = node not in disturbed and not any(segment.absent[rows].any() for segment in segments)
            if quiet and len(segments) == 1:
                yield self._whole(node, rows, segments[0])
            elif quiet and node not in self._swapping:
                yield self._joined(node, rows, segments)
            else:
                for segment in segments:
                    yield from self._spoilt(node, group, segment, disturbed.get(node, []))

    def _disturbed(self, group: Group, segments: list[Segment]) -> dict[int, list[Fault]]:
        found: dict[int, list[Fault]] = {}
        for fault in self._disturbing[id(group)]:
            if any(group.active(fault, segment.first) for segment in segments):
                for node in dict.fromkeys(node for node, _ in fault.targets):
                    found.setdefault(node, []).append(fault)
        return found

    def _whole(self, node: int, rows: slice, segment: Segment) -> SampleBatch:
        there = self.fleet.nodes[node]
        time_ns, gpu = self._layout(there.gpus, segment.first, segment.ticks)
        columns = {name: segment.columns[name][rows].reshape(-1) for name in there.metrics}
        return self._batch(node, self._uuids_at(node, segment.first), time_ns, gpu, columns)

    def _joined(self, node: int, rows: slice, segments: list[Segment]) -> SampleBatch:
        there = self.fleet.nodes[node]
        columns = {
            name: np.concatenate([segment.columns[name][rows] for segment in segments], axis=1).reshape(-1)
            for name in there.metrics
        }
        time_ns, gpu = self._layout(there.gpus, segments[0].first, sum(segment.ticks for segment in segments))
        return self._batch(node, self._uuids[node], time_ns, gpu, columns)

    def _spoilt(self, node: int, group: Group, segment: Segment, faults: list[Fault]) -> Iterable[SampleBatch]:
        there = self.fleet.nodes[node]
        rows = group.rows[node]
        acting = [
            (fault, np.array([slot for at, slot in fault.targets if at == node], dtype=np.intp))
            for fault in faults
            if group.active(fault, segment.first)
        ]
        if node not in self._disturbances:
            self._disturbances[node] = Disturbance(there.name, there.gpus, seed=self._seed)
        ticks = np.arange(segment.first, segment.first + segment.ticks)
        spoilt = self._disturbances[node].disturb(
            acting,
            {name: segment.columns[name][rows] for name in there.metrics},
            ticks=ticks.astype(np.uint64),
            time_ns=self._start_ns + ticks * self._interval_ns,
            absent=segment.absent[rows],
            working=segment.working[rows],
        )
        if not len(spoilt.gpu):
            return
        present, index = np.unique(spoilt.gpu, return_inverse=True)
        uuids = self._uuids_at(node, segment.first)
        batch = self._batch(
            node, tuple(uuids[slot] for slot in present), spoilt.time_ns, index.astype(np.uint16), spoilt.columns
        )
        if spoilt.late_s:
            self._withheld.append((segment.first + segment.ticks + math.ceil(spoilt.late_s / self._interval_s), batch))
        else:
            yield batch

    def _batch(
        self, node: int, uuids: tuple[str, ...], time_ns: Any, gpu: Any, columns: Mapping[str, Any]
    ) -> SampleBatch:
        return SampleBatch(
            node=self.fleet.nodes[node].name,
            gpus=uuids,
            interval_s=self._interval_s,
            source=SOURCE,
            time_ns=time_ns,
            gpu=gpu,
            columns=columns,
        )

    def _layout(self, gpus: int, first: int, ticks: int) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
        """Times and GPU indices of whole batches, shared by all nodes with so many GPUs."""
        wanted = (gpus, first, ticks)
        if wanted not in self._layouts:
            if len(self._layouts) > 64:
                self._layouts.clear()
            times = self._start_ns + np.arange(first, first + ticks, dtype=np.int64) * self._interval_ns
            self._layouts[wanted] = np.tile(times, gpus), np.repeat(np.arange(gpus, dtype=np.uint16), ticks)
        return self._layouts[wanted]
