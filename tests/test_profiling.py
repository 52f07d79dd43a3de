import random
import time
from dataclasses import FrozenInstanceError
from itertools import repeat

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from headrace.analytic import load_hardware
from headrace.analytic.estimate import estimate
from headrace.models.gpt import gpt, next_byte_loss
from headrace.partition import partition
from headrace.profiling import LayerProfile, profile


@pytest.fixture(autouse=True)
def _one_thread():
    """Tensors this small gain nothing from threads, and wait long for them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Call(nn.Module):
    """A layer made of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, value):
        return self.function(value)


def snapshot(model):
    """All that a profile must leave alone, as copies, and the objects that must still be the same ones."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    needs = [p.requires_grad for p in model.parameters()]
    tensors = (*model.parameters(), *model.buffers())
    objects = [id(tensor) for tensor in tensors] + [id(p.grad) for p in model.parameters()]
    generators = [torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].astype(np.int64)), random.getstate()]
    return state, grads, modes, needs, objects, generators


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.numpy().tobytes() == b.numpy().tobytes()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


class Awkward(nn.Module):
    """Writes to a buffer behind autograd's back, replaces another, leaves training and draws from every generator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("behind", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, x):
        self.eval()
        self.behind.data.add_(1)
        self.replaced = self.replaced + 1
        return x * random.random() * np.random.rand() + torch.rand(())


def changing_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(0.5),
        Awkward(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    )
    model[1].weight.grad = torch.randn(6, 6)
    model[6][0].bias.requires_grad_(False)
    model[3].eval()
    return model


# --- it leaves everything as it was --------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_model_gradients_modes_and_generators_are_left_as_they_were(fails):
    model = changing_model()
    if fails:
        model.append(Call(lambda x: x.view(7, 7)))
    before = snapshot(model)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    if fails:
        with pytest.raises(RuntimeError, match="shape"):
            profile(model, x)
    else:
        profile(model, x, loss_fn=lambda y, _: y.sum())
    assert_same(before, snapshot(model))


def test_an_embedding_that_rescales_its_weights_gets_them_back():
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.1))
    before = snapshot(model)
    profile(model, torch.tensor([[0, 1]]))
    assert_same(before, snapshot(model))


def test_a_loss_module_is_left_as_it_was_and_its_own_parameters_count():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.big = nn.Linear(6, 4000)

        def forward(self, y, target):
            return self.big(self.norm(y)).sum() - target.sum()

    loss = Loss()
    x = torch.randn(5, 6)
    before = snapshot(loss)
    result = profile(nn.Sequential(nn.Identity()), x, loss_fn=loss, target=torch.ones(5))
    assert_same(before, snapshot(loss))
    assert result.loss_backward > 0  # the model's output needs no gradient, but the loss's parameters do


def test_sample_and_target_are_never_written_to():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    kept = x.clone(), y.clone()
    seen = []
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    profile(model, x, loss_fn=lambda out, target: (out - target.neg_()).sum(), target=y)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])
    assert len(seen) == rounds(5, 2)
    assert all(torch.equal(s, x) for s in seen)  # each repeat has a sample of its own


def test_hooks_on_accumulation_do_not_fire_and_forward_hooks_stay():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    accumulated, ran = [], []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(accumulated.append)
    model[1].register_forward_hook(lambda *_: ran.append(1))
    profile(model, torch.randn(2, 4), repeats=2, warm_up=1)
    assert not accumulated
    assert len(ran) == rounds(2, 1)
    assert len(model[1]._forward_hooks) == 1


def test_a_graph_that_the_user_still_holds_stays_valid():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    loss = model(torch.randn(5, 6)).sum()
    profile(model, torch.randn(5, 6))
    loss.backward()  # would raise if a weight had been written to, even with what it had
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_measures_backwards_even_where_the_caller_switched_gradients_off(mode):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with mode():
        result = profile(model, torch.randn(2, 4))
        assert not torch.is_grad_enabled()
    assert all(seconds > 0 for seconds in result.backward)


# --- it measures the true thing ------------------------------------------------------------------------------------


def rounds(repeats, warm_up):
    """With a whole and with a split backward in turn, and one in which bytes are counted."""
    return 2 * (repeats + warm_up) + 1


def test_each_layer_runs_on_what_the_layer_before_it_made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x = torch.randn(3, 4)
    expected, inputs = x, []
    for layer in model:
        inputs.append(expected.detach())
        expected = layer(expected)
    seen = []
    for layer in model:
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    profile(model, x, repeats=2, warm_up=0)
    assert len(seen) == 3 * rounds(2, 0)  # round after round, not layer after layer
    for got, true in zip(seen, inputs * rounds(2, 0), strict=True):
        assert torch.equal(got, true)
    assert [s.requires_grad for s in seen] == [False, True, True] * rounds(2, 0)


def test_only_one_graph_is_alive_at_a_time():
    alive, most = set(), []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, owner):
            alive.add(owner)
            most.append(len(alive))
            ctx.owner = owner
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            alive.discard(ctx.owner)
            return grad, None

    layers = [Call(lambda x, i=i: Saves.apply(x, i)) for i in range(4)]
    profile(nn.Sequential(nn.Linear(2, 2), *layers), torch.randn(2, 2), repeats=1, warm_up=1)
    assert most == [1] * 4 * rounds(1, 1)


def test_a_heavy_layer_costs_more_than_a_light_one():
    model = nn.Sequential(nn.Linear(256, 16), nn.Linear(16, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 8))
    result = profile(model, torch.randn(64, 256))
    heavy, light = 2, (0, 3)
    for part in (result.forward, result.backward, result.costs):
        assert all(part[heavy] > 5 * part[layer] for layer in light)
    assert partition(result.costs, 3) == (2, 1, 1)
    assert result.names == ("0", "1", "2", "3")
    assert result.parameters == (256 * 16 + 16, 16 * 2048 + 2048, 2048 * 2048 + 2048, 2048 * 8 + 8)


def sleeper(forward, backward=0.0):
    """A layer that takes `forward` seconds, the same each time or one of several after the other."""
    forwards = repeat(forward) if isinstance(forward, float) else iter(forward)

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            time.sleep(next(forwards))
            return x.clone()

        @staticmethod
        def backward(_ctx, grad):
            time.sleep(backward)
            return grad

    return Call(Sleep.apply)


def test_forward_and_backward_are_told_apart_and_the_loss_is_the_last_layers():
    model = nn.Sequential(nn.Linear(2, 2), sleeper(0.002, 0.06))
    loss = sleeper(0.06, 0.002)
    result = profile(model, torch.randn(2, 2), loss_fn=lambda y, _: loss(y).sum(), repeats=3, warm_up=0)
    assert 0.002 <= result.forward[1] < 0.06 <= result.backward[1]
    assert 0.002 <= result.loss_backward < 0.06 <= result.loss_forward
    whole_loss = result.loss_forward + result.loss_backward
    assert result.costs[1] == pytest.approx(result.forward[1] + result.backward[1] + whole_loss)
    assert result.costs[0] == pytest.approx(result.forward[0] + result.backward[0])


def test_warm_up_is_discarded_and_the_median_ignores_a_disturbance():
    with_split_ones = [0.3, 0.0, 0.01, 0.0, 0.3, 0.0, 0.01, 0.0, 0.01, 0.0, 0.0]
    result = profile(nn.Sequential(sleeper(with_split_ones)), torch.randn(2), repeats=4, warm_up=1)
    assert 0.01 <= result.forward[0] < 0.1
    assert 0.05 < result.spread[0] < 0.2  # of 0.01, 0.01, 0.01 and 0.3 the third quartile is 0.0825


def test_one_repeat_has_no_spread():
    assert profile(nn.Sequential(nn.Linear(2, 2)), torch.randn(2, 2), repeats=1, warm_up=0).spread == (0.0,)


def test_the_mode_of_the_model_and_autocast_are_honoured():
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), Call(lambda x: seen.append((x.dtype, model.training)) or x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        profile(model.eval(), torch.randn(2, 4), repeats=1, warm_up=0)
    profile(model.train(), torch.randn(2, 4), repeats=1, warm_up=0)
    assert seen == [(torch.bfloat16, False)] * rounds(1, 0) + [(torch.float32, True)] * rounds(1, 0)


def test_autocast_does_not_go_on_with_casts_of_weights_that_were_put_back():
    class Doubles(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(2)
            return F.linear(x, self.weight)

    model, x = nn.Sequential(Doubles(4, 4)), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        profile(model, x)
        once = F.linear(x, model[0].weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(F.linear(x, model[0].weight), once)


# --- whatever layers there are -------------------------------------------------------------------------------------


def test_layers_of_every_kind():
    model = nn.Sequential(
        nn.Embedding(10, 6),  # ints in, no gradient for them
        Call(lambda x: {"x": x, "mask": x > 0, "n": 3, "nothing": None}),
        Call(lambda d: (d["x"].transpose(0, 1), d["mask"].expand_as(d["x"]), d["n"])),  # views
        Call(lambda t: (t[0].relu_(), *t[1:])),  # in place on what it was handed, through a view
        Call(lambda t: [t[0], t[0].detach(), t[2]]),
        Call(lambda t: t[0][:, -1:].expand(-1, 4, -1)),
        nn.Linear(6, 6),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Linear(6, 3), nn.Identity()),
        Call(torch.argmax),  # ends the gradient
        Call(lambda i: i + 1),
    )
    model[6].requires_grad_(False)
    result = profile(model, torch.randint(10, (2, 5)))
    assert result.names == ("0", "1", "2", "3", "4", "5", "6", "7", "8.0", "8.1", "9", "10")
    assert [seconds > 0 for seconds in result.backward] == [True] * 10 + [False] * 2
    assert all(seconds > 0 for seconds in result.forward)
    assert result.parameters == (60, 0, 0, 0, 0, 0, 42, 0, 21, 0, 0, 0)


def test_a_nested_sample_with_things_that_are_not_tensors():
    sample = {"x": torch.randn(2, 3), "mask": torch.tensor([True, False]), "scale": 2, "none": None}
    seen = []
    model = nn.Sequential(Call(lambda d: seen.append(d) or d["x"] * d["scale"]), nn.Linear(3, 3))
    result = profile(model, sample, repeats=1, warm_up=0)
    assert seen[0]["none"] is None
    assert torch.equal(seen[0]["mask"], sample["mask"])
    assert result.backward[0] == 0.0  # nothing before it, and no parameters


def test_a_frozen_start_has_no_backward():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[:2].requires_grad_(False)
    assert [seconds > 0 for seconds in profile(model, torch.randn(2, 3)).backward] == [False, False, True]


def test_a_layer_that_is_differentiable_only_in_what_is_not_its_own_has_no_backward():
    outside = torch.ones(3, requires_grad=True)
    result = profile(nn.Sequential(Call(lambda x: x * outside), nn.Tanh()), torch.randn(2, 3))
    assert [seconds > 0 for seconds in result.backward] == [False, True]
    assert outside.grad is None


def test_a_sample_that_needs_a_gradient_gets_one_computed_but_not_stored():
    x = torch.randn(2, 3, requires_grad=True)
    assert profile(nn.Sequential(nn.Tanh()), x).backward[0] > 0
    assert x.grad is None


def test_a_layer_that_occurs_twice_is_measured_twice():
    layer = nn.Linear(3, 3)
    assert profile(nn.Sequential(layer, layer), torch.randn(2, 3)).names == ("0", "1")


def test_tied_weights_count_once_and_buffers_count_measured_or_described():
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)]
    layers[2].weight = layers[0].weight
    model, x = nn.Sequential(*layers), torch.randn(2, 4)
    measured = profile(model, x).layer_costs(2)
    described = estimate(model, x, load_hardware("cpu"), optimizer="adam")
    assert measured.parameters == described.parameters == (80, 32 + 40, 16)
    assert measured.trained == described.trained == (240, 96, 48)


def test_an_error_in_a_layer_says_which():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3))
    with pytest.raises(RuntimeError) as caught:
        profile(model, torch.randn(2, 4))
    assert caught.value.__notes__ == ["raised while layer '1' (Linear) was profiled"]


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (nn.Linear(2, 2), {}, TypeError, "model is a Linear"),
        (nn.Sequential(), {}, ValueError, "empty nn.Sequential"),
        (nn.Sequential(nn.LazyLinear(2)), {}, ValueError, r"'weight' of layer '0' \(LazyLinear\) is not yet init"),
        (nn.Sequential(nn.Linear(2, 2, device="meta")), {}, ValueError, "'weight' of layer '0' .* on the meta device"),
        (nn.Sequential(Call(lambda _: object())), {}, TypeError, "output of layer '0' .* contains a object"),
        (nn.Sequential(nn.Linear(2, 2)), {"repeats": 0}, ValueError, "repeats=0"),
        (nn.Sequential(nn.Linear(2, 2)), {"warm_up": -1}, ValueError, "warm_up=-1"),
        (nn.Sequential(nn.Linear(2, 2)), {"target": 1}, ValueError, "target is given without loss_fn"),
    ],
)
def test_misuse_is_refused_by_name(model, options, error, message):
    with pytest.raises(error, match=message):
        profile(model, torch.randn(2, 2), **options)


# --- what it says about a cut --------------------------------------------------------------------------------------

MEASURED = LayerProfile(
    names=("a", "b", "c", "d"),
    forward=(1.0, 2.0, 3.0, 4.0),
    backward=(2.0, 4.0, 6.0, 8.0),
    spread=(0.0, 0.0, 0.0, 0.0),
    parameters=(10, 0, 10, 10),
    loss_forward=0.5,
    loss_backward=1.5,
)


def test_costs_for_partition_are_forward_and_backward_with_the_loss_last():
    assert MEASURED.costs == (3.0, 6.0, 9.0, 14.0)
    assert partition(MEASURED.costs, 2) == (3, 1)


def test_costs_of_stages_are_sums_of_their_layers():
    costs = MEASURED.stage_costs((2, 1, 1))
    assert costs.forward == (3.0, 3.0, 4.5)
    assert costs.backward_input == (1.0 + 4.0, 3.0, 4.0 + 1.5)  # b has no parameters: all for its input
    assert costs.backward_weight == (1.0, 3.0, 4.0)
    assert costs.per_stage(3)["B"] == [6.0, 6.0, 9.5]


@pytest.mark.parametrize("cut", [(2, 1), (2, 3), (4, 0), (5, -1), ()])
def test_a_cut_that_does_not_fit_the_layers_is_refused(cut):
    with pytest.raises(ValueError, match=r"every stage a layer or more, 4 layers in all"):
        MEASURED.stage_costs(cut)


def test_a_profile_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        MEASURED.forward = ()


def test_the_two_halves_of_a_backward_are_measured_apart():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.ReLU())
    model[0].weight.requires_grad_(False)
    result = profile(model, torch.randn(2048, 64))
    assert len(result.backward_input) == len(result.backward_weight) == 3
    assert result.backward_weight[1] > 10 * result.backward_weight[2]
    costs = result.stage_costs((1, 1, 1))
    assert costs.per_stage(3)["B"] == list(result.backward)  # halves may take longer together
    assert (costs.backward_input, costs.backward_weight) == (result.backward_input, result.backward_weight)


def test_bytes_of_layers_are_counted():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.Tanh())
    x = torch.randn(16, 8)
    floats = 4
    result = profile(model, x, loss_fn=F.mse_loss, target=torch.zeros(16, 4)).layer_costs(rows=16)
    assert result.names == ("0", "1", "2", "3")
    assert result.output == (16 * 32 * floats, 16 * 32 * floats, 16 * 4 * floats, 0)
    # a Linear keeps its input, ReLU and Tanh their outputs: that of ReLU is what the next Linear keeps
    assert result.activations == (0, 16 * 32 * floats, 0, 16 * 4 * floats)
    assert result.shared == (16 * 8 * floats, 0, 16 * 32 * floats, 0)  # that of the first layer is the batch
    assert result.for_weight == (16 * 32 * floats, 0, 16 * (32 + 4) * floats, 0)
    assert result.parameters == ((8 * 32 + 32) * floats, 0, (32 * 4 + 4) * floats, 0)
    assert result.trained == tuple(3 * size for size in result.parameters)


def test_what_a_layer_hands_on_as_it_came_is_still_kept_by_the_one_that_made_it():
    size = 16 * 32 * 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Unflatten(1, (4, 8)), nn.Flatten())
    model += nn.Sequential(nn.Dropout(0.5).eval(), nn.Linear(32, 32), nn.Sigmoid())
    x, y = torch.randn(16, 4, 8), torch.zeros(16, 32)
    costs = profile(model, x, loss_fn=F.mse_loss, target=y, repeats=1, warm_up=0).layer_costs(rows=16)
    assert costs.activations == (0, 0, size, 0, 0, 0, 0, size)  # of ReLU and Sigmoid; the loss keeps that, too
    assert costs.shared == (size, size, 0, size, size, size, size, 0)
    for end in (3, 4, 5, 6):
        assert sum(costs.stage_costs((end, 8 - end)).memory.activations) == 3 * size


def test_bytes_are_those_that_a_whole_forward_keeps():
    model = gpt(layers=2, dim=16, heads=2, sequence=12)
    x, y = torch.randint(0, 256, (3, 12)), torch.randint(0, 256, (3, 12))
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage()._cdata] = (tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return tensor

    own = {p.untyped_storage()._cdata for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = next_byte_loss(model(x), y)
    counted = sum(size for address, (_, size) in kept.items() if address not in own)
    costs = profile(model, x, loss_fn=next_byte_loss, target=y).layer_costs(rows=3)
    assert sum(costs.activations) == pytest.approx(counted, rel=0.05)
    assert loss.requires_grad


def test_a_profile_without_bytes_has_no_layer_costs():
    with pytest.raises(ValueError, match=r"this profile has no bytes: take it with hr.profile"):
        MEASURED.layer_costs(rows=1)
