"""Hourly roll-ups of `windows`: their tables, and the SQL that makes one hour of them.

To add a column: one line in the table here, a migration, and nothing else if its merge rule says how hours add up.
"""

from analytics.incoming import DECIMALS
from telemetry.tables import WINDOWS, Column, Table

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS

_NOT_HOURLY = frozenset(
    {"gpu_uuid", "window_start_ns", "window_s", "node", "workload_class", "row_remap_pending", "row_remap_failed"}
    | {"pcie_link_gen", "pcie_link_width", "recovery_action", "distinct_readings", "delivery_delay_s"}
)
"""Columns of `windows` that say nothing about an hour, or that the events tell better."""

_NOT_BY_BLOCK = _NOT_HOURLY | frozenset(
    {"memory_clock_mhz", "power_limit_w", "memory_temperature_max_c", "sm_active_ratio", "tensor_active_ratio"}
    | {"dram_active_ratio", "fp_active_ratio", "nvlink_bytes_per_s", "pcie_bytes_per_s", "sw_power_cap_ratio"}
    | {"hw_slowdown_ratio", "sw_thermal_ratio", "hw_thermal_ratio", "power_brake_ratio", "rejected_values"}
)
"""Columns that mean little over GPUs of several kinds."""

_OVER_BUSY = frozenset(
    {"effective_clock_mhz", "memory_clock_mhz", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"}
    | {"fp_active_ratio", "nvlink_bytes_per_s", "pcie_bytes_per_s", "sw_power_cap_ratio"}
)
"""Means over busy samples: an hour weighs them by busy samples, everything else by samples."""

_SOURCE = {column.name: column for column in WINDOWS.columns}


def _copied(name: str) -> Column:
    source = _SOURCE[name]
    kind = "float64" if source.type == "float32" else "uint64"
    return Column(name=name, type=kind, unit=source.unit, merge=source.merge, help=f"{_rule(name)}: {source.help}")  # type: ignore[arg-type]


def _rule(name: str) -> str:
    if name == "completeness_ratio":
        return "Mean over the windows"
    if _SOURCE[name].merge == "mean":
        return f"Mean over the hour by {'busy samples' if name in _OVER_BUSY else 'samples'}"
    return {"sum": "Sum over the hour", "max": "Highest of the hour", "min": "Lowest of the hour"}.get(
        _SOURCE[name].merge, "Last of the hour"
    )


def _key(name: str, kind: str, unit: str, text: str) -> Column:
    return Column(name=name, type=kind, unit=unit, nullable=False, merge="key", help=text)  # type: ignore[arg-type]


_HOUR = _key("hour_start_ns", "int64", "ns UTC", "Start of the hour: a multiple of 3,600 s since 1970 in UTC.")

WINDOWS_HOURLY = Table(
    name="windows_hourly",
    grain="one row per gpu_uuid and UTC hour that has windows",
    key=("gpu_uuid", "hour_start_ns"),
    columns=(
        _key("gpu_uuid", "string", "", "UUID of the physical GPU."),
        _HOUR,
        _key("node", "string", "", "Node that reported the last window of the hour."),
        _key("windows", "uint32", "windows", "Windows in the hour."),
        *(_copied(c.name) for c in WINDOWS.columns if c.name not in _NOT_HOURLY),
    ),
)

BLOCKS_HOURLY = Table(
    name="blocks_hourly",
    grain="one row per level, value and UTC hour; levels of the topology, `node` and `fleet`",
    key=("level", "value", "hour_start_ns"),
    columns=(
        _key("level", "string", "", "Level of the topology; `node` and `fleet` are always there."),
        _key("value", "string", "", "Which block of that level, by the topology at the time of the roll-up."),
        _HOUR,
        _key("gpus", "uint32", "GPUs", "GPUs with windows in the hour."),
        _key("windows", "uint64", "windows", "Windows of all of them."),
        *(_copied(c.name) for c in WINDOWS.columns if c.name not in _NOT_BY_BLOCK),
    ),
)

ROLLUPS: tuple[Table, ...] = (WINDOWS_HOURLY, BLOCKS_HOURLY)
"""Every roll-up, in the order in which they are made."""


def _aggregate(column: Column, *, time: str) -> str:
    name = column.name
    if name == "completeness_ratio":
        body = f"avg({name})" if time == "window_start_ns" else f"sum({name} * windows) / sum(windows)"
    elif column.merge == "mean":
        weight = "busy_samples" if name in _OVER_BUSY else "samples"
        body = f"sum({name}::DOUBLE * {weight}) / nullif(sum({weight}) FILTER ({name} IS NOT NULL), 0)"
    elif column.merge == "sum":
        body = f"sum({name})"
    elif column.merge in ("max", "min"):
        body = f"{column.merge}({name})"
    else:
        body = f"arg_max({name}, {time})"
    if column.unit in DECIMALS:
        body = f"round({body}, {DECIMALS[column.unit]})"
    return f"({body})::{'DOUBLE' if column.type == 'float64' else 'UBIGINT'} AS {name}"


def hour_of_gpus() -> str:
    """SQL of one hour of `windows_hourly`; parameters: start and end of the hour in ns."""
    columns = ", ".join(_aggregate(c, time="window_start_ns") for c in WINDOWS_HOURLY.columns[4:])
    return f"""
        SELECT gpu_uuid, $1::BIGINT AS hour_start_ns, arg_max(node, window_start_ns) AS node,
               count(*)::UINTEGER AS windows, {columns}
        FROM windows
        WHERE window_start_ns >= $1 AND window_start_ns < $2
        GROUP BY gpu_uuid
    """  # noqa: S608


def hour_of_blocks() -> str:
    """SQL of one hour of `blocks_hourly`, from `windows_hourly`; parameter: start of the hour in ns."""
    columns = ", ".join(_aggregate(c, time="hour_start_ns") for c in BLOCKS_HOURLY.columns[5:])
    return f"""
        WITH here AS (FROM windows_hourly WHERE hour_start_ns = $1),
        levels AS (SELECT node, level, value FROM node_levels WHERE level NOT IN ('node', 'fleet')),
        members AS (
            SELECT here.*, 'node' AS level, here.node AS value FROM here
            UNION ALL SELECT here.*, 'fleet', 'fleet' FROM here
            UNION ALL SELECT here.*, levels.level, levels.value FROM here JOIN levels USING (node)
        )
        SELECT level, value, $1::BIGINT AS hour_start_ns, count(*)::UINTEGER AS gpus,
               sum(windows)::UBIGINT AS windows, {columns}
        FROM members
        GROUP BY level, value
    """  # noqa: S608
