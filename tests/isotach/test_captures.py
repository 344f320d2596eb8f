"""Real nvidia-smi captures through a whole site, over both roads: who is there, and nobody is called ill.

To add a capture: its file in `CAPTURES`, and what must be seen of it in the test.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.processes import Processes, Server, free_port, processes

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]

CAPTURES = ("a100", "h100", "gb200")
TIMES = ("--window-s", 5, "--lateness-s", 2, "--idle-s", 6)
WINDOWS = 4  #: enough for every rule that needs several windows in a row


def smi_agent(site: Processes, data: Path, *where: object) -> None:
    """An agent that replays the captures of three whole nodes every second."""
    files = [word for name in CAPTURES for word in ("--smi-file", data / "nvidia_smi" / f"{name}.xml")]
    site.start("agent", "agent", "--collector", "nvidia_smi", *files, "--interval-s", 1, "--batch-s", 1, *where)


def judged(server: Server) -> bool:
    """Whether every GPU has been through some windows."""
    items = server.get("/v1/gpus?limit=0")["items"]
    if len(items) < 13:
        return False
    details = [server.get(f"/v1/gpus/{item['gpu_uuid']}") for item in items]
    return all(len(detail["windows"]) >= WINDOWS for detail in details)


def check(server: Server) -> None:
    """Thirteen GPUs of three kinds, one NVLink domain, and no alarm though counters have a past."""
    body = server.get("/v1/gpus?limit=0")
    assert Counter((item["node"], item["model"]) for item in body["items"]) == {
        ("a100", "NVIDIA A100-SXM4-40GB"): 1,
        ("h100", "NVIDIA H100 80GB HBM3"): 8,
        ("gb200", "NVIDIA GB200"): 4,
    }
    assert not body["stale"]
    assert {item["tier"] for item in body["items"]} & {"degraded", "quarantine", "unknown"} == set()
    changes = server.get("/v1/transitions?limit=0")["items"]
    assert [change for change in changes if change["from_tier"] is not None] == []
    blocks: Sequence[dict[str, object]] = server.get("/v1/blocks?level=nvlink_domain")["items"]
    assert [(block["gpus"], block["nodes"]) for block in blocks] == [(4, 1)]


@pytest.mark.kafka
def test_captures_are_ranked_through_kafka_without_an_alarm(
    tmp_path: Path, shared_data: Path, kafka_bootstrap: str
) -> None:
    """Agent, Kafka, window, score and serve show three real nodes as they are."""
    log = ("--bootstrap", kafka_bootstrap, "--topic-prefix", f"smi-{time.time_ns()}-", "--telemetry-partitions", 3)
    port = free_port()
    server = Server(port)
    with processes(tmp_path) as site:
        site.start("serve", "serve", *log, "--store", tmp_path / "s.duckdb", "--port", port)
        site.start("window", "window", *log, *TIMES)
        site.start("score", "score", *log)
        smi_agent(site, shared_data, *log)
        site.until(server.ready, "the replica is ready")
        site.until(lambda: judged(server), "every GPU is judged")
        check(server)


def test_captures_are_ranked_over_http_without_an_alarm(tmp_path: Path, shared_data: Path) -> None:
    """The same over HTTP into a server without Kafka."""
    port = free_port()
    server = Server(port)
    with processes(tmp_path) as site:
        site.start("up", "up", "--store", tmp_path / "s.duckdb", "--port", port, "--collector", "none", *TIMES)
        site.until(server.ready, "the server is ready")
        smi_agent(site, shared_data, "--server", server.url)
        site.until(lambda: judged(server), "every GPU is judged")
        check(server)
