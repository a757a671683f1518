// Products of small matrices with fp32 sums, the inner loops of attention.cpp.
//
//     C[m][n] (+)= sum_k A[m][k] B[k][n]
//
// A unit is what one multiplication takes along k: one float, or two bf16 in 32 bits. A is read unit by unit at any strides (so
// a transposed A costs nothing), B is packed: units [k / K][n], n a multiple of 16. Padding is zero.
#pragma once
#include "common.h"

typedef float v16f __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), aligned(4), may_alias));

template <typename T> struct Unit;

template <> struct Unit<float> {
    typedef float type;
    static constexpr int K = 1;
    static inline v16f load(const type *b) { return *reinterpret_cast<const v16f *>(b); }
    static inline v16f multiply_add(v16f sum, type a, v16f b) { return sum + a * b; }
};

template <> struct Unit<bf16> {
    typedef uint32_t type;
    static constexpr int K = 2;
    static inline v16u load(const type *b) { return *reinterpret_cast<const v16u *>(b); }
    static inline v16f multiply_add(v16f sum, type a, v16u b) {
#ifdef __AVX512BF16__
        return (v16f)_mm512_dpbf16_ps((__m512)sum, (__m512bh)b, (__m512bh)_mm512_set1_epi32(a));
#else
        v16u wide = a - (v16u){};
        sum += (v16f)(wide << 16) * (v16f)(b << 16);
        return sum + (v16f)(wide & 0xffff0000u) * (v16f)(b & 0xffff0000u);
#endif
    }
};

template <typename T, int ROWS, int VECTORS, bool ADDS>
static inline void tile(const typename Unit<T>::type *a, int64_t row, int64_t step, const typename Unit<T>::type *b,
                        int64_t ldb, float *c, int64_t ldc, int64_t k) {
    v16f sums[ROWS][VECTORS];  // in registers, if the loops are unrolled
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            sums[i][j] = ADDS ? *reinterpret_cast<const v16f *>(c + i * ldc + 16 * j) : v16f{};
    for (int64_t kk = 0; kk < k; kk++) {
        decltype(Unit<T>::load(b)) columns[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) columns[j] = Unit<T>::load(b + kk * ldb + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            const typename Unit<T>::type unit = a[i * row + kk * step];
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) sums[i][j] = Unit<T>::multiply_add(sums[i][j], unit, columns[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) *reinterpret_cast<v16f *>(c + i * ldc + 16 * j) = sums[i][j];
}

template <typename T, int VECTORS, bool ADDS>
static inline void panel(const typename Unit<T>::type *a, int64_t row, int64_t step, const typename Unit<T>::type *b,
                         int64_t ldb, float *c, int64_t ldc, int64_t m, int64_t k) {
    int64_t i = 0;
    for (; i + 6 <= m; i += 6) tile<T, 6, VECTORS, ADDS>(a + i * row, row, step, b, ldb, c + i * ldc, ldc, k);
    for (; i + 2 <= m; i += 2) tile<T, 2, VECTORS, ADDS>(a + i * row, row, step, b, ldb, c + i * ldc, ldc, k);
    for (; i < m; i++) tile<T, 1, VECTORS, ADDS>(a + i * row, row, step, b, ldb, c + i * ldc, ldc, k);
}

// m rows, n columns (a multiple of 16), k units; strides in units (a, b) and floats (c).
template <typename T, bool ADDS>
static void product(const typename Unit<T>::type *a, int64_t row, int64_t step, const typename Unit<T>::type *b, int64_t ldb,
                    float *c, int64_t ldc, int64_t m, int64_t n, int64_t k) {
    int64_t j = 0;
    for (; j + 64 <= n; j += 64) panel<T, 4, ADDS>(a, row, step, b + j, ldb, c + j, ldc, m, k);
    for (; j + 32 <= n; j += 32) panel<T, 2, ADDS>(a, row, step, b + j, ldb, c + j, ldc, m, k);
    for (; j < n; j += 16) panel<T, 1, ADDS>(a, row, step, b + j, ldb, c + j, ldc, m, k);
}

// Rows at distance `stride` as the A whose k runs along its rows: units [rows / K][columns] at distance `lda`; an odd last row
// is followed by zeros.
static void interleave(const float *x, int64_t stride, int64_t rows, int64_t columns, float *out, int64_t lda) {
    for (int64_t r = 0; r < rows; r++) std::memcpy(out + r * lda, x + r * stride, columns * sizeof(float));
}
static void interleave(const bf16 *x, int64_t stride, int64_t rows, int64_t columns, uint32_t *out, int64_t lda) {
    for (int64_t r = 0; r < rows; r += 2) {
        const bf16 *low = x + r * stride, *high = low + stride;
        uint32_t *to = out + r / 2 * lda;
        if (r + 1 < rows)
            for (int64_t c = 0; c < columns; c++) to[c] = low[c].bits | uint32_t(high[c].bits) << 16;
        else
            for (int64_t c = 0; c < columns; c++) to[c] = low[c].bits;
    }
}

// A matrix of `rows` rows of `columns` numbers at distance `stride`, as the B whose k runs along its rows (a unit has values
// of neighbouring rows): units [rows_padded / K][columns_padded].
template <typename T>
static void pack_rows(const T *x, int64_t stride, int64_t rows, int64_t columns, int64_t rows_padded, int64_t columns_padded,
                      typename Unit<T>::type *packed) {
    if (rows < rows_padded || columns < columns_padded)
        std::memset(packed, 0, rows_padded / Unit<T>::K * columns_padded * sizeof(*packed));
    interleave(x, stride, rows, columns, packed, columns_padded);
}

// The same matrix as the B whose k runs along its columns: units [columns_padded / K][rows_padded] at distance `ldb`;
// rows_padded is a multiple of 16, columns_padded of K.
template <typename T>
static void pack_columns(const T *x, int64_t stride, int64_t rows, int64_t columns, int64_t rows_padded,
                         int64_t columns_padded, typename Unit<T>::type *packed, int64_t ldb) {
    constexpr int64_t K = Unit<T>::K, BLOCK = 16;
    T padding[BLOCK * 256];  // a block of rows with its padding
    for (int64_t r0 = 0; r0 < rows_padded; r0 += BLOCK) {
        const T *block = x + r0 * stride;
        int64_t distance = stride;
        if (r0 + BLOCK > rows || columns < columns_padded) {
            std::memset(padding, 0, BLOCK * columns_padded * sizeof(T));
            for (int64_t r = 0; r < BLOCK && r0 + r < rows; r++)
                std::memcpy(padding + r * columns_padded, block + r * stride, columns * sizeof(T));
            block = padding;
            distance = columns_padded;
        }
        for (int64_t c = 0; c < columns_padded / K; c++)
            for (int64_t r = 0; r < BLOCK; r++)
                std::memcpy(packed + c * ldb + r0 + r, block + r * distance + c * K, sizeof(*packed));
    }
}

// The same matrix as an A: [rows][columns_padded], padded with zeros.
template <typename T>
static void copy_rows(const T *x, int64_t stride, int64_t rows, int64_t columns, int64_t columns_padded, T *out) {
    for (int64_t r = 0; r < rows; r++) {
        std::memcpy(out + r * columns_padded, x + r * stride, columns * sizeof(T));
        for (int64_t c = columns; c < columns_padded; c++) out[r * columns_padded + c] = T{};
    }
}
