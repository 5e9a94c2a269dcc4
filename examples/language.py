"""A small Llama-like network reads the source of Python: perplexity against parameters.

The text ships with Python: the modules of its standard library, in a random order. Children differ
in channels, heads, MLPs and in the number of blocks:

python examples/language.py --out runs/language
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from joint_or_alone import compare, options


def write_text(file: Path) -> None:
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    np.random.default_rng(0).shuffle(modules)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(module.read_bytes() for module in modules))
    print(f"{len(modules)} modules, {file.stat().st_size:,} bytes", flush=True)


def main() -> None:
    given = options(__doc__ or "", steps=500).parse_args()
    text = given.out / "python.txt"
    write_text(text)
    compare(
        "tiny_llama",
        given.steps,
        given.out,
        data=f"text:{text}",
        split="0.98/0.01/0.01",
        context=64,
        depth=True,
        cost="params",
        batch=16,
        every=max(1, given.steps // 20),
        front_images=64,
        score_images=32,
        seed=given.seed,
    )


if __name__ == "__main__":
    main()
