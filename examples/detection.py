"""Detection of cars in street scenes (CamVid) by a small FCOS: AP against multiply-adds.

The boxes are those of the connected parts of the masks that are cars. Network, loss and the choice
of boxes come from torchvision, the average precision from torchmetrics:

pip install torchvision 'torchmetrics[detection]'
python examples/detection.py camvid --out runs/cars
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joint_or_alone import compare, options
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FeaturePyramidNetwork

import joslim

CAR, SMALLEST = 8, 40  # the label of cars in the masks; pixels of a part that counts
STRIDES, CHANNELS = (8, 16), 32


class Cars(joslim.Data):
    """Images and boxes (left, upper, right, lower), [n, most, 4]; rows of zeros are none."""

    name, recipe, classes, task = "cars", "small-data", ("car",), "detection"
    mean, std, device = (0.42, 0.43, 0.44), (0.3, 0.3, 0.3), torch.device("cpu")

    def __init__(self, folder: Path, most: int = 16) -> None:
        self.folder, self.most = folder, most
        self.files = {
            s: sorted((folder / s / "images").iterdir()) for s in ("train", "val", "test")
        }
        self.sizes = {split: len(files) for split, files in self.files.items()}
        self.shape = (3, *np.asarray(Image.open(self.files["train"][0])).shape[:2])
        self.read: dict[str, tuple[Tensor, Tensor]] = {}

    def images_and_boxes(self, split: str) -> tuple[Tensor, Tensor]:
        """Read a split at its first use."""
        if split not in self.read:
            images, boxes = [], torch.zeros(self.sizes[split], self.most, 4)
            for at, file in enumerate(self.files[split]):
                pixels = torch.from_numpy(np.asarray(Image.open(file).convert("RGB")) / 255)
                images.append(((pixels - torch.tensor(self.mean)) / torch.tensor(self.std)).float())
                mask = Image.open(self.folder / split / "masks" / f"{file.stem}.png")
                parts, _ = ndimage.label(np.asarray(mask) == CAR)
                large = np.flatnonzero(np.bincount(parts.ravel())[1:] >= SMALLEST)
                found = [ndimage.find_objects(parts)[part] for part in large][: self.most]
                for place, (y, x) in enumerate(found):
                    boxes[at, place] = torch.tensor([x.start, y.start, x.stop, y.stop])
            self.read[split] = torch.stack(images).permute(0, 3, 1, 2).contiguous(), boxes
        return self.read[split]

    def labels(self, split: str) -> Any:
        return np.zeros(self.sizes[split], dtype=np.int64)

    def plain(self, split: str, indices: Any) -> tuple[Tensor, Tensor]:
        images, boxes = self.images_and_boxes(split)
        return images[indices], boxes[indices]

    def augmented(self, seed: int, schedule: Iterator[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for step in schedule:  # an image is mirrored in every other epoch
            images, boxes = self.plain("train", step.indices)
            flip = torch.from_numpy((step.epochs + step.indices) % 2 == 1)
            mirrored = (self.shape[2] - boxes)[..., [2, 1, 0, 3]]
            mirrored[..., [1, 3]] = boxes[..., [1, 3]]
            mirrored *= boxes.any(dim=-1, keepdim=True)
            images = torch.where(flip[:, None, None, None], images.flip(3), images)
            yield images, torch.where(flip[:, None, None], mirrored, boxes)


class Backbone(nn.Module):
    """Maps of strides 8 and 16, joined by a feature pyramid."""

    out_channels = CHANNELS

    def __init__(self) -> None:
        super().__init__()

        def conv(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())

        self.first = nn.Sequential(
            conv(3, 16, 2), conv(16, 32, 2), conv(32, 64, 2), conv(64, 64, 1)
        )
        self.second = nn.Sequential(conv(64, 96, 2), conv(96, 96, 1))
        self.pyramid = FeaturePyramidNetwork([64, 96], CHANNELS)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.first(x)
        return self.pyramid({"8": fine, "16": self.second(fine)})


class Detector(nn.Module):
    """FCOS up to the outputs of its heads, which the loss and the choice of boxes take."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(), FCOSHead(CHANNELS, 1, num_classes=1, num_convs=2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.head([*self.backbone(x).values()])


class Rules:
    """The loss and the boxes of FCOS for outputs of `Detector` on images of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        anchors = AnchorGenerator(tuple((s,) for s in STRIDES), ((1.0,),) * len(STRIDES))
        backbone = Backbone()
        head = FCOSHead(CHANNELS, 1, 1)
        self.fcos = FCOS(
            backbone, 1, anchor_generator=anchors, head=head, score_thresh=0.05, topk_candidates=100
        )
        images = torch.zeros(1, *shape)
        maps = [*backbone(images).values()]
        self.size = shape[1:]
        self.counts = [each.shape[2] * each.shape[3] for each in maps]
        (self.anchors,) = anchors(ImageList(images, [self.size]), maps)

    def targets(self, boxes: Tensor) -> list[dict[str, Tensor]]:
        real = [each[each.any(dim=1)] for each in boxes]
        return [{"boxes": b, "labels": torch.zeros(len(b), dtype=torch.int64)} for b in real]

    def loss(self, outputs: dict[str, Tensor], boxes: Tensor) -> Tensor:
        anchors = [self.anchors] * len(boxes)
        losses = self.fcos.compute_loss(self.targets(boxes), outputs, anchors, self.counts)
        return torch.stack([*losses.values()]).sum()

    def boxes(self, outputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        levels = {name: [*part.split(self.counts, dim=1)] for name, part in outputs.items()}
        images = len(outputs["cls_logits"])
        anchors = [[*self.anchors.split(self.counts)]] * images
        return self.fcos.postprocess_detections(levels, anchors, [self.size] * images)


class MissingPrecision:
    """100 (1 - AP) at an intersection over union of 0.5, by torchmetrics."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.precision = rules, MeanAveragePrecision(iou_thresholds=[0.5])

    def update(self, outputs: dict[str, Tensor], boxes: Tensor) -> None:
        self.precision.update(self.rules.boxes(outputs), self.rules.targets(boxes))

    def compute(self) -> float:
        return 100 * (1 - max(0.0, self.precision.compute()["map"].item()))


def main() -> None:
    parser = options(__doc__ or "", steps=500)
    parser.add_argument("data", type=Path, help="folder of images and masks")
    given = parser.parse_args()
    data = Cars(given.data)
    rules = Rules(data.shape)
    metric = joslim.Metric(lambda: MissingPrecision(rules), "error (1 - AP50)")
    compare(
        Detector,
        given.steps,
        given.out,
        data=data,
        task=joslim.Task(rules.loss, metric),
        label_share=1.0,  # children learn from the boxes, not from the full network
        batch=8,
        every=max(1, given.steps // 20),
        low=0.25,
        optimizer="adamw",
        clip=10.0,
        front_images=64,
        score_images=32,
        seed=given.seed,
    )


if __name__ == "__main__":
    main()
