/* Probabilities, scores and statistics of rows: a second row-major pass over tiles, which uses the
 * final maximum and sum of each row. Its scores are bit-identical to those of the forward pass. */
#include "attention/attn_tiles.h"

#include "base/checked.h"
#include "base/math.h"

#include <multihead/component.h>

#include <math.h>

/* A pass over some rows, with the outputs that it writes. */
typedef struct outputs_pass {
    const mhai_attn_walk *walk;
    const mhai_attn_kept *kept;
    bool statistics;
    const mha_tensor *probabilities, *scores; /* NULL: not in this pass */
    mhai_attn_problem bare;                   /* the problem without the terms that are
                                               * excluded from `scores` */
} outputs_pass;

/* A chunk of a pass, with the indices of its rows on the axes of probabilities and scores. */
typedef struct outputs_chunk {
    const outputs_pass *pass;
    int64_t out_head, out_row;
} outputs_chunk;

/* ---- the final m and l ----------------------------------------------------------------------- */

bool mhai_attn_needs_kept(const mhai_attn_problem *p)
{
    const mhai_attn_wanted *want = &p->want;
    return mhai_attn_wants_statistics(want) || mhai_attn_wants(&p->probabilities) ||
           mhai_attn_wants(&want->average) || mhai_attn_wants(&want->column_sums);
}

static int64_t kept_at(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                       const mhai_attn_workspace *w, int64_t r)
{
    return (c->seq.batch * p->H + w->head[r]) * p->q.shape[2] + c->seq.q0 + w->query[r];
}

void mhai_attn_keep_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                         const mhai_attn_chunk *c, const mhai_attn_workspace *w)
{
    for (int64_t r = 0; r < c->rows; r++) {
        kept->m[kept_at(p, c, w, r)] = w->m[r];
        kept->l[kept_at(p, c, w, r)] = w->l[r];
    }
}

void mhai_attn_restore_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                            const mhai_attn_chunk *c, const mhai_attn_workspace *w)
{
    for (int64_t r = 0; r < c->rows; r++) {
        w->m[r] = kept->m[kept_at(p, c, w, r)];
        w->l[r] = kept->l[kept_at(p, c, w, r)];
    }
}

/* ---- positions of rows ----------------------------------------------------------------------- */

static float *row_f32(const mha_tensor *x, const mhai_attn_chunk *c, const mhai_attn_workspace *w,
                      int64_t r)
{
    return mhai_attn_row(x, c->seq.batch, w->head[r], c->seq.q0 + w->query[r]);
}

static int64_t *row_i64(const mha_tensor *x, const mhai_attn_chunk *c, const mhai_attn_workspace *w,
                        int64_t r)
{
    return mhai_attn_data(x, c->seq.batch, w->head[r], c->seq.q0 + w->query[r]);
}

/* Write a strip's rows of a matrix: the tile's results, and `outside` for all other keys. */
static void write_strip(const outputs_chunk *x, const mha_tensor *matrix, const mhai_attn_chunk *c,
                        const mhai_attn_block *block, const mhai_attn_strip *s, float outside)
{
    const int64_t columns = mhai_min_i64(MHAI_KEY_BLOCK, x->pass->walk->p->S - block->key);
    for (int r = 0; r < s->tile.rows; r++) {
        int64_t i = c->first + s->first + r;
        float *out = mhai_attn_row(matrix, c->seq.batch, x->out_head + i / c->width,
                                   x->out_row + i % c->width) +
                     block->key;
        const float *in = s->tile.s + r * MHAI_SCORE_STRIDE;
        for (int64_t j = 0; j < s->tile.begin; j++) out[j] = outside;
        for (int64_t j = s->tile.begin; j < s->tile.end; j++) out[j] = in[j];
        for (int64_t j = s->tile.end; j < columns; j++) out[j] = outside;
    }
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Keys arrive in order, so among equal weights the earliest key is first. */
static void insert_top(float *weights, int64_t *keys, int64_t count, float weight, int64_t key)
{
    int64_t i = count - 1;
    for (; i > 0 && weights[i - 1] < weight; i--)
        weights[i] = weights[i - 1], keys[i] = keys[i - 1];
    weights[i] = weight, keys[i] = key;
}

static void add_top(const mhai_attn_wanted *want, const mhai_attn_chunk *c,
                    const mhai_attn_workspace *w, const mhai_attn_block *block,
                    const mhai_attn_strip *s, int r)
{
    const float *p = s->tile.s + r * MHAI_SCORE_STRIDE;
    const int64_t count = want->top_keys.shape[3];
    float *weights = row_f32(&want->top_weights, c, w, s->first + r);
    int64_t *keys = row_i64(&want->top_keys, c, w, s->first + r);
    if (!(s->tile.statistics->largest[r] > weights[count - 1])) return;
    for (int j = s->tile.begin; j < s->tile.end; j++)
        if (p[j] > weights[count - 1]) insert_top(weights, keys, count, p[j], block->key + j);
}

/* If the tile contains the key at this position, store its p. */
static void add_place(const mhai_attn_block *block, const mhai_attn_strip *s, int r, int64_t key,
                      float *out)
{
    if (key < block->key + s->tile.begin || key >= block->key + s->tile.end) return;
    *out = s->tile.s[r * MHAI_SCORE_STRIDE + (key - block->key)];
}

static void add_places(const mhai_attn_wanted *want, const mhai_attn_chunk *c,
                       const mhai_attn_workspace *w, const mhai_attn_block *block,
                       const mhai_attn_strip *s, int r)
{
    const int64_t row = s->first + r, position = w->query[row] + c->seq.offset;
    if (want->first_token.data)
        add_place(block, s, r, c->seq.begin, row_f32(&want->first_token, c, w, row));
    if (want->diagonal.data) add_place(block, s, r, position, row_f32(&want->diagonal, c, w, row));
    for (int64_t n = 0; want->offset_mass.data && n < want->offsets_count; n++) {
        int64_t key;
        if (mhai_add_i64(position, want->offsets[n], &key))
            add_place(block, s, r, key, row_f32(&want->offset_mass, c, w, row) + n);
    }
}

static void add_largest(mhai_attn_workspace *w, const mhai_attn_block *block,
                        const mhai_attn_strip *s, int r)
{
    const float *p = s->tile.s + r * MHAI_SCORE_STRIDE, largest = s->tile.statistics->largest[r];
    int j = s->tile.begin;
    if (!(largest > w->largest[s->first + r])) return;
    while (p[j] != largest) j++;
    w->largest[s->first + r] = largest;
    w->largest_key[s->first + r] = block->key + j;
}

static void add_statistics(const outputs_pass *pass, const mhai_attn_chunk *c,
                           mhai_attn_workspace *w, const mhai_attn_block *block,
                           const mhai_attn_strip *s)
{
    const mhai_attn_wanted *want = &pass->walk->p->want;
    for (int r = 0; r < s->tile.rows; r++) {
        w->entropy[s->first + r] += (double)s->tile.statistics->entropy[r];
        add_largest(w, block, s, r);
        add_places(want, c, w, block, s, r);
        if (want->top_keys.data) add_top(want, c, w, block, s, r);
    }
}

static void fill(float *out, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++) out[i] = value;
}

/* Initialise the statistics to the results of a row without keys. */
static void start_statistics(const outputs_pass *pass, const mhai_attn_chunk *c,
                             mhai_attn_workspace *w)
{
    const mhai_attn_wanted *want = &pass->walk->p->want;
    const int64_t top = want->top_keys.data ? want->top_keys.shape[3] : 0;
    for (int64_t r = 0; r < c->rows; r++) {
        w->entropy[r] = 0;
        w->largest[r] = 0;
        w->largest_key[r] = -1;
        w->log_sum[r] =
            w->l[r] > 0 ? (float)(mhai_log((double)w->l[r]) * 1.4426950408889634) : 0.0f;
        if (want->first_token.data) *row_f32(&want->first_token, c, w, r) = 0;
        if (want->diagonal.data) *row_f32(&want->diagonal, c, w, r) = 0;
        if (want->offset_mass.data)
            fill(row_f32(&want->offset_mass, c, w, r), want->offsets_count, 0);
        if (top) fill(row_f32(&want->top_weights, c, w, r), top, 0);
        for (int64_t i = 0; i < top; i++) row_i64(&want->top_keys, c, w, r)[i] = -1;
    }
}

/* A row whose sum is NaN has no order of weights. */
static void finish_statistics(const outputs_pass *pass, const mhai_attn_chunk *c,
                              const mhai_attn_workspace *w)
{
    const mhai_attn_wanted *want = &pass->walk->p->want;
    const int64_t top = want->top_keys.data ? want->top_keys.shape[3] : 0;
    for (int64_t r = 0; r < c->rows; r++) {
        bool lost = isnan(w->l[r]);
        if (want->entropy.data)
            *row_f32(&want->entropy, c, w, r) = lost ? NAN : (float)w->entropy[r];
        if (want->largest_weight.data)
            *row_f32(&want->largest_weight, c, w, r) = lost ? NAN : w->largest[r];
        if (want->largest_key.data)
            *row_i64(&want->largest_key, c, w, r) = lost ? -1 : w->largest_key[r];
        if (lost && top) fill(row_f32(&want->top_weights, c, w, r), top, NAN);
        for (int64_t i = 0; lost && i < top; i++) row_i64(&want->top_keys, c, w, r)[i] = -1;
    }
}

/* ---- probabilities --------------------------------------------------------------------------- */

static void start_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const outputs_chunk *x = user;
    mhai_attn_restore_rows(x->pass->kept, x->pass->walk->p, c, w);
    if (x->pass->statistics) start_statistics(x->pass, c, w);
}

static void probabilities_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                                const mhai_attn_block *block, mhai_attn_strip *s)
{
    const outputs_chunk *x = user;
    const mhai_attn_walk *walk = x->pass->walk;
    mhai_tile_statistics statistics;
    mhai_dropout dropout;
    if (s->tile.begin < s->tile.end) {
        statistics.log_sum = walk->p->want.entropy.data ? w->log_sum + s->first : NULL;
        if (x->pass->statistics) s->tile.statistics = &statistics;
        walk->kernels->tile_probabilities(&s->tile);
        if (x->pass->statistics) add_statistics(x->pass, c, w, block, s);
        if (walk->p->want.dropped) {
            mhai_attn_set_dropout(walk, c, w, block, s, &dropout);
            s->tile.dropout = &dropout;
            walk->kernels->tile_drop(&s->tile);
        }
    }
    if (x->pass->probabilities) write_strip(x, x->pass->probabilities, c, block, s, 0);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The problem whose scores are raw or capped scores: no masks and no later terms. */
static mhai_attn_problem bare_problem(const mhai_attn_problem *p)
{
    mhai_attn_problem bare = *p;
    if (p->want.stage == MHA_SCORES_BIASED) return bare;
#define DROP(name, type, axes, stage) \
    if ((MHAI_MASKS | MHAI_BIASES) & MHAI_USES(name)) bare.name = (mhai_form_##axes){0};
    MHA_ATTENTION_INPUTS(DROP)
#undef DROP
    bare.uses &= ~(MHAI_MASKS | MHAI_BIASES);
    bare.causal = bare.window = false;
    if (p->pages)
        bare.uses |= MHAI_USES(key_lengths); /* the pages hold no keys after these lengths */
    else
        bare.key_lengths = NULL;
    bare.key_begins = NULL;
    bare.callback = NULL;
    if (p->want.stage == MHA_SCORES_RAW) {
        bare.softcap = 0;
        bare.uses &= ~MHAI_USES(softcap);
    }
    return bare;
}

static void scores_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                         const mhai_attn_block *block, mhai_attn_strip *s)
{
    const outputs_chunk *x = user;
    (void)w;
    if (s->tile.begin < s->tile.end) x->pass->walk->kernels->tile_masked_scores(&s->tile);
    write_strip(x, x->pass->scores, c, block, s, -INFINITY);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Write all outputs of the pass for one chunk. */
static void run_chunk(const outputs_pass *pass, mhai_attn_chunk *c, mhai_attn_workspace *w,
                      int64_t out_head, int64_t out_row)
{
    outputs_chunk x = {.pass = pass, .out_head = out_head, .out_row = out_row};
    mhai_attn_visitor visitor = {.options = pass->probabilities ? MHAI_WALK_ALL : 0,
                                 .user = &x,
                                 .chunk = start_chunk,
                                 .strip = probabilities_strip};
    if (pass->probabilities || pass->statistics) {
        mhai_attn_walk_chunk(pass->walk, c, w, &visitor);
        if (pass->statistics) finish_statistics(pass, c, w);
    }
    if (!pass->scores) return;
    mhai_attn_walk bare = *pass->walk;
    bare.p = &pass->bare;
    c->seq = mhai_attn_sequence_of(&pass->bare, c->seq.b);
    visitor = (mhai_attn_visitor){.options = MHAI_WALK_ALL, .user = &x, .strip = scores_strip};
    mhai_attn_walk_chunk(&bare, c, w, &visitor);
}

/* Compute all rows, with the same items as the forward pass. */
static void run_item(void *argument, int64_t item, int worker)
{
    const outputs_pass *pass = argument;
    mhai_attn_workspace w = mhai_attn_workspace_of(pass->walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(pass->walk, item);
    run_chunk(pass, &c, &w, c.head0, c.seq.q0);
}

static int64_t chosen(const int64_t *list, int64_t i)
{
    return list ? list[i] : i;
}

/* The sequence that contains a row of the batch. */
static int64_t sequence_of_row(const mhai_attn_problem *p, int64_t batch, int64_t row)
{
    if (!p->query_starts) return batch;
    int64_t low = 0, high = p->B; /* query_starts[low] <= row < query_starts[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (p->query_starts[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Compute chosen rows. An item is a piece of the row list, for one chosen head of one batch entry.
 * Runs of rows of one sequence form a chunk. */
static void run_chosen(void *argument, int64_t item, int worker)
{
    const outputs_pass *pass = argument;
    const mhai_attn_problem *p = pass->walk->p;
    const mhai_attn_wanted *want = &p->want;
    const int64_t most = pass->walk->tiling.chosen_rows;
    const int64_t pieces = mhai_ceil_div(want->rows_count, most);
    const int64_t entry = item / pieces % want->heads_count, h = chosen(want->heads, entry);
    const int64_t batch = item / pieces / want->heads_count, first = item % pieces * most;
    const int64_t end = mhai_min_i64(first + most, want->rows_count);
    mhai_attn_workspace w = mhai_attn_workspace_of(pass->walk, worker);
    for (int64_t i = first, next; i < end; i = next) {
        const int64_t b = sequence_of_row(p, batch, chosen(want->rows, i));
        next = i + 1;
        while (next < end && sequence_of_row(p, batch, chosen(want->rows, next)) == b) next++;
        mhai_attn_chunk c = {.seq = mhai_attn_sequence_of(p, b), .hk = h / p->group, .head0 = h};
        c.rows = c.width = next - i;
        c.query0 = i - c.seq.q0;
        c.list = want->rows ? want->rows + i : NULL;
        run_chunk(pass, &c, &w, entry, i);
    }
}

void mhai_attn_run_outputs(mha_context *context, const mhai_attn_walk *walk,
                           const mhai_attn_kept *kept)
{
    const mhai_attn_problem *p = walk->p;
    const mhai_attn_wanted *want = &p->want;
    const bool some = want->heads || want->rows;
    outputs_pass all = {.walk = walk, .kept = kept};
    outputs_pass matrices = {.walk = walk, .kept = kept, .bare = bare_problem(p)};
    if (mhai_attn_wants(&p->probabilities)) matrices.probabilities = &p->probabilities;
    if (mhai_attn_wants(&want->scores)) matrices.scores = &want->scores;
    if (!some) all = matrices;
    all.statistics = mhai_attn_wants_statistics(want);
    if (all.statistics || all.probabilities || all.scores)
        mha_parallel_for(context, walk->tiling.items, run_item, &all);
    if (some && (matrices.probabilities || matrices.scores))
        mha_parallel_for(context,
                         p->q.shape[0] * want->heads_count *
                             mhai_ceil_div(want->rows_count, walk->tiling.chosen_rows),
                         run_chosen, &matrices);
}
