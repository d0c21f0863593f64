#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damages good checkpoints in the ways that disks, copies and people do, and checks that `verify` names it and that
reading refuses it or is not touched. (Every single byte and every length of a small checkpoint: unit/test_damage.c.
Lies with right hashes: lies.py.)

usage: run.py BINARY
"""
import json
import os
import shutil
import struct
import sys

from harness import fixtures, flip, patch, read, run_checks, tree, write, write_safetensors

PAGE = 4096
TINY = os.path.join(fixtures(), "tiny-llama-tied")


class Damage:
    """One good checkpoint of several files with large and small tensors, and what reading it gives."""

    def __init__(self, t, *options):
        self.t, self.options = t, options
        self.good = t.path("good" + "".join(options))
        t.good("convert", TINY, self.good, "--ranks", 3, *options)
        t.good("export", self.good, t.path("truth"), "--force")
        self.truth = tree(t.path("truth"))

    def exports(self, folder):
        """Status of a full read, its one line, and whether what it wrote is the truth."""
        out = self.t.path("exported")
        shutil.rmtree(out, ignore_errors=True)
        r = self.t.run("export", folder, out)
        return r, r.status == 0 and tree(out) == self.truth, os.path.exists(out)

    def try_one(self, what, damage, files, reads=False, say=""):
        """damage(folder) changes a copy; files: which ones verify must name, all of them and no others."""
        bad = self.t.fresh(self.good)
        damage(bad)
        problems = self.t.problems(bad)
        named = sorted({p["file"] for p in problems})
        self.t.check(named == sorted(files), "%s: verify names %s, wanted %s" % (what, named, files))
        self.t.check(any(say in p["what"] for p in problems), "%s: verify says '%s'" % (what, say), problems)
        r, same, exists = self.exports(bad)
        if reads:
            self.t.check(same, "%s: export gives the right bytes" % what, r)
        else:
            self.t.check(r.status == 3 and len(r.err.splitlines()) <= 2, "%s: export refuses" % what, r)
            self.t.check(any(f in r.err for f in files), "%s: export names the file" % what, r)
            self.t.check(not exists, "%s: export leaves nothing" % what)
        return problems


def shard(folder, rank):
    return os.path.join(folder, "__%d_0.distcp" % rank)


def index_of(folder):
    return json.loads(read(os.path.join(folder, "index.json")))


def a_payload(folder, rank):
    """Offset and size of the largest payload of a rank, from its chunk table."""
    place, _ = index_of(folder)["files"][rank]["table"]
    data = read(shard(folder, rank))
    n = struct.unpack_from("<Q", data, place + 32)[0]
    return max((struct.unpack_from("<QQ", data, place + 96 + 96 * i + 8) for i in range(n)), key=lambda p: p[1])


def zero_page(folder, rank, at):
    data = read(shard(folder, rank))
    at = at // PAGE * PAGE
    assert any(data[at:at + PAGE])
    patch(shard(folder, rank), at, bytes(len(data[at:at + PAGE])))


def damage_pages(d):
    offset, nbytes = a_payload(d.good, 1)
    assert nbytes > 65536 and offset % PAGE == 0
    problems = d.try_one(
        "a zeroed page of payload",
        lambda f: zero_page(f, 1, offset + 65536),
        ["__1_0.distcp"],
        say="block hash differs",
    )
    d.t.check(
        len(problems) == 1
        and problems[0]["offset"] == offset + 65536
        and problems[0]["rank"] == 1
        and "tensor" in problems[0],
        "a zeroed page: the block, and nothing else",
        problems,
    )
    size = os.path.getsize(shard(d.good, 2))
    d.try_one("a zeroed last page", lambda f: zero_page(f, 2, size - 1), ["__2_0.distcp"])
    d.try_one("a zeroed first page", lambda f: zero_page(f, 0, 0), ["__0_0.distcp"], reads=a_payload(d.good, 0)[0]
              >= PAGE)
    d.try_one("a file of zeros", lambda f: write(shard(f, 0), bytes(os.path.getsize(shard(f, 0)))), ["__0_0.distcp"])
    d.try_one(
        "a page written twice",
        lambda f: patch(shard(f, 1), offset, read(shard(f, 1))[offset + PAGE : offset + 2 * PAGE]),
        ["__1_0.distcp"],
    )


def payloads(folder, rank):
    """(offset, bytes, decoded bytes) of each payload of a rank."""
    place, _ = index_of(folder)["files"][rank]["table"]
    data = read(shard(folder, rank))
    n = struct.unpack_from("<Q", data, place + 32)[0]
    return [struct.unpack_from("<QQQ", data, place + 96 + 96 * i + 8) for i in range(n)]


def damage_blocks(d):
    """Of compressed payloads: each block that was touched, and no other, and the rows that are lost with it."""
    chunks = sorted(payloads(d.good, 1), key=lambda p: -p[2])
    offset, nbytes, decoded = chunks[0]
    d.t.check(decoded > 65536 and nbytes < decoded * 0.8, "the template is compressed", chunks[0])
    for what, at in (("first", 0), ("middle", nbytes // 2), ("last", nbytes - 1)):
        problems = d.try_one("a flipped bit in the %s byte of a payload" % what,
                             lambda f: flip(shard(f, 1), offset + at), ["__1_0.distcp"], say="block hash differs")
        p = problems[0] if len(problems) == 1 else {}
        d.t.check(
            p.get("offset", -1) <= offset + at < p.get("offset", 0) + p.get("bytes", 0)
            and p.get("row_end", 0) > p.get("row_begin", 0), "the %s byte: its block, with rows" % what, problems)
    d.try_one("a zeroed page", lambda f: zero_page(f, 1, offset + nbytes // 2), ["__1_0.distcp"])
    d.try_one("a file of zeros", lambda f: write(shard(f, 0), bytes(os.path.getsize(shard(f, 0)))), ["__0_0.distcp"])
    d.try_one(
        "a payload moved by a byte",
        lambda f: patch(shard(f, 1), offset, read(shard(f, 1))[offset + 1 : offset + nbytes]),
        ["__1_0.distcp"],
    )


def damage_sizes(d):
    for n in (1, 64, 65, PAGE, 65536):
        d.try_one(
            "cut by %d" % n, lambda f: os.truncate(shard(f, 2), os.path.getsize(shard(f, 2)) - n), ["__2_0.distcp"]
        )
    d.try_one("cut to nothing", lambda f: os.truncate(shard(f, 1), 0), ["__1_0.distcp"])
    d.try_one("garbage appended", lambda f: patch(shard(f, 1), os.path.getsize(shard(f, 1)), b"garbage"),
              ["__1_0.distcp"])
    d.try_one("garbage after the index", lambda f: patch(f + "/index.json", os.path.getsize(f + "/index.json"), b" "),
              ["index.json"])
    d.try_one("an empty index", lambda f: write(f + "/index.json", b""), ["index.json"])


def damage_metadata(d, dcp):
    d.try_one("a foreign .metadata", lambda f: shutil.copy(dcp + "/.metadata", f + "/.metadata"), [".metadata"],
              reads=True, say="PyTorch")
    d.try_one("no .metadata", lambda f: os.unlink(f + "/.metadata"), [".metadata"], reads=True, say="is missing")


def damage_sets(d):
    """Whole files that are good, in the wrong place."""
    t = d.t
    again, five = t.path("again"), t.path("five")
    for folder, nranks in ((again, 3), (five, 5)):
        shutil.rmtree(folder, ignore_errors=True)
        t.good("convert", TINY, folder, "--ranks", nranks, *d.options)

    def swap(f):
        os.rename(shard(f, 0), f + "/x")
        os.rename(shard(f, 1), shard(f, 0))
        os.rename(f + "/x", shard(f, 1))

    assert os.path.getsize(shard(again, 1)) == os.path.getsize(shard(d.good, 1))
    d.try_one("two shards swapped", swap, ["__0_0.distcp", "__1_0.distcp"])
    d.try_one("a shard of another save", lambda f: shutil.copy(shard(again, 1), shard(f, 1)), ["__1_0.distcp"],
              say="another save")
    d.try_one("the index of another save", lambda f: shutil.copy(again + "/index.json", f + "/index.json"),
              ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"], say="another save")
    d.try_one("a missing shard", lambda f: os.unlink(shard(f, 1)), ["__1_0.distcp"], say="No such file")
    d.try_one("two missing shards", lambda f: (os.unlink(shard(f, 0)), os.unlink(shard(f, 2))),
              ["__0_0.distcp", "__2_0.distcp"])
    d.try_one("a shard of another world size", lambda f: shutil.copy(shard(five, 4), shard(f, 4)), ["__4_0.distcp"],
              reads=True, say="does not belong")
    d.try_one("a stray shard", lambda f: write(f + "/mine.distcp", b"?"), ["mine.distcp"], reads=True,
              say="does not belong")
    d.try_one("a shard that is a directory", lambda f: (os.unlink(shard(f, 1)), os.mkdir(shard(f, 1))),
              ["__1_0.distcp"], say="regular file")
    dcp = os.path.join(fixtures(), "dcp", "torch-2.15", "ckpt")
    if not d.options:
        damage_metadata(d, dcp)
    else:
        d.try_one(
            "a .metadata",
            lambda f: shutil.copy(dcp + "/.metadata", f + "/.metadata"),
            [".metadata"],
            reads=True,
            say="does not belong",
        )
    d.try_one(
        "PyTorch saved over it",
        lambda f: shutil.copytree(dcp, f, dirs_exist_ok=True),
        ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"],
    )
    d.try_one("an asset edited", lambda f: flip(f + "/assets/config.json", 20), ["assets/config.json"])
    d.try_one("an asset gone", lambda f: os.unlink(f + "/assets/tokenizer.json"), ["assets/tokenizer.json"],
              say="is missing")
    bad = t.fresh(d.good)
    write(bad + "/notes.txt", b"mine")
    t.good("verify", bad, what="a file of the user's is no problem")


def damage_quick(d):
    """--quick sees sizes, tables and the index; not payload."""
    bad = d.t.fresh(d.good)
    offset, _ = a_payload(bad, 1)
    flip(shard(bad, 1), offset)
    d.t.good("verify", "--quick", bad)
    cases = [
        ("a cut shard", lambda f: os.truncate(shard(f, 1), 100)),
        ("a table", lambda f: flip(shard(f, 1), index_of(f)["files"][1]["table"][0] + 100)),
        ("a cut asset", lambda f: os.truncate(f + "/assets/config.json", 10)),
        ("a stray shard", lambda f: write(f + "/__7_0.distcp", b"")),
        ("the index", lambda f: flip(f + "/index.json", 100)),
    ]
    if not d.options:
        cases.append(("a cut .metadata", lambda f: os.truncate(f + "/.metadata", 10)))
    for what, damage in cases:
        bad = d.t.fresh(d.good)
        damage(bad)
        d.t.check(len(d.t.problems(bad, "--quick")) == 1, "--quick: %s" % what)


def damage_values(t):
    """Values that are no tensors: a damaged one must not travel on under a new hash."""
    source, good = os.path.join(fixtures(), "dcp", "torch-2.15", "ckpt"), t.path("values")
    t.good("convert", source, good, "--ranks", 2)
    item = index_of(good)["items"]["betas"]
    bad = t.fresh(good)
    flip(shard(bad, item["file"]), item["offset"] + item["bytes"] // 2)
    problems = t.problems(bad)
    t.check(len(problems) == 1 and problems[0].get("tensor") == "betas", "a damaged value: verify names it", problems)
    t.refused("a damaged value: reshard", "reshard", bad, t.path("values-out"), "--ranks", 1, saying="'betas'",
              naming="__0_0.distcp")
    t.check(not os.path.exists(t.path("values-out")), "a damaged value: reshard leaves nothing")


# ---- other sources ----

def places(folder, rank):
    """Of a rank's file: a byte of every payload, and one of every stretch between them, the first and the last
    included."""
    place, _ = index_of(folder)["files"][rank]["table"]
    inside, between, at = [], [], 0
    for offset, nbytes, _ in sorted(payloads(folder, rank)) + [(place, 0, 0)]:
        if offset > at:
            between.append(offset - 1)
        if nbytes:
            inside.append(offset + nbytes - 1)
        at = offset + nbytes
    return inside, between


def forget(folder):
    """Drops its files from the page cache: they are then read in other pieces."""
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def damage_windows(t):
    """Files of many reads: wherever the one bad byte is, in the page cache or not, it is found, and what is around it
    is not blamed."""
    source, good = t.path("windows.safetensors"), t.path("windows")
    sizes = [10, 70000, 5 << 20, 3, 1 << 20, 65536, 200000, 9 << 20, 1, 65537, 2 << 20, 7]
    write_safetensors(source, {"t%02d" % i: ("U8", [n], 1) for i, n in enumerate(sizes)})
    t.good("convert", source, good, "--ranks", 1, "--replicate", "*")
    inside, between = places(good, 0)
    t.check(
        len(inside) == len(sizes) and len(between) == len(sizes) + 1, "as many places as there are payloads, and gaps",
        inside, between)
    shard_file = shard(good, 0)
    for at, what in [(at, "block hash differs") for at in inside] + [
        (at, "bytes around the payloads") for at in between
    ]:
        for cached in (True, False):
            flip(shard_file, at)
            if not cached:
                forget(good)
            problems = t.problems(good)
            t.check(
                len(problems) == 1 and what in problems[0]["what"], "the byte at %d flipped, cached: %s" % (at, cached),
                problems)
            flip(shard_file, at)
    t.good("verify", good)


def check_safetensors(t):
    model = t.path("model.safetensors")
    write_safetensors(model, {"a": ("F32", [64, 8], 4), "b": ("BF16", [100], 2)})
    r = t.good("verify", model)
    t.check("no checksums" in r.err, "safetensors: says that there are no checksums", r)
    t.good("verify", "--quick", model)
    whole = read(model)
    for what, data in (
        ("cut by 1", whole[:-1]),
        ("cut in the header", whole[:40]),
        ("of 7 bytes", whole[:7]),
        ("with garbage appended", whole + b"x"),
        ("with a huge header", struct.pack("<Q", 1 << 60) + whole[8:]),
        ("with a damaged header", whole[:9] + b"\x00" + whole[10:]),
    ):
        write(model, data)
        for option in ([], ["--quick"]):
            problems = t.problems(model, *option)
            t.check(len(problems) == 1, "a safetensors file %s: one problem" % what, problems)
        t.refused("a safetensors file %s: convert" % what, "convert", model, t.path("out"), "--ranks", 2,
                  naming="model.safetensors")
        t.check(not os.path.exists(t.path("out")), "a safetensors file %s: convert leaves nothing" % what)


def check_hf(t):
    t.good("verify", TINY)
    t.good("verify", "--quick", TINY)

    def lie(f):
        index = json.loads(read(f + "/model.safetensors.index.json"))
        first, last = ("model-0000%d-of-00003.safetensors" % i for i in (1, 3))
        name = next(n for n, file in index["weight_map"].items() if file == first)
        index["weight_map"][name] = last
        write(f + "/model.safetensors.index.json", json.dumps(index).encode())

    for what, damage, named in (
        (
            "a missing file",
            lambda f: os.unlink(f + "/model-00002-of-00003.safetensors"),
            "model-00002-of-00003.safetensors",
        ),
        (
            "a cut file",
            lambda f: os.truncate(f + "/model-00003-of-00003.safetensors", 5000),
            "model-00003-of-00003.safetensors",
        ),
        ("an index that lies", lie, ".safetensors"),
        (
            "an index that is no JSON",
            lambda f: write(f + "/model.safetensors.index.json", b"{"),
            "model.safetensors.index.json",
        ),
    ):
        bad = t.fresh(TINY)
        damage(bad)
        for option in ([], ["--quick"]):
            problems = t.problems(bad, *option)
            t.check(
                len(problems) == 1 and named in problems[0]["file"] + problems[0]["what"],
                "Hugging Face folder, %s" % what, problems)
        t.refused("Hugging Face folder, %s: convert" % what, "convert", bad, t.path("out"), "--ranks", 2, naming=named)


def check_dcp(t, version):
    source = os.path.join(fixtures(), "dcp", version, "ckpt")
    r = t.good("verify", source)
    t.check("no hashes" in r.err, "%s: says that there are no hashes" % version, r)
    t.good("verify", "--quick", source)
    names = sorted(n for n in os.listdir(source) if n.endswith(".distcp"))
    for name in names:
        data = read(os.path.join(source, name))
        at = data.index(b"data/0") + 80  # in the payload of the first tensor, or near its end: under a CRC
        bad = t.fresh(source)
        flip(os.path.join(bad, name), at)
        problems = t.problems(bad)
        t.check(
            {p["file"] for p in problems} == {name}, "%s: a flipped byte in %s is found" % (version, name), problems
        )
        bad = t.fresh(source)
        os.truncate(os.path.join(bad, name), len(data) - 1)
        t.check({p["file"] for p in t.problems(bad)} == {name}, "%s: %s cut by 1" % (version, name))
    for what, damage in (("a missing shard", lambda f: os.unlink(os.path.join(f, names[1]))),
                         ("a cut shard", lambda f: os.truncate(os.path.join(f, names[1]), 1000)),
                         (".metadata cut", lambda f: os.truncate(f + "/.metadata", 1000))):
        bad = t.fresh(source)
        damage(bad)
        for option in ([], ["--quick"]):
            t.problems(bad, *option)
        t.refused("%s, %s: convert" % (version, what), "convert", bad, t.path("out"), "--ranks", 2,
                  naming=".metadata" if "meta" in what else names[1])


def check_all(t):
    d = Damage(t)
    damage_pages(d)
    damage_sizes(d)
    damage_sets(d)
    damage_quick(d)
    d = Damage(t, "--compress")
    damage_blocks(d)
    damage_sizes(d)
    damage_sets(d)
    damage_quick(d)
    damage_values(t)
    damage_windows(t)
    check_safetensors(t)
    check_hf(t)
    # other forms: tests/pt
    for version in sorted(v for v in os.listdir(os.path.join(fixtures(), "dcp")) if v.startswith("torch-")):
        check_dcp(t, version)


if __name__ == "__main__":
    sys.exit(run_checks(check_all))
