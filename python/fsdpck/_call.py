# SPDX-License-Identifier: Apache-2.0
"""Calls into the library: options, callbacks, Ctrl-C. The library runs without the GIL."""
from __future__ import annotations

import _thread
import threading
from typing import Any, Callable, List, Optional

from fsdpck._errors import exception, text
from fsdpck._native import ffi, lib

Progress = Callable[[int, int], None]


class Options:
    """A struct fsdpck_options, and what its callbacks collect."""

    def __init__(self, threads: int = 0, memory: int = 0, verify: bool = True,
                 progress: Optional[Progress] = None) -> None:
        self.threads, self.memory, self.verify, self.progress = threads, memory, verify, progress
        self.notes: List[str] = []
        self.failure: Optional[BaseException] = None  # raised by progress()
        self._stop = ffi.new("int *")
        self._handle = ffi.new_handle(self)
        self.struct = ffi.new("struct fsdpck_options *", {
            "nthreads": threads, "memory_nbytes": memory, "no_verify": not verify, "ctx": self._handle,
            "stop": self._stop, "note": lib.fsdpck_py_note,
            "progress": lib.fsdpck_py_progress if progress else ffi.NULL})

    def of_one_call(self) -> "Options":
        """The same for a call of its own: what stops it does not stop others."""
        return Options(self.threads, self.memory, self.verify, self.progress)

    def stop(self) -> None:
        self._stop[0] = 1

    def call(self, function: Callable[..., int], *args: Any, wait: bool = False) -> None:
        """Calls function(*args, error) and raises what it reports. wait: it may take long, so it runs in a thread of
        its own, where Ctrl-C can stop it: Python handles signals only between the calls of its main thread."""
        error = ffi.new("struct fsdpck_error *")
        interrupt = None
        if wait and threading.current_thread() is threading.main_thread():
            interrupt = self._wait(lambda: function(*args, error))
        else:
            function(*args, error)
        stopped = self.failure or interrupt
        if stopped:
            raise stopped
        if error.code:
            raise exception(error)

    def _wait(self, work: Callable[[], int]) -> Optional[BaseException]:
        """Runs work() to its end in another thread. Returns the exception that a signal handler raised meanwhile, or
        that of a thread that cannot start."""
        interrupt, claim, done = None, threading.Lock(), threading.Event()

        def run() -> None:
            if not claim.acquire(blocking=False):
                return  # a signal came before claim was seen, and start() was called again
            try:
                work()
            except BaseException as e:  # arguments that the function does not take
                self.failure = self.failure or e
            finally:
                done.set()

        def start() -> None:
            try:
                _thread.start_new_thread(run, ())
            except _thread.error:  # the system has no thread left
                if claim.acquire(blocking=False):
                    done.set()
                raise

        # work() uses the caller's memory, so this returns after its end, at whichever call below a signal comes.
        while True:
            try:
                if not claim.locked():
                    start()
                done.wait()
                return interrupt
            except BaseException as e:
                interrupt = e
                self.stop()


@ffi.def_extern()
def fsdpck_py_progress(ctx: Any, done: int, total: int) -> None:
    options = ffi.from_handle(ctx)
    try:
        options.progress(done, total)
    except BaseException as e:
        options.failure = options.failure or e
        options.stop()


@ffi.def_extern()
def fsdpck_py_note(ctx: Any, line: Any) -> None:
    ffi.from_handle(ctx).notes.append(text(line))
