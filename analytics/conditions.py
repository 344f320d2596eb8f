"""What a window shows about each GPU: one finding per judged reason, true, false or not to be said.

To add a condition: one `_Finding` in `conditions`, its reason in `analytics/reasons.py`.
"""

from dataclasses import dataclass

import polars as pl

from analytics.keys import contest
from analytics.peers import load_bin, peers, without_limit
from analytics.thresholds import Thresholds

STEADY_LOAD = 0.9  #: busy ratio above which a low PCIe generation is no power saving between bursts
USUAL_MEMORY_CLOCK = 0.97  #: of the peers': memory clocks have few steps, far apart
PAUSING_LOAD = 0.5  #: or above which the links of the node's other GPUs, on the same job, must have saved power too
CLOCK_SETTING = 0.5  #: share of busy samples held by a clock setting, above that of the peers
SLOW_BY_SETTING = -0.02  #: log speed: the setting costs as much as a slow GPU
LOWERED_LIMIT = 0.95  #: of the board's own power limit: the clock goes with power to 1 / 2.4, so this costs 2 %
USUAL_LIMIT = 0.97  #: the model's other boards are above this share of theirs: the site has not lowered them all
SLOW_SILICON = -0.02  #: log speed beyond what the clock explains: the same effect as elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """`found` null: this window cannot say. Where peers decide, `found` is what a GPU's own row says, and `among_peers`
    what else must be true of it: looked at only when some row is found, which in a healthy fleet is seldom."""

    code: str
    found: pl.Expr
    value: pl.Expr
    among_peers: pl.Expr | None = None


def conditions(windows: pl.DataFrame, *, limits: Thresholds, complete: bool = True) -> pl.DataFrame:
    """One row per gpu: for each code a Boolean `code` (null: not judged) and a Float64 `code_value`.

    `windows`: rows of WINDOWS of one window with `gpu`, peer_group, slot, power_limit_default_w, log_speed,
    silicon_log_speed and contended (see `equal_work`), and max_pcie_gen and max_pcie_width, the best links these GPUs
    have shown. Peers are those of the same group in the same window: what befalls a whole
    room makes nobody stand out. An incomplete window says nothing about completeness. A value is null where its code
    is true of nobody.
    """
    findings = [*_throttling(limits), *_errors(limits), *_links(), *_recovery(), *_telemetry(limits, complete)]
    findings += [_clock_setting(), _memory_clock(limits), _hot(limits), _power_limit(), *_at_equal_work()]
    rows = windows.with_columns(load_bin()).with_columns(contest("peer_group").alias("group"), peers())
    own = rows.select(finding.found.cast(pl.Boolean).alias(finding.code) for finding in findings)
    somewhere = own.select(pl.all().any()).row(0, named=True)
    seen = [finding for finding in findings if somewhere[finding.code]]
    told = [
        (finding.found & finding.among_peers).cast(pl.Boolean).alias(finding.code)
        for finding in seen
        if finding.among_peers is not None
    ]
    values = [finding.value.cast(pl.Float64).alias(finding.code + "_value") for finding in seen]
    named = [one.meta.output_name() for one in (*told, *values)]
    shown = rows.with_columns(*told, *values).select(named)
    unseen = [
        pl.lit(None, dtype=pl.Float64).alias(finding.code + "_value")
        for finding in findings
        if not somewhere[finding.code]
    ]
    found = own.with_columns(shown.get_columns()).with_columns(unseen)
    return found.insert_column(0, rows["gpu"])


def _typical(value: pl.Expr, limits: Thresholds) -> pl.Expr:
    """The median of the peer group; 0 where they are too few to say what is normal."""
    middle, count = value.median().over("group"), value.count().over("group")
    return pl.when(count >= limits.min_peers).then(middle).otherwise(0.0)


def _throttling(limits: Thresholds) -> list[_Finding]:
    """Bits are read one by one; the software power cap alone is how every GPU works at full load, and no finding."""
    heat = pl.coalesce(
        pl.max_horizontal("sw_thermal_ratio", "hw_thermal_ratio"), pl.col("thermal_throttle_s") / pl.col("window_s")
    )
    brake = pl.coalesce("power_brake_ratio", pl.col("brake_throttle_s") / pl.col("window_s"))
    explained = pl.max_horizontal("hw_thermal_ratio", "power_brake_ratio").fill_null(0.0)
    slowdown = pl.col("hw_slowdown_ratio") - explained
    working = pl.when(pl.col("busy_samples") > 0).then(heat)
    judged = (pl.col("busy_samples") > 0) | (heat > limits.throttle_ratio)
    limit = limits.throttle_ratio
    return [
        _Finding(
            code="thermal_throttling",
            found=pl.when(judged).then(heat > limit),
            among_peers=heat - _typical(working, limits) > limit,
            value=heat,
        ),
        _Finding(code="power_brake", found=brake > limit, value=brake),
        _Finding(code="hw_slowdown", found=slowdown > limit, value=slowdown),
    ]


def _errors(limits: Thresholds) -> list[_Finding]:
    """Rates against the peers', never totals: healthy GPUs carry hundreds of old replays."""
    found = []
    for code, column in (
        ("ecc_corrected_rate", "ecc_corrected"),
        ("pcie_replays", "pcie_replays"),
        ("nvlink_errors", "nvlink_errors"),
    ):
        rate = pl.col(column).cast(pl.Float64) * 60 / pl.col("window_s")
        usual = limits.rate_factor * _typical(rate, limits)
        found.append(_Finding(code=code, found=rate > limits.rate_per_minute, among_peers=rate > usual, value=rate))
    remap = (("row_remap_failed", "row_remap_failed"), ("row_remap_pending", "row_remap_pending"))
    return found + [_Finding(code=code, found=pl.col(column), value=pl.lit(None)) for code, column in remap]


def _links() -> list[_Finding]:
    """Generation and width while busy against the best this GPU has shown, or its peers' usual."""
    pausing = pl.col("busy_ratio") >= PAUSING_LOAD
    kept = pl.when(pausing).then(pl.col("pcie_link_gen") >= pl.col("max_pcie_gen")).cast(pl.Float64)
    others_keep = (kept.median().over("node") == 1).fill_null(value=False)

    def share(steady: pl.Expr) -> pl.Expr:
        parts = []
        for now, best, counts in (
            ("pcie_link_gen", "max_pcie_gen", steady),
            ("pcie_link_width", "max_pcie_width", pl.col("busy_samples") > 0),
        ):
            seen = pl.when(counts).then(now).cast(pl.Float64)
            parts.append(seen / pl.max_horizontal(best, seen.median().over("group"), seen))
        return pl.min_horizontal(parts)

    known = share((pl.col("busy_ratio") >= STEADY_LOAD) | (pausing & others_keep))
    return [_Finding(code="pcie_link", found=share(pausing) < 1, among_peers=known < 1, value=known)]


def _recovery() -> list[_Finding]:
    """The driver's codes: 1 reset, 2 reboot; 3 drain peer-to-peer traffic, 4 drain and reset."""
    action = pl.col("recovery_action")
    return [
        _Finding(code="recovery_reset", found=action.is_in([1.0, 2.0]), value=action),
        _Finding(code="recovery_drain", found=action.is_in([3.0, 4.0]), value=action),
    ]


def _telemetry(limits: Thresholds, complete: bool) -> list[_Finding]:
    ratio = pl.col("completeness_ratio")
    many = pl.col("samples") >= limits.frozen_samples
    frozen = pl.when(many & (pl.col("power_w") > 0)).then(pl.col("distinct_readings") == 1)
    judged = ratio < limits.min_completeness if complete else pl.lit(None, dtype=pl.Boolean)
    return [
        _Finding(code="low_completeness", found=judged, value=ratio),
        _Finding(code="frozen", found=frozen, value=pl.col("samples")),
        _late(limits),
    ]


def _late(limits: Thresholds) -> _Finding:
    """Against the whole fleet. While most are late themselves, after an outage or in a replay, nobody is judged."""
    delay = pl.col("delivery_delay_s").cast(pl.Float64)
    usual = delay.median()
    behind = pl.when((usual < limits.late_s) & (delay.count() >= limits.min_peers)).then(delay - usual)
    return _Finding(code="late_telemetry", found=behind > limits.late_s, value=behind)


def _clock_setting() -> _Finding:
    share = pl.col("application_clocks_ratio")
    slower = pl.col("log_speed") < SLOW_BY_SETTING
    held = share > CLOCK_SETTING  # no peer's share is below zero
    return _Finding(
        code="application_clocks",
        found=pl.when(pl.col("log_speed").is_not_null() & share.is_not_null()).then(held & slower),
        among_peers=share - share.median().over("group") > CLOCK_SETTING,
        value=share,
    )


def _memory_clock(limits: Thresholds) -> _Finding:
    """Against the peers' while busy: it changes with no load, only by a setting or a power state held."""
    clock = pl.when(pl.col("busy_samples") > 0).then("memory_clock_mhz").cast(pl.Float64)
    usual = _typical(clock, limits)
    share = pl.when(usual > 0).then(clock / usual)
    return _Finding(code="memory_clock", found=share < USUAL_MEMORY_CLOCK, value=share)


def _hot(limits: Thresholds) -> _Finding:
    """Against the same slot of other nodes at the same work: slots differ inside healthy nodes."""
    by = ("peers", "slot")
    temperature = pl.when(pl.col("slot").is_not_null()).then("temperature_c").cast(pl.Float64)
    usual, count = temperature.median().over(*by), temperature.count().over(*by)
    above = pl.when(count >= limits.min_peers).then(temperature - usual)
    return _Finding(code="hot", found=above > limits.hot_c, value=above)


def _power_limit() -> _Finding:
    """Against the board's own limit, where the model's other boards have theirs and the cap is what holds the clock."""
    share = pl.col("power_limit_w") / pl.col("power_limit_default_w")
    model = without_limit(pl.col("peer_group"))
    working = pl.when((pl.col("busy_samples") > 0) & share.is_not_null())
    return _Finding(
        code="power_limit",
        found=working.then((share < LOWERED_LIMIT) & (pl.col("sw_power_cap_ratio") > CLOCK_SETTING)),
        among_peers=share.median().over(model) >= USUAL_LIMIT,
        value=share,
    )


def _at_equal_work() -> list[_Finding]:
    """Slow beyond what the clock explains; and a node that waits for nobody else's GPU."""
    silicon = pl.col("silicon_log_speed")
    slow = (silicon < SLOW_SILICON) & (pl.col("log_speed") < SLOW_SILICON)
    judged = pl.when(silicon.is_not_null())
    return [
        _Finding(code="slow_at_equal_clock", found=judged.then(slow), value=silicon.exp()),
        _Finding(code="node_contended", found=pl.col("contended"), value=pl.col("waiting")),
    ]
