#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Malformed safetensors files and Hugging Face folders, each tiny and with one defect: lies about sizes, holes,
overlaps, overflows, duplicate keys, deep nesting, paths that lead out. Each is refused in under 64 MiB with exit 3 and
one line that names the file; the good ones among them are read.

usage: malformed.py BINARY
"""
import json
import os
import shutil
import struct
import sys

from harness import run_checks, write

DATA = bytes(range(16))


def st(header, data=DATA, nbytes=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if nbytes is None else nbytes) + text + data


def t(dtype="F32", shape=(2, 2), at=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at), **more}


def without(field):
    e = t()
    del e[field]
    return {"a": e}


A = {"a": t()}
TEXT = json.dumps(A).encode()
ONE = b'{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'

GOOD = {
    "as it should be": st(A),
    "a header padded to a page": st(TEXT.ljust(4088)),
    "white space first": st(b"   " + TEXT),
    "no tensor": st({}, b""),
    "a scalar": st({"a": t(shape=(), at=(0, 4))}, DATA[:4]),
    "tensors without elements": st({"a": t(shape=(0, 3), at=(0, 0)), "b": t(), "c": t(shape=(0,), at=(16, 16))}),
    "an unknown field": st({"a": t(note="x")}),
    "metadata": st({"__metadata__": {"format": "pt", "k": "\u00e9"}, **A}),
}

BAD = {
    # lengths
    "an empty file": b"",
    "seven bytes": b"\2\0\0\0\0\0\0",
    "only a length": struct.pack("<Q", 40),
    "length 0": st(b"", nbytes=0),
    "length beyond the file": st(A, nbytes=4000),
    "length one short": st(A, nbytes=len(TEXT) - 1),
    "length one long": st(A, nbytes=len(TEXT) + 1),
    "length over the cap": st(A, nbytes=100_000_001),
    "length 2^63": st(A, nbytes=1 << 63),
    "length that wraps": st(A, nbytes=(1 << 64) - 1),
    "length that wraps to 0": st(A, nbytes=(1 << 64) - 8),
    # JSON
    "invalid UTF-8": st(ONE.replace(b'"a"', b'"\xff"')),
    "half a surrogate": st(ONE.replace(b'"a"', b'"\\ud800"')),
    "a byte order mark": st(b"\xef\xbb\xbf" + TEXT),
    "NUL behind the header": st(TEXT + b"\0\0\0"),
    "a brace too many": st(TEXT + b"}"),
    "an array": st(b"[]", b""),
    "null": st(b"null", b""),
    "an open brace": st(b"{", b""),
    "a comment": st(ONE.replace(b"{", b"{/*x*/", 1)),
    "100,000 nested arrays": st(b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "60,000 nested objects": st(b'{"a":' * 60_000 + b"1" + b"}" * 60_000, b""),
    "a tensor twice": st(ONE[:-1] + b"," + ONE[1:]),
    "a tensor twice, other bytes": st(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
    ),
    "a field twice": st(ONE.replace(b'"shape"', b'"dtype":"I32","shape"')),
    "metadata twice": st(b'{"__metadata__":{},"__metadata__":{"a":"b"}}', b""),
    # what the fields say
    "metadata with a number": st({"__metadata__": {"k": 1}, **A}),
    "metadata that is a list": st({"__metadata__": ["x"], **A}),
    "a tensor that is a string": st({"a": "F32"}, b""),
    "no dtype": st(without("dtype")),
    "no shape": st(without("shape")),
    "no data_offsets": st(without("data_offsets")),
    "an unknown dtype": st({"a": t(dtype="F31")}),
    "a dtype in lower case": st({"a": t(dtype="f32")}),
    "a dtype that is a number": st({"a": t(dtype=4)}),
    "a negative shape": st({"a": t(shape=(-2, -2))}),
    "a shape with a fraction": st({"a": t(shape=(2.0, 2))}),
    "a shape with a string": st({"a": t(shape=("2", 2))}),
    "three offsets": st({"a": t(at=(0, 16, 16))}),
    "a negative offset": st({"a": t(at=(-16, 0))}),
    "10,000 dimensions": st({"a": t(shape=(1,) * 10_000, at=(0, 4))}, DATA[:4]),
    # where the bytes lie
    "a shape too large": st({"a": t(shape=(2, 3))}),
    "a dtype too small": st({"a": t(dtype="F16")}),
    "offsets reversed": st({"a": t(at=(16, 0))}),
    "offsets beyond the file": st({"a": t(at=(16, 32))}),
    "a hole": st({"a": t(shape=(1,), at=(0, 4)), "b": t(shape=(2,), at=(8, 16))}),
    "a hole first": st({"a": t(shape=(2,), at=(8, 16))}),
    "an overlap": st({"a": t(shape=(3,), at=(0, 12)), "b": t(shape=(2,), at=(8, 16))}),
    "ten names for one range": st({"t%d" % i: t() for i in range(10)}),
    "a byte at the end": st(A, DATA + b"\0"),
    "data without a tensor": st({}, bytes(8)),
    "a byte too few": st(A, DATA[:15]),
    "half a byte": st({"a": t(dtype="F4", shape=(3,), at=(0, 2))}, DATA[:2]),
    # overflow
    "a product that wraps": st({"a": t(shape=(1 << 33, 1 << 33))}),
    "bytes that wrap to 0": st({"a": t(shape=(1 << 62,))}),
    "bytes that wrap to what is there": st({"a": t(shape=((1 << 62) + 4,))}),
    "offset 2^64-1": st(
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615]}}', b""
    ),
    "2^65": st(b'{"a":{"dtype":"U8","shape":[36893488147419103232],"data_offsets":[0,0]}}', b""),
    "1e999": st(b'{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,0]}}', b""),
    # other things
    "a git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16\n",
    "a web page": b"<!DOCTYPE html><html>" + bytes(100),
}

FILE = "model-00001-of-00001.safetensors"
WEIGHTS = st({"a": t(), "b": t(at=(16, 32))}, bytes(32))


def index(**weight_map):
    return json.dumps({"weight_map": weight_map}).encode()


# name -> (index, file or path that the refusal names)
BAD_FOLDERS = {
    "no weight_map": (b'{"metadata":{}}', "index.json"),
    "an index that is no object": (b"[]", "index.json"),
    "an index cut short": (index(a=FILE, b=FILE)[:-5], "index.json"),
    "a file that is not there": (
        index(a=FILE, b="model-00002-of-00002.safetensors"),
        "model-00002-of-00002.safetensors",
    ),
    "a tensor that is not there": (index(a=FILE, b=FILE, c=FILE), "'c'"),
    "a path that leads out": (index(a="../../etc/passwd", b=FILE), "index.json"),
    "an absolute path": (index(a="/etc/passwd", b=FILE), "index.json"),
    "a NUL in a file's name": (index(a=FILE, b=FILE + "\0x"), "index.json"),
    "a file that is a number": (b'{"weight_map":{"a":1,"b":"' + FILE.encode() + b'"}}', "index.json"),
    "a key twice": (('{"weight_map":{"a":"%s","a":"x","b":"%s"}}' % (FILE, FILE)).encode(), "index.json"),
}


def check_bad(t, what, source, naming):
    out = t.path("out")
    for verb in (
        ["convert", source, out, "--ranks", "2"],
        ["export", source, out + ".safetensors"],
        ["ls", source],
        ["plan", source, "--ranks", "2"],
    ):
        t.refused("%s: %s" % (what, verb[0]), *verb, naming=naming)
    left = [n for n in os.listdir(t.folder) if "out" in n]
    t.check(not left, "%s: nothing is left" % what, left)
    r = t.run("verify", source)
    t.check(r.status in (1, 3) and naming in r.out + r.err, "%s: verify" % what, r)


def check_all(t):
    file, folder, out = t.path("model.safetensors"), t.path("folder"), t.path("out")
    for what, data in GOOD.items():
        write(file, data)
        t.good("convert", file, out, "--ranks", 2, what=what)
        t.good("verify", out, what=what)
        shutil.rmtree(out)
    for what, data in BAD.items():
        write(file, data)
        check_bad(t, what, file, "model.safetensors")
    for what, (text, naming) in BAD_FOLDERS.items():
        shutil.rmtree(folder, ignore_errors=True)
        write(os.path.join(folder, FILE), WEIGHTS)
        write(os.path.join(folder, "model.safetensors.index.json"), text)
        check_bad(t, what, folder, naming)


if __name__ == "__main__":
    sys.exit(run_checks(check_all))
