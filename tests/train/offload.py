#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdp.offload with the optimizer state, parameters and gradients: the bits of a run in memory, at any number of ranks
and under each strategy; checkpoints that either kind of run resumes; disks that are full or fail; nothing left in the
folder. On a guarded device the state leaves the device: for a file, or for host memory.

    offload.py FSDPTRAIN GOLDENS [--device cuda] [--fsdpck FSDPCK]

Needs numpy."""
import argparse, json, os, pathlib, re, resource, shutil, signal, subprocess, sys
import numpy as np

from harness import LIMIT_S, Early, Failure, Tests, add_device, config_of, write_safetensors

STEPS = 4
LEAST = 65536  # of fsdp.offload_memory: many chunks, few buffers
# Golden, dtype.param: the file has masters or not, adapters, and fp32 parameters beside rounded ones (DoRA).
CASES = [("full-qwen3-untied", "fp32"), ("full-qwen3-untied", "bf16"), ("full-llama-odd", "bf16"),
         ("lora-qwen3", "bf16"), ("lora-dora", "bf16"), ("lora-dora", "fp32")]
STRATEGIES = [(1, {}), (2, {}), (3, {"sharding_strategy": "SHARD_GRAD_OP"}), (4, {"sharding_strategy": "NO_SHARD"}),
              (4, {"sharding_strategy": "HYBRID_SHARD", "dp_shard_size": 2})]
BOTH = {"offload_params": True, "offload_gradients": True}
SOME = {"policy": [{"modules": ["layers.0", "layers.1.mlp"], "offload_optimizer": False}]}
PARAMS = [(1, {}), (3, {"sharding_strategy": "SHARD_GRAD_OP"}), (4, {"reshard_after_forward": 2}),
          (4, {"dp_shard_size": 2, "backward_prefetch": 2, **SOME}),
          (3, {"sharding_strategy": "NO_SHARD", "offload_optimizer": False})]


# Golden and dtype.param, ranks, fsdp, in which order the device runs its streams.
ON_DEVICE = [(CASES[0], 1, {"offload": "cpu"}, "late"), (CASES[1], 2, {"offload": "cpu", **SOME}, "early"),
             (CASES[1], 1, {"offload_gradients": True}, "slow"),
             (CASES[2], 3, {"offload": "cpu", "offload_gradients": True, "sharding_strategy": "SHARD_GRAD_OP", **SOME},
              "late"),
             (CASES[4], 2, {}, "late"), (CASES[4], 2, {"offload": "cpu"}, "slow")]
# The same with parameters in host memory.
RESTS = {"offload": "cpu", "offload_params": True}
PARAMS_ON_DEVICE = [(CASES[0], 1, {}, "late"), (CASES[0], 2, {"offload_gradients": True}, "slow"),
                    (CASES[1], 3, SOME, "early"), (CASES[0], 3, {"offload_optimizer": False}, "late"),
                    (CASES[2], 3, {"sharding_strategy": "SHARD_GRAD_OP"}, "slow"),
                    (CASES[1], 4, {"sharding_strategy": "HYBRID_SHARD", "dp_shard_size": 2}, "late"),
                    (CASES[0], 3, {"sharding_strategy": "NO_SHARD"}, "early"),
                    (CASES[1], 4, {"reshard_after_forward": 2, "offload_optimizer": False}, "late"),
                    (CASES[3], 2, {}, "late"), (CASES[4], 3, {}, "early"), (CASES[5], 2, {}, "slow"),
                    (CASES[5], 1, {"offload_optimizer": False}, "late")]


def open_files(pid):
    """Those of a process that works on: some may be closed while they are listed."""
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield link.readlink()
        except FileNotFoundError:
            pass


class Offload(Tests):
    def __init__(self, args):
        super().__init__(args)
        self.folder = self.tmp / "disk"
        self.folder.mkdir()

    def config(self, case, title, fsdp):
        name, dtype = case
        out = self.tmp / f"{name}-{dtype}-{title}"
        config = config_of(self.goldens / name, out, max_steps=STEPS, warmup_steps=0)
        config["train"]["lr_scheduler_type"] = "constant"  # the length of the run does not count
        config.update(dtype={"param": dtype}, fsdp=fsdp, checkpoint={"save_steps": 1, "keep_last": 0})
        if "lora" in config:
            del config["lora"]["init_adapter"]
        return self.write(f"{name}-{dtype}-{title}", config), out

    def offloaded(self, **fsdp):
        return {"offload": str(self.folder), "offload_memory": LEAST, **fsdp}

    def same(self, out, plain, steps=range(1, STEPS + 1)):
        said, wanted = ([(m["step"], m["loss"], m["grad_norm"]) for m in self.metrics(folder)]
                        for folder in (out, plain))
        if said != wanted:
            raise Failure(f"{said} where {wanted} is wanted")
        for step in steps:
            last = f"checkpoints/step-{step:06}"
            done = subprocess.run([str(self.fsdpck), "diff", str(plain / last), str(out / last)], capture_output=True,
                                  text=True)
            if done.returncode:
                raise Failure(f"another {last}: {done.stdout[-400:]}")
        if left := list(self.folder.iterdir()):
            raise Failure(f"left in the folder: {left}")

    def plain(self, case):
        path, out = self.config(case, "plain", {})
        if not out.exists():
            self.run(path, "-q")
        return out

    def bits(self, case, ranks, fsdp, copies=True):
        path, out = self.config(case, "bits", self.offloaded(**fsdp))
        gather = ["--gather", "copy"] if fsdp and copies else []
        self.run(path, "-q", "--ranks", str(ranks), "--threads", "1", *gather)
        self.same(out, self.plain(case))
        shutil.rmtree(out)

    def ordered(self, case, ranks, fsdp, order):
        os.environ["FSDPTRAIN_GUARDED_ORDER"] = order
        self.bits(case, ranks, fsdp)
        if "offload_params" in fsdp:  # devices without links gather from the memory that the ranks of the host share
            self.bits(case, ranks, fsdp, copies=False)

    def resumed(self, case, more):
        """In memory, in a file, on another number of ranks with more in files, in memory."""
        path, out = self.config(case, "resumed", {})
        config = json.loads(path.read_text())
        more = self.offloaded(**more)
        for step, (ranks, fsdp) in enumerate([(1, {}), (2, self.offloaded(**SOME)), (3, more), (2, {})], 1):
            path.write_text(json.dumps({**config, "fsdp": fsdp}))
            self.run(path, "-q", "--ranks", str(ranks), "--threads", "1", "--set", f"train.max_steps={step}")
        self.same(out, self.plain(case))

    def refused(self):
        """Values that no run can have, folders that are no folders, and a disk without room."""
        case = CASES[0]
        for fsdp, code, words in (
            ({"offload": "nvme"}, 2, ["key 'fsdp.offload': \"nvme\" is neither \"cpu\" nor a folder", "as ./nvme"]),
            ({"offload": str(self.folder), "offload_memory": 65535}, 2, ["it must be 65536 to"]),
            ({"offload": str(self.tmp / "nowhere")}, 4, ["rank ", "no file for the optimizer state in this folder",
                                                         "No such file or directory"]),
            ({"offload": "/dev/null"}, 4, ["Not a directory"]),
            ({"offload": str(self.tmp / "nowhere"), "offload_params": True}, 4,
             ["all ranks: no file for the parameters in this folder"]),
        ):
            path, out = self.config(case, "refused", fsdp)
            said = self.run(path, "-q", "--ranks", "4", want=code).stderr
            if missing := [w for w in words if w not in said]:
                raise Failure(f"{fsdp}: {missing} is not in: {said}")
        path, out = self.config(case, "refused", self.offloaded())
        wanted = self.plan(path)["offload_file_bytes"]
        done = subprocess.run([*self.runs, str(path), "-q"], capture_output=True, text=True, timeout=LIMIT_S,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (wanted - 1, wanted - 1)))
        if done.returncode != 4 or "rank 0: no room for" not in done.stderr or (out / "metrics.jsonl").exists():
            raise Failure(f"a file that is too large: exit code {done.returncode}, {done.stderr}")

    def plan(self, path, *options):
        done = subprocess.run([self.tool, "plan", str(path), "-q", "--json", "--device", "cpu", *options],
                              capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return json.loads(done.stdout)

    def planned(self):
        """Buffers and no copy for checkpoints in memory; two copies of the state on the disk."""
        for case, trees in ((CASES[0], 2), (CASES[1], 3)):
            inside = self.plan(self.config(case, "inside", {})[0], "--ranks", "2")
            got = self.plan(self.config(case, "outside", self.offloaded())[0], "--ranks", "2")
            state = inside["snapshot_bytes"] // 3 * trees  # the fp32 values of a run without masters stay in memory
            if got["optimizer_bytes"] > LEAST or got["snapshot_bytes"]:
                raise Failure(f"{case}: {got}")
            saved = inside["optimizer_bytes"] + inside["snapshot_bytes"] - got["optimizer_bytes"]
            if inside["peak_bytes"] - got["peak_bytes"] != saved:
                raise Failure(f"{case}: {inside} {got}")
            whole = got["offload_bytes_per_step"]
            copies = (5 if trees == 2 else 6) / trees  # of a run without masters, both share room for values
            if not state <= whole <= 1.2 * state or got["offload_file_bytes"] != whole * copies:
                raise Failure(f"{case}: {got}, {state} bytes of state")
            if got["offload_written_bytes"] != STEPS * whole:
                raise Failure(f"{case}: {got}")

    def planned_kept(self):
        """The state of a block stays in memory, with its copy for checkpoints; the file is smaller by as much."""
        some = {"policy": [{"modules": ["layers.0"], "offload_optimizer": False}]}
        inside, none, got, most = (self.plan(self.config(CASES[1], "kept", fsdp)[0], "--ranks", "2") for fsdp in (
            {}, self.offloaded(), self.offloaded(**some), self.offloaded(**some, offload_optimizer=False)))
        block = inside["groups"][1]["elements"] // 2
        for key, nbytes in (("optimizer_bytes", 12 * block), ("snapshot_bytes", 12 * block)):
            self.near(key, abs(got[key] - none[key] - nbytes) / nbytes, 0.1)
        self.near("read in a step", abs(none["offload_bytes_per_step"] - got["offload_bytes_per_step"] - 12 * block),
                  8 * 4096)
        if most["optimizer_bytes"] != inside["optimizer_bytes"] or most["offload_file_bytes"]:
            raise Failure(f"no state moves: {most}")

    def planned_params(self):
        """Parameters in a file take the memory of buffers, as gathers by copies do."""
        for ranks in ("1", "3"):
            options = ["--ranks", ranks, "--gather", "copy"] if ranks != "1" else []
            inside = self.plan(self.config(CASES[1], "inside", self.offloaded())[0], *options)
            got = self.plan(self.config(CASES[1], "outside", self.offloaded(offload_params=True))[0], "--ranks", ranks)
            rest = inside["shard_bytes"] * int(ranks)
            if got["shard_bytes"] or not 0 <= got["offload_params_bytes"] - rest < int(ranks):
                raise Failure(f"{ranks} ranks: {inside} {got}")
            written = got["offload_written_bytes"] - inside["offload_written_bytes"]
            self.near("new values", abs(written - STEPS * 2 * got["parameters_trained"] / int(ranks)), STEPS)  # bf16
            buffers = got["gather_buffer_bytes"] - inside["gather_buffer_bytes"]
            if (buffers > 0) != (ranks == "1") or got["peak_bytes"] - buffers != inside["peak_bytes"] - inside[
                    "shard_bytes"]:
                raise Failure(f"{ranks} ranks, {buffers} more bytes of buffers: {inside} {got}")

    def planned_gradients(self):
        """Sums of one group are in memory, and all of them on the disk."""
        inside = self.plan(self.config(CASES[1], "inside", self.offloaded())[0], "--ranks", "2")
        got = self.plan(self.config(CASES[1], "outside", self.offloaded(offload_gradients=True))[0], "--ranks", "2")
        sums = self.plan(self.config(CASES[1], "whole", {})[0], "--ranks", "2")[
            "snapshot_bytes"] // 3
        saved = inside["gradient_bytes"] - got["gradient_bytes"]
        if not 0.4 * sums < saved < sums or got["offload_gradients_bytes"] < sums:
            raise Failure(f"{saved} of {sums} bytes are saved: {got}")
        written = got["offload_written_bytes"] - inside["offload_written_bytes"]
        if inside["peak_bytes"] - got["peak_bytes"] != saved or written < STEPS * sums or written % (STEPS * sums):
            raise Failure(f"{inside} {got}")

    def measured(self):
        path, out = self.config(CASES[1], "measured", self.offloaded())
        said = self.run(path, "--profile").stderr
        for words in ("offload     the optimizer state, ", "profile: waiting for fsdp.offload"):
            if words not in said:
                raise Failure(f"'{words}' is not in {said}")
        whole = self.plan(path)["offload_bytes_per_step"]
        lines = self.metrics(out)
        moved = sum(m["offload_bytes"] for m in lines)
        if not 2 * (STEPS - 1) * 0.8 * whole <= moved <= 2 * (STEPS + 1) * whole:
            raise Failure(f"{moved} bytes in {STEPS} updates of {whole}")
        if any(m["offload_wait_seconds"] < 0 or m["offload_hidden_seconds"] < 0 or
               m["offload_wait_seconds"] > m["step_seconds"] for m in lines):
            raise Failure(f"{lines}")
        if "offload_bytes" in self.metrics(self.plain(CASES[1]))[0]:
            raise Failure("metrics of a file that is not there")

    def killed(self):
        """The file has no name from the start, so nothing of it is left."""
        path, out = self.config(CASES[0], "killed", self.offloaded(**BOTH))
        config = json.loads(path.read_text())
        del config["data"]["plan"]
        config["data"]["seq_len"] = 64
        config["train"]["max_steps"] = 100000
        path.write_text(json.dumps(config))
        process = subprocess.Popen([*self.runs, str(path), "--ranks", "2"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if re.search(r"step +\d", line):
                    break
            ranks = self.children(process, 2)
            files = [file for pid in ranks for file in open_files(pid)]
            ours = [str(f) for f in files if str(f).startswith(f"{self.folder}/")]
            if len(ours) != 6 or len(set(ours)) != 5 or any(not f.endswith("(deleted)") for f in ours):
                raise Failure(f"two files of each rank, and one of both, without a name are wanted: {files}")
            for pid in ranks:
                self.kill(process, pid, signal.SIGKILL)
            self.finish(process, 4)
        finally:
            process.kill()
        if left := list(self.folder.iterdir()):
            raise Failure(f"left in the folder: {left}")

    def bad_page(self):
        """A disk that fails under a mapped page is a signal to the rank, and names the folder to the user."""
        path, out = self.config(CASES[0], "page", self.offloaded(**BOTH))
        config = json.loads(path.read_text())
        config["train"]["max_steps"] = 100000
        del config["data"]["plan"]
        config["data"]["seq_len"] = 64
        path.write_text(json.dumps(config))
        process = subprocess.Popen([*self.runs, str(path), "--ranks", "2"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        try:
            next(line for line in process.stderr if re.search(r"step +\d", line))
            self.kill(process, self.children(process, 2)[1], signal.SIGBUS)
            said = self.finish(process, 4)
        finally:
            process.kill()
        if f"rank 1 of 2 found no page of the parameters in a file of '{self.folder}'" not in said:
            raise Failure(said)

    def lost(self):
        """A rank is lost: the others have larger parts of the state, in new files."""
        ends = []
        for title, fsdp, options in (("kept", {}, []),
                                     ("lost", self.offloaded(**BOTH), ["--ranks", "3", "--elastic", "1"])):
            path, out = self.config(CASES[1], title, fsdp)
            config = json.loads(path.read_text())
            del config["data"]["plan"]
            config["data"]["seq_len"] = 64
            config["train"]["max_steps"] = 60
            config["checkpoint"] = {"save_steps": 10, "export_model": False}
            path.write_text(json.dumps(config))
            shutil.rmtree(out, ignore_errors=True)
            process = subprocess.Popen([*self.runs, str(path), "--threads", "1", *options], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            for line in process.stderr:
                if options and re.search(r"step +1[2-9] ", line):
                    self.kill(process, self.children(process, 3)[1], signal.SIGKILL)
                    break
            said = self.finish(process, 0)
            if options and "2 of 3 ranks are left" not in said:
                raise Early(said[-300:])
            ends.append([(m["step"], m["loss"], m["grad_norm"]) for m in self.metrics(out)])
        if ends[0] != ends[1]:
            raise Failure("not the numbers of a run that loses no rank")

    def large_model(self, name, nlayers, width):
        """A golden with more and wider blocks: they repeat the values of its first one."""
        model, tensors = self.tmp / "large", self.model(self.goldens / name)
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        for file in model.glob("*.safetensors*"):
            file.unlink()
        block = {n: t for n, t in tensors.items() if n.startswith("model.layers.0.")}
        for module, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
            name = f"model.layers.0.mlp.{module}.weight"
            block[name] = np.repeat(block[name], width, axis) / (width if module == "down_proj" else 1)
        tensors = {n: t for n, t in tensors.items() if ".layers." not in n}
        for i in range(nlayers):
            tensors.update({n.replace(".0.", f".{i}.", 1): t for n, t in block.items()})
        write_safetensors(model / "model.safetensors", tensors)
        config = json.loads((model / "config.json").read_text())
        config.update(num_hidden_layers=nlayers, intermediate_size=width * config["intermediate_size"])
        (model / "config.json").write_text(json.dumps(config))
        return model

    def large(self):
        """A limit of memory that is less than weights and moments: the model trains within it with both in files. Those
        of the weights are out of memory too. oneDNN takes more than this limit leaves for its code for AMX, and dies
        without it."""
        name, state = "full-qwen3-untied", self.offloaded(offload_memory=4 << 20)
        model, results, limit = self.large_model(name, 12, 200), [], 0
        for fsdp, limited in (({}, False), ({}, True), (state, False), ({**state, **BOTH}, True)):
            path, out = self.config((name, "bf16"), f"large-{len(results)}", fsdp)
            config = json.loads(path.read_text())
            path.write_text(json.dumps({**config, "model": str(model), "checkpoint": {"save_steps": 2,
                                                                                       "export_model": False}}))
            if not limit:  # without the program's own memory
                need = self.plan(path)
                limit = need["shard_bytes"] + need["optimizer_bytes"]
            options = {"env": {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}
            if limited:
                options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            done = subprocess.run([*self.runs, str(path), "-q", "--threads", "1"], capture_output=True, text=True,
                                  timeout=LIMIT_S, stdin=subprocess.DEVNULL, **options)
            results.append((done.returncode, done.stderr, out))
        if [code for code, _, _ in results] != [0, 4, 0, 0]:
            raise Failure(f"exit codes 0, 4, 0 and 0 are wanted: {results}")
        self.same(results[3][2], results[0][2], (2, 4))
        inside, outside = (self.metrics(results[i][2])[0]["pss_bytes"] for i in (2, 3))
        if inside - outside < need["shard_bytes"] / 2:
            raise Failure(f"{inside} bytes with {need['shard_bytes']} of weights in memory, {outside} without")


    def on_device(self):
        for case, ranks, fsdp, order in ON_DEVICE:
            self.check(f"{case} {ranks} {fsdp} {order}", self.ordered, case, ranks, fsdp, order)
        for case, ranks, fsdp, order in PARAMS_ON_DEVICE:
            self.check(f"parameters {case} {ranks} {fsdp} {order}", self.ordered, case, ranks, {**RESTS, **fsdp}, order)
        self.check("resumed", self.resumed, CASES[1], {"offload": "cpu", "offload_gradients": True})
        for case in (CASES[0], CASES[5]):
            self.check(f"parameters {case} resumed", self.resumed, case, RESTS)
        self.check("refused", self.refused_on_device)
        self.check("plan", self.planned_on_device)
        self.check("plan, parameters", self.planned_params_on_device)
        self.check("search", self.searched_on_device)
        self.check("view", self.said_on_device)

    def refused_on_device(self):
        path, _ = self.config(CASES[0], "refused", self.offloaded(offload_params=True))
        said = self.run(path, "-q", want=2).stderr
        if "key 'fsdp.offload_params': ranks on devices keep parameters in host memory, not in a folder" not in said:
            raise Failure(said)

    def searched_on_device(self):
        """A search proposes nothing that the run would refuse."""
        rates = pathlib.Path(os.environ["FSDPCK_FIXTURES"]) / "rates/h100.json"
        path, _ = self.config(CASES[1], "searched", {"offload": "auto"})
        done = subprocess.run([self.tool, "plan", str(path), "-q", "--json", "--device", "cuda", "--search",
                               "--memory", "10kB", "--rates", str(rates)],
                              capture_output=True, text=True, timeout=LIMIT_S)
        found = {c["offload"] for c in json.loads(done.stdout)["candidates"]} if done.returncode == 1 else done
        if found != {"none", "state"}:
            raise Failure(found)

    def planned_on_device(self):
        """Three buffers of a chunk on the device instead of the state; the rest in host memory, or in a file."""
        def plan(**fsdp):
            path, _ = self.config(CASES[1], "planned", fsdp)
            done = subprocess.run([self.tool, "plan", str(path), "-q", "--json", "--device", "cuda"],
                                  capture_output=True, text=True, timeout=LIMIT_S, check=True)
            return json.loads(done.stdout)
        inside, outside, on_disk = plan(), plan(**self.offloaded(offload="cpu")), plan(**self.offloaded())
        saved = inside["optimizer_bytes"] - outside["optimizer_bytes"]
        state = inside["snapshot_bytes"]  # masters and moments
        if not 0.7 * state < saved < state or inside["peak_bytes"] - outside["peak_bytes"] != saved:
            raise Failure(f"{saved} of {state} bytes are saved: {outside}")
        grads = plan(**self.offloaded(offload="cpu", offload_gradients=True))
        moved, sums = inside["peak_bytes"] - grads["peak_bytes"] - saved, state // 3
        if not 0.4 * sums < moved < sums or grads["offload_host_bytes"] - outside["offload_host_bytes"] < sums:
            raise Failure(f"{moved} of {sums} bytes of gradients are saved: {grads}")
        if not 2 * state <= outside["offload_host_bytes"] < 2.4 * state + LEAST or outside["offload_written_bytes"]:
            raise Failure(f"{state} bytes of state: {outside}")
        if on_disk["peak_bytes"] != outside["peak_bytes"] or on_disk["offload_host_bytes"] > LEAST or (
                on_disk["offload_file_bytes"] + on_disk["offload_host_bytes"] != outside["offload_host_bytes"]):
            raise Failure(f"{on_disk} {outside}")

    def planned_params_on_device(self):
        """Shards leave the device for pinned memory; a single rank gathers groups then."""
        def plan(ranks, **fsdp):
            path, _ = self.config(CASES[1], "planned", self.offloaded(offload="cpu", **fsdp))
            done = subprocess.run([self.tool, "plan", str(path), "-q", "--json", "--device", "cuda", "--ranks", ranks],
                                  capture_output=True, text=True, timeout=LIMIT_S, check=True)
            return json.loads(done.stdout)
        for ranks in ("1", "3"):
            inside, outside = plan(ranks), plan(ranks, offload_params=True)
            shards = inside["shard_bytes"]
            if abs(outside["offload_host_params_bytes"] - shards) > 8192:  # a device's memory is taken in pages
                raise Failure(f"{ranks} ranks: {inside} {outside}")
            buffers = outside["gather_buffer_bytes"] - inside["gather_buffer_bytes"]
            if outside["shard_bytes"] or inside["peak_bytes"] - outside["peak_bytes"] != shards - buffers:
                raise Failure(f"{ranks} ranks: {inside} {outside}")
            if outside["offload_host_bytes"] != inside["offload_host_bytes"] or buffers <= 0:
                raise Failure(f"{ranks} ranks: {inside} {outside}")

    def said_on_device(self):
        path, _ = self.config(CASES[1], "said", self.offloaded(offload="cpu"))
        said = self.run(path, "--set", "train.max_steps=1").stderr
        if not re.search(r"offload     the optimizer state, .* a rank, in host memory", said) or "key 'fsdp." in said:
            raise Failure(said)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    add_device(parser)
    args = parser.parse_args()
    tests = Offload(args)
    if args.device != "cpu":
        tests.on_device()
        sys.exit(tests.end())
    for case in CASES:
        for ranks, fsdp in STRATEGIES:
            tests.check(f"{case} {ranks} {fsdp}", tests.bits, case, ranks, fsdp)
        tests.check(f"{case} resumed", tests.resumed, case, BOTH)
    for case in (CASES[0], CASES[1], CASES[4]):
        for ranks, fsdp in PARAMS:
            tests.check(f"parameters, gradients {case} {ranks} {fsdp}", tests.bits, case, ranks, {**BOTH, **fsdp})
    tests.check("refused", tests.refused)
    tests.check("plan", tests.planned)
    tests.check("plan, state that stays", tests.planned_kept)
    tests.check("plan, parameters", tests.planned_params)
    tests.check("plan, gradients", tests.planned_gradients)
    tests.check("metrics", tests.measured)
    tests.check("killed", tests.killed)
    tests.check("bad page", tests.bad_page)
    tests.check("lost rank", tests.lost)
    tests.check("larger than memory", tests.large)
    sys.exit(tests.end())


if __name__ == "__main__":
    main()
