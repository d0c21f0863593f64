# SPDX-License-Identifier: Apache-2.0
"""fsdpck export --quantize against the libraries whose forms it writes: models of random shapes, quantized by both,
compared byte for byte; and models that transformers loads as it would those of the libraries themselves."""

import json, os, pathlib, random, shutil, subprocess

import ckpt_common as c
import make_quant
import torch
from check_quant import read_all, shape
from quant_forms import bnb_dequantize

FORMS = {"fp8-block": "fp8-block", "mxfp4": "mxfp4-ct", "nvfp4": "nvfp4-ct", "nf4": "bnb-nf4"}


def config(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def lists_sorted(conf):
    return {k: sorted(v) if isinstance(v, list) and v and isinstance(v[0], str) else v for k, v in conf.items()}


def compare_config(got, want):
    """Keys that only say null, or nothing that is not the default, may be missing."""
    if "config_groups" in want:
        weights = want["config_groups"]["group_0"]["weights"]
        want["config_groups"]["group_0"]["weights"] = {k: v for k, v in weights.items() if v is not None}
    want.setdefault("modules_to_not_convert", ["lm_head"])
    got, want = lists_sorted(got), lists_sorted(want)
    return [f"quantization_config: {k} is {got[k]}, not {want.get(k)}" for k in got if got[k] != want.get(k)]


def compare(form, ref, folder):
    got = read_all(folder)
    bad = [f"{k}: missing" for k in ref.keys() - got.keys()] + [f"{k}: not wanted" for k in got.keys() - ref.keys()]
    bad += [d for k in ref.keys() & got.keys() if (d := c.compare(k, got[k], ref[k]))]
    return [f"{form} {folder.name}: {b}" for b in bad]


def check(fsdpck, work, form, seed):
    """One model, quantized by the library and by fsdpck, into a folder and into shards of any number of ranks."""
    rng, name = random.Random(f"{form} {seed}"), FORMS[form]
    work = pathlib.Path(work)
    shutil.rmtree(work, ignore_errors=True)
    change = shape(name, rng)
    make_quant.make(work, name, seed, change=change)
    source = work / json.loads((work / name / "case.json").read_text())["source"]
    ref = read_all(work / name / "model")
    run = lambda *words: subprocess.run([fsdpck, *map(str, words), "-q"], check=True, stdout=subprocess.DEVNULL)
    quantize = ["--quantize", form] + ([] if form == "fp8-block" else ["--keep", "*o_proj*"])  # what the case leaves
    run("export", source, work / "out", *quantize)
    run("convert", source, work / "shards", "--ranks", rng.randrange(1, 6), *quantize)
    run("export", work / "shards", work / "again")
    bad = compare(f"{form} {change}", ref, work / "out") + compare(f"{form} {change}", ref, work / "again")
    return bad + compare_config(config(work / "out"), config(work / name / "model"))


def loading(form):
    """What transformers needs to load the form without its kernels."""
    from transformers import CompressedTensorsConfig, FineGrainedFP8Config

    if form == "nf4":
        return {}
    if form == "fp8-block":
        return {"quantization_config": FineGrainedFP8Config(dequantize=True, weight_block_size=(128, 128))}
    return {"quantization_config": CompressedTensorsConfig(run_compressed=False)}


def small_model(family, folder):
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 128} if "moe" in family else {}
    conf = AutoConfig.for_model(family, hidden_size=128, intermediate_size=256, num_hidden_layers=1,
                                num_attention_heads=2, num_key_value_heads=2, head_dim=64, vocab_size=40,
                                tie_word_embeddings="moe" not in family, **more)
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(conf, dtype=torch.bfloat16).save_pretrained(folder)


def weights(model):
    """The values that the model computes with; bitsandbytes keeps the codes."""
    state = {n: getattr(p, "quant_state", None) for n, p in model.named_parameters()}
    return {n: bnb_dequantize(p.data, state[n]) if state[n] else p.data for n, p in model.named_parameters()}


def check_load(fsdpck, work, form, family):
    """transformers finds nothing missing, and has the weights that --dequantize makes of the codes."""
    from transformers import AutoModelForCausalLM

    work = pathlib.Path(work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    small_model(family, work / "model")
    run = lambda *words: subprocess.run([fsdpck, *map(str, words), "-q"], check=True, stdout=subprocess.DEVNULL)
    run("export", work / "model", work / "out", "--quantize", form)
    run("export", work / "out", work / "plain", "--dequantize", "bf16")
    load = lambda folder, **more: AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="cpu", output_loading_info=True, **more)
    model, info = load(work / "out", **loading(form))
    plain, _ = load(work / "plain")
    bad = [f"{form} {family}: {k}: {v}" for k, v in info.items() if v]
    got, want = weights(model), weights(plain)
    bad += [f"{form} {family}: {d}" for k in want if (d := c.compare(k, got[k], want[k]))]
    return bad + ([] if got.keys() == want.keys() else [f"{form} {family}: other weights"])


def check_all(checks, fsdpck, work, quick):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for form in FORMS:
        for seed in range(1 if quick else 4):
            checks.run(f"quantize {form}, model {seed}", check, fsdpck, work, form, seed)
        checks.run(f"transformers loads {form}", check_load, fsdpck, work, form, "qwen3")
    for form in ("fp8-block", "mxfp4"):  # transformers 5 misreads experts of the other forms, as a note says
        checks.run(f"transformers loads {form} with experts", check_load, fsdpck, work, form, "qwen3_moe")
