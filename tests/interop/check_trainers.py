# SPDX-License-Identifier: Apache-2.0
"""fixtures/trainers/ is what accelerate and transformers write, and what `init --from` makes of random arguments trains
as they would: batch, schedule, length."""
import json, os, pathlib, random, subprocess, tempfile

import make_trainers
from transformers import TrainingArguments

TRAINERS = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "trainers"


def random_arguments(rng):
    """Arguments that the trainer can do."""
    a = dict(output_dir="runs/x",
             report_to="none",
             use_cpu=True,
             per_device_train_batch_size=rng.choice([1, 2, 8]),
             gradient_accumulation_steps=rng.choice([1, 3]),
             learning_rate=rng.choice([1e-5, 3e-4]),
             lr_scheduler_type=rng.choice(["linear", "cosine", "constant", "constant_with_warmup"]),
             warmup_steps=rng.choice([0, 0.1, 7]),
             bf16=rng.random() < 0.5,
             seed=rng.randrange(1000),
             weight_decay=rng.choice([0.0, 0.1]))
    a.update(
        dict(max_steps=rng.randrange(20, 90)) if rng.random() < 0.5 else dict(num_train_epochs=rng.choice([1.0, 2.5])))
    return TrainingArguments(**a)


def warmup(train, nsteps):
    """The steps of the warm-up, as docs/config.md defines the two keys."""
    import math
    return train["warmup_steps"] if "warmup_steps" in train else math.ceil(train["warmup_ratio"] * nsteps)


def differences(args, config, nranks):
    train, bad = config["train"], []
    if ("max_steps" in train) != (args.max_steps > 0) or train.get(
            "max_steps",
            args.num_train_epochs) != (args.max_steps if args.max_steps > 0 else train["num_train_epochs"]):
        bad.append(f"length {train}")
    if train["global_batch_size"] != args.per_device_train_batch_size * args.gradient_accumulation_steps * nranks:
        bad.append(f"batch {train}")
    wanted = 0 if args.lr_scheduler_type == "constant" else args.get_warmup_steps(100)
    if warmup(train, 100) != wanted:
        bad.append(f"warm-up {train}, {wanted} wanted")
    same = {
        "learning_rate": args.learning_rate,
        "weight_decay": args.weight_decay,
        "lr_scheduler_type": str(args.lr_scheduler_type.value)
    }
    bad += [f"{k} {train.get(k)}, {v} wanted" for k, v in same.items() if train.get(k) != v]
    if config["seed"] != args.seed or config["dtype"]["param"] != ("bf16" if args.bf16 else "fp32"):
        bad.append(f"seed, dtype: {config}")
    return bad


def check(fsdptrain):
    bad, rng = [], random.Random(1)
    with tempfile.TemporaryDirectory() as work:
        make_trainers.write(work)
        for file in sorted(os.listdir(work)):
            if pathlib.Path(work, file).read_bytes() != (TRAINERS / file).read_bytes():
                bad.append(f"{file} is not what the real classes write")
        for i in range(40):
            args, nranks = random_arguments(rng), rng.choice([1, 2, 5])
            path, out = pathlib.Path(work, "args.json"), pathlib.Path(work, "out.json")
            path.write_text(json.dumps(args.to_dict()))
            done = subprocess.run([fsdptrain, "init", "--from", path, "--out", out, "--force", "--ranks",
                                   str(nranks)],
                                  capture_output=True,
                                  text=True)
            bad += [
                f"{i}: {d}" for d in (
                    differences(args, json.loads(out.read_text()), nranks) if done.returncode == 0 else [done.stderr])
            ]
    return bad
