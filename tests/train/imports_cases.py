# SPDX-License-Identifier: Apache-2.0
"""Configurations of other trainers: what each becomes, and files that are refused."""
BF16 = {"param": "bf16", "output": "bf16"}
# What each file becomes, as its own trainer would train: (file, config, beginnings of the notes)
TAKEN = [
    (["accelerate-fsdp1.yaml"], {
        "fsdp": {
            "sharding_strategy": "SHARD_GRAD_OP",
            "activation_checkpointing": "block",
            "forward_prefetch": 1,
            "backward_prefetch": 0,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]
        },
        "dtype": {
            **BF16, "reduce": "bf16"
        }
    }, ['fsdp_config.fsdp_state_dict_type "FULL_STATE_DICT": ', "use_cpu false: "]),
    (["accelerate-fsdp2.yaml"], {
        "fsdp": {
            "sharding_strategy": "HYBRID_SHARD",
            "dp_replicate_size": 2,
            "dp_shard_size": 2,
            "activation_checkpointing": "none",
            "auto_wrap_policy": "SIZE_BASED_WRAP",
            "min_num_params": 100000,
            "offload": "cpu",
            "offload_params": True
        },
        "dtype": {
            **BF16, "reduce": "bf16"
        }
    }, [
        'fsdp_config.fsdp_auto_wrap_policy "SIZE_BASED_WRAP": ',
        'fsdp_config.fsdp_offload_params true: fsdp.offload is "cpu": ',
        "use_cpu false: "
    ]),
    (["accelerate-ddp.json"], {
        "fsdp": {
            "sharding_strategy": "NO_SHARD"
        },
        "dtype": {
            "param": "fp32"
        }
    }, ["use_cpu false: "]),
    (["training_args.json"], {
        "output_dir": "runs/hf",
        "seed": 7,
        "data": {
            "packing": False
        },
        "dtype": BF16,
        "fsdp": {
            "activation_checkpointing": "block"
        },
        "log": {
            "every": 5
        },
        "checkpoint": {
            "save_steps": 20,
            "keep_last": 2
        },
        "train": {
            "max_steps": 50,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "global_batch_size": 8,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "cosine_with_min_lr",
            "min_lr_ratio": 0.1,
            "warmup_ratio": 0.03,
            "weight_decay": 0.01,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "max_grad_norm": 1.0
        }
    }, ['optim "adafactor": ', "neftune_noise_alpha 5.0: ", 'eval_strategy "epoch": ',
        "per_device_train_batch_size: "]),
    (["training_args-defaults.json"], {
        "output_dir": "runs/hf",
        "seed": 42,
        "data": {
            "packing": False
        },
        "dtype": {
            "param": "fp32"
        },
        "fsdp": {
            "activation_checkpointing": "none"
        },
        "log": {
            "every": 500
        },
        "checkpoint": {
            "save_steps": 500,
            "keep_last": 0
        },
        "train": {
            "num_train_epochs": 3.0,
            "micro_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "global_batch_size": 8,
            "learning_rate": 5e-5,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "max_grad_norm": 1.0
        }
    }, ["per_device_train_batch_size: "]),
    (["sft.yaml"], {
        "model": "Qwen/Qwen3-0.6B",
        "output_dir": "runs/sft",
        "data": {
            "packing": True,
            "seq_len": 512,
            "loss_on": "assistant"
        },
        "dtype": BF16,
        "fsdp": {
            "activation_checkpointing": "block"
        },
        "lora": {
            "r": 32,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "target_modules": "all-linear"
        },
        "log": {
            "every": 10,
            "report_to": ["tensorboard"]
        },
        "checkpoint": {
            "save_steps": 500,
            "keep_last": 0
        },
        "train": {
            "num_train_epochs": 1,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "global_batch_size": 16,
            "learning_rate": 2e-4,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_ratio": 0.1,
            "eval_steps": 50
        }
    }, ['dataset_name "trl-lib/Capybara": ', 'eval_strategy "steps": ']),
    (["axolotl.yml"], {
        "model": "NousResearch/Llama-3.2-1B",
        "output_dir": "./outputs/lora-out",
        "data": {
            "packing": True,
            "seq_len": 2048,
            "loss_on": "assistant"
        },
        "dtype": {
            **BF16, "reduce": "bf16"
        },
        "fsdp": {
            "activation_checkpointing": "block",
            "sharding_strategy": "FULL_SHARD",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]
        },
        "checkpoint": {
            "keep_last": 0
        },
        "lora": {
            "r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "target_modules": ["gate_proj", "down_proj"]
        },
        "train": {
            "num_train_epochs": 1,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "global_batch_size": 4,
            "learning_rate": 2e-4,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.03
        }
    }, ['datasets "teknium', "val_set_size 0.1: ", 'optimizer "adamw_8bit": ', "special_tokens "]),
    (["torchtitan.toml"], {
        "model": "./assets/hf/Llama-3.1-8B",
        "output_dir": "./outputs",
        "lora": None,
        "data": {
            "seq_len": 8192,
            "loss_on": "all"
        },
        "dtype": BF16,
        "log": {
            "every": 10
        },
        "fsdp": {
            "activation_checkpointing": "block",
            "sharding_strategy": "SHARD_GRAD_OP"
        },
        "checkpoint": {
            "save_steps": 250,
            "keep_last": 10
        },
        "train": {
            "max_steps": 1000,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "global_batch_size": 16,
            "learning_rate": 3e-4,
            "lr_scheduler_type": "cosine",
            "min_lr_ratio": 0.1,
            "warmup_steps": 20,
            "weight_decay": 0.1,
            "weight_decay_on": "all",
            "adam_beta2": 0.95,
            "adam_epsilon": 1e-8,
            "max_grad_norm": 1.0
        }
    }, [
        'model.name "llama3": ', 'model.flavor "8B": ', "model.converters ", "lr_scheduler.warmup_steps 20: ",
        'training.dataset "c4": ', "parallelism.tensor_parallel_degree 2: "
    ]),
]
# One defect each, and the sentence.
REFUSED = [
    ("a: &x [1]\nb: [*x, *x]\nlearning_rate: 1\n", "line 1: an anchor ('&x'): write the value out where it is needed"),
    ("learning_rate: *x\n", "line 1: an alias ('*x'): write the value out"),
    ("<<: {a: 1}\nlearning_rate: 1\n", "line 1: a merge key ('<<'): write the keys out"),
    ("learning_rate: !!python/object/apply:os.system [ls]\n",
     "line 1: a tag ('tag:yaml.org,2002:python/object/apply:os.system'): plain values are read, and no objects"),
    ("learning_rate: 1\nlearning_rate: 2\n", "line 2: key 'learning_rate' is there twice"),
    ("{learning_rate: " + "[" * 40 + "]" * 40 + "}\n", "line 1: "),
    ("a: " + "[" * 20 + "]" * 20 + "\n", "line 1: more than 16 levels of nesting"),
    ("? [a]\n: 1\n", "line 1: a key that is a list or a mapping"),
    ("learning_rate: 1\n---\nseed: 1\n", "line 2: a second document ('---')"),
    ("seed: 99999999999999999999\n", "line 1: 99999999999999999999: a number above 9223372036854775807"),
    ("learning_rate: 1e999\n", "line 1: 1e999: a number that is too large"),
    ("learning_rate: .nan\n", "line 1: .nan: a number that is not finite"),
    ("seed: 0x10\n", "line 1: 0x10: a number that is not decimal"),
    ("seed: 010\n",
     "line 1: 010: a number with a leading zero is octal to some readers and decimal to others: write it without"),
    ("run_name: \"a\\0b\"\n", "line 1: a NUL character in a text"),
    ("learning_rate: [1\n", "line 2: not YAML: did not find expected ',' or ']'"),
    ("seed: \xff\n".encode("latin-1"), "not YAML: "),
    ("- 1\n- 2\n", "keys with values are wanted, as in num_processes: 2"),
    ("", "the file has no keys"),
    ("# nothing\n", "the file has no keys"),
    ("color: red\n", "neither a configuration of accelerate, a Trainer, TRL, axolotl nor torchtitan"),
    ('{"model": "m", "data": {"train": "d"}}', "this is a config of fsdptrain: `fsdptrain run` takes it as it is"),
    ('{"learning_rate": 1, "learning_rate": 2}', "duplicate object key"),
    ('{"seed": 1e400}', "line 1: real number overflow"),
    ("[training]\nsteps = 1\nsteps = 2\n", "line 3: key 'steps' is there twice"),
    ("[training]\n[training]\n", "line 2: key 'training' is there twice, as a table"),
    ("[training]\nsteps = 1979-05-27\n",
     "line 2: '1979-05-27' is no string in quotes, no decimal number, and neither true nor false"),
    ("[[training]]\n", "line 1: a list of tables ('[['): no trainer's configuration has one"),
    ("[training]\ndataset = \"\"\"x\"\"\"\n", "line 2: a string of several lines (three quotes): write it on one"),
    ("[training]\ndataset = \"x\n", "line 2: a string without its closing quote"),
    ("[training]\nsteps = 1 2\n", "line 2: the end of the line is wanted after a value"),
    ("[training]\nsteps = " + "[" * 30 + "\n", "line 2: too many levels of nesting"),
    ("[training]\nsteps.a = 1\nsteps = 1\n", "line 3: key 'steps' is there twice"),
    ("[training]\nsteps = 1\nsteps.a = 1\n", "line 3: key 'steps' is there already, and is no table"),
    ("[" + "a." * 40 + "a]\nx = 1\n", "line 1: a key of too many parts"),
    ("distributed_type: DEEPSPEED\n",
     "key 'distributed_type': DEEPSPEED is not read; choose FSDP in `accelerate config`"),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 3}\n", "key 'fsdp_config': version 1 or 2 of FSDP is wanted"),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1.7}\n",
     "key 'fsdp_config': version 1 or 2 of FSDP is wanted"),
    ("distributed_type: FSDP\nnum_processes: -4\n", "key 'num_processes': a number of processes is wanted"),
    ("distributed_type: FSDP\nnum_processes: 2.7\n", "key 'num_processes': a number of processes is wanted"),
    ("[parallelism]\ndata_parallel_shard_degree = 2.7\n",
     "key 'parallelism.data_parallel_shard_degree': a whole number of ranks is wanted, or -1"),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1e300\n",
     "key 'fsdp.dp_shard_size': a whole number is wanted"),
    ("learning_rate: -1\n", "key 'learning_rate': key 'train.learning_rate'"),
    ("learning_rate: fast\n", "key 'learning_rate': key 'train.learning_rate'"),
    ("per_device_train_batch_size: 1048576\ngradient_accumulation_steps: 1048576\n",
     "key 'per_device_train_batch_size': key 'train.global_batch_size'"),
    ("learning_rate: 1\nfsdp: full_shard zebra\n", "key 'fsdp': 'zebra' is no option of it"),
    ("base_model: m\nadapter: ia3\n", "key 'adapter': LoRA adapters are trained, and 'ia3' is none"),
    ("base_model: m\nadapter: [1]\nuse_peft: true\n", "key 'adapter': a name is wanted, as in adapter: lora"),
    ("x" * (1 << 20) + ": 1\n", "at most 1048576 are read"),
]
