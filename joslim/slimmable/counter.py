"""Multiply-adds as torch counts them, kernel by kernel, and the kernels that it cannot count.

Tracing compares its own counts with these. Torch's `FlopCounterMode` knows matrix products,
convolutions and most attention kernels, and silently ignores all others. This file adds some
formulas, and records the name of every kernel that multiplies and has no formula. For kernels of
your own, see `torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Sizes = Sequence[int]

# Words in the names of aten's kernels that mean sums of products.
MULTIPLYING = re.compile(
    r"[a-z]*mm|[a-z]*mv|[a-z]*dot|matmul|linear|trilinear|conv(olution|\dd|tbc)?|attention|rnn|lstm|"
    r"gru|fft|linalg|cdist|pdist|euclidean|inverse|solve|cholesky|qr|svd|lu|[a-z]+qr|geqrf|"
    r"transformer"
)
# Kernels whose names contain such a word although they only resize, index or work elementwise.
WITHOUT_PRODUCTS = re.compile(
    r"_?upsample_.*|.*vector_norm|linalg_(cross|diagonal)|_thnn_fused_(lstm|gru)_cell|lu_unpack|"
    r"slice_inverse|_linalg_check_errors|_cudnn_rnn_flatten_weight|fft_(r?fftfreq|i?fftshift)"
)
# Namespaces of torch's own operators.
OF_TORCH = {"aten", "prims", "prim", "profiler", "c10d", "_c10d_functional", "c10d_functional"}
POOLING = {f"torchvision::{name}" for name in ("nms", "roi_align", "roi_pool", "ps_roi_align")}


class Counter(TorchDispatchMode):
    """Counts the multiply-adds of everything that runs inside its `with` block."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._flops = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        self.active = False
        self._reported = 0
        self._unknown: list[str] = []

    def __enter__(self) -> Counter:
        # Fused encoder layers hide their products; without the fast path they run step by step.
        self._fused_layers = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        super().__enter__()
        # The innermost mode runs first: it decomposes some kernels, and this mode sees the rest.
        self._flops.__enter__()
        self._reported, self.active = 0, True
        return self

    def __exit__(self, *error: Any) -> None:
        self.active = False
        self._flops.__exit__(*error)
        super().__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self._fused_layers)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet = getattr(func, "_overloadpacket", func)
        if packet not in self._flops.flop_registry and multiplies(func):
            self._unknown.append(name_of(func))
        return func(*args, **(kwargs or {}))

    def is_kernel(self, name: str) -> bool:
        """Tell whether an operation is a single kernel, so that it makes no intermediate maps."""
        return getattr(torch.ops.aten, name, None) in self._flops.flop_registry

    def since_last_call(self) -> tuple[int, list[str]]:
        """Return the multiply-adds since the last call, and the kernels without a formula."""
        total = self._flops.get_total_flops() // 2
        macs, self._reported = total - self._reported, total
        unknown, self._unknown = list(dict.fromkeys(self._unknown)), []
        return macs, unknown


def name_of(func: Any) -> str:
    """Return the name of a kernel, without the namespace if it is `aten`."""
    schema = getattr(func, "_schema", None)
    name = schema.name if schema is not None else str(func)
    return name.removeprefix("aten::")


def multiplies(func: Any) -> bool:
    """Guess from namespace and name whether a kernel computes sums of products."""
    name = name_of(func)
    if name in POOLING:
        return False
    if getattr(func, "namespace", "") not in OF_TORCH:
        return True
    if torch.Tag.pointwise in func.tags or WITHOUT_PRODUCTS.fullmatch(name):
        return False
    words = name.rpartition("::")[2].split("_")
    return name.startswith("matrix_exp") or any(map(MULTIPLYING.fullmatch, words))


def matrix_vector(matrix: Sizes, *_: Any, **__: Any) -> int:
    return 2 * math.prod(matrix)


def added_matrix_vector(added: Sizes, matrix: Sizes, *_: Any, **__: Any) -> int:
    return 2 * math.prod(matrix)


def added_matrices(added: Sizes, first: Sizes, second: Sizes, *_: Any, **__: Any) -> int:
    return 2 * math.prod(first) * second[-1]


def attention(query: Sizes, key: Sizes, value: Sizes, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def bilinear(first: Sizes, weight: Sizes, second: Sizes, *_: Any, **__: Any) -> int:
    """Count the product with the first input, then the product with the second."""
    out, inside = weight[0], weight[2]
    return 2 * first[0] * (math.prod(weight) + out * inside)


def one_recurrent_layer(input: Sizes, inputs: Sizes, hidden: Sizes, *_: Any, **__: Any) -> int:
    return 2 * math.prod(input[:-1]) * (math.prod(inputs) + math.prod(hidden))


def recurrent(input: Sizes, weights: Sequence[Sizes], *_: Any, **__: Any) -> int:
    """Count each matrix of each layer and direction once for every time step."""
    return 2 * math.prod(input[:-1]) * sum(math.prod(w) for w in weights if len(w) == 2)


# Floating-point operations, two for each multiply-add, as torch counts them.
FORMULAS: dict[Any, Any] = {
    torch.ops.aten.mv: matrix_vector,
    torch.ops.aten.dot: matrix_vector,
    torch.ops.aten.vdot: matrix_vector,
    torch.ops.aten.addmv: added_matrix_vector,
    torch.ops.aten.addmv_: added_matrix_vector,
    torch.ops.aten.addmm_: added_matrices,
    torch.ops.aten.addbmm: added_matrices,
    torch.ops.aten.addbmm_: added_matrices,
    torch.ops.aten.baddbmm_: added_matrices,
    torch.ops.aten._addmm_activation: added_matrices,
    torch.ops.aten._trilinear: bilinear,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable: attention,
    torch.ops.aten.mkldnn_rnn_layer: one_recurrent_layer,
    torch.ops.aten._cudnn_rnn: recurrent,
    torch.ops.aten.miopen_rnn: recurrent,
}
