"""The kinds of trouble a fleet can be given, what each does, and the verdict that a right judge would reach.

To add a kind: one entry in `FAULTS`; if it spoils samples rather than the GPU, also its part in `disturbance.py`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from collectors.simulated.conditions import Conditions
from collectors.simulated.fault import Apply, Fault, FaultKind, Rows
from telemetry.metrics import ClockEvent

GOOD = ("premium", "standard")


def _multiply(field: str, amount: Callable[[float], float]) -> Apply:
    def apply(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
        getattr(conditions, field)[rows] *= amount(fault.size)

    return apply


def _add(field: str) -> Apply:
    def apply(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
        getattr(conditions, field)[rows] += fault.size

    return apply


def _lower(field: str, bits: int) -> Apply:
    def apply(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
        limits = getattr(conditions, field)
        limits[rows] = np.minimum(limits[rows], fault.size)
        conditions.bits[rows] |= np.uint64(bits)

    return apply


def _set(**values: float) -> Apply:
    def apply(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
        for field, value in values.items():
            getattr(conditions, field)[rows] = value

    return apply


def _drift(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
    conditions.drift_per_tick[rows] = fault.size * interval_s / fault.ramp_s
    conditions.drift_from[rows] = fault.ticks(interval_s)[0]


def _narrow(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
    conditions.link_width[rows] = int(fault.size)
    conditions.link[rows] *= 0.5 + fault.size / 32  # half of the traffic goes over NVLink and feels nothing


def _old_gen(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
    full = conditions.link_gen[rows].astype(np.float64)
    gen = np.minimum(full, fault.size)
    conditions.link_gen[rows] = gen.astype(np.uint8)
    conditions.link[rows] *= 0.5 + 0.5 * 2.0 ** (gen - full)


def _errors_on_links(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
    conditions.nvlink_per_s[rows] += fault.size
    conditions.link[rows] *= 0.85


def _no_fabric(conditions: Conditions, rows: Rows, fault: Fault, interval_s: float) -> None:
    conditions.fabric_mask[rows] = 1  # degraded bandwidth: true (two bits a topic)
    conditions.link[rows] *= 0.4


_DEGRADED = ("degraded",)
_OUT = ("quarantine",)
_BAD = ("degraded", "quarantine")
_KINDS = {
    "slow_silicon": FaultKind(
        help="Slow at equal clock, power and temperature.",
        unit="share of speed lost",
        size=0.08,
        high=0.9,
        tiers=_DEGRADED,
        causes=("silicon",),
        apply=_multiply("silicon", lambda size: 1 - size),
    ),
    "drift": FaultKind(
        help="Loses speed at equal clock, evenly over ramp_s, then stays there.",
        unit="share of speed lost",
        size=0.08,
        high=0.9,
        tiers=_DEGRADED,
        causes=("silicon",),
        apply=_drift,
    ),
    "low_clock": FaultKind(
        help="Somebody set application clocks and forgot them (reason 0x2).",
        unit="share of the highest clock",
        size=0.70,
        low=0.1,
        high=1.0,
        tiers=_DEGRADED,
        causes=("software",),
        apply=_lower("clock_share", ClockEvent.APPLICATIONS_CLOCKS),
    ),
    "power_cap": FaultKind(
        help="The power limit is set too low; the limit in the samples says so.",
        unit="share of the default limit",
        size=0.70,
        low=0.2,
        high=1.0,
        tiers=_DEGRADED,
        causes=("power", "software"),
        apply=_multiply("limit_w", lambda size: size),
    ),
    "power_brake": FaultKind(
        help="External power brake (reason 0x80 with 0x8).",
        unit="share of the highest clock",
        size=0.40,
        low=0.05,
        high=1.0,
        tiers=_BAD,
        causes=("power",),
        apply=_lower("held_share", ClockEvent.HW_POWER_BRAKE | ClockEvent.HW_SLOWDOWN),
    ),
    "hw_slowdown": FaultKind(
        help="Hardware slowdown without heat (reason 0x8).",
        unit="share of the highest clock",
        size=0.50,
        low=0.05,
        high=1.0,
        tiers=_BAD,
        causes=("power",),
        apply=_lower("held_share", ClockEvent.HW_SLOWDOWN),
    ),
    "cooling": FaultKind(
        help="Dried thermal paste or a loose cooler: hotter at equal power.",
        unit="share added to the thermal resistance",
        size=1.20,
        high=5.0,
        tiers=_BAD,
        causes=("cooling",),
        apply=_multiply("resistance", lambda size: 1 + size),
    ),
    "rack_cooling": FaultKind(
        help="A fan or a pump serves several GPUs badly: warm air for all selected.",
        unit="C",
        size=25.0,
        high=60.0,
        tiers=_BAD,
        causes=("cooling",),
        apply=_add("heat_c"),
    ),
    "room_warm": FaultKind(
        help="Bait: the whole room warms together; nobody stands out.",
        unit="C",
        size=4.0,
        high=20.0,
        tiers=GOOD,
        causes=(None,),
        apply=_add("heat_c"),
    ),
    "ecc_corrected_storm": FaultKind(
        help="Corrected ECC errors pour in and half of the samples are lost under load, none when idle.",
        unit="errors/s",
        size=17_700.0,
        high=1e6,
        tiers=_BAD,
        causes=("memory",),
        apply=_add("ecc_per_s"),
    ),
    "ecc_uncorrected": FaultKind(
        help="Uncorrected ECC errors at the start, with XID 48.",
        unit="errors",
        size=2.0,
        low=1.0,
        high=1e4,
        tiers=_OUT,
        causes=("memory",),
        apply=_set(recovery=1),
    ),
    "row_remap_pending": FaultKind(
        help="A row waits for a reset to be remapped, with XID 63.",
        tiers=_BAD,
        causes=("memory",),
        apply=_set(remap_pending=1, recovery=1),
    ),
    "row_remap_failed": FaultKind(
        help="Spare rows are used up, with XID 64.",
        tiers=_OUT,
        causes=("memory",),
        apply=_set(remap_failed=1, recovery=4),
    ),
    "xid": FaultKind(
        help="One XID event; 13, 31, 43 and 45 are the application's own.",
        unit="XID",
        size=62.0,
        low=1.0,
        high=1e4,
        tiers=_OUT,
        causes=("silicon", "memory", "link", "software", None),
    ),
    "fallen_off_bus": FaultKind(
        help="XID 79, then the GPU is lost.",
        tiers=("quarantine", "unknown"),
        causes=("link", "telemetry", None),
        apply=_set(absent=1),
    ),
    "silent_loss": FaultKind(
        help="The GPU vanishes with no XID; the node has fewer than it should.",
        tiers=("unknown", "quarantine"),
        causes=("telemetry", None),
        apply=_set(absent=1),
    ),
    "pcie_width": FaultKind(
        help="The PCIe link trained with fewer lanes.",
        unit="lanes",
        size=8.0,
        low=1.0,
        high=16.0,
        tiers=_DEGRADED,
        causes=("link",),
        apply=_narrow,
    ),
    "pcie_gen": FaultKind(
        help="The PCIe link trained at an older generation.",
        unit="generation",
        size=1.0,
        low=1.0,
        high=6.0,
        tiers=_DEGRADED,
        causes=("link",),
        apply=_old_gen,
    ),
    "pcie_replay_storm": FaultKind(
        help="PCIe packets are sent again and again.",
        unit="replays/s",
        size=50.0,
        high=1e6,
        tiers=_DEGRADED,
        causes=("link",),
        apply=_add("replay_per_s"),
    ),
    "nvlink_errors": FaultKind(
        help="CRC and replay errors on NVLink.",
        unit="errors/s",
        size=200.0,
        high=1e6,
        tiers=_DEGRADED,
        causes=("link",),
        apply=_errors_on_links,
    ),
    "fabric_fault": FaultKind(
        help="The NVLink fabric is not complete; the inventory loses its domain.",
        tiers=_BAD,
        causes=("link",),
        apply=_no_fabric,
    ),
    "noisy_neighbour": FaultKind(
        help="Something else on the host takes its time: less activity at equal clock on the whole node.",
        unit="share of speed lost",
        size=0.15,
        high=0.9,
        tiers=_DEGRADED,
        causes=("noisy_neighbour",),
        apply=_multiply("host", lambda size: 1 - size),
    ),
    "power_cap_flapping": FaultKind(
        help="Bait: the power-cap reason alternates each tick, as normal capping does.",
        tiers=GOOD,
        causes=(None,),
        apply=_set(flapping=1),
    ),
    "frozen_values": FaultKind(
        help="The same numbers again and again with new times.", tiers=("unknown", "degraded"), causes=("telemetry",)
    ),
    "missing_samples": FaultKind(
        help="Samples get lost at random.",
        unit="share lost",
        size=0.5,
        high=1.0,
        tiers=("standard", "degraded", "unknown"),
        causes=("telemetry", None),
    ),
    "late_batches": FaultKind(
        help="Batches of a node come late.",
        unit="s",
        size=20.0,
        high=86_400.0,
        tiers=("premium", "standard", "unknown"),
        causes=("telemetry", None),
    ),
    "clock_skew": FaultKind(
        help="The node's clock is off.",
        unit="s",
        size=3_600.0,
        low=-1e6,
        high=1e6,
        tiers=("unknown",),
        causes=("telemetry",),
    ),
    "garbage_values": FaultKind(
        help="Bait: single values are garbage: utilisation 2619 or 4294967295, ECC 1e12.",
        unit="share of samples",
        size=0.01,
        high=1.0,
        tiers=GOOD,
        causes=(None,),
    ),
    "unsupported_metrics": FaultKind(
        help="Bait: the metrics named in `metrics` are not reported: absent for whole nodes, null for single GPUs.",
        tiers=GOOD,
        causes=(None,),
    ),
    "driver_reload": FaultKind(
        help="Bait: the driver is loaded again: a pause, then counters from zero.",
        unit="s",
        size=20.0,
        high=3_600.0,
        tiers=(*GOOD, "unknown"),
        causes=("telemetry", None),
    ),
    "gpu_swap": FaultKind(
        help="Another GPU is put into the slot: a pause of the node, then a new UUID with another nature.",
        unit="s",
        size=60.0,
        high=86_400.0,
        tiers=(*GOOD, "unknown"),
        causes=("telemetry", None),
    ),
}
FAULTS: Mapping[str, FaultKind] = MappingProxyType(_KINDS)
"""Every kind of fault by name."""

WHOLE_NODE = frozenset({"late_batches", "clock_skew", "driver_reload", "fabric_fault", "noisy_neighbour"})
"""Kinds that take every GPU of a node whichever was selected."""

SWAPS = frozenset({"driver_reload", "gpu_swap"})
