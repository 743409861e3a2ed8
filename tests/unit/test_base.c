/* The base layer: status and detail, tensor views, contexts, scratch memory, loops. */
#define _GNU_SOURCE /* sched_setaffinity, sched_getcpu, syscall */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/multihead.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

/* Sanitizers reserve address space of their own and follow threads. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* ---- status --------------------------------------------------------------------------------- */

static void status_texts(void)
{
    assert_string_equal(mha_status_text(MHA_OK), "success");
    assert_string_equal(mha_status_text((mha_status)99), "unknown status");
    assert_int_equal(MHA_ERR_SHAPE, 10); /* must never change */
    assert_int_equal(MHA_ERR_CALLBACK, 60);
    assert_int_equal(MHA_ERR_RANK, 61);
#define CHECK_TEXT(name, value, text) \
    assert_int_equal(name, value);    \
    assert_string_equal(mha_status_text(name), text);
    MHA_STATUS_LIST(CHECK_TEXT)
#undef CHECK_TEXT
}

static void detail_is_one_clean_line(void)
{
    assert_int_equal(mha_fail(MHA_ERR_FILE, "%s: line\nfeed\ttab\x7F %d", "a", 7), MHA_ERR_FILE);
    assert_string_equal(mha_error_detail(), "a: line?feed?tab? 7");
    assert_int_equal(mha_fail(MHA_ERR_FILE, "again: %s", mha_error_detail()), MHA_ERR_FILE);
    assert_string_equal(mha_error_detail(), "again: a: line?feed?tab? 7");
    int64_t count;
    mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 0, NULL);
    expect_ok(mha_tensor_count(&x, &count));
    /* success does not change it */
    assert_string_equal(mha_error_detail(), "again: a: line?feed?tab? 7");
}

/* A long text is truncated after a complete character, for any bytes. */
static void detail_is_cut_between_characters(void)
{
    static const char *const characters[] = {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (int size = 1; size <= 4; size++)
        for (int lead = 0; lead < 4; lead++) {
            char text[1200] = "";
            memset(text, 'a', (size_t)lead);
            while (strlen(text) < 1100) strcat(text, characters[size - 1]);
            assert_int_equal(mha_fail(MHA_ERR_FILE, "%s", text), MHA_ERR_FILE);
            size_t length = strlen(mha_error_detail());
            assert_true(length <= 1023 && length > 1023 - (size_t)size);
            assert_int_equal((length - (size_t)lead) % (size_t)size, 0);
            assert_memory_equal(mha_error_detail(), text, length);
        }
}

static void *other_thread(void *argument)
{
    bool *empty = argument;
    *empty = *mha_error_detail() == '\0';
    (void)mha_fail(MHA_ERR_FILE, "of the other thread");
    return NULL;
}

static void detail_belongs_to_its_thread(void)
{
    pthread_t thread;
    bool empty = false;
    (void)mha_fail(MHA_ERR_FILE, "of the first thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &empty), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(empty);
    assert_string_equal(mha_error_detail(), "of the first thread");
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void element_types(void)
{
    static const struct {
        mha_dtype dtype;
        size_t size;
        const char *name;
    } types[] = {{MHA_F32, 4, "f32"},    {MHA_F64, 8, "f64"}, {MHA_F16, 2, "f16"},
                 {MHA_BF16, 2, "bf16"},  {MHA_I8, 1, "i8"},   {MHA_U8, 1, "u8"},
                 {MHA_I32, 4, "i32"},    {MHA_I64, 8, "i64"}, {(mha_dtype)8, 0, "?"},
                 {(mha_dtype)-1, 0, "?"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        assert_int_equal(mha_dtype_size(types[i].dtype), types[i].size);
        assert_string_equal(mha_dtype_name(types[i].dtype), types[i].name);
    }
}

static void views(void)
{
    float data[120];
    mha_tensor x = mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){2, 3, 4, 5});
    const int64_t contiguous[] = {60, 20, 5, 1};
    assert_memory_equal(x.stride, contiguous, sizeof contiguous);
    assert_ptr_equal(x.data, data);
    mha_tensor y = mha_tensor_bthd(data, 2, 3, 4, 5); /* B 2, T 3, H 4, D 5 */
    const int64_t shape[] = {2, 4, 3, 5}, stride[] = {60, 5, 20, 1};
    assert_memory_equal(y.shape, shape, sizeof shape);
    assert_memory_equal(y.stride, stride, sizeof stride);
    assert_int_equal(y.dtype, MHA_F32);
    for (mha_dtype type = MHA_F32; type <= MHA_I64; type++) {
        mha_tensor z = mha_tensor_bthd_of(data, type, 2, 3, 4, 5);
        assert_memory_equal(z.shape, y.shape, sizeof z.shape);
        assert_memory_equal(z.stride, y.stride, sizeof z.stride);
        assert_true(z.dtype == type && z.ndim == 4 && z.data == data);
    }
    assert_int_equal(mha_tensor_contiguous(data, MHA_F32, 7, shape).ndim, -1);
    assert_int_equal(mha_tensor_contiguous(data, MHA_F32, -1, shape).ndim, -1);
    assert_int_equal(mha_tensor_contiguous(data, MHA_F32, 1, NULL).ndim, -1);
    assert_int_equal(mha_tensor_contiguous(data, MHA_F32, 0, NULL).ndim, 0);
    const int64_t wraps[] = {INT64_MAX, INT64_MAX, INT64_MAX}; /* defined, rejected later */
    assert_int_equal(mha_tensor_contiguous(data, MHA_F32, 3, wraps).ndim, 3);
}

static void counts(void)
{
    int64_t count = -5;
    mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 3, (int64_t[]){2, 3, 4});
    expect_ok(mha_tensor_count(&x, &count));
    assert_int_equal(count, 24);
    x.ndim = 0;
    expect_ok(mha_tensor_count(&x, &count));
    assert_int_equal(count, 1);
    x = mha_tensor_contiguous(NULL, MHA_F32, 3, (int64_t[]){INT64_MAX, 0, INT64_MAX});
    expect_ok(mha_tensor_count(&x, &count));
    assert_int_equal(count, 0);
    expect_error(mha_tensor_count(NULL, &count), MHA_ERR_NULL, "mha_tensor_count");
    expect_error(mha_tensor_count(&x, NULL), MHA_ERR_NULL, "mha_tensor_count");
    x.shape[1] = -1;
    expect_error(mha_tensor_count(&x, &count), MHA_ERR_SHAPE, "dim 1");
    x.shape[1] = 3;
    expect_error(mha_tensor_count(&x, &count), MHA_ERR_SIZE, "overflow");
    x.ndim = 7;
    expect_error(mha_tensor_count(&x, &count), MHA_ERR_SHAPE, "ndim");
    assert_int_equal(count, 0); /* the failures do not change it */
}

/* ---- contexts ------------------------------------------------------------------------------- */

static mha_context *must_create(const mha_context_desc *desc)
{
    mha_context *context = NULL;
    if (mha_context_create(desc, &context) != MHA_OK) fail_msg("%s", mha_error_detail());
    return context;
}

static void clear_environment(void)
{
    unsetenv("MHA_ISA");
    unsetenv("MHA_THREADS");
    unsetenv("MHA_L2_KIB");
}

/* Adjacent views of a few rows are distinguished from overlapping ones, tested exhaustively. The check is not public;
 * an embedding's table and result use it. */
static void overlaps(void)
{
    mha_context *context = NULL;
    expect_ok(mha_context_create(NULL, &context));
    static float memory[400];
    int64_t apart = 0, refused = 0;
    for (int i = 0; i < 4000; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        int32_t ids[4] = {0};
        mha_tensor v[2], list = mha_tensor_contiguous(ids, MHA_I32, 1, (int64_t[]){4});
        bool touched[400] = {false}, shared = false;
        int64_t stride = rng_between(&r, 1, 20), cols = rng_between(&r, 1, 12);
        for (int j = 0; j < 2; j++) {
            if (j == 1 && rng_chance(&r, 0.3)) stride = rng_between(&r, 1, 20);
            v[j] = mha_tensor_contiguous(memory + rng_between(&r, 100, 200), MHA_F32, 2,
                                         (int64_t[]){4, cols});
            v[j].stride[0] = rng_chance(&r, 0.3) ? -stride : stride;
            for (int64_t row = 0; row < 4; row++)
                for (int64_t c = 0; c < cols; c++) {
                    int64_t at = (float *)v[j].data - memory + row * v[j].stride[0] + c;
                    shared |= j == 1 && touched[at];
                    touched[at] |= j == 0;
                }
        }
        if (stride < cols || llabs(v[0].stride[0]) < cols) continue; /* rows of one view overlap */
        mha_status status = mha_embedding(context, &v[0], &list, 0, &v[1]);
        assert_true(status == MHA_OK || status == MHA_ERR_OVERLAP);
        if (shared) assert_int_equal(status, MHA_ERR_OVERLAP);
        if (!shared && llabs(v[0].stride[0]) == llabs(v[1].stride[0]))
            expect_ok(status); /* rows of one stride: exact */
        apart += status == MHA_OK;
        refused += status != MHA_OK;
    }
    printf("  %lld pairs apart, %lld refused\n", (long long)apart, (long long)refused);
    assert_true(apart > 200 && refused > 200);
    mha_context_destroy(context);
}

static void instruction_sets(void)
{
    assert_true(mha_isa_available(MHA_ISA_AUTO));
    assert_true(mha_isa_available(MHA_ISA_PORTABLE));
    assert_false(mha_isa_available((mha_isa)77));
    assert_string_equal(mha_isa_name(MHA_ISA_AVX512), "avx512");
    assert_string_equal(mha_isa_name((mha_isa)77), "?");
    for (int isa = MHA_ISA_PORTABLE; isa <= MHA_ISA_AMX; isa++) {
        mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 1, .isa = (mha_isa)isa};
        mha_context *context = NULL;
        mha_status status = mha_context_create(&desc, &context);
        if (!mha_isa_available((mha_isa)isa)) {
            expect_error(status, MHA_ERR_UNSUPPORTED, mha_isa_name((mha_isa)isa));
            continue;
        }
        expect_ok(status);
        assert_int_equal(mha_context_isa(context), isa);
        mha_context_destroy(context);
    }
}

static void environment(void)
{
    clear_environment();
    mha_context_desc desc = {.struct_size = sizeof desc};
    setenv("MHA_ISA", "portable", 1);
    setenv("MHA_THREADS", "3", 1);
    mha_context *context = must_create(&desc);
    assert_int_equal(mha_context_isa(context), MHA_ISA_PORTABLE);
    assert_int_equal(mha_context_threads(context), 3);
    mha_context_destroy(context);
    desc.num_threads = 2; /* explicit settings take precedence */
    desc.isa = mha_isa_available(MHA_ISA_AVX2) ? MHA_ISA_AVX2 : MHA_ISA_PORTABLE;
    context = must_create(&desc);
    assert_int_equal(mha_context_isa(context), desc.isa);
    assert_int_equal(mha_context_threads(context), 2);
    mha_context_destroy(context);
    context = NULL;
    static const char *const bad_threads[] = {
        "0", "-1", "x", "3x", "1025", "99999999999999999999", " 2", "+2", "2 ", "0x2", "\t2"};
    for (size_t i = 0; i < sizeof bad_threads / sizeof bad_threads[0]; i++) {
        setenv("MHA_THREADS", bad_threads[i], 1);
        expect_error(mha_context_create(NULL, &context), MHA_ERR_ARGUMENT, "MHA_THREADS");
    }
    clear_environment();
    setenv("MHA_L2_KIB", "96", 1);
    context = must_create(NULL);
    assert_int_equal(mha_context_l2(context), 96 << 10);
    mha_context_destroy(context);
    context = NULL;
    static const char *const bad_sizes[] = {"0", "1M", "1048577", "-1"};
    for (size_t i = 0; i < sizeof bad_sizes / sizeof bad_sizes[0]; i++) {
        setenv("MHA_L2_KIB", bad_sizes[i], 1);
        expect_error(mha_context_create(NULL, &context), MHA_ERR_ARGUMENT, "MHA_L2_KIB");
    }
    clear_environment();
    setenv("MHA_ISA", "sse9", 1);
    expect_error(mha_context_create(NULL, &context), MHA_ERR_ARGUMENT, "MHA_ISA");
    setenv("MHA_ISA", "", 1);
    context = must_create(NULL);
    assert_true(mha_context_isa(context) != MHA_ISA_AUTO);
    assert_true(mha_context_threads(context) >= 1);
    mha_context_destroy(context);
    clear_environment();
}

static void *no_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user, (void)bytes, (void)alignment;
    return NULL;
}

static void context_errors(void)
{
    clear_environment();
    mha_context *context = NULL;
    mha_context_desc desc = {.struct_size = sizeof desc};
    expect_error(mha_context_create(&desc, NULL), MHA_ERR_NULL, "context");
    desc.struct_size = 0;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_ARGUMENT, "struct_size");
    desc.struct_size = sizeof desc - 1;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_ARGUMENT, "struct_size");
    desc.struct_size = sizeof desc;
    desc.num_threads = -1;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_ARGUMENT, "num_threads");
    desc.num_threads = 1025;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_ARGUMENT, "num_threads");
    desc.num_threads = 1;
    desc.isa = (mha_isa)77;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_UNSUPPORTED, "isa");
    desc.isa = MHA_ISA_AUTO;
    desc.allocator.alloc = no_alloc;
    expect_error(mha_context_create(&desc, &context), MHA_ERR_ARGUMENT, "allocator");
    desc.allocator.alloc = NULL;
    expect_error(mha_context_reserve(NULL, 1), MHA_ERR_NULL, "context");
    assert_null(context);
    mha_context_destroy(NULL);
}

static void newer_context_desc(void)
{
    struct {
        mha_context_desc desc;
        unsigned char more[16];
    } newer;
    mha_context *context = NULL;
    memset(&newer, 0, sizeof newer);
    newer.desc.struct_size = sizeof newer;
    mha_context_destroy(must_create(&newer.desc));
    for (size_t i = 0; i < sizeof newer.more; i++) {
        newer.more[i] = 1;
        expect_error(mha_context_create(&newer.desc, &context), MHA_ERR_UNSUPPORTED,
                     "mha_context_desc");
        assert_null(context);
        newer.more[i] = 0;
    }
}

static void default_allocator(void)
{
    mha_context *context = must_create(NULL);
    mha_allocator allocator = mha_context_allocator(context);
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        void *memory = allocator.alloc(allocator.user, 100, alignment);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % alignment, 0);
        memset(memory, 1, 100);
        allocator.release(allocator.user, memory, 100);
    }
    mha_context_destroy(context);
}

/* ---- scratch -------------------------------------------------------------------------------- */

static mha_context *counting_context(failing_alloc *memory, int32_t threads)
{
    mha_context_desc desc = {.struct_size = sizeof desc,
                             .num_threads = threads,
                             .allocator = failing_alloc_interface(memory)};
    return must_create(&desc);
}

static void scratch_is_a_stack(void)
{
    failing_alloc memory = failing_alloc_make();
    mha_context *context = counting_context(&memory, 1);
    for (int round = 0; round < 4; round++) {
        int64_t calls = memory.calls;
        mha_scratch_mark marks[40];
        unsigned char *parts[40];
        for (int i = 0; i < 40; i++) {
            void *part;
            marks[i] = mha_scratch_top(context);
            expect_ok(mha_scratch_alloc(context, 1 + i * 997, (size_t)(1 + i % 9), &part));
            assert_int_equal((uintptr_t)part % 64, 0);
            parts[i] = part;
            memset(part, i, (size_t)(1 + i * 997) * (size_t)(1 + i % 9));
        }
        for (int i = 39; i >= 0; i--) {
            for (int64_t j = 0; j < (1 + i * 997) * (1 + i % 9); j++)
                assert_int_equal(parts[i][j], i);
            mha_scratch_release(context, marks[i]);
        }
        if (round > 1) assert_int_equal(memory.calls, calls); /* no further allocations */
    }
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(memory.mistakes, 0);
}

static void scratch_errors(void)
{
    failing_alloc memory = failing_alloc_make();
    mha_context *context = counting_context(&memory, 1);
    void *part = &part;
    expect_error(mha_scratch_alloc(context, -1, 4, &part), MHA_ERR_SIZE, "scratch");
    assert_null(part);
    expect_error(mha_scratch_alloc(context, INT64_MAX, 8, &part), MHA_ERR_SIZE, "scratch");
    expect_error(mha_scratch_alloc(context, INT64_MAX - 8, 1, &part), MHA_ERR_SIZE, "scratch");
    expect_ok(mha_scratch_alloc(context, 0, 8, &part));
    assert_non_null(part);
    memory.fail_at = memory.calls;
    memory.fail_after = true;
    expect_error(mha_scratch_alloc(context, 1 << 24, 8, &part), MHA_ERR_NOMEM, "scratch");
    assert_null(part);
    expect_error(mha_scratch_alloc(context, INT64_MAX / 16, 8, &part), MHA_ERR_NOMEM, "scratch");
    memory.fail_at = -1;
    expect_ok(mha_scratch_alloc(context, 1 << 20, 8, &part));
    mha_scratch_release(context, (mha_scratch_mark){0, 0});
    expect_ok(mha_context_reserve(context, 1 << 24));
    int64_t calls = memory.calls;
    expect_ok(mha_context_reserve(context, 1 << 20));
    void *held;
    mha_scratch_mark before = mha_scratch_top(context);
    expect_ok(mha_scratch_alloc(context, 1, 1, &held));
    expect_error(mha_context_reserve(context, 1 << 25), MHA_ERR_ARGUMENT, "in use");
    mha_scratch_release(context, before);
    expect_ok(mha_scratch_alloc(context, 1 << 24, 1, &part));
    assert_int_equal(memory.calls, calls);
    mha_scratch_release(context, (mha_scratch_mark){0, 0});
    memory.fail_at = memory.calls;
    expect_error(mha_context_reserve(context, (size_t)1 << 25), MHA_ERR_NOMEM, "scratch");
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
}

/* Every allocation of context creation fails once; nothing leaks. */
static void creation_without_memory(void)
{
    for (int64_t n = 0;; n++) {
        failing_alloc memory = failing_alloc_make();
        memory.fail_at = n;
        mha_context_desc desc = {.struct_size = sizeof desc,
                                 .num_threads = 4,
                                 .allocator = failing_alloc_interface(&memory)};
        mha_context *context = NULL;
        mha_status status = mha_context_create(&desc, &context);
        if (status == MHA_OK) {
            assert_int_equal(n, 2); /* the context and its pool */
            mha_context_destroy(context);
        } else {
            expect_error(status, MHA_ERR_NOMEM, "context");
            assert_null(context);
        }
        assert_int_equal(memory.live, 0);
        assert_int_equal(memory.mistakes, 0);
        if (status == MHA_OK) break;
    }
}

/* ---- loops ---------------------------------------------------------------------------------- */

enum { MOST_ITEMS = 3000, MOST_WORKERS = 16 };

typedef struct loop {
    atomic_int done[MOST_ITEMS];
    atomic_flag busy[MOST_WORKERS];
    atomic_int mistakes;
    int workers;
} loop;

static void loop_body(void *argument, int64_t item, int worker)
{
    loop *l = argument;
    if (worker < 0 || worker >= l->workers || atomic_flag_test_and_set(&l->busy[worker])) {
        atomic_fetch_add(&l->mistakes, 1);
        return;
    }
    atomic_fetch_add(&l->done[item], 1);
    atomic_flag_clear(&l->busy[worker]);
}

static void check_loop(mha_context *context, loop *l, int64_t items)
{
    memset(l, 0, sizeof *l);
    for (int i = 0; i < MOST_WORKERS; i++) atomic_flag_clear(&l->busy[i]);
    l->workers = mha_context_threads(context);
    mha_parallel_for(context, items, loop_body, l);
    for (int64_t i = 0; i < MOST_ITEMS; i++)
        if (atomic_load(&l->done[i]) != (i < items)) atomic_fetch_add(&l->mistakes, 1);
}

static void loops_do_each_item_once(void)
{
    static const int threads[] = {1, 2, 3, 8, 16};
    static const int64_t items[] = {0, 1, 2, 3, 17, 1000, MOST_ITEMS};
    loop *l = malloc(sizeof *l);
    assert_non_null(l);
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = threads[i]};
        mha_context *context = must_create(&desc);
        for (int round = 0; round < 30; round++)
            for (size_t j = 0; j < sizeof items / sizeof items[0]; j++) {
                check_loop(context, l, items[j]);
                assert_int_equal(atomic_load(&l->mistakes), 0);
            }
        mha_context_destroy(context);
    }
    free(l);
}

/* Several host threads, each with its own context. */
static void *host_thread(void *argument)
{
    loop *l = argument;
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 3};
    mha_context *context;
    int mistakes = 0;
    for (int round = 0; round < 10; round++) {
        if (mha_context_create(&desc, &context) != MHA_OK) return argument;
        for (int i = 0; i < 5; i++) {
            check_loop(context, l, 500);
            mistakes += atomic_load(&l->mistakes);
        }
        mha_context_destroy(context);
    }
    return mistakes ? argument : NULL;
}

static void contexts_are_independent(void)
{
    enum { HOSTS = 4 };
    pthread_t threads[HOSTS];
    loop *loops = calloc(HOSTS, sizeof *loops);
    assert_non_null(loops);
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, host_thread, &loops[i]), 0);
    for (int i = 0; i < HOSTS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    free(loops);
}

typedef struct host {
    int calls;
    int64_t items;
} host;

static void host_loop(void *user, int64_t items, mha_parallel_body body, void *argument)
{
    host *h = user;
    h->calls++;
    h->items += items;
    for (int64_t i = items - 1; i >= 0; i--) body(argument, i, (int)(i % 4));
}

static void host_parallel_for(void)
{
    host h = {0};
    failing_alloc memory = failing_alloc_make();
    mha_context_desc desc = {.struct_size = sizeof desc,
                             .num_threads = 4,
                             .allocator = failing_alloc_interface(&memory),
                             .parallel_for = host_loop,
                             .parallel_for_user = &h};
    mha_context *context = must_create(&desc);
    assert_int_equal(memory.calls, 1); /* no separate pool */
    assert_int_equal(mha_context_threads(context), 4);
    loop *l = malloc(sizeof *l);
    assert_non_null(l);
    check_loop(context, l, 100);
    assert_int_equal(atomic_load(&l->mistakes), 0);
    assert_int_equal(h.calls, 1);
    assert_int_equal(h.items, 100);
    free(l);
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
}

#ifndef SANITIZED
typedef struct counted {
    atomic_int done[MOST_ITEMS];
} counted;

static void count_item(void *argument, int64_t item, int worker)
{
    counted *c = argument;
    (void)worker;
    atomic_fetch_add(&c->done[item], 1);
}
#endif

#if defined(__linux__)
typedef struct meeting {
    atomic_bool both;
    pid_t thread; /* the other worker: its id, its CPU, and its allowed CPUs */
    int processor;
    cpu_set_t allowed;
} meeting;

/* Worker 0 waits for the other, so that each does an item. */
static void meet(void *argument, int64_t item, int worker)
{
    meeting *m = argument;
    (void)item;
    if (worker == 0) {
        for (int i = 0; i < 10000 && !atomic_load(&m->both); i++) usleep(1000);
        return;
    }
    m->thread = (pid_t)syscall(SYS_gettid);
    m->processor = sched_getcpu();
    (void)sched_getaffinity(0, sizeof m->allowed, &m->allowed);
    atomic_store(&m->both, true);
}

static void allow(pid_t thread, const cpu_set_t *processors)
{
    assert_int_equal(sched_setaffinity(thread, sizeof *processors, processors), 0);
}

static void wait_until_asleep(pid_t thread)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    for (int i = 0; i < 10000 && state != 'S'; i++) {
        usleep(1000);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        if (fscanf(file, "%*d %*s %c", &state) != 1) state = 0;
        fclose(file);
    }
    assert_int_equal(state, 'S');
}

/* Let a worker fall asleep on CPU `here`, where the caller now runs and remains, then meet it. */
static meeting met_after_sleep_on(mha_context *context, pid_t thread, const cpu_set_t *here,
                                  const cpu_set_t *all)
{
    meeting m = {.both = false};
    allow(0, here);
    allow(thread, here);
    mha_parallel_for(context, 2, meet, &m);
    assert_true(CPU_EQUAL(&m.allowed, here)); /* the host's affinity is respected */
    wait_until_asleep(thread);
    allow(thread, all);
    m = (meeting){.both = false};
    mha_parallel_for(context, 2, meet, &m);
    allow(0, all);
    assert_true(atomic_load(&m.both));
    assert_true(CPU_EQUAL(&m.allowed, all)); /* and is not reduced */
    return m;
}

/* A worker wakes on another CPU than its caller. The system may move it later because of other
 * load, so only one of several rounds must succeed. */
static void workers_wake_off_the_caller(void)
{
    enum { TRIES = 20, MOST = 15, ROUNDS = 10 };
    cpu_set_t all, here;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) skip();
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 2};
    mha_context *context;
    expect_ok(mha_context_create(&desc, &context));
    meeting m = {.both = false};
    mha_parallel_for(context, 2, meet, &m);
    assert_true(atomic_load(&m.both));
    int elsewhere = 0;
    for (int round = 0; round < ROUNDS && elsewhere < MOST; round++) {
        elsewhere = 0;
        for (int i = 0, processor = 0; i < TRIES; i++, processor++) {
            while (!CPU_ISSET((size_t)(processor % CPU_SETSIZE), &all)) processor++;
            processor %= CPU_SETSIZE;
            CPU_ZERO(&here);
            CPU_SET((size_t)processor, &here);
            elsewhere += met_after_sleep_on(context, m.thread, &here, &all).processor != processor;
        }
        printf("  elsewhere %d of %d times\n", elsewhere, (int)TRIES);
    }
    assert_true(elsewhere >= MOST);
    mha_context_destroy(context);
}
#else
static void workers_wake_off_the_caller(void)
{
    skip(); /* only Linux reports a thread's CPU */
}
#endif

/* A pool works with fewer threads if the system refuses some. Tested in a child process, because
 * limits persist. */
static void threads_refused(void)
{
#ifdef SANITIZED
    printf("  skipped: sanitizers need the address space that this test takes away\n");
    skip();
#else
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        struct rlimit few = {256u << 20, 256u << 20}; /* stacks of 8 MiB: about 30 threads */
        mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 500};
        mha_context *context = NULL;
        static counted c;
        bool right =
            setrlimit(RLIMIT_AS, &few) == 0 && mha_context_create(&desc, &context) == MHA_OK;
        if (right) mha_parallel_for(context, MOST_ITEMS, count_item, &c);
        for (int i = 0; i < MOST_ITEMS; i++) right = right && atomic_load(&c.done[i]) == 1;
        mha_context_destroy(context);
        _exit(right ? 0 : 1);
    }
    int result = 0;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
#endif
}

/* The library's version equals that of its headers. */
static void versions(void)
{
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", MHA_VERSION_MAJOR, MHA_VERSION_MINOR,
             MHA_VERSION_PATCH);
    assert_string_equal(mha_version(), text);
    assert_int_equal(mha_version_number(),
                     (MHA_VERSION_MAJOR * 100 + MHA_VERSION_MINOR) * 100 + MHA_VERSION_PATCH);
}

RUN_TESTS(TEST(versions), TEST(status_texts), TEST(detail_is_one_clean_line),
          TEST(detail_is_cut_between_characters), TEST(detail_belongs_to_its_thread),
          TEST(element_types), TEST(views), TEST(counts), TEST(overlaps), TEST(instruction_sets),
          TEST(environment), TEST(context_errors), TEST(newer_context_desc),
          TEST(default_allocator), TEST(scratch_is_a_stack), TEST(scratch_errors),
          TEST(creation_without_memory), TEST(loops_do_each_item_once),
          TEST(contexts_are_independent), TEST(host_parallel_for),
          TEST(workers_wake_off_the_caller), TEST(threads_refused))
