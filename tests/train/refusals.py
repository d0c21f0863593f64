# SPDX-License-Identifier: Apache-2.0
"""Configs and models that are refused, each with the sentence that is expected."""
import json, shutil, struct, zipfile

import numpy as np

from harness import Failure, Tests, config_of, read_safetensors, write_safetensors


class Refusals(Tests):
    def refused(self, name, change, code, words):
        config = config_of(self.goldens / name, self.tmp / "refused")
        change(config)
        done = self.run(self.write("refused", config), want=code)
        if words not in done.stderr or done.stderr.count("\n") > 2:
            raise Failure(f"'{words}' wanted in one line: {done.stderr[-400:]}")

    def model_refused(self, name, keys, words):
        """A config.json that asks for other maths ends the run before anything is loaded, with the key's name."""
        model = self.tmp / "refused-model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **keys}))
        self.refused(name, put(None, "model", str(model)), 3, words)

    def flipped_bin(self, name):
        """A model in torch.save's format whose bytes a rank reads only a part of: all of a flipped record is checked by
        some rank. Without CRC-32s, a note says so once."""
        model = self.tmp / "bin-model"
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        file = model / "pytorch_model.bin"
        for old in sorted(model.glob("*.safetensors")):
            write_bin(file, read_safetensors(old))
            old.unlink()
        config = config_of(self.goldens / name, self.tmp / "bin")
        config["model"], config["train"]["max_steps"] = str(model), 1
        config = self.write("bin", config)
        if "no CRC-32" in self.run(config, "--ranks", "3").stderr:
            raise Failure("records with a CRC-32 are taken for records without one")
        data = bytearray(file.read_bytes())
        for at in [
                r.header_offset + 3000
                for r in zipfile.ZipFile(file).infolist()
                if "/data/" in r.filename and r.file_size > 4000
        ][:3]:
            data[at] ^= 1
            file.write_bytes(data)
            done = self.run(config, "--ranks", "3", "--set", f"output_dir={self.tmp / 'bin-flipped'}", want=3)
            if (
                "CRC-32" not in done.stderr
                or "pytorch_model.bin" not in done.stderr
                or "tensor 'model." not in done.stderr
            ):
                raise Failure(f"a flipped byte of the model is not named: {done.stderr[-400:]}")
            data[at] ^= 1
        for r in zipfile.ZipFile(file).infolist():
            sizes = struct.pack("<II", r.compress_size, r.file_size)
            data = data.replace(struct.pack("<I", r.CRC) + sizes, bytes(4) + sizes)
        file.write_bytes(data)
        done = self.run(config, "--ranks", "3", "--set", f"output_dir={self.tmp / 'bin-unchecked'}")
        if done.stderr.count("bin-model: stored records have no CRC-32") != 1:
            raise Failure(f"one note on records without a CRC-32 is wanted: {done.stderr[-400:]}")

    def shape_refused(self, name):
        """What is found and what is wanted, in the dimensions that the tensor has."""
        model = self.tmp / "refused-shape"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(self.goldens / name / "model", model, copy_function=shutil.copyfile)
        tensors = read_safetensors(model / "model.safetensors")
        norm = tensors["model.norm.weight"]
        write_safetensors(model / "model.safetensors", {**tensors, "model.norm.weight": norm[:3]})
        self.refused(
            name, put(None, "model", str(model)), 3,
            f"'model.norm.weight' does not have the shape [{len(norm)}] that the configs call for: it has [3]")


def write_bin(path, tensors):
    """As torch.save writes float32 tensors."""
    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()
    def number(x):
        return b"J" + struct.pack("<i", x)
    pickle = b"\x80\x02}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for i, (name, t) in enumerate(tensors.items()):
            pickle += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(
                "storage") + b"ctorch\nFloatStorage\n" + text(str(i)) + text("cpu")
            pickle += number(t.size) + b"tQ" + number(0) + b"(" + b"".join(map(number, t.shape)) + b"t("
            pickle += b"".join(number(s // 4) for s in t.strides) + b"t\x89ccollections\nOrderedDict\n)Rt" + b"Rs"
            z.writestr(f"archive/data/{i}", np.ascontiguousarray(t, np.float32).tobytes())
        z.writestr("archive/data.pkl", pickle + b".")
        z.writestr("archive/version", "3\n")


def put(section, key, value):
    def change(config):
        (config.setdefault(section, {}) if section else config)[key] = value
    return change


REFUSALS = [
    (put("train", "max_stepz", 3), 2, "unknown key 'train.max_stepz'; the nearest is 'train.max_steps'"),
    (put(None, "modle", "x"), 2, "the nearest is 'model'"),
    (put("train", "lr", 1e-4), 2, "unknown key 'train.lr'; train has max_steps"),
    (put(None, "trian", {}), 2, "the nearest is 'train'"),
    (put(None, "optimizer", {}), 2, "unknown key 'optimizer'; a config has model, output_dir, seed, tenants, data"),
    (
        put("fsdp", "sharding_strategy", "FULLY"),
        2,
        "\"FULLY\" is none of FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD|HYBRID_SHARD_ZERO2",
    ),
    (put("fsdp", "dp_shard_size", 0), 2, "key 'fsdp.dp_shard_size' is 0; it must be 1 to 65536"),
    (put("fsdp", "dp_replicate_size", 2), 2, "key 'fsdp.dp_replicate_size': 2 does not divide the 1 rank of this run"),
    (
        put("fsdp", "reshard_after_forward", "no"),
        2,
        "key 'fsdp.reshard_after_forward': true, false or a whole number is wanted",
    ),
    (put("fsdp", "reshard_after_forward", 1), 2, "key 'fsdp.reshard_after_forward' is 1; it must be 2 to 65536"),
    (put("dtype", "param", "fp16"), 2, "key 'dtype.param': \"fp16\" is not in this version"),
    (put("dtype", "reduce", "fp16"), 2, "key 'dtype.reduce': \"fp16\" is not in this version"),
    (put("train", "learning_rate", -1), 2, "key 'train.learning_rate'"),
    (put("data", "seq_len", 16777217), 2, "key 'data.seq_len' is 16777217; it must be 1 to 16777216"),
    (put("train", "adam_beta1", 1.5), 2, "key 'train.adam_beta1' is 1.5; it must be 0 to 0.9999999999"),
    (
        put("lora", "lora_alpha", 1.2345678901e31),
        2,
        "key 'lora.lora_alpha' is 1.2345678901e+31; it must be -1e+30 to 1e+30",
    ),
    (put("data", "train", "/nowhere.jsonl"), 3, "/nowhere.jsonl"),
    (put(None, "model", "/nowhere"), 3, "/nowhere"),
    (put("train", "max_steps", 13), 2, "has 12 steps"),
    (put("lora", "target_modules", ["q_proj", "no_such"]), 2, "'no_such' names no module"),
    (put("lora", "target_modules", "no_such"), 2, "matches no module"),
    (put("lora", "use_dora", True), 2, "'use_dora' is not that of"),
    (
        put(None, "lora", {"use_dora": True, "target_modules": ["q_proj", "embed_tokens"]}),
        3,
        "key 'lora.use_dora': an adapter of model.embed_tokens is not supported",
    ),
    (
        put("lora", "modules_to_save", ["norms"]),
        2,
        "key 'lora.modules_to_save': 'norms' is the end of no module's path",
    ),
    (
        put("lora", "modules_to_save", ["act_fn"]),
        2,
        "key 'lora.modules_to_save': 'act_fn' is the end of no module's path",
    ),
    (
        put("lora", "modules_to_save", ["layers"]),
        2,
        "key 'lora.modules_to_save': 'layers' is the end of no module's path",
    ),
    (put("lora", "modules_to_save", ["norm", ""]), 2, "key 'lora.modules_to_save': entry 1 is empty"),
    (
        put("lora", "modules_to_save", "norm"),
        2,
        "key 'lora.modules_to_save': a list of names is wanted, or null",
    ),
    (put("lora", "modules_to_save", ["proj"]), 2, "both choose model.layers.0.self_attn.q_proj by the end of its path"),
    (put("lora", "modules_to_save", ["lm_head"]), 3, "there is no tensor 'base_model.model.lm_head.weight'"),
    (
        put("lora", "rank_pattern", {"q_proj": 4, "q_prj": 2}),
        2,
        "key 'lora.rank_pattern': 'q_prj' fits no module that has an adapter",
    ),
    (
        put("lora", "alpha_pattern", {"layers.7.*.q_proj": 4}),
        2,
        "key 'lora.alpha_pattern': 'layers.7.*.q_proj' fits no module that has an adapter",
    ),
    (
        put("lora", "alpha_pattern", {"proj": 4}),
        2,
        "key 'lora.alpha_pattern': 'proj' fits no module that has an adapter",
    ),
    (
        put("lora", "rank_pattern", {".*_proj": 4, "q_proj": 2}),
        2,
        "key 'lora.rank_pattern': 'q_proj' fits no module that has an adapter and is not taken by a pattern",
    ),
    (put("lora", "r", 5), 2, "'r' is not that of"),
    (put("lora", "target_modules", "(("), 2, "no regular expression"),
    (put("data", "eval", "/no-such.jsonl"), 3, "/no-such.jsonl"),
    (put(None, "sample", {"every": 5}), 2, "sample.prompts has none"),
    (put(None, "sample", {"every": 5, "prompts": [{"text": "Hi", "txet": "x"}]}), 2, "prompt 1: 'txet' is none of"),
    (put(None, "sample", {"every": 5, "prompts": ["a", {"text": "Hi", "tools": []}]}), 2, "prompt 2: 'tools' is none"),
    (put(None, "sample", {"every": 5, "prompts": [{"text": "Hi", "prompt": "x"}]}), 2, "it holds 2 prompts"),
    (put(None, "sample", {"every": 5, "prompts": "Hi"}), 2, "key 'sample.prompts': a list is wanted"),
    (put(None, "sample", {"prompts": ["Hi"]}), 3, "tokenizer.json"),
    (put(None, "sample", {"prompts": [{"input_ids": [1, 4000]}]}), 2, "token 4000 is none of the model's"),
    (put(None, "sample", {"prompts": [{"input_ids": []}]}), 2, "prompt 1 has 0 tokens"),
    (put(None, "sample", {"prompts": [{"input_ids": ["x"]}]}), 2, "'input_ids' is a list of tokens' numbers"),
]


MODEL_REFUSALS = [
    ({"model_type": "gemma2"}, 'model_type "gemma2" is not supported'),
    ({"hidden_act": "gelu"}, "key 'hidden_act'"),
    ({"attention_dropout": 0.1}, "key 'attention_dropout'"),
    ({"partial_rotary_factor": 0.5}, "key 'partial_rotary_factor'"),
    ({"pretraining_tp": 2}, "key 'pretraining_tp'"),
    ({"num_experts": 8}, "key 'num_experts'"),
    ({"final_logit_softcapping": 30.0}, "key 'final_logit_softcapping'"),
    ({"quantization_config": {"quant_method": "gptq"}}, "config.json says that the weights are quantized with gptq"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "key 'layer_types'"),
    ({"layer_types": ["full_attention"]}, "key 'layer_types'"),
    ({"mlp_bias": True}, "key 'mlp_bias'"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type "dynamic" is not supported'),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "key 'rope_scaling.short_factor'"),
    (
        {"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "key 'rope_parameters.full_attention'",
    ),
    ({"rope_scaling": {"rope_type": "linear"}}, "has no 'factor'"),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}},
        "key 'partial_rotary_factor'",
    ),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 64},
        "key 'original_max_position_embeddings'",
    ),
    ({"num_key_value_heads": 3}, "must be a multiple"),
    ({"hidden_size": 0}, "key 'hidden_size'"),
    ({"vocab_size": "many"}, "key 'vocab_size'"),
    ({"num_hidden_layers": 7}, "model.layers.2."),
    ({"intermediate_size": 5}, "mlp.gate_proj.weight"),
]
