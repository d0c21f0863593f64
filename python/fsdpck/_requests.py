# SPDX-License-Identifier: Apache-2.0
"""Requests of the library, made of Python values."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from fsdpck import _arrays
from fsdpck._errors import UsageError, encoded
from fsdpck._native import ffi, lib

Mesh = Union[int, Mapping[str, int]]
Placements = Union[str, Mapping[str, Mapping[str, str]]]
SELECTION = ("include", "exclude", "rename", "alias", "tree", "dtype")
_DCP = {"auto": lib.FSDPCK_DCP_AUTO, "always": lib.FSDPCK_DCP_ALWAYS, "never": lib.FSDPCK_DCP_NEVER}


class Hold(List[Any]):
    """Owns the memory that the structs of a request point to."""

    def new(self, kind: str, value: Any) -> Any:
        self.append(ffi.new(kind, value))
        return self[-1]

    def string(self, value: Optional[Any]) -> Any:
        return ffi.NULL if value is None else self.new("char[]", encoded(value))

    def view(self, value: Any) -> Any:
        """The memory of an object that has the buffer protocol."""
        self.append(ffi.from_buffer(value))
        return self[-1]

    def strings(self, values: Optional[Iterable[str]]) -> Any:
        if isinstance(values, str):
            raise UsageError("a list of globs is wanted, found the string %r" % values)
        return self.new("char *[]", [self.string(v) for v in values or ()])

    def pairs(self, values: Optional[Mapping[str, str]]) -> Any:
        return self.new("struct fsdpck_pair[]", [{"key": self.string(k), "value": self.string(v)}
                                                 for k, v in (values or {}).items()])


def key_path(hold: Hold, keys: Iterable[Union[str, int]]) -> Any:
    """The struct fsdpck_keys of nested dicts and lists."""
    return hold.new("struct fsdpck_key[]", [{"str": hold.string(k)} if isinstance(k, str) else {"position": k}
                                            for k in keys])


def select(hold: Hold, include: Optional[Iterable[str]] = None, exclude: Optional[Iterable[str]] = None,
           rename: Optional[Mapping[str, str]] = None, alias: Optional[Mapping[str, str]] = None,
           tree: Optional[str] = None, dtype: Optional[str] = None) -> Dict[str, Any]:
    """A struct fsdpck_select."""
    out: Dict[str, Any] = {"tree": hold.string(tree), "cast": dtype is not None}
    for name, array in (("include", hold.strings(include)), ("exclude", hold.strings(exclude)),
                        ("rename", hold.pairs(rename)), ("alias", hold.pairs(alias))):
        out[name], out["n" + name] = array, len(array)
    if dtype is not None:
        out["dtype"] = _arrays.dtype_number(_arrays.full_name(dtype))
    return out


def sharding(hold: Hold, mesh: Mesh, placements: Optional[Placements],
             replicate: Optional[Iterable[str]], dcp: str, compress: bool) -> Dict[str, Any]:
    """The parts of a struct fsdpck_convert_request that say how the output is sharded."""
    dims = {"shard": mesh} if isinstance(mesh, int) else dict(mesh)
    if not 1 <= len(dims) <= lib.FSDPCK_MAX_MESH_DIMS:
        raise UsageError("a mesh has 1 to %d dimensions, found %d" % (lib.FSDPCK_MAX_MESH_DIMS, len(dims)))
    if min(dims.values()) < 0:
        raise UsageError("a dimension of a mesh has 1 rank or more; found %s" % dims)
    if dcp not in _DCP:
        raise UsageError("dcp is %r; 'auto', 'always' and 'never' are known" % dcp)
    if isinstance(placements, str) and placements != "auto":
        raise UsageError("placements is %r; 'auto' and a mapping of globs are known" % placements)
    globbed = {} if placements is None or isinstance(placements, str) else placements
    rules = hold.new("struct fsdpck_placement_rule[]", [_rule(hold, glob, rule) for glob, rule in globbed.items()])
    globs = hold.strings(replicate)
    return {"mesh": {"ndim": len(dims), "names": [hold.string(n) for n in dims], "sizes": list(dims.values())},
            "rules": rules, "nrules": len(rules), "by_family": placements == "auto", "replicate": globs,
            "nreplicate": len(globs), "dcp": _DCP[dcp], "compress": compress}


def _rule(hold: Hold, glob: str, rule: Mapping[str, str]) -> Dict[str, Any]:
    parsed = []
    for text in rule.values():
        parsed.append(ffi.new("struct fsdpck_placement *"))
        if not lib.fsdpck_placement_parse(encoded(text), parsed[-1]):
            raise UsageError("%r is no placement" % text, hint="'replicate', 'shard(0)', 'strided_shard(0,2)'")
    return {"glob": hold.string(glob), "mesh_dim": [hold.string(n) for n in rule], "placement": [p[0] for p in parsed],
            "n": len(rule)}
