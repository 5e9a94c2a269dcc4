"""The budgets of `joslim pick` and of all that picks a child."""

from __future__ import annotations

from typing import Annotated

import typer

Macs = Annotated[
    str | None, typer.Option(help="Most multiply-adds for one input: 20M.", metavar="SIZE")
]
Memory = Annotated[str | None, typer.Option(help="Most memory: 64KiB, 1.5MB.", metavar="SIZE")]
LatencyMs = Annotated[
    str | None, typer.Option(help="Most milliseconds for one input: 3.", metavar="MS")
]
Params = Annotated[str | None, typer.Option(help="Most parameters: 100K.", metavar="SIZE")]


def budgets_of(**texts: str | None) -> dict[str, float]:
    """The numbers of those that were given."""
    from joslim.cli.sizes import parse_size

    return {name: parse_size(name, text) for name, text in texts.items() if text is not None}
