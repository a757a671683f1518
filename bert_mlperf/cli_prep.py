"""The commands `bert-mlperf prep ...`: from extracted text to shards, and between the layouts of shards."""

import argparse
from pathlib import Path
from typing import Any

from bert_mlperf.errors import UserError

LAYOUTS = ("shards", "tfrecord", "fixed", "variable", "packed")


def add_prep(commands: Any) -> None:
    """Adds `prep` with its commands to the subparsers of the command line."""
    prep = commands.add_parser("prep", help="prepare the data: text, examples, shards, their checks")
    steps = prep.add_subparsers(dest="step", required=True, metavar="STEP")
    _add_text_steps(steps)
    _add_example_steps(steps)
    convert = _step(steps, "convert", "rewrite a data set in another layout", many=True)
    convert.add_argument("--to", choices=LAYOUTS, required=True, help="layout to write")
    convert.add_argument(
        "--vocab-size",
        type=int,
        metavar="TOKENS",
        help="tokens of the vocabulary (default: what shards or their manifest say, else 30522)",
    )

    inspect = steps.add_parser("inspect", help="what a shard or a data set holds")
    inspect.add_argument("path", type=Path, metavar="SHARD", help="a shard or a folder of shards, in any layout")
    inspect.add_argument("--sample", type=int, metavar="N", help="show only the text of sample N with its masks")
    inspect.add_argument("--vocab", type=Path, metavar="FILE", help="the vocabulary, for --sample")
    inspect.add_argument("--png", type=Path, metavar="FILE", help="draw the histogram of lengths to a new .png")

    index = steps.add_parser("index", help="write down the lengths of all samples beside the shards")
    index.add_argument("path", type=Path, metavar="SHARDS", help="a folder of shards or one shard file")

    verify = steps.add_parser("verify", help="check official inputs and data sets, without network")
    verify.add_argument("folder", type=Path, metavar="DIR", help="folder that holds them, at any depth")
    _add_workers(verify)


def _add_text_steps(steps: Any) -> None:
    clean = _step(steps, "clean", "extracted wiki text to plain text, one article after the other", many=True)
    clean.add_argument(
        "--extracted-with", metavar="TEXT", help="tool and commit that extracted the text, for the record"
    )
    segment = _step(steps, "segment", "plain text to one sentence a line", many=True)
    split = _step(steps, "split", "withhold the evaluation articles", many=True)
    split.add_argument(
        "--eval-articles", type=int, default=10_000, metavar="N", help="articles to withhold (default: %(default)s)"
    )
    split.add_argument(
        "--seed", type=int, default=12345, metavar="SEED", help="seed of the draw (default: %(default)s)"
    )
    gather = _step(steps, "gather", "join the training files to parts of about one size", many=True)
    size = gather.add_mutually_exclusive_group()
    size.add_argument(
        "--block-size", type=float, default=26.92, metavar="MIB", help="extracted text in a part (default: %(default)s)"
    )
    size.add_argument("--parts", type=int, metavar="N", help="number of parts instead")
    for parser in (clean, segment, split, gather):
        parser.add_argument(
            "--reference-faults", action="store_true", help="reproduce the faults of the reference's scripts"
        )


def _add_example_steps(steps: Any) -> None:
    examples = _step(steps, "examples", "text parts to shards of masked examples", many=True)
    evaluation = _step(steps, "eval", "evaluation text to the evaluation samples", many=False)
    for parser in (examples, evaluation):
        parser.add_argument("--vocab", type=Path, required=True, metavar="FILE", help="vocab.txt, one token a line")
        parser.add_argument("--own-vocabulary", action="store_true", help="allow another vocabulary than the official")
        parser.add_argument("--allow-long-lines", action="store_true", help="allow lines that look like paragraphs")
        _add_options_of_examples(parser.add_argument_group("how examples are made (defaults: the rules of MLPerf)"))
    examples.add_argument("--subset", type=int, metavar="N", help="write N samples drawn from all, each equally likely")
    examples.add_argument(
        "--subset-seed", type=int, default=0, metavar="SEED", help="seed of that draw (default: %(default)s)"
    )
    evaluation.add_argument(
        "--num-samples", type=int, default=10_000, metavar="N", help="samples to pick (default: %(default)s)"
    )


def _add_options_of_examples(group: Any) -> None:
    for name, default, metavar, text in (
        ("--max-seq-length", 512, "TOKENS", "tokens of a sample at most"),
        ("--max-predictions", 76, "TOKENS", "masked tokens of a sample at most"),
        ("--masked-lm-prob", 0.15, "SHARE", "masked tokens as a share of all"),
        ("--short-seq-prob", 0.1, "SHARE", "documents cut into shorter samples on purpose"),
        ("--dupe-factor", 10, "TIMES", "times that the text is gone through"),
        ("--seed", 12345, "SEED", "seed of each part"),
    ):
        group.add_argument(
            name, type=type(default), default=default, metavar=metavar, help=f"{text} (default: %(default)s)"
        )


def _step(steps: Any, name: str, text: str, *, many: bool) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument(
        "inputs",
        nargs="+" if many else 1,
        metavar="INPUT",
        help="a file" + (", a folder, or a glob pattern in quotes" if many else ""),
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; new, or to go on with")
    if many:
        _add_workers(parser)
    return parser


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: what cores and memory allow)")


def run_prep(options: argparse.Namespace) -> int:
    """Runs one step and returns its exit code."""
    if getattr(options, "workers", None) is not None and options.workers < 1:
        raise UserError(f"--workers is {options.workers}, expected at least 1; leave it out for the default.")
    from bert_mlperf.data_prep.stopping import terminated_as_interrupted

    with terminated_as_interrupted():
        return _STEPS[options.step](options)


def _clean(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.clean import clean

    clean(
        options.inputs,
        out=options.out,
        extracted_with=options.extracted_with,
        reference_faults=options.reference_faults,
        workers=options.workers,
    )
    return 0


def _segment(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.segment import segment

    segment(options.inputs, out=options.out, reference_faults=options.reference_faults, workers=options.workers)
    return 0


def _split(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.split import split

    split(
        options.inputs,
        out=options.out,
        num_eval_articles=options.eval_articles,
        seed=options.seed,
        reference_faults=options.reference_faults,
        workers=options.workers,
    )
    return 0


def _gather(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.gather import gather

    gather(
        options.inputs,
        out=options.out,
        block_size=options.block_size,
        num_parts=options.parts,
        reference_faults=options.reference_faults,
        workers=options.workers,
    )
    return 0


def _example_options(options: argparse.Namespace) -> Any:
    from bert_mlperf.data_prep.examples import ExampleOptions

    return ExampleOptions(
        max_seq_length=options.max_seq_length,
        max_predictions=options.max_predictions,
        masked_lm_prob=options.masked_lm_prob,
        short_seq_prob=options.short_seq_prob,
        dupe_factor=options.dupe_factor,
        seed=options.seed,
    )


def _examples(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.examples_command import examples

    examples(
        options.inputs,
        vocabulary=options.vocab,
        out=options.out,
        options=_example_options(options),
        subset=options.subset,
        subset_seed=options.subset_seed,
        own_vocabulary=options.own_vocabulary,
        allow_long_lines=options.allow_long_lines,
        workers=options.workers,
    )
    return 0


def _eval(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.evaluation import eval_examples

    eval_examples(
        options.inputs[0],
        vocabulary=options.vocab,
        out=options.out,
        options=_example_options(options),
        num_samples=options.num_samples,
        own_vocabulary=options.own_vocabulary,
        allow_long_lines=options.allow_long_lines,
    )
    return 0


def _convert(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.convert import convert

    convert(options.inputs, to=options.to, out=options.out, vocab_size=options.vocab_size, workers=options.workers)
    return 0


def _index(options: argparse.Namespace) -> int:
    from bert_mlperf.data.indexing import index_of, read_checked

    path = index_of(options.path)
    index = read_checked(path)
    print(f"{path}: {index.num_samples:,} samples in {len(index.files)} files, {index.lengths.mean():.0f} tokens each")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.inspect_shard import inspect

    inspect(options.path, sample=options.sample, vocab=options.vocab, png=options.png)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from bert_mlperf.data_prep.verify import verify

    return verify(options.folder, workers=options.workers)


_STEPS = {
    "clean": _clean,
    "segment": _segment,
    "split": _split,
    "gather": _gather,
    "examples": _examples,
    "eval": _eval,
    "convert": _convert,
    "inspect": _inspect,
    "index": _index,
    "verify": _verify,
}
