"""Topograph's graph as JSON: instances with their network layers and labels, of every release so far.

To read a new label: one line in `LABELS`.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from analytics.places import Places
from analytics.slurm_topology import LEVELS
from telemetry.errors import BadInput

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "accelerator.topograph.run/sub-domain": "nvlink_sub_domain",
        "accelerator.topograph.run/domain": "nvlink_domain",
        "network.topology.nvidia.com/accelerator": "nvlink_domain",
        "network.topology.nvidia.com/leaf": "leaf",
        "network.topology.nvidia.com/block": "block",
        "network.topology.nvidia.com/spine": "spine",
        "network.topology.nvidia.com/core": "core",
        "network.topology.nvidia.com/datacenter": "datacenter",
    }
)
"""Labels of Topograph 1.0, then of 0.1 to 0.5, with our level, nearest first."""

_TIER = re.compile(r"fabric\.topograph\.run/tier-([0-9]{1,2})")


def read_graph(document: Mapping[str, Any]) -> tuple[Places, list[str]]:
    """Places from `{"instances": [{"id", "network_layers", "labels"}]}`, and notes on instances without any.

    NVLink domains come first, then the network layers, nearest first, as leaf, spine, core. Where an instance lists no
    layers they are taken from its labels. Empty layers are left out. Raises BadInput with the number of the instance.
    """
    instances = document.get("instances")
    if not isinstance(instances, list):
        raise BadInput("bad_topology", "`instances` must be a list, as Topograph's engine `graph` writes it")
    places, notes = Places("topograph"), []
    seen: dict[str, int] = {}
    for number, instance in enumerate(instances):
        where = f"instances[{number}]"
        node, layers, labels = _fields(instance, where)
        if node in seen:
            raise BadInput("bad_topology", f"{where}: id {node!r} is already instances[{seen[node]}]")
        seen[node] = number
        place: dict[str, str] = {}
        for key, level in LABELS.items():
            if labels.get(key) and not (layers and level in LEVELS):
                place.setdefault(level, labels[key])
        for position, value in enumerate(layers or tiers(labels)):
            if value:
                place.setdefault(LEVELS[position] if position < len(LEVELS) else f"tier_{position + 1}", value)
        for level, value in place.items():
            places.add([node], level, value, where=where)
        if not place:
            notes.append(f"{where}: {node} has neither network layers nor labels: not placed")
    return places, notes


def _fields(instance: object, where: str) -> tuple[str, list[str], dict[str, str]]:
    if not isinstance(instance, Mapping):
        raise BadInput("bad_topology", f"{where} must be an object")
    node, layers, labels = instance.get("id"), instance.get("network_layers") or [], instance.get("labels") or {}
    if not isinstance(node, str):
        raise BadInput("bad_topology", f"{where}.id must be text: the node's name")
    if not isinstance(layers, list) or not all(isinstance(layer, str) or layer is None for layer in layers):
        raise BadInput("bad_topology", f"{where}.network_layers must be a list of texts, nearest first")
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise BadInput("bad_topology", f"{where}.labels must be an object of texts")
    return node, [layer or "" for layer in layers], dict(labels)


def tiers(labels: Mapping[str, str]) -> list[str]:
    """The network layers out of labels `fabric.topograph.run/tier-N`, 0 the leaf."""
    found = {int(match[1]): value for key, value in labels.items() if (match := _TIER.fullmatch(key))}
    return [found.get(position, "") for position in range(max(found, default=-1) + 1)]
