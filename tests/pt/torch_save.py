# SPDX-License-Identifier: Apache-2.0
"""Writes torch.save files byte by byte, right ones and wrong ones. Standard library only."""
import io
import struct
import zipfile


class Pickle:
    """Protocol 2, opcode after opcode."""

    def __init__(self):
        self.b = b"\x80\x02"

    def raw(self, b):
        self.b += b
        return self

    def name(self, module, name):
        return self.raw(b"c" + module.encode() + b"\n" + name.encode() + b"\n")

    def text(self, s):
        return self.raw(b"X" + struct.pack("<I", len(s.encode())) + s.encode())

    def int(self, x):
        if 0 <= x < 256:
            return self.raw(b"K" + bytes([x]))
        e = x.to_bytes((x.bit_length() + 8) // 8, "little", signed=True)
        return self.raw(b"\x8a" + bytes([len(e)]) + e)

    def ints(self, *xs):
        self.raw(b"(")
        for x in xs:
            self.int(x)
        return self.raw(b"t")

    def tensor(
        self, key="0", numel=4, offset=0, size=(2, 2), stride=(2, 1), storage="FloatStorage", maker="_rebuild_tensor_v2"
    ):
        self.name("torch._utils", maker).raw(b"((").text("storage").name("torch", storage).text(key).text("cpu").int(
            numel
        ).raw(b"tQ").int(offset)
        return self.ints(*size).ints(*stride).raw(b"\x89").name("collections", "OrderedDict").raw(b")RtR")

    def end(self):
        return self.b + b"."


def one(**kw):
    """{'w': a tensor}"""
    return Pickle().raw(b"}").text("w").tensor(**kw).raw(b"s").end()


def archive(pickle, storages=None, byteorder=b"little", method=zipfile.ZIP_STORED, extra=(), version=b"3\n",
            top="archive"):
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", method) as z:
        records = [(top + "/data.pkl", pickle), (top + "/byteorder", byteorder)]
        records += [("%s/data/%s" % (top, k), v)
                    for k, v in (storages if storages is not None else {"0": bytes(16)}).items()]
        for name, data in [*records, *extra, (top + "/version", version)]:
            if data is not None:
                z.writestr(zipfile.ZipInfo(name), data, method)
    return f.getvalue()


def call(module, name, argument):
    return Pickle().name(module, name).raw(b"(").text(argument).raw(b"tR").end()
