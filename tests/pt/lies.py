#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.save files that nobody should have written: code, cycles, bombs, lies. Each is refused with one line, in little
memory, and nothing runs.

usage: lies.py BINARY
"""
import os
import struct
import sys
import zipfile

from harness import run_checks, write
from torch_save import Pickle, archive, call, one

LIES = {}  # name -> (the file, what the refusal says)


def code(touch):
    for module, name in (
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "getoutput"),
        ("builtins", "exec"),
        ("__builtin__", "eval"),
        ("torch.hub", "load"),
        ("torch._utils", "os.system"),
        ("torch.serialization", "load"),
        ("builtins", "getattr"),
    ):
        LIES["code-%s-%s" % (module, name)] = archive(call(module, name, touch)), "the pickle asks for '%s.%s'" % (
            module,
            name,
        )
    length = struct.pack("<I", len(touch))
    LIES["code-inst"] = archive(b"\x80\x02(X\x01\0\0\0xios\nsystem\n."), "INST"
    LIES["code-obj"] = archive(b"\x80\x02(cos\nsystem\nX" + length + touch.encode() + b"o."), "'os.system'"
    LIES["code-stack-global"] = (
        archive(b"\x80\x04\x8c\x02os\x8c\x06system\x93X" + length + touch.encode() + b"\x85R."),
        "'os.system'",
    )
    LIES["code-build"] = (
        archive(
            Pickle()
            .name("collections", "OrderedDict")
            .raw(b")R}")
            .text("__class__")
            .name("os", "system")
            .raw(b"sb")
            .end()
        ),
        "'os.system'",
    )
    LIES["code-ext"] = archive(b"\x80\x02\x82\x01."), "EXT1"
    hooks = Pickle().name("torch._utils", "_rebuild_tensor_v2").raw(b"((").text("storage").name(
        "torch", "FloatStorage").text("0").text("cpu").int(4)
    hooks.raw(b"tQ").int(0).ints(4).ints(1).raw(b"\x89").name("os", "system").raw(b"(").text(touch).raw(b"tRtR")
    LIES["code-hooks"] = archive(hooks.end()), "'os.system'"
    LIES["code-legacy"] = (
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + call("os", "system", touch),
        "before version 1.6",
    )


def laughs(leaf, depth=20):
    b = leaf
    for i in range(1, depth + 1):
        b = b"](" + b + b"q%c" % i + (b"h%c" % i) * 9 + b"e"
    return b


def pickles():
    LIES["empty"] = archive(b""), "not a pickle"
    LIES["cut"] = archive(one()[:-30]), "ends inside"
    LIES["no-stop"] = archive(one()[:-1]), "without STOP"
    LIES["memo-huge"] = archive(b"\x80\x02}r\xff\xff\xff\xff."), "memo number 4294967295"
    LIES["string-huge"] = archive(b"\x80\x02X\xff\xff\xff\x7fabc."), "2147483647 bytes wanted"
    LIES["deep"] = archive(b"\x80\x02" + b"(" * 200000 + b"t" * 200000 + b"."), "more than 1000 deep"
    LIES["cycle-list"] = archive(b"\x80\x02]q\x00h\x00a."), "put into itself"
    LIES["cycle-dict"] = archive(Pickle().raw(b"}q\x00").text("a").raw(b"]q\x01h\x00as.").b), "into itself"
    # 20 lists of ten times the one inside, in a kilobyte: a million million million leaves
    LIES["laughs"] = archive(Pickle().raw(laughs(Pickle().tensor().b[2:])).end()), "a tree too large"
    LIES["laughs-plain"] = archive(Pickle().raw(b"}").text("v").raw(laughs(b"K\x01") + b"s").end()), "a tree too large"
    inside = (
        Pickle().raw(b"}(").text("w").tensor().text("v").name("__builtin__", "set").raw(laughs(b"K\x01") + b"\x85Ru")
    )
    # where the walk does not look, but the value is written
    LIES["laughs-set"] = archive(inside.end()), "larger than the"
    LIES["number"] = archive(b"\x80\x02K\x07."), "neither a tensor nor a dict"
    LIES["no-tensor"] = archive(b"\x80\x02}X\x01\0\0\0aK\x01s."), "holds no tensor"
    LIES["key-tuple"] = archive(
        Pickle().raw(b"}K\x01\x85").tensor().raw(b"s").end()), "neither a plain string nor an integer"
    LIES["twice"] = archive(Pickle().raw(b"}(").text("w").tensor().text("w").tensor().raw(b"u").end()), "listed twice"
    LIES["dotted-twice"] = archive(Pickle().raw(b"}(").text("a.b").tensor().text("a").raw(b"}").text("b").tensor().raw(
        b"su").end()), "listed twice"
    LIES["protocol"] = archive(b"\x80\x09N."), "pickle protocol 9"


def tensors():
    t60, line = 1 << 60, "tensor 'w'"
    for name, kw, say in (
        ("storage-numel", {"numel": 1 << 40}, "record 'data/0' has 16 bytes"),
        ("storage-key", {"key": "../data.pkl"}, "the zip does not have"),
        ("storage-key-nul", {"key": "0\0x"}, line),
        ("offset", {"offset": 1}, "reaches beyond"),
        ("offset-negative", {"offset": -1}, line),
        ("stride", {"stride": (3, 1)}, "reaches beyond"),
        ("stride-huge", {"stride": (1 << 62, 1)}, "reaches beyond"),
        ("stride-negative", {"stride": (-2, 1)}, line),
        ("size-negative", {"size": (-2, 2)}, line),
        ("size-2-60", {"size": (t60, t60), "stride": (0, 0)}, "overflows"),
        ("size-2-60-one", {"size": (t60,), "stride": (0,)}, "too many"),
        ("bomb", {"size": (1 << 20, 1 << 20), "stride": (0, 0)}, "too many"),
        ("dims", {"stride": (1,)}, line),
        ("dims-65", {"size": (1,) * 65, "stride": (1,) * 65}, line),
        ("sparse", {"maker": "_rebuild_sparse_tensor"}, "is not read"),
    ):
        LIES[name] = archive(one(**kw)), say
    LIES["storage-class"] = archive(one(storage="EvilStorage")), "'torch.EvilStorage'"
    LIES["storage-missing"] = archive(one(), {}), "the zip does not have"
    LIES["storage-short"] = archive(one(), {"0": bytes(15)}), "has 15 bytes"
    many = Pickle().raw(b"}(")
    for i in range(40):
        many.text("w%d" % i).tensor(size=(1 << 14, 1 << 10), stride=(0, 0))
    LIES["views"] = archive(many.raw(b"u").end()), "too many"


def zips():
    good = archive(one())
    end = good.rindex(b"PK\5\6")
    directory = struct.unpack("<I", good[end + 16:end + 20])[0]
    LIES["zip-cut"] = good[:-40], "no zip end record"
    LIES["zip-no-pickle"] = archive(None), "no record data.pkl"
    LIES["zip-deflated"] = archive(one(), {"0": bytes(8 << 20)}, method=zipfile.ZIP_DEFLATED), "is compressed"
    LIES["zip-roots"] = archive(one(), extra=[("other/data.pkl", call("os", "system", "x"))]), "lies outside"
    LIES["zip-byteorder"] = archive(one(), byteorder=b"middle"), "neither little nor big"
    LIES["zip-version"] = archive(one(), version=b"99\n"), "not known"
    LIES["zip-script"] = archive(one(), extra=[("archive/constants.pkl", b"x")]), "TorchScript"
    LIES["zip-count"] = good[:end + 8] + struct.pack("<HH", 9, 9) + good[end + 12:], "cannot list 9 records"
    LIES["zip-directory"] = good[:end + 16] + struct.pack("<I", 0x7fffffff) + good[end + 20:], "2147483647"
    LIES["zip-size"] = (
        good[: directory + 20] + struct.pack("<II", 0x7FFFFFF0, 0x7FFFFFF0) + good[directory + 28 :],
        "2147483632",
    )
    LIES["zip-names"] = good.replace(b"archive/data.pkl", b"archive/dbtb.pkl", 1), "disagree"
    # the second entry points at the first record: with sizes and names to match, it lies on top of it
    second = good.index(b"PK\1\2", directory + 4)
    LIES["zip-overlap"] = good[:second + 42] + struct.pack("<I", 0) + good[second + 46:], "disagree"
    bad = bytearray(good)
    bad[good.index(b"collections") + 2] ^= 1
    LIES["zip-crc"] = bytes(bad), "CRC-32"
    LIES["tar"] = b"sys_info".ljust(257, b"\0") + b"ustar\0" + bytes(249), "tar format of 2016"


def check_lies(t):
    witness = t.path("RAN")
    code("touch '%s'" % witness)
    for make in (pickles, tensors, zips):
        make()
    t.check(len(LIES) > 60, "there are many lies")
    for name, (data, say) in LIES.items():
        path = t.path(name + ".pt")
        write(path, data)
        t.refused(name, "ls", path, saying=say, naming=name + ".pt")
        t.refused(name + ": convert", "convert", path, t.path("out"), "--ranks", "2", saying=say)
        t.check(not os.path.exists(t.path("out")), name + ": convert leaves nothing")
        r = t.run("verify", path)
        t.check(r.status in (1, 3), name + ": verify", r)
    t.check(not os.path.exists(witness), "nothing was run")


if __name__ == "__main__":
    sys.exit(run_checks(check_lies))
