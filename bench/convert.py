#!/usr/bin/env python3
"""Times `fsdpck convert` against `cp` + sync and `cat` on the same file, warm and (as root) cold, interleaved, so that a noisy machine
hits all alike. Prints medians, their ratios to cp, and fsdpck's peak memory.

usage: convert.py BINARY MODEL.safetensors WORKDIR [--runs 5] [--ranks 8]

MODEL may be what make_model.py wrote. WORKDIR should lie on the file system that matters; it needs room for one copy at a time."""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def timed(command):
    """(seconds, peak bytes) of a child."""
    t = time.monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - t
    if status:
        sys.exit(f"{' '.join(command)}: ended with status {status}")
    return seconds, usage.ru_maxrss * 1024


def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.unlink(path)
    os.sync()


def measure(commands, out, runs, cold):
    """{name: (median seconds, most bytes)}"""
    seconds, peak = {n: [] for n in commands}, {n: 0 for n in commands}
    for _ in range(runs):
        for name, command in commands.items():
            remove(out)
            if cold:
                drop_caches()
            s, rss = timed(command)
            seconds[name].append(s)
            peak[name] = max(peak[name], rss)
    remove(out)
    return {n: (statistics.median(seconds[n]), peak[n]) for n in commands}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("binary")
    ap.add_argument("model")
    ap.add_argument("workdir")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--ranks", type=int, default=8)
    a = ap.parse_args()
    out = os.path.join(a.workdir, "fsdpck-bench-out")
    nbytes = os.path.getsize(a.model)
    # convert fsyncs what it writes: cp has to do so too to be the same job.
    commands = {"cp + sync": ["sh", "-c", 'cp "$0" "$1" && sync "$1"', a.model, out],
                "cat": ["cat", a.model],
                "fsdpck convert": [a.binary, "convert", "-q", a.model, out, "--ranks", str(a.ranks)]}
    subprocess.run(["cat", a.model], stdout=subprocess.DEVNULL, check=True)
    for cold in (False, True):
        if cold and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
            print("cold: skipped, only root can drop the page cache")
            continue
        result = measure(commands, out, a.runs, cold)
        base = result["cp + sync"][0]
        for name, (s, rss) in result.items():
            print(f"{'cold' if cold else 'warm'}  {name:15} {s:8.3f} s  {nbytes / s / 1e9:6.2f} GB/s  {s / base:5.2f} x cp  {rss >> 20:5} MiB peak")


if __name__ == "__main__":
    main()
