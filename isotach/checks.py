"""What `isotach doctor` looks at: each check says what it found, and how to mend what is wrong.

To add a check: one function that yields findings, one line in `CHECKS`.
"""

import importlib.util
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

from isotach import roles
from isotach.exporters import exporters
from isotach.findings import Finding
from telemetry.errors import IsotachError
from telemetry.metrics import SAMPLED

HTTP_TIMEOUT_S = 5.0
KAFKA_TIMEOUT_S = 5.0
CLOCK_OFFSET_LIMIT_S = 5.0
NVML_READINGS = 3  #: activity needs two
NVML_PAUSE_S = 0.2
EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"agent": ("confluent_kafka", "pynvml"), "server": ("polars", "duckdb", "fastapi", "sklearn", "orjson", "rich")}
)
# What is lost without a metric, for those that scoring leans on.
COSTS: Mapping[str, str] = MappingProxyType(
    {
        "sm_clock_mhz": "no speed from telemetry at all: only measurements rank these GPUs",
        "clock_event_reasons": "throttling is seen only through slow clocks, without its cause",
        "power_w": "power cap and silicon cannot be told apart",
        "temperature_c": "cooling cannot be named as a cause",
        "graphics_engine_active_ratio": "utilisation is the coarse counter: classes are guessed more often",
        "tensor_active_ratio": "compute-bound and other load are told apart only by the limits that are active",
        "dram_active_ratio": "memory-bound load is not recognised",
        "ecc_uncorrected_total": "memory faults show only as XIDs, if those are collected",
    }
)


def python(_settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The interpreter and the optional parts."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(check="python", state="ok", seen=f"Python {version}")
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            remedy = f"pip install 'isotach[{extra}]' if this machine is to run {extra} parts"
            yield Finding(check=f"extra {extra}", state="note", seen=f"not here: {', '.join(missing)}", remedy=remedy)
        else:
            yield Finding(check=f"extra {extra}", state="ok", seen="installed")


def gpus(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """What NVML, else nvidia-smi, says on this machine, and what is lost by what it does not say."""
    if any(settings.get(name) for name in roles.DCGM_TARGETS):
        yield from exporters(settings)
    else:
        yield from _nvml() if roles.nvml_loads() else _nvidia_smi()


def _nvml() -> Iterator[Finding]:
    from collectors.nvml.collector import Nvml

    collector = Nvml(node=roles.node_name({"node": ""}))
    try:
        readings = []
        for _ in range(NVML_READINGS):
            readings.append(collector.collect())
            time.sleep(NVML_PAUSE_S)
    except IsotachError as error:
        remedy = "load the driver, or reboot if it was changed under running processes; in a container pass the GPUs in"
        yield Finding(check="nvml", state="wrong", seen=str(error), remedy=remedy)
        return
    finally:
        collector.close()
    batches = [batch for reading in readings for batch in reading.samples]
    count = max((len(batch.gpus) for batch in batches), default=0)
    seen = f"{count} GPUs answered, driver {collector.driver}"
    yield Finding(check="nvml", state="ok" if count else "wrong", seen=seen)
    for event in (event for reading in readings for event in reading.events):
        yield Finding(
            check=f"nvml {event.kind}",
            state="wrong",
            seen=f"{event.gpu_uuid or 'node'}: {event.detail}",
            remedy="docs/collectors.md says what becomes of such a GPU; nvidia-smi and the kernel's log may tell more",
        )
    denied = sorted(
        {name.partition(":")[0] for r in readings for name in r.rejected if name.endswith(":no_permission")}
    )
    if denied:
        remedy = "these values need more rights: run the agent with CAP_SYS_ADMIN, or do without"
        yield Finding(check="nvml permissions", state="note", seen=f"refused: {', '.join(denied)}", remedy=remedy)
    if collector.reads_kernel_log:
        yield Finding(check="kernel log", state="ok", seen="XIDs are read from /dev/kmsg and from NVML")
    else:
        remedy = (
            "let the agent read /dev/kmsg (group adm or CAP_SYSLOG): XIDs of a GPU that fell off the bus are only there"
        )
        yield Finding(check="kernel log", state="note", seen="not readable: XIDs come from NVML alone", remedy=remedy)
    filled = {name for b in batches for name, values in b.columns.items() if any(v is not None for v in values)}
    absent = [metric.name for metric in SAMPLED if metric.name not in filled]
    known = f"{len(filled)} of {len(SAMPLED)} metrics" + (f"; not: {', '.join(absent)}" if absent else "")
    yield Finding(check="nvml fields", state="ok", seen=known)
    yield from _costs(filled)


def _costs(filled: Collection[str]) -> Iterator[Finding]:
    for name, cost in COSTS.items():
        if name not in filled:
            yield Finding(check=f"metric {name}", state="note", seen="not reported", remedy=cost)


def _nvidia_smi() -> Iterator[Finding]:
    if shutil.which("nvidia-smi") is None:
        yield Finding(
            check="nvidia-smi",
            state="note",
            seen="not on the PATH: no GPUs to collect here",
            remedy="on a GPU node install the NVIDIA driver's tools, or choose another --collector",
        )
        return
    from collectors.nvidia_smi import NvidiaSmi

    collector = NvidiaSmi(node=roles.node_name({"node": ""}))
    began = time.monotonic()
    try:
        reading = collector.collect()
    except IsotachError as error:
        yield Finding(
            check="nvidia-smi",
            state="wrong",
            seen=str(error),
            remedy="run nvidia-smi by hand; a driver that was upgraded under running processes needs a reboot",
        )
        return
    finally:
        collector.close()
    took_s = time.monotonic() - began
    batch = reading.samples[0] if reading.samples else None
    count = 0 if batch is None else len(batch.gpus)
    yield Finding(check="nvidia-smi", state="ok" if count else "wrong", seen=f"{count} GPUs answered in {took_s:.1f} s")
    known = {} if batch is None else batch.columns
    yield from _costs({name for name, values in known.items() if any(value is not None for value in values)})


def kafka(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The broker and the topics, if --bootstrap is given."""
    if not settings["bootstrap"]:
        yield Finding(check="kafka", state="note", seen="no --bootstrap: this set-up runs without Kafka")
        return
    try:
        transport = roles.kafka(settings, timeout_s=KAFKA_TIMEOUT_S)
    except ModuleNotFoundError:
        yield Finding(check="kafka", state="wrong", seen="no client", remedy="pip install 'isotach[agent]'")
        return
    except IsotachError as error:
        yield Finding(
            check="kafka",
            state="wrong",
            seen=str(error),
            remedy="check --bootstrap, --kafka-config and the broker; docs/transports.md lists the settings",
        )
        return
    try:
        from streams.topics import TELEMETRY

        partitions = transport.partitions(TELEMETRY)
        yield Finding(check="kafka", state="ok", seen=f"reached; {TELEMETRY} has {partitions} partitions")
    finally:
        transport.close()


def server(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The API: there, ready, fresh, and with the same clock."""
    address = settings["server"].rstrip("/")
    if not address.startswith(("http://", "https://")):
        yield Finding(check="server", state="wrong", seen=f"--server {address!r}", remedy="give http://HOST:PORT")
        return
    try:
        status, headers, body = _get(f"{address}/readyz")
    except OSError as error:
        yield Finding(
            check="server",
            state="note",
            seen=f"none at {address} ({getattr(error, 'reason', error)})",
            remedy="start one with `isotach up` or `isotach serve`, or name it with --server",
        )
        return
    if status == 200:
        yield Finding(check="server", state="ok", seen=f"{address} is ready")
    else:
        waits = _json(body).get("waiting_for") or ["something it does not say"]
        yield Finding(check="server", state="note", seen=f"{address} waits for {', '.join(waits)}")
    if date := headers.get("date") or headers.get("Date"):
        offset_s = time.time() - parsedate_to_datetime(date).timestamp()
        wrong = abs(offset_s) > CLOCK_OFFSET_LIMIT_S
        yield Finding(
            check="clock",
            state="wrong" if wrong else "ok",
            seen=f"{offset_s:+.0f} s against the server",
            remedy="run NTP or chrony on both: samples from the future are set aside" if wrong else "",
        )
    tiers = _json(_get(f"{address}/v1/tiers?limit=1")[2])
    total = sum(tier["count"] for tier in tiers.get("items", ()))
    if tiers.get("stale"):
        remedy = "check that agents send (isotach_agent_* metrics) and that window and score jobs run"
        seen = f"{total} GPUs, newest evidence {tiers.get('as_of') or 'never'}"
        yield Finding(check="freshness", state="wrong" if total else "note", seen=seen, remedy=remedy)
    else:
        yield Finding(check="freshness", state="ok", seen=f"{total} GPUs, as of {tiers.get('as_of')}")


def _get(url: str) -> tuple[int, Mapping[str, str], bytes]:
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as response:  # noqa: S310 - the scheme is checked
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


CHECKS: tuple[Callable[[Mapping[str, Any]], Iterator[Finding]], ...] = (python, gpus, kafka, server)
"""Every check, in the order they are shown."""
