# SPDX-License-Identifier: Apache-2.0
"""Event files of log.report_to, read by the real tensorboard package, which checks their CRCs: every number of
metrics.jsonl, samples, settings and the layout; a resumed run goes on with one curve."""
import json, math, pathlib, struct, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate", "eval_loss": "eval/loss",
         "tokens_per_second": "perf/tokens_per_second", "step_seconds": "time/step_seconds",
         "pss_bytes": "memory/pss_bytes", "slowest_rank": "ranks/slowest_rank"}
PROMPT = "# no heading\n```\n<b>no markup</b>\n````"


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", math.nan if x is None else x))[0]


def write_config(folder, model):
    (folder / "events.json").write_text(json.dumps({
        "model": str(model), "output_dir": "run", "seed": 7,
        "data": {"train": str(ROOT / "fixtures/chat.jsonl"), "eval": str(ROOT / "fixtures/chat.jsonl"), "seq_len": 128},
        "lora": {"r": 4, "target_modules": "all-linear"},
        "train": {"max_steps": 6, "global_batch_size": 2, "learning_rate": 1e-3, "eval_steps": 2, "warmup_steps": 1},
        "checkpoint": {"save_steps": 2}, "sample": {"every": 2, "prompts": [PROMPT, "second"]},
        "log": {"report_to": ["tensorboard"]}}))


def train(tool, folder, *options):
    done = subprocess.run([tool, "run", "events.json", "-q", *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compare_scalars(events, lines):
    for key, tag in NAMES.items():
        wanted = [(line["step"], fp32(line[key])) for line in lines if key in line]
        found = [(e.step, e.value) for e in events.Scalars(tag)]
        assert found == wanted, (tag, found, wanted)
    for rank in range(2):
        found = {e.step: e.value for e in events.Scalars(f"ranks/rank_busy_seconds/{rank}")}
        assert all(found[line["step"]] == fp32(line["rank_busy_seconds"][rank]) for line in lines
                   if len(line["rank_busy_seconds"]) > rank)


def compare_plugins(events):
    from tensorboard.plugins.custom_scalar import layout_pb2
    from tensorboard.plugins.hparams import plugin_data_pb2
    texts = events.Tensors("samples/0")
    shown = texts[-1].tensor_proto.string_val[0].decode()
    assert [t.step for t in texts] == [2, 4, 6] and shown.startswith("`````\n") and shown.endswith("\n`````"), shown
    assert "<b>no markup</b>" in shown
    layout = layout_pb2.Layout.FromString(events.Tensors("custom_scalars__config__")[-1].tensor_proto.string_val[0])
    assert "train|eval" in layout.category[0].chart[0].multiline.tag[0], layout
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.hparams["train.learning_rate"].number_value == 1e-3 and start.hparams["seed"].number_value == 7
    assert start.hparams["lora.target_modules"].string_value == "all-linear" and start.group_name == "run"
    content = events.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info.status == 1


def compare_pictures(tool, folder):
    """Those that a run on pictures draws."""
    (folder / "pictures.json").write_text(json.dumps({
        "model": str(ROOT / "fixtures/tiny-flux2"), "output_dir": "drawn",
        "data": {"train": str(ROOT / "fixtures/pictures")}, "image": {"resolution": 32, "max_sequence_length": 16},
        "lora": {"r": 4, "target_modules": ["to_q"]}, "train": {"max_steps": 2, "learning_rate": 1e-3},
        "sample": {"every": 1, "prompts": ["a fox", {"prompt": "a house", "height": 48}]},
        "log": {"report_to": ["tensorboard"]}}))
    done = subprocess.run([tool, "run", "pictures.json", "-q", "--ranks", "2"], cwd=folder, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    events = read(folder / "drawn")
    for number in (0, 1):
        found = events.Images(f"samples/{number}")
        assert [(e.step, e.width, e.height) for e in found] == [(s, 32, 48 if number else 32) for s in (0, 1, 2)], found
        for e in found:
            path = folder / f"drawn/samples/step-{e.step:06}-{number + 1}.png"
            assert e.encoded_image_string == path.read_bytes(), path


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()


def check(fsdpck, model=ROOT / "fixtures/tiny-llama-tied"):
    """[]: an exception says what differs."""
    tool = str(pathlib.Path(fsdpck).resolve().parent / "fsdptrain")
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        write_config(folder, model)
        train(tool, folder, "--ranks", "2", "--set", "train.max_steps=5")
        # As if killed after step 5: the newest checkpoint is of step 4, and the run goes on there with other ranks.
        subprocess.run(["rm", "-r", folder / "run/checkpoints/step-000005", folder / "run/adapter"], check=True)
        train(tool, folder, "--ranks", "1", "--set", "train.max_steps=6")
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        files = sorted((folder / "run").glob("events.out.tfevents.*"))
        assert len(files) == 2, files
        events = read(folder / "run")
        compare_scalars(events, lines)
        compare_plugins(events)
        with open(files[-1], "ab") as f:  # a record that is not finished hides nothing
            f.write(struct.pack("<Q", 99) + b"torn")
        compare_scalars(read(folder / "run"), lines)
        compare_pictures(tool, folder)
    return []


if __name__ == "__main__":
    check(sys.argv[1])
