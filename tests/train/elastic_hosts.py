#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`fsdptrain run --hosts`, with an mpirun, an ssh and an srun that stand for those of a cluster: they start the ranks
on this host. A run goes on after a loss on the hosts that answer, with the bits of the run that nobody touches.

    elastic_hosts.py FSDPTRAIN GOLDENS [--only WORD]

Needs numpy."""
import argparse, contextlib, os, pathlib, re, signal, socket, subprocess, sys, time

from harness import Early, Failure, add_device, children_of, proc_of
from ranks_harness import MPI_ENV
from ranks_mpi import Mpi

STEPS = 300
HERE = socket.gethostname()
# Notes its command line, and starts as many ranks as the launcher would.
LAUNCHER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$FAKE/said"
while [ "$1" != -n ]; do shift; done
ranks=$2
while [ "$1" != run ]; do program=$1; shift; done
shift
"$program" run --ranks "$ranks" --launcher local "$@" &
trap 'kill -USR1 $!' USR1
trap 'kill -USR2 $!' USR2
trap 'kill -TERM $!' TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
for turn in $(seq 600); do [ -e "$FAKE/hangs" ] && sleep 0.1; done
exit $code
"""
# Succeeds on hosts that are not lost; where the file `slow` is, after the test has removed it. srun asks with -n1.
ASK = """case "$*" in *" true")
    echo "$*" >> "$FAKE/asked"
    while [ -e "$FAKE/slow" ]; do sleep 0.05; done
    host=$(echo "$*" | sed 's/.* \\([^ ]*\\) true$/\\1/')
    ! grep -qx "$host" "$FAKE/lost"
    exit
esac
"""
SHELL, REST = LAUNCHER.split("\n", 1)
TOOLS = {"mpirun": LAUNCHER, "ssh": f"{SHELL}\n{ASK}", "srun": f"{SHELL}\n{ASK}{REST}"}


class ElasticHosts(Mpi):
    def __init__(self, args):
        super().__init__(args)
        self.fake = self.tmp / "fake"
        self.fake.mkdir()
        for name, text in TOOLS.items():
            (self.fake / name).write_text(text)
            (self.fake / name).chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        self.env |= {"FAKE": str(self.fake), "PATH": f"{self.fake}:{os.environ['PATH']}"}

    def job(self, name, steps=None, **sections):
        return super().job(name, steps, **{"checkpoint": {"save_steps": 30}, **sections})

    def go(self, name, *options, **sections):
        where = {key: sections.pop(key) for key in ("hosts", "least", "env", "lost") if key in sections}
        out, path = self.job(name, **sections)
        return out, self.start_on(path, *options, **where)

    def start_on(self, path, *options, hosts=f"{HERE}:2,other:1", least=1, env={}, lost=""):
        (self.fake / "said").write_text("")
        (self.fake / "lost").write_text(lost)
        command = [*self.runs, str(path), "--hosts", hosts, "--elastic", str(least), "--threads", "1",
                   *options]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                stdin=subprocess.DEVNULL, env={**self.env, **env})

    def lose(self, process, host=None):
        """Kills a rank, and perhaps lets a host no longer answer."""
        if host:
            (self.fake / "lost").write_text(host)
        pids = self.ranks_of(process)
        if not pids:
            self.touched(process, None)
        self.kill(process, pids[-1], signal.SIGKILL)

    def ranks_of(self, process):
        pids = [process.pid]
        for _ in range(3):  # launcher, fsdptrain, ranks
            pids = [child for pid in pids for child in children_of(pid)]
        return pids

    def launched(self, *wanted):
        said = (self.fake / "said").read_text().splitlines()
        if len(said) != len(wanted) or any(w not in line for w, line in zip(wanted, said)):
            raise Failure(f"{wanted} wanted: {said}")
        if any(word in line for line in said for word in ("--hosts", "--elastic", "--max-restarts")):
            raise Failure(f"the ranks got options of --hosts: {said}")

    def lost_host(self):
        out, process = self.go("lost", "--exit-on-stop", "79")
        said = self.until(process, 40)
        self.lose(process, "other")
        said += self.touched(process, 0)
        files = re.findall(r"--loss-file (\S+)", (self.fake / "said").read_text())
        if len(set(files)) != 2:
            raise Failure(f"a rank of the lost host that tells late would end the next start: {files}")
        self.expect(said, "host 'other' does not answer\n",
                    r"ranks were lost; going on with 2 of 3 ranks on 1 host \(restart 1 of at most 3\)",
                    r"the next step was done \d+\.\d s after the last one before the loss")
        start = f"mpirun --bind-to none --map-by slot --host {HERE}"
        self.launched(f"{start}:2,other:1 -n 3 {self.tool} run --exit-on-loss ",
                      f"{start}:2 -n 2 {self.tool} run --exit-on-loss ")
        self.whole(out)

    def lost_rank(self):
        """All hosts answer: as many ranks again. --resume never is for the first start."""
        out, process = self.go("rank", "--resume", "never")
        said = self.until(process, 40)
        self.lose(process)
        said += self.touched(process, 0)
        self.expect(said, r"going on with 3 of 3 ranks on 2 hosts \(restart 1 of at most 3\)",
                    r"\d finished steps? must be done again")
        self.whole(out)

    def in_slurm(self):
        out, process = self.go("slurm", hosts="a:2,b:2", env={"SLURM_JOB_ID": "7"})
        said = self.until(process, 40)
        self.lose(process, "a")
        said += self.touched(process, 0)
        self.expect(said, "host 'a' does not answer\n", "going on with 2 of 4 ranks on 1 host")
        starts = "srun --mpi=pmix --kill-on-bad-exit=1 --overlap -w"
        self.launched(f"{starts} a,b -N 2 -n 4 --ntasks-per-node 2 ", f"{starts} b -N 1 -n 2 --ntasks-per-node 2 ")
        self.whole(out)

    def stopped(self):
        out, process = self.go("stopped", "--exit-on-stop", "75", steps=100000)
        said = self.until(process, 5)
        process.send_signal(signal.SIGTERM)
        said += self.finish(process, 75)
        self.expect(said, "stopped after step")
        self.launched("mpirun")

    def stopped_while_asked(self):
        """A stop between two starts is none of the losses."""
        out, process = self.go("asked", "--exit-on-stop", "75", steps=100000)
        said = self.until(process, 40)
        (self.fake / "slow").touch()
        (self.fake / "asked").unlink(missing_ok=True)
        self.lose(process)
        while not (self.fake / "asked").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        (self.fake / "slow").unlink()
        said += self.finish(process, 75)
        self.expect(said, "stopped before the ranks started again; to go on from the last checkpoint")
        self.launched("mpirun")

    def stopped_before_start(self):
        (self.fake / "slow").touch()
        (self.fake / "asked").unlink(missing_ok=True)
        out, process = self.go("before", "--exit-on-stop", "75")
        while not (self.fake / "asked").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        (self.fake / "slow").unlink()
        self.expect(self.finish(process, 75), "stopped before the ranks started; to go on from the last checkpoint")
        self.launched()

    def hanging_launcher(self):
        """A launcher that waits for a lost host for ever is ended."""
        (self.fake / "hangs").touch()
        try:
            out, process = self.go("hanging")
            said = self.until(process, 40)
            self.lose(process, "other")
            said += self.hears(process, "going on with 2 of 3 ranks on 1 host")
        finally:
            (self.fake / "hangs").unlink()
        said += self.touched(process, 0)
        self.expect(said, "host 'other' does not answer\n", "restart 1 of at most 3")
        self.whole(out)
        if list(out.glob(".fsdptrain*")):
            raise Failure(f"{list(out.glob('.fsdptrain*'))} is left")

    def comes_back(self):
        """A host that did not answer at the start, and does later. The ranks stand still meanwhile."""
        out, process = self.go("back", lost="other")
        said = self.until(process, 5)
        self.expect(said, "host 'other' does not answer\n", "note: starting with 2 of 3 ranks on 1 host\n")
        ranks = self.ranks_of(process)
        self.signal(ranks, signal.SIGSTOP)
        (self.fake / "lost").write_text("")
        said = self.hears(process, "answers again")
        self.signal(ranks, signal.SIGCONT)
        said += self.touched(process, 0)
        self.expect(said, "host 'other' answers again: the run saves, and starts again with it\n",
                    "note: going on with 3 of 3 ranks on 2 hosts\n")
        self.launched(f"--host {HERE}:2 -n 2 ", f"--host {HERE}:2,other:1 -n 3 ")
        self.whole(out)

    def first_host_lost(self):
        """This host need not be the first one, nor in the list."""
        out, process = self.go("first", hosts="other:1,third:2")
        said = self.until(process, 40)
        self.lose(process, "other")
        said += self.touched(process, 0)
        self.expect(said, "host 'other' does not answer\n", "going on with 2 of 3 ranks on 1 host")
        self.launched("--host other:1,third:2 -n 3 ", "--host third:2 -n 2 ")
        self.whole(out)

    def resumed(self):
        """A run that is lost before its first step has done none, even if the run that it resumes has."""
        out, process = self.go("resumed")
        self.until(process, 40)
        process.send_signal(signal.SIGTERM)
        self.finish(process)
        before = self.done(out)
        process = self.start_on(self.tmp / "resumed.json")
        while len(self.ranks_of(process)) < 3 and process.poll() is None:
            pass
        ranks = self.ranks_of(process)
        self.signal(ranks, signal.SIGSTOP)
        time.sleep(0.2)  # fsdptrain looks at the metrics every 0.1 s
        self.lose(process)
        if self.done(out) > before:
            raise Early("a step was done before the loss")
        self.signal(ranks, signal.SIGCONT)
        said = self.touched(process, 0)
        if "the next step was done" in said:
            raise Failure(f"the steps of the run before count: {said[-900:]}")
        self.whole(out)

    # --- copies in memory, with a real mpirun

    @contextlib.contextmanager
    def kept(self, name, first=2, second=1, **checkpoint):
        """A run on two hosts, of whose state only the copies in memory are left. Nothing of it may be left behind."""
        with self.two_networks() as (names, on_first, agent):
            folder = self.tmp / f"ssh-{names[0]}"
            folder.mkdir()
            (folder / "ssh").symlink_to(agent)
            out, path = self.job(name, checkpoint={"save_steps": 0, "memory_every": 3, **checkpoint})
            network = {f"OMPI_MCA_{layer}_tcp_if_include": "10.99.77.0/24" for layer in ("oob", "btl")}
            env = {**MPI_ENV, **network, "OMPI_MCA_plm_rsh_agent": str(agent), "OMPI_MCA_pml": "ob1",
                   "OMPI_MCA_btl": "self,tcp", "PATH": f"{folder}:{os.environ['PATH']}"}
            process = subprocess.Popen(
                [*on_first, *self.runs, str(path), "--hosts", f"{names[0]}:{first},{names[1]}:{second}", "--elastic",
                 "1", "--threads", "1"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                stdin=subprocess.DEVNULL, env=env)
            try:
                yield out, process, names, agent
                self.gone([pid for name in names for pid in self.on(name)], 30)
            finally:
                process.kill()
                self.signal([pid for name in names for pid in self.on(name)], signal.SIGKILL)

    def ranks_on(self, host):
        """The processes of a host that train: those that a fsdptrain run has forked."""
        runs = [pid for pid in self.on(host) if b"\0--keeper\0" in proc_of(pid, "cmdline")]
        return [child for pid in runs for child in children_of(pid) if child in runs]

    def in_time(self, out):
        """Early where a run may have been over before its loss: a rank that has ended can still be killed."""
        if self.done(out) > self.steps - 10:
            raise Early("the run was all but over before the loss")

    def memory_of_lost_host(self, first, second):
        """The rows of the second host are in the memory of the first, too."""
        self.reference()
        with self.kept(f"kept{first}{second}", first, second) as (out, process, names, agent):
            said = self.until(process, 40)
            agent.with_name(agent.name + ".lost").touch()
            self.signal(self.on(names[1]), signal.SIGKILL)
            self.in_time(out)
            said += self.touched(process, 0)
            self.expect(said, f"host '{names[1]}' does not answer\n",
                        rf"going on with {first} of {first + second} ranks on 1 host",
                        r"going on from step \d+, which is in memory", r"the next step was done \S+ s after")
            self.whole(out)

    def memory_of_lost_rank(self):
        """All ranks again, twice: each host has its own rows."""
        self.reference()
        with self.kept("kept-rank", 1, 2) as (out, process, names, agent):
            said = self.until(process, 40)
            for _ in range(2):
                ranks = self.ranks_on(names[1])
                if not ranks:
                    self.touched(process, None)
                self.kill(process, ranks[0], signal.SIGKILL)
                self.in_time(out)
                said += self.hears(process, "the next step was done")
            said += self.touched(process, 0)
            if said.count(", which is in memory") != 2 or "'checkpoint.memory_every' has no effect" in said:
                raise Failure(f"copies in memory were not used: {said[-1500:]}")
            self.whole(out)

    def no_keeper(self):
        """Without a keeper on a host, the run says so and goes on from checkpoints."""
        self.reference()
        with self.kept("kept-none", 1, 1, save_steps=30) as (out, process, names, agent):
            said = self.until(process, 40)
            self.signal([pid for pid in self.on(names[1]) if self.is_keeper(pid)], signal.SIGKILL)
            for rank in self.ranks_on(names[1]) or self.touched(process, None):
                self.kill(process, rank, signal.SIGKILL)
            self.in_time(out)
            said += self.touched(process, 0)
            self.expect(said, r"going on from \S+/checkpoints/step-\d{6}")
            self.whole(out)

    def is_keeper(self, pid):
        return b"\0keep\0" in proc_of(pid, "cmdline")

    def ends(self):
        _, process = self.go("few", "--exit-on-loss", "9", least=2, hosts=f"{HERE}:1,other:2", steps=100000)
        self.until(process, 3)
        self.lose(process, "other")
        self.expect(self.finish(process, 9), "the hosts that answer have 1 of 3 ranks, and --elastic wants at least 2")
        _, process = self.go("none-answers", least=2, hosts="other:1,third:2", lost="other\nthird")
        self.expect(self.finish(process, 4), r"fsdptrain: the hosts that answer have 0 of 3 ranks, and --elastic wants "
                    "at least 2")
        _, process = self.go("often", "--max-restarts", "1", steps=100000)
        self.until(process, 3)
        self.lose(process)
        self.hears(process, "the next step was done")
        self.lose(process)
        self.expect(self.finish(process, 4), "the ranks were started again 1 time before, as often as --max-restarts "
                    "allows")

    def own_failure(self):
        out, process = self.go("own", lora={"r": 2, "lora_alpha": 1e30})
        self.expect(self.finish(process, 3), "is not finite")
        self.launched("mpirun")

    def refused(self):
        (self.fake / "mpirun").rename(self.fake / "away")
        try:
            env = {"PATH": str(self.fake)}
            self.expect(self.finish(self.go("none", env=env)[1], 4), "'mpirun' could not be started: No such file")
        finally:
            (self.fake / "away").rename(self.fake / "mpirun")
        for hosts, options, sentence in (
            (f"{HERE}:2", [], "wanted two hosts or more; --ranks starts the ranks of this one"),
            (f"{HERE}:0,other", [], f"found '{HERE}:0', wanted a host and its number of ranks, as in node1:8"),
            (f"{HERE},-x", [], "found '-x', wanted a host"),
            (f"{HERE},other,{HERE}", [], f"'{HERE}' is in it twice"),
            (f"{HERE}:4294967295,other:2", [], "found 4294967297 ranks in all, wanted at most 256"),
            (HERE + ",other", ["--max-restarts", "3", "--resume", "here"], "wanted auto or never"),
            (HERE + ",other", ["--launcher", "local"], "--launcher local has no effect with --hosts"),
            (HERE + ",other:2", ["--launcher", "srun"], f"'{HERE}' has 1 rank and 'other' 2, wanted the same number"),
            (HERE + ",other", ["--ranks", "2"], "--hosts has no effect with --ranks"),
        ):
            self.expect(self.finish(self.go("refused", *options, hosts=hosts)[1], 2), re.escape(sentence))
        _, path = self.job("refused")
        self.expect(self.run(path, "--hosts", HERE + ",other", want=2).stderr,
                    "--hosts has no effect without --elastic")
        self.expect(self.run(path, "--hosts", HERE + ",other", "--elastic", "2", want=2).stderr,
                    "--elastic: found 2 of 2 ranks, wanted a smaller number than those of --hosts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--only")
    add_device(parser)
    args = parser.parse_args()
    args.model, args.steps = None, STEPS
    t = ElasticHosts(args)
    try:
        t.attempt("usage", t.refused)
        t.attempt("a lost host", t.lost_host)
        t.attempt("a lost rank", t.lost_rank)
        t.attempt("a lost node of a Slurm job", t.in_slurm)
        t.attempt("stopped", t.stopped)
        t.attempt("stopped while hosts are asked", t.stopped_while_asked)
        t.attempt("stopped before the first start", t.stopped_before_start)
        t.attempt("a launcher that hangs", t.hanging_launcher)
        t.attempt("a host that comes back", t.comes_back)
        t.attempt("the first host is lost", t.first_host_lost)
        t.attempt("lost before the first step of a resumed run", t.resumed)
        t.attempt("from the memory of the host that is left", t.memory_of_lost_host, 2, 1)
        t.attempt("from the memory of a smaller host that is left", t.memory_of_lost_host, 1, 2)
        t.attempt("a lost rank, from the memory of all hosts", t.memory_of_lost_rank)
        t.attempt("a keeper is lost, too", t.no_keeper)
        t.attempt("too few hosts, too many losses", t.ends)
        t.attempt("a failure of its own", t.own_failure)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
