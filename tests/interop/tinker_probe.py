#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drive the unmodified `tinker` SDK (0.38) against a server, through a whole session with several tenants at once;
print what came back as JSON.

    tinker_probe.py --base-url http://127.0.0.1:8000            # new adapters: only what must hold for any
    tinker_probe.py --base-url URL --start golden --golden GOLDENS   # from known ones: compared number by number

GOLDENS is tests/train/goldens/tenants/tinker. The server serves the folder `model` beside it in float32 under the name
in script.json (--model: another name). For --start golden it can open tinker://golden-NAME/weights/start for every
tenant NAME: the PEFT folders GOLDENS/start/NAME, put where its checkpoints lie.

GOLDENS/script.json says what is sent. All tenants' operations are submitted before any result is waited for (--pace
step waits after each), so that a server may batch them; the numbers must not depend on it. Exit code 0: all as
expected; 1: not (told on stderr).
"""
import argparse, itertools, json, os, pathlib, sys, time, urllib.error, urllib.request, uuid, warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).resolve().parents[1] / "train/goldens/tenants/tinker"
KEY = os.environ.get("TINKER_API_KEY", "tml-probe")


def tensor_data(types, t):
    import numpy
    array = numpy.array(t["data"], numpy.int64 if t["dtype"] == "int64" else numpy.float32).reshape(t["shape"])
    return types.TensorData.from_numpy(array)


def datums(types, data):
    return [
        types.Datum(model_input=types.ModelInput.from_ints(d["tokens"]),
                    loss_fn_inputs={
                        k: tensor_data(types, t)
                        for k, t in d["inputs"].items()
                    }) for d in data
    ]


def shown(result):
    """A ForwardBackwardOutput as the golden has it."""
    return {
        "loss": result.metrics["loss:sum"],
        "logprobs": [o["logprobs"].tolist() for o in result.loss_fn_outputs],
        "shapes": [o["logprobs"].shape for o in result.loss_fn_outputs],
        "metrics": result.metrics
    }


def sampled(result):
    s = result.sequences[0]
    return {
        "tokens": s.tokens,
        "logprobs": [s.logprobs],
        "prompt_logprobs": (result.prompt_logprobs or [None])[1:],
        "stop_reason": s.stop_reason,
        "first_prompt_logprob": (result.prompt_logprobs or [0])[0],
        "sequence_id": s.sequence_id
    }


class Tenant:

    def __init__(self, tinker, service, name, spec, model, start, nonce):
        self.tinker, self.types, self.service = tinker, tinker.types, service
        self.name, self.spec, self.nonce = name, spec, nonce
        self.results, self.futures, self.paths = {}, [], {}
        if start:
            self.made = service.create_training_client_from_state(start)
        else:
            self.made = service.create_lora_training_client(base_model=model,
                                                            rank=spec["rank"],
                                                            seed=spec["seed"],
                                                            train_attn=spec["train_attn"],
                                                            train_mlp=spec["train_mlp"],
                                                            train_unembed=spec["train_unembed"])

    def submit(self, client, op):
        """A function that waits for the result of `op`, which is on its way when this returns."""
        kind, types = op["op"], self.types
        if kind in ("forward", "forward_backward"):
            f = getattr(client, kind)(datums(types, op["data"]), op["loss_fn"], op.get("config"))
            return lambda: shown(f.result())
        if kind == "optim_step":
            f = client.optim_step(types.AdamParams(**op["params"]))
            return lambda: {"metrics": f.result().metrics or {}}
        if kind == "save_state":
            f = client.save_state(f"{op['checkpoint']}-{self.nonce}")
            return lambda: self.paths.setdefault(op["checkpoint"],
                                                 f.result().path) and {
                                                     "path": self.paths[op["checkpoint"]]
                                                 }
        if kind == "sample":
            params = types.SamplingParams(max_tokens=op["max_tokens"], temperature=0.0, stop=op["stop"])
            return lambda: sampled(self.sampler().sample(
                types.ModelInput.from_ints(op["prompt"]), 1, params, include_prompt_logprobs=True).result())
        raise ValueError(kind)

    def sampler(self):
        """Of the weights after the last training operation that was submitted."""
        if not hasattr(self, "_sampler"):
            self.saved = self.client.save_weights_for_sampler(f"end-{self.nonce}").result().path
            self._sampler = self.service.create_sampling_client(model_path=self.saved).result()
        return self._sampler

    def collect(self, name, wait, may_refuse=False):
        try:
            self.results[name] = wait()
        except (self.tinker.TinkerError, ValueError) as e:
            if not may_refuse:
                raise
            self.results[name] = {"refused": str(e)[:300]}

    def restart(self, optimizer):
        make = self.service.create_training_client_from_state
        if optimizer:
            make = self.service.create_training_client_from_state_with_optimizer
        client = make(self.paths["mid"]).result()
        after = next(i for i, op in enumerate(self.spec["ops"]) if op["op"] == "save_state")
        waits = [
            self.submit(client, op) for op in self.spec["ops"][after + 1:]
            if op["op"] in ("forward_backward", "optim_step")
        ]
        last = self.submit(client, {"op": "forward", **self.spec["after_restart"]})
        for wait in waits:
            wait()
        return last()


def run_script(tinker, service, script, model, starts, pace, nonce):
    tenants = [Tenant(tinker, service, n, s, model, starts.get(n), nonce) for n, s in script["tenants"].items()]
    for t in tenants:
        t.client = t.made.result()
    for group in itertools.zip_longest(*(t.spec["ops"] for t in tenants)):
        for t, op in zip(tenants, group):
            if op is None or (op["op"] == "sample" and t.futures and pace == "queued" and t.futures.append(
                (op, None)) is None):
                continue
            t.futures.append((op, t.submit(t.client, op)))
        if pace == "step":
            for t, op in zip(tenants, group):
                if op is not None:
                    t.collect(op["name"], t.futures[-1][1], op.get("may_refuse", False))
    for t in tenants:
        for op, wait in t.futures:
            if op["name"] not in t.results:
                t.collect(op["name"], wait or t.submit(t.client, op), op.get("may_refuse", False))
    for t in tenants:
        if "after_restart" in t.spec:
            for label, optimizer in (("restart with optimizer", True), ("restart without optimizer", False)):
                t.results[label] = t.restart(optimizer)
    return tenants


def check_rest(tinker, args, model, tenants, add):
    rest = tinker.RestClient(base_url=args.base_url, api_key=KEY)
    names = [m.model_name for m in rest.get_server_capabilities().result().supported_models]
    add("capabilities name the model", model in names, names)
    runs = rest.list_training_runs(limit=1000).result()
    ids = {r.training_run_id: r for r in runs.training_runs}
    for t in tenants:
        add(f"{t.name}: listed with its rank", t.client.model_id in ids
            and ids[t.client.model_id].lora_rank == t.spec["rank"],
            sorted(ids)[:5])
        add(f"{t.name}: info",
            t.client.get_info().lora_rank == t.spec["rank"] and t.client.get_info().model_data.model_name == model)
        if "mid" in t.paths:
            listed = {
                c.tinker_path: c.checkpoint_type
                for c in rest.list_checkpoints(t.client.model_id).result().checkpoints
            }
            add(f"{t.name}: checkpoints listed",
                listed.get(t.paths["mid"]) == "training" and listed.get(t.saved) == "sampler", listed)
            info = rest.get_weights_info_by_tinker_path(t.paths["mid"]).result()
            add(f"{t.name}: weights_info", info.base_model == model and info.lora_rank == t.spec["rank"]
                and info.is_lora, str(info))
            throw = t.client.save_state(f"gone-{t.nonce}").result().path
            rest.delete_checkpoint_from_tinker_path(throw).result()
            add(f"{t.name}: deleted", throw
                not in {c.tinker_path
                        for c in rest.list_checkpoints(t.client.model_id).result().checkpoints})


def check_download(tinker, args, t, golden, add, problem):
    """What `tinker checkpoint download` does: an export whose files need no key. A server may refuse it."""
    try:
        path = t.client.save_weights_external(f"export-{t.nonce}", ttl_seconds=3600).result().path
    except tinker.TinkerError as e:
        return add(f"{t.name}: exported, or refused with a reason",
                   isinstance(e, (tinker.BadRequestError, tinker.RequestFailedError)), e)
    rest = tinker.RestClient(base_url=args.base_url, api_key=KEY)
    urls = rest.get_external_weights_urls(path).result().urls
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    files = {name: urllib.request.urlopen(url, timeout=60).read() for name, url in urls.items()}
    rest.delete_checkpoint_from_tinker_path(path).result()
    add(f"{t.name}: the export is a PEFT folder", {"adapter_config.json", "adapter_model.safetensors"}
        <= files.keys(), sorted(files))
    config = json.loads(files["adapter_config.json"])
    add(f"{t.name}: rank and alpha of the export",
        (config["r"], config["lora_alpha"]) == (t.spec["rank"], t.spec["alpha"]), config)
    if golden and (golden / "end").exists():
        from safetensors.numpy import load, load_file
        import numpy
        end, start = (load_file(golden / k / t.name / "adapter_model.safetensors") for k in ("end", "start"))
        got, flat = load(files["adapter_model.safetensors"]), lambda d: numpy.concatenate(
            [d[k].astype(float).ravel() for k in sorted(d)])
        if not add(f"{t.name}: tensors of the export",
                   got.keys() == end.keys() and all(got[k].shape == end[k].shape for k in end),
                   sorted(got)[:3]):
            return
        far = numpy.linalg.norm(flat(got) - flat(end)) / numpy.linalg.norm(flat(end) - flat(start))
        wanted = json.loads((golden / "expected.json").read_text())[t.name]["end_update_rel_l2"]
        if far > wanted:
            problem(f"{t.name}: the exported adapter is {far:.3g} of its update off, {wanted} allowed")


def check_sampling(tinker, service, t, add):
    types, prompt = tinker.types, next(o["prompt"] for o in t.spec["ops"] if o["op"] == "sample")
    inputs = types.ModelInput.from_ints(prompt)
    before = sampled(t.sampler().sample(inputs, 1, types.SamplingParams(max_tokens=5, temperature=0.0,
                                                                        stop=[])).result())
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=7, stop=[])
    three = [t.sampler().sample(inputs, 3, params, topk_prompt_logprobs=2).result() for _ in range(2)]
    add("three samples of one call differ in id", len({s.sequence_id for s in three[0].sequences}) == 3)
    add("three samples of one call are not one",
        len({tuple(s.tokens)
             for s in three[0].sequences}) > 1, [s.tokens for s in three[0].sequences])
    add("the same seed gives the same samples",
        [s.tokens for s in three[0].sequences] == [s.tokens for s in three[1].sequences])
    add("a sampled token has a logprob",
        all(len(s.logprobs) == len(s.tokens) == 6 and s.stop_reason == "length" for s in three[0].sequences))
    if three[0].topk_prompt_logprobs is not None:
        top = three[0].topk_prompt_logprobs
        add(
            "top-k of the prompt",
            len(top) == len(prompt) and top[0] is None
            and all(len(row) == 2 and row[0][1] >= row[1][1] for row in top[1:]), top[:2])
    scores = t.sampler().compute_logprobs(types.ModelInput.from_ints(prompt + before["tokens"])).result()
    add("compute_logprobs begins with None", scores[0] is None and len(scores) == len(prompt) + 5)
    add("sampled logprobs are the model's",
        max(abs(a - b) for a, b in zip(scores[len(prompt):], before["logprobs"][0])) < 1e-4, scores[len(prompt):])
    # what an RL loop needs: the trainer's log-probabilities of sampled tokens are the sampler's, at temperature 1
    full = prompt + three[0].sequences[0].tokens
    datum = types.Datum(model_input=types.ModelInput.from_ints(full[:-1]),
                        loss_fn_inputs={
                            "target_tokens": full[1:],
                            "weights": [1.0] * (len(full) - 1)
                        })
    trained = t.client.forward([datum],
                               "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()[len(prompt) - 1:]
    add("trainer and sampler agree on sampled tokens",
        max(abs(a - b) for a, b in zip(trained, three[0].sequences[0].logprobs)) < 1e-4,
        [trained, three[0].sequences[0].logprobs])
    cool = t.sampler().sample(inputs, 1, types.SamplingParams(max_tokens=1, temperature=0.5, seed=3,
                                                              stop=[])).result().sequences[0]
    row = t.sampler().compute_logprobs(types.ModelInput.from_ints(prompt + cool.tokens)).result()[-1]
    add("logprobs are those at temperature 1, whatever the temperature",
        abs(row - cool.logprobs[0]) < 1e-4, [row, cool.logprobs])
    # a snapshot stays what it was when its tenant trains on; the shortcut takes what is there now
    t.client.forward_backward([datum], "cross_entropy")
    t.client.optim_step(types.AdamParams(learning_rate=5e-2, eps=1e-8)).result()
    again = sampled(t.sampler().sample(inputs, 1, types.SamplingParams(max_tokens=5, temperature=0.0,
                                                                       stop=[])).result())
    now = t.client.save_weights_and_get_sampling_client().result()
    moved = now.compute_logprobs(types.ModelInput.from_ints(full)).result()
    old = t.sampler().compute_logprobs(types.ModelInput.from_ints(full)).result()
    add("a snapshot does not follow its tenant", again["tokens"] == before["tokens"]
        and again["logprobs"] == before["logprobs"], [before, again])
    add("a new sampler has the new weights", max(abs(a - b) for a, b in zip(moved[1:], old[1:])) > 1e-3)


def check_new_adapters(tinker, service, model, script, add):
    """B = 0 at the start; the seed decides A; the same seed is the same adapter."""
    types = tinker.types
    data = datums(types, next(o for o in script["tenants"]["ash"]["ops"] if o["op"] == "forward_backward")["data"])
    made = [service.create_lora_training_client(base_model=model, rank=4, seed=s) for s in (1, 1, 2)]
    clients = [m.result() for m in made]
    first = [c.forward_backward(data, "cross_entropy") for c in clients]
    steps = [c.optim_step(types.AdamParams(learning_rate=1e-2, eps=1e-8)) for c in clients]
    second = [c.forward(data, "cross_entropy") for c in clients]
    first, _, second = ([f.result() for f in fs] for fs in (first, steps, second))
    base = service.create_sampling_client(base_model=model).result()
    for d, o in zip(data, first[0].loss_fn_outputs):
        ids = d.model_input.to_ints() + [d.loss_fn_inputs["target_tokens"].tolist()[-1]]
        scores = base.compute_logprobs(types.ModelInput.from_ints(ids)).result()[1:]
        add("a new adapter changes nothing", max(abs(a - b) for a, b in zip(scores, o["logprobs"].tolist())) < 1e-4)
    flat = [[x for o in r.loss_fn_outputs for x in o["logprobs"].tolist()] for r in second]
    add("the same seed is the same adapter", flat[0] == flat[1], [flat[0][:3], flat[1][:3]])
    add("another seed is another adapter", flat[0] != flat[2])
    add("a step lowers the loss", all(b.metrics["loss:sum"] < a.metrics["loss:sum"] for a, b in zip(first, second)))


def check_load_state(tinker, service, model, t, add):
    """The older call, on a client's first request."""
    client = service.create_lora_training_client(base_model=model,
                                                 rank=t.spec["rank"],
                                                 seed=99,
                                                 train_unembed=t.spec["train_unembed"]).result()
    client.load_state(t.paths["mid"]).result()
    other = t.service.create_training_client_from_state(t.paths["mid"]).result()
    data = datums(tinker.types, t.spec["after_restart"]["data"])
    a, b = (c.forward(data, "cross_entropy").result() for c in (client, other))
    add("load_state is what from_state loads", shown(a)["logprobs"] == shown(b)["logprobs"])


def beat(base_url, session):
    """The status of a heartbeat."""
    body = json.dumps({"session_id": session, "type": "session_heartbeat"}).encode()
    request = urllib.request.Request(
        base_url.rstrip("/") + "/api/v1/session_heartbeat", body, {
            "Content-Type": "application/json",
            "X-API-Key": KEY
        })
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as e:
        return e.code


def close(value, wanted, tolerance):
    """How many tolerances apart; infinite where the shapes differ."""
    if isinstance(wanted, list):
        if not isinstance(value, list) or len(value) != len(wanted):
            return float("inf")
        return max((close(x, y, tolerance) for x, y in zip(value, wanted)), default=0.0)
    return abs(value - wanted) / tolerance if isinstance(value, (int, float)) else float("inf")


def compare(results, golden, problem):
    for op, wanted in golden["ops"].items():
        got = results.get(op)
        if got is None or "refused" in got:
            if got is None:
                problem(f"{op}: no result")
            continue
        for key in ("tokens", "stop_reason"):
            if key in wanted and got[key] != wanted[key]:
                problem(f"{op}: {key} {got[key]}, wanted {wanted[key]}")
        for key, tolerance in wanted["tolerance"].items():
            value = got.get(key)
            if key == "grad_norm":  # optional: any metric of that name
                value = next((v for k, v in got.get("metrics", {}).items() if "grad_norm" in k), wanted[key])
            far = close([sum(row, []) if row and isinstance(row[0], list) else row
                         for row in value] if key == "logprobs" else value, wanted[key], tolerance)
            if not far <= 1:
                problem(f"{op}: {key} is {far:.3g} tolerances of {tolerance} off" +
                        (f" ({value}, wanted {wanted[key]})" if not isinstance(value, list) else ""))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--base-url", required=True)
    ap.add_argument("--script", type=pathlib.Path, default=HERE / "script.json")
    ap.add_argument("--model", help="the base model's name at the server (default: script.json's)")
    ap.add_argument("--start",
                    action="append",
                    default=[],
                    metavar="NAME=tinker://RUN/weights/NAME",
                    help="or 'golden': tinker://golden-NAME/weights/start for all")
    ap.add_argument("--golden", type=pathlib.Path, help="folder with expected.json")
    ap.add_argument("--pace", choices=["queued", "step"], default="queued")
    ap.add_argument("--only", choices=["script", "checks"], help="leave the other out")
    args = ap.parse_args()
    import tinker
    script = json.loads(args.script.read_text())
    model = args.model or script["base_model"]
    starts = {
        n: f"tinker://golden-{n}/weights/start"
        for n in script["tenants"]
    } if "golden" in args.start else dict(s.split("=", 1) for s in args.start)
    checks, problems, nonce, began = {}, [], uuid.uuid4().hex[:6], time.time()

    def add(name, ok, found=None):
        checks[name] = bool(ok) and checks.get(name, True)
        if not ok:
            problems.append(f"check: {name}" + (f"; found {str(found)[:400]}" if found is not None else ""))
        return ok

    service = tinker.ServiceClient(base_url=args.base_url, api_key=KEY, user_metadata={"probe": nonce})
    out = {"sdk": tinker.__version__, "tenants": {}, "checks": checks}
    if args.only != "checks":
        tenants = run_script(tinker, service, script, model, starts, args.pace, nonce)
        out["tenants"] = {t.name: t.results for t in tenants}
        out["seconds"] = round(time.time() - began, 3)
        for t in tenants:
            if "restart with optimizer" in t.results:
                last = next(t.results[o["name"]] for o in reversed(t.spec["ops"])
                            if o["op"] == "forward" and "may_refuse" not in o)
                add(f"{t.name}: restarted with its optimizer, the same bits",
                    last["logprobs"] == t.results["restart with optimizer"]["logprobs"],
                    [last["loss"], t.results["restart with optimizer"]["loss"]])
                add(f"{t.name}: restarted without it, others", last["logprobs"]
                    != t.results["restart without optimizer"]["logprobs"])
            twice = [t.results[k] for k in ("00 forward", "01 forward_backward") if k in t.results]
            add(f"{t.name}: forward and forward_backward have the same bits",
                len(twice) < 2 or twice[0]["logprobs"] == twice[1]["logprobs"])
        if args.golden:
            golden = json.loads((args.golden / "expected.json").read_text())
            for t in tenants:
                compare(t.results, golden[t.name], lambda text, n=t.name: problems.append(f"{n}: {text}"))
        if args.only != "script":
            for t in tenants:
                check_download(tinker, args, t, args.golden if starts else None, add, problems.append)
            check_rest(tinker, args, model, tenants, add)
            check_load_state(tinker, service, model, tenants[0], add)
            check_sampling(tinker, service, tenants[0], add)
    if args.only != "script":
        check_new_adapters(tinker, service, model, script, add)
    session = service.holder.get_session_id()
    service.close("success").result()
    add("a finished session is finished: 410", beat(args.base_url, session) == 410)
    out["problems"] = problems
    print(json.dumps(out, indent=1))
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the SDK's threads need not be waited for
