# SPDX-License-Identifier: Apache-2.0
"""The library's errors as exceptions. They can be pickled, because torch.distributed sends them to other ranks."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional, Union

from fsdpck._native import ffi, lib


class Error(Exception):
    """The base of every error of this package.

    `file`, `offset` (in bytes), `tensor` and `hint` are None where they do not apply; `message` says what was found and
    what was wanted. `str()` of it is all of them."""

    file: Optional[str] = None
    offset: Optional[int] = None
    tensor: Optional[str] = None
    hint: Optional[str] = None
    message: str = ""

    def __init__(self, text: str = "", **facts: Any) -> None:
        super().__init__(text)
        self.__dict__.update({"message": text, **facts})

    def __str__(self) -> str:
        text = self.args[0] if self.args else ""
        return "%s\nhint: %s" % (text, self.hint) if self.hint else text

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type, args: tuple, facts: dict) -> Error:
    error = kind(*args)
    error.__dict__.update(facts)
    return error


class UsageError(Error, ValueError):
    """An argument is invalid, or contradicts another one."""


class ExistsError(Error):
    """The output exists; `force=True` replaces a checkpoint."""


class FormatError(Error):
    """The input is malformed."""


class UnsupportedError(Error):
    """The input is well formed, but this version cannot read or write it."""


class MissingError(Error):
    """A file, a tensor or a part of one is missing."""


class TensorNotFoundError(MissingError, KeyError):
    """The source has no tensor of that name."""

    __str__ = Error.__str__


class DamagedError(Error):
    """A hash or CRC-32 does not match the bytes."""


class LimitError(Error):
    """The input exceeds a limit."""


class FileError(Error):
    """A file operation failed; `errno` is the system's number, or 0."""

    errno: int = 0


class NoMemoryError(Error, MemoryError):
    """Out of memory."""


class BusyError(Error):
    """Another writer uses the same output."""


class PeerError(Error):
    """Another rank failed or was lost; its own error has the cause."""


_CLASSES = {
    lib.FSDPCK_ERR_USAGE: UsageError,
    lib.FSDPCK_ERR_EXISTS: ExistsError,
    lib.FSDPCK_ERR_FORMAT: FormatError,
    lib.FSDPCK_ERR_UNSUPPORTED: UnsupportedError,
    lib.FSDPCK_ERR_MISSING: MissingError,
    lib.FSDPCK_ERR_DAMAGED: DamagedError,
    lib.FSDPCK_ERR_LIMIT: LimitError,
    lib.FSDPCK_ERR_IO: FileError,
    lib.FSDPCK_ERR_NOMEM: NoMemoryError,
    lib.FSDPCK_ERR_BUSY: BusyError,
    lib.FSDPCK_ERR_PEER: PeerError,
}


@contextlib.contextmanager
def of_tensor(name: str) -> Iterator[None]:
    """Errors that are raised in it name the tensor."""
    try:
        yield
    except Error as e:
        if e.tensor is None:
            e.tensor, e.message = name, "'%s': %s" % (name, e.message)
            e.args = (e.message, )
        raise


def text(pointer: Any) -> str:
    """A string of the library. Names of files need not be UTF-8."""
    return ffi.string(pointer).decode("utf-8", "surrogateescape")


def encoded(value: Union[str, bytes]) -> bytes:
    """A string for the library, which would end it at a null character."""
    try:
        out = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise UsageError("names and paths are Unicode; found %r" % value) from None
    if b"\0" in out:
        raise UsageError("names and paths have no null character; found %r" % value)
    return out


def exception(error: Any) -> BaseException:
    """The exception for a filled struct fsdpck_error."""
    if error.code == lib.FSDPCK_ERR_STOPPED:
        return KeyboardInterrupt()
    line = ffi.new("char[2048]")
    lib.fsdpck_error_format(error, line, 2048)
    facts = {name: text(getattr(error, name)) or None for name in ("file", "tensor", "hint")}
    facts["message"] = text(error.message)
    facts["offset"] = error.offset if error.has_offset else None
    kind = _CLASSES.get(error.code, Error)
    if kind is FileError:
        facts["errno"] = error.sys_errno
    return kind(text(line), **facts)
