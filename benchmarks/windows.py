"""From messages in memory to windows: how many samples a second of one core's work, as a whole and by part.

To time another part: a figure in `_parts`; another way of doing it: beside it as its alternative.
"""

import threading
import time
from collections.abc import Iterator, Sequence

import polars as pl

from analytics.features import window_features
from benchmarks import Figure
from benchmarks.fleet import START_NS, WINDOW_S, Minute, minute
from benchmarks.timing import rates, repeats
from streams import Message, Outgoing
from streams.counters import Counters
from streams.decode import decode
from streams.memory import MemoryTransport
from streams.topics import TELEMETRY, specs
from streams.window import run_window_job
from streams.window_samples import sorted_samples
from telemetry.codec import END_OF_STREAM, decompress, parse_schema, schema_prefix

UNIT = "M samples/CPU-s"
_BATCH = 1_250
_ROWS = 80  # of every message: 8 GPUs x 10 s
_EDGE_NS = START_NS + WINDOW_S * 10**9


def figures(*, quick: bool) -> Iterator[Figure]:
    """The whole job over the transport in memory, then decoding, sorting and features on the same messages."""
    load = minute(nodes=250 if quick else 2_500)
    times = 3 if quick else 5
    yield from _job(load, times)
    yield from _parts(load, times)


def _job(load: Minute, times: int) -> Iterator[Figure]:
    """The job reads a log that holds the minute already; its own thread does all the work there is."""
    transport = MemoryTransport(max_messages=2 * len(load.messages), keep=2 * len(load.messages), settle_s=86_400)
    transport.ensure_topics(specs(telemetry_partitions=1))
    producer = transport.producer(client_id="agents")
    for message in load.messages:
        producer.send(message)
    groups = iter(range(times + 1))

    def once() -> None:
        counters, stop = Counters(), threading.Event()
        arguments = {"member": "bench", "group": f"bench-{next(groups)}", "lateness_s": 30.0, "poll_s": 0.05}
        job = threading.Thread(
            target=run_window_job, args=(transport,), kwargs=arguments | {"stop": stop, "counters": counters}
        )
        job.start()
        while counters.value("window_rows") < load.gpus and job.is_alive():
            time.sleep(0.005)
        stop.set()
        job.join()

    found = repeats(once, times)
    transport.close()
    bare = repeats(lambda: _bare(load.messages), times)
    yield Figure(
        name="messages in memory to windows: the whole job",
        unit=UNIT,
        values=rates(load.samples / 1e6, found.cpu_s),
        alternative="bare: join 25, sort by id, 24 statistics",
        alternative_values=rates(load.samples / 1e6, bare.cpu_s),
        reference=28.0,
        reference_of="decode, sort, group_by of 24 metrics, without checks",
    )
    yield Figure(name="the same by the wall clock", unit="M samples/s", values=rates(load.samples / 1e6, found.wall_s))


def _parts(load: Minute, times: int) -> Iterator[Figure]:
    messages = [_as_read(one, i) for i, one in enumerate(load.messages[:-1])]
    millions = load.samples / 1e6
    ours = repeats(lambda: _decoded(messages), times)
    tenth = messages[: len(messages) // 10]
    naive = repeats(lambda: _one_at_a_time(tenth), min(times, 3))
    yield Figure(
        name="decode, check and name",
        unit=UNIT,
        values=rates(millions, ours.cpu_s),
        alternative="polars reads each message, no checks",
        alternative_values=rates(millions * len(tenth) / len(messages), naive.cpu_s),
        reference=33.0,
        reference_of="zstd batches of 10 s joined, no checks",
    )
    frames = _decoded(messages)
    found = repeats(lambda: sorted_samples(frames, None), times)
    yield Figure(
        name="sort by GPU and time, drop duplicates",
        unit=UNIT,
        values=rates(millions, found.cpu_s),
        alternative="polars sort and unique by uuid and time",
        alternative_values=rates(millions, repeats(lambda: _polars_sorted(frames), min(times, 3)).cpu_s),
        reference=96.0,
        reference_of="polars sort by an integer id",
    )
    samples = sorted_samples(frames, None)
    found = repeats(lambda: window_features(samples, window_ns=WINDOW_S * 10**9), times)
    yield Figure(
        name="features: 47 columns with counters and classes",
        unit=UNIT,
        values=rates(millions, found.cpu_s),
        reference=105.0,
        reference_of="69 plain statistics",
    )
    runs = repeats(lambda: _grouped(samples, _numbers(samples).set_sorted()), times)
    arrived = samples.sort("time_ns", "gpu_uuid")
    hashed = repeats(lambda: _grouped(arrived, _numbers(arrived)), times)
    yield Figure(
        name="24 plain statistics, group_by of sorted rows",
        unit=UNIT,
        values=rates(millions, runs.cpu_s),
        alternative="by hash, of rows in order of time",
        alternative_values=rates(millions, hashed.cpu_s),
        reference=105.0,
        reference_of="69 plain statistics",
    )


def _as_read(message: Outgoing, offset: int) -> Message:
    return Message(
        topic=TELEMETRY,
        partition=0,
        offset=offset,
        time_ns=_EDGE_NS,
        key=message.key,
        headers=message.headers,
        value=message.value,
    )


def _bare(messages: Sequence[Outgoing]) -> pl.DataFrame:
    """The least that any consumer does: no checks, names, counters, late rows, places or messages to write."""
    frames = []
    gpus = len(messages[0].headers["gpus"].split(b","))
    nodes: dict[bytes | None, int] = {}
    prefix = schema_prefix(parse_schema(messages[0].headers["schema"].decode()))
    for i in range(0, len(messages), 25):
        some = messages[i : i + 25]
        body = b"".join(decompress(message.value or b"") for message in some)
        frame = pl.read_ipc_stream(prefix + body + END_OF_STREAM).rechunk()
        numbers = [nodes.setdefault(message.key, len(nodes)) for message in some]
        first = pl.Series(numbers, dtype=pl.UInt32).gather(pl.int_range(frame.height, eager=True) // _ROWS)
        frames.append(frame.with_columns((first * gpus + frame["gpu"].cast(pl.UInt32)).alias("group")))
    rows = pl.concat(frames, rechunk=True).sort("group", "time_ns")
    return _grouped(rows, rows["group"].set_sorted())


def _decoded(messages: Sequence[Message]) -> list[pl.DataFrame]:
    return [decode(messages[i : i + _BATCH]).rows.drop("message") for i in range(0, len(messages), _BATCH)]


def _one_at_a_time(messages: Sequence[Message]) -> pl.DataFrame:
    """What a consumer does that handles each message by itself: a frame each, named, then all of them joined."""
    frames = []
    for message in messages:
        headers = {name: value.decode() for name, value in message.headers.items()}
        body = decompress(message.value or b"")
        frame = pl.read_ipc_stream(schema_prefix(parse_schema(headers["schema"])) + body + END_OF_STREAM)
        gpus = pl.Series("gpu_uuid", headers["gpus"].split(","))
        frames.append(frame.with_columns(gpus.gather(frame["gpu"]), pl.lit(headers["node"]).alias("node")))
    return pl.concat(frames, rechunk=True)


def _polars_sorted(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    keys = ["gpu_uuid", "time_ns"]
    return pl.concat(frames, how="diagonal").sort(keys).unique(keys, keep="first", maintain_order=True)


def _numbers(samples: pl.DataFrame) -> pl.Series:
    """A small integer for each GPU, in order of its uuid."""
    names = samples["gpu_uuid"].unique().sort()
    return samples["gpu_uuid"].cast(pl.Enum(names)).to_physical().alias("group")


def _grouped(samples: pl.DataFrame, group: pl.Series) -> pl.DataFrame:
    """Mean, highest and last of eight metrics for each GPU."""
    gauges = ("sm_clock_mhz", "temperature_c", "power_w", "utilization_ratio", "memory_clock_mhz")
    counters = ("ecc_corrected_total", "pcie_replay_total", "sw_power_cap_ns")
    wanted = [
        expression.name.suffix(suffix)
        for name in (*gauges, *counters)
        for suffix, expression in (
            ("_mean", pl.col(name).mean()),
            ("_max", pl.col(name).max()),
            ("_last", pl.col(name).last()),
        )
    ]
    return samples.with_columns(group).group_by("group", maintain_order=True).agg(wanted)
