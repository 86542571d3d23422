"""The matrix: plan, queue, runner, report, live view."""
