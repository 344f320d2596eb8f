"""Simulated fleets with known faults through the scorer: what is found, how soon, and what is found falsely.

Run: python -m benchmarks.campaign [SEEDS] [--processes N]. To add a set: its fleets in `benchmarks/campaign_fleets.py`,
a function of a seed in `_PLAYS` and one of all its results in `_TELLS`. Every fleet goes through encoder, decoder,
windows and scorer; only the transport between them is left out.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

for _name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before anything loads: figures are for one core

from benchmarks.campaign_fleets import broken, flood, quiet, slow, storm  # noqa: E402
from benchmarks.campaign_judging import Verdict, slow_count, verdicts  # noqa: E402
from benchmarks.campaign_run import Run, play  # noqa: E402
from benchmarks.truth.figure import Figure, table  # noqa: E402

WINDOWS = 32
ALL_PASS = {"breaker_ratio": 1.0}  #: more of these fleets is broken at once than a breaker lets pass
HARD = ("ecc_uncorrected", "row_remap_failed", "row_remap_pending", "xid", "fallen_off_bus", "fabric_fault")
LOSSES = ((0.01, 0.02), (0.02, 0.03), (0.03, 0.05), (0.05, 0.10))
MANY_GPU_DAYS = 10_000
QUIET_SHARE = 3  #: a day without faults takes as long as six fleets with some: one for so many seeds
TOLD_S = 30.0  #: between lines of progress


def figures(seeds: int, *, processes: int | None = None) -> Iterator[Figure]:
    """All figures of so many seeds. `processes`: fleets played at once, by default as many as this one has cores."""
    kinds = [kind for kind in _PLAYS for _ in range(seeds if kind != "quiet" else -(-seeds // QUIET_SHARE))]
    tasks = [(kind, i - kinds.index(kind) + 1) for i, kind in enumerate(kinds)]
    tasks.sort(key=lambda task: (task[0] != "quiet", task[1]))  # the long ones first
    found: dict[str, dict[int, Any]] = {kind: {} for kind in _PLAYS}
    for kind, seed, result in _played(tasks, processes or len(os.sched_getaffinity(0))):
        found[kind][seed] = result
    for kind, tell in _TELLS.items():
        yield from tell([found[kind][seed] for seed in sorted(found[kind])])


def _played(tasks: Sequence[tuple[str, int]], processes: int) -> Iterator[tuple[str, int, Any]]:
    """Results as they come, with a word on standard error now and then."""
    told = time.monotonic()
    for done, one in enumerate(_results(tasks, min(processes, len(tasks))), start=1):
        yield one
        if time.monotonic() - told > TOLD_S or done == len(tasks):
            told = time.monotonic()
            sys.stderr.write(f"campaign: {done} of {len(tasks)} fleets\n")
            sys.stderr.flush()


def _results(tasks: Sequence[tuple[str, int]], processes: int) -> Iterator[tuple[str, int, Any]]:
    if processes == 1:
        yield from map(_play, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # no thread of polars survives a fork
        yield from pool.imap_unordered(_play, tasks)


def _play(task: tuple[str, int]) -> tuple[str, int, Any]:
    kind, seed = task
    return kind, seed, _PLAYS[kind](seed)


def _slow(seed: int) -> list[Verdict]:
    """Slow-downs of 1 to 10 %."""
    return list(verdicts(play(slow(seed), seed=seed, windows=WINDOWS, thresholds=ALL_PASS)))


def _broken(seed: int) -> tuple[list[Verdict], list[float]]:
    """One fault of each kind, and whole nodes and racks."""
    run = play(broken(seed), seed=seed, windows=WINDOWS, thresholds=ALL_PASS)
    return list(verdicts(run)), list(_hard_delays(run))


def _storm(seed: int) -> tuple[list[Verdict], float]:
    """What looks like trouble and is none; and a fleet of which two fifths turn slow at once."""
    calm = list(verdicts(play(storm(seed), seed=seed, windows=WINDOWS)))
    flooded = list(verdicts(play(flood(seed), seed=seed, windows=24)))
    return calm, sum(verdict.demoted for verdict in flooded) / len(flooded)


def _quiet(seed: int) -> tuple[float, int]:
    """A day without a fault, in windows of ten minutes from samples every 30 s."""
    run = play(quiet(seed), seed=seed, windows=144, window_s=600, interval_s=30)
    return run.gpu_days, sum(verdict.demoted and verdict.speed > 0.98 for verdict in verdicts(run))


def _tell_slow(results: Sequence[list[Verdict]]) -> Iterator[Figure]:
    name = "campaign slow"
    found = [verdict for verdicts in results for verdict in verdicts]
    count = slow_count(found)
    slowed = [verdict for verdict in found if verdict.speed <= 0.97]
    yield Figure(set=name, figure="F1 of slow-downs of 3 % and more", value=count.f1, low=0.98, n=len(slowed))
    words = "precision: demoted GPUs that are 2 % slow"
    yield Figure(set=name, figure=words, value=count.precision, n=count.hits + count.false)
    yield Figure(set=name, figure="recall of slow-downs of 3 % and more", value=count.recall, n=len(slowed))
    for low, high in LOSSES:
        some = [verdict for verdict in found if 1 - high < verdict.speed <= 1 - low]
        share = sum(verdict.demoted for verdict in some) / max(len(some), 1)
        yield Figure(set=name, figure=f"share demoted of GPUs {low:.0%} to {high:.0%} slow", value=share, n=len(some))
    for kind in ("slow_silicon", "drift", "low_clock", "power_cap"):
        yield from _kind(name, kind, [verdict for verdict in slowed if verdict.kind == kind], any_tier=True)


def _tell_broken(results: Sequence[tuple[list[Verdict], list[float]]]) -> Iterator[Figure]:
    name = "campaign faults"
    found = [verdict for verdicts, _ in results for verdict in verdicts]
    late = [delay == 0 for _, delays in results for delay in delays]
    yield Figure(set=name, figure="hard faults acted on by their own message", value=_share(late), low=1.0, n=len(late))
    kinds = {verdict.name if "cooling" in (verdict.name or "") else verdict.kind for verdict in found if verdict.kind}
    for kind in sorted(str(kind) for kind in kinds):
        yield from _kind(name, kind, [verdict for verdict in found if kind in (verdict.kind, verdict.name)])
    healthy = [verdict for verdict in found if verdict.kind is None and verdict.speed > 0.98]
    wrong = sum(verdict.demoted for verdict in healthy)
    yield Figure(set=name, figure="healthy GPUs beside them demoted", value=wrong, high=0, n=len(healthy))


def _kind(name: str, kind: str, found: list[Verdict], *, any_tier: bool = False) -> Iterator[Figure]:
    """Recall, precision of the cause among those found, and minutes to the verdict."""
    hits = [verdict for verdict in found if (verdict.demoted if any_tier else verdict.found)]
    yield Figure(set=name, figure=f"{kind}: recall", value=len(hits) / max(len(found), 1), n=len(found))
    named = [verdict.cause in verdict.causes for verdict in hits]
    yield Figure(set=name, figure=f"{kind}: cause right", value=_share(named) if hits else None, n=len(hits))
    minutes = [
        (verdict.at_ns - verdict.start_ns) / 60e9
        for verdict in hits
        if verdict.at_ns is not None and verdict.at_ns >= verdict.start_ns
    ]
    middle = median(minutes) if minutes else None
    yield Figure(set=name, figure=f"{kind}: minutes to detection (median)", value=middle, n=len(minutes))


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


def _tell_storms(results: Sequence[tuple[list[Verdict], float]]) -> Iterator[Figure]:
    name = "campaign storms"
    fine = [verdict for verdicts, _ in results for verdict in verdicts if verdict.speed > 0.98]
    wrong = sum(verdict.demoted for verdict in fine)
    yield Figure(set=name, figure="healthy GPUs demoted", value=wrong, high=0, n=len(fine))
    share = max(share for _, share in results)
    words = "largest share of a fleet demoted in a flood"
    yield Figure(set=name, figure=words, value=share, high=0.15, n=len(results))


def _tell_quiet(results: Sequence[tuple[float, int]]) -> Iterator[Figure]:
    name = "campaign quiet"
    days, wrong = sum(days for days, _ in results), sum(wrong for _, wrong in results)
    rate = wrong / days * MANY_GPU_DAYS
    bound = (wrong + 3.0 + 1.7 * wrong**0.5) / days * MANY_GPU_DAYS
    n = round(days)
    yield Figure(set=name, figure="false demotions", value=wrong, n=n)
    yield Figure(set=name, figure="GPU-days without a fault", value=days, n=n)
    decided = rate > 1.0 or bound <= 1.0  # no false one in 250 GPU-days says little about 10,000
    words = f"false demotions in {MANY_GPU_DAYS:,} GPU-days"
    yield Figure(set=name, figure=words, value=rate, high=1.0, n=n, decided=decided)
    yield Figure(set=name, figure="the same, upper end of a 95 % interval", value=bound, n=n)


_PLAYS: Mapping[str, Callable[[int], Any]] = {"slow": _slow, "faults": _broken, "storms": _storm, "quiet": _quiet}
_TELLS: Mapping[str, Callable[[Sequence[Any]], Iterator[Figure]]] = {
    "slow": _tell_slow, "faults": _tell_broken, "storms": _tell_storms, "quiet": _tell_quiet,
}  # fmt: skip


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 1.0


def main() -> None:
    """Print the table and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=10)
    parser.add_argument("--processes", type=int)
    chosen = parser.parse_args()
    began = time.monotonic()
    print(table([figure.row() for figure in figures(chosen.seeds, processes=chosen.processes)]))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
