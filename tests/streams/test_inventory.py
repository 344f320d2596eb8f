"""The inventory as the score job knows it: what nodes say of themselves, and where they are.

To add a case: messages of the inventory topic through `told`, then the frames.
"""

from typing import Any

import orjson
import polars as pl

from analytics.frames import frame
from streams import Message
from streams.inventory import Inventory
from streams.topics import INVENTORY
from telemetry.tables import TOPOLOGY


def message(node: str, *, seen_ns: int, **columns: Any) -> Message:
    gpu = {"gpu_uuid": f"GPU-{node}", "slot": 0, "model": "NVIDIA H100"} | columns.pop("gpu", {})
    value = {"node": node, "seen_ns": seen_ns, "gpus": [gpu]} | columns
    return Message(
        topic=INVENTORY, partition=0, offset=seen_ns, time_ns=seen_ns, key=node.encode(), headers={},
        value=orjson.dumps(value),
    )  # fmt: skip


def test_a_node_that_repeats_itself_changes_nothing() -> None:
    """Ten thousand agents send their inventory again and again: the frames are made anew only for news."""
    known = Inventory()
    assert not known.take([message("n0", seen_ns=10**18)])
    before = known.frames()
    known.take([message("n0", seen_ns=10**18 + 1)])
    assert known.frames() is before
    known.take([message("n0", seen_ns=10**18 + 2, gpu={"power_limit_w": 500.0})])
    assert known.frames() is not before
    assert known.frames()[0]["power_limit_w"].to_list() == [500.0]


def test_where_nodes_are_is_what_they_say_and_the_file_wins() -> None:
    """The rack by the file, the site by the node itself."""
    places = frame(TOPOLOGY, [{"node": "n0", "position": 0, "level": "rack", "value": "r7", "source": "file"}])
    known = Inventory(places)
    known.take([message("n0", seen_ns=10**18, place=[["rack", "r1"], ["site", "north"]])])
    known.take([message("n1", seen_ns=10**18, place=[["rack", "r1"]])])
    told = known.topology().sort("node", "position").select("node", "level", "value").rows()
    assert told == [("n0", "rack", "r7"), ("n0", "site", "north"), ("n1", "rack", "r1")]
    assert known.topology() is known.topology()


def test_a_file_with_short_names_places_nodes_with_full_ones() -> None:
    """`n0` of Slurm is the agent's `n0.cluster.local`, until another domain has one, too."""
    places = frame(TOPOLOGY, [{"node": "n0", "position": 0, "level": "rack", "value": "r7", "source": "slurm"}])
    known = Inventory(places)
    known.take([message("n0.cluster.local", seen_ns=10**18, place=[["site", "north"]])])
    told = known.topology().sort("node", "position").select("node", "level", "value").rows()
    assert told == [("n0.cluster.local", "rack", "r7"), ("n0.cluster.local", "site", "north")]
    known.take([message("n0.other.local", seen_ns=10**18)])
    assert known.topology().filter(level="rack")["node"].to_list() == ["n0"]


def test_a_node_that_leaves_is_nowhere() -> None:
    """A tombstone takes it out of frames and topology."""
    known = Inventory()
    known.take([message("n0", seen_ns=10**18, place=[["rack", "r1"]])])
    gone = message("n0", seen_ns=10**18)
    known.take([Message(**({name: getattr(gone, name) for name in gone.__slots__} | {"value": None}))])
    assert known.topology().is_empty()
    assert isinstance(known.frames()[1], pl.DataFrame)
    assert known.frames()[1].is_empty()
