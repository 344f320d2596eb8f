"""Buffers: what the driver sampled by itself since the last reading, as means, so that 1 Hz sees what was in between.

To add a kind of samples: one line in `KINDS`.
"""

import struct
from typing import Any

import pynvml

from collectors.nvml_child.library import UNSUPPORTED, Failed, Library
from collectors.nvml_child.number import number

KINDS: tuple[tuple[int, str, float], ...] = (
    # kind of samples, metric, factor: NVML gives mW and per cent
    (pynvml.NVML_PROCESSOR_CLK_SAMPLES, "sm_clock_mhz", 1),
    (pynvml.NVML_TOTAL_POWER_SAMPLES, "power_w", 0.001),
    (pynvml.NVML_GPU_UTILIZATION_SAMPLES, "utilization_ratio", 0.01),
)
NO_NEW = frozenset((6, 21))  #: not found, no data: nothing since the last time
MOST = 256  #: samples taken at once; drivers keep about 120
NO_PERMISSION = 4  #: the plain calls do without
_SAMPLE = struct.Struct("<Q8s")  #: nvmlSample_t: time in us, value


class Buffers:
    """The driver's own samples of one GPU."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._last_us: dict[int, int] = {}
        self.renew()

    def renew(self) -> None:
        """Ask for every kind again."""
        self._kinds = list(KINDS)

    def read(self, values: dict[str, int | float], missing: dict[str, int]) -> None:
        """Fill in means over the samples since the last reading; raises Failed for what concerns the whole GPU.

        Nothing at the first reading, whose samples may be old, and for a kind without a new sample.
        """
        for kind, metric, factor in tuple(self._kinds):
            last_us = self._last_us.get(kind, 0)
            try:
                form, samples = self._library.ask(samples_since, self._handle, kind, last_us)
            except Failed as failed:
                if failed.code in UNSUPPORTED or failed.code == NO_PERMISSION:
                    self._kinds.remove((kind, metric, factor))
                elif failed.code not in NO_NEW:
                    raise
                continue
            new = [(time_us, number(form, raw)) for time_us, raw in samples if time_us > last_us]
            if new:
                self._last_us[kind] = max(new)[0]
                if last_us:
                    values[metric] = sum(value for _, value in new) / len(new) * factor


def samples_since(handle: Any, kind: int, last_us: int) -> tuple[int, list[tuple[int, bytes]]]:
    """The type of the values, and (time in us, value) of each sample after that time; raises NVMLError.

    Instead of pynvml's function, which asks twice and makes an object of each sample.
    """
    form, count, room = pynvml.c_uint(0), pynvml.c_uint(MOST), (pynvml.c_nvmlSample_t * MOST)()
    function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetSamples")
    code = function(
        handle, pynvml.c_uint(kind), pynvml.c_ulonglong(last_us), pynvml.byref(form), pynvml.byref(count), room
    )
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    data = memoryview(room).cast("B")[: _SAMPLE.size * min(MOST, count.value)]
    return form.value, list(_SAMPLE.iter_unpack(data))
