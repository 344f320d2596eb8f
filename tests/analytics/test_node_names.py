"""One node under two spellings: joined where that is sure, and never where two nodes could be meant."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.node_names import meetings, under_names_of

A, B = "n1.a.example", "n1.b.example"


@pytest.mark.parametrize(
    ("told", "known", "met"),
    [
        (["n1", "n2"], ["n1", "n2"], {}),
        (["n1"], [A], {"n1": A}),
        ([A], ["n1"], {A: "n1"}),
        (["N1"], [A], {"N1": A}),
        ([A.upper()], [A], {A.upper(): A}),
        ([A + "."], [A], {A + ".": A}),
        (["n1", "n2"], [A, "n2"], {"n1": A}),
        ([A], [B], {}),  # two domains are two nodes
        (["n1"], [A, B], {}),
        ([A, B], ["n1"], {}),
        (["n1", B], [A, B], {}),
        (["n1", A], [A], {}),  # the file has both: its n1 is somebody else
        (["n1", "N1"], [A], {}),
        (["n1"], ["n10.a.example", "n01.a.example"], {}),
        (["10"], ["10.0.0.1"], {}),
        (["10.0.0.1"], ["10.0.0.2", "10"], {}),
        (["n1"], ["n1@10.0.0.1:9400"], {}),
        (["n 1", ""], ["n"], {}),
        ([], [A], {}),
    ],
)
def test_names_meet_where_that_is_sure(told: list[str], known: list[str], met: dict[str, str]) -> None:
    """Short and full name, in either direction and any case; nothing that two nodes could be called."""
    assert meetings(told, known) == met


NAMES = st.lists(st.sampled_from(["n1", "n2", "N1", A, B, "n2.a.example", "10.0.0.1", "n1@x:1"]), unique=True)


@given(NAMES, NAMES)
def test_nobody_meets_two(told: list[str], known: list[str]) -> None:
    """Each name meets one at most, nobody is met twice, and known names stay who they are."""
    met = meetings(told, known)
    assert len(set(met.values())) == len(met)
    assert met.keys() <= set(told) - set(known)
    assert set(met.values()) <= set(known) - set(told)


def test_a_topology_is_put_under_the_names_that_report() -> None:
    """All rows of the node, the others as they are; the very same frame if there is nothing to do."""
    topology = pl.DataFrame({"node": ["n1", "n1", "n2"], "level": ["rack", "site", "rack"], "value": ["r", "s", "r"]})
    named = under_names_of(topology, pl.Series(["n2", A]))
    assert named["node"].to_list() == [A, A, "n2"]
    assert under_names_of(named, pl.Series(["n2", A])) is named
