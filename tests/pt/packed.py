#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DCP directories whose items are zstd streams: sound ones of every make, and streams that are cut, flipped, foreign,
or too long.

usage: packed.py BINARY
"""
import array
import os
import struct
import sys

from harness import fixtures, flip, read, run_checks, write
from torch_save import Pickle, archive
from zstd_frames import frame, skippable

METADATA = "torch.distributed.checkpoint.metadata"
NAME = "__0_0.distcp"
VALUES = list(range(1, 41))  # float32 [10, 4]


def item(values=VALUES, size=(10, 4), stride=(4, 1)):
    pickle = Pickle().tensor(numel=len(values), size=size, stride=stride).end()
    return archive(pickle, {"0": struct.pack("<%df" % len(values), *values)})


def size_of(p, dims):
    return p.name("torch", "Size").ints(*dims).raw(b"\x85R")


def descriptors(p, names):
    if names is not None:
        p.text("transform_descriptors").raw(b"](")
        for name in names:
            p.text(name)
        p.raw(b"e")


def metadata(dims=(10, 4), streams=(), transforms=("stream.zstd/1",)):
    """One tensor 'w' of one chunk, at the beginning of the file; then items, all that `streams` names. streams: (name,
    offset, bytes)."""
    p = Pickle().name(METADATA, "Metadata").raw(b")\x81}(").text("state_dict_metadata").raw(b"}(").text("w")
    p.name(METADATA, "TensorStorageMetadata").raw(b")\x81}(").text("properties").name(METADATA, "TensorProperties").raw(
        b")\x81("
    ).name("torch", "float32")
    p.name("torch.serialization", "_get_layout").text("torch.strided").raw(b"\x85R\x89").name(
        METADATA, "_MEM_FORMAT_ENCODING"
    ).int(0).raw(b"\x85R\x89tb")
    size_of(p.text("size"), dims).text("chunks").raw(b"](").name(METADATA, "ChunkStorageMetadata").raw(b")\x81}(")
    size_of(size_of(p.text("offsets"), [0] * len(dims)).text("sizes"), dims).raw(b"ubeub")
    for name, _, _ in streams[1:]:
        p.text(name).name(METADATA, "BytesStorageMetadata").raw(b")\x81")
    p.raw(b"u").text("planner_data").raw(b"N").text("storage_data").raw(b"}(")
    for i, (name, offset, nbytes) in enumerate(streams):
        p.name(METADATA, "MetadataIndex").raw(b")\x81}(").text("fqn").text(name).text("index").raw(b"N").text("offset")
        (p.raw(b"N") if i else size_of(p, [0] * len(dims))).raw(b"ub")
        p.name("torch.distributed.checkpoint.filesystem",
               "_StorageInfo").raw(b")\x81}(").text("relative_path").text(NAME)
        p.text("offset").int(offset).text("length").int(nbytes)
        descriptors(p, transforms)
        p.raw(b"ub")
    return p.raw(b"u").text("storage_meta").raw(b"N").text("version").raw(b"Nub").end()


def make(t, stream, items=(), folder="made", **kwargs):
    """A directory of one tensor and items, each a stream. Returns its path."""
    at, streams, data = t.path(folder), [], b""
    for name, b in (("w", stream), *items):
        streams.append((name, len(data), len(b)))
        data += b
    write(os.path.join(at, NAME), data)
    write(os.path.join(at, ".metadata"), metadata(streams=streams, **kwargs))
    return at


def check_sound(t):
    zip, step = item(), archive(Pickle().int(17).end(), {})
    cut = len(zip) // 2
    for what, stream in (("one frame", frame(zip)), ("two frames", frame(zip[:cut]) + frame(zip[cut:])),
                         ("an empty frame behind", frame(zip) + frame()),
                         ("frames to be skipped", skippable(b"x" * 99) + frame(zip) + skippable(b"")),
                         ("a block a byte", frame(*(zip[i:i + 1] for i in range(len(zip)))))):
        at = make(t, stream, [("step", frame(step)), ("again", frame(step[:9]) + frame(step[9:]))])
        r = t.good("cat", at, "w", what=what + ": cat")
        t.check(" ".join(r.out.replace("[", "").replace("]", "").split()) == " ".join("%d." % v for v in VALUES),
                what + ": the values", r)
        t.good("verify", at, what=what + ": verify")
        t.good("reshard", at, t.path("plain"), "--ranks", 3, "--force", what=what + ": reshard")
        t.good("diff", at, t.path("plain"), what=what + ": diff")
        t.check(step in read(t.path("plain", NAME)), what + ": the item as it was before it was compressed")
    turned = make(t, frame(item([v + 4 * r for v in range(1, 5) for r in range(10)], stride=(1, 10))))
    t.good("diff", turned, at, what="a transposed item")


def check_large(t):
    """More than any buffer holds, in pieces from the middle, columns, and with a budget far below it."""
    n = 3 << 20
    payload = array.array("I", range(0x3f800000, 0x3f800000 + n)).tobytes()
    pickle = Pickle().tensor(numel=n, size=(n // 1024, 1024), stride=(1024, 1)).end()
    zip = archive(pickle, {"0": payload})
    at, plain = make(t, frame(zip, window=20), dims=(n // 1024, 1024)), make(
        t, zip, dims=(n // 1024, 1024), folder="open", transforms=None
    )
    t.good("diff", at, plain, what="12 MiB: the same")
    for options in (["--ranks", 5], ["--mesh", "tp=3", "--placement", "w=shard(1)@tp"]):
        t.good("reshard", at, t.path("large"), "--force", "--memory", "18MiB", *options)
        t.good("diff", t.path("large"), plain, what="12 MiB, resharded with %s: the same" % options)
    r = t.run("reshard", at, t.path("no"), "--ranks", 2, "--memory", "17MiB")
    t.check(r.status == 2 and "at least 18MiB are needed" in r.err, "a budget without room for the window", r)
    t.check(
        t.good("cat", at, "w", "--slice", "3000:3001,7:9", "--raw").out
        == t.good("cat", plain, "w", "--slice", "3000:3001,7:9", "--raw").out,
        "12 MiB: a slice",
    )


def check_refused(t):
    zip = item()
    whole = frame(zip)
    for what, stream, say in (
        ("a stream that ends early", whole[:-1], "ends early"),
        ("half a stream", whole[: len(whole) // 2], "ends early"),
        ("nothing", b"", "ends early"),
        ("bytes behind it", whole + b"garbage", "followed by bytes that belong to no stream"),
        ("a zip as it is", zip, "is no zstd stream"),
        ("a dictionary", frame(zip, dictionary=7), "needs a dictionary"),
        ("a window of 16 MiB", frame(zip, window=24), "window of more than 8 MiB"),
        ("a window of 2 TiB", frame(zip, window=41), "window of more than 8 MiB"),
        ("a bomb", frame(1 << 40 >> 10), "decodes to more than 2097312 bytes"),
        ("a bomb behind a zip", whole + frame(1 << 30), "decodes to more than 2097312 bytes"),
        ("no zip", frame(4096), "no zip end record"),
        ("zeros behind the zip", frame(zip, 4096), "no zip end record"),
        ("an unknown kind of block", whole[:6] + bytes([whole[6] | 6]) + whole[7:], "does not decode"),
        ("another shape", frame(item(size=(4, 10), stride=(10, 1))), "shape [4, 10]"),
        ("fewer elements", frame(item(VALUES[:4], size=(10, 4))), "storage of 4 elements"),
    ):
        at = make(t, stream)
        for verb in (("cat", at, "w"), ("reshard", at, t.path("no"), "--ranks", 2)):
            t.refused("%s: %s" % (what, verb[0]), *verb, saying=say, naming=NAME)
            t.refused("%s: %s names the tensor" % (what, verb[0]), *verb, naming="tensor 'w'")
        problems = t.problems(at)
        t.check(
            len(problems) == 1 and problems[0]["tensor"] == "w" and say in problems[0]["what"],
            "%s: verify reports it" % what,
            problems,
        )
    for what, names, say in (
        ("another version", ["stream.zstd/2"], "'stream.zstd/2'"),
        ("twice", ["stream.zstd/1"] * 2, "only 'stream.zstd/1', once"),
        ("encrypted", ["crypt@here/1"], "'crypt@here/1'"),
        ("encrypted, then compressed", ["crypt/3", "stream.zstd/1"], "'crypt/3'"),
    ):
        t.refused(what, "ls", make(t, whole, transforms=names), saying=say, naming="tensor 'w'")
    t.good("cat", make(t, zip, transforms=[]), "w", what="an empty list of transforms")


def check_items(t):
    whole, bomb = frame(item()), frame(65 << 20)
    for what, stream, say in (
        ("cut", frame(b"x" * 99)[:-1], "ends early"),
        ("garbage behind", frame(b"x") + b"y" * 9, "belong to no stream"),
        ("a bomb", bomb, "decodes to more than 67108864 bytes"),
    ):
        t.refused("an item, %s" % what, "ls", make(t, whole, [("state", stream)]), saying=say, naming="'state'")
    many = [("state.%d" % i, frame(60 << 20)) for i in range(10)]
    t.refused("items that are large only together", "ls", make(t, whole, many), saying="decodes to more than",
              naming="'state.8'")
    at = make(t, whole, [("state", frame(bytes(99)))])
    t.check(t.problems(at)[0]["tensor"] == "state", "an item that is no zip")


def check_flipped(t):
    """One bit of what torch wrote: seen by verify, or without effect on any value; never worse."""
    source = os.path.join(os.path.abspath(fixtures()), "dcp", "zstd", "ckpt")
    for name in (NAME, "__2_0.distcp"):
        for place in range(0, os.path.getsize(os.path.join(source, name)), 29):
            at = t.fresh(source, "flipped")
            flip(os.path.join(at, name), place)
            r = t.run("verify", at)
            seen = r.status == 1 or (r.status == 3 and len(r.err.splitlines()) in (1, 2))
            t.check(seen or (r.status == 0 and t.run("diff", at, source).status == 0),
                    "byte %d of %s flipped" % (place, name), r)
    stream = frame(item())
    payload = stream.index(struct.pack("<f", VALUES[20]))
    at = make(t, stream[:payload] + b"\x01" + stream[payload + 1:])
    t.check("CRC-32" in t.problems(at)[0]["what"], "a flipped payload that zstd cannot see")


if __name__ == "__main__":
    sys.exit(run_checks(check_sound, check_refused, check_items, check_flipped, check_large))
