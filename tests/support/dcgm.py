"""Pages as dcgm-exporter writes them, in both dialects, and small servers that serve pages or worse. All synthetic.

To add a behaviour: a function from a connected socket and the path it asks for; give it to `Exporters`.
"""

import contextlib
import gzip
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from telemetry.metrics import BY_DCGM_ID, METRICS, Kind

Behaviour = Callable[[socket.socket, str], None]

# What a page says of a busy GPU, in DCGM's units, by the catalogue's name; the rest is 0.
_RAW: Mapping[str, float] = MappingProxyType(
    {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 61,
        "memory_temperature_c": 70,
        "temperature_margin_c": 26,
        "power_w": 655.25,
        "power_instant_w": 661.5,
        "power_limit_w": 700,
        "utilization_ratio": 97,
        "memory_utilization_ratio": 41,
        "clock_event_reasons": 4,
        "memory_used_bytes": 70_000,
        "energy_mj": 9_409_439_200_000,
        "pcie_link_gen": 5,
        "pcie_link_width": 16,
        "pcie_replay_total": 106,
        "nvlink_bandwidth_bytes_per_s": 12_345,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 2619,
        "power_limit_requested_w": 700,
        "power_limit_default_w": 700,
        "memory_total_bytes": 81_559,
        "pcie_max_link_gen": 5,
        "pcie_max_link_width": 16,
        "sm_cycles_elapsed_total": 5 * 10**12,
    }
)
MOVING = {"energy_mj": 9_000_000, "sm_cycles_elapsed_total": 29_000_000_000}


def uuid(place: int, node: int = 0) -> str:
    """The UUID of a GPU."""
    return f"GPU-{node:08d}-0000-4000-8000-{place:012d}"


def bus(place: int) -> str:
    """Its bus id, as DCGM writes it."""
    return f"00000000:{0x10 + place:02X}:00.0"


def raw(place: int = 0, tick: int = 0) -> dict[str, float]:
    """Everything that a page can say of one GPU, in DCGM's units."""
    values: dict[str, float] = {}
    for metric in BY_DCGM_ID.values():
        if metric.type == "string":
            continue
        ratio = 0.5 if metric.unit == "ratio" and metric.kind is Kind.GAUGE else 0
        values[metric.name] = _RAW.get(metric.name, ratio) + MOVING.get(metric.name, 0) * tick
    values["temperature_c"] += place
    return values


def labels(place: int, *, new: bool = False, node: str = "n1", number: int = 0, more: Mapping[str, str] = {}) -> str:
    """The labels of a GPU's series, in one of the dialects."""
    said = {
        "gpu": str(place),
        "UUID": uuid(place, number),
        "pci_bus_id": bus(place),
        "device": f"nvidia{place}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "hostname" if new else "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": "580.95.05",
        **more,
    }
    return ",".join(f'{name}="{value}"' for name, value in said.items() if value is not None)


def field_name(metric: str, *, new: bool = False) -> str:
    """A metric's name on a page."""
    names = METRICS[metric].dcgm_names
    return "DCGM_FI_" + (names[0] if new else names[-1])


def page(
    gpus: Mapping[int, Mapping[str, object]] | int = 2,
    *,
    new: bool = False,
    node: str = "n1",
    number: int = 0,
    tick: int = 0,
    more: Callable[[int], Mapping[str, str]] = lambda place: {},
    extra: str = "",
) -> str:
    """A page of `gpus`, each with what is to be other than usual (None: no such series); field by field, as it is."""
    given = {place: {} for place in range(gpus)} if isinstance(gpus, int) else gpus
    values = {place: {**raw(place, tick), **changed} for place, changed in given.items()}
    said = {place: labels(place, new=new, node=node, number=number, more=more(place)) for place in given}
    lines = []
    for metric in dict.fromkeys(name for one in values.values() for name in one):
        name = field_name(metric, new=new) if metric in METRICS else metric
        lines += [f"# HELP {name} synthetic", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{said[p]}}} {one[metric]}" for p, one in values.items() if one.get(metric) is not None]
    return "\n".join((*lines, extra, ""))


def answer(body: bytes | str, *, kind: str = "text/plain; version=0.0.4", status: int = 200, more: str = "") -> bytes:
    """A whole HTTP answer."""
    body = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def serves(body: Callable[[], str] | str) -> Behaviour:
    """Serves a page, made anew each time if it is a function."""
    return lambda connection, path: connection.sendall(answer(body if isinstance(body, str) else body()))


def sends(data: bytes) -> Behaviour:
    """Sends these bytes and closes."""
    return lambda connection, path: connection.sendall(data)


def endless(start: bytes, again: bytes) -> Behaviour:
    """Sends without end."""

    def behave(connection: socket.socket, path: str) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(again)

    return behave


def slow(body: str, pause_s: float) -> Behaviour:
    """A byte at a time."""

    def behave(connection: socket.socket, path: str) -> None:
        for byte in answer(body):
            connection.sendall(bytes((byte,)))
            time.sleep(pause_s)

    return behave


def silent(connection: socket.socket, path: str) -> None:
    """Takes the question and says nothing."""
    connection.recv(1)


def bomb(size: int) -> bytes:
    """An answer of few bytes that unpacks to many."""
    return answer(gzip.compress(b"\0" * size), more="Content-Encoding: gzip\r\n")


class Exporters:
    """Servers on loopback, one port each; `asked` counts questions by port."""

    def __init__(self) -> None:
        self.servers: list[socketserver.ThreadingTCPServer] = []
        self.asked: dict[int, int] = {}
        self.heads: list[str] = []

    def add(self, behaviour: Behaviour) -> str:
        """A server that behaves like this; its host:port."""
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                head = b""
                with contextlib.suppress(OSError):
                    while b"\r\n\r\n" not in head:
                        got = self.request.recv(4096)
                        if not got:
                            return
                        head += got
                    port = self.server.server_address[1]
                    outer.asked[port] = outer.asked.get(port, 0) + 1
                    outer.heads.append(head.decode("latin-1"))
                    behaviour(self.request, head.split()[1].decode())

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    def close(self) -> None:
        """Stop all of them."""
        for server in self.servers:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def exporters() -> Iterator[Exporters]:
    """Servers that are stopped afterwards."""
    found = Exporters()
    try:
        yield found
    finally:
        found.close()
