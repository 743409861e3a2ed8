/* Calls in hosts: on threads with small stacks, on many threads at the same time, and in forks
 * while other threads compute. One piece of work makes every kind of call, and the hash of its
 * results must always be the same. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "support/backward_call.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/backward.h>
#include <multihead/cache.h>
#include <multihead/linear_attention.h>
#include <multihead/module_backward.h>
#include <multihead/optimizer.h>
#include <multihead/render.h>
#include <multihead/sink.h>
#include <multihead/tokenizer.h>
#include <multihead/transformer.h>

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#define ADDRESS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED 1
#elif __has_feature(address_sanitizer)
#define SANITIZED 1
#define ADDRESS_SANITIZED 1
#endif
#endif

/* ---- the work -------------------------------------------------------------------------------- */

#ifdef SANITIZED /* sanitizers check threads, not lengths */
enum { T = 10, S = 70, D = 16, LENGTH = 8, FORKS = 1 };
#else
enum { T = 40, S = 600, D = 64, LENGTH = 24, FORKS = 3 };
#endif
enum { B = 2, H = 4, HK = 2, E = H * D, OFFSETS = 3, TOP = 4 };
enum { VOCAB = 50, LAYERS = 2, NUMBERS = 1 << 20 };

typedef struct work {
    mha_context *context;
    const char *failed; /* the first failed call */
    uint64_t hash;      /* hash of all results */
    int64_t used;
    float *numbers; /* [NUMBERS] normal numbers, allocated in ascending order */
} work;

#define DO(w, call)                                                \
    do {                                                           \
        if (!(w)->failed && (call) != MHA_OK) (w)->failed = #call; \
    } while (0)

/* FNV-1a. */
static void hash_bytes(work *w, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        w->hash = (w->hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
}

static void hash_tensor(work *w, const mha_tensor *x)
{
    int64_t count = 0;
    DO(w, mha_tensor_count(x, &count));
    hash_bytes(w, x->data, (size_t)count * mha_dtype_size(x->dtype));
}

static mha_tensor take(work *w, int ndim, const int64_t *shape)
{
    mha_tensor x = mha_tensor_contiguous(w->numbers + w->used, MHA_F32, ndim, shape);
    int64_t count = 0;
    DO(w, mha_tensor_count(&x, &count));
    w->used += count;
    if (w->used > NUMBERS) w->failed = "the room for numbers";
    return x;
}

#define TAKE(w, ...)                                                   \
    take(w, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
         (const int64_t[]){__VA_ARGS__})

/* Forward with every output, then backward, of t queries and s keys. */
static void attend(work *w, const mha_attention_desc *desc, int64_t t, int64_t s)
{
    const int64_t before = w->used;
    static const int64_t offsets[OFFSETS] = {0, -1, 1};
    const mha_tensor q = TAKE(w, B, H, t, D), k = TAKE(w, B, HK, s, D), v = TAKE(w, B, HK, s, D);
    const mha_tensor o = TAKE(w, B, H, t, D), lse = TAKE(w, B, H, t);
    const mha_attention_outputs least = {.struct_size = sizeof least, .lse = &lse};
    DO(w, mha_attention_forward(w->context, desc, &q, &k, &v, &o, &least));
    hash_tensor(w, &o);
    if (desc->compute == MHA_COMPUTE_F32) {
        const mha_tensor p = TAKE(w, B, H, t, s), mean = TAKE(w, B, t, s), sums = TAKE(w, B, H, s);
        const mha_tensor entropy = TAKE(w, B, H, t), mass = TAKE(w, B, H, t, OFFSETS);
        const mha_tensor weights = TAKE(w, B, H, t, TOP);
        int64_t *list = malloc(sizeof *list * B * H * T * TOP);
        if (!list) w->failed = "malloc";
        const mha_tensor keys =
            mha_tensor_contiguous(list, MHA_I64, 4, (const int64_t[]){B, H, t, TOP});
        const mha_attention_outputs all = {.struct_size = sizeof all,
                                           .lse = &lse,
                                           .probabilities = &p,
                                           .average_probabilities = &mean,
                                           .column_sums = &sums,
                                           .entropy = &entropy,
                                           .offset_mass = &mass,
                                           .offsets = offsets,
                                           .offsets_count = OFFSETS,
                                           .top_keys = &keys,
                                           .top_weights = &weights};
        DO(w, mha_attention_forward(w->context, desc, &q, &k, &v, &o, &all));
        const mha_tensor *const made[] = {&o, &p, &mean, &sums, &entropy, &mass, &keys, &weights};
        for (int i = 0; i < 8; i++) hash_tensor(w, made[i]);
        free(list);
        const mha_tensor dq = TAKE(w, B, H, t, D), dk = TAKE(w, B, HK, s, D);
        const mha_tensor dv = TAKE(w, B, HK, s, D), g = TAKE(w, B, H, t, D);
        const mha_attention_gradients gradients = {
            .struct_size = sizeof gradients, .q = &dq, .k = &dk, .v = &dv};
        DO(w, mha_attention_backward(w->context,
                                     BACKWARD_CALL(desc, &q, &k, &v, &o, &lse, &g, &gradients)));
        hash_tensor(w, &dq), hash_tensor(w, &dk), hash_tensor(w, &dv);
    }
    w->used = before;
}

static void linear_attention(work *w)
{
    const int64_t before = w->used;
    const mha_tensor q = TAKE(w, B, H, T, D), k = TAKE(w, B, HK, T, D), v = TAKE(w, B, HK, T, D);
    const mha_tensor o = TAKE(w, B, H, T, D), dq = TAKE(w, B, H, T, D), dk = TAKE(w, B, HK, T, D);
    const mha_tensor dv = TAKE(w, B, HK, T, D);
    const mha_linear_attention_desc desc = {.struct_size = sizeof desc,
                                            .flags = MHA_LINEAR_ATTENTION_CAUSAL};
    const mha_linear_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &dq, .k = &dk, .v = &dv};
    DO(w, mha_linear_attention_forward(w->context, &desc, &q, &k, &v, &o, NULL));
    DO(w, mha_linear_attention_backward(w->context, &desc, &q, &k, &v, &o, &gradients));
    hash_tensor(w, &o), hash_tensor(w, &dq), hash_tensor(w, &dk), hash_tensor(w, &dv);
    w->used = before;
}

/* Calls for whole sequences, for their gradients, and for a step with a cache. */
static void module_calls(work *w)
{
    const int64_t before = w->used;
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .flags = MHA_MODULE_ROPE | MHA_MODULE_QK_NORM,
                                  .embed_dim = E,
                                  .num_heads = H};
    mha_module *module = NULL;
    mha_kv_cache *cache = NULL;
    mha_module_parameter p;
    const mha_tensor x = TAKE(w, B, T, E), y = TAKE(w, B, T, E), dx = TAKE(w, B, T, E);
    const mha_tensor q = TAKE(w, B, H, T, D), k = TAKE(w, B, H, T, D), v = TAKE(w, B, H, T, D);
    const mha_tensor heads = TAKE(w, B, H, T, D), lse = TAKE(w, B, H, T);
    DO(w, mha_module_create(w->context, &desc, &module));
    for (int64_t i = 0; !w->failed && mha_module_parameter_at(module, i, &p); i++) {
        const int64_t at = w->used;
        const mha_tensor value = take(w, p.ndim, p.shape);
        DO(w, mha_module_set_parameter(module, p.name, &value));
        w->used = at;
    }
    DO(w, mha_module_cache_create(w->context, module, B, T, &cache));
    const mha_module_outputs kept = {
        .struct_size = sizeof kept, .q = &q, .k = &k, .v = &v, .heads = &heads, .lse = &lse};
    mha_module_call call = {.struct_size = sizeof call,
                            .query = &x,
                            .key = &x,
                            .value = &x,
                            .out = &y,
                            .outputs = &kept};
    const mha_module_gradients gradients = {.struct_size = sizeof gradients, .query = &dx};
    DO(w, mha_module_run(w->context, module, &call));
    hash_tensor(w, &y);
    DO(w, mha_module_backward(w->context, module, &call, &y, &gradients));
    hash_tensor(w, &dx);
    call.outputs = NULL;
    call.cache = cache;
    DO(w, mha_module_run(w->context, module, &call));
    hash_tensor(w, &y);
    mha_kv_cache_destroy(cache);
    mha_module_destroy(module);
    w->used = before;
}

static void transformer_calls(work *w)
{
    const int64_t before = w->used;
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .flags = MHA_TRANSFORMER_CAUSAL,
                                       .vocab_size = VOCAB,
                                       .max_length = LENGTH,
                                       .embed_dim = 64,
                                       .num_layers = LAYERS,
                                       .num_heads = H,
                                       .ff_dim = 128};
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 1};
    mha_transformer *t = NULL;
    mha_activations *kept = NULL;
    mha_decoder *decoder = NULL;
    int32_t ids[B * LENGTH];
    for (int i = 0; i < B * LENGTH; i++) ids[i] = i * 7 % VOCAB;
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){B, LENGTH});
    const mha_tensor y = TAKE(w, B, LENGTH, VOCAB), first = TAKE(w, 1, LENGTH, VOCAB);
    const mha_tensor g = TAKE(w, B, LENGTH, VOCAB);
    DO(w, mha_transformer_create(w->context, &desc, &t));
    DO(w, mha_transformer_initialise(w->context, t, &init));
    DO(w, mha_activations_create(w->context, t, B * LENGTH, 0, &kept));
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    DO(w, mha_transformer_forward(w->context, t, &input, kept, &y, NULL, NULL));
    hash_tensor(w, &y);
    const mha_tensor flat = w->failed ? y : TAKE(w, mha_transformer_size(t));
    memset(flat.data, 0, sizeof(float) * (size_t)flat.shape[0]);
    const mha_transformer_gradients gradients = {.struct_size = sizeof gradients,
                                                 .parameters = flat.data};
    DO(w, mha_transformer_backward(w->context, t, &input, kept, &g, &gradients));
    hash_tensor(w, &flat);
    DO(w, mha_decoder_create(w->context, t, NULL, &decoder));
    const mha_tensor line = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, LENGTH});
    DO(w, mha_decoder_step(w->context, decoder, &line, &first));
    hash_tensor(w, &first);
    mha_decoder_destroy(decoder);
    mha_activations_destroy(kept);
    mha_transformer_destroy(t);
    w->used = before;
}

/* Makes every call that computes. */
static void compute(work *w)
{
    w->hash = 0xcbf29ce484222325u;
    const mha_tensor slopes = TAKE(w, H);
    const mha_attention_desc descs[] = {
        {.struct_size = sizeof descs[0]},
        {.struct_size = sizeof descs[0], .path = MHA_PATH_PLAIN},
        {.struct_size = sizeof descs[0], .compute = MHA_COMPUTE_BF16},
        {.struct_size = sizeof descs[0],
         .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW,
         .q_offset = S - T,
         .left_keys = 70,
         .sink_keys = 2,
         .softcap = 5,
         .dropout = 0.125f,
         .alibi_slopes = &slopes}};
    for (int i = 0; i < 4; i++) attend(w, &descs[i], T, S);
    attend(w, &descs[0], T, S / 2); /* one block */
    attend(w, &descs[0], 1, S);     /* keys in place */
    linear_attention(w);
    module_calls(w);
    transformer_calls(w);
}

/* Calls of the companions, which have no context. */
static void read_and_draw(work *w)
{
    static const char text[] = "The animal did not cross the street because it was too tired.";
    mha_tokenizer *tokenizer = NULL;
    mha_encoding encoding = {.struct_size = sizeof encoding};
    DO(w, mha_tokenizer_load("tests/golden/tiny-bert", NULL, &tokenizer));
    DO(w, mha_tokenizer_encode(tokenizer, NULL, text, sizeof text - 1, NULL, 0, &encoding));
    if (!w->failed) hash_bytes(w, encoding.ids, (size_t)encoding.count * sizeof *encoding.ids);
    mha_encoding_free(&encoding);
    mha_tokenizer_destroy(tokenizer);
    const mha_panel panel = {.values = w->numbers, .name = "head"};
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof panel,
                               .rows = 12,
                               .cols = 12,
                               .panels = &panel,
                               .panel_count = 1};
    mha_buffer svg = {0}, html = {0};
    const mha_sink to_svg = mha_buffer_sink(&svg), to_html = mha_buffer_sink(&html);
    DO(w, mha_render_svg(&figure, &to_svg));
    DO(w, mha_render_html(&figure, NULL, &to_html));
    hash_bytes(w, svg.data, svg.size), hash_bytes(w, html.data, html.size);
    mha_buffer_free(&svg), mha_buffer_free(&html);
}

/* Work with its own context of `threads` threads, and with the same numbers each time. */
static work *work_make(mha_isa isa, int threads)
{
    work *w = calloc(1, sizeof *w);
    if (!w) abort();
    w->numbers = malloc(NUMBERS * sizeof(float));
    if (!w->numbers) abort();
    rng r = rng_make(1, 1);
    for (int i = 0; i < NUMBERS; i++) w->numbers[i] = 0.1f * rng_normal(&r);
    const mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = threads, .isa = isa};
    DO(w, mha_context_create(&desc, &w->context));
    return w;
}

static void work_free(work *w)
{
    mha_context_destroy(w->context);
    free(w->numbers);
    free(w);
}

static void must_work(const work *w)
{
    if (w->failed) fail_msg("%s: %s", w->failed, mha_error_detail());
}

/* ---- small stacks -----------------------------------------------------------------------------
 */

#ifndef SANITIZED
static void *compute_alone(void *argument)
{
    compute(argument);
    return NULL;
}

/* Runs compute() on a stack of `bytes` with an inaccessible page below it, and returns the bytes used. The stack is
 * filled with a pattern to measure use. */
static size_t run_on_stack(work *w, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    enum { PAINT = 0x5A };
    unsigned char *memory =
        mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    memset(memory + page, PAINT, bytes);
    assert_int_equal(mprotect(memory, page, PROT_NONE), 0);
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, memory + page, bytes), 0);
    assert_int_equal(pthread_create(&thread, &attributes, compute_alone, w), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    size_t untouched = 0;
    while (untouched < bytes && memory[page + untouched] == PAINT) untouched++;
    assert_int_equal(munmap(memory, page + bytes), 0);
    return bytes - untouched;
}
#endif

/* A thread with exactly the stack that base.h requires suffices. */
static void small_stack(void)
{
#ifdef SANITIZED
    printf("  skipped: sanitizers make frames larger\n");
    skip();
#else
    machines all = machines_make(1);
    for (int m = 0; m < all.count; m++)
        for (int threads = 1; threads <= 2; threads++) {
            if (all.each[m].path == MHA_PATH_PLAIN) continue; /* compute() tests this path too */
            if (!rng_long_run() && (rng_run_seed() + (uint64_t)(m + threads)) % 2) continue;
            work *w = work_make(all.each[m].isa, threads), *again = work_make(all.each[m].isa, 1);
            const size_t used = run_on_stack(w, MHA_STACK_BYTES);
            must_work(w);
            printf("  %-9s %d threads: %zu of %d bytes\n", all.each[m].name, threads, used,
                   (int)MHA_STACK_BYTES);
            compute(again);
            must_work(again);
            assert_true(w->hash == again->hash);
            work_free(w);
            work_free(again);
        }
#endif
}

/* ---- many threads, and forks --------------------------------------------------------------------
 */

enum { HOSTS = 8, FORKING = 2 };

static void *host_main(void *argument)
{
    work *w = argument;
    compute(w);
    read_and_draw(w);
    return NULL;
}

typedef struct forker {
    uint64_t hash; /* the expected hash in a child */
    int wrong;
} forker;

/* Child processes with their own contexts. Each child has one thread: the thread sanitizer supports
 * no more in children.
 */
static void *fork_main(void *argument)
{
    forker *f = argument;
    for (int i = 0; i < FORKS; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(600);
            work *w = work_make(MHA_ISA_AUTO, 1);
            host_main(w);
            _exit(!w->failed && w->hash == f->hash ? 0 : 1);
        }
        int result = -1;
        if (pid < 0 || waitpid(pid, &result, 0) != pid || result != 0) f->wrong++;
    }
    return NULL;
}

/* The address sanitizer's malloc does not support forks (gcc 12, clang 14): a child may deadlock on a lock held by
 * another thread. With it, forks run sequentially after the hosts. */
#ifdef ADDRESS_SANITIZED
enum { FORKS_WAIT = 1 };
#else
enum { FORKS_WAIT = 0 };
#endif

static void hosts_and_forks(void)
{
    work *alone = work_make(MHA_ISA_AUTO, 1), *hosts[HOSTS];
    pthread_t threads[HOSTS + FORKING];
    host_main(alone);
    must_work(alone);
    forker forkers[FORKING];
    for (int i = 0; i < HOSTS; i++) {
        hosts[i] = work_make(MHA_ISA_AUTO, 1 + i % 3);
        must_work(hosts[i]);
    }
    fflush(stdout);
    const int together = FORKS_WAIT ? 0 : FORKING;
    for (int i = 0; i < FORKING; i++) forkers[i] = (forker){.hash = alone->hash};
    for (int i = 0; i < together; i++)
        assert_int_equal(pthread_create(&threads[HOSTS + i], NULL, fork_main, &forkers[i]), 0);
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, host_main, hosts[i]), 0);
    for (int i = 0; i < HOSTS + together; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = together; i < FORKING; i++) fork_main(&forkers[i]);
    for (int i = 0; i < FORKING; i++) assert_int_equal(forkers[i].wrong, 0);
    for (int i = 0; i < HOSTS; i++) {
        if (hosts[i]->failed) fail_msg("host %d: %s", i, hosts[i]->failed);
        assert_true(hosts[i]->hash == alone->hash);
        work_free(hosts[i]);
    }
    work_free(alone);
}

RUN_TESTS(TEST(small_stack), TEST(hosts_and_forks))
