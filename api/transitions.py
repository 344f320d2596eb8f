"""`/v1/transitions`: tier changes, newest first.

To add a filter: a `Parameter` here and its condition.
"""

from typing import Any

from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import LIMIT, OFFSET, Parameter
from api.rows import objects
from telemetry.tables import TRANSITIONS


def _transitions(site: Site, values: Values) -> Built:
    conditions, parameters = ["time_ns >= ?"], [values["since"]]
    for column in ("node", "gpu_uuid"):
        if values[column] is not None:
            conditions.append(f"{column} = ?")
            parameters.append(values[column])
    where = " AND ".join(conditions)
    total: Any = site.store.frame(f"SELECT count(*) FROM transitions WHERE {where}", parameters).item()  # noqa: S608
    rows = site.store.frame(
        f"FROM transitions WHERE {where} ORDER BY time_ns DESC, transition_id LIMIT ? OFFSET ?",
        [*parameters, values["limit"] or 100_000, values["offset"]],
    )
    return listing(site.fleets.current(), objects(rows, TRANSITIONS), total)


ENDPOINTS = (
    Endpoint(
        path="/v1/transitions",
        summary="Tier changes, newest first",
        help="Poll with `since` = the last time_ns seen: the same change has the same transition_id for ever.",
        tables=(*TABLES, "transitions"),
        build=_transitions,
        model=models.TransitionList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 1,
            "items": [
                {
                    "transition_id": "5d1a8c0b7e6f4a32",
                    "time_ns": 1_767_239_940_000_000_000,
                    "gpu_uuid": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                    "node": "n017",
                    "from_tier": "standard",
                    "to_tier": "degraded",
                    "reasons": [{"code": "slow", "value": 0.93, "limit": 0.98, "text": "7 % slower than its peers"}],
                    "cause": "cooling",
                    "action": "watch",
                    "speed": 0.93,
                }
            ],
        },
        parameters=(
            Parameter(
                name="since",
                kind="time",
                default=0,
                help="Only changes at or after this time: ISO 8601 with its zone, or ns since 1970.",
                example="2026-01-01T00:00:00Z",
            ),
            Parameter(name="node", kind="text", help="Only changes of GPUs of this node.", example="n017"),
            Parameter(name="gpu_uuid", kind="text", help="Only changes of this GPU."),
            LIMIT,
            OFFSET,
        ),
    ),
)
