/* Random programs on a cache - append, decode, attend, truncate, fork, reset, and calls that must
 * fail - compared with a model that stores every position in plain arrays of double. After each
 * step lengths and pages must equal the model's. Attention must be within its bound of the double
 * reference on the model's stored numbers, and bit-identical to mha_attention_forward() on
 * contiguous f32 tensors of these numbers.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 5,000 programs. MHA_TEST_CASE=n (with
 * MHA_TEST_SEED) runs only the n-th. */
#include "reference/half_reference.h"
#include "reference/kinds_bounds.h"
#include "support/expect.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/cache.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_B = 4, MOST_KV_HEADS = 3, MOST_GROUP = 8, MOST_WIDTH = 128, MOST_STEP = 40 };

typedef struct program {
    rng r;
    mha_context *context;
    mha_kv_cache *cache;
    mha_kv_cache_desc desc;
    int64_t group;
    /* the model */
    double *exact; /* k before it is stored; only with scales per channel, like powers */
    int *powers;   /* [B][runs of 16][Hk][D] */
    double *k,
        *v; /* [B][capacity][Hk][D], [B][capacity][Hk][Dv], as stored, including discarded positions */
    int64_t lengths[MOST_B];
    int64_t discarded[MOST_B]; /* pages before this one, except the sinks', are released */
} program;

static void *zeros(int64_t count, size_t size)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    assert_non_null(memory);
    return memory;
}

/* ---- stored numbers ------------------------------------------------------------------------- */

/* Round x to the type by the formula in cache.h. */
static void stored(mha_dtype type, double *x, int64_t n)
{
    double most = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        if (type == MHA_F16 || type == MHA_BF16) x[i] = half_value(type, half_nearest(type, x[i]));
        finite = finite && isfinite(x[i]);
        most = fmax(most, fabs(x[i]));
    }
    if (type != MHA_I8) return;
    int power;
    const double part = frexp((double)((float)most / 127.0f), &power); /* part in [1/2, 1) */
    const double s = ldexp(ceil(ldexp(part, 17)), power - 17);
    for (int64_t i = 0; i < n; i++)
        x[i] = !finite                 ? NAN
               : most < ldexp(1, -100) ? 0
                                       : rint((double)((float)x[i] / (float)s)) * s;
}

static double *row_of(const program *p, double *x, int64_t b, int64_t position, int64_t width)
{
    return x + (b * p->desc.capacity + position) * p->desc.kv_heads * width;
}

/* n new read-only rows of every head of every sequence. */
static guarded new_rows(program *p, int64_t n, int64_t width)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    const mha_dtype type = rng_chance(&p->r, 0.6) ? MHA_F32 : RNG_PICK(&p->r, types);
    const bool spoilt = rng_chance(&p->r, 0.03);
    int64_t index[MHA_MAX_DIMS] = {0};
    guarded x =
        guarded_make(&p->r, type, 4, (const int64_t[]){p->desc.batch, p->desc.kv_heads, n, width},
                     guarded_random_layout(&p->r, true));
    if (guarded_is_empty(&x.view)) return x;
    do {
        float value = rng_normal(&p->r) * (index[3] == 0 ? 20 : 1);
        if (spoilt && rng_chance(&p->r, 0.01)) value = INFINITY;
        void *at = guarded_element(&x.view, index);
        if (type == MHA_F32)
            *(float *)at = value;
        else
            *(uint16_t *)at = half_nearest(type, (double)value);
    } while (guarded_next(&x.view, index));
    guarded_protect(&x, true);
    return x;
}

/* ---- scales per channel ---------------------------------------------------------------------- */

enum { RUN = 16, NOT_FINITE = 1000 };

static bool by_channel(const program *p)
{
    return p->desc.key_scales == MHA_KV_SCALES_CHANNEL;
}

static int64_t runs_of(const program *p)
{
    return (p->desc.capacity + RUN - 1) / RUN;
}

static int *powers_of(const program *p, int64_t b, int64_t position)
{
    return p->powers + (b * runs_of(p) + position / RUN) * p->desc.kv_heads * p->desc.head_dim;
}

/* A number of a channel with this power, by the formula in cache.h. */
static double by_power(double x, int power)
{
    if (power == NOT_FINITE) return NAN;
    return fmax(-127, fmin(127, rint(ldexp(x, -power)))) * ldexp(1, power);
}

/* Add position `position` of the model to its run. Earlier positions are rounded again if it is
 * larger. */
static void join_run(const program *p, int64_t b, int64_t position)
{
    const int64_t width = p->desc.kv_heads * p->desc.head_dim, first = position - position % RUN;
    double *x = row_of(p, p->k, b, first, p->desc.head_dim),
           *exact = row_of(p, p->exact, b, first, p->desc.head_dim);
    int *powers = powers_of(p, b, position);
    for (int64_t i = 0; i < width; i++) {
        double *last = x + position % RUN * width + i;
        int power = position == first ? -126 : powers[i];
        exact[position % RUN * width + i] = *last;
        while (isfinite(*last) && power < 121 && rint(ldexp(fabs(*last), -power)) > 127) power++;
        powers[i] = isfinite(*last) ? power : NOT_FINITE;
        for (int64_t s = 0; s <= position % RUN; s++)
            x[s * width + i] = by_power(x[s * width + i], powers[i]);
        for (int64_t s = 0; powers[i] < 121 && s <= position % RUN; s++)
            assert_true(fabs(x[s * width + i] - exact[s * width + i]) < ldexp(1, powers[i]));
    }
}

/* Append counts[b] rows of x from firsts[b] on to the model. */
static void model_append(const program *p, const mha_tensor *x, const int64_t *firsts,
                         const int64_t *counts, double *model)
{
    const int64_t width = x->shape[3];
    for (int64_t b = 0; b < p->desc.batch; b++)
        for (int64_t t = 0; t < counts[b]; t++)
            for (int64_t h = 0; h < p->desc.kv_heads; h++) {
                double *row = row_of(p, model, b, p->lengths[b] + t, width) + h * width;
                for (int64_t i = 0; i < width; i++) {
                    const void *at = guarded_element(x, (const int64_t[]){b, h, firsts[b] + t, i});
                    row[i] = x->dtype == MHA_F32 ? (double)*(const float *)at
                                                 : half_value(x->dtype, *(const uint16_t *)at);
                }
                if (!by_channel(p) || model != p->k) stored(p->desc.type, row, width);
            }
    for (int64_t b = 0; by_channel(p) && model == p->k && b < p->desc.batch; b++)
        for (int64_t t = 0; t < counts[b]; t++) join_run(p, b, p->lengths[b] + t);
}

/* ---- attention ------------------------------------------------------------------------------ */

/* One call on the cache and on tensors of the model's contents. */
typedef struct call {
    mha_attention_desc desc; /* of the second call; points into this struct: must not be copied */
    bool anywhere;           /* the first call also has q_offsets */
    bool own;                /* the first call also has a window, unless it is the cache's */
    int64_t T, longest, offsets[MOST_B];
    guarded q, slopes, o[2], lse[2];
    mha_tensor k, v;
    char text[160];
} call;

static mha_tensor whole_of(const program *p, double *model, int64_t longest, int64_t width)
{
    const int64_t B = p->desc.batch, Hk = p->desc.kv_heads;
    float *x = zeros(B * Hk * longest * width, sizeof *x);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < Hk; h++)
            for (int64_t s = 0; s < p->lengths[b]; s++)
                for (int64_t i = 0; i < width; i++)
                    x[((b * Hk + h) * longest + s) * width + i] =
                        (float)(row_of(p, model, b, s, width) + h * width)[i];
    return mha_tensor_contiguous(x, MHA_F32, 4, (const int64_t[]){B, Hk, longest, width});
}

static int64_t pages_for(const program *p, int64_t length)
{
    return (length + p->desc.page_size - 1) / p->desc.page_size;
}

/* Options for T queries, at default or arbitrary positions. */
static void call_ask(program *p, call *c)
{
    mha_attention_desc *d = &c->desc;
    *d = (mha_attention_desc){.struct_size = sizeof *d, .key_lengths = p->lengths};
    if (rng_chance(&p->r, 0.8)) d->flags |= MHA_ATTENTION_CAUSAL;
    const mha_kv_cache_desc *k = &p->desc;
    c->own = !k->window || rng_chance(&p->r, 0.3); /* otherwise the cache's window */
    if (k->window || rng_chance(&p->r, 0.2)) {
        d->flags |= MHA_ATTENTION_WINDOW;
        d->left_keys = k->window ? k->window - 1 : c->longest + 1;
        d->right_keys = d->flags & MHA_ATTENTION_CAUSAL ? 0 : -1;
        d->sink_keys = k->window ? k->sink_keys : 4;
        if (c->own) {
            d->left_keys = rng_between(&p->r, 0, d->left_keys);
            d->right_keys = d->flags & MHA_ATTENTION_CAUSAL ? 0 : rng_between(&p->r, 0, 9);
            d->sink_keys = rng_between(&p->r, 0, d->sink_keys);
        }
    }
    if (rng_chance(&p->r, 0.1)) d->alibi_slopes = &c->slopes.view;
    if (rng_chance(&p->r, 0.1)) d->path = MHA_PATH_PLAIN;
    if (!d->path && !d->alibi_slopes && rng_chance(&p->r, 0.1)) d->compute = MHA_COMPUTE_BF16;
    const bool reads = d->flags || d->alibi_slopes;
    c->anywhere = reads && rng_chance(&p->r, 0.2);
    if (reads) d->q_offsets = c->offsets;
    for (int64_t b = 0; b < p->desc.batch; b++)
        c->offsets[b] =
            c->anywhere ? rng_between(&p->r, -c->T, c->longest + 3) : p->lengths[b] - c->T;
}

static void call_make(program *p, call *c, int64_t T)
{
    const int64_t B = p->desc.batch, H = p->desc.kv_heads * p->group, D = p->desc.head_dim,
                  Dv = p->desc.value_head_dim;
    *c = (call){.T = T};
    for (int64_t b = 0; b < B; b++)
        c->longest = p->lengths[b] > c->longest ? p->lengths[b] : c->longest;
    c->slopes = guarded_filled(&p->r, 1, &H, LAYOUT_CONTIGUOUS, 1);
    c->q = guarded_filled(&p->r, 4, (const int64_t[]){B, H, T, D},
                          guarded_random_layout(&p->r, true), 1);
    c->k = whole_of(p, p->k, c->longest, D);
    c->v = whole_of(p, p->v, c->longest, Dv);
    for (int i = 0; i < 2; i++) {
        c->o[i] = guarded_make(&p->r, MHA_F32, 4, (const int64_t[]){B, H, T, Dv},
                               guarded_random_layout(&p->r, false));
        c->lse[i] = guarded_make(&p->r, MHA_F32, 3, (const int64_t[]){B, H, T}, LAYOUT_CONTIGUOUS);
    }
    call_ask(p, c);
    snprintf(c->text, sizeof c->text,
             "%lld queries, flags %x, path %d, compute %d, lengths to %lld, on %s", (long long)T,
             (unsigned)c->desc.flags, (int)c->desc.path, (int)c->desc.compute,
             (long long)c->longest, mha_isa_name(mha_context_isa(p->context)));
}

/* Whether no query of the call sees a discarded position. */
static bool sees_held(const program *p, const call *c)
{
    for (int64_t b = 0; b < p->desc.batch; b++)
        if (p->discarded[b] > 0 &&
            c->offsets[b] - c->desc.left_keys < p->discarded[b] * p->desc.page_size)
            return false;
    return true;
}

/* Run the call. Returns false if the cache correctly rejects it. */
static bool call_run(const program *p, call *c)
{
    mha_attention_desc own = c->desc;
    own.key_lengths = NULL;
    if (!c->anywhere) own.q_offsets = NULL;
    if (!c->own) {
        own.flags &= ~(uint32_t)MHA_ATTENTION_WINDOW;
        own.left_keys = own.right_keys = own.sink_keys = 0;
    }
    for (int i = 0; i < 2; i++) {
        const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                               .lse = &c->lse[i].view};
        const mha_status status =
            i == 0 ? mha_kv_cache_attention(p->context, p->cache, &own, &c->q.view, &c->o[i].view,
                                            &outputs)
                   : mha_attention_forward(p->context, &c->desc, &c->q.view, &c->k, &c->v,
                                           &c->o[i].view, &outputs);
        if (i == 0 && !sees_held(p, c)) {
            if (status != MHA_ERR_ARGUMENT) fail_msg("%s: sees discarded positions", c->text);
            return false;
        }
        if (status != MHA_OK) fail_msg("%s: attention %d: %s", c->text, i, mha_error_detail());
        if (!guarded_gaps_intact(&c->o[i]) || !guarded_gaps_intact(&c->lse[i]))
            fail_msg("%s: attention %d wrote between elements", c->text, i);
    }
    return true;
}

static void call_free(call *c)
{
    guarded *all[] = {&c->q, &c->slopes, &c->o[0], &c->o[1], &c->lse[0], &c->lse[1]};
    for (int i = 0; i < 6; i++) guarded_free(all[i]);
    free(c->k.data), free(c->v.data);
}

/* Ratios of errors to bounds. The errors of the plain path are one rounding and would hide a loose
 * bound. */
static tally tally_o[] = {{.name = "o"}, {.name = "o, plain path"}};
static tally tally_lse[] = {{.name = "lse"}, {.name = "lse, plain path"}};

static void compare(const call *c, tally *t, int64_t b, int64_t h, int64_t row, int64_t i,
                    double got, double exact, double bound)
{
    if (tally_compare(t, got, exact, bound)) return;
    fail_msg("%s: %s at b%lld h%lld t%lld, %lld is %.9g, exact %.9g, bound %.3g", c->text, t->name,
             (long long)b, (long long)h, (long long)row, (long long)i, got, exact, bound);
}

/* Whether the rows of a head in a sequence are finite; the reference accepts no others. */
static bool rows_are_finite(const program *p, const mha_tensor *x, int64_t b, int64_t h)
{
    const float *rows = (const float *)x->data + b * x->stride[0] + h * x->stride[1];
    for (int64_t i = 0; i < p->lengths[b] * x->shape[3]; i++)
        if (!isfinite(rows[i])) return false;
    return true;
}

static void check_row(const program *p, const call *c, int64_t b, int64_t h, int64_t t,
                      kinds_row *row, bound_row *bound)
{
    const ref_attention a = {.desc = &c->desc, .q = &c->q.view, .k = &c->k, .v = &c->v};
    const bool plain = c->desc.path == MHA_PATH_PLAIN;
    const bound_arith arith = bound_arith_of(&a, c->desc.path, mha_context_isa(p->context));
    if (!rows_are_finite(p, &c->k, b, h / p->group) || !rows_are_finite(p, &c->v, b, h / p->group))
        return;
    kinds_attention_row(&a, b, h, t, row);
    kinds_bound_row(&a, &arith, b, h, t, row, bound);
    const float *o = kinds_at(&c->o[0].view, &a, b, h, t);
    const float *lse = kinds_at(&c->lse[0].view, &a, b, h, t);
    compare(c, &tally_lse[plain], b, h, t, 0, (double)*lse, row->lse, bound->lse);
    for (int64_t i = 0; i < row->value_dim; i++)
        compare(c, &tally_o[plain], b, h, t, i, (double)o[i], row->o[i], bound->o[i]);
}

/* Check a limited number of rows, at least one. Other arithmetic has separate tests. */
static void check_rows(program *p, const call *c)
{
    const int64_t H = p->desc.kv_heads * p->group, Dv = p->desc.value_head_dim;
    const int64_t affordable = 1 + 40000 / ((c->longest + 1) * (p->desc.head_dim + Dv + 10));
    if (c->desc.compute) return;
    kinds_row row = kinds_row_make(c->longest, Dv);
    bound_row bound = bound_row_make(c->longest, Dv);
    for (int64_t i = 0; i < affordable; i++)
        check_row(p, c, rng_between(&p->r, 0, p->desc.batch - 1), rng_between(&p->r, 0, H - 1),
                  rng_between(&p->r, 0, c->T - 1), &row, &bound);
    kinds_row_free(&row);
    bound_row_free(&bound);
}

static void attend(program *p, int64_t T)
{
    call c;
    call_make(p, &c, T);
    const bool ran = call_run(p, &c);
    if (ran) check_rows(p, &c);
    if (ran && (!guarded_same_bits(&c.o[0].view, &c.o[1].view, true) ||
                !guarded_same_bits(&c.lse[0].view, &c.lse[1].view, true)))
        fail_msg("%s: not the bits of contiguous tensors", c.text);
    call_free(&c);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int64_t sink_pages(const program *p)
{
    return pages_for(p, p->desc.sink_keys);
}

/* The first page, apart from the sinks' pages, that queries from `position` on see. */
static int64_t first_seen(const program *p, int64_t position)
{
    const int64_t first = position - p->desc.window + 1;
    return first > 0 ? first / p->desc.page_size : 0;
}

/* The pages of sequence b that are discarded after an append. */
static int64_t discarded_by(const program *p, int64_t b, int64_t first, int64_t count)
{
    const int64_t seen = first_seen(p, p->lengths[b] - first);
    const bool more = p->desc.window > 0 && count > 0 && seen > sink_pages(p);
    return more && seen > p->discarded[b] ? seen : p->discarded[b];
}

/* Whether entry i of a sequence with these discarded pages is the empty page. */
static bool is_gone(const program *p, int64_t i, int64_t discarded)
{
    return i >= sink_pages(p) && i < discarded;
}

/* The number of sequences that hold a page after discarding; with counts, only sequences that
 * append to it. */
static int64_t holders(const program *p, int32_t page, const int64_t *discarded,
                       const int64_t *counts)
{
    int64_t holders = 0;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        int64_t count;
        const int32_t *held = mha_kv_cache_pages(p->cache, b, &count);
        for (int64_t i = 0; i < count; i++)
            holders += held[i] == page && !is_gone(p, i, discarded[b]) &&
                       (!counts || (counts[b] > 0 && i == p->lengths[b] / p->desc.page_size));
    }
    return holders;
}

/* Whether an append lacks pages: new pages, plus copies of shared pages for all writers except the
 * last, exceed the free pages after discarding. */
static bool lacks_pages(const program *p, const int64_t *discarded, const int64_t *counts)
{
    int64_t needed = 0, free = 0;
    for (int32_t page = 0; page < p->desc.pages; page++) {
        const int64_t all = holders(p, page, discarded, NULL),
                      writers = holders(p, page, discarded, counts);
        needed += writers < all ? writers : all > 0 ? all - 1 : 0;
        free += all == 0;
    }
    for (int64_t b = 0; b < p->desc.batch; b++)
        needed += pages_for(p, p->lengths[b] + counts[b]) - pages_for(p, p->lengths[b]);
    return needed > free;
}

/* A selection of n rows: all rows, the first rows of each sequence, or some rows. */
typedef enum rows_kind { ROWS_ALL, ROWS_COUNTS, ROWS_SOME } rows_kind;

static bool append(program *p, int64_t n, rows_kind kind)
{
    int64_t firsts[MOST_B] = {0}, counts[MOST_B], discarded[MOST_B];
    const bool rest = kind == ROWS_SOME && rng_chance(&p->r, 0.5); /* padded on the left */
    bool fits = true;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        const int64_t room = p->desc.capacity - p->lengths[b];
        if (kind == ROWS_SOME) firsts[b] = rng_between(&p->r, 0, n);
        if (rest && n - firsts[b] > room) firsts[b] = n - room;
        const int64_t most = n - firsts[b];
        counts[b] = kind == ROWS_ALL || rest ? most : rng_between(&p->r, 0, most);
        if (kind != ROWS_ALL && counts[b] > room) counts[b] = room;
        fits = fits && counts[b] <= room;
        discarded[b] = discarded_by(p, b, firsts[b], counts[b]);
    }
    const mha_status expected = !fits                               ? MHA_ERR_SIZE
                                : lacks_pages(p, discarded, counts) ? MHA_ERR_NOMEM
                                                                    : MHA_OK;
    guarded k = new_rows(p, n, p->desc.head_dim), v = new_rows(p, n, p->desc.value_head_dim);
    const mha_status status =
        kind == ROWS_SOME
            ? mha_kv_cache_append_rows(p->cache, &k.view, &v.view, firsts, rest ? NULL : counts)
            : mha_kv_cache_append(p->cache, &k.view, &v.view, kind == ROWS_ALL ? NULL : counts);
    if (status != expected)
        fail_msg("append: status %d, expected %d: %s", (int)status, (int)expected,
                 mha_error_detail());
    if (status == MHA_OK) {
        model_append(p, &k.view, firsts, counts, p->k);
        model_append(p, &v.view, firsts, counts, p->v);
        for (int64_t b = 0; b < p->desc.batch; b++) p->lengths[b] += counts[b];
        memcpy(p->discarded, discarded, sizeof discarded);
    }
    guarded_free(&k), guarded_free(&v);
    return status == MHA_OK;
}

static void step_append(program *p)
{
    append(p, rng_between(&p->r, 0, MOST_STEP), rng_chance(&p->r, 0.5) ? ROWS_COUNTS : ROWS_SOME);
}

static void step_chunk(program *p)
{
    const int64_t n = rng_between(&p->r, 1, MOST_STEP);
    if (append(p, n, ROWS_ALL)) attend(p, n);
}

static void step_long(program *p)
{
    append(p, rng_between(&p->r, 1, p->desc.capacity),
           rng_chance(&p->r, 0.5) ? ROWS_ALL : ROWS_COUNTS);
}

static void step_decode(program *p)
{
    if (append(p, 1, ROWS_ALL)) attend(p, 1);
}

static void step_attend(program *p)
{
    attend(p, rng_between(&p->r, 1, rng_chance(&p->r, 0.8) ? 5 : MOST_STEP));
}

/* Whether a sequence with these discarded pages has every position that a query at `length`
 * sees. */
static bool can_be_cut(const program *p, int64_t discarded, int64_t length)
{
    const int64_t pages = pages_for(p, length);
    return !p->desc.window || pages <= sink_pages(p) ||
           first_seen(p, length) >= (discarded < pages ? discarded : pages);
}

static void cut(program *p, int64_t b, int64_t length)
{
    p->lengths[b] = length;
    if (pages_for(p, length) < p->discarded[b]) p->discarded[b] = pages_for(p, length);
    if (pages_for(p, length) <= sink_pages(p)) p->discarded[b] = 0;
}

static void step_truncate(program *p)
{
    const int64_t b = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length = rng_chance(&p->r, 0.5) ? rng_between(&p->r, 0, p->lengths[b])
                           : p->lengths[b] > 2    ? p->lengths[b] - 2
                                                  : 0;
    const bool can = can_be_cut(p, p->discarded[b], length);
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, length), can ? MHA_OK : MHA_ERR_ARGUMENT);
    if (can) cut(p, b, length);
}

/* Copy sequence `from` of the model to `to`. */
static void become(program *p, int64_t from, int64_t to, int64_t length)
{
    const int64_t kv[] = {p->desc.head_dim, p->desc.value_head_dim, p->desc.head_dim};
    memmove(powers_of(p, to, 0), powers_of(p, from, 0),
            (size_t)(powers_of(p, 1, 0) - powers_of(p, 0, 0)) * sizeof *p->powers);
    for (int i = 0; i < 3; i++) {
        double *model = i == 0 ? p->k : i == 1 ? p->v : p->exact;
        memmove(row_of(p, model, to, 0, kv[i]), row_of(p, model, from, 0, kv[i]),
                (size_t)(length * p->desc.kv_heads * kv[i]) * sizeof *model);
    }
    p->discarded[to] = p->discarded[from];
    cut(p, to, length);
}

static void step_fork(program *p)
{
    const int64_t from = rng_between(&p->r, 0, p->desc.batch - 1),
                  to = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length =
        rng_chance(&p->r, 0.5) ? p->lengths[from] : rng_between(&p->r, 0, p->lengths[from]);
    const bool can = can_be_cut(p, p->discarded[from], length);
    if (from == to) return;
    assert_int_equal(mha_kv_cache_fork(p->cache, from, to, length),
                     can ? MHA_OK : MHA_ERR_ARGUMENT);
    if (can) become(p, from, to, length);
}

/* Assign pages of another sequence, or of the same one, by their numbers. */
static void step_assign(program *p)
{
    const int64_t from = rng_between(&p->r, 0, p->desc.batch - 1),
                  to = rng_between(&p->r, 0, p->desc.batch - 1);
    const int64_t length = rng_between(&p->r, 0, p->lengths[from]);
    int64_t held;
    const int32_t *pages = mha_kv_cache_pages(p->cache, from, &held);
    const bool can = can_be_cut(p, p->discarded[from], length);
    assert_int_equal(mha_kv_cache_assign(p->cache, to, pages, pages_for(p, length), length),
                     can ? MHA_OK : MHA_ERR_ARGUMENT);
    if (can) become(p, from, to, length);
}

static void step_reset(program *p)
{
    mha_kv_cache_reset(p->cache);
    memset(p->lengths, 0, sizeof p->lengths);
    memset(p->discarded, 0, sizeof p->discarded);
}

static void wrong_pages(program *p, int64_t b)
{
    const int64_t size = p->desc.page_size, capacity = p->desc.capacity;
    int64_t held;
    const int32_t *own = mha_kv_cache_pages(p->cache, b, &held);
    int32_t pages[] = {held > 0 && own[0] < p->desc.pages ? own[0] : 0, 0};
    pages[1] = pages[0];
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 0, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 2, capacity + 1), MHA_ERR_SIZE);
    assert_int_equal(mha_kv_cache_assign(p->cache, -1, pages, 1, 1), MHA_ERR_ARGUMENT);
    if (size < capacity) /* a page that occurs twice, or a free page */
        assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 2, size + 1), MHA_ERR_ARGUMENT);
    for (int32_t page = 0; page < p->desc.pages; page++)
        if (holders(p, page, p->discarded, NULL) == 0)
            assert_int_equal(mha_kv_cache_assign(p->cache, b, &page, 1, 1), MHA_ERR_ARGUMENT);
    /* with a window: the page is discarded, but the next query sees it */
    pages[0] = (int32_t)p->desc.pages;
    if (p->desc.window != 1 || size > 1 || p->desc.sink_keys > 0)
        assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 1), MHA_ERR_ARGUMENT);
    pages[0] = -1;
    assert_int_equal(mha_kv_cache_assign(p->cache, b, pages, 1, 1), MHA_ERR_ARGUMENT);
}

/* Append n rows: sequence b takes count, the others as many as fit. */
static mha_status append_counted(const program *p, int64_t n, int64_t b, int64_t count)
{
    const mha_kv_cache_desc *d = &p->desc;
    float numbers[MOST_WIDTH] = {0};
    int64_t counts[MOST_B];
    mha_tensor k = {.data = numbers,
                    .dtype = MHA_F32,
                    .ndim = 4,
                    .shape = {d->batch, d->kv_heads, n, d->head_dim},
                    .stride = {0, 0, 0, 1}},
               v = k;
    v.shape[3] = d->value_head_dim;
    for (int64_t i = 0; i < d->batch; i++) {
        const int64_t room = d->capacity - p->lengths[i];
        counts[i] = i == b ? count : room < n ? room : n;
    }
    return mha_kv_cache_append(p->cache, &k, &v, counts);
}

/* Invalid calls are rejected without changes. */
static void step_wrong(program *p)
{
    const int64_t B = p->desc.batch, b = rng_between(&p->r, 0, B - 1);
    const int64_t too_long = p->lengths[b] + 1, too_many = p->desc.capacity - p->lengths[b] + 1;
    assert_int_equal(append_counted(p, too_many, b, too_many), MHA_ERR_SIZE);
    assert_int_equal(append_counted(p, 2, b, 3), MHA_ERR_ARGUMENT);
    assert_int_equal(append_counted(p, 2, b, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, too_long), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, b, -1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, B, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_truncate(p->cache, -1, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, b, b, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, b, B, 0), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_kv_cache_fork(p->cache, -1, b, 0), MHA_ERR_ARGUMENT);
    wrong_pages(p, b);
    if (B > 1)
        assert_int_equal(mha_kv_cache_fork(p->cache, b, (b + 1) % B, too_long), MHA_ERR_ARGUMENT);
    attend(p, 1);
}

typedef struct step {
    const char *name;
    int weight;
    void (*run)(program *p);
} step;

/* Add new operations here. */
static const step steps[] = {{"append", 4, step_append},    {"chunk", 4, step_chunk},
                             {"long append", 2, step_long}, {"decode", 6, step_decode},
                             {"attend", 3, step_attend},    {"truncate", 3, step_truncate},
                             {"fork", 4, step_fork},        {"assign", 2, step_assign},
                             {"reset", 1, step_reset},      {"refusals", 1, step_wrong}};
enum { STEPS = sizeof steps / sizeof *steps };

static const step *some_step(rng *r)
{
    int all = 0;
    for (int i = 0; i < STEPS; i++) all += steps[i].weight;
    int64_t at = rng_between(r, 0, all - 1);
    int i = 0;
    for (; at >= steps[i].weight; i++) at -= steps[i].weight;
    return &steps[i];
}

/* ---- programs ------------------------------------------------------------------------------- */

static void expect_state(const program *p)
{
    int64_t held = 0;
    for (int64_t b = 0; b < p->desc.batch; b++) {
        int64_t count;
        const int32_t *pages = mha_kv_cache_pages(p->cache, b, &count);
        assert_int_equal(mha_kv_cache_lengths(p->cache)[b], p->lengths[b]);
        assert_int_equal(count, pages_for(p, p->lengths[b]));
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(pages[i] == p->desc.pages, is_gone(p, i, p->discarded[b]));
    }
    for (int32_t page = 0; page < p->desc.pages; page++)
        held += holders(p, page, p->discarded, NULL) > 0;
    assert_int_equal(held + mha_kv_cache_free_pages(p->cache), p->desc.pages);
}

static int64_t some_width(rng *r)
{
    static const int64_t widths[] = {16, 32, 64, MOST_WIDTH};
    return rng_chance(r, 0.5) ? RNG_PICK(r, widths) : rng_between(r, 1, 70);
}

static void make_cache(program *p)
{
    static const int64_t sizes[] = {1, 2, 5, 15, 16, 17, 32, 48, 64, 70};
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    p->desc = (mha_kv_cache_desc){.struct_size = sizeof p->desc,
                                  .batch = rng_between(&p->r, 1, MOST_B),
                                  .kv_heads = rng_between(&p->r, 1, MOST_KV_HEADS),
                                  .capacity = rng_chance(&p->r, 0.2) ? rng_between(&p->r, 500, 1300)
                                                                     : rng_between(&p->r, 1, 150),
                                  .head_dim = some_width(&p->r),
                                  .value_head_dim = some_width(&p->r),
                                  .type = RNG_PICK(&p->r, types)};
    if (rng_chance(&p->r, 0.8)) p->desc.page_size = RNG_PICK(&p->r, sizes);
    if (rng_chance(&p->r, 0.3)) p->desc.pages = rng_between(&p->r, 1, 40);
    const bool whole_runs = p->desc.page_size % RUN == 0 || p->desc.page_size >= p->desc.capacity;
    if (p->desc.type == MHA_I8 && whole_runs)
        p->desc.key_scales = (mha_kv_scales)rng_between(&p->r, 0, 1);
    if (rng_chance(&p->r, 0.3)) {
        p->desc.window = rng_between(&p->r, 1, rng_chance(&p->r, 0.8) ? 70 : 600);
        p->desc.sink_keys = rng_chance(&p->r, 0.5) ? rng_between(&p->r, 0, 20) : 0;
        p->desc.max_append = rng_chance(&p->r, 0.5) ? rng_between(&p->r, 0, 2 * MOST_STEP) : 0;
    }
    mha_kv_cache_sizes counted = {.struct_size = sizeof counted};
    expect_ok(mha_kv_cache_count(&p->desc, &counted));
    expect_ok(mha_kv_cache_create(p->context, &p->desc, &p->cache));
    assert_true(mha_kv_cache_bytes(p->cache) == (size_t)counted.total_bytes);
    mha_kv_cache_describe(p->cache, &p->desc);
}

static program program_make(uint64_t number)
{
    program p = {.r = rng_make(rng_run_seed(), number)};
    p.context = machines_context((int)rng_between(&p.r, 1, 4), (int64_t)number);
    p.group = rng_between(&p.r, 1, MOST_GROUP);
    make_cache(&p);
    const int64_t rows = p.desc.batch * p.desc.capacity * p.desc.kv_heads;
    p.k = zeros(rows * p.desc.head_dim, sizeof *p.k);
    p.v = zeros(rows * p.desc.value_head_dim, sizeof *p.v);
    p.exact = zeros(rows * p.desc.head_dim, sizeof *p.exact);
    p.powers =
        zeros(p.desc.batch * runs_of(&p) * p.desc.kv_heads * p.desc.head_dim, sizeof *p.powers);
    return p;
}

/* The place where a test failed; step NULL: none. */
static struct {
    int program, number;
    const step *step;
    mha_kv_cache_desc desc;
} place;

static int say_place(void **unused)
{
    const mha_kv_cache_desc *d = &place.desc;
    (void)unused;
    if (place.step)
        print_error("step %d (%s) of a cache of %s, scales %d, B %lld, Hk %lld, D %lld, Dv %lld, "
                    "capacity %lld, "
                    "%lld pages of %lld, window %lld, sinks %lld\n  alone: MHA_TEST_SEED=%llu "
                    "MHA_TEST_CASE=%d\n",
                    place.number, place.step->name, mha_dtype_name(d->type), (int)d->key_scales,
                    (long long)d->batch, (long long)d->kv_heads, (long long)d->head_dim,
                    (long long)d->value_head_dim, (long long)d->capacity, (long long)d->pages,
                    (long long)d->page_size, (long long)d->window, (long long)d->sink_keys,
                    (unsigned long long)rng_run_seed(), place.program);
    return 0;
}

static void test_random_programs(void **unused)
{
    (void)unused;
    int first, end;
    const bool whole = rng_range(60, 5000, &first, &end);
    for (int i = first; i < end; i++) {
        program p = program_make((uint64_t)i);
        const int count = p.desc.capacity > 200 ? 12 : p.desc.window ? 45 : 30;
        place.program = i;
        place.desc = p.desc;
        for (place.number = 0; place.number < count; place.number++) {
            place.step = some_step(&p.r);
            place.step->run(&p);
            expect_state(&p);
        }
        mha_kv_cache_destroy(p.cache);
        free(p.k), free(p.v), free(p.exact), free(p.powers);
    }
    place.step = NULL;
    if (!whole) return;
    for (int i = 0; i < 2; i++) {
        tally_judge(&tally_o[i]);
        tally_judge(&tally_lse[i]);
    }
}

/* A million appends and rollbacks allocate no memory, and the last result equals the first. */
static void test_no_growth(void)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = 2,
                                    .kv_heads = 1,
                                    .capacity = 40,
                                    .head_dim = 2,
                                    .page_size = 3,
                                    .pages = 16};
    mha_context *context = machines_context(1, 0);
    mha_kv_cache *cache;
    float x[4] = {1, 2, 3, 4};
    const mha_tensor t = mha_tensor_contiguous(x, MHA_F32, 4, (const int64_t[]){2, 1, 1, 2});
    expect_ok(mha_kv_cache_create(context, &desc, &cache));
    rng r = rng_make(rng_run_seed(), 1);
    const int64_t steps_left = rng_cases(100000, 1000000);
    for (int64_t i = 0; i < steps_left; i++) {
        const int64_t b = i % 2, length = mha_kv_cache_lengths(cache)[b];
        if (mha_kv_cache_append(cache, &t, &t, NULL) == MHA_OK && i % 7 != 0) continue;
        if (i % 3 == 0) expect_ok(mha_kv_cache_fork(cache, b, 1 - b, length / 2));
        expect_ok(mha_kv_cache_truncate(cache, b, rng_between(&r, 0, length)));
    }
    for (int64_t b = 0; b < 2; b++) expect_ok(mha_kv_cache_truncate(cache, b, 0));
    assert_int_equal(mha_kv_cache_free_pages(cache), 16);
    mha_kv_cache_destroy(cache);
}

RUN_TESTS(cmocka_unit_test_teardown(test_random_programs, say_place), TEST(test_no_growth))
