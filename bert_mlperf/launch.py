"""`bert-mlperf launch`, behind run_and_time.sh: from a system file to a checked log.

For each run: claim a result number, draw a seed, clear the caches, start the ranks with torchrun's agent, check the
log, draw the curves, print the verdict. Bad input ends before any rank starts and before anything is written.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.config.doctor import environment
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.sharp import check_sharp
from bert_mlperf.config.system import ResolvedSystem, Run, load_system
from bert_mlperf.errors import UserError
from bert_mlperf.ranks import Place, start_ranks
from bert_mlperf.train.stop import raise_when_stopped, raising_when_stopped


@dataclass(frozen=True)
class Inputs:
    """Paths that the ranks read, checked."""

    train: Path
    train_index: Path | None
    evaluation: Path
    digests: tuple[str, str]  # of the training and the evaluation samples
    checkpoint: Path | None


def launch(
    system_file: Path,
    *,
    overrides: list[str],
    runs: int,
    results: Path,
    save: Path | None = None,
    trace: int | None = None,
) -> int:
    """Runs a system `runs` times. Returns the exit code: 0 all runs ended with a valid log and their target reached,
    1 otherwise, 2 bad input, 128 + n stopped by signal n (or raises `Stopped` between two runs)."""
    resolved = load_system(system_file, overrides)
    for warning in resolved.warnings:
        say(f"warning  {warning}")
    check_arguments(runs, save)
    check_trace(trace, resolved)
    sharding_plan(resolved.run, world_size=resolved.world_size)  # raises if it cannot be
    check_sharp(resolved.run, world_size=resolved.world_size)
    place = find_place(resolved)
    check_port(place)
    say(describe_system(resolved))
    with raising_when_stopped():
        check_devices(resolved)
        say(f"kernels  {chosen_kernels(resolved.run)}")
        check_loader(resolved.run)
        inputs = prepare_inputs(resolved, node=place.node)
        save_dir = None if save is None else open_folder(save, option="--save")
        results_dir = open_folder(results / resolved.name / "bert", option="--results")
        codes: list[int] = []
        while len(codes) < runs and max(codes, default=0) < 2:
            codes.append(run_once(resolved, inputs, place, results_dir, save_dir, trace))
    return max(codes)


def check_arguments(runs: int, save: Path | None) -> None:
    """Raises UserError if the options contradict each other or would overwrite weights."""
    if runs < 1:
        raise UserError(f"--runs is {runs}, expected 1 or more")
    if save is not None and runs > 1:
        raise UserError(f"--save {save} keeps the weights of one run, got --runs {runs}: leave out one of them")
    if save is not None:
        from bert_mlperf.checkpoint.store import FILE_NAME

        if (save / FILE_NAME).exists():
            raise UserError(f"{save / FILE_NAME} exists already and is not overwritten: give --save another folder")


def check_trace(trace: int | None, resolved: ResolvedSystem) -> None:
    """Raises UserError unless step `trace` and the one behind it are steps of the run."""
    steps = resolved.evaluation_points[-1] // resolved.run.recipe.global_batch_size
    if trace is not None and not 0 <= trace <= steps - 2:
        raise UserError(
            f"--trace is {trace}, expected a step from 0 to {steps - 2} (the run has at most {steps} steps, and the "
            "timeline takes in the forward of the next one): give another step."
        )


def find_place(resolved: ResolvedSystem) -> Place:
    """This node among the system's nodes, from NODE_RANK and MASTER_ADDR (or Slurm's variables)."""
    nodes, port = resolved.number_of_nodes, resolved.run.master_port
    if nodes == 1:
        return Place(0, 1, "127.0.0.1", port)
    node, address = os.environ.get("NODE_RANK", os.environ.get("SLURM_NODEID")), os.environ.get("MASTER_ADDR")
    if node is None or address is None or not (node.isascii() and node.isdecimal()) or int(node) >= nodes:
        raise UserError(
            f"system {resolved.name} has {nodes} nodes: start ./run_and_time.sh on each of them with "
            f"NODE_RANK=0..{nodes - 1} and MASTER_ADDR=<host of node 0> (got NODE_RANK={node}, MASTER_ADDR={address})"
        )
    return Place(int(node), nodes, address, port)


def check_port(place: Place) -> None:
    """Raises UserError if the chosen port of node 0 is taken."""
    if place.port == 0 or place.node != 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if place.nodes > 1 else place.address, place.port))
        except OSError as error:
            raise UserError(
                f"port {place.port} (run.master_port) cannot be used on this node ({error.strerror}): "
                "stop the process that holds it, or set another port (0 takes a free one on a single node)"
            ) from error


def check_devices(resolved: ResolvedSystem) -> None:
    """Raises UserError if this node has fewer CUDA devices than ranks that want one."""
    run = resolved.run
    if run.device == "cpu":
        return
    import torch

    found = torch.cuda.device_count()
    if found < run.ranks_per_node and (run.device == "cuda" or found > 0):
        raise UserError(
            f"{resolved.path}: run.ranks_per_node is {run.ranks_per_node}, one CUDA device each, and this node has "
            f"{found}: {'lower it' if found else 'install a CUDA build of PyTorch and a driver'} or set run.device=cpu"
        )


def chosen_kernels(run: Run) -> str:
    """What the ranks will call, in words; the native kernels are built now, if need be. Raises UserError if
    `run.kernels` cannot be had."""
    import torch

    from bert_mlperf.train.setup import kernels, wants_cuda

    names = kernels(run, torch.device("cuda" if wants_cuda(run) else "cpu")).names
    kinds = sorted(set(names.values()))
    if len(kinds) == 1:
        return kinds[0]
    return ", ".join(f"{kind} ({', '.join(k for k, v in names.items() if v == kind)})" for kind in kinds)


def check_loader(run: Run) -> None:
    """Raises UserError if `run.loader` cannot be had."""
    import torch

    from bert_mlperf.train.loading import choose_loader
    from bert_mlperf.train.setup import wants_cuda

    choose_loader(run, torch.device("cuda" if wants_cuda(run) else "cpu"))


def open_folder(folder: Path, *, option: str) -> Path:
    """Creates a folder that an option of the command line names, and proves that files can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"the folder {folder} ({option}) cannot be written ({error.strerror}): free it, or give another with "
            f"{option}"
        ) from error
    return folder.resolve()


def prepare_inputs(resolved: ResolvedSystem, *, node: int = 0) -> Inputs:
    """Makes the demo data if the system uses it, and checks data and checkpoint before any rank starts."""
    from bert_mlperf.launch_data import check_data, digest, train_index, warnings

    run, config = resolved.run, resolved.run.model
    train, evaluation = check_data(resolved, node=node)
    index = train_index(run, train)
    for warning in warnings(resolved, train):
        say(f"warning  {warning}")
    checkpoint = None if run.data.checkpoint is None else Path(run.data.checkpoint).resolve()
    if checkpoint is not None:
        from bert_mlperf.checkpoint.store import check_checkpoint

        check_checkpoint(checkpoint, config)
    say(f"data     train {train}")
    say(f"data     eval  {evaluation}")
    say(f"weights  {'drawn from the seed' if checkpoint is None else checkpoint}")
    return Inputs(
        train=train.path.resolve(),
        train_index=None if index is None else index.resolve(),
        evaluation=evaluation.path.resolve(),
        digests=(digest(train), digest(evaluation)),
        checkpoint=checkpoint,
    )


def run_once(
    resolved: ResolvedSystem, inputs: Inputs, place: Place, results: Path, save: Path | None, trace: int | None
) -> int:
    """One timed run and its verdict."""
    from bert_mlperf.train.context import RunContext

    run = resolved.run
    seed = secrets.randbelow(2**31) if run.seed == "os" else run.seed
    with run_folder(place, results) as (result_file, run_dir), cache_folder(run) as cache:
        cleared, note = clear_caches()
        context = RunContext(
            system=resolved.system.model_dump(by_alias=True),
            train_data=str(inputs.train),
            eval_data=str(inputs.evaluation),
            data_digests=list(inputs.digests),
            checkpoint=None if inputs.checkpoint is None else str(inputs.checkpoint),
            evaluation_points=resolved.evaluation_points,
            threads_per_rank=resolved.threads_per_rank,
            seed=seed,
            run_dir=str(run_dir),
            result_file=None if result_file is None else str(result_file),
            cache_cleared=cleared,
            cache_note=note,
            train_index=None if inputs.train_index is None else str(inputs.train_index),
            cache_dir=cache,
            save_dir=None if save is None else str(save),
            trace_step=trace,
        )
        if result_file is not None:
            say(f"run      {result_file.stem}, seed {seed}")
        try:
            context.write(run_dir / "context.json")
            (run_dir / "config.json").write_text(resolved.to_json())
            (run_dir / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n")
        except OSError as error:
            raise UserError(
                f"{run_dir} cannot be written ({error.strerror}): free space, or give another folder with --results"
            ) from error
        code = start_ranks(run_dir / "context.json", place, ranks_per_node=run.ranks_per_node)
        if code < 128:
            raise_when_stopped()  # the agent has left handlers of its own
        if result_file is None:
            return code
        return finish(resolved, result_file, run_dir, code)


@contextlib.contextmanager
def run_folder(place: Place, results: Path) -> Iterator[tuple[Path | None, Path]]:
    """(result_<n>.txt, run_<n>/) with the next free number on node 0; a temporary folder on the others."""
    if place.node == 0:
        yield claim_result(results)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield None, Path(folder)


@contextlib.contextmanager
def cache_folder(run: Run) -> Iterator[str | None]:
    """A folder of this run for run.cache, removed in the end; None where nothing is cached."""
    if run.cache == "none":
        yield None
        return
    from bert_mlperf.data.node_cache import run_folder as cache_run_folder

    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(cache_run_folder(Path(run.cache_folder)))
        except OSError as error:
            raise UserError(
                f"nothing can be written to run.cache_folder {run.cache_folder} ({error.strerror}): give another "
                "folder in memory or on a local disk of this node"
            ) from error
        yield str(folder)


def claim_result(results: Path) -> tuple[Path, Path]:
    """Creates the first free pair result_<n>.txt and run_<n>/ and returns it; whatever exists is left alone."""
    number = 0
    while True:
        result_file, run_dir = results / f"result_{number}.txt", results / f"run_{number}"
        number += 1
        if result_file.exists():
            continue
        try:
            run_dir.mkdir()
            result_file.touch(exist_ok=False)
        except FileExistsError:
            continue
        return result_file, run_dir


def clear_caches() -> tuple[bool, str]:
    """Drops the page cache of this node if it may. Returns (done, what was done or why not)."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        return False, f"page cache not dropped: {os.strerror(error.errno or errno.EPERM)}"
    return True, "sync; echo 3 > /proc/sys/vm/drop_caches"


def finish(resolved: ResolvedSystem, result_file: Path, run_dir: Path, code: int) -> int:
    """Checks the log, draws the curves and prints both; the exit code of the run."""
    from bert_mlperf.mlperf.check import check_log
    from bert_mlperf.report.charts import draw_curves

    say(f"log      {shown(result_file)}")
    if result_file.stat().st_size == 0:  # stopped before init_start
        return code
    verdict = check_log(result_file)
    say(f"verdict  {verdict}: {verdict.summary}")
    if code != 0:
        return code
    try:
        say(f"picture  {shown(draw_curves(run_dir))}")
    except OSError as error:
        say(f"picture  none: {run_dir} cannot be written ({error.strerror})")
    return 0 if verdict.ok and verdict.target_met else 1


def describe_system(resolved: ResolvedSystem) -> str:
    system, run = resolved.system, resolved.run
    return (
        f"system   {resolved.name}: {system.number_of_nodes} node(s) x {run.ranks_per_node} rank(s), {run.device}, "
        f"{run.precision} | model {run.model.name} ({system.division} division) | "
        f"batch {run.recipe.global_batch_size}, rate {run.recipe.base_learning_rate:g}"
    )


def shown(path: Path) -> str:
    """The path as a person would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
