#!/usr/bin/env python3
"""Times fsdpck against what else does the same job, and prints a table of ratios.

usage: run.py BUILD_DIR MODEL.safetensors WORKDIR [--runs 5] [--ranks 8] [--python PYTHON_WITH_TORCH] [--only ROW[,ROW…]]

Every row runs its contenders in turn, `--runs` times, and takes medians: a noisy machine hits all alike. Cold means that the files were dropped from
the page cache before the run. What writes is also synced, and what was written is removed before the next run. The ratio is the peer's time over
fsdpck's: above 1, fsdpck is faster. MODEL may be what make_model.py wrote, --lora what make_adapter.py --checkpoint wrote, --merge a model folder
and an adapter for it; WORKDIR should lie on the disk that matters, with room for three
models. With --python, PyTorch and safetensors take part: the whole process, and the work without imports and process start."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def files_of(path):
    return [os.path.join(d, f) for d, _, names in os.walk(path) for f in names] if os.path.isdir(path) else [path] if os.path.exists(path) else []


def evict(path):
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(path):
    for name in files_of(path):
        with open(name, "rb", buffering=0) as f:
            while f.read(1 << 24):
                pass


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)
    os.sync()


class Contender:
    """One way to do a job: a command, or a list of them that run one after the other."""

    def __init__(self, name, *commands, reports=False):
        self.name, self.commands, self.reports = name, commands, reports
        self.seconds, self.work, self.peak = [], [], 0

    def run(self):
        start = time.monotonic()
        for command in self.commands:
            p = subprocess.Popen(command, stdout=subprocess.PIPE if self.reports else subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            text = p.stdout.read() if self.reports else ""
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = status
            if status:
                sys.exit(f"{' '.join(command)}: ended with status {status}")
            self.peak = max(self.peak, usage.ru_maxrss * 1024)
        self.seconds.append(time.monotonic() - start)
        if self.reports:
            said = json.loads(text)
            self.work.append(said["work_s"])
            self.peak = max(self.peak, said.get("peak_bytes", 0))


class Bench:
    def __init__(self, a):
        self.a = a
        self.tool = os.path.join(a.build, "src", "tools", "fsdpck")
        self.slices = os.path.join(a.build, "bench", "slices")
        self.out = os.path.join(a.workdir, "fsdpck-bench-out")
        self.dir = os.path.join(a.workdir, "fsdpck-bench-model")
        self.nbytes = os.path.getsize(a.model)

    def peer(self, job, model, *more, name="torch"):
        return [] if not self.a.python else [
            Contender(name, [self.a.python, os.path.join(HERE, "peers.py"), job, model, self.out, "--ranks", str(self.a.ranks), *more], reports=True)]

    def row(self, name, source, ours, peers):
        if self.a.only and name.split(",")[0].split(" ")[0] not in self.a.only:
            return
        for state in ("cold", "warm"):
            all_ = [Contender(c.name, *c.commands, reports=c.reports) for c in [ours, *peers]]
            for _ in range(self.a.runs):
                for c in all_:
                    remove(self.out)
                    (evict if state == "cold" else warm)(source)
                    c.run()
            remove(self.out)
            self.show(name, state, all_)

    def show(self, name, state, all_):
        mine = all_[0]
        base, base_work = statistics.median(mine.seconds), statistics.median(mine.work or mine.seconds)
        print(f"{name}, {state}: {base:.3f} s, {self.nbytes / base / 1e9:.2f} GB/s of model, peak {mine.peak >> 20} MiB")
        for c in all_[1:]:
            s = statistics.median(c.seconds)
            work = f", without imports {statistics.median(c.work):.3f} s: {statistics.median(c.work) / base_work:5.2f}" if c.work else ""
            print(f"    {c.name:28} {s:8.3f} s: {s / base:6.2f}{work}   peak {c.peak >> 20} MiB", flush=True)

    def ours(self, *args):
        return Contender("fsdpck", [self.tool, *args])

    def rank(self, model, how):
        return Contender("fsdpck", [self.slices, model, how, "3", str(self.a.ranks)], reports=True)

    def run(self):
        a, model, out = self.a, self.a.model, self.out
        direct = ["dd", f"if={model}", "of=/dev/null", "bs=4M", "iflag=direct"]
        self.row(f"convert to {a.ranks} ranks", model, self.ours("convert", model, out, "--ranks", str(a.ranks), "-q"), [
            Contender("cp + sync", ["cp", model, out], ["sync", out]),
            Contender("cat", ["cat", model]),
            Contender("read past the page cache", direct),
            Contender("copy past the page cache", ["dd", f"if={model}", f"of={out}", "bs=4M", "iflag=direct", "oflag=direct"], ["sync", out]),
            *self.peer("save", model)])
        remove(self.dir)
        subprocess.run([self.tool, "convert", model, self.dir, "--ranks", str(a.ranks), "-q"], check=True, stdout=subprocess.DEVNULL)
        self.row("export to one file", self.dir, self.ours("export", self.dir, out + ".safetensors", "-q", "--force"), self.peer("merge", self.dir))
        remove(out + ".safetensors")
        self.row("verify", self.dir, self.ours("verify", self.dir, "-q"), [
            Contender("cat", ["cat", *sorted(f for f in files_of(self.dir) if f.endswith(".distcp"))]),
            Contender("read past the page cache", *[["dd", f"if={f}", "of=/dev/null", "bs=4M", "iflag=direct"] for f in files_of(self.dir) if f.endswith(".distcp")])])
        self.row("load of all of the directory", self.dir, Contender("fsdpck", [self.slices, self.dir, "whole", "0", "1"], reports=True), self.peer("load", self.dir))
        self.lora()
        self.row("rows of one rank", model, self.rank(model, "rows"), self.peer("rows", model))
        self.row("columns of one rank", model, self.rank(model, "columns"), [Contender("read past the page cache", direct), *self.peer("columns", model)])
        remove(self.dir)

    def lora(self):
        a = self.a
        if a.lora:
            dir = self.dir + "-lora"
            remove(dir)
            subprocess.run([self.tool, "convert", a.lora, dir, "--ranks", str(a.ranks), "-q"], check=True, stdout=subprocess.DEVNULL)
            self.nbytes, whole = sum(map(os.path.getsize, files_of(a.lora))), self.nbytes
            self.row(f"export-lora from {a.ranks} ranks", dir, self.ours("export-lora", dir, self.out, "--alpha", "32", "-q"), self.peer("adapter", dir))
            self.nbytes = whole
            remove(dir)
        if a.merge:
            base, adapter = a.merge
            self.nbytes, whole = sum(map(os.path.getsize, files_of(base))), self.nbytes
            self.row("merge-lora", base, self.ours("merge-lora", base, adapter, self.out, "-q"), self.peer("merge_lora", base, "--adapter", adapter, name="PEFT"))
            self.nbytes = whole


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build", help="the build directory")
    ap.add_argument("model")
    ap.add_argument("workdir")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--ranks", type=int, default=8)
    ap.add_argument("--python", help="a Python that has torch and safetensors")
    ap.add_argument("--only", type=lambda s: s.split(","), help="rows by their first word: convert, export, verify, load, export-lora, merge-lora, rows, columns")
    ap.add_argument("--lora", metavar="FILE", help="a checkpoint with an adapter in it, for export-lora")
    ap.add_argument("--merge", nargs=2, metavar=("FOLDER", "ADAPTER"), help="for merge-lora")
    Bench(ap.parse_args()).run()


if __name__ == "__main__":
    main()
