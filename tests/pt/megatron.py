#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core adds to .metadata classes of its own, the plans of the save, and tensors in shapes of its own making.

A file of torch.save may hold a tied head and embedding once.

usage: megatron.py BINARY
"""
import json
import struct
import sys

from harness import run_checks, write
from packed import METADATA, NAME, item, metadata
from torch_save import Pickle, archive

MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
PLANNER = "torch.distributed.checkpoint.planner"


def plans(p, plan):
    """A list of one save plan with one item of one tensor."""
    p.text("all_local_plans").raw(b"](").name(*plan).raw(b")\x81}(").text("items").raw(b"](").name(
        PLANNER, "WriteItem"
    ).raw(b")\x81}(")
    p.text("index").name(METADATA, "MetadataIndex").raw(b")\x81}(").text("fqn").text("w").text("offset").raw(b"N").text(
        "index"
    ).int(0).raw(b"ub")
    p.text("type").name(PLANNER, "WriteItemType").int(1).raw(b"\x85R").text("bytes_io_data").raw(b"N")
    p.text("tensor_data").name(PLANNER, "TensorWriteData").raw(b")\x81}(").text("chunk").raw(b"Nub").raw(b"ube")
    return p.text("storage_data").raw(b"N").text("planner_data").raw(b"N").raw(b"ube")


def directory(t, root, plan, reshaped=None):
    data = item()
    document = metadata(streams=[("w", 0, len(data))], transforms=None)
    assert document.endswith(b"Nub."), document
    p = Pickle()
    p.b = document[:-3].replace(("c%s\nMetadata\n" % METADATA).encode(), ("c%s\n%s\n" % root).encode(), 1)
    plans(p, plan)
    p.text("mcore_data").raw(b"}(")
    if reshaped:
        p.text(reshaped).raw(b"}").text("nd_reformulated_orig_global_shape").ints(20, 2).raw(b"s")
    write(t.path("megatron", ".metadata"), p.raw(b"uub.").b)
    write(t.path("megatron", NAME), data)
    return t.path("megatron")


def check_classes(t):
    for root in (METADATA, "Metadata"), (MEGATRON, "MCoreMetadata"):
        for plan in (PLANNER, "SavePlan"), (MEGATRON, "MCoreSavePlan"):
            at = directory(t, root, plan)
            r = t.good("cat", at, "w", "--slice", "9")
            t.check(r.out.split() == ["[37.", "38.", "39.", "40.]"], "%s with %s is read" % (root[1], plan[1]), r)
            t.good("verify", at)
    at = directory(t, (MEGATRON, "MCoreMetadata"), (MEGATRON, "MCoreSavePlan"), "w")
    r = t.good("ls", at)
    t.check("left out" in r.err and "'w'" in r.err and "0 tensors" in r.out,
            "a tensor in a shape of Megatron's is left out, and that is said", r)
    at = directory(t, (MEGATRON, "MCoreMetadata"), (MEGATRON, "SomethingElse"))
    t.refused("a class that nobody knows", "ls", at, saying="SomethingElse")


LAYER = {
    "self_attention.linear_qkv.weight": (6, 2),
    "self_attention.linear_qkv.layer_norm_weight": (2,),
    "self_attention.linear_proj.weight": (2, 2),
    "mlp.linear_fc1.layer_norm_weight": (2,),
    "mlp.linear_fc1.weight": (6, 2),
    "mlp.linear_fc2.weight": (2, 3),
}
CONFIG = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 2, "vocab_size": 3, "num_attention_heads": 1,
          "num_key_value_heads": 1}


def shared_head():
    """A model of one layer, whose head is the embedding's storage."""
    p, storages = Pickle().raw(b"}("), {}
    shapes = {"embedding.word_embeddings.weight": (3, 2), "output_layer.weight": (3, 2),
              "decoder.final_layernorm.weight": (2,), **{"decoder.layers.0." + n: s for n, s in LAYER.items()}}
    for name, shape in shapes.items():
        key = "0" if name.startswith("output") else str(len(storages))
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        n = shape[0] * stride[0]
        storages[key] = struct.pack("<%df" % n, *range(1, n + 1))
        p.text(name).tensor(key, n, 0, shape, stride)
    return archive(p.raw(b"u").end(), storages)


def check_shared(t):
    write(t.path("shared.pt"), shared_head())
    write(t.path("assets", "config.json"), json.dumps(CONFIG).encode())
    at = t.path("shared.safetensors")
    t.good("export", t.path("shared.pt"), at, "--names", "hf", "--assets", t.path("assets"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        r = t.good("cat", at, name)
        t.check(r.out.split() == "[[1. 2.] [3. 4.] [5. 6.]]".split(), "'%s' of a tied model is read" % name, r)


if __name__ == "__main__":
    sys.exit(run_checks(check_classes, check_shared))
