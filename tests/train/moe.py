#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: the bits of one rank at any number of ranks, by every strategy, resumed, and on quantized bases;
samples, plans and exports; and what is refused.

    moe.py FSDPTRAIN GOLDENS [--device NAME] [--quick]

The models are random. Needs numpy."""
import argparse, json, os, random, shutil, signal, subprocess
import numpy as np

from harness import LIMIT_S, Early, Failure, Tests, add_device, children_of, read_safetensors, write_safetensors
from planner import RATES
from serve_client import bits_of, is_built

STEPS, LAYERS, HIDDEN, INNER, EXPERTS = 3, 3, 64, 32, 5
MIXTRAL = {"model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": INNER}
QWEN = {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 3, "intermediate_size": 48,
        "moe_intermediate_size": INNER, "norm_topk_prob": False, "mlp_only_layers": [1]}
QWEN2 = {**QWEN, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 40, "norm_topk_prob": True,
         "qkv_bias": False, "output_router_logits": True, "router_aux_loss_coef": 0.1}
DEEPSEEK = {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "intermediate_size": 48,
            "moe_intermediate_size": INNER}
GLM = {**DEEPSEEK, "model_type": "glm4_moe", "use_qk_norm": True, "num_nextn_predict_layers": 1}
DOTS = {**DEEPSEEK, "model_type": "dots1", "sliding_window": 9, "max_window_layers": 1, "norm_topk_prob": True}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": INNER,
           "sliding_window": 9, "swiglu_limit": 1.0}
COMMON = {"vocab_size": 40, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False, "rope_theta": 10000.0}
FAMILIES = {"mixtral": MIXTRAL, "qwen3": QWEN, "qwen2": QWEN2, "glm": GLM, "dots": DOTS, "gpt_oss": GPT_OSS}
COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
PARAMETERS = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "rank_pattern": {"gate_up_proj": 3},
              "target_parameters": ["experts.gate_up_proj", "mlp.experts.down_proj"]}
WAYS = (  # ranks and options, fsdp
    (("--ranks", "2"), {}),
    (("--ranks", "3", "--gather", "copy"),
     {"auto_wrap_policy": "HALF_BLOCK_WRAP", "activation_checkpointing": "block"}),
    (("--ranks", "4", "--gather", "copy"), {"auto_wrap_policy": "LINEAR_WRAP", "dp_shard_size": 2}),
    (("--ranks", "5"), {"activation_checkpointing": "block"}),
    (("--ranks", "8", "--gather", "copy", "--threads", "1"), {"sharding_strategy": "NO_SHARD"}),
    (("--ranks", "1", "--threads", "3"), {"activation_checkpointing": "block"}),
)
APART = (  # ranks and options, fsdp: experts that are whole on ranks
    (("--ranks", "2"), {"expert_parallel": 2}),
    (("--ranks", "3", "--gather", "copy"), {"expert_parallel": 3, "activation_checkpointing": "block"}),
    (("--ranks", "4", "--gather", "copy"), {"expert_parallel": 4, "sharding_strategy": "HYBRID_SHARD",
                                            "dp_shard_size": 2}),
    (("--ranks", "6", "--gather", "copy", "--threads", "1"), {"expert_parallel": 2, "auto_wrap_policy": "NO_WRAP"}),
    (("--ranks", "4", "--gather", "copy", "--threads", "1"), {"expert_parallel": 2, "sharding_strategy": "NO_SHARD"}),
    (("--ranks", "6", "--gather", "copy", "--threads", "1"),
     {"expert_parallel": 3, "auto_wrap_policy": "HALF_BLOCK_WRAP", "activation_checkpointing": "block"}),
    (("--ranks", "2", "--gather", "copy"), {"expert_parallel": 2, "auto_wrap_policy": "LINEAR_WRAP"}),
)
REFUSED = (  # title, words, keys of config.json, sections of the config
    ("jitter", "key 'router_jitter_noise' changes the maths", {"router_jitter_noise": 0.1}, {}),
    ("dense family", "key 'num_local_experts' changes the maths", {"model_type": "llama"}, {}),
    ("too few experts", "key 'num_experts_per_tok': 9 of 5 experts cannot be chosen", {"num_experts_per_tok": 9}, {}),
    ("saved expert", "is an expert, which is not trained whole in an adapter", {},
     {"lora": {**LORA, "target_modules": ["q_proj"], "modules_to_save": ["w1"]}}),
    ("DoRA", "is not supported with DoRA", {}, {"lora": {**LORA, "use_dora": True}}),
    ("name", "'gate_proj' names no module of this model", {},
     {"lora": {**LORA, "target_modules": ["gate_proj"]}}),
    ("latent attention", "has multi-head latent attention (key 'kv_lora_rank')",
     {"model_type": "deepseek_v3", "kv_lora_rank": 16}, {}),
    ("groups", "keys 'n_group' and 'topk_group': 1 of 4 equal groups", {**GLM, "n_group": 4, "topk_group": 1}, {}),
    ("groups of one", "keys 'n_group' and 'topk_group': 1 of 6 equal groups", {**GLM, "n_group": 6, "topk_group": 1},
     {}),
    ("no group", "key 'n_group': a whole number from 1", {**GLM, "n_group": 0}, {}),
    ("too few groups", "key 'num_experts_per_tok': 3 of the 2 experts of 1 groups cannot be chosen",
     {**GLM, "topk_group": 1, "num_experts_per_tok": 3}, {}),
    ("no scale", "key 'routed_scaling_factor': with 0", {**GLM, "routed_scaling_factor": 0}, {}),
    ("rotary", "key 'partial_rotary_factor': of 16 features of a head, an even number must remain",
     {**GLM, "partial_rotary_factor": 0.1}, {}),
    ("saved experts", "of experts, which are not trained whole in an adapter", GPT_OSS,
     {"lora": {**LORA, "target_modules": ["q_proj"], "modules_to_save": ["experts"]}}),
    ("router of gpt-oss", "'router' names no module of this model", GPT_OSS,
     {"lora": {**LORA, "target_modules": ["q_proj", "router"]}}),
    ("parameters with dropout", "an adapter of a parameter has no dropout", GPT_OSS,
     {"lora": {**PARAMETERS, "lora_dropout": 0.1}}),
    ("parameters with DoRA", "an adapter of a parameter has no DoRA", GPT_OSS,
     {"lora": {**PARAMETERS, "use_dora": True}}),
    ("parameters and modules", "both choose experts of one layer: model.layers.0.block_sparse_moe.experts.0.w2, and "
     "model.layers.0.mlp.experts.gate_up_proj", {}, {"lora": {**PARAMETERS, "target_modules": ["w2"]}}),
    ("no such parameter", "'gate_up_proj_bias' names no parameter of this model that takes an adapter", GPT_OSS,
     {"lora": {**LORA, "target_parameters": ["gate_up_proj_bias"]}}),
    ("no target", "key 'lora.target_modules': a list of module names", {}, {"lora": {"target_modules": []}}),
    ("no limit", "keys 'swiglu_alpha' and 'swiglu_limit'", {**GPT_OSS, "swiglu_limit": 0}, {}),
    ("no experts", "key 'n_routed_experts' is missing", {**DOTS, "n_routed_experts": None}, {}),
    ("dense family, other key", "key 'n_routed_experts' changes the maths",
     {"model_type": "llama", "num_local_experts": None, "n_routed_experts": 4}, {}),
)


WHOLE = {"fsdp": {"expert_parallel": 2}}
REFUSED_APART = (  # words behind "key 'fsdp.expert_parallel': ", as above, options
    ("2 does not divide the 3 ranks of this run", {}, WHOLE, "--ranks", "3"),
    ("2 does not divide the 5 experts of a block", {}, WHOLE, "--ranks", "2"),
    ("the model has no experts", {"model_type": "llama", "num_local_experts": None}, WHOLE, "--ranks", "2"),
    ("in the file of fsdp.offload_params", {"num_local_experts": 4},
     {"fsdp": {**WHOLE["fsdp"], "offload": "./disk", "offload_params": True}}, "--ranks", "2"),
    ("the shard groups of fsdp.policy", {"num_local_experts": 4},
     {"fsdp": {**WHOLE["fsdp"], "policy": [{"modules": ["layers.1"], "sharding_strategy": "NO_SHARD"}]}},
     "--ranks", "2", "--gather", "copy"),
)


def shared_of(at, c):
    inner = c.get("shared_expert_intermediate_size", 0) or INNER * c.get("n_shared_experts", 0)
    path = at + ("mlp.shared_experts" if "n_shared_experts" in c else "mlp.shared_expert")
    if "shared_expert_intermediate_size" in c:
        yield at + "mlp.shared_expert_gate", (1, HIDDEN)
    for name, shape in (("gate_proj", (inner, HIDDEN)), ("up_proj", (inner, HIDDEN)), ("down_proj", (HIDDEN, inner))):
        if inner:
            yield f"{path}.{name}", shape


def experts_of(c):
    return next((c[key] for key in COUNTS if c.get(key)), EXPERTS)


def gpt_oss_shapes(c):
    """Of what only gpt-oss has: whole names."""
    nexperts = experts_of(c)
    for at in (f"model.layers.{i}." for i in range(LAYERS)):
        yield from ((f"{at}self_attn.{name}_proj.bias", (n,)) for name, n in (("q", 64), ("k", 32), ("v", 32),
                                                                              ("o", HIDDEN)))
        yield at + "self_attn.sinks", (4,)
        yield at + "mlp.router.weight", (nexperts, HIDDEN)
        yield at + "mlp.router.bias", (nexperts,)
        yield at + "mlp.experts.gate_up_proj", (nexperts, HIDDEN, 2 * INNER)
        yield at + "mlp.experts.gate_up_proj_bias", (nexperts, 2 * INNER)
        yield at + "mlp.experts.down_proj", (nexperts, INNER, HIDDEN)
        yield at + "mlp.experts.down_proj_bias", (nexperts, HIDDEN)


def shapes_of(c):
    mixtral = c["model_type"] == "mixtral"
    block, nexperts = "block_sparse_moe" if mixtral else "mlp", experts_of(c)
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    yield "model.embed_tokens", (c["vocab_size"], HIDDEN)
    yield "lm_head", (c["vocab_size"], HIDDEN)
    yield "model.norm", (HIDDEN,)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name, (HIDDEN,)
        if c["model_type"] in ("qwen3_moe", "dots1") or c.get("use_qk_norm"):
            yield at + "self_attn.q_norm", (16,)
            yield at + "self_attn.k_norm", (16,)
        for name, nout in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32), ("o_proj", 64)):
            yield at + "self_attn." + name, (nout, HIDDEN)
        if c["model_type"] == "gpt_oss":
            continue
        if i in c.get("mlp_only_layers", ()) or i < c.get("first_k_dense_replace", 0):
            paths, inner = ["mlp"], c["intermediate_size"]
        else:
            yield f"{at}{block}.gate", (nexperts, HIDDEN)
            paths, inner = [f"{block}.experts.{e}" for e in range(nexperts)], INNER
            yield from shared_of(at, c)
        for path in paths:
            for name, shape in zip(names, ((inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner))):
                yield f"{at}{path}.{name}", shape


class Moe(Tests):
    def __init__(self, args):
        super().__init__(args)
        self.on_cpu = args.device == "cpu"
        rng = random.Random(5)
        self.data = self.tmp / "data.jsonl"
        self.data.write_text("".join(
            json.dumps({"input_ids": ids, "labels": ids}) + "\n"
            for ids in ([rng.randrange(3, 40) for _ in range(rng.randrange(2, 30))] for _ in range(24))))

    def model_of(self, name, **keys):
        """Of a family; "qwen3-12" has 12 experts."""
        folder = self.tmp / f"{name}.model"
        if folder.exists():
            return folder
        family, many = name.removesuffix("-12"), 12 if name.endswith("-12") else 0
        config, rng = {**COMMON, **FAMILIES.get(family, MIXTRAL), **keys}, np.random.default_rng(2)
        config.update((key, many) for key in COUNTS if many and config.get(key))
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {
            module + ".weight": (1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else
                                 rng.standard_normal(shape) / shape[1]**0.5).astype(np.float32)
            for module, shape in shapes_of({**config, "model_type": config["model_type"].replace("llama", "mixtral")})}
        tensors.update((name, (0.3 * rng.standard_normal(shape)).astype(np.float32))
                       for name, shape in gpt_oss_shapes(config) if config["model_type"] == "gpt_oss")
        for name in [n for n in tensors if n.endswith("mlp.gate.weight") and "n_routed_experts" in config]:
            tensors[name[:-len("weight")] + "e_score_correction_bias"] = rng.standard_normal(
                len(tensors[name])).astype(np.float32) * 0.3
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def train(self, title, model, *options, want=0, **sections):
        out = self.tmp / title.replace(" ", "-")
        shutil.rmtree(out, ignore_errors=True)
        config = {"model": str(model), "output_dir": str(out), "data": {"train": str(self.data), "seq_len": 32},
                  "train": {"max_steps": STEPS, "global_batch_size": 4, "learning_rate": 1e-2}, **sections}
        done = self.run(self.write(out.name, config), *options, want=want)
        return out, done.stderr

    def bits_of(self, family, dtype, kind):
        loras = {"LoRA": {"lora": {**LORA, "lora_dropout": 0.2}}, "parameters": {"lora": PARAMETERS}}
        sections, title = {"dtype": {"param": dtype}, **loras.get(kind, {})}, f"{family}-{dtype}-{kind}"
        model = self.model_of(family)
        want = self.bits(self.train(f"{title}-one", model, "--ranks", "1", **sections)[0])
        for n, (options, fsdp) in enumerate(WAYS):
            got = self.bits(self.train(f"{title}-{n}", model, *options, fsdp=fsdp, **sections)[0])
            if got != want:
                raise Failure(f"{title} {options} {fsdp}: other bits than of one rank")

    def uneven(self, family):
        """The same model, but every token chooses the first experts."""
        model, folder = self.model_of(f"{family}-12"), self.tmp / f"{family}-uneven.model"
        shutil.copytree(model, folder)
        tensors = {name: x.copy() for name, x in read_safetensors(model / "model.safetensors").items()}
        for name in (n for n in tensors if n.endswith((".gate.weight", "router.weight", "router.bias"))):
            tensors[name][:] = 0
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def apart(self, family, dtype, kind):
        """Experts that are whole on ranks: the bits of experts that are gathered."""
        loras = {"LoRA": {"lora": {**LORA, "lora_dropout": 0.2}}, "parameters": {"lora": PARAMETERS},
                 "attention": {"lora": {**LORA, "target_modules": ["q_proj", "v_proj"]}},
                 "uneven": {"lora": {**LORA, "target_modules": ["k_proj", "w1", "w2", "w3"]}}}
        sections = {"dtype": {"param": dtype}, "data": {"train": str(self.data), "eval": str(self.data), "seq_len": 32},
                    **loras.get(kind, {})}
        title = f"apart-{family}-{dtype}-{kind}"
        model = self.uneven(family) if kind == "uneven" else self.model_of(f"{family}-12")
        def results(out):
            return self.bits(out), [m.get("eval_loss") for m in self.metrics(out)]
        want = results(self.train(f"{title}-one", model, "--ranks", "1", **sections)[0])
        for n, (options, fsdp) in enumerate(APART):
            if results(self.train(f"{title}-{n}", model, *options, fsdp=fsdp, **sections)[0]) != want:
                raise Failure(f"{title} {options} {fsdp}: other bits than of one rank")

    def lost(self):
        """Of 4 ranks in groups of 2, one is killed: 2 go on."""
        sections = {"lora": LORA, "checkpoint": {"memory_every": 5},
                    "train": {"max_steps": 30, "global_batch_size": 4, "learning_rate": 1e-3}}
        model = self.model_of("mixtral-12")
        want = self.bits(self.train("not-lost", model, **sections)[0])
        config = json.loads((self.tmp / "not-lost.json").read_text())
        out = self.tmp / "lost"
        shutil.rmtree(out, ignore_errors=True)
        path = self.write("lost", {**config, "output_dir": str(out), "fsdp": {"expert_parallel": 2}})
        process = subprocess.Popen([*self.runs, str(path), "--ranks", "4", "--elastic", "2"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        next((line for line in process.stderr if line.startswith("step 10 ")), None)
        ranks = children_of(process.pid)
        if len(ranks) == 4:
            os.kill(ranks[1], signal.SIGKILL)
        said = process.communicate(timeout=LIMIT_S)[1]
        if process.returncode == 0 and "was killed" not in said:
            raise Early(said[-300:])
        if process.returncode or "going on with 2 of 4 ranks" not in said or self.bits(out) != want:
            raise Failure(f"exit code {process.returncode}, or other bits than of one rank: {said[-900:]}")

    def resumed(self, family, more, first={}, then={}):
        """Under another strategy, on other ranks. first, then: fsdp before and after."""
        def sections(steps):
            return {**more, "checkpoint": {"save_steps": 1},
                    "train": {"max_steps": steps, "global_batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 0,
                              "lr_scheduler_type": "constant"}}
        model = self.model_of(family)
        name = family + "-".join(more) + "-apart" * bool(first)
        want = self.bits(self.train(f"whole-{name}", model, "--ranks", "2", **sections(STEPS))[0])
        out, _ = self.train(f"part-{name}", model, "--ranks", "3", **sections(1), fsdp=first)
        path = self.tmp / f"part-{name}.json"
        config = json.loads(path.read_text())
        config["train"]["max_steps"] = STEPS
        path.write_text(json.dumps({**config, "fsdp": then}))
        self.run(path, "--ranks", "4", "--gather", "copy")
        if self.bits(out) != want:
            raise Failure("resumed: other bits than of the run that was not interrupted")

    def quantized(self, form):
        """Experts stay quantized like any weight."""
        model, folder, values = (self.model_of("mixtral-12"), self.tmp / f"{form}.folder",
                                 self.tmp / f"{form}.values")
        for args in ((model, folder, "--quantize", form), (folder, values, "--dequantize", "bf16")):
            self.convert("export", *args)
        want = self.bits(self.train(f"{form}-values", values, "--ranks", "1", lora=LORA)[0])
        for ranks, n in ("1", 1), ("3", 1), ("4", 2):
            fsdp = {"expert_parallel": n} if self.on_cpu else {}
            got, said = self.train(f"{form}-{ranks}", folder, "--ranks", ranks, lora=LORA, fsdp=fsdp)
            if "stay quantized" not in said or self.bits(got) != want:
                raise Failure(f"{form}, {ranks} ranks: other bits than on the dequantized base: {said[-300:]}")

    def tenants(self):
        """Adapters on one quantized mixture at once, and each alone."""
        model, base = self.model_of("mixtral"), {"dtype": {"base": "nf4"}}
        loras = {"a": {**LORA, "lora_dropout": 0.1}, "b": {"r": 2, "target_modules": ["q_proj", "w1", "gate"]},
                 "c": {"r": 3, "target_modules": ["v_proj"], "use_dora": True}}
        want = {n: self.bits(self.train(f"tenant-{n}", model, lora=lora, **base)[0]) for n, lora in loras.items()}
        out, _ = self.train("tenants", model, "--ranks", "3", "--gather", "copy", **base,
                            tenants=[{"name": n, "lora": lora} for n, lora in loras.items()])
        for n in loras:
            if self.bits(out / "tenants" / n) != want[n]:
                raise Failure(f"tenant {n}: other bits than alone")

    def uneven_tenants(self, family):
        """Tenants with other numbers of packets, turns and steps, so that a rank with whole experts also serves tenants
        for which it has no micro-batch; and a function that compares a run's folder with each alone."""
        model, base = self.model_of(f"{family}-12"), {"dtype": {"base": "nf4"}}
        train = {"max_steps": STEPS, "learning_rate": 1e-2}
        data = {"train": str(self.data), "eval": str(self.data), "seq_len": 32}
        tenants = [
            {"name": "a", "lora": {**LORA, "lora_dropout": 0.1}, "train": {**train, "global_batch_size": 3}},
            {"name": "b", "lora": {"r": 2, "target_modules": ["q_proj", "w1", "gate"]}, "seed": 3,
             "train": {**train, "max_steps": 2, "global_batch_size": 10, "gradient_accumulation_steps": 2}},
            {"name": "c", "lora": {"r": 3, "target_modules": ["v_proj"]}, "data": {**data, "seq_len": 48},
             "train": {**train, "global_batch_size": 1, "eval_steps": 1}},
            {"name": "d", "lora": {"r": 2, "target_modules": r".*layers\.2\..*w2"},
             "train": {**train, "max_steps": 5, "global_batch_size": 2}}]
        def results(out):
            return self.bits(out), [(m["loss"], m.get("eval_loss")) for m in self.metrics(out)]
        want = {t["name"]: results(self.train(f"tenant-{t['name']}-alone", model, "--ranks", "1", **{
            **base, **{key: x for key, x in t.items() if key != "name"}})[0]) for t in tenants}
        def compare(out):
            for name in want:
                if results(out / "tenants" / name) != want[name]:
                    raise Failure(f"tenant {name}: other bits than alone")
        return model, {**base, "tenants": tenants}, compare

    def tenants_apart(self, family):
        model, sections, compare = self.uneven_tenants(family)
        for n, (options, fsdp) in enumerate((
            (("--ranks", "2"), {"expert_parallel": 2}),
            (("--ranks", "4", "--gather", "copy"), {"expert_parallel": 2, "activation_checkpointing": "block"}),
            (("--ranks", "4", "--gather", "copy", "--threads", "1"),
             {"expert_parallel": 4, "policy": [{"modules": ["layers.1.self_attn"], "reshard_after_forward": False}]}),
            (("--ranks", "6", "--threads", "1"), {"expert_parallel": 3}))):
            compare(self.train(f"tenants-apart-{n}", model, *options, fsdp=fsdp, **sections)[0])

    def served(self, family):
        model = self.model_of(family)
        found = [bits_of(self.tool, model, self.tmp / f"{family}-served-{n}", n) for n in (1, 3)]
        if found[0] != found[1]:
            raise Failure("other bits at 3 ranks")

    def gpt_oss_mxfp4(self):
        """As gpt-oss is published: its experts stay quantized, or are dequantized when they are read."""
        model, folder, values = self.model_of("gpt_oss"), self.tmp / "oss.folder", self.tmp / "oss.values"
        tensors, rng = read_safetensors(model / "model.safetensors"), np.random.default_rng(3)
        shapes = {"gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN // 32), "down_proj": (EXPERTS, HIDDEN, INNER // 32)}
        for i in range(LAYERS):
            for name, shape in shapes.items():
                path = f"model.layers.{i}.mlp.experts.{name}"
                del tensors[path]
                tensors[path + "_blocks"] = rng.integers(0, 256, (*shape, 16)).astype(np.uint8)
                tensors[path + "_scales"] = rng.integers(122, 126, shape).astype(np.uint8)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", tensors)
        config = json.loads((model / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
        self.convert("export", folder, values, "--dequantize", "bf16")
        want = self.bits(self.train("oss-values", values, "--ranks", "1", lora=LORA)[0])
        for ranks, base in (("1", "as stored"), ("3", "as stored"), ("2", "bf16")):
            out, said = self.train(f"oss-{ranks}", folder, "--ranks", ranks, lora=LORA, dtype={"base": base})
            if self.bits(out) != want or ("6 weights stay quantized" in said) != (base == "as stored"):
                raise Failure(f"{base}, {ranks} ranks: other bits than on the dequantized base: {said[-300:]}")
        full = [self.train(f"oss-full-{ranks}", model, "--ranks", ranks, dtype={"base": "bf16"},
                           checkpoint={"export_model": True})[0] for ranks, model in (("1", values), ("3", folder))]
        if self.bits(full[0]) != self.bits(full[1]) or "quantization" in (full[1] / "model/config.json").read_text():
            raise Failure("all weights trained: other bits than on the dequantized model, or its config.json quantized")
        self.goes_on(folder, values)

    def goes_on(self, folder, values):
        """On quantized experts: from a checkpoint, on other ranks; merged; sampled."""
        sections = {
            "lora": LORA, "sample": {"every": STEPS, "prompts": [{"input_ids": [5, 6, 7, 8]}]},
            "train": {"max_steps": STEPS, "global_batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 0,
                      "lr_scheduler_type": "constant"}}
        whole, _ = self.train("oss-whole", values, **sections)
        out, _ = self.train("oss-resumed", folder, "--ranks", "3", "--set", "train.max_steps=1", **sections)
        self.run(self.tmp / "oss-resumed.json", "--ranks", "2")
        if self.bits(out) != self.bits(whole):
            raise Failure("resumed: other bits than of a run that was not stopped")
        last = sorted((out / "checkpoints").glob("step-*"))[-1]
        self.convert("verify", last)
        merged = [self.tmp / f"oss-merged-{n}" for n in range(2)]
        self.convert("merge-lora", folder, last, merged[0], "--dequantize", "bf16")
        self.convert("merge-lora", values, out / "adapter", merged[1])
        a, b = (read_safetensors(m / "model.safetensors") for m in merged)
        if a.keys() != b.keys() or any(a[k].tobytes() != b[k].tobytes() for k in a):
            raise Failure("merged: other weights than of the adapter and the dequantized base")
        texts = [sorted((run / "samples").glob("*"))[-1].read_text() for run in (out, whole)]
        if texts[0] != texts[1]:
            raise Failure(f"sampled: {texts}")

    def gpt_oss_at_load(self, form):
        """Experts in bf16 are quantized when they are read, as the matrix of all their outputs would be."""
        model = self.model_of("gpt_oss-12")
        rows, folder, values, plain = (self.tmp / f"oss-{form}.{n}" for n in ("rows", "folder", "values", "plain"))
        tensors = read_safetensors(model / "model.safetensors")
        stacks = [n for n in tensors if tensors[n].ndim == 3]
        turned = {n + ".weight": tensors[n].transpose(0, 2, 1).reshape(-1, tensors[n].shape[1]) for n in stacks}
        shutil.copytree(model, rows)
        write_safetensors(rows / "model.safetensors",
                          {**{n: t for n, t in tensors.items() if n not in stacks}, **turned})
        self.convert("export", rows, folder, "--quantize", form)
        self.convert("export", folder, values, "--dequantize", "bf16")
        got = read_safetensors(values / "model.safetensors")
        for n in stacks:
            experts, nin, nout = tensors[n].shape
            got[n] = got.pop(n + ".weight").reshape(experts, nout, nin).transpose(0, 2, 1)
        shutil.copytree(model, plain)
        write_safetensors(plain / "model.safetensors", {n: np.ascontiguousarray(t) for n, t in got.items()})
        want = self.bits(self.train(f"oss-{form}-plain", plain, lora=LORA)[0])
        for ranks, n in ("1", 1), ("3", 3 if self.on_cpu else 1):
            out, _ = self.train(f"oss-{form}-{ranks}", model, "--ranks", ranks, lora=LORA, dtype={"base": form},
                                fsdp={"expert_parallel": n})
            if self.bits(out) != want:
                raise Failure(f"{form}, {ranks} ranks: other bits than on the same values in bf16")
        self.convert("verify", sorted((out / "checkpoints").glob("step-*"))[-1])

    def sampled(self, family):
        texts = []
        for n in (1, 3) if self.on_cpu else (1,):
            out, _ = self.train(f"sampled-{family}", self.model_of(f"{family}-12"), "--ranks", str(n), lora=LORA,
                                sample={"every": STEPS, "prompts": [{"input_ids": [5, 6, 7, 8]}]},
                                fsdp={"expert_parallel": n})
            texts.append([p.read_text() for p in sorted((out / "samples").glob("*"))])
        if len(texts[0]) != 1 or not texts[0][0] or texts[-1] != texts[0]:
            raise Failure(f"samples: {texts}")

    def exported(self):
        """With the names of published models."""
        model = self.model_of("mixtral")
        out, _ = self.train("exported", model, "--ranks", "2", checkpoint={"export_model": True})
        names, wanted = self.model(out).keys(), read_safetensors(model / "model.safetensors").keys()
        if names != wanted:
            raise Failure(f"tensors: {sorted(names ^ wanted)[:4]}")
        adapter, _ = self.train("adapter", model, "--ranks", "2", lora=LORA)
        config = json.loads((adapter / "adapter/adapter_config.json").read_text())
        if config["target_modules"] != ["gate", "k_proj", "o_proj", "q_proj", "v_proj", "w1", "w2", "w3"]:
            raise Failure(f"target_modules: {config['target_modules']}")
        merged = self.tmp / "merged"
        self.convert("merge-lora", model, adapter / "adapter", merged)
        losses = self.loss("of adapter", model, {**LORA, "init_adapter": str(adapter / "adapter")}), self.loss(
            "of merged", merged, LORA)
        self.near("the loss of the merged model", abs(losses[0] - losses[1]), 1e-4)

    def parameters(self, family):
        """An adapter of parameters: taken out of a checkpoint, merged, and as pairs of single experts."""
        model, router = self.model_of(family), {"qwen2": ["mlp.gate.weight"], "gpt_oss": ["router.weight"]}
        parameters = {**PARAMETERS, "target_parameters": PARAMETERS["target_parameters"] + router.get(family, []),
                      "rank_pattern": {"gate_up_proj": 3, **dict.fromkeys(router.get(family, []), 2)}}
        run, _ = self.train(f"parameters-{family}", model, "--ranks", "3", lora=parameters,
                            checkpoint={"save_steps": STEPS},
                            sample={"every": STEPS, "prompts": [{"input_ids": [5, 6, 7, 8]}]})
        adapter, checkpoint = run / "adapter", run / f"checkpoints/step-{STEPS:06d}"
        exported, merged, single = (self.tmp / f"{family}.{name}" for name in ("exported", "merged", "single"))
        self.convert("export-lora", checkpoint, exported)
        self.convert("merge-lora", model, checkpoint, merged)
        files = [read_safetensors(f / "adapter_model.safetensors") for f in (adapter, exported)]
        if {n: x.tobytes() for n, x in files[0].items()} != {n: x.tobytes() for n, x in files[1].items()}:
            raise Failure(f"tensors out of the checkpoint: {sorted(files[0].keys() ^ files[1].keys())[:4]}, or values")
        config = json.loads((adapter / "adapter_config.json").read_text())
        if (config["target_parameters"], config["peft_version"]) != (parameters["target_parameters"], "0.19.1"):
            raise Failure(f"adapter_config.json: {config}")
        want = self.loss("of adapter", model, {**parameters, "init_adapter": str(adapter)})
        losses, folders = {"merged": self.loss("of merged", merged, LORA)}, [exported]
        if family == "mixtral":
            self.convert("export-lora", "--style", "vllm", "--base", model, adapter, single)
            folders.append(single)
        for folder in folders:
            lora = json.loads((folder / "adapter_config.json").read_text())
            keys = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "target_parameters")
            lora = {**{key: lora.get(key) for key in keys}, "init_adapter": str(folder)}
            losses[folder.name] = self.loss(f"of {folder.name}", model, lora)
        for name, loss in losses.items():
            self.near(f"the loss, {name},", abs(loss - want), 1e-4)
        if abs(self.loss("of base", model, LORA) - want) < 1e-2:
            raise Failure("the adapter changes nothing")
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "peft_version": "0.18.1"}))
        _, said = self.train("swapped", model, want=3, lora={**parameters, "init_adapter": str(adapter)})
        if "written by PEFT 0.18.1; the form of PEFT 0.19.1 and later is supported" not in said:
            raise Failure(f"an adapter of PEFT 0.18.1: {said[-300:]}")

    def fused(self, family):
        """Of a folder with all experts of a layer in one tensor, as transformers 5 has them: the bits of the published
        one, whose names are written."""
        model, base = self.model_of(family), self.tmp / f"{family}.fused"
        self.convert("export", model, base, "--names", "transformers")
        last = {"checkpoint": {"save_steps": STEPS}}
        for kind, sections in (("full", {"checkpoint": {"export_model": True}}), ("LoRA", {**last, "lora": LORA}),
                               ("nf4", {**last, "lora": PARAMETERS, "dtype": {"base": "nf4"}})):
            want = self.bits(self.train(f"published-{kind}", model, "--ranks", "1", **sections)[0])
            out, said = self.train(f"fused-{kind}", base, "--ranks", "3", **sections)
            if self.bits(out) != want or said.count("are taken one by one, as published") != 1:
                raise Failure(f"{kind}: other bits than of the published folder, or not one note: {said[:600]}")
        names, wanted = self.model(self.tmp / "fused-full").keys(), read_safetensors(model / "model.safetensors").keys()
        if names != wanted:
            raise Failure(f"tensors: {sorted(names ^ wanted)[:4]}")
        checkpoint = self.tmp / f"fused-LoRA/checkpoints/step-{STEPS:06d}"
        merged = self.tmp / f"{family}.fused-merged"
        self.convert("merge-lora", checkpoint, merged)
        going_on = {**LORA, "init_adapter": str(self.tmp / "fused-LoRA/adapter")}
        losses = self.loss("of adapter", base, going_on), self.loss("of merged", merged, LORA)
        self.near("the loss of the merged model", abs(losses[0] - losses[1]), 1e-4)
        self.convert("verify", checkpoint)
        tensors = {name: x.copy() for name, x in read_safetensors(base / "model.safetensors").items()}
        next(x for n, x in tensors.items() if n.endswith("experts.down_proj"))[1, 2, 3] += 1
        write_safetensors(base / "model.safetensors", tensors)
        done = subprocess.run([str(self.fsdpck), "verify", str(checkpoint)], capture_output=True, text=True,
                              timeout=LIMIT_S)
        if done.returncode != 1 or "experts.1." not in done.stdout + done.stderr:
            raise Failure(f"verify on another base: exit code {done.returncode}: {done.stdout}{done.stderr}")

    def loss(self, title, model, lora):
        """Of the first step."""
        run, _ = self.train(title, model, "--ranks", "1", dtype={"param": "fp32"}, lora=lora)
        return self.metrics(run)[0]["loss"]

    def convert(self, *args):
        subprocess.run([str(self.fsdpck), *map(str, args), "-q"], check=True, capture_output=True, timeout=LIMIT_S)

    def biased(self):
        """A fully trained model of a rounded base keeps the routers' biases, to the bit, in fp32."""
        model, rounded = self.model_of("glm"), self.tmp / "rounded"
        self.convert("export", model, rounded, "--dtype", "bf16")
        tensors, exact = (read_safetensors(f / "model.safetensors") for f in (rounded, model))
        tensors.update((name, x) for name, x in exact.items() if name.endswith("_bias"))
        write_safetensors(rounded / "model.safetensors", tensors)
        out, said = self.train("biased", rounded, "--ranks", "3",
                               train={"max_steps": STEPS, "weight_decay": 0.5, "weight_decay_on": "all"},
                               checkpoint={"export_model": True})
        if "1 layer for multi-token prediction" not in said:
            raise Failure(f"no note on layers for multi-token prediction: {said[-300:]}")
        got = self.model(out)
        for name in (n for n in exact if n.endswith("_bias")):
            if got[name].dtype != np.float32 or got[name].tobytes() != exact[name].tobytes():
                raise Failure(f"{name}: {got[name].dtype}, {got[name]} for {exact[name]}")
        changed = [n for n in exact if got[n].tobytes() != tensors[n].tobytes()]
        if got.keys() != exact.keys() or len(changed) < len(exact) // 2:
            raise Failure(f"{len(changed)} of {len(exact)} tensors changed; {sorted(got.keys() ^ exact.keys())[:4]}")

    def rotated(self):
        """A factor of null is 1, as to transformers; one that is not there is that of the family, one half."""
        losses = {}
        for factor in ("absent", None, 1.0, 0.5):
            keys = {} if factor == "absent" else {"partial_rotary_factor": factor}
            out, _ = self.train(f"rotated-{factor}", self.model_of(f"rotated {factor}", **GLM, **keys))
            losses[factor] = self.bits(out)[0]
        if losses[None] != losses[1.0] or losses["absent"] != losses[0.5] or losses[0.5] == losses[1.0]:
            raise Failure(f"{losses}")

    def planned_as(self, *options, **sections):
        path = self.write("planned", {
            "model": str(self.model_of("qwen3-12")), "output_dir": str(self.tmp / "planned"), "lora": LORA,
            "data": {"train": str(self.data), "seq_len": 32}, "train": {"max_steps": STEPS, "global_batch_size": 4},
            **sections})
        done = subprocess.run([self.tool, "plan", str(path), "--json", *options], capture_output=True, text=True,
                              timeout=LIMIT_S)
        if done.returncode:
            raise Failure(f"plan: {done.stderr[-600:]}")
        return json.loads(done.stdout)

    def planned(self):
        self.planned_as("--ranks", "2", "--search")

    def planned_apart(self):
        """Experts that are whole on ranks are not gathered; in a block here, 9 matrices of 12 experts in bf16."""
        gathers = ["--ranks", "4", "--gather", "copy", "--device", "cpu"]
        all_of, apart = self.planned_as(*gathers), self.planned_as(*gathers, "--set", "fsdp.expert_parallel=2")
        experts = 2 * (LAYERS - 1) * 12 * 3 * INNER * HIDDEN
        if not experts / 2 < apart["expert_bytes"] < experts:  # with their adapters
            raise Failure(f"expert_bytes: {apart['expert_bytes']} of {experts}")
        if all_of["expert_bytes"] or all_of["gather_buffer_bytes"] - apart["gather_buffer_bytes"] < experts / 4:
            raise Failure(f"buffers: {all_of['gather_buffer_bytes']}, {apart['gather_buffer_bytes']}")
        rows = 32 * 3  # of the largest micro-batch
        if apart["token_message_bytes"] < rows * 2 * 2 * (HIDDEN + INNER):
            raise Failure(f"token_message_bytes: {apart['token_message_bytes']}")
        step = self.planned_as(*gathers, "--set", "fsdp.expert_parallel=4")["exchanged_token_bytes_per_step"]
        rows_of_half = apart["exchanged_token_bytes_per_step"]  # of 2 ranks, one has the experts; of 4, three
        if all_of["exchanged_token_bytes_per_step"] or not 0 < rows_of_half * 1.45 < step < rows_of_half * 1.55:
            raise Failure(f"exchanged_token_bytes_per_step: {rows_of_half}, {step}")
        rates = ["--ranks", "4", "--device", "cpu", "--rates", str(RATES)]
        seconds = [self.planned_as(*rates, "--set", f"fsdp.expert_parallel={n}")["step_seconds"] for n in (1, 2, 4)]
        if not seconds[0] < seconds[1] < seconds[2] < 2 * seconds[0]:  # messages cost time, and not much of it
            raise Failure(f"step_seconds: {seconds}")
        tenants = [{"name": "a", "lora": LORA}, {"name": "b", "lora": {**LORA, "target_modules": ["q_proj"]}}]
        bases = [self.planned_as("--ranks", "4", "--device", "cpu", "--set", f"fsdp.expert_parallel={n}",
                                 tenants=tenants)["base_bytes"] for n in (1, 2)]
        if bases[1] - bases[0] < apart["token_message_bytes"] * 3 / 4:  # once for all tenants
            raise Failure(f"base_bytes of tenants: {bases}, {apart['token_message_bytes']}")
        if apart["peak_bytes"] < apart["token_message_bytes"] + apart["activation_bytes"]:
            raise Failure(f"peak_bytes: {apart}")

    def refuse(self, words, keys, sections, *options):
        model = self.model_of(f"refused {words[:40]}", **keys)
        _, said = self.train("refused", model, *options, want=None, **sections)
        if words not in said:
            raise Failure(f"'{words}' is not in: {said[-600:]}")

    def run(self, path, *options, want=0, timeout=LIMIT_S):
        if want is not None:
            return super().run(path, *options, want=want, timeout=timeout)
        done = subprocess.run([*self.runs, str(path), *options], capture_output=True, text=True, timeout=timeout)
        if done.returncode not in (2, 3):
            raise Failure(f"exit code {done.returncode}, a refusal wanted: {done.stderr[-600:]}")
        return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens")
    parser.add_argument("--quick", action="store_true", help="one run of each kind")
    add_device(parser)
    args = parser.parse_args()
    t = Moe(args)
    for family, dtype, kind in (("qwen2", "fp32", "full"), ("glm", "bf16", "LoRA"), ("gpt_oss", "bf16", "full"),
                                ("gpt_oss", "bf16", "parameters")) if args.quick else (
        ("mixtral", "bf16", "LoRA"), ("mixtral", "fp32", "full"), ("qwen3", "bf16", "full"), ("qwen3", "fp32", "LoRA"),
        ("qwen2", "bf16", "LoRA"), ("qwen2", "fp32", "full"), ("glm", "bf16", "full"), ("dots", "fp32", "LoRA"),
        ("gpt_oss", "bf16", "LoRA"), ("gpt_oss", "fp32", "parameters"), ("gpt_oss", "bf16", "full"),
        ("mixtral", "bf16", "parameters")):
        t.check(f"bits of {family} in {dtype}, {kind}", t.bits_of, family, dtype, kind)
    apart = (("qwen3", "bf16", "attention"), ("mixtral", "fp32", "uneven"), ("gpt_oss", "bf16", "full"))
    more = (("qwen3", "fp32", "full"), ("mixtral", "fp32", "LoRA"), ("mixtral", "bf16", "parameters"),
            ("glm", "bf16", "LoRA"))
    for family, dtype, kind in apart + more * (not args.quick) if t.on_cpu else ():
        t.check(f"experts whole on ranks: {family} in {dtype}, {kind}", t.apart, family, dtype, kind)
    if t.on_cpu:
        t.check("experts whole on ranks: one is lost", t.lost)
    t.check("resumed: experts one by one", t.resumed, "mixtral", {})
    for family in ("mixtral-12", "gpt_oss-12") if t.on_cpu else ():
        t.check(f"resumed, experts whole on ranks: {family}", t.resumed, family, {}, {"expert_parallel": 3},
                {"expert_parallel": 2})
    t.check("resumed: fused experts", t.resumed, "gpt_oss", {})
    t.check("resumed: parameters", t.resumed, "gpt_oss", {"lora": PARAMETERS})
    for form in ("mxfp4",) if args.quick else ("mxfp4", "nf4"):
        t.check(f"quantized: {form}", t.quantized, form)
    t.check("tenants", t.tenants)
    if t.on_cpu:
        t.check("tenants, experts whole on ranks", t.tenants_apart, "mixtral")
    t.check("gpt-oss in MXFP4", t.gpt_oss_mxfp4)
    for form in ("nf4",) if args.quick else ("mxfp4", "nf4"):
        t.check(f"gpt-oss quantized when it is read: {form}", t.gpt_oss_at_load, form)
    for family in ("qwen2", "gpt_oss"):
        t.check(f"sampled: {family}", t.sampled, family)
    for family in ("mixtral", "qwen2", "dots", "gpt_oss") if args.device == "cpu" and is_built(args.fsdptrain) else ():
        t.check(f"served: {family}", t.served, family)
    t.check("exported", t.exported)
    for family in ("mixtral", "qwen2", "gpt_oss"):
        t.check(f"parameters: {family}", t.parameters, family)
    for family in ("mixtral",) if args.quick else ("mixtral", "dots"):
        t.check(f"fused: {family}", t.fused, family)
    t.check("biases of routers", t.biased)
    t.check("rotated features", t.rotated)
    t.check("planned", t.planned)
    if t.on_cpu:
        t.check("planned: experts whole on ranks", t.planned_apart)
    for title, words, keys, sections in REFUSED:
        t.check(f"refused: {title}", t.refuse, words, keys, sections)
    on_device = [("experts are whole on ranks of the CPU only", {"num_local_experts": 4}, WHOLE, "--ranks", "2")]
    for words, keys, sections, *options in REFUSED_APART if t.on_cpu else on_device:
        t.check(f"refused: {words}", t.refuse, words, keys, sections, *options)
    return t.end()


if __name__ == "__main__":
    raise SystemExit(main())
