#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An adapter folder that fsdptrain wrote, with PEFT itself: it is accepted, holds exactly the keys and shapes that PEFT
wants, loads without a warning about keys, changes the logits, and gives those that fsdptrain computes with it.

    check_peft.py ADAPTER BASE IDS.json LOGITS [--atol X]

IDS.json: a list of token ids; LOGITS: (tokens, vocabulary) of raw float32."""
import argparse, json, os, pathlib, sys, warnings

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
import numpy as np
import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def fresh(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def wrong_keys(adapter, base):
    """What PEFT makes of the configuration, against what lies in the file."""
    file = load_file(adapter / "adapter_model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = get_peft_model_state_dict(get_peft_model(fresh(base), PeftConfig.from_pretrained(adapter)))
    bad = [f"key {k} is in only one of the file and PEFT" for k in sorted(file.keys() ^ want.keys())]
    bad += [
        f"{k}: {tuple(file[k].shape)}, PEFT wants {tuple(want[k].shape)}" for k in file.keys() & want.keys()
        if file[k].shape != want[k].shape
    ]
    return bad + [f"{k} is not finite" for k, v in file.items() if not v.isfinite().all()]


def load(adapter, base):
    """The model, and what PEFT warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(fresh(base), adapter).eval()
    return model, [str(w.message)[:200] for w in caught if "key" in str(w.message).lower()]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("adapter", type=pathlib.Path)
    ap.add_argument("base", type=pathlib.Path)
    ap.add_argument("ids", type=pathlib.Path)
    ap.add_argument("logits", type=pathlib.Path)
    ap.add_argument("--atol", type=float, default=1e-3)
    args = ap.parse_args()
    bad = wrong_keys(args.adapter, args.base)
    model, warned = load(args.adapter, args.base)
    ids = torch.tensor([json.loads(args.ids.read_text())])
    with torch.no_grad():
        want = model(input_ids=ids).logits[0]
        with model.disable_adapter():
            plain = model(input_ids=ids).logits[0]
    got = torch.from_numpy(np.fromfile(args.logits, np.float32).reshape(want.shape))
    far, moved = ((x - want).abs().max().item() for x in (got, plain))
    print(f"PEFT: logits are at most {far:.2g} from fsdptrain's; the adapter moves them by up to {moved:.2g}")
    bad += warned
    if not far <= args.atol:
        bad.append(f"logits differ by {far:.3g}, {args.atol:.1g} is allowed")
    if not moved > 20 * args.atol:
        bad.append(f"the adapter moves the logits by {moved:.3g} only: nothing is shown")
    print("\n".join(bad[:12]))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
