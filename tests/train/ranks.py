#!/usr/bin/env python3
"""Ranks that are killed, stopped and started again, saving that fails, and the same program under mpirun: what a run must survive, and what it must say.

    ranks.py FSDPTRAIN GOLDENS [--model FOLDER --steps N] [--only WORD]

A small model of the goldens, packed and shuffled by the trainer itself; or the model of FOLDER, killed and resumed only. Needs numpy. What needs Open MPI, root
or network namespaces is skipped with the reason where they are not there."""
import argparse, json, os, pathlib, random, re, resource, shutil, signal, subprocess, sys, tempfile, time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from run import Failure, Tests, add_device

MPIRUN = shutil.which("mpirun")
MPI_ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_base_warn_component_unused": "0"}


class Skip(Exception):
    pass


def children_of(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Ranks(Tests):
    def __init__(self, args):
        super().__init__(args)
        self.model, self.steps, self.only, self.skipped = args.model, args.steps, args.only, 0
        self.random, self.references, self.evaluation = random.Random(5), {}, {}

    def attempt(self, title, function, *args):
        if self.only and self.only not in title:
            return
        try:
            self.check(title, function, *args)
        except Skip as why:
            self.skipped += 1
            print(f"skipped: {title}: {why}", flush=True)

    def job(self, name, steps=None, **sections):
        """Its output folder and its config, with as many steps as a test needs."""
        out = self.tmp / name
        golden = self.goldens / "lora-qwen3"
        config = {"model": str(self.model or golden / "model"), "output_dir": str(out), "seed": 7, "dtype": {"param": "bf16" if self.model else "fp32"},
                  "data": {"train": str(golden / "data.jsonl"), "seq_len": 40}, "lora": {"r": 3, "lora_dropout": 0.25},
                  "train": {"max_steps": steps or self.steps, "global_batch_size": 5, "gradient_accumulation_steps": 2, "learning_rate": 0.01, "warmup_steps": 1},
                  "checkpoint": {"save_steps": 2}}
        for key, value in sections.items():
            config[key] = {**config.get(key, {}), **value} if value else None
        return out, self.write(name, config)

    def start(self, path, *options, mpi=0, preexec=None):
        command = [*self.runs, str(path), "--threads", "1", *options]
        if mpi:
            command = self.mpirun(mpi) + command
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=MPI_ENV, preexec_fn=preexec)

    def mpirun(self, n):
        if not MPIRUN:
            raise Skip("Open MPI's mpirun is not installed")
        return [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(n)]

    def until(self, process, step):
        """Reads what the run says until a step is done; what it said. Ends with the run."""
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step ") and int(line.split()[1]) >= step:
                break
        return "".join(said)

    def done(self, out):
        try:
            return len((out / "metrics.jsonl").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def reference(self, **sections):
        """Bits of the run that nobody touches."""
        name = "reference" + "-".join(sections)
        if name not in self.references:
            out, path = self.job(name, **sections)
            self.finish(self.start(path, "--ranks", "1"))
            self.references[name] = self.bits(out)
        return self.references[name]

    def same(self, out, **sections):
        if self.bits(out) != self.reference(**sections):
            raise Failure("losses, norms or weights differ from those of the run that nobody touched")

    def gone(self, pids, seconds=60):
        limit = time.monotonic() + seconds
        while any(is_alive(p) for p in pids):
            if time.monotonic() > limit:
                raise Failure(f"processes are left: {[p for p in pids if is_alive(p)]}")
            time.sleep(0.02)

    # --- killed and resumed

    def interrupted(self, times, **sections):
        """Killed at random moments, a random rank or the supervisor, each time gone on with at another number of ranks."""
        self.reference(**sections)
        out, path = self.job("interrupted" + "-".join(sections), **sections)
        step = 0
        for i in range(times):
            ranks = (3, 1, 2, 4, 2, 5, 1, 3)[i % 8]
            process = self.start(path, "--ranks", str(ranks))
            self.until(process, min(step + self.random.randint(1, 5), self.steps - 1))
            time.sleep(self.random.random() * 0.03)
            pids = children_of(process.pid) if process.poll() is None else []
            if len(pids) != ranks:
                raise Failure(f"run {i} ended too early: {self.finish(process, None)[-300:]}")
            victim = self.random.randrange(ranks + 1)
            os.kill(process.pid if victim == ranks else pids[victim], signal.SIGKILL)
            err = self.finish(process, -signal.SIGKILL if victim == ranks else 4)
            self.gone(pids)
            if victim < ranks and f"rank {victim} of {ranks} was killed by signal 9 (Killed) in step" not in err:
                raise Failure(f"the sentence does not say what was killed: {err[-400:]}")
            step = max([int(p.name[5:]) for p in (out / "checkpoints").glob("step-??????")], default=0)
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out, **sections)
        if self.done(out) != self.steps:
            raise Failure("metrics.jsonl does not have one line a step")
        left = [p.name for p in (out / "checkpoints").iterdir() if not re.fullmatch(r"step-\d{6}", p.name)]
        if left or len(list((out / "checkpoints").iterdir())) != 3:
            raise Failure(f"left in checkpoints/: {left}")

    def early(self):
        """Killed before there is a first step."""
        for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
            out, path = self.job(f"early{delay}")
            process = self.start(path, "--ranks", "3")
            pids = []
            while len(pids) < 3 and process.poll() is None:
                pids = children_of(process.pid)
            time.sleep(delay)
            os.kill(pids[2], signal.SIGKILL)
            err = self.finish(process, 4)
            if "rank 2 of 3 was killed by signal 9" not in err:
                raise Failure(err[-400:])

    def stalled(self, ranks, victim, *options):
        out, path = self.job(f"stalled{ranks}{victim}")
        process = self.start(path, "--ranks", str(ranks), "--patience", "5", *options)
        self.until(process, 3)
        pids = children_of(process.pid)
        os.kill(pids[victim], signal.SIGSTOP)
        err = self.finish(process, 4)
        self.gone(pids)
        if f"rank {victim} of {ranks}" not in err or "step " not in err:
            raise Failure(err[-400:])

    def stopped(self, number, twice):
        out, path = self.job(f"stopped{number}{twice}")
        process = self.start(path, "--ranks", "3", "--exit-on-stop", "75")
        self.until(process, 3)
        pids = children_of(process.pid)
        process.send_signal(number)
        if twice:
            time.sleep(0.005)
            process.send_signal(number)
            self.finish(process, None)
            if process.returncode not in (-number, 75):  # 75: the first was answered before the second came
                raise Failure(f"exit code {process.returncode} after two signals")
            self.gone(pids)
            return
        err = self.finish(process, 75)
        line = [x for x in err.splitlines() if "to go on: " in x]
        if not line:
            raise Failure(err[-400:])
        command = line[0].split("to go on: ")[1].replace("fsdptrain", self.tool, 1)
        subprocess.run(command, shell=True, check=True, capture_output=True, timeout=600)
        self.same(out)

    # --- saving

    def full_disk(self):
        """No file may be larger than a few KiB: saves fail, training goes on, and the exit code tells. When there is room again, the run ends well."""
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        out, path = self.job("full", steps=8)
        process = self.start(path, "--ranks", "2", preexec=small)
        err = self.finish(process, 4)
        for step in (2, 4, 6, 8):
            if f"the checkpoint of step {step} could NOT be saved, training goes on" not in err:
                raise Failure(f"step {step}: {err[-600:]}")
        if self.done(out) != 8 or list((out / "checkpoints").glob("step-*")):
            raise Failure(f"{self.done(out)} steps, {list((out / 'checkpoints').iterdir())}")
        if json.loads((out / "summary.json").read_text())["finished"]:
            raise Failure("finished")
        self.finish(self.start(path, "--ranks", "3"))
        if not json.loads((out / "summary.json").read_text())["finished"]:
            raise Failure("not finished")

    def tmpfs_full(self):
        """The same on a file system that is really full, and empty again while the run goes on."""
        if os.geteuid() != 0:
            raise Skip("needs root, to mount a tmpfs")
        out, path = self.job("tmpfs", steps=40, checkpoint={"save_steps": 4, "keep_last": 1})
        out.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(out)], capture_output=True).returncode:
            raise Skip("mounting a tmpfs is not allowed")
        try:
            (out / "ballast").write_bytes(bytes(2000000))
            process = self.start(path, "--ranks", "2")
            said = self.until(process, 8)
            while "could NOT be saved" not in said and process.poll() is None:
                said += process.stderr.readline()
            (out / "ballast").unlink()
            err = said + self.finish(process)
            if "No space left" not in err:
                raise Failure(err[-500:])
            if [p.name for p in (out / "checkpoints").iterdir()] != ["step-000040"]:
                raise Failure(f"keep_last 1 left {list((out / 'checkpoints').iterdir())}")
        finally:
            subprocess.run(["umount", str(out)], check=True)

    def passed_over(self):
        out, path = self.job("damaged", steps=8)
        self.finish(self.start(path, "--ranks", "3"))
        whole = self.bits(out)
        newest, middle = (out / "checkpoints/step-000008/index.json"), (out / "checkpoints/step-000006/index.json")
        newest.unlink()
        middle.write_bytes(middle.read_bytes()[:-40])
        shutil.copytree(out / "checkpoints/step-000004", out / "checkpoints/step-000007.tmp-1234")
        err = self.finish(self.start(path, "--ranks", "2", "--set", "checkpoint.save_steps=0"), None)
        for words in ("passed over: ", "step-000008", "step-000006", f"going on from {out}/checkpoints/step-000004"):
            if words not in err:
                raise Failure(f"'{words}' is not in: {err[-900:]}")
        for step in (8, 6):
            shutil.rmtree(out / f"checkpoints/step-{step:06d}")
        self.finish(self.start(path, "--ranks", "2"))
        if self.bits(out) != whole:
            raise Failure("other bits")

    def planned_memory(self, ranks, gather):
        """What plan says that all ranks take together, against the memory that they had. The program and its libraries come on top."""
        out, path = self.job(f"memory{ranks}{gather}", steps=1, data={"seq_len": 512}, lora={"r": 16}, train={"global_batch_size": 2, "gradient_accumulation_steps": 1})
        options = ["--ranks", str(ranks), "--gather", gather]
        plan = json.loads(subprocess.run([self.tool, "plan", str(path), "--json", *options], capture_output=True, check=True).stdout)
        self.finish(self.start(path, *options))
        planned, was = plan["all_ranks_bytes"], self.metrics(out)[-1]["pss_bytes"]
        if not 0.95 < planned / was < 1.05:
            raise Failure(f"{ranks} ranks, {gather}: {planned} bytes planned, {was} were")

    def measured(self):
        out, path = self.job("measured", steps=6)
        self.finish(self.start(path, "--ranks", "3", "--gather", "copy", "--profile"))
        lines = self.metrics(out)
        rows = {r["what"]: r["share"] for r in json.loads((out / "profile.json").read_text())["rows"]}
        whole = sum(share for what, share in rows.items() if what != "communication, hidden")
        if not 0.9 < whole < 1.1 or not rows["matrix products"] or not rows["communication, exposed"] or "waiting for data" not in rows:
            raise Failure(f"the profile's rows make {whole} of the step: {rows}")
        for key in ("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds", "data_wait_seconds", "comm_seconds", "comm_hidden_seconds", "save_stall_seconds", "rss_bytes",
                    "pss_bytes", "gathered_bytes"):
            if any(key not in m for m in lines):
                raise Failure(f"metrics.jsonl has no '{key}'")
        if any((m["save_stall_seconds"] > 0) != (m["step"] % 2 == 0) for m in lines):
            raise Failure("stalls are not in the lines of the steps that were saved")
        if not all(m["gathered_bytes"] > 0 for m in lines) or json.loads((out / "summary.json").read_text())["gather"] != "copy":
            raise Failure("copies are not counted")

    # --- evaluation

    def eval_job(self, name, **sections):
        """A run that is evaluated on other documents than it trains on."""
        held_out = self.tmp / "held-out.jsonl"
        held_out.write_text("".join((self.goldens / "lora-qwen3/data.jsonl").read_text().splitlines(keepends=True)[-9:]))
        train = {"eval_steps": 3, **sections.pop("train", {})}
        return self.job(name, data={"eval": str(held_out)}, train=train, **sections)

    def evaluations(self, out):
        return [(m["step"], m["eval_loss"], m["eval_tokens"]) for m in self.metrics(out) if "eval_loss" in m]

    def evaluated_right(self, lora):
        """On the training data, as one file or as two, all of which makes each step: the evaluation after a step is the loss of the next one."""
        whole = self.goldens / "lora-qwen3/data.jsonl"
        lines, halves = whole.read_bytes().splitlines(True), [self.tmp / f"half-{i}.jsonl" for i in range(2)]
        halves[0].write_bytes(b"".join(lines[:9]))
        halves[1].write_bytes(b"".join(lines[9:]))
        out, path = self.job(f"eval-right{bool(lora)}", steps=6, lora=lora, data={"eval": [str(h) for h in halves] if lora else str(whole)},
                             train={"eval_steps": 1, "micro_batch_size": 2})
        rows = json.loads(subprocess.run([self.tool, "plan", str(path), "--ranks", "1", "--json"], capture_output=True, check=True).stdout)["rows"]
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
            os.kill(children_of(process.pid)[0] if number == signal.SIGKILL else process.pid, number)
            self.finish(process, 4 if number == signal.SIGKILL else 0)
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out, **sections)
        got = self.evaluations(out)
        if len(got) < len(want) - 1 or not set(got) <= set(want):  # the stop may leave one out
            raise Failure(f"other evaluations: {got}, {want} wanted")

    # --- samples

    SAMPLE = {"every": 3, "prompts": [{"input_ids": [5, 9, 30, 2]}, {"input_ids": [77]}, {"input_ids": [1] * 9}, {"input_ids": [60, 61]}]}

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
        out, path = self.job(f"control{mpi}", steps=24, checkpoint={"save_steps": 0, "keep_last": 0}, sample={"prompts": [{"input_ids": [3, 4]}]})
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
        for words in ("'stop' was asked for before this run", "control: sample: after this step", ", sample 1: ", "'nonsense' is none of", "which was asked for, is saved", "control: stop", "stopped after"):
            if words not in said:
                raise Failure(f"'{words}' is not in: {said[-1500:]}")
        if len(self.sampled(out)) != 1:
            raise Failure(f"{self.sampled(out)}")
        if len(list((out / "checkpoints").glob("step-*"))) < 3 or self.done(out) == 24 or control.exists():
            raise Failure(f"{self.done(out)} steps, {list((out / 'checkpoints').iterdir())}")
        process, _ = start()
        process.send_signal(signal.SIGUSR1)
        if "stopped after" not in self.finish(process):
            raise Failure("SIGUSR1 does not stop")
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out, steps=24)

    # --- mpirun

    def mpi_bits(self, n, *options, **sections):
        self.reference(**sections)
        out, path = self.job(f"mpi{n}{''.join(options)[-30:].replace('/', '')}{'-'.join(sections)}", **sections)
        self.finish(self.start(path, *options, mpi=n))
        self.same(out, **sections)

    def mpi_resumed(self):
        """Between mpirun and local ranks, by SIGUSR1 and by kills of a rank and of its supervisor."""
        self.reference()
        out, path = self.job("mpi-resumed")
        process = self.start(path, mpi=3)
        self.until(process, 4)
        process.send_signal(signal.SIGUSR1)
        err = self.finish(process)
        if "stopped after step" not in err:
            raise Failure(err[-500:])
        for victim, deep, how in ((1, True, "map"), (2, False, "copy"), (0, True, "copy")):
            process = self.start(path, "--gather", how, mpi=3)
            self.until(process, self.done(out) + 2)
            supervisors = sorted(children_of(process.pid))
            ranks = [children_of(p)[0] for p in supervisors]
            os.kill((ranks if deep else supervisors)[victim], signal.SIGKILL)
            err = self.finish(process, None)
            if process.returncode == 0 or f"rank {victim} of 3 was killed" not in err or "in step " not in err:
                raise Failure(f"exit code {process.returncode}: {err[-900:]}")
            self.gone(ranks + supervisors)
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out)

    def mpi_stalled(self):
        out, path = self.job("mpi-stalled")
        process = self.start(path, "--patience", "5", mpi=3)
        self.until(process, 3)
        ranks = [children_of(p)[0] for p in sorted(children_of(process.pid))]
        os.kill(ranks[1], signal.SIGSTOP)
        err = self.finish(process, None)
        self.gone(ranks)
        if process.returncode == 0 or "rank 1 of 3" not in err:
            raise Failure(f"exit code {process.returncode}: {err[-900:]}")

    def mpi_elsewhere(self):
        """A rank that has another folder under the name of output_dir, and one that has other data, are found before step 0."""
        out, path = self.job("elsewhere")
        other = self.write("elsewhere-other", {**json.loads(path.read_text()), "output_dir": str(self.tmp / "nowhere-near")})
        changed = self.write("elsewhere-changed", {**json.loads(path.read_text()), "seed": 8})
        for theirs, words in ((other, "does not see what rank 0 writes"), (changed, "does not have the same config, model or data as rank 0")):
            ours, others = ([*self.runs, str(config), "--threads", "1"] for config in (path, theirs))
            command = [*self.mpirun(1), *ours, ":", "-n", "1", *others]
            done = subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=600)
            if done.returncode == 0 or words not in done.stderr or "rank 1" not in done.stderr:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")

    def namespaces(self):
        """Two hosts, as far as MPI can see: two network namespaces with their own host names."""
        if not MPIRUN:
            raise Skip("Open MPI's mpirun is not installed")
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise Skip("needs root and iproute2's ip, to make network namespaces")
        names = [f"fsdptrain{os.getpid()}{i}" for i in "ab"]
        def ip(*words):
            if subprocess.run(["ip", *words], capture_output=True).returncode:
                raise Skip(f"`ip {' '.join(words)}` is not allowed")
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "ft0", "netns", names[0], "type", "veth", "peer", "name", "ft1", "netns", names[1])
            for i, name in enumerate(names):
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "addr", "add", f"10.99.77.{i + 1}/24", "dev", f"ft{i}")
                ip("-n", name, "link", "set", f"ft{i}", "up")
            agent = self.tmp / "agent"
            agent.write_text(f"""#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
case $1 in *.1) ns={names[0]} ;; *) ns={names[1]} ;; esac
shift
exec ip netns exec "$ns" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$ns" "$*"
""")
            agent.chmod(0o755)
            self.reference()
            out, path = self.job("namespaces")
            inner = [MPIRUN, "--host", "10.99.77.1:1,10.99.77.2:1", "-n", "2", "--bind-to", "none", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include",
                     "10.99.77.0/24", "--mca", "btl_tcp_if_include", "10.99.77.0/24", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", *self.runs, str(path),
                     "--threads", "1"]
            done = subprocess.run(["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', names[0], *inner], capture_output=True,
                                  text=True, env=MPI_ENV, timeout=600)
            if done.returncode:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
            self.same(out)
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only")
    add_device(parser)
    args = parser.parse_args()
    t = Ranks(args)
    try:
        t.attempt("killed ten times and resumed", t.interrupted, 10)
        if args.model:
            for ranks, gather in ((1, "map"), (2, "map"), (2, "copy")):
                t.attempt(f"plan against memory, {ranks} ranks, {gather}", t.planned_memory, ranks, gather)
        else:
            t.attempt("killed before the first step", t.early)
            t.attempt("full fine-tuning in bf16, killed five times", lambda: t.interrupted(5, lora=None, dtype={"param": "bf16"}))
            for ranks, victim in ((2, 1), (3, 0), (1, 0)):
                t.attempt(f"rank {victim} of {ranks} stalls", t.stalled, ranks, victim)
            t.attempt("a rank stalls while others gather", t.stalled, 3, 2, "--gather", "copy")
            for number in (signal.SIGTERM, signal.SIGINT):
                t.attempt(f"stopped by {number.name}", t.stopped, number, False)
                t.attempt(f"stopped by {number.name} twice", t.stopped, number, True)
            t.attempt("no room for a checkpoint", t.full_disk)
            t.attempt("a full disk", t.tmpfs_full)
            t.attempt("checkpoints that are passed over", t.passed_over)
            t.attempt("metrics", t.measured)
            for lora in ({"lora_dropout": 0}, None):
                t.attempt(f"evaluation: its loss, {lora}", t.evaluated_right, lora)
            adapters, full = {"steps": 24}, {"steps": 24, "lora": None}
            for options in (("3",), ("2", "--gather", "copy", "--set", "fsdp.sharding_strategy=SHARD_GRAD_OP")):
                t.attempt(f"evaluation: bits {' '.join(options)}", t.evaluated_bits, adapters, "--ranks", *options)
            t.attempt("evaluation: bits, full", t.evaluated_bits, full, "--ranks", "3", "--gather", "copy", "--set", "fsdp.sharding_strategy=NO_SHARD")
            t.attempt("evaluation: bits, mpirun", lambda: t.evaluated_bits(adapters, "--gather", "copy", mpi=3))
            t.attempt("evaluation: killed and resumed", t.evaluated_and_killed, adapters)
            for options in (("2",), ("3", "--gather", "copy"), ("2", "--gather", "copy", "--set", "fsdp.sharding_strategy=SHARD_GRAD_OP"),
                            ("5", "--gather", "copy", "--set", "fsdp.sharding_strategy=NO_SHARD")):
                t.attempt(f"samples: bits {' '.join(options)}", t.sampled_bits, "--ranks", *options)
            t.attempt("samples: bits, mpirun", lambda: t.sampled_bits("--gather", "copy", mpi=3))
            for mpi in (0, 3):
                t.attempt(f"control, mpirun {mpi}", t.controlled, mpi)
            for n in (1, 2, 3, 5):
                t.attempt(f"mpirun -n {n}", t.mpi_bits, n)
            t.attempt("mpirun, gathered", t.mpi_bits, 3, "--gather", "copy")
            t.attempt("mpirun, prefetch 4", t.mpi_bits, 3, "--gather", "copy", "--set", "fsdp.forward_prefetch=4", "--set", "fsdp.backward_prefetch=0")
            t.attempt("mpirun, NO_SHARD", t.mpi_bits, 2, "--gather", "copy", "--set", "fsdp.sharding_strategy=NO_SHARD")
            t.attempt("mpirun, full", lambda: t.mpi_bits(3, "--gather", "copy", lora=None))
            t.attempt("mpirun, dtype.reduce", lambda: t.mpi_bits(3, "--gather", "copy", dtype={"reduce": "bf16"}))
            t.attempt("mpirun, stopped, killed, resumed", t.mpi_resumed)
            t.attempt("mpirun, a rank stalls", t.mpi_stalled)
            t.attempt("mpirun, ranks that mean different runs", t.mpi_elsewhere)
            t.attempt("mpirun, two network namespaces", t.namespaces)
    finally:
        shutil.rmtree(t.tmp, ignore_errors=True)
    if t.skipped:
        print(f"{t.skipped} skipped")
    print(f"{t.passed} passed, {t.failed} failed")
    return t.failed > 0


if __name__ == "__main__":
    sys.exit(main())
