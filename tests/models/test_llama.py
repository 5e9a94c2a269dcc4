"""The small decoder of text."""

import torch

import joslim
from joslim.models import tiny_llama


def test_a_token_sees_only_those_before_it_and_children_are_equal() -> None:
    torch.manual_seed(0)
    model = tiny_llama(50).eval()
    tokens = torch.randint(0, 50, (2, 12))
    scores = model(tokens)
    assert scores.shape == (2, 12, 50)
    other = tokens.clone()
    other[:, 7:] = 0
    assert torch.allclose(model(other)[:, :7], scores[:, :7], atol=1e-5)
    assert not torch.allclose(model(other)[:, 8:], scores[:, 8:], atol=1e-3)
    # Positions count: the same tokens in another order give other scores at the end.
    assert not torch.allclose(model(tokens.flip(1))[:, -1], scores[:, -1], atol=1e-3)
    net = joslim.slim(model, torch.zeros(1, 12, dtype=torch.int64)).eval()
    assert len(net.space) >= 5  # the embedding and the MLP of each block
    assert torch.allclose(net(tokens), scores, atol=1e-5)
    widths = net.space.uniform(0.5)
    with net.at(widths):
        assert torch.allclose(net(tokens), net.child(widths)(tokens), atol=1e-5)
