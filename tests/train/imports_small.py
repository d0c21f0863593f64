# SPDX-License-Identifier: Apache-2.0
"""Keys of other trainers' configurations that need more than a copy."""
# The text, keys of the config ("section.key"; None: it must not be there), and the begin of a note or None.
SMALL = [
    ("distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: HYBRID_SHARD_ZERO2}\n", {
        "fsdp.sharding_strategy": "HYBRID_SHARD_ZERO2",
        "fsdp.dp_replicate_size": None
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n"
     "parallelism_config: {dp_replicate_size: 2, dp_shard_size: 4}\n", {
         "fsdp.sharding_strategy": "HYBRID_SHARD_ZERO2",
         "fsdp.dp_replicate_size": 2,
         "fsdp.dp_shard_size": 4
     }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {dp_shard_size: 4}\n", {
        "fsdp.dp_shard_size": None,
        "fsdp.dp_replicate_size": None
    }, None),
    ("[training]\nenable_cpu_offload = true\n[parallelism]\ndata_parallel_replicate_degree = 1\n", {
        "fsdp.offload": "cpu",
        "fsdp.offload_params": True
    }, 'training.enable_cpu_offload true: fsdp.offload is "cpu": '),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\nfsdp_reshard_after_forward = \"never\"\n", {
        "fsdp.sharding_strategy": "HYBRID_SHARD_ZERO2",
        "fsdp.dp_replicate_size": 2,
        "fsdp.dp_shard_size": None
    }, None),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n", {
        "fsdp.sharding_strategy": "HYBRID_SHARD",
        "fsdp.dp_shard_size": 4,
        "train.global_batch_size": 64
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 1}\n", {
        "fsdp.sharding_strategy": "FULL_SHARD"
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: '3'}\n", {
        "fsdp.sharding_strategy": "NO_SHARD"
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n", {
        "fsdp.sharding_strategy": "SHARD_GRAD_OP"
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: 8}\n", {
        "fsdp.sharding_strategy": None
    }, "fsdp_config.fsdp_reshard_after_forward 8: FSDP2 takes true or false here"),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_backward_prefetch: NO_PREFETCH}\n", {
        "fsdp.backward_prefetch": 0
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_backward_prefetch: BACKWARD_PRE}\n", {
        "fsdp.backward_prefetch": 1
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 0}\n", {
        "fsdp.auto_wrap_policy": "NO_WRAP",
        "fsdp.min_num_params": None
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: NO_WRAP}\n", {
        "fsdp.auto_wrap_policy": "NO_WRAP"
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'A, B'}\n", {
        "fsdp.transformer_layer_cls_to_wrap": ["A", "B"]
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_ignored_modules: 'x.*'}\n", {},
     'fsdp_config.fsdp_ignored_modules "x.*": every parameter is sharded'),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_colour: red}\n", {},
     'fsdp_config.fsdp_colour "red": not a key of FSDP that is known'),
    ("distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: 2}\n", {},
     "parallelism_config.parallelism_config_tp_size 2: ranks share parameters and rows"),
    ("distributed_type: NO\nmixed_precision: fp8\n", {
        "dtype.param": None
    }, 'mixed_precision "fp8": '),
    ("distributed_type: MULTI_GPU\nmixed_precision: bf16\n", {
        "dtype.param": "bf16",
        "dtype.reduce": None
    }, None),
    ("distributed_type: FSDP\nnum_machines: 2\n", {}, "num_machines 2: ranks on several machines"),
    ("seed: 1\nfsdp: full_shard auto_wrap offload\n", {
        "fsdp.sharding_strategy": "FULL_SHARD",
        "fsdp.offload": "cpu",
        "fsdp.offload_params": True
    }, 'fsdp "full_shard auto_wrap offload": fsdp.offload is "cpu": '),
    ("seed: 1\nfsdp: [shard_grad_op]\nfsdp_config: {backward_prefetch: backward_pre}\n", {
        "fsdp.sharding_strategy": "SHARD_GRAD_OP",
        "fsdp.backward_prefetch": 1
    }, None),
    ("bf16: true\nfsdp: true\nfsdp_config: {reshard_after_forward: 'false', activation_checkpointing: true}\n", {
        "fsdp.sharding_strategy": "SHARD_GRAD_OP",
        "fsdp.activation_checkpointing": "block",
        "dtype.reduce": "bf16"
    }, None),
    ("bf16: true\nfsdp_config: {reshard_after_forward: false}\n", {
        "fsdp.sharding_strategy": None,
        "dtype.reduce": None
    }, None),
    ("learning_rate: 1\nlr_scheduler_type: constant\nwarmup_ratio: 0.1\n", {
        "train.warmup_steps": 0,
        "train.warmup_ratio": None,
        "train.lr_scheduler_type": "constant"
    }, None),
    ("learning_rate: 1\nlr_scheduler_type: polynomial\n", {}, 'lr_scheduler_type "polynomial": no schedule'),
    ("learning_rate: 2e-4\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 2e-5}\n", {
        "train.min_lr_ratio": 0.1
    }, None),
    ("learning_rate: 1\nwarmup_steps: 0\nwarmup_ratio: 0.1\n", {
        "train.warmup_ratio": 0.1,
        "train.warmup_steps": None
    }, None),
    ("max_steps: 5\nnum_train_epochs: 7\n", {
        "train.max_steps": 5,
        "train.num_train_epochs": None
    }, None),
    ("max_steps: -1\n", {
        "train.max_steps": None,
        "train.num_train_epochs": 3.0
    }, None),
    ("learning_rate: '2e-5'\nper_device_train_batch_size: 4.0\n", {
        "train.learning_rate": 2e-5,
        "train.micro_batch_size": 4
    }, None),
    ("save_steps: 0.5\n", {
        "checkpoint.save_steps": None
    }, "save_steps 0.5: a share of the steps"),
    ("learning_rate: 1\nsave_strategy: 'no'\n", {
        "checkpoint.save_steps": 0
    }, None),
    ("learning_rate: 1\nsave_strategy: no\n", {
        "checkpoint.save_steps": 0
    }, None),
    ("learning_rate: 1\nsave_strategy: epoch\n", {}, 'save_strategy "epoch": set checkpoint.save_steps'),
    ("learning_rate: 1\ndeepspeed: zero3.json\n", {}, 'deepspeed "zero3.json": DeepSpeed\'s settings are not read'),
    ("learning_rate: 1\npush_to_hub: yes\n", {}, "push_to_hub true: nothing is uploaded"),
    ("learning_rate: 1\nlabel_smoothing_factor: 0.1\n", {}, "label_smoothing_factor 0.1: the loss is"),
    ("learning_rate: 1\nseed: 3\ndata_seed: 4\n", {
        "seed": 3
    }, "data_seed 4: one seed is for everything"),
    ("max_length: 256\n", {
        "lora": None,
        "data.seq_len": 256,
        "data.packing": False,
        "data.loss_on": "all"
    }, None),
    ("max_length: 256\ncompletion_only_loss: true\n", {
        "data.loss_on": "completion"
    }, None),
    ("max_length: 256\nuse_peft: true\n", {
        "lora.target_modules": ["q_proj", "v_proj"],
        "lora.lora_dropout": 0.05
    }, None),
    ("max_length: 256\nuse_peft: true\nload_in_4bit: true\n", {
        "dtype.base": "nf4"
    }, None),
    ("max_length: 256\nload_in_4bit: true\n", {
        "dtype.base": None
    }, "load_in_4bit true: a quantized base is frozen"),
    ("max_length: 256\nuse_peft: true\nload_in_8bit: true\n", {}, "load_in_8bit true: weights stay"),
    ("base_model: m\nadapter: qlora\nlora_target_linear: true\n", {
        "lora.target_modules": "all-linear",
        "dtype.base": "nf4"
    }, None),
    ("max_length: 256\nuse_peft: true\nlora_dropout: 0\nlora_target_parameters: [mlp.experts.down_proj]\n", {
        "lora.target_parameters": ["mlp.experts.down_proj"],
        "lora.target_modules": []
    }, "lora_target_modules: left out: parameters alone get adapters"),
    ("base_model: m\nadapter: lora\nlora_target_modules: [q_proj]\nlora_target_parameters: experts.down_proj\n", {
        "lora.target_parameters": ["experts.down_proj"],
        "lora.target_modules": ["q_proj"]
    }, None),
    ("base_model: m\nlora_r: 8\n", {
        "lora": None
    }, None),
    ("[training]\nsteps = 5\n", {
        "train.max_steps": 5,
        "train.warmup_steps": 200,
        "checkpoint.save_steps": 0,
        "train.weight_decay": 0.1
    }, "checkpoint.enable: left out, which is off"),
    ("[training]\nmixed_precision_param = \"float16\"\n", {
        "dtype.param": None
    }, 'training.mixed_precision_param "float16": '),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1\n", {
        "fsdp.sharding_strategy": "NO_SHARD",
        "train.global_batch_size": 16
    }, None),
    ("[training]\nwarp = 1\n[engine]\nwarp = 2\n", {}, "engine.warp 2: not a key that a configuration of torchtitan"),
    ("training.steps = 3\noptimizer = { lr = 1e-3, eps = +1e-9 }\n", {
        "train.max_steps": 3,
        "train.learning_rate": 1e-3,
        "train.adam_epsilon": 1e-9
    }, None),
    # A default is not said to be taken over where another key has set its value.
    ("max_seq_length: 512\n", {
        "data.seq_len": 512
    }, "left out, and taken over from its defaults: learning_rate 2e-5, lr_scheduler_type \"linear\", num_train_epochs "
     "3.0, warmup_steps 0, per_device_train_batch_size 8, bf16 true, gradient_checkpointing true, save_steps 500, "
     "logging_steps 10, packing false, assistant_only_loss false, use_peft false, save_total_limit 0\n"),
    ("max_length: 256\n", {}, "completion_only_loss: left out; TRL then trains rows of prompt and completion on the"),
    ("max_length: 256\neval_strategy: steps\n", {},
     'eval_strategy "steps": name the data to evaluate in data.eval, and set train.eval_steps, which is logging_steps'),
    # axolotl warms up unless it is told not to, and fsdp_config alone turns FSDP on.
    ("base_model: m\nwarmup_steps: 0\n", {
        "train.warmup_steps": 0,
        "train.warmup_ratio": None
    }, None),
    ("base_model: m\nlr_scheduler: constant\n", {
        "train.warmup_steps": 0,
        "train.warmup_ratio": None
    }, None),
    ("base_model: m\nbf16: true\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: false, offload_params: true}\n",
     {
        "fsdp.sharding_strategy": "SHARD_GRAD_OP",
        "dtype.reduce": "bf16",
        "fsdp.offload": "cpu",
        "fsdp.offload_params": True
    }, 'fsdp_config.offload_params true: fsdp.offload is "cpu": '),
    ("base_model: m\nfsdp_config: {state_dict_type: SHARDED_STATE_DICT}\n", {
        "fsdp.sharding_strategy": "FULL_SHARD"
    }, None),
    ("learning_rate: 1\nfsdp_version: 2\n", {}, "fsdp_version 2: set it under fsdp_config"),
    ("base_model: m\ndatasets: [{path: d, type: alpaca, split: 'train[:10%]'}]\n", {},
     'datasets.split "train[:10%]": not taken over: the form of a row'),
    ("learning_rate: 1\nfsdp: full_shard auto_wrap\nfsdp_config: {min_num_params: 2000}\n", {
        "fsdp.min_num_params": None
    }, "fsdp_config.min_num_params 2000: transformers 4 wraps by this size"),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP}\n", {
        "fsdp.auto_wrap_policy": "NO_WRAP"
    }, 'fsdp_config.fsdp_auto_wrap_policy "SIZE_BASED_WRAP": without min_num_params accelerate has no policy'),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: NO_WRAP, transformer_layer_cls_to_wrap: A}\n", {
        "fsdp.transformer_layer_cls_to_wrap": None
    }, None),
    ("distributed_type: FSDP\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'A , B'}\n", {
        "fsdp.transformer_layer_cls_to_wrap": ["A", "B"]
    }, None),
    ("[training]\nsteps = 5\n[checkpoint]\nenable = true\n", {
        "checkpoint.save_steps": 500
    }, None),
    # A limit of length cuts no character in two.
    *[("learning_rate: 1\n" + "x" * n + "\u00e9\u00e9: 1\n", {}, "x" * n) for n in (138, 139, 140)],
]
