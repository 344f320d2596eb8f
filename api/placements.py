"""`POST /v1/placements`: where a job should go. `/v1/replacements`: which node stands in for one that failed.

To add to the question: a field of `Job`, and what `analytics/placement.py` does with it.
"""

from typing import Any, Literal

import orjson
import polars as pl
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from analytics.blocks import HEALTHY
from analytics.floor import Floor
from analytics.placement import MOST_CHOICES, MOST_GPUS, NODE_GPUS, placements, replacements
from analytics.vacancy import vacancy_of
from api import models
from api.answers import Built
from api.bodies import fields, read_body, read_model
from api.endpoint import Endpoint, Question, Site, Values, listing
from api.fleet import TABLES, Fleet
from api.parameters import MAX_TEXT, Parameter
from api.refusal import Refused
from telemetry.errors import BadInput
from telemetry.tables import CLASSES

MOST_UNKNOWN = 20  #: names that one answer lists
MAX_BODY = 8 << 20  #: bytes: 100,000 busy GPUs by UUID are 4.5 MB


class Job(BaseModel):
    """What is to be placed: `gpus`, or `nodes` full nodes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    gpus: int | None = Field(default=None, ge=1, le=MOST_GPUS, description="GPUs of the job. This or nodes.")
    nodes: int | None = Field(default=None, ge=1, le=MOST_GPUS, description="Full nodes of the job. This or gpus.")
    node_gpus: int = Field(default=NODE_GPUS, ge=1, le=1_024, description="With nodes: GPUs of a full node.")
    workload_class: Literal["compute", "memory", "communication", "mixed"] = Field(
        default="compute", alias="class", description="Workload class that decides how slow each GPU is."
    )
    within: str | None = Field(
        default=None, max_length=MAX_TEXT, description="Farthest level that the job may be spread over; any if absent."
    )
    tolerance: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="Choices that cost this much more than the best may come first. Unit: ratio.",
    )
    penalties: dict[str, float] = Field(
        default_factory=dict, max_length=100, description="Level to factor of a job spread that far, at least 1."
    )
    split: bool = Field(default=False, description="May take any GPUs of a block, a few of each node.")
    exclude_nodes: tuple[str, ...] = Field(default=(), max_length=1_000_000, strict=False, description="Busy nodes.")
    exclude_gpus: tuple[str, ...] = Field(
        default=(), max_length=1_000_000, strict=False, description="Busy GPUs, by UUID."
    )
    tiers: tuple[str, ...] = Field(
        default=HEALTHY, max_length=len(HEALTHY), strict=False, description=f"Only these tiers of {', '.join(HEALTHY)}."
    )
    peer_group: str | None = Field(
        default=None, max_length=MAX_TEXT, description="Only GPUs of this peer group, as /v1/gpus names it."
    )
    limit: int = Field(default=5, ge=1, le=MOST_CHOICES, description="At most this many choices.")
    max_age_s: float = Field(
        default=0.0,
        ge=0,
        le=3_600,
        description="While a change is taken in, answer at once from the state before, if it is no older. Unit: s.",
    )


async def answer_placements(request: Request, *, site: Site) -> Response:
    """200 with ranked choices, maybe none; raises Refused."""
    try:
        raw = await read_body(request, most=MAX_BODY)
    except BadInput as error:
        raise Refused(413 if error.rule == "too_large" else 400, error.rule, error.detail) from None
    job = job_of(raw)
    body = await run_in_threadpool(_placed, site, job)
    return Response(orjson.dumps(body), media_type="application/json", headers={"cache-control": "no-store"})


def job_of(raw: bytes) -> Job:
    """The job of a request's body; raises Refused naming the first field that is wrong, and why."""
    job = read_model(raw, Job)
    if (job.gpus is None) == (job.nodes is None):
        raise Refused(422, "bad_parameter", "give gpus, or nodes for full nodes: one of them")
    return job


FIELDS: tuple[str, ...] = fields(Job)
"""Fields of a request."""


def _placed(site: Site, job: Job) -> dict[str, Any]:
    fleet = site.fleets.floored(job.workload_class, max_age_ns=round(job.max_age_s * 1e9))
    floor = fleet.floor(job.workload_class)
    left = job.model_dump(include={"exclude_nodes", "exclude_gpus", "tiers", "peer_group"})
    try:
        vacancy = vacancy_of(floor, **left)
        rows = placements(
            vacancy,
            gpus=job.gpus,
            nodes=job.nodes,
            node_gpus=job.node_gpus,
            within=job.within,
            tolerance=job.tolerance,
            penalties=job.penalties,
            split=job.split,
            limit=job.limit,
        )
    except BadInput as error:
        raise Refused(422, "bad_parameter", error.detail) from None
    unknown = _unknown(fleet, floor, job)
    told = {"unknown_names": unknown[:MOST_UNKNOWN], "unknown_total": len(unknown)}
    free = {"free_gpus": len(vacancy.free), "free_nodes": int(vacancy.whole.sum())}
    head = {**fleet.envelope(), "total": rows.height, "workload_class": job.workload_class}
    return head | free | told | {"items": rows.to_dicts()}


def _unknown(fleet: Fleet, floor: Floor, job: Job) -> list[str]:
    """Names of what is busy that nobody has here: whoever writes names another way would be given what is busy."""
    nodes = [name for name in job.exclude_nodes if name not in floor.node_of]
    gpus = [name for name in job.exclude_gpus if name not in floor.row_of]
    if gpus:  # of these, most are known and not healthy
        known = set(fleet.gpus.filter(pl.col("gpu_uuid").is_in(gpus))["gpu_uuid"].to_list())
        gpus = [name for name in gpus if name not in known]
    if nodes:
        there = set(fleet.nodes["node"].to_list())  # those without a GPU, too
        nodes = [name for name in nodes if name not in there]
    return list(dict.fromkeys(nodes + gpus))


def _replaced(site: Site, values: Values) -> Built:
    fleet = site.fleets.floored(values["class"])
    try:
        rows = replacements(
            fleet.floor(values["class"]), node=values["node"], within=values["within"], limit=values["limit"]
        )
    except BadInput as error:
        status = 404 if error.rule == "unknown_node" else 422
        rule = error.rule if status == 404 else "bad_parameter"
        raise Refused(status, rule, error.detail) from None
    return listing(fleet, rows.to_dicts(), rows.height)


_TIMES = {"as_of": "2026-01-01T04:00:00.000Z", "valid_until": "2026-01-01T04:05:00.000Z", "stale": False}

QUESTION = Question(
    path="/v1/placements",
    summary="Where a job should go, best choice first",
    help=(
        "Each choice lies in one block and says what a synchronous job is expected to lose there: to its slowest GPU, "
        "and to being spread that far. Only healthy GPUs, of one peer group. No choice at all is an empty list."
    ),
    request=Job,
    asked={"nodes": 2, "class": "compute", "within": "rack", "tolerance": 0.01, "exclude_nodes": ["n021"]},
    model=models.PlacementList,
    example={
        **_TIMES,
        "total": 1,
        "workload_class": "compute",
        "free_gpus": 502,
        "free_nodes": 60,
        "unknown_names": [],
        "unknown_total": 0,
        "items": [
            {
                "rank": 1,
                "level": "rack",
                "value": "r12",
                "expected_slowdown": 1.014,
                "locality_penalty": 1.7,
                "cost": 1.7238,
                "spare_gpus": 0,
                "slowest_gpu": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                "nodes": [{"node": "n017", "gpus": ["GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01"]}],
            }
        ],
    },
    errors={400: "The body is compressed.", 413: "The body is too large.", 503: "The store cannot be read now."},
)

ENDPOINTS = (
    Endpoint(
        path="/v1/replacements",
        summary="Full healthy nodes to take over from a node, nearest first",
        help=(
            "Nodes of the same peer group with at least as many GPUs, all there and healthy: the nearest level that "
            "both are in, then the expected slowdown of a synchronous job on the whole node."
        ),
        tables=TABLES,
        build=_replaced,
        model=models.ReplacementList,
        example={
            **_TIMES,
            "total": 1,
            "items": [
                {
                    "rank": 1,
                    "node": "n018",
                    "level": "rack",
                    "value": "r12",
                    "expected_slowdown": 1.009,
                    "gpus": ["GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01"],
                }
            ],
        },
        parameters=(
            Parameter(name="node", kind="text", help="The node that lost a GPU.", example="n017", required=True),
            Parameter(
                name="class", kind="choice", choices=CLASSES, default="compute", help="Workload class to rank for."
            ),
            Parameter(name="within", kind="text", help="No farther than this level.", example="rack"),
            Parameter(name="limit", kind="integer", default=5, low=1, high=MOST_CHOICES, help="At most this many."),
        ),
    ),
)
