"""Processes: who holds a GPU, or an instance of one cut by MIG, by process number; asked now and then.

To ask another list: one line in `LISTS`.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pynvml

from collectors.nvml_child.library import GONE, RESET_REQUIRED, UNSUPPORTED, Failed, Library

MOST = 1_024  #: processes of one list: a GPU has a few, with MPS up to 60
MOST_INSTANCES = 16  #: of MIG: the largest models have 7
MOST_BYTES = 2**50  #: beyond it no memory is: the driver says 2**64 - 1 where it does not know
TOO_MANY = 7  #: insufficient size
NOT_FOUND = frozenset((2, 6))  #: no instance has this number; it says nothing of the GPU

# nvmlProcessInfo_v1_t; v2 with the numbers of MIG's instances; v3 with protected memory besides.
_V1, _V2, _V3 = struct.Struct("<I4xQ"), struct.Struct("<I4xQII"), struct.Struct("<I4xQIIQ")


def _function(name: str) -> Callable[[Any], list[tuple[int, int]]]:
    """A call like pynvml's own, which asks for the size first, then again: this one takes at most `MOST`, once."""

    def listed(handle: Any) -> list[tuple[int, int]]:
        layout, pointer = _newest(name)
        count, room = ctypes.c_uint(MOST), ctypes.create_string_buffer(layout.size * MOST)
        code = pointer(handle, ctypes.byref(count), room)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        if count.value > MOST:
            raise pynvml.NVMLError(TOO_MANY)
        data = memoryview(room)[: layout.size * count.value]
        return [(entry[0], entry[1]) for entry in layout.iter_unpack(data)]

    listed.__name__ = name
    return listed


def _newest(name: str) -> tuple[struct.Struct, Callable[..., int]]:
    """The newest version of the call that this driver has, and the layout of what it writes.

    Version 3 writes that of version 2, except in the drivers that have protected memory and not yet the call with
    details (the first of 535).
    """
    if (pointer := _pointer(f"{name}_v3")) is not None:
        protected = _pointer("nvmlDeviceGetConfComputeMemSizeInfo") is not None
        detailed = _pointer("nvmlDeviceGetRunningProcessDetailList") is not None
        return _V3 if protected and not detailed else _V2, pointer
    if (pointer := _pointer(f"{name}_v2")) is not None:
        return _V2, pointer
    if (pointer := _pointer(name)) is not None:
        return _V1, pointer
    raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _pointer(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = pynvml._nvmlGetFunctionPointer(name)
    except pynvml.NVMLError:
        return None
    return found


LISTS: tuple[tuple[Callable[..., Any], bool], ...] = (
    # call, whether nothing is known without it
    (_function("nvmlDeviceGetComputeRunningProcesses"), True),
    (_function("nvmlDeviceGetMPSComputeRunningProcesses"), False),
    (_function("nvmlDeviceGetGraphicsRunningProcesses"), False),
)


def processes(library: Library, handle: Any) -> dict[str, Any]:
    """`l`: [process, bytes that it holds or None] of everyone on this GPU; `e`: NVML's code if that may not be all.

    Raises Failed only for what concerns the whole GPU.
    """
    held: dict[tuple[int, int], int | None] = {}  # instance and process: one in two lists is one
    code = 0
    try:
        places = _places(library, handle)
    except Failed as failed:
        _unless_gone(failed)
        return {"l": [], "e": failed.code}
    for number, place in enumerate(places):
        for function, needed in LISTS:
            try:
                listed = library.ask(function, place)
            except Failed as failed:
                if place is handle:
                    _unless_gone(failed)
                if needed or failed.code not in UNSUPPORTED:
                    code = code or failed.code
                continue
            for pid, size in listed:
                before = held.get((number, pid))
                held[number, pid] = before if size > MOST_BYTES else max(size, before or 0)
    found = [[pid, size] for (_, pid), size in held.items()]
    if len(found) > MOST:
        found, code = found[:MOST], code or TOO_MANY
    return {"l": found, "e": code} if code else {"l": found}


def _places(library: Library, handle: Any) -> list[Any]:
    """What is asked: the GPU, or where MIG is on each of its instances."""
    try:
        most = library.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    except Failed as failed:
        if failed.code in UNSUPPORTED:
            return [handle]
        raise
    if not most:
        return [handle]
    found = []
    for number in range(min(most, MOST_INSTANCES)):
        try:
            found.append(library.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        except Failed as failed:
            if failed.code not in NOT_FOUND:
                raise
    return found


def _unless_gone(failed: Failed) -> None:
    if failed.code in GONE - NOT_FOUND or failed.code == RESET_REQUIRED:
        raise failed
