"""`isotach up` and `isotach doctor` with dcgm-exporters: ranked without touching a node."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.dcgm import answer, exporters, page, sends, serves
from support.processes import Server, free_port, processes, run

from isotach import roles
from isotach.settings import SETTINGS

DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


@pytest.mark.parametrize(
    "given",
    [{"dcgm_targets": ("n1:9400",)}, {"dcgm_dns": ("dcgm.example.org",)}, {"dcgm_kubernetes": "a/b:9400"}],
)
def test_auto_means_dcgm_where_targets_are_set(given: dict[str, Any]) -> None:
    """Nobody has to choose the collector, whichever way targets are given."""
    (name,) = found = roles.collectors({**DEFAULTS, "interval_s": 1.0, **given}, ("auto",))
    try:
        assert name == "dcgm"
        assert found[name][1] == 3.0  # what came is taken five times in 15 s
    finally:
        found[name][0].close()


@pytest.mark.processes
def test_a_site_with_exporters_is_ranked(tmp_path: Path) -> None:
    """One command, two exporters in different dialects: both nodes have scores, jobs are known."""
    with exporters() as servers, processes(tmp_path) as site:
        ticks = itertools.count()
        labels = {"pod": "train-0", "namespace": "ml"}
        first = servers.add(serves(lambda: page(4, node="n1", tick=next(ticks), more=lambda place: labels)))
        second = servers.add(serves(lambda: page(4, node="n2", number=1, new=True, tick=next(ticks))))
        port = free_port()
        targets = ("--dcgm-targets", first, "--dcgm-targets", second, "--dcgm-interval-s", 1)
        times = ("--window-s", 5, "--lateness-s", 2, "--idle-s", 5)
        site.start("up", "up", "--port", port, "--store", tmp_path / "s.duckdb", *targets, *times)
        server = Server(port)
        until = time.monotonic() + 90
        gpus: list[dict[str, Any]] = []
        while len(gpus) < 8 and time.monotonic() < until:
            time.sleep(0.5)
            try:
                gpus = server.get("/v1/gpus")["items"]
                jobs = server.get("/v1/jobs")["items"]
            except (OSError, KeyError):
                continue
        assert {gpu["node"] for gpu in gpus} == {"n1", "n2"}
        assert {(job["node"], job["job_id"]) for job in jobs} == {("n1", "ml/train-0")}


def test_the_doctor_names_what_exporters_do_not_show() -> None:
    """Which answer, which do not, and what each missing counter would buy."""
    with exporters() as servers:
        some = "".join(line + "\n" for line in page(2).splitlines() if "SM_CLOCK" not in line)
        good, lean = servers.add(serves(page(2))), servers.add(serves(some))
        bad = servers.add(sends(answer("", status=503)))
        words = [word for host in (good, lean, bad) for word in ("--dcgm-targets", host)]
        done = run("doctor", "--format", "json", "--server", "http://127.0.0.1:1", *words)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "2 of 3 exporters answer, 4 GPUs" in found["dcgm"]["seen"]
    assert "status 503" in found["dcgm exporter"]["seen"]
    assert found["counter DCGM_FI_DEV_SM_CLOCK"]["seen"] == "not shown on 1 of 2 exporters"
    assert "speed from telemetry" in found["counter DCGM_FI_DEV_SM_CLOCK"]["lost"]
    assert "counter DCGM_FI_DEV_GPU_TEMP" not in found
