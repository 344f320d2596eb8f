"""Topologies: every format gives the same kind of rows, wrong files say where they are wrong.

To add a format: a synthetic file under tests/data/topology and its line in `EXPECTED`.
"""

import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.frames import frame
from analytics.topology import combine, from_inventory, inspect_topology, read_topology, write_topology
from telemetry.errors import BadInput
from telemetry.tables import GPUS, NODES, TOPOLOGY

FILES = Path(__file__).resolve().parents[1] / "data" / "topology"

EXPECTED = {
    "isotach.yaml": ("gpu01", "nvlink_domain=nvl-a rack=r01 leaf=leaf1 spine=spine1", 7),
    "tree.conf": ("gpu04", "leaf=leaf2 spine=spine1 core=core", 6),
    "block.conf": ("node304", "block=B3 block_8=B[3-4] block_16=B[1-4]", 9),
    "topology.yaml": ("gpu05", "block=nvl2 block_8=nvl[1-2] leaf=leaf2 spine=spine", 8),
    "scontrol_block.txt": ("gpu09", "block=nvl3", 12),
    "scontrol_tree.txt": ("gpu08", "leaf=leaf2 spine=spine", 8),
    "kubectl_nodes.json": ("gce-1", "subblock=s1 block=b1 zone=z-a region=z", 7),
    "topograph.json": ("I22", "nvlink_sub_domain=nvl-1.2 nvlink_domain=nvl-1 leaf=leaf-a core=core", 4),
}


def place_of(topology: pl.DataFrame, node: str) -> str:
    """`rack=r1 spine=s1`, nearest first."""
    rows = topology.filter(pl.col("node") == node).sort("position")
    return " ".join(f"{level}={value}" for level, value in rows.select("level", "value").iter_rows())


def text_file(folder: Path, text: str) -> Path:
    """A topology file with this text, its name telling nothing."""
    path = folder / "topology"
    path.write_text(text)
    return path


def topology_frame(places: dict[str, list[tuple[str, str]]], source: str = "file") -> pl.DataFrame:
    """Rows of `topology` from ordered places."""
    return frame(
        TOPOLOGY,
        [
            {"node": node, "position": i, "level": level, "value": value, "source": source}
            for node, place in places.items()
            for i, (level, value) in enumerate(place)
        ],
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_every_format_is_told_by_its_content(name: str, tmp_path: Path) -> None:
    """A file is read the same under a name that says nothing."""
    node, place, nodes = EXPECTED[name]
    topology = read_topology(text_file(tmp_path, (FILES / name).read_text()))
    assert place_of(topology, node) == place
    assert topology["node"].n_unique() == nodes
    assert topology.n_unique(["node", "level"]) == topology.height
    assert topology.schema == frame(TOPOLOGY).schema


def test_every_synthetic_file_is_tested() -> None:
    """A new file under tests/data/topology needs its line here."""
    assert {path.name for path in FILES.iterdir()} - {"README.md"} == set(EXPECTED)


def test_what_has_no_place_is_said() -> None:
    """A flat topology and an instance without labels are notes for the user, not silence."""
    assert "flat1" in inspect_topology(FILES / "topology.yaml")[1][0]
    assert "I25" in inspect_topology(FILES / "topograph.json")[1][0]


def test_a_placeholder_block_keeps_its_place_in_the_aggregate(tmp_path: Path) -> None:
    """An empty second block leaves the third one in the second pair, as Slurm counts."""
    text = "BlockName=a Nodes=n1\nBlockName=b\nBlockName=c Nodes=n3\nBlockName=d Nodes=n4\nBlockSizes=1,2\n"
    topology = read_topology(text_file(tmp_path, text))
    assert [place_of(topology, node) for node in ("n1", "n3")] == ["block=a block_2=a,b", "block=c block_2=c,d"]


def test_physical_ids_that_do_not_tell_blocks_apart_are_not_used(tmp_path: Path) -> None:
    """Two blocks with one id in their comments stay two blocks."""
    text = "# a=X\nBlockName=a Nodes=n1\n# b=X\nBlockName=b Nodes=n2\n"
    topology = read_topology(text_file(tmp_path, text))
    assert [place_of(topology, node) for node in ("n1", "n2")] == ["block=a", "block=b"]


def test_a_second_tree_does_not_mix_with_the_first(tmp_path: Path) -> None:
    """Two trees that both call a switch `l1` keep two levels."""
    text = (
        "- topology: a\n  cluster_default: true\n  tree: {switches: [{switch: l1, nodes: 'n[1-2]'}]}\n"
        "- topology: b\n  tree: {switches: [{switch: l1, nodes: 'n[2-3]'}]}\n"
    )
    topology = read_topology(text_file(tmp_path, text))
    assert [place_of(topology, f"n{i}") for i in (1, 2, 3)] == ["leaf=l1", "leaf=l1 b_leaf=l1", "b_leaf=l1"]


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        ("BlockName=a Nodes=n1\nBlockSizes=-1\n", "bad_topology", "line 2"),
        ("BlockName=a Nodes=n1\nBlockSizes=4,12\n", "bad_topology", "power-of-two"),
        ("BlockName=a Nodes=n[1-2\n", "bad_hostlist", "line 1"),
        ("BlockName=a Nodes=n[0-999999999]\n", "hostlist_too_large", "line 1"),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", "node_placed_twice", "line 1"),
        ("BlockName=a Nodes=n1\nBlockName=a Nodes=n2\n", "bad_topology", "twice"),
        ("BlockName=a\nBlockSizes=4\n", "empty_topology", "no node"),
        ("SwitchName=a Nodes=n1\nNodeName=n1 CPUs=4\n", "bad_topology", "line 2"),
        ("SwitchName=a Switches=b\n", "bad_topology", "'b'"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "bad_topology", "below itself"),
        ("SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=n1\n", "bad_topology", "one parent"),
        ("levels: {rack: {r1: n1, r2: n1}}\n", "node_placed_twice", "n1"),
        ("levels:\n  node: {x: n1}\n", "reserved_level", "always there"),
        ("levels:\n  rack: {r1: n1}\n  rack: {r2: n2}\n", "bad_topology", "line 3"),
        ("nodes:\n  n1: [[rack]]\n", "bad_topology", "line 2"),
        ("nodes:\n  n1: 7\n", "bad_topology", "line 2"),
        ("levels: [1\n", "bad_yaml", "line"),
        ("racks: {r1: n1}\n", "unknown_format", "readable are"),
        ("hello\n", "unknown_format", "readable are"),
        ("", "unknown_format", "readable are"),
        ("# only a comment\n", "unknown_format", "readable are"),
        ('{"instances": [{"id": 7}]}', "bad_topology", "instances[0].id"),
        ('{"instances": [{"id": "a"}, {"id": "a"}]}', "bad_topology", "already"),
        ('{"instances": [{"id": "a,b", "network_layers": ["x"]}]}', "bad_node_name", "a,b"),
        ('{"instances": []}', "empty_topology", "no node"),
        ('{"kind": "List", "items": {}}', "bad_topology", "`items`"),
        ('{"kind": "List", "items": [7]}', "bad_topology", "items[0]"),
        ('{"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a"}}]}', "bad_topology", "items[0]"),
        ('{"kind": "List", "items": [{"kind": "Node", "metadata": {}}]}', "bad_topology", "items[0].metadata.name"),
        ('{"kind": "Node", "metadata": {"name": "a", "labels": {"x": 1}}}', "bad_topology", "items[0].metadata.labels"),
        ('{"kind": "NodeList", "items": []}', "empty_topology", "no node"),
        ('{"kind": "Node", "metadata": {"name": "a"}}', "empty_topology", "no label of a place"),
        ("- block: {}\n", "bad_topology", "line 1"),
        ("[" * 5_000, "bad_yaml", ""),
    ],
)
def test_a_wrong_file_says_where_and_what(text: str, rule: str, says: str, tmp_path: Path) -> None:
    """The error names its rule, the file, and the line or field."""
    with pytest.raises(BadInput) as refused:
        read_topology(text_file(tmp_path, text))
    assert refused.value.rule == rule
    assert says in refused.value.detail
    assert str(tmp_path) in refused.value.detail


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Binary and absent files are refused as such."""
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00n1")
    with pytest.raises(BadInput, match="UTF-8"):
        read_topology(path)
    with pytest.raises(BadInput, match="unreadable"):
        read_topology(tmp_path / "absent")


texts = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp", "Cn"]), min_size=1, max_size=8)
texts = texts.map(str.strip).filter(bool).filter(lambda text: "\ufeff" not in text)
levels = st.lists(texts.filter(lambda text: text not in ("node", "fleet")), unique=True, min_size=1, max_size=4)
node_names = st.from_regex(r"[a-z]{1,2}[0-9]{0,3}", fullmatch=True)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        node_names,
        levels.flatmap(lambda n: st.tuples(st.just(n), st.lists(texts, min_size=len(n), max_size=len(n)))),
        max_size=8,
    )
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, places: dict[str, tuple[list[str], list[str]]]
) -> None:
    """Names of any script, numbers, `no`, `1e3`, quotes: every node keeps its levels, values and their order."""
    topology = topology_frame({node: list(zip(*place, strict=True)) for node, place in places.items()})
    with_file = tmp_path_factory.getbasetemp() / "written.yaml"
    with_file.write_text(write_topology(topology))
    if not places:
        with pytest.raises(BadInput, match="no node"):
            read_topology(with_file)
        return
    assert read_topology(with_file).sort("node", "position").equals(topology.sort("node", "position"))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            node_names,
            st.lists(
                st.tuples(st.sampled_from(["rack", "leaf", "spine", "x", "y"]), st.sampled_from("ab")),
                unique_by=lambda p: p[0],
            ),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_combining_keeps_the_first_word_and_loses_nothing(sources: list[dict[str, list[tuple[str, str]]]]) -> None:
    """Each node and level appears once, with the value of the first source that has it, in the first one's order."""
    together = combine(*(topology_frame(one, f"s{i}") for i, one in enumerate(sources)))
    assert together.n_unique(["node", "level"]) == together.height
    expected: dict[tuple[str, str], tuple[str, str]] = {}
    for i, one in enumerate(sources):
        for node, place in one.items():
            for level, value in place:
                expected.setdefault((node, level), (value, f"s{i}"))
    rows = together.select("node", "level", "value", "source").iter_rows()
    assert {(node, level): (value, source) for node, level, value, source in rows} == expected
    for node, place in (sources[0] if sources else {}).items():
        order = together.filter(pl.col("node") == node).sort("position")["level"].to_list()
        assert [level for level in order if level in dict(place)] == [level for level, _ in place]


def test_levels_of_two_sources_are_put_in_order() -> None:
    """The NVLink domain of the inventory goes before the rack of the file, the leaf between rack and spine."""
    file = topology_frame({"n1": [("rack", "r1"), ("spine", "s1")]})
    inventory = topology_frame({"n1": [("nvlink_domain", "d"), ("rack", "other"), ("leaf", "l")]}, "inventory")
    assert place_of(combine(file, inventory), "n1") == "nvlink_domain=d rack=r1 leaf=l spine=s1"


def inventory(node: str, fabrics: list[str | None], place: object) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A node with a GPU for each fabric."""
    nodes = frame(NODES, [{"node": node, "seen_gpus": len(fabrics), "place": place, "seen_ns": 1}])
    rows = [{"gpu_uuid": f"g{i}", "node": node, "fabric": one, "seen_ns": 1} for i, one in enumerate(fabrics)]
    return nodes, frame(GPUS, rows)


UUID = "5dbd1c84-0000-4a3b-8d2e-111111111111"


@pytest.mark.parametrize(
    ("fabrics", "expected"),
    [
        ([f"{UUID}.7", f"{UUID}.7"], f"nvlink_domain={UUID}.7 rack=r1"),
        ([f"{UUID}.7", f"{UUID}.8"], "rack=r1"),
        ([f"{UUID}.7", None], "rack=r1"),
        (["00000000-0000-0000-0000-000000000000.0"] * 2, "rack=r1"),
        ([], "rack=r1"),
    ],
)
def test_a_fabric_is_a_domain_only_if_every_gpu_is_in_it(fabrics: list[str | None], expected: str) -> None:
    """Two nodes whose fabric is not there must not become one domain of zeros."""
    assert place_of(from_inventory(*inventory("n1", fabrics, [["rack", "r1"]])), "n1") == expected


def test_a_place_that_is_no_list_is_refused() -> None:
    """The node is named."""
    with pytest.raises(BadInput, match="n1"):
        from_inventory(*inventory("n1", [], json.dumps({"rack": 1}) + "x"))


def test_a_written_fleet_stays_short() -> None:
    """Twelve thousand nodes in racks of nine are one line a rack, and keys stay within what YAML allows."""
    places = {f"n{i:05d}": [("rack", f"r{i // 9}"), ("site", "s")] for i in range(9_000)}
    text = write_topology(topology_frame(places))
    assert text.count("\n") == 2 + 1_000
    assert max(map(len, text.splitlines())) < 1_024


def test_the_examples_of_the_manual_are_read(tmp_path: Path) -> None:
    """Every fenced example in docs/topology.md is a topology."""
    manual = (Path(__file__).resolve().parents[2] / "docs" / "topology.md").read_text()
    examples = [block.split("\n", 1)[1] for block in manual.split("```")[1::2]]
    assert len(examples) == 5
    for example in examples:
        assert read_topology(text_file(tmp_path, example)).height > 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.sampled_from(["1", "2,4", "1,2,4,8", "4,16"]))
def test_slurm_blocks_nest_and_hold_each_node_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], bs: str
) -> None:
    """Whatever the blocks are, a node is in one block a level, and a smaller block lies within one larger block."""
    names = iter(f"n{i:02d}" for i in range(99))
    blocks = [[next(names) for _ in range(size)] for size in sizes]
    lines = [
        f"BlockName=b{i} Nodes={','.join(nodes)}" if nodes else f"BlockName=b{i}" for i, nodes in enumerate(blocks)
    ]
    path = tmp_path_factory.getbasetemp() / "blocks.conf"
    path.write_text("\n".join([*lines, f"BlockSizes={bs}"]))
    if not any(sizes):
        with pytest.raises(BadInput, match="no node"):
            read_topology(path)
        return
    topology = read_topology(path)
    assert topology.n_unique(["node", "level"]) == topology.height == sum(sizes) * len(bs.split(","))
    wide = topology.pivot("level", index="node", values="value")
    order = topology.sort("position")["level"].unique(maintain_order=True).to_list()
    for near, far in pairwise(order):
        assert wide.group_by(near).agg(pl.col(far).n_unique())[far].max() == 1


def test_a_deep_tree_has_a_level_for_every_height(tmp_path: Path) -> None:
    """Switches four and five above the nodes, and leaves that hang at different depths."""
    text = (
        "SwitchName=top Switches=e,short\nSwitchName=e Switches=d\nSwitchName=d Switches=c\nSwitchName=c Switches=a\n"
        "SwitchName=a Nodes=n1\nSwitchName=short Nodes=n2\n"
    )
    topology = read_topology(text_file(tmp_path, text))
    assert place_of(topology, "n1") == "leaf=a spine=c core=d tier_4=e tier_5=top"
    assert place_of(topology, "n2") == "leaf=short tier_5=top"
