#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""megatron.py BINARY: `--names hf` of Megatron-core's torch_dist checkpoints gives the weights that went into them, and
tensors or sizes that do not fit are refused, each with its own sentence."""
import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile

from doctor_folders import read
from harness import fixtures
from run_cases import write_safetensors

FIXTURES = os.path.join(fixtures(), "megatron")
STEP = "iter_0000007"


def run(binary, *args):
    p = subprocess.run([binary, *args], capture_output=True, text=True, timeout=120)
    return p.returncode, p.stderr


def exported(binary, at, source, *more):
    out = os.path.join(at, "exported.safetensors")
    code, said = run(binary, "export", source, out, "--force", "-q", "--dtype", "bf16", *more)
    assert code == 0, said
    return read(out)


def config_of(case, at, **changes):
    """A folder with the case's config.json, changed; None removes a key."""
    with open(os.path.join(FIXTURES, case, "config.json")) as f:
        config = {k: v for k, v in dict(json.load(f), **changes).items() if v is not None}
    folder = os.path.join(at, "config")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def check_values(binary, at):
    """Layers and experts as axes, and as parts of the names; directly, and from any number of ranks."""
    for case in ("moe", "singleton"):
        wanted = read(os.path.join(FIXTURES, case + ".REF.safetensors"))
        source, assets = os.path.join(FIXTURES, case, STEP), os.path.join(FIXTURES, case)
        names = ["--names", "hf", "--assets", assets]
        assert exported(binary, at, source, *names) == wanted, case
        for ranks in ("1", "3"):
            sharded = os.path.join(at, case + ranks)
            code, said = run(binary, "convert", source, sharded, "--ranks", ranks, *names)
            assert code == 0, said
            assert exported(binary, at, sharded) == wanted, (case, ranks)


def check_padding(binary, at):
    """Rows beyond vocab_size are padding."""
    source, few = os.path.join(FIXTURES, "moe", STEP), config_of("moe", at, vocab_size=36)
    found = exported(binary, at, source, "--names", "hf", "--assets", few)
    wanted = read(os.path.join(FIXTURES, "moe.REF.safetensors"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        dtype, shape, data = wanted[name]
        assert found[name] == (dtype, [36, shape[1]], data[:36 * shape[1] * 2]), name


def check_state(binary, at):
    """The values beside the weights (_extra_state) are the trainer's, and are left out."""
    source, out = os.path.join(FIXTURES, "moe", STEP), os.path.join(at, "no-state")
    code, said = run(binary, "convert", source, out, "--ranks", "1", "--names", "hf", "--assets",
                     os.path.join(FIXTURES, "moe"))
    with open(os.path.join(out, "index.json")) as f:
        assert code == 0 and "20 values of the trainer's state are left out" in said and not json.load(f)["items"], said


def check_without_names(binary, at):
    """An export under Megatron's own names is no Hugging Face model, and a note says so."""
    out, words = os.path.join(at, "plain"), "the weights have Megatron's names and layouts"
    code, said = run(binary, "export", os.path.join(FIXTURES, "moe", STEP), out)
    assert code == 0 and words in said and "--names hf" in said, said
    assert "embedding.word_embeddings.weight" in read(os.path.join(out, "model.safetensors"))
    embedding = "transformer.embedding.word_embeddings.weight"  # as ChatGLM is published
    write_safetensors(os.path.join(at, "chatglm.safetensors"), {embedding: ("F32", [2, 2], bytes(16))})
    code, said = run(binary, "export", os.path.join(at, "chatglm.safetensors"), out, "--force")
    assert code == 0 and words not in said, said


REFUSED = [
    ("moe", {"num_attention_heads": 6}, "are no rows of q, k and v for the heads"),
    ("moe", {"num_attention_heads": 3}, "are no rows of q, k and v for the heads"),
    ("moe", {"num_attention_heads": 10**6}, "has no usable num_attention_heads"),
    ("moe", {"num_hidden_layers": 3}, "does not have num_hidden_layers in its first dimension"),
    ("singleton", {"num_hidden_layers": 1}, "belongs to a layer beyond num_hidden_layers"),
    ("singleton", {"num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight"),
    ("moe", {"num_experts": 5}, "does not fit the number of experts in config.json"),
    ("moe", {"num_experts": None}, "has no place"),
    ("moe", {"hidden_size": 64}, "does not hold vocab_size rows of hidden_size"),
    ("moe", {"num_hidden_layers": 10**6}, "states more than 10000 layers"),
    ("moe", {"vocab_size": 41}, "does not hold vocab_size rows of hidden_size"),
    ("moe", {"vocab_size": None}, "lacks one of num_hidden_layers, hidden_size and vocab_size"),
    ("moe", {"model_type": "gpt2"}, "model_type 'gpt2' is none whose weights are known"),
]


def check_refused(binary, at):
    for case, changes, words in REFUSED:
        out = os.path.join(at, "never")
        code, said = run(binary, "export", os.path.join(FIXTURES, case, STEP), out, "--names", "hf", "--assets",
                         config_of(case, at, **changes))
        assert code == 3 and words in said and not os.path.exists(out), (changes, code, said)
    # Without bytes, a tensor may state any number of layers and experts: each would get a name.
    many, experts = os.path.join(at, "many.safetensors"), "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    write_safetensors(many, {"embedding.word_embeddings.weight": ("F32", [40, 32], bytes(40 * 32 * 4)),
                             experts: ("F32", [2, 100000, 0, 32], b"")})
    code, said = run(binary, "ls", many, "--names", "hf", "--assets", config_of("moe", at, num_experts=100000))
    assert code == 3 and experts in said and "has no elements" in said, said
    code, said = run(binary, "export", os.path.join(FIXTURES, "moe", STEP), os.path.join(at, "never"), "--names", "hf")
    assert code == 3 and "has no config.json" in said and "--assets FOLDER" in said, said


def check_root(binary, at):
    """The folder above the saves stands for the newest one, if the file says which."""
    root = os.path.join(at, "root")
    shutil.copytree(os.path.join(FIXTURES, "moe"), root)
    wanted = read(os.path.join(FIXTURES, "moe.REF.safetensors"))
    for line, good in (("7", True), ("7\n", True), ("8", False), ("../moe", False), ("", False), ("9" * 40, False)):
        with open(os.path.join(root, "latest_checkpointed_iteration.txt"), "w") as f:
            f.write(line)
        if good:
            assert exported(binary, at, root, "--names", "hf", "--assets", root) == wanted, line
        else:
            code, said = run(binary, "ls", root)
            assert code == 3 and len(said.splitlines()) <= 2, (line, code, said)


class Command:
    """What a pickle that runs a program looks like."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, ("touch '%s'" % self.mark,)


def write_common(folder, value):
    with zipfile.ZipFile(os.path.join(folder, "common.pt"), "w") as z:
        z.writestr("common/data.pkl", pickle.dumps(value, protocol=2))
        z.writestr("common/version", "3\n")


def check_common(binary, at):
    """common.pt is read and never executed: a program in it is refused, and norms of another kind are noticed."""
    folder, mark, out = os.path.join(at, "common"), os.path.join(at, "PWNED"), os.path.join(at, "never")
    assets = os.path.join(FIXTURES, "moe")
    shutil.copytree(os.path.join(assets, STEP), folder)
    good = {"iteration": 7, "args": argparse.Namespace(apply_layernorm_1p=False, swiglu=True)}
    write_common(folder, good)
    exported(binary, at, folder, "--names", "hf", "--assets", assets)
    plus_one = {**good, "args": argparse.Namespace(apply_layernorm_1p=True)}
    for value, words in (({**good, "rng": Command(mark)}, "'posix.system', which has no place here"),
                         (plus_one, "--apply-layernorm-1p")):
        write_common(folder, value)
        code, said = run(binary, "export", folder, out, "--names", "hf", "--assets", assets)
        assert code == 3 and words in said and not os.path.exists(out) and not os.path.exists(mark), (code, said)
    with open(os.path.join(folder, "common.pt"), "wb") as f:
        f.write(b"not a zip")
    code, said = run(binary, "ls", folder)
    assert code == 3 and "common.pt" in said, said


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="fsdpck-megatron-") as at:
        for check in (check_values, check_padding, check_state, check_without_names, check_refused, check_root,
                      check_common):
            check(os.path.abspath(sys.argv[1]), at)
    print("2 checkpoints, %d refusals" % (len(REFUSED) + 1))


if __name__ == "__main__":
    main()
