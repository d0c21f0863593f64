#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The goldens of transformers + PEFT through `fsdptrain run` (data.plan), at several numbers of ranks and threads,
after resumes, kills and stops.

    run.py FSDPTRAIN GOLDENS [--case NAME]

Needs numpy only. The tolerances are the goldens' own (tests/train/goldens/README.md says what they are)."""
import argparse, json, pathlib, shutil, signal, subprocess, sys
import numpy as np

from harness import LIMIT_S, Failure, add_device, config_of, read_safetensors, write_safetensors
from refusals import MODEL_REFUSALS, REFUSALS, Refusals
from settings import Settings
from terminal import Terminal
from said import Said
from texts import Texts
from wraps import Wraps


class Runs(Said, Texts, Terminal, Refusals, Settings, Wraps):
    # --- against the goldens

    def golden(self, name):
        folder, out = self.goldens / name, self.tmp / name
        want = json.loads((folder / "expected.json").read_text())
        tolerance = want["tolerance"]
        if "not used" in (said := self.run(self.write(name, config_of(folder, out))).stderr):
            raise Failure(said)
        got = self.metrics(out)
        self.one_line_a_step(out, len(want["loss"]))
        for i, m in enumerate(got):
            self.near(f"loss of step {i}", abs(m["loss"] - want["loss"][i]), tolerance["loss_abs"])
            self.near(f"norm of step {i}", abs(m["grad_norm"] / want["grad_norm"][i] - 1), tolerance["grad_norm_rel"])
            self.near(f"lr of step {i}", abs(m["lr"] - want["lr"][i]), 1e-12 * abs(want["lr"][i]))
            if m["supervised_tokens"] != want["supervised_tokens"][i]:
                raise Failure(
                    f"step {i}: {m['supervised_tokens']} supervised tokens, {want['supervised_tokens'][i]} wanted")
        self.ends(folder, out, tolerance)

    def ends(self, folder, out, tolerance):
        lora = (folder / "end_adapter").exists()
        end = read_safetensors(folder / "end_adapter/adapter_model.safetensors" if lora else folder /
                               "end_model.safetensors")
        end = {k: v for k, v in end.items() if ".base_layer." not in k}  # PEFT's copies of embeddings
        got = self.final(out)
        start = read_safetensors(folder / "start_adapter/adapter_model.safetensors") if lora else self.model(folder)
        if got.keys() != end.keys():
            raise Failure(f"tensors differ: {sorted(got.keys() ^ end.keys())}")
        for name, w in end.items():
            g, w, s = (x.astype(np.float64) for x in (got[name], w, start[name]))
            self.near(f"end of {name}", np.abs(g - w).max(), tolerance["end_abs"])
            limits = tolerance["end_update_rel_l2"]
            self.near(f"update of {name}", np.linalg.norm(g - w) / np.linalg.norm(w - s), limits.get(name, limits["*"]))

    # --- the same bits

    def same_bits(self, name, reference, title, options, **train):
        out = self.tmp / f"{name}-{title}"
        sets = train.pop("sets", {})
        config = config_of(self.goldens / name, out, **train)
        for key, value in sets.items():
            section, key = key.split(".")
            config.setdefault(section, {})[key] = value
        self.run(self.write(f"{name}-{title}", config), *options)
        if self.bits(out) != reference:
            raise Failure("losses, norms or weights differ from one rank's")

    def bf16_bits(self, name):
        """The default dtype: near fp32's losses and not the same, and the same bits at any number of ranks and threads,
        gathered by mapping or by copying."""
        out, fp32 = self.tmp / f"{name}-bf16", self.bits(self.tmp / name)[0]
        config = config_of(self.goldens / name, out)
        del config["dtype"]
        self.run(self.write(f"{name}-bf16", config))
        reference = self.bits(out)
        far = max(abs(a[1] - b[1]) for a, b in zip(reference[0], fp32))
        if far == 0:
            raise Failure("bf16 gives fp32's bits")
        self.near("bf16's loss", far, 0.05)
        bf16 = {"dtype.param": "bf16"}
        for ranks in (2, 3, 5):
            self.same_bits(name, reference, f"bf16-ranks{ranks}", ["--ranks", str(ranks), "--threads", "1"], sets=bf16)
        self.same_bits(name, reference, "bf16-threads3", ["--threads", "3"], sets=bf16)
        self.same_bits(name, reference, "bf16-copy", ["--ranks", "3", "--threads", "1", "--gather", "copy"],
                       sets={**bf16, "fsdp.activation_checkpointing": "block"})

    def dtype_bits(self, name):
        """dtype.reduce and dtype.output in bf16: numbers of their own, near fp32's, and the same bits at any number of
        ranks."""
        base = self.bits(self.tmp / name)[0]
        rows = (("reduce", {"dtype.reduce": "bf16"}), ("output", {"dtype.output": "bf16"}),
                ("all", {"dtype.param": "bf16", "dtype.reduce": "bf16", "dtype.output": "bf16"}))
        for title, sets in rows if self.runs[-1] == "cpu" else rows[1:2]:  # only the processor exchanges bf16
            out = self.tmp / f"{name}-{title}-1"
            config = config_of(self.goldens / name, out)
            for key, value in sets.items():
                config["dtype"][key.split(".")[1]] = value
            self.run(self.write(out.name, config))
            reference = self.bits(out)
            far = max(abs(a[i] - b[i]) for a, b in zip(reference[0], base) for i in (1, 2))
            if far == 0:
                raise Failure(f"dtype.{title} changes nothing")
            self.near(f"dtype.{title}'s losses and norms", far, 0.05)
            for ranks, options in ((2, []), (3, ["--gather", "copy"]), (5, [])):
                self.same_bits(name, reference, f"{title}-{ranks}",
                               ["--ranks", str(ranks), "--threads", "1", *options], sets=sets)

    def packet_bits(self, name):
        """Packets of two micro-batches, the last one short: a group is exchanged in the backward of the packet's last,
        also by ranks that have none."""
        out = self.tmp / f"{name}-packets"
        self.run(self.write(out.name, config_of(self.goldens / name, out, gradient_accumulation_steps=2)))
        reference = self.bits(out)
        for ranks, options in ((2, []), (3, ["--gather", "copy"]), (4, [])):
            self.same_bits(name, reference, f"packets{ranks}",
                           ["--ranks", str(ranks), "--threads", "1", *options], gradient_accumulation_steps=2)

    def resumed_bits(self, name, reference, ranks, **train):
        """Stopped again and again by a signal, and gone on with at another number of ranks."""
        out = self.tmp / f"{name}-resumed"
        path = self.write(f"{name}-resumed", config_of(self.goldens / name, out, **train))
        for i, n in enumerate(ranks):
            process = subprocess.Popen(
                [*self.runs, str(path), "--ranks", str(n), "--set", "checkpoint.save_steps=1"],
                stderr=subprocess.PIPE,
                text=True,
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
            for line in process.stderr:
                if i < len(ranks) - 1 and line.startswith(f"step {3 * (i + 1)} "):
                    process.send_signal(signal.SIGTERM)  # once: the second would end it at once
            if process.wait(timeout=LIMIT_S) != 0:
                raise Failure(f"run {i} ended with {process.returncode}")
        if self.bits(out) != reference:
            raise Failure("a resumed run's losses, norms or weights differ")

    def drawn_bits(self, name):
        """Rows packed and shuffled by us, adapters drawn, dropout, packets of two micro-batches, embedding and head: at
        three numbers of ranks."""
        def run(ranks, **extra):
            out = self.tmp / f"{name}-drawn{ranks}{len(extra)}"
            lora = {
                "r": 3,
                "lora_dropout": 0.25,
                "target_modules": ["embed_tokens", "lm_head", "q_proj", "up_proj", "down_proj"],
            }
            self.run(
                self.write(
                    f"{name}-drawn",
                    {
                        "model": str(self.goldens / name / "model"),
                        "output_dir": str(out),
                        "seed": 7,
                        "dtype": {"param": "fp32"},
                        "data": {"train": str(self.goldens / name / "data.jsonl"), "seq_len": 40},
                        "lora": {**lora, **extra},
                        "train": {
                            "max_steps": 6,
                            "micro_batch_size": 2,
                            "gradient_accumulation_steps": 2,
                            "global_batch_size": 7,
                            "learning_rate": 0.01,
                            "warmup_steps": 1,
                        },
                    },
                ),
                "--ranks",
                str(ranks),
                "--threads",
                "1",
            )
            return self.bits(out)
        reference = run(1)
        for ranks in (2, 3, 5):
            if run(ranks) != reference:
                raise Failure(f"other bits at {ranks} ranks")
        if run(1, lora_dropout=0.0)[0] == reference[0]:
            raise Failure("dropout does nothing")
        moved = [k for k, v in reference[1].items() if ("_B" in k) and not any(v)]
        if moved:
            raise Failure(f"never trained: {moved}")
        losses = [m[1] for m in reference[0]]
        if not losses[-1] < losses[0]:
            raise Failure(f"the loss does not fall: {losses}")

    def saved(self, name):
        """modules_to_save from the base on, beside drawn adapters: at several numbers of ranks, in bf16 with DoRA; what
        is trained, and what the folder says."""
        def run(ranks, param, *options):
            out = self.tmp / f"{name}-drawn-{param}{ranks}"
            self.run(
                self.write(
                    f"{name}-drawn",
                    {
                        "model": str(self.goldens / name / "model"),
                        "output_dir": str(out),
                        "seed": 7,
                        "dtype": {"param": param},
                        "data": {"train": str(self.goldens / name / "data.jsonl"), "seq_len": 40},
                        "lora": {
                            "r": 3,
                            "lora_dropout": 0.25,
                            "target_modules": ["lm_head", "q_proj"],
                            "modules_to_save": ["lm_head", "1.mlp", "model.norm"],
                            "use_dora": param == "bf16",
                        },
                        "train": {"max_steps": 3, "global_batch_size": 5, "learning_rate": 0.01, "warmup_steps": 1},
                    },
                ),
                "--ranks",
                str(ranks),
                "--threads",
                "1",
                *options,
            )
            return out
        base = self.model(self.goldens / name)
        for param in "fp32", "bf16":
            out = run(1, param)
            for ranks, options in ((2, []), (3, ["--gather", "copy"])):
                if self.bits(run(ranks, param, *options)) != self.bits(out):
                    raise Failure(f"{param}: other bits at {ranks} ranks")
            end = {k.removeprefix("base_model.model."): v for k, v in self.final(out).items()}
            base["lm_head.weight"] = base["model.embed_tokens.weight"]
            copies = {k for k in end if "lora_" not in k}
            if (
                copies
                != {
                    "lm_head.weight",
                    "model.norm.weight",
                    *(f"model.layers.1.mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
                }
                or "lm_head.lora_A.weight" in end
            ):
                raise Failure(f"{sorted(end)}")
            for k in copies:
                if not 0 < np.abs(end[k] - base[k]).max() < 0.05:
                    raise Failure(f"{k} is not what training made of the base's")
        written = json.loads((out / "adapter/adapter_config.json").read_text())
        if written["modules_to_save"] != ["lm_head", "1.mlp", "model.norm"]:
            raise Failure(f"{written}")

    def accounted(self, name):
        """Every tensor of an adapter, of a model and of a checkpoint is used, said or refused by its name."""
        folder, adapter = self.goldens / name, self.tmp / "accounted-adapter"
        shutil.copytree(folder / "end_adapter", adapter, copy_function=shutil.copyfile)
        config = config_of(folder, self.tmp / "accounted")
        config["lora"]["init_adapter"] = str(adapter)
        config["train"]["max_steps"] = 2
        path, file = self.write("accounted", config), adapter / "adapter_model.safetensors"
        tensors = read_safetensors(file)
        copy, own = (
            "base_model.model.model.embed_tokens.base_layer.weight",
            "base_model.model.model.layers.0.self_attn.v_proj.",
        )
        grown = np.concatenate([tensors[copy], tensors[copy][:4]])
        for change, words in (
            ({copy: tensors[copy] + np.float32(0.01)}, f"'{copy}' is not 'model.embed_tokens.weight'"),
            ({copy: grown}, f"'{copy}' is not 'model.embed_tokens.weight'"),
            ({own + "stray": np.zeros(3, np.float32)}, own + "stray"),
            ({own + "lora_magnitude_vector": np.ones(3, np.float32)}, own + "lora_magnitude_vector"),
            ({"base_model.model.model.norm.weight": np.ones(3, np.float32)}, "'base_model.model.model.norm.weight'"),
            ({"model.norm.weight": np.ones(3, np.float32)}, "'model.norm.weight'"),
            ({"base_model.model.model.embed_tokens.weight": grown}, "'base_model.model.model.embed_tokens.weight'"),
            ({"optim.x": np.ones(3, np.float32)}, "'optim.x'"),
        ):
            write_safetensors(file, {**tensors, **change})
            if words not in (done := self.run(path, want=3)).stderr:
                raise Failure(f"{words}: {done.stderr}")
        write_safetensors(file, tensors)
        settings = json.loads((adapter / "adapter_config.json").read_text())
        for key, value in (("init_lora_weights", "pissa_niter_4"), ("kasa_config", {"x": 1}), ("bias", "all")):
            (adapter / "adapter_config.json").write_text(json.dumps({**settings, key: value}))
            if f"key '{key}' is" not in self.run(path, want=3).stderr:
                raise Failure(key)
        (adapter / "adapter_config.json").write_text(json.dumps(settings))
        self.run(path)
        lora = {"r": 3, "lora_alpha": 6, "target_modules": ["v_proj"]}
        other = {**config, "output_dir": str(self.tmp / "accounted-resume")}
        self.run(self.write("accounted", {**other, "lora": {**lora, "modules_to_save": ["model.norm"]}}))
        for change, words in (
            ({}, "'model.base_model.model.model.norm.weight' is not trained by this config"),
            ({"modules_to_save": ["model.norm", "0.mlp"]}, "mlp.gate_proj.weight' is not in it"),
            ({"use_dora": True}, "lora_magnitude_vector' is not in it"),
        ):
            if (
                words
                not in (
                    done := self.run(
                        self.write("accounted", {**other, "lora": {**lora, "modules_to_save": [], **change}}), want=2
                    )
                ).stderr
            ):
                raise Failure(f"{words}: {done.stderr}")
        base = self.tmp / "accounted-model"
        shutil.copytree(folder / "model", base, copy_function=shutil.copyfile)
        tensors, config["model"], config["output_dir"] = read_safetensors(base / "model.safetensors"), str(base), str(
            self.tmp / "accounted-other")
        embed = tensors["model.embed_tokens.weight"]
        write_safetensors(base / "model.safetensors", {**tensors, "lm_head.weight": embed + 1})
        done = self.run(self.write("accounted", config), want=3)
        if "tensor 'lm_head.weight' is not 'model.embed_tokens.weight'" not in done.stderr:
            raise Failure(done.stderr)
        write_safetensors(
            base / "model.safetensors", {
                **tensors, "lm_head.weight": embed, "model.layers.0.self_attn.q_proj.bias": np.ones(3, np.float32),
                "model.rotary_emb.inv_freq": np.ones(3, np.float32)
            })
        done = self.run(self.write("accounted", config))
        if (
            "'model.layers.0.self_attn.q_proj.bias' is not used: config.json calls for no such parameter"
            not in done.stderr
        ):
            raise Failure(done.stderr)

    def scalings(self, name):
        """Of any size, as PEFT would write them: whole numbers as such where they are exact. B is zero, and the
        warm-up's first step leaves it so."""
        for alpha in 32.0, 0.5, 1e19, 3e29:
            out = self.tmp / f"{name}-alpha-{alpha}"
            self.run(
                self.write(
                    out.name,
                    {
                        "model": str(self.goldens / name / "model"),
                        "output_dir": str(out),
                        "data": {"train": str(self.goldens / name / "data.jsonl"), "seq_len": 40},
                        "lora": {"r": 2, "lora_alpha": alpha, "alpha_pattern": {"q_proj": alpha / 2}},
                        "train": {"max_steps": 1, "global_batch_size": 1, "warmup_steps": 1},
                        "dtype": {"param": "fp32"},
                    },
                )
            )
            written = json.loads((out / "adapter/adapter_config.json").read_text())
            if written["lora_alpha"] != alpha or written["alpha_pattern"] != {"q_proj": alpha / 2} or isinstance(
                    written["lora_alpha"], int) != (alpha == 32):
                raise Failure(f"{alpha}: {written['lora_alpha']}, {written['alpha_pattern']}")

    # --- what goes wrong

    def killed(self, name, ranks, victim):
        out = self.tmp / f"{name}-killed"
        shutil.rmtree(out, ignore_errors=True)
        path = self.write(f"{name}-killed", config_of(self.goldens / name, out))
        process = subprocess.Popen([
            *self.runs,
            str(path), "--ranks",
            str(ranks), "--set", "checkpoint.save_steps=1", "--patience",
            str(9 * LIMIT_S)
        ], stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for line in process.stderr:
            if line.startswith("step 4 "):
                self.kill(process, self.children(process, ranks)[victim], signal.SIGKILL)
                break
        err = self.touched(process, 4)  # which comes long before the others' patience ends
        if f"rank {victim} of {ranks} was killed by signal 9" not in err or "step " not in err:
            raise Failure(f"the sentence does not name the rank: {err[-300:]}")
        return out, path

    def kill_and_go_on(self, name, reference):
        out, path = self.killed(name, 3, 1)
        self.run(path, "--ranks", "2")
        if self.bits(out) != reference:
            raise Failure("the run that was killed and resumed has other bits")

    def stalled(self, name):
        out = self.tmp / f"{name}-stalled"
        shutil.rmtree(out, ignore_errors=True)
        path = self.write(f"{name}-stalled", config_of(self.goldens / name, out))
        process = subprocess.Popen([*self.runs, str(path), "--ranks", "2", "--patience", "20"], stderr=subprocess.PIPE,
                                   text=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for line in process.stderr:
            if line.startswith("step 3 "):
                self.kill(process, self.children(process, 2)[1], signal.SIGSTOP)
                break
        err = self.touched(process, 4)
        if "rank 1 of 2" not in err:
            raise Failure(err[-300:])

    def other_run(self, name):
        """A finished run's folder with another config: refused by key; a damaged newest checkpoint is passed over and
        said."""
        out = self.tmp / name
        config = config_of(self.goldens / name, out)
        path = self.write("other", config)
        for option, key in (
            ("seed=3", "'seed'"),
            ("train.gradient_accumulation_steps=2", "'train.gradient_accumulation_steps'"),
        ):
            done = self.run(path, "--set", option, want=2)
            if key not in done.stderr:
                raise Failure(done.stderr)
        base = self.tmp / "other-base"
        shutil.copytree(self.goldens / name / "model", base, copy_function=shutil.copyfile)
        weights = bytearray((base / "model.safetensors").read_bytes())
        weights[-1] ^= 1  # the sign, or so, of one weight
        (base / "model.safetensors").write_bytes(weights)
        done = self.run(path, "--set", f"model={base}", "--ranks", "2", want=2)
        if "belong to another base" not in done.stderr:
            raise Failure(done.stderr)
        before = self.bits(out)
        newest = sorted((out / "checkpoints").glob("step-*"))[-1]
        index = (newest / "index.json").read_bytes()
        (newest / "index.json").write_bytes(index.replace(b'"step', b'"stEp', 1))
        done = self.run(path, "--set", "checkpoint.save_steps=20")
        if (
            "passed over" not in done.stderr
            or "going on from" not in done.stderr
            or "could NOT be saved" in done.stderr
        ):
            raise Failure(done.stderr)
        if self.bits(out) != before:
            raise Failure("gone on from the one before, with other bits")

    def planned(self, name):
        """`fsdptrain plan` against a finished run and by hand."""
        path = self.write("planned", config_of(self.goldens / name, self.tmp / "unused"))
        def plan(ranks):
            done = subprocess.run(
                [self.tool, "plan", str(path), "--ranks", str(ranks), "--json"], capture_output=True, text=True,
                check=True)
            return json.loads(done.stdout)
        one, three, ran = plan(1), plan(3), json.loads((self.tmp / name / "summary.json").read_text())
        for key in ("parameters_trained", "parameters_frozen", "steps"):
            if one[key] != ran[key] or three[key] != ran[key]:
                raise Failure(f"{key}: {one[key]} and {three[key]} planned, {ran[key]} was")
        if one["gathered_bytes_per_step"] or one["reduced_bytes_per_step"] or not three["reduced_bytes_per_step"]:
            raise Failure("one rank reads nothing of others, three do")
        if not 0.3 * one["shard_bytes"] < three["shard_bytes"] < 0.5 * one["shard_bytes"]:
            raise Failure("a third of the parameters, and padding")
        if (self.tmp / "unused").exists():
            raise Failure("plan made output_dir")

    def nonfinite(self, name):
        out = self.tmp / f"{name}-nan"
        config = config_of(self.goldens / name, out)
        config["lora"] = {"r": 2, "lora_alpha": 1e30}
        path = self.write("nan", config)
        done = self.run(path, want=3)
        if "step " not in done.stderr or "is not finite" not in done.stderr or "learning_rate" not in done.stderr:
            raise Failure(done.stderr)
        for again in ("of them skipped", "steps done"):
            done = self.run(path, "--set", "train.on_nonfinite=skip", "--ranks", "2", want=3)
            if "the training diverged" not in done.stderr or again not in done.stdout or self.metrics(
                    out)[-1]["loss"] is not None:
                raise Failure(done.stderr)
            if json.loads((out / "summary.json").read_text())["finished"] or (out / "adapter").exists():
                raise Failure("a run without one update is finished")

    # --- what a run of all weights leaves

    def bf16_model(self, folder):
        """The model's folder in bfloat16."""
        model = self.tmp / "bf16-model"
        subprocess.run(
            [str(self.fsdpck), "export", str(folder / "model"), str(model), "-q", "--dtype", "bf16", "--force"],
            check=True,
            capture_output=True,
        )
        return model

    def diff(self, a, b):
        done = subprocess.run([str(self.fsdpck), "diff", str(a), str(b)], capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{a} and {b} differ: {done.stdout[-400:]}{done.stderr[-200:]}")

    def whole_model(self, name):
        """Ends with a folder that from_pretrained loads, in the dtype that the base had; never over a folder that is
        not the run's."""
        out, folder = self.tmp / f"{name}-whole", self.goldens / name
        config = config_of(folder, out)
        config["model"] = str(self.bf16_model(folder))
        path = self.write(f"{name}-whole", config)
        (out / "model").mkdir(parents=True)
        (out / "model/notes.txt").write_text("mine")
        refused = self.run(path, want=2).stderr
        if "checkpoint.export_model" not in refused or (out / "model/notes.txt").read_text() != "mine" or list(
                out.glob("checkpoints/step-*")):
            raise Failure(f"a folder of somebody else's: {refused}")
        (out / "model/notes.txt").unlink()
        shutil.copytree(config["model"], out / "model", dirs_exist_ok=True)
        refused = self.run(path, "--set", f"model={out / 'model'}", want=2).stderr
        if "the model that the run starts from" not in refused:
            raise Failure(f"the base's own folder: {refused}")
        shutil.rmtree(out / "model")
        last = self.run(path, "--ranks", "2").stdout.splitlines()[-1]
        if last != f"the model: {out / 'model'}":
            raise Failure(f"the last line is '{last}'")
        checkpoint = sorted((out / "checkpoints").glob("step-*"))[-1]
        rounded, plain = self.tmp / "rounded.safetensors", self.tmp / "plain.safetensors"
        for file, options in ((rounded, ["--dtype", "bf16"]), (plain, [])):
            done = subprocess.run(
                [str(self.fsdpck), "export", str(checkpoint), str(file), "--force", *options],
                check=True,
                capture_output=True,
                text=True,
            )
            if ("they are written as bfloat16" in done.stderr) != (file == plain):
                raise Failure(f"export {options} says: {done.stderr}")
            self.diff(file, out / "model")
        kept = json.loads((pathlib.Path(config["model"]) / "config.json").read_text())
        if json.loads((out / "model/config.json").read_text()) != kept or kept.get(
                "dtype", kept.get("torch_dtype")) != "bfloat16":
            raise Failure("config.json is not the base's")
        if {p.name for p in (out / "model").iterdir()} != {p.name for p in pathlib.Path(config["model"]).iterdir()}:
            raise Failure("the folder does not hold what the base's holds")
        self.run(path)  # finished before: it ends the same way, over its own folder
        self.diff(plain, out / "model")
        elsewhere = self.tmp / f"{name}-elsewhere"  # a checkpoint of another folder makes this one no more the run's
        shutil.copytree(out / "model", elsewhere / "model")
        if "not its own" not in self.run(path, "--set", f"output_dir={elsewhere}", "--resume", str(checkpoint),
                                         want=2).stderr:
            raise Failure("a model folder beside no checkpoint is the run's")
        before = (out / "model/model.safetensors").stat().st_ino
        self.run(path, "--set", "checkpoint.export_model=false")
        if (out / "model/model.safetensors").stat().st_ino != before:
            raise Failure("checkpoint.export_model is false, and the model was written")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--case")
    parser.add_argument("--quick", action="store_true", help="few of many cases")
    add_device(parser)
    args = parser.parse_args()
    t = Runs(args)
    cases = (
        [args.case]
        if args.case
        else sorted(p.parent.name for p in args.goldens.glob("*/data.jsonl") if p.parent.name != "smollm2")
    )
    try:
        for name in cases:
            t.check(f"golden {name}", t.golden, name)
        for name in [c for c in ("lora-qwen3", "full-qwen3-untied") if c in cases]:
            reference = t.bits(t.tmp / name)
            for ranks in (3,) if args.quick else (2, 3, 4, 5, 8):
                t.check(f"{name} at {ranks} ranks", t.same_bits, name, reference, f"ranks{ranks}",
                        ["--ranks", str(ranks), "--threads", "1"])
            for threads in (3,) if args.quick else (1, 2, 3, 7):
                t.check(
                    f"{name} with {threads} threads",
                    t.same_bits,
                    name,
                    reference,
                    f"threads{threads}",
                    ["--threads", str(threads)],
                )
            t.check(
                f"{name} with recomputed blocks",
                lambda: t.same_bits(
                    name,
                    reference,
                    "block",
                    ["--ranks", "2"],
                    sets={
                        "fsdp.activation_checkpointing": "block",
                        "fsdp.forward_prefetch": 3,
                        "fsdp.reshard_after_forward": False,
                    },
                ),
            )
            for strategy, forward, backward, reshard in (
                ("FULL_SHARD", 0, 0, True),
                ("FULL_SHARD", 1, 2, True),
                ("FULL_SHARD", 5, 1, False),
                ("SHARD_GRAD_OP", 2, 0, True),
                ("NO_SHARD", 1, 1, True),
            ):
                t.check(
                    f"{name} gathered by copying, {strategy} {forward} {backward} {reshard}",
                    lambda: t.same_bits(
                        name,
                        reference,
                        f"{strategy}{forward}{backward}{reshard}",
                        ["--ranks", "3", "--threads", "1", "--gather", "copy"],
                        sets={
                            "fsdp.sharding_strategy": strategy,
                            "fsdp.forward_prefetch": forward,
                            "fsdp.backward_prefetch": backward,
                            "fsdp.reshard_after_forward": reshard,
                        },
                    ),
                )
            t.check(f"{name} in bf16", t.bf16_bits, name)
            t.check(f"{name}: dtype.reduce and dtype.output", t.dtype_bits, name)
            t.check(f"{name}: packets of two", t.packet_bits, name)
            t.check(f"{name} resumed", t.resumed_bits, name, reference, [1, 4, 3, 2])
            t.check(f"{name} killed", t.kill_and_go_on, name, reference)
        for name in [c for c in ("lora-saved-tied", "lora-dora") if c in cases]:
            reference = t.bits(t.tmp / name)
            t.check(
                f"{name} at 3 ranks",
                t.same_bits,
                name,
                reference,
                "ranks3",
                ["--ranks", "3", "--threads", "1", "--gather", "copy"],
            )
            t.check(
                f"{name} with recomputed blocks",
                lambda: t.same_bits(
                    name, reference, "block", ["--ranks", "2"], sets={"fsdp.activation_checkpointing": "block"}
                ),
            )
            t.check(f"{name} in bf16", t.bf16_bits, name)
            t.check(f"{name}: packets of two", t.packet_bits, name)
            t.check(f"{name} resumed", t.resumed_bits, name, reference, [2, 3, 1])
        if "lora-saved-tied" in cases:
            t.check("modules trained whole, from the base", t.saved, "lora-saved-tied")
        if "full-qwen3-untied" in cases:
            t.check("the whole model", t.whole_model, "full-qwen3-untied")
        if "lora-ends-tied" in cases:
            t.check("every tensor is accounted for", t.accounted, "lora-ends-tied")
        if "lora-qwen3" in cases:
            t.check("text", t.text)
            t.check("settings that do not do what they say", t.settings)
            t.check("whole lines", t.whole_lines)
            t.check("the date", t.date)
            t.check("keys of another run", t.other_keys)
            t.check("what is no file", t.no_files)
            t.check("tokenize and init", t.verbs)
            t.check("units of blocks, LoRA", t.wrapped, True, args.quick)
            t.check("units of blocks, all parameters", t.wrapped, False, args.quick)
            t.check("units of blocks in plan", t.planned_wraps)
            t.check("samples", t.samples)
            t.check("a terminal", t.terminal)
            t.check("drawn adapters, dropout, our packing", t.drawn_bits, "lora-qwen3")
            t.check("another run's checkpoint", t.other_run, "lora-qwen3")
            t.check("plan", t.planned, "lora-qwen3")
            t.check("non-finite", t.nonfinite, "lora-qwen3")
            t.check("scalings", t.scalings, "lora-qwen3")
            t.check("stalled rank", t.stalled, "lora-qwen3")
            t.check("a flipped byte of a .bin model", t.flipped_bin, "lora-qwen3")
            for settings in (t.all_keys_have_a_rule, t.idle_keys_are_said, t.keys_that_count_are_not,
                             t.idle_options_are_refused, t.idle_options_of_hosts):
                t.check(settings.__name__.replace("_", " "), settings)
            for change, code, words in REFUSALS:
                t.check(f"refusal: {words}", t.refused, "lora-qwen3", change, code, words)
            t.check("refusal of a shape", t.shape_refused, "lora-qwen3")
            for keys, words in MODEL_REFUSALS:
                t.check(f"refusal of a model: {words}", t.model_refused, "lora-qwen3", keys, words)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
