# SPDX-License-Identifier: Apache-2.0
"""An adapter that the server of `fsdptrain ui` trained, stopped, resumed on other ranks and gave for download: PEFT
loads it, and it changes the logits. The same after the button export-lora."""
import os, pathlib, subprocess, sys, tempfile, warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/train"))
os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
from ui_harness import Server, wait_for


def load(folder, base):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    warned = [str(w.message) for w in caught if "key" in str(w.message).lower()]
    assert not warned, warned
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        tuned = model(input_ids=ids).logits
        with model.disable_adapter():
            plain = model(input_ids=ids).logits
    assert tuned.isfinite().all() and (tuned - plain).abs().max() > 1e-3
    return tuned


def fetch(server, number, prefix, folder):
    folder.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        status, _, data = server.download(number, prefix + name)
        assert status == 200, name
        (folder / name).write_bytes(data)
    return folder


def check(fsdpck):
    """[]: an exception says what differs."""
    tool = str(pathlib.Path(fsdpck).resolve().parent / "fsdptrain")
    base = ROOT / "fixtures/tiny-llama-tied"
    if "built without it" in subprocess.run([tool, "ui", "--listen", "nowhere"], capture_output=True, text=True).stderr:
        print("skipped: adapters of fsdptrain ui: it was built without libmicrohttpd or SQLite")
        return []
    with tempfile.TemporaryDirectory() as tmp, Server(tool, tmp, ROOT / "fixtures") as server:
        number = server.add("tuned", steps=60, ranks=2, checkpoint={"save_steps": 5})
        wait_for(lambda: (pathlib.Path(tmp) / "runs/tuned/metrics.jsonl").exists(), "the first step")
        server.raw("POST", f"/api/jobs/{number}/stop", {})  # it may have finished
        if server.wait(number)["state"] != "finished":
            server.post(f"/api/jobs/{number}/queue", {"ranks": 3})
            assert server.wait(number)["state"] == "finished", server.job(number)
        exported = server.post(f"/api/jobs/{number}/export-lora", {"step": 60}, code=201)["id"]
        assert server.wait(exported)["state"] == "finished", server.job(exported)
        downloads = pathlib.Path(tmp)
        first = load(fetch(server, number, "adapter/", downloads / "a"), base)
        second = load(fetch(server, exported, "", downloads / "b"), base)
        assert (first == second).all()
    return []


if __name__ == "__main__":
    check(sys.argv[1])
