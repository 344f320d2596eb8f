"""A stand-in for the NVML library: our C in `nvml_stub`, built by gcc, driven by a file that a test rewrites at will.

To let it answer another call: a function in `stub.c`, its keys in `synthetic` or `captured`.
"""

import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from collectors.listing import ListedGpu
from collectors.nvidia_smi_xml import parse_xml

SOURCE = Path(__file__).parent / "nvml_stub" / "stub.c"
Keys = dict[str, object]
NARROW = ("field.82", "field.186", "field.144", "field.145", "field.230")  #: fields of 32 bits, as in stub.c
_CLUSTER = "fabric_cluster_uuid"
_STATES = {"Not Started": 1, "In Progress": 2, "Completed": 3}

# A sampled metric of a capture -> (key of the stub, factor from the catalogue's unit to NVML's).
_SAMPLED: Mapping[str, tuple[str, float]] = {
    "sm_clock_mhz": ("sm_clock", 1),
    "memory_clock_mhz": ("mem_clock", 1),
    "temperature_c": ("temperature", 1),
    "memory_temperature_c": ("field.82", 1),
    "temperature_margin_c": ("margin", 1),
    "power_w": ("power", 1_000),
    "power_instant_w": ("field.186", 1_000),
    "power_limit_w": ("power_limit", 1_000),
    "utilization_ratio": ("utilization", 100),
    "memory_utilization_ratio": ("memory_utilization", 100),
    "clock_event_reasons": ("reasons", 1),
    "performance_state": ("pstate", 1),
    "memory_used_bytes": ("memory_used", 1),
    "sw_power_cap_ns": ("field.74", 1),
    "sync_boost_ns": ("field.76", 1),
    "sw_thermal_ns": ("field.251", 1),
    "hw_thermal_ns": ("field.252", 1),
    "hw_power_brake_ns": ("field.253", 1),
    "ecc_corrected_total": ("field.3", 1),
    "ecc_uncorrected_total": ("field.4", 1),
    "remapped_rows_corrected_total": ("field.142", 1),
    "remapped_rows_uncorrected_total": ("field.143", 1),
    "row_remap_pending": ("field.144", 1),
    "row_remap_failed": ("field.145", 1),
    "pcie_replay_total": ("field.94", 1),
    "pcie_link_gen": ("pcie_gen", 1),
    "pcie_link_width": ("pcie_width", 1),
    "recovery_action": ("field.230", 1),
}
_STATIC: Mapping[str, tuple[str, float]] = {
    "max_sm_clock_mhz": ("max_sm_clock", 1),
    "max_memory_clock_mhz": ("max_mem_clock", 1),
    "power_limit_default_w": ("power_limit_default", 1_000),
    "memory_total_bytes": ("memory_total", 1),
    "pcie_max_link_gen": ("pcie_max_gen", 1),
    "pcie_max_link_width": ("pcie_max_width", 1),
    "module_id": ("module", 1),
    "fabric_clique_id": ("fabric_clique", 1),
    "chassis_slot": ("platform_slot", 1),
    "chassis_serial": ("platform_chassis", 1),
    "tray_index": ("platform_tray", 1),
    "host_id": ("platform_host", 1),
}


def captured(path: Path) -> tuple[str, list[Keys]]:
    """The driver's version and the GPUs of an `nvidia-smi -q -x` capture, as the stub's keys.

    What such a capture does not have (energy, NVLink errors, activity) stays unsupported. The captures are scrubbed,
    so each GPU is given a UUID of its own.
    """
    listing = parse_xml(path.read_bytes())
    gpus = [_keys(place, gpu) for place, gpu in enumerate(listing.gpus)]
    return listing.gpus[0].driver_version or "", gpus


def _keys(place: int, gpu: ListedGpu) -> Keys:
    found: Keys = {"uuid": gpu_uuid(place), "bus": (gpu.bus_id or "").upper(), "model": gpu.model, "serial": gpu.serial}
    for values, table in ((gpu.values, _SAMPLED), (gpu.statics, _STATIC)):
        for name, (key, factor) in table.items():
            value = values.get(name)
            if isinstance(value, str):
                found[key] = value
            elif value is not None:
                found[key] = round(value * factor)
    if "platform_slot" in found:
        found["platform_module"] = found.get("module", 0)
    if gpu.mig_enabled is not None:
        found["mig"] = int(gpu.mig_enabled)
    if (state := _STATES.get(gpu.fabric_state or "")) is not None:
        found |= {"fabric_state": state, "fabric_status": 0, "fabric_summary": 1}
        found["fabric_cluster"] = str(gpu.statics.get(_CLUSTER, "")).replace("-", "")
    return found


def gpu_uuid(place: int) -> str:
    """The UUID of the GPU at this place."""
    return f"GPU-{place:08x}-2222-4222-8222-22222222{place:04x}"


def bus_id(place: int) -> str:
    """The bus id of a synthetic GPU as the collector spells it."""
    return f"00000000:{16 + place:02x}:00.0"


def synthetic(place: int) -> Keys:
    """A busy GPU with everything that NVML can have; synthetic, of the size of an H100's values."""
    since = round(time.time())
    return {
        "uuid": gpu_uuid(place),
        "bus": bus_id(place).upper(),
        "model": "NVIDIA H100 80GB HBM3",
        "serial": f"16500000{place:05d}",
        "sm_clock": "1755~15",
        "mem_clock": 2619,
        "max_sm_clock": 1980,
        "max_mem_clock": 2619,
        "temperature": f"{55 + place % 2 * 3}~1",
        "margin": 30,
        "power": "640000~9000",
        "power_limit": 700_000,
        "power_limit_default": 700_000,
        "utilization": 99,
        "memory_utilization": 40,
        "reasons": 4,
        "pstate": 0,
        "memory_total": 85_520_809_984,
        "memory_used": 60_000_000_000,
        "pcie_gen": 5,
        "pcie_width": 16,
        "pcie_max_gen": 5,
        "pcie_max_width": 16,
        "mig": 0,
        "module": place + 1,
        "events": 1,
        "buffers": 1,
        "gpm": 1,
        "field.82": "66~1",
        "field.186": "640000~20000",
        "field.83": f"5000000+640000@{since}",
        "field.74": f"7000000000+800000000@{since}",
        "field.76": 0,
        "field.251": 0,
        "field.252": 0,
        "field.253": 0,
        "field.3": 0,
        "field.4": 0,
        "field.94": 120,
        "field.142": 0,
        "field.143": 0,
        "field.144": 0,
        "field.145": 0,
        "field.38": 0,
        "field.52": 0,
        "field.59": 0,
        "field.221": 0,
        "field.230": 0,
        "gpm.1": "98~1",
        "gpm.2": "92~3",
        "gpm.3": "30~3",
        "gpm.5": "70~3",
        "gpm.10": "45~3",
        "gpm.11": 0,
        "gpm.12": "12~2",
        "gpm.13": 1,
        "gpm.20": "500~50",
        "gpm.21": "500~50",
        "gpm.60": "90000~500",
        "gpm.61": "90000~500",
    }


class NvmlStub:
    """The library's control file. Every change takes effect with the next call that any process makes."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self._library = library
        self._path = folder / "nvml.conf"
        self.node: Keys = {"driver": "580.95.05"}
        self.gpus: list[Keys] = []
        self._xids: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """What lets a process find this library, and only this one."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), "NVML_STUB": str(self._path)}

    def profile(self, gpus: list[Keys], *, driver: str = "580.95.05") -> "NvmlStub":
        """These GPUs from now on."""
        self.node |= {"driver": driver}
        self.gpus = [dict(keys) for keys in gpus]
        return self.write()

    def set(self, place: int | None = None, **keys: object) -> "NvmlStub":
        """Change keys of one GPU, or of all; None takes a key away. `__` in a name stands for a full stop."""
        for gpu in self.gpus if place is None else [self.gpus[place]]:
            for name, value in keys.items():
                key = name.replace("__", ".")
                gpu.pop(key, None)
                if value is not None:
                    gpu[key] = value
        return self.write()

    def garble(self, place: int) -> "NvmlStub":
        """From now on this GPU answers every call with nonsense that no sensor can have."""
        kept = ("uuid", "bus", "model", "serial", "events", "gpm", "buffers", "mig", "module")
        for name in [name for name in self.gpus[place] if name not in kept]:
            wide = name.startswith("field.") and name not in NARROW
            self.gpus[place][name] = 2**64 - 1 if wide else 9 * 10**18
        return self.write()

    def about(self, **keys: object) -> "NvmlStub":
        """Change what concerns the whole node: driver, epoch, init, order."""
        self.node |= keys
        return self.write()

    def xid(self, place: int, code: int, count: int = 1) -> "NvmlStub":
        """Let this GPU have an XID now."""
        self._xids.append(f"{place},{code},{count}")
        return self.write()

    def write(self) -> "NvmlStub":
        """Put the file in place, whole."""
        lines = [f"gpus={len(self.gpus)}", *(f"{name}={value}" for name, value in self.node.items() if value != "")]
        lines += [f"gpu.{i}.{name}={value}" for i, keys in enumerate(self.gpus) for name, value in keys.items()]
        lines += [f"xid={xid}" for xid in self._xids]
        fresh = self._path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="ascii")
        fresh.replace(self._path)
        return self


def build(folder: Path) -> Path:
    """The library, built; raises CalledProcessError where the compiler refuses."""
    library = folder / "libnvidia-ml.so.1"
    compiler = shutil.which("gcc") or str(sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub as `libnvidia-ml.so.1` in a folder of its own; skips where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the NVML stub with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(tmp_path: Path, nvml_library: Path) -> NvmlStub:
    """A node with eight synthetic GPUs."""
    return NvmlStub(tmp_path, nvml_library).profile([synthetic(place) for place in range(8)])
