#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's checkpoint manager with fsdpck as its storage: saves of each of its modes, loads at any number of ranks,
and starts from any source that fsdpck reads. Tried with torchtitan 0.3.

In the configuration of a training: checkpoint=Checkpoints.Config(enable=True, interval=500, async_mode="async")"""
from dataclasses import dataclass

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torchtitan.components.checkpointer.base import MODEL
from torchtitan.components.checkpointer.dcp import AsyncMode, CheckpointManager

from fsdpck.torch import StorageReader, StorageWriter


class Checkpoints(CheckpointManager):

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """The options of torchtitan's own; `build()` makes a Checkpoints of them."""

    @torch.no_grad()
    def dcp_save(self, state_dict, checkpoint_id, async_mode, enable_garbage_collection=False, to_hf=False):
        if to_hf:
            return super().dcp_save(state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf)
        writer = StorageWriter(checkpoint_id)
        if async_mode == AsyncMode.DISABLED:
            dcp.save(state_dict, storage_writer=writer)
            return None
        more = {}
        if async_mode == AsyncMode.ASYNC_WITH_PINNED_MEM:
            more = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS, "async_stager": self.stager}
        return dcp.async_save(state_dict, storage_writer=writer, process_group=self.pg, **more)

    @torch.no_grad()
    def dcp_load(self, state_dict, checkpoint_id, from_hf, from_quantized):
        if from_quantized:
            return super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
        if from_hf:  # the adapter has the names of the files
            stored = self.sd_adapter.to_hf(state_dict)
            dcp.load(stored, storage_reader=StorageReader(checkpoint_id))
            state_dict = self.sd_adapter.from_hf(stored)
        else:
            dcp.load(state_dict, storage_reader=StorageReader(checkpoint_id))
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(state_dict)
