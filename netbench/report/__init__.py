"""One page that says what a run found, whole in itself, to be opened from a file or an attachment."""

from netbench.report.document import html, write_report

__all__ = ["html", "write_report"]
