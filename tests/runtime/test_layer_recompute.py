"""Layers that recompute one by one: the same bits as without, for less memory."""

import pytest
import headrace as hr
from headrace.runtime.model.warn import BatchStatisticsWarning
from runtime.cases import CASES, make
from runtime.parity import assert_parity, cut_of, with_rows_for

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")

@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bitwise_the_unsplit_model(name: str, schedule: str) -> None:
    case = make(name)
    if not case.threads:
        pytest.skip("refused when ranks are threads")
    case.options["recompute"] = "layer"
    order = hr.schedule.build(schedule, ranks=2, micro_batches=3)
    assert_parity(case, make(name), order, cut_of(case, 2))
