"""Checks of what GPUs, driver and kernel say on this machine, and what is lost by what they do not say.

To name the cost of another metric: a line in `COSTS`.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from isotach import roles
from isotach.checks.exporters import exporters
from isotach.checks.finding import Finding
from telemetry.errors import IsotachError
from telemetry.metrics import SAMPLED

NVML_READINGS = 3  #: activity needs two
NVML_PAUSE_S = 0.2
DRIVER = Path("/sys/module/nvidia/version")
DEVICES = Path("/dev")
KERNEL_LOG = Path("/dev/kmsg")
RESTRICTED = Path("/proc/sys/kernel/dmesg_restrict")
JOURNALS = (Path("/var/log/journal"), Path("/run/log/journal"))
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


def gpus(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """What dcgm-exporters say if they are given, else NVML, else nvidia-smi, and what is lost by what they do not."""
    if any(settings.get(name) for name in roles.DCGM_TARGETS):
        yield from exporters(settings)
    elif roles.nvml_loads():
        yield from _driver()
        yield from _nvml(settings)
    else:
        yield from _nvidia_smi()


def _nvml(settings: Mapping[str, Any]) -> Iterator[Finding]:
    from collectors.nvml.collector import Nvml

    collector = Nvml(node=roles.node_name({"node": ""}), proc=settings["proc"])
    try:
        readings = []
        for _ in range(NVML_READINGS):
            readings.append(collector.collect())
            time.sleep(NVML_PAUSE_S)
    except IsotachError as error:
        remedy = "load the driver, or reboot if it was changed under running processes; in a container pass the GPUs in"
        yield Finding(check="nvml", state="wrong", seen=str(error), lost="all telemetry of this node", remedy=remedy)
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
            lost="its samples, as long as this lasts",
            remedy="docs/collectors.md says what becomes of such a GPU; nvidia-smi and the kernel's log may tell more",
        )
    denied = sorted(
        {
            metric
            for r in readings
            for metric, _, why in (name.partition(":") for name in r.rejected)
            if why == "no_permission" and metric != "processes"
        }
    )
    if denied:
        yield Finding(
            check="nvml permissions",
            state="note",
            seen=f"refused to uid {os.getuid()}: {', '.join(denied)}",
            lost="these values; everything else goes on",
            remedy="run the agent with CAP_SYS_ADMIN, in a container with access to all GPUs, or do without",
        )
    unseen = sorted({name.partition(":")[2] for r in readings for name in r.rejected if name.startswith("processes:")})
    if unseen:
        yield Finding(
            check="nvml jobs",
            state="note",
            seen=f"processes on GPUs that nobody can be found for: {', '.join(unseen).replace('_', ' ')}",
            lost="which job runs on these GPUs, unless the scheduler or dcgm-exporter tells",
            remedy="in a container share the host's process numbers (hostPID: true); mount /proc without hidepid",
        )
    filled = {name for b in batches for name, values in b.columns.items() if any(v is not None for v in values)}
    absent = [metric.name for metric in SAMPLED if metric.name not in filled]
    known = f"{len(filled)} of {len(SAMPLED)} metrics" + (f"; not: {', '.join(absent)}" if absent else "")
    yield Finding(check="nvml fields", state="ok", seen=known)
    yield from _costs(filled, "none if the model has no such sensor; a newer driver may report it")


def _costs(filled: Collection[str], remedy: str) -> Iterator[Finding]:
    for name, cost in COSTS.items():
        if name not in filled:
            yield Finding(check=f"metric {name}", state="note", seen="not reported", lost=cost, remedy=remedy)


def _nvidia_smi() -> Iterator[Finding]:
    if shutil.which("nvidia-smi") is None:
        yield Finding(
            check="nvidia-smi",
            state="note",
            seen="not on the PATH: no GPUs to collect here",
            lost="all GPU telemetry of this machine, if it has GPUs",
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
            lost="all telemetry of this node",
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
    filled = {name for name, values in known.items() if any(value is not None for value in values)}
    yield from _costs(filled, "collect with nvml, which reports more than nvidia-smi, or do without")


def _driver(version: Path = DRIVER, devices: Path = DEVICES) -> Iterator[Finding]:
    """The kernel's part of the driver, and whether this user may open the GPUs."""
    try:
        loaded = version.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return  # NVML itself says whether a driver is there
    yield Finding(check="driver", state="ok", seen=f"kernel module {loaded}")
    closed = [node.name for node in sorted(devices.glob("nvidia[0-9]*")) if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        yield Finding(
            check="driver devices",
            state="wrong",
            seen=f"uid {os.getuid()} may not open {', '.join(closed)}",
            lost="all telemetry of these GPUs",
            remedy="give the agent's user the group that owns /dev/nvidia*, or the container these devices",
        )


def kernel_log(
    _settings: Mapping[str, Any],
    *,
    kernel: Path = KERNEL_LOG,
    restricted: Path = RESTRICTED,
    journals: Sequence[Path] = JOURNALS,
    gpus_here: Callable[[], bool] = roles.nvml_loads,
) -> Iterator[Finding]:
    """Whether XIDs can be read where they are complete; nothing on a machine without NVML."""
    if not gpus_here():
        return
    try:
        os.close(os.open(kernel, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        why = f"{kernel}: {error.strerror}"
    else:
        yield Finding(check="kernel log", state="ok", seen=f"XIDs are read from {kernel} and from NVML")
        return
    with contextlib.suppress(OSError):
        why += f", kernel.dmesg_restrict is {restricted.read_text(encoding='ascii').strip()}"
    if any(os.access(file, os.R_OK) for folder in journals for file in folder.glob("*/system.journal")):
        why += "; the journal is readable, but the agent reads it not"
    yield Finding(
        check="kernel log",
        state="note",
        seen=f"not readable: {why}",
        lost="XIDs come from NVML alone: those of a GPU that fell off the bus are only in the kernel's log",
        remedy="give the agent CAP_SYSLOG (systemd: AmbientCapabilities; Helm: agent.kernelLog), or dmesg_restrict 0",
    )
