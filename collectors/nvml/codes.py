"""NVML's error codes (`nvmlReturn_t`): what each is called, and what it means for a value or for the whole node.

To map another code: one line in `CODES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from collectors.cells import Missing

CODES: Mapping[int, tuple[str, Missing]] = MappingProxyType(
    {
        1: ("not initialized", Missing.UNKNOWN_ERROR),
        2: ("invalid argument", Missing.UNSUPPORTED),
        3: ("not supported", Missing.UNSUPPORTED),
        4: ("no permission", Missing.NO_PERMISSION),
        5: ("already initialized", Missing.UNKNOWN_ERROR),
        6: ("not found", Missing.UNSUPPORTED),
        7: ("insufficient size", Missing.UNREADABLE),
        8: ("insufficient external power", Missing.UNKNOWN_ERROR),
        9: ("driver not loaded", Missing.UNKNOWN_ERROR),
        10: ("timeout", Missing.UNKNOWN_ERROR),
        11: ("interrupt problem", Missing.UNKNOWN_ERROR),
        12: ("library not found", Missing.UNKNOWN_ERROR),
        13: ("function not found", Missing.UNSUPPORTED),
        14: ("corrupted infoROM", Missing.UNKNOWN_ERROR),
        15: ("GPU is lost", Missing.LOST),
        16: ("reset required", Missing.RESET_REQUIRED),
        17: ("blocked by the operating system", Missing.NO_PERMISSION),
        18: ("driver/library version mismatch", Missing.UNKNOWN_ERROR),
        19: ("in use", Missing.UNKNOWN_ERROR),
        20: ("insufficient memory", Missing.UNKNOWN_ERROR),
        21: ("no data", Missing.UNSUPPORTED),
        22: ("no ECC on vGPU", Missing.UNSUPPORTED),
        23: ("insufficient resources", Missing.UNKNOWN_ERROR),
        24: ("frequency not supported", Missing.UNSUPPORTED),
        25: ("argument version mismatch", Missing.UNSUPPORTED),
        26: ("deprecated", Missing.UNSUPPORTED),
        27: ("not ready", Missing.UNKNOWN_ERROR),
        28: ("GPU not found", Missing.LOST),
        29: ("invalid state", Missing.UNKNOWN_ERROR),
        30: ("reset type not supported", Missing.UNSUPPORTED),
        999: ("unknown error", Missing.UNKNOWN_ERROR),
    }
)
"""What a value is that failed with this code. An unsupported value is no fault and not counted."""

REFUSALS: Mapping[int, str] = MappingProxyType(
    {
        1: "access to the GPUs was lost",
        4: "no permission to use the GPUs",
        9: "the driver is not loaded",
        12: "libnvidia-ml.so.1 is not found",
        13: "libnvidia-ml.so.1 is too old",
        17: "the operating system blocks the GPUs",
        18: "the driver was changed, a reboot is due",
        999: "access to the GPUs was lost",
    }
)
"""What it means for the node when NVML as a whole, or every GPU at once, answers with this code."""

GPU_GONE = frozenset((2, 6, 15, 28))
"""Of one GPU that was there, when its handle or its values are asked for: it is lost."""


def words(code: int) -> str:
    """The code in words, with its number."""
    return f"{CODES.get(code, ('unknown code', None))[0]} (NVML {code})"


def meaning(code: int) -> Missing:
    """Why a value that failed with this code is missing."""
    return CODES[code][1] if code in CODES else Missing.UNKNOWN_ERROR
