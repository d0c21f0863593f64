#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_zero3.py MODEL.safetensors OUT RANKS: the weights as DeepSpeed's ZeRO-3 saves them, without the optimizer's
states: each rank has a part of every parameter, in one flat tensor of float32."""
import os
import sys

import torch
from safetensors import safe_open


def main():
    model, out, nranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.makedirs(out, exist_ok=True)
    with safe_open(model, "pt") as f:
        shapes = {name: torch.Size(f.get_slice(name).get_shape()) for name in f.keys()}
        for rank in range(nranks):
            parts = []
            for name, shape in shapes.items():
                each = -(-shape.numel() // nranks)
                part = f.get_tensor(name).flatten()[rank * each:(rank + 1) * each].float()
                parts.append(torch.nn.functional.pad(part, (0, each - part.numel())))
            optimizer = {"zero_stage": 3, "partition_count": nranks, "fp32_flat_groups": [torch.cat(parts)],
                         "optimizer_state_dict": {"state": {}, "param_groups": []}}
            name = "zero_pp_rank_%d_mp_rank_00_" % rank
            torch.save({"optimizer_state_dict": optimizer}, os.path.join(out, "bf16_" + name + "optim_states.pt"))
            torch.save({"module": {n: torch.empty(0, dtype=torch.bfloat16) for n in shapes}, "buffer_names": [],
                        "param_shapes": [shapes], "dp_world_size": nranks, "global_steps": 1},
                       os.path.join(out, name + "model_states.pt"))


if __name__ == "__main__":
    main()
