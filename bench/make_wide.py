#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what one rank needs to start from a checkpoint of very many tensors and ranks: index.json, and the shard files
of a few ranks, with their chunk tables (FORMAT.md sections 1 to 3) and holes where the payloads would be. Planning
reads no more than that.

usage: make_wide.py HASH128 OUT [--tensors 100000] [--ranks 1024] [--have 3,4,5]

HASH128 is tests/damage/hash128 in the build directory. Every tensor is BF16 [2 * ranks, 8], two rows a rank."""
import argparse
import json
import os
import struct
import subprocess
import uuid

ENTRY = struct.Struct("<IBBBBQQQQQQQI12s16s")
COLUMNS, ROWS, ITEM_NBYTES = 8, 2, 1024


class Hasher:
    """XXH3-128 by a helper program."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, data):
        self.process.stdin.write(data.hex() + "\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline().strip())


def table(rank, ntensors, save_id, hasher):
    nbytes = 2 * ROWS * COLUMNS
    entries = b"".join(
        ENTRY.pack(
            i,
            0,
            0,
            2,
            0,
            i * ITEM_NBYTES + 512,
            nbytes,
            nbytes,
            i,
            4 * i,
            i * ITEM_NBYTES,
            ITEM_NBYTES,
            0,
            bytes(12),
            bytes(16),
        )
        for i in range(ntensors)
    )
    dims = struct.pack("<4Q", ROWS * rank, 0, ROWS, COLUMNS) * ntensors
    head = struct.pack("<8sII16sQQQ16s24s", b"fsdpcktb", 1, rank, save_id, ntensors, 4 * ntensors, ntensors, bytes(16),
                       bytes(24))
    return head + entries + dims + hasher(bytes(nbytes)) * ntensors


def write_shard(path, rank, ntensors, save_id, hasher):
    body, text = ntensors * ITEM_NBYTES, table(rank, ntensors, save_id, hasher)
    digest = hasher(text)
    trailer = b"FSDPCKT1" + save_id + struct.pack("<QQ", body, len(text)) + digest
    with open(path, "wb") as f:
        f.seek(body)
        f.write(text + trailer + hasher(trailer)[:8])
    return digest


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("hash128")
    ap.add_argument("out")
    ap.add_argument("--tensors", type=int, default=100000)
    ap.add_argument("--ranks", type=int, default=1024)
    ap.add_argument("--have", type=lambda s: [int(r) for r in s.split(",")], default=[3, 4, 5],
                    help="the ranks whose files are written")
    a = ap.parse_args()
    hasher, save_id = Hasher(a.hash128), uuid.UUID(int=0x5eed)
    os.makedirs(a.out)
    place, nbytes = a.tensors * ITEM_NBYTES, 96 + (96 + 32 + 16) * a.tensors
    for r in range(a.ranks):  # the others are looked for, and never read
        with open(os.path.join(a.out, f"__{r}_0.distcp"), "wb") as f:
            f.truncate(place + nbytes + 64)
    digests = {
        r: write_shard(os.path.join(a.out, f"__{r}_0.distcp"), r, a.tensors, save_id.bytes, hasher)
        for r in a.have
    }
    index = {
        "format": "fsdpck",
        "version": 1,
        "requires": [],
        "save_id": str(save_id),
        "writer": "make_wide",
        "created": "2026-01-01T00:00:00Z",
        "block_bytes": 65536,
        "meshes": [{"dims": ["shard"], "sizes": [a.ranks]}],
        "files": [
            {
                "path": f"__{r}_0.distcp",
                "rank": r,
                "bytes": place + nbytes + 64,
                "table": [place, nbytes],
                "hash": digests.get(r, bytes(16)).hex(),
            }
            for r in range(a.ranks)
        ],
        "tensors": {
            f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.down_proj.weight": {
                "dtype": "bfloat16",
                "shape": [ROWS * a.ranks, COLUMNS],
                "mesh": 0,
                "placements": ["shard(0)"],
                "content": bytes(16).hex(),
            }
            for i in range(a.tensors)
        },
        "items": {},
        "assets": [],
        "metadata": {"bytes": 0, "hash": bytes(16).hex()},
    }
    body = (json.dumps(index)[:-1] + ", ").encode()
    with open(os.path.join(a.out, "index.json"), "wb") as f:
        f.write(body + b'"hash":"' + hasher(body).hex().encode() + b'"}\n')


if __name__ == "__main__":
    main()
