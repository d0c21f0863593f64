# SPDX-License-Identifier: Apache-2.0
"""Checks a safetensors file, or an HF folder with model.safetensors.index.json, against REF, bit for bit, through the
official library."""
import json, os, struct

import ckpt_common as c
from safetensors import safe_open


def open_file(path, bad, align):
    """{name: tensor} of one file; complains about its header."""
    raw = open(path, "rb").read(8)
    n = struct.unpack("<Q", raw)[0]
    with open(path, "rb") as f:
        f.seek(8)
        head = json.loads(f.read(n))
    if (8 + n) % align:
        bad.append(f"{path}: data begins at byte {8 + n}, not a multiple of {align}")
    out = {}
    with safe_open(path, framework="pt") as f:
        meta = f.metadata() or {}
        if meta.get("format") != "pt":
            bad.append(f'{path}: __metadata__ is {meta}, wants "format": "pt"')
        for k in f.keys():
            out[k] = f.get_tensor(k)
            start = 8 + n + head[k]["data_offsets"][0]
            if out[k].numel() and start % out[k].element_size():
                bad.append(
                    f"{path}: {k} begins at byte {start}, not a multiple of its element size {out[k].element_size()}")
    return out


def check_folder(path, bad, align):
    """{name: tensor} of all files of a folder; complains where they and the index disagree."""
    got, weight_map, doc = {}, None, {}
    index = os.path.join(path, "model.safetensors.index.json")
    files = sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))
    if os.path.exists(index):
        doc = json.load(open(index))
        weight_map = doc["weight_map"]
        bad += [f"index: file {f} does not exist" for f in sorted(set(weight_map.values()) - set(files))]
        bad += [f"index: file {f} is not named" for f in sorted(set(files) - set(weight_map.values()))]
    elif len(files) != 1:
        bad.append(f"{len(files)} files and no model.safetensors.index.json")
    for f in files:
        for k, t in open_file(os.path.join(path, f), bad, align).items():
            if k in got:
                bad.append(f"{k}: in more than one file")
            if weight_map is not None and weight_map.get(k) != f:
                bad.append(f"index: {k} is in {f}, weight_map says {weight_map.get(k)}")
            got[k] = t
    if weight_map is not None:
        bad += [f"index: {k} is in no file" for k in sorted(weight_map.keys() - got.keys())]
        total = sum(t.numel() * t.element_size() for t in got.values())
        if doc.get("metadata", {}).get("total_size") != total:
            bad.append(f"index: total_size {doc.get('metadata', {}).get('total_size')}, want {total}")
    return got


def check(path, ref, align=8):
    """[differences]. align: the data of a file must begin at a multiple of it."""
    bad = []
    got = check_folder(path, bad, align) if os.path.isdir(path) else open_file(path, bad, align)
    bad += [f"{k}: missing" for k in sorted(ref.keys() - got.keys())]
    bad += [f"{k}: not in the reference" for k in sorted(got.keys() - ref.keys())]
    return bad + [d for k in sorted(ref.keys() & got.keys()) if (d := c.compare(k, got[k], ref[k]))]
