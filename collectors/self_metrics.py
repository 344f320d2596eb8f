"""The agent's metrics about itself, and the small HTTP server that shows them to Prometheus.

To add one: one line in `AgentMetrics`, and set it where it happens.
"""

import threading
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from telemetry.errors import SettingsError


class AgentMetrics:
    """What the agent counts, all under `isotach_agent_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"isotach_agent_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"isotach_agent_{name}", text, labels, registry=registry)

        self.success = gauge("collector_success", "1 if the collector's last call worked.", "collector")
        self.duration = gauge("collector_duration_seconds", "How long the collector's last call took.", "collector")
        self.completeness = gauge(
            "collector_completeness_ratio", "GPUs that answered of those known, mean of the last 60 ticks.", "collector"
        )
        self.samples = counter("samples", "Samples collected, one a GPU and time.", "collector")
        self.batches = counter("batches", "Telemetry messages made.", "collector")
        self.bytes = counter("bytes", "Bytes of telemetry messages made, compressed.", "collector")
        self.events = counter("events", "Events, by kind.", "kind")
        self.rejected = counter("rejected", "Values and rows that could not be used.", "collector", "metric", "reason")
        self.errors = counter("collector_errors", "Calls that failed, by the error's class.", "collector", "error")
        self.missed = counter("collector_missed_ticks", "Ticks passed over: late or backing off.", "collector")
        self.queue_messages = gauge("queue_messages", "Messages waiting for the log, in memory and in the spool.")
        self.queue_bytes = gauge("queue_bytes", "Bytes waiting for the log, in memory and in the spool.")
        self.dropped = gauge("queue_dropped_messages", "Messages dropped because the queue was full, since the start.")
        self.dropped_samples = gauge("queue_dropped_samples", "Samples in the messages dropped, since the start.")
        self.spool_messages = gauge(
            "spool_messages", "Messages on disk, those included that the log has not confirmed."
        )
        self.spool_works = gauge("spool_works", "0 while the spool's disk is in trouble and messages wait in memory.")
        self.log_available = gauge("log_available", "1 if the log took the last message.")
        self.held = counter("events_held", "Events that were too many: told as a number, by kind.", "kind")
        self.cpu = counter("cpu_seconds", "CPU time, by process: agent or children, ended ones included.", "process")
        self.resident = gauge("resident_bytes", "Resident memory now, by process: agent or children.", "process")
        self.starts = counter(
            "child_starts", "Child processes started: the first one, each relief, each retry.", "collector"
        )
        self.slowdown = gauge("slowdown_factor", "How many times slower than asked the agent samples; 1 is as asked.")
        self.clock_steps = counter("clock_steps", "Jumps of the wall clock by five seconds or more.", "direction")
        self.reloads = counter("reloads", "Times that settings were read again, by outcome: ok or failed.", "outcome")


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running server; `port` is the one it listens on."""

    server: WSGIServer
    thread: threading.Thread

    @property
    def port(self) -> int:
        """The port, also when 0 was asked for."""
        return self.server.server_port

    def close(self) -> None:
        """Stop listening and wait for the thread."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve(registry: CollectorRegistry, *, host: str = "127.0.0.1", port: int) -> MetricsServer:
    """A server of `/metrics` on its own thread; raises SettingsError if the port cannot be used."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SettingsError(f"metrics cannot be served on {host}:{port}: {error.strerror}") from None
    return MetricsServer(server, thread)
