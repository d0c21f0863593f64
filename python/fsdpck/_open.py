# SPDX-License-Identifier: Apache-2.0
"""Opening sources, with the names and values that the caller wants."""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from fsdpck import _arrays
from fsdpck._call import Options, Progress
from fsdpck._errors import UsageError, encoded
from fsdpck._native import ffi, lib
from fsdpck._requests import SELECTION, Hold
from fsdpck._source import Path, Source, path_bytes

Input = Union[Path, Source]
# Arguments of open() that verbs take too, for the sources that they open. config goes with names and dequantize.
OPENING = ("format", "names", "dequantize", "quantize", "keep", "complete_from", "verify")


def open(source: Path, framework: str = "numpy", device: Any = None, *, format: Optional[str] = None,
         dequantize: Optional[str] = None, names: Optional[str] = None, config: Optional[Path] = None,
         complete_from: Optional[Path] = None, quantize: Optional[str] = None, keep: Optional[Iterable[str]] = None,
         verify: bool = True, threads: int = 0, memory: int = 0, progress: Optional[Progress] = None) -> Source:
    """Opens a checkpoint of any kind: a safetensors or torch.save file, a Hugging Face folder, a PyTorch DCP directory,
    an fsdpck directory, a folder of rank files. Reads metadata only.

    framework: "numpy" or "torch", whose arrays indexing returns.
    device: where PyTorch's go.
    format: requires one kind ("hf", "dcp", "pt" …); by default the content says.
    dequantize: "bf16", "fp16" or "fp32", presents quantized weights dequantized.
    names: "hf", "transformers", "vllm", "torchtitan" or "megatron", presents the weights under those names and layouts.
    config: folder of the config.json that names and dequantize read, if the source has none.
    complete_from: the model that this one was made from; weights that are missing are taken from there.
    quantize: "fp8-block", "mxfp4", "nvfp4" or "nf4", presents all matrices but embeddings, heads, norms and routers
    quantized.
    keep: globs of weights that quantize leaves as they are.
    verify: checks the hashes and CRC-32s of all that is read.
    threads, memory: processors and bytes of buffers to use; 0: all processors, 256 MiB.
    progress: called with the bytes done and in total."""
    if config is not None and dequantize is None and names is None:
        raise UsageError("config is read for names and dequantize, which are not given")
    if keep is not None and quantize is None:
        raise UsageError("keep says what quantize leaves as it is; quantize is not given")
    options = Options(threads, memory, verify, progress)
    out = Source(source, format, framework, device, options)
    present(options, out._open(), dequantize, names, config)
    if complete_from is not None:
        base = open(complete_from, dequantize=dequantize, names=names, verify=verify, threads=threads, memory=memory)
        options.notes += base.notes
        out._own(base)
        options.call(lib.fsdpck_source_complete, out._open(), base._release())
    if quantize is not None:
        hold = Hold()
        globs = hold.strings(keep)
        options.call(lib.fsdpck_source_quantize, out._open(), encoded(quantize), globs, len(globs))
    return out


def present(options: Options, source: Any, dequantize: Optional[str] = None, names: Optional[str] = None,
            config: Optional[Path] = None) -> None:
    """Gives a source of the library that was just opened other values and names."""
    folder = ffi.NULL if config is None else path_bytes(config)
    if dequantize is not None:
        dtype = _arrays.dtype_number(_arrays.full_name(dequantize))
        options.call(lib.fsdpck_source_dequantize, source, dtype, folder)
    if names is not None:
        options.call(lib.fsdpck_source_set_names, source, encoded(names), folder)


def split(verb: str, options: Mapping[str, Any], allowed: Sequence[str]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The keyword arguments of a verb: those that select tensors, and those for open()."""
    for name in options:
        if name not in SELECTION and name not in allowed:
            raise TypeError("%s() has no argument '%s'" % (verb, name))
    given = {name: value for name, value in options.items() if value is not None}
    return ({n: v for n, v in given.items() if n in SELECTION}, {n: v for n, v in given.items() if n not in SELECTION})


@contextlib.contextmanager
def opened(sources: Sequence[Input], options: Options, assets: Optional[Path] = None,
           **opening: Any) -> Iterator[List[Any]]:
    """The library's sources. Those that were paths are opened so, add their notes, and are closed at the end. assets:
    a folder whose config.json names and dequantize read too."""
    opening = {name: value for name, value in opening.items() if value is not None}
    if assets is not None and ("names" in opening or "dequantize" in opening):
        opening.setdefault("config", assets)
    with contextlib.ExitStack() as stack:
        handles = []
        for source in sources:
            if not isinstance(source, Source):
                source = stack.enter_context(open(source, threads=options.threads, memory=options.memory, **opening))
                options.notes += source.notes
            elif opening:
                raise UsageError("%s is open: %s is an argument of fsdpck.open()" % (source.path, min(opening)))
            handles.append(source._open())
        yield handles
