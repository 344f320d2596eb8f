"""The scorer as a function: a state and what is new in, a state and what to publish out.

To add evidence: a module with estimates, joined in `state.speeds`. To add a finding: `analytics/conditions.py`.
"""

from dataclasses import dataclass, replace

import polars as pl

from analytics import detection, evidence, holds, kinds, measured, safety
from analytics.conditions import conditions
from analytics.equal_work import at_equal_work
from analytics.frames import schema
from analytics.inputs import Step, check, read_step
from analytics.keys import KEY, beside, by_gpu
from analytics.news import differing, primary_of, remembered, with_news
from analytics.oddity import odd_combinations
from analytics.peers import GROUPED_BY, peer_group
from analytics.policy import DEFAULT, Policy
from analytics.publish import scores_of, transitions_of
from analytics.speed import window_speed
from analytics.state import State, empty, forget, restore, speeds, under
from analytics.thresholds import Thresholds
from analytics.tiers import judge, judge_fast, slow_findings
from analytics.verdicts import reasons, verdicts
from telemetry.tables import EVENTS, SCORES, TRANSITIONS

__all__ = ["Scored", "State", "apply", "empty", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What a step publishes: rows of SCORES for GPUs with news, rows of TRANSITIONS for tiers that changed.

    `fleet`: reason codes of the fleet as a whole: `breaker_open` while demotions are held.
    """

    public: pl.DataFrame | None = None
    after: State | None = None
    transitions: pl.DataFrame
    fleet: tuple[str, ...] = ()

    @property
    def scores(self) -> pl.DataFrame:
        """Rows of SCORES; made when asked for, since the state in them is long: ask once."""
        if self.public is None or self.after is None:
            return pl.DataFrame(schema=schema(SCORES))
        return scores_of(self.public, self.after)


NOTHING = Scored(transitions=pl.DataFrame(schema=schema(TRANSITIONS)))


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
        return state, NOTHING
    before, state = state, step.state
    rows = safety.reset(_placed(step, same_book=step.book is before.book), events)
    judged, telemetry, speeds_now = state.judged, state.telemetry, None
    if step.windows is not None:
        rows, seen = _seen(rows, step.windows, step)
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
            judged,
            followed.telemetry,
            seen.with_columns(speeds_now["eligible"]),
            window_start_ns=step.window_start_ns,
            window_s=step.window_s,
        )
        rows, judged, telemetry = sorted_.gpus, sorted_.judged, sorted_.telemetry
        findings = _findings(seen, speeds_now, step, limits=limits, complete=complete)
        findings = beside(findings, followed.findings)
        judged = judge(judged, findings, limits=limits)
        rows = _few_peers(rows, speeds_now)
    results = measured.add(state.results, step.results, keep=int(limits.keep_results))
    summaries = state.summaries
    if not step.results.is_empty():
        summaries = _resummarised(summaries, results, step, limits)
    known = state.speeds
    if step.whole:
        known = speeds(telemetry=telemetry, summaries=summaries, gpus=rows, limits=limits)
    rows, judged = _judge_speed(rows, judged, known, speeds_now, step, limits)
    rows = _fresh(rows, summaries, step, limits)
    held = holds.cleared(holds.counted(holds.merge(state.holds, step.holds), xid_policy))
    held = safety.tiers_at(held, rows)
    held = holds.node_wide(held, step.node_gpus, burst_s=limits.burst_s)
    held = holds.standing(held, rows, now_ns=step.clock_ns, limits=limits, policy=xid_policy)
    after = State(
        gpus=rows,
        uuids=state.uuids,
        judged=judged,
        telemetry=telemetry,
        results=results,
        holds=held,
        summaries=summaries,
        speeds=known,
        limits=limits,
        book=step.book if step.whole else before.book,  # the next whole step is to see what is new in it
    )
    return _published(state, after, step, policy=xid_policy, topology=topology)


def _cleared(state: State, events: pl.DataFrame) -> State:
    """The state after operators cleared GPUs; an event that was seen before clears nothing."""
    clear = events.filter(pl.col("kind") == "operator_clear")
    if clear.is_empty():
        return state
    named = by_gpu(clear.filter(pl.col("gpu_uuid") != "").select("gpu_uuid", "time_ns"), state.uuids)
    whole = clear.filter(pl.col("gpu_uuid") == "").select("node", "time_ns").join(
        state.gpus.select("gpu", "node"), on="node"
    )  # fmt: skip
    told = pl.concat([named, whole.select("gpu", "time_ns")])
    seen = state.holds.filter(pl.col("code") == "operator_clear").select("gpu", pl.col("time_ns").alias("seen_ns"))
    new = told.join(seen, on="gpu", how="left").filter(
        pl.col("seen_ns").is_null() | (pl.col("seen_ns") < pl.col("time_ns"))
    )
    return forget(state, new["gpu"].unique()) if len(new) else state


def _placed(step: Step, *, same_book: bool) -> pl.DataFrame:
    """Rows with power limit and peer group as the inventory and the window say now.

    `same_book`: the inventory and everyone's row are what they were, so that only new limits make new groups.
    """
    rows = step.state.gpus
    if step.windows is not None:
        latest = step.windows.select("gpu", pl.col("power_limit_w").cast(pl.Float64).alias("_limit"))
        rows = beside(rows, latest)
        rows = rows.with_columns(pl.coalesce("_limit", "power_limit_w").alias("power_limit_w")).drop("_limit")
    before = pl.lit(step.before["power_limit_w_before"])
    moved = pl.col("peer_group").is_null() | pl.col("power_limit_w").ne_missing(before)
    moved = moved | ((pl.col("kind") == 1) != pl.col("peer_group").str.ends_with(kinds.SUFFIX))
    if same_book and not rows.select(moved.any()).item():
        return rows
    inventory = step.book.rows
    limit = pl.coalesce("power_limit_w", pl.lit(inventory["inventory_limit_w"]).cast(pl.Float64))
    parts = [rows.select(limit.alias("power_limit_w")).to_series(), *(inventory[name] for name in GROUPED_BY)]
    base = pl.DataFrame(parts).select(peer_group()).to_series()
    unlisted = pl.lit(inventory["inventory_node"]).is_null() & pl.col("peer_group").is_not_null()
    known = pl.when(unlisted).then(pl.col("peer_group").str.strip_suffix(kinds.SUFFIX)).otherwise(pl.lit(base))
    rows = rows.with_columns(known.alias("base_group"))
    group, same = kinds.group_of(pl.col("base_group"), pl.col("peer_group"))
    if not step.whole:  # others' speeds are not computed again in this step, so nobody changes sides
        group = pl.coalesce("peer_group", group)
    kind = pl.when(same).then("kind").otherwise(0).cast(pl.UInt32)
    return rows.with_columns(group.alias("peer_group"), kind.alias("kind")).drop("base_group")


def _seen(rows: pl.DataFrame, windows: pl.DataFrame, step: Step) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows brought up to the window, and the window's rows with what their comparison needs."""
    busy = pl.col("busy_samples") > 0
    latest = windows.select(
        "gpu",
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
    rows = beside(rows, latest)
    rows = rows.with_columns(
        pl.when(here).then(run).otherwise("run").alias("run"),
        pl.when(here).then(step.window_start_ns).otherwise("window_start_ns").alias("window_start_ns"),
        pl.when(here).then(step.window_s).otherwise("window_s").alias("window_s"),
        pl.max_horizontal("max_pcie_gen", "_gen").alias("max_pcie_gen"),
        pl.max_horizontal("max_pcie_width", "_width").alias("max_pcie_width"),
        pl.when("_reset").then(healed).otherwise("reset_ns").alias("reset_ns"),
    ).drop("_here", "_reset", "_gen", "_width")
    extra = rows.select("gpu", "peer_group", "max_pcie_gen", "max_pcie_width").hstack(
        step.book.rows.select("slot", "power_limit_default_w")
    )
    return rows, beside(windows, extra)


def _findings(
    seen: pl.DataFrame, speeds_now: pl.DataFrame, step: Step, *, limits: Thresholds, complete: bool
) -> pl.DataFrame:
    """The window's findings; a GPU that is not there although the window is whole delivered none of its samples."""
    judged = seen.with_columns(speeds_now[name] for name in ("log_speed", "silicon_log_speed", "waiting", "contended"))
    found = conditions(judged, limits=limits, complete=complete)
    found = found.hstack(odd_combinations(judged.with_columns(speeds_now["eligible"]), chance=limits.odd_chance))
    if not complete or step.absent.is_empty():
        return found
    absent = step.absent.to_frame().select(
        "gpu", pl.lit(value=True).alias("low_completeness"), pl.lit(0.0).alias("low_completeness_value")
    )
    return pl.concat([found, absent], how="diagonal").sort("gpu")


def _few_peers(rows: pl.DataFrame, speeds_now: pl.DataFrame) -> pl.DataFrame:
    latest = speeds_now.filter("eligible").select("gpu", pl.col("few_peers").alias("_few"))
    rows = beside(rows, latest)
    return rows.with_columns(pl.coalesce("_few", "few_peers").alias("few_peers")).drop("_few")


def _resummarised(summaries: pl.DataFrame, results: pl.DataFrame, step: Step, limits: Thresholds) -> pl.DataFrame:
    """Summaries with those of the GPUs that have new results made again."""
    touched = step.results.select("gpu").unique()
    again = measured.summarise(
        results.join(touched, on="gpu", how="semi", maintain_order="left"), half_life_s=limits.result_half_life_s
    )
    kept = summaries.join(touched, on="gpu", how="anti", maintain_order="left")
    return pl.concat([kept, again]).sort(measured.SERIES)


def _judge_speed(
    rows: pl.DataFrame, judged: pl.DataFrame, known: pl.DataFrame, speeds_now: pl.DataFrame | None, step: Step,
    limits: Thresholds,
) -> tuple[pl.DataFrame, pl.DataFrame]:  # fmt: skip
    """Each window with a speed and each new result is one judgement of the speed as it is now known."""
    new = _new_evidence(known, speeds_now, step)
    if new.is_empty():
        return rows, judged
    found = slow_findings(known, judged, new, limits=limits)
    return judge_fast(rows, found, limits=limits), judge(judged, found, limits=limits)


def _new_evidence(known: pl.DataFrame, speeds_now: pl.DataFrame | None, step: Step) -> pl.DataFrame:
    """gpu, gpu_times, node_times, log_speed: how often the speed of a GPU, or of its node, is to be judged."""
    told = pl.DataFrame(schema={"gpu": KEY, "log_speed": pl.Float64})
    if speeds_now is not None:
        told = speeds_now.filter(pl.col("log_speed").is_not_null()).select("gpu", "log_speed")
    times = [pl.lit(n, dtype=pl.UInt32).alias(name) for name, n in (("gpu_times", 1), ("node_times", 0))]
    told = told.select("gpu", *times, "log_speed")
    if step.results.is_empty():
        return told
    own, whole = pl.col("scope") == "gpu", pl.col("scope") == "node"
    counts = [own.cast(pl.UInt32).alias("gpu_times"), whole.cast(pl.UInt32).alias("node_times")]
    counted = [step.results.select("gpu", *counts, pl.lit(None, dtype=pl.Float64).alias("log_speed")), told]
    # With both in one step the results decide: they are the better evidence.
    itself = pl.when(pl.col("log_speed").is_not_null().all()).then(pl.col("log_speed").first()).alias("log_speed")
    new = pl.concat(counted).group_by("gpu").agg(pl.sum("gpu_times", "node_times"), itself).sort("gpu")
    # Results of a GPU that say nothing but its node's judge the node.
    shared = known.filter(own).group_by("gpu").agg((pl.col("source") == "node").all().alias("shared"))
    return beside(new, shared).with_columns(
        pl.when("shared").then(pl.col("gpu_times") + pl.col("node_times")).otherwise("node_times").alias("node_times")
    )


def _fresh(rows: pl.DataFrame, summaries: pl.DataFrame, step: Step, limits: Thresholds) -> pl.DataFrame:
    """`stale` moved with time; without telemetry a GPU is known by its results, or its node's, for a while."""
    newest = summaries.group_by("gpu").agg(pl.col("newest_ns").max()).sort("gpu")
    rows = beside(rows, newest)
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
    state: State, after: State, step: Step, *, policy: Policy, topology: pl.DataFrame | None
) -> tuple[State, Scored]:
    """Verdicts on the GPUs in question; rows for those with news."""
    limits = after.limits
    absent = step.absent.to_frame().with_columns(_absent=pl.lit(value=True))
    differs = differing(state.holds, after.holds).with_columns(_differs=pl.lit(value=True))
    rows = after.gpus.hstack(step.before)
    for told in (step.touched, absent, differs):
        rows = beside(rows, told)
    news = pl.any_horizontal(pl.col(name).is_not_null() for name in ("touched_ns", "_absent", "_differs"))
    rows = rows.with_columns(
        pl.max_horizontal("as_of_ns", "touched_ns").alias("as_of_ns"),
        (news | (pl.col("breaker_ns") == safety.LET_THROUGH)).alias("news"),
    ).drop("_absent", "_differs")
    asked = rows if step.whole or step.now_ns is not None else rows.filter("news")
    told = reasons(
        asked, judged=after.judged, holds=after.holds, speeds=after.speeds, missing=step.book.missing,
        limits=limits, policy=policy, topology=topology, everyone=rows,
        drivers=step.book.drivers,
    )  # fmt: skip
    primary = primary_of(after.speeds)
    verdict = verdicts(asked, told, evidence=primary, limits=limits)
    now = asked.hstack(verdict.drop("gpu").rename({name: f"{name}_now" for name in ("tier", "codes")}))
    now = beside(now, primary.rename({"speed": "speed_now"}))
    decided = safety.decide(now, rows, holds=after.holds, clock_ns=step.clock_ns, limits=limits)
    public = with_news(decided.rows, step)
    after = replace(after, gpus=remembered(rows, public))
    scored = Scored(
        public=public, after=after, transitions=transitions_of(public), fleet=("breaker_open",) if decided.open else ()
    )
    return after, scored
