// Bias and GELU (kernels/bias_gelu.py has the equations), rows shared out over the threads.
#include <algorithm>

#include "math.h"

static constexpr float C = 1.5957691216057308f, A = 0.044715f;  // 2 sqrt(2 / pi)

template <typename T> static void forward(const T *x, const T *bias, T *y, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *__restrict from = x + r * columns;
        T *__restrict to = y + r * columns;
        for (int64_t c = 0; c < columns; c++) {
            const float u = to_float(from[c]) + to_float(bias[c]);
            to[c] = from_float<T>(u / (1 + fast_exp(-C * (u + A * u * u * u))));
        }
    }
}

// One row of `partial` [blocks, columns] for each block of rows: the same sums for any number of threads.
template <typename T>
static void backward(const T *x, const T *bias, const T *dy, T *dx, float *partial, int64_t rows, int64_t columns,
                     int64_t block_rows) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        float *__restrict sums = partial + b * columns;
        std::fill(sums, sums + columns, 0.0f);
        for (int64_t r = b * block_rows; r < std::min(rows, (b + 1) * block_rows); r++) {
            const T *__restrict from = x + r * columns, *__restrict up = dy + r * columns;
            T *__restrict to = dx + r * columns;
            for (int64_t c = 0; c < columns; c++) {
                const float u = to_float(from[c]) + to_float(bias[c]);
                const float e = fast_exp(-C * (u + A * u * u * u)), s = 1 / (1 + e);  // 1 - s is e s
                const float gradient = to_float(up[c]) * (s + u * (e * s * s) * C * (1 + 3 * A * u * u));
                to[c] = from_float<T>(gradient);
                sums[c] += gradient;
            }
        }
    }
}

#define DEFINE(T, NAME)                                                                                                   \
    EXPORT void bias_gelu_forward_##NAME(const T *x, const T *bias, T *y, int64_t rows, int64_t columns) {                \
        forward(x, bias, y, rows, columns);                                                                               \
    }                                                                                                                     \
    EXPORT void bias_gelu_backward_##NAME(const T *x, const T *bias, const T *dy, T *dx, float *partial, int64_t rows,    \
                                          int64_t columns, int64_t block_rows) {                                         \
        backward(x, bias, dy, dx, partial, rows, columns, block_rows);                                                    \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
