# SPDX-License-Identifier: Apache-2.0
"""What a run says before it starts, what it keeps from its first day, and by which keys it refuses to go on as another
run."""
import datetime, fcntl, json, os, pathlib, shutil, socket, subprocess

from harness import LIMIT_S, Failure, Tests

FIXTURES = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures"
CHAT = [{"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"It is {i}."}]}
        for i in range(12)]


class Said(Tests):
    def said_config(self, name, lines=CHAT, model=FIXTURES / "tiny-llama-tied", **sections):
        data = self.tmp / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        config = {
            "model": str(model), "output_dir": str(self.tmp / name), "data": {"train": str(data), "seq_len": 128},
            "lora": {"r": 4, "lora_alpha": 8}, "train": {"max_steps": 2, "global_batch_size": 2, "learning_rate": 0.01}
        }
        for section, keys in sections.items():
            config[section] = {**config.get(section, {}), **keys}
        return self.write(name, config)

    def says(self, words, *args, want=0):
        command = [*self.runs, *args[1:]] if args[0] == "run" else [self.tool, *args]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S, cwd=self.tmp,
                              stdin=subprocess.DEVNULL)
        if done.returncode != want or any(w not in done.stderr + done.stdout for w in words):
            raise Failure(f"{args}: exit code {done.returncode}, {want} and {words} wanted: {done.stdout}{done.stderr}")
        return done.stderr

    def settings(self):
        """Settings that do not do what they say are said at start; the warm-up is a share of the run unless it is
        given."""
        config = self.said_config("settings")
        warm = "learning rate 0.01, cosine, 1 step of warm-up (train.warmup_ratio 0.05)"
        if "never reaches" in self.says([warm], "run", config):
            raise Failure("a share of the run leaves a step with the whole rate")
        shutil.rmtree(self.tmp / "settings")
        told = (
            (
                {"train.warmup_steps": 3},
                (
                    "train.warmup_steps is 3 and the run has 2 steps: the learning rate ends at 0.00333333 and never"
                    " reaches train.learning_rate, 0.01"
                ),
            ),
            (
                {"train.warmup_steps": 0, "train.warmup_ratio": 0.5},
                "key 'train.warmup_ratio' has no effect: train.warmup_steps is given too",
            ),
            ({"train.learning_rate": 0}, "nothing is learnt"),
            ({"data.date": "2026-11-23"}, "key 'data.date' has no effect"),
        )
        for sets, words in told:
            self.says([words], "plan", config, *(x for k, v in sets.items() for x in ("--set", f"{k}={v}")))
        self.says(["key 'data.date': \"2026-11-31\" is no day"], "plan", config, "--set", "data.date=2026-11-31",
                  want=2)
        positions = json.loads((FIXTURES / "tiny-llama-tied/config.json").read_text())["max_position_embeddings"]
        self.says(
            [f"data.seq_len is {positions + 1}, and the model has {positions} positions"],
            "plan",
            config,
            "--set",
            f"data.seq_len={positions + 1}",
        )
        long = self.said_config(
            "long",
            [{"input_ids": [1] * (positions + 5), "labels": [1] * (positions + 5)}],
            data={"seq_len": 2 * positions},
        )
        self.says(
            [f"the longest document has {positions + 5} tokens, and the model has {positions} positions"], "plan", long
        )
        if "positions" in self.says([], "plan", self.said_config("fits")):
            raise Failure("documents that fit")

    def whole_lines(self):
        """What ranks and the process that watches them say does not mix within a line: each write(2) ends with one."""
        config = self.said_config("whole-lines")
        for args in ((*self.runs, config, "--ranks", "2"), (self.tool, "run", config, "--set", "data.seq_len=-1"),
                     (self.tool, "run", self.tmp / "no-such\x01.json")):
            read, write = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)  # packets: a read brings what one write brought
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
            with subprocess.Popen([*map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=write):
                os.close(write)
                packets = [p for p in iter(lambda: os.read(read, 1 << 16), b"")]
            os.close(read)
            if not packets or any(not p.endswith(b"\n") for p in packets):
                raise Failure(f"{args}: {[p for p in packets if not p.endswith(bytes([10]))]} of {len(packets)} writes")

    def date(self):
        """A template that shows the date: the day of the first start is kept, goes on the next day, and may be set."""
        model = self.tmp / "dated-model"
        shutil.copytree(FIXTURES / "tiny-llama-tied", model)
        (model / "chat_template.jinja").write_text(
            "{% for m in messages %}<|{{ m.role }} {{ strftime_now('%d %b %Y') }}|>{{ m.content }}<|eot_id|>{% endfor"
            " %}{% if add_generation_prompt %}<|assistant {{ strftime_now('%d %b %Y') }}|>{% endif %}"
        )
        config, out = self.said_config("dated", model=model, train={"max_steps": 1}), self.tmp / "dated"
        today = datetime.date.today()
        said = self.says(["  date        20"], "run", config)
        kept = (out / "cache/date").read_text()
        if kept.strip() not in said or kept.strip() not in {str(today), str(datetime.date.today())}:
            raise Failure(f"{kept} kept, {said}")
        shutil.rmtree(out)
        self.says(["date        2024-02-29"], "run", config, "--set", "data.date=2024-02-29")
        first = self.bits(out)
        # today is another day
        self.says(["date        2024-02-29", "going on from"], "run", config, "--set", "train.max_steps=2")
        shutil.rmtree(out / "cache")
        # the checkpoint keeps it, too
        self.says(["date        2024-02-29"], "run", config, "--set", "train.max_steps=3")
        self.says(["key 'data.date' was \"2024-02-29\" and is \"2024-03-01\""], "run", config, "--set",
                  "data.date=2024-03-01", "--set", "train.max_steps=4", want=2)
        shutil.rmtree(out)
        self.says(["date        2024-03-01"], "run", config, "--set", "data.date=2024-03-01")
        if self.bits(out) == first:
            raise Failure("another date, the same text")
        tokens = self.said_config("dated-samples", [{"input_ids": [1] * 9, "labels": [1] * 9}] * 4, model=model,
                                  train={"max_steps": 1}, sample={"prompts": ["How?"]})
        self.says(["date        2024-02-29"], "run", tokens, "--set", "data.date=2024-02-29")
        self.says(["date        2024-02-29", "going on from"], "run", tokens, "--set", "train.max_steps=2")

    def other_keys(self):
        """A run that would be another one: every key that differs is named, with what it was and is."""
        config = self.said_config("other-keys", train={"max_steps": 1})
        self.said_config("other-data", CHAT[:7])
        self.says([], "run", config)
        cases = (
            ({"lora.r": 8}, ["key 'lora.r' was 4 and is 8"], ["lora_alpha"]),
            (
                {"lora.r": 8, "lora.lora_alpha": 16},
                ["key 'lora.r' was 4 and is 8", "key 'lora.lora_alpha' was 8.0 and is 16.0"],
                [],
            ),
            (
                {"lora.lora_alpha": 9, "seed": 1},
                ["key 'lora.lora_alpha' was 8.0 and is 9.0", "key 'seed' was 42 and is 1"],
                ["lora.r'", "data"],
            ),
            (
                {"lora.target_modules": '["q_proj"]'},
                ["key 'lora.target_modules' was \"all-linear\" and is [\"q_proj\"]"],
                ["lora.r'"],
            ),
            ({"lora.modules_to_save": '["lm_head"]'}, ["key 'lora.modules_to_save' was [] and is [\"lm_head\"]"], []),
            ({"data.seq_len": 64}, ["key 'data.seq_len' was 128 and is 64"], ["packing", "data.train"]),
            (
                {"data.packing": "false", "train.global_batch_size": 3},
                ["key 'data.packing' was true and is false", "key 'train.global_batch_size' was 2 and is 3"],
                ["seq_len"],
            ),
            ({"data.loss_on": "all"}, ["key 'data.loss_on' was \"assistant\" and is \"all\""], ["data.train"]),
            (
                {"data.train": self.tmp / "other-data.jsonl"},
                ["key 'data.train' was [", "other-keys.jsonl\"] and is [", "other-data.jsonl\"]"],
                ["seq_len"],
            ),
        )
        for sets, wanted, unwanted in cases:
            said = self.says(wanted, "run", config, *(x for k, v in sets.items() for x in ("--set", f"{k}={v}")),
                             want=2)
            if any(w in said.split("another run: ")[1].split("\n")[0] for w in unwanted):
                raise Failure(f"{sets}: {said}")
        # the first that fits counts
        for i, order in enumerate((["[qk]_proj", "[kv]_proj"], ["[kv]_proj", "[qk]_proj"])):
            ordered = self.said_config(
                "other-order", train={"max_steps": 1}, lora={"rank_pattern": {p: 2 if "q" in p else 3 for p in order}}
            )
            self.says(
                ["'lora.rank_pattern' or 'lora.alpha_pattern' stand in another order"] * i, "run", ordered, want=2 * i
            )
        (self.tmp / "other-keys.jsonl").write_text(pathlib.Path(self.tmp / "other-data.jsonl").read_text())
        self.says(["key 'data.train': the text in the files, or the tokenizer"], "run", config, want=2)

    def no_files(self):
        """What is no file is refused by its kind, wherever a path is typed, and waits for nobody; a typo is told from
        text."""
        config, model = self.said_config("no-files"), FIXTURES / "tiny-llama-tied"
        fifo, sock, data = self.tmp / "fifo.jsonl", socket.socket(socket.AF_UNIX), self.tmp / "no-files.jsonl"
        os.mkfifo(fifo)
        sock.bind(str(self.tmp / "socket.jsonl"))
        for key, path, words in (
            ("data.train", fifo, "this is a FIFO"),
            ("data.eval", fifo, "this is a FIFO"),
            ("data.plan", fifo, "this is a FIFO"),
            ("model", fifo, "this is a FIFO"),
            ("data.train", self.tmp / "socket.jsonl", "this is a socket"),
            ("data.train", "/dev/null", "this is a device"),
            ("data.train", self.tmp, "this is a folder"),
            ("model", "nosuch", "nosuch: there is no such model"),
            ("model", data, "this is a file; a model is a folder"),
            ("model", self.tmp, "there is no config.json in it"),
        ):
            self.says([words], "plan", config, "--set", f"{key}={path}", want=3)
        self.says(["this is a FIFO", "write what comes through it to a file first"], "run", fifo, want=2)
        copy = self.tmp / "fifo-model"
        for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(model, copy)
            (copy / name).unlink(missing_ok=True)
            os.mkfifo(copy / name)
            self.says([f"{name}: this is a FIFO"], "plan", config, "--set", f"model={copy}", want=3)
        self.says(["the model comes first"], "init", data, model, want=2)
        self.says(["there is no such model"], "init", "nosuch", data, want=3)
        for typed in ("nosuch.txt", "nosuch.jsonl", "./nosuch", f"{self.tmp}/nosuch"):
            self.says(["there is no such file", "--text"], "tokenize", model, typed, want=3)
        self.says(["\"n\""], "tokenize", model, "nosuch.txt", "--text")
        self.says(["this is no file"], "tokenize", model, fifo, want=3)
        self.says(["\"or\""], "tokenize", model, "and/or")
        self.says(["hint: there is no file of that name"], "tokenize", model, "no words", "--chat", want=3)
        for typed, *more in (("{", "--chat"), (data, "--chat", "--text")):
            if "no file of that name" in self.says(["line 1: "], "tokenize", model, typed, *more, want=3):
                raise Failure(f"tokenize {typed} {more}: this was no mistaken name")
        sock.close()
