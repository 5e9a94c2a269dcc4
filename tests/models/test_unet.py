"""The small U-Net."""

import torch

import joslim
from joslim.models import unet


def test_every_level_has_knobs_and_any_size_fits() -> None:
    model = unet(num_classes=5).eval()
    assert 450_000 < sum(parameter.numel() for parameter in model.parameters()) < 520_000
    x = torch.randn(2, 3, 22, 30)
    expected = model(x)
    assert expected.shape == (2, 5, 22, 30)
    net = joslim.slim(model, torch.zeros(1, 3, 32, 32)).eval()
    assert [frozen.layer for frozen in net.frozen] == ["head"]
    assert len(net.space) == 14  # two convs on each of four ways down and three up
    assert torch.equal(net(x), expected)
    widths = net.space.uniform(0.5)
    with net.at(widths):
        assert torch.allclose(net(x), net.child(widths)(x), atol=1e-5)
