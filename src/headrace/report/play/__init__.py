"""`headrace play`: one page in which controls move a pipeline, offline, in any browser."""

from headrace.report.play.page import play_page

__all__ = ["play_page"]
