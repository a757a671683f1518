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
            load(x + at, columns, row);
            if (bias)
                for (int64_t c = 0; c < columns; c++) row[c] += to_float(bias[c]);
            if (masks.drop()) {
                masks.fill(r, columns, buffers.fields.data(), factors);
                multiply(row, factors, columns);
            }
            if (residual) {
                const T *__restrict added = residual + at;
                for (int64_t c = 0; c < columns; c++) row[c] += to_float(added[c]);
            }
            float m, s;
            statistics(row, columns, epsilon, m, s);
            mean[r] = m, rstd[r] = s;
            store(row, columns, z + at);
            T *__restrict out = y + at;
            for (int64_t c = 0; c < columns; c++)
                out[c] = from_float<T>((row[c] - m) * s * to_float(weight[c]) + to_float(shift[c]));
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
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
