#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stopped and started again, saving that fails, and the same program under mpirun: what a run
must survive, and what it must say.

    ranks.py FSDPTRAIN GOLDENS [--model FOLDER --steps N] [--only WORD]

A small model of the goldens, packed and shuffled by the trainer itself; or the model of FOLDER, killed and resumed
only. Needs numpy. What needs Open MPI, root or network namespaces is skipped with the reason where they are not
there."""
import argparse, json, os, pathlib, re, resource, shlex, shutil, signal, subprocess, sys, time

from harness import Early, Failure, Skip, add_device, children_of
from ranks_asked import Asked
from ranks_harness import PATIENCE
from ranks_mpi import Mpi, supervisors_of


class Interrupted(Asked, Mpi):
    # --- killed and resumed

    def interrupted(self, times, **sections):
        """Killed at random moments, a random rank or the supervisor, each time gone on with at another number of
        ranks."""
        self.reference(**sections)
        out, path = self.job("interrupted" + "-".join(sections), **sections)
        step = 0
        for i in range(times):
            ranks = (3, 1, 2, 4, 2, 5, 1, 3)[i % 8]
            process = self.start(path, "--ranks", str(ranks))
            self.until(process, min(step + self.random.randint(1, 5), self.steps - 1))
            time.sleep(self.random.random() * 0.03)
            pids = self.children(process, ranks)
            victim = self.random.randrange(ranks + 1)
            self.kill(process, process.pid if victim == ranks else pids[victim], signal.SIGKILL)
            err = self.touched(process, -signal.SIGKILL if victim == ranks else 4)
            self.gone(pids)
            newest = max([0, *(int(p.name[5:]) for p in (out / "checkpoints").glob("step-??????"))])
            way = f"the checkpoint of step {newest} is committed" if newest else "no checkpoint was committed yet"
            if victim < ranks and way not in err:
                raise Failure(f"'{way}' is not in: {err[-400:]}")
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
            out, path = self.job(f"early{delay}", steps=40000, checkpoint={"save_steps": 0})
            process = self.start(path, "--ranks", "3")
            pids = []
            while len(pids) < 3 and process.poll() is None:
                pids = children_of(process.pid)
            time.sleep(delay)
            self.kill(process, pids[2] if len(pids) == 3 else process.pid, signal.SIGKILL)
            err = self.touched(process, 4)
            if (
                "rank 2 of 3 was killed by signal 9" not in err
                or "no checkpoint was committed yet" not in err
                or "is whole" in err
            ):
                raise Failure(err[-400:])

    def stalled(self, ranks, victim, *options):
        out, path = self.job(f"stalled{ranks}{victim}")
        process = self.start(path, "--ranks", str(ranks), "--patience", PATIENCE, *options)
        self.until(process, 3)
        pids = self.children(process, ranks)
        self.kill(process, pids[victim], signal.SIGSTOP)
        err = self.touched(process, 4)
        self.gone(pids)
        if f"rank {victim} of {ranks}" not in err or "step " not in err:
            raise Failure(err[-400:])

    def stopped(self, number, twice):
        out, path = self.job(f"stopped{number}{twice}")
        process = self.start(path, "--ranks", "3", "--exit-on-stop", "75")
        self.until(process, 3)
        pids = self.children(process, 3)
        process.send_signal(number)
        if twice:
            time.sleep(0.005)
            process.send_signal(number)
            self.finish(process, None)
            if process.returncode == 0:
                raise Early("before the first signal")
            if process.returncode not in (-number, 75):  # 75: the first was answered before the second came
                raise Failure(f"exit code {process.returncode} after two signals")
            self.gone(pids)
            return
        err = self.touched(process, 75)
        line = [x for x in err.splitlines() if "to go on: " in x]
        if not line:
            raise Failure(err[-400:])
        command = line[0].split("to go on: ")[1].replace("fsdptrain", shlex.quote(self.tool), 1)
        subprocess.run(command, shell=True, check=True, capture_output=True, timeout=1800)
        self.same(out)

    def told_to_one(self, number, mpi):
        """A signal that is sent to one rank is meant for the run."""
        out, path = self.job(f"told{number}{mpi}", checkpoint={"save_steps": 0, "keep_last": 0})
        process = self.start(path, *([] if mpi else ["--ranks", "3"]), mpi=mpi)
        said = self.until(process, 3)
        ranks = self.under(process)[1] if mpi else self.children(process, 3)
        self.kill(process, ranks[1], number)
        said += self.finish(process)
        if number != signal.SIGUSR2 and "stopped after step" not in said or len(
                list((out / "checkpoints").glob("step-*"))) < (2 if number == signal.SIGUSR2 else 1):
            raise Early(said[-600:])
        if number == signal.SIGUSR2:
            if "which was asked for, is saved" not in said and not mpi or len(list(
                (out / "checkpoints").glob("step-*"))) < 2:
                raise Failure(said[-600:])
        elif "stopped after step" not in said or not mpi and said.count(
                "stopping: the step is finished and saved first") != 1:
            raise Failure(said[-600:])
        else:
            self.finish(self.start(path, "--ranks", "2"))
        self.same(out)

    def shrunk(self):
        """Fewer steps than were done: nothing is claimed that is not so."""
        out, path = self.job("shrunk", steps=8)
        self.finish(self.start(path, "--ranks", "2"))
        done = subprocess.run([*self.runs, str(path), "--set", "train.max_steps=5"], capture_output=True, text=True,
                              timeout=1800)
        if (
            done.returncode
            or "8 of 5" in done.stdout
            or "nothing to do: 8 steps were done before, and the config asks for 5" not in done.stdout
        ):
            raise Failure(f"exit code {done.returncode}: {done.stdout} {done.stderr[-300:]}")
        if f"the adapter: {out}/adapter" not in done.stdout or not json.loads(
            (out / "summary.json").read_text())["finished"]:
            raise Failure(f"{done.stdout}")

    def save_and_lost(self):
        """A rank that is lost while it saves: no word of training that goes on, nor of a step that is finished
        first."""
        out, path = self.job("save-lost", steps=4000, checkpoint={"save_steps": 1, "keep_last": 1})
        for turn in range(8):
            process = self.start(path, "--ranks", "3")
            self.until(process, self.done(out) + 2)
            pids = self.children(process, 3)
            time.sleep(self.random.random() * 0.01)
            self.kill(process, pids[1 + turn % 2], signal.SIGKILL)
            err = self.touched(process, 4)
            if "training goes on" in err or "stopping" in err or "rank %d of 3 was killed" % (1 + turn % 2) not in err:
                raise Failure(err[-900:])

    # --- saving

    def full_disk(self):
        """No file may be larger than a few KiB: saves fail, training goes on, and the exit code tells. When there is
        room again, the run ends well."""
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        out, path = self.job("full", steps=8)
        process = self.start(path, "--ranks", "2", preexec=small)
        err = self.finish(process, 4)
        for step in (2, 4, 6, 8):
            # of the last but one it may be known when no step is left
            end = {2: ", training goes on", 4: ", training goes on", 6: "", 8: ":"}[step]
            if f"the checkpoint of step {step} could NOT be saved{end}" not in err:
                raise Failure(f"step {step}: {err[-600:]}")
        if self.done(out) != 8 or list((out / "checkpoints").glob("step-*")):
            raise Failure(f"{self.done(out)} steps, {list((out / 'checkpoints').iterdir())}")
        if json.loads((out / "summary.json").read_text())["finished"]:
            raise Failure("finished")
        self.finish(self.start(path, "--ranks", "3"))
        if not json.loads((out / "summary.json").read_text())["finished"]:
            raise Failure("not finished")

    def said_why(self, mpi):
        """One rank of four has no room: each save names the cause, whichever rank met it, and the last words do not
        read like a success."""
        for victim in (3, 1, 0):
            out, path = self.job(f"why{mpi}{victim}", steps=20, checkpoint={"save_steps": 1})
            said = self.tmp / "stdout"
            with said.open("w") as stdout:
                process = self.start(path, *([] if mpi else ["--ranks", "4"]), mpi=mpi, stdout=stdout,
                                     preexec=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
                self.until(process, 1)
                try:
                    pids = [p for s in supervisors_of(process.pid)
                            for p in children_of(s)] if mpi else children_of(process.pid)
                    resource.prlimit(pids[victim], resource.RLIMIT_FSIZE, (20000, 20000))
                except (LookupError, OSError):
                    self.touched(process, None)
                first = self.done(out) + 2
                lines = self.finish(process, None).splitlines()
                if process.returncode == 0 and first > 20:
                    raise Early(lines[-1:])
            failed = [line for line in lines if "could NOT be saved" in line]
            if (
                process.returncode != 4
                or len(failed) < 20 - first
                or any("File too large" not in line or f"__{victim}_0.distcp" not in line for line in failed)
            ):
                raise Failure(
                    f"exit code {process.returncode}, rank {victim}, from step {first}: {failed}, {lines[-15:]}"
                )
            if "training goes on" in failed[-1] or any("training goes on" not in line for line in failed[:-2]):
                raise Failure(f"training goes on after the last save: {failed[-2:]}")
            words = [line for line in lines if line.startswith("fsdptrain: ")]
            if "could not be saved" not in words[-1] or "NOT saved" not in said.read_text():
                raise Failure(f"the last words: {words[-1]} and {said.read_text()}")

    # --- output_dir, which one run has at a time

    def owned(self, mpi):
        """A second run in the same output_dir is refused, by the name of the first, and changes nothing; the lock of a
        dead one stops nobody."""
        self.reference()
        out, path = self.job(f"owned{mpi}", train={"max_steps": self.steps})
        process = self.start(path, *([] if mpi else ["--ranks", "3"]), mpi=mpi)
        self.until(process, 2)
        holder = self.under(process)[0][0] if mpi else process.pid
        self.kill(process, holder, signal.SIGSTOP)  # not to be done before the others have tried
        if self.done(out) >= self.steps:
            os.kill(holder, signal.SIGCONT)
            self.touched(process, None)
        second = self.finish(self.start(path, "--ranks", "2"), 4)
        words = f"another run is at work in it: process {holder} on host"
        if second.count(words) != 1 or second.count("\n") > 2:
            raise Failure(f"'{words}' wanted once: {second}")
        if mpi:
            third = self.finish(self.start(path, mpi=3), None)
            if third.count(words) != 1 or third.count("fsdptrain: ") - third.count("fsdptrain: note: ") != 1:
                raise Failure(f"'{words}' wanted once: {third}")
        os.kill(process.pid if not mpi else holder, signal.SIGCONT)
        self.finish(process)
        self.same(out)
        if (out / ".fsdpck-lock").exists():
            raise Failure("the lock is left")

    def owner_gone(self):
        out, path = self.job("owner-gone", steps=30)
        process = self.start(path, "--ranks", "3")
        self.until(process, 2)
        process.kill()
        process.wait()
        # and waits for its ranks to be gone
        self.finish(self.start(path, "--ranks", "2", "--set", "train.max_steps=12"))
        lock = out / ".fsdpck-lock"
        lock.write_text('{"host":"elsewhere","boot":"0e0e0e0e-0000-4000-8000-000000000000","pid":77,"save_id":""}')
        err = self.finish(self.start(path), 4)
        if "process 77 on host 'elsewhere'" not in err or "remove the file '.fsdpck-lock'" not in err:
            raise Failure(err)
        lock.write_text("{")  # killed as it began
        self.finish(self.start(path, "--set", "train.max_steps=14"))

    def removed(self):
        """What is written to a folder that is gone is lost: said, and the run ends."""
        for what in ("folder", "replaced", "metrics", "unopenable"):
            out, path = self.job(f"removed-{what}", steps=4000, checkpoint={"save_steps": 0})
            process = self.start(path, "--ranks", "2")
            self.until(process, 3)
            if what == "metrics":
                (out / "metrics.jsonl").rename(out / "older.jsonl")
                said = self.until(process, self.done(out) + 2000)
                process.send_signal(signal.SIGTERM)
                said += self.finish(process)
                steps = [
                    json.loads(line)["step"]
                    for name in ("older.jsonl", "metrics.jsonl")
                    for line in (out / name).read_text().splitlines()
                ]
                if "metrics.jsonl was moved or removed" not in said or steps != list(range(1, len(steps) + 1)):
                    raise Failure(f"{said[-500:]}, {steps[:3]} ... {steps[-3:]}")
                continue
            if what == "unopenable":
                (self.tmp / "folder").symlink_to(self.tmp)
                (self.tmp / "folder").replace(out / "metrics.jsonl")
                err = self.finish(process, 4)
                if f"{out}/metrics.jsonl: open: Is a directory" not in err:
                    raise Failure(err[-600:])
                continue
            out.rename(self.tmp / f"away-{what}")
            if what == "replaced":
                out.mkdir()
            err = self.finish(process, 4)
            if f"{out}: output_dir" not in err or "was removed or replaced while the run was under way" not in err:
                raise Failure(err[-600:])
            if out.exists() != (what == "replaced") or what == "replaced" and list(out.iterdir()):
                raise Failure("made anew")

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

    def inside_the_model(self):
        """A model folder with folders of assets, and the run within it: checkpoints carry the model's assets and
        nothing of runs, and keep_last removes them whole."""
        golden = self.goldens / "lora-qwen3/model"
        model = self.tmp / "inside"
        shutil.copytree(golden, model)
        (model / "original").mkdir()
        (model / "original/params.json").write_text("{}")
        for name in ("first", "second"):
            out, path = self.job(name, steps=4, checkpoint={"save_steps": 1, "keep_last": 1}, lora=None)
            config = json.loads(pathlib.Path(path).read_text())
            out = model / "runs" / name if name == "first" else model / name
            config |= {"model": str(model), "output_dir": str(out)}
            pathlib.Path(path).write_text(json.dumps(config))
            if name == "second":
                shutil.copytree(model / "runs/first", model / "third")
            err = self.finish(self.start(path, "--ranks", "2"))
            if [p.name for p in (out / "checkpoints").iterdir()] != ["step-000004"] or "could not be removed" in err:
                raise Failure(f"{[p.name for p in (out / 'checkpoints').iterdir()]}: {err[-300:]}")
            assets = out / "checkpoints/step-000004/assets"
            got = sorted(str(p.relative_to(assets)) for p in assets.rglob("*") if p.is_file())
            want = sorted(["original/params.json"] + [p.name for p in golden.iterdir() if "safetensors" not in p.name])
            if got != want:
                raise Failure(f"assets {got}, {want} wanted")

    def foreign(self):
        """Files of others in output_dir: what a run would replace is refused, what lies in the adapter's folder stays
        there."""
        for name, text in (("metrics.jsonl", '{"epoch": 1}\n'), ("summary.json", '{"mine": 1}')):
            out, path = self.job(f"foreign-{name}", steps=2)
            out.mkdir()
            (out / name).write_text(text)
            err = self.finish(self.start(path), 2)
            if f"{name}: this file is of no run of fsdptrain" not in err or (out / name).read_text() != text or (
                    out / "checkpoints").exists():
                raise Failure(err[-400:])
        for name in ("config.json", "tokenizer.json"):
            model = self.tmp / f"model-{name}"
            shutil.copytree(self.goldens / "lora-qwen3/model", model,
                            ignore=lambda _, names: [n for n in names if n == name])
            os.mkfifo(model / name)
            out, path = self.job(f"pipe-{name}", steps=2)
            config = json.loads(pathlib.Path(path).read_text()) | {"model": str(model)}
            config["data"]["train"] = str(self.tmp / "texts.jsonl")
            (self.tmp / "texts.jsonl").write_text('{"text": "a"}\n')
            pathlib.Path(path).write_text(json.dumps(config))
            err = self.finish(self.start(path), 3)
            if f"{name}: this is a FIFO" not in err:
                raise Failure(err[-400:])
        out, path = self.job("beside", steps=2)
        self.finish(self.start(path))
        (out / "adapter/notes").mkdir()
        (out / "adapter/notes/mine.txt").write_text("mine")
        (out / "adapter.tmp").mkdir()
        (out / "adapter.tmp/tmp.txt").write_text("mine")
        for steps in (4, 6):
            self.finish(self.start(path, "--set", f"train.max_steps={steps}"))
            names = sorted(p.name for p in (out / "adapter").iterdir())
            if names != ["README.md", "adapter_config.json", "adapter_model.safetensors", "notes", "tmp.txt"
                         ] or (out / "adapter.old").exists():
                raise Failure(f"{names} after {steps} steps")

    def passed_over(self):
        out, path = self.job("damaged", steps=8)
        self.finish(self.start(path, "--ranks", "3"))
        whole = self.bits(out)
        newest, middle = (out / "checkpoints/step-000008/index.json"), (out / "checkpoints/step-000006/index.json")
        newest.unlink()
        middle.write_bytes(middle.read_bytes()[:-40])
        shutil.copytree(out / "checkpoints/step-000004", out / "checkpoints/step-000007.tmp-1234")
        err = self.finish(self.start(path, "--ranks", "2", "--set", "checkpoint.save_steps=0"))
        for words in ("passed over: ", "step-000008", "step-000006", f"going on from {out}/checkpoints/step-000004"):
            if words not in err:
                raise Failure(f"'{words}' is not in: {err[-900:]}")
        self.aside(out, ["step-000006", "step-000008"], ["step-000004", "step-000007.tmp-1234", "step-000008"])
        if self.bits(out) != whole:
            raise Failure("other bits")

    def aside(self, out, damaged, whole):
        """What was damaged has a name that `clean` knows, and stays until then."""
        names = sorted(p.name for p in (out / "checkpoints").iterdir())
        if sorted(n.split(".damaged-")[0]
                  for n in names
                  if ".damaged-" in n) != damaged or [n for n in names if ".damaged-" not in n] != whole:
            raise Failure(f"{names}")
        subprocess.run([str(self.fsdpck), "clean", str(out / "checkpoints")], check=True, capture_output=True)
        if any(".damaged-" in p.name for p in (out / "checkpoints").iterdir()):
            raise Failure("clean does not know them")

    def flip(self, folder, rank):
        """A bit of a payload: nothing but reading it tells."""
        file = folder / f"__{rank}_0.distcp"
        data = file.read_bytes()
        for at in range(len(data) // 2, len(data), 97):
            file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1:])
            done = subprocess.run([str(self.fsdpck), "verify", str(folder), "--json"], capture_output=True, text=True)
            if done.returncode == 1 and all(p.get("tensor") for p in json.loads(done.stdout)["problems"]):
                return
        raise Failure("no payload found")

    def flipped(self, lora, mpi):
        """Damage that is found while the state is loaded, by one rank or several: all of them go on from the one
        before, and where there is none, anew."""
        sections = {"steps": 8, "checkpoint": {"save_steps": 2, "keep_last": 0}, **({} if lora else {"lora": None})}
        out, path = self.job(f"flipped{bool(lora)}{mpi}", **sections)
        options = [] if mpi else ["--ranks", "3"]
        self.finish(self.start(path, *options, mpi=mpi))
        whole, checkpoints = self.bits(out), out / "checkpoints"
        self.flip(checkpoints / "step-000008", 2)
        self.flip(checkpoints / "step-000006", 1)
        err = self.finish(self.start(path, "--resume", str(checkpoints / "step-000008"), *options, mpi=mpi),
                          None if mpi else 3)
        if err.count("step-000008/__2_0.distcp") != 1 or not (checkpoints / "step-000008").exists():
            raise Failure(f"named by --resume: {err[-900:]}")
        err = self.finish(self.start(path, *options, mpi=mpi))
        for words in ("step-000008/__2_0.distcp", "step-000006/__1_0.distcp",
                      f"going on from {checkpoints}/step-000004"):
            if words not in err:
                raise Failure(f"'{words}' is not in: {err[-1500:]}")
        self.aside(out, ["step-000006", "step-000008"], [f"step-{n:06d}" for n in (2, 4, 6, 8)])
        if self.bits(out) != whole:
            raise Failure("other bits")
        for step in (2, 4, 6, 8):
            self.flip(checkpoints / f"step-{step:06d}", step % 3)
        err = self.finish(self.start(path, *options, mpi=mpi))
        if "no whole checkpoint is left: the run begins anew, with step 1" not in err or self.bits(out) != whole:
            raise Failure(f"not anew, or with other bits: {err[-900:]}")
        self.aside(out, [f"step-{n:06d}" for n in (2, 4, 6, 8)], [f"step-{n:06d}" for n in (2, 4, 6, 8)])

    def planned_memory(self, ranks, gather):
        """What plan says that all ranks take together, against the memory that they had. The program and its libraries
        come on top."""
        out, path = self.job(f"memory{ranks}{gather}", steps=1, data={"seq_len": 512}, lora={"r": 16},
                             train={"global_batch_size": 2, "gradient_accumulation_steps": 1})
        options = ["--ranks", str(ranks), "--gather", gather]
        plan = json.loads(
            subprocess.run([self.tool, "plan", str(path), "--json", *options], capture_output=True, check=True).stdout)
        self.finish(self.start(path, *options))
        planned, was = plan["all_ranks_bytes"], self.metrics(out)[-1]["pss_bytes"]
        if not 0.95 < planned / was < 1.05:
            raise Failure(f"{ranks} ranks, {gather}: {planned} bytes planned, {was} were")

    def sums_of_times(self, lines, profile, ranks):
        """Parts of a time add up to it."""
        for m in lines:
            parts, busy = m["comm_gather_seconds"] + m["comm_exchange_seconds"], m["rank_busy_seconds"]
            if not 0 < parts < m["comm_seconds"] * 1.001 or len(busy) != ranks or not min(busy) > 0:
                raise Failure(f"waits, or the ranks' times: {m}")
            if busy[m["slowest_rank"]] != max(busy) or busy[0] + m["comm_seconds"] > 1.02 * m["step_seconds"]:
                raise Failure(f"the slowest rank, or more than the step: {m}")
        rows = {r["what"]: r["seconds_per_step"] for r in profile["rows"]}
        for what, key in (("waiting for parameters", "comm_gather_seconds"), ("waiting for gradients",
                                                                              "comm_exchange_seconds")):
            self.near(what, abs(rows[what] * len(lines) / sum(m[key] for m in lines) - 1), 0.001)
        waited = sum(g["gather_seconds_per_step"] for g in profile["groups"])
        self.near("waits by group", abs(waited / rows["waiting for parameters"] - 1), 0.02)
        if len({g["parameters"] for g in profile["groups"]}) != len(profile["groups"]) < 3:
            raise Failure(f"{profile['groups']}")

    def measured(self):
        out, path = self.job("measured", steps=6)
        self.finish(self.start(path, "--ranks", "3", "--gather", "copy", "--profile"))
        lines = self.metrics(out)
        profile = json.loads((out / "profile.json").read_text())
        rows = {r["what"]: r["share"] for r in profile["rows"]}
        whole = sum(share for what, share in rows.items() if what != "communication, hidden")
        if not 0.98 < whole < 1.02 or not rows["matrix products"] or not rows["waiting for parameters"] or not rows[
                "waiting for gradients"] or not rows["waiting for other ranks"] or "waiting for data" not in rows:
            raise Failure(f"the profile's rows make {whole} of the step: {rows}")
        self.sums_of_times(lines, profile, 3)
        for key in ("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_seconds",
                    "data_wait_seconds", "comm_seconds", "comm_hidden_seconds", "save_stall_seconds", "rss_bytes",
                    "pss_bytes", "gathered_bytes", "from_hosts_bytes"):
            if any(key not in m for m in lines):
                raise Failure(f"metrics.jsonl has no '{key}'")
        if any((m["save_stall_seconds"] > 0) != (m["step"] % 2 == 0) for m in lines):
            raise Failure("stalls are not in the lines of the steps that were saved")
        if not all(m["gathered_bytes"] > 0 for m in lines) or json.loads(
            (out / "summary.json").read_text())["gather"] != "copy":
            raise Failure("copies are not counted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only")
    add_device(parser)
    args = parser.parse_args()
    t = Interrupted(args)
    try:
        t.attempt("killed ten times and resumed", t.interrupted, 10)
        if args.model:
            for ranks, gather in ((1, "map"), (2, "map"), (2, "copy")):
                t.attempt(f"plan against memory, {ranks} ranks, {gather}", t.planned_memory, ranks, gather)
        else:
            t.attempt("killed before the first step", t.early)
            t.attempt(
                "full fine-tuning in bf16, killed five times",
                lambda: t.interrupted(5, lora=None, dtype={"param": "bf16"}),
            )
            t.together(
                *(
                    (f"rank {victim} of {ranks} stalls", t.stalled, ranks, victim)
                    for ranks, victim in ((2, 1), (3, 0), (1, 0))
                ),
                ("a rank stalls while others gather", t.stalled, 3, 2, "--gather", "copy"),
                ("a rank of a shard group stalls", t.stalled, 4, 2, "--gather", "copy", "--set",
                 "fsdp.dp_shard_size=2"),
                ("a rank stalls whose kept parts others gather", t.stalled, 4, 1, "--gather", "copy", "--set",
                 "fsdp.reshard_after_forward=2", "--set", "fsdp.backward_prefetch=0"),
                ("mpirun, a rank stalls", t.mpi_stalled),
                ("mpirun, signalled often", t.mpi_signalled_often),
                ("mpirun, a host is lost", t.host_lost, False),
                ("mpirun, a host freezes", t.host_lost, True),
                ("mpirun, a cable is out for 3 s", t.cable_out),
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                t.attempt(f"stopped by {number.name}", t.stopped, number, False)
                t.attempt(f"stopped by {number.name} twice", t.stopped, number, True)
            for mpi in (0, 3):
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                    t.attempt(f"{number.name} to one rank, mpirun {mpi}", t.told_to_one, number, mpi)
            t.attempt("fewer steps than were done", t.shrunk)
            t.attempt("a rank lost while saving", t.save_and_lost)
            t.attempt("no room for a checkpoint", t.full_disk)
            for mpi in (0, 4):
                t.attempt(f"no room at one of four ranks, mpirun {mpi}", t.said_why, mpi)
            t.attempt("a full disk", t.tmpfs_full)
            for mpi in (0, 3):
                t.attempt(f"two runs in one output_dir, mpirun {mpi}", t.owned, mpi)
            t.attempt("the lock of a run that is gone", t.owner_gone)
            t.attempt("an output_dir that is removed", t.removed)
            t.attempt("a run inside the model folder", t.inside_the_model)
            t.attempt("files of others in output_dir", t.foreign)
            t.attempt("checkpoints that are passed over", t.passed_over)
            for lora, mpi in ((True, 0), (False, 0), (True, 3)):
                t.attempt(f"damaged payloads, {'LoRA' if lora else 'full'}, mpirun {mpi}", t.flipped, lora, mpi)
            t.attempt("metrics", t.measured)
            for lora in ({"lora_dropout": 0}, None):
                t.attempt(f"evaluation: its loss, {lora}", t.evaluated_right, lora)
            adapters, full = {"steps": 24}, {"steps": 24, "lora": None}
            for options in (("3",), ("2", "--gather", "copy", "--set", "fsdp.sharding_strategy=SHARD_GRAD_OP")):
                t.attempt(f"evaluation: bits {' '.join(options)}", t.evaluated_bits, adapters, "--ranks", *options)
            t.attempt("evaluation: bits, full", t.evaluated_bits, full, "--ranks", "3", "--gather", "copy", "--set",
                      "fsdp.sharding_strategy=NO_SHARD")
            t.attempt("evaluation: bits, replicas", t.evaluated_bits, full, "--ranks", "4", "--gather", "copy", "--set",
                      "fsdp.dp_shard_size=2", "--set", "fsdp.reshard_after_forward=false")
            t.attempt("evaluation: bits, mpirun", lambda: t.evaluated_bits(adapters, "--gather", "copy", mpi=3))
            t.attempt("evaluation: killed and resumed", t.evaluated_and_killed, adapters)
            for options in (
                ("2",),
                ("3", "--gather", "copy"),
                ("2", "--gather", "copy", "--set", "fsdp.sharding_strategy=SHARD_GRAD_OP"),
                ("5", "--gather", "copy", "--set", "fsdp.sharding_strategy=NO_SHARD"),
                ("4", "--gather", "copy", "--set", "fsdp.dp_replicate_size=2"),
            ):
                t.attempt(f"samples: bits {' '.join(options)}", t.sampled_bits, "--ranks", *options)
            t.attempt("samples: bits, mpirun", lambda: t.sampled_bits("--gather", "copy", mpi=3))
            for mpi in (0, 3):
                t.attempt(f"control, mpirun {mpi}", t.controlled, mpi)
            for n in (1, 2, 3, 5):
                t.attempt(f"mpirun -n {n}", t.mpi_bits, n)
            t.attempt("mpirun, gathered", t.mpi_bits, 3, "--gather", "copy")
            t.attempt("mpirun, prefetch 4", t.mpi_bits, 3, "--gather", "copy", "--set", "fsdp.forward_prefetch=4",
                      "--set", "fsdp.backward_prefetch=0")
            t.attempt("mpirun, NO_SHARD", t.mpi_bits, 2, "--gather", "copy", "--set", "fsdp.sharding_strategy=NO_SHARD")
            t.attempt("mpirun, replicas",
                      lambda: t.mpi_bits(4, "--gather", "copy", "--set", "fsdp.dp_shard_size=2", lora=None))
            t.attempt("mpirun, the backward gathers from two", t.mpi_bits, 4, "--gather", "copy", "--set",
                      "fsdp.reshard_after_forward=2", "--set", "fsdp.backward_prefetch=0")
            t.attempt("mpirun, full", lambda: t.mpi_bits(3, "--gather", "copy", lora=None))
            t.attempt("mpirun, dtype.reduce", lambda: t.mpi_bits(3, "--gather", "copy", dtype={"reduce": "bf16"}))
            t.attempt("mpirun, stopped, killed, resumed", t.mpi_resumed)
            t.attempt("mpirun, each error once", t.mpi_once)
            t.attempt("mpirun, ranks that mean different runs", t.mpi_elsewhere)
            t.attempt("mpirun, clocks an hour apart", t.mpi_clocks)
            t.attempt("mpirun, two network namespaces", t.namespaces)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
