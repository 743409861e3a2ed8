#include "kernel_test.h"

#include "reference/half_reference.h"

#include <stdio.h>
#include <time.h>

enum { BATCHES = 41, COMPLAINTS = 4 };

static void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "kernel_test: %s\n", what);
    abort();
}

/* ---- random cases -------------------------------------------------------------------------- */

bool kt_chance(kernel_test *t, double probability)
{
    return rng_chance(&t->r, probability) && !t->timed;
}

int64_t kt_size(kernel_test *t, int64_t most, int64_t typical)
{
    static const int64_t widths[] = {4, 8, 16, 32, 64, 512};
    if (t->timed) return typical;
    int64_t n = rng_between(&t->r, 1, most);
    if (kt_chance(t, 0.2)) n = rng_between(&t->r, 1, 20);
    if (kt_chance(t, 0.5)) {
        const int64_t width = RNG_PICK(&t->r, widths);
        n = (n + width - 1) / width * width + rng_between(&t->r, -1, 1);
    }
    return n < 1 ? 1 : n > most ? most : n;
}

int kt_rows(kernel_test *t)
{
    t->rows = (int)rng_between(&t->r, 1, kt_chance(t, 0.8) ? 12 : 14);
    if (t->timed) t->rows = 12;
    return t->rows;
}

int64_t kt_stride(kernel_test *t, int64_t cols)
{
    return cols + (kt_chance(t, 0.6) ? rng_between(&t->r, 1, 40) : 0);
}

float kt_number(kernel_test *t)
{
    if (t->timed || kt_chance(t, 0.9)) return rng_normal(&t->r);
    switch (rng_between(&t->r, 0, 4)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return 1.5f;
    case 3: return (float)rng_between(&t->r, -3, 3);
    default: return rng_normal(&t->r) * 0x1p-135f;
    }
}

void kt_fill_rows(kernel_test *t, float *x, int64_t rows, int64_t cols, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) x[r * stride + i] = kt_number(t);
}

void kt_fill(kernel_test *t, float *x, int64_t n)
{
    kt_fill_rows(t, x, 1, n, n);
}

mha_dtype kt_type(kernel_test *t)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    return t->timed ? MHA_F32 : RNG_PICK(&t->r, types);
}

void kt_fill_typed(kernel_test *t, mha_dtype type, void *x, int64_t rows, int64_t cols,
                   int64_t stride, double bad)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            const float value = kt_chance(t, bad) ? RNG_PICK(&t->r, strange) : kt_number(t);
            if (type == MHA_F32)
                ((float *)x)[r * stride + i] = value;
            else
                ((uint16_t *)x)[r * stride + i] = half_nearest(type, (double)value);
        }
}

double kt_element(mha_dtype type, const void *x, int64_t i)
{
    return type == MHA_F32 ? (double)((const float *)x)[i]
                           : half_value(type, ((const uint16_t *)x)[i]);
}

/* ---- memory -------------------------------------------------------------------------------- */

static void *make(kernel_test *t, kt_area *areas, int *count, bool compared, mha_dtype type,
                  const int64_t shape[2], int64_t stride)
{
    must(*count < KT_MOST, "raise KT_MOST");
    kt_area *area = &areas[(*count)++];
    const bool front = rng_chance(&t->r, 0.3);
    *area = (kt_area){
        guarded_rows(type, shape[0], shape[1], stride, front ? LAYOUT_FRONT : LAYOUT_CONTIGUOUS),
        compared};
    return area->memory.view.data;
}

void *kt_input(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride)
{
    return make(t, t->inputs, &t->input_count, false, type, (const int64_t[]){rows, cols}, stride);
}

float *kt_floats(kernel_test *t, int64_t n)
{
    return kt_input(t, MHA_F32, 1, n, n);
}

float *kt_numbers(kernel_test *t, int64_t rows, int64_t cols, int64_t stride)
{
    float *x = kt_input(t, MHA_F32, rows, cols, stride);
    kt_fill_rows(t, x, rows, cols, stride);
    return x;
}

void *kt_output(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride)
{
    return make(t, t->areas, &t->area_count, true, type, (const int64_t[]){rows, cols}, stride);
}

void *kt_scratch(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride)
{
    return make(t, t->areas, &t->area_count, false, type, (const int64_t[]){rows, cols}, stride);
}

void *kt_in_out(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride,
                const void *from)
{
    unsigned char *out = kt_output(t, type, rows, cols, stride);
    const size_t size = mha_dtype_size(type);
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + (size_t)(r * stride) * size,
               (const unsigned char *)from + (size_t)(r * stride) * size, (size_t)cols * size);
    return out;
}

void *kt_plain(kernel_test *t, size_t bytes)
{
    must(t->plain_count < KT_MOST, "raise KT_MOST");
    void *memory = calloc(1, bytes + 1);
    must(memory != NULL, "no memory");
    return t->plain[t->plain_count++] = memory;
}

const float *kt_nowhere(kernel_test *t)
{
    kt_input(t, MHA_F32, 1, 1, 1);
    const guarded *g = &t->inputs[t->input_count - 1].memory;
    return (const float *)(const void *)(g->map + g->bytes);
}

static void free_areas(kt_area *areas, int *count)
{
    for (int i = 0; i < *count; i++) guarded_free(&areas[i].memory);
    *count = 0;
}

/* ---- bits ---------------------------------------------------------------------------------- */

static void add_bits(kt_bits *bits, const void *x, size_t size)
{
    if (bits->size + size > bits->room) {
        bits->room = 2 * (bits->size + size);
        bits->at = realloc(bits->at, bits->room);
        must(bits->at != NULL, "no memory");
    }
    memcpy(bits->at + bits->size, x, size);
    bits->size += size;
}

void kt_bits_of(kernel_test *t, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) add_bits(&t->bits, isnan(x[i]) ? &(float){NAN} : &x[i], 4);
}

/* Compares one element of an area. NaNs are equal. */
static void element_bits(kernel_test *t, const mha_tensor *view, const int64_t index[2])
{
    const void *x = guarded_element(view, index);
    if (view->dtype == MHA_F32)
        kt_bits_of(t, x, 1);
    else if (view->dtype == MHA_F16 || view->dtype == MHA_BF16)
        add_bits(&t->bits, half_is_nan(view->dtype, *(const uint16_t *)x) ? "nan" : x, 2);
    else
        add_bits(&t->bits, x, mha_dtype_size(view->dtype));
}

static void look_at_areas(kernel_test *t)
{
    for (int i = 0; i < t->area_count; i++) {
        const guarded *g = &t->areas[i].memory;
        kt_that(t, guarded_gaps_intact(g), "nothing but elements is written: area", i, 0);
        if (!t->areas[i].compared || !t->exact[t->table] || t->undefined) continue;
        int64_t index[MHA_MAX_DIMS] = {0};
        do element_bits(t, &g->view, index);
        while (guarded_next(&g->view, index));
    }
}

static void compare_bits(kernel_test *t)
{
    if (!t->exact[t->table] || t->undefined) return;
    if (!t->first_name) {
        kt_bits kept = t->first_bits;
        t->first_bits = t->bits;
        t->bits = kept;
        t->first_name = t->names[t->table];
        return;
    }
    int64_t at = 0;
    const bool alike = t->bits.size == t->first_bits.size;
    while (alike && at < (int64_t)t->bits.size && t->bits.at[at] == t->first_bits.at[at]) at++;
    kt_that(t, alike && at == (int64_t)t->bits.size,
            "the bits are those of the first instruction set: byte", at, (int64_t)t->bits.size);
}

/* ---- instruction sets ---------------------------------------------------------------------- */

static const struct {
    mha_isa isa;
    const char *name;
} isas[] = {
#define ISA_ROW(isa, value, text) {isa, text},
    MHA_ISA_LIST(ISA_ROW)
#undef ISA_ROW
};

#ifdef KT_SCALAR
extern const mhai_kernels mhai_kernels_scalar;
extern const mhai_int8_kernels mhai_int8_kernels_scalar;
static const bool has_scalar = true;
#else
static const bool has_scalar = false;
#endif

#ifdef KT_EMULATED
#include "tiles_trapped.h"

extern const mhai_int8_kernels mhai_int8_kernels_emulated;
#if defined(__x86_64__)
extern const mhai_int8_kernels mhai_int8_kernels_amx;
#endif
#endif

/* A processor with AVX-512 but without VNNI uses AVX2's int8 kernels. They are not tested twice. */
static bool is_listed(const kernel_test *t, const void *table)
{
    for (int i = 0; i < t->count; i++)
        if (t->tables[i] == table) return true;
    return false;
}

static const void *enter_table(kernel_test *t)
{
    while (t->table < t->count && t->most_rows[t->table] < t->rows) t->table++;
    if (t->table == t->count) return NULL;
    snprintf(t->place, sizeof t->place, "%s on %s", t->slot, t->names[t->table]);
    t->bits.size = 0;
    return t->tables[t->table];
}

/* Frees the case's memory after its last table. There may be no table with so many rows. */
static const void *enter_or_leave(kernel_test *t)
{
    const void *table = enter_table(t);
    if (table) return table;
    free_areas(t->inputs, &t->input_count);
    while (t->plain_count > 0) free(t->plain[--t->plain_count]);
    return NULL;
}

static void add_table(kernel_test *t, const char *name, const void *table, int rows, bool exact)
{
    if (is_listed(t, table)) return;
    t->exact[t->count] = exact;
    t->most_rows[t->count] = rows;
    t->names[t->count] = name;
    t->tables[t->count++] = table;
}

const void *kt_first(kernel_test *t, bool int8)
{
    t->count = t->table = 0;
    t->first_name = NULL;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (isas[i].isa == MHA_ISA_AUTO || !mha_isa_available(isas[i].isa)) continue;
        const mhai_kernels *table = mhai_kernels_for(isas[i].isa);
        const void *used = int8 ? (const void *)mhai_int8_kernels_for(isas[i].isa) : table;
        add_table(t, isas[i].name, used, table->tile_rows,
                  int8 || has_scalar || isas[i].isa != MHA_ISA_PORTABLE);
    }
#ifdef KT_SCALAR
    add_table(t, "scalar",
              int8 ? (const void *)&mhai_int8_kernels_scalar : (const void *)&mhai_kernels_scalar,
              mhai_kernels_scalar.tile_rows, true);
#endif
#ifdef KT_EMULATED
    if (int8 && !t->timed)
        add_table(t, "emulated tiles", &mhai_int8_kernels_emulated, MHAI_MAX_ROWS, true);
#if defined(__x86_64__)
    if (int8 && !t->timed && tiles_trapped()) {
        must(mhai_int8_kernels_for(MHA_ISA_AMX) == &mhai_int8_kernels_amx,
             "tiles do not give the bits of vectors");
        add_table(t, "trapped tiles", &mhai_int8_kernels_amx, MHAI_MAX_ROWS, true);
    }
#endif
#endif
    for (int i = 0; i < t->input_count; i++) guarded_protect(&t->inputs[i].memory, true);
    return enter_or_leave(t);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_time(kernel_test *t)
{
    qsort(t->times, BATCHES, sizeof *t->times, by_size);
    const double median = t->times[BATCHES / 2];
    printf("%-20s %-9s %12.1f ns  +- %4.1f %%", t->slot, t->names[t->table], median,
           100 * (t->times[BATCHES * 3 / 4] - t->times[BATCHES / 4]) / 2 / median);
    if (t->flops > 0) printf("  %8.2f GFLOP/s", t->flops / median);
    if (t->bytes > 0) printf("  %8.2f GB/s", t->bytes / median);
    printf("\n");
}

const void *kt_next(kernel_test *t)
{
    look_at_areas(t);
    compare_bits(t);
    if (t->timed) print_time(t);
    free_areas(t->areas, &t->area_count);
    t->table++;
    return enter_or_leave(t);
}

/* ---- calls --------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
#ifdef __EMSCRIPTEN__
    clock_gettime(CLOCK_MONOTONIC, &time);
#else
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
#endif
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

void kt_start(kernel_test *t)
{
    t->passes = t->batches = t->left = 0;
    t->batch = 1;
    if (!t->timed) return;
    t->left = t->batch;
    t->start = now();
}

/* Batches are so long that the clock's resolution does not matter, and their number suffices for
 * the median. */
bool kt_again(kernel_test *t)
{
    if (!t->timed) return t->passes++ == 0;
    if (t->left-- > 0) return true;
    const double time = now() - t->start;
    if (time < 100e3) {
        t->batch *= 2;
        t->batches = 0;
    } else {
        t->times[t->batches++] = time / t->batch;
        if (t->batches == BATCHES) return false;
    }
    t->left = t->batch - 1;
    t->start = now();
    return true;
}

/* ---- comparing ----------------------------------------------------------------------------- */

static void complain(kernel_test *t, const char *what, int64_t i, int64_t j)
{
    t->failed = true;
    if (t->complaints++ < COMPLAINTS)
        fprintf(stderr, "%s: %s [%lld][%lld]", t->place, what, (long long)i, (long long)j);
}

void kt_that(kernel_test *t, bool holds, const char *what, int64_t i, int64_t j)
{
    if (holds || t->timed) return;
    complain(t, what, i, j);
    if (t->complaints <= COMPLAINTS) fprintf(stderr, ": does not hold\n");
}

void kt_same(kernel_test *t, double got, double expected, const char *what, int64_t i, int64_t j)
{
    const bool same =
        isnan(expected) ? isnan(got) : got == expected && signbit(got) == signbit(expected);
    t->equal++;
    if (same || t->timed) return;
    complain(t, what, i, j);
    if (t->complaints <= COMPLAINTS) fprintf(stderr, " is %.9g, not %.9g\n", got, expected);
}

void kt_close(kernel_test *t, double got, double exact, double bound, const char *what, int64_t i,
              int64_t j)
{
    if (t->timed || (isnan(got) && isnan(exact))) return;
    bound *= 1.001;
    if (!isnan(exact) && tally_compare(&t->tally, got, exact, bound)) return;
    complain(t, what, i, j);
    if (t->complaints <= COMPLAINTS)
        fprintf(stderr, " is %.9g, exact %.9g, off by %.3g, bound %.3g\n", got, exact,
                fabs(got - exact), bound);
}
