"""Was the GPU working, and at what: busy samples and the workload class of a window, as polars expressions.

To add a class: a rule in `workload_class`, its name in `telemetry.tables.CLASSES`, a paragraph in docs/scoring.md.
"""

import polars as pl

BUSY_ENGINE = 0.5  #: graphics-engine activity: working at least half of the time since the last sample
BUSY_SM = 0.2  #: SM activity: kernels on a fifth of the SMs, or on all of them a fifth of the time
BUSY_UTILIZATION = 0.5  #: coarse utilisation: a kernel of any size ran at least half of the time

PIPES_HIGH = 0.2  #: tensor or FP pipe; dense GEMM reads 0.4-0.9, streaming kernels stay below 0.15
DRAM_HIGH = 0.5  #: a stream benchmark reads 0.8-0.9; half is more than a cache-friendly kernel needs
NVLINK_HIGH = 5e10  #: bytes/s, a tenth of NVLink 3; a collective alone reads several times as much
PCIE_HIGH = 8e9  #: bytes/s, a third of PCIe 4 x16
LIMITED_MOST = 0.5  #: limited by power or heat in most busy samples: the clock is what holds the work back


def busy(*, engine: float = BUSY_ENGINE, sm_active: float = BUSY_SM, utilization: float = BUSY_UTILIZATION) -> pl.Expr:
    """True, false, or null where no activity is known, per sample.

    The best source present in the sample decides: graphics engine, SM activity, coarse utilisation. MIG nodes report
    no utilisation, only the engine; a missing utilisation is unknown, never idle.
    """
    return pl.coalesce(
        pl.col("graphics_engine_active_ratio") >= engine,
        pl.col("sm_active_ratio") >= sm_active,
        pl.col("utilization_ratio") >= utilization,
    )


def workload_class(
    *,
    pipes_high: float = PIPES_HIGH,
    dram_high: float = DRAM_HIGH,
    nvlink_high: float = NVLINK_HIGH,
    pcie_high: float = PCIE_HIGH,
    limited_most: float = LIMITED_MOST,
) -> pl.Expr:
    """The class of a window from its means over busy samples; null when it has none.

    Busy pipes say compute; busy memory with idle pipes says memory, and memory busier than busy pipes says mixed;
    traffic with idle pipes says communication. Without
    profiling metrics the class is mixed, or compute when power or heat limits the clock in most busy samples: what
    waits for the clock is bound by it.
    """
    pipes = pl.max_horizontal("tensor_active_ratio", "fp_active_ratio")
    limited = pl.max_horizontal("sw_power_cap_ratio", "sw_thermal_ratio", "hw_thermal_ratio") > limited_most
    return (
        pl.when(pl.col("busy_samples") == 0)
        .then(None)
        .when(
            (pipes >= pipes_high) & (pl.col("dram_active_ratio") >= dram_high) & (pl.col("dram_active_ratio") > pipes)
        )
        .then(pl.lit("mixed"))
        .when(pipes >= pipes_high)
        .then(pl.lit("compute"))
        .when(pipes.is_null() & limited)
        .then(pl.lit("compute"))
        .when(pipes.is_null())
        .then(pl.lit("mixed"))
        .when(pl.col("dram_active_ratio") >= dram_high)
        .then(pl.lit("memory"))
        .when((pl.col("nvlink_bytes_per_s") >= nvlink_high) | (pl.col("pcie_bytes_per_s") >= pcie_high))
        .then(pl.lit("communication"))
        .otherwise(pl.lit("mixed"))
    )
