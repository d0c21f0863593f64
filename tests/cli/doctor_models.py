# SPDX-License-Identifier: Apache-2.0
"""Small complete models of families that `fsdpck doctor` knows in full: every tensor with the shape that config.json
gives it. Taken apart one tensor at a time, each must be missed."""
import json
import os
import re
import shutil

from doctor_folders import Model, tensor
from run_cases import write_safetensors

H, HEADS, KV, DIM, INNER, EXPERTS, EINNER, SHARED, VOCAB = 16, 2, 1, 8, 40, 3, 24, 20, 32
COMMON = {"hidden_size": H, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
          "num_hidden_layers": 2, "vocab_size": VOCAB, "tie_word_embeddings": False}


def gated(module, inner):
    return {module + "gate_proj.weight": (inner, H), module + "up_proj.weight": (inner, H),
            module + "down_proj.weight": (H, inner)}


def attention(rows=HEADS * DIM, norms=False, biases=""):
    out = {"self_attn.q_proj.weight": (rows, H), "self_attn.k_proj.weight": (KV * DIM, H),
           "self_attn.v_proj.weight": (KV * DIM, H), "self_attn.o_proj.weight": (H, HEADS * DIM)}
    for which in biases:
        out["self_attn.%s_proj.bias" % which] = (out["self_attn.%s_proj.weight" % which][0],)
    return {**out, **({"self_attn.q_norm.weight": (DIM,), "self_attn.k_norm.weight": (DIM,)} if norms else {})}


def linear_attention(four):
    qkv, v = 2 * 8 + 2 * 8, 2 * 8
    products = {"in_proj_qkv.weight": (qkv, H), "in_proj_z.weight": (v, H), "in_proj_a.weight": (2, H),
                "in_proj_b.weight": (2, H)} if four else {
                    "in_proj_qkvz.weight": (qkv + v, H), "in_proj_ba.weight": (4, H)}
    return {"linear_attn." + name: shape for name, shape in {
        **products, "A_log": (2,), "dt_bias": (2,), "conv1d.weight": (32, 1, 4), "norm.weight": (8,),
        "out_proj.weight": (H, v)}.items()}


LINEAR = {"linear_num_key_heads": 1, "linear_key_head_dim": 8,
          "linear_num_value_heads": 2, "linear_value_head_dim": 8}
LATENT = {"self_attn.q_a_proj.weight": (12, H), "self_attn.q_a_layernorm.weight": (12,),
          "self_attn.q_b_proj.weight": (24, 12), "self_attn.kv_a_proj_with_mqa.weight": (12, H),
          "self_attn.kv_a_layernorm.weight": (8,), "self_attn.kv_b_proj.weight": (32, 8),
          "self_attn.o_proj.weight": (H, 16)}
NORMS = {"input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,)}


def singles(module="mlp.", names=("gate_proj", "up_proj", "down_proj")):
    shapes = ((EINNER, H), (EINNER, H), (H, EINNER))
    return {"%sexperts.%d.%s.weight" % (module, e, name): shape for e in range(EXPERTS)
            for name, shape in zip(names, shapes)}


def fused(module, turned):
    up, down = ((H, 2 * EINNER), (EINNER, H)) if turned else ((2 * EINNER, H), (H, EINNER))
    return {module + "experts.gate_up_proj": (EXPERTS, *up), module + "experts.down_proj": (EXPERTS, *down)}


ROUTER = {"mlp.gate.weight": (EXPERTS, H)}
SHARED_GATED = {**gated("mlp.shared_expert.", SHARED), "mlp.shared_expert_gate.weight": (1, H)}
ADDED = {"mlp.gate.e_score_correction_bias": (EXPERTS,), **gated("mlp.shared_experts.", EINNER)}
MTP = {"enorm.weight": (H,), "hnorm.weight": (H,), "eh_proj.weight": (H, 2 * H), "shared_head.norm.weight": (H,)}
BESIDE = {"mtp.fc.weight": (H, 2 * H), "mtp.norm.weight": (H,), "mtp.pre_fc_norm_embedding.weight": (H,),
          "mtp.pre_fc_norm_hidden.weight": (H,)}
MOE = {"moe_intermediate_size": EINNER}
NEXT_FULL = {**NORMS, **attention(2 * HEADS * DIM, True), **ROUTER, **SHARED_GATED}
NEXT_LINEAR = {**NORMS, **ROUTER, **SHARED_GATED}
SHARES = {**MOE, **LINEAR, "num_experts": EXPERTS,
          "shared_expert_intermediate_size": SHARED, "mtp_num_hidden_layers": 1}


def beside(layer):
    return {"mtp.layers.0." + name: shape for name, shape in layer.items()}


# model_type: (keys of config.json, layers, tensors beside the layers)
FAMILIES = {
    "qwen2": ({"intermediate_size": INNER}, [{**NORMS, **attention(biases="qkv"), **gated("mlp.", INNER)}] * 2, {}),
    "qwen3_moe": ({**MOE, "num_experts": EXPERTS, "intermediate_size": INNER},
                  [{**NORMS, **attention(norms=True), **gated("mlp.", INNER)},
                   {**NORMS, **attention(norms=True), **ROUTER, **singles()}], {}),
    "mixtral": ({"num_local_experts": EXPERTS, "intermediate_size": EINNER},
                [{**NORMS, **attention(), "block_sparse_moe.gate.weight": (EXPERTS, H),
                  **singles("block_sparse_moe.", ("w1", "w3", "w2"))}] * 2, {}),
    "deepseek_v3": ({**MOE, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "intermediate_size": INNER,
                     "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
                     "v_head_dim": 8, "num_nextn_predict_layers": 1},
                    [{**NORMS, **LATENT, **gated("mlp.", INNER)}, {**NORMS, **LATENT, **ROUTER, **ADDED, **singles()},
                     {**NORMS, **LATENT, **ROUTER, **ADDED, **MTP, **singles()}], {}),
    "glm4_moe": ({**MOE, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "intermediate_size": INNER,
                  "attention_bias": True, "use_qk_norm": True},
                 [{**NORMS, **attention(norms=True, biases="qkv"), **ROUTER, **ADDED, **singles()}] * 2, {}),
    "qwen3_next": (SHARES, [{**NEXT_LINEAR, **linear_attention(False), **singles()}, {**NEXT_FULL, **singles()}],
                   {**BESIDE, **beside({**NEXT_FULL, **singles()})}),
    "qwen3_5_moe_text": (SHARES, [{**NEXT_LINEAR, **linear_attention(True), **fused("mlp.", False)},
                                  {**NEXT_FULL, **fused("mlp.", False)}],
                         {**BESIDE, **beside({**NEXT_FULL, **fused("mlp.", False)})}),
    "gpt_oss": ({"num_local_experts": EXPERTS, "intermediate_size": EINNER, "attention_bias": True},
                [{**NORMS, **attention(biases="qkvo"), "self_attn.sinks": (HEADS,), "mlp.router.weight": (EXPERTS, H),
                  "mlp.router.bias": (EXPERTS,), "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * EINNER),
                  "mlp.experts.down_proj_bias": (EXPERTS, H), **fused("mlp.", True)}] * 2, {}),
    "llama4_text": ({"num_local_experts": EXPERTS, "intermediate_size": EINNER, "intermediate_size_mlp": INNER},
                    [{**NORMS, **attention(), **gated("feed_forward.", INNER)},
                     {**NORMS, **attention(), **fused("feed_forward.", True),
                      "feed_forward.router.weight": (EXPERTS, H),
                      **gated("feed_forward.shared_expert.", EINNER)}], {}),
}


def make_model(folder, family):
    keys, layers, others = FAMILIES[family]
    table = (VOCAB, H)
    shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (H,), "lm_head.weight": table, **others}
    for i, layer in enumerate(layers):
        shapes.update({"model.layers.%d.%s" % (i, name): shape for name, shape in layer.items()})
    os.mkdir(folder)
    tensors = {name: tensor("F32" if name.endswith("correction_bias") else "BF16", *shape)
               for name, shape in shapes.items()}
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({**COMMON, **keys, "model_type": family, "architectures": ["SomeForCausalLM"]}, f)
    return tensors


def one_of_each(names):
    """A name for each kind of tensor: layers and experts differ by number alone."""
    return sorted({re.sub(r"\d+", "#", name): name for name in sorted(names)}.values())


def named_keys(found):
    """The keys of config.json that the finding names as the sizes' origin."""
    said = re.search(r", from (.*) of config.json", found[0]["expected"]) if found else None
    return {key for key in said[1].split(", ") if " " not in key} if said else set()


def check_model(run, folder, tensors):
    """Every tensor is missed by name, and a wrong shape is noticed, in one line each. run(folder): the findings."""
    failures = []
    with open(os.path.join(folder, "config.json")) as f:
        keys = json.load(f).keys()
    found = run(folder)
    if found:
        failures.append("%s is whole: %s" % (folder, found))
    for name in one_of_each(tensors):
        spoiled = folder + "-spoiled"
        shutil.copytree(folder, spoiled)
        m = Model(spoiled)
        m.write({k: v for k, v in m.tensors().items() if k != name})
        found = run(spoiled)
        short = re.sub(r"(?<=experts\.)\d+", "N", name).replace(".weight", "")
        if len(found) != 1 or found[0]["severity"] != "error" or not found[0]["subject"].startswith(short):
            failures.append("%s without %s: %s" % (folder, name, found))
        dtype, shape, _ = tensors[name]
        m.write({**{k: ("model.safetensors", v) for k, v in tensors.items()},
                 name: ("model.safetensors", tensor(dtype, *shape[:-1], shape[-1] + 1))})
        found = run(spoiled)
        if "conv1d" not in name and (len(found) != 1 or found[0]["subject"] != name):
            failures.append("%s with a wrong %s: %s" % (folder, name, found))
        failures += ["%s has no %s: %s" % (folder, key, found[0]) for key in named_keys(found) - keys]
        shutil.rmtree(spoiled)
    return failures


def check_models(run, at):
    failures = []
    for family in FAMILIES:
        folder = os.path.join(at, "whole-" + family)
        failures += check_model(run, folder, make_model(folder, family))
    return failures
