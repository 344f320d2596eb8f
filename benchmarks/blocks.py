"""Ranking the blocks and nodes of a fleet.

To time another question: one line in `_QUESTIONS`.
"""

from collections.abc import Callable, Iterator, Mapping

import polars as pl

from analytics.blocks import rank_blocks, rank_nodes
from benchmarks import Figure
from benchmarks.scored import nodes_table, scores, topology
from benchmarks.timing import milliseconds, repeats

Question = Callable[[pl.DataFrame, pl.DataFrame, pl.DataFrame], pl.DataFrame]
_QUESTIONS: Mapping[str, Question] = {
    "blocks of every level ranked": lambda told, places, _: rank_blocks(told, places, workload_class="compute"),
    "blocks for a job of 256 GPUs": lambda told, places, _: rank_blocks(
        told, places, workload_class="compute", level="block", gpus=256
    ),
    "nodes ranked, every class": lambda told, _, nodes: rank_nodes(told, nodes),
}


def figures(*, quick: bool) -> Iterator[Figure]:
    """Of scores that the scorer gave."""
    gpus = 10_000 if quick else 100_000
    told, places, nodes = scores(gpus), topology(gpus), nodes_table(gpus)
    for name, ask in _QUESTIONS.items():
        found = repeats(lambda ask=ask: ask(told, places, nodes), 3 if quick else 5)
        yield Figure(name=f"{name}, {gpus:,} GPUs", unit="ms", values=milliseconds(found.cpu_s), more_is_better=False)
