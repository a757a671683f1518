"""The command line: parse, call, print. Bad input is one sentence on stderr and exit code 2."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from bert_mlperf.cli_bench import add_bench, run_bench
from bert_mlperf.cli_output import drop_output, one_line, prepare_streams, sentence_of
from bert_mlperf.cli_plan import add_plan, run_plan
from bert_mlperf.cli_prep import add_prep, run_prep
from bert_mlperf.cli_results import COMMANDS, add_results, run_results
from bert_mlperf.cli_system import add_system, run_system
from bert_mlperf.errors import UserError
from bert_mlperf.train.stop import Stopped


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bert-mlperf", description="MLPerf Training BERT-Large: from text to a checked MLPerf log.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    launch = commands.add_parser("launch", help="train a system and check its log (what run_and_time.sh calls)")
    launch.add_argument(
        "system", nargs="?", default="systems/local-cpu.json", help="system file (default: %(default)s)"
    )
    launch.add_argument("--runs", type=int, default=1, help="number of timed runs, one after the other")
    launch.add_argument("--results", type=Path, default=Path("results"), help="folder for results (default: results)")
    launch.add_argument("--save", type=Path, metavar="DIR", help="keep the final weights in DIR/weights.pt")
    launch.add_argument(
        "--trace", type=int, metavar="N", help="record step N (from 0): trace.json and timeline.png beside the log"
    )
    _add_overrides(launch)

    add_prep(commands)

    add_results(commands)
    add_system(commands)

    add_bench(commands)
    _add_overrides(add_plan(commands))

    doctor = commands.add_parser("doctor", help="print a resolved system and what is installed")
    doctor.add_argument("--system", type=Path, default=Path("systems/local-cpu.json"), help="system file")
    _add_overrides(doctor)
    return parser


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a value, e.g. run.recipe.base_learning_rate=0.001",
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; that of SIGPIPE if nobody reads the output to its end."""
    prepare_streams()
    try:
        try:
            return _guarded(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"error: {one_line(sentence_of(error))}", file=sys.stderr)
        if error.filename is None:
            drop_output()
        return 2
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich ends so
            return 128 + signal.SIGPIPE
        raise


def _guarded(arguments: list[str] | None) -> int:
    """Runs one command, with an exit code for every failure that is not a fault of the program."""
    options = build_parser().parse_args(arguments)
    try:
        return _run(options)
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    except KeyboardInterrupt as stop:
        return 128 + getattr(stop, "signum", signal.SIGINT)


def _run(options: argparse.Namespace) -> int:
    if options.command == "launch":
        from bert_mlperf.launch import launch

        return launch(
            Path(options.system),
            overrides=options.overrides,
            runs=options.runs,
            results=options.results,
            save=options.save,
            trace=options.trace,
        )
    if options.command == "prep":
        return run_prep(options)
    if options.command == "bench":
        return run_bench(options)
    if options.command == "plan":
        return run_plan(options)
    if options.command == "system":
        return run_system(options)
    if options.command in COMMANDS:
        return run_results(options)
    from bert_mlperf.config.doctor import main_doctor

    return main_doctor(options.system, overrides=options.overrides)


if __name__ == "__main__":
    sys.exit(main())
