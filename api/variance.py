"""`/v1/variance`: whose the differences in speed are: the site's, rack's, node's, GPU's own, or the run's.

To add a column: `telemetry/tables.py`.
"""

from typing import Any

from analytics.store import Store
from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import Parameter
from api.rows import objects
from telemetry.tables import CLASSES, VARIANCE


def shares(store: Store, *, peer_group: str | None = None, workload_class: str | None = None) -> list[dict[str, Any]]:
    """Rows of `variance`, contest by contest, outermost level first; None does not narrow them."""
    rows = store.frame(
        "FROM variance WHERE peer_group = coalesce(?, peer_group) AND workload_class = coalesce(?, workload_class) "
        "ORDER BY scope, name, workload_class, peer_group, position",
        [peer_group, workload_class],
    )
    return objects(rows, VARIANCE)


def _variance(site: Site, values: Values) -> Built:
    items = shares(site.store, workload_class=values["class"])
    return listing(site.fleets.current(), items, len(items))


_ITEM = {
    "scope": "gpu", "name": "sgemm", "workload_class": "compute", "peer_group": "Tesla V100-SXM2-16GB|16GiB|300W",
    "level": "gpu", "position": 1, "units": 194, "variance": 0.00031, "share": 0.98, "share_low": 0.93,
    "share_high": 1.0, "nil": False, "note": None, "as_of_ns": 1_767_240_000_000_000_000,
}  # fmt: skip

ENDPOINTS = (
    Endpoint(
        path="/v1/variance",
        summary="Whose the differences in speed are",
        help=(
            "Shares of the variance of log results by level, for each name, class and peer group that was measured on "
            "eight GPUs or more; computed again every few minutes. `note` says where only nodes differ."
        ),
        tables=(*TABLES, "variance"),
        build=_variance,
        model=models.VarianceList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 1,
            "items": [_ITEM],
        },
        parameters=(Parameter(name="class", kind="choice", choices=CLASSES, help="Only results of this class."),),
    ),
)
