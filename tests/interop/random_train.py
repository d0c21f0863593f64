#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random small models, adapters, data and settings: what transformers + PEFT make of them in a few steps of float32,
and what `fsdptrain run` makes of them.

    random_train.py FSDPTRAIN [--count 48] [--seed N] [--keep DIR]

Each case draws a config.json (either dialect, keys left out so that defaults count, odd sizes, every kind of rotary
positions, windows, biases), adapters or full fine-tuning, packed rows in uneven micro-batches, some without any
supervised token, a schedule, clipping, decay, and at how many ranks and by which strategy ours runs. Losses, norms and
learning rates of each step and all weights at the end are compared. Then ours runs twice more, in bf16 and with
dropout, at one rank and at several by other ways of gathering and keeping: the same bits."""
import argparse, json, os, pathlib, random, re, shutil, subprocess, sys, tempfile, warnings

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.optimization import get_scheduler

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SPARSE = ("mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "dots1", "gpt_oss")
DENSE_SEEDS, SEEDS = 36, 54  # of every SEEDS seeds the first are dense models, the others mixtures of experts
STEPS = 4
load_balancing_loss = modeling_mixtral.load_balancing_loss_func
# it wants a mask of tokens, not of pairs
for family in (modeling_gpt_oss, modeling_mixtral, modeling_qwen2_moe, modeling_qwen3_moe):
    family.load_balancing_loss_func = lambda *_: None


# --- what is drawn

def rope(rng, head_dim):
    """Scaling, or None, as transformers 4 writes it."""
    kind = rng.choice(("none", "default", "linear", "llama3", "yarn", "yarn"))
    if kind == "none":
        return None
    out = {rng.choice(("rope_type", "type")) if kind == "linear" else "rope_type": kind}
    if kind == "linear":
        out["factor"] = rng.choice((2.0, 4.0, 1.5))
    if kind == "llama3":
        out.update(factor=rng.choice((2.0, 8.0)), low_freq_factor=rng.choice((1.0, 1.5)), high_freq_factor=rng.choice(
            (4.0, 3.0)), original_max_position_embeddings=rng.choice((16, 32, 50)))
    if kind == "yarn":
        out["factor"] = rng.choice((2.0, 4.0, 2.5))
        for key, values in (("original_max_position_embeddings", (16, 40)), ("beta_fast", (32, 16.0)),
                            ("beta_slow", (1, 2.0)), ("attention_factor", (0.9, 1.3)), ("truncate", (True, False))):
            if rng.random() < 0.4:
                out[key] = rng.choice(values)
        if rng.random() < 0.3:
            out.update(mscale=rng.choice((1.0, 0.7)), mscale_all_dim=rng.choice((1.0, 0.8)))
    return out


def windows(rng, family, nlayer):
    if family in ("mistral", "mixtral"):
        return rng.choice(
            (
                {},
                {"sliding_window": None},
                {"sliding_window": rng.randint(2, 12)},
                {"sliding_window": rng.randint(2, 6)},
            )
        )
    if family == "dots1":
        return {"sliding_window": rng.choice((None, rng.randint(2, 12))), "max_window_layers": rng.randint(0, nlayer)}
    if family == "gpt_oss":
        types = [rng.choice(("full_attention", "sliding_attention")) for _ in range(nlayer)]
        return {"sliding_window": rng.randint(2, 12), **({"layer_types": types} if rng.random() < 0.5 else {})}
    if not family.startswith("qwen"):
        return {}
    # 1: attention has no gradient
    out = {"use_sliding_window": rng.random() < 0.7, "sliding_window": rng.randint(2, 12)}
    if family == "qwen3_moe":
        return out
    if rng.random() < 0.6:
        out["max_window_layers"] = rng.randint(0, nlayer)
    elif rng.random() < 0.7 and out["use_sliding_window"]:
        out["layer_types"] = [rng.choice(("full_attention", "sliding_attention")) for _ in range(nlayer)]
    return out


def experts(rng, family, nlayer):
    """Keys of a mixture of experts; some layers of Qwen's are dense, and the first ones of GLM's and dots'."""
    if family in ("glm4_moe", "dots1"):
        return deepseek(rng, family, nlayer)
    nexperts = rng.randint(2, 9)
    keys = {"mixtral": ("num_local_experts",), "gpt_oss": ("num_local_experts",), "qwen2_moe": ("num_experts",)}
    out = {rng.choice(keys.get(family, ("num_experts", "num_local_experts"))): nexperts,
           "num_experts_per_tok": rng.randint(2, min(4, nexperts))}  # of one, the weight is constant: no gradient
    if family == "gpt_oss":
        out["swiglu_limit"] = rng.choice((0.5, 1.5, 7.0))
        out.update({"swiglu_alpha": 1.2} if rng.random() < 0.3 else {})
    elif family != "mixtral":
        out.update(moe_intermediate_size=rng.randint(5, 40), norm_topk_prob=rng.random() < 0.5,
                   decoder_sparse_step=rng.choice((1, 1, 2)), mlp_only_layers=rng.choice(([], [nlayer - 1])))
    if rng.random() < 0.5:
        coefficient = rng.choice((0.01, 0.3))
        if sparse_layers({**out, "num_hidden_layers": nlayer}):  # transformers fails without any
            out.update(output_router_logits=True, router_aux_loss_coef=coefficient)
    if family == "qwen2_moe":
        out.update(shared_expert_intermediate_size=rng.randint(5, 60), qkv_bias=rng.random() < 0.7)
    return out


def sparse_layers(config):
    """Numbers of the layers with experts."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", ())
    first = config.get("first_k_dense_replace", 0)
    return [i for i in range(first, config["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0]


def deepseek(rng, family, nlayer):
    ngroup = rng.randint(1, 3)
    chosen = rng.randint(1, ngroup)
    each = rng.randint(2, 4)
    out = {"n_routed_experts": ngroup * each, "num_experts_per_tok": rng.randint(1, min(4, chosen * each)),
           "n_group": ngroup, "topk_group": chosen, "n_shared_experts": rng.randint(1, 2),
           "moe_intermediate_size": rng.randint(5, 40), "first_k_dense_replace": rng.randint(0, 1),
           "routed_scaling_factor": rng.choice((1.0, 2.5))}
    if out["num_experts_per_tok"] > 1 and rng.random() < 0.7:  # normalised, one expert has a constant weight
        out["norm_topk_prob"] = rng.random() < 0.6
    elif out["num_experts_per_tok"] == 1:
        out["norm_topk_prob"] = False
    if family == "glm4_moe" and rng.random() < 0.7:
        out["use_qk_norm"] = rng.random() < 0.6
    return out


def class_name(family):
    names = {"qwen3_moe": "Qwen3Moe", "qwen2_moe": "Qwen2Moe", "glm4_moe": "Glm4Moe", "gpt_oss": "GptOss"}
    return names.get(family, family.capitalize()) + "ForCausalLM"


def model_config(rng, family):
    nkv, half, nlayer = rng.randint(1, 3), rng.randint(1, 8), rng.randint(1, 3)
    half *= 2 if family == "glm4_moe" else 1  # half of the features are rotated
    nhead = nkv * rng.randint(1, 3)
    hidden = (
        nhead * 2 * half
        if family == "qwen2" or rng.random() < 0.4
        else nhead * rng.randint(2, 9) if family == "llama" else rng.randint(9, 50)
    )
    out = {
        "model_type": family,
        "architectures": [class_name(family)],
        "vocab_size": rng.randint(30, 150),
        "hidden_size": hidden,
        "intermediate_size": rng.randint(9, 70),
        "num_hidden_layers": nlayer,
        "num_attention_heads": nhead,
        "num_key_value_heads": nkv,
        **windows(rng, family, nlayer),
    }
    if family in SPARSE:
        out.update(experts(rng, family, nlayer))
    if hidden != nhead * 2 * half or family == "qwen3" or rng.random() < 0.3:
        out["head_dim"] = 2 * half
    if family == "llama" and nkv == nhead and rng.random() < 0.5:
        out["num_key_value_heads"] = None
    for key, values in (("rms_norm_eps", (1e-5, 1e-6, 1e-3)), ("tie_word_embeddings", (True, False)),
                        ("max_position_embeddings", (64, 256)), ("rope_theta", (10000.0, 500.0, 1000000)),
                        ("hidden_act", ("silu", )), ("attention_dropout", (0.0, )), ("use_cache", (True, ))):
        if rng.random() < 0.7:
            out[key] = rng.choice(values)
    if family in ("llama", "qwen3", "qwen3_moe", "glm4_moe", "dots1", "gpt_oss") and rng.random() < 0.5:
        out["attention_bias"] = rng.random() < 0.7
    if family == "llama" and rng.random() < 0.5:
        out["mlp_bias"] = rng.random() < 0.7
    scaling = rope(rng, 2 * half)
    if family == "mixtral" and scaling:
        out["head_dim"] = 2 * half  # transformers needs it there
    if rng.random() < 0.5:
        out["rope_parameters"] = {
            "rope_type": "default", **(scaling or {}), "rope_theta": out.pop("rope_theta", 10000.0)
        }
    elif scaling or rng.random() < 0.5:
        out["rope_scaling"] = scaling
    return out


def saved_modules(rng, nlayer):
    """Ends of paths of modules that are trained whole: one, several, parts of a block, a module with all that is in
    it."""
    layer = rng.randrange(nlayer)
    return rng.choice(
        (
            ["norm"],
            ["lm_head"],
            ["embed_tokens"],
            ["lm_head", "embed_tokens"],
            ["model.norm", "lm_head"],
            ["mlp"],
            [f"layers.{layer}"],
            ["q_proj", "down_proj", "embed_tokens"],
            [f"{layer}.self_attn", "_layernorm"],
        )
    )


def lora_config(rng, nlayer):
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"]
    layer = rng.randrange(nlayer)
    out = {"r": rng.randint(1, 7), "lora_alpha": rng.choice((1, 8, 5, 16)), "use_rslora": rng.random() < 0.4}
    out["target_modules"] = rng.choice(
        (
            "all-linear",
            rng.sample(modules, rng.randint(1, 5)),
            rng.sample(modules[:7], 2),
            [f"layers.{layer}.self_attn.q_proj", "down_proj"],
            rf".*\.{layer}\..*(q|o|up)_proj",
            r"model\.layers\.\d+\.mlp\..*_proj|lm_head",
        )
    )
    if rng.random() < 0.4:
        out["rank_pattern"] = rng.choice(
            (
                {"q_proj": 2, "down_proj": 9},
                {rf"layers\.{layer}\..*": 5},
                {f"model.layers.{layer}.mlp.up_proj": 3, "up_proj": 4},
            )
        )
    if rng.random() < 0.4:
        out["alpha_pattern"] = rng.choice(
            (
                {"o_proj": 3},
                {r".*mlp\.(gate|up)_proj": 20, "lm_head": 2},
                {f"^model.layers.{layer}.self_attn.v_proj": 11},
            )
        )
    if rng.random() < 0.5:
        out["modules_to_save"] = saved_modules(rng, nlayer)
    if rng.random() < 0.5 and not any(end in str(out["target_modules"]) for end in ("embed_tokens", "lm_head")):
        out["use_dora"] = True
    for key in ("rank_pattern", "alpha_pattern"):
        drop_unused(out, key, nlayer)
    return out


def of_attention(rng, lora):
    """PEFT trains the experts of a layer as one parameter, and copies routers and experts of other names."""
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save"):
        lora.pop(key, None)
    lora["target_modules"] = rng.sample(["q_proj", "k_proj", "v_proj", "o_proj"], rng.randint(1, 4))
    if rng.random() < 0.4:
        lora["modules_to_save"] = rng.choice((["norm"], ["lm_head"], ["self_attn"]))


def of_parameters(rng, lora, router, layer):
    """The experts of a layer as PEFT trains them, in some layers or in all, and the router."""
    gate_up, down = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
    lora.pop("use_dora", None)
    lora["target_parameters"] = rng.choice(([gate_up, down], [down, gate_up, f"mlp.{router}.weight"], [gate_up], [down],
                                            [f"layers.{layer}.{gate_up}", "down_proj"], [f"{router}.weight", gate_up]))
    if rng.random() < 0.3:
        lora["target_modules"] = []
    chosen = [name for name in ("gate_up_proj", "down_proj") if name in str(lora["target_parameters"])]
    if rng.random() < 0.5:
        lora["rank_pattern"] = {rng.choice(("", r".*\.", "experts.")) + rng.choice(chosen): rng.randint(1, 5)}
    if rng.random() < 0.5:
        lora["alpha_pattern"] = {rng.choice(chosen): 11}


def drop_unused(lora, key, nlayer):
    """A pattern that fits no module with an adapter is refused, where PEFT ignores it: left out here."""
    linears = [
        f"model.layers.{i}.{m}"
        for i in range(nlayer)
        for m in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    ]
    targets, saved = lora["target_modules"], lora.get("modules_to_save", [])
    if targets == "all-linear":
        chosen = linears
    elif isinstance(targets, str):
        chosen = [p for p in [*linears, "lm_head", "model.embed_tokens"] if re.fullmatch(targets, p)]
    else:
        chosen = [
            p for p in [*linears, "lm_head", "model.embed_tokens"]
            if any(p == t or p.endswith("." + t) for t in targets)
        ]
    left = [p for p in chosen if not any(re.fullmatch(rf"(^|.*\.)(?:{s})($|\..*)", p) for s in saved)]
    kept = {}
    for pattern, value in lora.get(key, {}).items():
        fits = [p for p in left if re.fullmatch(rf"(.*\.)?({pattern})", p)]
        left = [p for p in left if p not in fits]
        kept.update({pattern: value} if fits else {})
    if key in lora:
        lora[key] = kept


def documents(rng, nvocab):
    out = []
    for i in range(16):
        ids = [rng.randrange(nvocab) for _ in range(rng.choice((1, 2, 5, 9, 14, 23)))]
        masked = 1.0 if i in (3, 8) else rng.choice((0, 0.3, 0.7))
        out.append({"input_ids": ids, "labels": [-100 if rng.random() < masked else t for t in ids]})
    return out


def plan(rng, docs):
    """Steps of micro-batches of rows of documents; every step has some supervised token, not every micro-batch has. One
    is after two others: attention that sees one key has no gradient, and Adam makes whole steps of its rounding."""
    def row():
        return rng.sample(range(len(docs)), rng.randint(1, 3))
    steps = []
    while len(steps) < STEPS:
        micros = [[row() for _ in range(rng.randint(1, 2))] for _ in range(rng.randint(1, 5))] + [[[3]]] * (
            rng.random() < 0.5
        )
        rng.shuffle(micros)
        if supervised(docs, micros, first=2):
            steps.append(micros)
    return steps


def supervised(docs, micros, first=1):
    return sum(t != -100 for micro in micros for row in micro for d in row for t in docs[d]["labels"][first:])


def settings(rng):
    out = {
        "learning_rate": rng.choice((1e-3, 5e-3)),
        "lr_scheduler_type": rng.choice(("linear", "cosine", "constant")),
        "warmup_steps": rng.randint(0, 2),
        "weight_decay": rng.choice((0.0, 0.1)),
        "weight_decay_on": rng.choice(("all", "matrices")),
        "adam_beta1": rng.choice((0.9, 0.8)),
        "adam_beta2": rng.choice((0.999, 0.95)),
        "adam_epsilon": rng.choice((1e-6, 1e-4)),
        "max_grad_norm": rng.choice((None, 0.1, 1.0, 0)),
        "gradient_accumulation_steps": rng.randint(1, 3),
        "max_steps": STEPS,
    }
    if out["lr_scheduler_type"] == "cosine" and rng.random() < 0.5:
        out["min_lr_ratio"] = 0.25
    return out


# --- transformers and PEFT

def draw_weights(model, seed):
    g = torch.Generator().manual_seed(seed)
    for _, bias in router_biases(model):
        bias.copy_(torch.randn(bias.shape, generator=g) * 0.3)
    for name, p in model.named_parameters():
        spread = 0.35 if "embed" in name else 1 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2
        p.data = torch.randn(p.shape, generator=g) * spread + (
            1.0 if "norm" in name and name.endswith("weight") else 0.0
        )


def router_biases(model):
    """Buffers, which are in the files and have no gradient."""
    return [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]


def published(config, tensors):
    """With the names of files: transformers holds the experts of a layer in two tensors."""
    mixtral, out = config["model_type"] == "mixtral", {}
    if config["model_type"] == "gpt_oss":  # published so
        return {name: x.contiguous() for name, x in tensors.items()}
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, x in tensors.items():
        path, _, end = name.rpartition(".")
        path = path.replace(".mlp", ".block_sparse_moe") if mixtral else path
        if end == "gate_up_proj":
            for e, (g, u) in enumerate(zip(*x.chunk(2, dim=1))):
                out.update({f"{path}.{e}.{gate}.weight": g.contiguous(), f"{path}.{e}.{up}.weight": u.contiguous()})
        elif end == "down_proj":
            out.update({f"{path}.{e}.{down}.weight": d.contiguous() for e, d in enumerate(x)})
        else:
            out[f"{path}.{end}"] = x.contiguous()
    return out


def write_model(folder, config, seed):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager").float()
    draw_weights(model, seed)
    save_file(
        published(config, {n: p.data for n, p in [*model.named_parameters(), *router_biases(model)]}),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    ways = {"experts_implementation": "eager"} if config["model_type"] in SPARSE else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **ways)
    return model.train()


def attach(model, lora, folder, seed):
    """With an adapter of which no half is zero; its start as a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
        g, before = torch.Generator().manual_seed(seed), {
            n: p.data.clone()
            for n, p in peft.named_parameters()
            if "magnitude" in n
        }
        for name, p in peft.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                p.data = torch.randn(
                    p.shape, generator=g) * (0.1 if "lora_B" in name or "embedding_A" in name else p.shape[1]**-0.5)
            if "magnitude" in name:
                p.data = before[name] * (1 + 0.2 * torch.randn(p.shape, generator=g))
            elif "modules_to_save" in name and seed % 2:  # else they begin as the base's
                p.data += torch.randn(p.shape, generator=g) * 0.1
        peft.save_pretrained(folder)
    return peft


def pack(rows, docs):
    length = max(sum(len(docs[d]["input_ids"]) for d in row) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    pos, doc, target = ids.clone(), ids.clone() - 1, ids.clone() - 100
    for r, row in enumerate(rows):
        at = 0
        for d in row:
            n = len(docs[d]["input_ids"])
            ids[r, at:at + n], target[r, at:at + n - 1] = torch.tensor(docs[d]["input_ids"]), torch.tensor(
                docs[d]["labels"][1:])
            pos[r, at:at + n], doc[r, at:at + n] = torch.arange(n), at
            at += n
        pos[r, at:] = torch.arange(length - at)
    return ids, pos, doc, target


def masks(config, doc):
    """Additive: causal, inside the document, in windows where the layer has one."""
    q, k = torch.arange(doc.shape[1])[:, None], torch.arange(doc.shape[1])[None, :]
    full = (k <= q) & (doc[:, :, None] == doc[:, None, :])
    window = getattr(config, "sliding_window", None)
    slide = full & (k > q - window) if window else full
    full, slide = (torch.zeros(m.shape).masked_fill(~m, torch.finfo(torch.float32).min)[:, None] for m in (full, slide))
    if config.model_type in ("mistral", "mixtral", "qwen3_moe"):
        return slide
    return {"full_attention": full, "sliding_attention": slide} if getattr(config, "layer_types", None) else full


def losses(model, rows, docs):
    """The sum over supervised tokens, and the load balancing loss or 0."""
    ids, pos, doc, target = pack(rows, docs)
    out = model(input_ids=ids, position_ids=pos, attention_mask=masks(model.config, doc), use_cache=False)
    config, uneven = model.config, 0
    if "router_aux_loss_coef" in config.to_dict() and config.output_router_logits:
        uneven = config.router_aux_loss_coef * load_balancing_loss(
            out.router_logits, config.num_experts if hasattr(config, "num_experts") else config.num_local_experts,
            config.num_experts_per_tok, doc >= 0)
    return torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), target.flatten(), reduction="sum"), uneven


def sum_of_losses(model, rows, docs):
    return losses(model, rows, docs)[0]


def step_loss(model, micros, docs):
    loss, n = 0.0, supervised(docs, micros)
    for rows in micros:
        part, uneven = losses(model, rows, docs)
        part = part / n + uneven / len(micros)
        part.backward()
        loss += part.item()
    return loss


def optimizer_of(params, train):
    plain = {n for n in params
             if train["weight_decay_on"] == "matrices" and (params[n].dim() < 2 or n.endswith("_bias"))}
    groups = [
        {"params": [p for n, p in params.items() if n not in plain]},
        {"params": [p for n, p in params.items() if n in plain], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=train["learning_rate"],
        betas=(train["adam_beta1"], train["adam_beta2"]),
        eps=train["adam_epsilon"],
        weight_decay=train["weight_decay"],
        foreach=False,
    )


def truth(model, steps, docs, train):
    """(loss, norm, lr) of each step; what is trained, before and after."""
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(params, train)
    floor, name = train.get("min_lr_ratio"), {"constant": "constant_with_warmup"}.get(
        train["lr_scheduler_type"], train["lr_scheduler_type"])
    schedule = get_scheduler("cosine_with_min_lr" if floor else name, optimizer, train["warmup_steps"], STEPS,
                             {"min_lr": floor * train["learning_rate"]} if floor else None)
    def state():
        if hasattr(model, "peft_config"):
            named = get_peft_model_state_dict(model, save_embedding_layers=False)
            return {n: p.detach().clone().double() for n, p in named.items()}
        named = {**params, **dict(router_biases(model))}
        return published(model.config.to_dict(), {n: p.detach().clone().double() for n, p in named.items()})
    numbers, start = [], state()
    for micros in steps:
        loss = step_loss(model, micros, docs)
        norm = torch.nn.utils.clip_grad_norm_(params.values(), train["max_grad_norm"] or float("inf"),
                                              foreach=False).item()
        numbers.append((loss, norm, optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return numbers, start, state()


# --- ours

def run_ours(tool, folder, config, options):
    (folder / "run.json").write_text(json.dumps(config))
    done = subprocess.run([tool, "run", str(folder / "run.json"), "-q", *options], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=1800)
    if done.returncode:
        return None, done.stderr[-600:]
    out = folder / "out"
    numbers = [(m["loss"], m["grad_norm"], m["lr"])
               for m in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    if "lora" in config:
        return (numbers, {
            k: v.double()
            for k, v in load_file(out / "adapter/adapter_model.safetensors").items()
            if ".base_layer.weight" not in k
        }), ""
    end = folder / "end.safetensors"
    subprocess.run([
        str(pathlib.Path(tool).with_name("fsdpck")), "export",
        str(out / f"checkpoints/step-{STEPS:06d}"),
        str(end), "-q", "--force", "--select", "model", "--dtype", "fp32"
    ], check=True, stdout=subprocess.DEVNULL)
    return (numbers, {k: v.double() for k, v in load_file(end).items()}), ""


def differences(theirs, ours):
    numbers, start, end = theirs
    bad = []
    for i, (want, got) in enumerate(zip(numbers, ours[0])):
        # where a query sees one key, attention has no gradient, up to rounding
        for what, w, g, limit, least in zip(("loss", "norm", "lr"), want, got, (2e-5, 2e-4, 1e-12), (1e-3, 1e-2, 1e-3)):
            if not abs(g - w) <= limit * max(abs(w), least):
                bad.append(f"step {i + 1}: {what} {g!r}, {w!r} wanted")
    if end.keys() != ours[1].keys():
        return bad + [f"tensors: {sorted(end.keys() ^ ours[1].keys())[:4]}"]
    for name, want in end.items():
        moved = (want - start[name]).norm().item()
        far = (ours[1][name] - want).norm().item() if want.shape == ours[1][name].shape else float("inf")
        if not far <= 0.01 * moved + 1e-6 * want.norm().item():
            bad.append(f"{name}: {far:.3g} off, it moved by {moved:.3g}")
    return bad


def same_bits(tool, folder, config, rng):
    runs = []
    config = {
        **config, "dtype": {
            "param": "bf16", "reduce": rng.choice(("fp32", "bf16")), "output": rng.choice(("fp32", "bf16"))
        }
    }
    if "lora" in config:
        dropout = 0 if "target_parameters" in config["lora"] else rng.choice((0, 0.3))
        config["lora"] = {**config["lora"], "lora_dropout": dropout}
    for ranks in (1, rng.choice((2, 3, 4, 5, 7, 8))):
        shutil.rmtree(folder / "out", ignore_errors=True)
        config["fsdp"] = {
            "sharding_strategy": rng.choice(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
            "activation_checkpointing": rng.choice(("none", "block")),
            "forward_prefetch": rng.randint(0, 4),
            "backward_prefetch": rng.randint(0, 4),
        }
        options = ["--ranks", str(ranks), "--threads", str(rng.randint(1, 3)), "--gather", rng.choice(("map", "copy"))]
        done, why = run_ours(tool, folder, config, options)
        if done is None:
            return [why]
        runs.append((done[0], {k: v.numpy().tobytes() for k, v in done[1].items()}))
    return [] if runs[0] == runs[1] else [
        f"other bits by {' '.join(options)}, {json.dumps(config['fsdp'])}, {json.dumps(config['dtype'])}"
    ]


def adapter_in_peft(tool, folder, config, docs, rng):
    """Adapters on experts, which PEFT trains otherwise: what ours trains has the same loss in PEFT. (It finds the
    adapters of gate and up only where down has one too, and loses those of dense layers beside sparse ones, and
    those of Qwen2-MoE.)"""
    shutil.rmtree(folder / "out", ignore_errors=True)
    names = load_file(folder / "model/model.safetensors").keys()
    targets = ["w1", "w3", "w2"] if any("sparse" in name for name in names) else ["gate_proj", "up_proj", "down_proj"]
    chosen = rng.choice(("all-linear", targets, [*targets, "q_proj", "gate"]))
    if any(".shared_experts." in name for name in names):
        chosen = r".*\.(experts\.(\d+\.)?(gate|up|down)_proj|gate|q_proj)"  # PEFT asks for experts.gate_proj
    elif any(name.endswith(".sinks") or ".mlp.gate_proj." in name or ".shared_expert." in name for name in names):
        chosen = ["q_proj", "v_proj"]
    lora = {"r": rng.randint(1, 4), "lora_alpha": 8, "target_modules": chosen}
    if any(name.endswith((".experts.0.down_proj.weight", ".experts.0.w2.weight", ".experts.down_proj"))
           for name in names) and rng.random() < 0.5:
        lora.update(target_modules=rng.choice(([], ["q_proj", "v_proj"])), target_parameters=rng.choice(
            (["experts.gate_up_proj", "experts.down_proj"], ["experts.gate_up_proj"], ["experts.down_proj"])))
    config = {**config, "lora": lora, "dtype": {"param": "fp32"},
              "data": {**config["data"], "eval": str(folder / "data.jsonl")},
              "sample": {"every": STEPS, "prompts": [{"input_ids": docs[5]["input_ids"]}]}}
    done, why = run_ours(tool, folder, config, ["--ranks", str(rng.choice((1, 2, 3))), "--threads", "1"])
    if done is None:
        return [why]
    ours = [m["eval_loss"] for m in map(json.loads, (folder / "out/metrics.jsonl").read_text().splitlines())
            if "eval_loss" in m][-1]
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager")
    model = PeftModel.from_pretrained(base, folder / "out/adapter").eval()
    with torch.no_grad():
        theirs = sum(sum_of_losses(model, [[d]], docs).item() for d in range(len(docs)))
    theirs /= supervised(docs, [[[d]] for d in range(len(docs))])
    if not abs(ours - theirs) <= 2e-5 * theirs:
        return [f"adapter {lora} in PEFT: loss {theirs!r}, ours {ours!r}"]
    sampled = next((folder / "out/samples").glob("*")).read_text().split("== sample ==")[1].split()[:12]
    return greedy(model, docs[5]["input_ids"], [int(token) for token in sampled])


def greedy(model, prompt, sampled):
    """Each token is the likeliest one after those before it, or within rounding of that."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + sampled]), use_cache=False).logits[0, len(prompt) - 1:-1]
    bad = [i for i, token in enumerate(sampled) if not logits[i].max() - logits[i, token] <= 1e-4]
    return [f"sampled {sampled} after {prompt}: not the likeliest at {bad}"] if bad else []


def one(tool, folder, seed):
    """Lines of what differs, and what the case was."""
    rng = random.Random(seed)
    sparse = seed % SEEDS >= DENSE_SEEDS
    family, is_lora = SPARSE[seed % 6] if sparse else FAMILIES[seed % 4], rng.random() < 0.65
    if family == "gpt_oss":  # both among the first seeds
        is_lora = seed // 6 % 2 == 1
    config = model_config(rng, family)
    docs = documents(rng, config["vocab_size"])
    steps, train = plan(rng, docs), settings(rng)
    ours = {
        "model": str(folder / "model"),
        "output_dir": str(folder / "out"),
        "data": {"train": str(folder / "data.jsonl"), "plan": str(folder / "plan.json")},
        "train": train,
        "dtype": {"param": "fp32"},
        "checkpoint": {"save_steps": rng.choice((0, 2))},
        "fsdp": {
            "sharding_strategy": rng.choice(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
            "activation_checkpointing": rng.choice(("none", "block")),
            "forward_prefetch": rng.randint(0, 3),
            "reshard_after_forward": rng.random() < 0.7,
        },
    }
    options = ["--ranks", str(rng.choice((1, 2, 3, 5, 8))), "--threads", "1", "--gather", rng.choice(("map", "copy"))]
    folder.mkdir()
    (folder / "data.jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    (folder / "plan.json").write_text(json.dumps({"steps": steps}))
    if is_lora:
        ours["lora"] = lora_config(rng, config["num_hidden_layers"])
        if sparse:
            of_attention(rng, ours["lora"])
            if sparse_layers(config) and rng.random() < 0.6:
                of_parameters(rng, ours["lora"], "router" if family == "gpt_oss" else "gate",
                              sparse_layers(config)[-1])
    said = f"{json.dumps(config)} {json.dumps(ours.get('lora'))} {json.dumps(train)} {' '.join(options)}"
    model = write_model(folder / "model", config, seed)
    if is_lora:
        try:
            model = attach(model, ours["lora"], folder / "start", seed)
        except ValueError as e:  # targets that this model has not
            done, why = run_ours(tool, folder, ours, options)
            return [] if done is None and "target_modules" in why else [f"PEFT refuses, fsdptrain does not: {e}"], said
        ours["lora"]["init_adapter"] = str(folder / "start")
    theirs = truth(model, steps, docs, train)
    done, why = run_ours(tool, folder, ours, options)
    bad = [why] if done is None else differences(theirs, done)
    bad = bad or same_bits(tool, folder, ours, rng)
    if sparse and not bad:
        bad = adapter_in_peft(tool, folder, {k: v for k, v in ours.items() if k != "lora"}, docs, rng)
    return bad, said


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("fsdptrain")
    ap.add_argument("--count", type=int, default=SEEDS)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--keep", type=pathlib.Path, help="work in this folder and leave it")
    args = ap.parse_args()
    torch.set_num_threads(1)
    work, nfailed = args.keep or pathlib.Path(tempfile.mkdtemp(prefix="fsdptrain-random-")), 0
    work.mkdir(exist_ok=True)
    try:
        for seed in range(args.seed, args.seed + args.count):
            bad, said = one(os.path.abspath(args.fsdptrain), work / str(seed), seed)
            nfailed += bool(bad)
            if bad:
                print(f"FAILED seed {seed}: {said}\n   " + "\n   ".join(bad[:6]), flush=True)
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{args.count - nfailed} passed, {nfailed} failed")
    return nfailed > 0


if __name__ == "__main__":
    sys.exit(main())
