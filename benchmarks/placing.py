"""Answering where a job should go in a large fleet, and what has to be made once for each of its states.

To time another question: one line in `_QUESTIONS`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from analytics.floor import floor_of
from analytics.placement import placements, replacements
from analytics.vacancy import vacancy_of
from benchmarks import Figure
from benchmarks.timing import milliseconds, repeats

_QUESTIONS: Mapping[str, Mapping[str, Any]] = {
    "4 GPUs of one node": {"gpus": 4},
    "8 full nodes": {"nodes": 8},
    "64 GPUs, tolerance 2 %": {"gpus": 64, "tolerance": 0.02},
    "100 GPUs, whole nodes and a part of one": {"gpus": 100},
    "1,024 GPUs": {"gpus": 1_024},
    "4,096 GPUs": {"gpus": 4_096},
    "100 GPUs anywhere": {"gpus": 100, "split": True},
}


def figures(*, quick: bool) -> Iterator[Figure]:
    """On 8-GPU nodes in racks of 8, leaves of 32, blocks of 256, spines of 2,048 nodes; 1 % of the GPUs unhealthy."""
    nodes = 1_250 if quick else 12_500
    scores, places = _fleet(nodes)
    times = 3 if quick else 5
    made = repeats(lambda: floor_of(scores, places, workload_class="compute"), times)
    what = f"{nodes * 8:,} GPUs"
    yield Figure(name=f"floor made, {what}", unit="ms", values=milliseconds(made.cpu_s), more_is_better=False)
    floor = floor_of(scores, places, workload_class="compute")
    random = np.random.default_rng(5)
    busy = {
        "exclude_nodes": [f"n{i:05d}" for i in random.choice(nodes, nodes // 3, replace=False)],
        "exclude_gpus": [f"GPU-{i:06d}" for i in random.choice(nodes * 8, nodes * 8 // 20, replace=False)],
    }
    for name, question in _QUESTIONS.items():
        for state, excluded in (("", {}), (", a third of the nodes and 5 % of the GPUs busy", busy)):
            found = repeats(lambda asked=question, busy=excluded: placements(vacancy_of(floor, **busy), **asked), times)
            yield Figure(
                name=f"{name} placed, {what}{state}", unit="ms", values=milliseconds(found.cpu_s), more_is_better=False
            )
    found = repeats(lambda: replacements(floor, node="n00003"), times)
    yield Figure(name=f"a node replaced, {what}", unit="ms", values=milliseconds(found.cpu_s), more_is_better=False)


def _fleet(nodes: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores, spread by 2 % and known to between 0.2 and 2 %, and places."""
    random = np.random.default_rng(1)
    gpus = nodes * 8
    mean, sd = random.normal(0, 0.02, gpus), random.uniform(0.002, 0.02, gpus)
    ends = [np.exp(side * 1.6449 * sd - mean) for side in (0, -1, 1)]
    speeds = [
        f'{{"compute":{{"speed":{speed:.5f},"low":{low:.5f},"high":{high:.5f}}}}}'
        for speed, low, high in zip(*ends, strict=True)
    ]
    scores = pl.DataFrame(
        {
            "gpu_uuid": [f"GPU-{i:06d}" for i in range(gpus)],
            "node": [f"n{i // 8:05d}" for i in range(gpus)],
            "as_of_ns": 0,
            "speeds": speeds,
            "tier": np.where(random.random(gpus) < 0.01, "quarantine", "standard"),
            "peer_group": "NVIDIA H100 80GB HBM3|85520809984|700",
        }
    )
    levels = (("rack", 8), ("leaf", 32), ("block", 256), ("spine", 2_048))
    places = [
        pl.DataFrame(
            {
                "node": [f"n{i:05d}" for i in range(nodes)],
                "position": position,
                "level": level,
                "value": [f"{level}{i // size}" for i in range(nodes)],
            }
        )
        for position, (level, size) in enumerate(levels)
    ]
    return scores, pl.concat(places)
