# SPDX-License-Identifier: Apache-2.0
"""Makes a model real: allocates what lies on the meta device, and reads each rank's own slices of the weights."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import nn

import fsdpck
from fsdpck._source import Path, Source
from fsdpck.torch._boxes import boxes, places
from fsdpck.torch._fill import Fill, fill

Names = Union[Mapping[str, str], Callable[[str], str]]
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class Loaded(NamedTuple):
    """What `load_model()` found, as `Module.load_state_dict()` reports it."""
    missing_keys: List[str]
    unexpected_keys: List[str]


def load_model(model: nn.Module, source: Union[Path, Source], *, names: Optional[Names] = None, strict: bool = True,
               tree: Optional[str] = None, device: Any = None,
               init_buffers: Optional[Callable[[nn.Module], Any]] = None) -> Loaded:
    """Loads weights into a model that may lie on the meta device, plain or sharded by `fully_shard()` or as DTensors.
    Each rank allocates and reads its own shards only, in place and cast to the parameters' dtypes; ranks exchange
    nothing. Parameters remain the same objects, so ties and optimizers hold. Nothing is changed if names or shapes do
    not fit.

    source: what `fsdpck.open()` takes, or returned.
    names: the source's name for each of the model's, as a mapping (others keep theirs) or a function.
    strict: raises a RuntimeError if names are missing or unexpected, as `load_state_dict()` does; without it,
    parameters that the source lacks stay as they are.
    tree: the nested dict of the source to load from, as "app.model"; by default "model" if the source has one, as
    checkpoints of trainings have, else all of it. Names are those in it.
    device: where parameters on the meta device go; by default the device of their mesh, or the CPU.
    init_buffers: called with each module that has buffers on the meta device that no checkpoint holds (rotary
    frequencies); they are allocated, and it fills them."""
    opened = source if isinstance(source, Source) else fsdpck.open(source, "torch")
    try:
        stored = _in_tree(opened, tree)
        wanted = _wanted(model, _renamed(names))
        loaded = _check(model, stored, wanted)
        if strict and (loaded.missing_keys or loaded.unexpected_keys):
            raise RuntimeError(_report(model, _key_lines(loaded)))
        lost = _lost_buffers(model)
        if lost and init_buffers is None:
            raise fsdpck.UsageError("buffers on the meta device are in no checkpoint: %s" % ", ".join(lost),
                                    hint="init_buffers=FUNCTION is called with each module that has some")
        present = {id(tensor): (tensor, stored[name]) for tensor, name in wanted.values() if name in stored}
        for tensor, _ in present.values():
            _allocate(tensor, device)
        _settle(model)
        fill(opened, (f for tensor, found in present.values() for f in _fills(tensor, found)))
        for module in dict.fromkeys(lost.values()):
            _allocate_buffers(module, device)
            init_buffers(module)  # type: ignore[misc]
    finally:
        if opened is not source:
            opened.close()
    return loaded


# --- names ---


def _renamed(names: Optional[Names]) -> Callable[[str], str]:
    if names is None:
        return lambda name: name
    return names if callable(names) else lambda name: names.get(name, name)  # type: ignore[union-attr]


def _in_tree(source: Source, tree: Optional[str]) -> Dict[str, fsdpck.Tensor]:
    """The tensors of a nested dict of the source, by their names in it."""
    keys = tuple((tree or "model").split("."))
    found = {t.name[len(".".join(keys)) + 1:]: t for t in source.values()
             if t.path[:len(keys)] == keys and len(t.path) > len(keys)}
    if tree is not None and not found:
        raise fsdpck.TensorNotFoundError("%s: there are no tensors in '%s'" % (source.path, tree), file=source.path)
    return found or dict(source)


def _tensors(model: nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers under all their names, without the prefixes of wrappers."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        own = list(module._parameters.items())
        own += [(n, b) for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set]
        for name, tensor in own:
            if tensor is not None:
                full = prefix + "." + name if prefix else name
                for wrapper in _WRAPPERS:
                    full = full.replace(wrapper, "")
                yield full, tensor


def _wanted(model: nn.Module, renamed: Callable[[str], str]) -> Dict[str, Tuple[torch.Tensor, str]]:
    """The model's names: tensor, and its name in the source."""
    return {name: (tensor, renamed(name)) for name, tensor in _tensors(model)}


def _check(model: nn.Module, source: Dict[str, fsdpck.Tensor], wanted: Dict[str, Tuple[torch.Tensor, str]]) -> Loaded:
    """Compares names and shapes. A tied tensor is there under any of its names."""
    there = {id(tensor) for tensor, name in wanted.values() if name in source}
    used = {name for _, name in wanted.values()}
    held = {source[name].name for name in used if name in source}
    sizes = []
    for name, (tensor, stored) in wanted.items():
        if stored in source and tuple(tensor.shape) != source[stored].shape:
            sizes.append("size mismatch for %s: copying a param with shape %s from checkpoint, the shape in current "
                         "model is %s." % (name, torch.Size(source[stored].shape), tensor.shape))
    if sizes:
        raise RuntimeError(_report(model, sizes))
    return Loaded([n for n, (tensor, _) in wanted.items() if id(tensor) not in there],
                  [n for n, t in source.items() if n not in used and t.alias_of not in held])


def _key_lines(loaded: Loaded) -> List[str]:
    lines = []
    for what, keys in (("Missing", loaded.missing_keys), ("Unexpected", loaded.unexpected_keys)):
        if keys:
            lines.append("%s key(s) in state_dict: %s. " % (what, ", ".join('"%s"' % k for k in keys)))
    return lines


def _report(model: nn.Module, lines: List[str]) -> str:
    return "Error(s) in loading state_dict for %s:\n\t%s" % (type(model).__name__, "\n\t".join(lines))


# --- memory ---


def _allocate(tensor: torch.Tensor, device: Any) -> None:
    """Gives a tensor on the meta device uninitialised memory. It remains the same object."""
    if not tensor.is_meta:
        return
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        real = torch.empty_like(tensor, device=device or "cpu")
    else:
        mesh = tensor.device_mesh  # type: ignore[attr-defined]
        real = type(tensor.data).from_local(  # type: ignore[attr-defined]
            torch.empty_like(local, device=device or mesh.device_type), mesh,
            tensor.placements, run_check=False,  # type: ignore[attr-defined]
            shape=tensor.shape, stride=tensor.stride())
    if isinstance(tensor, nn.Parameter):
        real = nn.Parameter(real, requires_grad=tensor.requires_grad)
    real.__dict__.update(tensor.__dict__)
    torch.utils.swap_tensors(tensor, real)


def _settle(model: nn.Module) -> None:
    """Lets fully_shard() pad and pin the new memory now, and not at the first forward."""
    if any(c.__name__ == "FSDPModule" for m in model.modules() for c in type(m).__mro__):
        model._apply(lambda tensor: tensor)


def _lost_buffers(model: nn.Module) -> Dict[str, nn.Module]:
    """Non-persistent buffers on the meta device, and their modules."""
    return {(prefix + "." if prefix else "") + name: module
            for prefix, module in model.named_modules() for name in module._non_persistent_buffers_set
            if module._buffers[name] is not None and module._buffers[name].is_meta}


def _allocate_buffers(module: nn.Module, device: Any) -> None:
    for name in module._non_persistent_buffers_set:
        buffer = module._buffers[name]
        if buffer is not None:
            _allocate(buffer, device)


# --- reading ---


def _fills(tensor: torch.Tensor, stored: fsdpck.Tensor) -> Iterator[Fill]:
    """The boxes of a tensor that this rank holds."""
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        yield Fill(stored, tuple(slice(None) for _ in stored.shape), tensor.detach())
        return
    for (offset, size), place in places(boxes(tensor)):
        yield Fill(stored, tuple(slice(o, o + n) for o, n in zip(offset, size)), local.detach()[place])
