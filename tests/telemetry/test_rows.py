"""Rows of published tables from strangers: accepted whole, or refused with the field's name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.errors import BadInput
from telemetry.records import Event, GpuInventory, Job, Measurement, NodeInventory, NodeJobs
from telemetry.rows import check_event, check_inventory, check_jobs, check_measurement, check_row, to_json
from telemetry.tables import MEASUREMENTS, TABLES

EVENT = {"time_ns": 1, "node": "n1", "gpu_uuid": "GPU-a", "kind": "xid", "code": 79, "detail": "off the bus"}
MEASUREMENT = {
    "time_ns": 1,
    "scope": "gpu",
    "subject": "GPU-a",
    "name": "sgemm",
    "workload_class": "compute",
    "value": 2441.8,
    "unit": "ms",
    "higher_is_better": False,
}


def test_what_a_collector_writes_is_accepted() -> None:
    """Records survive the way through JSON and back into checked rows."""
    event = Event(time_ns=5, node="n1", gpu_uuid="", kind="driver_reload")
    assert check_event(json.loads(to_json(event)))["kind"] == "driver_reload"
    measurement = Measurement(**MEASUREMENT)
    assert check_measurement(json.loads(to_json(measurement)))["value"] == 2441.8
    inventory = NodeInventory(
        node="n1", seen_ns=7, gpus=(GpuInventory(gpu_uuid="GPU-a", slot=3),), place=(("rack", "r1"),)
    )
    node, gpus = check_inventory(json.loads(to_json(inventory)))
    assert node["place"] == [["rack", "r1"]]
    assert node["seen_gpus"] == 1
    assert gpus[0]["slot"] == 3
    assert gpus[0]["node"] == "n1"
    running = Job(gpu_uuid="GPU-a", job_id="7", source="slurm", started_ns=3, workload_class="memory")
    told, rows = check_jobs(json.loads(to_json(NodeJobs(node="n1", seen_ns=7, jobs=(running,)))))
    assert (told, rows[0]["node"], rows[0]["seen_ns"], rows[0]["ended"]) == ("n1", "n1", 7, False)
    assert check_jobs({"node": "n1", "seen_ns": 7, "jobs": []}) == ("n1", [])


JOB = {"gpu_uuid": "GPU-a", "job_id": "7", "source": "slurm", "started_ns": 3}


def test_a_job_may_have_been_seen_before_its_message() -> None:
    """Its own time counts, where its source could not look again; one after the message's is refused."""
    _, rows = check_jobs({"node": "n1", "seen_ns": 9, "jobs": [JOB | {"seen_ns": 5}, JOB | {"job_id": "8"}]})
    assert [row["seen_ns"] for row in rows] == [5, 9]


@pytest.mark.parametrize(
    ("jobs", "rule"),
    [
        ([JOB | {"workload_class": "gaming"}], "unknown_class"),
        ([JOB | {"source": "cron"}], "unknown_source"),
        ([JOB | {"ended": "yes"}], "wrong_type"),
        ([JOB | {"job_id": ""}], "empty_name"),
        ([JOB | {"started_ns": None}], "missing_field"),
        ([JOB | {"processes": -1}], "out_of_range"),
        ([JOB | {"seen_ns": 8}], "out_of_range"),
        ([JOB | {"seen_ns": "now"}], "wrong_type"),
        ([JOB, JOB], "repeated_job"),
        ([7], "wrong_type"),
        ({"7": JOB}, "wrong_type"),
    ],
)
def test_bad_jobs_are_refused(jobs: Any, rule: str) -> None:
    """One bad job refuses its message: a snapshot with a hole in it would end a job that runs."""
    with pytest.raises(BadInput) as refused:
        check_jobs({"node": "n1", "seen_ns": 7, "jobs": jobs})
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    "message", [[], {"node": "n1", "jobs": [JOB]}, {"seen_ns": 7, "jobs": []}, {"node": "", "jobs": []}]
)
def test_jobs_of_nobody_or_no_time_are_refused(message: Any) -> None:
    """Node and time are needed."""
    with pytest.raises(BadInput):
        check_jobs(message)


@pytest.mark.parametrize(
    ("change", "rule", "field"),
    [
        ({"time_ns": None}, "missing_field", "time_ns"),
        ({"time_ns": "yesterday"}, "wrong_type", "time_ns"),
        ({"time_ns": 2**63}, "out_of_range", "time_ns"),
        ({"time_ns": 1.5}, "wrong_type", "time_ns"),
        ({"time_ns": True}, "wrong_type", "time_ns"),
        ({"node": 7}, "wrong_type", "node"),
        ({"node": "x" * 5_000}, "bad_text", "node"),
        ({"node": "n\x00"}, "bad_text", "node"),
        ({"kind": None}, "missing_field", "kind"),
        ({"code": float("nan")}, "not_finite", "code"),
    ],
)
def test_a_bad_event_is_refused_by_name(change: dict[str, Any], rule: str, field: str) -> None:
    """The refusal names the rule and the column."""
    with pytest.raises(BadInput, match=field) as refused:
        check_event(EVENT | change)
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"value": 0}, "out_of_range"),
        ({"value": float("inf")}, "not_finite"),
        ({"workload_class": "gaming"}, "unknown_class"),
        ({"scope": "rack"}, "unknown_scope"),
        ({"subject": ""}, "empty_name"),
        ({"higher_is_better": "no"}, "wrong_type"),
        ({"evidence": [1]}, "wrong_type"),
    ],
)
def test_a_bad_measurement_is_refused(change: dict[str, Any], rule: str) -> None:
    """Nothing that could bend a score gets in."""
    with pytest.raises(BadInput) as refused:
        check_measurement(MEASUREMENT | change)
    assert refused.value.rule == rule


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {"node": "n1", "seen_ns": 1},
        {"node": "n1", "seen_ns": 1, "gpus": ["GPU-a"]},
        {"node": "n1", "seen_ns": 1, "gpus": [], "place": [["rack"]]},
        {"node": "n1", "seen_ns": 1, "gpus": [{"gpu_uuid": "GPU-a"}, {"gpu_uuid": "GPU-a"}]},
    ],
)
def test_a_bad_inventory_is_refused(message: Any) -> None:
    """A malformed inventory is one clear error, whatever its shape."""
    with pytest.raises(BadInput):
        check_inventory(message)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(MEASUREMENTS.names) | st.text(max_size=8), ANYTHING))
def test_no_json_breaks_the_check(message: dict[str, Any]) -> None:
    """Whatever JSON holds, the answer is a row or a BadInput."""
    for table in TABLES.values():
        try:
            row = check_row(table, message)
        except BadInput:
            continue
        assert tuple(row) == table.names
