#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fsdptrain serve, without the SDK: its numbers against the goldens; its order, retries and refusals; what it keeps.

usage: serve.py FSDPTRAIN GOLDENS [--fsdpck FSDPCK] [--quick] [--only WORD]

GOLDENS/tenants has the model and the tinker goldens. Prints a line for each check and "N passed, N failed"."""
import argparse, concurrent.futures, json, math, pathlib, shutil, signal, subprocess, sys, tempfile, time, traceback

import numpy as np

from harness import read_safetensors
from serve_client import Failed, Refused, Server, bits_of, pass_output

args = None
TENANTS = None  # folder of the goldens


class Different(Exception):
    pass


def need(good, *found):
    if not good:
        raise Different(*found)


def script():
    return json.loads((TENANTS / "tinker/script.json").read_text())["tenants"]


def expected():
    return json.loads((TENANTS / "tinker/expected.json").read_text())


def put_starts(state):
    for one in (TENANTS / "tinker/start").iterdir():
        shutil.copytree(one, state / f"golden-{one.name}" / "weights" / "start")


def serving(state, *options, **more):
    return Server(args.fsdptrain, TENANTS / "model", state, *options, **more)


# ---- the goldens


def submit(model, op):
    kind = op["op"]
    if kind in ("forward", "forward_backward"):
        return model.passes(op["data"], op["loss_fn"], op.get("config"), forward=kind == "forward")
    if kind == "optim_step":
        return model.optimize(**op["params"])
    return model.save(op["checkpoint"])


def shown(op, raw):
    """What the goldens have of a result."""
    if op["op"] in ("forward", "forward_backward"):
        out = pass_output(raw)
        return {"loss": out["loss"], "logprobs": [row.tolist() for row in out["logprobs"]]}
    return {"grad_norm": raw["metrics"]["grad_norm"]} if op["op"] == "optim_step" else {}


def far(value, wanted):
    flat = lambda x: np.concatenate([np.ravel(row) for row in x]) if isinstance(x, list) and x and isinstance(
        x[0], list) else np.ravel(x)
    a, b = flat(value), flat(wanted)
    need(a.shape == b.shape, a.shape, b.shape)
    return float(np.abs(a - b).max()) if a.size else 0.0


def run_ops(model, ops):
    """Submits all before it waits for any."""
    requests = [(op, submit(model, op)) for op in ops]
    return {op["name"]: shown(op, model.server.wait(request)) for op, request in requests}


def trains(op):
    return op["op"] != "sample" and not op.get("may_refuse")


def sample_ops(model, ops):
    sampler, results = None, {}
    for op in ops:
        if op["op"] != "sample":
            continue
        sampler = sampler or model.snapshot()
        out = sampler.sample(op["prompt"], extra={"prompt_logprobs": True}, max_tokens=op["max_tokens"],
                             temperature=0, stop=op["stop"])
        one = out["sequences"][0]
        results[op["name"]] = {"tokens": one["tokens"], "logprobs": one["logprobs"].tolist(),
                               "prompt_logprobs": out["prompt"][1:].tolist(),
                               "stop_reason": "stop" if one["stopped"] else "length"}
    return results


def tenant(session, name, spec):
    model = session.load(f"tinker://golden-{name}/weights/start")
    ops = [op for op in spec["ops"] if trains(op)]
    return {**run_ops(model, ops), **sample_ops(model, spec["ops"])}, model


def compare(name, results):
    for op, wanted in expected()[name]["ops"].items():
        if op not in results:
            need(op.startswith("restart") or op == "14 forward", f"{name}: no result of {op}")
            continue
        for key in ("tokens", "stop_reason"):
            need(key not in wanted or results[op][key] == wanted[key], f"{name} {op} {key}", results[op].get(key))
        for key, tolerance in wanted["tolerance"].items():
            distance = far(results[op][key], wanted[key])
            need(distance <= tolerance, f"{name} {op}: {key} is {distance:.3g} off, {tolerance} allowed")


def all_tenants(server, threads=3):
    session = server.session()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        found = dict(zip(script(), pool.map(lambda item: tenant(session, *item), script().items())))
    return {name: results for name, (results, _) in found.items()}, {name: m for name, (_, m) in found.items()}


def goldens(tmp):
    """Three tenants at once, then one after another, at several numbers of ranks: the goldens, and the same bits."""
    first = None
    for ranks, threads in ((1, 1), (2, 2), (3, 1), (5, 1)) if not args.quick else ((2, 1), ):
        state = tmp / f"ranks{ranks}"
        put_starts(state)
        with serving(state, "--ranks", ranks, "--threads", threads) as server:
            together, _ = all_tenants(server)
            for name, results in together.items():
                compare(name, results)
            first = first or together
            need(together == first, f"other bits at {ranks} ranks")
            alone, _ = all_tenants(server, threads=1)
            need(alone == first, "other bits one after another")
            code, said = server.end()
        need(code == 0 and not said, code, said)


# ---- order


def data_of(name="ash", op=1):
    return script()[name]["ops"][op]["data"]


def order(tmp):
    """Requests run by their numbers, whatever order they arrive in; a retry runs once."""
    with serving(tmp / "state", "--ranks", 2) as server:
        session = server.session()
        one, other = session.model(), session.model()
        data = data_of()
        wanted = [one.passes(data), one.optimize(learning_rate=1e-2), one.passes(data, forward=True)]
        wanted = pass_output([server.wait(r) for r in wanted][2])
        late = other.passes(data, forward=True, seq=3)
        step = other.optimize(seq=2, learning_rate=1e-2)
        again = [other.passes(data, seq=1) for _ in range(3)]
        need(len({r["request_id"] for r in again}) == 1, "a retry has another id")
        got = pass_output(server.wait(late))
        need(all(np.array_equal(a, b) for a, b in zip(got["logprobs"], wanted["logprobs"])), "another order")
        need(other.optimize(seq=2, learning_rate=1e-2) == step, "a late retry has another id")
        need(server.wait(step) == server.wait(step), "a second asker gets another result")
        refuses(lambda: other.optimize(seq=2, learning_rate=2e-2), 400, "was another one")
        # what is refused has used its number up
        refuses(lambda: other.passes(data, "stable_reinforce", seq=4), 400, "stable_reinforce")
        last = pass_output(server.wait(other.passes(data, forward=True, seq=5)))
        need(np.array_equal(last["logprobs"][0], got["logprobs"][0]), "the gradients of a retry were added")
        # a forward pass leaves no gradients, and a save clears none
        a, b = session.model(seed=3), session.model(seed=3)
        for model, extra in ((a, False), (b, True)):
            server.wait(model.passes(data))
            if extra:
                server.wait(model.passes(data, forward=True))
                server.wait(model.save("between"))
            server.wait(model.passes(data))
        norms = [server.wait(m.optimize())["metrics"]["grad_norm"] for m in (a, b)]
        need(norms[0] == norms[1], norms)


def refuses(fn, status, words):
    try:
        fn()
    except Refused as e:
        need(e.status == status and words in e.detail, e)
        return
    raise Different(f"not refused: {words}")


def fails(fn, category, words):
    try:
        fn()
    except Failed as e:
        need(e.args[0] == category and words in e.args[1], e)
        return
    raise Different(f"no failure: {words}")


def changed(data, **inputs):
    one = json.loads(json.dumps(data[:1]))
    one[0]["inputs"].update(inputs)
    return one


def floats(n, shape=None):
    return {"dtype": "float32", "shape": shape or [n], "data": [0.5] * n}


def refusals(tmp):
    """Mistakes are 400 or 404 with a reason, and the next request runs."""
    with serving(tmp / "state", "--seq-len", 64, "--max-rank", 8, key="tml-secret") as server:
        refuses(lambda: server.call("POST", "create_session", {}, key=False), 401, "X-API-Key")
        refuses(lambda: server.call("GET", "nothing"), 404, "nothing at this address")
        refuses(lambda: server.call("GET", "create_session"), 405, "no such method")
        refuses(lambda: server.call("POST", "create_session", b"{", protobuf=True), 400, "JSON")
        session = server.session()
        n = len(data_of()[0]["tokens"])
        bad = [("rank", dict(rank=9), "takes 1 to 8"), ("rank", dict(rank=0), "takes 1 to 8"),
               ("nothing", dict(train_attn=False, train_mlp=False, train_unembed=False), "all false")]
        for _, lora, words in bad:
            refuses(lambda: session.model(**lora), 400, words)
        refuses(lambda: server.post("create_model", session_id=session.id, model_seq_id=77, base_model="other",
                                    lora_config={"rank": 4}), 400, "this server has")
        refuses(lambda: server.post("create_model", session_id="s-0", model_seq_id=0, base_model=server.name,
                                    lora_config={"rank": 4}), 404, "no session")
        refuses(lambda: session.load("tinker://nobody/weights/x"), 404, "no checkpoint")
        refuses(lambda: session.load("tinker://nobody/weights/../x"), 400, "no path like")
        refuses(lambda: session.load("/etc"), 400, "no path like")
        model = session.model()
        data = data_of()
        long = [{"tokens": [1] * 65, "inputs": {"target_tokens": {"dtype": "int64", "shape": [65], "data": [1] * 65}}}]
        for body, loss, config, words in (
            (long, "cross_entropy", {}, "takes 1 to 64"), ([], "cross_entropy", {}, "without data"),
            (changed(data, target_tokens={"dtype": "int64", "shape": [n], "data": [287] * n}), "cross_entropy", {},
             "has 287 tokens"),
            (changed(data, weights=floats(n - 1)), "cross_entropy", {}, "as many elements"),
            (changed(data, weights=floats(n, [n + 1])), "cross_entropy", {}, "shape and dtype"),
            (changed(data, nonsense=floats(n)), "cross_entropy", {}, "nonsense"),
            (data[:1], "ppo", {}, "needs loss_fn_inputs['logprobs']"),
            (changed(data, logprobs=floats(n), advantages=floats(n)), "dro", {}, "beta"),
            (changed(data, logprobs=floats(n), advantages=floats(n)), "ppo", {"clip": 1}, "clip"),
            (data[:1], "custom", {}, "loss_fn 'custom'")):
            refuses(lambda: model.passes(body, loss, config), 400, words)
        refuses(lambda: server.call("POST", "forward_backward", b"\xff\xff", protobuf=True), 400, "protobuf")
        refuses(lambda: model.optimize(momentum=1), 400, "momentum")
        refuses(lambda: model.optimize(beta1=1.5), 400, "beta1")
        refuses(lambda: model.save("a/b"), 400, "plain name")
        refuses(lambda: model.save("x", ttl_seconds=1), 400, "ttl_seconds")
        sampler = session.sampler()
        for params, extra, words in ((dict(max_tokens=5000), {}, "context"), (dict(temperature=-1), {}, "temperature"),
                                     (dict(max_tokens=1), {"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k"),
                                     (dict(stop=[1.5]), {}, "stop")):
            refuses(lambda: sampler.request([1, 2], extra=extra, **params), 400, words)
        refuses(lambda: sampler.request([], max_tokens=1), 400, "no token")
        refuses(lambda: sampler.request([999], max_tokens=1), 400, "287 tokens")
        shutil.copytree(args.goldens / "lora-dora/start_adapter", tmp / "state/other/weights/dora")
        fails(lambda: server.wait(session.sampler("tinker://other/weights/dora").request([1], max_tokens=1)), "user",
              "DoRA")
        fails(lambda: session.load("tinker://other/weights/dora"), "user", "DoRA")
        server.wait(model.passes(data))
        server.wait(model.save("twice"))
        fails(lambda: server.wait(model.save("twice")), "user", "twice")
        server.wait(model.save("twice", overwrite=True))
        session.finish()
        refuses(lambda: server.post("session_heartbeat", session_id=session.id), 410, "has ended")
        refuses(lambda: model.optimize(), 404, "no model")
    with serving(tmp / "other", "--api-key", "tml-secret", "--kv-cache", 4 * page_nbytes(), key="tml-guess") as server:
        refuses(server.session, 401, "another")
        server.key = "tml-secret"
        sampler = server.session().sampler()
        # with the last, part page of the prompt once more
        refuses(lambda: sampler.request([1] * 40, max_tokens=58, stop=[]), 400,
                "a prompt of 40 tokens and 58 more may take " + mebibytes(5) + "; this server has " + mebibytes(4))
        need(len(sampler.sample([1] * 40, max_tokens=57, stop=[])["sequences"][0]["tokens"]) == 57)
        need(len(sampler.sample([1] * 40, stop=[])["sequences"][0]["tokens"]) == 3 * PAGE - 40)
    try:
        with serving(tmp / "other", "--kv-cache", page_nbytes()):
            raise Different("a server with one page")
    except AssertionError as e:
        need("2 pages of 32 tokens are wanted" in str(e), e)


def mebibytes(npages):
    return f"{npages * page_nbytes() / 2**20:.1f} MiB"


# ---- what is kept


def kept(tmp):
    """A killed server, started again, has every acknowledged save; an adapter goes on from it with the same bits."""
    state, data = tmp / "state", data_of()
    put_starts(state)
    steps = lambda server, model, n: [server.wait(r) for _ in range(n) for r in (model.passes(data), model.optimize(
        learning_rate=3e-3, weight_decay=0.1, grad_clip_norm=1.0))]
    with serving(state, "--ranks", 2) as server:
        model = server.session().load("tinker://golden-elm/weights/start")
        steps(server, model, 2)
        path = server.wait(model.save("mid", ttl_seconds=3600))["path"]
        sampler = server.wait(model.save("sampled", kind="save_weights_for_sampler"))["path"]
        steps(server, model, 2)
        wanted = pass_output(server.wait(model.passes(data, forward=True)))
        model.passes(data)  # one is on its way
        code, _ = server.end(signal.SIGKILL)
        need(code == -signal.SIGKILL, code)
    with serving(state, "--ranks", 3, "--threads", 1) as server:
        session = server.session()
        again = session.load(path, optimizer=True)
        steps(server, again, 2)
        got = pass_output(server.wait(again.passes(data, forward=True)))
        need(all(np.array_equal(a, b) for a, b in zip(got["logprobs"], wanted["logprobs"])), "other bits after a kill")
        without = session.load(path)
        steps(server, without, 2)
        other = pass_output(server.wait(without.passes(data, forward=True)))
        need(not np.array_equal(other["logprobs"][0], wanted["logprobs"][0]), "moments without the optimizer")
        fails(lambda: session.load("tinker://golden-elm/weights/start", optimizer=True), "user", "PEFT folder")
        fails(lambda: session.load(sampler, optimizer=True), "user", "optim.state")
        out = session.sampler(sampler).sample([1, 2, 3], max_tokens=3, temperature=0)
        need(len(out["sequences"][0]["tokens"]) <= 3)
        run = path.split("/")[2]
        listed = server.call("GET", f"training_runs/{run}/checkpoints")["checkpoints"]
        need({c["checkpoint_id"]: c["checkpoint_type"] for c in listed} == {
            "weights/mid": "training", "sampler_weights/sampled": "sampler"}, listed)
        need("expires_at" in listed[0] and listed[0]["size_bytes"] > 1000, listed[0])
        need(server.call("GET", f"training_runs/{run}")["lora_rank"] == 8)
        runs = server.call("GET", "training_runs?limit=50")["training_runs"]
        times = [r["last_request_time"] for r in runs]
        need(times == sorted(times, reverse=True) and again.id in [r["training_run_id"] for r in runs], runs)
        need(server.call("GET", "training_runs?limit=1&offset=1")["training_runs"] == runs[1:2])
        server.call("DELETE", f"training_runs/{run}/checkpoints/sampler_weights/sampled")
        refuses(lambda: session.sampler(sampler), 404, "no checkpoint")
        server.end()
    check_files(state / run, tmp)
    facts = json.loads((state / run / "run.json").read_text())
    facts["expires_at"]["weights/mid"] = 1
    (state / run / "run.json").write_text(json.dumps(facts))
    with serving(state) as server:
        for _ in range(100):
            if not (state / run / "weights/mid").exists():
                return
            time.sleep(0.1)
    raise Different("what has expired is still there")


def check_files(run, tmp):
    """Checkpoints are those of fsdpck."""
    mid = run / "weights/mid"
    if args.fsdpck:
        for command in (["verify", mid], ["export-lora", mid, tmp / "exported"]):
            done = subprocess.run([args.fsdpck, *command], capture_output=True, text=True)
            need(done.returncode == 0, done.stderr)
        need((tmp / "exported/adapter_model.safetensors").exists())
    done = subprocess.run([args.fsdptrain, "sample", TENANTS / "model", "--adapter", mid, "--prompt", "a", "--quiet",
                           "--max-new-tokens", "2"], capture_output=True, text=True)
    need(done.returncode == 0, done.stderr)
    # a second server does not take the folder of one that runs
    with serving(tmp / "locked"):
        try:
            with serving(tmp / "locked"):
                pass
        except AssertionError as e:
            need("(2," in str(e) or "(3," in str(e) or "(4," in str(e), e)
            return
    raise Different("two servers in one folder")


def export(tmp):
    """An export is a PEFT folder, whose files need no key but their address."""
    import urllib.error, urllib.request
    state = tmp / "state"
    put_starts(state)
    with serving(state) as server:
        model = server.session().load("tinker://golden-ash/weights/start")
        path = server.wait(model.save("out", kind="save_weights_external"))["path"]
        run, name = path.split("/")[2], path.split("/")[4]
        urls = server.call("GET", f"training_runs/{run}/checkpoints/external_weights/{name}/external_weights_urls")
        files = {k: urllib.request.urlopen(url, timeout=30).read() for k, url in urls["urls"].items()}
        (tmp / "got.safetensors").write_bytes(files["adapter_model.safetensors"])
        got = read_safetensors(tmp / "got.safetensors")
        wanted = read_safetensors(TENANTS / "tinker/start/ash/adapter_model.safetensors")
        need(got.keys() == wanted.keys() and all(np.array_equal(got[k], wanted[k]) for k in got), sorted(got)[:2])
        config = json.loads(files["adapter_config.json"])
        need((config["r"], config["lora_alpha"]) == (4, 32), config)
        url = urls["urls"]["adapter_config.json"]
        try:
            urllib.request.urlopen(url[:-4] + "0000", timeout=30)
            raise Different("an address without its secret")
        except urllib.error.HTTPError as e:
            need(e.code == 403, e.code)
        need(not list((state / ".temporary").iterdir()), "left over")


# ---- alone in failure


def alone(tmp):
    """Gradients that are not finite end a step of their tenant only, and change nothing."""
    data = data_of()
    n = len(data[0]["tokens"])
    with serving(tmp / "state", "--ranks", 2) as server:
        session = server.session()
        good, bad, twin = session.model(seed=5), session.model(seed=6), session.model(seed=5)
        weights = changed(data, weights={"dtype": "float32", "shape": [n], "data": [math.nan] * n})
        for step in range(3):
            requests = [good.passes(data), bad.passes(weights if step == 1 else data)]
            requests += [good.optimize(learning_rate=1e-2), bad.optimize(learning_rate=1e-2)]
            before = server.wait(bad.passes(data, forward=True)) if step == 1 else None
            for request in requests[:3]:
                server.wait(request)
            if step == 1:
                fails(lambda: server.wait(requests[3]), "user", "not finite")
                after = server.wait(bad.passes(data, forward=True))
                need(before == after, "a refused step has changed the adapter")
            else:
                server.wait(requests[3])
        for step in range(3):
            server.wait(twin.passes(data))
            server.wait(twin.optimize(learning_rate=1e-2))
        a, b = (pass_output(server.wait(m.passes(data, forward=True))) for m in (good, twin))
        need(all(np.array_equal(x, y) for x, y in zip(a["logprobs"], b["logprobs"])), "other bits beside a bad tenant")
        need(all(np.isfinite(row).all() for row in a["logprobs"]))


def fair(tmp):
    """One with a long queue keeps no other waiting."""
    targets = {"dtype": "int64", "shape": [1000], "data": [8] * 1000}
    long = [{"tokens": [7] * 1000, "inputs": {"target_tokens": targets}}]
    with serving(tmp / "state", "--threads", 1) as server:
        session = server.session()
        big, small = session.model(seed=1), session.model(seed=2)
        requests = [big.passes(long * 8) for _ in range(12)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            last = pool.submit(server.wait, requests[-1])
            server.wait(small.passes(data_of()))
            need(not last.done(), "the small one came after the big one")
            last.result(300)


def sampling(tmp):
    """Seeds, stops, log-probabilities at temperature 1, snapshots."""
    prompt = [148, 165, 216, 86, 264, 230]
    data = data_of()
    with serving(tmp / "state", "--ranks", 2) as server:
        session = server.session()
        model = session.model(seed=9)
        for _ in range(3):
            server.wait(model.passes(data))
            server.wait(model.optimize(learning_rate=2e-2))
        sampler = model.snapshot()
        first = sampler.sample(prompt, 3, max_tokens=8, seed=7, stop=[], temperature=1.3)
        again = sampler.sample(prompt, 3, max_tokens=8, seed=7, stop=[], temperature=1.3)
        tokens = [s["tokens"] for s in first["sequences"]]
        need(tokens == [s["tokens"] for s in again["sequences"]], "a seed gives other samples")
        need(len({tuple(t) for t in tokens}) > 1, "samples do not differ")
        other = sampler.sample(prompt, 1, max_tokens=8, seed=8, stop=[], temperature=1.3)
        need(other["sequences"][0]["tokens"] != tokens[0], "another seed gives the same")
        one = first["sequences"][1]
        full = prompt + one["tokens"]
        scored = sampler.sample(full, extra={"prompt_logprobs": True, "topk_prompt_logprobs": 3}, max_tokens=1,
                                stop=[])
        need(np.isnan(scored["prompt"][0]) and len(scored["prompt"]) == len(full))
        need(far(scored["prompt"][len(prompt):], one["logprobs"]) < 1e-4, "logprobs are not those of temperature 1")
        ids, tops = scored["prompt_top"]
        need((ids[0] == 0).all() and (tops[0] == -99999).all() and (np.diff(tops[1:]) <= 0).all(), tops[:2])
        for i in range(1, len(full)):
            if full[i] in ids[i]:
                need(abs(tops[i][list(ids[i]).index(full[i])] - scored["prompt"][i]) < 1e-4, i)
        datum = [{"tokens": full[:-1], "inputs": {"target_tokens": {"dtype": "int64", "shape": [len(full) - 1],
                                                                    "data": full[1:]}}}]
        trained = pass_output(server.wait(model.passes(datum, forward=True)))["logprobs"][0]
        need(np.array_equal(trained, scored["prompt"][1:]), "trainer and sampler differ")
        greedy = sampler.sample(prompt, max_tokens=6, temperature=0, stop=[], extra={"topk_sample_logprobs": 2})
        best = greedy["sequences"][0]
        need(best["top"][0][:, 0].tolist() == best["tokens"], best["top"][0])
        need(far(best["top"][1][:, 0], best["logprobs"]) == 0)
        stop = best["tokens"][2]
        cut = sampler.sample(prompt, max_tokens=6, temperature=0, stop=[stop])["sequences"][0]
        at = best["tokens"].index(stop)
        need(cut["tokens"] == best["tokens"][:at + 1] and cut["stopped"], cut)
        top1 = sampler.sample(prompt, max_tokens=6, temperature=2.0, top_k=1, stop=[])["sequences"][0]
        need(top1["tokens"] == best["tokens"], "top_k 1 is not the likeliest")
        # by text
        text = (TENANTS / "tinker/script.json").exists() and json.loads(
            (TENANTS / "model/tokenizer.json").read_text())["model"]["vocab"]
        letters = {v: k for k, v in text.items()}
        wanted = next((i for i, t in enumerate(best["tokens"]) if letters.get(t, "Ġ").isascii()), None)
        if wanted is not None:
            ended = sampler.sample(prompt, max_tokens=6, temperature=0, stop=letters[best["tokens"][wanted]])
            need(ended["sequences"][0]["stopped"] and ended["sequences"][0]["tokens"] == best["tokens"][:wanted + 1])
        # a snapshot stays, a new one follows; the base is neither
        server.wait(model.passes(data))
        server.wait(model.optimize(learning_rate=5e-2))
        still = sampler.sample(full, extra={"prompt_logprobs": True}, max_tokens=1, stop=[])["prompt"]
        need(np.array_equal(still[1:], scored["prompt"][1:]), "a snapshot follows its tenant")
        now = model.snapshot().sample(full, extra={"prompt_logprobs": True}, max_tokens=1, stop=[])["prompt"]
        base = session.sampler().sample(full, extra={"prompt_logprobs": True}, max_tokens=1, stop=[])["prompt"]
        need(far(now[1:], still[1:]) > 1e-3 and far(base[1:], still[1:]) > 1e-3)
        # a retry of a sample is the sample
        request = sampler.request(prompt, seq=1000, max_tokens=2)
        need(sampler.request(prompt, seq=1000, max_tokens=2) == request)


PAGE = 32  # tokens of a page of keys and values


def page_nbytes():
    """Of the model of the tenants, in fp32."""
    c = json.loads((TENANTS / "model/config.json").read_text())
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return PAGE * 2 * 4 * c["num_hidden_layers"] * c["num_key_value_heads"] * head_dim


def together(tmp):
    """Samples of several adapters at once, and many of one prompt, are those of each alone, to the bit; also where
    pages of keys and values are few, so that samples wait for them. Prompts end in a page, or with it."""
    data = data_of()
    prompts = [[148, 165, 216], [11] * PAGE, [3] * (PAGE - 3), [9] * 40]

    def one(job):
        sampler, prompt, n, seed = job
        out = sampler.sample(prompt, n, max_tokens=4 + seed % 9, seed=seed, stop=[], temperature=0.9)
        return [(s["tokens"], s["logprobs"].tobytes()) for s in out["sequences"]]

    def adapted(server):
        session = server.session()
        samplers = [session.sampler()]
        for r in (2, 7, 16):
            model = session.model(rank=r, seed=r, train_unembed=r != 7)
            server.wait(model.passes(data))
            server.wait(model.optimize(learning_rate=5e-2))
            samplers.append(model.snapshot())
        jobs = [(samplers[i % 4], prompts[i % 3 if i % 5 else 3], 1 + i % 3, i) for i in range(24)]
        return samplers, jobs + [(samplers[1], prompts[0], 21, 99), (samplers[2], prompts[3], 70, 98)]

    def at_once(jobs):
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            need(list(pool.map(one, jobs)) == alone, "samples differ together and alone")

    with serving(tmp / "few", "--ranks", 2, "--kv-cache", 4 * page_nbytes()) as server:
        _, jobs = adapted(server)
        alone = [one(job) for job in jobs]
        at_once(jobs)
    with serving(tmp / "state", "--ranks", 2) as server:
        samplers, jobs = adapted(server)
        for _ in range(3):
            at_once(jobs)
        single = samplers[1].sample(prompts[0], 1, max_tokens=4, seed=99, stop=[], temperature=0.9)
        need(single["sequences"][0]["tokens"] == alone[-2][0][0][:4], "the first of many is not the first")


def families(tmp):
    """Other models, in both dtypes, and a quantized one: the same bits at one rank and at three."""
    models = [args.goldens / name / "model" for name in ("full-llama-odd", "lora-qwen2-window", "lora-mistral",
                                                         "lora-ends-untied")]
    if args.fsdpck:
        models.append(tmp / "nf4")
        subprocess.run([args.fsdpck, "export", models[2], models[-1], "--quantize", "nf4", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
    for number, model in enumerate(models):
        for dtype in ("fp32", "bf16"):
            found = [bits_of(args.fsdptrain, model, tmp / f"{number}-{dtype}-{ranks}", ranks, dtype)
                     for ranks in (1, 3)]
            need(found[0] == found[1], model, dtype)


def sessions(tmp):
    """Sessions that give no sign of life end; their memory serves others."""
    data = data_of()
    with serving(tmp / "state", "--session-timeout", 10) as server:
        session = server.session()
        model = session.model()
        waiting = model.passes(data, seq=5)  # 1 to 4 never come
        asked = time.time()
        for _ in range(6 if args.quick else 20):
            other = server.session()
            others = [other.model(rank=r) for r in (2, 16, 5)]
            for m in others:
                server.wait(m.passes(data))
            others[0].snapshot()
            other.finish()
        while time.time() - asked < 120:
            try:
                server.post("get_info", model_id=model.id)
            except Refused as e:
                need(e.status == 404, e)
                break
            time.sleep(0.2)
        refuses(lambda: server.post("session_heartbeat", session_id=session.id), 410, "has ended")
        refuses(lambda: server.post("retrieve_future", request_id=waiting["request_id"]), 404, "no request")
        need(server.call("GET", "sessions")["sessions"] == [])
        # a call that waits is held, not answered at once
        session = server.session()
        model = session.model()
        early = model.passes(data, seq=2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(server.wait, early)
            time.sleep(1)
            need(not held.done(), "a call was not held")
            model.passes(data, seq=1)
            need(len(pass_output(held.result(60))["logprobs"]) == 3)


CHECKS = [goldens, order, refusals, kept, export, alone, fair, sampling, together, families, sessions]
QUICK = [goldens, order, kept, alone, sampling, together, sessions]


def main():
    global args, TENANTS
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("fsdptrain", type=pathlib.Path)
    p.add_argument("goldens", type=pathlib.Path)
    p.add_argument("--fsdpck", type=pathlib.Path)
    p.add_argument("--quick", action="store_true", help="less, for sanitizers")
    p.add_argument("--only", metavar="WORD")
    args = p.parse_args()
    TENANTS = args.goldens / "tenants"
    counts = [0, 0]
    for check in QUICK if args.quick else CHECKS:
        if args.only and args.only not in check.__name__:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            began = time.time()
            try:
                check(pathlib.Path(tmp))
                counts[0] += 1
                print(f"ok   {check.__name__} ({time.time() - began:.1f} s)", flush=True)
            except Exception:
                counts[1] += 1
                print(f"FAIL {check.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{counts[0]} passed, {counts[1]} failed")
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
