# SPDX-License-Identifier: Apache-2.0
"""A client of `fsdptrain serve` in plain Python: the server as a process, JSON calls, and the protobuf of passes and
samples, written and read by hand."""
import http.client, json, os, pathlib, signal, socket, struct, subprocess, tempfile, time

import numpy as np


class Refused(Exception):
    def __init__(self, status, detail):
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


class Failed(Exception):
    """The future of a request has an error."""


class Server:
    """A process, from its start to the end of a `with`."""

    def __init__(self, tool, model, state, *options, name="tiny/tenants", key="tml-test", dtype="fp32"):
        self.command = [str(tool), "serve", str(model), "--dtype", dtype, "--name", name, "--state", str(state)]
        self.command += [str(o) for o in options]
        self.key, self.name = key, name

    def __enter__(self):
        for _ in range(5):  # another process may take the port meanwhile
            if self.start():
                return self
            said = self.end()
            if "in use" not in said[1]:
                break
        raise AssertionError(f"the server did not start: {said}")

    def start(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.stderr = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command + ["--port", str(self.port)], stdout=subprocess.PIPE,
                                        stderr=self.stderr, text=True)
        lines = [self.process.stdout.readline() for _ in range(2)]
        return "TINKER_BASE_URL" in lines[1]

    def __exit__(self, *_):
        self.end()

    def said(self):
        self.stderr.seek(0)
        return self.stderr.read()

    def end(self, number=signal.SIGTERM):
        """The exit code, and what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.code = self.process.wait(120)
        return self.code, self.said()

    def call(self, method, path, body=None, protobuf=False, key=True, timeout=120):
        """The answer: parsed JSON, or bytes."""
        headers = {"X-API-Key": self.key} if key else {}
        if body is not None and not protobuf:
            body = json.dumps(body)
        headers["Content-Type"] = "application/x-protobuf" if protobuf else "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request(method, path if path.startswith("/api") else "/api/v1/" + path, body, headers)
        answer = connection.getresponse()
        data, kind = answer.read(), answer.getheader("Content-Type")
        connection.close()
        if answer.status >= 300:
            raise Refused(answer.status, json.loads(data)["detail"])
        return json.loads(data) if kind == "application/json" else data

    def post(self, path, /, **body):
        return self.call("POST", path, body)

    def wait(self, request):
        """The result of a request."""
        while True:
            out = self.post("retrieve_future", request_id=request["request_id"], allow_metadata_only=False)
            if isinstance(out, dict) and out.get("type") == "try_again":
                continue
            if isinstance(out, dict) and "error" in out:
                raise Failed(out["category"], out["error"])
            return out

    def session(self):
        return Session(self)


class Session:
    def __init__(self, server):
        self.server, self.models, self.samplers = server, 0, 0
        self.id = server.post("create_session", tags=[], user_metadata=None, sdk_version="0")["session_id"]

    def numbered(self, kind):
        setattr(self, kind, getattr(self, kind) + 1)
        return getattr(self, kind) - 1

    def model(self, rank=4, seed=1, **lora):
        number = self.numbered("models")
        request = self.server.post("create_model", session_id=self.id, model_seq_id=number,
                                   base_model=self.server.name, lora_config={"rank": rank, "seed": seed, **lora})
        return Model(self, self.server.wait(request)["model_id"])

    def load(self, path, optimizer=False):
        number = self.numbered("models")
        request = self.server.post("load_weights", session_id=self.id, model_seq_id=number, path=path,
                                   optimizer=optimizer)
        return Model(self, self.server.wait(request)["model_id"])

    def sampler(self, path=None):
        body = {"model_path": path} if path else {"base_model": self.server.name}
        out = self.server.post("create_sampling_session", session_id=self.id,
                               sampling_session_seq_id=self.numbered("samplers"), **body)
        return Sampler(self.server, out["sampling_session_id"])

    def finish(self):
        self.server.call("POST", f"sessions/{self.id}/finish", {"reason": {"type": "success"}})


class Model:
    """Requests return what Server.wait() takes, and have the next number."""

    def __init__(self, session, model_id):
        self.session, self.server, self.id, self.seq = session, session.server, model_id, 0

    def next(self):
        self.seq += 1
        return self.seq

    def passes(self, data, loss="cross_entropy", config=None, forward=False, seq=None):
        body = pass_request(self.id, seq or self.next(), data, loss, config or {}, forward)
        return self.server.call("POST", "forward" if forward else "forward_backward", body, protobuf=True)

    def optimize(self, seq=None, **params):
        return self.server.post("optim_step", model_id=self.id, seq_id=seq or self.next(), adam_params=params)

    def save(self, name, kind="save_weights", **more):
        return self.server.post(kind, model_id=self.id, seq_id=self.next(), path=name, **more)

    def snapshot(self):
        out = self.server.wait(self.server.post("save_weights_for_sampler", model_id=self.id, seq_id=self.next(),
                                                sampling_session_seq_id=self.session.numbered("samplers")))
        return Sampler(self.server, out["sampling_session_id"])


class Sampler:
    def __init__(self, server, sampler_id):
        self.server, self.id, self.seq = server, sampler_id, 0

    def request(self, prompt, n=1, seq=None, extra=None, **params):
        self.seq += 1
        return self.server.post("asample", sampling_session_id=self.id, seq_id=self.seq if seq is None else seq,
                                num_samples=n, prompt={"chunks": [{"type": "encoded_text", "tokens": prompt}]},
                                sampling_params=params, **(extra or {}))

    def sample(self, *args, **params):
        return sample_response(self.server.wait(self.request(*args, **params)))


# ---- protobuf


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(t):
    """{"dtype", "shape", "data"}, as in the goldens."""
    whole = t["dtype"] == "int64"
    raw = np.array(t["data"], "<i8" if whole else "<f4").tobytes()
    return field(1, raw) + field(3, 2 if whole else 1) + field(4, b"".join(varint(n) for n in t["shape"]))


def datum(d):
    chunk = field(1, field(1, np.array(d["tokens"], "<i4").tobytes()))
    inputs = [field(2, field(1, name) + field(2, tensor(t))) for name, t in d["inputs"].items()]
    return field(1, chunk) + b"".join(inputs)


def pass_request(model, seq, data, loss, config, forward):
    out = field(1, model) + field(2, seq) + b"".join(field(3, datum(d)) for d in data) + field(4, loss)
    out += b"".join(field(7, field(1, k) + field(2, field(1, float(v)))) for k, v in config.items())
    return out + (field(6, 1) if forward else b"")


def fields(raw):
    """{number: [values]}: ints, floats, bytes."""
    out, at = {}, 0

    def take():
        nonlocal at
        n = shift = 0
        while True:
            byte = raw[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    while at < len(raw):
        key = take()
        if key & 7 == 0:
            value = take()
        elif key & 7 == 1:
            value, at = struct.unpack("<d", raw[at:at + 8])[0], at + 8
        else:
            n = take()
            value, at = raw[at:at + n], at + n
        out.setdefault(key >> 3, []).append(value)
    return out


def pass_output(raw):
    """{"logprobs": [array of each datum], "loss": the sum}"""
    out = fields(raw)
    record = fields(out[2][0])
    entry = fields(record[2][0])
    assert entry[1] == [b"logprobs"], entry[1]
    batched = fields(entry[2][0])
    data, offsets = np.frombuffer(batched[1][0], "<f4"), np.frombuffer(batched[2][0], "<i8") // 4
    metric = fields(out[3][0])
    assert metric[1] == [b"loss:sum"], metric[1]
    return {"logprobs": [data[a:b] for a, b in zip(offsets, offsets[1:])], "loss": metric.get(2, [0.0])[0]}


def top_of(raw):
    t = fields(raw)
    shape = (t[4][0], t[3][0])
    return np.frombuffer(t[1][0], "<i4").reshape(shape), np.frombuffer(t[2][0], "<f4").reshape(shape)


def sample_response(raw):
    out, sequences = fields(raw), []
    for one in out[1]:
        s = fields(one)
        sequences.append({"tokens": np.frombuffer(s[2][0], "<i4").tolist(), "logprobs": np.frombuffer(s[3][0], "<f4"),
                          "stopped": s.get(1, [0])[0] == 0, "top": top_of(s[4][0]) if 4 in s else None})
    return {"sequences": sequences, "prompt": np.frombuffer(out[2][0], "<f4") if 2 in out else None,
            "prompt_top": top_of(out[3][0]) if 3 in out else None}


def is_built(tool):
    done = subprocess.run([tool, "serve", "nowhere"], capture_output=True, text=True, timeout=60)
    return "built without it" not in done.stderr


def bits_of(tool, model, state, ranks, dtype="fp32", **lora):
    """What two steps, by cross-entropy and by PPO, and samples of a model give, by `ranks` ranks. Checks that what
    scores a sample is near what generated it, and to the bit what the trainer gives."""
    nvocab = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    ids, found = [(7 * i + 3) % nvocab for i in range(30)], []
    inputs = lambda k: {"target_tokens": {"dtype": "int64", "shape": [12], "data": ids[k + 1:k + 13]},
                        "logprobs": {"dtype": "float32", "shape": [12], "data": [-2.0] * 12},
                        "advantages": {"dtype": "float32", "shape": [12], "data": [0.5, -1.0] * 6}}
    data = [{"tokens": ids[k:k + 12], "inputs": inputs(k)} for k in (0, 5, 9)]
    with Server(tool, model, state, "--ranks", ranks, "--threads", 2 if ranks == 1 else 1, dtype=dtype) as server:
        one = server.session().model(rank=5, seed=3, **lora)
        for loss in ("cross_entropy", "ppo"):
            requests = one.passes(data, loss), one.optimize(learning_rate=1e-2)
            found += [pass_output(server.wait(requests[0]))["loss"], server.wait(requests[1])["metrics"]["grad_norm"]]
        sampler = one.snapshot()
        out = sampler.sample(ids[:6], 3, max_tokens=5, seed=1, stop=[])["sequences"]
        found += [(s["tokens"], s["logprobs"].tobytes()) for s in out]
        full = ids[:6] + out[0]["tokens"]
        scores = sampler.sample(full, max_tokens=1, stop=[], extra={"prompt_logprobs": True})["prompt"][1:]
        n = len(full) - 1
        datum = {"tokens": full[:-1], "inputs": {"target_tokens": {"dtype": "int64", "shape": [n], "data": full[1:]}}}
        trained = pass_output(server.wait(one.passes([datum], forward=True)))["logprobs"][0]
        assert np.array_equal(scores, trained), "the trainer scores otherwise than the sampler"
        assert np.abs(scores[5:] - out[0]["logprobs"]).max() < (1e-4 if dtype == "fp32" else 0.1), "generated otherwise"
        return found + [scores.tobytes()]
