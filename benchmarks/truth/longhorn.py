"""Longhorn: 194 V100 GPUs, one SGEMM run a row (hal-uw/blox-pal). Telemetry, intervals, variance.

To add a figure: one more `Figure` here.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from analytics.estimators import telemetry_speed, unexplained
from analytics.variance import components
from benchmarks.truth.draws import LATER_MIN, Predictor, coverage, each, overlap, ranking, spearman
from benchmarks.truth.figure import Figure

SET = "longhorn"
CAP_W = 300.0
MANY_RUNS = 10
MIN_GPUS = 10  #: fewer have no rank to speak of
SPEARMAN = {1: 0.978, 3: 0.986, 10: 0.992}  #: half-way from the clock's to the ceiling, the runs' own times
OVERLAP = {1: 0.84, 3: 0.90, 10: 0.95}


def runs(path: Path) -> pl.DataFrame:
    """One row per run, each once: gpu_uuid, node, time_ns, log_speed, clock_mhz, temperature_c, power_w.

    The file lists a fifth of its runs twice. A GPU's node is unknown in some rows; where another row tells it, that is
    it (no GPU of the file moves); where none does, the GPU counts as the only one of its node.
    """
    rows = pl.read_csv(path, infer_schema_length=None)
    located = pl.when(pl.col("cabinet").cast(pl.String) != "-1").then(pl.format("{}-{}", "cabinet", "node"))
    told = rows.with_columns(located.alias("place")).with_columns(pl.col("place").drop_nulls().first().over("uuid"))
    return told.unique(["uuid", "ts", "perf"], maintain_order=True).select(
        pl.col("uuid").alias("gpu_uuid"), pl.coalesce("place", "uuid").alias("node"),
        (pl.col("ts").cast(pl.Int64) * 10**9).alias("time_ns"), (-pl.col("perf").log()).alias("log_speed"),
        pl.col("freq").alias("clock_mhz"), pl.col("temp").alias("temperature_c"), pl.col("pwr").alias("power_w"),
        pl.lit(CAP_W).alias("power_limit_w"), pl.lit("V100").alias("peer_group"),
    )  # fmt: skip


def figures(path: Path, *, draws: int = 40) -> Iterator[Figure]:
    """All figures of the set."""
    known = runs(path)
    yield from _telemetry(known, draws)
    yield from _limit(known)
    yield from _beyond_clock(known)
    yield from _intervals(known, draws)
    yield from _variance(known)


def _telemetry(known: pl.DataFrame, draws: int) -> Iterator[Figure]:
    predictors: dict[str, Predictor] = {
        "clock alone": lambda drawn: drawn.group_by("gpu_uuid").agg(
            pl.col("clock_mhz").log().median().round(9).alias("log_speed")
        ),
        "telemetry": telemetry_speed,
        "own times": lambda drawn: drawn.group_by("gpu_uuid").agg(pl.col("log_speed").median()),
    }
    runs_of = known.group_by("gpu_uuid").len()["len"]
    for count, words in each():
        if int((runs_of >= count + LATER_MIN).sum()) < MIN_GPUS:
            continue
        told, gpus = ranking(known, predictors, count=count, draws=draws)
        for name, (rank, found) in told.items():
            judged = name == "telemetry"
            yield Figure(
                set=SET, figure=f"{name} of {words}: Spearman with the other runs' time", value=rank, n=gpus,
                low=SPEARMAN[count] if judged else None,
            )  # fmt: skip
            yield Figure(
                set=SET, figure=f"{name} of {words}: slowest-decile overlap", value=found, n=gpus,
                low=OVERLAP[count] if judged else None,
            )  # fmt: skip
        better = [told["telemetry"][i] - told["clock alone"][i] for i in (0, 1)]
        yield Figure(set=SET, figure=f"telemetry less clock alone, {words}: Spearman", value=better[0], n=gpus, low=0.0)
        yield Figure(set=SET, figure=f"telemetry less clock alone, {words}: overlap", value=better[1], n=gpus, low=0.0)


def _limit(known: pl.DataFrame) -> Iterator[Figure]:
    """What ever more runs lead to: the telemetry of all runs against the median time of the same runs.

    Only GPUs with `MANY_RUNS`, so that neither side is a matter of chance: what is missing to 1 is no clock's to say.
    """
    counts = known.group_by("gpu_uuid").len()
    known = known.join(counts.filter(pl.col("len") >= MANY_RUNS), on="gpu_uuid", how="semi", maintain_order="left")
    if known["gpu_uuid"].n_unique() < MIN_GPUS:
        return
    both = telemetry_speed(known).rename({"log_speed": "said"}).join(
        known.group_by("gpu_uuid").agg(pl.col("log_speed").median()), on="gpu_uuid"
    )  # fmt: skip
    said, true = both["said"].to_numpy(), both["log_speed"].to_numpy()
    words = f"telemetry of all runs of GPUs with {MANY_RUNS} against their own times (the limit)"
    yield Figure(set=SET, figure=f"{words}: Spearman", value=spearman(said, true), n=len(both))
    yield Figure(set=SET, figure=f"{words}: slowest-decile overlap", value=overlap(said, true), n=len(both))


def _beyond_clock(known: pl.DataFrame) -> Iterator[Figure]:
    """GPUs slow beyond their clock: found with their times, and how many of those from telemetry alone."""
    gpus = known.group_by("gpu_uuid", "peer_group").agg(
        (-pl.col("log_speed")).median().alias("log_time"), pl.col("clock_mhz").median()
    )
    judged = unexplained(gpus)
    slow = set(judged.filter("slow_beyond_clock")["gpu_uuid"])
    truly = set(judged.filter(pl.col("beyond_clock") >= 0.02)["gpu_uuid"])
    said = set(telemetry_speed(known).filter(pl.col("hidden") <= -0.02)["gpu_uuid"])
    share = "GPUs 2 % slow beyond their clock"
    yield Figure(set=SET, figure=f"{share}: found by times and clock", value=_ratio(slow, truly), n=len(truly), low=1.0)
    yield Figure(set=SET, figure=f"{share}: found by telemetry alone", value=_ratio(said, truly), n=len(truly))
    false = len((slow | said) - truly)
    yield Figure(set=SET, figure=f"{share}: found falsely", value=false, n=len(judged) - len(truly), high=0)


def _ratio(found: set[str], true: set[str]) -> float | None:
    return len(found & true) / len(true) if true else None


def _intervals(known: pl.DataFrame, draws: int) -> Iterator[Figure]:
    for count, words in each():
        hit, width, pairs = coverage(known, count=count, draws=draws)
        yield Figure(
            set=SET,
            figure=f"90 % interval from {words} holds the later median",
            value=hit,
            n=pairs,
            low=0.88,
            high=0.92,
        )
        yield Figure(set=SET, figure=f"90 % interval from {words}: median width", value=width, n=pairs)
    for count, words in each():
        hit, _, pairs = coverage(known, count=count, draws=max(1, draws // 4), in_time=True)
        yield Figure(set=SET, figure=f"the same from the first {words} in time", value=hit, n=pairs)


def _variance(known: pl.DataFrame) -> Iterator[Figure]:
    found = components(known, levels=["node", "gpu_uuid"], value="log_speed").rows_by_key(
        "level", named=True, unique=True
    )
    for level, name, low, high in (
        ("node", "node", None, 0.10), ("gpu_uuid", "GPU", 0.90, None), ("run", "run", None, 0.03)
    ):  # fmt: skip
        row = found.get(level)
        if row is None or row["share"] is None:
            continue
        yield Figure(
            set=SET, figure=f"SGEMM: {name}'s share of variance", value=row["share"], n=row["units"], low=low, high=high
        )
        span = f"{row['share_low']:.3f} to {row['share_high']:.3f}"
        yield Figure(set=SET, figure=f"SGEMM: {name}'s share, 90 % interval", value=span, n=row["units"])
