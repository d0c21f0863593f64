#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core adds to .metadata classes of its own, the plans of the save, and tensors in shapes of its own making.

usage: megatron.py BINARY
"""
import sys

from harness import run_checks, write
from packed import METADATA, NAME, item, metadata
from torch_save import Pickle

MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
PLANNER = "torch.distributed.checkpoint.planner"


def plans(p, plan):
    """A list of one save plan with one item of one tensor."""
    p.text("all_local_plans").raw(b"](").name(*plan).raw(b")\x81}(").text("items").raw(b"](").name(PLANNER, "WriteItem").raw(b")\x81}(")
    p.text("index").name(METADATA, "MetadataIndex").raw(b")\x81}(").text("fqn").text("w").text("offset").raw(b"N").text("index").int(0).raw(b"ub")
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
    t.check("left out" in r.err and "'w'" in r.err and "0 tensors" in r.out, "a tensor in a shape of Megatron's is left out, and that is said", r)
    at = directory(t, (MEGATRON, "MCoreMetadata"), (MEGATRON, "SomethingElse"))
    t.refused("a class that nobody knows", "ls", at, saying="SomethingElse")


if __name__ == "__main__":
    sys.exit(run_checks(check_classes))
