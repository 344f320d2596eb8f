"""How many rows a second one core simulates and encodes, of the fleet `scale`.

To time another fleet: `FLEET`.
"""

import time
from collections.abc import Iterator
from statistics import median

from benchmarks import Figure
from collectors.simulated import Simulated
from telemetry.codec import Encoder

FLEET = "scale"
START_NS = 1_790_000_000 * 10**9


def figures(*, quick: bool) -> Iterator[Figure]:
    """Rows a second with encoding, and how many times real time at 1 Hz that is for 100,000 GPUs."""
    fleet = Simulated(fleet=FLEET, start_ns=START_NS, shard=(0, 50 if quick else 4))
    gpus = sum(node.gpus for node in fleet.fleet.nodes) // (50 if quick else 4)
    encoder = Encoder()
    rates, shares, sizes = [], [], []
    for step in range(4 if quick else 8):
        start = time.process_time()
        reading = fleet.collect()
        simulated = time.process_time()
        size = sum(len(encoder.encode(batch).value) for batch in reading.samples)
        done = time.process_time()
        rows = sum(len(batch) for batch in reading.samples)
        if step:  # the first one builds caches
            rates.append(rows / (done - start))
            shares.append(len(reading.samples) / (done - simulated))
            sizes.append(size / rows)
    fleet.close()
    yield Figure(name=f"simulated fleet of {gpus:,} GPUs, encoded", unit="rows/CPU-s", values=rates)
    yield Figure(
        name=f"encoding alone, 80 rows, {median(sizes):.0f} B a row",
        unit="messages/CPU-s",
        values=shares,
        reference=22_000,
        reference_of="pyarrow, 24 metrics, zstd-1",
    )
