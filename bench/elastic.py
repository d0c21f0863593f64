#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the loss of a rank costs: elastic.py BUILD MODEL WORKDIR [--kills N] [--full]. LoRA, or full fine-tuning, by
four ranks of one thread on MODEL, such as SmolLM2-135M. Kills a random rank N times under --elastic and prints the
seconds from the kill to the beginning of the next step, and the share of the steps' time that a copy in memory every 10
steps takes. The load says how many processes wanted a processor: on a busy machine all of it takes longer, but for the
processor seconds."""
import argparse, json, os, pathlib, random, shutil, signal, statistics, subprocess, sys, time

from training import at_least, children_of, cpu_seconds, metrics

BETWEEN = 4  # steps from one kill to the next
EVERY = 2  # steps between copies; a copy takes as long every 10 steps
TOKENS = 512


def kill_and_wait(process, rng):
    """Seconds from the kill of a rank to the line that says that the next step begins, and the largest number of
    processor seconds that one of the new ranks has worked by then."""
    started = time.monotonic()
    os.kill(rng.choice(children_of(process.pid)), signal.SIGKILL)
    for line in process.stderr:
        if "after the loss" in line:
            return time.monotonic() - started, max(cpu_seconds(pid) for pid in children_of(process.pid))
    sys.exit("fsdptrain did not go on")


def run(command, kills):
    rng, losses, load, last = random.Random(3), [], 0.0, ""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in process.stderr:
        last = line
        if line.startswith("step ") and len(losses) < kills and int(line.split()[1]) >= BETWEEN * (len(losses) + 1):
            losses.append(kill_and_wait(process, rng))
            load = max(load, os.getloadavg()[0])
    if process.wait():
        sys.exit(f"fsdptrain failed: {last.strip()}")
    return losses, load


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--kills", type=at_least(1), default=3)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    out, path = args.work / "elastic-run", args.work / "elastic.json"
    fixtures = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
    shutil.rmtree(out, ignore_errors=True)
    config = {
        "model": args.model, "output_dir": str(out),
        "data": {"train": str(fixtures / "chat.jsonl"), "seq_len": TOKENS // 4},
        "train": {"max_steps": BETWEEN * (args.kills + 1), "global_batch_size": 4, "learning_rate": 1e-5},
        "checkpoint": {"save_steps": 0, "memory_every": EVERY, "export_model": not args.full},
    }
    if not args.full:
        config["lora"] = {"r": 8}
    path.write_text(json.dumps(config))
    losses, load = run([os.path.join(args.build, "src/tools/fsdptrain"), "run", str(path), "--ranks", "4", "--threads",
                         "1", "--elastic", "1", "--max-restarts", str(args.kills)], args.kills)
    steps = metrics(out)
    step = statistics.median(m["step_seconds"] for m in steps)
    copy = statistics.median(m["save_stall_seconds"] for m in steps[:-1] if m["step"] % EVERY == 0)
    seconds, work = zip(*losses)
    print(f"going on: {statistics.median(seconds):.2f} s from the kill to the next step"
          f" ({min(seconds):.2f} to {max(seconds):.2f}, {args.kills} kills;"
          f" {max(work):.2f} processor seconds of a rank)")
    share = 100 * copy / (10 * step)
    print(f"copies in memory: {copy:.4f} s each, steps of {step:.2f} s: {share:.2f} % every 10 steps")
    print(f"load: {load:.1f} for {os.cpu_count()} processors")
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
