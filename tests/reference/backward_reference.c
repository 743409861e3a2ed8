/* See backward_reference.h. For one row, with g = dO, gate c and p' = factor p:
 *
 *   o = c sum_s p'_s (v_s + shaw)       x_s = g . (v_s + shaw)       g . o = sum_s p_s c factor_s x_s
 *   dp_s = c factor_s x_s + w_s         ds_s = p_s (dp_s - delta)    dsink = -p_sink delta
 *   delta = sum_s p_s dp_s - dlse
 *   dx_s = ds_s slope_s                 slope = 1 - tanh^2 of the cap
 *   dv_s = c p'_s g                     dq = scale sum_s dx_s (k_s + shaw)
 *   dk_s = scale sum_t dx_s q_t         dgate = sum_s p'_s x_s */
#include "reference/backward_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const mha_tensor *backward_input(const ref_attention *a, int which)
{
    switch (which) {
#define BACKWARD_CASE(name, field, tensor) \
    case BACKWARD_##name: return tensor;
        BACKWARD_LIST(BACKWARD_CASE)
#undef BACKWARD_CASE
    default: return NULL;
    }
}

const char *backward_name(int which)
{
    switch (which) {
#define BACKWARD_CASE(name, field, tensor) \
    case BACKWARD_##name: return #field;
        BACKWARD_LIST(BACKWARD_CASE)
#undef BACKWARD_CASE
    default: return "scale";
    }
}

backward_arrays backward_arrays_make(const ref_attention *a)
{
    backward_arrays x = {0};
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        const mha_tensor *input = backward_input(a, i);
        if (!input && i != BACKWARD_SCALE) continue;
        x.count[i] = 1;
        for (int axis = 0; input && axis < input->ndim; axis++) x.count[i] *= input->shape[axis];
        x.of[i] = calloc((size_t)x.count[i] + 1, sizeof(double));
        if (x.of[i]) continue;
        fprintf(stderr, "backward_reference: no memory\n");
        abort();
    }
    return x;
}

void backward_arrays_free(backward_arrays *x)
{
    for (int i = 0; i < BACKWARD_COUNT; i++) free(x->of[i]);
    *x = (backward_arrays){0};
}

/* The offset of an element in a contiguous array of the tensor's shape. The shape broadcasts to
 * `count` axes of the given index, aligned at the right. */
static int64_t place(const mha_tensor *x, int count, const int64_t *full)
{
    int64_t at = 0;
    for (int i = 0; i < x->ndim; i++)
        at = at * x->shape[i] + (x->shape[i] == 1 ? 0 : full[count - x->ndim + i]);
    return at;
}

static double at4(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return ref_element(x, (int64_t[]){b, h, t, d});
}

static double signless(double x, bool magnitudes)
{
    return magnitudes ? fabs(x) : x;
}

/* ---- a pair ---------------------------------------------------------------------------------- */

/* q, k, Shaw's keys and the scale, by the product of q and k + shaw. */
static void add_product(const ref_attention *a, const backward_pair *p, const backward_share *share,
                        bool magnitudes, backward_arrays *out)
{
    const mha_tensor *table = a->desc->shaw_keys;
    int64_t D = a->q->shape[3], row = table ? kinds_shaw_row(a, table, p->b, p->t, p->s) : 0;
    int64_t q_at = place(a->q, 4, (int64_t[]){p->at.batch, p->h, p->at.q0 + p->t, 0});
    int64_t k_at = place(a->k, 4, (int64_t[]){p->at.batch, p->hk, p->at.k0 + p->s, 0});
    double scale = signless(ref_scale(a->desc, D), magnitudes);
    for (int64_t d = 0; d < D; d++) {
        double q = signless(at4(a->q, p->at.batch, p->h, p->at.q0 + p->t, d), magnitudes);
        double k = signless(at4(a->k, p->at.batch, p->hk, p->at.k0 + p->s, d), magnitudes);
        if (table) k += signless(ref_element(table, (int64_t[]){row, d}), magnitudes);
        out->of[BACKWARD_Q][q_at + d] += share->dx_q * scale * k;
        out->of[BACKWARD_K][k_at + d] += share->dx_k * scale * q;
        if (table) out->of[BACKWARD_SHAW_K][row * D + d] += share->dx_k * scale * q;
        out->of[BACKWARD_SCALE][0] += share->dx_c * q * k;
    }
}

static void add_values(const ref_attention *a, const mha_tensor *o_gradient, const backward_pair *p,
                       double w, bool magnitudes, backward_arrays *out)
{
    const mha_tensor *table = a->desc->shaw_values;
    int64_t Dv = a->v->shape[3], row = table ? kinds_shaw_row(a, table, p->b, p->t, p->s) : 0;
    int64_t v_at = place(a->v, 4, (int64_t[]){p->at.batch, p->hk, p->at.k0 + p->s, 0});
    for (int64_t d = 0; d < Dv; d++) {
        double g = signless(at4(o_gradient, p->at.batch, p->h, p->at.q0 + p->t, d), magnitudes);
        out->of[BACKWARD_V][v_at + d] += w * g;
        if (table) out->of[BACKWARD_SHAW_V][row * Dv + d] += w * g;
    }
}

static void add_terms(const ref_attention *a, const backward_pair *p, double ds, bool magnitudes,
                      backward_arrays *out)
{
    const mha_attention_desc *desc = a->desc;
    const int64_t dense[4] = {p->at.batch, p->h, p->at.q0 + p->t, p->s};
    const int64_t head[2] = {p->b, p->h};
    int64_t rel = kinds_relative(desc, p->b, p->t, p->s);
    if (desc->bias) out->of[BACKWARD_BIAS][place(desc->bias, 4, dense)] += ds;
    if (desc->alibi_slopes)
        out->of[BACKWARD_ALIBI][place(desc->alibi_slopes, 2, head)] +=
            (magnitudes ? 1 : -1) * ds * fabs((double)rel);
    if (desc->t5_table) {
        int64_t buckets = desc->t5_table->shape[0];
        int64_t most = desc->t5_max_distance ? desc->t5_max_distance : 128;
        bool one_sided = desc->flags & MHA_ATTENTION_T5_ONE_SIDED;
        out->of[BACKWARD_T5]
               [kinds_t5_bucket(rel, buckets, most, one_sided) * a->q->shape[1] + p->h] += ds;
    }
}

void backward_add(const ref_attention *a, const mha_tensor *o_gradient, const backward_pair *pair,
                  const backward_share *share, bool magnitudes, backward_arrays *out)
{
    const int64_t head[2] = {pair->b, pair->h};
    add_product(a, pair, share, magnitudes, out);
    add_values(a, o_gradient, pair, share->w, magnitudes, out);
    add_terms(a, pair, share->ds, magnitudes, out);
    if (a->desc->gates) out->of[BACKWARD_GATES][place(a->desc->gates, 2, head)] += share->gate;
}

/* ---- the loss ---------------------------------------------------------------------------------- */

double backward_weight(const backward_loss *loss, const ref_attention *a, int64_t b, int64_t h,
                       int64_t t, int64_t s, double factor)
{
    const kinds_sequence at = kinds_sequence_at(a, b);
    double sum = 0;
    if (loss->probabilities) sum += at4(loss->probabilities, at.batch, h, at.q0 + t, s);
    if (loss->average)
        sum += ref_element(loss->average, (int64_t[]){at.batch, at.q0 + t, s}) /
               (double)a->q->shape[1];
    return loss->dropped ? sum * factor : sum;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static double cap_slope(const ref_attention *a, const backward_pair *p)
{
    double cap = (double)a->desc->softcap;
    if (!(cap > 0)) return 1;
    double x = kinds_score_at(a, p->b, p->h, p->t, p->s).before_cap / cap;
    return 1 / (cosh(x) * cosh(x));
}

static void walk_row(const ref_attention *a, const backward_loss *loss, backward_pair pair,
                     kinds_row *row, backward_visit_fn visit, backward_row_fn after, void *user)
{
    const mha_tensor *o_gradient = loss->o;
    kinds_attention_row(a, pair.b, pair.h, pair.t, row);
    pair.gate = kinds_gate(a, pair.b, pair.h);
    pair.delta = 0;
    pair.lse = row->lse;
    for (int64_t d = 0; d < row->value_dim; d++)
        pair.delta += row->o[d] * at4(o_gradient, pair.at.batch, pair.h, pair.at.q0 + pair.t, d);
    if (loss->lse)
        pair.delta -=
            ref_element(loss->lse, (int64_t[]){pair.at.batch, pair.h, pair.at.q0 + pair.t});
    for (int64_t s = 0; s < row->keys; s++)
        if (row->p[s] > 0)
            pair.delta +=
                row->p[s] * backward_weight(loss, a, pair.b, pair.h, pair.t, s, row->factor[s]);
    for (pair.s = 0; pair.s < row->keys; pair.s++) {
        if (row->score[pair.s] == -INFINITY) continue;
        pair.x = 0;
        for (int64_t d = 0; d < row->value_dim; d++)
            pair.x += at4(o_gradient, pair.at.batch, pair.h, pair.at.q0 + pair.t, d) *
                      kinds_value(a, pair.b, pair.h, pair.t, pair.s, d);
        pair.p = row->p[pair.s];
        pair.factor = row->factor[pair.s];
        pair.score = row->score[pair.s];
        pair.w = backward_weight(loss, a, pair.b, pair.h, pair.t, pair.s, pair.factor);
        pair.ds = pair.p * (pair.gate * pair.factor * pair.x + pair.w - pair.delta);
        pair.slope = cap_slope(a, &pair);
        visit(user, &pair);
    }
    if (after) after(user, pair.b, pair.h, pair.t, row, pair.delta);
}

void backward_walk(const ref_attention *a, const backward_loss *loss, backward_visit_fn visit,
                   backward_row_fn after, void *user)
{
    int64_t H = a->q->shape[1], longest = 0;
    for (int64_t b = 0; b < kinds_sequences(a); b++)
        if (kinds_sequence_at(a, b).S > longest) longest = kinds_sequence_at(a, b).S;
    kinds_row row = kinds_row_make(longest, a->v->shape[3]);
    for (int64_t b = 0; b < kinds_sequences(a); b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < kinds_sequence_at(a, b).T; t++) {
                backward_pair pair = {.at = kinds_sequence_at(a, b),
                                      .b = b,
                                      .h = h,
                                      .hk = h / (H / a->k->shape[1]),
                                      .t = t};
                walk_row(a, loss, pair, &row, visit, after, user);
            }
    kinds_row_free(&row);
}

typedef struct gradient_job {
    const ref_attention *a;
    const mha_tensor *o_gradient;
    backward_arrays *out;
} gradient_job;

static void add_pair(void *user, const backward_pair *p)
{
    gradient_job *job = user;
    double dx = p->ds * p->slope, kept = p->p * p->factor;
    const backward_share share = {
        .ds = p->ds, .dx_q = dx, .dx_k = dx, .dx_c = dx, .w = p->gate * kept, .gate = kept * p->x};
    backward_add(job->a, job->o_gradient, p, &share, false, job->out);
}

static void add_sink(void *user, int64_t b, int64_t h, int64_t t, const kinds_row *row,
                     double delta)
{
    gradient_job *job = user;
    (void)b, (void)t;
    if (job->a->desc->sink_logits) job->out->of[BACKWARD_SINKS][h] -= row->sink_p * delta;
}

void backward_reference(const ref_attention *a, const backward_loss *loss, backward_arrays *out)
{
    gradient_job job = {a, loss->o, out};
    backward_walk(a, loss, add_pair, add_sink, &job);
}
