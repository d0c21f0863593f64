# SPDX-License-Identifier: Apache-2.0
"""Every key of CONFIG.json either counts in every run, or the run says at its start where it does not. A key that is
not listed here fails: it needs a rule, or a line that says that it always counts."""
import os, re, subprocess

from harness import LIMIT_S, Failure, Skip, Tests, config_of

# What "has … , …" of an unknown key's error lists, by section; None: it counts in every run. Else the sentences that a
# run must say, and what makes it say them:
# [(method, options, {section: {key: value}}, words)].
LORA, FULL, ALONE, COPY, MAP = (
    "lora-qwen3",
    "full-qwen3-untied",
    [],
    ["--ranks", "2", "--gather", "copy"],
    ["--ranks", "2"],
)
BY_PLAN = "data.plan names"
UNGATHERED = [(LORA, ALONE, {}, "there is one rank"), (LORA, MAP, {}, "map each other's parameters")]
KEYS = {
    "data": {
        "train": None,
        "eval": None,
        "plan": None,
        "loss_on": None,
        "on_bad_line": None,
        "columns": None,
        "date": ("2026-01-01", [(LORA, ALONE, {}, "no chat template asks")]),
        "seq_len": (300, [(LORA, ALONE, {}, BY_PLAN)]),
        "packing": (False, [(LORA, ALONE, {}, BY_PLAN)]),
        "too_long": ("drop", [(LORA, ALONE, {}, BY_PLAN)]),
    },
    "image": {
        key: (value, [(LORA, ALONE, {}, "the model makes no pictures")])
        for key, value in {
            "resolution": [64, 128],
            "use_aspect_ratio_buckets": True,
            "aspect_ratio_buckets": "64,48;48,64",
            "random_crop": True,
            "num_repeats": 2,
            "flip_x": True,
            "flip_y": True,
            "caption_ext": "caption",
            "caption_dropout_rate": 0.5,
            "trigger_word": "word",
            "max_sequence_length": 20,
            "vae_tiling": True,
            "timestep_type": "shift",
            "weighting_scheme": "cosmap",
        }.items()
    },
    "lora": dict.fromkeys(
        (
            "r",
            "lora_alpha",
            "lora_dropout",
            "target_modules",
            "target_parameters",
            "use_rslora",
            "use_dora",
            "rank_pattern",
            "alpha_pattern",
            "modules_to_save",
            "init_adapter",
        )
    ),
    "train": {
        **dict.fromkeys(
            (
                "max_steps",
                "gradient_accumulation_steps",
                "learning_rate",
                "lr_scheduler_type",
                "warmup_steps",
                "adam_beta1",
                "adam_beta2",
                "adam_epsilon",
                "weight_decay",
                "max_grad_norm",
                "on_nonfinite",
            )
        ),
        "num_train_epochs": (2, [(LORA, ALONE, {}, "train.max_steps is given too, and counts")]),
        "micro_batch_size": (2, [(LORA, ALONE, {}, BY_PLAN)]),
        "global_batch_size": (9, [(LORA, ALONE, {}, BY_PLAN)]),
        "eval_steps": (3, [(LORA, ALONE, {}, "there is no data.eval")]),
        "warmup_ratio": (0.5, [(LORA, ALONE, {}, "train.warmup_steps is given too, and counts")]),
        "min_lr_ratio": (0.5, [(LORA, ALONE, {"train": {"lr_scheduler_type": "constant"}}, "the rate does not fall")]),
        "weight_decay_on": ("matrices", []),
    },
    "fsdp": {
        "activation_checkpointing": None,
        "reduction": None,
        "sharding_strategy": ("NO_SHARD", UNGATHERED),
        "dp_replicate_size": (1, UNGATHERED),
        "dp_shard_size": (2, UNGATHERED[1:]),
        "expert_parallel": None,
        "reshard_after_forward": (
            False,
            UNGATHERED
            + [
                (LORA, COPY, {"fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD"),
                (LORA, COPY, {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}, "SHARD_GRAD_OP"),
                (LORA, COPY, {"fsdp": {"sharding_strategy": "HYBRID_SHARD_ZERO2"}}, "HYBRID_SHARD_ZERO2"),
            ],
        ),
        "auto_wrap_policy": (
            "NO_WRAP",
            UNGATHERED + [(LORA, COPY, {"fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD")],
        ),
        "transformer_layer_cls_to_wrap": None,
        "policy": (
            [{"modules": ["layers.0"], "forward_prefetch": 3}],
            UNGATHERED + [(LORA, COPY, {"fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD")],
        ),
        "min_num_params": (
            1,
            UNGATHERED
            + [
                (LORA, COPY, {}, "auto_wrap_policy is not SIZE_BASED_WRAP"),
                (LORA, COPY, {"fsdp": {"auto_wrap_policy": "SIZE_BASED_WRAP", "sharding_strategy": "NO_SHARD"}},
                 "NO_SHARD"),
            ],
        ),
        "offload": ("cpu", [(FULL, ALONE, {}, "processors is in host memory")]),
        "offload_optimizer": (False, [(FULL, ALONE, {}, "fsdp.offload names no folder")]),
        "offload_params": (True, [(FULL, ALONE, {}, "fsdp.offload names no folder")]),
        "offload_gradients": (True, [(FULL, ALONE, {}, "fsdp.offload names no folder"),
                                     (LORA, ALONE, {"fsdp": {"offload": "./disk"}}, "its gradients are small")]),
        "offload_memory": (1 << 20, [(FULL, ALONE, {}, "fsdp.offload names no folder"),
                                     (FULL, ALONE, {"fsdp": {"offload": "cpu"}}, "fsdp.offload names no folder")]),
        "forward_prefetch": (3, UNGATHERED + [(LORA, COPY, {"fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD")]),
        "backward_prefetch": (
            3,
            UNGATHERED
            + [
                (LORA, COPY, {"fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD"),
                (LORA, COPY, {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}, "SHARD_GRAD_OP"),
                (LORA, COPY, {"fsdp": {"reshard_after_forward": False}}, "reshard_after_forward is false"),
            ],
        ),
    },
    "dtype": {
        **dict.fromkeys(("param", "reduce", "output")),
        "base": ("bf16", [(LORA, ALONE, {}, "no weight of the model is quantized")]),
    },
    "checkpoint": {
        "save_steps": None,
        "keep_last": None,
        "memory_every": (3, [(LORA, ALONE, {}, "--elastic is not given"),
                             (LORA, ["--ranks", "2", "--elastic", "1"], {"fsdp": {"offload": "./disk"}},
                              "fsdp.offload has the state")]),
        "export_adapter": (False, [(FULL, ALONE, {}, "there is no adapter")]),
        "export_model": (False, [(LORA, ALONE, {}, "an adapter is trained")]),
    },
    "sample": {"every": None, "prompts": ([{"input_ids": [1, 2]}], [(LORA, ALONE, {}, "sample.every is 0")])},
    "log": {"every": None, "jsonl": None, "report_to": None},
}
# What makes the same keys count: nothing is said then.
COUNT = [(COPY, {"fsdp": {"reshard_after_forward": False, "forward_prefetch": 3}}),
         (COPY, {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": 2,
                          "policy": [{"modules": ["layers.1"], "reshard_after_forward": True}]}}),
         (ALONE, {"fsdp": {"policy": [{"modules": ["layers.1"], "activation_checkpointing": "block"}]}}),
         (COPY, {"fsdp": {"forward_prefetch": 3, "backward_prefetch": 3}}),
         (COPY, {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP", "auto_wrap_policy": "NO_WRAP"}}),
         (COPY, {"fsdp": {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 1}}),
         (ALONE, {"fsdp": {"offload": "./disk", "offload_memory": 1 << 20}}),
         (ALONE, {"fsdp": {"offload": "./disk", "offload_params": True, "forward_prefetch": 3,
                           "sharding_strategy": "SHARD_GRAD_OP"}}),
         (ALONE, {"train": {"lr_scheduler_type": "linear", "min_lr_ratio": 0.5}}),
         (ALONE, {"train": {"weight_decay": 0.1, "weight_decay_on": "all"}}),
         (["--ranks", "2", "--elastic", "1"], {"checkpoint": {"memory_every": 3}}),
         (["--ranks", "2", "--elastic", "1"], {"checkpoint": {"memory_every": 3}, "fsdp": {"offload": "auto"}})]


class Settings(Tests):
    def plan_of(self, name, options, changes):
        config = config_of(self.goldens / name, self.tmp / "settings")
        config["train"]["weight_decay_on"] = "matrices"
        for section, keys in changes.items():
            config.setdefault(section, {}).update(keys)
        return self.planned_at(config, options, 0)

    def planned_at(self, config, options, code):
        done = subprocess.run(
            [self.tool, "plan", str(self.write("settings", config)), "--device", "cpu", *options], capture_output=True,
            text=True, timeout=LIMIT_S)
        if done.returncode != code:
            raise Failure(f"exit code {done.returncode}, {code} wanted: {done.stderr[-600:]}")
        return done.stderr

    def all_keys_have_a_rule(self):
        for section, keys in KEYS.items():
            config = config_of(self.goldens / LORA, self.tmp / "settings")
            config.setdefault(section, {})["zzzzzzzzzzzz"] = 1
            said = self.planned_at(config, [], 2)
            known = re.search(r"unknown key '[^']*'; \w+ has (.*)", said).group(1).split(", ")
            if set(known) != set(keys):
                raise Failure(f"{section} has {known}; the table has {sorted(keys)}")

    def idle_keys_are_said(self):
        for section, keys in KEYS.items():
            for key, (value, cases) in ((k, v) for k, v in keys.items() if v):
                for name, options, others, words in cases:
                    changes = {s: dict(k) for s, k in others.items()}
                    changes.setdefault(section, {})[key] = value
                    said = self.plan_of(name, options, changes)
                    named = rf"{section}\.{key}(\[0\]\.\w+)?"
                    if not re.search(rf"note: key '{named}' has no effect: .*{re.escape(words)}", said):
                        raise Failure(f"{section}.{key} with {options} {others}: '{words}' wanted, said: {said}")

    def idle_options_are_refused(self):
        for options, words in (
            (["--loss-on", "all"], "--loss-on has no effect without --chat"),
            (["--no-special", "--chat"], "--no-special has no effect with --chat"),
        ):
            done = subprocess.run(
                [self.tool, "tokenize", "nowhere", "text", *options], capture_output=True, text=True, timeout=LIMIT_S
            )
            if done.returncode != 2 or words not in done.stderr:
                raise Failure(f"tokenize {options}: exit code {done.returncode}, {done.stderr}")
        config = config_of(self.goldens / LORA, self.tmp / "settings")
        config["fsdp"] = {"sharding_strategy": "NO_SHARD", "policy": [
            {"modules": ["layers.0"], "sharding_strategy": "FULL_SHARD"}, {}]}
        for key in "forward_prefetch", "backward_prefetch":
            config["fsdp"]["policy"][1] = {"modules": ["layers.1"], key: 3}
            if f"[1].{key}' has no effect: its groups are not gathered" not in self.planned_at(config, COPY, 2):
                raise Failure(f"{key} of groups that are not gathered")
        del config["fsdp"]
        for options, words in ((["--set", "lora.r=2", "--set", "lora.r=4"], "'--set lora.r=2' comes before it"), ([
                "--set", "lora.r=2", "--set", "lora={}"
        ], "--set lora={}"), (["--gather", "map", "--gather", "copy"], "--gather is given twice")):
            if words not in self.planned_at(config, options, 2):
                raise Failure(f"plan {options}: '{words}' wanted")
        if "--patience: found 0" not in self.run(self.write("settings", config), "--patience", "0", want=2).stderr:
            raise Failure("run --patience 0")
        if "found '256', wanted an exit code" not in self.run(self.write("settings", config), "--exit-on-stop", "256",
                                                              want=2).stderr:
            raise Failure("run --exit-on-stop 256")

    def idle_options_of_hosts(self):
        """--gather is for ranks that share a host."""
        if not self.has_mpi:
            raise Skip("built without MPI")
        hosts = {
            **os.environ,
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        }
        said = subprocess.run(
            [self.tool, "run", "nowhere.json", "--gather", "map"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=hosts,
        ).stderr
        if "note: --gather map has no effect" not in said:
            raise Failure(f"ranks of two hosts: {said}")

    def keys_that_count_are_not(self):
        cut = ALONE, {"fsdp": {"auto_wrap_policy": "LINEAR_WRAP"}}  # smaller groups of gradients
        for name, (options, changes) in [(FULL, cut)] + [(LORA, one) for one in COUNT]:
            said = self.plan_of(name, options, changes)
            if "has no effect" in said:
                raise Failure(f"{changes} with {options}: {said}")
