#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""side_forms.py BINARY: --names vllm and hf on forms that not all families have: block FP8, whose scales go where their
weights go, and experts that are published with inputs before outputs and held the other way."""
import random
import sys
import tempfile

from sides import BLOCK, Sides, attention, join, mixture, put, rows, stack, titan_of, turn

# ---- block FP8 ----

FP8_FAMILIES = ("qwen3", "qwen3_moe", "deepseek_v3")
BLOCKS = (4, 3)  # rows and columns that share a scale


def quantized(rng, name, n, cols):
    """A weight in block FP8 and its scales; the blocks at the edges are short."""
    grid = [-(-n // BLOCKS[0]), -(-cols // BLOCKS[1])]
    return {name: ("F8_E4M3", [n, cols], rng.randbytes(n * cols)),
            name + "_scale_inv": ("F32", grid, rng.randbytes(4 * grid[0] * grid[1]))}


def fp8(rng, family):
    """config.json and the published model. Rows of all but the last part of what vLLM joins are whole blocks."""
    hidden, inter, experts = 7, 8, 3 if family == "qwen3_moe" else 0
    out = {"model.embed_tokens.weight": rows(rng, 9, hidden)}
    shapes = {"self_attn.o_proj": (hidden, 16), "input_layernorm": None}
    if family == "deepseek_v3":
        shapes.update({"self_attn.q_a_proj": (8, hidden), "self_attn.kv_a_proj_with_mqa": (6, hidden),
                       "self_attn.q_b_proj": (16, 8)})
    else:
        shapes.update({"self_attn.q_proj": (16, hidden), "self_attn.k_proj": (8, hidden),
                       "self_attn.v_proj": (8, hidden)})
    for at in ["mlp.experts.%d." % e for e in range(experts)] or ["mlp."]:
        shapes.update({at + "gate_proj": (inter, hidden), at + "up_proj": (inter, hidden),
                       at + "down_proj": (hidden, inter)})
    for n in range(2):
        for module, shape in shapes.items():
            name = BLOCK % n + module + ".weight"
            out.update(quantized(rng, name, *shape) if shape else {name: rows(rng, hidden)})
        if family == "deepseek_v3":
            out[BLOCK % n + "self_attn.q_a_layernorm.weight"] = rows(rng, 8)
    config = {"model_type": family, "num_hidden_layers": 2, "hidden_size": hidden, "moe_intermediate_size": inter,
              "num_experts": experts,
              "quantization_config": {"quant_method": "fp8", "weight_block_size": list(BLOCKS)}}
    return config, out


def joined(hub):
    """As vLLM has it: scales go as their weights do."""
    out, experts = {}, {}
    parts = {"q_proj": ("qkv_proj", "q_proj", "k_proj", "v_proj"),
             "gate_proj": ("gate_up_proj", "gate_proj", "up_proj"),
             "q_a_proj": ("fused_qkv_a_proj", "q_a_proj", "kv_a_proj_with_mqa")}
    for name, t in hub.items():
        module, _, leaf = name.rpartition(".")
        within, _, last = module.rpartition(".")
        if ".experts." in name:
            layer, e = within.split(".experts.")
            experts.setdefault((layer, leaf, last), {})[int(e)] = t
        elif last in parts:
            to, *of = parts[last]
            out["%s.%s.%s" % (within, to, leaf)] = join(*(hub["%s.%s.%s" % (within, part, leaf)] for part in of))
        elif last not in ("k_proj", "v_proj", "up_proj", "kv_a_proj_with_mqa"):
            out[name] = t
    in_order = lambda key: [experts[key][e] for e in sorted(experts[key])]
    for layer, leaf, last in experts:
        to = layer + ".experts.routed_experts.%s" + leaf.removeprefix("weight")
        if last == "gate_proj":
            halves_of = zip(in_order((layer, leaf, last)), in_order((layer, leaf, "up_proj")))
            out[to % "w13_weight"] = stack([join(g, u) for g, u in halves_of])
        elif last == "down_proj":
            out[to % "w2_weight"] = stack(in_order((layer, leaf, last)))
    return out


# ---- Qwen3-VL-MoE ----

TEXT, BY_VLLM = "model.language_model.", "language_model.model."


def vision(rng, inter):
    """config.json, the published model, transformers' and vLLM's."""
    hidden, experts = 16, 3
    config = {"num_hidden_layers": 2, "hidden_size": hidden, "num_experts": experts, "moe_intermediate_size": inter}
    rest = {"model.visual.blocks.0.attn.qkv.weight": rows(rng, 6, 4)}
    hub, vllm = {"embed_tokens.weight": rows(rng, 9, hidden)}, {}
    for n in range(2):
        layer = "layers.%d." % n
        made, by_vllm = attention(rng, "qwen3_moe", hidden)
        put(hub, layer + "self_attn.", made)
        put(vllm, layer + "self_attn.", by_vllm)
        hub[layer + "mlp.gate.weight"] = rows(rng, experts, hidden)
        hub[layer + "mlp.experts.gate_up_proj"] = rows(rng, experts, hidden, 2 * inter)
        hub[layer + "mlp.experts.down_proj"] = rows(rng, experts, inter, hidden)
    held = {n: turn(t) if ".experts." in n else t for n, t in hub.items()}
    for n, t in held.items():
        if ".self_attn." not in n:
            vllm[n.replace("experts.gate_up_proj", "experts.routed_experts.w13_weight")
                 .replace("experts.down_proj", "experts.routed_experts.w2_weight")] = t
    named = lambda tensors, text: {**{text + n: t for n, t in tensors.items()}, **rest}
    return ({"model_type": "qwen3_vl_moe", "text_config": config}, named(hub, TEXT), named(held, TEXT),
            named(vllm, BY_VLLM))


class Forms(Sides):
    def blocks(self, rng):
        """Block FP8 is joined as it is, and its scales with it."""
        for family in FP8_FAMILIES:
            config, hub = fp8(rng, family)
            self.known("block FP8 of " + family, "vllm", config, hub, joined(hub))
        config, hub = fp8(rng, "qwen3")
        k, qkv = BLOCK % 0 + "self_attn.k_proj.weight", BLOCK % 0 + "self_attn.qkv_proj.weight"
        ragged = {**hub, **quantized(rng, k, 6, 7), **quantized(rng, k.replace("k_proj", "v_proj"), 6, 7)}
        self.refused("has blocks of 4 rows, which do not divide the 6 rows of a part of the joined weight", config,
                     ragged)
        self.refused("'%s_scale_inv': is missing; '%s_scale_inv' needs it" % (k, k.replace("k_proj", "q_proj")), config,
                     {n: t for n, t in hub.items() if n != k + "_scale_inv"})
        vllm = joined(hub)
        vllm[qkv + "_scale_inv"] = ("F32", [9, 3], bytes(108))
        self.refused("'%s_scale_inv': 9 rows cannot be those of 3 weights" % qkv, config, vllm, "hf")
        self.refused("weight_scale_inv': --names does not know what vLLM makes of it in a qwen3",
                     {**config, "quantization_config": None}, hub)

    def turned(self, rng):
        """Also where gate and up together, or down, are as wide as high: the other of the two tells."""
        for inter in (24, 8, 16):  # of 16 hidden values
            config, hub, held, vllm = vision(rng, inter)
            self.known("qwen3_vl_moe, %d" % inter, "vllm", config, hub, vllm)
            self.good("export", "hub", "fused", "-q", "--force", "--names", "transformers")
            self.same("qwen3_vl_moe, %d" % inter, "fused", held)
            self.good("convert", "fused", "shards", "-q", "--force", "--ranks", "3", "--names", "hf")
            self.good("diff", "hub", "shards", "-q")
        up, down = (TEXT + "layers.0.mlp.experts." + leaf for leaf in ("gate_up_proj", "down_proj"))
        self.refused("'%s': has outputs before inputs, as transformers holds experts, and '%s' has inputs" % (up, down),
                     *vision(rng, 24)[:1], {**hub, up: vision(rng, 24)[2][up], down: vision(rng, 24)[1][down]},
                     "transformers")
        config, hub, _, _ = vision(rng, 8)
        square = {n: t for n, t in hub.items() if not n.endswith("down_proj")}
        self.refused("has shape [3, 16, 16], with inputs before outputs, as a qwen3_vl_moe is published, or", config,
                     square, "transformers")
        self.refused("'%s': has shape [3, 16, 18]; a qwen3_vl_moe with the sizes of config.json has [3, 16, 16]" % up,
                     config, {**hub, up: rows(rng, 3, 16, 18)}, "transformers")


    def wide(self, rng):
        """Columns of a matrix that is larger than a band are not read once for each band."""
        hidden, inter = 512, 2048
        experts = "model.layers.0.mlp.experts."
        hub = {experts + "gate_up_proj": ("BF16", [2, hidden, 2 * inter], rng.randbytes(8 * hidden * inter)),
               experts + "down_proj": ("BF16", [2, inter, hidden], rng.randbytes(4 * hidden * inter))}
        config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": 2, "hidden_size": hidden,
                  "intermediate_size": inter}
        self.write("hub", config, hub)
        plain = self.cost("export", "hub", "side")
        there, back = self.cost("export", "hub", "side", "--names", "vllm"), self.cost("export", "side", "back",
                                                                                       "--names", "hf")
        if (there, back) != (plain, plain):
            self.failures.append("turned experts: %d and %d bytes are read, %d by a copy" % (there, back, plain))
        self.same("turned experts", "back", hub)
        self.good("export", "side", "back", "-q", "--force", "--names", "hf", "--memory", "16MiB")
        self.same("turned experts in little memory", "back", hub)
        hub = {experts + "gate_up_proj": ("BF16", [3, 601, 1606], rng.randbytes(6 * 601 * 1606)),
               experts + "down_proj": ("BF16", [3, 803, 601], rng.randbytes(6 * 803 * 601))}
        self.write("hub", dict(config, num_local_experts=3, hidden_size=601, intermediate_size=803), hub)
        for layout in (["--ranks", "1"], ["--ranks", "2", "--compress"], ["--ranks", "3", "--memory", "9MiB"],
                       ["--mesh", "dp=2,ep=2", "--placement", "*w2_weight=shard(2)@ep", "--compress"]):
            self.good("convert", "hub", "shards", "-q", "--force", "--names", "vllm", *layout)
            self.good("verify", "shards", "-q")  # no matrix ends where a hash block ends
            self.good("export", "shards", "back", "-q", "--force", "--names", "hf")
            self.same("turned experts by %s" % layout, "back", hub)

    def later(self, rng):
        """Names of later releases of torchtitan."""
        config, hub, _ = mixture(rng, "gpt_oss")
        titan = {n.replace("inner_experts.mlp1_weight_EGD", "w13.weight"): t
                 for n, t in titan_of(hub, config, False).items()}
        self.write("bad", config, titan)
        code, _, err = self.run("export", "bad", "no", "--names", "hf")
        if code != 3 or "w13.weight" not in err or "releases of torchtitan differ" not in err:
            self.failures.append("w13: exit %d: %s" % (code, err))


def main():
    rng = random.Random(6)
    with tempfile.TemporaryDirectory(prefix="fsdpck-forms-") as folder:
        test = Forms(sys.argv[1], folder)
        test.blocks(rng)
        test.turned(rng)
        test.wide(rng)
        test.later(rng)
    print("\n".join(test.failures) or "side_forms: both ways, through every sharding")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
