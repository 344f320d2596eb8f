"""Numbers of NVML: eight bytes and the type that says how to read them (`nvmlValueType_t`).

To read another type: its format in `_FORMATS`.
"""

import struct

_FORMATS = tuple(struct.Struct(form) for form in ("<d", "<I", "<Q", "<Q", "<q", "<i", "<H"))
"""double, unsigned int, unsigned long, unsigned long long, signed long long, signed int, unsigned short."""

NO_NUMBER = -(2**63)  #: of a type that nobody knows: outside every metric's range


def number(kind: int, raw: bytes) -> int | float:
    """The value."""
    if not 0 <= kind < len(_FORMATS):
        return NO_NUMBER
    value: int | float = _FORMATS[kind].unpack_from(raw)[0]
    return value
