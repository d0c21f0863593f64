#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What two hosts cost: full fine-tuning on 2 hosts of 4 ranks, the bytes that enter both per step and the tokens per
second, for FULL_SHARD whose ranks each fetch for themselves (--gather copy), FULL_SHARD, and HYBRID_SHARD; with
--python, for torch's fully_shard over gloo with the mesh of HYBRID_SHARD.

usage: hosts.py BUILD_DIR MODEL_FOLDER WORKDIR [--rate 1gbit] [--ranks 4] [--steps 3] [--seq 64] [--micro 1]
[--reduce bf16] [--only WORD] [--python PYTHON_WITH_TORCH]

The hosts are two network namespaces of this machine (root; iproute2), joined by a cable of that rate (tbf), each way.
Bytes are those of metrics.jsonl, and besides, of the whole run, those that the network interfaces counted. A formula
says how many a step of HYBRID_SHARD needs. A run's first step does not count."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

from training import at_least, metrics, write_plan, write_rows

ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NET = "10.99.78"
AGENT = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
name=$0-${1##*.}
shift
exec ip netns exec "${name##*/}" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "${name##*/}" "$*"
"""
HYBRID = "HYBRID_SHARD"
# name: (keys of "fsdp" and their values for these options, options of the program)
CONTENDERS = {
    "FULL_SHARD, --gather copy": ({}, ["--gather", "copy"]),
    "FULL_SHARD": ({}, []),
    HYBRID: ({"sharding_strategy": lambda a: "HYBRID_SHARD", "dp_shard_size": lambda a: a.ranks}, []),
}


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Two namespaces, AGENT-1 and AGENT-2 by the name of the program that mpirun starts instead of ssh."""
    def __init__(self, workdir, rate):
        self.agent = os.path.join(workdir, f"benchhost{os.getpid()}")
        self.names = [f"{os.path.basename(self.agent)}-{i}" for i in (1, 2)]
        with open(self.agent, "w") as f:
            f.write(AGENT)
        os.chmod(self.agent, 0o755)
        try:
            self.connect(rate)
        except BaseException:
            self.close()
            raise

    def connect(self, rate):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "name", "cable", "netns",
           self.names[1])
        for i, name in enumerate(self.names, 1):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{NET}.{i}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "mtu", "9000", "up")
            if rate:
                subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf",
                                "rate", rate, "burst", "256kb", "latency", "100ms"], check=True)

    def inside(self, host, *command):
        name = self.names[host]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, *command]

    def received(self):
        """What has come in through both cables."""
        path = "/sys/class/net/cable/statistics/rx_bytes"
        return sum(
            int(subprocess.run(["ip", "netns", "exec", name, "cat", path], check=True, capture_output=True).stdout)
            for name in self.names)

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        os.unlink(self.agent)


class Bench:
    def __init__(self, a):
        self.a, self.tool = a, os.path.abspath(os.path.join(a.build, "src", "tools", "fsdptrain"))
        self.rows = 2 * a.ranks * a.micro
        self.tokens, self.out, self.config = (os.path.join(a.workdir, "bench-hosts-" + n)
                                              for n in ("tokens.jsonl", "run", "config.json"))
        write_rows(self.tokens, a.model, self.rows * a.steps, a.seq)
        write_plan(self.config + ".plan", a.steps, self.rows)

    def write(self, fsdp):
        with open(self.config, "w") as f:
            json.dump(
                {
                    "model": self.a.model,
                    "output_dir": self.out,
                    "data": {"train": self.tokens, "plan": self.config + ".plan"},
                    "fsdp": fsdp,
                    "train": {
                        "max_steps": self.a.steps,
                        "gradient_accumulation_steps": self.a.micro,
                        "lr_scheduler_type": "constant",
                        "warmup_steps": 0,
                    },
                    "dtype": {"param": "bf16", "reduce": self.a.reduce},
                    "checkpoint": {"save_steps": 0, "export_model": False},
                },
                f,
            )

    def ours(self, hosts, fsdp, *options):
        shutil.rmtree(self.out, ignore_errors=True)
        self.write(fsdp)
        ranks = self.a.ranks
        command = [
            "mpirun", "--host", ",".join(f"{NET}.{i}:{ranks}" for i in (1, 2)), "-n", str(2 * ranks), "--bind-to",
            "none", "--mca", "plm_rsh_agent", hosts.agent, "--mca", "oob_tcp_if_include", NET + ".0/24", "--mca",
            "btl_tcp_if_include", NET + ".0/24", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca",
            "mpi_yield_when_idle", "1", self.tool, "run", self.config, "-q", "--threads", "1", *options
        ]
        before = hosts.received()
        subprocess.run(hosts.inside(0, *command), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       env=ENV)
        wire = hosts.received() - before
        m = metrics(self.out)
        return {
            "seconds": [x["step_seconds"] for x in m], "loss": [x["loss"] for x in m],
            "bytes": [x["from_hosts_bytes"] for x in m], "wire": wire
        }

    def torch(self, hosts):
        """All ranks at once; the first one says what it measured."""
        store, ranks = os.path.join(self.a.workdir, "bench-hosts-store"), 2 * self.a.ranks
        if os.path.exists(store):
            os.unlink(store)
        before = hosts.received()
        peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fsdp_peer.py")
        all_of = [
            subprocess.Popen(
                hosts.inside(r // self.a.ranks, self.a.python, peer, self.a.model, self.tokens, str(r), str(ranks),
                             store, "--dtype", "bf16", "--batch", str(ranks), "--steps", str(self.a.steps), "--full",
                             "--replicas", "2"),
                stdout=subprocess.PIPE, stderr=None if r == 0 else subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                env={**ENV, "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}) for r in range(ranks)
        ]
        said = [r.communicate()[0] for r in all_of]
        if any(r.returncode for r in all_of):
            sys.exit("torch's ranks failed")
        return {**json.loads(said[0]), "wire": hosts.received() - before}

    def on_hosts(self, work):
        hosts = Hosts(self.a.workdir, self.a.rate)
        try:
            return work(hosts)
        finally:
            hosts.close()

    def formula(self):
        """Of HYBRID_SHARD with a packet a rank: a sum of every gradient enters the second host; the half whose owners
        are on the first host goes back; and each host gets the new values of the half that the other owns."""
        said = subprocess.run([self.tool, "plan", self.config, "-q", "--json", "--ranks", str(2 * self.a.ranks)],
                              check=True, capture_output=True, text=True).stdout
        trained = json.loads(said)["parameters_trained"]
        contribution = 2 if self.a.reduce == "bf16" else 4
        back = min(4 + 4, self.a.ranks * contribution)  # by host 2's contributions, if that is less
        return trained * (min(4, self.a.ranks * contribution) / 2 + back / 2 + 2)

    def run(self):
        tokens, losses = self.rows * self.a.seq, None
        print(f"{'':26} {'tokens/s':>9} {'MB/step':>9} {'MB of the run on the cable':>27}")
        for name, (keys, options) in CONTENDERS.items():
            if self.a.only not in name:
                continue
            fsdp = {key: value(self.a) for key, value in keys.items()}
            said = self.on_hosts(lambda hosts: self.ours(hosts, fsdp, *options))
            losses = losses or said["loss"]
            if said["loss"] != losses:
                sys.exit(f"{name}: losses {said['loss']}, {losses} wanted")
            print(f"{name:26} {tokens / statistics.median(said['seconds'][1:]):9.1f} "
                  f"{statistics.median(said['bytes'][1:]) / 1e6:9.1f} {said['wire'] / 1e6:27.1f}", flush=True)
        print(f"{HYBRID + ' by formula':36} {self.formula() / 1e6:9.1f}")
        if not self.a.python:
            return
        said = self.on_hosts(self.torch)
        if losses and max(abs(x - y) for x, y in zip(said["loss"], losses)) > 0.05:
            sys.exit(f"torch: losses {said['loss']}, {losses} wanted")
        print(f"{'torch fully_shard, gloo':26} {tokens / statistics.median(said['seconds'][1:]):9.1f} {'':9} "
              f"{said['wire'] / 1e6:27.1f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("build", "model", "workdir"):
        p.add_argument(name)
    p.add_argument("--rate", help="of the cable; default: as fast as this machine")
    p.add_argument("--reduce", choices=["bf16", "fp32"], default="fp32", help="dtype.reduce")
    p.add_argument("--only", default="", help="contenders with this in their name")
    for name, value, least in (("ranks", 4, 1), ("steps", 3, 2), ("seq", 64, 2), ("micro", 1, 1)):
        p.add_argument("--" + name, type=at_least(least), default=value)
    p.add_argument("--python", help="a Python with torch, transformers and PEFT")
    a = p.parse_args()
    if a.python and (a.micro > 1 or a.reduce != "fp32"):
        p.error("--python: torch is asked for one micro-batch a step, and reduces in fp32")
    if not any(a.only in name for name in CONTENDERS):
        p.error(f"--only: no contender has '{a.only}' in its name: {', '.join(CONTENDERS)}")
    try:
        Bench(a).run()
    except subprocess.CalledProcessError as e:  # it has said why
        sys.exit(f"hosts.py: {e}")


if __name__ == "__main__":
    main()
