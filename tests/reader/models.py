# SPDX-License-Identifier: Apache-2.0
"""Random models and layouts for run.py, and safetensors files written and read by hand. Everything follows from a
seed."""
import fnmatch
import json
import os
import struct

# safetensors' code: bytes of an element. F4 packs two elements in a byte; F6 has no counterpart in PyTorch.
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
    "F4": 0.5
}
ODD_NAMES = [
    'with "quotes"', "back\\slash", "sp ace", "naïve.漢字.🙂", "dots..twice.", ".leading", "trailing ", "tab\there",
    "new\nline", "control\x01\x1f", "del\x7f", "[glob]*?", "a/b/../c", "__0_0.distcp", "%s%n", "{}", "'", "\u00e9",
    "e\u0301", "-q", "--force", "hash", "x" * 300, "长" * 200
]


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), data

    def __eq__(self, other):
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)


def volume(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def random_shape(rng):
    kind = rng.random()
    if kind < 0.08:
        return []
    if kind < 0.14:
        shape = [rng.randrange(0, 5) for _ in range(rng.randrange(1, 4))]
        shape[rng.randrange(len(shape))] = 0
        return shape
    if kind < 0.22:        # big enough for several hash blocks and aligned payloads
        return [rng.randrange(100, 400), rng.randrange(100, 300)]
    if kind < 0.27:        # so few rows that some ranks have none
        return [rng.randrange(1, 4), rng.randrange(1, 9)]
    ndim = rng.choice([1, 1, 2, 2, 2, 3, 4, 6])
    return [rng.randrange(1, 18 if ndim < 4 else 6) for _ in range(ndim)]


def random_values(rng, nbytes, item):
    """Anything, nothing but zeros, or what weights look like: few exponents."""
    kind = rng.random()
    if kind < 0.2:
        return bytes(nbytes)
    data = bytearray(rng.randbytes(nbytes))
    if kind < 0.6:
        data[item - 1::item] = bytes(rng.choices(b"\x3b\x3c\x3d\xbb\xbc\xbd", (1, 3, 9, 1, 3, 9), k=nbytes // item))
    return bytes(data)


def random_tensor(rng, dtype):
    shape = random_shape(rng)
    if dtype == "F4":      # two elements a byte: the last dimension is even
        shape = shape or [1]
        shape[-1] *= 2
    nbytes = int(volume(shape) * SIZES[dtype])
    data = bytes(rng.choices(
        (0, 1), k=nbytes)) if dtype == "BOOL" else random_values(rng, nbytes, max(1, int(SIZES[dtype])))
    return Tensor(dtype, shape, data)


def random_name(rng, used):
    while True:
        if rng.random() < 0.3:
            name = rng.choice(ODD_NAMES)
        else:
            parts = ["model", "layers", "norm", "weight", "bias", "w1", "proj", "0", "1", "11"]
            name = ".".join(rng.choices(parts, k=rng.randrange(1, 5)))
        if rng.random() < 0.2:
            name += str(rng.randrange(100))
        if name not in used:
            used.add(name)
            return name


def random_model(rng):
    """{name: Tensor}. Names that end in ".w2" have at least two dimensions: placement rules are asked for them."""
    model, used = {}, set()
    for _ in range(rng.choice([0, 1, 2, 5, 8, 14, 24])):
        t = random_tensor(rng, rng.choice(list(SIZES)))
        name = random_name(rng, used)
        if len(t.shape) >= 2 and rng.random() < 0.6:
            name += ".w2"
        model[name] = t
    return model


def random_layout(rng, model):
    """Options of convert and reshard. Patterns that no tensor of the model uses are refused, and left out here."""
    rule = None
    kind = rng.random()
    a, b = rng.randrange(1, 5), rng.randrange(1, 4)
    if kind < 0.4:
        out = ["--ranks", str(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 17]))]
    elif kind < 0.6:
        out = ["--mesh", f"replicate={a},shard={b}"]
    elif kind < 0.7:
        out = ["--mesh", f"dp={a},tp={b}"]
    else:
        rules = [
            "*.w2=shard(1)@tp", "*.w2=shard(0)@dp,shard(0)@tp", "*.w2=shard(1)@dp,shard(1)@tp",
            "*.w2=replicate@dp,shard(1)@tp", f"*.w2=strided_shard(0,{b})@dp,shard(0)@tp",
            f"*.w2=strided_shard(1,{b})@dp,shard(1)@tp", "*.w2=strided_shard(0,2)@dp", "*.w2=shard(1)@tp,replicate@pp"
        ]
        rule = rng.choice(rules)
        out = ["--mesh", f"dp={a},tp={b}" + (",pp=2" if "@pp" in rule else "")]
    whole = rng.choice(["*norm*", "*bias*", "model*", "*"]) if rng.random() < 0.2 else ""
    replicated = fnmatch.filter(model, whole)
    out += ["--replicate", whole] if replicated else []
    out += (
        ["--placement", rule] if rule and any(name.endswith(".w2") and name not in replicated for name in model) else []
    )
    if rng.random() < 0.1:
        out += ["--dcp", rng.choice(["never", "always"])]
    return out + ["--threads", str(rng.randrange(1, 4))]


def random_export(rng):
    """(is one file, options)"""
    if rng.random() < 0.5:
        return True, []
    return False, rng.choice([[], ["--max-shard-size", "100KB"], ["--max-shard-size", "1KB"]])


def write_file(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        head[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values()))


def read_file(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack_from("<Q", raw)[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    out = {}
    for name, e in head.items():
        a, b = e["data_offsets"]
        out[name] = Tensor(e["dtype"], e["shape"], raw[8 + n + a:8 + n + b])
    return out


def write_model(rng, path, model):
    """One file, or a Hugging Face folder with an index and a config.json; returns the path of what was written."""
    if not model or rng.random() < 0.5:
        write_file(path + ".safetensors", model)
        return path + ".safetensors"
    os.mkdir(path)
    nfiles = rng.randrange(1, 4)
    parts = [{} for _ in range(nfiles)]
    for name, t in model.items():
        rng.choice(parts)[name] = t
    parts = [p for p in parts if p]
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        write_file(os.path.join(path, file), part)
        weight_map.update({name: file for name in part})
    doc = {"metadata": {"total_size": sum(len(t.data) for t in model.values())}, "weight_map": weight_map}
    for name, value in (
        ("model.safetensors.index.json", doc),
        ("config.json", {"model_type": "odd", "seed": rng.random()}),
    ):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    return path


def read_model(path):
    """{name: Tensor} of one file, or of all that a folder's index names."""
    if not os.path.isdir(path):
        return read_file(path)
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_file(os.path.join(path, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        weight_map = json.load(f)["weight_map"]
    out = {}
    for file in sorted(set(weight_map.values())):
        part = read_file(os.path.join(path, file))
        wrong = [n for n in part if weight_map.get(n) != file]
        if wrong or out.keys() & part.keys():
            raise ValueError(f"{file}: {wrong} are not where the index says")
        out.update(part)
    if out.keys() != weight_map.keys():
        raise ValueError("the index names tensors that no file has")
    return out
