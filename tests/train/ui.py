#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ui.py FSDPTRAIN FIXTURES [--quick | --gpu SIMULATED]: the server of `fsdptrain ui` without a page: who may ask,
what the queue starts and when, what becomes of jobs when they or the server are killed, and that its numbers are those
of the run's files. SIMULATED: an fsdptrain with a device that the host only simulates."""
import http.client, json, os, pathlib, random, shutil, signal, socket, sqlite3, subprocess, sys, tempfile
import threading, time

from ui_harness import FINAL, TOKEN, Server, check, events, losses, wait_for

MARKUP = "</script><img src=x onerror=\"document.title='broken'\">'); DROP TABLE jobs; --"

# ---- who may ask


def guarded(s):
    port = s.port
    good = [
        "127.0.0.1", "localhost", "LOCALHOST", f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "[::1]",
        "localhost:9999"
    ]  # ssh -L
    bad = [
        "127.0.0.1.evil.example", f"127.0.0.1.evil.example:{port}", "evil.example", "localhost.", "xlocalhost",
        "127.0.0.1:80evil", "127.0.0.1@evil.example", "[::1", "[::1]evil", "", None, "127.0.0.2", "0.0.0.0", "10.0.0.1",
        "127.0.0.1:80:80", "localhost/"
    ]
    for host in good:
        check(s.raw("GET", "/api/jobs", headers={"Host": host})[0] == 200, "Host", host)
    for host in bad:
        for path in ("/api/jobs", "/", "/download/x"):
            status = s.raw("GET", path, headers={"Host": host})[0]
            check(status in (421, 400), "Host", host, path, status)
    for token in (None, "Bearer", "Bearer ", "Bearer " + TOKEN[:-1], "Bearer " + TOKEN + "0", TOKEN, "Basic " + TOKEN,
                  "Bearer " + TOKEN.upper()):
        for method, path in (("GET", "/api/jobs"), ("POST", "/api/jobs"), ("GET", "/api/stream"), ("DELETE",
                                                                                                   "/api/jobs/1")):
            check(
                s.raw(method, path, {} if method != "GET" else None, {"Authorization": token})[0] == 401, method, path,
                token)
    here = f"http://127.0.0.1:{port}"
    for origin in ("null", "http://evil.example", here + "0", here + ".evil.example", "https" + here[4:],
                   f"http://localhost:{port}"):
        check(s.raw("POST", "/api/jobs/1/stop", {}, {"Origin": origin})[0] == 403, "Origin", origin)
    check(s.raw("GET", "/api/jobs", headers={"Origin": here})[0] == 200, "its own origin")
    for site in ("cross-site", "same-site"):
        check(s.raw("GET", "/api/jobs", headers={"Sec-Fetch-Site": site})[0] == 403, site)
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        check(s.raw("POST", "/api/jobs/1/stop", b"{}", {"Content-Type": kind})[0] == 415, "Content-Type", kind)


def answered(s):
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/api", 404), ("PUT", "/api/jobs", 405),
                                 ("GET", "/api/jobs/1/stop", 405), ("GET", "/api/jobs/999", 404),
                                 ("GET", "/api/jobs/-1", 404), ("GET", "/api/jobs/1e3", 404),
                                 ("GET", "/api/jobs/99999999999999999999", 404), ("GET", "/../etc/passwd", 404),
                                 ("GET", "/base.css/..", 404), ("POST", "/api/jobs/999/stop",
                                                                404), ("GET", "/download/", 404)):
        check(s.raw(method, path, {} if method != "GET" else None)[0] == status, method, path)
    for body in (b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff", b"nan", b'{"a": "\\u0000"}'):
        check(s.raw("POST", "/api/jobs", body)[0] == 400, "body", body)
    check(s.raw("POST", "/api/jobs", b"x", {"Content-Length": str(5 << 20)})[0] == 413, "a large body")
    page = s.raw("GET", "/", headers={"Authorization": None})
    check(page[0] == 200 and "default-src 'none'" in page[1]["Content-Security-Policy"], "the page")
    check(s.raw("GET", "/", headers={"If-None-Match": page[1]["ETag"]})[0] == 304, "the page again")
    for path in ("/base.css", "/ui.css", "/base.js", "/charts.js", "/server.js", "/jobs.js", "/job.js", "/form.js",
                 "/data.js", "/start.js"):
        check(s.raw("GET", path, headers={"Authorization": None})[0] == 200, path)
    keys = {k["name"] for part in s.get("/api/keys")["sections"] for k in part["keys"]}
    check({"model", "data.train", "train.learning_rate"} <= keys, "keys", keys)


def refused(s):
    """Jobs that could not run are refused."""
    good = {"name": "x", "ranks": 1, "devices": ["cpu:0"], "config": s.config("refused")}
    for change in ({
            "name": ""
    }, {
            "name": "n" * 201
    }, {
            "name": 5
    }, {
            "ranks": 0
    }, {
            "ranks": 1025
    }, {
            "ranks": "1"
    }, {
            "ranks": 1.5
    }, {
            "devices": []
    }, {
            "devices": ["cpu:9"]
    }, {
            "devices": ["cpu:0", "cpu:0"]
    }, {
            "devices": "cpu:0"
    }, {
            "devices": [None]
    }, {
            "config": None
    }, {
            "config": []
    }, {
            "config": {}
    }, {
            "config": {
                "modle": "x"
            }
    }, {
            "config": dict(good["config"], train={"max_steps": "x"})
    }, {
            "config": dict(good["config"], output_dir="d/" * 3000)
    }):
        check(s.post("/api/jobs", {**good, **change}, code=400)["error"], change)
    said = s.post("/api/jobs", {**good, "config": dict(good["config"], lorra={})}, code=400)["error"]
    check("lorra" in said and "lora" in said, "the key and its neighbour are named:", said)
    plan = s.post("/api/plan", {**good, "config": dict(good["config"], model="/nowhere")})
    check("/nowhere" in plan["refused"] and "plan-" not in plan["refused"], plan)
    plan = s.post("/api/plan", good)
    check(plan["peak_bytes"] > 0 and plan["free_bytes"] > 0 and plan["steps"] == 3, plan)
    check(not list(s.tmp.glob("state/plan-*")), "what a plan leaves")


# ---- the queue


def runs(s):
    """A run to its end; names and samples may be anything; the numbers are those of the files."""
    number = s.post("/api/jobs", {
        "name": MARKUP,
        "ranks": 2,
        "devices": ["cpu:0"],
        "queue": True,
        "config": s.config("first", 5, sample={
            "prompts": [MARKUP],
            "every": 2
        })
    },
                    code=201)["id"]
    job = s.wait(number)
    folder = s.tmp / "runs/first"
    check(job["state"] == "finished" and job["exit_code"] == 0 and job["name"] == MARKUP, job)
    run = s.get(f"/api/jobs/{number}/run")
    told = {c["name"]: dict(zip(c["steps"], c["values"])) for c in run["curves"]}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        for key, value in line.items():
            if key != "step" and not isinstance(value, list):
                check(told[key][line["step"]] == value, key, "at step", line["step"])
    check(run["metrics_bytes"] == (folder / "metrics.jsonl").stat().st_size, "bytes of the metrics")
    check([x["step"] for x in run["samples"]] == [2, 4, 5], "samples")
    listed = next(j for j in s.get("/api/jobs")["jobs"] if j["id"] == number)
    check(listed["state"] == "finished" and "config" not in listed, listed)
    log = s.get(f"/api/jobs/{number}/log")
    check("5 of 5 steps done" in log["text"] and log["next"] == log["size"], log)
    check(s.get(f"/api/jobs/{number}/log?from={log['size'] - 3}")["text"] == log["text"][-3:], "the log's end")
    files = {f["name"]: f["bytes"] for f in s.get(f"/api/jobs/{number}/files")["files"]}
    for name, nbytes in files.items():
        status, headers, data = s.download(number, name)
        check(status == 200 and data == (folder / name).read_bytes() and len(data) == nbytes, name)
        check(headers["Content-Disposition"].startswith("attachment"), headers)
    check({"adapter/adapter_model.safetensors", "adapter/adapter_config.json"} <= files.keys(), files)
    status, headers, page = s.download(number, "")
    check(status == 200 and headers["Content-Security-Policy"].startswith("sandbox allow-scripts;"), headers)
    check(MARKUP.encode() not in page and b"made by fsdpck" in page, "the report")
    return number


def links(s, number):
    folder = s.tmp / "runs/first"
    os.symlink("/etc/passwd", folder / "link")
    os.symlink("/etc", folder / "dir")
    os.mkfifo(folder / "fifo")
    (folder / "cache/seen").write_text("x")
    for name in ("../first/metrics.jsonl", "/etc/passwd", "link", "dir/passwd", "fifo", "adapter", "adapter/../../../x",
                 "nothing", "adapter/..", "\t", "metrics.jsonl/", "a" * 1000):
        check(s.download(number, name)[0] == 404, "downloads", name)
    s.post(f"/api/jobs/{number}/tickets", {"file": "a" * 1024}, code=400)
    s.post(f"/api/jobs/{number}/tickets", {"file": 1}, code=400)
    href = s.post(f"/api/jobs/{number}/tickets", {"file": "metrics.jsonl"})["href"]
    check([s.raw("GET", href)[0] for _ in range(2)] == [200, 404], "a link is used once")
    for guess in ("0" * 32, "", "x", href[10:-1]):
        check(s.raw("GET", "/download/" + guess)[0] == 404, "a guess", guess)
    # Pictures of samples/: PNG files there, and nothing else.
    (folder / "samples/step-000002-1.png").write_bytes(b"\x89PNG")
    (folder / "samples/note.txt").write_text("x")
    os.symlink("/etc/passwd", folder / "samples/link.png")
    status, headers, data = s.raw("GET", f"/api/jobs/{number}/samples/step-000002-1.png")
    check(status == 200 and data == b"\x89PNG" and headers["Content-Type"] == "image/png", status, headers)
    check(
        s.get(f"/api/jobs/{number}/run")["pictures"] == [{
            "step": 2,
            "prompt": 1,
            "file": "step-000002-1.png"
        }], "pictures")
    for name in ("note.txt", "link.png", "no.png", ".png", "../metrics.png", "..%2fmetrics.png", "a" * 300 + ".png"):
        check(s.raw("GET", f"/api/jobs/{number}/samples/{name}")[0] == 404, "pictures", name)
    names = [f["name"] for f in s.get(f"/api/jobs/{number}/files")["files"]]
    check("link" not in names and "fifo" not in names and not any(n.startswith(("dir/", "cache/")) for n in names),
          names)


def asked(s, number):
    """Adapters, merged models, a chat."""
    for verb, made in (("export-lora", "adapter_model.safetensors"), ("merge-lora", "config.json")):
        tool = s.post(f"/api/jobs/{number}/{verb}", {"step": 5}, code=201)["id"]
        job = s.wait(tool)
        check(job["state"] == "finished" and (pathlib.Path(job["output_dir"]) / made).exists(), verb, job)
        again = s.wait(s.post(f"/api/jobs/{number}/{verb}", {"step": 5}, code=201)["id"])
        check(again["state"] == "failed" and "exists" in again["reason"], "twice", again)
        s.post(f"/api/jobs/{number}/{verb}", {"step": 4}, code=404)
    texts = [
        s.raw("POST", f"/api/jobs/{number}/chat", {
            "prompt": "-hello",
            "max_new_tokens": 6,
            "trained": t,
            "seed": 1
        }) for t in (True, False, False)
    ]
    check(all(x[0] == 200 and x[2] for x in texts) and texts[1][2] == texts[2][2], texts)
    for prompt in ("", None, "x" * 60001):
        for verb in ("chat", "draw"):
            s.post(f"/api/jobs/{number}/{verb}", {"prompt": prompt}, code=400)
    said = s.raw("POST", f"/api/jobs/{number}/draw", {"prompt": "x"})
    check(said[0] == 200 and b"this one makes text" in said[2], "a text model does not draw", said)
    shutil.move(s.tmp / "runs/first/adapter", s.tmp / "runs/first/away")
    said = s.raw("POST", f"/api/jobs/{number}/chat", {"prompt": "x", "trained": True})
    check(said[0] == 200 and b"adapter" in said[2], "a chat that fails says why", said)
    shutil.move(s.tmp / "runs/first/away", s.tmp / "runs/first/adapter")


def data(s):
    row = '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "yes"}]}'
    text = "".join(row % i + "\n" for i in range(7)).encode()
    send = lambda name, body: s.raw("POST", f"/api/data?name={name}", body, {"Content-Type": "application/jsonl"})
    status, _, told = send("mine.jsonl", text)
    made = json.loads(told)
    check(status == 201 and made["lines"] == 7 and pathlib.Path(made["file"]).read_bytes() == text, told)
    check(send("mine.jsonl", text)[0] == 409, "twice")
    for name in ("..", ".hidden", "a/b", "a%2fb", "%2e%2e", "", "-x", "x" * 101, "a%00b", "a%20b"):
        check(send(name, text)[0] == 400, "name", name)
    for body, line in ((text + b"{\n", b"line 8"), (b"\n\nnope\n", b"line 3"), (b"\n", b"no lines"), (b"",
                                                                                                      b"no lines")):
        status, _, told = send("bad.jsonl", body)
        check(status == 400 and line in told, body[-20:], told)
    wait_for(lambda: not list((s.tmp / "runs").glob(".upload*")), "an upload leaves nothing")
    check([f["file"] for f in s.get("/api/data")["files"]] == [made["file"]], "the files")
    ask = {"model": str(s.fixtures / "tiny-llama-tied"), "file": made["file"], "from": 3, "count": 2}
    rows = s.post("/api/rows", ask)["examples"]
    check(
        len(rows) == 2 and all(len(r["ids"]) == len(r["tokens"]) == len(r["mask"]) for r in rows)
        and "2" in rows[0]["tokens"], rows)
    check(s.post("/api/rows", {**ask, "from": 8})["examples"] == [], "behind the last row")
    pictures = {"model": str(s.fixtures / "tiny-flux2"), "file": str(s.fixtures / "pictures"), "resolution": 64}
    shown = s.post("/api/rows", pictures)
    check([p["bucket_width"] for p in shown["pictures"]] == [64, 48, 64, 80] and len(shown["buckets"]) == 3, shown)
    check(s.post("/api/rows", {**pictures, "file": "/nowhere"}, code=400)["error"], "no folder")
    for change in ({"model": "-x"}, {"file": ""}, {"file": "/nowhere.jsonl"}, {"loss_on": "nothing"}):
        check(s.post("/api/rows", {**ask, **change}, code=400)["error"], change)


def ordered(s):
    """Overlap is impossible; those behind one that waits for a device do not get it first."""
    long = s.add("long", steps=1000000, devices=["cpu:1"])
    s.wait(long, ("running", ))
    both = s.add("both", devices=["cpu:0", "cpu:1"])
    behind = s.add("behind", devices=["cpu:0"])
    time.sleep(1.2)  # two looks of the queue
    check(s.job(both)["state"] == s.job(behind)["state"] == "queued", "they wait")
    held = {d["name"]: d["job"] for d in s.get("/api/jobs")["devices"]}
    check(held == {"cpu:0": None, "cpu:1": long}, held)
    try:
        s.rows("INSERT INTO held VALUES ('cpu:1', ?)", both)
        check(False, "two jobs hold a device")
    except sqlite3.IntegrityError:
        pass
    s.post(f"/api/jobs/{behind}/move", {"by": -1})
    check(s.wait(behind)["state"] == "finished" and s.job(both)["state"] == "queued", "it was moved before it")
    s.post(f"/api/jobs/{both}/move", {"by": -1}, code=409)
    for what, code in (("queue", 409), ("unqueue", 409), ("clone", 201)):
        s.post(f"/api/jobs/{long}/{what}", code=code)
    s.call("PUT",
           f"/api/jobs/{long}", {
               "name": "x",
               "ranks": 1,
               "devices": ["cpu:0"],
               "config": s.config("long")
           },
           code=409)
    s.call("DELETE", f"/api/jobs/{long}", code=409)
    s.post(f"/api/jobs/{both}/unqueue")
    check(s.job(both)["state"] == "draft", "out of the queue")
    s.post(f"/api/jobs/{long}/kill")
    job = s.wait(long)
    check(job["state"] == "interrupted" and "signal 9" in job["reason"], job)
    check(s.wait(s.add("after", devices=["cpu:1"]))["state"] == "finished", "a killed job gives its device back")
    for what in ("stop", "kill", "save", "sample"):
        s.post(f"/api/jobs/{long}/{what}", code=409)


def on_gpus(tool, fixtures):
    """Two simulated GPUs: a run sees those that it has and no others; one of both waits and is not overtaken."""
    with tempfile.TemporaryDirectory() as tmp, Server(tool, tmp, fixtures, "--gpus", "0,1") as s:
        check([d["name"] for d in s.get("/api/jobs")["devices"]] == ["cuda:0", "cuda:1", "cpu:0"], "devices")
        one = s.add("one", steps=1000000, devices=["cuda:1"])
        s.wait(one, ("running", ))
        both = s.add("both", steps=1000000, ranks=2, devices=["cuda:0", "cuda:1"])
        behind = s.add("behind", devices=["cuda:0"])
        beside = s.add("beside", devices=["cpu:0"])
        check(s.wait(beside)["state"] == "finished", "the processors are free")
        check(s.job(both)["state"] == s.job(behind)["state"] == "queued", "they wait")
        s.post("/api/jobs", {
            "name": "x",
            "ranks": 1,
            "devices": ["cuda:0", "cpu:0"],
            "config": s.config("mixed")
        },
               code=400)
        for job, visible in ((one, "1"), (both, "0,1")):
            pid = s.wait(job, ("running", ))["pid"]
            words = wait_for(lambda: pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"), "its environment")
            check(f"CUDA_VISIBLE_DEVICES={visible}".encode() in words, job, words)
            wait_for(lambda: losses(s.tmp / "runs" / s.job(job)["name"]), "the first step")
            s.post(f"/api/jobs/{job}/stop")
            check(s.wait(job)["state"] == "stopped", s.job(job))
        check(s.wait(behind)["state"] == "finished", s.job(behind))
        lost = s.wait(s.post(f"/api/jobs/{one}/export-lora", {"step": max(losses(s.tmp / "runs/one"))}, code=201)["id"])
        check(lost["state"] == "failed" and "beside" in lost["reason"], "without fsdpck", lost)
        away = s.add("away", devices=["cuda:1"], queue=False)
        s.end()
        s.more = ("--gpus", "0")
        s.start()
        s.post(f"/api/jobs/{away}/queue")
        check(s.wait(s.add("here", devices=["cuda:0"]))["state"] == "finished", "a GPU that it has")
        check(s.job(away)["state"] == "queued", "a GPU that it may not use")
    for word in ("x", "0,0", "-1", "00", "1.5"):
        done = subprocess.run([tool, "ui", "--gpus", word], capture_output=True, text=True)
        check(done.returncode == 2 and "--gpus" in done.stderr, word, done)


def edited(s):
    first = s.add("edit", queue=False)
    check(
        s.get(f"/api/jobs/{first}/run")["curves"] == [] and s.get(f"/api/jobs/{first}/files")["files"] == [],
        "nothing yet")
    s.post("/api/jobs", {"name": "y", "ranks": 1, "devices": ["cpu:0"], "config": s.config("edit")}, code=409)
    s.call("PUT", f"/api/jobs/{first}", {
        "name": "new name",
        "ranks": 2,
        "devices": ["cpu:1"],
        "config": s.config("edit", 2)
    })
    job = s.job(first)
    check((job["name"], job["ranks"], job["devices"], job["config"]["train"]["max_steps"]) == ("new name", 2, ["cpu:1"],
                                                                                               2), job)
    clones = [s.job(s.post(f"/api/jobs/{first}/clone", code=201)["id"]) for _ in range(2)]
    check([c["output_dir"] for c in clones] == [str(s.tmp / f"runs/edit-{k}") for k in (2, 3)], clones)
    check(clones[0]["config"]["output_dir"] == clones[0]["output_dir"] and clones[0]["state"] == "draft", clones[0])
    s.call("DELETE", f"/api/jobs/{clones[0]['id']}")
    s.get(f"/api/jobs/{clones[0]['id']}", code=404)


def stopped_at_once(s):
    """A stop is not lost, and no failure, before the program can handle signals, while it loads and as it trains."""
    number = s.add("at-once", steps=1000000, queue=False)
    for turn in range(24):
        s.post(f"/api/jobs/{number}/queue")
        s.wait(number, ("running", ))
        time.sleep(turn // 2 * 0.03)
        s.post(f"/api/jobs/{number}/stop")
        job = s.wait(number, seconds=60)
        check(job["state"] == "stopped", job)


def found(s):
    """Runs that a terminal started are listed, and become jobs."""
    (s.tmp / "by-hand.json").write_text(json.dumps(s.config("by-hand")))
    subprocess.run([s.tool, "run", "by-hand.json", "--ranks", "2", "--quiet"], cwd=s.tmp, check=True)
    (s.tmp / "runs/empty").mkdir()
    runs = s.get("/api/found")["runs"]
    check(runs == [{"name": "by-hand", "state": "finished"}], runs)
    number = s.post("/api/found", {"name": "by-hand"}, code=201)["id"]
    job = s.job(number)
    check((job["state"], job["ranks"], job["output_dir"]) == ("finished", 2, str(s.tmp / "runs/by-hand")), job)
    check(s.get("/api/found")["runs"] == [] and len(s.get(f"/api/jobs/{number}/run")["curves"]) > 5, "it is a job")
    s.post("/api/found", {"name": "by-hand"}, code=409)
    for name, code in (("empty", 404), ("nothing", 404), ("..", 400), ("a/b", 400), ("", 400), (None, 400)):
        s.post("/api/found", {"name": name}, code=code)


def resumed(s):
    """Stopped, and resumed at another number of ranks: the losses of a run that was never stopped."""
    whole = s.add("whole", steps=40)
    part = s.add("part", steps=40, ranks=2, log={"jsonl": "odd.jsonl"})
    s.wait(part, ("running", ))
    wait_for(lambda: (s.tmp / "runs/part/odd.jsonl").exists(), "the first step")
    s.post(f"/api/jobs/{part}/stop")
    job = s.wait(part)
    check(job["state"] in ("stopped", "finished"), job)
    s.post(f"/api/jobs/{part}/queue", {"ranks": 0}, code=400)
    s.post(f"/api/jobs/{part}/queue", {"ranks": 3})
    check(s.wait(part)["state"] == "finished" and s.job(part)["ranks"] == 3, "resumed")
    s.wait(whole)
    (s.tmp / "runs/part/odd.jsonl").rename(s.tmp / "runs/part/metrics.jsonl")
    check(losses(s.tmp / "runs/part") == losses(s.tmp / "runs/whole"), "losses")


def told_now(s):
    number = s.add("now", steps=1000000, sample={"prompts": ["hello"]})
    s.wait(number, ("running", ))
    folder = s.tmp / "runs/now"
    wait_for(lambda: (folder / "metrics.jsonl").exists(), "the first step")
    s.post(f"/api/jobs/{number}/save")
    wait_for(lambda: list(folder.glob("checkpoints/step-*")), "a checkpoint")
    wait_for(lambda: not (folder / "control").exists(), "the request is read")
    s.post(f"/api/jobs/{number}/sample")
    wait_for(lambda: list(folder.glob("samples/*")), "samples")
    s.post(f"/api/jobs/{number}/stop")
    check(s.wait(number)["state"] == "stopped", "stopped")


def tenants(s):
    """Of a run that goes on: a list, words to one, and another list."""
    one = {"name": "a"}
    number = s.add("team", steps=1000000, tenants=[one, {"name": "b", "train": {"max_steps": 1000000}}])
    path, folder = f"/api/jobs/{number}/tenants", s.tmp / "runs/team/tenants"
    s.wait(number, ("running", ))

    def at(name):
        return {t["name"]: t for t in s.get(path)["tenants"]}.get(name, {})

    wait_for(lambda: at("a").get("step") and at("b").get("loss"), "the first steps")
    check(at("a")["steps"] == 1000000 and at("a")["state"] == "under way", at("a"))
    for body, code in (({"tenant": "a", "word": "dance"}, 400), ({"tenant": "../a", "word": "save"}, 404),
                       ({"tenant": "c", "word": "save"}, 404), ({"word": "save"}, 404)):
        s.post(path, body, code=code)
    for name, word, said in (("a", "pause", "rests after"), ("b", "stop", "ends with"),
                             ("a", "resume", "goes on after")):
        s.post(path, {"tenant": name, "word": word})
        wait_for(lambda: said in at(name).get("note", ""), f"{name}: {word}")
    s.post(path, {"tenant": "a", "word": "save"})
    wait_for(lambda: list((folder / "a/checkpoints").glob("step-*")), "the other is saved")
    for tenants, code in ((3, 400), ([{"name": "a", "lora": {"r": -1}}], 400), ([one, one], 400)):
        s.call("PUT", path, {"tenants": tenants}, code)
    process = s.job(number)["pid"]
    os.killpg(process, signal.SIGSTOP)  # it reads no word
    s.post(f"/api/jobs/{number}/save")
    kept = {p: p.read_bytes() for p in s.tmp.rglob(f"{number}.json")}
    s.call("PUT", path, {"tenants": [one]}, 409)
    check(kept and all(p.read_bytes() == text for p, text in kept.items()), "the config of a refused list", list(kept))
    check([t["name"] for t in s.job(number)["config"]["tenants"]] == ["a", "b"], "the job's config is as before")
    os.killpg(process, signal.SIGCONT)
    wait_for(lambda: not (folder.parent / "control").exists(), "the word is read")
    s.call("PUT", path, {"tenants": [one, {"name": "c"}]})
    wait_for(lambda: at("c").get("step") and at("a")["state"] == "under way", "another comes")
    check([t["name"] for t in s.get(f"/api/jobs/{number}")["config"]["tenants"]] == ["a", "c"], "the job's config")
    s.post(f"/api/jobs/{number}/stop")
    check(s.wait(number)["state"] == "stopped", "stopped")
    check([at(name)["state"] for name in "abc"] == 3 * ["stopped"], [at(name) for name in "abc"])
    s.post(path, {"tenant": "a", "word": "save"}, code=409)
    s.call("PUT", path, {"tenants": [one]}, 409)
    s.get("/api/jobs/999/tenants", code=404)
    (s.tmp / "team").mkdir()
    for name in "de":
        (s.tmp / f"team/{name}.json").write_text("{}")
    number = s.add("folder", steps=2, tenants="team")
    check(s.wait(number)["state"] == "finished", "tenants of a folder", s.job(number))
    check([t["state"] for t in s.get(f"/api/jobs/{number}/tenants")["tenants"]] == 2 * ["finished"], "both finished")


def failed(s):
    for name, change, why in (("no-model", {
            "model": "/nowhere"
    }, "/nowhere"), ("no-data", {
            "data": {
                "train": "/nothing.jsonl"
            }
    }, "/nothing.jsonl"), ("taken", {
            "output_dir": str(s.tmp / "file")
    }, "file")):
        (s.tmp / "file").write_text("")
        job = s.wait(s.add(name, **change))
        check(job["state"] == "failed" and job["exit_code"] and why in job["reason"], name, job)


def streamed(s):
    """Two pages hear of a job; what they hear is what the files have."""
    number = s.add("heard", steps=30, queue=False)
    heard = [[], []]

    def listen(into):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("GET", f"/api/stream?job={number}", headers={"Host": "localhost", "Authorization": "Bearer " + TOKEN})
        answer = c.getresponse()
        while not (into and into[-1][0] == "jobs" and any(j["id"] == number and j["state"] == "finished"
                                                          for j in into[-1][1]["jobs"])):
            line = answer.readline().decode()
            if line.startswith("event: "):
                into.append((line[7:].strip(), json.loads(answer.readline().decode()[6:])))
        c.close()

    threads = [threading.Thread(target=listen, args=(into, )) for into in heard]
    for t in threads:
        t.start()
    s.post(f"/api/jobs/{number}/queue")
    for t in threads:
        t.join(120)
        check(not t.is_alive(), "a stream that does not tell the end")
    wanted = (s.tmp / "runs/heard/metrics.jsonl").read_text()
    for into in heard:
        text = "".join(told["text"] for name, told in into if name == "metrics")
        check(text == wanted, "metrics", len(text), len(wanted))
        check(
            any(name == "jobs" and any(j["id"] == number and j["state"] == "running" for j in told["jobs"])
                for name, told in into), "that it runs")


# ---- death


def outlived(s):
    """The server ends in order, or is killed: the job goes on, and is found again."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        number = s.add(f"outlives-{int(how)}", steps=1000000)
        s.wait(number, ("running", ))
        folder = s.tmp / f"runs/outlives-{int(how)}"
        wait_for(lambda: (folder / "metrics.jsonl").exists(), "the first step")
        s.end(how)
        size = (folder / "metrics.jsonl").stat().st_size
        wait_for(lambda: (folder / "metrics.jsonl").stat().st_size > size, "it trains without a server")
        s.start()
        check(s.job(number)["state"] == "running", "found again")
        s.post(f"/api/jobs/{number}/stop")
        check(s.wait(number)["state"] == "stopped", s.job(number))
        short = s.add(f"ends-{int(how)}", steps=300)
        s.wait(short, ("running", *FINAL))
        s.end(how)
        wait_for(
            lambda: events(s.tmp / f"runs/ends-{int(how)}", "end")
            if (s.tmp / f"runs/ends-{int(how)}/events.jsonl").exists() else None, "its end")
        s.start()
        check(s.wait(short)["state"] == "finished", s.job(short))
    number = s.add("dies-alone", steps=1000000)
    s.wait(number, ("running", ))
    pid = s.job(number)["pid"]
    s.end(signal.SIGKILL)
    os.killpg(pid, signal.SIGKILL)
    s.start()
    job = s.wait(number)
    check(job["state"] == "interrupted", job)
    s.post(f"/api/jobs/{number}/queue")
    s.wait(number, ("running", ))
    s.post(f"/api/jobs/{number}/stop")
    s.wait(number)


def killed(s, nkills, seed):
    """Killed at random moments while jobs start and end: every job runs once, and no device is held twice."""
    r = random.Random(seed)
    jobs = [s.add(f"short-{seed}-{i}", steps=r.randrange(1, 4), devices=[f"cpu:{i % 2}"]) for i in range(8)]
    for _ in range(nkills):
        time.sleep(r.random() * 0.4)
        s.end(signal.SIGKILL)
        s.start()
    found = [s.wait(number) for number in jobs]
    for i, job in enumerate(found):
        check(job["state"] == "finished", job)
        starts = events(s.tmp / f"runs/short-{seed}-{i}", "start")
        check(len(starts) == 1, "it ran", len(starts), "times", job)
    check(s.rows("SELECT * FROM held") == [], "devices that are held")
    print(f"killed {nkills} times, seed {seed}: {len(jobs)} jobs ran once")


def alone(s):
    """One server a queue; it removes what a killed one has left of an upload."""
    (s.tmp / "runs/.upload-abcdef").write_text("x")
    s.end(signal.SIGKILL)
    s.start()
    check(not (s.tmp / "runs/.upload-abcdef").exists(), "a torn upload stays")
    other = Server(s.tool, s.tmp, s.fixtures)
    try:
        other.start()
        check(False, "two servers of a queue")
    except AssertionError as e:
        check("serves this queue" in str(e), e)


def stopped_while_it_talks(s):
    """A chat that would go on for minutes does not hold the end of its server."""
    number = s.add("talks", queue=False)
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", f"/api/jobs/{number}/chat", json.dumps({"prompt": "hello", "max_new_tokens": 4096}),
              {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"})
    check(c.getresponse().status == 200, "a chat")
    s.end()
    c.close()
    s.start()


def many(s):
    s.end()
    config = json.dumps(s.config("many"))
    with sqlite3.connect(s.tmp / "state/queue.sqlite") as db:
        db.executemany(
            "INSERT INTO jobs (kind, name, config, ranks, devices, output_dir, cwd, state, position, created) VALUES "
            "('run', ?, ?, 1, '[\"cpu:0\"]', ?, '/', 'stopped', 0, 1)",
            ((f"job {i}", config, f"/nowhere/{i}") for i in range(10000)))
    s.start()
    began = time.monotonic()
    listed = s.get("/api/jobs")
    print(f"10,000 jobs: listed in {1000 * (time.monotonic() - began):.1f} ms")
    seen = {j["id"] for j in listed["jobs"]}
    while listed["more"]:
        listed = s.get(f"/api/jobs?before={min(j['id'] for j in listed['jobs'] if j['state'] != 'queued')}")
        seen |= {j["id"] for j in listed["jobs"]}
    check(len(seen) == s.rows("SELECT count(*) FROM jobs")[0][0], "jobs seen", len(seen))


def newer(s):
    s.end()
    with sqlite3.connect(s.tmp / "state/queue.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    try:
        s.start()
        check(False, "a newer queue is served")
    except AssertionError as e:
        check("newer fsdptrain" in str(e), e)


def token_of_its_own(s):
    """Without --token, one of 128 random bits in a file that nobody else may read; --socket is for this user."""
    home = s.tmp / "home"
    p = subprocess.Popen([s.tool, "ui", "--dir", "runs", "--socket", "ui.sock"],
                         cwd=s.tmp,
                         stdout=subprocess.PIPE,
                         text=True,
                         env=dict(os.environ, HOME=str(home), XDG_STATE_HOME=""))
    line = p.stdout.readline()
    state = home / ".local/state/fsdpck/ui"
    token = (state / "token").read_text()
    check(len(token) == 32 and line.rstrip().endswith("#" + token), line)
    check((state / "token").stat().st_mode & 0o777 == 0o600 and (s.tmp / "ui.sock").stat().st_mode & 0o777 == 0o600,
          "modes")
    with socket.socket(socket.AF_UNIX) as c:
        c.connect(str(s.tmp / "ui.sock"))
        c.sendall(
            f"GET /api/jobs HTTP/1.1\r\nHost: localhost:9\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
            .encode())
        check(c.recv(100).startswith(b"HTTP/1.1 200"), "the socket answers")
    p.terminate()
    check(p.wait(60) == 0 and not (s.tmp / "ui.sock").exists(), "it removes its socket")


def main():
    tool, fixtures = map(os.path.abspath, sys.argv[1:3])
    quick, guarded_tool = "--quick" in sys.argv, sys.argv[4:] if "--gpu" in sys.argv[3:4] else []
    with tempfile.TemporaryDirectory() as tmp, Server(tool, tmp, fixtures, "--cpu-slots", "2") as s:
        for test in (guarded, answered, refused):
            test(s)
        number = runs(s)
        for test in (links, asked):
            test(s, number)
        tests = [data, ordered, edited, stopped_at_once, found, alone]
        if not quick:
            tests += [resumed, told_now, tenants, failed, streamed, outlived]
        for test in tests:
            test(s)
        for seed in range(1 if quick else 4):
            killed(s, 2 if quick else 5, seed)
        for test in (stopped_while_it_talks, many, newer, token_of_its_own):
            test(s)
    for tool in guarded_tool:
        on_gpus(os.path.abspath(tool), fixtures)
    print("ui: the queue holds")


if __name__ == "__main__":
    main()
