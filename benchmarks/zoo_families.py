"""The networks of benchmarks/zoo.py that come from timm, torchvision, transformers and ultralytics.

Each family has a function that returns a small network with random weights and its inputs, and the
parts that the network has: attention heads, MLPs, an embedding (residual width). The packages are
optional: pip install --no-deps timm torchvision ultralytics; pip install transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

HEADS, MLP, EMBEDDING = "heads", "mlp", "embedding"
TRANSFORMER = (HEADS, MLP, EMBEDDING)


class Family(NamedTuple):
    """A network that is built on demand, and the parts that it has."""

    package: str
    name: str
    parts: tuple[str, ...]
    build: Callable[[], tuple[nn.Module, Any]]


def declare_operators() -> None:
    """Declare torchvision's operators where its compiled ones do not fit this torch."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", non_maximum_suppression, "CPU")
    declare_operators.library = library  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError):
        import torchvision.extension

        torchvision.extension._has_ops = lambda: True  # else its functions refuse to call them


def non_maximum_suppression(
    boxes: torch.Tensor, scores: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return the boxes that overlap with none of a higher score, the highest score first."""
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    low = boxes[:, None, :2].maximum(boxes[:, :2])
    high = boxes[:, None, 2:].minimum(boxes[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    overlaps = (shared > threshold * (sizes[:, None] + sizes - shared)).numpy()
    kept, gone = [], np.zeros(len(boxes), dtype=bool)
    for box in scores.argsort(descending=True).tolist():
        if not gone[box]:
            kept.append(box)
            gone |= overlaps[box]
    return torch.tensor(kept, dtype=torch.int64)


def image(size: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def tokens(count: int = 12) -> torch.Tensor:
    return torch.randint(0, 99, (2, count))


def timm(name: str, size: int = 64, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        import timm as package

        return package.create_model(name, num_classes=10, **options), image(size)

    return build


def vision(
    name: str, size: int = 64, group: str = "", **options: Any
) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        import torchvision

        made = getattr(getattr(torchvision.models, group) if group else torchvision.models, name)
        kwargs = {"weights_backbone": None} if group else {}
        model = made(weights=None, **kwargs, **options)
        if group != "detection":
            return model, image(size)
        return Maps(model), image(size)

    return build


class Maps(nn.Module):
    """A detector up to the outputs of its heads; what follows selects boxes."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(list(self.backbone(images).values()))


def hugging(name: str, inputs: Callable[[], Any], **options: Any) -> Any:
    def build() -> tuple[nn.Module, Any]:
        import transformers

        kind = getattr(transformers, name)
        config = kind.config_class(**options)
        return kind(config), inputs()

    return build


def yolo(name: str) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        from ultralytics.nn.tasks import DetectionModel

        return DetectionModel(f"{name}.yaml", nc=4, verbose=False), image(64)

    return build


SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
PICTURE = {"image_size": 32, "patch_size": 8, "num_labels": 10}
CAUSAL = {"vocab_size": 99, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}


def pixels(size: int = 32) -> Callable[[], Any]:
    return lambda: {"pixel_values": image(size)}


def words() -> Any:
    return {"input_ids": tokens()}


def families() -> Iterator[Family]:
    """Yield the families that the issue of attention heads names, then others of every style."""
    vit = {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 3, "num_heads": 4}
    swin = {"img_size": 64, "patch_size": 2, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4)}
    for name, parts, build in (
        ("vit", TRANSFORMER, timm("vit_tiny_patch16_224", **vit)),
        ("deit", TRANSFORMER, timm("deit_tiny_distilled_patch16_224", **vit)),
        ("swin", TRANSFORMER, timm("swin_tiny_patch4_window7_224", window_size=4, **swin)),
        ("convnext", (MLP, EMBEDDING), timm("convnext_atto")),
        ("fastvit", (HEADS, MLP, EMBEDDING), timm("fastvit_sa12")),
        ("efficientvit", (HEADS, MLP, EMBEDDING), timm("efficientvit_b0")),
        ("mobilenetv4", (MLP, EMBEDDING), timm("mobilenetv4_conv_small")),
        ("mobilenetv4 hybrid", TRANSFORMER, timm("mobilenetv4_hybrid_medium", 96)),
    ):
        yield Family("timm", name, parts, build)
    audio = {
        "vocab_size": 32,
        "conv_dim": (32, 32),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    whisper = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
        "num_mel_bins": 16,
        "max_source_positions": 20,
    }
    bert = {"vocab_size": 99, "max_position_embeddings": 64}
    hf_swin = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    hf_swin |= {"image_size": 32, "patch_size": 2, "num_labels": 10}
    gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
    for name, parts, build in (
        ("vit", TRANSFORMER, hugging("ViTForImageClassification", pixels(), **SMALL, **PICTURE)),
        ("swin", TRANSFORMER, hugging("SwinForImageClassification", pixels(), **hf_swin)),
        ("segformer", TRANSFORMER, hugging("SegformerForSemanticSegmentation", pixels(64))),
        ("bert", TRANSFORMER, hugging("BertForMaskedLM", words, **SMALL, **bert)),
        ("gpt2", TRANSFORMER, hugging("GPT2LMHeadModel", words, **gpt2)),
        ("llama", TRANSFORMER, hugging("LlamaForCausalLM", words, **SMALL, **CAUSAL)),
        ("qwen3", TRANSFORMER, hugging("Qwen3ForCausalLM", words, **SMALL, **CAUSAL)),
        (
            "whisper encoder",
            (HEADS, MLP),
            hugging_encoder("WhisperModel", {"input_features": (1, 16, 40)}, **whisper),
        ),
        (
            "wav2vec2",
            TRANSFORMER,
            hugging(
                "Wav2Vec2ForCTC",
                lambda: {"input_values": torch.randn(1, 1000)},
                **SMALL,
                **audio,
            ),
        ),
    ):
        yield Family("transformers", name, parts, build)
    for name, parts, build in (
        ("vit", TRANSFORMER, small_vit),
        ("swin", TRANSFORMER, vision("swin_t")),
        ("retinanet", (EMBEDDING,), vision("retinanet_resnet50_fpn", 128, "detection")),
        ("fcos", (EMBEDDING,), vision("fcos_resnet50_fpn", 128, "detection")),
        ("deeplabv3", (EMBEDDING,), vision("deeplabv3_resnet50", 64, "segmentation")),
        ("lraspp", (EMBEDDING,), vision("lraspp_mobilenet_v3_large", 64, "segmentation")),
    ):
        yield Family("torchvision", name, parts, build)
    yield Family("ultralytics", "yolov8", (EMBEDDING,), yolo("yolov8n"))
    yield Family("ultralytics", "yolo11", (HEADS, EMBEDDING), yolo("yolo11n"))


def hugging_encoder(
    name: str, shapes: dict[str, tuple[int, ...]], **options: Any
) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        import transformers

        kind = getattr(transformers, name)
        model = kind(kind.config_class(**options)).get_encoder()
        return model, {key: torch.randn(shape) for key, shape in shapes.items()}

    return build


def small_vit() -> tuple[nn.Module, Any]:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 3, 4, 64, 128, num_classes=10), image(64)
