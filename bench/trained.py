# SPDX-License-Identifier: Apache-2.0
"""Rows of bench/run.py: weights out of the checkpoints of Megatron-core and of DeepSpeed's ZeRO-3, beside the same verb
on a plain source of the same weights. `convert --names megatron` writes the first; the second needs torch."""
import json
import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def write_config(model, folder):
    """config.json of a Llama by the shapes of its weights, with heads of 64."""
    with open(model, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    vocab, hidden = header["model.embed_tokens.weight"]["shape"]
    kv = header["model.layers.0.self_attn.k_proj.weight"]["shape"][0]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(model_type="llama", hidden_size=hidden, vocab_size=vocab, num_attention_heads=hidden // 64,
                       num_key_value_heads=kv // 64,
                       num_hidden_layers=sum(n.endswith(".input_layernorm.weight") for n in header)), f)


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def megatron(bench, contender, remove):
    if not bench.wanted("megatron"):
        return
    source, config = bench.dir + "-megatron", bench.dir + "-config"
    to = ["--ranks", str(bench.a.ranks), "-q"]
    write_config(bench.a.model, config)
    run(bench.tool, "convert", bench.a.model, source, *to, "--names", "megatron", "--assets", config)
    bench.row("megatron to Hugging Face's names", [source, bench.a.model],
              bench.ours("convert", source, bench.out, *to, "--names", "hf", "--assets", config),
              [contender("convert", [bench.tool, "convert", bench.a.model, bench.out, *to])])
    remove(source)
    remove(config)


def deepspeed(bench, contender, remove):
    """To BF16, from float32 partitions; beside the same of a checkpoint that holds the weights in float32."""
    if not bench.a.python or not bench.wanted("deepspeed"):
        return
    source, plain = bench.dir + "-zero3", bench.dir + "-fp32"
    to = ["--ranks", str(bench.a.ranks), "-q", "--dtype", "bf16"]
    run(bench.a.python, os.path.join(HERE, "make_zero3.py"), bench.a.model, source, str(bench.a.ranks))
    run(bench.tool, "convert", source, plain, "--ranks", str(bench.a.ranks), "-q", "--select", "model")
    convert = contender("convert", [bench.tool, "convert", plain, bench.out, *to])
    bench.row("deepspeed ZeRO-3 to BF16", [source, plain],
              bench.ours("convert", source, bench.out, *to, "--select", "model"), [convert])
    remove(source)
    remove(plain)
