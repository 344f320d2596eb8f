"""ByteDance's traces of two training jobs (ByteDance-Seed/StragglerAnalysis): who is the straggler.

To judge another trace: its line in `KNOWN`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from analytics.stragglers import stragglers
from benchmarks.truth.figure import Figure

SET = "bytedance"
KNOWN: Mapping[str, str] = {"trace-AR": "rank 0", "trace-ST": "none"}
"""AR has one slow worker, put there on purpose; ST a heavier last stage and no slow worker."""


def figures(path: Path) -> Iterator[Figure]:
    """Stragglers named in one trace, and how slow the slowest rank is within its stage."""
    judged = stragglers(pl.read_parquet(path))
    named = judged.filter("straggler")["rank"].to_list()
    words = ", ".join(f"rank {rank}" for rank in named) or "none"
    yield Figure(
        set=SET, figure=f"{path.stem}: stragglers named", value=words, n=len(judged), equal=KNOWN.get(path.stem)
    )
    slowest = judged["slowdown"].max()
    value = float(slowest) if isinstance(slowest, float) else None
    yield Figure(set=SET, figure=f"{path.stem}: slowdown of the slowest rank in its stage", value=value, n=len(judged))
