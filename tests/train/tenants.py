#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several adapters trained at once on one base: the numbers of PEFT, and of each alone to the bit, at any number of
ranks; what ends one and not the others; stops, pauses, kills and resuming.

    tenants.py FSDPTRAIN GOLDENS [--device NAME] [--quick]

Needs numpy."""
import argparse, json, os, pathlib, random, shutil, signal, subprocess, time

import numpy as np

from harness import LIMIT_S, Early, Failure, Tests, add_device, config_of, read_safetensors, write_safetensors
from ranks_harness import MPI_ENV, MPIRUN, need_mpi

OWN = ("data", "lora", "train", "checkpoint", "sample", "seed")
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VOCAB, LONG = 287, 200  # LONG: steps that take long enough to do something to the run
WAYS = (("--ranks", "1"), ("--ranks", "2"), ("--ranks", "3", "--gather", "copy"), ("--ranks", "5", "--threads", "1"))


def lora_of(rng):
    lora = {"r": rng.choice((1, 2, 4, 8, 16)), "lora_alpha": rng.choice((1, 4, 16)), "use_rslora": rng.random() < 0.3,
            "lora_dropout": rng.choice((0, 0, 0.2)),
            "target_modules": rng.choice(("all-linear", rng.sample(LINEAR, 2), rng.sample(LINEAR, 3),
                                          r"model\.layers\.1\..*proj"))}
    kind = rng.random()
    if kind < 0.2:
        lora["use_dora"] = True
    elif kind < 0.4:
        lora["target_modules"] = ["embed_tokens", rng.choice(LINEAR)]
    elif kind < 0.5:
        lora["target_modules"] = ["lm_head", rng.choice(LINEAR)]
    elif kind < 0.6:
        lora["modules_to_save"] = [rng.choice(("lm_head", "embed_tokens", "norm", "input_layernorm"))]
    elif kind < 0.8:
        lora["rank_pattern"] = {"layers.1.*": rng.choice((3, 5))}
        lora["target_modules"] = "all-linear"
    return lora


class Tenants(Tests):
    known = {}  # bits of what was trained alone

    def data_of(self, name, rng, n=18):
        path = self.tmp / f"{name}.jsonl"
        ids = ([rng.randrange(3, VOCAB - 3) for _ in range(rng.randrange(3, 30))] for _ in range(n))
        path.write_text("".join(json.dumps({"input_ids": x, "labels": [-100] + x[1:]}) + "\n" for x in ids))
        return path

    def tenant(self, name, rng):
        """Nothing of it is another's."""
        micro, steps = rng.choice((1, 2)), rng.randrange(2, 5)
        train = {"max_steps": steps, "micro_batch_size": micro, "global_batch_size": micro * rng.randrange(1, 6),
                 "learning_rate": rng.choice((1e-3, 1e-2)), "warmup_steps": rng.randrange(2),
                 "lr_scheduler_type": rng.choice(("cosine", "linear", "constant")),
                 "weight_decay": rng.choice((0, 0.1)),
                 "max_grad_norm": rng.choice((0, 0.05, 1))}
        train["gradient_accumulation_steps"] = rng.choice((1, 1, 2))
        data = {"train": str(self.data_of(name, rng)), "seq_len": rng.choice((32, 48, 64))}
        if rng.random() < 0.4:
            data["eval"] = str(self.data_of(f"{name}-eval", rng, 7))
            train["eval_steps"] = rng.randrange(3)
        sample = {"every": 2, "prompts": [{"input_ids": [5, 6, 7]}]} if rng.random() < 0.3 else {}
        return {"name": name, "seed": rng.randrange(1000), "lora": lora_of(rng), "data": data, "train": train,
                "sample": sample, "checkpoint": {"save_steps": rng.choice((1, 2, 100))}}

    def common(self, out, **keys):
        return {"model": str(self.goldens / "model"), "output_dir": str(out), **keys}

    def alone(self, tenant, *options, **keys):
        out = self.tmp / f"alone-{tenant['name']}"
        shutil.rmtree(out, ignore_errors=True)
        self.run(self.write(out.name, {**self.common(out, **keys), **{k: tenant[k] for k in OWN if k in tenant}}),
                 *options)
        return out

    def together(self, title, tenants, *options, want=0, fresh=True, **keys):
        out = self.tmp / title
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        done = self.run(self.write(title, {**self.common(out, **keys), "tenants": tenants}), *options, want=want)
        return out / "tenants", done.stderr

    def bits(self, out):
        """Of a tenant, or of a run alone: what must not depend on who else is there."""
        lines = [{k: m.get(k) for k in ("step", "loss", "grad_norm", "lr", "tokens", "supervised", "eval_loss")}
                 for m in self.metrics(out)]
        samples = {p.name: p.read_text() for p in sorted((out / "samples").glob("*"))}
        return lines, samples, (out / "adapter/adapter_model.safetensors").read_bytes(), \
            json.loads((out / "adapter/adapter_config.json").read_text())

    def bits_alone(self, tenant, **keys):
        key = json.dumps([tenant, keys], sort_keys=True)
        if key not in self.known:
            self.known[key] = self.bits(self.alone(tenant, **keys))
        return self.known[key]

    def same(self, title, want, out):
        got = self.bits(out)
        for what, a, b in zip(("metrics", "samples", "adapter", "adapter_config.json"), want, got):
            if a != b:
                said = "" if what == "adapter" else f": {b} for {a}"
                raise Failure(f"{title}: other {what} than alone{said}")

    def golden(self, *options):
        """As PEFT trains each alone."""
        names = ("amber", "birch", "cedar")
        cases = {n: config_of(self.goldens / n, self.tmp / n) for n in names}
        tenants = [{"name": n, **{k: v for k, v in cases[n].items() if k in OWN}} for n in names]
        out, _ = self.together("golden", tenants, *options, dtype={"param": "fp32"})
        for n in names:
            want = json.loads((self.goldens / n / "expected.json").read_text())
            limit = want["tolerance"]
            for i, m in enumerate(self.metrics(out / n)):
                self.near(f"{n}: loss", abs(m["loss"] - want["loss"][i]), limit["loss_abs"])
                self.near(f"{n}: norm", abs(m["grad_norm"] / want["grad_norm"][i] - 1), limit["grad_norm_rel"])
            start, end, got = (read_safetensors(f / "adapter_model.safetensors") for f in (
                self.goldens / n / "start_adapter", self.goldens / n / "end_adapter", out / n / "adapter"))
            for name, w in end.items():
                far = np.linalg.norm(got[name] - w) / (np.linalg.norm(w - start[name]) or 1)
                limits = limit["end_update_rel_l2"]
                self.near(f"{n}: {name}", far, limits.get(name, limits["*"]))

    def random(self, seed, n):
        rng = random.Random(seed)
        keys = {"dtype": {"param": rng.choice(("bf16", "bf16", "fp32"))},
                "fsdp": {"activation_checkpointing": rng.choice(("block", "none", "auto")),
                         "auto_wrap_policy": rng.choice(("NO_WRAP", "HALF_BLOCK_WRAP", "LINEAR_WRAP")),
                         "sharding_strategy": rng.choice(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))}}
        tenants = [self.tenant(f"{seed}-{i}", rng) for i in range(n)]
        want = {t["name"]: self.bits_alone(t, **keys) for t in tenants}
        for options in rng.sample(WAYS, 2):
            rng.shuffle(tenants)
            out, _ = self.together(f"random-{seed}", tenants, *options, **keys)
            for t in tenants:
                self.same(f"{t} {options} {keys}", want[t["name"]], out / t["name"])

    def mpi(self, *options):
        """Ranks that mpirun starts, which share memory or do not."""
        need_mpi(self.tool)
        tenants, out = self.three(4), self.tmp / "mpi"
        shutil.rmtree(out, ignore_errors=True)
        keys = {"dtype": {"reduce": "bf16"}}
        path = self.write("mpi", {**self.common(out, **keys), "tenants": tenants})
        subprocess.run([MPIRUN, "-n", "3", "--oversubscribe", "--bind-to", "none", *self.runs, str(path), "--threads",
                        "1", *options], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                       timeout=LIMIT_S, env=MPI_ENV)
        for t in tenants:
            self.same(f"mpirun {options}", self.bits_alone(t, **keys), out / "tenants" / t["name"])

    def three(self, steps=6, **first):
        """amber, birch and cedar, small and all different."""
        rng = random.Random(4)
        tenants = [{**self.tenant(name, rng), "lora": {"r": 2 + i, "target_modules": ["q_proj", "up_proj"][:1 + i % 2]}}
                   for i, name in enumerate(("amber", "birch", "cedar"))]
        for t in tenants:
            t["train"]["max_steps"] = steps
        tenants[0] = {**tenants[0], **first}
        return tenants

    def others_as_alone(self, out, tenants, title, **keys):
        for t in tenants[1:]:
            self.same(title, self.bits_alone(t, **keys), out / t["name"])

    def not_finite(self):
        """One whose gradients are not finite ends, with its state as it was before; no other sees it."""
        tenants, poison = self.three(12), 250
        path = tenants[0]["data"]["train"]
        documents = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
        for n, d in enumerate(documents):
            d["input_ids"] = d["labels"] = [7 if x == poison else x for x in d["input_ids"]] + [poison] * (n == 9)
        pathlib.Path(path).write_text("".join(json.dumps(d) + "\n" for d in documents))
        tenants[0].update(seed=5, lora={"r": 2, "target_modules": ["embed_tokens"]}, sample={},
                          data={"train": path, "seq_len": 32},
                          train={"max_steps": 12, "global_batch_size": 1, "learning_rate": 1e-3})
        start = self.tmp / "poisoned"
        shutil.copytree(self.alone({**tenants[0], "data": tenants[1]["data"]}) / "adapter", start)
        tensors = read_safetensors(start / "adapter_model.safetensors")
        name = next(n for n in tensors if n.endswith("lora_embedding_A"))
        tensors[name] = tensors[name].copy()
        tensors[name][:, poison] = np.inf
        write_safetensors(start / "adapter_model.safetensors", tensors)
        tenants[0]["lora"]["init_adapter"] = str(start)
        out, said = self.together("nonfinite", tenants, "--ranks", "2", want=3)
        if "amber: this tenant ends with step" not in said or "is not finite" not in said:
            raise Failure(f"no word on amber: {said[-700:]}")
        step = len(self.metrics(out / "amber"))
        saved = sorted(p.name for p in (out / "amber/checkpoints").glob("step-*"))
        if not 0 < step < 12 or saved[-1:] != [f"step-{step:06}"]:
            raise Failure(f"amber ended with step {step}, and saved {saved}")
        self.others_as_alone(out, tenants, "beside one that is not finite")

    def bad_data(self):
        tenants = self.three(data={"train": str(self.tmp / "none.jsonl")})
        out, said = self.together("bad", tenants, "--ranks", "2", want=3)
        if "amber: the tenant cannot begin" not in said:
            raise Failure(f"no word on amber: {said[-700:]}")
        self.others_as_alone(out, tenants, "beside bad data")

    def start(self, title, tenants, *options, fresh=True):
        """A run that goes on while the test does something to it."""
        out = self.tmp / title
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        path = self.write(title, {**self.common(out), "log": {"every": 1000}, "tenants": tenants})
        process = subprocess.Popen([*self.runs, str(path), *options], stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return process, out / "tenants", path

    def await_steps(self, process, out, n):
        metrics, deadline = out / "metrics.jsonl", time.monotonic() + LIMIT_S
        while not metrics.exists() or len(metrics.read_text().splitlines()) < n:
            if process.poll() is not None:
                self.touched(process, None)
            if time.monotonic() > deadline:
                raise Failure(f"{metrics} has no {n} lines")
            time.sleep(0.002)

    def long(self, steps=LONG):
        tenants = self.three(steps)
        for t in tenants:
            t["data"].pop("eval", None)
            t["checkpoint"]["save_steps"] = 0
            t["sample"] = {}
        return tenants

    def removed(self):
        """Its folder: no other is hurt, and nothing is put in its place."""
        tenants = self.long()
        process, out, _ = self.start("removed", tenants, "--ranks", "2")
        self.await_steps(process, out / "amber", 2)
        (out / "amber").rename(self.tmp / "elsewhere")
        self.touched(process, 4)
        if (out / "amber").exists():
            raise Failure("the folder of amber was made anew")
        self.others_as_alone(out, tenants, "beside one whose folder is removed")

    def unsaved(self):
        """Its checkpoints find no room."""
        tenants = self.long()
        process, out, _ = self.start("unsaved", tenants, "--ranks", "2")
        self.await_steps(process, out / "amber", 2)
        (out / "amber/checkpoints").rmdir()
        (out / "amber/checkpoints").write_text("in the way")
        said = self.touched(process, 4)
        if f"amber: the checkpoint of step {LONG} could NOT be saved" not in said or "birch: the checkpoint" in said:
            raise Failure(f"no word on amber alone: {said[-500:]}")
        self.others_as_alone(out, tenants, "beside one that is not saved")

    def stopped_alone(self):
        tenants = self.long()
        process, out, path = self.start("stopped", tenants, "--ranks", "3")
        self.await_steps(process, out / "amber", 2)
        (out / "amber/control").write_text("stop\n")
        self.touched(process, 0)
        n = len(self.metrics(out / "amber"))
        if n == LONG:
            raise Early("amber had all its steps")
        if n < 2 or len(self.metrics(out / "birch")) != LONG:
            raise Failure(f"amber has {n} steps, birch {len(self.metrics(out / 'birch'))}")
        self.run(path, "--ranks", "2")  # goes on with amber
        for t in tenants:
            self.same("stopped, and resumed", self.bits_alone(t), out / t["name"])

    def paused(self):
        tenants = self.long()
        process, out, _ = self.start("paused", tenants, "--ranks", "2")
        self.await_steps(process, out / "amber", 2)
        (out / "amber/control").write_text("pause\n")
        self.await_steps(process, out / "birch", LONG)
        n = len(self.metrics(out / "amber"))
        if n == LONG:
            raise Early("amber had all its steps")
        time.sleep(0.2)
        if n < 2 or len(self.metrics(out / "amber")) != n or process.poll() is not None:
            raise Failure(f"amber is not paused: {n} steps, then {len(self.metrics(out / 'amber'))}")
        if not list((out / "amber/checkpoints").glob(f"step-{n:06}")):
            raise Failure("the pause was not saved")
        (out / "amber/control").write_text("resume\n")
        self.touched(process, 0)
        for t in tenants:
            self.same("paused", self.bits_alone(t), out / t["name"])

    def reloaded(self):
        """One comes, one goes, and one rests all the time; a config that cannot be read changes nothing."""
        tenants = [*self.long(), {**self.long()[0], "name": "dune", "seed": 9}]
        amber, birch, cedar, dune = tenants
        process, out, path = self.start("reloaded", [amber, birch, dune], "--ranks", "2")
        self.await_steps(process, out / "amber", 2)
        (out / "dune/control").write_text("pause\n")
        control, config = out.parent / "control", json.loads(path.read_text())
        path.write_text("{")
        control.write_text("reload\n")
        self.await_steps(process, out / "amber", 30)
        path.write_text(json.dumps({**config, "tenants": [amber, cedar, dune]}))
        control.write_text("reload\n")
        self.await_steps(process, out / "cedar", LONG)
        rested, left = (len(self.metrics(out / name)) for name in ("dune", "birch"))
        (out / "dune/control").write_text("resume\n")
        said = self.touched(process, 0)
        if LONG in (rested, left):
            raise Early("a tenant had all its steps")
        if "the config stays what it was" not in said or not rested or not left:
            raise Failure(f"{rested} steps of dune, {left} of birch: {said[-700:]}")
        for t in (amber, cedar, dune):
            self.same("reloaded", self.bits_alone(t), out / t["name"])
        path.write_text(json.dumps({**config, "tenants": [birch]}))
        self.run(path)
        self.same("left, and come back", self.bits_alone(birch), out / "birch")

    def came_and_went(self, seed):
        """At random, several times; in the end all are there."""
        rng = random.Random(seed)
        tenants = [self.tenant(f"{seed}-{i}", rng) for i in range(4)]
        for t in tenants:
            t["train"]["max_steps"] = 60
            t["checkpoint"]["save_steps"] = 9
        some = rng.sample(tenants, 2)
        process, out, path = self.start("came", some, "--ranks", "3", "--gather", "copy")
        config = json.loads(path.read_text())
        for n in (3, 2, 4):
            first = out / some[0]["name"]
            done = len(self.metrics(first)) if (first / "metrics.jsonl").exists() else 0
            self.await_steps(process, first, min(60, done + 5))
            some = rng.sample(tenants, n)
            path.write_text(json.dumps({**config, "tenants": some}))
            (out.parent / "control").write_text("reload\n")
            while process.poll() is None and (out.parent / "control").exists():
                time.sleep(0.002)
        self.touched(process, 0)
        self.run(path, "--ranks", "2")  # those that were not there in the end, where the last word came too late
        for t in tenants:
            self.same("came and went", self.bits_alone(t), out / t["name"])

    def killed(self, *again):
        """At any time; goes on from what each tenant has saved, on other ranks, and the same bits come out."""
        tenants = self.long(60)
        for t in tenants:
            t["checkpoint"]["save_steps"] = 7
        process, out, path = self.start("killed", tenants, "--ranks", "2")
        self.await_steps(process, out / "birch", 20)
        self.kill(process, random.choice(self.children(process, 2)), signal.SIGKILL)
        self.touched(process, 4)
        self.run(path, *again)
        for t in tenants:
            self.same("killed", self.bits_alone(t), out / t["name"])

    def signalled(self):
        """Every tenant is saved; later one of them is trained alone, where it was."""
        tenants = self.long()
        process, out, path = self.start("signalled", tenants, "--ranks", "2")
        self.await_steps(process, out / "cedar", 3)
        os.kill(process.pid, signal.SIGTERM)
        said = self.touched(process, 0)
        if "to go on: " not in said:
            raise Failure(f"no command to go on: {said[-400:]}")
        for t in tenants:
            n = len(self.metrics(out / t["name"]))
            if not list((out / t["name"] / "checkpoints").glob(f"step-{n:06}")):
                raise Failure(f"{t['name']}: step {n} is not saved")
        birch = tenants[1]
        alone = self.write("birch-alone", {**self.common(out / "birch"), **{k: birch[k] for k in OWN}})
        self.run(alone, "--ranks", "3")
        self.same("trained on alone", self.bits_alone(birch), out / "birch")
        self.run(path, "--ranks", "2")
        for t in tenants:
            self.same("stopped by a signal", self.bits_alone(t), out / t["name"])

    def folder(self):
        """One file a tenant; what a tenant does not have is in the config."""
        tenants, folder, out = self.three(2), self.tmp / "tenants", self.tmp / "of-folder"
        folder.mkdir()
        for t in tenants:
            own = {k: v for k, v in t.items() if k not in ("name", "lora")}
            (folder / f"{t['name']}.json").write_text(json.dumps(own))
            t["lora"] = {"r": 3, "target_modules": ["k_proj"]}
        self.run(self.write("folder", {**self.common(out), "lora": tenants[0]["lora"], "tenants": str(folder)}))
        for t in tenants:
            self.same("folder", self.bits_alone(t), out / "tenants" / t["name"])

    def planned(self):
        """What is shared counts once; a rank of a run takes no more than was planned, but for the program."""
        tenants, memory = self.three(2), {}
        for n in (1, 3):
            path = self.write("planned", {**self.common(self.tmp / "planned"), "tenants": tenants[:n]})
            done = subprocess.run([self.tool, "plan", str(path), "--ranks", "2", "--gather", "copy", "--json"],
                                  capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode or (self.tmp / "planned").exists():
                raise Failure(f"plan: {done.stderr[-600:]}")
            memory[n] = json.loads(done.stdout)
        one, three = memory[1], memory[3]
        own, alone = ([t[key] for t in three["tenants"]] for key in ("own_bytes", "alone_peak_bytes"))
        if one["peak_bytes"] != alone[0] or three["peak_bytes"] != three["base_bytes"] + sum(own):
            raise Failure(f"{one} {three}")
        gathered = sum(t["alone_gathered_bytes_per_step"] for t in three["tenants"])
        if not three["peak_bytes"] < sum(alone) or not three["gathered_bytes_per_cycle"] < gathered:
            raise Failure(f"sharing saves nothing: {three}")

    def shares(self):
        """A tenant of long rows does not hold up one of short rows; a share moves that."""
        def lead(**keys):
            tenants = [{**t, "data": {**t["data"], "seq_len": n}, "train": {"max_steps": 60}, "checkpoint": {}, **k}
                       for t, n, k in zip(self.long(), (256, 16), (keys, {}))]
            for t in tenants:
                t["train"]["global_batch_size"] = 1
            out, said = self.together("shares", tenants)
            order = [line.split()[0] for line in said.splitlines() if " step " in line and "eval" not in line]
            return order.index("birch", [i for i, n in enumerate(order) if n == "birch"][20]), order
        at, order = lead()
        if order[:at].count("amber") > 10:
            raise Failure(f"the tenant of long rows had {order[:at].count('amber')} steps in 20 of the other")
        at, order = lead(share=100)
        if order[:at].count("amber") < 15:
            raise Failure(f"with a share of 100 it had {order[:at].count('amber')}")

    def refuse(self, words, tenants, *options, code=2, **keys):
        _, said = self.together("refused", tenants, *options, want=code, **keys)
        if words not in said:
            raise Failure(f"'{words}' is not in: {said[-500:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="few random tenants, and no long runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=6, help="random runs")
    add_device(parser)
    args = parser.parse_args()
    args.goldens = args.goldens / "tenants"
    t = Tenants(args)
    for options in WAYS[1:3] if args.quick else WAYS:
        t.check(f"golden {options}", t.golden, *options)
    for seed in range(args.seed, args.seed + (2 if args.quick else args.count)):
        t.check(f"random {seed}", t.random, seed, (2, 3, 4)[seed % 3])
    for title, function, *rest in (
        ("not finite", t.not_finite), ("bad data", t.bad_data), ("folder", t.folder), ("planned", t.planned),
        ("mpirun", t.mpi), ("mpirun, copies", t.mpi, "--gather", "copy"),
        ("killed", t.killed, "--ranks", "3", "--gather", "copy")):
        t.check(title, function, *rest)
    for title, function in () if args.quick else (
        ("removed", t.removed), ("unsaved", t.unsaved), ("stopped", t.stopped_alone), ("paused", t.paused),
        ("reloaded", t.reloaded), ("signalled", t.signalled), ("shares", t.shares)):
        t.check(title, function)
    for seed in () if args.quick else (1, 2):
        t.check(f"came and went, {seed}", t.came_and_went, seed)
    two, lora = t.three(2)[:2], {"r": 2}
    for words, tenants, code, keys, *options in (
        ("key 'tenants' has none", [], 2, {}),
        ("two have the name 'amber'", [two[0], two[0]], 2, {}),
        ("entry 1 has no name", [two[0], {"lora": lora}], 2, {}),
        ("the name '../x'", [{**two[0], "name": "../x"}], 2, {}),
        ("tenant 'amber': key 'fsdp' is none of", [{**two[0], "fsdp": {}}], 2, {}),
        ("tenant 'amber': key 'share': a number", [{**two[0], "share": 0}], 2, {}),
        ("tenant 'amber': key 'train.max_steps'", [{**two[0], "train": {"max_steps": 0}}], 2, {}),
        ("it has no section 'lora'", [{k: v for k, v in two[0].items() if k != "lora"}], 2, {}),
        ("is left out", [{**two[0], "lora": {"target_modules": ["nowhere"]}}], 2, {}),
        ("with tenants no setting", two, 3, {"fsdp": "auto"}),
        ("the state of tenants stays in memory", two, 3, {"fsdp": {"offload": "cpu"}}),
        ("a run with tenants ends if ranks are lost", two, 3, {}, "--ranks", "3", "--elastic", "2"),
        ("each tenant goes on from its own checkpoints", two, 3, {}, "--resume", "never"),
    ):
        t.check(f"refused: {words}", lambda: t.refuse(words, tenants, *options, code=code, **keys))
    return t.end()


if __name__ == "__main__":
    raise SystemExit(main())
