// z = residual + drop(x + bias) and its LayerNorm (kernels/dropout_add_layer_norm.py), rows shared out over the threads.
#include "layer_norm.h"

template <typename T>
static void forward(const T *x, const T *bias, const T *residual, const T *weight, const T *shift, T *z, T *y, float *mean,
                    float *rstd, int64_t rows, int64_t columns, double epsilon, const Masks &masks) {
#pragma omp parallel
    {
        Buffers buffers(columns);
        float *__restrict row = buffers.row.data(), *__restrict factors = buffers.factors.data();
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = r * columns;
            const T *__restrict from = x + at;
            for (int64_t c = 0; c < columns; c++) row[c] = to_float(from[c]);
            if (bias)
                for (int64_t c = 0; c < columns; c++) row[c] += to_float(bias[c]);
            if (masks.drop()) {
                masks.fill(r, columns, buffers.fields.data(), factors);
                for (int64_t c = 0; c < columns; c++) row[c] *= factors[c];
            }
            if (residual) {
                const T *__restrict added = residual + at;
                for (int64_t c = 0; c < columns; c++) row[c] += to_float(added[c]);
            }
            float m, s;
            statistics(row, columns, epsilon, m, s);
            mean[r] = m, rstd[r] = s;
            T *__restrict kept = z + at, *__restrict out = y + at;
            for (int64_t c = 0; c < columns; c++) kept[c] = from_float<T>(row[c]);
            for (int64_t c = 0; c < columns; c++)
                out[c] = from_float<T>((row[c] - m) * s * to_float(weight[c]) + to_float(shift[c]));
        }
    }
}

// Three rows of `partial` [blocks, 3, columns] for each block of rows: of bias, weight and shift.
template <typename T>
static void backward(const T *z, const T *weight, const float *mean, const float *rstd, const T *dy, T *dx, T *dresidual,
                     float *partial, int64_t rows, int64_t columns, int64_t block_rows, const Masks &masks) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
#pragma omp parallel
    {
        Buffers buffers(columns);
        float *__restrict gradient = buffers.gradient.data(), *__restrict factors = buffers.factors.data();
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            float *__restrict of_bias = partial + 3 * b * columns;
            float *__restrict of_weight = of_bias + columns, *__restrict of_shift = of_weight + columns;
            std::fill(of_bias, of_bias + 3 * columns, 0.0f);
            for (int64_t r = b * block_rows; r < std::min(rows, (b + 1) * block_rows); r++) {
                const int64_t at = r * columns;
                const T *__restrict up = dy + at;
                for (int64_t c = 0; c < columns; c++) gradient[c] = to_float(up[c]);
                backward_row(z + at, weight, mean[r], rstd[r], columns, gradient, of_weight, of_shift);
                if (dresidual) {
                    T *__restrict out = dresidual + at;
                    for (int64_t c = 0; c < columns; c++) out[c] = from_float<T>(gradient[c]);
                }
                if (masks.drop()) {
                    masks.fill(r, columns, buffers.fields.data(), factors);
                    for (int64_t c = 0; c < columns; c++) gradient[c] *= factors[c];
                }
                T *__restrict out = dx + at;
                for (int64_t c = 0; c < columns; c++) of_bias[c] += gradient[c], out[c] = from_float<T>(gradient[c]);
            }
        }
    }
}

#define DEFINE(T, NAME)                                                                                                    \
    EXPORT void dropout_add_layer_norm_forward_##NAME(                                                                     \
        const T *x, const T *bias, const T *residual, const T *weight, const T *shift, T *z, T *y, float *mean,            \
        float *rstd, int64_t rows, int64_t columns, double epsilon, int64_t key, int64_t threshold,                        \
        const int32_t *positions, const int32_t *samples) {                                                                \
        const Masks masks{uint64_t(key), threshold, positions, samples};                                                   \
        forward(x, bias, residual, weight, shift, z, y, mean, rstd, rows, columns, epsilon, masks);                        \
    }                                                                                                                      \
    EXPORT void dropout_add_layer_norm_backward_##NAME(                                                                    \
        const T *z, const T *weight, const float *mean, const float *rstd, const T *dy, T *dx, T *dresidual,               \
        float *partial, int64_t rows, int64_t columns, int64_t block_rows, int64_t key, int64_t threshold,                 \
        const int32_t *positions, const int32_t *samples) {                                                                \
        const Masks masks{uint64_t(key), threshold, positions, samples};                                                   \
        backward(z, weight, mean, rstd, dy, dx, dresidual, partial, rows, columns, block_rows, masks);                     \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
