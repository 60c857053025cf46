"""Where Python's memory lies, for code that is not Python."""

import ctypes
from typing import Final


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer, part of its stable interface since 3.11."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_SIMPLE: Final = 0


def address_of(memory: bytearray | memoryview) -> int:
    """Valid while `memory` is neither released nor resized. It must be contiguous."""
    if len(memory) == 0:
        return 0
    if isinstance(memory, bytearray) or not memory.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # ctypes refuses what is read-only; this takes four times as long.
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), _SIMPLE)
    try:
        return int(buffer.buf)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
