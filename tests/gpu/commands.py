# SPDX-License-Identifier: Apache-2.0
"""How tests/gpu/all runs commands: one after another within its time, keeping what they said and what was measured,
with an eye on the device's memory."""
import json, os, shlex, signal, subprocess, threading, time


class Left(Exception):
    """Left out, or cut off, for want of time or memory: no failure."""


class Commands:
    def __init__(self, out, minutes):
        self.out, self.minutes, self.results, self.began = out, minutes, [], time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)
        self.table = open(self.out / "tables.md", "w")
        (self.out / "log.txt").write_text("")
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.memory = Memory()

    def say(self, line):
        print(line, flush=True)
        self.table.write(line + "\n")
        self.table.flush()

    def left(self):
        return 60 * self.minutes - (time.monotonic() - self.began)

    def wants(self, seconds):
        if self.left() < seconds:
            raise Left(f"left out: {max(self.left(), 0):.0f} s are left, {seconds} are wanted")

    def part(self, title, function, seconds=0):
        """seconds: what it takes at least. Whether it was done."""
        began, result = time.monotonic(), {"part": title, "state": "under way", "said": {}}
        self.results.append(result)
        try:
            self.wants(seconds)
            self.say(f"\n## {title}\n")
            function()
            result["state"] = "done"
        except Left as why:
            result["state"] = str(why)
        except Exception as why:  # whatever it was: the others go on
            result["state"] = f"FAILED: {type(why).__name__}: {str(why)[-1500:]}"
        result["seconds"] = time.monotonic() - began
        self.write()
        self.say(f"{title}: {result['state']} ({result['seconds']:.0f} s)")
        return result["state"] == "done"

    def keep(self, name, value):
        self.results[-1]["said"][name] = value
        self.write()

    def write(self):
        """Whole, whenever somebody looks."""
        new = self.out / "results.json.new"
        new.write_text(json.dumps(self.results, indent=1, default=str))
        new.replace(self.out / "results.json")

    # --- commands

    def call(self, title, command, env=None, limit=3600, look=lambda: None):
        """What it said, which goes to the log as it comes. limit: seconds, for what may hang. look: called again and
        again meanwhile."""
        with open(self.out / "log.txt", "ab") as log:
            log.write(f"\n=== {title}: {shlex.join(map(str, command))}\n".encode())
            log.flush()
            start = log.tell()
            # A group of its own, so that all that it started ends with it; no session, which would outlive ours.
            process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, process_group=0, env={**self.env, **(env or {})})
            try:
                self.wait(process, limit, look)
            finally:
                end(process)
                said = self.logged(start)
                log.write(f"=== {title}: exit code {process.returncode}\n".encode())
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {said[-800:]}")
        return said

    def wait(self, process, limit, look):
        ends = time.monotonic() + limit
        while process.poll() is None:
            look()
            if time.monotonic() > ends:
                raise RuntimeError(f"not done after {limit} s")
            if self.left() < 0:
                raise Left("cut off: the time is over")
            time.sleep(0.01)
        look()

    def logged(self, start=0):
        with open(self.out / "log.txt", "rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")


class Memory:
    """The most of the device's memory that is in use, by all processes together, as one nvidia-smi says it all along:
    the same measure for all. Meanwhile the driver stays open between processes, whose starts would else wait for it. A
    peak that is shorter than the time between two of its lines may be missed; but our memory is taken for the run, and
    PyTorch keeps what it once had."""
    def __init__(self):
        self.used = self.before = self.most = self.process = None
        self.nread = 0
        try:  # stdbuf: each line at once
            command = [
                "stdbuf",
                "-oL",
                "nvidia-smi",
                "-i",
                "0",
                "--query-gpu=memory.used",
                "--format=csv,noheader,nounits",
                "-lms",
                "100",
            ]
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self.read, daemon=True).start()
        except OSError:
            pass  # what it would say is not known then

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.used, self.nread = int(line), self.nread + 1
                self.most = max(self.most or 0, self.used)

    def begin(self):
        """Before a process starts, and after others have ended: what was asked since then."""
        seen, ends = self.nread, time.monotonic() + 5
        while self.process and self.process.poll() is None and self.nread < seen + 2 and time.monotonic() < ends:
            time.sleep(0.01)
        self.before = self.most = self.used if self.nread >= seen + 2 else None

    def end(self):
        """Bytes; None: not known."""
        return None if self.before is None else (self.most - self.before) << 20

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()


def end(process):
    """And all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def objects_of(said):
    """Among other lines."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
