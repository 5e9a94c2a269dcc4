"""`joslim selftest`: check and measure joslim on a device, and write one file to send back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from joslim.cli.latency import check_writable
from joslim.errors import RunFailed
from joslim.files import json_count


def selftest(
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    batch: Annotated[int, typer.Option(help="Number of images in a step.")] = 128,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.", metavar="FILE")] = Path(
        "selftest.json"
    ),
) -> None:
    """Check joslim on a device, and measure its speed there.

    The results on the device are compared with those of the CPU. The file has the checks, the times
    of training steps, the latencies of some children and all versions.
    """
    from joslim.files import write_whole
    from joslim.runs.selftest import SelfTest

    json_count(batch, "batch", 2, 65_536)
    check_writable(out)
    facts = SelfTest(device, batch).run(typer.echo)
    write_whole(out, json.dumps(facts, indent=2) + "\n")
    typer.echo(f"written to {out}")
    if not facts["ok"]:
        failed = [name for name, found in facts["checks"].items() if found != "ok"]
        raise RunFailed(f"selftest: failed: {'; '.join(failed)}; {out} has the details")
