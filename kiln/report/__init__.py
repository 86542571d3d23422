"""The report of a run, for people as text, Markdown and a web page, and for programs as JSON."""
