# SPDX-License-Identifier: Apache-2.0
"""What a program was built with."""
import pathlib


def joins_mpi(program):
    """Whether fsdptrain was built with MPI; without, it refuses the ranks of a launcher before it reads more."""
    return b"libmpi.so" in pathlib.Path(program).read_bytes()


def has_tsan(program):
    """Whether it was built with ThreadSanitizer, under which Open MPI cannot run: it takes two of its locks in either
    order."""
    return b"__tsan_init" in pathlib.Path(program).read_bytes()
