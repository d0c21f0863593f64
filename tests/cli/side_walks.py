#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""side_walks.py BINARY: random models of every family go from side to side (hf, transformers, vllm, torchtitan,
megatron) and from sharding to sharding. At the end --names hf gives the published model. The first step reads no more
than a copy reads."""
import os
import random
import sys
import tempfile

import megatron_models
import parallel
import sides

# torchtitan's halves of narrow columns are read with what lies between them: sides.py has wide ones.
NARROW = ("llama4_text",)
TITAN = sides.TITAN_FAMILIES
STEPS = 3


def model(rng, family):
    """config.json and the published model."""
    if family in megatron_models.FAMILIES:
        return megatron_models.make(rng, family, "axes")[:2]
    while True:
        config, hub = parallel.model(rng, family)
        if family == "llama4_text":  # whose rows of q and k change places within heads
            config["head_dim"] = hub["model.layers.0.self_attn.q_proj.weight"][1][0] // config["num_attention_heads"]
        if config.get("head_dim", 2) % 2 == 0 and not any(n.endswith("_blocks") for n in hub):
            return config, hub


class Walks(sides.Sides):
    def step(self, family, source, side, layout):
        """Returns the folder that is made."""
        out = "b" if source == "a" else "a"
        to = ["convert", source, out, "--names", side, "--assets", "hub", *layout]
        if source != "hub":  # of a shard whole blocks are read, to be checked
            self.good(*to, "-q", "--force")
            return out
        plain, read = self.cost("convert", source, out, *layout), self.cost(*to)
        if read > plain and not (family in NARROW and side == "torchtitan"):
            self.failures.append("%s: %s reads %d bytes, a copy %d" % (family, side, read, plain))
        return out

    def walk(self, rng, family):
        config, hub = model(rng, family)
        self.write("hub", config, hub)
        known = ["hf", "transformers", "vllm"] + ["torchtitan"] * (config["model_type"] in TITAN) + [
            "megatron"] * (family in megatron_models.FAMILIES)
        path, at = [rng.choice(known) for _ in range(STEPS)], "hub"
        for side in path:
            at = self.step(family, at, side, rng.choice([["--ranks", "1"], ["--ranks", "3"]]))
        self.good("export", at, "back", "-q", "--force", "--names", "hf", "--assets", "hub")
        self.same("%s by %s" % (family, ", ".join(path)), "back", hub)


def main():
    seed = int(os.environ.get("SEED", "31"))
    families = dict.fromkeys(megatron_models.FAMILIES + parallel.MIXTURES + parallel.FUSED + ("qwen3_next",))
    with tempfile.TemporaryDirectory(prefix="fsdpck-walks-") as folder:
        test = Walks(sys.argv[1], folder)
        for family in families:
            for n in range(2):
                test.walk(random.Random("%d %s %d" % (seed, family, n)), family)
    print("\n".join(test.failures) or "side_walks: every walk ends where it began")
    return bool(test.failures)


if __name__ == "__main__":
    sys.exit(main())
