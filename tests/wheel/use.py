# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do without NumPy, PyTorch and a compiler. Run by run in this folder."""
import importlib.metadata
import pathlib
import sys
import time

start = time.perf_counter()
import fsdpck  # noqa: E402

print("import fsdpck: %.0f ms" % (1000 * (time.perf_counter() - start)))
assert not {"numpy", "torch"} & set(sys.modules), "import fsdpck imports NumPy or PyTorch"

package = pathlib.Path(fsdpck.__file__).parent
assert (package / "py.typed").exists() and (package / "_native.pyi").exists(), "type hints are missing"
licences = {f.name for f in importlib.metadata.files("fsdpck") if "licenses" in f.parts}
wanted = {"LICENSE", "NOTICE"} | {"lib%s.txt" % n for n in ("jansson4", "xxhash0", "deflate0", "pcre2-8-0", "zstd1")}
assert wanted <= licences, "licences are missing: %s" % (wanted - licences)

with fsdpck.open("fixtures/tiny-llama-tied") as model:
    assert len(model) == 21 and model["model.norm.weight"].shape == (128, )
assert fsdpck.convert("fixtures/tiny-llama-tied", "saved", 3).files == 3
assert fsdpck.verify("saved").problems == [] and fsdpck.diff("fixtures/tiny-llama-tied", "saved") == []
