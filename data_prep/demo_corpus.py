"""A seeded generator of the small English-like corpus that the embedded demo trains on.

Every document draws a few latent values once and keeps them: who tells (six persons), when (past or present), one
worker or several, a topic (16 trades), a friend, a town and the weather. Each sentence is one of 20 templates in which
pronouns, auxiliaries, demonstratives, nouns and verbs agree with those values, so most masked words follow from words
that stand further away than the neighbours: "Yesterday ___ was in my field with this farmer because I had ..."
Adjectives are drawn afresh for each sentence; nothing predicts them, which keeps the best possible accuracy below one.

The text is a pure function of the arguments (Python's Mersenne Twister, no hashing, no files), so VERSION and the
constants below identify it. docs/demo_corpus.md shows a sample and how well guesses without context do.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 1  # raise it with every change of the text, so that prepared data is made anew

TRAIN_SEED, TRAIN_DOCUMENTS = 20200101, 5000
EVAL_SEED, EVAL_DOCUMENTS = 20200102, 400

# How examples are made from the text (everything else as for Wikipedia).
MAX_SEQ_LENGTH = 64
MAX_PREDICTIONS = 10
DUPE_FACTOR = 2
EVAL_DUPE_FACTOR = 1
VOCAB_SIZE = 1024  # upper bound; training stops earlier, when every word of the corpus is one piece

SENTENCES_PER_DOCUMENT = (6, 12)


@dataclass(frozen=True)
class Person:
    """The teller of a document: pronouns and the forms of "be" and "have" that agree with them."""

    subject: str
    object: str
    possessive: str
    be_present: str
    be_past: str
    have_present: str


@dataclass(frozen=True)
class Topic:
    """A trade: six words that occur together in a document."""

    worker: str
    workers: str
    product: str
    tool: str
    site: str
    verb: str


PERSONS = (
    Person("I", "me", "my", "am", "was", "have"),
    Person("you", "you", "your", "are", "were", "have"),
    Person("he", "him", "his", "is", "was", "has"),
    Person("she", "her", "her", "is", "was", "has"),
    Person("we", "us", "our", "are", "were", "have"),
    Person("they", "them", "their", "are", "were", "have"),
)
TOPICS = (
    Topic("farmer", "farmers", "wheat", "plough", "field", "grow"),
    Topic("sailor", "sailors", "fish", "net", "harbour", "catch"),
    Topic("baker", "bakers", "bread", "oven", "kitchen", "bake"),
    Topic("smith", "smiths", "iron", "hammer", "forge", "bend"),
    Topic("weaver", "weavers", "cloth", "loom", "mill", "weave"),
    Topic("miner", "miners", "coal", "shovel", "tunnel", "dig"),
    Topic("painter", "painters", "paint", "brush", "studio", "mix"),
    Topic("doctor", "doctors", "medicine", "needle", "hospital", "prepare"),
    Topic("teacher", "teachers", "paper", "pencil", "school", "fold"),
    Topic("gardener", "gardeners", "fruit", "spade", "garden", "pick"),
    Topic("hunter", "hunters", "meat", "bow", "forest", "roast"),
    Topic("potter", "potters", "clay", "wheel", "workshop", "shape"),
    Topic("singer", "singers", "music", "flute", "theatre", "play"),
    Topic("shepherd", "shepherds", "wool", "whistle", "meadow", "cut"),
    Topic("cook", "cooks", "soup", "spoon", "inn", "stir"),
    Topic("mason", "masons", "stone", "chisel", "quarry", "carve"),
)
FRIENDS = (
    "Anna Boris Clara David Ellen Frank Grace Henry Irene James Karen Louis "
    "Maria Nigel Olive Peter Rosa Simon Tessa Ursula Victor Wendy Xavier Yusuf"
).split()
TOWNS = (
    "Avon Brill Corby Dover Eton Fowey Grasmere Harlow Ilford Kendal Lewes Margate Newport Oxford Penrith Ripon".split()
)
WEATHER = "rain snow sun wind fog frost storm heat".split()
QUALITIES = (
    "fresh good cheap rare fine heavy new small large broken clean dark "
    "bright plain strong rough smooth dry wet hard soft warm cold pretty"
).split()
WEATHER_QUALITIES = "bad long light sudden terrible bitter mild sharp".split()
CHARACTERS = "young tall kind rich poor lazy honest clever".split()

TEMPLATES = (
    "{day} {subject} {be} in {possessive} {site} with {this} {worker} because {subject} {can} {verb} "
    "some {quality} {product} in {town}.",
    "{this} {worker} {worker_be} near {object} in the {weather} when {subject} {have} the {quality} {tool}.",
    "{day} {possessive} {quality} {product} {is_} with {object} in {town} and {this} {worker} {worker_have} "
    "{possessive} {tool}.",
    "although the {weather} {is_} {weather_quality}, {possessive} {worker} {can} {verb} some {product} with {friend} "
    "for {object} {day}.",
    "{this} {worker} {worker_have} a {quality} {tool} from {town}, "
    "so {subject} {be} happy about {possessive} {product}.",
    "{subject} {be} without {possessive} {quality} {tool} {day}, but {friend} {is_} at the {site} with {object}.",
    "in the {weather} {day}, {possessive} {site} {is_} {quality} and {this} {worker} {worker_be} behind {object}.",
    "{possessive} {quality} {tool} {is_} here {day} because {friend} {has_} {product} and {subject} {have} none.",
    "{friend} {can} {verb} the {product} {day} if {subject} {be} there with {possessive} {quality} {tool}.",
    "{subject} {have} {quality} {product} from {town}, and {this} {worker} {can} see {object} by {possessive} {site}.",
    "the {quality} {site} of {town} {is_} quiet {day}, for {possessive} {worker} {can} not {verb} much {product} "
    "in the {weather}.",
    "when {friend} {has_} {possessive} {tool}, {subject} {be} angry and {this} {character} {worker} {worker_be} sad.",
    "{this} {worker} of {town} {can} {verb} the {product} with {object} while {possessive} {site} {is_} {quality}.",
    "after the {weather} {subject} {can} take {possessive} {quality} {tool} to {this} {worker} at the {site}.",
    "{friend} and {this} {worker} {they_be} in {possessive} {quality} {site} {day}, where {subject} {can} help.",
    "no {product} {is_} as {quality} as {possessive} {product} in {town} {day}, and {subject} {have} more.",
    "{possessive} {site} {is_} full of {quality} {product} {day}, "
    "yet {this} {worker} {worker_have} nothing for {object}.",
    "{subject} {can} not find {possessive} {quality} {tool}, "
    "and {friend} {can} not see {this} {worker} in the {weather}.",
    "in {town} {this} {character} {worker} {can} {verb} more {product} {day} "
    "because {subject} {have} a {quality} {tool}.",
    "if {this} {worker} {worker_be} late {day}, {friend} {can} bring {object} to {possessive} {site} before the "
    "{weather}.",
)


def zipf_choice(rng: random.Random, words: Sequence[object]) -> int:
    """Index drawn with probability proportional to 1 / (index + 1), as word frequencies fall in natural text."""
    return rng.choices(range(len(words)), [1.0 / (index + 1) for index in range(len(words))])[0]


def draw_document_words(rng: random.Random) -> dict[str, str]:
    """The words that stay the same through one document, keyed by the names the templates use."""
    person = rng.choice(PERSONS)
    past = rng.random() < 0.5
    plural = rng.random() < 0.5
    topic = TOPICS[zipf_choice(rng, TOPICS)]
    singular_be, plural_be = ("was", "were") if past else ("is", "are")
    return {
        "subject": person.subject,
        "object": person.object,
        "possessive": person.possessive,
        "be": person.be_past if past else person.be_present,
        "have": "had" if past else person.have_present,
        "day": "yesterday" if past else "today",
        "can": "could" if past else "can",
        "is_": singular_be,
        "has_": "had" if past else "has",
        "they_be": plural_be,
        "this": "these" if plural else "this",
        "worker": topic.workers if plural else topic.worker,
        "worker_be": plural_be if plural else singular_be,
        "worker_have": "had" if past else ("have" if plural else "has"),
        "product": topic.product,
        "tool": topic.tool,
        "site": topic.site,
        "verb": topic.verb,
        "friend": FRIENDS[zipf_choice(rng, FRIENDS)],
        "town": TOWNS[zipf_choice(rng, TOWNS)],
        "weather": WEATHER[zipf_choice(rng, WEATHER)],
    }


def make_sentence(rng: random.Random, template: str, document_words: dict[str, str]) -> str:
    """Fill one template: the document's words, and adjectives drawn for this sentence alone."""
    sentence = template.format_map(
        document_words
        | {
            "quality": rng.choice(QUALITIES),
            "weather_quality": rng.choice(WEATHER_QUALITIES),
            "character": rng.choice(CHARACTERS),
        }
    )
    return sentence[0].upper() + sentence[1:]


def make_document(rng: random.Random) -> list[str]:
    """One document of 6 to 12 sentences, no template twice."""
    words = draw_document_words(rng)
    count = rng.randint(*SENTENCES_PER_DOCUMENT)
    return [make_sentence(rng, template, words) for template in rng.sample(TEMPLATES, count)]


def generate_corpus(*, seed: int, num_documents: int) -> list[list[str]]:
    """Documents as lists of sentences; equal arguments give equal text."""
    rng = random.Random(seed)
    return [make_document(rng) for _ in range(num_documents)]


def without_sentences(documents: list[list[str]], known: set[str]) -> list[list[str]]:
    """The documents without those sentences that occur in `known`; documents left empty are dropped."""
    kept = ([sentence for sentence in document if sentence not in known] for document in documents)
    return [document for document in kept if document]


def demo_texts() -> tuple[list[list[str]], list[list[str]]]:
    """The demo's training and evaluation documents; no evaluation sentence occurs in the training text."""
    train = generate_corpus(seed=TRAIN_SEED, num_documents=TRAIN_DOCUMENTS)
    known = {sentence for document in train for sentence in document}
    evaluation = without_sentences(generate_corpus(seed=EVAL_SEED, num_documents=EVAL_DOCUMENTS), known)
    return train, evaluation
