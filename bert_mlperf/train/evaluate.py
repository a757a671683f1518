"""Masked-LM accuracy on the whole evaluation set, exact for any number of ranks and any batch size."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.bert import BertForPreTraining


@dataclass(frozen=True)
class Accuracy:
    """Masked tokens whose arg-max is the label, of all masked tokens: integers, divided once."""

    correct: int
    total: int

    @property
    def value(self) -> float:
        return self.correct / self.total


@torch.no_grad()
def evaluate(model: BertForPreTraining, batches: Iterable[Batch], control: Control, device: torch.device) -> Accuracy:
    """Accuracy over the batches of all ranks.

    A rank may have no batch at all. Raises ValueError if no rank has a masked token.
    """
    counts_2 = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in batches:
        counts_2[0] += model.count_correct(batch.to(device))
        counts_2[1] += batch.num_masked
    control.sum(counts_2)
    correct, total = counts_2.tolist()
    if total == 0:
        raise ValueError("the evaluation set has no masked token: an accuracy cannot be computed")
    return Accuracy(correct, total)
