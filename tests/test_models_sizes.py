"""The models of papers: sizes, shapes, and arguments that cannot be."""

import pytest
import torch

from headrace.models import amoebanet, transformer, translation


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(make, *arguments, **options):
    with torch.device("meta"):
        return make(*arguments, **options)


def test_a_transformer_has_as_many_parameters_as_the_formula_says():
    layers, dim, hidden, words = 3, 64, 256, 100
    norms, biases = 4 * dim, 5 * dim + hidden
    per_block = 4 * dim * dim + 2 * dim * hidden + biases + norms
    model = on_meta(transformer, layers, dim, hidden=hidden, heads=4, vocabulary=words)
    assert count(model) == layers * per_block + 2 * words * dim + words


@pytest.mark.parametrize(
    ("sizes", "billions"),
    [((6, 8192, 16), 0.47), ((24, 8192, 16), 1.3), ((12, 16384, 32), 1.3), ((32, 16384, 32), 3.2)],
)
def test_the_translation_models_have_their_sizes(sizes, billions):
    assert count(on_meta(translation, *sizes)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("filters", "auxiliary", "parameters"),
    [(208, False, 81_137_437), (208, True, 81_781_529), (416, True, 318_270_652)],
)
def test_the_published_program_counts_the_same_in_amoebanet(filters, auxiliary, parameters):
    """Numbers by hand: the program's rules, applied cell by cell without torch."""
    assert count(on_meta(amoebanet, 18, filters, auxiliary=auxiliary)) == parameters


def test_amoebanet_trains():
    torch.manual_seed(0)
    model = amoebanet(3, 16, classes=5, auxiliary=True, side=160)
    logits, half_way = model(torch.randn(2, 3, 160, 160))
    assert logits.shape == half_way.shape == (2, 5)
    (logits.sum() + half_way.sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_amoebanet_halves_as_it_says():
    model, x = on_meta(amoebanet, 6, 32), torch.empty(1, 3, 224, 224, device="meta")
    found = {}
    for name, layer in model.named_children():
        x = layer(x)
        found[name] = tuple(x[0].shape[1:3]) if isinstance(x, tuple) else tuple(x.shape)
    assert found == {
        "stem": (32, 112),
        "stem_cell0": (24, 56),
        "stem_cell1": (48, 28),
        "cell0": (128, 28),
        "cell1": (128, 28),
        "reduction1": (192, 14),
        "cell2": (256, 14),
        "cell3": (256, 14),
        "reduction2": (384, 7),
        "cell4": (512, 7),
        "cell5": (512, 7),
        "classifier": (1, 1000),
    }


def test_dropout_keeps_the_mean_and_does_nothing_in_evaluation():
    torch.manual_seed(0)
    model = transformer(1, 16, hidden=32, heads=2, vocabulary=11, dropout=0.25)
    dropout, x = model.block0.feed_forward.dropout, torch.ones(100, 100)
    dropped = dropout(x)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert dropped.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(dropout.eval()(x), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformer(1, 10, heads=4), "dim=10 must be a multiple of heads=4"),
        (lambda: transformer(1, dropout=1), "dropout=1 must be in"),
        (lambda: transformer(0), "layers=0 must be at least 1"),
        (lambda: translation(1, dropout=-0.1), "dropout=-0.1 must be in"),
        (lambda: amoebanet(4), "layers=4 must be a multiple of 3"),
        (lambda: amoebanet(3, 20), "filters=20 must be a multiple of 16"),
        (lambda: amoebanet(3, 16, side=100), "side=100 must be a multiple of 32"),
        (lambda: amoebanet(3, 16, side=128, auxiliary=True), "at least 160 for the auxiliary head"),
    ],
)
def test_impossible_arguments_are_refused(make, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        make()
