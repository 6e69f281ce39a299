"""The report: one HTML file about one or several runs, and the same atlas while a run goes on.

`contents` collects plain data from run folders, `page` turns it into a file; `terminal` shows a run while it goes on.
"""

from adawac.report.contents import Report, collect
from adawac.report.page import follow, render, watch_page, write_report
from adawac.report.suspects import Findings, Suspect, examine_samples, find_suspects

__all__ = [
    "Findings",
    "Report",
    "Suspect",
    "collect",
    "examine_samples",
    "find_suspects",
    "follow",
    "render",
    "watch_page",
    "write_report",
]
