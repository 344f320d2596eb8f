"""`isotach up` and `doctor` on a node whose NVML is the stub: who is seen, who is not, and what becomes of each."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nvml import NvmlStub, bus_id, captured, gpu_uuid
from support.processes import Process, Processes, Server, free_port, processes, run

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]

TIMES = ("--window-s", 5, "--lateness-s", 2, "--idle-s", 6, "--interval-s", 1, "--batch-s", 1)
HANGING, LOST, GARBAGE = 3, 4, 5
WELL = (0, 1, 2, 6, 7)


def up(site: Processes, nvml: NvmlStub, folder: Path, *more: object) -> tuple[Process, Server]:
    """A server that collects from its own node; which collector is left to it."""
    port = free_port()
    words = ("--store", folder / "s.duckdb", "--port", port, "--node", "n1", *TIMES, *more)
    return site.start("up", "up", *words, environment=nvml.environment), Server(port)


def detail(server: Server, place: int) -> dict[str, Any]:
    """All that is known of a GPU."""
    found: dict[str, Any] = server.get(f"/v1/gpus/{gpu_uuid(place)}")
    return found


def test_a_gpu_node_is_ranked_by_itself(nvml: NvmlStub, tmp_path: Path) -> None:
    """Started without a word about collectors: all GPUs with place and limits, and nobody called ill.

    How soon is measured: `python -m benchmarks agent`.
    """
    with processes(tmp_path) as site:
        _, server = up(site, nvml, tmp_path, "--place", "rack=r7")
        site.until(lambda: server.ready() and server.total() == 8, "eight GPUs are ranked")
        site.until(lambda: set(tiers(server).values()) <= {"standard", "premium"}, "each has a tier")
        gpus = {place: detail(server, place)["inventory"] for place in range(8)}
        assert {place: gpu["slot"] for place, gpu in gpus.items()} == {place: place + 1 for place in range(8)}
        assert {place: gpu["bus_id"] for place, gpu in gpus.items()} == {place: bus_id(place) for place in range(8)}
        assert {gpu["power_limit_w"] for gpu in gpus.values()} == {700.0}
        assert {gpu["max_sm_clock_mhz"] for gpu in gpus.values()} == {1980}
        assert [block["value"] for block in server.get("/v1/blocks?level=rack")["items"]] == ["r7"]
        site.until(lambda: len(detail(server, 0)["windows"]) >= 3, "three windows")
        changes = server.get("/v1/transitions?limit=0")["items"]
        assert [change for change in changes if change["from_tier"] is not None] == []


def test_gpus_are_listed_long_before_their_first_window(nvml: NvmlStub, tmp_path: Path) -> None:
    """With the settings as they come, all GPUs are in the ranking at once: unknown, and why; nothing is alarmed."""
    with processes(tmp_path) as site:
        port = free_port()
        words = ("--store", tmp_path / "s.duckdb", "--port", port, "--node", "n1", "--place", "rack=r7")
        site.start("up", "up", *words, environment=nvml.environment)
        server = Server(port)
        site.until(lambda: server.ready() and server.total() == 8, "eight GPUs are listed", patience_s=60)
        items = server.get("/v1/gpus?limit=0")["items"]
        assert {(item["tier"], item["speed"]) for item in items} == {("unknown", None)}
        assert [reason["code"] for item in items for reason in item["reasons"]] == ["no_score"] * 8
        one = detail(server, 0)
        assert (one["place"], one["inventory"]["slot"]) == ([["rack", "r7"]], 1)
        assert one["inventory"]["power_limit_w"] == 700.0
        assert server.get("/v1/transitions?limit=0")["items"] == []


def test_three_sick_gpus_cost_the_other_five_nothing(nvml: NvmlStub, tmp_path: Path) -> None:
    """One hangs, one is lost, one talks nonsense: each gets its tier and reason, five go on at full rate."""
    with processes(tmp_path) as site:
        process, server = up(site, nvml, tmp_path)
        site.until(lambda: server.ready() and server.total() == 8, "eight GPUs are ranked")
        site.until(lambda: len(detail(server, 0)["windows"]) >= 2, "some windows of all")
        began_ns = time.time_ns()
        nvml.garble(GARBAGE).set(HANGING, hang="all").set(LOST, fail=15)
        parent = psutil.Process(process.pid)
        expected = dict.fromkeys(WELL, "standard") | {HANGING: "unknown", LOST: "quarantine", GARBAGE: "unknown"}
        site.until(lambda: tiers(server) == expected, f"the tiers are {expected}", patience_s=90)
        before = parent.memory_info().rss
        reasons = {
            place: {reason["code"] for reason in detail(server, place)["score"]["reasons"]} for place in expected
        }
        assert {"stale", "collector_trouble"} <= reasons[HANGING]
        assert "gpu_lost" in reasons[LOST]
        assert {"stale", "collector_trouble"} <= reasons[GARBAGE]
        site.until(lambda: fresh(server, began_ns) >= 5, "five windows since then")
        for place in WELL:
            windows = [w for w in detail(server, place)["windows"] if w["window_start_ns"] > began_ns]
            lost = sum(round(5 * (1 - window["completeness_ratio"])) for window in windows)
            assert lost <= 1, place  # none, but for a second in which a busy machine starts no process in time
            assert tiers(server)[place] == "standard"
        kinds = {place: {event["kind"] for event in detail(server, place)["events"]} for place in expected}
        assert kinds[HANGING] == {"collector_hang"}
        assert kinds[LOST] == {"gpu_lost"}
        assert kinds[GARBAGE] == {"collector_failed"}
        assert not any(kinds[place] for place in WELL)
        zombies = {child.pid for child in parent.children() if ended(child)}
        site.until(lambda: not zombies & {child.pid for child in parent.children()}, "those that ended are buried")
        children = parent.children(recursive=True)
        assert (
            len(children) <= 5
        )  # the five's, the one that takes over, and one each for the three that are tried again
        assert parent.memory_info().rss < before * 1.1 + 10e6
        assert process.stop() == 0
        assert all(ended(child) for child in children)


def test_no_child_survives_an_agent_that_is_killed(nvml: NvmlStub, tmp_path: Path) -> None:
    """kill -9 of the agent ends the processes that read NVML for it, also one that hangs."""
    with processes(tmp_path) as site:
        words = ("agent", "--collector", "nvml", "--server", "http://127.0.0.1:1", "--interval-s", 0.5)
        agent = site.start("agent", *words, environment=nvml.environment)
        parent = psutil.Process(agent.pid)
        site.until(parent.children, "NVML is read")
        nvml.set(2, hang="all")
        children = site.until(lambda: len(found := parent.children()) == 2 and found, "one GPU is read apart")
        agent.send(signal.SIGKILL)
        site.until(lambda: all(ended(child) for child in children), "both children have ended")


def ended(process: psutil.Process) -> bool:
    """Whether it runs no more; whoever adopts it may not have buried it yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def tiers(server: Server) -> dict[int, str]:
    """The tier of each GPU."""
    places = {gpu_uuid(place): place for place in range(8)}
    return {places[item["gpu_uuid"]]: item["tier"] for item in server.get("/v1/gpus?limit=0")["items"]}


def fresh(server: Server, since_ns: int) -> int:
    """How many windows of a healthy GPU began after this."""
    return sum(w["window_start_ns"] > since_ns for w in detail(server, 0)["windows"])


def doctor(nvml: NvmlStub) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and findings by check."""
    done = run("doctor", "--format", "json", "--server", "http://127.0.0.1:1", environment=nvml.environment)
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_the_doctor_says_what_nvml_has_and_what_the_rest_costs(nvml: NvmlStub, shared_data: Path) -> None:
    """Driver, fields, permissions, and the price of what is missing, on an H100 as nvidia-smi saw one."""
    driver, gpus = captured(shared_data / "nvidia_smi" / "h100.xml")
    nvml.profile(gpus, driver=driver).set(memory_used="!4", memory_total="!4")
    status, found = doctor(nvml)
    assert (status, found["nvml"]["state"]) == (0, "ok")
    assert "8 GPUs" in found["nvml"]["seen"]
    assert driver in found["nvml"]["seen"]
    assert "memory_used_bytes" in found["nvml permissions"]["seen"]
    assert "energy_mj" in found["nvml fields"]["seen"]
    assert found["metric tensor_active_ratio"]["remedy"]
    assert "metric sm_clock_mhz" not in found
    assert "nvidia-smi" not in found


def test_the_doctor_names_a_changed_driver_and_a_lost_gpu(nvml: NvmlStub) -> None:
    """What NVML refuses with is one line with a remedy, and the status is 1."""
    nvml.set(2, fail=15)
    status, found = doctor(nvml)
    assert (status, found["nvml missing_gpu"]["state"]) == (1, "wrong")
    nvml.set(2, fail=None).about(init=18)
    status, found = doctor(nvml)
    assert (status, found["nvml"]["state"]) == (1, "wrong")
    assert "reboot" in found["nvml"]["seen"]
