#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters trained at once on one base (key 'tenants'), against the same trainings one after another, and with
--python against PEFT, whose adapters take turns on one model in one process with all threads.

usage: tenants.py BUILD_DIR MODEL_FOLDER WORKDIR [--ranks 2] [--tokens 512] [--rows 1] [--steps 8] [--runs 3]
                  [--rate 1gbit] [--python PYTHON_WITH_TORCH]

Four tenants of r 4, 8, 16 and 32 on all linear modules, each with --tokens a step in --rows rows. Ranks gather by
copying. With --rate they are on two hosts, network namespaces of this machine (root; iproute2), joined by a cable of
that rate. Runs are interleaved; medians of the steps after the second. The losses must be the same to the bit."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

from hosts import ENV, NET, Hosts
from training import at_least, metrics, write_rows

RANKS_OF = (4, 8, 16, 32)


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.abspath(os.path.join(a.build, "src", "tools", "fsdptrain"))
        self.base, self.config = (os.path.join(a.workdir, "bench-tenants-" + n) for n in ("runs", "config.json"))
        self.tokens = [os.path.join(a.workdir, f"bench-tenants-{r}.jsonl") for r in RANKS_OF]
        for i, path in enumerate(self.tokens):
            write_rows(path, a.model, a.rows * a.steps + i, a.tokens // a.rows)
        self.hosts = Hosts(a.workdir, a.rate) if a.rate else None

    def tenant(self, i):
        return {"seed": i, "lora": {"r": RANKS_OF[i], "target_modules": "all-linear"},
                "data": {"train": self.tokens[i], "seq_len": self.a.tokens // self.a.rows},
                "train": {"max_steps": self.a.steps, "global_batch_size": self.a.rows, "warmup_steps": 0}}

    def run(self, name, **keys):
        out = os.path.join(self.base, name)
        shutil.rmtree(out, ignore_errors=True)
        with open(self.config, "w") as f:
            json.dump({"model": self.a.model, "output_dir": out, "checkpoint": {"save_steps": 0}, **keys}, f)
        command = [self.tool, "run", self.config, "-q", "--gather", "copy"]
        if self.hosts:
            n = self.a.ranks // 2
            command = self.hosts.inside(0, "mpirun", "--host", ",".join(f"{NET}.{i}:{n}" for i in (1, 2)), "-n",
                                        str(2 * n), "--bind-to", "none", "--mca", "plm_rsh_agent", self.hosts.agent,
                                        "--mca", "oob_tcp_if_include", NET + ".0/24", "--mca", "btl_tcp_if_include",
                                        NET + ".0/24", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp",
                                        "--mca", "mpi_yield_when_idle", "1", *command)
        else:
            command += ["--ranks", str(self.a.ranks)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENV)
        return out

    def alone(self):
        """Seconds of a step of each, one after another; the losses."""
        outs = [self.run(f"alone-{i}", **self.tenant(i)) for i in range(len(RANKS_OF))]
        all_of = [metrics(out) for out in outs]
        return (sum(statistics.median(m["step_seconds"] for m in lines[2:]) for lines in all_of),
                [[m["loss"] for m in lines] for lines in all_of])

    def together(self):
        """Seconds in which each has a step: the longest of them, as they begin together."""
        out = self.run("together", tenants=[{"name": f"t{i}", **self.tenant(i)} for i in range(len(RANKS_OF))])
        all_of = [metrics(os.path.join(out, "tenants", f"t{i}")) for i in range(len(RANKS_OF))]
        steps = zip(*([m["step_seconds"] for m in lines[2:]] for lines in all_of))
        return statistics.median(map(max, steps)), [[m["loss"] for m in lines] for lines in all_of]

    def peft(self, mode):
        peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tenants_peer.py")
        said = subprocess.run([self.a.python, peer, self.a.model, *self.tokens, "--mode", mode, "--steps",
                               str(self.a.steps), "--rows", str(self.a.rows)], check=True, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL).stdout
        return statistics.median(json.loads(said)["seconds"][2:])

    def measure(self):
        a, modes = self.a, ("fp32", "autocast") if self.a.python else ()
        seconds = {name: [] for name in ("one after another", "together", *modes)}
        for _ in range(a.runs):
            (one, want), (all_of, got) = self.alone(), self.together()
            if want != got:
                sys.exit("tenants.py: other losses together than alone")
            seconds["one after another"].append(one)
            seconds["together"].append(all_of)
            for mode in modes:
                seconds[mode].append(self.peft(mode))
        best = statistics.median(seconds["together"])
        for name, values in seconds.items():
            middle = statistics.median(values)
            print(f"{name:20} {len(RANKS_OF) * a.tokens / middle:9.1f} tokens/s  {middle:7.3f} s  {middle / best:5.2f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("build", "model", "workdir"):
        p.add_argument(name)
    for name, value, least in (("ranks", 2, 1), ("tokens", 512, 8), ("rows", 1, 1), ("steps", 8, 3), ("runs", 3, 1)):
        p.add_argument("--" + name, type=at_least(least), default=value)
    p.add_argument("--rate", help="of a cable between two hosts; default: one host")
    p.add_argument("--python", help="a Python with torch, transformers and PEFT")
    b = Bench(p.parse_args())
    try:
        b.measure()
    except subprocess.CalledProcessError as e:  # it has said why
        sys.exit(f"tenants.py: {e}")
    finally:
        if b.hosts:
            b.hosts.close()


if __name__ == "__main__":
    main()
