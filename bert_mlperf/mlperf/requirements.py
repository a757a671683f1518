"""What a BERT log has to hold, by round and division: tables and pure functions."""

from bert_mlperf.config import rules

ONCE = (
    "init_stop",
    "run_start",
    "run_stop",
    "submission_division",
    "submission_benchmark",
    "train_samples",
    "eval_samples",
)
SOME = ("cache_clear", "init_start", "eval_accuracy")
EITHER = (("block_start", "epoch_start"), ("block_stop", "epoch_stop"))
HYPERPARAMETERS = (
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_base_learning_rate",
    "opt_learning_rate_training_steps",
    "opt_learning_rate_warmup_steps",
    "num_warmup_steps",
    "start_warmup_step",
    "opt_lamb_beta_1",
    "opt_lamb_beta_2",
    "opt_lamb_weight_decay_rate",
)
OPTIONAL_ALIKE = ("d_batch_size", "max_predictions_per_seq", "max_sequence_length", "target_accuracy")
TENSORS = 398  # variables of the reference model
EVAL_SAMPLES = 10_000


def required_once(round_name: str, division: str) -> tuple[str, ...]:
    """Keys of which a log has exactly one line."""
    table = rules.ROUND_TABLE[round_name]
    keys = ONCE + table.identity_keys
    return keys + HYPERPARAMETERS + (table.epsilon_key,) if division == "closed" else keys


def required_some(division: str) -> tuple[str, ...]:
    """Keys of which a log has one line or more. The seed is asked for by the seed check, in the closed division."""
    return (*SOME, "seed") if division == "closed" else SOME


def alike(round_name: str) -> tuple[str, ...]:
    """Keys whose values are the same in all runs of a result."""
    return (*HYPERPARAMETERS, rules.ROUND_TABLE[round_name].epsilon_key, *OPTIONAL_ALIKE)
