"""`/v1/nodes`: nodes ranked for whole-node jobs, with their inventory.

To add a column: `models.Node`, then the join here.
"""

import polars as pl

from analytics.blocks import rank_nodes
from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import LIMIT, OFFSET, Parameter
from api.rows import objects, page
from telemetry.tables import CLASSES, NODES

_COLUMNS = tuple(name for name in models.Node.model_fields if name not in ("place", "workload_class"))


def _nodes(site: Site, values: Values) -> Built:
    fleet = site.fleets.current()
    ranked = rank_nodes(fleet.scores, fleet.nodes, workload_class=values["class"])
    known = fleet.nodes.select("node", "seen_gpus", "seen_ns", "driver_version", "agent_version")
    rows = ranked.join(known, on="node", how="left", maintain_order="left")
    shown = page(rows, offset=values["offset"], limit=values["limit"])
    places: dict[str, list[list[str]]] = {}
    here = fleet.topology.join(shown, on="node", how="semi").sort("node", "position")
    for node, level, value in here.select("node", "level", "value").iter_rows():
        places.setdefault(node, []).append([level, value])
    items = [
        row | {"workload_class": values["class"], "place": places.get(row["node"], [])}
        for row in objects(shown.with_columns(pl.col("full").fill_null(value=False)), NODES, _COLUMNS)
    ]
    return listing(fleet, items, rows.height)


ENDPOINTS = (
    Endpoint(
        path="/v1/nodes",
        summary="Nodes, best first",
        help="Ranked by the expected slowdown of a synchronous job of the class on all of a node's healthy GPUs.",
        tables=TABLES,
        build=_nodes,
        model=models.NodeList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 64,
            "items": [
                {
                    "node": "n017",
                    "rank": 1,
                    "gpus": 8,
                    "expected_gpus": 8,
                    "seen_gpus": 8,
                    "healthy_gpus": 8,
                    "full": True,
                    "worst_tier": "standard",
                    "workload_class": "compute",
                    "expected_slowdown": 1.012,
                    "slowdown_compute": 1.012,
                    "slowdown_memory": 1.004,
                    "slowdown_communication": 1.05,
                    "slowdown_mixed": 1.05,
                    "slowest_gpu": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                    "as_of_ns": 1_767_240_000_000_000_000,
                    "seen_ns": 1_767_239_700_000_000_000,
                    "driver_version": "580.95.05",
                    "agent_version": "0.1.0",
                    "place": [["rack", "r12"], ["site", "north"]],
                }
            ],
        },
        parameters=(
            Parameter(
                name="class", kind="choice", choices=CLASSES, default="compute", help="Workload class to rank for."
            ),
            LIMIT,
            OFFSET,
        ),
        warm=True,
    ),
)
