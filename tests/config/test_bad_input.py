"""Bad system files and bad --set arguments: one sentence each that names the place and what to do."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf.config.system import load_system
from bert_mlperf.errors import UserError
from tests.config import files


def refusal(path: Path, *overrides: str) -> str:
    """The sentence with which a system file is refused."""
    with pytest.raises(UserError) as caught:
        load_system(path, list(overrides))
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert "pydantic" not in text.lower()
    return text


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "recipe.base_learnig_rate=1",
            "unknown key run.recipe.base_learnig_rate (did you mean run.recipe.base_learning_rate?)",
        ),
        (
            "run.base_learning_rate=1",
            "unknown key run.base_learning_rate (it belongs at run.recipe.base_learning_rate)",
        ),
        ("run.qqq=1", "unknown key run.qqq (run has model, recipe, data, micro_batch_size"),
        ("dvision=open", "unknown key dvision (did you mean division?)"),
        ("foo=1", "unknown key foo"),
        ("recipe.global_batch_size=16.0", "is 16.0 (a number), expected a whole number >= 1 (samples per step"),
        ('recipe.global_batch_size="16"', 'is "16" (a string), expected a whole number >= 1'),
        ("recipe.global_batch_size=true", "is true (a boolean), expected a whole number >= 1"),
        ("recipe.base_learning_rate=true", "is true (a boolean), expected a number > 0"),
        ("recipe.base_learning_rate=NaN", "is NaN (a number), expected a number > 0"),
        ("recipe.base_learning_rate=Infinity", "is Infinity (a number), expected a number > 0"),
        ("recipe.base_learning_rate=0", "is 0 (a whole number), expected a number > 0"),
        ("recipe.beta_1=1", "expected a number >= 0 and < 1"),
        ("recipe.weight_decay=-0.1", "expected a number >= 0"),
        ("recipe.start_warmup_step=1", "expected a whole number <= 0"),
        ("target_accuracy=1", "run.target_accuracy is 1 (a whole number), expected a number > 0 and < 1 or null"),
        ("target_accuracy=0", "expected a number > 0 and < 1 or null"),
        ("eval_interval_samples=0", 'is 0 (a whole number), expected a whole number > 0 or "rule"'),
        ("eval_interval_samples=-5", 'expected a whole number > 0 or "rule"'),
        ("precision=fp8", 'is "fp8" (a string), expected "fp32", "bf16" or "fp16"'),
        ("seed=x", 'is "x" (a string), expected a whole number >= 0 and < 4294967296 or "os"'),
        ("master_port=70000", "expected a whole number >= 0 and <= 65535"),
        ("division=Closed", "division: 'Closed' is none of 'closed', 'open'"),
        ("status=soon", "status: 'soon' is none of 'Available on-premise'"),
        ("number_of_nodes=0", 'number_of_nodes is "0" (a string), expected a string of the form'),
        ("number_of_nodes=2", "run.recipe.global_batch_size is 16, expected 32 = 2 nodes x 2 ranks_per_node x 4"),
        ("micro_batch_size=3", "expected 12 = 1 nodes x 2 ranks_per_node x 3 micro_batch_size x 2"),
        ("model=bert-larg", "no model is named 'bert-larg' (did you mean 'bert-large'?"),
        ("model=5", "run.model: got 5 (a whole number), expected the name of a model or an object"),
        ("model.name=bert-base", "the name 'bert-base' is taken by a model whose vocab_size is 30522, got 1000"),
        ("model.num_attention_heads=3", "hidden_size 64 is not a multiple of num_attention_heads 3"),
        ("data.train=${NOT_SET_ANYWHERE}/x", "the environment variable NOT_SET_ANYWHERE is not set"),
        ("recipe.beta_1", "expected key=value"),
        ("recipe..beta_1=1", "expected key=value"),
        ("recipe.global_batch_size.x=1", "is 16 (a whole number) in the system file, not an object"),
        ("recipe=3", "run.recipe is 3 (a whole number), expected an object"),
        ("run=null", "run is null, expected an object"),
        ("max_samples=100000000000000", "expected a whole number >= 1 and <= 10000000000"),
        ("timeout_s=1e300", "expected a number >= 1 and <= 86400"),
        ("timeout_s=0.001", "expected a number >= 1 and <= 86400"),
        ("threads_per_rank=100000", "expected a whole number >= 1 and <= 1024"),
        ("recipe.base_learning_rate=1e300", "expected a number > 0 and <= 1e+37"),
        ("number_of_nodes=" + "9" * 5000, "expected a string of the form"),
        ("seed=" + "9" * 5000, 'expected a whole number >= 0 and < 4294967296 or "os"'),
        ('data.train="a\\u0000b"', "run.data.train holds a NUL character"),
    ],
)
def test_one_wrong_value(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(files.write(tmp_path, files.small()), override)


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf{}", b"{}\r\n"], ids=["byte order mark", "CRLF"])
def test_marks_of_other_systems_are_let_pass(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny.json"
    path.write_bytes(content)
    assert "is missing" in refusal(path)


def test_more_evaluations_than_anyone_wants(tmp_path: Path) -> None:
    text = refusal(files.write(tmp_path, files.small()), "max_samples=4000000", "eval_interval_samples=16")
    assert "makes 250,000 evaluations, expected at most 100,000; raise run.eval_interval_samples" in text


def test_brackets_without_end_are_a_bare_string(tmp_path: Path) -> None:
    brackets = "[" * 100_000
    assert load_system(files.write(tmp_path, files.small()), [f"data.train={brackets}"]).run.data.train.endswith("[[[")


def test_a_number_of_thousands_of_digits_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text('{"run": ' + "9" * 5000 + "}")
    assert "a whole number has thousands of digits" in refusal(path)


def test_a_path_that_is_too_long() -> None:
    assert "cannot be read: File name too long" in refusal(Path("x" * 5000 + ".json"))


def test_the_sentence_names_where_the_value_stands(tmp_path: Path) -> None:
    content = files.small()
    content["run"]["recipe"]["beta_2"] = 2
    path = files.write(tmp_path, content)
    assert refusal(path).startswith(f"{path}: run.recipe.beta_2 is 2")
    assert refusal(path, "recipe.beta_2=3").startswith("--set recipe.beta_2=3: run.recipe.beta_2 is 3")


def test_a_misspelt_key_is_told_before_the_missing_one(tmp_path: Path) -> None:
    content = files.small()
    content["run"]["recipe"]["trainig_steps"] = content["run"]["recipe"].pop("training_steps")
    text = refusal(files.write(tmp_path, content))
    assert "did you mean run.recipe.training_steps?" in text
    assert text.endswith("(and 1 more).")


def test_a_missing_key_says_what_to_add(tmp_path: Path) -> None:
    content = files.small()
    del content["run"]["recipe"]["training_steps"]
    assert "run.recipe.training_steps is missing; add a whole number >= 1 (step at which" in refusal(
        files.write(tmp_path, content)
    )


def test_a_published_description_without_a_run_section_says_so(tmp_path: Path) -> None:
    content = files.small()
    del content["run"]
    assert "run is missing; add an object" in refusal(files.write(tmp_path, content))


def test_several_nodes_need_a_port(tmp_path: Path) -> None:
    path = files.write(tmp_path, files.small())
    overrides = ["number_of_nodes=2", "recipe.global_batch_size=32"]
    assert "run.master_port is 0 (a free port)" in refusal(path, *overrides)
    assert load_system(path, [*overrides, "master_port=29500"]).world_size == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n  "b": }', "not valid JSON at line 2, column 8"),
        ("", "not valid JSON at line 1, column 1"),
        ("[1, 2]", "a system file is one JSON object ({...}), got [1, 2] (a list)"),
        ('{"run": {"seed": 1, "seed": 2}}', "the key 'seed' stands twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_system(tmp_path: Path, text: str, expected: str) -> None:
    path = files.write(tmp_path, text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert expected in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    files.write(tmp_path, files.small(), "there.json")
    assert "does not exist" in refusal(tmp_path / "gone.json")
    assert "has there.json" in refusal(tmp_path / "gone.json")
    assert "is a folder" in refusal(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"a": "\xff\xfe"}')
    assert "byte 7 is no UTF-8" in refusal(binary)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = files.write(tmp_path, files.small())
    path.chmod(0)
    assert "cannot be read: Permission denied" in refusal(path)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, True])
def test_no_value_of_any_kind_breaks_the_sentence(tmp_path: Path, value: Any) -> None:
    """Every key with every kind of wrong value is either accepted or refused in one sentence."""
    for key in ("model", "recipe", "data", "micro_batch_size", "precision", "seed", "eval_interval_samples"):
        content = files.small()
        content["run"][key] = value
        try:
            load_system(files.write(tmp_path, content))
        except UserError as error:
            assert re.search(rf"run\.({key}|recipe\.global_batch_size)", str(error))
            assert "\n" not in str(error)
