/* The inner loops of the example maker: data_prep/examples.py in C, the same random numbers in the same order, and the
 * search for distinct words in a text.
 *
 * Plain C99 without Python's headers; data_prep/native.py loads it with ctypes and mirrors the structs. Texts are flat:
 * tokens of all sentences one behind the other, so every segment is one stretch of `tokens`. Nothing is allocated here,
 * no file is touched, and `examples_generate` returns whenever the caller's buffers are full.
 */
#include <stdint.h>
#include <string.h>

#define VERSION 1 /* raise it, and VERSION in native.py, with every change of this file */
#define WORDS 624
#define TRIES_FOR_ANOTHER_DOCUMENT 10

/* Mersenne Twister as in Python's random module; random.Random(seed).getstate() fills words and next. */
typedef struct {
    uint32_t words[WORDS];
    uint32_t next;
    uint32_t tempered[WORDS];
    uint32_t is_tempered;
} Twister;

typedef struct {
    Twister rng;
    /* the text */
    const int32_t *tokens;
    const int64_t *sentence_offsets; /* in tokens */
    const int64_t *document_offsets; /* in sentences */
    const int32_t *order;            /* documents as they are visited */
    int64_t num_documents;
    /* options */
    int64_t max_seq_length, max_predictions, vocab_size;
    double masked_lm_prob, short_seq_prob;
    int32_t cls, sep, mask, id_bytes; /* id_bytes: 2 (uint16) or 4 (int32) in the output */
    /* scratch, max_seq_length each */
    int32_t *original, *shown, *candidates;
    uint8_t *is_chosen;
    /* where we are: visit v is document order[v % num_documents], sentence -1 is before its first draw */
    int64_t visit, num_visits, sentence, target;
} Generator;

typedef struct {
    int64_t token_capacity, masked_capacity, example_capacity;
    void *input_ids, *masked_ids;                            /* [token_capacity], [masked_capacity] */
    uint16_t *masked_positions;                              /* [masked_capacity] */
    int32_t *lengths, *segment_a_lengths, *masked_counts;    /* [example_capacity] */
    uint8_t *next_sentence_labels;                           /* [example_capacity] */
    int64_t num_tokens, num_masked, num_examples;            /* how much of it is used */
} Output;

typedef struct {
    int64_t begin, end;
} Stretch; /* of tokens */

int32_t examples_version(void) { return VERSION; }

/* ---- random numbers ---- */

static void twist(uint32_t *w) {
    int i;
#define MIX(u, v) ((((u) & 0x80000000u) | ((v) & 0x7fffffffu)) >> 1) ^ (((v) & 1u) ? 0x9908b0dfu : 0u)
    for (i = 0; i < WORDS - 397; i++) w[i] = w[i + 397] ^ MIX(w[i], w[i + 1]);
    for (; i < WORDS - 1; i++) w[i] = w[i + 397 - WORDS] ^ MIX(w[i], w[i + 1]);
    w[WORDS - 1] = w[396] ^ MIX(w[WORDS - 1], w[0]);
}

static void temper(Twister *rng) {
    for (int i = 0; i < WORDS; i++) {
        uint32_t y = rng->words[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        rng->tempered[i] = y ^ (y >> 18);
    }
    rng->is_tempered = 1;
}

static void refill(Twister *rng) {
    if (rng->next >= WORDS) {
        twist(rng->words);
        rng->next = 0;
        rng->is_tempered = 0;
    }
    if (!rng->is_tempered) temper(rng);
}

static inline uint32_t draw32(Twister *rng) {
    if (rng->next >= WORDS || !rng->is_tempered) refill(rng);
    return rng->tempered[rng->next++];
}

/* random.random(): 53 bits in [0, 1) */
static inline double draw(Twister *rng) {
    uint32_t a = draw32(rng) >> 5, b = draw32(rng) >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

/* Random._randbelow(n) for 1 <= n < 2^31: as many bits as n has, again until they are below n */
static inline uint32_t draw_below(Twister *rng, uint32_t n) {
    int shift = __builtin_clz(n);
    uint32_t r;
    do r = draw32(rng) >> shift;
    while (r >= n);
    return r;
}

static inline int64_t draw_int(Twister *rng, int64_t low, int64_t high) {
    return low + draw_below(rng, (uint32_t)(high - low + 1));
}

void examples_shuffle(Twister *rng, int32_t *values, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t j = draw_below(rng, (uint32_t)i + 1);
        int32_t swapped = values[i];
        values[i] = values[j];
        values[j] = swapped;
    }
}

/* For the tests: `kind` 0 fills `out` with random(), else with _randbelow(kind). */
void examples_draws(Twister *rng, int64_t kind, double *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = kind ? (double)draw_below(rng, (uint32_t)kind) : draw(rng);
}

/* ---- one example ---- */

/* round(x) of Python for 0 <= x < 2^52: halves go to the even neighbour */
static int64_t round_half_even(double x) {
    int64_t whole = (int64_t)x;
    double rest = x - (double)whole;
    return whole + (rest > 0.5 || (rest == 0.5 && (whole & 1)));
}

static void shorten(Twister *rng, Stretch *a, Stretch *b, int64_t room) {
    for (int64_t left = a->end - a->begin + b->end - b->begin - room; left > 0; left--) {
        int at_front = draw(rng) < 0.5;
        Stretch *longer = a->end - a->begin > b->end - b->begin ? a : b;
        if (at_front)
            longer->begin++;
        else
            longer->end--;
    }
}

static Stretch random_passage(Generator *g, int64_t index, int64_t length) {
    int64_t other = 0;
    for (int i = 0; i < TRIES_FOR_ANOTHER_DOCUMENT; i++) {
        other = draw_int(&g->rng, 0, g->num_documents - 1);
        if (other != index) break;
    }
    int64_t first = g->document_offsets[g->order[other]], last = g->document_offsets[g->order[other] + 1];
    int64_t sentence = first + draw_int(&g->rng, 0, last - first - 1);
    Stretch passage = {g->sentence_offsets[sentence], g->sentence_offsets[sentence + 1]};
    while (passage.end - passage.begin < length && ++sentence < last) passage.end = g->sentence_offsets[sentence + 1];
    return passage;
}

static int64_t join(Generator *g, Stretch a, Stretch b) {
    int64_t length_a = a.end - a.begin, length_b = b.end - b.begin;
    int32_t *original = g->original;
    original[0] = g->cls;
    memcpy(original + 1, g->tokens + a.begin, (size_t)length_a * sizeof(int32_t));
    original[1 + length_a] = g->sep;
    memcpy(original + 2 + length_a, g->tokens + b.begin, (size_t)length_b * sizeof(int32_t));
    original[2 + length_a + length_b] = g->sep;
    return length_a + length_b + 3;
}

/* Chooses the tokens to predict: marks them in `is_chosen` and puts what the model is shown into `shown`. */
static void mask(Generator *g, int64_t length) {
    int64_t num_candidates = 0;
    for (int64_t i = 0; i < length; i++) {
        g->candidates[num_candidates] = (int32_t)i;
        num_candidates += g->original[i] != g->cls && g->original[i] != g->sep;
    }
    examples_shuffle(&g->rng, g->candidates, num_candidates);
    int64_t count = round_half_even((double)length * g->masked_lm_prob);
    if (count < 1) count = 1;
    if (count > g->max_predictions) count = g->max_predictions;
    if (count > num_candidates) count = num_candidates;
    memcpy(g->shown, g->original, (size_t)length * sizeof(int32_t));
    memset(g->is_chosen, 0, (size_t)length);
    for (int64_t i = 0; i < count; i++) {
        int32_t position = g->candidates[i];
        g->is_chosen[position] = 1;
        if (draw(&g->rng) < 0.8)
            g->shown[position] = g->mask;
        else if (draw(&g->rng) >= 0.5)
            g->shown[position] = (int32_t)draw_int(&g->rng, 0, g->vocab_size - 1);
    }
}

static void put_ids(void *target, int64_t at, const int32_t *ids, int64_t n, int32_t id_bytes) {
    if (id_bytes == 4) {
        memcpy((int32_t *)target + at, ids, (size_t)n * sizeof(int32_t));
        return;
    }
    for (int64_t i = 0; i < n; i++) ((uint16_t *)target + at)[i] = (uint16_t)ids[i];
}

static void put(Generator *g, Output *out, int64_t length, int64_t segment_a_length, int is_random) {
    int64_t count = 0;
    put_ids(out->input_ids, out->num_tokens, g->shown, length, g->id_bytes);
    for (int64_t i = 0; i < length; i++) {
        if (!g->is_chosen[i]) continue;
        out->masked_positions[out->num_masked + count] = (uint16_t)i;
        put_ids(out->masked_ids, out->num_masked + count, g->original + i, 1, g->id_bytes);
        count++;
    }
    out->lengths[out->num_examples] = (int32_t)length;
    out->segment_a_lengths[out->num_examples] = (int32_t)segment_a_length;
    out->masked_counts[out->num_examples] = (int32_t)count;
    out->next_sentence_labels[out->num_examples] = (uint8_t)is_random;
    out->num_tokens += length;
    out->num_masked += count;
    out->num_examples++;
}

/* ---- all examples ---- */

static int has_room(const Generator *g, const Output *out) {
    return out->num_examples < out->example_capacity && out->num_tokens + g->max_seq_length <= out->token_capacity &&
           out->num_masked + g->max_seq_length <= out->masked_capacity;
}

/* The example of the chunk that begins at sentence `first` of document `index`; returns where the next chunk begins. */
static int64_t add_chunk(Generator *g, Output *out, int64_t index, int64_t first, int64_t num_sentences) {
    const int64_t *offsets = g->sentence_offsets + g->document_offsets[g->order[index]];
    int64_t room = g->max_seq_length - 3, end = first + 1;
    while (end < num_sentences && offsets[end] - offsets[first] < g->target) end++;
    int64_t a_end = first + (end - first >= 2 ? draw_int(&g->rng, 1, end - first - 1) : 1);
    Stretch a = {offsets[first], offsets[a_end]}, b = {offsets[a_end], offsets[end]};
    int is_random = end - first == 1 || draw(&g->rng) < 0.5;
    if (is_random) {
        b = random_passage(g, index, g->target - (a.end - a.begin));
        end = a_end; /* the sentences that were meant for B begin the next chunk */
    }
    shorten(&g->rng, &a, &b, room);
    int64_t length = join(g, a, b);
    mask(g, length);
    put(g, out, length, a.end - a.begin + 2, is_random);
    return end;
}

/* Goes on until the output is full or all visits are done; the caller empties the output between calls. */
void examples_generate(Generator *g, Output *out) {
    while (g->visit < g->num_visits && has_room(g, out)) {
        int64_t index = g->visit % g->num_documents, document = g->order[index];
        int64_t num_sentences = g->document_offsets[document + 1] - g->document_offsets[document];
        if (g->sentence < 0) {
            g->target = g->max_seq_length - 3;
            if (draw(&g->rng) < g->short_seq_prob) g->target = draw_int(&g->rng, 2, g->max_seq_length - 3);
            g->sentence = 0;
        }
        g->sentence = add_chunk(g, out, index, g->sentence, num_sentences);
        if (g->sentence == num_sentences) {
            g->visit++;
            g->sentence = -1;
        }
    }
}

/* ---- words of a text ---- */

typedef struct {
    int32_t *slots; /* [num_slots, a power of two], number of a word + 1, 0 for none; never more than half full */
    int64_t num_slots;
    uint8_t *bytes;    /* of all words, one behind the other */
    int64_t *offsets;  /* word w is bytes[offsets[w]..offsets[w + 1]] */
    int64_t num_words;
} WordTable;

static int32_t number_of(WordTable *table, const uint8_t *word, int64_t length) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (int64_t i = 0; i < length; i++) hash = (hash ^ word[i]) * 0x100000001b3u;
    uint64_t slot_mask = (uint64_t)table->num_slots - 1;
    uint64_t slot = (hash ^ (hash >> 32)) & slot_mask;
    for (; table->slots[slot]; slot = (slot + 1) & slot_mask) {
        int64_t known = table->slots[slot] - 1, begin = table->offsets[known];
        if (table->offsets[known + 1] - begin == length && !memcmp(table->bytes + begin, word, (size_t)length))
            return (int32_t)known;
    }
    int64_t begin = table->offsets[table->num_words];
    memcpy(table->bytes + begin, word, (size_t)length);
    table->slots[slot] = (int32_t)++table->num_words;
    table->offsets[table->num_words] = begin + length;
    return table->slots[slot] - 1;
}

/* Splits `text` (n bytes) into lines at LF and into words at spaces; words that are new get the next numbers. Puts the
 * number of each word into `words` and, for each line, where its words end there into `line_ends`; returns the number
 * of lines. What stands behind the last LF is a line, too. */
int64_t examples_words(WordTable *table, const uint8_t *text, int64_t n, int32_t *words, int64_t *line_ends) {
    int64_t num_lines = 0, num_words = 0, begin = 0;
    for (int64_t i = 0; i <= n; i++) {
        int is_line_end = i == n || text[i] == '\n';
        if (!is_line_end && text[i] != ' ') continue;
        if (i > begin) words[num_words++] = number_of(table, text + begin, i - begin);
        begin = i + 1;
        if (is_line_end) line_ends[num_lines++] = num_words;
    }
    return num_lines;
}

/* ---- the final order ---- */

/* Rows `order` of a ragged array (row r is items offsets[r]..offsets[r+1] of `item` bytes), one behind the other. */
void examples_gather(char *target, const char *source, const int64_t *offsets, const int32_t *order, int64_t n,
                     int64_t item) {
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = offsets[order[i]] * item, bytes = offsets[order[i] + 1] * item - begin;
        memcpy(target, source + begin, (size_t)bytes);
        target += bytes;
    }
}

/* Segment ids of examples of these lengths: 0 for the first segment_a_lengths[i] tokens, then 1. */
void examples_segments(uint8_t *target, const int32_t *lengths, const int32_t *segment_a_lengths, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        memset(target, 0, (size_t)segment_a_lengths[i]);
        memset(target + segment_a_lengths[i], 1, (size_t)(lengths[i] - segment_a_lengths[i]));
        target += lengths[i];
    }
}
