"""The lines of the report of `verify`: what a file or set is, in which state, and what is wrong with it in full."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bert_mlperf.data_prep.fingerprint import OFFICIAL_EVAL_INPUT_IDS_MD5
from bert_mlperf.data_prep.official import (
    EVAL_SAMPLES,
    EVAL_TEXT,
    EXTRACTED,
    TEXT,
    TRAIN_SAMPLES,
    VOCABULARY,
    Official,
    OfficialFile,
    OfficialSet,
)
from bert_mlperf.data_prep.split import count_articles
from bert_mlperf.data_prep.stage import number_of
from bert_mlperf.data_prep.verify_checks import BYTES, SAMPLES, Check, Checked
from bert_mlperf.data_prep.verify_checks import TEXT as UTF8
from bert_mlperf.data_prep.verify_next import Use, options_for_eval, options_for_split
from bert_mlperf.data_prep.verify_scan import Found, SetKey, Step

PRESENT, WRONG, MISSING = "present", "wrong", "missing"
Results = Mapping[Path, Checked]


@dataclass(frozen=True)
class Row:
    """One line."""

    name: str  # path or pattern of paths
    what: str
    state: str
    detail: str
    uses: Mapping[str, Use]  # what it is good for: a kind of official.json or a step's name
    problems: tuple[str, ...] = ()  # in full


def checks_for(found: Found, official: Official) -> Iterator[Check]:
    """What has to be read, each file once."""
    inputs = {path for step in found.steps.values() for path in step.inputs}
    for check in _checks_of_content(found, official):
        yield replace(check, is_input=check.path in inputs)
        inputs.discard(check.path)
    for path in sorted(inputs):
        yield Check(path, BYTES, is_input=True)


def _checks_of_content(found: Found, official: Official) -> Iterator[Check]:
    for path, file in found.official:
        content = SAMPLES if file.kind.endswith("samples") else BYTES
        yield Check(path, content, file.bytes, file.md5, _get_again(file))
    written = {
        path: Check(path, BYTES, size, md5, f"copy {folder} again, or remove it and run prep {step.name} again")
        for folder, step in found.steps.items()
        for path, (size, md5) in step.files.items()
    }
    for key, parts in found.sets.items():
        numbered = official.set_named(key.pattern, is_text=key.is_text)
        for number, path in parts.items():
            check = written.pop(path, Check(path, BYTES))
            if numbered is not None and number in numbered.known:
                size, md5 = numbered.known[number]
                check = Check(path, BYTES, size, md5, _get_again(numbered))
            yield replace(check, content=UTF8 if key.is_text else SAMPLES)
    yield from written.values()


def file_row(path: Path, file: OfficialFile, result: Checked) -> Row:
    """The row on a file with the name of an official one."""
    row = Row(str(path), file.what, PRESENT, f"{result.size:,} B, ", {file.kind: Use(str(path))})
    if result.problem:
        return replace(row, state=WRONG, detail=result.fault, problems=(result.problem,))
    proof = "md5 right" if file.md5 else f"{result.num_samples:,} samples{_published([result])}"
    return replace(row, detail=row.detail + proof)


def set_row(key: SetKey, parts: Mapping[int, Path], results: Results, *, found: Found, official: Official) -> Row:
    """The row on a set of text parts or shards."""
    numbered = official.set_named(key.pattern, is_text=key.is_text)
    checked = [results[path] for _, path in sorted(parts.items())]
    layouts = sorted({result.layout for result in checked} - {""})
    problems = [*_miscounted(key, parts), *_mixed(key, layouts, found), *(r.problem for r in checked if r.problem)]
    problems += _stale(key.folder, found, results)
    if numbered and numbered.bytes and len(parts) == numbered.count and _total(checked) != numbered.bytes:
        problems.append(
            f"{key.folder / key.pattern} has {_total(checked):,} bytes in all, expected {numbered.bytes:,} as "
            "published; make it again from the official text, or give another data set other names."
        )
    name = str(key.folder / key.pattern)
    details = [_count(key, parts), *_contents(key, checked, numbered)]
    kind = TEXT if key.is_text else _kind(key, found, checked)
    use = name if key.is_text else str(key.folder if key.count is not None or len(parts) > 1 else parts[0])
    return Row(
        name=name,
        what="text" if key.is_text else " / ".join(layouts) or "samples",
        state=WRONG if problems else PRESENT,
        detail=", ".join([*details, *([number_of(len(problems), "fault")] if problems else [])]),
        uses={kind: Use(use, size=sum(result.num_samples for result in checked))},
        problems=tuple(problems),
    )


def step_rows(found: Found, results: Results) -> Iterator[Row]:
    """A row on each folder that a step wrote, on its files that are not in a set."""
    in_sets = {path for parts in found.sets.values() for path in parts.values()}
    for folder, step in found.steps.items():
        files = [path for path in step.files if path not in in_sets]
        if not files:
            continue
        damaged = [results[path].problem for path in files if results[path].problem]
        problems = (*damaged, *_stale(folder, found, results))
        detail = f"{number_of(len(files), 'file')}, " + (number_of(len(problems), "fault") if problems else "md5 right")
        state = WRONG if problems else PRESENT
        options = options_for_split(step.facts) if step.name == "segment" else ""
        uses = {TEXT if step.name == "gather" else step.name: Use(str(folder), options)}
        if step.name == "split":
            uses[EVAL_TEXT] = Use(str(folder / "eval.txt"), options_for_eval(step.summary["eval_articles"]))
        yield Row(str(folder), f"result of {step.name}", state, detail, uses, problems)
    for folder, problem in found.broken.items():
        yield Row(str(folder), "result of a step", WRONG, "unfinished or damaged", {}, (problem,))


def other_rows(found: Found) -> Iterator[Row]:
    """Rows on what is taken as it is."""
    for folder, count in found.extracted.items():
        name = str(folder / "wiki_??")
        yield Row(name, EXTRACTED, PRESENT, f"{number_of(count, 'file')}, not checked", {EXTRACTED: Use(name)})
    for path, own in found.own.items():
        detail = "as the manifest of the examples says" if own.is_recorded else "not the official one"
        if own.kind == VOCABULARY:
            use = Use(str(path), "--own-vocabulary")
            detail += "" if own.is_recorded else ": add --own-vocabulary"
        else:
            use = Use(str(path), options_for_eval(count_articles(path, reference_faults=False)))
        yield Row(str(path), f"own {own.kind}", PRESENT, detail, {own.kind: use})


def missing_rows(found: Found, official: Official) -> Iterator[Row]:
    """What is official and not there."""
    present = {file for _, file in found.official}
    own = {own.kind for own in found.own.values()}
    for file in official.files:
        if file not in present and file.kind not in own:
            yield Row(file.name, file.what, MISSING, file.optional or "", {file.kind: Use("")})
    sets = [official.set_named(key.pattern, is_text=key.is_text) for key in found.sets]
    for numbered in official.sets:
        if numbered not in sets:
            yield Row(numbered.pattern, numbered.what, MISSING, numbered.optional or "", {numbered.kind: Use("")})


def _get_again(entry: OfficialFile | OfficialSet) -> str:
    hints = {
        VOCABULARY: ", or add --own-vocabulary to prep examples and prep eval if it is your own",
        EVAL_TEXT: ", or give it another name if it is your own",
    }
    return f"get it again: {entry.where}{hints.get(entry.kind, '')}"


def _stale(folder: Path, found: Found, results: Results) -> Iterator[str]:
    """Sentences on inputs of the step of `folder` that are not what it has read; damaged ones speak for themselves."""
    step = found.steps.get(folder)
    for path, md5 in step.inputs.items() if step else ():
        result = results[path]
        if not result.problem and result.md5 != md5:
            yield (
                f"{path} has changed since {folder} was made from it; put the old file back, or remove {folder} and "
                f"run prep {step.name if step else ''} and the steps behind it again."
            )


def _miscounted(key: SetKey, parts: Mapping[int, Path]) -> Iterator[str]:
    """Sentences on missing and superfluous numbers."""
    wanted = range(len(parts) if key.count is None else key.count)
    missing = sorted(set(wanted) - parts.keys())
    if missing:
        numbers = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        yield (
            f"{key.folder / key.pattern}: {len(missing):,} of {key.count:,} files missing, number {numbers} (they "
            "count from 0); copy them."
        )
    beyond = sorted(parts.keys() - set(wanted))
    if beyond:
        yield (
            f"{parts[beyond[0]]} is one of {len(beyond):,} files with a number beyond the {key.count:,} that the names "
            "speak of (they count from 0); make the set again."
        )


def _mixed(key: SetKey, layouts: Sequence[str], found: Found) -> Iterator[str]:
    """Sentences on a folder that training could not read as one set."""
    if len(layouts) > 1:
        yield f"{key.folder / key.pattern} mixes {' and '.join(layouts)}; keep one layout in a folder."
    sets = [other.pattern for other in found.sets if other.folder == key.folder and not other.is_text]
    if len(sets) > 1 and not key.is_text:
        yield (
            f"{key.folder} holds {' and '.join(sets)}, which are read as one set since they lie in one folder; move "
            "them apart."
        )


def _count(key: SetKey, parts: Mapping[int, Path]) -> str:
    if key.count is not None:
        return f"{len(parts):,} of {key.count:,} files"
    return number_of(len(parts), "file")


def _total(checked: Sequence[Checked]) -> int:
    return sum(result.size for result in checked)


def _contents(key: SetKey, checked: Sequence[Checked], numbered: OfficialSet | None) -> list[str]:
    if not key.is_text:
        return [f"{sum(result.num_samples for result in checked):,} samples{_published(checked)}"]
    details = [f"{_total(checked):,} B"]
    if numbered and not any(result.problem for result in checked):
        details.append(f"md5 right (published for {sum(md5 is not None for _, md5 in numbered.known.values())})")
    return details


def _published(checked: Sequence[Checked]) -> str:
    """Whether the token ids are those of the official evaluation set, where that can be."""
    if len(checked) != 1 or not checked[0].input_ids_md5:
        return ""
    is_official = checked[0].input_ids_md5 == OFFICIAL_EVAL_INPUT_IDS_MD5
    return ", the official evaluation set" if is_official else ", not the official evaluation set"


def _kind(key: SetKey, found: Found, checked: Sequence[Checked]) -> str:
    """Samples of one step or named "eval" are for evaluation; the innermost name that tells decides."""
    step: Step | None = found.steps.get(key.folder)
    if (step and step.name == "eval") or any(r.input_ids_md5 == OFFICIAL_EVAL_INPUT_IDS_MD5 for r in checked):
        return EVAL_SAMPLES
    folders = [found.folder.resolve().name, *key.folder.relative_to(found.folder).parts]
    for name in (key.pattern, *reversed(folders)):
        if "eval" in name.lower():
            return EVAL_SAMPLES
        if "train" in name.lower():
            return TRAIN_SAMPLES
    return TRAIN_SAMPLES
