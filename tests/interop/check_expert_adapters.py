# SPDX-License-Identifier: Apache-2.0
"""fsdpck merge-lora against PEFT: adapters of fused experts (target_parameters) on models of random sizes, with random
ranks. The merged model that transformers loads gives the logits that PEFT's merge gives."""
import pathlib, random, shutil

import check_moe
import make_moe
import torch


def targets(model):
    """The parameters that PEFT adapts: experts in three dimensions, by the names that are common to all layers."""
    names = [n.split(".") for n, p in model.named_parameters()
             if p.ndim == 3 and ".experts." in n and n.endswith("_proj")]
    return sorted({".".join(n[-2:]) for n in names})


def make_adapter(hub_dir, out, rng):
    """Returns the model that PEFT merges itself."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(str(hub_dir), dtype=torch.float32)
    r = rng.choice([1, 2, 3, 5])
    wanted = targets(model)
    more = {"target_parameters": wanted if rng.random() < 0.7 else [rng.choice(wanted)]}
    if rng.random() < 0.5:
        more.update(rank_pattern={more["target_parameters"][0]: r + 1}, alpha_pattern={more["target_parameters"][0]: 7})
    config = LoraConfig(r=r, lora_alpha=rng.choice([1, 4, 6]), target_modules=["o_proj"], use_rslora=rng.random() < 0.3,
                        task_type="CAUSAL_LM", **more)
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.2)
    wrapped.save_pretrained(out)
    return wrapped.merge_and_unload()


def logits(model, vocabulary):
    tokens = torch.arange(24).reshape(2, 12) * 7 % vocabulary
    with torch.no_grad():
        return model.eval()(tokens).logits


def check(tool, work, family, seed):
    from transformers import AutoModelForCausalLM
    rng = random.Random(f"adapter {family} {seed}")
    torch.manual_seed(seed)
    shutil.rmtree(work, ignore_errors=True)
    rope = {"head_dim": 4} if family == "deepseek_v3" else {}  # transformers takes it for the rotated part's size
    hub_dir, _ = make_moe.make(pathlib.Path(work), family, seed, **check_moe.sizes(family, rng), **rope)
    at = lambda name: str(pathlib.Path(work) / name)
    plain = AutoModelForCausalLM.from_pretrained(str(hub_dir), dtype=torch.float32)
    want = logits(make_adapter(hub_dir, at("adapter"), rng), plain.config.vocab_size)
    bad = []
    for base in ("hub", "fused"):
        folder = str(hub_dir)
        if base == "fused":
            folder = at("fused")
            tool("export", "-q", str(hub_dir), folder, "--names", "transformers")
        tool("merge-lora", "-q", folder, at("adapter"), at("merged"), "--dtype", "fp32", "--force")
        got = logits(AutoModelForCausalLM.from_pretrained(at("merged"), dtype=torch.float32), plain.config.vocab_size)
        changed = (want - logits(plain, plain.config.vocab_size)).abs().max().item()
        worst = (want - got).abs().max().item()
        if not worst <= 1e-4 * max(1.0, want.abs().max().item()) or not changed > 10 * worst:
            bad.append(f"{base}: logits differ by {worst}, the adapter changes them by {changed}")
    return bad


def check_all(checks, tool, work, quick):
    for family in make_moe.FAMILIES:
        for seed in range(1 if quick else 2):
            checks.run(f"adapters of {family}'s experts, {seed}", check, tool, work, family, seed)
