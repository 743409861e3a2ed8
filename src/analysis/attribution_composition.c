/* Composition of heads (Elhage et al. 2021) without an E x E matrix. The compared matrices are
 * products P M R. M is D x D, P^T P = G, R R^T = F, and
 *
 *   ||P M R||^2 = tr(G M F M^T) = sum_ij (G M)_ij (M F)_ij
 *
 *          P       M            R      G         F
 *   q      K^T     Q O'         V'     K K^T     V' V'^T        ' of the writing head
 *   k      Q^T     K O'         V'     Q Q^T
 *   v      O       V O'         V'     O^T O
 *
 * One matrix product gives M for all heads of two layers. The rest is computed in double. */
#include "analysis/attribution.h"

#include "base/checked.h"
#include "base/need.h"

#include <math.h>
#include <string.h>

/* The weights of a layer, multiplied by those of the norm before it. */
typedef struct composer_layer {
    mha_tensor q, k, v, o, norm;               /* norm.ndim 0: none */
    int64_t H, Hk;                             /* 0: all heads are pruned */
    double *gram_q, *gram_k, *gram_v, *gram_o; /* [heads][D,D] */
} composer_layer;

typedef struct composer {
    mha_context *context;
    const mha_transformer *t;
    mha_composition out;
    int64_t L, H, D, E;
    composer_layer *layers;
    float *stack;                 /* [(H + 2 Hk) D, E] of the reading layer */
    float *turned;                /* [H D, E], W_O' transposed */
    float *products;              /* [(H + 2 Hk) D, H' D] */
    double *squares;              /* [threads][2][D,D] */
    int64_t reader, writer, done; /* done: number of finished pairs of layers */
} composer;

/* ---- weights ------------------------------------------------------------------------------- */

static mha_status find_weights(const composer *c, int64_t l, composer_layer *layer)
{
    MHA_TRY(
        mhai_attribution_weight(c->context, c->t, l, "self_attn.q_proj.weight", true, &layer->q));
    if (layer->q.ndim == 0) return MHA_OK;
    MHA_TRY(
        mhai_attribution_weight(c->context, c->t, l, "self_attn.k_proj.weight", false, &layer->k));
    MHA_TRY(
        mhai_attribution_weight(c->context, c->t, l, "self_attn.v_proj.weight", false, &layer->v));
    MHA_TRY(
        mhai_attribution_last(c->context, c->t, l, "self_attn.o_proj.weight", false, &layer->o));
    if (mhai_step_norms_input(c->t, &c->t->layers[l].self.step))
        MHA_TRY(mhai_attribution_weight(c->context, c->t, l, "self_attn_norm.weight", false,
                                        &layer->norm));
    layer->H = layer->q.shape[0] / c->D;
    layer->Hk = layer->k.shape[0] / c->D;
    return MHA_OK;
}

static double norm_at(const composer_layer *layer, int64_t e)
{
    return layer->norm.ndim ? (double)((const float *)layer->norm.data)[e] : 1;
}

/* The Gram matrix [D,D] of the rows of a head of q, k or v. */
static void gram_of_rows(const composer *c, const composer_layer *layer, const mha_tensor *weight,
                         int64_t head, double *gram)
{
    const float *rows = (const float *)weight->data + head * c->D * c->E;
    for (int64_t i = 0; i < c->D; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t e = 0; e < c->E; e++) {
                const double norm = norm_at(layer, e);
                sum += (double)rows[i * c->E + e] * norm * ((double)rows[j * c->E + e] * norm);
            }
            gram[i * c->D + j] = gram[j * c->D + i] = sum;
        }
}

/* The Gram matrix [D,D] of the columns of a head of W_O. */
static void gram_of_columns(const composer *c, const composer_layer *layer, int64_t head,
                            double *gram)
{
    const int64_t width = layer->o.shape[1];
    memset(gram, 0, (size_t)(c->D * c->D) * sizeof *gram);
    for (int64_t e = 0; e < c->E; e++) {
        const float *row = (const float *)layer->o.data + e * width + head * c->D;
        for (int64_t i = 0; i < c->D; i++)
            for (int64_t j = 0; j < c->D; j++)
                gram[i * c->D + j] += (double)row[i] * (double)row[j];
    }
}

/* Items are heads h of layer l. */
static void make_grams(void *argument, int64_t item, int worker)
{
    const composer *c = argument;
    const composer_layer *layer = &c->layers[item / c->H];
    const int64_t h = item % c->H, square = c->D * c->D;
    (void)worker;
    if (h < layer->H) {
        gram_of_rows(c, layer, &layer->q, h, layer->gram_q + h * square);
        gram_of_columns(c, layer, h, layer->gram_o + h * square);
    }
    if (h < layer->Hk) {
        gram_of_rows(c, layer, &layer->k, h, layer->gram_k + h * square);
        gram_of_rows(c, layer, &layer->v, h, layer->gram_v + h * square);
    }
}

/* ---- scores -------------------------------------------------------------------------------- */

/* tr(A B) of symmetric matrices. */
static double trace(const double *a, const double *b, int64_t count)
{
    return mhai_attribution_dot(a, b, count);
}

/* sqrt(tr(G M F M^T)); M has rows of `stride`. */
static double product_norm(const composer *c, const double *G, const float *M, int64_t stride,
                           const double *F, double *gm, double *mf)
{
    const int64_t D = c->D;
    memset(gm, 0, (size_t)(D * D) * sizeof *gm);
    memset(mf, 0, (size_t)(D * D) * sizeof *mf);
    for (int64_t i = 0; i < D; i++)
        for (int64_t k = 0; k < D; k++) {
            const double g = G[i * D + k], m = (double)M[i * stride + k];
            for (int64_t j = 0; j < D; j++) {
                gm[i * D + j] += g * (double)M[k * stride + j];
                mf[i * D + j] += m * F[k * D + j];
            }
        }
    const double sum = mhai_attribution_dot(gm, mf, D * D);
    return sum < 0 ? 0 : sqrt(sum); /* may be negative after rounding */
}

static void put(const composer *c, const mha_tensor *out, int64_t h, int64_t g, double above,
                double below)
{
    if (!out) return;
    mhai_attribution_at(out, c->reader, h, c->writer)[g] = below == 0 ? 0 : (float)(above / below);
}

/* Items are heads of the reading layer. Each is compared with all heads of the writing layer. */
static void score_head(void *argument, int64_t h, int worker)
{
    const composer *c = argument;
    const composer_layer *to = &c->layers[c->reader], *from = &c->layers[c->writer];
    const int64_t D = c->D, square = D * D, stride = from->H * D, kv = h / (to->H / to->Hk);
    double *gm = c->squares + worker * 2 * square, *mf = gm + square;
    const double *gq = to->gram_q + h * square, *gk = to->gram_k + kv * square;
    const double *gv = to->gram_v + kv * square, *go = to->gram_o + h * square;
    const double qk = sqrt(trace(gq, gk, square)), ov = sqrt(trace(go, gv, square));
    for (int64_t g = 0; g < from->H; g++) {
        const double *F = from->gram_v + g / (from->H / from->Hk) * square;
        const double wrote = sqrt(trace(from->gram_o + g * square, F, square));
        const float *q = c->products + h * D * stride + g * D;
        const float *k = c->products + (to->H + kv) * D * stride + g * D;
        const float *v = k + to->Hk * D * stride;
        if (c->out.q) put(c, c->out.q, h, g, product_norm(c, gk, q, stride, F, gm, mf), qk * wrote);
        if (c->out.k) put(c, c->out.k, h, g, product_norm(c, gq, k, stride, F, gm, mf), qk * wrote);
        if (c->out.v) put(c, c->out.v, h, g, product_norm(c, go, v, stride, F, gm, mf), ov * wrote);
    }
}

/* Stack q, k and v of the reading layer, multiplied by the norm's weights. */
static int64_t stack_reader(const composer *c)
{
    const composer_layer *to = &c->layers[c->reader];
    const mha_tensor *parts[] = {&to->q, &to->k, &to->v};
    int64_t rows = 0;
    for (int i = 0; i < 3; i++)
        for (int64_t r = 0; r < parts[i]->shape[0]; r++, rows++) {
            const float *row = (const float *)parts[i]->data + r * c->E;
            for (int64_t e = 0; e < c->E; e++)
                c->stack[rows * c->E + e] = (float)((double)row[e] * norm_at(to, e));
        }
    return rows;
}

/* Process all layers that can read from one writing layer. */
static mha_status read_writer(composer *c, const mha_linear *linear)
{
    const int64_t columns = c->layers[c->writer].H * c->D;
    for (c->reader = c->writer + 1; c->reader < c->L; c->reader++) {
        if (c->out.progress)
            MHA_TRY(c->out.progress(c->done++, c->L * (c->L - 1) / 2, c->out.progress_user));
        if (c->layers[c->reader].H == 0) continue;
        const int64_t rows = stack_reader(c);
        mha_tensor in = mhai_transformer_rows(c->stack, rows, c->E, c->E);
        mha_tensor out = mhai_transformer_rows(c->products, rows, columns, columns);
        MHA_TRY(mha_linear_forward(c->context, linear, MHA_ACTIVATION_NONE, &in, &out));
        mha_parallel_for(c->context, c->layers[c->reader].H, score_head, c);
    }
    return MHA_OK;
}

static mha_status score_writer(composer *c)
{
    const composer_layer *from = &c->layers[c->writer];
    const int64_t columns = from->H * c->D;
    mha_linear *linear = NULL;
    if (from->H == 0) {
        c->done += c->L - 1 - c->writer;
        return MHA_OK;
    }
    for (int64_t e = 0; e < c->E; e++)
        for (int64_t i = 0; i < columns; i++)
            c->turned[i * c->E + e] = ((const float *)from->o.data)[e * columns + i];
    mha_tensor weight = mhai_transformer_rows(c->turned, columns, c->E, c->E);
    MHA_TRY(mha_linear_create(c->context, &weight, NULL, &linear));
    mha_status status = read_writer(c, linear);
    mha_linear_destroy(linear);
    return status;
}

/* ---- the call ------------------------------------------------------------------------------ */

static mha_status take(const composer *c, int64_t a, int64_t b, size_t size, void *pointer)
{
    return mha_scratch_alloc(c->context, mhai_times(a, b), size, pointer);
}

/* Allocate all Gram matrices at once. */
static mha_status take_grams(composer *c)
{
    const int64_t square = c->D * c->D;
    int64_t heads = 0;
    for (int64_t l = 0; l < c->L; l++) heads += 2 * (c->layers[l].H + c->layers[l].Hk);
    double *next;
    MHA_TRY(take(c, heads, square, sizeof(double), &next));
    for (int64_t l = 0; l < c->L; l++) {
        composer_layer *layer = &c->layers[l];
        layer->gram_q = next;
        layer->gram_o = layer->gram_q + layer->H * square;
        layer->gram_k = layer->gram_o + layer->H * square;
        layer->gram_v = layer->gram_k + layer->Hk * square;
        next = layer->gram_v + layer->Hk * square;
    }
    return MHA_OK;
}

static mha_status take_scratch(composer *c)
{
    const int64_t square = c->D * c->D, rows = 3 * c->H * c->D;
    MHA_TRY(take_grams(c));
    MHA_TRY(take(c, rows, c->E, sizeof(float), &c->stack));
    MHA_TRY(take(c, c->H * c->D, c->E, sizeof(float), &c->turned));
    MHA_TRY(take(c, rows, c->H * c->D, sizeof(float), &c->products));
    MHA_TRY(
        take(c, 2 * (int64_t)mha_context_threads(c->context), square, sizeof(double), &c->squares));
    return MHA_OK;
}

static void clear(const composer *c, const mha_tensor *out)
{
    for (int64_t i = 0; out && i < c->L * c->H * c->L; i++)
        memset(mhai_attribution_at(out, i / c->L / c->H, i / c->L % c->H, i % c->L), 0,
               (size_t)c->H * sizeof(float));
}

static mha_status run(composer *c)
{
    MHA_TRY(mha_scratch_zeros(c->context, c->L, sizeof *c->layers, &c->layers));
    for (int64_t l = 0; l < c->L; l++) MHA_TRY(find_weights(c, l, &c->layers[l]));
    MHA_TRY(take_scratch(c));
    clear(c, c->out.q), clear(c, c->out.k), clear(c, c->out.v);
    mha_parallel_for(c->context, c->L * c->H, make_grams, c);
    for (c->writer = 0; c->writer < c->L; c->writer++) MHA_TRY(score_writer(c));
    return MHA_OK;
}

mha_status mha_transformer_composition(mha_context *context, const mha_transformer *transformer,
                                       mha_composition *out)
{
    MHA_NEED("mha_transformer_composition", context, transformer, out);
    MHA_TRY(mhai_transformer_plain_mixers("mha_transformer_composition", transformer));
    const mha_transformer_desc *d = &transformer->desc;
    composer c = {.context = context,
                  .t = transformer,
                  .L = d->num_layers,
                  .H = d->num_heads,
                  .D = d->head_dim,
                  .E = d->embed_dim};
    MHA_TRY(mhai_struct_copy("mha_composition", &c.out, sizeof c.out,
                             offsetof(mha_composition, progress), out));
    MHA_TRY(mhai_check_reserved("mha_composition", c.out.reserved));
    const int64_t shape[] = {c.L, c.H, c.L, c.H};
    const mha_tensor *all[] = {c.out.q, c.out.k, c.out.v};
    MHA_TRY(mhai_attribution_output("q", all[0], 4, shape, all, 0));
    MHA_TRY(mhai_attribution_output("k", all[1], 4, shape, all, 1));
    MHA_TRY(mhai_attribution_output("v", all[2], 4, shape, all, 2));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(&c);
    mha_scratch_release(context, mark);
    if (status == MHA_OK) out->baseline = 1 / sqrt((double)c.E);
    return status;
}
