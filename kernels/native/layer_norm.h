// Rows of LayerNorm with dropout (kernels/layer_norm.py has the equations). A row is in fp32 in a buffer of the thread,
// padded to what the dropout counter gives at once.
#pragma once
#include <algorithm>
#include <vector>

#include "common.h"

struct Masks {
    uint64_t key;
    int64_t threshold;  // 0: nothing is dropped
    const int32_t *positions, *samples;

    bool drop() const { return threshold > 0; }
    // factors[c] is 0 or the scale, for the columns of a row; both buffers have room for a multiple of FIELDS_AT_ONCE.
    void fill(int64_t row, int64_t columns, uint16_t *__restrict fields, float *__restrict factors) const {
        for (int64_t c = 0; c < columns; c += FIELDS_AT_ONCE)
            philox_fields(key, uint32_t(c / 8), positions[row], samples[row], 0, fields + c);
        const float scale = 65536.0f / (65536 - threshold);
        const uint16_t least = uint16_t(threshold);
        for (int64_t c = 0; c < columns; c++) factors[c] = fields[c] >= least ? scale : 0.0f;
    }
};

struct Buffers {  // of a thread
    std::vector<uint16_t> fields;
    std::vector<float> factors, row;
    explicit Buffers(int64_t columns) {
        const int64_t room = (columns + FIELDS_AT_ONCE - 1) / FIELDS_AT_ONCE * FIELDS_AT_ONCE;
        fields.resize(room), factors.resize(room), row.resize(room);
    }
};

// mean and rstd of a row, the variance from the deviations.
static inline void statistics(const float *__restrict z, int64_t columns, double epsilon, float &mean, float &rstd) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < columns; c++) sum += z[c];
    const float m = sum / columns;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < columns; c++) squares += (z[c] - m) * (z[c] - m);
    mean = m;
    rstd = 1.0f / std::sqrt(squares / columns + float(epsilon));
}

template <typename T> static inline void load(const T *__restrict from, int64_t columns, float *__restrict row) {
    for (int64_t c = 0; c < columns; c++) row[c] = to_float(from[c]);
}

template <typename T> static inline void store(const float *__restrict row, int64_t columns, T *__restrict to) {
    for (int64_t c = 0; c < columns; c++) to[c] = from_float<T>(row[c]);
}

static inline void multiply(float *__restrict row, const float *__restrict factors, int64_t columns) {
    for (int64_t c = 0; c < columns; c++) row[c] *= factors[c];
}
