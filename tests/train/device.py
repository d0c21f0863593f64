#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run says where its device is not there, too small, or fails: one line, the right exit code, no hang, and the
last checkpoint intact.

    device.py BUILD GOLDENS

BUILD is a build folder: its program, its CUDA module where there is one, and the programs with guarded devices. Needs
numpy for what it shares with run.py."""
import argparse, json, os, pathlib, re, shutil, subprocess, sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import LIMIT_S, Failure, Tests, read_safetensors, write_safetensors

MODULE = "libfsdptrain_cuda.so"


class Devices(Tests):
    def __init__(self, args):
        self.build = args.build
        self.guarded = args.build / "tests/train/guarded"
        super().__init__(
            argparse.Namespace(
                fsdptrain=str(args.build / "src/tools/fsdptrain"), goldens=args.goldens, device="cuda", fsdpck=None
            )
        )

    def config(self, name, **sections):
        golden, out = self.goldens / "lora-qwen3", self.tmp / name
        config = {
            "model": str(golden / "model"), "output_dir": str(out),
            "data": {"train": str(golden / "data.jsonl"), "seq_len": 40},
            "train": {"max_steps": 12, "global_batch_size": 4}, "checkpoint": {"save_steps": 2}
        }
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        return self.write(name, config), out

    def says(self, tool, path, options, code, words, env=None):
        """One line and perhaps a hint, whatever the number of ranks."""
        done = subprocess.run([str(tool), "run", str(path), "-q", "--device", "cuda", *options], capture_output=True,
                              text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        lines = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
        if done.returncode != code or len(lines) != 1 or words not in lines[0]:
            raise Failure(f"exit code {done.returncode}, {code} wanted; one line with '{words}' wanted: {done.stderr}")
        return done.stderr

    def alone(self, name, module=None):
        """The program without its build folder, beside this module or none."""
        folder = self.tmp / f"program-{name}"
        folder.mkdir()
        tool = shutil.copy(self.tool, folder)
        if module:
            shutil.copy(module, folder / MODULE)
        return tool

    def no_module(self):
        libraries = str(self.build / "src/ckpt")
        path, _ = self.config("none")
        env = {"LD_LIBRARY_PATH": libraries}
        bare = self.alone("bare")
        self.says(bare, path, ["--ranks", "2"], 4, "there is no module for it", env)
        planned = subprocess.run([str(bare), "plan", str(path), "-q", "--device", "cuda"], capture_output=True,
                                 text=True, env={**os.environ, **env})
        if planned.returncode != 4 or "there is no module for it" not in planned.stderr:
            raise Failure(f"a plan without a module: {planned.stderr}")
        text = self.tmp / "text.so"
        text.write_text("no library\n")
        self.says(self.alone("text", text), path, [], 4, "the module cannot be loaded", env)
        other = next((self.build / "src/ckpt").glob("libfsdpck.so.*.*.*"))
        self.says(self.alone("other", other), path, [], 4, "belongs to another build", env)

    def no_driver(self):
        path, out = self.config("driver")
        self.says(self.tool, path, ["--ranks", "3"], 4, "there is no NVIDIA driver on this machine")
        if any((out / "checkpoints").iterdir()):
            raise Failure("a checkpoint of nothing")

    def profiled(self):
        """Kernels of every kind that a step has are timed on a device, and what goes between ranks: hidden where it is
        ahead of the kernels, else exposed."""
        for kind, lora, order in (("linked", {"r": 4}, "late"), ("linked", {"r": 4}, "early"),
                                  ("linked", None, "early"), ("staged", None, "late")):
            path, out = self.config(f"profile-{kind}-{order}-{bool(lora)}", train={"max_steps": 3})
            path.write_text(json.dumps({**json.loads(path.read_text()), "lora": lora}))
            clock = self.tmp / "clock"
            subprocess.run([
                str(self.guarded / kind / "fsdptrain"), "run",
                str(path), "-q", "--device", "cuda", "--ranks", "2", "--profile"
            ], check=True, capture_output=True, timeout=LIMIT_S,
                           env={**os.environ, "FSDPTRAIN_GUARDED_ORDER": order, "FSDPTRAIN_GUARDED_CLOCK": str(clock)})
            profile = json.loads((out / "profile.json").read_text())
            rows = {row["what"]: row["seconds_per_step"] for row in profile["rows"]}
            some = [
                "matrix products", "attention", "attention backward", "norms", "rope", "swiglu", "loss", "embedding",
                "optimizer and norm"
            ] + ["adapters"] * bool(lora)
            if any(rows[what] <= 0 for what in some) or (rows["adapters"] > 0) != bool(lora) or profile["steps"] != 3:
                raise Failure(f"{kind}: {rows}")
            held = 4 * sum(v.size
                           for v in read_safetensors(self.goldens / "lora-qwen3/model/model.safetensors").values())
            # of two ranks, by rows; groups of few rows are not cut evenly
            if not held / 4 < profile["load"]["bytes"] < held or not profile["load"]["seconds"] > 0:
                raise Failure(f"{kind}: loaded {profile['load']}, {held} bytes are there")
            exposed = sum(rows[f"waiting for {what}"] for what in ("parameters", "gradients", "other ranks"))
            hidden = rows["communication, hidden"]
            right = hidden > 0 if order == "early" else exposed > hidden
            # Kernels follow each other, by the device's own clock. What ranks wait for is partly seen by the host's.
            kernels, whole = 3 * sum(rows[what] for what in (*some, "other kernels")), 1e-9 * int(clock.read_text())
            if exposed <= 0 or (kind == "linked" and (not right or not whole / 3 < kernels <= whole)):
                raise Failure(f"{kind}, {order}: {kernels} of {whole} s, {profile}")

    def small(self):
        path, _ = self.config("small")
        said = self.says(self.guarded / "linked/fsdptrain", path, ["--ranks", "2"], 4, "and device",
                         {"FSDPTRAIN_GUARDED_FREE": "100000"})
        for word in ("a rank needs", "activations of", "GiB free of", "activation_checkpointing"):
            if word not in said:
                raise Failure(f"'{word}' is not in: {said}")

    def breaks(self, kind, waits):
        """A device fails in the middle of a run; the run goes on from its last checkpoint, to the same end as one that
        was let alone."""
        tool, (path, out) = self.guarded / kind / "fsdptrain", self.config(f"breaks-{kind}")
        straight, whole = self.config(f"whole-{kind}")
        self.says(tool, path, ["--ranks", "2"], 4, "the device is gone", {"FSDPTRAIN_GUARDED_BREAKS": str(waits)})
        if (out / "metrics.jsonl").stat().st_size == 0:
            raise Failure("it failed before the first step")
        for config in (path, straight):
            subprocess.run([str(tool), "run", str(config), "-q", "--device", "cuda", "--ranks", "3"], check=True,
                           capture_output=True, timeout=LIMIT_S)
        if self.metrics(out)[-1]["loss"] != self.metrics(whole)[-1]["loss"]:
            raise Failure("it did not come to the same end")

    def breaks_before_a_save(self):
        """Two of four ranks lose their copy of the state: no rank writes, and none waits for another."""
        path, out = self.config("breaks-copies", fsdp={"sharding_strategy": "NO_SHARD"}, train={"max_steps": 2},
                                checkpoint={"save_steps": 1})
        broken = {"FSDPTRAIN_GUARDED_ORDER": "early", "FSDPTRAIN_GUARDED_BREAKS": "1",
                  "FSDPTRAIN_GUARDED_BREAKS_COPIES": "1"}
        done = subprocess.run([str(self.guarded / "staged/fsdptrain"), "run", str(path), "--device", "cuda", "--ranks",
                               "4", "--patience", "60"], capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, **broken})
        for step in (1, 2):
            if f"the checkpoint of step {step} could NOT be saved" not in done.stderr:
                raise Failure(f"exit code {done.returncode}: {done.stderr}")
        if done.returncode != 4 or "rank 1 of 4, the copy of the state: the device is gone" not in done.stderr:
            raise Failure(f"exit code {done.returncode}: {done.stderr}")
        if list(out.glob("checkpoints/step-*")):
            raise Failure("a checkpoint without the rows of two ranks")

    def kept_by_what_fits(self):
        """With less and less room more and more blocks are recomputed: the same bits, until it is said that even all of
        them do not fit. Ranks that share a device have a part of it each."""
        tool, seen = self.guarded / "staged/fsdptrain", {}

        def run(room, ranks=1):
            path, out = self.config(
                f"fits-{room}-{ranks}", fsdp={"activation_checkpointing": "auto"}, train={"max_steps": 2}
            )
            done = subprocess.run(
                [str(tool), "run", str(path), "--device", "cuda", "--ranks", str(ranks)],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                env={**os.environ, "FSDPTRAIN_GUARDED_FREE": str(room)},
            )
            line = next((x for x in done.stderr.splitlines() if "computed anew" in x), "0 0 blocks")
            blocks = 99 if done.returncode else int(line.split()[1])
            return blocks, [m["loss"] for m in self.metrics(out)] if blocks < 99 else None
        reserved = (512 << 20) * 32 // 31
        low, high = reserved, reserved + (64 << 20)
        while high - low > 1024 and not any(0 < k < 99 for k in seen):
            room = (low + high) // 2
            blocks, losses = run(room)
            seen[blocks] = losses
            low, high = (low, room) if blocks == 0 else (room, high)
        some = [k for k in seen if 0 < k < 99]
        if not some or 0 not in seen or any(seen[k] != seen[0] for k in some):
            raise Failure(f"recomputed blocks and losses: {seen}")
        blocks, losses = run(high + (64 << 20), ranks=3)  # the first and the last are on one of two devices
        if blocks == 0 or losses != seen[0]:
            raise Failure(f"three ranks on two devices with room for one each: {blocks} blocks, losses {losses}")

    def planned(self):
        """What plan says that a rank takes on its device is what a run takes, to the byte: it runs in so much, and not
        in one byte less."""
        prompts = {"every": 1, "prompts": [{"input_ids": [1, 2, 3]}]}
        for kind, ranks, sections in (
            ("linked", 2, {"lora": {"r": 4}, "sample": prompts}),
            ("linked", 1, {"dtype": {"reduce": "bf16"}}),
            ("linked", 3, {"lora": None, "fsdp": {"activation_checkpointing": "block"}}),
            ("staged", 2, {"lora": None}),
            ("linked", 4, {"lora": None, "fsdp": {"dp_shard_size": 2}}),
            ("linked", 4, {"fsdp": {"reshard_after_forward": 2, "backward_prefetch": 0}}),
            ("linked", 2, {"fsdp": {"sharding_strategy": "NO_SHARD"}}),
            ("staged", 2, {"fsdp": {"sharding_strategy": "NO_SHARD"}}),
        ):
            tool = self.guarded / kind / "fsdptrain"
            name = f"planned-{kind}-{ranks}-{'-'.join(map(str, sections.get('fsdp', {}).values()))}"
            path, out = self.config(name, train={"max_steps": 1})
            config = json.loads(path.read_text())
            path.write_text(json.dumps({**config, **sections}))
            said = subprocess.run(
                [str(tool), "plan", str(path), "-q", "--json", "--device", "cuda", "--ranks", str(ranks)],
                capture_output=True,
                text=True,
                check=True,
            )
            plan = json.loads(said.stdout)
            if (plan["sample_bytes"] > 0) != ("sample" in sections) or plan["all_ranks_bytes"] != ranks * plan[
                "peak_bytes"
            ]:
                raise Failure(f"{name}: {plan}")
            self.says(
                tool,
                path,
                ["--ranks", str(ranks)],
                4,
                "GiB free of",
                {"FSDPTRAIN_GUARDED_FREE": str(plan["peak_bytes"] - 1)},
            )
            subprocess.run(
                [str(tool), "run", str(path), "-q", "--device", "cuda", "--ranks", str(ranks)],
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
                env={**os.environ, "FSDPTRAIN_GUARDED_FREE": str(plan["peak_bytes"])},
            )
            if "sample" in sections and not (out / "samples/step-000001.txt").read_text():
                raise Failure("no samples")

    def planned_copies(self):
        """Shard groups have memory of their own, except where devices gather from one copy on the host: there a rank
        reads from three of four others, and nothing goes to replicas."""
        path, _ = self.config("planned-copies", fsdp={"dp_shard_size": 2})
        copying, read = ["--gather", "copy"], {}
        for kind, options, copied in (("linked", [], True), ("staged", [], False), ("staged", copying, True)):
            said = subprocess.run(
                [str(self.guarded / kind / "fsdptrain"), "plan", str(path), "-q", "--json", "--device", "cuda",
                 "--ranks", "4", *options], capture_output=True, text=True, check=True)
            plan = json.loads(said.stdout)
            if (plan["spread_bytes_per_step"] > 0) != copied:
                raise Failure(f"{kind} {options}: {plan}")
            read[copied] = plan["gathered_bytes_per_step"]
        self.near("what a rank reads", abs(read[False] / read[True] - (3 / 4) / (1 / 2)), 0.01)

    def planned_by_what_fits(self):
        """Without a device nobody knows what is free: all that could be kept, and what there must be at least."""
        tool = self.guarded / "linked/fsdptrain"
        path, _ = self.config("planned-auto", fsdp={"activation_checkpointing": "auto"})
        plans = [
            json.loads(
                subprocess.run(
                    [
                        str(tool),
                        "plan",
                        str(path),
                        "-q",
                        "--json",
                        "--device",
                        "cuda",
                        "--ranks",
                        "2",
                        "--set",
                        f"fsdp.activation_checkpointing={how}",
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for how in ("auto", "none", "block")
        ]
        if (
            plans[0]["peak_bytes"] != plans[1]["peak_bytes"]
            or plans[0]["least_bytes"] != plans[2]["peak_bytes"]
            or plans[1]["least_bytes"]
            or plans[2]["peak_bytes"] >= plans[1]["peak_bytes"]
        ):
            raise Failure(f"{plans}")

    def planned_automatic(self):
        """Keys that are "auto" take what the search finds: the host's memory does not limit a device."""
        tool, fixtures = self.guarded / "linked/fsdptrain", pathlib.Path(__file__).resolve().parents[2] / "fixtures"
        path, _ = self.config("planned-automatic", model=str(fixtures / "shapes/llama-8b"), fsdp="auto")

        def plan(*options):
            command = [str(tool), "plan", str(path), "--json", "--device", "cuda", "--ranks", "2", "--rates",
                       str(fixtures / "rates/h100.json")]
            return subprocess.run([*command, *options], capture_output=True, text=True, timeout=LIMIT_S)
        found, done = json.loads(plan("--search").stdout), plan()
        best = found["candidates"][found["chosen"]]["sharding_strategy"]
        if done.returncode or f'"auto" is fsdp.sharding_strategy {best},' not in done.stderr:
            raise Failure(f"{best} is wanted: {done.stderr}")

    def reduced(self):
        """Gradients exchanged as bf16: the processor's bits, whatever carries them between however many ranks, and
        other bits than as fp32."""
        seen = {}
        for reduce, kind, ranks in (("fp32", "cpu", 2), ("bf16", "cpu", 2), ("bf16", "staged", 2),
                                    ("bf16", "linked", 1), ("bf16", "linked", 3)):
            for lora in ({"r": 4}, None):
                tool = self.guarded / ("linked" if kind == "cpu" else kind) / "fsdptrain"
                name = f"reduce-{reduce}-{kind}-{ranks}-{'lora' if lora else 'full'}"
                path, out = self.config(name, lora=lora or {}, dtype={"reduce": reduce}, train={"max_steps": 4})
                done = subprocess.run([
                    str(tool), "run",
                    str(path), "-q", "--device", "cpu" if kind == "cpu" else "cuda", "--ranks",
                    str(ranks), *([] if lora else ["--set", "lora=null"])
                ], capture_output=True, text=True, timeout=LIMIT_S)
                if done.returncode:
                    raise Failure(f"{name}: {done.stderr}")
                seen.setdefault((reduce, bool(lora)), {})[(kind, ranks)] = [m["loss"] for m in self.metrics(out)]
        for lora in (True, False):
            as_bf16 = seen["bf16", lora]
            if any(losses != as_bf16["cpu", 2]
                   for losses in as_bf16.values()) or as_bf16["cpu", 2] == seen["fp32", lora]["cpu", 2]:
                raise Failure(f"losses, lora {lora}: {seen}")

    def ordered(self):
        """Whichever of a device's streams is ahead of the others, as far as events let it: the processor's bits, in
        every checkpoint too."""
        model = self.deep()
        for lora in ({"r": 4}, None):
            ends = {}
            for kind, order in (
                ("cpu", ""),
                ("linked", "late"),
                ("linked", "early"),
                ("linked", "slow"),
                ("staged", "early"),
            ):
                samples = (
                    {"sample": {"every": 4, "prompts": [{"input_ids": [5, 6, 7]}]}}
                    if lora and (kind == "cpu" or order == "early")
                    else {}
                )  # which take long
                path, out = self.config(f"order-{kind}-{order}-{'lora' if lora else 'full'}", model=str(model),
                                        train={"max_steps": 4, "gradient_accumulation_steps": 2, "eval_steps": 3},
                                        data={"eval": str(self.goldens / "lora-qwen3/data.jsonl")}, **samples)
                path.write_text(json.dumps({**json.loads(path.read_text()), "lora": lora}))
                tool = self.guarded / ("linked" if kind == "cpu" else kind) / "fsdptrain"
                subprocess.run(
                    [str(tool), "run", str(path), "-q", "--device", "cpu" if kind == "cpu" else "cuda", "--ranks", "2"],
                    check=True,
                    capture_output=True,
                    timeout=LIMIT_S,
                    env={**os.environ, "FSDPTRAIN_GUARDED_ORDER": order},
                )
                ends[kind, order] = out
            plain = ends.pop(("cpu", ""))
            for name, out in ends.items():
                said, wanted = (
                    [[m.get(key) for key in ("loss", "grad_norm", "eval_loss")] for m in self.metrics(folder)]
                    for folder in (out, plain)
                )
                if said != wanted or not wanted[2][-1]:
                    raise Failure(f"{name}, lora {lora}: {said} where {wanted} is wanted")
                for step in "step-000002", "step-000004":
                    done = subprocess.run([
                        str(self.build / "src/tools/fsdpck"), "diff",
                        str(plain / "checkpoints" / step),
                        str(out / "checkpoints" / step)
                    ], capture_output=True, text=True)
                    if done.returncode:
                        raise Failure(f"{name}, lora {lora}: another {step}: {done.stdout}")
                for sample in plain.glob("samples/*") if name[1] == "early" else ():
                    if sample.read_text() != (out / "samples" / sample.name).read_text():
                        raise Failure(f"{name}, lora {lora}: another {sample.name}")

    def changed(self, name, tensors, **config):
        """The golden's model with other tensors, of a config that says so."""
        model = self.tmp / name
        shutil.copytree(self.goldens / "lora-qwen3/model", model)
        write_safetensors(model / "model.safetensors", tensors)
        as_it_was = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**as_it_was, **config}))
        return model

    def deep(self):
        """So many layers that they take turns in the memory that they are gathered into."""
        tensors, times = read_safetensors(self.goldens / "lora-qwen3/model/model.safetensors"), 3
        deep = {name: values for name, values in tensors.items() if ".layers." not in name}
        for name in sorted(tensors.keys() - deep.keys()):
            before, at, after = re.fullmatch(r"(.*\.layers\.)(\d+)(\..*)", name).groups()
            deep.update({
                f"{before}{int(at) + 2 * turn}{after}": tensors[name] * np.float32(1 + turn / 8)
                for turn in range(times)
            })
        return self.changed("deep", deep, num_hidden_layers=2 * times)

    def large_vocabulary(self):
        """So many rows that several threads share them, and that they are read in more pieces than there are buffers
        for."""
        tensors, nrow = read_safetensors(self.goldens / "lora-qwen3/model/model.safetensors"), 1200011
        name = "model.embed_tokens.weight"
        return self.changed(
            "large-vocabulary",
            {**tensors, name: np.resize(tensors[name], (nrow, tensors[name].shape[1]))},
            vocab_size=nrow,
        )

    def contents(self):
        """What names a frozen base is what fsdpck names it, however many threads and ranks read it, to wherever."""
        model, sharded = self.large_vocabulary(), self.tmp / "large-sharded"
        subprocess.run(
            [str(self.build / "src/tools/fsdpck"), "convert", str(model), str(sharded), "--ranks", "2", "-q"],
            check=True,
            capture_output=True,
        )
        want = {
            name: t["content"]
            for name, t in json.loads((sharded / "index.json").read_text())["tensors"].items()
            if "content" in t
        }
        losses = set()
        for kind, ranks, threads in (("cpu", 1, 1), ("cpu", 2, 3), ("linked", 1, 4), ("staged", 3, 2)):
            path, out = self.config(f"contents-{kind}-{ranks}", lora={"r": 4}, train={"max_steps": 1},
                                    dtype={"param": "bf16"}, model=str(model))
            subprocess.run([
                str(self.guarded / ("staged" if kind == "cpu" else kind) / "fsdptrain"), "run",
                str(path), "-q", "--ranks",
                str(ranks), "--threads",
                str(threads), "--device", "cpu" if kind == "cpu" else "cuda"
            ], check=True, capture_output=True, timeout=LIMIT_S)
            index = json.loads((out / "checkpoints/step-000001/index.json").read_text())
            got = {name: t["content"] for name, t in index["base"]["tensors"].items()}
            if got != want:
                raise Failure(f"{kind}, {ranks} ranks of {threads} threads: {got} and {want}")
            losses.add(self.metrics(out)[0]["loss"])
        if len(losses) != 1:
            raise Failure(f"the weights that were read make different losses: {losses}")

    def back_and_forth(self):
        """A checkpoint saved on a device goes on on the processor and back, with the same bits where both have the same
        kernels."""
        tool, (path, out), (straight, whole) = (
            self.guarded / "staged/fsdptrain",
            self.config("forth"),
            self.config("straight"),
        )
        for steps, device in ((4, "cuda"), (8, "cpu"), (12, "cuda")):
            subprocess.run(
                [
                    str(tool),
                    "run",
                    str(path),
                    "-q",
                    "--device",
                    device,
                    "--ranks",
                    "2",
                    "--set",
                    f"train.max_steps={steps}",
                    "--set",
                    "train.lr_scheduler_type=constant",
                ],
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            )
        subprocess.run(
            [str(tool), "run", str(straight), "-q", "--device", "cpu", "--set", "train.lr_scheduler_type=constant"],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        if [m["loss"] for m in self.metrics(out)] != [m["loss"] for m in self.metrics(whole)]:
            raise Failure("other losses than straight through")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("goldens", type=lambda p: pathlib.Path(p).resolve())
    t = Devices(parser.parse_args())
    try:
        t.check("no module", t.no_module)
        if not (t.build / "src/tools" / MODULE).exists():
            print("skipped: no driver: the CUDA module is not built here")
        elif pathlib.Path("/proc/driver/nvidia").exists():
            print("skipped: no driver: there is one")
        else:
            t.check("no driver", t.no_driver)
        t.check("a profile of a device", t.profiled)
        t.check("too little memory", t.small)
        t.check("plan of a device", t.planned)
        t.check("plan of replicas", t.planned_copies)
        t.check("plan of blocks kept by what fits", t.planned_by_what_fits)
        t.check("plan of a device, with keys that are auto", t.planned_automatic)
        for kind, waits in (("staged", 60), ("linked", 25)):
            t.check(f"a device fails, {kind}", t.breaks, kind, waits)
        t.check("a device fails before a save", t.breaks_before_a_save)
        t.check("blocks kept by what fits", t.kept_by_what_fits)
        t.check("device, processor, device", t.back_and_forth)
        t.check("streams ahead and behind", t.ordered)
        t.check("gradients as bf16", t.reduced)
        t.check("contents of a base", t.contents)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
