#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharding strategies, meshes, resharding within fewer ranks, and policies of groups: the bits of one rank for all of
them, resumed under one another, and what is refused.

    strategies.py FSDPTRAIN GOLDENS [--random N] [--seed N] [--mpirun] [--device NAME]

Parameters are gathered by copying, as between hosts. The models are goldens with so many layers that they take turns in
the buffers. Needs numpy."""
import argparse, itertools, json, os, pathlib, random, re, shutil, subprocess, sys, zlib
import numpy as np

from harness import LIMIT_S, Failure, Skip, Tests, add_device, config_of, write_safetensors
from policies import FULL, GRAD, HYBRID, HYBRID2, WHOLE, Policies, blocks, dtypes_of, random_policy
from policies import POLICIES, POLICIES_UNTIED, REFUSED_POLICIES

STEPS, LAYERS = 3, 6
NAMES = ("lora-qwen3", "full-qwen3-untied")
KINDS = (("fp32", "fp32", 1), ("bf16", "fp32", 2), ("bf16", "bf16", 1), ("fp32", "fp32", 2))


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def meshes(ranks):
    """Every strategy on this many ranks, with every shard group, and every part that the backward can gather from."""
    for strategy in (FULL, GRAD, WHOLE):
        yield {"sharding_strategy": strategy}
    for shards in [k for k in divisors(ranks) if k > 1 or ranks == 1]:
        yield {"sharding_strategy": HYBRID, "dp_shard_size": shards}
        yield {"sharding_strategy": HYBRID2, "dp_replicate_size": ranks // shards}
        for within in divisors(shards)[1:-1]:
            yield {"dp_shard_size": shards, "reshard_after_forward": within}


def random_fsdp(rng, ranks, name):
    fsdp = rng.choice(list(meshes(ranks)))
    fsdp["forward_prefetch"] = rng.choice((0, 1, 2, 9))
    fsdp["backward_prefetch"] = rng.choice((0, 1, 3))
    fsdp["activation_checkpointing"] = rng.choice(("none", "block"))
    if rng.random() < 0.3 and "reshard_after_forward" not in fsdp:
        fsdp["reshard_after_forward"] = False
    if rng.random() < 0.7:
        fsdp["policy"] = random_policy(rng, fsdp, ranks, LAYERS, name == NAMES[0])
    if rng.random() < 0.4:
        fsdp["auto_wrap_policy"] = rng.choice(("HALF_BLOCK_WRAP", "LINEAR_WRAP"))
    return fsdp


def random_offload(rng, folder, on_device):
    """The state in a file, or of a device in host memory; parameters and gradients too."""
    if rng.random() < 0.6:
        return {}
    out = {"offload": str(folder), "offload_memory": rng.choice((65536, 1 << 20))}
    if on_device:
        out["offload"] = rng.choice((str(folder), "cpu"))
        return {**out, "offload_gradients": rng.random() < 0.5,
                "offload_params": out["offload"] == "cpu" and rng.random() < 0.6}
    return {**out, "offload_params": rng.random() < 0.6, "offload_gradients": rng.random() < 0.5}


def random_states(rng, fsdp, full):
    """The state of some groups stays in memory. An adapter trains nothing in some of them."""
    if "offload" not in fsdp or rng.random() < 0.4:
        return
    fsdp["offload_optimizer"] = rng.random() < 0.6
    for one in fsdp.get("policy", ()):
        if full and rng.random() < 0.6:
            one["offload_optimizer"] = rng.random() < 0.5


def label(fsdp):
    words = [str(v) for k, v in fsdp.items() if k not in ("policy", "offload")]
    if "policy" in fsdp:
        words.append(f"policy {zlib.crc32(json.dumps(fsdp['policy']).encode()):08x}")
    return " ".join(words)


REFUSED = [  # keys of fsdp on 4 ranks, the error, the way out
    (
        {"sharding_strategy": HYBRID, "dp_shard_size": 3},
        "key 'fsdp.dp_shard_size': 3 does not divide the 4 ranks of this run",
        "choose a divisor of 4",
    ),
    (
        {"dp_replicate_size": 8},
        "key 'fsdp.dp_replicate_size': 8 does not divide the 4 ranks of this run",
        "or another number of ranks",
    ),
    (
        {"dp_replicate_size": 2, "dp_shard_size": 4},
        "2 times 4 is 8, and this run has 4 ranks",
        "leave one of them out",
    ),
    (
        {"sharding_strategy": FULL, "dp_shard_size": 2},
        "key 'fsdp.dp_shard_size' is 2, and fsdp.sharding_strategy FULL_SHARD on 4 ranks means 4",
        "HYBRID_SHARD",
    ),
    (
        {"sharding_strategy": GRAD, "dp_replicate_size": 2},
        "fsdp.sharding_strategy SHARD_GRAD_OP on 4 ranks means 1",
        "HYBRID_SHARD_ZERO2",
    ),
    (
        {"sharding_strategy": WHOLE, "dp_shard_size": 4},
        "fsdp.sharding_strategy NO_SHARD on 4 ranks means 1",
        "HYBRID_SHARD",
    ),
    (
        {"sharding_strategy": HYBRID, "dp_shard_size": 1},
        "key 'fsdp.dp_shard_size': HYBRID_SHARD with shard groups of one rank cuts nothing",
        "NO_SHARD",
    ),
    (
        {"sharding_strategy": HYBRID2, "dp_replicate_size": 4},
        "key 'fsdp.dp_replicate_size': HYBRID_SHARD_ZERO2 with shard groups of one rank cuts nothing",
        "NO_SHARD",
    ),
    (
        {"dp_shard_size": 2, "reshard_after_forward": 4},
        "key 'fsdp.reshard_after_forward': 4 does not divide the 2 ranks of a shard group",
        "or true",
    ),
    (
        {"reshard_after_forward": 3},
        "key 'fsdp.reshard_after_forward': 3 does not divide the 4 ranks of a shard group",
        "or true",
    ),
    (
        {"sharding_strategy": GRAD, "reshard_after_forward": 2},
        "fsdp.sharding_strategy SHARD_GRAD_OP does not reshard",
        "FULL_SHARD and HYBRID_SHARD do",
    ),
    (
        {"sharding_strategy": WHOLE, "reshard_after_forward": 2},
        "fsdp.sharding_strategy NO_SHARD does not reshard",
        "FULL_SHARD and HYBRID_SHARD do",
    ),
]

HOSTS = [  # ranks, rank, ranks on its host, its number there, the error, the way out
    (8, 0, 3, 0, "takes the ranks of a host as a shard group; this host has 3 of 8", "fsdp.dp_shard_size"),
    (2, 1, 1, 0, "takes the ranks of a host as a shard group; this host has 1 of 2", "fsdp.dp_shard_size"),
    (4, 2, 2, 1, "not consecutive: rank 2 is number 1 on its host", "--map-by core"),
    (4, 0, 0, 0, "the launcher does not say how many this host has", "fsdp.dp_shard_size"),
]


class Strategies(Policies, Tests):
    def __init__(self, args):
        super().__init__(args)
        self.device, self.mpirun = args.device, args.mpirun
        self.models = {name: self.deep(name) for name in NAMES}
        self.known = {}

    def deep(self, name):
        """The golden's model, its layers repeated and scaled."""
        model = self.tmp / f"{name}-model"
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        tensors = self.model(self.goldens / name)
        out = {key: values for key, values in tensors.items() if ".layers." not in key}
        layers = [key for key in tensors if key not in out]
        had = 1 + max(int(re.search(r"\.layers\.(\d+)", key).group(1)) for key in layers)
        for key, turn in itertools.product(layers, range(LAYERS // had)):
            before, at, after = re.fullmatch(r"(.*\.layers\.)(\d+)(\..*)", key).groups()
            out[f"{before}{int(at) + had * turn}{after}"] = tensors[key] * np.float32(1 + turn / 8)
        for file in model.glob("*.safetensors*"):
            file.unlink()
        write_safetensors(model / "model.safetensors", out)
        config = json.loads((model / "config.json").read_text())
        config.pop("layer_types", None)
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS // had * had}))
        return model

    def config(self, name, title, fsdp, kind):
        """kind: dtype.param, dtype.reduce and the micro-batches of a packet, on which the bits depend."""
        config = config_of(self.goldens / name, self.tmp / f"{name}-{title}")
        config.update(model=str(self.models[name]), fsdp=fsdp, dtype={"param": kind[0], "reduce": kind[1]},
                      checkpoint={"save_steps": 1, "export_model": False})
        config["train"].update(max_steps=STEPS, gradient_accumulation_steps=kind[2], warmup_steps=0,
                               lr_scheduler_type="constant")
        if "lora" in config:
            del config["lora"]["init_adapter"]
            config["lora"]["lora_dropout"] = 0.1
        return self.write(f"{name}-{title}", config), pathlib.Path(config["output_dir"])

    def start(self, path, ranks, *options):
        command = [
            self.tool, "run", str(path), "-q", "--device", self.device, "--threads", "1", "--gather", "copy", *options
        ]
        if self.mpirun:
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command]
        else:
            command += ["--ranks", str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr[-600:]}")

    def one_rank(self, name, kind, fsdp=None):
        fsdp = fsdp or {}
        key = name, kind, json.dumps(fsdp)
        if key not in self.known:
            path, out = self.config(name, "-".join(map(str, ("one", *kind, label(fsdp)))), fsdp, kind)
            self.start(path, 1)
            self.known[key] = out
        return self.known[key]

    def same(self, out, plain):
        said, wanted = ([(m["step"], m["loss"], m["grad_norm"]) for m in self.metrics(folder)]
                        for folder in (out, plain))
        if said != wanted:
            raise Failure(f"{said} where {wanted} is wanted")
        last = f"checkpoints/step-{STEPS:06}"
        done = subprocess.run([str(self.fsdpck), "diff", str(plain / last), str(out / last)], capture_output=True,
                              text=True)
        if done.returncode:
            raise Failure(f"another {last}: {done.stdout[-400:]}")

    def bits(self, name, ranks, fsdp, kind):
        path, out = self.config(name, f"{ranks}-{label(fsdp)}", fsdp, kind)
        self.start(path, ranks)
        self.same(out, self.one_rank(name, kind, dtypes_of(fsdp, kind[0])))
        index = json.loads((out / f"checkpoints/step-{STEPS:06}/index.json").read_text())
        if index["meshes"] != [{"dims": ["shard"], "sizes": [ranks]}] or any(
                t["placements"] != ["shard(0)"] for t in index["tensors"].values()):
            raise Failure(f"each row is to be saved once, by its owner: {index['meshes']}")
        shutil.rmtree(out)

    def resumed(self, name, turns, kind):
        """One step under each strategy, from the checkpoint of the one before."""
        path, out = self.config(name, "resumed-" + "-".join(map(str, kind)), {}, kind)
        config = json.loads(path.read_text())
        for step, (ranks, fsdp) in enumerate(turns, 1):
            path.write_text(json.dumps({**config, "fsdp": fsdp}))
            self.start(path, ranks, "--set", f"train.max_steps={step}")
        self.same(out, self.one_rank(name, kind))

    def planned(self):
        """The parts of a rank's memory on 8 ranks, in terms of those on one rank, which has P bytes of parameters."""
        def plan(ranks, **fsdp):
            path, _ = self.config(NAMES[1], "planned", fsdp, KINDS[1])
            command = [self.tool, "plan", str(path), "-q", "--json", "--ranks", str(ranks), "--gather", "copy"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
            return json.loads(done.stdout)
        one, full = plan(1), plan(8)
        for shards, replicas, fsdp in ((8, 1, {}), (8, 1, {"sharding_strategy": GRAD}), (4, 2, {"dp_shard_size": 4}),
                                       (2, 4, {"sharding_strategy": HYBRID2, "dp_replicate_size": 4}),
                                       (1, 8, {"sharding_strategy": WHOLE})):
            got = plan(8, **fsdp)
            if (got["shard_ranks"], got["replicas"]) != (shards, replicas):
                raise Failure(f"{fsdp}: {got}")
            self.near(f"{fsdp}: parameters at rest", abs(got["shard_bytes"] * shards / one["shard_bytes"] - 1), 0.05)
            for key in ("optimizer_bytes", "gradient_bytes", "snapshot_bytes", "kept_bytes"):
                if got[key] != full[key]:
                    raise Failure(f"{fsdp}: {key} is {got[key]} and not {full[key]}")
            if shards == 1 and (got["gather_buffer_bytes"] or got["gathered_bytes_per_step"]):
                raise Failure(f"{fsdp} gathers: {got}")
            spread = (replicas - 1) / 8 * 2 * one["parameters_trained"]  # bf16
            self.near(f"{fsdp}: spread to replicas", abs(got["spread_bytes_per_step"] - spread), 8)
        two, four = (plan(8, reshard_after_forward=k, backward_prefetch=0)["kept_bytes"] for k in (2, 4))
        if not 0.4 * one["shard_bytes"] / 2 < two < one["shard_bytes"] / 2:
            raise Failure(f"{two} bytes are kept of {one['shard_bytes']}")
        self.near("a fourth against a half", abs(two / four - 2), 0.02)

    def planned_dtypes(self):
        """Half the bytes for the gradients of the groups that are rounded; a run does not go on with other ones."""
        def reduced(**fsdp):
            path, _ = self.config(NAMES[1], "planned", fsdp, ("bf16", "fp32", 1))
            done = subprocess.run([self.tool, "plan", str(path), "-q", "--json", "--ranks", "2"], capture_output=True,
                                  text=True, timeout=LIMIT_S, check=True)
            return json.loads(done.stdout)["reduced_bytes_per_step"]
        some = {"policy": [{"modules": blocks(0, 1, 2), "reduce_dtype": "bf16"}]}
        wide, narrow = reduced(), reduced(policy=[{"modules": ".*", "reduce_dtype": "bf16"}])
        if not narrow < reduced(**some) < wide or abs(2 * narrow - wide) > 2:
            raise Failure(f"{narrow}, {reduced(**some)}, {wide}")
        path, out = self.config(NAMES[1], "rounded", some, ("bf16", "fp32", 1))
        self.start(path, 2)
        done = subprocess.run([self.tool, "run", str(path), "-q", "--set", "fsdp.policy=[]"], capture_output=True,
                              text=True, timeout=LIMIT_S)
        words = "fp32, and bf16 in model.layers.0, model.layers.1, model.layers.2"
        if done.returncode != 2 or words not in done.stderr:
            raise Failure(f"resumed, exit code {done.returncode}: {done.stderr[-600:]}")

    def refused(self, fsdp, words, way):
        path, out = self.config(NAMES[0], "refused", fsdp, KINDS[0])
        for verb in ("run", "plan"):
            done = subprocess.run([self.tool, verb, str(path), "-q", "--ranks", "4", "--gather", "copy"],
                                  capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 2 or words not in done.stderr or way not in done.stderr or out.exists():
                raise Failure(f"{verb}, exit code {done.returncode}: {done.stderr}")

    def host(self, nranks, rank, nlocal, local, words, way):
        """Under a launcher the ranks of a host are a shard group, if all groups are alike and consecutive."""
        if not self.has_mpi:
            raise Skip("built without MPI")
        path, _ = self.config(NAMES[0], "hosts", {"sharding_strategy": HYBRID}, KINDS[0])
        launcher = (("SIZE", nranks), ("RANK", rank), ("LOCAL_SIZE", nlocal), ("LOCAL_RANK", local))
        env = {f"OMPI_COMM_WORLD_{key}": str(value) for key, value in launcher}
        done = subprocess.run([self.tool, "run", str(path), "-q"], capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, **env})
        if done.returncode != 2 or words not in done.stderr or way not in done.stderr:
            raise Failure(f"exit code {done.returncode}: {done.stderr}")

    def all_strategies(self):
        turn = itertools.count()
        for ranks in (1, 2, 3, 4, 6, 8):
            for i, fsdp in enumerate(meshes(ranks)):
                for name in NAMES[i % 2:i % 2 + 1] if ranks > 4 else NAMES:
                    kind = KINDS[next(turn) % len(KINDS)]
                    self.check(f"{name}, {ranks} ranks, {label(fsdp)}, {kind}", self.bits, name, ranks, fsdp, kind)

    def some_strategies(self, count, seed):
        rng = random.Random(seed)
        for i in range(count):
            name, ranks = rng.choice(NAMES), rng.randint(1, 8)
            kind = (rng.choice(("fp32", "bf16")), rng.choice(("fp32", "bf16")), rng.randint(1, 3))
            fsdp = random_fsdp(rng, ranks, name)
            offload = random_offload(rng, self.tmp, self.device != "cpu")
            fsdp.update(offload)
            random_states(rng, fsdp, name == NAMES[1])
            self.check(f"random {i} of seed {seed}: {name}, {ranks} ranks, {fsdp}, {kind}", self.bits, name,
                       ranks, fsdp, kind)

    def same_dtypes(self, name, usual, given):
        """All groups in a dtype by the policy are the run in that dtype; under another one it does not resume."""
        fsdp = {"policy": [{"modules": ".*", "param_dtype": given}]}
        path, out = self.config(name, f"all-{given}", fsdp, (usual, "fp32", 1))
        self.start(path, 2)
        self.same(out, self.one_rank(name, (given, "fp32", 1)))
        fsdp["policy"][0]["modules"] = blocks(1)
        path, out = self.config(name, f"all-{given}", fsdp, (usual, "fp32", 1))
        done = subprocess.run([self.tool, "run", str(path), "-q"], capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != 2 or "bf16, and fp32 in model." not in done.stderr:
            raise Failure(f"resumed, exit code {done.returncode}: {done.stderr[-600:]}")

    def mixed_dtypes(self, name):
        """Groups in both: close to fp32, and the bits of no run in one dtype."""
        bf16, fp32 = ("bf16", "fp32", 1), ("fp32", "fp32", 1)
        cases = ((fp32, {}), (bf16, {}), (fp32, {"policy": [{"modules": blocks(1, 4), "param_dtype": "bf16"}]}),
                 (bf16, {"policy": [{"modules": blocks(0), "param_dtype": "fp32"}]}))
        losses = [[m["loss"] for m in self.metrics(self.one_rank(name, *case))] for case in cases]
        for i, run in enumerate(losses[2:], 2):
            if run in losses[:i] or max(abs(a - b) for a, b in zip(run, losses[0])) > 0.02:
                raise Failure(f"{run} beside {losses}")

    def samples(self, name, kind, policy, ranks):
        fsdp = {"policy": policy, **({"auto_wrap_policy": "LINEAR_WRAP"} if ranks > 2 else {})}
        path, out = self.config(name, f"samples-{kind[0]}-{ranks}-{label(fsdp)}", fsdp, kind)
        prompts = {"every": 1, "prompts": [{"input_ids": [5, 9, 30, 2]}, {"input_ids": [77]}]}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"sample": prompts}))
        self.start(path, ranks)
        return {file.name: file.read_bytes() for file in (out / "samples").iterdir()}

    def sampled_dtypes(self, name):
        """Generation goes through the groups in their types too."""
        bf16, fp32 = ("bf16", "fp32", 1), ("fp32", "fp32", 1)
        plain = self.samples(name, fp32, [], 1)
        same = self.samples(name, bf16, [{"modules": ".*", "param_dtype": "fp32"}], 2)
        mixed = [{"modules": blocks(0, 3, 4), "param_dtype": "fp32"}]
        one, three = (self.samples(name, bf16, mixed, ranks) for ranks in (1, 3))
        if not plain or plain != same or one != three or one == plain:
            raise Failure(f"{plain} {same}, {one} {three}")

    def all_dtypes(self, names):
        some = {"policy": [{"modules": blocks(1, 2), "reduce_dtype": "bf16"}]}
        self.check("gradients rounded in some blocks", self.bits, NAMES[1], 2, some, ("fp32", "fp32", 1))
        for name, (usual, given) in zip(names, (("bf16", "fp32"), ("fp32", "bf16"))):
            self.check(f"{name}: all groups in {given} under {usual}", self.same_dtypes, name, usual, given)
            self.check(f"{name}: groups in both", self.mixed_dtypes, name)
            self.check(f"{name}: samples of groups in both", self.sampled_dtypes, name)

    def all_policies(self):
        for i, (ranks, fsdp) in enumerate(POLICIES):
            self.check(f"{NAMES[i % 2]}, {ranks} ranks, {fsdp}", self.bits, NAMES[i % 2], ranks, fsdp, KINDS[i % 4])
        for i, (ranks, fsdp) in enumerate(POLICIES_UNTIED):
            self.check(f"untied, {ranks} ranks, {fsdp}", self.bits, NAMES[1], ranks, fsdp, KINDS[i])

    def all_resumed(self, quick):
        turns = (
            ((4, {"dp_shard_size": 2}), (3, {"sharding_strategy": WHOLE}), (6, {"dp_replicate_size": 2})),
            ((2, {"sharding_strategy": GRAD}), (6, {"dp_replicate_size": 3}), (4, {"reshard_after_forward": 2})),
            (POLICIES[0], POLICIES[-2], POLICIES[-1]),
        )
        chains = list(zip(itertools.product(NAMES, turns), itertools.cycle(KINDS)))
        for (name, turn), kind in chains[2:4] if quick else chains:
            self.check(f"{name} resumed, {turn}, {kind}", self.resumed, name, turn, kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=0, help="so many random configs instead of all strategies")
    parser.add_argument("--quick", action="store_true", help="few of many dtypes and resumed runs")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--mpirun", action="store_true", help="ranks are those of mpirun")
    add_device(parser)
    args = parser.parse_args()
    t = Strategies(args)
    try:
        if args.random:
            t.some_strategies(args.random, args.seed)
        else:
            t.all_strategies()
            t.all_policies()
        t.all_dtypes(NAMES[:1] if args.quick else NAMES)
        t.all_resumed(args.quick)
        t.check("plan", t.planned)
        t.check("plan of policies", t.planned_policies, *NAMES)
        if args.device == "cpu" and not args.mpirun:
            t.check("plan of dtypes", t.planned_dtypes)
        for fsdp, words, way in () if args.mpirun else REFUSED + REFUSED_POLICIES:
            t.check(f"refusal: {words}", t.refused, fsdp, words, way)
        for host in () if args.mpirun else HOSTS:
            t.check(f"hosts: {host}", t.host, *host)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
