"""Wiring: transports, stores, collectors and jobs from settings. The commands say which of them run.

To add a role: a function here that takes settings and returns what runs it; the job itself lives in its own package.
"""

import contextlib
import ctypes
import importlib.util
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from isotach.kafka_security import security
from isotach.settings import read_token
from telemetry.errors import SettingsError, TransportError, TransportRefused

if TYPE_CHECKING:
    import polars as pl
    from prometheus_client.registry import Collector as PrometheusCollector

    from collectors import Collector
    from collectors.dcgm.targets import Source
    from collectors.spool import Spool
    from streams import Producer, TopicSpec, Transport
    from streams.kafka import KafkaTransport

LOG = logging.getLogger("isotach")
Settings = Mapping[str, Any]
DCGM_TARGETS = ("dcgm_targets", "dcgm_dns", "dcgm_kubernetes")  #: settings that say where dcgm-exporters are
KAFKA_CONNECT_S = 2.0  #: how long the agent's loop stands still for one try to reach a Kafka that is away
HTTP_PATIENCE_S = 2.0  #: the agent keeps what it cannot send, and tries again itself
LAST_FLUSH_S = 1.0  #: the agent has flushed before, with more patience
SMI_MIN_INTERVAL_S = 5.0  #: nvidia-smi takes the driver's locks: never more often than this


def member(role: str) -> str:
    """A name for this process in its consumer group: role, host, process id."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}"


def kafka(settings: Settings, *, timeout_s: float = 30.0) -> "Transport":
    """The Kafka transport, with its topics made and checked; raises SettingsError without --bootstrap."""
    transport = kafka_untouched(settings, timeout_s=timeout_s)
    transport.ensure_topics(topics(settings))
    return transport


def topics(settings: Settings) -> "list[TopicSpec]":
    """The topics as these settings want them."""
    from streams.topics import specs

    return list(specs(telemetry_partitions=settings["telemetry_partitions"]))


def kafka_untouched(settings: Settings, *, timeout_s: float = 30.0) -> "KafkaTransport":
    """The Kafka transport, nothing asked of it yet; raises SettingsError without --bootstrap."""
    if not settings["bootstrap"]:
        raise SettingsError("--bootstrap host:port (or ISOTACH_BOOTSTRAP) is needed: there is no default Kafka")
    from streams.kafka import KafkaTransport

    return KafkaTransport(
        bootstrap=settings["bootstrap"],
        security=security(settings),
        prefix=settings["topic_prefix"],
        session_timeout_s=settings.get("session_timeout_s", 10.0),
        replication=settings["replication"],
        timeout_s=timeout_s,
    )


@contextlib.contextmanager
def metrics_of(settings: Settings, counters: "PrometheusCollector") -> Iterator[None]:
    """Serve these counters as Prometheus metrics, if --metrics-port asks for it."""
    if not settings["metrics_port"]:
        yield
        return
    from prometheus_client import CollectorRegistry

    from collectors.self_metrics import serve

    registry = CollectorRegistry()
    registry.register(counters)
    server = serve(registry, host=settings["metrics_host"], port=settings["metrics_port"])
    try:
        yield
    finally:
        server.close()


def producer(settings: Settings) -> "Producer":
    """Where an agent sends: Kafka if --bootstrap is given, else the server's HTTP road."""
    if settings["bootstrap"]:
        return late_kafka(settings)
    from streams.http import HttpProducer

    token = read_token(settings["token"], settings["token_file"])
    return HttpProducer(server=settings["server"], token=token, patience_s=HTTP_PATIENCE_S)


def spool(settings: Settings) -> "Spool | None":
    """The agent's spool on disk, if one is asked for; raises SettingsError if the folder cannot be used."""
    if settings["spool"] is None:
        return None
    from collectors.spool import Spool

    return Spool(Path(settings["spool"]), max_bytes=settings["spool_mb"] << 20)


def late_kafka(settings: Settings) -> "Producer":
    """A producer for Kafka, connected now if it is there, else as soon as it is: the agent collects meanwhile.

    Raises TransportRefused, and TransportError for topics that are not as they must be: waiting cures neither.
    """
    from streams.late import LateProducer

    transport = kafka_untouched(settings, timeout_s=KAFKA_CONNECT_S)

    def connect() -> "Producer":
        transport.reach(timeout_s=KAFKA_CONNECT_S)
        transport.ensure_topics(topics(settings))
        return transport.producer(client_id=member("agent"))

    try:
        transport.reach(timeout_s=KAFKA_CONNECT_S)
    except TransportRefused:
        raise
    except TransportError as error:
        LOG.warning("Kafka is not there yet, what is collected waits in memory: %s", error)
        return LateProducer(connect)
    transport.ensure_topics(topics(settings))
    return transport.producer(client_id=member("agent"))


def let_go(producer: "Producer", *, kept: bool) -> None:
    """Close an agent's producer after its last flush; `kept`: what the log has not confirmed is in the spool."""
    try:
        producer.close(timeout_s=LAST_FLUSH_S)
    except TransportError:
        if not kept:
            raise


def thresholds(settings: Settings) -> dict[str, Any]:
    """What scoring is told by settings: the XID policy, the breaker, observing only; raises SettingsError."""
    from analytics.policy import DEFAULT, read_policy

    return {
        "xid_policy": DEFAULT if settings["xid_policy"] is None else read_policy(settings["xid_policy"]),
        "breaker_ratio": settings["breaker_ratio"],
        "observe_only": float(settings["observe_only"]),
    }


def places(settings: Settings) -> "pl.DataFrame | None":
    """Where nodes are by the topology file of the settings, None without one; raises BadInput for what is none."""
    from analytics.topology import read_topology

    return None if settings["topology"] is None else read_topology(settings["topology"])


def node_name(settings: Settings) -> str:
    """The node's name as the scheduler knows it: the setting, else the host name."""
    return settings["node"] or socket.gethostname()


def place(settings: Settings) -> tuple[tuple[str, str], ...]:
    """The node's place, nearest level first; raises SettingsError for a pair without `=`."""
    pairs = []
    for text in settings["place"]:
        level, separator, value = text.partition("=")
        if not separator or not level or not value:
            raise SettingsError(f"--place {text!r}: expected level=value, such as rack=r12")
        pairs.append((level, value))
    return tuple(pairs)


def shard(text: str) -> tuple[int, int]:
    """`i/n` as two numbers, 0 <= i < n; raises SettingsError."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise SettingsError(f"--shard {text!r}: expected i/n with 0 <= i < n, such as 0/4")
    return int(index), int(count)


def start_ns(text: str, *, now_ns: int) -> int:
    """A moment in ns UTC: `now`, seconds relative to now, or ISO 8601; raises SettingsError."""
    if text == "now":
        return now_ns
    try:
        return now_ns + int(float(text) * 1e9)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--start {text!r}: expected now, seconds such as -3600, or ISO 8601") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * 10**9


def collectors(settings: Settings, names: Sequence[str]) -> "dict[str, tuple[Collector, float]]":
    """The collectors asked for, each with the seconds between two calls."""
    found: dict[str, tuple[Collector, float]] = {}
    for name in dict.fromkeys(automatic(settings) if name == "auto" else name for name in names):
        if name == "dcgm":
            found["dcgm"] = dcgm(settings)
        elif name == "nvml":
            found["nvml"] = nvml(settings)
        elif name == "nvidia_smi":
            found["nvidia_smi"] = nvidia_smi(settings)
        elif name == "simulated":
            found["simulated"] = simulated(settings)
    return found


def intervals(settings: Settings) -> dict[str, float]:
    """Seconds between two calls, of those collectors whose pace is the agent's own: it can be changed any time."""
    smi_s = settings["interval_s"] if settings.get("smi_file") else max(SMI_MIN_INTERVAL_S, settings["interval_s"])
    return {"nvml": settings["interval_s"], "nvidia_smi": smi_s}


def automatic(settings: Settings) -> str:
    """What `auto` means here: captures or targets of dcgm if there are any, else NVML, else nvidia-smi, else none."""
    if settings.get("smi_file"):
        return "nvidia_smi"
    if any(settings.get(name) for name in DCGM_TARGETS):
        return "dcgm"
    if nvml_loads():
        return "nvml"
    return "none" if shutil.which("nvidia-smi") is None else "nvidia_smi"


def nvml_loads() -> bool:
    """Whether NVML's library and its binding are here. The library is only mapped, none of its calls is made."""
    if importlib.util.find_spec("pynvml") is None:
        return False
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def nvml(settings: Settings) -> "tuple[Collector, float]":
    """The NVML collector."""
    from collectors.nvml.collector import JOBS_EVERY_S, Nvml

    interval_s = settings["interval_s"]
    collector = Nvml(
        node=node_name(settings),
        interval_s=interval_s,
        expected_gpus=settings["expected_gpus"] or None,
        place=place(settings),
        jobs_every_s=JOBS_EVERY_S if settings["jobs"] else None,
        proc=settings["proc"],
        pod_logs=settings["pod_logs"],
    )
    return collector, interval_s


def dcgm(settings: Settings) -> "tuple[Collector, float]":
    """The collector over dcgm-exporters; what it has scraped is taken five times an interval."""
    from collectors.dcgm.collector import ASKED_TIMES, Dcgm

    interval_s = settings["dcgm_interval_s"]
    collector = Dcgm(
        dcgm_sources(settings),
        node=node_name(settings),
        interval_s=interval_s,
        timeout_s=settings["dcgm_timeout_s"],
        ca_file=settings["dcgm_ca_file"],
    )
    return collector, interval_s / ASKED_TIMES


def dcgm_sources(settings: Settings) -> "list[Source]":
    """Where dcgm-exporters are listed; raises SettingsError for an address that is none."""
    from collectors.dcgm.discovery import Dns, Kubernetes
    from collectors.dcgm.targets import sources_of

    sources: list[Source] = [*sources_of(settings["dcgm_targets"]), *map(Dns, settings["dcgm_dns"])]
    if settings["dcgm_kubernetes"]:
        sources.append(Kubernetes(settings["dcgm_kubernetes"]))
    return sources


def nvidia_smi(settings: Settings) -> "tuple[Collector, float]":
    """The nvidia-smi collector over the command, or over captures."""
    from collectors.nvidia_smi import NvidiaSmi

    files = tuple(settings.get("smi_file") or ())
    collector = NvidiaSmi(
        node=node_name(settings),
        files=files,
        expected_gpus=settings["expected_gpus"] or None,
        place=place(settings),
    )
    return collector, intervals(settings)["nvidia_smi"]


def simulated(settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> "tuple[Collector, float]":
    """The simulated fleet. At speed 1 in real time, after what lies in the past has been made up for at once."""
    simulated_class = resolve_name("collectors.simulated:Simulated")
    speed = settings.get("speed", 1.0)
    step_s = settings["batch_s"]
    begin_ns = start_ns(settings["start"], now_ns=clock_ns())
    if speed not in (0.0, 1.0):
        clock_ns = paced(clock_ns, begin_ns=begin_ns, speed=speed)
    collector: Collector = simulated_class(
        fleet=settings["fleet"],
        seed=settings["seed"],
        start_ns=begin_ns,
        interval_s=settings["interval_s"],
        step_s=step_s,
        shard=shard(settings.get("shard", "0/1")),
        truth=settings["truth"],
        realtime=speed > 0,
        clock_ns=clock_ns,
        duration_s=settings.get("duration_s") or None,
    )
    return collector, 0.0  # it says itself when the next step is not due yet: what lies in the past comes at once


def paced(clock_ns: Callable[[], int], *, begin_ns: int, speed: float) -> Callable[[], int]:
    """A clock that stands at `begin_ns` now and runs at `speed`, until it has caught up with the clock it follows.

    It never runs ahead: samples from the future would be set aside.
    """
    anchor_ns = clock_ns()

    def now_ns() -> int:
        there_ns = clock_ns()
        return min(there_ns, begin_ns + round((there_ns - anchor_ns) * speed))

    return now_ns
