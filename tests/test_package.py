"""What `import headrace` gives, and what it leaves alone until it is asked for."""

import importlib.metadata
import subprocess
import sys

import pytest

import headrace


def test_importing_headrace_imports_neither_torch_nor_numpy():
    program = (
        "import sys, headrace as hr\n"
        "hr.simulate(hr.schedule.build('1f1b', ranks=2, micro_batches=2), hr.Costs())\n"
        "hr.partition([1, 2, 3], 2)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_public_face():
    assert callable(headrace.simulate)
    assert callable(headrace.partition)
    assert headrace.schedule.check(headrace.schedule.build("gpipe", ranks=2, micro_batches=3)).peak_in_flight == (3, 3)
    assert headrace.__version__ == importlib.metadata.version("headrace")
    assert set(headrace.__all__) <= set(dir(headrace))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nope'"):
        headrace.nope  # noqa: B018
