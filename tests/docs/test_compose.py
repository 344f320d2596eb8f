"""The compose file: readable by today's tools, and made of commands that exist."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_lines import VARIABLES, accepted

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
FOREIGN = ("kafka", "dcgm-exporter")  #: services that run others' programs
ALWAYS = {"kafka": 1, "window": 2, "score": 2, "api": 2}
PROFILES = {
    "simulated": {**ALWAYS, "agent": 3},
    "nvml": {**ALWAYS, "agent": 1},
    "dcgm": {**ALWAYS, "agent": 1, "dcgm": 1},
}
"""How many services of each role a profile starts."""


def services() -> dict[str, Any]:
    """Services of the compose file by name, of every profile."""
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"])


OURS = [(name, service) for name, service in services().items() if name not in FOREIGN]


def started(profile: str) -> list[str]:
    """Names of the services that a profile starts, by the file."""
    return [name for name, service in services().items() if profile in service.get("profiles", (profile,))]


@pytest.mark.parametrize("profile", PROFILES)
def test_it_is_the_site_that_its_head_names(profile: str) -> None:
    """Kafka, agents, two window jobs, two scorers, two API replicas; whatever the profile."""
    roles = [name.partition("-")[0] for name in started(profile)]
    assert {role: roles.count(role) for role in set(roles)} == PROFILES[profile]
    assert {p for service in services().values() for p in service.get("profiles", ())} == set(PROFILES)


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_a_compose_tool_starts_just_that(profile: str | None) -> None:
    """podman-compose resolves each profile without a complaint; without one the file .env makes it `simulated`."""
    if shutil.which("podman") is None:
        pytest.skip("podman-compose asks for podman: apt-get install podman")
    environment = {name: value for name, value in os.environ.items() if name != "COMPOSE_PROFILES"}
    if profile is not None:
        environment["COMPOSE_PROFILES"] = profile
    command = [sys.executable, "-m", "podman_compose", "-f", str(COMPOSE), "config"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(started(profile or "simulated"))


@pytest.mark.parametrize(("name", "service"), OURS)
def test_its_commands_are_ours(name: str, service: dict[str, Any]) -> None:
    """Each service's command line is one that `isotach` accepts, in the image that has it."""
    role, *rest = shlex.split(service["command"])
    accepted([role, *rest])
    assert service["environment"]["ISOTACH_BOOTSTRAP"] == "kafka:9092"
    assert set(service["environment"]) <= VARIABLES
    light = role == "agent" and "simulated" not in rest  # what simulates a fleet needs the server's packages
    assert service["image"] == ("isotach-agent:dev" if light else "isotach-server:dev")
    assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_who_reads_gpus_is_given_them() -> None:
    """NVML's agent and the exporter have all GPUs reserved; what an agent scrapes is a service of the file."""
    for name in ("agent-nvml", "dcgm-exporter"):
        (devices,) = services()[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}
    target = accepted(shlex.split(services()["agent-dcgm"]["command"]))["dcgm_targets"]
    assert [host.partition(":")[0] for host in target] == ["dcgm-exporter"]


def test_nothing_is_published_beyond_loopback() -> None:
    """The host's ports are bound to 127.0.0.1."""
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
