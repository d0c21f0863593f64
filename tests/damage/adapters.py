#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters and bases that do not fit, lie or try to cost: each is refused with one line that names file, tensor and
reason, in little memory.

usage: adapters.py BINARY
"""
import json
import os
import shutil
import sys

from harness import SANITIZED, run_checks, write, write_safetensors

A, B = "base_model.model.l.0.q.lora_A.weight", "base_model.model.l.0.q.lora_B.weight"
GOOD = {A: ("F32", [2, 8], 4), B: ("F32", [6, 2], 4)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"]}
BASE = {"l.0.q.weight": ("BF16", [6, 8], 2), "norm.weight": ("BF16", [8], 2)}
HOSTILE = "(" + "|".join(["(q*)*"] * 60) + ")*"

TENSORS = [  # what, tensors, what the refusal says
    ("A without B", {A: GOOD[A]}, "lora_A"),
    ("B without A", {B: GOOD[B]}, "lora_B"),
    ("ranks that differ", {A: GOOD[A], B: ("F32", [6, 3], 4)}, "ranks 3 and 2"),
    ("A of one dimension", {A: ("F32", [16], 4), B: GOOD[B]}, A),
    ("A of three dimensions", {A: ("F32", [2, 8, 1], 4), B: GOOD[B]}, A),
    ("A of no dimension", {A: ("F32", [], 4), B: GOOD[B]}, A),
    ("a rank of 0", {A: ("F32", [0, 8], 4), B: ("F32", [6, 0], 4)}, A),
    ("no inputs", {A: ("F32", [2, 0], 4), B: GOOD[B]}, A),
    ("integers", {A: ("I32", [2, 8], 4), B: GOOD[B]}, "int32"),
    ("another rank than r", {A: ("F32", [4, 8], 4), B: ("F32", [6, 4], 4)}, "adapter_config.json says 2"),
    ("a kind that nobody knows", {**GOOD, A.replace("lora_A", "lora_Z"): ("F32", [2, 8], 4)}, "lora_Z"),
    ("twice the same", {**GOOD, "l.0.q.lora_A.weight": ("F32", [2, 8], 4)}, "two of it"),
    ("no adapter", {"x": ("F32", [2], 4)}, "none of the 1 tensor"),
]
CONFIGS = [  # what, text or changed keys, what the refusal says
    ("not JSON", "{", ""),
    ("a list", "[]", ""),
    ("nested 100,000 deep", '{"r":' * 100000, ""),
    ("a key twice", '{"r":2,"r":2}', ""),
    ("another method", {"peft_type": "IA3"}, "IA3"),
    ("a rank that is text", {"r": "two"}, "r"),
    ("a rank below 0", {"r": -1}, "r"),
    ("a rank beyond 64 bits", '{"peft_type":"LORA","r":99999999999999999999,"lora_alpha":4}', ""),
    ("an alpha beyond a double", '{"peft_type":"LORA","r":2,"lora_alpha":1e999}', ""),
    ("an alpha that is no number", '{"peft_type":"LORA","r":2,"lora_alpha":NaN}', ""),
    ("an alpha that is text", {"lora_alpha": "4"}, "lora_alpha"),
    ("patterns that are a list", {"rank_pattern": [1]}, "rank_pattern"),
    ("an alpha pattern of text", {"alpha_pattern": {"q": "4"}}, "alpha_pattern"),
    ("a pattern that costs", {"rank_pattern": {HOSTILE: 2}}, None),
    ("a pattern that looks back", {"rank_pattern": {"(q)\\1": 2}}, None),
    ("a megabyte of targets", {"target_modules": ["x" * 1000] * 1000}, None),
]
BASES = [
    ("another shape", {"l.0.q.weight": ("BF16", [6, 9], 2)}, "does not fit the base's 'l.0.q.weight' [6, 9]"),
    ("turned", {"l.0.q.weight": ("BF16", [8, 6], 2)}, "fan_in_fan_out"),
    ("of one dimension", {"l.0.q.weight": ("BF16", [48], 2)}, "does not fit"),
    ("integers", {"l.0.q.weight": ("I8", [6, 8], 1)}, "int8; float32, float16 and bfloat16"),
    ("doubles", {"l.0.q.weight": ("F64", [6, 8], 8)}, "float64; float32"),
    ("without the layer", {"l.1.q.weight": ("BF16", [6, 8], 2)}, "no tensor 'l.0.q.weight'"),
]


class Adapters:
    def __init__(self, t):
        self.t = t
        self.base, self.adapter = t.path("base.safetensors"), t.path("adapter")
        write_safetensors(self.base, BASE, byte=0)
        self.put(GOOD, CONFIG)
        t.good("merge-lora", self.base, self.adapter, t.path("out"))
        shutil.rmtree(t.path("out"))

    def put(self, tensors, config):
        """Small numbers: no NaN among them."""
        shutil.rmtree(self.adapter, ignore_errors=True)
        write_safetensors(self.adapter + "/adapter_model.safetensors", tensors, byte=0)
        write(self.adapter + "/adapter_config.json",
              (config if isinstance(config, str) else json.dumps(config)).encode())

    def refused(self, what, say, *verbs):
        for verb in verbs or (
            ["merge-lora", self.base, self.adapter, self.t.path("no")],
            ["export-lora", self.adapter, self.t.path("no")],
        ):
            self.t.refused("%s: %s" % (what, verb[0]), *verb, saying=say)
            self.t.check(not os.path.exists(self.t.path("no")), "%s: %s leaves nothing" % (what, verb[0]))


def check_all(t):
    a = Adapters(t)
    for what, tensors, say in TENSORS:
        a.put(tensors, CONFIG)
        a.refused(what, say)
    for what, config, say in CONFIGS:
        a.put(GOOD, config if isinstance(config, str) else {**CONFIG, **config})
        if say is not None:
            a.refused("a configuration: " + what, say)
            continue
        r = t.run("export-lora", a.adapter, t.path("no"))
        t.check(r.status in (0, 3) and (SANITIZED or r.rss < 64 << 20),
                "a configuration: %s: taken or refused, at little cost" % what, r)
        shutil.rmtree(t.path("no"), ignore_errors=True)
    a.put(GOOD, CONFIG)
    for what, base, say in BASES:
        write_safetensors(a.base, {**base, "norm.weight": BASE["norm.weight"]}, byte=0)
        a.refused("a base: " + what, say, ["merge-lora", a.base, a.adapter, t.path("no")])


if __name__ == "__main__":
    sys.exit(run_checks(check_all))
