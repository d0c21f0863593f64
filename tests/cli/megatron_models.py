# SPDX-License-Identifier: Apache-2.0
"""Random models of every family that --names knows in Megatron's layout: config.json, the weights as published, and the
same as Megatron-core's torch_dist checkpoints hold them. A tensor is (dtype, shape, bytes), in BF16."""
NLAYERS, HIDDEN, VOCAB, PADDED, INTER, EXPERTS, DIM = 3, 6, 11, 16, 5, 3, 2
NMTP = {"glm4_moe": 2, "deepseek_v3": 1}  # layers for multi-token prediction
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SAME_LAYERS = ("mixtral", "qwen2_moe", "qwen3_moe")
FAMILIES = DENSE + SAME_LAYERS + ("glm4_moe", "deepseek_v3", "deepseek_v3_whole_q")
KINDS = ("numbers", "axes")  # of Megatron's names: layers (and experts) as parts of them, or as leading dimensions


def rows(rng, *shape):
    nelem = 1
    for n in shape:
        nelem *= n
    return "BF16", list(shape), rng.randbytes(2 * nelem)


def join(*parts):
    dtype, shape, _ = parts[0]
    return dtype, [sum(p[1][0] for p in parts), *shape[1:]], b"".join(p[2] for p in parts)


def stack(parts):
    dtype, shape, _ = parts[0]
    return dtype, [len(parts), *shape], b"".join(p[2] for p in parts)


def cut(t, first, count):
    row = len(t[2]) // t[1][0]
    return t[0], [count, *t[1][1:]], t[2][first * row:(first + count) * row]


def config_of(rng, family):
    heads, kv_heads = rng.choice([(4, 2), (3, 3), (6, 1)])
    config = {"model_type": family.replace("_whole_q", ""), "num_hidden_layers": NLAYERS, "hidden_size": HIDDEN,
              "vocab_size": VOCAB, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "intermediate_size": INTER, "tie_word_embeddings": family == "llama"}
    if family == "llama":
        config["attention_bias"] = True
    if family not in DENSE:
        config.update({"moe_intermediate_size": INTER, "intermediate_size": INTER,
                       {"mixtral": "num_local_experts", "glm4_moe": "n_routed_experts"}.get(
                           family, "n_routed_experts" if "deepseek" in family else "num_experts"): EXPERTS})
    if family == "glm4_moe":
        config.update(use_qk_norm=True, attention_bias=True)  # first_k_dense_replace: 1 by default
    if "deepseek" in family:
        config.update(first_k_dense_replace=2, q_lora_rank=None if "whole" in family else 4)
    if family in NMTP:
        config.update(num_nextn_predict_layers=NMTP[family])
    if family == "qwen3_moe":
        config.update(decoder_sparse_step=1, mlp_only_layers=[1])
    if family == "qwen2_moe":
        config.update(decoder_sparse_step=2)
    return config


def is_routed(config, family, layer):
    if family == "qwen3_moe":
        return layer != 1
    return {"mixtral": True, "qwen2_moe": layer == 1, "glm4_moe": layer >= 1}.get(family, "deepseek" in family and
                                                                              layer >= 2)


def attention(rng, config, family):
    """[(Megatron's name, tensor, [(published name, tensor), …])] of a layer's attention."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    out = [("linear_proj.weight", rows(rng, HIDDEN, heads * DIM))]
    out = [(name, t, [("o_proj.weight", t)]) for name, t in out]
    if "deepseek" in family:
        names = [("linear_kv_down_proj.weight", "kv_a_proj_with_mqa.weight", (5, HIDDEN)),
                 ("linear_kv_up_proj.layer_norm_weight", "kv_a_layernorm.weight", (3,)),
                 ("linear_kv_up_proj.weight", "kv_b_proj.weight", (7, 3))]
        names += [("linear_q_proj.weight", "q_proj.weight", (8, HIDDEN))] if "whole" in family else [
            ("linear_q_down_proj.weight", "q_a_proj.weight", (4, HIDDEN)),
            ("q_layernorm.weight", "q_a_layernorm.weight", (4,)),
            ("linear_q_up_proj.weight", "q_b_proj.weight", (8, 4))]
        return out + [(m, t, [(h, t)]) for m, h, t in ((m, h, rows(rng, *s)) for m, h, s in names)]
    each = heads // groups * DIM
    leaves = {"weight": (HIDDEN,)}
    if family in ("llama", "qwen2", "qwen2_moe", "glm4_moe"):
        leaves["bias"] = ()
    for leaf, shape in leaves.items():
        q, k, v = (rows(rng, n * DIM, *shape) for n in (heads, groups, groups))
        by_group = [(cut(q, g * each, each), cut(k, g * DIM, DIM), cut(v, g * DIM, DIM)) for g in range(groups)]
        out.append(("linear_qkv." + leaf, join(*(t for group in by_group for t in group)),
                    [(which + "_proj." + leaf, t) for which, t in zip("qkv", (q, k, v))]))
    if family == "llama":
        t = rows(rng, HIDDEN)
        out.append(("linear_proj.bias", t, [("o_proj.bias", t)]))
    for which in "qk" if family in ("qwen3", "qwen3_moe", "glm4_moe") else "":
        t = rows(rng, DIM)
        out.append((which + "_layernorm.weight", t, [(which + "_norm.weight", t)]))
    return out


def mlp(rng, module, names):
    """The matrices of a gated unit; module: Megatron's; names: of gate, up and down as published."""
    gate, up, down = rows(rng, INTER, HIDDEN), rows(rng, INTER, HIDDEN), rows(rng, HIDDEN, INTER)
    return [(module + "linear_fc1.weight", join(gate, up), [(names[0], gate), (names[1], up)]),
            (module + "linear_fc2.weight", down, [(names[2], down)])]


def projections(module):
    return [module + "%s_proj.weight" % which for which in ("gate", "up", "down")]


def layer(rng, config, family, number):
    out = [("self_attention." + m, t, [("self_attn." + h, x) for h, x in hub])
           for m, t, hub in attention(rng, config, family)]
    norms = [rows(rng, HIDDEN), rows(rng, HIDDEN)]
    fused = "deepseek" not in family
    out.append(("self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight", norms[0],
                [("input_layernorm.weight", norms[0])]))
    routed = is_routed(config, family, number)
    out.append(("pre_mlp_layernorm.weight" if routed else "mlp.linear_fc1.layer_norm_weight", norms[1],
                [("post_attention_layernorm.weight", norms[1])]))
    if not routed:
        return out + mlp(rng, "mlp.", projections("mlp."))
    block = "block_sparse_moe." if family == "mixtral" else "mlp."
    router = rows(rng, EXPERTS, HIDDEN)
    out.append(("mlp.router.weight", router, [(block + "gate.weight", router)]))
    for e in range(EXPERTS):
        module = block + "experts.%d." % e
        names = [module + w + ".weight" for w in ("w1", "w3", "w2")] if family == "mixtral" else projections(module)
        out += mlp(rng, "mlp.experts.experts.%d." % e, names)
    if family == "qwen2_moe":
        gate = rows(rng, 1, HIDDEN)
        out += mlp(rng, "mlp.shared_experts.", projections("mlp.shared_expert."))
        out.append(("mlp.shared_experts.gate_weight", gate, [("mlp.shared_expert_gate.weight", gate)]))
    if family == "glm4_moe" or "deepseek" in family:
        bias = rows(rng, EXPERTS)
        out += mlp(rng, "mlp.shared_experts.", projections("mlp.shared_experts."))
        out.append(("mlp.router.expert_bias", bias, [("mlp.gate.e_score_correction_bias", bias)]))
    return out


def mtp_layer(rng, config, family, number):
    """A layer for multi-token prediction: one of the last kind, with norms and a projection of its own."""
    out = [("transformer_layer." + m, t, hub) for m, t, hub in layer(rng, config, family, NLAYERS + number)]
    own = [("enorm", "enorm", (HIDDEN,)), ("hnorm", "hnorm", (HIDDEN,)), ("eh_proj", "eh_proj", (HIDDEN, 2 * HIDDEN)),
           ("final_layernorm", "shared_head.norm", (HIDDEN,))]
    for m, h, shape in own:
        t = rows(rng, *shape)
        out.append((m + ".weight", t, [(h + ".weight", t)]))
    return out


def as_axes(megatron):
    """Experts become a dimension, and then layers, where every layer has the tensor."""
    for name in list(megatron):
        if ".experts.experts.0." in name:
            parts = [name.replace(".0.linear", ".%d.linear" % e) for e in range(EXPERTS)]
            megatron[name.replace(".0.linear", ".linear")] = stack([megatron.pop(p) for p in parts])
    for name in list(megatron):
        if name.startswith("decoder.layers.0."):
            parts = [name.replace("layers.0.", "layers.%d." % i) for i in range(NLAYERS)]
            if all(p in megatron for p in parts):
                megatron[name.replace("layers.0.", "layers.")] = stack([megatron.pop(p) for p in parts])


def as_numbers(megatron):
    """Gate and up are two tensors."""
    for name in [n for n in megatron if n.endswith("linear_fc1.weight")]:
        t = megatron.pop(name)
        megatron[name + "_w"], megatron[name + "_v"] = cut(t, 0, INTER), cut(t, INTER, INTER)


def make(rng, family, kind):
    """(config, as published, as Megatron has them)"""
    config = config_of(rng, family)
    embedding, head, norm = rows(rng, PADDED, HIDDEN), rows(rng, PADDED, HIDDEN), rows(rng, HIDDEN)
    hub = {"model.embed_tokens.weight": cut(embedding, 0, VOCAB), "model.norm.weight": norm}
    megatron = {"embedding.word_embeddings.weight": embedding, "decoder.final_layernorm.weight": norm}
    if not config["tie_word_embeddings"]:
        hub["lm_head.weight"], megatron["output_layer.weight"] = cut(head, 0, VOCAB), head
    for i in range(NLAYERS):
        for name, t, published in layer(rng, config, family, i):
            megatron["decoder.layers.%d.%s" % (i, name)] = t
            hub.update({"model.layers.%d.%s" % (i, h): x for h, x in published})
    for k in range(NMTP.get(family, 0)):
        for name, t, published in mtp_layer(rng, config, family, k):
            megatron["mtp.layers.%d.%s" % (k, name)] = t
            hub.update({"model.layers.%d.%s" % (NLAYERS + k, h): x for h, x in published})
        for name, of in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
            hub["model.layers.%d.%s.weight" % (NLAYERS + k, name)] = hub[of + ".weight"]
    as_axes(megatron) if kind == "axes" else as_numbers(megatron)
    return config, hub, megatron
