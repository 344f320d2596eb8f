"""Places from the labels of Kubernetes nodes, each provider's in its own order."""

import json
from pathlib import Path

import polars as pl
import pytest

from analytics.kubernetes_topology import LABELS, NEAREST_FIRST
from analytics.topology import inspect_topology
from telemetry.errors import BadInput

FILE = Path(__file__).resolve().parents[1] / "data" / "topology" / "kubectl_nodes.json"
CLIQUE = "0f1e2d3c-1111-4222-8333-444455556666.7"


def places(topology: pl.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Level and value of each node, nearest first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for node, level, value in topology.sort("node", "position").select("node", "level", "value").iter_rows():
        found.setdefault(node, []).append((level, value))
    return found


def test_each_provider_s_labels_are_levels_nearest_first() -> None:
    """AWS numbers from the top, with three layers or four; zeros are no domain, and empty labels no places."""
    topology, notes = inspect_topology(FILE)
    zone = [("zone", "z-a"), ("region", "z")]
    four = [("leaf", "nn-near"), ("spine", "nn-low"), ("core", "nn-mid"), ("tier_4", "nn-top")]
    assert places(topology) == {
        "gb200-1": [("nvlink_domain", CLIQUE), *four, *zone],
        "gb200-2": [("nvlink_domain", CLIQUE), *four, *zone],
        "p5-1": [("leaf", "nn-low"), ("spine", "nn-mid"), ("core", "nn-top"), *zone],
        "gce-1": [("subblock", "s1"), ("block", "b1"), *zone],
        "oci-1": [("rack", "r1"), ("leaf", "l1"), ("spine", "w1"), ("core", "i1")],
        "own-1": [("nvlink_domain", "nvl-1"), ("rack", "r7"), ("leaf", "leaf-a"), ("spine", "spine-a")],
        "old-1": [("leaf", "leaf-b"), ("spine", "spine-a")],
    }
    assert set(topology["source"]) == {"kubernetes"}
    assert notes == ["1 nodes have no label of a place, such as cpu-1: not placed"]


def test_a_site_s_own_labels_come_before_ours() -> None:
    """At their place if the level is a known one, else nearest of all."""
    labels = {"room": "example.com/room", "rack": "kubernetes.io/hostname", "shelf": "kubernetes.io/os"}
    topology, _ = inspect_topology(FILE, labels=labels)
    assert places(topology)["own-1"] == [
        ("shelf", "linux"), ("nvlink_domain", "nvl-1"), ("rack", "own-1"), ("leaf", "leaf-a"), ("spine", "spine-a"),
        ("room", "room-2"),
    ]  # fmt: skip


def test_every_level_has_its_distance() -> None:
    """A label's level without one would be nearest of all."""
    assert set(LABELS.values()) <= set(NEAREST_FIRST)


def test_a_node_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Two clusters' lists in one file: which of the two is meant nobody can say."""
    file = tmp_path / "nodes"
    nodes = [{"kind": "Node", "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": z}}} for z in "xy"]
    file.write_text(json.dumps({"kind": "List", "items": nodes}))
    with pytest.raises(BadInput, match="already items"):
        inspect_topology(file)
