# SPDX-License-Identifier: Apache-2.0
"""FORMAT.md section 2: which rank holds which boxes of a tensor. Pure arithmetic; knows nothing of files."""
import itertools
import re


def parse(text, ndim):
    """("replicate",), ("shard", d) or ("strided_shard", d, s); ValueError for anything else."""
    if text == "replicate":
        return ("replicate",)
    m = re.fullmatch(r"shard\((0|[1-9]\d*)\)", text)
    if m:
        out = ("shard", int(m[1]))
    else:
        m = re.fullmatch(r"strided_shard\((0|[1-9]\d*),([1-9]\d*)\)", text)
        if not m:
            raise ValueError(f"placement {text!r}")
        out = ("strided_shard", int(m[1]), int(m[2]))
    if out[1] >= ndim:
        raise ValueError(f"placement {text!r} of a tensor with {ndim} dimensions")
    return out


def cut(length, n, i):
    """[begin, end) of the i-th of n chunks of ceil(length / n)."""
    size = -(-length // n)
    return min(i * size, length), min((i + 1) * size, length)


def part(length, n, i, split):
    """The intervals of [0, length) that coordinate i has: of each of `split` chunks its own part."""
    out = []
    for k in range(split):
        begin, end = cut(length, split, k)
        a, b = cut(end - begin, n, i)
        out.append((begin + a, begin + b))
    return out


def narrow(intervals, chosen):
    """The intervals of the joined length that `chosen` picks, back in the coordinates of `intervals`; touching ones are
    one."""
    out = []
    for a, b in chosen:
        at = 0
        for begin, end in intervals:
            lo, hi = max(a, at), min(b, at + end - begin)
            if lo < hi:
                piece = (begin + lo - at, begin + hi - at)
                if out and out[-1][1] == piece[0]:
                    out[-1] = (out[-1][0], piece[1])
                else:
                    out.append(piece)
            at += end - begin
    return out


def boxes(shape, sizes, placements, coord):
    """[(offsets, sizes)] that the rank at coord has, row-major order; none where its product is empty."""
    dims = [[(0, d)] if d else [] for d in shape]
    for n, i, p in zip(sizes, coord, placements):
        if p[0] == "replicate":
            continue
        length = sum(b - a for a, b in dims[p[1]])
        dims[p[1]] = narrow(dims[p[1]], part(length, n, i, p[2] if p[0] == "strided_shard" else 1))
    return [(tuple(a for a, _ in c), tuple(b - a for a, b in c)) for c in itertools.product(*dims)]


def row_major(sizes, coord):
    at = 0
    for n, i in zip(sizes, coord):
        at = at * n + i
    return at


def is_owner(ordinal, sizes, placements, coord):
    """Whether the rank at coord is the one of its replicas that writes."""
    rep = [k for k, p in enumerate(placements) if p[0] == "replicate"]
    other = [k for k in range(len(sizes)) if k not in rep]
    n = 1
    for k in rep:
        n *= sizes[k]
    r = row_major([sizes[k] for k in rep], [coord[k] for k in rep])
    s = row_major([sizes[k] for k in other], [coord[k] for k in other])
    return r == ((ordinal * 0x9E3779B1 % 2 ** 32 >> 16) + s) % n


def chunks(ordinal, shape, mesh, placements):
    """[(rank, offsets, sizes)] of all chunks that are written, by the rule."""
    out = []
    sizes = mesh["sizes"]
    for at, coord in enumerate(itertools.product(*map(range, sizes))):
        if is_owner(ordinal, sizes, placements, coord):
            rank = mesh["ranks"][at] if "ranks" in mesh else at
            out += [(rank, o, s) for o, s in boxes(shape, sizes, placements, coord)]
    return out
