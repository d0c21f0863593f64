# SPDX-License-Identifier: Apache-2.0
"""The models that make_quant.py quantizes, and how it saves them. The weights hold an all-zero block, an outlier,
values that underflow, exact ties and -0."""

import warnings

warnings.filterwarnings("ignore")
import torch

import make_tiny
from make_smollm2 import save_weights, write_json

torch.set_num_threads(1)
CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
RAGGED = {"hidden_size": 136, "intermediate_size": 144}  # two blocks of 128 in each direction, the last one partial
FP8 = torch.float8_e4m3fn


# ---------------------------------------------------------------- the source
def special(w):
    """Plants what quantizers trip over into the first rows of a matrix: zeros, -0, ties, an outlier, tiny values."""
    w = w.clone()
    rows, cols = w.shape
    w[0, :32] = 0.0  # a block of 32 without anything
    w[1, :32] = torch.tensor([-0.0, 1e-30] * 16)  # nothing after any scale
    w[2, :16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2) * torch.tensor(
        [1.0, -1.0] * 8
    )  # FP4 ties at scale 1
    w[2, 16:32] = torch.tensor([1.0, 1.0625, 1.1875, 448.0] * 4)  # E4M3 ties at scale 1
    w[3, cols - 1] = 300.0 if cols > 64 else 3.0  # an outlier in the last block
    w[rows - 1] = w[rows - 1] * 2.0**-20
    return w


def source_config(**change):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **CONFIG, **change, "torch_dtype": "bfloat16"}


def source_weights(config, seed):
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values))
    out = {}
    for name, t in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        w = make_tiny.tensor_for(name, tuple(t.shape), seed).to(torch.bfloat16)
        out[name] = special(w) if name.endswith(("down_proj.weight", "k_proj.weight")) else w
    return out


def linears(weights, ignore=()):
    """The matrices that a quantizer takes: every Linear but the head and what `ignore` names."""
    return [
        n
        for n, t in weights.items()
        if t.ndim == 2 and "embed_tokens" not in n and not n.startswith("lm_head") and not any(i in n for i in ignore)
    ]


def gpt_oss_source(seed, **change):
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 40,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        **change,
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **values))
    src = {
        n: make_tiny.uniform(tuple(t.shape), 0.1, seed, n, 1.0 if n.endswith("norm.weight") else 0.0).to(torch.bfloat16)
        for n, t in model.state_dict().items()
    }
    for n in src:
        if n.endswith("experts.down_proj"):
            src[n][0] = special(src[n][0].t().contiguous()).t()
    return src, {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **values, "torch_dtype": "bfloat16"}


FEW = (
    ".mlp.down_proj.",
    ".self_attn.k_proj.",
    ".input_layernorm.",
    ".experts.down_proj",
)  # --few: what fixtures/quant has
few = False


def kept(tensors):
    return {n: t for n, t in tensors.items() if not few or any(w in n for w in FEW)}


def save_model(folder, tensors, config, shards):
    tensors = kept(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights({n: t.contiguous() for n, t in tensors.items()}, folder, shards)
    write_json(folder / "config.json", config)
