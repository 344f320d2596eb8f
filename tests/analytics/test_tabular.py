"""Tables of strangers: read whole, in chunks; good rows become ours, bad ones are named with their number.

To add a case: the file's text with `written`, or a column with `table`.
"""

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analytics.table_file
from analytics.cells import times_ns
from analytics.frames import frame
from analytics.metric_columns import metric_column
from analytics.tabular import RejectedRow, batches, guess_columns, is_telemetry, measurements, scan, telemetry
from telemetry.codec import Encoder
from telemetry.errors import BadInput
from telemetry.metrics import SAMPLED
from telemetry.records import SampleBatch
from telemetry.rows import check_measurement
from telemetry.tables import MEASUREMENTS

T0 = 1_767_225_600  # 2026-01-01 UTC
UUID = "GPU-5d0e7a11-0000-4000-8000-00000000000a"


def written(folder: Path, data: bytes | str) -> Path:
    """A file whose name tells nothing."""
    path = folder / "file"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(path: Path) -> pl.DataFrame:
    """All chunks as one frame."""
    return pl.concat(scan(path).chunks(), how="diagonal_relaxed")


def measured(
    source: pl.DataFrame | Path, columns: dict[str, str], evidence: list[str] | None = None
) -> tuple[pl.DataFrame, list[RejectedRow]]:
    """Measurements of a compute benchmark in ms."""
    return measurements(
        read(source) if isinstance(source, Path) else source,
        columns=columns,
        workload_class="compute",
        unit="ms",
        higher_is_better=False,
        name="sgemm",
        default_time_ns=T0 * 10**9,
        evidence=evidence,
    )


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        "uuid,node,perf\nGPU-a,n1,1.5\nGPU-b,,2\n",
        "\ufeffuuid;node;perf\r\nGPU-a;n1;1.5\r\nGPU-b;;2\r\n",
        'uuid\tnode\tperf\n"GPU-a"\t"n1"\t"1.5"\nGPU-b\t""\t2\n',
        "uuid, node, perf\nGPU-a, n1, 1.5\n\nGPU-b, , 2\n",
        gzip.compress(b"uuid|node|perf\nGPU-a|n1|1.5\nGPU-b||2\n", mtime=0),
    ],
)
def test_csv_in_every_dress_is_the_same_table(data: bytes | str, tmp_path: Path) -> None:
    """Separators, quotes, spaces, byte order mark, line ends, gzip: the same two rows."""
    table = read(written(tmp_path, data))
    assert table.rows() == [("GPU-a", "n1", "1.5", 1), ("GPU-b", None, "2", 2)]


def test_ndjson_keeps_numbers_and_mixes_kinds_as_text(tmp_path: Path) -> None:
    """Keys may come and go, a column of numbers is numbers, one of both kinds is text."""
    lines = '{"gpu":"a","v":1,"m":1}\n{"gpu":"b","v":2.5,"m":"x","l":[1]}\n'
    path = written(tmp_path, lines)
    assert read(path).rows() == [("a", 1.0, "1", None, 1), ("b", 2.5, "x", "[1]", 2)]
    assert scan(path).columns == ("gpu", "v", "m", "l")


def test_parquet_comes_in_chunks_with_its_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is never held whole, and progress is known."""
    monkeypatch.setattr(analytics.table_file, "CHUNK_ROWS", 1_000)
    path = tmp_path / "file"
    pl.DataFrame({"v": range(2_500)}).write_parquet(path)
    table = scan(path)
    assert table.total_rows == 2_500
    chunks = list(table.chunks())
    assert [chunk.height for chunk in chunks] == [1_000, 1_000, 500]
    assert [chunk["__row__"][0] for chunk in chunks] == [1, 1_001, 2_001]


def test_broken_lines_are_named_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row numbers stay right across chunks, with bad lines in every one of them."""
    monkeypatch.setattr(analytics.table_file, "BLOCK_BYTES", 300)
    lines = [f"g{i},n,{i}" if i % 7 else f"g{i}" for i in range(1, 101)]
    table = scan(written(tmp_path, "gpu,node,v\n" + "\n".join(lines) + "\n"))
    chunks = list(table.chunks())
    assert len(chunks) > 2
    rows = pl.concat(chunks)
    assert rows["__row__"].to_list() == rows["v"].cast(pl.Int64).to_list()
    assert [bad.row for bad in table.rejected] == list(range(7, 101, 7))
    json_table = scan(written(tmp_path, '{"a":1}\nnonsense\n3\n{"a":2}\n'))
    assert [chunk["a"].to_list() for chunk in json_table.chunks()] == [[1, 2]]
    assert [(bad.row, bad.rule) for bad in json_table.rejected] == [(2, "not_json"), (3, "not_an_object")]


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "empty_file"),
        (b" \n\n", "empty_file"),
        (b"1,2\n3,4\n", "no_header"),
        (b"PK\x03\x04xlsx", "unknown_format"),
        (b'[{"a": 1}]', "unknown_format"),
        (b"{not json}\n", "unknown_format"),
        ("ä,b\n1,2\n".encode("latin-1"), "not_text"),
        ("a,b\n1,2\n".encode("utf-16"), "not_text"),
        (b"PAR1garbage", "bad_parquet"),
        (gzip.compress(b"a,b\n1,2\n" * 500, mtime=0)[:-12], "bad_gzip"),
        (b"\x1f\x8bnot really", "bad_gzip"),
        (b"a,b\n" + b"1,2\n" * 40_000 + b"1,\xff\xfe\n", "bad_csv"),
        (b"a,b\n1," + b"x" * (20 << 20), "bad_csv"),
    ],
)
def test_a_file_that_is_no_table_says_so(data: bytes, rule: str, tmp_path: Path) -> None:
    """One line that names what it is, and what to do."""
    with pytest.raises(BadInput) as refused:
        read(written(tmp_path, data))
    assert refused.value.rule == rule


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    """Not a stack trace."""
    with pytest.raises(BadInput, match="unreadable"):
        scan(tmp_path / "absent")


# Columns --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("uuid cabinet node dev_id ts perf freq", {"gpu": "uuid", "node": "node", "time": "ts", "value": "perf"}),
        ("GPU Hostname Time timestamp", {"gpu": "GPU", "node": "Hostname", "time": "timestamp", "value": "Time"}),
        ("gpu_uuid host time value perf", {"gpu": "gpu_uuid", "node": "host", "time": "time", "value": "value"}),
        ("node step_time_ms", {"node": "node", "value": "step_time_ms"}),
        (
            "GPU UUID|Node Name|Latency [ms]|unit",
            {"gpu": "GPU UUID", "node": "Node Name", "value": "Latency [ms]", "unit": "unit"},
        ),
    ],
)
def test_common_headers_need_no_mapping(columns: str, expected: dict[str, str]) -> None:
    """What anyone would see at a glance is guessed."""
    assert guess_columns(columns.split("|") if "|" in columns else columns.split()) == expected


@pytest.mark.parametrize("columns", ["uuid gemm_fp16 gemm_fp32", "uuid tflops latency", "perf other", "uuid node time"])
def test_an_ambiguous_header_asks(columns: str) -> None:
    """No silent choice between two values, or a time that may be one."""
    with pytest.raises(BadInput, match="say which one"):
        guess_columns(columns.split())


def test_a_wrong_column_name_is_answered_with_the_nearest() -> None:
    """And with the columns that are there."""
    table = pl.DataFrame({"uuid": ["a"], "perf": [1.0]})
    with pytest.raises(BadInput, match=r"no column 'uiud' \(did you mean 'uuid'\?\); there are uuid, perf"):
        measured(table, {"gpu": "uiud", "value": "perf"})
    with pytest.raises(BadInput, match="evid"):
        measured(table, {"gpu": "uuid", "value": "perf"}, evidence=["evid"])
    for columns in ({"gpu": "uuid"}, {"value": "perf"}, {"gpu": "uuid", "value": "perf", "colour": "perf"}):
        with pytest.raises(BadInput):
            measured(table, columns)


# Measurements ---------------------------------------------------------------------------------------------------------


def test_rows_that_are_no_results_are_rejected_with_their_number() -> None:
    """-1, nothing, NaN, text, infinity: never a measurement, never in silence."""
    values = ["1.5", "-1", None, "nan", "fast", "inf", "0", "[N/A]", "2,5"]
    good, bad = measured(pl.DataFrame({"gpu": ["x9a"] * 9, "v": values}), {"gpu": "gpu", "value": "v"})
    assert good["value"].to_list() == [1.5, 2.5]
    assert [(one.row, one.rule) for one in bad] == [
        (2, "not_above_zero"),
        *((row, "not_a_number") for row in (3, 4, 5, 6)),
        (7, "not_above_zero"),
        (8, "not_a_number"),
    ]
    assert "'fast'" in bad[3].detail


def test_who_a_row_speaks_of() -> None:
    """A UUID is itself, an index or bus id belongs to its node, other texts stand as they are."""
    gpus = [UUID, UUID.removeprefix("GPU-").upper(), "3", "GPU 3", "cuda:3", "0000:9B:00.0", "c009-3-1", "-1", "2"]
    nodes = ["n1", None, "n1", "n1", "n1", "n1", "-1", "n1", "-1"]
    table = pl.DataFrame({"gpu": gpus, "node": nodes, "v": [1.0] * 9})
    good, bad = measured(table, {"gpu": "gpu", "node": "node", "value": "v"})
    assert good["subject"].to_list() == [UUID, UUID, "n1/3", "n1/3", "n1/3", "n1/0000:9b:00.0", "c009-3-1"]
    assert good["node"].to_list() == ["n1", None, "n1", "n1", "n1", "n1", None]
    assert set(good["scope"]) == {"gpu"}
    assert [(one.row, one.rule) for one in bad] == [(8, "no_gpu"), (9, "index_without_node")]
    mig = measured(pl.DataFrame({"gpu": ["MIG-" + UUID[4:]], "v": [1.0]}), {"gpu": "gpu", "value": "v"})[1]
    assert mig[0].rule == "mig_slice"


def test_with_a_node_alone_the_row_speaks_of_the_node() -> None:
    """Step times of synchronous jobs; several columns may make up the name."""
    table = pl.DataFrame({"cab": ["c1", "c1", "-1"], "n": [4, 5, 6], "v": [1.0, 2.0, 3.0]})
    good, bad = measured(table, {"node": "cab+n", "value": "v"})
    assert good.select("scope", "subject").rows() == [("node", "c1-4"), ("node", "c1-5")]
    assert [(one.row, one.rule) for one in bad] == [(3, "no_node")]


def test_other_columns_are_evidence() -> None:
    """Numbers stay numbers, names stay names, missing is null; or only those that were asked for."""
    table = pl.DataFrame(
        {"gpu": ["aaa"], "v": ["1"], "freq": ["1365.0"], "n": ["7"], "id": ["007"], "t": ["N/A"], "l": [[1]]}
    )
    good, _ = measured(table, {"gpu": "gpu", "value": "v"})
    assert json.loads(good["evidence"].item()) == {"freq": 1365.0, "n": 7, "id": "007", "t": None}
    good, _ = measured(table, {"gpu": "gpu", "value": "v"}, evidence=["n"])
    assert json.loads(good["evidence"].item()) == {"n": 7}
    assert measured(table, {"gpu": "gpu", "value": "v"}, evidence=[])[0]["evidence"].item() == "{}"


def test_class_name_and_unit_may_come_from_the_rows() -> None:
    """A file of several benchmarks; a class that does not exist is rejected."""
    table = pl.DataFrame(
        {
            "g": ["aa1"] * 3,
            "v": [1.0] * 3,
            "c": ["memory", None, "fast"],
            "b": ["stream", None, "x"],
            "u": ["GB/s", None, ""],
        }
    )
    good, bad = measured(table, {"gpu": "g", "value": "v", "class": "c", "name": "b", "unit": "u"})
    assert good.select("workload_class", "name", "unit").rows() == [
        ("memory", "stream", "GB/s"),
        ("compute", "sgemm", "ms"),
    ]
    assert [(one.row, one.rule) for one in bad] == [(3, "unknown_class")]


def test_rows_without_a_time_keep_their_order() -> None:
    """The default and the row's number; a text that is no time is rejected instead."""
    table = pl.DataFrame({"gpu": ["aaa"] * 4, "v": [1.0] * 4, "t": [str(T0 + 5), None, "-1", "soon"]})
    good, bad = measured(table, {"gpu": "gpu", "value": "v", "time": "t"})
    assert good["time_ns"].to_list() == [(T0 + 5) * 10**9, T0 * 10**9 + 2, T0 * 10**9 + 3]
    assert [(one.row, one.rule) for one in bad] == [(4, "bad_time")]
    assert measured(table, {"gpu": "gpu", "value": "v"})[0]["time_ns"].is_sorted()


@settings(max_examples=40, deadline=None)
@given(st.integers(T0, 4_000_000_000), st.sampled_from([0, 3, 6, 9]), st.integers(0, 999_999_999))
def test_a_unix_time_is_read_in_its_unit(second: int, digits: int, fraction: int) -> None:
    """Seconds, milli-, micro-, nanoseconds by size, exact, as numbers or as text."""
    moment = second * 10**digits + fraction // 10 ** (9 - digits)
    exact = moment * 10 ** (9 - digits)
    assert times_ns(pl.Series([moment])).to_list() == [exact]
    assert times_ns(pl.Series([str(moment)])).to_list() == [exact]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:05Z", 5),
        ("2026-01-01 00:00:05", 5),
        ("2026-01-01T01:00:05.5+01:00", 5.5),
        ("2026-01-01T01:00:05 +0100", 5),
        ("2026/01/01 00:00:05.250", 5.25),
        ("2026-01-01", 0),
        ("2026-01-01T00:01", 60),
        ("2441.8", None),
        ("1e300", None),
        ("2026-13-01", None),
        ("yesterday", None),
    ],
)
def test_a_written_time_is_read_as_utc(text: str, seconds: float | None) -> None:
    """ISO 8601 and nvidia-smi's way; durations and nonsense are no times."""
    assert times_ns(pl.Series([text, None])).to_list() == [
        None if seconds is None else T0 * 10**9 + int(seconds * 1e9),
        None,
    ]


columns_of_anything = st.lists(
    st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["1", "-1", "nan", UUID, "3", "2026-01-01", "1e999"])),
    min_size=3,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(*[columns_of_anything] * 5)
def test_any_cells_give_good_rows_or_named_ones(
    gpu: list[str], node: list[str], value: list[str], time: list[str], more: list[str]
) -> None:
    """Nothing is lost, nothing crashes, and every good row passes the check that the log makes."""
    types = dict.fromkeys("gnvtm", pl.String)
    table = pl.DataFrame({"g": gpu, "n": node, "v": value, "t": time, "m": more}, schema=types)
    good, bad = measured(table, {"gpu": "g", "node": "n", "value": "v", "time": "t"})
    assert good.height + len(bad) == 3
    assert good.schema == frame(MEASUREMENTS).schema
    for row in good.iter_rows(named=True):
        check_measurement(row | {"evidence": json.loads(row["evidence"])})


def test_longhorn_becomes_measurements(shared_data: Path) -> None:
    """The real file with the guessed columns: every run, unknown nodes null, the clock as evidence."""
    path = shared_data / "longhorn" / "sgemm.csv"
    good, bad = measured(path, guess_columns(scan(path).columns))
    assert not bad
    assert good.height == 5_518
    assert good["node"].null_count() == 2_278
    assert good["subject"].n_unique() == 194
    assert json.loads(good["evidence"][0])["freq"] == 1365.0


def test_every_file_of_pal_is_understood_without_a_mapping(shared_data: Path) -> None:
    """Six files of two clusters, with and without times and names of the first column."""
    for path in sorted((shared_data / "pal").glob("*-agg.csv")):
        table = read(path)
        good, bad = measured(table, guess_columns(scan(path).columns))
        assert (good.height, bad) == (table.height, []), path.name


def test_azure_gpus_are_named_by_node_and_index(shared_data: Path) -> None:
    """Eight GPUs a node; empty results are rejected row by row; the mapping has to be said."""
    path = shared_data / "azure_a100" / "benchmarks.csv"
    with pytest.raises(BadInput, match="gemm_fp32_flops"):
        guess_columns(scan(path).columns)
    good, bad = measured(path, {"gpu": "gpu", "node": "node", "value": "gemm_fp32_flops"})
    assert good.height + len(bad) == 79 * 8
    assert {one.rule for one in bad} == {"not_a_number"}
    assert good["subject"].n_unique() == good.height
    assert good["subject"].str.contains(r"^turin\w+/[0-7]$").all()


# Telemetry ------------------------------------------------------------------------------------------------------------

SMI = f"""timestamp, name, uuid, clocks.current.sm [MHz], power.draw [W], utilization.gpu [%], memory.used [MiB], \
clocks_throttle_reasons.active, pstate, clocks_event_reasons_counters.sw_power_cap [us], remapped_rows.pending
2026/01/01 00:00:01.500, H100, {UUID}, 1980 MHz, 612.5 W, 99 %, 1024 MiB, 0x0000000000000084, P0, 7015000000, No
2026/01/01 00:00:02.500, H100, {UUID}, [N/A], [Unknown Error], 2619 %, 1 GiB, 0x0000000000000000, P2, 12 us, Yes
2026/01/01 00:00:02.500, H100, GPU is lost, 1980 MHz, 612.5 W, 99 %, 1024 MiB, 0x0, P0, 0, No
"""


def test_a_log_of_nvidia_smi_is_telemetry(tmp_path: Path) -> None:
    """Units of headers and cells become ours once; unsupported is null; garbage is null and told."""
    table = read(written(tmp_path, SMI))
    assert is_telemetry(table.columns)
    (batch,), rejected = (lambda found: (list(found[0]), found[1]))(telemetry(table, node="n1"))
    assert batch == SampleBatch(
        node="n1",
        gpus=(UUID,),
        interval_s=1.0,
        source="import",
        time_ns=[T0 * 10**9 + 1_500_000_000, T0 * 10**9 + 2_500_000_000],
        gpu=[0, 0],
        columns={
            "sm_clock_mhz": [1980, None],
            "power_w": [612.5, None],
            "utilization_ratio": [pytest.approx(0.99), None],
            "memory_used_bytes": [1 << 30, 1 << 30],
            "clock_event_reasons": [0x84, 0],
            "performance_state": [0, 2],
            "sw_power_cap_ns": [7_015_000_000_000, 12_000],
            "row_remap_pending": [0, 1],
        },
    )
    assert [(one.row, one.rule) for one in rejected] == [
        (0, "unknown_column"),
        (3, "no_gpu"),
        (2, "utilization_ratio:out_of_range"),
    ]


def test_blanks_of_dcgm_are_nulls_and_no_complaint() -> None:
    """Every sentinel of every type; an energy counter may pass the int32 one."""
    table = pl.DataFrame(
        {
            "UUID": [UUID] * 3,
            "Hostname": ["n1"] * 3,
            "timestamp": [T0, T0 + 1, T0 + 2],
            "DCGM_FI_DEV_GPU_TEMP": [60.0, 2147483632.0, 9.223372036854776e18],
            "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": [0.5, 140737488355328.0, 140737488355330.0],
            "156": [2147483632, 9223372036854775792, 2147483634],
            "DCGM_FI_DEV_GPU_UTIL_RATIO": [45, 2147483634, 0],
            "DEV_FB_USED": [10, 20, 30],
        }
    )
    found, rejected = telemetry(table)
    (batch,) = found
    assert not rejected
    assert batch.columns == {
        "temperature_c": [60, None, None],
        "graphics_engine_active_ratio": [0.5, None, None],
        "energy_mj": [2147483632, None, 2147483634],
        "utilization_ratio": [pytest.approx(0.45), None, 0.0],
        "memory_used_bytes": [10 << 20, 20 << 20, 30 << 20],
    }


def test_every_metric_is_known_by_every_name_it_has() -> None:
    """Ours, DCGM's id and names old and new, nvidia-smi's queries, with and without a unit."""
    for metric in SAMPLED:
        names = [metric.name, *(f"DCGM_FI_{name}" for name in metric.dcgm_names), *metric.smi_query]
        names += [f"{name} [{'MiB' if metric.unit == 'bytes' else '%'}]" for name in metric.smi_query]
        names += [str(metric.dcgm_id)] if metric.dcgm_id is not None else []
        for name in names:
            found = metric_column(name)
            assert found is not None, name
            assert found.metric is metric, name
    for name in ("freq", "perf", "DCGM_FI_DEV_FB_TOTAL", "power", "", "999999999999"):
        assert metric_column(name) is None, name


keys = st.tuples(st.integers(0, 45), st.integers(0, 3))
cells = st.tuples(
    st.none() | st.integers(0, 5_000),
    st.none() | st.floats(0, 5_000, width=32),
    st.none() | st.floats(0, 1, width=32),
    st.none() | st.integers(0, 2**63 - 2**20),
)
recordings = st.lists(st.tuples(keys, cells), min_size=1, max_size=25, unique_by=lambda row: row[0])


@settings(max_examples=20, deadline=None)
@given(recordings, st.sampled_from(["csv", "parquet", "ndjson"]), st.sampled_from([3, 10]))
def test_a_recording_comes_back_sample_by_sample(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[tuple[int, int], tuple[float | None, ...]]],
    kind: str,
    chunk: int,
) -> None:
    """Any order, any format, any size of chunk: the same samples, in time order, ten seconds and one node a batch."""
    path = tmp_path_factory.getbasetemp() / "recording"
    names = ["gpu_uuid", "node", "time_ns", "sm_clock_mhz", "power_w", "utilization_ratio", "energy_mj"]
    types = [pl.String, pl.String, pl.Int64, pl.UInt16, pl.Float32, pl.Float32, pl.UInt64]
    table = pl.DataFrame(
        [(f"GPU-{g}", f"n{g // 2}", (T0 + second) * 10**9, *values) for (second, g), values in rows],
        schema=dict(zip(names, types, strict=True)),
        orient="row",
    )
    getattr(table, f"write_{kind}")(path)
    told: list[RejectedRow] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytics.table_file, "CHUNK_ROWS", chunk)
        found = list(batches(path, interval_s=1.0, report=told.append))
    assert not told
    back = [
        {"gpu_uuid": one.gpus[gpu], "node": one.node, "time_ns": time}
        | {name: one.columns[name][i] if name in one.columns else None for name in names[3:]}
        for one in found
        for i, (time, gpu) in enumerate(zip(one.time_ns, one.gpu, strict=True))
    ]
    expected = table.sort("time_ns", "gpu_uuid")
    assert pl.DataFrame(back, schema=expected.schema).sort("time_ns", "gpu_uuid").equals(expected)
    assert all(one.time_ns[0] // 10**10 == one.time_ns[-1] // 10**10 for one in found)
    assert all(list(one.time_ns) == sorted(one.time_ns) for one in found)
    slots = [(one.time_ns[0] // 10**10, one.node) for one in found]
    assert slots == sorted(set(slots))
    for one in found:
        if one.columns:
            Encoder().encode(one)


def test_the_interval_is_that_of_the_recording() -> None:
    """Half a second between samples is promised as half a second."""
    times = [T0 * 10**9 + i * 500_000_000 for i in range(8)]
    found, _ = telemetry(pl.DataFrame({"gpu": ["aaa"] * 8, "time_ns": times, "power_w": [1.0] * 8}), node="n")
    assert [one.interval_s for one in found] == [0.5]


def test_a_table_that_cannot_be_telemetry_is_refused() -> None:
    """No metric, no node, no GPU, no time, a thousand GPUs of one node: each with its remedy."""
    rows = {"gpu": ["aaa"], "node": ["n"], "timestamp": [T0], "power_w": [1.0]}
    for missing, says in {"gpu": "gpu=", "node": "node=", "timestamp": "time=", "power_w": "metric"}.items():
        with pytest.raises(BadInput, match=says):
            telemetry(pl.DataFrame({name: cells for name, cells in rows.items() if name != missing}))
    many = pl.DataFrame({"gpu": [f"g{i}x" for i in range(1_025)], "power_w": [1.0] * 1_025}).with_columns(timestamp=T0)
    with pytest.raises(BadInput, match="node column"):
        list(telemetry(many, node="n")[0])


def test_results_are_not_taken_for_telemetry(shared_data: Path) -> None:
    """A benchmark with the power of its runs beside it stays a benchmark."""
    assert not is_telemetry(["uuid", "node", "ts", "perf", "power_w"])
    assert not is_telemetry(scan(shared_data / "longhorn" / "sgemm.csv").columns)
    assert is_telemetry(["gpu_uuid", "node", "time_ns", "sm_clock_mhz"])


def test_every_rule_of_a_rejected_row_is_in_the_manual() -> None:
    """Who reads a rule's name finds it explained in docs/importing.md."""
    root = Path(__file__).resolve().parents[2]
    manual = (root / "docs" / "importing.md").read_text()
    rules = set(re.findall(r'rules\["(\w+)"', (root / "analytics" / "tabular.py").read_text()))
    rules |= {"not_a_number", "not_above_zero", "no_gpu", "no_node"}
    rules |= set(re.findall(r'rule="(\w+)"', (root / "analytics" / "table_file.py").read_text()))
    assert len(rules) > 8
    assert {rule for rule in rules if f"`{rule}`" not in manual} == set()
