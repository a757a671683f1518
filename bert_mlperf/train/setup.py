"""Builds what a run needs: device, state, warm-up, data. Each builder is called once, by `train.run`."""

import math
import resource
from pathlib import Path

import numpy as np
import torch

from bert_mlperf.checkpoint.store import load_weights
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.lanes import Lane
from bert_mlperf.comm.overlap import GradientReduction, WeightGather
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.comm.recorder import GATHER, REDUCE, Recorder
from bert_mlperf.comm.reduction import WIRE_DTYPES, Reduction
from bert_mlperf.comm.sharp import SharpRequest
from bert_mlperf.comm.topology import Groups, Topology, open_groups, step_groups
from bert_mlperf.config.sharding import ShardingPlan, sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.data.samples import Samples
from bert_mlperf.errors import UserError
from bert_mlperf.kernels.registry import Kernels, select
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import BertForPreTraining, build_model
from bert_mlperf.model.tensors import TensorSpec, tensor_specs
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.layout import FlatLayout, TensorRange, make_layout
from bert_mlperf.optim.loss_scale import LossScale
from bert_mlperf.optim.sharded_lamb import ShardedLamb
from bert_mlperf.train.inter_node import sharp_request
from bert_mlperf.train.step import TrainState, train_step


def pick_device(run: Run, info: RankInfo, *, threads: int) -> torch.device:
    """The device of this rank; on the CPU with `threads` threads."""
    if not wants_cuda(run):
        torch.set_num_threads(threads)
        return torch.device("cpu")
    torch.cuda.set_device(info.local_rank)
    return torch.device("cuda", info.local_rank)


def wants_cuda(run: Run) -> bool:
    return run.device == "cuda" or (run.device == "auto" and torch.cuda.is_available())


def shared_seed(seed: int, control: Control, device: torch.device) -> int:
    """The seed of rank 0, on every rank."""
    seed_1 = torch.tensor([seed], dtype=torch.int64, device=device)
    control.broadcast(seed_1)
    return int(seed_1.item())


def of_each_node(value: int, run: Run, info: RankInfo, control: Control, device: torch.device) -> list[int]:
    """`value` as the first rank of each node has it, in the order of the nodes; the same list on every rank."""
    values = torch.zeros(info.world_size // run.ranks_per_node, dtype=torch.int64, device=device)
    if info.rank % run.ranks_per_node == 0:
        values[info.rank // run.ranks_per_node] = value
    control.sum(values)
    return [int(value) for value in values.tolist()]


def check_same_data(digests: list[str], run: Run, info: RankInfo, control: Control, device: torch.device) -> None:
    """Raises UserError if nodes have other samples than node 0. `digests` are hex, of train and eval."""
    for name, digest in zip(("train", "eval"), digests, strict=False):
        found = of_each_node(int(digest[:12], 16), run, info, control, device)
        for node, value in enumerate(found):
            if value != found[0]:
                raise UserError(
                    f"run.data.{name} holds other samples on node {node} than on node 0 (digest {value:012x}, expected "
                    f"{found[0]:012x}); copy the same shards, and the same index if there is one, to all nodes"
                )


def derived_seed(seed: int, purpose: str, rank: int = 0) -> int:
    """An independent 63-bit seed for one purpose (weights, order, dropout) and rank, from the run's one seed."""
    words = np.random.SeedSequence([seed, rank, *purpose.encode()]).generate_state(1, dtype=np.uint64)
    return int(words[0] >> np.uint64(1))


def build_state(
    run: Run,
    control: Control,
    device: torch.device,
    *,
    seed: int,
    checkpoint: str | None,
    plan: ShardingPlan | None = None,
) -> TrainState:
    """Model, flat buffers, shards and optimizer; weights drawn or from the checkpoint (rank 0 reads it), equal on all
    ranks. Moments and step start at zero whatever the checkpoint holds. `plan` is what `train.sharding` decided."""
    plan = plan or sharding_plan(run, world_size=control.world_size)
    model = build_model(
        run.model, seed=derived_seed(seed, "weights"), kernels=kernels(run, device), recompute=run.recompute
    )
    if checkpoint is not None and control.rank == 0:
        model.load_state_dict(load_weights(Path(checkpoint), run.model), strict=True)
    model = model.to(device)
    for parameter in model.parameters():
        control.broadcast(parameter.data)
    sharp = sharp_request(run, plan, control, device)
    return shard_state(model, run, plan, control, device, dropout_seed=derived_seed(seed, "dropout"), sharp=sharp)


def kernels(run: Run, device: torch.device) -> Kernels:
    """The operations of the run. UserError if `run.kernels` cannot be had."""
    try:
        return select(device, run.kernels)
    except ValueError as error:
        raise UserError(f"{error}.") from None


def shard_state(
    model: BertForPreTraining,
    run: Run,
    plan: ShardingPlan,
    control: Control,
    device: torch.device,
    *,
    dropout_seed: int = 0,
    sharp: SharpRequest | None = None,
) -> TrainState:
    """The state of a model (its fp32 weights are equal on all ranks) that trains as `plan` says."""
    topology = Topology(control.rank, control.world_size, plan.shard_group_size)
    layout = model_layout(model, plan)
    flat = FlatBuffers(
        model,
        layout,
        shard=topology.shard,
        precision=run.precision,
        accumulation_steps=run.gradient_accumulation_steps,
    )

    def reduction(groups: Groups) -> Reduction:
        return Reduction(topology, groups, strategy=plan.strategy, kernels=model.kernels)

    optimizer = ShardedLamb(
        flat,
        [tensor_range(spec, layout) for spec in tensor_specs(run.model)],
        run.recipe,
        sum_over_shards=reduction(step_groups(topology, timeout_s=run.timeout_s)).sum_over_shards,
        can_skip=run.precision == "fp16",
        kernels=model.kernels,
    )
    recorder = Recorder(device)
    lanes = [Lane(name, device, overlap=plan.overlap, recorder=recorder) for name in (REDUCE, GATHER)]
    of_gradients = reduction(open_groups(topology, timeout_s=run.timeout_s, sharp=sharp))
    gradients = GradientReduction(flat, of_gradients, lanes[0], wire_dtype=WIRE_DTYPES[plan.wire])
    gradients.watch(dict(model.named_parameters()))
    weights = WeightGather(flat, reduction(open_groups(topology, timeout_s=run.timeout_s)), lanes[1])
    weights.watch(model.units())
    scale = LossScale(device, dynamic=run.precision == "fp16")
    return TrainState(model, flat, optimizer, gradients, weights, control, device, scale, recorder, dropout_seed)


def model_layout(model: BertForPreTraining, plan: ShardingPlan) -> FlatLayout:
    """Where the parameters of `model` lie; its weights are not looked at."""
    return make_layout(
        {name: tuple(p.shape) for name, p in model.named_parameters()},
        units=model.gradient_units(),
        decayed=[spec.parameter for spec in tensor_specs(model.config) if spec.adapted],
        num_shards=plan.shard_group_size,
        bucket_size=plan.bucket_size,
    )


def tensor_range(spec: TensorSpec, layout: FlatLayout) -> TensorRange:
    """Where a tensor of the reference lies in the flat buffer."""
    slot = layout.slots[spec.parameter]
    first, end = spec.rows or (0, slot.shape[0])
    row = math.prod(slot.shape[1:])
    return TensorRange(spec.name, slot.start + first * row, slot.start + end * row, spec.adapted)


def synthetic_samples(num_samples: int, length: int, vocab_size: int) -> Samples:
    """Samples of one length with ids drawn from a fixed stream and 15% masked: for warm-up, not for learning."""
    generator = np.random.default_rng(0)
    masked_per_sample = max(1, min(76, round(0.15 * length)))
    positions = np.arange(masked_per_sample) * length // masked_per_sample
    return Samples(
        input_ids=generator.integers(0, vocab_size, num_samples * length),
        segment_ids=np.zeros(num_samples * length, dtype=np.uint8),
        offsets=np.arange(num_samples + 1) * length,
        masked_positions=np.tile(positions, num_samples),
        masked_ids=generator.integers(0, vocab_size, num_samples * masked_per_sample),
        masked_offsets=np.arange(num_samples + 1) * masked_per_sample,
        next_sentence_labels=np.zeros(num_samples, dtype=np.uint8),
    )


def warm_up(state: TrainState, run: Run) -> None:
    """One full step on synthetic samples with learning rate 0: weights, moments and counters end as they were."""
    config, world_size = run.model, state.control.world_size
    samples = synthetic_samples(run.micro_batch_size, config.max_position_embeddings, config.vocab_size)
    step = StepSamples(
        step=0,
        micro_batches=[make_batch(samples)],
        global_samples=samples.num_samples * world_size,
        global_masked=samples.num_masked * world_size,
        global_tokens=samples.num_tokens * world_size,
    )
    optimizer = state.optimizer
    recipe, optimizer.recipe = optimizer.recipe, optimizer.recipe.model_copy(update={"base_learning_rate": 0.0})
    train_step(state, step)
    state.check_finite()
    optimizer.recipe = recipe
    state.flat.zero_gradients()
    optimizer.reset()
    state.loss_scale.reset()
    state.step, state.samples, state.last_norm = 0, 0, None


def peak_memory_gib() -> float:
    """Largest resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
