# SPDX-License-Identifier: Apache-2.0
"""Good folders for tests of `fsdpck doctor`, and a folder that can be spoiled."""
import json
import os
import shutil
import struct
import subprocess

from harness import fixtures
from run_cases import write_safetensors

FIXTURES = fixtures()
NBYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1}


def read(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
        for name, t in header.items()
    }


def tensor(dtype, *shape):
    count = NBYTES[dtype]
    for n in shape:
        count *= n
    return dtype, list(shape), b"\1" * count


class Model:
    """A copy of a folder, to spoil."""

    def __init__(self, folder):
        self.folder = folder

    def at(self, name):
        return os.path.join(self.folder, name)

    def tensors(self):
        files = sorted(f for f in os.listdir(self.folder) if f.endswith(".safetensors"))
        return {name: (file, t) for file in files for name, t in read(self.at(file)).items()}

    def write(self, tensors):
        """Writes all files, and the index where there was one."""
        files = {}
        for name, (file, t) in tensors.items():
            files.setdefault(file, {})[name] = t
        for file, content in files.items():
            write_safetensors(self.at(file), content, {"format": "pt"})
        if os.path.exists(self.at("model.safetensors.index.json")):
            self.write_index({name: file for name, (file, _) in tensors.items()})

    def write_index(self, where):
        with open(self.at("model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": where}, f)

    def index(self):
        return json.load(open(self.at("model.safetensors.index.json")))["weight_map"]

    def drop(self, *parts):
        self.write({k: v for k, v in self.tensors().items() if not any(p in k for p in parts)})

    def put(self, name, t):
        tensors = self.tensors()
        file = tensors[name][0] if name in tensors else next(iter(tensors.values()))[0]
        self.write({**tensors, name: (file, t)})

    def cast(self, part, dtype):
        self.write({k: (file, tensor(dtype, *t[1]) if part in k else t) for k, (file, t) in self.tensors().items()})

    def prefix(self, old, new):
        self.write({
            (new + k[len(old):] if k.startswith(old) else k): v
            for k, v in self.tensors().items()
        })

    def json(self, file, **keys):
        value = json.load(open(self.at(file)))
        value.update(keys)
        with open(self.at(file), "w") as f:
            json.dump({k: v for k, v in value.items() if v is not None}, f)


def text(m, file, content):
    with open(m.at(file), "w") as f:
        f.write(content)


def quantization(m, **keys):
    m.json("config.json", quantization_config={**json.load(open(m.at("config.json")))["quantization_config"], **keys})


def make_sources(binary, at):
    shutil.copytree(os.path.join(FIXTURES, "tiny-llama-tied"), os.path.join(at, "llama"))
    shutil.copytree(os.path.join(FIXTURES, "quant", "fp8-block", "model"), os.path.join(at, "fp8"))
    subprocess.run([binary, "export-lora", os.path.join(FIXTURES, "lora-run"), os.path.join(at, "adapter"), "-q"],
                   check=True)
    for name, source in (("deepseek_v3", "moe/deepseek_v3/hub"), ("modelopt", "quant/fp8-modelopt/model"),
                         ("nf4", "quant/bnb-nf4/model"), ("int8", "quant/bnb-int8/model"),
                         ("gpt_oss", "quant/mxfp4-gptoss/model")):
        shutil.copytree(os.path.join(FIXTURES, source), os.path.join(at, name))
    make_fused(os.path.join(at, "qwen3_5_moe"))
    shutil.copytree(os.path.join(at, "fp8"), os.path.join(at, "fp8-mixed"))
    make_mixed(Model(os.path.join(at, "fp8-mixed")))
    os.mkdir(os.path.join(at, "moe"))
    config = {"model_type": "mixtral-like", "num_hidden_layers": 2, "num_experts": 4}
    tensors = {
        "model.layers.%d.mlp.experts.%d.%s_proj.weight" % (layer, e, p): tensor("BF16", 4, 8)
        for layer in range(2)
        for e in range(4)
        for p in ("gate", "up", "down")
    }
    write_safetensors(os.path.join(at, "moe", "model.safetensors"), tensors, {"format": "pt"})
    with open(os.path.join(at, "moe", "config.json"), "w") as f:
        json.dump(config, f)


def make_runs(at):
    for name, source in (("dcp", "dcp/torch-2.15/ckpt"), ("zero", "deepspeed/zero2"), ("megatron", "megatron/moe")):
        shutil.copytree(os.path.join(FIXTURES, source), os.path.join(at, name))
    text(Model(os.path.join(at, "megatron")), "latest_checkpointed_iteration.txt", "7")


def make_mixed(m):
    """A second layer, one of whose modules is not quantized, as the configuration says."""
    k = "model.layers.1.self_attn.k_proj"
    tensors = m.tensors()
    more = {name.replace("layers.0", "layers.1"): t for name, t in tensors.items() if "layers.0" in name}
    file, (_, shape, _) = more[k + ".weight"]
    m.write({**tensors, **more, k + ".weight": (file, ("BF16", shape, b"\1" * (2 * shape[0] * shape[1])))})
    m.drop(k + ".weight_scale_inv")
    m.json("config.json", num_hidden_layers=2)
    quantization(m, modules_to_not_convert=[k])


def make_fused(folder):
    os.mkdir(folder)
    tensors = {}
    for layer in range(2):
        tensors["model.layers.%d.mlp.experts.gate_up_proj" % layer] = tensor("BF16", 4, 12, 8)
        tensors["model.layers.%d.mlp.experts.down_proj" % layer] = tensor("BF16", 4, 8, 6)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "qwen3_5_moe", "num_hidden_layers": 2, "num_experts": 4, "hidden_size": 8}, f)
