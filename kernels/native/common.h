// Shared by all files: numbers of 16 bits, and the dropout counter of kernels/dropout.py.
//
// Tensors come as pointers to contiguous memory; sizes are int64_t. A function that takes values of several dtypes has a
// template and one extern "C" name per dtype: _f32, _bf16 (the fp16 of a CPU is the reference's).
#pragma once
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <cmath>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

struct bf16 {
    uint16_t bits;
};

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

template <typename T> static inline T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return bf16{uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}

// Philox4x32-10 for 16 counters (first + i, position, sample, last): fields[8 i + j] is the j-th 16-bit field of counter
// first + i. `key` as in kernels/dropout.py.
static constexpr int64_t FIELDS_AT_ONCE = 128;
static constexpr uint32_t MULTIPLIER_A = 0xD2511F53, MULTIPLIER_B = 0xCD9E8D57, WEYL_A = 0x9E3779B9, WEYL_B = 0xBB67AE85;

#ifdef __AVX512F__
// A counter has a lane of 64 bits, whose upper half may hold anything: the multiplication looks at the lower one.
static inline void philox_fields(uint64_t key, uint32_t first, uint32_t position, uint32_t sample, uint32_t last,
                                 uint16_t *fields) {
    const __m512i a = _mm512_set1_epi64(MULTIPLIER_A), b = _mm512_set1_epi64(MULTIPLIER_B), low = _mm512_set1_epi64(0xffffffff);
    for (int half = 0; half < 2; half++) {
        // in this order the unpacking below puts the counters one behind the other
        const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64(first + 8 * half), order);
        __m512i c1 = _mm512_set1_epi64(position), c2 = _mm512_set1_epi64(sample), c3 = _mm512_set1_epi64(last);
        uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
        for (int round = 0; round < 10; round++) {
            const __m512i pa = _mm512_mul_epu32(c0, a), pb = _mm512_mul_epu32(c2, b);
            c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(pb, 32), c1, _mm512_set1_epi64(k0), 0x96);  // xor of three
            c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(pa, 32), c3, _mm512_set1_epi64(k1), 0x96);
            c1 = pb;
            c3 = pa;
            k0 += WEYL_A;
            k1 += WEYL_B;
        }
        const __m512i c01 = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
        const __m512i c23 = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
        _mm512_storeu_si512(fields + 64 * half, _mm512_unpacklo_epi64(c01, c23));
        _mm512_storeu_si512(fields + 64 * half + 32, _mm512_unpackhi_epi64(c01, c23));
    }
}
#else
static inline void philox_fields(uint64_t key, uint32_t first, uint32_t position, uint32_t sample, uint32_t last,
                                 uint16_t *fields) {
    for (int i = 0; i < 16; i++) {
        uint32_t c0 = first + i, c1 = position, c2 = sample, c3 = last, k0 = uint32_t(key), k1 = uint32_t(key >> 32);
        for (int round = 0; round < 10; round++) {
            const uint64_t a = uint64_t(c0) * MULTIPLIER_A, b = uint64_t(c2) * MULTIPLIER_B;
            c0 = uint32_t(b >> 32) ^ c1 ^ k0;
            c1 = uint32_t(b);
            c2 = uint32_t(a >> 32) ^ c3 ^ k1;
            c3 = uint32_t(a);
            k0 += WEYL_A;
            k1 += WEYL_B;
        }
        const uint32_t words[4] = {c0, c1, c2, c3};
        for (int j = 0; j < 8; j++) fields[8 * i + j] = uint16_t(words[j / 2] >> (16 * (j % 2)));
    }
}
#endif
