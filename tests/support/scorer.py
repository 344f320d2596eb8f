"""A scorer as its job drives it: steps in order, and the log of what was published, compacted as Kafka does.

To add a kind of step: a method here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import polars as pl
from support.samples import START_NS, WINDOW_NS, inventory, windows

from analytics import scoring
from analytics.frames import frame
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, SCORES, TRANSITIONS


class Scorer:
    """Applies steps; `scores` holds each GPU's newest row, `transitions` all of them."""

    def __init__(self, gpus: pl.DataFrame | None = None, nodes: pl.DataFrame | None = None, **thresholds: Any) -> None:
        self.gpus = frame(GPUS) if gpus is None else gpus
        self.nodes = frame(NODES) if nodes is None else nodes
        self.thresholds = thresholds
        self.state = scoring.empty()
        self.scores = frame(SCORES)
        self.transitions = frame(TRANSITIONS)
        self.published = 0
        self.fleet: tuple[str, ...] = ()

    def window(self, rows: Sequence[Mapping[str, Any]], *, at: int, complete: bool = True) -> None:
        """One closed window."""
        self.step(windows(rows, at=at), start=START_NS + at * WINDOW_NS, complete=complete)

    def events(self, *rows: Mapping[str, Any], at: float = 0) -> None:
        """A step of events, at a number of windows after the start."""
        time_ns = START_NS + int(at * WINDOW_NS)
        normal = {"time_ns": time_ns, "node": "n0", "gpu_uuid": "", "code": 0}
        self.step(None, events=frame(EVENTS, [normal | row for row in rows]), as_of=time_ns)

    def measurements(self, *rows: Mapping[str, Any], as_of: int | None = None) -> None:
        """A step of results."""
        normal = {
            "time_ns": START_NS, "scope": "gpu", "name": "sgemm", "workload_class": "compute", "unit": "ms",
            "higher_is_better": False,
        }  # fmt: skip
        brought = frame(MEASUREMENTS, [normal | row for row in rows])
        newest = as_of if as_of is not None else int(brought["time_ns"].max() or 0)  # type: ignore[arg-type]
        self.step(None, measurements=brought, as_of=newest)

    def tick(self, *, at: float) -> None:
        """A step with nothing in it but the time."""
        self.step(None, as_of=START_NS + int(at * WINDOW_NS))

    def step(
        self, closed: pl.DataFrame | None, *, start: int | None = None, events: pl.DataFrame | None = None,
        measurements: pl.DataFrame | None = None, as_of: int | None = None, complete: bool = True,
    ) -> None:  # fmt: skip
        """Any step."""
        self.state, out = scoring.apply(
            self.state, windows=closed, window_start_ns=start, events=frame(EVENTS) if events is None else events,
            measurements=frame(MEASUREMENTS) if measurements is None else measurements, gpus=self.gpus,
            nodes=self.nodes, as_of_ns=(start or 0) + WINDOW_NS if as_of is None else as_of, complete=complete,
            **self.thresholds,
        )  # fmt: skip
        rows = out.scores
        self.published += len(rows)
        self.fleet = out.fleet
        self.scores = pl.concat([self.scores, rows]).unique("gpu_uuid", keep="last").sort("gpu_uuid")
        self.transitions = pl.concat([self.transitions, out.transitions])

    def restart(self) -> None:
        """The state from what was published, as after a crash."""
        self.state = scoring.restore(self.scores)

    def tier(self, gpu: str) -> str:
        """The GPU's tier."""
        return str(self.row(gpu)["tier"])

    def codes(self, gpu: str) -> list[str]:
        """The GPU's reason codes, worst first."""
        return [reason["code"] for reason in self.row(gpu)["reasons"]]

    def row(self, gpu: str) -> dict[str, Any]:
        """The GPU's newest score, JSON columns read."""
        row = self.scores.row(by_predicate=pl.col("gpu_uuid") == gpu, named=True)
        return row | {name: orjson.loads(row[name]) for name in ("reasons", "speeds", "state")}


def fleet(nodes: int, gpus: int = 8, **columns: Any) -> pl.DataFrame:
    """Inventory of `nodes` nodes named n0.. with GPUs g<node>-<slot>."""
    return inventory({f"g{n}-{s}": {"node": f"n{n}", "slot": s, **columns} for n in range(nodes) for s in range(gpus)})


def busy_rows(gpus: pl.DataFrame, **columns: Any) -> list[dict[str, Any]]:
    """A window row for each GPU of the inventory, all alike."""
    return [{"gpu_uuid": gpu, "node": node, **columns} for gpu, node in gpus.select("gpu_uuid", "node").iter_rows()]
