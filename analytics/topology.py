"""Topologies: read from any file that has one, taken from the inventory, combined, written.

To read a new format: one function in a file of its own that fills `Places`, one branch in `_parse`, a section in
docs/topology.md, a file under tests/data/topology.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import polars as pl
import yaml

from analytics import kubernetes_topology, slurm_topology, topograph, yaml_text
from analytics.frames import frame, schema
from analytics.hostlist import expand, fold
from analytics.places import RESERVED, Places
from telemetry.errors import BadInput
from telemetry.tables import TOPOLOGY

MAX_BYTES = 64 << 20
"""Largest topology file: 100,000 nodes take a tenth of it."""

NVLINK_DOMAIN = "nvlink_domain"
"""Level of the GPUs' NVLink domain, nearest of all."""

ORDER: tuple[str, ...] = (
    *("nvlink_sub_domain", NVLINK_DOMAIN, "rack", "subblock", "leaf", "block", "spine", "core", "room", "datacenter"),
    *("zone", "region", "site"),
)
"""Well-known levels, nearest first: decides only where two sources say nothing about each other's order."""

_NO_UUID = "00000000-0000-0000-0000-000000000000"
_FORMATS = (
    "our own YAML (nodes:, levels:), Slurm topology.conf or topology.yaml, `scontrol show topology`, "
    "Topograph's graph JSON, `kubectl get nodes -o json`"
)


def read_topology(path: Path) -> pl.DataFrame:
    """Rows of `topology` from a file of any format in docs/topology.md, told apart by content, not by its name.

    A node appears once a level. Raises BadInput with the line or field and what to do about it.
    """
    return inspect_topology(path)[0]


def inspect_topology(path: Path, *, labels: Mapping[str, str] = MappingProxyType({})) -> tuple[pl.DataFrame, list[str]]:
    """The same with notes for the user: what the file holds that has no place in a topology.

    `labels`: level to label, of Kubernetes nodes, besides those that are known.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput("too_large", f"{path} is larger than {MAX_BYTES >> 20} MiB: no topology")
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput("unreadable", f"{path}: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput("not_text", f"{path}: byte {error.start} is not UTF-8; a topology is a text file") from None
    try:
        places, notes = _parse(text, labels)
    except BadInput as error:
        raise BadInput(error.rule, f"{path}: {error.detail}") from None
    if not places:
        raise BadInput("empty_topology", f"{path} places no node; {'; '.join(notes) or 'nothing was found in it'}")
    return places.frame(), notes


def _parse(text: str, labels: Mapping[str, str]) -> tuple[Places, list[str]]:
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if slurm_topology.looks_like_conf(first):
        return slurm_topology.read_conf(text), []
    if first.startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None  # YAML may begin with a brace, too, and its parser names the line
        if isinstance(document, dict) and "instances" in document:
            return topograph.read_graph(document)
        if isinstance(document, dict) and kubernetes_topology.looks_like(document):
            return kubernetes_topology.read_nodes(document, labels)
    root = yaml_text.parse(text)
    if isinstance(root, yaml.SequenceNode):
        return slurm_topology.read_yaml(root)
    if isinstance(root, yaml.MappingNode):
        parts = yaml_text.keys(root, "topology")
        if set(parts) and set(parts) <= {"nodes", "levels"}:
            return _read_own(parts), []
        if "instances" in parts:
            raise BadInput("bad_topology", "Topograph's graph is read as JSON only")
        raise BadInput("unknown_format", f"keys {', '.join(list(parts)[:5])!r}; readable are {_FORMATS}")
    raise BadInput("unknown_format", f"begins with {first[:60]!r}; readable are {_FORMATS}")


def _read_own(parts: dict[str, yaml.Node]) -> Places:
    """Places from `nodes:` (hostlist to ordered levels) and `levels:` (level to value to hostlist)."""
    places = Places("file")
    for text, place in yaml_text.keys(parts["nodes"], "nodes").items() if "nodes" in parts else ():
        where = yaml_text.where_of(place)
        names = _hostlist(text, where)
        for level, value in _pairs(place, text):
            places.add(names, level, value, where=where)
    for level, values in yaml_text.keys(parts["levels"], "levels").items() if "levels" in parts else ():
        for value, node in yaml_text.keys(values, level).items():
            lists = node.value if isinstance(node, yaml.SequenceNode) else [node]
            for hostlist in lists:
                where = yaml_text.where_of(hostlist)
                places.add(_hostlist(yaml_text.text_of(hostlist, value), where), level, value, where=where)
    return places


def _hostlist(text: str, where: str) -> list[str]:
    try:
        return expand(text)
    except BadInput as error:
        raise BadInput(error.rule, f"{where}: {error.detail}") from None


def _pairs(place: yaml.Node, what: str) -> list[tuple[str, str]]:
    """[level, value] pairs of a node, from a list of pairs or a mapping, in the order written; one level once."""
    if isinstance(place, yaml.MappingNode):
        return [(level, yaml_text.text_of(value, level)) for level, value in yaml_text.keys(place, what).items()]
    pairs: list[tuple[str, str]] = []
    for pair in yaml_text.items(place, what):
        texts = [yaml_text.text_of(part, what) for part in yaml_text.items(pair, what)]
        if len(texts) != 2:
            raise BadInput("bad_topology", f"{yaml_text.where_of(pair)}: {texts} under {what} must be [level, value]")
        pairs.append((texts[0], texts[1]))
    return pairs


def from_inventory(nodes: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of `topology` that the nodes know themselves, from rows of `nodes` and `gpus`.

    The levels of `place`, and before them `nvlink_domain` from the GPUs' `fabric`, if all GPUs of the node name the
    same one and its UUID is not all zeros. A `nvlink_domain` in `place` wins over the fabric's.
    """
    ready = gpus.group_by("node").agg(
        fabric=pl.col("fabric").first(),
        agree=pl.col("fabric").is_not_null().all() & (pl.col("fabric").n_unique() == 1),
    )
    domains = dict(ready.filter("agree").select("node", "fabric").iter_rows())
    rows: list[tuple[str, int, str, str, str]] = []
    for node, text in nodes.select("node", "place").iter_rows():
        place = _place(text, node)
        domain = domains.get(node)
        if domain and not domain.startswith(_NO_UUID) and NVLINK_DOMAIN not in place:
            rows.append((node, 0, NVLINK_DOMAIN, domain, "fabric"))
            first = 1
        else:
            first = 0
        rows.extend((node, first + i, level, value, "inventory") for i, (level, value) in enumerate(place.items()))
    return pl.DataFrame(rows, schema=schema(TOPOLOGY), orient="row")


def _place(text: str | None, node: str) -> dict[str, str]:
    """The levels of one node, the first of each name; raises BadInput for what is no list of pairs."""
    try:
        pairs = json.loads(text) if text else []
        place = {str(level): str(value) for level, value in reversed(pairs)}
    except (TypeError, ValueError):
        raise BadInput("bad_place", f"place of node {node}: {text!r:.100} is no list of [level, value]") from None
    return {level: place[level] for level, _ in pairs if level not in RESERVED}


def combine(*frames: pl.DataFrame) -> pl.DataFrame:
    """One topology out of several, the first to place a node at a level deciding: the file before the inventory.

    Each node's levels keep the order of the first frame; levels that only a later one has go beside their neighbours
    there, else where `ORDER` puts them, else last.
    """
    sources = [_by_node(one) for one in frames]
    rows: list[tuple[str, int, str, str, str]] = []
    for node in dict.fromkeys(node for source in sources for node in source):
        found: dict[str, tuple[str, str]] = {}
        order: tuple[str, ...] = ()
        for source in sources:
            place = source.get(node, {})
            found = place | found
            order = _merged(order, tuple(place))
        rows.extend((node, position, level, *found[level]) for position, level in enumerate(order))
    return pl.DataFrame(rows, schema=schema(TOPOLOGY), orient="row") if rows else frame(TOPOLOGY)


def _by_node(topology: pl.DataFrame) -> dict[str, dict[str, tuple[str, str]]]:
    """node to level to (value, source), levels in order."""
    places: dict[str, dict[str, tuple[str, str]]] = {}
    rows = topology.sort("position", maintain_order=True).select("node", "level", "value", "source")
    for node, level, value, source in rows.iter_rows():
        places.setdefault(node, {}).setdefault(level, (value, source))
    return places


@lru_cache(maxsize=1_024)
def _merged(order: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """The first order with the second one's new levels put in."""
    if not order:
        return more
    merged = list(order)
    for index, level in enumerate(more):
        if level in merged:
            continue
        after = next((other for other in reversed(more[:index]) if other in merged), None)
        before = next((other for other in more[index + 1 :] if other in merged), None)
        if after in order or (before is None and level not in ORDER):
            place = merged.index(after) + 1 if after is not None else len(merged)
        elif before is not None:
            place = merged.index(before)
        else:
            rank = ORDER.index(level)
            place = next((i for i, other in enumerate(merged) if other in ORDER[rank + 1 :]), len(merged))
        merged.insert(place, level)
    return tuple(merged)


def write_topology(topology: pl.DataFrame) -> str:
    """Our own YAML, one line for all nodes that are in the same place; `read_topology` gives back the same places."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, levels in _by_node(topology).items():
        groups.setdefault(tuple((level, value) for level, (value, _) in levels.items()), []).append(node)
    lines = ["# Nodes and the blocks they are in, nearest first; see docs/topology.md.", "nodes:"]
    for place, nodes in groups.items():
        pairs = ", ".join(f"[{yaml_text.quoted(level)}, {yaml_text.quoted(value)}]" for level, value in place)
        lines.extend(f"  {yaml_text.quoted(hostlist)}: [{pairs}]" for hostlist in _keys(nodes))
    return "\n".join(lines) + "\n" if groups else "nodes: {}\n"


def _keys(nodes: Sequence[str], *, longest: int = 900) -> Iterable[str]:
    """Hostlists short enough for a key: YAML allows 1,024 characters."""
    hostlist = fold(nodes)
    if len(hostlist) <= longest or len(nodes) == 1:
        yield hostlist
        return
    middle = len(nodes) // 2
    yield from _keys(nodes[:middle])
    yield from _keys(nodes[middle:])
