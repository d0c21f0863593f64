# SPDX-License-Identifier: Apache-2.0
"""Stored blocks of compressed chunks (FORMAT.md section 8.2) to elements. Written from the page; frames are libzstd's
to decode."""
import ctypes
import ctypes.util

import numpy as np

UNITS = {
    "complex128": 8, "complex64": 4, "complex32": 2, "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "uint64": 8, "uint32": 4, "uint16": 2
}
_zstd = None


def zstd():
    global _zstd
    if _zstd is None:
        _zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
        _zstd.ZSTD_decompress.restype = _zstd.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    return _zstd


def frame(data, n):
    out, size = ctypes.create_string_buffer(n), ctypes.c_size_t(len(data))
    if zstd().ZSTD_findFrameCompressedSize(data, size) != len(data):
        raise ValueError("a plane is not one Zstandard frame")
    if zstd().ZSTD_decompress(out, ctypes.c_size_t(n), data, size) != n:
        raise ValueError("a plane decodes to another size")
    return out.raw


def decode(block, nbytes, dtype):
    """The nbytes of elements of this torch dtype that a stored block stands for."""
    if len(block) == nbytes:
        return block
    u = UNITS.get(dtype, 1)
    n, at, planes = nbytes // u, 2 * u, []
    for i in range(u):
        size = int.from_bytes(block[2 * i:2 * i + 2], "little")
        data, at = block[at:at + size], at + size
        if not 1 <= size <= n or len(data) != size:
            raise ValueError(f"plane {i} of {n} bytes is stored in {size}")
        planes.append(data if size == n else data * n if size == 1 else frame(data, n))
    if at != len(block):
        raise ValueError("bytes behind the planes")
    bits = np.zeros(n, f"<u{u}")
    for plane in planes:
        bits = (bits << np.array(8 if u > 1 else 0, bits.dtype)) | np.frombuffer(plane, "u1").astype(bits.dtype)
    if u > 1 and not dtype.startswith(("int", "uint")):
        bits = (bits >> np.array(1, bits.dtype)) | (bits << np.array(8 * u - 1, bits.dtype))
    return bits.tobytes()
