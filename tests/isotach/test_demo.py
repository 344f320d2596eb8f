"""`isotach demo`: what somebody sees who tries Isotach for a minute, held against the truth of the fleet.

To hold another fault against it: `collectors/simulated/demo.yaml`; the truth file brings it here.
"""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from support.processes import Processes, Server, free_port, processes, run

pytestmark = pytest.mark.processes

ILL = {"degraded", "quarantine", "unknown"}
SLOW = 0.98  #: the effect below which nothing is called slow


def verdicts(server: Server) -> dict[str, dict[str, Any]]:
    """Every GPU's row by its UUID."""
    return {row["gpu_uuid"]: row for row in server.get("/v1/gpus?limit=0")["items"]}


def judged_rightly(found: dict[str, dict[str, Any]], truth: dict[str, Any]) -> list[str]:
    """What a right judge would say otherwise: nothing, if all is well.

    Boards differ without a fault: one that was made 2 % slow or more in its work is slow, and rightly called so.
    """
    wrong = []
    faulty = {gpu for fault in truth["faults"] if set(fault["tiers"]) & ILL for gpu in fault["gpus"]}
    faulty |= {
        gpu
        for gpu, row in found.items()
        if truth["gpus"][gpu]["speeds"].get(row["workload_class"], 1.0) < SLOW and "slow" in _codes(row)
    }
    for fault in truth["faults"]:
        for gpu in fault["gpus"]:
            tier = found[gpu]["tier"]
            if tier not in fault["tiers"] and (gpu not in faulty or set(fault["tiers"]) & ILL):
                wrong.append(f"{fault['name']} ({fault['kind']}) on {gpu}: {tier}, not one of {fault['tiers']}")
    wrong += [
        f"{gpu} on {row['node']} without a fault: {row['tier']} for {[reason['code'] for reason in row['reasons']]}"
        for gpu, row in found.items()
        if gpu not in faulty and row["tier"] in ILL
    ]
    return wrong


def _codes(row: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in row["reasons"]}


def demo(site: Processes, port: int) -> Any:
    """The demo on a port, with its truth in the test's folder."""
    return site.start("demo", "demo", "--port", port, "--truth", site.folder / "truth.json")


@pytest.mark.timeout(400)
def test_the_demo_finds_every_fault_and_nothing_else(tmp_path: Path) -> None:
    """A live ranking is printed; each fault is in a tier that fits it, no bait and no healthy GPU is demoted."""
    port = free_port()
    server = Server(port)
    with processes(tmp_path) as site:
        process = demo(site, port)
        site.until(lambda: "Racks, best first" in process.output, "a ranking is printed")
        truth = json.loads((tmp_path / "truth.json").read_text())
        assert len(truth["faults"]) >= 10
        found = verdicts(server)
        assert found.keys() == truth["gpus"].keys()
        assert judged_rightly(found, truth) == []
        assert not server.get("/v1/gpus?limit=1")["stale"]
        before = server.get("/v1/tiers")["as_of"]
        site.until(lambda: server.get("/v1/tiers")["as_of"] > before, "it is live")
        process.send(signal.SIGINT)
        assert process.wait(10) == 0
        assert "Traceback" not in process.output


def test_a_taken_port_is_said_so() -> None:
    """The demo names the port and the remedy, and ends at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("demo", "--port", port)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"isotach: port {port} on 127.0.0.1 is in use: choose another with --port"]
