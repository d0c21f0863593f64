# SPDX-License-Identifier: Apache-2.0
"""Reads and writes sharded checkpoints of large models: every kind that fsdpck knows, verified, only the bytes that are
asked for."""
from fsdpck._checks import Difference, File, Leftover, Listing, Problem, Verified, diff, ls, plan, verify
from fsdpck._errors import (BusyError, DamagedError, Error, ExistsError, FileError, FormatError, LimitError,
                            MissingError, NoMemoryError, PeerError, TensorNotFoundError, UnsupportedError, UsageError)
from fsdpck._native import ffi as _ffi
from fsdpck._native import lib as _lib
from fsdpck._open import open
from fsdpck._save import save
from fsdpck._source import Plan, Source, Tensor
from fsdpck._verbs import Written, average, convert, export, export_lora, merge_lora, reshard

__version__ = _ffi.string(_lib.fsdpck_version()).decode()
__all__ = [
    "BusyError", "DamagedError", "Difference", "Error", "ExistsError", "File", "FileError", "FormatError", "Leftover",
    "LimitError", "Listing", "MissingError", "NoMemoryError", "PeerError", "Plan", "Problem", "Source", "Tensor",
    "TensorNotFoundError", "UnsupportedError", "UsageError", "Verified", "Written", "average", "convert", "diff",
    "export", "export_lora", "ls", "merge_lora", "open", "plan", "reshard", "save", "verify"
]
for _kind in (BusyError, DamagedError, Difference, Error, ExistsError, File, FileError, FormatError, Leftover,
              LimitError, Listing, MissingError, NoMemoryError, PeerError, Plan, Problem, Source, Tensor,
              TensorNotFoundError, UnsupportedError, UsageError, Verified, Written):
    _kind.__module__ = "fsdpck"  # as tracebacks show it
del _kind
