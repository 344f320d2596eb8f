# ruff: noqa: E501 - a table reads best one line a reason
"""The reason codes of a verdict: meaning, tier, action, cause, in one table.

To add a reason: one line in `REASONS`, its condition in `analytics/conditions.py` or its event in `analytics/holds.py`,
one line in docs/scoring.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """`tier` is the best tier a GPU with this reason can have (premium: it only explains); `text` has places for value and limit.

    `kind`: judged (N of M windows), state (one window suffices; goes after M clean ones), event (held from an event),
    note (true of this very moment).
    """

    code: str
    tier: str
    action: str
    cause: str | None
    kind: str
    limit: str | None  #: the threshold that the value is held against
    text: str


def _r(code: str, tier: str, action: str, cause: str | None, kind: str, limit: str | None, text: str) -> Reason:
    return Reason(code=code, tier=tier, action=action, cause=cause, kind=kind, limit=limit, text=text)


# fmt: off
REASONS: Mapping[str, Reason] = MappingProxyType({r.code: r for r in (
    # code, best tier, action, cause, kind, limit, text
    _r("gpu_lost", "quarantine", "drain", None, "event", None, "the driver lost the GPU"),
    _r("missing_gpu", "quarantine", "drain", None, "event", None, "the GPU is missing from its node"),
    _r("xid", "quarantine", "drain", None, "event", None, "XID {}"),
    _r("ecc_uncorrected", "quarantine", "reset", "memory", "event", None, "{} uncorrected ECC errors in a window"),
    _r("row_remap_failed", "quarantine", "repair", "memory", "state", None, "row remapping has failed"),
    _r("recovery_reset", "quarantine", "reset", None, "state", None, "the driver asks for a reset or reboot (recovery action {})"),
    _r("recovery_drain", "quarantine", "drain", None, "state", None, "the driver asks for a drain (recovery action {})"),
    _r("power_brake", "degraded", "repair", "power", "judged", "throttle_ratio", "external power brake in {} of the time (limit {})"),
    _r("hw_slowdown", "degraded", "watch", "power", "judged", "throttle_ratio", "hardware slowdown, not for heat, in {} of the time (limit {})"),
    _r("very_slow", "quarantine", "drain", None, "judged", "very_slow_high", "upper end of the speed interval is {} (limit {})"),
    _r("thermal_throttling", "degraded", "watch", "cooling", "judged", "throttle_ratio", "slowed for heat in {} of the time, more than its peers (limit {})"),
    _r("overheating", "degraded", "repair", "cooling", "note", "overheated_ratio", "hot like most of its node or block, where {} are slowed for heat (limit {})"),
    _r("row_remap_pending", "degraded", "reset", "memory", "state", None, "a row remap waits for a reset"),
    _r("ecc_corrected_rate", "degraded", "watch", "memory", "judged", "rate_per_minute", "{} corrected ECC errors a minute, far above its peers (limit {})"),
    _r("pcie_link", "degraded", "reset", "link", "judged", None, "PCIe link at {} of its generation or width while busy"),
    _r("pcie_replays", "degraded", "watch", "link", "judged", "rate_per_minute", "{} PCIe replays a minute, far above its peers (limit {})"),
    _r("nvlink_errors", "degraded", "watch", "link", "judged", "rate_per_minute", "{} NVLink errors a minute, far above its peers (limit {})"),
    _r("fabric_fault", "degraded", "reset", "link", "event", None, "NVLink fabric fault"),
    _r("power_limit", "degraded", "watch", "power", "judged", None, "power limit at {} of the board's own, unlike its peers'"),
    _r("slow", "degraded", "watch", None, "judged", "slow_high", "upper end of the speed interval is {} (limit {})"),
    _r("node_slow", "degraded", "watch", None, "judged", "slow_high", "results of the whole node: upper end of its speed interval is {} (limit {})"),
    _r("node_contended", "degraded", "watch", "noisy_neighbour", "judged", None, "its node stands empty {} of the time beyond others on the same programme"),
    _r("low_completeness", "degraded", "watch", "telemetry", "judged", "min_completeness", "{} of the promised samples arrived (limit {})"),
    _r("access_lost", "unknown", "watch", "telemetry", "event", None, "the node lost access to all its GPUs at once"),
    _r("frozen", "unknown", "watch", "telemetry", "judged", "frozen_samples", "{} samples with one and the same reading (limit {})"),
    _r("stale", "unknown", "watch", "telemetry", "note", "stale_windows", "no fresh evidence (limit {} windows)"),
    _r("operator_pin", "standard", "none", None, "event", None, "pinned by an operator"),
    _r("operator_hold", "standard", "none", None, "event", None, "held by an operator"),
    _r("operator_clear", "standard", "none", None, "event", None, "cleared by an operator"),
    _r("breaker_open", "standard", "watch", None, "note", "breaker_ratio", "too many demotions at once (limit {} of the fleet): this one is held until an operator resets"),
    _r("observing", "standard", "none", None, "note", None, "would be {}: observing only"),
    _r("application_clocks", "standard", "watch", "software", "judged", None, "a clock setting holds the clock in {} of the busy time, unlike its peers"),
    _r("memory_clock", "standard", "watch", "software", "judged", None, "memory clock at {} of its peers' while busy"),
    _r("drifting", "standard", "watch", None, "judged", "drift_effect", "{} slower than it was at first, lasting (limit {})"),
    _r("slow_at_equal_clock", "standard", "watch", "silicon", "judged", None, "{} of its neighbours' work in the same active time at equal clock"),
    _r("hot", "standard", "watch", "cooling", "judged", "hot_c", "{} C above the same slot on other nodes (limit {})"),
    _r("odd_combination", "standard", "watch", None, "judged", None, "readings do not go together as its peers' do at this load, {} times as far as chance leads"),
    _r("late_telemetry", "standard", "watch", "telemetry", "judged", "late_s", "its samples arrive {} s after the fleet's, or its node's clock is as much behind (limit {} s)"),
    _r("node_missing_gpu", "standard", "watch", None, "note", None, "its node shows fewer GPUs than expected"),
    _r("collector_trouble", "standard", "watch", "telemetry", "event", None, "its collector had trouble"),
    _r("shared", "standard", "watch", None, "note", None, "most of its node or block has it too"),
    _r("driver_version", "premium", "none", "software", "note", None, "another driver than nearly all of its model"),
    _r("few_peers", "standard", "none", None, "note", "min_peers", "too few peers at this load to compare with (limit {})"),
    _r("no_load", "standard", "none", None, "note", None, "no load heavy enough to judge its speed yet"),
)})
# fmt: on
"""Every reason, worst and most telling first: the first cause named is the verdict's cause."""

JUDGED: tuple[str, ...] = tuple(code for code, reason in REASONS.items() if reason.kind in ("judged", "state"))
"""Reasons with a memory of M judgements, in the order in which the state holds them."""

WORDED: tuple[str, ...] = ("odd_combination",)
"""Of these, the reasons whose text ends with words of their finding (`<code>_text`)."""

TIER_RANK: Mapping[str, int] = MappingProxyType(
    {"premium": 0, "standard": 1, "degraded": 2, "unknown": 3, "quarantine": 4}
)
"""The worst reason decides. A GPU that must not be used stays so when its telemetry falls silent."""
