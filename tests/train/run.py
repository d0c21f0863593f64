#!/usr/bin/env python3
"""The goldens of transformers + PEFT through `fsdptrain run` (data.plan), at several numbers of ranks and threads, after resumes, kills and stops.

    run.py FSDPTRAIN GOLDENS [--case NAME] [--quick]

Needs numpy only. The tolerances are the goldens' own (tests/train/goldens/README.md says what they are)."""
import argparse, json, os, pathlib, shutil, signal, struct, subprocess, sys, tempfile, threading, time
import numpy as np

DTYPES = {"F32": np.float32, "F64": np.float64}


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        data = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            out[name] = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(t["shape"])
        else:
            out[name] = np.frombuffer(data, DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def config_of(folder, out, **train):
    """case.json in the words of CONFIG.json."""
    case = json.loads((folder / "case.json").read_text())
    opt, schedule = case["optimizer"], case["schedule"]
    config = {
        "model": str(folder / "model"), "output_dir": str(out),
        "data": {"train": str(folder / "data.jsonl"), "plan": str(folder / "case.json")},
        "train": {"max_steps": len(case["steps"]), "learning_rate": opt["lr"], "adam_beta1": opt["betas"][0], "adam_beta2": opt["betas"][1],
                  "adam_epsilon": opt["eps"], "weight_decay": opt["weight_decay"],
                  "weight_decay_on": "all" if opt.get("decay_all", True) else "matrices", "max_grad_norm": case["max_grad_norm"],
                  "lr_scheduler_type": schedule["name"], "warmup_steps": schedule["warmup_steps"],
                  "min_lr_ratio": schedule.get("min_lr", 0) / opt["lr"], **train},
        "dtype": {"param": "fp32"}, "checkpoint": {"save_steps": 5},
    }
    if case["method"] == "lora":
        lora = {k: v for k, v in case["lora"].items() if k not in ("seed", "init_B")}
        config["lora"] = {**lora, "init_adapter": str(folder / "start_adapter")}
    return config


class Failure(Exception):
    pass


def add_device(parser):
    parser.add_argument("--device", default="cpu", help="where runs compute")
    parser.add_argument("--fsdpck", help="default: beside FSDPTRAIN")


class Tests:
    def __init__(self, args):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # nohup and background shells hand on that these are ignored
        self.tool, self.goldens, self.passed, self.failed = os.path.abspath(args.fsdptrain), args.goldens, 0, 0
        self.runs = [self.tool, "run", "--device", args.device]
        self.fsdpck = args.fsdpck or pathlib.Path(self.tool).with_name("fsdpck")
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="fsdptrain-test-"))

    def check(self, title, function, *args):
        try:
            function(*args)
            self.passed += 1
        except (Failure, subprocess.TimeoutExpired, OSError, KeyError, ValueError) as e:
            self.failed += 1
            print(f"FAILED {title}: {type(e).__name__}: {e}", flush=True)

    def write(self, name, config):
        path = self.tmp / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    def run(self, path, *options, want=0, timeout=120):
        done = subprocess.run([*self.runs, str(path), *options], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        if done.returncode != want:
            raise Failure(f"exit code {done.returncode}, {want} wanted: {done.stderr[-600:]}")
        return done

    def finish(self, process, want=0, timeout=600):
        """What the run still says until it ends. Not by communicate(), which does not see the lines that the pipe's reader has taken in beyond those it gave."""
        limit = threading.Timer(timeout, process.kill)
        limit.start()
        err = process.stderr.read()
        process.wait()
        late = not limit.is_alive()
        limit.cancel()
        if late or want is not None and process.returncode != want:
            raise Failure(f"exit code {process.returncode}{f' after {timeout} s' if late else ''}, {want} wanted: {err[-700:]}")
        return err

    def metrics(self, out):
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]

    # --- against the goldens

    def golden(self, name):
        folder, out = self.goldens / name, self.tmp / name
        want = json.loads((folder / "expected.json").read_text())
        tolerance = want["tolerance"]
        self.run(self.write(name, config_of(folder, out)))
        got = self.metrics(out)
        if [m["step"] for m in got] != list(range(1, len(want["loss"]) + 1)):
            raise Failure("metrics.jsonl does not have one line a step")
        for i, m in enumerate(got):
            self.near(f"loss of step {i}", abs(m["loss"] - want["loss"][i]), tolerance["loss_abs"])
            self.near(f"norm of step {i}", abs(m["grad_norm"] / want["grad_norm"][i] - 1), tolerance["grad_norm_rel"])
            self.near(f"lr of step {i}", abs(m["lr"] - want["lr"][i]), 1e-12 * abs(want["lr"][i]))
            if m["supervised_tokens"] != want["supervised_tokens"][i]:
                raise Failure(f"step {i}: {m['supervised_tokens']} supervised tokens, {want['supervised_tokens'][i]} wanted")
        self.ends(folder, out, tolerance)

    def ends(self, folder, out, tolerance):
        lora = (folder / "end_adapter").exists()
        end = read_safetensors(folder / "end_adapter/adapter_model.safetensors" if lora else folder / "end_model.safetensors")
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

    def model(self, folder):
        return {k: v for f in sorted((folder / "model").glob("*.safetensors")) for k, v in read_safetensors(f).items()}

    def final(self, out):
        """The trained tensors of a finished run, out of its PEFT folder or its last checkpoint."""
        if (out / "adapter").exists():
            return read_safetensors(out / "adapter/adapter_model.safetensors")
        return self.checkpoint(sorted((out / "checkpoints").glob("step-*"))[-1])

    def checkpoint(self, path):
        file = self.tmp / "exported.safetensors"
        file.unlink(missing_ok=True)
        subprocess.run([str(self.fsdpck), "export", str(path), str(file), "-q", "--select", "model"], check=True, capture_output=True)
        return read_safetensors(file)

    def near(self, what, distance, limit):
        if not distance <= limit:
            raise Failure(f"{what} is {distance:.3g} off, {limit:.3g} allowed")

    # --- the same bits

    def bits(self, out):
        losses = [(m["step"], m["loss"], m["grad_norm"], m["lr"]) for m in self.metrics(out)]
        return losses, {k: v.tobytes() for k, v in self.final(out).items()}

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
        """The default dtype: near fp32's losses and not the same, and the same bits at any number of ranks and threads, gathered by mapping or by copying."""
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
        self.same_bits(name, reference, "bf16-copy", ["--ranks", "3", "--threads", "1", "--gather", "copy"], sets={**bf16, "fsdp.activation_checkpointing": "block"})

    def dtype_bits(self, name):
        """dtype.reduce and dtype.output in bf16: numbers of their own, near fp32's, and the same bits at any number of ranks."""
        base = self.bits(self.tmp / name)[0]
        rows = (("reduce", {"dtype.reduce": "bf16"}), ("output", {"dtype.output": "bf16"}), ("all", {"dtype.param": "bf16", "dtype.reduce": "bf16", "dtype.output": "bf16"}))
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
                self.same_bits(name, reference, f"{title}-{ranks}", ["--ranks", str(ranks), "--threads", "1", *options], sets=sets)

    def packet_bits(self, name):
        """Packets of two micro-batches, the last one short: a group is exchanged in the backward of the packet's last, also by ranks that have none."""
        out = self.tmp / f"{name}-packets"
        self.run(self.write(out.name, config_of(self.goldens / name, out, gradient_accumulation_steps=2)))
        reference = self.bits(out)
        for ranks, options in ((2, []), (3, ["--gather", "copy"]), (4, [])):
            self.same_bits(name, reference, f"packets{ranks}", ["--ranks", str(ranks), "--threads", "1", *options], gradient_accumulation_steps=2)

    def resumed_bits(self, name, reference, ranks, **train):
        """Stopped again and again by a signal, and gone on with at another number of ranks."""
        out = self.tmp / f"{name}-resumed"
        path = self.write(f"{name}-resumed", config_of(self.goldens / name, out, **train))
        for i, n in enumerate(ranks):
            process = subprocess.Popen([*self.runs, str(path), "--ranks", str(n), "--set", "checkpoint.save_steps=1"], stderr=subprocess.PIPE, text=True,
                                       stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            for line in process.stderr:
                if i < len(ranks) - 1 and line.startswith(f"step {3 * (i + 1)} "):
                    process.send_signal(signal.SIGTERM)  # once: the second would end it at once
            if process.wait(timeout=120) != 0:
                raise Failure(f"run {i} ended with {process.returncode}")
        if self.bits(out) != reference:
            raise Failure("a resumed run's losses, norms or weights differ")

    def drawn_bits(self, name):
        """Rows packed and shuffled by us, adapters drawn, dropout, packets of two micro-batches, embedding and head: at three numbers of ranks."""
        def run(ranks, **extra):
            out = self.tmp / f"{name}-drawn{ranks}{len(extra)}"
            lora = {"r": 3, "lora_dropout": 0.25, "target_modules": ["embed_tokens", "lm_head", "q_proj", "up_proj", "down_proj"]}
            self.run(self.write(f"{name}-drawn", {
                "model": str(self.goldens / name / "model"), "output_dir": str(out), "seed": 7, "dtype": {"param": "fp32"},
                "data": {"train": str(self.goldens / name / "data.jsonl"), "seq_len": 40}, "lora": {**lora, **extra},
                "train": {"max_steps": 6, "micro_batch_size": 2, "gradient_accumulation_steps": 2, "global_batch_size": 7, "learning_rate": 0.01,
                          "warmup_steps": 1}}), "--ranks", str(ranks), "--threads", "1")
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

    # --- what goes wrong

    def killed(self, name, ranks, victim):
        out = self.tmp / f"{name}-killed"
        shutil.rmtree(out, ignore_errors=True)
        path = self.write(f"{name}-killed", config_of(self.goldens / name, out))
        process = subprocess.Popen([*self.runs, str(path), "--ranks", str(ranks), "--set", "checkpoint.save_steps=1"], stderr=subprocess.PIPE, text=True,
                                   stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for line in process.stderr:
            if line.startswith("step 4 "):
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[victim]), signal.SIGKILL)
                break
        started = time.monotonic()
        err = self.finish(process, 4)
        if f"rank {victim} of {ranks} was killed by signal 9" not in err or "step " not in err:
            raise Failure(f"the sentence does not name the rank: {err[-300:]}")
        if time.monotonic() - started > 15:
            raise Failure("the others were not ended within seconds")
        return out, path

    def kill_and_go_on(self, name, reference):
        out, path = self.killed(name, 3, 1)
        self.run(path, "--ranks", "2")
        if self.bits(out) != reference:
            raise Failure("the run that was killed and resumed has other bits")

    def stalled(self, name):
        out = self.tmp / f"{name}-stalled"
        path = self.write(f"{name}-stalled", config_of(self.goldens / name, out))
        process = subprocess.Popen([*self.runs, str(path), "--ranks", "2", "--patience", "5"], stderr=subprocess.PIPE, text=True,
                                   stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for line in process.stderr:
            if line.startswith("step 3 "):
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[1]), signal.SIGSTOP)
                break
        err = self.finish(process, 4)
        if "rank 1 of 2" not in err:
            raise Failure(err[-300:])

    def other_run(self, name):
        """A finished run's folder with another config: refused by key; a damaged newest checkpoint is passed over and said."""
        out = self.tmp / name
        config = config_of(self.goldens / name, out)
        path = self.write("other", config)
        for option, key in (("seed=3", "'seed'"), ("train.gradient_accumulation_steps=2", "'train.gradient_accumulation_steps'")):
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
        done = self.run(path, "--set", "checkpoint.save_steps=20", want=4)
        if "passed over" not in done.stderr or "going on from" not in done.stderr or "could NOT be saved" not in done.stderr:
            raise Failure(done.stderr)
        shutil.rmtree(newest)
        self.run(path)
        if self.bits(out) != before:
            raise Failure("gone on from the one before, with other bits")

    def planned(self, name):
        """`fsdptrain plan` against a finished run and by hand."""
        path = self.write("planned", config_of(self.goldens / name, self.tmp / "unused"))
        def plan(ranks):
            done = subprocess.run([self.tool, "plan", str(path), "--ranks", str(ranks), "--json"], capture_output=True, text=True, check=True)
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
        done = self.run(path, "--set", "train.on_nonfinite=skip", "--ranks", "2")
        if "the step is skipped" not in done.stderr or self.metrics(out)[-1]["loss"] is not None:
            raise Failure(done.stderr)

    # --- text

    def text(self):
        """Conversations, completions and texts train as they are, from one cache, to the same bits at any number of ranks; bad data is told by line."""
        model = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures" / "tiny-llama-tied"
        lines = [{"messages": [{"role": "user", "content": f"What is {i} plus {i}?"}, {"role": "assistant", "content": f"It is {2 * i}."}] * (1 + i % 3)} for i in range(12)]
        lines += [{"prompt": f"Count to {i}: ", "completion": " ".join(map(str, range(i)))} for i in range(1, 5)] + [{"text": "The weather in a place."}]
        data = self.tmp / "text.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = self.tmp / "text"
        config = {"model": str(model), "output_dir": str(out), "data": {"train": str(data), "seq_len": 128}, "lora": {"r": 4}, "dtype": {"param": "fp32"},
                  "train": {"max_steps": 3, "global_batch_size": 3, "warmup_steps": 1, "learning_rate": 0.01}}
        done = self.run(self.write("text", config))
        if "17 documents, " not in done.stderr or "in 7 rows of 128 tokens, 87.9 % full" not in done.stderr or len(list((out / "cache").glob("tokens-*.bin"))) != 1:
            raise Failure(f"a cache of 17 documents is wanted: {done.stderr}")
        first = self.bits(out)
        shutil.rmtree(out / "checkpoints")
        shutil.rmtree(out / "adapter")
        done = self.run(self.write("text", config), "--ranks", "3", "--resume", "never")
        if "; from " not in done.stderr or self.bits(out) != first:
            raise Failure("from the cache, at 3 ranks: other bits")
        data.write_text(data.read_text() + '{"messages": [{"role": "user"}]}\n')
        done = self.run(self.write("text", config), want=3)
        if "text.jsonl: line 18: " not in done.stderr:
            raise Failure(done.stderr)
        shutil.rmtree(out / "checkpoints")
        done = self.run(self.write("text", config), "--resume", "never", "--set", "data.on_bad_line=skip")
        if "1 bad lines left out" not in done.stderr or self.bits(out) != first:
            raise Failure(f"with the bad line left out: {done.stderr}")

    def verbs(self):
        """tokenize shows what is trained on; init writes a config that runs, and replaces none."""
        model = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures" / "tiny-llama-tied"
        data, config = self.tmp / "verbs.jsonl", self.tmp / "verbs.json"
        data.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f" It is {i}. "}]}) + "\n" for i in range(9)))

        def tool(*args, want=0):
            done = subprocess.run([self.tool, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=self.tmp)
            if done.returncode != want:
                raise Failure(f"{args}: exit code {done.returncode}, {want} wanted: {done.stderr}")
            return done
        shown = json.loads(tool("tokenize", model, data, "--chat", "--json").stdout)["examples"]
        trained = ["".join(t for t, m in zip(e["tokens"], e["mask"]) if m) for e in shown]
        if trained != [f"It\u0120is\u0120{i}.<|eot_id|>" for i in range(9)]:
            raise Failure(f"trained on {trained}")
        text = tool("tokenize", model, "Hello").stdout
        if "<|begin_of_text|>" not in text or "<|begin_of_text|>" in tool("tokenize", model, "Hello", "--no-special").stdout:
            raise Failure(text)
        if "verbs.json: line 1: " not in tool("tokenize", model, __file__, "--chat", want=3).stderr.replace(__file__, "verbs.json"):
            raise Failure("a bad line is not told")
        tool("init", model, data, "--out", config, "--ranks", 2)
        tool("init", model, data, "--out", config, want=2)
        tool("run", config, "--ranks", 2, "--set", "dtype.param=fp32")
        written = json.loads(config.read_text())
        summary = json.loads((self.tmp / written["output_dir"] / "summary.json").read_text())
        if not summary["finished"] or not (self.tmp / written["output_dir"] / "adapter" / "adapter_config.json").exists():
            raise Failure(f"init's config does not train: {summary}")
        if json.loads(tool("plan", config, "--set", "train.max_steps=2", "--json").stdout)["steps"] != 2:
            raise Failure("max_steps does not count beside num_train_epochs")

    def model_refused(self, name, keys, words):
        """A config.json that asks for other maths ends the run before anything is loaded, with the key's name."""
        model = self.tmp / "refused-model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **keys}))
        self.refused(name, put(None, "model", str(model)), 3, words)

    def samples(self):
        """What a run says of its prompts `sample` says of its checkpoint and of its adapter; the card is filled in, and a user's own stays."""
        model = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures" / "tiny-llama-tied"
        out, chat = self.tmp / "samples", model.parent / "chat.jsonl"
        config = {"model": str(model), "output_dir": str(out), "data": {"train": str(chat), "seq_len": 128}, "lora": {"r": 4},
                  "train": {"max_steps": 3, "global_batch_size": 3, "warmup_steps": 0, "learning_rate": 0.01},
                  "sample": {"every": 2, "prompts": ["How are you?", {"text": "Once"}]}}
        said = self.run(self.write("samples", config), "--ranks", "2").stderr
        texts = (out / "samples/step-000003.txt").read_text()
        if "step 3, sample 2: " not in said or not (out / "samples/step-000002.txt").exists():
            raise Failure(said)

        def tool(*args, want=0, stdin=b""):
            done = subprocess.run([self.tool, "sample", *map(str, args)], capture_output=True, timeout=120, input=stdin)
            if done.returncode != want:
                raise Failure(f"{args}: exit code {done.returncode}, {want} wanted: {done.stderr}")
            return done
        adapter, tuned = out / "adapter", ["--adapter", out / "checkpoints/step-000003", "--max-new-tokens", 128]
        for prompt, options in (("How are you?", ["--chat"]), ("Once", [])):
            text = tool(model, "--prompt", prompt, *options, *tuned, "-q").stdout.decode()
            if f"\n== sample ==\n{text}" not in texts:
                raise Failure(f"'{text}' is not in {texts}")
            told = json.loads(tool(model, "--prompt", prompt, *options, "--adapter", adapter, "--max-new-tokens", 128, "--json", "--threads", 3).stdout)["samples"][0]
            if told["text"] + "\n" != text or told["finish_reason"] != ("length" if len(told["ids"]) == 128 else "stop"):
                raise Failure(f"{told} and {text!r}")
            if tool(model, *options, *tuned, "-q", stdin=prompt.encode() + b"\n").stdout.decode() != text:
                raise Failure("from standard input: another text")
        several = ["--prompt", "Once", "--prompt", "Twice", "--samples", 3, "--temperature", 6, "--top-p", 0.9, "--top-k", 0, "--seed", 5, "--max-new-tokens", 30]
        first = tool(model, *several, "--json", "--threads", 1)
        texts = {s["text"] for s in json.loads(first.stdout)["samples"]}
        shown = tool(model, *several, "--threads", 3, "-q").stdout.decode()
        if len(texts) != 6 or any(f"\n{t}\n" not in shown for t in texts) or "== prompt 2, sample 3 ==" not in shown:
            raise Failure(f"{texts}, {shown}")
        messages = json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        ids = [json.loads(tool(model, "--chat", *p, "--max-new-tokens", 1, "--json").stdout)["samples"][0]["prompt_ids"]
               for p in (["--prompt", messages], ["--system", "Be brief.", "--prompt", "Hi"], ["--prompt", "Hi"])]
        if ids[0] != ids[1] or ids[1] == ids[2]:
            raise Failure(f"{ids}")
        for wrong, code, words in ((["--samples", 2], 2, "would be the same text"), (["--top-p", 2], 2, "top-p is 2"), (["--system", "x"], 2, "wants --chat"),
                                   (["--seed", 1.5], 2, "--seed: a whole number"), (["--adapter", self.tmp], 3, "adapter_config.json"), (["--dtype", "fp16"], 2, "--dtype"),
                                   (["--prompt", b"\xff"], 2, "no UTF-8"), (["--top-k", 1e12], 2, "--top-k: a whole number")):
            said = subprocess.run([self.tool, "sample", model, "--prompt", "x", *(w if isinstance(w, bytes) else str(w) for w in wrong)], capture_output=True, timeout=120)
            if said.returncode != code or words not in said.stderr.decode() or said.stdout:
                raise Failure(f"{wrong}: exit code {said.returncode}, {said.stderr}")
        if b"other base" not in tool(self.other_model(model), "--prompt", "x", *tuned, want=2).stderr.replace(b"another base", b"other base"):
            raise Failure("adapters on a base that is not theirs")

        card = (adapter / "README.md").read_text()
        for words in (f'---\nbase_model: "{model}"\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- "base_model:adapter:{model}"\n- lora\n', "| steps | 3 of 3 |",
                      f"| training loss, last step | {self.metrics(out)[-1]['loss']:.6g} |", f'- "{chat}"', "| r, lora_alpha, lora_dropout | 4, 32, 0 |"):
            if words not in card:
                raise Failure(f"{words!r} is not in {card}")
        shutil.rmtree(adapter)
        self.run(self.write("samples", config))
        if (adapter / "README.md").read_text() != card:
            raise Failure("another card when the adapter is exported again")
        (adapter / "README.md").write_text("mine")
        self.run(self.write("samples", config))
        if (adapter / "README.md").read_text() != "mine" or (out / "adapter.old").exists():
            raise Failure("a README of the user's is gone")

    def other_model(self, model):
        """The same shapes, and one other value."""
        other = self.tmp / "other-model"
        shutil.copytree(model, other)
        shard = sorted(other.glob("*.safetensors"))[0]
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        shard.write_bytes(raw)
        return other

    def refused(self, name, change, code, words):
        config = config_of(self.goldens / name, self.tmp / "refused")
        change(config)
        done = self.run(self.write("refused", config), want=code)
        if words not in done.stderr or done.stderr.count("\n") > 2:
            raise Failure(f"'{words}' wanted in one line: {done.stderr[-400:]}")


def put(section, key, value):
    def change(config):
        (config.setdefault(section, {}) if section else config)[key] = value
    return change


REFUSALS = [
    (put("train", "max_stepz", 3), 2, "unknown key 'train.max_stepz'; the nearest is 'train.max_steps'"),
    (put(None, "modle", "x"), 2, "the nearest is 'model'"),
    (put("fsdp", "sharding_strategy", "HYBRID_SHARD"), 2, "key 'fsdp.sharding_strategy': \"HYBRID_SHARD\" is not in this version"),
    (put("dtype", "param", "fp16"), 2, "key 'dtype.param': \"fp16\" is not in this version"),
    (put("dtype", "reduce", "fp16"), 2, "key 'dtype.reduce': \"fp16\" is not in this version"),
    (put("train", "learning_rate", -1), 2, "key 'train.learning_rate'"),
    (put("data", "train", "/nowhere.jsonl"), 3, "/nowhere.jsonl"),
    (put(None, "model", "/nowhere"), 3, "/nowhere"),
    (put("train", "max_steps", 13), 2, "has 12 steps"),
    (put("lora", "target_modules", ["q_proj", "no_such"]), 2, "'no_such' names no module"),
    (put("lora", "target_modules", "no_such"), 2, "matches no module"),
    (put("lora", "r", 5), 2, "'r' is not that of"),
    (put("lora", "target_modules", "(("), 2, "no regular expression"),
    (put("data", "eval", "/no-such.jsonl"), 3, "/no-such.jsonl"),
    (put(None, "sample", {"every": 5}), 2, "sample.prompts has none"),
    (put(None, "sample", {"every": 5, "prompts": "Hi"}), 2, "key 'sample.prompts': a list is wanted"),
    (put(None, "sample", {"prompts": ["Hi"]}), 3, "tokenizer.json"),
    (put(None, "sample", {"prompts": [{"input_ids": [1, 4000]}]}), 2, "token 4000 is none of the model's"),
    (put(None, "sample", {"prompts": [{"input_ids": []}]}), 2, "prompt 1 has 0 tokens"),
    (put(None, "sample", {"prompts": [{"input_ids": ["x"]}]}), 2, "'input_ids' is a list of tokens' numbers"),
]


MODEL_REFUSALS = [
    ({"model_type": "gemma2"}, 'model_type "gemma2" is not supported'),
    ({"hidden_act": "gelu"}, "key 'hidden_act'"),
    ({"attention_dropout": 0.1}, "key 'attention_dropout'"),
    ({"partial_rotary_factor": 0.5}, "key 'partial_rotary_factor'"),
    ({"pretraining_tp": 2}, "key 'pretraining_tp'"),
    ({"num_experts": 8}, "key 'num_experts'"),
    ({"final_logit_softcapping": 30.0}, "key 'final_logit_softcapping'"),
    ({"quantization_config": {"quant_method": "gptq"}}, "key 'quantization_config'"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "key 'layer_types'"),
    ({"layer_types": ["full_attention"]}, "key 'layer_types'"),
    ({"mlp_bias": True}, "key 'mlp_bias'"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type "dynamic" is not supported'),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "key 'rope_scaling.short_factor'"),
    ({"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, "key 'rope_parameters.full_attention'"),
    ({"rope_scaling": {"rope_type": "linear"}}, "has no 'factor'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}}, "key 'partial_rotary_factor'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 64}, "key 'original_max_position_embeddings'"),
    ({"num_key_value_heads": 3}, "must be a multiple"),
    ({"hidden_size": 0}, "key 'hidden_size'"),
    ({"vocab_size": "many"}, "key 'vocab_size'"),
    ({"num_hidden_layers": 7}, "model.layers.2."),
    ({"intermediate_size": 5}, "mlp.gate_proj.weight"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--case")
    add_device(parser)
    args = parser.parse_args()
    t = Tests(args)
    cases = [args.case] if args.case else sorted(p.parent.name for p in args.goldens.glob("*/expected.json") if p.parent.name != "smollm2")
    try:
        for name in cases:
            t.check(f"golden {name}", t.golden, name)
        for name in [c for c in ("lora-qwen3", "full-qwen3-untied") if c in cases]:
            reference = t.bits(t.tmp / name)
            for ranks in (2, 3, 4, 5, 8):
                t.check(f"{name} at {ranks} ranks", t.same_bits, name, reference, f"ranks{ranks}", ["--ranks", str(ranks), "--threads", "1"])
            for threads in (1, 2, 3, 7):
                t.check(f"{name} with {threads} threads", t.same_bits, name, reference, f"threads{threads}", ["--threads", str(threads)])
            t.check(f"{name} with recomputed blocks", lambda: t.same_bits(name, reference, "block", ["--ranks", "2"],
                    sets={"fsdp.activation_checkpointing": "block", "fsdp.forward_prefetch": 3, "fsdp.reshard_after_forward": False}))
            for strategy, forward, backward, reshard in (("FULL_SHARD", 0, 0, True), ("FULL_SHARD", 1, 2, True), ("FULL_SHARD", 5, 1, False), ("SHARD_GRAD_OP", 2, 0, True),
                                                         ("NO_SHARD", 1, 1, True)):
                t.check(f"{name} gathered by copying, {strategy} {forward} {backward} {reshard}", lambda: t.same_bits(
                    name, reference, f"{strategy}{forward}{backward}{reshard}", ["--ranks", "3", "--threads", "1", "--gather", "copy"],
                    sets={"fsdp.sharding_strategy": strategy, "fsdp.forward_prefetch": forward, "fsdp.backward_prefetch": backward,
                          "fsdp.reshard_after_forward": reshard}))
            t.check(f"{name} in bf16", t.bf16_bits, name)
            t.check(f"{name}: dtype.reduce and dtype.output", t.dtype_bits, name)
            t.check(f"{name}: packets of two", t.packet_bits, name)
            t.check(f"{name} resumed", t.resumed_bits, name, reference, [1, 4, 3, 2])
            t.check(f"{name} killed", t.kill_and_go_on, name, reference)
        if "lora-qwen3" in cases:
            t.check("text", t.text)
            t.check("tokenize and init", t.verbs)
            t.check("samples", t.samples)
            t.check("drawn adapters, dropout, our packing", t.drawn_bits, "lora-qwen3")
            t.check("another run's checkpoint", t.other_run, "lora-qwen3")
            t.check("plan", t.planned, "lora-qwen3")
            t.check("non-finite", t.nonfinite, "lora-qwen3")
            t.check("stalled rank", t.stalled, "lora-qwen3")
            for change, code, words in REFUSALS:
                t.check(f"refusal: {words}", t.refused, "lora-qwen3", change, code, words)
            for keys, words in MODEL_REFUSALS:
                t.check(f"refusal of a model: {words}", t.model_refused, "lora-qwen3", keys, words)
    finally:
        shutil.rmtree(t.tmp, ignore_errors=True)
    print(f"{t.passed} passed, {t.failed} failed")
    return t.failed > 0


if __name__ == "__main__":
    sys.exit(main())
