#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdptrain sample of a pipeline that makes pictures: the same picture for any number of threads, seeds and names, what
it refuses and how, and that a picture is whole or not there.

usage: pictures.py FSDPTRAIN GOLDENS [--quick]

GOLDENS/flux2/adapter is one for the pipeline in fixtures/tiny-flux2; test_flux2.c holds its numbers against diffusers'.
Prints a line for each check and "N passed, N failed"."""
import argparse, json, os, pathlib, shutil, subprocess, sys, tempfile, traceback, zlib

import numpy as np

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


def not_trained_yet(folder):
    config = folder / "config.json"
    config.write_text(json.dumps({"model": str(MODEL / "transformer"), "data": {"train": "x.jsonl"}}))
    done = subprocess.run([args.fsdptrain, "run", config], capture_output=True, text=True, timeout=60)
    need(done.returncode == 3 and "not trained or served yet" in done.stderr, done.returncode, done.stderr)


CHECKS = (same_for_any_threads, near_in_bf16, seeds_and_names, guidance, adapter, refused, not_trained_yet)


def main():
    global args, FLUX2
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="the first check and refusals only")
    args = parser.parse_args()
    FLUX2 = args.goldens / "flux2"
    npassed = nfailed = 0
    for check in (same_for_any_threads, refused) if args.quick else CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(pathlib.Path(folder))
                npassed += 1
                print(f"ok   {check.__name__.replace('_', ' ')}", flush=True)
            except Exception:
                nfailed += 1
                print(f"FAIL {check.__name__.replace('_', ' ')}\n{traceback.format_exc()}", flush=True)
    print(f"{npassed} passed, {nfailed} failed")
    return nfailed > 0


if __name__ == "__main__":
    sys.exit(main())
