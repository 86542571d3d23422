"""The report of a run, for people as text, Markdown and a web page, and for programs as JSON."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports
from kiln.variants.varying_keys import config_labels

if TYPE_CHECKING:
    from kiln.report.junit import as_junit
    from kiln.report.package_summary import built_packages_text
    from kiln.report.result_table import run_table_markdown, run_table_text
    from kiln.report.web_pages import INDEX, page_name, run_index_html, run_page_html

__all__ = [
    "INDEX",
    "as_junit",
    "built_packages_text",
    "config_labels",
    "page_name",
    "run_index_html",
    "run_page_html",
    "run_table_markdown",
    "run_table_text",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "junit": "as_junit",
        "package_summary": "built_packages_text",
        "web_pages": "INDEX page_name run_index_html run_page_html",
        "result_table": "run_table_markdown run_table_text",
    },
)
