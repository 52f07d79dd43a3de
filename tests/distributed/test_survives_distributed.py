"""Awkward batches, boundaries and uses that a pipeline over processes must survive."""

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.cases import Do, On
from torch import Tensor, nn

import headrace as hr
from distributed.crew import Crew, everywhere
from distributed.work import bits
from headrace.runtime.failure import PipelineFailure

CREWS = Callable[[int], Crew]
LINKS = ("shared_memory", "process_group")
both_links = pytest.mark.parametrize("links", LINKS)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target.expand_as(output))


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


# -- boundaries ------------------------------------------------------------------------------------------------------


def linear(dim: int = 6) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(dim)
        return nn.Linear(dim, dim)


@dataclass
class Chain:
    """A model of some stages, of one layer group each, and the batches of its steps."""

    stages: Sequence[Sequence[nn.Module]]
    batches: Sequence[tuple[Any, Any]]
    micro_batches: int = 4
    options: dict[str, Any] = field(default_factory=dict)


def run_chain(name: str, links: str) -> list[bytes]:
    """Losses, gradients and evaluations of a chain in this process, as bits."""
    torch.manual_seed(0)
    chain = CHAINS[name]()
    model = nn.Sequential(*(layer for layers in chain.stages for layer in layers))
    seen = []
    with hr.Pipeline(
        model,
        mse,
        ranks=len(chain.stages),
        micro_batches=chain.micro_batches,
        cut=[len(layers) for layers in chain.stages],
        links=links,
        **chain.options,
    ) as pipe:
        for x, y in chain.batches:
            seen.append(("loss", bits(pipe.step(x, y))))
            seen += [(name, bits(p.grad)) for name, p in pipe.named_parameters() if p.grad is not None]
            seen.append(("evaluated", bits(pipe.evaluate(x, y)["loss"])))
    return seen


def some_batches(*shapes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    return [(seeded(*shape, seed=i), seeded(shape[0], *[1] * (len(shape) - 1))) for i, shape in enumerate(shapes)]


def shapes_change_between_steps() -> Chain:
    shapes = [(7, 6), (5, 6), (4, 6), (9, 3, 6), (7, 6), (8, 50, 6), (4, 1, 6)]
    return Chain([[linear(), nn.Tanh()], [linear()], [linear()]], some_batches(*shapes))


def shapes_change_between_micro_batches() -> Chain:
    def shorten(x: Tensor) -> Tensor:
        return x[:, : 1 + int(x[0, 0, 0] > 0) + len(x)]

    return Chain([[linear(), Do(shorten)], [linear(), nn.Tanh()], [linear()]], some_batches((7, 6, 6), (9, 5, 6)))


def sizes_around_the_limits() -> Chain:
    widths = [1, 8000, 8191, 8192, 8193, 16384, 16385, 40_000, 1_000_000]
    return Chain([[Scale()], [Scale()], [Scale()]], some_batches(*((2, width) for width in widths)), micro_batches=2)


def many_small_messages() -> Chain:
    return Chain([[Scale()], [Scale()]], some_batches((300, 700)), 150, {"schedule": "gpipe"})


def many_large_messages() -> Chain:
    return Chain([[Scale()], [Scale()]], some_batches((120, 9000)), 120, {"schedule": "gpipe"})


def many_tensors() -> Chain:
    return Chain(
        [[linear(), Do(lambda x: [x + i for i in range(1500)])], [Do(lambda xs: sum(xs) / 1500), linear()]],
        some_batches((4, 6)),
        micro_batches=2,
    )


def long_strings() -> Chain:
    text = "é" * 300_000
    return Chain(
        [
            [linear(), Do(lambda x: {"x": x, "short": "k" * 600, "long": text})],
            [On("x", linear())],
            [Do(lambda v: v["x"] * len(v["short"]) / len(v["long"])), linear()],
        ],
        some_batches((4, 6)),
        micro_batches=2,
    )


def odd_tensors() -> Chain:
    return Chain(
        [[linear(), Do(lambda x: (x, odd()))], [Do(lambda v: v)], [Do(is_odd), linear()]], some_batches((4, 6))
    )


def no_gradient_wanted() -> Chain:
    """Some micro-batches of a boundary need a gradient, others not."""

    def cut_off(x: Tensor) -> Tensor:
        return x.detach() if len(x) == 1 else x

    return Chain([[linear(), Do(cut_off)], [nn.Tanh()], [linear()]], some_batches((7, 6), (7, 6)))


class Scale(nn.Module):
    """One number to learn, whatever the size."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def odd() -> dict[str, Tensor]:
    """Tensors of all kinds."""
    x = seeded(4, 6, 8)
    return {
        "scalar": torch.tensor(2.5),
        "int scalar": torch.tensor(7),
        "nothing": torch.empty(0),
        "nothing wide": torch.empty(3, 0, 5),
        "bfloat16": x.bfloat16(),
        "float16": x.half().transpose(0, 2),
        "float64": x.double()[:, 1::2],
        "bool": x > 0,
        "int64": torch.arange(2**40, 2**40 + 5),
        "uint8": torch.arange(0, 250, 10, dtype=torch.uint8),
        "complex": torch.complex(x, -x),
        "conjugate": torch.complex(x, -x).conj(),
        "negative": torch.complex(x, -x).conj().imag,
        "transposed": x.permute(2, 0, 1),
        "expanded": x[:, :1].expand(-1, 9, -1),
        "expanded scalar": torch.tensor(1.5).expand(4, 7),
        "channels last": seeded(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "mostly gaps": seeded(50, 1000)[:, :3],
        "part": seeded(100)[7:20],
        "windows": x.unfold(2, 4, 2),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def is_odd(value: Any) -> Tensor:
    """Check that tensors came as they were, layout included."""
    x, arrived = value
    for name, original in odd().items():
        came = arrived[name]
        conjugated = original.is_conj() or original.is_neg()
        assert (came.dtype, came.shape) == (original.dtype, original.shape), name
        assert conjugated or came.stride() == original.stride(), name
        assert bits(came.resolve_conj().resolve_neg()) == bits(original.resolve_conj().resolve_neg()), name
        assert conjugated or not came.numel() or came.data_ptr() % 64 == original.data_ptr() % 64, name
    return x


CHAINS = {
    make.__name__: make
    for make in (
        shapes_change_between_steps, shapes_change_between_micro_batches, sizes_around_the_limits, many_small_messages,
        many_large_messages, many_tensors, long_strings, odd_tensors, no_gradient_wanted,
    )
}  # fmt: skip


@both_links
@pytest.mark.parametrize("name", CHAINS)
def test_processes_carry_anything_that_threads_do(crew: CREWS, name: str, links: str) -> None:
    in_threads = run_chain(name, "auto")
    ranks = len(CHAINS[name]().stages)
    for of_rank, seen in enumerate(crew(ranks).run(run_chain, name, links)):
        assert seen
        assert [item for item in in_threads if item[0] in {what for what, _ in seen}] == seen, f"rank {of_rank}"


def evaluate_with_few_rows(links: str) -> list[Any]:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    with hr.Pipeline(model, mse, ranks=3, micro_batches=4, links=links) as pipe:
        pipe.step(seeded(8, 6), seeded(8, 1))
        seen = []
        for rows in (9, 2, 1):
            x, y = seeded(rows, 6, seed=rows), seeded(rows, 1)
            metrics = pipe.evaluate(x, y, {"largest": lambda output, _: output.max()})
            seen += [bits(metrics["loss"]), bits(metrics["largest"]), bits(pipe.predict(x))]
        seen.append(bits(pipe.step(seeded(8, 6), seeded(8, 1))))
    return seen


@both_links
def test_evaluate_and_predict_say_the_same_on_every_rank(crew: CREWS, links: str) -> None:
    assert everywhere(crew(3).run(evaluate_with_few_rows, links)) == evaluate_with_few_rows("auto")


def clip(links: str) -> tuple[list[bytes], dict[str, bytes], list[Any]]:
    model = nn.Sequential(linear(), nn.Tanh(), linear(), linear())
    with hr.Pipeline(model, mse, ranks=3, micro_batches=4, links=links) as pipe:
        norms, grads = [], {}
        for max_norm, norm_type in ((0.01, 2.0), (100.0, 2.0), (0.5, float("inf")), (0.2, 1.0)):
            pipe.step(seeded(8, 6), seeded(8, 1))
            norms.append(bits(pipe.clip_grad_norm_(max_norm, norm_type)))
            grads.update({f"{max_norm} {name}": bits(p.grad) for name, p in pipe.named_parameters()})
        spans = pipe.timeline().spans
        return norms, grads, sorted((span.rank, str(span.action)) for span in spans)


@both_links
def test_gradients_are_clipped_as_without_processes(crew: CREWS, links: str) -> None:
    norms, grads, spans = clip("auto")
    theirs: dict[str, bytes] = {}
    for their_norms, their_grads, their_spans in crew(3).run(clip, links):
        assert their_norms == norms
        assert their_spans == spans
        theirs |= their_grads
    assert theirs == grads


# -- mistakes --------------------------------------------------------------------------------------------------------


def make_mistake(name: str, links: str) -> None:
    """Whatever happens, a new pipeline works afterwards."""
    try:
        MISTAKES[name][0](links)
    finally:
        with small(links) as pipe:
            assert pipe.step(seeded(4, 6), seeded(4, 1)).isfinite()


def small(links: str = "auto", **more: Any) -> hr.Pipeline:
    arguments: dict[str, Any] = {"ranks": 2, "micro_batches": 2, "links": links}
    model = more.pop("model", None) or nn.Sequential(linear(), nn.Tanh(), linear())
    return hr.Pipeline(model, more.pop("loss_fn", mse), **{**arguments, **more})


def x_missing(links: str) -> None:
    with small(links) as pipe:
        pipe.step(None, seeded(4, 1))


def y_missing(links: str) -> None:
    with small(links) as pipe:
        pipe.step(seeded(4, 6), None)


def y_missing_to_evaluate(links: str) -> None:
    with small(links) as pipe:
        pipe.evaluate(seeded(4, 6))


def other_rows(links: str) -> None:
    with small(links) as pipe:
        pipe.step(*((seeded(5, 6), None) if rank() == 0 else (None, seeded(4, 1))))


def other_rows_in_evaluate(links: str) -> None:
    with small(links) as pipe:
        pipe.evaluate(*((seeded(5, 6), None) if rank() == 0 else (None, seeded(4, 1))))


def other_micro_batches(links: str) -> None:
    small(links, micro_batches=2 + rank())


def other_schedule(links: str) -> None:
    small(links, micro_batches=4, schedule=("1f1b", "gpipe")[rank()])


def other_cut(links: str) -> None:
    small(links, cut=((1, 2), (2, 1))[rank()])


def other_model(links: str) -> None:
    small(links, model=nn.Sequential(linear(6), nn.Tanh(), nn.Linear(6, 6 + rank())))


def other_ranks(links: str) -> None:
    small(links, ranks=1 + rank())


def other_links(_: str) -> None:
    small(("process_group", "shared_memory")[rank()])


def other_placement(links: str) -> None:
    rows = ("0F0,0B0\n1F0,1B0", "0F0,2F0,2B0,0B0\n1F0,1B0")
    small(links, micro_batches=1, schedule=hr.schedule.parse(rows[rank()]))


def wrong_ranks(links: str) -> None:
    small(links, ranks=3)


def wrong_links(_: str) -> None:
    small("pigeons")


def wrong_schedule(links: str) -> None:
    small(links, schedule="2f2b")


def wrong_on_rank_1(links: str) -> None:
    small(links, cut=(1, 2) if rank() == 0 else (1, 1))


def too_few_rows(links: str) -> None:
    with small(links) as pipe:
        pipe.step(seeded(1, 6), seeded(1, 1))


MISTAKES: dict[str, tuple[Callable[[str], None], Any, Any]] = {
    # what rank 0 and rank 1 raise, and words of it
    "x missing": (x_missing, (ValueError, "x is missing"), (PipelineFailure, "rank 0 failed.*x is missing")),
    "y missing": (y_missing, (PipelineFailure, "rank 1 failed.*y is missing"), (ValueError, "y is missing")),
    "y missing to evaluate": (
        y_missing_to_evaluate, (PipelineFailure, "rank 1 failed.*y is missing"), (ValueError, "y is missing"),
    ),
    "other rows": (other_rows, *[(PipelineFailure, "rank 1 failed at 1F0.*x has 5 rows, but y has 4")] * 2),
    "other rows in evaluate": (other_rows_in_evaluate, *[(ValueError, "x has 5 rows, but y has 4")] * 2),
    "other micro_batches": (
        other_micro_batches, *[(ValueError, "micro_batches differs.*rank 0 has 2, rank 1 has 3")] * 2,
    ),
    "other schedule": (other_schedule, *[(ValueError, "schedule differs.*rank 0 has 0F0.*rank 1 has 0F0")] * 2),
    "other cut": (other_cut, *[(ValueError, r"cut differs.*\(1, 2\), rank 1 has \(2, 1\).*broadcast")] * 2),
    "other model": (other_model, *[(ValueError, "model differs between processes")] * 2),
    "other ranks": (
        other_ranks, (ValueError, "ranks=1, but there are 2 processes"), (PipelineFailure, "rank 0 failed.*ranks=1"),
    ),
    "other links": (other_links, *[(ValueError, "links differs.*process_group, rank 1 has shared_memory")] * 2),
    "other placement": (other_placement, *[(ValueError, r"placement differs.*\(0, 1\),.*1 has .*\(0, 1, 0\)")] * 2),
    "wrong ranks": (wrong_ranks, *[(ValueError, "ranks=3, but there are 2 processes.*--nproc-per-node 3")] * 2),
    "wrong links": (wrong_links, *[(ValueError, "links='pigeons'")] * 2),
    "wrong schedule": (wrong_schedule, *[(ValueError, "schedule='2f2b' is unknown")] * 2),
    "wrong on rank 1": (
        wrong_on_rank_1, (PipelineFailure, r"rank 1 failed.*cut=\(1, 1\) does not fit"), (ValueError, "does not fit"),
    ),
    "too few rows": (too_few_rows, *[((ValueError, PipelineFailure), "x has 1 rows, too few|y has 1 rows")] * 2),
}  # fmt: skip


@both_links
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found_by_name_in_every_process(crew: CREWS, name: str, links: str) -> None:
    outcomes = crew(2).outcomes(make_mistake, name, links)
    for outcome, (kind, words) in zip(outcomes, MISTAKES[name][1:], strict=True):
        with pytest.raises(kind, match=f"(?s){words}"):
            raise outcome.error or AssertionError("it did not raise")
        assert isinstance(outcome.error, kind)
        assert outcome.seconds < 5


# -- what it leaves behind -------------------------------------------------------------------------------------------


def two_pipelines(links: str) -> list[bytes]:
    one, other = small(links), small(links, schedule="gpipe", micro_batches=3)
    seen = []
    for step in range(3):
        seen.append(bits(one.step(seeded(4, 6, seed=step), seeded(4, 1))))
        seen.append(bits(other.step(seeded(5, 6, seed=step), seeded(5, 1))))
    one.close()
    seen.append(bits(other.step(seeded(5, 6, seed=9), seeded(5, 1))))
    other.close()
    return seen


@both_links
def test_two_pipelines_in_the_same_processes(crew: CREWS, links: str) -> None:
    assert everywhere(crew(2).run(two_pipelines, links)) == two_pipelines("auto")


@dataclass(frozen=True)
class Held:
    """What this process holds of the system."""

    descriptors: int
    threads: int
    blocks: int
    objects: int
    kib: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return cls(
            len(list(Path("/proc/self/fd").iterdir())),
            int(status["Threads"]),
            Path("/proc/self/maps").read_text().count("memfd:headrace"),
            len(gc.get_objects()),
            int(status["VmRSS"].split()[0]),
        )


def wait_for_threads(others: set[threading.Thread]) -> None:
    """Until the switchboards that are not among `others` have ended, as they have nobody to serve any more."""
    for thread in set(threading.enumerate()) - others:
        if thread.name == "headrace switchboard":
            thread.join(10)


def many_steps(links: str, steps: int) -> tuple[Held, Held]:
    model = nn.Sequential(Scale(), Scale())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    small_x, large_x = seeded(4, 6), seeded(4, 6000)
    y = seeded(4, 1)

    def some(count: int) -> None:
        for step in range(count):
            pipe.step(small_x if step % 10 else large_x, y)
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                pipe.clip_grad_norm_(1.0)
                pipe.predict(small_x)
        for _ in range(count // 10):
            pipe.evaluate(large_x, y)

    with small(links, model=model) as pipe:
        some(steps // 5)
        before = Held.now()
        some(steps - steps // 5)
        return before, Held.now()


@pytest.mark.parametrize(
    ("links", "steps"),
    [
        ("shared_memory", 400),
        ("process_group", 400),
        pytest.param("shared_memory", 2000, marks=pytest.mark.slow),
        pytest.param("process_group", 2000, marks=pytest.mark.slow),
    ],
)
def test_2000_steps_leave_nothing_behind(crew: CREWS, links: str, steps: int) -> None:
    for before, after in crew(2).run(many_steps, links, steps, deadline=100):
        assert after.descriptors <= before.descriptors
        assert after.threads < before.threads + 3  # one that is joined may still count for a moment
        assert after.blocks <= before.blocks
        assert abs(after.objects - before.objects) < 100
        assert after.kib - before.kib < 2000


def many_pipelines(links: str) -> tuple[Held, Held]:
    def some() -> None:
        for how in ("closed", "dropped", "failed"):
            pipe = small(links)
            pipe.step(seeded(4, 6000)[:, :6], seeded(4, 1))
            if how == "failed":
                with pytest.raises((ValueError, PipelineFailure)):
                    pipe.step()
            if how == "closed":
                pipe.close()
            del pipe

    others = set(threading.enumerate())
    for _ in range(3):
        some()
    wait_for_threads(others)
    before = Held.now()
    for _ in range(10):
        some()
    wait_for_threads(others)
    return before, Held.now()


@both_links
def test_pipelines_that_are_gone_leave_nothing_behind(crew: CREWS, links: str) -> None:
    for before, after in crew(2).run(many_pipelines, links):
        assert after.descriptors == before.descriptors
        assert after.threads < before.threads + 3  # of thirty pipelines
        assert after.blocks == before.blocks
        assert abs(after.objects - before.objects) < 100


def idle(links: str) -> tuple[float, float]:
    """CPU seconds while nothing is to be done, and while this process waits for another."""

    def slow(x: Tensor) -> Tensor:
        time.sleep(0.3 * len(x))
        return x

    with small(links, model=nn.Sequential(linear(), Do(slow), linear(), linear())) as pipe:
        start = time.process_time()
        pipe.step(seeded(2, 6), seeded(2, 1))
        waiting = time.process_time() - start
        start = time.process_time()
        time.sleep(0.3)
        return time.process_time() - start, waiting


@both_links
def test_nothing_spins(crew: CREWS, links: str) -> None:
    crew(2).run(idle, links)  # the first backward of a process takes longer
    for doing_nothing, waiting in crew(2).run(idle, links):
        assert doing_nothing < 0.1
        assert waiting < 0.3


def threads_of(links: str) -> tuple[list[str], list[str]]:
    before = set(threading.enumerate())
    with small(links) as pipe:
        pipe.step(seeded(4, 6), seeded(4, 1))
        during = sorted(thread.name for thread in set(threading.enumerate()) - before)
    wait_for_threads(before)
    return during, sorted(thread.name for thread in set(threading.enumerate()) - before)


@both_links
def test_close_ends_all_threads(crew: CREWS, links: str) -> None:
    for during, after in crew(2).run(threads_of, links):
        assert "headrace alarm" in during
        assert after == []


def forked_child_exits(links: str) -> float:
    """A child that this process forks, such as a DataLoader's worker, ends without harm to the pipeline."""
    with small(links) as pipe:
        pipe.step(seeded(4, 6), seeded(4, 1))
        child = os.fork()
        if child == 0:
            pipe._transport._end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return float(pipe.step(seeded(4, 6), seeded(4, 1)))


@both_links
def test_a_forked_child_does_not_say_goodbye(crew: CREWS, links: str) -> None:
    everywhere(crew(2).run(forked_child_exits, links))
