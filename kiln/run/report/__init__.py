"""Reports of runs: text, web pages, JSON, JUnit, comparisons."""
