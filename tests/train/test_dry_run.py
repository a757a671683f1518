"""BERT-Large on 8 nodes x 8 ranks, against figures worked out by hand; and the command that prints them."""

import re

import pytest
import torch
import torch.distributed as dist

from bert_mlperf.cli import main
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.topology import Topology
from bert_mlperf.config.model import NAMED_MODELS
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.train import dry_run as dry
from bert_mlperf.train.setup import build_state
from tests.config import files
from tests.train.small import small_run

# Elements, by hand: matrices and biases of BERT-Large (hidden 1024, feed-forward 4096, vocabulary 30522).
EMBEDDINGS = (30522 + 512 + 2) * 1024 + 2 * 1024
LAYER = (3 * 1024 * 1024 + 3 * 1024) + (1024 * 1024 + 1024) + 2 * 1024
LAYER += (1024 * 4096 + 4096) + (4096 * 1024 + 1024) + 2 * 1024
HEADS = (1024 * 1024 + 1024) + (2 * 1024 + 2) + (1024 * 1024 + 1024) + 2 * 1024 + 30522
PARAMETERS = 336_226_108

# A layer is handed over in backward's order: output 4,195,328 and its norm 2,048 (before it), intermediate 4,198,400,
# attention norm 2,048, attention output 1,049,600, query-key-value 3,148,800. 25 MiB of bf16 are 13,107,200 elements;
# a bucket is closed as soon as it holds them. So the buckets are
#   heads + layer 23                                                  14,730,044; 14,730,112 filled up to 64s
#   layer 22 + norm and output of 21                                  16,793,600
#   the rest of 21 + norm, output and intermediate of 20              16,794,624
#   the rest of 20 + all of 19 but query-key-value                    13,647,872
#   query-key-value of 19 + layer 18                                  15,745,024
# these four, 5 layers, three times more, to layer 3; of layers 2, 1 and 0 as the first two; the rest of layer 0 and the
# embeddings, 35,983,360. Each is filled up to a multiple of 64 elements for each shard: of 512 for 8, of 4,096 for 64.
FIVE_LAYERS_8 = [32_800 * 512, 32_802 * 512, 26_656 * 512, 30_752 * 512]
BUCKETS_8 = [28_770 * 512, *4 * FIVE_LAYERS_8, 32_800 * 512, 32_802 * 512, 70_280 * 512]
FIVE_LAYERS_64 = [4_100 * 4_096, 4_101 * 4_096, 3_332 * 4_096, 3_844 * 4_096]
BUCKETS_64 = [3_597 * 4_096, *4 * FIVE_LAYERS_64, 4_100 * 4_096, 4_101 * 4_096, 8_785 * 4_096]
SIZE_8, SIZE_64 = 336_226_304, 336_244_736

# bytes, bf16 on the wire and in the model
SENT = {  # reduce-scatter, all-reduce, gather
    "flat": (2 * SIZE_64 // 64 * 63, 0, 2 * SIZE_64 // 64 * 63),
    "node": (0, 2 * 2 * SIZE_8 // 64 * 63, 2 * SIZE_8 // 8 * 7),
    "hierarchical": (2 * SIZE_8 // 8 * 7, 2 * (2 * SIZE_8 // 8) // 8 * 7, 2 * SIZE_8 // 8 * 7),
}
GRADIENTS = 2 * PARAMETERS
HELD = {  # weights, gradients, accumulated, state, reduced, buffers (three times the largest bucket, parts of it)
    "flat": (2 * SIZE_64, GRADIENTS, 0, 12 * SIZE_64 // 64, 4 * SIZE_64 // 64, 3 * 71_966_720 + 1_124_480),
    "node": (2 * SIZE_8, GRADIENTS, 0, 12 * SIZE_8 // 8, 4 * SIZE_8 // 8, 3 * 71_966_720),
    "hierarchical": (2 * SIZE_8, GRADIENTS, 0, 12 * SIZE_8 // 8, 4 * SIZE_8 // 8, 3 * 71_966_720 + 4 * 8_995_840),
}
TOTALS = {
    "flat": (1_323_963_648, 1_646_027_512),
    "node": (1_912_287_104, 2_233_257_592),
    "hierarchical": (1_323_891_072, 2_269_240_952),
}


def large_run(**changes):
    fields = {"model": NAMED_MODELS["bert-large"], "ranks_per_node": 8, "precision": "bf16", "device": "cuda"}
    recipe = {"global_batch_size": 3072, "base_learning_rate": 0.002, "training_steps": 1059}
    return small_run(**{**fields, "recipe": recipe, "micro_batch_size": 48, **changes})


def test_the_figures_by_hand_are_those_of_the_model():
    assert EMBEDDINGS + 24 * LAYER + HEADS == PARAMETERS == NAMED_MODELS["bert-large"].num_parameters
    assert (sum(BUCKETS_8), sum(BUCKETS_64)) == (SIZE_8, SIZE_64)
    assert (SIZE_8 - PARAMETERS, SIZE_64 - PARAMETERS) == (196, 18_628)


@pytest.fixture(scope="module")
def eight_by_eight():
    return dry.dry_runs(large_run(), nodes=8, rank=11)


@pytest.mark.parametrize("strategy", ["flat", "node", "hierarchical"])
def test_bert_large_on_8_x_8(strategy, eight_by_eight):
    found = eight_by_eight[strategy]
    sent, held = found.traffic, found.memory
    assert [bucket.size for bucket in found.state.flat.layout.buckets] == (
        BUCKETS_64 if strategy == "flat" else BUCKETS_8
    )
    assert (sent.reduce_scatter, sent.all_reduce, sent.gather) == SENT[strategy]
    assert tuple(vars(held).values()) == HELD[strategy]
    assert (sent.total, held.total) == TOTALS[strategy]
    shards = 64 if strategy == "flat" else 8
    assert held.state == pytest.approx(12 * PARAMETERS / shards, rel=1e-4)


def test_borders_of_a_shard(eight_by_eight):
    """Shard 3 of 8. Bucket 0 begins with the matrices of pooler, classifier, transform and layer 23's output; the last
    one with those of layer 0's attention and the word embeddings. Bucket 0 has 2 pieces of it, the four that follow 2,
    3, 1 and 2, the last three 2, 3 and 1."""
    found = eight_by_eight["hierarchical"]
    matrices = 1024 * 1024
    first = 3 * 14_730_240 // 8 - (matrices + 2048 + matrices)
    last = 4 * 35_983_360 // 8 - (1 + 3) * matrices
    assert (first, last) == (3_424_640, 13_797_376)
    assert found.first == dry.Border("bert/encoder/layer_23/output/dense/kernel", first)
    assert found.last == dry.Border("bert/embeddings/word_embeddings", last)
    pieces = 2 + 4 * (2 + 3 + 1 + 2) + 2 + 3 + 1
    assert (found.num_pieces, found.state.flat.layout.shard_size) == (pieces, SIZE_8 // 8)


def test_the_last_shard_ends_with_the_last_tensor():
    found = dry.dry_run(large_run(reduction="hierarchical"), rank=63, world_size=64)
    assert found.last == dry.Border("bert/embeddings/LayerNorm/beta", 1024)


@pytest.mark.parametrize(
    ("changes", "accumulated", "buffers"),
    [
        ({}, 0, 3 * 71_966_720 + 4 * 8_995_840),  # three buckets and their parts, NCCL receives a part
        ({"device": "cpu"}, 0, 2 * 6 * 2**22 + 3 * 2**18),  # slots of both lanes, parts of three slices
        ({"device": "cpu", "reduction": "node"}, 0, 2 * 6 * 2**22 + 3 * 2**21),  # slots and three slices
        ({"gradient_accumulation_steps": 2}, 4 * SIZE_8, 3 * 71_966_720 + 4 * 8_995_840),
        ({"precision": "fp32", "bucket_mib": 50.0}, 0, 2 * (3 * 71_966_720 + 8_995_840)),
        ({"wire": "fp32", "bucket_mib": 50.0}, 0, 2 * (3 * 71_966_720 + 8_995_840)),
    ],
)
def test_buffers_of_hierarchical(changes, accumulated, buffers):
    held = dry.dry_run(large_run(**{"reduction": "hierarchical"} | changes), rank=0, world_size=64).memory
    assert (held.accumulated, held.buffers) == (accumulated, buffers)


def test_every_group_has_the_right_ranks_on_each_of_the_64_ranks():
    for rank in range(64):
        node, place = rank // 8, rank % 8
        with dry.fake_ranks(rank, 64):
            by_node = dry.group_ranks(Topology(rank, 64, 8))
            by_world = dry.group_ranks(Topology(rank, 64, 64))
            by_pair = dry.group_ranks(Topology(rank, 64, 2))
        everyone = list(range(64))
        assert by_node == {
            "world": everyone,
            "shard": [8 * node + other for other in range(8)],
            "replica": [8 * other + place for other in range(8)],
        }
        assert by_world == {"world": everyone, "shard": everyone, "replica": [rank]}
        assert by_pair["shard"] == [rank - rank % 2, rank - rank % 2 + 1]
        assert by_pair["replica"] == list(range(rank % 2, 64, 2))
    assert not dist.is_initialized()


def test_what_is_the_same_storage_is_counted_once():
    """One rank in fp32: shard and weights are the same tensor."""
    run = small_run(reduction="flat")
    state = build_state(run, Control(rank=0, world_size=1), torch.device("cpu"), seed=1, checkpoint=None)
    size = 4 * state.flat.layout.size
    held = dry.memory(sharding_plan(run, world_size=1), Topology(0, 1, 1), state, backend="gloo", ranks_per_node=1)
    gradients = 4 * sum(p.numel() for p in state.model.parameters())
    assert held == dry.Memory(size, gradients, 0, state=2 * size, reduced=size, buffers=0)


def system_file(folder, **run):
    small = files.small()
    return str(files.write(folder, small | {"run": small["run"] | run}))


def test_the_command_prints_a_table_per_strategy(tmp_path, capsys):
    system = system_file(tmp_path, model="bert-large", precision="bf16", device="cuda")
    changes = ["ranks_per_node=8", "gradient_accumulation_steps=1", "recipe.global_batch_size=32"]
    assert main(["plan", "--system", system, "--nodes", "8", "--rank", "15", "--set", *changes]) == 0
    text = capsys.readouterr().out
    assert "bert-large: 336,226,108 parameters, bf16; rank 15 of 8 nodes x 8 ranks" in text
    assert "7 15 23 31 39 47 55 63 (one of 8)" in text
    assert len(re.findall(r"holds total +2,233,257,592 bytes +2,129\.8 MiB", text)) == 1
    assert len(re.findall(r"holds total +2,269,240,952 bytes +2,164\.1 MiB", text)) == 1
    assert [line.strip() for line in text.splitlines() if line.strip() in dry.STRATEGIES] == list(dry.STRATEGIES)


def test_the_command_says_what_cannot_be(tmp_path, capsys):
    system = system_file(tmp_path)
    assert main(["plan", "--system", system]) == 0
    assert "hierarchical: not possible here: run.reduction is hierarchical" in capsys.readouterr().out
    for arguments, sentence in (
        (["--rank", "2"], "error: --rank is 2, expected 0 to 1 for 2 ranks; give one of these.\n"),
        (["--nodes", "0"], "error: --nodes 0 makes 0 ranks, expected 1 to 65,536; give another number.\n"),
        (["--nodes", "40000"], "error: --nodes 40000 makes 80000 ranks, expected 1 to 65,536; give another number.\n"),
    ):
        assert main(["plan", "--system", system, *arguments]) == 2
        assert capsys.readouterr().err == sentence


def test_a_shard_group_of_its_own_size_is_kept_where_it_fits():
    found = dry.dry_runs(small_run(ranks_per_node=4, shard_group=2), nodes=2, rank=5)
    assert [found[name].topology.shard_group_size for name in dry.STRATEGIES] == [8, 2, 2]
    groups = found["hierarchical"].groups
    assert groups == {"world": list(range(8)), "shard": [4, 5], "replica": [1, 3, 5, 7]}
