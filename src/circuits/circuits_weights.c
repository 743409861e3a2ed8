/* Weights by name. Elements that are not finite are rejected, because LAPACK might not terminate
 * with them. */
#include "circuits/circuits_weights.h"

#include <math.h>
#include <string.h>

mha_status mhai_circuits_take(mha_context *context, int64_t a, int64_t b, size_t size,
                              void *pointer)
{
    if (b > 0 && a > INT64_MAX / b)
        return mha_fail(MHA_ERR_SIZE, "circuits: %lld x %lld numbers do not fit in memory",
                        (long long)a, (long long)b);
    return mha_scratch_alloc(context, a * b, size, pointer);
}

static mha_status check_finite(const mha_parameter *p, const float *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(data[i]))
            return mha_fail(MHA_ERR_NUMERIC, "circuits: %s holds a number that is not finite",
                            p->name);
    return MHA_OK;
}

static bool is_parameter(const mha_transformer *t, int64_t layer, const char *name,
                         mha_parameter *p)
{
    return mha_transformer_find(t, layer, name, p) == MHA_OK;
}

mha_status mhai_circuits_weight(mha_context *context, const mha_transformer *t, int64_t layer,
                                const char *name, mhai_weight *weight)
{
    mha_parameter p;
    float *data;
    *weight = (mhai_weight){0};
    if (!is_parameter(t, layer, name, &p)) return MHA_OK;
    weight->rows = p.shape[0];
    weight->columns = p.ndim > 1 ? p.shape[1] : 1;
    MHA_TRY(mhai_circuits_take(context, weight->rows, weight->columns, sizeof(float), &data));
    MHA_TRY(mha_transformer_read(t, &p, 0, weight->rows, data));
    weight->data = data;
    return check_finite(&p, weight->data, p.count);
}

/* ---- latent attention ------------------------------------------------------------------------ */

typedef struct latent_job {
    mhai_weight up, norm, down; /* rows of up, times norm, times the leading rows of down */
    int64_t E, block, step,
        first; /* row i of up is row i / block * step + first + i % block of to */
    float *to;
} latent_job;

static void multiply_row(void *argument, int64_t i, int worker)
{
    const latent_job *job = argument;
    float *to = job->to + (i / job->block * job->step + job->first + i % job->block) * job->E;
    (void)worker;
    for (int64_t e = 0; e < job->E; e++) {
        double sum = 0;
        for (int64_t c = 0; c < job->up.columns; c++)
            sum += (double)job->up.data[i * job->up.columns + c] * (double)job->norm.data[c] *
                   (double)job->down.data[c * job->E + e];
        to[e] = (float)sum;
    }
}

static mha_status take_heads(mha_context *context, int64_t rows, int64_t columns, float **to,
                             mhai_weight *weight)
{
    MHA_TRY(mhai_circuits_take(context, rows, columns, sizeof(float), to));
    for (int64_t i = 0; i < rows * columns; i++) (*to)[i] = 0;
    *weight = (mhai_weight){*to, rows, columns};
    return MHA_OK;
}

/* Each head's keys begin with the elements that all heads share, the last rows of W_kva. */
static void share_rows(const mhai_weight *down, int64_t heads, int64_t D, int64_t s, float *to)
{
    const int64_t E = down->columns;
    for (int64_t h = 0; h < heads; h++)
        memcpy(to + h * D * E, down->data + (down->rows - s) * E, (size_t)(s * E) * sizeof *to);
}

static mha_status latent_output(mha_context *context, int64_t heads, int64_t D, int64_t Dv,
                                mhai_weight *o)
{
    const mhai_weight own = *o;
    float *to;
    MHA_TRY(take_heads(context, own.rows, heads * D, &to, o));
    for (int64_t i = 0; i < own.rows * heads; i++)
        memcpy(to + i * D, own.data + i * Dv, (size_t)Dv * sizeof *to);
    return MHA_OK;
}

mha_status mhai_circuits_latent(mha_context *context, const mha_transformer *t,
                                const mha_transformer_desc *d, int64_t layer, mhai_weight *q,
                                mhai_weight *k, mhai_weight *v, mhai_weight *o)
{
    const mha_layer_desc *l = &d->layers[layer];
    const int64_t heads = mha_transformer_heads(d, layer), D = d->head_dim, E = d->embed_dim;
    const int64_t s = l->shared_dim, Dv = l->value_dim;
    latent_job job = {.E = E};
    float *to;
    if (heads == 0) return MHA_OK;
    if (!q->data) {
        MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.q_a_proj.weight", &job.down));
        MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.q_a_norm.weight", &job.norm));
        MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.q_b_proj.weight", &job.up));
        MHA_TRY(take_heads(context, heads * D, E, &job.to, q));
        job.block = job.step = heads * D;
        mha_parallel_for(context, heads * D, multiply_row, &job);
    }
    MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.kv_a_proj.weight", &job.down));
    MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.kv_a_norm.weight", &job.norm));
    MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.k_b_proj.weight", &job.up));
    MHA_TRY(take_heads(context, heads * D, E, &to, k));
    share_rows(&job.down, heads, D, s, to);
    job.to = to, job.block = D - s, job.step = D, job.first = s;
    mha_parallel_for(context, heads * (D - s), multiply_row, &job);
    MHA_TRY(mhai_circuits_weight(context, t, layer, "self_attn.v_b_proj.weight", &job.up));
    MHA_TRY(take_heads(context, heads * D, E, &job.to, v));
    job.block = Dv, job.first = 0;
    mha_parallel_for(context, heads * Dv, multiply_row, &job);
    return latent_output(context, heads, D, Dv, o);
}

/* ---- tokens --------------------------------------------------------------------------------- */

static mha_status set_embedding(mha_context *context, const mha_transformer *t,
                                const mha_transformer_desc *d, uint32_t flags, mhai_tokens *tokens)
{
    mhai_weight gain;
    if (d->token_dim != d->embed_dim)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "circuits: embeddings of width %lld, which are projected to %lld, are not "
                        "supported",
                        (long long)d->token_dim, (long long)d->embed_dim);
    MHA_TRY(mha_transformer_find(t, -1, "embed_tokens.weight", &tokens->table));
    MHA_TRY(mhai_circuits_weight(context, t, -1, "embed_norm.weight", &gain));
    tokens->scale = d->embed_scale == 0 ? 1 : (double)d->embed_scale;
    tokens->gain = gain.data;
    tokens->centred = tokens->first = gain.data && d->norm == MHA_NORM_LAYER;
    tokens->layer = d->norm == MHA_NORM_LAYER;
    tokens->pre_norm = mha_transformer_norms_input(d, 0);
    tokens->normed = flags & MHA_CIRCUITS_NORMED_TOKENS && (gain.data || tokens->pre_norm);
    return MHA_OK;
}

static mha_status set_output(mha_context *context, const mha_transformer *t,
                             const mha_transformer_desc *d, mhai_tokens *tokens)
{
    mhai_weight gain;
    const bool tied = d->flags & MHA_TRANSFORMER_TIED;
    MHA_TRY(mha_transformer_find(t, -1, tied ? "embed_tokens.weight" : "lm_head.weight",
                                 &tokens->table));
    MHA_TRY(mhai_circuits_weight(context, t, -1, "norm.weight", &gain));
    tokens->gain = gain.data;
    tokens->centred = gain.data && d->norm == MHA_NORM_LAYER;
    return MHA_OK;
}

mha_status mhai_circuits_tokens(mha_context *context, const mha_transformer *t, mha_token_side side,
                                uint32_t flags, mhai_tokens *tokens)
{
    mha_transformer_desc d = {.struct_size = sizeof d};
    mha_transformer_describe(t, &d);
    *tokens = (mhai_tokens){.E = d.embed_dim,
                            .V = d.vocab_size,
                            .scale = (double)d.logit_scale,
                            .epsilon = (double)d.norm_epsilon};
    if (side == MHA_SIDE_EMBEDDING || d.flags & MHA_TRANSFORMER_NO_OUTPUT)
        return set_embedding(context, t, &d, flags, tokens);
    return set_output(context, t, &d, tokens);
}

/* first: centre before the multiplication, not after it. */
static void apply(const mhai_tokens *tokens, bool first, double *x)
{
    if (tokens->centred && first) mhai_circuits_centre(x, tokens->E);
    for (int64_t e = 0; tokens->gain && e < tokens->E; e++) x[e] *= (double)tokens->gain[e];
    if (tokens->centred && !first) mhai_circuits_centre(x, tokens->E);
    for (int64_t e = 0; e < tokens->E; e++) x[e] *= tokens->scale;
}

void mhai_tokens_map(const mhai_tokens *tokens, double *x)
{
    apply(tokens, tokens->first, x);
}

/* Apply the same factors in reverse order. */
void mhai_tokens_pull(const mhai_tokens *tokens, double *x)
{
    apply(tokens, !tokens->first, x);
}

/* The divisor of a norm. centred: for LayerNorm. */
static double norm_of(const mhai_tokens *tokens, const double *x, bool centred)
{
    double mean = 0, squares = 0;
    for (int64_t e = 0; centred && e < tokens->E; e++) mean += x[e] / (double)tokens->E;
    for (int64_t e = 0; e < tokens->E; e++) squares += (x[e] - mean) * (x[e] - mean);
    return sqrt(squares / (double)tokens->E + tokens->epsilon);
}

double mhai_tokens_weight(const mhai_tokens *tokens, const float *row, double *room)
{
    double weight = 1;
    if (!tokens->normed) return 1;
    for (int64_t e = 0; e < tokens->E; e++) room[e] = (double)row[e] * tokens->scale;
    if (tokens->gain) {
        weight /= norm_of(tokens, room, tokens->centred);
        for (int64_t e = 0; e < tokens->E; e++) room[e] = (double)row[e] * weight;
        mhai_tokens_map(tokens, room);
    }
    if (tokens->pre_norm) weight /= norm_of(tokens, room, tokens->layer);
    return weight;
}

mha_status mhai_tokens_read(const mha_transformer *t, const mhai_tokens *tokens, int64_t first,
                            int64_t rows, float *to)
{
    MHA_TRY(mha_transformer_read(t, &tokens->table, first, rows, to));
    return check_finite(&tokens->table, to, rows * tokens->E);
}
