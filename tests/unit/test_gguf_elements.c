/* GGUF: elements of every type match the definitions. */
#include <multihead/gguf.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/gguf_reference.h"
#include "support/expect.h"
#include "support/gguf_writer.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"

typedef struct kind {
    mha_gguf_type type;
    const char *name;
    int elements, bytes;
} kind;

static const kind kinds[] = {
#define KIND(name, value, elements, bytes) {MHA_GGUF_##name, #name, elements, bytes},
    MHA_GGUF_TYPE_LIST(KIND)
#undef KIND
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static mha_gguf *open_file(gguf_writer *w)
{
    mha_gguf *file = NULL;
    const char *path = temp_write("x.gguf", w->bytes, w->size);
    free(w->bytes);
    expect_ok(mha_gguf_open(path, &file));
    return file;
}

/* ---- codebooks ------------------------------------------------------------------------------- */

/* A block of zeros with scale 1 selects entry n by byte 2 (n mod 256) and byte `high`. Its first
 * elements times `factor`, minus `offset`, are those of the entry. The digests are FNV-1a of the
 * elements in the package gguf 0.19.0. */
typedef struct book {
    mha_gguf_type type;
    int entries, length, high;
    float factor, offset;
    uint64_t digest;
    size_t at;
} book;
static const book all_books[] = {
#define AT(name) offsetof(gguf_codebooks, name)
    {MHA_GGUF_IQ1_S, 2048, 8, 34, 1, 0.125f, 0x6703ed863501ae2e, AT(iq1)},
    {MHA_GGUF_IQ2_XXS, 256, 8, 0, 8, 0, 0xbb4ee025b5ac6e8e, AT(iq2_xxs)},
    {MHA_GGUF_IQ2_XS, 512, 8, 3, 8, 0, 0xc9b1ee61e79909bd, AT(iq2_xs)},
    {MHA_GGUF_IQ2_S, 1024, 8, 66, 8, 0, 0x123edd38a3b62b90, AT(iq2_s)},
    {MHA_GGUF_IQ3_XXS, 256, 4, 0, 4, 0, 0xdfa5dc83d6a155d5, AT(iq3_xxs)},
    {MHA_GGUF_IQ3_S, 512, 4, 66, 1, 0, 0xfa37020c25b44829, AT(iq3_s)},
#undef AT
};

/* Decodes one block per entry. */
static void read_book(const book *b, int8_t *to)
{
    static float block[256];
    gguf_writer w = {0};
    const uint64_t dims[] = {256 * (uint64_t)b->entries};
    int bytes = 0;
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].type == b->type) bytes = kinds[i].bytes;
    gguf_begin(&w, 3, 1, 0);
    gguf_tensor(&w, "x", 1, dims, (uint32_t)b->type, 0);
    gguf_pad(&w, 32);
    for (int n = 0; n < b->entries; n++) {
        unsigned char zeros[128] = {0, 0x3C, (unsigned char)n};
        if (b->high) zeros[b->high] = (unsigned char)(n / 256);
        gguf_raw(&w, zeros, (size_t)bytes);
    }
    mha_gguf *file = open_file(&w);
    for (int n = 0; n < b->entries; n++) {
        expect_ok(mha_gguf_read(file, 0, 256 * n, 256, block));
        for (int i = 0; i < b->length; i++)
            to[n * b->length + i] = (int8_t)(block[i] * b->factor - b->offset);
    }
    mha_gguf_close(file);
}

static void read_books(gguf_codebooks *books)
{
    for (size_t i = 0; i < sizeof all_books / sizeof all_books[0]; i++) {
        const book *b = &all_books[i];
        int8_t *to = (int8_t *)books + b->at;
        uint64_t digest = 0xcbf29ce484222325;
        read_book(b, to);
        for (int k = 0; k < b->entries * b->length; k++)
            digest = (digest ^ (uint8_t)to[k]) * 0x100000001b3;
        if (digest != b->digest)
            fail_msg("codebook %d: digest %llx", (int)i, (unsigned long long)digest);
    }
}

/* ---- elements -------------------------------------------------------------------------------- */

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* Writes a matrix [rows, blocks] of random bytes after another tensor. Alignment 1 permits any
 * offset. */
static mha_gguf *write_blocks(rng *r, const kind *k, int rows, int blocks, uint32_t alignment,
                              unsigned char *bytes)
{
    gguf_writer w = {0};
    const size_t size = (size_t)(rows * blocks * k->bytes);
    const uint64_t dims[] = {(uint64_t)(blocks * k->elements), (uint64_t)rows};
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)rng_next(r);
    gguf_begin(&w, 2 + (uint32_t)rng_between(r, 0, 1), 2, 1);
    gguf_key_u32(&w, "general.alignment", alignment);
    gguf_tensor(&w, "x", 2, dims, (uint32_t)k->type, alignment);
    gguf_tensor(&w, "byte", 0, NULL, MHA_GGUF_I8, 0);
    gguf_pad(&w, alignment);
    gguf_raw(&w, "a", 1);
    gguf_pad(&w, alignment);
    gguf_raw(&w, bytes, size);
    return open_file(&w);
}

static void test_elements_are_those_of_the_definitions(void)
{
    enum { ROWS = 3, BLOCKS = 50, MOST = ROWS * BLOCKS * 256 };
    static unsigned char bytes[MOST * 4];
    static float got[MOST + 1];
    static gguf_codebooks books;
    rng r = rng_make(rng_run_seed(), 1);
    read_books(&books);
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        if (!gguf_has_definition(k->type)) continue;
        for (int n = rng_cases(4, 40); n > 0; n--) {
            const uint32_t alignment = 1u << rng_between(&r, 0, 6);
            mha_gguf *file = write_blocks(&r, k, ROWS, BLOCKS, alignment, bytes);
            const int64_t count = ROWS * BLOCKS * k->elements;
            for (int part = 0; part < 20; part++) {
                const int64_t first = part == 0 ? 0 : rng_between(&r, 0, count);
                const int64_t some = part == 0 ? count : rng_between(&r, 0, count - first);
                got[some] = 1234;
                expect_ok(mha_gguf_read(file, 0, first, some, got));
                assert_true(got[some] == 1234);
                for (int64_t e = 0; e < some; e++) {
                    const int64_t block = (first + e) / k->elements;
                    const float want = gguf_element(k->type, &books, bytes + block * k->bytes,
                                                    (int)((first + e) % k->elements));
                    if (!same_bits(got[e], want)) print_error("%s, element %d\n", k->name, (int)e);
                    assert_true(same_bits(got[e], want));
                }
            }
            mha_gguf_close(file);
        }
    }
}

static void test_refuses_other_types(void)
{
    static unsigned char bytes[2 * 3 * 300];
    rng r = rng_make(rng_run_seed(), 2);
    float to = 5;
    for (int i = 0; i < KINDS; i++) {
        char text[100];
        mha_gguf_tensor tensor;
        mha_gguf *file = write_blocks(&r, &kinds[i], 2, 3, 32, bytes);
        expect_ok(mha_gguf_describe(file, 0, &tensor));
        assert_int_equal(tensor.type, kinds[i].type);
        assert_string_equal(tensor.type_name, kinds[i].name);
        assert_int_equal(tensor.count, 6 * kinds[i].elements);
        assert_int_equal(tensor.bytes, 6 * kinds[i].bytes);
        assert_memory_equal(tensor.data, bytes, (size_t)tensor.bytes);
        snprintf(text, sizeof text, "x.gguf: tensor 'x': elements of type %s are not supported",
                 kinds[i].name);
        if (!gguf_has_definition(kinds[i].type)) {
            expect_error(mha_gguf_read(file, 0, 0, 1, &to), MHA_ERR_UNSUPPORTED, text);
            assert_true(to == 5);
        }
        mha_gguf_close(file);
    }
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_elements_are_those_of_the_definitions),
                  TEST(test_refuses_other_types))
