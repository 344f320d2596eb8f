"""What the columns of a stranger's file are: which one names the GPU, the node, the time, the value.

To know another header: add it to its list, in lower case with `_` for whatever is no letter or digit.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from telemetry.errors import BadInput

ROLES: tuple[str, ...] = ("gpu", "node", "value", "time", "class", "name", "unit")
"""What a column can be in a file of measurements; the first of gpu and node that is there says whom a row speaks of."""

_KNOWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu": (
            *("gpu_uuid", "uuid", "gpuuuid", "gpu_id", "gpu", "gpuid", "gpu_index", "gpu_idx", "gpu_serial", "serial"),
            *("device", "device_id", "dev_id", "device_index", "dev", "index", "local_rank"),
        ),
        "node": ("node", "node_name", "nodename", "hostname", "host", "host_name", "machine", "server", "node_id"),
        "time": (
            *("time_ns", "timestamp", "timestamp_ns", "timestamp_ms", "timestamp_us", "timestamp_s", "ts", "ts_ns"),
            *(
                "ts_ms",
                "datetime",
                "date_time",
                "unix_time",
                "epoch",
                "measured_at",
                "created_at",
                "start_time",
                "date",
            ),
        ),
        "class": ("workload_class",),
        "name": ("benchmark", "benchmark_name", "bench", "test_name"),
        "unit": ("unit", "units"),
    }
)
_VALUES = frozenset(
    (
        *("perf", "performance", "throughput", "score", "result", "speed", "flops", "gflops", "tflops", "ops"),
        *("bandwidth", "busbw", "algbw", "bw", "gb_s", "gbps", "latency", "latency_ms", "latency_us", "ms", "seconds"),
        *("duration", "duration_s", "duration_ms", "elapsed", "elapsed_s", "elapsed_ms", "runtime", "run_time"),
        *("step_time", "step_time_s", "step_time_ms", "iteration_time", "iter_time", "kernel_time", "exec_time"),
        *("time_s", "time_ms", "time_us", "tokens_per_s", "tokens_per_second", "samples_per_s", "images_per_s"),
    )
)


def normal(name: str) -> str:
    """The header in lower case, a unit in brackets dropped, `_` for everything that is no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"[\[(][^\])]*[\])]\s*$", "", name).lower()).strip("_")


def find_roles(columns: Sequence[str]) -> dict[str, str]:
    """Columns by role for all roles but the value: the best-known header of each, absent if there is none."""
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(normal(column), column)
    return {
        role: by_name[next(name for name in names if name in by_name)]
        for role, names in _KNOWN.items()
        if any(name in by_name for name in names)
    }


def guess_columns(columns: Sequence[str]) -> dict[str, str]:
    """Column by role for a file of measurements whose user gave no mapping.

    `time` alone is ambiguous: it is the value beside a timestamp, the timestamp beside another value. Raises BadInput,
    asking for a mapping, if no column or several could be the value, or none names a GPU or node.
    """
    roles = find_roles(columns)
    by_name = {normal(column): column for column in columns}
    taken = set(roles.values())
    values = [column for column in columns if normal(column) in _VALUES and column not in taken]
    if "value" in by_name:
        values = [by_name["value"]]
    if "time" in by_name and by_name["time"] not in taken:
        if values:
            roles.setdefault("time", by_name["time"])
        elif "time" in roles:
            values = [by_name["time"]]
    if len(values) != 1:
        found = f"{', '.join(values)} could all be" if values else "no column is clearly"
        raise BadInput("ambiguous_columns", f"{found} the value; say which one (value=COLUMN) of {_listed(columns)}")
    if "gpu" not in roles and "node" not in roles:
        raise BadInput("ambiguous_columns", f"no column names a GPU or node; say which one of {_listed(columns)}")
    return roles | {"value": values[0]}


def check_columns(mapping: Mapping[str, str], columns: Sequence[str], roles: Sequence[str] = ROLES) -> None:
    """Raise BadInput for a role that does not exist or a column that is not in the file, with the nearest one that is.

    Several columns may make up a node's name: `cabinet+node` joins them with a dash.
    """
    for role, column in mapping.items():
        if role not in roles:
            raise BadInput("unknown_role", f"{role!r} is nothing that a column can be; roles are {', '.join(roles)}")
        parts = parts_of(column, columns) if role == "node" else [column]
        for part in parts:
            if part not in columns:
                near = difflib.get_close_matches(part, columns, n=1, cutoff=0.5) or [
                    other for other in columns if normal(other) == normal(part)
                ]
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise BadInput("unknown_column", f"no column {part!r}{hint}; there are {_listed(columns)}")


def parts_of(column: str, columns: Sequence[str]) -> list[str]:
    """The columns that `cabinet+node` names; a column that has a plus in its own name is itself."""
    return [column] if column in columns or "+" not in column else column.split("+")


def _listed(columns: Sequence[str], *, most: int = 40) -> str:
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(columns[:most]) + more
