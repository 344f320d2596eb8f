"""Slurm topologies: topology.conf, `scontrol show topology`, topology.yaml, and what Topograph writes for Slurm.

To read another plugin's file: its keys in `_ENTRIES`, or its section in `read_yaml`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from analytics.hostlist import expand, fold
from analytics.places import Places
from analytics.yaml_text import items, keys, text_of, where_of
from telemetry.errors import BadInput

LEVELS: tuple[str, ...] = ("leaf", "spine", "core")
"""Names of the levels of a switch tree, from the nodes up; `tier_4` and so on above."""

_ENTRIES = re.compile(r"(?i)(switchname|blockname|aggregatedblock|blocksizes|blocklevels)\s*=")
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\"[^\"]*\"|\S*)")
_PHYSICAL = re.compile(r"#\s*([^\s=]+)=(\S.*)")


@dataclass(kw_only=True, slots=True)
class Switch:
    """A switch of a tree: what hangs below it, as names."""

    name: str
    where: str
    nodes: Sequence[str] = ()
    children: Sequence[str] = ()


@dataclass(kw_only=True, slots=True)
class Block:
    """A base block, or one of `level` made of several by Slurm."""

    name: str
    where: str
    nodes: Sequence[str] = ()
    level: str = "block"


@dataclass(kw_only=True, slots=True)
class Topology:
    """One topology as Slurm knows it; `physical` gives the hardware's own name of a switch or block."""

    switches: list[Switch] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    block_sizes: list[int] = field(default_factory=list)
    physical: dict[str, str] = field(default_factory=dict)


def looks_like_conf(line: str) -> bool:
    """Whether a first line that is no comment belongs to topology.conf or to `scontrol show topology`."""
    return _ENTRIES.match(line) is not None


def read_conf(text: str) -> Places:
    """Places from topology.conf or from the output of `scontrol show topology`.

    Trees become levels leaf, spine, core by the height above the nodes. Blocks become level `block`, and for each
    further block size a level `block_<size>` of as many consecutive blocks, as Slurm aggregates them; a block without
    nodes keeps its place in that count. A comment `# block001=B1`, as Topograph writes it, gives the hardware's own
    name, which is then the value: Slurm's are numbered anew whenever the file is made. Raises BadInput with the line.
    """
    topology = Topology()
    for number, line in _lines(text):
        where = f"line {number}"
        comment = _PHYSICAL.fullmatch(line)
        if comment:
            topology.physical[comment[1]] = comment[2].strip()
        elif not line.startswith("#"):
            _entry(topology, line, where)
    places = Places("slurm")
    _add_blocks(places, topology, prefix="")
    _add_tree(places, topology, prefix="")
    return places


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without blanks; a backslash at the end joins the next one, as in slurm.conf."""
    pending, start = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        start = start if pending else number
        line = pending + (line.lstrip() if pending.endswith(",") else line)
        if line.rstrip().endswith("\\"):
            pending = line.rstrip()[:-1].rstrip() + ("" if line.rstrip(" \\").endswith(",") else " ")
            continue
        line = line.strip()
        pending = ""
        if line:
            yield start, line


def _entry(topology: Topology, line: str, where: str) -> None:
    line = line.split("#", 1)[0].strip()
    if not looks_like_conf(line):
        raise BadInput(
            "bad_topology",
            f"{where}: {line[:80]!r} is no SwitchName=, BlockName=, AggregatedBlock= or BlockSizes= line",
        )
    values = {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}
    nodes = _names(values.get("nodes", ""), where)
    if "switchname" in values:
        children = _names(values.get("switches", ""), where)
        topology.switches.append(Switch(name=values["switchname"], where=where, nodes=nodes, children=children))
    elif "blockname" in values:
        topology.blocks.append(Block(name=values["blockname"], where=where, nodes=nodes))
    elif "aggregatedblock" in values:
        level = f"block_{_size(values.get('blocksize', ''), where)}"
        topology.blocks.append(Block(name=values["aggregatedblock"], where=where, nodes=nodes, level=level))
    else:
        sizes = values.get("blocksizes") or values.get("blocklevels") or ""
        topology.block_sizes = [_size(size, where) for size in sizes.split(",")]


def _names(text: str, where: str) -> list[str]:
    if text in ("", "(null)"):
        return []
    try:
        return expand(text)
    except BadInput as error:
        raise BadInput(error.rule, f"{where}: {error.detail}") from None


def _size(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text.strip()):
        raise BadInput("bad_topology", f"{where}: block size {text[:40]!r} is no number of nodes above 0")
    return int(text)


def read_yaml(root: yaml.Node) -> tuple[Places, list[str]]:
    """Places from a topology.yaml (Slurm 25.05 and later), and notes on topologies that have no places.

    The cluster's default topology keeps the plain level names; those of the others begin with the topology's name.
    Blocks come before trees, as they are nearer to the GPUs. Raises BadInput with the line.
    """
    found: list[tuple[str, bool, Topology]] = []
    notes: list[str] = []
    for entry in items(root, "topologies"):
        parts = keys(entry, "topology")
        name = text_of(parts["topology"], "topology") if "topology" in parts else ""
        if not name:
            raise BadInput("bad_topology", f"{where_of(entry)}: an entry without `topology: <name>`")
        default = "cluster_default" in parts and text_of(parts["cluster_default"], "cluster_default").lower() == "true"
        topology = Topology()
        if "block" in parts:
            _yaml_blocks(topology, parts["block"])
        elif "tree" in parts:
            _yaml_tree(topology, parts["tree"])
        else:
            kinds = ", ".join(sorted(set(parts) - {"topology", "cluster_default"})) or "nothing"
            notes.append(f"{where_of(entry)}: topology {name!r} ({kinds}) has no tree and no blocks: not read")
            continue
        found.append((name, default, topology))
    plain = next((name for name, default, _ in found if default), found[0][0] if found else "")
    places = Places("slurm")
    found.sort(key=lambda entry: (not entry[2].blocks, entry[0] != plain))
    kinds_seen: set[bool] = set()
    for name, default, topology in found:
        kind = bool(topology.blocks)
        taken = kind in kinds_seen
        kinds_seen.add(kind)
        prefix = f"{name}_" if taken and not default else ""
        _add_blocks(places, topology, prefix=prefix)
        _add_tree(places, topology, prefix=prefix)
    return places, notes


def _yaml_blocks(topology: Topology, node: yaml.Node) -> None:
    parts = keys(node, "block")
    if "block_sizes" in parts:
        sizes = items(parts["block_sizes"], "block_sizes")
        topology.block_sizes = [_size(text_of(size, "block_sizes"), where_of(size)) for size in sizes]
    for entry in items(parts.get("blocks"), "blocks"):
        block, where = keys(entry, "blocks"), where_of(entry)
        nodes = _names(text_of(block["nodes"], "nodes"), where) if "nodes" in block else []
        topology.blocks.append(Block(name=_required(block, "block", where), where=where, nodes=nodes))


def _yaml_tree(topology: Topology, node: yaml.Node) -> None:
    for entry in items(keys(node, "tree").get("switches"), "switches"):
        switch, where = keys(entry, "switches"), where_of(entry)
        below = {key: _names(text_of(switch[key], key), where) for key in ("nodes", "children") if key in switch}
        name = _required(switch, "switch", where)
        topology.switches.append(Switch(name=name, where=where, **below))


def _required(parts: Mapping[str, yaml.Node], key: str, where: str) -> str:
    if key not in parts:
        raise BadInput("bad_topology", f"{where}: `{key}:` is missing")
    return text_of(parts[key], key)


def _add_blocks(places: Places, topology: Topology, *, prefix: str) -> None:
    """Base blocks, then what Slurm makes of consecutive ones."""
    base = [block for block in topology.blocks if block.level == "block"]
    names = _values([block.name for block in base], topology.physical)
    for block in base:
        places.add(block.nodes, prefix + block.level, names[block.name], where=block.where)
    given = [block for block in topology.blocks if block.level != "block"]
    for block in given:
        places.add(block.nodes, prefix + block.level, block.name, where=block.where)
    if given or not topology.block_sizes:
        return
    smallest, *larger = topology.block_sizes
    for size in larger:
        count = size // smallest
        if size % smallest or count < 2 or count & (count - 1):
            sizes = ",".join(map(str, topology.block_sizes))
            raise BadInput("bad_topology", f"BlockSizes={sizes}: {size} is no power-of-two multiple of {smallest}")
        for start in range(0, len(base), count):
            group = base[start : start + count]
            value = _joined([names[block.name] for block in group])
            for block in group:
                places.add(block.nodes, f"{prefix}block_{size}", value, where=block.where)


def _joined(names: list[str]) -> str:
    """The name of several blocks together, as Slurm shows it: `nvl[1-2]`."""
    try:
        return fold(names)
    except BadInput:  # a physical name with spaces or commas
        return " + ".join(names)


def _values(names: list[str], physical: Mapping[str, str]) -> dict[str, str]:
    """What each switch or block is called: by the hardware's own names if they tell all of them apart."""
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput("bad_topology", f"{twice!r} is defined twice")
    values = {name: physical.get(name, name) for name in names}
    return values if len(set(values.values())) == len(values) else {name: name for name in names}


def _add_tree(places: Places, topology: Topology, *, prefix: str) -> None:
    """Every node's switches from the leaf up; a switch stands one above its highest child."""
    switches = {switch.name: switch for switch in topology.switches}
    names = _values([switch.name for switch in topology.switches], topology.physical)
    parents: dict[str, Switch] = {}
    for switch in topology.switches:
        for child in switch.children:
            if child not in switches:
                raise BadInput("bad_topology", f"{switch.where}: switch {child!r} below {switch.name!r} is not defined")
            if parents.setdefault(child, switch) is not switch:
                raise BadInput(
                    "bad_topology",
                    f"{switch.where}: switch {child!r} is also below {parents[child].name!r}; one parent only",
                )
    heights: dict[str, int] = {}
    for name in switches:
        _climb(name, parents, heights)
    ancestry = sorted(topology.switches, key=lambda switch: heights[switch.name])
    below: dict[str, dict[str, None]] = {}
    for switch in ancestry:
        under = dict.fromkeys(node for child in switch.children for node in below[child])
        under.update(dict.fromkeys(switch.nodes))  # scontrol repeats the nodes of the leaves at every switch above
        below[switch.name] = under
        height = heights[switch.name]
        level = LEVELS[height] if height < len(LEVELS) else f"tier_{height + 1}"
        places.add(under, prefix + level, names[switch.name], where=switch.where)


def _climb(name: str, parents: Mapping[str, Switch], heights: dict[str, int]) -> None:
    """Raise every switch above this one to at least one more than what is below it."""
    heights.setdefault(name, 0)
    height, path = heights[name], {name}
    while name in parents:
        name = parents[name].name
        height += 1
        if name in path:
            raise BadInput("bad_topology", f"{parents[name].where}: switch {name!r} is below itself")
        path.add(name)
        if heights.get(name, -1) >= height:
            return
        heights[name] = height
