# SPDX-License-Identifier: Apache-2.0
"""The verbs of the program that look at checkpoints, as functions."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from fsdpck._call import Options, Progress
from fsdpck._errors import UsageError, encoded, text
from fsdpck._native import ffi, lib
from fsdpck._open import Input, open, opened
from fsdpck._requests import Hold, Mesh, Placements, sharding
from fsdpck._source import Path, Plan, Source, Tensor, path_bytes


class Problem(NamedTuple):
    """Damage that `verify()` found. `offset` and `nbytes` are its place in the file; `rows` the rows of the tensor."""
    what: str
    file: str
    offset: int
    nbytes: int
    rank: Optional[int]
    tensor: Optional[str]
    rows: Optional[Tuple[int, int]]


class Verified(NamedTuple):
    """What `verify()` found. `hashed`: every byte was checked against a hash; other formats have fewer checks, and
    `notes` names the parts that none covers."""
    problems: List[Problem]
    hashed: bool
    read_nbytes: int
    notes: List[str]


class Difference(NamedTuple):
    """A tensor that differs; None for the shape of a side that lacks it."""
    tensor: str
    dtypes: Tuple[Optional[str], Optional[str]]
    shapes: Tuple[Optional[Tuple[int, ...]], Optional[Tuple[int, ...]]]
    elements: int
    max_abs: float


class Leftover(NamedTuple):
    """A temporary of a writer, a replaced checkpoint or a damaged one that was set aside. `alive`: its writer may still
    be running; `why` says how that is known."""
    path: str
    alive: bool
    why: str


class File(NamedTuple):
    """A file of a checkpoint, and the rank that wrote it."""
    name: str
    nbytes: int
    rank: Optional[int]


class Listing(NamedTuple):
    """What a checkpoint holds. `tensors` stay readable; `objects` and `assets` have the bytes of each."""
    source: Source
    tensors: List[Tensor]
    objects: Dict[str, int]
    assets: Dict[str, int]
    files: List[File]
    leftovers: List[Leftover]


def ls(source: Input, *, tensor: Optional[str] = None, **opening: Any) -> Listing:
    """Lists a checkpoint. Reads metadata only.

    tensor: a glob; only tensors whose name matches.
    opening: of a path, what `fsdpck.open()` takes."""
    if isinstance(source, Source):
        if opening:
            raise UsageError("%s is open: %s is an argument of fsdpck.open()" % (source.path, min(opening)))
    else:
        source = open(source, **opening)
    handle, call, hold = source._open(), Options(), Hold()
    globs = hold.strings([] if tensor is None else [tensor])
    call.call(lib.fsdpck_globs_check, handle, b"tensor", globs, len(globs))
    tensors = [t for t in source.values() if tensor is None or lib.fsdpck_glob_match(encoded(tensor), encoded(t.name))]
    items = (lib.fsdpck_source_item(handle, i) for i in range(lib.fsdpck_source_nitems(handle)))
    assets = (lib.fsdpck_source_asset(handle, i) for i in range(lib.fsdpck_source_nassets(handle)))
    files = (lib.fsdpck_source_file(handle, i) for i in range(lib.fsdpck_source_nfiles(handle)))
    leftovers: List[Leftover] = []
    if source.kind in ("fsdpck", "dcp"):
        call.call(lib.fsdpck_leftovers, lib.fsdpck_source_path(handle), lib.FSDPCK_CLEAN_NOTHING, call.struct,
                  lib.fsdpck_py_leftover, ffi.new_handle(leftovers))
    return Listing(source, tensors, {text(i.name): i.nbytes for i in items}, {text(a.path): a.nbytes for a in assets},
                   [File(text(f.name), f.nbytes, None if f.rank < 0 else f.rank) for f in files], leftovers)


def plan(source: Input, mesh: Mesh, *, placements: Optional[Placements] = None,
         replicate: Optional[Iterable[str]] = None, assets: Optional[Path] = None, threads: int = 0, memory: int = 0,
         **opening: Any) -> List[Plan]:
    """Computes what each rank of a mesh would read to hold its shards. Reads metadata only.

    mesh, placements, replicate: as `convert()` has them.
    assets: folder of the model's config.json, if the source has none.
    opening: of a path, format, names, dequantize, quantize and keep, as `fsdpck.open()` has them."""
    hold, call = Hold(), Options(threads, memory)
    request = hold.new("struct fsdpck_convert_request *", sharding(hold, mesh, placements, replicate, "auto", False))
    request.assets = hold.string(None if assets is None else path_bytes(assets))
    mesh_struct = ffi.addressof(request, "mesh")
    call.call(lib.fsdpck_convert_mesh_check, mesh_struct)
    plans = ffi.new("struct fsdpck_plan[]", lib.fsdpck_mesh_nranks(mesh_struct))
    with opened([source], call, assets, **opening) as (handle, ):
        call.call(lib.fsdpck_plan_ranks, handle, request, call.struct, plans, wait=True)
    return [Plan.of(p) for p in plans]


def verify(path: Path, *, quick: bool = False, format: Optional[str] = None, threads: int = 0, memory: int = 0,
           progress: Optional[Progress] = None) -> Verified:
    """Reads all of a checkpoint and returns every problem.

    quick: checks sizes, tables and the index only.
    format: requires one kind, as `open()` does."""
    problems: List[Problem] = []
    handle = ffi.new_handle(problems)
    result = ffi.new("struct fsdpck_verify_result *")
    options = Options(threads, memory, progress=progress)
    options.call(lib.fsdpck_verify, path_bytes(path), encoded(format) if format else ffi.NULL, quick, options.struct,
                 lib.fsdpck_py_problem, handle, result, wait=True)
    return Verified(problems, result.hashed, result.read_nbytes, options.notes)


def diff(a: Input, b: Input, *, tolerance: Optional[float] = None, threads: int = 0, memory: int = 0,
         progress: Optional[Progress] = None, **opening: Any) -> List[Difference]:
    """Compares two sources of any kinds and shardings, and returns every tensor that differs.

    tolerance: the largest absolute difference that counts as equal; None: bit for bit.
    opening: of paths, format, names, config, dequantize and verify, as `fsdpck.open()` has them."""
    if tolerance is not None and tolerance < 0:
        raise UsageError("the tolerance is %g; 0 or more is wanted" % tolerance)
    differences: List[Difference] = []
    handle = ffi.new_handle(differences)
    result = ffi.new("struct fsdpck_diff_result *")
    options = Options(threads, memory, progress=progress)
    with opened([a, b], options, **opening) as (first, second):
        options.call(lib.fsdpck_diff, first, second, -1.0 if tolerance is None else tolerance, options.struct,
                     lib.fsdpck_py_difference, handle, result, wait=True)
    return differences


@ffi.def_extern()
def fsdpck_py_problem(ctx: Any, p: Any) -> None:
    tensor = None if p.tensor == ffi.NULL else text(p.tensor)
    rows = (p.row_begin, p.row_end) if p.row_end > p.row_begin else None
    ffi.from_handle(ctx).append(Problem(text(p.what), text(p.file), p.offset, p.nbytes, None if p.rank < 0 else p.rank,
                                        tensor, rows))


@ffi.def_extern()
def fsdpck_py_difference(ctx: Any, d: Any) -> None:
    (dtype_a, shape_a), (dtype_b, shape_b) = _side(d.a), _side(d.b)
    ffi.from_handle(ctx).append(Difference(text(d.tensor), (dtype_a, dtype_b), (shape_a, shape_b), d.ndifferent,
                                           d.max_abs))


def _side(tensor: Any) -> Tuple[Optional[str], Optional[Tuple[int, ...]]]:
    """Dtype and shape of one side of a difference."""
    if tensor == ffi.NULL:
        return None, None
    return text(lib.fsdpck_dtype_info(tensor.dtype).name), tuple(tensor.shape[0:tensor.ndim])


@ffi.def_extern()
def fsdpck_py_leftover(ctx: Any, l: Any) -> None:
    ffi.from_handle(ctx).append(Leftover(text(l.path), l.alive, text(l.why)))
