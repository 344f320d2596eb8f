"""Placement policies for the simulation: packed, random, PM-First, PAL, and ours.

To add a policy: a class with `place`, one line in `POLICIES`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Protocol

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from analytics.floor import Floor, floor_of
from analytics.frames import frame
from analytics.placement import placements
from analytics.vacancy import vacancy_of
from benchmarks.profiles import NODE_GPUS, Floats, Known
from telemetry.tables import SCORES, TOPOLOGY

ACROSS = 1.7  #: factor of a job on more than one node: the default of PAL's simulator
CLASSES: Mapping[str, str] = {"A": "compute", "B": "mixed", "C": "memory"}
"""PAL's classes as ours: ResNet-50 is bound by compute, PageRank by memory, BERT lies between."""

Gpus = NDArray[np.int64]


class Policy(Protocol):
    """Chooses among the free GPUs (ascending); there are always enough. May say what slowdown it expects."""

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """The GPUs of a job of this class, and the slowdown that was promised without the penalty of locality."""
        ...


class Packed:
    """The node with the fewest free GPUs that are enough; else as few nodes as possible (PAL's baseline)."""

    def __init__(self, known: Mapping[str, Known], *, seed: int, move: bool) -> None:
        """Knows nothing."""

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        nodes, sizes = np.unique(free // NODE_GPUS, return_counts=True)
        able = sizes >= count
        if able.any():
            node = nodes[able][np.argmin(sizes[able])]
            return free[free // NODE_GPUS == node][:count], None
        order = nodes[np.argsort(-sizes, kind="stable")]
        return np.concatenate([free[free // NODE_GPUS == node] for node in order])[:count], None


class Random:
    """Any free GPUs."""

    def __init__(self, known: Mapping[str, Known], *, seed: int, move: bool) -> None:
        self._random = np.random.default_rng(seed)

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        return np.sort(self._random.choice(free, count, replace=False)), None


class PmFirst:
    """The lowest PM scores wherever they are; of equal scores those of the node that fits best (arXiv 2408.11919).

    A PM score is the centre of the GPU's K-means bin over the median centre; the number of bins has the best silhouette
    from 2 to 10, and GPUs beyond three standard deviations get bins of their own.
    """

    def __init__(self, known: Mapping[str, Known], *, seed: int, move: bool) -> None:
        self._score = {kind: _binned(tuple(np.exp(one.raw))) for kind, one in known.items()}

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        return np.sort(self._first(count, self._score[kind], free)), None

    def _first(self, count: int, score: Floats, free: Gpus) -> Gpus:
        _, group, sizes = np.unique(
            np.stack([score[free], free // NODE_GPUS]), axis=1, return_inverse=True, return_counts=True
        )
        return free[np.lexsort((free, np.abs(sizes[group.ravel()] - count), score[free]))][:count]


class Pal(PmFirst):
    """PAL's walk over locality x variability, the lowest product first (arXiv 2408.11919, hal-uw/blox-pal).

    For jobs of 2 to 4 GPUs: for each bin V, inside a node (V x 1) or anywhere (V x 1.7), GPUs with a score of at most
    V. Other jobs are placed as PM-First places them.
    """

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        score = self._score[kind]
        if not 1 < count <= NODE_GPUS:
            return super().place(count, kind, free)
        walk = sorted((value * factor, value, factor) for value in np.unique(score) for factor in (1.0, ACROSS))
        for _, value, factor in walk:
            good = free[score[free] <= value + 1e-12]
            if factor > 1:
                if len(good) >= count:
                    return np.sort(self._first(count, score, good)), None
                continue
            nodes, sizes = np.unique(good // NODE_GPUS, return_counts=True)
            sets = [self._inside(count, score, good[good // NODE_GPUS == node]) for node in nodes[sizes >= count]]
            if sets:
                return min(sets, key=lambda one: (score[one].max(), one[0])), None
        raise ValueError("fewer free GPUs than the job needs")

    @staticmethod
    def _inside(count: int, score: Floats, gpus: Gpus) -> Gpus:
        return np.sort(gpus[np.argsort(score[gpus], kind="stable")][:count])


class Ours:
    """`analytics.placement` on scores with intervals, split jobs allowed.

    Where jobs stay, tolerance is 1 %, which keeps good GPUs and whole nodes for later jobs; where all are placed anew
    at every event there is nothing to keep, and it is 0.
    """

    def __init__(self, known: Mapping[str, Known], *, seed: int, move: bool) -> None:
        self._floors = {kind: _floor(kind, one) for kind, one in known.items()}
        self._tolerance = 0.0 if move else 0.01

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        floor = self._floors[kind]
        busy = np.setdiff1d(np.arange(len(floor.uuid)), free)
        best = placements(
            vacancy_of(floor, exclude_gpus=[f"{gpu:03d}" for gpu in busy]),
            gpus=count,
            split=True,
            tolerance=self._tolerance,
            penalties={"fleet": ACROSS},
            limit=1,
        ).row(0, named=True)
        gpus = sorted(int(gpu) for node in best["nodes"] for gpu in node["gpus"])
        return np.array(gpus), best["expected_slowdown"]


POLICIES: Mapping[str, Callable[..., Policy]] = {
    "packed": Packed,
    "random": Random,
    "PM-First": PmFirst,
    "PAL": Pal,
    "ours": Ours,
}
"""Every policy by the name that figures give it; made of (known, seed=, move=)."""


class Remembered:
    """A policy that is not asked the same question twice."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._told: dict[tuple[int, str, bytes], tuple[Gpus, float | None]] = {}

    def place(self, count: int, kind: str, free: Gpus) -> tuple[Gpus, float | None]:
        """See Policy."""
        key = (count, kind, free.tobytes())
        if key not in self._told:
            self._told[key] = self._policy.place(count, kind, free)
        return self._told[key]


@cache
def _binned(slowdowns: tuple[float, ...]) -> Floats:
    """Each GPU's K-means centre over the median centre."""
    slowdown = np.array(slowdowns)
    values = slowdown.reshape(-1, 1)
    usual = values[(slowdown <= slowdown.mean() + 3 * slowdown.std())]
    most = min(10, len(np.unique(usual)) - 1)
    best, bins = -1.0, 2
    for size in range(2, most + 1):
        labels = KMeans(n_clusters=size, n_init=3, random_state=1).fit_predict(usual)
        quality = float(silhouette_score(usual, labels))
        if quality > best:
            best, bins = quality, size
    found = KMeans(n_clusters=bins + len(values) - len(usual), n_init=3, random_state=1).fit(values)
    centres = found.cluster_centers_.ravel()
    return np.asarray((centres / np.median(centres))[found.labels_])


def _floor(kind: str, known: Known) -> Floor:
    """The cluster as scores: the speed of each GPU with its 90 % interval."""
    rows = []
    for gpu, (mean, sd) in enumerate(zip(known.mean, known.sd, strict=True)):
        low, speed, high = (float(np.exp(-mean + side * 1.6449 * sd)) for side in (-1, 0, 1))
        told = {"speed": speed, "low": low, "high": high, "source": "node" if known.shared else "measurement"}
        rows.append(
            {
                "gpu_uuid": f"{gpu:03d}",
                "node": f"n{gpu // NODE_GPUS:02d}",
                "as_of_ns": 0,
                "window_start_ns": 0,
                "peers": 64,
                "speeds": orjson.dumps({CLASSES[kind]: told}).decode(),
                "evidence": 1,
                "tier": "standard",
                "tier_since_ns": 0,
                "reasons": "[]",
                "action": "none",
            }
        )
    scores: pl.DataFrame = frame(SCORES, rows)
    return floor_of(scores, frame(TOPOLOGY), workload_class=CLASSES[kind])
