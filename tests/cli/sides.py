#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sides.py BINARY: --names vllm and torchtitan on random models of every family in their tables. A weight that vLLM
joins must be the bytes of its parts, one after another, and torchtitan's must have its names; --names hf must give the
published model back; both through any sharding, dequantized too, and reading no more than a copy reads. Models that
cannot be so held are refused by a tensor's name."""
import json
import os
import random
import re
import sys
import tempfile

from harness import fixtures
from run_cases import write_safetensors

from average import read
from experts import LAYOUTS, MOE, Test

DENSE = ("llama", "mistral", "qwen2", "qwen3")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "glm4_moe", "deepseek_v3", "gpt_oss",
            "llama4_text")
TITAN_FAMILIES = ("qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text")
JOINED_EXPERTS = {"mixtral": "block_sparse_moe"}
GATED = ("qwen3_next", "qwen3_5_moe_text")
TURNED = ("gpt_oss", "llama4_text")  # fused experts are [experts, inputs, outputs]
BLOCK = "model.layers.%d."


def rows(rng, n, *shape):
    """A matrix or vector in BF16 with n rows."""
    nelem = n
    for k in shape:
        nelem *= k
    return ("BF16", [n, *shape], rng.randbytes(2 * nelem))


def join(*parts):
    dtype, shape, _ = parts[0]
    return (dtype, [sum(p[1][0] for p in parts), *shape[1:]], b"".join(p[2] for p in parts))


def turn(tensor):
    """[a, b, c] in BF16 becomes [a, c, b]."""
    dtype, (a, b, c), data = tensor
    at = lambda i, j, k: data[2 * ((i * b + j) * c + k):][:2]
    return (dtype, [a, c, b], b"".join(at(i, j, k) for i in range(a) for k in range(c) for j in range(b)))


def halves(tensor):
    """[a, 2b, c] in BF16 is cut in two."""
    dtype, (a, b, c), data = tensor
    each = b * c  # bytes of half a matrix
    return [(dtype, [a, b // 2, c], b"".join(data[2 * each * i + h * each:][:each] for i in range(a))) for h in (0, 1)]


def rotated(tensor, dim):
    """Rows of q or k in BF16: of each head of `dim` rows first the even ones, then the odd ones."""
    dtype, (n, cols), data = tensor
    order = [head + i for head in range(0, n, dim) for i in (*range(0, dim, 2), *range(1, dim, 2))]
    return (dtype, [n, cols], b"".join(data[2 * cols * i:][:2 * cols] for i in order))


def linear(rng, hidden):
    """A layer of linear attention of Qwen3.5, as published and as vLLM holds it: as Qwen3-Next is published."""
    parts = {n: rows(rng, k, hidden) for n, k in (("qkv", 14), ("z", 6), ("b", 3), ("a", 3))}
    same = {"out_proj.weight": rows(rng, hidden, 6), "conv1d.weight": rows(rng, 14, 1, 4), "A_log": rows(rng, 3)}
    return ({**{"in_proj_%s.weight" % n: t for n, t in parts.items()}, **same},
            {"in_proj_qkvz.weight": join(parts["qkv"], parts["z"]),
             "in_proj_ba.weight": join(parts["b"], parts["a"]), **same})


def attention(rng, family, hidden):
    """What a layer's attention has as published, and as vLLM holds it."""
    heads, kv, dim = rng.choice([(4, 2, 3), (3, 3, 5), (8, 1, 2)])
    if family == "llama4_text":
        dim = 8  # as config.json says
    if family == "deepseek_v3":
        q, other = rows(rng, 12, hidden), rows(rng, 10, hidden)
        same = {"q_a_layernorm.weight": rows(rng, 12), "o_proj.weight": rows(rng, hidden, heads * dim),
                "q_b_proj.weight": rows(rng, 7, 12), "kv_b_proj.weight": rows(rng, 5, 9),
                "kv_a_layernorm.weight": rows(rng, 9)}
        return ({"q_a_proj.weight": q, "kv_a_proj_with_mqa.weight": other, **same},
                {"fused_qkv_a_proj.weight": join(q, other), **same})
    hub, vllm = {}, {}
    for leaf, shape in (("weight", (hidden,)),) + ((("bias", ()),) if family in ("qwen2", "qwen2_moe", "glm4_moe",
                                                                             "gpt_oss") else ()):
        parts = [rows(rng, n * dim, *shape) for n in (heads * (1 + (family in GATED)), kv, kv)]
        hub.update({"%s_proj.%s" % (which, leaf): part for which, part in zip("qkv", parts)})
        if family == "llama4_text":
            vllm["qkv_proj." + leaf] = join(rotated(parts[0], dim), rotated(parts[1], dim), parts[2])
        else:
            vllm["qkv_proj." + leaf] = join(*parts)
    same = {"o_proj.weight": rows(rng, hidden, heads * dim)}
    if family.startswith("qwen3"):
        same.update({"q_norm.weight": rows(rng, dim), "k_norm.weight": rows(rng, dim)})
    if family == "gpt_oss":
        same.update({"o_proj.bias": rows(rng, hidden), "sinks": rows(rng, heads)})
    return {**hub, **same}, {**vllm, **same}


def mlp(rng, hidden, inter):
    gate, up, down = rows(rng, inter, hidden), rows(rng, inter, hidden), rows(rng, hidden, inter)
    return ({"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down},
            {"gate_up_proj.weight": join(gate, up), "down_proj.weight": down})


def put(out, prefix, tensors):
    out.update({prefix + name: t for name, t in tensors.items()})


def dense(rng, family):
    """config.json, the published model, and vLLM's."""
    layers, hidden = rng.randrange(1, 4), rng.choice([6, 17])
    hub, vllm = {}, {}
    for n in range(layers):
        hub[BLOCK % n + "input_layernorm.weight"] = vllm[BLOCK % n + "input_layernorm.weight"] = rows(rng, hidden)
        for part, made in (("self_attn.", attention(rng, family, hidden)), ("mlp.", mlp(rng, hidden, 11))):
            put(hub, BLOCK % n + part, made[0])
            put(vllm, BLOCK % n + part, made[1])
    same = {"model.embed_tokens.weight": rows(rng, 9, hidden), "model.norm.weight": rows(rng, hidden),
            "model.visual.merger.qkv_proj.weight": rows(rng, 3, hidden), "mtp.fc.weight": rows(rng, hidden, 2 * hidden)}
    return {"model_type": family, "num_hidden_layers": layers}, {**hub, **same}, {**vllm, **same}


# What vLLM calls the parts of experts.
PARTS = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight", "gate_up_proj_bias": "w13_bias",
         "down_proj_bias": "w2_bias"}


def vllm_of(family, held):
    """Layers without attention, as vLLM holds them, from those that transformers holds."""
    block, out = JOINED_EXPERTS.get(family, "mlp"), {}
    for name, t in held.items():
        module, _, leaf = name.rpartition(".")
        if module.endswith(".experts"):
            t = turn(t) if family in TURNED and len(t[1]) == 3 else t
            name = module + ".routed_experts." + PARTS[leaf]
        if name.endswith("gate_proj.weight"):
            t = join(t, held[name.replace("gate_proj", "up_proj")])
        if not name.endswith("up_proj.weight"):
            out[name.replace(".mlp.", "." + block + ".").replace("gate_proj", "gate_up_proj")] = t
    if family == "gpt_oss":
        out["model.embedding.weight"] = out.pop("model.embed_tokens.weight")
    return out


def mixture(rng, family):
    """The same of a model of fixtures/moe, which has no attention: random attention is added, also to layers for
    multi-token prediction, which stay as they are."""
    with open(os.path.join(MOE, family, "hub", "config.json")) as f:
        config = json.load(f)
    hub = read(os.path.join(MOE, family, "hub", "model.safetensors"))
    held = read(os.path.join(MOE, family, "memory.safetensors"))
    beyond = {n: t for n, t in hub.items() if n not in held and ("layers.2" in n or n.startswith("mtp."))}
    vllm = {**vllm_of(family, held), **beyond}
    for n in range(config["num_hidden_layers"]):
        if family in GATED and n == 0:
            made, module, by_vllm = linear(rng, config["hidden_size"]), "linear_attn.", "linear_attn."
            made = made if family == "qwen3_5_moe_text" else (made[1], made[1])
        else:
            made, module = attention(rng, family, config["hidden_size"]), "self_attn."
            by_vllm = "attn." if family == "gpt_oss" else module
        put(hub, BLOCK % n + module, made[0])
        put(vllm, BLOCK % n + by_vllm, made[1])
    beyond = attention(rng, family, config["hidden_size"])[0]
    for out in (hub, vllm):
        put(out, BLOCK % config["num_hidden_layers"] + "self_attn.", beyond)
    return config, hub, vllm


# torchtitan's names of a layer: those of its adapters for Qwen3 and DeepSeek-V3, and older ones.
TITAN = {"self_attn.o_proj": "attention.wo", "self_attn.q_norm": "attention.q_norm",
         "self_attn.k_norm": "attention.k_norm", "self_attn.q_a_proj": "attention.wq_a",
         "self_attn.q_b_proj": "attention.wq_b", "self_attn.q_a_layernorm": "attention.q_norm",
         "self_attn.kv_a_proj_with_mqa": "attention.wkv_a", "self_attn.kv_b_proj": "attention.wkv_b",
         "self_attn.kv_a_layernorm": "attention.kv_norm", "mlp.gate_proj": "feed_forward.w1",
         "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "mlp.gate": "moe.router.gate",
         "mlp.shared_experts.gate_proj": "moe.shared_experts.w1", "mlp.shared_experts.up_proj": "moe.shared_experts.w3",
         "mlp.shared_experts.down_proj": "moe.shared_experts.w2", "input_layernorm": "attention_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn": "attention", "mlp.router": "moe.router.gate",
         "feed_forward.gate_proj": "feed_forward.w1", "feed_forward.up_proj": "feed_forward.w3",
         "feed_forward.down_proj": "feed_forward.w2", "feed_forward.router": "moe.router.gate",
         "feed_forward.shared_expert.gate_proj": "moe.shared_experts.w1",
         "feed_forward.shared_expert.up_proj": "moe.shared_experts.w3",
         "feed_forward.shared_expert.down_proj": "moe.shared_experts.w2"}
NEW = {"self_attn.%s_proj" % c: "attention.qkv_linear.w" + c for c in "qkv"}
OLD = {"self_attn.%s_proj" % c: "attention.w" + c for c in "qkv"}


def stack(parts):
    return (parts[0][0], [len(parts), *parts[0][1]], b"".join(p[2] for p in parts))


# Fused experts of gpt-oss, whose gate and up stay interleaved.
INTERLEAVED = {"gate_up_proj": "mlp1_weight_EGD", "gate_up_proj_bias": "mlp1_bias_EG", "down_proj": "mlp2_weight_EDF",
               "down_proj_bias": "mlp2_bias_ED"}


def titan_fused(family, leaf, t, old):
    """The names within a layer, and the values, of fused experts that are published so."""
    within = "moe.experts." if old else "moe.routed_experts.inner_experts."
    t = turn(t) if len(t[1]) == 3 else t
    if family == "gpt_oss":
        name = INTERLEAVED[leaf]
        return {within + (name.rpartition("_")[0] if old else name): t}
    names = ("w1_EFD", "w3_EFD") if leaf == "gate_up_proj" else ("w2_EDF",)
    return {within + (n[:2] if old else n): part
            for n, part in zip(names, halves(t) if len(names) == 2 else [t])}


def titan_of(hub, config, old):
    """The model as torchtitan has it, from the published one."""
    out, experts, leaves = {}, {}, {**TITAN, **(OLD if old else NEW)}
    for name, t in hub.items():
        layer = re.fullmatch(r"model[.]layers[.](\d+)[.](.*)", name)
        if not layer or int(layer[1]) >= config["num_hidden_layers"]:
            outside = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight"}
            out[outside.get(name, "output.weight" if old and name == "lm_head.weight" else name)] = t
            continue
        expert = re.fullmatch(r"mlp[.]experts[.](\d+)[.](.*)_proj[.]weight", layer[2])
        module, _, leaf = layer[2].rpartition(".")
        if module.endswith(".experts"):
            fused = titan_fused(config["model_type"], leaf, t, old)
            put(out, "layers.%s." % layer[1], fused)
        elif expert:
            experts.setdefault((layer[1], expert[2]), {})[int(expert[1])] = t
        elif leaf == "e_score_correction_bias":
            out["layers.%s.moe.expert_bias%s" % (layer[1], "" if old else "_E")] = t
        else:
            out["layers.%s.%s.%s" % (layer[1], leaves[module], leaf)] = t
    ends = {"gate": "w1", "up": "w3", "down": "w2"} if old else {"gate": "w1_EFD", "up": "w3_EFD", "down": "w2_EDF"}
    within = "moe.experts" if old else "moe.routed_experts.inner_experts"
    for (n, part), found in experts.items():
        out["layers.%s.%s.%s" % (n, within, ends[part])] = stack([found[e] for e in sorted(found)])
    return out


class Sides(Test):
    def write(self, name, config, tensors):
        os.makedirs(self.at(name), exist_ok=True)
        write_safetensors(self.at(name, "model.safetensors"), tensors)
        with open(self.at(name, "config.json"), "w") as f:
            json.dump(config, f)

    def known(self, family, names, config, hub, want):
        self.write("hub", config, hub)
        plain = self.cost("export", "hub", "side")
        # Narrow halves of columns are read with what lies between them; gaps() has wide ones.
        apart = names == "torchtitan" and family in ("llama4", "llama4_text")
        if self.cost("export", "hub", "side", "--names", names) != plain and not apart:
            self.failures.append("%s: --names %s reads other bytes than copying" % (family, names))
        self.same(family, "side", want)
        for layout in LAYOUTS[:3]:
            self.good("convert", "side", "shards", "-q", "--force", *layout)
            self.good("export", "shards", "back", "-q", "--force", "--names", "hf")
            self.same("%s through %s" % (family, layout), "back", hub)
        self.good("export", "back", "fused", "-q", "--force", "--names", "transformers")
        self.good("export", "fused", "again", "-q", "--force", "--names", names)
        self.same("%s by transformers' form" % family, "again", want)
        if "called so already" not in self.run("export", "again", "same", "--force", "--names", names)[2]:
            self.failures.append("%s: no note that nothing changes" % family)

    def family(self, rng, family):
        config, hub, vllm = dense(rng, family) if family in DENSE else mixture(rng, family)
        self.known(family, "vllm", config, hub, vllm)
        once = {n.replace(".routed_experts", ""): t for n, t in vllm.items()}
        self.write("once", config, once)
        self.good("export", "once", "back", "-q", "--force", "--names", "hf")
        self.same("%s under vLLM's older names" % family, "back", hub)
        if family not in TITAN_FAMILIES:
            return
        self.known(family, "torchtitan", config, hub, titan_of(hub, config, False))
        self.good("export", "side", "joined", "-q", "--force", "--names", "vllm")
        self.same("%s from torchtitan to vLLM" % family, "joined", vllm)
        counted = {"layers.0.moe.tokens_per_expert": rows(rng, 4)}
        if family in TURNED:
            counted["layers.1.moe.expert_bias"] = rows(rng, 4)
        self.write("old", config, {**titan_of(hub, config, True), **counted})
        self.good("export", "old", "back", "-q", "--force", "--names", "hf")
        self.same("%s under torchtitan's old names" % family, "back", hub)

    def with_images(self, rng):
        """The text part of a model that sees images too has other names, as published and by vLLM; the rest stays."""
        config, hub, vllm = mixture(rng, "qwen3_5_moe_text")
        whole = {"model_type": "qwen3_5_moe", "text_config": config}
        named = lambda tensors, model, head: {
            (n if n.startswith("mtp.") else n.replace("model.", model, 1) if n.startswith("model.") else head + n): t
            for n, t in tensors.items()}
        rest = {"model.visual.blocks.0.attn.qkv.weight": rows(rng, 6, 4)}
        self.known("qwen3_5_moe", "vllm", whole, {**named(hub, "model.language_model.", ""), **rest},
                   {**named(vllm, "language_model.model.", "language_model."), **rest})
        self.known("qwen3_5_moe, text alone", "vllm", whole, hub, vllm)
        config, hub, _ = mixture(rng, "llama4_text")
        whole = {"model_type": "llama4", "text_config": config}
        rest = {"vision_model.layernorm_pre.weight": rows(rng, 6)}
        titan = titan_of({n: t for n, t in hub.items() if "layers.2" not in n}, config, False)
        hub = {n: t for n, t in hub.items() if "layers.2" not in n}
        self.known("llama4", "torchtitan", whole,
                   {**named(hub, "language_model.model.", "language_model."), **rest}, {**titan, **rest})

    def gaps(self, rng):
        """Halves of wide columns are read one by one: nothing is read twice."""
        hidden, inter = 3, 8192
        experts = "model.layers.0.feed_forward.experts."
        hub = {experts + "gate_up_proj": ("BF16", [1, hidden, 2 * inter], rng.randbytes(4 * hidden * inter)),
               experts + "down_proj": ("BF16", [1, inter, hidden], rng.randbytes(2 * hidden * inter))}
        config = {"model_type": "llama4_text", "num_hidden_layers": 1, "num_local_experts": 1, "hidden_size": hidden,
                  "intermediate_size": inter}
        self.known("llama4_text with wide experts", "torchtitan", config, hub, titan_of(hub, config, False))

    def merged(self):
        """An adapter is merged into a base that another program has named."""
        tiny = os.path.join(fixtures(), "tiny-llama-tied")
        self.good("export-lora", os.path.join(fixtures(), "lora-run"), "adapter", "-q")
        self.good("export", tiny, "joined", "-q", "--force", "--names", "vllm")
        self.good("merge-lora", tiny, "adapter", "merged", "-q", "--force")
        self.good("merge-lora", "joined", "adapter", "merged-too", "-q", "--names", "hf")
        self.same("merged into a base under vLLM's names", "merged-too", read(self.at("merged", "model.safetensors")))
        self.good("merge-lora", "joined", "adapter", "shards", "-q", "--force", "--names", "hf", "--ranks", "3",
                  "--assets", tiny)
        self.good("diff", "shards", "merged", "-q")
        if self.run("merge-lora", "joined", "adapter", "no")[0] != 3:
            self.failures.append("merged into joined weights without --names")
        self.good("export", tiny, "nf4", "-q", "--quantize", "nf4")
        code, _, err = self.run("merge-lora", "nf4", "adapter", "no", "--names", "hf")
        if code != 3 or "under their own names only, not with --names" not in err or os.path.exists(self.at("no")):
            self.failures.append("merged into quantized weights under other names: exit %d: %s" % (code, err))

    def dequantized(self):
        self.good("export", os.path.join(fixtures(), "tiny-llama-tied"), "fp8", "-q", "--quantize", "fp8-block")
        self.good("export", "fp8", "plain", "-q", "--dequantize", "bf16")
        self.good("export", "plain", "want", "-q", "--names", "vllm")
        self.good("export", "fp8", "got", "-q", "--dequantize", "bf16", "--names", "vllm")
        self.same("dequantized", "got", read(self.at("want", "model.safetensors")))

    def refused(self, words, config, tensors, names="vllm"):
        """names: None for an export without --names."""
        self.write("bad", config, tensors)
        code, _, err = self.run("export", "bad", "no", *(["--names", names] if names else []))
        if code != 3 or words not in err or os.path.exists(self.at("no")):
            self.failures.append("wanted a refusal with %r, found exit %d: %s" % (words, code, err))

    def refusals(self, rng):
        config, hub, vllm = dense(rng, "llama")
        q, k = BLOCK % 0 + "self_attn.q_proj.weight", BLOCK % 0 + "self_attn.k_proj.weight"
        qkv, gate_up = BLOCK % 0 + "self_attn.qkv_proj.weight", BLOCK % 0 + "mlp.gate_up_proj.weight"
        o = BLOCK % 0 + "self_attn.o_proj.weight"
        without = lambda tensors, name: {n: t for n, t in tensors.items() if n != name}
        self.refused("'%s': is missing; '%s' needs it" % (k, q), config, without(hub, k))
        self.refused("'%s': is missing; '%s' needs it" % (q, k), config, without(hub, q))
        self.refused("'%s': is missing; '%s' needs it" % (o, qkv), config, without(vllm, o), "hf")
        hidden = hub[q][1][1]
        self.refused("'%s': is float32 %s; beside '%s' it must be bfloat16" % (k, hub[k][1], q), config,
                     {**hub, k: ("F32", hub[k][1], 2 * hub[k][2])})
        self.refused("'%s': is bfloat16" % k, config, {**hub, k: rows(rng, hub[k][1][0] + 2, hidden)})
        self.refused("'%s': 3 rows cannot be those of 2 weights" % gate_up, config,
                     {**vllm, gate_up: rows(rng, 3, hidden)}, "hf")
        for names in ("vllm", "hf"):
            self.refused("is this model as vLLM has it, or as it is published?", config, {**vllm, q: hub[q]}, names)
        for beside in (q + "_scale_inv", qkv + "_scale", BLOCK % 0 + "mlp.gate_proj.bias"):
            made = vllm if beside.startswith(qkv) else hub
            self.refused("'%s': --names does not know what vLLM makes of it in a llama" % beside, config,
                         {**made, beside: rows(rng, 1)}, "hf" if made is vllm else "vllm")
        self.refused("has the names of vLLM: as a Hugging Face model it would lack its weights", config, vllm, None)
        self.write("own", {**config, "model_type": "phi3"}, vllm)  # which is published so
        self.good("export", "own", "published", "-q")
        other = {"model_type": "phi3", "num_hidden_layers": 1}
        self.refused("model_type 'phi3' is none whose weights", other, hub)
        self.refused("lacks num_hidden_layers", {"model_type": "llama"}, hub)
        config, hub, _ = dense(rng, "qwen3")
        titan, fused = titan_of(hub, config, False), "layers.0.attention.qkv_linear.wqkv.weight"
        self.refused("'%s': --names does not know what torchtitan makes of it in a qwen3" % fused, config,
                     {**titan, fused: hub[q]}, "hf")
        self.refused("has the names of torchtitan: as a Hugging Face model", config, titan, None)
        self.refused("is this model as torchtitan has it, or as it is published?", config, {**titan, q: hub[q]}, "hf")
        self.swapped(rng)

    def swapped(self, rng):
        """Experts of gpt-oss and Llama-4 whose inputs and outputs changed places; codes that vLLM packs otherwise."""
        config, hub, vllm = mixture(rng, "gpt_oss")
        up, w13 = BLOCK % 0 + "mlp.experts.gate_up_proj", BLOCK % 0 + "mlp.experts.routed_experts.w13_weight"
        words = "a gpt_oss with the sizes of config.json has [3, 16, 48]: is this model published, or were"
        self.refused(words, config, {**hub, up: turn(hub[up])})
        self.refused(words, config, {**vllm, w13: turn(vllm[w13])}, "hf")
        self.refused("'%s': has 2 dimensions; wanted 3" % w13, config, {**vllm, w13: rows(rng, 3, 48)}, "hf")
        self.refused("'%s_blocks': --names does not know what vLLM makes of it in a gpt_oss" % up, config,
                     {**hub, up + "_blocks": ("U8", [1], b"x")})
        self.refused("lacks a size of its experts", {**config, "hidden_size": None}, hub)
        config, hub, vllm = mixture(rng, "llama4_text")
        for odd in (5, 6):
            for tensors, names in ((hub, "vllm"), (vllm, "hf")):
                self.refused("rows of q or k, which cannot be those of heads of %d rows" % odd,
                             {**config, "head_dim": odd}, tensors, names)


def main():
    rng = random.Random(5)
    with tempfile.TemporaryDirectory(prefix="fsdpck-sides-") as folder:
        test = Sides(sys.argv[1], folder)
        for family in DENSE + MIXTURES:
            test.family(rng, family)
        test.with_images(rng)
        test.gaps(rng)
        test.merged()
        test.dequantized()
        test.refusals(rng)
    print("\n".join(test.failures) or "sides: both ways, through every sharding")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
