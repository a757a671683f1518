import json
from pathlib import Path

import pytest

from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.system import System, load_system
from bert_mlperf.errors import UserError
from tests.config import files

SYSTEMS = Path(__file__).resolve().parents[2] / "systems"


@pytest.mark.parametrize("path", sorted(SYSTEMS.glob("*.json")), ids=lambda path: path.stem)
def test_every_system_of_the_repository_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

    monkeypatch.setenv("WIKIPEDIA", "unused")
    resolved = load_system(path)
    assert resolved.warnings == ()
    assert resolved.name == path.stem
    valid, *_ = check_system_desc(str(path), "training", "5.0.0")
    assert valid


def test_the_official_fields_are_ours(tmp_path: Path) -> None:
    from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

    assert len(MLPERF_FIELDS) == 33
    for left_out in MLPERF_FIELDS:
        content = files.small()
        del content[left_out]
        path = files.write(tmp_path, content)
        valid, *_ = check_system_desc(str(path), "training", "5.0.0")
        assert not valid, left_out
        with pytest.raises(UserError, match=f"{left_out} is missing"):
            load_system(path)


def test_values_come_from_file_override_default_and_rule(tmp_path: Path) -> None:
    path = files.write(tmp_path, files.small())
    resolved = load_system(
        path, ["run.recipe.base_learning_rate=2e-3", "precision=fp32", "hw_notes=5", "recipe.beta_1=0.5"]
    )
    assert resolved.run.recipe.base_learning_rate == 0.002
    assert resolved.run.precision == "fp32"
    assert resolved.system.hw_notes == "5"  # an MLPerf field stays a string
    assert resolved.sources["run.recipe.base_learning_rate"] == "--set"
    assert resolved.sources["run.recipe.beta_1"] == "--set"
    assert resolved.sources["run.precision"] == "--set"
    assert resolved.sources["hw_notes"] == "--set"
    assert resolved.sources["run.recipe.training_steps"] == "file"
    assert resolved.sources["run.recipe.beta_2"] == "default"
    assert resolved.sources["run.seed"] == "default"
    assert resolved.sources["run.eval_interval_samples"] == "rule"
    assert resolved.eval_interval_samples == 150_000
    assert resolved.evaluation_points[:2] == [150_000, 300_000]
    assert (resolved.world_size, resolved.number_of_nodes) == (2, 1)


def test_a_named_model_has_one_source(tmp_path: Path) -> None:
    resolved = load_system(files.write(tmp_path, files.small()), ["model=bert-large"])
    assert resolved.run.model.num_hidden_layers == 24
    assert resolved.sources["run.model"] == "--set"
    assert not any(key.startswith("run.model.") for key in resolved.sources)


def test_an_object_given_by_set_is_the_source_of_all_it_holds(tmp_path: Path) -> None:
    data = '{"train": "/a", "eval": "/b"}'
    resolved = load_system(files.write(tmp_path, files.small()), [f"data={data}"])
    assert resolved.run.data.train == "/a"
    assert resolved.sources["run.data.train"] == "--set"


def test_the_resolved_system_is_saved_whole_and_validates_again(tmp_path: Path) -> None:
    resolved = load_system(files.write(tmp_path, files.small()), ["run.max_samples=77"])
    saved = json.loads(resolved.to_json())
    assert saved["set"] == ["run.max_samples=77"]
    assert saved["sources"] == resolved.sources
    assert saved["system"]["run"]["max_samples"] == 77
    assert saved["system"]["accelerator_on-chip_memories"] == ""
    assert System.model_validate(saved["system"]) == resolved.system


def test_an_unknown_mlperf_field_is_kept_with_a_warning(tmp_path: Path) -> None:
    content = files.small() | {"host_network_card_count": "8", "system_nam": "x"}
    resolved = load_system(files.write(tmp_path, content))
    assert len(resolved.warnings) == 2
    assert "host_network_card_count is no field of an MLPerf system description" in resolved.warnings[0]
    assert "did you mean system_name?" in resolved.warnings[1]
    assert json.loads(resolved.to_json())["system"]["host_network_card_count"] == "8"


def test_paths_expand_and_start_above_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIKI", "/mnt/wiki")
    monkeypatch.chdir(tmp_path)
    content = files.small()
    content["run"]["data"] = {"train": "${WIKI}/train", "eval": "held-out"}
    (tmp_path / "repository" / "systems").mkdir(parents=True)
    elsewhere = load_system(files.write(tmp_path, content))
    assert (elsewhere.run.data.train, elsewhere.run.data.eval) == ("/mnt/wiki/train", str(tmp_path / "held-out"))
    inside = load_system(files.write(tmp_path / "repository" / "systems", content))
    assert inside.run.data.eval == str(tmp_path / "repository" / "held-out")
    assert not inside.uses_demo_data


def test_threads_share_the_cores_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = load_system(files.write(tmp_path, files.small()))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(7)))
    assert resolved.threads_per_rank == 3
    assert load_system(files.write(tmp_path, files.small()), ["threads_per_rank=5"]).threads_per_rank == 5


def test_the_closed_division_accepts_the_exact_benchmark(tmp_path: Path) -> None:
    path = files.write(tmp_path, files.closed())
    assert load_system(path).system.division == "closed"
    assert load_system(path, ["eval_interval_samples=150000", "target_accuracy=0.73"]).eval_interval_samples == 150_000


@pytest.mark.parametrize(
    ("override", "demand"),
    [
        ("model=bert-base", "bert-large in run.model, got bert-base"),
        ("target_accuracy=0.719", "0.72 or more in run.target_accuracy, got 0.719"),
        ("target_accuracy=null", "0.72 or more in run.target_accuracy, got None"),
        ("eval_interval_samples=100000", r'"rule" \(150000\) in run.eval_interval_samples, got 100000'),
        ("data.train=demo", "the Wikipedia data in run.data, got demo"),
        ("data.checkpoint=null", "the official initial weights in run.data.checkpoint"),
    ],
)
def test_the_closed_division_refuses_anything_else(tmp_path: Path, override: str, demand: str) -> None:
    path = files.write(tmp_path, files.closed())
    with pytest.raises(UserError, match=f"division closed demands {demand}"):
        load_system(path, [override])
    others = [] if override.startswith("data.checkpoint") else [override]
    assert load_system(path, [*others, "division=open"]).system.division == "open"
