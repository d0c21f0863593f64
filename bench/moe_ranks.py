# SPDX-License-Identifier: Apache-2.0
"""The row of moe.py that compares experts that are gathered with experts that are whole on ranks: two ranks of one
thread that gather by copying, the same LoRA job with `fsdp.expert_parallel` 1 and 2. The model is Qwen3-MoE's with
random weights; numpy writes it. The losses must be the same bits. Processor seconds are those of a run of all steps,
without those of a run of one."""
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys

import numpy as np

from make_model import bf16
from training import metrics, write_plan, write_rows

SEQ, ROWS_A_STEP, HIDDEN, WIDTH, LAYERS, EXPERTS, TOP, VOCAB = 256, 4, 512, 512, 2, 32, 2, 4096


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for at in (f"model.layers.{i}." for i in range(LAYERS)):
        for name, shape in (("q_proj", (HIDDEN, HIDDEN)), ("k_proj", (HIDDEN // 4, HIDDEN)),
                            ("v_proj", (HIDDEN // 4, HIDDEN)), ("o_proj", (HIDDEN, HIDDEN)), ("q_norm", (64, )),
                            ("k_norm", (64, ))):
            yield f"{at}self_attn.{name}.weight", shape
        yield at + "input_layernorm.weight", (HIDDEN, )
        yield at + "post_attention_layernorm.weight", (HIDDEN, )
        yield at + "mlp.gate.weight", (EXPERTS, HIDDEN)
        for e in range(EXPERTS):
            for name, shape in (("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)),
                                ("down_proj", (HIDDEN, WIDTH))):
                yield f"{at}mlp.experts.{e}.{name}.weight", shape
    yield "model.norm.weight", (HIDDEN, )


def write_model(folder):
    rng, head, at, tensors = np.random.default_rng(1), {}, 0, list(shapes())
    os.makedirs(folder, exist_ok=True)
    for name, shape in tensors:
        end = at + 2 * int(np.prod(shape))
        head[name], at = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors:
            x = 0.02 * rng.standard_normal(shape, dtype=np.float32) if len(shape) > 1 else np.ones(shape, np.float32)
            f.write(bf16(x.astype(np.float32)).tobytes())
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
                   "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": WIDTH,
                   "max_position_embeddings": SEQ, "tie_word_embeddings": True, "num_experts": EXPERTS,
                   "num_experts_per_tok": TOP, "moe_intermediate_size": WIDTH, "norm_topk_prob": True}, f)


class Ranks:
    def __init__(self, tool, folder, steps, targets):
        self.tool, self.folder, self.steps = tool, folder, steps
        self.config = {"model": self.path("model"), "output_dir": self.path("run"), "checkpoint": {"save_steps": 0},
                       "data": {"train": self.path("tokens.jsonl"), "plan": self.path("plan.json")},
                       "lora": {"r": 16, "lora_alpha": 32, "target_modules": targets},
                       "train": {"lr_scheduler_type": "constant", "warmup_steps": 0}}
        write_model(self.path("model"))
        write_rows(self.path("tokens.jsonl"), self.path("model"), ROWS_A_STEP * steps, SEQ)
        write_plan(self.path("plan.json"), steps, ROWS_A_STEP)

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, verb, expert_parallel, steps, *options):
        self.config["fsdp"] = {"expert_parallel": expert_parallel}
        self.config["train"]["max_steps"] = steps
        with open(self.path("config.json"), "w") as f:
            json.dump(self.config, f)
        return [self.tool, verb, self.path("config.json"), "--ranks", "2", "--gather", "copy", *options]

    def seconds(self, expert_parallel, steps):
        """Processor seconds of a run, and its metrics."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(self.command("run", expert_parallel, steps, "--threads", "1", "-q"), check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), metrics(self.path("run"))

    def plan(self, expert_parallel):
        return json.loads(subprocess.run(self.command("plan", expert_parallel, self.steps, "--json", "--device", "cpu"),
                                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def row(name, tool, folder, rounds, steps, targets):
    ranks = Ranks(tool, folder, steps, targets)
    found, losses = {1: [], 2: []}, set()
    for _ in range(rounds):
        for n, seconds in found.items():
            all_of, said = ranks.seconds(n, steps)
            seconds.append((all_of - ranks.seconds(n, 1)[0]) / (steps - 1))
            losses.add(tuple(m["loss"] for m in said))
    if len(losses) != 1:
        sys.exit(f"{name}: the losses differ: {losses}")
    for n, seconds in found.items():
        plan = ranks.plan(n)
        print(f"{name:22}  expert_parallel {n}: {statistics.median(seconds):.3f} processor seconds a step, of a rank:"
              f" {plan['gathered_bytes_per_step'] / 1e6:.1f} MB gathered,"
              f" {plan['exchanged_token_bytes_per_step'] / 1e6:.1f} MB of tokens,"
              f" {plan['peak_bytes'] / 1e6:.0f} MB of memory", flush=True)
