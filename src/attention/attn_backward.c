/* The public backward calls: check, prepare the data that every path needs, run a path, and write
 * the gradients of parameters. */
#include "attention/attn_backward.h"

#include "attention/attn_row.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/math.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

/* A valid address for tensors without elements, never read or written. */
static float nothing;

static mha_status check_wanted(const mhai_attn_problem *p, const char *name,
                               const mha_tensor *given, const char *input_name,
                               const mha_tensor *input, bool last, mha_tensor *wanted)
{
    if (!given) return MHA_OK;
    if (!input)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: is requested, but the descriptor has no %s", name,
                        input_name);
    mha_tensor tensor = *given;
    if (!p->need_data && !tensor.data) tensor.data = &nothing;
    MHA_TRY(mhai_tensor_check(name, &tensor, MHA_F32, input->ndim, input->shape));
    if (!tensor.data) tensor.data = &nothing; /* no elements */
    if (last) MHA_TRY(mhai_tensor_check_last(name, &tensor));
    *wanted = tensor;
    return mhai_tensor_check_output(name, &tensor);
}

static mha_status check_scale(const mhai_attn_problem *p, const mha_tensor *given,
                              mha_tensor *wanted)
{
    const mha_tensor any = {.ndim = given ? given->ndim : 0, .shape = {1, 1, 1, 1, 1, 1}};
    if (given && (given->ndim < 0 || given->ndim > MHA_MAX_DIMS))
        return mha_fail(MHA_ERR_SHAPE, "gradients.scale: has %d dimensions, expected 0..%d",
                        (int)given->ndim, (int)MHA_MAX_DIMS);
    return check_wanted(p, "gradients.scale", given, "scale", &any, false, wanted);
}

static mha_status check_gradients(const mha_attention_desc *desc,
                                  const mha_attention_gradients *gradients,
                                  mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    const struct {
        const char *name, *input_name;
        const mha_tensor *given, *input;
        bool last;
        mha_tensor *wanted;
    } all[] = {
        {"gradients.q", "q", gradients->q, &p->q, true, &x->q},
        {"gradients.k", "k", gradients->k, &p->k, true, &x->k},
        {"gradients.v", "v", gradients->v, &p->v, true, &x->v},
        {"gradients.bias", "bias", gradients->bias, desc->bias, false, &x->bias},
        {"gradients.alibi_slopes", "alibi_slopes", gradients->alibi_slopes, desc->alibi_slopes,
         false, &x->alibi},
        {"gradients.t5_table", "t5_table", gradients->t5_table, desc->t5_table, false, &x->t5},
        {"gradients.shaw_keys", "shaw_keys", gradients->shaw_keys, desc->shaw_keys, false,
         &x->shaw_keys},
        {"gradients.shaw_values", "shaw_values", gradients->shaw_values, desc->shaw_values, false,
         &x->shaw_values},
        {"gradients.sink_logits", "sink_logits", gradients->sink_logits, desc->sink_logits, false,
         &x->sinks},
        {"gradients.gates", "gates", gradients->gates, desc->gates, false, &x->gates},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        MHA_TRY(check_wanted(p, all[i].name, all[i].given, all[i].input_name, all[i].input,
                             all[i].last, all[i].wanted));
    return check_scale(p, gradients->scale, &x->scale);
}

/* Check an optional gradient of an output other than o. */
static mha_status check_given(const mhai_attn_problem *p, const char *name, const mha_tensor *given,
                              int ndim, const int64_t *shape, mha_tensor *own)
{
    if (!given) return MHA_OK;
    *own = *given;
    if (!p->need_data && !own->data) own->data = &nothing;
    MHA_TRY(mhai_tensor_check(name, own, MHA_F32, ndim, shape));
    if (!own->data) own->data = &nothing; /* no elements */
    return MHA_OK;
}

static mha_status check_loss(const mha_attention_gradients *gradients, mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    const int64_t batch = p->q.shape[0], rows = p->q.shape[2];
    x->dropped = gradients->flags & MHA_GRADIENTS_DROPPED_PROBABILITIES;
    MHA_TRY(check_given(p, "lse_gradient", gradients->lse_gradient, 3,
                        (int64_t[]){batch, p->H, rows}, &x->lse_gradient));
    MHA_TRY(check_given(p, "probabilities_gradient", gradients->probabilities_gradient, 4,
                        (int64_t[]){batch, p->H, rows, p->S}, &x->probabilities_gradient));
    return check_given(p, "average_probabilities_gradient",
                       gradients->average_probabilities_gradient, 3, (int64_t[]){batch, rows, p->S},
                       &x->average_gradient);
}

/* Check that no gradient overlaps an input or another gradient. */
static mha_status check_overlap(const mhai_backward_problem *x, const mha_attention_desc *desc)
{
    const mhai_attn_problem *p = &x->p;
    const mha_tensor *outputs[] = {&x->q,     &x->k,     &x->v,         &x->bias,
                                   &x->alibi, &x->t5,    &x->shaw_keys, &x->shaw_values,
                                   &x->sinks, &x->gates, &x->scale};
    static const char *const names[] = {"gradients.q",
                                        "gradients.k",
                                        "gradients.v",
                                        "gradients.bias",
                                        "gradients.alibi_slopes",
                                        "gradients.t5_table",
                                        "gradients.shaw_keys",
                                        "gradients.shaw_values",
                                        "gradients.sink_logits",
                                        "gradients.gates",
                                        "gradients.scale"};
    const struct {
        const char *name;
        const mha_tensor *tensor;
    } inputs[] = {{"q", &p->q},
                  {"k", &p->k},
                  {"v", &p->v},
                  {"o", &p->o},
                  {"lse", &p->lse},
                  {"o_gradient", &x->o_gradient},
                  {"lse_gradient", &x->lse_gradient},
                  {"probabilities_gradient", &x->probabilities_gradient},
                  {"average_probabilities_gradient", &x->average_gradient}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        MHA_TRY(mhai_attn_check_apart(desc, names[i], outputs[i]));
        for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++) {
            /* In a part, k and v may be stored elsewhere. The caller has checked them. */
            if (p->part && (inputs[j].tensor == &p->k || inputs[j].tensor == &p->v)) continue;
            MHA_TRY(
                mhai_tensor_check_disjoint(names[i], outputs[i], inputs[j].name, inputs[j].tensor));
        }
        for (size_t j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(names[i], outputs[i], names[j], outputs[j]));
    }
    return MHA_OK;
}

/* Check the tensors that only the backward pass needs.
 * mha_attention_backward_explain() may omit them. */
static mha_status check_forward_results(const mha_tensor *o, const mha_tensor *lse,
                                        const mha_tensor *o_gradient, bool need_data,
                                        mhai_backward_problem *x)
{
    const mhai_attn_problem *p = &x->p;
    const int64_t shape[] = {p->q.shape[0], p->H, p->q.shape[2], p->Dv};
    if (need_data && (!o || !lse))
        return mha_fail(MHA_ERR_NULL,
                        "%s: is NULL; the backward pass requires it from the forward pass",
                        o ? "lse" : "o");
    if (!o_gradient) return need_data ? mha_fail(MHA_ERR_NULL, "o_gradient: is NULL") : MHA_OK;
    x->o_gradient = *o_gradient;
    if (!x->o_gradient.data && !need_data) x->o_gradient.data = &nothing;
    MHA_TRY(mhai_tensor_check_real("o_gradient", &x->o_gradient));
    MHA_TRY(mhai_tensor_check("o_gradient", &x->o_gradient, o_gradient->dtype, 4, shape));
    if (!x->o_gradient.data) x->o_gradient.data = &nothing;
    return mhai_tensor_check_last("o_gradient", &x->o_gradient);
}

/* Check that B H T S, which bounds the numbers of work items, does not overflow. In a ragged batch,
 * T and S are maxima, so the product may overflow although the tensors fit in memory. */
static mha_status check_size(const mhai_attn_problem *p)
{
    int64_t pairs;
    if (!mhai_mul_i64(mhai_max_i64(1, p->B), mhai_max_i64(1, p->H), &pairs) ||
        !mhai_mul_i64(pairs, mhai_max_i64(1, p->T), &pairs) ||
        !mhai_mul_i64(pairs, mhai_max_i64(1, p->S), &pairs))
        return mha_fail(MHA_ERR_SIZE, "q, k: sequences x H x longest T x longest S overflows 64 "
                                      "bits");
    return MHA_OK;
}

static mha_status check(const mha_attention_backward_call *a, const mhai_attn_part *part,
                        bool need_data, mhai_backward_problem *x)
{
    const uint32_t known = MHA_GRADIENTS_ACCUMULATE | MHA_GRADIENTS_DROPPED_PROBABILITIES;
    mha_attention_gradients gradients;
    mha_attention_desc desc;
    memset(x, 0, sizeof *x);
    if (!a->gradients) return mha_fail(MHA_ERR_NULL, "gradients: is NULL");
    MHA_TRY(mhai_struct_copy("mha_attention_gradients", &gradients, sizeof gradients,
                             offsetof(mha_attention_gradients, lse_gradient), a->gradients));
    MHA_TRY(mhai_check_flags("mha_attention_gradients", gradients.flags, known));
    x->accumulate = gradients.flags & MHA_GRADIENTS_ACCUMULATE;
    const mha_attention_outputs results = {.struct_size = sizeof results, .lse = a->lse};
    MHA_TRY(
        mhai_attn_check(a->attention, a->q, a->k, a->v, a->o, &results, need_data, part, &x->p));
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &desc, sizeof desc,
                             offsetof(mha_attention_desc, left_keys), a->attention));
    if (x->p.compute != MHA_COMPUTE_F32)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "compute %s has no backward pass; use MHA_COMPUTE_F32 in both directions",
                        mha_compute_name(x->p.compute));
    MHA_TRY(check_size(&x->p));
    MHA_TRY(check_forward_results(a->o, a->lse, a->o_gradient, need_data, x));
    MHA_TRY(check_gradients(&desc, &gradients, x));
    MHA_TRY(check_loss(&gradients, x));
    return need_data ? check_overlap(x, &desc) : MHA_OK;
}

/* ---- preparation for every path -------------------------------------------------------------- */

static double f32_at(const mha_tensor *x, int64_t i)
{
    return (double)((const float *)x->data)[i * x->stride[0]];
}

typedef struct preparation {
    mhai_backward_problem *x;
    const mhai_kernels *kernels;
    float
        *room; /* [threads][MHAI_MAX_ROWS][D + 2 Dv], for rows that are not f32 or evenly spaced */
} preparation;

/* Rows are numbered by sequence, head and query. */
typedef struct row_place {
    int64_t batch, h, t;
} row_place;

static row_place place_of(const mhai_attn_problem *p, int64_t row)
{
    const int64_t head = row / p->q.shape[2];
    return (row_place){head / p->H, head % p->H, row % p->q.shape[2]};
}

static void next_place(const mhai_attn_problem *p, row_place *at)
{
    if (++at->t < p->q.shape[2]) return;
    at->t = 0;
    if (++at->h == p->H) at->h = 0, at->batch++;
}

/* Whether rows of f32 are equally far apart, even if they belong to several heads. */
static bool evenly_spaced(const mha_tensor *x, const row_place *first, int rows)
{
    if (x->dtype != MHA_F32) return false;
    return first->t + rows <= x->shape[2] || (x->stride[1] == x->shape[2] * x->stride[2] &&
                                              x->stride[0] == x->shape[1] * x->stride[1]);
}

/* Rows as f32: in place, or copied into `room`. */
static const float *read_rows(const mhai_attn_problem *p, const mha_tensor *x, row_place at,
                              int rows, float *room, int64_t *stride)
{
    *stride = x->stride[2];
    if (evenly_spaced(x, &at, rows)) return mhai_attn_row(x, at.batch, at.h, at.t);
    *stride = x->shape[3];
    for (int r = 0; r < rows; r++, next_place(p, &at)) {
        float *to = room + r * x->shape[3];
        const float *from = mhai_attn_read(x, at.batch, at.h, at.t, to);
        if (from != to) memcpy(to, from, (size_t)x->shape[3] * sizeof *to);
    }
    return room;
}

/* Compute the deltas, and their terms in the sink's gradient. Rows with o = 0 contribute nothing
 * for any dO. A query without keys affects the loss only through its lse, which is the sink. */
static void prepare_strip(const preparation *prepared, int64_t row, int rows, float *room)
{
    mhai_backward_problem *x = prepared->x;
    const mhai_attn_problem *p = &x->p;
    double delta[MHAI_MAX_ROWS];
    bool finite[MHAI_MAX_ROWS];
    mhai_deltas d = {.rows = rows, .head_dim = p->D, .value_dim = p->Dv};
    row_place at = place_of(p, row);
    d.q = read_rows(p, &p->q, at, rows, room, &d.q_stride);
    room += MHAI_MAX_ROWS * p->D;
    d.o = read_rows(p, &p->o, at, rows, room, &d.o_stride);
    room += MHAI_MAX_ROWS * p->Dv;
    d.g = read_rows(p, &x->o_gradient, at, rows, room, &d.g_stride);
    prepared->kernels->row_deltas(&d, delta, finite);
    for (int r = 0; r < rows; r++, next_place(p, &at)) {
        const double lse = (double)*mhai_attn_row(&p->lse, at.batch, at.h, at.t);
        if (x->lse_gradient.data) {
            const double given = (double)*mhai_attn_row(&x->lse_gradient, at.batch, at.h, at.t);
            delta[r] -= isfinite(given) ? given : (double)NAN;
        }
        x->delta[row + r] = finite[r] && lse < (double)INFINITY ? delta[r] : (double)NAN;
        if (!x->sink_terms) continue;
        const double logit = p->sink_logits.data ? f32_at(&p->sink_logits, at.h) : -INFINITY;
        x->sink_terms[row + r] = logit == -INFINITY ? 0 : -mhai_exp(logit - lse) * delta[r];
    }
}

/* Rows of an item: one head, or 16 rows of several short heads. */
static int64_t prepared_rows(const mhai_attn_problem *p)
{
    return mhai_max_i64(p->q.shape[2], MHAI_MAX_ROWS);
}

static void prepare_rows(void *argument, int64_t item, int worker)
{
    const preparation *prepared = argument;
    const mhai_attn_problem *p = &prepared->x->p;
    const int64_t each = prepared_rows(p), all = p->q.shape[0] * p->H * p->q.shape[2],
                  end = mhai_min_i64((item + 1) * each, all);
    float *room = prepared->room + worker * MHAI_MAX_ROWS * (p->D + 2 * p->Dv);
    for (int64_t row = item * each; row < end; row += MHAI_MAX_ROWS)
        prepare_strip(prepared, row, (int)mhai_min_i64(MHAI_MAX_ROWS, end - row), room);
}

void mhai_backward_add_sink(const mhai_backward_problem *x, int64_t b, int64_t h, double *sum)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&x->p, b);
    const double *terms = x->sink_terms + (seq.batch * x->p.H + h) * x->p.q.shape[2] + seq.q0;
    for (int64_t t = 0; t < seq.T; t++) *sum += terms[t];
}

/* The weight sum of a row, or NaN if it is not finite. */
static double weight_sum(const mhai_backward_problem *x, int64_t row)
{
    return isfinite(x->weight_sums[row]) ? x->weight_sums[row] : (double)NAN;
}

void mhai_backward_add_sink_weights(const mhai_backward_problem *x, int64_t b, int64_t h,
                                    double *sum)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(&x->p, b);
    const int64_t row = (seq.batch * x->p.H + h) * x->p.q.shape[2] + seq.q0;
    const double logit = f32_at(&x->p.sink_logits, h);
    for (int64_t t = 0; logit != -INFINITY && t < seq.T; t++) {
        const double lse = (double)*mhai_attn_row(&x->p.lse, seq.batch, h, seq.q0 + t);
        *sum -= mhai_exp(logit - lse) * weight_sum(x, row + t);
    }
}

void mhai_backward_join_weights(mhai_backward_problem *x)
{
    const int64_t rows = x->p.q.shape[0] * x->p.H * x->p.q.shape[2];
    for (int64_t row = 0; row < rows; row++) x->delta[row] += weight_sum(x, row);
    for (int64_t h = 0; x->sums.sinks && h < x->p.H; h++)
        for (int64_t b = 0; b < x->p.B; b++)
            mhai_backward_add_sink_weights(x, b, h, &x->sums.sinks[h]);
}

static mha_status take_rows(mha_context *context, const mhai_attn_problem *p, double **rows)
{
    int64_t count;
    if (!mhai_mul_i64(p->q.shape[0] * p->H, p->q.shape[2], &count))
        return mha_fail(MHA_ERR_SIZE, "q: a number for each row overflows 64 bits");
    return mha_scratch_zeros(context, count, sizeof(double), rows);
}

/* Lay out the requested sums in memory (NULL: only count). Returns their
 * number, or -1 on overflow. */
static int64_t lay_out_sums(mhai_backward_problem *x, double *memory)
{
    const mhai_attn_problem *p = &x->p;
    mhai_backward_sums *s = &x->sums;
    const struct {
        bool wanted;
        int64_t rows, cols;
        double **sums;
    } all[] = {{x->alibi.data, p->B, p->H, &s->alibi},
               {x->gates.data, p->B, p->H, &s->gates},
               {x->t5.data, p->t5_table.shape[0], p->H, &s->t5},
               {x->shaw_keys.data, p->shaw_keys.shape[0], p->D, &s->shaw_keys},
               {x->shaw_values.data, p->shaw_values.shape[0], p->Dv, &s->shaw_values},
               {x->sinks.data, p->H, 1, &s->sinks},
               {x->scale.data, 1, 1, &s->scale}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t numbers;
        if (!all[i].wanted) continue;
        if (memory) *all[i].sums = memory + count;
        if (!mhai_mul_i64(all[i].rows, all[i].cols, &numbers) ||
            !mhai_add_i64(count, numbers, &count))
            return -1;
    }
    return count;
}

mha_status mhai_backward_take_sums(mha_context *context, mhai_backward_problem *x, double **sums,
                                   int64_t *count)
{
    *count = lay_out_sums(x, NULL);
    if (*count < 0)
        return mha_fail(MHA_ERR_SIZE, "gradients: the sums of the tables overflow 64 bits");
    MHA_TRY(mha_scratch_zeros(context, *count, sizeof **sums, sums));
    lay_out_sums(x, *sums);
    return MHA_OK;
}

/* Scratch that mhai_backward_take_sums() and _take_rows() allocate. */
static size_t prepared_bytes(mhai_backward_problem *x, int threads)
{
    const mhai_attn_problem *p = &x->p;
    const size_t rows = mhai_backward_piece(p->q.shape[0] * p->H * p->q.shape[2], sizeof(double));
    size_t bytes = rows + 64;
    if (mhai_backward_has_weights(x)) bytes += rows;
    if (x->sinks.data) bytes += rows;
    bytes += mhai_backward_piece(mhai_max_i64(0, lay_out_sums(x, NULL)), sizeof(double));
    return bytes + mhai_backward_piece(threads * (p->D + 2 * p->Dv), MHAI_MAX_ROWS * sizeof(float));
}

mha_status mhai_backward_take_rows(mha_context *context, mhai_backward_problem *x, float **room)
{
    int64_t floats, D = x->p.D, Dv = x->p.Dv;
    MHA_TRY(take_rows(context, &x->p, &x->delta));
    if (mhai_backward_has_weights(x)) MHA_TRY(take_rows(context, &x->p, &x->weight_sums));
    if (x->sinks.data) MHA_TRY(take_rows(context, &x->p, &x->sink_terms));
    if (!mhai_add_i64(D, Dv, &floats) || !mhai_add_i64(floats, Dv, &floats) ||
        !mhai_mul_i64(floats, context->num_threads, &floats))
        return mha_fail(MHA_ERR_SIZE, "q: a row for each thread overflows 64 bits");
    MHA_TRY(mha_scratch_alloc(context, floats, MHAI_MAX_ROWS * sizeof(float), room));
    return MHA_OK;
}

/* Compute delta of every row, without weight_sums, and the sink terms. */
void mhai_backward_prepare(mha_context *context, mhai_backward_problem *x, float *room)
{
    const int64_t rows = x->p.q.shape[0] * x->p.H * x->p.q.shape[2];
    mha_parallel_for(context, mhai_ceil_div(rows, prepared_rows(&x->p)), prepare_rows,
                     &(preparation){x, mhai_kernels_for(context->isa), room});
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Write a table of sums [rows, cols] to a tensor of the same shape. */
static void write_table(const mhai_backward_problem *x, const double *sums, const mha_tensor *out)
{
    for (int64_t i = 0; sums && i < out->shape[0]; i++)
        for (int64_t j = 0; j < out->shape[1]; j++)
            mhai_backward_write(x, (float *)out->data + i * out->stride[0] + j * out->stride[1],
                                sums[i * out->shape[1] + j]);
}

/* Write sums [B, H] to a tensor that broadcasts to this shape. */
static void write_by_head(const mhai_backward_problem *x, const double *sums, const mha_tensor *out)
{
    if (!sums) return;
    int64_t shape[2] = {1, 1}, stride[2] = {0, 0};
    for (int i = 0; i < out->ndim; i++) {
        shape[2 - out->ndim + i] = out->shape[i];
        stride[2 - out->ndim + i] = out->stride[i];
    }
    int64_t batch = x->p.B, H = x->p.H;
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++) {
            double sum = 0;
            for (int64_t b = shape[0] == 1 ? 0 : i; b < (shape[0] == 1 ? batch : i + 1); b++)
                for (int64_t h = shape[1] == 1 ? 0 : j; h < (shape[1] == 1 ? H : j + 1); h++)
                    sum += sums[b * H + h];
            mhai_backward_write(x, (float *)out->data + i * stride[0] + j * stride[1], sum);
        }
}

void mhai_backward_write_parameters(const mhai_backward_problem *x)
{
    const mhai_backward_sums *s = &x->sums;
    write_by_head(x, s->alibi, &x->alibi);
    write_by_head(x, s->gates, &x->gates);
    write_table(x, s->t5, &x->t5);
    write_table(x, s->shaw_keys, &x->shaw_keys);
    write_table(x, s->shaw_values, &x->shaw_values);
    for (int64_t h = 0; s->sinks && h < x->p.H; h++)
        mhai_backward_write(x, (float *)x->sinks.data + h * x->sinks.stride[0], s->sinks[h]);
    if (s->scale) mhai_backward_write(x, x->scale.data, s->scale[0]);
}

/* ---- the calls ------------------------------------------------------------------------------- */

mha_status mhai_backward_copy_call(const char *name, const mha_attention_backward_call *given,
                                   mha_attention_backward_call *call)
{
    MHA_NEED_AS(name, "call", given);
    MHA_TRY(
        mhai_struct_copy("mha_attention_backward_call", call, sizeof *call, sizeof *call, given));
    return mhai_check_reserved(name, call->reserved);
}

mha_status mhai_backward_plan_call(const mha_context *context, const mha_attention_backward_call *a,
                                   const mhai_attn_part *part, bool need_data,
                                   mhai_backward_plan *plan)
{
    const mhai_attn_problem *p = &plan->x.p;
    mha_attention_plan *account = &plan->account;
    MHA_TRY(check(a, part, need_data, &plan->x));
    MHA_TRY(mhai_attn_choose(context, p, true, &plan->backend, &account->reason));
    account->path = plan->backend->path;
    plan->threads = context->num_threads;
    return plan->backend->plan_backward(context, plan);
}

static mha_status run(mha_context *context, mhai_backward_plan *plan)
{
    mhai_backward_problem *x = &plan->x;
    double *sums;
    float *room;
    int64_t count;
    MHA_TRY(mhai_backward_take_sums(context, x, &sums, &count));
    MHA_TRY(mhai_backward_take_rows(context, x, &room));
    mhai_backward_prepare(context, x, room);
    for (int64_t h = 0; x->sinks.data && h < x->p.H; h++)
        for (int64_t b = 0; b < x->p.B; b++) mhai_backward_add_sink(x, b, h, &x->sums.sinks[h]);
    MHA_TRY(plan->backend->run_backward(context, plan));
    mhai_backward_write_parameters(x);
    return MHA_OK;
}

mha_status mha_attention_backward(mha_context *context, const mha_attention_backward_call *call)
{
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_backward: context is NULL");
    mha_attention_backward_call own;
    MHA_TRY(mhai_backward_copy_call("mha_attention_backward", call, &own));
    mhai_backward_plan plan = {.threads = 0};
    MHA_TRY(mhai_backward_plan_call(context, &own, NULL, true, &plan));
    mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &plan));
}

/* Flops per pair. Each pass over the pairs recomputes the score and dO v. The tiled path adds the
 * sums of parameters in the pass for dq, even if that pass also computes dk and dv. */
static double flops_of_pair(const mhai_backward_plan *plan)
{
    const mhai_backward_problem *x = &plan->x;
    const bool tiled = plan->account.path == MHA_PATH_TILED, both = plan->both;
    double D = (double)x->p.D, Dv = (double)x->p.Dv, pair = 2 * (D + Dv), sum = 0;
    bool keys = x->k.data || x->v.data, parameters = mhai_backward_has_sums(x);
    if (x->q.data || (tiled && parameters)) sum += (both ? 0 : pair) + 2 * D;
    if (keys) sum += pair + (x->k.data ? 2 * D : 0) + (x->v.data ? 2 * Dv : 0);
    if (!tiled && parameters) sum += pair;
    if (x->bias.data) sum += pair;
    if (mhai_backward_has_weights(x)) sum += 2 * D * (tiled ? 1 + (double)plan->walks : 1);
    return sum;
}

mha_status mha_attention_backward_explain(const mha_context *context,
                                          const mha_attention_backward_call *call,
                                          mha_attention_plan *plan)
{
    MHA_NEED("mha_attention_backward_explain", context, plan);
    mha_attention_backward_call own;
    MHA_TRY(mhai_backward_copy_call("mha_attention_backward_explain", call, &own));
    mhai_backward_plan made = {.threads = 0};
    mhai_backward_problem *x = &made.x;
    mha_attention_plan *account = &made.account;
    MHA_TRY(mhai_backward_plan_call(context, &own, NULL, false, &made));
    const int64_t rows = x->p.q.shape[0] * x->p.q.shape[2] * x->p.H;
    account->visible_pairs = mhai_attn_visible_pairs(&x->p);
    account->flops = flops_of_pair(&made) * (double)account->visible_pairs;
    const mha_tensor *tensors[] = {&x->p.q,
                                   &x->p.k,
                                   &x->p.v,
                                   &x->q,
                                   &x->k,
                                   &x->v,
                                   &x->bias,
                                   &x->probabilities_gradient,
                                   &x->average_gradient};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        account->bytes += mhai_attn_tensor_bytes(tensors[i]);
    account->bytes += 4.0 * (double)rows * (double)(2 * x->p.Dv + 1);
    MHA_TRY(mhai_attn_add_scratch(&account->scratch_bytes, made.worker_bytes, made.threads));
    account->scratch_bytes += made.shared_bytes + prepared_bytes(x, made.threads);
    *plan = *account;
    return MHA_OK;
}
