#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets of a build with -Dfuzz=true for so many seconds each, as many at a time as there are
processors. Each starts from its corpus in the tree and goes on from what earlier runs of this build found, in
BUILD/fuzz-work; the tree is changed by --keep only. Standard library only.

usage: run.py BUILD SECONDS [--keep] [--jobs N] [TARGET...]
"""
import argparse
import concurrent.futures
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
# An input is at most a few hundred KiB: who asks for more than this at once believes a number in it. Nor may one take
# long.
LIMITS = ("-malloc_limit_mb=64", "-rss_limit_mb=2048", "-timeout=10")
ENVIRONMENT = dict(os.environ, ASAN_OPTIONS="allocator_may_return_null=1:detect_leaks=1",
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


def targets():
    """Inputs that people named, because they showed a bug, lie in corpus/TARGET; those that fuzzers found, in
    corpus/TARGET.tar."""
    return sorted({p.stem for p in CORPUS.iterdir()})


def write_archive(path, inputs):
    """A tar of {name: bytes} whose bytes depend on them alone, in place of the one at path."""
    with tarfile.open(path.with_suffix(".tmp"), "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(inputs):
            member = tarfile.TarInfo(name)
            member.size = len(inputs[name])
            tar.addfile(member, io.BytesIO(inputs[name]))
    path.with_suffix(".tmp").replace(path)


class Fuzzer:
    def __init__(self, build, target):
        self.name, self.program = target, build / "tests" / "fuzz" / ("fuzz_" + target)
        self.named, self.archive, self.work = CORPUS / target, CORPUS / (target + ".tar"), build / "fuzz-work" / target
        self.scratch, self.log = self.work / "corpus", self.work / "log"

    def unpack(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        if self.named.is_dir():
            shutil.copytree(self.named, folder, dirs_exist_ok=True)
        if self.archive.exists():
            with tarfile.open(self.archive) as tar:
                for member in tar:
                    (folder / pathlib.PurePath(member.name).name).write_bytes(tar.extractfile(member).read())

    def fuzz(self, seconds):
        """The exit code, what it said, and the input that it wrote down, if any."""
        with open(self.log, "wb") as log:
            code = subprocess.run([
                self.program,
                "-max_total_time=%d" % seconds, "-print_final_stats=1",
                "-artifact_prefix=%s/" % self.work, *LIMITS, self.scratch
            ], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT).returncode
        text = self.log.read_text(errors="replace")
        return code, text, (re.findall(r"Test unit written to (\S+)", text) or [None])[-1]

    def is_the_machines(self, artifact):
        """Ten seconds pass on the clock also for who is not let run: an input that alone takes no second was not slow.
        It is removed."""
        if not artifact or not pathlib.Path(artifact).name.startswith("timeout-"):
            return False
        started = os.times()
        again = subprocess.run([self.program, *LIMITS, artifact], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        ended = os.times()
        spent = ended.children_user + ended.children_system - started.children_user - started.children_system
        if again.returncode or spent > 5:  # other targets' ends may be in it
            return False
        os.unlink(artifact)
        return True

    def run(self, seconds):
        """True when nothing was found. The last lines of a target that found something lead to its input."""
        self.unpack(self.scratch)
        end, inputs = time.monotonic() + seconds, 0
        while True:
            code, text, artifact = self.fuzz(max(1, round(end - time.monotonic())))
            inputs += int((re.findall(r"^stat::number_of_executed_units: (\d+)", text, re.M) or ["0"])[-1])
            if code == 0:
                print("%s: %s inputs, nothing found" % (self.name, inputs or "no"), flush=True)
                return inputs > 0
            if not self.is_the_machines(artifact):
                break
        print(
            "%s: FOUND %s\n  the whole report is in %s; its last lines:\n%s"
            % (
                self.name,
                artifact or "something (exit %d)" % code,
                self.log,
                "\n".join("    " + line for line in text.splitlines()[-25:]),
            ),
            flush=True,
        )
        return False

    def keep(self):
        """The corpus in the tree becomes the fewest inputs that reach every edge that it or the run reached, and those
        with names."""
        tree = self.work / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        self.unpack(tree)
        self.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.work) as merged, open(self.work / "merge-log", "wb") as log:
            # Without counters: how often an edge is taken would multiply the inputs, and adds little to a replay.
            subprocess.run([
                self.program, "-merge=1", "-set_cover_merge=1", "-use_counters=0", *LIMITS, merged, tree, self.scratch
            ], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT, check=True)
            kept = {p.name: p.read_bytes() for p in pathlib.Path(merged).iterdir()}
        assert kept
        named = {p.read_bytes() for p in self.named.iterdir()} if self.named.is_dir() else set()
        found = {name: data for name, data in kept.items() if data not in named}
        if found:
            write_archive(self.archive, found)
        else:
            self.archive.unlink(missing_ok=True)
        print("%s: the corpus is now %d inputs, %d of them named" % (self.name, len(named) + len(found), len(named)),
              flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build", type=pathlib.Path)
    ap.add_argument("seconds", type=int, help="for each target; 0: none, to --keep what was found before")
    ap.add_argument("--keep", action="store_true",
                    help="then merge what was found into tests/fuzz/corpus, as few inputs as reach every edge")
    ap.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)),
                    help="targets at a time (default: the processors)")
    ap.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    a = ap.parse_intermixed_args()
    build = a.build.resolve()
    known = targets()
    unknown = [t for t in a.targets if t not in known]
    if unknown or a.seconds < (0 if a.keep else 1) or a.jobs < 1:
        ap.error("'%s' is none of: %s" % (unknown[0], " ".join(known)) if unknown else "SECONDS and N are positive")
    fuzzers = [Fuzzer(build, t) for t in a.targets or known]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        passed = list(pool.map(lambda f: not a.seconds or f.run(a.seconds), fuzzers))
        if a.keep and all(passed):
            list(pool.map(Fuzzer.keep, fuzzers))
    if a.keep and not all(passed):
        print("nothing is kept: mend what was found first")
    print("%d passed, %d failed" % (sum(passed), len(passed) - sum(passed)))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
