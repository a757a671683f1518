"""The lines of the report of `verify`: what a file or set is, in which state, and what is wrong with it in full."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.data.published import TFRECORD
from bert_mlperf.data_prep.fingerprint import OFFICIAL_EVAL_INPUT_IDS_MD5
from bert_mlperf.data_prep.official import (
    EVAL_SAMPLES,
    EVAL_TEXT,
    EXTRACTED,
    TEXT,
    TRAIN_SAMPLES,
    OfficialFile,
    OfficialSet,
    load_official,
)
from bert_mlperf.data_prep.verify_checks import Check, Checked
from bert_mlperf.data_prep.verify_scan import Found, SetKey

PRESENT, WRONG, MISSING = "present", "wrong", "missing"
Results = Mapping[Path, Checked]


@dataclass(frozen=True)
class Row:
    """One line."""

    name: str  # path or pattern of paths
    what: str
    state: str
    detail: str
    kind: str = ""  # what it is good for if it is whole: a kind of official.json, or the name of a step
    use: str = ""  # the path to give to a command or system file
    problems: tuple[str, ...] = ()  # in full


def checks_for(found: Found) -> Iterator[Check]:
    """What has to be read; files of a wrong size need not be."""
    for path, file in found.official:
        if file.md5 is not None and path.stat().st_size == file.bytes:
            yield Check(path, "md5")
    for key, parts in found.sets.items():
        known = load_official().set_of(TEXT).known if is_official_text(key) else {}
        for number, path in parts.items():
            if number not in known:
                yield Check(path, "text" if key.is_text else "samples")
            elif path.stat().st_size == known[number][0]:
                yield Check(path, "md5")
    for files in found.step_files.values():
        for path, (size, _) in files.items():
            if path.is_file() and path.stat().st_size == size:
                yield Check(path, "md5")


def is_official_text(key: SetKey) -> bool:
    return key.is_text and key.pattern == _pattern(load_official().set_of(TEXT))


def file_row(path: Path, file: OfficialFile, results: Results) -> Row:
    """The row on a file with the name of an official one."""
    difference = _difference(path, file.bytes, file.md5, results=results)
    if difference:
        detail = "md5 differs, see below" if "md5" in difference else difference
        return Row(str(path), file.what, WRONG, detail, problems=(f"{path}: {difference}.",))
    proof = "md5 right" if file.md5 else "no md5 published"
    return Row(str(path), file.what, PRESENT, f"{path.stat().st_size:,} B, {proof}", file.kind, str(path))


def set_row(key: SetKey, parts: Mapping[int, Path], results: Results, *, folder: Path) -> Row:
    """The row on a set of text parts or shards; `folder` is the one that was scanned."""
    official = load_official().set_of(TEXT) if is_official_text(key) else None
    problems = _gaps(key, parts)
    for number, path in sorted(parts.items()):
        if official is not None and number in official.known:
            difference = _difference(path, *official.known[number], results=results)
            problems += [f"{path}: {difference}."] if difference else []
        elif results[path].problem:
            problems.append(results[path].problem)
    layouts = sorted({results[path].layout for path in parts.values() if path in results and results[path].layout})
    if len(layouts) > 1 and not key.is_text:
        problems.append(f"{key.folder} mixes {' and '.join(layouts)}; keep one layout in a folder.")
    name = str(key.folder / key.pattern)
    return Row(
        name=name,
        what=(official.what if official else "text") if key.is_text else " / ".join(layouts) or "samples",
        state=WRONG if problems else PRESENT,
        detail=_set_detail(key, parts, results, layouts)
        + (f"; {len(problems):,} wrong, see below" if problems else ""),
        kind=_kind(key, folder),
        use=name if key.is_text else str(key.folder if key.count is not None or len(parts) > 1 else parts[0]),
        problems=tuple(problems),
    )


def step_rows(found: Found, results: Results) -> Iterator[Row]:
    """A row on each folder that a step wrote, on its files that have no checksum inside."""
    for folder, files in found.step_files.items():
        if not files:
            continue
        step = found.steps[folder]["stage"]
        differences = [(path, _difference(path, size, md5, results=results)) for path, (size, md5) in files.items()]
        problems = tuple(f"{path}: {difference}." for path, difference in differences if difference)
        detail = f"{len(files):,} files, " + (
            f"{len(problems):,} wrong, see below" if problems else "as its manifest says"
        )
        row = Row(str(folder), f"result of {step}", WRONG if problems else PRESENT, detail, problems=problems)
        yield Row(**vars(row) | {"kind": TEXT if step == "gather" else step, "use": str(folder)})
        if step == "split":
            yield Row(**vars(row) | {"kind": EVAL_TEXT, "use": str(folder / "eval.txt")})


def extracted_rows(found: Found) -> Iterator[Row]:
    for folder, count in found.extracted.items():
        name = str(folder / "wiki_??")
        yield Row(name, EXTRACTED, PRESENT, f"{count:,} files, not checked", EXTRACTED, name)


def missing_rows(found: Found, have: Mapping[str, str]) -> Iterator[Row]:
    """What is official and not there, and whether it is needed beside what is there and whole (`have`)."""
    official = load_official()
    present = {file for _, file in found.official}
    for file in official.files:
        if file not in present:
            yield Row(file.name, file.what, MISSING, _need(file, have))
    for numbered in official.sets:
        is_text = numbered.layout == TEXT
        if not any(key.pattern == _pattern(numbered) and key.is_text == is_text for key in found.sets):
            yield Row(_pattern(numbered), numbered.what, MISSING, _need(numbered, have))


def _difference(path: Path, size: int | None, md5: str | None, *, results: Results) -> str:
    """What is wrong with a file of known size and md5, "" if nothing is."""
    if not path.is_file():
        return "missing"
    actual = path.stat().st_size
    if size is not None and actual != size:
        return f"{actual:,} B, expected {size:,} B"
    if md5 is None:
        return ""
    found = results[path]
    return found.problem or ("" if found.md5 == md5 else f"md5 {found.md5}, expected {md5}")


def _gaps(key: SetKey, parts: Mapping[int, Path]) -> list[str]:
    missing = sorted(set(range(key.count or 0)) - parts.keys())
    if not missing:
        return []
    return [
        f"{key.folder / key.pattern}: {len(missing):,} of {key.count:,} files are missing, the first is number "
        f"{missing[0]} (they count from 0); copy them."
    ]


def _set_detail(key: SetKey, parts: Mapping[int, Path], results: Results, layouts: list[str]) -> str:
    count = f"{len(parts):,} files" if key.count is None else f"{len(parts):,} of {key.count:,} files"
    total = sum(path.stat().st_size for path in parts.values())
    if key.is_text:
        return f"{count}, {total:,} B"
    detail = f"{count}, {sum(results[path].num_samples for path in parts.values()):,} samples"
    for hashed in {results[path].input_ids_md5 for path in parts.values()} - {""}:
        detail += ", input_ids " + ("as published" if hashed == OFFICIAL_EVAL_INPUT_IDS_MD5 else "not as published")
    published = load_official().set_of(TFRECORD)
    if key.pattern == _pattern(published) and layouts == [TFRECORD]:
        detail += f", {total:,} B" + (
            " as published" if total == published.bytes else f" (published: {published.bytes:,})"
        )
    return detail


def _kind(key: SetKey, folder: Path) -> str:
    if key.is_text:
        return TEXT
    official = next((file.kind for file in load_official().files if file.name == key.pattern), None)
    is_eval = "eval" in str((key.folder / key.pattern).relative_to(folder)).lower()
    return official or (EVAL_SAMPLES if is_eval else TRAIN_SAMPLES)


def _pattern(numbered: OfficialSet) -> str:
    return numbered.names.replace("{:05d}", "*")


def _need(entry: OfficialFile | OfficialSet, have: Mapping[str, str]) -> str:
    if entry.optional:
        return f"not needed: {entry.optional}"
    instead = next((kind for kind in entry.instead if kind in have), None)
    return f"not needed: {instead} is here" if instead else "needed, see below"
