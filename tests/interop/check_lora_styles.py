# SPDX-License-Identifier: Apache-2.0
"""export-lora for diffusion models: --style diffusers against diffusers itself, kohya and comfy against strict checkers
of what sd-scripts and ComfyUI read (their loaders are no packages). Used by run.py."""
import os, tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

SHAPE = dict(patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16,
             num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))


def new_flux():
    from diffusers import FluxTransformer2DModel
    torch.manual_seed(0)
    return FluxTransformer2DModel(**SHAPE).eval()


def new_unet():
    from diffusers import UNet2DConditionModel
    torch.manual_seed(0)
    return UNet2DConditionModel(sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
                                cross_attention_dim=8, attention_head_dim=4,
                                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")).eval()


def adapted(model, **how):
    config = LoraConfig(r=4, target_modules=["to_q", "to_v", "ff.net.0.proj"], **how)
    model.add_adapter(config)
    g = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data.add_(0.2 * torch.randn(p.shape, generator=g))
    return model, config


def save(tool, model, config, work, nranks=3):
    file, dir, own = (os.path.join(work, n) for n in ("all.safetensors", "ranks", "own"))
    save_file({k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}, file)
    tool("convert", "-q", file, dir, "--ranks", str(nranks))
    config.save_pretrained(own)
    return dir, os.path.join(own, "adapter_config.json")


def flux_output(model):
    g = torch.Generator().manual_seed(2)
    x = dict(hidden_states=torch.randn(1, 16, 4, generator=g), encoder_hidden_states=torch.randn(1, 6, 32, generator=g),
             pooled_projections=torch.randn(1, 32, generator=g), timestep=torch.tensor([0.5]),
             img_ids=torch.zeros(16, 3), txt_ids=torch.zeros(6, 3))
    with torch.no_grad():
        return model(**x).sample


def check_diffusers(tool, how, work):
    """The pipeline's own reader finds the file and its scaling; the model then computes what the trained one did."""
    from diffusers import FluxPipeline
    model, config = adapted(new_flux(), **how)
    dir, path = save(tool, model, config, work)
    out = os.path.join(work, "out")
    tool("export-lora", "-q", dir, out, "--style", "diffusers", "--adapter-config", path)
    state, metadata = FluxPipeline.lora_state_dict(out, return_lora_metadata=True)
    fresh = new_flux()
    fresh.load_lora_adapter(state, prefix="transformer", metadata=metadata)
    want = get_peft_model_state_dict(model, adapter_name="default")
    bad = (
        [f"names: {sorted(state.keys() ^ {'transformer.' + k for k in want})[:3]}"]
        if state.keys() != {"transformer." + k for k in want}
        else []
    )
    far, moved = (flux_output(fresh) - flux_output(model)).abs().max().item(), (
        flux_output(new_flux()) - flux_output(model)
    ).abs().max().item()
    return bad + ([f"outputs differ by {far}, the adapter moves them by {moved}"] if far > 1e-5 or moved < 1e-3 else [])


def pairs_of(model):
    """module path -> (A, B, scaling, magnitude or None), from the trained model itself."""
    out = {}
    for name, m in model.named_modules():
        if hasattr(m, "lora_A") and "default" in m.lora_A:
            dora = m.lora_magnitude_vector["default"].weight if "default" in m.lora_magnitude_vector else None
            out[name] = (m.lora_A["default"].weight, m.lora_B["default"].weight, m.scaling["default"], dora)
    return out


def check_flat(model, file, prefix, separator, down, up):
    """Every module once: A and B unchanged, a scalar alpha that gives the scaling after division by the rank,
    dora_scale as one value a row; nothing else."""
    bad, seen = [], set()
    with safe_open(file, framework="pt") as f:
        have, metadata = {k: f.get_tensor(k) for k in f.keys()}, f.metadata()
    for path, (a, b, scaling, magnitude) in pairs_of(model).items():
        base = prefix + (path.replace(".", "_") if separator == "_" else path)
        names = [base + down, base + up, base + ".alpha"] + ([base + ".dora_scale"] if magnitude is not None else [])
        seen.update(names)
        if any(n not in have for n in names):
            bad.append(f"{path}: of {names} there is not {[n for n in names if n not in have]}")
            continue
        alpha = have[base + ".alpha"]
        if not torch.equal(have[base + down], a) or not torch.equal(have[base + up], b):
            bad.append(f"{path}: other values")
        if alpha.shape != () or abs(alpha.item() / have[base + down].shape[0] - scaling) > 1e-6 * scaling:
            bad.append(f"{path}: alpha {alpha} / {have[base + down].shape[0]} is not {scaling}")
        if magnitude is not None and not torch.equal(have[base + ".dora_scale"],
                                                     magnitude.reshape(-1, *[1] * (a.dim() - 1))):
            bad.append(f"{path}: dora_scale {tuple(have[base + '.dora_scale'].shape)}")
    return bad + [f"{k}: belongs to no module" for k in have.keys() - seen], metadata


def check_kohya(tool, how, work):
    model, config = adapted(new_unet(), **how)
    dir, path = save(tool, model, config, work)
    out = os.path.join(work, "out.safetensors")
    tool("export-lora", "-q", dir, out, "--style", "kohya", "--adapter-config", path)
    bad, metadata = check_flat(model, out, "lora_unet_", "_", ".lora_down.weight", ".lora_up.weight")
    if metadata.get("ss_network_module") != "networks.lora" or metadata.get("ss_network_dim") != "4":
        bad.append(f"metadata: {metadata}")
    return bad


def check_comfy(tool, how, work):
    """Flux by diffusers' names under transformer., by its own under diffusion_model."""
    model, config = adapted(new_flux(), **how)
    dir, path = save(tool, model, config, work)
    out, native = os.path.join(work, "out.safetensors"), os.path.join(work, "native.safetensors")
    tool("export-lora", "-q", dir, out, "--style", "comfy", "--adapter-config", path)
    tool("export-lora", "-q", dir, native, "--style", "comfy", "--adapter-config", path, "--rename",
         "transformer_blocks.=diffusion_model.transformer_blocks.", "--rename",
         "single_transformer_blocks.=diffusion_model.single_transformer_blocks.")
    return check_flat(model, out, "transformer.", ".", ".lora_A.weight", ".lora_B.weight")[0] + \
        check_flat(model, native, "diffusion_model.", ".", ".lora_A.weight", ".lora_B.weight")[0]


FLUX2_SHAPE = dict(patch_size=1, in_channels=8, num_layers=2, num_single_layers=2, attention_head_dim=16,
                   num_attention_heads=2, joint_attention_dim=24, timestep_guidance_channels=32, mlp_ratio=3.0,
                   axes_dims_rope=(4, 4, 4, 4), guidance_embeds=True)
# Layers of Black Forest Labs' files, by those of diffusers that they are made of.
FLUX2_BLOCKS = {
    "double_blocks.N.img_attn.qkv": ["transformer_blocks.N.attn.to_q", "transformer_blocks.N.attn.to_k",
                                     "transformer_blocks.N.attn.to_v"],
    "double_blocks.N.txt_attn.qkv": ["transformer_blocks.N.attn.add_q_proj", "transformer_blocks.N.attn.add_k_proj",
                                     "transformer_blocks.N.attn.add_v_proj"],
    "double_blocks.N.img_attn.proj": ["transformer_blocks.N.attn.to_out.0"],
    "double_blocks.N.txt_attn.proj": ["transformer_blocks.N.attn.to_add_out"],
    "double_blocks.N.img_mlp.0": ["transformer_blocks.N.ff.linear_in"],
    "double_blocks.N.img_mlp.2": ["transformer_blocks.N.ff.linear_out"],
    "double_blocks.N.txt_mlp.0": ["transformer_blocks.N.ff_context.linear_in"],
    "double_blocks.N.txt_mlp.2": ["transformer_blocks.N.ff_context.linear_out"],
    "single_blocks.N.linear1": ["single_transformer_blocks.N.attn.to_qkv_mlp_proj"],
    "single_blocks.N.linear2": ["single_transformer_blocks.N.attn.to_out"],
}
FLUX2_OUTSIDE = {
    "img_in": ["x_embedder"], "txt_in": ["context_embedder"], "final_layer.linear": ["proj_out"],
    "final_layer.adaLN_modulation.1": ["norm_out.linear"],
    "time_in.in_layer": ["time_guidance_embed.timestep_embedder.linear_1"],
    "time_in.out_layer": ["time_guidance_embed.timestep_embedder.linear_2"],
    "guidance_in.in_layer": ["time_guidance_embed.guidance_embedder.linear_1"],
    "guidance_in.out_layer": ["time_guidance_embed.guidance_embedder.linear_2"],
    **{f"{m}.lin": [f"{m}.linear"] for m in ("double_stream_modulation_img", "double_stream_modulation_txt",
                                              "single_stream_modulation")},
}
FLUX2_HOW = {
    "all layers": dict(lora_alpha=10, target_modules="all-linear"),
    "rslora": dict(lora_alpha=3, use_rslora=True,
                   target_modules=["to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj"]),
    "parts of an attention": dict(lora_alpha=4, target_modules=["to_q", "to_v", "add_k_proj", "linear_in"]),
    "ranks and alphas": dict(lora_alpha=6, target_modules=["to_q", "to_k", "to_v", "to_qkv_mlp_proj"],
                             rank_pattern={"to_k": 2, "to_v": 7}, alpha_pattern={"to_v": 3}),
}


def new_flux2():
    from diffusers import Flux2Transformer2DModel
    torch.manual_seed(0)
    return Flux2Transformer2DModel(**FLUX2_SHAPE).eval()


def flux2_output(model):
    g = torch.Generator().manual_seed(2)
    x = dict(hidden_states=torch.randn(1, 16, 8, generator=g), encoder_hidden_states=torch.randn(1, 6, 24, generator=g),
             timestep=torch.tensor([0.5]), guidance=torch.tensor([3.0]),
             img_ids=torch.randint(0, 4, (1, 16, 4), generator=g), txt_ids=torch.zeros(1, 6, 4))
    with torch.no_grad():
        return model(**x).sample


def flux2_layers():
    for n in range(2):
        for name, parts in FLUX2_BLOCKS.items():
            yield name.replace("N", str(n)), [p.replace("N", str(n)) for p in parts]
    yield from FLUX2_OUTSIDE.items()


def flux2_changes(model):
    """What the adapter adds to each weight of Black Forest Labs' files, from the trained model itself."""
    pairs, out = pairs_of(model), {}
    for name, parts in flux2_layers():
        if not any(p in pairs for p in parts):
            continue
        rows = next(pairs[p][1].shape[0] for p in parts if p in pairs)
        change = torch.cat([pairs[p][2] * (pairs[p][1] @ pairs[p][0]).double() if p in pairs else
                            torch.zeros(rows, next(pairs[q][0].shape[1] for q in parts if q in pairs)).double()
                            for p in parts]).detach()
        if name.startswith("final_layer.ada"):  # scale and shift there, shift and scale in these files
            change = torch.cat(change.chunk(2)[::-1])
        out[name] = change
    assert sum(len(p) for n, p in flux2_layers() if n in out) >= len(pairs)
    return out


def check_flux2_file(model, file, prefix, separator, down, up, alphas):
    bad, seen = [], set()
    with safe_open(file, framework="pt") as f:
        have = {k: f.get_tensor(k) for k in f.keys()}
    for name, want in flux2_changes(model).items():
        base = prefix + name.replace(".", separator)
        names = [base + down, base + up] + ([base + ".alpha"] if alphas else [])
        seen.update(names)
        if any(n not in have for n in names):
            bad.append(f"{name}: of {names} there is not {[n for n in names if n not in have]}")
            continue
        a, b = have[base + down].double(), have[base + up].double()
        scale = have[base + ".alpha"].item() / a.shape[0] if alphas else 1
        if want.shape != (b.shape[0], a.shape[1]) or (scale * (b @ a) - want).abs().max() > 1e-6 * want.abs().max():
            bad.append(f"{name}: another change")
    return bad + [f"{k}: belongs to no module" for k in have.keys() - seen]


def flux2_loads(model, file):
    """diffusers reads the file, and the model computes what the trained one does."""
    from diffusers import Flux2KleinPipeline
    fresh = new_flux2()
    fresh.load_lora_adapter(Flux2KleinPipeline.lora_state_dict(file), prefix="transformer")
    far = (flux2_output(fresh) - flux2_output(model)).abs().max().item()
    moved = (flux2_output(new_flux2()) - flux2_output(model)).abs().max().item()
    return [f"{file}: outputs differ by {far}, the adapter moves them by {moved}"] if far > 1e-5 or moved < 1e-3 else []


def check_flux2_names(tool, how, work):
    """kohya and comfy in Black Forest Labs' names, held against the trained model. diffusers reads neither norm_out
    right nor all modulations of kohya's, so it loads the adapter that has the usual layers alone."""
    model = new_flux2()
    config = LoraConfig(r=4, **how)
    model.add_adapter(config)
    g = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data.add_(0.2 * torch.randn(p.shape, generator=g))
    dir, path = save(tool, model, config, work)
    kohya, comfy = os.path.join(work, "kohya.safetensors"), os.path.join(work, "comfy.safetensors")
    for out, style in ((kohya, "kohya"), (comfy, "comfy")):
        tool("export-lora", "-q", dir, out, "--style", style, "--adapter-config", path)
    bad = check_flux2_file(model, kohya, "lora_unet_", "_", ".lora_down.weight", ".lora_up.weight", True)
    bad += check_flux2_file(model, comfy, "diffusion_model.", ".", ".lora_A.weight", ".lora_B.weight", False)
    return bad + (flux2_loads(model, kohya) + flux2_loads(model, comfy) if "use_rslora" in how else [])


HOW = {
    "plain": dict(lora_alpha=10), "rslora": dict(lora_alpha=3, use_rslora=True),
    "dora": dict(lora_alpha=4, use_dora=True), "patterns": dict(lora_alpha=4, alpha_pattern={"to_v": 12})
}


def run(checks, tool, work, quick):
    for style, fn in (("diffusers", check_diffusers), ("kohya", check_kohya), ("comfy", check_comfy)):
        for name, how in HOW.items():
            with tempfile.TemporaryDirectory(dir=work) as sub:
                if not quick or name == "patterns":
                    checks.run(f"export-lora: style {style}, {name}", fn, tool, how, sub)
    for name, how in FLUX2_HOW.items():
        with tempfile.TemporaryDirectory(dir=work) as sub:
            if not quick or name == "all layers":
                checks.run(f"export-lora: FLUX.2 for kohya and comfy, {name}", check_flux2_names, tool, how, sub)
