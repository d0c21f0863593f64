#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""expert_adapters.py BINARY: `fsdpck merge-lora` of adapters of routed experts, against the same sums in Python.

One random change of every expert is written as each layout of adapters has it, and merged into each layout of bases.
All numbers are small integers over a power of two, so that the sums are exact in float32.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from doctor_folders import read
from run_cases import write_safetensors

PREFIX = "base_model.model."
STEM = "model.layers.0.mlp"
NAMES = {"mlp": ("gate_proj", "up_proj", "down_proj"), "block_sparse_moe": ("w1", "w3", "w2")}


# ---- matrices: lists of rows ----

def draw(rows, cols):
    return [[random.randint(-8, 8) / 8 for _ in range(cols)] for _ in range(rows)]


def product(b, a):
    return [[sum(x * y for x, y in zip(row, col)) for col in zip(*a)] for row in b]


def add(w, d, scale):
    return [[x + scale * y for x, y in zip(p, q)] for p, q in zip(w, d)]


def turn(w):
    return [list(col) for col in zip(*w)]


def alternate(w):
    """gate over up -> their rows in turn, as gpt-oss has them"""
    half = len(w) // 2
    return [row for pair in zip(w[:half], w[half:]) for row in pair]


def flat(x):
    return [v for y in x for v in flat(y)] if isinstance(x, list) else [x]


def tensor(x):
    shape, y = [], x
    while isinstance(y, list):
        shape.append(len(y))
        y = y[0]
    values = flat(x)
    return "F32", shape, struct.pack("<%df" % len(values), *values)


# ---- bases: of an expert's gate over up, and down ----

def base_single(block):
    def make(gate_up, down):
        gate, up, low = NAMES[block]
        out, stem = {}, STEM.replace("mlp", block)
        for e, (g, d) in enumerate(zip(gate_up, down)):
            half = len(g) // 2
            for name, w in ((gate, g[:half]), (up, g[half:]), (low, d)):
                out["%s.experts.%d.%s.weight" % (stem, e, name)] = tensor(w)
        return out

    return make


def base_fused(change, biases=False):
    def make(gate_up, down):
        out = {
            STEM + ".experts.gate_up_proj": tensor([change(w) for w in gate_up]),
            STEM + ".experts.down_proj": tensor([turn(w) if change is not list else w for w in down]),
        }
        if biases:
            out[STEM + ".experts.gate_up_proj_bias"] = tensor([[0.0] * len(w) for w in gate_up])
        return out

    return make


BASES = {
    "single": base_single("mlp"),
    "mixtral": base_single("block_sparse_moe"),
    "fused": base_fused(list),
    "transposed": base_fused(turn),
    "gpt-oss": base_fused(lambda w: turn(alternate(w)), biases=True),
}


# ---- adapters: of A [E][r][in] and B [E][out][r] for gate_up and down ----

def flat_layout(pair, b_of, swapped=False):
    a, b = pair
    if swapped:  # A and B have each other's place
        a, b = [turn(x) for x in b], [turn(x) for x in a]
    return [row for x in a for row in x], b_of(b)


def fastest(b):
    return [[b[e][i][k] for k in range(len(b[0][0])) for e in range(len(b))] for i in range(len(b[0]))]


def slowest(b):
    return [[b[e][i][k] for e in range(len(b)) for k in range(len(b[0][0]))] for i in range(len(b[0]))]


def peft(b_of, swapped=False, cube=False, **config):
    def make(gate_up, down):
        out = {}
        for wrap, pair in ((".base_layer", gate_up), ("", down)):
            a, b = flat_layout(pair, b_of, swapped)
            if cube:
                n, r = len(pair[0]), len(pair[0][0])
                a = [a[e * r:(e + 1) * r] for e in range(n)]
                b = [[row[k * n:(k + 1) * n] for k in range(r)] for row in b]
            out["%s.experts%s.lora_A.weight" % (STEM, wrap)] = tensor(a)
            out["%s.experts%s.lora_B.weight" % (STEM, wrap)] = tensor(b)
        return out, {"target_parameters": ["experts.down_proj", "experts.gate_up_proj"], "peft_version": "0.21.2",
                     "target_modules": [], **config}

    return make


def stacked(gate_up, down):
    out = {}
    for name, (a, b) in (("gate_up_proj", gate_up), ("down_proj", down)):
        out["%s.experts.%s.lora_A.weight" % (STEM, name)] = tensor(a)
        out["%s.experts.%s.lora_B.weight" % (STEM, name)] = tensor(b)
    return out, {"target_modules": ["gate_up_proj", "down_proj"]}


def stacked_halves(gate_up, down):
    """gate and up have an A of their own, which is twice the same here."""
    out, config = stacked(gate_up, down)
    out[STEM + ".experts.gate_up_proj.lora_A.weight"] = tensor([x + x for x in gate_up[0]])
    return out, config


def single(block):
    def make(gate_up, down):
        gate, up, low = NAMES[block]
        out, stem = {}, STEM.replace("mlp", block)
        for e, (a, b, c, d) in enumerate(zip(*gate_up, *down)):
            half = len(b) // 2
            for name, x, y in ((gate, a, b[:half]), (up, a, b[half:]), (low, c, d)):
                out["%s.experts.%d.%s.lora_A.weight" % (stem, e, name)] = tensor(x)
                out["%s.experts.%d.%s.lora_B.weight" % (stem, e, name)] = tensor(y)
        return out, {"target_modules": [gate, up, low]}

    return make


ADAPTERS = {
    "peft": (peft(fastest), []),
    "peft-0.18": (peft(fastest, swapped=True, peft_version="0.18.1"), []),
    "slowest": (peft(slowest), ["--expert-order", "slowest"]),
    "unknown-writer": (peft(fastest, peft_version=None), ["--expert-order", "fastest"]),
    "cube": (peft(fastest, cube=True, peft_version=None), []),
    "stacked": (stacked, []),
    "stacked-halves": (stacked_halves, []),
    "single": (single("mlp"), []),
    "mixtral": (single("block_sparse_moe"), []),
}


class Case:
    """Random sizes, weights and factors; in a square case one of the two tensors does not tell rows from columns."""

    def __init__(self, square):
        hidden, inter = random.randint(2, 5), random.randint(2, 4)
        hidden = {"gate_up": 2 * inter, "down": inter}.get(square, hidden)
        n, self.r = random.randint(2, 4), random.choice([1, 2, 3])
        self.weights = [draw(2 * inter, hidden) for _ in range(n)], [draw(hidden, inter) for _ in range(n)]
        self.pairs = tuple(([draw(self.r, i) for _ in range(n)], [draw(o, self.r) for _ in range(n)])
                           for o, i in ((2 * inter, hidden), (hidden, inter)))
        self.scales = random.choice([0.5, 1, 2]), random.choice([0.5, 1, 2])

    def merged(self):
        return [[add(w, product(b, a), scale) for w, a, b in zip(weights, *pair)]
                for weights, pair, scale in zip(self.weights, self.pairs, self.scales)]

    def config(self, more, fused):
        names = ("experts.gate_up_proj",) if fused else ("gate_proj", "up_proj", "w1", "w3")
        alphas = {name: self.scales[0] * self.r for name in names}
        return {"peft_type": "LORA", "r": self.r, "lora_alpha": self.scales[1] * self.r, "alpha_pattern": alphas,
                **more}


def write_folder(folder, tensors, config_name, config):
    os.mkdir(folder)
    name = "adapter_model.safetensors" if config_name.startswith("adapter") else "model.safetensors"
    write_safetensors(os.path.join(folder, name), tensors, {"format": "pt"})
    with open(os.path.join(folder, config_name), "w") as f:
        json.dump({k: v for k, v in config.items() if v is not None}, f)


def write_adapter(folder, case, layout, alternating=False):
    """alternating: a fused adapter has the outputs of gpt-oss in their order, gate and up in turn."""
    fused = layout not in ("single", "mixtral", "stacked-halves")
    (a, b), down = case.pairs
    tensors, more = ADAPTERS[layout][0]((a, [alternate(x) for x in b] if alternating and fused else b), down)
    fused = layout not in ("single", "mixtral")
    write_folder(folder, {PREFIX + k: v for k, v in tensors.items()}, "adapter_config.json", case.config(more, fused))


def merge(binary, at, *more):
    p = subprocess.run([binary, "merge-lora", "base", "adapter", "out.safetensors", "-q", "--force", *more], cwd=at,
                       capture_output=True, text=True)
    return p.returncode, p.stderr


def check_pair(binary, top, base, layout, square):
    case = Case(square)
    with tempfile.TemporaryDirectory(dir=top) as at:
        write_folder(os.path.join(at, "base"), BASES[base](*case.weights), "config.json", {})
        write_adapter(os.path.join(at, "adapter"), case, layout, base == "gpt-oss")
        code, said = merge(binary, at, *ADAPTERS[layout][1])
        title = "%s into %s (square: %s)" % (layout, base, square)
        if code:
            return ["%s: exit %d, %s" % (title, code, said)]
        got, wanted = read(os.path.join(at, "out.safetensors")), BASES[base](*case.merged())
        wrong = [k for k in wanted if got.get(k) != (wanted[k][0], list(wanted[k][1]), wanted[k][2])]
        return ["%s: other values in %s" % (title, wrong)] if wrong else []


def change_config(**keys):
    def change(folder):
        path = os.path.join(folder, "adapter_config.json")
        config = {**json.load(open(path)), **keys}
        with open(path, "w") as f:
            json.dump({k: v for k, v in config.items() if v is not None}, f)

    return change


def drop(name):
    def change(folder):
        path = os.path.join(folder, "adapter_model.safetensors")
        write_safetensors(path, {k: v for k, v in read(path).items() if name not in k}, {"format": "pt"})

    return change


def more_experts(folder):
    """down_proj is of 9 experts."""
    path = os.path.join(folder, "adapter_model.safetensors")
    r = json.load(open(os.path.join(folder, "adapter_config.json")))["r"]
    tensors = read(path)
    for name, (_, shape, _) in list(tensors.items()):
        if "gate_up" in name or "base_layer" in name:
            continue
        if len(shape) == 3:
            tensors[name] = tensor([draw(shape[1], shape[2])] * 9)
        else:
            tensors[name] = tensor(draw(9 * r, shape[1]) if "lora_A" in name else draw(shape[0], 9 * r))
    write_safetensors(path, tensors, {"format": "pt"})


# (layout, what is wrong, exit code, a part of the error)
REFUSED = [
    ("peft", change_config(peft_version=None), 2, "--expert-order"),
    ("peft", change_config(target_parameters=None), 3, "target_parameters"),
    ("peft", change_config(target_parameters=["experts.down_proj"]), 3, "target_parameters"),
    ("peft", change_config(target_parameters=["experts.down_proj", "experts.down_proj_bias"]), 3, "bias"),
    ("peft", change_config(r=97), 3, "times the rank 97"),
    ("peft", drop("base_layer.lora_B"), 3, "lora_B"),
    ("peft", drop("base_layer"), 3, "of which of them?"),
    ("peft", more_experts, 3, "is of 9 experts, others of"),
    ("stacked", more_experts, 3, "is of 9 experts, others of"),
    ("stacked", change_config(r=97), 3, "with r 97"),
    ("single", drop("experts.0.up_proj.lora_A"), 3, "lora_A"),
]


def check_refused(binary, top):
    failures = []
    for layout, spoil, wanted, part in REFUSED:
        case = Case(None)
        with tempfile.TemporaryDirectory(dir=top) as at:
            write_folder(os.path.join(at, "base"), BASES["single"](*case.weights), "config.json", {})
            write_adapter(os.path.join(at, "adapter"), case, layout)
            spoil(os.path.join(at, "adapter"))
            code, said = merge(binary, at)
            if code != wanted or part not in said or os.path.exists(os.path.join(at, "out.safetensors")):
                failures.append("%s: exit %d and '%s' were wanted: exit %d, %s" % (layout, wanted, part, code, said))
    return failures


def check_counts(binary, top):
    """A base of one expert more than the adapter is for."""
    failures = []
    for base in ("single", "fused"):
        case = Case(None)
        with tempfile.TemporaryDirectory(dir=top) as at:
            more = [w + [w[0]] for w in case.weights]
            write_folder(os.path.join(at, "base"), BASES[base](*more), "config.json", {})
            write_adapter(os.path.join(at, "adapter"), case, "peft")
            code, said = merge(binary, at)
            if code != 3 or "the base's layer has %d" % len(more[0]) not in said:
                failures.append("%s of more experts: exit %d, %s" % (base, code, said))
    return failures


FAMILIES = {"single": "qwen3_moe", "mixtral": "mixtral"}
SIZES = {"num_hidden_layers": 1, "num_experts": 4, "hidden_size": 4, "moe_intermediate_size": 4, "intermediate_size": 4}


def run(binary, at, *words):
    p = subprocess.run([binary, *words, "-q"], cwd=at, capture_output=True, text=True)
    return p.returncode, p.stderr or p.stdout


def check_export(binary, top, base, layout):
    """Exported for vLLM, an adapter of fused experts is a pair for each expert, and gives the same merged weights."""
    case = Case(None)
    with tempfile.TemporaryDirectory(dir=top) as at:
        write_folder(os.path.join(at, "base"), BASES[base](*case.weights), "config.json",
                     {"model_type": FAMILIES[base], **SIZES})
        write_adapter(os.path.join(at, "fused"), case, layout)
        code, said = run(binary, at, "export-lora", "fused", "adapter", "--style", "vllm", "--base", "base", "--json",
                         "--threads", "1", *ADAPTERS[layout][1])
        if code:
            return ["export of %s for %s: exit %d, %s" % (layout, base, code, said)]
        nbytes = sum(len(t[2]) for t in read(os.path.join(at, "fused", "adapter_model.safetensors")).values())
        if json.loads(said)["read_bytes"] > 2 * nbytes:  # gate and up share an A
            return ["export of %s for %s reads tensors again for each expert: %s" % (layout, base, said)]
        config = json.load(open(os.path.join(at, "adapter", "adapter_config.json")))
        names = sorted(read(os.path.join(at, "adapter", "adapter_model.safetensors")))
        wanted = sorted(PREFIX + k for k in single("mlp" if base == "single" else "block_sparse_moe")(*case.pairs)[0])
        failures = [] if names == wanted else ["export of %s for %s: other names: %s" % (layout, base, names)]
        if "target_parameters" in config or config["target_modules"] != sorted(NAMES[wanted[0].split(".")[5]]):
            failures.append("export of %s for %s: other targets: %s" % (layout, base, config))
        code, said = merge(binary, at)
        got, merged = (read(os.path.join(at, "out.safetensors")) if code == 0 else said), BASES[base](*case.merged())
        if got != {k: (t[0], list(t[1]), t[2]) for k, t in merged.items()}:
            failures.append("export of %s for %s merges to other values: %s" % (layout, base, said))
        return failures


def names_of(layout, case):
    """The names that a style gives, without the prefix."""
    make = {"peft": ADAPTERS["peft"], "sglang": ADAPTERS["stacked"]}[layout][0]
    return sorted(PREFIX + k for k in make(*case.pairs)[0])


def check_fused(binary, top, base, layout, style):
    """Exported as one pair for all experts, an adapter has the names of the form, and gives the same merged weights."""
    case, kept = Case(None), style == "peft" and layout in ("single", "mixtral")
    title = "export of %s as %s, for %s" % (layout, style, base)
    with tempfile.TemporaryDirectory(dir=top) as at:
        write_folder(os.path.join(at, "base"), BASES[base](*case.weights), "config.json", {})
        write_adapter(os.path.join(at, "from"), case, layout, base == "gpt-oss")
        code, said = run(binary, at, "export-lora", "from", "adapter", "--style", style, *ADAPTERS[layout][1])
        if code:
            return ["%s: exit %d, %s" % (title, code, said)]
        config = json.load(open(os.path.join(at, "adapter", "adapter_config.json")))
        names = sorted(read(os.path.join(at, "adapter", "adapter_model.safetensors")))
        failures = [] if kept or names == names_of(style.removesuffix("-fused"), case) else ["%s: %s" % (title, names)]
        parameters = None if kept or style == "sglang" else ["experts.down_proj", "experts.gate_up_proj"]
        if config.get("target_parameters") != parameters or (parameters and config["target_modules"]):
            failures.append("%s: other targets: %s" % (title, config))
        code, said = merge(binary, at)
        got, merged = (read(os.path.join(at, "out.safetensors")) if code == 0 else said), BASES[base](*case.merged())
        if got != {k: (t[0], list(t[1]), t[2]) for k, t in merged.items()}:
            failures.append("%s merges to other values: %s" % (title, said))
        return failures


def check_incomplete(binary, top):
    """Pairs of single experts that make no whole layer."""
    failures = []
    for drops, part in (("experts.1.", "from expert 0 on"), (".1.up_proj", "one is missing before"),
                        (".2.down_proj", "is of the last of 2 experts, where others have 3")):
        case = Case(None)
        while len(case.weights[0]) != 3:
            case = Case(None)
        with tempfile.TemporaryDirectory(dir=top) as at:
            write_adapter(os.path.join(at, "adapter"), case, "single")
            drop(drops)(os.path.join(at, "adapter"))
            code, said = run(binary, at, "export-lora", "adapter", "out", "--style", "peft-fused")
            if code != 3 or part not in said:
                failures.append("without %s: exit %d, %s" % (drops, code, said))
    return failures


def check_exports_refused(binary, top):
    failures = []
    case = Case(None)
    with tempfile.TemporaryDirectory(dir=top) as at:
        write_adapter(os.path.join(at, "fused"), case, "peft")
        write_adapter(os.path.join(at, "single"), case, "single")
        for name, config in (("oss", {"model_type": "gpt_oss"}), ("dense", {"model_type": "llama"}),
                             ("moe", {"model_type": "qwen3_moe", **SIZES})):
            os.mkdir(os.path.join(at, name))
            with open(os.path.join(at, name, "config.json"), "w") as f:
                json.dump(config, f)
        for words, code, part in ((["fused", "out.safetensors", "--style", "kohya"], 3, "--style peft and sglang"),
                                  (["fused", "out", "--style", "vllm"], 2, "--base FOLDER"),
                                  (["fused", "out", "--style", "vllm", "--base", "oss"], 3, "published fused"),
                                  (["fused", "out", "--style", "vllm", "--base", "dense"], 3, "'llama'"),
                                  (["fused", "out", "--style", "vllm", "--base", "none"], 3, "none/config.json"),
                                  (["single", "out", "--style", "vllm", "--base", "moe"], 2, "--base"),
                                  (["fused", "out.safetensors", "--style", "kohya", "--base", "moe"], 2, "--base")):
            got, said = run(binary, at, "export-lora", *words)
            if (got not in (code, 4) if "none" in words else got != code) or part not in said:
                failures.append("export-lora %s: exit %d, %s" % (" ".join(words), got, said))
    return failures


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary = os.path.abspath(sys.argv[1])
    seed = int(os.environ.get("FSDPCK_SEED", 7))
    random.seed(seed)
    failures = []
    with tempfile.TemporaryDirectory(prefix="fsdpck-experts-") as top:
        for base in BASES:
            for layout in ADAPTERS:
                for square in (None, "gate_up", "down"):
                    failures += check_pair(binary, top, base, layout, square)
        for base in FAMILIES:
            for layout in ADAPTERS:
                if layout not in ("single", "mixtral"):
                    failures += check_export(binary, top, base, layout)
        for layout in ADAPTERS:
            for style in ("peft", "peft-fused", "sglang"):
                bases = [b for b in BASES if b != "gpt-oss" or layout not in ("single", "mixtral", "stacked-halves")]
                failures += check_fused(binary, top, random.choice(bases), layout, style)
        failures += check_incomplete(binary, top)
        failures += check_exports_refused(binary, top)
        failures += check_refused(binary, top) + check_counts(binary, top)
    for line in failures:
        print("FAIL (seed %d) %s" % (seed, line))
    print("%d merges, %d failures" % (3 * len(BASES) * len(ADAPTERS), len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
