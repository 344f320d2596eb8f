"""Simulated fleets with known faults through the scorer: what is found, how soon, and what is found falsely.

Run: python -m benchmarks.campaign [SEEDS]. To add a set: its fleets in `benchmarks/campaign_fleets.py`, its figures
here. Every fleet goes through encoder, decoder, windows and scorer; only the transport between them is left out.
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

for _name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before anything loads: figures are for one core

from benchmarks.campaign_fleets import broken, flood, quiet, slow, storm  # noqa: E402
from benchmarks.campaign_judging import Verdict, slow_count, verdicts  # noqa: E402
from benchmarks.campaign_run import Run, play  # noqa: E402

WINDOWS = 32
ALL_PASS = {"breaker_ratio": 1.0}  #: more of these fleets is broken at once than a breaker lets pass
HARD = ("ecc_uncorrected", "row_remap_failed", "row_remap_pending", "xid", "fallen_off_bus", "fabric_fault")
LOSSES = ((0.01, 0.02), (0.02, 0.03), (0.03, 0.05), (0.05, 0.10))
MANY_GPU_DAYS = 10_000
Figure = dict[str, Any]


def figures(seeds: int) -> list[Figure]:
    """All figures of so many seeds: set, figure, value, target (None: none is set), holds, n (what the value is of)."""
    found: list[Figure] = []
    for part in (_slow, _broken, _storms, _quiet):
        found += part(seeds)
    return found


def _figure(
    name: str, figure: str, value: float | None, n: float, target: float | None = None, *, at_most: bool = False
) -> Figure:
    holds = None
    if target is not None and value is not None:
        holds = value <= target if at_most else value >= target
    return {"set": f"campaign {name}", "figure": figure, "value": value, "target": target, "holds": holds, "n": n}


def _slow(seeds: int) -> Iterator[Figure]:
    """Slow-downs of 1 to 10 %."""
    found: list[Verdict] = []
    for seed in range(1, seeds + 1):
        found += verdicts(play(slow(seed), seed=seed, windows=WINDOWS, thresholds=ALL_PASS))
    count = slow_count(found)
    slowed = [verdict for verdict in found if verdict.speed <= 0.97]
    yield _figure("slow", "F1 of slow-downs of 3 % and more", count.f1, len(slowed), 0.98)
    yield _figure("slow", "precision: demoted GPUs that are 2 % slow", count.precision, count.hits + count.false)
    yield _figure("slow", "recall of slow-downs of 3 % and more", count.recall, len(slowed))
    for low, high in LOSSES:
        some = [verdict for verdict in found if 1 - high < verdict.speed <= 1 - low]
        share = sum(verdict.demoted for verdict in some) / max(len(some), 1)
        yield _figure("slow", f"share demoted of GPUs {low:.0%} to {high:.0%} slow", share, len(some))
    for kind in ("slow_silicon", "drift", "low_clock", "power_cap"):
        yield from _kind("slow", kind, [verdict for verdict in slowed if verdict.kind == kind])


def _broken(seeds: int) -> Iterator[Figure]:
    """One fault of each kind, and whole nodes and racks."""
    found: list[Verdict] = []
    late: list[float] = []
    for seed in range(1, _some(seeds) + 1):
        run = play(broken(seed), seed=seed, windows=WINDOWS, thresholds=ALL_PASS)
        found += verdicts(run)
        late += _hard_delays(run)
    yield _figure("faults", "hard faults acted on by their own message", _share([d == 0 for d in late]), len(late), 1.0)
    kinds = {verdict.name if "cooling" in (verdict.name or "") else verdict.kind for verdict in found if verdict.kind}
    for kind in sorted(str(kind) for kind in kinds):
        yield from _kind("faults", kind, [verdict for verdict in found if kind in (verdict.kind, verdict.name)])
    healthy = [verdict for verdict in found if verdict.kind is None and verdict.speed > 0.98]
    yield _figure(
        "faults", "healthy GPUs beside them demoted", sum(verdict.demoted for verdict in healthy), len(healthy), 0,
        at_most=True,
    )  # fmt: skip


def _kind(name: str, kind: str, found: list[Verdict]) -> Iterator[Figure]:
    """Recall, precision of the cause among those found, and minutes to the verdict."""
    hits = [verdict for verdict in found if (verdict.found if name == "faults" else verdict.demoted)]
    yield _figure(name, f"{kind}: recall", len(hits) / max(len(found), 1), len(found))
    named = [verdict.cause in verdict.causes for verdict in hits]
    yield _figure(name, f"{kind}: cause right", _share(named) if hits else None, len(hits))
    minutes = [
        (verdict.at_ns - verdict.start_ns) / 60e9
        for verdict in hits
        if verdict.at_ns is not None and verdict.at_ns >= verdict.start_ns
    ]
    yield _figure(name, f"{kind}: minutes to detection (median)", median(minutes) if minutes else None, len(minutes))


def _hard_delays(run: Run) -> Iterator[float]:
    """Seconds from each hard fault's event to the demotion of its GPUs."""
    for fault in run.truth["faults"]:
        if fault["kind"] not in HARD:
            continue
        tiers = run.transitions.filter(run.transitions["gpu_uuid"].is_in(fault["gpus"]))
        for gpu in fault["gpus"]:
            times = [
                row["time_ns"]
                for row in tiers.iter_rows(named=True)
                if row["gpu_uuid"] == gpu and row["time_ns"] >= fault["start_ns"] and row["to_tier"] in fault["tiers"]
            ]
            struck = min(
                (e.time_ns for e in run.events if e.gpu_uuid in (gpu, "") and e.time_ns >= fault["start_ns"]),
                default=0,
            )
            already = any(
                row["gpu_uuid"] == gpu and row["time_ns"] < fault["start_ns"] and row["to_tier"] in fault["tiers"]
                for row in tiers.iter_rows(named=True)
            )
            if not already:
                yield (min(times) - struck) / 1e9 if times else float("inf")


def _storms(seeds: int) -> Iterator[Figure]:
    """What looks like trouble and is none; and a fleet of which two fifths turn slow at once."""
    found: list[Verdict] = []
    shares = []
    for seed in range(1, _some(seeds) + 1):
        found += verdicts(play(storm(seed), seed=seed, windows=WINDOWS))
        flooded = list(verdicts(play(flood(seed), seed=seed, windows=24)))
        shares.append(sum(verdict.demoted for verdict in flooded) / len(flooded))
    fine = [verdict for verdict in found if verdict.speed > 0.98]
    wrong = [verdict for verdict in fine if verdict.demoted]
    yield _figure("storms", "healthy GPUs demoted", len(wrong), len(fine), 0, at_most=True)
    yield _figure("storms", "largest share of a fleet demoted in a flood", max(shares), len(shares), 0.15, at_most=True)


def _quiet(seeds: int) -> Iterator[Figure]:
    """Days without a fault, in windows of ten minutes from samples every 30 s."""
    days, wrong = 0.0, 0
    for seed in range(1, _some(seeds) + 1):
        run = play(quiet(seed), seed=seed, windows=144, window_s=600, interval_s=30)
        days += run.gpu_days
        for verdict in verdicts(run):
            wrong += verdict.demoted and verdict.speed > 0.98
    rate = wrong / days * MANY_GPU_DAYS
    bound = (wrong + 3.0 + 1.7 * wrong**0.5) / days * MANY_GPU_DAYS
    yield _figure("quiet", "false demotions", wrong, days)
    yield _figure("quiet", "GPU-days without a fault", days, days)
    decided = rate > 1.0 or bound <= 1.0  # no false one in 250 GPU-days says little about 10,000
    one = _figure("quiet", f"false demotions in {MANY_GPU_DAYS:,} GPU-days", rate, days, 1.0, at_most=True)
    yield one if decided else one | {"holds": None}
    yield _figure("quiet", "the same, upper end of a 95 % interval", bound, days)


def _some(seeds: int) -> int:
    """Seeds of the sets that take longer: a tenth, at least one."""
    return max(1, (seeds + 9) // 10)


def _share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else 1.0


def text(found: list[Mapping[str, Any]]) -> str:
    """The figures as a Markdown table."""
    lines = ["| set | figure | value | target | holds | n |", "|---|---|---|---|---|---|"]
    for one in found:
        cells = [one["set"], one["figure"], _number(one["value"]), _number(one["target"])]
        cells += [{None: "", True: "yes", False: "no"}[one["holds"]], _number(one["n"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def main() -> None:
    """Print the table and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=10)
    began = time.monotonic()
    print(text(list(figures(parser.parse_args().seeds))))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
