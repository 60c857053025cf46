"""xxhash's 128-bit digest for compiled code: numba has no way to call a C function that returns a structure.

The call is spelled in LLVM's language. A structure of two 64-bit numbers comes back in two registers, on x86-64 as on
64-bit Arm, which is what LLVM makes of it too. fused.py compares a file's checksum with xxhash's own before it uses
this.
"""

import ctypes
from typing import Any


def hexadecimal_digest(library: ctypes.CDLL) -> Any:
    """A compiled function `(state, text, at)`: writes the digest's 32 digits to `text[at:]`, as xxhash spells it."""
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    address = ctypes.cast(library.XXH3_128bits_digest, ctypes.c_void_p).value
    u64 = types.uint64

    @intrinsic
    def digest(typing_context, state):  # type: ignore[no-untyped-def]  # pragma: no cover
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            word = ir.IntType(64)
            kind = ir.FunctionType(ir.LiteralStructType([word, word]), [word])
            function = builder.inttoptr(ir.Constant(word, address), kind.as_pointer())
            value = builder.call(function, arguments)
            halves = [builder.extract_value(value, half) for half in (0, 1)]
            return context.make_tuple(builder, signature.return_type, halves)

        return types.UniTuple(u64, 2)(types.int64), generate

    @njit
    def write(state, text, at):  # type: ignore[no-untyped-def]  # pragma: no cover
        low, high = digest(state)
        for place in range(16):
            shift = u64(60 - 4 * place)
            for half, start in ((high, 0), (low, 16)):
                digit = (half >> shift) & u64(15)
                text[at + start + place] = digit + (48 if digit < 10 else 87)

    return write
