"""`isotach topology`: any topology in, Isotach's own form out."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.nvml import NvmlStub, gpu_uuid
from support.processes import Server, free_port, processes

from analytics.topology import inspect_topology
from isotach.commands.topology import command

FILES = Path(__file__).resolve().parents[1] / "data" / "topology"
FILE = FILES / "kubectl_nodes.json"


def test_what_it_prints_of_kubernetes_is_what_topology_reads(tmp_path: Path) -> None:
    """Labels of the site's own included; nodes without a place are a note, which is not in the file."""
    words = [str(FILE), "--label", "room=example.com/room", "--label", "cell=kubernetes.io/os"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""  # with a label that all have, all are placed
    file = tmp_path / "topology.yaml"
    file.write_text(done.stdout)
    written, _ = inspect_topology(file)
    read, _ = inspect_topology(FILE, labels={"room": "example.com/room", "cell": "kubernetes.io/os"})
    columns = ["node", "position", "level", "value"]
    assert written.select(columns).sort(columns).rows() == read.select(columns).sort(columns).rows()
    assert "cpu-1" in CliRunner().invoke(command, [str(FILE)]).stderr


def test_a_label_without_a_level_is_refused() -> None:
    """With the form that it should have."""
    done = CliRunner().invoke(command, [str(FILE), "--label", "example.com/room"])
    assert done.exit_code == 2
    assert "LEVEL=LABEL" in done.stderr


@pytest.mark.processes
@pytest.mark.xdist_group("site")
@pytest.mark.parametrize(
    ("file", "node", "place"),
    [
        ("tree.conf", "gpu04.cluster.local", [["leaf", "leaf2"], ["spine", "spine1"], ["core", "core"]]),
        ("scontrol_tree.txt", "GPU08", [["leaf", "leaf2"], ["spine", "spine"]]),
    ],
)
def test_an_agent_s_full_name_meets_slurm_s_short_one(
    file: str, node: str, place: list[list[str]], nvml: NvmlStub, tmp_path: Path
) -> None:
    """From Slurm's own file to the place of a GPU and to ranked blocks, whatever domain the agent's host name has."""
    with processes(tmp_path) as site:
        port = free_port()
        words = ("--store", tmp_path / "s.duckdb", "--port", port, "--node", node, "--topology", FILES / file)
        site.start("up", "up", *words, environment=nvml.environment)
        server = Server(port)
        site.until(lambda: server.ready() and server.total() == 8, "eight GPUs are listed", patience_s=60)
        assert server.get(f"/v1/gpus/{gpu_uuid(0)}")["place"] == place
        leaves = server.get("/v1/blocks?level=leaf")["items"]
        assert "leaf2" in {block["value"] for block in leaves}
