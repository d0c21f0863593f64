#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small mixture-of-experts models as transformers publishes them and as it holds them in memory.

usage: make_moe.py OUT [FAMILY ...]

OUT/FAMILY/hub/: what save_pretrained writes (names of the hub), with a multi-token prediction layer added where the
family has one; OUT/FAMILY/memory.safetensors: state_dict() of the model that from_pretrained makes of it."""
import os, pathlib, sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
import ckpt_common as c
import torch

BASE = dict(hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, vocab_size=32, max_position_embeddings=64, tie_word_embeddings=False)
ROUTED = dict(moe_intermediate_size=24, num_experts=3, num_experts_per_tok=2)
GROUPED = dict(moe_intermediate_size=24, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, topk_group=1,
               first_k_dense_replace=1)
LINEAR = dict(linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
              layer_types=["linear_attention", "full_attention"])
FAMILIES = {
    "mixtral": dict(intermediate_size=24, num_local_experts=3, num_experts_per_tok=2),
    "qwen2_moe": dict(ROUTED, shared_expert_intermediate_size=20, decoder_sparse_step=1),
    "qwen3_moe": dict(ROUTED, decoder_sparse_step=1, mlp_only_layers=[0]),
    "qwen3_next": dict(ROUTED, shared_expert_intermediate_size=20, **LINEAR),
    "deepseek_v3": dict(GROUPED, num_key_value_heads=2, n_group=2, q_lora_rank=12, kv_lora_rank=8, qk_rope_head_dim=4,
                        qk_nope_head_dim=8, v_head_dim=8),
    "glm4_moe": dict(GROUPED, n_group=1),
    "qwen3_5_moe_text": dict(ROUTED, shared_expert_intermediate_size=20, **LINEAR),
    "gpt_oss": dict(intermediate_size=24, num_local_experts=3, num_experts_per_tok=2),
    "llama4_text": dict(intermediate_size=24, intermediate_size_mlp=40, num_local_experts=3, num_experts_per_tok=1,
                        interleave_moe_layer_step=2),
}


def mtp(family, hub, layers):
    """Tensors that transformers does not load: those of a decoder layer under the names of an MTP layer."""
    last = f"model.layers.{layers}."
    to = {"qwen3_next": "mtp.layers.0.", "qwen3_5_moe_text": "mtp.layers.0.", "deepseek_v3": last, "glm4_moe": last}
    like = f"model.layers.{layers - 1}."
    return {} if family not in to else {
        to[family] + k[len(like):]: torch.randn(v.shape).to(v.dtype) for k, v in hub.items() if k.startswith(like)
    }


def make(out, family, seed=1, keep=None, **change):
    """keep: only tensors whose name it accepts."""
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(seed)
    values = {**BASE, **FAMILIES[family], **change}
    config = AutoConfig.for_model(family, **values)
    config.pad_token_id = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for t in model.state_dict().values():
            t.copy_(torch.randn(t.shape))
    hub_dir = out / family / "hub"
    model.save_pretrained(str(hub_dir))
    (hub_dir / "generation_config.json").unlink(missing_ok=True)
    hub = c.read_ref(hub_dir / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(str(hub_dir), dtype=torch.bfloat16)
    memory = {k: v.detach().clone().contiguous() for k, v in again.state_dict().items()}
    if family == "qwen3_5_moe_text":  # published fused, though save_pretrained() cuts what was made from a config
        hub = {k: v for k, v in hub.items() if ".experts." not in k}
        hub.update({k: v for k, v in memory.items() if ".experts." in k})
    # As published: a correction bias stays float32.
    hub.update({k: memory[k] for k in hub.keys() & memory.keys() if memory[k].dtype != hub[k].dtype})
    hub.update(mtp(family, hub, values["num_hidden_layers"]))
    keep = keep or (lambda name: True)
    c.write_ref(hub_dir / "model.safetensors", {k: v for k, v in hub.items() if keep(k)})
    c.write_ref(out / family / "memory.safetensors", {k: v for k, v in memory.items() if keep(k)})
    return hub_dir, out / family / "memory.safetensors"


if __name__ == "__main__":
    for name in sys.argv[2:] or FAMILIES:
        make(pathlib.Path(sys.argv[1]), name, keep=lambda k: "self_attn" not in k and "linear_attn" not in k)
