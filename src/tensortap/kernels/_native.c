/* Statistics of one array and differences of two, in one pass, at the speed of memory.

   The numpy twin of this file is statistics.py, inexact.py and exact.py: both give the same counts, places and
   bounds, and sums that agree to rounding. Numbers that could overflow, vanish or lose digits when squared in
   float64, and integers beyond 2**53, are left to the twin: a call returns where it stopped.

   The second half of the file is compiled once for each kind of processor, by including the file in itself. */
#ifndef LANES

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef __GNUC__
#error "this file needs the vector types of GCC or Clang; the numpy twin is used instead"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bfloat16 is widened here as a little-endian machine does it; the numpy twin is used instead"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define ALONE static __attribute__((noinline))
#define BLOCK 2048  /* numbers of both arrays that stay in the first-level cache together */
#define MOST_IN_BLOCK (2 * BLOCK) /* of halves, which are half as long */
#define AHEAD 4096 /* bytes */
#define BINS 512
#define CODES 1536 /* a distance as float32, without its last 20 bits: up to 2**63 */
#define SHORT_CODES 256 /* the same without its first bits, for distances below 2**32; 0 then looks like 2 */
#define TABLES 8    /* of counters: an increment need not wait for the one before it */
#define LEAST 1e-280
#define MOST 1e300
#define EXACT 9007199254740992.0 /* 2**53 */
#define SMALL_SHARE 0.3 /* of a usual row; as in along.py */
#define LIFT 0x1p120 /* keeps products of subnormal numbers apart from zero */

typedef uint16_t __attribute__((may_alias)) bits16;
typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;

/* The same order as in native.py. */
enum { BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64, BF16, F8, F8_UNSIGNED, TYPES };
static const int SIZES[TYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 1, 1};
/* Those that float32 cannot hold are computed from float64. */
static const char WIDE[TYPES] = {0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0};

typedef struct {
    const char *bytes;
    const float *table; /* of 256 values, for types of eight bits */
    int type;
} Side;

typedef struct {
    int64_t finite, mismatches, above, below;
    int64_t a_nan, b_nan, a_inf, b_inf, disagreeing, both_nan;
    double d, abs_d, a, b, dd, db, aa, bb;
    double peak, excess; /* of |d|, and of |d| over the steepest slope so far */
    double a_min, a_max, b_min, b_max;
} Sums;

typedef struct {
    double size, a, b;
    int64_t at;
} Peak;

typedef struct {
    Sums sums;
    Peak absolute, relative;
    int64_t stopped, counted; /* where; and pairs in the tables, those that are no numbers among them */
    uint64_t ulp_most;
    uint32_t short_ulps[TABLES][SHORT_CODES], long_ulps[TABLES][CODES];
} Found;

typedef struct {
    Side a, b;
    int64_t start, stop;
    double atol, rtol;
    int equal_nan, until_mismatch, are_integers, with_ulps;
} Pair;

typedef struct {
    int64_t finite, nan, inf, stopped;
    double total, squares, mean, spread, min, max;
} Moments;

typedef struct {
    Side side;
    int64_t start, stop;
} Single;

typedef struct {
    Side a, b;
    int64_t start, stop, length, inner; /* of the axis, and of what lies behind it */
    double scale, *gaps, *bases;
} Along;

/* Sums of squares for each row and each column, the last axis being as long as there are columns. */
typedef struct {
    Side a, b;
    int64_t start, stop, columns;
    int are_finite;
    double *row_gaps, *row_bases, *column_gaps, *column_bases;
} Axes;

typedef struct {
    const char *name;
    void (*compare)(const Pair *, Found *);
    void (*describe)(const Single *, Moments *);
    void (*along)(const Along *);
    void (*axes)(const Axes *);
} Variant;

/* What the inner loops read: float32, float64, or the halves as they are where the processor widens them. */
enum { NARROW, LONG, BRAIN, HALF };

INLINE double real(const void *values, size_t at, int wide) {
    return wide ? ((const double *)values)[at] : (double)((const float *)values)[at];
}

INLINE double slope_at(const void *a, const void *b, size_t at, int wide) {
    double y = real(b, at, wide);
    return fabs(real(a, at, wide) - y) / fabs(y);
}

INLINE double smaller(double x, double y) { return x < y ? x : y; }
INLINE double larger(double x, double y) { return x > y ? x : y; }

static const Sums NOTHING = {.a_min = INFINITY, .a_max = -INFINITY, .b_min = INFINITY, .b_max = -INFINITY};

/* What is left over when the vectors are full. */
INLINE void compare_one(Sums *s, double x, double y, double atol, double rtol, double slope, double lift) {
    double d = x - y, gap = fabs(d), size = fabs(y);
    s->d += d, s->abs_d += gap, s->b += y;
    s->dd += d * d, s->db += d * y, s->bb += y * y;
    s->above += x > y, s->below += x < y;
    s->mismatches += gap > rtol * size + atol;
    s->peak = larger(gap, s->peak);
    s->excess = larger(gap * lift - slope * (size * lift), s->excess);
    s->a_min = smaller(x, s->a_min), s->a_max = larger(x, s->a_max);
    s->b_min = smaller(y, s->b_min), s->b_max = larger(y, s->b_max);
}

static void add_sums(Sums *to, const Sums *s) {
    to->finite += s->finite, to->mismatches += s->mismatches, to->above += s->above, to->below += s->below;
    to->a_nan += s->a_nan, to->b_nan += s->b_nan, to->a_inf += s->a_inf, to->b_inf += s->b_inf;
    to->disagreeing += s->disagreeing, to->both_nan += s->both_nan;
    to->d += s->d, to->abs_d += s->abs_d, to->a += s->a, to->b += s->b;
    to->dd += s->dd, to->db += s->db, to->aa += s->aa, to->bb += s->bb;
    to->a_min = smaller(s->a_min, to->a_min), to->a_max = larger(s->a_max, to->a_max);
    to->b_min = smaller(s->b_min, to->b_min), to->b_max = larger(s->b_max, to->b_max);
}

/* Squares whose sum says what it should: neither overflown nor vanished. */
INLINE int is_safe(double squares, double low, double high) {
    return (squares > LEAST && squares < MOST) || (squares == 0 && low == 0 && high == 0);
}

INLINE int are_safe(const Sums *s) {
    if (!s->finite)
        return 1;
    return is_safe(s->dd, s->peak, s->peak) && is_safe(s->aa, s->a_min, s->a_max) &&
           is_safe(s->bb, s->b_min, s->b_max);
}

/* Types of eight bits differ by their tables. */
INLINE int are_alike(const Pair *pair) { return pair->a.type == pair->b.type && pair->a.table == pair->b.table; }

INLINE int are_exact(double low, double high) { return low > -EXACT && high < EXACT; }

/* Slopes below the running one are not worth a division. A little less than it: the product is rounded. */
INLINE double slope_below(double steepest) { return steepest > 1e-290 ? steepest * (1 - 1e-14) : 0.0; }

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define FN(name) CONCAT(name, LANES)

/* What the lanes of a vector come to, one after the other. */
#define OF_LANES(variant, target, V, F)                              \
    target INLINE double added_##variant(V x) {                      \
        double lanes[sizeof x / sizeof(double)], sum = 0;            \
        memcpy(lanes, &x, sizeof x);                                 \
        for (size_t i = 0; i < sizeof x / sizeof *lanes; i++)        \
            sum += lanes[i];                                         \
        return sum;                                                  \
    }                                                                \
    target INLINE double highest_##variant(V x) {                    \
        double lanes[sizeof x / sizeof(double)], most = -INFINITY;   \
        memcpy(lanes, &x, sizeof x);                                 \
        for (size_t i = 0; i < sizeof x / sizeof *lanes; i++)        \
            most = larger(lanes[i], most);                           \
        return most;                                                 \
    }                                                                \
    target INLINE double highestf_##variant(F x) {                   \
        float lanes[sizeof x / sizeof(float)], most = -INFINITY;     \
        memcpy(lanes, &x, sizeof x);                                 \
        for (size_t i = 0; i < sizeof x / sizeof *lanes; i++)        \
            most = lanes[i] > most ? lanes[i] : most;                \
        return most;                                                 \
    }

/* Two numbers: SSE2 and NEON, which need not be asked for. */
#define LANES plain
#define TARGET
#define WIDTH 2
typedef double plain_v __attribute__((vector_size(16)));
typedef float plain_f __attribute__((vector_size(16)));
typedef float plain_half __attribute__((vector_size(8)));
typedef int64_t plain_i __attribute__((vector_size(16)));
typedef int32_t plain_j __attribute__((vector_size(16)));
#define V plain_v
#define F plain_f
INLINE plain_v set_plain(double x) { return (plain_v){x, x}; }
INLINE plain_f setf_plain(float x) { return (plain_f){x, x, x, x}; }
INLINE plain_v load_plain(const void *p, size_t at, int wide) {
    plain_v v;
    plain_half h;
    if (wide)
        return memcpy(&v, (const double *)p + at, sizeof v), v;
    memcpy(&h, (const float *)p + at, sizeof h);
    return __builtin_convertvector(h, plain_v);
}
INLINE plain_v abs_plain(plain_v x) { return (plain_v)((plain_i)x & INT64_MAX); }
INLINE plain_v max_plain(plain_v x, plain_v y) {
    plain_i m = x > y;
    return (plain_v)(((plain_i)x & m) | ((plain_i)y & ~m));
}
INLINE plain_v min_plain(plain_v x, plain_v y) {
    plain_i m = x < y;
    return (plain_v)(((plain_i)x & m) | ((plain_i)y & ~m));
}
INLINE plain_f absf_plain(plain_f x) { return (plain_f)((plain_j)x & INT32_MAX); }
INLINE plain_f maxf_plain(plain_f x, plain_f y) {
    plain_j m = x > y;
    return (plain_f)(((plain_j)x & m) | ((plain_j)y & ~m));
}
INLINE plain_f minf_plain(plain_f x, plain_f y) {
    plain_j m = x < y;
    return (plain_f)(((plain_j)x & m) | ((plain_j)y & ~m));
}
INLINE plain_v fma_plain(plain_v x, plain_v y, plain_v z) { return x * y + z; }
INLINE int64_t greater_plain(plain_v x, plain_v y) {
    plain_i m = x > y;
    return -(m[0] + m[1]);
}
INLINE int64_t greaterf_plain(plain_f x, plain_f y) {
    plain_j m = x > y;
    return -(int64_t)(m[0] + m[1] + m[2] + m[3]);
}
#define WIDENS 0
INLINE plain_f loadf_plain(const void *p, size_t at, int kind) {
    plain_f f;
    (void)kind;
    return memcpy(&f, (const float *)p + at, sizeof f), f;
}
OF_LANES(plain, , plain_v, plain_f)
INLINE plain_v part_plain(plain_f x, int half) {
    plain_half h = half ? (plain_half){x[2], x[3]} : (plain_half){x[0], x[1]};
    return __builtin_convertvector(h, plain_v);
}
#include "_native.c"

#if defined(__x86_64__)
#define LANES avx2
#define TARGET __attribute__((target("avx2,fma,f16c,popcnt")))
#define WIDTH 4
#define V __m256d
#define F __m256
TARGET INLINE V set_avx2(double x) { return _mm256_set1_pd(x); }
TARGET INLINE F setf_avx2(float x) { return _mm256_set1_ps(x); }
TARGET INLINE V load_avx2(const void *p, size_t at, int wide) {
    return wide ? _mm256_loadu_pd((const double *)p + at) : _mm256_cvtps_pd(_mm_loadu_ps((const float *)p + at));
}
#define WIDENS 1
TARGET INLINE F loadf_avx2(const void *p, size_t at, int kind) {
    if (kind == NARROW)
        return _mm256_loadu_ps((const float *)p + at);
    __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)p + at));
    return kind == HALF ? _mm256_cvtph_ps(halves)
                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
OF_LANES(avx2, TARGET, __m256d, __m256)
TARGET INLINE V part_avx2(F x, int half) {
    return _mm256_cvtps_pd(half ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
}
TARGET INLINE V abs_avx2(V x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x); }
TARGET INLINE V max_avx2(V x, V y) { return _mm256_max_pd(x, y); }
TARGET INLINE V min_avx2(V x, V y) { return _mm256_min_pd(x, y); }
TARGET INLINE F absf_avx2(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
TARGET INLINE F maxf_avx2(F x, F y) { return _mm256_max_ps(x, y); }
TARGET INLINE F minf_avx2(F x, F y) { return _mm256_min_ps(x, y); }
TARGET INLINE V fma_avx2(V x, V y, V z) { return _mm256_fmadd_pd(x, y, z); }
TARGET INLINE int64_t greater_avx2(V x, V y) {
    return __builtin_popcount((unsigned)_mm256_movemask_pd(_mm256_cmp_pd(x, y, _CMP_GT_OQ)));
}
TARGET INLINE int64_t greaterf_avx2(F x, F y) {
    return __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)));
}
#include "_native.c"

#define LANES avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,popcnt,prefer-vector-width=512")))
#define WIDTH 8
#define V __m512d
#define F __m512
TARGET INLINE V set_avx512(double x) { return _mm512_set1_pd(x); }
TARGET INLINE F setf_avx512(float x) { return _mm512_set1_ps(x); }
TARGET INLINE V load_avx512(const void *p, size_t at, int wide) {
    return wide ? _mm512_loadu_pd((const double *)p + at)
                : _mm512_cvtps_pd(_mm256_loadu_ps((const float *)p + at));
}
#define WIDENS 1
TARGET INLINE F loadf_avx512(const void *p, size_t at, int kind) {
    if (kind == NARROW)
        return _mm512_loadu_ps((const float *)p + at);
    __m256i halves = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p + at));
    return kind == HALF ? _mm512_cvtph_ps(halves)
                        : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
TARGET INLINE double added_avx512(V x) { return _mm512_reduce_add_pd(x); }
TARGET INLINE double highest_avx512(V x) { return _mm512_reduce_max_pd(x); }
TARGET INLINE double highestf_avx512(F x) { return (double)_mm512_reduce_max_ps(x); }
TARGET INLINE V part_avx512(F x, int half) {
    return _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x));
}
TARGET INLINE V abs_avx512(V x) { return _mm512_abs_pd(x); }
TARGET INLINE V max_avx512(V x, V y) { return _mm512_max_pd(x, y); }
TARGET INLINE V min_avx512(V x, V y) { return _mm512_min_pd(x, y); }
TARGET INLINE F absf_avx512(F x) { return _mm512_abs_ps(x); }
TARGET INLINE F maxf_avx512(F x, F y) { return _mm512_max_ps(x, y); }
TARGET INLINE F minf_avx512(F x, F y) { return _mm512_min_ps(x, y); }
TARGET INLINE V fma_avx512(V x, V y, V z) { return _mm512_fmadd_pd(x, y, z); }
TARGET INLINE int64_t greater_avx512(V x, V y) {
    return __builtin_popcount(_mm512_cmp_pd_mask(x, y, _CMP_GT_OQ));
}
TARGET INLINE int64_t greaterf_avx512(F x, F y) {
    return __builtin_popcount(_mm512_cmp_ps_mask(x, y, _CMP_GT_OQ));
}
/* As many as fill vectors; rounding towards zero needs no care of the fifth bit. What follows is fetched
   meanwhile: nothing here waits for memory. */
#define FLOAT_CODES float_codes_avx512
TARGET static size_t float_codes_avx512(const char *a, const char *b, size_t n, uint8_t *codes, uint32_t *most) {
    __m512i sign = _mm512_set1_epi32(INT32_MIN), largest = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i p = _mm512_loadu_si512(a + 4 * i), q = _mm512_loadu_si512(b + 4 * i);
        __builtin_prefetch(a + 4 * (n + i), 0, 2);
        __builtin_prefetch(b + 4 * (n + i), 0, 2);
        p = _mm512_mask_sub_epi32(p, _mm512_movepi32_mask(p), sign, p);
        q = _mm512_mask_sub_epi32(q, _mm512_movepi32_mask(q), sign, q);
        __m512i gap = _mm512_sub_epi32(_mm512_max_epi32(p, q), _mm512_min_epi32(p, q));
        largest = _mm512_max_epu32(gap, largest);
        __m512 size = _mm512_cvt_roundepu32_ps(gap, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        __m512i code = _mm512_srli_epi32(_mm512_castps_si512(size), 20);
        _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    *most = _mm512_reduce_max_epu32(largest);
    return i;
}
#include "_native.c"
#endif

static const Variant VARIANTS[] = {
#if defined(__x86_64__)
    {"avx512", compare_avx512, describe_avx512, along_avx512, axes_avx512},
    {"avx2", compare_avx2, describe_avx2, along_avx2, axes_avx2},
#endif
    {"plain", compare_plain, describe_plain, along_plain, axes_plain},
};
#define COUNT_OF_VARIANTS ((int)(sizeof VARIANTS / sizeof *VARIANTS))
static const Variant *chosen;

static int is_supported(const Variant *variant) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (variant->compare == compare_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    if (variant->compare == compare_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return variant->compare == compare_plain;
}

/* Programs may have asked for subnormal numbers to be zero; and the flags we raise are not theirs. */
static unsigned enter_arithmetic(void) {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return before;
#else
    return 0;
#endif
}

static void leave_arithmetic(unsigned before) {
#if defined(__x86_64__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* Letting another thread run costs more than a small array does. */
#define SMALL 16384
#define WITHOUT_GIL(count, call)                                       \
    do {                                                               \
        PyThreadState *state = (count) > SMALL ? PyEval_SaveThread() : NULL; \
        unsigned before = enter_arithmetic();                          \
        call;                                                          \
        leave_arithmetic(before);                                      \
        if (state)                                                     \
            PyEval_RestoreThread(state);                               \
    } while (0)

static int fits(const Py_buffer *bytes, int type, const Py_buffer *table, long long start, long long stop) {
    int has_table = table->buf != NULL && table->len == 256 * (Py_ssize_t)sizeof(float);
    if (type < 0 || type >= TYPES || ((type == F8 || type == F8_UNSIGNED) && !has_table)) {
        PyErr_Format(PyExc_ValueError, "no number type has the code %d", type);
        return 0;
    }
    if (start < 0 || stop < start || stop > bytes->len / SIZES[type]) {
        PyErr_Format(PyExc_ValueError, "%zd bytes do not hold the numbers from %lld to %lld", bytes->len, start, stop);
        return 0;
    }
    return 1;
}

static Side side_of(const Py_buffer *bytes, const Py_buffer *table, int type) {
    Side side = {bytes->buf, table->buf, type};
    return side;
}

static PyObject *statistics(PyObject *module, PyObject *args) {
    Py_buffer bytes, table;
    int type;
    long long start, stop;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*iz*LL", &bytes, &type, &table, &start, &stop))
        return NULL;
    if (fits(&bytes, type, &table, start, stop)) {
        Single single = {side_of(&bytes, &table, type), start, stop};
        Moments m;
        WITHOUT_GIL(stop - start, chosen->describe(&single, &m));
        result = Py_BuildValue("LLLLdddddd", (long long)m.stopped, (long long)m.finite, (long long)m.nan,
                               (long long)m.inf, m.min, m.max, m.total, m.squares, m.mean, m.spread);
    }
    PyBuffer_Release(&bytes);
    if (table.obj)
        PyBuffer_Release(&table);
    return result;
}

/* Distances below 16 have a bin of their own, then come eight for each power of two. */
static int bin_of(int code) {
    int exponent = (code >> 3) - 127, eighth = code & 7;
    return exponent < 3 ? (8 + eighth) >> (3 - exponent) : 8 * (exponent - 2) + eighth;
}

/* The first codes are those of 1 and 2; beyond the signed integers all count as their largest. */
static int code_of_short(int code) {
    return code >= 0xf8 ? code + 0x300 : code < 0xf0 ? code + 0x400 : 0x4ef;
}

static void count_bins(const Found *found, int type, long long *counts) {
    const Sums *s = &found->sums;
    for (int table = 0; table < TABLES; table++) {
        for (int code = 0; type != F64 && code < SHORT_CODES; code++)
            counts[bin_of(code_of_short(code))] += found->short_ulps[table][code];
        for (int code = 127 << 3; type == F64 && code < CODES; code++)
            counts[bin_of(code)] += found->long_ulps[table][code];
    }
    if (type != F64)
        counts[2] -= found->counted - s->above - s->below;
    counts[0] = s->finite - s->above - s->below;
}

static PyObject *ulps_of(const Found *found, int type) {
    long long counts[BINS] = {0};
    count_bins(found, type, counts);
    PyObject *numbers = PyList_New(BINS);
    for (int bin = 0; numbers && bin < BINS; bin++) {
        PyObject *number = PyLong_FromLongLong(counts[bin]);
        if (!number || PyList_SetItem(numbers, bin, number) < 0) {
            Py_DECREF(numbers);
            return NULL;
        }
    }
    return numbers ? Py_BuildValue("KN", (unsigned long long)found->ulp_most, numbers) : NULL;
}

static PyObject *report_of(const Found *found, const Pair *pair) {
    const Sums *s = &found->sums;
    PyObject *ulps = pair->with_ulps ? ulps_of(found, pair->a.type) : Py_NewRef(Py_None);
    if (!ulps)
        return NULL;
    return Py_BuildValue("L(LLLL)(LL)(LL)LL(dddddddd)(dddd)(dLdd)(dLdd)N", (long long)found->stopped,
                         (long long)s->finite, (long long)s->mismatches, (long long)s->above,
                         (long long)s->below, (long long)s->a_nan, (long long)s->b_nan, (long long)s->a_inf,
                         (long long)s->b_inf, (long long)s->disagreeing, (long long)s->both_nan, s->d, s->abs_d,
                         s->a, s->b, s->dd, s->db, s->aa, s->bb, s->a_min, s->a_max, s->b_min, s->b_max,
                         found->absolute.size, (long long)found->absolute.at, found->absolute.a,
                         found->absolute.b, found->relative.size, (long long)found->relative.at,
                         found->relative.a, found->relative.b, ulps);
}

static PyObject *differences(PyObject *module, PyObject *args) {
    Py_buffer a, b, a_table, b_table;
    int a_type, b_type, equal_nan, until_mismatch, are_integers, with_ulps;
    long long start, stop;
    double atol, rtol;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*iz*y*iz*LLddpppp", &a, &a_type, &a_table, &b, &b_type, &b_table, &start, &stop,
                          &atol, &rtol, &equal_nan, &until_mismatch, &are_integers, &with_ulps))
        return NULL;
    if (fits(&a, a_type, &a_table, start, stop) && fits(&b, b_type, &b_table, start, stop)) {
        Pair pair = {side_of(&a, &a_table, a_type), side_of(&b, &b_table, b_type), start, stop, atol, rtol,
                     equal_nan, until_mismatch, are_integers, with_ulps && a_type == b_type};
        Found found;
        WITHOUT_GIL(stop - start, chosen->compare(&pair, &found));
        result = report_of(&found, &pair);
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    if (a_table.obj)
        PyBuffer_Release(&a_table);
    if (b_table.obj)
        PyBuffer_Release(&b_table);
    return result;
}

static PyObject *along(PyObject *module, PyObject *args) {
    Py_buffer a, b, a_table, b_table, gaps, bases;
    int a_type, b_type;
    long long start, stop, length, inner;
    double scale;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*iz*y*iz*LLLLdw*w*", &a, &a_type, &a_table, &b, &b_type, &b_table, &start, &stop,
                          &length, &inner, &scale, &gaps, &bases))
        return NULL;
    Py_ssize_t room = (Py_ssize_t)sizeof(double) * length;
    if (length < 1 || inner < 1 || gaps.len != room || bases.len != room) {
        PyErr_Format(PyExc_ValueError, "an axis of %lld numbers needs as many sums", length);
    } else if (fits(&a, a_type, &a_table, start, stop) && fits(&b, b_type, &b_table, start, stop)) {
        Along job = {side_of(&a, &a_table, a_type), side_of(&b, &b_table, b_type), start, stop, length, inner,
                     scale, gaps.buf, bases.buf};
        WITHOUT_GIL(stop - start, chosen->along(&job));
        result = Py_NewRef(Py_None);
    }
    Py_buffer *taken[] = {&a, &b, &gaps, &bases};
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(taken[i]);
    if (a_table.obj)
        PyBuffer_Release(&a_table);
    if (b_table.obj)
        PyBuffer_Release(&b_table);
    return result;
}

static int are_sums(const Py_buffer *gaps, const Py_buffer *bases, long long count) {
    if (gaps->len == bases->len && gaps->len == (Py_ssize_t)sizeof(double) * count)
        return 1;
    PyErr_Format(PyExc_ValueError, "an axis of %lld numbers needs as many sums", count);
    return 0;
}

static PyObject *axes(PyObject *module, PyObject *args) {
    Py_buffer a, b, a_table, b_table, sums[4];
    int a_type, b_type, are_finite;
    long long start, stop, rows, columns;
    PyObject *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*iz*y*iz*LLLLpw*w*w*w*", &a, &a_type, &a_table, &b, &b_type, &b_table, &start,
                          &stop, &rows, &columns, &are_finite, &sums[0], &sums[1], &sums[2], &sums[3]))
        return NULL;
    if (rows < 1 || columns < 1 || stop > rows * columns)
        PyErr_Format(PyExc_ValueError, "%lld rows of %lld do not hold %lld numbers", rows, columns, stop);
    else if (are_sums(&sums[0], &sums[1], rows) && are_sums(&sums[2], &sums[3], columns) &&
             fits(&a, a_type, &a_table, start, stop) && fits(&b, b_type, &b_table, start, stop)) {
        Axes job = {side_of(&a, &a_table, a_type), side_of(&b, &b_table, b_type), start, stop, columns,
                    are_finite, sums[0].buf, sums[1].buf, sums[2].buf, sums[3].buf};
        WITHOUT_GIL(stop - start, chosen->axes(&job));
        result = Py_NewRef(Py_None);
    }
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&sums[i]);
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    if (a_table.obj)
        PyBuffer_Release(&a_table);
    if (b_table.obj)
        PyBuffer_Release(&b_table);
    return result;
}

/* One of many pairs: what it is, and what was found. */
typedef struct {
    Py_buffer a, b, a_table, b_table;
    Pair pair;
    long long columns; /* none where rows and columns are not asked for */
    Sums sums;
    Peak absolute;
    double row, column;
    int64_t worst_row, worst_column;
    int is_whole; /* else its parts are left to the twin */
} Job;

static void release(Job *job) {
    Py_buffer *taken[] = {&job->a, &job->b, &job->a_table, &job->b_table};
    for (int i = 0; i < 4; i++)
        if (taken[i]->obj)
            PyBuffer_Release(taken[i]);
}

static int is_aligned(const Side *side) { return (uintptr_t)side->bytes % (uintptr_t)SIZES[side->type] == 0; }

static int prepare(Job *job, PyObject *item) {
    int a_type, b_type, are_integers;
    long long count;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a pair is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(item, "y*iz*y*iz*LLp", &job->a, &a_type, &job->a_table, &job->b, &b_type, &job->b_table,
                          &count, &job->columns, &are_integers)) {
        memset(job, 0, sizeof *job); /* what was taken has been given back */
        return 0;
    }
    if (job->columns < 0 || (job->columns && count % job->columns)) {
        PyErr_Format(PyExc_ValueError, "%lld numbers are no rows of %lld", count, job->columns);
        return 0;
    }
    Pair pair = {side_of(&job->a, &job->a_table, a_type), side_of(&job->b, &job->b_table, b_type),
                 .stop = count, .are_integers = are_integers};
    job->pair = pair;
    return fits(&job->a, a_type, &job->a_table, 0, count) && fits(&job->b, b_type, &job->b_table, 0, count);
}

/* The one of which so many are smaller; the others change places. */
static double select_one(double *values, int64_t count, int64_t wanted) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        double pivot = values[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j) {
                double other = values[i];
                values[i++] = values[j], values[j--] = other;
            }
        }
        if (wanted <= j)
            high = j;
        else if (wanted >= i)
            low = i;
        else
            break;
    }
    return values[wanted];
}

/* The largest share that a gap has of what it stands against, and where. What is far smaller than usual is
   measured by a share of that: noise of nothing says nothing. */
static double worst_of(double *gaps, double *bases, int64_t count, double *room, int64_t *at) {
    double most = 0, worst = -1;
    for (int64_t i = 0; i < count; i++) {
        gaps[i] = sqrt(gaps[i]), bases[i] = room[i] = sqrt(bases[i]);
        most = larger(bases[i], most);
    }
    double least = SMALL_SHARE * select_one(room, count, count / 2);
    if (!least)
        least = most ? most : 1.0;
    for (int64_t i = 0; i < count; i++) {
        double ratio = gaps[i] / larger(bases[i], least);
        if (ratio > worst)
            worst = ratio, *at = i;
    }
    return worst;
}

/* Rows and columns against the larger side. */
static int find_worst(Job *job) {
    const Sums *s = &job->sums;
    int is_swapped = sqrt(s->aa) > sqrt(s->bb);
    int64_t count = job->pair.stop, columns = job->columns, rows = count / columns;
    int64_t longest = rows > columns ? rows : columns;
    double *sums = calloc((size_t)(2 * (rows + columns) + longest), sizeof *sums);
    if (!sums)
        return 0;
    double *room = sums + 2 * (rows + columns);
    Axes axes = {is_swapped ? job->pair.b : job->pair.a, is_swapped ? job->pair.a : job->pair.b, 0, count, columns,
                 s->finite == count, sums, sums + rows, sums + 2 * rows, sums + 2 * rows + columns};
    chosen->axes(&axes);
    job->row = worst_of(axes.row_gaps, axes.row_bases, rows, room, &job->worst_row);
    job->column = worst_of(axes.column_gaps, axes.column_bases, columns, room, &job->worst_column);
    free(sums);
    return 1;
}

/* Squares of numbers beyond these may be lost among the others of a row. */
static int are_ordinary(const Sums *s) {
    double most = larger(larger(s->a_max, -s->a_min), larger(s->b_max, -s->b_min));
    return most > 1e-100 && most < 1e100;
}

static void measure_job(Job *job) {
    Found found;
    job->worst_row = job->worst_column = -1;
    if (!is_aligned(&job->pair.a) || !is_aligned(&job->pair.b))
        return;
    chosen->compare(&job->pair, &found);
    job->sums = found.sums, job->absolute = found.absolute;
    job->is_whole = found.stopped == job->pair.stop;
    if (!job->is_whole || !job->columns || !found.absolute.size)
        return;
    job->is_whole = are_ordinary(&job->sums) && find_worst(job);
}

static PyObject *report_of_job(const Job *job) {
    const Sums *s = &job->sums;
    if (!job->is_whole)
        Py_RETURN_NONE;
    return Py_BuildValue("LLLLLLLLddddddddLdddLdL", (long long)s->finite, (long long)s->above,
                         (long long)s->below, (long long)s->a_nan, (long long)s->b_nan, (long long)s->a_inf,
                         (long long)s->b_inf, (long long)s->disagreeing, s->d, s->dd, s->db, s->aa, s->bb,
                         s->a_min, s->b_min, job->absolute.size, (long long)job->absolute.at,
                         job->absolute.a, job->absolute.b, job->row, (long long)job->worst_row, job->column,
                         (long long)job->worst_column);
}

static PyObject *measured(PyObject *module, PyObject *args) {
    PyObject *items, *reports = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &items))
        return NULL;
    Py_ssize_t count = PyList_Size(items), ready = 0;
    Job *jobs = calloc((size_t)count + 1, sizeof *jobs);
    if (!jobs)
        return PyErr_NoMemory();
    int is_ready = 1;
    while (is_ready && ready < count) {
        is_ready = prepare(&jobs[ready], PyList_GetItem(items, ready));
        ready++;
    }
    if (is_ready) {
        PyThreadState *state = PyEval_SaveThread();
        unsigned before = enter_arithmetic();
        for (Py_ssize_t i = 0; i < count; i++)
            measure_job(&jobs[i]);
        leave_arithmetic(before);
        PyEval_RestoreThread(state);
        reports = PyList_New(count);
    }
    for (Py_ssize_t i = 0; reports && i < count; i++) {
        PyObject *report = report_of_job(&jobs[i]);
        if (!report || PyList_SetItem(reports, i, report) < 0)
            Py_CLEAR(reports);
    }
    for (Py_ssize_t i = 0; i < ready; i++)
        release(&jobs[i]);
    free(jobs);
    return reports;
}

static PyObject *variants(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < COUNT_OF_VARIANTS; i++) {
        if (!is_supported(&VARIANTS[i]))
            continue;
        PyObject *name = PyUnicode_FromString(VARIANTS[i].name);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *choose(PyObject *module, PyObject *args) {
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    for (int i = 0; i < COUNT_OF_VARIANTS; i++)
        if (!strcmp(VARIANTS[i].name, name) && is_supported(&VARIANTS[i])) {
            chosen = &VARIANTS[i];
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "no variant '%s' for this processor; variants() lists them", name);
}

static PyMethodDef METHODS[] = {
    {"statistics", statistics, METH_VARARGS, "Moments of the numbers from start to stop."},
    {"differences", differences, METH_VARARGS, "How the numbers from start to stop differ."},
    {"along", along, METH_VARARGS, "Add squares of differences and of b to the sums of an axis."},
    {"axes", axes, METH_VARARGS, "Add squares of differences and of b to the sums of rows and of columns."},
    {"measured", measured, METH_VARARGS, "How each of many pairs differs, and its worst row and column."},
    {"variants", variants, METH_NOARGS, "The variants this processor can run, the fastest first."},
    {"choose", choose, METH_VARARGS, "Run this variant from now on."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    for (int i = 0; !chosen; i++)
        if (is_supported(&VARIANTS[i]))
            chosen = &VARIANTS[i];
    return PyModule_AddIntConstant(module, "BINS", BINS);
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_native", "Kernels in C; native.py is their door.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&MODULE); }

#else /* what is compiled for each kind of processor */

/* All sums of one block; with numbers among them that are not finite they mean nothing. */
TARGET INLINE void FN(sum_both)(const void *a, const void *b, size_t n, int kind, const Pair *pair, double steepest,
                                Sums *out) {
    const int wide = kind == LONG;
    V zero = FN(set)(0.0), d_ = zero, abs_ = zero, b_ = zero, dd = zero, db = zero, bb = zero;
    V peak = zero, excess = zero, x_min = FN(set)(INFINITY), x_max = -x_min, y_min = x_min, y_max = x_max;
    F p_min = FN(setf)(INFINITY), p_max = -p_min, q_min = p_min, q_max = p_max, p = p_min, q = p_min;
    V at_least = FN(set)(pair->atol), share = FN(set)(pair->rtol), slope = FN(set)(-steepest);
    V lift = FN(set)(LIFT);
    int64_t mismatches = 0, above = 0, below = 0;
    const size_t size_of = wide ? 8 : kind == NARROW ? 4 : 2;
    for (size_t i = 0; i < n; i += 2 * WIDTH) {
        /* Two streams in turn are more than some memories foresee. */
        __builtin_prefetch((const char *)a + i * size_of + AHEAD);
        __builtin_prefetch((const char *)b + i * size_of + AHEAD);
        if (!wide) {
            p = FN(loadf)(a, i, kind), q = FN(loadf)(b, i, kind);
            p_min = FN(minf)(p, p_min), p_max = FN(maxf)(p, p_max);
            q_min = FN(minf)(q, q_min), q_max = FN(maxf)(q, q_max);
            above += FN(greaterf)(p, q), below += FN(greaterf)(q, p);
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            /* Reading float32 again is quicker than taking a register apart. */
            int is_there = kind == NARROW || wide;
            V x = is_there ? FN(load)(a, i + (size_t)half * WIDTH, wide) : FN(part)(p, half);
            V y = is_there ? FN(load)(b, i + (size_t)half * WIDTH, wide) : FN(part)(q, half);
            V d = x - y, gap = FN(abs)(d), size = FN(abs)(y);
            d_ += d, abs_ += gap, b_ += y;
            dd = FN(fma)(d, d, dd), db = FN(fma)(d, y, db), bb = FN(fma)(y, y, bb);
            peak = FN(max)(gap, peak);
            mismatches += FN(greater)(gap, share * size + at_least);
            excess = FN(max)(wide ? FN(fma)(slope, size * lift, gap * lift) : FN(fma)(slope, size, gap), excess);
            if (wide) {
                x_min = FN(min)(x, x_min), x_max = FN(max)(x, x_max);
                y_min = FN(min)(y, y_min), y_max = FN(max)(y, y_max);
                above += FN(greater)(x, y), below += FN(greater)(y, x);
            }
        }
    }
    Sums s = {.finite = (int64_t)n, .mismatches = mismatches, .above = above, .below = below};
    s.d = FN(added)(d_), s.abs_d = FN(added)(abs_), s.b = FN(added)(b_);
    s.dd = FN(added)(dd), s.db = FN(added)(db), s.bb = FN(added)(bb);
    s.peak = FN(highest)(peak), s.excess = FN(highest)(excess);
    s.a_min = wide ? -FN(highest)(-x_min) : -FN(highestf)(-p_min);
    s.a_max = wide ? FN(highest)(x_max) : FN(highestf)(p_max);
    s.b_min = wide ? -FN(highest)(-y_min) : -FN(highestf)(-q_min);
    s.b_max = wide ? FN(highest)(y_max) : FN(highestf)(q_max);
    *out = s;
}

/* Not a copy for each call: these loops are most of the code. */
#define OF_KIND(name, kind)                                                                              \
    TARGET ALONE void FN(name)(const void *a, const void *b, size_t n, const Pair *pair, double steepest, Sums *s) { \
        FN(sum_both)(a, b, n, kind, pair, steepest, s);                                                  \
    }
OF_KIND(sum_narrow, NARROW)
OF_KIND(sum_long, LONG)
#if WIDENS
OF_KIND(sum_brain, BRAIN)
OF_KIND(sum_half, HALF)
#endif
#undef OF_KIND

/* All sums of whole vectors of numbers, and of the few behind them, which come with `kind` NARROW or LONG. */
TARGET static void FN(sum_up)(const void *a, const void *b, size_t n, int kind, const Pair *pair, double steepest,
                              Sums *s) {
    size_t whole = n - n % (2 * WIDTH);
    switch (kind) {
#if WIDENS
    case BRAIN: FN(sum_brain)(a, b, whole, pair, steepest, s); break;
    case HALF: FN(sum_half)(a, b, whole, pair, steepest, s); break;
#endif
    case LONG: FN(sum_long)(a, b, whole, pair, steepest, s); break;
    default: FN(sum_narrow)(a, b, whole, pair, steepest, s);
    }
    for (size_t i = whole; i < n; i++)
        compare_one(s, real(a, i, kind == LONG), real(b, i, kind == LONG), pair->atol, pair->rtol, steepest,
                    kind == LONG ? LIFT : 1.0);
    s->finite = (int64_t)n;
}

typedef struct {
    double first, second, squares, min, max; /* sums of x - shift and of its squares; squares of x itself */
} FN(One);

TARGET INLINE void FN(sum_real)(const void *values, size_t n, int wide, double shift, FN(One) *out) {
    V first = FN(set)(0.0), second = first, squares = first, c = FN(set)(shift);
    V x_min = FN(set)(INFINITY), x_max = -x_min, more = first;
    F p_min = FN(setf)(INFINITY), p_max = -p_min;
    size_t i = 0;
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH) {
        if (!wide) {
            F p = FN(loadf)(values, i, NARROW);
            p_min = FN(minf)(p, p_min), p_max = FN(maxf)(p, p_max);
        }
        V x = FN(load)(values, i, wide), y = FN(load)(values, i + WIDTH, wide), u = x - c, v = y - c;
        first += u, more += v;
        second = FN(fma)(u, u, second), second = FN(fma)(v, v, second);
        squares = FN(fma)(x, x, squares), squares = FN(fma)(y, y, squares);
        if (wide) {
            x_min = FN(min)(x, x_min), x_max = FN(max)(x, x_max);
            x_min = FN(min)(y, x_min), x_max = FN(max)(y, x_max);
        }
    }
    FN(One) s = {FN(added)(first) + FN(added)(more), FN(added)(second), FN(added)(squares), 0, 0};
    s.min = wide ? -FN(highest)(-x_min) : -FN(highestf)(-p_min);
    s.max = wide ? FN(highest)(x_max) : FN(highestf)(p_max);
    for (; i < n; i++) {
        double x = real(values, i, wide), u = x - shift;
        s.first += u, s.second += u * u, s.squares += x * x;
        s.min = smaller(x, s.min), s.max = larger(x, s.max);
    }
    *out = s;
}

TARGET ALONE void FN(sum_one)(const void *values, size_t n, int wide, double shift, FN(One) *out) {
    if (wide)
        FN(sum_real)(values, n, 1, shift, out);
    else
        FN(sum_real)(values, n, 0, shift, out);
}

#define CONVERT(type, into)                              \
    for (size_t i = 0; i < n; i++)                       \
        ((into *)room)[i] = (into)((const type *)from)[i]; \
    break

/* Numbers to compute with: the bytes themselves, or a copy of them in `room` as float32 or float64. */
TARGET ALONE const void *FN(numbers)(const Side *side, int64_t start, size_t n, int wide, void *room) {
    const char *from = side->bytes + start * SIZES[side->type];
    if (side->type == (wide ? F64 : F32))
        return from;
    if (wide && !WIDE[side->type]) { /* by way of float32, which holds all of them */
        float *narrow = (float *)room + n;
        memmove(narrow, FN(numbers)(side, start, n, 0, narrow), n * sizeof(float));
        for (size_t i = 0; i < n; i++)
            ((double *)room)[i] = narrow[i];
        return room;
    }
    switch (side->type) {
    case BOOL:
    case U8: CONVERT(uint8_t, float);
    case I8: CONVERT(int8_t, float);
    case U16: CONVERT(uint16_t, float);
    case I16: CONVERT(int16_t, float);
    case U32: CONVERT(uint32_t, double);
    case I32: CONVERT(int32_t, double);
    case U64: CONVERT(uint64_t, double);
    case I64: CONVERT(int64_t, double);
    case BF16:
        for (size_t i = 0; i < n; i++)
            ((bits32 *)room)[i] = (uint32_t)((const bits16 *)from)[i] << 16;
        break;
    case F16:
        for (size_t i = 0; i < n; i++) {
            uint32_t half = ((const bits16 *)from)[i], rest = (half & 0x7fff) << 13;
            uint32_t normal = rest + (112u << 23), odd = rest | 0x7f800000u, tiny = rest + (113u << 23);
            float small;
            memcpy(&small, &tiny, sizeof small);
            small -= 0x1p-14f;
            memcpy(&tiny, &small, sizeof small);
            uint32_t value = (half & 0x7c00) == 0 ? tiny : (half & 0x7c00) == 0x7c00 ? odd : normal;
            ((bits32 *)room)[i] = value | (half & 0x8000) << 16;
        }
        break;
    default:
        for (size_t i = 0; i < n; i++)
            ((float *)room)[i] = side->table[((const uint8_t *)from)[i]];
    }
    return room;
}

#undef CONVERT

/* Count what is not finite, and put nothing against nothing there: it adds to no sum and differs nowhere. The
   bounds are those of the others, found in integers that are ordered like the numbers. */
#define CLEAN(name, real, bits, order, infinity, most)                                                   \
    INLINE order FN(name##_key)(bits x) { return (order)x ^ (((order)x >> (sizeof(bits) * 8 - 1)) & most); } \
    INLINE double FN(name##_value)(order key) {                                                          \
        order x = key ^ ((key >> (sizeof(bits) * 8 - 1)) & most);                                        \
        real value;                                                                                      \
        return memcpy(&value, &x, sizeof value), value;                                                  \
    }                                                                                                    \
    TARGET ALONE void FN(name)(const void *a, const void *b, size_t n, void *a_room, void *b_room, Sums *out) { \
        const bits *restrict p = a, *restrict q = b;                                                                       \
        bits *restrict p_room = a_room, *restrict q_room = b_room;                                                         \
        bits a_nan = 0, b_nan = 0, a_inf = 0, b_inf = 0, both = 0, apart = 0, kept = 0;                  \
        order a_min = most, a_max = -most, b_min = most, b_max = -most;                                  \
        for (size_t i = 0; i < n; i++) {                                                                 \
            bits x = p[i] & most, y = q[i] & most, no_x = x > infinity, no_y = y > infinity;             \
            bits is_finite = (x < infinity) & (y < infinity), mask = 0 - is_finite;                      \
            order u = FN(name##_key)(p[i]), v = FN(name##_key)(q[i]);                                    \
            kept += is_finite, a_nan += no_x, b_nan += no_y, both += no_x & no_y;                        \
            a_inf += x == infinity, b_inf += y == infinity;                                              \
            apart += (is_finite ^ 1) & ((no_x & no_y) ^ 1) & (p[i] != q[i]);                             \
            order low_u = (u & (order)mask) | (most & ~(order)mask), high_u = (u & (order)mask) | (-most & ~(order)mask); \
            order low_v = (v & (order)mask) | (most & ~(order)mask), high_v = (v & (order)mask) | (-most & ~(order)mask); \
            a_min = low_u < a_min ? low_u : a_min, a_max = high_u > a_max ? high_u : a_max;              \
            b_min = low_v < b_min ? low_v : b_min, b_max = high_v > b_max ? high_v : b_max;              \
            p_room[i] = p[i] & mask, q_room[i] = q[i] & mask;                                            \
        }                                                                                                \
        *out = NOTHING;                                                                                  \
        if (kept) {                                                                                      \
            out->a_min = FN(name##_value)(a_min), out->a_max = FN(name##_value)(a_max);                  \
            out->b_min = FN(name##_value)(b_min), out->b_max = FN(name##_value)(b_max);                  \
        }                                                                                                \
        out->finite = (int64_t)kept;                                                                     \
        out->a_nan = (int64_t)a_nan, out->b_nan = (int64_t)b_nan, out->both_nan = (int64_t)both;         \
        out->a_inf = (int64_t)a_inf, out->b_inf = (int64_t)b_inf, out->disagreeing = (int64_t)apart;     \
    }
CLEAN(clean_narrow, float, bits32, int32_t, 0x7f800000u, INT32_MAX)
CLEAN(clean_long, double, bits64, int64_t, 0x7ff0000000000000u, INT64_MAX)
#undef CLEAN

/* The first difference of that size; there is one. */
TARGET static size_t FN(first_with)(const void *a, const void *b, size_t n, int wide, double peak) {
    V most = FN(set)(peak);
    size_t i = 0;
    while (i + WIDTH <= n && FN(greater)(most, FN(abs)(FN(load)(a, i, wide) - FN(load)(b, i, wide))) == WIDTH)
        i += WIDTH;
    while (i + 1 < n && fabs(real(a, i, wide) - real(b, i, wide)) < peak)
        i++;
    return i;
}

/* The first of the largest ratios above `least`; n where there is none. Nothing over nothing is no number, and
   never larger. */
TARGET static size_t FN(steepest_long)(const void *a, const void *b, size_t n, int wide, double least, double *ratio) {
    V peak = FN(set)(least), most;
    size_t whole = n - n % WIDTH, at = n;
    for (size_t i = 0; i < whole; i += WIDTH) {
        V x = FN(load)(a, i, wide), y = FN(load)(b, i, wide);
        peak = FN(max)(FN(abs)(x - y) / FN(abs)(y), peak);
    }
    double largest = FN(highest)(peak);
    if (largest > least) {
        most = FN(set)(nextafter(largest, 0.0));
        for (at = 0;; at += WIDTH) {
            V x = FN(load)(a, at, wide), y = FN(load)(b, at, wide);
            if (FN(greater)(FN(abs)(x - y) / FN(abs)(y), most))
                break;
        }
        while (slope_at(a, b, at, wide) != largest)
            at++;
        least = largest;
    }
    for (size_t i = whole; i < n; i++)
        if (slope_at(a, b, i, wide) > least)
            least = slope_at(a, b, i, wide), at = i;
    return *ratio = least, at;
}

/* The same, found first in float32, which divides four times as many at once; those that come near are looked
   at again. */
TARGET static size_t FN(steepest)(const void *a, const void *b, size_t n, int wide, double least, double *ratio) {
    float slopes[MOST_IN_BLOCK];
    F peak = FN(setf)(0.0f);
    size_t whole = n - n % (2 * WIDTH), at = n;
    for (size_t i = 0; !wide && i < whole; i += 2 * WIDTH) {
        F y = FN(loadf)(b, i, NARROW), slope = FN(absf)(FN(loadf)(a, i, NARROW) - y) / FN(absf)(y);
        peak = FN(maxf)(slope, peak);
        memcpy(slopes + i, &slope, sizeof slope);
    }
    double largest = FN(highestf)(peak), before = least;
    if (wide || largest < 1e-30) /* too near to what float32 cannot hold */
        return FN(steepest_long)(a, b, n, wide, least, ratio);
    F near = FN(setf)((float)(smaller(largest, FLT_MAX) * (1 - 1e-6)));
    for (size_t i = 0; i < whole; i += 2 * WIDTH) {
        F slope;
        memcpy(&slope, slopes + i, sizeof slope);
        for (size_t j = i; FN(greaterf)(slope, near) && j < i + 2 * WIDTH; j++)
            if (slope_at(a, b, j, 0) > least)
                least = slope_at(a, b, j, 0), at = j;
    }
    if (isinf(largest) && !isinf(least)) /* of float32 alone */
        return FN(steepest_long)(a, b, n, 0, before, ratio);
    for (size_t i = whole; i < n; i++)
        if (slope_at(a, b, i, 0) > least)
            least = slope_at(a, b, i, 0), at = i;
    return *ratio = least, at;
}

/* A number's place among those of its type, which a sign mirrors; bytes of scales have none. */
#define DISTANCES(type, place)                                                                           \
    for (; i < n; i++) {                                                                                 \
        uint32_t p = ((const type *)a)[i], q = ((const type *)b)[i];                                     \
        int32_t x = place(p), y = place(q);                                                              \
        uint32_t gap = x > y ? (uint32_t)x - (uint32_t)y : (uint32_t)y - (uint32_t)x;                    \
        most = gap > most ? gap : most;                                                                  \
        /* Without the fifth bit the rounding to float cannot carry into the first four, the code. */    \
        uint32_t rough = gap < INT32_MAX ? gap : INT32_MAX;                                              \
        rough &= ~(rough >> 4);                                                                          \
        float size = (float)(int32_t)rough;                                                              \
        uint32_t bits;                                                                                   \
        memcpy(&bits, &size, sizeof bits);                                                               \
        codes[i] = (uint8_t)(bits >> 20);                                                                \
    }
#define OF_FLOAT(x) ((int32_t)x < 0 ? (int32_t)(0x80000000u - x) : (int32_t)x)
#define OF_HALF(x) (x & 0x8000 ? -(int32_t)(x & 0x7fff) : (int32_t)x)
#define OF_BYTE(x) (x & 0x80 && type == F8 ? -(int32_t)(x & 0x7f) : (int32_t)x)

TARGET ALONE uint32_t FN(distances)(const char *a, const char *b, int type, size_t n, uint8_t *restrict codes) {
    uint32_t most = 0;
    size_t i = 0;
    if (type == F32) {
#ifdef FLOAT_CODES
        i = FLOAT_CODES(a, b, n, codes, &most);
#endif
        DISTANCES(bits32, OF_FLOAT)
    } else if (SIZES[type] == 2) {
        DISTANCES(bits16, OF_HALF)
    } else {
        DISTANCES(uint8_t, OF_BYTE)
    }
    return most;
}
#undef DISTANCES
#undef OF_FLOAT
#undef OF_HALF
#undef OF_BYTE

/* `a` and `b` are of the pair's type; where a number was not finite both are nothing. */
TARGET static void FN(count_ulps)(const char *a, const char *b, int type, size_t n, Found *found) {
    uint8_t codes[MOST_IN_BLOCK];
    uint32_t most = FN(distances)(a, b, type, n, codes);
    size_t i = 0;
    for (; i + TABLES <= n; i += TABLES) {
        uint64_t all;
        memcpy(&all, codes + i, sizeof all);
#pragma GCC unroll 8
        for (size_t table = 0; table < TABLES; table++)
            found->short_ulps[table][all >> 8 * table & 255]++;
    }
    for (; i < n; i++)
        found->short_ulps[0][codes[i]]++;
    found->ulp_most = most > found->ulp_most ? most : found->ulp_most;
}

TARGET static void FN(count_long_ulps)(const bits64 *a, const bits64 *b, size_t n, Found *found) {
    for (size_t i = 0; i < n; i++) {
        uint64_t x = a[i] & INT64_MAX, y = b[i] & INT64_MAX;
        uint64_t gap = (a[i] ^ b[i]) >> 63 ? x + y : x > y ? x - y : y - x;
        uint64_t rough = gap < INT64_MAX ? gap : INT64_MAX;
        rough &= ~(rough >> 4);
        float size = (float)(int64_t)rough;
        uint32_t bits;
        memcpy(&bits, &size, sizeof bits);
        found->long_ulps[i % TABLES][bits >> 20]++;
        found->ulp_most = gap > found->ulp_most ? gap : found->ulp_most;
    }
}

TARGET static int FN(add_same)(const void *values, size_t n, int wide, int are_integers, Found *found) {
    FN(One) one;
    FN(sum_one)(values, n, wide, 0.0, &one);
    if (!is_safe(one.squares, one.min, one.max) || (are_integers && !are_exact(one.min, one.max)))
        return 0;
    Sums s = {.finite = (int64_t)n, .a = one.first, .b = one.first, .aa = one.squares, .bb = one.squares};
    s.a_min = s.b_min = one.min, s.a_max = s.b_max = one.max;
    add_sums(&found->sums, &s);
    return 1;
}

TARGET static void FN(raise_peaks)(const Sums *s, const void *a, const void *b, size_t n, int wide, int64_t start,
                                   Found *found) {
    if (s->peak > found->absolute.size) {
        size_t at = FN(first_with)(a, b, n, wide, s->peak);
        found->absolute = (Peak){s->peak, real(a, at, wide), real(b, at, wide), start + (int64_t)at};
    }
    if (s->excess > 0) {
        double ratio;
        size_t at = FN(steepest)(a, b, n, wide, found->relative.size, &ratio);
        if (at < n)
            found->relative = (Peak){ratio, real(a, at, wide), real(b, at, wide), start + (int64_t)at};
    }
}

typedef struct {
    double a[BLOCK], b[BLOCK], a_clean[BLOCK], b_clean[BLOCK];
    char a_raw[8 * BLOCK], b_raw[8 * BLOCK];
    int is_odd; /* whether the block before had numbers that are not finite: then this one is expected to */
} FN(Room);

/* The bytes of a block, with nothing where one of the two is not finite. */
TARGET static void FN(count_clean_ulps)(const char *p, const char *q, int type, size_t n, const void *a,
                                        const void *b, int64_t odd, FN(Room) *room, Found *found) {
    size_t size = (size_t)SIZES[type];
    if (type == F32 || type == F64) {
        p = a, q = b;
    } else if (odd) {
        memcpy(room->a_raw, p, n * size), memcpy(room->b_raw, q, n * size);
        for (size_t i = 0; i < n; i++)
            /* `room->a` and `room->b` still hold the numbers as they came. */
            if (!isfinite(((const float *)room->a)[i]) || !isfinite(((const float *)room->b)[i]))
                memset(room->a_raw + i * size, 0, size), memset(room->b_raw + i * size, 0, size);
        p = room->a_raw, q = room->b_raw;
    }
    found->counted += (int64_t)n;
    if (type == F64)
        FN(count_long_ulps)((const bits64 *)p, (const bits64 *)q, n, found);
    else
        FN(count_ulps)(p, q, type, n, found);
}

TARGET INLINE int FN(kind_of)(const Pair *pair, size_t n, int wide) {
    int type = pair->a.type;
    if (WIDENS && type == pair->b.type && (type == BF16 || type == F16) && n % (2 * WIDTH) == 0)
        return type == BF16 ? BRAIN : HALF;
    return wide ? LONG : NARROW;
}

/* The sums of a follow from those of b and of the difference, unless a is so much the smaller one that they
   cancel. `a` may be halves as they came. */
TARGET static void FN(complete)(Sums *s, const Side *side, const void *a, int64_t start, size_t n, int wide,
                                void *room) {
    FN(One) one;
    s->a = s->b + s->d, s->aa = s->bb + 2 * s->db + s->dd;
    if (s->aa > 0.01 * s->bb)
        return;
    if (a == side->bytes + start * SIZES[side->type])
        a = FN(numbers)(side, start, n, wide, room);
    FN(sum_one)(a, n, wide, 0.0, &one);
    s->a = one.first, s->aa = one.squares;
}

/* One block; 0 where the twin has to do it. */
TARGET static int FN(add)(const Pair *pair, int64_t start, size_t n, int wide, FN(Room) *room, Found *found) {
    int type = pair->a.type, kind = FN(kind_of)(pair, n, wide), is_raw = kind == BRAIN || kind == HALF;
    const char *p = pair->a.bytes + start * SIZES[type], *q = pair->b.bytes + start * SIZES[pair->b.type];
    const void *a = is_raw ? p : FN(numbers)(&pair->a, start, n, wide, room->a);
    const void *b = is_raw ? q : FN(numbers)(&pair->b, start, n, wide, room->b);
    double slope = slope_below(found->relative.size);
    if (are_alike(pair) && !memcmp(p, q, n * (size_t)SIZES[type])) {
        const void *same = is_raw ? FN(numbers)(&pair->b, start, n, wide, room->b) : b;
        if (FN(add_same)(same, n, wide, pair->are_integers, found))
            return 1;
    }
    Sums s;
    int is_odd = room->is_odd;
    if (!is_odd) {
        FN(sum_up)(a, b, n, kind, pair, slope, &s);
        is_odd = !isfinite(s.dd + s.bb);
    }
    if (is_raw && (is_odd || s.peak > found->absolute.size || s.excess > 0)) {
        a = FN(numbers)(&pair->a, start, n, wide, room->a);
        b = FN(numbers)(&pair->b, start, n, wide, room->b);
    }
    if (is_odd) {
        Sums c;
        (wide ? FN(clean_long) : FN(clean_narrow))(a, b, n, room->a_clean, room->b_clean, &c);
        room->is_odd = c.finite < (int64_t)n;
        a = room->a_clean, b = room->b_clean;
        FN(sum_up)(a, b, n, wide ? LONG : NARROW, pair, slope, &s);
        s.finite = c.finite, s.a_min = c.a_min, s.a_max = c.a_max, s.b_min = c.b_min, s.b_max = c.b_max;
        s.a_nan = c.a_nan, s.b_nan = c.b_nan, s.a_inf = c.a_inf, s.b_inf = c.b_inf;
        s.disagreeing = c.disagreeing, s.both_nan = c.both_nan;
        s.mismatches += c.disagreeing + (pair->equal_nan ? 0 : c.both_nan);
    }
    FN(complete)(&s, &pair->a, a, start, n, wide, room->a);
    if (wide && !are_safe(&s))
        return 0;
    if (pair->are_integers && !(are_exact(s.a_min, s.a_max) && are_exact(s.b_min, s.b_max)))
        return 0;
    add_sums(&found->sums, &s);
    FN(raise_peaks)(&s, a, b, n, wide, start, found);
    if (pair->with_ulps)
        FN(count_clean_ulps)(p, q, type, n, a, b, (int64_t)n - s.finite, room, found);
    return 1;
}

TARGET static void FN(compare)(const Pair *pair, Found *found) {
    FN(Room) room;
    room.is_odd = 0;
    memset(found, 0, offsetof(Found, short_ulps));
    if (pair->with_ulps && pair->a.type == F64)
        memset(found->long_ulps, 0, sizeof found->long_ulps);
    else if (pair->with_ulps)
        memset(found->short_ulps, 0, sizeof found->short_ulps);
    found->sums = NOTHING;
    int wide = WIDE[pair->a.type] || WIDE[pair->b.type], are_halves = are_alike(pair) && SIZES[pair->a.type] == 2;
    int64_t at = pair->start, length = wide ? BLOCK / 2 : are_halves ? MOST_IN_BLOCK : BLOCK;
    while (at < pair->stop && !(pair->until_mismatch && found->sums.mismatches)) {
        size_t n = (size_t)(pair->stop - at < length ? pair->stop - at : length);
        if (!FN(add)(pair, at, n, wide, &room, found))
            break;
        at += (int64_t)n;
    }
    found->stopped = at;
}

/* Blocks are merged by count, mean and spread. */
INLINE void FN(join)(Moments *m, double count, double mean, double spread, double total, double squares) {
    double joined = (double)m->finite + count, apart = mean - m->mean;
    m->spread += larger(spread, 0.0) + apart * apart * ((double)m->finite * (count / joined));
    m->mean += apart * (count / joined);
    m->total += total, m->squares += squares;
    m->finite += (int64_t)count;
}

/* A shift near the mean keeps a small spread from cancelling. */
TARGET static int FN(merge)(const void *values, size_t n, int wide, int are_integers, double *shift, Moments *m) {
    FN(One) one;
    double count = (double)n, spread;
    FN(sum_one)(values, n, wide, *shift, &one);
    spread = one.second - one.first * (one.first / count);
    if (!is_safe(one.squares, one.min, one.max) || (are_integers && !are_exact(one.min, one.max)))
        return 0;
    if (spread < 1e-4 * one.second) {
        *shift += one.first / count;
        FN(sum_one)(values, n, wide, *shift, &one);
        spread = one.second - one.first * (one.first / count);
    }
    double total = *shift ? one.first + count * *shift : one.first;
    FN(join)(m, count, *shift + one.first / count, spread, total, one.squares);
    m->min = smaller(one.min, m->min), m->max = larger(one.max, m->max);
    return 1;
}

/* With nothing where a number is not finite; 0 where the spread of the others would cancel. */
TARGET static int FN(merge_clean)(const void *values, const Sums *c, size_t n, int wide, Moments *m) {
    FN(One) one;
    double count = (double)c->finite;
    FN(sum_one)(values, n, wide, 0.0, &one);
    double spread = one.second - one.first * (one.first / count);
    if (!is_safe(one.squares, c->b_min, c->b_max) || spread < 1e-4 * one.second)
        return 0;
    FN(join)(m, count, one.first / count, spread, one.first, one.squares);
    m->min = smaller(c->b_min, m->min), m->max = larger(c->b_max, m->max);
    return 1;
}

TARGET static size_t FN(only_finite)(const void *values, size_t n, int wide, void *kept) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        double x = real(values, i, wide);
        if (wide)
            ((double *)kept)[count] = x;
        else
            ((float *)kept)[count] = (float)x;
        count += fabs(x) <= DBL_MAX;
    }
    return count;
}

TARGET static int FN(describe_block)(const Single *single, int64_t start, size_t n, int wide, double *shift,
                                     int *is_odd, double *room, Moments *m) {
    int type = single->side.type, are_integers = type == U64 || type == I64;
    const void *values = FN(numbers)(&single->side, start, n, wide, room);
    double *clean = room + BLOCK;
    Sums c;
    if (!*is_odd && FN(merge)(values, n, wide, are_integers, shift, m))
        return 1;
    if (are_integers)
        return 0;
    (wide ? FN(clean_long) : FN(clean_narrow))(values, values, n, clean, clean, &c);
    *is_odd = c.finite < (int64_t)n;
    if (c.finite && !FN(merge_clean)(clean, &c, n, wide, m)) {
        size_t kept = FN(only_finite)(values, n, wide, clean);
        if (!FN(merge)(clean, kept, wide, 0, shift, m))
            return 0;
    }
    m->nan += c.b_nan, m->inf += c.b_inf;
    return 1;
}

TARGET static void FN(describe)(const Single *single, Moments *m) {
    double room[2 * BLOCK], shift = 0;
    int is_odd = 0, wide = WIDE[single->side.type];
    int64_t at = single->start, length = wide ? BLOCK / 2 : BLOCK;
    memset(m, 0, sizeof *m);
    m->min = INFINITY, m->max = -INFINITY;
    while (at < single->stop) {
        size_t n = (size_t)(single->stop - at < length ? single->stop - at : length);
        if (!FN(describe_block)(single, at, n, wide, &shift, &is_odd, room, m))
            break;
        at += (int64_t)n;
    }
    m->stopped = at;
}

/* Squares of the difference and of b; nothing where one of the two is not finite. */
#define SQUARES(gap, base, x, y, scale)                                        \
    double p = (x) * (scale), q = (y) * (scale), d = p - q;                    \
    int is_finite = (fabs(p) <= DBL_MAX) & (fabs(q) <= DBL_MAX);               \
    double gap = is_finite ? d * d : 0.0, base = is_finite ? q * q : 0.0

TARGET INLINE void FN(add_along)(const Along *job, int64_t start, size_t n, int wide, double *a_room, double *b_room) {
    const void *a = FN(numbers)(&job->a, start, n, wide, a_room);
    const void *b = FN(numbers)(&job->b, start, n, wide, b_room);
    size_t i = 0;
    while (i < n) {
        int64_t flat = start + (int64_t)i, at = flat / job->inner % job->length;
        int64_t left = job->inner == 1 ? job->length - at : job->inner - flat % job->inner;
        size_t end = (int64_t)(n - i) < left ? n : i + (size_t)left;
        if (job->inner == 1) {
            double *gaps = job->gaps + at, *bases = job->bases + at;
            for (size_t j = 0; j < end - i; j++) {
                SQUARES(gap, base, real(a, i + j, wide), real(b, i + j, wide), job->scale);
                gaps[j] += gap, bases[j] += base;
            }
            i = end;
            continue;
        }
        double gaps[4] = {0}, bases[4] = {0};
        for (; i + 4 <= end; i += 4)
            for (size_t j = 0; j < 4; j++) {
                SQUARES(gap, base, real(a, i + j, wide), real(b, i + j, wide), job->scale);
                gaps[j] += gap, bases[j] += base;
            }
        for (; i < end; i++) {
            SQUARES(gap, base, real(a, i, wide), real(b, i, wide), job->scale);
            gaps[0] += gap, bases[0] += base;
        }
        job->gaps[at] += (gaps[0] + gaps[1]) + (gaps[2] + gaps[3]);
        job->bases[at] += (bases[0] + bases[1]) + (bases[2] + bases[3]);
    }
}

TARGET static void FN(along)(const Along *job) {
    double a_room[BLOCK], b_room[BLOCK];
    int wide = WIDE[job->a.type] || WIDE[job->b.type];
    int64_t length = wide ? BLOCK / 2 : BLOCK;
    for (int64_t at = job->start; at < job->stop; at += length) {
        size_t n = (size_t)(job->stop - at < length ? job->stop - at : length);
        if (wide)
            FN(add_along)(job, at, n, 1, a_room, b_room);
        else
            FN(add_along)(job, at, n, 0, a_room, b_room);
    }
}

#undef SQUARES
#undef FLOAT_CODES

INLINE void FN(store)(double *to, V x) { memcpy(to, &x, sizeof x); }

/* Part of one row: `gaps` and `bases` are those of its columns. */
TARGET INLINE void FN(add_row)(const void *a, const void *b, size_t n, int wide, double *gaps, double *bases,
                               double *row_gap, double *row_base) {
    V all_gaps = FN(set)(0.0), all_bases = all_gaps;
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        V y = FN(load)(b, i, wide), d = FN(load)(a, i, wide) - y, gap = d * d, base = y * y;
        FN(store)(gaps + i, FN(load)(gaps, i, 1) + gap);
        FN(store)(bases + i, FN(load)(bases, i, 1) + base);
        all_gaps += gap, all_bases += base;
    }
    double gap = FN(added)(all_gaps), base = FN(added)(all_bases);
    for (; i < n; i++) {
        double y = real(b, i, wide), d = real(a, i, wide) - y;
        gaps[i] += d * d, bases[i] += y * y;
        gap += d * d, base += y * y;
    }
    *row_gap += gap, *row_base += base;
}

TARGET INLINE void FN(add_rows)(const Axes *job, const char *a, const char *b, int64_t start, size_t n, int wide) {
    const size_t size_of = wide ? sizeof(double) : sizeof(float);
    for (size_t i = 0, end; i < n; i = end) {
        int64_t row = (start + (int64_t)i) / job->columns, column = (start + (int64_t)i) % job->columns;
        int64_t left = job->columns - column;
        end = (int64_t)(n - i) < left ? n : i + (size_t)left;
        FN(add_row)(a + i * size_of, b + i * size_of, end - i, wide, job->column_gaps + column,
                    job->column_bases + column, job->row_gaps + row, job->row_bases + row);
    }
}

TARGET static void FN(axes)(const Axes *job) {
    double a_room[BLOCK], b_room[BLOCK], a_clean[BLOCK], b_clean[BLOCK];
    int wide = WIDE[job->a.type] || WIDE[job->b.type];
    int64_t length = wide ? BLOCK / 2 : BLOCK;
    for (int64_t at = job->start; at < job->stop; at += length) {
        size_t n = (size_t)(job->stop - at < length ? job->stop - at : length);
        const void *a = FN(numbers)(&job->a, at, n, wide, a_room), *b = FN(numbers)(&job->b, at, n, wide, b_room);
        if (!job->are_finite) {
            Sums nothing;
            (wide ? FN(clean_long) : FN(clean_narrow))(a, b, n, a_clean, b_clean, &nothing);
            a = a_clean, b = b_clean;
        }
        if (wide)
            FN(add_rows)(job, a, b, at, n, 1);
        else
            FN(add_rows)(job, a, b, at, n, 0);
    }
}

#undef LANES
#undef TARGET
#undef WIDENS
#undef WIDTH
#undef V
#undef F
#endif
