#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CUDA module itself, on NVIDIA's libraries in the host's memory (hosted.h) and the shim's kernels: it trains as
the processor does, with the same bits for any number of ranks, and whatever call of a library fails, a run ends with
one line, without a hang, its last checkpoint whole.

    run.py BUILD GOLDENS

Says nothing about speed, nor about what only a GPU does. Needs numpy for what it shares with the trainer's tests."""
import argparse, concurrent.futures, json, os, pathlib, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))
from harness import Failure, Tests, config_of
from moe import LORA, Moe
import pictures
from ranks_harness import MPI_ENV, MPIRUN, need_mpi

# What each call answers when it fails, in NVIDIA's numbers: of the runtime, of cuBLASLt, of NCCL.
CALLS = {
    "cudaGetDeviceCount": 100, "cudaGetDeviceProperties": 3, "cudaDeviceGetAttribute": 3, "cudaSetDevice": 46,
    "cudaMemGetInfo": 3, "cudaMalloc": 2, "cudaMemset": 700, "cudaDeviceSynchronize": 700, "cudaHostRegister": 2,
    "cudaDeviceGetStreamPriorityRange": 3, "cudaStreamCreateWithPriority": 2, "cudaEventCreateWithFlags": 2,
    "cudaMemcpyAsync": 700, "cudaMemsetAsync": 700, "kernel": 700, "cudaEventRecord": 700, "cudaStreamWaitEvent": 700,
    "cudaEventSynchronize": 700, "cudaStreamQuery": 700, "cudaStreamSynchronize": 700, "cudaGraphLaunch": 700,
    "cublasLtCreate": 1, "cublasLtMatmulDescCreate": 3, "cublasLtMatmulDescSetAttribute": 7,
    "cublasLtMatrixLayoutCreate": 3, "cublasLtMatmulPreferenceCreate": 3, "cublasLtMatmulPreferenceSetAttribute": 7,
    "cublasLtMatmulAlgoGetHeuristic": 14, "cublasLtMatmul": 13, "ncclGetUniqueId": 2, "ncclCommInitRankConfig": 1,
    "ncclCommGetAsyncError": 6, "ncclGroupStart": 3, "ncclGroupEnd": 6, "ncclAllGather": 3, "ncclSend": 3,
    "ncclRecv": 3,
}
# made before a device is chosen, or by rank 0 alone
FIRST = ("cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaSetDevice", "ncclGetUniqueId")
# What else is done then, and the run ends as it would have.
REPLAYS = {
    "cudaStreamBeginCapture": 900, "cudaStreamEndCapture": 901, "cudaGraphInstantiateWithFlags": 2, "cudaGraphUpload": 2
}
WHEN = (1, 40)  # which of a rank's calls


class Hosted(Tests):
    def __init__(self, args):
        super().__init__(
            argparse.Namespace(
                fsdptrain=str(args.build / "tests/cuda/fsdptrain"),
                goldens=args.goldens,
                device="cuda",
                fsdpck=str(args.build / "src/tools/fsdpck"),
            )
        )

    def start(self, path, *options, device="cuda", **env):
        return subprocess.run(
            [self.tool, "run", str(path), "-q", "--device", device, *map(str, options)],
            capture_output=True,
            text=True,
            timeout=1800,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **{k: str(v) for k, v in env.items()}},
        )

    def ends(self, path, *options, **env):
        done = self.start(path, *options, **env)
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {done.stderr}")

    # --- training

    def golden(self, name, most=2):
        """A golden's first steps, in fp32 against its own, and in bf16 as on the processor; whatever the number of
        ranks, at most so many (four share two devices: through the host)."""
        folder = self.goldens / name
        want = json.loads((folder / "expected.json").read_text())
        for dtype, ranks in (("fp32", {1, 2}), ("bf16", {1, 2, most})):
            seen = {}
            for n in ranks:
                out = self.tmp / f"{name}-{dtype}-{n}"
                config = config_of(folder, out)
                config["dtype"]["param"], config["train"]["max_steps"] = dtype, 2
                self.ends(self.write(out.name, config), "--ranks", n)
                seen[n] = self.bits(out)
            if any(bits != seen[1] for bits in seen.values()):
                raise Failure(f"{dtype}: other bits with other numbers of ranks")
            reference = [(loss, norm) for loss, norm in zip(want["loss"], want["grad_norm"])][:2]
            if dtype == "bf16":
                self.ends(self.write(f"{name}-cpu", {**config, "output_dir": str(self.tmp / f"{name}-cpu")}),
                          device="cpu")
                reference = [m[1:3] for m in self.bits(self.tmp / f"{name}-cpu")[0]]
            for got, (loss, norm) in zip(seen[1][0], reference):
                self.near(f"{dtype}: loss", abs(got[1] - loss),
                          want["tolerance"]["loss_abs"] if dtype == "fp32" else 0.01)
                self.near(f"{dtype}: norm", abs(got[2] / norm - 1),
                          want["tolerance"]["grad_norm_rel"] if dtype == "fp32" else 0.02)

    def refused(self, name):
        """Products that cuBLASLt has no kernel for, and a device without warpgroups: own kernels, near the same
        losses."""
        losses = {}
        for how, env in (
            ("", {}),
            ("refused", {"FSDPTRAIN_HOSTED_REFUSE": 1}),
            ("Ampere", {"FSDPTRAIN_HOSTED_MAJOR": 8}),
        ):
            config = config_of(self.goldens / name, self.tmp / f"refused-{how}")
            config["dtype"]["param"], config["train"]["max_steps"] = "bf16", 2
            self.ends(self.write(f"refused-{how}", config), **env)
            losses[how] = [m[1] for m in self.bits(self.tmp / f"refused-{how}")[0]]
        for how, got in losses.items():
            self.near(f"{how or 'Hopper'}: loss", max(abs(a - b) for a, b in zip(got, losses[""])), 0.01)

    def dropped(self):
        """Dropout: the processor's losses, by the same masks."""
        losses = {}
        for dora in False, True:
            for device in "cuda", "cpu":
                path, out = self.config(
                    f"dropped-{device}-{dora}", 150,
                    lora={"r": 8, "target_modules": "all-linear", "lora_dropout": 0.2, "use_dora": dora})
                self.ends(path, device=device)
                losses[device] = [m[1] for m in self.bits(out)[0]]
            self.near(f"dropout, DoRA {dora}: loss",
                      max(abs(a - b) for a, b in zip(losses["cuda"], losses["cpu"], strict=True)), 0.01)

    def mixture(self, family, ranks):
        """A mixture of experts: the processor's losses and norms, the same bits with one rank, samples."""
        numbers, model = {}, Moe.model_of(self, family, vocab_size=136)
        for device, n in ("cpu", 1), ("cuda", 1), ("cuda", ranks):
            path, out = self.config(f"{family}-{device}-{n}", 30, model=str(model), lora={**LORA, "r": 2},
                                    dtype={"param": "fp32"},
                                    sample={"every": 2, "prompts": [{"input_ids": [5, 6, 7, 8]}]})
            self.ends(path, "--ranks", n, device=device)
            numbers[device, n] = self.bits(out)
        want = numbers["cuda", 1]
        if numbers["cuda", ranks] != want:
            raise Failure("other bits with other numbers of ranks")
        for got, (_, loss, norm, *_) in zip(want[0], numbers["cpu", 1][0], strict=True):
            self.near("loss", abs(got[1] - loss), 1e-5)
            self.near("norm", abs(got[2] / norm - 1), 1e-4)

    def pictures(self, dtype, several):
        """Adapters of a model that makes pictures: the processor's losses, the same bits for any number of ranks, piece
        by piece or replayed, stored or computed anew."""
        folder, seen = self.tmp / f"pictures-{dtype}", {}
        folder.mkdir()
        for device, ranks in ("cpu", 1), ("cuda", 1), *(("cuda", n) for n in several):
            path = pictures.config_of(folder, train={"max_steps": 2, "learning_rate": 0.01}, dtype={"param": dtype},
                                      fsdp={"activation_checkpointing": "block" if ranks == 5 else "none"},
                                      output_dir=str(folder / f"{device}-{ranks}"))
            self.ends(path, "--ranks", ranks, device=device, FSDPTRAIN_REPLAY=int(ranks < 3))
            seen[device, ranks] = self.bits(folder / f"{device}-{ranks}")
        others = [n for n in several if seen["cuda", n] != seen["cuda", 1]]
        if others:
            raise Failure(f"other bits with other numbers of ranks: {others}")
        for got, (_, loss, norm, *_) in zip(seen["cuda", 1][0], seen["cpu", 1][0], strict=True):
            self.near("loss", abs(got[1] - loss), 1e-5 if dtype == "fp32" else 0.01)
            self.near("norm", abs(got[2] / norm - 1), 1e-4 if dtype == "fp32" else 0.02)

    def counts(self, path, *options, **env):
        """Of the calls that a run made; of some rank, where there are several."""
        (self.tmp / "counts.json").unlink(missing_ok=True)
        self.ends(path, *options, FSDPTRAIN_HOSTED_COUNTS=self.tmp / "counts.json", **env)
        return json.loads((self.tmp / "counts.json").read_text())

    def replayed(self):
        """What is put on a stream at once, or piece by piece: the same bits, also with other documents from step to
        step, with gathers, with dropout and with a profile (which is never replayed), and where the device does not
        record."""
        data = str(self.goldens / "lora-qwen3/data.jsonl")
        evaluated = {"lora": {"r": 2, "lora_dropout": 0.1}, "data": {"train": data, "eval": data, "seq_len": 64}}
        refused = {call: {"FSDPTRAIN_HOSTED_FAIL": f"{call} 3 {code}"} for call, code in REPLAYS.items()}
        for how, options, sections, more in (("as it is", [], {}, refused), ("gathered", [
                "--ranks", 2
        ], {}, {}), ("copied", ["--gather", "copy"], {}, {}), ("recomputed", [], {
                "fsdp": {"activation_checkpointing": "block"}
        }, {}), ("dropout, evaluated without", [], evaluated, {}), ("profiled", ["--profile"], {}, {})):
            seen = {}
            for name, env in {"pieces": {"FSDPTRAIN_REPLAY": 0}, "replayed": {}, **more}.items():
                path, out = self.config(
                    f"replayed-{how}-{name}",
                    64,
                    train={"max_steps": 2, "global_batch_size": 2, "eval_steps": 2},
                    checkpoint={"save_steps": 2},
                    **sections,
                )
                nreplayed = self.counts(path, *options, **env).get("cudaGraphLaunch", 0)
                if (nreplayed > 0) != (name != "pieces" and how != "profiled"):
                    raise Failure(f"{how}, {name}: {nreplayed} replays")
                seen[name] = self.bits(out)
            other = [name for name, bits in seen.items() if bits != seen["pieces"]]
            if other:
                raise Failure(f"{how}: other bits than piece by piece: {other}")

    def launches(self):
        """What a step of a LoRA run puts on a device: an optimizer's step, and a micro-batch of so many layers. Where
        models are small, launches are its time."""
        model = self.goldens / "lora-qwen3/model"
        nlayer = json.loads((model / "config.json").read_text())["num_hidden_layers"]
        for replay in 0, 1:
            calls = {}
            for nsteps in 4, 8:
                path, _ = self.config(f"launches-{replay}-{nsteps}",
                                      train={"max_steps": nsteps, "global_batch_size": 1},
                                      checkpoint={"save_steps": 100}, lora={"r": 8, "target_modules": "all-linear"})
                calls[nsteps] = self.counts(path, FSDPTRAIN_REPLAY=replay)
            self.few(nlayer, replay, {name: (n - calls[4].get(name, 0)) / 4 for name, n in calls[8].items()})

    def few(self, nlayer, replay, step):
        # A layer: its norms and those of q and k, rope of both, attention, SwiGLU, and the backward of each; 18
        # products forward and 29 back; or two recordings. What is chosen by shape was chosen before.
        most = {
            "kernel": 20 * nlayer + 22, "cublasLtMatmul": 47 * nlayer + 10, "cudaMemcpyAsync": 12, "cudaMemsetAsync": 2,
            "cublasLtMatmulAlgoGetHeuristic": 0
        }
        if replay:
            most.update(kernel=22, cublasLtMatmul=10, cudaGraphLaunch=2 * nlayer)
        said = ", ".join(f"{name} {step.get(name, 0):g}" for name in most)
        print(f"a step of {nlayer} layers, {'replayed' if replay else 'piece by piece'}: {said}")
        if any(step.get(name, 0) > limit for name, limit in most.items()):
            raise Failure(f"{said}; {most} is known to do")

    # --- what goes wrong

    def config(self, name, seq_len=20, **sections):
        folder, out = self.goldens / "lora-qwen3", self.tmp / name
        config = {
            "model": str(folder / "model"), "output_dir": str(out),
            "data": {"train": str(folder / "data.jsonl"), "seq_len": seq_len}, "lora": {"r": 2},
            "train": {"max_steps": 2, "global_batch_size": 2}, "checkpoint": {"save_steps": 1}
        }
        return self.write(name, {**config, **sections}), out

    def one_line(self, done, what):
        lines = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
        if done.returncode != 4 or len(lines) != 1:
            raise Failure(f"{what}: exit code {done.returncode}, 4 and one line wanted: {done.stderr}")
        return lines[0]

    def fails(self, call, count):
        """Of rank 1's device. False: the run has fewer such calls."""
        path, out = self.config(f"fails-{call}-{count}")
        done = self.start(path, "--ranks", 2,
                          FSDPTRAIN_HOSTED_FAIL=f"{call} {count} {CALLS[call]} {0 if call in FIRST else 1}")
        if done.returncode == 0:
            return False
        self.one_line(done, f"{call}, {count}")
        for checkpoint in (out / "checkpoints").glob("step-*"):
            if subprocess.run([self.fsdpck, "verify", str(checkpoint)], capture_output=True).returncode:
                raise Failure(f"{call}, {count}: {checkpoint.name} is not whole")
        return True

    def goes_on(self, call, count):
        path, out = self.tmp / f"fails-{call}-{count}.json", self.tmp / f"fails-{call}-{count}"
        self.ends(path, "--ranks", 2)
        if self.metrics(out)[-1]["loss"] != self.straight:
            raise Failure(f"{call}, {count}: the run that went on came to another end")

    def each_call_fails(self):
        """How often of WHEN. The last of the runs goes on."""
        path, out = self.config("straight")
        self.ends(path, "--ranks", 2)
        self.straight = self.metrics(out)[-1]["loss"]

        def one(call):
            n = 0
            while n < len(WHEN) and self.fails(call, WHEN[n]):
                n += 1
            if n:
                self.goes_on(call, WHEN[n - 1])
            return call, n
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = dict(pool.map(one, CALLS))
        print("calls that failed, each so often: " + ", ".join(f"{call} {n}" for call, n in failed.items()))
        return failed

    def all_fail(self):
        """Each kind of call is made, and its failure is seen."""
        never = [call for call, n in self.each_call_fails().items() if n == 0]
        if never:
            raise Failure(f"without effect: {never}")

    def shown_one_each(self):
        """Where a launcher shows each rank a device of its own, the first to each, NCCL links them; where it shows all
        the same, the host does. The same bits."""
        need_mpi(self.tool)
        seen = {}
        for shown in "own", "first":
            path, out = self.config(f"shown-{shown}")
            counts = self.tmp / f"shown-{shown}.json"
            done = subprocess.run(
                [MPIRUN, "--oversubscribe", "-n", "2", self.tool, "run", str(path), "-q", "--device", "cuda"],
                capture_output=True,
                text=True,
                timeout=1800,
                stdin=subprocess.DEVNULL,
                env={**MPI_ENV, "FSDPTRAIN_HOSTED_COUNTS": str(counts), "FSDPTRAIN_HOSTED_SEEN": shown},
            )
            if done.returncode:
                raise Failure(f"{shown}: {done.stderr}")
            gathers, seen[shown] = json.loads(counts.read_text()).get("ncclAllGather", 0), self.bits(out)
            if (gathers > 0) != (shown == "own"):
                raise Failure(f"{shown}: {gathers} gathers by NCCL")
        if seen["own"] != seen["first"]:
            raise Failure(f"other bits: {seen}")

    def circumstances(self):
        path, _ = self.config("circumstances")
        fail, free = "FSDPTRAIN_HOSTED_FAIL", "FSDPTRAIN_HOSTED_FREE"
        cases = (
            ({fail: "cudaDriverGetVersion 1 1"}, "no NVIDIA driver"),
            ({fail: "cudaGetDeviceCount 1 35"}, "is needed"),
            ({fail: "cudaGetDeviceCount 1 100"}, "no NVIDIA GPU"),
            ({"FSDPTRAIN_HOSTED_MAJOR": 7}, "compute capability 7.0"),
            ({free: 1 << 20}, "free of"),
            ({free: 40 << 20}, "a stream of 50331648 bytes on device"),
            ({fail: "ncclCommInitRankConfig 1 2"}, "its communicator: hosted: failed; as told to"),
        )
        for env, words in cases:
            done = self.start(path, "--ranks", 2, **env)
            if words not in self.one_line(done, str(env)) or (free in env) != (
                "hint: fsdp.activation_checkpointing" in done.stderr
            ):
                raise Failure(f"'{words}' or the hint is not in: {done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("goldens", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--only", default="", help="what these words are in")
    args = parser.parse_args()
    if not (args.build / "tests/cuda/libfsdptrain_cuda.so").exists():
        print(
            "skipped: the CUDA module on hosted libraries: it is not built here (no nvcc, or no C++ compiler)\n0"
            " passed, 0 failed"
        )
        return 0
    t = Hosted(args)
    checks = [
        (f"training, {name}", t.golden, name, *most)
        for name, *most in (
            ("lora-qwen3", 4), ("lora-mistral",), ("full-llama-tied", 4), ("lora-ends-untied",), ("lora-dora",)
        )
    ]
    checks += [
        ("training, other kernels", t.refused, "lora-qwen3"),
        ("training, dropout", t.dropped),
        *((f"mixture of experts, {family}", t.mixture, family, ranks)
          for family, ranks in (("qwen2", 4), ("glm", 2), ("gpt_oss", 2))),
        ("pictures, fp32", t.pictures, "fp32", (3, 5)),
        ("pictures, bf16", t.pictures, "bf16", (2, )),
        ("replayed", t.replayed),
        ("launches", t.launches),
        ("circumstances", t.circumstances),
        ("each call fails", t.all_fail),
        ("one device each", t.shown_one_each),
    ]
    try:
        for title, *call in checks:
            if args.only in title:
                t.check(title, *call)
    finally:
        failed = t.end()
    return failed


if __name__ == "__main__":
    sys.exit(main())
