/* Content-position terms of the scores: disentangled attention (He et al. 2021, DeBERTa, section 3), and
 * the relative keys of Shaw et al. 2018 and Huang et al. 2020. They become a bias [B,H,T,T] of the layer's
 * attention, so that every score, map and statistic includes them. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/need.h"
#include "nn/matmul.h"

#include <math.h>

/* ---- description ----------------------------------------------------------------------------- */

enum {
    TERMS = MHA_LAYER_CONTENT_TO_POSITION | MHA_LAYER_POSITION_TO_CONTENT,
    KINDS = MHA_LAYER_RELATIVE_SHARED | MHA_LAYER_RELATIVE_TABLE
};

static mha_status check_buckets(const mha_layer_desc *l)
{
    const int64_t n = l->relative_buckets, most = l->relative_max_distance;
    MHA_TRY(mhai_check_range("mha_layer_desc: relative_rows", l->relative_rows, 1, INT32_MAX));
    if (n == 0 && most == 0) return MHA_OK;
    if (n >= 2 && n <= INT32_MAX && most - 1 > n / 2 && most <= INT32_MAX) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_layer_desc: relative_buckets is %lld, relative_max_distance %lld; "
                    "expected 2 or more, and more than half of them + 1; or 0 for both",
                    (long long)n, (long long)most);
}

mha_status mhai_relative_check(const mha_transformer_desc *d, int64_t layer,
                               const mha_layer_desc *l)
{
    const mhai_heads heads = mhai_transformer_heads_of(d, layer, false);
    const bool rotates = d->positions == MHA_ENCODING_ROTARY && !(l->flags & MHA_LAYER_NO_ROPE);
    if (l->relative_rows == 0) {
        if (!(l->flags & (TERMS | KINDS)) && !l->relative_buckets && !l->relative_max_distance)
            return MHA_OK;
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: relative_buckets, relative_max_distance, "
                        "MHA_LAYER_CONTENT_TO_POSITION, MHA_LAYER_POSITION_TO_CONTENT, "
                        "MHA_LAYER_RELATIVE_SHARED and MHA_LAYER_RELATIVE_TABLE: only with "
                        "relative_rows");
    }
    if (!(l->flags & TERMS) || (l->flags & KINDS) == KINDS)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_layer_desc: relative_rows: set MHA_LAYER_CONTENT_TO_POSITION or "
                        "MHA_LAYER_POSITION_TO_CONTENT, and at most one of "
                        "MHA_LAYER_RELATIVE_SHARED and MHA_LAYER_RELATIVE_TABLE");
    if (d->flags & (MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS) || l->latent_dim > 0 ||
        l->flags & (MHA_LAYER_QK_NORM | MHA_LAYER_OUTPUT_GATE) || rotates || l->softcap > 0 ||
        l->softcap < 0 || heads.kv != heads.q)
        return mha_fail(
            MHA_ERR_UNSUPPORTED,
            "mha_layer_desc: relative_rows: only without MHA_TRANSFORMER_CAUSAL, "
            "cross-attention, softcap, norms of queries and keys, output gates, latents "
            "and rotations, and with a key/value head for each head");
    return check_buckets(l);
}

static bool reads_embeddings(const mha_layer_desc *l)
{
    return l->relative_rows > 0 && !(l->flags & MHA_LAYER_RELATIVE_TABLE);
}

mha_status mhai_relative_rows(const mha_transformer_desc *d, int64_t *rows)
{
    *rows = 0;
    for (int64_t i = 0; d->layers && i < d->num_layers; i++) {
        const int64_t own = d->layers[i].relative_rows;
        if (!reads_embeddings(&d->layers[i])) continue;
        if (*rows > 0 && own != *rows)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_layer_desc: relative_rows of layer %lld is %lld, of earlier "
                            "layers %lld; layers share one table, set the same number",
                            (long long)i, (long long)own, (long long)*rows);
        *rows = own;
    }
    if (!(d->flags & MHA_TRANSFORMER_RELATIVE_NORM)) return MHA_OK;
    if (*rows > 0 && d->norm != MHA_NORM_NONE) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_transformer_desc: MHA_TRANSFORMER_RELATIVE_NORM: only with a norm, and a "
                    "layer with relative_rows but not MHA_LAYER_RELATIVE_TABLE");
}

/* ---- distances ------------------------------------------------------------------------------- */

/* As in DeBERTa's published code, in f32: ceil() makes the last bit matter. */
static int64_t bucket_of(const mha_layer_desc *l, int64_t distance)
{
    const int64_t half = l->relative_buckets / 2, size = distance < 0 ? -distance : distance;
    if (l->relative_buckets == 0 || size <= half) return distance;
    const float all = (float)((double)(l->relative_max_distance - 1) / (double)half);
    const float part = (float)mha_log((double)((float)size / (float)half));
    const float at = part / (float)mha_log((double)all) * (float)(half - 1);
    const int64_t bucket = (int64_t)ceilf(at) + half;
    return distance < 0 ? -bucket : bucket;
}

static int64_t row_of(const mha_layer_desc *l, int64_t distance)
{
    const int64_t row = bucket_of(l, distance) + l->relative_rows / 2;
    return mhai_max_i64(0, mhai_min_i64(row, l->relative_rows - 1));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The terms of a layer. row_of() is monotonic, so that its values for the distances of T tokens are within
 * first .. first + count - 1. */
typedef struct relative {
    const mhai_call *c;
    const mha_layer_desc *l;
    const mhai_place_attention *place;
    mhai_mix mix;
    float scale;
    int64_t first, count;
    int32_t *rows;     /* [2 T - 1] row_of() of the distances -(T - 1) .. T - 1, less first */
    float *embeddings; /* [count,E] */
    const float
        *from; /* [count,E] the input of the projection; NULL: a and b are the layer's table */
    float *projected; /* [count,width] a and b of all heads */
    const float *a, *b;
    int64_t stride, step; /* from row to row, and from head to head, of a and b */
    int64_t width;        /* of projected; 0: a and b are the layer's table */
    float *products;      /* [T,count] */
    float *to;            /* [T,T] scores of the head in progress */
    bool keys;            /* products are those of keys and b, and are added */
} relative;

static relative relative_of(const mhai_call *c, int64_t layer)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const int64_t last = c->a->T - 1;
    relative r = {.c = c,
                  .l = l,
                  .place = &c->t->layers[layer].self,
                  .mix = mhai_transformer_mix(&c->t->desc, layer),
                  .scale = l->scale,
                  .first = row_of(l, -last)};
    if (!(fabsf(l->scale) > 0) && !(l->flags & MHA_LAYER_SCALE_GIVEN))
        r.scale = (float)(1 / sqrt((double)r.mix.D));
    r.count = row_of(l, last) - r.first + 1;
    r.width = l->flags & MHA_LAYER_RELATIVE_TABLE    ? 0
              : l->flags & MHA_LAYER_RELATIVE_SHARED ? r.mix.width
                                                     : r.place->positions.outputs;
    return r;
}

static mha_status take(const mhai_call *c, int64_t rows, int64_t cols, void *pointer)
{
    return mha_scratch_alloc(c->context, rows * cols, sizeof(float), pointer);
}

static mha_status take_memory(relative *r)
{
    const mhai_call *c = r->c;
    MHA_TRY(take(c, 2 * c->a->T - 1, 1, &r->rows));
    MHA_TRY(take(c, r->width > 0 ? r->count : 0, c->t->desc.embed_dim, &r->embeddings));
    MHA_TRY(take(c, r->count, r->width, &r->projected));
    return take(c, c->a->T, r->count, &r->products);
}

size_t mhai_relative_bytes(const mhai_call *c, int64_t layer)
{
    enum { PIECES = 8, ALIGNMENT = 64 };
    const relative r = relative_of(c, layer);
    const int64_t E = r.width > 0 ? c->t->desc.embed_dim : 0;
    const int64_t inner = mhai_max_i64(c->t->desc.embed_dim, r.mix.D);
    const int64_t floats = 2 * c->a->T + r.count * (E + r.width + c->a->T);
    return (size_t)floats * sizeof(float) + PIECES * ALIGNMENT +
           mhai_matmul_rows_bytes(c->context, MHA_COMPUTE_F32, c->a->T, inner) +
           mhai_transformer_product_bytes(c->context, c->t, r.count);
}

static void fill_rows(const relative *r)
{
    const int64_t last = r->c->a->T - 1;
    for (int64_t i = -last; i <= last; i++)
        r->rows[i + last] = (int32_t)(row_of(r->l, i) - r->first);
}

/* Compute a and b. */
static mha_status project(relative *r)
{
    const mhai_call *c = r->c;
    const mha_transformer *t = c->t;
    const int64_t D = r->mix.D, E = t->desc.embed_dim;
    if (r->width == 0) {
        r->a = r->b = mhai_transformer_numbers(t, r->place->distances) + r->first * D;
        r->stride = D;
        return MHA_OK;
    }
    r->from = mhai_transformer_numbers(t, t->relative) + r->first * E;
    if (t->relative_norm.weight >= 0) {
        MHA_TRY(mhai_call_norm(c, &t->relative_norm, r->from, NULL, r->count, r->embeddings));
        r->from = r->embeddings;
    }
    const bool shared = r->l->flags & MHA_LAYER_RELATIVE_SHARED;
    const bool both = (r->l->flags & TERMS) == TERMS;
    r->step = D;
    r->stride = r->width;
    r->a = r->projected + (shared ? r->mix.at_k : 0);
    r->b = r->projected + (shared ? r->mix.at_q : both ? r->mix.k * D : 0);
    return mhai_call_project(c, shared ? &r->place->in : &r->place->positions, MHA_ACTIVATION_NONE,
                             r->from, r->count, r->projected);
}

/* Rows of a or b in memory. */
static const void *find_rows(const void *user, int64_t at, int64_t row, int64_t rows,
                             mha_dtype *type, int64_t *stride)
{
    const relative *r = user;
    (void)rows;
    *type = MHA_F32;
    *stride = r->stride;
    return (r->keys ? r->b : r->a) + at + row * r->stride;
}

static void gather_row(void *argument, int64_t i, int worker)
{
    const relative *r = argument;
    const int64_t T = r->c->a->T;
    const float scale = r->scale;
    float *to = r->to + i * T;
    (void)worker;
    for (int64_t j = 0; j < T; j++) {
        const int64_t row = r->rows[i - j + T - 1];
        if (r->keys)
            to[j] += scale * r->products[j * r->count + row];
        else
            to[j] = scale * r->products[i * r->count + row];
    }
}

/* Compute one term of a head: x is its queries or keys [T,D]. */
static mha_status add_term(relative *r, bool keys, int64_t head, const float *x)
{
    const mhai_rows from = {.stored = find_rows, .user = r, .at = head * r->step};
    const mhai_matmul job = {.rows = r->c->a->T,
                             .inner = r->mix.D,
                             .cols = r->count,
                             .a = x,
                             .a_stride = r->mix.width,
                             .c = r->products,
                             .c_stride = r->count};
    r->keys = keys;
    MHA_TRY(mhai_matmul_run_rows(r->c->context, &job, &from));
    mha_parallel_for(r->c->context, r->c->a->T, gather_row, r);
    return MHA_OK;
}

static mha_status run(relative *r, const mhai_kept_attention *kept)
{
    const int64_t B = r->c->a->B, T = r->c->a->T, D = r->mix.D;
    const uint32_t flags = r->l->flags;
    MHA_TRY(take_memory(r));
    fill_rows(r);
    MHA_TRY(project(r));
    for (int64_t i = 0; i < B * r->mix.q; i++) {
        const int64_t head = i % r->mix.q;
        const float *row = kept->qkv + i / r->mix.q * T * r->mix.width + head * D;
        r->to = kept->relative + i * T * T;
        if (!(flags & MHA_LAYER_CONTENT_TO_POSITION))
            memset(r->to, 0, (size_t)(T * T) * sizeof *r->to);
        else
            MHA_TRY(add_term(r, false, head, row + r->mix.at_q));
        if (flags & MHA_LAYER_POSITION_TO_CONTENT)
            MHA_TRY(add_term(r, true, head, row + r->mix.at_k));
    }
    return MHA_OK;
}

mha_status mhai_relative_run(const mhai_call *c, int64_t layer)
{
    relative r = relative_of(c, layer);
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    return mha_scratch_end(c->context, mark, run(&r, &c->a->layers[layer].self));
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradient of a row of products: of a query for its keys, or of a key for its queries. */
static void scatter_row(void *argument, int64_t i, int worker)
{
    const relative *r = argument;
    const int64_t T = r->c->a->T;
    float *to = r->products + i * r->count;
    (void)worker;
    memset(to, 0, (size_t)r->count * sizeof *to);
    for (int64_t j = 0; j < T; j++)
        if (r->keys)
            to[r->rows[j - i + T - 1]] += r->scale * r->to[j * T + i];
        else
            to[r->rows[i - j + T - 1]] += r->scale * r->to[i * T + j];
}

/* Backpropagate one term of a head from r->to: to its queries or keys, and to a or b (dp NULL: not
 * requested). */
static mha_status add_gradients(relative *r, bool keys, int64_t head, const float *x, float *dx,
                                float *dp)
{
    const int64_t T = r->c->a->T, D = r->mix.D;
    const float *p = (keys ? r->b : r->a) + head * r->step;
    mhai_matmul job = {.rows = T,
                       .inner = r->count,
                       .cols = D,
                       .a = r->products,
                       .a_stride = r->count,
                       .accumulate = true,
                       .c = dx,
                       .c_stride = r->mix.width};
    r->keys = keys;
    mha_parallel_for(r->c->context, T, scatter_row, r);
    MHA_TRY(mhai_matmul_packing(r->c->context, &job, p, r->stride));
    if (!dp) return MHA_OK;
    job.rows = r->count;
    job.inner = T;
    job.a_transposed = true;
    job.c = dp + head * r->step;
    job.c_stride = r->stride;
    return mhai_matmul_packing(r->c->context, &job, x, r->mix.width);
}

mha_status mhai_relative_backward(const mhai_call *c, int64_t layer, float *dbias, float *drows,
                                  float *parameters, mhai_relative_gradient *to)
{
    relative r = relative_of(c, layer);
    const int64_t B = c->a->B, T = c->a->T, D = r.mix.D;
    float *da = NULL, *db = NULL;
    MHA_TRY(take_memory(&r));
    fill_rows(&r);
    MHA_TRY(project(&r));
    *to = (mhai_relative_gradient){.first = r.first, .count = r.count, .embeddings = r.from};
    if (parameters && r.width == 0) da = db = parameters + r.place->distances + r.first * D;
    if (parameters && r.width > 0) {
        MHA_TRY(mha_scratch_zeros(c->context, r.count * r.width, sizeof(float), &to->projected));
        da = to->projected + (r.a - r.projected);
        db = to->projected + (r.b - r.projected);
    }
    for (int64_t i = 0; i < B * r.mix.q; i++) {
        const int64_t head = i % r.mix.q, at = i / r.mix.q * T * r.mix.width + head * D;
        const float *row = c->a->layers[layer].self.qkv + at;
        r.to = dbias + i * T * T;
        if (r.l->flags & MHA_LAYER_CONTENT_TO_POSITION)
            MHA_TRY(add_gradients(&r, false, head, row + r.mix.at_q, drows + at + r.mix.at_q, da));
        if (r.l->flags & MHA_LAYER_POSITION_TO_CONTENT)
            MHA_TRY(add_gradients(&r, true, head, row + r.mix.at_k, drows + at + r.mix.at_k, db));
    }
    return MHA_OK;
}

void mhai_relative_view(const mha_activations *a)
{
    for (int64_t i = 0; i < a->transformer->desc.num_layers; i++) {
        mhai_kept_attention *kept = &a->layers[i].self;
        const int64_t H = mhai_transformer_heads_of(&a->transformer->desc, i, false).q;
        if (kept->relative)
            kept->bias = mha_tensor_contiguous(kept->relative, MHA_F32, 4,
                                               (const int64_t[]){a->B, H, a->T, a->T});
    }
}
