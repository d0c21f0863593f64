# SPDX-License-Identifier: Apache-2.0
"""What an adapter of PEFT's holds besides A and B: saved modules, resized and adapted embeddings, trained tokens, on
tied and untied models. merge-lora gives what PEFT makes of the same files, or refuses by a tensor's name; export-lora
finds the same file again in a training checkpoint. And strays: every one is refused or arrives. Used by run.py; `python
check_lora_whole.py BINARY [WORD]` runs it alone."""
import os, random, shutil, subprocess, sys, tempfile, warnings

import torch
from safetensors.torch import load_file, save_file
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import check_lora

warnings.filterwarnings("ignore")
VOCABULARY, WIDTH = 40, 16
P, L = "base_model.model.", "base_model.model.model.layers.0."
Q = dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"])


def lora(**more):
    return LoraConfig(task_type="CAUSAL_LM", **{**Q, **more})


def save_base(folder, tied):
    torch.manual_seed(3)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
            initializer_range=0.3,
        )
    ).save_pretrained(folder)


def load_base(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train(model, seed):
    """Every trained value moves, norms and embeddings too."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if p.requires_grad:
            p.data.add_((0.05 if "magnitude" in name else 0.3) * torch.randn(p.shape, generator=g))
    return model


# name -> (configuration, what save_pretrained is told, what the merge of an untied base must be refused by, or None,
# the same of a tied one)
CASES = {
    "norm, by the end of its name": (lora(modules_to_save=["norm"]), {}, None, None),
    "a block of several layers": (lora(target_modules=["q_proj"], modules_to_save=["mlp"]), {}, None, None),
    "head": (lora(modules_to_save=["lm_head"]), {}, None, "lm_head.weight"),
    "embedding": (lora(modules_to_save=["embed_tokens"]), {}, None, "embed_tokens.weight"),
    "embedding and head": (lora(modules_to_save=["embed_tokens", "lm_head"]), {}, None, "embed_tokens.weight"),
    "embedding, tied": (lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True), {}, None, None),
    "embeddings along": (lora(), dict(save_embedding_layers=True), None, None),
    "embedding adapted": (lora(target_modules=["q_proj", "embed_tokens"]), {}, None, None),
    "embedding adapted, alone": (lora(target_modules=["embed_tokens"]), {}, None, None),
    "head adapted": (lora(target_modules=["q_proj", "lm_head"]), {}, None, None),
    "head adapted, DoRA": (lora(target_modules=["q_proj", "lm_head"], use_dora=True), {}, None, None),
    "both adapted": (lora(target_modules=["embed_tokens", "lm_head"]), {}, None, None),
    "tokens": (lora(trainable_token_indices=[5, 1, 39]), {}, None, None),
    "tokens of two modules": (
        lora(trainable_token_indices={"embed_tokens": [5, 1], "lm_head": [0]}),
        {},
        None,
        "trainable_tokens_delta",
    ),
    "tokens of two modules, the same": (
        lora(trainable_token_indices={"embed_tokens": [5, 1], "lm_head": [5, 1]}),
        {},
        None,
        None,
    ),
    "tokens of the head": (
        lora(trainable_token_indices={"lm_head": [7]}),
        {},
        None,
        "lm_head.token_adapter.trainable_tokens_delta",
    ),
    "tokens, embeddings along": (lora(trainable_token_indices=[5, 1]), dict(save_embedding_layers=True), None, None),
    "tokens, norms": (lora(trainable_token_indices=[5, 1], modules_to_save=["norm"], use_rslora=True), {}, None, None),
    "tokens alone": (TrainableTokensConfig(token_indices=[2, 30]), {}, None, None),
    "tokens alone, embeddings along": (
        TrainableTokensConfig(token_indices=[2, 30]),
        dict(save_embedding_layers=True),
        None,
        None,
    ),
    "tokens alone, of two modules": (
        TrainableTokensConfig(token_indices=[2, 30], target_modules=["embed_tokens", "lm_head"]),
        {},
        None,
        "lm_head",
    ),
}


def random_config(rng):
    targets = rng.sample(["q_proj", "v_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"], rng.randint(1, 4))
    saved = [
        m
        for m in rng.sample(["norm", "input_layernorm", "embed_tokens", "lm_head", "o_proj"], rng.randint(0, 2))
        if m not in targets
    ]
    how = dict(
        r=rng.randint(1, 5),
        lora_alpha=rng.randint(1, 9),
        target_modules=targets,
        modules_to_save=saved or None,
        use_rslora=rng.random() < 0.3,
        use_dora=rng.random() < 0.2 and "embed_tokens" not in targets,
    )
    if not {"embed_tokens", "lm_head"} & {*targets, *saved} and rng.random() < 0.6:
        how["trainable_token_indices"] = rng.sample(range(VOCABULARY), rng.randint(1, 4))
    return LoraConfig(task_type="CAUSAL_LM", **how), dict(save_embedding_layers=rng.choice(["auto", True, False]))


def try_tool(tool, *args):
    return subprocess.run([tool.binary, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def merged_by_peft(base, own):
    """Also what modules are untied by it: those of a tied base that hold other values afterwards."""
    model = PeftModel.from_pretrained(load_base(base), own).merge_and_unload()
    return {k: v.clone() for k, v in model.state_dict().items()}


def untied(want, tied):
    return tied and not torch.equal(want["model.embed_tokens.weight"], want["lm_head.weight"])


def compare(out, want, stored, tied):
    got, bad = check_lora.load_folder(out), []
    for k in want.keys() | got.keys():
        if k == "lm_head.weight" and tied and k not in got:
            continue
        if k not in got or k not in want:
            bad.append(f"{k} is in only one of the merged folder and PEFT's model")
        elif got[k].shape != want[k].shape or check_lora.ulps(got[k], want[k], stored.get(k, want[k])) > 8:
            bad.append(
                f"{k}: {(got[k] - want[k]).abs().max() if got[k].shape == want[k].shape else tuple(got[k].shape)}")
    return bad


def check_merge(tool, base, adapter, own, out, tied, refusal, more=()):
    p = try_tool(tool, "merge-lora", "-q", base, adapter, out, *more)
    if refusal or p.returncode:
        if not refusal:
            return [p.stderr.strip()]
        return [] if p.returncode == 3 and refusal in p.stderr else [
            f"'{refusal}' should be refused: {p.returncode}, {p.stderr.strip()}"
        ]
    return compare(out, merged_by_peft(base, own), check_lora.load_folder(base), tied)


def check(tool, config, save, tied, refusal, work):
    base, own, out = (os.path.join(work, n) for n in ("base", "own", "out"))
    save_base(base, tied)
    model = train(get_peft_model(load_base(base), config), 5)
    model.save_pretrained(own, **save)
    if refusal is ...: # whatever is untied cannot be one tensor; all else must go
        refusal = "" if untied(merged_by_peft(base, own), tied) else None
        if refusal == "":
            return (
                []
                if try_tool(tool, "merge-lora", "-q", base, own, out).returncode == 3
                else ["an untied model was written as tied"]
            )
    bad = check_merge(tool, base, own, own, out, tied, refusal)
    dir, config_file = check_lora.save_checkpoint(tool, model.state_dict(), work,
                                                  3), os.path.join(own, "adapter_config.json")
    again, out = os.path.join(work, "again"), os.path.join(work, "out2")
    p = try_tool(tool, "export-lora", "-q", dir, again, "--adapter-config", config_file)
    if p.returncode == 3 and refusal and refusal in p.stderr:
        return bad
    if p.returncode:
        return bad + [p.stderr.strip()]
    # where the config names both of two tied modules, both are written, and PEFT reads it all the same
    if refusal is None:
        got, want = (merged_by_peft(base, folder) for folder in (again, own))
        bad += [f"PEFT reads {k} otherwise" for k in want if not torch.equal(got[k], want[k])]
        more = load_file(os.path.join(again, "adapter_model.safetensors")).keys() - load_file(
            os.path.join(own, "adapter_model.safetensors")).keys()
        named = list(getattr(config, "trainable_token_indices", None) or {})
        bad += [
            f"{k} is not in PEFT's file" for k in more
            if not (tied and "lm_head" in named and k.startswith(P + "lm_head."))
        ]
    return bad + check_merge(tool, base, dir, own, out, tied, refusal, ("--adapter-config", config_file))


# --- resized, and other values

def check_resized(tool, tied, tokens, work):
    """44 rows do not go into 40: the merge is refused; into a base that was resized as well they go."""
    base, own, out, large = (os.path.join(work, n) for n in ("base", "own", "out", "large"))
    save_base(base, tied)
    model = load_base(base)
    model.resize_token_embeddings(VOCABULARY + 4, mean_resizing=False)
    model.save_pretrained(large)
    config = lora(trainable_token_indices=[41, 3]) if tokens else lora()
    train(get_peft_model(model, config), 5).save_pretrained(own, save_embedding_layers=not tokens)
    return check_merge(tool, base, own, own, out, tied, "trainable_tokens_delta" if tokens else "[44, 16]") + \
        check_merge(tool, large, own, own, out, tied, None)


def check_other_base(tool, tied, target, work):
    """The base layer in the adapter's own file is not the base's: PEFT takes it."""
    base, own, out = (os.path.join(work, n) for n in ("base", "own", "out"))
    save_base(base, tied)
    train(get_peft_model(load_base(base), lora(target_modules=["q_proj", target])), 5).save_pretrained(own)
    file = os.path.join(own, "adapter_model.safetensors")
    state = load_file(file)
    name = [k for k in state if k.endswith(target + ".base_layer.weight")][0]
    state[name] += 0.5
    save_file(state, file, {"format": "pt"})
    return check_merge(tool, base, own, own, out, tied, None)


# --- strays

STRAYS = {
    P + "foo.weight": (4,),
    "foo": (4,),
    P + "model.layers.7.self_attn.q_proj.weight": (4,),
    L + "self_attn.q_proj.weight": (WIDTH, WIDTH),
    L + "self_attn.k_proj.lora_A.weight": (2, WIDTH),
    L + "self_attn.q_proj.lora_B.bias": (WIDTH,),
    L + "self_attn.q_proj.lora_magnitude_vector": (WIDTH,),
    L + "self_attn.q_proj.lora_E": (2,),
    L + "self_attn.q_proj.lora_A.other.weight": (2, WIDTH),
    L + "self_attn.q_proj.lora_A.weight.exp_avg": (2, WIDTH),
    L + "self_attn.k_proj.base_layer.weight": (8, WIDTH),
    L + "self_attn.q_proj.base_layer.weight": (3, 3),
    L + "self_attn.q_proj.base_layer.weight.absmax": (3,),
    L + "input_layernorm.weight": (WIDTH + 1,),
    P + "model.embed_tokens.weight": (VOCABULARY + 4, WIDTH),
    P + "model.embed_tokens.lora_embedding_A": (2, VOCABULARY),
    P + "model.embed_tokens.token_adapter.trainable_tokens_delta": (2, WIDTH),
    P + "model.embed_tokens.trainable_tokens_delta": (2, WIDTH),
    P + "model.norm.original_module.weight": (WIDTH,),
    P + "lm_head.modules_to_save.other.weight": (VOCABULARY, WIDTH),
    "_orig_mod." + L + "self_attn.q_proj.lora_A.weight": (2, WIDTH),
}


def check_strays(tool, sharded, work):
    """One at a time into a good adapter. merge-lora names it; export-lora names it too, or the tensor is in what it
    writes."""
    base, own, one, out = (os.path.join(work, n) for n in ("base", "own", "one", "out"))
    save_base(base, False)
    train(get_peft_model(load_base(base), lora(modules_to_save=["norm"])), 5).save_pretrained(own)
    state, bad = load_file(os.path.join(own, "adapter_model.safetensors")), []
    for name, shape in STRAYS.items():
        for path in (one, out):
            shutil.rmtree(path, ignore_errors=True)
        os.makedirs(one)
        shutil.copy(os.path.join(own, "adapter_config.json"), one)
        save_file({**state, name: torch.full(shape, 0.25)}, os.path.join(one, "adapter_model.safetensors"),
                  {"format": "pt"})
        if sharded:
            tool("convert", "-q", "--force", one, one + "-2", "--ranks", "2")
        adapter = one + "-2" if sharded else one
        p = try_tool(tool, "merge-lora", "-q", base, adapter, out)
        if p.returncode not in (2, 3) or name not in p.stderr:
            bad.append(f"merge-lora: {name}: {p.returncode}, {p.stderr.strip()}")
        p = try_tool(tool, "export-lora", "-q", adapter, out)
        if (
            p.returncode == 0
            and name.removeprefix(P)
            not in {k.removeprefix(P) for k in load_file(os.path.join(out, "adapter_model.safetensors"))}
            or p.returncode
            and (p.returncode not in (2, 3) or name not in p.stderr)
        ):
            bad.append(f"export-lora: {name}: {p.returncode}, {p.stderr.strip()}")
    return bad


def check_missing(tool, work):
    """modules_to_save names what the file lacks: PEFT fails with a KeyError."""
    base, own, out = (os.path.join(work, n) for n in ("base", "own", "out"))
    save_base(base, False)
    train(get_peft_model(load_base(base), lora(modules_to_save=["norm"])), 5).save_pretrained(own)
    file = os.path.join(own, "adapter_model.safetensors")
    state = load_file(file)
    del state[L + "input_layernorm.weight"]
    save_file(state, file, {"format": "pt"})
    p = try_tool(tool, "merge-lora", "-q", base, own, out)
    return [] if p.returncode == 3 and "model.layers.0.input_layernorm.weight" in p.stderr else [
        f"{p.returncode}, {p.stderr.strip()}"
    ]


def run(checks, tool, work, quick):
    def each(name, fn, *args):
        with tempfile.TemporaryDirectory(dir=work) as sub:
            checks.run(name, fn, tool, *args, sub)
    for i, (name, (config, save, *refusals)) in enumerate(CASES.items()):
        for tied in (i % 2,) if quick else (False, True):
            each(f"adapters whole: {name}, {'tied' if tied else 'untied'}", check, config, save, tied, refusals[tied])
    for tied in (False, True):
        for tokens in (False, True):
            each(f"adapters whole: resized, tied {tied}, tokens {tokens}", check_resized, tied, tokens)
        for target in ("embed_tokens", "lm_head"):
            each(f"adapters whole: another base layer of {target}, tied {tied}", check_other_base, tied, target)
    for sharded in (False, True):
        each(f"adapters whole: strays, sharded {sharded}", check_strays, sharded)
    each("adapters whole: a saved module is missing", check_missing)
    rng = random.Random(11)
    for i in range(6 if quick else 40):
        config, save = random_config(rng)
        tied = rng.random() < 0.5
        each(f"adapters whole: random {i}, {'tied' if tied else 'untied'}", check, config, save, tied, ...)


if __name__ == "__main__":
    from run import Checks, Tool
    checks = Checks(sys.argv[2] if len(sys.argv) > 2 else None)
    with tempfile.TemporaryDirectory() as work:
        run(checks, Tool(sys.argv[1]), work, False)
    print(f"{checks.npassed} passed, {checks.nfailed} failed")
    sys.exit(bool(checks.nfailed))
