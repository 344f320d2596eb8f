"""Growth of counters over a window, measured from the last sample of the window before.

To add a counter feature: one line in `_SUMS`: columns that add up, and what stands in for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from telemetry.metrics import SAMPLED, Kind

COUNTERS: tuple[str, ...] = tuple(metric.name for metric in SAMPLED if metric.kind is Kind.COUNTER)
MAX_CLOCK_MHZ = 5_000.0  #: the catalogue's limit for a clock; above it the cycles are no clock's


class Growth(NamedTuple):
    """One feature: counters that add up, what stands in when none of them is there, and the divisor to its unit."""

    counters: tuple[str, ...]
    fallback: tuple[str, ...] = ()
    divisor: float = 1.0


_SUMS: dict[str, Growth] = {
    # Clock-event-reason counters before violation counters: the latter count any time below the requested clocks.
    "power_throttle_s": Growth(("sw_power_cap_ns",), ("power_violation_ns",), 1e9),
    "thermal_throttle_s": Growth(("sw_thermal_ns", "hw_thermal_ns"), ("thermal_violation_ns",), 1e9),
    "brake_throttle_s": Growth(("hw_power_brake_ns",), (), 1e9),
    "energy_j": Growth(("energy_mj",), (), 1e3),
    "ecc_corrected": Growth(("ecc_corrected_total",)),
    "ecc_uncorrected": Growth(("ecc_uncorrected_total",)),
    "remapped_rows": Growth(("remapped_rows_corrected_total", "remapped_rows_uncorrected_total")),
    "pcie_replays": Growth(("pcie_replay_total",)),
    "nvlink_errors": Growth(
        (
            "nvlink_crc_errors_total",
            "nvlink_replay_errors_total",
            "nvlink_recovery_errors_total",
            "nvlink_symbol_errors_total",
        )
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where each GPU's rows lie in a sorted samples frame."""

    ids: pl.Series  #: `_group`, UInt32, one per row
    starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]  #: the last row, inclusive

    @classmethod
    def of(cls, samples: pl.DataFrame) -> "Groups":
        """Raises ValueError when a GPU's rows lie apart or its times do not grow: aggregates would be wrong."""
        ids = samples["gpu_uuid"].rle_id().alias("_group")
        steps = np.flatnonzero(np.diff(ids.to_numpy()))
        starts = np.concatenate(([0], steps + 1)).astype(np.int64)
        ends = np.concatenate((steps, [len(ids) - 1])).astype(np.int64)
        grows = np.diff(samples["time_ns"].to_numpy()) > 0
        grows[steps] = True
        if not grows.all() or samples["gpu_uuid"].gather(starts).n_unique() != len(starts):
            raise ValueError("samples must be sorted by gpu_uuid and time_ns, without duplicates")
        return cls(ids=ids, starts=starts, ends=ends)

    def chunks(self, rows: int) -> Iterator[tuple[int, int]]:
        """(start, length) of slices of about `rows` rows that keep each GPU whole."""
        start = 0
        for end in self.ends:
            if end + 1 - start >= rows or end == self.ends[-1]:
                yield int(start), int(end + 1 - start)
                start = int(end) + 1


def counter_features(samples: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    """One row per `_group`: the counter columns of WINDOWS and `counter_resets`; null where unsupported.

    A delta needs two readings, so a GPU without a carry row is counted from its first sample. A fall is a reset: what
    the counter reads after it has grown since. Nulls between readings are bridged.
    """
    count = len(groups.starts)
    deltas: dict[str, pl.Series] = {}
    resets = np.zeros(count, dtype=np.int64)
    for name in COUNTERS:
        column = samples[name]
        if column.null_count() == len(column):
            continue
        deltas[name] = _growth(column, groups, count, resets)
    grown = pl.DataFrame(deltas) if deltas else pl.DataFrame({"_": np.zeros(count)})
    features = grown.with_columns(_sum(growth, set(deltas)).alias(name) for name, growth in _SUMS.items())
    return features.select(*_SUMS).with_columns(
        pl.Series("_group", np.arange(count), dtype=pl.UInt32), pl.Series("counter_resets", resets, dtype=pl.UInt32)
    )


def _growth(
    column: pl.Series, groups: Groups, count: int, resets: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pl.Series:
    """Delta of one counter per group; adds its falls to `resets`."""
    if column.null_count():
        known = np.flatnonzero(column.is_not_null().to_numpy())
        owner = groups.ids.to_numpy()[known]
        values = column.drop_nulls().to_numpy()
        first = np.searchsorted(owner, np.arange(count), side="left")
        last = np.searchsorted(owner, np.arange(count), side="right") - 1
    else:
        owner, values, first, last = groups.ids.to_numpy(), column.to_numpy(), groups.starts, groups.ends
    readable = last > first
    here = np.where(readable, last, 0)
    base = np.where(readable, first, 0)
    # Unsigned arithmetic wraps, so that large totals lose no digit: what a fall takes away, its addition gives back.
    delta = values[here].astype(np.uint64) - values[base].astype(np.uint64)
    falls = np.flatnonzero((values[1:] < values[:-1]) & (owner[1:] == owner[:-1]))
    if len(falls):
        np.add.at(delta, owner[falls], values[falls].astype(np.uint64))
        np.add.at(resets, owner[falls], 1)
    return pl.Series(column.name, delta.astype(np.float64)).set(pl.Series(~readable), None)


def _sum(growth: Growth, present: set[str]) -> pl.Expr:
    names = [name for name in growth.counters if name in present]
    stand_in = [name for name in growth.fallback if name in present]
    known: list[pl.Expr] = []
    if names:
        some = pl.any_horizontal(pl.col(name).is_not_null() for name in names)
        known.append(pl.when(some).then(pl.sum_horizontal(names)))
    if stand_in:
        known.append(pl.col(stand_in[0]))
    return (pl.coalesce(known) if known else pl.lit(None, dtype=pl.Float64)) / growth.divisor


def cycle_clock(samples: pl.DataFrame) -> pl.DataFrame:
    """One row per `_group` with SM cycles: `_cycle_clock` in MHz while busy, `_cycle_samples` behind it.

    Only spans that end in a busy sample and do not begin in an idle one count. A rate that no clock can have (the
    cycles of all SMs added up, say) is left out, so that the sampled clock is used.
    """
    if samples["sm_cycles_elapsed_total"].null_count() == len(samples):
        return pl.DataFrame(schema={"_group": pl.UInt32, "_cycle_clock": pl.Float64, "_cycle_samples": pl.UInt32})
    cycles = pl.col("sm_cycles_elapsed_total")
    same = pl.col("_group") == pl.col("_group").shift(1)
    grown = same & (cycles > cycles.shift(1)) & pl.col("_busy") & pl.col("_busy").shift(1).fill_null(value=True)
    spans = samples.lazy().select(
        "_group",
        pl.when(grown).then(cycles - cycles.shift(1)).cast(pl.Float64).alias("cycles"),
        (pl.col("time_ns") - pl.col("time_ns").shift(1)).cast(pl.Float64).alias("ns"),
    )
    spans = spans.filter(pl.col("cycles").is_not_null()).with_columns(pl.col("_group").set_sorted())
    rates = spans.group_by("_group", maintain_order=True).agg(
        (pl.col("cycles").sum() / pl.col("ns").sum() * 1e3).alias("_cycle_clock"),
        pl.len().alias("_cycle_samples"),
    )
    return rates.filter(pl.col("_cycle_clock") <= MAX_CLOCK_MHZ).collect()
