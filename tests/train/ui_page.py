#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ui_page.py FSDPTRAIN FIXTURES PICTURES: the page of `fsdptrain ui` in a headless Chromium, used as a person would:
form, queue, a run on two ranks, its curve, stop, resume on three, samples, downloads, a chat, data. No complaint in the
console, and no request that leaves the machine. Pictures of the pages are left in PICTURES."""
import json, os, pathlib, signal, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import browser
from ui_harness import TOKEN, Server, check, losses, wait_for

MARKUP = "<img src=x onerror=\"document.title='broken'\">"
TYPE = """(() => { const e = document.getElementById(%s); e.value = %s;
  e.dispatchEvent(new Event("input", { bubbles: true })); e.dispatchEvent(new Event("change", { bubbles: true })); })(),
  true"""


def put(page, field, text):
    page.run(TYPE % (json.dumps(field), json.dumps(str(text))))


def press(page, action, within="#page"):
    page.wait(f"document.querySelector({json.dumps(within + ' [data-action=' + json.dumps(action) + ']')})", action)
    page.run(
        f"document.querySelector({json.dumps(within + ' [data-action=' + json.dumps(action) + ']')}).click(), true")


def state(page, *words):
    page.wait(f"{json.dumps(words)}.includes((document.querySelector('#job-state .chip') || {{}}).textContent)",
              f"state {words}")


def text_of(page, selector):
    return page.run(f"(document.querySelector({json.dumps(selector)}) || {{}}).textContent || ''")


def fill_form(s, page):
    page.run("location.hash = '#/new', true")
    page.wait(
        "document.getElementById('verdict') && document.getElementById('verdict').textContent.includes('are wanted')")
    put(page, "name", MARKUP)
    put(page, "key-model", s.fixtures / "tiny-llama-tied")
    put(page, "key-data.train", "/nowhere.jsonl")
    page.wait("document.querySelector('#verdict .bad')", "the planner refuses")
    check("/nowhere.jsonl" in text_of(page, "#verdict"), text_of(page, "#verdict"))
    put(page, "key-data.train", s.fixtures / "chat.jsonl")
    put(page, "key-data.seq_len", 32)
    put(page, "key-lora.r", 2)
    put(page, "key-train.max_steps", 1000000)
    put(page, "key-data.eval", s.fixtures / "chat.jsonl")
    put(page, "key-sample.prompts", json.dumps([MARKUP]))
    put(page, "ranks", 2)
    page.wait("document.getElementById('verdict').textContent.includes('It fits')", "the planner agrees")
    config = json.loads(page.run("document.getElementById('json').value"))
    check(config["output_dir"].startswith(str(s.tmp / "runs") + "/img-src-x"), config)
    check(
        config["train"] == {"max_steps": 1000000} and config["lora"] == {"r": 2}
        and config["sample"] == {"prompts": [MARKUP]}, config)
    put(page, "json", json.dumps(dict(config, output_dir=str(s.tmp / "runs/first"))))
    check(
        page.run("document.getElementById('key-output_dir').value") == str(s.tmp / "runs/first"), "JSON and form agree")


def trained(s, page, other, downloads):
    """Returns the job's number."""
    fill_form(s, page)
    page.run("document.getElementById('queue-it').click(), true")
    page.wait("/^#\\/job\\/\\d+$/.test(location.hash)")
    number = int(page.run("location.hash.split('/')[2]"))
    state(page, "running")
    other.run(f"location.hash = '#/job/{number}', true")  # a second page of the same job
    for p in (page, other):
        p.wait("document.querySelectorAll('svg.plot path.curve').length > 3", "curves")
        seen = text_of(p, "#job-state")
        p.wait(f"document.querySelector('#job-state').textContent !== {json.dumps(seen)}", "the state moves")
    path = "document.querySelector('svg.plot path.curve').getAttribute('d')"
    before = page.run(path)
    page.wait(f"{path} !== {json.dumps(before)}", "the curve moves")
    check("step" in text_of(page, "#log"), "the log")
    press(page, "sample")
    wait_for(
        lambda: list((s.tmp / "runs/first/samples").glob("*"))
        if (s.tmp / "runs/first/samples").exists() else None, "samples")
    page.wait("document.querySelector('#samples pre')", "samples on the page")
    check(MARKUP in text_of(page, "#samples"), "the prompt is shown as text")
    press(page, "stop")
    state(page, "stopped")
    state(other, "stopped")
    config = s.job(number)["config"]
    steps = max(losses(s.tmp / "runs/first")) + 20
    s.call(
        "PUT", f"/api/jobs/{number}", {
            "name": MARKUP,
            "ranks": 2,
            "devices": ["cpu:0"],
            "config": dict(config, train={
                "max_steps": steps,
                "lr_scheduler_type": "constant",
                "eval_steps": 1
            })
        })
    page.run(f"location.hash = '#/edit/{number}', true")
    page.wait("document.getElementById('key-train.max_steps')")
    check(page.run("document.getElementById('key-train.max_steps').value") == str(steps), "the form of a job")
    page.run(f"location.hash = '#/job/{number}', true")
    page.wait("document.getElementById('resume-ranks')")
    put(page, "resume-ranks", 3)
    press(page, "queue")
    state(page, "finished", "failed")
    check(s.job(number)["state"] == "finished" and s.job(number)["ranks"] == 3, s.job(number))
    wanted = losses(s.tmp / "runs/first")
    shown = page.run("document.querySelector('svg.plot').closest('figure').querySelector('strong').textContent")
    check(shown == "Loss", shown)
    page.run(
        "document.querySelector('svg.plot').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' })), true")
    told = text_of(page, "figure .readout")
    check(str(wanted[1]) in told and "at step 1" in told, "the first loss", told, wanted[1])
    page.wait("/step [0-9]+, eval loss [0-9.]+, best:/.test(document.getElementById('files').textContent)", "the best")
    page.wait("document.querySelector('[data-file=\"adapter/adapter_model.safetensors\"]')", "the adapter's file")
    page.run("document.querySelector('[data-file=\"adapter/adapter_model.safetensors\"]').click(), true")
    whole = (s.tmp / "runs/first/adapter/adapter_model.safetensors").read_bytes()
    got = downloads / "adapter_model.safetensors"
    wait_for(lambda: got.exists() and got.read_bytes() == whole, "the download")
    return number


def talked(page):
    put(page, "prompt", "hello")
    page.run("document.querySelector('#chat button').click(), true")
    page.wait(
        "document.querySelector('.answer-trained').textContent && !document.querySelector('#chat button').disabled",
        "a chat")
    check(text_of(page, ".answer-base") != "", "the base talks")


def reported(b, page, number):
    """The report opens beside the page, draws, and cannot reach the server."""
    page.run(f"location.hash = '#/job/{number}', true")
    press(page, "report")
    report = wait_for(lambda: b.opened("/download/"), "the report's window")
    report.wait("document.querySelector('svg.plot path.curve')", "the report's curves")
    check(report.run("self.origin") == "null" and report.run("window.opener") is None, "the report has its own origin")
    page.call("Page.bringToFront")


def exported(page):
    press(page, "export-lora", "#files")
    page.wait("document.querySelector('h1').textContent.startsWith('export-lora of')")
    state(page, "finished")
    page.wait("document.querySelector('[data-file=\"adapter_model.safetensors\"]')", "the exported adapter")


def looked_at(s, page):
    page.run("location.hash = '#/data', true")
    page.wait("document.getElementById('upload')")
    page.run("""(() => { const t = new DataTransfer(), e = document.getElementById('upload');
      t.items.add(new File([%s], "mine.jsonl")); e.files = t.files;
      e.dispatchEvent(new Event("change")); return true; })()""" % json.dumps((s.fixtures / "chat.jsonl").read_text()))
    page.wait("document.getElementById('uploaded').textContent.includes('8 lines')", "the upload")
    put(page, "rows-model", s.fixtures / "tiny-llama-tied")
    put(page, "rows-length", 40)
    page.run("document.querySelector('#rows-form button').click(), true")
    page.wait("document.querySelectorAll('#rows .tokens').length === 8", "the rows")
    check(
        page.run("document.querySelectorAll('#rows .on').length") > 0
        and page.run("document.querySelectorAll('#rows .cut').length") > 0, "mask and what is cut")
    put(page, "rows-model", s.fixtures / "tiny-flux2")
    put(page, "rows-file", s.fixtures / "pictures")
    put(page, "rows-side", 64)
    page.run("document.querySelector('#rows-form button').click(), true")
    page.wait("document.getElementById('rows').textContent.includes('4 pictures in 3 buckets')", "the pictures")
    check("a tall picture" in page.run("document.getElementById('rows').textContent"), "captions")


def drawn(s, page):
    """A run on pictures: the gallery."""
    config = {
        "model": str(s.fixtures / "tiny-flux2"),
        "output_dir": str(s.tmp / "runs/drawn"),
        "data": {
            "train": str(s.fixtures / "pictures")
        },
        "image": {
            "resolution": 64,
            "max_sequence_length": 16
        },
        "lora": {
            "target_modules": ["to_q"]
        },
        "train": {
            "max_steps": 2
        },
        "sample": {
            "every": 1,
            "prompts": ["a <b>fox</b>", "a house"]
        }
    }
    body = {"name": "drawn", "ranks": 1, "devices": ["cpu:0"], "queue": True, "config": config}
    number = s.post("/api/jobs", body, code=201)["id"]
    check(s.wait(number)["state"] == "finished", "a run on pictures")
    page.run(f"location.hash = '#/job/{number}', true")
    page.wait("[...document.querySelectorAll('.samples img')].filter((i) => i.naturalWidth === 64).length === 6",
              "six pictures")
    check("a <b>fox</b>step 2" in page.run("document.querySelector('.samples figcaption').textContent"), "captions")
    put(page, "prompt", "a fox")
    page.run("document.querySelector('#chat button').click(), true")
    page.wait("[...document.querySelectorAll('#try img')].filter((i) => i.naturalWidth === 64).length === 2", "drawn")
    pair = page.run("[...document.querySelectorAll('#try img')].map((i) => i.src)")
    check(pair[0] != pair[1], "the adapter changes the picture")


def shared(s, page, folder):
    """Tenants of a run: the list follows what they do."""
    number = s.add("team", steps=1000000, tenants=[{"name": "a"}, {"name": "b"}])
    page.run(f"location.hash = '#/job/{number}', true")
    begun = "[...document.querySelectorAll('#tenants tbody tr')].filter((r) => / of 1000000/.test(r.textContent))"
    page.wait(begun + ".length === 2")
    press(page, "stop", "#tenants tr[data-tenant='b']")
    page.wait("/stopped|ends with/.test(document.querySelector('#tenants tr[data-tenant=b]').textContent)")
    page.run("document.querySelector('#tenants textarea').value = JSON.stringify([{ name: 'a' }, { name: 'c' }]), true")
    press(page, "tenants", "#tenants")
    page.wait(begun + ".length === 3")
    folder.mkdir(parents=True, exist_ok=True)
    page.shot(folder / "ui-tenants.png")
    s.post(f"/api/jobs/{number}/stop")
    check(s.wait(number)["state"] == "stopped", "a run with tenants")
    page.wait("!document.querySelector('#tenants tbody button')")


def listed(s, page):
    for i in range(3):
        s.add(f"wait-{i}", queue=False)
    page.run("location.hash = '#/jobs', true")
    page.wait("document.querySelectorAll('tr[data-job]').length >= 5")
    names = page.run("[...document.querySelectorAll('tr[data-job] a')].map((a) => a.textContent)")
    check(MARKUP in names, names)
    press(
        page, "queue", "tr[data-job='%d']" %
        s.post("/api/jobs", {
            "name": "last",
            "ranks": 1,
            "devices": ["cpu:0"],
            "config": s.config("last")
        }, code=201)["id"])
    page.wait("[...document.querySelectorAll('tr[data-job]')].some((r) => /last.*finished/.test(r.textContent))")


def pictured(page, folder, number):
    folder.mkdir(parents=True, exist_ok=True)
    for name, address, ready in (("jobs", "#/jobs", "document.querySelector('tr[data-job]')"),
                                 ("job", f"#/job/{number}", "document.querySelector('svg.plot path.curve')"),
                                 ("form", f"#/edit/{number}", "document.querySelector('#verdict table')"),
                                 ("data", "#/data", "document.getElementById('upload')")):
        page.run(f"location.hash = {json.dumps(address)}, true")
        page.wait(ready, name)
        page.shot(folder / f"ui-{name}.png")
        page.shot(folder / f"ui-{name}-dark-narrow.png", 390, 800, dark=True)
        wide = page.run("document.documentElement.scrollWidth")
        check(wide <= 390, name, "is", wide, "pixels wide on a screen of 390")


def many_tabs(s, program):
    """More tabs than a browser has connections to a server: those in the background hold none."""
    b = browser.Browser(program)
    try:
        tabs = [b.page(tab=True) for _ in range(9)]
        for tab in tabs:
            tab.call("Page.bringToFront")
            tab.open(f"http://127.0.0.1:{s.port}/#{TOKEN}")
            tab.wait("document.querySelector('tr[data-job]')", "a tab more")
        for _ in range(9):  # pages that the browser keeps for its "back" hold none either
            tabs[0].call("Page.bringToFront")
            tabs[0].open("about:blank")
            tabs[0].open(f"http://127.0.0.1:{s.port}/")
            tabs[0].wait("document.querySelector('tr[data-job]')", "the page again")
    finally:
        b.close()


def comes_back(s, program):
    """The server is killed and comes back: so does the page, with the token that it knows."""
    b = browser.Browser(program)
    try:
        page = b.page()
        page.open(f"http://127.0.0.1:{s.port}/#{TOKEN}")
        page.wait("document.querySelector('tr[data-job]')")
        check(TOKEN not in page.run("location.href"), "the token stays in the address")
        s.end(signal.SIGKILL)
        page.wait("document.getElementById('state').textContent.startsWith('no connection')")
        s.start()
        page.wait("document.getElementById('state').textContent === 'live'")
        page.open(f"http://127.0.0.1:{s.port}/")
        page.wait("document.querySelector('tr[data-job]')", "the page again")
        wrong = b.page()
        wrong.open(f"http://localhost:{s.port}/#wrong")  # another origin: it knows no token
        wrong.wait("document.getElementById('state').textContent.includes('token')")
    finally:
        b.close()


def main():
    tool, fixtures, pictures = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), pathlib.Path(sys.argv[3])
    program = browser.find()
    if not program:
        print("SKIP ui-page: no Chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as tmp, Server(tool, tmp, fixtures) as s:
        downloads = pathlib.Path(tmp) / "downloads"
        downloads.mkdir()
        b = browser.Browser(program)
        try:
            page, other = b.page(downloads), b.page(downloads)
            for p in (page, other):
                p.open(f"http://127.0.0.1:{s.port}/#{TOKEN}")
                p.wait("document.querySelector('h1') && document.getElementById('state').textContent === 'live'")
            number = trained(s, page, other, downloads)
            talked(page)
            reported(b, page, number)
            exported(page)
            looked_at(s, page)
            drawn(s, page)
            shared(s, page, pictures)
            listed(s, page)
            pictured(page, pictures, number)
            check(page.run("document.title") == "fsdptrain", "markup ran")
            check(b.complaints == [], "the console complains:", b.complaints)
            away = [a for a in b.addresses if not a.startswith((f"http://127.0.0.1:{s.port}/", "data:", "about:"))]
            check(away == [], "requests that leave:", away)
        finally:
            b.close()
        many_tabs(s, program)
        comes_back(s, program)
    print(f"ui-page: {len(b.addresses)} requests, none left the machine")


if __name__ == "__main__":
    main()
