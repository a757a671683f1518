"""Fixtures of the data room's tests."""

import numpy as np
import pytest

from bert_mlperf.data.samples import Samples
from tests.data.files import make_samples


@pytest.fixture
def samples() -> Samples:
    """40 samples of 3 to 512 tokens, both included."""
    return make_samples([3, 512, 128, 256, 300, *np.random.default_rng(1).integers(3, 400, 35)])
