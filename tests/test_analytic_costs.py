"""Costs from shapes: counted by hand, and as real runs have them."""

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headrace.analytic import Hardware, load_hardware
from headrace.analytic.chain import trace_chain
from headrace.analytic.estimate import estimate
from headrace.models import amoebanet, gpt, next_byte_loss, transformer, transformer_6b, translation
from headrace.profiling import profile

CPU = load_hardware("cpu")
PLAIN = Hardware("plain", "", {"float32": 1e9, "bfloat16": 1e9}, ((1, 1.0),), 1e9, 1e30, 1e9, 1e-6)
"""A second for 1e9 FLOPs; memory costs nothing."""


def works(model, sample, **options):
    return [(t.trace.forward.flops, t.trace.backward_input.flops, t.trace.backward_weight.flops)
            for t in trace_chain(model, sample, **options)]  # fmt: skip


def small_gpt():
    return gpt(2, 32, heads=4, sequence=16, vocabulary=64)


def tokens(rows=3):
    return torch.randint(64, (rows, 16))


def real_run(model, sample, loss_fn, target):
    """Distinct bytes that a real step keeps besides parameters, buffers and constants, and its FLOPs."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = loss_fn(model(sample), target)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return sum(kept.values()), forward.get_total_flops(), backward.get_total_flops()


def both_of(x, y):
    """Bytes of a batch, all of which is kept, but is no activation."""
    return x.untyped_storage().nbytes() + y.untyped_storage().nbytes()


def test_flops_of_linear_layers():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    first, second = 2 * 5 * 8 * 16, 2 * 5 * 16 * 4
    assert works(model, torch.empty(5, 8)) == [(first, 0, first), (second, second, second)]
    assert works(model, torch.empty(5, 8, requires_grad=True))[0] == (first, first, first)


def test_a_frozen_layer_has_no_weight_gradient_and_starts_no_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    each = 2 * 5 * 8 * 8
    assert works(model, torch.empty(5, 8)) == [(each, 0, 0), (each, 0, each), (each, each, each)]


def test_flops_of_a_convolution():
    model = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1))
    each = 2 * 2 * 6 * 8 * 8 * 3 * 9
    assert works(model, torch.empty(2, 3, 16, 16, requires_grad=True)) == [(each, each, each)]


def test_flops_of_a_transformer_block():
    rows, length, dim = 3, 16, 32
    (_, block, _, head) = works(small_gpt(), tokens())
    products, attention = 2 * rows * length * 12 * dim * dim, 4 * rows * length * length * dim
    assert block[0] == products + attention
    assert block[2] == products
    # the backward computes the attention anew, and then four products where the forward had two
    assert block[1] == products + attention * 5 // 2
    assert head == (2 * rows * length * dim * 64,) * 3


def test_a_step_of_a_gpt_is_counted_as_torch_counts_it():
    model, x, y = small_gpt(), tokens(), tokens()
    with sdpa_kernel(SDPBackend.MATH):
        found = works(model, x, loss_fn=next_byte_loss, target=y)
        _, forward, backward = real_run(model, x, next_byte_loss, y)
    assert sum(f for f, _, _ in found) == forward
    assert sum(i + w for _, i, w in found) == backward


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_kept_bytes_are_those_of_a_real_gpt(dropout):
    model = gpt(2, 32, heads=4, sequence=16, vocabulary=64, dropout=dropout)
    x, y = tokens(), tokens()
    found = estimate(model, x, CPU, loss_fn=next_byte_loss, target=y)
    assert sum(found.activations) == real_run(model, x, next_byte_loss, y)[0] - both_of(x, y)


def test_kept_bytes_are_those_of_a_real_amoebanet():
    """Pairs travel through it, so most tensors between layers are kept by several."""
    torch.manual_seed(0)
    model, x, y = amoebanet(3, 16, classes=7, side=32), torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    found = estimate(model, x, CPU, loss_fn=F.cross_entropy, target=y)
    assert sum(found.activations) == real_run(model, x, F.cross_entropy, y)[0] - both_of(x, y)


def test_what_two_layers_keep_counts_once_but_where_a_stage_begins_between_them():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found = estimate(model, torch.empty(5, 4), CPU)
    size = 5 * 4 * 4
    assert found.activations == (0, size, 0)  # what the first one keeps is the batch
    assert found.shared == (size, 0, size)
    assert found.for_weight == (size, 0, 2 * size)  # gradients, and what the second product needs
    assert found.stage_costs((2, 1)).memory.activations == (size, size)
    assert found.output == (size, size, size)


def test_layers_may_write_to_what_they_get():
    in_place, fresh = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 4)) for inplace in (True, False)
    )
    found, expected = (estimate(model, torch.empty(5, 4), CPU) for model in (in_place, fresh))
    assert sum(found.activations) == sum(expected.activations)
    assert works(in_place, torch.empty(5, 4)) == works(fresh, torch.empty(5, 4))


def test_a_pass_through_counts_once():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, pair):
            return self.linear(pair[0]), pair[0]

    class Sum(nn.Module):
        def forward(self, pair):
            return pair[0] * pair[1]

    found = estimate(nn.Sequential(Beside(), Sum()), (torch.empty(5, 4), torch.empty(5, 4)), CPU)
    size = 5 * 4 * 4
    assert found.activations == (0, 0)  # of the product, only the factor that needs no gradient is kept: the input
    assert found.shared == (size, size)


def views():
    layers = (
        nn.Flatten(),
        nn.Linear(12, 16),
        nn.Sigmoid(),
        nn.Dropout(0.5).eval(),
        nn.LayerNorm(16),
        nn.Linear(16, 64),
    )
    return nn.Sequential(*layers), torch.randn(8, 3, 4), torch.randint(0, 64, (8,)), F.cross_entropy


def attention():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(nn.Embedding(64, 16), encoder, nn.Linear(16, 64)), tokens(), tokens(), next_byte_loss


@pytest.mark.parametrize("given", [views, attention])
def test_bytes_are_those_that_a_profile_counts(given):
    model, x, y, loss_fn = given()
    found = estimate(model, x, CPU, loss_fn=loss_fn, target=y)
    counted = profile(model, x, loss_fn=loss_fn, target=y, repeats=1, warm_up=0).layer_costs(len(x))
    assert found.for_weight == counted.for_weight
    assert found.shared == counted.shared
    assert found.output[:-1] == counted.output[:-1]
    assert found.activations == pytest.approx(counted.activations, rel=0.05)  # splitting costs attention a little


def test_what_the_weight_gradient_needs():
    block = nn.Sequential(OrderedDict(up=nn.Linear(4, 8), act=nn.GELU(), down=nn.Linear(8, 4)))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = block

        def forward(self, x):
            return self.inside(x)

    found = estimate(nn.Sequential(Block()), torch.empty(5, 4, requires_grad=True), CPU)
    x, hidden = 5 * 4 * 4, 5 * 8 * 4
    assert found.activations == (2 * hidden,)
    assert found.shared == (x,)
    # the input of each product, not that of the GELU, and the gradients that arrive at them; x is the batch
    assert found.for_weight == (hidden + hidden + x,)


def test_meta_and_real_cost_the_same_and_nothing_is_touched():
    model = nn.Sequential(*small_gpt(), nn.BatchNorm1d(16), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, state = tokens(), torch.get_rng_state()
    real = estimate(model, x, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert estimate(model.to("meta"), x.to("meta"), CPU) == real


def test_seconds_are_a_roofline():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    found = estimate(model, torch.empty(5, 8), PLAIN)
    assert found.forward == pytest.approx((1280e-9, 640e-9))
    assert found.backward_input == pytest.approx((0, 640e-9))
    slow = Hardware("slow", "", {"float32": 1e30}, ((1, 1.0),), 1e9, 1.0, 1e9, 1e-6)
    eager = estimate(nn.Sequential(nn.ReLU()), torch.empty(5, 8), slow)
    assert eager.forward == (2 * 5 * 8 * 4,)  # read and written


def test_a_compiled_layer_moves_less():
    slow = Hardware("slow", "", {"float32": 1e30}, ((1, 1.0),), 1e9, 1.0, 1e9, 1e-6)
    model = small_gpt()
    eager, compiled = (estimate(model, tokens(), slow, compiled=fuses) for fuses in (False, True))
    assert all(less < more for less, more in zip(compiled.seconds, eager.seconds, strict=True))


def test_bytes_of_parameters_and_of_training():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.requires_grad_(False)
    x = torch.empty(5, 4)
    assert estimate(model, x, CPU).parameters == (80, 80)
    assert estimate(model, x, CPU).trained == (20 * 12, 4 * 12)
    assert estimate(model, x, CPU, optimizer="sgd").trained == (20 * 4, 4 * 4)
    assert estimate(model, x, CPU, optimizer=16).trained == (20 * 20, 4 * 20)
    mixed = estimate(model, x, PLAIN, dtype=torch.bfloat16, master_weights=True)
    assert mixed.parameters == (40, 40)
    assert mixed.trained == (20 * 14, 4 * 14)
    assert mixed.output == (40, 40)


def test_transient_bytes_are_what_comes_and_goes():
    class Wide(nn.Module):
        def forward(self, x):
            return x.expand(10, *x.shape).clone().sum(0)

    (transient,) = estimate(nn.Sequential(Wide()), torch.empty(5, 4), CPU).transient
    assert transient == 10 * 5 * 4 * 4


def test_six_billion_parameters_take_no_memory():
    with torch.device("meta"):
        model = transformer_6b()
        sentences = torch.empty(4, 256, dtype=torch.long), torch.empty(4, 256, dtype=torch.long)
    found = estimate(model, sentences, load_hardware("v100-16g"))
    assert found.layers == 64 + 64 + 3
    assert sum(found.parameters) / 4 == pytest.approx(6.1e9, rel=0.01)
    assert len(set(found.seconds[1:65])) == 1
    assert found.rows == 4


@pytest.mark.parametrize("fused", [False, True])
def test_the_transformers_run_for_real(fused):
    model = transformer(2, 16, hidden=32, heads=2, vocabulary=11, fused=fused)
    assert model(torch.randint(11, (2, 5))).shape == (2, 5, 11)
    model = translation(2, 32, 2, dim=16, head_dim=4, vocabulary=11, fused=fused)
    logits = model((torch.randint(11, (2, 5)), torch.randint(11, (2, 7))))
    assert logits.shape == (2, 7, 11)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_errors_name_what_is_wrong():
    class Looks(nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    with pytest.raises(Exception) as raised:  # noqa: PT011 - torch's own
        estimate(nn.Sequential(OrderedDict(looks=Looks())), torch.empty(2, 3), CPU)
    assert "layer 'looks' (Looks)" in raised.value.__notes__[0]
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.empty(2, 3)
    with pytest.raises(ValueError, match="optimizer='lamb' is none of sgd"):
        estimate(model, x, CPU, optimizer="lamb")
    with pytest.raises(ValueError, match="optimizer=-1 must be 0"):
        estimate(model, x, CPU, optimizer=-1)
    with pytest.raises(ValueError, match="target is given without loss_fn"):
        estimate(model, x, CPU, target=x)
    with pytest.raises(ValueError, match="no peak for float16"):
        estimate(model, x, CPU, dtype=torch.float16)
    with pytest.raises(ValueError, match="rows of a micro-batch"):
        estimate(nn.Sequential(nn.ReLU()), torch.empty(()), CPU)
    with pytest.raises(TypeError, match="pipeline cuts a chain of layers"):
        estimate(nn.Linear(3, 3), x, CPU)
