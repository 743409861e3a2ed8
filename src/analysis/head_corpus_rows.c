/* mha_head_corpus: adding rows and layers. */
#include "analysis/head_corpus.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"

#include <math.h>
#include <string.h>

/* ---- a row ----------------------------------------------------------------------------------- */

/* The bin of a value. Shares (0 .. 1), correlations (-1 .. 1) and nats (0 .. 16) have bins of equal
 * width. Distances have 16 bins per factor of two, starting at 1 / 16. */
static int bin_of(mha_head_measure which, double value)
{
    const int last = MHA_HEAD_CORPUS_BINS - 1;
    double at;
    switch (mha_measure_describe(which).kind) {
    case MHA_KIND_NATS: at = value * 16; break;
    case MHA_KIND_CORRELATION: at = (value + 1) * 128; break;
    case MHA_KIND_TOKENS: {
        int exponent;
        const double part = frexp(value * 16, &exponent); /* 0.5 .. 1 */
        at = value * 16 < 1 ? 0 : 1 + 16 * (exponent - 1) + floor((2 * part - 1) * 16);
        break;
    }
    default: at = value * MHA_HEAD_CORPUS_BINS; break;
    }
    return at >= last ? last : at > 0 ? (int)at : 0;
}

static void add_to_histogram(mhai_corpus_score *s, mha_head_measure which, double value)
{
    s->bin[bin_of(which, value)]++;
    if (s->binned == 0 || value < s->smallest) s->smallest = value;
    if (s->binned == 0 || value > s->largest) s->largest = value;
    s->binned++;
}

/* Among equal values, keep the first row. */
static void compete(mhai_corpus_score *s, double value, int64_t row, int64_t key)
{
    const mhai_corpus_best best = {value, row, key, true};
    if (!s->now_best[0].there || value > s->now_best[0].value) s->now_best[0] = best;
    if (!s->now_best[1].there || value < s->now_best[1].value) s->now_best[1] = best;
}

static int position_of(int64_t i)
{
    int bin = 0;
    for (; i > 0 && bin < MHA_HEAD_CORPUS_POSITIONS - 1; i /= 2) bin++;
    return bin;
}

void mhai_corpus_row(mhai_corpus_seen *seen, mha_head_measure which, double value,
                     const mhai_head_fact *fact, int64_t key)
{
    mhai_corpus_score *s = &seen->head->score[which];
    add_to_histogram(s, which, value);
    if (fact->keys >= MHA_HEAD_CORPUS_PLACE_KEYS) compete(s, value, fact->t, key);
    mhai_corpus_position *at = &seen->head->position[position_of(fact->i >= 0 ? fact->i : fact->t)];
    if (which == MHA_MEASURE_ENTROPY) {
        at->entropy += llrint(value * MHAI_CORPUS_NATS);
        at->rows++;
    }
    if (which == MHA_MEASURE_DISTANCE) at->distance += llrint(value * MHAI_CORPUS_TOKENS);
}

/* Count the first token separately: the attention to it, and the part of the
 * output that it contributes. */
void mhai_corpus_moved(mhai_corpus_seen *seen, const mhai_head_fact *fact, const double *a)
{
    mhai_corpus_head *head = seen->head;
    const int64_t token = seen->ids && fact->i >= 0 ? seen->ids[fact->i] : -1;
    if (fact->begin > 0 || !fact->visible[0] || fact->t == 0) return;
    head->rest += llrint(a[0] * MHAI_CORPUS_SHARE);
    head->rest_rows++;
    if (seen->row_count && token >= 0) seen->row_count[token]++;
    if (!seen->norms) return;
    double moved = 0;
    for (int64_t j = 1; j < fact->end; j++) moved += a[j] * (double)seen->norms[j];
    const double first = a[0] * (double)seen->norms[0];
    if (!(first + moved < 0x1p20)) return; /* NaN, or too large for an int64 sum */
    if (first + moved > 0) {
        head->moved += llrint(first / (first + moved) * MHAI_CORPUS_SHARE);
        head->moved_rows++;
    }
    head->written += llrint(moved * MHAI_CORPUS_NATS);
    head->written_rows++;
    if (seen->written && token >= 0) seen->written[token] += llrint(moved * MHAI_CORPUS_NATS);
}

/* ---- a layer --------------------------------------------------------------------------------- */

void mhai_corpus_layer(mha_head_corpus *c, const mhai_head_text *text, int64_t layer)
{
    const int64_t first = c->first_head[layer], H = c->first_head[layer + 1] - first;
    const bool tokens = c->vocab > 0 && text->given.ids;
    for (int64_t h = 0; h < H; h++)
        c->seen[h] = (mhai_corpus_seen){
            .head = &c->head[first + h],
            .norms = c->norm_layer == layer ? c->norms + h * c->norm_keys : NULL,
            .written = tokens ? c->written + (first + h) * c->vocab : NULL,
            .row_count = tokens && h == 0 ? c->row_count + layer * c->vocab : NULL,
            .ids = tokens ? text->given.ids : NULL};
}

static bool is_of_maps(mha_head_measure which)
{
    switch (which) {
    case MHA_MEASURE_VERTICAL:
    case MHA_MEASURE_HORIZONTAL:
    case MHA_MEASURE_CUT:
    case MHA_MEASURE_FAMILY_DIAGONAL:
    case MHA_MEASURE_FAMILY_VERTICAL:
    case MHA_MEASURE_FAMILY_BLOCK:
    case MHA_MEASURE_RAREST:
    case MHA_MEASURE_RAREST_TWO: return true;
    default: return false;
    }
}

static void add_tokens(mha_head_corpus *c, const mhai_head_text *text, int64_t layer, int64_t h,
                       const mhai_head_map *map)
{
    const bool first = h == c->first_head[layer];
    for (int64_t j = 1; j < text->given.keys; j++) {
        if (map->column_rows[j] == 0) continue;
        const int64_t token = text->given.ids[j], place = layer * c->vocab + token;
        c->read[h * c->vocab + token] += llrint(map->column[j] * MHAI_CORPUS_MASS);
        if (!first) continue;
        c->expected[place] += llrint(map->column_even[j] * MHAI_CORPUS_MASS);
        c->key_count[place]++;
    }
}

void mhai_corpus_map(mha_head_corpus *c, const mhai_head_text *text, int64_t layer, int64_t h,
                     const mhai_head_map *map)
{
    for (int n = 0; n < MHA_MEASURES; n++) {
        const mhai_head_sum *sum = &map->own.sum[n];
        mhai_corpus_score *s = &c->head[h].score[n];
        if (sum->rows == 0) continue;
        s->now_value = sum->value;
        s->now_rows = sum->rows;
        s->now_fixed = llrint(sum->value * mhai_corpus_unit((mha_head_measure)n));
        if (!is_of_maps((mha_head_measure)n)) continue;
        const double value = sum->value / (double)sum->rows;
        add_to_histogram(s, (mha_head_measure)n, value);
        compete(s, value, -1, -1);
    }
    if (c->vocab > 0 && text->given.ids && map->rows > 0) add_tokens(c, text, layer, h, map);
}

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct norm_job {
    const mha_tensor *v, *weight;
    float *gram, *norms, *work; /* work: [threads][D] */
    int64_t keys, group;
} norm_job;

/* W_O[h]^T W_O[h]. Each element has one owner, and its sum over E is in order. */
static void make_gram(void *argument, int64_t h, int worker)
{
    const norm_job *job = argument;
    const mha_tensor *w = job->weight;
    const int64_t D = job->v->shape[2];
    float *gram = job->gram + h * D * D;
    const float *data = w->data;
    (void)worker;
    for (int64_t e = 0; e < w->shape[0]; e++)
        for (int64_t a = 0; a < D; a++) {
            const float x = data[e * w->stride[0] + (h * D + a) * w->stride[1]];
            for (int64_t b = 0; b < D; b++)
                gram[a * D + b] += x * data[e * w->stride[0] + (h * D + b) * w->stride[1]];
        }
}

static void make_norms(void *argument, int64_t h, int worker)
{
    const norm_job *job = argument;
    const mha_tensor *v = job->v;
    const int64_t D = v->shape[2];
    const float *gram = job->gram + h * D * D;
    float *row = job->work + worker * D;
    for (int64_t j = 0; j < job->keys; j++) {
        const float *x = (const float *)v->data + h / job->group * v->stride[0] + j * v->stride[1];
        double square = 0;
        memset(row, 0, (size_t)D * sizeof *row);
        for (int64_t a = 0; a < D; a++)
            for (int64_t b = 0; b < D; b++) row[b] += x[a * v->stride[2]] * gram[a * D + b];
        for (int64_t b = 0; b < D; b++) square += (double)row[b] * (double)x[b * v->stride[2]];
        job->norms[h * job->keys + j] = square > 0 ? (float)sqrt(square) : 0;
    }
}

static mha_status take_norms(mha_head_corpus *c, int64_t keys)
{
    int64_t bytes = c->most_heads * (int64_t)sizeof *c->norms;
    if (keys > INT64_MAX / (bytes + 1))
        return mha_fail(MHA_ERR_SIZE, "mha_head_corpus: too many keys");
    bytes *= keys;
    c->norm_keys = keys;
    if (bytes <= c->norm_bytes) return MHA_OK;
    void *grown = mhai_take(&c->allocator, bytes, 1);
    if (!grown) return MHA_NO_MEMORY("mha_head_corpus");
    mhai_give(&c->allocator, c->norms, c->norm_bytes, 1);
    c->norms = grown;
    c->norm_bytes = bytes;
    return MHA_OK;
}

static mha_status take_gram(mha_head_corpus *c, int64_t layer, const norm_job *job, int64_t floats)
{
    norm_job made = *job;
    if (c->gram[layer] && c->gram_size[layer] == floats) return MHA_OK;
    if (c->gram[layer])
        return mha_fail(MHA_ERR_SHAPE, "v: layer %lld had values of another width before",
                        (long long)layer);
    made.gram = mhai_take(&c->allocator, floats, sizeof *made.gram);
    if (!made.gram) return MHA_NO_MEMORY("mha_head_corpus");
    mha_parallel_for(c->context, c->first_head[layer + 1] - c->first_head[layer], make_gram, &made);
    c->gram[layer] = made.gram;
    c->gram_size[layer] = floats;
    return MHA_OK;
}

mha_status mha_head_corpus_values(mha_head_corpus *c, int64_t layer, const mha_tensor *v,
                                  const mha_tensor *weight)
{
    void *work;
    MHA_NEED_AS("mha_head_corpus_values", "corpus, v", c, v);
    if (!c->open || layer < 0 || layer >= c->layers)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_corpus_values: layer %lld, %s",
                        (long long)layer,
                        c->open ? "which the corpus does not have" : "but no text is open");
    const int64_t H = c->first_head[layer + 1] - c->first_head[layer],
                  S = c->measures->text.given.keys;
    MHA_TRY(mhai_tensor_check("v", v, MHA_F32, 3, (int64_t[]){-1, S, -1}));
    const int64_t groups = v->shape[0], D = v->shape[2];
    if (H == 0) return MHA_OK;
    if (groups == 0 || H % groups != 0)
        return mha_fail(MHA_ERR_SHAPE, "v: dim 0 is %lld, expected a divisor of %lld heads",
                        (long long)groups, (long long)H);
    if (!weight && !c->gram[layer])
        return mha_fail(MHA_ERR_NULL,
                        "mha_head_corpus_values: weight is NULL, and layer %lld had none",
                        (long long)layer);
    if (weight) MHA_TRY(mhai_tensor_check("weight", weight, MHA_F32, 2, (int64_t[]){-1, H * D}));
    MHA_TRY(take_norms(c, S));
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    MHA_TRY(mha_scratch_alloc(c->context, (int64_t)mha_context_threads(c->context) * D,
                              sizeof(float), &work));
    norm_job job = {
        .v = v, .weight = weight, .norms = c->norms, .work = work, .keys = S, .group = H / groups};
    mha_status status = take_gram(c, layer, &job, H * D * D);
    if (status == MHA_OK) {
        job.gram = c->gram[layer];
        mha_parallel_for(c->context, H, make_norms, &job);
        c->norm_layer = layer;
    }
    return mha_scratch_end(c->context, mark, status);
}
