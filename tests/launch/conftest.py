"""Fixtures of the tests that start the launcher."""

from pathlib import Path

import pytest

from tests.launch import launching


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with train/ and eval/ of the tiny system; not to be changed."""
    return launching.write_data(tmp_path_factory.mktemp("data") / "shards")
