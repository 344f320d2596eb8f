"""The collector dcgm: the text format, pages of both dialects, the list of counters, and the collector as a whole."""

import contextlib
import csv
import math
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.dcgm import answer, exporters, page, sends, serves, uuid

from collectors import Reading
from collectors.cells import Missing
from collectors.dcgm.collector import MOST_TROUBLES, Dcgm
from collectors.dcgm.counters import BUYS, field_of, missing, to_csv
from collectors.dcgm.exporter import Claims, Exporter
from collectors.dcgm.exposition import Parser
from collectors.dcgm.fields import FIELDS, READ, convert
from collectors.dcgm.targets import sources_of, target_of
from telemetry.errors import BadInput, NoData, SettingsError
from telemetry.metrics import BY_DCGM_NAME

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "dcgm"
NAMES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)


def parsed(text: str) -> tuple[dict[tuple[str, tuple[tuple[str, str], ...]], float], Mapping[str, int]]:
    """The series of a text, and what was wrong with it."""
    parser: Parser[tuple[tuple[str, str], ...]] = Parser(names=NAMES, reader=lambda pairs: tuple(sorted(pairs.items())))
    found = parser.parse(text)
    again = parser.parse(text)
    assert [s.values for s in again.series] == [s.values for s in found.series] or "nan" in text.lower()
    return {(name, s.labels): v for s in found.series for name, v in s.values.items()}, found.rejected


def quoted(text: str) -> str:
    """A label's value as the format has it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from("abc"), WORDS, min_size=1).map(str)),
        st.tuples(st.dictionaries(st.sampled_from("abc"), WORDS, min_size=1), st.floats(allow_nan=False)),
        max_size=8,
    )
)
def test_pages_are_read_as_the_maintained_parser_reads_them(
    series: Mapping[tuple[str, str], tuple[dict[str, str], float]],
) -> None:
    """Whatever the labels hold, series and values are those of prometheus_client's parser."""
    lines = [
        name + "{" + ",".join(f'{key}="{quoted(value)}"' for key, value in labels.items()) + "} " + repr(number)
        for (name, _), (labels, number) in series.items()
    ]
    text = "\n".join((*lines, ""))
    theirs: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            theirs.setdefault((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
    ours, _ = parsed(text)
    assert ours == theirs


@given(st.text(st.sampled_from('DCGM_FI_DEV_GPU_TEMP{}",=\\ \n#1.5e+Nafx\0'), max_size=300))
def test_no_text_is_too_strange(text: str) -> None:
    """Any text gives finite work: series, counts, or BadInput."""
    exporter = Exporter(target_of("n1"), interval_s=15, claims=Claims(keep_s=1), fallback_node="here")
    for body in (text, page(1) + text):
        with contextlib.suppress(BadInput):
            exporter.read(body.encode(), time_ns=1, now=1.0)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0"}64', 64.0),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0",} 9.4094392E12', 9.4094392e12),
        ('DCGM_FI_DEV_GPU_TEMP {gpu="0"}  64 1767225600000 # {a="b"} 1', 64.0),
        ('DCGM_FI_DEV_GPU_TEMP{ gpu = "0" } +6.4e1\r', 64.0),
        ('DCGM_FI_DEV_GPU_TEMP{a="} 5",gpu="0"} 64', 64.0),
    ],
)
def test_odd_but_lawful_lines_are_read(line: str, value: float) -> None:
    """No digit is lost, whatever the spaces, commas, exponents, times and braces."""
    found, rejected = parsed("\n\n# note\n" + line)
    assert list(found.values()) == [value]
    assert not rejected


def test_a_line_without_a_value_costs_itself_only() -> None:
    """Two of three series are kept, the third is counted with its number."""
    parser: Parser[str] = Parser(names=NAMES, reader=lambda pairs: pairs["gpu"])
    found = parser.parse("".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{i}"}} {"" if i == 1 else 60}\n' for i in range(3)))
    assert [series.labels for series in found.series] == ["0", "2"]
    assert (found.rejected, found.first_bad) == ({"line:no_value": 1}, 2)


def rows(exporter: Exporter, text: str, *, seconds: int = 1) -> list[Reading]:
    """A page read."""
    return exporter.read(text.encode(), time_ns=10**18 + seconds * 10**9, now=float(seconds))


def test_pages_of_both_dialects_give_the_same() -> None:
    """The captured pages say the same samples and the same inventory."""
    found = []
    for name in ("old", "new"):
        exporter = Exporter(target_of("n1"), interval_s=15, claims=Claims(keep_s=1), fallback_node="here")
        (reading,) = rows(exporter, (DATA / f"{name}.prom").read_text())
        assert not reading.rejected
        found.append((reading.samples, reading.inventory))
    assert found[0] == found[1]
    assert len(found[0][0][0].columns) > 40


def test_series_of_links_and_switches_are_of_no_gpu() -> None:
    """NVLink series name the GPU's UUID in another label, and are parts, not totals."""
    link = f'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{{nvlink="3",gpu="0",gpu_uuid="{uuid(0)}"}} 77'
    switch = 'DCGM_FI_DEV_GPU_TEMP{nvswitch="1",Hostname="n1"} 88'
    exporter = Exporter(target_of("n1"), interval_s=15, claims=Claims(keep_s=1), fallback_node="here")
    (reading,) = rows(exporter, page(1, extra=f"{link}\n{switch}"))
    assert reading.samples[0].columns["nvlink_crc_errors_total"] == [0]
    assert reading.samples[0].columns["temperature_c"] == [61]
    total = f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",gpu_uuid="{uuid(0)}",model_name="NVIDIA H100",hostname="n1"}} 50'
    (reading,) = rows(exporter, total, seconds=16)
    assert (reading.samples[0].gpus, reading.samples[0].columns) == ((uuid(0),), {"temperature_c": [50]})


def test_units_become_ours_once() -> None:
    """Percent, MiB, MB/s and mJ; ratios of the profiler are ratios already."""
    assert convert(FIELDS["DCGM_FI_DEV_GPU_UTIL_RATIO"], 97) == 0.97  # an integer of 0 to 100 in spite of its name
    assert convert(FIELDS["DCGM_FI_PROF_SM_ACTIVE"], 0.97) == 0.97
    assert convert(FIELDS["DCGM_FI_DEV_FB_USED"], 3) == 3 << 20
    assert convert(FIELDS["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"], 5) == 5e6
    assert convert(FIELDS["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"], 9.4094392e12) == 9409439200000
    assert convert(FIELDS["DCGM_FI_DEV_POWER_VIOLATION"], 7e9) == 7_000_000_000


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("name", FIELDS)
def test_no_marker_of_dcgm_is_a_value(name: str, offset: int) -> None:
    """Every field, every marker that DCGM has for its type: no value."""
    field = FIELDS[name]
    markers = [float(9223372036854775792 + offset)]
    if not field.wide:
        markers += [2147483632.0 + offset]
    if field.fraction:
        markers += [140737488355328.0 + offset]
    assert all(convert(field, marker) in (Missing.UNSUPPORTED, Missing.NO_PERMISSION) for marker in markers)
    assert convert(field, math.nan) is Missing.UNSUPPORTED


def test_the_fabric_is_told() -> None:
    """An NVLink domain counts when the fabric manager has succeeded; a failure of it is a fault."""
    more = {"DCGM_FI_DEV_FABRIC_CLUSTER_UUID": "7a8b9c00-0000-4000-8000-000000000001"}

    def read(**values: object) -> Reading:
        exporter = Exporter(target_of("n1"), interval_s=15, claims=Claims(keep_s=1), fallback_node="here")
        (reading,) = rows(exporter, page({0: {"fabric_clique_id": 3, **values}}, more=lambda place: more))
        return reading

    good = read(DCGM_FI_DEV_FABRIC_MANAGER_STATUS=3, fabric_health_summary=1)
    assert good.inventory[0].gpus[0].fabric == "7a8b9c00-0000-4000-8000-000000000001.3"
    assert not good.events
    bad = read(DCGM_FI_DEV_FABRIC_MANAGER_STATUS=4, DCGM_FI_DEV_FABRIC_MANAGER_ERROR=17)
    assert bad.inventory[0].gpus[0].fabric is None
    assert [(event.kind, event.detail) for event in bad.events] == [
        ("fabric_fault", "fabric state Completed, status Failure 17")
    ]
    assert read(DCGM_FI_DEV_FABRIC_MANAGER_STATUS=0).inventory[0].gpus[0].fabric is None
    assert [event.kind for event in read(fabric_health_summary=2).events] == ["fabric_fault"]


def test_a_federating_prometheus_shows_many_nodes() -> None:
    """One page, a reading for each node; the labels of the exporter's own pod are no job."""
    exporter = Exporter(
        target_of("http://p/federate?match[]=x"), interval_s=15, claims=Claims(keep_s=1), fallback_node=""
    )
    own = {"pod": "nvidia-dcgm-exporter-x7k2p", "namespace": "gpu-operator", "instance": "10.0.0.1:9400"}
    theirs = {**own, "exported_pod": "train-0", "exported_namespace": "ml"}
    pages = [page(2, node=f"n{i}", number=i, more=lambda place: own if place else theirs) for i in range(40)]
    found = rows(exporter, "".join(pages))
    assert {batch.node for reading in found for batch in reading.samples} == {f"n{i}" for i in range(40)}
    assert {job.job_id for reading in found for jobs in reading.jobs for job in jobs.jobs} == {"ml/train-0"}


def test_the_list_of_counters_is_what_is_read() -> None:
    """Every field the collector reads is in deploy/dcgm-exporter-counters.csv, and no other; three cells a line."""
    text = (ROOT / "deploy" / "dcgm-exporter-counters.csv").read_text(encoding="utf-8")
    assert text == to_csv()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    records = [[cell.strip() for cell in record] for record in csv.reader(lines) if record]
    assert all(len(record) == 3 and record[1] in ("gauge", "counter", "label") for record in records)
    assert '"' not in "".join(lines)
    listed = [record[0] for record in records]
    assert len(set(listed)) == len(listed)
    read = {BY_DCGM_NAME[name].name if name in BY_DCGM_NAME else name for name in READ}
    assert {BY_DCGM_NAME[name].name if name in BY_DCGM_NAME else name for name in listed} == read == set(BUYS)
    said = [line.removeprefix("# Buys ") for line in text.splitlines() if line.startswith("# Buys ")]
    assert len(said) == len(listed)


def test_missing_counters_are_named_with_what_they_would_buy() -> None:
    """A field is there under either name."""
    assert missing(READ) == {}
    assert missing(READ - {"DCGM_FI_DEV_GPU_TEMP"}) == {}
    absent = missing(READ - {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"})
    assert absent == {field_of("temperature_c"): BUYS["temperature_c"]}


def test_a_broken_network_is_one_story() -> None:
    """Of many exporters that fail at once some are named, the others counted."""
    with exporters() as servers:
        host = servers.add(sends(answer("", status=500)))
        targets = [f"http://{host}/{i}" for i in range(MOST_TROUBLES + 30)]
        collector = Dcgm(sources_of(targets), node="here", interval_s=1.0, timeout_s=5)
        failed: list[str] = []
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until and collector.targets == 0:
                collector._scraper.start()
            while time.monotonic() < until and len(failed) < MOST_TROUBLES + 1:
                time.sleep(3)
                found = collector.collect()
                failed += [event.detail or "" for event in found.events]
        finally:
            collector.close()
    assert any("more exporters failed at the same time" in text for text in failed)


def test_a_target_answers_again() -> None:
    """An exporter that was away is scraped again by itself."""
    with exporters() as servers:
        trouble = iter([True] * 3)
        host = servers.add(
            lambda connection, path: connection.sendall(
                answer("", status=503) if next(trouble, False) else answer(page(1, tick=servers.asked.popitem()[1]))
            )
        )
        collector = Dcgm(sources_of([host]), node="here", interval_s=0.1, wait_s=1.0)
        rejected: dict[str, int] = {}
        samples = 0
        until = time.monotonic() + 30
        try:
            while time.monotonic() < until and not samples:
                try:
                    reading = collector.collect()
                except NoData:
                    continue
                samples += sum(len(batch) for batch in reading.samples)
                rejected |= reading.rejected
        finally:
            collector.close()
    assert samples
    assert "scrape:http_status" in rejected


def test_without_targets_there_is_no_collector() -> None:
    """The error says which settings give some."""
    with pytest.raises(SettingsError, match="--dcgm-targets"):
        Dcgm((), node="here")


def test_the_page_is_asked_for_plainly() -> None:
    """One GET, plain text, closed after: no exporter is kept busy by connections."""
    with exporters() as servers:
        host = servers.add(serves(lambda: page(1)))
        collector = Dcgm(sources_of([f"{host}"]), node="here", interval_s=5, wait_s=10)
        try:
            assert collector.collect().samples
        finally:
            collector.close()
    head = servers.heads[0]
    assert head.startswith("GET /metrics HTTP/1.1\r\n")
    assert f"\r\nHost: {host}\r\n" in head
    assert "\r\nAccept: text/plain" in head
    assert "\r\nConnection: close\r\n" in head
