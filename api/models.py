"""Models of every body, for documentation and clients only: answers are never passed through them.

To add a field of a published table: nothing here, `tables.py` has it; of anything else: the model of its endpoint.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from telemetry.tables import BLOCKS, CLASSES, EVENTS, GPUS, JOBS, NODES, SCORES, TRANSITIONS, VARIANCE, WINDOWS, Table

_TYPES: dict[str, Any] = {"string": str, "bool": bool, "float32": float, "float64": float, "json": Any}


def _row(name: str, table: Table, columns: Iterable[str], **more: Any) -> type[BaseModel]:
    """A model of some columns of a table, described as the table describes them."""
    chosen = {column.name: column for column in table.columns}
    fields: dict[str, Any] = {}
    for column in (chosen[one] for one in columns):
        kind = _TYPES.get(column.type, int)
        text = f"{column.help} Unit: {column.unit}." if column.unit else column.help
        fields[column.name] = (kind | None if column.nullable and kind is not Any else kind, Field(description=text))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields, **more)


class Listing(BaseModel):
    """How every list begins."""

    model_config = ConfigDict(extra="forbid")

    as_of: str | None = Field(description="Newest evidence in the fleet, ISO 8601 in UTC; null without any.")
    valid_until: str | None = Field(description="After this time the answer is stale and every tier unknown.")
    stale: bool = Field(description="True when there is no evidence newer than valid_until allows.")
    total: int = Field(description="Items that match, before limit and offset.")


def _list(name: str, item: type[BaseModel]) -> type[BaseModel]:
    items: Any = (list[item], Field(description="The items, best or newest first."))  # type: ignore[valid-type]
    return create_model(name, __base__=Listing, items=items)


def _said(kind: Any, text: str) -> Any:
    return (kind, Field(description=text))


RANKED = (
    "gpu_uuid", "node", "tier", "speed", "speed_low", "speed_high", "workload_class", "reasons", "cause", "action",
    "tier_since_ns", "peer_group", "peers", "evidence", "as_of_ns",
)  # fmt: skip
"""Columns of `scores` in a list of GPUs."""

DETAILED = (*RANKED, "speeds", "window_start_ns")
"""Columns of `scores` of a single GPU; `state` is private."""

_STALE = _said(bool, "The evidence is too old, so that the tier is unknown.")
_SLOT = _said(int | None, "Position in the node that other nodes' neighbours share.")
_MODEL = _said(str | None, "Product name as the driver gives it.")
_RANK = _said(int, "1 is the best of the whole fleet, whatever the filters.")

Gpu = _row("Gpu", SCORES, RANKED, rank=_RANK, slot=_SLOT, model=_MODEL, stale=_STALE)
GpuList = _list("GpuList", Gpu)

Inventory = _row("Inventory", GPUS, GPUS.names)
Window = _row("Window", WINDOWS, WINDOWS.names)
Transition = _row("Transition", TRANSITIONS, TRANSITIONS.names)
Event = _row("Event", EVENTS, EVENTS.names)
Variance = _row("Variance", VARIANCE, VARIANCE.names)
Score = _row("Score", SCORES, DETAILED, rank=_RANK, stale=_STALE)


class GpuDetail(BaseModel):
    """All that is known of one GPU."""

    model_config = ConfigDict(extra="forbid")

    as_of: str | None = Field(description="Newest evidence of this GPU, ISO 8601 in UTC.")
    valid_until: str | None = Field(description="After this time its tier is unknown.")
    stale: bool = Field(description="True when its evidence is older than that.")
    score: Score = Field(description="Its score, with the speeds of every class.")  # type: ignore[valid-type]
    inventory: Inventory | None = Field(description="Its newest inventory; null if none came.")  # type: ignore[valid-type]
    place: list[list[str]] = Field(description="Its node's place: [level, value], nearest first.")
    windows: list[Window] = Field(description="Its last windows, newest first.")  # type: ignore[valid-type]
    transitions: list[Transition] = Field(description="Its last tier changes, newest first.")  # type: ignore[valid-type]
    events: list[Event] = Field(description="Its and its node's last events, newest first.")  # type: ignore[valid-type]
    variance: list[Variance] = Field(  # type: ignore[valid-type]
        description="Whose the differences between its peers' results in its class are."
    )


_NODE_FIELDS: dict[str, Any] = {
    "rank": _said(int, "1 is the best for whole-node jobs of the class."),
    "gpus": _said(int, "GPUs that are known there."),
    "healthy_gpus": _said(int, "GPUs neither quarantined nor unknown."),
    "full": _said(bool, "All of its GPUs are there and healthy."),
    "worst_tier": _said(str, "The worst tier among its GPUs."),
    "workload_class": _said(str, "Class that it is ranked for."),
    "expected_slowdown": _said(float | None, "Expected slowdown of a synchronous job on all of its healthy GPUs."),
    **{f"slowdown_{name}": _said(float | None, f"The same for {name}.") for name in CLASSES},
    "slowest_gpu": _said(str | None, "The GPU that holds it back."),
    "as_of_ns": _said(int | None, "Newest evidence included. Unit: ns UTC."),
    "seen_gpus": _said(int | None, "GPUs that answered at the last inventory; null if none came."),
    "seen_ns": _said(int | None, "When the last inventory was taken. Unit: ns UTC."),
    "place": _said(list[list[str]], "[level, value], nearest first."),
}
Node = _row("Node", NODES, ("node", "expected_gpus", "driver_version", "agent_version"), **_NODE_FIELDS)
NodeList = _list("NodeList", Node)

Block = _row("Block", BLOCKS, BLOCKS.names)
BlockList = _list("BlockList", Block)
VarianceList = _list("VarianceList", Variance)
JobList = _list("JobList", _row("Job", JOBS, JOBS.names))


class NodeGpus(BaseModel):
    """The GPUs of one node."""

    model_config = ConfigDict(extra="forbid")

    node: str = Field(description="Node name.")
    gpus: list[str] = Field(description="Their gpu_uuid.")


class Placement(BaseModel):
    """One choice for a job."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(description="1 is the one to take.")
    level: str = Field(description="Level of the block that it lies in.")
    value: str = Field(description="Which block of that level.")
    expected_slowdown: float = Field(description="Of a synchronous job on these GPUs: the slowest sets the pace.")
    locality_penalty: float = Field(description="Factor of a job spread over that level.")
    cost: float = Field(description="expected_slowdown x locality_penalty.")
    spare_gpus: int = Field(description="Free GPUs that it leaves on its nodes.")
    slowest_gpu: str = Field(description="The GPU that holds it back.")
    nodes: list[NodeGpus] = Field(description="The GPUs, node by node.")


class PlacementList(Listing):
    """Choices for a job, and what there was to choose from."""

    total: int = Field(description="Choices in the list.")
    workload_class: str = Field(description="Class that the slowdowns are of.")
    free_gpus: int = Field(description="Healthy GPUs that were not excluded.")
    free_nodes: int = Field(description="Nodes all of whose GPUs are free and healthy.")
    unknown_names: list[str] = Field(description="Names among those excluded that nobody has here, at most 20 of them.")
    unknown_total: int = Field(description="How many such names there are.")
    items: list[Placement] = Field(description="The choices, the one to take first.")


class Replacement(BaseModel):
    """One node to take over."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(description="1 is the one to take.")
    node: str = Field(description="Node name.")
    level: str = Field(description="Nearest level that both nodes are in.")
    value: str = Field(description="Which block of that level.")
    expected_slowdown: float = Field(description="Of a synchronous job on the whole node.")
    gpus: list[str] = Field(description="Its GPUs.")


ReplacementList = _list("ReplacementList", Replacement)
TransitionList = _list("TransitionList", Transition)


class Tier(BaseModel):
    """One tier."""

    model_config = ConfigDict(extra="forbid")

    tier: str = Field(description="premium, standard, degraded, quarantine or unknown.")
    count: int = Field(description="GPUs in it.")
    gpus: list[str] = Field(description="Their gpu_uuid, best first, at most `limit`.")


TierList = _list("TierList", Tier)


class Accepted(BaseModel):
    """What was written to the log and acknowledged by it."""

    model_config = ConfigDict(extra="forbid")

    accepted: int = Field(description="Messages written: 1, or as many as the list had objects.")


class VerdictTaken(BaseModel):
    """An operator's word, as it was written to the log and acknowledged by it."""

    model_config = ConfigDict(extra="forbid")

    accepted: int = Field(description="Messages written: 1.")
    gpus: int = Field(description="GPUs known here that it speaks of; of a reset of the breaker the whole fleet.")
    event: Event = Field(description="The row of `events` that it is.")  # type: ignore[valid-type]


class ErrorBody(BaseModel):
    """Why a request was refused."""

    rule: str = Field(description="Name of the rule: stable, for programs.")
    detail: str = Field(description="What is wrong, for people.")
    remedy: str = Field(description="What to do about it.")


class Error(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorBody


class Alive(BaseModel):
    """The process runs."""

    status: str


class Ready(BaseModel):
    """Whether the process can be asked, and what it still waits for."""

    status: str
    waiting_for: list[str]
