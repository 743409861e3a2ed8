/* safetensors: written files can be read, and a hostile file gives a status and a message of one
 * line.
 */
#include <multihead/io.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/suite.h"
#include "support/temp_files.h"

/* Writes a file with this header and a number of data bytes. The length field has `claimed`, or the
 * true length if `claimed` is -1. */
static const char *put(const char *header, long long claimed, size_t data_bytes)
{
    static unsigned char bytes[8192];
    uint64_t length = claimed < 0 ? strlen(header) : (uint64_t)claimed;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, strlen(header));
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + strlen(header) + i] = (unsigned char)i;
    return temp_write("x.safetensors", bytes, 8 + strlen(header) + data_bytes);
}

static void refuse(const char *header, size_t data_bytes, mha_status status, const char *part)
{
    mha_safetensors *file = NULL;
    expect_error(mha_safetensors_open(put(header, -1, data_bytes), &file), status, part);
    assert_null(file);
    assert_non_null(strstr(mha_error_detail(), "x.safetensors"));
}

static void test_refuses_headers(void)
{
    const mha_status bad = MHA_ERR_FORMAT;
    refuse("", 0, bad, "does not begin with '{'");
    refuse("[]", 0, bad, "does not begin with '{'");
    refuse(" {}", 0, bad, "does not begin with '{'");
    refuse("{", 0, bad, "malformed JSON");
    refuse("{} x", 0, bad, "malformed JSON");
    refuse("{\"\xff\":1}", 0, bad, "malformed JSON");
    refuse("{\"a\\u0000b\":1}", 0, bad, "malformed JSON");
    refuse("{\"a\":{},\"a\":{}}", 0, bad, "duplicate");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
           bad, "duplicate");
    refuse("{\"a\":5}", 0, bad, "not a JSON object");
    refuse("{\"a\":{}}", 0, bad, "dtype is missing");
    refuse("{\"a\":{\"dtype\":5}}", 0, bad, "dtype is missing");
    refuse("{\"a\":{\"dtype\":\"F31\"}}", 0, bad, "unknown dtype 'F31'");
    refuse("{\"a\":{\"dtype\":\"F32\"}}", 0, bad, "shape is missing");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, bad, "data_offsets is missing");
    refuse("{\"__metadata__\":5}", 0, bad, "__metadata__");
    refuse("{\"__metadata__\":{\"k\":5}}", 0, bad, "'k' is not text");
}

/* Checks that a file with one tensor 'a' of type F32 is rejected. */
static void refuse_tensor(const char *shape, const char *offsets, size_t data_bytes,
                          mha_status status, const char *part)
{
    char header[512];
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":%s}}",
             shape, offsets);
    refuse(header, data_bytes, status, part);
}

static void test_refuses_tensors(void)
{
    const mha_status bad = MHA_ERR_FORMAT;
    refuse_tensor("[-1]", "[0,4]", 4, bad, "tensor 'a': shape");
    refuse_tensor("[1.0]", "[0,4]", 4, bad, "shape");
    refuse_tensor("[\"1\"]", "[0,4]", 4, bad, "shape");
    refuse_tensor("{}", "[0,4]", 4, bad, "shape");
    refuse_tensor("[9223372036854775808]", "[0,4]", 4, bad, "malformed JSON");
    refuse_tensor("[9223372036854775807]", "[0,4]", 4, MHA_ERR_SIZE, "63 bits");
    refuse_tensor("[4294967296,4294967296]", "[0,4]", 4, MHA_ERR_SIZE, "63 bits");
    refuse_tensor("[3037000500,3037000500]", "[0,4]", 4, MHA_ERR_SIZE, "63 bits");
    refuse_tensor("[1]", "[0,5]", 5, bad, "need 4 bytes, data_offsets span 5");
    refuse_tensor("[1]", "[0,3]", 3, bad, "need 4 bytes, data_offsets span 3");
    refuse_tensor("[1]", "[0]", 4, bad, "not two numbers");
    refuse_tensor("[1]", "[0,4,8]", 4, bad, "not two numbers");
    refuse_tensor("[1]", "[0,4.0]", 4, bad, "increasing");
    refuse_tensor("[1]", "[4,0]", 4, bad, "increasing");
    refuse_tensor("[1]", "[-4,0]", 4, bad, "increasing");
    refuse_tensor("[1]", "[0,4]", 3, bad, "has only 3 bytes of data");
    refuse_tensor("[1]", "[9223372036854775803,9223372036854775807]", 4, bad, "has only 4");
    refuse_tensor("[1]", "[1,5]", 5, bad, "gap");
    refuse_tensor("[1]", "[0,4]", 5, bad, "1 bytes at the end belong to no tensor");
    refuse_tensor("[0]", "[0,0]", 1, bad, "belong to no tensor");
}

static void test_refuses_overlap_and_holes(void)
{
    char header[512];
    static const struct {
        int begin, end;
        const char *part;
    } second[] = {
        {2, 6, "tensor 'b': its data overlaps"}, {0, 4, "overlaps"}, {5, 9, "tensor 'b': a gap"}};
    for (int i = 0; i < 3; i++) {
        snprintf(header, sizeof header,
                 "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]},"
                 "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                 second[i].begin, second[i].end);
        refuse(header, (size_t)(second[i].end > 4 ? second[i].end : 4), MHA_ERR_FORMAT,
               second[i].part);
    }
    refuse("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, MHA_ERR_FORMAT,
           "whole bytes");
}

static void test_refuses_lengths_and_files(void)
{
    mha_safetensors *file = NULL;
    const char *path = put("{}", 3, 0);
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "claims 3 bytes");
    path = put("{}", 1ll << 62, 0);
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "claims");
    path = put("{}", 100000001, 0);
    assert_int_equal(truncate(path, 200000000), 0); /* sparse */
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "100 MB");
    path = temp_write("x", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "claims 18446744073709551615");
    path = temp_write("x", "1234567", 7);
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "7 bytes are too short");
    path = temp_write("x", "", 0);
    expect_error(mha_safetensors_open(path, &file), MHA_ERR_FORMAT, "0 bytes are too short");
    expect_error(mha_safetensors_open(temp_path("missing"), &file), MHA_ERR_FILE, "no such file");
    expect_error(mha_safetensors_open(temp_path("."), &file), MHA_ERR_FILE, "a folder");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    expect_error(mha_safetensors_open(temp_path("fifo"), &file), MHA_ERR_FILE, "a FIFO");
    unlink(temp_path("fifo"));
    expect_error(mha_safetensors_open(NULL, &file), MHA_ERR_NULL, "NULL");
    expect_error(mha_safetensors_open(path, NULL), MHA_ERR_NULL, "NULL");
    assert_null(file);
    mha_safetensors_close(NULL);
}

static void test_long_names_are_cut(void)
{
    char header[2048], name[1200];
    for (size_t i = 0; i < sizeof name - 2; i += 2) memcpy(name + i, "\xc3\xa4", 2);
    name[sizeof name - 2] = '\0';
    snprintf(header, sizeof header, "{\"x%s\":5}", name);
    refuse(header, 0, MHA_ERR_FORMAT, "\xc3\xa4...': its description is not a JSON object");
}

static void test_reads_what_the_format_allows(void)
{
    mha_safetensors *file = NULL;
    mha_tensor tensor;
    expect_ok(mha_safetensors_open(put("{}   ", -1, 0), &file));
    assert_int_equal(mha_safetensors_count(file), 0);
    mha_safetensors_close(file);
    /* Tensors out of order in the header, an empty tensor, a scalar, types without a view, 7 axes,
     * and fields unknown to the format. */
    const char *header =
        "{\"s\":{\"index\":4,\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[12,14]},"
        "\"e\":{\"dtype\":\"F64\",\"shape\":[3,0,9223372036854775807],\"data_offsets\":[4,4]},"
        "\"__metadata__\":{\"format\":\"pt\",\"index\":\"3\"},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"BOOL\",\"shape\":[2,4],\"data_offsets\":[4,12]},"
        "\"m\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[14,15]}}";
    expect_ok(mha_safetensors_open(put(header, -1, 15), &file));
    assert_int_equal(mha_safetensors_count(file), 5);
    assert_string_equal(mha_safetensors_name(file, 0), "s");
    assert_null(mha_safetensors_name(file, 5));
    assert_null(mha_safetensors_name(file, -1));
    assert_string_equal(mha_safetensors_metadata(file, "format"), "pt");
    assert_null(mha_safetensors_metadata(file, "other"));
    assert_int_equal(mha_safetensors_find(file, "__metadata__"), -1);
    assert_int_equal(mha_safetensors_find(file, "other"), -1);
    assert_int_equal(mha_safetensors_find(file, ""), -1);
    assert_int_equal(mha_safetensors_find(file, NULL), -1);
    expect_error(mha_safetensors_tensor(file, 0, &tensor), MHA_ERR_UNSUPPORTED, "I16");
    expect_error(mha_safetensors_tensor(file, 4, &tensor), MHA_ERR_UNSUPPORTED, "7 dimensions");
    expect_error(mha_safetensors_tensor(file, 9, &tensor), MHA_ERR_ARGUMENT, "index 9");
    expect_ok(mha_safetensors_tensor(file, mha_safetensors_find(file, "e"), &tensor));
    assert_int_equal(tensor.ndim, 3);
    assert_int_equal(tensor.dtype, MHA_F64);
    int64_t empty = mha_safetensors_find(file, "e");
    expect_ok(mha_safetensors_read(file, empty, MHA_F32, 0, NULL));
    expect_ok(mha_safetensors_tensor(file, mha_safetensors_find(file, "b"), &tensor));
    assert_int_equal(tensor.dtype, MHA_U8);
    assert_int_equal(tensor.shape[1], 4);
    assert_int_equal(((unsigned char *)tensor.data)[7], 11);
    mha_safetensors_close(file);
}

static void *ask_for_tensor(void *argument)
{
    static mha_tensor tensor[8]; /* one for each thread */
    static _Atomic int next;
    mha_tensor *own = &tensor[next++ % 8];
    return mha_safetensors_tensor(argument, 0, own) == MHA_OK ? own->data : NULL;
}

/* All threads get the same copy of unaligned data, whichever thread requests it first. */
static void one_copy_for_all(mha_safetensors *file)
{
    pthread_t thread[4];
    mha_tensor tensor;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, ask_for_tensor, file), 0);
    expect_ok(mha_safetensors_tensor(file, 0, &tensor));
    for (int i = 0; i < 4; i++) {
        void *data = NULL;
        assert_int_equal(pthread_join(thread[i], &data), 0);
        assert_ptr_equal(data, tensor.data);
    }
}

static void test_aligns_data(void)
{
    mha_safetensors *file = NULL;
    mha_tensor tensor, peeked;
    int views = 0;
    for (int pad = 0; pad < 8; pad++) {
        char padded[128];
        snprintf(padded, sizeof padded,
                 "{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]}}%.*s", pad,
                 "        ");
        expect_ok(mha_safetensors_open(put(padded, -1, 16), &file));
        expect_ok(mha_safetensors_peek(file, 0, &peeked));
        assert_int_equal(peeked.shape[0], 2);
        assert_int_equal(peeked.dtype, MHA_F64);
        one_copy_for_all(file);
        expect_ok(mha_safetensors_tensor(file, 0, &tensor));
        assert_int_equal((uintptr_t)tensor.data % 8, 0);
        assert_int_equal(((unsigned char *)tensor.data)[15], 15);
        if (peeked.data) assert_ptr_equal(peeked.data, tensor.data);
        views += peeked.data != NULL;
        mha_safetensors_close(file);
    }
    assert_int_equal(views, 1);
}

/* A conversion of every type to every other from an odd address equals the conversion of an aligned
 * copy. */
static void test_reads_into_memory(void)
{
    enum { COUNT = 2500 }; /* more than one piece, and a remainder */
    static const mha_dtype types[] = {MHA_F32, MHA_F64, MHA_F16, MHA_BF16, MHA_I32, MHA_U8};
    static const char *const names[] = {"F32", "F64", "F16", "BF16", "I32", "U8"};
    static unsigned char bytes[8 + 200 + COUNT * 8];
    static double got[COUNT], want[COUNT];
    mha_safetensors *file = NULL;
    for (int from = 0; from < 6; from++) {
        const size_t size = mha_dtype_size(types[from]);
        char header[200];
        int length =
            snprintf(header, sizeof header,
                     "{\"a\":{\"dtype\":\"%s\",\"shape\":[50,50],\"data_offsets\":[0,%zu]}}",
                     names[from], COUNT * size);
        while (length % 2 == 0) header[length++] = ' ';
        memcpy(bytes, &(uint64_t){(uint64_t)length}, 8);
        memcpy(bytes + 8, header, (size_t)length);
        for (size_t i = 0; i < COUNT * size; i++)
            bytes[8 + (size_t)length + i] = (unsigned char)(i * 37 + i / 251);
        const char *path = temp_write("x.safetensors", bytes, 8 + (size_t)length + COUNT * size);
        expect_ok(mha_safetensors_open(path, &file));
        mha_tensor in;
        expect_ok(mha_safetensors_peek(file, 0, &in));
        if (size > 1) assert_null(in.data);
        expect_ok(mha_safetensors_tensor(file, 0, &in));
        for (int to = 0; to < 6; to++) {
            const mha_tensor out = mha_tensor_contiguous(want, types[to], 2, in.shape);
            memset(got, 1, sizeof got);
            memset(want, 1, sizeof want);
            mha_status status = mha_safetensors_read(file, 0, types[to], COUNT, got);
            if (from != to && (from > 3 || to > 3)) {
                assert_int_equal(status, MHA_ERR_DTYPE);
                continue;
            }
            expect_ok(status);
            if (from == to)
                memcpy(want, in.data, COUNT * size);
            else
                expect_ok(mha_tensor_convert(&in, &out));
            assert_memory_equal(got, want, sizeof got);
        }
        expect_error(mha_safetensors_read(file, 0, types[from], 7, got), MHA_ERR_SHAPE, "2500");
        expect_error(mha_safetensors_read(file, 1, types[from], 7, got), MHA_ERR_ARGUMENT,
                     "1 of 1");
        expect_error(mha_safetensors_read(file, 0, types[from], COUNT, NULL), MHA_ERR_NULL, "NULL");
        mha_safetensors_close(file);
    }
}

/* For any names, a written header has a multiple of 8 bytes, so that data is aligned. */
static void test_pads_headers(void)
{
    double x[2] = {1, 2};
    const mha_tensor tensor = mha_tensor_contiguous(x, MHA_F64, 1, (int64_t[]){2});
    const char *path = temp_path("padded.safetensors");
    for (size_t length = 1; length <= 9; length++) {
        char name[16] = "";
        memset(name, 'a', length);
        const char *const names[] = {name};
        expect_ok(mha_safetensors_write(path, names, &tensor, 1, NULL));
        unsigned char size[8];
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fread(size, 1, sizeof size, file), sizeof size);
        fclose(file);
        assert_int_equal(size[0] % 8, 0);
    }
}

static void test_writes_what_it_reads(void)
{
    float f[6] = {1, 2, 3, 4, 5, 6};
    double d[1] = {0.1};
    uint8_t u[3] = {7, 8, 9};
    const char *names[] = {"bytes", "column \"major\"", "\xc3\xa9", "none"};
    const mha_tensor tensors[] = {
        mha_tensor_contiguous(u, MHA_U8, 1, (int64_t[]){3}),
        {.data = f, .dtype = MHA_F32, .ndim = 2, .shape = {2, 3}, .stride = {1, 2}},
        mha_tensor_contiguous(d, MHA_F64, 0, NULL),
        mha_tensor_contiguous(NULL, MHA_BF16, 2, (int64_t[]){0, 4}),
    };
    const char *metadata[] = {"a", "b\n", "c", "", NULL};
    const char *path = temp_path("out.safetensors");
    expect_ok(mha_safetensors_write(path, names, tensors, 4, metadata));
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(mha_safetensors_write_to(&sink, names, tensors, 4, metadata));
    size_t size;
    char *bytes = temp_read(path, &size);
    assert_int_equal(buffer.size, size);
    assert_memory_equal(buffer.data, bytes, size);
    free(bytes);
    mha_buffer_free(&buffer);
    mha_safetensors *file = NULL;
    mha_tensor got;
    expect_ok(mha_safetensors_open(path, &file));
    assert_int_equal(mha_safetensors_count(file), 4);
    assert_string_equal(mha_safetensors_metadata(file, "a"), "b\n");
    assert_int_equal(mha_safetensors_tensor(file, mha_safetensors_find(file, names[1]), &got), 0);
    const float want[6] = {1, 3, 5, 2, 4, 6};
    assert_memory_equal(got.data, want, sizeof want);
    assert_int_equal(got.shape[0], 2);
    assert_int_equal(got.stride[0], 3);
    assert_int_equal(mha_safetensors_tensor(file, mha_safetensors_find(file, names[2]), &got), 0);
    assert_memory_equal(got.data, d, sizeof d);
    assert_int_equal(got.ndim, 0);
    assert_int_equal(mha_safetensors_tensor(file, mha_safetensors_find(file, "bytes"), &got), 0);
    assert_memory_equal(got.data, u, sizeof u);
    mha_safetensors_close(file);
}

static void test_refuses_to_write(void)
{
    float f[1] = {1};
    const mha_tensor one = mha_tensor_contiguous(f, MHA_F32, 1, (int64_t[]){1});
    mha_tensor two[2] = {one, one};
    const char *names[2] = {"a", "a"};
    const char *path = temp_path("no.safetensors");
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_ARGUMENT, "twice");
    names[1] = "__metadata__";
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_ARGUMENT, "be called");
    names[1] = "";
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_ARGUMENT, "be called");
    names[1] = "b\xff";
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_UTF8, "byte 1");
    names[1] = NULL;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_NULL, "name 1");
    names[1] = "b";
    two[1].dtype = (mha_dtype)99;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_DTYPE, "b: ");
    two[1] = one;
    two[1].shape[0] = -1;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_SHAPE, "dim 0");
    two[1].shape[0] = INT64_MAX;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_SIZE, "63 bits");
    two[1].shape[0] = INT64_MAX / 8;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_SIZE, "address space");
    two[1] = one;
    two[1].data = NULL;
    expect_error(mha_safetensors_write(path, names, two, 2, NULL), MHA_ERR_NULL, "b: data");
    const char *keys[] = {"k", "1", "k", "2", NULL};
    expect_error(mha_safetensors_write(path, names, two, 1, keys), MHA_ERR_ARGUMENT, "twice");
    const char *half[] = {"k", NULL};
    expect_error(mha_safetensors_write(path, names, two, 1, half), MHA_ERR_NULL, "no text");
    expect_error(mha_safetensors_write(path, names, two, -1, NULL), MHA_ERR_ARGUMENT, "-1");
    expect_error(mha_safetensors_write(path, NULL, two, 1, NULL), MHA_ERR_NULL, "NULL");
    expect_error(mha_safetensors_write_to(NULL, names, two, 1, NULL), MHA_ERR_NULL, "NULL");
    assert_int_not_equal(access(path, F_OK), 0);
    path = temp_path("nowhere/no.safetensors");
    expect_error(mha_safetensors_write(path, names, two, 1, NULL), MHA_ERR_WRITE, "no such folder");
}

/* Read everything that a view covers. */
static unsigned touch(const mha_safetensors *file)
{
    unsigned sum = 0;
    mha_tensor tensor;
    int64_t elements = 0;
    for (int64_t i = 0; i < mha_safetensors_count(file); i++) {
        sum += (unsigned)strlen(mha_safetensors_name(file, i));
        if (mha_safetensors_tensor(file, i, &tensor) != MHA_OK) continue;
        expect_ok(mha_tensor_count(&tensor, &elements));
        const unsigned char *bytes = tensor.data;
        for (size_t b = 0; b < (size_t)elements * mha_dtype_size(tensor.dtype); b++)
            sum += bytes[b];
    }
    return sum;
}

static void test_mutations(void)
{
    static unsigned char bytes[4096];
    size_t size;
    float f[24] = {1, 2, 3};
    const char *names[] = {"layer.0.weight", "layer.0.bias"}, *metadata[] = {"format", "pt", NULL};
    const mha_tensor tensors[] = {mha_tensor_contiguous(f, MHA_F32, 2, (int64_t[]){4, 6}),
                                  mha_tensor_contiguous(f, MHA_F16, 1, (int64_t[]){4})};
    const char *path = temp_path("good.safetensors");
    expect_ok(mha_safetensors_write(path, names, tensors, 2, metadata));
    char *good = temp_read(path, &size);
    assert_true(size < sizeof bytes);
    int opened = 0, refused = 0;
    for (uint32_t seed = 0; seed < 6000; seed++) {
        size_t length = size;
        memcpy(bytes, good, size);
        mutate(bytes, &length, seed);
        mha_safetensors *file = NULL;
        mha_status status = mha_safetensors_open(temp_write("m.safetensors", bytes, length), &file);
        if (status == MHA_OK) {
            touch(file);
            opened++;
        } else {
            assert_true(status == MHA_ERR_FORMAT || status == MHA_ERR_SIZE);
            assert_non_null(strstr(mha_error_detail(), "m.safetensors: "));
            refused++;
        }
        mha_safetensors_close(file);
    }
    print_message("%d mutants opened, %d refused\n", opened, refused);
    assert_true(opened > 100 &&
                refused > 1000); /* otherwise the mutations are too mild or too strong */
    free(good);
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_refuses_headers), TEST(test_refuses_tensors),
                  TEST(test_refuses_overlap_and_holes), TEST(test_refuses_lengths_and_files),
                  TEST(test_long_names_are_cut), TEST(test_reads_what_the_format_allows),
                  TEST(test_aligns_data), TEST(test_reads_into_memory), TEST(test_pads_headers),
                  TEST(test_writes_what_it_reads), TEST(test_refuses_to_write),
                  TEST(test_mutations))
