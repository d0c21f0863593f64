#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py FSDPTRAIN: what a report shows is what the run's files say. Runs are written here, not trained: whole ones,
one with a torn last line, one whose steps begin anew, and one whose names and samples are markup. Where there is a
Chromium, it opens a page, without a network, and must find nothing to complain about."""
import bisect, csv, fcntl, io, json, math, os, pathlib, random, shutil, subprocess, sys, tempfile

MARKUP = "</script><img src=x onerror=\"document.title='broken'\">"
# Appended to a page: what a reader does, and what must come of it.
READ = """<script>
const plot = document.querySelector("svg.plot"), figure = plot.closest("figure"), first = plot.innerHTML;
const say = (e, kind) => e.dispatchEvent(new Event(kind));
plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
const said = figure.querySelector(".readout").textContent.includes("at step 1");
figure.querySelector("input[type=checkbox]").click();
const logarithmic = plot.innerHTML;
document.getElementById("from").value = 3;
say(document.getElementById("from"), "change");
const zoomed = plot.innerHTML, range = document.querySelector("input[type=range]");
range.value = 0.5;
say(range, "input");
document.title = [said, first !== logarithmic, logarithmic !== zoomed, figure.querySelector(".raw") !== null,
  performance.getEntriesByType("resource").length === 0].join(" ");
</script>"""
ODD = [{}, {"step": 3, "time": "x", "machine": [1], "memory": 5, "groups": 5}, {"step": 3, "time": 1e300, "memory": [],
       "groups": [None, {}, 4]}, {"step": 2, "time": 1, "config": "c", "machine": None, "groups": {"a": 1}}]
BEGIN, END = '<script type="application/json" id="data">', "</script>"


def check(ok, *what):
    if not ok:
        sys.exit(f"report: {' '.join(map(str, what))}")


def write_run(folder, lines, tail=""):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def lines_of(n, nranks=2, seed=1):
    r = random.Random(seed)
    lines = [{
        "step": s, "loss": 3 / s + r.random(), "grad_norm": r.expovariate(1), "tokens": 128, "step_seconds": r.random(),
        "comm_seconds": r.random() / 9, "rank_busy_seconds": [r.random() for _ in range(nranks)], "rss_bytes": 2**40 + s
    } for s in range(1, n + 1)]
    lines[n // 2]["grad_norm"] = None
    lines[-1]["eval_loss"] = 0.1 + 0.2
    return lines


class Report:
    def __init__(self, tool, tmp):
        self.tool, self.tmp = tool, tmp

    def call(self, *args, code=0, verb="report"):
        done = subprocess.run([self.tool, verb, *map(str, args)], capture_output=True, encoding="utf-8",
                              cwd=self.tmp)
        check(done.returncode == code, args, "exit code", done.returncode, done.stderr)
        return done

    def page(self, *runs):
        out = self.tmp / "page.html"
        self.call(*runs, "--out", out)
        text = out.read_text(encoding="utf-8")
        check(text.count(BEGIN) == 1, "the page has one element for data")
        return json.loads(text.split(BEGIN)[1].split(END)[0])["runs"], text


def curves(run):
    return {c["name"]: c for c in run["curves"]}


def by_name(lines):
    """As the report names the numbers of lines: name to step to value."""
    out = {}
    for line in lines:
        for key, value in line.items():
            named = {f"{key}[{i}]": x for i, x in enumerate(value)} if isinstance(value, list) else {key: value}
            for name, v in named.items():
                if name != "step":
                    out.setdefault(name, {})[line["step"]] = v
    return out


def numbers(report):
    lines = lines_of(60)
    (run,), _ = report.page(write_run(report.tmp / "whole", lines))
    found, wanted = curves(run), by_name(lines)
    check(found.keys() == wanted.keys(), "curves", found.keys(), wanted.keys())
    for name, values in wanted.items():
        check(dict(zip(found[name]["steps"], found[name]["values"])) == values, name, "has other values")
        finite = [v for v in values.values() if v is not None]
        check((found[name]["min"], found[name]["max"]) == (min(finite), max(finite)), name, "extremes")
        check(math.isclose(found[name]["sum"], math.fsum(finite), rel_tol=1e-12), name, "sum")
    check(run["state"] == "interrupted" and run["step"] == 60 and run["unreadable_lines"] == 0, "state", run["state"])


def thinned(report):
    lines = lines_of(20000, nranks=1)
    lines[7777]["loss"], lines[12345]["loss"] = 1e9, -1e9
    (run,), text = report.page(write_run(report.tmp / "long", lines))
    wanted = by_name(lines)
    check(len(text) < 2e6, "the page has", len(text), "bytes")
    for name, c in curves(run).items():
        at = c["steps"]
        check(c["count"] == len(wanted[name]) and len(at) <= 2000, name, "has", len(at), "points")
        check(all(a < b for a, b in zip(at, at[1:])), name, "steps ascend")
        check(all(wanted[name][s] == v for s, v in zip(at, c["values"])), name, "a point is not in the file")
        for step, value in wanted[name].items():  # near each point that is left out, one as high and one as low is kept
            near = [v for v in c["values"][bisect.bisect(at, step - 31):bisect.bisect(at, step + 31)] if v is not None]
            check(value is None or min(near) <= value <= max(near), name, "lost an extreme at step", step)
    loss = curves(run)["loss"]
    check({1e9, -1e9} <= set(loss["values"]), "an extreme is lost")
    check(None in curves(run)["grad_norm"]["values"], "a value that was not finite is lost")


def torn_and_begun_anew(report):
    lines = lines_of(10)
    folder = write_run(report.tmp / "torn", lines + [dict(lines[6], loss=7.5), dict(lines[7], loss=8.5)],
                       '{"step": 9, "loss": 1.')
    done = report.call(folder, "--out", "torn.html")
    check("torn: 1 line of the metrics could not be read" in done.stderr, done.stderr)
    (run,), _ = report.page(folder)
    loss = curves(run)["loss"]
    check(loss["steps"] == list(range(1, 9)) and loss["values"][6:] == [7.5, 8.5], "steps that come again", loss)
    check(run["unreadable_lines"] == 1, "unreadable lines")
    twice = write_run(report.tmp / "twice", [{"step": s, "a": [1], "a[0]": s} for s in (1, 2)])
    rows = list(csv.DictReader(io.StringIO(report.call(twice, "--csv").stdout)))
    check([row["a[0]"] for row in rows] == ["1", "2"], "a name that comes twice in a line", rows)
    (report.tmp / "empty").mkdir()
    (report.tmp / "empty/metrics.jsonl").write_text("")
    check(report.page(report.tmp / "empty")[0][0]["curves"] == [], "an empty file")


def table(report):
    lines = lines_of(30)
    folder = write_run(report.tmp / 'ta"ble,', lines)
    other = write_run(report.tmp / "other", lines_of(5, nranks=3, seed=2))
    rows = list(csv.DictReader(io.StringIO(report.call(folder, other, "--csv").stdout)))
    wanted = by_name(lines)
    check(len(rows) == 35 and rows[0]["run"] == str(folder) and rows[30]["run"] == str(other), "lines of the table")
    for row in rows[:30]:
        step = int(row["step"])
        for name, values in wanted.items():
            text = row[name]
            wants = "" if step not in values else "NaN" if values[step] is None else values[step]
            check((float(text) if isinstance(wants, (int, float)) else text) == wants, "step", step, name, text)
    check(rows[0]["rank_busy_seconds[2]"] == "" and rows[31]["rank_busy_seconds[2]"] != "", "a curve of one run only")


def folder(report):
    run = write_run(report.tmp / "files", lines_of(4))
    for step, sizes in ((2, (10, 20)), (4, (5, 6, 7))):
        inside = run / f"checkpoints/step-{step:06}/shards"
        inside.mkdir(parents=True)
        for i, n in enumerate(sizes):
            (inside / str(i)).write_bytes(bytes(n))
    (run / "samples").mkdir()
    for step in range(1, 31):
        (run / f"samples/step-{step:06}.txt").write_bytes(f"step {step}: é {MARKUP}".encode() + b"\xff")
    (run / "summary.json").write_text(json.dumps({"finished": True, "step": 4, "steps": 4, "parameters_trained": 9,
                                                  "parameters_frozen": 1}))
    (found,), _ = report.page(run)
    check([(c["step"], c["bytes"], c["files"]) for c in found["checkpoints"]] == [(2, 30, 2), (4, 18, 3)], found)
    check(found["state"] == "finished" and found["of_steps"] == 4 and found["parameters_trained"] == 9, "summary")
    steps = [s["step"] for s in found["samples"]]
    check(len(steps) == 20 and steps[0] == 1 and steps[-1] == 30 and found["samples_left_out"] == 10, "samples", steps)
    check(found["samples"][0]["text"] == f"step 1: é {MARKUP}\\xff", "text", found["samples"][0])
    return run


def scanned(report):
    """Lines in the form that is read quickly, and the same numbers in one that only a JSON parser knows, are equal."""
    r = random.Random(3)
    numbers = ["0", "-0.0", "1e5", "-2.5E-3", "123456789012345678", "0.1", "3.0000000000000004", "1e-320", "5e-324",
               "null",
               "99999999999999.9", "7.0", "1.7976931348623157e308", "[]", "[1, null]", "[0.30000000000000004,2 ,3]"]
    numbers += [repr(r.uniform(-1, 1) * 10**r.randrange(-20, 20)) for _ in range(300)]
    rows = [{"a": r.choice(numbers), "b c": r.choice(numbers), "long_" + "k" * 190: r.choice(numbers)}
            for _ in range(400)]
    for name, more in (("quick", ""), ("parsed", ', "\\u0061b": true, "text": "t"')):
        lines = ['{"step": %d, %s%s}\n' % (i + 1, ", ".join(f'"{k}": {v}' for k, v in row.items()), more)
                 for i, row in enumerate(rows)]
        write_run(report.tmp / name, []).joinpath("metrics.jsonl").write_text("".join(lines))
    quick, parsed = (report.call(name, "--csv").stdout.replace(name, "") for name in ("quick", "parsed"))
    check(quick == parsed, "a number is read in two ways")
    table = list(csv.DictReader(io.StringIO(quick)))
    for row, cells in zip(rows, table):
        if "[" not in row["a"]:
            wanted = math.nan if row["a"] == "null" else float(row["a"])
            check(float(cells["a"]) == wanted or math.isnan(wanted), row["a"], "is read as", cells["a"])
    bad = ['{"step": 01}', '{"step": 1.}', '{"step": +1}', '{"step": 2, "a": NaN}', '{"step": 3, "a": 1}}',
           '{"step": 1 2}',
           '{"step": 1, }', '{"step": .5}', '{"step": 1, "a": [1,]}', '{"step": 1, "a": nul}',
           '[1]', '{}', '{"step": 0}',
           '{"step": -1}', '{"step": "1"}', '{"step": 1, "a\x01": 2}', '{"step": 1, "a": 1e999}']
    run = write_run(report.tmp / "no-lines", [{"step": 1, "a": 1}], "\n".join(bad) + "\n")
    found, _ = report.page(run)
    check(found[0]["unreadable_lines"] == len(bad) and found[0]["lines"] == 1, "bad lines", found[0])


def start_of(step, config, **more):
    return {"event": "start", "time": 1700000000 + step, "step": step, "steps": 9, "parameters_trained": 5,
            "parameters_frozen": 6, "command": "fsdptrain run a.json", "machine": {"ranks": 2, "host": MARKUP},
            "memory": {"shard_bytes": 10, "peak_bytes": 10, "all_ranks_bytes": 20}, "config": config, **more}


def events(report):
    """Starts, notes and ends; a start that has no end was interrupted, and half a line hides nothing."""
    folder = write_run(report.tmp / "story", lines_of(8))
    (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": 4}))  # of an earlier start
    story = [start_of(0, {"model": MARKUP, "train": {"learning_rate": 1}}),
             {"event": "note", "time": 1, "text": MARKUP},
             {"event": "end", "time": 2, "step": 4, "how": "stopped"},
             start_of(4, {"model": "m", "train": {"x": [MARKUP]}})]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in story) + '{"event": "en')
    big = write_run(report.tmp / "prompts", lines_of(2))
    (big / "events.jsonl").write_text(json.dumps(start_of(0, {"sample": {"prompts": ["p" * 999] * 200}})) + "\n")
    (run,), text = report.page(big)
    check(len(text) < 200000 and run["events"][0]["config_bytes"] > 199000, "a large config", len(text))
    (run,), text = report.page(folder)
    check([e["event"] for e in run["events"]] == ["start", "note", "end", "start"], "events", run["events"])
    check("config" not in run["events"][0] and run["events"][3]["config"]["model"] == "m",
          "the config of the last start")
    check(run["state"] == "interrupted" and run["of_steps"] == 9 and run["parameters_trained"] == 5, "state",
          run["state"])
    check(MARKUP not in text, "markup stands in the page")
    with open(folder / ".fsdpck-lock", "w") as lock:  # as a run holds it
        fcntl.fcntl(lock, 37, struct_flock())  # F_OFD_SETLK
        check(report.page(folder)[0][0]["state"] == "under way", "a run that holds its lock")
        said = report.call(folder, verb="top").stdout
        check("story: under way, step 8 of 9 (89 %), ETA 0:0" in said, said)
        (folder / "metrics.jsonl").rename(folder / "moved")
        said = report.call(folder, verb="top").stdout
        check("story: under way, step 0 of 9 (0 %)\n" in said, "before the first step", said)
        (folder / "moved").rename(folder / "metrics.jsonl")
    with open(folder / "events.jsonl", "a") as f:
        f.write("\n" + json.dumps({"event": "end", "time": 3, "step": 9, "how": "finished"}) + "\n")
    check(report.page(folder)[0][0]["state"] == "finished", "the last end counts")
    return folder


def long_files(report):
    """Files with more entries than a run makes are read, or refused, in a time that grows as they do."""
    many = write_run(report.tmp / "many", [{"step": 1, "a": [1] * 400000}])
    check("more than 16384 kinds" in report.call(many, code=3).stderr, "a line of many numbers")
    many = write_run(report.tmp / "notes", lines_of(3))
    (many / "events.jsonl").write_text('{"event": "note"}\n' * 300000 + "{}\n" * 300000 + json.dumps(start_of(0, {})))
    (many / "samples").mkdir()
    (many / "samples/step-000001.txt").write_text("by the run")
    (many / "samples/step-1.txt").write_text("by the user")
    (run,), _ = report.page(many)
    check(len(run["events"]) == 200 + 300000 + 1 and run["events"][-1]["event"] == "start", len(run["events"]))
    check([s["text"] for s in run["samples"]] == ["by the run"] and run["samples_left_out"] == 0, run["samples"])


def struct_flock():
    import struct
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def top(report):
    lines = lines_of(300, nranks=3)
    for line in lines:
        line["rank_busy_seconds"][1] += 5
        line["slowest_rank"] = 1
        line["loss"] = 2.0 if line["step"] <= 268 else 1.0
    run = write_run(report.tmp / "\x1b[31mred", lines, "torn")
    said = report.call(run, verb="top").stdout
    check("\x1b" not in said and "\\x1b[31mred: interrupted, step 300\n" in said, "a name steers the terminal", said)
    check("loss 1.0000 (-50.0%)" in said and "eval loss 0.3000 at step 300" in said, said)
    check(said.count("slowest in 32 of 32") == 1 and said.count("slowest in 0 of 32") == 2, said)
    check("--every: found 0, wanted" in report.call(run, "--every", "0", verb="top", code=2).stderr, "--every")
    report.call("nothing", verb="top", code=3)
    huge = write_run(report.tmp / "huge", [{**line, "rank_busy_seconds": [1.7e308, 1]} for line in lines_of(40)])
    check(report.call(huge, verb="top").stdout.count("#" * 24) == 1, "times whose sum has no double")


def refusals(report):
    (report.tmp / "keeps.html").write_text("<!DOCTYPE html>\n<html>mine")
    bad = write_run(report.tmp / "bad", [], "no metrics\n")
    for args, said in ((("nothing",), "nothing/metrics.jsonl"), ((bad,), "no line is an object with a \"step\""),
                       ((report.tmp / "whole", bad), "bad/metrics.jsonl")):
        done = report.call(*args, "--out", "keeps.html", code=3)
        check(said in done.stderr, done.stderr)
    check((report.tmp / "keeps.html").read_text().endswith("mine"), "a failure replaced the file")
    (report.tmp / "link.html").symlink_to("page.html")
    for name in ("keeps.html", "link.html"):
        said = report.call(report.tmp / "whole", "--out", name, code=2).stderr
        check(f"{name}: this is no report, and one would replace it" in said, said)
    check((report.tmp / "keeps.html").read_text().endswith("mine"), "a file of the user is replaced")
    os.mkfifo(report.tmp / "empty/fifo")
    check("fifo" in report.call("empty", "--jsonl", "fifo", code=3).stderr, "a FIFO")
    check(not list(report.tmp.glob("*.tmp-*")), "temporary files are left")


def opened(report):
    """What Chromium makes of the page, without a network. It must have nothing to complain about."""
    done = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--proxy-server=127.0.0.1:9", "--enable-logging=stderr", "--virtual-time-budget=2000",
                           "--dump-dom", f"file://{report.tmp}/page.html"], capture_output=True, encoding="utf-8",
                          env=dict(os.environ, HOME=str(report.tmp)))
    check(done.returncode == 0, "chromium ends with", done.returncode, done.stderr[-500:])
    check("CONSOLE" not in done.stderr, done.stderr[-2000:])
    return done.stdout.split(END)[0]


def browser(report, run, story):
    """The page in a browser: charts are drawn, markup from files is text, and odd events hide no section."""
    if not shutil.which("chromium"):
        print("skipped: a report in a browser: there is no chromium")
        return
    evil = write_run(report.tmp / "<img src=x onerror=alert(1)>", [dict(line, **{MARKUP: 1}) for line in lines_of(9)])
    report.page(run, evil, story)
    with open(report.tmp / "page.html", "a") as f:
        f.write(READ)
    body = opened(report)
    check("<title>true true true true true</title>" in body, "hover, log scale, zoom, smoothing, no requests")
    check("<img" not in body, "markup of a file became markup of the page")
    check(body.count('class="curve" d="M') >= 20 and "&lt;img src=x onerror" in body, "charts are missing")
    for title in ("Where the time of rank 0 went", "Checkpoints", "Samples", "Config", "Machine and program",
                  "What happened"):
        check(f">{title}</h2>" in body, title, "is missing")
    check('<tr class="differs">' in body and ">resumed<" in body and ">interrupted<" in body, "settings, history")
    check("finished" in body and "http" not in body.replace("http-equiv", ""), "the page names no other place")
    odd = write_run(report.tmp / "odd", lines_of(3) + [{"step": 4, "loss": None}])
    (odd / "events.jsonl").write_text("".join(json.dumps(dict(e, event=kind)) + "\n"
                                              for kind in ("note", "start", "end") for e in ODD))
    report.page(odd)
    body = opened(report)
    check("<span>loss</span><strong>not finite</strong>" in body, "the loss of a run that diverged")
    check(">What happened</h2>" in body and "unknown time" in body, "events of another form")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        report = Report(os.path.abspath(sys.argv[1]), pathlib.Path(tmp).resolve())
        for step in (numbers, thinned, torn_and_begun_anew, table, scanned, long_files, top):
            step(report)
        run, story = folder(report), events(report)
        refusals(report)
        browser(report, run, story)
    print("report: pages and tables have the numbers of the files")


if __name__ == "__main__":
    main()
