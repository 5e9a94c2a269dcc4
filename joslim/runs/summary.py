"""What a training is about to do, in words."""

from __future__ import annotations

from joslim.front import cost_key
from joslim.runs.config import Resolved
from joslim.runs.recipes import FINE_TUNING_RATE, RECIPES, rate_for
from joslim.runs.trainer import Trainer
from joslim.training.settings import SHORT_EPOCHS, Sandwich, resolved_sandwich
from joslim.units import format_size


def summary(trainer: Trainer) -> list[str]:
    """Describe in words, before a training, the network, the data and the chosen settings."""
    config, data = trainer.config, trainer.data
    counts = []
    for split, name in {"train": "training", "val": "validation", "test": "test"}.items():
        source = f" ({data.sources[split]})" if split in data.sources else ""
        counts.append(f"{data.sizes[split]:,} {name}{source}")
    shape = "x".join(map(str, data.shape))
    recipe, row = config.recipe, RECIPES[config.recipe]
    if recipe == data.recipe:
        recipe += f" (for {data.sizes['train']:,} training images of {data.shape[-1]} pixels)"
    rate = f"learning rate {config.lr:g}"
    usual = rate_for(config.recipe, config.batch, config.optimizer)
    if config.lr != usual:
        # The rate of a fine-tuning is printed on its own line.
        rate += " (given)" if trainer.start is None or config.lr != usual * FINE_TUNING_RATE else ""
    elif config.batch != row["batch"] and config.optimizer == "sgd":
        rate += f" (it follows the batch: {row['lr']:g} for {row['batch']})"
    epochs = config.steps * config.batch / data.sizes["train"]
    slimming, cost, space = trainer.slimming, trainer.slimming.cost, trainer.slimming.space
    ends = (format_size(cost_key(cost.name), cost(end)) for end in (space.smallest, space.full))
    precision = f"{config.amp or 'fp32'}"
    if trainer.bf16_share is not None:
        precision += f" (bf16 takes {trainer.bf16_share:.2f} of the time of fp32 here)"
    return [
        f"network: {config.model}, {len(space)} knobs, {cost.name} {' to '.join(ends)}; method "
        f"{trainer.slimming.name}, {config.steps:,} steps with {config.optimizer}",
        f"data: {', '.join(counts)} {data.unit} of {len(data.classes)} classes, {shape}; "
        f"task {config.task}",
        f"recipe: {recipe}",
        *([] if trainer.start is None else [f"init: {'; '.join(trainer.start.words)}"]),
        *([f"fine-tuning: {changes}"] if (changes := _changed_by_init(trainer, usual)) else []),
        *([f"precision: {precision}"] if config.amp or trainer.bf16_share else []),
        f"training: {config.steps:,} steps ({epochs:.3g} epochs), batch {config.batch}, {rate}, "
        f"{config.schedule}, weight decay {config.weight_decay:g}, "
        f"label smoothing {config.label_smoothing:g}",
        *([f"children: {_children_in_words(config, epochs)}"] if slimming.method.sandwich else []),
    ]


def _changed_by_init(trainer: Trainer, usual_rate: float) -> str:
    """Say which defaults are other ones because the network is trained already."""
    config, changes = trainer.config, []
    if trainer.start is None:
        return ""
    if config.lr == usual_rate * FINE_TUNING_RATE:
        changes.append(f"the learning rate is {FINE_TUNING_RATE:g} of the usual one")
    if trainer.slimming.method.sandwich and not config.full_first:
        changes.append("the full network does not train alone at first")
    if config.draw_full:
        changes.append("the full network is drawn like its children")
    if config.method == "sensitivity":
        changes.append("children of one curve (--method joslim searches sizes for each layer)")
    return ", ".join(changes)


def _children_in_words(config: Resolved, epochs: float) -> str:
    """Say which children are trained in a step, and whether the length of the training decided."""
    words = f"{config.draw} of {config.samples + 1} in every step"
    if config.full_first:
        words += f", after the full network alone for {config.full_first:.0%} of the steps"
    usual = resolved_sandwich(Sandwich(samples=config.samples), epochs)
    if (config.draw, config.full_first) == (usual.draw, usual.full_first):
        length = "fewer than" if epochs < SHORT_EPOCHS else "at least"
        words += f" (the default for {length} {SHORT_EPOCHS} epochs)"
    return words
