"""What the text stages share: strict reading, line ends, articles, and the size of the raw file behind a text.

The stages clean -> segment -> split keep one file for every file of the extractor; the reference packs the files into
parts by the sizes of the raw ones. Each stage hands that size on in the facts of its outputs (`raw_bytes`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import absolute, read_manifest
from bert_mlperf.errors import UserError


def read_text(path: Path, *, universal_newlines: bool = False) -> str:
    """The whole file; with `universal_newlines` CR and CRLF become LF.

    Raises UserError if the file cannot be read or is not UTF-8 (with the byte offset from the begin of the file).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"the text {path} cannot be read: {error.strerror}; give a UTF-8 text file.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the text {path} is not UTF-8: byte {error.start:,} (from 0) is 0x{data[error.start]:02x} "
            f"({error.reason}), expected UTF-8 throughout; convert the file or extract it again."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if universal_newlines else text


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 with the line ends as they are in `text`."""
    path.write_text(text, encoding="utf-8", newline="")


def articles_of(text: str) -> list[str]:
    """What two LF separate, as the reference counts it: some articles may be empty or begin or end with an LF."""
    return text.split("\n\n")


def joined(articles: Sequence[str]) -> str:
    """The articles that hold any text, exactly one empty line between them, none at the begin or end; an LF ends it."""
    return "\n".join(f"{article.strip(chr(10))}\n" for article in articles if article.strip())


def raw_sizes(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """For each path {"raw_bytes": size of the extractor's file behind it, "sized_by": "raw"}, as the manifest of the
    stage that wrote it says (in a folder above it); without one {"raw_bytes": its own size, "sized_by": "text"}.

    Raises UserError if a manifest speaks of another state of the file.
    """
    known: dict[Path, dict[str, dict[str, Any]]] = {}
    for path in map(Path, map(absolute, paths)):
        size = path.stat().st_size
        for folder in path.parents:
            if folder not in known:
                manifest = read_manifest(folder) or {"outputs": []}
                known[folder] = {entry["name"]: entry for entry in manifest["outputs"]}
            entry = known[folder].get(path.relative_to(folder).as_posix(), {"facts": {}})
            if "raw_bytes" in entry["facts"]:
                break
        else:
            yield {"raw_bytes": size, "sized_by": "text"}
            continue
        if entry["bytes"] != size:
            raise UserError(
                f"{path} has {size:,} bytes, the manifest in {folder} says {entry['bytes']:,}, so the file was changed "
                "after it was written; run the step that wrote it again."
            )
        yield {key: entry["facts"][key] for key in ("raw_bytes", "sized_by")}
