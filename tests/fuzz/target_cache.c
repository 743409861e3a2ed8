/* A cache with any description, and a sequence of calls with arguments of every kind. The public
 * functions must report its state consistently, and an error must change nothing. A second cache
 * has one page per sequence and discards nothing. Attention with both caches must be
 * bit-identical. */
#include "fuzz_call.h"

#include <multihead/cache.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_B = 5,
    MOST_STEPS = 16,
    MOST_ENTRIES = 512,     /* limit for the tables of a tested cache */
    MOST_TWIN = 1 << 20,    /* bytes */
    MOST_PROGRAM = 1 << 19, /* bytes of a tested cache */
    MOST_MADE = 32 << 20    /* bytes of any cache created */
};

/* The observable state of a cache. */
typedef struct state {
    int64_t lengths[MOST_B], entries[MOST_B], free;
    int32_t pages[MOST_B][MOST_ENTRIES];
} state;

typedef struct program {
    fuzz_part *in;
    fuzz_call call; /* tensors of one step */
    mha_kv_cache_desc desc;
    mha_kv_cache *cache, *twin; /* the second is NULL if it is not possible */
    bool enough;                /* enough pages for any appends of up to max_append */
    state now;
} program;

/* ---- descriptions --------------------------------------------------------------------------- */

static int64_t odd_number(fuzz_part *in, int64_t usual)
{
    static const int64_t odd[] = {
        -1, INT64_MIN, INT64_MAX, INT32_MAX,         INT64_C(1) << 32, INT64_C(1) << 40,
        0,  1,         1000,      INT64_MAX / 16 + 1};
    const int choice = (int)fuzz_pick(in, 0, 127);
    return choice < 10 ? odd[choice] : choice == 10 ? (int64_t)fuzz_take(in, 8) : usual;
}

static mha_kv_cache_desc some_desc(fuzz_part *in)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8, MHA_I8};
    static const int64_t widths[] = {1, 2, 3, 8, 16, 17, 33, 257};
    const bool window = fuzz_pick(in, 0, 1);
    mha_kv_cache_desc d = {
        .batch = odd_number(in, fuzz_pick(in, 1, MOST_B)),
        .kv_heads = odd_number(in, fuzz_pick(in, 1, 2)),
        .capacity =
            odd_number(in, fuzz_pick(in, 0, 3) ? fuzz_pick(in, 1, 60) : fuzz_pick(in, 1, 2000)),
        .head_dim = odd_number(in, widths[fuzz_pick(in, 0, fuzz_pick(in, 0, 15) ? 6 : 7)]),
        .value_head_dim = odd_number(in, fuzz_pick(in, 0, 1) ? widths[fuzz_pick(in, 0, 6)] : 0),
        .type = types[fuzz_pick(in, 0, 4)],
        .page_size = odd_number(in, fuzz_pick(in, 0, 2) ? fuzz_pick(in, 0, 40) : 16),
        .pages = odd_number(in, fuzz_pick(in, 0, 1) ? 0 : fuzz_pick(in, 1, 20)),
        .window = odd_number(in, window ? fuzz_pick(in, 1, 20) : 0),
        .sink_keys = odd_number(in, window ? fuzz_pick(in, 0, 9) : 0),
        .max_append = odd_number(in, window ? fuzz_pick(in, 0, 12) : 0)};
    if (d.type == MHA_I8) d.key_scales = (mha_kv_scales)fuzz_pick(in, 0, 1);
    switch (fuzz_pick(in, 0, 63)) {
    case 0: d.flags = (uint32_t)fuzz_take(in, 1); break;
    case 1: d.reserved = (uint32_t)fuzz_take(in, 1); break;
    case 2: d.reserved2 = (uint32_t)fuzz_take(in, 1); break;
    case 3: d.key_scales = (mha_kv_scales)fuzz_pick(in, -1, 2); break;
    case 4: d.type = (mha_dtype)fuzz_pick(in, -1, 9); break;
    default: break;
    }
    return d;
}

static bool has_window(const program *p)
{
    return p->desc.window > 0;
}

static int64_t entries_of(const mha_kv_cache_desc *d, int64_t length)
{
    return length / d->page_size + (length % d->page_size != 0);
}

/* A description with explicit defaults creates an equal cache. */
static void check_sizes(const mha_kv_cache *cache, const mha_kv_cache_sizes *s)
{
    mha_kv_cache_desc d;
    mha_kv_cache_sizes again = {.struct_size = sizeof again};
    mha_kv_cache_describe(cache, &d);
    fuzz_must(mha_kv_cache_count(&d, &again) == MHA_OK && memcmp(&again, s, sizeof again) == 0,
              "a description that was filled in has other sizes");
    fuzz_must(mha_kv_cache_bytes(cache) == (size_t)s->total_bytes && d.pages == s->pages,
              "sizes that a cache does not have");
    fuzz_must(s->total_bytes == (s->pages + (d.window > 0)) * s->page_bytes + s->table_bytes &&
                  s->scale_bytes <= s->pages * s->page_bytes,
              "sizes that do not add up");
}

/* Returns NULL if there is no cache, or if it is too large for this test. */
static mha_kv_cache *make_cache(program *p)
{
    const mha_kv_cache_desc some = some_desc(p->in);
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    mha_kv_cache *cache = NULL;
    void *given = fuzz_struct(&p->call, &some, sizeof some);
    const mha_status said = mha_kv_cache_count(given, &sizes);
    fuzz_must_speak(said);
    if (said != MHA_OK || sizes.total_bytes <= MOST_MADE) {
        const mha_status status = mha_kv_cache_create(fuzz_context(1, 0), given, &cache);
        fuzz_must_speak(status);
        fuzz_must(status == said, "counting and making do not agree");
        fuzz_must((status == MHA_OK) == (cache != NULL), "a cache and an error, or neither");
    }
    free(given);
    if (!cache) return NULL;
    check_sizes(cache, &sizes);
    mha_kv_cache_describe(cache, &p->desc);
    mha_kv_cache_desc plenty = p->desc;
    plenty.pages = 0;
    p->enough = mha_kv_cache_count(&plenty, &sizes) == MHA_OK && p->desc.pages >= sizes.pages;
    if (mha_kv_cache_bytes(cache) <= MOST_PROGRAM && p->desc.batch <= MOST_B &&
        entries_of(&p->desc, p->desc.capacity) <= MOST_ENTRIES)
        return cache;
    mha_kv_cache_destroy(cache);
    return NULL;
}

static void make_twin(program *p)
{
    mha_kv_cache_desc d = p->desc;
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    d.page_size = d.pages = d.window = d.sink_keys = d.max_append = 0;
    if (mha_kv_cache_count(&d, &sizes) == MHA_OK && sizes.total_bytes <= MOST_TWIN)
        fuzz_must(mha_kv_cache_create(fuzz_context(1, 0), &d, &p->twin) == MHA_OK, "no twin");
}

static void drop_twin(program *p)
{
    mha_kv_cache_destroy(p->twin);
    p->twin = NULL;
    p->enough = false;
}

/* ---- invariants ------------------------------------------------------------------------------ */

static void check_table(const program *p, const state *s, int64_t b, bool *held)
{
    bool own[MOST_ENTRIES * MOST_B + 1] = {false};
    for (int64_t i = 0; i < s->entries[b]; i++) {
        const int32_t page = s->pages[b][i];
        fuzz_must(page >= 0 && page < p->desc.pages + has_window(p), "a page that is not there");
        if (page == p->desc.pages) {
            fuzz_must(i >= entries_of(&p->desc, p->desc.sink_keys), "sinks that were discarded");
            continue;
        }
        if (p->desc.pages > MOST_ENTRIES * MOST_B) continue; /* exceeds all tables */
        fuzz_must(!own[page], "a page twice in one sequence");
        own[page] = held[page] = true;
    }
}

static void look(const program *p, state *s)
{
    bool held[MOST_ENTRIES * MOST_B + 1] = {false};
    int64_t count = 0;
    memset(s, 0, sizeof *s);
    s->free = mha_kv_cache_free_pages(p->cache);
    for (int64_t b = 0; b < p->desc.batch; b++) {
        s->lengths[b] = mha_kv_cache_lengths(p->cache)[b];
        fuzz_must(s->lengths[b] >= 0 && s->lengths[b] <= p->desc.capacity, "a length out of range");
        const int32_t *pages = mha_kv_cache_pages(p->cache, b, &s->entries[b]);
        fuzz_must(pages && s->entries[b] == entries_of(&p->desc, s->lengths[b]),
                  "a table that is not as long as its sequence");
        memcpy(s->pages[b], pages, (size_t)s->entries[b] * sizeof *pages);
        check_table(p, s, b, held);
    }
    if (p->desc.pages > MOST_ENTRIES * MOST_B) return;
    for (int64_t i = 0; i < p->desc.pages; i++) count += held[i];
    fuzz_must(count + s->free == p->desc.pages, "pages that nobody holds and that are not free");
}

/* After a call, checks that an error has changed nothing. */
static bool succeeded(program *p, mha_status status)
{
    state *s = malloc(sizeof *s);
    fuzz_must(s != NULL, "out of memory");
    fuzz_must_speak(status);
    look(p, s);
    fuzz_must(status == MHA_OK || memcmp(s, &p->now, sizeof *s) == 0,
              "an error that changed something");
    p->now = *s;
    free(s);
    return status == MHA_OK;
}

/* Repeats the call with the twin. */
static void follow(program *p, mha_status status)
{
    fuzz_must(status == MHA_OK, "the twin refuses");
    for (int64_t b = 0; b < p->desc.batch; b++)
        fuzz_must(mha_kv_cache_lengths(p->twin)[b] == p->now.lengths[b],
                  "the twin's lengths differ");
}

/* ---- append --------------------------------------------------------------------------------- */

/* Rows of very different magnitudes. */
static mha_tensor *some_rows(program *p, int64_t n, int64_t width)
{
    fuzz_call *c = &p->call;
    mha_tensor *x =
        fuzz_input(c, fuzz_float(c), 4, (int64_t[]){p->desc.batch, p->desc.kv_heads, n, width});
    int64_t index[MHA_MAX_DIMS] = {0};
    if (x->dtype != MHA_F32 || guarded_is_empty(x) || fuzz_pick(c->in, 0, 1)) return x;
    do {
        float *at = guarded_element(x, index);
        *at = ldexpf(*at, (int)rng_between(&c->r, -100, 100) * (int)rng_between(&c->r, 0, 1));
    } while (guarded_next(x, index));
    return x;
}

/* A count that usually fits. */
static void some_rows_of(program *p, int64_t n, int64_t *firsts, int64_t *counts)
{
    for (int64_t b = 0; b < p->desc.batch; b++) {
        firsts[b] = n > 0 ? fuzz_pick(p->in, 0, n) : 0;
        counts[b] = fuzz_pick(p->in, 0, n - firsts[b]);
        if (fuzz_pick(p->in, 0, 3) == 0) counts[b] = 0;
        if (fuzz_pick(p->in, 0, 63)) continue;
        firsts[b] = odd_number(p->in, firsts[b] - 1);
        counts[b] = odd_number(p->in, counts[b] + 1);
    }
}

static void append(program *p)
{
    const int64_t most = fuzz_pick(p->in, 0, 3) ? 6 : 40, n = fuzz_pick(p->in, 0, most);
    int64_t firsts[MOST_B], counts[MOST_B];
    const mha_tensor *k = some_rows(p, n, p->desc.head_dim);
    const mha_tensor *v = some_rows(p, n, p->desc.value_head_dim);
    const unsigned given = (unsigned)fuzz_pick(p->in, 0, 3);
    some_rows_of(p, n, firsts, counts);
    if (given == 2)
        for (int64_t b = 0; b < p->desc.batch; b++)
            if (counts[b] >= 0 && counts[b] <= n) firsts[b] = 0;
    fuzz_call_spoil(&p->call);
    if (!fuzz_call_backed(&p->call)) return;
    const int64_t *from = given & 1 ? firsts : NULL, *of = given & 2 ? counts : NULL;
    const mha_status status = mha_kv_cache_append_rows(p->cache, k, v, from, of);
    fuzz_must(status != MHA_ERR_NOMEM || !p->enough ||
                  (has_window(p) && k->shape[2] > p->desc.max_append),
              "pages for any length are too few");
    if (succeeded(p, status) && p->twin)
        follow(p, mha_kv_cache_append_rows(p->twin, k, v, from, of));
}

/* ---- tables --------------------------------------------------------------------------------- */

static int64_t some_sequence(program *p)
{
    return fuzz_pick(p->in, 0, 31) ? fuzz_pick(p->in, 0, p->desc.batch - 1) : odd_number(p->in, -1);
}

/* A length of at most sequence b's, often near a page boundary. */
static int64_t some_length(program *p, int64_t b)
{
    const int64_t most = b >= 0 && b < p->desc.batch ? p->now.lengths[b] : 3;
    int64_t length = fuzz_pick(p->in, 0, most);
    if (fuzz_pick(p->in, 0, 1)) length -= length % p->desc.page_size;
    if (fuzz_pick(p->in, 0, 3) == 0) length = most - fuzz_pick(p->in, 0, 2);
    return fuzz_pick(p->in, 0, 31) ? length : odd_number(p->in, most + 1);
}

static void truncate_one(program *p)
{
    const int64_t b = some_sequence(p), length = some_length(p, b);
    const bool right = b >= 0 && b < p->desc.batch && length >= 0 && length <= p->now.lengths[b];
    const mha_status status = mha_kv_cache_truncate(p->cache, b, length);
    fuzz_must(has_window(p) || (status == MHA_OK) == right, "a cut that is refused, or is not");
    fuzz_must(status != MHA_OK || right, "a cut of what is not there");
    if (succeeded(p, status) && p->twin) follow(p, mha_kv_cache_truncate(p->twin, b, length));
}

static void fork(program *p)
{
    const int64_t from = some_sequence(p), to = some_sequence(p), length = some_length(p, from);
    if (succeeded(p, mha_kv_cache_fork(p->cache, from, to, length)) && p->twin)
        follow(p, mha_kv_cache_fork(p->twin, from, to, length));
}

/* The beginning of a sequence's table with some entries changed. */
static void assign(program *p)
{
    int32_t pages[MOST_ENTRIES + 1] = {0};
    const int64_t to = some_sequence(p), from = fuzz_pick(p->in, 0, p->desc.batch - 1);
    const int64_t length = some_length(p, from), changes = fuzz_pick(p->in, 0, 5) - 2;
    int64_t count = length < 0 || length > p->desc.capacity ? 0 : entries_of(&p->desc, length);
    memcpy(pages, p->now.pages[from], sizeof p->now.pages[from]);
    for (int64_t i = 0; i < changes && count > 0; i++)
        pages[fuzz_pick(p->in, 0, count - 1)] =
            (int32_t)(fuzz_pick(p->in, 0, 7) ? fuzz_pick(p->in, 0, p->desc.pages)
                                             : (int32_t)odd_number(p->in, -1));
    if (fuzz_pick(p->in, 0, 31) == 0) count = odd_number(p->in, count + 1);
    const bool whole = memcmp(pages, p->now.pages[from], sizeof p->now.pages[from]) == 0 &&
                       length <= p->now.lengths[from];
    const int32_t *given =
        whole && fuzz_pick(p->in, 0, 1) ? mha_kv_cache_pages(p->cache, from, &(int64_t){0}) : pages;
    if (count > MOST_ENTRIES) given = pages; /* rejected by its count, not read */
    if (!succeeded(p, mha_kv_cache_assign(p->cache, to, given, count, length)) || !p->twin) return;
    if (!whole)
        drop_twin(p);
    else
        follow(p, from == to ? mha_kv_cache_truncate(p->twin, to, length)
                             : mha_kv_cache_fork(p->twin, from, to, length));
}

static void reset(program *p)
{
    mha_kv_cache_reset(p->cache);
    succeeded(p, MHA_OK);
    if (!p->twin) return;
    mha_kv_cache_reset(p->twin);
    follow(p, MHA_OK);
}

/* ---- attention ------------------------------------------------------------------------------ */

typedef struct attend_case {
    mha_kv_cache *cache;
    const mha_attention_desc *desc;
    const mha_attention_outputs *outputs;
    mha_tensor *q, *o;
} attend_case;

static mha_status attend(mha_context *context, void *user)
{
    const attend_case *x = user;
    return mha_kv_cache_attention(context, x->cache, x->desc, x->q, x->o, x->outputs);
}

static void want_outputs(fuzz_call *c, const mha_tensor *q, int64_t S, mha_attention_outputs *o)
{
    static const int64_t offsets[] = {-1, 0, -5};
    const unsigned has =
        fuzz_pick(c->in, 0, 2) ? (unsigned)fuzz_pick(c->in, 0, 1) : (unsigned)fuzz_take(c->in, 2);
    const int64_t *n = q->shape, pairs[] = {n[0], n[1], n[2], S}, mean[] = {n[0], n[2], S},
                  columns[] = {n[0], n[1], S}, mass[] = {n[0], n[1], n[2], 3},
                  top[] = {n[0], n[1], n[2], 2};
    if (has & 1) o->lse = fuzz_output(c, MHA_F32, 3, n);
    if (has & 2) o->probabilities = fuzz_output(c, MHA_F32, 4, pairs);
    if (has & 4) o->average_probabilities = fuzz_output(c, MHA_F32, 3, mean);
    if (has & 8) o->scores = fuzz_output(c, MHA_F32, 4, pairs);
    if (has & 8) o->score_stage = (mha_score_stage)fuzz_pick(c->in, 0, 2);
    if (has & 16) o->entropy = fuzz_output(c, MHA_F32, 3, n);
    if (has & 32) o->first_token = fuzz_output(c, MHA_F32, 3, n);
    if (has & 64) o->diagonal = fuzz_output(c, MHA_F32, 3, n);
    if (has & 128) o->column_sums = fuzz_output(c, MHA_F32, 3, columns);
    if (has & 256) {
        o->offset_mass = fuzz_output(c, MHA_F32, 4, mass);
        o->offsets = offsets;
        o->offsets_count = 3;
    }
    if (has & 512) {
        o->top_keys = fuzz_output(c, MHA_I64, 4, top);
        o->top_weights = fuzz_output(c, MHA_F32, 4, top);
    }
    if (has & 1024) o->largest_key = fuzz_output(c, MHA_I64, 3, n);
}

/* `numbers` [4][MOST_B] must outlive the call. */
static mha_attention_desc some_attention(program *p, int64_t H, int64_t T, int64_t *numbers)
{
    fuzz_part *in = p->in;
    const unsigned has = (unsigned)fuzz_take(in, 2);
    mha_attention_desc d = {.flags = has & 3 ? MHA_ATTENTION_CAUSAL : 0};
    for (int64_t b = 0; b < p->desc.batch; b++) {
        numbers[b] = p->now.lengths[b] - fuzz_pick(in, 0, T + 3);
        if (fuzz_pick(in, 0, 15) == 0) numbers[b] = odd_number(in, fuzz_pick(in, 0, 80) - 10);
        numbers[MOST_B + b] = fuzz_pick(in, 0, 7) ? fuzz_pick(in, 0, p->now.lengths[b]) : 81;
    }
    if ((has & 28) == 4) {
        d.flags |= MHA_ATTENTION_WINDOW;
        d.left_keys = odd_number(in, has_window(p) && fuzz_pick(in, 0, 3)
                                         ? fuzz_pick(in, 0, p->desc.window - 1)
                                         : fuzz_pick(in, -1, 20));
        d.right_keys = odd_number(in, fuzz_pick(in, -1, 3));
        d.sink_keys =
            odd_number(in, fuzz_pick(in, 0, p->desc.sink_keys < 80 ? p->desc.sink_keys + 1 : 81));
    }
    if ((has & 96) == 32) d.q_offsets = numbers;
    if ((has & 0x780) == 0x80) d.q_offset = odd_number(in, fuzz_pick(in, 0, 80));
    if ((has & 0x780) == 0x100) d.key_begins = numbers + MOST_B;
    if ((has & 0x780) == 0x180) d.alibi_slopes = fuzz_input(&p->call, MHA_F32, 1, &H);
    if ((has & 0x780) == 0x200) d.sink_logits = fuzz_input(&p->call, MHA_F32, 1, &H);
    if ((has & 0x780) == 0x280) d.softcap = 3;
    if ((has & 0x780) == 0x300) d.key_lengths = numbers;
    if (has >> 11 < 2) d.path = (mha_path)(has >> 11 & 1);
    if (has >> 11 == 2) d.path = MHA_PATH_PLAIN;
    if (has >> 11 == 3 || has >> 11 == 4) d.compute = MHA_COMPUTE_BF16;
    return d;
}

/* The twin has no window. */
static void compare(program *p, attend_case *x, mha_attention_desc d)
{
    if (has_window(p) && !(d.flags & MHA_ATTENTION_WINDOW)) {
        d.flags |= MHA_ATTENTION_WINDOW;
        d.left_keys = p->desc.window - 1;
        d.right_keys = d.flags & MHA_ATTENTION_CAUSAL ? 0 : -1;
        d.sink_keys = p->desc.sink_keys;
    }
    d.struct_size = sizeof d;
    x->cache = p->twin;
    x->desc = &d;
    fuzz_call_compare(&p->call, attend, x, "other bits than with one page that keeps all");
}

static void attend_some(program *p)
{
    fuzz_call *c = &p->call;
    const mha_kv_cache_desc *k = &p->desc;
    const int64_t H = k->kv_heads * fuzz_pick(p->in, 1, 2), T = fuzz_pick(p->in, 0, 7);
    const mha_dtype type = fuzz_float(c);
    int64_t numbers[2 * MOST_B], S = 0;
    for (int64_t b = 0; b < k->batch; b++) S = p->now.lengths[b] > S ? p->now.lengths[b] : S;
    attend_case x = {
        .cache = p->cache,
        .q = fuzz_input(c, type, 4, (int64_t[]){k->batch, H, T, k->head_dim}),
        .o = fuzz_output(c, fuzz_float(c), 4, (int64_t[]){k->batch, H, T, k->value_head_dim})};
    mha_attention_outputs outputs = {.struct_size = 0};
    const mha_attention_desc d = some_attention(p, H, T, numbers);
    want_outputs(c, x.q, S, &outputs);
    fuzz_call_spoil(c);
    void *desc = fuzz_struct(c, &d, sizeof d), *wanted = fuzz_struct(c, &outputs, sizeof outputs);
    x.desc = fuzz_pick(p->in, 0, 31) ? desc : NULL;
    x.outputs = wanted;
    if (fuzz_call_backed(c)) {
        const mha_status status = fuzz_call_check(c, attend, &x);
        if (succeeded(p, status) && p->twin && !c->resized && x.desc) compare(p, &x, d);
    }
    free(desc), free(wanted);
}

/* ---- a program ------------------------------------------------------------------------------ */

static void run(program *p)
{
    static void (*const calls[])(program *) = {append,      append,      append, append,
                                               attend_some, attend_some, fork,   truncate_one,
                                               assign,      reset};
    const bool often = fuzz_pick(p->in, 0, 7);
    look(p, &p->now);
    make_twin(p);
    for (int i = 0; i < MOST_STEPS && p->in->size > 0; i++) {
        calls[fuzz_pick(p->in, 0, often ? 8 : 9)](p);
        fuzz_call_free(&p->call);
        p->call.count = p->call.own = 0;
        p->call.resized = false;
    }
    mha_kv_cache_destroy(p->twin);
    mha_kv_cache_destroy(p->cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part in = {data, size};
    program *p = calloc(1, sizeof *p);
    fuzz_must(p != NULL, "out of memory");
    p->in = &in;
    fuzz_call_make(&p->call, &in);
    p->cache = make_cache(p);
    p->call.resized = false;
    if (p->cache) run(p);
    fuzz_call_free(&p->call);
    free(p);
    return 0;
}
