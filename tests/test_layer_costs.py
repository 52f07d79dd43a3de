"""From layers to stages, and from measured sizes to others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.layer_costs import LayerCosts, at_rows


def costs(rows: int = 4, scale: float = 1, fixed: float = 0) -> LayerCosts:
    def sized(*numbers: float) -> tuple[float, ...]:
        return tuple(fixed + scale * rows * number for number in numbers)

    return LayerCosts(
        names=("a", "b", "c"),
        rows=rows,
        forward=sized(1, 2, 3),
        backward_input=sized(2, 2, 2),
        backward_weight=sized(1, 0, 5),
        parameters=(10, 0, 30),
        trained=(30, 0, 90),
        activations=sized(7, 8, 9),
        for_weight=sized(1, 2, 3),
        output=sized(4, 5, 0),
        transient=sized(0, 1, 2),
        shared=sized(5, 3, 1),
        spread=sized(2, 1, 3),
    )


def test_stages_are_sums_of_their_layers() -> None:
    stages = costs().stage_costs((2, 1))
    assert stages.forward == (12, 12)
    assert stages.backward_input == (16, 8)
    assert stages.backward_weight == (4, 20)
    assert stages.message == (20,)
    assert stages.memory.activations == (60, 36 + 4)
    assert stages.memory.shared == (0, 4)
    assert stages.memory.for_weight == (12, 12)
    assert stages.memory.stage_input == (0, 20)
    assert stages.memory.parameters == (40, 120)
    assert costs().seconds == (16, 16, 40)


def test_layers_that_are_recomputed_one_by_one() -> None:
    """Each keeps its input, and its forward runs once more in the backward; the largest comes back at a time."""
    stages = costs().stage_costs((2, 1), (0, 1))
    plain = costs().stage_costs((2, 1))
    assert stages.forward == plain.forward
    assert stages.backward_weight == plain.backward_weight
    assert stages.backward_input == (16 + 12, 8)
    assert stages.backward == (20 + 12, 28)
    assert stages.memory.activations == (0 + 16, 36 + 4)  # what the dropped one shared with the next counts there
    assert stages.memory.shared == (0, 0)
    assert stages.memory.working == (28 + 16, 8)
    assert plain.memory.working == (24, 8)
    assert stages.memory.for_weight == plain.memory.for_weight
    assert costs().stage_costs((3,), (1, 2)).memory.working == (16 + 24,)
    assert costs().recomputing(()) == costs()


def test_layers_are_found_by_their_names() -> None:
    assert costs().numbers(("c", "a")) == (0, 2)
    with pytest.raises(ValueError, match="'d' is no layer: there are a, b, c"):
        costs().numbers(("a", "d"))


def test_what_layers_share_counts_again_where_a_stage_begins_but_not_with_the_batch() -> None:
    three, one = costs().stage_costs((1, 1, 1)).memory, costs().stage_costs((3,)).memory
    assert three.activations == (28, 32 + 12, 36 + 4)
    assert three.shared == (0, 12, 4)
    assert one.activations == (28 + 32 + 36,)
    assert one.shared == (0,)
    assert [costs().kept(layer, start) for layer, start in ((0, 0), (1, 0), (1, 1), (2, 1))] == [28, 32, 44, 36]
    without = costs().as_data() | {"shared": ()}
    assert LayerCosts(**without).shared == (0, 0, 0)


@pytest.mark.parametrize("cut", [(3,), (1, 1, 1), (2, 0, 1), (2, 2), ()])
def test_a_cut_that_does_not_fit_is_refused(cut: tuple[int, ...]) -> None:
    if sum(cut) == 3 and 0 not in cut:
        assert costs().stage_costs(cut).per_stage(len(cut))
        return
    with pytest.raises(ValueError, match=r"must give every stage a layer or more, 3 layers in all"):
        costs().stage_costs(cut)


@given(st.integers(1, 100), st.floats(0, 10), st.floats(0.1, 10))
def test_what_is_linear_in_rows_is_found_exactly_from_two_sizes(rows: int, fixed: float, scale: float) -> None:
    measured = [costs(2, scale, fixed), costs(8, scale, fixed)]
    found, true = at_rows(measured, rows), costs(rows, scale, fixed)
    assert found.rows == rows
    seconds, held = ("forward", "backward_input", "backward_weight"), ("activations", "for_weight", "output")
    for name in (*seconds, *held, "transient", "shared", "spread"):
        assert getattr(found, name) == pytest.approx(getattr(true, name))
    assert found.parameters == true.parameters
    assert found.trained == true.trained


def test_measured_sizes_are_taken_as_they_are_and_lines_are_between_neighbours() -> None:
    measured = [costs(1, fixed=5), costs(2, fixed=0), costs(4, fixed=1)]
    for size in measured:
        assert at_rows(measured, size.rows) == size
    assert at_rows(measured, 3).forward[0] == pytest.approx((2 + 5) / 2)
    assert at_rows(measured[:1], 2).forward[0] == pytest.approx(2 * 6)


def test_nothing_becomes_negative_beyond_what_was_measured() -> None:
    steep = [costs(4), costs(8, scale=3)]
    assert min(at_rows(steep, 1).forward) >= 0


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="forward has 2 numbers for 3 layers"):
        LayerCosts(**{**costs().as_data(), "forward": (1, 2)})
    with pytest.raises(ValueError, match="transient has -1, which must be finite and not negative"):
        LayerCosts(**{**costs().as_data(), "transient": (1, 2, -1)})
    with pytest.raises(ValueError, match="measured is empty"):
        at_rows([], 1)
    with pytest.raises(ValueError, match="different layers"):
        at_rows([costs(), LayerCosts(**{**costs(8).as_data(), "names": ("x", "y", "z")})], 1)


def test_a_segment_has_its_share_of_what_grows_with_the_sequence() -> None:
    whole, piece = costs(), costs().of_segment(2)
    assert piece.forward == tuple(x / 2 for x in whole.forward)
    assert piece.activations == tuple(x / 2 for x in whole.activations)
    assert piece.parameters == whole.parameters
    assert whole.of_segment(1) == whole
