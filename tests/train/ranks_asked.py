# SPDX-License-Identifier: Apache-2.0
"""What a run does beside training, at any number of ranks: evaluations, samples, what it is asked for while it goes."""
import json, signal, subprocess

from harness import Early, Failure
from ranks_harness import Ranks


class Asked(Ranks):
    # --- evaluation

    def eval_job(self, name, **sections):
        """A run that is evaluated on other documents than it trains on."""
        held_out = self.tmp / "held-out.jsonl"
        held_out.write_text("".join(
            (self.goldens / "lora-qwen3/data.jsonl").read_text().splitlines(keepends=True)[-9:]))
        train = {"eval_steps": 3, **sections.pop("train", {})}
        return self.job(name, data={"eval": str(held_out)}, train=train, **sections)

    def evaluations(self, out):
        return [(m["step"], m["eval_loss"], m["eval_tokens"]) for m in self.metrics(out) if "eval_loss" in m]

    def evaluated_right(self, lora):
        """On the training data, as one file or as two, all of which makes each step: the evaluation after a step is the
        loss of the next one."""
        whole = self.goldens / "lora-qwen3/data.jsonl"
        lines, halves = whole.read_bytes().splitlines(True), [self.tmp / f"half-{i}.jsonl" for i in range(2)]
        halves[0].write_bytes(b"".join(lines[:9]))
        halves[1].write_bytes(b"".join(lines[9:]))
        out, path = self.job(f"eval-right{bool(lora)}", steps=6, lora=lora,
                             data={"eval": [str(h) for h in halves] if lora else str(whole)},
                             train={"eval_steps": 1, "micro_batch_size": 2})
        rows = json.loads(
            subprocess.run(
                [self.tool, "plan", str(path), "--ranks", "1", "--json"], capture_output=True, check=True
            ).stdout
        )["rows"]
        err = self.finish(self.start(path, "--set", f"train.global_batch_size={rows}", "--ranks", "2"))
        lines = self.metrics(out)
        if "step 6  eval loss " not in err or len(self.evaluations(out)) != 6:
            raise Failure(err[-400:])
        if any(m["eval_tokens"] != m["supervised_tokens"] for m in lines):
            raise Failure("not all of the data is evaluated")
        for this, following in zip(lines, lines[1:]):
            self.near(f"evaluation after step {this['step']}", abs(this["eval_loss"] - following["loss"]), 1e-5)
        if not lines[-1]["eval_loss"] < lines[0]["eval_loss"] - 0.01:
            raise Failure("the evaluation does not follow the weights")

    def evaluated(self, **sections):
        """The evaluations of one rank, whose training has the bits of the run without them."""
        name = "-".join(sections)
        if name not in self.evaluation:
            out, path = self.eval_job(f"eval-one-{name}", **sections)
            self.finish(self.start(path, "--ranks", "1"))
            self.same(out, **sections)
            self.evaluation[name] = self.evaluations(out)
            if [e[0] for e in self.evaluation[name]] != [*range(3, sections["steps"], 3), sections["steps"]]:
                raise Failure(f"evaluated: {self.evaluation[name]}")
        return self.evaluation[name]

    def evaluated_bits(self, sections, *options, mpi=0):
        """The same bits for any number of ranks."""
        want = self.evaluated(**sections)
        out, path = self.eval_job(f"eval-bits{mpi}{len(options)}{len(sections)}", **sections)
        self.finish(self.start(path, *options, mpi=mpi))
        self.same(out, **sections)
        if self.evaluations(out) != want:
            raise Failure("other evaluations")

    def evaluated_and_killed(self, sections):
        """Killed and stopped around evaluations, and gone on with at other numbers of ranks."""
        want = self.evaluated(**sections)
        out, path = self.eval_job("eval-killed", **sections)
        for ranks, number in ((3, signal.SIGKILL), (2, signal.SIGTERM), (4, signal.SIGKILL)):
            process = self.start(path, "--ranks", str(ranks))
            self.until(process, self.done(out) + 5)
            self.kill(process, self.children(process, ranks)[0] if number == signal.SIGKILL else process.pid, number)
            self.touched(process, 4 if number == signal.SIGKILL else 0)
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out, **sections)
        got = self.evaluations(out)
        if len(got) < len(want) - 1 or not set(got) <= set(want):  # the stop may leave one out
            raise Failure(f"other evaluations: {got}, {want} wanted")

    # --- samples

    SAMPLE = {
        "every": 3,
        "prompts": [{"input_ids": [5, 9, 30, 2]}, {"input_ids": [77]}, {"input_ids": [1] * 9}, {"input_ids": [60, 61]}],
    }

    def sampled(self, out):
        return {p.name: p.read_text() for p in sorted((out / "samples").iterdir())}

    def sampled_bits(self, *options, mpi=0):
        """The same text for any number of ranks; weights as without samples."""
        self.reference()
        if not hasattr(self, "sampled_alone"):
            out, path = self.job("sampled-1", sample=self.SAMPLE)
            self.finish(self.start(path, "--ranks", "1"))
            self.same(out)
            self.sampled_alone = self.sampled(out)
            steps = sorted({*range(3, self.steps + 1, 3), self.steps})
            if list(self.sampled_alone) != [f"step-{n:06}.txt" for n in steps]:
                raise Failure(f"{list(self.sampled_alone)}")
            texts = next(iter(self.sampled_alone.values())).split("\n")
            if [len(t.split()) for t in texts[3::5]] != [128] * 4 or texts[1] != "5 9 30 2":
                raise Failure(f"{texts}")
        out, path = self.job(f"sampled{mpi}{''.join(options)[-30:].replace('/', '')}", sample=self.SAMPLE)
        self.finish(self.start(path, *options, mpi=mpi))
        self.same(out)
        if self.sampled(out) != self.sampled_alone:
            raise Failure("other samples")

    # --- control

    def controlled(self, mpi):
        """Saves and stops that are asked for, by file and by signal: answered, and the bits stay."""
        self.reference(steps=24)
        out, path = self.job(f"control{mpi}", steps=24, checkpoint={"save_steps": 0, "keep_last": 0},
                             sample={"prompts": [{"input_ids": [3, 4]}]})
        out.mkdir()
        control = out / "control"
        def start():
            process = self.start(path, *([] if mpi else ["--ranks", "3"]), mpi=mpi)
            return process, self.until(process, self.done(out) + 1)
        def ask(process, word):
            said, temporary = "", out / "control.new"
            temporary.write_text(word + "\n")
            temporary.rename(control)
            while control.exists() and process.poll() is None:
                said += process.stderr.readline()
            return said
        control.write_text("stop\n")
        process, said = start()
        process.send_signal(signal.SIGUSR2)
        said += self.until(process, 5)
        for word in ("sample", "nonsense", "save", "stop"):
            said += ask(process, word)
        said += self.finish(process)
        if "stopped after" not in said and self.done(out) == 24:
            raise Early(said[-300:])
        for words in ("'stop' was asked for before this run", "control: sample: after this step", ", sample 1: ",
                      "'nonsense' is none of", "which was asked for, is saved", "control: stop", "stopped after"):
            if words not in said:
                raise Failure(f"'{words}' is not in: {said[-1500:]}")
        if len(self.sampled(out)) != 1:
            raise Failure(f"{self.sampled(out)}")
        if len(list((out / "checkpoints").glob("step-*"))) < 3 or self.done(out) == 24 or control.exists():
            raise Failure(f"{self.done(out)} steps, {list((out / 'checkpoints').iterdir())}")
        process, _ = start()
        process.send_signal(signal.SIGUSR1)
        said = self.finish(process)
        if "stopped after" not in said:
            raise Early(f"SIGUSR1 does not stop: {said[-300:]}")
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out, steps=24)
