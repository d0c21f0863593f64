#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes and places that nobody tests: items over 4 GiB, 2^31 elements, thousands of ranks, 100,000 tensors, long names,
poor file systems, little memory. Files are sparse and folders are removed. One case a run, so that one that cannot be
tried here is counted as skipped, with its reason.

usage: run.py BINARY SPARSE CASE
"""
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "damage"))
from harness import SANITIZED, Tester, fixtures, read, tree, write, write_safetensors

SKIPPED = 77
BUDGET = 256 << 20       # what a verb may take for buffers, whatever the model's size
CASES = {}
SPARSE = None            # the helper program (sparse.c)


class Skip(Exception):
    pass


def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function


def memory_max(ntensors):
    """What any verb may take: issue "at full speed", last row."""
    return BUDGET + (64 << 20) + 256 * ntensors


def good(t, ntensors, *args, **kwargs):
    r = t.good(*args, **kwargs)
    t.check(SANITIZED or r.rss <= memory_max(ntensors), "fsdpck %s: takes %d bytes of memory" % (args[0], r.rss))
    return r


def disk_nbytes(path):
    return sum(os.lstat(os.path.join(base, n)).st_blocks * 512 for base, _, names in os.walk(path) for n in names)


# ---- an item over 4 GiB, a tensor over 2^32 elements ----

ROW = (1 << 31) + 4097           # elements of one byte; neither a multiple of a page nor of a block
# place in the tensor -> bytes
MARKS = {0: b"first", ROW - 2: b"over the edge of the rows", (1 << 32) - 3: b"over 4 GiB", 2 * ROW - 4: b"last"}


def write_large(path):
    """A sparse safetensors file: (2, ROW) bytes, nearly all zero, and a small tensor behind them."""
    header = json.dumps({"large": {"dtype": "U8", "shape": [2, ROW], "data_offsets": [0, 2 * ROW]},
                         "small": {"dtype": "U8", "shape": [3], "data_offsets": [2 * ROW, 2 * ROW + 3]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for place, text in MARKS.items():
            f.seek(8 + len(header) + place)
            f.write(text)
        f.seek(8 + len(header) + 2 * ROW)
        f.write(b"abc")


def payload(f, offset, nbytes):
    f.seek(offset)
    return f.read(nbytes)


def marks_are_there(f, begin):
    """The marks, and zeros around them, in a file that holds the tensor from `begin`."""
    for place, text in MARKS.items():
        before = min(place, 100)
        if payload(f, begin + place - before, before + len(text)) != bytes(before) + text:
            return False
    return True


class Item:
    """A file's bytes from the first item on, as a file of its own, so that Python's zipfile sees one zip."""

    def __init__(self, f, offset, nbytes):
        self.f, self.offset, self.nbytes, self.at = f, offset, nbytes, 0

    def seekable(self):
        return True

    def seek(self, to, whence=0):
        self.at = to + (0, self.at, self.nbytes)[whence]
        return self.at

    def tell(self):
        return self.at

    def read(self, n=-1):
        left = self.nbytes - self.at
        data = payload(self.f, self.offset + self.at, left if n < 0 else min(n, left))
        self.at += len(data)
        return data


def first_item(f, folder):
    """Of rank 0's file: place and size of the payload, and of the item around it."""
    index = json.loads(read(os.path.join(folder, "index.json")))
    entry = payload(f, index["files"][0]["table"][0] + 96, 96)
    return struct.unpack_from("<QQ", entry, 8) + struct.unpack_from("<QQ", entry, 48)


def check_zip64(t, folder):
    """The item by another reader: sizes that need zip64, and the payload where the table says."""
    with open(os.path.join(folder, "__0_0.distcp"), "rb") as f:
        place, nbytes, item, item_nbytes = first_item(f, folder)
        t.check(nbytes == 2 * ROW and place % 4096 == 0, "the payload's place and size", place, nbytes)
        t.check(marks_are_there(f, place), "the payload holds the right bytes")
        with zipfile.ZipFile(Item(f, item, item_nbytes)) as z:
            info = z.getinfo("archive/data/0")
            t.check(info.file_size == info.compress_size == 2 * ROW, "Python's zipfile sees the size", info)
            local = payload(f, item + info.header_offset, 30)
            name, extra = struct.unpack_from("<HH", local, 26)
            t.check(item + info.header_offset + 30 + name + extra == place, "and the payload at the same place")
            t.check(z.read("archive/version") == b"3\n", "and what comes behind it")


@case
def large(t):
    source, one, three, back = t.path("large.safetensors"), t.path("one"), t.path("three"), t.path("back.safetensors")
    write_large(source)
    t.good("convert", source, one, 1, program=SPARSE)
    check_zip64(t, one)
    good(t, 2, "verify", one)
    t.check("4 GiB" not in good(t, 2, "verify", "--from", "dcp", one).out, "as PyTorch's, its CRC included")
    r = good(t, 2, "cat", one, "large", "--slice", "1:2,%d:" % (ROW - 4), "--raw")
    t.check(r.out == "last", "the last bytes of the last row", r)
    r = good(t, 2, "cat", one, "large", "--slice", "0:1,%d:" % (ROW - 2), "--raw")
    t.check(r.out == "ov", "the last bytes of the first row", r)
    t.good("convert", one, three, 3, program=SPARSE)
    good(t, 2, "verify", "--quick", three)
    t.good("export", three, back, program=SPARSE)
    with open(back, "rb") as f:
        t.check(marks_are_there(f, 8 + struct.unpack("<Q", f.read(8))[0]), "there and back: the right bytes")
    r = good(t, 2, "plan", source, "--ranks", 2, "--json")
    t.check(max(rank["needed_bytes"] for rank in json.loads(r.out)["ranks"]) >= ROW, "plan: the bytes of a rank", r)
    nbytes = disk_nbytes(t.folder)
    t.check(nbytes < 64 << 20, "all that takes %d bytes of disk" % nbytes)


# ---- many of something ----

@case
def ranks(t):
    """More files than a process may have open."""
    model, wide, few = t.path("model.safetensors"), t.path("wide"), t.path("few")
    write_safetensors(
        model, {"a": ("F32", [4001, 3], 4), "b": ("BF16", [7, 5], 2), "c": ("I64", [], 8), "d": ("U8", [2000, 2], 1)})
    few_files = [(resource.RLIMIT_NOFILE, 256)]
    good(t, 8000, "convert", model, wide, "--ranks", 2000, limits=few_files)
    t.check(sum(n.endswith(".distcp") for n in os.listdir(wide)) == 2000, "a file for each rank")
    good(t, 8000, "verify", wide, limits=few_files)
    good(t, 8000, "diff", model, wide, limits=few_files)
    good(t, 8000, "plan", wide, "--ranks", 1500, limits=few_files)
    good(t, 8000, "reshard", wide, few, "--ranks", 3, limits=few_files)
    good(t, 8000, "diff", few, model, limits=few_files)
    good(t, 8000, "export", wide, t.path("back.safetensors"), limits=few_files)
    t.check(read(t.path("back.safetensors"))[-4000:] == read(model)[-4000:], "there and back")


@case
def tensors(t):
    """100,000 of them."""
    n = 100000
    model, out, back = t.path("model.safetensors"), t.path("out"), t.path("back.safetensors")
    write_safetensors(model, {"model.layers.%d.weight" % i: ("F32", [2], 4) for i in range(n)})
    good(t, n, "convert", model, out, "--ranks", 2)
    good(t, 2 * n, "verify", out)
    r = good(t, 2 * n, "ls", out, "--json")
    t.check(len(json.loads(r.out)["tensors"]) == n, "ls lists them all")
    good(t, 2 * n, "plan", out, "--ranks", 3)
    good(t, 2 * n, "export", out, back)
    good(t, 2 * n, "diff", back, model)
    good(t, 2 * n, "verify", "--from", "dcp", "--quick", out)


@case
def names(t):
    """Names of 4 KiB, and of the longest that the format has; folders with the longest name that the file system
    has."""
    model, out, back = t.path("model.safetensors"), t.path("out"), t.path("back")
    long, wide, longest = "a.b" * 1365 + "c", "\u00e9" * 2048, "x" * 65536
    write_safetensors(model, {long: ("F32", [5, 2], 4), wide: ("BF16", [9], 2), longest: ("U8", [4], 1)})
    good(t, 3, "convert", model, out, "--ranks", 2)
    good(t, 3, "verify", out)
    good(t, 3, "verify", "--from", "dcp", out)
    r = good(t, 3, "ls", out, "--json")
    t.check({e["name"] for e in json.loads(r.out)["tensors"]} == {long, wide, longest}, "ls has the names", r.out[:300])
    good(t, 3, "cat", out, long, "--slice", "0:1")
    good(t, 3, "reshard", out, t.path("three"), "--ranks", 3)
    good(t, 3, "export", t.path("three"), back)
    good(t, 3, "diff", back, model)
    write_safetensors(model, {longest + "x": ("U8", [4], 1)})
    t.refused("a longer name", "convert", model, t.path("refused"), "--ranks", 2, saying="at most 65536")
    write_safetensors(model, {"a": ("F32", [5, 2], 4)})
    for n in (255, 214, 180):
        name = t.path("o" * n)
        r = t.run("convert", model, name, "--ranks", 2)
        if r.status == 0:
            t.good("verify", name, what="OUT has a name of %d bytes" % n)
        else:
            t.check(r.status in (2, 4) and len(r.err.splitlines()) <= 2 and "name" in r.err,
                    "OUT has a name of %d bytes: one line" % n, r)
            t.check(not os.path.exists(name), "OUT has a name of %d bytes: nothing is left" % n)
        t.check(n > 180 or r.status == 0, "OUT has a name of %d bytes: done" % n, r)
    t.check(sorted(n for n in os.listdir(t.folder) if n.startswith(".")) == [], "nothing is left", os.listdir(t.folder))


# ---- file systems ----

def everything(t, place):
    """The round through all that writes, at a place: made, replaced, resharded onto itself, exported, cleaned."""
    source, out, back = (
        os.path.join(fixtures(), "tiny-llama-tied"),
        os.path.join(place, "out"),
        os.path.join(place, "back"),
    )
    t.good("convert", source, out, "--ranks", 3)
    t.good("convert", source, out, "--ranks", 2, "--force")
    t.good("reshard", out, out, "--ranks", 3, "--force")
    t.good("verify", out)
    t.good("export", out, back)
    t.good("export", out, back, "--force")
    t.good("export", out, os.path.join(place, "one.safetensors"))
    t.good("diff", source, back)
    t.good("verify", os.path.join(place, "one.safetensors"))
    t.good("clean", out)
    names = sorted(os.listdir(place))
    t.check(names == ["back", "one.safetensors", "out"], "nothing is left beside", names)


def mounted(t, what, command, place, run=everything):
    """run(t, place), with what `command` mounts there."""
    os.makedirs(place, exist_ok=True)
    try:
        r = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise Skip("%s: %s" % (what, e))
    if r.returncode != 0:
        raise Skip("%s cannot be mounted: %s" % (what, r.stderr.strip().splitlines()[-1:]))
    try:
        run(t, place)
    finally:
        subprocess.run(["umount", place], check=True)


@case
def poor_file_system(t):
    """No direct I/O, no reserving of space (sparse.c), on a model whose rows are over the size that is written
    directly."""
    source, out = t.path("model.safetensors"), t.path("out")
    write_safetensors(source, {"a": ("F32", [301, 1001], 4), "b": ("F32", [3], 4)})
    t.good("convert", source, out, 2, program=SPARSE)
    t.good("export", out, t.path("back.safetensors"), program=SPARSE)
    t.good("verify", out)
    t.good("diff", source, out)
    t.good("diff", source, t.path("back.safetensors"))


@case
def tmpfs(t):
    mounted(t, "tmpfs", ["mount", "-t", "tmpfs", "-o", "size=32m", "none", t.path("m")], t.path("m"))


def over_a_lower_layer(t, place):
    """`below` lies in the lower layer: that directory cannot be renamed (EXDEV), only what is new can."""
    below, source = os.path.join(place, "below"), os.path.join(fixtures(), "tiny-llama-tied")
    before = tree(below)
    t.refused(
        "a checkpoint of the lower layer, --force",
        "convert",
        source,
        below,
        "--ranks",
        2,
        "--force",
        status=4,
        naming=below,
        saying="cannot be renamed",
    )
    t.check(
        tree(below) == before and os.listdir(place) == ["below"],
        "a checkpoint of the lower layer, --force: untouched",
        os.listdir(place),
    )
    t.good("reshard", below, os.path.join(place, "out"), "--ranks", 2)
    shutil.rmtree(below)
    shutil.rmtree(os.path.join(place, "out"))
    everything(t, place)


@case
def overlay(t):
    """What containers run on."""
    layers, source = t.path("layers"), os.path.join(fixtures(), "tiny-llama-tied")

    def over(t, layers):
        for name in ("lower", "upper", "work"):
            os.makedirs(os.path.join(layers, name))
        t.good("convert", source, os.path.join(layers, "lower", "below"), "--ranks", 5)
        options = "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work" % (layers, layers, layers)
        if read("/proc/self/uid_map").split()[1] != b"0":
            options += ",userxattr"
        mounted(
            t,
            "overlay",
            ["mount", "-t", "overlay", "-o", options, "none", t.path("m")],
            t.path("m"),
            over_a_lower_layer,
        )

    mounted(t, "tmpfs for the layers", ["mount", "-t", "tmpfs", "-o", "size=32m", "none", layers], layers, over)


@case
def fuse(t):
    """Files that are removed while they are open get another name there."""
    os.makedirs(t.path("real"))
    mounted(t, "FUSE (bindfs)", ["bindfs", "--no-allow-other", t.path("real"), t.path("m")], t.path("m"))


# ---- little memory ----

def small_memory(t, name, run):
    """run(*args, nbytes=…): under a limit. What fits is done; what does not ends with one line, and leaves nothing."""
    model, out = t.path("model.safetensors"), t.path("out")
    write_safetensors(model, {"t%d" % i: ("F32", [4096, 1024], 4) for i in range(6)})
    done = []
    for nbytes in (1 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20, 48 << 20, 96 << 20, 512 << 20):
        r = run("convert", model, out, "--ranks", "2", "--threads", "2", "--memory", "64MiB", nbytes=nbytes)
        if r.status == 0:
            done.append(nbytes)
            t.good("verify", out, what="%s of %d bytes: the output" % (name, nbytes))
            shutil.rmtree(out)
        else:
            # Below some size not even the program loads; what the loader says is not ours.
            ours = r.err.startswith("fsdpck: ")
            t.check(not ours or (r.status == 4 and len(r.err.splitlines()) <= 2),
                    "%s of %d bytes: exit 4 and one line" % (name, nbytes), r)
            t.check(not os.path.exists(out), "%s of %d bytes: nothing is left" % (name, nbytes))
    left = sorted(os.listdir(t.folder))
    t.check(left == ["model.safetensors"], "%s: nothing is left" % name, left)
    return done


@case
def address_space(t):
    if SANITIZED:
        raise Skip("sanitizers reserve terabytes of addresses")
    done = small_memory(t, "RLIMIT_AS", lambda *args, nbytes: t.run(*args, limits=[(resource.RLIMIT_AS, nbytes)]))
    t.check(512 << 20 in done and 1 << 20 not in done, "RLIMIT_AS: enough is enough", done)


class Cgroup:
    """A memory cgroup of our own, of either version."""

    def __init__(self):
        for top, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            self.path, self.limit = os.path.join(top, "fsdpck-test-%d" % os.getpid()), limit
            try:
                os.mkdir(self.path)
            except OSError as e:
                why = str(e)
                continue
            if os.path.exists(os.path.join(self.path, limit)):
                return
            os.rmdir(self.path)
            why = "%s has no %s" % (self.path, limit)
        raise Skip("no memory cgroup can be made here: " + why)

    def run(self, t, *args, nbytes):
        write(os.path.join(self.path, self.limit), b"%d" % nbytes)
        join = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        return t.run("-c", join, self.path, t.binary, *args, program="/bin/sh")

    def remove(self):
        os.rmdir(self.path)


@case
def cgroup(t):
    """Pages of files count there too: convert must not need its whole output at once. (What does not fit at all is
    killed by the kernel.)"""
    if SANITIZED:
        raise Skip("a sanitizer's shadow memory is not ours to judge")
    group = Cgroup()
    t.move(tempfile.gettempdir())  # what lies in memory anyway would count
    try:
        model, out = t.path("model.safetensors"), t.path("out")
        write_safetensors(model, {"t%d" % i: ("F32", [4096, 1024], 4) for i in range(12)})
        for verb in (
            ["convert", model, out, "--ranks", "2"],
            ["verify", out],
            ["diff", model, out],
            ["export", out, t.path("back")],
        ):
            r = group.run(t, *verb, "--threads", "2", "--memory", "64MiB", nbytes=128 << 20)
            t.check(r.status == 0, "in 128 MiB: %s of 192 MiB" % verb[0], r)
    finally:
        group.remove()


MOUNTS = ("tmpfs", "overlay", "fuse")


def run_case(binary, name):
    t = Tester(binary)
    try:
        CASES[name](t)
    except Skip as why:
        t.finish()
        print("SKIP sizes %s: %s" % (name, why))
        return SKIPPED
    except BaseException:
        t.finish()
        raise
    return t.finish()


def main():
    global SPARSE
    binary, name = os.path.abspath(sys.argv[1]), sys.argv[3]
    SPARSE = os.path.abspath(sys.argv[2])
    if name in MOUNTS and sys.argv[4:] != ["--own-mounts"]:
        for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
            if (
                shutil.which("unshare")
                and subprocess.run([*prefix, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
                == 0
            ):
                return subprocess.run(
                    [*prefix, sys.executable, os.path.abspath(__file__), *sys.argv[1:4], "--own-mounts"]
                ).returncode
        print("SKIP sizes %s: this user may not mount" % name)
        return SKIPPED
    return run_case(binary, name)


if __name__ == "__main__":
    sys.exit(main())
