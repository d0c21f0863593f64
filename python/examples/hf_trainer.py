#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with FSDP2 whose checkpoints hold each rank's shards, and resume at any number of ranks. This
overrides the methods of Trainer that save and load: a callback is told of a save only, not of a resume.

usage: torchrun --nproc-per-node N hf_trainer.py MODEL_FOLDER OUT STEPS"""
import os
import sys

import torch
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from fsdpck.torch import load_extra, load_model, load_optimizer, save


class ShardedTrainer(Trainer):

    def save_model(self, output_dir=None, _internal_call=False):
        if not _internal_call:  # else for a checkpoint, which holds the shards
            super().save_model(output_dir)

    def _save_optimizer_and_scheduler(self, output_dir):
        save(self.model, self.optimizer.optimizer, {"scheduler": self.lr_scheduler.state_dict()}, shards(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        load_model(model or self.model, shards(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None:
            load_optimizer(self.model, self.optimizer.optimizer, shards(checkpoint))
            self.lr_scheduler.load_state_dict(load_extra(shards(checkpoint))["scheduler"])


def shards(checkpoint):
    """Beside the trainer's own files."""
    return os.path.join(checkpoint, "shards")


def main(folder, out, steps):
    args = TrainingArguments(
        out, max_steps=steps, save_steps=2, logging_steps=1, learning_rate=1e-3, report_to="none", disable_tqdm=True,
        per_device_train_batch_size=2, ddp_backend=None if torch.cuda.is_available() else "gloo")
    args.device  # makes the process group
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for layer in [*model.model.layers, model]:
        fully_shard(layer)
    load_model(model, folder, init_buffers=model._init_weights)  # each rank reads its own shards
    ids = torch.randint(0, 1000, (24, 16), generator=torch.Generator().manual_seed(1))
    trainer = ShardedTrainer(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in ids])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out) if os.path.isdir(out) else None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
