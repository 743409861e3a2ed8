/* mha_head_corpus: creation, the end of a text, and merging. */
#include "analysis/head_corpus.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/split_mix.h"

#include <math.h>
#include <string.h>

enum { PLACES = 8, REPLICATES = 200, MOST_REPLICATES = MHA_HEAD_CORPUS_MOST_REPLICATES };

/* ---- memory ---------------------------------------------------------------------------------- */

/* Arrays of fixed size. */
#define CORPUS_ARRAYS(X)                                      \
    X(first_head, c->layers + 1)                              \
    X(head, c->heads)                                         \
    X(place, c->heads *MHA_MEASURES * 2 * c->places)          \
    X(replicate, c->replicates * c->heads * MHA_MEASURES)     \
    X(permutation, c->permutations * c->heads * MHA_MEASURES) \
    MHAI_CORPUS_TOKEN_SUMS(X)                                 \
    MHAI_CORPUS_TOKEN_COUNTS(X)                               \
    X(seen, c->most_heads)                                    \
    X(gram, c->layers)                                        \
    X(gram_size, c->layers)                                   \
    X(order, c->heads)

static bool take_arrays(mha_head_corpus *c)
{
#define TAKE(name, count)                                       \
    c->name = mhai_take(&c->allocator, count, sizeof *c->name); \
    if (!c->name) return false;
    CORPUS_ARRAYS(TAKE)
#undef TAKE
    return true;
}

static void detach(mha_head_measures *m)
{
    if (m->corpus) m->corpus->measures = NULL;
    m->corpus = NULL;
    for (int64_t h = 0; h < m->most_heads; h++) m->maps[h].seen = NULL;
}

void mha_head_corpus_destroy(mha_head_corpus *c)
{
    if (!c) return;
    if (c->measures) detach(c->measures);
    for (int64_t l = 0; c->gram && c->gram_size && l < c->layers; l++)
        mhai_give(&c->allocator, c->gram[l], c->gram_size[l], sizeof **c->gram);
    mhai_give(&c->allocator, c->norms, c->norm_bytes, 1);
#define GIVE(name, count) mhai_give(&c->allocator, c->name, count, sizeof *c->name);
    CORPUS_ARRAYS(GIVE)
#undef GIVE
    const mha_allocator allocator = c->allocator;
    allocator.release(allocator.user, c, sizeof *c);
}

static mha_status check_count(const char *name, int64_t *count, int64_t usual, int64_t most)
{
    if (*count == 0) *count = usual;
    if (*count == -1) *count = 0;
    if (*count >= 0 && *count <= most) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "mha_head_corpus_desc: %s is %lld, expected at most %lld",
                    name, (long long)*count, (long long)most);
}

static mha_status check_desc(mha_head_corpus_desc *d)
{
    MHA_TRY(mhai_check_flags("mha_head_corpus_desc", d->flags, 0));
    MHA_TRY(mhai_check_range("mha_head_corpus_desc: vocab_size", d->vocab_size, 0, INT32_MAX));
    MHA_TRY(mhai_check_range("mha_head_corpus_desc: places", d->places, 0,
                             MHA_HEAD_CORPUS_MOST_PLACES));
    MHA_TRY(check_count("places", &d->places, PLACES, MHA_HEAD_CORPUS_MOST_PLACES));
    MHA_TRY(check_count("replicates", &d->replicates, REPLICATES, MOST_REPLICATES));
    return check_count("permutations", &d->permutations, REPLICATES, MOST_REPLICATES);
}

mha_status mha_head_corpus_create(mha_context *context, const mha_head_measures *measures,
                                  const mha_head_corpus_desc *desc, mha_head_corpus **corpus)
{
    mha_head_corpus_desc d;
    MHA_NEED("mha_head_corpus_create", context, measures, desc, corpus);
    MHA_TRY(mhai_struct_copy("mha_head_corpus_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(check_desc(&d));
    const mha_allocator a = mha_context_allocator(context);
    mha_head_corpus *c = a.alloc(a.user, sizeof *c, _Alignof(mha_head_corpus));
    if (!c) return MHA_NO_MEMORY("mha_head_corpus");
    *c = (mha_head_corpus){.context = context,
                           .allocator = a,
                           .layers = measures->layers,
                           .heads = measures->first_head[measures->layers],
                           .most_heads = measures->most_heads,
                           .vocab = d.vocab_size,
                           .places = d.places,
                           .replicates = d.replicates,
                           .permutations = d.permutations,
                           .seed = d.seed,
                           .number = -1,
                           .norm_layer = -1};
    if (!take_arrays(c)) {
        mha_head_corpus_destroy(c);
        return MHA_NO_MEMORY("mha_head_corpus");
    }
    memcpy(c->first_head, measures->first_head, (size_t)(c->layers + 1) * sizeof *c->first_head);
    *corpus = c;
    return MHA_OK;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static bool same_heads(const mha_head_corpus *c, int64_t layers, const int64_t *first_head)
{
    return c->layers == layers &&
           !memcmp(c->first_head, first_head, (size_t)(layers + 1) * sizeof *first_head);
}

mha_status mha_head_corpus_attach(mha_head_measures *m, mha_head_corpus *c)
{
    if (!m) return mha_fail(MHA_ERR_NULL, "mha_head_corpus_attach: measures is NULL");
    if (m->open || (c && c->open))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_corpus_attach: a text is open; end it first");
    if (c && !same_heads(c, m->layers, m->first_head))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_corpus_attach: the corpus was created for other heads");
    detach(m);
    if (c && c->measures) detach(c->measures);
    m->corpus = c;
    if (c) c->measures = m;
    return MHA_OK;
}

mha_status mha_head_corpus_number(mha_head_corpus *c, int64_t text)
{
    if (!c) return mha_fail(MHA_ERR_NULL, "mha_head_corpus_number: corpus is NULL");
    MHA_TRY(mhai_check_range("mha_head_corpus_number: text", text, 0, INT64_MAX));
    c->number = text;
    return MHA_OK;
}

static void clear_now(mha_head_corpus *c)
{
    for (int64_t h = 0; h < c->heads; h++)
        for (int n = 0; n < MHA_MEASURES; n++) {
            mhai_corpus_score *s = &c->head[h].score[n];
            s->now_value = 0;
            s->now_rows = s->now_fixed = 0;
            s->now_best[0].there = s->now_best[1].there = false;
        }
    c->norm_layer = -1;
}

mha_status mhai_corpus_begin(mha_head_corpus *c, const mha_heads_text *text)
{
    for (int64_t s = 0; c->vocab > 0 && text->ids && s < text->keys; s++)
        if (text->ids[s] < 0 || text->ids[s] >= c->vocab)
            return mha_fail(MHA_ERR_ARGUMENT, "ids[%lld] is %lld, expected 0..%lld of the corpus",
                            (long long)s, (long long)text->ids[s], (long long)c->vocab - 1);
    clear_now(c);
    c->open = true;
    return MHA_OK;
}

void mhai_corpus_drop(mha_head_corpus *c)
{
    c->open = false;
    c->number = -1;
}

double mhai_corpus_unit(mha_head_measure which)
{
    const mha_measure_kind kind = mha_measure_describe(which).kind;
    return kind == MHA_KIND_NATS     ? MHAI_CORPUS_NATS
           : kind == MHA_KIND_TOKENS ? MHAI_CORPUS_TOKENS
                                     : MHAI_CORPUS_SHARE;
}

/* A random state that depends on a purpose, a text and a number. */
static uint64_t state_of(const mha_head_corpus *c, uint64_t purpose, int64_t text, int64_t number)
{
    uint64_t state = c->seed ^ purpose;
    state = mhai_split_mix(&state) ^ (uint64_t)text;
    state = mhai_split_mix(&state) ^ (uint64_t)number;
    return state;
}

/* A Poisson(1) number from 64 random bits: the count of cumulative probabilities
 * that do not exceed them. */
static int64_t poisson(uint64_t bits)
{
    const double u = (double)(bits >> 11) * 0x1p-53;
    double term = 0.36787944117144233, sum = term; /* 1 / e */
    int64_t w = 0;
    while (u >= sum && w < 20) term /= (double)++w, sum += term;
    return w;
}

static void resample(mha_head_corpus *c, int64_t text)
{
    for (int64_t r = 0; r < c->replicates; r++) {
        uint64_t state = state_of(c, UINT64_C(0x626F6F7473747261), text, r);
        const int64_t w = poisson(mhai_split_mix(&state));
        mhai_corpus_sum *sum = c->replicate + r * c->heads * MHA_MEASURES;
        for (int64_t h = 0; w > 0 && h < c->heads; h++)
            for (int n = 0; n < MHA_MEASURES; n++, sum++) {
                sum->value += w * c->head[h].score[n].now_fixed;
                sum->rows += w * c->head[h].score[n].now_rows;
            }
    }
}

/* Give head h the text's score of head order[h]. */
static void permute(mha_head_corpus *c, int64_t text)
{
    for (int64_t r = 0; r < c->permutations; r++) {
        uint64_t state = state_of(c, UINT64_C(0x7065726D75746564), text, r);
        mhai_corpus_sum *sum = c->permutation + r * c->heads * MHA_MEASURES;
        for (int64_t h = 0; h < c->heads; h++) c->order[h] = h;
        for (int64_t h = c->heads - 1; h > 0; h--) {
            const int64_t other = (int64_t)(mhai_split_mix(&state) % (uint64_t)(h + 1));
            const int64_t kept = c->order[h];
            c->order[h] = c->order[other];
            c->order[other] = kept;
        }
        for (int64_t h = 0; h < c->heads; h++)
            for (int n = 0; n < MHA_MEASURES; n++, sum++) {
                const mhai_corpus_score *s = &c->head[c->order[h]].score[n];
                sum->value += s->now_fixed;
                sum->rows += s->now_rows;
            }
    }
}

bool mhai_corpus_comes_first(const mha_head_place *a, const mha_head_place *b, int side)
{
    if (a->value != b->value) return side ? a->value < b->value : a->value > b->value;
    return a->text != b->text ? a->text < b->text : a->row < b->row;
}

static void keep_place(const mha_head_corpus *c, int64_t h, int n, int side, mha_head_place place)
{
    mha_head_place *list = c->place + ((h * MHA_MEASURES + n) * 2 + side) * c->places;
    int64_t *held = &c->head[h].score[n].held[side];
    int64_t at = *held < c->places ? (*held)++ : c->places;
    if (at == c->places && !mhai_corpus_comes_first(&place, &list[--at], side)) return;
    for (; at > 0 && mhai_corpus_comes_first(&place, &list[at - 1], side); at--)
        list[at] = list[at - 1];
    list[at] = place;
}

static void end_head(mha_head_corpus *c, int64_t h, int64_t text)
{
    for (int n = 0; n < MHA_MEASURES; n++) {
        mhai_corpus_score *s = &c->head[h].score[n];
        mhai_exact_add(&s->value, s->now_value);
        s->rows += s->now_rows;
        s->texts += s->now_rows > 0;
        for (int side = 0; side < 2; side++) {
            const mhai_corpus_best *b = &s->now_best[side];
            if (b->there)
                keep_place(c, h, n, side, (mha_head_place){text, b->row, b->key, b->value});
        }
    }
}

void mhai_corpus_end(mha_head_corpus *c)
{
    const int64_t text = c->number >= 0 ? c->number : c->texts;
    resample(c, text);
    permute(c, text);
    for (int64_t h = 0; h < c->heads; h++) end_head(c, h, text);
    c->texts++;
    mhai_corpus_drop(c);
}

/* ---- merging --------------------------------------------------------------------------------- */

static void merge_sums(mhai_head_merge *pass, mhai_corpus_sum *to, const mhai_corpus_sum *from,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        mhai_head_merge_counts(pass, &to[i].value, &from[i].value, 1, MHAI_SUM_MOST);
        mhai_head_merge_counts(pass, &to[i].rows, &from[i].rows, 1, MHAI_SUM_MOST);
    }
}

/* Merge the sums that are not integers. */
static void join_score(const mha_head_corpus *c, const mha_head_corpus *from, int64_t h, int n)
{
    mhai_corpus_score *to = &c->head[h].score[n];
    const mhai_corpus_score *s = &from->head[h].score[n];
    if (s->binned > 0) {
        const bool any = to->binned > 0;
        to->smallest = any && to->smallest < s->smallest ? to->smallest : s->smallest;
        to->largest = any && to->largest > s->largest ? to->largest : s->largest;
    }
    mhai_exact_join(&to->value, &s->value);
    for (int side = 0; side < 2; side++)
        for (int64_t i = 0; i < s->held[side]; i++)
            keep_place(c, h, n, side,
                       from->place[((h * MHA_MEASURES + n) * 2 + side) * c->places + i]);
}

#define MERGE(field, most) mhai_head_merge_counts(pass, &to->field, &x->field, 1, most);
#define SUM(field) MERGE(field, MHAI_SUM_MOST)
#define COUNT(field) MERGE(field, MHAI_COUNT_MOST)

static void merge_score(mhai_head_merge *pass, mhai_corpus_score *to, const mhai_corpus_score *x)
{
    MERGE(rows, MHAI_COUNT_MOST)
    MERGE(texts, MHAI_COUNT_MOST)
    MERGE(binned, MHAI_COUNT_MOST)
    mhai_head_merge_counts(pass, to->bin, x->bin, MHA_HEAD_CORPUS_BINS, MHAI_COUNT_MOST);
}

static void merge_head(mhai_head_merge *pass, const mha_head_corpus *c, const mha_head_corpus *from,
                       int64_t h)
{
    mhai_corpus_head *to = &c->head[h];
    const mhai_corpus_head *x = &from->head[h];
    for (int n = 0; n < MHA_MEASURES; n++) {
        if (pass->adds) join_score(c, from, h, n);
        merge_score(pass, &to->score[n], &x->score[n]);
    }
    for (int i = 0; i < MHA_HEAD_CORPUS_POSITIONS; i++) {
        MHAI_CORPUS_POSITION(SUM, COUNT, i)
    }
    MHAI_CORPUS_REST(SUM, COUNT)
}
#undef SUM
#undef COUNT
#undef MERGE

static void merge_all(mhai_head_merge *pass, mha_head_corpus *c, const mha_head_corpus *from)
{
    for (int64_t h = 0; h < c->heads; h++) merge_head(pass, c, from, h);
    merge_sums(pass, c->replicate, from->replicate, c->replicates * c->heads * MHA_MEASURES);
    merge_sums(pass, c->permutation, from->permutation, c->permutations * c->heads * MHA_MEASURES);
#define SUMS(name, count) mhai_head_merge_counts(pass, c->name, from->name, count, MHAI_SUM_MOST);
#define COUNTS(name, count) \
    mhai_head_merge_counts(pass, c->name, from->name, count, MHAI_COUNT_MOST);
    MHAI_CORPUS_TOKEN_SUMS(SUMS)
    MHAI_CORPUS_TOKEN_COUNTS(COUNTS)
#undef SUMS
#undef COUNTS
}

static mha_status merge(mha_head_corpus *c, const mha_head_corpus *from)
{
    if (c == from || c->open || from->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_corpus_merge: %s",
                        c == from ? "both are the same object" : "a text is open; end it first");
    if (!same_heads(c, from->layers, from->first_head) || c->vocab != from->vocab ||
        c->places != from->places || c->replicates != from->replicates ||
        c->permutations != from->permutations || c->seed != from->seed)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_corpus_merge: the two were created from different descriptions");
    mhai_head_merge pass = {.fits = c->texts <= MHAI_COUNT_MOST - from->texts};
    merge_all(&pass, c, from);
    if (!pass.fits)
        return mha_fail(MHA_ERR_SIZE, "mha_head_corpus_merge: sums beyond 2^62, or 2^53 rows");
    pass.adds = true;
    merge_all(&pass, c, from);
    return MHA_OK;
}

mha_status mha_head_corpus_merge(mha_head_corpus *c, const mha_head_corpus *from)
{
    MHA_NEED_AS("mha_head_corpus_merge", "corpus, from", c, from);
    MHA_TRY(merge(c, from));
    c->texts += from->texts;
    return MHA_OK;
}

mha_status mha_head_corpus_merge_layers(mha_head_corpus *c, const mha_head_corpus *from)
{
    MHA_NEED_AS("mha_head_corpus_merge_layers", "corpus, from", c, from);
    if (c->texts != from->texts)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_corpus_merge_layers: the objects have %lld and %lld texts; "
                        "expected equal numbers",
                        (long long)c->texts, (long long)from->texts);
    return merge(c, from);
}
