"""Scripts behind figures in docs/ that take too long for the test suite: `python -m tests.figures.<name>`."""
