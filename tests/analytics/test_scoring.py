"""The scorer as a function: restarts, repetition, order, names, units, one wild node.

To add a property: a sentence, two runs that must agree.
"""

import random
from typing import Any

import orjson
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples import START_NS, WINDOW_NS, windows
from support.scorer import Scorer, busy_rows, fleet

from analytics import scoring
from analytics.frames import frame, schema
from analytics.publish import transition_id
from analytics.state import VERSION
from telemetry.tables import EVENTS, GPUS, MEASUREMENTS, NODES, SCORES, TRANSITIONS

PUBLIC = [name for name in SCORES.names if name != "state"]
SPEEDS = ["speed", "speed_low", "speed_high"]


def eventful(
    seed: int, *, gpus: pl.DataFrame | None = None, restart_at: frozenset[int] = frozenset(), steps: int = 9
) -> Scorer:
    """A fleet with noise, faults, events, results, gaps and silence, in an order that the seed decides."""
    rng = random.Random(seed)
    scorer = Scorer(fleet(3, 4) if gpus is None else gpus)
    names = scorer.gpus["gpu_uuid"].to_list()
    for at in range(steps):
        rows = busy_rows(scorer.gpus)
        for row in rows:
            row["effective_clock_mhz"] = 1400.0 * rng.gauss(1, 0.006)
            row["temperature_c"] = rng.uniform(50, 75)
            row["hw_thermal_ratio"] = rng.choice([0.0, 0.0, 0.0, 0.3])
            row["ecc_uncorrected"] = rng.choice([0.0] * 40 + [1.0])
            row["counter_resets"] = rng.choice([0] * 20 + [3])
            row["workload_class"] = rng.choice(["compute", "compute", "mixed"])
        rows[1]["effective_clock_mhz"] *= 0.9
        scorer.window([row for row in rows if rng.random() > 0.1], at=at, complete=rng.random() > 0.2)
        if at in restart_at:
            scorer.restart()
        if rng.random() < 0.4:
            kind, code = rng.choice(
                [("xid", 79), ("xid", 63), ("gpu_lost", 0), ("driver_reload", 0), ("collector_hang", 0)]
            )
            scorer.events({"kind": kind, "code": code, "gpu_uuid": rng.choice(names), "node": "n0"}, at=at + 1.1)
        if rng.random() < 0.5:
            scope = rng.choice(["gpu", "gpu", "node"])
            subjects = names if scope == "gpu" else ["n0", "n1", "n2"]
            scorer.measurements(
                *(
                    {"scope": scope, "subject": s, "value": rng.gauss(100, 1), "time_ns": START_NS + at * WINDOW_NS + i}
                    for i, s in enumerate(subjects)
                )
            )
    return scorer


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sets(st.integers(0, 5), min_size=1, max_size=3))
def test_a_restart_from_the_published_scores_goes_on_as_if_never_stopped(seed: int, restarts: set[int]) -> None:
    """Scores, state and transitions are the same, to the last digit, wherever the scorer is killed."""
    straight = eventful(seed)
    broken = eventful(seed, restart_at=frozenset(restarts))
    assert broken.scores.equals(straight.scores)
    assert broken.transitions.equals(straight.transitions)
    for name in ("gpus", "telemetry", "results", "holds", "summaries", "speeds"):
        restored = getattr(scoring.restore(straight.scores), name)
        assert restored.equals(getattr(straight.state, name)), name


def test_a_restart_under_settings_of_ones_own_goes_on_as_if_never_stopped() -> None:
    """What the settings decide is computed again with them, not with the defaults."""
    outcomes = []
    for restart in (False, True):
        scorer = Scorer(fleet(1), result_half_life_s=60.0, min_peers=5.0, slow_high=0.9)
        for run in range(3):
            scorer.measurements(
                *(
                    {"subject": f"g0-{i}", "value": 100.0 + i * run, "time_ns": START_NS + run * 10**11}
                    for i in range(8)
                )
            )
            if restart:
                scorer.restart()
            scorer.window(busy_rows(scorer.gpus), at=run)
        outcomes.append(scorer.scores)
    assert outcomes[0].equals(outcomes[1])


def test_a_window_applied_twice_or_late_changes_nothing() -> None:
    """At least once on the wire is exactly once in the score."""
    scorer = eventful(1)
    state, before, published = scorer.state, scorer.scores, scorer.published
    for at in (5, 3):
        scorer.window(busy_rows(scorer.gpus, effective_clock_mhz=100.0), at=at)
    assert scorer.state is state
    assert scorer.scores.equals(before)
    assert scorer.published == published


def test_events_and_results_delivered_twice_count_once() -> None:
    """The log may repeat; the evidence may not."""
    scorer = Scorer(fleet(2))
    once = [{"subject": f"g0-{i}", "value": 100.0 + i, "time_ns": START_NS + 5} for i in range(8)]
    scorer.measurements(*once)
    scorer.events({"kind": "xid", "gpu_uuid": "g0-1", "code": 79}, at=1)
    before = scorer.scores
    scorer.measurements(*once, *once)
    scorer.events({"kind": "xid", "gpu_uuid": "g0-1", "code": 79}, at=1)
    assert scorer.scores.select(PUBLIC).equals(before.select(PUBLIC))
    assert len(scorer.transitions) == 1


def test_the_order_of_rows_and_the_names_of_gpus_do_not_matter() -> None:
    """The same fleet under other names, in another order, has the same scores."""
    inventory = fleet(3, 4)
    names = {gpu: f"x{hash_of(gpu)}" for gpu in inventory["gpu_uuid"]}
    renamed = inventory.with_columns(pl.col("gpu_uuid").replace(names))
    plain, other = Scorer(inventory), Scorer(renamed.reverse())
    for at in range(6):
        rows = busy_rows(inventory)
        for i, row in enumerate(rows):
            row["effective_clock_mhz"] = 1400.0 + 11 * ((i * 5 + at) % 12)
        rows[2]["effective_clock_mhz"] = 1100.0
        plain.window(rows, at=at)
        other.window([row | {"gpu_uuid": names[row["gpu_uuid"]]} for row in reversed(rows)], at=at)
    back = other.scores.with_columns(pl.col("gpu_uuid").replace({new: old for old, new in names.items()})).sort(
        "gpu_uuid"
    )
    assert back.select("gpu_uuid", "tier", "cause").equals(plain.scores.select("gpu_uuid", "tier", "cause"))
    for name in SPEEDS:
        assert back[name].to_list() == pytest.approx(plain.scores[name].to_list(), abs=2e-6)


def hash_of(name: str) -> int:
    """A name's place in an order that has nothing to do with the alphabet."""
    return sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 9973


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(50, 200), min_size=6, max_size=6), st.floats(1e-6, 1e6))
def test_the_unit_of_a_measurement_does_not_matter(values: list[float], factor: float) -> None:
    """Milliseconds or hours, TFLOPS or FLOPS."""

    def speeds(unit: float) -> list[float]:
        scorer = Scorer(fleet(1, 6))
        scorer.measurements(*({"subject": f"g0-{i}", "value": v * unit} for i, v in enumerate(values)))
        return scorer.scores["speed"].to_list()

    assert speeds(factor) == pytest.approx(speeds(1.0), abs=3e-6)


def test_bigger_may_be_better_or_worse_and_the_slow_one_is_the_same() -> None:
    """Time 110 against 100 and throughput 100 against 110 say the same of a GPU."""
    time, rate = Scorer(fleet(1)), Scorer(fleet(1))
    time.measurements(*({"subject": f"g0-{i}", "value": 110.0 if i == 0 else 100.0} for i in range(8)))
    rate.measurements(
        *({"subject": f"g0-{i}", "value": 100.0 if i == 0 else 110.0, "higher_is_better": True} for i in range(8))
    )
    assert time.row("g0-0")["speed"] == pytest.approx(100 / 110, abs=1e-6)
    assert time.scores["speed"].to_list() == pytest.approx(rate.scores["speed"].to_list(), abs=1e-6)


def test_one_wild_node_does_not_move_the_others() -> None:
    """A node whose clocks read anything at all leaves the speeds of the rest within half a per cent."""
    speeds = []
    for wild in (1400.0, 5.0, 4_900.0):
        scorer = Scorer(fleet(10))
        rows = [row | {"effective_clock_mhz": 1400.0 + 3 * (i % 7)} for i, row in enumerate(busy_rows(scorer.gpus))]
        for row in rows[:8]:
            row["effective_clock_mhz"] = wild
        scorer.window(rows, at=0)
        speeds.append(scorer.scores.filter(pl.col("node") != "n0")["speed"])
    assert (speeds[0] - speeds[1]).abs().max() < 0.005
    assert (speeds[0] - speeds[2]).abs().max() < 0.005


def test_results_of_a_node_never_single_out_a_gpu() -> None:
    """Eight GPUs of a slow node share its score and its reason; none differs from the others."""
    scorer = Scorer(fleet(6), breaker_ratio=0.2)
    for run in range(5):
        scorer.measurements(
            *(
                {
                    "scope": "node",
                    "subject": f"n{n}",
                    "name": "step",
                    "value": 130.0 if n == 0 else 100.0 + n / 10,
                    "time_ns": START_NS + run,
                }
                for n in range(6)
            )
        )
    slow = [scorer.row(f"g0-{i}") for i in range(8)]
    assert {row["tier"] for row in slow} == {"degraded"}
    assert {row["reasons"][0]["code"] for row in slow} == {"node_slow"}
    assert len({row["speed"] for row in slow}) == 1
    assert slow[0]["speeds"]["compute"]["source"] == "node"
    assert set(scorer.scores.filter(pl.col("node") != "n0")["tier"]) == {"standard"}


def test_measurements_and_telemetry_are_combined_and_disagreement_widens_the_interval() -> None:
    """A clock that looks fine does not talk a slow benchmark away."""
    scorer = Scorer(fleet(2))
    scorer.window(busy_rows(scorer.gpus), at=0)
    alone = scorer.row("g0-1")
    for run in range(4):
        scorer.measurements(
            *(
                {"subject": gpu, "value": {"g0-0": 115.0, "g0-2": 87.0}.get(gpu, 100.0), "time_ns": START_NS + run}
                for gpu in scorer.gpus["gpu_uuid"]
            )
        )
    slow, usual, fast = (scorer.row(f"g0-{i}") for i in range(3))
    assert usual["speeds"]["compute"]["source"] == "both"
    assert usual["speed_high"] - usual["speed_low"] < alone["speed_high"] - alone["speed_low"]
    assert slow["speed_high"] < 0.9
    assert fast["speed_high"] - fast["speed_low"] > 3 * (usual["speed_high"] - usual["speed_low"])


def test_a_first_sight_is_a_transition_only_where_it_is_bad_news() -> None:
    """A fleet that comes up floods nobody; a broken GPU is told."""
    scorer = Scorer(fleet(2))
    rows = busy_rows(scorer.gpus)
    rows[0]["row_remap_failed"] = True
    scorer.window(rows, at=0)
    assert scorer.transitions.select("gpu_uuid", "from_tier", "to_tier").rows() == [("g0-0", None, "quarantine")]
    row = scorer.transitions.row(0, named=True)
    assert row["transition_id"] == transition_id("g0-0", START_NS + WINDOW_NS, None, "quarantine")
    assert orjson.loads(row["reasons"])[0]["code"] == "row_remap_failed"


def test_rows_have_exactly_the_published_columns_and_types() -> None:
    """Also when nothing happens, and before anything has."""
    empty: dict[str, Any] = {
        "events": frame(EVENTS),
        "measurements": frame(MEASUREMENTS),
        "gpus": frame(GPUS),
        "nodes": frame(NODES),
    }
    state, out = scoring.apply(scoring.empty(), windows=None, window_start_ns=None, as_of_ns=START_NS, **empty)
    _, busy = scoring.apply(
        state, windows=windows([{"gpu_uuid": "a"}]), window_start_ns=None, as_of_ns=START_NS + WINDOW_NS, **empty
    )
    for scored in (out, busy):
        assert scored.scores.schema == pl.Schema(schema(SCORES))
        assert scored.transitions.schema == pl.Schema(schema(TRANSITIONS))
    assert (len(out.scores), len(busy.scores)) == (0, 1)


def test_a_state_that_is_missing_damaged_or_of_another_version_keeps_the_tier_and_starts_evidence_anew() -> None:
    """An upgrade does not acquit a quarantined GPU by forgetting it."""
    scorer = Scorer(fleet(2))
    rows = busy_rows(scorer.gpus)
    rows[0]["row_remap_failed"] = True
    scorer.window(rows, at=0)
    (judged,) = (text for text in scorer.scores["state"] if '"m":[' in text)
    saved = orjson.loads(judged)
    damaged = [saved | {"version": VERSION - 1}, {"version": VERSION, "gpu": {}}]
    damaged += [{name: value for name, value in saved.items() if name != lost} for lost in ("gpu", "m", "a", "v", "t")]
    damaged += [saved | {"m": saved["m"][1:]}, saved | {"t": None}]
    for text in (None, "{", "[]", '{"version":0}', *(orjson.dumps(one).decode() for one in damaged)):
        state = scoring.restore(scorer.scores.with_columns(pl.lit(text, dtype=pl.String).alias("state")))
        assert state.gpus["tier"].to_list() == scorer.scores["tier"].to_list()
        assert state.telemetry.is_empty()
        assert state.last_window_ns == START_NS


def test_frames_without_their_columns_and_rows_of_another_window_are_refused() -> None:
    """Wrong input is an error that names what is wrong."""
    scorer = Scorer(fleet(1))
    with pytest.raises(ValueError, match="busy_samples"):
        scorer.step(windows([{"gpu_uuid": "a"}]).drop("busy_samples"), start=START_NS)
    with pytest.raises(ValueError, match="holds rows of"):
        scorer.step(windows([{"gpu_uuid": "a"}]), start=START_NS + WINDOW_NS)
    with pytest.raises(ValueError, match="events lack"):
        scorer.step(None, events=frame(EVENTS).drop("kind"), as_of=START_NS)
