"""Kubernetes nodes with their labels, as `kubectl get nodes -o json` prints them.

To read a new label: one line in `LABELS`; its level in `NEAREST_FIRST` if it is a new one.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from analytics.places import Places
from analytics.slurm_topology import LEVELS
from analytics.topograph import LABELS as TOPOGRAPH
from analytics.topograph import tiers
from telemetry.errors import BadInput

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "nvidia.com/gpu.clique": "nvlink_domain",  # GPU Feature Discovery: cluster UUID and clique, as the GPUs say it
        **TOPOGRAPH,
        "topology.k8s.aws/ultraserver-id": "nvlink_domain",
        "topology.kubernetes.io/rack": "rack",
        "oci.oraclecloud.com/host.rack_id": "rack",
        "oci.oraclecloud.com/rdma.local_block_id": "leaf",
        "oci.oraclecloud.com/rdma.network_block_id": "spine",
        "oci.oraclecloud.com/rdma.hpc_island_id": "core",
        "cloud.google.com/gce-topology-subblock": "subblock",
        "cloud.google.com/gce-topology-block": "block",
        "topology.kubernetes.io/zone": "zone",
        "topology.kubernetes.io/region": "region",
    }
)
"""Labels with our level; of two for one level the first counts."""

NEAREST_FIRST: tuple[str, ...] = (
    *("nvlink_sub_domain", "nvlink_domain", "rack", "subblock", "leaf", "block", "spine", "core", "tier_4", "tier_5"),
    *("room", "datacenter", "zone", "region", "site"),
)
"""The order of a node's levels; others, which the user named, are nearest."""

# AWS numbers its layers from the top: the highest one a node has is the one that it is connected to.
_AWS_LAYER = re.compile(r"topology\.k8s\.aws/network-node-layer-([1-9])")
_NO_DOMAIN = re.compile(r"[0-]+(?:\.[0-9]+)?")  #: H100 and B200 say a cluster of zeros


def looks_like(document: Mapping[str, Any]) -> bool:
    """Whether this is a list of objects of the Kubernetes API, or a node."""
    return document.get("kind") in ("List", "NodeList", "Node")


def read_nodes(document: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[Places, list[str]]:
    """Places from the labels of nodes, and a note on nodes without any that is known.

    `labels`: level to label, of the user's own; they come before ours. Empty labels are none. Raises BadInput with the
    number of the item.
    """
    items = [document] if document["kind"] == "Node" else document.get("items")
    if not isinstance(items, list):
        raise BadInput("bad_topology", "`items` must be a list, as `kubectl get nodes -o json` prints it")
    places = Places("kubernetes")
    seen: dict[str, int] = {}
    bare: list[str] = []
    for number, item in enumerate(items):
        where = f"items[{number}]"
        node, found = _node(item, where)
        if node in seen:
            raise BadInput("bad_topology", f"{where}: node {node!r} is already items[{seen[node]}]")
        seen[node] = number
        place = _place(found, labels)
        for level in sorted(place, key=_distance):
            places.add([node], level, place[level], where=where)
        if not place:
            bare.append(node)
    notes = [f"{len(bare)} nodes have no label of a place, such as {bare[0]}: not placed"] if bare else []
    return places, notes


def _node(item: object, where: str) -> tuple[str, Mapping[str, str]]:
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or item.get("kind", "Node") != "Node" or not isinstance(metadata, Mapping):
        raise BadInput("bad_topology", f"{where} must be a Node with its metadata")
    node, labels = metadata.get("name"), metadata.get("labels") or {}
    if not isinstance(node, str):
        raise BadInput("bad_topology", f"{where}.metadata.name must be text: the node's name")
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise BadInput("bad_topology", f"{where}.metadata.labels must be an object of texts")
    return node, labels


def _place(labels: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    place: dict[str, str] = {}
    for level, label in (*own.items(), *((level, label) for label, level in LABELS.items())):
        value = labels.get(label, "").strip()
        if value and not (level == "nvlink_domain" and _NO_DOMAIN.fullmatch(value)):
            place.setdefault(level, value)
    layers = {
        int(match[1]): value for label, value in labels.items() if value and (match := _AWS_LAYER.fullmatch(label))
    }
    for network in ([layers[layer] for layer in sorted(layers, reverse=True)], tiers(labels)):
        for position, value in enumerate(network):
            if value:
                place.setdefault(LEVELS[position] if position < len(LEVELS) else f"tier_{position + 1}", value)
    return place


def _distance(level: str) -> int:
    return NEAREST_FIRST.index(level) if level in NEAREST_FIRST else -1
