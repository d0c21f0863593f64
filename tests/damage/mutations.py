#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`verify` reports whatever another verb refuses. Each value in index.json of small checkpoints is changed in turn, and
bytes of .metadata, with all hashes made right; if a verb then refuses, or the two documents differ, `verify` must
report it, in most cases also with --quick. Chunk tables: see lies.py.

usage: mutations.py BINARY HASH128
"""
import os
import shutil
import sys

from forge import Forgery, Hasher
from harness import SANITIZED, fixtures, read, run_checks, write, write_safetensors

# Values that mean nothing to a reader: the writer's name and time, and the name of a mesh's dimension.
FREE = {("writer",), ("created",), ("meshes", 0, "dims", 0)}
OTHER_DTYPE = {"float32": "int32", "bfloat16": "float16", "int64": "uint64"}


def leaves(value, path=()):
    """The way to every value that is no list or object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None or not value:
        yield path
        return
    for k, v in items:
        yield from leaves(v, (*path, k))


def others(path, value):
    """Values to put in a value's place: near ones, that no cap refuses."""
    if path[-1] == "dtype":
        yield OTHER_DTYPE.get(value, "uint8")
    elif path[0] == "tensors" and path[-2] == "placements":
        yield "replicate" if value != "replicate" else "shard(0)"
    elif isinstance(value, int):
        yield value + 1
        if value:
            yield value - 1
    elif isinstance(value, str) and len(value) == 32:
        yield value[:-1] + ("0" if value[-1] != "0" else "1")
    elif isinstance(value, str) and path[-1] == "save_id":
        yield value[:-1] + ("0" if value[-1] != "0" else "1")
    elif isinstance(value, str):
        yield value + "x"
    else:
        yield 1


def at(document, path):
    for k in path:
        document = document[k]
    return document


class Mutations:
    def __init__(self, t, hasher):
        self.t, self.hasher, self.nchanges = t, hasher, 0
        write(t.path("assets", "config.json"), b'{"hidden_size": 4}')
        write_safetensors(
            t.path("plain.safetensors"),
            {"a": ("F32", [8, 4], 4), "b": ("BF16", [3], 2), "s": ("I64", [], 8), "z": ("F32", [0, 2], 4)},
        )
        t.good(
            "convert",
            t.path("plain.safetensors"),
            t.path("plain"),
            "--ranks",
            2,
            "--assets",
            t.path("assets"),
            "--alias",
            "tied=a",
        )
        t.good(
            "convert",
            t.path("plain.safetensors"),
            t.path("columns"),
            "--mesh",
            "dp=1,tp=2",
            "--placement",
            "a=shard(1)@tp",
            "--exclude",
            "s,z",
        )
        t.good("convert", os.path.join(fixtures(), "dcp", "torch-2.15", "ckpt"), t.path("values"), "--ranks", 2)
        t.good("convert", t.path("plain.safetensors"), t.path("compressed"), "--ranks", 2, "--compress", "--exclude",
               "z")

    def refuses(self, folder):
        """Whether a verb that reads the checkpoint refuses it."""
        out, tensor = self.t.path("out"), {"values": "turned"}.get(self.template, "a")
        verbs = [["convert", folder, out, "--ranks", "3"], ["diff", folder, folder], ["cat", folder, tensor]]
        if self.template != "values":
            verbs.append(["export", folder, out])
        if os.path.exists(os.path.join(folder, ".metadata")):
            verbs.append(["convert", folder, out, "--ranks", "3", "--from", "dcp"])
        said = []
        for verb in verbs:
            r = self.t.run(*verb)
            self.t.check(r.status in (0, 1, 2, 3), "%s ends as it should" % verb[0], r)
            if r.status > 1:
                said.append("%s: %s" % (verb[0], r.err.strip()))
            shutil.rmtree(out, ignore_errors=True)
        return said

    def judge(self, what, change, must=False, quick=True):
        """must: verify has to report it whether a verb refuses or not."""
        f = Forgery(self.t.fresh(self.t.path(self.template)), self.hasher)
        change(f)
        f.seal()
        full, said = self.t.run("verify", f.folder), self.refuses(f.folder)
        for r in (full, self.t.run("verify", "--quick", f.folder)) if quick else (full,):
            self.t.check(r.status in (1, 3) or (r.status == 0 and not said and not must),
                         "%s, %s: verify reports what a verb refuses" % (self.template, what), said, r)

    def left_out(self):
        """Under a sanitizer, two changes of three."""
        self.nchanges += 1
        return SANITIZED and self.nchanges % 3 > 0

    def all_of_index(self):
        index = Forgery(self.t.fresh(self.t.path(self.template)), self.hasher).index
        for path in leaves(index):
            if path in FREE or path[0] == "state":
                continue
            for value in others(path, at(index, path)):
                if self.left_out():
                    continue

                def late(x, path=path, value=value):
                    at(x, path[:-1])[path[-1]] = value

                means = (
                    path[0] == "tensors" and path[-1] != "content" and "placements" not in path or path[0] == "items"
                )
                # Placements of an empty tensor, or over one rank, may be any. Without .metadata, another name, path or
                # dtype of the same size is just another checkpoint.
                self.judge(
                    "%s = %r" % (path, value),
                    lambda f: f.late.append(late),
                    must=means and self.template != "compressed",
                    quick=not (
                        path[-1] in ("hash", "content")
                        and (path[0] in ("assets", "metadata") or self.template == "columns")
                    ),
                )

    def tensors_of_index(self):
        def drop(f):
            f.late.append(lambda x: x["tensors"].pop("b"))
        def rename(f):
            f.late.append(lambda x: x.update(tensors={("c" if k == "b" else k): v for k, v in x["tensors"].items()}))
        def path(f):
            f.late.append(lambda x: x["tensors"]["b"].update(path=["b", "c"]))
        def untie(f):
            f.late.append(lambda x: x["tensors"]["tied"].update(alias_of="b"))
        def contents(f):
            for table in f.tables:
                for e in table.entries:
                    e.content = bytes([e.content[0] ^ 1]) + e.content[1:]
            def late(x):
                for t in x["tensors"].values():
                    if "content" in t and t["content"] != "0" * 32:
                        t["content"] = t["content"][:-1] + ("0" if t["content"][-1] != "0" else "1")
            f.late.append(late)
        for name, change in (
            ("a tensor less", drop),
            ("another name", rename),
            ("another path", path),
            ("tied to another", untie),
        ):
            self.judge(name, change, must=True)
        self.judge("content ids that table and index agree on", contents, must=True, quick=False)

    def all_of_metadata(self):
        """A byte of .metadata after another, its hash in the index made right: another document, or none."""
        data = read(self.t.path("plain", ".metadata"))
        for i in range(0, len(data), 17):
            if self.left_out():
                continue
            changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1:]
            def change(f):
                write(os.path.join(f.folder, ".metadata"), changed)
                f.late.append(lambda x: x["metadata"].update(hash=self.hasher(changed).hex()))
            f = Forgery(self.t.fresh(self.t.path("plain")), self.hasher)
            change(f)
            f.seal()
            r, out = self.t.run("verify", f.folder), self.t.path("out")
            said = self.t.run("convert", f.folder, out, "--ranks", "2", "--from", "dcp")
            differs = said.status > 1 or self.t.run("diff", out, self.t.path("plain")).status != 0
            shutil.rmtree(out, ignore_errors=True)
            self.t.check(r.status == 1 or (r.status == 0 and not differs),
                         "byte %d of .metadata: verify reports what makes a difference" % i, said, r)


def check_mutations(t):
    with Hasher(sys.argv[2]) as hasher:
        m = Mutations(t, hasher)
        for m.template in "plain", "columns", "values", "compressed":
            m.judge("nothing", lambda f: None)
            t.check(t.run("verify", t.path("damaged")).status == 0, "the forger's own work (%s)" % m.template)
            m.all_of_index()
        m.template = "plain"
        m.tensors_of_index()
        m.all_of_metadata()


if __name__ == "__main__":
    sys.exit(run_checks(check_mutations))
