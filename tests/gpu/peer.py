#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same training steps by PyTorch + transformers + PEFT on one GPU. Prints a JSON object. Or, with --attention, how
fast cuDNN's attention is there.

    peer.py MODEL_FOLDER --mode eager|checkpointing|compiled --adapters bf16|autocast [--seq 4096] [--batch 2] [--steps
    6] peer.py --attention

Step s takes the rows s·batch, s·batch+1 … of the folder's tokens.jsonl. Adapters: bf16 as the model is, or fp32 under
autocast, as Trainer has it with bf16=True. PEFT's default, fp32 adapters without autocast, multiplies them without
tensor cores: nobody is compared with it."""
import argparse, json, os, statistics, time
import torch


def process_age():
    """Seconds since the kernel started this process."""
    with open("/proc/self/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def compile_blocks(model):
    """Block by block, and the loss: all blocks share what is compiled once, where the whole model as one graph takes
    minutes. That is the best of its ways too: from block to block there is nothing to fuse but a norm's first read, and
    what is large beside blocks, the loss, is fused."""
    causal = model.get_base_model()
    for layer in causal.model.layers:
        layer.compile()
    causal.loss_function = torch.compile(causal.loss_function)


def build(a):
    import transformers
    from peft import LoraConfig, get_peft_model
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16, attn_implementation="sdpa",
                                                              device_map="cuda")
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=a.adapters != "bf16").train()
    model.config.use_cache = False
    if a.mode == "checkpointing":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if a.mode == "compiled":
        compile_blocks(model)
    return model


def steps(a):
    torch.manual_seed(1)
    model = build(a)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=True)
    with open(f"{a.model}/tokens.jsonl") as f:
        rows = torch.tensor([json.loads(line)["input_ids"][:a.seq] for line in f])
    said = {"seconds": [], "loss": []}
    for step in range(a.steps):
        ids = torch.stack([rows[(step * a.batch + i) % len(rows)] for i in range(a.batch)]).to("cuda")
        torch.cuda.synchronize()
        began = time.monotonic()
        with torch.autocast("cuda", torch.bfloat16, enabled=a.adapters == "autocast"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        said["loss"].append(loss.item())
        torch.cuda.synchronize()
        said["seconds"].append(time.monotonic() - began)
        said.setdefault("first_step", process_age())
    print(json.dumps(said), flush=True)


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for length in (4096, 8192):
        q = torch.randn(1, 32, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(1, 8, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(2))
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            def forward():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out = forward()
            d_o = torch.randn_like(out)
            flops = 2 * length * length * 32 * 128
            show(f"cuDNN attention forward, {length} tokens", flops, forward)
            show(f"cuDNN attention backward, {length} tokens", 2.5 * flops,
                 lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True))


def show(name, flops, call, rounds=5):
    """As kernels.c has it: the median of some rounds, and how far the fastest and the slowest were apart."""
    for _ in range(3):
        call()
    s = sorted(round_seconds(call) for _ in range(rounds))
    median = statistics.median(s)
    print(
        json.dumps({
            "kernel": name, "seconds": median, "spread": round((s[-1] - s[0]) / median, 3),
            "tflops": round(flops / median * 1e-12, 1)
        }), flush=True)


def round_seconds(call, turns=10):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(turns):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / turns


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--attention", action="store_true")
    p.add_argument("--mode", choices=["eager", "checkpointing", "compiled"], default="eager")
    p.add_argument("--adapters", choices=["bf16", "autocast"], default="bf16")
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    args = p.parse_args()
    attention() if args.attention else steps(args)
