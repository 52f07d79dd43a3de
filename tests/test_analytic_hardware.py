"""The roofline, the curve of efficiency, and files that describe a device."""

from dataclasses import replace

import pytest

from headrace import Costs
from headrace.analytic import Hardware, hardware_names, load_hardware

DEVICE = Hardware(
    "device", "made up", {"float32": 1e12, "bfloat16": 4e12}, ((1e6, 0.1), (1e8, 0.5)), 1e9, 1e10, 1e8, 1e-5
)
FILE = """
name = "mine"
source = "measured"
memory = 8e9
bandwidth = 1e11
link_bandwidth = 1e9
link_latency = 1e-5
efficiency = [[1e6, 0.1], [1e9, 0.5]]
[peak]
float32 = 1e12
"""


def test_seconds_are_those_of_the_dearer_of_arithmetic_and_memory():
    assert DEVICE.seconds(1e12, 0) == pytest.approx(2)
    assert DEVICE.seconds(1e12, 1e10) == pytest.approx(2)
    assert DEVICE.seconds(1e12, 3e10) == pytest.approx(3)
    assert DEVICE.seconds(1e12, 0, "bfloat16") == pytest.approx(0.5)
    assert DEVICE.seconds(0, 1e10) == pytest.approx(1)
    assert DEVICE.seconds(0, 0) == 0


def test_the_efficiency_is_straight_over_the_logarithm_and_level_beyond():
    assert [DEVICE.share(flops) for flops in (1, 1e6, 1e7, 1e8, 1e15)] == pytest.approx([0.1, 0.1, 0.3, 0.5, 0.5])


def test_messages_take_the_link():
    costs = DEVICE.linked(Costs(message=1e8))
    assert (costs.transfer, costs.bandwidth, costs.one_at_a_time) == (1e-5, 1e8, True)
    assert costs.sending(2) == [1]


@pytest.mark.parametrize("name", hardware_names())
def test_what_is_shipped_can_be_read(name):
    device = load_hardware(name)
    assert device.source
    assert device.seconds(1e12, 1e9) > 0


def test_the_shipped_devices_are_those_of_the_papers_and_today():
    assert {"v100-16g", "v100-32g", "p100-pcie", "p40", "a100-40g", "a100-80g", "h100", "cpu"} < set(hardware_names())
    assert load_hardware("a100-80g").peak["bfloat16"] == 312e12
    assert load_hardware("tpu-v2").memory == 8e9


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    assert load_hardware(path) == load_hardware(str(path))
    assert load_hardware(path).peak == {"float32": 1e12}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', 'name = "mine"\nflops = 3', "unknown flops; a device has"),
        ('name = "mine"', "name = 3", "name=3 must be text"),
        ("memory = 8e9", "", "memory missing"),
        ("memory = 8e9", "memory = 0", "memory=0 must be finite and more than 0"),
        ("memory = 8e9", 'memory = "8 GB"', "memory='8 GB' must be a number"),
        ("float32 = 1e12", "float8 = 1e12", "peak has unknown float8"),
        ("float32 = 1e12", "", "peak={} must give FLOPs per second"),
        ("[1e9, 0.5]", "[1e5, 0.5]", "must have rising FLOPs"),
        ("[1e9, 0.5]", "[1e9, 50]", r"shares in \(0, 1\]"),
        ("[1e9, 0.5]", "[1e9]", "must be points"),
        ("bandwidth = 1e11", "bandwidth = ", "mine.toml"),
    ],
)
def test_a_file_is_read_strictly(tmp_path, old, new, message):
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        load_hardware(path)
    assert "mine.toml" in str(raised.value)


def test_names_and_paths_that_are_none():
    with pytest.raises(ValueError, match="hardware 'a100' is none of a100-40g"):
        load_hardware("a100")
    with pytest.raises(ValueError, match=r"hardware nowhere\.toml: No such file"):
        load_hardware("nowhere.toml")


def test_impossible_devices_are_refused():
    with pytest.raises(ValueError, match="bandwidth=-1 must be"):
        replace(DEVICE, bandwidth=-1)
    with pytest.raises(ValueError, match="efficiency has no point"):
        replace(DEVICE, efficiency=())
