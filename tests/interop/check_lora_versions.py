# SPDX-License-Identifier: Apache-2.0
"""Adapters that export-lora wrote, through the real PEFT of every age: each version is one directory of pure Python on
top of the environment that the other checks use. A version loads the folder onto the base, and its logits are those of
what merge-lora makes.

As a program (what run() starts for each version): check_lora_versions.py VERSION BASE FOLDER…, where each FOLDER has
adapter/ and merged/."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "..", "..", "fixtures", "tiny-llama-tied")
VERSIONS = ["0.5.0", "0.7.1", "0.8.2", "0.10.0", "0.13.2", "0.15.2", "0.17.1"]
CASES = {  # name -> (the first version that knows it, ranks of q_proj and v_proj, adapter_config.json)
    "plain": ("0.5.0", (4, 4), {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "patterns": (
        "0.7.1",
        (4, 2),
        {
            "r": 4,
            "rank_pattern": {"v_proj": 2},
            "lora_alpha": 8,
            "alpha_pattern": {"v_proj": 3},
            "target_modules": ["q_proj", "v_proj"],
        },
    ),
    "rslora": ("0.8.2", (4, 4), {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]}),
}


def installed(version):
    """The folder of a version; fetched once, beside the environment it goes with."""
    to = os.path.join(sys.prefix, "old-peft", version)
    if not os.path.isdir(os.path.join(to, "peft")):
        subprocess.run([
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", "--upgrade", "--target", to,
            f"peft=={version}"
        ], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    return to


def make(case, folder):
    """Random factors under the names that training on a wrapped model leaves, and their configuration."""
    import torch
    import ckpt_common as c
    _, ranks, config = CASES[case]
    tensors = {}
    for layer in range(2):
        for module, r in zip(("q_proj", "v_proj"), ranks):
            with open(os.path.join(BASE, "config.json")) as f:
                shape = json.load(f)
            nout = shape["hidden_size"] if module == "q_proj" else shape["hidden_size"] // shape[
                "num_attention_heads"] * shape["num_key_value_heads"]
            name = f"_orig_mod.base_model.model.model.layers.{layer}.self_attn.{module}.lora_%s.default.weight"
            tensors[name % "A"] = c.rand((r, shape["hidden_size"]), torch.float32, len(tensors)) * 0.3
            tensors[name % "B"] = c.rand((nout, r), torch.float32, len(tensors)) * 0.3
    os.makedirs(folder)
    c.write_ref(os.path.join(folder, "all.safetensors"), tensors)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", **config}, f)


def prepare(tool, folder, case):
    make(case, folder)
    sharded, adapter, merged = (os.path.join(folder, n) for n in ("sharded", "adapter", "merged"))
    tool("convert", "-q", os.path.join(folder, "all.safetensors"), sharded, "--ranks", "3")
    tool("export-lora", "-q", sharded, adapter, "--adapter-config", os.path.join(folder, "adapter_config.json"))
    tool("merge-lora", "-q", BASE, adapter, merged, "--dtype", "fp32")


def check(tool, work, version):
    folders = [os.path.join(work, f"peft-{version}-{case}") for case in CASES if age(version) >= age(CASES[case][0])]
    for folder in folders:
        prepare(tool, folder, folder.rsplit("-", 1)[1])
    path = os.pathsep.join([installed(version), HERE])
    p = subprocess.run([sys.executable, os.path.abspath(__file__), version, BASE, *folders], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=1800, env={**os.environ, "PYTHONPATH": path})
    return [] if p.returncode == 0 else [(p.stdout + p.stderr).strip()[-600:]]


def age(version):
    return [int(x) for x in version.split(".")]


def run(checks, tool, work, quick):
    for version in VERSIONS[:1] if quick else VERSIONS:
        checks.run(f"PEFT {version}", check, tool, work, version)


def agrees(base, folder):
    import peft
    import torch
    import transformers
    torch.manual_seed(0)
    ids = torch.randint(0, 1000, (1, 24))
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        before = model(ids).logits
        got = peft.PeftModel.from_pretrained(model, os.path.join(folder, "adapter"))(ids).logits
        want = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "merged"),
                                                                 dtype=torch.float32)(ids).logits
    moved, off = float((want - before).abs().max()), float((want - got).abs().max())
    print(f"{folder}: the adapter moves logits by {moved}, the two differ by {off}")
    return moved > 0.05 and off < 1e-3 * moved


def main():
    version, base, *folders = sys.argv[1:]
    import transformers
    # PEFT 0.14 to 0.17 import it; on the class, as the module is made anew on the way
    if not hasattr(transformers, "HybridCache"):
        type(transformers).HybridCache = transformers.DynamicCache
    import peft
    if peft.__version__ != version:
        sys.exit(f"this is PEFT {peft.__version__}")
    return 0 if all([agrees(base, folder) for folder in folders]) else 1


if __name__ == "__main__":
    sys.exit(main())
