"""What the scorer needs to go on: its frames, and how they travel in the column `state` of the published scores.

To keep something more per GPU: one line in `GPU`; a change of meaning raises `VERSION`, which starts evidence anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from analytics import detection, evidence, kinds, measured, safety
from analytics.holds import HOLDS
from analytics.reasons import JUDGED, WORDED
from analytics.thresholds import Thresholds

VERSION = 1

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
_JUDGED: dict[str, tuple[pl.DataType, Any]] = {
    f"{prefix}_{code}": (kind, first)
    for prefix, kind, first in (("m", pl.UInt32(), 0), ("a", pl.Boolean(), False), ("v", pl.Float64(), None))
    for code in JUDGED
} | {f"t_{code}": (pl.String(), None) for code in WORDED}
GPU_SCHEMA: dict[str, pl.DataType] = {"gpu_uuid": pl.String()} | {
    name: kind for name, (kind, _) in (GPU | _JUDGED).items()
}
_TELEMETRY = [name for name in evidence.TELEMETRY if name != "gpu_uuid"]
_RESULTS = [name for name in measured.RESULTS if name != "gpu_uuid"]
_HOLDS = [name for name in HOLDS if name != "gpu_uuid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Frames sorted by gpu_uuid. `summaries` and `speeds` follow from the others, and are kept only to save time.

    They were computed with `limits`; see `under`.
    """

    gpus: pl.DataFrame
    telemetry: pl.DataFrame
    results: pl.DataFrame
    holds: pl.DataFrame
    summaries: pl.DataFrame
    speeds: pl.DataFrame
    limits: Thresholds

    @property
    def last_window_ns(self) -> int:
        """Start of the last window applied; 0 if there was none."""
        last = self.gpus["window_start_ns"].max()
        return last if isinstance(last, int) else 0


def build(
    *, gpus: pl.DataFrame, telemetry: pl.DataFrame, results: pl.DataFrame, holds: pl.DataFrame, limits: Thresholds
) -> State:
    """A state with what follows from its frames."""
    summaries = measured.summarise(results, half_life_s=limits.result_half_life_s)
    return State(
        gpus=gpus,
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
    return build(gpus=state.gpus, telemetry=state.telemetry, results=state.results, holds=state.holds, limits=limits)


def speeds(*, telemetry: pl.DataFrame, summaries: pl.DataFrame, gpus: pl.DataFrame, limits: Thresholds) -> pl.DataFrame:
    """Rows of `evidence.combine` with `scope`: gpu (all that speaks of it), node (the results of its node alone).

    The one place where sources meet.
    """
    told = evidence.estimates(telemetry, gpus, correlated_windows=limits.correlated_windows)
    seen = measured.estimates(summaries, gpus, min_peers=limits.min_peers)
    alone = evidence.combine(seen.filter(pl.col("source") == "node"))
    whole = evidence.combine(pl.concat([told.cast({"samples": pl.UInt32}), seen]))
    return pl.concat(
        [whole.with_columns(pl.lit("gpu").alias("scope")), alone.with_columns(pl.lit("node").alias("scope"))]
    )


def empty() -> State:
    """Nothing seen yet."""
    return build(
        gpus=pl.DataFrame(schema=GPU_SCHEMA),
        telemetry=pl.DataFrame(schema=evidence.TELEMETRY),
        results=pl.DataFrame(schema=measured.RESULTS),
        holds=pl.DataFrame(schema=HOLDS),
        limits=Thresholds(),
    )


def newcomers(uuids: pl.DataFrame) -> pl.DataFrame:
    """Rows for GPUs seen for the first time; `uuids` has gpu_uuid."""
    return uuids.select(
        "gpu_uuid", *(pl.lit(first, dtype=kind).alias(name) for name, (kind, first) in (GPU | _JUDGED).items())
    )


def forget(state: State, uuids: pl.Series) -> State:
    """The state without what was found about these GPUs: their evidence, results and judgements start anew.

    Their place, tier and the windows they were seen in stay; so do events, which `analytics/holds.py` lifts.
    """
    some = pl.col("gpu_uuid").is_in(uuids.implode())
    anew = (
        _JUDGED | detection.MEMORY | safety.MEMORY | {name: GPU[name] for name in ("fast", "m_fast_in", "m_fast_out")}
    )
    gpus = state.gpus.with_columns(
        pl.when(some).then(pl.lit(first, dtype=kind)).otherwise(name).alias(name)
        for name, (kind, first) in anew.items()
    )
    return build(
        gpus=gpus,
        telemetry=state.telemetry.filter(~some),
        results=state.results.filter(~some),
        holds=state.holds,
        limits=state.limits,
    )


def encode(gpus: pl.DataFrame, *, telemetry: pl.DataFrame, results: pl.DataFrame, holds: pl.DataFrame) -> pl.Series:
    """The column `state` for these rows of `State.gpus`, in their order."""
    rows = gpus.select(
        "gpu_uuid",
        pl.lit(VERSION).alias("version"),
        pl.struct(*GPU).alias("gpu"),
    )
    rows = rows.join(_judged(gpus), on="gpu_uuid", how="left", maintain_order="left")
    for name, frame, columns in (
        ("telemetry", telemetry, _TELEMETRY),
        ("results", results, _RESULTS),
        ("holds", holds, _HOLDS),
    ):
        if frame.is_empty():
            continue
        # Column by column: one list each is shorter than a list of objects.
        nested = frame.group_by("gpu_uuid", maintain_order=True).agg(columns)
        nested = nested.select("gpu_uuid", pl.struct(columns).alias(name))
        rows = rows.join(nested, on="gpu_uuid", how="left", maintain_order="left")
    return rows.select(pl.struct(pl.exclude("gpu_uuid")).struct.json_encode()).to_series().alias("state")


def _judged(gpus: pl.DataFrame) -> pl.DataFrame:
    """The memory of judgements as lists, for the few GPUs about which anything is remembered."""
    some = gpus.filter(pl.any_horizontal(pl.col(f"m_{code}") > 0 for code in JUDGED))
    return some.select(
        "gpu_uuid",
        *(pl.concat_list(f"{prefix}_{code}" for code in JUDGED).alias(prefix) for prefix in "mav"),
        pl.concat_list(f"t_{code}" for code in WORDED).alias("t"),
    )


def restore(scores: pl.DataFrame) -> State:
    """The state in rows of SCORES, each GPU's newest.

    A row whose state is missing, damaged or of another version keeps its tier; its evidence starts anew.
    """
    gpus: dict[str, list[Any]] = {name: [] for name in GPU_SCHEMA}
    parts: dict[str, dict[str, list[Any]]] = {
        "telemetry": {name: [] for name in evidence.TELEMETRY},
        "results": {name: [] for name in measured.RESULTS},
        "holds": {name: [] for name in HOLDS},
    }
    columns = ("gpu_uuid", "node", "as_of_ns", "window_start_ns", "tier", "tier_since_ns", "state")
    for uuid, node, as_of, window, tier, since, text in scores.select(columns).iter_rows():
        saved = _decode(text)
        basic = {"node": node, "as_of_ns": as_of, "window_start_ns": window, "tier": tier, "tier_since_ns": since}
        row = saved["gpu"] if saved else {name: first for name, (_, first) in GPU.items()} | basic
        gpus["gpu_uuid"].append(uuid)
        for name in GPU:
            gpus[name].append(row[name])
        for prefix in "mav":
            _, first = _JUDGED[f"{prefix}_{JUDGED[0]}"]
            values = (saved and saved[prefix]) or [first] * len(JUDGED)
            for code, value in zip(JUDGED, values, strict=True):
                gpus[f"{prefix}_{code}"].append(value)
        words = (saved and saved["t"]) or [None] * len(WORDED)
        for code, text in zip(WORDED, words, strict=True):
            gpus[f"t_{code}"].append(text)
        for name, lists in parts.items():
            _extend(lists, uuid, saved.get(name) if saved else None)
    frames = {
        "telemetry": pl.DataFrame(parts["telemetry"], schema=evidence.TELEMETRY).sort("gpu_uuid", "workload_class"),
        "results": pl.DataFrame(parts["results"], schema=measured.RESULTS).sort(*measured.SERIES, "time_ns", "value"),
        "holds": pl.DataFrame(parts["holds"], schema=HOLDS).sort("gpu_uuid", "code", "value", "time_ns"),
    }
    return build(gpus=pl.DataFrame(gpus, schema=GPU_SCHEMA).sort("gpu_uuid"), **frames, limits=Thresholds())


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
    return saved if known and all(len(saved.get(p) or codes) == len(codes) for p, codes in lists.items()) else None


def _extend(lists: dict[str, list[Any]], uuid: str, saved: dict[str, Sequence[Any]] | None) -> None:
    if not saved:
        return
    names = [name for name in lists if name != "gpu_uuid"]
    count = len(saved[names[0]] or ())
    lists["gpu_uuid"].extend([uuid] * count)
    for name in names:
        lists[name].extend(saved[name] or ())
