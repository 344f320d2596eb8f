"""`isotach topology`: any topology in, Isotach's own form out."""

from pathlib import Path

from click.testing import CliRunner

from analytics.topology import inspect_topology
from isotach.commands.topology import command

FILE = Path(__file__).resolve().parents[1] / "data" / "topology" / "kubectl_nodes.json"


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
