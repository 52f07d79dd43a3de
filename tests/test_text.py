"""The grid notation, ours and the one that PyTorch writes."""

import naive
import pytest
from hypothesis import given, settings
from torch.distributed.pipelining import schedules as theirs

from headrace.schedule import InvalidSchedule, build, check, parse


def rows_of(schedule):
    return [" ".join(map(str, row)) for row in schedule.rows]


def test_the_grid_is_a_picture():
    assert build("1f1b", ranks=2, micro_batches=2).to_text() == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"
    schedule = build("gpipe", ranks=2, micro_batches=2)
    assert schedule.to_text() == "0F0,0F1,,,0B1,0B0\n,1F0,1F1,1B1,1B0,\n"


@given(naive.schedules())
@settings(deadline=None)
def test_round_trip(schedule):
    text = schedule.to_text()
    assert parse(text, name="random") == schedule
    assert len({line.count(",") for line in text.splitlines()}) == 1


def test_a_schedule_that_deadlocks_is_written_too():
    text = "0B0,0F0\n1B0,1F0\n"
    assert parse(text).to_text() == text
    with pytest.raises(InvalidSchedule):
        check(parse(text))


def test_blanks_and_idle_cells_mean_nothing():
    assert parse(" 0F0 ,, 0B0,\r\n,,1F0,\t1B0\n\n") == parse("0F0,0B0\n1F0,1B0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1F0,1X0", r"row 2, column 2: '1X0' is not an action"),
        ("0F0,,0 B0\n", r"row 1, column 3: '0 B0' is not an action"),
        ("\n0F0,0B0", r"row 1 is empty: rank 0 would have nothing to do, so leave it out"),
        ("0F0,0B0\n,,\n1F0,1B0", r"row 2 is empty"),
        ("0F0;0B0", r"row 1, column 1"),
        ("0F0,0SEND_F0", r"row 1, column 2: '0SEND_F0'"),
        ("0F0,0REDUCE_GRAD0", r"row 1, column 2"),
        ("0F0\n0B0", r"row 2, column 1: rank 1 runs 0B0, but rank 0 already holds stage 0"),
        ("", r"there is no row: write one line per rank, such as 0F0,0B0"),
        (" \n\n", r"there is no row"),
        ("0F0,0B0\n2F0,2B0", r"stage 1 is missing: stages are numbered 0…2 and each needs a rank"),
        ("0F0,999999999999B0", r"stage 1 is missing"),  # found without counting that far
        ("0F0,0B0,0F999999999999", r"micro-batch 1 is missing: micro-batches are numbered 0…999999999999 and each"),
        ("0F0,0B0,0F" + "9" * 5000, r"row 1, column 3: '0F9{38}…' is not an action"),
    ],
)
def test_malformed_grids_are_refused_by_place(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize("text", [None, 5, b"0F0,0B0", ["0F0,0B0"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(TypeError, match="must be a string with one line per rank, such as 0F0,0B0; read a file first"):
        parse(text)


def write_as_torch_does(path, order):
    """The file that PyTorch's own writer makes of a compute-only order: it reads nothing but `pipeline_order`."""
    writer = object.__new__(theirs._PipelineScheduleRuntime)
    writer.pipeline_order = order
    writer._dump_csv(str(path), format="compute_only")
    return path.read_bytes().decode()


def order_of(kind, ranks, micro_batches):
    """The order that a schedule class of PyTorch generates, which needs two numbers and no process group."""
    schedule = object.__new__(kind)
    schedule._num_stages, schedule._n_microbatches = ranks, micro_batches
    return schedule._get_pipeline_order()


SIZES = [(2, 2), (2, 5), (3, 4), (4, 8), (5, 5)]


@pytest.mark.parametrize(("ranks", "micro_batches"), [*SIZES, (4, 2), (1, 3)])
def test_gpipe_as_torch_writes_it(tmp_path, ranks, micro_batches):
    order = order_of(theirs.ScheduleGPipe, ranks, micro_batches)
    text = write_as_torch_does(tmp_path / "gpipe.csv", order)
    assert "0F0,0" in text
    schedule = parse(text)
    check(schedule)
    assert schedule.rows == build("gpipe", ranks=ranks, micro_batches=micro_batches, drain="forward").rows


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_1f1b_as_torch_writes_it(tmp_path, ranks, micro_batches):
    schedule = parse(write_as_torch_does(tmp_path / "1f1b.csv", order_of(theirs.Schedule1F1B, ranks, micro_batches)))
    ours = build("1f1b", ranks=ranks, micro_batches=micro_batches)
    # The class writes a wrong row for its last rank (it begins with F1), which its own runtime never reads.
    assert schedule.rows[:-1] == ours.rows[:-1]


@pytest.mark.parametrize(("ranks", "micro_batches"), [*SIZES, (4, 2), (1, 3)])
def test_1f1b_with_idle_cells_as_torch_writes_it(tmp_path, ranks, micro_batches):
    order = {}
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, micro_batches)

        def stage(_op, rank=rank):
            return rank

        order[rank] = theirs._get_1f1b_rank_ops(1, ranks, warm_up, micro_batches - warm_up, warm_up, rank, stage, stage)
    text = write_as_torch_does(tmp_path / "1f1b.csv", order)
    assert ranks == 1 or ",," in text
    schedule = parse(text)
    check(schedule)
    assert schedule.rows == build("1f1b", ranks=ranks, micro_batches=micro_batches).rows


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_torch_reads_what_we_write(ranks, micro_batches):
    schedule = build("1f1b", ranks=ranks, micro_batches=micro_batches)
    for line, row in zip(schedule.to_text().splitlines(), schedule.rows, strict=True):
        read = [theirs._Action.from_str(cell) for cell in line.split(",")]
        assert [str(action) for action in read if action is not None] == list(map(str, row))
