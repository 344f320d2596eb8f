"""What `isotach doctor` looks at, each check a function that yields findings; it changes nothing anywhere.

To add a check: one function in a module here, one line in `CHECKS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

CHECKS: Mapping[str, str] = MappingProxyType(
    {
        "python": "isotach.checks.machine:python",
        "user": "isotach.checks.machine:user",
        "clock": "isotach.checks.machine:clock",
        "spool": "isotach.checks.machine:spool",
        "gpus": "isotach.checks.gpus:gpus",
        "kernel log": "isotach.checks.gpus:kernel_log",
        "kafka": "isotach.checks.broker:kafka",
        "server": "isotach.checks.server:server",
    }
)
"""Every check, in the order they are shown: where it is, resolved with `pkgutil.resolve_name`."""
