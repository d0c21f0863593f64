#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The real binary, killed by strace as it enters each system call that changes something: what stands under the
output's name is wholly the old one or wholly the new one; `clean` removes the rest, or the next attempt does. (Every
operation of every verb, within one process: test_killed.c.)

usage: kill_binary.py BINARY
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "damage"))
from harness import SANITIZED, run_checks, write, write_safetensors

SKIPPED = 77
CALLS = ("openat", "close", "mkdir", "ftruncate", "fallocate", "pwrite64", "fsync", "fcntl", "rename", "renameat2",
         "unlink", "rmdir")


class Killer:
    def __init__(self, t):
        self.t = t
        for name, seed in (("old", 1), ("new", 2)):
            write_safetensors(t.path(name, "model.safetensors"), {"a": ("F32", [64, 300], 4), "b": ("BF16", [5], 2)},
                              seed)
            write(t.path(name, "config.json"), b'{"who": "%s"}' % name.encode())
            t.good("convert", t.path(name), t.path(name + ".checkpoint"), "--ranks", 2)
            t.good("export", t.path(name + ".checkpoint"), t.path(name + ".export"))
        self.room = t.path("room")
        self.out = os.path.join(self.room, "out")

    def reset(self, old):
        shutil.rmtree(self.room, ignore_errors=True)
        os.mkdir(self.room)
        if old:
            shutil.copytree(old, self.out)

    def state(self):
        if not os.path.exists(self.out):
            return "none"
        for name in ("old", "new"):
            if (
                self.t.run("diff", self.out, self.t.path(name)).status == 0
                and self.t.run("verify", self.out).status == 0
            ):
                return name
        return "broken"

    def killed(self, call, n, command):
        """Whether it came to that."""
        trace = [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=" + call,
            "-e",
            "inject=%s:signal=SIGKILL:when=%d" % (call, n),
        ]
        r = subprocess.run(
            [*trace, self.t.binary, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.t.check(
            r.returncode in (0, -9, 137), "%s, killed at %s %d" % (command[0], call, n), r.returncode, r.stderr
        )
        return r.returncode != 0

    def judge(self, what, states, command, clean):
        t, before = self.t, self.state()
        t.check(before in states, "%s: %s" % (what, before), os.listdir(self.room))
        if clean:
            t.good("clean", self.out, what="%s: clean" % what)
            t.check(self.state() == before and set(os.listdir(self.room)) <= {"out"},
                    "%s: clean leaves what stood, and nothing else" % what, os.listdir(self.room))
        else:
            t.good(*command, *([] if "--force" in command else ["--force"]), what="%s: the next attempt" % what)
            t.check(self.state() == "new", "%s: the next attempt is there" % what)

    def sweep(self, command, old):
        total = 0
        for call in CALLS:
            n = 1
            while True:
                self.reset(old)
                if not self.killed(call, n, command):
                    break
                self.judge("%s, killed at %s %d" % (" ".join(command[::2]), call, n), ("old", "new") if old else
                           ("none", "new"), command, n % 2)
                total += 1
                n += 1
        self.t.check(total > 20, "%s was killed %d times" % (command[0], total))


def cannot():
    """Why this cannot be tried here, or None."""
    if SANITIZED:
        return "sanitizers and strace do not go together"
    if not shutil.which("strace"):
        return "strace is not there"
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        return "strace may not trace"
    return None


def sweep_verbs(t):
    k = Killer(t)
    one = ["--threads", "1", "-q"]  # strace counts in each thread
    k.sweep(["convert", t.path("new"), k.out, "--ranks", "2", *one], None)
    k.sweep(["convert", t.path("new"), k.out, "--ranks", "2", *one, "--force"], t.path("old.checkpoint"))
    k.sweep(["export", t.path("new.checkpoint"), k.out, *one, "--force"], t.path("old.export"))


def main():
    if cannot():
        print("SKIP the binary killed at each system call: " + cannot())
        return SKIPPED
    return run_checks(sweep_verbs)


if __name__ == "__main__":
    sys.exit(main())
