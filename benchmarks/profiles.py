"""PAL's profiles as a cluster: nodes of four GPUs, how slow each one is by its medians, and what single runs say of it.

To add a class of applications: one line in `PROFILES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PROFILES: Mapping[str, tuple[str, bool]] = {
    "A": ("resnet-longhorn-agg.csv", True),
    "B": ("bert-longhorn-agg.csv", True),
    "C": ("pagerank-longhorn-agg.csv", False),
}
"""PAL's class of applications to its profile, and whether a run is one synchronous job on the node's four GPUs."""

NODE_GPUS = 4
NODES = 16  #: 64 GPUs, as PAL's simulations of the Sia-Philly traces have


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a scheduler knows of the cluster's GPUs in one class: log slowdown as one run has it (`raw`), and as it is
    expected to be (`mean`, `sd`); `shared` when only the node is known and its GPUs are one unknown."""

    raw: Floats
    mean: Floats
    sd: Floats
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`truth`: per class the slowdown of each GPU, its median run over the typical GPU's. GPU i is on node i // 4."""

    truth: Mapping[str, Floats]
    single: Mapping[str, Known]
    median: Mapping[str, Known]


def cluster_of(files: Mapping[str, Path], *, seed: int) -> Cluster:
    """16 nodes drawn from each profile (`files` by name); the others teach what single runs are worth.

    Few nodes are in all three profiles here, so each class has nodes of its own, whole ones.
    """
    random = np.random.default_rng(seed)
    truth, single, median = {}, {}, {}
    for name, (file, synchronous) in PROFILES.items():
        runs, medians = _runs(files[file], random)
        order = random.permutation(len(runs))
        here, others = order[:NODES], order[NODES:]
        truth[name] = np.exp(medians[here]).ravel()
        single[name] = _known(runs[here], runs[others], medians[others], synchronous)
        exact = medians[here].ravel()
        median[name] = Known(raw=exact, mean=exact, sd=np.full(len(exact), 1e-4), shared=False)
    return Cluster(truth=truth, single=single, median=median)


def _runs(path: Path, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Log slowdown of each node's four GPUs (rows: nodes): one run of each, drawn at random, and the median of all."""
    frame = pl.read_csv(path, infer_schema_length=None).select("cabinet", "node", "device", "perf").sort(pl.all())
    rows = frame.group_by("cabinet", "node", "device", maintain_order=True).agg("perf")
    perf = [np.array(one) for one in rows["perf"].to_list()]
    medians = np.array([np.median(one) for one in perf]).reshape(-1, NODE_GPUS)
    drawn = np.array([random.choice(one) for one in perf]).reshape(-1, NODE_GPUS)
    return np.log(drawn / np.median(drawn)), np.log(medians / np.median(medians))


def _known(here: Floats, runs: Floats, medians: Floats, synchronous: bool) -> Known:
    """What one run says: linear in the run, with slope and spread from other nodes (`runs` and `medians`).

    Runs beyond the middle 90 % count as its ends: one run in fifty takes twice its time and says nothing of the GPU. A
    synchronous run is evidence of its node, and the node is as slow as the slowest of its GPUs.
    """
    if synchronous:
        x, y, new = np.median(runs, axis=1), medians.max(axis=1), np.median(here, axis=1)
    else:
        x, y, new = runs.ravel(), medians.ravel(), here.ravel()
    low, high = np.quantile(x, [0.05, 0.95])
    x, new = np.clip(x, low, high), np.clip(new, low, high)
    slope = float(np.clip(np.cov(x, y)[0, 1] / x.var(ddof=1), 0, 1))
    mean = y.mean() + slope * (new - x.mean())
    sd = float(np.std(y - slope * x, ddof=2) * np.sqrt(1 + 1 / len(x)))
    each = NODE_GPUS if synchronous else 1
    return Known(raw=here.ravel(), mean=np.repeat(mean, each), sd=np.full(here.size, max(sd, 1e-4)), shared=synchronous)
