"""What the tests of `prep verify` share: small official files, and its report taken apart."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from bert_mlperf.data_prep.official import OfficialFile

CONTENT = {  # of the official files of these tests
    "dump.xml": b"<page>Sea</page>\n",
    "eval.txt": b"The sea is wide.\nIt is deep.\n",
    "vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsea\n",
    "ckpt.index": b"index of the weights",
    "ckpt.data": b"the weights",
    "part-00000-of-00003": b"Zero.\n",
    "part-00001-of-00003": b"One and more.\n",
    "part-00002-of-00003": "Zwei große Fische.\n".encode(),
}
KINDS = {"dump.xml": "dump", "eval.txt": "evaluation text", "vocab.txt": "vocabulary"}
KINDS |= {"ckpt.index": "checkpoint", "ckpt.data": "checkpoint"}


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def official_file(name: str, data: bytes, kind: str) -> OfficialFile:
    return OfficialFile(name, len(data), md5(data), kind, f"the {kind}", f"shelf of {kind}")


WEIGHTS = (
    "for an official run also get the initial weights (TF1 checkpoint, index and data in one folder): shelf of "
    "checkpoint"
)


class Report:
    """What `verify` printed."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        lines = text.splitlines()
        self.wrong = [line.removeprefix("wrong   ") for line in lines if line.startswith("wrong   ")]
        at = next((i for i, line in enumerate(lines) if line.startswith("next    ")), len(lines))
        self.next = [line[8:] for line in lines[at:]]

    def row(self, name: str) -> list[str]:
        """Cells of the row `name`: what, state, detail."""
        (line,) = (line for line in self.text.splitlines() if line.split("  ")[0].strip() == name)
        return [cell.strip() for cell in line[len(name) :].split("  ") if cell.strip()]


Verify = Callable[..., Report]


def in_this_process(tasks: Sequence[Any], *, work: Callable[..., Any], on_done: Callable[..., None], **_: Any) -> None:
    for i, task in enumerate(tasks):
        on_done(i, work(task, lambda amount: None))


ARTICLES = "".join(f"Fish number {i} swims in the sea.\nIt is deep.\n\n" for i in range(30))
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"fish number swims in the sea it is deep . 1 2 3".split()]
