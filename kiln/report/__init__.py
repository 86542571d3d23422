"""The report of a run, for people as text, Markdown and a web page, and for programs as JSON."""

from kiln.report.junit import as_junit
from kiln.report.package_summary import result_text
from kiln.report.page import INDEX, as_html, page_name
from kiln.report.result_table import as_markdown, matrix_text
from kiln.report.run_index import index_as_html
from kiln.variants.varying_keys import labels

__all__ = [
    "INDEX",
    "as_html",
    "as_junit",
    "as_markdown",
    "index_as_html",
    "labels",
    "matrix_text",
    "page_name",
    "result_text",
]
