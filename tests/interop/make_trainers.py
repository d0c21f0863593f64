#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes configurations as accelerate and transformers write them, with their own classes: make_trainers.py OUT"""
import json, os, pathlib, sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
from accelerate.commands.config.config_args import ClusterConfig
from transformers import TrainingArguments

CLUSTER = dict(compute_environment="LOCAL_MACHINE",
               distributed_type="FSDP",
               mixed_precision="bf16",
               use_cpu=False,
               debug=False,
               num_processes=4)
FSDP1 = dict(fsdp_version=1,
             fsdp_reshard_after_forward="SHARD_GRAD_OP",
             fsdp_offload_params=False,
             fsdp_auto_wrap_policy="TRANSFORMER_BASED_WRAP",
             fsdp_transformer_layer_cls_to_wrap="LlamaDecoderLayer",
             fsdp_backward_prefetch="BACKWARD_POST",
             fsdp_state_dict_type="FULL_STATE_DICT",
             fsdp_forward_prefetch=False,
             fsdp_use_orig_params=True,
             fsdp_cpu_ram_efficient_loading=True,
             fsdp_sync_module_states=True,
             fsdp_activation_checkpointing=True)
FSDP2 = dict(fsdp_version=2,
             fsdp_reshard_after_forward=True,
             fsdp_offload_params=True,
             fsdp_auto_wrap_policy="SIZE_BASED_WRAP",
             fsdp_min_num_params=100000,
             fsdp_state_dict_type="SHARDED_STATE_DICT",
             fsdp_cpu_ram_efficient_loading=True,
             fsdp_activation_checkpointing=False)
MESH = {
    f"parallelism_config_{k}": v
    for k, v in dict(dp_replicate_size=2, dp_shard_size=2, tp_size=1, cp_size=1).items()
}
ARGUMENTS = dict(output_dir="runs/hf",
                 per_device_train_batch_size=2,
                 gradient_accumulation_steps=4,
                 learning_rate=1e-4,
                 lr_scheduler_type="cosine_with_min_lr",
                 lr_scheduler_kwargs={"min_lr_rate": 0.1},
                 warmup_steps=0.03,
                 weight_decay=0.01,
                 max_steps=50,
                 bf16=True,
                 use_cpu=True,
                 activation_checkpointing=True,
                 optim="adafactor",
                 save_steps=20,
                 save_total_limit=2,
                 logging_steps=5,
                 eval_strategy="epoch",
                 neftune_noise_alpha=5.0,
                 seed=7,
                 report_to="none")


def write(out):
    out = pathlib.Path(out)
    ClusterConfig(**CLUSTER, fsdp_config=FSDP1).to_yaml_file(out / "accelerate-fsdp1.yaml")
    ClusterConfig(**CLUSTER, fsdp_config=FSDP2, parallelism_config=MESH).to_yaml_file(out / "accelerate-fsdp2.yaml")
    ClusterConfig(**{
        **CLUSTER, "distributed_type": "MULTI_GPU",
        "mixed_precision": "no",
        "num_processes": 2
    }).to_json_file(out / "accelerate-ddp.json")
    for name, arguments in (("training_args.json", ARGUMENTS), ("training_args-defaults.json",
                                                                dict(output_dir="runs/hf", report_to="none"))):
        (out / name).write_text(json.dumps(TrainingArguments(**arguments).to_dict(), indent=1) + "\n")


if __name__ == "__main__":
    write(sys.argv[1])
