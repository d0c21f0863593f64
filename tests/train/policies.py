# SPDX-License-Identifier: Apache-2.0
"""fsdp.policy for strategies.py: objects that change no bit, those that are refused, and the groups that plan shows."""
import json, subprocess

from harness import LIMIT_S, Failure

FULL, GRAD, WHOLE = "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"
HYBRID, HYBRID2 = "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"
ENDS = {"modules": ["embed_tokens", "lm_head"], "reshard_after_forward": True}


def blocks(*numbers):
    return r"model\.layers\.(" + "|".join(map(str, numbers)) + ")"


POLICIES = [  # ranks, keys of fsdp with a policy
    (2, {"policy": [{"modules": blocks(0, 1), "sharding_strategy": GRAD}]}),
    (3, {"sharding_strategy": GRAD, "policy": [{"modules": ["layers.2", "layers.4"], "reshard_after_forward": True}]}),
    (2, {"activation_checkpointing": "block", "policy": [
        {"modules": blocks(1, 5), "activation_checkpointing": "none"},
        {"modules": r".*\.[0-4]", "forward_prefetch": 3, "backward_prefetch": 2}]}),
    (4, {"policy": [{"modules": blocks(0, 1, 2, 3), "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 20000},
                    {"modules": blocks("[45]"), "auto_wrap_policy": "NO_WRAP", "reshard_after_forward": False}]}),
    (4, {"dp_shard_size": 2, "policy": [{"modules": blocks(3, 4), "sharding_strategy": HYBRID2}]}),
    (4, {"reshard_after_forward": False, "policy": [{"modules": blocks(1, 2, 4), "reshard_after_forward": 2}]}),
    (4, {"reshard_after_forward": 2, "policy": [{"modules": blocks(2), "reshard_after_forward": True},
                                                {"modules": blocks(3), "sharding_strategy": GRAD}]}),
    (4, {"policy": [{"modules": ["embed_tokens"], "sharding_strategy": WHOLE},
                    {"modules": blocks(1, 2), "dp_shard_size": 2},
                    {"modules": blocks(4), "sharding_strategy": WHOLE}]}),
    (6, {"sharding_strategy": WHOLE, "policy": [{"modules": blocks(0, 3), "sharding_strategy": FULL},
                                                {"modules": blocks(2), "dp_replicate_size": 2},
                                                {"modules": blocks(5), "dp_shard_size": 2}]}),
    (8, {"dp_shard_size": 4, "policy": [{"modules": blocks(0), "sharding_strategy": FULL, "reshard_after_forward": 2},
                                        {"modules": blocks(1), "dp_shard_size": 2},
                                        {"modules": blocks(2, 3), "sharding_strategy": HYBRID2}]}),
    (3, {"auto_wrap_policy": "HALF_BLOCK_WRAP", "activation_checkpointing": "block", "backward_prefetch": 0}),
    (4, {"auto_wrap_policy": "LINEAR_WRAP", "reshard_after_forward": 2, "forward_prefetch": 3, "policy": [
        {"modules": blocks(1, 2), "auto_wrap_policy": "NO_WRAP"},
        {"modules": blocks(3, 4), "activation_checkpointing": "auto"}]}),
    (4, {"policy": [{"modules": ["mlp"], "sharding_strategy": GRAD}, {"modules": ["o_proj"], "dp_shard_size": 2},
                    {"modules": ["layers.0.self_attn"], "sharding_strategy": WHOLE},
                    {"modules": blocks(1, 2), "activation_checkpointing": "block", "reshard_after_forward": 2}]}),
]
POLICIES_UNTIED = [(2, {"policy": [ENDS]}), (3, {"auto_wrap_policy": "NO_WRAP", "policy": [ENDS]}),
                   (4, {"sharding_strategy": GRAD, "policy": [{"modules": ".*", "reshard_after_forward": 2}]})]


def random_mesh(rng, ranks, within, names=(FULL, GRAD, WHOLE, HYBRID, HYBRID2)):
    """A strategy of some groups, with shard groups that `within` divides."""
    sizes = [k for k in range(2, ranks + 1) if ranks % k == 0 and k % max(int(within), 1) == 0]
    name = rng.choice(names)
    if name not in (HYBRID, HYBRID2):
        return {"sharding_strategy": name}
    if not sizes:
        return {"sharding_strategy": WHOLE}
    size = rng.choice(sizes)
    mesh = rng.choice(({"dp_shard_size": size}, {"dp_replicate_size": ranks // size}))
    return mesh | rng.choice(({"sharding_strategy": name}, {"sharding_strategy": name}, {}))


# In blocks: modules that leave some parts of each to the objects behind.
PARTS = (["self_attn"], ["mlp"], ["o_proj", "down_proj"], ["layers.0.mlp", "layers.2.self_attn.v_proj"],
         r".*layers\.[135].*\.(mlp|o_proj)", ["gate_proj"])


def random_policy(rng, fsdp, ranks, layers, tied):
    """Objects for parts of blocks, for random blocks, and for embedding and head where they do not share a weight."""
    strategy = fsdp.get("sharding_strategy", HYBRID if "dp_shard_size" in fsdp else FULL)
    shards = 1 if strategy == WHOLE else fsdp.get("dp_shard_size", ranks // fsdp.get("dp_replicate_size", 1))
    within = fsdp.get("reshard_after_forward", True)
    if within in (True, False):
        within = rng.choice([k for k in range(1, shards + 1) if shards % k == 0])
    left, out = rng.sample(range(layers), layers), []
    if rng.random() < 0.5:
        mesh = random_mesh(rng, ranks, within)
        out.append({"modules": rng.choice(PARTS)} | mesh)
        if mesh.get("sharding_strategy") != WHOLE:
            out[-1]["forward_prefetch"] = rng.choice((0, 1, 6))
    while left and rng.random() < 0.8:
        chosen = [left.pop() for _ in range(min(len(left), rng.randint(1, 3)))]
        one = {"modules": rng.choice(([f"layers.{n}" for n in chosen], blocks(*chosen)))}
        if rng.random() < 0.5:
            one |= random_mesh(rng, ranks, within)
        elif strategy != WHOLE and rng.random() < 0.6:
            one["reshard_after_forward"] = rng.choice((True, False, within if within > 1 else True))
            if one["reshard_after_forward"]:
                one["backward_prefetch"] = rng.choice((0, 1, 4))
        if rng.random() < 0.4:
            one["activation_checkpointing"] = rng.choice(("none", "block", "auto"))
        whole = one.get("sharding_strategy", FULL if "dp_shard_size" in one else strategy) == WHOLE
        if not whole and rng.random() < 0.4:
            one["forward_prefetch"] = rng.choice((0, 1, 2, 5))
        wrap = rng.choice([{}] + [{"auto_wrap_policy": f"{name}_WRAP"} for name in ("NO", "HALF_BLOCK", "LINEAR")] +
                          [{"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": rng.choice((1, 30000, 10**6))}])
        wrap = {} if whole else wrap
        for key in ("param_dtype", "reduce_dtype"):
            if rng.random() < 0.3:
                one[key] = rng.choice(("bf16", "fp32"))
        if len(one | wrap) > 1:
            out.append(one | wrap)
    if strategy != WHOLE and not tied and rng.random() < 0.4:
        out.append(ENDS)
    elif rng.random() < 0.4:
        out.append({"modules": ["embed_tokens"]} | random_mesh(rng, ranks, within, (WHOLE, GRAD, HYBRID2)))
        if rng.random() < 0.4:
            out[-1]["param_dtype"] = rng.choice(("bf16", "fp32"))
    return out


def dtypes_of(fsdp, usual):
    """The part of a policy that changes bits: types are those of whole blocks."""
    policy = [one for one in fsdp.get("policy", ()) if one["modules"] not in PARTS]
    keys = ("param_dtype", "reduce_dtype")
    if not any(key in one for one in policy for key in keys):
        return {}
    return {"policy": [{"modules": one["modules"], "param_dtype": usual, **{k: one[k] for k in keys if k in one}}
                       for one in policy]}


NO_GROUP = "key 'fsdp.policy[0].modules' matches no group of parameters"
REFUSED_POLICIES = [  # fsdp on 4 ranks, the error, the way out
    ({"policy": {}}, "key 'fsdp.policy': a list of objects is wanted", ""),
    ({"policy": ["layers.0"]}, "key 'fsdp.policy[0]': an object is wanted", ""),
    ({"policy": [{"sharding_strategy": GRAD}]}, "key 'fsdp.policy[0]' has no modules", ""),
    ({"policy": [{"modules": ["layers.0"]}]}, "key 'fsdp.policy[0]' says nothing of its groups", "auto_wrap_policy"),
    ({"policy": [{"modules": 3, "forward_prefetch": 1}]},
     "key 'fsdp.policy[0].modules': a list of module names, or a regular expression, is wanted", ""),
    ({"policy": [{"modules": "(", "forward_prefetch": 1}]}, "key 'fsdp.policy[0].modules': \"(\" is no regular", ""),
    ({"policy": [{"modules": ["mlp.up"], "sharding_strategy": GRAD}]}, NO_GROUP, "are self_attn and mlp, or linear"),
    ({"policy": [{"modules": ["mlp"], "activation_checkpointing": "block"}]},
     "key 'fsdp.policy[0].activation_checkpointing' is for blocks, and modules matches none", ""),
    ({"policy": [{"modules": ["mlp", "o_proj"], "reduce_dtype": "bf16"}]},
     "key 'fsdp.policy[0].reduce_dtype' is for blocks and ends of the model, and modules matches none", ""),
    ({"policy": [{"modules": ["mlp"], "forward_prefetch": 2}, {"modules": ["down_proj"], "sharding_strategy": GRAD}]},
     "key 'fsdp.policy[1]' has no effect: objects before it match all of its groups", ""),
    ({"policy": [{"modules": ["mlp", "self_attn"], "forward_prefetch": 2},
                 {"modules": ["layers.1"], "activation_checkpointing": "block", "backward_prefetch": 3}]},
     "key 'fsdp.policy[1].backward_prefetch' has no effect: objects before it match all parts of its blocks", ""),
    ({"policy": [{"modules": ["lm_head"], "sharding_strategy": GRAD}]}, NO_GROUP, "lm_head is model.embed_tokens"),
    ({"policy": [{"modules": ["layers.0"], "forward_prefetch": 1}, {"modules": ["layers.7"], "forward_prefetch": 2}]},
     "key 'fsdp.policy[1].modules' matches no group of parameters", "model.layers.0 to model.layers.5"),
    ({"policy": [{"modules": r"model\.l.*", "forward_prefetch": 1}, {"modules": ["layers.3"], "forward_prefetch": 2}]},
     "key 'fsdp.policy[1]' has no effect: objects before it match all of its groups", ""),
    ({"policy": [{"modules": ["layers.3"], "sharding_strategy": WHOLE, "reshard_after_forward": True}]},
     "key 'fsdp.policy[0].reshard_after_forward': the object's sharding_strategy NO_SHARD does not reshard", ""),
    ({"policy": [{"modules": ["layers.3"], "sharding_strategy": WHOLE, "forward_prefetch": 2}]},
     "key 'fsdp.policy[0].forward_prefetch' has no effect: its groups are not gathered", ""),
    ({"policy": [{"modules": ["layers.3"], "dp_shard_size": 3}]},
     "key 'fsdp.policy[0].dp_shard_size': 3 does not divide the 4 ranks of this run", "choose a divisor of 4"),
    ({"policy": [{"modules": ["layers.3"], "dp_shard_size": 1}]},
     "key 'fsdp.policy[0].dp_shard_size': HYBRID_SHARD with shard groups of one rank cuts nothing", "NO_SHARD"),
    ({"policy": [{"modules": ["layers.3"], "sharding_strategy": GRAD, "dp_shard_size": 2}]},
     "key 'fsdp.policy[0].dp_shard_size' is 2, and fsdp.policy[0].sharding_strategy SHARD_GRAD_OP on 4 ranks means 4",
     "HYBRID"),
    ({"dp_shard_size": 2, "policy": [{"modules": ["layers.3"], "dp_replicate_size": 2, "dp_shard_size": 4}]},
     "2 times 4 is 8, and this run has 4 ranks", "leave one of them out"),
    ({"reshard_after_forward": 4, "policy": [{"modules": ["layers.3"], "dp_shard_size": 2}]},
     "key 'fsdp.reshard_after_forward': 4 does not divide the 2 ranks of a shard group of an object", "of its own"),
    ({"policy": [{"modules": ["layers.3"], "sharding_strategy": "FULL"}]},
     "key 'fsdp.policy[0].sharding_strategy': \"FULL\" is none of", ""),
    ({"policy": [{"modules": ["layers.3"], "sharding_strategy": GRAD, "reshard_after_forward": True}]},
     "key 'fsdp.policy[0].reshard_after_forward': the object's sharding_strategy SHARD_GRAD_OP does not reshard", ""),
    ({"reshard_after_forward": 2, "policy": [{"modules": ["layers.3"], "reshard_after_forward": 4}]},
     "key 'fsdp.policy[0].reshard_after_forward' is 4, and fsdp.reshard_after_forward is 2", ""),
    ({"policy": [{"modules": ["layers.3"], "reshard_after_forward": 3}]},
     "key 'fsdp.policy[0].reshard_after_forward': 3 does not divide the 4 ranks", "choose a divisor"),
    ({"policy": [{"modules": ["embed_tokens"], "reshard_after_forward": True}]},
     "key 'fsdp.policy[0]': model.embed_tokens is used at both ends of the model", ""),
    ({"policy": [{"modules": ["embed_tokens"], "activation_checkpointing": "block"}]},
     "key 'fsdp.policy[0].activation_checkpointing' is for blocks, and modules matches none", ""),
    ({"policy": [{"modules": ["layers.1"], "min_num_params": 9}]},
     "key 'fsdp.policy[0].min_num_params' has no effect: auto_wrap_policy is not SIZE_BASED_WRAP", ""),
    ({"policy": [{"modules": ["layers.1"], "sharding_strategy": GRAD, "backward_prefetch": 2}]},
     "key 'fsdp.policy[0].backward_prefetch' has no effect: its groups stay in memory after the forward pass", ""),
    ({"policy": [{"modules": ["layers.1"], "offload_memory": 65536}]},
     "key 'fsdp.policy[0].offload_memory': the value of fsdp.offload_memory is that of all groups", ""),
    ({"policy": [{"modules": ["layers.1"], "param_dtype": "fp8"}]},
     "key 'fsdp.policy[0].param_dtype': \"fp8\" is none of", ""),
    ({"policy": [{"modules": ["embed_tokens"], "reduce_dtype": "bf16"}]},
     "key 'fsdp.policy[0].reduce_dtype' has no effect: its groups train nothing", ""),
    ({"policy": [{"modules": ["embed_tokens"], "offload_optimizer": False}]},
     "key 'fsdp.policy[0].offload_optimizer' has no effect: its groups train nothing", ""),
    ({"policy": [{"modules": ["lm_head"], "output_dtype": "bf16"}]},
     "key 'fsdp.policy[0].output_dtype': only logits are rounded", "dtype.output"),
    ({"policy": [{"modules": ["model.norm"], "param_dtype": "bf16"}]},
     "key 'fsdp.policy[0].param_dtype': model.norm has the type of lm_head, which is model.embed_tokens", "both"),
    ({"policy": [{"modules": ["layers.1"], "prefetch": 2}]}, "unknown key 'fsdp.policy[0].prefetch'", ""),
]


class Policies:
    def policy_plan(self, name, ranks, fsdp, *options):
        path, _ = self.config(name, "planned", fsdp, ("bf16", "fp32", 1))
        command = [self.tool, "plan", str(path), "-q", "--json", "--ranks", str(ranks), "--gather", "copy", *options]
        return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout)

    def planned_parts(self, untied, plain):
        """Blocks that are cut: their groups, which are all of their parameters, and smaller buffers."""
        linears = ("self_attn.{q,k,v}_proj", "self_attn.o_proj", "mlp.{gate,up}_proj", "mlp.down_proj")
        halves = ("self_attn", "mlp")
        buffers = [plain["gather_buffer_bytes"]]
        for wrap, wanted in (("HALF_BLOCK_WRAP", halves), ("LINEAR_WRAP", linears)):
            got = self.policy_plan(untied, 2, {"auto_wrap_policy": wrap, "activation_checkpointing": "block"})
            rows = got["groups"][1:-1]
            if tuple(r["parameters"].split(".", 3)[3] for r in rows if r["groups"] > 1) != wanted:
                raise Failure(f"{wrap}: {rows}")
            if sum(r["groups"] * r["elements"] for r in rows) != 6 * plain["groups"][1]["elements"]:
                raise Failure(f"{wrap}: {rows} are not six of {plain['groups'][1]}")
            self.near("a ring of two", abs(got["gather_buffer_bytes"] - 2 * max(r["gathered_bytes"] for r in rows) -
                                           sum(plain["groups"][i]["gathered_bytes"] for i in (0, -1))), 4 * 4096)
            buffers.append(got["gather_buffer_bytes"])
        if not buffers[0] > buffers[1] > buffers[2]:
            raise Failure(f"buffers of blocks, halves and linear layers: {buffers}")

    def planned_policies(self, tied, untied):
        """The groups of plan, and the memory that follows from them."""
        plain = self.policy_plan(untied, 2, {})
        block, block_nbytes = plain["groups"][1]["elements"], plain["groups"][1]["gathered_bytes"]
        rows = self.policy_plan(untied, 2, {"policy": [
            {"modules": blocks(0, 1), "sharding_strategy": GRAD},
            {"modules": blocks(2, 3, 4), "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": block + 1}]})
        rows = rows["groups"]
        said = [(r["parameters"], r["groups"], r["elements"], r["strategy"], r["when"]) for r in rows[1:-1]]
        each = self.policy_plan(untied, 2, {"auto_wrap_policy": "NO_WRAP", "policy": [
            {"modules": blocks(1, 2), "activation_checkpointing": "block"}]})["groups"]
        if [r["recomputed"] for r in each] != [0, 0, 2, 0, 0]:
            raise Failure(f"blocks recomputed: {each}")
        once, twice = "once; what is trained, every step", "forward and backward"
        wanted = [("model.layers.0-1", 2, block, GRAD, once), ("model.layers.2-3", 1, 2 * block, FULL, twice),
                  ("model.layers.4-5", 2, block, FULL, "every micro-batch")]
        if said != wanted:
            raise Failure(f"{said} where {wanted} is wanted")
        kept = self.policy_plan(untied, 2, {"policy": [{"modules": blocks(0, 2), "sharding_strategy": GRAD}]})
        self.near("buffers of two blocks", abs(kept["gather_buffer_bytes"] - plain["gather_buffer_bytes"] -
                                               2 * block_nbytes), 3 * 4096)
        both, ends = self.policy_plan(untied, 2, {"policy": [ENDS]}), [plain["groups"][i] for i in (0, -1)]
        self.near("one buffer for both ends", abs(plain["gather_buffer_bytes"] - both["gather_buffer_bytes"] -
                                                  min(r["gathered_bytes"] for r in ends)), 2 * 4096)
        if {r["when"] for r in (both["groups"][0], both["groups"][-1])} != {"every micro-batch"}:
            raise Failure(f"embedding and head: {both['groups']}")
        some = self.policy_plan(tied, 2, {"policy": [{"modules": blocks(0, 3), "activation_checkpointing": "block"}]})
        every = self.policy_plan(tied, 2, {"activation_checkpointing": "block"})
        less = self.policy_plan(tied, 2, {"activation_checkpointing": "block", "policy": [
            {"modules": blocks(1, 2, 4, 5), "activation_checkpointing": "none"}]})
        if (some["blocks_recomputed"], every["blocks_recomputed"]) != (2, 6) or less != some:
            raise Failure(f"recomputed: {some}, {every}, {less}")
        if not every["activation_bytes"] < some["activation_bytes"]:
            raise Failure(f"two blocks recomputed: {some}, six: {every}")
        whole = self.policy_plan(untied, 2, {"policy": [{"modules": ["embed_tokens"], "sharding_strategy": WHOLE}]})
        embed = plain["groups"][0]["gathered_bytes"]
        for key, wanted in (("shard_bytes", embed / 2), ("gather_buffer_bytes", -embed), ("kept_bytes", 0)):
            self.near(f"embedding on every rank: {key}", abs(whole[key] - plain[key] - wanted), 2 * 4096)
        if [(r["shard_ranks"], r["when"]) for r in whole["groups"]][:2] != [
                (1, "never: whole on every rank"), (2, plain["groups"][1]["when"])]:
            raise Failure(f"embedding on every rank: {whole['groups']}")
        self.planned_parts(untied, plain)
        half = self.policy_plan(untied, 4, {"policy": [{"modules": blocks(2), "dp_shard_size": 2}]})["groups"]
        if [(r["parameters"], r["strategy"], r["shard_ranks"]) for r in half[2:3]] != [("model.layers.2", HYBRID, 2)]:
            raise Failure(f"a block in groups of two: {half}")
        parts = {"policy": [{"modules": blocks(0, 2), "reshard_after_forward": 2}]}
        self.near("parts of two blocks", abs(self.policy_plan(untied, 4, parts)["kept_bytes"] - block_nbytes), 4096)
