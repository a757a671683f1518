// A row of LayerNorm with dropout, forward and backward (kernels/layer_norm.py has the equations). Rows are in fp32 in a
// buffer of the thread, padded to what the dropout counter gives at once.
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
    std::vector<float> factors, row, gradient;
    explicit Buffers(int64_t columns) {
        const int64_t room = (columns + FIELDS_AT_ONCE - 1) / FIELDS_AT_ONCE * FIELDS_AT_ONCE;
        fields.resize(room), factors.resize(room), row.resize(room), gradient.resize(room);
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

// `gradient` holds dy and becomes dz; dy xhat and dy are added to the sums. z is read in its dtype.
template <typename T>
static inline void backward_row(const T *__restrict z, const T *__restrict weight, float mean, float rstd, int64_t columns,
                                float *__restrict gradient, float *__restrict of_weight, float *__restrict of_shift) {
    float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (int64_t c = 0; c < columns; c++) {
        const float xhat = (to_float(z[c]) - mean) * rstd, g = gradient[c] * to_float(weight[c]);
        of_weight[c] += gradient[c] * xhat;
        of_shift[c] += gradient[c];
        sum += g;
        product += g * xhat;
    }
    sum /= columns, product /= columns;
    for (int64_t c = 0; c < columns; c++) {
        const float xhat = (to_float(z[c]) - mean) * rstd;
        gradient[c] = rstd * (gradient[c] * to_float(weight[c]) - sum - xhat * product);
    }
}
