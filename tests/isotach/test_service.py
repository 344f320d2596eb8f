"""`isotach agent` as a service: settings read again on SIGHUP, systemd told how it goes, others go first."""

import configparser
import logging
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psutil
import pytest
from support.nvml import NvmlStub
from support.processes import Process, Processes, free_port, processes

from isotach import settings
from isotach.service import Service
from telemetry.errors import SettingsError

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "isotach-agent.service"


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.heard: list[dict[str, str]] = []

    def hear(self) -> list[dict[str, str]]:
        """Everything that was said so far."""
        while True:
            try:
                text = self._socket.recv(4096).decode()
            except BlockingIOError:
                return self.heard
            self.heard.append(dict(line.split("=", 1) for line in text.splitlines()))

    def said(self, name: str) -> int:
        return sum(name in message for message in self.hear())

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A socket with a path, or with a name that no file has."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@isotach-{os.getpid()}-{tmp_path.name}"
    found = Manager(address)
    yield found
    found.close()


# --- words to the manager ----------------------------------------------------------------------------------------


def test_the_manager_hears_what_is_said(manager: Manager) -> None:
    """READY, RELOADING with the time on the monotonic clock, STOPPING: each one datagram."""
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    service = Service.from_environment(environment)
    assert environment == {}
    service.ready("collecting: nvml")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    service.reloading()
    service.stopping()
    service.close()
    ready, reloading, stopping = manager.hear()
    assert ready == {"READY": "1", "STATUS": "collecting: nvml"}
    assert reloading["RELOADING"] == "1"
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    assert stopping == {"STOPPING": "1"}


def test_the_watchdog_is_fed_only_while_the_loop_goes_round(manager: Manager) -> None:
    """Three times in its span while turns are counted; never for a loop that stands still."""
    now = [0.0]
    service = Service(manager.address, watchdog_s=30.0, monotonic=lambda: now[0])
    turns = 0
    for _ in range(120):
        now[0] += 0.5
        turns += 1
        service.alive(turns)
    assert manager.said("WATCHDOG") == 6
    for _ in range(1000):
        now[0] += 0.5
        service.alive(turns)
    assert manager.said("WATCHDOG") == 6
    service.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nonexistent/notify"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "@isotach-nobody", "WATCHDOG_USEC": "x"},
    ],
)
def test_a_manager_that_is_not_there_is_no_error(environment: dict[str, str]) -> None:
    """Nothing raises, whatever the variables hold."""
    service = Service.from_environment(environment)
    for say in (service.ready, service.reloading, service.stopping):
        say()
    service.alive(5)
    service.close()
    service.ready()


def test_a_watchdog_that_is_meant_for_another_process_is_not_fed(manager: Manager) -> None:
    """WATCHDOG_PID names a process; the variable may have been inherited."""
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    service = Service.from_environment(environment)
    service.alive(1)
    assert manager.hear() == []
    service.close()


def test_the_unit_asks_for_what_the_agent_tells() -> None:
    """Its command line is the agent's own; systemd waits for its word, feeds on it, and asks it to read again."""
    text = UNIT.read_text(encoding="utf-8")
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    program, name, *arguments = service["ExecStart"].split()
    assert (Path(program).name, name, arguments[0]) == ("isotach", "agent", "--config")
    assert service["Type"] == "notify"
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    assert int(service["WatchdogSec"]) >= 60


# --- settings read again -----------------------------------------------------------------------------------------


def context_of(config: Path, *arguments: str) -> click.Context:
    """The agent's command line, parsed and not run."""

    @click.command("agent")
    @settings.options("agent")
    def command(**_values: object) -> None:
        """Nothing runs."""

    return command.make_context("agent", ["--config", str(config), *arguments])


def test_a_file_read_again_loses_to_flags_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the start: flag, environment, file, default; what left the file has its default again."""
    config = tmp_path / "isotach.toml"
    config.write_text('interval_s = 2\nbatch_s = 2\nseed = 2\nplace = ["rack=r2"]\nfleet = "demo"\n')
    monkeypatch.setenv("ISOTACH_BATCH_S", "3")
    context = context_of(config, "--interval-s", "4")
    config.write_text("interval_s = 5\nbatch_s = 5\nseed = 5\nnice = 3\n")
    values = settings.reread(context)
    assert (values["interval_s"], values["batch_s"], values["seed"], values["nice"]) == (4.0, 3.0, 5, 3)
    assert (values["place"], values["fleet"]) == ((), "small")
    assert values.keys() == context.params.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("intervall_s = 5\n", "did you mean 'interval_s'"),
        ("interval_s = \n", "line 1"),
        ("interval_s = 0\n", "interval-s"),
        ('nice = "very"\n', "nice"),
        ('log_level = "loud"\n', "log-level"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place(text: str, said: str, tmp_path: Path) -> None:
    """Unknown keys, broken TOML, values out of range: one sentence with the file and what is wrong in it."""
    config = tmp_path / "isotach.toml"
    config.write_text("seed = 2\n")
    context = context_of(config)
    config.write_text(text)
    with pytest.raises(SettingsError) as error:
        settings.reread(context)
    assert str(config) in str(error.value)
    assert said in str(error.value)


# --- a real agent ------------------------------------------------------------------------------------------------


def agent(site: Processes, nvml: NvmlStub, *more: object, **environment: str) -> Process:
    """An agent over the NVML stub, whose server is away."""
    words = ("agent", "--collector", "nvml", "--server", "http://127.0.0.1:1", *more)
    return site.start("agent", *words, environment={**nvml.environment, **environment})


def shown(port: int) -> Callable[[str], float]:
    """A reader of one metric of an agent."""

    def read(name: str) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                page = answer.read().decode()
        except OSError:
            return -1.0
        found = re.search(rf"^isotach_agent_{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else -1.0

    return read


@pytest.mark.processes
@pytest.mark.xdist_group("site")
def test_a_hangup_changes_what_can_be_changed(nvml: NvmlStub, tmp_path: Path) -> None:
    """A new pace, level and limit without a restart; what needs one is named; a bad file changes nothing."""
    config = tmp_path / "isotach.toml"
    config.write_text('interval_s = 3600\nlog_level = "info"\nmax_cpu_ratio = 0\n')
    with processes(tmp_path) as site:
        port = free_port()
        metric = shown(port)
        one = agent(site, nvml, "--config", config, "--metrics-port", port, "--batch-s", 1)
        samples = 'samples_total{collector="nvml"}'
        site.until(lambda: metric(samples) == 8, "the first samples")
        config.write_text('interval_s = 0.5\nlog_level = "debug"\nmax_cpu_ratio = 0\nexpected_gpus = 8\nseed = 7\n')
        one.send(signal.SIGHUP)
        site.until(lambda: metric(samples) > 40, "samples at the new pace")
        [line] = [line for line in one.output.splitlines() if "settings read again" in line]
        assert "interval_s 3600.0 -> 0.5" in line
        assert "log_level info -> debug" in line
        assert "needs a restart: expected_gpus, seed" in line
        config.write_text("intervall_s = 9\n")
        one.send(signal.SIGHUP)
        site.until(lambda: metric('reloads_total{outcome="failed"}') == 1, "a failure is counted")
        before = metric(samples)
        site.until(lambda: metric(samples) > before + 16, "the old pace goes on")
        assert metric('reloads_total{outcome="ok"}') == 1
        assert "settings stay as they were" in one.output
        assert "did you mean 'interval_s'" in one.output
        assert "Traceback" not in one.output
        assert one.stop() == 0


@pytest.mark.processes
@pytest.mark.xdist_group("site")
def test_a_service_manager_is_told_how_a_real_agent_goes(nvml: NvmlStub, manager: Manager, tmp_path: Path) -> None:
    """Ready once it collects, fed while it does, reloading and ready again, stopping; its children say nothing."""
    with processes(tmp_path) as site:
        one = agent(site, nvml, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="3000000")
        site.until(lambda: manager.said("READY") == 1, "it is ready")
        assert "collecting: nvml" in manager.hear()[0]["STATUS"]
        site.until(lambda: manager.said("WATCHDOG") >= 3, "the watchdog is fed")
        children = site.until(lambda: psutil.Process(one.pid).children(), "NVML is read")
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & children[0].environ().keys()
        one.send(signal.SIGHUP)
        site.until(lambda: manager.said("READY") == 2, "it is ready again")
        names = [name for message in manager.hear() for name in message if name in ("READY", "RELOADING")]
        assert names == ["READY", "RELOADING", "READY"]
        assert manager.said("STOPPING") == 0
        assert one.stop() == 0
        assert manager.said("STOPPING") == 1


@pytest.mark.processes
@pytest.mark.xdist_group("site")
def test_an_agent_lets_others_go_first(nvml: NvmlStub, tmp_path: Path) -> None:
    """It and the processes that it starts have the niceness of the settings, all of their threads."""
    with processes(tmp_path) as site:
        one = agent(site, nvml, "--nice", 12)
        [child, *_] = site.until(lambda: psutil.Process(one.pid).children(), "NVML is read")
        assert child.nice() == 12
        threads = [int(path.name) for path in Path(f"/proc/{one.pid}/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {12}
        assert one.stop() == 0


def test_a_niceness_that_is_refused_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sandbox may forbid the call: a line of log, and the agent starts."""
    from isotach.process import be_nice

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    with caplog.at_level(logging.WARNING):
        be_nice(19)
    assert "Operation not permitted" in caplog.text
    monkeypatch.undo()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    be_nice(0)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
