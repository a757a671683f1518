// Variable-length attention, forward and backward (kernels/attention.py has the equations). One call serves all samples and
// heads; a thread takes one (sample, head) after the other and goes over its queries in blocks, so that scores,
// probabilities and their gradients of a block stay in the cache. Scores are fp32; what is multiplied has the inputs'
// dtype. Sample b owns query rows [query_bounds[b], query_bounds[b + 1]) and key rows [key_bounds[b], key_bounds[b + 1]).
#include <algorithm>
#include <vector>

#include "math.h"
#include "products.h"

static constexpr int64_t QUERIES = 48;  // of a block: a multiple of the 6 rows of a tile and of 2

struct Shape {
    int64_t samples, heads, size;         // size: of a head
    const int64_t *query_bounds, *key_bounds;
    int64_t query_stride, key_stride;     // numbers from one row to the next; heads lie one behind the other
};

struct Drop {
    uint64_t key;
    int64_t threshold;  // 0: nothing is dropped
    const int32_t *positions, *samples;  // of the query rows
    float scale() const { return 65536.0f / (65536 - threshold); }
};

static inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// keep[k] is 1 or 0 for the first `keys` keys (keep has room up to a multiple of 128).
static void keep_row(const Drop &drop, int64_t row, int64_t head, int64_t keys, uint16_t *keep) {
    for (int64_t k = 0; k < keys; k += FIELDS_AT_ONCE)
        philox_fields(drop.key, uint32_t(k / 8), drop.positions[row], drop.samples[row], uint32_t(head), keep + k);
    const uint16_t threshold = uint16_t(drop.threshold);
    for (int64_t k = 0; k < keys; k++) keep[k] = keep[k] >= threshold;
}

// Longest first: the last thread to end then ends soon after the others.
static std::vector<int64_t> longest_first(const Shape &shape) {
    std::vector<int64_t> order(shape.samples);
    for (int64_t b = 0; b < shape.samples; b++) order[b] = b;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return shape.key_bounds[a + 1] - shape.key_bounds[a] > shape.key_bounds[b + 1] - shape.key_bounds[b];
    });
    return order;
}

template <typename T> struct Memory {  // of one thread, kept from pair to pair
    std::vector<typename Unit<T>::type> keys, values, key_rows, queries, upstream;
    std::vector<typename Unit<T>::type> packed;
    std::vector<T> query_rows, upstream_rows, weights, of_scores;
    std::vector<float> scores, gradients, out, key_sums, value_sums;
    std::vector<uint16_t> keep;
};

template <typename V> static V *room(std::vector<V> &memory, int64_t n) {
    if (int64_t(memory.size()) < n) memory.resize(n);
    return memory.data();
}

// Rows of L numbers lie a little further apart: at a distance that is a power of two they would share a few sets of the cache.
static constexpr int64_t APART = 16, APART_ROWS = 32;

template <typename T>
static void forward_pair(const Shape &s, int64_t b, int64_t h, const T *q, const T *k, const T *v, T *out, float *lse,
                         float scale, const Drop &drop, Memory<T> &memory) {
    constexpr int K = Unit<T>::K;
    typedef typename Unit<T>::type U;
    const int64_t k0 = s.key_bounds[b], keys = s.key_bounds[b + 1] - k0, q0 = s.query_bounds[b], q1 = s.query_bounds[b + 1];
    const int64_t L = padded(keys, 16), D = padded(s.size, 16), offset = h * s.size, ld = L + APART, ldw = L + APART_ROWS;
    if (keys == 0) {  // nothing to look at: the output is 0
        for (int64_t i = q0; i < q1; i++) {
            std::fill_n(out + (i * s.heads + h) * s.size, s.size, T{});
            lse[h * s.query_bounds[s.samples] + i] = 0;
        }
        return;
    }
    U *packed_keys = room(memory.keys, D / K * ld), *packed_values = room(memory.values, L / K * D);
    pack_columns<T>(k + k0 * s.key_stride + offset, s.key_stride, keys, s.size, L, D, packed_keys, ld);
    pack_rows<T>(v + k0 * s.key_stride + offset, s.key_stride, keys, s.size, L, D, packed_values);
    T *rows = room(memory.query_rows, QUERIES * D), *weights = room(memory.weights, QUERIES * ldw);
    float *scores = room(memory.scores, QUERIES * ld), *sums = room(memory.out, QUERIES * D);
    uint16_t *keep = room(memory.keep, padded(keys, FIELDS_AT_ONCE));
    for (int64_t first = q0; first < q1; first += QUERIES) {
        const int64_t count = std::min(QUERIES, q1 - first);
        copy_rows(q + first * s.query_stride + offset, s.query_stride, count, s.size, D, rows);
        product<T, false>(reinterpret_cast<U *>(rows), D / K, 1, packed_keys, ld, scores, ld, count, L, D / K);
        float inverse[QUERIES];
        for (int64_t i = 0; i < count; i++) {
            float *__restrict row = scores + i * ld;
            T *__restrict weight = weights + i * ldw;
            float most = row[0], sum = 0;
#pragma omp simd reduction(max : most)
            for (int64_t j = 0; j < keys; j++) most = std::max(most, row[j]);
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < keys; j++) {
                const float p = fast_exp(scale * (row[j] - most));
                row[j] = p;
                sum += p;
            }
            lse[h * s.query_bounds[s.samples] + first + i] = scale * most + std::log(sum);
            inverse[i] = 1 / sum;
            if (drop.threshold > 0) {
                keep_row(drop, first + i, h, keys, keep);
                for (int64_t j = 0; j < keys; j++) weight[j] = from_float<T>(keep[j] ? row[j] : 0.0f);
                inverse[i] *= drop.scale();
            } else {
                for (int64_t j = 0; j < keys; j++) weight[j] = from_float<T>(row[j]);
            }
            for (int64_t j = keys; j < L; j++) weight[j] = T{};
        }
        product<T, false>(reinterpret_cast<U *>(weights), ldw / K, 1, packed_values, D, sums, D, count, D, L / K);
        for (int64_t i = 0; i < count; i++) {
            T *to = out + ((first + i) * s.heads + h) * s.size;
            for (int64_t d = 0; d < s.size; d++) to[d] = from_float<T>(sums[i * D + d] * inverse[i]);
        }
    }
}

// From a row of scores and of the gradients of dropped probabilities (both overwritten) come the dropped probabilities and the
// gradients of the scores. delta is the sum of P dP itself, not that of dO O: for a sample of one token dP - delta is 0.
template <typename T, bool DROPS>
static void backward_row(float *__restrict score, float *__restrict gradient, const uint16_t *__restrict keep, int64_t keys,
                         float scale, float lse, float kept_scale, T *__restrict weight, T *__restrict of_score) {
    float delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t j = 0; j < keys; j++) {
        const float p = fast_exp(scale * score[j] - lse), kept = DROPS ? (keep[j] ? kept_scale : 0.0f) : 1.0f;
        const float g = gradient[j] * kept;
        score[j] = p;
        gradient[j] = g;
        weight[j] = from_float<T>(p * kept);
        delta += p * g;
    }
    for (int64_t j = 0; j < keys; j++) of_score[j] = from_float<T>(score[j] * (gradient[j] - delta) * scale);
}

template <typename T>
static void backward_pair(const Shape &s, int64_t b, int64_t h, const T *q, const T *k, const T *v,
                          const float *lse, const T *upstream, T *dq, T *dk, T *dv, int64_t dq_stride, int64_t dk_stride,
                          float scale, const Drop &drop, Memory<T> &memory) {
    constexpr int K = Unit<T>::K;
    typedef typename Unit<T>::type U;
    const int64_t k0 = s.key_bounds[b], keys = s.key_bounds[b + 1] - k0, q0 = s.query_bounds[b], q1 = s.query_bounds[b + 1];
    const int64_t L = padded(keys, 16), D = padded(s.size, 16), offset = h * s.size, width = s.heads * s.size;
    const int64_t ld = L + APART, ldw = L + APART_ROWS;
    const T *keys_of_pair = k + k0 * s.key_stride + offset, *values_of_pair = v + k0 * s.key_stride + offset;
    U *packed_keys = room(memory.keys, D / K * ld), *packed_values = room(memory.values, D / K * ld);
    U *key_rows = room(memory.key_rows, L / K * D);
    pack_columns<T>(keys_of_pair, s.key_stride, keys, s.size, L, D, packed_keys, ld);
    pack_columns<T>(values_of_pair, s.key_stride, keys, s.size, L, D, packed_values, ld);
    pack_rows<T>(keys_of_pair, s.key_stride, keys, s.size, L, D, key_rows);
    T *query_rows = room(memory.query_rows, QUERIES * D), *upstream_rows = room(memory.upstream_rows, QUERIES * D);
    U *queries = room(memory.queries, QUERIES / K * D), *upstreams = room(memory.upstream, QUERIES / K * D);
    float *scores = room(memory.scores, QUERIES * ld), *gradients = room(memory.gradients, QUERIES * ld);
    T *weights = room(memory.weights, QUERIES * ldw), *of_scores = room(memory.of_scores, QUERIES * ldw);
    U *packed = room(memory.packed, QUERIES / K * ld);
    float *sums = room(memory.out, QUERIES * D);
    float *key_sums = room(memory.key_sums, L * D), *value_sums = room(memory.value_sums, L * D);
    uint16_t *keep = room(memory.keep, padded(keys, FIELDS_AT_ONCE));
    std::fill(key_sums, key_sums + L * D, 0.0f);
    std::fill(value_sums, value_sums + L * D, 0.0f);
    for (int64_t first = q0; first < q1; first += QUERIES) {
        const int64_t count = std::min(QUERIES, q1 - first), units = padded(count, K) / K;
        const T *query = q + first * s.query_stride + offset, *up = upstream + first * width + offset;
        copy_rows(query, s.query_stride, count, s.size, D, query_rows);
        copy_rows(up, width, count, s.size, D, upstream_rows);
        pack_rows<T>(query, s.query_stride, count, s.size, units * K, D, queries);
        pack_rows<T>(up, width, count, s.size, units * K, D, upstreams);
        product<T, false>(reinterpret_cast<U *>(query_rows), D / K, 1, packed_keys, ld, scores, ld, count, L, D / K);
        product<T, false>(reinterpret_cast<U *>(upstream_rows), D / K, 1, packed_values, ld, gradients, ld, count, L, D / K);
        for (int64_t i = 0; i < count; i++) {
            const float row_lse = lse[h * s.query_bounds[s.samples] + first + i];
            if (drop.threshold > 0) keep_row(drop, first + i, h, keys, keep);
            (drop.threshold > 0 ? backward_row<T, true> : backward_row<T, false>)(
                scores + i * ld, gradients + i * ld, keep, keys, scale, row_lse, drop.scale(), weights + i * ldw, of_scores + i * ldw);
            for (int64_t j = keys; j < L; j++) of_scores[i * ldw + j] = T{};
        }
        product<T, false>(reinterpret_cast<U *>(of_scores), ldw / K, 1, key_rows, D, sums, D, count, D, L / K);
        for (int64_t i = 0; i < count; i++)
            for (int64_t d = 0; d < s.size; d++) dq[(first + i) * dq_stride + offset + d] = from_float<T>(sums[i * D + d]);
        interleave(weights, ldw, count, keys, packed, ld);
        product<T, true>(packed, 1, ld, upstreams, D, value_sums, D, keys, D, units);
        interleave(of_scores, ldw, count, keys, packed, ld);
        product<T, true>(packed, 1, ld, queries, D, key_sums, D, keys, D, units);
    }
    for (int64_t j = 0; j < keys; j++)
        for (int64_t d = 0; d < s.size; d++) {
            dk[(k0 + j) * dk_stride + offset + d] = from_float<T>(key_sums[j * D + d]);
            dv[(k0 + j) * dk_stride + offset + d] = from_float<T>(value_sums[j * D + d]);
        }
}

template <typename Work, typename T> static void for_each_pair(const Shape &shape, Work work) {
    const std::vector<int64_t> order = longest_first(shape);
#pragma omp parallel
    {
        Memory<T> memory;
#pragma omp for schedule(dynamic, 1)
        for (int64_t pair = 0; pair < shape.samples * shape.heads; pair++)
            work(order[pair / shape.heads], pair % shape.heads, memory);
    }
}

#define DEFINE(T, NAME)                                                                                                    \
    EXPORT void attention_forward_##NAME(const T *q, const T *k, const T *v, T *out, float *lse, const int64_t *query_bounds, \
                                         const int64_t *key_bounds, int64_t samples, int64_t heads, int64_t size,          \
                                         int64_t query_stride, int64_t key_stride, double scale, int64_t key,              \
                                         int64_t threshold, const int32_t *positions, const int32_t *sample_ids) {         \
        const Shape shape{samples, heads, size, query_bounds, key_bounds, query_stride, key_stride};                       \
        const Drop drop{uint64_t(key), threshold, positions, sample_ids};                                                  \
        auto work = [&](int64_t b, int64_t h, Memory<T> &memory) {                                                         \
            forward_pair<T>(shape, b, h, q, k, v, out, lse, float(scale), drop, memory);                                   \
        };                                                                                                                 \
        for_each_pair<decltype(work), T>(shape, work);                                                                     \
    }                                                                                                                      \
    EXPORT void attention_backward_##NAME(                                                                                 \
        const T *q, const T *k, const T *v, const float *lse, const T *upstream, T *dq, T *dk, T *dv,                      \
        int64_t dq_stride, int64_t dk_stride, const int64_t *query_bounds, const int64_t *key_bounds, int64_t samples,     \
        int64_t heads, int64_t size, int64_t query_stride, int64_t key_stride, double scale, int64_t key,                  \
        int64_t threshold, const int32_t *positions, const int32_t *sample_ids) {                                          \
        const Shape shape{samples, heads, size, query_bounds, key_bounds, query_stride, key_stride};                       \
        const Drop drop{uint64_t(key), threshold, positions, sample_ids};                                                  \
        auto work = [&](int64_t b, int64_t h, Memory<T> &memory) {                                                         \
            backward_pair<T>(shape, b, h, q, k, v, lse, upstream, dq, dk, dv, dq_stride, dk_stride, float(scale),          \
                             drop, memory);                                                                                \
        };                                                                                                                 \
        for_each_pair<decltype(work), T>(shape, work);                                                                     \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
