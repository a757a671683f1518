"""One rank's whole run: initialise, start the clock, train, stop the clock."""

import sys
import time
from contextlib import closing
from pathlib import Path

import torch

from bert_mlperf.checkpoint.store import save_weights
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo, open_process_group
from bert_mlperf.config.system import System
from bert_mlperf.data.background import InBackground
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.report.metrics import MetricsWriter
from bert_mlperf.report.progress import Progress
from bert_mlperf.train import loading, setup
from bert_mlperf.train.context import RunContext
from bert_mlperf.train.loop import Outcome, TrainLoop, peak_over_ranks
from bert_mlperf.train.sharding import decide_sharding
from bert_mlperf.train.step import TrainState
from bert_mlperf.train.trace import StepTrace


def run_rank(context: RunContext, info: RankInfo, log: MlperfLog) -> None:
    """Everything between init_start and run_stop. Whatever cuts a run short is logged as aborted and raised again."""
    system = System.model_validate(context.system)
    check_world_size(system, info)
    state = None
    try:
        log.cache_clear(done=context.cache_cleared, reason=context.cache_note)
        log.init_start()
        state, links, seed = initialise(context, system, info, log)
        log.init_stop()
        log.run_start()
        started = time.perf_counter()
        outcome = train_to_target(context, system, state, links, info, log, seed=seed)
    except BaseException:
        if not log.ended:
            log.run_stop("aborted", 0 if state is None else state.samples)
        raise
    seconds = time.perf_counter() - started
    memory = peak_over_ranks(state, setup.peak_memory_gib())
    report_end(outcome, seconds, memory, target=system.run.target_accuracy, info=info)
    if context.save_dir is not None:
        weights = state.weights.in_fp32()
        if info.rank == 0:
            say(info, f"weights  {save_weights(Path(context.save_dir), system.run.model, weights)}")


def initialise(
    context: RunContext, system: System, info: RankInfo, log: MlperfLog
) -> tuple[TrainState, loading.DataLinks, int]:
    """Process group, model, optimizer and warm-up: all that may be done before the clock starts. Returns the state, how
    the data sides talk and the run's seed; no sample has been read."""
    run, started = system.run, time.perf_counter()
    device = setup.pick_device(run, info, threads=context.threads_per_rank)
    open_process_group(info, device, timeout_s=run.timeout_s)
    control = Control(rank=info.rank, world_size=info.world_size)
    seed = setup.shared_seed(context.seed, control, device)
    for node, done in enumerate(setup.of_each_node(context.cache_cleared, run, info, control, device)):
        if node > 0:  # that of node 0 was logged first of all
            log.cache_clear(done=bool(done), reason=f"as node {node} told")
    setup.check_same_data(context.data_digests, run, info, control, device)
    log.submission(system)
    log.hyperparameters(run, seed)
    plan = decide_sharding(run, control, device, folder=Path(context.run_dir))
    state = setup.build_state(run, control, device, seed=seed, checkpoint=context.checkpoint, plan=plan)
    log.weights_initialization([spec.name for spec in tensor_specs(run.model)])
    links = loading.DataLinks.open(run, info, device)
    built = time.perf_counter()
    setup.warm_up(state, run)
    control.sum(torch.zeros(1, device=device))  # the clock starts when every rank is ready
    ready = time.perf_counter()
    workers = f"{run.loader_workers} thread{'s' * (run.loader_workers > 1)}"
    taken = loading.choose_loader(run, device)
    say(info, f"loader   {taken}, {workers} a rank, read {run.read}, balance {run.balance}, cache {run.cache}")
    say(info, f"init     {ready - started:.1f} s (build {built - started:.1f}, warm-up {ready - built:.1f})")
    return state, links, seed


def check_world_size(system: System, info: RankInfo) -> None:
    """Raises UserError if other ranks were started than the system asks for."""
    nodes, per_node = int(system.number_of_nodes), system.run.ranks_per_node
    if info.world_size != nodes * per_node:
        raise UserError(
            f"{info.world_size} ranks were started, system {system.system_name} wants {nodes} nodes x {per_node} ranks "
            f"= {nodes * per_node}: start it with ./run_and_time.sh, or correct number_of_nodes or run.ranks_per_node"
        )


def train_to_target(
    context: RunContext,
    system: System,
    state: TrainState,
    links: loading.DataLinks,
    info: RankInfo,
    log: MlperfLog,
    *,
    seed: int,
) -> Outcome:
    """Opens the data, trains and evaluates; ends with run_stop in the log."""
    run, started = system.run, time.perf_counter()
    train_data = Path(context.train_data)
    if context.cache_dir is not None:
        train_data = loading.cache_on_node(run, train_data, Path(context.cache_dir), info, links, state.control)
    with closing(loading.open_shards(run, train_data, index=context.train_index)) as train:
        with closing(loading.open_shards(run, Path(context.eval_data))) as evaluation:
            points = context.evaluation_points
            progress = Progress(total_samples=points[-1], target=run.target_accuracy, active=info.rank == 0)
            metrics = MetricsWriter(Path(context.run_dir) if info.rank == 0 else None)
            batches = InBackground(lambda: loading.evaluation_batches(run, evaluation, info))
            log.epoch_start(state.samples)
            order_seed = setup.derived_seed(seed, "order")
            opened = loading.open_loader(run, train, info, state.device, order_seed=order_seed, links=links)
            with opened as loader, metrics, progress:
                trace = StepTrace(context.trace_step, Path(context.run_dir))
                loop = TrainLoop(
                    state, loader, batches, log, metrics, progress, run.progress_interval_s, trace, run.timeout_s
                )
                outcome = loop.run(points, run.target_accuracy)
                log.epoch_stop(state.samples)
                log.train_samples(state.samples)
                log.eval_samples(evaluation.num_samples)
                log.run_stop("success" if outcome.reached else "aborted", state.samples)
                waited = loop.wait_share
    if loop.first_step_at is not None:
        first = loop.first_step_at - started
        say(
            info, f"samples  first step {first:.2f} s after run_start, then {waited:.2%} of the time waited for samples"
        )
    return outcome


def report_end(outcome: Outcome, seconds: float, memory_gib: float, *, target: float | None, info: RankInfo) -> None:
    """The closing line on stderr."""
    if target is None:
        verdict = f"trained  {outcome.samples:,} samples, accuracy {outcome.accuracy:.4f} (no target)"
    else:
        word, sign = ("reached ", ">=") if outcome.reached else ("missed  ", "<")
        verdict = f"{word} {outcome.accuracy:.4f} {sign} {target:.4g} at {outcome.samples:,} samples"
    rate = outcome.samples / seconds
    say(
        info,
        f"{verdict} | run {seconds:.1f} s | total {rate:,.3g} samples/s | peak memory {memory_gib:.2f} GiB per rank",
    )


def say(info: RankInfo, text: str) -> None:
    """A line on stderr, from rank 0 alone."""
    if info.rank == 0:
        print(text, file=sys.stderr, flush=True)
