#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA on quantized bases: the bits of a run on the dequantized base, in every form and at any number of ranks; what
checkpoints say of such a base, and what is refused.

    quantized.py FSDPTRAIN GOLDENS [--device NAME] [--quick]

The models are those that real libraries quantized (fixtures/quant), with the tensors that they lack made up. Needs
numpy."""
import argparse, json, os, pathlib, random, shutil, struct, subprocess
import numpy as np

from harness import LIMIT_S, Failure, Tests, add_device, read_safetensors

STEPS = 3
FIXTURES = pathlib.Path(os.environ.get("FSDPCK_FIXTURES", pathlib.Path(__file__).parents[2] / "fixtures"))
CASES = ("bnb-fp4", "bnb-nf4", "bnb-nf4-double", "fp8-block", "fp8-block-ct", "fp8-block-ue8m0", "fp8-channel",
         "fp8-modelopt", "fp8-tensor", "mxfp4-ct", "mxfp8-ct", "mxfp8-modelopt", "nvfp4-ct", "nvfp4-modelopt")
OTHERS = ("bnb-int8", "int4-ct")  # dequantized when they are read
FORMS = ("fp8-block", "mxfp4", "nvfp4", "nf4")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


REFUSED = (  # title, words, model, exit code, dtype.base, sections of the config
    ("full", "weights that stay quantized (as stored)", "fp8-block", 2, None, {"lora": None}),
    ("saved", "is a quantized weight (dtype.base: as stored)", "fp8-block", 2, None,
     {"lora": {"modules_to_save": ["k_proj"]}}),
    ("twice", "is part of a quantized weight already", "fp8-block", 3, "nf4", {}),
    ("rows", "needs a multiple of 32", "fp8-block.plain", 3, "mxfp4", {}),
)


def raw_tensors(folder):
    """name: (dtype, shape, bytes) of all files."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        for name, t in json.loads(raw[8:8 + n]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                out[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])
    return out


def write_raw(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data for _, _, data in tensors.values()))


def shapes_of(c):
    """The modules of a Qwen3 model with tensors, and their shapes."""
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    nq, nkv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens", (c["vocab_size"], hidden)
    yield "lm_head", (c["vocab_size"], hidden)
    yield "model.norm", (hidden,)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name, (hidden,)
        for name in ("q_norm", "k_norm"):
            yield at + "self_attn." + name, (dim,)
        for name, shape in zip(ATTENTION, ((nq, hidden), (nkv, hidden), (nkv, hidden), (hidden, nq))):
            yield at + "self_attn." + name, shape
        for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)),
                            ("down_proj", (hidden, inner))):
            yield at + "mlp." + name, shape


def complete(fixture, out):
    """Adds the modules that the fixture lacks, of random numbers in bf16."""
    config = json.loads((fixture / "config.json").read_text())
    tensors, rng = raw_tensors(fixture), np.random.default_rng(1)
    for module, shape in shapes_of(config):
        if any(name.startswith(module + ".") for name in tensors):
            continue
        values = 1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.1 * rng.standard_normal(shape)
        bits = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        tensors[module + ".weight"] = ("BF16", list(shape), bits.tobytes())
    out.mkdir()
    write_raw(out / "model.safetensors", tensors)
    for name in ("config.json", "hf_quant_config.json"):
        if (fixture / name).exists():
            shutil.copy(fixture / name, out)
    return out


class Quantized(Tests):
    def __init__(self, args):
        super().__init__(args)
        rng = random.Random(3)
        self.data = self.tmp / "data.jsonl"
        self.data.write_text("".join(
            json.dumps({"input_ids": ids, "labels": ids}) + "\n"
            for ids in ([rng.randrange(3, 40) for _ in range(rng.randrange(4, 24))] for _ in range(24))))

    def fsdpck_run(self, *args, want=0):
        done = subprocess.run([str(self.fsdpck), *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != want:
            raise Failure(f"fsdpck {args[0]}: exit code {done.returncode}, {want} wanted: {done.stderr[-600:]}")
        return done

    def config(self, model, out, base=None, **sections):
        config = {
            "model": str(model), "output_dir": str(out), "data": {"train": str(self.data), "seq_len": 32},
            "train": {"max_steps": STEPS, "global_batch_size": 3, "learning_rate": 1e-2},
            "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, "checkpoint": {"save_steps": 2}
        }
        if base:
            config["dtype"] = {"base": base}
        for name, section in sections.items():
            config[name] = {**config.get(name, {}), **section} if section is not None else None
        return {k: v for k, v in config.items() if v is not None}

    def train(self, title, model, *options, base=None, want=0, **sections):
        out = self.tmp / title
        path = self.write(title, self.config(model, out, base, **sections))
        return out, self.run(path, *options, want=want).stderr

    def model_of(self, name):
        """A fixture's model, complete, and the same dequantized."""
        model, plain = self.tmp / f"{name}.model", self.tmp / f"{name}.plain"
        if not plain.exists():
            complete(FIXTURES / "quant" / name / ("" if name == "source" else "model"), model)
            self.fsdpck_run("export", model, plain, "--dequantize", "bf16", "-q")
        return model, plain

    def same(self, what, want, got):
        if self.bits(got) != self.bits(want):
            raise Failure(f"{what}: other bits than on the dequantized base")

    def stored(self, name, packed, sections, variants):
        """A library's own files."""
        model, plain = self.model_of(name)
        title = name + "".join(sections)
        want, _ = self.train(f"{title}-plain", plain, **sections)
        for n, options in enumerate(variants):
            got, err = self.train(f"{title}-{n}", model, *options, **sections)
            said = "stay quantized" in err
            if said != packed:
                raise Failure(f"the run says that weights stay quantized: {said}: {err}")
            self.same(f"{name} {options}", want, got)

    def sharded(self, name):
        """Strategies on four ranks, wrapped groups, groups with other dtypes, and parameters in a file."""
        model, plain = self.model_of(name)
        copies = ("--ranks", "4", "--gather", "copy")
        policy = {"policy": [{"modules": ["layers.0"], "param_dtype": "fp32"}]}
        want, _ = self.train(f"{name}-sharded-plain", plain)
        for n, fsdp in enumerate((
            {"sharding_strategy": "HYBRID_SHARD", "dp_shard_size": 2}, {"sharding_strategy": "NO_SHARD"},
            {"sharding_strategy": "HYBRID_SHARD_ZERO2", "dp_replicate_size": 2}, {"reshard_after_forward": 2},
            {"auto_wrap_policy": "NO_WRAP"},
            {"auto_wrap_policy": "LINEAR_WRAP", "offload": str(self.tmp), "offload_params": True})):
            got, _ = self.train(f"{name}-sharded-{n}", model, *copies, fsdp=fsdp)
            self.same(f"{name} {fsdp}", want, got)
        want, _ = self.train(f"{name}-policy-plain", plain, fsdp=policy)
        got, _ = self.train(f"{name}-policy", model, *copies, fsdp=policy)
        self.same(f"{name} {policy}", want, got)

    def at_load(self, form, variants):
        """Quantized when it is read, like a folder that export --quantize has written."""
        _, plain = self.model_of("source")
        folder, values = self.tmp / f"{form}.folder", self.tmp / f"{form}.values"
        self.fsdpck_run("export", plain, folder, "--quantize", form, "-q")
        self.fsdpck_run("export", folder, values, "--dequantize", "bf16", "-q")
        want, _ = self.train(f"load-{form}-values", values)
        for n, options in enumerate(variants):
            got, _ = self.train(f"load-{form}-{n}", plain, *options, base=form)
            self.same(f"{form} at load {options}", want, got)
        got, _ = self.train(f"load-{form}-bf16", folder, base="bf16")
        self.same(f"{form} dequantized at load", want, got)

    def resumed(self, name, base):
        """Stopped after two steps, resumed on another number of ranks."""
        model, _ = self.model_of(name)
        want, _ = self.train(f"{name}-{base}-straight", model, base=base)
        out, _ = self.train(f"{name}-{base}-resumed", model, "--ranks", "3", base=base, train={"max_steps": 2,
                            "lr_scheduler_type": "constant"})
        whole, _ = self.train(f"{name}-{base}-whole", model, base=base, train={"lr_scheduler_type": "constant"})
        self.train(f"{name}-{base}-resumed", model, "--ranks", "2", "--gather", "copy", base=base,
                   train={"lr_scheduler_type": "constant"})
        self.same(f"{name} resumed", whole, out)
        last = sorted((out / "checkpoints").glob("step-*"))[-1]
        held = json.loads((last / "index.json").read_text())["base"].get("held")
        if held != (base or "as stored"):
            raise Failure(f"the checkpoint says that its base is held as {held}")
        return last

    def exported(self, name, base):
        """verify, export-lora and merge-lora know the base; another one is refused."""
        model, plain = self.model_of(name)
        last = self.resumed(name, base)
        title = f"{name}-{base}"
        self.fsdpck_run("verify", last, "-q")
        self.fsdpck_run("reshard", last, self.tmp / f"{title}-resharded", "--ranks", "2", "-q")
        self.fsdpck_run("verify", self.tmp / f"{title}-resharded", "-q")
        adapter, merged, wanted = (self.tmp / f"{title}-{word}" for word in ("adapter", "merged", "wanted"))
        self.fsdpck_run("export-lora", last, adapter, "-q")
        self.fsdpck_run("merge-lora", model, last, merged, "--dequantize", "bf16", "-q")
        self.fsdpck_run("merge-lora", plain, adapter, wanted, "-q")
        a, b = read_safetensors(merged / "model.safetensors"), read_safetensors(wanted / "model.safetensors")
        if a.keys() != b.keys() or any(not np.array_equal(a[k], b[k]) for k in a):
            raise Failure("merged into the base, the checkpoint gives other weights than its adapter")
        self.fsdpck_run("merge-lora", last, self.tmp / f"{title}-found", "--dequantize", "bf16", "-q")
        other = self.tmp / f"{title}-other"
        shutil.copytree(model, other)
        tensors = raw_tensors(other)
        key = next(k for k in sorted(tensors) if "k_proj" in k and len(tensors[k][2]) > 400)
        dtype, shape, data = tensors[key]
        write_raw(other / "model.safetensors", {**tensors, key: (dtype, shape, bytes([data[0] ^ 1]) + data[1:])})
        err = self.fsdpck_run("merge-lora", other, last, self.tmp / f"{title}-bad", "-q", want=3).stderr
        if "other values" not in err or "k_proj" not in err:
            raise Failure(f"merged into another base: {err}")

    def kept_apart(self):
        """A base that is held in another way is another base."""
        model, _ = self.model_of("source")
        self.train("apart", model, base="nf4")
        _, err = self.train("apart", model, base="fp8-block", train={"max_steps": 4}, want=2)
        if "key 'dtype.base'" not in err or "nf4" not in err or "fp8-block" not in err:
            raise Failure(err)

    def refused(self, words, name, want, base, sections):
        model = self.model_of(name.removesuffix(".plain"))[name.endswith(".plain")]
        _, err = self.train("refused", model, base=base, want=want, **sections)
        if words not in err or "--dequantize" in err or want == 3 and '"as stored"} takes the weights' not in err:
            raise Failure(f"'{words}' is missing, or the way that the trainer has: {err}")

    def planned(self):
        """The memory of the base and the bytes that are gathered shrink with it. Half of the trained parameters, of two
        bytes each, are in either block."""
        model = self.tmp / "wide"
        model.mkdir()
        config = json.loads((FIXTURES / "quant/source/config.json").read_text())
        config.update(hidden_size=512, intermediate_size=1024, num_hidden_layers=2)
        (model / "config.json").write_text(json.dumps(config))
        write_raw(model / "model.safetensors", {
            module + ".weight": ("BF16", list(shape), bytes(2 * int(np.prod(shape))))
            for module, shape in shapes_of(config)})
        plans = {}
        for base in ("as stored", "fp8-block", "nf4"):
            path = self.write("planned", self.config(model, self.tmp / "planned", base))
            done = subprocess.run([self.tool, "plan", str(path), "--ranks", "2", "--gather", "copy", "--device", "cpu",
                                   "--json", "-q"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
            plan = json.loads(done.stdout)
            plans[base] = {"block": plan["groups"][1]["gathered_bytes"] - plan["parameters_trained"], **plan}
        for base, limit in (("fp8-block", 0.55), ("nf4", 0.30)):
            was, now = plans["as stored"], plans[base]
            if now["block"] > limit * was["block"]:
                raise Failure(f"{base}: {now['block']} bytes of a block are gathered, and were {was['block']}")
            for key in ("shard_bytes", "gather_buffer_bytes", "gathered_bytes_per_step"):
                if was[key] - now[key] < 0.9 * (1 - limit) * was[key]:
                    raise Failure(f"{base}: {key} is {now[key]}, and was {was[key]}")
            if was["parameters_frozen"] != now["parameters_frozen"]:
                raise Failure(f"{base}: other numbers of parameters")

    def text_of(self, *args):
        done = subprocess.run([self.tool, "sample", *map(str, args), "--prompt", "The quick", "--max-new-tokens", "12",
                               "-q"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return done.stdout

    def sampled(self):
        """fsdptrain sample takes quantized folders, and checkpoints say how their base was held."""
        model = FIXTURES / "tiny-llama-tied"
        for form in ("fp8-block", "nf4"):
            folder, plain = self.tmp / f"{form}.tiny", self.tmp / f"{form}.tiny-plain"
            self.fsdpck_run("export", model, folder, "--quantize", form, "-q")
            self.fsdpck_run("export", folder, plain, "--dequantize", "bf16", "-q")
            out, _ = self.train(f"{form}.tiny-run", model, base=form)
            last = sorted((out / "checkpoints").glob("step-*"))[-1]
            texts = {self.text_of(folder), self.text_of(plain)}
            adapted = {self.text_of(model, "--adapter", last), self.text_of(plain, "--adapter", out / "adapter"),
                       self.text_of(folder, "--adapter", out / "adapter")}
            if len(texts) != 1 or len(adapted) != 1 or "" in texts | adapted:
                raise Failure(f"{form}: {texts} {adapted}")



def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="few of many cases")
    add_device(parser)
    args = parser.parse_args()
    t = Quantized(args)
    copies = (("--ranks", "1"), ("--ranks", "2", "--gather", "copy"), ("--ranks", "3"))
    variants = copies[1:2] if args.quick else copies
    for name in CASES[::4] if args.quick else CASES:
        t.check(name, t.stored, name, True, {}, variants)
    for name in OTHERS:
        t.check(name, t.stored, name, False, {}, variants[:1])
    for sections in ({"lora": {"use_dora": True, "lora_dropout": 0.1}}, {"dtype": {"param": "fp32"}},
                     {"fsdp": {"activation_checkpointing": "block", "sharding_strategy": "SHARD_GRAD_OP"}}):
        t.check(f"bnb-nf4-double {sections}", t.stored, "bnb-nf4-double", True, sections, variants)
    for form in FORMS[3:] if args.quick else FORMS:
        t.check(f"{form} at load", t.at_load, form, variants)
    if args.device == "cpu":
        t.check("strategies", t.sharded, "bnb-nf4")
        t.check("export nvfp4", t.exported, "nvfp4-ct", None)
        t.check("export nf4", t.exported, "bnb-nf4-double", None)
        t.check("resume nf4 at load", t.resumed, "source", "nf4")
        t.check("kept apart", t.kept_apart)
        t.check("sample", t.sampled)
        t.check("plan", t.planned)
        for title, words, name, want, base, sections in REFUSED:
            t.check(title, t.refused, words, name, want, base, sections)
    return t.end()


if __name__ == "__main__":
    raise SystemExit(main())
