# SPDX-License-Identifier: Apache-2.0
"""fsdpck --names hf and transformers against transformers: models of random sizes, laid out by both, compared bit for
bit, through one folder and through shards; and what fsdpck writes is loaded again. vLLM's and torchtitan's names of
such models are known too: both ways give the same bytes."""
import pathlib, random, shutil

import ckpt_common as c
import make_moe
import torch


SIDES = {"vllm": set(make_moe.FAMILIES), "torchtitan": {"qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"}}


def sizes(family, rng):
    experts = rng.randrange(2, 6)
    inter = 8 * rng.randrange(1, 9)
    if "num_local_experts" in make_moe.FAMILIES[family]:
        return dict(intermediate_size=inter, num_local_experts=experts)
    grouped = "n_routed_experts" in make_moe.FAMILIES[family]
    return {"moe_intermediate_size": inter, "n_routed_experts" if grouped else "num_experts": 4 if grouped else experts}


def compare(what, got, want):
    bad = [f"{what}: {k}: missing" for k in want.keys() - got.keys()]
    bad += [f"{what}: {k}: not wanted" for k in got.keys() - want.keys()]
    return bad + [f"{what}: {d}" for k in got.keys() & want.keys() if (d := c.compare(k, got[k], want[k]))]


def check(tool, work, family, seed):
    from transformers import AutoModelForCausalLM
    rng = random.Random(f"{family} {seed}")
    shutil.rmtree(work, ignore_errors=True)
    hub_dir, memory = make_moe.make(pathlib.Path(work), family, seed, **sizes(family, rng))
    hub, held = c.read_ref(hub_dir / "model.safetensors"), c.read_ref(memory)
    mtp = {k: v for k, v in hub.items() if k.startswith(("mtp.", "model.layers.2."))}
    at = lambda name: str(pathlib.Path(work) / name)
    tool("export", "-q", str(hub_dir), at("fused"), "--names", "transformers")
    tool("convert", "-q", str(hub_dir), at("shards"), "--ranks", str(rng.randrange(1, 6)), "--names", "transformers")
    tool("export", "-q", at("shards"), at("back"), "--names", "hf")
    tool("convert", "-q", str(hub_dir), at("single"), "--ranks", str(rng.randrange(1, 6)))
    tool("export", "-q", at("single"), at("fused-too"), "--names", "transformers")
    bad = compare("fused", c.read_ref(at("fused/model.safetensors")), {**held, **mtp})
    bad += compare("fused from shards", c.read_ref(at("fused-too/model.safetensors")), {**held, **mtp})
    bad += compare("back", c.read_ref(at("back/model.safetensors")), hub)
    for names in (names for names in SIDES if family in SIDES[names]):
        tool("export", "-q", str(hub_dir), at(names), "--names", names)
        tool("export", "-q", at(names), at("from-" + names), "--names", "hf")
        bad += compare("from " + names, c.read_ref(at(f"from-{names}/model.safetensors")), hub)
    again = AutoModelForCausalLM.from_pretrained(at("back"), dtype=torch.bfloat16).state_dict()
    return bad + compare("loaded", {k: v.contiguous() for k, v in again.items()}, held)


def check_vision(tool, work):
    """Qwen3-VL-MoE: save_pretrained() writes experts as they are held; from_pretrained() reads them as published."""
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration as Model
    shutil.rmtree(work, ignore_errors=True)
    text = dict(make_moe.BASE, moe_intermediate_size=24, num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1,
                rope_scaling={"rope_type": "default", "mrope_section": [1, 1, 2]})
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, out_hidden_size=16,
                  num_position_embeddings=4, deepstack_visual_indexes=[0])
    model = Model(Qwen3VLMoeConfig(text_config=text, vision_config=vision)).to(torch.bfloat16)
    at = lambda name: str(pathlib.Path(work) / name)
    model.save_pretrained(at("held"))
    want = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    tool("export", "-q", at("held"), at("hub"), "--names", "hf")
    tool("export", "-q", at("hub"), at("vllm"), "--names", "vllm")
    tool("export", "-q", at("vllm"), at("back"), "--names", "transformers")
    again = Model.from_pretrained(at("hub"), dtype=torch.bfloat16).state_dict()
    return compare("loaded", {k: v.contiguous() for k, v in again.items()}, want) + compare(
        "by vLLM", c.read_ref(at("back/model.safetensors")), want)


def check_all(checks, tool, work, quick):
    for family in make_moe.FAMILIES:
        for seed in range(1 if quick else 3):
            checks.run(f"experts of {family}, {seed}", check, tool, work, family, seed)
    checks.run("experts of Qwen3-VL-MoE", check_vision, tool, work)
