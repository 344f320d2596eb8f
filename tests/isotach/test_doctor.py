"""`isotach doctor`: what is wrong, and how to mend it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.store import START, Clock, scores, served

from analytics.store import Store
from api.app import create_app
from isotach.cli import cli


def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and findings by check."""
    done = CliRunner().invoke(cli, ["doctor", "--format", "json", *arguments])
    return done.exit_code, {finding["check"]: finding for finding in json.loads(done.output)}


def fake_nvidia_smi(folder: Path, script: str) -> None:
    """An executable `nvidia-smi` in the folder."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_an_empty_machine_is_not_wrong() -> None:
    """Nothing set up is nothing broken: every remedy is said, and the status is 0."""
    status, found = doctor("--server", "http://127.0.0.1:1")
    assert status == 0
    assert found["server"]["state"] == "note"
    assert "isotach up" in found["server"]["remedy"]
    assert found["kafka"]["state"] == "note"
    assert found["nvidia-smi"]["state"] == "note"


def test_a_broker_that_does_not_answer_is_wrong() -> None:
    """The status is 1 and the remedy names the setting."""
    status, found = doctor("--bootstrap", "127.0.0.1:1", "--server", "http://127.0.0.1:1")
    assert status == 1
    assert found["kafka"]["state"] == "wrong"
    assert "--bootstrap" in found["kafka"]["remedy"]


def test_a_server_is_judged_by_its_freshness() -> None:
    """A fleet whose newest evidence is old is wrong; a fresh one is well."""
    clock = Clock(START)
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "GPU-a"}, {"gpu_uuid": "GPU-b"}])})
        with served(create_app(store, clock_ns=clock)) as client:
            status, found = doctor("--server", str(client.base_url))
            assert (status, found["freshness"]["state"]) == (0, "ok")
            assert "2 GPUs" in found["freshness"]["seen"]
            assert found["clock"]["state"] == "ok"
            clock.now_ns += 3_600 * 10**9
            status, found = doctor("--server", str(client.base_url))
            assert (status, found["freshness"]["state"]) == (1, "wrong")


def test_gpus_and_what_they_do_not_say(tmp_path: Path, shared_data: Path) -> None:
    """On a GPU node the doctor counts GPUs and says what a missing metric costs."""
    fake_nvidia_smi(tmp_path, f"cat {shared_data / 'nvidia_smi' / 'h100.xml'}")
    status, found = doctor("--server", "http://127.0.0.1:1")
    assert status == 0
    assert found["nvidia-smi"]["seen"].startswith("8 GPUs")
    assert found["metric tensor_active_ratio"]["state"] == "note"
    assert "metric sm_clock_mhz" not in found


def test_a_driver_in_trouble_is_wrong(tmp_path: Path) -> None:
    """What nvidia-smi refuses with is shown as one line, with a remedy."""
    fake_nvidia_smi(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    status, found = doctor("--server", "http://127.0.0.1:1")
    assert status == 1
    assert found["nvidia-smi"]["state"] == "wrong"
    assert "reboot" in found["nvidia-smi"]["seen"] + found["nvidia-smi"]["remedy"]
