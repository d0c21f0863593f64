# SPDX-License-Identifier: Apache-2.0
"""Checkpoints inside PyTorch: models made real, and storages for torch.distributed.checkpoint."""
from fsdpck.torch._model import Loaded, load_model
from fsdpck.torch._reader import StorageReader
from fsdpck.torch._staging import AsyncStager
from fsdpck.torch._state import AsyncSaver, load_extra, load_optimizer, save
from fsdpck.torch._writer import StorageWriter

__all__ = [
    "AsyncSaver", "AsyncStager", "Loaded", "StorageReader", "StorageWriter", "load_extra", "load_model",
    "load_optimizer", "save"
]
