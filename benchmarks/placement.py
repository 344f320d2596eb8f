"""Placement against the alternatives: job traces of Philly on clusters made of PAL's profiles, event by event.

Run: python -m benchmarks.placement [--data ../shared/data]. To add a policy: `benchmarks/policies.py`.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.policies import ACROSS, POLICIES, Gpus, Policy
from benchmarks.profiles import NODE_GPUS, NODES, Cluster, Floats, cluster_of

TRACES = (1, 3, 5, 6)
CLASS_OF: Mapping[str, str] = {
    "resnet50": "A", "BERT": "B", "GPT2": "B", "DCGAN": "B", "vgg19": "C", "PointNet": "C",
}  # fmt: skip
"""As PAL's simulator maps them (hal-uw/blox-pal, workload.py); it has PointNet in a class D whose profile is not here."""

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
    """What became of a trace: completion time of each job, and (promised, realised) slowdown of each placement."""

    completion_s: Floats
    promises: Sequence[tuple[float, float]]

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

    At each arrival and completion the jobs that fit are placed, the more sensitive class first, as PAL does. With `move`
    all running ones are placed anew at no cost, as PAL's simulator does; else a job stays where it began.
    """
    size = NODES * NODE_GPUS
    waiting, running, now, arrived = [], [], 0.0, 0
    promises: list[tuple[float, float]] = []
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
                promises.append((promised, slowdown))
        running = sorted([*running, *begin], key=lambda one: one.submit_s)
    return Outcome(completion_s=np.array([job.finish_s - job.submit_s for job in jobs]), promises=promises)
