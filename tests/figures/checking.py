"""How long checks take: 340 logs of ten runs each, beside the official compliance checker as it is.

    python -m tests.figures.checking [--systems 34] [--gigabyte]

prints CPU seconds of one core for our parser and lint, for the official compliance checker alone on the same logs, and
for `bert-mlperf check` with everything; with --gigabyte also the memory that the lint takes for a log of 1 GB.
"""

import argparse
import contextlib
import io
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance

from bert_mlperf.mlperf.check import lint
from bert_mlperf.mlperf.checking import check_paths
from bert_mlperf.report.runs import read_run
from tests.mlperf import submission

MEMORY = """
import resource, sys
from pathlib import Path
from bert_mlperf.mlperf.check import check_log
verdict = check_log(Path(sys.argv[1]))
print(verdict, "|", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")
for text in verdict.warnings:
    print(" ", text)
"""


def official(paths: list[Path]) -> None:
    """The compliance checker as its command line calls it."""
    for path in paths:
        checker = mlp_compliance.make_checker("training", "5.0.0", quiet=False, werror=False)
        mlp_compliance.main(str(path), "training_5.0.0/common.yaml", checker)


def ours(paths: list[Path]) -> None:
    for path in paths:
        lint(read_run(path), "5.0.0")


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()
    return time.process_time() - start


def gigabyte(folder: Path) -> None:
    """Memory of the whole process for a log of 1 GB: a run, and millions of throughput records in it."""
    path = submission.write_log(folder / "large.txt", seed=1)
    text = path.read_text().splitlines(True)
    filler = text[7].replace('"seed"', '"tracked_stats"') * 4000
    with path.open("w") as file:
        file.writelines(text[:-1])
        for _ in range(10**9 // len(filler)):
            file.write(filler)
        file.write(text[-1])
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True)
    print(f"log of {path.stat().st_size / 1e9:.2f} GB: {time.perf_counter() - start:.0f} s: {done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--systems", type=int, default=34)
    parser.add_argument("--gigabyte", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name) / "Somebody"
        for number in range(options.systems):
            submission.write(top, system=f"box{number}")
        paths = sorted(top.glob("results/*/bert/*.txt"))
        check_paths([paths[0]])  # imports and tables
        lint_s, peer_s = seconds(lambda: ours(paths)), seconds(lambda: official(paths))
        logging.disable(logging.NOTSET)
        all_s = seconds(lambda: check_paths([top]))
        size = sum(path.stat().st_size for path in paths) / len(paths) / 1e3
        print(f"{len(paths)} logs of {size:.0f} kB, CPU seconds of one core")
        for what, value in (("parser and lint", lint_s), ("official compliance checker", peer_s), ("check", all_s)):
            print(f"{what:28s} {value:6.2f} s  {value / peer_s:.2f} of the official compliance checker")
        if options.gigabyte:
            gigabyte(Path(name))


if __name__ == "__main__":
    main()
