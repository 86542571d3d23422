"""The report of a run, for people as text, Markdown and a web page, and for programs as JSON."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports
from kiln.variants.varying_keys import config_labels

if TYPE_CHECKING:
    from kiln.report.junit import as_junit
    from kiln.report.package_summary import result_text
    from kiln.report.page import INDEX, as_html, index_as_html, page_name
    from kiln.report.result_table import as_markdown, matrix_text

__all__ = [
    "INDEX",
    "as_html",
    "as_junit",
    "as_markdown",
    "config_labels",
    "index_as_html",
    "matrix_text",
    "page_name",
    "result_text",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "junit": "as_junit",
        "package_summary": "result_text",
        "page": "INDEX as_html index_as_html page_name",
        "result_table": "as_markdown matrix_text",
    },
)
