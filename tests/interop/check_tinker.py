# SPDX-License-Identifier: Apache-2.0
"""The unmodified tinker SDK against `fsdptrain serve`: several tenants at once through a whole session, from known
adapters (compared number by number) and from new ones, in this process's environment."""
import json, os, pathlib, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/train"))
from serve_client import Server, pass_request

TENANTS = ROOT / "tests/train/goldens/tenants"


def probe(server, *options):
    """The problems that tinker_probe.py finds."""
    env = {**os.environ, "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, ROOT / "tests/interop/tinker_probe.py", "--base-url",
                           f"http://127.0.0.1:{server.port}", *options], capture_output=True, text=True, env=env,
                          timeout=300)
    if not done.stdout:
        return done.stderr.splitlines()[-5:]
    found = json.loads(done.stdout)
    assert done.returncode == 0 or found["problems"], done.stderr
    assert len(found["checks"]) >= (40 if options else 30), len(found["checks"])
    return found["problems"]


def compressed(server):
    """Bodies of passes in zstd, and results that come back so."""
    import http.client
    import zstandard
    data = [{"tokens": [3, 4, 5] * 200, "inputs": {"target_tokens": {"dtype": "int64", "shape": [600],
                                                                     "data": [4, 5, 6] * 200}}}]
    model = server.session().model()
    plain = server.wait(model.passes(data, forward=True))
    body = zstandard.compress(pass_request(model.id, model.next(), data, "cross_entropy", {}, True))
    found = []
    for packed, status in ((body, 200), (body[:-4], 400), (b"no frame", 400)):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/api/v1/forward", packed, {
            "X-API-Key": server.key, "Content-Type": "application/x-protobuf", "Content-Encoding": "zstd"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        found += [f"zstd: {answer.status} {said}"] if answer.status != status else []
        if answer.status == 200:
            connection.request("POST", "/api/v1/retrieve_future", json.dumps(said), {
                "X-API-Key": server.key, "Accept-Encoding": "zstd"})
            answer = connection.getresponse()
            assert answer.getheader("Content-Encoding") == "zstd"
            raw = zstandard.ZstdDecompressor().decompressobj().decompress(answer.read())
            found += ["zstd: another result"] if raw != plain else []
    return found


def check(fsdpck):
    """The differences."""
    tool = pathlib.Path(fsdpck).resolve().parent / "fsdptrain"
    if "built without it" in subprocess.run([tool, "serve", "nowhere"], capture_output=True, text=True).stderr:
        print("skipped: the tinker SDK: fsdptrain serve was built without libmicrohttpd or protobuf-c")
        return []
    with tempfile.TemporaryDirectory() as tmp:
        for one in (TENANTS / "tinker/start").iterdir():
            shutil.copytree(one, pathlib.Path(tmp) / f"golden-{one.name}/weights/start")
        with Server(tool, TENANTS / "model", tmp, "--ranks", 2) as server:
            problems = probe(server, "--start", "golden", "--golden", TENANTS / "tinker")
            problems += probe(server, "--start", "golden", "--golden", TENANTS / "tinker", "--pace", "step")
            return problems + probe(server) + compressed(server)
