#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that lie, with right hashes: every verb refuses them with one line, in little memory, without hanging or
crashing.

usage: lies.py BINARY HASH128
"""
import os
import shutil
import struct
import sys

from forge import Forgery, Hasher
from harness import MEMORY_MAX, SANITIZED, fixtures, run_checks, tree, write, write_safetensors

LIES = []  # (what, template, function, what the refusal says, whether the payload can be read all the same)


def lie(what, say, template="plain", reads=False, quick=True):
    """quick: seen without reading payload."""
    def add(function):
        LIES.append((what, template, function, say, reads, quick))
        return function
    return add


def field(what, say, *keys, value, **kwargs):
    """One field of the index changed; keys: the way to it."""
    def change(f):
        def late(index):
            for k in keys[:-1]:
                index = index[k]
            if value is None:
                del index[keys[-1]]
            else:
                index[keys[-1]] = value
        f.late.append(late)
    lie(what, say, **kwargs)(change)


def text(what, say, old, new, **kwargs):
    """The text of the index changed."""
    def change(f):
        def replace(t):
            assert old in t, (what, t)
            return t.replace(old, new, 1)
        f.texts.append(replace)
    lie(what, say, **kwargs)(change)


# ---- the document ----

field("another format", "format is 'other'", "format", value="other")
field("version 2", "version is 2; this program reads 1", "version", value=2)
field("an unknown feature", "requires 'time-travel'", "requires", value=["time-travel"])
field("other blocks", "block_bytes is 4096", "block_bytes", value=4096)
field("a save id that is none", "save_id", "save_id", value="me")
field("another save id", "another save", "save_id", value="11111111-1111-4111-9111-111111111111")
field("no files", "is missing", "files", value=None)
field("an empty list of files", "ranks that have no file", "files", value=[])
field("no tensors", "is missing", "tensors", value=None)
field("a state that is a list", "state", "state", value=[])
text("a state nested too deep", "nested deeper", '"files"', '"state": {"a":' + "[" * 70 + "]" * 70 + '}, "files"')
text("an index nested without end", "nested deeper", '"files"', '"x":' + "[" * 1000000 + ', "files"')
text("a key twice", "'version' is there twice", '"version"', '"version": 1, "version"')
text("tensors twice", "'tensors' is there twice", '"tensors"', '"tensors": {}, "tensors"')
text("meshes twice", "'meshes' is there twice", '"meshes"', '"meshes": [], "meshes"')
text("a number too large", "2^64-1", '"version": 1', '"version": 18446744073709551617')
text("text behind the document", "JSON", '{"format"', '{}{"format"')

# ---- meshes ----

field("a mesh with ranks that have no file", "no file", "meshes", 0, "sizes", value=[4])
field("a huge mesh", "between 1 and 65536", "meshes", 0, "sizes", value=[1 << 40])
field("an empty mesh", "between 1 and 65536", "meshes", 0, "sizes", value=[0])
field("a mesh whose product wraps", "65536 ranks", "meshes", 0,
      value={"dims": ["a", "b", "c", "d"], "sizes": [65536] * 4})
field("a mesh of nine dimensions", "dimensions", "meshes", 0, value={"dims": list("abcdefghi"), "sizes": [1] * 9})
field("a mesh with a rank twice", "one twice", "meshes", 0, "ranks", value=[0, 1, 1])
field("a mesh with a rank too large", "no file", "meshes", 0, "ranks", value=[0, 1, 3])
field("a mesh with few ranks", "number is not the product", "meshes", 0, "ranks", value=[0, 1])
field("a mesh in another order", "does not hold the chunks", "meshes", 0, "ranks", value=[2, 1, 0])
field("a mesh with a name twice", "two dimensions named", "meshes", 0, value={"dims": ["a", "a"], "sizes": [3, 1]})
field("no meshes", "mesh 0 is not there", "meshes", value=[])

# ---- files ----

field("a file outside", "not plain and relative", "files", 1, "path", value="../good/__1_0.distcp")
field("a file at the root", "not plain and relative", "files", 1, "path", value="/etc/passwd")
field("a file of another rank", "rank 1 was next", "files", 1, "rank", value=2)
field("one file for two ranks", "not the one that index.json names", "files", 1, "path", value="__0_0.distcp")
field("a file with another size", "the index says 17", "files", 1, "bytes", value=17)
field("a file with an absurd size", "is said to have", "files", 1, "bytes", value=1 << 63)
field("a table elsewhere", "not the one that index.json names", "files", 1, "table", value=[0, 96])
field("a table with another hash", "not the one that index.json names", "files", 1, "hash", value="0" * 32)
field("a file that is a directory", "regular file", "files", 1, "path", value="assets")

# ---- tensors ----

field("an unknown dtype", "dtype 'float7' is not known", "tensors", "a", "dtype", value="float7")
field("another dtype", "does not hold the chunks", "tensors", "a", "dtype", value="float16")
field("another shape", "does not hold the chunks", "tensors", "a", "shape", value=[4, 8])
field("fewer rows", "does not hold the chunks", "tensors", "a", "shape", value=[7, 4])
field("more bytes than the files have", "need more bytes", "tensors", "a", "shape", value=[1 << 40, 4])
field("a shape that overflows", "overflows", "tensors", "a", "shape", value=[1 << 62, 1 << 62])
field("a dimension that does not fit", "63 bits", "tensors", "a", "shape", value=[0, 1 << 63])
field("65 dimensions", "more than 64", "tensors", "a", "shape", value=[1] * 65)
field("a negative shape", "number -1", "tensors", "a", "shape", value=[-1, 4])
field("no elements", "chunks that index.json does not know", "tensors", "a", "shape", value=[0, 4])
field("a mesh that is not there", "mesh 1 is not there", "tensors", "a", "mesh", value=1)
field("too many placements", "number of dimensions", "tensors", "a", "placements", value=["shard(0)", "shard(1)"])
field("nine placements", "one too many", "tensors", "a", "placements", value=["replicate"] * 9)
field("a dimension that is not there", "sharded on dimension 2", "tensors", "a", "placements", value=["shard(2)"])
field("an unknown placement", "placement 'partial(sum)' is not known", "tensors", "a", "placements",
      value=["partial(sum)"])
field("another rule", "does not hold the chunks", "tensors", "a", "placements", value=["shard(1)"])
field("a rule of many stripes", "does not hold the chunks", "tensors", "a", "placements",
      value=["strided_shard(0,65536)"])
field("replicated", "does not hold the chunks", "tensors", "a", "placements", value=["replicate"])
field("a rule and chunks", "either mesh and placements or chunks", "tensors", "a", "chunks", value=[])
field("no dtype", "wants dtype", "tensors", "a", "dtype", value=None)
field("a path of nothing", "empty path", "tensors", "a", "path", value=[])
field("a path of 65 keys", "path of more than", "tensors", "a", "path", value=["x"] * 65)
field("a content id that is none", "hex digits", "tensors", "a", "content", value="xyz")
text("a tensor twice", "listed twice", '"b": {', '"x": {"alias_of": "a"}, "x": {"alias_of": "a"}, "b": {')
text("a shape twice", "'shape' is there twice", '"shape": [8, 4]', '"shape": [8, 4], "shape": [8]')
text("placements twice", "'placements' is there twice", '"placements": ["shard(0)"]',
     '"placements": [], "placements": ["shard(0)"]')
text("a name with a NUL", "NUL", '"a": {', '"a\\u0000": {')
text("a name that is no UTF-8", "surrogate", '"a": {', '"\\ud800": {')
text("a name that is very long", "bytes; at most", '"a": {', '"%s": {' % ("x" * 70000))
field("an alias of itself", "not a tensor listed before it", "tensors", "a", value={"alias_of": "a"})
field("an alias of what comes later", "not a tensor listed before it", "tensors", "a", value={"alias_of": "b"})
text("a circle of aliases", "not a tensor listed before it", '"a": {',
     '"x": {"alias_of": "y"}, "y": {"alias_of": "x"}, "a": {')
text("an alias of an alias", "not a tensor listed before it", '"s": {',
     '"x": {"alias_of": "a"}, "y": {"alias_of": "x"}, "s": {')
field("an alias with a shape", "is an alias", "tensors", "b", value={"alias_of": "a", "shape": [1]})


def chunks(what, say, *list_of_chunks, **kwargs):
    def change(f):
        f.index["tensors"]["a"] = {"dtype": "float32", "shape": [8, 4], "chunks": [list(c) for c in list_of_chunks]}
    lie(what, say, **kwargs)(change)


chunks("chunks with a hole", "hold 20 of its 32", [0, [0, 0], [3, 4]], [2, [6, 0], [2, 4]])
chunks("chunks that overlap", "overlap", [0, [0, 0], [3, 4]], [1, [2, 0], [4, 4]], [2, [6, 0], [2, 4]])
chunks("chunks outside", "leaves the tensor", [0, [0, 0], [3, 4]], [1, [3, 0], [3, 4]], [2, [6, 0], [3, 4]])
chunks("chunks that overflow", "leaves the tensor", [0, [(1 << 64) - 1, 0], [9, 4]])
chunks("chunks on ranks without a file", "rank 7", [0, [0, 0], [3, 4]], [7, [3, 0], [3, 4]], [2, [6, 0], [2, 4]])
chunks("chunks on the wrong ranks", "does not hold the chunks", [1, [0, 0], [3, 4]], [0, [3, 0], [3, 4]],
       [2, [6, 0], [2, 4]])
chunks("chunks cut otherwise", "does not hold the chunks", [0, [0, 0], [4, 4]], [1, [4, 0], [4, 4]])
chunks("chunks of one dimension", "number of dimensions", [0, [0], [8]])
chunks("chunks that are no chunks", "a chunk is", [0, [0, 0]])
chunks("no chunks", "hold 0 of its 32")
text("chunks before their shape", "after the shape", '"a": {', '"a": {"chunks": [], ')

# ---- tables ----


def entry(what, say, name, value, rank=0, number=0, **kwargs):
    """A field of a table's entry changed."""
    def change(f):
        f.tables[rank].forced[number, name] = value if not callable(value) else value(f.tables[rank].entries[number])
    lie(what, say, **kwargs)(change)


entry("an unknown codec", "codec 2; this program reads codecs 0 and 1", "codec", 2)
entry("a codec that wants other hashes", "not consecutive", "codec", 1)
entry("an unknown kind", "makes no sense", "kind", 2)
entry("unknown flags", "makes no sense", "flags", 0x80)
entry("another decoded size", "makes no sense", "decoded", 1)
entry("65 dimensions in a table", "makes no sense", "ndim", 65)
entry("no dimensions in a table", "not consecutive", "ndim", 0)
entry("a payload beyond the file", "leaves its item or the file", "payload", 1 << 40)
entry("a payload that overflows", "leaves its item or the file", "payload", (1 << 64) - 8)
entry("a payload of absurd size", "makes no sense", "bytes", 1 << 62)
entry("a payload before its item", "leaves its item", "item", lambda e: e.payload + 1)
entry("an item that overflows", "leaves its item", "item_bytes", (1 << 64) - 1)
entry("hashes elsewhere", "not consecutive", "first_hash", 5)
entry("dimensions elsewhere", "not consecutive", "dims", 1 << 60)
entry("an unknown ordinal", "out of order", "ordinal", 1000)
entry("reserved bytes in use", "makes no sense", "zero", b"reserved----")


@lie("overlapping payloads", "share these bytes")
def _(f):
    first, second = f.tables[0].entries[:2]
    second.payload, second.item, second.item_bytes = first.payload, first.item, first.item_bytes


@lie("entries in another order", "out of order")
def _(f):
    f.tables[0].entries.reverse()


@lie("a chunk twice", "out of order, or one is there twice")
def _(f):
    f.tables[0].entries.insert(0, f.tables[0].entries[0])


@lie("a box that is not the rule's", "does not hold the chunks")
def _(f):
    e = f.entry(1, "a")
    e.box = [3, 0, 2, 4]
    e.bytes = e.decoded = 32


@lie("a box elsewhere", "does not hold the chunks")
def _(f):
    f.entry(1, "a").box[0] = 2


@lie("a box as large as can be", "does not hold the chunks")
def _(f):
    f.entry(1, "a").box[2] = (1 << 64) - 1


@lie("a chunk that is missing", "does not hold the chunks")
def _(f):
    f.tables[1].entries.remove(f.entry(1, "a"))


@lie("a chunk of no tensor", "chunks that index.json does not know", reads=True)
def _(f):
    del f.index["tensors"]["s"]


@lie("an item that index.json does not know", "chunks that index.json does not know")
def _(f):
    f.tables[0].entries[-1].kind = 1


@lie("block hashes of other bytes", "hash", quick=False)
def _(f):
    f.entry(0, "a").hashes = [bytes(16)]


@lie("another envelope hash", "do not match their hash", reads=True, quick=False)
def _(f):
    f.tables[0].envelope = bytes(16)


for counts in (
    (1 << 60, 0, 0),
    (0, 1 << 61, 0),
    (0, 0, 1 << 60),
    ((1 << 64) - 1,) * 3,
    (0, 0, 0),
    (1 << 32, 1 << 32, 1 << 32),
):
    def claim(f, counts=counts):
        f.tables[0].counts = counts
    lie("a table that counts %d, %d, %d" % counts, "counts of the chunk table")(claim)


@lie("a table of very many empty entries", "makes no sense")
def _(f):
    f.holes[0] = 20000000


@lie("bytes behind a table", "counts of the chunk table")
def _(f):
    f.tables[0].extra = bytes(16)


@lie("a table version 2", "chunk table version 2")
def _(f):
    f.tables[0].version = 2


@lie("a table of another rank", "was written by rank 9")
def _(f):
    f.tables[1].rank = 9


@lie("a table of another save", "different saves")
def _(f):
    f.trailers[1] = lambda b: b[:8] + f.tables[0].save_id + b[24:]
    f.tables[1].save_id = bytes(16)


@lie("a trailer whose table is elsewhere", "must end at")
def _(f):
    f.trailers[1] = lambda b: b[:24] + struct.pack("<QQ", 8, 8) + b[40:]


@lie("a trailer whose table overflows", "must end at")
def _(f):
    f.trailers[1] = lambda b: b[:24] + struct.pack("<QQ", (1 << 64) - 8, 8) + b[40:]


# ---- compressed chunks ----


def record(what, say, k, at, raw, quick=False, block=None):
    """Block k of tensor a: bytes of its record changed, or the block itself, under the right hash."""
    def change(f):
        e = f.entry(0, "a")
        if block is None:
            old = e.hashes[2 * k + 1]
            e.hashes[2 * k + 1] = old[:at] + raw + old[at + len(raw):]
            return
        begin, size = struct.unpack_from("<QI", e.hashes[2 * k + 1])
        new = block(f.bodies[0][e.payload + begin:e.payload + begin + size])
        f.bodies[0] = f.bodies[0][:e.payload + begin] + new + f.bodies[0][e.payload + begin + size:]
        e.hashes[2 * k] = f.hasher(new)
    lie(what, say, template="compressed", quick=quick)(change)


record("a block elsewhere", "record of a compressed block", 1, 0, struct.pack("<Q", 8))
record("a block that overflows", "record of a compressed block", 1, 0, struct.pack("<Q", (1 << 64) - 1))
record("a first block not at the beginning", "record of a compressed block", 0, 0, struct.pack("<Q", 1))
record("a block of no bytes", "record of a compressed block", 1, 8, struct.pack("<I", 0))
record("a block that grew", "record of a compressed block", 0, 8, struct.pack("<I", 65537))
record("a last block that ends early", "record of a compressed block", 3, 8, struct.pack("<I", 7))
record("a record with reserved bytes", "record of a compressed block", 1, 12, b"x")
record("a block of zeros", "does not decode", 0, 0, b"", block=lambda b: bytes(len(b)))
record("a block whose planes are too long", "does not decode", 0, 0, b"", block=lambda b: b"\xff\xff" + b[2:])
record("a block whose planes leave bytes", "does not decode", 0, 0, b"", block=lambda b: b"\x01\x00" + b[2:])
record("a block that is no frame", "does not decode", 0, 0, b"", block=lambda b: b[:4] + bytes(20) + b[24:])
record("a frame that says it is huge", "does not decode", 0, 0, b"",
       block=lambda b: b[:4] + b[4:8] + b"\xe0" + b"\xff" * 8 + b[17:])
@lie("a compressed chunk in a checkpoint that does not require to know it", "does not require 'block-compression'")
def _(f):
    e = f.entry(0, "a")
    e.codec, e.hashes = 1, e.hashes + [bytes(16)]


entry("an item that is compressed", "makes no sense", "kind", 1, template="compressed")
entry("a chunk that grew", "makes no sense", "decoded", 1, template="compressed")
entry("a chunk that decodes to much", "makes no sense", "decoded", 1 << 62, template="compressed")
entry("a chunk that decodes to more than it has", "more hashes", "decoded", 1 << 20, template="compressed")
entry("a chunk of another size", "does not hold the chunks", "decoded", lambda e: e.decoded + 2, template="compressed")
field("a feature that is not required", "more bytes than the", "requires", value=[], template="compressed")
field("a compressed tensor that no file holds", "than the", "tensors", "a", "shape", value=[1 << 40, 4],
      template="compressed")

# ---- items and assets ----

field("an item outside its file", "outside the files", "items", "step", "offset", value=1 << 40, template="values")
field("an item that overflows", "outside the files", "items", "step", "bytes", value=(1 << 64) - 1, template="values")
field("an item in a file that is not there", "outside the files", "items", "step", "file", value=9, template="values")
field("an item in file 2^40", "an item wants", "items", "step", "file", value=1 << 40, template="values")
field("an item at another item's place", "does not hold", "items", "step", "offset", value=0, template="values")
field("an item without a size", "an item wants", "items", "step", "bytes", value=None, template="values")
text("an item twice", "listed twice", '"note": {', '"step": {', template="values")
field("an asset outside", "plain relative path", "assets", 0, "path", value="../../x")
field("an asset at the root", "plain relative path", "assets", 0, "path", value="/etc/passwd")
field("an asset of nothing", "plain relative path", "assets", 0, "path", value="")
field("an asset that is not there", "x", "assets", 0, "path", value="x")
field("an asset with a huge size", "bytes", "assets", 0, "bytes", value=1 << 62)
field("assets outside", "plain relative path", "assets_folder", value="..")
text("assets_folder behind the assets", "comes before assets", '"metadata"', '"assets_folder": "assets", "metadata"')


@lie("an asset twice", "listed twice")
def _(f):
    f.index["assets"].append(f.index["assets"][0])


field("a .metadata of another size", "index.json", "metadata", "bytes", value=1 << 50, reads=True)
field("a .metadata without a hash", "metadata wants", "metadata", "hash", value=None)


class Liar:
    def __init__(self, t, hasher):
        self.t, self.hasher = t, hasher
        write(t.path("assets", "config.json"), b'{"hidden_size": 4}')
        write_safetensors(t.path("plain.safetensors"),
                          {"a": ("F32", [8, 4], 4), "b": ("BF16", [3], 2), "s": ("I64", [], 8)})
        t.good("convert", t.path("plain.safetensors"), t.path("plain"), "--ranks", 3, "--assets", t.path("assets"))
        write_safetensors(t.path("weights.safetensors"), {"a": ("BF16", [80000, 4], 2), "s": ("I64", [], 8)}, byte=0x3c)
        t.good("convert", t.path("weights.safetensors"), t.path("compressed"), "--ranks", 3, "--assets",
               t.path("assets"), "--compress")
        t.good("convert", os.path.join(fixtures(), "dcp", "torch-2.15", "ckpt"), t.path("values"), "--ranks", 3,
               "--assets", t.path("assets"))

    def seal(self, template, change):
        f = Forgery(self.t.fresh(self.t.path(template)), self.hasher)
        change(f)
        f.seal()
        return f.folder

    def check_forger(self):
        """What it seals without a lie is a good checkpoint: so whatever is refused below is refused for the lie."""
        for template in ("plain", "values", "compressed"):
            self.t.good("verify", self.seal(template, lambda f: None), what="the forger's own work (%s)" % template)
        folder = self.seal("plain", lambda f: chunked(f))
        self.t.good("verify", folder, what="the forger's own work (chunks)")

    def check_verify(self, what, folder, say, quick):
        r = self.t.run("verify", folder, *(["--quick"] if quick else []))
        self.t.check(r.status in (1, 3) and say in r.out + r.err, "%s: verify says '%s'" % (what, say), r)
        self.t.check(len((r.out + r.err).splitlines()) <= 12, "%s: verify is short" % what, r)
        self.t.check(SANITIZED or r.rss <= MEMORY_MAX, "%s: verify takes %d bytes of memory" % (what, r.rss))

    def check_read(self, what, folder, say, reads):
        out = self.t.path("out")
        for verb in (["convert", folder, out, "--ranks", "2"], ["export", folder, out]):
            if verb[0] == "export" and os.path.basename(self.template) == "values":
                continue  # has two trees: export asks which
            if reads:
                self.t.good(*verb, what="%s: %s reads it all the same" % (what, verb[0]))
            else:
                self.t.refused("%s: %s" % (what, verb[0]), *verb)
                self.t.check(not os.path.exists(out), "%s: %s leaves nothing" % (what, verb[0]), tree(out))
            shutil.rmtree(out, ignore_errors=True)

    def try_one(self, what, template, change, say, reads, quick):
        self.template = template
        folder = self.seal(template, change)
        self.check_verify(what, folder, say, False)
        if quick:
            self.check_verify(what, folder, say, True)
        self.check_read(what, folder, say, reads)
        for verb in (
            ["ls", folder],
            ["plan", folder, "--ranks", "4"],
            ["cat", folder, "turned" if template == "values" else "a"],
            ["diff", folder, self.t.path(template)],
        ):
            r = self.t.run(*verb)
            self.t.check(r.status in (0, 1, 3) and len(r.err.splitlines()) <= 2, "%s: %s" % (what, verb[0]), r)

    def check_far_block(self):
        """Two records that agree with each other and lie outside the payload: who reads just the second block meets no
        other."""
        def change(f):
            hashes, far = f.entry(0, "a").hashes, 1 << 40
            size = struct.unpack_from("<QI", hashes[1])[1]
            hashes[1] = struct.pack("<Q", far) + hashes[1][8:]
            hashes[3] = struct.pack("<Q", far + size) + hashes[3][8:]
        folder = self.seal("compressed", change)
        self.t.refused("a block far outside: cat", "cat", folder, "a", "--slice", "8192:16384", "--raw",
                       saying="the record of a compressed block")


def chunked(f):
    f.index["tensors"]["a"] = {
        "dtype": "float32", "shape": [8, 4], "chunks": [[0, [0, 0], [3, 4]], [1, [3, 0], [3, 4]], [2, [6, 0], [2, 4]]]
    }


def check_lies(t):
    with Hasher(sys.argv[2]) as hasher:
        liar = Liar(t, hasher)
        liar.check_forger()
        liar.check_far_block()
        for one in LIES:
            liar.try_one(*one)


if __name__ == "__main__":
    sys.exit(run_checks(check_lies))
