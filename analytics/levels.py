"""At which level something is slow: nodes against nodes, GPUs against the same slot of other nodes.

To judge another level: one more call of `_judged`, with the finer level's values taken relative to it.
"""

import polars as pl

from analytics.groups import without_slots

MAD = 1.4826  #: makes a median absolute deviation a standard deviation of the normal

SCHEMA: dict[str, pl.DataType] = {
    "name": pl.String(), "level": pl.String(), "node": pl.String(), "slot": pl.Int64(), "effect": pl.Float64(),
    "z": pl.Float64(), "slow": pl.Boolean(),
}  # fmt: skip


def levels(
    values: pl.DataFrame, *, min_effect: float = 0.02, min_z: float = 6.0, floor: float = 0.003, min_peers: int = 4
) -> pl.DataFrame:
    """One row per name and node (level `node`), then per name and GPU (level `gpu`): effect, robust z, slow.

    `values`: name (what was measured), node, slot, `value` (log speed, bigger is faster). A node's value is the
    median of its GPUs, compared with the other nodes: a fault of the whole node, invisible inside it, is the node's. A
    GPU's is what is left of it after its node's effect and its slot's (`groups.without_slots`), compared with all GPUs
    of that name. `effect` is that difference, `z` it over max(1.4826 MAD, `floor`), null with fewer than `min_peers`.
    `slow` needs both: `min_effect` lost and `min_z` standard deviations; six, since speeds have longer tails than a
    normal has. A node of one GPU has no GPU level of its own. Hampel 1974.
    """
    known = values.filter(pl.col("value").is_finite()).select("name", "node", "slot", "value")
    nodes = known.group_by("name", "node").agg(pl.col("value").median(), pl.len().alias("gpus")).sort("name", "node")
    nodes = nodes.with_columns((pl.col("value") - pl.col("value").median().over("name")).alias("effect"))
    inner = known.join(nodes.select("name", "node", "gpus", pl.col("value").alias("_node")), on=["name", "node"])
    inner = inner.filter(pl.col("gpus") > 1).with_columns((pl.col("value") - pl.col("_node")).alias("value"))
    inner = without_slots(inner, by=["name"], min_nodes=min_peers).with_columns(
        (pl.col("value_anomaly") - pl.col("value_anomaly").median().over("name")).alias("effect")
    )
    told = [
        nodes.select("name", pl.lit("node").alias("level"), "node", pl.lit(None, pl.Int64).alias("slot"), "effect"),
        inner.select("name", pl.lit("gpu").alias("level"), "node", pl.col("slot").cast(pl.Int64), "effect"),
    ]
    return pl.concat([_judged(part, min_effect, min_z, floor, min_peers) for part in told]).select(
        pl.col(name).cast(kind) for name, kind in SCHEMA.items()
    )


def _judged(rows: pl.DataFrame, min_effect: float, min_z: float, floor: float, min_peers: int) -> pl.DataFrame:
    spread = pl.max_horizontal(pl.col("effect").abs().median().over("name") * MAD, pl.lit(floor))
    many = pl.col("effect").count().over("name") >= min_peers
    rows = rows.with_columns(pl.when(many).then(pl.col("effect") / spread).alias("z"))
    lost = 1 - pl.col("effect").exp() >= min_effect
    return rows.with_columns((lost & (pl.col("z") <= -min_z)).alias("slow")).sort("name", "node", "slot")
