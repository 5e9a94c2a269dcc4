"""A slimmable network of transformers, trained by its Trainer.

`SlimmableTrainer` replaces the pass of a training step by those of several widths, and keeps all
else of the Trainer: optimizers, schedules, accumulated gradients, logs.

pip install transformers accelerate; python examples/transformers_trainer.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import joslim


class SlimmableTrainer(transformers.Trainer):
    """Trains the children of a slimmable network; `slimming.front()` is the Pareto front."""

    def __init__(self, *args: Any, slimming: joslim.Slimming, **kwargs: Any) -> None:
        super().__init__(*args, callbacks=[Advance(slimming)], **kwargs)
        self.slimming = slimming
        self.accumulated = self.args.gradient_accumulation_steps

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")

        def differentiate(loss: Tensor) -> None:
            self.accelerator.backward(loss / self.accumulated)

        with self.compute_loss_context_manager():
            loss = self.slimming.backward(inputs, labels, self.criterion, differentiate)
        return loss.detach() / self.accumulated

    def criterion(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the loss of outputs and labels; override it for other tasks."""
        return nn.functional.cross_entropy(outputs.logits, labels)


class Advance(transformers.TrainerCallback):
    """Counts the optimizer steps."""

    def __init__(self, slimming: joslim.Slimming) -> None:
        self.slimming = slimming

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.slimming.advance()


def main(out: str = "runs/transformers", steps: int = 20) -> joslim.Front:
    digits = joslim.load_data("digits", size=16)
    images, labels = digits.plain("train", np.arange(digits.sizes["train"]))
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels)]
    config = transformers.ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=10,
    )
    model = transformers.ViTForImageClassification(config)
    net = joslim.slim(model, {"pixel_values": torch.zeros(1, 3, 16, 16)}, low=0.25)
    scoring = [transformers.default_data_collator(rows[at : at + 64]) for at in range(0, 512, 64)]
    slimming = joslim.Slimming(net, total_steps=steps, scoring=scoring, every=5)
    arguments = transformers.TrainingArguments(
        out, max_steps=steps, use_cpu=True, report_to=[], save_strategy="no"
    )
    SlimmableTrainer(net, arguments, train_dataset=rows, slimming=slimming).train()
    return slimming.front()


if __name__ == "__main__":
    for point in main():
        print(f"{point.costs['macs']:>9,} multiply-adds, training loss {point.train_loss:.3f}")
