# SPDX-License-Identifier: Apache-2.0
"""LoRA both ways against the real PEFT: adapters of every kind that it trains, found again in sharded checkpoints under
the names that wrappers give, and merged. Used by run.py; `python check_lora.py BINARY [WORD]` runs it alone."""
import json, os, shutil, sys, tempfile, warnings

import torch
from torch import nn
from safetensors.torch import load_file, save_file
from peft import LoraConfig, PeftModel, get_peft_model
from transformers.pytorch_utils import Conv1D

warnings.filterwarnings("ignore")

MANTISSA = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q_proj = nn.Linear(width, width)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.c_attn = Conv1D(width, width)          # stored as (in, out), and square
        self.c_proj = Conv1D(width, 3 * width)

    def forward(self, x):
        return x + self.c_attn(torch.tanh(self.q_proj(x))) + self.c_proj(torch.tanh(self.up_proj(x)))


class Net(nn.Module):
    """A module of every kind that LoRA has a form for."""
    config = {"model_type": "custom"}

    def __init__(self, width=24, layers=3, vocabulary=50):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.conv = nn.Conv2d(1, 5, 3, padding=1)
        self.pointwise = nn.Conv2d(5, 1, 1)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        x = x + self.pointwise(torch.tanh(self.conv(x[:, None])))[:, 0]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


LINEAR = ["q_proj", "up_proj"]
STORED_TURNED = ["c_attn", "c_proj"]
# name -> LoraConfig's arguments; "fan_in_fan_out" is PEFT's word for (in, out)
CASES = {
    "plain": dict(r=4, lora_alpha=8, target_modules=LINEAR),
    "rslora": dict(r=6, lora_alpha=5, use_rslora=True, target_modules=LINEAR),
    "patterns": dict(
        r=4,
        lora_alpha=8,
        target_modules=LINEAR,
        rank_pattern={"up_proj": 7, "layers.1.q_proj": 2},
        alpha_pattern={"^layers.0.q_proj": 3, r".*\.2\.(q|up)_proj": 40},
    ),
    "dora": dict(r=3, lora_alpha=8, use_dora=True, target_modules=LINEAR),
    "fan_in_fan_out": dict(r=4, lora_alpha=8, fan_in_fan_out=True, target_modules=STORED_TURNED),
    "dora, fan_in_fan_out": dict(r=4, lora_alpha=8, fan_in_fan_out=True, use_dora=True, target_modules=STORED_TURNED),
    "embedding": dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "q_proj"]),
    "dora, embedding": dict(r=4, lora_alpha=8, use_dora=True, target_modules=["embed_tokens"]),
    "convolution": dict(r=4, lora_alpha=8, target_modules=["conv", "pointwise"]),
    "dora, convolution": dict(r=4, lora_alpha=8, use_dora=True, target_modules=["conv"]),
    "modules_to_save": dict(r=4, lora_alpha=8, target_modules=LINEAR, modules_to_save=["lm_head", "conv"]),
    "bias all": dict(r=4, lora_alpha=8, target_modules=["q_proj"], bias="all"),
    "bias lora_only": dict(r=4, lora_alpha=8, target_modules=["q_proj"], bias="lora_only"),
    "lora_bias": dict(r=4, lora_alpha=8, target_modules=["q_proj"], lora_bias=True),
    "layers_to_transform": dict(
        r=4, lora_alpha=8, target_modules=["q_proj"], layers_to_transform=[0, 2], layers_pattern="layers"
    ),
    "regular expression": dict(r=4, lora_alpha=8, target_modules=r".*\.[02]\.(q|up)_proj"),
}


def new_net():
    torch.manual_seed(7)
    return Net()


def randomised(model, seed):
    """Every trained value is something: B is not zero, magnitudes and saved copies have moved."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if p.requires_grad:
            scale = 0.02 if "magnitude" in name or "lora_" not in name else 0.3
            p.data.add_(scale * torch.randn(p.shape, generator=g))
    return model


def trained(case, adapter="default", seed=1):
    model = get_peft_model(new_net(), LoraConfig(init_lora_weights=True, **CASES[case]), adapter_name=adapter)
    return randomised(model, seed)


def wrap_fsdp(k):
    return "_fsdp_wrapped_module." + k.replace(".layers.", "._fsdp_wrapped_module.layers.").replace(
        ".q_proj.", "._checkpoint_wrapped_module.q_proj.")


WRAPPERS = {
    "plain": lambda k: k, "fsdp": wrap_fsdp, "compile": lambda k: "_orig_mod." + k, "ddp": lambda k: "module." + k,
    "ddp, compile": lambda k: "module._orig_mod." + k, "bare": lambda k: k.removeprefix("base_model.model.")
}


def contiguous(state):
    return {k: v.detach().clone().contiguous() for k, v in state.items()}


def ulps(got, want, base):
    """Difference in units in the last place of the stored type, at the larger of the value and the base's. In float32
    the sums over the rank differ by their order, so there it is the unit of the tensor's largest value."""
    size = torch.maximum(torch.maximum(got.double().abs(), want.double().abs()), base.double().abs())
    if got.dtype == torch.float32:
        size = size.max()
    unit = 2.0 ** (torch.floor(torch.log2(size.clamp_min(1e-30))) - MANTISSA[got.dtype])
    return ((got.double() - want.double()).abs() / unit).max().item()


def load_folder(path):
    out = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            out.update(load_file(os.path.join(path, f)))
    return out


def outputs(model):
    ids = torch.arange(48).reshape(2, 24) % 50
    with torch.no_grad():
        return model.eval()(ids)


# --- export-lora

def save_checkpoint(tool, state, work, nranks):
    file, dir = os.path.join(work, "all.safetensors"), os.path.join(work, "ranks")
    shutil.rmtree(dir, ignore_errors=True)
    save_file(contiguous(state), file)
    tool("convert", "-q", file, dir, "--ranks", str(nranks))
    return dir


def compare_adapter(got_dir, want_dir, optional=()):
    got, want = load_file(os.path.join(got_dir, "adapter_model.safetensors")), load_file(
        os.path.join(want_dir, "adapter_model.safetensors"))
    bad = [f"{k}: not in the exported adapter" for k in want.keys() - got.keys() if not k.endswith(optional)]
    bad += [f"{k}: not in PEFT's own file" for k in got.keys() - want.keys()]
    return bad + [
        f"{k}: other values" for k in got.keys() & want.keys()
        if got[k].shape != want[k].shape or not torch.equal(got[k], want[k])
    ]


def loads_equal(folder, model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = PeftModel.from_pretrained(new_net(), folder)
    bad = [str(w.message)[:200] for w in caught if "key" in str(w.message).lower()]
    far = (outputs(loaded) - outputs(model)).abs().max().item()
    return bad + ([f"outputs differ by {far}"] if far > 1e-6 else [])


def check_export(tool, case, wrapper, work):
    model, own, out = trained(case), os.path.join(work, "own"), os.path.join(work, "out")
    model.save_pretrained(own, save_embedding_layers=False)
    state = {WRAPPERS[wrapper](k): v for k, v in model.state_dict().items()}
    dir = save_checkpoint(tool, state, work, 3)
    tool("export-lora", "-q", dir, out, "--adapter-config", os.path.join(own, "adapter_config.json"))
    return compare_adapter(out, own) + loads_equal(out, model)


def check_several(tool, work):
    """Two adapters in one model, of other ranks and on other modules."""
    model = trained("plain", "first")
    model.add_adapter("second", LoraConfig(**CASES["patterns"]))
    model.set_adapter("second")
    randomised(model, 3)
    dir = save_checkpoint(tool, model.state_dict(), work, 4)
    own, bad = os.path.join(work, "own"), []
    model.save_pretrained(own)
    for name in ("first", "second"):
        out = os.path.join(work, name)
        config = os.path.join(own, name, "adapter_config.json")
        tool("export-lora", "-q", dir, out, "--adapter", name, "--adapter-config", config)
        model.set_adapter(name)
        bad += compare_adapter(out, os.path.join(own, name)) + loads_equal(out, model)
    return bad


def check_alpha(tool, work):
    """Without a configuration: ranks and targets come from the tensors, the scaling from the command."""
    model = get_peft_model(new_net(),
                           LoraConfig(r=4, lora_alpha=6, target_modules=LINEAR, rank_pattern={"layers.1.up_proj": 9}))
    randomised(model, 5)
    out = os.path.join(work, "out")
    tool("export-lora", "-q", save_checkpoint(tool, model.state_dict(), work, 2), out, "--alpha", "6")
    config = json.load(open(os.path.join(out, "adapter_config.json")))
    bad = [] if config["rank_pattern"] == {"layers.1.up_proj": 9} and config["r"] == 4 else [f"ranks: {config}"]
    return bad + loads_equal(out, model)


# PEFT 0.5's LoraConfig: what an old one takes without a TypeError.
OLD_KEYS = {
    "peft_type", "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "r",
    "target_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias", "modules_to_save", "init_lora_weights",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"
}


def check_old_peft(tool, work):
    bad = []
    for case, later in (("plain", set()), ("patterns", set()), ("rslora", {"use_rslora"}), ("dora", {"use_dora"}),
                        ("lora_bias", {"lora_bias"})):
        own, out = os.path.join(work, "own " + case), os.path.join(work, "out " + case)
        trained(case).save_pretrained(own)
        tool("export-lora", "-q", own, out)
        keys = json.load(open(os.path.join(out, "adapter_config.json"))).keys()
        bad += [f"{case}: {keys ^ (OLD_KEYS | later)}"] if keys != OLD_KEYS | later else []
    return bad


# --- merge-lora

def check_merge(tool, case, dtype, how, work):
    base, own, out = (os.path.join(work, n) for n in ("base.safetensors", "own", "merged"))
    stored = {k: v.to(dtype) for k, v in new_net().state_dict().items()}
    save_file(contiguous(stored), base)
    net = new_net()
    net.load_state_dict({k: v.float() for k, v in stored.items()})
    model = randomised(get_peft_model(net, LoraConfig(**CASES[case])), 1)
    model.save_pretrained(own, save_embedding_layers=False)
    if "--ranks" in how:
        sharded = os.path.join(work, "sharded")
        tool("convert", "-q", base, sharded, "--ranks", "3")
        tool("merge-lora", "-q", sharded, own, out, *how)
        tool("verify", "-q", out)
        tool("export", "-q", out, out + "-hf")
        out += "-hf"
    else:
        tool("merge-lora", "-q", base, own, out, *how)
    got, want = load_folder(out), model.merge_and_unload().state_dict()
    to = (
        {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[how[how.index("--dtype") + 1]]
        if "--dtype" in how
        else dtype
    )
    bad = [f"names: {got.keys() ^ want.keys()}"] if got.keys() != want.keys() else []
    for k in got.keys() & want.keys():
        far = ulps(got[k], want[k].to(to), stored[k].to(to)) if got[k].dtype == to else float("inf")
        if far > (4 if to == torch.float32 else 1): # in float32 PEFT's own sums are this far from the exact ones
            bad.append(f"{k}: {far} units in the last place, {got[k].dtype}")
    return bad


def run(checks, tool, work, quick):
    def each(name, fn, *args):
        with tempfile.TemporaryDirectory(dir=work) as sub:
            checks.run(name, fn, tool, *args, sub)
    for case in CASES:
        each(f"export-lora: {case}", check_export, case, "fsdp" if case == "patterns" else "plain")
    for wrapper in WRAPPERS:
        if not quick:
            each(f"export-lora: names of {wrapper}", check_export, "dora", wrapper)
    each("export-lora: two adapters", check_several)
    each("export-lora: --alpha", check_alpha)
    each("export-lora: configuration for PEFT 0.5", check_old_peft)
    for case in CASES:
        for dtype, how in ((torch.float32, []), (torch.bfloat16, []), (torch.float16, ["--ranks", "4"]),
                           (torch.float32, ["--dtype", "bf16", "--memory", "16MiB"])):
            if not quick or dtype == torch.bfloat16:
                each(f"merge-lora: {case}, {str(dtype)[6:]} {' '.join(how)}", check_merge, case, dtype, how)


if __name__ == "__main__":
    from run import Checks, Tool
    import check_lora_styles
    checks = Checks(sys.argv[2] if len(sys.argv) > 2 else None)
    with tempfile.TemporaryDirectory() as work:
        run(checks, Tool(sys.argv[1]), work, False)
        check_lora_styles.run(checks, Tool(sys.argv[1]), work, False)
    print(f"{checks.npassed} passed, {checks.nfailed} failed")
    sys.exit(bool(checks.nfailed))
