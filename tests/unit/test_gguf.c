/* GGUF: metadata is read as written, parts are joined, and a hostile file gives a status and a
 * message of one line. */
#include <multihead/gguf.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/gguf_writer.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/temp_files.h"

/* Writes the writer's contents to a file and frees its memory. */
static const char *put(gguf_writer *w)
{
    const char *path = temp_write("x.gguf", w->bytes, w->size);
    free(w->bytes);
    *w = (gguf_writer){0};
    return path;
}

static mha_gguf *open_file(const char *path)
{
    mha_gguf *file = NULL;
    expect_ok(mha_gguf_open(path, &file));
    return file;
}

/* ---- A valid file with fields to be spoiled -------------------------------------------------- */

typedef struct fields {
    const char *magic;
    uint32_t version;
    uint64_t tensors, keys;
    uint32_t alignment_type, alignment;
    uint64_t key_bytes; /* length of 'general.name' */
    char key[16];
    uint32_t value_type;
    uint64_t value_bytes; /* length of "tiny" */
    uint32_t array_type;
    uint64_t array_count; /* number of elements, three */
    char strings_key[8];
    uint64_t strings, string_bytes;
    uint64_t name_bytes;
    char names[2][4];
    uint32_t ndim;
    uint64_t dims[5];
    uint32_t type;
    uint64_t offsets[2];
    size_t data_bytes;
} fields;

static const fields all_right = {.magic = "GGUF",
                                 .version = 3,
                                 .tensors = 2,
                                 .keys = 4,
                                 .alignment_type = GGUF_U32,
                                 .alignment = 16,
                                 .key_bytes = 12,
                                 .key = "general.name",
                                 .value_type = GGUF_STRING,
                                 .value_bytes = 4,
                                 .array_type = GGUF_U32,
                                 .array_count = 3,
                                 .strings_key = "strings",
                                 .strings = 2,
                                 .string_bytes = 3,
                                 .name_bytes = 3,
                                 .names = {"abc", "b"},
                                 .ndim = 2,
                                 .dims = {32, 2, 1, 1, 1},
                                 .type = MHA_GGUF_Q4_0,
                                 .offsets = {16, 0},
                                 .data_bytes = 52};

static const char *build(const fields *f)
{
    gguf_writer w = {0};
    gguf_raw(&w, f->magic, 4);
    gguf_u32(&w, f->version);
    gguf_u64(&w, f->tensors);
    gguf_u64(&w, f->keys);
    gguf_u64(&w, f->key_bytes);
    gguf_raw(&w, f->key, 12);
    gguf_u32(&w, f->value_type);
    gguf_u64(&w, f->value_bytes);
    gguf_raw(&w, "tiny", 4);
    gguf_key_array(&w, "numbers", f->array_type, f->array_count);
    for (uint32_t i = 1; i < 4; i++) gguf_u32(&w, i);
    gguf_key_array(&w, f->strings_key, GGUF_STRING, f->strings);
    gguf_u64(&w, f->string_bytes);
    gguf_raw(&w, "one", 3);
    gguf_string(&w, "");
    gguf_key(&w, "general.alignment", f->alignment_type);
    gguf_u32(&w, f->alignment);
    gguf_u64(&w, f->name_bytes);
    gguf_raw(&w, f->names[0], 3);
    gguf_u32(&w, f->ndim);
    gguf_raw(&w, f->dims, (f->ndim < 5 ? f->ndim : 5) * sizeof f->dims[0]);
    gguf_u32(&w, f->type);
    gguf_u64(&w, f->offsets[0]);
    gguf_tensor(&w, f->names[1], 1, (uint64_t[]){4}, MHA_GGUF_F32, f->offsets[1]);
    gguf_pad(&w, 16);
    for (size_t i = 0; i < f->data_bytes; i++) gguf_raw(&w, "d", 1);
    return put(&w);
}

static mha_status open_spoiled(const fields *f)
{
    mha_gguf *file = NULL;
    const mha_status status = mha_gguf_open(build(f), &file);
    if (status == MHA_OK)
        mha_gguf_close(file);
    else
        assert_null(file);
    return status;
}

#define BAD MHA_ERR_FORMAT
#define HOSTILE                                                                                    \
    MISUSE(BAD, "x.gguf: does not begin with GGUF", f->magic = "GGML")                             \
    MISUSE(MHA_ERR_UNSUPPORTED, "is GGUF of version 1, supported are 2 and 3", f->version = 1)     \
    MISUSE(MHA_ERR_UNSUPPORTED, "is GGUF of version 4", f->version = 4)                            \
    MISUSE(MHA_ERR_UNSUPPORTED, "is GGUF of version 0", f->version = 0)                            \
    MISUSE(MHA_ERR_UNSUPPORTED, "is big-endian", f->version = 3u << 24)                            \
    MISUSE(MHA_ERR_SIZE, "claims 4294967296 tensors", f->tensors = 1ull << 32)                     \
    MISUSE(MHA_ERR_SIZE, "claims 18446744073709551615 keys", f->keys = UINT64_MAX)                 \
    MISUSE(BAD, "tensor 3 of 2147483647: ", f->tensors = INT32_MAX)                                \
    MISUSE(BAD, "tensor 1 of 2", f->keys = 5)                                                      \
    MISUSE(MHA_ERR_SIZE, "tensor 1 of 2 ('general.alignment')", f->keys = 3)                       \
    MISUSE(BAD, "key 1 of 4: its name has 0 bytes, expected 1 to 65535", f->key_bytes = 0)         \
    MISUSE(BAD, "its name has 65536 bytes", f->key_bytes = 65536)                                  \
    MISUSE(BAD, "key 1 of 4: needs 60000 x 1 bytes at byte 32", f->key_bytes = 60000)              \
    MISUSE(BAD, "its name has 18446744073709551615 bytes", f->key_bytes = UINT64_MAX)              \
    MISUSE(BAD, "key 1 of 4: its name is not valid UTF-8", f->key[2] = '\xff')                     \
    MISUSE(BAD, "key 1 of 4: its name is not valid UTF-8", f->key[11] = '\xc3')                    \
    MISUSE(BAD, "its name holds a zero byte", f->key[2] = 0)                                       \
    MISUSE(BAD, "('general.name'): unknown type 13 of a value", f->value_type = 13)                \
    MISUSE(BAD, "unknown type 4294967295 of a value", f->value_type = UINT32_MAX)                  \
    MISUSE(BAD, "('general.name'): needs 18446744073709551615 x 1 bytes",                          \
           f->value_bytes = UINT64_MAX)                                                            \
    MISUSE(BAD, "key 2 of 4 ('numbers'): unknown type 99", f->array_type = 99)                     \
    MISUSE(MHA_ERR_UNSUPPORTED, "('numbers'): is an array of arrays", f->array_type = GGUF_ARRAY)  \
    MISUSE(BAD, "('numbers'): needs 4611686018427387905 x 4 bytes",                                \
           f->array_count = (1ull << 62) + 1)                                                      \
    MISUSE(BAD, "('numbers'): needs 1000 x 4 bytes", f->array_count = 1000)                        \
    MISUSE(BAD, "('strings'): needs 2305843009213693953 x 8 bytes", f->strings = (1ull << 61) + 1) \
    MISUSE(BAD, "('strings'): needs ", f->strings = 5)                                             \
    MISUSE(BAD, "('strings'): needs 9223372036854775808 x 1", f->string_bytes = 1ull << 63)        \
    MISUSE(BAD, "general.alignment is not a power of two", f->alignment = 0)                       \
    MISUSE(BAD, "general.alignment is not a power of two", f->alignment = 24)                      \
    MISUSE(BAD, "general.alignment is not a power of two of type U32", f->alignment_type = 5)      \
    MISUSE(BAD, "tensor 1 of 2 ('abc'): needs 36 bytes from byte 2147483648 + 0 on",               \
           f->alignment = 1u << 31;                                                                \
           f->offsets[0] = 0)                                                                      \
    MISUSE(BAD, "the key 'numbers' occurs twice", strcpy(f->strings_key, "numbers"))               \
    MISUSE(BAD, "tensor 1 of 2: its name has 0 bytes", f->name_bytes = 0)                          \
    MISUSE(BAD, "tensor 1 of 2: its name is not valid UTF-8", f->names[0][0] = '\x80')             \
    MISUSE(BAD, "the tensor 'abc' occurs twice", strcpy(f->names[1], "abc"))                       \
    MISUSE(BAD, "tensor 1 of 2 ('abc'): has 5 dimensions, at most 4", f->ndim = 5)                 \
    MISUSE(BAD, "has 4294967295 dimensions", f->ndim = UINT32_MAX)                                 \
    MISUSE(BAD, "('abc'): one of its dimensions is 0", f->dims[0] = 0)                             \
    MISUSE(BAD, "one of its dimensions is 0", f->dims[1] = 0)                                      \
    MISUSE(MHA_ERR_SIZE, "('abc'): more elements than 63 bits", f->dims[1] = 1ull << 58)           \
    MISUSE(MHA_ERR_SIZE, "more elements than 63 bits", f->dims[1] = 1ull << 63)                    \
    MISUSE(MHA_ERR_SIZE, "more elements than 63 bits", f->dims[0] = f->dims[1] = UINT32_MAX)       \
    MISUSE(MHA_ERR_SIZE, "more bytes than 63 bits", f->dims[0] = 1ull << 61; f->dims[1] = 3;       \
           f->type = MHA_GGUF_F32)                                                                 \
    MISUSE(BAD, "rows of 33 elements are not whole blocks of Q4_0, which have 32",                 \
           f->dims[0] = 33)                                                                        \
    MISUSE(BAD, "not whole blocks of Q6_K", f->type = MHA_GGUF_Q6_K)                               \
    MISUSE(BAD, "not whole blocks of Q4_0", f->ndim = 0)                                           \
    MISUSE(MHA_ERR_UNSUPPORTED, "('abc'): unknown type 4 of elements", f->type = 4)                \
    MISUSE(MHA_ERR_UNSUPPORTED, "unknown type 42 of elements", f->type = 42)                       \
    MISUSE(MHA_ERR_UNSUPPORTED, "unknown type 4294967295", f->type = UINT32_MAX)                   \
    MISUSE(BAD, "('abc'): its offset 17 is not a multiple of the alignment 16",                    \
           f->offsets[0] = 17)                                                                     \
    MISUSE(BAD, "('abc'): needs 36 bytes from byte", f->offsets[0] = 32)                           \
    MISUSE(BAD, "+ 9223372036854775792 on", f->offsets[0] = INT64_MAX - 15)                        \
    MISUSE(MHA_ERR_SIZE, "more bytes than 63 bits", f->offsets[0] = 1ull << 63)                    \
    MISUSE(BAD, "('abc'): needs 36 bytes from byte", f->data_bytes = 51)                           \
    MISUSE(BAD, "its data overlaps another tensor's", f->offsets[1] = 16)                          \
    MISUSE(BAD, "tensor 2 of 2 ('b'): its data overlaps", f->offsets[1] = 32)                      \
    MISUSE(BAD, "tensor 1 of 2 ('abc'): its data overlaps", f->offsets[0] = 0)

DEFINE_SPOIL(fields *f, spoil, HOSTILE)

static void test_refuses_hostile_files(void)
{
    fields f = all_right;
    expect_ok(open_spoiled(&f));
    const size_t rows = spoil(&f, SIZE_MAX).rows;
    for (size_t i = 0; i < rows; i++) {
        f = all_right;
        const expected_refusal wanted = spoil(&f, i);
        expect_row(i, open_spoiled(&f), wanted.status, wanted.part);
        assert_non_null(strstr(mha_error_detail(), "x.gguf: "));
    }
}

static void test_refuses_every_truncation(void)
{
    size_t size;
    char *good = temp_read(build(&all_right), &size);
    for (size_t length = 0; length < size; length++) {
        mha_gguf *file = NULL;
        assert_int_equal(mha_gguf_open(temp_write("x.gguf", good, length), &file), MHA_ERR_FORMAT);
        assert_non_null(strstr(mha_error_detail(), "x.gguf: "));
        assert_non_null(strstr(mha_error_detail(), "truncated"));
    }
    free(good);
}

static void test_refuses_files(void)
{
    mha_gguf *file = NULL;
    expect_error(mha_gguf_open(temp_path("missing"), &file), MHA_ERR_FILE, "no such file");
    expect_error(mha_gguf_open(temp_path("."), &file), MHA_ERR_FILE, "a folder");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    expect_error(mha_gguf_open(temp_path("fifo"), &file), MHA_ERR_FILE, "a FIFO");
    unlink(temp_path("fifo"));
    expect_error(mha_gguf_open(NULL, &file), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_open("x", NULL), MHA_ERR_NULL, "NULL");
    assert_null(file);
    mha_gguf_close(NULL);
}

/* Read everything that views cover. */
static unsigned touch(const mha_gguf *file)
{
    unsigned sum = 0;
    for (int64_t i = 0; i < mha_gguf_count(file); i++) {
        mha_gguf_tensor tensor;
        float x;
        expect_ok(mha_gguf_describe(file, i, &tensor));
        assert_int_equal(mha_gguf_find(file, tensor.name), i);
        for (int64_t b = 0; b < tensor.bytes; b++) sum += ((const unsigned char *)tensor.data)[b];
        for (int64_t e = 0; e < tensor.count; e++)
            if (mha_gguf_read(file, i, e, 1, &x) != MHA_OK) break;
    }
    for (int64_t i = 0; i < mha_gguf_key_count(file); i++) {
        mha_gguf_value value;
        expect_ok(mha_gguf_value_at(file, i, &value));
        assert_int_equal(mha_gguf_key_find(file, value.key), i);
        for (int64_t e = 0; e < value.count; e++) {
            const char *text;
            size_t size = 0;
            double real = 0;
            bool yes = false;
            if (mha_gguf_string(&value, e, &text, &size) == MHA_OK)
                for (size_t b = 0; b < size; b++) sum += (unsigned char)text[b];
            else if (mha_gguf_real(&value, e, &real) != MHA_OK &&
                     mha_gguf_bool(&value, e, &yes) != MHA_OK)
                sum++;
        }
    }
    return sum;
}

static void test_mutations(void)
{
    static unsigned char bytes[1024];
    size_t size;
    char *good = temp_read(build(&all_right), &size);
    int opened = 0, refused = 0;
    assert_true(size <= sizeof bytes);
    for (uint32_t seed = 0; seed < 6000; seed++) {
        size_t length = size;
        memcpy(bytes, good, size);
        mutate(bytes, &length, seed);
        mha_gguf *file = NULL;
        const mha_status status = mha_gguf_open(temp_write("m.gguf", bytes, length), &file);
        if (status == MHA_OK) {
            touch(file);
            opened++;
        } else {
            assert_true(status == MHA_ERR_FORMAT || status == MHA_ERR_SIZE ||
                        status == MHA_ERR_UNSUPPORTED);
            assert_non_null(strstr(mha_error_detail(), "m.gguf: "));
            refused++;
        }
        mha_gguf_close(file);
    }
    print_message("%d mutants opened, %d refused\n", opened, refused);
    assert_true(opened > 300 &&
                refused > 1000); /* otherwise the mutations are too mild or too strong */
    free(good);
}

/* ---- Valid files ----------------------------------------------------------------------------- */

static void test_describes_tensors(void)
{
    fields f = all_right;
    mha_gguf_tensor tensor;
    float to[64];
    for (f.version = 2; f.version <= 3; f.version++) {
        mha_gguf *file = open_file(build(&f));
        assert_int_equal(mha_gguf_count(file), 2);
        assert_int_equal(mha_gguf_find(file, "abc"), 0);
        assert_int_equal(mha_gguf_find(file, "b"), 1);
        assert_int_equal(mha_gguf_find(file, "a"), -1);
        assert_int_equal(mha_gguf_find(file, ""), -1);
        assert_int_equal(mha_gguf_find(file, NULL), -1);
        expect_ok(mha_gguf_describe(file, 0, &tensor));
        assert_string_equal(tensor.name, "abc");
        assert_string_equal(tensor.type_name, "Q4_0");
        assert_int_equal(tensor.ndim, 2);
        assert_memory_equal(tensor.dims, all_right.dims, sizeof tensor.dims);
        assert_int_equal(tensor.count, 64);
        assert_int_equal(tensor.bytes, 36);
        assert_int_equal(tensor.offset % 16, 0);
        expect_error(mha_gguf_describe(file, 2, &tensor), MHA_ERR_ARGUMENT, "index 2 of 2");
        expect_error(mha_gguf_describe(file, -1, &tensor), MHA_ERR_ARGUMENT, "index -1");
        expect_error(mha_gguf_describe(file, 0, NULL), MHA_ERR_NULL, "NULL");
        expect_error(mha_gguf_describe(NULL, 0, &tensor), MHA_ERR_NULL, "NULL");
        expect_ok(mha_gguf_read(file, 0, 64, 0, NULL));
        expect_error(mha_gguf_read(file, 0, 0, 1, NULL), MHA_ERR_NULL, "NULL");
        expect_error(mha_gguf_read(file, 9, 0, 1, to), MHA_ERR_ARGUMENT, "index 9");
        static const int64_t outside[][2] = {{0, 65}, {64, 1},        {65, 0},       {-1, 1},
                                             {0, -1}, {1, INT64_MAX}, {INT64_MAX, 1}};
        for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
            expect_error(mha_gguf_read(file, 0, outside[i][0], outside[i][1], to), MHA_ERR_SHAPE,
                         "tensor 'abc': has 64 elements");
        mha_gguf_close(file);
    }
    assert_int_equal(mha_gguf_count(NULL), 0);
    assert_int_equal(mha_gguf_key_count(NULL), 0);
    assert_int_equal(mha_gguf_find(NULL, "a"), -1);
    assert_int_equal(mha_gguf_key_find(NULL, "a"), -1);
}

/* A number of each type at both ends of its range, in an array and as a single value. */
static void test_numbers(void)
{
    static const struct {
        mha_gguf_value_type type;
        size_t bytes;
        int64_t low, high;
    } rows[] = {
        {MHA_GGUF_VALUE_U8, 1, 0, UINT8_MAX},
        {MHA_GGUF_VALUE_I8, 1, INT8_MIN, INT8_MAX},
        {MHA_GGUF_VALUE_U16, 2, 0, UINT16_MAX},
        {MHA_GGUF_VALUE_I16, 2, INT16_MIN, INT16_MAX},
        {MHA_GGUF_VALUE_U32, 4, 0, UINT32_MAX},
        {MHA_GGUF_VALUE_I32, 4, INT32_MIN, INT32_MAX},
        {MHA_GGUF_VALUE_I64, 8, INT64_MIN, INT64_MAX},
        {MHA_GGUF_VALUE_U64, 8, 0, INT64_MAX},
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    gguf_writer w = {0};
    gguf_begin(&w, 3, 0, 2 * ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        const char key[] = {'o', (char)('0' + i), 0}, list[] = {'a', (char)('0' + i), 0};
        gguf_key(&w, key, rows[i].type);
        gguf_raw(&w, &rows[i].high, rows[i].bytes);
        gguf_key_array(&w, list, rows[i].type, 3);
        gguf_raw(&w, &rows[i].low, rows[i].bytes);
        gguf_raw(&w, &(int64_t){1}, rows[i].bytes);
        gguf_raw(&w, &rows[i].high, rows[i].bytes);
    }
    mha_gguf *file = open_file(put(&w));
    for (size_t i = 0; i < ROWS; i++) {
        const char key[] = {'o', (char)('0' + i), 0}, list[] = {'a', (char)('0' + i), 0};
        const int64_t low = rows[i].low, high = rows[i].high;
        mha_gguf_value value;
        int64_t got = 7;
        double real = 7;
        bool yes = true;
        expect_ok(mha_gguf_value_of(file, key, &value));
        assert_string_equal(value.key, key);
        assert_false(value.array);
        assert_int_equal(value.count, 1);
        expect_ok(mha_gguf_integer(&value, 0, high, high, &got));
        assert_true(got == high);
        expect_error(mha_gguf_integer(&value, 0, low, high - 1, &got), MHA_ERR_NUMERIC,
                     ", expected ");
        expect_error(mha_gguf_integer(&value, 1, low, high, &got), MHA_ERR_ARGUMENT, "1 of 1");
        expect_error(mha_gguf_bool(&value, 0, &yes), MHA_ERR_DTYPE, "expected BOOL");
        expect_ok(mha_gguf_value_of(file, list, &value));
        assert_true(value.array && value.type == rows[i].type);
        assert_int_equal(value.count, 3);
        expect_ok(mha_gguf_integer(&value, 0, INT64_MIN, INT64_MAX, &got));
        assert_true(got == low);
        expect_ok(mha_gguf_integer(&value, 1, INT64_MIN, INT64_MAX, &got));
        assert_true(got == 1);
        expect_ok(mha_gguf_real(&value, 1, &real));
        assert_true(real == 1);
        if (high <= 1ll << 53) {
            expect_ok(mha_gguf_real(&value, 2, &real));
            assert_true(real == (double)high);
        } else {
            expect_error(mha_gguf_real(&value, 2, &real), MHA_ERR_NUMERIC, "element 2: is 9223");
        }
        expect_error(mha_gguf_integer(&value, 3, low, high, &got), MHA_ERR_ARGUMENT, "3 of 3");
        expect_error(mha_gguf_integer(&value, -1, low, high, &got), MHA_ERR_ARGUMENT, "-1 of 3");
    }
    mha_gguf_close(file);
}

static void test_other_values(void)
{
    gguf_writer w = {0};
    const uint64_t huge = UINT64_MAX;
    const double reals[] = {0.1, -INFINITY, NAN};
    gguf_begin(&w, 3, 0, 7);
    gguf_key_f32(&w, "f", 1e-5f);
    gguf_key_array(&w, "d", MHA_GGUF_VALUE_F64, 3);
    gguf_raw(&w, reals, sizeof reals);
    gguf_key_array(&w, "b", MHA_GGUF_VALUE_BOOL, 3);
    gguf_raw(&w, "\0\1\2", 3);
    gguf_key(&w, "h", MHA_GGUF_VALUE_U64);
    gguf_raw(&w, &huge, sizeof huge);
    gguf_key_string(&w, "s", "a\xff text");
    gguf_key_array(&w, "l", GGUF_STRING, 3);
    gguf_string(&w, "");
    gguf_string(&w, "\xc3\xa9");
    gguf_u64(&w, 3);
    gguf_raw(&w, "x\0y", 3);
    gguf_key_array(&w, "e", GGUF_STRING, 0);
    mha_gguf *file = open_file(put(&w));
    mha_gguf_value value;
    double real;
    bool yes;
    int64_t integer;
    const char *text;
    size_t size;
    assert_int_equal(mha_gguf_key_count(file), 7);
    assert_int_equal(mha_gguf_key_find(file, "b"), 2);
    assert_int_equal(mha_gguf_key_find(file, "none"), -1);
    expect_ok(mha_gguf_value_of(file, "f", &value));
    expect_ok(mha_gguf_real(&value, 0, &real));
    assert_true(real == (double)1e-5f);
    expect_error(mha_gguf_integer(&value, 0, 0, 9, &integer), MHA_ERR_DTYPE,
                 "x.gguf: metadata 'f': is of type F32, expected a whole number");
    expect_ok(mha_gguf_value_of(file, "d", &value));
    for (int i = 0; i < 3; i++) {
        expect_ok(mha_gguf_real(&value, i, &real));
        assert_memory_equal(&real, &reals[i], sizeof real);
    }
    expect_ok(mha_gguf_value_of(file, "b", &value));
    for (int i = 0; i < 2; i++) {
        expect_ok(mha_gguf_bool(&value, i, &yes));
        assert_int_equal(yes, i);
    }
    expect_error(mha_gguf_bool(&value, 2, &yes), MHA_ERR_FORMAT,
                 "x.gguf: metadata 'b', element 2: is 2, expected 0 or 1");
    expect_error(mha_gguf_real(&value, 0, &real), MHA_ERR_DTYPE, "BOOL, expected a number");
    expect_ok(mha_gguf_value_of(file, "h", &value));
    expect_error(
        mha_gguf_integer(&value, 0, INT64_MIN, INT64_MAX, &integer), MHA_ERR_NUMERIC,
        "'h': is 18446744073709551615, expected -9223372036854775808 to 92233720368547758");
    expect_ok(mha_gguf_value_of(file, "s", &value));
    expect_ok(mha_gguf_string(&value, 0, &text, &size));
    assert_int_equal(size, 7);
    assert_memory_equal(text, "a\xff text", 7);
    expect_error(mha_gguf_string(&value, 0, NULL, &size), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_string(&value, 0, &text, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_real(&value, 0, &real), MHA_ERR_DTYPE, "is of type STRING");
    expect_ok(mha_gguf_value_of(file, "l", &value));
    static const char *const want[] = {"", "\xc3\xa9", "x\0y"};
    static const size_t sizes[] = {0, 2, 3};
    for (int i = 0; i < 3; i++) {
        expect_ok(mha_gguf_string(&value, i, &text, &size));
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(text, want[i], size);
    }
    expect_error(mha_gguf_string(&value, 3, &text, &size), MHA_ERR_ARGUMENT, "element 3 of 3");
    expect_ok(mha_gguf_value_of(file, "e", &value));
    expect_error(mha_gguf_string(&value, 0, &text, &size), MHA_ERR_ARGUMENT, "element 0 of 0");
    expect_error(mha_gguf_string(NULL, 0, &text, &size), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_integer(NULL, 0, 0, 1, &integer), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_real(NULL, 0, &real), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_bool(NULL, 0, &yes), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_value_of(file, "none", &value), MHA_ERR_MODEL,
                 "x.gguf: the metadata has no 'none'");
    expect_error(mha_gguf_value_at(file, 7, &value), MHA_ERR_ARGUMENT, "index 7 of 7");
    expect_error(mha_gguf_value_at(file, 0, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_gguf_value_of(file, NULL, &value), MHA_ERR_NULL, "NULL");
    mha_gguf_close(file);
}

/* ---- Split files ----------------------------------------------------------------------------- */

typedef struct part {
    const char *file;
    uint32_t number, count, tensors;
    const char *names[2]; /* NULL: no tensor */
} part;
enum { PARTS = 3 };
static const part all_parts[PARTS] = {
    {"m-00001-of-00003.gguf", 0, 3, 4, {"a", NULL}},
    {"m-00002-of-00003.gguf", 1, 3, 4, {"b", "c"}},
    {"m-00003-of-00003.gguf", 2, 3, 4, {"d", NULL}},
};

/* Each tensor has one byte: its name. */
static void put_part(const part *p)
{
    gguf_writer w = {0};
    const int tensors = !!p->names[0] + !!p->names[1];
    gguf_begin(&w, 3, (uint64_t)tensors, 5);
    gguf_key_u32(&w, "general.alignment", 1);
    gguf_key_u32(&w, "split.no", p->number);
    gguf_key_u32(&w, "split.count", p->count);
    gguf_key_u32(&w, "split.tensors.count", p->tensors);
    gguf_key_u32(&w, "own", p->number);
    for (int i = 0; i < tensors; i++)
        gguf_tensor(&w, p->names[i], 0, NULL, MHA_GGUF_I8, (uint64_t)i);
    for (int i = 0; i < tensors; i++) gguf_raw(&w, p->names[i], 1);
    temp_write(p->file, w.bytes, w.size);
    free(w.bytes);
}

static void put_parts(const part parts[PARTS])
{
    for (int i = 0; i < PARTS; i++) unlink(temp_path(all_parts[i].file));
    for (int i = 0; i < PARTS; i++)
        if (parts[i].file) put_part(&parts[i]);
}

static void test_parts_are_one_file(void)
{
    put_parts(all_parts);
    for (int named = 0; named < PARTS; named++) {
        mha_gguf *file = open_file(temp_path(all_parts[named].file));
        mha_gguf_value value;
        int64_t first = 5;
        expect_ok(mha_gguf_value_of(file, "own", &value));
        expect_ok(mha_gguf_integer(&value, 0, 0, 9, &first));
        assert_int_equal(first, 0);
        assert_int_equal(mha_gguf_count(file), 4);
        for (int i = 0; i < 4; i++) {
            mha_gguf_tensor tensor;
            float x;
            const char name[] = {(char)('a' + i), 0};
            assert_int_equal(mha_gguf_find(file, name), i);
            expect_ok(mha_gguf_describe(file, i, &tensor));
            assert_string_equal(tensor.name, name);
            assert_int_equal(*(const char *)tensor.data, 'a' + i);
            expect_error(mha_gguf_read(file, i, 0, 1, &x), MHA_ERR_UNSUPPORTED,
                         all_parts[i == 0   ? 0
                                   : i == 3 ? 2
                                            : 1]
                             .file);
        }
        assert_int_equal(mha_gguf_find(file, "e"), -1);
        mha_gguf_close(file);
    }
}

static void test_parts_that_do_not_fit(void)
{
    static const struct {
        int named;
        mha_status status;
        const char *text;
        part other; /* in place of part 2 */
    } rows[] = {
        {0, MHA_ERR_FILE, "m-00002-of-00003.gguf: no such file; all 3 parts", {0}},
        {2,
         MHA_ERR_MODEL,
         "00002-of-00003.gguf: is part 3 of 3 of a model, expected part 2 of 3",
         {"m-00002-of-00003.gguf", 2, 3, 4, {"b", "c"}}},
        {0,
         MHA_ERR_MODEL,
         "is part 2 of 4 of a model, expected part 2 of 3",
         {"m-00002-of-00003.gguf", 1, 4, 4, {"b", "c"}}},
        {0,
         MHA_ERR_MODEL,
         "is part 1 of 1 of a model, expected part 2 of 3",
         {"m-00002-of-00003.gguf", 0, 1, 4, {"b", "c"}}},
        {0,
         MHA_ERR_MODEL,
         "00002-of-00003.gguf: split.tensors.count is not that of",
         {"m-00002-of-00003.gguf", 1, 3, 5, {"b", "c"}}},
        {1,
         MHA_ERR_MODEL,
         "m-00001-of-00003.gguf: its parts have 3 tensors, but split.tensors.count is 4",
         {"m-00002-of-00003.gguf", 1, 3, 4, {"b", NULL}}},
        {1,
         MHA_ERR_FORMAT,
         "the tensor 'd' occurs twice",
         {"m-00002-of-00003.gguf", 1, 3, 4, {"b", "d"}}},
        {1,
         MHA_ERR_NUMERIC,
         "00002-of-00003.gguf: metadata 'split.no': is 3, expected 0 to 2",
         {"m-00002-of-00003.gguf", 3, 3, 4, {"b", "c"}}},
        {0,
         MHA_ERR_NUMERIC,
         "metadata 'split.count': is 4097, expected 0 to 4096",
         {"m-00002-of-00003.gguf", 3, 4097, 4, {"b", "c"}}},
        {1,
         MHA_ERR_MODEL,
         "whose other parts are found by name; its name must end in -00002-of-00004.gguf",
         {"m-00002-of-00003.gguf", 1, 4, 4, {"b", "c"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mha_gguf *file = NULL;
        const part parts[PARTS] = {all_parts[0], rows[i].other, all_parts[2]};
        put_parts(parts);
        const mha_status status = mha_gguf_open(temp_path(all_parts[rows[i].named].file), &file);
        expect_row(i, status, rows[i].status, rows[i].text);
        assert_null(file);
    }
    put_parts(all_parts);
}

/* Names of maximum length; messages contain their beginnings if they do not fit. */
static void test_long_names(void)
{
    enum { LONGEST = 65535 };
    static char name[LONGEST + 2];
    for (uint64_t offset = 0; offset <= 32; offset += 32) {
        mha_gguf *file = NULL;
        gguf_writer w = {0};
        memset(name, 'n', LONGEST);
        gguf_begin(&w, 3, 1, 0);
        gguf_tensor(&w, name, 0, NULL, MHA_GGUF_I8, offset);
        gguf_pad(&w, 32);
        gguf_raw(&w, "a", 1);
        const mha_status status = mha_gguf_open(put(&w), &file);
        if (offset > 0) {
            expect_error(status, MHA_ERR_FORMAT, "nnnn...'): needs 1 bytes");
            assert_null(file);
            continue;
        }
        expect_ok(status);
        assert_int_equal(mha_gguf_find(file, name), 0);
        name[LONGEST - 1] = 'm';
        assert_int_equal(mha_gguf_find(file, name), -1);
        mha_gguf_close(file);
    }
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_refuses_hostile_files),
                  TEST(test_refuses_every_truncation), TEST(test_refuses_files),
                  TEST(test_mutations), TEST(test_describes_tensors), TEST(test_numbers),
                  TEST(test_other_values), TEST(test_long_names), TEST(test_parts_are_one_file),
                  TEST(test_parts_that_do_not_fit))
