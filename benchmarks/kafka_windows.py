"""From messages in Kafka to windows in Kafka, by one and by two processes of `isotach window`.

To run more of them: `PROCESSES`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import psutil

from benchmarks import Figure
from benchmarks.broker import PATIENCE_S, appearing_at_once, broker, wait_for_members
from benchmarks.fleet import Minute, minute
from benchmarks.timing import rates
from streams import TopicPartition
from streams.kafka import KafkaTransport
from streams.parts import decode_part
from streams.topics import WINDOWS, specs
from streams.window import GROUP

PARTITIONS = 16
PROCESSES = (1, 2)


def figures(*, quick: bool) -> Iterator[Figure]:
    """Processes wait for an empty topic; the minute then appears at once, and ends when the last window is told."""
    load = minute(nodes=250 if quick else 2_500, partitions=PARTITIONS)
    millions = load.samples / 1e6
    with broker() as bootstrap:
        for processes in PROCESSES:
            runs = [_once(bootstrap, load, processes, f"w{processes}-{i}-") for i in range(3)]
            one = processes == 1
            yield Figure(
                name=f"Kafka to windows in Kafka, {processes} process{'' if one else 'es'}, by the wall clock",
                unit="M samples/s",
                values=rates(millions, [wall for wall, _ in runs]),
                reference=25.4 if one else 55.0,
                reference_of="mock broker in another process, one core" if one else "2 x one, extrapolated",
            )
            yield Figure(
                name="the same by CPU of the process" + ("" if one else "es"),
                unit="M samples/CPU-s",
                values=rates(millions, [cpu for _, cpu in runs]),
                reference=25.4,
                reference_of="mock broker, without checks",
            )
            yield Figure(
                name="cores for 100,000 GPUs x 26 metrics at 1 Hz" if one else "the same with two processes",
                unit="cores",
                values=[2.6 * median([cpu for _, cpu in runs]) / millions],
                more_is_better=False,
                reference=0.10,
                reference_of="24 metrics",
            )


def _once(bootstrap: str, load: Minute, processes: int, prefix: str) -> tuple[float, float]:
    """Seconds by the wall and of all window processes, from the commit of the minute to its last window."""
    transport = KafkaTransport(bootstrap=bootstrap, prefix=prefix)
    transport.ensure_topics(specs(telemetry_partitions=PARTITIONS))
    command = [sys.executable, "-m", "isotach", "window", "--bootstrap", bootstrap, "--topic-prefix", prefix]
    command += ["--log-level", "warning"]
    jobs = [subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.DEVNULL) for _ in range(processes)]
    reader = transport.read({TopicPartition(WINDOWS, 0): 0})
    try:
        wait_for_members(bootstrap, prefix + GROUP, members=processes, partitions=PARTITIONS)
        with appearing_at_once(bootstrap, load.messages, prefix=prefix):
            time.sleep(1.0)  # members have been told their partitions, the broker has written
            watched = [psutil.Process(job.pid) for job in jobs]
            before, began = _cpu_s(watched), time.perf_counter()
        gpus, deadline = 0, time.monotonic() + PATIENCE_S
        while gpus < load.gpus:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{gpus} of {load.gpus} GPUs have a window")
            gpus += sum(len(decode_part(message).rows) for message in reader.poll(timeout_s=0.2))
        return time.perf_counter() - began, _cpu_s(watched) - before
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.wait(PATIENCE_S)
        reader.close()
        transport.close()


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
