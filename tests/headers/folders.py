# SPDX-License-Identifier: Apache-2.0
"""folders.py ROOT: includes go down. Each floor's folders stand in an order, lowest first, and a file includes its own
folder's headers, those below, and no file that includes it. The map in docs/architecture.md names every folder."""
import collections, pathlib, re, sys

ORDER = {
    "kernels": ["cpu", "common", "cuda"],
    "src/ckpt": ["base", "tensor", "commit", "engine", "hf", "quant", "torch", "format", "lora", "view",
                 "verbs", "doctor"],
    "src/train": [
        "arrays", "text", "look", "board", "config", "import", "data", "pictures", "comm", "model", "price", "rank",
        "state", "sample", "image", "run", "serve"
    ],
    "src/tools": ["common", "embed", "describe", "report", "ui", "serve", "fsdpck", "fsdptrain"],
}
APART = {("src/tools", "fsdptrain", "fsdpck")}  # (floor, folder, folder that it may not include)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def sources(floor):
    return [
        p for p in sorted(floor.rglob("*"))
        if p.suffix in (".c", ".h", ".cu", ".cuh", ".cpp") and "include" not in p.parts and "shim" not in p.parts
    ]


def check(root, name, order):
    floor, problems, seen = root / name, [], collections.defaultdict(set)
    for path in sources(floor):
        inside = path.relative_to(floor)
        folder = inside.parts[0]
        if folder not in order:
            problems.append(f"{name}/{folder} has no place in the order of folders")
            continue
        for include in INCLUDE.findall(path.read_text()):
            target = next((p for p in (floor / include, path.parent / include) if p.is_file()), None)
            if target is None:
                continue
            other = target.relative_to(floor)
            to = other.parts[0]
            above = to in order and order.index(to) > order.index(folder)
            if above or (name, folder, to) in APART:
                problems.append(f"{name}/{inside} includes {other}, which stands above it")
            seen[inside.with_suffix("")].add(other.with_suffix(""))
    # An implementation's header may include the public one that its .c includes too: x.c and x_impl.h are one module.
    for a in list(seen):
        for b in seen[a]:
            if a < b and a in seen.get(b, ()) and not b.name.startswith(a.name) and b.name != "impl":
                problems.append(f"{name}/{a} and {b} include each other")
    return problems


def main():
    root = pathlib.Path(sys.argv[1])
    page = (root / "docs/architecture.md").read_text(encoding="utf-8")
    problems = [p for name, order in ORDER.items() for p in check(root, name, order)]
    problems += [
        f"docs/architecture.md does not name {name}/{folder}/" for name, order in ORDER.items() for folder in order
        if f"`{name}/{folder}/`" not in page
    ]
    print("\n".join(sorted(set(problems))) or "includes go down")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
