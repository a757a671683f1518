"""With which vocabulary samples were made, as far as shards and manifests tell."""

from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.data.published import detect_layout
from bert_mlperf.data.shard_file import LAYOUT, read_header
from bert_mlperf.data_prep.inputs import read_manifest


@dataclass(frozen=True)
class MadeWith:
    """A vocabulary; None is not known."""

    size: int | None  # tokens
    md5: str | None  # of its file


def made_with(path: Path) -> MadeWith:
    """The vocabulary of the data file `path`: its size from the header of a shard of ours, else what the manifest of
    the step that wrote it says. Raises UserError if the file is no data file or damaged."""
    manifest = read_manifest(path.parent)
    options = {}
    if manifest is not None and path.name in {output["name"] for output in manifest["outputs"]}:
        options = manifest["options"]
    size = options.get("vocabulary_size", options.get("vocab_size"))
    if detect_layout(path) == LAYOUT:
        size = read_header(path).vocab_size
    return MadeWith(size, options.get("vocabulary_md5"))
