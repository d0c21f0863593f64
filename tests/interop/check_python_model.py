# SPDX-License-Identifier: Apache-2.0
"""fsdpck.torch.load_model(): models on the meta device, plain and sharded, compute what the whole model computes; each
rank reads its own shards only; what does not fit is refused as torch refuses it."""
import os

import ckpt_common as c
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

IDS = torch.tensor([1, 5, 10])


class Net(nn.Module):
    """A tied head, odd sizes, buffers of each kind."""

    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.head.weight = self.emb.weight
        self.register_buffer("shift", torch.tensor(3.0))
        self.register_buffer("scale", torch.arange(6.0), persistent=False)
        self.register_buffer("unused", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.head(self.down(self.up(self.emb(x) * self.scale).relu()) + self.shift)


def real():
    torch.manual_seed(0)
    return Net()


def on_meta():
    with torch.device("meta"):
        return Net()


def init_buffers(module):
    """Once for both of its buffers."""
    module.scale.copy_(torch.arange(6.0))
    module.ninits = getattr(module, "ninits", 0) + 1


def shard(model, layout):
    if layout == "fsdp":
        fully_shard(model.up)
        fully_shard(model)
    elif layout == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    elif layout == "tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])


def start(rank, nranks, path, layout):
    """Differences, and the bytes that this rank asked for."""
    import fsdpck
    model, done = on_meta(), []
    shard(model, layout)
    before = {n: id(p) for n, p in model.named_parameters()}
    with fsdpck.open(path, progress=lambda now, total: done.append(total)) as source:
        fsdpck.torch.load_model(model, source, init_buffers=init_buffers)
    bad = [] if before == {n: id(p) for n, p in model.named_parameters()} else ["other parameters"]
    if model.head.weight is not model.emb.weight:
        bad.append("the tie is broken")
    if not torch.allclose(model(IDS), real()(IDS), atol=1e-6):
        bad.append("other results")
    return bad, done[-1]


def sharded(work):
    import fsdpck
    path, bad = os.path.join(work, "net"), []
    fsdpck.save(real().state_dict(), path)
    whole = sum(p.numel() * 4 for p in real().parameters()) + 4
    for nranks, layout, share in ((3, "fsdp", 3), (4, "hsdp", 2), (4, "tp", 2)):
        results = c.run_ranks(nranks, start, path, layout)
        bad += ["%s, rank %d of %d: %s" % (layout, r, nranks, b) for r, (b, _) in enumerate(results) if b]
        # rows are cut unevenly, the first ranks have more; the buffer is on every rank
        if max(nbytes for _, nbytes in results) > whole / share * 1.3 + 4:
            bad.append("%s of %d ranks: read %s of %d bytes" % (layout, nranks, [n for _, n in results], whole))
    return bad


def plain(work):
    """Cast, renamed, behind wrappers, real parameters beside those on meta, and names that are missing."""
    import fsdpck
    path, bad = os.path.join(work, "net-plain"), []
    stored = {"net." + n: t for n, t in real().state_dict().items() if n != "head.weight"}
    fsdpck.save(stored, path)
    model = on_meta().bfloat16()
    model.up = torch.compile(nn.Linear(6, 10, dtype=torch.bfloat16))
    fsdpck.torch.load_model(model, path, names=lambda n: "net." + n, init_buffers=init_buffers)
    for name, tensor in real().bfloat16().state_dict().items():
        if not torch.equal(model.state_dict()[name.replace("up.", "up._orig_mod.")], tensor):
            bad.append(name)
    if model.ninits != 1:
        bad.append("init_buffers was called %d times" % model.ninits)
    model = on_meta()
    names = {n: "net." + n for n in model.state_dict()}
    names["up.bias"] = "nothing"
    loaded = fsdpck.torch.load_model(model, path, names=names, strict=False, init_buffers=init_buffers)
    if loaded != (["up.bias"], ["net.up.bias"]) or not model.up.bias.is_meta or model.up.weight.is_meta:
        bad.append(repr(loaded))
    return bad


def message(fn, *args, **more):
    try:
        fn(*args, **more)
    except Exception as e:
        return "%s: %s" % (type(e).__name__, e)
    return "nothing was refused"


def refused(work):
    """With torch's own words, and before anything changes."""
    import fsdpck
    bad = []
    for what, change in (("names", {"up.bias": None, "extra": torch.ones(1)}), ("sizes", {"up.bias": torch.ones(9)})):
        state = dict(real().state_dict(), **change)
        state = {n: t for n, t in state.items() if t is not None}
        path, model = os.path.join(work, "net-" + what), on_meta()
        fsdpck.save(state, path)
        ours = message(fsdpck.torch.load_model, model, path, init_buffers=init_buffers)
        theirs = message(real().load_state_dict, state)
        if ours != theirs or not all(p.is_meta for p in model.parameters()):
            bad += [ours, theirs]
    fsdpck.save(real().state_dict(), os.path.join(work, "net-whole"))
    model = on_meta()
    text = message(fsdpck.torch.load_model, model, os.path.join(work, "net-whole"))
    if "UsageError" not in text or "scale" not in text or not model.emb.weight.is_meta:
        bad.append(text)
    return bad


def of_transformers(top):
    from transformers import AutoConfig, AutoModelForCausalLM
    import fsdpck
    path = os.path.join(top, "fixtures", "tiny-llama-tied")
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    with torch.device("meta"):
        ours = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.bfloat16)
    fsdpck.torch.load_model(ours, path, init_buffers=ours._init_weights)
    return [] if torch.equal(ours(IDS[None]).logits, theirs(IDS[None]).logits) else ["other logits"]


def check_all(checks, work, top):
    import fsdpck.torch  # noqa: F401
    checks.run("Python: load_model() sharded", sharded, work)
    checks.run("Python: load_model() cast, renamed and in part", plain, work)
    checks.run("Python: load_model() refuses as torch does", refused, work)
    checks.run("Python: load_model() of a transformers model", of_transformers, top)
