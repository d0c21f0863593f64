#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that name a frozen base: it is found from wherever the checkpoint was written to, missed in one sentence,
refused where it is another; and what a forged reference meets.

usage: references.py BINARY HASH128
"""
import json
import os
import shutil
import sys

from forge import Forgery, Hasher
from harness import fixtures, flip, read, run_checks, tree


class References:
    """A folder with run/ckpt and its base beside it, as on a user's disk."""

    def __init__(self, t, hasher):
        self.t, self.hasher = t, hasher
        self.base, self.ckpt = t.path("models", "tiny-llama-tied"), t.path("models", "run")
        self.reset()

    def reset(self):
        shutil.rmtree(self.t.path("models"), ignore_errors=True)
        shutil.copytree(os.path.join(fixtures(), "tiny-llama-tied"), self.base)
        shutil.copytree(os.path.join(fixtures(), "lora-run"), self.ckpt)

    def way(self, folder):
        return json.loads(read(os.path.join(folder, "index.json")))["base"]["path"]

    def merged(self, ckpt, *base):
        out = self.t.path("merged")
        shutil.rmtree(out, ignore_errors=True)
        self.t.good("merge-lora", *base, ckpt, out)
        return tree(out)


def found(r):
    """With BASE and without, the same; and the same from everywhere, sharded and compressed in any way."""
    t = r.t
    truth = r.merged(r.ckpt, r.base)
    t.check(r.merged(r.ckpt) == truth, "merge-lora finds the base")
    t.good("verify", r.ckpt)
    os.makedirs(t.path("far", "away"))
    os.symlink(t.path("far", "away"), t.path("link"))
    places = (
        (t.path("models", "r1"), "../tiny-llama-tied", "--ranks", 1),
        (t.path("far", "away", "r3"), "../../../models/tiny-llama-tied", "--ranks", 3),
        (t.path("link", "small"), "../../../models/tiny-llama-tied", "--ranks", 2, "--compress"),
        (r.base + "/inside", "..", "--ranks", 2),
    )
    for out, way, *options in places:
        t.good("reshard", r.ckpt, out, *options)
        t.check(r.way(out) == way, "%s: the way is %s, wanted %s" % (out, r.way(out), way))
        t.good("verify", out)
        t.check(r.merged(out) == truth, "merge-lora finds the base of %s" % out)
    again = t.path("models", "again")
    t.good("reshard", t.path("far", "away", "r3"), again, "--ranks", 2)
    t.check(r.way(again) == "../tiny-llama-tied", "the way back", r.way(again))
    moved = t.path("elsewhere")
    shutil.copytree(t.path("models"), moved, symlinks=True)
    shutil.rmtree(t.path("models"))
    t.good("verify", os.path.join(moved, "run"), what="both moved together")
    shutil.rmtree(moved)
    shutil.rmtree(t.path("far"))
    os.unlink(t.path("link"))
    r.reset()
    t.good("convert", r.base, t.path("sharded"), "--ranks", 2)
    shutil.rmtree(r.base)
    os.rename(t.path("sharded"), r.base)
    t.good("verify", r.ckpt, what="a base that was sharded is the same base")
    r.reset()


def missing(r):
    t = r.t
    os.rename(r.base, r.base + "-away")
    say = "/models/tiny-llama-tied: is not there: the frozen base"
    problems = t.problems(r.ckpt)
    t.check(len(problems) == 1 and say in problems[0]["what"], "verify says what is missing", problems)
    t.refused("merge-lora without a base", "merge-lora", r.ckpt, t.path("no"), saying=say)
    t.check(not os.path.exists(t.path("no")), "merge-lora leaves nothing")
    ls = t.good("ls", r.ckpt)
    t.check("it is not there" in ls.out, "ls says so", ls)
    for verb in (
        ["reshard", r.ckpt, t.path("o"), "--ranks", "1"],
        ["export-lora", r.ckpt, t.path("o")],
        ["export", r.ckpt, t.path("o.safetensors")],
    ):
        done = t.good(*verb)
        t.check(say in done.err, "%s says so and goes on" % verb[0], done)
        shutil.rmtree(t.path("o"), ignore_errors=True)
    t.good("merge-lora", r.base + "-away", r.ckpt, t.path("o"), what="merge-lora with the base that was given")
    shutil.rmtree(t.path("o"))
    r.reset()


def weights(r):
    return next(os.path.join(r.base, n) for n in sorted(os.listdir(r.base)) if n.endswith(".safetensors"))


def changed(r):
    t = r.t
    flip(weights(r), os.path.getsize(weights(r)) - 1)
    problems = t.problems(r.ckpt)
    t.check(
        len(problems) == 1 and "other values" in problems[0]["what"] and problems[0].get("tensor"),
        "verify names the tensor",
        problems,
    )
    t.refused(
        "merge-lora with a changed base", "merge-lora", r.ckpt, t.path("no"), saying="other values", naming="tensor '"
    )
    t.refused("merge-lora with that base given", "merge-lora", r.base, r.ckpt, t.path("no"), saying="other values")
    for what, say, *options in (
        ("another dtype", "another dtype", "--dtype", "fp32"),
        ("a tensor less", "lacks it", "--exclude", "*q_proj*"),
    ):
        r.reset()
        t.good("convert", r.base, t.path("sharded"), "--ranks", 2, *options)
        shutil.rmtree(r.base)
        os.rename(t.path("sharded"), r.base)
        for verb in (
            ["merge-lora", r.ckpt, t.path("no")],
            ["reshard", r.ckpt, t.path("no"), "--ranks", "1"],
            ["export-lora", r.ckpt, t.path("no")],
            ["export", r.ckpt, t.path("no")],
        ):
            t.refused("%s of the base: %s" % (what, verb[0]), *verb, saying=say)
            t.check(not os.path.exists(t.path("no")), "%s: %s leaves nothing" % (what, verb[0]))
    r.reset()
    shutil.rmtree(r.base)
    os.mkfifo(r.base)
    t.refused("a pipe for a base", "merge-lora", r.ckpt, t.path("no"))
    r.reset()


FORGED = [  # what, key of base or None, value, what the refusal says
    ("an absolute way", "path", "/etc", "not relative"),
    ("a way down and up", "path", "a/../b", "not relative"),
    ("an empty way", "path", "", "not relative"),
    ("a way with a newline", "path", "../a\nb", "not relative"),
    ("a way without end", "path", "../" * 2000 + "a", "not relative"),
    ("no way", "path", None, "wants path and tensors"),
    ("a way that is a number", "path", 3, "string"),
    ("no tensors", "tensors", None, "wants path and tensors"),
    ("a list of tensors", "tensors", [], ""),
    (
        "a tensor without content",
        "tensors",
        {"x": {"dtype": "float32", "shape": [1]}},
        "wants dtype, shape and content",
    ),
    (
        "a content that is none",
        "tensors",
        {"x": {"dtype": "float32", "shape": [1], "content": "me"}},
        "32 lower-case hex",
    ),
    ("an unknown dtype", "tensors", {"x": {"dtype": "float3", "shape": [1], "content": "0" * 32}}, "float3"),
    (
        "a shape beyond 63 bits",
        "tensors",
        {"x": {"dtype": "float32", "shape": [1 << 63], "content": "0" * 32}},
        "63 bits",
    ),
    (
        "a shape of 65 dimensions",
        "tensors",
        {"x": {"dtype": "float32", "shape": [1] * 65, "content": "0" * 32}},
        "numbers in a list",
    ),
]


def forged(r):
    t = r.t
    for what, key, value, say in FORGED:
        f = Forgery(t.fresh(r.ckpt), r.hasher)
        f.index["base"].pop(key)
        if value is not None:
            f.index["base"][key] = value
        f.seal()
        for verb in (
            ["merge-lora", f.folder, t.path("no")],
            ["reshard", f.folder, t.path("no"), "--ranks", "1"],
            ["ls", f.folder],
        ):
            t.refused("%s: %s" % (what, verb[0]), *verb, saying=say, naming="index.json")
    f = Forgery(t.fresh(r.ckpt), r.hasher)
    f.texts.append(lambda s: s.replace('"model.norm.weight": {', '"model.norm.weight": {}, "model.norm.weight": {', 1))
    f.seal()
    t.refused("a tensor of the base twice", "ls", f.folder)
    f = Forgery(t.fresh(r.ckpt), r.hasher)
    f.index["base"].update(path=".", tensors={})
    f.seal()
    t.good("ls", f.folder, what="a checkpoint that is its own base: no loop")
    t.run("verify", f.folder)


def damaged(r):
    """Any byte of a by-reference checkpoint; the base is there and right."""
    t = r.t
    for name in sorted(os.listdir(r.ckpt)):
        path = os.path.join(r.ckpt, name)
        for at in range(0, os.path.getsize(path) if os.path.isfile(path) else 0, 997):
            bad = t.fresh(r.ckpt, "models/damaged")
            flip(os.path.join(bad, name), at)
            problems = t.problems(bad)
            t.check([p["file"] for p in problems] == [name], "byte %d of %s: verify names the file" % (at, name),
                    problems)
    shutil.rmtree(t.path("models", "damaged"))


def check_references(t):
    with Hasher(sys.argv[2]) as hasher:
        r = References(t, hasher)
        for test in (found, missing, changed, forged, damaged):
            test(r)


if __name__ == "__main__":
    sys.exit(run_checks(check_references))
