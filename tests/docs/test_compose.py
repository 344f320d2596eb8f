"""The compose file: readable by today's tools, and made of commands that exist."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from isotach.cli import cli

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"


def services() -> dict[str, Any]:
    """Services of the compose file by name."""
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"])


def test_a_compose_tool_reads_it() -> None:
    """podman-compose resolves the whole file without a complaint."""
    if shutil.which("podman") is None:
        pytest.skip("podman-compose asks for podman: apt-get install podman")
    command = [sys.executable, "-m", "podman_compose", "-f", str(COMPOSE), "config"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services())


def test_it_is_the_site_that_the_readme_names() -> None:
    """Kafka, three agents, two window jobs, two scorers, two API replicas."""
    roles = [name.partition("-")[0] for name in services()]
    assert {role: roles.count(role) for role in set(roles)} == {
        "kafka": 1,
        "agent": 3,
        "window": 2,
        "score": 2,
        "api": 2,
    }


@pytest.mark.parametrize(("name", "service"), [(n, s) for n, s in services().items() if n != "kafka"])
def test_its_commands_are_ours(name: str, service: dict[str, Any]) -> None:
    """Each service's command line is one that `isotach` accepts."""
    first, *rest = service["command"].split()
    command = cli.get_command(click.Context(cli), first)
    assert command is not None, name
    command.make_context(first, rest)
    assert service["environment"]["ISOTACH_BOOTSTRAP"] == "kafka:9092"


def test_nothing_is_published_beyond_loopback() -> None:
    """The host's ports are bound to 127.0.0.1."""
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
