# SPDX-License-Identifier: Apache-2.0
"""Training steps of a random Llama, by us and by PyTorch + PEFT: a part of tests/gpu/all."""
import json, pathlib, shutil, statistics, sys, time

from commands import Left, lines_of, objects_of

HERE = pathlib.Path(__file__).resolve().parent
SEQ, STEPS, NROWS = 4096, 6, 32  # NROWS: of make_model.py's tokens.jsonl
LOSSES_APART = 0.003  # of each other; 0.0002 as tried on processors
# What a model takes: bytes of the device's memory and of a folder, seconds of its part and of one run at least.
MODELS = {
    "8B": {"device": 48 << 30, "folder": 20 << 30, "seconds": 150, "run": 30},
    "0.6B": {"device": 8 << 30, "folder": 4 << 30, "seconds": 60, "run": 15},
    "0.1B": {"device": 4 << 30, "folder": 2 << 30, "seconds": 60, "run": 15},
}
# Of the device's memory, for PEFT's eager steps of 8B on 2 x 4096 tokens: 16 GB of weights, and what it keeps for the
# backward, 53 GB with adapters in bf16 and up to 82 in fp32.
EAGER_8B_BY_TWO = 110 << 30


class Training:
    """A model's steps by us and by PEFT in turn, on one table: the same rows in the same order, time from process
    start, memory by one watcher. What fails is said, and the others go on."""
    def __init__(self, run, model):
        self.run, self.model, self.folder, self.rows, self.failed = run, model, run.work / model, {}, []
        self.batch = 1 if model == "8B" and run.free < EAGER_8B_BY_TWO else 2

    def all(self):
        try:
            self.make()
            self.run.say(
                f"| {self.model}, {self.batch} x {SEQ} tokens a step | tokens/s | peak GiB | seconds to the end of the"
                " first step | first loss | last loss | ms copied, exposed | hidden"
                " |\n|---|---|---|---|---|---|---|---|"
            )
            self.contenders()
            self.beside()
            self.profile()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.failed:
            raise RuntimeError("; ".join(self.failed))
        if not self.rows:
            raise Left("nothing ran")

    def make(self):
        wanted = MODELS[self.model]["device"]
        if 0 < self.run.free < wanted:
            raise Left(f"left out: {wanted >> 30} GiB are wanted, {self.run.free >> 30} are free")
        self.run.call(f"making {self.model}", [sys.executable, HERE / "make_model.py", self.model, self.folder])
        steps = [[[[(s * self.batch + i) % NROWS] for i in range(self.batch)]] for s in range(STEPS)]  # peer.py's order
        (self.folder / "plan.json").write_text(json.dumps({"steps": steps}))

    def contenders(self):
        """What matters most comes first. Adapters under autocast or in bf16: what is faster eagerly is taken for the
        rest of theirs."""
        self.row("fsdptrain, kept", self.ours, "kept")
        for adapters in "bf16", "autocast":
            self.row(f"PEFT, eager, {adapters}", self.peer, "eager", adapters)
        best = self.fastest("PEFT, eager")
        adapters = best.rsplit(", ")[-1] if best else "bf16"
        self.row(f"PEFT, compiled, {adapters}", self.peer, "compiled", adapters, seconds=30)
        self.row("fsdptrain, recomputed", self.ours, "block", activation_checkpointing="block")
        self.row(f"PEFT, checkpointing, {adapters}", self.peer, "checkpointing", adapters)
        self.row("fsdptrain, every block copied on a side stream first", self.ours, "copied",
                 options=["--gather", "copy"])
        if self.model != "8B":  # whose blocks are large
            for how, replay in ("in", "1"), ("without", "0"):
                self.row(f"fsdptrain, kept, {how} graphs", self.ours, f"graphs-{replay}",
                         env={"FSDPTRAIN_REPLAY": replay})

    def row(self, name, job, *args, seconds=0, **how):
        """seconds: what it takes beyond a run."""
        try:
            self.run.wants(MODELS[self.model]["run"] + seconds)
            self.show(name, job(*args, **how))
        except Left as why:
            self.run.say(f"| {name}: {why} | | | | | | | |")
        except Exception as why:  # too little memory, most often
            self.run.say(f"| {name}: FAILED: {str(why)[-300:]!r} | | | | | | | |")
            if job == self.ours:
                self.failed.append(name)

    def show(self, name, r):
        r["tokens_per_second"] = SEQ * self.batch / statistics.median(r["seconds"][2:])
        peak = "" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 2**30:.1f}"
        moved = " | ".join(f"{1e3 * statistics.median(r[what][2:]):.1f}" if what in r else ""
                           for what in ("exposed", "hidden"))
        first, verdict = next(iter(self.rows), name), ""
        pairs = [(r["loss"][i], self.rows.get(first, r)["loss"][i]) for i in (0, -1)]
        if not all(abs(a / b - 1) <= LOSSES_APART for a, b in pairs):  # so that NaN is apart too
            verdict = f": FAILED, its losses are not those of {first}"
            self.failed.append(name)
        else:
            self.rows[name] = r
        losses = f"{r['loss'][0]:.4f} | {r['loss'][-1]:.4f}"
        self.run.say(
            f"| {name}{verdict} | {r['tokens_per_second']:.0f} | {peak} | {r['first_step']:.1f} | {losses} | {moved} |")
        self.run.keep(name, r)

    def ours(self, name, options=(), env=None, **fsdp):
        out, path, first = self.folder / f"run-{name}", self.folder / f"{name}.json", []
        path.write_text(
            json.dumps(
                {
                    "model": str(self.folder),
                    "output_dir": str(out),
                    "lora": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
                    "fsdp": fsdp,
                    "data": {
                        "train": str(self.folder / "tokens.jsonl"),
                        "plan": str(self.folder / "plan.json"),
                        "seq_len": SEQ,
                    },
                    "checkpoint": {"save_steps": 0},
                    "train": {
                        "max_steps": STEPS,
                        "micro_batch_size": self.batch,
                        "global_batch_size": self.batch,
                        "warmup_steps": 0,
                        "lr_scheduler_type": "constant",
                    },
                }
            )
        )

        def look():
            if not first and (out / "metrics.jsonl").exists() and b"\n" in (out / "metrics.jsonl").read_bytes():
                first.append(time.monotonic() - began)
        self.run.memory.begin()
        began = time.monotonic()
        self.run.call(f"training, {self.model}, {name}", [self.run.tool, "run", path, "--device", "cuda", *options],
                      env, look=look)
        m = lines_of(out / "metrics.jsonl")
        result = {
            "seconds": [x["step_seconds"] for x in m], "loss": [x["loss"] for x in m],
            "peak_bytes": self.run.memory.end(), "first_step": first[0], "exposed": [x["comm_seconds"] for x in m],
            "hidden": [x["comm_hidden_seconds"] for x in m]
        }
        if "--profile" in options:
            result["profile"] = json.loads((out / "profile.json").read_text())
        shutil.rmtree(out)
        return result

    def peer(self, mode, adapters):
        self.run.memory.begin()
        command = [
            sys.executable, HERE / "peer.py", self.folder, "--mode", mode, "--adapters", adapters, "--seq", SEQ,
            "--batch", self.batch, "--steps", STEPS
        ]
        said = self.run.call(f"training, {self.model}, PEFT, {mode}, {adapters}", command)
        return {**objects_of(said)[-1], "peak_bytes": self.run.memory.end()}

    def fastest(self, prefix):
        return max((name for name in self.rows if name.startswith(prefix)),
                   key=lambda name: self.rows[name]["tokens_per_second"], default=None)

    def beside(self):
        """The fastest of their ways of each kind; in memory the least."""
        self.run.say(
            "\n| | beside | times its tokens/s | of its memory | of its time to the end of the first step"
            " |\n|---|---|---|---|---|"
        )
        for name, prefix in (
            ("fsdptrain, kept", "PEFT, eager"),
            ("fsdptrain, kept", "PEFT, compiled"),
            ("fsdptrain, recomputed", "PEFT, checkpointing"),
        ):
            theirs = self.fastest(prefix)
            if name in self.rows and theirs:
                self.ratios(name, theirs,
                            [r["peak_bytes"] for other, r in self.rows.items() if other.startswith(prefix)])

    def ratios(self, name, theirs, peaks):
        r, t = self.rows[name], self.rows[theirs]
        memory = f"{r['peak_bytes'] / min(peaks):.2f}" if r["peak_bytes"] and all(peaks) else ""
        self.run.say(
            f"| {name} | {theirs} | {r['tokens_per_second'] / t['tokens_per_second']:.2f} | {memory} |"
            f" {r['first_step'] / t['first_step']:.2f} |"
        )

    def profile(self):
        """Where a step's time goes: kernels by kind, by events, on the device."""
        try:
            self.run.wants(MODELS[self.model]["run"])
            fsdp = {} if "fsdptrain, kept" in self.rows else {"activation_checkpointing": "block"}
            profile = self.ours("profiled", ["--profile"], **fsdp)["profile"]
        except Exception as why:
            return self.run.say(f"\nno profile: {str(why)[-300:]}")
        self.run.keep("profile", profile)
        self.run.say("\n| where a step's time goes | ms | share |\n|---|---|---|")
        for r in profile["rows"]:
            self.run.say(f"| {r['what']} | {1e3 * r['seconds_per_step']:.2f} | {r['share']:.3f} |")
        rate = 1e-9 * profile["load"]["bytes"] / profile["load"]["seconds"]
        self.run.say(
            f"\nloaded from the page cache: {1e-9 * profile['load']['bytes']:.2f} GB in"
            f" {profile['load']['seconds']:.2f} s, {rate:.1f} GB/s"
            + (f", {rate / self.run.pinned:.2f} of what a copy from pinned memory has" if self.run.pinned else "")
        )
