"""The test suite, measured: its seconds and engine starts (`python -m benchmarks.suite`), the share of faults that it
catches (`.mutants`), and the tests that a change concerns (`.changed`)."""
