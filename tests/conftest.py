"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported; tests/gpu wants it set to 0
settings.register_profile("any machine", deadline=None)  # a busy one is slow, not wrong
settings.load_profile("any machine")
REFERENCE_TESTS = pytest.StashKey[set[str]]()  # node ids


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """The folder of reference vectors ($BERT_MLPERF_REFERENCE, default ../shared); the test is skipped without it."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("BERT_MLPERF_REFERENCE", root.parent / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"reference vectors not found: {folder}/golden (set BERT_MLPERF_REFERENCE)")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[REFERENCE_TESTS] = {item.nodeid for item in items if item.get_closest_marker("reference")}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line: how many of the tests that compare with the reference ran."""
    marked = terminalreporter.config.stash.get(REFERENCE_TESTS, set())
    ran, skipped = 0, 0
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if report.nodeid in marked:
                ran, skipped = (ran, skipped + 1) if outcome == "skipped" else (ran + 1, skipped)
    terminalreporter.write_line(f"tests against the reference folder: {ran} ran, {skipped} were skipped")
