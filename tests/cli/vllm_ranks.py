#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vllm_ranks.py BINARY: export --style vllm-sharded on random models of every family, against a model of how vLLM's
layers load weights: heads of q, k and v of a rank joined, gate over up of a rank, columns of o and down, experts in
stacks, a vocabulary padded to a multiple of 64. Read back, through any sharding, the folder is the published model; one
that lacks a rank, a file or a tensor is refused."""
import os
import random
import shutil
import sys
import tempfile

from run_cases import write_safetensors

from average import read
from experts import LAYOUTS
from parallel import BLOCK, DENSE, MIXTURES, Parallel, model
from sides import join, rows

ONE = ("F32", [], b"\0\0\x80\x3f")


# ---- how vLLM's layers load a weight, on matrices of BF16 in Python ----

def take(t, begin, n, dim=0):
    """t.narrow(dim, begin, n)"""
    _, shape, data = t
    row = 2 * (shape[1] if len(shape) > 1 else 1)
    if dim == 0:
        return ("BF16", [n, *shape[1:]], data[begin * row:(begin + n) * row])
    return ("BF16", [shape[0], n],
            b"".join(data[i * row + 2 * begin:i * row + 2 * (begin + n)] for i in range(shape[0])))


def column_parallel(t, tp, r):
    n = t[1][0] // tp
    return take(t, r * n, n)


def row_parallel(t, tp, r):
    n = t[1][1] // tp
    return take(t, r * n, n, dim=1)


def merged(gate, up, tp, r):
    return join(column_parallel(gate, tp, r), column_parallel(up, tp, r))


def qkv(q, k, v, config, tp, r):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = q[1][0] // heads
    replicas, own = (tp // kv, 1) if tp >= kv else (1, kv // tp)
    at = r // replicas
    return join(take(q, r * (heads // tp) * dim, heads // tp * dim), take(k, at * own * dim, own * dim),
                take(v, at * own * dim, own * dim))


def vocabulary(t, tp, r):
    vocab, hidden = t[1]
    each = (vocab + 63) // 64 * 64 // tp
    begin, end = min(r * each, vocab), min((r + 1) * each, vocab)
    data = take(t, begin, end - begin)[2]
    return ("BF16", [each, hidden], data + bytes(2 * hidden * each - len(data)))


def stack(parts):
    return (parts[0][0], [len(parts), *parts[0][1]], b"".join(p[2] for p in parts))


def spread(experts, n, r):
    """The experts of rank r of expert parallelism, as vLLM's map places them: earlier ranks have one more."""
    each, more = divmod(experts, n)
    begin = r * each + min(r, more)
    return range(begin, begin + each + (r < more))


def experts(layer, block, leaves, tp, r, whole):
    """w13_weight and w2_weight; whole: each rank has some of the experts whole"""
    gate, up, down = ([layer["%s.experts.%d.%s.weight" % (block, e, leaf)] for e in range(len(layer)) if
                       "%s.experts.%d.%s.weight" % (block, e, leaf) in layer] for leaf in leaves)
    if whole:
        mine = spread(len(gate), tp, r)
        return {block + ".experts.routed_experts.w13_weight": stack([join(gate[e], up[e]) for e in mine]),
                block + ".experts.routed_experts.w2_weight": stack([down[e] for e in mine])}
    return {block + ".experts.routed_experts.w13_weight": stack([merged(g, u, tp, r) for g, u in zip(gate, up)]),
            block + ".experts.routed_experts.w2_weight": stack([row_parallel(d, tp, r) for d in down])}


def layer_of(layer, config, tp, r, whole):
    out = {}
    for name, t in layer.items():
        module, _, leaf = name.rpartition(".")
        last = module.split(".")[-1]
        if ".experts." in name or last in ("k_proj", "v_proj", "up_proj", "kv_a_proj_with_mqa"):
            continue
        if last == "q_proj":
            parts = [layer[name.replace("q_proj", c + "_proj")] for c in "qkv"]
            out["self_attn.qkv_proj." + leaf] = qkv(*parts, config, tp, r)
        elif last == "gate_proj":
            out[name.replace("gate_proj", "gate_up_proj")] = merged(t, layer[name.replace("gate", "up")], tp, r)
        elif last == "q_a_proj":
            out["self_attn.fused_qkv_a_proj.weight"] = join(t, layer["self_attn.kv_a_proj_with_mqa.weight"])
        elif last in ("o_proj", "down_proj"):
            out[name] = row_parallel(t, tp, r)
        elif last in ("q_b_proj", "kv_b_proj"):
            out[name] = column_parallel(t, tp, r)
        else:
            out[name] = t
    mixtral = "block_sparse_moe.gate.weight" in layer
    if mixtral or "mlp.gate.weight" in layer:
        out.update(experts(layer, "block_sparse_moe", ("w1", "w3", "w2"), tp, r, whole) if mixtral else
                   experts(layer, "mlp", ("gate_proj", "up_proj", "down_proj"), tp, r, whole))
    return {**out, **{"self_attn.attn._%s_scale" % s: ONE for s in ("k", "v", "q", "prob")}}


def rank_of(hub, config, tp, r, whole=False):
    out = {"model.norm.weight": hub["model.norm.weight"]}
    embedding = vocabulary(hub["model.embed_tokens.weight"], tp, r)
    if config["tie_word_embeddings"]:  # both names are one tensor, and its first name counts
        out["lm_head.weight"] = embedding
    else:
        out["model.embed_tokens.weight"] = embedding
        out["lm_head.weight"] = vocabulary(hub["lm_head.weight"], tp, r)
    for n in range(config["num_hidden_layers"]):
        begin = BLOCK % n
        layer = {name[len(begin):]: t for name, t in hub.items() if name.startswith(begin)}
        out.update({begin + name: t for name, t in layer_of(layer, config, tp, r, whole).items()})
    return out


class Ranks(Parallel):
    def files(self, folder):
        return sorted(f for f in os.listdir(self.at(folder)) if f.startswith("model-rank-"))

    def held_by(self, folder, rank):
        """A rank's tensors."""
        out = {}
        for name in self.files(folder):
            if name.startswith("model-rank-%d-part-" % rank):
                part = read(self.at(folder, name))
                if set(part) & set(out):
                    self.failures.append("%s: two files of rank %d have one tensor" % (folder, rank))
                out.update(part)
        return out

    def fits(self, config, tp):
        kv = config["num_key_value_heads"]
        return config["num_attention_heads"] % tp == 0 and (kv % tp == 0 or tp % kv == 0) and not (
            (config["vocab_size"] + 63) // 64 * 64 % tp) and config["intermediate_size"] % tp == 0

    def family(self, rng, family):
        for tied in (False, True):
            config, hub = model(rng, family, tied=tied)
            beyond = {"model.layers.2.eh_proj.weight": hub["model.norm.weight"]}
            self.write("hub", config, {**hub, **beyond})
            self.refused("eh_proj.weight': is of layer 2, and config.json names 2 layers and 0", "export", "hub", "no",
                         "--style", "vllm-sharded", "--tp", "1")
            config["num_nextn_predict_layers"] = 1  # for multi-token prediction, which is left out
            self.write("hub", config, {**hub, **beyond})
            self.write("plain", config, hub)
            tp = rng.choice([n for n in (1, 2, 3, 4, 6) if self.fits(config, n)])
            nexperts = max(config.get(k, 0) for k in ("num_experts", "n_routed_experts", "num_local_experts"))
            whole = tied and 0 < tp <= nexperts
            limit = rng.choice([[], ["--max-shard-size", "2KB"]]) + ["--expert-parallel"] * whole
            note = self.run("export", "hub", "ranks", "--force", "--style", "vllm-sharded", "--tp", str(tp), *limit)
            if note[0] or "left out: 1 tensor such as 'model.layers.2.eh_proj.weight'" not in note[2]:
                self.failures.append("%s: %s" % (family, note))
            for r in range(tp):
                got, want = self.held_by("ranks", r), rank_of(hub, config, tp, r, whole)
                for name in set(got) | set(want):
                    if got.get(name) != want.get(name):
                        self.failures.append("%s, rank %d of %d: %s is %s, wanted %s" % (
                            family, r, tp, name, got.get(name, "none")[:2], want.get(name, "none")[:2]))
            if self.held_by("ranks", tp):
                self.failures.append("%s: more ranks than %d" % (family, tp))
            self.good("export", "ranks", "back", "-q", "--force")
            self.same("%s back from %d ranks" % (family, tp), "back", hub)
            self.good("convert", "ranks", "shards", "-q", "--force", *rng.choice(LAYOUTS[:3]))
            self.good("diff", "plain", "shards", "-q")
            self.good("reshard", "ranks", "again", "-q", "--force", "--mesh", "dp=2,tp=1", "--placement", "auto")
            self.good("diff", "plain", "again", "-q")
            self.good("export", "ranks", "other", "-q", "--force", "--style", "vllm-sharded", "--tp", "1")
            if self.held_by("other", 0) != rank_of(hub, config, 1, 0):
                self.failures.append("%s: from %d ranks to 1" % (family, tp))

    def refused(self, words, *args, code=3):
        got, _, err = self.run(*args)
        if got != code or words not in err or os.path.exists(self.at("no")):
            self.failures.append("%s: wanted exit %d with %r, found %d: %s" % (args, code, words, got, err))

    def damaged(self, words, change):
        """change: of a folder of 4 ranks."""
        shutil.rmtree(self.at("bad"), ignore_errors=True)
        shutil.copytree(self.at("ranks"), self.at("bad"))
        change(lambda name: self.at("bad", name))
        self.refused(words, "ls", "bad")

    def sources(self, rng):
        config, hub = model(rng, "llama", heads=(4, 2))
        self.write("hub", config, hub)
        self.good("export", "hub", "ranks", "-q", "--force", "--style", "vllm-sharded", "--tp", "4")
        file = "model-rank-%d-part-0.safetensors"
        norm, qkv_name = "model.norm.weight", BLOCK % 0 + "self_attn.qkv_proj.weight"

        def edit(rank, change):
            def run(at):
                tensors = read(at(file % rank))
                change(tensors)
                write_safetensors(at(file % rank), tensors)
            return run

        self.damaged("has files of rank 3, and no tensor of rank 1", lambda at: os.remove(at(file % 1)))
        self.damaged("are files of ranks missing?", lambda at: [os.remove(at(file % r)) for r in (2, 3)])
        self.damaged("tensors of rank 0 and", edit(2, lambda t: t.pop(norm)))
        self.damaged("'%s': rank 0 has it, and rank 2 does not" % norm, edit(2, lambda t: t.update(x=t.pop(norm))))
        self.damaged("'%s': is bfloat16" % qkv_name, edit(3, lambda t: t.update({qkv_name: take(t[qkv_name], 0, 1)})))
        for r in (0, 1):
            self.damaged("model-rank-%d-part-1.safetensors: tensor '%s' is in two places of rank %d's" % (r, norm, r),
                         lambda at: write_safetensors(at("model-rank-%d-part-1.safetensors" % r), {norm: hub[norm]}))
        self.damaged("along dimension 0 in the files of rank 0 of 1, which config.json contradicts",
                     lambda at: [os.remove(at(file % r)) for r in (1, 2, 3)])
        self.damaged("has no config.json", lambda at: os.remove(at("config.json")))
        self.damaged("'x.weight': is no weight that vLLM holds of an unquantized llama",
                     lambda at: [edit(r, lambda t: t.update({"x.weight": ONE}))(at) for r in range(4)])

    def spread_experts(self, rng):
        """Ranks that do not divide the experts; one that has others than the rest."""
        config, hub = model(rng, "qwen3_moe", heads=(4, 4))
        config["num_experts"] = 5
        for n in range(2):
            of = [t for name, t in hub.items() if name.startswith(BLOCK % n + "mlp.experts.0.")]
            for e in range(5):
                hub.update({BLOCK % n + "mlp.experts.%d.%s.weight" % (e, leaf): t
                            for leaf, t in zip(("gate_proj", "up_proj", "down_proj"), of)})
            hub[BLOCK % n + "mlp.gate.weight"] = rows(rng, 5, config["hidden_size"])
        self.write("hub", config, hub)
        style = ["--style", "vllm-sharded", "--expert-parallel", "--tp"]
        self.good("export", "hub", "ranks", "-q", "--force", *style, "4")
        for r in range(4):
            if self.held_by("ranks", r) != rank_of(hub, config, 4, r, True):
                self.failures.append("5 experts: rank %d of 4" % r)
        self.good("export", "ranks", "back", "-q", "--force")
        self.same("5 experts back from 4 ranks", "back", hub)
        name = BLOCK % 0 + "mlp.experts.routed_experts.w2_weight"
        file = "model-rank-%d-part-0.safetensors"

        def swap(at):
            tensors = read(at(file % 1))
            tensors[name] = read(at(file % 0))[name]
            write_safetensors(at(file % 1), tensors)
        self.damaged("'%s': is bfloat16 [2" % name, swap)
        self.write("hub", *model(rng, "qwen3_moe", heads=(12, 12)))
        self.refused("experts cannot be spread over 6 ranks, each of which", "export", "hub", "no", *style, "6")
        self.write("hub", *model(rng, "llama", heads=(4, 4)))
        self.refused("0 experts cannot be spread over 2 ranks", "export", "hub", "no", *style, "2")
        self.refused("--expert-parallel has no effect without --tp", "export", "hub", "no", "--expert-parallel", code=2)

    def refusals(self, rng):
        style = ["--style", "vllm-sharded", "--tp"]
        config, hub = model(rng, "llama", heads=(6, 3))
        config["vocab_size"] = 70
        hub["model.embed_tokens.weight"] = hub["lm_head.weight"] = rows(rng, 70, config["hidden_size"])
        self.write("hub", config, hub)
        self.refused("hub/config.json: 6 attention heads and 3 of k and v cannot be divided among 4 ranks", "export",
                     "hub", "no", *style, "4")
        self.refused("6 attention heads and 3 of k and v cannot be divided among 2 ranks", "export", "hub", "no",
                     *style, "2")
        self.refused("a vocabulary of 70, padded to 128, cannot be divided among 3 ranks", "export", "hub", "no",
                     *style, "3")
        self.write("other", *model(rng, "qwen3_next"))
        self.refused("model_type 'qwen3_next' is none whose weights are known by ranks of vLLM; known are llama,",
                     "export", "other", "no", *style, "1")
        other = dict(hub, **{"model.extra.weight": hub["model.norm.weight"]})
        self.write("extra", config, other)
        self.refused("'model.extra.weight': is no weight that vLLM holds", "export", "extra", "no", *style, "1")
        scale = dict(hub, **{BLOCK % 0 + "self_attn.o_proj.weight_scale_inv": ("F32", [1, 1], bytes(4))})
        self.write("quantized", config, scale)
        self.refused("o_proj.weight_scale_inv", "export", "quantized", "no", *style, "1")
        tall = dict(hub, **{"model.embed_tokens.weight": rows(rng, 71, config["hidden_size"])})
        self.write("tall", config, tall)  # than config.json says
        self.refused("'model.embed_tokens.weight': 71 elements along dimension 0", "export", "tall", "no", *style, "1")
        self.refused("is one file; --style vllm-sharded --tp N writes a folder", "export", "hub",
                     "no.safetensors", *style, "1", code=2)
        self.refused("--tp has no effect without --style", "export", "hub", "no", "--tp", "2", code=2)
        self.refused("--style has no effect without --tp", "export", "hub", "no", "--style", "vllm-sharded", code=2)


def main():
    rng = random.Random(23)
    with tempfile.TemporaryDirectory(prefix="fsdpck-vllm-") as folder:
        test = Ranks(sys.argv[1], folder)
        for family in DENSE + MIXTURES:
            test.family(rng, family)
        test.sources(rng)
        test.spread_experts(rng)
        test.refusals(rng)
    print("\n".join(test.failures[:20]) or "vllm_ranks: ranks have what vLLM loads, and give the model back")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
