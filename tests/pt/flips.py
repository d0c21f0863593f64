#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flipped bytes in sources that carry a CRC-32 a record: every verb that reads them refuses, names file and tensor, and
leaves nothing; --no-verify takes them as they are. Sound sources give the same bytes as ever.

usage: flips.py BINARY
"""
import io
import json
import os
import random
import shutil
import struct
import sys
import zipfile

from harness import SANITIZED, fixtures, patch, read, run_checks, tree, write
from torch_save import Pickle, archive

TOP = os.path.abspath(fixtures())
SOURCES = [
    "pt/module/model.pt", "pt/views/views.pt", "pt/training/last.pt", "pt/bin_shards", "pt/verl3", "pt/verl_tp",
    "dcp/torch-2.15/ckpt", "dcp/rank-local/ckpt"
]
A, B = (
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
)


def zips(data):
    """(offset, bytes) of the zips that follow one another in a file, with what else lies between them."""
    begin = 0
    while (end := data.find(b"PK\x05\x06", begin)) >= 0:
        start = data.index(b"PK\x03\x04", begin)
        yield start, data[start:end + 22]
        begin = end + 22


def records(data):
    """(offset, bytes, name) of every record of a .pt or .distcp file."""
    found = []
    for start, z in zips(data):
        for info in zipfile.ZipFile(io.BytesIO(z)).infolist():
            name, extra = struct.unpack_from("<HH", z, info.header_offset + 26)
            found.append((start + info.header_offset + 30 + name + extra, info.file_size, info.filename))
    return found


def payload_files(top):
    if os.path.isfile(top):
        return [top]
    return [os.path.join(top, n) for n in sorted(os.listdir(top)) if n.endswith((".pt", ".bin", ".distcp"))]


def payload_bytes(top):
    """(file, offset) of every byte of a record that holds a tensor's elements."""
    return [(os.path.relpath(f, top), at + i) for f in payload_files(top) for at, n, name in records(read(f))
            if "/data/" in name for i in range(n)]


class Flipped:
    """A copy of a source with one byte changed."""

    def __init__(self, t, source, file, at):
        self.t = t
        if os.path.isfile(source):
            self.path = t.path("flipped.pt")
            shutil.copyfile(source, self.path)
            file = self.path
        else:
            self.path = t.fresh(source, "flipped")
            file = os.path.join(self.path, file)
        self.file = file
        patch(file, at, bytes([read(file)[at] ^ (1 << at % 8)]))

    def refused(self, *args, naming=""):
        out = self.t.path("out")
        r = self.t.run(*args)
        self.t.check(r.status == 3 and "CRC-32" in r.err and os.path.basename(self.file) in r.err,
                     "%s of a flipped byte is refused by its file" % args[0], self.file, args, r)
        self.t.check("tensor '" in r.err and naming in r.err, "%s of a flipped byte names the tensor" % args[0], r)
        self.t.check(
            not os.path.exists(out) and not [n for n in os.listdir(self.t.folder) if n.startswith((".out", "out"))],
            "%s of a flipped byte leaves nothing" % args[0], os.listdir(self.t.folder))
        return r


def tensors(t, source):
    return [x["name"] for x in json.loads(t.good("ls", source, "--json").out)["tensors"]]


def check_payload(t):
    rng = random.Random(5)
    for name in SOURCES:
        source, out = os.path.join(TOP, name), t.path("out")
        t.good("convert", source, out, "--ranks", "2")
        truth = t.path("truth")
        shutil.rmtree(truth, ignore_errors=True)
        os.rename(out, truth)
        for file, at in rng.sample(payload_bytes(source), 2 if SANITIZED else 6):
            x = Flipped(t, source, file, at)
            # a copy of what another rank's file has: not read
            if ("verl" in name or "local" in name) and t.run("convert", x.path, out, "--ranks", "2").status == 0:
                t.check(t.run("diff", truth, out).status == 0, "a flipped byte of a replica changes nothing")
                shutil.rmtree(out)
                continue
            r = x.refused("convert", x.path, out, "--ranks", "2")
            tensor = r.err.split("tensor '")[1].split("'")[0]
            x.refused("convert", x.path, out, "--ranks", "3", "--memory", "8MiB", "--include", tensor, naming=tensor)
            x.refused("diff", truth, x.path)
            x.refused("cat", x.path, tensor, naming=tensor)
            if "dcp" in name or "verl" in name:
                x.refused("reshard", x.path, out, "--ranks", "5")
            r = t.good("convert", x.path, out, "--ranks", "2", "--no-verify", what="--no-verify takes a flipped byte")
            t.check("--no-verify" in r.err, "--no-verify is announced", r)
            r = t.run("diff", truth, out)
            t.check(r.status == 1, "what --no-verify took is what lay there", r)
            shutil.rmtree(out)
            r = t.run("verify", x.path)
            t.check(r.status == 1, "verify finds it too", r)


def check_slices(t):
    """A part of a record is judged by all of it; a chunk that is not touched is not."""
    source = os.path.join(TOP, "dcp/torch-2.15/ckpt")
    sizes = {x["name"]: x["shape"] for x in json.loads(t.good("ls", source, "--json").out)["tensors"]}
    for file, at in random.Random(6).sample(payload_bytes(source), 1 if SANITIZED else 4):
        x = Flipped(t, source, file, at)
        tensor = x.refused("convert", x.path, t.path("out"), "--ranks", "2").err.split("tensor '")[1].split("'")[0]
        if not sizes[tensor]:
            continue
        status = [t.run("cat", x.path, tensor, "--slice", "%d:%d" % (i, i + 1)).status for i in range(sizes[tensor][0])]
        t.check(3 in status and set(status) <= {0, 3}, "some row's slice is refused", tensor, status)
        t.check({
            t.run("cat", x.path, tensor, "--slice", "%d:%d" % (i, i + 1), "--no-verify").status
            for i in range(sizes[tensor][0])
        } == {0}, "none without checks")


def items(folder):
    """The values of a checkpoint that are no tensors: name -> records of its zip. No CRC-32 is over the bytes between
    these."""
    index, found = json.loads(read(os.path.join(folder, "index.json"))), {}
    for name, i in index["items"].items():
        z = read(os.path.join(folder, index["files"][i["file"]]["path"]))[i["offset"]:i["offset"] + i["bytes"]]
        found[name] = [z[at:at + n] for at, n, _ in records(z)]
    return found


def check_everywhere(t, source, count):
    """Any byte of any file: refused, or nothing that was read had to do with it."""
    out, rng = t.path("out"), random.Random(7)
    t.good("convert", source, out, "--ranks", "2")
    truth = t.path("truth")
    shutil.rmtree(truth, ignore_errors=True)
    os.rename(out, truth)
    for file in payload_files(source):
        for at in rng.sample(range(os.path.getsize(file)), count):
            x = Flipped(t, source, os.path.relpath(file, source), at)
            r = t.run("convert", x.path, out, "--ranks", "2")
            if r.status == 0:
                t.check(t.run("diff", out, truth).status == 0, "byte %d of %s changes nothing" % (at, x.file), r)
                t.check(items(out) == items(truth), "nor the values beside the tensors", r)
                shutil.rmtree(out)
            else:
                t.check(r.status == 3 and not os.path.exists(out), "byte %d of %s is refused" % (at, x.file), r)


def check_values(t):
    """Values that are no tensors: zips of their own in a DCP directory."""
    source = os.path.join(TOP, "dcp/torch-2.15/ckpt")
    values = [(f, start)
              for f in payload_files(source)
              for start, z in zips(read(f))
              if not any("/data/" in n for n in zipfile.ZipFile(io.BytesIO(z)).namelist())]
    t.check(values, "the fixture holds values")
    for f, start in values[:3]:
        at, n, _ = min(r for r in records(read(f)) if r[0] > start)
        x = Flipped(t, source, os.path.relpath(f, source), at + n // 2)
        r = t.run("convert", x.path, t.path("out"), "--ranks", "2")
        t.check(r.status == 3 and "CRC-32" in r.err and not os.path.exists(t.path("out")), "a flipped value is refused",
                r)


def state_dict(values):
    """A torch.save file of float32 tensors: name -> shape, numbers."""
    p, storages = Pickle().raw(b"}"), {}
    for i, (name, (shape, numbers)) in enumerate(values.items()):
        strides, n = [], 1
        for d in reversed(shape):
            strides.insert(0, n)
            n *= d
        p.text(name).tensor(key=str(i), numel=n, size=shape, stride=strides).raw(b"s")
        storages[str(i)] = struct.pack("<%df" % n, *numbers)
    return archive(p.end(), storages)


def without_crc(data, chosen):
    """A .pt or .distcp file with the CRC-32s of some records zeroed, as if torch had been told to write none."""
    data = bytearray(data)
    for start, z in zips(bytes(data)):
        entry = start + struct.unpack_from("<I", z, len(z) - 6)[0]  # in the zip's directory
        for info, (at, n, _) in zip(zipfile.ZipFile(io.BytesIO(z)).infolist(), records(z)):
            header, descriptor = start + info.header_offset, start + at + n
            fields = [header + 14, entry + 16] + [descriptor + 4] * (data[descriptor:descriptor + 4] == b"PK\x07\x08")
            for field in fields if chosen(info.filename) else []:
                data[field:field + 4] = bytes(4)
            entry += 46 + sum(struct.unpack_from("<HHH", data, entry + 28))
    return bytes(data)


def check_lora(t):
    rng = random.Random(8)
    adapter = {A: ([2, 8], [rng.random() for _ in range(16)]), B: ([6, 2], [rng.random() for _ in range(12)])}
    base = {
        "model.layers.0.self_attn.q_proj.weight": ([6, 8], [rng.random() for _ in range(48)]),
        "model.norm.weight": ([8], [1] * 8)
    }
    write(t.path("adapter", "adapter_model.bin"), state_dict(adapter))
    write(t.path("adapter", "adapter_config.json"),
          json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}).encode())
    write(t.path("base", "pytorch_model.bin"), state_dict(base))
    good, out = t.path("good"), t.path("out")
    t.good("merge-lora", t.path("base"), t.path("adapter"), good)
    t.good("export-lora", t.path("adapter"), t.path("lora"), "--adapter-config",
           t.path("adapter", "adapter_config.json"))
    for file, at in payload_bytes(t.path("adapter")):
        if at % 3 or at % 4 == 3:  # the highest byte of a float may make it NaN, which is refused as such
            continue
        x = Flipped(t, t.path("adapter"), file, at)
        x.refused("merge-lora", t.path("base"), x.path, out)
        x.refused("export-lora", x.path, out, "--adapter-config", t.path("adapter", "adapter_config.json"))
    for file, at in payload_bytes(t.path("base"))[::9]:
        x = Flipped(t, t.path("base"), file, at)
        x.refused("merge-lora", x.path, t.path("adapter"), out)
        x.refused("export", x.path, out)
    t.good("merge-lora", t.path("base"), t.path("adapter"), t.path("again"))
    t.check(tree(good) == tree(t.path("again")), "a merge of sound files gives the same bytes")


def check_shared(t):
    """A storage of which one tensor shows a part: all of it is judged; and a record without a CRC-32 is taken, and that
    is said."""
    p = Pickle().raw(b"}").text("w").tensor(numel=64, offset=8, size=(4, 2), stride=(2, 1)).raw(b"s").end()
    path, out = t.path("flipped.pt"), t.path("out")
    write(path, archive(p, {"0": struct.pack("<64f", *range(64))}))
    at, n, _ = next(r for r in records(read(path)) if "/data/" in r[2])
    t.good("convert", path, out, "--ranks", "2")
    shutil.rmtree(out)
    whole = read(path)
    for k in 0, 40, n - 1:
        write(path, whole[:at + k] + bytes([whole[at + k] ^ 4]) + whole[at + k + 1:])
        t.refused("a flipped byte %d of a shared storage" % k, "convert", path, out, "--ranks", "2", saying="CRC-32",
                  naming="tensor 'w'")
        t.refused("the same for cat", "cat", path, "w", "--slice", "0", saying="CRC-32", naming="tensor 'w'")
        r = t.refused("the same for cat --json", "cat", path, "w", "--slice", "0", "--json", saying="CRC-32",
                      naming="tensor 'w'")
        t.check(not r.out.rstrip().endswith("}") or '"error"' in r.out, "values that are refused are no whole object",
                r)
    write(path, without_crc(whole, lambda name: "/data/" in name))
    r = t.good("convert", path, out, "--ranks", "2")
    t.check("1 record has no CRC-32" in r.err, "a record without a CRC-32 is mentioned", r)
    shutil.rmtree(out)


def check_completed(t):
    """A storage of which a model lacks, and takes, only a part: all of it is judged, beneath other views too."""
    p = Pickle().raw(b"}").text("q.weight").tensor(numel=128, size=(8, 8), stride=(8, 1)).raw(b"s")
    p.text("w.weight").tensor(numel=128, offset=64, size=(8, 8), stride=(8, 1)).raw(b"s")
    base, tuned = t.path("flipped.pt"), t.path("tuned.pt")
    write(base, archive(p.end(), {"0": struct.pack("<128f", *range(128))}))
    write(tuned, state_dict({"q.weight": ([8, 8], range(64))}))
    at = next(r[0] for r in records(read(base)) if "/data/" in r[2])
    patch(base, at + 1, bytes([read(base)[at + 1] ^ 4]))
    for args in ([], ["--quantize", "nf4"]):
        t.refused("a completed model with a flipped byte in its base", "export", tuned, t.path("out"), "-q",
                  "--complete-from", base, *args, saying="CRC-32", naming="tensor 'w.weight'")


def check_without(t):
    """Records that torch was told to write no CRC-32s for, of all items or of the values alone: they are read, and one
    line says how many were not checked."""
    source, out = os.path.join(TOP, "dcp/torch-2.15/ckpt"), t.path("out")
    for tensors_too in True, False:
        at = t.fresh(source, "without")
        for f in payload_files(at):
            data = read(f)
            for start, z in zips(data):
                if tensors_too or not any("/data/" in name for _, _, name in records(z)):
                    data = data[:start] + without_crc(z, lambda name: True) + data[start + len(z):]
            write(f, data)
        r = t.good("convert", at, out, "--ranks", "2")
        t.check(
            r.err.count("no CRC-32") == 1 and "records have no CRC-32" in r.err,
            "records without a CRC-32 are mentioned once", tensors_too, r)
        t.good("diff", out, source)
        shutil.rmtree(out)


def check_all(t):
    check_payload(t)
    check_slices(t)
    check_values(t)
    for source in "dcp/zstd/ckpt", "dcp/torch-2.15/ckpt", "pt/verl_tp":
        check_everywhere(t, os.path.join(TOP, source), 12)
    check_lora(t)
    check_shared(t)
    check_completed(t)
    check_without(t)


if __name__ == "__main__":
    sys.exit(run_checks(check_all))
