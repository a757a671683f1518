"""Records are those that the format's definition gives, written out value by value."""

import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bert_mlperf.data import tfrecord
from bert_mlperf.data_prep.layouts import TfrecordWriter
from bert_mlperf.data_prep.tfrecord_writer import example_messages, frames
from tests.data import files

BORDERS = [
    0,
    1,
    127,
    128,
    255,
    256,
    16383,
    16384,
    30521,
    32767,
    65535,
    2097151,
    2097152,
    268435455,
    268435456,
    2**31 - 1,
]
values = st.sampled_from(BORDERS) | st.integers(0, 2**31 - 1)


@given(
    ids=arrays(np.int32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=values),
    name=st.text("abcdefgh_", min_size=1, max_size=200),
    data=st.data(),
)
def test_messages_equal_those_written_value_by_value(ids: np.ndarray, name: str, data: st.DataObject) -> None:
    weights = data.draw(arrays(np.float32, (len(ids), 3), elements=st.floats(0, 1, width=32)))
    small = data.draw(arrays(np.uint8, (len(ids), 200), elements=st.integers(0, 127)))
    features = {"zz": weights, name: ids, "_small": small}
    found = example_messages(features)
    for i, message in enumerate(found):
        assert message == files.encode_example({key: features[key][i] for key in sorted(features)})
        read = tfrecord.parse_example(message)
        np.testing.assert_array_equal(tfrecord.stack_features([read[name]])[0], ids[i])
        np.testing.assert_array_equal(tfrecord.stack_features([read["zz"]])[0], weights[i])


@given(messages=st.lists(st.binary(min_size=4, max_size=300), min_size=1, max_size=6))
def test_frames_are_lengths_and_checksums_of_the_definition(messages: list[bytes]) -> None:
    expected = b""
    for message in messages:
        length = struct.pack("<Q", len(message))
        expected += length + files.masked_crc(length) + message + files.masked_crc(message)
    assert frames(messages) == expected


READ_WITH_TENSORFLOW = """
import json, sys
import tensorflow as tf
def feature(width, dtype=tf.int64):
    return tf.io.FixedLenFeature([width], dtype)
features = {name: feature(512) for name in ("input_ids", "input_mask", "segment_ids")}
features |= {name: feature(76) for name in ("masked_lm_positions", "masked_lm_ids")}
features |= {"masked_lm_weights": feature(76, tf.float32), "next_sentence_labels": feature(1)}
rows = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(sys.argv[1])]
print(json.dumps({name: [row[name].numpy().tolist() for row in rows] for name in features}))
"""


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_reads_the_same_values(tmp_path: Path) -> None:
    """The reference's own reader; in its own process, as it takes seconds to import and never goes again."""
    samples = files.make_samples([3, 512, 128, 20], vocab_size=30522)
    with TfrecordWriter(tmp_path / "a.tfrecord") as writer:
        for i in range(4):
            writer.write(samples.take(np.array([i])))
    command = [sys.executable, "-c", READ_WITH_TENSORFLOW, str(tmp_path / "a.tfrecord")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {name: array.tolist() for name, array in files.padded(samples).items()}
