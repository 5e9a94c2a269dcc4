"""The logs of a run: metrics.jsonl, history.jsonl, and trackers such as TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError, imported
from joslim.files import write_whole
from joslim.results.run_files import HISTORY, METRICS, VALIDATION, finite_number
from joslim.runs.folder import RunFolder

if TYPE_CHECKING:
    from joslim.runs.config import Config
    from joslim.runs.trainer import Trainer
    from joslim.search.history import History


class Log:
    """Writes a file of JSON lines: first the kept lines of an earlier run, then the new ones.

    The file of an earlier run stays until the first new line comes. It is then replaced as a whole,
    so that a kill never leaves less than there was.
    """

    def __init__(self, file: Path, kept: list[dict[str, Any]]) -> None:
        self.file = file
        self.kept: list[dict[str, Any]] | None = kept
        if kept and not file.exists():
            self.append([])

    def append(self, lines: list[dict[str, Any]]) -> None:
        # A kept line may be somebody else's, with a number that JSON does not know.
        text = "".join(json.dumps(line) + "\n" for line in self.kept or [])
        text += "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        if self.kept is not None:
            write_whole(self.file, text)
            self.kept = None
        elif text:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(text)


class HistoryLog:
    """Appends the visits and scorings to history.jsonl that are new since the last call."""

    def __init__(self, folder: RunFolder, history: History) -> None:
        self.history = history
        self.visits = self.scorings = 0
        # The lines of a resumed run are written with the first new ones. The lines of one step then
        # have the same order, whether the run was interrupted at that step or not.
        self.log = Log(folder.file(HISTORY), [header_of(history)])

    def update(self) -> None:
        lines = lines_since(self.history, self.visits, self.scorings)
        self.visits, self.scorings = len(self.history.visits), len(self.history.scorings)
        self.log.append(lines)


def header_of(history: History) -> dict[str, Any]:
    """The first line of history.jsonl."""
    return {"cost": history.cost.name, "space": history.space.to_json()}


def lines_since(history: History, visits: int = 0, scorings: int = 0) -> list[dict[str, Any]]:
    """The lines of history.jsonl after so many visits and scorings.

    A resumed run writes many steps at once, in the order of a run that was not stopped.
    """
    lines: list[dict[str, Any]] = [
        {"id": i, "step": v.step, "widths": [*v.widths.counts], "cost": finite(v.cost)}
        for i, v in enumerate(history.visits[visits:], visits)
    ]
    for scoring in history.scorings[scorings:]:
        losses = [finite(loss) for loss in scoring.losses.values()]
        lines.append({"step": scoring.step, "ids": list(scoring.losses), "losses": losses})
    return sorted(lines, key=lambda line: (line["step"], "ids" in line))


class MetricsLog:
    """Writes a line of metrics.jsonl at every log step, and the same to TensorBoard if wanted."""

    def __init__(self, trainer: Trainer, folder: RunFolder) -> None:
        self.trainer = trainer
        earlier = folder.lines_until(METRICS, trainer.slimming.steps)
        self.log = Log(folder.file(METRICS), earlier)
        # Resume the elapsed times from the last line.
        last = earlier[-1] if earlier else {}
        self.started = time.perf_counter() - (finite_number(last, "seconds") or 0.0)
        parts = last.get("parts")
        for part in ("data", "search", "scoring", "validation"):
            known = finite_number(parts, part) if isinstance(parts, dict) else None
            trainer.slimming.seconds[part] = known or 0.0
        tracker = tracker_of(trainer.config)
        settings = trainer.config.to_json()
        self.send = (
            LOGGERS[tracker](folder.path, settings) if tracker else lambda figures, step: None
        )

    def update(self) -> None:
        if not self.trainer.at_log_step:
            return
        slimming = self.trainer.slimming
        losses = slimming.finite.losses
        line = {
            "step": slimming.steps,
            "loss": slimming.full_loss,
            "smallest_loss": losses.get(slimming.space.smallest),
            "losses": [*losses.values()],
            "costs": [finite(slimming.cost(child)) for child in slimming.widths],
            "lr": self.trainer.optimizer.param_groups[0]["lr"],
            "children": len(slimming.history),
            **self._effort(),
        }
        self.log.append([line])
        names = ("loss", "smallest_loss", "lr", "children")
        self.send({name: line[name] for name in names if line[name] is not None}, slimming.steps)

    def validated(self, errors: list[float]) -> None:
        """Write a line with the validation errors of the full and the smallest network."""
        step = self.trainer.slimming.steps
        line = {"step": step, "phase": VALIDATION, "val_errors": errors, **self._effort()}
        self.log.append([line])
        self.send(dict(zip(("val_error", "smallest_val_error"), errors)), step)

    def finish(self) -> None:
        """Write a line without losses: the time of the search at the end and of the judging."""
        step = self.trainer.slimming.steps
        self.log.append([{"step": step, "phase": "front", **self._effort()}])

    def _effort(self) -> dict[str, Any]:
        slimming = self.trainer.slimming
        return {
            "passes": slimming.passes,
            "scoring_passes": slimming.scoring_passes,
            **slimming.searcher.counts(),
            "seconds": round(time.perf_counter() - self.started, 3),
            "parts": {part: round(seconds, 3) for part, seconds in slimming.seconds.items()},
        }


def finite(value: float) -> float | None:
    """Return None for numbers that JSON does not have."""
    return value if abs(value) < float("inf") else None


# Trackers: each is a function of the run folder and the settings that returns a function of
# (figures by name, step). A new one is such a function, and a row of `LOGGERS`.
Send = Callable[[dict[str, float], int], None]


def to_tensorboard(folder: Path, settings: dict[str, Any]) -> Send:
    writer = imported("torch.utils.tensorboard", "log_to", "tensorboard").SummaryWriter(
        folder / "tensorboard"
    )

    def send(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return send


def to_wandb(folder: Path, settings: dict[str, Any]) -> Send:
    run = imported("wandb", "log_to", "wandb").init(
        project="joslim", name=folder.name, dir=str(folder), config=settings, resume="allow"
    )
    return lambda figures, step: run.log(figures, step=step)


def to_mlflow(folder: Path, settings: dict[str, Any]) -> Send:
    mlflow = imported("mlflow", "log_to", "mlflow")
    mlflow.set_experiment("joslim")
    run = mlflow.active_run() or mlflow.start_run(run_name=folder.name)
    mlflow.log_params({name: value for name, value in settings.items() if value is not None})
    return lambda figures, step: mlflow.log_metrics(figures, step=step, run_id=run.info.run_id)


def to_trackio(folder: Path, settings: dict[str, Any]) -> Send:
    trackio = imported("trackio", "log_to", "trackio")
    trackio.init(project="joslim", name=folder.name, config=settings, resume="allow")
    return lambda figures, step: trackio.log(figures, step=step)


LOGGERS: dict[str, Callable[[Path, dict[str, Any]], Send]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "mlflow": to_mlflow,
    "trackio": to_trackio,
}
# The module to import for a tracker that is not named after it, checked before training.
PACKAGES = {"tensorboard": "torch.utils.tensorboard"}


def check_tracker(name: str | None) -> None:
    """Refuse a tracker whose package is missing."""
    if name is not None:
        imported(PACKAGES.get(name, name), "log_to", name)


def tracker_of(config: Config) -> str | None:
    """Return the tracker that is asked for; --tensorboard is the same as --log-to tensorboard."""
    if config.tensorboard and config.log_to not in (None, "tensorboard"):
        raise UserError(f"log_to: {config.log_to} and --tensorboard exclude each other; type one")
    return "tensorboard" if config.tensorboard else config.log_to
