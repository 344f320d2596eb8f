"""`isotach up` on a node whose NVML is the stub and whose `/proc` is a folder: from a process to `GET /v1/jobs`."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.nvml import NvmlStub, gpu_uuid
from support.proc import UID, USER, FakeProc, pod, slurm
from support.processes import Server, free_port, processes, run

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("site")]

TIMES = ("--window-s", 5, "--lateness-s", 2, "--idle-s", 6, "--interval-s", 1, "--batch-s", 1)


def test_jobs_are_seen_on_their_gpus_until_they_end(nvml: NvmlStub, tmp_path: Path) -> None:
    """A Slurm job on two GPUs, a pod, a user's shell, a job that gets lost to sight; one ends. None is in a label."""
    proc = FakeProc(tmp_path / "proc")
    for pid, cgroup in ((70, slurm(184467)), (80, pod(UID)), (90, USER), (60, slurm(5))):
        proc.start(pid, cgroup)
    nvml.set(compute="", mps="", graphics="")
    for place, pid in ((0, 70), (1, 70), (2, 80), (3, 90), (4, 60)):
        nvml.set(place, compute=f"{pid}:{2 << 30}")
    with processes(tmp_path) as site:
        port = free_port()
        words = ("--store", tmp_path / "s.duckdb", "--port", port, "--node", "n1", "--proc", proc.root, *TIMES)
        site.start("up", "up", *words, environment=nvml.environment)
        server = Server(port)
        site.until(lambda: server.ready() and len(jobs(server)) == 4, "four jobs on GPUs", patience_s=60)
        found = jobs(server)
        assert {(row["job_id"], row["source"], row["gpu_uuid"], row["ended"]) for row in found} == {
            ("184467", "slurm", gpu_uuid(0), False),
            ("184467", "slurm", gpu_uuid(1), False),
            (UID, "kubernetes", gpu_uuid(2), False),
            ("5", "slurm", gpu_uuid(4), False),
        }
        assert {(row["node"], row["processes"], row["memory_bytes"]) for row in found} == {("n1", 1, 2 << 30)}
        proc.end(70)
        nvml.set(0, compute="").set(1, compute="").set(4, compute="!4")
        site.until(lambda: sum(row["ended"] for row in jobs(server)) == 2, "the job has ended", patience_s=90)
        ended = {row["job_id"]: row["ended"] for row in jobs(server)}
        assert ended == {"184467": True, UID: False, "5": False}
        _, exposed = server.fetch("/metrics")
        assert b"184467" not in exposed


def test_the_doctor_says_when_jobs_cannot_be_found(nvml: NvmlStub, tmp_path: Path) -> None:
    """Where the driver hides whose process it is: a note with a remedy, and no failure."""
    proc = FakeProc(tmp_path / "proc")
    proc.start(70, slurm(7))
    nvml.set(0, compute="70")
    words = ("doctor", "--format", "json", "--server", "http://127.0.0.1:1", "--proc", proc.root)
    checks = [one["check"] for one in json.loads(run(*words, environment=nvml.environment).stdout)]
    assert "nvml jobs" not in checks
    nvml.set(0, compute="0")
    done = run(*words, environment=nvml.environment)
    [found] = [one for one in json.loads(done.stdout) if one["check"] == "nvml jobs"]
    assert (done.returncode, found["state"]) == (0, "note")
    assert "hidden" in found["seen"]
    assert "hostPID" in found["remedy"]


def jobs(server: Server) -> list[dict[str, Any]]:
    """All that is known of jobs."""
    items: list[dict[str, Any]] = server.get("/v1/jobs?limit=0")["items"]
    return items
