# SPDX-License-Identifier: Apache-2.0
"""What the tests of runs of the trainer share: starting one, and reading what it leaves behind."""
import json, os, pathlib, shutil, signal, struct, subprocess, tempfile, threading
import numpy as np

from built import joins_mpi

DTYPES = {"F32": np.float32, "F64": np.float64}


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        data = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            out[name] = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(t["shape"])
        else:
            out[name] = np.frombuffer(data, DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    """Bytes as they are, all else in float32."""
    header, at, data = {}, 0, []
    for name, values in tensors.items():
        data.append(np.ascontiguousarray(values, np.uint8 if values.dtype == np.uint8 else np.float32).tobytes())
        header[name] = {"dtype": "U8" if values.dtype == np.uint8 else "F32", "shape": list(values.shape),
                        "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    head = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data))


def config_of(folder, out, **train):
    """case.json in the words of CONFIG.json."""
    case = json.loads((folder / "case.json").read_text())
    opt, schedule = case["optimizer"], case["schedule"]
    config = {
        "model": str(folder / "model"), "output_dir": str(out),
        "data": {"train": str(folder / "data.jsonl"), "plan": str(folder / "case.json")}, "train": {
            "max_steps": len(case["steps"]), "learning_rate": opt["lr"], "adam_beta1": opt["betas"][0],
            "adam_beta2": opt["betas"][1], "adam_epsilon": opt["eps"], "weight_decay": opt["weight_decay"],
            "weight_decay_on": "all" if opt.get("decay_all", True) else "matrices",
            "max_grad_norm": case["max_grad_norm"], "lr_scheduler_type": schedule["name"],
            "warmup_steps": schedule["warmup_steps"], "min_lr_ratio": schedule.get("min_lr", 0) / opt["lr"], **train
        }, "dtype": {"param": "fp32"}, "checkpoint": {"save_steps": 5},
    }
    if case["method"] == "lora":
        lora = {k: v for k, v in case["lora"].items() if k not in ("seed", "init_B")}
        config["lora"] = {**lora, "init_adapter": str(folder / "start_adapter")}
    return config


LIMIT_S = 1800  # what takes longer hangs


def proc_of(pid, name):
    """What /proc/PID/NAME holds; nothing where the process has ended, which it may between open() and read()."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def children_of(pid):
    return [int(p) for p in proc_of(pid, f"task/{pid}/children").split()]


class Failure(Exception):
    pass


class Skip(Exception):
    """A test that cannot be tried here, and why."""


def add_device(parser):
    parser.add_argument("--device", default="cpu", help="where runs compute")
    parser.add_argument("--fsdpck", help="default: beside FSDPTRAIN")


class Early(Exception):
    """A run was over before the test came to stop, kill or ask it: on a busy machine a test may be let run late. It is
    tried again."""


TRIES = 20


class Tests:
    def __init__(self, args):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # nohup and background shells hand on that these are ignored
        self.tool, self.goldens, self.passed, self.failed = os.path.abspath(args.fsdptrain), args.goldens, 0, 0
        self.runs = [self.tool, "run", "--device", args.device]
        self.fsdpck = args.fsdpck or pathlib.Path(self.tool).with_name("fsdpck")
        self.has_mpi = joins_mpi(self.tool)
        self.lock = threading.Lock()  # some checks wait most of their time, and are done at once
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="fsdptrain-test-"))

    def check(self, title, function, *args):
        try:
            for n in range(TRIES):
                try:
                    function(*args)
                    break
                except Early as e:
                    if n == TRIES - 1:
                        raise Failure(
                            f"the run was over before it was stopped, killed or asked, {TRIES} times: {e}") from None
            with self.lock:
                self.passed += 1
        except (Failure, subprocess.SubprocessError, OSError, LookupError, ValueError) as e:
            said = getattr(e, "stderr", None) or ""
            with self.lock:
                self.failed += 1
            print(
                f"FAILED {title}: {type(e).__name__}:"
                f" {e} {(said if isinstance(said, str) else said.decode(errors='replace'))[-600:]}",
                flush=True,
            )
        except Skip as why:
            print(f"skipped: {title}: {why}", flush=True)

    def end(self):
        """Nothing is left behind; whether anything failed."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        print(f"{self.passed} passed, {self.failed} failed")
        return self.failed > 0

    def write(self, name, config):
        path = self.tmp / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    def run(self, path, *options, want=0, timeout=LIMIT_S):
        done = subprocess.run([*self.runs, str(path), *options], capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)
        if done.returncode != want:
            raise Failure(f"exit code {done.returncode}, {want} wanted: {done.stderr[-600:]}")
        return done

    def touched(self, process, want):
        """What a run that was killed, stopped or stalled still says. Early where it was over before."""
        err = self.finish(process, None)
        if process.returncode == 0 and want != 0:
            raise Early(err[-300:])
        if process.returncode != want:
            raise Failure(f"exit code {process.returncode}, {want} wanted: {err[-700:]}")
        return err

    def children(self, process, n):
        """The processes that a run has started, n of them."""
        pids = children_of(process.pid) if process.poll() is None else []
        if len(pids) != n:
            self.touched(process, None)
        return pids

    def first_children(self, process, n):
        """As soon as there are n of them."""
        while len(pids := children_of(process.pid)) < n and process.poll() is None:
            pass
        return pids if len(pids) == n else self.children(process, n)

    def kill(self, process, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            self.touched(process, None)

    def finish(self, process, want=0, timeout=LIMIT_S):
        """What the run still says until it ends. Not by communicate(), which does not see the lines that the pipe's
        reader has taken in beyond those it gave."""
        limit = threading.Timer(timeout, process.kill)
        limit.start()
        err = process.stderr.read()
        process.wait()
        late = not limit.is_alive()
        limit.cancel()
        if late or want is not None and process.returncode != want:
            raise Failure(
                f"exit code {process.returncode}{f' after {timeout} s' if late else ''}, {want} wanted: {err[-700:]}")
        return err

    def metrics(self, out):
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]

    def one_line_a_step(self, out, steps):
        if [m["step"] for m in self.metrics(out)] != list(range(1, steps + 1)):
            raise Failure("metrics.jsonl does not have one line a step")

    def model(self, folder):
        return {k: v for f in sorted((folder / "model").glob("*.safetensors")) for k, v in read_safetensors(f).items()}

    def final(self, out):
        """The trained tensors of a finished run, out of its PEFT folder or its last checkpoint."""
        if (out / "adapter").exists():
            return read_safetensors(out / "adapter/adapter_model.safetensors")
        return self.checkpoint(sorted((out / "checkpoints").glob("step-*"))[-1])

    def checkpoint(self, path):
        file = self.tmp / "exported.safetensors"
        file.unlink(missing_ok=True)
        subprocess.run(
            [str(self.fsdpck), "export", str(path), str(file), "-q", "--select", "model", "--dtype", "fp32"],
            check=True,
            capture_output=True,
        )
        return read_safetensors(file)

    def near(self, what, distance, limit):
        if not distance <= limit:
            raise Failure(f"{what} is {distance:.3g} off, {limit:.3g} allowed")

    def bits(self, out):
        losses = [(m["step"], m["loss"], m["grad_norm"], m["lr"]) for m in self.metrics(out)]
        return losses, {k: v.tobytes() for k, v in self.final(out).items()}
