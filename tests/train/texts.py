# SPDX-License-Identifier: Apache-2.0
"""Text in and out: chats and texts that are trained on, `tokenize`, `init`, `sample`, and the adapter's card."""
import json, pathlib, shutil, subprocess
import numpy as np

from harness import LIMIT_S, Failure, Tests, read_safetensors, write_safetensors

FIXTURES = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures"


class Texts(Tests):
    def text(self):
        """Conversations, completions and texts train as they are, from one cache, to the same bits at any number of
        ranks; bad data is told by line."""
        model = FIXTURES / "tiny-llama-tied"
        lines = [
            {
                "messages": [
                    {"role": "user", "content": f"What is {i} plus {i}?"},
                    {"role": "assistant", "content": f"It is {2 * i}."},
                ]
                * (1 + i % 3)
            }
            for i in range(12)
        ]
        lines += [{"prompt": f"Count to {i}: ", "completion": " ".join(map(str, range(i)))} for i in range(1, 5)] + [
            {"text": "The weather in a place."}
        ]
        data = self.tmp / "text.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = self.tmp / "text"
        config = {
            "model": str(model), "output_dir": str(out), "data": {"train": str(data), "seq_len": 128}, "lora": {"r": 4},
            "dtype": {"param": "fp32"},
            "train": {"max_steps": 3, "global_batch_size": 3, "warmup_steps": 1, "learning_rate": 0.01}
        }
        done = self.run(self.write("text", config))
        if "17 documents, " not in done.stderr or "in 7 rows of 128 tokens, 87.9 % full" not in done.stderr or len(
                list((out / "cache").glob("tokens-*.bin"))) != 1:
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
        if "1 bad line left out" not in done.stderr or self.bits(out) != first:
            raise Failure(f"with the bad line left out: {done.stderr}")

    def verbs(self):
        """tokenize shows what is trained on; init writes a config that runs, and replaces none."""
        model = FIXTURES / "tiny-llama-tied"
        data, config = self.tmp / "verbs.jsonl", self.tmp / "verbs.json"
        data.write_text("".join(
            json.dumps({
                "messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f" It is {i}. "}]
            }) + "\n" for i in range(9)))

        def tool(*args, want=0):
            done = subprocess.run([self.tool, *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S,
                                  cwd=self.tmp)
            if done.returncode != want:
                raise Failure(f"{args}: exit code {done.returncode}, {want} wanted: {done.stderr}")
            return done
        shown = json.loads(tool("tokenize", model, data, "--chat", "--json").stdout)["examples"]
        trained = ["".join(t for t, m in zip(e["tokens"], e["mask"]) if m) for e in shown]
        if trained != [f"It\u0120is\u0120{i}.<|eot_id|>" for i in range(9)]:
            raise Failure(f"trained on {trained}")
        text = tool("tokenize", model, "Hello").stdout
        if "<|begin_of_text|>" not in text or "<|begin_of_text|>" in tool("tokenize", model, "Hello",
                                                                          "--no-special").stdout:
            raise Failure(text)
        if "verbs.json: line 1: " not in tool("tokenize", model, __file__, "--chat",
                                              want=3).stderr.replace(__file__, "verbs.json"):
            raise Failure("a bad line is not told")
        tool("init", model, data, "--out", config, "--ranks", 2)
        tool("init", model, data, "--out", config, want=2)
        tool("run", config, "--ranks", 2, "--set", "dtype.param=fp32")
        written = json.loads(config.read_text())
        summary = json.loads((self.tmp / written["output_dir"] / "summary.json").read_text())
        if (
            not summary["finished"]
            or not (self.tmp / written["output_dir"] / "adapter" / "adapter_config.json").exists()
        ):
            raise Failure(f"init's config does not train: {summary}")
        if json.loads(tool("plan", config, "--set", "train.max_steps=2", "--json").stdout)["steps"] != 2:
            raise Failure("max_steps does not count beside num_train_epochs")
        for example, columns in (({"question": "a", "answer": "b"}, {"prompt": "question", "completion": "answer"}), ({
                "instruction": "a", "context": None, "response": "b", "category": "c"
        }, {"instruction": "instruction", "input": "context",
                "output": "response"}), ({"instruction": "a", "output": "b"}, None)):
            data.write_text(json.dumps([example] * 5, indent=1))
            said = tool("init", model, data, "--out", config, "--force").stdout
            written = json.loads(config.read_text())["data"]
            if written.get("columns") != columns or ("data.columns" in said) != bool(columns):
                raise Failure(f"init of {example}: {written}, {said}")
            tool("plan", config)
        data.write_text(json.dumps({"ask": "a", "reply": "b"}) + "\n")
        if "data.columns says" not in tool("init", model, data, "--out", config, "--force", want=3).stderr:
            raise Failure("columns that nobody knows are refused without the way out")

    def samples(self):
        """What a run says of its prompts `sample` says of its checkpoint and of its adapter; the card is filled in, and
        a user's own stays."""
        model = FIXTURES / "tiny-llama-tied"
        out, chat = self.tmp / "samples", model.parent / "chat.jsonl"
        config = {
            "model": str(model),
            "output_dir": str(out),
            "data": {"train": str(chat), "seq_len": 128},
            "lora": {"r": 4, "modules_to_save": ["norm", "lm_head"], "use_dora": True},
            "train": {"max_steps": 3, "global_batch_size": 3, "warmup_steps": 0, "learning_rate": 0.01},
            "sample": {"every": 2, "prompts": ["How are you?", {"text": "Once"}]},
        }
        said = self.run(self.write("samples", config), "--ranks", "2").stderr
        texts = (out / "samples/step-000003.txt").read_text()
        if "step 3, sample 2: " not in said or not (out / "samples/step-000002.txt").exists():
            raise Failure(said)

        def tool(*args, want=0, stdin=b""):
            done = subprocess.run([self.tool, "sample", *map(str, args)], capture_output=True, timeout=LIMIT_S,
                                  input=stdin)
            if done.returncode != want:
                raise Failure(f"{args}: exit code {done.returncode}, {want} wanted: {done.stderr}")
            return done
        adapter, tuned = out / "adapter", ["--adapter", out / "checkpoints/step-000003", "--max-new-tokens", 128]
        for prompt, options in (("How are you?", ["--chat"]), ("Once", [])):
            text = tool(model, "--prompt", prompt, *options, *tuned, "-q").stdout.decode()
            if f"\n== sample ==\n{text}" not in texts:
                raise Failure(f"'{text}' is not in {texts}")
            told = json.loads(
                tool(
                    model,
                    "--prompt",
                    prompt,
                    *options,
                    "--adapter",
                    adapter,
                    "--max-new-tokens",
                    128,
                    "--json",
                    "--threads",
                    3,
                ).stdout
            )["samples"][0]
            if told["text"] + "\n" != text or told["finish_reason"] != (
                "length" if len(told["ids"]) == 128 else "stop"
            ):
                raise Failure(f"{told} and {text!r}")
            if tool(model, *options, *tuned, "-q", stdin=prompt.encode() + b"\n").stdout.decode() != text:
                raise Failure("from standard input: another text")
        several = [
            "--prompt", "Once", "--prompt", "Twice", "--samples", 3, "--temperature", 6, "--top-p", 0.9, "--top-k", 0,
            "--seed", 5, "--max-new-tokens", 30
        ]
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
        for wrong, code, words in (
            (["--samples", 2], 2, "would be the same text"),
            (["--top-p", 2], 2, "top-p is 2"),
            (["--system", "x"], 2, "wants --chat"),
            (["--seed", 1.5], 2, "--seed: a whole number"),
            (["--adapter", self.tmp], 3, "adapter_config.json"),
            (["--dtype", "fp16"], 2, "--dtype"),
            (["--prompt", b"\xff"], 2, "no UTF-8"),
            (["--top-k", 1e12], 2, "--top-k: a whole number"),
        ):
            said = subprocess.run(
                [self.tool, "sample", model, "--prompt", "x", *(w if isinstance(w, bytes) else str(w) for w in wrong)],
                capture_output=True,
                timeout=LIMIT_S,
            )
            if said.returncode != code or words not in said.stderr.decode() or said.stdout:
                raise Failure(f"{wrong}: exit code {said.returncode}, {said.stderr}")
        if b"other base" not in tool(self.other_model(model), "--prompt", "x", *tuned,
                                     want=2).stderr.replace(b"another base", b"other base"):
            raise Failure("adapters on a base that is not theirs")

        stray = self.tmp / "samples-stray"
        shutil.copytree(adapter, stray)
        write_safetensors(
            stray / "adapter_model.safetensors",
            {
                **read_safetensors(adapter / "adapter_model.safetensors"),
                "base_model.model.model.stray.weight": np.ones(3, np.float32),
            },
        )
        if (
            b"'base_model.model.model.stray.weight'"
            not in tool(model, "--prompt", "x", "--adapter", stray, want=3).stderr
        ):
            raise Failure("a tensor of an adapter is dropped")

        card = (adapter / "README.md").read_text()
        for words in (
            (
                f'---\nbase_model: "{model}"\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n-'
                f' "base_model:adapter:{model}"\n- lora\n'
            ),
            "| steps | 3 of 3 |",
            f"| training loss, last step | {self.metrics(out)[-1]['loss']:.6g} |",
            f'- "{chat}"',
            "| r, lora_alpha, lora_dropout | 4, 32, 0, DoRA |",
            "| modules_to_save | norm, lm_head |",
        ):
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
