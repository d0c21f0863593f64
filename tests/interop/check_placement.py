# SPDX-License-Identifier: Apache-2.0
"""--placement auto against transformers' plans for tensor parallelism: every parameter gets the placement of its plan
on a mesh of two ranks. No process is started: torch's fake group stands for the other rank."""
import fnmatch, json, pathlib, shutil

import make_moe
import torch

DENSE = ("llama", "mistral", "qwen2", "qwen3")
# Whole by transformers' plans, and cut by fsdpck as by vLLM: heads of latent attention, shared experts of Qwen2-MoE,
# and all of gpt-oss, which has no plan.
ALSO_CUT = {"deepseek_v3": ["*.q_b_proj.weight", "*.kv_b_proj.weight", "*.o_proj.weight"],
            "qwen2_moe": ["*.shared_expert.*"],
            "gpt_oss": ["*.[qkv]_proj.*", "*.o_proj.weight", "*.sinks", "*.experts.*", "*.embed_tokens.weight"]}


def style_of(model, name):
    """The name in the plan and the style of a parameter, or of its module."""
    plan = {"*" + key.removeprefix("model."): style for key, style in model.tp_plan.items()}
    for key in (name, name.rpartition(".")[0]):
        for glob, style in plan.items():
            if fnmatch.fnmatchcase(key, glob):
                return style
    return None


def text(placement, ndim):
    """As index.json has it."""
    if not hasattr(placement, "dim"):
        return "replicate"
    split = getattr(placement, "split_factor", 1)
    return f"shard({placement.dim % ndim})" if split == 1 else f"strided_shard({placement.dim % ndim},{split})"


def planned(model, mesh):
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
    out = {}
    for name, parameter in list(model.named_parameters()):
        module, _, leaf = name.rpartition(".")
        style, owner = style_of(model, name), model.get_submodule(module)
        if style:
            ALL_PARALLEL_STYLES[style].shard_param(owner, leaf, mesh)
        out[name] = text(getattr(getattr(owner, leaf), "placements", [None])[0], parameter.ndim)
    return out


def check(tool, work, family, mesh):
    from transformers import AutoConfig, AutoModelForCausalLM
    shutil.rmtree(work, ignore_errors=True)
    hub, shards = pathlib.Path(work) / "hub", pathlib.Path(work) / "shards"
    values = {**make_moe.BASE, **make_moe.FAMILIES.get(family, {}), "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, **values)
    config.pad_token_id = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(str(hub))
    names = [] if family in DENSE else ["--names", "transformers"]
    tool("convert", "-q", str(hub), str(shards), "--mesh", "tp=2", "--placement", "auto", *names)
    listed = json.loads((shards / "index.json").read_text())["tensors"]
    got, want = {name: t["placements"][0] for name, t in listed.items()}, planned(model, mesh)
    bad = [f"{name}: {got[name]}, and transformers has a buffer" for name in got.keys() - want.keys()
           if got[name] != "replicate"]
    for name, placement in want.items():
        more = any(fnmatch.fnmatchcase(name, glob) for glob in ALSO_CUT.get(family, []))
        if got[name] != placement and not (more and placement == "replicate"):
            bad.append(f"{name}: {got[name]}, and transformers has {placement}")
    return bad


def check_all(checks, tool, work):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for family in (*DENSE, *make_moe.FAMILIES):
        checks.run(f"placement of {family}", check, tool, work, family, mesh)
    torch.distributed.destroy_process_group()
