#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times fsdpck against what else does the same job, and prints a table of ratios.

usage: run.py BUILD_DIR MODEL.safetensors WORKDIR [--runs 5] [--ranks 8] [--python PYTHON_WITH_TORCH] [--only
ROW[,ROW…]]

Every row runs its contenders in turn, `--runs` times, and takes medians: a noisy machine hits all alike. Cold means
that the files were dropped from the page cache before the run. Before each run as much memory as the model takes is
touched and given back: a virtual machine's free memory may belong to its host, and to get it back costs whoever is
first up to two seconds a GB. Every writer syncs its output, which is removed before the next run. The ratio is the
peer's time over fsdpck's: above 1, fsdpck is faster. MODEL may be what make_model.py wrote, --lora what
make_adapter.py --checkpoint wrote, --merge a model folder and an adapter for it; WORKDIR should lie on the disk that
matters, with room for three models. With --python, PyTorch and safetensors take part: the whole process, and the work
without imports and process start. Where a config.json lies beside MODEL, so does transformers."""
import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time

import trained

HERE = os.path.dirname(os.path.abspath(__file__))


def files_of(path):
    return [os.path.join(d, f)
            for d, _, names in os.walk(path)
            for f in names] if os.path.isdir(path) else [path] if os.path.exists(path) else []


def evict(*paths):
    for name in [f for p in paths for f in files_of(p)]:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(*paths):
    for name in [f for p in paths for f in files_of(p)]:
        with open(name, "rb", buffering=0) as f:
            while f.read(1 << 24):
                pass


def touch_memory(nbytes):
    """Free memory is then memory that this machine has. In huge pages where it can: those are what a host takes
    back."""
    pid = os.fork()
    if pid == 0:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[::mmap.PAGESIZE] = bytes(len(range(0, nbytes, mmap.PAGESIZE)))
        os._exit(0)
    os.waitpid(pid, 0)


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)
    os.sync()


def write_many(path, n):
    """A safetensors file of n tensors of two elements."""
    head = json.dumps({
        f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.weight": {
            "dtype": "BF16", "shape": [1, 2], "data_offsets": [4 * i, 4 * i + 4]
        }
        for i in range(n)
    }).encode()
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + bytes(4 * n))


def write_experts(folder, nbytes, hidden=2048, inter=768, experts=32):
    """The experts of a Qwen3-MoE, of random bytes."""
    each = 2 * hidden * inter
    layers = max(1, nbytes // (3 * experts * each))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(model_type="qwen3_moe", num_hidden_layers=layers, hidden_size=hidden,
                       moe_intermediate_size=inter, num_experts=experts), f)
    parts = (("gate_proj", [inter, hidden]), ("up_proj", [inter, hidden]), ("down_proj", [hidden, inter]))
    names = [(f"model.layers.{i}.mlp.experts.{e}.{p}.weight", shape)
             for i in range(layers)
             for e in range(experts)
             for p, shape in parts]
    header = {
        name: dict(dtype="BF16", shape=shape, data_offsets=[i * each, (i + 1) * each])
        for i, (name, shape) in enumerate(names)
    }
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        f.write(len(text).to_bytes(8, "little") + text)
        for _ in names:
            f.write(os.urandom(each))


class Contender:
    """One way to do a job: a command, or several that run one after the other, or (together) at the same time."""

    def __init__(self, name, *commands, reports=False, together=False):
        self.name, self.commands, self.reports, self.together = name, commands, reports, together
        self.seconds, self.work, self.disk, self.peak = [], [], [], 0

    def again(self):
        return Contender(self.name, *self.commands, reports=self.reports, together=self.together)

    def start(self, command):
        return subprocess.Popen(command, stdout=subprocess.PIPE if self.reports else subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def finish(self, p):
        """What it reported, and the bytes that it made the disk read."""
        text = p.stdout.read() if self.reports else "{}"
        _, p.returncode, usage = os.wait4(p.pid, 0)
        if p.returncode:
            sys.exit(f"{' '.join(p.args)}: ended with status {p.returncode}")
        said = json.loads(text)
        self.peak = max(self.peak, usage.ru_maxrss * 1024, said.get("peak_bytes", 0))
        return said.get("work_s", 0), usage.ru_inblock * 512

    def run(self):
        start = time.monotonic()
        if self.together:
            said = [self.finish(p) for p in [self.start(c) for c in self.commands]]
        else:
            said = [self.finish(self.start(c)) for c in self.commands]
        self.seconds.append(time.monotonic() - start)
        self.disk.append(sum(d for _, d in said))
        if self.reports:
            self.work.append(max(w for w, _ in said))


class Bench:
    def __init__(self, a):
        self.a = a
        self.tool = os.path.join(a.build, "src", "tools", "fsdpck")
        self.slices = os.path.join(a.build, "bench", "slices")
        self.disk = os.path.join(a.build, "bench", "disk")
        self.out = os.path.join(a.workdir, "fsdpck-bench-out")
        self.dir = os.path.join(a.workdir, "fsdpck-bench-model")
        self.nbytes = os.path.getsize(a.model)

    def peer_command(self, job, model, out=None, ranks=None, more=()):
        return [
            self.a.python,
            os.path.join(HERE, "peers.py"), job, model, out or self.out, "--ranks",
            str(ranks or self.a.ranks), *more
        ]

    def peer(self, job, model, name="torch", ranks=None, more=()):
        return [] if not self.a.python else [
            Contender(name, self.peer_command(job, model, ranks=ranks, more=more), reports=True)
        ]

    def wanted(self, name):
        return not self.a.only or name in self.a.only

    def clear(self):
        """What the last contender wrote: to replace it would cost the next one its removal."""
        remove(self.out)
        remove(self.out + ".safetensors")

    def row(self, name, source, ours, peers, states=("cold", "warm")):
        if not self.wanted(name.split(" ")[0]):
            return
        for state in states:
            all_ = [c.again() for c in [ours, *peers]]
            for _ in range(self.a.runs):
                for c in all_:
                    self.clear()
                    touch_memory(self.nbytes)
                    (evict if state == "cold" else warm)(*([source] if isinstance(source, str) else source))
                    c.run()
            self.clear()
            self.show(name, state, all_)

    def show(self, name, state, all_):
        mine = all_[0]
        base, base_work = statistics.median(mine.seconds), statistics.median(mine.work or mine.seconds)
        work = f" (work {base_work:.3f} s)" if mine.work else ""
        print(f"{name}, {state}: {base:.3f} s{work}, {self.used(mine)}")
        for c in all_[1:]:
            s = statistics.median(c.seconds)
            work = (
                f", without imports {statistics.median(c.work):.3f} s: {statistics.median(c.work) / base_work:5.2f}"
                if c.work
                else ""
            )
            print(f"    {c.name:28} {s:8.3f} s: {s / base:6.2f}{work}   {self.used(c)}", flush=True)

    @staticmethod
    def used(c):
        return f"peak {c.peak >> 20} MiB, {statistics.median(c.disk) / 1e6:.0f} MB from the disk"

    def ours(self, *args):
        return Contender("fsdpck", [self.tool, *args])

    def rank(self, model, how, rank="3", ranks=None):
        return Contender("fsdpck", [self.slices, model, how, rank, str(ranks or self.a.ranks)], reports=True)

    def run(self):
        a, model, out = self.a, self.a.model, self.out
        direct = ["dd", f"if={model}", "of=/dev/null", "bs=4M", "iflag=direct"]
        self.row(
            f"convert to {a.ranks} ranks",
            model,
            self.ours("convert", model, out, "--ranks", str(a.ranks), "-q"),
            [
                Contender("cp + sync", ["cp", model, out], ["sync", out]),
                Contender("cat", ["cat", model]),
                Contender("O_DIRECT read (dd)", direct),
                Contender(
                    "O_DIRECT copy (dd)",
                    ["dd", f"if={model}", f"of={out}", "bs=4M", "iflag=direct", "oflag=direct"],
                    ["sync", out],
                ),
                Contender(
                    "O_DIRECT write (dd)",
                    ["dd", "if=/dev/zero", f"of={out}", "bs=4M", f"count={self.nbytes >> 22}", "oflag=direct"],
                    ["sync", out],
                ),
                Contender("the disk's reading", [self.disk, "read", model]),
                Contender("the disk's writing", [self.disk, "write", out, str(self.nbytes)]),
                *self.peer("save", model),
            ],
        )
        remove(self.dir)
        subprocess.run(
            [self.tool, "convert", model, self.dir, "--ranks", str(a.ranks), "-q"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        shards = [f for f in files_of(self.dir) if f.endswith(".distcp")]
        hf = self.hf_shards(model)
        both = [self.dir, *([hf] if hf else [])]
        self.row(
            "export to one file",
            both,
            self.ours("export", self.dir, out + ".safetensors", "-q"),
            [
                *self.peer("merge", self.dir, "dcp_to_torch_save"),
                *(self.peer("consolidate", hf, "consolidate_safetensors") if hf else []),
            ],
        )
        self.row(
            "verify",
            self.dir,
            self.ours("verify", self.dir, "-q"),
            [
                Contender("on one core", ["taskset", "-c", "0", self.tool, "verify", self.dir, "-q", "--threads", "1"]),
                Contender("cat", ["cat", *shards]),
                Contender(
                    "O_DIRECT read (dd)", *[["dd", f"if={f}", "of=/dev/null", "bs=4M", "iflag=direct"] for f in shards]
                ),
                Contender("the disk's reading", *[[self.disk, "read", f] for f in shards]),
            ],
        )
        four = [self.dir + f"-{i}.safetensors" for i in range(4)] if self.wanted("average") else []
        for f in four:
            shutil.copyfile(model, f)
        self.row(
            "average of 4",
            four,
            self.ours("average", *four, out + ".safetensors", "-q"),
            [
                Contender("cat", ["cat", *four]),
                Contender("the disk's reading", *[[self.disk, "read", f] for f in four]),
            ],
        )
        for f in four:
            remove(f)
        self.row(
            "load of all of the directory",
            [*both, model],
            Contender("fsdpck", [self.slices, self.dir, "whole", "0", "1"], reports=True),
            [
                Contender("the disk, into new memory", [self.disk, "load", model]),
                *self.peer("load", self.dir, "dcp.load"),
                *(self.peer("hfload", hf, "HuggingFaceStorageReader") if hf else []),
            ],
        )
        self.row(
            "rows of one rank",
            model,
            self.rank(model, "rows"),
            [*self.peer("rows", model, "get_slice"), *self.peer("preadv", model, "bare preadv")],
        )
        self.row("rows of one rank, hashed", self.dir, self.rank(self.dir, "rows", ranks=5), [])
        self.lora()
        self.quantized(model)
        self.torch_save(model)
        self.row(
            "columns of one rank",
            model,
            self.rank(model, "columns"),
            [
                Contender("O_DIRECT read (dd)", direct),
                Contender("the disk's reading", [self.disk, "read", model]),
                *self.peer("columns", model),
            ],
        )
        remove(self.dir)
        if hf:
            remove(hf)
        self.compress(model)
        self.experts()
        trained.megatron(self, Contender, remove)
        trained.deepspeed(self, Contender, remove)
        self.start(model)
        self.many()

    def compress(self, model):
        """The whole way, and what a processor does of it."""
        if not self.wanted("compress"):
            return
        to, plain = ["--ranks", str(self.a.ranks), "-q"], Contender(
            "convert", [self.tool, "convert", model, self.out, "--ranks", str(self.a.ranks), "-q"]
        )
        self.row("compress to all ranks", model, self.ours("convert", model, self.out, "--compress", *to), [plain])
        subprocess.run([self.tool, "convert", model, self.dir, "--compress", *to], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shrunk = sum(os.path.getsize(f) for f in files_of(self.dir))
        self.row("compress and back", self.dir, self.ours("convert", self.dir, self.out, *to), [plain])
        self.row("compress and verify", self.dir, self.ours("verify", self.dir, "-q"), [])
        remove(self.dir)
        said = json.loads(
            subprocess.run(
                [os.path.join(self.a.build, "bench", "packing"), model], check=True, stdout=subprocess.PIPE
            ).stdout
        )
        print(
            f"compress: {shrunk / self.nbytes:.4f} of the bytes; one core: "
            + "; ".join(
                f"{k} {v['ratio']:.4f}, {v['compress_gb_per_s']} GB/s, back {v['decompress_gb_per_s']} GB/s"
                for k, v in said.items()
            )
        )

    def hf_shards(self, model):
        """DCP in safetensors form, as PyTorch writes it, for the rows that read it. Waits for the disk."""
        if not self.a.python or not (self.wanted("export") or self.wanted("load")):
            return None
        path = self.out + "-hf"
        remove(path)
        subprocess.run(self.peer_command("shards", model, path), check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return path

    def start(self, model):
        """Two ranks, each with its shards in its memory. Transformers wants a folder; its config.json must lie beside
        the model."""
        folder = os.path.dirname(os.path.abspath(model))
        if os.path.exists(os.path.join(folder, "config.json")):
            ours = Contender(
                "fsdpck", *[[self.slices, model, "rows", r, "2", "1"] for r in "01"], reports=True, together=True
            )
            self.row(
                "start of two ranks",
                model,
                ours,
                self.peer("start", folder, "transformers, fsdp_size=2", ranks=2),
                states=("warm",),
            )

    def experts(self):
        """A mixture of experts of about the model's size, one tensor an expert's part, fused and cut again."""
        if not self.wanted("experts"):
            return
        folder, fused = self.dir + "-moe", self.dir + "-fused"
        write_experts(folder, self.nbytes)
        to = ["--ranks", str(self.a.ranks), "-q"]
        self.row("experts fused", folder, self.ours("convert", folder, self.out, *to, "--names", "transformers"),
                 [Contender("convert", [self.tool, "convert", folder, self.out, *to])])
        subprocess.run([self.tool, "export", folder, fused, "-q", "--names", "transformers"], check=True,
                       stdout=subprocess.DEVNULL)
        self.row("experts cut", fused, self.ours("convert", fused, self.out, *to, "--names", "hf"),
                 [Contender("convert", [self.tool, "convert", fused, self.out, *to])])
        remove(folder)
        remove(fused)

    def many(self):
        """Numbers of tensors and ranks instead of bytes."""
        if self.wanted("header"):
            path = self.out + "-many.safetensors"
            write_many(path, 100000)
            self.row("header of 100,000 tensors", path,
                     Contender("fsdpck", [self.slices, path, "open", "0", "1"], reports=True),
                     self.peer("header", path, "safetensors"))
            remove(path)
        for n in (50000, 100000) if self.wanted("plan") else ():
            remove(self.dir)
            subprocess.run(
                [
                    sys.executable,
                    os.path.join(HERE, "make_wide.py"),
                    os.path.join(self.a.build, "tests", "damage", "hash128"),
                    self.dir,
                    "--tensors",
                    str(n),
                ],
                check=True,
            )
            self.row(
                f"plan of one rank, {n} tensors, 1024 ranks", self.dir, self.rank(self.dir, "plan", ranks=1024), []
            )
            self.row(
                f"plan of one rank of 1000, {n} tensors, 1024 ranks",
                self.dir,
                self.rank(self.dir, "plan", ranks=1000),
                [],
            )
            remove(self.dir)
        if self.wanted("hash"):
            said = json.loads(
                subprocess.run(
                    [os.path.join(self.a.build, "bench", "hashing")], check=True, stdout=subprocess.PIPE
                ).stdout
            )
            print("hash: CPU seconds per GB: " + ", ".join(f"{k.split('_')[0]} {v:.3f}" for k, v in said.items()))

    def quantized(self, model):
        """Weights quantized, and dequantized again."""
        for form in ("fp8-block", "mxfp4", "nvfp4", "nf4") if self.wanted("quantize") else ():
            made = self.out + "-" + form + ".safetensors"
            self.row(f"quantize to {form}", model,
                     self.ours("export", model, self.out + ".safetensors", "--quantize", form, "-q"), [])
            subprocess.run([self.tool, "export", model, made, "--quantize", form, "--force", "-q"], check=True,
                           stdout=subprocess.DEVNULL)
            self.row(f"quantize: {form} back to bfloat16", made,
                     self.ours("export", made, self.out + ".safetensors", "--dequantize", "bf16", "-q"), [])
            remove(made)
        if self.wanted("quantize"):
            said = subprocess.run([os.path.join(self.a.build, "bench", "quant")], check=True, stdout=subprocess.PIPE)
            rates = json.loads(said.stdout)
            print("quantize: GB of bfloat16 a core and second: " + ", ".join(f"{k} {v:.2f}" for k, v in rates.items()))

    def torch_save(self, model):
        """The model as torch.save writes it, to a sharded checkpoint."""
        if not self.a.python or not self.wanted("pt"):
            return
        pt = self.out + ".pt"
        subprocess.run(self.peer_command("torch_save", model, pt), check=True, stdout=subprocess.DEVNULL)
        self.row(f"pt to {self.a.ranks} ranks", pt,
                 self.ours("convert", pt, self.out, "--ranks", str(self.a.ranks), "-q"),
                 self.peer("pt", pt, "torch_save_to_dcp"))
        remove(pt)

    def lora(self):
        a, dir = self.a, self.dir + "-lora"
        if a.lora and self.wanted("export-lora"):
            remove(dir)
            subprocess.run(
                [self.tool, "convert", a.lora, dir, "--ranks", str(a.ranks), "-q"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.row(
                f"export-lora from {a.ranks} ranks",
                dir,
                self.ours("export-lora", dir, self.out, "--alpha", "32", "-q"),
                self.peer("adapter", dir),
            )
            remove(dir)
        if a.merge:
            base, adapter = a.merge
            self.row("merge-lora", base, self.ours("merge-lora", base, adapter, self.out, "-q"),
                     self.peer("merge_lora", base, "PEFT", more=("--adapter", adapter)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build", help="the build directory")
    ap.add_argument("model")
    ap.add_argument("workdir")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--ranks", type=int, default=8)
    ap.add_argument("--python", help="a Python that has torch and safetensors")
    ap.add_argument(
        "--only",
        type=lambda s: s.split(","),
        help=(
            "rows by their first word: convert, export, verify, average, load, export-lora, merge-lora, pt, rows,"
            " columns, compress, experts, megatron, deepspeed, start, header, plan, hash, quantize"
        ),
    )
    ap.add_argument("--lora", metavar="FILE", help="a checkpoint with an adapter in it, for export-lora")
    ap.add_argument("--merge", nargs=2, metavar=("FOLDER", "ADAPTER"), help="for merge-lora")
    Bench(ap.parse_args()).run()


if __name__ == "__main__":
    main()
