/* .npy files and ordinary files: reading, writing, hostile input, and atomic replacement. */
#define _XOPEN_SOURCE 700 /* symlink, sigaction */
#include <multihead/io.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/suite.h"
#include "support/temp_files.h"

/* Writes a file of this version with this literal as header and `data_bytes` bytes 0, 1, 2, ... */
static const char *put(int version, const char *literal, size_t data_bytes)
{
    static unsigned char bytes[8192];
    size_t fixed = version == 1 ? 10 : 12, length = strlen(literal);
    memset(bytes, 0, fixed);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version;
    bytes[8] = (unsigned char)length;
    bytes[9] = (unsigned char)(length >> 8);
    memcpy(bytes + fixed, literal, length);
    for (size_t i = 0; i < data_bytes; i++) bytes[fixed + length + i] = (unsigned char)i;
    return temp_write("x.npy", bytes, fixed + length + data_bytes);
}

static void refuse(const char *literal, size_t data_bytes, mha_status status, const char *part)
{
    mha_npy *array = NULL;
    mha_tensor tensor;
    expect_error(mha_npy_read(put(1, literal, data_bytes), &array), status, part);
    assert_null(array);
    expect_error(mha_npy_peek(temp_path("x.npy"), &tensor), status, part);
    assert_non_null(strstr(mha_error_detail(), "x.npy"));
}

static void test_refuses_headers(void)
{
    const mha_status bad = MHA_ERR_FORMAT;
    refuse("", 0, bad, "byte 0: expected '{'");
    refuse("[]", 0, bad, "expected '{'");
    refuse("{", 0, bad, "quoted string");
    refuse("{}", 0, bad, "descr, fortran_order and shape");
    refuse("{'descr': '<f4'}", 0, bad, "before the end");
    refuse("{'descr': '<f4', 'descr': '<f4'}", 0, bad, "once");
    refuse("{'shape': (), 'fortran_order': False, 'x': 1}", 0, bad, "once, and nothing else");
    refuse("{'descr' '<f4'}", 0, bad, "':'");
    refuse("{'descr': '<f4' 'shape': ()}", 0, bad, "',' or '}'");
    refuse("{'descr': '<f4", 0, bad, "end of a string");
    refuse("{'descr': '<f\\x34'}", 0, bad, "plain characters");
    refuse("{'descr': '0123456789012345678901234567890123456789'}", 0, bad, "plain characters");
    refuse("{'fortran_order': 1}", 0, bad, "True or False");
    refuse("{'shape': 3}", 0, bad, "'('");
    refuse("{'shape': (3)}", 0, bad, "',' after the only length");
    refuse("{'shape': (3 4)}", 0, bad, "',' or ')'");
    refuse("{'shape': (-3,)}", 0, bad, "a length");
    refuse("{'shape': (,)}", 0, bad, "a length");
    refuse("{'shape': (3L,)}", 0, bad, "',' or ')'");
    refuse("{'shape': (3,", 0, bad, "a length");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", 4, bad, "blanks at the end");
}

static void describe(char *literal, size_t room, const char *descr, const char *shape)
{
    snprintf(literal, room, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }    \n", descr,
             shape);
}

static void refuse_array(const char *descr, const char *shape, size_t data_bytes, mha_status status,
                         const char *part)
{
    char literal[512];
    describe(literal, sizeof literal, descr, shape);
    refuse(literal, data_bytes, status, part);
}

static void test_refuses_arrays(void)
{
    refuse_array("<f4", "(3,)", 11, MHA_ERR_FORMAT, "truncated");
    refuse_array("<f4", "(3,)", 13, MHA_ERR_FORMAT, "no single array");
    refuse_array("<f4", "(9223372036854775808,)", 4, MHA_ERR_SIZE, "63 bits");
    refuse_array("<f4", "(99999999999999999999,)", 4, MHA_ERR_SIZE, "63 bits");
    refuse_array("<f4", "(4294967296, 4294967296)", 4, MHA_ERR_SIZE, "63 bits");
    refuse_array("<f8", "(4611686018427387904,)", 4, MHA_ERR_SIZE, "63 bits");
    refuse_array("<f4", "(4611686018427387904,)", 4, MHA_ERR_SIZE, "63 bits");
    refuse_array("<f4", "(1000000000000,)", 4, MHA_ERR_FORMAT, "needs 4000000000000 bytes");
    refuse_array("<f4", "(1,1,1,1,1,1,1)", 4, MHA_ERR_UNSUPPORTED, "6 dimensions");
    refuse_array(">f4", "()", 4, MHA_ERR_UNSUPPORTED, "'>f4'");
    refuse_array("|O", "()", 4, MHA_ERR_UNSUPPORTED, "'|O'");
    refuse("{'descr': [('a', '<f4')], }", 4, MHA_ERR_UNSUPPORTED, "records");
}

static void test_refuses_frames(void)
{
    mha_npy *array = NULL;
    mha_tensor tensor;
    const char *good = "{'descr': '<f4', 'fortran_order': False, 'shape': ()}";
    expect_error(mha_npy_read(put(4, good, 4), &array), MHA_ERR_UNSUPPORTED, "version 4.0");
    expect_error(mha_npy_read(put(0, good, 4), &array), MHA_ERR_UNSUPPORTED, "version 0.0");
    expect_error(mha_npy_read(temp_write("x", "\x93NUMPY\1\0\377\377", 10), &array), MHA_ERR_FORMAT,
                 "claims 65535 bytes");
    expect_error(mha_npy_read(temp_write("x", "\x93NUMPY\2\0\1\0", 10), &array), MHA_ERR_FORMAT,
                 "truncated");
    expect_error(mha_npy_read(temp_write("x", "\x93NUMPX\1\0\0\0", 10), &array), MHA_ERR_FORMAT,
                 "not a .npy file");
    expect_error(mha_npy_read(temp_write("x", "", 0), &array), MHA_ERR_FORMAT, "not a .npy file");
    expect_error(mha_npy_read(temp_path("missing"), &array), MHA_ERR_FILE, "no such file");
    expect_error(mha_npy_read(temp_path("."), &array), MHA_ERR_FILE, "a folder");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    expect_error(mha_npy_read(temp_path("fifo"), &array), MHA_ERR_FILE, "a FIFO");
    unlink(temp_path("fifo"));
    expect_error(mha_npy_read(NULL, &array), MHA_ERR_NULL, "NULL");
    expect_error(mha_npy_peek(NULL, &tensor), MHA_ERR_NULL, "NULL");
    expect_error(mha_npy_peek(temp_path("x"), NULL), MHA_ERR_NULL, "NULL");
    assert_null(array);
    mha_npy_destroy(NULL);
}

static void test_reads_every_type_and_version(void)
{
    static const struct {
        const char *descr;
        mha_dtype dtype;
    } types[] = {{"<f4", MHA_F32}, {"<f8", MHA_F64}, {"<f2", MHA_F16}, {"|i1", MHA_I8},
                 {"<i4", MHA_I32}, {"<i8", MHA_I64}, {"|u1", MHA_U8},  {"|b1", MHA_U8}};
    for (int version = 1; version <= 3; version++)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            char literal[256];
            mha_npy *array = NULL;
            size_t bytes = 6 * mha_dtype_size(types[i].dtype);
            describe(literal, sizeof literal, types[i].descr, "(2, 3)");
            expect_ok(mha_npy_read(put(version, literal, bytes), &array));
            mha_tensor tensor = mha_npy_tensor(array);
            assert_int_equal(tensor.dtype, types[i].dtype);
            assert_int_equal(tensor.ndim, 2);
            assert_int_equal(tensor.shape[1], 3);
            assert_int_equal(tensor.stride[0], 3);
            mha_tensor peeked;
            expect_ok(mha_npy_peek(temp_path("x.npy"), &peeked));
            assert_null(peeked.data);
            assert_int_equal(peeked.dtype, tensor.dtype);
            assert_int_equal(peeked.ndim, 2);
            assert_memory_equal(peeked.shape, tensor.shape, 2 * sizeof(int64_t));
            assert_memory_equal(peeked.stride, tensor.stride, 2 * sizeof(int64_t));
            for (size_t b = 0; b < bytes; b++)
                assert_int_equal(((unsigned char *)tensor.data)[b], b);
            mha_npy_destroy(array);
        }
}

static void test_reads_fortran_order(void)
{
    mha_npy *array = NULL;
    const char *literal = "{\"shape\":(2,3,4,),\"fortran_order\":True,\"descr\":\"|u1\"}";
    expect_ok(mha_npy_read(put(1, literal, 24), &array));
    mha_tensor t = mha_npy_tensor(array);
    const unsigned char *got = t.data;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++) assert_int_equal(*got++, i + 2 * j + 6 * k);
    assert_int_equal(t.stride[2], 1);
    mha_npy_destroy(array);
    literal = "{'shape':(0, 3),'fortran_order':True,'descr':'|u1'}";
    expect_ok(mha_npy_read(put(1, literal, 0), &array));
    mha_npy_destroy(array);
    literal = "{'shape':(4,9223372036854775807,0,3),'fortran_order':True,'descr':'<f4'}";
    expect_ok(mha_npy_read(put(1, literal, 0), &array));
    assert_int_equal(mha_npy_tensor(array).shape[1], INT64_MAX);
    mha_npy_destroy(array);
    literal = "{'shape':(),'fortran_order':True,'descr':'|u1'}";
    expect_ok(mha_npy_read(put(1, literal, 1), &array));
    assert_int_equal(mha_npy_tensor(array).ndim, 0);
    mha_npy_destroy(array);
}

static void test_writes_what_numpy_writes(void)
{
    static const struct {
        int ndim;
        int64_t shape[3];
        const char *text;
    } cases[] = {
        {0, {0}, "()"}, {1, {5}, "(5,)"}, {2, {2, 0}, "(2, 0)"}, {3, {1, 2, 3}, "(1, 2, 3)"}};
    float f[6] = {0, 1, 2, 3, 4, 5};
    const char *path = temp_path("out.npy");
    for (int i = 0; i < 4; i++) {
        char want[128] = "\x93NUMPY\1\0\x76\0", *got;
        size_t size;
        const mha_tensor t = mha_tensor_contiguous(f, MHA_F32, cases[i].ndim, cases[i].shape);
        int64_t count = 0;
        expect_ok(mha_tensor_count(&t, &count));
        expect_ok(mha_npy_write(path, &t));
        got = temp_read(path, &size);
        int length =
            snprintf(want + 10, sizeof want - 10,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", cases[i].text);
        memset(want + 10 + length, ' ', sizeof want - 10 - (size_t)length);
        want[127] = '\n';
        assert_int_equal(size, 128 + 4 * count);
        assert_memory_equal(got, want, 128);
        assert_memory_equal(got + 128, f, size - 128);
        free(got);
    }
}

static void test_writes_strided_views(void)
{
    /* Larger than the writer's buffer, axes exchanged, every second element, reversed. */
    enum { N = 150, M = 200 };
    static int32_t numbers[2 * N * M];
    for (int i = 0; i < 2 * N * M; i++) numbers[i] = i;
    const mha_tensor view = {.data = numbers + 2 * (N - 1),
                             .dtype = MHA_I32,
                             .ndim = 2,
                             .shape = {M, N},
                             .stride = {2 * N, -2}};
    const char *path = temp_path("strided.npy");
    mha_npy *array = NULL;
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(mha_npy_write(path, &view));
    expect_ok(mha_npy_write_to(&sink, &view));
    size_t size;
    char *bytes = temp_read(path, &size);
    assert_int_equal(buffer.size, size);
    assert_memory_equal(buffer.data, bytes, size);
    free(bytes);
    mha_buffer_free(&buffer);
    expect_ok(mha_npy_read(path, &array));
    mha_tensor t = mha_npy_tensor(array);
    const int32_t *got = t.data;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) assert_int_equal(*got++, 2 * N * i + 2 * (N - 1 - j));
    mha_npy_destroy(array);
}

static void test_refuses_to_write(void)
{
    float f[1] = {1};
    mha_tensor t = mha_tensor_contiguous(f, MHA_F32, 1, (int64_t[]){1});
    const char *path = temp_path("no.npy");
    expect_error(mha_npy_write(temp_path("."), &t), MHA_ERR_WRITE, "directory");
    expect_error(mha_npy_write(temp_path("nowhere/x"), &t), MHA_ERR_WRITE, "no such folder");
    temp_write("plain", "x", 1);
    expect_error(mha_npy_write(temp_path("plain/x"), &t), MHA_ERR_WRITE, "cannot write");
    expect_error(mha_npy_write(NULL, &t), MHA_ERR_NULL, "path is NULL");
    expect_error(mha_npy_write_to(NULL, &t), MHA_ERR_NULL, "NULL");
    t.dtype = MHA_BF16;
    expect_error(mha_npy_write(path, &t), MHA_ERR_UNSUPPORTED, "bf16");
    t.dtype = MHA_F32;
    t.ndim = 7;
    expect_error(mha_npy_write(path, &t), MHA_ERR_SHAPE, "ndim");
    t.ndim = 1;
    t.shape[0] = -1;
    expect_error(mha_npy_write(path, &t), MHA_ERR_SHAPE, "-1");
    t.shape[0] = 2;
    t.stride[0] = INT64_MAX;
    expect_error(mha_npy_write(path, &t), MHA_ERR_SIZE, "address space");
    t.data = NULL;
    expect_error(mha_npy_write(path, &t), MHA_ERR_NULL, "data");
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_full_disk_keeps_the_old_file(void)
{
    static float f[100000];
    const mha_tensor t = mha_tensor_contiguous(f, MHA_F32, 1, (int64_t[]){100000});
    const char *path = temp_write("kept.npy", "old", 3);
    int files = temp_count();
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = (struct rlimit){100000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    mha_status status = mha_npy_write(path, &t);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_error(status, MHA_ERR_WRITE, "kept.npy: cannot write");
    char *kept = temp_read(path, NULL);
    assert_string_equal(kept, "old");
    free(kept);
    assert_int_equal(temp_count(), files);
    if (access("/dev/full", W_OK) == 0)
        expect_error(mha_npy_write("/dev/full", &t), MHA_ERR_WRITE, "No space left");
}

static void test_whole_files(void)
{
    char *bytes = NULL;
    size_t size = 0;
    const char *path = temp_path("whole");
    expect_ok(mha_file_write(path, "a\0b", 3));
    expect_ok(mha_file_read(path, 3, &bytes, &size));
    assert_int_equal(size, 3);
    assert_memory_equal(bytes, "a\0b", 4);
    mha_file_free(bytes);
    mha_file_free(NULL);
    bytes = NULL;
    expect_error(mha_file_read(path, 2, &bytes, &size), MHA_ERR_SIZE, "3 bytes, at most 2");
    expect_error(mha_file_read(temp_path("gone"), 2, &bytes, &size), MHA_ERR_FILE, "no such file");
    expect_error(mha_file_read(NULL, 2, &bytes, &size), MHA_ERR_NULL, "NULL");
    expect_error(mha_file_write(path, NULL, 1), MHA_ERR_NULL, "bytes is NULL");
    assert_null(bytes);
    expect_ok(mha_file_write(path, NULL, 0));
    expect_ok(mha_file_read(path, 0, &bytes, &size));
    assert_int_equal(size, 0);
    mha_file_free(bytes);
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
}

static void test_links_and_devices(void)
{
    const char *target = temp_write("target", "old", 3), *link = temp_path("link");
    assert_int_equal(symlink("target", link), 0);
    expect_ok(mha_file_write(link, "new", 3));
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    char *text = temp_read(target, NULL);
    assert_string_equal(text, "new");
    free(text);
    assert_int_equal(chmod(target, 0600), 0); /* permissions are preserved */
    expect_ok(mha_file_write(link, "newer", 5));
    assert_true(stat(target, &info) == 0 && (info.st_mode & 0777) == 0600);
    if (geteuid() != 0) {
        assert_int_equal(chmod(target, 0400), 0);
        expect_error(mha_file_write(link, "newest", 6), MHA_ERR_WRITE, "cannot write");
    }
    assert_int_equal(unlink(target), 0);
    expect_error(mha_file_write(link, "new", 3), MHA_ERR_WRITE, "dangling symbolic link");
    expect_ok(mha_file_write("/dev/null", "new", 3));
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

static void test_mutations(void)
{
    static unsigned char bytes[512];
    size_t size;
    float f[24] = {1, 2, 3};
    const mha_tensor t = mha_tensor_contiguous(f, MHA_F32, 3, (int64_t[]){2, 3, 4});
    expect_ok(mha_npy_write(temp_path("good.npy"), &t));
    char *good = temp_read(temp_path("good.npy"), &size);
    int opened = 0, refused = 0;
    for (uint32_t seed = 0; seed < 6000; seed++) {
        size_t length = size;
        memcpy(bytes, good, size);
        mutate(bytes, &length, seed);
        mha_npy *array = NULL;
        mha_tensor peeked;
        mha_status status = mha_npy_read(temp_write("m.npy", bytes, length), &array);
        assert_int_equal(mha_npy_peek(temp_path("m.npy"), &peeked), status);
        if (status == MHA_OK) {
            mha_tensor got = mha_npy_tensor(array);
            assert_null(peeked.data);
            assert_int_equal(peeked.dtype, got.dtype);
            assert_int_equal(peeked.ndim, got.ndim);
            assert_memory_equal(peeked.shape, got.shape, (size_t)got.ndim * sizeof(int64_t));
            int64_t count = 0;
            expect_ok(mha_tensor_count(&got, &count));
            memset(got.data, 0, (size_t)count * mha_dtype_size(got.dtype));
            opened++;
        } else {
            assert_non_null(strstr(mha_error_detail(), "m.npy: "));
            refused++;
        }
        mha_npy_destroy(array);
    }
    print_message("%d mutants read, %d refused\n", opened, refused);
    assert_true(opened > 100 && refused > 1000);
    free(good);
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(test_refuses_headers), TEST(test_refuses_arrays),
                  TEST(test_refuses_frames), TEST(test_reads_every_type_and_version),
                  TEST(test_reads_fortran_order), TEST(test_writes_what_numpy_writes),
                  TEST(test_writes_strided_views), TEST(test_refuses_to_write),
                  TEST(test_full_disk_keeps_the_old_file), TEST(test_whole_files),
                  TEST(test_links_and_devices), TEST(test_mutations))
