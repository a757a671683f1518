"""A system: what stands in systems/<name>.json, validated, with `--set` applied and every default filled in."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bert_mlperf.config import rules
from bert_mlperf.config.description import MLPERF_FIELDS, SystemDescription
from bert_mlperf.config.explain import explain, nearest
from bert_mlperf.config.model import NAMED_MODELS, ModelConfig
from bert_mlperf.config.reading import apply_override, parse_override, read_object, shown
from bert_mlperf.config.recipe import Recipe
from bert_mlperf.errors import UserError

MAX_EVALUATIONS = 100_000  # of a run
DEMO_DATA = ("demo", "demo-long")  # words for the embedded data: short samples to learn from, samples of 512 tokens


def _named_model(value: Any) -> Any:
    """The model that a name stands for; an object is passed on to be validated."""
    if isinstance(value, dict | ModelConfig):
        return value
    if not isinstance(value, str):
        raise ValueError(f"got {shown(value)}, expected the name of a model or an object")
    if value not in NAMED_MODELS:
        close = nearest(value, NAMED_MODELS)
        advice = f"did you mean {close!r}?" if close else f"known are {', '.join(NAMED_MODELS)}"
        raise ValueError(f"no model is named {value!r} ({advice}; any other model is given as an object)")
    return NAMED_MODELS[value]


Implementation = Literal["auto", "reference", "native", "triton", "compiled", "library"]
Kernel = Literal[
    "embedding_layer_norm",
    "dropout_add_layer_norm",
    "bias_gelu",
    "attention",
    "linear_cross_entropy",
    "lamb",
    "grad_norm_cast",
]


class Data(BaseModel):
    """Where the samples are: a folder of shards or one file. ${NAME} is replaced by the environment variable.

    A relative path starts at the folder above `systems/` if the system file lies in a folder of that name, else at the
    working directory. The words "demo" and "demo-long" mean the embedded demo data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    train: str = Field(min_length=1, description="Training samples: a folder, a file or a word for the demo data.")
    eval: str = Field(min_length=1, description="Evaluation samples: a folder, a file or a word for the demo data.")
    checkpoint: str | None = Field(default=None, description="Initial weights; without it they are drawn.")


class Run(BaseModel):
    """How this project trains on the system. A sample is one training example, a rank one training process."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: Annotated[ModelConfig, BeforeValidator(_named_model)] = Field(description="A model's name, or its shape.")
    recipe: Recipe = Field(description="Hyperparameters.")
    data: Data = Field(description="Where the samples are.")
    micro_batch_size: int = Field(ge=1, description="Samples of one forward pass of one rank.")
    gradient_accumulation_steps: int = Field(default=1, ge=1, description="Micro-batches of one rank per step.")
    ranks_per_node: int = Field(default=1, ge=1, description="Ranks of one host.")
    threads_per_rank: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        default="auto", description="CPU threads of a rank; auto shares the host's cores out."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where to train; auto prefers cuda.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="bf16", description="Of weights and compute in a step; fp16 with a dynamic loss scale."
    )
    reduction: Literal["auto", "flat", "node", "hierarchical"] = Field(
        default="auto", description="How gradients are summed over the ranks; auto times them on several nodes."
    )
    shard_group: Annotated[int, Field(ge=1)] | Literal["auto", "node", "world"] = Field(
        default="auto",
        description="Ranks that share one copy of the optimizer state; auto: world for flat, else node.",
    )
    wire: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="Of gradients on the wire; auto is the precision."
    )
    bucket_mib: float = Field(default=25.0, gt=0, le=1e6, description="Size of what is reduced at a time, in MiB.")
    sharp: Literal["auto", "off", "require"] = Field(
        default="auto",
        description="Whether the all-reduce between nodes asks for SHARP; require ends the run where it cannot.",
    )
    overlap: bool = Field(default=True, description="Whether ranks talk under backward and forward.")
    kernels: Implementation | dict[Kernel, Implementation] = Field(
        default="auto", description="Implementation of all kernels, or of each by name; auto chooses for the device."
    )
    recompute: Annotated[int, Field(ge=1)] | Literal["none", "attention"] = Field(
        default="none", description="What backward computes again to save memory: nothing, attention, every n-th layer."
    )
    loader: Literal["auto", "dali", "torch"] = Field(
        default="auto", description="What brings batches to the device; auto is dali on a GPU where it is installed."
    )
    loader_workers: int = Field(default=1, ge=1, le=64, description="Threads of a rank that read and pack samples.")
    balance: Literal["none", "strided", "snake"] = Field(
        default="snake", description="How the samples of a global batch are dealt to the ranks by their lengths."
    )
    read: Literal["index", "exchange"] = Field(
        default="index",
        description="Whether a rank reads its own samples, or those of its own shards, which then change hands.",
    )
    cache: Literal["none", "node"] = Field(
        default="none", description="Whether nodes read the training shards together, once, into cache_folder."
    )
    cache_folder: str = Field(
        default="/dev/shm", min_length=1, description="Memory or local disk of a node for cache, an absolute path."
    )
    target_accuracy: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=rules.TARGET_ACCURACY,
        description="Masked-LM accuracy, as a share, at which a run ends; null trains to max_samples.",
    )
    eval_interval_samples: Annotated[int, Field(gt=0)] | Literal["rule"] = Field(
        default="rule", description="Training samples between evaluations; rule is the formula of the MLPerf rules."
    )
    max_samples: int = Field(
        default=4_500_000, ge=1, le=10**10, description="Training samples after which a run is given up."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] | Literal["os"] = Field(
        default="os", description="Of weights, data order and dropout; os draws one per run."
    )
    master_port: int = Field(default=0, ge=0, le=65535, description="TCP port of the first host; 0 takes a free one.")
    progress_interval_s: float = Field(default=5.0, gt=0, description="Seconds between two progress lines.")
    timeout_s: float = Field(
        default=60.0, ge=1, le=86_400, description="Seconds after which a silent rank counts as dead."
    )


class System(SystemDescription):
    """The MLPerf description of a system and how it runs."""

    run: Run = Field(description="How to train on it.")


@dataclass(frozen=True)
class ResolvedSystem:
    """A system with every value decided."""

    name: str  # file name without .json; names the folder of results
    path: Path
    system: System
    sources: dict[str, str]  # dotted key -> "default" | "file" | "--set" | "rule"
    overrides: tuple[str, ...]  # the --set arguments
    warnings: tuple[str, ...]

    @property
    def run(self) -> Run:
        return self.system.run

    @property
    def number_of_nodes(self) -> int:
        return int(self.system.number_of_nodes)

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return self.number_of_nodes * self.run.ranks_per_node

    @property
    def uses_demo_data(self) -> bool:
        return not {self.run.data.train, self.run.data.eval}.isdisjoint(DEMO_DATA)

    @property
    def eval_interval_samples(self) -> int:
        """Training samples between evaluations, "rule" computed."""
        interval = self.run.eval_interval_samples
        return rules.eval_interval_samples(self.run.recipe.global_batch_size) if interval == "rule" else interval

    @property
    def evaluation_points(self) -> list[int]:
        """Training samples after which the model is evaluated, ascending."""
        return rules.evaluation_points(
            self.eval_interval_samples,
            global_batch_size=self.run.recipe.global_batch_size,
            max_samples=self.run.max_samples,
        )

    @property
    def threads_per_rank(self) -> int:
        """CPU threads of a rank, "auto" computed for this host."""
        threads = self.run.threads_per_rank
        return max(1, len(os.sched_getaffinity(0)) // self.run.ranks_per_node) if threads == "auto" else threads

    def to_json(self) -> str:
        """Everything about the system as indented JSON text, to be saved beside a log."""
        record = {
            "name": self.name,
            "path": str(self.path),
            "set": self.overrides,
            "warnings": self.warnings,
            "world_size": self.world_size,
            "eval_interval_samples": self.eval_interval_samples,
            "sources": self.sources,
            "system": self.system.model_dump(by_alias=True),
        }
        return json.dumps(record, indent=2) + "\n"


def load_system(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> ResolvedSystem:
    """Read, override, validate and complete a system file. UserError (one sentence) on bad input."""
    path = Path(path)
    raw = read_object(path)
    set_by = {}
    for text in overrides:
        keys, value = parse_override(text, top_keys=MLPERF_FIELDS, run_keys=Run.model_fields)
        if keys[0] != "run" and keys[0] not in MLPERF_FIELDS:
            close = nearest(keys[0], [*MLPERF_FIELDS, *Run.model_fields])
            raise UserError(f"--set {text}: unknown key {keys[0]}{f' (did you mean {close}?)' if close else ''}.")
        apply_override(raw, keys, value, text=text)
        set_by[".".join(keys)] = text
    try:
        system = System.model_validate(raw)
    except ValidationError as error:
        raise UserError(explain(error, System, file=str(path), overrides=set_by)) from None
    system = _with_paths(system, path)
    resolved = ResolvedSystem(
        name=path.stem,
        path=path,
        system=system,
        sources=_sources(system, raw, set_by),
        overrides=tuple(overrides),
        warnings=_warnings(raw, path),
    )
    _check_batch(resolved)
    _check_evaluations(resolved)
    _check_division(resolved)
    return resolved


def _with_paths(system: System, path: Path) -> System:
    base = path.resolve().parent.parent if path.resolve().parent.name == "systems" else Path.cwd()

    def expand(key: str, text: str) -> str:
        if "\0" in text:
            raise UserError(f"{path}: run.data.{key} holds a NUL character, which no path can; correct it.")
        for name in re.findall(r"\$\{(\w+)\}", text):
            if name not in os.environ:
                raise UserError(
                    f"{path}: run.data.{key} is {text!r}, but the environment variable {name} is not set; set it or "
                    f"give the path with --set run.data.{key}=PATH."
                )
            text = text.replace(f"${{{name}}}", os.environ[name])
        return text if text in DEMO_DATA else str(base / text)

    data = system.run.data
    given = {key: expand(key, value) for key, value in data.model_dump().items() if value is not None}
    return system.model_copy(update={"run": system.run.model_copy(update={"data": data.model_copy(update=given)})})


def _sources(system: System, raw: dict[str, Any], set_by: dict[str, str]) -> dict[str, str]:
    """Where the value of every leaf key comes from."""
    sources: dict[str, str] = {}

    def visit(values: dict[str, Any], given: Any, prefix: str) -> None:
        for key, value in values.items():
            dotted = f"{prefix}{key}"
            present = isinstance(given, dict) and key in given
            if isinstance(value, dict) and present and isinstance(given[key], dict):
                visit(value, given[key], f"{dotted}.")
            elif dotted in set_by or any(dotted.startswith(f"{other}.") for other in set_by):
                sources[dotted] = "--set"
            else:
                sources[dotted] = "file" if present else "default"

    visit(system.model_dump(by_alias=True), raw, "")
    if system.run.eval_interval_samples == "rule":
        sources["run.eval_interval_samples"] = "rule"
    return sources


def _warnings(raw: dict[str, Any], path: Path) -> tuple[str, ...]:
    known = [*MLPERF_FIELDS, "run"]
    warnings = []
    for key in raw:
        if key not in known:
            close = nearest(key, known)
            hint = f" (did you mean {close}?)" if close else ""
            warnings.append(f"{path}: {key} is no field of an MLPerf system description{hint}; it is kept as it is.")
    if path.name.startswith(".") or " " in path.name:
        warnings.append(f"{path}: the official repository check refuses names with a space or a leading dot.")
    return tuple(warnings)


def _check_batch(resolved: ResolvedSystem) -> None:
    run = resolved.run
    batch = resolved.world_size * run.micro_batch_size * run.gradient_accumulation_steps
    if run.recipe.global_batch_size != batch:
        raise UserError(
            f"{resolved.path}: run.recipe.global_batch_size is {run.recipe.global_batch_size}, expected {batch} = "
            f"{resolved.number_of_nodes} nodes x {run.ranks_per_node} ranks_per_node x {run.micro_batch_size} "
            f"micro_batch_size x {run.gradient_accumulation_steps} gradient_accumulation_steps; change one of them."
        )
    if resolved.number_of_nodes > 1 and run.master_port == 0:
        raise UserError(
            f"{resolved.path}: run.master_port is 0 (a free port), which works on a single node only; give the "
            f"{resolved.number_of_nodes} nodes one port, e.g. 29500."
        )


def _check_evaluations(resolved: ResolvedSystem) -> None:
    run, interval = resolved.run, resolved.eval_interval_samples
    evaluations = run.max_samples // max(interval, run.recipe.global_batch_size)
    if evaluations > MAX_EVALUATIONS:
        raise UserError(
            f"{resolved.path}: run.max_samples {run.max_samples:,} with an evaluation every {interval:,} samples makes "
            f"{evaluations:,} evaluations, expected at most {MAX_EVALUATIONS:,}; raise run.eval_interval_samples."
        )


def _check_division(resolved: ResolvedSystem) -> None:
    """The closed division is the exact benchmark."""
    run, rule = resolved.run, rules.eval_interval_samples(resolved.run.recipe.global_batch_size)
    if resolved.system.division != "closed":
        return
    for key, got, allowed, expected in (
        ("model", run.model.name, run.model.name == rules.CLOSED_MODEL, rules.CLOSED_MODEL),
        ("target_accuracy", run.target_accuracy, (run.target_accuracy or 0) >= rules.TARGET_ACCURACY, "0.72 or more"),
        (
            "eval_interval_samples",
            resolved.eval_interval_samples,
            resolved.eval_interval_samples == rule,
            f'"rule" ({rule})',
        ),
        ("data", run.data.train, not resolved.uses_demo_data, "the Wikipedia data"),
        ("data.checkpoint", "null", run.data.checkpoint is not None, "the official initial weights"),
    ):
        if not allowed:
            raise UserError(
                f"{resolved.path}: division closed demands {expected} in run.{key}, got {got}; "
                "change it or set division open."
            )
