"""At which level an excess sits: the GPU, its node, or a level of the topology that most of whose GPUs share it.

To tell the level of another finding: its code in `KINDS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "heat": ("thermal_throttling", "hot"),
        "power": ("power_brake", "hw_slowdown", "power_limit"),
        "slowness": ("very_slow", "slow"),
        "clock settings": ("application_clocks",),
        "lost samples": ("low_completeness", "frozen"),
    }
)
"""What an excess is called, and the reasons that show it, the gravest first."""

MOST = 0.6  #: of a block's GPUs: slots differ, and the cool ones of a warm rack show nothing
FEW = 0.2  #: of the GPUs elsewhere: more, and the whole room has it
MIN_GPUS = 4
LEVELS: dict[str, pl.DataType] = {
    "gpu_uuid": pl.String(), "kind": pl.String(), "level": pl.String(), "value": pl.String(), "share": pl.Float64(),
    "gravest": pl.Float64(),
}  # fmt: skip


def shared(
    gpus: pl.DataFrame,
    topology: pl.DataFrame | None,
    *,
    most: float = MOST,
    few: float = FEW,
    min_gpus: float = MIN_GPUS,
) -> pl.DataFrame:
    """One row per GPU and kind of excess that its node or a wider block shares: kind, level, value, share, and
    `gravest`, the share of the block's GPUs with the gravest of the reasons for it.

    `gpus`: gpu_uuid, node, stale and the active findings `a_<code>` of the state. `topology`: rows of TOPOLOGY; None
    knows nodes only. The widest level counts at which at least `most` of the GPUs of the same block show the excess
    (two nodes at least above the node), while at most `few` of the GPUs outside do. A GPU alone with it has no row.
    """
    alive = gpus.filter(~pl.col("stale") & pl.col("node").is_not_null())
    parts = []
    for kind, codes in KINDS.items():
        shows = alive.select(
            "gpu_uuid", "node", pl.any_horizontal(f"a_{code}" for code in codes).alias("shows"),
            pl.col(f"a_{codes[0]}").alias("gravest"),
        )  # fmt: skip
        if not shows["shows"].any():
            continue
        blocks = _blocks(shows, topology)
        total, count = len(shows), int(shows["shows"].sum())
        sizes = blocks.group_by("position", "level", "value").agg(
            pl.len().alias("size"), pl.col("shows").sum().alias("with"), pl.col("node").n_unique().alias("nodes"),
            pl.col("gravest").mean(),
        )  # fmt: skip
        outside = (count - pl.col("with")) / (total - pl.col("size")).clip(lower_bound=1)
        fits = sizes.filter(
            (pl.col("with") >= most * pl.col("size"))
            & (pl.col("size") >= min_gpus)
            & (pl.col("size") < total)
            & (outside <= few)
            & ((pl.col("position") < 0) | (pl.col("nodes") > 1))
        ).with_columns((pl.col("with") / pl.col("size")).alias("share"))
        found = blocks.filter("shows").drop("gravest").join(fits, on=["position", "level", "value"])
        widest = found.sort("gpu_uuid", "position").unique("gpu_uuid", keep="last", maintain_order=True)
        parts.append(widest.with_columns(pl.lit(kind).alias("kind")).select(*LEVELS))
    return pl.concat(parts).sort("gpu_uuid", "kind") if parts else pl.DataFrame(schema=LEVELS)


def _blocks(shows: pl.DataFrame, topology: pl.DataFrame | None) -> pl.DataFrame:
    """Each GPU once for its node (position -1) and once for each level above it."""
    own = shows.with_columns(
        pl.lit(-1, dtype=pl.Int32).alias("position"), pl.lit("node").alias("level"), pl.col("node").alias("value")
    )
    if topology is None or topology.is_empty():
        return own
    places = topology.select("node", pl.col("position").cast(pl.Int32), "level", "value").unique(["node", "level"])
    return pl.concat([own, shows.join(places, on="node").select(own.columns)])
