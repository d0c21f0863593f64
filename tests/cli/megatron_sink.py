#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron_sink.py BINARY: convert --names megatron gives the tensors, bytes and items that Megatron-core saves of the
same weights, for random models of every family and for a checkpoint of Megatron-core; and what cannot be so held is
refused by name."""
import json
import os
import random
import subprocess
import sys
import tempfile
import zipfile

import megatron_models as models
from doctor_folders import read
from harness import fixtures
from run_cases import write_safetensors

FIXTURE = os.path.join(fixtures(), "megatron", "moe")


class Sink:
    def __init__(self, binary, at):
        self.binary, self.hub, self.out = binary, os.path.join(at, "hub"), os.path.join(at, "out")
        self.plain = os.path.join(at, "plain.safetensors")
        os.mkdir(self.hub)

    def run(self, *args):
        p = subprocess.run([self.binary, *args], capture_output=True, text=True, timeout=120)
        return p.returncode, p.stdout + p.stderr

    def put(self, config, tensors):
        write_safetensors(os.path.join(self.hub, "model.safetensors"), tensors)
        with open(os.path.join(self.hub, "config.json"), "w") as f:
            json.dump(config, f)

    def convert(self, nranks=1):
        return self.run("convert", self.hub, self.out, "--force", "-q", "--names", "megatron", "--ranks", str(nranks))

    def tensors(self, source, *more):
        code, said = self.run("export", source, self.plain, "--force", "-q", *more)
        assert code == 0, said
        return read(self.plain)

    def items(self, source):
        code, said = self.run("ls", source, "--json")
        assert code == 0, said
        return sorted(i["name"] for i in json.loads(said)["items"])


def as_saved(config, family, megatron):
    """As Megatron-core saves it: layers are a dimension only where all are alike, and nothing is padded here."""
    alike = len({models.is_routed(config, family, i) for i in range(models.NLAYERS)}) == 1
    for name in list(megatron) if not alike else ():
        if name.startswith("decoder.layers.") and not name[len("decoder.layers.")].isdigit():
            dtype, shape, data = megatron.pop(name)
            step = len(data) // models.NLAYERS
            for i in range(models.NLAYERS):
                megatron[name.replace("layers.", "layers.%d." % i, 1)] = (dtype, shape[1:],
                                                                         data[i * step:(i + 1) * step])
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if name in megatron:
            megatron[name] = models.cut(megatron[name], 0, models.VOCAB)
    # The names of Transformer Engine, where the models have those of the local layers.
    return {n.replace("self_attention.q_layernorm", "self_attention.linear_q_up_proj.layer_norm")
            .replace("layer_norm.weight", "layer_norm_weight") if "deepseek" in family else n: t
            for n, t in megatron.items()}


def check_family(s, rng, family):
    config, hub, megatron = models.make(rng, family, "axes")
    s.put(config, hub)
    code, said = s.convert(rng.randint(1, 4))
    assert code == 0, (family, said)
    found, wanted = s.tensors(s.out), as_saved(config, family, megatron)
    assert sorted(found) == sorted(wanted), (family, set(found) ^ set(wanted))
    wrong = [n for n in found if found[n] != wanted[n]]
    assert not wrong, (family, wrong)
    assert s.tensors(s.out, "--names", "hf") == hub, family
    copies = {n for n in hub if n.endswith((".embed_tokens.weight", ".shared_head.head.weight"))}
    name = rng.choice(sorted(set(hub) - copies))
    s.put(config, {n: t for n, t in hub.items() if n != name})
    code, said = s.convert()
    assert code == 3 and name in said and "is missing" in said, (family, name, said)


def check_golden(s):
    """Megatron-core's own checkpoint: it has the norms in float32, and the local layers' name of one."""
    source = os.path.join(FIXTURE, "iter_0000007")
    code, said = s.run("export", source, s.hub, "--force", "-q", "--names", "hf", "--assets", FIXTURE)
    assert code == 0, said
    code, said = s.convert(2)
    assert code == 0, said
    found = {n.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"): t for n, t in s.tensors(s.out).items()}
    assert found == s.tensors(source), set(found) ^ set(s.tensors(source))
    assert s.items(s.out) == s.items(source)
    with open(os.path.join(s.out, "metadata.json")) as ours, open(os.path.join(source, "metadata.json")) as theirs:
        assert json.load(ours) == json.load(theirs)
    with zipfile.ZipFile(os.path.join(s.out, "common.pt")) as z:
        pickle = [z.read(n) for n in z.namelist() if n.endswith("/data.pkl")][0]
        assert z.testzip() is None and b"checkpoint_version" in pickle and b"singleton_local_shards\x89" in pickle
    code, said = s.run("verify", s.out)
    assert code == 0, said
    code, said = s.convert()  # its own files may be replaced
    assert code == 0, said


def check_refused(s, rng):
    config, hub, _ = models.make(rng, "qwen3", "axes")
    q, gate, mtp = ("model.layers.%s.weight" % n for n in ("0.self_attn.q_proj", "1.mlp.gate_proj", "3.eh_proj"))
    wider = dict(hub, **{gate: models.rows(rng, models.INTER + 1, models.HIDDEN)})
    other = dict(hub, **{gate: ("F32", hub[gate][1], bytes(2 * len(hub[gate][2])))})
    cases = [
        (config, dict(hub, **{mtp: models.rows(rng, 2, 2)}), mtp,
         "is of layer 3, and config.json names %d layers" % config["num_hidden_layers"]),
        (config, wider, "1.mlp.up_proj", "has not as many rows as the gate beside it"),
        (config, other, gate, "its dtype or its columns differ"),
        (config, dict(hub, **{q: ("BF16", [0, models.HIDDEN], b"")}), q, "has no elements"),
        (dict(config, num_attention_heads=12), hub, q, "have no rows for the heads"),
        (dict(config, model_type="gpt2"), hub, "gpt2", "known are llama"),
    ]
    for changed, tensors, name, words in cases:
        s.put(changed, tensors)
        code, said = s.convert()
        assert code == 3 and name in said and words in said, (words, code, said)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rng = random.Random(int(os.environ.get("SEED", "22")))
    with tempfile.TemporaryDirectory(prefix="fsdpck-megatron-") as at:
        s = Sink(os.path.abspath(sys.argv[1]), at)
        check_golden(s)
        for family in models.FAMILIES:
            check_family(s, rng, family)
        check_refused(s, rng)
    print("%d families" % len(models.FAMILIES))


if __name__ == "__main__":
    main()
