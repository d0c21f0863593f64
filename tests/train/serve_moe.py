#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdptrain serve on mixtures of experts: adapters of parameters, which PEFT has as target_parameters, against
those that a run trains, `fsdptrain sample` and `fsdpck export-lora`.

    serve_moe.py FSDPTRAIN GOLDENS [--device NAME]

The models are random. Needs numpy."""
import argparse, json, pathlib, shutil, subprocess
import numpy as np

from harness import LIMIT_S, Failure, add_device, read_safetensors
from moe import FAMILIES, PARAMETERS, STEPS, Moe
from serve_client import Server, is_built, pass_output

NEW, PROMPT, NVOCAB, RATE = 7, "ab", 287, 1e-2
ADAMW = {"learning_rate": RATE, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
ROUTERS = {"qwen2": "mlp.gate.weight", "gpt_oss": "router.weight"}


def datum(ids):
    n = len(ids) - 1
    return {"tokens": ids[:-1], "inputs": {
        "target_tokens": {"dtype": "int64", "shape": [n], "data": ids[1:]},
        "weights": {"dtype": "float32", "shape": [n], "data": [1 / n] * n}}}


class ServedParameters(Moe):
    def words_of(self, family):
        """A model with a tokenizer, and without a loss of its routers: a server has the losses of its clients only."""
        model = self.model_of(f"{family} of words", **{**FAMILIES[family], "output_router_logits": False,
                                                       "vocab_size": NVOCAB})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(self.goldens) / "tenants/model" / name, model)
        return model

    def lora(self, family):
        router = [ROUTERS[family]] if family in ROUTERS else []
        return {**PARAMETERS, "target_parameters": PARAMETERS["target_parameters"] + router}

    def trained(self, title, model, ids, lora, steps):
        """By a run, on one document."""
        data = self.tmp / "one.jsonl"
        data.write_text(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
        out, _ = self.train(title, model, lora=lora, dtype={"param": "fp32"}, data={"train": str(data), "seq_len": 32},
                            train={"max_steps": steps, "global_batch_size": 1, "learning_rate": RATE,
                                   "warmup_steps": 0, "lr_scheduler_type": "constant", "weight_decay": 0,
                                   "max_grad_norm": 0})
        return out

    def sampled_from(self, model, adapter):
        """The tokens of the prompt and those after it."""
        done = subprocess.run([self.tool, "sample", str(model), "--adapter", str(adapter), "--prompt", PROMPT,
                               "--temperature", "0", "--max-new-tokens", str(NEW), "--dtype", "fp32", "--json"],
                              capture_output=True, text=True, timeout=LIMIT_S, check=True)
        one = json.loads(done.stdout)["samples"][0]
        return one["prompt_ids"], one["ids"]

    def same_tokens(self, title, sampler, model, adapter):
        prompt, wanted = self.sampled_from(model, adapter)
        got = sampler.sample(prompt, max_tokens=NEW, temperature=0, stop=[])["sequences"][0]["tokens"]
        if got[:len(wanted)] != wanted or len(wanted) < 2:
            raise Failure(f"{title}: tokens {got} served, {wanted} by fsdptrain sample")

    def near_tensors(self, title, got, wanted, limit):
        if got.keys() != wanted.keys():
            raise Failure(f"{title}: tensors {sorted(got.keys() ^ wanted.keys())[:4]}")
        self.near(title, max(float(np.abs(got[k] - wanted[k]).max()) for k in got), limit)

    def served_on(self, server, model, ids, start, run):
        """The adapter in `start` is loaded and trained on as the run does."""
        session = server.session()
        one = session.load("tinker://other/weights/start")
        self.same_tokens("loaded", session.sampler("tinker://other/weights/start"), model, start)
        for wanted in self.metrics(run):
            requests = one.passes([datum(ids)]), one.optimize(**ADAMW)
            loss = pass_output(server.wait(requests[0]))["loss"]
            norm = server.wait(requests[1])["metrics"]["grad_norm"]
            self.near("a loss", abs(loss - wanted["loss"]), 1e-5)
            self.near("a norm", abs(norm / wanted["grad_norm"] - 1), 1e-4)
        paths = [server.wait(one.save("end", kind=kind))["path"] for kind in ("save_weights", "save_weights_external")]
        again = session.load(paths[0], optimizer=True)
        for m in (one, again):
            server.wait(m.passes([datum(ids)]))
            server.wait(m.optimize(**ADAMW))
        rows = [pass_output(server.wait(m.passes([datum(ids)], forward=True)))["logprobs"][0].tobytes()
                for m in (one, again)]
        if rows[0] != rows[1]:
            raise Failure("loaded with its optimizer: other bits")
        return session.sampler(paths[0]), rows[0], [p.split("/")[2] for p in paths]

    def served_parameters(self, family):
        model, lora = self.words_of(family), self.lora(family)
        ids = [(7 * i + 3) % NVOCAB for i in range(24)]
        start = self.trained(f"{family}-start", model, ids, lora, 2) / "adapter"
        run = self.trained(f"{family}-on", model, ids, {**lora, "init_adapter": str(start)}, STEPS)
        found = []
        for ranks in (1, 3):
            state = self.tmp / f"{family}-{ranks}.state"
            shutil.copytree(start, state / "other/weights/start")
            with Server(self.tool, model, state, "--ranks", ranks, "--threads", 1, "--max-rank", 4) as server:
                sampler, row, (name, external) = self.served_on(server, model, ids, start, run)
                self.same_tokens("trained", sampler, model, state / name / "weights/end")
            found.append(row)
        if found[0] != found[1]:
            raise Failure("other bits at 3 ranks")
        self.convert("verify", state / name / "weights/end")
        self.convert("export-lora", state / name / "weights/end", state / "taken")
        files = [read_safetensors(f / "adapter_model.safetensors")
                 for f in (state / "taken", state / external / "external_weights/end", run / "adapter")]
        self.near_tensors("export-lora", files[0], files[1], 0)
        self.near_tensors("of the run", files[1], files[2], 1e-4)

    def created(self):
        """Where experts are not modules, train_mlp names their weights in target_parameters."""
        model, state = self.words_of("gpt_oss"), self.tmp / "created.state"
        with Server(self.tool, model, state) as server:
            one = server.session().model(rank=3, train_attn=False, train_unembed=False)
            path = server.wait(one.save("end", kind="save_weights_external"))["path"]
        config = json.loads((state / path.split("/")[2] / "external_weights/end/adapter_config.json").read_text())
        if config["target_parameters"] != ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]:
            raise Failure(f"target_parameters: {config['target_parameters']}")
        if config["target_modules"]:
            raise Failure(f"target_modules: {config['target_modules']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdptrain")
    parser.add_argument("goldens")
    add_device(parser)
    args = parser.parse_args()
    if not is_built(args.fsdptrain):
        print("fsdptrain serve is not built")
        return 77
    t = ServedParameters(args)
    for family in ("mixtral", "qwen2", "gpt_oss"):
        t.check(f"served: parameters of {family}", t.served_parameters, family)
    t.check("served: created", t.created)
    return t.end()


if __name__ == "__main__":
    raise SystemExit(main())
