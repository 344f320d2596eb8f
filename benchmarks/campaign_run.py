"""A simulated fleet through encoder, decoder, windows and scorer, without a transport between them.

To keep something more of a run: a field of `Run`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analytics import scoring
from analytics.frames import frame
from collectors.simulated import Simulated
from streams import Message
from streams.decode import decode
from streams.topics import TELEMETRY
from streams.windows import Windows
from telemetry.codec import Encoder
from telemetry.errors import EndOfInput
from telemetry.records import Event, NodeInventory
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, TOPOLOGY, TRANSITIONS

START_NS = 1_790_000_400 * 10**9  #: a multiple of ten minutes
S = 10**9


@dataclass(slots=True, kw_only=True)
class Run:
    """What came of a fleet: the truth, all transitions, and every row of scores that was published with a reason."""

    truth: dict[str, Any]
    transitions: pl.DataFrame
    said: pl.DataFrame
    scores: pl.DataFrame
    events: list[Event] = field(default_factory=list)
    gpu_days: float = 0.0


def play(
    description: Mapping[str, Any],
    *,
    seed: int,
    windows: int,
    window_s: float = 60.0,
    interval_s: float = 2.0,
    thresholds: Mapping[str, Any] | None = None,
) -> Run:
    """The whole of a fleet, as its agents, window jobs and scorer would see it; events before windows, as they come."""
    step_s = window_s / 2
    source = Simulated(
        fleet=description, start_ns=START_NS, seed=seed, interval_s=interval_s, step_s=step_s,
        duration_s=(windows + 1) * window_s,
    )  # fmt: skip
    encoder = Encoder()
    states = Windows(window_ns=round(window_s * S), lateness_ns=round(0.75 * window_s * S), max_skew_ns=round(60 * S))
    states.assign(0, None)
    inventory: dict[str, NodeInventory] = {}
    skewed: set[str] = set()
    state, offset, now_ns = scoring.empty(), 0, START_NS
    transitions, said, scores = [frame(TRANSITIONS)], [], pl.DataFrame()
    events: list[Event] = []
    gpus, nodes = frame(GPUS), frame(NODES)

    topology = frame(
        TOPOLOGY,
        [
            {"node": node.name, "position": position, "level": level, "value": value, "source": "inventory"}
            for node in source.fleet.nodes
            for position, (level, value) in enumerate(node.place)
        ],
    )

    def apply(**new: Any) -> None:
        nonlocal state, scores
        given = {"windows": None, "window_start_ns": None, "events": frame(EVENTS)} | new
        state, out = scoring.apply(
            state,
            measurements=frame(MEASUREMENTS),
            gpus=gpus,
            nodes=nodes,
            topology=topology,
            **given,
            **(thresholds or {}),
        )
        transitions.append(out.transitions)
        rows = out.scores
        said.append(rows.filter(pl.col("reasons") != "[]").drop("state", "speeds"))
        scores = rows if scores.is_empty() else pl.concat([scores, rows]).unique("gpu_uuid", keep="last")

    while True:
        try:
            reading = source.collect()
        except EndOfInput:
            break
        now_ns = source.next_time_ns
        if reading.inventory:
            inventory |= {one.node: one for one in reading.inventory}
            gpus, nodes = _inventory_frames(inventory)
        for event in reading.events:
            events.append(event)
            apply(events=_events([event]), as_of_ns=now_ns)
        messages = []
        for batch in reading.samples:
            one = encoder.encode(batch)
            messages.append(
                Message(
                    topic=TELEMETRY, partition=0, offset=offset, time_ns=now_ns, key=one.key, headers=one.headers,
                    value=one.value,
                )
            )  # fmt: skip
            offset += 1
        added = states.add(messages, decode(messages))
        late = {str(one.rows["node"][0]) for one in added.rejected if one.rule == "future" and one.rows is not None}
        if late - skewed:  # a node says so once an hour
            new = [Event(time_ns=now_ns, node=node, gpu_uuid="", kind="clock_skew") for node in sorted(late - skewed)]
            skewed |= late
            apply(events=_events(new), as_of_ns=now_ns)
        for closed in added.closed:
            if not closed.progress:
                apply(windows=closed.rows, window_start_ns=closed.window_start_ns, as_of_ns=closed.window_end_ns)
    source.close()
    total = sum(node.gpus for node in source.fleet.nodes)
    return Run(
        truth=source.truth(),
        transitions=pl.concat(transitions),
        said=pl.concat(said),
        scores=scores,
        events=events,
        gpu_days=total * windows * window_s / 86_400,
    )


def _events(events: list[Event]) -> pl.DataFrame:
    names = ("time_ns", "node", "gpu_uuid", "kind", "code", "detail")
    return frame(EVENTS, [{name: getattr(event, name) for name in names} for event in events])


def _inventory_frames(inventory: Mapping[str, NodeInventory]) -> tuple[pl.DataFrame, pl.DataFrame]:
    gpus = [
        {name: getattr(gpu, name) for name in gpu.__slots__} | {"node": node.node, "seen_ns": node.seen_ns}
        for node in inventory.values()
        for gpu in node.gpus
    ]
    nodes = [
        {
            "node": node.node,
            "expected_gpus": node.expected_gpus,
            "seen_gpus": len(node.gpus),
            "driver_version": node.driver_version,
            "place": [list(level) for level in node.place],
            "seen_ns": node.seen_ns,
        }
        for node in inventory.values()
    ]
    return frame(GPUS, gpus), frame(NODES, nodes)
