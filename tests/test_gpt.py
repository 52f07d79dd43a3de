import math

import pytest
import torch
from torch import nn

from headrace.models import gpt, next_byte_loss


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small gain nothing from threads, and wait long for them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens(batch: int, length: int, vocabulary: int = 256) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return gpt(layers=3, dim=32, heads=4, sequence=16)


def test_it_is_one_plain_sequential_with_uneven_layers(model):
    assert type(model) is nn.Sequential
    assert list(dict(model.named_children())) == ["embedding", "block0", "block1", "block2", "head"]
    assert len({sum(p.numel() for p in layer.parameters()) for layer in model}) == 3


def test_shapes_and_shorter_sequences(model):
    assert model(tokens(2, 16)).shape == (2, 16, 256)
    assert model(tokens(3, 5)).shape == (3, 5, 256)
    assert gpt(layers=1, dim=8, heads=2, sequence=4, vocabulary=10)(tokens(1, 4, 10)).shape == (1, 4, 10)


def test_a_shorter_sequence_gives_the_same_logits_as_the_start_of_a_longer_one(model):
    x = tokens(2, 16)
    torch.testing.assert_close(model(x[:, :7]), model(x)[:, :7])


def test_a_sequence_that_is_too_long_is_refused_by_its_length(model):
    with pytest.raises(ValueError, match=r"17 tokens .* maximum of 16: .* sequence=17"):
        model(tokens(1, 17))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 30}, ValueError, "dim=30 must be a multiple of heads=4"),
        ({"layers": 0}, ValueError, "layers=0"),
        ({"heads": 2.0}, TypeError, r"heads=2\.0"),
        ({"dropout": 1.0}, ValueError, r"dropout=1\.0"),
    ],
)
def test_impossible_arguments_are_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        gpt(**arguments)


def test_no_position_sees_a_later_one_and_all_later_ones_see_it(model):
    # The weights are large enough for every influence to show.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    x = tokens(1, 16)
    changed = x.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    differs = (model(x) - model(changed)).abs().amax(-1)[0] > 1e-6
    assert differs.tolist() == [False] * 9 + [True] * 7


def test_equal_tokens_at_different_positions_get_different_logits(model):
    logits = model(torch.zeros(1, 8, dtype=torch.long))
    assert not torch.allclose(logits[0, 1], logits[0, 5], atol=1e-6)


def test_the_first_loss_is_that_of_a_guess(model):
    x = tokens(8, 16)
    assert next_byte_loss(model(x), x.roll(-1)).item() == pytest.approx(math.log(256), abs=0.02)


def test_projections_into_the_residual_stream_start_smaller_the_deeper_the_model():
    torch.manual_seed(0)
    for layers in (1, 8):
        for block in list(gpt(layers=layers, dim=64, sequence=4))[1:-1]:
            for linear in (block.attention_out, block.mlp_out):
                assert linear.weight.std().item() == pytest.approx(0.02 / (2 * layers) ** 0.5, rel=0.05)
            for linear in (block.qkv, block.mlp_in):
                assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_loss_is_the_mean_negative_log_probability_in_nats():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[0, 1, 2], [3, 4, 0]])
    picked = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(next_byte_loss(logits, targets), -picked.mean())


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = gpt(layers=1, dim=16, heads=2, sequence=8, dropout=0.5)
    x = tokens(2, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_it_learns_a_pattern():
    torch.manual_seed(0)
    model = gpt(layers=1, dim=32, heads=2, sequence=16, vocabulary=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.arange(17).remainder(8).repeat(4, 1)
    for _ in range(30):
        loss = next_byte_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
