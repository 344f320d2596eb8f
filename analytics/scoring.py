"""The scorer as a function: a state and what is new in, a state and what to publish out.

To add evidence: a module with estimates, joined in `state.speeds`. To add a finding: `analytics/conditions.py`.
"""

from dataclasses import dataclass

import polars as pl

from analytics import detection, evidence, holds, kinds, measured, safety
from analytics.conditions import conditions
from analytics.equal_work import at_equal_work
from analytics.frames import schema
from analytics.groups import odd_drivers
from analytics.inputs import Step, check, read_step
from analytics.oddity import odd_combinations
from analytics.peers import peer_group
from analytics.policy import DEFAULT, Policy
from analytics.publish import scores_of, transitions_of
from analytics.speed import window_speed
from analytics.state import State, empty, forget, restore, speeds, under
from analytics.thresholds import Thresholds
from analytics.tiers import judge, judge_fast, slow_findings
from analytics.verdicts import reasons, verdicts
from telemetry.tables import EVENTS, SCORES, TRANSITIONS

__all__ = ["Scored", "State", "apply", "empty", "restore"]

SPEED_DRIFT = 1e-3  #: a speed that moved by less, because its peers did, is not published again


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What a step publishes: rows of SCORES for GPUs with news, rows of TRANSITIONS for tiers that changed.

    `fleet`: reason codes of the fleet as a whole: `breaker_open` while demotions are held.
    """

    scores: pl.DataFrame
    transitions: pl.DataFrame
    fleet: tuple[str, ...] = ()


def apply(
    state: State,
    *,
    windows: pl.DataFrame | None,
    window_start_ns: int | None,
    events: pl.DataFrame,
    measurements: pl.DataFrame,
    gpus: pl.DataFrame,
    nodes: pl.DataFrame,
    as_of_ns: int,
    complete: bool = True,
    topology: pl.DataFrame | None = None,
    xid_policy: Policy = DEFAULT,
    **thresholds: float,
) -> tuple[State, Scored]:
    """The state after one step, and what to publish.

    `windows`: one closed window (rows of WINDOWS, maybe none), or None for a step of events and measurements only. A
    window at or before the last one applied changes nothing, nor does an event or result seen before. `gpus`, `nodes`:
    the newest inventory. `complete` false: parts of the window are missing, so absence says nothing yet.
    `topology`: rows of TOPOLOGY, to tell at which level an excess sits. `xid_policy`: see `analytics/policy.py`.
    `thresholds`: fields of `Thresholds`.

    A step with a window, or with nothing at all (a tick), moves time to `as_of_ns`: what is too old becomes unknown
    and old findings end. A step of events judges only the GPUs that they speak of. Rows of all steps together, the
    newest of each GPU, restore the state exactly. Raises ValueError for frames without their columns and for rows of
    another window.
    """
    limits = Thresholds(**thresholds)
    check(EVENTS, events.columns)
    state = _cleared(under(state, limits), events)
    step = read_step(
        state, windows=windows, window_start_ns=window_start_ns, events=events, measurements=measurements, gpus=gpus,
        nodes=nodes, as_of_ns=as_of_ns, limits=limits, policy=xid_policy,
    )  # fmt: skip
    if step is None:
        return state, Scored(
            scores=pl.DataFrame(schema=schema(SCORES)), transitions=pl.DataFrame(schema=schema(TRANSITIONS))
        )
    rows = safety.reset(_placed(step), events)
    telemetry, findings, speeds_now = state.telemetry, None, None
    if step.windows is not None:
        rows, seen = _seen(rows, step)
        speeds_now = window_speed(
            seen,
            min_busy_samples=limits.min_busy_samples,
            min_busy_ratio=limits.min_busy_ratio,
            min_peers=limits.min_peers,
        )
        speeds_now = at_equal_work(seen, speeds_now, min_peers=limits.min_peers)
        telemetry = evidence.add_windows(telemetry, speeds_now, window_s=step.window_s, half_life_s=limits.half_life_s)
        followed = detection.follow(
            rows,
            telemetry,
            speeds_now,
            drift_effect=limits.drift_effect,
            drift_limit=limits.drift_limit,
            baseline_windows=limits.baseline_windows,
        )
        sorted_ = kinds.sort_kinds(
            followed.gpus,
            followed.telemetry,
            seen.with_columns(speeds_now["eligible"]),
            window_start_ns=step.window_start_ns,
            window_s=step.window_s,
        )
        rows, telemetry = sorted_.gpus, sorted_.telemetry
        findings = _findings(seen, speeds_now, rows, step, limits=limits, complete=complete)
        findings = findings.join(followed.findings, on="gpu_uuid", how="left", maintain_order="left")
        rows = _few_peers(rows, speeds_now)
    results = measured.add(state.results, step.results, keep=int(limits.keep_results))
    summaries = state.summaries
    if not step.results.is_empty():
        summaries = _resummarised(summaries, results, step, limits)
    known = state.speeds
    if step.whole:
        known = speeds(telemetry=telemetry, summaries=summaries, gpus=rows, limits=limits)
    if findings is not None:
        rows = judge(rows, findings, limits=limits)
    rows = _judge_speed(rows, known, speeds_now, step, limits)
    rows = _fresh(rows, summaries, step, limits)
    held = holds.cleared(holds.counted(holds.merge(state.holds, step.holds), xid_policy))
    held = safety.tiers_at(held, rows)
    held = holds.node_wide(held, step.node_gpus, burst_s=limits.burst_s)
    held = holds.standing(held, rows, now_ns=step.clock_ns, limits=limits, policy=xid_policy)
    return _published(
        state,
        rows,
        step,
        telemetry=telemetry,
        results=results,
        summaries=summaries,
        known=known,
        held=held,
        limits=limits,
        policy=xid_policy,
        topology=topology,
    )


def _cleared(state: State, events: pl.DataFrame) -> State:
    """The state after operators cleared GPUs; an event that was seen before clears nothing."""
    clear = events.filter(pl.col("kind") == "operator_clear")
    if clear.is_empty():
        return state
    named = clear.filter(pl.col("gpu_uuid") != "").select("gpu_uuid", "time_ns")
    whole = clear.filter(pl.col("gpu_uuid") == "").select("node", "time_ns").join(
        state.gpus.select("gpu_uuid", "node"), on="node"
    )  # fmt: skip
    told = pl.concat([named, whole.select("gpu_uuid", "time_ns")])
    seen = state.holds.filter(pl.col("code") == "operator_clear").select("gpu_uuid", pl.col("time_ns").alias("seen_ns"))
    new = told.join(seen, on="gpu_uuid", how="left").filter(
        pl.col("seen_ns").is_null() | (pl.col("seen_ns") < pl.col("time_ns"))
    )
    return forget(state, new["gpu_uuid"].unique()) if len(new) else state


def _placed(step: Step) -> pl.DataFrame:
    """Rows with node, power limit and peer group as the inventory and the window say now."""
    rows = step.gpus.join(step.inventory, on="gpu_uuid", how="left", maintain_order="left")
    if step.windows is not None:
        latest = step.windows.select("gpu_uuid", pl.col("node").alias("_node"), pl.col("power_limit_w").alias("_limit"))
        rows = rows.join(latest, on="gpu_uuid", how="left", maintain_order="left")
    else:
        rows = rows.with_columns(_node=pl.lit(None, dtype=pl.String), _limit=pl.lit(None, dtype=pl.Float32))
    rows = rows.with_columns(
        pl.coalesce("_node", "inventory_node", "node", "told_node").alias("node"),
        pl.coalesce(pl.col("_limit").cast(pl.Float64), "power_limit_w").alias("power_limit_w"),
        pl.col("peer_group").alias("group_before"),
    )
    asked = pl.coalesce("power_limit_w", pl.col("inventory_limit_w").cast(pl.Float64)).alias("power_limit_w")
    base = rows.select("model", "memory_total_bytes", asked, "mig_enabled").select(peer_group()).to_series()
    group, same = kinds.group_of(pl.col("base_group"), pl.col("group_before"))
    rows = rows.with_columns(base.alias("base_group")).with_columns(
        group, *(pl.when(same).then(name).otherwise(0).cast(pl.UInt32).alias(name) for name in ("kind",))
    )
    if not step.whole:  # others' speeds are not computed again in this step, so nobody changes sides
        rows = rows.with_columns(pl.coalesce("group_before", "peer_group").alias("peer_group"))
    return rows.select(step.gpus.drop("told_node").columns)


def _seen(rows: pl.DataFrame, step: Step) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows brought up to the window, and the window's rows with what their comparison needs."""
    assert step.windows is not None  # noqa: S101 - the caller's branch
    busy = pl.col("busy_samples") > 0
    latest = step.windows.select(
        "gpu_uuid",
        pl.lit(value=True).alias("_here"),
        (pl.col("counter_resets") > 0).alias("_reset"),
        pl.when(busy).then("pcie_link_gen").cast(pl.Float64).alias("_gen"),
        pl.when(busy).then("pcie_link_width").cast(pl.Float64).alias("_width"),
    )
    here = pl.col("_here").is_not_null()
    gap = step.window_start_ns - pl.col("window_start_ns")
    in_a_row = gap == round(step.window_s * 1e9)
    run = pl.when(in_a_row).then(pl.col("run") + 1).otherwise(1).cast(pl.UInt32)
    # What happened in this very window may have come after the reset: only older findings are healed.
    healed = pl.max_horizontal("reset_ns", pl.lit(step.window_start_ns - 1))
    rows = rows.join(latest, on="gpu_uuid", how="left", maintain_order="left")
    rows = rows.with_columns(
        pl.when(here).then(run).otherwise("run").alias("run"),
        pl.when(here).then(step.window_start_ns).otherwise("window_start_ns").alias("window_start_ns"),
        pl.when(here).then(step.window_s).otherwise("window_s").alias("window_s"),
        pl.max_horizontal("max_pcie_gen", "_gen").alias("max_pcie_gen"),
        pl.max_horizontal("max_pcie_width", "_width").alias("max_pcie_width"),
        pl.when("_reset").then(healed).otherwise("reset_ns").alias("reset_ns"),
    ).drop("_here", "_reset", "_gen", "_width")
    extra = rows.select("gpu_uuid", "peer_group", "max_pcie_gen", "max_pcie_width")
    slots = step.inventory.select("gpu_uuid", "slot", "power_limit_default_w")
    seen = step.windows.join(extra, on="gpu_uuid", maintain_order="left")
    return rows, seen.join(slots, on="gpu_uuid", how="left", maintain_order="left")


def _findings(
    seen: pl.DataFrame, speeds_now: pl.DataFrame, rows: pl.DataFrame, step: Step, *, limits: Thresholds, complete: bool
) -> pl.DataFrame:
    """The window's findings; a GPU that is not there although the window is whole delivered none of its samples."""
    judged = seen.with_columns(speeds_now[name] for name in ("log_speed", "silicon_log_speed", "waiting", "contended"))
    found = conditions(judged, limits=limits, complete=complete)
    found = found.hstack(odd_combinations(judged.with_columns(speeds_now["eligible"]), chance=limits.odd_chance))
    if not complete:
        return found
    absent = rows.filter(step.absent()).select(
        "gpu_uuid", pl.lit(value=True).alias("low_completeness"), pl.lit(0.0).alias("low_completeness_value")
    )
    return pl.concat([found, absent], how="diagonal")


def _few_peers(rows: pl.DataFrame, speeds_now: pl.DataFrame) -> pl.DataFrame:
    latest = speeds_now.filter("eligible").select("gpu_uuid", pl.col("few_peers").alias("_few"))
    rows = rows.join(latest, on="gpu_uuid", how="left", maintain_order="left")
    return rows.with_columns(pl.coalesce("_few", "few_peers").alias("few_peers")).drop("_few")


def _resummarised(summaries: pl.DataFrame, results: pl.DataFrame, step: Step, limits: Thresholds) -> pl.DataFrame:
    """Summaries with those of the GPUs that have new results made again."""
    touched = step.results.select("gpu_uuid").unique()
    again = measured.summarise(
        results.join(touched, on="gpu_uuid", how="semi", maintain_order="left"), half_life_s=limits.result_half_life_s
    )
    kept = summaries.join(touched, on="gpu_uuid", how="anti", maintain_order="left")
    return pl.concat([kept, again]).sort(measured.SERIES)


def _judge_speed(
    rows: pl.DataFrame, known: pl.DataFrame, speeds_now: pl.DataFrame | None, step: Step, limits: Thresholds
) -> pl.DataFrame:
    """Each window with a speed and each new result is one judgement of the speed as it is now known."""
    own, whole = pl.col("scope") == "gpu", pl.col("scope") == "node"
    counts = [own.cast(pl.UInt32).alias("gpu_times"), whole.cast(pl.UInt32).alias("node_times")]
    counted = [step.results.select("gpu_uuid", *counts, pl.lit(None, dtype=pl.Float64).alias("log_speed"))]
    if speeds_now is not None:
        told = speeds_now.filter(pl.col("log_speed").is_not_null())
        one = [pl.lit(times, dtype=pl.UInt32).alias(name) for name, times in (("gpu_times", 1), ("node_times", 0))]
        counted.append(told.select("gpu_uuid", *one, "log_speed"))
    # With both in one step the results decide: they are the better evidence.
    itself = pl.when(pl.col("log_speed").is_not_null().all()).then(pl.col("log_speed").first()).alias("log_speed")
    new = pl.concat(counted).group_by("gpu_uuid").agg(pl.sum("gpu_times", "node_times"), itself)
    # Results of a GPU that say nothing but its node's judge the node.
    shared = known.filter(own).group_by("gpu_uuid").agg((pl.col("source") == "node").all().alias("shared"))
    new = new.join(shared, on="gpu_uuid", how="left").with_columns(
        pl.when("shared").then(pl.col("gpu_times") + pl.col("node_times")).otherwise("node_times").alias("node_times")
    )
    if new.is_empty():
        return rows
    found = slow_findings(known, rows, new, limits=limits)
    return judge_fast(judge(rows, found, limits=limits), found, limits=limits)


def _fresh(rows: pl.DataFrame, summaries: pl.DataFrame, step: Step, limits: Thresholds) -> pl.DataFrame:
    """`stale` moved with time; without telemetry a GPU is known by its results, or its node's, for a while."""
    newest = summaries.group_by("gpu_uuid").agg(pl.col("newest_ns").max())
    rows = rows.join(newest, on="gpu_uuid", how="left", maintain_order="left")
    measured_s = (step.as_of_ns - pl.col("newest_ns")) / 1e9
    by_results = (measured_s > limits.result_fresh_s).fill_null(value=True)
    silent_s = (step.as_of_ns - pl.col("window_start_ns")) / 1e9 - pl.col("window_s")
    by_windows = silent_s > limits.stale_windows * pl.col("window_s")
    unheard = pl.col("window_start_ns") == 0
    if step.now_ns is None:
        stale = pl.when(unheard).then(by_results).otherwise("stale")
    else:
        stale = pl.when(unheard).then(by_results).otherwise(by_windows)
    return rows.with_columns(stale.alias("stale")).drop("newest_ns")


def _published(
    state: State, rows: pl.DataFrame, step: Step, *, telemetry: pl.DataFrame, results: pl.DataFrame,
    summaries: pl.DataFrame, known: pl.DataFrame, held: pl.DataFrame, limits: Thresholds, policy: Policy,
    topology: pl.DataFrame | None,
) -> tuple[State, Scored]:  # fmt: skip
    """Verdicts on the GPUs in question; rows for those with news."""
    rows = rows.join(step.touched, on="gpu_uuid", how="left", maintain_order="left").with_columns(
        pl.max_horizontal("as_of_ns", "touched_ns").alias("as_of_ns")
    )
    news = pl.col("touched_ns").is_not_null() | step.absent()
    news = news | pl.col("gpu_uuid").is_in(_differing(state.holds, held).implode())
    news = news | (pl.col("breaker_ns") == safety.LET_THROUGH)
    judged = rows if step.whole or step.now_ns is not None else rows.filter(news)
    told = reasons(
        judged, holds=held, speeds=known, missing=step.missing, limits=limits, policy=policy, topology=topology,
        everyone=rows, drivers=odd_drivers(step.inventory),
    )  # fmt: skip
    primary = _primary(known, rows)
    verdict = verdicts(judged, told, evidence=primary, limits=limits)
    now = judged.join(verdict, on="gpu_uuid", suffix="_now", maintain_order="left")
    now = now.join(primary, on="gpu_uuid", how="left", suffix="_now", maintain_order="left")
    now = now.join(step.before, on="gpu_uuid", how="left", maintain_order="left")
    decided = safety.decide(now, rows, holds=held, clock_ns=step.clock_ns, limits=limits)
    now = decided.rows
    drift = ((pl.col("speed_now") - pl.col("speed")).abs() > SPEED_DRIFT) | (
        pl.col("speed_now").is_null() != pl.col("speed").is_null()
    )
    changed = (
        news
        | drift.fill_null(value=False)
        | (pl.col("codes_now") != pl.col("codes"))
        | pl.col("tier_now").ne_missing(pl.col("tier"))
        | pl.any_horizontal(
            pl.col(name).ne_missing(pl.col(f"{name}_before"))
            for name in ("node", "peer_group", "power_limit_w", "stale")
        )
    )
    caused = pl.lit(step.window_end_ns) if step.windows is not None else pl.col("touched_ns").fill_null(step.as_of_ns)
    moved = pl.col("tier_now").ne_missing(pl.col("tier"))
    public = now.filter(changed.fill_null(value=True)).with_columns(
        pl.when(moved).then(caused).otherwise("tier_since_ns").alias("tier_since_ns"),
        caused.alias("caused_ns"),
        pl.col("tier").alias("tier_before"),
        pl.col("tier_now").alias("tier"),
        pl.col("codes_now").alias("codes"),
        pl.col("speed_now").alias("speed"),
    )
    kept = public.select("gpu_uuid", "tier", "tier_since_ns", "codes", *safety.MEMORY)
    latest = rows.drop("touched_ns").update(kept, on="gpu_uuid")
    speed = public.select("gpu_uuid", pl.col("speed").alias("_speed"), pl.lit(value=True).alias("_told"))
    latest = latest.join(speed, on="gpu_uuid", how="left", maintain_order="left")
    latest = latest.with_columns(pl.when("_told").then("_speed").otherwise("speed").alias("speed")).drop(
        "_speed", "_told"
    )
    after = State(
        gpus=latest, telemetry=telemetry, results=results, holds=held, summaries=summaries, speeds=known, limits=limits
    )
    return after, Scored(
        scores=scores_of(public, after),
        transitions=transitions_of(public),
        fleet=("breaker_open",) if decided.open else (),
    )


def _differing(before: pl.DataFrame, after: pl.DataFrame) -> pl.Series:
    """GPUs whose holds are no longer the same."""
    if before.equals(after):
        return pl.Series("gpu_uuid", [], dtype=pl.String)
    columns = list(before.columns)
    gone = before.join(after, on=columns, how="anti")
    come = after.join(before, on=columns, how="anti")
    return pl.concat([gone, come])["gpu_uuid"].unique()


def _primary(known: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """One row per GPU with evidence: its primary class, speed and interval there, and how many peers have some too."""
    rows = known.filter(pl.col("scope") == "gpu").join(gpus.select("gpu_uuid", "peer_group"), on="gpu_uuid")
    rows = rows.with_columns(
        pl.len().over("peer_group", "workload_class").cast(pl.UInt32).alias("peers"),
        (pl.col("samples") + pl.col("results")).alias("weight_of_evidence"),
    )
    first = rows.sort("gpu_uuid", "weight_of_evidence", "workload_class", descending=[False, True, False])
    return first.unique("gpu_uuid", keep="first", maintain_order=True).select(
        "gpu_uuid", "workload_class", "peers", "weight_of_evidence",
        *(pl.col(name).round(6) for name in ("speed", "low", "high")),
        pl.col("samples").alias("evidence"),
    )  # fmt: skip
