"""Tests of what a body must be before anything trusts it: the frame of a bare record batch, field by field.

To add a lie that a frame could tell: a test that writes it with `patched`.
"""

import struct
from array import array

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.codec import MAX_BODY_BYTES, Encoder, check_body, decompress, layout, parse_schema
from telemetry.errors import BadInput
from telemetry.metrics import SAMPLED
from telemetry.records import SampleBatch

ROWS = 5


def body_of(power: list[float | None] | None = None, *, first: int = 0) -> tuple[bytes, int]:
    """A body of five rows with three metrics, and its mask; with nulls where `power` has None."""
    batch = SampleBatch(
        node="n1",
        gpus=("GPU-a",),
        interval_s=1.0,
        source="synthetic",
        time_ns=array("q", [10**18 + first + i for i in range(ROWS)])
        if power is None
        else [10**18 + i for i in range(ROWS)],
        gpu=array("H", [0] * ROWS),
        columns={
            "sm_clock_mhz": array("H", [1980] * ROWS),
            "power_w": array("f", [500.0] * ROWS) if power is None else power,
            "energy_mj": array("Q", [2**40] * ROWS),
        },
    )
    made = Encoder().encode(batch)
    return decompress(made.value), parse_schema(made.headers["schema"].decode())


def patched(body: bytes, old: bytes, new: bytes) -> bytes:
    """The body with the first such bytes replaced."""
    assert len(old) == len(new)
    assert old in body
    return body.replace(old, new, 1)


def refused(body: bytes, mask: int) -> str:
    with pytest.raises(BadInput) as caught:
        check_body(body, mask)
    return caught.value.rule


def test_equal_frames_share_one_layout() -> None:
    """Batches that differ in their values only are checked once, and can be told apart from others by identity."""
    (one, mask), (other, _) = body_of(), body_of(first=77)
    assert one != other
    assert layout(one, mask) is layout(other, mask)
    assert layout(one, mask).plain
    with_nulls, _ = body_of([1.0, None, 3.0, None, 5.0])
    found = layout(with_nulls, mask)
    assert not found.plain
    assert found.nulls == (0, 0, 0, 2, 0)
    assert found.rows == ROWS


def test_a_column_that_lies_about_its_nulls_is_refused() -> None:
    """A decoder trusts the number of nulls: it must be that of the bits."""
    body, mask = body_of([1.0, None, 3.0, None, 5.0])
    for lie in (0, 1, 3, 5):
        changed = patched(body, struct.pack("<qq", ROWS, 2), struct.pack("<qq", ROWS, lie))
        assert refused(changed, mask) == "wrong_schema"
    for lie in (-1, ROWS + 1):
        changed = patched(body, struct.pack("<qq", ROWS, 2), struct.pack("<qq", ROWS, lie))
        assert refused(changed, mask) == "wrong_schema"


def test_a_buffer_that_does_not_fit_its_rows_is_refused() -> None:
    """Every column has as many bytes as its rows and type need, but for padding."""
    body, mask = body_of()
    (_, _, offset, size) = layout(body, mask).buffers[0]
    assert size == 8 * ROWS
    for lie, rule in ((0, "truncated"), (8 * ROWS - 1, "truncated"), (8 * ROWS + 64, "wrong_schema")):
        changed = patched(body, struct.pack("<qq", offset, size), struct.pack("<qq", offset, lie))
        assert refused(changed, mask) == rule


def test_a_buffer_outside_the_body_is_refused() -> None:
    """Neither beyond the end nor before the beginning."""
    body, mask = body_of()
    (_, _, offset, size) = layout(body, mask).buffers[-1]
    for place in ((offset + 10**6, size), (-8, size), (offset, -8), (2**62, 2**62), (offset, 10**9)):
        changed = patched(body, struct.pack("<qq", offset, size), struct.pack("<qq", *place))
        assert refused(changed, mask) == "truncated"


def test_another_schema_than_the_header_says_is_refused() -> None:
    """More columns, fewer columns, wider columns."""
    body, mask = body_of()
    assert refused(body, mask | 1 << 7) == "wrong_schema"
    assert refused(body, mask & (mask - 1)) == "wrong_schema"
    names = [metric.name for metric in SAMPLED]
    wider = sum(1 << names.index(name) for name in ("sm_clock_mhz", "energy_mj", "sw_power_cap_ns"))
    assert refused(body, wider) == "truncated"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_is_refused_by_a_rule_or_read(data: st.DataObject) -> None:
    """Whatever bytes are cut or changed, the answer is a number of rows or BadInput, never another error."""
    body, mask = body_of(data.draw(st.sampled_from([None, [1.0, None, 3.0, None, 5.0]])))
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))]) if data.draw(st.booleans()) else bytes(changed)
    try:
        outcome: int | str = check_body(cut, mask)
    except BadInput as error:
        outcome = error.rule
    assert outcome in ("truncated", "wrong_schema", *range(len(cut)))


def test_metadata_of_absurd_size_is_refused() -> None:
    """A frame says how long its metadata is: more than any schema needs is no frame of ours."""
    _, mask = body_of()
    assert refused(struct.pack("<II", 0xFFFF_FFFF, 1 << 20) + bytes(1 << 20), mask) == "wrong_schema"
    assert refused(struct.pack("<II", 0xFFFF_FFFF, 1 << 30) + bytes(64), mask) == "truncated"


def test_what_grows_too_much_is_a_bomb_and_what_is_cut_is_not() -> None:
    """With and without its size in the frame, a bomb is refused as one; a cut frame is no bomb."""
    zeros = bytes(MAX_BODY_BYTES + 1)
    sized = zstandard.ZstdCompressor(level=1).compress(zeros)
    maker = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    silent = maker.compress(zeros) + maker.flush()
    small = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(b"x" * 1_000)
    for value, rule in ((sized, "decompression_bomb"), (silent, "decompression_bomb"), (small[:-3], "not_zstd")):
        with pytest.raises(BadInput) as caught:
            decompress(value)
        assert caught.value.rule == rule
    assert decompress(small) == b"x" * 1_000
