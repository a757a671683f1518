// The two passes of kernels/lamb.py: each element is read once and written once in each of them.
//
// A thread does whole blocks; each block's sums of squares are kept and added up per tensor afterwards, in order: the same
// bits for any number of threads. Squares are added up in double, which memory leaves the time for.
#include "common.h"

namespace {

// As kernels/lamb_table.py.
struct Block {
    int64_t shard_start, weight_start, buffer_start, length, tensor, adapted;
};

struct Numbers {
    float clip, weight_1, weight_2, epsilon, decay;
};

struct Squares {
    double w, z;
};

template <bool ZERO_NOT_FINITE>
Squares directions_of_block(float *__restrict g, float *__restrict m, float *__restrict v, const float *__restrict w,
                            int64_t length, Numbers n) {
    double of_w = 0, of_z = 0;
#pragma omp simd reduction(+ : of_w, of_z)
    for (int64_t i = 0; i < length; i++) {
        float gradient = g[i] * n.clip;
        if (ZERO_NOT_FINITE) gradient = std::fabs(gradient) <= 3.402823466e38f ? gradient : 0.0f;  // NaN is not <= either
        float moment = m[i] + n.weight_1 * (gradient - m[i]);
        float square = v[i] + n.weight_2 * (gradient * gradient - v[i]);
        float direction = moment / (std::sqrt(square) + n.epsilon) + n.decay * w[i];
        m[i] = moment, v[i] = square, g[i] = direction;
        of_w += double(w[i]) * double(w[i]);
        of_z += double(direction) * double(direction);
    }
    return {of_w, of_z};
}

template <bool ROUNDED>
void apply_to_block(const float *__restrict z, float *__restrict w, bf16 *__restrict rounded, int64_t length,
                    float factor) {
    for (int64_t i = 0; i < length; i++) {
        float weight = w[i] + factor * z[i];
        w[i] = weight;
        if (ROUNDED) rounded[i] = from_float<bf16>(weight);
    }
}

}  // namespace

// gradient, first_moment, second_moment [S], weights [W]; sums [2, B]: room; squares [2, T].
EXPORT void lamb_directions(const Block *blocks, int64_t num_blocks, const int64_t *bounds, int64_t num_tensors,
                            float *gradient, float *first_moment, float *second_moment, const float *weights,
                            const double *numbers, int64_t zero_not_finite, double *sums, double *squares) {
    const auto of_block = zero_not_finite ? directions_of_block<true> : directions_of_block<false>;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++) {
        const Block &block = blocks[b];
        const Numbers n{float(numbers[0]), float(numbers[1]), float(numbers[2]), float(numbers[3]),
                        block.adapted ? float(numbers[4]) : 0.0f};
        const int64_t at = block.shard_start;
        const Squares found = of_block(gradient + at, first_moment + at, second_moment + at,
                                       weights + block.weight_start, block.length, n);
        sums[b] = block.adapted ? found.w : 0.0;
        sums[num_blocks + b] = block.adapted ? found.z : 0.0;
    }
    for (int64_t i = 0; i < 2; i++)
        for (int64_t t = 0; t < num_tensors; t++) {
            double total = 0;
            for (int64_t b = bounds[t]; b < bounds[t + 1]; b++) total += sums[i * num_blocks + b];
            squares[i * num_tensors + t] = total;
        }
}

// directions [S], weights [W], factors [T], rounded [P] or null.
EXPORT void lamb_apply(const Block *blocks, int64_t num_blocks, const float *directions, float *weights,
                       const double *factors, bf16 *rounded) {
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++) {
        const Block &block = blocks[b];
        const float *z = directions + block.shard_start;
        float *w = weights + block.weight_start, factor = float(factors[block.tensor]);
        if (rounded)
            apply_to_block<true>(z, w, rounded + block.buffer_start, block.length, factor);
        else
            apply_to_block<false>(z, w, nullptr, block.length, factor);
    }
}
