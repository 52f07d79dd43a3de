"""What holds for all tests."""

import os

# as wide as in a pipe, whatever terminal the tests, or the processes that share them, were started from
os.environ.setdefault("COLUMNS", "120")
