"""GPM: activity of SMs, tensor pipes, memory and links between two samples, without DCGM (Hopper and newer).

To add a metric: one line in `METRICS`.
"""

from typing import Any

import pynvml

from collectors.nvml_child.library import UNSUPPORTED, Failed, Library

MIB = float(1 << 20)
METRICS: tuple[tuple[int, str, float], ...] = (
    # GPM metric, metric, factor: NVML gives per cent and MiB/s
    (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, "graphics_engine_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_SM_UTIL, "sm_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, "sm_occupancy_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "tensor_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, "dram_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_FP64_UTIL, "fp64_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_FP32_UTIL, "fp32_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_FP16_UTIL, "fp16_active_ratio", 0.01),
    (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, "pcie_tx_bytes_per_s", MIB),
    (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, "pcie_rx_bytes_per_s", MIB),
    (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, "nvlink_tx_bytes_per_s", MIB),
    (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, "nvlink_rx_bytes_per_s", MIB),
)


class Gpm:
    """The activity of one GPU; null at the first reading, since it needs two samples."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._samples: list[Any] = []
        self._taken = False
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (number, _, _) in enumerate(METRICS):
            self._request.metrics[place].metricId = number
        self._answers = [self._request.metrics[place] for place in range(len(METRICS))]
        self.renew()

    def renew(self) -> None:
        """Find out whether the GPU has it."""
        try:
            support = self._library.ask(pynvml.nvmlGpmQueryDeviceSupport, self._handle)
            self._there = bool(support.isSupportedDevice)
            while self._there and len(self._samples) < 2:
                self._samples.append(self._library.ask(pynvml.nvmlGpmSampleAlloc))
        except Failed:
            self._there = False

    def read(self, values: dict[str, int | float], missing: dict[str, int]) -> None:
        """Fill in the activity since the last reading; raises Failed only for what concerns the whole GPU."""
        if not self._there:
            return
        older, newer = self._samples
        try:
            self._library.ask(pynvml.nvmlGpmSampleGet, self._handle, newer)
            self._samples = [newer, older]
            if not self._taken:
                self._taken = True
                return
            self._request.sample1, self._request.sample2 = older, newer
            self._library.ask(pynvml.nvmlGpmMetricsGet, self._request)
        except Failed as failed:
            if failed.code in UNSUPPORTED:
                self._there = False  # as with MIG: the whole GPU has none
                return
            self._taken = False
            raise
        for (_, metric, factor), answer in zip(METRICS, self._answers, strict=True):
            if not answer.nvmlReturn:
                values[metric] = answer.value * factor
            elif answer.nvmlReturn not in UNSUPPORTED:
                missing[metric] = answer.nvmlReturn
