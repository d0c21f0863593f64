#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pipeline that makes pictures: sampled, the same picture for any number of threads; trained, the same adapter for
any number of ranks; its cache; and what is refused, and how.

usage: pictures.py FSDPTRAIN GOLDENS [--fsdpck FSDPCK] [--quick] [--device cuda]

--device: what a device with its own memory adds, on one that computes as the processor does.

GOLDENS/flux2/adapter is one for the pipeline in fixtures/tiny-flux2; test_flux2.c holds its numbers against diffusers'.
Prints a line for each check and "N passed, N failed"."""
import argparse, json, os, pathlib, resource, shutil, subprocess, sys, tempfile, traceback, zlib

import numpy as np

from harness import Skip
from ranks_harness import MPI_ENV, MPIRUN, need_mpi

args = None
MODEL, FLUX2 = pathlib.Path(os.environ["FSDPCK_FIXTURES"]) / "tiny-flux2", None
PROMPT = "a red fox asleep in deep snow, photo"


class Different(Exception):
    pass


def need(good, *found):
    if not good:
        raise Different(*found)


def sample(pipeline, *options, code=0):
    done = subprocess.run([args.fsdptrain, "sample", pipeline, *map(str, options)],
                          stdin=subprocess.DEVNULL,
                          capture_output=True,
                          text=True,
                          timeout=300)
    need(done.returncode == code, done.returncode, done.stdout, done.stderr)
    return done


def pixels_of(path):
    """A PNG of RGB without interlace, as (height, width, 3)."""
    data = path.read_bytes()
    need(data[:8] == b"\x89PNG\r\n\x1a\n", data[:8])
    at, packed, width, height = 8, b"", 0, 0
    while at < len(data):
        nbytes, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + nbytes]
        need(zlib.crc32(kind + body) == int.from_bytes(data[at + 8 + nbytes:at + 12 + nbytes], "big"), kind)
        if kind == b"IHDR":
            width, height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
            need(body[8:] == bytes([8, 2, 0, 0, 0]), body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + nbytes
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    out = np.zeros((height, 3 * width + 3), np.uint8)  # three columns before the first
    for y, row in enumerate(rows):
        above = out[y - 1] if y else np.zeros_like(out[0])
        for x in range(3 * width):
            a, b, c = int(out[y, x]), int(above[x + 3]), int(above[x])
            p = a + b - c
            near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            out[y, x + 3] = (int(row[x + 1]) + [0, a, b, (a + b) // 2, near][row[0]]) & 255
    return out[:, 3:].reshape(height, width, 3)


def write_png(path, pixels):
    """pixels: (height, width, 3) of 8 bits."""

    def chunk(kind, body):
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    height, width = pixels.shape[:2]
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) +
                     chunk(b"IEND", b""))


def same_for_any_threads(folder):
    for dtype in ("fp32", "bf16"):
        made = []
        for threads in (1, 2, 3, 5):
            out = folder / f"{dtype}-{threads}.png"
            sample(MODEL, "--prompt", PROMPT, "--out", out, "--size", "96x64", "--dtype", dtype, "--seed", 7,
                   "--threads", threads)
            made.append(out.read_bytes())
        need(len(set(made)) == 1, dtype)
        need(pixels_of(out).shape == (64, 96, 3) and pixels_of(out).std() > 1, dtype)


def near_in_bf16(folder):
    pictures = []
    for dtype in ("fp32", "bf16"):
        sample(MODEL, "--prompt", PROMPT, "--out", folder / "a.png", "--size", "64x64", "--dtype", dtype)
        pictures.append(pixels_of(folder / "a.png").astype(float))
    far = np.abs(pictures[0] - pictures[1]).mean()
    need(0 < far < 4, far)


def seeds_and_names(folder):
    options = ["--size", "32x32", "--dtype", "fp32"]
    done = sample(MODEL, "--prompt", PROMPT, "--prompt", "a boat", "--samples", 2, "--seed", 11, "--out",
                  folder / "a.b.png", "--json", *options)
    listed = json.loads(done.stdout)["pictures"]
    paths = [pathlib.Path(p["path"]) for p in listed]
    need([p.name for p in paths] == [f"a.b-{i}.png" for i in range(4)], paths)
    need([p["seed"] for p in listed] == [11, 12, 11, 12], listed)
    need([p["prompt"] for p in listed] == [PROMPT, PROMPT, "a boat", "a boat"], listed)
    need(len({p.read_bytes() for p in paths}) == 4)
    for i, seed in enumerate((11, 12)):
        done = sample(MODEL, "--prompt", PROMPT, "--seed", seed, "--out", folder / "one.png", *options)
        need(done.stdout == f"{folder}/one.png\n", done.stdout)
        need((folder / "one.png").read_bytes() == paths[i].read_bytes(), seed)
    need({p.name for p in folder.iterdir()} == {*(p.name for p in paths), "one.png"})
    command = [args.fsdptrain, "sample", MODEL, "--prompt", PROMPT, "--seed", "12", "--quiet", "--out", "-", *options]
    done = subprocess.run(command, capture_output=True)
    need(done.stdout == paths[1].read_bytes(), "standard output", done.stderr)
    for more in ("--json", "--samples=2"):
        done = subprocess.run([*command, more], capture_output=True)
        need(done.returncode == 2 and b"PNG" not in done.stdout, more, done.stderr)


def pipeline_with(folder, name, part, key, value):
    """A copy whose part's JSON file has another value for a key."""
    copy = folder / name
    shutil.copytree(MODEL, copy)
    path = copy / part
    config = json.loads(path.read_text())
    config[key] = value
    path.write_text(json.dumps(config))
    return copy


def guidance(folder):
    base = pipeline_with(folder, "base", "model_index.json", "is_distilled", False)
    options = ["--prompt", PROMPT, "--size", "32x32", "--steps", 3, "--dtype", "fp32"]
    made = {}
    for name, more in {
            "usual": [],
            "four": ["--guidance", 4],
            "none": ["--guidance", 1],
            "two": ["--guidance", 2],
            "negative": ["--negative-prompt", "snow"]
    }.items():
        sample(base, *options, *more, "--out", folder / "g.png")
        made[name] = (folder / "g.png").read_bytes()
    need(made["usual"] == made["four"] and len(set(made.values())) == 4, [len(v) for v in made.values()])
    sample(MODEL, *options, "--out", folder / "g.png")
    need((folder / "g.png").read_bytes() == made["none"])
    done = sample(MODEL, *options, "--guidance", 3, "--out", folder / "g.png")
    need("guidance and a negative prompt have no effect" in done.stderr, done.stderr)


def adapter(folder):
    made = []
    for options in ([], ["--adapter", FLUX2 / "adapter"]):
        sample(MODEL, "--prompt", PROMPT, "--size", "32x32", "--dtype", "fp32", *options, "--out", folder / "a.png")
        made.append((folder / "a.png").read_bytes())
    need(made[0] != made[1])


def refused(folder):
    out = ["--out", folder / "no.png", "--prompt", "x", "--size", "32x32"]
    for part, key, value, words in (
        ("model_index.json", "_class_name", "FluxPipeline", "FluxPipeline"),
        ("model_index.json", "text_encoder", ["transformers", "T5EncoderModel"], "T5EncoderModel"),
        ("scheduler/scheduler_config.json", "use_dynamic_shifting", False, "use_dynamic_shifting"),
        ("scheduler/scheduler_config.json", "use_karras_sigmas", True, "use_karras_sigmas"),
        ("scheduler/scheduler_config.json", "shift_terminal", 0.02, "shift_terminal"),
        ("scheduler/scheduler_config.json", "new_key", 1, "new_key"),
        ("transformer/config.json", "patch_size", 2, "patch_size"),
        ("transformer/config.json", "out_channels", 8, "out_channels"),
        ("transformer/config.json", "axes_dims_rope", [4, 4, 8], "axes_dims_rope"),
        ("transformer/config.json", "axes_dims_rope", [4, 4, 4, 6], "axes_dims_rope"),
        ("transformer/config.json", "joint_attention_dim", 71, "context_embedder"),
        ("transformer/config.json", "num_layers", 3, "transformer_blocks.2"),
        ("transformer/config.json", "in_channels", 12, "x_embedder"),
        ("transformer/config.json", "new_key", 1, "new_key"),
        ("vae/config.json", "act_fn", "relu", "act_fn"),
        ("vae/config.json", "norm_num_groups", 3, "block_out_channels"),
        ("vae/config.json", "patch_size", [1, 1], "patch_size"),
        ("vae/config.json", "new_key", True, "new_key"),
        ("vae/config.json", "layers_per_block", 3, "resnets.3"),
        ("text_encoder/config.json", "num_hidden_layers", 20, "20 layers"),
        ("text_encoder/config.json", "hidden_size", 32, "model.embed_tokens"),
        ("tokenizer/tokenizer_config.json", "pad_token", "<pad>", "<pad>"),
    ):
        bad = pipeline_with(folder, "bad", part, key, value)
        done = sample(bad, *out, code=3)
        need(words in done.stderr and done.stderr.startswith("fsdptrain: "), part, key, done.stderr)
        shutil.rmtree(bad)
    for options, words in ((["--size", "33x32"], "--size"), (["--size", "0x16"], "--size"), (["--size",
                                                                                              "32"], "--size"),
                           (["--temperature", 1], "--temperature"), (["--chat"], "--chat"), (["--steps",
                                                                                              2000], "1000 steps")):
        done = sample(MODEL,
                      *(o for o in out if options[0] != "--size" or o not in ("--size", "32x32")),
                      *options,
                      code=2)
        need(words in done.stderr, options, done.stderr)
    done = sample(MODEL, "--prompt", "x", "--out", folder / "none/a.png", code=3)
    need("none" in done.stderr, done.stderr)
    for options in ([], ["--out", folder / "a.jpg"]):
        need(".png" in sample(MODEL, "--prompt", "x", *options, code=2).stderr, options)
    need(not (folder / "no.png").exists())
    (folder / "no.png").write_text("something else")
    done = sample(MODEL, *out, code=2)
    need("this is no picture" in done.stderr and (folder / "no.png").read_text() == "something else", done.stderr)


# ---- training


def config_of(folder, **sections):
    """A run of six steps on the pictures in fixtures/."""
    config = {
        "model": str(MODEL),
        "output_dir": str(folder / "run"),
        "seed": 5,
        "data": {
            "train": str(MODEL.parent / "pictures")
        },
        "image": {
            "resolution": 64,
            "max_sequence_length": 32,
            "trigger_word": "sks",
            "caption_dropout_rate": 0.3
        },
        "lora": {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": ["to_q", "to_k", "add_v_proj", "to_out.0", "linear_in", "to_qkv_mlp_proj"]
        },
        "train": {
            "max_steps": 6,
            "global_batch_size": 3,
            "learning_rate": 0.01
        },
        "dtype": {
            "param": "fp32"
        }
    }
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values} if isinstance(values, dict) else values
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def train(config, *options, code=0):
    done = subprocess.run([args.fsdptrain, "run", config, *map(str, options)],
                          capture_output=True,
                          text=True,
                          timeout=300)
    need(done.returncode == code, done.returncode, done.stderr[-800:])
    return done


def adapter_of(folder):
    return folder / "run/adapter/adapter_model.safetensors"


def result(folder):
    """The adapter's bytes, and the losses."""
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return adapter_of(folder).read_bytes(), [json.loads(x)["loss"] for x in lines]


def started_anew(folder, *options, keep_cache=True, **sections):
    run = folder / "run"
    for path in run.iterdir() if run.exists() else ():
        if path.name != "cache" or not keep_cache:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    train(config_of(folder, **sections), *options)
    return result(folder)


def cached(folder):
    return {f.name: f.read_bytes() for f in (folder / "run/cache").iterdir()}


def same_for_any_ranks(folder):
    for dtype in ("fp32", "bf16"):
        want = started_anew(folder, keep_cache=False, dtype={"param": dtype})
        entries = cached(folder)
        need(len(set(want[1])) == 6 and all(0 < x < 20 for x in want[1]), want[1])
        for options, fsdp in ((["--ranks", 2], {}), (["--ranks", 3, "--gather",
                                                      "copy"], {}), (["--ranks",
                                                                      5], {}), (["--ranks", 2, "--gather", "copy"], {
                                                                          "activation_checkpointing": "block"
                                                                      }), (["--ranks", 4, "--gather", "copy"], {
                                                                          "dp_shard_size": 2
                                                                      }), (["--ranks", 1, "--threads", 3], {
                                                                          "activation_checkpointing": "block"
                                                                      })):
            need(started_anew(folder, *options, dtype={"param": dtype}, fsdp=fsdp) == want, dtype, options, fsdp)
        for options in (["--ranks", 2], ["--ranks", 3, "--gather", "copy"]):
            need(started_anew(folder, *options, keep_cache=False, dtype={"param": dtype}) == want, dtype, options)
            need(cached(folder) == entries, "encoded by several ranks", dtype, options)


def every_linear(folder):
    """Adapters on all linear layers, those that all blocks depend on too; and on these alone."""
    ends = ["linear_1", "single_stream_modulation.linear", "norm_out.linear", "context_embedder"]
    for dtype, targets, dora in (("fp32", "all-linear", True), ("bf16", "all-linear", False),
                                 ("bf16", ["to_v", "linear_out", "to_qkv_mlp_proj"], True), ("fp32", ends, False)):
        some = {"dtype": {"param": dtype}, "lora": {"target_modules": targets, "use_dora": dora}}
        want = started_anew(folder, **some)
        for options, fsdp in ((["--ranks", 2, "--gather", "copy"], {}), (["--ranks", 3], {
                "activation_checkpointing": "block"
        }), (["--ranks", 5], {})):
            need(started_anew(folder, *options, fsdp=fsdp, **some) == want, dtype, targets, options)
    names = {name.removeprefix("base_model.model.").rsplit(".lora_")[0]: 0 for name in tensors(adapter_of(folder))}
    need(len(names) == 4 and all(any(n.endswith(e) for e in ends) for n in names), names)
    started_anew(folder, lora={"target_modules": "all-linear"})
    trained = tensors(adapter_of(folder))
    config = json.loads((folder / "run/adapter/adapter_config.json").read_text())
    modules = {name.removeprefix("base_model.model.").rsplit(".lora_")[0] for name in trained}
    need(set(config["target_modules"]) == modules and len(modules) == 39, sorted(modules))
    need(all(any(data) for name, (_, _, data) in trained.items() if ".lora_B." in name), "a B that did not move")


def launched(folder):
    """Ranks that mpirun starts encode together, and train to the same bits. A failure of one is told once."""
    try:
        need_mpi(args.fsdptrain)
    except Skip as why:
        print(f"skipped: pictures under mpirun: {why}")
        return

    def under_mpi(config, *options, code=0):
        done = subprocess.run(
            [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "3", args.fsdptrain, "run", config, *options],
            capture_output=True,
            text=True,
            timeout=300,
            env=MPI_ENV)
        need(done.returncode == code, done.returncode, done.stderr[-800:])
        return done.stderr

    sample = {"every": 3, "prompts": ["a fox", "a house", "a lake"]}
    want = started_anew(folder, sample=sample)
    entries = cached(folder)
    for options in ([], ["--gather", "copy"]):
        shutil.rmtree(folder / "run")
        told = under_mpi(config_of(folder, sample=sample), *options)
        need(result(folder) == want and len(list((folder / "run/samples").iterdir())) == 9, told[-800:])
        need(cached(folder) == entries, options, entries.keys())
    told = under_mpi(config_of(folder, output_dir=str(folder / "failed"), data={"train": cut_picture(folder)}), code=3)
    need(told.count("a.png") == 1, told)


def cut_picture(folder):
    """The pictures, and one whose header alone can be read."""
    data = folder / "cut"
    shutil.copytree(MODEL.parent / "pictures", data)
    (data / "a.png").write_bytes((data / "wide.png").read_bytes()[:500])
    return str(data)


def one_rank_fails(folder):
    """Then all end with its error, told once; the others' entries stay, and a run without the cause goes on."""
    config = config_of(folder, data={"train": cut_picture(folder)})
    done = train(config, "--ranks", 3, code=3)
    need(done.stderr.count("a.png") == 1 and "rank" not in done.stderr, done.stderr)
    before = cached(folder)
    need(0 < len(before) < 10 and not list((folder / "run").glob("checkpoints/*")), before.keys())
    done = subprocess.run(
        [args.fsdptrain, "run",
         config_of(folder, output_dir=str(folder / "full")), "--ranks", "3", "--gather", "copy"],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
    need(done.returncode == 4 and done.stderr.count("File too large") == 1, done.returncode, done.stderr)
    (folder / "cut/a.png").unlink()
    train(config_of(folder, data={"train": str(folder / "cut")}), "--ranks", 2)
    need(all(cached(folder)[name] == data for name, data in before.items()), "made again")


def policies(folder):
    """Groups with values of their own train to the same bits; the plan says what they have."""
    some = {"lora": {"target_modules": "all-linear"}}
    want = started_anew(folder, **some)
    single = {
        "modules": "single_transformer_blocks.*",
        "sharding_strategy": "NO_SHARD",
        "activation_checkpointing": "block"
    }
    first = {"modules": ["transformer_blocks.0"], "sharding_strategy": "SHARD_GRAD_OP"}
    ends = {"modules": ["context_embedder", "proj_out"], "reshard_after_forward": True}
    joined = {"modules": "(single_)?transformer_blocks.*", "auto_wrap_policy": "NO_WRAP"}
    for ranks, policy in ((3, [single, first, ends]), (2, [joined])):
        got = started_anew(folder, "--ranks", ranks, "--gather", "copy", fsdp={"policy": policy}, **some)
        need(got == want, policy)
    config = config_of(folder, output_dir=str(folder / "planned"), fsdp={"policy": [single, first, ends]}, **some)
    done = subprocess.run([args.fsdptrain, "plan", config, "--ranks", "3", "--gather", "copy"],
                          capture_output=True,
                          text=True)
    lines = done.stdout.splitlines()
    for name, words in (("embedders, modulations", "forward and backward"), ("transformer_blocks.0", "SHARD_GRAD_OP"),
                        ("transformer_blocks.1", "FULL_SHARD"), ("single_transformer_blocks.0-2", "NO_SHARD")):
        need(any(x.startswith(name + " ") and words in x for x in lines), name, done.stdout, done.stderr)
    for policy, words in (({
            **first, "modules": ["layers.0"]
    }, "single_transformer_blocks.0 to single_transformer_blocks.2"), ({
            "modules": ["x_embedder"],
            "reshard_after_forward": True
    }, '["x_embedder", "proj_out"]'), ({
            **first, "param_dtype": "bf16"
    }, "param_dtype"), ({
            **joined, "auto_wrap_policy": "LINEAR_WRAP"
    }, "a block of a FLUX.2 transformer is not cut")):
        config = config_of(folder, output_dir=str(folder / "planned"), fsdp={"policy": [policy]})
        done = subprocess.run([args.fsdptrain, "plan", config, "--ranks", "3"], capture_output=True, text=True)
        need(done.returncode in (2, 3) and words in done.stderr, policy, done.stderr)
    done = subprocess.run([args.fsdptrain, "serve", MODEL], capture_output=True, text=True)
    need(done.returncode == 3 and "language models are served" in done.stderr, done)


def chosen(folder):
    """Settings that the run chooses: the fastest that fit, found before anything is encoded. The bits stay."""
    auto = {key: "auto" for key in ("sharding_strategy", "forward_prefetch", "activation_checkpointing", "offload")}
    config = config_of(folder, output_dir=str(folder / "planned"), fsdp=auto)

    def search(*more):
        done = subprocess.run(
            [args.fsdptrain, "plan", config, "--ranks", "2", "--gather", "copy", "--search", "--json", *more],
            capture_output=True,
            text=True)
        need(done.returncode == 0, done.returncode, done.stderr)
        found = json.loads(done.stdout)
        return found["candidates"], found["candidates"][found["chosen"]]

    all_of_them, best = search()
    kept, again = ([c for c in all_of_them if (c["blocks_recomputed"] > 0) == some] for some in (False, True))
    need(kept and again and all(c["step_seconds"] > 0 for c in all_of_them) and best in kept, all_of_them)
    need(min(c["step_seconds"] for c in again) > max(c["step_seconds"] for c in kept), "blocks recomputed for nothing")
    limit = min(c["peak_bytes"] for c in kept) - 1
    few, best = search("--memory", str(limit))
    need(best["blocks_recomputed"] > 0 and best["peak_bytes"] <= limit, best, few)
    want = started_anew(folder)
    for ranks in (1, 2):
        got = started_anew(folder, "--ranks", ranks, "--gather", "copy", fsdp=auto, train={"micro_batch_size": "auto"})
        need(got == want, ranks, got[1], want[1])


def tiled(folder):
    """Large pictures in tiles take the memory of one, and are near those computed whole; others are the same. (The
    values are compared with diffusers' in interop.)"""
    pipeline = folder / "tiled"
    shutil.copytree(MODEL, pipeline)
    vae = json.loads((pipeline / "vae/config.json").read_text())

    def drawn(size, *more):
        sample(pipeline, "--prompt", PROMPT, "--size", size, "--steps", 2, "--out", folder / "x.png", *more)
        return pixels_of(folder / "x.png")

    for side, code in ((40, 3), (64, 0)):
        (pipeline / "vae/config.json").write_text(json.dumps({**vae, "sample_size": side}))
        sample(pipeline, "--prompt", "x", "--size", "80x64", "--vae-tiling", "--out", folder / "x.png", code=code)
    need((drawn("64x48") == drawn("64x48", "--vae-tiling")).all(), "a picture of one tile")
    whole, tiles = drawn("112x80").astype(int), drawn("112x80", "--vae-tiling").astype(int)
    need(whole.shape == tiles.shape and 0 < abs(whole - tiles).mean() < 40, abs(whole - tiles).mean())
    need((whole[:48, :48] != tiles[:48, :48]).any(), "the first tile has norms of its own")
    more = {"model": str(pipeline), "image": {"resolution": 112}}
    want = started_anew(folder, keep_cache=False, **more)
    more["image"]["vae_tiling"] = True
    need(started_anew(folder, **more)[1] != want[1], "latents of tiles")
    big = {"every": 1, "prompts": [{"prompt": "a", "height": 2048, "width": 2048}]}
    nbytes = []
    for option in (False, True):
        more["image"]["vae_tiling"] = option
        config = config_of(folder, output_dir=str(folder / "planned"), sample=big, **more)
        done = subprocess.run([args.fsdptrain, "plan", config, "--json"], capture_output=True, text=True)
        nbytes.append(json.loads(done.stdout)["sample_bytes"])
    need(nbytes[1] < nbytes[0], nbytes)


def stopped_and_gone_on(folder):
    want = started_anew(folder)
    shutil.rmtree(folder / "run")
    config = config_of(folder, train={"max_steps": 6}, checkpoint={"save_steps": 2})
    train(config, "--set", "train.max_steps=2", "--ranks", 2)
    done = train(config, "--resume", "auto", "--ranks", 3, "--set", "train.lr_scheduler_type=\"cosine\"")
    need((folder / "run/adapter/adapter_model.safetensors").exists(), done.stderr)
    metrics = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
    need([m["step"] for m in metrics] == list(range(1, 7)) and metrics[0]["loss"] == want[1][0], metrics)


def keys_count(folder):
    """Each key of `image` changes what is trained."""
    want = started_anew(folder)[1]
    for key, value in (("timestep_type", "logit_normal"), ("timestep_type", "shift"), ("weighting_scheme", "cosmap"),
                       ("weighting_scheme", "sigma_sqrt"), ("resolution", 48), ("max_sequence_length", 20),
                       ("trigger_word", "other"), ("caption_dropout_rate", 1.0), ("caption_ext", "caption"),
                       ("use_aspect_ratio_buckets", True), ("aspect_ratio_buckets", "64,48;48,64"),
                       ("random_crop", True)):
        need(started_anew(folder, image={key: value})[1] != want, key, value)
    need(started_anew(folder, seed=6)[1] != want)
    need(started_anew(folder)[1] == want)


def lines_as_data(folder):
    """JSONL names the same pictures; PEFT's and our sampler take the adapter; evaluation draws the same every time."""
    want = started_anew(folder)
    pictures = MODEL.parent / "pictures"
    (folder / "lines.jsonl").write_text("".join(
        json.dumps({
            "image": str(p),
            **({
                "caption": p.with_suffix(".txt").read_text()
            } if p.with_suffix(".txt").exists() else {})
        }) + "\n" for p in sorted(pictures.iterdir()) if p.suffix != ".txt"))
    need(started_anew(folder, data={"train": str(folder / "lines.jsonl")}) == want)
    options = ["--prompt", PROMPT, "--size", "32x32", "--dtype", "fp32", "--out", folder / "a.png"]
    drawn = []
    for more in ([], ["--adapter", folder / "run/adapter"], ["--adapter", folder / "run/checkpoints/step-000006"]):
        sample(MODEL, *options, *more)
        drawn.append((folder / "a.png").read_bytes())
    need(drawn[0] != drawn[1] == drawn[2])
    evals = []
    for ranks, image in ((1, {}), (3, {"flip_x": True, "num_repeats": 2})):
        started_anew(folder,
                     "--ranks",
                     ranks,
                     data={"eval": str(pictures)},
                     image=image,
                     train={
                         "eval_steps": 3,
                         "learning_rate": 0
                     })
        metrics = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
        evals.append([m["eval_loss"] for m in metrics if "eval_loss" in m])
    need(evals[0] == evals[1] and len(evals[0]) == 2 and evals[0][0] == evals[0][1], evals)


def cache_is_checked(folder):
    want = started_anew(folder)
    cache = folder / "run/cache"
    files = sorted(cache.iterdir())
    need(len(files) == 8 and all(f.name.startswith("picture-") for f in files), files)
    before = {f: f.read_bytes() for f in files}
    for i, f in enumerate(files):  # damaged or cut, they are made again
        data = bytearray(before[f])
        data[-1 - i] ^= 1
        f.write_bytes(data if i % 2 else data[:-3])
    need(started_anew(folder, "--ranks", 2) == want)
    need({f: f.read_bytes() for f in sorted(cache.iterdir())} == before)
    process = subprocess.Popen(
        [args.fsdptrain, "run",
         config_of(folder, output_dir=str(folder / "killed")), "--ranks", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((folder / "killed").glob("cache/*.bin")):
        pass
    process.kill()
    process.wait()
    shutil.rmtree(folder / "killed/checkpoints", ignore_errors=True)
    train(config_of(folder, output_dir=str(folder / "killed")), "--resume", "auto")
    made = (folder / "killed/adapter/adapter_model.safetensors").read_bytes()
    need(made == want[0])
    need({f.name: f.read_bytes()
          for f in (folder / "killed/cache").glob("*.bin")} == {
              f.name: b
              for f, b in before.items()
          })


def not_trained(folder):
    """What is refused, by name and before anything is computed."""
    empty = folder / "empty"
    empty.mkdir()
    (folder / "bad.jsonl").write_text('{"image": "x.png", "caption": 3}\n')
    (folder / "none.jsonl").write_text('{"image": "x.png"}\n')
    for sections, words in (({
            "model": str(MODEL / "transformer")
    }, "whole pipeline"), ({
            "lora": {
                "target_modules": ["nothing"]
            }
    }, "to_qkv_mlp_proj"), ({
            "lora": {
                "modules_to_save": ["proj_out"]
            }
    }, "modules_to_save"), ({
            "data": {
                "plan": "plan.json"
            }
    }, "data.plan"), ({
            "data": {
                "train": str(empty)
            }
    }, "no picture"), ({
            "data": {
                "train": str(folder / "bad.jsonl")
            }
    }, "line 1"), ({
            "data": {
                "train": str(folder / "none.jsonl")
            }
    }, "x.png")):
        done = subprocess.run([args.fsdptrain, "run", config_of(folder, **sections)],
                              capture_output=True,
                              text=True,
                              timeout=60)
        need(done.returncode in (2, 3) and words in done.stderr, sections, done.returncode, done.stderr)
    need(not (folder / "run/checkpoints").exists())
    config = config_of(folder, output_dir=str(folder / "planned"))
    done = subprocess.run([args.fsdptrain, "plan", config, "--json"], capture_output=True, text=True)
    need(json.loads(done.stdout)["parameters_trained"] == 9472 and not (folder / "planned").exists(), done.stdout)


def skipped(folder):
    """A picture that cannot be read is left out, if that is asked for; what is not used of others is said."""
    want = started_anew(folder)
    shutil.rmtree(folder / "run")
    data = folder / "data"
    shutil.copytree(MODEL.parent / "pictures", data)
    (data / "a.png").write_bytes((data / "wide.png").read_bytes()[:500])
    (data / "b.webp").write_bytes(b"RIFF\x08\0\0\0WEBPVP8 ")
    (data / "a.txt").write_text("no picture")
    done = train(config_of(folder, data={"train": str(data), "on_bad_line": "skip"}))
    need("2 pictures left out" in done.stderr and result(folder) == want, done.stderr)
    good = [p for p in sorted((MODEL.parent / "pictures").iterdir()) if p.suffix != ".txt"]
    lines = [
        json.dumps({
            "image": str(p),
            "caption": p.with_suffix(".txt").read_text()
        }) if p.with_suffix(".txt").exists() else json.dumps({"image": str(p)}) for p in good
    ]
    listed = folder / "listed.jsonl"
    listed.write_text("\n".join(["{", *lines, '{"image": 3}', '{"image": "none.png"}']))
    done = train(config_of(folder, output_dir=str(folder / "run2"), data={"train": str(listed), "on_bad_line": "skip"}))
    need("2 lines left out" in done.stderr and "1 picture left out" in done.stderr, done.stderr)
    need((folder / "run2/adapter/adapter_model.safetensors").read_bytes() == want[0])
    (data / "c.png").write_bytes((data / "wide.png").read_bytes())
    (data / "c.txt").write_bytes(b"a fox \xff")
    need("c.txt" in train(config_of(folder, data={"train": str(data)}), code=3).stderr)
    (data / "c.txt").unlink()
    done = train(config_of(folder, data={"train": str(data)}), code=3)
    need("b.webp" in done.stderr, done.stderr)  # its size cannot be read either: found before a.png is decoded


def begun(folder):
    """init writes a config that plans and runs."""
    config, out = folder / "a.json", folder / "out"
    init = [args.fsdptrain, "init", MODEL, MODEL.parent / "pictures", "--output-dir", out, "--out", config]
    done = subprocess.run([*init, "--ranks", "2"], capture_output=True, text=True)
    need(done.returncode == 0 and "4 pictures of up to 540 tokens" in done.stdout and not out.exists(), done)
    written = json.loads(config.read_text())
    need(written["sample"] == {"every": 250, "prompts": ["[trigger] a tall picture"]}, written)
    need(written["train"]["global_batch_size"] == 4 and written["image"]["resolution"] == 512, written)
    train(config, "--ranks", "2", "--set", "train.max_steps=2", "--set", "image.resolution=64")
    need((out / "adapter/adapter_model.safetensors").exists() and (out / "samples/step-000002-1.png").exists())
    for option in ("--full", f"--from={config}"):
        done = subprocess.run([*init, "--force", option], capture_output=True, text=True)
        need(done.returncode != 0 and json.loads(config.read_text()) == written, option, done)


def varied(folder):
    """Resolutions, repeats and flips train as a list of such pictures does, in ai-toolkit's order."""
    pixels = np.random.default_rng(3).integers(0, 256, (2, 48, 64, 3), np.uint8)
    files = {}
    for i, p in enumerate(pixels):
        for name, changed in (("", p), ("x", p[:, ::-1]), ("y", p[::-1]), ("xy", p[::-1, ::-1])):
            files[i, name] = folder / f"{i}{name}.png"
            write_png(files[i, name], changed)

    def lines(path, of):
        path.write_text("".join(json.dumps({"image": str(p), "caption": p.stem[0]}) + "\n" for p in of))
        return {"train": str(path)}

    base = [files[0, ""], files[1, ""]]
    given = lines(folder / "given.jsonl", base)
    for settings, names in (({
            "num_repeats": 2
    }, ["", ""]), ({
            "flip_x": True
    }, ["", "x"]), ({
            "flip_y": True
    }, ["", "y"]), ({
            "flip_x": True,
            "flip_y": True
    }, ["", "x", "y", "xy"]), ({
            "flip_y": True,
            "num_repeats": 2
    }, ["", "", "y", "y"])):
        want = started_anew(folder, data=lines(folder / "all.jsonl", [files[i, n] for n in names for i in range(2)]))
        need(started_anew(folder, data=given, image=settings) == want, settings)
    one = started_anew(folder, data=given, image={"resolution": 32})
    need(started_anew(folder, data=given, image={"resolution": [32]}) == one)
    both = started_anew(folder, data=given, image={"resolution": [32, 64]})
    need(both != one and both == started_anew(folder, "--ranks", 3, data=given, image={"resolution": [32, 64]}))
    for bad, words in (([], "list of 1 to 8"), ([64, 8], "16 to 8192"), ("64", "whole number")):
        need(words in train(config_of(folder, data=given, image={"resolution": bad}), code=2).stderr, bad)


def cropped(folder):
    """A picture that has the size of a bucket is taken whole; of another, each repeat gets a part of its own."""
    pixels = np.random.default_rng(4).integers(0, 256, (48, 64, 3), np.uint8)
    write_png(folder / "a.png", pixels)
    (folder / "a.jsonl").write_text(json.dumps({"image": "a.png", "caption": "a"}) + "\n")
    given = {"train": str(folder / "a.jsonl")}
    whole = started_anew(folder, data=given)
    for settings in ({"aspect_ratio_buckets": "64, 48; 48, 64"}, {"random_crop": True}):
        need(started_anew(folder, data=given, image=settings) == whole, settings)
    square = {"aspect_ratio_buckets": "48,48", "random_crop": True, "num_repeats": 3}
    want = started_anew(folder, data=given, image=square)
    need(started_anew(folder, "--ranks", 3, data=given, image=square) == want)
    need(want != started_anew(folder, data=given, seed=6, image=square))
    nentries = []
    for n in (1, 3):
        config = config_of(folder, data=given, output_dir=str(folder / "none"), image={**square, "num_repeats": n})
        plan = subprocess.run([args.fsdptrain, "plan", config, "--json"], capture_output=True, text=True)
        nentries.append(json.loads(plan.stdout)["to_encode"])
    need(nentries[1] == nentries[0] + 2, nentries)
    for bad, words in (("64,40", "multiples of 16"), ("64", "multiples of 16"), ("64,64;", "multiples of 16"),
                       (64, "string")):
        config = config_of(folder, data=given, image={"aspect_ratio_buckets": bad})
        need(words in train(config, code=2).stderr, bad)
    both = {"aspect_ratio_buckets": "64,64", "resolution": [32, 64]}
    need("several resolutions" in train(config_of(folder, data=given, image=both), code=2).stderr)


def quantized(folder, fsdpck):
    """A base that stays quantized trains as the one that is dequantized."""
    for form in ("fp8-block", "nf4"):
        bits = []
        pipeline = folder / form
        shutil.copytree(MODEL, pipeline)
        shutil.rmtree(pipeline / "transformer")
        for command in (["export", MODEL / "transformer", folder / "codes", "--quantize", form,
                         "--force"], ["export", folder / "codes", pipeline / "transformer", "--dequantize", "bf16"]):
            subprocess.run([fsdpck, *command], check=True, capture_output=True)
        shutil.copy(MODEL / "transformer/config.json", pipeline / "transformer")
        for model, base in ((MODEL, form), (pipeline, "bf16")):
            bits.append(
                started_anew(folder,
                             "--ranks",
                             2,
                             model=str(model),
                             dtype={
                                 "param": "bf16",
                                 "base": base
                             },
                             lora={"target_modules": "all-linear"}))
        need(bits[0] == bits[1], form)


def dropped(folder):
    """Dropout's masks depend on the picture's place in the run, not on ranks or on what is computed anew."""
    for targets in ("all-linear", ["to_q", "to_k", "to_out.0", "linear_in"]):
        lora = {"lora_dropout": 0.3, "use_rslora": True, "rank_pattern": {"to_q": 2}, "target_modules": targets}
        want = started_anew(folder, lora=lora)
        need(want[1] != started_anew(folder, lora={**lora, "lora_dropout": 0})[1])
        again = started_anew(folder,
                             "--ranks",
                             3,
                             "--gather",
                             "copy",
                             fsdp={"activation_checkpointing": "block"},
                             lora=lora)
        need(want == again, targets)


def tensors(path):
    """Names, dtypes, shapes and bytes of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[start:][slice(*v["data_offsets"])]) for k, v in header.items()}


def exported(folder, fsdpck):
    """The names and bytes that sd-scripts and ai-toolkit would write. What is no FLUX.2's is refused by its name."""
    for style, golden in (("kohya", "kohya"), ("comfy", "ai-toolkit")):
        out = folder / f"{style}.safetensors"
        subprocess.run([fsdpck, "export-lora", FLUX2 / "adapter", out, "--style", style],
                       check=True,
                       capture_output=True)
        need(tensors(out) == tensors(FLUX2 / f"{golden}.safetensors"), style)
    other = shutil.copytree(FLUX2 / "adapter", folder / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ".*to_.*"}))
    rename = "base_model.model.transformer_blocks.1.attn.{0}=base_model.model.transformer_blocks.1.attn.{1}"
    done = subprocess.run([
        fsdpck, "export-lora", other, folder / "none.safetensors", "--style", "kohya", "--rename",
        rename.format("to_q", "to_u")
    ],
                          capture_output=True,
                          text=True)
    need(done.returncode == 3 and "no module 'transformer_blocks.1.attn.to_u'" in done.stderr, done.stderr)
    train(config_of(folder))
    card = (folder / "run/adapter/README.md").read_text()
    for line in (f'base_model: "{MODEL}"', 'instance_prompt: "sks"', "pipeline_tag: text-to-image",
                 "4 pictures, each resolution, repeat and flip counted.", 'pipe.load_lora_weights("adapter")'):
        need(line in card.splitlines(), line, card)
    header = (folder / "run/adapter/adapter_model.safetensors").read_bytes()[8:2000]
    need(b"lora_adapter_metadata" in header and b"transformer.lora_alpha" in header, header)


def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: array of float32}"""
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, x in tensors.items():
        data = np.asarray(x, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(np.shape(x)), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def single_files(folder, fsdpck):
    """Adapters in one file of diffusers, sd-scripts, ai-toolkit and ComfyUI draw as the folder does."""

    def drawn(adapter):
        sample(MODEL, "--prompt", PROMPT, "--size", "32x32", "--dtype", "fp32", "--adapter", adapter, "--out",
               folder / "a.png")
        return pixels_of(folder / "a.png").astype(int)

    want = drawn(FLUX2 / "adapter")
    for name in ("kohya", "ai-toolkit"):
        need((drawn(FLUX2 / f"{name}.safetensors") == want).all(), name)
    started_anew(folder,
                 lora={
                     "target_modules": "all-linear",
                     "rank_pattern": {
                         "to_k": 2,
                         "norm_out.linear": 3
                     },
                     "alpha_pattern": {
                         "linear_in": 3
                     }
                 })
    plain, want = drawn(FLUX2 / "adapter"), drawn(folder / "run/adapter")
    need((plain != want).any())
    for style in ("diffusers", "kohya", "comfy"):
        out = folder / f"{style}.safetensors"
        subprocess.run([fsdpck, "export-lora", folder / "run/adapter", out, "--style", style],
                       check=True,
                       capture_output=True)
        need(abs(drawn(out) - want).max() <= 1, style)
    started_anew(folder, lora={"target_modules": ["to_q", "add_v_proj"]})  # other models have such modules too
    want = drawn(folder / "run/adapter")
    for style, nmodules in (("kohya", 4), ("comfy", 4)):
        out = folder / f"{style}.safetensors"
        subprocess.run([fsdpck, "export-lora", folder / "run/adapter", out, "--style", style, "--force"],
                       check=True,
                       capture_output=True)
        found = tensors(out)
        shapes = [shape for name, (_, shape, _) in found.items() if "_qkv." in name or ".qkv." in name]
        need([96, 4] in shapes and len([n for n in found if "lora_up" in n or "lora_B" in n]) == nmodules, found.keys())
        need(abs(drawn(out) - want).max() <= 1, style)
    ones, up = np.ones((2, 32)), "lora_unet_double_blocks_0_img_attn_qkv"
    for bad, words in (
        ({
            "transformer.transformer_blocks.0.attn.to_q.lora_A.weight": ones
        }, "no lora_B"),
        ({
            "diffusion_model.single_blocks.0.linear3.lora_A.weight": ones,
            "diffusion_model.single_blocks.0.linear3.lora_B.weight": np.ones((32, 2))
        }, "no such module"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_up.weight": np.ones((32, 2))
        }, "does not go into its parts"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_up.weight": np.ones((96, 3))
        }, "different ranks"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_up.weight": np.ones((96, 2)),
            f"{up}.alpha": np.ones(2)
        }, "not one number"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_up.weight": np.ones((96, 2)),
            f"{up}.alpha": np.array(np.nan)
        }, "not finite"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_A.weight": ones
        }, "in two spellings"),
        ({
            f"{up}.hada_w1_a": ones
        }, "no part of an adapter"),
        ({
            "base_model.model.transformer_blocks.0.attn.to_q.lora_A.weight": ones
        }, "give the folder"),
        ({
            f"{up}.lora_down.weight": ones,
            f"{up}.lora_up.weight": np.ones((93, 2))
        }, "shape"),
    ):
        write_safetensors(folder / "bad.safetensors", bad)
        done = sample(MODEL,
                      "--prompt",
                      "x",
                      "--adapter",
                      folder / "bad.safetensors",
                      "--out",
                      folder / "no.png",
                      code=3)
        need(words in done.stderr, words, done.stderr)
    write_safetensors(folder / "bad.safetensors", {
        f"{up}.lora_down.weight": ones,
        f"{up}.lora_up.weight": np.ones((96, 2))
    }, {"lora_adapter_metadata": "3"})
    done = sample(MODEL, "--prompt", "x", "--adapter", folder / "bad.safetensors", "--out", folder / "no.png", code=3)
    need("is no JSON object" in done.stderr, done.stderr)


def surveyed(folder):
    """What tokenize says of a folder is what a run trains on."""

    def tokenize(*options, code=0):
        done = subprocess.run([args.fsdptrain, "tokenize", *map(str, options)], capture_output=True, text=True)
        need(done.returncode == code, done.stderr)
        return done

    data = MODEL.parent / "pictures"
    shown = json.loads(tokenize(MODEL, data, "--json", "--resolution", 64, "--trigger-word", "sks").stdout)

    def planned(*options, **sections):
        done = subprocess.run(
            [args.fsdptrain, "plan", config_of(folder, **sections), "--json", *options], capture_output=True, text=True)
        need(done.returncode == 0, done.stderr)
        return json.loads(done.stdout)

    plan = planned()
    largest = max(p["bucket_width"] * p["bucket_height"] for p in shown["pictures"]) // 256 + 32
    need(plan["largest_micro_batch_tokens"] == largest, plan)
    # Each rank has its part of the text encoder, which is given back before the transformer comes.
    shards = [planned("--ranks", n, "--gather", "copy")["encoding_bytes"] for n in ("1", "4")]
    need(0 < shards[1] < shards[0] and plan["peak_bytes"] >= plan["encoding_bytes"] > 0, shards, plan)
    # In the cache of a run, nothing is left to encode; all is with another dtype.
    need(plan["to_encode"] == 8, plan)
    train(config_of(folder))
    for dtype, left in (("fp32", 0), ("bf16", 8)):
        again = planned(dtype={"param": dtype})
        need(again["to_encode"] == left and (again["encoding_bytes"] > 0) == (left > 0), dtype, again)
    need([pathlib.Path(p["path"]).name for p in shown["pictures"]] == sorted(p.name for p in data.iterdir()
                                                                             if p.suffix != ".txt"), shown)
    need(all("sks" in p["caption"] and not p["cut"] for p in shown["pictures"]), shown)
    need(sum(b["pictures"] for b in shown["buckets"]) == len(shown["pictures"]), shown)
    few = json.loads(tokenize(MODEL, data, "--json", "--max-sequence-length", 20).stdout)["pictures"]
    need([p["cut"] for p in few] == [p["tokens"] > 20 for p in few] and any(p["cut"] for p in few), few)
    need("64x64" in tokenize(MODEL, data, "--resolution", 64).stdout)
    shown = json.loads(tokenize(MODEL, data, "--json", "--aspect-ratio-buckets", "96,48;48,96").stdout)["buckets"]
    need({(b["width"], b["height"]) for b in shown} <= {(48, 96), (96, 48)}, shown)
    shown = json.loads(tokenize(MODEL, data, "--json", "--use-aspect-ratio-buckets", "--resolution", 64).stdout)
    need({(48, 80), (80, 48)} >= {(p["bucket_width"], p["bucket_height"]) for p in shown["pictures"]} - {(64, 64)},
         shown["pictures"])
    for options, code in (([MODEL, "a text"], 3), ([MODEL, data, "--chat"], 2), ([MODEL, folder], 3),
                          ([MODEL.parent / "tiny-llama-tied", "x", "--resolution", 64], 2)):
        tokenize(*options, code=code)


# ---- on a device with its own memory

DRAWN = {"every": 3, "prompts": ["a fox", "a house", "a lake"]}


def device_as_processor(folder):
    """The processor's bits at any number of ranks, however much is kept, gathered or moved to the host."""
    for dtype, more in (("fp32", ((1, {}), (3, {}), (5, {}), (2, {
            "activation_checkpointing": "block",
            "offload": "cpu"
    }), (2, {
            "offload": "cpu",
            "offload_params": True
    }))), ("bf16", ((1, {}), (2, {}), (3, {
            "sharding_strategy": "NO_SHARD"
    }), (4, {
            "dp_shard_size": 2
    })))):
        want = started_anew(folder, "--device", "cpu", dtype={"param": dtype})
        for ranks, fsdp in more:
            got = started_anew(folder, "--device", "cuda", "--ranks", ranks, dtype={"param": dtype}, fsdp=fsdp)
            need(got == want, dtype, ranks, fsdp, got[1], want[1])


def device_draws(folder):
    """The cache, evaluations, and pictures that are drawn while training are the processor's too."""
    seen = []
    for device, ranks in (("cpu", 1), ("cuda", 2), ("cuda", 3)):
        started_anew(folder,
                     "--device",
                     device,
                     "--ranks",
                     ranks,
                     keep_cache=False,
                     sample=DRAWN,
                     data={"eval": str(MODEL.parent / "pictures")},
                     train={"eval_steps": 3})
        metrics = [json.loads(x) for x in (folder / "run/metrics.jsonl").read_text().splitlines()]
        drawn = {p.name: p.read_bytes() for p in (folder / "run/samples").iterdir()}
        seen.append((drawn, [m["eval_loss"] for m in metrics if "eval_loss" in m], cached(folder)))
    need(seen[0] == seen[1] == seen[2] and len(seen[0][0]) == 9 and len(seen[0][1]) == 2, seen[0][0].keys(), seen[0][1],
         seen[1][1])


def device_samples(folder):
    """Pictures and texts of `sample` are the processor's."""
    made = []
    for device in ("cpu", "cuda"):
        sample(MODEL, "--prompt", PROMPT, "--out", folder / "a.png", "--size", "32x48", "--device", device, "--adapter",
               FLUX2 / "adapter")
        text = sample(MODEL.parent / "tiny-llama-tied", "--prompt", PROMPT, "--max-new-tokens", 5, "-q", "--device",
                      device)
        made.append(((folder / "a.png").read_bytes(), text.stdout))
    need(made[0] == made[1], made[0][1], made[1][1])


def device_planned(folder):
    """A run fits into what plan says that it takes on its device, and not into a byte less."""
    config = config_of(folder, sample=DRAWN, train={"max_steps": 1})
    options = ["--device", "cuda", "--ranks", "2"]
    plan = subprocess.run([args.fsdptrain, "plan", config, "--json", *options], capture_output=True, text=True)
    most = json.loads(plan.stdout)
    need(most["sample_bytes"] > 0, most)
    for missing, code in ((1, 4), (0, 0)):
        done = subprocess.run([args.fsdptrain, "run", config, *options],
                              capture_output=True,
                              text=True,
                              env={
                                  **os.environ, "FSDPTRAIN_GUARDED_FREE": str(most["peak_bytes"] - missing)
                              })
        need(done.returncode == code and (not code or "GiB free of" in done.stderr), done.returncode, done.stderr)


DEVICE_CHECKS = (device_as_processor, device_draws, device_samples, device_planned)
CHECKS = (same_for_any_threads, near_in_bf16, seeds_and_names, guidance, adapter, refused, same_for_any_ranks,
          every_linear, policies, chosen, tiled, launched, one_rank_fails, stopped_and_gone_on, keys_count,
          lines_as_data, cache_is_checked, skipped, begun, varied, cropped, quantized, dropped, exported, single_files,
          surveyed, not_trained)


def run_all(checks):
    """{check: what it gets besides a folder}. True if one failed."""
    nfailed = 0
    for check, more in checks.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(pathlib.Path(folder), *more)
                print(f"ok   {check.__name__.replace('_', ' ')}", flush=True)
            except Exception:
                nfailed += 1
                print(f"FAIL {check.__name__.replace('_', ' ')}\n{traceback.format_exc()}", flush=True)
    print(f"{len(checks) - nfailed} passed, {nfailed} failed")
    return nfailed > 0


def main():
    global args, FLUX2
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--fsdpck")
    parser.add_argument("--quick", action="store_true", help="three of the checks only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    FLUX2 = args.goldens / "flux2"
    of_fsdpck = (quantized, exported, single_files)
    checks = (same_for_any_threads, refused, lines_as_data) if args.quick else CHECKS
    if args.device == "cuda":
        checks = DEVICE_CHECKS
    return run_all({check: [args.fsdpck] if check in of_fsdpck else [] for check in checks})


if __name__ == "__main__":
    sys.exit(main())
