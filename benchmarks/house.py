"""How large the package is, and how far a reader jumps in it.

Counts what can be counted of readability: files, lines, module-level functions that are referenced
exactly once (each is a jump that serves one reader), and the joslim frames that lie between the
command `joslim train` and the arithmetic of a training step. The numbers are no verdict; they show
the direction.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from reporting import at_most, report

PACKAGE = Path(__file__).parents[1] / "joslim"


def main() -> None:
    sources = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = [
        node
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    uses = references(trees.values())
    once = sum(uses[function.name] == 1 for function in functions) / len(functions)
    lines = sum(text.count("\n") for text in sources.values())
    hops = frames_to_the_arithmetic()
    rows = [
        {"room": room, "files": len(paths), "lines": sum(sources[p].count("\n") for p in paths)}
        for room, paths in rooms(sources).items()
    ]
    all_functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
    ]
    figures = {
        "files": at_most(len(sources), 105),
        "lines": at_most(lines, 18_000),
        "module_functions": {"value": len(functions)},
        "used_once": at_most(once, 0.35),
        "lines_per_function": {"value": round(lines / len(functions), 1)},
        "median_function": {"value": statistics.median(all_functions)},
        "longest_function": {"value": max(all_functions)},
        "hops": at_most(hops, 6),
    }
    report("rooms of the package", rows, figures)


def references(trees: Any) -> Counter[str]:
    """How often each name is read in the package; imports and definitions do not count."""
    found: Counter[str] = Counter()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                found[node.id] += 1
            elif isinstance(node, ast.Attribute):
                found[node.attr] += 1
    return found


def rooms(paths: Any) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in paths:
        parts = path.relative_to(PACKAGE).parts
        found.setdefault(parts[0] if len(parts) > 1 else "(top)", []).append(path)
    return found


def frames_to_the_arithmetic() -> int:
    """Frames of joslim on the stack from the body of the command to the loss of a step."""
    import torch
    import torch.nn.functional as F

    from joslim.cli import main as joslim_main

    depths: list[int] = []
    real = F.cross_entropy

    def watched(*arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():  # children are scored, not trained
            return real(*arguments, **options)
        frames = traceback.extract_stack()
        ours = [f for f in frames if Path(f.filename).is_relative_to(PACKAGE)]
        names = [f"{Path(f.filename).relative_to(PACKAGE)}:{f.name}" for f in ours]
        begin = max(i for i, name in enumerate(names) if name.startswith("cli/train.py"))
        if not depths:
            print(" > ".join(names[begin:]))
        depths.append(len(names[begin:]))
        return real(*arguments, **options)

    F.cross_entropy = watched
    sys.argv = ["joslim"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = "--model resnet8 --data digits --steps 1 --batch 4 --front-images 8"
            joslim_main(["train", *options.split(), "--out", f"{folder}/run"])
    except SystemExit:
        pass
    finally:
        F.cross_entropy = real
    return depths[0]


if __name__ == "__main__":
    main()
