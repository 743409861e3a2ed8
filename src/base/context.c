/* Contexts, and validation of the settings from the caller and the environment. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/context.h"

#include "base/cpu.h"
#include "base/need.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_THREADS = 1024 };

/* Minimum size for huge pages. Matrices are also read by columns, one page per row; with 4 KiB
 * pages, a training step of width 512 takes 7 % longer. */
enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 2 * HUGE_PAGE };

static void *default_alloc(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    const bool huge = bytes >= HUGE_FROM && alignment <= HUGE_PAGE;
    void *memory = NULL;
    if (posix_memalign(&memory, huge ? HUGE_PAGE : alignment, bytes) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (huge) (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

static void default_release(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

static mha_status choose_isa(mha_isa asked, mha_isa *isa)
{
    if (asked != MHA_ISA_AUTO) {
        if (!mha_isa_available(asked))
            return mha_fail(
                MHA_ERR_UNSUPPORTED, "isa: %s (%d) is not available here, the best is %s",
                mha_isa_name(asked), (int)asked, mha_isa_name(mhai_cpu_best(MHA_ISA_AUTO)));
        *isa = asked;
        return MHA_OK;
    }
    const char *text = getenv("MHA_ISA");
    mha_isa limit = MHA_ISA_AUTO;
    if (text && *text && !mhai_isa_from_name(text, &limit))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "MHA_ISA is '%.40s', expected auto, portable, neon, avx2, avx512 or amx",
                        text);
    *isa = mhai_cpu_best(limit);
    return MHA_OK;
}

/* Read a number from 1 to `most` from the environment; 0 if the variable is not set. */
static mha_status read_number(const char *name, long most, long *value)
{
    const char *text = getenv(name);
    if (!text || !*text) return MHA_OK;
    const bool digits = !text[strspn(text, "0123456789")]; /* strtol() accepts blanks and + */
    *value = digits ? strtol(text, NULL, 10) : 0;
    if (*value < 1 || *value > most)
        return mha_fail(MHA_ERR_ARGUMENT, "%s is '%.40s', expected 1..%ld", name, text, most);
    return MHA_OK;
}

static mha_status choose_threads(int32_t asked, int *threads)
{
    long value = asked;
    MHA_TRY(mhai_check_range("num_threads", asked, 0, MOST_THREADS));
    if (asked == 0) MHA_TRY(read_number("MHA_THREADS", MOST_THREADS, &value));
    *threads = value ? (int)value : mhai_cpu_count();
    return MHA_OK;
}

static mha_status choose_l2(int64_t *l2)
{
    enum { MOST_KIB = 1 << 20 };
    long kib = 0;
    MHA_TRY(read_number("MHA_L2_KIB", MOST_KIB, &kib));
    *l2 = kib ? (int64_t)kib << 10 : mhai_cpu_l2();
    return MHA_OK;
}

mha_status mha_context_create(const mha_context_desc *desc, mha_context **context)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_context_create: context is NULL");
    mha_context_desc own;
    MHA_TRY(mhai_struct_copy("mha_context_desc", &own, sizeof own, sizeof own, desc));
    if (!own.allocator.alloc != !own.allocator.release)
        return mha_fail(MHA_ERR_ARGUMENT, "allocator: set both alloc and release, or neither");
    if (!own.allocator.alloc) own.allocator = (mha_allocator){default_alloc, default_release, NULL};
    mha_isa isa = MHA_ISA_PORTABLE;
    int64_t l2 = 0;
    int threads = 1;
    MHA_TRY(choose_isa(own.isa, &isa));
    MHA_TRY(choose_threads(own.num_threads, &threads));
    MHA_TRY(choose_l2(&l2));
    mha_context *made =
        own.allocator.alloc(own.allocator.user, sizeof *made, _Alignof(mha_context));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "context: cannot allocate %zu bytes", sizeof *made);
    memset(made, 0, sizeof *made);
    made->allocator = made->scratch.allocator = own.allocator;
    made->isa = isa;
    made->num_threads = threads;
    made->l2 = l2;
    made->host_parallel_for = own.parallel_for;
    made->host_user = own.parallel_for_user;
    if (threads > 1 && !own.parallel_for) {
        made->pool = mhai_pool_create(&own.allocator, threads);
        if (!made->pool) {
            own.allocator.release(own.allocator.user, made, sizeof *made);
            return mha_fail(MHA_ERR_NOMEM, "context: cannot allocate a pool of %d threads",
                            threads);
        }
    }
    *context = made;
    return MHA_OK;
}

void mha_context_destroy(mha_context *context)
{
    if (!context) return;
    mhai_pool_destroy(context->pool);
    mhai_scratch_free(&context->scratch);
    mha_allocator allocator = context->allocator;
    allocator.release(allocator.user, context, sizeof *context);
}

mha_isa mha_context_isa(const mha_context *context)
{
    return context->isa;
}

int mha_context_threads(const mha_context *context)
{
    return context->num_threads;
}

int64_t mha_context_l2(const mha_context *context)
{
    return context->l2;
}

mha_allocator mha_context_allocator(const mha_context *context)
{
    return context->allocator;
}

mha_status mha_context_reserve(mha_context *context, size_t bytes)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_context_reserve: context is NULL");
    return mhai_scratch_reserve(&context->scratch, bytes);
}

void mha_parallel_for(mha_context *context, int64_t items, mha_parallel_body body, void *argument)
{
    if (context->host_parallel_for && items > 1)
        context->host_parallel_for(context->host_user, items, body, argument);
    else if (context->pool && items > 1)
        mhai_pool_run(context->pool, items, body, argument);
    else
        for (int64_t item = 0; item < items; item++) body(argument, item, 0);
}
