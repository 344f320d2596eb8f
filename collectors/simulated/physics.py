"""One tick of many GPUs at once: heat, power, clock, throttling, and the pace of synchronous jobs.

To add an effect: in `Physics.tick`. Only additions, products, quotients and square roots, which every processor
rounds alike: the same seed gives the same bytes whatever the number of GPUs that are computed together.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.conditions import Conditions
from collectors.simulated.silicon import LEAKAGE_AT_C, LEAKAGE_PER_C, QUARTIC, SQUARE, Floats, Silicon
from collectors.simulated.workloads import CLASSES, PHASES, WorkClass

WAITING_POWER = 0.6  #: a GPU that waits for others spins: it draws this share of its phase's dynamic power
# While software slows for heat the clock falls to this share, for a few seconds at a time: Longhorn's hottest V100s
# lose up to 15 % of their speed that way while their median clock looks fine.
SW_THERMAL_SHARE = 0.65
HW_THERMAL_SHARE = 0.50
SW_HYSTERESIS_C, HW_HYSTERESIS_C = 2.0, 5.0
LOWEST_SHARE = 0.05
STEADY_TICKS = 160  #: of 1 s: several time constants
POWER_CAPPED, SW_THERMAL, HW_THERMAL, WORKING = 1, 2, 4, 8  #: bits of `Tick.flags`


@dataclass(slots=True, kw_only=True)
class Tick:
    """What happened in one tick, one value a GPU; `work` is throughput relative to the typical GPU under full load."""

    clock: Floats
    power_w: Floats
    temperature_c: Floats
    busy: Floats
    work: Floats
    flags: NDArray[np.uint8]


@dataclass(slots=True, kw_only=True)
class Load:
    """Who works on what until the next change. `job` is each GPU's job, the last one standing for none."""

    job: NDArray[np.intp]
    synchronous: NDArray[np.bool_]
    order: NDArray[np.intp]  #: GPUs of synchronous jobs, job by job
    starts: NDArray[np.intp]  #: where each of these jobs starts in `order`
    jobs: NDArray[np.intp]  #: which job each of them is
    classes: list[WorkClass | None]  #: by job


class Physics:
    """The state of a group of GPUs and how it moves on: `begin` with what holds, `settle` once, then tick by tick."""

    def __init__(self, silicon: Silicon, *, interval_s: float, start_s: float) -> None:
        self.silicon = silicon
        self._interval_s = interval_s
        self._start_s = start_s  # UTC, for the time of day
        n = len(silicon.key)
        self.temperature = silicon.inlet_c + silicon.resistance * silicon.leak_w
        self.sw_hot = np.zeros(n, dtype=np.bool_)
        self.hw_hot = np.zeros(n, dtype=np.bool_)
        self.speed = np.ones(n)

    def begin(self, conditions: Conditions, load: Load) -> None:
        """Take new conditions and load; they hold until the next call."""
        self._conditions = conditions
        self._load = load
        classes = [load.classes[i] for i in range(len(load.classes))]
        share = np.array([0.0 if work is None else work.clock_share for work in classes])[load.job]
        weights = np.array(
            [(0.0, 0.0, 0.0) if work is None else (work.silicon, work.memory, work.link) for work in classes]
        )[load.job]
        silicon = self.silicon
        self._gain = (
            1.0
            + weights[:, 0] * (silicon.compute_factor * conditions.silicon - 1.0)
            + weights[:, 1] * (silicon.memory_factor - 1.0)
            + weights[:, 2] * (silicon.link_factor * conditions.link - 1.0)
        )
        self._fixed_time = 1.0 - share
        self._clock_time = share * silicon.load_share
        self._target_w = silicon.regulated * conditions.limit_w
        self._highest = np.minimum(conditions.clock_share, conditions.held_share)
        self._resistance = silicon.resistance * conditions.resistance
        self._inlet = silicon.inlet_c + conditions.heat_c
        self._drifts = bool(conditions.drift_per_tick.any())
        self._silicon_weight = weights[:, 0]
        self._working = load.job < len(load.classes) - 1
        self._main = np.array([0.0 if work is None else PHASES[work.steps[0][0]].power for work in classes])

    def settle(self, tick: int, power: Floats) -> None:
        """Put temperatures near balance for phases of this power, as if the load had lasted for long."""
        typical = np.where(power > 0.0, power * 0.9 * self._target_w, self.silicon.leak_w)
        self.temperature = self._inlet + self._daily(tick) + self._resistance * typical

    def _daily(self, tick: int) -> Floats:
        angle = 2.0 * math.pi * (((self._start_s + tick * self._interval_s) % 86_400.0) / 86_400.0)
        return self.silicon.daily_cos_c * math.cos(angle) + self.silicon.daily_sin_c * math.sin(angle)

    def rates(self) -> Floats:
        """The pace of each job, relative to the typical GPU at its load clock; one more for no job."""
        load = self._load
        pace = np.ones(len(load.classes))
        if len(load.starts):
            pace[load.jobs] = np.minimum.reduceat(self.speed[load.order], load.starts)
        return pace

    def tick(self, number: int, power: Floats, pace: Floats) -> Tick:
        """Move one tick on, with each job's power for its phase and its pace."""
        silicon, conditions, load = self.silicon, self._conditions, self._load
        gpu_speed = self.speed / conditions.host
        work = np.where(load.synchronous, pace[load.job], self.speed)
        busy = np.minimum(work / gpu_speed, 1.0)
        dynamic = power[load.job] * (WAITING_POWER + (1.0 - WAITING_POWER) * busy) * silicon.dynamic_w
        static = silicon.leak_w * (1.0 + LEAKAGE_PER_C * (self.temperature - LEAKAGE_AT_C))
        room = np.maximum(self._target_w - static, 1.0) / np.maximum(dynamic, 1e-3)
        square = (np.sqrt(SQUARE * SQUARE + 4.0 * QUARTIC * room) - SQUARE) / (2.0 * QUARTIC)
        allowed = np.sqrt(square)
        self.sw_hot = self.temperature >= silicon.sw_thermal_c - SW_HYSTERESIS_C * self.sw_hot
        self.hw_hot = self.temperature >= silicon.hw_thermal_c - HW_HYSTERESIS_C * self.hw_hot
        capped = allowed < self._highest
        clock = np.minimum(allowed, self._highest)
        clock = np.where(self.sw_hot, SW_THERMAL_SHARE * clock, clock)
        clock = np.where(self.hw_hot, np.minimum(clock, HW_THERMAL_SHARE), clock)
        clock = np.where(self._working, np.maximum(clock, LOWEST_SHARE), silicon.idle_share)
        square = clock * clock
        power_w = static + dynamic * (SQUARE * square + QUARTIC * square * square)
        balance = self._inlet + self._daily(number) + self._resistance * power_w
        self.temperature = self.temperature + silicon.settle * (balance - self.temperature)
        gain = self._gain
        if self._drifts:
            lost = conditions.drift_per_tick * np.maximum(number - conditions.drift_from, 0)
            gain = gain * (1.0 - self._silicon_weight * lost)
        speed = np.where(self._working, conditions.host * gain / (self._fixed_time + self._clock_time / clock), 1.0)
        # In lighter phases clocks are higher, which says nothing of the pace of the phase that counts.
        self.speed = np.where((power < 0.9 * self._main)[load.job], self.speed, speed)
        flags = (
            (capped & self._working) * np.uint8(POWER_CAPPED)
            | self.sw_hot * np.uint8(SW_THERMAL)
            | self.hw_hot * np.uint8(HW_THERMAL)
            | self._working * np.uint8(WORKING)
        )
        return Tick(
            clock=clock,
            power_w=power_w,
            temperature_c=self.temperature,
            busy=busy,
            work=work,
            flags=flags.astype(np.uint8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """GPUs alone under one class of work, after the heat has settled: means over the last half of the ticks."""

    speed: Floats
    clock_mhz: Floats  #: median
    temperature_c: Floats
    power_w: Floats


def steady(silicon: Silicon, conditions: Conditions, work_class: str, *, time_s: float) -> Steady:
    """Each GPU's speed in a class of work when it runs alone, at the conditions and the UTC time given."""
    work = CLASSES[work_class]
    n = len(silicon.key)
    alone = silicon.take(np.arange(n))
    alone.settle = np.minimum(1.0 / alone.time_constant_s, 1.0)
    physics = Physics(alone, interval_s=1.0, start_s=time_s - STEADY_TICKS)
    load = Load(
        job=np.zeros(n, dtype=np.intp),
        synchronous=np.zeros(n, dtype=np.bool_),
        order=np.zeros(0, dtype=np.intp),
        starts=np.zeros(0, dtype=np.intp),
        jobs=np.zeros(0, dtype=np.intp),
        classes=[work, None],
    )
    physics.begin(conditions, load)
    main = PHASES[work.steps[0][0]].power
    power = np.array([main, 0.0])
    physics.settle(0, np.full(n, main))
    seen = []
    pace = np.ones(2)
    for number in range(STEADY_TICKS):
        done = physics.tick(number, power, pace)
        if number >= STEADY_TICKS // 2:
            seen.append((physics.speed, done.clock, done.temperature_c, done.power_w))
    speed, clock, temperature, power_w = (np.array(values) for values in zip(*seen, strict=True))
    return Steady(
        speed=_mean(speed),
        clock_mhz=np.median(clock, axis=0) * silicon.max_clock_mhz,
        temperature_c=np.median(temperature, axis=0),
        power_w=_mean(power_w),
    )


def _mean(values: NDArray[np.float64]) -> Floats:
    # A sum in the order of time: numpy's own mean adds in an order that depends on the shape.
    total = np.zeros(values.shape[1])
    for row in values:
        total += row
    return total / len(values)
