"""Placement against the alternatives: job traces of Philly on clusters made of PAL's profiles, event by event.

Run: python -m benchmarks.placement PATH... with the folder or files of hal-uw/blox-pal: `*-longhorn-agg.csv` and
`workload-*.csv`. To add a policy: `benchmarks/policies.py`.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.policies import ACROSS, POLICIES, Gpus, Policy, Remembered
from benchmarks.profiles import NODE_GPUS, NODES, PROFILES, Cluster, Floats, cluster_of

CLUSTERS = range(6)  #: seeds: each draws other nodes of the profiles, and another run of each GPU
CLASS_OF: Mapping[str, str] = {
    "resnet50": "A", "BERT": "B", "GPT2": "B", "DCGAN": "B", "vgg19": "C", "PointNet": "C",
}  # fmt: skip
"""As PAL's simulator has them (hal-uw/blox-pal, workload.py), but for PointNet, whose class D has no profile here."""

ITERATION_S: Mapping[str, float] = {
    "BERT": 0.179, "DCGAN": 0.0469266931, "GPT2": 3.5714, "PointNet": 0.28125, "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}  # fmt: skip
"""Seconds of an iteration on the typical GPU, from the same file."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One job; `left_s` is what remains of its time on typical GPUs of one node."""

    submit_s: float
    gpus: int
    kind: str
    left_s: float
    pace: float = 0.0
    held: Gpus | None = None
    finish_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a trace: completion time of each job, and (class, promised, realised) slowdown of placements."""

    completion_s: Floats
    promises: Sequence[tuple[str, float, float]]

    @property
    def geomean_s(self) -> float:
        """Geometric mean of the completion times."""
        return float(np.exp(np.log(self.completion_s).mean()))


def jobs_of(path: Path) -> list[Job]:
    """The jobs of a trace in order of submission."""
    rows = pl.read_csv(path).sort("submit_time", "job_id")
    return [
        Job(submit_s=float(at), gpus=gpus, kind=CLASS_OF[model], left_s=float(count) * ITERATION_S[model])
        for gpus, at, count, model in rows.select("num_gpus", "submit_time", "duration", "model").iter_rows()
    ]


def simulate(jobs: Sequence[Job], cluster: Cluster, policy: Policy, *, move: bool) -> Outcome:
    """Run a trace, first come first served: a job that does not fit holds back those behind it.

    At each arrival and completion the jobs that fit are placed, the more sensitive class first, as PAL does. With
    `move` all running ones are placed anew at no cost, as in PAL's simulator; else a job stays where it began.
    """
    size = NODES * NODE_GPUS
    waiting, running, now, arrived = [], [], 0.0, 0
    promises: list[tuple[str, float, float]] = []
    order = list(jobs)
    while arrived < len(order) or waiting or running:
        ends = [now + job.left_s * job.pace for job in running]
        at = min([*ends, *(job.submit_s for job in order[arrived : arrived + 1])])
        for job in running:
            job.left_s -= (at - now) / job.pace
        now = at
        for job in [job for job in running if job.left_s * job.pace <= 1e-6]:
            job.finish_s, job.held = now, None
            running.remove(job)
        while arrived < len(order) and order[arrived].submit_s <= now:
            waiting.append(order[arrived])
            arrived += 1
        held = sum(job.gpus for job in running)
        begin: list[Job] = []
        while waiting and held + waiting[0].gpus <= size:
            held += waiting[0].gpus
            begin.append(waiting.pop(0))
        if move:
            begin, running = [*running, *begin], []
        free = np.setdiff1d(np.arange(size), np.concatenate([np.empty(0, np.int64), *(job.held for job in running)]))
        for job in sorted(begin, key=lambda one: one.kind):
            was = job.held
            job.held, promised = policy.place(job.gpus, job.kind, free)
            free = np.setdiff1d(free, job.held)
            slowdown = float(cluster.truth[job.kind][job.held].max())
            job.pace = slowdown * (ACROSS if len(np.unique(job.held // NODE_GPUS)) > 1 else 1.0)
            if promised is not None and (was is None or not np.array_equal(was, job.held)):
                promises.append((job.kind, promised, slowdown))
        running = sorted([*running, *begin], key=lambda one: one.submit_s)
    return Outcome(completion_s=np.array([job.finish_s - job.submit_s for job in jobs]), promises=promises)


def _outcome(name: str, file: Path, cluster: Cluster, seed: int, *, known: str, move: bool) -> Outcome:
    policy = POLICIES[name](getattr(cluster, known), seed=seed, move=move)
    return simulate(jobs_of(file), cluster, policy if name == "random" else Remembered(policy), move=move)


def figures(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """One row per figure: set, figure, value, target, holds (null where there is no target), n.

    `paths`: traces, whatever their names, and profiles (`*-agg.csv`); of a folder its `workload-*.csv` are traces.
    Each runs on six clusters, with the profiles known by medians and by one run of each GPU, and with running jobs
    placed anew at every event, as PAL's simulator does, or staying where they began.
    """
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    told = [file for file in files if file.match("workload-*.csv") or (file in paths and not file.match("*-agg.csv"))]
    traces = {file.stem: file for file in told}
    clusters = [cluster_of({file.name: file for file in files}, seed=seed) for seed in CLUSTERS]
    rows: list[dict[str, Any]] = []
    promises: dict[str, list[tuple[str, float, float]]] = {}
    for trace, file in traces.items():
        for known in ("median", "single"):
            for move in (True, False):
                how = f"{KNOWN[known]}, {'placed anew' if move else 'staying'}"
                times: dict[str, Floats] = {}
                for name in POLICIES:
                    outcomes = [
                        _outcome(name, file, cluster, seed, known=known, move=move)
                        for seed, cluster in zip(CLUSTERS, clusters, strict=True)
                    ]
                    promises.setdefault(how, []).extend(one for outcome in outcomes for one in outcome.promises)
                    times[name] = np.log([outcome.geomean_s for outcome in outcomes])
                    rows.append(_row(trace, f"completion time of {name}, s; {how}", math.exp(times[name].mean())))
                ratios = times["ours"] - times["PAL"]
                ratio, error = math.exp(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
                rows.append(_row(trace, f"ours / PAL; {how}", ratio, "<= 1", holds=ratio <= 1))
                rows.append(_row(trace, f"ours / PAL, standard error over clusters; {how}", error))
                rows.append(_row(trace, f"ours / PAL, worst cluster; {how}", math.exp(ratios.max())))
    for how, told in promises.items():
        for kind in ("all", *sorted({one[0] for one in told})):
            error = np.log([one[1] / one[2] for one in told if kind in ("all", one[0])])
            name, value = f"class {kind}; {how}", float(np.exp(error.mean()))
            holds = abs(value - 1) <= 0.01
            rows.append(
                _row(
                    "all traces",
                    f"promised / realised slowdown, {name}",
                    value,
                    "0.99 to 1.01",
                    len(error),
                    holds=holds,
                )
            )
            share = float((np.abs(error) <= 0.01).mean())
            rows.append(_row("all traces", f"share of single promises within 1 %, {name}", share, None, len(error)))
    for kind in PROFILES:
        spread = float(np.mean([np.expm1(cluster.single[kind].sd.mean()) for cluster in clusters]))
        rows.append(_row("all traces", f"standard deviation left once one run is known, class {kind}", spread, None, 0))
    return rows


KNOWN: Mapping[str, str] = {"median": "medians known", "single": "one run known"}
"""What the policies know, by the name of it in `Cluster`."""


def _row(
    name: str,
    figure: str,
    value: float,
    target: str | None = None,
    n: int = 160 * len(CLUSTERS),
    *,
    holds: bool | None = None,
) -> dict[str, Any]:
    return {"set": name, "figure": figure, "value": value, "target": target, "holds": holds, "n": n}


def main() -> None:
    """Print every figure, and how long they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    began = time.process_time()
    for row in figures(parser.parse_args().paths):
        held = "" if row["holds"] is None else f"  target {row['target']}: {'holds' if row['holds'] else 'FAILS'}"
        print(f"{row['set']:<12} {row['figure']:<72} {row['value']:>12.4f}  n={row['n']}{held}")
    print(f"{time.process_time() - began:.0f} s of one core")


if __name__ == "__main__":
    main()
