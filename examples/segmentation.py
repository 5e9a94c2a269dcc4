"""Segmentation of street scenes (CamVid) by a small U-Net: mIoU against latency on this processor.

The folder has train/, val/ and test/ with images/ and masks/, as docs/tasks.md describes it:

python examples/segmentation.py camvid --out runs/camvid
"""

from __future__ import annotations

from joint_or_alone import compare, options


def main() -> None:
    parser = options(__doc__ or "", steps=500)
    parser.add_argument("data", help="folder of images and masks")
    parser.add_argument("--size", type=int, default=60, help="pixels of the short side of an image")
    given = parser.parse_args()
    compare(
        "unet",
        given.steps,
        given.out,
        data=f"folder:{given.data}",
        task="segmentation",
        ignore_index=11,  # CamVid's pixels without a label
        size=given.size,
        batch=8,
        every=max(1, given.steps // 40),
        optimizer="adamw",
        label_smoothing=0.0,
        amp="bf16",
        crop_scale=0.5,
        cost="latency",
        front_images=64,
        score_images=32,
        seed=given.seed,
    )


if __name__ == "__main__":
    main()
