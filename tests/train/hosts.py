#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of several hosts: the bits of one rank, the bytes between hosts, and messages that arrive damaged.

    hosts.py FSDPTRAIN GOLDENS MPI_EXCHANGE [--fsdpck FSDPCK] [--all]

The hosts are groups of processes of this machine with a host name each: ranks share memory only within a group. Needs
numpy; what needs Open MPI or the right to set host names is skipped with the reason."""
import argparse, json, pathlib, random, re, shutil, subprocess, sys

from harness import LIMIT_S, Failure, Skip, add_device
from moe import LORA, PARAMETERS, Moe
from ranks_harness import MPI_ENV, MPIRUN, need_mpi
from strategies import FULL, HYBRID, HYBRID2, KINDS, NAMES, WHOLE, Strategies, label

# Ranks of each host; every number of ranks that has a golden.
HOSTS = ((1, ), (1, 1), (2, 1), (1, 1, 1), (2, 2), (3, 1), (1, 2, 1), (3, 3), (2, 1, 3), (4, 4), (3, 2, 3))
MPI = ("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")
AS_HOST = """hostname "$0"
export OMPI_COMM_WORLD_LOCAL_SIZE=$1 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK - $2))
shift 2
exec "$@"
"""


MIXED = {"policy": [{"modules": ["embed_tokens"], "sharding_strategy": WHOLE},
                    {"modules": ["layers.1", "layers.2"], "dp_shard_size": 2},
                    {"modules": ["layers.4"], "sharding_strategy": WHOLE}]}


def meshes(hosts):
    """Each strategy, and parts kept from the forward pass on."""
    ranks = sum(hosts)
    yield {}
    yield {"sharding_strategy": WHOLE}
    if len(set(hosts)) == 1 and len(hosts) < ranks:  # a host is a shard group
        yield {"sharding_strategy": HYBRID}
        yield {"sharding_strategy": HYBRID2}
    for k in [k for k in (2, 3, 4) if ranks % k == 0 and k < ranks]:
        yield {"sharding_strategy": HYBRID, "dp_shard_size": k}
        yield {"sharding_strategy": HYBRID2, "dp_shard_size": k}
        yield {"sharding_strategy": FULL, "reshard_after_forward": k}
        if k % 2 == 0 and k > 2:
            yield {"sharding_strategy": HYBRID, "dp_shard_size": k, "reshard_after_forward": 2}


class Hosts(Strategies):
    def __init__(self, args):
        super().__init__(args)
        self.exchange_program = args.exchange
        self.mixtures = Moe(args)

    def need_names(self):
        need_mpi(self.tool)
        if not shutil.which("unshare") or subprocess.run(["unshare", "--uts", "hostname", "a"],
                                                         capture_output=True).returncode:
            raise Skip("needs the right to give processes a host name (root)")

    def started(self, hosts, command, **options):
        """mpirun with the ranks of each host under its name."""
        self.need_names()
        words = [MPIRUN, *MPI]
        for i, n in enumerate(hosts):
            first = sum(hosts[:i])
            words += [":"] * (i > 0) + ["-n", str(n), "unshare", "--uts", "bash", "-c", AS_HOST, f"host{i}", str(n),
                                        str(first), *command]
        return subprocess.run(words, capture_output=True, text=True, env=MPI_ENV, timeout=LIMIT_S,
                              stdin=subprocess.DEVNULL, **options)

    def bits_on(self, name, hosts, fsdp, kind):
        path, out = self.config(name, f"{hosts}-{label(fsdp)}".replace(" ", ""), fsdp, kind)
        done = self.started(hosts, [*self.runs, str(path), "-q", "--threads", "1"])
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
        self.same(out, self.one_rank(name, kind))
        shutil.rmtree(out)

    def whole_experts(self, family, hosts, fsdp, kind):
        """Experts whole on the ranks of each host: the bits of one rank."""
        loras = {"LoRA": {"lora": {**LORA, "lora_dropout": 0.2}}, "parameters": {"lora": PARAMETERS}}
        out = self.tmp / f"whole-{family}-{kind}-{hosts}-{label(fsdp)}".replace(" ", "")
        moe = self.mixtures
        want = moe.bits(moe.train(f"{family}-{kind}", moe.model_of(f"{family}-12"), **loras.get(kind, {}))[0])
        path = moe.tmp / f"{family}-{kind}.json"
        config = {**json.loads(path.read_text()), "output_dir": str(out), "fsdp": fsdp}
        done = self.started(hosts, [*self.runs, str(self.write(out.name, config)), "-q", "--threads", "1"])
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
        if moe.bits(out) != want:
            raise Failure("other bits than of one rank")

    def whole_experts_of_tenants(self):
        model, sections, compare = self.mixtures.uneven_tenants("mixtral")
        out = self.tmp / "tenants-whole"
        config = {"model": str(model), "output_dir": str(out), "fsdp": {"expert_parallel": 2},
                  "data": {"train": str(self.mixtures.data), "seq_len": 32}, **sections}
        done = self.started((2, 2), [*self.runs, str(self.write(out.name, config)), "-q", "--threads", "1"])
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
        compare(out)

    def mixed_experts(self):
        """Groups of as many ranks as no host has, and ranks with configs of their own."""
        config = {"model": str(self.mixtures.model_of("mixtral-12")), "output_dir": str(self.tmp / "mixed"),
                  "data": {"train": str(self.mixtures.data)}, "train": {"max_steps": 1}}
        for i, n in enumerate((3, 1, 2)):
            self.write(f"mixed-{i}", {**config, "fsdp": {"expert_parallel": n}})
        run, path = [*self.runs, "-q"], str(self.tmp / "mixed-")
        own = ["bash", "-c", 'path=$0; exec "$@" "$path$((OMPI_COMM_WORLD_RANK + 1)).json"', path, *run]
        for hosts, command, words in (((2, 1), [*run, path + "0.json"], "3 does not divide the"),
                                      ((2,), own, "that of rank 1 is 2, and that of rank 0 1")):
            done = self.started(hosts, command)
            if done.returncode != 2 or "key 'fsdp.expert_parallel': " + words not in done.stderr:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")

    def apart(self):
        """Ranks of one host that have several host names."""
        path, _ = self.config(NAMES[0], "apart", {}, KINDS[0])
        command = [*self.runs, str(path), "-q", "--threads", "1"]
        self.need_names()
        words = [MPIRUN, *MPI, "-n", "2", "unshare", "--uts", "bash", "-c", 'hostname "h$OMPI_COMM_WORLD_RANK"; "$@"',
                 "-"]
        done = subprocess.run(words + command, capture_output=True, text=True, env=MPI_ENV, timeout=LIMIT_S)
        wanted = "the ranks of this host cannot share memory, because they have different host names"
        if done.returncode == 0 or done.stderr.count(wanted) != 1 or "--gather copy does without" not in done.stderr:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
        done = subprocess.run(words + command + ["--gather", "copy"], capture_output=True, text=True, env=MPI_ENV,
                              timeout=LIMIT_S)
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")

    def counted(self):
        """What comes from other hosts in a step: nothing on one host; the same in each step, as plan says; and every
        parameter once a host in each gather, beside the gradients and new values that a run without gathers has."""
        def run(hosts, fsdp):
            path, out = self.config(NAMES[1], f"counted-{hosts}-{label(fsdp)}".replace(" ", ""), fsdp, KINDS[0])
            done = self.started(hosts, [*self.runs, str(path), "-q", "--threads", "1", "--set",
                                        "train.max_steps=5", "--set", "checkpoint.save_steps=0"])
            if done.returncode:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
            said = [m["from_hosts_bytes"] for m in self.metrics(out)]
            if len(set(said[2:])) != 1:  # the first two have what happens once
                raise Failure(f"{hosts} {fsdp}: {said}")
            command = [self.tool, "plan", str(path), "-q", "--json", "--ranks", str(sum(hosts)), "--ranks-per-host",
                       str(hosts[0])]
            plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            self.near(f"{hosts} {fsdp}: planned bytes between hosts",
                      abs(plan["from_hosts_bytes_per_step"] - said[-1]), 0.01 * said[-1])
            return said[-1]
        alone, whole, cut = run((2, ), {}), run((1, 1), {"sharding_strategy": WHOLE}), run((1, 1), {})
        run((2, 2), {"sharding_strategy": HYBRID, "dp_shard_size": 2})
        run((2, 2), {**MIXED, "offload": f"{self.tmp}/", "offload_params": True})
        run((1, 1, 1, 1), {"sharding_strategy": FULL, "reshard_after_forward": 2})
        if alone or not 0 < whole < cut:
            raise Failure(f"one host {alone}, two hosts with whole parameters {whole}, and with a half each {cut}")

    def exchange(self, hosts, nelem, reduce, damage="none"):
        self.need_names()
        words = [MPIRUN, *MPI, "-n", str(sum(hosts)), self.exchange_program, str(nelem), reduce, damage]
        return subprocess.run([*words, *map(str, hosts)], capture_output=True, text=True, env=MPI_ENV, timeout=LIMIT_S)

    def exchanged(self, hosts, nelem, reduce):
        """Every number of contributions, in two waves: the sums are checked by the program, the bytes here."""
        done = self.exchange(hosts, nelem, reduce)
        said = re.fullmatch(r"entered (\d+) expected (\d+)\n", done.stdout)
        if done.returncode or not said:
            raise Failure(f"exit code {done.returncode}: {done.stdout[-600:]} {done.stderr[-600:]}")
        entered, expected = map(int, said.groups())
        if not expected <= entered <= 1.01 * expected:
            raise Failure(f"{entered} bytes entered the hosts, and the formula says {expected}")

    def damaged(self, damage, words):
        done = self.exchange((2, 2), 5000, "fp32", damage)
        if done.returncode == 0 or not re.search(words, done.stderr):
            raise Failure(f"exit code {done.returncode}: {done.stdout} {done.stderr[-900:]}")

    def all(self, every):
        self.check("ranks of one host with several names", self.apart)
        for family, hosts, fsdp, kind in (
            ("mixtral", (2, ), {"expert_parallel": 2}, "LoRA"), ("gpt_oss", (2, 2), {"expert_parallel": 2}, "full"),
            ("qwen3", (3, 3),
             {"expert_parallel": 3, "sharding_strategy": HYBRID, "auto_wrap_policy": "HALF_BLOCK_WRAP"}, "parameters"),
        ):
            self.check(f"experts of {family} whole on hosts {hosts}", self.whole_experts, family, hosts, fsdp, kind)
        self.check("experts of tenants whole on hosts", self.whole_experts_of_tenants)
        self.check("groups of experts across hosts", self.mixed_experts)
        self.check("bytes between hosts in the metrics", self.counted)
        for hosts in ((3, ), (1, 1), (2, 2), (3, 1), (1, 2, 3), (4, 4), (2, 2, 2, 2)):
            for reduce in ("fp32", "bf16"):
                self.check(f"exchange between hosts {hosts}, {reduce}", self.exchanged, hosts, 3001, reduce)
        self.check("exchange of many pieces", self.exchanged, (2, 2), 1500001, "fp32")
        self.check("a wrong bit", self.damaged, "flip",
                   r"exchange of gradients: a sum from rank \d has arrived damaged")
        self.check("a short message", self.damaged, "cut",
                   r"exchange of gradients: rank \d sent \d+ bytes, wanted \d+: do all hosts run the same fsdptrain\?")
        for hosts in ((2, 2), (3, 1)):
            self.check(f"policy on hosts {hosts}", self.bits_on, NAMES[1], hosts, MIXED, KINDS[1])
        cases = [(hosts, fsdp) for hosts in HOSTS for fsdp in meshes(hosts)]
        if not every:
            cases = random.Random(9).sample(cases, len(cases) // 3)  # every strategy is among them
        for i, (hosts, fsdp) in enumerate(cases):
            if i % 4 == 1:  # each host has a file of its own
                fsdp = {**fsdp, "offload": f"{self.tmp}/", "offload_params": True}
            for name in NAMES if every else NAMES[i % 2:i % 2 + 1]:
                for kind in KINDS if every else KINDS[i % 3:i % 3 + 1]:
                    self.check(f"{name} on hosts {hosts}, {label(fsdp)}, {kind}", self.bits_on, name, hosts, fsdp, kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("exchange", help="the program mpi_exchange")
    parser.add_argument("--all", action="store_true", help="every strategy in every arithmetic, not some of them")
    add_device(parser)
    args = parser.parse_args()
    args.mpirun = False
    t = Hosts(args)
    try:
        t.all(args.all)
    finally:
        shutil.rmtree(t.mixtures.tmp, ignore_errors=True)
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
