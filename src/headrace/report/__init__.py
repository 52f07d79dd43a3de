"""Reports: what people read of a timeline. Needs rich, and neither torch nor numpy."""

from headrace.report.gantt import gantt
from headrace.report.tables import in_words, ranks_table, table

__all__ = ["gantt", "in_words", "ranks_table", "table"]
