"""The encoder's short way for batches of equal shape gives what nanoarrow itself gives, byte for byte.

To test another way to encode: against `nanoarrow_body`, which knows nothing of shapes seen before.
"""

import io
import struct
from array import array
from typing import Any

import nanoarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nanoarrow import ipc

from telemetry.codec import END_OF_STREAM, Encoder, check_body, decompress, parse_schema
from telemetry.metrics import SAMPLED
from telemetry.records import SampleBatch

CODES = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int16": "h", "float32": "f"}


def batch_of(mask: int, rows: int, start: int) -> SampleBatch:
    """A batch with the metrics of a mask and values that differ from row to row."""
    columns = {
        metric.name: array(CODES[metric.type], [(start + i + row) % 97 for row in range(rows)])
        for i, metric in enumerate(SAMPLED)
        if mask >> i & 1
    }
    return SampleBatch(
        node="n1",
        gpus=("GPU-a",),
        interval_s=1.0,
        source="test",
        time_ns=array("q", range(start, start + rows)),
        gpu=array("H", [0] * rows),
        columns=columns,
    )


def nanoarrow_body(batch: SampleBatch) -> bytes:
    """The bare record batch as nanoarrow writes it from the same buffers."""
    metrics = [metric for metric in SAMPLED if metric.name in batch.columns]
    fields = {"time_ns": nanoarrow.int64(), "gpu": nanoarrow.uint16()}
    fields |= {metric.name: getattr(nanoarrow, metric.type)() for metric in metrics}
    columns: list[Any] = [batch.time_ns, batch.gpu, *(batch.columns[metric.name] for metric in metrics)]
    children = [
        nanoarrow.c_array_from_buffers(kind, len(batch), [None, values])
        for kind, values in zip(fields.values(), columns, strict=True)
    ]
    whole = nanoarrow.c_array_from_buffers(nanoarrow.struct(fields), len(batch), [None], children=children)
    out = io.BytesIO()
    with ipc.StreamWriter.from_writable(out) as writer:
        writer.write_stream(nanoarrow.c_array_stream(whole))
    stream = out.getvalue()
    return stream[8 + struct.unpack_from("<I", stream, 4)[0] : -len(END_OF_STREAM)]


@settings(max_examples=40, deadline=None)
@given(mask=st.integers(0, (1 << len(SAMPLED)) - 1), rows=st.integers(1, 90), start=st.integers(0, 1_000))
def test_buffers_become_the_bytes_that_nanoarrow_writes(mask: int, rows: int, start: int) -> None:
    """Whatever the columns and the number of rows, twice, so that the second one finds the shape known."""
    encoder = Encoder()
    for shift in (0, 5):
        batch = batch_of(mask, rows, start + shift)
        encoded = encoder.encode(batch)
        body = decompress(encoded.value)
        assert body == nanoarrow_body(batch)
        assert check_body(body, parse_schema(encoded.headers["schema"].decode())) == rows


@pytest.mark.parametrize(
    "wrong",
    [
        {"sm_clock_mhz": array("H", [1] * 3)},
        {"sm_clock_mhz": array("I", [1] * 2)},
        {"sm_clock_mhz": memoryview(array("H", [1] * 8))[::2]},
        {"power_w": array("d", [1.0] * 4)},
        {"energy_mj": array("d", [1.0] * 4)},
        {"speed": array("f", [1.0] * 4)},
    ],
    ids=["too few rows", "as many bytes of another type", "not contiguous", "float64", "same width", "unknown"],
)
def test_a_wrongly_built_batch_is_refused(wrong: dict[str, Any]) -> None:
    """A collector's mistake is an error there, not garbage on the wire."""
    good = batch_of(1, 4, 0)
    bad = SampleBatch(
        node="n1",
        gpus=good.gpus,
        interval_s=1.0,
        source="test",
        time_ns=good.time_ns,
        gpu=good.gpu,
        columns={**good.columns, **wrong},
    )
    with pytest.raises(ValueError, match="batch"):
        Encoder().encode(bad)
