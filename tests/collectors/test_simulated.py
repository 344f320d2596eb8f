"""The simulated fleet: the same whatever the step, calibrated to a real cluster, right in what it counts and says.

To test a new kind of fault: its effect in `test_simulated_faults.py`.
"""

import csv
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_run import START_NS, Run, S, fleet

from collectors.simulated import Simulated
from collectors.simulated.faults import FAULTS
from collectors.simulated.fleet import BUILT_IN
from collectors.simulated.models import GROUPS, MODELS
from telemetry.codec import Encoder, check_body, decompress, parse_schema
from telemetry.errors import EndOfInput, NoData, SettingsError
from telemetry.metrics import METRICS, Kind
from telemetry.rows import check_event, check_inventory, check_measurement, to_json
from telemetry.tables import CLASSES

BUSY = {"name": "w", "class": "compute", "job_nodes": 2, "gap_every_s": 40, "gap_s": 5}
EVENTFUL = fleet(
    {"kind": "cooling", "start_s": 7, "select": {"gpu": "n1/1"}},
    {"kind": "drift", "start_s": 3, "ramp_s": 30, "select": {"gpu": "n2/0"}},
    {"kind": "gpu_swap", "start_s": 12, "size": 5, "select": {"gpu": "n3/2"}},
    {"kind": "ecc_corrected_storm", "start_s": 5, "end_s": 22, "select": {"gpu": "n4/3"}},
    {"kind": "frozen_values", "start_s": 9, "select": {"gpu": "n4/0"}},
    {"kind": "garbage_values", "size": 0.2, "select": {"gpu": "n1/3"}},
    {"kind": "pcie_replay_storm", "size": 3.3, "start_s": 4, "select": {"node": "n2"}},
    nodes=5,
    workloads=[BUSY],
    probes=[{"name": "gemm", "at_s": 13, "every_s": 11}],
)


def told(run: Run) -> dict[str, Any]:
    """Everything a run told of samples, comparable, GPU by GPU."""
    uuids = sorted({uuid for batch in run.batches for uuid in batch.gpus})
    metrics = sorted({metric for batch in run.batches for metric in batch.columns})
    return {
        uuid: (run.times(uuid).tobytes(), [run.values(uuid, metric).astype(np.float64).tobytes() for metric in metrics])
        for uuid in uuids
    }


@settings(max_examples=6, deadline=None)
@given(step=st.sampled_from([1, 3, 7, 20, 36]), parts=st.integers(1, 5))
def test_the_same_seed_gives_the_same_bytes_whatever_the_step_and_the_sharding(step: int, parts: int) -> None:
    """Agents that share a fleet, and a back-fill in large steps, tell what one agent at 10 s steps tells."""
    whole = Run(EVENTFUL, seconds=36, step_s=12)
    shards = [Run(EVENTFUL, seconds=36, step_s=step, shard=(i, parts)) for i in range(parts)]
    merged = {uuid: values for shard in shards for uuid, values in told(shard).items()}
    assert merged == told(whole)
    for what in ("events", "measurements", "inventory"):
        assert sorted(map(repr, (item for shard in shards for item in getattr(shard, what)))) == sorted(
            map(repr, getattr(whole, what))
        )


def test_another_seed_is_another_fleet() -> None:
    """Seeds differ in UUIDs and in values."""
    one, two = Run(fleet(), seconds=10), Run(fleet(), seconds=10, seed=2)
    assert not {uuid for b in one.batches for uuid in b.gpus} & {uuid for b in two.batches for uuid in b.gpus}
    power = [run.values(run.uuid("n1", 0), "power_w").tolist() for run in (one, two)]
    assert power[0] != power[1]


def test_the_calibrated_fleet_spreads_as_the_real_cluster_does(shared_data: Path) -> None:
    """Time, clock, temperature and power of SGEMM runs, their correlations and levels, against 194 real V100s."""
    with (shared_data / "longhorn" / "sgemm.csv").open() as file:
        real = [
            (row["uuid"], *(float(row[name]) for name in ("perf", "freq", "temp", "pwr")))
            for row in csv.DictReader(file)
        ]
    run = Run("longhorn-like", seconds=3_000, step_s=600, interval_s=10.0)
    simulated = [
        (m.subject, m.value, *(m.evidence[name] for name in ("sm_clock_mhz", "temperature_c", "power_w")))
        for m in run.measurements
    ]
    per_real, per_simulated = by_gpu(real), by_gpu(simulated)
    for column, (name, margin) in enumerate(
        (("time", 0.006), ("clock", 0.007), ("temperature", 0.09), ("power", 0.006))
    ):
        ours, theirs = (np.percentile(x[:, column], [5, 10, 25, 50, 75, 90, 95]) for x in (per_simulated, per_real))
        assert np.abs(ours / theirs - 1).max() < margin, (name, ours, theirs)
    for column in (0, 1):
        spread = robust_spread(per_simulated[:, column]) / robust_spread(per_real[:, column])
        assert 0.8 < spread < 1.2
    ours, theirs = np.corrcoef(per_simulated.T), np.corrcoef(per_real.T)
    assert ours[0, 1] < -0.85
    assert abs(ours[1, 2] - theirs[1, 2]) < 0.15
    assert (per_simulated[:, 3] < 300).all()
    gpu, node, rest = variance_shares(run)
    assert 0.90 < gpu < 0.98
    assert 0.02 < node < 0.09
    assert rest < 0.02


def test_the_hottest_of_the_calibrated_fleet_are_slow_though_their_median_clock_looks_fine() -> None:
    """As on the real cluster a few GPUs hide from the clock: hot, below the power cap, slow."""
    run = Run("longhorn-like", seconds=70, step_s=10)
    runs = by_gpu(
        [
            (m.subject, m.value, *(m.evidence[name] for name in ("sm_clock_mhz", "temperature_c", "power_w")))
            for m in run.measurements
        ]
    )
    expected = 2431.3 * (1365 / runs[:, 1]) ** 0.976
    hidden = runs[runs[:, 0] > 1.02 * expected]
    assert 1 <= len(hidden) <= 12
    assert (hidden[:, 2] >= 78).all()
    assert (hidden[:, 3] < 294).all()


def by_gpu(rows: list[Any]) -> Any:
    """Medians of each GPU's runs."""
    runs: dict[str, list[Any]] = {}
    for uuid, *values in rows:
        runs.setdefault(uuid, []).append(values)
    return np.array([np.median(np.array(values), axis=0) for values in runs.values()])


def robust_spread(values: Any) -> float:
    """Half of the distance from the 16th to the 84th percentile, relative to the median."""
    return float((np.percentile(values, 84) - np.percentile(values, 16)) / 2 / np.median(values))


def variance_shares(run: Run) -> tuple[float, float, float]:
    """Shares of GPU, node and run in the variance of log time, by moments."""
    logs: dict[str, dict[str, list[float]]] = {}
    for m in run.measurements:
        logs.setdefault(str(m.node), {}).setdefault(m.subject, []).append(float(np.log(m.value)))
    repeats = len(next(iter(next(iter(logs.values())).values())))
    within = float(np.mean([np.var(runs, ddof=1) for gpus in logs.values() for runs in gpus.values()]))
    means = [[float(np.mean(runs)) for runs in gpus.values()] for gpus in logs.values()]
    between = float(np.mean([np.var(gpus, ddof=1) for gpus in means]))
    nodes = float(np.var([np.mean(gpus) for gpus in means], ddof=1)) - between / len(means[0])
    gpu = between - within / repeats
    total = gpu + nodes + within
    return gpu / total, nodes / total, within / total


def test_values_are_in_range_and_counters_never_fall() -> None:
    """A fleet without faults gives only what the catalogue allows; counters agree with clock, power and reasons."""
    run = Run("small", seconds=60)
    uuid = run.uuid("s1-r01-n01", 3)
    for batch in run.batches:
        for name, values in batch.columns.items():
            metric, array = METRICS[name], np.asarray(values, dtype=np.float64)
            assert metric.low is None or array.min() >= metric.low, name
            assert metric.high is None or array.max() <= metric.high, name
            assert memoryview(values).itemsize == {"8": 1, "6": 2, "2": 4, "4": 8}[metric.type[-1]], name
    for name in run.batches[0].columns:
        if METRICS[name].kind is Kind.COUNTER:
            assert (np.diff(run.values(uuid, name).astype(np.int64)) >= 0).all(), name
    energy_j = np.diff(run.values(uuid, "energy_mj").astype(np.float64))[1:] / 1_000
    assert energy_j == pytest.approx(run.values(uuid, "power_w")[2:], rel=0.02)
    capped = (run.values(uuid, "clock_event_reasons").astype(np.int64) & 4) != 0
    assert np.array_equal(np.diff(run.values(uuid, "sw_power_cap_ns").astype(np.int64)) == S, capped[1:])
    megahertz = np.diff(run.values(uuid, "sm_cycles_elapsed_total").astype(np.int64)) / 1e6
    assert megahertz.mean() == pytest.approx(run.values(uuid, "sm_clock_mhz")[1:].mean(), rel=0.004)


def test_counters_of_a_healthy_fleet_have_a_past() -> None:
    """Thousands of seconds of power capping and a hundred replays are on every GPU: only rates speak."""
    run = Run(fleet(), seconds=10)
    for slot in range(4):
        uuid = run.uuid("n1", slot)
        assert run.values(uuid, "sw_power_cap_ns")[0] > 7_000 * S
        assert 100 < run.values(uuid, "pcie_replay_total")[0] < 200


def test_the_slowest_gpu_sets_the_pace_of_its_job() -> None:
    """In a synchronous job the others wait: their activity falls, the slow one's does not; other jobs feel nothing."""
    slow = {"kind": "slow_silicon", "size": 0.25, "start_s": 30, "select": {"gpu": "n1/0"}}
    run = Run(fleet(slow, nodes=4, workloads=[{"name": "w", "job_nodes": 2, "utilization": 1.0}]), seconds=120)

    def fall(node: str, slot: int) -> float:
        uuid = run.uuid(node, slot)
        return float(
            run.between(uuid, "sm_active_ratio", 40, 120).mean() / run.between(uuid, "sm_active_ratio", 0, 30).mean()
        )

    assert fall("n1", 0) > 0.98
    assert 0.70 < fall("n1", 2) < 0.85
    assert 0.70 < fall("n2", 1) < 0.85
    assert fall("n3", 1) > 0.97


def test_a_busy_gpu_shows_its_class() -> None:
    """Compute is tensor work, memory is DRAM work, communication is NVLink work; an idle node does nothing."""
    busiest = {}
    for work in ("compute", "memory", "communication"):
        run = Run(fleet(workloads=[{"name": "w", "class": work, "select": {"node": "n1"}}]), seconds=60)
        uuid = run.uuid("n1", 1)
        means = {
            "compute": run.values(uuid, "tensor_active_ratio").mean(),
            "memory": run.values(uuid, "dram_active_ratio").mean() * 0.8,
            "communication": run.values(uuid, "nvlink_tx_bytes_per_s").mean() / 450e9,
        }
        busiest[work] = max(means, key=lambda name: means[name])
        idle = run.uuid("n2", 1)
        assert run.values(idle, "utilization_ratio").max() == 0
        assert (run.values(idle, "clock_event_reasons").astype(int) & 1).all()
        assert run.values(idle, "power_w").mean() < 100
    assert busiest == {work: work for work in busiest}


def test_slots_differ_inside_a_healthy_node() -> None:
    """Fourteen degrees between the slots of one node are normal: every node has the same pattern."""
    run = Run(fleet(nodes=4, gpus=8), seconds=120, step_s=60)
    temperature = np.array(
        [[run.values(run.uuid(f"n{n}", s), "temperature_c")[-20:].mean() for s in range(8)] for n in range(1, 5)]
    )
    by_slot = np.median(temperature, axis=0)
    assert by_slot[[1, 3, 5, 7]].min() - by_slot[[0, 2, 4, 6]].max() > 4


def test_every_message_of_a_fleet_passes_the_checks_of_the_wire() -> None:
    """Batches encode and pass the frame check; inventory, events and measurements pass theirs."""
    run = Run(EVENTFUL, seconds=36)
    encoder = Encoder()
    for batch in run.batches:
        encoded = encoder.encode(batch)
        mask = parse_schema(encoded.headers["schema"].decode())
        assert check_body(decompress(encoded.value), mask) == len(batch)
    for inventory in run.inventory:
        node, gpus = check_inventory(json.loads(to_json(inventory)))
        assert node["expected_gpus"] == len(gpus) == 4
    assert run.events
    assert all(check_event(json.loads(to_json(event))) for event in run.events)
    assert len(run.measurements) >= 5 * 4 * 3 - 4
    assert all(check_measurement(json.loads(to_json(m))) for m in run.measurements)


def test_in_real_time_a_step_is_given_once_it_is_over() -> None:
    """A back-fill goes as fast as it can, then the fleet follows the clock; `speed` makes its seconds shorter."""
    now = START_NS + 25 * S
    source = Simulated(fleet=fleet(), start_ns=START_NS, realtime=True, clock_ns=lambda: now)
    source.collect()
    source.collect()
    with pytest.raises(NoData):
        source.collect()
    now += 5 * S
    assert source.next_time_ns == START_NS + 20 * S
    assert len(source.collect().samples) == 2
    fast = Simulated(fleet=fleet(), start_ns=now, realtime=True, speed=10.0, clock_ns=lambda: now)
    with pytest.raises(NoData):
        fast.collect()
    now += S
    assert fast.collect().samples


def test_a_fleet_ends_after_its_duration() -> None:
    """The last step is cut to what is left, then the input is at its end."""
    source = Simulated(fleet=fleet(), start_ns=START_NS, duration_s=15)
    lengths = [len(source.collect().samples[0]) for _ in range(2)]
    assert lengths == [40, 20]
    with pytest.raises(EndOfInput):
        source.collect()


def test_the_truth_speaks_of_every_gpu_and_fault(tmp_path: Path) -> None:
    """Speeds are relative to the typical GPU of the model, in every class; the file holds what the method says."""
    path = tmp_path / "truth.json"
    source = Simulated(fleet=EVENTFUL, start_ns=START_NS, truth=path, shard=(0, 2))
    truth = source.truth()
    assert json.loads(path.read_text()) == truth
    assert len(truth["gpus"]) == 5 * 4 + 1  # one more comes by a swap
    for name in CLASSES:
        assert median(gpu["speeds"][name] for gpu in truth["gpus"].values()) == pytest.approx(1.0, abs=0.004)
    assert [fault["kind"] for fault in truth["faults"]] == [fault["kind"] for fault in EVENTFUL["faults"]]
    drift = next(fault for fault in truth["faults"] if fault["kind"] == "drift")
    (uuid,) = drift["gpus"]
    assert drift["speeds"][uuid]["compute"] == pytest.approx(0.92 * truth["gpus"][uuid]["speeds"]["compute"], abs=0.002)


def test_the_truth_agrees_with_the_telemetry() -> None:
    """Under equal compute load the mean clock orders GPUs as their true speed does."""
    run = Run(fleet(nodes=6, gpus=8), seconds=180, step_s=60)
    truth = run.source.truth()["gpus"]
    uuids = list(truth)
    clock = [run.between(uuid, "sm_clock_mhz", 60, 180).mean() for uuid in uuids]
    speed = [truth[uuid]["speeds"]["compute"] for uuid in uuids]
    assert np.corrcoef(np.argsort(np.argsort(clock)), np.argsort(np.argsort(speed)))[0, 1] > 0.97


@pytest.mark.parametrize("name", ["demo", "small", "longhorn-like", "scale"])
def test_built_in_fleets_run(name: str) -> None:
    """Every fleet in the package can be built by its name and gives samples."""
    source = Simulated(fleet=name, start_ns=START_NS, shard=(0, 50) if name == "scale" else (0, 1))
    assert sum(len(batch) for batch in source.collect().samples) >= 640


def test_the_demo_has_its_faults_in_the_first_quarter_of_an_hour() -> None:
    """A back-filled hour shows each fault for most of its time, on GPUs of several models."""
    truth = Simulated(fleet="demo", start_ns=START_NS).truth()
    assert 64 <= len(truth["gpus"]) <= 96
    assert len({gpu["model"] for gpu in truth["gpus"].values()}) >= 3
    assert len({fault["kind"] for fault in truth["faults"]}) >= 8
    assert all(fault["start_ns"] - START_NS <= 900 * S for fault in truth["faults"])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no nodes": ({"sites": []}, "fleet.sites"),
    "unknown field": (fleet(colour="red"), "fleet.colour: unknown field"),
    "misspelt field of a rack": (
        {"sites": [{"name": "s", "racks": [{"name": "r", "node": []}]}]},
        "fleet.sites[0].racks[0].nodes",
    ),
    "unknown model": (
        {"sites": [{"name": "s", "racks": [{"nodes": [{"model": "H999"}]}]}]},
        "fleet.sites[0].racks[0].nodes[0].model",
    ),
    "no GPU": (fleet(gpus=0), "fleet.sites[0].racks[0].nodes[0].gpus"),
    "text for a number": (fleet(node_spread_c="warm"), "fleet.node_spread_c"),
    "true for a number": (fleet(node_spread_c=True), "fleet.node_spread_c"),
    "equal names": ({"sites": [{"name": "s", "racks": [{"nodes": [{"name": "n", "count": 2}]}]}]}, "named 'n'"),
    "wrong pattern": ({"sites": [{"name": "s", "racks": [{"name": "r{x}", "nodes": [{}]}]}]}, "racks[0].name"),
    "unknown fault": (fleet({"kind": "gremlins"}), "fleet.faults[0].kind"),
    "fault without kind": (fleet({"size": 1}), "fleet.faults[0].kind"),
    "fault of nobody": (fleet({"kind": "cooling", "select": {"gpu": "n9/0"}}), "fleet.faults[0].select"),
    "size out of range": (fleet({"kind": "cooling", "size": -1}), "fleet.faults[0].size"),
    "end before start": (fleet({"kind": "cooling", "start_s": 9, "end_s": 9}), "fleet.faults[0].end_s"),
    "a GPU where nodes belong": (fleet({"kind": "clock_skew", "select": {"gpu": "n1/0"}}), "fleet.faults[0].select"),
    "unknown metric": (fleet({"kind": "unsupported_metrics", "metrics": ["speed"]}), "fleet.faults[0].metrics"),
    "two faults of one name": (
        fleet({"kind": "cooling", "name": "a"}, {"kind": "drift", "name": "a"}),
        "fleet.faults[1].name",
    ),
    "GPU without slot": (fleet({"kind": "cooling", "select": {"gpu": "n1"}}), "fleet.faults[0].select.gpu"),
    "two jobs on one node": (fleet(workloads=[{"name": "a"}, {"name": "b", "start_s": 5}]), "both want node n1"),
    "unknown class": (fleet(workloads=[{"name": "a", "class": "games"}]), "fleet.workloads[0].class"),
    "probe of nobody": (fleet(probes=[{"name": "p", "select": {"node": "z"}}]), "fleet.probes[0].select"),
    "wrong model field": (fleet(models={"X": {"power_limit_w": "much"}}), "fleet.models.X.power_limit_w"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_description_is_refused_by_the_name_of_its_field(case: str) -> None:
    """Every error says where it is."""
    description, where = WRONG[case]
    with pytest.raises(SettingsError) as error:
        Simulated(fleet=description, start_ns=START_NS)
    assert where in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "no YAML"), ("- 1", "expected a mapping"), ("", "expected a mapping"), ("\0", "no YAML")],
)
def test_a_file_that_is_no_description_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Broken YAML and YAML of another kind are one clear error."""
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=says):
        Simulated(fleet=path, start_ns=START_NS)


@pytest.mark.parametrize("name", ["nowhere", "/no/such/file.yaml", "../demo"])
def test_a_fleet_that_is_nowhere_is_refused(name: str) -> None:
    """Neither built in nor a file."""
    with pytest.raises(SettingsError, match="fleet: "):
        Simulated(fleet=name, start_ns=START_NS)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("shard", {"shard": (2, 2)}),
        ("shard", {"shard": (0, 0)}),
        ("step_s", {"step_s": 2.5}),
        ("step_s", {"step_s": 0}),
        ("interval_s", {"interval_s": 0}),
        ("speed", {"speed": 0}),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(field: str, arguments: dict[str, Any]) -> None:
    """Arguments are settings too."""
    with pytest.raises(SettingsError, match=f"^{field}: "):
        Simulated(fleet=fleet(), start_ns=START_NS, **arguments)


def test_a_fleet_of_its_own_models_and_metrics() -> None:
    """A custom model takes what it does not say from its base; a node reports only the metrics it supports."""
    description = fleet(models={"X": {"base": "A100-SXM4-40GB", "product": "NVIDIA X", "power_limit_w": 250}})
    description["sites"][0]["racks"][0]["nodes"][0] |= {"model": "X", "without": ["activity", "memory_temperature_c"]}
    run = Run(description, seconds=60)
    assert "sm_active_ratio" not in run.batches[0].columns
    assert "memory_temperature_c" not in run.batches[0].columns
    assert run.inventory[0].gpus[0].model == "NVIDIA X"
    assert 230 < run.values(run.uuid("n1", 0), "power_w")[-20:].mean() < 251


def test_the_documentation_has_every_fault_model_group_and_fleet() -> None:
    """What can be described is documented, with the defaults that hold."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text()
    for kind, fault in FAULTS.items():
        size = f"{fault.size:g} {fault.unit}" if fault.unit else "-"
        causes = ", ".join(cause or "none" for cause in fault.causes)
        assert f"| `{kind}` | {fault.help} | {size} | {', '.join(fault.tiers)} | {causes} |" in text
    for model in MODELS.values():
        assert f"| `{model.name}` | {model.product} | {model.power_limit_w:g} |" in text
    for group, metrics in GROUPS.items():
        assert f"| `{group}` | {' '.join(f'`{metric}`' for metric in metrics)} |" in text
    for path in BUILT_IN.glob("*.yaml"):
        assert f"| `{path.stem}` |" in text


def test_the_described_example_is_a_fleet() -> None:
    """The description in the documentation can be used as it stands."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text()
    example = text[text.index("    name: mine\n") : text.index("A field that is misspelt")]
    reading = Simulated(fleet=yaml.safe_load(textwrap.dedent(example)), start_ns=START_NS).collect()
    assert len(reading.samples) == 10


def test_a_node_that_does_not_simulate_loads_no_numpy() -> None:
    """The list of collectors is light: what this one needs is loaded with it alone; and never anything heavy."""
    code = (
        "import sys, collectors; assert 'numpy' not in sys.modules; import collectors.simulated; "
        "print(sorted({'polars', 'pyarrow', 'duckdb', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
