#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch saved, read by the tool: every tensor as the truth beside it says; sharded, exported and damaged.

usage: run.py BINARY
"""
import array
import os
import shutil
import struct
import sys

from harness import fixtures, read, run_checks, write
from torch_save import archive, one

TOP = os.path.join(os.path.abspath(fixtures()), "pt")
# What is read -> the truth, and what the tool cannot compare with it: complex128 and complex32 have no safetensors
# code, so the truth has bytes.
CASES = {
    "module/model.pt": "module", "bin_shards": "bin_shards", "views/views.pt": "views", "training/last.pt": "training",
    "protocols/p2.pt": "protocols", "protocols/p3.pt": "protocols", "protocols/p4.pt": "protocols",
    "protocols/p5.pt": "protocols", "aligned/aligned.pt": "aligned", "one_tensor/tensor.pt": "one_tensor",
    "one_tensor/parameter.pt": "one_tensor", "verl3": "verl3", "verl2x2": "verl2x2", "verl_tp": "verl_tp",
    "torch_checkpointing": "torch_checkpointing"
}


def check_values(t):
    for source, ref in CASES.items():
        path, truth = os.path.join(TOP, source), os.path.join(TOP, ref + ".safetensors")
        t.good("diff", path, truth, what="%s holds what torch saved" % source)
        t.good("verify", path, what="%s verifies" % source)
        out = t.path("sharded")
        t.good("convert", path, out, "--ranks", "3")
        t.good("verify", out)
        t.good("diff", out, truth, what="%s sharded holds what torch saved" % source)
        shutil.rmtree(out, ignore_errors=True)
    # A band of rows of a transposed tensor, with a budget far below the tensor.
    write(
        t.path("t.pt"),
        archive(
            one(numel=1 << 22, size=(2048, 2048), stride=(1, 2048)), {"0": array.array("f", range(1 << 22)).tobytes()}
        ),
    )
    t.good("convert", t.path("t.pt"), t.path("turned"), "--ranks", "2", "--memory", "8MiB")
    r = t.good("cat", t.path("turned"), "w", "--slice", "2047,0:3")
    t.check(r.out.split() == ["[2047.", "4095.", "6143.]"], "a transposed tensor is turned", r)


def check_names(t):
    r = t.good("ls", os.path.join(TOP, "training", "last.pt"))
    for name in ("optimizer.state.0.exp_avg", "list.1.0", "= model.emb.weight"):
        t.check(name in r.out, "ls of a trainer's checkpoint shows '%s'" % name, r)
    r = t.good("cat", os.path.join(TOP, "dtypes", "dtypes.pt"), "bool")
    t.check("True" in r.out, "bool", r)
    r = t.good("export", os.path.join(TOP, "verl_tp"), t.path("model.safetensors"))
    r = t.good("ls", t.path("model.safetensors"))
    t.check(
        "column" in r.out and "optim" not in r.out and "model." not in r.out.split("\n\n")[-1],
        "export takes the model tree of a rank set",
        r,
    )
    for folder, mesh, name, placement in (
        ("verl3", "fsdp=3", "model.embed.weight", "shard(0)"),
        ("verl2x2", "ddp=2,fsdp=2", "layers.0.w", "replicate, shard(0)"),
        ("verl_tp", "fsdp=2,tp=2", "model.column", "strided_shard(0,2), shard(0)"),
        ("verl_tp", "fsdp=4", "model.fused", "strided_shard(0,2)"),
        ("torch_checkpointing", "fsdp=3", "model.cols", "shard(1)"),
    ):
        lines = t.good("ls", os.path.join(TOP, folder)).out.splitlines()
        t.check(
            any(line.split() == ["mesh", mesh] for line in lines)
            and any(name in line and line.endswith("  " + placement) for line in lines),
            "ls of %s: %s is %s on %s" % (folder, name, placement, mesh), lines)
    write(t.path("big.pt"), archive(one(), {"0": struct.pack(">4f", 1, 2, 3, 4)}, byteorder=b"big"))
    r = t.good("cat", t.path("big.pt"), "w")
    t.check(r.out == "[[1. 2.]\n [3. 4.]]\n", "big-endian storages are turned round", r)
    t.good("reshard", os.path.join(TOP, "verl3"), t.path("two"), "--ranks", "2", "--force")


def check_folders(t):
    at = t.fresh(os.path.join(TOP, "bin_shards"), "bins")
    os.unlink(os.path.join(at, "pytorch_model-00002-of-00003.bin"))
    t.refused("a shard is missing", "ls", at, naming="pytorch_model-00002-of-00003.bin")
    at = t.fresh(os.path.join(TOP, "bin_shards"), "bins")
    shutil.copy(os.path.join(at, "pytorch_model-00001-of-00003.bin"),
                os.path.join(at, "pytorch_model-00002-of-00003.bin"))
    t.refused("a shard is another one's copy", "ls", at, saying="is listed twice", naming="layers.0.w")
    at = t.fresh(os.path.join(TOP, "bin_shards"), "bins")
    index = os.path.join(at, "pytorch_model.bin.index.json")
    write(index, read(index).replace(b'"layers.0.w": "pytorch_model-00001', b'"layers.0.w": "pytorch_model-00002'))
    t.refused("the index is wrong", "ls", at, saying="says that it lies elsewhere", naming="layers.0.w")
    write(index, read(index).replace(b'"layers.0.w"', b'"layers.9.w"'))
    t.refused("the index misses a name", "ls", at, saying="does not list it", naming="layers.0.w")
    at = t.fresh(os.path.join(TOP, "bin_shards"), "bins")
    write(index,
          read(index).replace(b'"weight_map": {', b'"weight_map": {"ghost": "pytorch_model-00001-of-00003.bin",'))
    t.refused("the index has a name too many", "ls", at, saying="which does not have it", naming="ghost")
    os.unlink(index)
    write(os.path.join(at, "training_args.bin"), b"not weights")
    t.good("diff", at, os.path.join(TOP, "bin_shards.safetensors"), what="without the index, all files count")


def check_ranks(t):
    name = "model_world_size_3_rank_%s.pt"
    def fresh():
        return t.fresh(os.path.join(TOP, "verl3"), "ranks")
    at = fresh()
    os.unlink(os.path.join(at, name % 1))
    t.refused("a rank is missing", "ls", at, saying="rank 1 is missing", naming=name % 1)
    at = fresh()
    shutil.copy(os.path.join(at, name % 0), os.path.join(at, name % 1))
    t.refused("a rank is another one's copy", "ls", at, saying="was saved by another rank", naming=name % 1)
    at = fresh()
    shutil.copy(os.path.join(at, name % 2), os.path.join(at, name % "02"))
    t.refused("a rank is there twice", "ls", at, saying="rank 2 twice", naming=name % "02")
    at = fresh()
    shutil.copy(os.path.join(at, name % 2), os.path.join(at, name % 7))
    t.refused("a rank is foreign", "ls", at, saying="no rank 7", naming=name % 7)
    at = fresh()
    shutil.copy(os.path.join(TOP, "verl2x2", "model_world_size_4_rank_3.pt"), at)
    t.refused("two worlds", "ls", at, saying="two worlds", naming="model_world_size_4_rank_3.pt")
    at = fresh()
    shutil.copy(os.path.join(TOP, "verl2x2", "model_world_size_4_rank_2.pt"), os.path.join(at, name % 2))
    t.refused("a rank of another world under our name", "ls", at, saying="a mesh of 4 ranks", naming=name % 2)
    at = t.fresh(os.path.join(TOP, "verl_tp"), "ranks")
    os.unlink(os.path.join(at, "optim_world_size_4_rank_3.pt"))
    t.refused("an optimizer's rank is missing", "ls", at, saying="rank 3 is missing",
              naming="optim_world_size_4_rank_3.pt")
    at = t.path("plain")
    for rank in range(2):
        write(os.path.join(at, "model_world_size_2_rank_%d.pt" % rank),
              archive(one(), {"0": struct.pack("<4f", rank, 2, 3, 4)}))
    t.refused("plain tensors that differ", "ls", at, saying="is not the same on all ranks", naming="tensor 'w'")
    t.refused("one rank's file alone", "ls", os.path.join(TOP, "verl3", name % 0), saying="one rank's shard",
              naming="model.embed.weight")


def check_items(t):
    """One file of each item and rank, as torch_checkpointing saves them."""
    at = t.fresh(os.path.join(TOP, "torch_checkpointing"), "items")
    os.unlink(os.path.join(at, "optimizer_1.pt"))
    t.refused("an item's rank is missing", "ls", at, saying="rank 1 is missing", naming="optimizer_1.pt")
    shutil.copy(os.path.join(at, "optimizer_0.pt"), os.path.join(at, "optimizer_1.pt"))
    t.refused("an item's rank is another one's copy", "ls", at, saying="was saved by another rank",
              naming="optimizer_1.pt")
    at = t.fresh(os.path.join(TOP, "torch_checkpointing"), "items")
    for file in os.listdir(at):
        if "_2.pt" in file:
            os.unlink(os.path.join(at, file))
    t.refused("the last rank is missing", "ls", at, saying="a mesh of 3 ranks", naming="model_0.pt")
    for file in os.listdir(at):
        if not file.startswith("model"):
            os.unlink(os.path.join(at, file))
    t.refused("one item is no set", "ls", at, saying="with --from ranks", naming="model_0.pt")
    shutil.copy(os.path.join(TOP, "torch_checkpointing", "model_2.pt"), at)
    r = t.good("ls", at, "--from", "ranks")
    t.check("rows" in r.out and "model.rows" not in r.out, "one item alone has its own names", r)
    write(os.path.join(at, "metadata.pkl"), b"not read")
    t.good("ls", at, what="metadata.pkl says that the files are those of ranks")


def check_dcp(t):
    """Forms of DCP without a .metadata of all ranks: the same checkpoint as the common one."""
    dcp = os.path.join(os.path.dirname(TOP), "dcp")
    common = os.path.join(dcp, "torch-2.15", "ckpt")
    for form in "rank-local", "slices", "zstd":
        path = os.path.join(dcp, form, "ckpt")
        t.good("diff", path, common, what="%s holds the same" % form)
        t.good("verify", path)
        t.good("reshard", path, t.path("two"), "--ranks", "2", "--force")
        t.good("diff", t.path("two"), common, what="%s, resharded" % form)
    def fresh(form):
        return t.fresh(os.path.join(dcp, form, "ckpt"), "dcp")
    for rank in 0, 1, 2:
        at = fresh("rank-local")
        os.unlink(os.path.join(at, "__%d.metadata" % rank))
        t.refused("rank %d's metadata is missing" % rank, "ls", at, saying="rank %d is missing" % rank)
    at = fresh("rank-local")
    os.unlink(os.path.join(at, "__1_0.distcp"))
    t.refused("a rank's shards are missing", "ls", at, naming="__1_0.distcp")
    at = fresh("rank-local")
    shutil.copy(os.path.join(at, "__1.metadata"), os.path.join(at, "__01.metadata"))
    t.refused("a rank's metadata is there twice", "ls", at, saying="rank 1 twice", naming="__01.metadata")
    at = fresh("rank-local")
    shutil.copy(os.path.join(at, "__0.metadata"), os.path.join(at, "__1.metadata"))
    t.refused("a rank's metadata is another one's", "ls", at, saying="tensor")
    name = "shard-0000%d-model-00001-of-00001.safetensors"
    at = fresh("slices")
    os.unlink(os.path.join(at, name % 2))
    t.refused("a rank's slices are missing", "ls", at, saying="rank 1 is missing")
    at = fresh("slices")
    shutil.copy(os.path.join(at, name % 3), os.path.join(at, name % 1))
    t.refused("a rank's slices are another one's", "ls", at, saying="model.")
    t.refused("one rank's slices", "ls", os.path.join(dcp, "slices", "ckpt", name % 1), saying="give the folder")
    at = t.path("checkpoint-9")
    for part, form in ("pytorch_model_fsdp_0", "torch-2.15"), ("optimizer_0", "rank-local"):
        shutil.copytree(os.path.join(dcp, form, "ckpt"), os.path.join(at, part))
    t.refused("two folders with the same names", "ls", at, saying="is listed twice")
    shutil.rmtree(os.path.join(at, "optimizer_0"))
    write(os.path.join(at, "trainer_state.json"), b"{}")
    t.good("diff", at, common, what="accelerate's folder")


def check_damage(t):
    data = bytearray(read(os.path.join(TOP, "module", "model.pt")))
    path = t.path("flipped.pt")
    at = data.index(b"model/data/2") + 100
    data[at] ^= 1
    write(path, bytes(data))
    r = t.run("verify", path)
    t.check(r.status in (1, 3) and "flipped.pt" in r.out + r.err, "verify sees a flipped bit", r)
    t.refused("the format before zip", "ls", os.path.join(TOP, "legacy", "legacy.pt"), saying="before version 1.6")


if __name__ == "__main__":
    sys.exit(run_checks(check_folders, check_ranks, check_items, check_dcp, check_damage, check_names, check_values))
