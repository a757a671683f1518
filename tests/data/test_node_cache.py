"""The shared copy of the shards; nodes and their ranks are threads here."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_mlperf.data import node_cache
from bert_mlperf.data.node_cache import NodeCache, Piece, check_space, cut, fill_node_cache, run_folder, sweep, turns
from bert_mlperf.errors import UserError

SECONDS = 20


class Nodes:
    """`nodes` x `ranks_per_node` threads; those with one local rank gather from each other."""

    def __init__(self, nodes: int, ranks_per_node: int) -> None:
        self.nodes, self.ranks_per_node = nodes, ranks_per_node
        self._barriers = [threading.Barrier(nodes) for _ in range(ranks_per_node)]
        self._chunks: dict[tuple[int, int], np.ndarray] = {}
        self.heard: dict[tuple[int, int], list[float]] = defaultdict(list)

    def share(self, node: int, local_rank: int) -> Callable[[np.ndarray], np.ndarray]:
        def shared(chunk: np.ndarray) -> np.ndarray:
            self._chunks[node, local_rank] = chunk
            self._barriers[local_rank].wait(SECONDS)
            found = np.stack([self._chunks[other, local_rank] for other in range(self.nodes)])
            self._barriers[local_rank].wait(SECONDS)
            return found

        return shared

    def fill(self, files: list[Path], folder: Path, **options: Any) -> list[NodeCache]:
        """What all ranks return, node by node; the copies of node n are in folder/n."""
        found: dict[tuple[int, int], Any] = {}

        def work(node: int, local_rank: int) -> None:
            try:
                found[node, local_rank] = fill_node_cache(
                    files,
                    folder / str(node),
                    node=node,
                    nodes=self.nodes,
                    local_rank=local_rank,
                    ranks_per_node=self.ranks_per_node,
                    share=self.share(node, local_rank),
                    progress=self.heard[node, local_rank].append,
                    **options,
                )
            except BaseException as error:
                found[node, local_rank] = error
                self._barriers[local_rank].abort()

        places = [(node, local) for node in range(self.nodes) for local in range(self.ranks_per_node)]
        threads = [threading.Thread(target=work, args=place) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
        for result in found.values():
            if isinstance(result, UserError):
                raise result
        return [found[place] for place in places]


def write_files(folder: Path, sizes: list[int]) -> list[Path]:
    generator = np.random.default_rng(len(sizes))
    files = [folder / f"part_{number}" for number in range(len(sizes))]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(generator.bytes(size))
    return files


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
@pytest.mark.parametrize("sizes", [[100], [1, 0, 50, 49], [0], [3], [64, 64]])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)])
def test_every_node_has_a_copy_and_every_byte_was_read_once(
    tmp_path: Path, nodes: int, ranks_per_node: int, sizes: list[int], chunk: int
) -> None:
    files = write_files(tmp_path, sizes)
    all_nodes = Nodes(nodes, ranks_per_node)
    found = all_nodes.fill(files, tmp_path / "cache", chunk_bytes=chunk)
    assert all(heard == sorted(heard) and heard[-1:] in ([], [1.0]) for heard in all_nodes.heard.values())
    assert sum(cache.bytes_read for cache in found) == sum(sizes)
    assert max(c.bytes_read for c in found) - min(c.bytes_read for c in found) <= min(chunk, sum(sizes))
    for node in range(nodes):
        cache = found[node * ranks_per_node]
        assert cache.bytes_total == sum(sizes)
        assert cache.files == [tmp_path / "cache" / str(node) / file.name for file in files]
        assert [copy.read_bytes() for copy in cache.files] == [file.read_bytes() for file in files]


def test_cutting_by_hand() -> None:
    assert cut([3, 0, 4], 5) == [[Piece(0, 0, 3), Piece(2, 0, 2)], [Piece(2, 2, 2)]]
    assert cut([], 5) == cut([0], 5) == []


def test_chunks_are_dealt_in_turn() -> None:
    """Five chunks, two nodes of two ranks: chunks 0, 2, 4 are for local rank 0, of which node 0 reads 0 and 4."""
    of_first = turns([5], 1, nodes=2, local_rank=0, ranks_per_node=2)
    assert of_first == [[[Piece(0, 0, 1)], [Piece(0, 2, 1)]], [[Piece(0, 4, 1)], []]]
    of_second = turns([5], 1, nodes=2, local_rank=1, ranks_per_node=2)
    assert of_second == [[[Piece(0, 1, 1)], [Piece(0, 3, 1)]]]
    read = Counter(piece.start for turn in (*of_first, *of_second) for pieces in turn for piece in pieces)
    assert read == {start: 1 for start in range(5)}


def test_a_file_that_is_gone_or_shorter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_files(tmp_path, [10, 10])
    monkeypatch.setattr(node_cache, "_size", lambda file: 12)
    with pytest.raises(UserError, match=r"part_\d has become shorter since the run began"):
        Nodes(2, 1).fill(files, tmp_path / "cache")
    monkeypatch.undo()
    files[1].unlink()
    with pytest.raises(UserError, match="part_1 can no longer be read"):
        Nodes(2, 1).fill(files, tmp_path / "cache")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(UserError, match=r"cache/0/part_0 cannot be written"):
        Nodes(1, 1).fill(write_files(tmp_path, [10]), tmp_path / "cache")


def test_the_folder_of_a_run_goes_with_it_and_leftovers_go_before_the_next(tmp_path: Path) -> None:
    with run_folder(tmp_path) as first:
        (first / "copy").write_bytes(b"x")
        with run_folder(tmp_path) as second:
            sweep(tmp_path)
            assert first != second and (first / "copy").exists() and second.exists()  # in use
        assert not second.exists()
    assert list(tmp_path.iterdir()) == []
    killed, other = tmp_path / "bert-mlperf-cache-killed", tmp_path / "bert-mlperf-cache-of-somebody"
    for folder in (killed, other):
        folder.mkdir()
    (killed / ".lock").touch()
    check_space([], tmp_path)
    assert list(tmp_path.iterdir()) == [other]  # without a lock: not ours


def test_a_launcher_that_looks_while_another_makes_its_folder_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = node_cache.fcntl.flock

    def looked_at(file: Any, operation: int) -> None:
        if operation == node_cache.fcntl.LOCK_EX:
            sweep(tmp_path)
        lock(file, operation)

    monkeypatch.setattr(node_cache.fcntl, "flock", looked_at)
    with run_folder(tmp_path) as folder:
        assert folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_room_is_looked_for_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_files(tmp_path, [2_000_000, 1_000_000])
    check_space(files, tmp_path)
    with pytest.raises(UserError, match=r"run.cache_folder .*nowhere cannot be used \(No such file"):
        check_space(files, tmp_path / "nowhere")
    monkeypatch.setattr(node_cache.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 2_900_000}))
    with pytest.raises(UserError, match=r"has 2\.90 MB free, the training shards take 3\.01 MB; give another folder"):
        check_space(files, tmp_path)
