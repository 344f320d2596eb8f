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
from isotach.checks.gpus import kernel_log
from isotach.checks.machine import Kept, clock, spool, user
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


def test_a_missing_remote_server_is_wrong_for_who_posts_there() -> None:
    """A name that is none, without Kafka: telemetry has nowhere to go."""
    status, found = doctor("--server", "http://isotach.invalid:8470")
    assert (status, found["server"]["state"]) == (1, "wrong")
    assert "--server" in found["server"]["remedy"]
    assert found["server"]["lost"]


@pytest.mark.parametrize(
    ("asked", "given", "status", "state"),
    [
        ("s3cret", "s3cret", 0, "ok"),
        ("s3cret", "other", 1, "wrong"),
        ("s3cret", None, 1, "wrong"),
        (None, None, 0, "ok"),
    ],
)
def test_the_token_is_tried_and_nothing_is_stored(
    asked: str | None, given: str | None, status: int, state: str, tmp_path: Path
) -> None:
    """A right, a wrong and a missing token are told apart, and neither is printed."""
    stored: list[object] = []
    arguments = ["--format", "json"]
    if given:
        (tmp_path / "token").write_text(given)
        arguments += ["--token-file", str(tmp_path / "token")]
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "GPU-a"}])})
        app = create_app(store, clock_ns=Clock(START), token=asked, ingest=lambda *message: stored.append(message))
        with served(app) as client:
            done = CliRunner().invoke(cli, ["doctor", *arguments, "--server", str(client.base_url)])
    found = {finding["check"]: finding for finding in json.loads(done.output)}
    assert (done.exit_code, found["token"]["state"]) == (status, state)
    assert stored == []
    assert "s3cret" not in done.output
    assert "other" not in found["token"]["seen"]


def test_the_kernels_log_names_what_is_lacking(tmp_path: Path) -> None:
    """Readable is fine; a log that is not says why, what is lost and what to give; no GPUs, no word."""
    (tmp_path / "kmsg").touch()
    (tmp_path / "restrict").write_text("1\n")
    here = {"restricted": tmp_path / "restrict", "journals": (), "gpus_here": lambda: True}
    [finding] = kernel_log({}, kernel=tmp_path / "kmsg", **here)
    assert finding.state == "ok"
    [finding] = kernel_log({}, kernel=tmp_path / "absent", **here)
    assert "dmesg_restrict is 1" in finding.seen
    assert "CAP_SYSLOG" in finding.remedy
    assert list(kernel_log({}, gpus_here=lambda: False)) == []


def test_a_user_without_rights_is_told_which(tmp_path: Path) -> None:
    """Each lacking capability comes with what it is good for."""
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    [finding] = user({}, status=tmp_path / "status")
    assert "CAP_SYSLOG (/dev/kmsg" in finding.seen
    assert finding.state == "ok"


@pytest.mark.parametrize(("kept", "state"), [(Kept(True, 0.01), "ok"), (Kept(False, 16.0), "note"), (None, "note")])
def test_a_clock_that_nothing_keeps_is_noted(kept: Kept | None, state: str) -> None:
    """Synchronised, not, and a kernel that does not say."""
    [finding] = clock({}, ask=lambda: kept)
    assert finding.state == state


def test_a_spool_must_be_writable(tmp_path: Path) -> None:
    """Unset is no word; a folder that is there or can be made is fine; a file in its place costs what waits."""
    assert list(spool({"spool": None})) == []
    for fine in (tmp_path, tmp_path / "not" / "yet"):
        [finding] = spool({"spool": fine})
        assert finding.state == "ok"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    [finding] = spool({"spool": tmp_path / "file"})
    assert (finding.state, bool(finding.lost)) == ("wrong", True)
