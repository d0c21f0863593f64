# SPDX-License-Identifier: Apache-2.0
"""Frozen bases by reference (FORMAT.md section 9). Written from the page."""
import json
import os
import re
import struct

from content import content_of


def safetensors_of(path):
    """{name: (shape, bytes)} of a file."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack_from("<Q", raw)[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (e["shape"], raw[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]]) for k, e in head.items()}


def safetensors_below(folder):
    out = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".safetensors"):
            out.update(safetensors_of(os.path.join(folder, name)))
    return out


def check(reader, base, dtypes, plain):
    """Section 9: the way, what is listed, and, where the base lies there as safetensors, whether it is that base."""
    way = base["path"].split("/")
    while way and way[0] == "..":
        del way[0]
    reader.expect(not way or way == ["."] == base["path"].split("/") or plain("/".join(way)), "index.json: base",
                  f"path {base['path']!r}")
    for name, t in base["tensors"].items():
        ok = t["dtype"] in dtypes and all(isinstance(d, int) and d >= 0 for d in t["shape"])
        reader.expect(ok and re.fullmatch("[0-9a-f]{32}", t["content"]), f"index.json: base: {name!r}",
                      "dtype, shape or content")
    held = base.get("held")
    reader.expect(held in (None, "as stored", "bf16", "fp8-block", "mxfp4", "nvfp4", "nf4"), "index.json: base",
                  f"held {held!r}")
    if held:  # the base is presented in another form than it lies there in
        return
    found = safetensors_below(os.path.join(os.path.realpath(reader.dir), base["path"]))
    for name, t in base["tensors"].items() if found else ():
        shape, raw = found.get(name, (None, b""))
        rows = shape[0] if shape else 1
        content = content_of(raw, 0, len(raw) // rows).to_bytes(16, "little").hex() if raw else "0" * 32
        reader.expect(shape == t["shape"] and content == t["content"], f"the base: {name!r}",
                      f"shape {shape}, content {content}")
