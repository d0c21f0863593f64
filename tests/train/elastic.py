#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs under --elastic whose ranks are killed, crash or stall: they go on by themselves, with the bits of the run that
nobody touches.

    elastic.py FSDPTRAIN GOLDENS [--random N] [--only WORD]

--random N also kills ranks at N random moments. Needs numpy."""
import argparse, json, os, pathlib, re, resource, shutil, signal, subprocess, sys, time

from harness import Early, Failure, add_device, children_of
from ranks_harness import PATIENCE, Ranks

STEPS = 60
MEMORY = {"memory_every": 3, "save_steps": 20}
GONE_ON = "after the loss"  # of the line that rank 0 says before its first step


class Elastic(Ranks):
    def go(self, name, *options, ranks=3, least=1, restarts=99, preexec=None, **sections):
        out, path = self.job(name, **{**sections, "checkpoint": {**MEMORY, **sections.get("checkpoint", {})}})
        return out, self.start(path, "--ranks", str(ranks), "--elastic", str(least), "--max-restarts", str(restarts),
                               *options, preexec=preexec)

    # --- ranks that are lost

    def killed(self, number, victim, *options, ranks=3, left=2, **sections):
        out, process = self.go(f"killed{number}{victim}{ranks}", *options, ranks=ranks, **sections)
        said = self.until(process, 7)
        self.kill(process, self.children(process, ranks)[victim], number)
        said += self.touched(process, 0)
        self.expect(said, rf"rank {victim} of {ranks} was killed by signal {int(number)} .* in step \d+, .*; "
                    rf"{ranks - 1} of {ranks} ranks are left \(restart 1 of at most 99\)",
                    f"going on with {left} of {ranks} ranks from ",
                    r"step \d+ begins \S+ s after the loss; \d+ finished")
        self.whole(out, **sections)
        return said

    def in_memory(self):
        said = self.killed(signal.SIGKILL, 1, checkpoint={"memory_every": 1, "save_steps": 0})
        self.expect(said, r"going on with 2 of 3 ranks from step \d+, which is in memory")

    def on_disk(self):
        out, process = self.go("on-disk", checkpoint={"memory_every": 0, "save_steps": 5})
        said = self.until(process, 12)
        self.kill(process, self.children(process, 3)[1], signal.SIGKILL)
        said += self.touched(process, 0)
        self.expect(said, r"going on with 2 of 3 ranks from \S+/checkpoints/step-0000\d\d")
        self.whole(out)

    def early(self):
        """Lost before there is a first step."""
        for delay in (0.0, 0.02, 0.1):
            out, process = self.go(f"early{delay}")
            pids = self.first_children(process, 3)
            time.sleep(delay)
            self.kill(process, pids[2], signal.SIGKILL)
            self.expect(self.touched(process, 0), "rank 2 of 3 was killed", "going on with 2 of 3 ranks from ")
            self.whole(out)

    def resumed(self):
        """Lost while it loads the checkpoint that --resume names: it goes on from that one again, and never from one
        of another run in its folder."""
        before, path = self.job("resumed-before", checkpoint={"save_steps": 20})
        self.finish(self.start(path, "--ranks", "1"))
        named = before / "checkpoints" / "step-000020"
        out, process = self.go("resumed", "--resume", str(named), checkpoint={"memory_every": 0, "save_steps": 0})
        self.kill(process, self.first_children(process, 3)[2], signal.SIGKILL)
        self.expect(self.touched(process, 0), "rank 2 of 3 was killed", f"going on with 2 of 3 ranks from {named}")
        found, wanted = ([(m["step"], m["loss"]) for m in self.metrics(o)][-(STEPS - 20):] for o in (out, before))
        if found != wanted:
            raise Failure(f"{found[:1]} to {found[-1:]} instead of {wanted[:1]} to {wanted[-1:]}")
        process = self.start(path, "--ranks", "3", "--elastic", "1", "--resume", str(named))
        self.expect(self.touched(process, 2), "after the one to resume from .step 20.: --elastic wants another")

    def stalled(self, victim, *options):
        """A rank that was stopped counts as lost; so may another that a busy machine lets wait."""
        out, process = self.go(f"stalled{victim}", "--patience", PATIENCE, *options, ranks=4)
        said = self.until(process, 5)
        self.kill(process, self.children(process, 4)[victim], signal.SIGSTOP)
        said += self.touched(process, 0)
        self.expect(said, f"waited {PATIENCE} s in .* for rank {victim} of 4|rank {victim} of 4 has given no sign",
                    "going on with [123] of 4 ranks from ")
        self.whole(out)

    def two_at_once(self):
        out, process = self.go("two", ranks=4)
        said = self.until(process, 9)
        for pid in self.children(process, 4)[1:3]:
            self.kill(process, pid, signal.SIGKILL)
        said += self.touched(process, 0)
        self.expect(said, r"rank [12] of 4 was killed", r"going on with [23] of 4 ranks from ")
        self.whole(out)

    def while_saving(self):
        """Lost while a checkpoint is written: it is written by the ranks that are left."""
        out, process = self.go("saving", checkpoint={"save_steps": 7, "keep_last": 0})
        folder, said = out / "checkpoints", self.until(process, 5)
        while process.poll() is None and not any(not p.name.startswith("step-") for p in folder.iterdir()):
            pass
        self.kill(process, self.children(process, 3)[2], signal.SIGKILL)
        said += self.touched(process, 0)
        self.expect(said, "rank 2 of 3 was killed", "going on with")
        self.whole(out)

    def comes_back(self):
        out, process = self.go("back")
        said = self.until(process, 5)
        self.kill(process, self.children(process, 3)[0], signal.SIGKILL)
        said += self.touched(process, 0)
        self.expect(said, "going on with 2 of 3 ranks from ", "going on with 3 of 3 ranks from ")
        self.whole(out)

    def not_every_number(self):
        """Shard groups of two: three ranks are left, and two go on."""
        options = "--gather", "copy", "--set", "fsdp.dp_shard_size=2"
        said = self.killed(signal.SIGKILL, 1, *options, ranks=4, left=2)
        self.expect(said, "3 of 4 ranks are left", "going on with 2 of 4 ranks")

    def stopped(self):
        """A stop after a loss, and the resume."""
        out, process = self.go("stopped")
        said = self.until(process, 5)
        self.kill(process, self.children(process, 3)[1], signal.SIGKILL)
        said += self.hears(process, GONE_ON)
        process.send_signal(signal.SIGTERM)
        said += self.finish(process)
        if "stopped after step" not in said:
            raise Early(said[-600:])
        self.finish(self.start(self.tmp / "stopped.json", "--ranks", "2"))
        self.whole(out)

    def skipped(self):
        """Steps are skipped, those before the loss are counted too, and the run has diverged."""
        sections = {"lora": {"r": 2, "lora_alpha": 1e30}, "train": {"on_nonfinite": "skip"}}
        untouched, path = self.job("skipped-untouched", **sections)
        self.finish(self.start(path), 3)
        out, process = self.go("skipped", **sections)
        said = self.hears(process, "step 13:")
        self.kill(process, self.children(process, 3)[1], signal.SIGKILL)
        said += self.touched(process, 3)
        self.expect(said, "going on with 2 of 3 ranks", "diverged")
        found, wanted = (json.loads((o / "summary.json").read_text())["skipped"] for o in (out, untouched))
        if found != wanted or found < self.steps / 2:
            raise Failure(f"{found} steps are said to be skipped, {wanted} were")

    # --- the end of it

    def too_few(self):
        out, process = self.go("few", least=2)
        said, pids = self.until(process, 5), self.children(process, 3)
        for pid in pids[:2]:
            self.kill(process, pid, signal.SIGKILL)
        said += self.touched(process, 4)
        self.gone(pids)
        self.expect(said, r"rank [01] of [23] was killed .*; 1 of [23] ranks is left, and --elastic wants at least 2\n",
                    "hint: ")
        self.finish(self.start(self.tmp / "few.json", "--ranks", "2"))
        self.whole(out)

    def too_often(self):
        out, process = self.go("often", restarts=1, checkpoint={"save_steps": 0})
        said = self.until(process, 5)
        self.kill(process, self.children(process, 3)[1], signal.SIGKILL)
        said += self.hears(process, GONE_ON)
        self.kill(process, self.children(process, 2)[1], signal.SIGKILL)
        said += self.touched(process, 4)
        self.expect(said, r"restart 1 of at most 1", r"rank 1 of 2 was killed .*; the ranks were started again 1 time "
                    r"before, as often as --max-restarts allows\n", "hint: ")

    def own_failure(self):
        """A rank that fails for a reason of its own is not started again."""
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        for title, code, sentence, sections in (
            ("nan", 3, "is not finite", {"lora": {"r": 2, "lora_alpha": 1e30}}),
            ("disk", 4, "the last checkpoint could not be saved", {"checkpoint": {"save_steps": 10}}),
        ):
            out, process = self.go(f"own-{title}", steps=20, preexec=small if title == "disk" else None, **sections)
            said = self.finish(process, code)
            self.expect(said, sentence)
            if "restart" in said or "going on with" in said:
                raise Failure(said[-600:])
        out, process = self.go("own-folder", steps=100000, checkpoint={"save_steps": 0})
        self.until(process, 5)
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
        (out / ".fsdpck-lock").unlink()
        said = self.finish(process, 4)
        self.expect(said, "output_dir, or the file '.fsdpck-lock' in it, was removed")
        if "restart" in said:
            raise Failure(said[-600:])

    def refused(self):
        out, path = self.job("refused")
        for options, sentence in (
            (["--ranks", "3", "--elastic", "3"], "--elastic: found 3 of 3 ranks, wanted a smaller number than --ranks"),
            (["--elastic", "1"], "--elastic: found 1 of 1 rank, wanted a smaller number than --ranks"),
            (["--ranks", "3", "--max-restarts", "3"], "--max-restarts"),
        ):
            self.expect(self.run(path, *options, want=2).stderr, re.escape(sentence))
        names = {"SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
        env = {**os.environ, **{f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()}}
        done = subprocess.run([*self.runs, str(path), "--launcher", "mpirun", "--elastic", "1"], env=env, text=True,
                              capture_output=True)
        if self.has_mpi:
            self.expect(done.stderr, "--elastic is for ranks that --ranks or --hosts starts")

    def planned(self):
        """The copies in memory: two of parameters and moments in fp32."""
        _, path = self.job("planned", lora=None, checkpoint=MEMORY)
        plan = [self.tool, "plan", "--device", "cpu", "--json", str(path), "--ranks", "2"]
        plain, elastic = (json.loads(subprocess.run([*plan, *more], capture_output=True, check=True).stdout)
                          for more in ([], ["--elastic", "1"]))
        more = elastic["peak_bytes"] - plain["peak_bytes"]
        if plain["spare_bytes"] or more != elastic["spare_bytes"] or more != 2 * elastic["snapshot_bytes"]:
            raise Failure(f"{elastic['spare_bytes']} bytes of copies, {more} more in all")
        hosts = json.loads(subprocess.run([*plan, "--elastic", "1", "--ranks-per-host", "1"], capture_output=True,
                                          check=True).stdout)
        if hosts["spare_bytes"] != 2 * more:
            raise Failure(f"{hosts['spare_bytes']} bytes of copies on two hosts, twice {more} wanted")
        if more < 24 * elastic["parameters_trained"] / 2:
            raise Failure(f"{more} bytes hold no two copies")

    # --- at random

    def kill_one(self, process):
        """Kills one or two ranks, and leaves one; what the run says until it has gone on."""
        pids = children_of(process.pid) if process.poll() is None else []
        if len(pids) < 2:
            return ""
        for pid in self.random.sample(pids, self.random.choice([1, 1, 2]) if len(pids) > 2 else 1):
            self.kill(process, pid, self.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
        return self.hears(process, GONE_ON)

    def at_random(self, times):
        """So many kills at random moments, in as many runs as they take."""
        sections, nlost, nruns = {"steps": 200}, 0, 0
        while nlost < times:
            each = {"checkpoint": self.random.choice([
                {"memory_every": 1, "save_steps": 10}, {"memory_every": 4, "save_steps": 15},
                {"memory_every": 0, "save_steps": 5}])}
            out, process = self.go("random", ranks=self.random.randint(2, 5), restarts=10000, **sections, **each)
            said = ""
            while process.poll() is None and nlost + said.count(GONE_ON) < times:
                for _ in range(self.random.randint(0, 12)):
                    said += process.stderr.readline()
                time.sleep(self.random.random() * 0.02)
                try:
                    said += self.kill_one(process)
                except Early:
                    break
            said += self.finish(process)
            self.whole(out, **sections)
            nlost, nruns = nlost + said.count(GONE_ON), nruns + 1
        print(f"{nlost} losses in {nruns} runs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--only")
    add_device(parser)
    args = parser.parse_args()
    args.model, args.steps = None, STEPS
    t = Elastic(args)
    try:
        t.attempt("usage", t.refused)
        t.attempt("the plan counts the copies", t.planned)
        for victim, number in ((0, signal.SIGKILL), (1, signal.SIGSEGV), (2, signal.SIGBUS)):
            t.attempt(f"rank {victim} gets {number.name}", t.killed, number, victim)
        t.attempt("full fine-tuning in bf16",
                  lambda: t.killed(signal.SIGKILL, 1, lora=None, dtype={"param": "bf16"}))
        t.attempt("gathered by copying", t.killed, signal.SIGKILL, 2, "--gather", "copy")
        t.attempt("from memory", t.in_memory)
        t.attempt("from disk", t.on_disk)
        t.attempt("before the first step", t.early)
        t.attempt("while the named checkpoint is loaded", t.resumed)
        t.attempt("two ranks at once", t.two_at_once)
        t.attempt("while a checkpoint is written", t.while_saving)
        t.attempt("lost ranks come back", t.comes_back)
        t.attempt("a number of ranks that the mesh does not allow", t.not_every_number)
        t.attempt("stopped after a loss", t.stopped)
        t.attempt("steps that are skipped", t.skipped)
        t.attempt("fewer than MIN are left", t.too_few)
        t.attempt("--max-restarts", t.too_often)
        t.attempt("failures of their own", t.own_failure)
        t.attempt("random moments", t.at_random, args.random or 12)
        t.together(*((f"rank {victim} stalls", t.stalled, victim, *options)
                     for victim, options in ((0, ()), (3, ("--gather", "copy")))))
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
