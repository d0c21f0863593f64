# SPDX-License-Identifier: Apache-2.0
"""The examples of the Python package. Ranks are forked, because importing torch in each costs seconds."""
import contextlib, importlib.util, io, json, os, shutil, subprocess, sys

import ckpt_common as c
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = os.path.join(TOP, "python", "examples")
MODEL = os.path.join(TOP, "fixtures", "tiny-llama-tied")


def load(name):
    spec = importlib.util.spec_from_file_location("example", os.path.join(EXAMPLES, name))
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def run(rank, nranks, name, *args):
    """The lines that an example prints, in a process group that is there already."""
    example, out = load(name), io.StringIO()
    dist.init_process_group = dist.destroy_process_group = lambda *args: None
    with contextlib.redirect_stdout(out):
        example.main(*args)
    return out.getvalue().splitlines()


def differ(want, got):
    """The losses of two trainings, each of which moved its weights."""
    same = len(want) == len(got) == 6 and all(abs(a - b) < 2e-3 for a, b in zip(want, got))
    return [] if same and want[0] != want[-1] else ["losses %s" % got, "instead of %s" % want]


def resumes(work, name):
    """Ended after four steps and resumed at another number of ranks, it prints what one run prints."""
    whole, parts = os.path.join(work, name, "whole"), os.path.join(work, name, "parts")
    want = c.run_ranks(1, run, name, MODEL, whole, 6)[0]
    got = c.run_ranks(2, run, name, MODEL, parts, 4)[0] + c.run_ranks(3, run, name, MODEL, parts, 6)[0]
    return differ(*([float(line.split()[-1]) for line in lines] for lines in (want, got)))


def trainer(work):
    """Its checkpoint of step 4 leads to the same steps 5 and 6. (Trainer logs a loss of one rank.)"""
    out, losses = os.path.join(work, "trainer"), []
    for _ in "first", "resumed":
        c.run_ranks(2, run, "hf_trainer.py", MODEL, out, 6)
        last = os.path.join(out, "checkpoint-6")
        with open(os.path.join(last, "trainer_state.json")) as f:
            losses.append([entry["loss"] for entry in json.load(f)["log_history"] if "loss" in entry])
        if os.path.exists(os.path.join(last, "model.safetensors")):
            return ["the weights are there twice"]
        shutil.rmtree(last)
    return differ(*losses)


def adapter(work):
    """PEFT loads what was exported, and computes with it what the last step's loss says."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    out = os.path.join(work, "adapter")
    os.makedirs(out)
    lines = c.run_ranks(2, run, "peft_lora.py", MODEL, out, 3)[0]
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        before = base(input_ids=ids, labels=ids).loss.item()
        tuned = PeftModel.from_pretrained(base, os.path.join(out, "adapter"))
        after = tuned(input_ids=ids, labels=ids).loss.item()
    want = float(c.run_ranks(2, run, "peft_lora.py", MODEL, out + "-longer", 4)[0][-1].split()[-1])
    bad = [] if abs(after - want) < 2e-3 and len(lines) == 3 else ["PEFT's loss %f instead of %f" % (after, want)]
    return bad if abs(before - after) > 0.01 else bad + ["the adapter changes nothing: %f, %f" % (before, after)]


class State:
    """What torchtitan calls an optimizer, a scheduler, a dataloader or a train state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = dict(state)


def manage(rank, nranks, folder, mode, scale):
    """Saves steps 1 and 2 and returns nothing, or with scale 0 loads the newest and returns it."""
    example = load("torchtitan_storage.py")
    model = torch.nn.Linear(6, 5, bias=False)
    torch.nn.init.constant_(model.weight, scale)
    fully_shard(model)
    moment = torch.full((7, ), float(scale))
    states = [State({"step": scale}), State({"moment": moment}), State({"last_epoch": scale}), State({"at": scale})]
    config = example.Checkpoints.Config(enable=True, folder="titan", interval=1, async_mode=mode)
    manager = config.build(dataloader=states[3], model_parts=[model], optimizers=states[1], lr_schedulers=states[2],
                           states={"train_state": states[0]}, sd_adapter=None, base_folder=folder)
    if scale == 0:
        manager.load()
        states[1].state["moment"] = states[1].state["moment"].tolist()
        return model.weight.full_tensor().tolist(), [s.state for s in states]
    for step in 1, 2:
        manager.save(step, last_step=False)
    manager.maybe_wait_for_saving()
    manager.close()


def titan(work):
    import fsdpck
    bad = []
    for mode in "disabled", "async":
        folder = os.path.join(work, mode)
        c.run_ranks(2, manage, folder, mode, 3)
        if fsdpck.verify(os.path.join(folder, "titan", "step-2")).problems:
            bad.append("%s: damaged" % mode)
        with fsdpck.open(os.path.join(folder, "titan", "step-2")) as source:
            if source.kind != "fsdpck":
                bad.append("%s: saved by another writer: %s" % (mode, source.kind))
        for weight, (train, optimizer, scheduler, data) in c.run_ranks(3, manage, folder, mode, 0):
            if weight != [[3.0] * 6] * 5 or optimizer["moment"] != [3.0] * 7:
                bad.append("%s: %s %s" % (mode, weight, optimizer))
            if (train["step"], scheduler["last_epoch"], data["at"]) != (3, 3, 3):
                bad.append("%s: %s %s %s" % (mode, train, scheduler, data))
    return bad


def jax_arrays(package):
    """In a process of its own: JAX's threads do not survive the forks of the other checks."""
    code = ("import sys; sys.path[:0] = sys.argv[1:3]; import jax_arrays as e, fsdpck, jax, numpy as np\n"
            "mesh = jax.sharding.Mesh(np.array(jax.devices()), ('shard', ))\n"
            "with fsdpck.open(sys.argv[3]) as source:\n"
            "    arrays = e.load(source, mesh)\n"
            "    for name, array in arrays.items():\n"
            "        parts = [s.data.nbytes for s in array.addressable_shards]\n"
            "        whole = e.whole(sys.argv[3], name)\n"
            "        assert parts == [array.nbytes // 4] * 4, (name, parts)\n"
            "        assert array.dtype == whole.dtype == jax.numpy.bfloat16, name\n"
            "        want = source[name].numpy(raw=True)\n"
            "        assert all((np.asarray(a).view('uint16') == want).all() for a in (array, whole)), name\n"
            "print(len(arrays))\n")
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    command = [sys.executable, "-c", code, package, EXAMPLES, MODEL]
    got = subprocess.run(command, env=env, capture_output=True, text=True)
    return [] if got.stdout == "21\n" else [got.stdout, got.stderr]


def check_all(checks, work, package):
    os.makedirs(work)
    checks.run("Python: the example of FSDP2", resumes, work, "fsdp2.py")
    checks.run("Python: the example of accelerate", resumes, work, "accelerate_fsdp2.py")
    checks.run("Python: the example of transformers' Trainer", trainer, work)
    checks.run("Python: the example of PEFT", adapter, work)
    checks.run("Python: the example of torchtitan", titan, work)
    checks.run("Python: the example of JAX", jax_arrays, package)
