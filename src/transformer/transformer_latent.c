/* Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): its latents expanded to the queries,
 * keys and values of ordinary heads. */
#include "transformer/transformer_call.h"

#include "cache/kv_cache.h"

#include <string.h>

/* y = rms_norm(x) of `width` leading elements of rows. */
static mha_status norm(const mhai_call *c, int64_t layer, int64_t weight, const float *x,
                       int64_t width, int64_t stride, float *y)
{
    const int64_t rows = mhai_tokens(c->a);
    const mha_tensor in = mhai_transformer_rows(x, rows, width, stride);
    const mha_tensor out = mhai_transformer_rows(y, rows, width, width);
    const mha_tensor by = mhai_transformer_vector(mhai_transformer_numbers(c->t, weight), width);
    return mha_rms_norm(c->context, &in, NULL, &by, c->t->desc.layers[layer].head_norm_epsilon,
                        &out);
}

static mha_status project_queries(const mhai_call *c, const mhai_place_attention *place,
                                  const mhai_kept_attention *kept, int64_t layer)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t rows = mhai_tokens(c->a), wide = place->in.outputs;
    float *q = kept->qkv + mix.at_q;
    if (!place->queries.packed)
        return mhai_call_project_to(c, &place->in, MHA_ACTIVATION_NONE, kept->step.in, rows,
                                    mix.width, q);
    MHA_TRY(mhai_call_project(c, &place->in, MHA_ACTIVATION_NONE, kept->step.in, rows,
                              kept->query_down));
    MHA_TRY(norm(c, layer, place->query_norm, kept->query_down, wide, wide, kept->query_latent));
    return mhai_call_project_to(c, &place->queries, MHA_ACTIVATION_NONE, kept->query_latent, rows,
                                mix.width, q);
}

/* Keys of rows: the elements that all heads share, followed by those that W_kb expands. */
typedef struct key_job {
    const float *shared,
        *own;  /* [rows,s] and [rows,H (D - s)]; rows of shared are `stride` apart */
    float *to; /* [rows,H D], rows `width` apart */
    int64_t H, D, s, stride, width;
} key_job;

static void join_keys(void *argument, int64_t row, int worker)
{
    const key_job *job = argument;
    const int64_t D = job->D, s = job->s, own = D - s;
    const float *shared = job->shared + row * job->stride, *from = job->own + row * job->H * own;
    float *to = job->to + row * job->width;
    (void)worker;
    for (int64_t h = 0; h < job->H; h++) {
        memcpy(to + h * D, shared, (size_t)s * sizeof *to);
        memcpy(to + h * D + s, from + h * own, (size_t)own * sizeof *to);
    }
}

mha_status mhai_latent_project(const mhai_call *c, int64_t layer)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const mhai_place_attention *place = &c->t->layers[layer].self;
    const mhai_kept_attention *kept = &c->a->layers[layer].self;
    const int64_t rows = mhai_tokens(c->a), r = l->latent_dim;
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    key_job job = {.shared = kept->down + r,
                   .own = kept->heads,
                   .to = kept->qkv + mix.at_k,
                   .H = mix.k,
                   .D = mix.D,
                   .s = l->shared_dim,
                   .stride = r + l->shared_dim,
                   .width = mix.width};
    MHA_TRY(project_queries(c, place, kept, layer));
    MHA_TRY(
        mhai_call_project(c, &place->down, MHA_ACTIVATION_NONE, kept->step.in, rows, kept->down));
    MHA_TRY(norm(c, layer, place->latent_norm, kept->down, r, r + job.s, kept->latent));
    MHA_TRY(
        mhai_call_project(c, &place->keys, MHA_ACTIVATION_NONE, kept->latent, rows, kept->heads));
    MHA_TRY(mhai_call_project_to(c, &place->values, MHA_ACTIVATION_NONE, kept->latent, rows,
                                 mix.width, kept->qkv + mix.at_v));
    mha_parallel_for(c->context, rows, join_keys, &job);
    return MHA_OK;
}

/* ---- a decoder's step ------------------------------------------------------------------------ */

/* A row of the cache: rms_norm(c), and p as it was rotated with the keys. */
static mha_status append_rows(const mhai_call *c, int64_t layer, const mhai_attend *x)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const mhai_kept_attention *kept = &c->a->layers[layer].self;
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t r = l->latent_dim, s = l->shared_dim, rows = mhai_tokens(c->a);
    float *memory, *unused;
    MHA_TRY(mha_scratch_alloc(c->context, rows * (r + s), sizeof(float), &memory));
    MHA_TRY(mha_scratch_zeros(c->context, rows, sizeof(float), &unused));
    for (int64_t i = 0; i < rows; i++) {
        memcpy(memory + i * (r + s), kept->latent + i * r, (size_t)r * sizeof *memory);
        memcpy(memory + i * (r + s) + r, kept->qkv + i * mix.width + mix.at_k,
               (size_t)s * sizeof *memory);
    }
    const mha_tensor k = mha_tensor_bthd(unused, c->a->B, c->a->T, 1, 1);
    const mha_tensor v = mha_tensor_bthd(memory, c->a->B, c->a->T, 1, r + s);
    return mha_kv_cache_append_rows(x->cache, &k, &v, x->firsts, x->counts);
}

typedef struct load_job {
    const mha_kv_cache *cache;
    int64_t b, width;
    float *to;
} load_job;

static void load_row(void *argument, int64_t row, int worker)
{
    const load_job *job = argument;
    (void)worker;
    mhai_kv_load_value(job->cache, job->b, 0, row, job->to + row * job->width);
}

/* The keys and values of a sequence [S,H D] and [S,H Dv], in scratch. */
static mha_status expand_sequence(const mhai_call *c, int64_t layer, const mhai_attend *x,
                                  int64_t b, mha_tensor *k, mha_tensor *v)
{
    const mha_layer_desc *l = &c->t->desc.layers[layer];
    const mhai_place_attention *place = &c->t->layers[layer].self;
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t S = mha_kv_cache_lengths(x->cache)[b], r = l->latent_dim, s = l->shared_dim;
    const int64_t keys = mix.k * mix.D, own = place->keys.outputs, wide = r + s;
    float *rows, *expanded;
    MHA_TRY(mha_scratch_alloc(c->context, S * (wide + own), sizeof(float), &rows));
    MHA_TRY(mha_scratch_alloc(c->context, S * (keys + mix.out), sizeof(float), &expanded));
    load_job load = {x->cache, b, wide, rows};
    key_job job = {.shared = rows + r,
                   .own = rows + S * wide,
                   .to = expanded,
                   .H = mix.k,
                   .D = mix.D,
                   .s = s,
                   .stride = wide,
                   .width = keys};
    mha_parallel_for(c->context, S, load_row, &load);
    const mha_tensor in = mhai_transformer_rows(rows, S, r, wide);
    const mha_tensor between = mhai_transformer_rows(rows + S * wide, S, own, own);
    const mha_tensor values = mhai_transformer_rows(expanded + S * keys, S, mix.out, mix.out);
    MHA_TRY(mha_linear_forward(c->context, place->keys.packed, MHA_ACTIVATION_NONE, &in, &between));
    MHA_TRY(
        mha_linear_forward(c->context, place->values.packed, MHA_ACTIVATION_NONE, &in, &values));
    mha_parallel_for(c->context, S, join_keys, &job);
    *k = mha_tensor_bthd(expanded, 1, S, mix.k, mix.D);
    *v = mha_tensor_bthd(values.data, 1, S, mix.v, mix.Dv);
    return MHA_OK;
}

/* The rows of sequence b in a tensor [B,H,T,..]. */
static mha_tensor rows_of(const mha_tensor *x, const mhai_attend *a, int64_t b)
{
    mha_tensor part = *x;
    part.data = (float *)x->data + b * x->stride[0] + a->firsts[b] * x->stride[2];
    part.shape[0] = 1;
    part.shape[2] = a->counts[b];
    return part;
}

mha_status mhai_latent_attend(const mhai_call *c, int64_t layer, const mhai_attend *x)
{
    const mha_scratch_mark all = mha_scratch_top(c->context);
    MHA_TRY(append_rows(c, layer, x));
    for (int64_t b = 0; b < c->a->B; b++) {
        if (x->counts[b] == 0) continue;
        const mha_scratch_mark mark = mha_scratch_top(c->context);
        const int64_t offset = mha_kv_cache_lengths(x->cache)[b] - x->counts[b];
        const mha_tensor q = rows_of(&x->q, x, b), heads = rows_of(&x->heads, x, b);
        mha_attention_desc desc = x->desc;
        mha_tensor k, v;
        desc.q_offsets = &offset;
        MHA_TRY(expand_sequence(c, layer, x, b, &k, &v));
        MHA_TRY(mha_attention_forward(c->context, &desc, &q, &k, &v, &heads, NULL));
        mha_scratch_release(c->context, mark);
    }
    mha_scratch_release(c->context, all);
    return MHA_OK;
}
