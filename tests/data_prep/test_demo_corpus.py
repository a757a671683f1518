"""The demo corpus is the same text every time, and what it hides is decided by context."""

import itertools
import re

import numpy as np
import pytest

from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep import demo_corpus, demo_figures

Table = tuple[np.ndarray, np.ndarray]


def words_of(document: list[str]) -> list[str]:
    return [word for sentence in document for word in re.findall(r"\w+|[^\w\s]", sentence.lower())]


@pytest.fixture(scope="module")
def texts() -> tuple[list[list[str]], list[list[str]]]:
    return demo_corpus.demo_texts()


@pytest.fixture(scope="module")
def tables(texts: tuple[list[list[str]], list[list[str]]]) -> tuple[Table, Table]:
    """(left and right word [M, 2], word [M]) of every inner word of the training and the evaluation text."""
    number: dict[str, int] = {}
    found = []
    for documents in texts:
        rows = []
        for document in documents:
            ids = [number.setdefault(word, len(number)) for word in words_of(document)]
            rows += zip(ids, ids[2:], ids[1:], strict=False)
        array = np.array(rows)
        found.append((array[:, :2], array[:, 2]))
    return found[0], found[1]


def test_same_arguments_give_the_same_text() -> None:
    first = demo_corpus.generate_corpus(seed=7, num_documents=20)
    assert first == demo_corpus.generate_corpus(seed=7, num_documents=20)
    assert first[:5] == demo_corpus.generate_corpus(seed=7, num_documents=5)
    assert first != demo_corpus.generate_corpus(seed=8, num_documents=20)


def test_text_of_this_version_is_pinned() -> None:
    """A change of the text must come with a new VERSION, or prepared data would be reused wrongly."""
    assert demo_corpus.VERSION == 1
    assert demo_corpus.generate_corpus(seed=1, num_documents=1)[0][:2] == [
        "In the snow today, your field is cold and this farmer is behind you.",
        "Although the snow is sudden, your farmer can grow some wheat with Anna for you today.",
    ]


def test_no_evaluation_sentence_occurs_in_the_training_text(texts: tuple[list[list[str]], list[list[str]]]) -> None:
    train, evaluation = texts
    known = {sentence for document in train for sentence in document}
    held_out = [sentence for document in evaluation for sentence in document]
    assert len(held_out) > 2000
    assert not known.intersection(held_out)


def test_held_out_filter_is_needed() -> None:
    train = demo_corpus.generate_corpus(seed=demo_corpus.TRAIN_SEED, num_documents=demo_corpus.TRAIN_DOCUMENTS)
    evaluation = demo_corpus.generate_corpus(seed=demo_corpus.EVAL_SEED, num_documents=demo_corpus.EVAL_DOCUMENTS)
    assert set(itertools.chain(*train)).intersection(itertools.chain(*evaluation))


def test_a_few_hundred_words_and_none_of_them_in_every_seventh_place(tables: tuple[Table, Table]) -> None:
    _, labels = tables[0]
    assert 200 <= len(np.unique(labels)) <= 400
    frequent = demo_figures.most_frequent(labels)
    assert np.mean(tables[1][1] == frequent) < 0.15


def test_neighbours_do_not_decide(tables: tuple[Table, Table]) -> None:
    train, evaluation = tables
    accuracy = demo_figures.table_accuracy(train, evaluation, back_off=(slice(0, 1), slice(1, 2)))
    assert 0.3 < accuracy < 0.60


@pytest.mark.parametrize("teller", demo_corpus.PERSONS, ids=lambda person: person.subject)
def test_pronouns_and_verbs_agree_through_a_document(teller: demo_corpus.Person) -> None:
    """The first sentence template names subject, verb and possessive; all must belong to one person and one time."""
    pattern = re.compile(r"^(Yesterday|Today) (\w+) (\w+) in (\w+) \w+ with (this|these) (\w+) because \2 (can|could) ")
    hits = [
        match
        for document in demo_corpus.generate_corpus(seed=3, num_documents=200)
        for sentence in document
        if (match := pattern.match(sentence)) and match[2] == teller.subject
    ]
    assert hits
    for match in hits:
        past = match[1] == "Yesterday"
        assert match[3] == (teller.be_past if past else teller.be_present)
        assert match[4] == teller.possessive
        assert match[7] == ("could" if past else "can")
        assert (match[5] == "these") == any(match[6] == topic.workers for topic in demo_corpus.TOPICS)


def test_words_of_one_topic_stay_together() -> None:
    sites = {topic.site: topic for topic in demo_corpus.TOPICS}
    tools = {topic.tool: topic for topic in demo_corpus.TOPICS}
    for document in demo_corpus.generate_corpus(seed=4, num_documents=50):
        words = set(words_of(document))
        assert len({sites[word] for word in words if word in sites} | {tools[w] for w in words if w in tools}) == 1


def tiny_samples() -> Samples:
    """Two samples: [2, 10, 4, 4, 3] with 11 and 12 masked in a row, and [2, 12, 13, 3] with 10 hidden behind 12."""
    return Samples(
        input_ids=np.array([2, 10, 4, 4, 3, 2, 12, 13, 3], np.uint16),
        segment_ids=np.zeros(9, np.uint8),
        offsets=np.array([0, 5, 9]),
        masked_positions=np.array([2, 3, 1], np.uint16),
        masked_ids=np.array([11, 12, 10], np.uint16),
        masked_offsets=np.array([0, 2, 3]),
        next_sentence_labels=np.zeros(2, np.uint8),
    )


def test_visible_context_hides_the_place_and_shows_neighbours_as_asked() -> None:
    seen = demo_figures.visible_context(tiny_samples(), true_neighbours=False)
    assert seen.tolist() == [[4, 10, 4], [4, 4, 3], [12, 2, 13]]
    true = demo_figures.visible_context(tiny_samples(), true_neighbours=True)
    assert true.tolist() == [[4, 10, 12], [4, 11, 3], [12, 2, 13]]


def test_table_accuracy_counts_and_backs_off() -> None:
    context = np.array([[1, 1], [1, 1], [1, 1], [1, 2], [3, 2]])
    labels = np.array([7, 8, 8, 9, 5])
    asked = np.array([[1, 1], [1, 1], [9, 2], [9, 9]])
    answers = np.array([8, 7, 5, 8])  # right, wrong, right by the second column alone (5 and 9 tie), most frequent
    accuracy = demo_figures.table_accuracy((context, labels), (asked, answers), back_off=(slice(1, 2),))
    assert accuracy == 0.75


def test_guess_figures_of_a_known_case() -> None:
    figures = demo_figures.guess_figures(tiny_samples(), tiny_samples())
    assert figures.most_frequent == pytest.approx(1 / 3)
    assert figures.neighbours_as_seen == 1.0
    assert figures.neighbours_true == 1.0
