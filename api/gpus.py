"""`/v1/gpus`: the ranking, and all that is known of one GPU.

To add a filter: a `Parameter` in `RANKING`, and its line in `_filtered`.
"""

from typing import Any

import polars as pl

from analytics.frames import frame as frame_of
from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES, Fleet, envelope
from api.parameters import LIMIT, OFFSET, Parameter
from api.refusal import Refused
from api.rows import objects, page
from api.variance import shares
from telemetry.tables import CLASSES, EVENTS, GPUS, SCORES, TIERS, TRANSITIONS, WINDOWS

_LISTED = ("rank", *models.RANKED, "slot", "model", "stale")
_HISTORY = 20  #: transitions and events of a single GPU
_STALE = "no evidence within the time that a score is valid"


def _ranking(site: Site, values: Values) -> Built:
    fleet = site.fleets.current()
    rows = _filtered(fleet, fleet.ranked(values["class"]), values)
    return listing(fleet, _with_staleness(objects(_after(rows, values), SCORES, _LISTED)), rows.height)


def _filtered(fleet: Fleet, rows: pl.DataFrame, values: Values) -> pl.DataFrame:
    for column in ("tier", "node"):
        if values[column] is not None:
            rows = rows.filter(pl.col(column) == values[column])
    level, value = values["level"], values["value"]
    if (level is None) != (value is None):
        raise Refused(422, "bad_parameter", "level and value are given together, as in level=rack&value=r12")
    if level is None or level == "fleet":
        return rows
    if level == "node":
        return rows.filter(pl.col("node") == value)
    there = fleet.topology.filter(pl.col("level") == level)
    if there.is_empty():
        levels = ", ".join(["node", *fleet.topology["level"].unique(maintain_order=True), "fleet"])
        raise Refused(422, "bad_parameter", f"level={level!r} is not in the topology; there are: {levels}")
    return rows.join(there.filter(pl.col("value") == value), on="node", how="semi", maintain_order="left")


def _after(rows: pl.DataFrame, values: Values) -> pl.DataFrame:
    """The page that was asked for; `after` is the last gpu_uuid of the page before."""
    if values["after"] is None:
        return page(rows, offset=values["offset"], limit=values["limit"])
    if values["offset"]:
        raise Refused(422, "bad_parameter", "give after or offset, not both")
    position = rows["gpu_uuid"].index_of(values["after"])
    if position is None:
        raise Refused(422, "bad_parameter", f"after={values['after']!r} is not among the GPUs that match")
    return page(rows, offset=position + 1, limit=values["limit"])


def _with_staleness(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stale GPU says so first among its reasons: its tier is no longer the one that the other reasons explain."""
    for item in items:
        if item["stale"] and not any(reason["code"] == "stale" for reason in item["reasons"] or ()):
            why = {"code": "stale", "value": None, "limit": None, "text": _STALE}
            item["reasons"] = [why, *(item["reasons"] or [])]
    return items


def _one(site: Site, values: Values) -> Built:
    fleet = site.fleets.current()
    uuid = values["gpu_uuid"]
    found = fleet.ranked(None).filter(pl.col("gpu_uuid") == uuid)
    if found.is_empty():
        raise Refused(404, "unknown_gpu", f"no GPU {uuid[:80]!r} is known here")
    score = _with_staleness(objects(found, SCORES, ("rank", *models.DETAILED, "stale")))[0]
    node = score["node"]
    inventory = site.store.frame("FROM gpus WHERE gpu_uuid = ?", [uuid])
    windows = site.store.frame(
        "FROM windows WHERE gpu_uuid = ? AND window_start_ns >= ? ORDER BY window_start_ns DESC LIMIT ?",
        [uuid, score["window_start_ns"] - 86_400 * 10**9, values["windows"]],
    )
    transitions = site.store.frame(
        "FROM transitions WHERE gpu_uuid = ? ORDER BY time_ns DESC, transition_id LIMIT ?", [uuid, _HISTORY]
    )
    events = site.store.frame(
        "FROM events WHERE gpu_uuid = ? OR (gpu_uuid = '' AND node = ?) ORDER BY time_ns DESC, kind, code LIMIT ?",
        [uuid, node, _HISTORY],
    )
    known = found.filter(pl.col("evidence") > 0).height or score["window_start_ns"] > 0
    body = {
        **envelope(score["as_of_ns"] if known else None, stale_after_ns=fleet.stale_after_ns, stale=score["stale"]),
        "score": score,
        "inventory": next(iter(objects(inventory, GPUS)), None),
        "place": place_of(fleet.topology, node),
        "windows": objects(windows, WINDOWS),
        "transitions": objects(transitions, TRANSITIONS),
        "events": objects(events, EVENTS),
        "variance": shares(
            site.store, peer_group=score["peer_group"] or "-", workload_class=score["workload_class"] or "-"
        ),
    }
    return Built(body=body, expires_ns=fleet.expires_ns)


def place_of(topology: pl.DataFrame, node: str | None) -> list[list[str]]:
    """A node's [level, value] pairs, nearest first."""
    rows = topology.filter(pl.col("node") == node).sort("position")
    return [list(pair) for pair in rows.select("level", "value").iter_rows()]


_EXAMPLE_GPU = {
    "rank": 1,
    "gpu_uuid": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
    "node": "n017",
    "tier": "premium",
    "speed": 1.021,
    "speed_low": 1.012,
    "speed_high": 1.030,
    "workload_class": "compute",
    "reasons": [],
    "cause": None,
    "action": "none",
    "tier_since_ns": 1_767_225_600_000_000_000,
    "peer_group": "NVIDIA H100 80GB HBM3|85520809984|700",
    "peers": 512,
    "evidence": 240,
    "as_of_ns": 1_767_240_000_000_000_000,
    "slot": 3,
    "model": "NVIDIA H100 80GB HBM3",
    "stale": False,
}
_EXAMPLE_TIMES = {"as_of": "2026-01-01T04:00:00.000Z", "valid_until": "2026-01-01T04:05:00.000Z", "stale": False}

RANKING = Endpoint(
    path="/v1/gpus",
    summary="GPUs, best first",
    help=(
        "Premium, standard and degraded GPUs by speed, highest first, those without a speed after them; then unknown "
        "ones; then quarantine. Equal ones by gpu_uuid. `rank` is the place in the whole fleet."
    ),
    tables=TABLES,
    build=_ranking,
    model=models.GpuList,
    example={**_EXAMPLE_TIMES, "total": 512, "items": [_EXAMPLE_GPU]},
    parameters=(
        Parameter(name="tier", kind="choice", choices=TIERS, help="Only GPUs of this tier.", example="premium"),
        Parameter(name="node", kind="text", help="Only GPUs of this node.", example="n017"),
        Parameter(name="class", kind="choice", choices=CLASSES, help="Rank by the speed in this workload class."),
        Parameter(name="level", kind="text", help="Level of the topology, together with value.", example="rack"),
        Parameter(name="value", kind="text", help="Only GPUs in this block of that level.", example="r12"),
        LIMIT,
        OFFSET,
        Parameter(name="after", kind="text", help="Begin after this gpu_uuid: the last one of the page before."),
    ),
    warm=True,
)

DETAIL = Endpoint(
    path="/v1/gpus/{gpu_uuid}",
    summary="All that is known of one GPU",
    help=f"Its score with evidence, inventory, place, last windows, last {_HISTORY} changes and events, variance.",
    tables=(*TABLES, "windows", "transitions", "events", "variance"),
    build=_one,
    model=models.GpuDetail,
    example={
        **_EXAMPLE_TIMES,
        "score": {
            **{name: value for name, value in _EXAMPLE_GPU.items() if name not in ("slot", "model")},
            "speeds": {"compute": {"speed": 1.021, "low": 1.012, "high": 1.030, "samples": 240, "source": "telemetry"}},
            "window_start_ns": 1_767_239_940_000_000_000,
        },
        "inventory": frame_of(
            GPUS,
            [{"gpu_uuid": _EXAMPLE_GPU["gpu_uuid"], "node": "n017", "slot": 3, "seen_ns": 1_767_239_700_000_000_000}],
        ).to_dicts()[0],
        "place": [["rack", "r12"], ["site", "north"]],
        "windows": [],
        "transitions": [],
        "events": [],
        "variance": [],
    },
    parameters=(
        Parameter(name="windows", kind="integer", default=10, low=1, high=1_440, help="At most this many windows."),
    ),
)

ENDPOINTS = (RANKING, DETAIL)
