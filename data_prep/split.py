r"""Withholds the evaluation articles: of every file a share drawn at random, the third stage of the reference.

Articles are what "\n\n" separates, also where a line lost its text in cleaning: they are numbered so, and of file i of
n the generator random.Random(seed + 13 * i) draws int((i + 1) * N / n) - int(i * N / n) different numbers. OUT/train
holds the other articles, a file for each input, OUT/withheld the drawn ones, OUT/eval.txt all drawn ones in the order
of the files, OUT/eval.md5 the md5 of each without the white space at its end, one a line.

The reference has faults here, which `reference_faults=True` reproduces byte for byte:

- It draws articles without text (what stands behind the last empty line of a file, or in a run of empty lines): of the
  official 10,000 evaluation articles 60 are empty. By default such a draw is repeated with the same generator, so all
  other draws are those of the reference.
- It writes "\n\n" after every article as it was cut. Where three or more LF stood in a row, articles begin with an
  empty line or are nothing else (so does the first article of every file), and every file ends in one. By default
  exactly one empty line stands between two articles, none at the begin or end of a file, and the md5 is that of the
  article as it stands in eval.txt.
- It draws for ever if a file has too few articles. That is a UserError in both modes.
"""

import functools
import hashlib
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.stage import Job, Progress, md5_of, number_of, run_stage, write_atomically
from bert_mlperf.data_prep.texts import articles_of, joined, raw_sizes, read_text, write_text
from bert_mlperf.errors import UserError

NUM_EVAL_ARTICLES = 10_000
SEED = 12345
_SEED_STEP = 13  # between the generators of two files
_MOST_ARTICLES = 10**9  # to withhold


def split(
    inputs: Sequence[str | Path],
    *,
    out: Path,
    num_eval_articles: int = NUM_EVAL_ARTICLES,
    seed: int = SEED,
    reference_faults: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Splits segmented files into training and evaluation articles (see above); returns the manifest.

    Facts of an output: articles (as numbered), blank (those without text), withheld (numbers), md5 (of each withheld
    article), raw_bytes and sized_by. The summary has bytes and md5 of eval.txt and eval.md5. Raises UserError if a file
    is not UTF-8 or has too few articles; nothing of that file is written then.
    """
    if not 0 <= num_eval_articles <= _MOST_ARTICLES:
        raise UserError(
            f"{num_eval_articles} evaluation articles cannot be withheld, expected 0 to {_MOST_ARTICLES:,}; give "
            "another number."
        )
    sources = find_sources(inputs, out=out)
    _check_articles([source.path for source in sources], num_eval_articles, reference_faults=reference_faults)
    options = {"num_eval_articles": num_eval_articles, "seed": seed, "reference_faults": reference_faults}
    jobs = [
        Job(
            (source.path,),
            (f"train/{source.name}", f"withheld/{source.name}"),
            {
                "count": share(num_eval_articles, index=i, num_files=len(sources)),
                "seed": seed + _SEED_STEP * i,
                "reference_faults": reference_faults,
                **size,
            },
        )
        for i, (source, size) in enumerate(zip(sources, raw_sizes([source.path for source in sources]), strict=True))
    ]
    pieces = [job.outputs[1] for job in jobs]
    finish = functools.partial(_write_eval, pieces=pieces, separator="" if reference_faults else "\n")
    manifest = run_stage("split", out=out, options=options, jobs=jobs, work=split_file, workers=workers, finish=finish)
    total = sum(output["facts"]["articles"] - output["facts"]["blank"] for output in manifest["outputs"][::2])
    withheld, where = manifest["summary"]["eval_articles"], Path(out) / "eval.txt"
    print(f"{'split':8s} {withheld:,} of {number_of(total, 'article')} withheld, in {where}", file=sys.stderr)
    return manifest


def share(total: int, *, index: int, num_files: int) -> int:
    """How many of `total` articles file `index` of `num_files` gives (in floating point, as the reference has it)."""
    return int((index + 1) * total * 1.0 / num_files) - int(index * total * 1.0 / num_files)


def most_articles(candidates: Sequence[int]) -> int:
    """How many articles can be withheld for certain, and any number below, from files of which each has so many."""
    return min(candidates) * len(candidates)


def _check_articles(paths: Sequence[Path], total: int, *, reference_faults: bool) -> None:
    """UserError, before anything is written, if a file has fewer articles than are to be withheld from it. Of a large
    text, of which each file gives one, little is read."""
    for i, path in enumerate(paths):
        count = share(total, index=i, num_files=len(paths))
        found = count_articles(path, reference_faults=reference_faults, most=count)
        if found < count:
            most = most_articles([count_articles(path, reference_faults=reference_faults) for path in paths])
            raise UserError(
                f"{path} has {number_of(found, 'article')}, expected at least the {count:,} that are to be withheld "
                f"from it (all files give alike); withhold fewer, --eval-articles {most} at most, or give more text."
            )


def count_articles(path: Path, *, reference_faults: bool, most: int | None = None) -> int:
    """The articles of a file that can be drawn, or `most` if there are as many. Bad bytes are left to `split_file`."""
    try:
        if reference_faults:
            return path.read_bytes().count(b"\n\n") + 1
        with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
            return _count_runs(lines, most=most)
    except OSError as error:
        raise UserError(f"the input {path} cannot be read: {error.strerror}; check its permissions.") from None


def _count_runs(lines: Iterable[str], *, most: int | None) -> int:
    """Runs of lines between empty ones in which there is text."""
    count, is_counted = 0, False  # whether the run at hand is
    for line in lines:
        if count == most:
            break
        if line == "\n":
            is_counted = False
        elif not is_counted and line.strip():
            count, is_counted = count + 1, True
    return count


def draw(is_blank: Sequence[bool], *, count: int, seed: int, reference_faults: bool) -> list[int]:
    """Numbers of `count` different articles in the order drawn; is_blank[i] says whether article i has no text.

    There must be as many articles (by default: articles with text).
    """
    rng = random.Random(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        number = int(rng.random() * len(is_blank))
        if reference_faults or not is_blank[number]:
            drawn[number] = None
    return list(drawn)


def split_file(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """The work of one file (see `split`)."""
    (source,), (train, withheld), options = job.sources, targets, job.arguments
    articles = articles_of(read_text(source))
    is_blank = [not article.strip() for article in articles]
    candidates = len(articles) if options["reference_faults"] else is_blank.count(False)
    if options["count"] > candidates:
        raise UserError(
            f"{source} has {candidates:,} articles, expected at least the {options['count']:,} that are to be withheld "
            "from it; withhold fewer evaluation articles or give more text."
        )
    drawn = set(
        draw(is_blank, count=options["count"], seed=options["seed"], reference_faults=options["reference_faults"])
    )
    kept = [article for i, article in enumerate(articles) if i not in drawn]
    eval_articles = [articles[i] for i in sorted(drawn)]
    if not options["reference_faults"]:
        eval_articles = [article.strip("\n") for article in eval_articles]
    written = _as_reference if options["reference_faults"] else joined
    write_text(train, written(kept))
    write_text(withheld, written(eval_articles))
    progress(source.stat().st_size)
    return {
        "articles": len(articles),
        "blank": is_blank.count(True),
        "withheld": sorted(drawn),
        "md5": [hashlib.md5(article.rstrip().encode()).hexdigest() for article in eval_articles],
        "raw_bytes": options["raw_bytes"],
        "sized_by": options["sized_by"],
    }


def _as_reference(articles: Sequence[str]) -> str:
    return "".join(f"{article}\n\n" for article in articles)


def _write_eval(out: Path, facts: list[dict[str, Any]], *, pieces: list[str], separator: str) -> dict[str, Any]:
    """Writes eval.txt and eval.md5 and returns their sizes and checksums."""
    texts = [read_text(out / piece) for piece in pieces]
    write_atomically(out / "eval.txt", separator.join(text for text in texts if text))
    hashes = [md5 for of_file in facts for md5 in of_file["md5"]]
    write_atomically(out / "eval.md5", "".join(f"{md5}\n" for md5 in hashes))
    written = [(name, out / name) for name in ("eval.txt", "eval.md5")]
    files = {name: {"bytes": path.stat().st_size, "md5": md5_of(path)} for name, path in written}
    return {"eval_articles": len(hashes), **files}
