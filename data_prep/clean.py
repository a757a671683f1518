r"""Text of the wiki extractor to plain text: the first stage of the reference's clean-up, rule for rule.

First the frame that the extractor puts around an article (lines end at LF, CR or CRLF here): a line with "<doc" becomes
an empty line and the line behind it, the title, is dropped; lines with "</doc>" and empty lines are dropped; lines of
blanks stay. Then every line passes what the reference writes as a chain of grep and sed (`clean_line`): links become
their text, lines with a category link are dropped, files, images, references and the tags of the wiki are deleted.
The order of the rules matters: one may join what a later one finds.

Two things look like faults and are kept, because the numbering of the articles hangs on them: a line that loses all
its text stays as an empty line, and an empty line separates articles; and a "</doc>" that comes about by a deletion
becomes a CR, which ends a line in the next stage. Only the reference's rule for "<doc ...>" lines is left out: no such
line is left when it runs. The result depends on nothing but the input.

One fault is reproduced on request only: the reference takes a last line of one character without a line end for an
empty line and loses it.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.stage import Job, Progress, number_of, run_stage
from bert_mlperf.data_prep.texts import read_text, write_text
from bert_mlperf.errors import UserError

_CATEGORY = re.compile(r"\[\[Category:[^\]\[]*\]\]")

_LINK, _LINK_TEXT = r"\[\[([^\]|\[]*)\]\]", r"\[\[[^\]|\[]*\|([^\]|\[]*)\]\]"  # [[text]], [[page|text]]
_BRACKET_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (_LINK, r"\1"),
        (_LINK, r"\1"),  # the inner one of two nested links is gone now
        (_LINK_TEXT, r"\1"),
        (_LINK_TEXT, r"\1"),
        (r"\[\[:*[Ff]ile:[^\]\[]*\]\]", ""),
        (r"\[\[[Mm]edia:[^\]\[]*\]\]", ""),
        (r"\[\[[Ii]mage:[^\]\[]*\]\]", ""),
        (r"\[([^\]|\[]*)\]", r"\1"),
        (r"\[\[[^\]\[]*\]\]", ""),
    )
]
_TAG_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"</doc>", "\r"),
        (r"<chem([^<]*)</chem>", r"\1"),  # keeps the ">" of the tag, as the reference does
        (r"<ins([^<]*)</ins>", r"\1"),
        (r"<, ref [^<]*</ref>", ""),
        (r"<includeonly[^<]*</includeonly>", ""),
        (r"<graph[^<]*</graph>", ""),
        (r"<section[^\\]*/>", ""),  # up to the last "/>" of the line
        (r"<meta[^\\]*/>", ""),
        (r"<hr[^\\]*/>", ""),
        (r"<gallery[^>]*>", ""),
        (r"<ref[^<]*</ref>", ""),
        (r"<ref[^>]*>", ""),
        (r"<http[^>]*>", ""),
        (r"<Ref[^>]*>", ""),
        (r"<mapframe [^/]*/>", ""),
        (r"<mapframe[^>]*>", ""),
        (r"</mapframe>", ""),
        (r"<poem>", ""),
        (r"</poem>", ""),
        (r"<math>", ""),
        (r"</math>", ""),
        (r"<ref>", ""),
        (r"</ref>", ""),
        (r"<div[^>]*>", ""),
        (r"</div[^>]*>", ""),
    )
]
_DELETED = (
    "<sup> </sup> <br> </br> <BR> </BR> <Br> </Br> <del> </del> <nowiki> </nowiki> <NOWIKI> </NOWIKI> <onlyinclude> "
    "</onlyinclude> <includeonly> </includeonly> <small> </small> <chem> </chem> <noinclude> </noinclude> <gallery> "
    "</gallery> <graph>{ <graph> }</graph> </graph> </references>"
).split()
_POEM = re.compile(r"<poem [^>]*>")


def clean(
    inputs: Sequence[str | Path],
    *,
    out: Path,
    extracted_with: str | None = None,
    reference_faults: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Cleans every file of the extractor's output into a file of the same name below `out`; returns the manifest.

    `extracted_with` (tool and commit that extracted the text) is kept in the manifest. Facts of an output: raw_bytes,
    the size of its source, articles, and without_text, how many of them have nothing but a title. Raises UserError if
    a file is not UTF-8 or not the output of a wiki extractor.
    """
    arguments = {"reference_faults": reference_faults}
    jobs = [Job((source.path,), (source.name,), arguments) for source in find_sources(inputs, out=out)]
    options = {"extracted_with": extracted_with, **arguments}
    manifest = run_stage("clean", out=out, options=options, jobs=jobs, work=clean_file, workers=workers)
    facts = [output["facts"] for output in manifest["outputs"]]
    articles, empty = (sum(of_file[name] for of_file in facts) for name in ("articles", "without_text"))
    print(f"{'clean':8s} {number_of(articles, 'article')}, {empty:,} of them without text", file=sys.stderr)
    return manifest


def clean_file(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """The work of one file (see `clean`)."""
    (source,), (target,) = job.sources, targets
    text = read_text(source, universal_newlines=True)
    if "<doc" not in text:
        raise UserError(
            f"{source} is not the output of a wiki extractor: none of its lines has '<doc', expected one before every "
            'article (<doc id="12" url="..." title="...">); give the extracted text, or go on with prep segment '
            "if it is plain text already."
        )
    write_text(target, clean_text(text, **job.arguments))
    size = source.stat().st_size
    progress(size)
    lines = list(_without_frame(text))
    empty = sum(not line and not following for line, following in pairwise([*lines, ""]))
    return {"raw_bytes": size, "sized_by": "raw", "articles": lines.count(""), "without_text": empty}


def clean_text(text: str, *, reference_faults: bool = False) -> str:
    """The cleaned text of one file, from its text with LF as line end."""
    if reference_faults and (text[:-1].endswith("\n") and not text.endswith("\n")):
        text = text[:-1]
    lines = (clean_line(line) for line in _without_frame(text))
    return "".join(f"{line}\n" for line in lines if line is not None)


def _without_frame(text: str) -> Iterator[str]:
    """The lines to clean: an empty one before each article, then its lines that are not empty, without the title."""
    is_title = False
    for line in text.split("\n"):
        if is_title:
            is_title = False
        elif "<doc" in line:
            is_title = True
            yield ""
        elif line and "</doc>" not in line:
            yield line


def clean_line(line: str) -> str | None:
    """One line without its wiki markup, None if the line is dropped."""
    if "<" not in line and "[" not in line and "alt=" not in line:
        return line  # no rule can match
    if "[" in line:
        if _CATEGORY.search(line):
            return None
        for pattern, replacement in _BRACKET_RULES:
            line = pattern.sub(replacement, line)
    line = line.replace("alt=", "")
    if "<" in line:
        for pattern, replacement in _TAG_RULES:
            line = pattern.sub(replacement, line)
        for literal in _DELETED:
            line = line.replace(literal, "")
        line = _POEM.sub("", line)
    return line
