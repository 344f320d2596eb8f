"""Hostlists: what is written comes back, what is hostile is refused.

To add a case: a line in a table below.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.hostlist import expand, fold
from telemetry.errors import BadInput

names = st.from_regex(r"[a-z]{0,2}[0-9]{0,4}[a-z]?[0-9]{1,3}", fullmatch=True) | st.sampled_from(["login", "n-1.site"])


def test_mixed_padding_survives_folding() -> None:
    """n1, n01 and n001 stay three nodes."""
    given_names = ["n01", "n02", "n10", "n007", "n008", "n001", "n1"]
    assert sorted(expand(fold(given_names))) == sorted(given_names)


@settings(max_examples=150, deadline=None)
@given(st.sets(names, min_size=1, max_size=30))
def test_whatever_is_folded_expands_to_the_same_names(nodes: set[str]) -> None:
    """No name is lost, added or padded differently by folding."""
    expanded = expand(fold(nodes))
    assert len(expanded) == len(nodes)
    assert set(expanded) == nodes


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9_990), st.integers(1, 60), st.integers(1, 6))
def test_a_run_of_numbers_folds_to_one_range(start: int, count: int, width: int) -> None:
    """A thousand nodes in a row are one short text, whatever their padding."""
    nodes = [f"gpu{number:0{width}d}" for number in range(start, start + count)]
    assert len(fold(nodes).split(",")) <= 2  # two where the numbers outgrow their padding
    assert sorted(expand(fold(nodes))) == sorted(nodes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu[01-04,07],login1", ["gpu01", "gpu02", "gpu03", "gpu04", "gpu07", "login1"]),
        ("rack[1-2]node[01-02,07]", [f"rack{r}node{n}" for r in "12" for n in ("01", "02", "07")]),
        ("n[1-2,0[3-4]]", ["n1", "n2", "n03", "n04"]),
        ("n[08-10]-ib", ["n08-ib", "n09-ib", "n10-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (" a , b ", ["a", "b"]),
    ],
)
def test_slurm_syntax_is_understood(text: str, expected: list[str]) -> None:
    """Ranges, lists, several dimensions, suffixes and nested brackets mean what Slurm means by them."""
    assert expand(text) == expected


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("n[0-999999999]", "hostlist_too_large"),
        ("r[0-9999]c[0-9999]", "hostlist_too_large"),
        ("n[0-99999],n[0-99999],n[0-9]", "hostlist_too_large"),
        ("n[" + "0-9," * 30_000 + "0]", "hostlist_too_large"),
        ("n[99999999999999999999-99999999999999999999]", "bad_hostlist"),
        ("n[1-5", "bad_hostlist"),
        ("n1-5]", "bad_hostlist"),
        ("[" * 100 + "1" + "]" * 100, "bad_hostlist"),
        ("n[]", "bad_hostlist"),
        ("n[a-c]", "bad_hostlist"),
        ("n[1-010]", "bad_hostlist"),
        ("n[5-1]", "bad_hostlist"),
        ("", "bad_hostlist"),
        ("a,,b", "bad_hostlist"),
        ("block{nvl2}", "bad_hostlist"),
        ("a b", "bad_node_name"),
        ("x" * 300, "bad_node_name"),
    ],
)
def test_a_malformed_or_hostile_list_is_refused(text: str, rule: str) -> None:
    """The refusal names its rule and comes before any name is made."""
    with pytest.raises(BadInput) as refused:
        expand(text)
    assert refused.value.rule == rule


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="n0123[]-,{} x", max_size=30))
def test_any_text_is_either_names_or_a_clear_refusal(text: str) -> None:
    """No text crashes the parser."""
    try:
        found = expand(text, limit=1_000)
    except BadInput:
        return
    assert 1 <= len(found) <= 1_000


def test_names_that_cannot_be_folded_are_refused() -> None:
    """A name with a comma would come back as two nodes."""
    with pytest.raises(BadInput, match="no node name"):
        fold(["a,b"])
