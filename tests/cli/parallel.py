#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""parallel.py BINARY: --placement auto on random models of every family that it knows, with random meshes of dp, ep and
tp. The rows and columns that a rank holds must be those that tensor parallelism and expert parallelism want, which are
computed here from the heads and experts of config.json; the checkpoint must hold the model. Heads that cannot be cut
are refused."""
import itertools
import json
import math
import os
import random
import sys
import tempfile

from run_cases import write_safetensors

import placement
from experts import Test
from sides import rows

DENSE = ("llama", "mistral", "qwen2", "qwen3")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v3")  # published by single experts
FUSED = ("qwen3_5_moe_text", "gpt_oss", "llama4_text")
TURNED = ("gpt_oss", "llama4_text")  # fused experts are [experts, inputs, outputs]
LINEAR = ("qwen3_next", "qwen3_5_moe_text")  # whose first layer has linear attention, and whose q has a gate
WITH_IMAGES = {"qwen3_5_moe_text": ("qwen3_5_moe", "model.language_model.", "lm_head."),
               "llama4_text": ("llama4", "language_model.model.", "language_model.lm_head.")}
BLOCK = "model.layers.%d."
HEADS = ((4, 4), (4, 2), (12, 3), (6, 1), (12, 12))  # of q, of k and v


def attention(rng, family, config, hidden):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    if family == "deepseek_v3":
        return {"q_a_proj.weight": rows(rng, 5, hidden), "q_a_layernorm.weight": rows(rng, 5),
                "q_b_proj.weight": rows(rng, 3 * heads, 5), "kv_a_proj_with_mqa.weight": rows(rng, 9, hidden),
                "kv_a_layernorm.weight": rows(rng, 7), "kv_b_proj.weight": rows(rng, 4 * heads, 7),
                "o_proj.weight": rows(rng, hidden, 2 * heads)}
    dim = rng.choice([2, 3])
    out = {"%s_proj.weight" % which: rows(rng, n * dim, hidden)
           for which, n in zip("qkv", (heads * (1 + (family in LINEAR)), kv, kv))}
    if family == "gpt_oss":
        out.update({"sinks": rows(rng, heads), "o_proj.bias": rows(rng, hidden)})
    if family in ("qwen2", "qwen2_moe", "glm4_moe", "gpt_oss"):
        out.update({"%s_proj.bias" % which: rows(rng, n * dim) for which, n in zip("qkv", (heads, kv, kv))})
    if family.startswith("qwen3"):
        out.update({"q_norm.weight": rows(rng, dim), "k_norm.weight": rows(rng, dim)})
    return {**out, "o_proj.weight": rows(rng, hidden, heads * dim)}


def mlp(rng, hidden, inter, leaves=("gate_proj", "up_proj", "down_proj")):
    return {"%s.weight" % leaf: rows(rng, hidden, inter) if leaf == leaves[2] else rows(rng, inter, hidden)
            for leaf in leaves}


def linear(rng, family, hidden):
    parts = {"qkvz": 20, "ba": 6} if family == "qwen3_next" else {"qkv": 14, "z": 6, "b": 3, "a": 3}
    return {**{"in_proj_%s.weight" % part: rows(rng, n, hidden) for part, n in parts.items()},
            "conv1d.weight": rows(rng, 14, 1, 4), "out_proj.weight": rows(rng, hidden, 6), "A_log": rows(rng, 3),
            "dt_bias": rows(rng, 3), "norm.weight": rows(rng, 2)}


def codes(rng, *shape):
    return ("U8", list(shape), rng.randbytes(math.prod(shape)))


def stacks(rng, family, experts, hidden, inter):
    """All experts of a layer."""
    up, down = "experts.gate_up_proj", "experts.down_proj"
    if family not in TURNED:
        return {up: rows(rng, experts, 2 * inter, hidden), down: rows(rng, experts, hidden, inter)}
    if family == "gpt_oss" and rng.random() < 0.5:  # MXFP4
        ups, downs = (experts, 2 * inter, 2), (experts, 64, inter)
        out = {up + "_blocks": codes(rng, *ups, 16), up + "_scales": codes(rng, *ups),
               down + "_blocks": codes(rng, *downs, 16), down + "_scales": codes(rng, *downs)}
    else:
        out = {up: rows(rng, experts, hidden, 2 * inter), down: rows(rng, experts, inter, hidden)}
    if family == "gpt_oss":
        out.update({up + "_bias": rows(rng, experts, 2 * inter), down + "_bias": rows(rng, experts, hidden)})
    return out


def model(rng, family, heads=None, tied=False):
    """config.json and the published model."""
    hidden, inter, vocab = rng.choice([6, 10]), rng.choice([12, 24]), rng.choice([70, 131])
    q, kv = heads or rng.choice(HEADS)
    experts = rng.randrange(2, 6) if family not in DENSE else 0
    config = {"model_type": family, "num_hidden_layers": 2, "num_attention_heads": q, "num_key_value_heads": kv,
              "hidden_size": hidden, "vocab_size": vocab, "intermediate_size": inter, "tie_word_embeddings": tied,
              "moe_intermediate_size": inter, "num_experts" if family.startswith("qwen") else "n_routed_experts"
              if family in ("glm4_moe", "deepseek_v3") else "num_local_experts": experts}
    out = {"model.embed_tokens.weight": rows(rng, vocab, hidden), "model.norm.weight": rows(rng, hidden)}
    if not tied:
        out["lm_head.weight"] = rows(rng, vocab, hidden)
    for n in range(2):
        layer = {"input_layernorm.weight": rows(rng, hidden), "post_attention_layernorm.weight": rows(rng, hidden)}
        made = ("linear_attn.", linear(rng, family, hidden)) if family in LINEAR and n == 0 else (
            "self_attn.", attention(rng, family, config, hidden))
        layer.update({made[0] + leaf: t for leaf, t in made[1].items()})
        block, leaves = ("block_sparse_moe", ("w1", "w3", "w2")) if family == "mixtral" else (
            "feed_forward" if family == "llama4_text" else "mlp", ("gate_proj", "up_proj", "down_proj"))
        routed = experts and (n or family not in ("deepseek_v3", "llama4_text"))  # whose first layers have none
        if routed and family in FUSED:
            layer.update({block + "." + leaf: t for leaf, t in stacks(rng, family, experts, hidden, inter).items()})
        for e in range(experts if routed and family not in FUSED else 0):
            layer.update({"%s.experts.%d.%s" % (block, e, leaf): t
                          for leaf, t in mlp(rng, hidden, inter, leaves).items()})
        if routed:
            layer[block + (".router" if family in TURNED else ".gate") + ".weight"] = rows(rng, experts, hidden)
        shared = {family: ".shared_expert." for family in
                  ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text", "llama4_text")}
        shared.update(glm4_moe=".shared_experts.", deepseek_v3=".shared_experts.")
        shared = shared.get(family) if routed else None
        if shared or not routed:
            layer.update({block + (shared or ".") + leaf: t for leaf, t in mlp(rng, hidden, inter).items()})
        out.update({BLOCK % n + name: t for name, t in layer.items()})
    return config, out


# ---- what a rank of tensor parallelism and one of expert parallelism have ----

def share(length, n, i):
    """As torch.chunk cuts: rows that part i of n has."""
    return set(range(*placement.cut(length, n, i)))


def wanted(name, shape, config, tp, r, ep, e):
    """For each dimension the positions that rank r of tp and rank e of ep have; None: no part of it."""
    experts = max(config.get(k, 0) for k in ("num_experts", "n_routed_experts", "num_local_experts"))
    have = [set(range(n)) for n in shape]
    module, _, leaf = name.rpartition(".")
    last = module.split(".")[-1] if leaf in ("weight", "bias") else leaf
    stack, family = ".experts." in name and last == leaf, config["model_type"]
    if stack:
        have[0] = share(shape[0], ep, e)
    elif ".experts." in name:
        if int(name.split(".experts.")[1].split(".")[0]) not in share(experts, ep, e):
            return None
    if last.startswith("gate_up_proj"):
        dim = 2 if family in TURNED and leaf == "gate_up_proj" else 1
        half = shape[dim] // 2
        mine = share(half, tp, r)
        pairs = family == "gpt_oss"
        have[dim] = {2 * i + k for i in mine for k in (0, 1)} if pairs else mine | {half + i for i in mine}
    elif last == "down_proj" and stack and family in TURNED:
        have[1] = share(shape[1], tp, r)
    elif last in ("down_proj_blocks", "down_proj_scales"):
        have[2] = share(shape[2], tp, r)
    elif leaf == "bias" and last == "o_proj":
        pass
    elif last in ("k_proj", "v_proj"):
        if config["num_key_value_heads"] % tp == 0:
            have[0] = share(shape[0], tp, r)
    elif last in ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "w1", "w3", "embed_tokens", "lm_head",
                  "sinks", "out_proj") or last.startswith("in_proj_"):
        have[0] = share(shape[0], tp, r)
    elif last in ("o_proj", "down_proj", "w2"):
        have[-1] = share(shape[-1], tp, r)
    return have


class Parallel(Test):
    def write(self, name, config, tensors):
        os.makedirs(self.at(name), exist_ok=True)
        write_safetensors(self.at(name, "model.safetensors"), tensors)
        with open(self.at(name, "config.json"), "w") as f:
            json.dump(config, f)

    def held(self, index, t, sizes, coord):
        """What the rank at this coordinate has of a tensor: for each dimension the positions, or None."""
        mesh, rule = index["meshes"][t["mesh"]], [placement.parse(p, len(t["shape"])) for p in t["placements"]]
        rank = placement.row_major(sizes, coord)
        ranks = mesh.get("ranks", list(range(len(index["files"]))))
        if rank not in ranks:
            return None
        at = list(itertools.product(*map(range, mesh["sizes"])))[ranks.index(rank)]
        boxes = placement.boxes(t["shape"], mesh["sizes"], rule, at)
        return [set(i for o, s in boxes for i in range(o[d], o[d] + s[d])) for d in range(len(t["shape"]))]

    def check(self, what, folder, config, mesh):
        with open(self.at(folder, "index.json")) as f:
            index = json.load(f)
        dims = [d.split("=") for d in mesh.split(",")]
        sizes, names = [int(n) for _, n in dims], [d for d, _ in dims]
        size = lambda d: sizes[names.index(d)] if d in names else 1
        unused = set(range(1, len(index["meshes"]))) - {t.get("mesh") for t in index["tensors"].values()}
        if unused:
            self.failures.append("%s on %s: no tensor is on the meshes %s" % (what, mesh, unused))
        for name, t in index["tensors"].items():
            if "alias_of" in t:
                continue
            parts = {}  # of the ranks that dp cuts among: together they have what tp and ep want
            for coord in itertools.product(*map(range, sizes)):
                at = lambda d: coord[names.index(d)] if d in names else 0
                have = self.held(index, t, sizes, coord)
                if have is not None and all(have):
                    before = parts.setdefault((at("tp"), at("ep")), [set() for _ in t["shape"]])
                    parts[at("tp"), at("ep")] = [a | b for a, b in zip(before, have)]
            for r, e in itertools.product(range(size("tp")), range(size("ep"))):
                want = wanted(name, t["shape"], config, size("tp"), r, size("ep"), e)
                want = want if want and all(want) else None
                if parts.get((r, e)) != want:
                    self.failures.append("%s on %s: %s of tp %d, ep %d: %s, wanted %s" % (
                        what, mesh, name, r, e, t["placements"], want))

    def with_images(self, rng, family):
        """The text part of a model that sees images too has other names."""
        config, hub = model(rng, family)
        whole, text, head = WITH_IMAGES[family]
        named = lambda n: head + n[len("lm_head."):] if n.startswith("lm_head.") else n.replace("model.", text, 1)
        rest = {"model.visual.blocks.0.mlp.gate_proj.weight": rows(rng, 3, 3)}
        tensors = {**{named(n): t for n, t in hub.items()}, **rest}
        self.write("whole", {"model_type": whole, "text_config": config}, tensors)
        self.good("convert", "whole", "shards", "-q", "--force", "--mesh", "ep=2,tp=1", "--placement", "auto")
        with open(self.at("shards", "index.json")) as f:
            placed = {n: t["placements"] for n, t in json.load(f)["tensors"].items() if n not in rest}
        self.write("hub", config, hub)
        self.good("convert", "hub", "alone", "-q", "--force", "--mesh", "ep=2,tp=1", "--placement", "auto")
        with open(self.at("alone", "index.json")) as f:
            want = {named(n): t["placements"] for n, t in json.load(f)["tensors"].items()}
        if placed != want:
            self.failures.append("%s: %s" % (whole, {n: p for n, p in placed.items() if p != want.get(n)}))

    def family(self, rng, family):
        for tied in (False, True):
            config, hub = model(rng, family, tied=tied)
            self.write("hub", config, hub)
            for names in (["hf", "transformers"] if family in MIXTURES else ["hf"]):
                tp = rng.choice([n for n in (1, 2, 3, 4, 6) if config["num_attention_heads"] % n == 0 and (
                    config["num_key_value_heads"] % n == 0 or n % config["num_key_value_heads"] == 0)])
                mesh = rng.choice(["dp=2,tp=%d", "tp=%d", "dp=3,ep=2,tp=%d", "ep=3,tp=%d", "ep=2,tp=%d,dp=2"]) % tp
                self.good("convert", "hub", "shards", "-q", "--force", "--mesh", mesh, "--placement", "auto",
                          "--names", names)
                self.check(family, "shards", config, mesh)
                self.good("verify", "shards", "-q")
                self.good("diff", "hub", "shards", "-q", "--names", "hf")
                self.good("reshard", "shards", "again", "-q", "--force", "--mesh", "tp=1,ep=2", "--placement", "auto")
                self.check(family, "again", config, "tp=1,ep=2")
                self.good("diff", "hub", "again", "-q", "--names", "hf")
                plan = json.loads(self.good("plan", "hub", "--json", "--mesh", mesh, "--placement", "auto"))
                if plan["ranks"][0]["needed_bytes"] <= 0:
                    self.failures.append("%s: plan of %s" % (family, mesh))

    def refused(self, words, *args, code=2):
        got, _, err = self.run("convert", *args)
        if got != code or words not in err or os.path.exists(self.at("no")):
            self.failures.append("wanted exit %d with %r, found %d: %s" % (code, words, got, err))

    def uneven(self, rng):
        """Columns of gate and up, and the rows of down that belong to them, are those of one rank."""
        config, hub = model(rng, "gpt_oss", heads=(10, 5))
        hub[BLOCK % 0 + "mlp.experts.gate_up_proj_bias"] = rows(rng, 2, 26)
        self.write("hub", config, hub)
        self.refused("tp=5 does not cut the 26 elements along dimension 1 into equal parts of gate and of up", "hub",
                     "no", "--mesh", "tp=5", "--placement", "auto", "--include", "*.0.*bias")
        hub = {n.replace("gate_up_proj_bias", "down_proj_scales"): codes(rng, 2, 64, 13) if "proj_bias" in n else t
               for n, t in hub.items()}
        self.write("hub", config, hub)
        self.refused("tp=5 does not cut the 13 elements along dimension 2 into equal parts\n", "hub", "no", "--mesh",
                     "tp=5", "--placement", "auto", "--include", "*.0.*down_proj_scales")

    def refusals(self, rng):
        config, hub = model(rng, "llama", heads=(6, 3))
        self.write("hub", config, hub)
        auto = ["--placement", "auto"]
        self.refused("hub/config.json: --placement auto: tp=4 would cut one of 6 attention heads", "hub", "no",
                     "--mesh", "tp=4", *auto)
        self.refused("tp=2 is neither a divisor nor a multiple of the 3 heads of k and v", "hub", "no", "--mesh",
                     "tp=2", *auto)
        self.refused("the mesh has no dimension tp", "hub", "no", "--ranks", "2", *auto)
        self.write("other", {**config, "model_type": "phi3"}, hub)
        self.refused("model_type 'phi3' is none whose placement is known", "other", "no", "--mesh", "tp=3", *auto,
                     code=3)
        self.good("export", "hub", "joined", "-q", "--names", "vllm")
        self.refused("has q, k and v in one tensor", "joined", "no", "--mesh", "tp=3", *auto, code=3)
        note = self.run("convert", "hub", "wide", "--mesh", "tp=6", *auto)[2]
        if "k and v have 3 heads for tp=6: every rank of tp has all of them" not in note:
            self.failures.append("no note about k and v: %s" % note)
        rule = ["--placement", "*.k_proj.weight=replicate@tp"]  # goes before the table
        self.good("convert", "hub", "ruled", "-q", "--mesh", "tp=3", *rule, *auto)
        listed = json.loads(self.good("ls", "ruled", "--json"))["tensors"]
        if [t["placements"] for t in listed if t["name"].endswith("0.self_attn.k_proj.weight")] != [["replicate"]]:
            self.failures.append("a rule before auto is not used")


def main():
    rng = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="fsdpck-parallel-") as folder:
        test = Parallel(sys.argv[1], folder)
        for family in DENSE + MIXTURES + FUSED + ("qwen3_next",):
            test.family(rng, family)
        for family in WITH_IMAGES:
            test.with_images(rng, family)
        test.uneven(rng)
        test.refusals(rng)
    print("\n".join(test.failures[:20]) or "parallel: every rank has what its part of the model needs")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
