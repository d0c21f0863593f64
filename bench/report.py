#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py FSDPTRAIN [STEPS [RANKS]]: seconds, processor time and bytes of the report of a long run, which is made up
here: 100,000 steps of 8 ranks."""
import json, os, pathlib, random, resource, subprocess, sys, tempfile, time


def write_metrics(path, nsteps, nranks):
    r = random.Random(1)
    with open(path, "w") as f:
        for step in range(1, nsteps + 1):
            line = {
                "step": step, "loss": 3 / step**.3 + r.random() / 9, "grad_norm": r.expovariate(1),
                "lr": 1e-4 * (1 - step / nsteps), "tokens": 4096, "supervised_tokens": 4000 + step % 90,
                "tokens_per_second": 1e4 * (1 + r.random() / 9), "step_seconds": .4 + r.random() / 30,
                "data_wait_seconds": r.random() / 1e4, "comm_seconds": r.random() / 20,
                "comm_hidden_seconds": r.random() / 9, "save_stall_seconds": 0.0 if step % 100 else .2,
                "gathered_bytes": 0, "rss_bytes": 2**31 + r.randrange(10**6), "pss_bytes": 2**32,
                "comm_gather_seconds": r.random() / 40, "comm_exchange_seconds": r.random() / 40,
                "rank_busy_seconds": [.35 + r.random() / 40 for _ in range(nranks)],
                "slowest_rank": r.randrange(nranks), "from_hosts_bytes": 0
            }
            if step % 1000 == 0:
                line |= {"eval_loss": 2 + r.random(), "eval_tokens": 8000, "eval_seconds": 3.1}
            f.write(json.dumps(line) + "\n")


def main():
    tool, nsteps, nranks = sys.argv[1], *(int(x) for x in (sys.argv[2:] + ["100000", "8"][len(sys.argv) - 2:]))
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        write_metrics(tmp / "metrics.jsonl", nsteps, nranks)
        for _ in range(3):
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            subprocess.run([tool, "report", tmp, "--out", tmp / "report.html"], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = time.monotonic() - started
            processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            print(f"{seconds:.2f} s, {processor:.2f} s of a processor, {os.path.getsize(tmp / 'report.html'):,} bytes")


if __name__ == "__main__":
    main()
