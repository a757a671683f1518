"""official.json holds what the reference publishes, and nothing else."""

from pathlib import Path

import pytest

from bert_mlperf.data_prep.examples_command import OFFICIAL_VOCABULARY_MD5
from bert_mlperf.data_prep.official import TEXT, OfficialFile, load_official

# Name, folder, bytes, md5: the tables of the reference's README, written down a second time.
PUBLISHED = {
    ("bert_config.json", None, 314, "7f59165e21b7d566db610ff6756c926b"),
    ("vocab.txt", None, 231_508, "64800d5d8528ce344256daf115d4965e"),
    ("model.ckpt-28252.index", "tf1_ckpt", 17_371, "f97de3ae180eb8d479555c939d50d048"),
    ("model.ckpt-28252.meta", "tf1_ckpt", 24_740_228, "dbd16c731e8a8113bc08eeed0326b8e7"),
    ("model.ckpt-28252.data-00000-of-00001", "tf1_ckpt", 4_034_713_312, "50797acd537880bfb5a7ade80d976129"),
    ("model.ckpt-28252.index", "tf2_ckpt", 6_420, "fc34dd7a54afc07f2d8e9d64471dc672"),
    ("model.ckpt-28252.data-00000-of-00001", "tf2_ckpt", 1_344_982_997, "77d642b721cf590c740c762c7f476e04"),
    ("enwiki-20200101-pages-articles-multistream.xml.bz2", None, 17_751_214_669, "00d47075e0f583fb7c0791fac1c57cb3"),
    ("enwiki-20200101-pages-articles-multistream.xml", None, 75_163_254_305, "1021bd606cba24ffc4b93239f5a09c02"),
    ("eval.txt", None, 32_851_144, "2a220f790517261547b1b45ed3ada07a"),
    ("eval.md5", None, 330_000, "71a58382a68947e93e88aa0d42431b6c"),
    ("eval_intermediate", None, 843_343_183, None),
    ("eval_10k", None, 25_382_591, None),
}
TEXT_PARTS = {
    0: (27_150_902, "a64a7c31eff5cd38ae6d94f7a6229dab"),
    1: (27_198_569, "549a9ed4f805257245bec936563abfd0"),
    2: (27_395_616, "1a1366ddfc03aef9d41ce552ee247abf"),
    497: (24_775_043, "66835aa75d4855f2e678e8f3d73812e9"),
    498: (24_575_505, "e6d68a7632e9f4aa1a94128cce556dc9"),
    499: (21_873_644, "b3b087ad24e3770d879a351664cebc5a"),
}


def test_files_are_those_published() -> None:
    files = load_official().files
    assert {(file.name, file.folder, file.bytes, file.md5) for file in files} == PUBLISHED
    assert len(files) == len(PUBLISHED)


def test_sets_are_those_published() -> None:
    text, samples = load_official().sets
    assert (text.layout, text.count, text.pattern, text.known) == ("text", 500, "part-*-of-00500", TEXT_PARTS)
    assert (samples.layout, samples.count, samples.bytes) == ("TFRecord", 500, 391_434_110_129)
    assert samples.known == {0: (514_241_279, None), 499: (898_392_312, None)}
    assert text.names.format(7) == "part-00007-of-00500"


def test_the_vocabulary_is_the_one_that_examples_ask_for() -> None:
    (vocabulary,) = (file for file in load_official().files if file.name == "vocab.txt")
    assert vocabulary.md5 == OFFICIAL_VOCABULARY_MD5


def test_text_and_records_of_one_name_are_different_sets() -> None:
    official = load_official()
    assert official.set_named("part-*-of-00500", is_text=True) is official.sets[0]
    assert official.set_named("part-*-of-00500", is_text=False) is official.sets[1]
    assert official.set_named("part-*-of-00499", is_text=True) is None


@pytest.mark.parametrize(
    ("folder", "size", "expected"),
    [
        ("tf1_ckpt", 5, "tf1_ckpt"),
        ("tf2_ckpt", 5, "tf2_ckpt"),
        ("phase1", 5, "tf1_ckpt"),  # the one that is read, if nothing tells
        ("phase1", 6_420, "tf2_ckpt"),
        ("tf2_ckpt", 17_371, "tf1_ckpt"),  # the size tells more than the folder
    ],
)
def test_which_checkpoint_a_file_is(tmp_path: Path, folder: str, size: int, expected: str) -> None:
    path = tmp_path / folder / "model.ckpt-28252.index"
    path.parent.mkdir()
    path.write_bytes(b"x" * size)
    found = load_official().file(path)
    assert isinstance(found, OfficialFile) and found.folder == expected


def test_other_names_are_not_official(tmp_path: Path) -> None:
    assert load_official().file(tmp_path / "vocab.text") is None


def test_where_to_get_a_kind() -> None:
    assert load_official().where(TEXT) == load_official().sets[0].where
