"""How many rows a second one core simulates and encodes: the median over several steps of the fleet `scale`.

Run: python benchmarks/simulated_rate.py [--steps 5] [--parts 8]. To time another fleet: --fleet.
"""

import argparse
import os
import platform
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collectors.simulated import Simulated
from telemetry.codec import Encoder


def processor() -> str:
    """The processor's own name for itself, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    """Print the median rate, the share of encoding, and what they were measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", default="scale")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--parts", type=int, default=1, help="simulate one of so many parts of the fleet")
    chosen = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    began = time.perf_counter()
    fleet = Simulated(fleet=chosen.fleet, start_ns=1_790_000_000 * 10**9, shard=(0, chosen.parts))
    built_s = time.perf_counter() - began
    encoder = Encoder()
    rates, shares, sizes, rows, metrics = [], [], [], 0, 0
    for step in range(chosen.steps + 1):
        start = time.perf_counter()
        reading = fleet.collect()
        simulated = time.perf_counter()
        size = sum(len(encoder.encode(batch).value) for batch in reading.samples)
        done = time.perf_counter()
        rows = sum(len(batch) for batch in reading.samples)
        metrics = len(reading.samples[0].columns)
        if step:  # the first one builds caches
            rates.append(rows / (done - start))
            shares.append((done - simulated) / (done - start))
            sizes.append(size / rows)
    gpus = sum(node.gpus for node in fleet.fleet.nodes) // chosen.parts
    print(f"{processor()}, one core of {os.cpu_count()}; Python {platform.python_version()}")
    print(f"{gpus:,} GPUs, {metrics} metrics, {rows:,} rows a step; built in {built_s:.1f} s")
    print(
        f"median {median(rates):,.0f} rows/s (lowest {min(rates):,.0f}), {median(rates) / gpus:.1f} x real time at 1 Hz"
    )
    print(f"encoding {100 * median(shares):.0f} % of the time, {median(sizes):.0f} bytes a row")


if __name__ == "__main__":
    main()
