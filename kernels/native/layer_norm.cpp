// Backward of LayerNorm with dropout in front of it or behind it (kernels/layer_norm.py), rows shared out over the threads.
#include "layer_norm.h"

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

// Three rows of `partial` [blocks, 3, columns] for each block of rows: the sums of dx and of the gradients of weight and shift.
template <typename T>
static void backward(const T *z, const T *weight, const float *mean, const float *rstd, const T *dy, T *dx, T *dresidual,
                     float *partial, int64_t rows, int64_t columns, int64_t block_rows, bool drops_output,
                     const Masks &masks) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
#pragma omp parallel
    {
        Buffers buffers(columns);
        float *__restrict gradient = buffers.row.data(), *factors = buffers.factors.data();
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            float *__restrict of_dx = partial + 3 * b * columns;
            float *of_weight = of_dx + columns, *of_shift = of_weight + columns;
            std::fill(of_dx, of_dx + 3 * columns, 0.0f);
            for (int64_t r = b * block_rows; r < std::min(rows, (b + 1) * block_rows); r++) {
                const int64_t at = r * columns;
                load(dy + at, columns, gradient);
                if (masks.drop()) masks.fill(r, columns, buffers.fields.data(), factors);
                if (masks.drop() && drops_output) multiply(gradient, factors, columns);
                backward_row(z + at, weight, mean[r], rstd[r], columns, gradient, of_weight, of_shift);
                if (dresidual) store(gradient, columns, dresidual + at);
                if (masks.drop() && !drops_output) multiply(gradient, factors, columns);
                for (int64_t c = 0; c < columns; c++) of_dx[c] += gradient[c];
                store(gradient, columns, dx + at);
            }
        }
    }
}

#define DEFINE(T, NAME)                                                                                                    \
    EXPORT void layer_norm_backward_##NAME(const T *z, const T *weight, const float *mean, const float *rstd, const T *dy, \
                                           T *dx, T *dresidual, float *partial, int64_t rows, int64_t columns,             \
                                           int64_t block_rows, int64_t drops_output, int64_t key, int64_t threshold,       \
                                           const int32_t *positions, const int32_t *samples) {                             \
        const Masks masks{uint64_t(key), threshold, positions, samples};                                                   \
        backward(z, weight, mean, rstd, dy, dx, dresidual, partial, rows, columns, block_rows, drops_output != 0, masks);  \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
