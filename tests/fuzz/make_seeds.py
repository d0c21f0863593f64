# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the fuzz targets: make_seeds.py FSDPCK FOLDER writes FOLDER/TARGET/seed-N, from the fixtures and
the output of the fsdpck binary. Copied to fuzz-work/TARGET/corpus of a build, they are merged into the corpora by
`./test fuzz 0 --keep`. Standard library only.

The seeds of `index` and `table` belong to the checkpoint in beside/fsdpck, by its save id. Where that is missing it is
made, and the corpora of the two must then be made anew."""
import io
import json
import pathlib
import pickle
import random
import re
import struct
import subprocess
import sys
import zipfile

here = pathlib.Path(__file__).resolve().parent
dcp = here.parent.parent / "fixtures" / "dcp"
# of several versions of PyTorch and of Python, which pickle differently
metadatas = sorted(dcp.glob("*/ckpt/.metadata"))
pt = here.parent.parent / "fixtures" / "pt"
beside = here / "beside" / "fsdpck"


class Args(tuple):
    """What any callable in a pickle gives: its arguments."""

    def __new__(cls, *args, **_):
        return super().__new__(cls, args)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        return Args

    def persistent_load(self, pid):
        return pid


def items(distcp):
    """The zips in a .distcp file."""
    for m in re.finditer(rb"PK\x03\x04(?:(?!PK\x05\x06).)*PK\x05\x06.{18}", distcp, re.S):
        yield m.group()


def pickle_of(item):
    with zipfile.ZipFile(io.BytesIO(item)) as z:
        return z.read(next(n for n in z.namelist() if n.endswith("data.pkl")))


def item_seed(item):
    """dtype, number of dimensions and sizes, as fuzz_item.c wants them, before the zip."""
    value = Unpickler(io.BytesIO(pickle_of(item))).load()
    shape = value[2] if isinstance(value, tuple) and len(value) > 2 else ()
    dtype = 3 if b"BFloat16" in item else 1
    return bytes([dtype, len(shape), *shape]) + item


def packed_seed(seed):
    """The same with the zip in a zstd frame of raw blocks, which what follows may change."""
    at = seed.index(b"PK\3\4")
    blocks = [seed[i:i + 400] for i in range(at, len(seed), 400)]
    return seed[:at] + b"\x28\xb5\x2f\xfd\0\0" + b"".join(
        ((i == len(blocks) - 1) | len(b) << 3).to_bytes(3, "little") + b for i, b in enumerate(blocks))


def safetensors(header, payload=b""):
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text)) + text.encode() + payload


def safetensors_seeds():
    yield safetensors({})
    yield safetensors("{ }  ")
    yield safetensors(
        {
            "__metadata__": {"format": "pt"},
            "a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
            "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
        },
        bytes(16),
    )
    yield safetensors(
        {
            "b": {"dtype": "I64", "shape": [1], "data_offsets": [4, 12]},
            "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "none": {"dtype": "F16", "shape": [0, 7], "data_offsets": [12, 12]},
        },
        bytes(12),
    )
    for dtype, n in (
        ("F64", 8),
        ("F16", 2),
        ("I32", 4),
        ("I16", 2),
        ("I8", 1),
        ("U64", 8),
        ("U32", 4),
        ("U16", 2),
        ("BOOL", 1),
        ("C64", 8),
        ("F8_E4M3", 1),
        ("F8_E5M2", 1),
        ("F8_E8M0", 1),
        ("F4", 1),
        ("F6_E2M3", 1),
    ):
        yield safetensors(
            {"t\u00e9\n": {"dtype": dtype, "shape": [2], "data_offsets": [0, n if dtype == "F4" else 2 * n]}},
            bytes(2 * n if dtype != "F4" else n),
        )
    yield safetensors({"t": {"dtype": "U8", "shape": [1 << 62, 4], "data_offsets": [0, 0], "more": [1, {"x": None}]}})
    yield b"PK\3\4 zip"
    yield b"GGUF....."
    yield b"<!DOCTYPE html>"
    yield b"version https://git-lfs.github.com/spec/v1\n"


def hf_seeds():
    one, two = "model-1.safetensors", "model-2.safetensors"
    whole = {"model.embed_tokens.weight": one, "a": two, "b": two}
    yield json.dumps({"metadata": {"total_size": 19}, "weight_map": whole})
    yield json.dumps({"weight_map": whole})
    yield json.dumps({"weight_map": {"a": two, "b": two}})
    yield json.dumps({"weight_map": dict(whole, a=one)})
    yield json.dumps({"weight_map": dict(whole, c=two)})
    yield json.dumps({"weight_map": dict(whole, c="../x.safetensors")})
    yield json.dumps({"weight_map": dict(whole, c="model-3.safetensors")})
    yield json.dumps({"metadata": {}, "more": [], "weight_map": {}})
    yield '{"weight_map":{"a":"model-2.safetensors","a":"model-2.safetensors"}}'


def index_seeds():
    text = (beside / "index.json").read_text()
    body = text[:-43]
    yield body
    yield body.replace('"mesh":0,"placements":["shard(0)"]', '"chunks":[[0,[0,0],[4,5]],[1,[4,0],[4,5]]]', 1)
    yield body.replace('"sizes":[2]', '"sizes":[2],"ranks":[0,1]')
    yield body.replace('"sizes":[2]', '"sizes":[2],"ranks":[1,0]')
    yield body.replace('"dims":["shard"],"sizes":[2]',
                       '"dims":["replicate","shard"],"sizes":[1,2]').replace('["shard(0)"]', '["replicate","shard(0)"]')
    yield body.replace('["shard(0)"]', '["strided_shard(0,2)"]')
    yield body.replace('["shard(0)"]', '["shard(1)"]')
    yield body.replace('"requires":[]', '"requires":["future"]')
    yield body.replace('"version":1', '"version":2')
    yield body.replace(
        '"assets":[]', '"assets_folder":"more","assets":[{"path":"a/b.json","bytes":3,"hash":"' + "0" * 32 +
        '"}],"state":{"step":[1,2.5,null]}')
    base = (
        '"base":{"path":"../x","tensors":{"w":{"dtype":"bfloat16","shape":[2,3],"content":"'
        + "0" * 32
        + '"}}},"metadata":'
    )
    yield body.replace('"metadata":', base)
    yield body.replace('"metadata":', base.replace("../x", "."))
    yield body.replace('"meshes":[', '"meshes":[{"dims":["dp","tp"],"sizes":[1,2]},')


def pickle_seeds():
    yield from (p.read_bytes() for p in metadatas)
    for path in sorted(beside.glob("*.distcp")):
        yield from map(pickle_of, items(path.read_bytes()))
    shared = ["x"]
    value = [
        None, True, False, 0, 255, 65535, -1, 1 << 31, -(1 << 62), 1 << 80, 1.5, "text", "t\u00e9" * 150, b"bytes", (),
        (1, ), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [[]], {}, {"a": shared, "b": shared}, {1, 2},
        pathlib.PurePosixPath("a/b"),
        bytearray(b"x")
    ]
    for protocol in 2, 3, 4, 5:
        yield pickle.dumps(value, protocol)
        for v in value:
            try:
                yield pickle.dumps(v, protocol)
            except (TypeError, pickle.PicklingError):
                pass


def zip_seeds():
    for path in sorted(beside.glob("*.distcp")):
        yield from items(path.read_bytes())
    yield from items((dcp / "torch-2.15" / "ckpt" / "__1_0.distcp").read_bytes())
    for method in zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED:
        for names in [], ["a/data.pkl"], ["a/data.pkl", "a/data/0", "b"]:
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w", method) as z:
                for n in names:
                    z.writestr(n, n * 5)
                if len(names) == 3:
                    with z.open("a/large", "w", force_zip64=True) as f:
                        f.write(b"large")
            yield out.getvalue()


def tiny_tokenizer(**parts):
    """A dozen tokens; the rest of the pipeline as given."""
    words = [
        "<unk>",
        "a",
        "b",
        "\u0120",
        "\u2581",
        "ab",
        "\u0120a",
        "\u2581a",
        "<0x41>",
        "<0xC3>",
        "<0xA9>",
        "c",
        "abc",
        "\u2581ab",
    ]
    model = {
        "type": "BPE",
        "vocab": {w: i for i, w in enumerate(words)},
        "merges": [["a", "b"], "\u0120 a", ["\u2581", "a"], ["ab", "c"], ["\u2581a", "b"]],
    }
    model.update(parts.pop("model", {}))
    text = parts.pop("text", " ab\u00e9 A\n abc<s>  12'll")
    added = [{"id": 14, "content": "<s>", "special": True, "normalized": False},
             {"id": 15, "content": "c", "lstrip": True, "rstrip": True, "single_word": True, "normalized": True}]
    added[1]["content"] = "hi"
    return json.dumps(dict({"added_tokens": added, "model": model}, **parts)).encode() + b"\xff" + text.encode()


def tokenizer_seeds():
    byte_level, regex = {"type": "ByteLevel",
                         "add_prefix_space": True}, "(?i:'s|'ll)|\\p{L}+| ?[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+"
    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    template = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"<s>": {"ids": [14]}}
    }
    spm = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    yield tiny_tokenizer()
    yield tiny_tokenizer(pre_tokenizer=byte_level, decoder={"type": "ByteLevel"}, post_processor={"type": "ByteLevel"})
    for pattern in regex, llama3:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        yield tiny_tokenizer(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [split, dict(byte_level, use_regex=False)]},
            model={"ignore_merges": True},
            normalizer={"type": "NFC"},
            post_processor={"type": "Sequence", "processors": [template]},
            text="e\u0301 \u0344ab 1234\r\n\n x",
        )
    yield tiny_tokenizer(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    )
    yield tiny_tokenizer(
        model=spm,
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    )
    for scheme in "first", "always", "never":
        yield tiny_tokenizer(
            model=spm, pre_tokenizer={
                "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": scheme != "first"
            }, post_processor=template,
            decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme})


def template_seeds():
    sys.path.insert(0, str(here.parent / "interop"))
    source = (here.parent / "interop" / "check_template.py").read_text()
    lists = {}
    exec(source[source.index("\nCONVERSATIONS"):source.index("\nATOMS")], lists)  # the file itself imports transformers
    for i, template in enumerate(lists["TEMPLATES"]):
        yield template.encode() + b"\xff" + json.dumps(
            {"messages": lists["CONVERSATIONS"][i % 5], "tools": None, "x": [1, {"a": 2.5}]}).encode()


def chat_line_seeds():
    for i, line in enumerate(
        [
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "yes"},
                    {"role": "user", "content": "so"},
                    {"role": "assistant", "content": ""},
                ]
            },
            {"prompt": "two ", "completion": "three"},
            {"text": "plain <|im_end|> \u00e9"},
            {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
            {"messages": [{"role": "assistant", "content": "first"}]},
            {"messages": []},
            {"text": 5},
            {"input_ids": [2000], "labels": [1]},
            {},
        ]
    ):
        yield bytes([i]) + json.dumps(line).encode()


def import_seeds():
    """The fixtures, and what is refused, of tests/train/imports_cases.py."""
    for path in sorted((here.parent.parent / "fixtures" / "trainers").iterdir()):
        yield path.read_bytes()
    sys.path.insert(0, str(here.parent / "train"))
    for text, _ in __import__("imports_cases").REFUSED:
        if len(text) < 1 << 12:
            yield text if isinstance(text, bytes) else text.encode()


def without_crcs(zip):
    """The same with every CRC-32 zero, which means none: so that a fuzzer may change the pickle."""
    out = bytearray(zip)
    for mark, at in (b"PK\x01\x02", 16), (b"PK\x03\x04", 14), (b"PK\x07\x08", 4):
        for m in re.finditer(re.escape(mark), zip):
            out[m.start() + at:m.start() + at + 4] = bytes(4)
    return bytes(out)


def pt_seeds():
    """How many ranks (0: a file that stands for itself) before the file."""
    for path in sorted(pt.glob("*/*")):
        if path.suffix in (".pt", ".bin") and path.stat().st_size < 8192:
            ranks = re.search(r"world_size_(\d+)_rank_(\d+)", path.name)
            if not ranks or ranks[2] == "0":
                yield bytes([int(ranks[1]) if ranks else 0]) + without_crcs(path.read_bytes())


def deepspeed_seeds():
    """Which file of which checkpoint (fuzz_deepspeed.c), then the file."""
    for n, (stage, states) in enumerate((("zero1", "mp_rank_00"), ("zero3", "zero_pp_rank_0_mp_rank_00"))):
        at = here.parent.parent / "fixtures" / "deepspeed" / stage / "global_step2"
        for k, name in enumerate((f"{states}_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")):
            yield bytes([3 * n + k]) + without_crcs((at / name).read_bytes())
    at = here.parent.parent / "fixtures" / "deepspeed" / "universal-tp" / "global_step1_universal"
    for k, name in enumerate(("mp_rank_00_model_states.pt", "zero/row.weight/fp32.pt", "zero/column.bias/step.pt")):
        yield bytes([6 + k]) + without_crcs((at / name).read_bytes())


def block_seeds():
    """Type and decoded size, then a stored block: planes as they are, of one value, and in a frame of one raw zstd
    block."""
    frame = (
        lambda data: b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + (len(data) << 3 | 1).to_bytes(3, "little") + data
    )
    for dtype, unit in ((3, 2), (1, 4), (0, 8), (11, 1), (14, 4), (5, 4)):
        n = 200
        high, head = frame(bytes(range(16)) * 12 + bytes(8)), bytes([dtype]) + (n * unit - 1).to_bytes(2, "big")
        yield head + b"\1\0" * unit + bytes(range(unit))
        yield head + n.to_bytes(2, "little") + b"\1\0" * (unit - 1) + bytes(range(n)) + bytes(unit - 1)
        yield head + len(high).to_bytes(2, "little") + b"\1\0" * (unit - 1) + high + bytes(unit - 1)
        yield head + bytes(n * unit)
        yield head + bytes(0x3c + i % 5 // 4 if i % unit == unit - 1 else i * 151 & 255 for i in range(n * unit - 1))


def json_seeds():
    yield from ("null", "true", "false", "0", "-0", "18446744073709551615", "18446744073709551616", "-1.5e+10", "1E5",
                "01", "1.", ".5", "[]", "{}", " [ 1 , 2 ]\n", '{"a":{"b":[{}]},"a":1}', '"\\u0041\\ud83d\\ude00\\n\\/"',
                '"\\ud83d"', '"\\u0000"', '"\u00e9\U0001f600"', "[" * 64 + "]" * 64, "[" * 65 + "]" * 65, "[1,]",
                '{"a":1,}', "nul", '"\t"', "1 2", "1e999", "//x\n1", "[1,2.0,-3,1e2,\"x\",null,true]")


def config_seeds():
    config = json.loads((here.parent.parent / "fixtures" / "tiny-llama-tied" / "config.json").read_text())
    yield json.dumps(config, indent=2)
    yield json.dumps(config)
    config.pop("torch_dtype", None)
    config.pop("dtype", None)
    yield json.dumps(config)
    yield from ("{}", " { } ", '{"dtype":"float32"}', '{"torch_dtype": null, "dtype":"float16","x":1e-05}',
                '{"text_config":{"dtype":"float32","tie_word_embeddings":true},"a":1}',
                '{"quantization_config":{"dtype":"int8"},"vision_config":[],"text_config":{"torch_dtype":3}}',
                '{"tie_word_embeddings":true}', "[]",
                '{"tie_word_embeddings":null,"text_config":{"tie_word_embeddings":true}}', '{"dt\\u0079pe":"x"}')


def train_config_seeds():
    """Each key of docs/config.md alone, with its default and with values of its type; then configs with --set, and ones
    that are wrong."""
    needs = {"model": "m", "data": {"train": "t.jsonl"}}

    def config(key, value):
        section, _, name = key.rpartition(".")
        top = json.loads(json.dumps(needs))
        (top.setdefault(section, {}) if section else top)[name] = value
        return "\0" + json.dumps(top)

    yield "\0" + json.dumps(needs)
    everything = json.loads(json.dumps(needs))
    page = (here.parent.parent / "docs" / "config.md").read_text()
    for key, default, values in re.findall(r"^\| `([a-z_0-9.]+)` \| (.*?) \| (.*?) \|", page, re.M):
        usual = [json.loads(default.strip("`"))] if default.startswith("`") else []
        ends = [json.loads(n) for n in re.findall(r"(?:from|to) ([0-9.e+-]+)", values)]
        words = [w for w in re.findall(r"`([^`]+)`", values) if w != "null"]
        for value in usual + ends + words + [None, "x", ["q_proj", "a/b"], {"q_proj": 4}, -1]:
            yield config(key, value)
        section, _, name = key.rpartition(".")
        if usual and usual[0] is not None:
            (everything.setdefault(section, {}) if section else everything).setdefault(name, usual[0])
    yield "\0" + json.dumps(everything, indent=1)
    data = {"train": ["a", {"path": "b", "weight": 0.5}], "eval": "e", "columns": {"prompt": "q", "completion": "a"}}
    sample = {"every": 5, "prompts": ["x", [{"role": "user", "content": "y"}], {"input_ids": [1]}]}
    yield "\0" + json.dumps({"model": "m", "data": data, "sample": sample, "//": "a comment"})
    yield "\2train.max_steps=3\nlora.r=8\n" + json.dumps(needs)
    yield "\3data={}\ndata.train=x\nmodel=a=b\n" + json.dumps(needs)
    yield "\2train.max_steps=3\ntrain=4\n" + json.dumps(needs)
    yield from ("", "\0[]", '\0{"modle": "m"}', '\0{"model": "m", "train": 3}', '\0{"model": "m", "model": "n"}')
    yield from ("\1=\n{}", "\1a.b.c.d=1\n{}")


def glob_seeds():
    name = "model.layers.0.mlp.up_proj.weight"
    for glob in (
        "*",
        "*.weight",
        "model.*",
        "*.layers.[0-9].*",
        "*[!a-f]*",
        "?odel*",
        "*\\.up*",
        "[",
        "[]a]*",
        "[^]m]*",
        "*a*b*c*",
        "",
        name,
        "**",
        "model.\\",
        "[a\\-z]*",
        "[m-",
        "*.w?ight",
    ):
        yield f"{glob}\n{name}"
    yield "\u00e9?[\u00e0-\u00ff]*\n\u00e9\u00e8\u00ea\u00eb"
    yield "*?\n\U0001f600"


def names_seeds():
    """Models of one layer: config.json, a newline, a safetensors file."""
    rng = random.Random(3)
    sizes = {"num_hidden_layers": 1, "hidden_size": 4, "moe_intermediate_size": 3, "intermediate_size": 3,
             "num_experts": 3, "num_attention_heads": 2, "num_key_value_heads": 1}
    block = "model.layers.0."
    experts = [(block + f"mlp.experts.{e}.{p}_proj.weight", [4, 3] if p == "down" else [3, 4])
               for e in range(3) for p in ("gate", "up", "down")]
    attention = [(block + f"self_attn.{p}_proj.weight", [4, 4] if p in "qo" else [2, 4]) for p in "qkvo"]
    within = block + "mlp.experts."
    turned = [(within + "gate_up_proj", [3, 4, 6]), (within + "down_proj", [3, 3, 4])]
    biases = [(within + "gate_up_proj_bias", [3, 6]), (within + "down_proj_bias", [3, 4])]
    llama4 = [(n.replace("mlp", "feed_forward"), shape) for n, shape in turned]
    gated = [(n, [8, 4] if ".q_" in n else shape) for n, shape in attention]
    linear = [(block + f"linear_attn.{p}.weight", shape) for p, shape in
              (("in_proj_qkv", [6, 4]), ("in_proj_z", [4, 4]), ("in_proj_b", [2, 4]), ("in_proj_a", [2, 4]),
               ("out_proj", [4, 4]))]
    vllm = [(block + "self_attn.qkv_proj.weight", [8, 4]), (block + "self_attn.o_proj.weight", [4, 4]),
            (within + "routed_experts.w13_weight", [3, 6, 4]), (within + "w2_weight", [3, 4, 3])]
    inner = "layers.0.moe.routed_experts.inner_experts."
    titan = [(inner + "w1_EFD", [3, 3, 4]), (inner + "w3_EFD", [3, 3, 4]), (inner + "w2_EDF", [3, 4, 3]),
             ("layers.0.attention.qkv_linear.wq.weight", [4, 4]), ("tok_embeddings.weight", [2, 4])]
    fp8 = [(n + s, shape if not s else [1, 1]) for n, shape in experts for s in ("", "_scale_inv")]
    latent = [(block + f"self_attn.{p}.weight", shape) for p, shape in
              (("q_a_proj", [3, 4]), ("kv_a_proj_with_mqa", [2, 4]), ("q_a_layernorm", [3]))]
    ranks = [("model.embed_tokens.weight", [32, 4]), ("lm_head.weight", [32, 4]), ("model.norm.weight", [4]),
             (block + "self_attn.qkv_proj.weight", [6, 4]), (block + "self_attn.o_proj.weight", [4, 2]),
             (within + "routed_experts.w13_weight", [3, 4, 4]), (within + "routed_experts.w2_weight", [3, 4, 2])]
    for family, tensors in (
        ("qwen3_moe", attention + experts), ("qwen3_moe", vllm), ("qwen3_moe", titan), ("qwen3_moe", fp8),
        ("mixtral", [(n.replace("mlp", "block_sparse_moe").replace("gate_proj", "w1").replace("up_proj", "w3")
                      .replace("down_proj", "w2"), shape) for n, shape in experts]),
        ("deepseek_v3", latent + experts), ("gpt_oss", attention + turned + biases),
        ("llama4_text", attention + llama4),
        ("qwen3_5_moe_text", gated + linear + experts), ("llama", attention),
        ("qwen3_moe", ranks),
    ):
        header, payload = {}, b""
        for name, shape in tensors:
            kind = "F32" if name.endswith("_inv") else "F8_E4M3" if tensors is fp8 else "BF16"
            n = {"F32": 4, "F8_E4M3": 1, "BF16": 2}[kind]
            for k in shape:
                n *= k
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(payload), len(payload) + n]}
            payload += bytes(rng.randrange(256) & 0x77 for _ in range(n))
        config = {"model_type": family, **sizes}
        if tensors is fp8:
            config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [3, 4]}
        if tensors is ranks:
            config.update(moe_intermediate_size=4, vocab_size=64)
        yield json.dumps(config).encode() + b"\n" + safetensors(header, payload)


def quant_seeds():
    """A small model of each form: config.json, a newline, a safetensors file."""
    rng = random.Random(2)

    def model(config, *tensors):
        header, payload = {}, b""
        for name, dtype, shape, data in tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
            payload += data
        return (
            json.dumps({"quantization_config": config} if config else {}).encode()
            + b"\n"
            + safetensors(header, payload)
        )

    def codes(n):
        return bytes(rng.randrange(256) & 0x77 for _ in range(n))

    def words(*values, kind="f"):
        return struct.pack("<%d%s" % (len(values), kind), *values)

    w, nf4 = (
        "l.weight",
        json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [3, 30]}).encode(),
    )
    nested = json.dumps(
        {
            "quant_type": "nf4",
            "blocksize": 64,
            "dtype": "float16",
            "shape": [3, 30],
            "nested_blocksize": 256,
            "nested_offset": 0.5,
        }
    ).encode()
    ct = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 8, "block_structure": [2, 4]}}},
    }
    yield model(
        {"quant_method": "fp8", "weight_block_size": [4, 4]},
        (w, "F8_E4M3", [6, 5], codes(30)),
        (w + "_scale_inv", "F32", [2, 2], words(1, 2, 3, 4)),
    )
    yield model(
        None,
        (w, "F8_E4M3", [6, 5], codes(30)),
        (w + "_scale", "F32", [], words(0.5)),
        ("l.input_scale", "F32", [], words(1)),
    )
    yield model(ct, (w, "F8_E4M3", [3, 5], codes(15)), (w + "_scale", "BF16", [2, 2], codes(8)))
    yield model(None, (w, "F8_E4M3", [2, 32], codes(64)), (w + "_scale", "U8", [2, 1], b"\x80\x7e"))
    yield model(
        {"quant_method": "mxfp4"},
        ("x_blocks", "U8", [2, 3, 1, 16], codes(96)),
        ("x_scales", "U8", [2, 3, 1], b"zzzyyy"),
    )
    yield model(
        None,
        (w + "_packed", "U8", [2, 16], codes(32)),
        (w + "_scale", "F8_E4M3", [2, 2], b"0123"),
        (w + "_global_scale", "F32", [1], words(9)),
    )
    yield model(
        None,
        (w, "U8", [2, 16], codes(32)),
        (w + "_scale", "F8_E4M3", [2, 2], b"0123"),
        (w + "_scale_2", "F32", [], words(0.1)),
    )
    yield model(
        None,
        (w, "U8", [45, 1], codes(45)),
        (w + ".absmax", "F32", [2], words(1, 2)),
        (w + ".quant_map", "F32", [16], words(*range(16))),
        (w + ".quant_state.bitsandbytes__nf4", "U8", [len(nf4)], nf4),
    )
    yield model(
        None,
        (w, "U8", [45, 1], codes(45)),
        (w + ".absmax", "U8", [2], b"ab"),
        (w + ".quant_map", "F32", [16], words(*range(16))),
        (w + ".nested_absmax", "F32", [1], words(2)),
        (w + ".nested_quant_map", "F32", [256], words(*range(256))),
        (w + ".quant_state.bitsandbytes__nf4", "U8", [len(nested)], nested),
    )
    yield model(
        None, (w, "I8", [3, 4], codes(12)), ("l.SCB", "F32", [3], words(1, 2, 3)), ("l.weight_format", "U8", [], b"\0")
    )
    yield model(
        {"quant_method": "gptq", "bits": 4},
        ("l.qweight", "I32", [2, 8], codes(64)),
        ("l.qzeros", "I32", [2, 1], codes(8)),
        ("l.scales", "F16", [2, 8], codes(32)),
        ("l.g_idx", "I32", [16], words(*[0, 1] * 8, kind="i")),
    )
    yield model(
        {"quant_method": "awq"},
        ("l.qweight", "I32", [4, 1], codes(16)),
        ("l.qzeros", "I32", [2, 1], codes(8)),
        ("l.scales", "F16", [2, 8], codes(32)),
    )
    yield model(
        ct,
        (w + "_packed", "I32", [3, 2], codes(24)),
        (w + "_scale", "BF16", [3, 2], codes(12)),
        (w + "_shape", "I64", [2], words(3, 15, kind="q")),
        (w + "_zero_point", "I32", [1, 2], codes(8)),
    )


def planner_seeds():
    rng = random.Random(1)
    for _ in range(400):
        yield bytes(rng.randrange(256) for _ in range(rng.randrange(4, 120)))


def seeds():
    yield "safetensors", safetensors_seeds()
    yield "hf", hf_seeds()
    yield "index", index_seeds()
    yield "table", (p.read_bytes() for p in sorted(beside.glob("*.distcp")))
    yield "metadata", (p.read_bytes() for p in metadatas)
    zips = [
        item_seed(i)
        for p in sorted((dcp / "torch-2.15" / "ckpt").glob("*.distcp")) + sorted(beside.glob("*.distcp"))
        for i in items(p.read_bytes())
    ]
    yield "item", zips + list(map(packed_seed, zips))
    yield "pickle", pickle_seeds()
    yield "zip", zip_seeds()
    yield "tokenizer", tokenizer_seeds()
    yield "template", template_seeds()
    yield "chat_line", chat_line_seeds()
    yield "import", import_seeds()
    yield "block", block_seeds()
    yield "pt", pt_seeds()
    yield "deepspeed", deepspeed_seeds()
    yield "json", json_seeds()
    yield "config", config_seeds()
    yield "train_config", train_config_seeds()
    yield "glob", glob_seeds()
    yield "values", (
        "4096",
        "64KiB",
        "5GB",
        "1.5GiB",
        "0.25tb",
        "1e3",
        "a,b",
        "x(1,2),[3,4],\\,",
        "bf16",
        "18446744073709551615",
        "999999999999999999",
        "A=B,C=D",
        "max-shard-sise",
        "",
    )
    yield "slice", (
        bytes([2, 8, 5]) + t.encode()
        for t in (
            "0:8,:",
            "-1",
            "3,:",
            "-4:,1:3",
            ":,:,:",
            "8",
            "x",
            "1:0",
            "-99:99",
            "9223372036854775807:",
            "99999999999999999999",
        )
    )
    yield "placement", (
        "shard=4",
        "replicate=2,shard=4\n*norm*=replicate@shard",
        "dp=4,tp=2\n*.up.weight=shard(1)@tp,strided_shard(0,2)@dp\n*=shard(0)@dp",
        "x=65536",
        "x=65537",
        "a=1,a=2",
        "x=2\n*=shard(63)",
        "a=2,b=2\n[a=b]*=shard(0)@a",
        "=1",
        "x=0",
    )
    yield "quant", quant_seeds()
    yield "names", names_seeds()
    for target in "boxes", "read", "transfer":
        yield target, planner_seeds()


def make_beside(fsdpck):
    beside.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([
        fsdpck, "convert", dcp / "torch-2.15" / "ckpt", beside, "--ranks", "2", "--include", "model*,*step*",
        "--replicate", "*norm*", "--alias", "lm_head.weight=model.embed.weight", "-q"
    ], check=True, stdout=subprocess.DEVNULL)


def main():
    fsdpck, out = sys.argv[1], pathlib.Path(sys.argv[2])
    if not beside.exists():
        make_beside(fsdpck)
    for target, values in seeds():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        for n, value in enumerate(values):
            (folder / f"seed-{n:03}").write_bytes(value.encode() if isinstance(value, str) else value)


if __name__ == "__main__":
    main()
