"""`/v1/tiers`: how many GPUs are in each tier, and which.

To add a tier: `telemetry/tables.py`.
"""

import polars as pl

from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import Parameter
from telemetry.tables import TIERS


def _tiers(site: Site, values: Values) -> Built:
    fleet = site.fleets.current()
    ranked = fleet.ranked(None).select("gpu_uuid", "tier")
    items = []
    for tier in TIERS:
        gpus = ranked.filter(pl.col("tier") == tier)["gpu_uuid"]
        items.append({"tier": tier, "count": len(gpus), "gpus": gpus.head(values["limit"] or len(gpus)).to_list()})
    return listing(fleet, items, len(items))


ENDPOINTS = (
    Endpoint(
        path="/v1/tiers",
        summary="Tiers with their GPUs",
        help="All five tiers, premium first, also empty ones; the counts add up to the fleet.",
        tables=TABLES,
        build=_tiers,
        model=models.TierList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 5,
            "items": [
                {"tier": "premium", "count": 1, "gpus": ["GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01"]},
                {"tier": "standard", "count": 0, "gpus": []},
            ],
        },
        parameters=(
            Parameter(
                name="limit",
                kind="integer",
                default=100,
                high=100_000,
                help="At most this many GPUs of each tier; 0 is all of them.",
            ),
        ),
        warm=True,
    ),
)
