# SPDX-License-Identifier: Apache-2.0
"""Content ids (FORMAT.md section 4)."""
from xxh3 import xxh3_128

M128 = (1 << 128) - 1


def content_of(rows, first, row_bytes):
    """Section 4, for whole rows, as an integer."""
    n = len(rows) // row_bytes
    return sum(xxh3_128(rows[i * row_bytes:(i + 1) * row_bytes], first + i) for i in range(n)) & M128
