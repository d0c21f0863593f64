# SPDX-License-Identifier: Apache-2.0
"""XXH3-128, from xxHash's specification, in Python and numpy.

What the second reader hashes with, so that it needs numpy only, and proof that the format needs no particular library.
Knows nothing of checkpoints.
"""
import struct

import numpy as np

M64 = (1 << 64) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PMX1, PMX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _u32(b, at):
    return int.from_bytes(b[at:at + 4], "little")


def _u64(b, at):
    return int.from_bytes(b[at:at + 8], "little")


def _swap(v, nbytes):
    return int.from_bytes(v.to_bytes(nbytes, "little"), "big")


def _avalanche64(h):   # XXH64's
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ h >> 32


def _avalanche(h):     # XXH3's
    h ^= h >> 37
    h = h * PMX1 & M64
    return h ^ h >> 32


def _fold(a, b):
    p = a * b
    return (p & M64) ^ (p >> 64)


def _mix16(b, at, secret_at, seed):
    return _fold(
        _u64(b, at) ^ (_u64(SECRET, secret_at) + seed & M64),
        _u64(b, at + 8) ^ (_u64(SECRET, secret_at + 8) - seed & M64))


def _len_0(b, seed):
    return (_avalanche64(seed ^ _u64(SECRET, 80) ^ _u64(SECRET, 88)),
            _avalanche64(seed ^ _u64(SECRET, 64) ^ _u64(SECRET, 72)))


def _len_1_3(b, seed):
    n = len(b)
    low = b[0] << 16 | b[n >> 1] << 24 | b[n - 1] | n << 8
    high = _swap(low, 4)
    high = (high << 13 | high >> 19) & 0xFFFFFFFF
    return (_avalanche64(high ^ ((_u32(SECRET, 8) ^ _u32(SECRET, 12)) - seed & M64)),
            _avalanche64(low ^ ((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & M64)))


def _len_4_8(b, seed):
    n = len(b)
    seed ^= _swap(seed & 0xFFFFFFFF, 4) << 32
    keyed = (_u32(b, 0) | _u32(b, n - 4) << 32) ^ ((_u64(SECRET, 16) ^ _u64(SECRET, 24)) + seed & M64)
    p = keyed * (P64_1 + (n << 2) & M64)
    low, high = p & M64, p >> 64
    high = high + (low << 1) & M64
    low ^= high >> 3
    low ^= low >> 35
    low = low * PMX2 & M64
    return _avalanche(high), low ^ low >> 28


def _len_9_16(b, seed):
    n = len(b)
    low, high = _u64(b, 0), _u64(b, n - 8)
    p = (low ^ high ^ ((_u64(SECRET, 32) ^ _u64(SECRET, 40)) - seed & M64)) * P64_1
    m_low, m_high = (p & M64) + (n - 1 << 54) & M64, p >> 64
    high ^= (_u64(SECRET, 48) ^ _u64(SECRET, 56)) + seed & M64
    m_high = m_high + high + (high & 0xFFFFFFFF) * (P32_2 - 1) & M64
    m_low ^= _swap(m_high, 8)
    p = m_low * P64_2
    return _avalanche((p >> 64) + m_high * P64_2 & M64), _avalanche(p & M64)


class _Acc:
    """The two accumulators of 17 to 240 bytes."""

    def __init__(self, b):
        self.b, self.low, self.high = b, len(b) * P64_1 & M64, 0

    def mix(self, at1, at2, secret_at, seed):
        b = self.b
        self.low = (self.low + _mix16(b, at1, secret_at, seed) & M64) ^ (_u64(b, at2) + _u64(b, at2 + 8) & M64)
        self.high = (self.high + _mix16(b, at2, secret_at + 16, seed) & M64) ^ (_u64(b, at1) + _u64(b, at1 + 8) & M64)

    def finish(self, seed):
        high = self.low * P64_1 + self.high * P64_4 + (len(self.b) - seed) * P64_2 & M64
        return -_avalanche(high) & M64, _avalanche(self.low + self.high & M64)


def _len_17_128(b, seed):
    n, acc = len(b), _Acc(b)
    for i in reversed(range((n - 1) // 32)):
        acc.mix(16 * (i + 1), n - 16 * (i + 2), 32 * (i + 1), seed)
    acc.mix(0, n - 16, 0, seed)
    return acc.finish(seed)


def _len_129_240(b, seed):
    n, acc = len(b), _Acc(b)
    for i in range(4):
        acc.mix(32 * i, 32 * i + 16, 32 * i, seed)
    acc.low, acc.high = _avalanche(acc.low), _avalanche(acc.high)
    for i in range(4, n // 32):
        acc.mix(32 * i, 32 * i + 16, 3 + 32 * (i - 4), seed)
    acc.mix(n - 16, n - 32, 136 - 17 - 16, -seed & M64)
    return acc.finish(seed)


SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]
LOW32, S32, S47 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(47)


def _stripes(words, secret):
    """What these stripes ((…, n, 8) words, n secrets) add to the accumulators: additions commute, so all at once."""
    key = words ^ secret
    return ((key & LOW32) *
            (key >> S32)).sum(axis=-2, dtype=np.uint64) + words[..., SWAPPED].sum(axis=-2, dtype=np.uint64)


def _secret_words(secret, at, n=1):
    return np.array([[_u64(secret, at + 8 * (i + j)) for j in range(8)] for i in range(n)], dtype=np.uint64)


def _merge(acc, secret, at, start):
    for i in range(4):
        start += _fold(acc[2 * i] ^ _u64(secret, at + 16 * i), acc[2 * i + 1] ^ _u64(secret, at + 16 * i + 8))
    return _avalanche(start & M64)


def _long(b, seed):
    n, secret = len(b), SECRET
    if seed:
        secret = b"".join(
            struct.pack("<QQ", _u64(SECRET, i) + seed & M64, _u64(SECRET, i + 8) - seed & M64)
            for i in range(0, 192, 16)
        )
    acc = np.array([P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1], dtype=np.uint64)
    nblocks = (n - 1) // 1024
    keys, scramble = _secret_words(secret, 0, 16), _secret_words(secret, 128)[0]
    for add in _stripes(np.frombuffer(b, "<u8", nblocks * 128).reshape(nblocks, 16, 8), keys):
        acc += add
        acc ^= acc >> S47
        acc ^= scramble
        acc *= np.uint64(P32_1)
    nstripes = (n - 1 - nblocks * 1024) // 64
    acc += _stripes(np.frombuffer(b, "<u8", nstripes * 8, nblocks * 1024).reshape(nstripes, 8), keys[:nstripes])
    acc += _stripes(np.frombuffer(b[n - 64:], "<u8").reshape(1, 8), _secret_words(secret, 121))
    acc = [int(x) for x in acc]
    return _merge(acc, secret, 192 - 64 - 11, ~(n * P64_2) & M64), _merge(acc, secret, 11, n * P64_1 & M64)


def xxh3_128(data, seed=0):
    """The hash as an integer high64 · 2^64 + low64."""
    b = bytes(data)
    for most, fn in (
        (0, _len_0),
        (3, _len_1_3),
        (8, _len_4_8),
        (16, _len_9_16),
        (128, _len_17_128),
        (240, _len_129_240),
    ):
        if len(b) <= most:
            break
    else:
        fn = _long
    high, low = fn(b, seed)
    return high << 64 | low
