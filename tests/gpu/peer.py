#!/usr/bin/env python3
"""The same training steps by PyTorch + transformers + PEFT on one GPU. Prints a JSON object. Or, with --attention, how fast cuDNN's attention is there.

    peer.py MODEL_FOLDER --mode eager|checkpointing|compiled --seq 4096 --batch 2 --steps 6
    peer.py --attention"""
import argparse, json, time
import torch


def steps(a):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(1)
    started = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda")
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    model.config.use_cache = False
    if a.mode == "checkpointing":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if a.mode == "compiled" else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, fused=True)
    with open(f"{a.model}/tokens.jsonl") as f:
        rows = torch.tensor([json.loads(line)["input_ids"][:a.seq] for line in f])
    seconds, losses, first = [], [], None
    for step in range(a.steps):
        ids = torch.stack([rows[(step * a.batch + i) % len(rows)] for i in range(a.batch)]).to("cuda")
        torch.cuda.synchronize()
        began = time.monotonic()
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
        first = first or time.monotonic() - started
    print(json.dumps({"seconds": seconds, "loss": losses, "peak_bytes": torch.cuda.max_memory_reserved(), "first_step": first}))


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for length in (4096, 8192):
        q = torch.randn(1, 32, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(1, 8, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            def forward():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out = forward()
            d_o = torch.randn_like(out)
            flops = 2 * length * length * 32 * 128
            print(json.dumps({"kernel": f"cuDNN attention forward, {length} tokens", "tflops": flops / timed(forward) * 1e-12}))
            backward = timed(lambda: torch.autograd.grad(out, (q, k, v), d_o, retain_graph=True))
            print(json.dumps({"kernel": f"cuDNN attention backward, {length} tokens", "tflops": 2.5 * flops / backward * 1e-12}), flush=True)


def timed(call, turns=10):
    for _ in range(3):
        call()
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
    p.add_argument("--mode", default="eager")
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    args = p.parse_args()
    attention() if args.attention else steps(args)
