"""`isotach verdict` against a whole site in one process: the word is given, counts, survives, and is lifted.

To add an action: one more `say`; what the command says of it: `tests/api/test_verdicts.py`.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.processes import Process, Processes, Server, free_port, processes, run
from support.simulated_run import fleet

from analytics.store import Store

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]

TOKEN = "a-token-of-the-test"


class Site:
    """A server over a simulated fleet of two nodes with four GPUs each."""

    def __init__(self, all_of_them: Processes) -> None:
        self.all = all_of_them
        self.port = free_port()
        self.server = Server(self.port)
        self.store = all_of_them.folder / "s.duckdb"

    def up(self) -> Process:
        description = self.all.folder / "fleet.yaml"
        description.write_text(json.dumps(fleet()))  # JSON is YAML
        simulated = ("--collector", "simulated", "--fleet", description, "--start", "-60", "--batch-s", 1)
        times = ("--window-s", 5, "--lateness-s", 2, "--telemetry-partitions", 1)
        started = self.all.start(
            "up", "up", "--store", self.store, "--port", self.port, *simulated, *times,
            environment={"ISOTACH_TOKEN": TOKEN},
        )  # fmt: skip
        self.all.until(lambda: self.server.ready() and self.server.total() == 8, "eight GPUs are ranked")
        return started

    def say(self, *words: object) -> Any:
        """`isotach verdict ...`: the finished process."""
        return run("verdict", *words, "--server", self.server.url, environment={"ISOTACH_TOKEN": TOKEN})

    def gpu(self, uuid: str) -> tuple[str, set[str]]:
        """Tier and reasons of a GPU."""
        score = self.server.get(f"/v1/gpus/{uuid}")["score"]
        return score["tier"], {reason["code"] for reason in score["reasons"]}

    def pinned(self, uuid: str, tier: str) -> bool:
        """Whether it has that tier because an operator said so."""
        found, codes = self.gpu(uuid)
        return found == tier and "operator_pin" in codes

    def free(self, uuid: str) -> bool:
        """Whether nothing that an operator said holds it."""
        found, codes = self.gpu(uuid)
        return found in ("premium", "standard") and not codes & {"operator_pin", "operator_hold"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of which nothing has been started."""
    with processes(tmp_path_factory.mktemp("site")) as all_of_them:
        yield Site(all_of_them)


def test_a_pin_counts_survives_a_crash_and_is_lifted_by_a_clear(site: Site) -> None:
    """A GPU and a node are pinned; after kill -9 both still are; clearing them lets the evidence speak again."""
    first = site.up()
    uuids = {row["gpu_uuid"]: row["node"] for row in site.server.get("/v1/gpus?limit=0")["items"]}
    chosen = next(uuid for uuid, node in uuids.items() if node == "n1")
    other = [uuid for uuid, node in uuids.items() if node == "n2"]
    said = site.say("pin", chosen, "--tier", "quarantine", "--note", "fan 3 is loud", "--by", "on-call")
    assert (said.returncode, said.stdout) == (0, f"taken: pin as quarantine, GPU {chosen}\n"), said.stderr
    site.say("pin", "n2", "--tier", "degraded", "--by", "on-call")
    site.all.until(lambda: site.pinned(chosen, "quarantine"), "the GPU is pinned")
    site.all.until(lambda: all(site.pinned(uuid, "degraded") for uuid in other), "the node is pinned")
    event = site.server.get(f"/v1/gpus/{chosen}")["events"][0]
    assert (event["kind"], event["code"], event["detail"]) == ("operator_pin", 3, "on-call: fan 3 is loud")
    assert sum(site.free(uuid) for uuid in uuids) == 3, "nobody else is concerned"
    first.kill()
    second = site.up()
    before = site.server.get(f"/v1/gpus/{chosen}")["score"]["window_start_ns"]
    site.all.until(
        lambda: site.server.get(f"/v1/gpus/{chosen}")["score"]["window_start_ns"] > before, "a window more is scored"
    )
    assert site.pinned(chosen, "quarantine")
    assert all(site.pinned(uuid, "degraded") for uuid in other)
    assert site.say("reset-breaker", "--by", "on-call").returncode == 0
    for name in ("n2", chosen):
        assert site.say("clear", name, "--by", "on-call").returncode == 0
    site.all.until(lambda: all(site.free(uuid) for uuid in uuids), "all are free again")
    assert second.stop() == 0
    with Store(site.store) as store:
        assert store.table("events").filter(kind="breaker_reset").select("node", "gpu_uuid", "detail").rows() == [
            ("", "", "on-call")
        ]
