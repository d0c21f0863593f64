#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second reader of fsdpck checkpoints, written from src/ckpt/FORMAT.md alone, to prove that the page is enough.

usage: fsdpck_reader.py DIR [--against FULL.safetensors]

It checks every statement of the page and prints each violation; exit code 1 where there is one. As a module: read(DIR)
gives ({name: numpy array}, [violations]). Types that numpy lacks come as unsigned integers of their size. Python and
numpy only; it shares no code with the C library, and must not. Zstandard frames are libzstd's to decode.
"""
import argparse
import json
import os
import re
import struct
import sys
import uuid
import zipfile
import zlib

import numpy as np

import compression
import frozen_base
import placement
from content import content_of
from frozen_base import safetensors_of
from xxh3 import xxh3_128

BLOCK = 65536
DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "i1", "uint64": "<u8", "uint32": "<u4", "uint16": "<u2", "uint8": "u1", "bool": "u1",
    "complex128": "<c16", "complex64": "<c8", "complex32": "<u4", "float8_e4m3fn": "u1", "float8_e5m2": "u1",
    "float8_e4m3fnuz": "u1", "float8_e5m2fnuz": "u1", "float8_e8m0fnu": "u1", "float4_e2m1fn_x2": "u1"
}
INDEX_KEYS = [
    "format", "version", "requires", "save_id", "writer", "created", "block_bytes", "meshes", "files", "tensors",
    "items", "assets_folder", "assets", "state", "base", "metadata", "hash"
]
OPTIONAL = {"assets_folder", "state", "base", "metadata"}


class Refused(Exception):
    """What is wrong goes so deep that there is no reading on."""


def digest(data):
    return xxh3_128(data).to_bytes(16, "big")


def no_twice(pairs):
    out = dict(pairs)
    if len(out) != len(pairs):
        raise Refused("index.json: a key appears twice in an object")
    return out


def plain(path):
    return (
        path
        and not any(ord(c) < 32 or ord(c) == 127 for c in path)
        and all(p not in ("", ".", "..") for p in path.split("/"))
    )


class Reader:
    def __init__(self, dir):
        self.dir, self.bad, self.files, self.arrays = dir, [], {}, {}

    def expect(self, ok, where, what):
        if not ok:
            self.bad.append(f"{where}: {what}")
        return ok

    def bytes_of(self, path):
        try:
            with open(os.path.join(self.dir, path), "rb") as f:
                return f.read()
        except OSError as e:
            raise Refused(f"{path}: {e.strerror}")

    # --- section 1

    def read_index(self):
        raw = self.bytes_of("index.json")
        end = re.fullmatch(rb'"hash":"([0-9a-f]{32})"\}\n', raw[-43:])
        if not end:
            raise Refused("index.json: does not end in its hash")
        if end[1].decode() != digest(raw[:-43]).hex():
            raise Refused("index.json: its hash is wrong")
        doc = json.loads(raw.decode("utf-8"), object_pairs_hook=no_twice)
        self.index = doc
        known = [k for k in doc if k in INDEX_KEYS]
        self.expect(known == [k for k in INDEX_KEYS if k in doc], "index.json", f"keys in the order {known}")
        missing = set(INDEX_KEYS) - OPTIONAL - doc.keys()
        if (
            missing
            or doc["format"] != "fsdpck"
            or doc["version"] != 1
            or doc["requires"] not in ([], ["block-compression"])
            or doc["block_bytes"] != BLOCK
        ):
            raise Refused(
                f"index.json: lacks {sorted(missing)}, or format, version, requires or block_bytes are not version 1's"
            )
        self.save_id = uuid.UUID(doc["save_id"])
        self.expect(str(self.save_id) == doc["save_id"], "index.json", "save_id is no plain UUID text")
        self.expect(isinstance(doc["writer"], str), "index.json", "writer is no text")
        self.expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", doc["created"]), "index.json",
                    f"created is {doc['created']!r}")
        self.expect(isinstance(doc.get("state", {}), dict), "index.json", "state is no object")
        for i, mesh in enumerate(doc["meshes"]):
            self.check_mesh(f"index.json: mesh {i}", mesh)
        self.expect(1 <= len(doc["files"]) <= 65536, "index.json", f"{len(doc['files'])} files")
        for r, f in enumerate(doc["files"]):
            self.expect(f["rank"] == r, "index.json", f"files[{r}] is of rank {f['rank']}")
            self.expect(plain(f["path"]), "index.json", f"path {f['path']!r} of a file")
        paths = [f["path"] for f in doc["files"]]
        self.expect(len(set(paths)) == len(paths), "index.json", "two files have one path")
        before = {}
        for name, t in doc["tensors"].items():
            self.check_tensor(f"index.json: tensor {name!r}", t, before)
            before[name] = t
        if "base" in doc:
            frozen_base.check(self, doc["base"], DTYPES, plain)

    def check_mesh(self, where, mesh):
        n = int(np.prod(mesh["sizes"], dtype=object))
        self.expect(1 <= len(mesh["sizes"]) <= 8 and len(mesh["sizes"]) == len(mesh["dims"]), where,
                    "number of dimensions")
        self.expect(len(set(mesh["dims"])) == len(mesh["dims"]), where, "two dimensions of one name")
        ranks = mesh.get("ranks", list(range(n)))
        self.expect(len(ranks) == n and len(set(ranks)) == n, where, "ranks")
        self.expect(all(0 <= r < len(self.index["files"]) for r in ranks), where, "a rank without a file")

    def check_path(self, where, entry):
        path = entry.get("path", ["x"])
        self.expect(path and all(isinstance(p, (str, int)) and not isinstance(p, bool) for p in path), where,
                    f"path {path!r}")

    def check_tensor(self, where, t, before):
        self.check_path(where, t)
        if "alias_of" in t:
            self.expect(set(t) <= {"alias_of", "path"}, where, "an alias with more keys than its path")
            self.expect(t["alias_of"] in before and "alias_of" not in before[t["alias_of"]], where,
                        "alias of a tensor that is not listed before it, or that is an alias itself")
            return
        self.expect(t["dtype"] in DTYPES, where, f"dtype {t['dtype']!r}")
        self.expect(len(t["shape"]) <= 64 and all(isinstance(d, int) and d >= 0 for d in t["shape"]), where, "shape")
        self.expect(("placements" in t) != ("chunks" in t), where, "neither a rule nor chunks, or both")
        if "placements" in t:
            mesh = self.index["meshes"][t["mesh"]]
            parsed = [placement.parse(p, len(t["shape"])) for p in t["placements"]]
            self.expect(len(parsed) == len(mesh["sizes"]), where, "placements do not fit the mesh")
        else:
            boxes = [c[1] for c in t["chunks"]]
            self.expect(boxes == sorted(boxes), where, "chunks are not in order of offsets")

    # --- section 3

    def read_file(self, rank, entry):
        where, raw = entry["path"], self.bytes_of(entry["path"])
        at, size = entry["table"]
        if len(raw) != entry["bytes"] or at + size + 64 != len(raw):
            raise Refused(f"{where}: {len(raw)} bytes, index.json says {entry['bytes']}, with the table at {at}+{size}")
        table, end = raw[at:at + size], raw[at + size:]
        magic, save_id, t_at, t_size, t_hash, own = struct.unpack("<8s16sQQ16s8s", end)
        self.expect(magic == b"FSDPCKT1" and save_id == self.save_id.bytes, where, "trailer: magic or save id")
        self.expect((t_at, t_size) == (at, size) and t_hash.hex() == entry["hash"], where,
                    "trailer and index.json disagree")
        self.expect(own == digest(end[:56])[:8], where, "trailer: its hash")
        if digest(table).hex() != entry["hash"]:
            raise Refused(f"{where}: the chunk table's hash is wrong")
        entries = self.read_table(where, rank, table)
        self.files[rank] = (raw, entries)
        self.check_envelope(where, raw, at, table[56:72], entries)
        self.check_blocks(where, raw, entries)

    def read_table(self, where, rank, table):
        magic, version, t_rank, save_id, ne, nd, nh = struct.unpack_from("<8sII16sQQQ", table)
        if magic != b"fsdpcktb" or version != 1 or len(table) != 96 + 96 * ne + 8 * nd + 16 * nh:
            raise Refused(f"{where}: chunk table: magic, version or size")
        self.expect(t_rank == rank and save_id == self.save_id.bytes, where, "chunk table: rank or save id")
        self.expect(not any(table[72:96]), where, "chunk table: bytes 72-95 are not zero")
        pool = struct.unpack_from(f"<{nd}Q", table, 96 + 96 * ne)
        hashes = [table[len(table) - 16 * (nh - i):][:16] for i in range(nh)]
        entries, next_dim, next_hash = [], 0, 0
        for i in range(ne):
            e = self.read_entry(f"{where}: entry {i}", table[96 + 96 * i:192 + 96 * i])
            self.expect(e["dim"] == next_dim and e["first"] == next_hash, where, f"entry {i}: indices into the pools")
            n, nblocks = e["ndim"], -(-e["decoded"] // BLOCK) * (1 + e["codec"])
            e["offsets"], e["sizes"] = pool[next_dim:next_dim + n], pool[next_dim + n:next_dim + 2 * n]
            e["hashes"] = hashes[next_hash:next_hash + nblocks]
            next_dim, next_hash = next_dim + 2 * n, next_hash + nblocks
            entries.append(e)
        self.expect((next_dim, next_hash) == (nd, nh), where, "chunk table: pools are not filled exactly")
        order = [(e["kind"], e["ordinal"], e["offsets"]) for e in entries]
        self.expect(order == sorted(set(order)), where, "chunk table: entries are not sorted, or one is there twice")
        return entries

    def read_entry(self, where, raw):
        keys = ("ordinal", "kind", "codec", "ndim", "flags", "at", "stored", "decoded", "first", "dim", "zip_at",
                "zip_bytes", "crc")
        e = dict(zip(keys, struct.unpack_from("<IBBBBQQQQQQQI", raw)))
        e["content"] = int.from_bytes(raw[80:96], "little")
        self.expect((e["kind"], e["codec"]) in ((0, 0), (1, 0), (0, 1)) and e["ndim"] <= 64, where,
                    "kind, codec or dimensions")
        self.expect(e["codec"] == 0 or self.index["requires"] == ["block-compression"], where,
                    "compressed, and `requires` does not say so")
        self.expect(e["flags"] in (0, 1) and not any(raw[68:80]), where, "unknown flags, or bytes 68-79 are not zero")
        if e["codec"]:
            self.expect(1 <= e["stored"] <= e["decoded"], where, "more bytes than it decodes to")
            self.expect((e["zip_at"], e["zip_bytes"]) == (e["at"], e["stored"]), where,
                        "compressed: the item is not the payload")
        else:
            self.expect(e["stored"] == e["decoded"], where, "stored and decoded bytes differ")
        inside = e["zip_at"] <= e["at"] and e["at"] + e["stored"] <= e["zip_at"] + e["zip_bytes"]
        self.expect(inside, where, "payload is not inside its item")
        return e

    def check_envelope(self, where, raw, table_at, want, entries):
        """Everything before the table that is no payload, and that payloads and items do not overlap."""
        outside, at, zip_end = [], 0, 0
        for e in sorted(entries, key=lambda e: e["at"]):
            self.expect(e["at"] >= at and e["at"] + e["stored"] <= table_at, where,
                        f"payload at {e['at']} overlaps, or runs on")
            self.expect(e["zip_at"] >= zip_end and not any(raw[zip_end:e["zip_at"]]), where,
                        f"item at {e['zip_at']}: overlap or no zeros")
            outside.append(raw[at:e["at"]])
            at, zip_end = e["at"] + e["stored"], e["zip_at"] + e["zip_bytes"]
        self.expect(zip_end <= table_at and not any(raw[zip_end:table_at]), where,
                    "bytes before the table are not zero")
        outside.append(raw[at:table_at])
        self.expect(digest(b"".join(outside)) == want, where, "envelope hash")

    def check_blocks(self, where, raw, entries):
        for i, e in enumerate(entries):
            payload = raw[e["at"]:e["at"] + e["stored"]]
            for k, h in enumerate([] if e["codec"] else e["hashes"]):
                self.expect(digest(payload[k * BLOCK:(k + 1) * BLOCK]) == h, where, f"entry {i}: hash of block {k}")

    # --- section 8

    def payload_of(self, where, rank, e, dtype):
        """The chunk's elements, decoded where they are compressed."""
        stored = self.files[rank][0][e["at"]:e["at"] + e["stored"]]
        if e["codec"] == 0:
            return stored
        out, at = [], 0
        for k in range(0, len(e["hashes"]), 2):
            left = e["decoded"] - len(out) * BLOCK
            begin, size, zero = struct.unpack("<QII", e["hashes"][k + 1])
            block = stored[begin:begin + size]
            self.expect(begin == at and zero == 0 and 1 <= size <= min(left, BLOCK), where, f"record {k // 2}")
            self.expect(digest(block) == e["hashes"][k], where, f"hash of block {k // 2}")
            at = begin + size
            out.append(compression.decode(block, min(left, BLOCK), dtype))
        self.expect(at == e["stored"], where, "the blocks do not fill the payload")
        raw = b"".join(out)
        self.expect(zlib.crc32(raw) == e["crc"], where, "CRC-32 of the decoded chunk")
        return raw

    # --- sections 1.3, 2, 3.1, 4: tensors

    def check_chunk_zip(self, where, rank, e):
        raw = self.files[rank][0]
        with zipfile.ZipFile(Slice(raw, e["zip_at"], e["zip_bytes"])) as z:
            infos = {i.filename: i for i in z.infolist()}
            want = {"archive/data.pkl", "archive/byteorder", "archive/version", "archive/data/0"}
            if not self.expect(set(infos) == want and len(z.infolist()) == 4, where, f"item holds {sorted(infos)}"):
                return
            self.expect(all(i.compress_type == zipfile.ZIP_STORED for i in infos.values()), where, "item is compressed")
            self.expect(z.testzip() is None, where, "a CRC-32 in the item is wrong")
            self.expect(z.read("archive/byteorder") == b"little", where, "byteorder")
            data = infos["archive/data/0"]
            head = e["zip_at"] + data.header_offset
            name_bytes, extra_bytes = struct.unpack_from("<HH", raw, head + 26)
            self.expect(head + 30 + name_bytes + extra_bytes == e["at"], where,
                        "payload is not the data of archive/data/0")
            self.expect(data.file_size == e["stored"] and data.CRC == e["crc"], where,
                        "size or CRC-32 of archive/data/0")
        align = 4096 if e["stored"] >= 65536 else 64
        self.expect(e["at"] % align == 0, where, f"payload of {e['stored']} bytes at {e['at']}, no multiple of {align}")

    def check_content(self, where, e, payload, row_bytes, whole_rows):
        if e["flags"] & 1:
            first = e["offsets"][0] if e["offsets"] else 0
            ok = whole_rows and content_of(payload, first, row_bytes) == e["content"]
            self.expect(ok, where, "content of the chunk, or it has not whole rows")

    def read_tensor(self, ordinal, name, t, mine):
        """mine: [(rank, entry)] of this ordinal."""
        where, shape, dtype = f"tensor {name!r}", tuple(t["shape"]), np.dtype(DTYPES[t["dtype"]])
        if "chunks" in t:
            want = [(r, tuple(o), tuple(s)) for r, o, s in t["chunks"]]
        else:
            rule = [placement.parse(p, len(shape)) for p in t["placements"]]
            want = placement.chunks(ordinal, shape, self.index["meshes"][t["mesh"]], rule)
        have = [(r, e["offsets"], e["sizes"]) for r, e in mine]
        self.expect(
            sorted(want) == sorted(have), where,
            f"chunks (rank, offsets, sizes) {sorted(have)}, the index wants {sorted(want)}")
        out, seen = np.zeros(shape, dtype), np.zeros(shape, np.uint8)
        row_bytes = int(np.prod(shape[1:], dtype=object)) * dtype.itemsize
        for rank, e in mine:
            at = f"{self.index['files'][rank]['path']}: {where} at {e['offsets']}"
            box = tuple(slice(o, o + s) for o, s in zip(e["offsets"], e["sizes"]))
            nelem = int(np.prod(e["sizes"], dtype=object))
            inside = len(e["sizes"]) == len(shape) and all(
                o + s <= d for o, s, d in zip(e["offsets"], e["sizes"], shape)
            )
            if not self.expect(
                inside and e["decoded"] == nelem * dtype.itemsize and nelem, at, "box or bytes do not fit the tensor"
            ):
                continue
            payload = self.payload_of(at, rank, e, t["dtype"])
            out[box] = np.frombuffer(payload, dtype).reshape(e["sizes"])
            seen[box] += 1
            if e["codec"] == 0:
                self.check_chunk_zip(at, rank, e)
            self.check_content(at, e, payload, row_bytes, e["sizes"][1:] == shape[1:])
        self.expect(bool((seen == 1).all()), where, "chunks do not cover it exactly once")
        if "content" in t:
            got = content_of(out.tobytes(), 0, row_bytes) if out.size else 0
            self.expect(got.to_bytes(16, "little").hex() == t["content"], where, "content id")
        return out

    def read_tensors(self):
        mine = {}
        for rank, (_, entries) in self.files.items():
            for e in entries:
                if e["kind"] == 0:
                    mine.setdefault(e["ordinal"], []).append((rank, e))
        tensors = self.index["tensors"]
        for ordinal, (name, t) in enumerate(tensors.items()):
            if "alias_of" not in t:
                self.arrays[name] = self.read_tensor(ordinal, name, t, mine.pop(ordinal, []))
        for name, t in tensors.items():
            if "alias_of" in t:
                self.arrays[name] = self.arrays[t["alias_of"]]
        self.expect(not mine, "chunk tables", f"chunks of ordinals that are no tensor's: {sorted(mine)}")

    # --- sections 1.4, 5: everything else

    def check_items(self):
        have = {}
        for rank, (raw, entries) in self.files.items():
            for e in entries:
                if e["kind"] == 1:
                    have[e["ordinal"]] = (rank, e["at"], e["stored"])
                    self.expect((e["at"], e["stored"]) == (e["zip_at"], e["zip_bytes"]) and not e["ndim"]
                                and not e["flags"], self.index["files"][rank]["path"],
                                f"item {e['ordinal']}: not all of it is payload")
                    crc = zlib.crc32(raw[e["at"]:e["at"] + e["stored"]])
                    self.expect(crc == e["crc"], self.index["files"][rank]["path"], f"item {e['ordinal']}: CRC-32")
        for ordinal, (name, item) in enumerate(self.index["items"].items()):
            self.check_path(f"item {name!r}", item)
            want = (item["file"], item["offset"], item["bytes"])
            self.expect(
                have.pop(ordinal, None) == want, f"item {name!r}",
                f"index.json has it at {want}, its chunk table has not")
        self.expect(not have, "chunk tables", f"items that index.json does not name: {sorted(have)}")

    def check_hashed_file(self, path, entry):
        raw = self.bytes_of(path)
        ok = len(raw) == entry["bytes"] and digest(raw).hex() == entry["hash"]
        self.expect(ok, path, "bytes or hash differ from index.json's")

    def run(self):
        try:
            self.read_index()
            for rank, entry in enumerate(self.index["files"]):
                self.read_file(rank, entry)
            self.read_tensors()
            self.check_items()
            folder = self.index.get("assets_folder", "assets")
            for asset in self.index["assets"]:
                self.expect(
                    plain(folder) and plain(asset["path"]), "index.json",
                    f"path {folder!r}/{asset['path']!r} of an asset")
                self.check_hashed_file(f"{folder}/{asset['path']}", asset)
            self.expect(not ("metadata" in self.index and self.index["requires"]), "index.json",
                        "compressed, and yet with .metadata")
            if "metadata" in self.index:
                self.check_hashed_file(".metadata", self.index["metadata"])
        except Refused as e:
            self.bad.append(str(e))
        except (KeyError, IndexError, TypeError, ValueError, struct.error, zipfile.BadZipFile) as e:
            self.bad.append(f"{self.dir}: {type(e).__name__}: {e}")
        return self.arrays, self.bad


class Slice:
    """A read-only file over a part of some bytes, for zipfile, without a copy of it all."""

    def __init__(self, raw, at, nbytes):
        self.raw, self.at, self.nbytes, self.pos = raw, at, nbytes, 0

    def seekable(self):
        return True

    def seek(self, to, whence=0):
        self.pos = max(0, to + (0, self.pos, self.nbytes)[whence])
        return self.pos

    def tell(self):
        return self.pos

    def read(self, n=-1):
        end = self.nbytes if n is None or n < 0 else min(self.nbytes, self.pos + n)
        out = self.raw[self.at + self.pos:self.at + end] if end > self.pos else b""
        self.pos += len(out)
        return out


def read(dir):
    return Reader(dir).run()


def against(arrays, path):
    """Differences from a safetensors file, names both ways."""
    want = safetensors_of(path)
    bad = [f"tensor {k!r}: not in {path}" for k in arrays.keys() - want.keys()]
    for name, (_, raw) in want.items():
        if name not in arrays:
            bad.append(f"tensor {name!r}: missing")
        elif arrays[name].tobytes() != raw:
            bad.append(f"tensor {name!r}: other bytes")
    return bad


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("dir")
    ap.add_argument("--against", metavar="FULL.safetensors")
    a = ap.parse_args()
    arrays, bad = read(a.dir)
    if a.against and not bad:
        bad = against(arrays, a.against)
    for line in bad:
        print(line)
    print(f"{a.dir}: {len(arrays)} tensors, {len(bad)} violations")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
