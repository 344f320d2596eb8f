"""What the driver would report of what happened: quantised, noisy, counted. Physics in, columns out.

To report another metric: one entry in `_READERS`; counters keep their state in `Observer.counters`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.conditions import Conditions
from collectors.simulated.noise import hashes, lane, uniform
from collectors.simulated.physics import HW_THERMAL, POWER_CAPPED, SW_THERMAL, WORKING
from collectors.simulated.silicon import Silicon
from collectors.simulated.workloads import PHASE_NAMES, PHASES
from telemetry.metrics import METRICS, ClockEvent, Kind

Grid = NDArray[Any]
_ACTIVITY = {
    name: np.array([getattr(PHASES[phase], name) for phase in PHASE_NAMES], dtype=np.float32)
    for name in ("engine", "sm", "occupancy", "tensor", "dram", "fp64", "fp32", "fp16", "nvlink", "pcie")
}
_F = np.float32
_DTYPES = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int16": np.int16,
    "float32": np.float32,
}


@dataclass(slots=True, kw_only=True)
class Moment:
    """A stretch of time: grids with a row a GPU and a column a tick, and what held during it."""

    ticks: NDArray[np.uint64]
    clock: Grid
    power_w: Grid
    temperature_c: Grid
    busy: Grid
    work: Grid
    flags: Grid
    phase: Grid  #: a row a job
    job: NDArray[np.intp]
    conditions: Conditions
    memory_share: NDArray[np.float64]
    cache: dict[str, Grid] = field(default_factory=dict)


class Observer:
    """Reports on a group of GPUs; holds the counters."""

    def __init__(self, silicon: Silicon, *, metrics: Sequence[str], interval_s: float) -> None:
        self.silicon = silicon
        self.metrics = tuple(metrics)
        self.interval_s = interval_s
        self.interval_ns = round(interval_s * 1e9)
        self.counters: dict[str, NDArray[np.int64]] = {}
        for i, name in enumerate(_COUNTERS):
            self.counters[name] = _history(silicon, name, i)

    def reset(self, rows: NDArray[np.intp]) -> None:
        """Counters of these GPUs start from zero: the driver was loaded again."""
        for values in self.counters.values():
            values[rows] = 0

    def columns(self, moment: Moment) -> dict[str, Grid]:
        """Every metric of the group as a grid in the metric's own type, contiguous GPU by GPU."""
        return {name: self._column(name, moment) for name in self.metrics}

    def _column(self, name: str, moment: Moment) -> Grid:
        dtype = _DTYPES[METRICS[name].type]
        if METRICS[name].kind is Kind.COUNTER:
            counts = _COUNTS[name](self, moment)
            base = self.counters[name]
            if counts is None:
                return np.repeat(base.astype(dtype)[:, None], len(moment.ticks), axis=1)
            total = base[:, None] + np.cumsum(counts, axis=1, dtype=np.int64)
            self.counters[name] = total[:, -1].copy()
            return total.astype(dtype)
        values = _READERS[name](self, moment)
        if values.ndim == 1:
            return np.repeat(values.astype(dtype)[:, None], len(moment.ticks), axis=1)
        return values.astype(dtype, copy=False)

    def noise(self, moment: Moment, number: int) -> Grid:
        """Uniform noise in (0, 1) of a lane of its own, 0 to 7."""
        stream = f"bits{number // 4}"
        if stream not in moment.cache:
            moment.cache[stream] = hashes(self.silicon.key, moment.ticks, number // 4)
        return lane(moment.cache[stream], number % 4)

    def soft(self, moment: Moment, number: int) -> Grid:
        """Noise around zero with spread 1, of two lanes."""
        name = f"soft{number}"
        if name not in moment.cache:
            both = self.noise(moment, number) + self.noise(moment, number + 1)
            moment.cache[name] = (both - _F(1.0)) * _F(6.0**0.5)
        return moment.cache[name]

    def activity(self, moment: Moment, name: str) -> Grid:
        """A ratio of the phase that each GPU is in."""
        return _ACTIVITY[name][moment.phase][moment.job]

    def relative_work(self, moment: Moment) -> Grid:
        """Work done in a tick, relative to the typical GPU's: what a link or a memory carries."""
        return _kept(moment, "work", lambda: moment.work * (_F(1.0) + _F(0.015) * self.soft(moment, 5)))

    def pipe(self, moment: Moment, name: str) -> Grid:
        """Activity of a pipe per cycle: equal work at a lower clock is more of the cycles."""
        per_cycle = _kept(
            moment,
            "per_cycle",
            lambda: self.relative_work(moment) * self.silicon.load_share.astype(_F)[:, None] / moment.clock,
        )
        return _ratio(self.activity(moment, name) * per_cycle)

    def reasons(self, moment: Moment) -> Grid:
        """Clock-event reasons, as bits."""

        def read() -> Grid:
            flags = moment.flags
            bits = _REASONS[flags]
            bits |= np.where(flags & np.uint8(WORKING), moment.conditions.bits[:, None], np.uint64(0))
            flapping = moment.conditions.flapping
            if flapping.any():
                odd = (moment.ticks % np.uint64(2)) * np.uint64(ClockEvent.SW_POWER_CAP)
                calm = bits[flapping] & ~np.uint64(ClockEvent.SW_POWER_CAP)
                bits[flapping] = calm | odd[None, :]
            return bits

        return _kept(moment, "reasons", read)

    def time_in(self, moment: Moment, mask: int) -> Grid | None:
        """Nanoseconds of each tick with one of these reasons; None where nobody had any."""
        active = (self.reasons(moment) & np.uint64(mask)) != 0
        return active * np.int64(self.interval_ns) if active.any() else None

    def errors(self, moment: Moment, per_s: NDArray[np.float64], share: float, stray: float) -> Grid | None:
        """Errors of each tick: a rate that trembles by a tenth, and strays at a small chance per second."""
        counts: Grid | None = None
        if per_s.any():
            tremble = 0.9 + 0.2 * self.noise(moment, 7).astype(np.float64)
            # Dithered, so that a rate below one error a tick still counts in the long run.
            counts = np.floor(per_s[:, None] * (share * self.interval_s) * tremble + self.noise(moment, 0)).astype(
                np.int64
            )
        if stray > 0:
            rare = _kept(moment, "rare", lambda: uniform(self.silicon.key, moment.ticks, 2))
            hits = rare < stray * self.interval_s
            if hits.any():
                counts = hits.astype(np.int64) if counts is None else counts + hits
        return counts


_REASONS = np.array(
    [
        (0 if flags & WORKING else ClockEvent.GPU_IDLE)
        | (ClockEvent.SW_POWER_CAP if flags & POWER_CAPPED else 0)
        | (ClockEvent.SW_THERMAL if flags & SW_THERMAL else 0)
        | (ClockEvent.HW_THERMAL | ClockEvent.HW_SLOWDOWN if flags & HW_THERMAL else 0)
        for flags in range(16)
    ],
    dtype=np.uint64,
)


def _kept(moment: Moment, name: str, make: Callable[[], Grid]) -> Grid:
    if name not in moment.cache:
        moment.cache[name] = make()
    return moment.cache[name]


def _ratio(values: Grid) -> Grid:
    return np.rint(np.minimum(values, _F(1.0)) * _F(1_000.0)) / _F(1_000.0)


def _clock(o: Observer, m: Moment) -> Grid:
    # A governor that regulates steps between two neighbouring clocks; dither keeps the mean, as reading it at random
    # moments does. A clock that is held by a setting, or is the highest, stays where it is.
    step = o.silicon.step_share.astype(_F)[:, None]
    regulated = (m.flags & np.uint8(POWER_CAPPED | SW_THERMAL | HW_THERMAL)) != 0
    wobble = m.clock * (_F(1.0) + _F(0.002) * o.soft(m, 1)) / step
    steps = np.floor(np.where(regulated, wobble + o.noise(m, 0), m.clock / step + _F(0.001)))
    working = (m.flags & np.uint8(WORKING)) != 0
    shares = np.where(working, np.minimum(steps * step, _F(1.0)), m.clock)
    clock: Grid = np.floor(shares * o.silicon.max_clock_mhz.astype(_F)[:, None] + _F(0.01))
    return clock


def _power(o: Observer, m: Moment, spread: float) -> Grid:
    power: Grid = np.rint(m.power_w * (_F(1.0) + _F(spread) * o.soft(m, 1)) * _F(100.0)) / _F(100.0)
    return power


def _die(o: Observer, m: Moment) -> Grid:
    return _kept(m, "die", lambda: np.floor(m.temperature_c + _F(0.25) + _F(0.5) * o.noise(m, 3)))


def _memory_temperature(o: Observer, m: Moment) -> Grid:
    heat = o.silicon.memory_heat_c.astype(_F)[:, None] * (_F(0.3) + o.activity(m, "dram"))
    return np.floor(m.temperature_c + heat + _F(0.5))


def _resident(o: Observer, m: Moment) -> Grid:
    # A GPU that waits for the slowest of its job has a kernel spinning on few SMs, half of that time; one that its
    # host keeps waiting has none.
    def read() -> Grid:
        host = m.conditions.host.astype(_F)[:, None]
        waiting = _F(1.0) - np.minimum(m.busy / host, _F(1.0))
        resident: Grid = o.activity(m, "engine") * (m.busy + _F(0.5) * waiting)
        return resident

    return _kept(m, "resident", read)


def _engine(o: Observer, m: Moment) -> Grid:
    return _ratio(_resident(o, m) * (_F(1.0) + _F(0.01) * o.soft(m, 5)))


def _utilization(o: Observer, m: Moment) -> Grid:
    share = _resident(o, m)
    percent: Grid = np.floor(share * _F(100.0) - o.noise(m, 4) * (share > 0) + _F(0.5))
    return percent / _F(100.0)


def _active(o: Observer, m: Moment, name: str) -> Grid:
    return _ratio(o.activity(m, name) * m.busy * (_F(1.0) + _F(0.01) * o.soft(m, 5)))


def _traffic(o: Observer, m: Moment, name: str, best: NDArray[np.float64], share: float) -> Grid:
    return np.rint(o.activity(m, name) * o.relative_work(m) * (best * share).astype(_F)[:, None])


def _link_gen(o: Observer, m: Moment) -> Grid:
    return m.conditions.link_gen


def _energy(o: Observer, m: Moment) -> Grid:
    return np.rint(m.power_w.astype(np.float64) * (o.interval_s * 1_000.0))


def _cycles(o: Observer, m: Moment) -> Grid:
    per_tick = o.silicon.max_clock_mhz * (1e6 * o.interval_s)
    return np.rint(m.clock.astype(np.float64) * per_tick[:, None])


Reader = Callable[[Observer, Moment], Grid]
_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "sm_clock_mhz": _clock,
        "memory_clock_mhz": lambda o, m: o.silicon.memory_clock_mhz,
        "temperature_c": _die,
        "memory_temperature_c": _memory_temperature,
        "temperature_margin_c": lambda o, m: o.silicon.hw_thermal_c.astype(_F)[:, None] - _die(o, m),
        "power_w": lambda o, m: _power(o, m, 0.003),
        "power_instant_w": lambda o, m: _power(o, m, 0.012),
        "power_limit_w": lambda o, m: m.conditions.limit_w,
        "utilization_ratio": _utilization,
        "memory_utilization_ratio": lambda o, m: np.rint(o.activity(m, "dram") * m.busy * _F(90.0)) / _F(100.0),
        "clock_event_reasons": lambda o, m: o.reasons(m),
        "performance_state": lambda o, m: ((m.flags & np.uint8(WORKING)) == 0) * np.uint8(8),
        "memory_used_bytes": lambda o, m: np.floor(m.memory_share * o.silicon.memory_bytes / 2**20) * 2**20,
        "row_remap_pending": lambda o, m: m.conditions.remap_pending,
        "row_remap_failed": lambda o, m: m.conditions.remap_failed,
        "pcie_link_gen": _link_gen,
        "pcie_link_width": lambda o, m: m.conditions.link_width,
        "graphics_engine_active_ratio": _engine,
        "sm_active_ratio": lambda o, m: _active(o, m, "sm"),
        "sm_occupancy_ratio": lambda o, m: _active(o, m, "occupancy"),
        "tensor_active_ratio": lambda o, m: o.pipe(m, "tensor"),
        "dram_active_ratio": lambda o, m: _ratio(o.activity(m, "dram") * o.relative_work(m)),
        "fp64_active_ratio": lambda o, m: o.pipe(m, "fp64"),
        "fp32_active_ratio": lambda o, m: o.pipe(m, "fp32"),
        "fp16_active_ratio": lambda o, m: o.pipe(m, "fp16"),
        "pcie_tx_bytes_per_s": lambda o, m: _traffic(o, m, "pcie", o.silicon.pcie_bytes_per_s, 0.4),
        "pcie_rx_bytes_per_s": lambda o, m: _traffic(o, m, "pcie", o.silicon.pcie_bytes_per_s, 0.6),
        "nvlink_tx_bytes_per_s": lambda o, m: _traffic(o, m, "nvlink", o.silicon.nvlink_bytes_per_s, 1.0),
        "nvlink_rx_bytes_per_s": lambda o, m: _traffic(o, m, "nvlink", o.silicon.nvlink_bytes_per_s, 1.0),
        "nvlink_bandwidth_bytes_per_s": lambda o, m: _traffic(o, m, "nvlink", o.silicon.nvlink_bytes_per_s, 2.0),
        "fabric_health_mask": lambda o, m: m.conditions.fabric_mask,
        "recovery_action": lambda o, m: m.conditions.recovery,
    }
)

Counter = Callable[[Observer, Moment], Grid | None]
_HEAT = ClockEvent.SW_THERMAL | ClockEvent.HW_THERMAL
_POWER = ClockEvent.SW_POWER_CAP | ClockEvent.HW_POWER_BRAKE
_COUNTS: Mapping[str, Counter] = MappingProxyType(
    {
        "energy_mj": _energy,
        "sw_power_cap_ns": lambda o, m: o.time_in(m, ClockEvent.SW_POWER_CAP),
        "sync_boost_ns": lambda o, m: None,
        "sw_thermal_ns": lambda o, m: o.time_in(m, ClockEvent.SW_THERMAL),
        "hw_thermal_ns": lambda o, m: o.time_in(m, ClockEvent.HW_THERMAL),
        "hw_power_brake_ns": lambda o, m: o.time_in(m, ClockEvent.HW_POWER_BRAKE),
        "power_violation_ns": lambda o, m: o.time_in(m, _POWER),
        "thermal_violation_ns": lambda o, m: o.time_in(m, _HEAT),
        "ecc_corrected_total": lambda o, m: o.errors(m, m.conditions.ecc_per_s, 1.0, 2e-7),
        "ecc_uncorrected_total": lambda o, m: None,
        "remapped_rows_corrected_total": lambda o, m: None,
        "remapped_rows_uncorrected_total": lambda o, m: None,
        "pcie_replay_total": lambda o, m: o.errors(m, m.conditions.replay_per_s, 1.0, 1e-4),
        "nvlink_crc_errors_total": lambda o, m: o.errors(m, m.conditions.nvlink_per_s, 1.0, 0.0),
        "nvlink_replay_errors_total": lambda o, m: o.errors(m, m.conditions.nvlink_per_s, 0.5, 0.0),
        "nvlink_recovery_errors_total": lambda o, m: o.errors(m, m.conditions.nvlink_per_s, 0.005, 0.0),
        "nvlink_symbol_errors_total": lambda o, m: o.errors(m, m.conditions.nvlink_per_s, 1.0, 0.0),
        "sm_cycles_elapsed_total": _cycles,
    }
)
_COUNTERS = tuple(_COUNTS)
_PAST_S = 7_015.0  #: of power capping on every GPU of a healthy idle node: a non-zero counter is no fault


def _history(silicon: Silicon, name: str, stream: int) -> NDArray[np.int64]:
    """What a counter has gathered before the simulation starts."""
    chance = uniform(silicon.key ^ np.uint64(0x5EED), np.full(1, stream, dtype=np.uint64), 0)[:, 0]
    if name in ("sw_power_cap_ns", "power_violation_ns"):
        return np.floor((_PAST_S + chance) * 1e9).astype(np.int64)
    if name == "pcie_replay_total":
        return np.floor(106 + 69 * chance).astype(np.int64)
    if name == "energy_mj":
        return np.floor(silicon.limit_w * (3.0e8 + 1.0e8 * chance)).astype(np.int64)
    if name == "sm_cycles_elapsed_total":
        return np.floor(silicon.max_clock_mhz * (4.0e11 + 1.0e11 * chance)).astype(np.int64)
    if name == "ecc_corrected_total":
        return np.floor(3.0 * chance * chance).astype(np.int64)
    return np.zeros(len(chance), dtype=np.int64)
