"""The parts of a step and the ideal, by hand; both ways of a real step end with the same bits."""

import pytest

from bert_mlperf.bench.overlap import Job, job_of, rank_count
from bert_mlperf.bench.parts import parts_of_steps, seconds_of
from bert_mlperf.bench.ranks import run_on_loopback
from bert_mlperf.cli import main
from bert_mlperf.report.timeline import Span


def one_step(start: float) -> list[Span]:
    """forward 2 s, backward 3 s with reductions of 2, 1 and 4 s inside (the last behind it), update 1 s, gather 1 s."""
    spans = [
        ("compute", "forward", 0, 2),
        ("reduce", "reduce 0", 3, 5),  # complete after 1 s of backward
        ("reduce", "reduce 1", 6, 7),  # after 2 s
        ("compute", "backward", 2, 8),
        ("reduce", "reduce 2", 8, 12),  # when backward is over
        ("compute", "update", 12.5, 13.5),
        ("gather", "gather 2", 13.5, 14.5),
    ]
    return [Span(0, lane, name, start + a, start + b) for lane, name, a, b in spans]


def test_parts_of_a_step():
    spans = one_step(100) + one_step(115)
    first, second = parts_of_steps(spans, [100, 115, 130])
    assert first == second
    assert (first.forward, first.backward, first.reduce, first.update, first.gather) == (2, 3, 7, 1, 1)
    assert first.other == pytest.approx(1) and first.step == 15
    assert first.ideal == 2 + 7 + 1 + 1
    assert first.last_reduced == 8  # reduce 0 from 1 to 3, reduce 1 to 4, reduce 2 to 8
    assert first.scheduled == 2 + 8 + 1 + 1
    assert seconds_of(spans, "reduce") == 14


def test_communication_that_is_short_hides_completely():
    spans = [Span(0, "compute", "forward", 0, 1), Span(0, "compute", "backward", 1, 4)]
    spans += [Span(0, "reduce", "reduce 0", 2, 2.5), Span(0, "compute", "update", 4, 5)]
    (parts,) = parts_of_steps(spans, [0, 5])
    assert parts.last_reduced == parts.backward == 2.5
    assert parts.ideal == parts.scheduled == 4.5


def result(start: float) -> dict:
    spans = [list(span[1:]) for span in one_step(start) + one_step(start + 15) + one_step(start + 30)]
    return {"starts": [start, start + 15, start + 30, start + 45], "spans": spans, "losses": [1.0], "checksum": "a"}


def test_ranks_are_put_together_and_the_picture_shows_a_step_and_the_next_forward():
    job = job_of([result(100), result(100.25)], overlap=False)
    assert isinstance(job, Job) and rank_count(job) == 2
    assert job.starts == (100.25, 115.25, 130.25, 145.25) and job.seconds == [15, 15, 15]
    shown = job.one_step()
    assert {s.rank for s in shown} == {0, 1}
    names = [s.name for s in shown if s.rank == 1]
    assert names == [s.name for s in one_step(0)] + ["forward"]


@pytest.mark.slow
def test_overlap_changes_no_bit():
    made = []
    for overlap in (False, True):
        job = {"ranks_per_host": 1, "steps": 3, "overlap": overlap}
        results = run_on_loopback("bert_mlperf.bench.overlap_rank:train", job, num_hosts=2, ranks_per_host=1)
        made.append(job_of(results, overlap=overlap))
        assert {r["checksum"] for r in results} == {made[-1].checksum}
    assert made[0].losses == made[1].losses and made[0].checksum == made[1].checksum
    assert made[0].losses[-1] < made[0].losses[0]
    assert all(p.step > 0 and p.ideal <= p.step for p in made[0].parts)


@pytest.mark.parametrize("arguments", [["--hosts", "1"], ["--steps", "2"], ["--turns", "0"], ["--mbit", "0.5"]])
def test_bad_sizes_are_one_sentence(arguments, capsys):
    assert main(["bench", "overlap", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and arguments[0] in error


def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    assert main(["bench", "overlap", "--out", str(file)]) == 2
    expected = f"error: --out is {file}, where no folder can be made (Not a directory); give another.\n"
    assert (capsys.readouterr().err, file.read_text()) == (expected, "kept")
