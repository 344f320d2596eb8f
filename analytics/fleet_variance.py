"""Variance components of a fleet's results: rows of VARIANCE, and their place in the store.

To add a level: `OUTER`, outermost first; it counts where every node of a contest has it.
"""

import polars as pl

from analytics.frames import schema
from analytics.store import Store
from analytics.variance import components
from telemetry.tables import VARIANCE

OUTER = ("site", "block", "rack")
CONTEST = ["scope", "name", "workload_class", "peer_group"]
MAX_NODES = 1_000  #: of a contest: shares of more are known no better than people need
MIN_GPUS = 8  #: of a contest, or nodes: fewer are no sample of anything
NEGLIGIBLE = 0.05  #: a GPU's share below this, with 0 in its interval, is nil but for chance
DAYS_NS = 30 * 86_400 * 10**9
NODE_ONLY = "node level only: GPUs of one node do not differ beyond their runs"

_RESULTS = """
SELECT m.scope, m.name, m.workload_class, m.subject, m.time_ns, m.value, m.higher_is_better,
    CASE m.scope WHEN 'node' THEN m.subject ELSE coalesce(m.node, s.node) END AS node,
    coalesce(s.peer_group, '-') AS peer_group
FROM measurements m
LEFT JOIN (
    SELECT gpu_uuid, node, peer_group, 'gpu' AS scope FROM scores
    UNION ALL SELECT node, node, min(peer_group), 'node' FROM scores WHERE node IS NOT NULL GROUP BY node
) s ON s.scope = m.scope AND s.gpu_uuid = m.subject
WHERE m.value > 0 AND m.time_ns >= ?
"""


def fleet_variance(results: pl.DataFrame, levels: pl.DataFrame) -> pl.DataFrame:
    """Rows of VARIANCE: for each contest its levels, outermost first, `run` last.

    `results`: scope, name, workload_class, peer_group, subject, node, time_ns, value, higher_is_better. `levels`: node,
    level, value. Nodes whose place at a level is not known for all take that level out; results without a node say
    nothing of levels and are left out. A contest where nodes or GPUs are too few has no rows.
    """
    log = pl.col("value").log()
    known = results.filter(pl.col("node").is_not_null() & (pl.col("value") > 0)).with_columns(
        pl.when("higher_is_better").then(log).otherwise(-log).alias("value")
    )
    places = levels.filter(pl.col("level").is_in(OUTER)).unique(["node", "level"], keep="first", maintain_order=True)
    parts = []
    for key, contest in sorted(known.partition_by(CONTEST, as_dict=True).items()):
        nodes = contest["node"].unique().sort()
        nodes = nodes.gather_every(max(1, -(-len(nodes) // MAX_NODES)))
        rows = contest.filter(pl.col("node").is_in(nodes.implode())).sort("subject", "time_ns", "value")
        if rows["subject"].n_unique() < MIN_GPUS:
            continue
        names = [*_placed(places, nodes), "node"]
        wide = rows.join(_wide(places, nodes, names[:-1]), on="node", maintain_order="left")
        if key[0] == "gpu":
            names, wide = [*names, "gpu"], wide.with_columns(pl.col("subject").alias("gpu"))
        found = components(wide, levels=names)
        own = found.filter(pl.col("level") == "gpu")
        only = not own.filter((pl.col("share") < NEGLIGIBLE) & (pl.col("share_low") <= 0)).is_empty()
        parts.append(
            found.with_columns(
                *(pl.lit(value).alias(name) for name, value in zip(CONTEST, key, strict=True)),
                pl.int_range(pl.len(), dtype=pl.UInt16).alias("position"),
                pl.lit(NODE_ONLY if only else None, dtype=pl.String).alias("note"),
                pl.lit(contest["time_ns"].max()).alias("as_of_ns"),
            )
        )
    told = pl.concat(parts) if parts else pl.DataFrame(schema=schema(VARIANCE))
    return told.select(pl.col(name).cast(kind) for name, kind in schema(VARIANCE).items())


def refresh_variance(store: Store) -> int:
    """Compute the table `variance` from the results of the last 30 days in the store; how many rows it has now."""
    newest = store.frame("SELECT max(time_ns) FROM measurements").item()
    results = store.frame(_RESULTS, [(newest or 0) - DAYS_NS])
    found = fleet_variance(results, store.frame("SELECT node, level, value FROM node_levels ORDER BY node, level"))
    store.write({"variance": found}, deletes={"variance": ["gpu", "node"]})
    return len(found)


def _placed(places: pl.DataFrame, nodes: pl.Series) -> list[str]:
    """The outer levels at which each of these nodes has a place."""
    there = places.filter(pl.col("node").is_in(nodes.implode()))
    counts = dict(there.group_by("level").agg(pl.col("node").n_unique()).iter_rows())
    return [level for level in OUTER if counts.get(level) == len(nodes)]


def _wide(places: pl.DataFrame, nodes: pl.Series, levels: list[str]) -> pl.DataFrame:
    rows = pl.DataFrame({"node": nodes})
    for level in levels:
        one = places.filter(pl.col("level") == level).select("node", pl.col("value").alias(level))
        rows = rows.join(one, on="node", how="left", maintain_order="left")
    return rows
