# SPDX-License-Identifier: Apache-2.0
"""Defects for tests of `fsdpck doctor`, each made from a good folder. Expected: severity, check and subject of the only
finding."""
import json
import os
import shutil

from doctor_folders import FIXTURES, quantization, tensor, text
from run_cases import write_safetensors


def truncate(m):
    os.truncate(m.at("model-00002-of-00003.safetensors"), os.path.getsize(m.at("model-00002-of-00003.safetensors")) - 4)


def pointer(m):
    with open(m.at("model-00002-of-00003.safetensors"), "w") as f:
        f.write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def edit_index(m, change):
    where = m.index()
    change(where)
    m.write_index(where)


def second_copy(m):
    os.remove(m.at("model.safetensors.index.json"))
    shutil.copy(m.at("model-00002-of-00003.safetensors"), m.at("model-00004-of-00003.safetensors"))


def only_settings(m):
    os.remove(m.at("tokenizer.json"))


def without_processor(m):
    m.json("config.json", vision_config={}, architectures=["LlavaForConditionalGeneration"])
    m.put("model.visual.patch.weight", tensor("BF16", 2))


def without_template(m):
    m.json("tokenizer_config.json", chat_template=None)
    m.json("config.json", _name_or_path="some/Model-Instruct")


def ignore_quantized(m):
    config = json.load(open(m.at("config.json")))["quantization_config"]
    scaled = next(k for k in m.tensors() if k.endswith(".weight_scale"))
    m.json("config.json", quantization_config={**config, "ignore": config["ignore"] + [scaled[:-len(".weight_scale")]]})


def targets(m):
    return sorted({k.split(".lora_")[0].rsplit(".", 1)[1] for k in m.tensors()})


def fused_adapter(**keys):
    """An adapter of fused experts: 4 of them, rank 2, 8 inputs, 6 outputs."""

    def spoil(m):
        stem = "base_model.model.model.layers.0.mlp.experts.lora_"
        tensors = {stem + "A.weight": tensor("BF16", 8, 8), stem + "B.weight": tensor("BF16", 6, 8)}
        write_safetensors(m.at("adapter_model.safetensors"), tensors, {"format": "pt"})
        m.json("adapter_config.json", **{"r": 2, "target_modules": [], "peft_version": "0.21.2",
                                         "target_parameters": ["experts.down_proj"], **keys})

    return spoil


def swap(m):
    """16 inputs and 48 outputs swapped, as PEFT before 0.19.1 wrote them, under the name of a later release."""
    fused_adapter(target_parameters=["experts.gate_up_proj"])(m)
    stem = "base_model.model.model.layers.0.mlp.experts.lora_"
    m.write({stem + "A.weight": ("adapter_model.safetensors", tensor("BF16", 6, 48)),
             stem + "B.weight": ("adapter_model.safetensors", tensor("BF16", 16, 6))})


def add_rows(m):
    """Resizes the vocabulary as resize_token_embeddings() does."""
    m.json("config.json", vocab_size=1120)
    m.put("model.embed_tokens.weight", tensor("BF16", 1120, 128))


def gemma_with_head(m):
    """Gemma is tied where config.json says nothing."""
    m.json("config.json", model_type="gemma2", tie_word_embeddings=None)
    m.put("lm_head.weight", tensor("BF16", 1112, 128))


def total_size(m):
    index = json.load(open(m.at("model.safetensors.index.json")))
    text(m, "model.safetensors.index.json", json.dumps({**index, "metadata": {"total_size": 5}}))


def without_index(m, rename=None, remove=None):
    os.remove(m.at("model.safetensors.index.json"))
    if rename:
        os.rename(m.at(rename[0]), m.at(rename[1]))
    if remove:
        os.remove(m.at(remove))


def dangling(m, name):
    os.remove(m.at(name))
    os.symlink("/nowhere/blob", m.at(name))


def wrap(m, part, by):
    m.write({k.replace(part, by): v for k, v in m.tensors().items()})


def to_f32(m, part):
    m.write({
        k: (file, ("F32", t[1], bytes(2 * len(t[2]))) if part in k else t)
        for k, (file, t) in m.tensors().items()
    })


def only_words(m, **keys):
    """A tokenizer of two files, without one of them."""
    os.remove(m.at("tokenizer.json"))
    text(m, "vocab.json", "{}")


def make_other_family(m):
    """Five layers of a family that is not known."""
    tensors = {k: v for k, v in m.tensors().items() if ".layers." not in k}
    file = next(iter(tensors.values()))[0]
    for layer in range(5):
        for part in ("norm", "mixer.in_proj", "mlp.up") if layer % 2 else ("norm", "attn.qkv", "mlp.up"):
            tensors["model.layers.%d.%s.weight" % (layer, part)] = (file, tensor("BF16", 4))
    for name in os.listdir(m.folder):
        if ".safetensors" in name:
            os.remove(m.at(name))
    write_safetensors(m.at("model.safetensors"), {k: t for k, (_, t) in tensors.items()}, {"format": "pt"})
    m.json("config.json", model_type="another", num_hidden_layers=5)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
EMBEDDING = "base_model.model.model.embed_tokens.weight"
Q = "model.layers.1.self_attn.q_proj.weight"
ONE = "model-00001-of-00003.safetensors"
# (source, expected severity, check, subject, how)
DEFECTS = [
    ("llama", "error", "json", "", lambda m: text(m, "config.json", "{")),
    ("llama", "error", "index", "", lambda m: text(m, "model.safetensors.index.json", "{}")),
    ("llama", "error", "files", "", lambda m: os.remove(m.at("model-00002-of-00003.safetensors"))),
    ("llama", "error", "files", None, truncate),
    ("llama", "error", "files", "", pointer),
    ("llama", "warning", "extra-files", "",
     lambda m: write_safetensors(m.at("model.safetensors"), {"x": tensor("F32", 2)})),
    ("llama", "error", "placement", Q, lambda m: edit_index(m, lambda w: w.pop(Q))),
    ("llama", "error", "placement", "model.lost.weight",
     lambda m: edit_index(m, lambda w: w.update({"model.lost.weight": ONE}))),
    ("llama", "error", "placement", Q,
     lambda m: edit_index(m, lambda w: w.update({Q: sorted(set(w.values()) - {w[Q]})[0]}))),
    ("llama", "error", "twice", None, second_copy),
    ("llama", "error", "wrappers", None, lambda m: m.prefix("", "module.")),
    ("llama", "error", "wrappers", None, lambda m: m.prefix("", "base_model.model.")),
    ("llama", "error", "wrappers", None, lambda m: m.prefix("model.", "model.model.")),
    ("llama", "error", "leftovers", Q.replace("weight", "lora_A.weight"),
     lambda m: m.put(Q.replace("weight", "lora_A.weight"), tensor("BF16", 2, 128))),
    ("llama", "warning", "leftovers", "model._extra_state", lambda m: m.put("model._extra_state", tensor("U8", 4))),
    ("llama", "note", "leftovers", "model.layers.0.self_attn.rotary_emb.inv_freq",
     lambda m: m.put("model.layers.0.self_attn.rotary_emb.inv_freq", tensor("F32", 16))),
    ("llama", "error", "empty", Q, lambda m: m.put(Q, tensor("BF16", 0))),
    ("llama", "error", "layers", "model.layers.N", lambda m: m.drop("layers.1.")),
    ("llama", "error", "layers", "num_hidden_layers", lambda m: m.json("config.json", num_hidden_layers=1)),
    ("llama", "error", "mtp", "num_nextn_predict_layers", lambda m: m.json("config.json", num_nextn_predict_layers=1)),
    ("llama", "error", "mtp", "mtp_num_hidden_layers", lambda m: m.json("config.json", mtp_num_hidden_layers=1)),
    ("llama", "error", "layer-parts", Q, lambda m: m.drop(Q)),
    ("llama", "error", "shapes", Q, lambda m: m.put(Q, tensor("BF16", 128, 64))),
    ("llama", "error", "shapes", "model.embed_tokens.weight", lambda m: m.json("config.json", vocab_size=1120)),
    ("llama", "error", "head", "lm_head.weight", lambda m: m.put("lm_head.weight", tensor("BF16", 1112, 128))),
    ("llama", "warning", "head", "lm_head.weight", lambda m: second_head(m, lambda data: data)),
    ("llama", "error", "head", "lm_head.weight", lambda m: m.json("config.json", tie_word_embeddings=False)),
    ("llama", "error", "head", "lm_head.weight", lambda m: m.json("config.json", tie_word_embeddings=None)),
    ("llama", "warning", "dtype", "dtype", lambda m: m.json("config.json", torch_dtype="float16")),
    ("llama", "warning", "dtype-keys", "torch_dtype",
     lambda m: m.json("config.json", torch_dtype="float16", dtype="bfloat16")),
    ("llama", "error", "vision", "vision_config",
     lambda m: m.json("config.json", vision_config={}, architectures=["LlavaForConditionalGeneration"])),
    ("llama", "error", "audio", "audio_config",
     lambda m: m.json("config.json", audio_config={}, architectures=["LlavaForConditionalGeneration"])),
    ("llama", "warning", "tower", "model.visual.patch.weight",
     lambda m: m.put("model.visual.patch.weight", tensor("BF16", 2))),
    ("llama", "warning", "processor", "vision_config", without_processor),
    ("llama", "warning", "tied-keys", "tie_word_embeddings",
     lambda m: m.json("config.json", text_config={"tie_word_embeddings": True}, tie_word_embeddings=False)),
    ("llama", "warning", "tied-keys", "tie_word_embeddings",
     lambda m: m.json("config.json", text_config={}, tie_word_embeddings=True)),
    ("llama", "error", "head", "lm_head.weight", gemma_with_head),
    ("llama", "warning", "rope-keys", "rope_scaling",
     lambda m: m.json("config.json", rope_scaling={"type": "linear", "rope_type": "yarn", "factor": 2.0})),
    ("llama", "warning", "rope-keys", "rope_scaling",
     lambda m: m.json("config.json", rope_scaling={"rope_type": "yarn", "factor": 2},
                      rope_parameters={"rope_type": "yarn", "factor": 4})),
    ("llama", "warning", "special-tokens", "eos_token",
     lambda m: m.json("tokenizer_config.json", eos_token={"content": "<|begin_of_text|>"})),
    ("llama", "note", "padding", "pad_token", lambda m: m.json("tokenizer_config.json", pad_token="<|eot_id|>")),
    ("llama", "error", "templates", "chat_template", lambda m: text(m, "chat_template.jinja", "{{ messages }}")),
    ("llama", "warning", "no-template", "chat_template", without_template),
    ("llama", "warning", "template-tokens", "chat_template",
     lambda m: m.json("tokenizer_config.json", chat_template="<|eot_id|><|im_start|>{{ messages }}")),
    ("llama", "error", "wrappers", None, lambda m: m.prefix("model.", "module._orig_mod.model."), 2),
    ("llama", "error", "wrappers", None, lambda m: m.prefix("model.", "language_model.model.model.")),
    ("llama", "error", "wrappers", None, lambda m: wrap(m, ".mlp.", "._checkpoint_wrapped_module.mlp.")),
    ("llama", "error", "wrappers", None, lambda m: wrap(m, "q_proj.weight", "q_proj.base_layer.weight")),
    ("llama", "error", "wrappers", None, lambda m: wrap(m, "m.weight", "m.modules_to_save.default.weight")),
    ("llama", "warning", "leftovers", "scaler.scale", lambda m: m.put("scaler.scale", tensor("F32", 1))),
    ("llama", "note", "leftovers", None, lambda m: m.put("h.0.attn.bias", tensor("F32", 1, 1, 4, 4))),
    ("llama", "note", "mixed-dtypes", "model.layers.0.mlp.up_proj.weight", lambda m: to_f32(m, "up_proj")),
    ("llama", "error", "vision", "architectures",
     lambda m: m.json("config.json", architectures=["Qwen2VLForConditionalGeneration"])),
    ("llama", "error", "rows", "model.embed_tokens.weight",
     lambda m: m.json("config.json", model_type="another", vocab_size=1200)),
    ("llama", "error", "shards", "", lambda m: without_index(m, remove="model-00002-of-00003.safetensors")),
    ("another", "warning", "alike", "model.layers.4.attn.qkv.weight", lambda m: m.drop("layers.4.attn.qkv")),
    ("llama", "error", "shards", "", without_index),
    ("llama", "error", "shards", "", lambda m: without_index(m, rename=(ONE, "model-00001-of-00007.safetensors"))),
    ("llama", "note", "total-size", "metadata.total_size", total_size),
    ("llama", "warning", "extra-files", "",
     lambda m: write_safetensors(m.at("more.safetensors"), {"x": tensor("F32", 2)})),
    ("llama", "warning", "second-set", "",
     lambda m: write_safetensors(m.at("consolidated.safetensors"), {"x": tensor("F32", 2)})),
    ("llama", "warning", "second-set", "", lambda m: text(m, "consolidated.00.safetensors", "damaged" * 1000)),
    ("llama", "warning", "second-set", None,
     lambda m: shutil.copy(os.path.join(FIXTURES, "pt", "module", "model.pt"), m.at("pytorch_model.bin"))),
    ("llama", "error", "files", "", lambda m: dangling(m, ONE)),
    ("llama", "error", "files", "", lambda m: os.rename(m.at(ONE), m.at(ONE + ".incomplete"))),
    ("llama", "error", "files", "", lambda m: text(m, ONE, "<?xml version='1.0'?><Error/>")),
    ("llama", "error", "entries", "", lambda m: text(m, "tokenizer.json", LFS)),
    ("llama", "error", "entries", "", lambda m: text(m, "config.json", LFS)),
    ("llama", "error", "entries", "", lambda m: dangling(m, "tokenizer_config.json")),
    ("llama", "error", "vocabulary", None,
     lambda m: m.json("tokenizer_config.json", added_tokens_decoder={"1112": {"content": "<new>"}})),
    ("llama", "warning", "special-tokens", "bos_token",
     lambda m: m.json("tokenizer_config.json", bos_token="<|eot_id|>")),
    ("llama", "warning", "special-tokens", "pad_token",
     lambda m: m.json("tokenizer_config.json", pad_token="<|nothing|>")),
    ("llama", "warning", "special-files", "bos_token_id", lambda m: m.json("generation_config.json", bos_token_id=1)),
    ("llama", "note", "padding", "pad_token_id", lambda m: m.json("config.json", pad_token_id=1109, eos_token_id=1109)),
    ("llama", "note", "templates", "",
     lambda m: (text(m, "chat_template.jinja", "{{ messages }}"), m.json("tokenizer_config.json", chat_template=None))),
    ("llama", "error", "templates", "chat_template",
     lambda m: text(m, "chat_template.json", json.dumps({"chat_template": "{{ messages }}"}))),
    ("llama", "warning", "sampling", "top_k", lambda m: m.json("generation_config.json", top_k=20)),
    ("llama", "warning", "sampling", "max_length", lambda m: m.json("generation_config.json", max_length=20)),
    ("llama", "error", "tokenizer-files", "", only_words),
    ("llama", "error", "remote-code", "AutoTokenizer",
     lambda m: m.json("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.T", None]})),
    ("llama", "warning", "rope-keys", "rope_theta",
     lambda m: m.json("config.json", rope_theta=77, rope_parameters={"rope_theta": 78})),
    ("llama", "error", "quantization-config", "quantization",
     lambda m: text(m, "hf_quant_config.json", json.dumps({"quantization": {"quant_algo": "FP8"}}))),
    ("fp8", "error", "quantization-files", "quantization_config.quant_method",
     lambda m: text(m, "hf_quant_config.json", json.dumps({"quantization": {"quant_algo": "NVFP4"}}))),
    ("fp8", "note", "precision", None, lambda m: m.cast("weight_scale_inv", "BF16")),
    ("deepseek_v3", "error", "mtp", "num_nextn_predict_layers",
     lambda m: m.json("config.json", num_nextn_predict_layers=2)),
    ("deepseek_v3", "note", "precision", "model.layers.1.mlp.gate.e_score_correction_bias",
     lambda m: m.cast("e_score_correction_bias", "BF16")),
    ("nf4", "error", "quantized-weights", None, lambda m: m.cast(".absmax", "F16")),
    ("int8", "error", "quantized-weights", None, lambda m: m.cast(".SCB", "BF16")),
    ("qwen3_5_moe", "error", "fused-experts", "model.layers.0.mlp.experts.gate_up_proj",
     lambda m: m.write({**m.tensors(), **{"model.layers.0.mlp.experts.%d.up_proj.weight" % e:
                                          ("model.safetensors", tensor("BF16", 4, 8)) for e in range(4)}})),
    ("qwen3_5_moe", "error", "fused-experts", "model.layers.0.mlp.experts.gate_up_proj",
     lambda m: m.json("config.json", num_experts=5)),
    ("qwen3_5_moe", "error", "fused-experts", "model.layers.0.mlp.experts.gate_up_proj",
     lambda m: m.put("model.layers.0.mlp.experts.gate_up_proj", tensor("BF16", 4, 8, 12))),
    ("modelopt", "error", "quantization-files", "quantization_config.quant_algo",
     lambda m: m.json("hf_quant_config.json", quantization={"quant_algo": "NVFP4"})),
    ("modelopt", "error", "quantization-ignored", None, ignore_quantized),
    ("modelopt", "error", "json", "", lambda m: text(m, "hf_quant_config.json", "{")),
    ("llama", "error", "remote-code", "AutoModel", lambda m: m.json("config.json", auto_map={"AutoModel": "mine.M"})),
    ("llama", "error", "quantization-config", "quantization_config",
     lambda m: m.json("config.json", quantization_config={"quant_method": "fp8"})),
    ("fp8", "error", "quantization-config", None, lambda m: m.json("config.json", quantization_config=None)),
    ("fp8", "error", "quantized-weights", None, lambda m: m.drop("weight_scale_inv")),
    ("fp8-mixed", "error", "quantization-layers", "model.layers.1.self_attn.k_proj.weight",
     lambda m: quantization(m, modules_to_not_convert=["lm_head"])),
    ("llama", "error", "tokenizer-files", "", lambda m: text(m, "tokenizer.json", "[")),
    ("llama", "error", "tokenizer-files", "", only_settings),
    ("llama", "error", "vocabulary", "model.embed_tokens.weight",
     lambda m: m.json("tokenizer.json", added_tokens=json.load(open(m.at("tokenizer.json")))["added_tokens"] +
                      [{"id": 1112, "content": "<new>"}])),
    ("llama", "error", "special-ids", "pad_token_id", lambda m: m.json("generation_config.json", pad_token_id=1112)),
    ("llama", "warning", "chat-end", "eos_token_id",
     lambda m: m.json("generation_config.json", eos_token_id=[1106])),
    ("llama", "warning", "sampling", "temperature",
     lambda m: m.json("generation_config.json", do_sample=False, temperature=0.5)),
    ("moe", "error", "experts", "model.layers.1.mlp.experts.N", lambda m: m.drop("layers.1.mlp.experts.2.")),
    ("moe", "error", "experts", "model.layers.1.mlp.experts.N",
     lambda m: m.put("model.layers.1.mlp.experts.4.up_proj.weight", tensor("BF16", 4, 8))),
    ("adapter", "error", "lora-pairs", None, lambda m: m.drop("layers.1.self_attn.q_proj.lora_B")),
    ("adapter", "error", "lora-ranks", None, lambda m: m.json("adapter_config.json", r=7)),
    ("adapter", "error", "lora-ranks", None, lambda m: m.json("adapter_config.json", rank_pattern={"1.*.q_proj": 3})),
    ("adapter", "warning", "lora-targets", "target_modules",
     lambda m: m.json("adapter_config.json", target_modules=targets(m) + ["wi"])),
    ("adapter", "error", "lora-targets", None,
     lambda m: m.json("adapter_config.json", target_modules=targets(m)[:-1])),
    ("adapter", "error", "lora-experts", None, fused_adapter(target_parameters=None)),
    ("adapter", "error", "lora-experts", None, fused_adapter(peft_version="0.18.1")),
    ("adapter", "warning", "lora-experts", None, fused_adapter(peft_version=None)),
    ("adapter", "error", "empty", None,
     lambda m: m.put(next(iter(m.tensors())), ("F32", [0, 128], b""))),
    ("adapter", "warning", "lora-base-path", "base_model_name_or_path",
     lambda m: m.json("adapter_config.json", base_model_name_or_path="/nowhere/model")),
    ("adapter", "note", "lora-experts", None,
     lambda m: m.put("base_model.model.model.layers.0.mlp.experts.up_proj.lora_A.weight", tensor("F32", 4, 2, 8))),
    ("adapter", "note", "lora-consumer", "layer_replication",
     lambda m: m.json("adapter_config.json", layer_replication=[[0, 1]])),
    ("adapter", "note", "lora-consumer", "init_lora_weights",
     lambda m: m.json("adapter_config.json", init_lora_weights="pissa_niter_16")),
]
STEP = "iter_0000007"
# Folders of trainings, as DEFECTS
RUNS = [
    ("dcp", "error", "ranks", None, lambda m: os.remove(m.at("__1_0.distcp"))),
    ("dcp", "error", "ranks", None, lambda m: os.truncate(m.at("__2_0.distcp"), 300)),
    ("dcp", "error", "ranks", "", lambda m: os.remove(m.at(".metadata"))),
    ("dcp", "error", "ranks", "", lambda m: os.truncate(m.at(".metadata"), 300)),
    ("dcp", "warning", "ranks", "", lambda m: shutil.copy(m.at("__0_0.distcp"), m.at("__3_0.distcp"))),
    ("zero", "error", "latest", "", lambda m: text(m, "latest", "global_step4")),
    ("zero", "error", "latest", "", lambda m: text(m, "latest", "../zero")),
    ("zero", "error", "latest", "", lambda m: os.remove(m.at("global_step2/mp_rank_00_model_states.pt"))),
    ("zero", "error", "latest", None,
     lambda m: os.remove(m.at("global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"))),
    ("megatron", "error", "latest", "", lambda m: text(m, "latest_checkpointed_iteration.txt", "8")),
    ("megatron", "error", "latest", "", lambda m: os.remove(m.at(STEP + "/.metadata"))),
    ("megatron", "error", "latest", "", lambda m: os.remove(m.at(STEP + "/metadata.json"))),
    ("megatron", "error", "latest", None, lambda m: os.remove(m.at(STEP + "/__1_0.distcp"))),
]
# With --base: (source, base, severity, check, subject, how)
COMPARED = [
    ("llama", "llama", "error", "base-names", "model.norm.weight", lambda m: m.drop("model.norm.weight")),
    ("llama", "llama", "warning", "base-names", "model.new.weight",
     lambda m: m.put("model.new.weight", tensor("BF16", 2))),
    ("llama", "llama", "error", "base-shapes", "model.norm.weight",
     lambda m: m.put("model.norm.weight", tensor("BF16", 64))),
    ("llama", "llama", "note", "base-config", "vocab_size", add_rows),
    ("llama", "llama", "note", "base-dtypes", None, lambda m: to_f32(m, "norm")),
    ("llama", "llama", "note", "base-config", "architectures", lambda m: m.json("config.json", architectures=None)),
    ("llama", "llama", "warning", "base-config", "max_position_embeddings",
     lambda m: m.json("config.json", max_position_embeddings=9999999)),
    ("adapter", "llama", "error", "lora-base", None,
     lambda m: m.prefix("base_model.model.model.", "base_model.model.model.language_model.")),
    ("adapter", "whole", "error", "lora-expert-sizes", None, swap),
    ("adapter", "moe", "error", "lora-base", None, lambda m: None),
    ("adapter", "llama", "error", "lora-rows", EMBEDDING, lambda m: m.put(EMBEDDING, tensor("BF16", 1113, 128))),
    ("llama", "llama", "warning", "base-config", "rope_theta", lambda m: m.json("config.json", rope_theta=77)),
    ("llama", "llama", "note", "base-config", "architectures",
     lambda m: m.json("config.json", architectures=["OtherForCausalLM"])),
    ("llama", "llama", "warning", "no-template", "chat_template",
     lambda m: m.json("tokenizer_config.json", chat_template=None)),
]




def with_bytes(m, part, at, content):
    """Overwrites some bytes of the first tensor whose name has this part."""
    name, (file, (dtype, shape, data)) = next((k, v) for k, v in sorted(m.tensors().items()) if part in k)
    m.put(name, (dtype, shape, data[:at] + content + data[at + len(content):]))


def zero(m, part):
    m.write({k: (file, (*t[:2], bytes(len(t[2]))) if part in k else t) for k, (file, t) in m.tensors().items()})


def second_head(m, change):
    dtype, shape, data = m.tensors()["model.embed_tokens.weight"][1]
    m.put("lm_head.weight", (dtype, shape, change(data)))


def new_tokens(m, rows):
    """Two tokens more than the base has, with these rows; the vocabulary is padded to more rows than that."""
    tokens = json.load(open(m.at("tokenizer.json")))["added_tokens"]
    first = max(t["id"] for t in tokens) + 1
    m.json("tokenizer.json", added_tokens=tokens + [{"id": first + i, "content": "<new%d>" % i} for i in range(2)])
    dtype, shape, data = m.tensors()["model.embed_tokens.weight"][1]
    n = 2 * shape[1]
    data = data[:first * n] + rows(data, n) + data[(first + 2) * n:]
    m.put("model.embed_tokens.weight", (dtype, shape, data))


def row_of(data, nbytes, i):
    return data[i * nbytes:(i + 1) * nbytes]


# With --deep: (source, base, severity, check, subject, how)
DEEP = [
    ("llama", None, "error", "values", Q, lambda m: with_bytes(m, Q, 6, b"\xc0\x7f")),
    ("llama", None, "error", "values", Q, lambda m: with_bytes(m, Q, 6, b"\x80\xff")),
    ("llama", None, "warning", "values", Q, lambda m: zero(m, Q)),
    ("fp8", None, "error", "values", None, lambda m: with_bytes(m, "k_proj.weight", 3, b"\xff")),
    ("gpt_oss", None, "error", "values", None, lambda m: with_bytes(m, "_scales", 0, b"\xff")),
    ("llama", None, "warning", "head", "lm_head.weight", lambda m: second_head(m, lambda data: data)),
    ("llama", None, "error", "head", "lm_head.weight", lambda m: second_head(m, lambda data: data[2:] + data[:2])),
    ("llama", "llama", "note", "unchanged", "", lambda m: None),
    ("adapter", None, "error", "lora-untrained", None, lambda m: zero(m, "lora_B")),
    ("adapter", None, "note", "lora-untrained", None, lambda m: zero(m, "layers.1.self_attn.q_proj.lora_B")),
    ("llama", "llama", "warning", "new-rows", "model.embed_tokens.weight",
     lambda m: new_tokens(m, lambda data, n: row_of(data, n, 5) * 2)),
    ("llama", "llama", "warning", "new-rows", "model.embed_tokens.weight",
     lambda m: new_tokens(m, lambda data, n: bytes(2 * n))),
    ("llama", "llama", "warning", "new-rows", "model.embed_tokens.weight",
     lambda m: new_tokens(m, lambda data, n: row_of(data, n, 1110) + row_of(data, n, 1111))),
]
