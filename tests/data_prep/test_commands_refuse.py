"""Bad input to the steps from text to samples: one sentence, exit code 2, and nothing is overwritten."""

import ctypes
import hashlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data_prep.commands import (
    PROGRAM,
    SMALL,
    complaint,
    environment,
    everything_in,
    prep,
    refused,
    write_corpus,
    write_parts,
)

OFFICIAL_MD5 = "64800d5d8528ce344256daf115d4965e"
VOCABULARY = ("--vocab", "vocab.txt", *SMALL)
# Each step with a file that it can read: name, input, options.
STEPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "clean": ("clean", "text/AA/wiki_00", ()),
    "segment": ("segment", "plain/wiki_00", ()),
    "split": ("split", "plain/wiki_00", ("--eval-articles", "1")),
    "gather": ("gather", "plain/wiki_00", ()),
    "examples": ("examples", "parts/part-00001-of-00002", VOCABULARY),
    "subset": ("examples", "parts/part-00001-of-00002", (*VOCABULARY, "--subset", "5")),
    "eval": ("eval", "parts/part-00001-of-00002", (*VOCABULARY, "--num-samples", "5")),
}
PR_SET_SECUREBITS, SECBIT_NOROOT = 28, 1  # <linux/prctl.h>, <linux/securebits.h>
Refuse = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with raw text, plain text, prepared parts and a vocabulary."""
    write_corpus(tmp_path, files=2, articles=12)
    write_parts(tmp_path, parts=2, documents=10)
    (tmp_path / "plain").mkdir()
    for i in range(2):
        shutil.copy(tmp_path / "parts" / f"part-0000{i}-of-00002", tmp_path / "plain" / f"wiki_0{i}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuse(folder: Path, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """Runs a command that must be refused in `folder`, checks what lies there afterwards, and gives the sentence."""

    def call(*arguments: str) -> str:
        before = everything_in(folder)
        message = refused(capfd, *arguments)
        check_untouched(folder, before)
        return message

    return call


def check_untouched(folder: Path, before: dict[str, bytes]) -> None:
    """Asserts that no file has changed and that all new ones are whole: recorded, or not under a final name."""
    after = everything_in(folder)
    kept = {name: content for name, content in before.items() if ".unfinished/" not in name}
    assert {name for name, content in kept.items() if after.get(name) != content} == set()
    recorded = {}
    for path in folder.glob("*/.unfinished/done/*.json"):
        for output in json.loads(path.read_text())["outputs"]:
            recorded[f"{path.parents[2].name}/{output['name']}"] = output["md5"]
    new = {name: content for name, content in after.items() if name not in before and ".unfinished/" not in name}
    assert {name: hashlib.md5(content).hexdigest() for name, content in new.items()} == {
        name: recorded.get(name) for name in new
    }


def command(step: str, *, source: str | None = None, out: str = "out") -> tuple[str, ...]:
    name, usual, options = STEPS[step]
    return (name, source or usual, *options, "--out", out)


@pytest.mark.parametrize("step", STEPS)
def test_input_that_is_not_there(refuse: Refuse, folder: Path, step: str) -> None:
    (folder / "nothing").mkdir()
    (folder / "none").touch()
    assert "no file matches 'absent'; give a file, a folder" in refuse(*command(step, source="absent"))
    assert "no file matches '<text/*/wiki_??'" in refuse(*command(step, source="<text/*/wiki_??"))
    assert "the input folder nothing holds no files" in refuse(*command(step, source="nothing"))
    assert "/none is empty (0 bytes); copy it again or" in refuse(*command(step, source="none"))
    assert "also matches parts, which is no file" in refuse(*command(step, source="p*"))
    assert not (folder / "out").exists()


@pytest.mark.parametrize("step", STEPS)
def test_text_that_is_not_utf8(refuse: Refuse, folder: Path, step: str) -> None:
    path = folder / STEPS[step][1]
    good = path.read_bytes()
    at = good.index(b"\n", 1500) - 3
    path.write_bytes(good[:at] + b"\xe9" + good[at:])
    message = refuse(*command(step))
    assert f"{STEPS[step][1]} is not UTF-8: byte {at:,} (from 0) is 0xe9" in message and "convert the file" in message
    path.write_bytes(good + b"\xc3")  # cut in the middle of a character
    assert not Path("out").exists()
    assert f"is not UTF-8: byte {len(good):,} (from 0) is 0xc3" in refuse(*command(step))


LINE = b"rain snow sun wind fog.\n"
BORDER = 1 << 20  # blocks in which the examples read


@pytest.mark.parametrize("at", [BORDER - 1, BORDER, BORDER + 1, BORDER + 10, 2 * BORDER - 1, 2 * BORDER])
def test_byte_offsets_across_the_border_of_a_block(refuse: Refuse, folder: Path, at: int) -> None:
    text = bytearray(LINE * (2 * BORDER // len(LINE) + 2))
    text[at : at + 1] = b"\xff"
    Path("large").write_bytes(text)
    assert f"large is not UTF-8: byte {at:,} (from 0) is 0xff" in refuse(*command("examples", source="large"))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_character_may_cross_the_border_of_a_block(folder: Path, before: int) -> None:
    text = bytearray(LINE * (BORDER // len(LINE) + 2))
    text[BORDER - before : BORDER - before + 3] = "\u20ac".encode()
    Path("large").write_bytes(text)
    assert prep(folder, *command("examples", source="large")).returncode == 0


def test_text_that_is_not_one_sentence_a_line(refuse: Refuse, folder: Path) -> None:
    lines = (folder / "parts/part-00001-of-00002").read_text().split("\n\n")
    Path("paragraphs").write_text("\n\n".join(article.replace("\n", " ") for article in lines) + "\n")
    for step in ("examples", "subset", "eval"):
        message = refuse(*command(step, source="paragraphs"))
        assert "the lines of the text" in message and "paragraphs have " in message
        assert "words on average, expected sentences (at most 80)" in message and "run prep segment on it" in message
        raw = refuse(*command(step, source="text/AA/wiki_00"))
        assert "wiki_00 is raw extractor output (at byte 0 a line begins with" in raw and "run prep clean" in raw
        assert not Path("out").exists()
    assert prep(folder, *command("examples", source="paragraphs"), "--allow-long-lines").returncode == 0
    Path("inside").write_bytes(LINE * 3 + b'<doc id="3">\n')
    assert f"at byte {3 * len(LINE):,} a line" in refuse(*command("examples", source="inside", out="b"))
    assert "line 1 is '<doc id=" in refuse(*command("segment", source="text/AA/wiki_00", out="c"))
    assert "none of its lines has '<doc'" in refuse(*command("clean", source="plain/wiki_00", out="d"))
    Path("blank").write_bytes(b"\n \n\x00\n\n")
    assert "blank holds no token" in refuse(*command("examples", source="blank", out="e"))


def test_another_vocabulary(refuse: Refuse, folder: Path) -> None:
    md5 = hashlib.md5(Path("vocab.txt").read_bytes()).hexdigest()
    for step in ("examples", "subset", "eval"):
        arguments = [argument for argument in command(step) if argument != "--own-vocabulary"]
        message = refuse(*arguments)
        assert f"the vocabulary vocab.txt has md5 {md5}, the official one {OFFICIAL_MD5}" in message
        assert "say --own-vocabulary if you mean this one" in message and not Path("out").exists()
    result = prep(folder, *command("examples"))
    assert result.returncode == 0, result.stderr
    assert json.loads(Path("out/manifest.json").read_text())["options"]["vocabulary_md5"] == md5
    with open("vocab.txt", "a") as file:
        file.write("another\n")
    assert "out holds the result of another request" in refuse(*command("examples"))
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    assert "lacks [MASK] among its 5 lines" in refuse(*command("examples", out="other"))
    Path("vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    assert "the vocabulary vocab.txt cannot be read" in refuse(*command("examples", out="other"))
    Path("vocab.txt").unlink()
    assert "the vocabulary vocab.txt cannot be read" in refuse(*command("examples", out="other"))


@pytest.mark.parametrize("step", STEPS)
def test_output_that_exists(refuse: Refuse, folder: Path, step: str) -> None:
    Path("full").mkdir()
    Path("full/part_00000_of_00001.hdf5").write_text("precious")
    Path("file").write_text("precious")
    assert "full exists and holds other files, nothing in it is touched; give another" in refuse(
        *command(step, out="full")
    )
    assert "file is a file, expected a folder to write to; give another --out" in refuse(*command(step, out="file"))
    assert "cannot be written: [Errno 20] Not a directory" in refuse(*command(step, out="file/below"))


@pytest.mark.parametrize("step", ["clean", "segment", "split", "gather", "examples", "subset"])
def test_output_inside_the_input(refuse: Refuse, folder: Path, step: str) -> None:
    source = STEPS[step][1].split("/")[0]
    for out in (f"{source}/out", f"{source}/more/out", source, f"{folder}/{source}/out"):
        message = refuse(*command(step, source=source, out=out))
        assert f"{out} lies inside the input folder {source}" in message and "give another --out" in message


@pytest.mark.parametrize("step", STEPS)
def test_the_result_of_another_command_is_kept(refuse: Refuse, folder: Path, step: str) -> None:
    """Finished, or not finished: only the same command may go on in a folder."""
    assert prep(folder, "gather", "plain", "--parts", "2", "--out", "done").returncode == 0
    assert "done holds the result of another request" in refuse(*command(step, out="done"))
    Path("plain/wiki_01").write_bytes(b"\xff")
    assert "not UTF-8" in refuse("gather", "plain", "--parts", "2", "--workers", "1", "--out", "half")
    assert "half holds an unfinished run of another request" in refuse(*command(step, out="half"))


@pytest.mark.parametrize("step", STEPS)
def test_a_folder_that_cannot_be_written(refuse: Refuse, folder: Path, step: str) -> None:
    Path("locked").mkdir(mode=0o555)
    before = everything_in(folder)
    result = subprocess.run(
        [*PROGRAM, "prep", *command(step, out="locked/out")],
        env=environment(),
        preexec_fn=without_privileges,
        capture_output=True,
        text=True,
    )
    message = complaint(result.stderr.splitlines())
    assert result.returncode == 2 and "cannot be written: [Errno 13] Permission denied: 'locked/out" in message
    assert "check the folder's permissions" in message
    check_untouched(folder, before)


def without_privileges() -> None:
    """What is executed next heeds the permissions of files even if root runs it."""
    if not os.geteuid() and ctypes.CDLL(None).prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0):
        raise PermissionError("cannot give up the privileges of root")


def test_another_subset_is_refused_before_the_text_is_counted(refuse: Refuse, folder: Path) -> None:
    assert prep(folder, *command("subset", source="parts")).returncode == 0
    manifest = json.loads(Path("out/manifest.json").read_text())
    Path("out/manifest.json").unlink()
    Path("out/.unfinished").mkdir()
    plan = {name: manifest[name] for name in ("format", "stage", "versions", "options", "request")}
    Path("out/.unfinished/plan.json").write_text(json.dumps(plan))
    for other in (("--subset", "6"), ("--subset-seed", "6")):
        message = refuse(*command("subset", source="parts"), *other)
        assert "out holds an unfinished run of another request (--subset" in message
        assert os.listdir("out/.unfinished") == ["plan.json"]
    assert prep(folder, *command("subset", source="parts")).returncode == 0


@pytest.mark.parametrize("step", ["examples", "subset"])
def test_a_disk_that_is_too_small_is_noticed_beforehand(
    refuse: Refuse, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    usage = type(shutil.disk_usage("."))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 5000))
    message = refuse(*command(step))
    needed = "about" if step == "examples" else "at most"
    assert message.startswith(f"the examples need {needed} ")
    assert "in out, where 5 kB are free; make room" in message
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("step", "source", "most_bytes"),
    [
        ("examples", "parts", 5_000),
        ("examples", "parts", 7_000),
        ("examples", "parts", 12_000),
        ("subset", "parts", 5_000),
        ("eval", "parts/part-00001-of-00002", 5_000),
        ("clean", "text", 5_000),
        ("segment", "plain", 5_000),
        ("split", "plain", 5_000),
        ("gather", "plain", 9_000),
    ],
)
def test_a_disk_that_gets_full(folder: Path, step: str, source: str, most_bytes: int) -> None:
    """A limit on the size of files stands in for the full disk: a write fails in the middle of a file. (The limit is
    above 4,096 bytes, which the start of processes takes.)"""
    before = everything_in(folder)
    arguments = command(step, source=source)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    result = subprocess.run(
        [*PROGRAM, "prep", *arguments], env=environment(), preexec_fn=limit, capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    message = complaint(result.stderr.splitlines())
    assert "File too large" in message and "out" in message
    assert "check" in message or "make room" in message
    check_untouched(folder, before)
    assert prep(folder, *arguments).returncode == 0
    assert prep(folder, *command(step, source=source, out="undisturbed")).returncode == 0
    assert everything_in(folder / "out") == everything_in(folder / "undisturbed")


@pytest.mark.parametrize("step", ["clean", "segment", "split", "gather", "examples", "subset"])
def test_a_part_that_changed(refuse: Refuse, folder: Path, step: str) -> None:
    """After a run that was stopped at its second file, and after one that was finished."""
    first, second = {"clean": ("text/AA/wiki_00", "text/AB/wiki_01"), "examples": PARTS, "subset": PARTS}.get(
        step, ("plain/wiki_00", "plain/wiki_01")
    )
    source = first.split("/")[0]
    options = ("--parts", "2") if step == "gather" else ()
    arguments = (*command(step, source=source), *options, "--workers", "1")
    good, other = Path(first).read_bytes(), Path(second).read_bytes()
    Path(second).write_bytes(b"\xff" + other[1:])
    assert "is not UTF-8: byte 0 " in refuse(*arguments)
    Path(second).write_bytes(other)
    Path(first).write_bytes(good.replace(b"a", b"e", 1))
    message = refuse(*arguments)
    assert f"{first} has changed since out" in message and "put the old file back, or remove out" in message
    Path(first).write_bytes(good)
    assert prep(folder, *arguments).returncode == 0
    Path(second).write_bytes(other.replace(b"a", b"e", 1))
    assert f"{second} has changed since out was made from it" in refuse(*arguments)
    Path(second).unlink()
    message = refuse(*arguments)
    assert any(reason in message for reason in ("the result of another request", "into 2 parts", "of a set of 2"))


PARTS = ("parts/part-00000-of-00002", "parts/part-00001-of-00002")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("workers", ["0", "-1", "two", "1.5", "nan"])
def test_numbers_of_workers(refuse: Refuse, step: str, workers: str) -> None:
    if step != "eval":
        assert "--workers" in refuse(*command(step), "--workers", workers)


@pytest.mark.parametrize(
    ("step", "option", "values", "expected"),
    [
        ("examples", "--dupe-factor", ("0", "-3", "1001", "1" + 30 * "0"), "dupe_factor is {}, expected 1 to 1,000"),
        ("examples", "--max-seq-length", ("4", "-1", "1" + 30 * "0"), "max_seq_length is {}, expected 5 to 65,536"),
        ("examples", "--max-predictions", ("0", "-1", "1000000"), "max_predictions is {}, expected 1 to 65,536"),
        ("examples", "--masked-lm-prob", ("nan", "-0.1", "1.5", "inf"), "masked_lm_prob is {}, expected 0.0 to 1.0"),
        ("examples", "--short-seq-prob", ("nan", "-0.1", "1.5", "inf"), "short_seq_prob is {}, expected 0.0 to 1.0"),
        ("examples", "--subset", ("0", "-1"), "the subset has {} samples, expected 1 to the samples of the text"),
        ("subset", "--subset", ("100000", "1" + 30 * "0"), "samples of the text; give another size"),
        ("subset", "--subset-seed", ("-1",), "the seed of the subset is {}, expected 0 or more"),
        ("eval", "--num-samples", ("0", "-1"), "--num-samples is {}, expected at least 1"),
        ("eval", "--dupe-factor", ("0",), "dupe_factor is {}, expected 1 to 1,000"),
        ("split", "--eval-articles", ("-1", "1" + 30 * "0", "1" + 400 * "0"), "{} evaluation articles cannot be"),
        ("split", "--eval-articles", ("1000",), "plain/wiki_00 has 10 articles, expected at least the 1,000"),
        ("gather", "--block-size", ("nan", "0", "-1", "inf"), "MiB cannot be filled; give a size above 0"),
        ("gather", "--parts", ("0", "-1", "2", "1" + 30 * "0"), "1 files cannot be gathered into"),
    ],
)
def test_values_that_cannot_be(refuse: Refuse, step: str, option: str, values: tuple[str, ...], expected: str) -> None:
    for value in values:
        assert expected.format(value) in refuse(*command(step), option, value)


@pytest.mark.parametrize("seed", ["-7", "0", "1" + 30 * "0"])
def test_any_integer_is_a_seed(folder: Path, seed: str) -> None:
    for step in ("split", "examples", "eval"):
        result = prep(folder, *command(step, out=step), "--seed", seed)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "required: STEP"),
        (("pack",), "invalid choice: 'pack'"),
        (("clean",), "required: INPUT, --out"),
        (("clean", "text"), "required: --out"),
        (("examples", "parts", "--out", "out"), "required: --vocab"),
        (("eval", "plain/wiki_00", "--vocab", "vocab.txt"), "required: --out"),
        (("eval", "plain/wiki_00", "plain/wiki_01", "--vocab", "vocab.txt", "--out", "out"), "unrecognized arguments"),
        (("examples", "parts", "--vocab", "vocab.txt", "--out", "out", "--seed", "x"), "invalid int value: 'x'"),
        (("examples", "parts", "--vocab", "vocab.txt", "--out", "out", "--subset", "1e3"), "invalid int value: '1e3'"),
        (("gather", "plain", "--out", "out", "--parts", "2", "--block-size", "3"), "not allowed with argument"),
        (("gather", "plain", "--out", "out", "--parts", "2", "--reference-faults"), "packs by block size alone"),
    ],
)
def test_missing_and_foreign_options(refuse: Refuse, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refuse(*arguments)


def test_too_little_evaluation_text(refuse: Refuse, folder: Path) -> None:
    message = refuse(*command("eval"), "--num-samples", "10000")
    assert "gives " in message and "examples, expected at least 10,000; give --num-samples " in message
    assert not Path("out").exists()
    most = message.split("--num-samples ")[1].split()[0]
    assert prep(folder, *command("eval"), "--num-samples", most).returncode == 0
    assert "plain is 2 files, expected one" in refuse(*command("eval", source="plain", out="other"))


def edited(path: str, change: Callable[[Any], None]) -> None:
    content = json.loads(Path(path).read_text())
    change(content)
    Path(path).write_text(json.dumps(content))


def test_the_folder_of_a_step_as_input(refuse: Refuse, folder: Path) -> None:
    """Manifests are no text; half results, and training mixed with evaluation text, are refused."""
    assert prep(folder, "split", "plain", "--eval-articles", "4", "--out", "split").returncode == 0
    for step in ("gather", "examples", "segment"):
        message = refuse(*command(step, source="split"))
        assert "split holds training and evaluation text; give" in message and "split/train" in message
    assert prep(folder, *command("gather", source="split/train/*", out="parts2")).returncode == 0
    assert prep(folder, *command("examples", source="parts2/*", out="samples")).returncode == 0
    assert len(json.loads(Path("samples/manifest.json").read_text())["inputs"]) == 1
    assert "is named like the manifest" in refuse(*command("examples", source="parts2/manifest.json"))
    Path("split/train/wiki_01").rename("wiki_01")
    assert "split/train/wiki_01 is missing, which manifest.json there lists" in refuse(
        *command("gather", source="split")
    )
    Path("wiki_01").rename("split/train/wiki_01")
    Path("plain/wiki_01").write_bytes(b"\xff")
    assert "not UTF-8" in refuse("segment", "plain", "--out", "half", "--workers", "1")
    for source in ("half", "half/wiki_00", "half/*"):
        message = refuse(*command("split", source=source))
        assert "half is not finished, so its files are not all there; run its command again" in message


def test_a_numbered_set_with_a_gap_or_too_many(refuse: Refuse, folder: Path) -> None:
    shutil.copy("parts/part-00000-of-00002", "parts/part-00002-of-00002")
    assert "parts holds 3 parts of a set of 2, number 2 is one too many" in refuse(*command("examples", source="parts"))
    Path("parts/part-00000-of-00002").unlink()
    Path("parts/part-00002-of-00002").unlink()
    assert "parts holds 1 parts of a set of 2, number 0 is missing" in refuse(*command("examples", source="parts"))
    assert prep(folder, *command("examples", source="parts/part-*")).returncode == 0


def test_a_file_that_lost_all_its_articles_to_the_evaluation_set(refuse: Refuse, folder: Path) -> None:
    for i in range(6):
        Path("plain", f"wiki_{i:02d}").write_text(f"The only article of file {i}.\n")
    assert prep(folder, "split", "plain", "--eval-articles", "2", "--out", "split").returncode == 0
    assert [path.stat().st_size > 0 for path in sorted(Path("split/train").iterdir())].count(False) == 2
    assert prep(folder, "gather", "split/train", "--out", "gathered").returncode == 0
    assert Path("gathered/part-00000-of-00001").read_text().count(".\n") == 4
    Path("split/train/wiki_00").write_text("")  # not empty in the manifest
    assert "split/train/wiki_00 is empty (0 bytes)" in refuse(*command("gather", source="split/train"))


def test_links_in_a_folder(refuse: Refuse, folder: Path) -> None:
    Path("plain/wiki_02").symlink_to("absent")
    assert "plain holds plain/wiki_02, which is no file" in refuse(*command("segment", source="plain"))
    Path("plain/wiki_02").unlink()
    Path("plain/more").symlink_to(folder / "parts")
    assert "holds plain/more, a link to another folder" in refuse(*command("segment", source="plain"))
