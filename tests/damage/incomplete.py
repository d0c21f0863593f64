#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of which a part is missing, and folders that hold checkpoints: what is there is named, and never taken
for something else.

usage: incomplete.py BINARY
"""
import json
import os
import re
import shutil
import sys

from harness import fixtures, read, run_checks, tree, write

TINY = os.path.join(fixtures(), "tiny-llama-tied")
DCP = os.path.join(fixtures(), "dcp", "torch-2.15", "ckpt")


def verbs(t, source):
    out = t.path("out")
    return [["convert", source, out, "--ranks", "2"], ["reshard", source, out, "--ranks", "2"], ["export", source, out],
            ["ls", source], ["cat", source, "model.norm.weight"], ["diff", source, source],
            ["plan", source, "--ranks", "2"]]


def refused_everywhere(t, what, source, saying):
    for verb in verbs(t, source):
        t.refused("%s: %s" % (what, verb[0]), *verb, saying=saying)
        t.check(not os.path.exists(t.path("out")), "%s: %s leaves nothing" % (what, verb[0]))
    for quick in [], ["--quick"]:
        r = t.run("verify", source, *quick)
        t.check(r.status in (1, 3) and saying in r.out + r.err, "%s: verify says so" % what, r)


def check_headless(t):
    """index.json is the commit record: without it, shards of ours are no checkpoint, whatever else is there."""
    save_id = re.compile("save [0-9a-f]{8}-")
    for options in [], ["--compress"], ["--dcp", "never"]:
        good = t.path("good")
        shutil.rmtree(good, ignore_errors=True)
        t.good("convert", TINY, good, "--ranks", 3, *options)
        own = json.loads(read(os.path.join(good, "index.json")))["save_id"]
        at = t.fresh(good, "headless")
        os.unlink(os.path.join(at, "index.json"))
        refused_everywhere(t, "no index.json %s" % options, at, own)
        shutil.copy(os.path.join(TINY, "model-00001-of-00003.safetensors"), at)
        refused_everywhere(t, "no index.json, but safetensors %s" % options, at, own)
        os.unlink(os.path.join(at, "model-00001-of-00003.safetensors"))
        if not options:
            out = t.path("insisted")
            r = t.good("convert", at, out, "--ranks", 2, "--from", "dcp")
            t.check(save_id.search(r.err) and "hashes" in r.err, "--from dcp says that nothing is verified", r)
            t.good("diff", out, good)
            shutil.rmtree(out)
        write(os.path.join(at, "index.json"), b'{"metadata": {}, "weight_map": {}}\n' * 3)
        refused_everywhere(t, "an index.json of another kind %s" % options, at, "no index of fsdpck")
        write(os.path.join(at, "index.json"), b"")
        refused_everywhere(t, "an empty index.json %s" % options, at, "index")


def check_mixed(t):
    """Shards of ours among PyTorch's: only those that .metadata names count."""
    t.good("convert", DCP, t.path("ours"), "--ranks", 3)
    at = t.fresh(t.path("ours"), "mixed")
    os.unlink(os.path.join(at, "index.json"))
    data = read(os.path.join(at, "__0_0.distcp"))
    write(os.path.join(at, "__0_0.distcp"), data[:data.index(b"fsdpcktb")])  # as another writer would leave it
    t.refused("one shard of ours is enough", "ls", at, saying="__1_0.distcp")
    for rank in 1, 2:
        data = read(os.path.join(at, "__%d_0.distcp" % rank))
        write(os.path.join(at, "__%d_0.distcp" % rank), data[:data.index(b"fsdpcktb")])
    t.good("diff", at, DCP, what="without our tables it is PyTorch's")
    at = t.fresh(DCP, "mixed")
    shutil.copy(os.path.join(t.path("ours"), "__2_0.distcp"), os.path.join(at, "__9_0.distcp"))
    t.good("diff", at, DCP, what="a stray shard of ours that .metadata does not name")
    write(os.path.join(at, "index.json"), b'{"what": "notes of somebody about this checkpoint, long enough"}')
    r = t.refused("somebody's index.json", "ls", at, saying="no index of fsdpck")
    t.check("--from" in r.err, "the way out is named", r)
    t.good("ls", at, "--from", "dcp")


def check_folders(t):
    run = t.path("runs", "first")
    for step in 90, 100:
        t.good("convert", TINY, os.path.join(run, "checkpoints", "step-%06d" % step), "--ranks", 2)
    os.makedirs(os.path.join(run, "checkpoints", "step-000200.tmp-0"))
    os.makedirs(os.path.join(run, "checkpoints", "step-000300"))
    newest = os.path.join(run, "checkpoints", "step-000100")
    for folder in run, os.path.join(run, "checkpoints"):
        for verb in [*verbs(t, folder), ["verify", folder]]:
            t.refused("%s of a folder of checkpoints" % verb[0], *verb, saying="the newest is '%s'" % newest)
    shutil.copytree(DCP, t.path("torch", "iter_0000007"))
    t.refused("a folder of one", "ls", t.path("torch"), saying="give '%s'" % t.path("torch", "iter_0000007"))
    os.makedirs(t.path("empty", "checkpoints"))
    t.refused("a folder of none", "ls", t.path("empty"), saying="a source is a safetensors")


def check_counts(t):
    """What verify says that it read, it read; and it claims no bytes that it could not read."""
    for options in [], ["--compress"]:
        at = t.path("counted")
        shutil.rmtree(at, ignore_errors=True)
        t.good("convert", TINY, at, "--ranks", 3, *options)
        size = sum(map(len, tree(at).values()))
        facts = json.loads(t.good("verify", at, "--json").out)
        t.check(facts["read_bytes"] <= size and facts["hashed"] and facts["unread_files"] == 0,
                "verify reads no more than there is %s" % options, facts, size)
        os.unlink(os.path.join(at, "__1_0.distcp"))
        r = t.run("verify", at)
        t.check(r.status == 1 and "every byte" not in r.out and "1 file could not be read to the end" in r.out,
                "a missing file is not called checked %s" % options, r)
        t.check(not json.loads(t.run("verify", at, "--json").out)["hashed"], "nor as data")


if __name__ == "__main__":
    sys.exit(run_checks(check_headless, check_mixed, check_folders, check_counts))
