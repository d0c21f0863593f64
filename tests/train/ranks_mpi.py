# SPDX-License-Identifier: Apache-2.0
"""The same program under mpirun: the same bits, and what is said of ranks that die, stall, or mean another run."""
import contextlib, json, os, pathlib, re, secrets, shutil, signal, socket, struct, subprocess, time
import numpy as np

from harness import Early, Failure, Skip, children_of, proc_of, read_safetensors, write_safetensors
from ranks_harness import MPI_ENV, MPIRUN, PATIENCE, Ranks, need_mpi


def rank_of(pid):
    for variable in proc_of(pid, "environ").decode(errors="replace").split("\0"):
        name, _, value = variable.partition("=")
        if name == "OMPI_COMM_WORLD_RANK":
            return int(value)
    raise LookupError(f"process {pid} has ended")


def supervisors_of(mpirun):
    """The processes that mpirun started, in the order of their ranks. (Numbers of processes begin again at the
    largest.)"""
    return sorted(children_of(mpirun), key=rank_of)


class Mpi(Ranks):
    def mpi_bits(self, n, *options, **sections):
        self.reference(**sections)
        out, path = self.job(f"mpi{n}{''.join(options)[-30:].replace('/', '')}{'-'.join(sections)}", **sections)
        self.finish(self.start(path, *options, mpi=n))
        self.same(out, **sections)

    def under(self, process):
        """The processes that mpirun started, and the rank of each."""
        try:
            supervisors = supervisors_of(process.pid)
            ranks = [rank for supervisor in supervisors for rank in children_of(supervisor)]
        except (LookupError, OSError):  # one has just ended
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

    def mpi_signalled_often(self):
        """At a time limit Slurm sends SIGTERM more than once: the run is saved all the same."""
        self.reference()
        out, path = self.job("mpi-often")
        process = self.start(path, "--exit-on-stop", "75", mpi=3)
        self.until(process, 3)
        supervisors = self.under(process)[0]
        for _ in range(5):
            for supervisor in supervisors:
                with contextlib.suppress(ProcessLookupError):  # it has saved and ended already
                    os.kill(supervisor, signal.SIGTERM)
            time.sleep(0.005)
        err = self.finish(process, None)
        if process.returncode == 0:
            raise Early(err[-500:])
        if process.returncode != 75 or "stopped after step" not in err:
            raise Failure(f"exit code {process.returncode}: {err[-900:]}")
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
        """A rank that has another folder under the name of output_dir, one that has other data, and one that cuts
        parameters otherwise, are found before step 0."""
        out, path = self.job("elsewhere")
        other = self.write("elsewhere-other",
                           {**json.loads(path.read_text()), "output_dir": str(self.tmp / "nowhere-near")})
        changed = self.write("elsewhere-changed", {**json.loads(path.read_text()), "seed": 8})
        wrapped = self.write("elsewhere-wrapped", {
            **json.loads(path.read_text()), "fsdp": {
                "auto_wrap_policy": "NO_WRAP"
            }
        })
        whole = self.write("elsewhere-whole",
                           {**json.loads(path.read_text()), "fsdp": {"sharding_strategy": "NO_SHARD"}})
        kept = self.write("elsewhere-kept", {**json.loads(path.read_text()), "fsdp": {
            "policy": [{"modules": ["layers.0"], "sharding_strategy": "SHARD_GRAD_OP"}]}})
        meshed = self.write("elsewhere-meshed", {**json.loads(path.read_text()), "fsdp": {
            "policy": [{"modules": ["layers.0"], "sharding_strategy": "NO_SHARD"}]}})
        config = json.loads(path.read_text())
        weights = self.write("elsewhere-weights", {**config, "model": str(self.other_model(config["model"]))})
        data = self.tmp / "elsewhere.jsonl"
        lines = pathlib.Path(config["data"]["train"]).read_text().splitlines()
        data.write_text("\n".join([lines[1], lines[0], *lines[2:], ""]))
        data = self.write("elsewhere-data", {**config, "data": {**config["data"], "train": str(data)}})
        for theirs, words in ((other, "does not see what rank 0 writes"),
                              (weights, "does not have the same weights in model or lora.init_adapter as rank 0"),
                              (data, "the same data (data.train, its tokenizer or chat template) as rank 0"),
                              (wrapped, "the same fsdp.auto_wrap_policy or fsdp.min_num_params as rank 0"),
                              (kept, "does not have the same fsdp.policy as rank 0"),
                              (meshed, "fsdp.policy gives other shard groups to rank 1 than to rank 0"),
                              (changed, "does not have the same config as rank 0"),
                              (whole, "the shard groups of rank 1 have 1 rank, and those of rank 0 2")):
            self.refused(self.tool, path, theirs, words)
        self.refused(self.other_build(), path, path, "runs another build of fsdptrain than rank 0")

    def mpi_clocks(self):
        """Clocks an hour apart are noted, and the run has the same bits."""
        need_mpi(self.tool)
        if not shutil.which("cc"):
            raise Skip("needs cc, for a library that sets the clock of one rank")
        library = self.tmp / "clock.so"
        (self.tmp / "clock.c").write_text("""#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
time_t time(time_t *t)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec - 3600;
    return now.tv_sec - 3600;
}
""")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(self.tmp / "clock.c")], check=True)
        self.reference()
        out, path = self.job("clocks")
        ours = [*self.runs, str(path), "--threads", "1"]
        command = [*self.mpirun(1), *ours, ":", "-n", "1", "-x", f"LD_PRELOAD={library}", *ours]
        done = subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=300)
        said = r"the clock of rank 1 \(on host '.*'\) is 3(599|600|601) seconds behind that of rank 0"
        if done.returncode or not re.search(said, done.stderr):
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
        self.same(out)

    def refused(self, tool, path, theirs, words):
        """Rank 1 runs another program, or another config."""
        ours = [*self.runs, str(path), "--threads", "1"]
        others = [tool, *self.runs[1:], str(theirs), "--threads", "1"]
        command = [*self.mpirun(1), *ours, ":", "-n", "1", *others]
        done = subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=300)
        said = self.said(done.stderr)
        if (
            done.returncode == 0 or len(said) != 1 or words not in said[0]
            or f"rank 1 (on host '{socket.gethostname()}')" not in said[0] and "shard groups" not in words
        ):
            raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")

    def other_model(self, folder):
        """The same shapes with other numbers."""
        model = self.tmp / "elsewhere-model"
        shutil.copytree(folder, model)
        for file in model.glob("*.safetensors"):
            write_safetensors(file, {k: v + np.float32(0.5) for k, v in read_safetensors(file).items()})
        return model

    def other_build(self):
        """The program with another id of its build."""
        raw = bytearray(pathlib.Path(self.tool).read_bytes())
        note = raw.find(struct.pack("<3I", 4, 20, 3) + b"GNU\0")
        if note < 0:
            raise Skip("the linker has written no build id")
        raw[note + 16] ^= 1
        linked = subprocess.run(["ldd", self.tool], capture_output=True, text=True, check=True).stdout
        folder = self.tmp / "elsewhere-build/a"
        folder.mkdir(parents=True)
        (folder / "fsdptrain").write_bytes(raw)
        (folder / "fsdptrain").chmod(0o755)
        library = re.search(r"(libfsdpck\S*) => (\S+)", linked)
        if library:  # found beside the program
            (folder.parent / "ckpt").mkdir()
            (folder.parent / "ckpt" / library[1]).symlink_to(library[2])
        return str(folder / "fsdptrain")

    def said(self, err):
        """Errors of fsdptrain: its sentences without the notes. mpirun passes on pieces of 4096 bytes: one rank's line
        may break another's."""
        sentences = re.findall(r"fsdptrain: (?:(?!fsdptrain: ).)*", err)
        return [
            s for s in sentences if not s.startswith("fsdptrain: note: ") or "step is finished and saved first" in s
        ]

    def mpi_once(self):
        """What all ranks find, or one, is said once."""
        out, path = self.job("mpi-once", steps=4000)
        changes = [({"modle": "x"}, "unknown key 'modle'"), ({"model": "/nowhere"}, "/nowhere"),
                   ({"data": {"train": "/nowhere.jsonl"}}, "/nowhere.jsonl"),
                   ({"lora": {"r": 2, "lora_alpha": 1e30}}, "is not finite"), ({"output_dir": "/proc/no"}, "/proc/no")]
        for change, words in changes:
            other = self.write("mpi-once-other", {**json.loads(path.read_text()), **change})
            err = self.finish(self.start(other, mpi=3), None)
            if len(self.said(err)) != 1 or words not in self.said(err)[0]:
                raise Failure(f"'{words}' wanted once: {err[-1500:]}")
        for options, words in (
            (["--rank", "3"], "has no option '--rank'"),
            (["--ranks", "2"], "mpirun has started 3 ranks"),
        ):
            err = self.finish(self.start(path, *options, mpi=3), None)
            if err.count(words) != 1:
                raise Failure(f"'{words}' wanted once: {err[-1500:]}")
        out, path = self.job("mpi-once-some")
        some = [*self.mpirun(2), *self.runs, str(path), ":", "-n", "2", *self.runs, str(path), "--rank", "3"]
        done = subprocess.run(some, capture_output=True, text=True, env=MPI_ENV, timeout=1800)
        if done.returncode != 2 or done.stderr.count("has no option '--rank'") != 1:
            raise Failure(f"two of four ranks, once: exit code {done.returncode}: {done.stderr[-1500:]}")
        out, path = self.job("mpi-once-unshared")
        command = [
            *self.mpirun(3), "--mca", "btl", "self,tcp", "bash", "-c", 'ulimit -f 20; exec "$@"', "-", *self.runs,
            str(path), "--threads", "1"
        ]  # MPI's own shared memory is a larger file, too
        said = self.said(subprocess.run(command, capture_output=True, text=True, env=MPI_ENV, timeout=1800).stderr)
        if len(
                said
        ) != 1 or "cannot share memory: memory that ranks share: File too large" not in said[0]:
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

    @contextlib.contextmanager
    def two_networks(self):
        """Two hosts, as far as MPI can see: network namespaces with their own host names. Yields the names, the start
        of a command on the first, and an ssh that knows their names and addresses."""
        need_mpi(self.tool)
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            raise Skip("needs root, iproute2's ip and unshare, to make network namespaces")
        unique = secrets.token_hex(4)
        names = [f"fsdptrain{unique}{i}" for i in "ab"]
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
            agent = self.tmp / names[0]
            agent.write_text(f"""#!/bin/bash
while [[ "$1" == -* ]]; do [ "$1" = -o ] && shift; shift; done
case $1 in *.1 | {names[0]}) ns={names[0]} ;; *) ns={names[1]}; [ -e "{agent}.lost" ] && exit 255 ;; esac
shift
exec ip netns exec "$ns" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$ns" "$*"
""")
            agent.chmod(0o755)
            yield names, ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"',
                          names[0]], agent
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @contextlib.contextmanager
    def two_hosts(self):
        """Yields the names of two hosts, and the start of a command that runs fsdptrain on both."""
        with self.two_networks() as (names, on_first, agent):
            yield names, [
                *on_first, MPIRUN, "--host", "10.99.77.1:1,10.99.77.2:1", "-n", "2", "--bind-to", "none", "--mca",
                "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "10.99.77.0/24", "--mca",
                "btl_tcp_if_include", "10.99.77.0/24", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", *self.runs
            ]

    def namespaces(self):
        with self.two_hosts() as (_, command):
            self.reference()
            out, path = self.job("namespaces")
            done = subprocess.run([*command, str(path), "--threads", "1"], capture_output=True, text=True, env=MPI_ENV,
                                  timeout=1800)
            if done.returncode:
                raise Failure(f"exit code {done.returncode}: {done.stderr[-900:]}")
            self.same(out)

    def on(self, host):
        """The processes on a host."""
        done = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def signal(self, pids, number):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextlib.contextmanager
    def run_of_two_hosts(self, path, *options):
        """The names of the hosts, and a run that has done a few steps. Whatever is left of it is killed."""
        with self.two_hosts() as (names, command):
            process = subprocess.Popen([*command, str(path), "--threads", "1", *options], stderr=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=MPI_ENV)
            try:
                self.until(process, 3)
                yield names, process
            finally:
                process.kill()
                self.signal([pid for name in names for pid in self.on(name)], signal.SIGKILL)

    def link(self, host, state):
        subprocess.run(["ip", "-n", host, "link", "set", "ft1", state], check=True)

    def host_lost(self, frozen):
        """A host whose cable is pulled, or that freezes, is named, and everything ends on the other one: mpirun too,
        which would wait for ever. A frozen host's processes end when it goes on."""
        out, path = self.job(f"host-lost{frozen}", steps=100000)
        with self.run_of_two_hosts(path, "--patience", PATIENCE) as (names, process):
            inside, lost = children_of(process.pid), self.on(names[1])
            if frozen:
                self.signal(lost, signal.SIGSTOP)
            else:
                self.link(names[1], "down")
            err = self.finish(process, None, 300)
            said = self.said(err)
            if (
                process.returncode == 0 or len(said) != 1 or "for rank 1 of 2" not in said[0]
                or f"which is on host '{names[1]}'" not in said[0]
            ):
                raise Failure(f"exit code {process.returncode}: {err[-900:]}")
            self.gone(inside, 300)
            if frozen:
                self.signal(lost, signal.SIGCONT)
                self.gone(lost, 300)

    def cable_out(self):
        """A cable that is out for a while costs time and no bits."""
        self.reference()
        out, path = self.job("cable-out")
        with self.run_of_two_hosts(path) as (names, process):
            self.link(names[1], "down")
            time.sleep(3)
            self.link(names[1], "up")
            self.finish(process, 0, 300)
            self.same(out)
