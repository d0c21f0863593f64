#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""board.py FSDPTRAIN FIXTURES: the event files of log.report_to, read by a second reader: records with right CRCs,
scalars with the numbers of metrics.jsonl in 32 bits, samples, settings. A resumed run removes what it does again, and
nobody else's events. tests/interop/check_tensorboard.py asks TensorBoard itself."""
import json, os, pathlib, re, shutil, struct, subprocess, sys, tempfile

PROMPT = "``` <b>no markup</b>"
NAMES = {"loss": "train/loss", "lr": "train/learning_rate", "eval_loss": "eval/loss",
         "step_seconds": "time/step_seconds",
         "rss_bytes": "memory/rss_bytes",
         "gathered_bytes": "traffic/gathered_bytes", "slowest_rank": "ranks/slowest_rank"}


def check(ok, *what):
    if not ok:
        sys.exit(f"board: {' '.join(map(str, what))}")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + size]
        check(crc == masked(data[at:at + 8]), "the CRC of a length")
        check(struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body), "the CRC of a record")
        yield body
        at += size + 16


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """[(number, value)]: of any message."""
    at, out = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if key & 7 == 2:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        out.append((key >> 3, value))
    return out


def field(message, *path):
    for number in path:
        message = next((v for n, v in fields(message) if n == number), b"")
    return message


def read(path):
    """[(step, tag, value message)] of a file, after its first record."""
    first, *rest = records(path.read_bytes())
    check(field(first, 3) == b"brain.Event:2" and field(first, 10, 1) == b"fsdptrain", "the first record", first)
    out = []
    for event in rest:
        step = dict(fields(event)).get(2, 0)
        out += [(step, "restart", event)] if field(event, 7) else []
        out += [(step, field(value, 1).decode(), value) for n, value in fields(field(event, 5)) if n == 1]
    return out


def train(tool, tmp, *options):
    done = subprocess.run([tool, "run", "board.json", *options], cwd=tmp, capture_output=True, encoding="utf-8")
    check(done.returncode == 0, done.stderr)
    return done.stderr


def event_files(run):
    return sorted(run.glob("events.out.tfevents.*"))


def compare(run, found, nrestarts):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key, tag in NAMES.items():
        wanted = [(line["step"], struct.pack("<f", line[key])) for line in lines if key in line]
        check([(s, field(v, 2)) for s, t, v in found if t == tag] == wanted, tag)
    check(len([s for s, t, _ in found if t == "restart"]) == nrestarts, "restarts")
    texts = [(s, field(v, 8, 8).decode()) for s, t, v in found if t == "samples/0"]
    check([s for s, _ in texts] == [2, 4, 6], "steps of samples", texts)
    check(all(re.fullmatch("(`{4,})\\n[^\\0]*\\n\\1", t) and PROMPT in t for _, t in texts), "a sample", texts)


def settings(found):
    start = [v for _, t, v in found if t == "_hparams_/session_start_info"][-1]
    check(field(start, 9, 1, 1) == b"hparams" and field(start, 8) != b"", "hparams", start)
    entries = dict((field(v, 1).decode(), field(v, 2)) for n, v in fields(field(start, 9, 1, 2, 3)) if n == 1)
    check(field(entries["train.learning_rate"], 2) == struct.pack("<d", 1e-3), entries)
    check(field(entries["lora.target_modules"], 3) == b"all-linear" and field(entries["data.packing"], 4) == 1, entries)
    end = [v for _, t, v in found if t == "_hparams_/session_end_info"][-1]
    check(field(end, 9, 1, 2, 4, 1) == 1, "how the run ended", end)
    check([v for _, t, v in found if t == "custom_scalars__config__"], "the layout")


def main():
    tool, fixtures = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        data = str(fixtures / "chat.jsonl")
        (tmp / "board.json").write_text(json.dumps({
            "model": str(fixtures / "tiny-llama-tied"), "output_dir": "run",
            "data": {"train": data, "eval": data, "seq_len": 128, "packing": True},
            "lora": {"r": 2, "target_modules": "all-linear"},
            "train": {"max_steps": 6, "global_batch_size": 1, "learning_rate": 1e-3, "eval_steps": 3,
                      "warmup_steps": 1},
            "checkpoint": {"save_steps": 4}, "sample": {"every": 2, "prompts": [PROMPT]},
            "log": {"report_to": ["tensorboard"]}}))
        run = tmp / "run"
        train(tool, tmp)
        compare(run, read(event_files(run)[0]), 0)
        settings(read(event_files(run)[0]))
        # As if killed behind step 4: steps 5 and 6 are done again, and nothing of theirs is left twice.
        shutil.rmtree(run / "checkpoints/step-000006")
        foreign = run / "events.out.tfevents.9999.foreign"
        foreign.write_bytes(event_files(run)[0].read_bytes().replace(b"fsdptrain", b"mytrainer"))
        kept = foreign.read_bytes()
        with open(event_files(run)[0], "ab") as f:
            f.write(b"\x99" * 20)  # a torn record
        train(tool, tmp, "--ranks", "2")
        check(foreign.read_bytes() == kept, "events of another program are changed")
        foreign.unlink()
        old, new = event_files(run)
        check(max(s for s, _, _ in read(old)) == 4, "the old file ends at the checkpoint")
        compare(run, read(old) + read(new), 1)
        story = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        check([(e["event"], e.get("step")) for e in story if e["event"] != "note"] ==
              [("start", 0), ("end", 6), ("start", 4), ("end", 6)], "events.jsonl", story)
        check(story[0]["config"]["train"]["max_steps"] == 6 and story[0]["memory"]["peak_bytes"] > 0, story[0])
        # Lost before its first checkpoint, a run does all again.
        shutil.rmtree(run / "checkpoints")
        train(tool, tmp, "--set", "train.max_steps=1", "--set", "sample.every=0")
        first, *_, again = event_files(run)
        check(max(s for s, _, _ in read(first)) == 0, "steps of the old file")
        check([s for s, t, _ in read(again) if t in ("restart", "train/loss")] == [1, 1], "a curve forks", read(again))
        # Files that cannot be written: notes, and the run goes on.
        (tmp / "second").mkdir()
        (tmp / "second/events.jsonl").symlink_to(tmp / "elsewhere")
        said = train(tool, tmp, "--set", "output_dir=second", "--set", "train.max_steps=1")
        check("events.jsonl in output_dir could not be written" in said and not (tmp / "elsewhere").exists(), said)
    print("board: event files have the numbers of metrics.jsonl")


if __name__ == "__main__":
    main()
