#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deepspeed.py BINARY: checkpoints of DeepSpeed's ZeRO give the tensors that DeepSpeed's own scripts make of them, at
any number of ranks; and sets of files that do not belong together are refused, each with its own sentence."""
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

from doctor_folders import read
from harness import fixtures

FIXTURES = os.path.join(fixtures(), "deepspeed")
STAGES = ("zero1", "zero2", "zero3", "universal")
TREES = {"model": "REF-bf16", "master": "REF", "optim": "REF-optimizer"}
STEP = "global_step2"
UNIVERSAL = "global_step2_universal"
OPTIM = "bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt"
STATES = {"zero1": "mp_rank_00_model_states.pt", "zero3": "zero_pp_rank_%d_mp_rank_00_model_states.pt"}


def step_of(stage):
    return {"universal": UNIVERSAL, "universal-tp": "global_step1_universal", "moe": "global_step0"}.get(stage, STEP)


def reference(stage, which):
    """universal is DeepSpeed's conversion of zero1."""
    return read(os.path.join(FIXTURES, "%s.%s.safetensors" % ("zero1" if stage == "universal" else stage, which)))


def run(binary, *args):
    p = subprocess.run([binary, *args], capture_output=True, text=True, timeout=120)
    return p.returncode, p.stdout, p.stderr


def tensors(binary, source, tree, at):
    """Those of a tree, as the bytes of an exported model."""
    out = os.path.join(at, "exported")
    shutil.rmtree(out, ignore_errors=True)
    dtype = ["--dtype", "bf16"] if tree == "model" else []
    code, _, said = run(binary, "export", source, out, "--select", tree, *dtype)
    if code != 0:
        raise AssertionError("%s of %s: exit %d: %s" % (tree, source, code, said))
    found = {}
    for name in sorted(os.listdir(out)):
        if name.endswith(".safetensors"):
            found.update(read(os.path.join(out, name)))
    return found, os.path.exists(os.path.join(out, "config.json"))


def check_values(binary, at):
    """As stored, and from fsdpck's own checkpoints of 1, 3 and 5 ranks."""
    for stage in STAGES:
        sources = [os.path.join(FIXTURES, stage), os.path.join(FIXTURES, stage, step_of(stage))]
        for ranks in (1, 3, 5):
            sources.append(os.path.join(at, "%s-%d" % (stage, ranks)))
            code, _, said = run(binary, "convert", sources[0], sources[-1], "--ranks", str(ranks))
            assert code == 0, said
        for source in sources:
            for tree, which in TREES.items():
                found, has_config = tensors(binary, source, tree, at)
                prefix = "state." if tree == "optim" else ""
                wanted = reference(stage, which)
                if stage == "zero2" and has_config:
                    # Tied, and config.json says so: the folder of a model does not repeat it.
                    wanted.pop("lm_head.weight", None)
                wrong = [name for name in wanted if found.get(prefix + name) != wanted[name]]
                assert wanted and not wrong, (source, tree, wrong[:3])
                assert has_config == (source != sources[1]), source
        code, said, _ = run(binary, "verify", sources[0])
        assert code == 0 and "no problems" in said, said


def check_refused(binary, at, stage, words, spoil, code=3):
    folder = os.path.join(at, "spoiled")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(FIXTURES, stage), folder)
    spoil(os.path.join(folder, step_of(stage)))
    found, _, said = run(binary, "ls", folder)
    assert found == code and words in said and said.count("\n") <= 2, (stage, words, found, said)


def rename(old, new):
    return lambda at: os.rename(os.path.join(at, old), os.path.join(at, new))


def copy(old, new):
    return lambda at: shutil.copyfile(os.path.join(at, old), os.path.join(at, new))


def remove(name):
    return lambda at: os.remove(os.path.join(at, name))


def of_other_run(stage, name):
    return lambda at: shutil.copyfile(os.path.join(FIXTURES, stage, STEP, name % 1), os.path.join(at, name % 1))


def both(first, second):
    return lambda at: (first(at), second(at))


# ---- universal checkpoints ----

HEAD = "zero/lm_head.weight/"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def change_pickle(path, change):
    """Writes a torch.save file again, with another pickle."""
    with zipfile.ZipFile(path) as z:
        records = [(name, z.read(name)) for name in z.namelist()]
    with zipfile.ZipFile(path, "w") as z:
        for name, content in records:
            z.writestr(name, change(content) if name.endswith("data.pkl") else content)


def replaced(old, new):
    def change(content):
        assert content.count(old) == 1, content
        return content.replace(old, new)

    return change


def changed(name, old, new):
    return lambda at: change_pickle(os.path.join(at, name), replaced(old, new))


def remove_tree(name):
    return lambda at: shutil.rmtree(os.path.join(at, name))


def without_dict(content):
    """The tensor alone, as DeepSpeed saves parameters that it does not merge."""
    return content[:2] + content[content.index(b"ctorch._utils") : content.rindex(b"u.")] + b"."


def check_from_zero3(binary, at):
    """Converted from ZeRO-3: parameters lie flat, some of them alone, and the model is what the fp32 weights say."""
    folder = os.path.join(at, "from-zero3")
    shutil.copytree(os.path.join(FIXTURES, "universal"), folder)
    step = os.path.join(folder, UNIVERSAL)
    os.rename(os.path.join(step, STATES["zero1"]), os.path.join(step, STATES["zero3"] % 0))
    for name in ("fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"):
        path = os.path.join(step, HEAD, name)
        change_pickle(path, replaced(b"K=K\x12\x86", b"MJ\x04\x85"))
        change_pickle(path, replaced(b"K\x12K\x01\x86", b"K\x01\x85"))
    change_pickle(os.path.join(step, HEAD, "exp_avg.pt"), without_dict)
    for tree, which in TREES.items():
        found, _ = tensors(binary, folder, tree, at)
        prefix, wanted = "state." if tree == "optim" else "", reference("universal", which)
        assert all(found.get(prefix + name) == wanted[name] for name in wanted), tree


def check_two_optimizers(binary, at):
    """One parameter has another optimizer than the rest, with one state of another name."""
    folder = os.path.join(at, "two-optimizers")
    shutil.copytree(os.path.join(FIXTURES, "universal"), folder)
    head = os.path.join(folder, UNIVERSAL, HEAD)
    os.remove(os.path.join(head, "exp_avg_sq.pt"))
    os.rename(os.path.join(head, "exp_avg.pt"), os.path.join(head, "momentum_buffer.pt"))
    found, _ = tensors(binary, folder, "optim", at)
    wanted = reference("universal", TREES["optim"])
    assert found["state.lm_head.weight.momentum_buffer"] == wanted["lm_head.weight.exp_avg"]
    assert "state.lm_head.weight.exp_avg" not in found and "state.model.norm.weight.exp_avg" in found


def check_sliced(binary, at):
    """Two tensor-parallel ranks, joined by DeepSpeed's conversion: the model is what the fp32 weights say, and the
    vocabulary has no padding. Buffers have folders of their own too."""
    source, sharded = os.path.join(FIXTURES, "universal-tp"), os.path.join(at, "sliced")
    code, _, said = run(binary, "convert", source, sharded, "--ranks", "3")
    assert code == 0, said
    for tree, which in (("model", "REF"), ("master", "REF"), ("optim", "REF-optimizer")):
        for folder in (source, sharded):
            out = os.path.join(at, "sliced.safetensors")
            code, _, said = run(binary, "export", folder, out, "--force", "--select", tree)
            found, prefix = read(out), "state." if tree == "optim" else ""
            wanted = read(os.path.join(FIXTURES, "universal-tp.%s.safetensors" % which))
            wrong = [name for name in wanted if found.get(prefix + name) != wanted[name]]
            assert code == 0 and len(wanted) > 5 and not wrong, (tree, folder, wrong)
            assert ("inv_freq" in found) == (tree == "model"), list(found)


def check_experts(binary, at):
    """The files of experts belong to the model; what the optimizer holds is left out, and that is said."""
    out = os.path.join(at, "moe.safetensors")
    code, _, said = run(binary, "export", os.path.join(FIXTURES, "moe"), out)
    assert code == 0 and "only the weights of this mixture of experts are read" in said, said
    found, wanted = read(out), read(os.path.join(FIXTURES, "moe.REF.safetensors"))
    assert found == wanted and len(found) == 19, sorted(found)


def expert(e):
    return "layer_0_expert_%d_mp_rank_00_model_states.pt" % e


ROW = "zero/row.weight/fp32.pt"
STEP_KEY = b"X\x04\0\0\0stepq"
REFUSED = [
    ("zero1", "rank 0 is missing: its optim_states file", remove(OPTIM % 0)),
    ("zero1", "is of a run of 2, and there are partitions of 1 rank", remove(OPTIM % 1)),
    ("zero1", "is of a run of 2, and there are partitions of 3 ranks", copy(OPTIM % 1, OPTIM % 2)),
    ("zero1", "holds rank 1 twice", copy(OPTIM % 1, (OPTIM % 1)[5:])),
    ("zero1", "ds_to_universal", copy("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt")),
    ("zero1", "cut by a pipeline", copy("mp_rank_00_model_states.pt", "layer_00-model_00-model_states.pt")),
    ("zero1", "of two saves", copy("mp_rank_00_model_states.pt", STATES["zero3"] % 0)),
    ("zero1", "says that there are 4 partitions", of_other_run("zero2", OPTIM)),
    ("zero1", "has more than 64 values beside the flat tensors of group 0",
     changed(OPTIM % 0, STEP_KEY, b"".join(b"X\x03\0\0\0k%02dK\x01" % i for i in range(64)) + STEP_KEY)),
    ("zero2", "says that there are 2 partitions", of_other_run("zero1", OPTIM)),
    ("zero1", "has no list 'optimizer_state_dict.single_partition_of_fp32_groups'", of_other_run("zero3", OPTIM)),
    ("zero3", "model states of 1 rank and partitions of 2", remove(STATES["zero3"] % 1)),
    ("zero3", "model states of 2 ranks and partitions of 0", both(remove(OPTIM % 0), remove(OPTIM % 1))),
    ("zero3", "rank 0 is missing: its model_states file", remove(STATES["zero3"] % 0)),
    ("universal", "tensor 'lm_head.weight': has no folder of this parameter", remove_tree(HEAD)),
    ("universal", "has no fp32.pt, the weights", remove(HEAD + "fp32.pt")),
    ("universal", "other states of the optimizer than the folder of", remove(HEAD + "exp_avg_sq.pt")),
    ("universal", "other states of the optimizer", both(remove(HEAD + "exp_avg.pt"), remove(HEAD + "exp_avg_sq.pt"))),
    ("universal", "is no parameter that the model states list", lambda at: os.mkdir(os.path.join(at, "zero/stray"))),
    ("universal", "has shape [60, 18], the model states say [61, 18]", changed(HEAD + "fp32.pt", b"K=K", b"K<K")),
    ("universal", "is int32, float32 is wanted", changed(HEAD + "exp_avg.pt", b"FloatStorage", b"IntStorage")),
    ("universal", "neither a tensor nor a dict with one, 'param'", changed(HEAD + "fp32.pt", b"paramq", b"partsq")),
    ("universal", "is stored as no dense tensor", changed(HEAD + "fp32.pt", b"K\x12K\x01\x86", b"K\x01K\x01\x86")),
    ("universal", "asks for 'os.system'", changed(HEAD + "step.pt", REBUILD, b"cos\nsystem\n")),
    ("universal", "partitions and 'zero/': files of two saves", copy("mp_rank_00_model_states.pt", OPTIM % 0)),
    ("universal-tp", "rank 0 is missing: its model_states file", remove("mp_rank_00_model_states.pt")),
    ("universal-tp", "rank 1 is missing", rename("mp_rank_01_model_states.pt", "mp_rank_02_model_states.pt")),
    ("universal-tp", "has shape [8, 6], the files beside it say [6, 8]",
     both(changed(ROW, b"K\x06K\x08\x86", b"K\x08K\x06\x86"), changed(ROW, b"K\x08K\x01\x86", b"K\x06K\x01\x86"))),
    ("universal-tp", "has shape [5, 8], the files beside it say [6, 8]",
     changed(ROW, b"K\x06K\x08\x86", b"K\x05K\x08\x86")),
    ("universal-tp", "has shape [5], the model states say [6]",
     changed("zero/norm.weight/exp_avg.pt", b"K\x06\x85", b"K\x05\x85")),
    ("universal-tp", "is no parameter that the model states list", lambda at: os.mkdir(os.path.join(at, "zero/stray"))),
    ("moe", "not 'layer_0_expert_1_mp_rank_00_model_states.pt'", remove(expert(1))),
    ("moe", "has 4 experts, and there are files of 3", remove(expert(3))),
    ("moe", "has 4 experts, and there are files of 5", copy(expert(0), expert(4))),
    ("moe", "is listed twice", copy(expert(0), expert(3))),
    ("moe", "cut by tensor parallelism", rename(expert(3), expert(3).replace("rank_00", "rank_01"))),
    ("zero3", "files of experts beside model states of ZeRO-3", copy(OPTIM % 0, expert(0))),
]


def check_flipped(binary, at):
    """A flipped byte of a partition is found by the zip's CRC-32 when it is read."""
    folder = os.path.join(at, "flipped")
    shutil.copytree(os.path.join(FIXTURES, "zero2"), folder)
    path = os.path.join(folder, STEP, OPTIM % 2)
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    code, _, said = run(binary, "convert", folder, os.path.join(at, "never"), "--ranks", "2")
    assert code == 3 and OPTIM % 2 in said and not os.path.exists(os.path.join(at, "never")), (code, said)


def check_latest(binary, at):
    """A name with folders in it, or of a folder without a checkpoint, leads nowhere."""
    folder = os.path.join(at, "latest")
    shutil.copytree(os.path.join(FIXTURES, "zero1"), folder)
    for text in ("../latest/" + STEP, "", "nowhere"):
        with open(os.path.join(folder, "latest"), "w") as f:
            f.write(text)
        code, _, said = run(binary, "ls", folder)
        assert code == 3 and "no checkpoint found" in said, (text, code, said)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary, failures = os.path.abspath(sys.argv[1]), 0
    with tempfile.TemporaryDirectory(prefix="fsdpck-deepspeed-") as at:
        checks = [(check_values, ), (check_from_zero3, ), (check_two_optimizers, ), (check_sliced, ), (check_experts, ),
                  (check_flipped, ), (check_latest, )]
        checks += [(check_refused, stage, words, spoil) for stage, words, spoil in REFUSED]
        for check, *args in checks:
            try:
                check(binary, at, *args)
            except AssertionError as e:
                failures += 1
                print("FAIL %s%s: %s" % (check.__name__, args[:2], e))
    print("%d passed, %d failed" % (len(checks) - failures, failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
