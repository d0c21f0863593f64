# SPDX-License-Identifier: Apache-2.0
"""Writes zstd frames byte by byte: blocks as they are and blocks of one byte, no entropy coder. Standard library
only."""
import struct

MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK = 128 << 10
RAW, REPEATED = 0, 1


def block(kind, size, data, last=False):
    return struct.pack("<I", last | kind << 1 | size << 3)[:3] + data


def frame(*parts, window=17, dictionary=None):
    """parts: bytes, or how many zeros. window: its logarithm; 10 to 41."""
    head = (
        MAGIC
        + bytes([0 if dictionary is None else 3, (window - 10) << 3])
        + (b"" if dictionary is None else struct.pack("<I", dictionary))
    )
    blocks = []
    for part in parts:
        nbytes = part if isinstance(part, int) else len(part)
        for at in range(0, nbytes, BLOCK):
            n = min(BLOCK, nbytes - at)
            blocks.append((REPEATED, n, b"\0") if isinstance(part, int) else (RAW, n, part[at:at + n]))
    blocks = blocks or [(RAW, 0, b"")]
    return head + b"".join(block(*b, last=i == len(blocks) - 1) for i, b in enumerate(blocks))


def skippable(data):
    return struct.pack("<II", 0x184d2a50, len(data)) + data
