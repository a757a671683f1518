"""Which library's attention is called, with what, and what neither can do. Neither is called here: they need CUDA."""

import pytest
import torch

from bert_mlperf.kernels import attention_library
from bert_mlperf.kernels.attention import OPERATIONS
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.inputs import BF16, FP32, values
from tests.kernels.test_attention import dropout_of, rows_of

ATTENTION = OPERATIONS["attention"]["library"]
PACKED, ROWS = values(9, 3, 2, 16, dtype=BF16), rows_of([4, 5], [4, 5])
DROPOUT = dropout_of([4, 5], torch.arange(9))


@pytest.fixture
def calls(monkeypatch):
    """(name, tensors, rest, options) of each call; both libraries are there."""
    found = []
    for name in ("flash_attention", "varlen_attention"):

        def fake(*arguments, name=name, **options):
            found.append((name, arguments[:3], arguments[3:], options))
            return arguments[0]

        monkeypatch.setattr(attention_library, name, lambda fake=fake: fake)
    return found


@pytest.mark.parametrize("dropout, probability", [(None, 0.0), (DROPOUT, 0.2)])
def test_flash_attention_is_preferred(calls, dropout, probability):
    ATTENTION(PACKED, ROWS, dropout=dropout)
    ((name, tensors, rest, options),) = calls
    assert name == "flash_attention" and options == {"dropout_p": probability}
    assert all(torch.equal(t, PACKED[:, i]) for i, t in enumerate(tensors))
    assert rest[2:] == (5, 5) and rest[0].tolist() == rest[1].tolist() == [0, 4, 9]


def test_torch_does_what_needs_no_dropout(calls, monkeypatch):
    monkeypatch.setattr(attention_library, "flash_attention", lambda: None)
    queries = values(3, 2, 16, dtype=BF16)
    ATTENTION(PACKED[:, 1:], rows_of([1, 2], [4, 5]), queries_QND=queries)
    ((name, tensors, rest, options),) = calls
    assert name == "varlen_attention" and options == {} and rest[2:] == (2, 5)
    assert torch.equal(tensors[0], queries) and torch.equal(tensors[2], PACKED[:, 2])
    with pytest.raises(Unsupported, match="flash-attn is not installed, and torch's varlen_attn has no dropout"):
        ATTENTION(PACKED, ROWS, dropout=DROPOUT)


def test_what_no_library_does(monkeypatch):
    with pytest.raises(Unsupported, match="for 16 bits, the inputs are float32"):
        ATTENTION(values(9, 3, 2, 16, dtype=FP32), ROWS)
    for name in ("flash_attention", "varlen_attention"):
        monkeypatch.setattr(attention_library, name, lambda: None)
    with pytest.raises(Unsupported, match="neither flash-attn nor torch's varlen_attn is there"):
        ATTENTION(PACKED, ROWS)
