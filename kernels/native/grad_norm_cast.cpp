// The sum of kernels/grad_norm_cast.py. A block's sum stays in the cache until it is rounded, squared and written; a thread
// does whole blocks, and their squares are added up in order: the same bits for any number of threads.
#include "common.h"

namespace {

constexpr int64_t BLOCK = 4096;  // as in Python

// In all loops element i is read before it is written, and no other: `out` may be where a part lies.
template <typename First, typename Second>
void add(const First *first, const Second *second, float *total, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) total[i] = to_float(first[i]) + to_float(second[i]);
}

// The squared norm of out = first + second.
template <typename First, typename Second, typename Out>
double add_last(const First *first, const Second *second, Out *out, int64_t length) {
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < length; i++) {
        const Out rounded = from_float<Out>(to_float(first[i]) + to_float(second[i]));
        out[i] = rounded;
        square += double(to_float(rounded)) * double(to_float(rounded));
    }
    return square;
}

template <typename In, typename Out> double copy(const In *part, Out *out, int64_t length) {
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < length; i++) {
        const Out rounded = from_float<Out>(to_float(part[i]));
        out[i] = rounded;
        square += double(to_float(rounded)) * double(to_float(rounded));
    }
    return square;
}

template <typename In> double square_of(const In *x, int64_t length) {
    double square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < length; i++) square += double(to_float(x[i])) * double(to_float(x[i]));
    return square;
}

template <typename In, typename Out>
double of_block(const int64_t *parts, int64_t num_parts, int64_t at, Out *out, int64_t length) {
    const auto part = [&](int64_t p) { return reinterpret_cast<const In *>(parts[p]) + at; };
    if (!out) return square_of(part(0), length);
    if (num_parts == 1) return copy(part(0), out + at, length);
    if (num_parts == 2) return add_last(part(0), part(1), out + at, length);
    float total[BLOCK];
    add(part(0), part(1), total, length);
    for (int64_t p = 2; p < num_parts - 1; p++) add(total, part(p), total, length);
    return add_last(total, part(num_parts - 1), out + at, length);
}

template <typename In, typename Out>
void grad_norm_cast(const int64_t *parts, int64_t num_parts, Out *out, int64_t numel, double *room, double *squared) {
    const int64_t blocks = (numel + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * BLOCK, length = numel - at < BLOCK ? numel - at : BLOCK;
        room[b] = of_block<In>(parts, num_parts, at, out, length);
    }
    *squared = 0;
    for (int64_t b = 0; b < blocks; b++) *squared += room[b];
}

}  // namespace

// parts: addresses of num_parts tensors [N]; out [N], or null: the norm of the first part; room [blocks]; squared: one number.
#define GRAD_NORM_CAST(NAME, IN, OUT)                                                                                   \
    EXPORT void NAME(const int64_t *parts, int64_t num_parts, OUT *out, int64_t numel, double *room, double *squared) { \
        grad_norm_cast<IN, OUT>(parts, num_parts, out, numel, room, squared);                                           \
    }
GRAD_NORM_CAST(grad_norm_cast_f32_f32, float, float)
GRAD_NORM_CAST(grad_norm_cast_f32_bf16, float, bf16)
GRAD_NORM_CAST(grad_norm_cast_bf16_f32, bf16, float)
GRAD_NORM_CAST(grad_norm_cast_bf16_bf16, bf16, bf16)
