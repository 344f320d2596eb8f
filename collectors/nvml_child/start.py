"""Where the child begins: run as a file, it keeps out what the child does not need, a fifth of its memory.

To give the child another package of the agent: leave `collectors` as it is here, and measure what that costs.
"""

import os
import sys
from types import ModuleType


def main() -> int:
    """As `python -m collectors.nvml_child`, without the contract of collectors, and without what pynvml never calls."""
    package = ModuleType("collectors")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]  # noqa: PTH100, PTH120 - pathlib is large
    sys.modules["collectors"] = package
    finder = ModuleType("ctypes.util")  # pynvml imports it for no use of its own; it brings subprocess and archives
    finder.find_library = lambda _name: None  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = finder
    from collectors.nvml_child.__main__ import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
