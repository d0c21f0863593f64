#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""experts.py BINARY: --names hf and transformers on models of fixtures/moe, which transformers wrote: published as one
tensor an expert, held fused. Both ways, through any sharding; a read costs no more than without --names; averaged and
quantized under the new names as under the old ones. And models that contradict their config.json are refused by the
tensor's name."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from harness import fixtures
from run_cases import write_safetensors

from average import read

MOE = os.path.join(fixtures(), "moe")
LAYOUTS = (["--ranks", "1"], ["--ranks", "3"], ["--ranks", "2", "--compress"],
           ["--mesh", "dp=2,ep=2", "--placement", "*experts.down_proj=shard(2)@ep"],
           ["--mesh", "dp=2,ep=2", "--placement", "*experts.gate_up_proj=shard(1)@ep"])


FUSED = ("gpt_oss", "llama4_text", "qwen3_5_moe_text")  # as published too


class Test:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.failures = os.path.abspath(binary), folder, []

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, *args):
        p = subprocess.run([self.binary, *args], cwd=self.folder, capture_output=True, text=True, timeout=300)
        return p.returncode, p.stdout, p.stderr

    def good(self, *args):
        code, out, err = self.run(*args)
        if code:
            sys.exit("experts.py: %s: exit %d: %s" % (" ".join(args), code, err))
        return out

    def same(self, what, path, want):
        got = read(self.at(path, "model.safetensors"))
        if got != want:
            names = sorted(n for n in set(got) | set(want) if got.get(n) != want.get(n))
            self.failures.append("%s: %s differ: %s" % (what, path, names[:4]))

    def cost(self, *args):
        return json.loads(self.good(*args, "-q", "--json", "--force"))["read_bytes"]

    def family(self, family):
        hub, held = read(os.path.join(MOE, family, "hub", "model.safetensors")), read(
            os.path.join(MOE, family, "memory.safetensors"))
        held = dict({n: t for n, t in hub.items() if n.startswith(("mtp.", "model.layers.2."))}, **held)
        source = os.path.join(MOE, family, "hub")
        plain = self.cost("export", source, "fused")
        if self.cost("export", source, "fused", "--names", "transformers") != plain:
            self.failures.append("%s: fusing reads other bytes than copying" % family)
        self.same(family, "fused", held)
        if self.cost("export", "fused", "back", "--names", "hf") != plain:
            self.failures.append("%s: cutting reads other bytes than copying" % family)
        self.same(family, "back", hub)
        for layout in LAYOUTS[:3]:
            self.good("convert", source, "single", "-q", "--force", *layout)
            self.good("export", "single", "fused-too", "-q", "--force", "--names", "transformers")
            self.same("%s from %s" % (family, layout), "fused-too", held)
        for layout in LAYOUTS:
            self.good("convert", source, "shards", "-q", "--force", "--names", "transformers", *layout)
            self.good("verify", "shards", "-q")
            self.good("export", "shards", "back", "-q", "--force", "--names", "hf")
            self.same("%s through %s" % (family, layout), "back", hub)
        for verb in (["diff", source, "fused"], ["diff", "fused", source]):
            if not self.good(*verb, "--names", "hf").count("equal, %d tensors" % len(hub)):
                self.failures.append("%s: %s finds differences" % (family, verb))
        note = self.run("export", "fused", "again", "--force", "--names", "transformers")[2]
        if "called so already" not in note:
            self.failures.append("%s: no note that nothing changes: %s" % (family, note))
        self.same(family, "again", held)

    def views(self, family):
        """Averages and quantized weights are computed from experts that --names has stacked or cut."""
        source = os.path.join(MOE, family, "hub")
        left_out = ["--exclude", "model.norm.weight", "--exclude", "*layers.0*"]  # so that ordinals move
        self.good("export", source, "fused", "-q", "--force", "--names", "transformers")
        self.good("average", source, source, "mean", "-q", "--force", "--names", "transformers", *left_out)
        self.good("export", "fused", "some", "-q", "--force", *left_out)
        self.same("mean of %s" % family, "mean", read(self.at("some", "model.safetensors")))
        for form in ("nf4", "fp8-block", "nvfp4") if family not in FUSED else ():
            down = "*.w2.*" if family == "mixtral" else "*down_proj*"  # NVFP4 has no place for their rows
            keep = ["--keep", down] if form == "nvfp4" else []
            self.good("export", source, "direct", "-q", "--force", "--quantize", form, *keep)
            self.good("export", "fused", "cut", "-q", "--force", "--names", "hf", "--quantize", form, *keep)
            self.same("%s in %s" % (family, form), "cut", read(self.at("direct", "model.safetensors")))
            self.good("export", "direct", "plain", "-q", "--force", "--dequantize", "bf16")
            self.good("export", "plain", "fused-after", "-q", "--force", "--names", "transformers")
            for layout in LAYOUTS[:2]:
                self.good("convert", "direct", "shards", "-q", "--force", *layout)
                self.good("export", "shards", "fused-too", "-q", "--force", "--dequantize", "bf16", "--names",
                          "transformers", "--assets", "direct")
                self.same("%s dequantized from %s" % (family, form), "fused-too",
                          read(self.at("fused-after", "model.safetensors")))
        if family in ("mixtral", "gpt_oss"):  # besides its experts, no weight of the fixture is quantized
            return
        rest = ["--quantize", "nf4", "--keep", "*experts*"]
        self.good("export", "fused", "direct", "-q", "--force", *rest)
        self.good("export", source, "stacked", "-q", "--force", "--names", "transformers", *rest)
        self.same("%s in nf4 besides experts" % family, "stacked", read(self.at("direct", "model.safetensors")))

    def made(self):
        """transformers writes a Qwen3.5 that was made from a config one tensor an expert."""
        hub, cut = read(os.path.join(MOE, "qwen3_5_moe_text", "hub", "model.safetensors")), {}
        for name, (dtype, shape, data) in hub.items():
            module, _, leaf = name.rpartition(".")
            if not module.endswith(".mlp.experts") or module.startswith("mtp."):
                cut[name] = (dtype, shape, data)
                continue
            parts = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
            each = len(data) // shape[0] // len(parts)
            for i in range(shape[0] * len(parts)):
                cut["%s.%d.%s.weight" % (module, i // len(parts), parts[i % len(parts)])] = (
                    dtype, [shape[1] // len(parts), shape[2]], data[i * each:][:each])
        shutil.rmtree(self.at("cut"), ignore_errors=True)
        shutil.copytree(os.path.join(MOE, "qwen3_5_moe_text", "hub"), self.at("cut"))
        write_safetensors(self.at("cut", "model.safetensors"), cut)
        for names in ("hf", "transformers"):
            self.good("export", "cut", "as-published", "-q", "--force", "--names", names)
            self.same("Qwen3.5 from single experts", "as-published", hub)

    def blocks(self):
        """Experts in FP8 are fused and cut with the scales of their blocks, where none holds rows of gate and up."""
        expert = "model.layers.0.mlp.experts.%d.%s_proj.weight"
        for hidden, inter in ((130, 128), (136, 24)):
            shapes = {"gate": [inter, hidden], "up": [inter, hidden], "down": [hidden, inter]}
            tensors = {expert % (e, p): ("BF16", shape, random.randbytes(2 * hidden * inter))
                       for e in range(3) for p, shape in shapes.items()}
            os.makedirs(self.at("large"), exist_ok=True)
            write_safetensors(self.at("large", "model.safetensors"), {
                n: (t[0], t[1], bytes(b & 0x3f for b in t[2])) for n, t in tensors.items()})
            with open(self.at("large", "config.json"), "w") as f:
                json.dump({"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 3, "hidden_size": hidden,
                           "moe_intermediate_size": inter}, f)
            self.good("export", "large", "fp8", "-q", "--force", "--quantize", "fp8-block")
            if inter == 128:
                self.fused_blocks()
        scale = expert % (0, "gate") + "_scale_inv"
        self.wanted("'%s': has blocks of 128 rows, which do not divide the 24 rows of gate" % scale,
                    *self.run("export", "fp8", "no", "--names", "transformers"))

    def fused_blocks(self):
        plain = self.cost("export", "fp8", "fused")
        if self.cost("export", "fp8", "fused", "--names", "transformers") != plain:
            self.failures.append("FP8: fusing reads other bytes than copying")
        within = "model.layers.0.mlp.experts."
        found = {n: t[1] for n, t in read(self.at("fused", "model.safetensors")).items() if n.endswith("_scale_inv")}
        if found != {within + "gate_up_proj_scale_inv": [3, 2, 2], within + "down_proj_scale_inv": [3, 2, 1]}:
            self.failures.append("FP8: found scales %s" % found)
        single = read(self.at("fp8", "model.safetensors"))
        for layout in LAYOUTS[:3]:
            self.good("convert", "fused", "shards", "-q", "--force", *layout)
            self.good("export", "shards", "back", "-q", "--force", "--names", "hf", "--assets", "fused")
            self.same("FP8 through %s" % layout, "back", single)
        self.good("export", "fused", "values", "-q", "--force", "--dequantize", "bf16")
        self.good("export", "fp8", "direct", "-q", "--force", "--dequantize", "bf16", "--names", "transformers")
        self.same("FP8, dequantized after fusing", "values", read(self.at("direct", "model.safetensors")))
        gone = "model.layers.0.mlp.experts.1.up_proj.weight"
        for left_out, lacks in ((gone + "_scale_inv", gone + "_scale_inv"), (gone, gone)):
            shutil.copytree(self.at("fp8"), self.at("lacks"), dirs_exist_ok=True)
            write_safetensors(self.at("lacks", "model.safetensors"), {n: t for n, t in single.items() if n != left_out})
            self.wanted("'%s': is missing" % lacks, *self.run("export", "lacks", "no", "--names", "transformers"))

    def wanted(self, words, code, _, err):
        if code != 3 or words not in err or os.path.exists(self.at("no")):
            self.failures.append("wanted a refusal with %r, found exit %d: %s" % (words, code, err))

    def refused(self, words, change, config=None, names="transformers", fused=False):
        """change: of the tensors of qwen3_moe; words: in the error."""
        shutil.rmtree(self.at("bad"), ignore_errors=True)
        shutil.copytree(os.path.join(MOE, "qwen3_moe", "hub"), self.at("bad"))
        tensors = read(os.path.join(MOE, "qwen3_moe", "memory.safetensors" if fused else "hub/model.safetensors"))
        change(tensors)
        write_safetensors(self.at("bad", "model.safetensors"), tensors)
        with open(self.at("bad", "config.json")) as f:
            made = dict(json.load(f), **(config or {}))
        with open(self.at("bad", "config.json"), "w") as f:
            json.dump(made, f)
        self.wanted(words, *self.run("export", "bad", "no", "--names", names))

    def refusals(self):
        expert = "model.layers.1.mlp.experts.%d.%s.weight"
        gone, last = expert % (1, "up_proj"), expert % (2, "down_proj")
        self.refused("'%s': is missing; config.json says that layer 1 has 3 experts" % gone, lambda t: t.pop(gone))
        self.refused("'%s': is missing" % last, lambda t: t.pop(last))
        self.refused("is an expert beyond the 2 of config.json", lambda t: None,
                     {"num_local_experts": 2})
        self.refused("'%s': is missing" % (expert % (3, "gate_proj")), lambda t: None, {"num_local_experts": 4})
        up, down = "model.layers.%d.mlp.experts.gate_up_proj", "model.layers.%d.mlp.experts.down_proj"
        for name in (up % 1, down % 1):
            self.refused("'%s': is missing; config.json says that layer 1 has 3 experts" % name,
                         lambda t: t.pop(name), names="hf", fused=True)
        self.refused("'%s': is missing; config.json says that layer 0 has 3 experts" % (down % 0),
                     lambda t: t.update({up % 0: t[up % 1]}), names="hf", fused=True)
        self.refused("'%s': has shape [24, 8]; a qwen3_moe with the sizes of config.json has [24, 16]" % gone,
                     lambda t: t.update({gone: ("BF16", [24, 8], bytes(24 * 8 * 2))}))
        self.refused("'%s': is float32, and other experts of its layer are bfloat16" % gone,
                     lambda t: t.update({gone: ("F32", [24, 16], bytes(24 * 16 * 4))}))
        self.refused("is a part of experts that --names does not know in a qwen3_moe",
                     lambda t: t.update({gone + "_scale_inv": ("F32", [1, 1], bytes(4))}))
        both = ("BF16", [3, 48, 16], bytes(3 * 48 * 16 * 2))
        self.refused("is this model published, or as transformers has it in memory?",
                     lambda t: t.update({"model.layers.1.mlp.experts.gate_up_proj": both}))
        turned = ("BF16", [3, 16, 48], both[2])
        self.refused("'model.layers.1.mlp.experts.gate_up_proj': has shape [3, 16, 48]; a qwen3_moe",
                     lambda t: t.update({"model.layers.1.mlp.experts.gate_up_proj": turned}), names="hf", fused=True)
        self.refused("model_type 'unknown_moe' is no mixture of experts", lambda t: None, {"model_type": "unknown_moe"})
        self.refused("a qwen3_moe that is a part of another model is not known", lambda t: None,
                     {"text_config": {"num_experts": 3}})
        for other in ("llama4", "gpt_oss", "qwen3_5_moe"):
            text = {"num_hidden_layers": 2, "hidden_size": 16, "moe_intermediate_size": 24, "num_experts": 3,
                    "intermediate_size": 24}
            self.refused("model_type '%s' is published with all experts of a layer in one tensor" % other,
                         lambda t: t.update({"model.layers.0.feed_forward.experts.0.w1.weight": t[gone]}),
                         {"model_type": other, "text_config": text})
        self.refused("has shape [3, 16, 24]; a gpt_oss with the sizes of config.json has [3, 24, 16]: is this model "
                     "published, or were inputs and outputs of its experts swapped?", lambda t: None,
                     {"model_type": "gpt_oss", "intermediate_size": 24}, fused=True)
        self.refused("lacks a size of its experts", lambda t: None, {"hidden_size": None})
        self.refused("found no routed experts", lambda t: None, {"num_hidden_layers": 1})
        self.refused("is no weight of a Llama", lambda t: None, {"model_type": "glm4_moe"}, names="torchtitan")
        long = "model.layers.0.block_sparse_moe." + 600 * "x"
        self.refused("a name of %d bytes" % len(long),
                     lambda t: (t.clear(), t.update(read(os.path.join(MOE, "mixtral", "hub", "model.safetensors"))),
                                t.update({long: ("U8", [1], b"x")})),
                     json.load(open(os.path.join(MOE, "mixtral", "hub", "config.json"))))
        code, _, err = self.run("export", self.at("bad", "model.safetensors"), "no", "--names", "hf")
        if code != 3 or "has no config.json" not in err:
            self.failures.append("without config.json: exit %d: %s" % (code, err))


def main():
    random.seed(3)
    with tempfile.TemporaryDirectory(prefix="fsdpck-experts-") as folder:
        test = Test(sys.argv[1], folder)
        for family in sorted(os.listdir(MOE)):
            test.family(family)
            test.views(family)
        test.made()
        test.blocks()
        test.refusals()
    print("\n".join(test.failures) or "experts: both ways, through every sharding")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
