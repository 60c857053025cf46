"""What the compiled loops call: the C library and xxhash, declared so that numba can call them."""

import ctypes
from dataclasses import dataclass
from typing import Any

from app.tiers.curvine.fused_digest import hexadecimal_digest


@dataclass(frozen=True, slots=True)
class Calls:
    """C functions by their own names. A call from compiled code keeps no lock of the interpreter's."""

    open: Any
    close: Any
    statx: Any
    access: Any
    preadv2: Any
    writev: Any
    fallocate: Any
    renameat2: Any
    unlink: Any
    errno_location: Any
    memcmp: Any
    memcpy: Any
    lock: Any
    unlock: Any
    usleep: Any
    sched_yield: Any
    clock_gettime: Any
    hash_reset: Any
    hash_update: Any
    write_digest: Any
    """Compiled: `(state, text, at)` writes the digest's hexadecimal digits to `text[at:]`."""


def calls(xxhash: ctypes.CDLL) -> Calls:
    """Raises AttributeError if the C library or `xxhash` lacks one."""
    c = ctypes.CDLL(None)
    number, size, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
    # x86 builds choose the widest instructions at run time, under names of their own.
    update = getattr(xxhash, "XXH3_128bits_update_dispatch", None) or xxhash.XXH3_128bits_update
    return Calls(
        open=declared(c.open, number, pointer, number, number),
        close=declared(c.close, number, number),
        statx=declared(c.statx, number, number, pointer, number, number, pointer),
        access=declared(c.access, number, pointer, number),
        preadv2=declared(c.preadv2, size, number, pointer, number, size, number),
        writev=declared(c.writev, size, number, pointer, number),
        fallocate=declared(c.fallocate, number, number, number, size, size),
        renameat2=declared(c.renameat2, number, number, pointer, number, pointer, ctypes.c_uint32),
        unlink=declared(c.unlink, number, pointer),
        errno_location=declared(c.__errno_location, ctypes.POINTER(ctypes.c_int32)),
        memcmp=declared(c.memcmp, number, pointer, pointer, size),
        memcpy=declared(c.memcpy, pointer, pointer, pointer, size),
        lock=declared(c.pthread_mutex_lock, number, pointer),
        unlock=declared(c.pthread_mutex_unlock, number, pointer),
        usleep=declared(c.usleep, number, ctypes.c_uint32),
        sched_yield=declared(c.sched_yield, number),
        clock_gettime=declared(c.clock_gettime, number, number, pointer),
        hash_reset=declared(xxhash.XXH3_128bits_reset, number, pointer),
        hash_update=declared(update, number, pointer, pointer, ctypes.c_size_t),
        write_digest=hexadecimal_digest(xxhash),
    )


def declared(function: Any, result: Any, *arguments: Any) -> Any:
    """A function of ctypes with its types."""
    function.restype, function.argtypes = result, arguments
    return function
