"""Layouts of every kind, for tests that must hold for all of them."""

from itertools import pairwise

from hypothesis import strategies as st

from bert_mlperf.optim.layout import FlatLayout, make_layout

EXTENTS = st.one_of(st.integers(0, 5), st.sampled_from([17, 63, 64, 65, 128, 200]))


@st.composite
def layouts(draw) -> tuple[FlatLayout, dict, list[list[str]], set[str], int | None]:
    """A layout, and what it was made of: shapes, units, decayed names, bucket size."""
    extents = draw(st.lists(st.lists(EXTENTS, max_size=2), min_size=1, max_size=12))
    shapes = {f"p{i}": tuple(shape) for i, shape in enumerate(extents)}
    names = draw(st.permutations(list(shapes)))
    borders = sorted(draw(st.sets(st.integers(1, len(names)), max_size=5)) | {0, len(names)})
    units = [list(names[a:b]) for a, b in pairwise(borders)]
    decayed = draw(st.sets(st.sampled_from(sorted(shapes))))
    bucket_size = draw(st.none() | st.integers(1, 3000))
    num_shards = draw(st.integers(1, 9))
    layout = make_layout(shapes, units=units, decayed=decayed, num_shards=num_shards, bucket_size=bucket_size)
    return layout, shapes, units, decayed, bucket_size
