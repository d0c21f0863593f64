#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pages.py FSDPCK: the pages of --html say what the other outputs say. Where there is a Chromium, it opens them without
a network, finds nothing to complain about, and computes the parts of all ranks as the library does."""
import json, math, os, pathlib, shutil, struct, subprocess, sys, tempfile

BEGIN, END = '<script type="application/json" id="data">', "</script>"
MARKUP = "</script><img src=x onerror=\"document.title='broken'\">"
TP = ["--mesh", "dp=2,tp=3", "--placement", "*.[qkv]_proj.weight=strided_shard(0,3)@dp,shard(0)@tp", "--placement",
      "*.down_proj.weight=shard(0)@dp,shard(1)@tp", "--replicate", "*norm.weight"]
# Appended to a copy of a page: bytes of each rank by the page's own rule, against those that the library planned.
COMPARE = """<script>
const size = { bfloat16: 2, float32: 4 }, mesh = { dims: Page.data.plan.mesh, ranks: null };
const same = Page.data.plan.ranks.every((planned, rank) => planned[0] === Page.data.groups.list.reduce((n, g) => {
  const lists = Picture.parts(g.shape, mesh, g.to, g.only || null, rank);
  return n + (lists ? g.count * size[g.dtype] * lists.reduce((m, list) => m * Picture.sum(list), 1) : 0);
}, 0));
document.title = same ? "same bytes" : "other bytes";
</script>"""


def check(ok, *what):
    if not ok:
        sys.exit(f"pages: {' '.join(map(str, what))}")


class Tool:
    def __init__(self, binary, tmp):
        self.binary, self.tmp = binary, tmp

    def __call__(self, *args, code=0):
        done = subprocess.run([self.binary, *map(str, args)], capture_output=True, encoding="utf-8", cwd=self.tmp)
        check(done.returncode == code, args, "exit code", done.returncode, done.stdout, done.stderr)
        return done

    def page(self, verb, source, *more, code=0):
        out = self.tmp / f"{verb}.html"
        self(verb, source, *more, "--html", out, code=code)
        text = out.read_text(encoding="utf-8")
        check(text.count(BEGIN) == 1 and text.startswith("<!DOCTYPE html>\n<!-- made by fsdpck -->"), "the page's form")
        return json.loads(text.split(BEGIN)[1].split(END)[0]), text


def write_safetensors(path, names, shape=(4, 2)):
    nbytes = 4 * math.prod(shape)
    head = {n: {"dtype": "F32", "shape": list(shape), "data_offsets": [i * nbytes, (i + 1) * nbytes]}
            for i, n in enumerate(names)}
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + nbytes * len(names))


def listed(tool, model):
    tool("convert", model, "sharded", "--mesh", "replicate=2,shard=3")
    page, _ = tool.page("ls", "sharded")
    told = json.loads(tool("ls", "sharded", "--json").stdout)
    groups = page["groups"]["list"]
    stored = [t for t in told["tensors"] if "alias_of" not in t]
    check(sum(g["count"] for g in groups) == len(stored), "tensors of the groups")
    check(sum(g["count"] * g["bytes"] for g in groups) == sum(t["bytes"] for t in stored) == page["bytes"], "bytes")
    layers = next(g for g in groups if g["pattern"] == "model.layers.#.mlp.up_proj.weight")
    check(layers["count"] == 2 and layers["on"] == [[0, 0, 0], [1, 0, 0]] and layers["mesh"] == 0, layers)
    check(page["groups"]["meshes"][0]["dims"] == told["meshes"][0], page["groups"]["meshes"])
    check(page["files"]["count"] == 6, "files")
    check({f["name"] for f in page["files"]["list"]} == {f["name"] for f in told["files"]}, "names of files")
    by_rank = {f["rank"]: f["bytes"] for f in told["files"]}
    check(page["stored"] == [by_rank[r] for r in range(6)], "bytes of ranks", page["stored"])


def planned(tool, model):
    page, text = tool.page("plan", "sharded", *TP)
    told = json.loads(tool("plan", "sharded", *TP, "--json").stdout)["ranks"]
    check([r[0] for r in page["plan"]["ranks"]] == [r["needed_bytes"] for r in told], "needed bytes")
    m = page["moves"]
    check(m["stays"] + m["moves"] == sum(m["cells"]) == sum(r["needed_bytes"] for r in told), "bytes that move", m)
    check((m["from"], m["to"]) == (6, 6) and len(m["cells"]) == 36, m)
    same = tool.page("plan", "sharded", "--mesh", "replicate=2,shard=3")[0]["moves"]
    # Half of what a rank needs of replicated tensors was written by its other replica, or all, or nothing.
    check(same["stays"] > 0 and all(not same["cells"][a * 6 + b] for a in range(6) for b in range(6) if a % 3 != b % 3),
          "the same placement", same)
    check(tool.page("plan", model, "--ranks", "3")[0]["moves"] is None, "a source without ranks")
    return text


def damaged(tool):
    check(tool.page("verify", "sharded")[0]["damage"] == [], "a whole checkpoint")
    shutil.copytree(tool.tmp / "sharded", tool.tmp / "hurt")
    with open(tool.tmp / "hurt/__1_0.distcp", "r+b") as f:
        f.seek(8300)
        byte = f.read(1)[0]
        f.seek(8300)
        f.write(bytes([byte ^ 1]))
    page, text = tool.page("verify", "hurt", code=1)
    told = json.loads(tool("verify", "hurt", "--json", code=1).stdout)["problems"]
    check(page["damage_count"] == len(told) == len(page["damage"]) == 1, "problems")
    found = page["damage"][0]
    check((found["tensor"], found["rank"], found["rows"]) ==
          (told[0]["tensor"], 1, [told[0]["row_begin"], told[0]["row_end"]]), found)
    (tool.tmp / "hurt/index.json").write_text("{")
    page, _ = tool.page("verify", "hurt", code=1)
    check(page["damage_count"] >= 1 and "groups" not in page, "a checkpoint that does not open")
    return text


def many(tool):
    """A page grows with the kinds of tensors; names without a pattern are counted from some number on."""
    write_safetensors(tool.tmp / "alike.safetensors", [f"layers.{i // 100}.experts.{i % 100}.w" for i in range(20000)])
    page, text = tool.page("ls", "alike.safetensors")
    check(page["groups"]["list"][0]["count"] == 20000 and len(text) < 100000, "20,000 tensors alike", len(text))
    names = ["w" + "".join(chr(97 + i // 26**k % 26) for k in range(4)) for i in range(6000)]
    write_safetensors(tool.tmp / "others.safetensors", names)
    page, text = tool.page("ls", "others.safetensors")
    check(len(page["groups"]["list"]) == 4000 and page["groups"]["left"] == 2000 and len(text) < 2e6, "many kinds")
    page, _ = tool.page("ls", "others.safetensors", "--tensor", "waaaa")
    check([g["first"] for g in page["groups"]["list"]] == ["waaaa"], "--tensor")


def refusals(tool):
    (tool.tmp / "mine.html").write_text("<!DOCTYPE html>\n<html>mine")
    said = tool("ls", "sharded", "--html", "mine.html", code=2).stderr
    check("this is no page of fsdpck, and one would replace it" in said and "--html" in said, said)
    check("mine" in (tool.tmp / "mine.html").read_text(), "a file of the user is replaced")
    tool("ls", "sharded", "--html", "no/folder.html", code=3)
    said = tool("ls", "sharded", "--html", "", code=2).stderr
    check(said == "fsdpck: --html: needs the name of a file\n", said)
    check(not list(tool.tmp.glob("*.tmp-*")), "temporary files are left")


def browser(tool, texts):
    program = shutil.which("chromium")
    if not program:
        print("skipped: pages in a browser: there is no chromium")
        return
    write_safetensors(tool.tmp / "evil.safetensors", [MARKUP, "<b>", "x&amp;"])
    _, evil = tool.page("ls", "evil.safetensors")
    for text, wanted in ((evil, ("&lt;img src=x onerror",)), (texts["damage"], ("Damaged rows", "✗ ")),
                         (texts["plan"] + COMPARE, ("<title>same bytes</title>", "in the plan: ",
                                                    "strided_shard(0,3)"))):
        (tool.tmp / "shown.html").write_text(text, encoding="utf-8")
        done = subprocess.run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                               "--proxy-server=127.0.0.1:9", "--enable-logging=stderr", "--virtual-time-budget=2000",
                               "--dump-dom", f"file://{tool.tmp}/shown.html"], capture_output=True, encoding="utf-8",
                              env=dict(os.environ, HOME=str(tool.tmp)))
        body = done.stdout.split(BEGIN)[0]
        check(done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr[-2000:])
        check("<img" not in body, "markup of a file became markup of the page")
        for words in wanted:
            check(words in body, words, "is missing")


def main():
    model = pathlib.Path(__file__).resolve().parents[2] / "fixtures/tiny-llama-tied"
    with tempfile.TemporaryDirectory() as tmp:
        tool = Tool(os.path.abspath(sys.argv[1]), pathlib.Path(tmp).resolve())
        listed(tool, model)
        texts = {"plan": planned(tool, model), "damage": damaged(tool)}
        many(tool)
        refusals(tool)
        browser(tool, texts)
    print("pages: --html says what the other outputs say")


if __name__ == "__main__":
    main()
