# SPDX-License-Identifier: Apache-2.0
"""fsdp.auto_wrap_policy: units of blocks that are gathered together change no bit, and are what plan says."""
import json, pathlib, re, shutil, subprocess

from harness import LIMIT_S, Failure, Tests, read_safetensors, write_safetensors

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"
LAYERS = 5
# Policy, min_num_params in blocks, and the sizes of the units in blocks.
POLICIES = [("TRANSFORMER_BASED_WRAP", 1, [1, 1, 1, 1, 1]), ("SIZE_BASED_WRAP", 1.5, [2, 2, 1]),
            ("SIZE_BASED_WRAP", 2.5, [3, 2]), ("SIZE_BASED_WRAP", 0.1, [1, 1, 1, 1, 1]), ("NO_WRAP", 1, [5])]


class Wraps(Tests):

    def deep_model(self):
        """Five blocks, of the two of the fixture."""
        model = self.tmp / "deep"
        if model.exists():
            return model
        shutil.copytree(FIXTURES / "tiny-llama-tied", model, copy_function=shutil.copyfile)
        tensors = {}
        for file in sorted(model.glob("*.safetensors*")):
            tensors.update(read_safetensors(file) if file.suffix == ".safetensors" else {})
            file.unlink()
        for n in range(2, LAYERS):
            tensors.update({
                k.replace("layers.0.", f"layers.{n}."): v * (1 + n / 8)
                for k, v in list(tensors.items()) if "layers.0." in k
            })
        write_safetensors(model / "model.safetensors", tensors)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
        return model

    def deep_config(self, title, lora, fsdp):
        chat = str(FIXTURES / "chat.jsonl")
        config = {
            "model": str(self.deep_model()),
            "output_dir": str(self.tmp / f"wrap-{title}"),
            "data": {
                "train": chat,
                "eval": chat,
                "seq_len": 128
            },
            "train": {
                "max_steps": 3,
                "global_batch_size": 3,
                "eval_steps": 2,
                "learning_rate": 0.01
            },
            "fsdp": fsdp,
            "checkpoint": {
                "save_steps": 0
            }
        }
        if lora:
            config["lora"] = {"r": 2, "target_modules": r".*layers\.[234].*(q_proj|down_proj)"}
        return self.write(f"wrap-{title}", config), pathlib.Path(config["output_dir"])

    def wrapped(self, lora, quick):
        """FULL_SHARD at several depths of prefetch, the strategies that keep what they gathered, shard
        groups, and a backward pass that gathers from two ranks. quick: one policy of them."""
        path, out = self.deep_config(f"alone-{lora}", lora, {})
        self.run(path)
        reference, evals = self.bits(out), [m.get("eval_loss") for m in self.metrics(out)]
        for i, (policy, blocks, _) in enumerate(POLICIES[1:2] if quick else POLICIES):
            ways = [(2 + i % 4, {
                "forward_prefetch": i % 3,
                "backward_prefetch": (i + 1) % 3
            }), (3, {
                "sharding_strategy": ("SHARD_GRAD_OP", "NO_SHARD")[i % 2]
            }), (4, {
                "sharding_strategy": ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")[i % 2],
                "dp_shard_size": 2
            }), (4, {
                "reshard_after_forward": 2
            })]
            for ranks, fsdp in ways:
                path, out = self.deep_config(f"{i}-{ranks}-{lora}", lora, {
                    **fsdp, "auto_wrap_policy": policy,
                    "min_num_params": int(blocks * self.block_nelem())
                })
                shutil.rmtree(out, ignore_errors=True)
                self.run(path, "--ranks", str(ranks), "--threads", "1", "--gather", "copy")
                if self.bits(out) != reference or [m.get("eval_loss") for m in self.metrics(out)] != evals:
                    raise Failure(f"{policy} with {blocks} blocks at {ranks} ranks, {fsdp}: other bits")

    def plan_of_wraps(self, *options, want=0):
        path, _ = self.deep_config("plan", False, {})
        done = subprocess.run([self.tool, "plan", str(path), "--json", "--device", "cpu", *options],
                              capture_output=True,
                              text=True,
                              timeout=LIMIT_S)
        if done.returncode != want:
            raise Failure(f"exit code {done.returncode}: {done.stderr}")
        return json.loads(done.stdout) if want == 0 else done.stderr

    def block_nelem(self):
        """Of a block without adapters, less a little, so that adapters do not matter."""
        return self.plan_of_wraps()["groups"][1]["elements"] - 1

    def planned_wraps(self):
        """Groups as plan prints them: all parameters, once, and the sizes of the units."""
        copy = ("--ranks", "2", "--gather", "copy")
        for policy, blocks, units in POLICIES:
            plan = self.plan_of_wraps(*copy, "--set", f"fsdp.auto_wrap_policy={policy}", "--set",
                                      f"fsdp.min_num_params={int(blocks * self.block_nelem())}")
            rows = plan["groups"]
            total = sum(r["groups"] * r["elements"] for r in rows)
            if total != plan["parameters_trained"] + plan["parameters_frozen"]:
                raise Failure(f"{policy}: {rows} are not all parameters")
            sizes = []
            for row in rows[1:-1]:
                first, last = re.fullmatch(r"model\.layers\.(\d+)(?:-(\d+))?", row["parameters"]).groups()
                nblocks = int(last or first) - int(first) + 1
                sizes += [nblocks // row["groups"]] * row["groups"]
                if row["gathered_bytes"] != 2 * row["elements"]:
                    raise Failure(f"{row}")
            # Two micro-batches a step; half of each group is the rank's own.
            times = {"once; what is trained, every step": 1, "every micro-batch": 2, "forward and backward": 4}
            received = sum(r["groups"] * r["gathered_bytes"] * times[r["when"]] for r in rows) // 2
            if plan["gathered_bytes_per_step"] != received:
                raise Failure(f"{policy} {blocks}: {plan['gathered_bytes_per_step']} a step, {received} by {rows}")
            if sizes != units:
                raise Failure(f"{policy} {blocks}: units {sizes}, {units} wanted")
        if {r["when"] for r in self.plan_of_wraps("--ranks", "2")["groups"]} != {"never: mapped"}:
            raise Failure("ranks of one host map")
        said = self.plan_of_wraps("--set",
                                  'fsdp.transformer_layer_cls_to_wrap=["LlamaDecoderLayer","GPT2Block"]',
                                  want=2)
        if "'GPT2Block' is not the class of this model's blocks, which is 'LlamaDecoderLayer'" not in said:
            raise Failure(said)
        self.plan_of_wraps("--set", 'fsdp.transformer_layer_cls_to_wrap=["LlamaDecoderLayer"]')
