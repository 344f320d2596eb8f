"""`/v1/blocks`: every block of the topology, ranked by the expected slowdown of a synchronous job there.

To rank otherwise: `analytics/blocks.py`.
"""

import polars as pl

from analytics.blocks import NODE, rank_blocks
from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import LIMIT, OFFSET, Parameter
from api.refusal import Refused
from api.rows import objects, page
from telemetry.errors import BadInput
from telemetry.tables import BLOCKS, CLASSES


def _blocks(site: Site, values: Values) -> Built:
    fleet = site.fleets.current()
    try:
        rows = rank_blocks(
            fleet.scores,
            fleet.topology,
            workload_class=values["class"],
            level=values["level"],
            gpus=values["gpus"],
        )
    except BadInput as error:
        raise Refused(422, "bad_parameter", error.detail) from None
    if values["level"] is None:
        rows = rows.filter(pl.col("level") != NODE)
    shown = page(rows, offset=values["offset"], limit=values["limit"])
    return listing(fleet, objects(shown, BLOCKS), rows.height)


ENDPOINTS = (
    Endpoint(
        path="/v1/blocks",
        summary="Blocks, best first within their level",
        help=(
            "Without `level`, every level of the topology, nearest first, and the fleet; `level=node` is there, too. "
            "With `gpus`, each block is judged by the GPUs that such a job would get there, and blocks that cannot "
            "hold it are left out."
        ),
        tables=TABLES,
        build=_blocks,
        model=models.BlockList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 16,
            "items": [
                {
                    "level": "rack",
                    "value": "r12",
                    "workload_class": "compute",
                    "rank": 1,
                    "gpus": 64,
                    "healthy_gpus": 64,
                    "nodes": 8,
                    "full_nodes": 8,
                    "expected_slowdown": 1.021,
                    "slowest_gpu": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                    "as_of_ns": 1_767_240_000_000_000_000,
                }
            ],
        },
        parameters=(
            Parameter(name="level", kind="text", help="Only blocks of this level.", example="rack"),
            Parameter(
                name="class", kind="choice", choices=CLASSES, default="compute", help="Workload class to rank for."
            ),
            Parameter(name="gpus", kind="integer", low=1, high=1_000_000, help="Size of the job in GPUs.", example=32),
            LIMIT,
            OFFSET,
        ),
        warm=True,
    ),
)
