# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks, and of several under mpirun, that are watched while they go, against the one that nobody
touches."""
import concurrent.futures, json, os, random, re, shutil, subprocess, threading, time

from built import joins_mpi
from harness import LIMIT_S, Failure, Skip, Tests, proc_of

PATIENCE = "20"  # seconds that ranks wait for one that stalls: more than a busy machine keeps one of its own waiting
MPIRUN = shutil.which("mpirun")
MPI_ENV = {
    **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_base_warn_component_unused": "0"
}


def need_mpi(program):
    """Skips where the program cannot run under mpirun."""
    if not MPIRUN or "Open MPI" not in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout:
        raise Skip("Open MPI's mpirun is not installed")
    if not joins_mpi(program):
        raise Skip("the trainer was built without Open MPI")


def is_alive(pid):
    stat = proc_of(pid, "stat").rpartition(b")")[2].split()
    return bool(stat) and stat[0] not in b"ZX"


class Ranks(Tests):
    def __init__(self, args):
        super().__init__(args)
        self.model, self.steps, self.only = args.model, args.steps, args.only
        self.random, self.references, self.evaluation = random.Random(5), {}, {}
        self.one_reference = threading.Lock()

    def attempt(self, title, function, *args):
        if not self.only or self.only in title:
            self.check(title, function, *args)

    def together(self, *attempts):
        """Those that wait most of their time."""
        with concurrent.futures.ThreadPoolExecutor(len(attempts)) as pool:
            list(pool.map(lambda a: self.attempt(*a), attempts))

    def job(self, name, steps=None, **sections):
        """Its output folder and its config, with as many steps as a test needs."""
        out = self.tmp / name
        shutil.rmtree(out, ignore_errors=True)
        golden = self.goldens / "lora-qwen3"
        config = {
            "model": str(self.model or golden / "model"),
            "output_dir": str(out),
            "seed": 7,
            "dtype": {"param": "bf16" if self.model else "fp32"},
            "data": {"train": str(golden / "data.jsonl"), "seq_len": 40},
            "lora": {"r": 3, "lora_dropout": 0.25},
            "train": {
                "max_steps": steps or self.steps,
                "global_batch_size": 5,
                "gradient_accumulation_steps": 2,
                "learning_rate": 0.01,
                "warmup_steps": 1,
            },
            "checkpoint": {"save_steps": 2},
        }
        for key, value in sections.items():
            config[key] = {**config.get(key, {}), **value} if value else None
        return out, self.write(name, config)

    def start(self, path, *options, mpi=0, preexec=None, stdout=subprocess.DEVNULL):
        command = [*self.runs, str(path), "--threads", "1", *options]
        if mpi:
            command = self.mpirun(mpi) + command
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=stdout, stdin=subprocess.DEVNULL, text=True,
                                env=MPI_ENV, preexec_fn=preexec)

    def mpirun(self, n):
        need_mpi(self.tool)
        return [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(n)]

    def until(self, process, step):
        """Reads what the run says until a step is done; what it said. Ends with the run."""
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step ") and int(line.split()[1]) >= step:
                break
        return "".join(said)

    def hears(self, process, words):
        """Reads what the run says, to the line with the words, or to its end."""
        said = []
        for line in process.stderr:
            said.append(line)
            if words in line:
                break
        return "".join(said)

    def expect(self, said, *sentences):
        for sentence in sentences:
            if not re.search(sentence, said):
                raise Failure(f"'{sentence}' is not in: {said[-1500:]}")

    def whole(self, out, **sections):
        """The bits, one line a step, and nothing left over."""
        self.same(out, **sections)
        self.one_line_a_step(out, sections.get("steps", self.steps))
        left = [p.name for p in (out / "checkpoints").iterdir() if not re.fullmatch(r"step-\d{6}", p.name)]
        if left or not json.loads((out / "summary.json").read_text())["finished"]:
            raise Failure(f"left in checkpoints/: {left}")

    def done(self, out):
        try:
            return len((out / "metrics.jsonl").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def reference(self, **sections):
        """Bits of the run that nobody touches."""
        name = "reference" + "-".join(sections)
        with self.one_reference:  # tests run together
            if name not in self.references:
                out, path = self.job(name, **sections)
                self.finish(self.start(path, "--ranks", "1"))
                self.references[name] = self.bits(out)
        return self.references[name]

    def same(self, out, **sections):
        if self.bits(out) != self.reference(**sections):
            raise Failure("losses, norms or weights differ from those of the run that nobody touched")

    def gone(self, pids, seconds=LIMIT_S):
        limit = time.monotonic() + seconds
        while any(is_alive(p) for p in pids):
            if time.monotonic() > limit:
                raise Failure(f"processes are left: {[p for p in pids if is_alive(p)]}")
            time.sleep(0.02)
