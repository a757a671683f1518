import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf import cli_system
from bert_mlperf.config import validate
from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.validate import Fault, system_faults
from bert_mlperf.errors import UserError
from tests.config import files

SYSTEMS = Path(__file__).resolve().parents[2] / "systems"
WHOLE: dict[str, Any] = dict.fromkeys(MLPERF_FIELDS, "stated") | {
    "division": "closed",
    "status": "Available on-premise",
    "system_name": "small",
    "number_of_nodes": "1",
    "host_processors_per_node": "2",
    "accelerators_per_node": "8",
    "other_software_stack": {"nccl_version": "2.1"},
}
RUN = WHOLE | {"division": "open", "accelerators_per_node": "0", "run": files.SMALL["run"]}


def faults(
    folder: Path, content: dict[str, Any] | str, *, name: str = "small.json", round_name: str = "5.0.0"
) -> list[Fault]:
    text = content if isinstance(content, str) else json.dumps(content, indent=1)  # one line for each field
    return system_faults(files.write(folder, text, name), round_name)


def only(found: list[Fault]) -> Fault:
    assert len(found) == 1, found
    return found[0]


def line_of(field: str, content: dict[str, Any]) -> int:
    lines = json.dumps(content, indent=1).splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.startswith(f' "{field}":'))


def test_a_whole_description_has_no_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, WHOLE) == []
    assert faults(tmp_path, RUN) == []


@pytest.mark.parametrize("path", sorted(SYSTEMS.glob("*.json")), ids=lambda path: path.name)
def test_the_systems_of_this_project_have_no_error(path: Path) -> None:
    assert [fault for fault in system_faults(path) if fault.severity == "error"] == []


def test_all_missing_fields_are_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path, "{}")
    assert [fault.field for fault in found] == list(MLPERF_FIELDS)
    assert {(fault.severity, fault.line, fault.message) for fault in found} == {("error", 0, "is missing")}


def test_a_misspelt_field_is_named_where_it_stands(tmp_path: Path) -> None:
    content = {("Cooling" if field == "cooling" else field): value for field, value in WHOLE.items()}
    missing, unknown = faults(tmp_path, content)
    assert (missing.severity, missing.field, missing.line) == ("error", "cooling", line_of("Cooling", content))
    assert missing.advice == "rename Cooling if that is meant"
    assert (unknown.severity, unknown.field) == ("note", "Cooling")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (8, "8 (a whole number)"),
        (None, "null"),
        (True, "true (a boolean)"),
        (["x"], '["x"] (a list)'),
        ({}, "{} (an obj"),
    ],
)
def test_a_field_that_is_no_string_is_an_error(tmp_path: Path, value: Any, said: str) -> None:
    fault = only(faults(tmp_path, WHOLE | {"host_processor_core_count": value}))
    assert (fault.severity, fault.field) == ("error", "host_processor_core_count")
    assert fault.line == line_of("host_processor_core_count", WHOLE)
    assert said in fault.message


def test_the_software_stack_may_be_an_object_of_strings(tmp_path: Path) -> None:
    assert faults(tmp_path, WHOLE | {"other_software_stack": "CUDA 12"}) == []
    fault = only(faults(tmp_path, WHOLE | {"other_software_stack": {"cuda": "12.8", "nccl": 2.1}}))
    assert fault.message == "the value of 'nccl' is 2.1 (a number), expected a string"
    fault = only(faults(tmp_path, WHOLE | {"other_software_stack": ["CUDA 12"]}))
    assert fault.severity == "error"


@pytest.mark.parametrize(
    ("round_name", "status", "advice"),
    [
        ("5.0.0", "onprem", 'write "Available on-premise"'),
        ("4.0.0", "research", 'write "Research, Development, or Internal (RDI)"'),
        ("5.0", "preview", 'write "Preview"'),
        ("5.0.0", "available On-Premise ", 'write "Available on-premise"'),
        ("3.1.0", "Onprem", 'write "onprem"'),
        ("3.1.0", "onprem", None),
        ("2.0.0", "Available cloud", None),
        ("5.0.0", "Available cloud", None),
    ],
)
def test_the_words_of_status_are_those_of_the_round(
    tmp_path: Path, round_name: str, status: str, advice: str | None
) -> None:
    found = faults(tmp_path, WHOLE | {"status": status}, round_name=round_name)
    assert [(fault.field, fault.advice) for fault in found] == ([("status", advice)] if advice else [])


def test_a_word_that_nobody_knows_gets_the_list(tmp_path: Path) -> None:
    fault = only(faults(tmp_path, WHOLE | {"division": "network"}))
    assert (fault.severity, fault.line, fault.advice) == ("error", 3, 'write one of "closed", "open"')
    fault = only(faults(tmp_path, WHOLE | {"division": "CLOSED"}))
    assert fault.advice == 'write "closed"'


@pytest.mark.parametrize("field", ["number_of_nodes", "host_processors_per_node", "accelerators_per_node"])
@pytest.mark.parametrize("value", ["", "8x", "-1", "1.0", " 8", "\u0663", "9999999"])
def test_counts_are_whole_numbers(tmp_path: Path, field: str, value: str) -> None:
    fault = only(faults(tmp_path, WHOLE | {field: value}))
    assert (fault.severity, fault.field) == ("error", field)
    assert "expected a whole number" in fault.message


def test_no_node_is_too_few_but_no_accelerator_is_not(tmp_path: Path) -> None:
    assert only(faults(tmp_path, WHOLE | {"number_of_nodes": "0"})).severity == "error"
    assert faults(tmp_path, WHOLE | {"accelerators_per_node": "0"}) == []


@pytest.mark.parametrize("field", ["cooling", "division", "number_of_nodes", "system_name"])
def test_what_is_left_to_do_is_one_error(tmp_path: Path, field: str) -> None:
    fault = only(faults(tmp_path, WHOLE | {field: "TODO: write it"}))
    assert (fault.severity, fault.message) == ("error", 'still says "TODO: write it"')


def test_what_is_left_to_do_in_the_software_stack(tmp_path: Path) -> None:
    assert only(faults(tmp_path, WHOLE | {"other_software_stack": {"mofed": "TODO: x"}})).severity == "error"


def test_an_empty_field_is_a_warning_where_a_reviewer_asks(tmp_path: Path) -> None:
    fault = only(faults(tmp_path, WHOLE | {"host_memory_capacity": " ", "cooling": "", "hw_notes": ""}))
    assert (fault.severity, fault.field) == ("warning", "host_memory_capacity")
    assert only(faults(tmp_path, WHOLE | {"other_software_stack": {}})).severity == "warning"
    without = WHOLE | {"accelerators_per_node": "0", "accelerator_model_name": ""}
    assert faults(tmp_path, without) == []


def test_a_doubled_key_is_told_at_its_second_line(tmp_path: Path) -> None:
    text = json.dumps(WHOLE, indent=1).replace(' "cooling"', ' "cooling": "air",\n "cooling"')
    fault = only(faults(tmp_path, text))
    first = line_of("cooling", WHOLE)
    assert (fault.severity, fault.field, fault.line) == ("error", "cooling", first + 1)
    assert f"first at line {first}" in fault.message


def test_keys_doubled_on_one_line_and_inside(tmp_path: Path) -> None:
    text = (
        json.dumps(WHOLE).replace('"cooling"', '"cooling": "air", "cooling"').replace('{"nccl', '{"nccl": "1", "nccl')
    )
    text = text.replace('"nccl_version"', '"nccl"')
    assert {(fault.field, fault.line) for fault in faults(tmp_path, text)} == {
        ("cooling", 1),
        ("other_software_stack", 1),
    }


def test_the_name_of_the_file(tmp_path: Path) -> None:
    fault = only(faults(tmp_path, WHOLE | {"system_name": "large"}))
    assert (fault.severity, fault.field, fault.line) == ("note", "system_name", 5)
    assert only(faults(tmp_path, WHOLE | {"system_name": "a b"}, name="a b.json")).severity == "error"
    assert only(faults(tmp_path, WHOLE | {"system_name": ".a"}, name=".a.json")).severity == "error"
    assert only(faults(tmp_path, WHOLE, name="small.txt")).severity == "warning"


def test_a_run_section_that_does_not_load_is_an_error(tmp_path: Path) -> None:
    fault = only(faults(tmp_path, RUN | {"run": files.SMALL["run"] | {"precison": "fp32"}}))
    assert (fault.severity, fault.field, fault.line) == ("error", "run", line_of("run", RUN))
    assert "unknown key run.precison (did you mean run.precision?)" in fault.message
    assert str(tmp_path) not in fault.message
    fault = only(faults(tmp_path, RUN | {"run": [1]}))
    assert fault.message.startswith("run is [1] (a list)")


def test_faults_of_run_and_of_the_fields_are_told_together(tmp_path: Path) -> None:
    content = RUN | {"status": "x", "division": "y", "cooling": 5, "run": files.SMALL["run"] | {"micro_batch_size": 3}}
    content.pop("hw_notes")
    found = faults(tmp_path, content)
    assert sorted(fault.field for fault in found) == ["cooling", "division", "hw_notes", "run", "status"]
    assert "global_batch_size is 16, expected 12" in next(fault.message for fault in found if fault.field == "run")


def test_run_waits_for_the_number_of_nodes(tmp_path: Path) -> None:
    error, note = faults(tmp_path, RUN | {"number_of_nodes": "two"})
    assert (error.field, note.field, note.severity) == ("number_of_nodes", "run", "note")


def test_run_waits_for_its_doubled_key(tmp_path: Path) -> None:
    text = json.dumps(RUN, indent=1).replace('"micro_batch_size"', '"micro_batch_size": 3, "micro_batch_size"')
    error, note = faults(tmp_path, text)
    assert error.message == 'the key "micro_batch_size" stands twice in it'
    assert (error.line, note.field, note.severity) == (line_of("run", RUN), "run", "note")


def test_a_variable_of_another_machine_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    run = files.CLOSED_RUN | {"data": {"train": "${NOT_SET_HERE}/a", "eval": "/b", "checkpoint": "${NOT_SET_HERE}"}}
    assert faults(tmp_path, WHOLE | {"run": run}) == []


@pytest.mark.parametrize(
    ("accelerators", "changes", "said"),
    [
        ("0", {"device": "cuda"}, 'device is "cuda", but accelerators_per_node is "0"'),
        ("8", {"device": "cpu"}, 'device is "cpu", but accelerators_per_node is "8"'),
        ("8", {}, "ranks_per_node is 2 (a whole number), but accelerators_per_node is 8"),
        ("1", {}, "ranks_per_node is 2 (a whole number), but accelerators_per_node is 1"),
        ("2", {}, None),
        ("0", {"device": "cpu"}, None),
    ],
)
def test_ranks_and_accelerators(tmp_path: Path, accelerators: str, changes: dict[str, Any], said: str | None) -> None:
    content = RUN | {"accelerators_per_node": accelerators, "run": files.SMALL["run"] | changes}
    found = faults(tmp_path, content)
    assert [(fault.severity, fault.message) for fault in found] == ([("warning", said)] if said else [])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 0, "empty"),
        (" \n", 0, "empty"),
        ("[1]", 1, "[1] (a list)"),
        ("null", 1, "null"),
        ('{"a": "b",\n "c" 5}', 2, "not valid JSON"),
        ("{} {}", 1, "extra data"),
        ('{"a": "\n"}', 1, "invalid control character"),
        ('{"run": ' + "[" * 100_000, 0, "nested too deeply"),
        ('{"run": ' + "1" * 5000 + "}", 0, "thousands of digits"),
    ],
)
def test_what_is_no_object_is_one_error(tmp_path: Path, text: str, line: int, said: str) -> None:
    fault = only(faults(tmp_path, text))
    assert (fault.severity, fault.line) == ("error", line)
    assert said in fault.message


def test_not_a_number_is_an_error(tmp_path: Path) -> None:
    text = json.dumps(WHOLE | {"cooling": 0}, indent=1).replace('"cooling": 0', '"cooling": -Infinity')
    found = faults(tmp_path, text)
    assert {fault.field for fault in found} == {"cooling"}
    assert any("-Infinity, which is no JSON number" in fault.message for fault in found)


def test_a_byte_order_mark_ends_the_official_checker(tmp_path: Path) -> None:
    fault = only(faults(tmp_path, "\ufeff" + json.dumps(RUN)))
    assert (fault.severity, fault.line) == ("error", 1)


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "binary.json").write_bytes(b"\x7fELF\xff")
    os.mkfifo(tmp_path / "pipe.json")
    for name, sentence in (
        ("no.json", "does not exist"),
        ("", "is a folder"),
        ("binary.json", "not a text file"),
        ("pipe.json", "no ordinary file"),
    ):
        with pytest.raises(UserError, match=sentence):
            system_faults(tmp_path / name)
    path = files.write(tmp_path, WHOLE)
    with pytest.raises(UserError, match=r"Round 6\.0\.0 has no BERT"):
        system_faults(path, "6.0.0")

    def refuse(*args: Any, **options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        system_faults(path)


def test_errors_come_first_and_each_kind_by_line(tmp_path: Path) -> None:
    found = faults(tmp_path, WHOLE | {"system_name": "x", "submitter": "", "cooling": 1, "division": "x", "more": "x"})
    assert [fault.severity for fault in found] == ["error", "error", "warning", "note", "note"]
    assert [fault.field for fault in found] == ["division", "cooling", "submitter", "system_name", "more"]


def command(*words: Path | str) -> int:
    parser = argparse.ArgumentParser()
    cli_system.add_system(parser.add_subparsers())
    return cli_system.run_system(parser.parse_args(["system", "validate", *map(str, words)]))


def test_the_command_prints_every_fault_and_the_exit_code_is_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = files.write(tmp_path, WHOLE), files.write(tmp_path, WHOLE | {"status": "onprem"}, "[red].json")
    assert command(good) == 0
    assert capsys.readouterr().out == f"{good}: VALID for 5.0.0 (0 errors, 0 warnings, 0 notes)\n"
    assert command(bad, good) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{bad}: INVALID for 5.0.0 (1 error, 0 warnings, 1 note)"
    assert lines[1].startswith('  error: line 1: status: is "onprem"')
    assert command(tmp_path / "no.json", bad) == 2
    out = capsys.readouterr().out
    assert "cannot be judged" in out and "INVALID" in out
    assert command("--round", "3.1", bad) == 0


def test_a_file_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(tmp_path, WHOLE | {"\x1b[2J": "x"})
    assert command(tmp_path / "small.json") == 0
    assert "\x1b" not in capsys.readouterr().out


def test_every_kind_of_severity_has_its_place() -> None:
    assert set(validate.SEVERITIES) == {"error", "warning", "note"}
