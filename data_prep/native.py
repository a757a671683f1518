"""The example maker of data_prep/examples.c, loaded with ctypes.

`make_examples` in examples.py is the readable reference; this gives the same examples about fifty times as fast.
"""

import ctypes
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path

import numpy as np

from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.wordpiece import CLS, MASK, SEP, Vocabulary
from bert_mlperf.errors import UserError

VERSION = 1  # of examples.c
_NAME = "_examples"
_TOKENS_AT_ONCE = 1 << 20
_TWISTER_WORDS = 624


class _Twister(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_uint32 * _TWISTER_WORDS),
        ("next", ctypes.c_uint32),
        ("tempered", ctypes.c_uint32 * _TWISTER_WORDS),
        ("is_tempered", ctypes.c_uint32),
    )


class _Generator(ctypes.Structure):
    _fields_ = (
        ("rng", _Twister),
        ("tokens", ctypes.c_void_p),
        ("sentence_offsets", ctypes.c_void_p),
        ("document_offsets", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("num_documents", ctypes.c_int64),
        ("max_seq_length", ctypes.c_int64),
        ("max_predictions", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("masked_lm_prob", ctypes.c_double),
        ("short_seq_prob", ctypes.c_double),
        ("cls", ctypes.c_int32),
        ("sep", ctypes.c_int32),
        ("mask", ctypes.c_int32),
        ("id_bytes", ctypes.c_int32),
        ("original", ctypes.c_void_p),
        ("shown", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("is_chosen", ctypes.c_void_p),
        ("visit", ctypes.c_int64),
        ("num_visits", ctypes.c_int64),
        ("sentence", ctypes.c_int64),
        ("target", ctypes.c_int64),
    )


class _Output(ctypes.Structure):
    _fields_ = (
        ("token_capacity", ctypes.c_int64),
        ("masked_capacity", ctypes.c_int64),
        ("example_capacity", ctypes.c_int64),
        ("input_ids", ctypes.c_void_p),
        ("masked_ids", ctypes.c_void_p),
        ("masked_positions", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("segment_a_lengths", ctypes.c_void_p),
        ("masked_counts", ctypes.c_void_p),
        ("next_sentence_labels", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("num_masked", ctypes.c_int64),
        ("num_examples", ctypes.c_int64),
    )


class _WordTable(ctypes.Structure):
    _fields_ = (
        ("slots", ctypes.c_void_p),
        ("num_slots", ctypes.c_int64),
        ("bytes", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("num_words", ctypes.c_int64),
    )


class WordNumbers:
    """Numbers the distinct words of a text in the order in which they turn up."""

    def __init__(self, *, max_words: int, max_bytes: int) -> None:
        """Room for `max_words` distinct words of `max_bytes` bytes in all."""
        self._library = load()
        self._slots = np.zeros(1 << (2 * max_words - 1).bit_length(), np.int32)
        self._bytes = np.empty(max_bytes, np.uint8)
        self._offsets = np.zeros(max_words + 1, np.int64)
        self._table = _WordTable(
            _address(self._slots), len(self._slots), _address(self._bytes), _address(self._offsets)
        )

    def __len__(self) -> int:
        return int(self._table.num_words)

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether any text of `num_bytes` bytes fits, whatever its words."""
        words = len(self) + num_bytes // 2 + 1
        return words < len(self._offsets) and self._offsets[len(self)] + num_bytes <= len(self._bytes)

    def number(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the words of `text` (int32 [words]) and where those of each line end (int64 [lines]).

        Lines end at LF, words at ASCII spaces; what stands behind the last LF is a line, too.
        """
        assert self.has_room_for(len(text))
        words = np.empty(len(text) // 2 + 1, np.int32)
        line_ends = np.empty(text.count(b"\n") + 1, np.int64)
        self._library.examples_words(ctypes.byref(self._table), text, len(text), _address(words), _address(line_ends))
        return words[: line_ends[-1]], line_ends

    def words_from(self, first: int) -> list[bytes]:
        """The words that have the numbers `first` and above."""
        offsets = self._offsets[first : len(self) + 1].tolist()
        data = self._bytes[offsets[0] : offsets[-1]].tobytes()
        return [data[begin - offsets[0] : end - offsets[0]] for begin, end in pairwise(offsets)]


@dataclass(frozen=True)
class FlatText:
    """Documents of sentences of token ids as flat arrays; no sentence and no document is empty."""

    tokens: np.ndarray  # int32 [tokens of all sentences], in memory or mapped
    sentence_offsets: np.ndarray  # int64 [sentences + 1], in tokens
    document_offsets: np.ndarray  # int64 [documents + 1], in sentences

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1


@dataclass(frozen=True)
class FlatExamples:
    """Examples one behind the other. Legend: n examples, T tokens, M masked positions of all of them."""

    input_ids: np.ndarray  # uint16, or int32 for a vocabulary of more than 65,536 [T]
    masked_positions: np.ndarray  # uint16 [M]
    masked_ids: np.ndarray  # like input_ids [M]
    lengths: np.ndarray  # int32 [n]
    segment_a_lengths: np.ndarray  # int32 [n], [CLS] A [SEP]
    masked_counts: np.ndarray  # int32 [n]
    next_sentence_labels: np.ndarray  # uint8 [n]

    @property
    def num_examples(self) -> int:
        return len(self.lengths)


class ExampleMaker:
    """All examples of a text, a bounded number at a time: iterate over it once, then ask for `final_order`."""

    def __init__(self, text: FlatText, *, vocabulary: Vocabulary, options: ExampleOptions) -> None:
        self._library = load()
        self._options = options
        self._text = text  # these arrays must live as long as the pointers to them
        self._order = np.arange(text.num_documents, dtype=np.int32)
        self._scratch = [np.empty(options.max_seq_length, dtype) for dtype in ("i4", "i4", "i4", "u1")]
        self._id_type = np.dtype("u2" if vocabulary.size <= 1 << 16 else "i4")
        self._generator = self._new_generator(vocabulary)
        self._library.examples_shuffle(ctypes.byref(self._generator.rng), _address(self._order), len(self._order))

    def __iter__(self) -> Iterator[FlatExamples]:
        """Blocks of examples in the order of making, views of buffers that the next block overwrites."""
        buffers = self._new_buffers()
        output = _Output(len(buffers.input_ids), len(buffers.masked_ids), buffers.num_examples)
        for name in FlatExamples.__dataclass_fields__:
            setattr(output, name, _address(getattr(buffers, name)))
        while self._generator.visit < self._generator.num_visits:
            output.num_tokens = output.num_masked = output.num_examples = 0
            self._library.examples_generate(ctypes.byref(self._generator), ctypes.byref(output))
            sizes = {"input_ids": output.num_tokens} | dict.fromkeys(
                ("masked_ids", "masked_positions"), output.num_masked
            )
            yield FlatExamples(
                **{
                    name: getattr(buffers, name)[: sizes.get(name, output.num_examples)]
                    for name in FlatExamples.__dataclass_fields__
                }
            )

    @property
    def fraction_done(self) -> float:
        """How much of the work is done, 0 to 1."""
        return float(self._generator.visit / self._generator.num_visits)

    def final_order(self, num_examples: int) -> np.ndarray:
        """int32 [num_examples]: the number (in the order of making) of the example at each place of the final order."""
        assert self._generator.visit == self._generator.num_visits, "not all examples are made"
        order = np.arange(num_examples, dtype=np.int32)
        self._library.examples_shuffle(ctypes.byref(self._generator.rng), _address(order), num_examples)
        return order

    def _new_generator(self, vocabulary: Vocabulary) -> _Generator:
        text, options = self._text, self._options
        original, shown, candidates, is_chosen = map(_address, self._scratch)
        return _Generator(
            rng=new_twister(options.seed),
            tokens=_address(text.tokens),
            sentence_offsets=_address(text.sentence_offsets),
            document_offsets=_address(text.document_offsets),
            order=_address(self._order),
            num_documents=text.num_documents,
            max_seq_length=options.max_seq_length,
            max_predictions=options.max_predictions,
            vocab_size=vocabulary.size,
            masked_lm_prob=options.masked_lm_prob,
            short_seq_prob=options.short_seq_prob,
            cls=vocabulary.ids[CLS],
            sep=vocabulary.ids[SEP],
            mask=vocabulary.ids[MASK],
            id_bytes=self._id_type.itemsize,
            original=original,
            shown=shown,
            candidates=candidates,
            is_chosen=is_chosen,
            num_visits=text.num_documents * options.dupe_factor,
            sentence=-1,
        )

    def _new_buffers(self) -> FlatExamples:
        tokens = max(_TOKENS_AT_ONCE, self._options.max_seq_length)
        examples = tokens // 64 + 1
        return FlatExamples(
            input_ids=np.empty(tokens, self._id_type),
            masked_positions=np.empty(tokens, np.uint16),
            masked_ids=np.empty(tokens, self._id_type),
            lengths=np.empty(examples, np.int32),
            segment_a_lengths=np.empty(examples, np.int32),
            masked_counts=np.empty(examples, np.int32),
            next_sentence_labels=np.empty(examples, np.uint8),
        )


class Gatherer:
    """Takes examples out of a `FlatExamples` (in memory or mapped) in any order."""

    def __init__(self, examples: FlatExamples) -> None:
        self._library = load()
        self._examples = examples
        self._offsets, self._masked_offsets = offsets_of(examples.lengths), offsets_of(examples.masked_counts)

    def take(self, order: np.ndarray) -> Samples:
        """The examples `order` (int32 [k]) one behind the other, as new arrays."""
        found = self._examples
        lengths, a_lengths = found.lengths[order], found.segment_a_lengths[order]
        offsets, masked_offsets = offsets_of(lengths), offsets_of(found.masked_counts[order])
        segment_ids = np.empty(offsets[-1], np.uint8)
        self._library.examples_segments(_address(segment_ids), _address(lengths), _address(a_lengths), len(order))
        return Samples(
            input_ids=gather(found.input_ids, self._offsets, order),
            segment_ids=segment_ids,
            offsets=offsets,
            masked_positions=gather(found.masked_positions, self._masked_offsets, order),
            masked_ids=gather(found.masked_ids, self._masked_offsets, order),
            masked_offsets=masked_offsets,
            next_sentence_labels=found.next_sentence_labels[order],
        )


def gather(values: np.ndarray, offsets: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Rows `order` (int32 [k]) of a ragged array, one behind the other: row r is values[offsets[r] : offsets[r + 1]]
    (offsets int64)."""
    taken = np.empty(int((offsets[order + 1] - offsets[order]).sum()), values.dtype)
    load().examples_gather(
        _address(taken), _address(values), _address(offsets), _address(order), len(order), values.itemsize
    )
    return taken


def new_twister(seed: int) -> _Twister:
    """The state of random.Random(seed)."""
    *words, position = random.Random(seed).getstate()[1]
    return _Twister(words=(ctypes.c_uint32 * _TWISTER_WORDS)(*words), next=position)


@cache
def load() -> ctypes.CDLL:
    """The compiled library beside this file. UserError if it is missing or of another version."""
    build = "build it with `pip install -e .` in the folder of pyproject.toml, which needs a C compiler such as gcc"
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(_NAME + suffix)
        if path.is_file():
            break
    else:
        raise UserError(f"the compiled example maker {_NAME} is missing beside {Path(__file__)}; {build}.")
    try:
        library = ctypes.CDLL(str(path))
        version = library.examples_version()
    except (OSError, AttributeError) as error:
        raise UserError(f"the compiled example maker {path} cannot be loaded ({error}); {build}.") from error
    if version != VERSION:
        raise UserError(f"the compiled example maker {path} is version {version}, expected {VERSION}; {build}.")
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.examples_shuffle.argtypes = (pointer, pointer, integer)
    library.examples_draws.argtypes = (pointer, integer, pointer, integer)
    library.examples_generate.argtypes = (pointer, pointer)
    library.examples_words.argtypes = (pointer, ctypes.c_char_p, integer, pointer, pointer)
    library.examples_words.restype = integer
    library.examples_gather.argtypes = (pointer, pointer, pointer, pointer, integer, integer)
    library.examples_segments.argtypes = (pointer, pointer, pointer, integer)
    for name in ("shuffle", "draws", "generate", "gather", "segments"):
        getattr(library, f"examples_{name}").restype = None
    return library


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
