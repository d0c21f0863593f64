# SPDX-License-Identifier: Apache-2.0
"""Changes fields of a good checkpoint and makes every hash right again (FORMAT.md sections 1 and 3), so that only the
lie itself can be found out."""
import json
import os
import struct
import subprocess

from harness import read, write

ENTRY = struct.Struct("<IBBBBQQQQQQQI12s16s")
FIELDS = ("ordinal", "kind", "codec", "ndim", "flags", "payload", "bytes", "decoded", "first_hash", "dims", "item",
          "item_bytes", "crc32", "zero", "content")
HEADER_NBYTES, TRAILER_NBYTES = 96, 64


class Hasher:
    """XXH3-128 by a helper program that stays."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, data):
        self.process.stdin.write(data.hex() + "\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline().strip())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


class Entry:
    def __init__(self, table, data, at):
        self.__dict__.update(zip(FIELDS, ENTRY.unpack_from(data, at)))
        self.box = list(table.pool[self.dims:self.dims + 2 * self.ndim])
        first = table.hashes_at + 16 * self.first_hash
        self.hashes = [
            data[first + 16 * i:first + 16 * i + 16] for i in range((self.decoded + 65535) // 65536 * (1 + self.codec))
        ]


class Table:
    """A chunk table. Counts, places in the pools and hashes are worked out anew from the entries; `forced` header
    fields and entries win."""

    def __init__(self, data):
        (self.magic, self.version, self.rank, self.save_id, n, d, _, self.envelope, self.zero) = struct.unpack_from(
            "<8sII16sQQQ16s24s", data)
        self.pool = struct.unpack_from("<%dQ" % d, data, HEADER_NBYTES + 96 * n)
        self.hashes_at = HEADER_NBYTES + 96 * n + 8 * d
        self.entries = [Entry(self, data, HEADER_NBYTES + 96 * i) for i in range(n)]
        self.counts = None           # (entries, dimensions, hashes) to claim
        self.forced = {}             # (entry number, field) -> value
        self.extra = b""             # after the table

    def pack(self):
        entries, pool, hashes = b"", [], []
        for i, e in enumerate(self.entries):
            e.first_hash, e.dims = len(hashes), len(pool)
            values = [self.forced.get((i, f), getattr(e, f)) for f in FIELDS]
            entries += ENTRY.pack(*values)
            pool += e.box
            hashes += e.hashes
        counts = self.counts or (len(self.entries), len(pool), len(hashes))
        head = struct.pack("<8sII16sQQQ16s24s", self.magic, self.version, self.rank, self.save_id, *counts,
                           self.envelope, self.zero)
        return head + entries + struct.pack("<%dQ" % len(pool), *pool) + b"".join(hashes) + self.extra


class Forgery:
    """A copy of a checkpoint: .index (parsed), .tables; seal() writes what became of them."""

    def __init__(self, folder, hasher):
        self.folder, self.hasher = folder, hasher
        self.index = json.loads(read(os.path.join(folder, "index.json")))
        del self.index["hash"]
        self.files = [read(os.path.join(folder, f["path"])) for f in self.index["files"]]
        self.bodies = [data[:f["table"][0]] for f, data in zip(self.index["files"], self.files)]
        self.tables = [Table(data[f["table"][0]:]) for f, data in zip(self.index["files"], self.files)]
        self.trailers = {}           # rank -> function that changes a trailer's first 56 bytes
        self.holes = {}              # rank -> number of entries, all zero
        self.late = []               # functions that change the index once it knows the shards
        self.texts = []              # functions that change the text of index.json before it is hashed
        self.names = [f["path"] for f in self.index["files"]]

    def tensor(self, name):
        """Ordinal of a tensor."""
        return list(self.index["tensors"]).index(name)

    def entry(self, rank, name):
        ordinal = self.tensor(name)
        return next(e for e in self.tables[rank].entries if e.kind == 0 and e.ordinal == ordinal)

    def seal_shard(self, rank):
        if rank in self.holes:
            return self.seal_hole(rank)
        body, table = self.bodies[rank], self.tables[rank].pack()
        digest = self.hasher(table)
        head = b"FSDPCKT1" + self.tables[rank].save_id + struct.pack("<QQ", len(body), len(table)) + digest
        head = self.trailers.get(rank, lambda b: b)(head)
        data = body + table + head + self.hasher(head)[:8]
        write(os.path.join(self.folder, self.names[rank]), data)
        self.index["files"][rank].update({"bytes": len(data), "table": [len(body), len(table)], "hash": digest.hex()})

    def seal_hole(self, rank):
        """A table of entries that are all zero, in a sparse file; only its hash is wrong, which would take long to find
        out."""
        n, table, place = self.holes[rank], self.tables[rank], len(self.bodies[rank])
        nbytes = HEADER_NBYTES + 96 * n
        head = b"FSDPCKT1" + table.save_id + struct.pack("<QQ", place, nbytes) + bytes(16)
        with open(os.path.join(self.folder, self.names[rank]), "wb") as f:
            f.write(
                self.bodies[rank]
                + struct.pack(
                    "<8sII16sQQQ16s24s", table.magic, 1, rank, table.save_id, n, 0, 0, table.envelope, bytes(24)
                )
            )
            f.seek(place + nbytes)
            f.write(head + self.hasher(head)[:8])
        self.index["files"][rank].update(
            {"bytes": place + nbytes + TRAILER_NBYTES, "table": [place, nbytes], "hash": bytes(16).hex()})

    def seal(self):
        for rank in range(len(self.tables)):
            self.seal_shard(rank)
        for change in self.late:
            change(self.index)
        text = json.dumps(self.index)
        for change in self.texts:
            text = change(text)
        body = (text[:-1] + ", ").encode()
        write(os.path.join(self.folder, "index.json"), body + b'"hash":"' + self.hasher(body).hex().encode() + b'"}\n')
