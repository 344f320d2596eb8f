"""What the scorer said of a simulated fleet against what is true of it.

To judge something else of a run: a function here from `Run` to rows, its figure in `benchmarks/campaign.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from benchmarks.campaign_run import Run

DEMOTED = ("degraded", "quarantine")
SLOW, TYPICAL = 0.97, 0.98  #: slow by 3 % or more is to be found; above 0.98 a demotion for speed is false


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One GPU of a run: how fast it truly is in its class of work, what was done to it, what was first said of it."""

    gpu: str
    kind: str | None  #: of its fault
    name: str | None
    speed: float  #: with its fault, relative to the typical GPU of its model
    work: str  #: workload class, with `s` for a synchronous job
    start_ns: int
    tiers: tuple[str, ...]
    causes: tuple[str | None, ...]
    reached: str | None  #: first tier reached that fits the fault, or the first demotion
    cause: str | None
    codes: tuple[str, ...]
    at_ns: int | None
    demoted: bool

    @property
    def found(self) -> bool:
        """Whether a fitting tier was reached."""
        return self.reached in self.tiers

    @property
    def named(self) -> bool:
        """Whether the cause given with it fits too."""
        return self.found and self.cause in self.causes


def verdicts(run: Run) -> Iterator[Verdict]:
    """Every GPU that is there at the end, once; of several faults on it the last one counts."""
    jobs = {node: job for job in run.truth["jobs"] for node in job["nodes"]}
    faults = {gpu: fault for fault in run.truth["faults"] for gpu in fault["gpus"]}
    moves: dict[str, list[dict[str, object]]] = {}
    for row in run.transitions.sort("time_ns").iter_rows(named=True):
        moves.setdefault(row["gpu_uuid"], []).append(row)
    swaps = {(gpu["node"], gpu["slot"]) for gpu in run.truth["gpus"].values() if "from_ns" in gpu}
    for uuid, gpu in run.truth["gpus"].items():
        if (gpu["node"], gpu["slot"]) in swaps and "from_ns" not in gpu:
            continue  # it has been taken out
        fault = faults.get(uuid)
        job = jobs[gpu["node"]]
        speed = gpu["speeds"][job["class"]]
        if fault is not None and uuid in fault["speeds"]:
            speed = min(speed, fault["speeds"][uuid][job["class"]])
        mine = moves.get(uuid, [])
        fitting = [
            row
            for row in mine
            if fault is not None and row["time_ns"] >= fault["start_ns"] and row["to_tier"] in fault["tiers"]  # type: ignore[operator]
        ]
        bad = [row for row in mine if row["to_tier"] in DEMOTED]
        first = (fitting or bad or [None])[0]
        last = fitting[-1] if fitting else first
        yield Verdict(
            gpu=uuid,
            kind=fault["kind"] if fault else None,
            name=fault["name"] if fault else None,
            speed=speed,
            work=job["class"] + ("/s" if job["synchronous"] else ""),
            start_ns=fault["start_ns"] if fault else run.truth["start_ns"],
            tiers=tuple(fault["tiers"]) if fault else (),
            causes=tuple(fault["causes"]) if fault else (),
            reached=str(first["to_tier"]) if first else None,
            cause=last["cause"] if last else None,  # type: ignore[arg-type]
            codes=_codes(last["reasons"]) if last else (),
            at_ns=int(first["time_ns"]) if first else None,  # type: ignore[call-overload]
            demoted=bool(bad),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Right and wrong of a yes-or-no question."""

    hits: int
    false: int
    missed: int

    @property
    def precision(self) -> float:
        """Share of the named that are right; 1 where nobody is named."""
        return self.hits / max(self.hits + self.false, 1) if self.hits + self.false else 1.0

    @property
    def recall(self) -> float:
        """Share of the right that are named; 1 where there are none."""
        return self.hits / (self.hits + self.missed) if self.hits + self.missed else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        total = 2 * self.hits + self.false + self.missed
        return 2 * self.hits / total if total else 1.0


def slow_count(found: list[Verdict]) -> Count:
    """Demotions against true speed: 3 % slow and more is to be found, less than 2 % is not; between is neither.

    A fast GPU that is demoted for the very fault it has, by its cause, is not a false one.
    """
    slow = [verdict for verdict in found if verdict.speed <= SLOW]
    fine = [verdict for verdict in found if verdict.speed > TYPICAL and not verdict.named]
    hits = sum(verdict.demoted for verdict in slow)
    return Count(hits=hits, false=sum(verdict.demoted for verdict in fine), missed=len(slow) - hits)


def _codes(reasons: object) -> tuple[str, ...]:
    return tuple(pl.Series([reasons]).str.json_decode(pl.List(pl.Struct({"code": pl.String})))[0].struct.field("code"))
