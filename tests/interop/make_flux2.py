#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/tiny-flux2: a seeded FLUX.2 [klein] as a diffusers pipeline folder, with every part of the published
one and the real architecture.

usage: make_flux2.py OUT [--seed S] [--set PART.KEY=JSON ...]

    OUT/model_index.json
    OUT/scheduler/scheduler_config.json      the values of the published models
    OUT/tokenizer/                           Qwen2 style, trained on little text; renders as Qwen3's chat template
    OUT/text_encoder/config.json, model.…    Qwen3, bf16: 28 layers, so that layers 9, 18 and 27 are there
    OUT/transformer/config.json, diffusion…  bf16
    OUT/vae/config.json, diffusion…          fp32; with the one int64 tensor that the published file has

Weights come from numpy's PCG64 integers on a fixed grid, so the same seed gives the same bytes on any machine. Norm
weights, biases and the latents' statistics are random too: a model that forgets one of them is found out."""
import argparse, json, pathlib, shutil
import torch
from safetensors.torch import save_file
from make_smollm2 import write_json
from make_tiny import tensor_for, uniform

VERSION = "0.37.0.dev0"  # what the published folders were written with
TEXT = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 28,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 1016,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1000,
    "eos_token_id": 1002,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 28,
    "use_cache": True,
    "initializer_range": 0.02
}
TRANSFORMER = {
    "patch_size": 1,
    "in_channels": 16,
    "out_channels": None,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 72,
    "timestep_guidance_channels": 256,
    "mlp_ratio": 3.0,
    "axes_dims_rope": [4, 4, 4, 4],
    "rope_theta": 2000,
    "eps": 1e-6,
    "guidance_embeds": False
}
VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [4, 8, 16, 16],
    "layers_per_block": 2,
    "act_fn": "silu",
    "latent_channels": 4,
    "norm_num_groups": 2,
    "sample_size": 1024,
    "force_upcast": True,
    "use_quant_conv": True,
    "use_post_quant_conv": True,
    "mid_block_add_attention": True,
    "batch_norm_eps": 0.0001,
    "batch_norm_momentum": 0.1,
    "patch_size": [2, 2]
}
SCHEDULER = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "invert_sigmas": False,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "shift_terminal": None,
    "stochastic_sampling": False,
    "time_shift_type": "exponential",
    "use_beta_sigmas": False,
    "use_dynamic_shifting": True,
    "use_exponential_sigmas": False,
    "use_karras_sigmas": False
}
CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}")


def text_tensor(name, shape, seed):
    """28 random layers: what each adds is kept small, so that the last is not noise."""
    w = tensor_for(name, shape, seed)
    return w * 0.4 if name.endswith(("o_proj.weight", "down_proj.weight")) else w


def transformer_tensor(name, shape, seed):
    """What a norm follows is kept small, so that another epsilon shows."""
    if len(shape) == 1:
        return uniform(shape, 0.2, seed, name, mean=1.0)  # norms of q and k: no name ends in norm.weight
    gain = 0.8 if "modulation" in name or "norm_out" in name else 1.6 if "embedder.linear" in name else 1.0
    if name.startswith(
        ("x_embedder", "context_embedder")) or any(k in name for k in ("to_q.", "to_k.", "add_q_proj", "add_k_proj")):
        gain = 0.05
    w = uniform(shape, gain / shape[1]**0.5, seed, name)
    if "to_qkv_mlp_proj" in name:
        w[:2 * shape[1]] *= 0.05
    return w


def vae_tensor(name, shape, seed):
    if name == "bn.num_batches_tracked":
        return torch.tensor(7)
    if name == "bn.running_var":
        return uniform(shape, 0.3, seed, name, mean=1.2).abs() * 0.4
    if name == "bn.running_mean":
        return uniform(shape, 0.3, seed, name)
    if "norm" in name and name.endswith("weight"):
        return uniform(shape, 0.15, seed, name, mean=1.0)
    if len(shape) == 1:
        return uniform(shape, 0.15, seed, name)
    return uniform(shape, 1.1 / (shape[1] * (shape[2] * shape[3] if len(shape) == 4 else 1))**0.5, seed, name)


def write_file(tensors, path):
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes files that only their owner reads


def save(folder, stem, tensors, nshards):
    """One file, or nshards of about equal bytes and the index that diffusers and transformers both write."""
    for old in folder.glob(f"{stem}*.safetensors*"):
        old.unlink()
    tensors = {k: v.contiguous() for k, v in tensors.items()}
    if nshards == 1:
        return write_file(tensors, folder / f"{stem}.safetensors")
    total, done, where, parts = sum(t.nbytes for t in tensors.values()), 0, {}, [{} for _ in range(nshards)]
    for name, t in tensors.items():
        part = min(done * nshards // total, nshards - 1)
        parts[part][name], where[name], done = t, f"{stem}-{part + 1:05d}-of-{nshards:05d}.safetensors", done + t.nbytes
    for i, part in enumerate(parts):
        write_file(part, folder / f"{stem}-{i + 1:05d}-of-{nshards:05d}.safetensors")
    write_json(folder / f"{stem}.safetensors.index.json", {
        "metadata": {
            "total_size": total
        },
        "weight_map": dict(sorted(where.items()))
    })


def write_text_encoder(out, config, seed, dtype, nshards):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    out.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**config))
    tied = config["tie_word_embeddings"]
    save(
        out, "model", {
            k: text_tensor(k, tuple(t.shape), seed).to(dtype)
            for k, t in model.state_dict().items() if not (tied and k == "lm_head.weight")
        }, nshards)
    layers = ["full_attention"] * config["num_hidden_layers"]
    write_json(
        out / "config.json", {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": str(dtype)[6:],
            "layer_types": layers,
            "transformers_version": "4.57.1",
            **config
        })
    write_json(
        out / "generation_config.json", {
            "bos_token_id": config["bos_token_id"],
            "eos_token_id": [config["eos_token_id"], config["bos_token_id"]],
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95
        })


def write_tokenizer(out, source, template_in_config):
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, out / "tokenizer.json")
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "errors": "replace",
        "split_special_tokens": False,
        "model_max_length": 131072
    }
    if template_in_config:
        config["chat_template"] = CHAT
    else:
        (out / "chat_template.jinja").write_text(CHAT + "\n", encoding="utf-8")
    write_json(out / "tokenizer_config.json", config)


def write_diffusers(out, cls, config, tensor, seed, dtype, nshards):
    import diffusers
    out.mkdir(parents=True, exist_ok=True)
    known = {
        k: v
        for k, v in config.items() if k != "force_upcast"
    }  # the published VAE has that key; the class does not read it
    with torch.device("meta"):
        model = getattr(diffusers, cls)(**known)
    cast = lambda t: t if t.dtype == torch.int64 else t.to(dtype)
    save(out, "diffusion_pytorch_model", {
        k: cast(tensor(k, tuple(t.shape), seed))
        for k, t in model.state_dict().items()
    }, nshards)
    write_json(out / "config.json", {"_class_name": cls, "_diffusers_version": VERSION, **config})


def write_pipeline(out,
                   seed=0,
                   changes=None,
                   base=False,
                   dtype=torch.bfloat16,
                   vae_dtype=torch.float32,
                   shards=1,
                   template_in_config=False,
                   tokenizer=None,
                   only=("scheduler", "tokenizer", "text_encoder", "transformer", "vae")):
    """changes: {"transformer": {"num_layers": 3}, …}. base: not distilled, as the published base models (without
    is_distilled in model_index.json)."""
    out, changes = pathlib.Path(out), changes or {}
    config = lambda part, default: {**default, **changes.get(part, {})}
    tokenizer = tokenizer or pathlib.Path(__file__).parents[2] / "fixtures/tiny-flux2/tokenizer/tokenizer.json"
    out.mkdir(parents=True, exist_ok=True)
    if "scheduler" in only:
        (out / "scheduler").mkdir(exist_ok=True)
        write_json(
            out / "scheduler/scheduler_config.json", {
                "_class_name": "FlowMatchEulerDiscreteScheduler",
                "_diffusers_version": VERSION,
                **config("scheduler", SCHEDULER)
            })
    if "tokenizer" in only:
        write_tokenizer(out / "tokenizer", tokenizer, template_in_config)
    if "text_encoder" in only:
        write_text_encoder(out / "text_encoder", config("text_encoder", TEXT), seed, dtype, shards)
    if "transformer" in only:
        write_diffusers(out / "transformer", "Flux2Transformer2DModel", config("transformer", TRANSFORMER),
                        transformer_tensor, seed, dtype, shards)
    if "vae" in only:
        write_diffusers(out / "vae", "AutoencoderKLFlux2", config("vae", VAE), vae_tensor, seed, vae_dtype, 1)
    if len(only) == 5:
        distilled = {} if base else {"is_distilled": True}
        write_json(
            out / "model_index.json", {
                "_class_name": "Flux2KleinPipeline",
                "_diffusers_version": VERSION,
                **distilled, "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
                "text_encoder": ["transformers", "Qwen3ForCausalLM"],
                "tokenizer": ["transformers", "Qwen2TokenizerFast"],
                "transformer": ["diffusers", "Flux2Transformer2DModel"],
                "vae": ["diffusers", "AutoencoderKLFlux2"]
            })


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--base", action="store_true", help="as the base models: not distilled, sampled with guidance")
    ap.add_argument("--dtype",
                    choices=["bfloat16", "float32"],
                    default="bfloat16",
                    help="of the text encoder and the transformer")
    ap.add_argument("--vae-dtype", choices=["bfloat16", "float32"], default="float32")
    ap.add_argument("--shards",
                    type=int,
                    default=1,
                    help="files of the text encoder and of the transformer, with index.json if more than 1")
    ap.add_argument("--template-in-config",
                    action="store_true",
                    help="chat template in tokenizer_config.json, as older folders have it")
    ap.add_argument("--only",
                    nargs="*",
                    default=["scheduler", "tokenizer", "text_encoder", "transformer", "vae"],
                    help="write these parts only")
    ap.add_argument("--set",
                    action="append",
                    default=[],
                    metavar="PART.KEY=JSON",
                    help="a value of a part's config, as transformer.guidance_embeds=true")
    args = ap.parse_args()
    changes = {}
    for item in args.set:
        key, value = item.split("=", 1)
        part, key = key.split(".", 1)
        changes.setdefault(part, {})[key] = json.loads(value)
    write_pipeline(args.out,
                   args.seed,
                   changes,
                   args.base,
                   getattr(torch, args.dtype),
                   getattr(torch, args.vae_dtype),
                   args.shards,
                   args.template_in_config,
                   only=tuple(args.only))
    print(f"{args.out}: {sum(p.stat().st_size for p in args.out.rglob('*') if p.is_file())} bytes")


if __name__ == "__main__":
    main()
