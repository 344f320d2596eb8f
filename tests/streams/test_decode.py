"""Tests of decoding: every kind of bad message is refused by its rule, and every good row comes through unchanged.

To add a bad message: one entry in `support.hostile.TRICKS`.
"""

import random
from collections.abc import Sequence

import numpy as np
import orjson
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from support.fleet import SECOND, START, batch, encoded, gpu, numbered, outgoing, rows_batch
from support.hostile import TRICKS, arrow, body, sample, samples, stream

from streams import Message, Outgoing
from streams.deadletter import RULES, dead_letters
from streams.decode import Decoded, decode, slices
from streams.topics import DEADLETTER, TELEMETRY
from telemetry.codec import Encoder, decompress
from telemetry.metrics import SAMPLED
from telemetry.records import SampleBatch

NOW = START + 100 * SECOND


def read(*messages: Outgoing, time_ns: int = NOW) -> list[Message]:
    """The messages as a log gives them."""
    return [
        Message(topic=TELEMETRY, partition=0, offset=i, time_ns=time_ns, key=m.key, headers=m.headers, value=m.value)
        for i, m in enumerate(messages)
    ]


def rules(decoded: Decoded) -> list[str]:
    return [one.rule for one in decoded.rejected]


IN_WINDOWS = frozenset({"from the future", "long ago"})  # decided by the state machine, not by the decoder


@pytest.mark.parametrize("name", [name for name in TRICKS if name not in IN_WINDOWS])
def test_a_bad_message_is_refused_by_its_rule_and_harms_no_other(name: str) -> None:
    """Between two good messages each bad one is refused, with a detail, and the good rows are all there."""
    rule, make = TRICKS[name]
    good = [outgoing(batch("n1")), outgoing(batch("n2"))]
    decoded = decode(read(good[0], make(random.Random(1)), good[1]))
    assert [(one.message, one.rule) for one in decoded.rejected] == [(1, rule)]
    assert decoded.rejected[0].detail
    assert decoded.rows.filter(pl.col("message") != 1).group_by("node", maintain_order=True).len().rows() == [
        ("n1", 20),
        ("n2", 20),
    ]


def test_every_rule_that_a_trick_names_exists() -> None:
    """Rules are the keys of the table that documents them."""
    assert {rule for rule, _ in TRICKS.values()} <= set(RULES)


@st.composite
def sample_batches(draw: st.DrawFn) -> SampleBatch:
    """Batches with any set of metrics, with and without nulls, as lists or as arrays."""
    metrics = draw(st.lists(st.sampled_from(SAMPLED), min_size=1, max_size=6, unique_by=lambda m: m.name))
    rows = draw(st.integers(1, 12))
    plain = draw(st.booleans())
    columns: dict[str, Sequence[int | float | None]] = {}
    for metric in metrics:
        low, high = int(metric.low or 0), int(min(metric.high if metric.high is not None else 10**9, 10**9))
        number = st.integers(low, high)
        values = draw(st.lists(number if plain else st.one_of(number, st.none()), min_size=rows, max_size=rows))
        if plain:
            columns[metric.name] = np.array(values, dtype=metric.type)  # type: ignore[assignment]
        elif metric.type.startswith("float"):
            columns[metric.name] = [None if value is None else float(value) for value in values]
        else:
            columns[metric.name] = values
    times, indices = [START + i * SECOND for i in range(rows)], [i % 4 for i in range(rows)]
    return SampleBatch(
        node=draw(st.sampled_from(["n1", "n2"])),
        gpus=tuple(gpu("x", i) for i in range(4)),
        interval_s=draw(st.sampled_from([0.5, 1.0, 15.0])),
        source="synthetic",
        time_ns=np.array(times) if plain else times,
        gpu=np.array(indices, dtype=np.uint16) if plain else indices,
        columns=columns,
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(sample_batches(), min_size=1, max_size=12))
def test_what_was_encoded_is_decoded(batches: list[SampleBatch]) -> None:
    """Any mix of schemas, with or without nulls, comes back row by row, in message order."""
    decoded = decode(numbered(batches, time_ns=NOW))
    assert decoded.rejected == []
    assert decoded.rows["rejected_values"].sum() == 0
    assert decoded.rows["message"].to_list() == [i for i, one in enumerate(batches) for _ in range(len(one))]
    at = 0
    for one in batches:
        rows = decoded.rows.slice(at, len(one))
        at += len(one)
        assert rows["gpu_uuid"].to_list() == [one.gpus[i] for i in one.gpu]
        assert rows["time_ns"].to_list() == list(one.time_ns)
        assert set(rows["node"]) == {one.node}
        assert set(rows["interval_s"]) == {one.interval_s}
        for name in decoded.rows.columns[6:]:
            expected = list(one.columns[name]) if name in one.columns else [None] * len(one)
            assert rows[name].to_list() == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(sample_batches(), min_size=1, max_size=8), st.integers(1, 7))
def test_messages_decode_alike_alone_and_together(batches: list[SampleBatch], cut: int) -> None:
    """How messages are grouped for speed does not show in the rows."""
    messages = numbered(batches, time_ns=NOW)
    together = decode(messages).rows
    pieces = []
    for i in range(0, len(messages), cut):
        rows = decode(messages[i : i + cut]).rows
        pieces.append(rows.with_columns(pl.col("message") + pl.lit(i, pl.UInt32)))
    apart = pl.concat(pieces, how="diagonal").select(together.columns)
    assert_frame_equal(together, apart)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_body_never_breaks_its_neighbours(seed: int, damage: list[tuple[int, int]]) -> None:
    """Bytes changed anywhere in a body, checksum made right again: refused or read, with the other messages whole."""
    whole = decompress(encoded(rows_batch("n1", [(i % 3, float(i)) for i in range(9)])).value)
    changed = bytearray(whole)
    for position, value in damage:
        changed[position % len(changed)] = value

    bad = body(bytes(changed))
    good = encoded(batch("n2", seconds=3))
    fine = Outgoing(topic=TELEMETRY, key=None, value=good.value, headers=good.headers)
    decoded = decode(read(fine, bad, fine))
    assert len(decoded.rows.filter(pl.col("message") != 1)) == 12
    assert set(rules(decoded)) <= set(RULES)


def test_garbage_values_are_null_and_counted() -> None:
    """Out of range, NaN and infinity become null in Arrow and in JSON alike, counted by row and by metric."""
    made = SampleBatch(
        node="n1",
        gpus=("GPU-a",),
        interval_s=1.0,
        source="synthetic",
        time_ns=np.array([START + i * SECOND for i in range(4)]),
        gpu=np.zeros(4, dtype=np.uint16),
        columns={
            "sm_clock_mhz": np.array([1755, 5_000, 5_001, 65_535], dtype=np.uint16),
            "temperature_c": np.array([-31, -30, 150, 151], dtype=np.int16),
            "power_w": np.array([np.nan, np.inf, -0.5, 700.0], dtype=np.float32),
            "ecc_corrected_total": np.array([0, 10**11, 10**12, 5], dtype=np.uint64),
        },
    )
    decoded = decode(numbered([made], time_ns=NOW))
    assert decoded.rejected == []
    assert decoded.rows["sm_clock_mhz"].to_list() == [1755, 5_000, None, None]
    assert decoded.rows["temperature_c"].to_list() == [None, -30, 150, None]
    assert decoded.rows["power_w"].to_list() == [None, None, None, 700.0]
    assert decoded.rows["ecc_corrected_total"].to_list() == [0, 10**11, None, 5]
    assert decoded.rows["rejected_values"].to_list() == [2, 1, 3, 2]
    assert decoded.garbage == {"sm_clock_mhz": 2, "temperature_c": 2, "power_w": 3, "ecc_corrected_total": 1}
    text = decode(
        read(samples(sample(sm_clock_mhz=65_536, power_w=-1, temperature_c=60), sample(power_w=1e40, gpu_uuid="b")))
    )
    assert text.rows["rejected_values"].to_list() == [2, 1]
    assert "sm_clock_mhz" not in text.rows.columns
    assert text.garbage == {"sm_clock_mhz": 1, "power_w": 2}


def test_json_and_arrow_give_the_same_rows() -> None:
    """The same samples in both forms decode to the same frame, large counters to the last digit."""
    energy = 2**63 + 12_345
    made = SampleBatch(
        node="n1", gpus=("GPU-a",), interval_s=2.0, source="synthetic", time_ns=[START], gpu=[0],
        columns={"sm_clock_mhz": [1980], "power_w": [512.5], "energy_mj": [energy], "row_remap_pending": [1]},
    )  # fmt: skip
    one = {
        "gpu_uuid": "GPU-a",
        "time_ns": START,
        "sm_clock_mhz": 1980.0,
        "power_w": 512.5,
        "energy_mj": energy,
        "row_remap_pending": True,
    }
    text = samples(one, node="n1", interval_s=2)
    assert_frame_equal(decode(numbered([made], time_ns=NOW)).rows, decode(read(text)).rows)


def test_unknown_metrics_are_counted_and_harmless() -> None:
    """A newer producer's metric is left out, the rest of its sample is used."""
    decoded = decode(read(samples(sample(warp_factor=9, fan_rpm="fast"))))
    assert rules(decoded) == []
    assert decoded.unknown_values == 2
    assert decoded.rows["power_w"].to_list() == [400.5]


def test_json_needs_no_content_type() -> None:
    """A value that begins like JSON is JSON, with a charset or without any header."""
    value = orjson.dumps({"node": "n1", "interval_s": 1, "samples": [sample()]})
    for headers in ({}, {"content-type": b"Application/JSON; charset=utf-8"}):
        assert len(decode(read(Outgoing(topic=TELEMETRY, key=None, value=b" " + value, headers=headers))).rows) == 1


def test_rows_without_a_gpu_are_refused_and_the_rest_is_used() -> None:
    """An index outside the list of GPUs costs that row only."""
    decoded = decode(read(arrow(gpus=b"GPU-only")))
    (one,) = decoded.rejected
    assert one.rows is not None
    assert (one.count, one.rows["gpu"].unique().to_list()) == (5, [1])
    assert decoded.rows["gpu_uuid"].to_list() == ["GPU-only"] * 5


def test_nothing_gives_nothing() -> None:
    """No messages, and no good messages, give an empty frame with its columns."""
    assert decode([]).rows.columns[:3] == ["message", "gpu_uuid", "node"]
    assert decode(read(arrow(b""))).rows.height == 0


def test_slices_bound_what_one_decode_may_hold() -> None:
    """Messages that grow a thousandfold are decoded a few at a time."""
    zeros = {m.name: np.zeros(60_000, dtype=m.type) for m in SAMPLED if m.type == "uint64"}
    made = SampleBatch(
        node="n1", gpus=("GPU-a",), interval_s=1.0, source="synthetic",
        time_ns=np.full(60_000, START), gpu=np.zeros(60_000, dtype=np.uint16), columns=zeros,
    )  # fmt: skip
    message = Encoder().encode(made)
    assert len(message.value) < 100_000
    messages = numbered([batch("n1")] * 50, time_ns=NOW) + read(
        *[Outgoing(topic=TELEMETRY, key=None, value=message.value, headers=message.headers)] * 20
    )
    runs = list(slices(messages, max_bytes=32 << 20))
    assert [m for run in runs for m in run] == messages
    assert len(runs) > 5
    assert list(slices([])) == []


def test_dead_letters_keep_message_and_reason() -> None:
    """A refused message keeps key, value and headers; refused rows become JSON lines; nothing outgrows a message."""
    messages = read(*(message for _, message in stream(len(TRICKS), without=IN_WINDOWS)))
    decoded = decode(messages)
    for one in decoded.rejected:
        for letter in dead_letters(messages[one.message], one):
            assert letter.topic == DEADLETTER
            assert letter.headers["rule"].decode() == one.rule
            assert letter.headers["offset"] == b"%d" % messages[one.message].offset
            assert sum(map(len, letter.headers.values())) + len(letter.value or b"") < 1_000_000
            if one.rows is not None:
                rows = [orjson.loads(line) for line in (letter.value or b"").splitlines()]
                assert len(rows) == int(letter.headers["rows"])
            elif "cut-from" not in letter.headers:
                assert letter.value == (messages[one.message].value or b"")
