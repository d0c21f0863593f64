# SPDX-License-Identifier: Apache-2.0
"""The verbs of the program that write, as functions."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from fsdpck._call import Options, Progress
from fsdpck._errors import UsageError, text
from fsdpck._native import ffi, lib
from fsdpck._open import OPENING, Input, opened, present, split
from fsdpck._requests import Hold, Mesh, Placements, select, sharding
from fsdpck._source import Path, Source, path_bytes

_STYLES = ("peft", "diffusers", "kohya", "comfy", "vllm", "peft-fused", "sglang")


class Written(NamedTuple):
    """What a verb wrote. `left_tensors` and `left_objects` were left behind: outside the tree that was taken, or of no
    place in the output."""
    tensors: int
    files: int
    written_nbytes: int
    read_nbytes: int
    left_tensors: int
    left_objects: int
    seconds: float
    notes: List[str]


def convert(source: Input, out: Path, mesh: Mesh, *, placements: Optional[Placements] = None,
            replicate: Optional[Iterable[str]] = None, compress: bool = False, dcp: str = "auto",
            assets: Optional[Path] = None, force: bool = False, threads: int = 0, memory: int = 0,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """Writes a sharded checkpoint directory of any source, with buffers of a fixed size.

    source: what `fsdpck.open()` takes, or returned.
    mesh: the number of ranks, or the mesh: {"replicate": 2, "shard": 4}.
    placements: for globs of names, the placement on dimensions of the mesh: {"*.down_proj.weight": {"tp": "shard(1)"}};
    or "auto": on dimensions "tp" and "ep" as the model's family is run.
    replicate: globs of tensors that every rank holds whole.
    compress: compresses without loss; PyTorch cannot read the result.
    dcp: "auto", "always" or "never", whether .metadata for PyTorch is written.
    assets: folder whose files (config.json …) are taken; by default the source's.
    force: replaces an existing checkpoint, atomically.
    options: include, exclude (globs), rename, alias, tree, dtype, as the program's options; of a path also format,
    names, dequantize, quantize, keep, complete_from and verify, as `fsdpck.open()` has them."""
    return _convert("convert", source, out, mesh, placements, replicate, compress, dcp, assets, force,
                    Options(threads, memory, progress=progress), options)


def reshard(source: Input, out: Path, mesh: Mesh, *, placements: Optional[Placements] = None,
            replicate: Optional[Iterable[str]] = None, compress: bool = False, dcp: str = "auto",
            assets: Optional[Path] = None, force: bool = False, threads: int = 0, memory: int = 0,
            progress: Optional[Progress] = None, **options: Any) -> Written:
    """Writes a sharded checkpoint for another mesh. Its arguments are those of `convert()`; a source that is not
    sharded is refused."""
    return _convert("reshard", source, out, mesh, placements, replicate, compress, dcp, assets, force,
                    Options(threads, memory, progress=progress), options)


def export(source: Input, out: Path, *, max_shard_nbytes: int = 0, vllm_ranks: int = 0,
           vllm_expert_parallel: bool = False, assets: Optional[Path] = None, force: bool = False, threads: int = 0,
           memory: int = 0, progress: Optional[Progress] = None, **options: Any) -> Written:
    """Writes a Hugging Face folder of any source, or one file if `out` ends in ".safetensors".

    max_shard_nbytes: largest payload of one file of the folder; 0: 5 GB.
    vllm_ranks: not 0: writes what each of so many ranks of vLLM's tensor parallelism holds, as `--style vllm-sharded`.
    vllm_expert_parallel: each of these ranks has some of the experts whole, as `--expert-parallel`.
    options: as `convert()` has them."""
    hold = Hold()
    selection, opening = split("export", options, OPENING)
    request = hold.new("struct fsdpck_export_request *", {
        "out": hold.string(path_bytes(out)), "max_shard_nbytes": max_shard_nbytes, "force": force,
        "vllm_ranks": vllm_ranks, "vllm_expert_parallel": vllm_expert_parallel, "select": select(hold, **selection),
        "assets": _folder(hold, assets)})
    call = Options(threads, memory, progress=progress)
    with opened([source], call, assets, **opening) as sources:
        return _transfer(lib.fsdpck_export, [*sources, request], call)


def export_lora(source: Input, out: Path, *, style: str = "peft", adapter: Optional[str] = None,
                config: Optional[Path] = None, alpha: Optional[float] = None, base: Optional[Path] = None,
                force: bool = False, threads: int = 0, memory: int = 0, progress: Optional[Progress] = None,
                **options: Any) -> Written:
    """Writes the LoRA adapter in any source for other programs.

    style: "peft", "diffusers", "kohya", "comfy", "vllm", "peft-fused" or "sglang".
    adapter: its name, if the source has several.
    config: path of its adapter_config.json, if the source has none.
    alpha: lora_alpha, if there is no adapter_config.json.
    base: for "vllm", of fused experts: the model's folder, whose config.json names the family.
    options: include, exclude, rename, alias, tree, dtype; of a path also format and verify."""
    if style not in _STYLES:
        raise UsageError("style is %r; %s are known" % (style, ", ".join(_STYLES)))
    hold = Hold()
    selection, opening = split("export_lora", options, ("format", "verify"))
    request = hold.new("struct fsdpck_export_lora_request *", {
        "out": hold.string(path_bytes(out)), "style": _STYLES.index(style), "base": _folder(hold, base), "force": force,
        "choice": _choice(hold, adapter, config, alpha), "select": select(hold, **selection)})
    call = Options(threads, memory, progress=progress)
    with opened([source], call, **opening) as sources:
        return _transfer(lib.fsdpck_export_lora, [*sources, request], call)


def merge_lora(base: Optional[Input], adapter: Input, out: Path, *, mesh: Optional[Mesh] = None,
               placements: Optional[Placements] = None, replicate: Optional[Iterable[str]] = None,
               name: Optional[str] = None, config: Optional[Path] = None, alpha: Optional[float] = None,
               max_shard_nbytes: int = 0, assets: Optional[Path] = None, force: bool = False, threads: int = 0,
               memory: int = 0, progress: Optional[Progress] = None, **options: Any) -> Written:
    """Merges an adapter into the weights of its base: base + scale · B · A, rounded once.

    base: the model; None: the one that the adapter's checkpoint names.
    mesh, placements, replicate: write a sharded checkpoint, as `convert()` has them; without mesh, the output is a
    Hugging Face folder or file.
    name, config, alpha: of the adapter, as `export_lora()` has them.
    options: include, exclude, rename, alias, tree, dtype; of paths also format and dequantize (of the base), verify."""
    hold, call = Hold(), Options(threads, memory, progress=progress)
    selection, opening = split("merge_lora", options, ("format", "dequantize", "verify"))
    request = hold.new("struct fsdpck_merge_lora_request *", {
        "out": hold.string(path_bytes(out)), "choice": _choice(hold, name, config, alpha), "force": force,
        "select": select(hold, **selection), "max_shard_nbytes": max_shard_nbytes,
        "sharded": _sharded(hold, mesh, placements, replicate), "assets": _folder(hold, assets)})
    checked = {n: value for n, value in opening.items() if n == "verify"}
    with opened([adapter], call, **({} if isinstance(adapter, Source) else checked)) as (second, ):
        if base is None:
            first = _named_base(second, call, **opening)
            return _transfer(lib.fsdpck_merge_lora, [first, second, request], call)
        with opened([base], call, **opening) as (first, ):
            return _transfer(lib.fsdpck_merge_lora, [first, second, request], call)


def average(sources: Sequence[Input], out: Path, *, weights: Optional[Sequence[float]] = None,
            mesh: Optional[Mesh] = None, placements: Optional[Placements] = None,
            replicate: Optional[Iterable[str]] = None, compress: bool = False, dcp: str = "auto",
            max_shard_nbytes: int = 0, assets: Optional[Path] = None, force: bool = False, threads: int = 0,
            memory: int = 0, progress: Optional[Progress] = None, **options: Any) -> Written:
    """Writes the weighted average of checkpoints that have the same tensors. A first source that was open is closed.

    weights: the factor of each source; None: the mean.
    mesh, placements, replicate, compress, dcp: write a sharded checkpoint, as `convert()` has them; without mesh, the
    output is a Hugging Face folder or file.
    options: include, exclude, rename, alias, tree, dtype; of paths also format, names, dequantize and verify."""
    hold, call = Hold(), Options(threads, memory, progress=progress)
    selection, opening = split("average", options, ("format", "names", "dequantize", "verify"))
    if weights is not None and len(weights) != len(sources):
        raise UsageError("weights are %d numbers for %d sources; one for each is wanted" % (len(weights), len(sources)))
    request = hold.new("struct fsdpck_average_request *", {
        "out": hold.string(path_bytes(out)), "weights": ffi.NULL if weights is None else hold.new("double[]", weights),
        "select": select(hold, **selection), "max_shard_nbytes": max_shard_nbytes, "force": force,
        "sharded": _sharded(hold, mesh, placements, replicate, dcp, compress), "assets": _folder(hold, assets)})
    with opened(sources, call, assets, **opening) as handles:
        if handles and isinstance(sources[0], Source):
            sources[0].close()  # from now on the library's source, which handles hold, presents the averages
        return _transfer(lib.fsdpck_average, [handles, len(handles), request], call)


# --- what they share ---


def _convert(verb: str, source: Input, out: Path, mesh: Mesh, placements: Optional[Placements],
             replicate: Optional[Iterable[str]], compress: bool, dcp: str, assets: Optional[Path], force: bool,
             call: Options, options: Dict[str, Any]) -> Written:
    hold = Hold()
    selection, opening = split(verb, options, OPENING)
    request = hold.new("struct fsdpck_convert_request *", dict(
        sharding(hold, mesh, placements, replicate, dcp, compress), out=hold.string(path_bytes(out)), force=force,
        select=select(hold, **selection), assets=_folder(hold, assets)))
    with opened([source], call, assets, **opening) as (handle, ):
        if verb == "reshard" and not lib.fsdpck_source_is_sharded(handle):
            raise UsageError("%s: found a source of kind '%s', reshard() wants a sharded checkpoint" %
                             (text(lib.fsdpck_source_path(handle)), text(lib.fsdpck_source_kind(handle))),
                             hint="convert() takes any source")
        return _transfer(lib.fsdpck_convert, [handle, request], call)


def _transfer(function: Callable[..., int], args: List[Any], options: Options) -> Written:
    result = ffi.new("struct fsdpck_transfer_result *")
    options.call(function, *args, options.struct, result, wait=True)
    return Written(result.ntensors, result.nfiles, result.written_nbytes, result.read_nbytes, result.nleft_tensors,
                   result.nleft_items, result.seconds, options.notes)


def _named_base(adapter: Any, options: Options, format: Optional[str] = None, dequantize: Optional[str] = None,
                verify: bool = True) -> Any:
    """The library's source of the base that an adapter's checkpoint names."""
    if format is not None:
        raise UsageError("format is that of the base; the base that the adapter names is recognised by its content")
    out = ffi.new("struct fsdpck_source **")
    call = Options(options.threads, options.memory, verify)
    call.notes = options.notes
    call.call(lib.fsdpck_base_open, adapter, call.struct, out)

    def close(source: Any, used: Options = call) -> None:  # the source calls back into its options until then
        lib.fsdpck_source_close(source)

    base = ffi.gc(out[0], close)
    present(call, base, dequantize)
    return base


def _sharded(hold: Hold, mesh: Optional[Mesh], placements: Optional[Placements], replicate: Optional[Iterable[str]],
             dcp: str = "auto", compress: bool = False) -> Any:
    """The request that an output for ranks follows, or NULL."""
    if mesh is not None:
        return hold.new("struct fsdpck_convert_request *", sharding(hold, mesh, placements, replicate, dcp, compress))
    if placements or replicate or compress or dcp != "auto":
        raise UsageError("placements, replicate, compress and dcp are for a sharded checkpoint; mesh is not given")
    return ffi.NULL


def _folder(hold: Hold, path: Optional[Path]) -> Any:
    return hold.string(None if path is None else path_bytes(path))


def _choice(hold: Hold, adapter: Optional[str], config: Optional[Path], alpha: Optional[float]) -> Any:
    return {"adapter": hold.string(adapter), "config": _folder(hold, config), "has_alpha": alpha is not None,
            "alpha": alpha or 0.0}
