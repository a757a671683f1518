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
            store(row, columns, z + r * columns);
            for (int64_t c = 0; c < columns; c++)
                row[c] = (row[c] - m) * inverse * to_float(weight[c]) + to_float(shift[c]);
            if (masks.drop()) {
                masks.fill(r, columns, buffers.fields.data(), factors);
                multiply(row, factors, columns);
            }
            store(row, columns, y + r * columns);
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
    }

DEFINE(float, f32)
DEFINE(bf16, bf16)
