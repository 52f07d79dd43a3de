"""Pages of one HTML file: the shell, what is drawn in it, and what is said of a run.

page.py      the shell, for any page               run.py        what a run's folder holds
charts.py    timelines → what scripts draw         said.py       what is said in tables and sentences
html.py      small pieces of HTML                  run_page.py   the report of a run
assets/      style and scripts, without which a page is only tables
"""

from headrace.report.page.run import Run, read
from headrace.report.page.run_page import REPORT, run_page, write_report

__all__ = ["REPORT", "Run", "read", "run_page", "write_report"]
