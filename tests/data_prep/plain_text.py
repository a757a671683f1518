"""Text as the published reference reads it, small vocabularies and texts full of oddities, for the tests."""

import random

from bert_mlperf.data_prep import demo_corpus
from bert_mlperf.data_prep.wordpiece import SPECIAL_TOKENS, Vocabulary

ODD_LINES = (
    "one\rtwo th\rree",
    "\x00\x01\u200b",  # nothing is left of it, but it is no empty line
    "[MASK] is text, [CLS] too.",
    "Caf\u00e9 CAFE\u0301 \u6771\u4eac\u3067 \ud55c\uad6d \U0001f600 \u03a3\u039f\u03a3 \u0130stanbul",
    "u" * 200 + " " + "u" * 201 + " don't -- e.g. 3.14\u2009000",
    "tab\tand \u00a0 spaces\u3000here\u2028there",
    "\x1c",  # white space for Python, and so an empty line
)


def read_documents(data: bytes) -> list[list[str]]:
    """Only LF ends a line, every CR is deleted, lines are stripped, empty ones end a document."""
    documents: list[list[str]] = [[]]
    for line in data.decode("utf-8").replace("\r", "").split("\n"):
        if line.strip():
            documents[-1].append(line.strip())
        else:
            documents.append([])
    return [document for document in documents if document]


def odd_text(num_documents: int, *, seed: int = 0) -> bytes:
    """Documents of the demo corpus with odd lines among theirs."""
    rng = random.Random(seed)
    documents = []
    for document in demo_corpus.generate_corpus(seed=seed, num_documents=num_documents):
        lines = list(document)
        for _ in range(rng.randint(0, 2)):
            lines.insert(rng.randint(0, len(lines)), rng.choice(ODD_LINES))
        documents.append("\n".join(lines))
    return ("\n\n".join(documents) + "\n").encode()


def make_vocabulary(*words: str) -> Vocabulary:
    """The special tokens, all ASCII letters, digits and punctuation alone and inside words, and `words`."""
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    inner = [f"##{character}" for character in characters if character.isalnum()]
    tokens = tuple(dict.fromkeys([*SPECIAL_TOKENS, *characters, *inner, *words]))
    return Vocabulary(tokens, {token: i for i, token in enumerate(tokens)})
