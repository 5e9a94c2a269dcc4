"""What was published: figures of others that one's own runs can be drawn beside."""

from __future__ import annotations

# Table 1 of the paper: top-1 accuracy in percent on ImageNet, at these millions of multiply-adds.
TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "mobilenet_v2": {
        "macs": (59, 84, 102, 136, 149, 169, 212, 300),
        "slim": (61.4, 63.0, 64.7, 67.1, 67.6, 68.2, 69.7, 71.8),
        "bignas": (61.3, 63.1, 65.5, 67.5, 68.2, 68.8, 69.6, 71.5),
        "joslim": (61.5, 64.6, 65.5, 68.2, 69.1, 69.9, 70.6, 72.1),
    },
    "mobilenet_v3_large": {
        "macs": (43, 74, 85, 118, 135, 169, 184, 217),
        "slim": (65.8, 68.1, 69.1, 71.0, 71.5, 72.7, 73.0, 73.5),
        "bignas": (66.3, 68.1, 70.0, 71.4, 71.5, 72.0, 72.5, 73.1),
        "joslim": (65.9, 68.8, 70.0, 71.4, 72.1, 72.8, 73.2, 73.7),
    },
    "resnet18": {
        "macs": (339, 513, 650, 718, 939, 1231, 1659, 1814),
        "slim": (61.5, 63.4, 64.7, 65.1, 66.5, 68.0, 69.3, 69.6),
        "bignas": (61.5, 64.2, 65.6, 66.1, 67.3, 68.4, 69.3, 69.7),
        "joslim": (61.8, 64.5, 66.5, 67.5, 68.5, 69.4, 69.9, 70.0),
    },
}
# Universally slimmable networks (Yu and Huang, 2019), MobileNetV2: the paper checked its `slim`
# against them.
US_NETS = "us-nets"
US_NETS_MACS = (59, 97, 151, 209, 300)
US_NETS_ACCURACY = (62.3, 65.1, 67.6, 69.6, 71.5)

MILLION = 1e6
CLASSES = 1000

# [(multiply-adds, error in percent)], the cheapest first.
Line = list[tuple[float, float]]


def published_lines(model: str) -> dict[str, Line]:
    """What is published of a network on ImageNet, by method; nothing of most networks."""
    table = TABLE_1.get(model, {})
    lines = {
        method: as_errors(table["macs"], values)
        for method, values in table.items()
        if method != "macs"
    }
    if model == "mobilenet_v2":
        lines[US_NETS] = as_errors(US_NETS_MACS, US_NETS_ACCURACY)
    return lines


def as_errors(millions: tuple[float, ...], accuracies: tuple[float, ...]) -> Line:
    return [(m * MILLION, round(100 - a, 6)) for m, a in zip(millions, accuracies)]
