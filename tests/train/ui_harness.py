# SPDX-License-Identifier: Apache-2.0
"""A server of `fsdptrain ui` and its queue, for the tests of it."""
import contextlib, http.client, json, os, pathlib, signal, socket, sqlite3, subprocess, time

TOKEN = "0123456789abcdef0123456789abcdef"
FINAL = ("finished", "stopped", "failed", "interrupted")


def check(ok, *what):
    if not ok:
        raise AssertionError(" ".join(map(str, what)))


class Server:
    """Runs in `tmp`; may be killed and started again: the queue stays."""

    def __init__(self, tool, tmp, fixtures, *more, env=None):
        self.tool, self.tmp, self.more = tool, pathlib.Path(tmp), more
        self.fixtures, self.env = pathlib.Path(fixtures), dict(os.environ, **(env or {}))
        self.port, self.process = None, None

    def start(self):
        # A free port is asked for once; the same one is used again, as a page would.
        for _ in range(50):
            port = self.port or free_port()
            self.process = subprocess.Popen([
                self.tool, "ui", "--dir", "runs", "--state", "state", "--token", TOKEN, "--port",
                str(port), *self.more
            ],
                                            cwd=self.tmp,
                                            stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE,
                                            text=True,
                                            start_new_session=True,
                                            env=self.env)
            line = self.process.stdout.readline()
            if line.startswith("fsdptrain ui: http"):
                self.port = port
                return self
            said = self.process.stderr.read()
            self.process.wait()
            check("Address already in use" in said, "the server does not start:", line, said)
        raise AssertionError("no free port")

    def end(self, signal_number=signal.SIGTERM, code=None):
        self.process.send_signal(signal_number)
        said = self.process.communicate(timeout=120)[1]
        if signal_number == signal.SIGTERM:
            check(self.process.returncode == 0, "exit code", self.process.returncode, said)
        self.process = None
        return said

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.communicate()
        for number, pid in self.rows("SELECT id, pid FROM jobs WHERE pid IS NOT NULL"):  # they outlive the server
            words = pathlib.Path(f"/proc/{pid}/cmdline")
            if words.exists() and f"{self.tmp}/state/jobs/{number}.json".encode() in words.read_bytes():
                os.killpg(pid, signal.SIGKILL)

    def rows(self, statement, *values):
        with contextlib.closing(sqlite3.connect(self.tmp / "state/queue.sqlite", timeout=30)) as db, db:
            return db.execute(statement, values).fetchall()

    # ---- requests

    def raw(self, method, path, body=None, headers=None, timeout=120):
        """Status, headers and body; headers replace the usual ones, None leaves one out."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Authorization": "Bearer " + TOKEN}
        if method != "GET":
            sent["Content-Type"] = "application/json"
        sent.update(headers or {})
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    c.putheader(name, value)
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            if data is not None or method != "GET":
                c.putheader("Content-Length", str(len(data or b"")))
            c.endheaders(data)
            answer = c.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            c.close()

    def call(self, method, path, body=None, code=200, **more):
        status, _, text = self.raw(method, path, {} if body is None and method != "GET" else body, **more)
        check(status == code, method, path, "status", status, text[:500])
        return json.loads(text)

    def get(self, path, **more):
        return self.call("GET", path, **more)

    def post(self, path, body=None, code=200, **more):
        return self.call("POST", path, body, code, **more)

    # ---- jobs

    def config(self, name, steps=3, **more):
        return {
            "model": str(self.fixtures / "tiny-llama-tied"),
            "output_dir": f"runs/{name}",
            "data": {
                "train": str(self.fixtures / "chat.jsonl"),
                "seq_len": 32
            },
            "lora": {
                "r": 2
            },
            "train": {
                "max_steps": steps
            },
            **more
        }

    def add(self, name, steps=3, ranks=1, devices=("cpu:0", ), queue=True, **more):
        return self.post("/api/jobs", {
            "name": name,
            "ranks": ranks,
            "devices": list(devices),
            "queue": queue,
            "config": self.config(name, steps, **more)
        },
                         code=201)["id"]

    def job(self, number):
        return self.get(f"/api/jobs/{number}")

    def wait(self, number, states=FINAL, seconds=300):
        return wait_for(lambda: (j := self.job(number))["state"] in states and j, f"job {number}: {states}", seconds)

    def download(self, number, name):
        href = self.post(f"/api/jobs/{number}/tickets", {"file": name})["href"]
        return self.raw("GET", href, headers={"Authorization": None})


def wait_for(question, what, seconds=300):
    until = time.monotonic() + seconds
    while not (answer := question()):
        check(time.monotonic() < until, "not within", seconds, "s:", what)
        time.sleep(0.03)
    return answer


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def events(folder, kind):
    lines = (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def losses(folder):
    """By step, of whole lines."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return {o["step"]: o["loss"] for o in map(json.loads, text[:text.rfind("\n") + 1].splitlines())}
