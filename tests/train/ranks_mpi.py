# SPDX-License-Identifier: Apache-2.0
"""The same program under mpirun: the same bits, and what is said of ranks that die, stall, or mean another run."""
import json, os, re, shutil, signal, subprocess

from harness import Early, Failure, Skip, children_of
from ranks_harness import MPI_ENV, MPIRUN, PATIENCE, Ranks, need_mpi


class Mpi(Ranks):
    def mpi_bits(self, n, *options, **sections):
        self.reference(**sections)
        out, path = self.job(f"mpi{n}{''.join(options)[-30:].replace('/', '')}{'-'.join(sections)}", **sections)
        self.finish(self.start(path, *options, mpi=n))
        self.same(out, **sections)

    def under(self, process):
        """The processes that mpirun started, and the rank of each."""
        try:
            supervisors = sorted(children_of(process.pid))
            ranks = [rank for supervisor in supervisors for rank in children_of(supervisor)]
        except FileNotFoundError:  # one has just ended
            ranks = []
        if len(ranks) != 3:
            self.touched(process, None)
        return supervisors, ranks

    def mpi_resumed(self):
        """Between mpirun and local ranks, by SIGUSR1 and by kills of a rank and of its supervisor."""
        self.reference()
        out, path = self.job("mpi-resumed")
        process = self.start(path, mpi=3)
        self.until(process, 4)
        process.send_signal(signal.SIGUSR1)
        err = self.finish(process)
        if "stopped after step" not in err:
            raise Early(err[-500:])
        for victim, deep, how in ((1, True, "map"), (2, False, "copy"), (0, True, "copy")):
            process = self.start(path, "--gather", how, mpi=3)
            self.until(process, self.done(out) + 2)
            supervisors, ranks = self.under(process)
            self.kill(process, (ranks if deep else supervisors)[victim], signal.SIGKILL)
            err = self.finish(process, None)
            if process.returncode == 0:
                raise Early(err[-300:])
            if f"rank {victim} of 3 was killed" not in err or "in step " not in err:
                raise Failure(f"exit code {process.returncode}: {err[-900:]}")
            self.gone(ranks + supervisors)
        self.finish(self.start(path, "--ranks", "2"))
        self.same(out)

    def mpi_stalled(self):
        out, path = self.job("mpi-stalled")
        process = self.start(path, "--patience", PATIENCE, mpi=3)
        self.until(process, 3)
        ranks = self.under(process)[1]
        self.kill(process, ranks[1], signal.SIGSTOP)
        err = self.finish(process, None)
        if process.returncode == 0:
            raise Early(err[-300:])
        self.gone(ranks)
        said = self.said(err)
        if len(said) != 1 or "rank 1 of 3" not in said[0]:
            raise Failure(f"exit code {process.returncode}: {err[-1900:]}")

    def mpi_elsewhere(self):
        """A rank that has another folder under the name of output_dir, and one that has other data, are found before step 0."""
        out, path = self.job("elsewhere")
        other = self.write("elsewhere-other", {**json.loads(path.read_text()), "output_dir": str(self.tmp / "nowhere-near")})
        changed = self.write("elsewhere-changed", {**json.loads(path.read_text()), "seed": 8})
        for theirs, words in ((other, "does not see what rank 0 writes"), (changed, "does not have the same config, model or data as rank 0")):
            ours, others = ([*self.runs, str(config), "--threads", "1"] for config in (path, theirs))
            command = [*self.mpirun(1), *ours, ":", "-n", "1", *others]
            done = subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=1800)
            said = self.said(done.stderr)
            if done.returncode == 0 or len(said) != 1 or words not in said[0] or "rank 1" not in said[0]:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")

    def said(self, err):
        """Errors of fsdptrain: its sentences without the notes. mpirun passes on pieces of 4096 bytes: one rank's line may break another's."""
        sentences = re.findall(r"fsdptrain: (?:(?!fsdptrain: ).)*", err)
        return [s for s in sentences if not s.startswith("fsdptrain: note: ") or "step is finished and saved first" in s]

    def mpi_once(self):
        """What all ranks find, or one, is said once."""
        out, path = self.job("mpi-once", steps=4000)
        changes = [({"modle": "x"}, "unknown key 'modle'"), ({"model": "/nowhere"}, "/nowhere"), ({"data": {"train": "/nowhere.jsonl"}}, "/nowhere.jsonl"),
                   ({"lora": {"r": 2, "lora_alpha": 1e30}}, "is not finite"), ({"output_dir": "/proc/no"}, "/proc/no")]
        for change, words in changes:
            other = self.write("mpi-once-other", {**json.loads(path.read_text()), **change})
            err = self.finish(self.start(other, mpi=3), None)
            if len(self.said(err)) != 1 or words not in self.said(err)[0]:
                raise Failure(f"'{words}' wanted once: {err[-1500:]}")
        for options, words in ((["--rank", "3"], "has no option '--rank'"), (["--ranks", "2"], "mpirun has started 3 ranks")):
            err = self.finish(self.start(path, *options, mpi=3), None)
            if err.count(words) != 1:
                raise Failure(f"'{words}' wanted once: {err[-1500:]}")
        out, path = self.job("mpi-once-unshared")
        command = [*self.mpirun(3), "--mca", "btl", "self,tcp", "bash", "-c", 'ulimit -f 20; exec "$@"', "-", *self.runs, str(path), "--threads", "1"]  # MPI's own shared memory is a larger file, too
        said = self.said(subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=1800).stderr)
        if len(said) != 1 or "the ranks of this host cannot share memory: memory that ranks share: File too large" not in said[0]:
            raise Failure(f"no shared memory, once: {said}")
        out, path = self.job("mpi-once-killed", steps=4000)
        for victim in (2, 0):
            process = self.start(path, mpi=3)
            err = self.until(process, self.done(out) + 1)
            if process.poll() is not None:
                raise Failure(f"ended too early: {err[-900:]}")
            self.kill(process, self.under(process)[1][victim], signal.SIGKILL)
            err += self.finish(process, None)
            if len(self.said(err)) != 1 or f"rank {victim} of 3 was killed" not in self.said(err)[0]:
                raise Failure(f"rank {victim}, once: {err[-1500:]}")

    def namespaces(self):
        """Two hosts, as far as MPI can see: two network namespaces with their own host names."""
        need_mpi(self.tool)
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            raise Skip("needs root, iproute2's ip and unshare, to make network namespaces")
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
                                  text=True, env=MPI_ENV, timeout=1800)
            if done.returncode:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
            self.same(out)
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
