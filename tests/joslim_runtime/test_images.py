"""Images for a network: as Pillow resizes them, whatever their size and channels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from joslim_runtime import BundleError
from joslim_runtime.bundle import Bundle
from joslim_runtime.images import prepared
from joslim_runtime.manifest import Manifest


@pytest.fixture
def manifest(make_bundle: Callable[..., Path]) -> Manifest:
    known = Bundle(make_bundle()).manifest
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    return replace(known, shape=(3, 16, 16), mean=zero, std=one)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (40, 60), (100, 33), (5, 7), (1, 1)])
@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_as_pillow_resizes(height: int, width: int, crop: float, manifest: Manifest) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    side = crop * min(height, width)
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    resized = Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR, box)
    expected = np.asarray(resized).transpose(2, 0, 1) / 255
    ours = prepared(pixels, replace(manifest, crop=crop))
    assert np.abs(ours - expected).max() < 1.6 / 255  # Pillow rounds twice


def test_normalised(manifest: Manifest) -> None:
    mean, std = np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 4], np.float32)
    image = prepared(np.full((16, 16, 3), 0.5), replace(manifest, mean=mean, std=std))
    np.testing.assert_allclose(image[:, 3, 4], [0.4, 0.15, 0.05], rtol=1e-6)


def test_channels(manifest: Manifest) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)
    colours = prepared(grey, manifest)
    assert np.array_equal(colours[0], colours[2])
    assert np.array_equal(colours, prepared(np.dstack([grey] * 3), manifest))
    assert np.array_equal(colours, prepared(np.dstack([grey] * 4), manifest))
    one = replace(manifest, shape=(1, 16, 16), mean=manifest.mean[:1], std=manifest.std[:1])
    np.testing.assert_allclose(prepared(np.dstack([grey] * 3), one)[0], colours[0], atol=1e-6)


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (np.zeros(3), r"shape \(3,\) given"),
        (np.zeros((0, 3)), r"shape \(0, 3\) given"),
        (np.zeros((3, 3), np.int64), "int64 given, bytes or floats"),
        (np.zeros((3, 3, 2)), "2 channels given, 1 or 3 needed"),
    ],
)
def test_no_images(image: Any, line: str, manifest: Manifest) -> None:
    with pytest.raises(BundleError, match=line):
        prepared(image, manifest)
