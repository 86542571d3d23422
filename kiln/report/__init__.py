"""The report of a run, for people as text, Markdown and a web page, and for programs as JSON."""

from kiln.report.junit import as_junit
from kiln.report.matrix import as_markdown, matrix_text
from kiln.report.page import as_html
from kiln.report.text import as_json, result_text
from kiln.variants.axes import labels

__all__ = ["as_html", "as_json", "as_junit", "as_markdown", "labels", "matrix_text", "result_text"]
