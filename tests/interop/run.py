#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdpck against the real PyTorch, safetensors, transformers, PEFT and diffusers: what it writes they load, what they
write it reads, bit for bit.

usage: run.py BINARY --smollm2 FOLDER [--quick] [--only WORD] [--keep DIR]

Prints a line for each check and "N passed, N failed". One process does it all, because importing torch costs
seconds."""
import argparse, importlib.util, json, logging, os, shutil, subprocess, sys, tempfile, time, traceback

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
import ckpt_common as c
import check_dcp, check_flux2, check_lora, check_lora_styles, check_lora_versions, check_lora_whole, check_safetensors
import check_expert_adapters, check_moe, check_placement, check_python, check_quant, check_quant_forms, check_quantize
import check_template, check_tensorboard, check_tinker, check_tokenizer, check_trainers, check_ui
import first_run, make_dcp, make_pt, resume
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
TENSOR_PARALLEL = ["--mesh", "dp=2,tp=2", "--placement", "*.[qkv]_proj.weight=strided_shard(0,2)@dp,shard(0)@tp",
                   "--placement", "*.down_proj.weight=shard(0)@dp,shard(1)@tp", "--replicate", "*norm.weight"]
SMOLLM2 = [("ranks1", ["--ranks", "1"], 0), ("ranks2", ["--ranks", "2"], 0), ("ranks3", ["--ranks", "3"], 2),
           ("ranks5", ["--ranks", "5"], 0), ("ranks8", ["--ranks", "8"], 0),
           ("hsdp", ["--mesh", "replicate=2,shard=2"], 0), ("2d", TENSOR_PARALLEL, 4)]
# What make_dcp.py is asked for, and the ranks or mesh that fsdpck then makes of it.
FOREIGN = [("--ranks 1", ["--ranks", "3"]), ("--ranks 2 --bf16 --optimizer", ["--ranks", "5"]),
           ("--ranks 3 --uneven --optimizer --dtypes", ["--ranks", "5"]), ("--ranks 4", ["--ranks", "1"]),
           ("--ranks 5 --uneven --threads 2", ["--ranks", "2"]), ("--ranks 4 --mesh 2x2", ["--ranks", "3"]),
           ("--ranks 4 --mesh 2x2 --uneven --optimizer --dtypes", ["--mesh", "replicate=2,shard=3"]),
           ("--ranks 4 --mesh 2x2 --layout tp", ["--ranks", "8"]),
           ("--ranks 4 --mesh 2x2 --layout tp --uneven --optimizer",
            ["--mesh", "dp=2,tp=2", "--placement", "*.weight=shard(0)@tp"]),
           ("--ranks 3 --file-per-item", ["--ranks", "4"]), ("--ranks 2 --async --optimizer", ["--ranks", "3"]),
           ("--ranks 3 --uneven --optimizer --rank-local", ["--ranks", "2"]),
           ("--ranks 3 --uneven --optimizer --dtypes --zstd", ["--mesh", "replicate=2,shard=2"]),
           ("--ranks 4 --threads 2 --file-per-item --dtypes --bf16 --async", ["--ranks", "2"])]
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]


class Checks:
    def __init__(self, only):
        self.only, self.npassed, self.nfailed = only, 0, 0

    def run(self, name, fn, *args):
        """fn returns [differences]; an exception is one too. Whether it passed."""
        if self.only and self.only not in name:
            return True
        t = time.time()
        try:
            bad = fn(*args)
        except Exception as e:
            bad = [f"{type(e).__name__}: {e}"
                   ] + ([] if isinstance(e, ToolError) else traceback.format_exc().splitlines()[-4:])
        print(f"{'FAIL' if bad else 'ok  '} {name} ({time.time() - t:.1f} s)", flush=True)
        for line in bad[:12]:
            print("     " + line)
        if bad:
            self.nfailed += 1
        else:
            self.npassed += 1
        return not bad


class ToolError(Exception):
    pass


class Tool:
    def __init__(self, binary):
        self.binary = os.path.abspath(binary)

    def __call__(self, *args):
        p = subprocess.run([self.binary, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
        if p.returncode:
            raise ToolError(f"fsdpck {' '.join(args)} ended with {p.returncode}: {p.stdout}{p.stderr}")
        return p.stdout


def nested_shape(x):
    """Keys and types of a nested state dict, without the values."""
    if isinstance(x, dict):
        return {k: nested_shape(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [type(x).__name__] + [nested_shape(v) for v in x]
    return f"{c.dtype_name(x.dtype)} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


def nested_differences(a, b):
    """torch's dcp_to_torch_save of directories a and b gives the same nested keys and types, and the same tensors."""
    saved = []
    for d in (a, b):
        file = d.rstrip("/") + ".pt"
        dcp_to_torch_save(d, file)
        saved.append(torch.load(file, weights_only=False))
        os.unlink(file)
    if nested_shape(saved[0]) != nested_shape(saved[1]):
        return [f"nested keys: {nested_shape(saved[0])}", f"and:         {nested_shape(saved[1])}"]
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict
    flat = [flatten_state_dict(s)[0] for s in saved]
    return [d for k, v in flat[0].items() if isinstance(v, torch.Tensor) and (d := c.compare(k, flat[1][k], v))]


# --- text

def text(checks, binary, smollm2, quick):
    """Tokenizers: 260,000 strings; templates: 3,000 random expressions. The programs that answer are built beside the
    tool."""
    programs = os.path.join(os.path.dirname(os.path.abspath(binary)), "..", "..", "tests", "text")
    goldens = os.path.join(TOP, "tests", "text", "goldens")
    for seed, (name, folder) in enumerate(
        [
            *((s, os.path.join(goldens, s)) for s in ("gpt2", "llama2", "llama3", "metaspace", "mistral", "qwen2")),
            ("SmolLM2", smollm2),
        ]
    ):
        checks.run(
            f"tokenizer {name}: random strings",
            check_tokenizer.check,
            os.path.join(programs, "encode_lines"),
            os.path.join(folder, "tokenizer.json"),
            1000 if quick else 20000,
            seed,
        )
    with tempfile.TemporaryDirectory() as work:
        for seed, name in enumerate(check_tokenizer.VARIANTS):
            checks.run(
                f"tokenizer with {name}: random strings",
                check_tokenizer.check_variant,
                os.path.join(programs, "encode_lines"),
                goldens,
                name,
                work,
                1000 if quick else 10000,
                seed,
            )
    checks.run(
        "templates: as transformers runs them",
        check_template.check,
        os.path.join(programs, "render_lines"),
        200 if quick else 3000,
        1,
    )


# --- a real model

def smollm2_ref(folder):
    """What a checkpoint of the folder must list: config.json ties lm_head.weight to the embedding, so both names."""
    ref = c.read_ref(os.path.join(folder, "model.safetensors"))
    ref["lm_head.weight"] = ref["model.embed_tokens.weight"]
    return ref


def check_smollm2(tool, folder, work, name, layout, ranks, ref):
    """convert, load with torch, export, load with safetensors."""
    dir, out = os.path.join(work, name), os.path.join(work, name + "-hf")
    tool("convert", "-q", folder, dir, *layout)
    tool("verify", "-q", dir)
    bad = check_dcp.check(dir, ref, {}, ranks=ranks)
    tool("export", "-q", dir, out, "--max-shard-size", "100MB")
    bad += check_safetensors.check(out, {k: v for k, v in ref.items() if k != "lm_head.weight"})
    tool("diff", "-q", folder, out)
    return bad


def check_one_file(tool, work, dir, ref):
    """One safetensors file, and from it a checkpoint again. Without a config.json beside it nothing says that the head
    is tied."""
    file, again = os.path.join(work, "one.safetensors"), os.path.join(work, "again")
    tool("export", "-q", dir, file)
    bad = check_safetensors.check(file, {k: v for k, v in ref.items() if k != "lm_head.weight"})
    tool("convert", "-q", file, again, "--ranks", "2", "--alias", "lm_head.weight=model.embed_tokens.weight")
    tool("diff", "-q", dir, again)
    return bad


def check_same_nesting(work, dir, ref):
    """torch's own save of the same state dict."""
    own = os.path.join(work, "own")
    dcp.save(dict(ref), checkpoint_id=own, no_dist=True)
    return nested_differences(own, dir)


def check_average(tool, work, ref):
    """Of a folder, torch's own DCP save and a file, in three types, against torch's fp32 arithmetic."""
    bad, weights = [], [0.6, -0.35, 0.1]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        torch.manual_seed(7)
        models = [
            {k: (v.float() + n * torch.randn(v.shape) * 0.01).to(dtype) for k, v in ref.items() if "layers.0." in k}
            for n in range(3)
        ]
        dcp_dir, sharded = os.path.join(work, "average-dcp"), os.path.join(work, "average-3")
        files = [os.path.join(work, f"average{n}.safetensors") for n in range(3)]
        out = os.path.join(work, "averaged.safetensors")
        for file, model in zip(files, models):
            c.write_ref(file, model)
        shutil.rmtree(dcp_dir, ignore_errors=True)
        dcp.save({"model": models[1], "optim": {"w": torch.ones(3)}}, checkpoint_id=dcp_dir, no_dist=True)
        tool("convert", "-q", files[2], sharded, "--ranks", "3", "--force")
        for given in ([], ["--weights", ",".join(map(str, weights))]):
            tool("average", "-q", files[0], dcp_dir, sharded, out, "--force", *given)
            want = {}
            for k in models[0]:
                x = [m[k].float() for m in models]
                w = [torch.tensor(f, dtype=torch.float32) for f in weights]
                sum_ = (x[0] * w[0] + x[1] * w[1]) + x[2] * w[2] if given else ((x[0] + x[1]) + x[2]) / 3
                want[k] = sum_.to(dtype)
            bad += [f"{dtype} {given}: {b}" for b in check_safetensors.check(out, want)]
    return bad


def check_generation(folder, exported):
    from generate import greedy
    want, got = greedy(folder, PROMPTS), greedy(exported, PROMPTS)
    return [f"{a[1]!r}, the original says {b[1]!r}" for a, b in zip(got, want) if a != b]


def check_second_reader(dir, ref):
    sys.path.insert(0, os.path.join(TOP, "tests", "reader"))
    import fsdpck_reader
    arrays, bad = fsdpck_reader.read(dir)
    if arrays.keys() != ref.keys():
        bad.append(f"names differ: {arrays.keys() ^ ref.keys()}")
    return bad + [f"{k}: other bytes" for k in arrays.keys() & ref.keys() if arrays[k].tobytes() != c.raw_bytes(ref[k])]


def real_model(checks, tool, folder, work, quick):
    ref = smollm2_ref(folder)
    for name, layout, ranks in SMOLLM2:
        if not quick or name == "ranks3":
            checks.run(f"SmolLM2: {name}", check_smollm2, tool, folder, work, name, layout, 0 if quick else ranks, ref)
            if name != "ranks3":
                shutil.rmtree(os.path.join(work, name), ignore_errors=True)
                shutil.rmtree(os.path.join(work, name + "-hf"), ignore_errors=True)
    dir = os.path.join(work, "ranks3")
    checks.run("SmolLM2: one file and back", check_one_file, tool, work, dir, ref)
    checks.run("SmolLM2: averages as torch computes them", check_average, tool, work, ref)
    checks.run("SmolLM2: nested keys as torch's own save", check_same_nesting, work, dir, ref)
    if not quick:
        checks.run("SmolLM2: the second reader", check_second_reader, dir, ref)


# --- what torch writes

def check_foreign(tool, ckpt, layout, nranks, ref, items, work, ranks):
    """A directory of torch's to another layout and back; torch loads both; the way it nests stays."""
    there, back = os.path.join(work, "there"), os.path.join(work, "back")
    tool("verify", "-q", ckpt)
    tool("reshard", "-q", ckpt, there, *layout)
    tool("verify", "-q", there)
    bad = [f"there: {d}" for d in check_dcp.check(there, ref, items, ranks=ranks)]
    tool("reshard", "-q", there, back, "--ranks", str(nranks))
    bad += [f"back: {d}" for d in check_dcp.check(back, ref, items)]
    tool("diff", "-q", ckpt, back)
    whole = os.path.exists(os.path.join(ckpt, ".metadata"))  # of a rank-local save torch itself reads one rank only
    return bad + nested_differences(ckpt if whole else there, back)


def check_made(tool, options, layout, work, ranks):
    made = make_dcp.make([os.path.join(work, "made"), *options.split()])
    ref = c.read_ref(os.path.join(made.out, "REF.safetensors"))
    with open(os.path.join(made.out, "REF.json")) as f:
        items = json.load(f)["items"]
    ckpt = os.path.join(made.out, "ckpt")
    bad = check_foreign(tool, ckpt, layout, made.ranks, ref, items, work, ranks)
    out = os.path.join(work, "model.safetensors")
    tool("export", "-q", os.path.join(work, "there"), out)
    model = {k.removeprefix("model."): v for k, v in ref.items() if k.startswith("model.")}
    return bad + [f"export: {d}" for d in check_safetensors.check(out, model)]


def fixture_truth(folder):
    """(tensors, items) of a folder that make_dcp_any.py made."""
    with open(os.path.join(folder, "REF.json"), encoding="utf-8") as f:
        doc = json.load(f)
    make = lambda t: torch.tensor(t["values"], dtype=torch.float64).to(getattr(torch, t["dtype"])).reshape(t["shape"])
    return {k: make(t) for k, t in doc["tensors"].items()}, doc["items"]


def foreign(checks, tool, work, quick):
    for i, (options, layout) in enumerate(FOREIGN[2:3] if quick else FOREIGN):
        with tempfile.TemporaryDirectory(dir=work) as sub:
            checks.run(f"torch wrote: {options}", check_made, tool, options, layout, sub, 3 if i in (2, 6) else 0)
    for version in ("2.4", "2.6", "2.15", "2.15-python-3.11.2"):
        folder = os.path.join(TOP, "fixtures", "dcp", "torch-" + version)
        with tempfile.TemporaryDirectory(dir=work) as sub:
            ckpt = os.path.join(sub, "ckpt")
            checks.run(f"fixture of torch {version}", lambda: shutil.copytree(os.path.join(folder, "ckpt"), ckpt) and
                       check_foreign(tool, ckpt, ["--ranks", "2"], 3, *fixture_truth(folder), sub, 0))


# --- torch.save

PT_SETS = ("bin_shards", "verl3", "verl2x2", "verl_tp")  # folders; the other cases are files


def check_pt(tool, made, case, path, work):
    """Sharded, and loaded by torch: the tensors, and what is none, as torch.load of the file gives them."""
    dir, ref = os.path.join(work, "dir"), c.read_ref(os.path.join(made, case + ".safetensors"))
    shutil.rmtree(dir, ignore_errors=True)
    tool("convert", "-q", path, dir, "--ranks", "3")
    tool("verify", "-q", path)
    bad = check_dcp.check(dir, ref, None)
    if case in ("training", "protocols", "views"):
        file = os.path.join(work, "back.pt")
        dcp_to_torch_save(dir, file)
        bad += values_differ(torch.load(file, weights_only=False), torch.load(path, weights_only=False))
    return bad


def values_differ(got, want, at="root"):
    """Keys as torch's own DCP makes them: strings."""
    if isinstance(want, dict):
        keys = {str(k): v for k, v in want.items() if v != {} or not isinstance(v, dict)}
        return [f"{at}: keys {set(got) ^ set(keys)}"] if set(got) != set(keys) else [
            d for k, v in keys.items() for d in values_differ(got[k], v, f"{at}.{k}")
        ]
    if isinstance(want, torch.Tensor):
        return [d for d in [c.compare(at, got, want)] if d]
    if isinstance(want, list) and len(got) == len(want):
        return [d for i, v in enumerate(want) for d in values_differ(got[i], v, f"{at}.{i}")]
    return [] if got == want and type(got) is type(want) else [f"{at}: {got!r}, want {want!r}"]


def torch_save(checks, tool, work):
    made = os.path.join(work, "pt")
    make_pt.make(argparse.Namespace(out=made, case=None))
    for case in sorted(os.listdir(made)):
        folder = os.path.join(made, case)
        if not os.path.isdir(folder) or case == "legacy":
            continue
        for path in [folder] if case in PT_SETS else [os.path.join(folder, f) for f in sorted(os.listdir(folder))]:
            checks.run(f"torch.save: {case}/{os.path.basename(path)}", check_pt, tool, made, case, path, work)


def check_accelerate(tool, work):
    """checkpoint-N/ of accelerate and the HF Trainer: model and optimizer in folders of their own."""
    top, ref = os.path.join(work, "checkpoint-7"), {}
    for folder, tree in ("pytorch_model_fsdp_0", "model"), ("optimizer_0", "optimizer"):
        tensors = {f"{tree}.w{i}": c.rand((6, 4), torch.float32, i) for i in range(3)}
        ref |= tensors
        dcp.save(
            {tree: {k.split(".")[1]: v for k, v in tensors.items()}},
            checkpoint_id=os.path.join(top, folder),
            no_dist=True,
        )
    with open(os.path.join(top, "trainer_state.json"), "w") as f:
        f.write("{}")
    tool("reshard", "-q", top, os.path.join(work, "two"), "--ranks", "2")
    return check_dcp.check(os.path.join(work, "two"), ref, {})


def check_slices(tool, work):
    """DCP in safetensors form: every rank's slices."""
    made = make_dcp.make([os.path.join(work, "slices"), "--ranks", "3", "--uneven", "--optimizer", "--dtypes", "--hf"])
    ckpt, two = os.path.join(made.out, "ckpt"), os.path.join(made.out, "two")
    ref = c.read_ref(os.path.join(made.out, "REF.safetensors"))
    tool("reshard", "-q", ckpt, two, "--ranks", "2")
    return check_dcp.check(two, ref, {})


def check_compressed(tool, work):
    """torch refuses a compressed directory for what it is, without .metadata, and loads what convert makes of it, bit
    for bit."""
    folder, small, plain = os.path.join(TOP, "fixtures",
                                        "tiny-llama-tied"), os.path.join(work, "small"), os.path.join(work, "plain")
    tool("convert", "-q", folder, small, "--ranks", "3", "--compress")
    tool("convert", "-q", small, plain, "--ranks", "2")
    ref = {
        k: v
        for f in sorted(os.listdir(folder)) if f.endswith(".safetensors")
        for k, v in c.read_ref(os.path.join(folder, f)).items()
    }
    ref["lm_head.weight"] = ref["model.embed_tokens.weight"]
    sd, bad = {k: torch.full_like(v, 7) for k, v in ref.items()}, []
    try:
        dcp.load(sd, checkpoint_id=small, no_dist=True)
        bad.append("torch loads a compressed directory")
    except dcp.api.CheckpointException as e:
        bad += [] if "No such file" in str(e) and ".metadata" in str(e) else [
            f"torch refuses a compressed directory otherwise: {e}"
        ]
    bad += [f"{k}: torch changed it" for k, v in sd.items() if not bool((v == 7).all())]
    return bad + check_dcp.check(plain, ref, {})


# --- an item over 4 GiB

def copy_item(source, folder, sizes, to):
    """The item alone, as the file that torch.save would have made; holes stay holes."""
    with open(source, "rb") as f, open(to, "wb") as out:
        _, _, item, nbytes = sizes.first_item(f, folder)
        out.truncate(nbytes)
        at = item
        while at < item + nbytes:
            try:
                begin = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # no more data
                break
            at = min(os.lseek(f.fileno(), begin, os.SEEK_HOLE), item + nbytes)
            if begin < at:
                out.seek(begin - item)
                out.write(sizes.payload(f, begin, at - begin))


def check_large(tool, work):
    """torch.load maps it. (dcp.load would want twice 4 GiB of memory.)"""
    spec = importlib.util.spec_from_file_location("sizes", os.path.join(TOP, "tests", "sizes", "run.py"))
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    source, out, item = (os.path.join(work, "large" + n) for n in (".safetensors", "", ".pt"))
    sizes.write_large(source)
    sparse = os.path.join(os.path.dirname(tool.binary), "..", "..", "tests", "sizes", "sparse")
    subprocess.run([sparse, "convert", source, out, "1"], check=True)
    copy_item(os.path.join(out, "__0_0.distcp"), out, sizes, item)
    t = torch.load(item, mmap=True, weights_only=True)
    bad = [] if t.shape == (2, sizes.ROW) and t.dtype == torch.uint8 else [f"{t.dtype} {tuple(t.shape)}"]
    flat = t.view(-1)
    for place, text in sizes.MARKS.items():
        if bytes(flat[place:place + len(text)].tolist()) != text:
            bad.append(f"element {place}: {flat[place:place + len(text)].tolist()}")
    return bad


# --- random models

def check_random(tool, count):
    """The second reader's runner, without torch, on many models."""
    p = subprocess.run([
        sys.executable,
        os.path.join(TOP, "tests", "reader", "run.py"), tool.binary, "--count",
        str(count), "--seed", "1000"
    ], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = p.stdout.splitlines()
    print("     " + (lines[-1] if lines else p.stderr))
    return lines[:-1] or [p.stderr] if p.returncode else []


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("binary", help="the fsdpck to test")
    ap.add_argument("--smollm2", required=True, metavar="FOLDER", help="what make_smollm2.py wrote")
    ap.add_argument("--quick", action="store_true", help="one layout, one directory of torch's, few random models")
    ap.add_argument("--only", metavar="WORD", help="only checks whose name holds it")
    ap.add_argument("--keep", metavar="DIR", help="work in this folder and leave it")
    a = ap.parse_args()
    logging.disable(logging.CRITICAL)
    checks, tool = Checks(a.only), Tool(a.binary)
    work = a.keep or tempfile.mkdtemp(prefix="fsdpck-interop-")
    os.makedirs(work, exist_ok=True)
    try:
        text(checks, a.binary, a.smollm2, a.quick)
        torch_save(checks, tool, work)
        checks.run("accelerate: checkpoint-N", check_accelerate, tool, work)
        checks.run("DCP in safetensors form", check_slices, tool, work)
        checks.run("a compressed directory, and back", check_compressed, tool, work)
        checks.run("a torch job goes on, resharded from 4 ranks to 2 and 6", resume.check, tool, work)
        foreign(checks, tool, work, a.quick)
        checks.run("torch maps an item over 4 GiB", check_large, tool, work)
        real_model(checks, tool, a.smollm2, work, a.quick)
        check_quant.check_all(checks, tool.binary, os.path.join(work, "quant"), a.quick)
        check_quant_forms.check_all(checks, tool.binary, os.path.join(work, "quant-forms"), a.quick)
        checks.run("random models, the second reader", check_random, tool, 20 if a.quick else 200)
        check_python.check_all(checks, tool, os.path.join(work, "python"))
        # Last: PEFT, diffusers and transformers may start threads, and everything above forks.
        check_lora.run(checks, tool, work, a.quick)
        check_lora_whole.run(checks, tool, work, a.quick)
        check_moe.check_all(checks, tool, os.path.join(work, "moe"), a.quick)
        check_placement.check_all(checks, tool, os.path.join(work, "placement"))
        check_expert_adapters.check_all(checks, tool, os.path.join(work, "expert-adapters"), a.quick)
        check_lora_versions.run(checks, tool, work, a.quick)
        check_lora_styles.run(checks, tool, work, a.quick)
        check_quantize.check_all(checks, tool.binary, os.path.join(work, "quantize"), a.quick)
        checks.run("SmolLM2: a first run, stopped and gone on with, sampled, loaded in PEFT", first_run.check,
                   os.path.join(os.path.dirname(a.binary), "fsdptrain"), a.smollm2, work)
        checks.run("what accelerate and transformers write, taken over by init --from", check_trainers.check,
                   os.path.join(os.path.dirname(a.binary), "fsdptrain"))
        checks.run("pictures of random FLUX.2 pipelines are those of diffusers", check_flux2.check,
                   os.path.join(os.path.dirname(a.binary), "fsdptrain"))
        checks.run("TensorBoard reads a run's events, also of a resumed one", check_tensorboard.check, a.binary)
        checks.run("PEFT loads adapters that were downloaded from fsdptrain ui", check_ui.check, a.binary)
        checks.run("the tinker SDK trains, saves and samples with fsdptrain serve", check_tinker.check, a.binary)
        checks.run("SmolLM2: from_pretrained generates the same tokens", check_generation, a.smollm2,
                   os.path.join(work, "ranks3-hf"))
    finally:
        if not a.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{checks.npassed} passed, {checks.nfailed} failed")
    return bool(checks.nfailed)


if __name__ == "__main__":
    sys.exit(main())
