# SPDX-License-Identifier: Apache-2.0
"""What a new user does, on SmolLM2: init, run on two ranks, Ctrl-C, run again, sample with the adapter, load it in
PEFT. Few steps, on the conversations of fixtures/."""
import json, os, signal, subprocess, sys

import torch

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STEPS = 10  # so many that a busy machine, too, is asked to stop before the last
SETS = [
    x
    for s in (
        f"train.max_steps={STEPS}",
        "train.global_batch_size=2",
        "data.seq_len=64",
        "train.warmup_steps=0",
        "train.learning_rate=1e-3",
    )
    for x in ("--set", s)
]


def tool(fsdptrain, *args):
    return subprocess.run([fsdptrain, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def interrupted(fsdptrain, config):
    """Ctrl-C once the second step is shown: [differences]."""
    # nohup and background shells hand on that it is ignored
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    p = subprocess.Popen([fsdptrain, "run", config, "--ranks", "2", *SETS], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    said = []
    for line in p.stderr:
        said.append(line)
        if line.startswith("step 2 "):
            p.send_signal(signal.SIGINT)
    said, code = "".join(said), p.wait()
    wanted = [
        "documents", "stopping: the step is finished and saved first", f"to go on: fsdptrain run '{config}' --ranks 2"
    ]
    return [f"exit code {code}: {said}"] * (code != 0) + [f"'{w}' is not in: {said}" for w in wanted if w not in said]


def loss_of(model, ids, labels):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()


def check_in_peft(fsdptrain, folder, chat, adapter):
    """PEFT takes the adapter, and with it the conversations, masked as fsdptrain says, are likelier than without."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    shown = json.loads(tool(fsdptrain, "tokenize", folder, chat, "--chat", "--json").stdout)["examples"][:4]
    examples = [(e["ids"], [i if m else -100 for i, m in zip(e["ids"], e["mask"])]) for e in shown]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = sum(loss_of(base, *e) for e in examples)
    adapted = PeftModel.from_pretrained(base, adapter)
    after = sum(loss_of(adapted, *e) for e in examples)
    return [] if after < before - 0.05 else [f"loss {before} without the adapter, {after} with it"]


def check(fsdptrain, folder, work):
    work, chat = os.path.join(work, "first-run"), os.path.join(TOP, "fixtures", "chat.jsonl")
    config, out = work + ".json", work
    made = tool(fsdptrain, "init", folder, chat, "--out", config, "--output-dir", out, "--ranks", "2")
    if made.returncode or f"fsdptrain run {config} --ranks 2" not in made.stdout:
        return [f"init: {made.returncode}: {made.stdout}{made.stderr}"]
    bad = interrupted(fsdptrain, config)
    again = tool(fsdptrain, "run", config, "--ranks", "2", *SETS)
    adapter = os.path.join(out, "adapter")
    if again.returncode or f"the adapter: {adapter}" not in again.stdout or "going on from" not in again.stderr:
        return bad + [f"run again: {again.returncode}: {again.stdout}{again.stderr}"]
    with open(os.path.join(out, "metrics.jsonl")) as f:
        steps = [json.loads(line)["step"] for line in f]
    if steps != list(range(1, STEPS + 1)):
        bad.append(f"steps {steps}")
    said = tool(fsdptrain, "sample", folder, "--adapter", adapter, "--chat", "--prompt", "Hello", "--max-new-tokens",
                "8", "--temperature", "0")
    if said.returncode or not said.stdout.strip():
        bad.append(f"sample: {said.returncode}: {said.stdout}{said.stderr}")
    return bad + check_in_peft(fsdptrain, folder, chat, adapter)


if __name__ == "__main__":
    print(check(*sys.argv[1:4]))
