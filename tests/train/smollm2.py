#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M on real conversations: 20 steps of LoRA, in fp32 and in bf16, follow transformers + PEFT in float32
within the golden's tolerances, at 1, 2 and 3 ranks with the same bits, and take the memory that `fsdptrain plan` said.
What the fp32 run wrote loads in PEFT, with the logits that fsdptrain computes. What `fsdptrain sample` says, with and
without an adapter, is what transformers' generate does.

    smollm2.py FSDPTRAIN GOLDEN MODEL [--quick]

GOLDEN is goldens/smollm2, MODEL the folder that tests/interop/make_smollm2.py writes. Needs what tests/interop
needs; with --quick numpy only. PEFT's own bf16 lies outside the tolerance: it rounds twice.
--quick: five steps and no third rank."""
import argparse, json, math, pathlib, shutil, struct, subprocess, sys, tempfile, zlib
import numpy as np

SHAPES = {
    "self_attn.q_proj": (576, 576), "self_attn.k_proj": (192, 576), "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576), "mlp.gate_proj": (1536, 576), "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536)
}


def start_adapter(folder, case):
    """The adapter that the golden starts from: A uniform, each tensor from a stream of its own, B zero."""
    tensors, r = {}, case["lora"]["r"]
    for layer in range(30):
        for module, (nout, nin) in SHAPES.items():
            name = f"base_model.model.model.layers.{layer}.{module}."
            rng = np.random.Generator(
                np.random.PCG64([case["lora"]["seed"], zlib.crc32((name + "lora_A.default.weight").encode())])
            )
            grid = rng.integers(-(1 << 23), 1 << 23, size=(r, nin), dtype=np.int64).astype(np.float64) / (1 << 23)
            tensors[name + "lora_A.weight"] = (grid * ((3 * nin) ** -0.5 * math.sqrt(3.0))).astype(np.float32)
            tensors[name + "lora_B.weight"] = np.zeros((nout, r), np.float32)
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values())
    )
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "r": r,
                "lora_alpha": case["lora"]["lora_alpha"],
                "lora_dropout": 0.0,
                "target_modules": case["lora"]["target_modules"],
                "task_type": "CAUSAL_LM",
            }
        )
    )


class Runner:
    def __init__(self, args, tmp):
        self.args, self.tmp, self.nfailed, self.npassed = args, tmp, 0, 0
        self.golden = pathlib.Path(args.golden)
        self.case = json.loads((self.golden / "case.json").read_text())
        self.want = json.loads((self.golden / "expected.json").read_text())
        self.nsteps = 5 if args.quick else len(self.case["steps"])
        start_adapter(tmp / "start", self.case)

    def check(self, what, good):
        self.npassed += bool(good)
        self.nfailed += not good
        if not good:
            print(f"FAILED {what}", flush=True)

    def config(self, dtype, ranks):
        lora = {k: v for k, v in self.case["lora"].items() if k != "seed"}
        out = self.tmp / f"{dtype}-{ranks}"
        path = out.with_suffix(".json")
        path.write_text(
            json.dumps(
                {
                    "model": self.args.model,
                    "output_dir": str(out),
                    "data": {"train": str(self.golden / "tokens.jsonl"), "plan": str(self.golden / "case.json")},
                    "lora": {**lora, "init_adapter": str(self.tmp / "start")},
                    "dtype": {"param": dtype},
                    "checkpoint": {"save_steps": 0},
                    "train": {
                        "max_steps": len(self.case["steps"]),
                        "learning_rate": self.case["optimizer"]["lr"],
                        "warmup_steps": 3,
                        "lr_scheduler_type": "cosine",
                        "max_grad_norm": 1.0,
                    },
                }
            )
        )
        return path, out

    def run(self, dtype, ranks):
        """Metrics of each step, and the adapter's bytes (whole runs only)."""
        path, out = self.config(dtype, ranks)
        command = [self.args.fsdptrain, "run", str(path), "--ranks", str(ranks)]
        if self.args.quick:  # a stop after so many steps: the schedule keeps its length
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, text=True)
            for line in process.stderr:
                if line.startswith(f"step {self.nsteps} "):
                    process.terminate()
            code = process.wait()
        else:
            code = subprocess.run([*command, "-q"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
        self.check(f"{dtype} at {ranks} ranks: exit code {code}", code == 0)
        metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        adapter = out / "adapter" / "adapter_model.safetensors"
        return metrics[:self.nsteps], adapter.read_bytes() if adapter.exists() else b""

    def follows(self, dtype, metrics):
        kind = "float32" if dtype == "fp32" else "bf16"
        loss = max(abs(m["loss"] - w) for m, w in zip(metrics, self.want["loss"]))
        norm = max(abs(m["grad_norm"] / w - 1) for m, w in zip(metrics, self.want["grad_norm"]))
        print(f"{dtype}: losses at most {loss:.2g} from float32's, gradient norms {norm:.2g}, relative", flush=True)
        self.check(f"{dtype}: {len(metrics)} steps", len(metrics) == self.nsteps)
        self.check(f"{dtype}: losses are {loss} off", loss <= self.want["tolerance"][kind + "_loss_abs"])
        self.check(f"{dtype}: norms are {norm} off", norm <= self.want["tolerance"][kind + "_grad_norm_rel"])

    def plan(self, dtype, metrics):
        """What one rank holds besides its arenas is the program itself, some 30 MB, and the kernels that oneDNN made,
        at most some 30 MB."""
        path, _ = self.config(dtype, 1)
        said = subprocess.run(
            [self.args.fsdptrain, "plan", str(path), "--ranks", "1", "--json"], capture_output=True, text=True,
            check=True)
        planned, used = json.loads(said.stdout)["peak_bytes"], max(m["rss_bytes"] for m in metrics)
        print(f"{dtype}: planned {planned / 1e6:.0f} MB, used {used / 1e6:.0f} MB", flush=True)
        self.check(f"{dtype}: {planned} bytes planned, {used} used",
                   -0.05 * planned < used - planned < 0.05 * planned + 60e6)

    PROMPTS = [
        "What is the capital of France?", "Tell me about the sea.", "Write a haiku about autumn leaves.",
        "Wie geht es dir? \u00e9\u4e2d\U0001f30a"
    ]

    def sampled(self, adapter):
        """Greedy tokens in fp32 are those of generate; in bf16 each is, of float32's logits after the same tokens, next
        to the best."""
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(self.args.model)
        model = AutoModelForCausalLM.from_pretrained(self.args.model, dtype=torch.float32).eval()
        options = ["--adapter", str(adapter)] if adapter else []
        if adapter:
            model = PeftModel.from_pretrained(model, adapter).eval()
        for dtype in ("fp32", "bf16"):
            command = [
                self.args.fsdptrain,
                "sample",
                self.args.model,
                "--chat",
                "--json",
                "--dtype",
                dtype,
                "--max-new-tokens",
                "40",
                *options,
            ]
            said = subprocess.run(
                [*command, *(x for p in self.PROMPTS for x in ("--prompt", p))],
                capture_output=True,
                text=True,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            for prompt, ours in zip(self.PROMPTS, json.loads(said.stdout)["samples"]):
                ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True,
                                                    return_dict=False)
                self.check(f"sample {dtype} {adapter} {prompt}: other prompt", ours["prompt_ids"] == ids)
                self.check(f"sample {dtype} {adapter} {prompt}: text",
                           ours["text"] == tokenizer.decode(ours["ids"], skip_special_tokens=True))
                with torch.no_grad():
                    if dtype == "fp32":
                        theirs = model.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=40)[
                            0, len(ids) :
                        ].tolist()
                        self.check(
                            f"sample {dtype} {adapter} {prompt}: {ours['ids']}, not {theirs}", ours["ids"] == theirs
                        )
                    else:
                        logits = model(input_ids=torch.tensor([ids + ours["ids"]])).logits[0, len(ids) - 1:-1]
                        behind = (
                            (logits.max(-1).values - logits.gather(1, torch.tensor(ours["ids"])[:, None])[:, 0])
                            .max()
                            .item()
                        )
                        self.check(f"sample {dtype} {adapter} {prompt}: {behind} behind float32's best", behind < 0.5)
        print(f"sampled {'with' if adapter else 'without'} the adapter", flush=True)

    def loads_in_peft(self):
        """The fp32 run's adapter, by fsdptrain and by PEFT."""
        line = (self.golden / "tokens.jsonl").read_text().splitlines()[0]
        config = json.loads((self.tmp / "fp32-1.json").read_text())
        for name, text in (("one.jsonl", line + "\n"), ("one.json", json.dumps({"steps": [[[[0]]]]})),
                           ("ids.json", json.dumps(json.loads(line)["input_ids"]))):
            (self.tmp / name).write_text(text)
        adapter = self.tmp / "fp32-1/adapter"
        config.update(data={"train": str(self.tmp / "one.jsonl"), "plan": str(self.tmp / "one.json")},
                      lora={**config["lora"], "init_adapter": str(adapter)}, train={"max_steps": 1})
        path, logits = self.tmp / "logits.json", self.tmp / "logits"
        path.write_text(json.dumps(config))
        subprocess.run(
            [pathlib.Path(self.args.fsdptrain).resolve().parents[2] / "tests/train/train_logits", path, logits],
            check=True)
        check = pathlib.Path(__file__).resolve().parents[1] / "interop/check_peft.py"
        self.check(
            "PEFT loads the adapter with the same logits",
            subprocess.run([sys.executable, check, adapter, self.args.model, self.tmp / "ids.json", logits]).returncode
            == 0,
        )

    def sampled_checkpoint(self):
        """The run's last checkpoint is as good as its adapter."""
        run, command = self.tmp / "bf16-1", [
            self.args.fsdptrain,
            "sample",
            self.args.model,
            "--prompt",
            "Hello",
            "--max-new-tokens",
            "20",
            "-q",
            "--adapter",
        ]
        said = [
            subprocess.run([*command, str(a)], capture_output=True, stdin=subprocess.DEVNULL)
            for a in (run / "adapter", sorted((run / "checkpoints").iterdir())[-1])
        ]
        self.check(
            f"sample with a checkpoint's adapters: {said}",
            all(s.returncode == 0 and s.stdout and s.stdout == said[0].stdout for s in said),
        )

    def all(self):
        for dtype in ("fp32", "bf16"):
            metrics, adapter = self.run(dtype, 1)
            if dtype == "fp32" and not self.args.quick:
                self.loads_in_peft()
            self.follows(dtype, metrics)
            self.plan(dtype, metrics)
        numbers = [(m["loss"], m["grad_norm"]) for m in metrics]
        for ranks in (2,) if self.args.quick else (2, 3):
            other, bytes_ = self.run("bf16", ranks)
            self.check(f"bf16 at {ranks} ranks has other bits", [(m["loss"], m["grad_norm"]) for m in other] == numbers
                       and bytes_ == adapter)
        if not self.args.quick:
            self.sampled(None)
            self.sampled(self.tmp / "bf16-1/adapter")
            self.sampled_checkpoint()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("golden")
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="fsdptrain-smollm2-"))
    try:
        r = Runner(args, tmp)
        r.all()
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    print(f"{r.npassed} passed, {r.nfailed} failed")
    return r.nfailed > 0


if __name__ == "__main__":
    sys.exit(main())
