#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron_families.py BINARY: random models of every family, as Megatron-core holds them, are the published models
with --names hf; and a model that lacks a weight, or has one that its config.json denies, is refused by name."""
import json
import os
import random
import subprocess
import sys
import tempfile

import megatron_models as models
from doctor_folders import read
from run_cases import write_safetensors


class Model:
    def __init__(self, binary, at, rng, family, kind):
        self.binary, self.at, self.family, self.kind = binary, at, family, kind
        self.config, self.hub, self.megatron = models.make(rng, family, kind)

    def export(self, tensors=None, more=(), **changes):
        source, out = os.path.join(self.at, "model.safetensors"), os.path.join(self.at, "out.safetensors")
        write_safetensors(source, self.megatron if tensors is None else tensors)
        with open(os.path.join(self.at, "config.json"), "w") as f:
            json.dump(dict(self.config, **changes), f)
        p = subprocess.run([self.binary, "export", source, out, "--force", "-q", "--names", "hf", "--assets", self.at,
                            *more],
                           capture_output=True, text=True, timeout=120)
        return p.returncode, p.stderr, out

    def without(self, name):
        return self.export({n: t for n, t in self.megatron.items() if n != name})

    def refused(self, result, *words):
        code, said, _ = result
        assert code == 3 and all(w in said for w in words), (self.family, self.kind, words, code, said)


def check_values(m):
    code, said, out = m.export()
    assert code == 0, (m.family, m.kind, said)
    found = read(out)
    assert sorted(found) == sorted(m.hub), (m.family, m.kind, set(found) ^ set(m.hub))
    wrong = [n for n in found if found[n] != m.hub[n]]
    assert not wrong, (m.family, m.kind, wrong)


def check_optimizer(m):
    """States have the weights' layouts, whose bytes they are here, and are trees beside the model."""
    tensors = dict(m.megatron)
    for kind in ("fp32_param", "exp_avg", "exp_avg_sq"):
        tensors.update({"optimizer.state.%s.%s" % (kind, name): t for name, t in m.megatron.items()})
    tensors["optimizer.state.step"] = ("F32", [1], bytes(4))
    for tree, form in (("master", "%s"), ("optim", "state.%s.exp_avg_sq"), (None, "%s")):
        code, said, out = m.export(tensors, ("--select", tree) if tree else ())
        assert code == 0, (m.family, m.kind, tree, said)
        found = read(out)
        wanted = {form % name: t for name, t in m.hub.items()}
        if tree:  # copies in layers for multi-token prediction have no state
            copies = ("embed_tokens.weight", "shared_head.head.weight")
            wanted = {n: t for n, t in wanted.items() if ".layers." not in n or not any(c in n for c in copies)}
        wrong = [n for n in wanted if found.get(n) != wanted[n]]
        assert not wrong and len(found) == len(wanted) * (2 if tree == "optim" else 1), (m.family, m.kind, tree, wrong)


def check_missing(m, rng):
    """Every tensor is wanted; each is left out once in the families with all kinds of them, one in the others."""
    names = [n for n in m.megatron if n != "embedding.word_embeddings.weight"]
    for name in names if m.family in ("deepseek_v3", "qwen2_moe") else rng.sample(names, 2):
        m.refused(m.without(name), "is missing: Megatron's '")


def check_contradictions(m):
    """A weight that the family lacks; biases that config.json does not state."""
    more = dict(m.megatron, **{"decoder.layers.0.mlp.linear_fc1.bias": ("BF16", [2], bytes(4))})
    m.refused(m.export(more), "decoder.layers.0.mlp.linear_fc1.bias", "has no place")
    if m.family == "llama":
        m.refused(m.export(attention_bias=False), "bias", "has no place")
    if m.family in models.NMTP:
        m.refused(m.export(num_nextn_predict_layers=0), "mtp.layers.", "a layer beyond num_nextn_predict_layers")
        m.refused(m.export(num_nextn_predict_layers=3), "is missing: Megatron's '")
        m.refused(m.export(num_nextn_predict_layers=10**5), "states more than 10000 layers")
    if m.family == "qwen3_moe":
        m.refused(m.export(mlp_only_layers=[]), "has no place")
        m.refused(m.export(mlp_only_layers=[10**5]), "states more than 10000 layers")
        m.refused(m.export(decoder_sparse_step=0), "decoder_sparse_step 0")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    seed = int(os.environ.get("SEED", "21"))
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fsdpck-megatron-") as at:
        for family in models.FAMILIES:
            for kind in models.KINDS:
                m = Model(os.path.abspath(sys.argv[1]), at, rng, family, kind)
                check_values(m)
                check_contradictions(m)
                check_optimizer(m)
                if kind == "numbers":
                    check_missing(m, rng)
    print("%d families, seed %d" % (len(models.FAMILIES), seed))


if __name__ == "__main__":
    main()
