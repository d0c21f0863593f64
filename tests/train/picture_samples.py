#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures that a run draws while it trains: the same for any number of ranks, those of `fsdptrain sample`, on the
model card and in the report; and a run goes on where they cannot be made.

usage: picture_samples.py FSDPTRAIN GOLDENS [--quick]

Prints a line for each check and "N passed, N failed"."""
import argparse, base64, json, pathlib, re, shutil, sys

import pictures
from pictures import MODEL, config_of, need, pipeline_with, pixels_of, sample, train

PROMPTS = [
    "a red fox in snow",
    {
        "prompt": "[trigger] at a lake",
        "height": 48,
        "width": 80,
        "num_inference_steps": 3,
        "seed": 7
    },
    {
        "//": "a comment",
        "prompt": "a house",
        "negative_prompt": "blurred",
        "guidance_scale": 3,
        "num_inference_steps": 2
    },
]
SAMPLING = {"every": 2, "prompts": PROMPTS}


def base_of(folder):
    """The pipeline as one that has guidance."""
    return pipeline_with(folder, "base", "model_index.json", "is_distilled", False)


def drawn(folder):
    return {p.name: p.read_bytes() for p in (folder / "run/samples").iterdir()}


def run(folder, *options, code=0, **sections):
    shutil.rmtree(folder / "run", ignore_errors=True)
    sections = {"sample": SAMPLING, "train": {"max_steps": 3}, **sections}
    return train(config_of(folder, **sections), *options, code=code)


def same_for_any_ranks(folder):
    base = base_of(folder)
    for dtype in ("fp32", "bf16"):
        sections = {"model": str(base), "dtype": {"param": dtype}}
        done = run(folder, **sections)
        want = drawn(folder)
        need(sorted(want) == [f"step-{s:06}-{p}.png" for s in (0, 2, 3) for p in (1, 2, 3)], sorted(want))
        need(len(set(want.values())) == 9 and done.stderr.count("3 pictures drawn, in samples/") == 3, done.stderr)
        adapter = (folder / "run/adapter/adapter_model.safetensors").read_bytes()
        for options, fsdp in ((["--ranks", 2], {}), (["--ranks", 3, "--gather",
                                                      "copy"], {}), (["--ranks", 5, "--gather", "copy"], {
                                                          "activation_checkpointing": "block"
                                                      }), (["--ranks", 4, "--gather", "copy"], {
                                                          "dp_shard_size": 2
                                                      }), (["--ranks", 2, "--gather", "copy"], {
                                                          "sharding_strategy": "SHARD_GRAD_OP"
                                                      }), (["--ranks", 2], {
                                                          "offload": str(folder / "disk"),
                                                          "offload_params": True
                                                      })):
            (folder / "disk").mkdir(exist_ok=True)
            run(folder, *options, **sections, fsdp=fsdp)
            need(drawn(folder) == want, dtype, options, fsdp)
            need((folder / "run/adapter/adapter_model.safetensors").read_bytes() == adapter, dtype, options)


def those_of_sample(folder):
    """The last ones are what `fsdptrain sample` makes of the adapter, the first ones those without it."""
    base = base_of(folder)
    for dtype in ("fp32", "bf16"):
        run(folder, "--ranks", 2, model=str(base), dtype={"param": dtype})
        made = drawn(folder)
        for number, prompt, more in ((1, PROMPTS[0], ["--size", "64x64"]), (2, "sks at a lake", [
                "--size", "80x48", "--steps", 3, "--seed", 7
        ]), (3, "a house", ["--size", "64x64", "--steps", 2, "--guidance", 3, "--negative-prompt", "blurred"])):
            for step, adapter in ((0, []), (3, ["--adapter", folder / "run/adapter"])):
                sample(base, "--prompt", prompt, "--max-sequence-length", 32, "--dtype", dtype, *more, *adapter,
                       "--out", folder / "one.png")
                need((folder / "one.png").read_bytes() == made[f"step-{step:06}-{number}.png"], dtype, number, step)
    need(pixels_of(folder / "run/samples/step-000003-2.png").shape == (48, 80, 3))


def gone_on(folder):
    """A run that is resumed draws what one without an end in between draws, and not from the beginning."""
    run(folder)
    want = drawn(folder)
    config = config_of(folder, sample=SAMPLING, train={"max_steps": 3}, checkpoint={"save_steps": 2})
    shutil.rmtree(folder / "run")
    train(config)
    for path in (folder / "run/samples").iterdir():
        path.unlink()
    shutil.rmtree(folder / "run/checkpoints/step-000003")
    train(config, "--resume", "auto", "--ranks", 2)
    need(drawn(folder) == {k: v for k, v in want.items() if "-000003-" in k}, sorted(drawn(folder)))


def swept(folder):
    """What killed runs left unfinished is removed; files of others stay."""
    unfinished = ("cache/picture-00000000000000aa.bin.tmp-aB3x9Z", "samples/step-000001-1.png.tmp-000000")
    others = ("samples/notes.tmp-000000", "samples/step-1.tmp-12345", "cache/picture-00000000000000aa.bin.tmp-aB3x9Zq")
    for name in unfinished + others:
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_text("x")
    train(config_of(folder, sample=SAMPLING, train={"max_steps": 1}))
    need([(folder / "run" / name).exists() for name in unfinished + others] == [False] * 2 + [True] * 3)


def without_every(folder):
    """They are drawn on request only."""
    done = run(folder, sample={"prompts": PROMPTS[:1]})
    need(not (folder / "run/samples").exists() and "sample.every is 0" in done.stderr, done.stderr)


def not_made(folder):
    """A run goes on where a picture cannot be written, or its embeddings are damaged."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir()
    (folder / "run/samples").write_text("no folder")
    done = train(config_of(folder, sample=SAMPLING, train={"max_steps": 2}), "--ranks", 2)
    for prompt in (1, 2, 3):
        need(f"the picture of prompt {prompt} could not be made" in done.stderr, prompt, done.stderr)
    need("2 of 2 steps done" in done.stdout + done.stderr, done.stderr)


def refused(folder):
    for prompt, words in (({
            "prompt": "x",
            "steps": 4
    }, "'steps'"), ({
            "negative_prompt": "x"
    }, "'prompt'"), ({
            "prompt": 3
    }, "'prompt'"), ({
            "prompt": "x",
            "height": 33
    }, "multiples of 16"), ({
            "prompt": "x",
            "width": -16
    }, "'width'"), ({
            "prompt": "x",
            "seed": 1.5
    }, "'seed'"), ({
            "prompt": "x",
            "guidance_scale": "high"
    }, "'guidance_scale'"), ({
            "prompt": "x",
            "num_inference_steps": 1001
    }, "'num_inference_steps'"), ([{
            "role": "user",
            "content": "x"
    }], "an object")):
        done = run(folder, code=2, sample={"every": 1, "prompts": ["good", prompt]})
        need("key 'sample.prompts': prompt 2" in done.stderr, prompt, done.stderr)
        need(words in done.stderr, prompt, done.stderr)
    need(not (folder / "run/samples").exists())


def shown(folder):
    """On the card and in the report."""
    run(folder, "--ranks", 2, sample={"every": 2, "prompts": [*PROMPTS, 'with "quotes" and </script>']})
    made = drawn(folder)
    card = (folder / "run/adapter/README.md").read_text()
    for number, prompt in enumerate(("a red fox in snow", "sks at a lake", "a house")):
        need(f'- text: "{prompt}"\n  output:\n    url: image_{number}.png\n' in card, card)
        need((folder / f"run/adapter/image_{number}.png").read_bytes() == made[f"step-000003-{number + 1}.png"])
    need('- text: "with \\"quotes\\"' in card, card)
    done = pictures.subprocess.run([pictures.args.fsdptrain, "report", folder / "run", "--out", folder / "r.html"],
                                   capture_output=True)
    need(done.returncode == 0, done.stderr)
    page = (folder / "r.html").read_text()
    for name, content in made.items():
        step, prompt = map(int, re.match(r"step-(\d+)-(\d+)\.png", name).groups())
        need(f'"step":{step},"prompt":{prompt},"file":"{name}","png":"{base64.b64encode(content).decode()}"' in page,
             name)
    need("img-src data:" in page and '"pictures_left_out":0' in page)


def users_own(folder):
    """Pictures beside a README that the user wrote stay, and so do those of no prompt."""
    run(folder, sample={"every": 3, "prompts": PROMPTS[:1]})
    adapter = folder / "run/adapter"
    (adapter / "README.md").write_text("mine: image_0.png")
    (adapter / "image_0.png").write_text("mine")
    (adapter / "image_7.png").write_text("mine too")
    train(config_of(folder, train={"max_steps": 4}), "--resume", "auto")
    need((adapter / "README.md").read_text() == "mine: image_0.png" and (adapter / "image_0.png").read_text() == "mine")
    (adapter / "README.md").unlink()
    train(config_of(folder, sample={"every": 5, "prompts": PROMPTS[:1]}, train={"max_steps": 5}), "--resume", "auto")
    need((adapter / "image_0.png").read_bytes() == (folder / "run/samples/step-000005-1.png").read_bytes())
    need((adapter / "image_7.png").read_text() == "mine too" and not (folder / "run/adapter.old").exists())


def planned(folder):
    """Memory for samples is in the plan."""
    config = config_of(folder, sample={"every": 1, "prompts": [{"prompt": "x", "height": 256, "width": 256}]})
    plan = pictures.subprocess.run([pictures.args.fsdptrain, "plan", config, "--json"], capture_output=True, text=True)
    with_samples = json.loads(plan.stdout)
    config = config_of(folder)
    plan = pictures.subprocess.run([pictures.args.fsdptrain, "plan", config, "--json"], capture_output=True, text=True)
    need(json.loads(plan.stdout)["sample_bytes"] == 0 < 256 * 256 * 3 < with_samples["sample_bytes"], with_samples)


CHECKS = (same_for_any_ranks, those_of_sample, gone_on, swept, without_every, not_made, refused, shown, users_own,
          planned)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="two of the checks only")
    pictures.args = parser.parse_args()
    checks = (not_made, shown) if pictures.args.quick else CHECKS
    return pictures.run_all({check: [] for check in checks})


if __name__ == "__main__":
    sys.exit(main())
