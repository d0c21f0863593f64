#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`fsdptrain run` under launchers, each faked by the variables that it sets: what joins, what is refused and with which
command instead, and what is no launcher. tests/train/ranks_mpi.py tries the real mpirun.

usage: launchers.py FSDPTRAIN"""
import json, os, pathlib, re, subprocess, sys, tempfile

from built import joins_mpi

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIXES = ("OMPI_", "PMI", "SLURM_")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
LOCAL = "(--launcher local: each process is a run of its own)"
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
PMIX = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.1.0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
OMPI = {
    "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0"
}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "4"}

# environment, the words that name the launcher, and the command that works
CANNOT_JOIN = [
    (SRUN, "srun without --mpi=pmix has started 4 processes", "to start ranks: srun --mpi=pmix -n 4 fsdptrain run"),
    ({**SRUN, **HYDRA}, "srun without --mpi=pmix has started 4", "srun --mpi=pmix -n 4 fsdptrain run CONFIG.json"),
    (TORCHRUN, "torchrun", "fsdptrain run CONFIG.json --ranks 4, or on several hosts: mpirun -n 4 fsdptrain run"),
    ({**TORCHRUN, "RANK": "3", "LOCAL_RANK": "3"}, "torchrun", "fsdptrain run CONFIG.json --ranks 4"),
    (HYDRA, "another MPI (PMI_RANK is set) has started 4 processes", "mpirun -n 4 fsdptrain run CONFIG.json"),
    ({"PMI_RANK": "1"}, "has started several processes", "mpirun -n N fsdptrain run CONFIG.json"),
    ({"PMIX_RANK": "0"}, "a PMIx launcher that is neither srun nor Open MPI's mpirun", "mpirun -n N fsdptrain run"),
]

# nothing started several processes: the run goes on to read its config
ALONE = [
    {},
    {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # the shell of sbatch
    {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
    {**SRUN, **PMIX, "SLURM_STEP_NUM_TASKS": "1"},
    {**TORCHRUN, "WORLD_SIZE": "1"},
    {**HYDRA, "PMI_SIZE": "1"},
    {**OMPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
    {"RANK": "2"},
]

# environment, the variable that is named, and what was wanted
BAD = [
    ({**OMPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK to '4'", "a number below"),
    ({**OMPI, "OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE to 'four'", "a number of processes"),
    ({**OMPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE to '0'", "a number of processes"),
    ({**OMPI, "OMPI_COMM_WORLD_SIZE": "4294967297"}, "OMPI_COMM_WORLD_SIZE to '4294967297'", "a number of processes"),
    ({**SRUN, **PMIX, "SLURM_PROCID": "-1"}, "SLURM_PROCID to '-1'", "a number below"),
    ({**SRUN, **PMIX, "SLURM_LOCALID": "9"}, "SLURM_LOCALID to '9'", "a number below"),
    *(({**SRUN, **PMIX, "SLURM_STEP_TASKS_PER_NODE": tasks}, f"SLURM_STEP_TASKS_PER_NODE to '{tasks}'",
       "numbers of tasks like 2(x3),1, with this node's")
      for tasks in ("", "2(x", "2(y3)", "2(x0)", "0(x2)", "5", "99999999999", ",", "3;1")),
]


class Failure(Exception):
    pass


class Launchers:
    def __init__(self, tool):
        self.tool, self.failed, self.passed = os.path.abspath(tool), 0, 0
        self.has_mpi = joins_mpi(tool)
        self.bare = {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES) and k not in NAMES}

    def run(self, variables, *options, config="nowhere.json", verb="run"):
        with tempfile.TemporaryDirectory() as cwd:
            return subprocess.run([self.tool, verb, config, "--device", "cpu", *options], capture_output=True,
                                  text=True, env={**self.bare, **variables}, cwd=cwd, timeout=1800,
                                  stdin=subprocess.DEVNULL)

    def says(self, done, code, *words):
        """One line with all words."""
        if done.returncode != code or done.stderr.count("\n") != 1 or any(w not in done.stderr for w in words):
            raise Failure(f"exit code {done.returncode}, {code} and {words} wanted: {done.stderr}{done.stdout}")

    def cannot_join(self, variables, title, command):
        done = self.run(variables)
        self.says(done, 2, title, command, "each would train the whole run in the same output_dir", LOCAL)
        self.alone(variables, "--launcher", "local")

    def alone(self, variables, *options):
        self.says(self.run(variables, *options), 2, "nowhere.json: open: No such file")

    def bad(self, variables, found, wanted):
        self.says(self.run(variables), 2, f" has set {found}, wanted {wanted}")

    def one_task_speaks(self):
        """The tasks of srun share a terminal."""
        done = self.run({**SRUN, "SLURM_PROCID": "3"})
        if done.returncode != 2 or done.stderr:
            raise Failure(f"exit code {done.returncode}: {done.stderr}")

    def named(self):
        for word, variable, command in (("srun", "SLURM_STEP_ID", "srun --mpi=pmix -n N"),
                                        ("mpirun", "OMPI_COMM_WORLD_SIZE", "mpirun -n N")):
            self.says(self.run({}, "--launcher", word), 2, f"--launcher {word}: {variable} is not set", command)
        self.says(self.run(SRUN, "--launcher", "srun"), 2, "--launcher srun: PMIX_RANK is not set")
        self.says(self.run({}, "--launcher", "slurm"), 2, "auto", "local", "mpirun", "srun")

    def without_mpi(self):
        for variables, title in ((OMPI, "mpirun"), ({**SRUN, **PMIX}, "srun")):
            self.says(self.run(variables), 2,
                      f"{title} has started 4 ranks, and this fsdptrain was built without MPI: --ranks N starts")

    def ranks_given(self):
        """--ranks is for ranks without a launcher."""
        for variables, title in ((OMPI, "mpirun"), ({**SRUN, **PMIX, "SLURM_STEP_TASKS_PER_NODE": "4"}, "srun")):
            self.says(self.run(variables, "--ranks", "2"), 2, f"{title} has started 4 ranks: --ranks 2 is for ranks")

    def ranks_of_nodes(self):
        """Where a strategy asks how many ranks are on this node."""
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "config.json")
            config.write_text(
                json.dumps({
                    "model": str(ROOT / "fixtures/tiny-llama-tied"), "output_dir": folder + "/out",
                    "data": {"train": str(ROOT / "fixtures/chat.jsonl")}, "lora": {"r": 2},
                    "train": {"max_steps": 1, "learning_rate": 0.1}, "fsdp": {"sharding_strategy": "HYBRID_SHARD"}
                }))
            for tasks, node, nlocal in (("3,1", 0, 3), ("1,3", 1, 3), ("1(x1),3", 1, 3)):
                slurm = {**SRUN, **PMIX, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}
                done = self.run(slurm, config=str(config))
                if done.returncode != 2 or not re.search(rf"\b{nlocal}\b", done.stderr):
                    raise Failure(f"{tasks}, node {node}: exit code {done.returncode}: {done.stderr}")

    def documented(self):
        """Each row of the table in docs/hosts.md holds: with its variables and no others, the ranks join, or its
        command is named."""
        page = (ROOT / "docs/hosts.md").read_text()
        rows = re.findall(r"^\| ([^|]*) \| (`[A-Z][^|]*`) \| (yes|no) \| `([^|]*)` \|$", page, re.M)
        if len(rows) != 6:
            raise Failure(f"{len(rows)} launchers in docs/hosts.md")
        size = {"SLURM_STEP_NUM_TASKS": "4"}
        for title, names, joins, command in rows:
            shown = {name: "4" if "SIZE" in name else "0" for name in re.findall(r"`(\w+)`", names)}
            done = self.run({**size, **shown} if "SLURM_STEP_ID" in shown else shown, "--ranks", "2")
            if joins == "yes":
                self.says(done, 2, " has started 4 ranks")
            else:
                n = re.search("has started (4|several) processes", done.stderr)
                self.says(done, 2, command.replace("N ", "4 " if n and n[1] == "4" else "N ", 1))

    def check(self, title, function, *args):
        try:
            function(*args)
            self.passed += 1
        except (Failure, subprocess.SubprocessError, OSError) as e:
            self.failed += 1
            print(f"FAILED {title}: {e}", flush=True)

    def all(self):
        for case in CANNOT_JOIN:
            self.check(f"refused: {case[0]}", self.cannot_join, *case)
        for variables in ALONE:
            self.check(f"no launcher: {variables}", self.alone, variables)
        for case in BAD:
            self.check(f"bad: {case[0]}", self.bad, *case)
        self.check("one task speaks", self.one_task_speaks)
        self.check("--launcher", self.named)
        self.check("docs/hosts.md", self.documented)
        if self.has_mpi:
            self.check("--ranks", self.ranks_given)
            self.check("ranks of nodes", self.ranks_of_nodes)
        else:
            print("skipped: --ranks and ranks of nodes under a launcher: built without MPI")
            self.check("a build without MPI", self.without_mpi)
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(Launchers(sys.argv[1]).all())
