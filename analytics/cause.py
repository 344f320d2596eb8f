"""At which level an excess sits: the GPU, its node, or a level of the topology that most of whose GPUs share it.

To tell the level of another finding: its code in `KINDS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from analytics.keys import KEY

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
    "gpu": KEY, "kind": pl.String(), "level": pl.String(), "value": pl.String(), "share": pl.Float64(),
    "gravest": pl.Float64(),
}  # fmt: skip


def shared(
    gpus: pl.DataFrame,
    judged: pl.DataFrame,
    topology: pl.DataFrame | None,
    *,
    most: float = MOST,
    few: float = FEW,
    min_gpus: float = MIN_GPUS,
) -> pl.DataFrame:
    """One row per GPU and kind of excess that its node or a wider block shares: kind, level, value, share, and
    `gravest`, the share of the block's GPUs with the gravest of the reasons for it.

    `gpus`: gpu, node, stale; `judged`: the active findings `a_<code>` of the state. `topology`: rows of TOPOLOGY; None
    knows nodes only. The widest level counts at which at least `most` of the GPUs of the same block show the excess
    (two nodes at least above the node), while at most `few` of the GPUs outside do. A GPU alone with it has no row.
    """
    showing = {kind: judged.filter(pl.any_horizontal(f"a_{code}" for code in codes)) for kind, codes in KINDS.items()}
    if all(found.is_empty() for found in showing.values()):
        return pl.DataFrame(schema=LEVELS)
    alive = gpus.filter(~pl.col("stale") & pl.col("node").is_not_null()).select("gpu", "node")
    nodes = _sizes(alive["node"])
    total, blocks = len(alive), _blocks(nodes, topology)
    parts = []
    for kind, found in showing.items():
        grave = pl.col(f"a_{KINDS[kind][0]}").alias("gravest")
        shows = found.select("gpu", grave).join(alive, on="gpu", maintain_order="left")
        with_it = shows.group_by("node").agg(pl.len().alias("with"), pl.col("gravest").sum())
        sizes = blocks.join(with_it, on="node", how="left").group_by("position", "level", "value").agg(
            pl.col("size").sum(), pl.col("with", "gravest").fill_null(0).sum(), pl.len().alias("nodes")
        )  # fmt: skip
        outside = (len(shows) - pl.col("with")) / (total - pl.col("size")).clip(lower_bound=1)
        fits = sizes.filter(
            (pl.col("with") >= most * pl.col("size"))
            & (pl.col("size") >= min_gpus)
            & (pl.col("size") < total)
            & (outside <= few)
            & ((pl.col("position") < 0) | (pl.col("nodes") > 1))
        ).with_columns((pl.col("with") / pl.col("size")).alias("share"), pl.col("gravest") / pl.col("size"))
        inside = shows.drop("gravest").join(blocks.select("node", "position", "level", "value"), on="node")
        inside = inside.join(fits, on=["position", "level", "value"])
        widest = inside.sort("gpu", "position").unique("gpu", keep="last", maintain_order=True)
        parts.append(widest.with_columns(pl.lit(kind).alias("kind")).select(*LEVELS))
    return pl.concat(parts).sort("gpu", "kind")


def _sizes(nodes: pl.Series) -> pl.DataFrame:
    """node, size: how often each occurs."""
    if nodes.is_sorted():  # as they are in the scorer
        return nodes.rle().struct.unnest().rename({"value": "node", "len": "size"})
    return nodes.to_frame("node").group_by("node", maintain_order=True).agg(pl.len().alias("size"))


def _blocks(nodes: pl.DataFrame, topology: pl.DataFrame | None) -> pl.DataFrame:
    """Each node once for itself (position -1) and once for each level above it; `size`: its GPUs."""
    own = nodes.select(
        "node",
        "size",
        pl.lit(-1, dtype=pl.Int32).alias("position"),
        pl.lit("node").alias("level"),
        pl.col("node").alias("value"),
    )
    if topology is None or topology.is_empty():
        return own
    places = topology.select("node", pl.col("position").cast(pl.Int32), "level", "value").unique(["node", "level"])
    return pl.concat([own, nodes.join(places, on="node").select(own.columns)])
