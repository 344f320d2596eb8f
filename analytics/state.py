"""What the scorer needs to go on: its frames, and how they travel in the column `state` of the published scores.

To keep something more per GPU: one line in `GPU`; a change of meaning raises `VERSION`, which starts evidence anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from analytics import detection, evidence, kinds, measured, safety, tiers
from analytics.book import Book
from analytics.holds import HOLDS
from analytics.keys import KEY, beside, contest, in_order, known_in_order, renumbered
from analytics.reasons import JUDGED, WORDED
from analytics.thresholds import Thresholds

VERSION = 3

GPU: dict[str, tuple[pl.DataType, Any]] = {
    # name: type, value for a GPU seen for the first time
    "node": (pl.String(), None),
    "peer_group": (pl.String(), None),
    "power_limit_w": (pl.Float64(), None),  # the last enforced limit seen
    "window_start_ns": (pl.Int64(), 0),  # of the last window applied; 0: none yet
    "window_s": (pl.Float64(), None),
    "run": (pl.UInt32(), 0),  # windows in a row
    "as_of_ns": (pl.Int64(), 0),
    "tier": (pl.String(), None),
    "tier_since_ns": (pl.Int64(), 0),
    "codes": (pl.String(), ""),  # reasons as last published
    "speed": (pl.Float64(), None),  # as last published
    "max_pcie_gen": (pl.Float64(), None),
    "max_pcie_width": (pl.Float64(), None),
    "reset_ns": (pl.Int64(), 0),
    "stale": (pl.Boolean(), True),
    "few_peers": (pl.Boolean(), False),
    "fast": (pl.Boolean(), False),
    "m_fast_in": (pl.UInt32(), 0),
    "m_fast_out": (pl.UInt32(), 0),
    **detection.MEMORY,
    **safety.MEMORY,
    **kinds.MEMORY,
}
GPU_SCHEMA: dict[str, pl.DataType] = {"gpu": KEY, "gpu_uuid": pl.String()} | {
    name: kind for name, (kind, _) in GPU.items()
}
_TELEMETRY = [name for name in evidence.TELEMETRY if name != "gpu"]
_RESULTS = [name for name in measured.RESULTS if name != "gpu"]
_HOLDS = [name for name in HOLDS if name != "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Frames in the order of `gpu` (`analytics/keys.py`). `summaries` and `speeds` follow from the others, and are kept
    only to save time, as is the `book`, once it has been read.

    They were computed with `limits`; see `under`.
    """

    gpus: pl.DataFrame
    uuids: pl.Series  #: of `gpus`: the very same object until someone comes or moves
    judged: pl.DataFrame
    telemetry: pl.DataFrame
    results: pl.DataFrame
    holds: pl.DataFrame
    summaries: pl.DataFrame
    speeds: pl.DataFrame
    limits: Thresholds
    book: Book | None = None

    @property
    def last_window_ns(self) -> int:
        """Start of the last window applied; 0 if there was none."""
        last = self.gpus["window_start_ns"].max()
        return last if isinstance(last, int) else 0


def build(
    *, gpus: pl.DataFrame, judged: pl.DataFrame, telemetry: pl.DataFrame, results: pl.DataFrame, holds: pl.DataFrame,
    limits: Thresholds,
) -> State:  # fmt: skip
    """A state with what follows from its frames."""
    summaries = measured.summarise(results, half_life_s=limits.result_half_life_s)
    return State(
        gpus=gpus,
        uuids=gpus["gpu_uuid"],
        judged=judged,
        telemetry=telemetry,
        results=results,
        holds=holds,
        summaries=summaries,
        speeds=speeds(telemetry=telemetry, summaries=summaries, gpus=gpus, limits=limits),
        limits=limits,
    )


def under(state: State, limits: Thresholds) -> State:
    """The state under these limits: after a restart, or a change of settings, what follows is computed again."""
    if state.limits == limits:
        return state
    return build(
        gpus=state.gpus, judged=state.judged, telemetry=state.telemetry, results=state.results, holds=state.holds,
        limits=limits,
    )  # fmt: skip


def ordered(state: State, gpus: pl.DataFrame) -> State:
    """The state with `gpus` for its own: its rows as they are now, newcomers after them, put in their order.

    That order is by node and gpu_uuid, wherever the rows came from: a state that was read back is the same state.
    """
    order = gpus.select(pl.arg_sort_by("node", "gpu_uuid")).to_series()
    place = pl.DataFrame({"order": order, "gpu": pl.int_range(len(gpus), dtype=KEY, eager=True)}).sort("order")["gpu"]
    gpus = gpus[order].with_columns(pl.int_range(pl.len(), dtype=KEY).alias("gpu"))
    return State(
        gpus=gpus,
        uuids=gpus["gpu_uuid"],
        judged=renumbered(state.judged, place),
        telemetry=renumbered(state.telemetry, place),
        results=renumbered(state.results, place),
        holds=renumbered(state.holds, place),
        summaries=renumbered(state.summaries, place),
        speeds=renumbered(state.speeds, place),
        limits=state.limits,
    )


def speeds(*, telemetry: pl.DataFrame, summaries: pl.DataFrame, gpus: pl.DataFrame, limits: Thresholds) -> pl.DataFrame:
    """Rows of `evidence.combine` with `scope`: gpu (all that speaks of it), node (the results of its node alone);
    `peer_group`, and `contest`, a number for group and class.

    The one place where sources meet.
    """
    told = evidence.estimates(telemetry, gpus, correlated_windows=limits.correlated_windows)
    seen = measured.estimates(summaries, gpus, min_peers=limits.min_peers)
    alone = evidence.combine(seen.filter(pl.col("source") == "node"))
    whole = evidence.combine(pl.concat([told.cast({"samples": pl.UInt32}), seen]))
    known = whole.with_columns(pl.lit("gpu").alias("scope"))
    if not alone.is_empty():
        known = pl.concat([known, alone.with_columns(pl.lit("node").alias("scope"))]).sort("gpu", maintain_order=True)
    return beside(known, gpus.select("gpu", "peer_group")).with_columns(contest("peer_group", "workload_class"))


def empty() -> State:
    """Nothing seen yet."""
    return build(
        gpus=pl.DataFrame(schema=GPU_SCHEMA),
        judged=pl.DataFrame(schema=tiers.SCHEMA),
        telemetry=pl.DataFrame(schema=evidence.TELEMETRY),
        results=pl.DataFrame(schema=measured.RESULTS),
        holds=pl.DataFrame(schema=HOLDS),
        limits=Thresholds(),
    )


def newcomers(uuids: pl.DataFrame, *, after: int) -> pl.DataFrame:
    """Rows for GPUs seen for the first time, numbered from `after`; `uuids` has gpu_uuid."""
    return uuids.select(
        pl.int_range(after, after + pl.len(), dtype=KEY).alias("gpu"),
        "gpu_uuid",
        *(pl.lit(first, dtype=kind).alias(name) for name, (kind, first) in GPU.items()),
    )


def forget(state: State, gpus: pl.Series) -> State:
    """The state without what was found about these GPUs: their evidence, results and judgements start anew.

    Their place, tier and the windows they were seen in stay; so do events, which `analytics/holds.py` lifts.
    """
    some = pl.col("gpu").is_in(gpus.implode())
    anew = detection.MEMORY | safety.MEMORY | {name: GPU[name] for name in ("fast", "m_fast_in", "m_fast_out")}
    rows = state.gpus.with_columns(
        pl.when(some).then(pl.lit(first, dtype=kind)).otherwise(name).alias(name)
        for name, (kind, first) in anew.items()
    )
    return build(
        gpus=rows,
        judged=state.judged.filter(~some),
        telemetry=state.telemetry.filter(~some),
        results=state.results.filter(~some),
        holds=state.holds,
        limits=state.limits,
    )


def encode(
    gpus: pl.DataFrame, *, judged: pl.DataFrame, telemetry: pl.DataFrame, results: pl.DataFrame, holds: pl.DataFrame
) -> pl.Series:
    """The column `state` for these rows of `State.gpus`, in their order."""
    rows = gpus.select("gpu", pl.lit(VERSION).alias("version"), pl.struct(*GPU).alias("gpu_row"))
    lists = (pl.concat_list(f"{prefix}_{code}" for code in JUDGED).alias(prefix) for prefix in "mav")
    memory = judged.select("gpu", *lists, pl.concat_list(f"t_{code}" for code in WORDED).alias("t"))
    rows = beside(rows, memory)
    for name, frame, columns in (
        ("telemetry", telemetry, _TELEMETRY),
        ("results", results, _RESULTS),
        ("holds", holds, _HOLDS),
    ):
        if frame.is_empty():
            continue
        # Column by column: one list each is shorter than a list of objects.
        nested = frame.group_by("gpu", maintain_order=True).agg(columns)
        nested = nested.select("gpu", pl.struct(columns).alias(name))
        rows = beside(rows, in_order(nested))
    rows = rows.drop("gpu").rename({"gpu_row": "gpu"})
    return rows.select(pl.struct(pl.all()).struct.json_encode()).to_series().alias("state")


def restore(scores: pl.DataFrame) -> State:
    """The state in rows of SCORES, each GPU's newest.

    A row whose state is missing, damaged or of another version keeps its tier; its evidence starts anew.
    """
    gpus: dict[str, list[Any]] = {name: [] for name in GPU_SCHEMA}
    parts: dict[str, dict[str, list[Any]]] = {
        "judged": {name: [] for name in tiers.SCHEMA},
        "telemetry": {name: [] for name in evidence.TELEMETRY},
        "results": {name: [] for name in measured.RESULTS},
        "holds": {name: [] for name in HOLDS},
    }
    columns = ("gpu_uuid", "node", "as_of_ns", "window_start_ns", "tier", "tier_since_ns", "state")
    rows = scores.select(columns).sort("node", "gpu_uuid").iter_rows()
    for gpu, (uuid, node, as_of, window, tier, since, text) in enumerate(rows):
        saved = _decode(text)
        basic = {"node": node, "as_of_ns": as_of, "window_start_ns": window, "tier": tier, "tier_since_ns": since}
        row = saved["gpu"] if saved else {name: first for name, (_, first) in GPU.items()} | basic
        gpus["gpu"].append(gpu)
        gpus["gpu_uuid"].append(uuid)
        for name in GPU:
            gpus[name].append(row[name])
        if saved and saved.get("m"):
            parts["judged"]["gpu"].append(gpu)
            for prefix in "mav":
                for code, value in zip(JUDGED, saved[prefix], strict=True):
                    parts["judged"][f"{prefix}_{code}"].append(value)
            for code, text in zip(WORDED, saved["t"], strict=True):
                parts["judged"][f"t_{code}"].append(text)
        for name in ("telemetry", "results", "holds"):
            _extend(parts[name], gpu, saved.get(name) if saved else None)
    return build(
        gpus=known_in_order(pl.DataFrame(gpus, schema=GPU_SCHEMA)),
        judged=known_in_order(pl.DataFrame(parts["judged"], schema=tiers.SCHEMA)),
        telemetry=pl.DataFrame(parts["telemetry"], schema=evidence.TELEMETRY).sort("gpu", "workload_class"),
        results=pl.DataFrame(parts["results"], schema=measured.RESULTS).sort(*measured.SERIES, "time_ns", "value"),
        holds=pl.DataFrame(parts["holds"], schema=HOLDS).sort("gpu", "code", "value", "time_ns"),
        limits=Thresholds(),
    )


def _decode(text: str | None) -> dict[str, Any] | None:
    """The saved state, None where it cannot be used."""
    try:
        saved = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(saved, dict) or saved.get("version") != VERSION:
        return None
    known = isinstance(saved.get("gpu"), dict) and saved["gpu"].keys() >= GPU.keys()
    lists = {"m": JUDGED, "a": JUDGED, "v": JUDGED, "t": WORDED}
    clean = all(saved.get(prefix) is None for prefix in lists)  # nothing is remembered of this GPU
    whole = all(isinstance(saved.get(p), list) and len(saved[p]) == len(codes) for p, codes in lists.items())
    return saved if known and (clean or whole) else None


def _extend(lists: dict[str, list[Any]], gpu: int, saved: dict[str, Sequence[Any]] | None) -> None:
    if not saved:
        return
    names = [name for name in lists if name != "gpu"]
    lists["gpu"].extend([gpu] * len(saved[names[0]] or ()))
    for name in names:
        lists[name].extend(saved[name] or ())
