// What stands between the products of kernels/linear_cross_entropy.py: softmax statistics and gradients of a chunk of logits.
#include <algorithm>

#include "math.h"

// Rows shared out over the threads; `first` is the chunk's first column in the vocabulary.
template <typename T>
static void statistics(const T *logits, const T *bias, const int64_t *labels, float *largest, float *total, float *picked,
                       int64_t first, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *__restrict row = logits + r * columns;
        float most = largest[r], sum = 0;
#pragma omp simd reduction(max : most)
        for (int64_t c = 0; c < columns; c++) most = std::max(most, to_float(row[c]) + to_float(bias[c]));
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < columns; c++) sum += fast_exp(to_float(row[c]) + to_float(bias[c]) - most);
        total[r] = total[r] * std::exp(largest[r] - most) + sum;  // exp(-inf) is 0
        largest[r] = most;
        const int64_t label = labels[r] - first;
        if (label >= 0 && label < columns) picked[r] = to_float(row[label]) + to_float(bias[label]);
    }
}

// Columns shared out over the threads in blocks, so that each sum over the rows is one thread's.
template <typename T>
static void gradient(T *logits, const T *bias, const int64_t *labels, const float *lse, const float *upstream, float *sums,
                     int64_t first, int64_t rows, int64_t columns) {
    constexpr int64_t BLOCK = 1024;
    const float scale = *upstream;
#pragma omp parallel for schedule(static)
    for (int64_t start = 0; start < columns; start += BLOCK) {
        const int64_t end = std::min(columns, start + BLOCK);
        std::fill(sums + start, sums + end, 0.0f);
        for (int64_t r = 0; r < rows; r++) {
            T *__restrict row = logits + r * columns;
            float *__restrict added = sums;
            const int64_t label = labels[r] - first;
            const float of_row = lse[r];
            const float at_label = label >= start && label < end ? to_float(row[label]) + to_float(bias[label]) : 0.0f;
            for (int64_t c = start; c < end; c++) {
                const float g = scale * fast_exp(to_float(row[c]) + to_float(bias[c]) - of_row);
                row[c] = from_float<T>(g);
                added[c] += g;
            }
            if (label >= start && label < end) {
                row[label] = from_float<T>(scale * (std::exp(at_label - of_row) - 1.0f));
                added[label] -= scale;
            }
        }
    }
}

#define DEFINE(T, NAME)                                                                                                    \
    EXPORT void cross_entropy_statistics_##NAME(const T *logits, const T *bias, const int64_t *labels, float *largest,     \
                                                float *total, float *picked, int64_t first, int64_t rows,                  \
                                                int64_t columns) {                                                         \
        statistics(logits, bias, labels, largest, total, picked, first, rows, columns);                                    \
    }                                                                                                                      \
    EXPORT void cross_entropy_gradient_##NAME(T *logits, const T *bias, const int64_t *labels, const float *lse,           \
                                              const float *upstream, float *sums, int64_t first, int64_t rows,             \
                                              int64_t columns) {                                                           \
        gradient(logits, bias, labels, lse, upstream, sums, first, rows, columns);                                         \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
