"""GPUs as row numbers, and medians of many small groups: the same answers as joins and windows over texts.

To add a case: a frame, and what polars says of it by the slow road.
"""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from analytics.crews import Crews
from analytics.keys import KEY, beside, by_gpu, contest, once, rows_of

names = st.integers(0, 40).map(lambda i: f"GPU-{i}")
values = st.one_of(st.none(), st.floats(-1e6, 1e6))


@settings(max_examples=50, deadline=None)
@given(st.lists(names, unique=True, max_size=40), st.lists(names, max_size=200))
def test_every_name_is_found_in_its_row_or_not_at_all(uuids: list[str], wanted: list[str]) -> None:
    """Few names and many, in any order, the same list itself, and names that are not there."""
    there = pl.Series(uuids, dtype=pl.String)
    for asked in (wanted, uuids, wanted[:1]):
        found = rows_of(there, pl.Series(asked, dtype=pl.String)).to_list()
        assert found == [uuids.index(one) if one in uuids else None for one in asked]


@settings(max_examples=50, deadline=None)
@given(st.lists(names, unique=True, max_size=40), st.lists(st.tuples(names, values), max_size=60))
def test_rows_by_gpu_are_those_of_known_ones_in_their_order(uuids: list[str], rows: list[tuple[str, float]]) -> None:
    """Rows of one GPU keep their order, and the frame says that it is sorted."""
    frame = pl.DataFrame(rows, schema={"gpu_uuid": pl.String, "x": pl.Float64}, orient="row")
    told = by_gpu(frame, pl.Series(uuids, dtype=pl.String))
    slow = sorted((uuids.index(name), at) for at, (name, _) in enumerate(rows) if name in uuids)
    assert told.rows() == [(number, rows[at][1]) for number, at in slow]
    assert told["gpu"].flags["SORTED_ASC"] or told.is_empty()
    assert once(told).to_list() == [told["gpu"].to_list().count(gpu) == 1 for gpu in told["gpu"]]


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_frames_beside_each_other_are_a_left_join(left: set[int], right: set[int]) -> None:
    """Also where both speak of the same GPUs, which is the fast road."""
    for others in (right, left):
        a = pl.DataFrame({"gpu": pl.Series(sorted(left), dtype=KEY)})
        b = pl.DataFrame({"gpu": pl.Series(sorted(others), dtype=KEY), "x": [str(i) for i in sorted(others)]})
        assert_frame_equal(beside(a, b), a.join(b, on="gpu", how="left", maintain_order="left"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), values), max_size=60), st.sampled_from([1, 200]))
def test_medians_of_crews_are_medians_of_groups(rows: list[tuple[int, float | None]], repeat: int) -> None:
    """Even and odd, with nulls, small groups and one that is larger than a row of the matrix."""
    rows = rows * repeat
    frame = pl.DataFrame(rows, schema={"key": pl.UInt64, "value": pl.Float64}, orient="row")
    slow = frame.select(
        pl.col("value").median().over("key"), pl.col("value").is_not_null().sum().over("key").alias("n")
    )
    crews = Crews(frame["key"])
    assert_frame_equal(crews.median(frame["value"]).to_frame(), slow.select("value"))
    assert crews.count(frame["value"].is_not_null()).to_list() == slow["n"].to_list()
    most = crews.most(frame["value"])
    assert_frame_equal(most.gather(crews.group.tolist()).to_frame(), frame.select(pl.col("value").max().over("key")))


def test_each_combination_of_labels_has_a_number_of_its_own() -> None:
    """Null is a label like any other, and no other's."""
    labels = ["a", "b", None, "ab"]
    frame = pl.DataFrame([(x, y) for x in labels for y in labels], schema=["x", "y"], orient="row")
    assert frame.select(contest("x", "y")).to_series().n_unique() == 16
