"""`POST /v1/verdicts`: an operator's word about a GPU, a node, or the breaker, as one event on `isotach.events`.

To add an action: one line in `KINDS`, and what `analytics/safety.py` makes of an event of that kind.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import orjson
import polars as pl
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from api import models
from api.bodies import fields, read_body, read_model
from api.endpoint import Question, Site
from api.ingest import Door
from api.parameters import MAX_TEXT
from api.refusal import Refused
from telemetry.codec import JSON
from telemetry.tables import TIERS

EVENTS = "isotach.events"
MAX_BODY = 16 << 10  #: bytes
MAX_NOTE = 500  #: characters
MAX_BY = 100  #: characters

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "pin": "operator_pin",
        "hold": "operator_hold",
        "clear": "operator_clear",
        "reset_breaker": "breaker_reset",
    }
)
"""The kind of event that each action becomes; what they do: docs/tiers.md."""


class Verdict(BaseModel):
    """What an operator says: of one GPU, or of a node's GPUs; a reset of the breaker is of the fleet."""

    model_config = ConfigDict(extra="forbid", strict=True)

    action: Literal["pin", "hold", "clear", "reset_breaker"] = Field(description="What is to be done.")
    gpu_uuid: str | None = Field(
        default=None, min_length=1, max_length=MAX_TEXT, description="The GPU. This or node; neither to reset_breaker."
    )
    node: str | None = Field(
        default=None, min_length=1, max_length=MAX_TEXT, description="The node, for all of its GPUs. This or gpu_uuid."
    )
    tier: Literal["premium", "standard", "degraded", "quarantine", "unknown"] | None = Field(
        default=None, description="With pin: the tier."
    )
    by: str = Field(min_length=1, max_length=MAX_BY, description="Who says so.")
    note: str | None = Field(default=None, min_length=1, max_length=MAX_NOTE, description="Why, on one line.")


async def answer_verdict(
    request: Request,
    *,
    site: Site,
    door: Door,
    clock_ns: Callable[[], int],
) -> Response:
    """202 with the event, once the log has it; raises Refused for everything else."""
    door.let_in(request)
    with door.refusals():
        # No page of another site can post this without asking first: what its forms send is refused.
        raw = await read_body(request, most=MAX_BODY, only=JSON)
        verdict = verdict_of(raw)
        event, gpus = await run_in_threadpool(_event, site, verdict, clock_ns())
        key = str(event["gpu_uuid"] or event["node"] or "fleet").encode()
        accepted = await door.write(EVENTS, key, {"content-type": JSON.encode()}, orjson.dumps(event))
    body = orjson.dumps({"accepted": accepted, "gpus": gpus, "event": event})
    return Response(body, status_code=202, media_type=JSON, headers={"cache-control": "no-store"})


def verdict_of(raw: bytes) -> Verdict:
    """The verdict of a request's body; raises Refused naming the first field that is wrong, and why."""
    verdict = read_model(raw, Verdict)
    named = [name for name in ("gpu_uuid", "node") if getattr(verdict, name) is not None]
    if verdict.action == "reset_breaker" and named:
        raise Refused(422, "bad_parameter", f"{named[0]}: reset_breaker is of the whole fleet, leave it out")
    if verdict.action != "reset_breaker" and len(named) != 1:
        raise Refused(422, "bad_parameter", f"gpu_uuid or node: {verdict.action} is of one of them, give exactly one")
    if verdict.action == "pin" and verdict.tier is None:
        raise Refused(422, "bad_parameter", f"tier: a pin needs one of {', '.join(TIERS)}")
    if verdict.action != "pin" and verdict.tier is not None:
        raise Refused(422, "bad_parameter", f"tier: only a pin has one, not {verdict.action}")
    for name in ("by", "note"):
        text = getattr(verdict, name)
        if text is not None and not (text.isprintable() and text.strip()):
            raise Refused(422, "bad_parameter", f"{name}: one line of printable text")
    return verdict


def _event(site: Site, verdict: Verdict, now_ns: int) -> tuple[dict[str, Any], int]:
    """The event, as a row of `events`, and how many GPUs that are known it speaks of."""
    fleet = site.fleets.current().gpus
    node, count = verdict.node or "", fleet.height
    if verdict.gpu_uuid is not None:
        found = fleet.filter(pl.col("gpu_uuid") == verdict.gpu_uuid)
        if found.is_empty():
            raise Refused(404, "unknown_gpu", f"no GPU {verdict.gpu_uuid[:80]!r} is known here")
        node, count = found["node"][0] or "", 1
    elif verdict.node is not None:
        count = fleet.filter(pl.col("node") == verdict.node).height
        if count == 0:
            raise Refused(404, "unknown_node", f"no GPU of node {verdict.node[:80]!r} is known here")
    event = {
        "time_ns": now_ns,
        "node": node,
        "gpu_uuid": verdict.gpu_uuid or "",
        "kind": KINDS[verdict.action],
        "code": TIERS.index(verdict.tier) if verdict.tier is not None else 0,
        "detail": verdict.by if verdict.note is None else f"{verdict.by}: {verdict.note}",
    }
    return event, count


FIELDS: tuple[str, ...] = fields(Verdict)
"""Fields of a request."""

_GPU = "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01"

QUESTION = Question(
    path="/v1/verdicts",
    summary="Pin or hold a tier, clear a GPU after its repair, or reset the breaker",
    help=(
        "What an operator says becomes an event, and counts as soon as the scorer has read it, within a second or so. "
        "Answered once the log has acknowledged it. The newest word about a GPU counts."
    ),
    request=Verdict,
    asked={"action": "pin", "gpu_uuid": _GPU, "tier": "quarantine", "by": "on-call", "note": "fan 3 is loud"},
    model=models.VerdictTaken,
    example={
        "accepted": 1,
        "gpus": 1,
        "event": {
            "time_ns": 1_767_225_600_000_000_000,
            "node": "n017",
            "gpu_uuid": _GPU,
            "kind": "operator_pin",
            "code": 3,
            "detail": "on-call: fan 3 is loud",
        },
    },
    status=202,
    errors={
        400: "The body is no JSON by its Content-Type.",
        401: "The token is missing or wrong.",
        404: "No such GPU or node is known.",
        413: "The body is too large.",
        503: "The log cannot take it now, or this replica takes no posts; nothing was counted.",
    },
)
