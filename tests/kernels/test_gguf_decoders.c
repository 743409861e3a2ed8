/* GGUF blocks: every instruction set is bit-identical to portable C, for any blocks.
 * tests/unit/test_gguf_elements.c compares the best one with the formulas. */
#include "io/gguf_blocks.h"
#include "support/guarded.h"
#include "support/rng.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 9, MOST_BYTES = BLOCKS * 1024, MOST = BLOCKS * 256 };

typedef struct table {
    const char *name;
    mha_isa isa;
    const mhai_gguf_codec *codecs;
} table;

static const table tables[] = {
    {"portable", MHA_ISA_PORTABLE, mhai_gguf_codecs_portable},
#if defined(__x86_64__)
    {"avx2", MHA_ISA_AVX2, mhai_gguf_codecs_avx2},
    {"avx512", MHA_ISA_AVX512, mhai_gguf_codecs_avx512},
#endif
};

/* A NaN of a block may come from its scale or its offset, which compilers may add in either order,
 * so only its payload may differ. */
static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* Elements without a block have the same bits, NaN included. */
static bool same_element(int type, float a, float b)
{
    const mhai_gguf_kind *kind = mhai_gguf_find_kind((uint32_t)type); /* NULL: float8 */
    return kind && kind->elements > 1 ? same(a, b) : memcmp(&a, &b, sizeof a) == 0;
}

static void decoders_have_the_same_bits(void)
{
    static unsigned char bytes[MOST_BYTES + 1];
    static float portable[MOST], found[MOST];
    int compared = 0;
    for (int type = 0; type < MHAI_GGUF_CODECS_COUNT; type++)
        for (int i = 0; i < rng_cases(30, 1000); i++) {
            const mhai_gguf_codec *plain = &mhai_gguf_codecs_portable[type];
            rng r = rng_make(rng_run_seed(), (uint64_t)(1000 * type + i));
            if (!plain->decode) continue;
            const mhai_gguf_kind *kind = mhai_gguf_find_kind((uint32_t)type); /* NULL: float8 */
            const int64_t each = kind ? kind->elements : 1, skip = i % 2;
            const int64_t count = rng_between(&r, 0, each == 1 ? MOST : BLOCKS);
            const int64_t elements = count * each;
            for (int k = 0; k <= MOST_BYTES; k++) bytes[k] = (unsigned char)rng_next(&r);
            plain->decode(bytes + skip, count, portable);
            for (size_t t = 1; t < sizeof tables / sizeof tables[0]; t++) {
                if (!mha_isa_available(tables[t].isa)) continue;
                memset(found, 0xAA, sizeof found);
                assert_non_null(tables[t].codecs[type].decode);
                tables[t].codecs[type].decode(bytes + skip, count, found);
                for (int64_t e = 0; e < elements; e++)
                    if (!same_element(type, found[e], portable[e]))
                        fail_msg("type %d, %s: element %d is %a, %a in portable C", type,
                                 tables[t].name, (int)e, (double)found[e], (double)portable[e]);
                for (int64_t e = elements; e < MOST; e++)
                    assert_memory_equal(&found[e], "\xAA\xAA\xAA\xAA", 4);
                compared++;
            }
        }
    printf("  %d runs compared\n", compared);
}

/* Rows of count blocks, each placed at the end of readable memory. */
static void expect_coded(const table *of, int type, rng *r, int64_t count)
{
    static float expected[MHA_CODED_COLUMNS];
    static mha_coded coded;
    const mhai_gguf_kind *kind = mhai_gguf_find_kind((uint32_t)type);
    const int64_t bytes = count * kind->bytes;
    guarded memory[MHA_CODED_ROWS];
    const unsigned char *rows[MHA_CODED_ROWS];
    for (int i = 0; i < MHA_CODED_ROWS; i++) {
        memory[i] = guarded_make(r, MHA_U8, 1, &bytes, LAYOUT_CONTIGUOUS);
        unsigned char *row = memory[i].view.data;
        for (int64_t k = 0; k < bytes; k++) row[k] = (unsigned char)rng_next(r);
        rows[i] = row;
    }
    of->codecs[type].code(rows, count, 1 << 20, &coded);
    for (int i = 0; i < MHA_CODED_ROWS; i++) {
        mhai_gguf_codecs_portable[type].decode(rows[i], count, expected);
        for (int64_t e = 0; e < count * kind->elements; e++) {
            const int64_t run = e / coded.run;
            const float product = (float)coded.number[e / 4][i][e % 4] * coded.scale[run][i];
            const float offset = coded.offset[run][i];
            if (!same(product + offset, expected[e]))
                fail_msg("type %d, %s: %d blocks, row %d, element %d", type, of->name, (int)count,
                         i, (int)e);
            assert_true(coded.has_offsets || (offset == 0 && signbit(offset)));
        }
        guarded_free(&memory[i]);
    }
}

static void coded_rows_are_those_decoded(void)
{
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (int type = 0; type < MHAI_GGUF_CODECS_COUNT; type++) {
            if (!tables[t].codecs[type].code || !mha_isa_available(tables[t].isa)) continue;
            rng r = rng_make(rng_run_seed(), (uint64_t)type);
            const int64_t elements = mhai_gguf_find_kind((uint32_t)type)->elements;
            for (int64_t count = 1; count <= MHA_CODED_COLUMNS / elements; count++)
                expect_coded(&tables[t], type, &r, count);
        }
}

/* The value of a code with this many bits of exponent and mantissa; E8M0 has no sign. */
static double eight_bits(int exponents, int mantissas, int code)
{
    const int mantissa = code % (1 << mantissas),
              exponent = code >> mantissas & ((1 << exponents) - 1);
    const int bias = (1 << (exponents - 1)) - 1, top = (1 << exponents) - 1;
    const double sign = exponents + mantissas < 8 && code > 127 ? -1 : 1;
    if (exponents == 8) return exponent == 255 ? NAN : ldexp(1, exponent - 127);
    if (exponents == 5 && exponent == top) return mantissa ? NAN : sign * INFINITY;
    if (exponents == 4 && code % 128 == 127) return NAN;
    return exponent ? sign * ldexp((1 << mantissas) + mantissa, exponent - bias - mantissas)
                    : sign * ldexp(mantissa, 1 - bias - mantissas);
}

static void eight_bit_floats_are_those_of_the_formats(void)
{
    static const int types[][3] = {
        {MHAI_F8_E4M3, 4, 3}, {MHAI_F8_E5M2, 5, 2}, {MHAI_F8_E8M0, 8, 0}};
    unsigned char codes[256];
    float found[256];
    for (int i = 0; i < 256; i++) codes[i] = (unsigned char)i;
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (int k = 0; k < 3 && mha_isa_available(tables[t].isa); k++) {
            tables[t].codecs[types[k][0]].decode(codes, 256, found);
            for (int i = 0; i < 256; i++)
                if (!same(found[i], (float)eight_bits(types[k][1], types[k][2], i)))
                    fail_msg("%s: E%dM%d code %d is %a", tables[t].name, types[k][1], types[k][2],
                             i, (double)found[i]);
        }
}

RUN_TESTS(TEST(eight_bit_floats_are_those_of_the_formats), TEST(decoders_have_the_same_bits),
          TEST(coded_rows_are_those_decoded))
