// Embeddings, LayerNorm and dropout (kernels/embedding_layer_norm.py), tokens shared out over the threads.
#include "layer_norm.h"

template <typename T>
static void forward(const T *word, const T *position, const T *segment, const T *weight, const T *shift, const int64_t *ids,
                    const int64_t *positions, const int64_t *segments, T *z, T *y, float *mean, float *rstd, int64_t rows,
                    int64_t columns, double epsilon, const Masks &masks) {
#pragma omp parallel
    {
        Buffers buffers(columns);
        float *__restrict row = buffers.row.data(), *__restrict factors = buffers.factors.data();
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const T *__restrict w = word + ids[r] * columns, *__restrict p = position + positions[r] * columns;
            const T *__restrict s = segment + segments[r] * columns;
            for (int64_t c = 0; c < columns; c++) row[c] = to_float(w[c]) + to_float(p[c]) + to_float(s[c]);
            float m, inverse;
            statistics(row, columns, epsilon, m, inverse);
            mean[r] = m, rstd[r] = inverse;
            T *__restrict kept = z + r * columns, *__restrict out = y + r * columns;
            for (int64_t c = 0; c < columns; c++) kept[c] = from_float<T>(row[c]);
            for (int64_t c = 0; c < columns; c++)
                row[c] = (row[c] - m) * inverse * to_float(weight[c]) + to_float(shift[c]);
            if (masks.drop()) {
                masks.fill(r, columns, buffers.fields.data(), factors);
                for (int64_t c = 0; c < columns; c++) row[c] *= factors[c];
            }
            for (int64_t c = 0; c < columns; c++) out[c] = from_float<T>(row[c]);
        }
    }
}

// Two rows of `partial` [blocks, 2, columns] for each block of rows: of weight and shift.
template <typename T>
static void backward(const T *z, const T *weight, const float *mean, const float *rstd, const T *dy, T *dz, float *partial,
                     int64_t rows, int64_t columns, int64_t block_rows, const Masks &masks) {
    const int64_t blocks = (rows + block_rows - 1) / block_rows;
#pragma omp parallel
    {
        Buffers buffers(columns);
        float *__restrict gradient = buffers.gradient.data(), *__restrict factors = buffers.factors.data();
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            float *of_weight = partial + 2 * b * columns, *of_shift = of_weight + columns;
            std::fill(of_weight, of_weight + 2 * columns, 0.0f);
            for (int64_t r = b * block_rows; r < std::min(rows, (b + 1) * block_rows); r++) {
                const int64_t at = r * columns;
                const T *__restrict up = dy + at;
                for (int64_t c = 0; c < columns; c++) gradient[c] = to_float(up[c]);
                if (masks.drop()) {
                    masks.fill(r, columns, buffers.fields.data(), factors);
                    for (int64_t c = 0; c < columns; c++) gradient[c] *= factors[c];
                }
                backward_row(z + at, weight, mean[r], rstd[r], columns, gradient, of_weight, of_shift);
                T *__restrict out = dz + at;
                for (int64_t c = 0; c < columns; c++) out[c] = from_float<T>(gradient[c]);
            }
        }
    }
}

#define DEFINE(T, NAME)                                                                                                    \
    EXPORT void embedding_layer_norm_forward_##NAME(                                                                       \
        const T *word, const T *position, const T *segment, const T *weight, const T *shift, const int64_t *ids,           \
        const int64_t *positions, const int64_t *segments, T *z, T *y, float *mean, float *rstd, int64_t rows,             \
        int64_t columns, double epsilon, int64_t key, int64_t threshold, const int32_t *drop_positions,                    \
        const int32_t *samples) {                                                                                          \
        const Masks masks{uint64_t(key), threshold, drop_positions, samples};                                              \
        forward(word, position, segment, weight, shift, ids, positions, segments, z, y, mean, rstd, rows, columns,         \
                epsilon, masks);                                                                                           \
    }                                                                                                                      \
    EXPORT void embedding_layer_norm_backward_##NAME(const T *z, const T *weight, const float *mean, const float *rstd,    \
                                                     const T *dy, T *dz, float *partial, int64_t rows, int64_t columns,    \
                                                     int64_t block_rows, int64_t key, int64_t threshold,                   \
                                                     const int32_t *positions, const int32_t *samples) {                   \
        const Masks masks{uint64_t(key), threshold, positions, samples};                                                   \
        backward(z, weight, mean, rstd, dy, dz, partial, rows, columns, block_rows, masks);                                \
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
