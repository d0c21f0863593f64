#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ui.py FSDPTRAIN [RUNS]: cost of the page of `fsdptrain ui`: milliseconds of its first load (every file, and the first
list of 10,000 jobs); the server's processor time and memory while RUNS (20) runs write a step twice a second and two
pages listen."""
import http.client, json, os, pathlib, sqlite3, statistics, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/train"))
from ui_harness import TOKEN, Server

FILES = ["/", "/base.css", "/ui.css", "/base.js", "/charts.js", "/server.js", "/jobs.js", "/job.js", "/form.js",
         "/data.js", "/start.js", "/api/jobs"]
SECONDS = 20


def first_load(server):
    """One connection, one request after the other: a browser has more connections."""
    began = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    for path in FILES:
        c.request("GET", path, headers={"Authorization": "Bearer " + TOKEN})
        answer = c.getresponse()
        answer.read()
        assert answer.status == 200, path
    c.close()
    return 1000 * (time.monotonic() - began)


def listen(server, job):
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("GET", f"/api/stream?job={job}", headers={"Authorization": "Bearer " + TOKEN})
    answer = c.getresponse()
    try:
        while answer.readline():
            pass
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        pass


def used(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), memory / 1024


def add_jobs(server, runs):
    """10,000 that have ended; and the runs, whose processes are sleeps: their steps are written here."""
    config = json.dumps(server.config("x"))
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    sleeps, folders = [], []
    with sqlite3.connect(server.tmp / "state/queue.sqlite") as db:
        columns = "kind, name, config, ranks, devices, output_dir, cwd, state, position, created"
        db.executemany(f"INSERT INTO jobs ({columns}) VALUES ('run', ?, ?, 1, '[]', ?, '/', 'stopped', 0, 1)",
                       ((f"job {i}", config, f"/nowhere/{i}") for i in range(10000)))
        for i in range(runs):
            p = subprocess.Popen(["sleep", "1000"])
            ticks = int(pathlib.Path(f"/proc/{p.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
            folder = server.tmp / f"runs/live-{i}"
            folder.mkdir(parents=True)
            (folder / "events.jsonl").write_text('{"event": "start", "time": 1, "step": 0, "steps": 100000}\n')
            db.execute(f"INSERT INTO jobs ({columns}, started, pid, ticks, boot) VALUES "
                       "('run', ?, ?, 1, '[]', ?, '/', 'running', 0, 1, 1, ?, ?, ?)",
                       (folder.name, config, str(folder), p.pid, ticks, boot))
            sleeps.append(p)
            folders.append(folder)
    return sleeps, folders


def live(server, folders):
    pid, files = server.process.pid, [open(f / "metrics.jsonl", "w", buffering=1) for f in folders]
    for job in (10001, 10002):
        threading.Thread(target=listen, args=(server, job), daemon=True).start()
    before, began = used(pid)[0], time.monotonic()
    step = 0
    while time.monotonic() - began < SECONDS:
        step += 1
        for f in files:
            f.write(json.dumps({"step": step, "loss": 1 / step, "grad_norm": 1.5, "lr": 1e-4, "tokens_per_second": 1e4,
                                "step_seconds": .5, "pss_bytes": 1 << 30, "rank_busy_seconds": [.4] * 8}) + "\n")
        time.sleep(.5)
    after, memory = used(pid)
    return 100 * (after - before) / (time.monotonic() - began), memory


def main():
    tool, runs = os.path.abspath(sys.argv[1]), int((sys.argv[2:] + ["20"])[0])
    with tempfile.TemporaryDirectory() as tmp, Server(tool, tmp, ROOT / "fixtures") as server:
        server.end()
        sleeps, folders = add_jobs(server, runs)
        try:
            server.start()
            times = [first_load(server) for _ in range(21)]
            share, memory = live(server, folders)
        finally:
            for p in sleeps:
                p.kill()
                p.wait()
        print(f"first load, 10,000 jobs: {statistics.median(times):.1f} ms, at most {max(times):.1f} ms")
        print(f"{runs} runs, two pages: {share:.1f} % of a core, {memory:.1f} MiB at most")


if __name__ == "__main__":
    main()
