/* Mixers other than attention, between their projections, and gates on heads. */
#include "transformer/transformer_call.h"

#include "base/checked.h"
#include "base/math.h"
#include "base/tensor.h"
#include "nn/nn_check.h"

#include <math.h>

const char *mha_layer_difference(const mha_layer_desc *layer)
{
    static const char *const mixers[] = {NULL, "is a gated delta net", "is a short convolution",
                                         "is a state space"};
    if (!layer || (unsigned)layer->mixer > MHA_MIXER_STATE_SPACE) return NULL;
    if (layer->kv_back > 0) return "uses the keys and values of an earlier layer";
    if (layer->head_dim > 0) return "has heads of another size";
    if (layer->latent_dim > 0) return "has latent attention";
    if (layer->mixer == MHA_MIXER_GATED_DELTA && layer->gate_rank > 0)
        return "is Kimi delta attention";
    if (layer->flags & MHA_LAYER_OUTPUT_GATE) return "has output gates";
    if (layer->input_dim > 0) return "has an input beside the stream";
    return layer->flags & MHA_LAYER_OUTPUT_SCALE ? "scales the stream" : mixers[layer->mixer];
}

const char *mha_layer_forward_only(const mha_layer_desc *layer)
{
    if (!layer) return NULL;
    if (layer->experts.count > 0) return "has routed experts";
    if (layer->flags & MHA_LAYER_QK_NORM && layer->qk_norm == MHA_QK_NORM_L2)
        return "has an L2 norm of queries and keys";
    return NULL;
}

const char *mha_layer_keeps_heads(const mha_layer_desc *layer)
{
    const char *difference = mha_layer_difference(layer);
    if (difference || !layer) return difference;
    if (layer->experts.count > 0) return "has routed experts";
    /* removing heads would change the norm of the others */
    return layer->flags & MHA_LAYER_QK_NORM_ROW ? "has a norm across the queries of all heads"
                                                : NULL;
}

const char *mha_transformer_phrase(const mha_transformer_desc *d,
                                   const char *(*of)(const mha_layer_desc *layer), int64_t *layer)
{
    const char *phrase = NULL;
    for (int64_t i = 0; d->layers && !phrase && i < d->num_layers; i++) {
        phrase = of(&d->layers[i]);
        if (layer) *layer = i;
    }
    return phrase;
}

mha_status mhai_transformer_reject(const char *function, const mha_transformer *t,
                                   const char *(*of)(const mha_layer_desc *layer), const char *so)
{
    int64_t layer = 0;
    const char *phrase = mha_transformer_phrase(&t->desc, of, &layer);
    if (!phrase) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: layer %lld %s%s", function, (long long)layer, phrase,
                    so);
}

mha_status mhai_transformer_trains(const char *function, const mha_transformer *t)
{
    if (t->desc.feed_forward == MHA_FEED_FORWARD_SWIGLU_CLAMPED)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: the feed-forward layers clamp their units, which supports forward "
                        "calls only",
                        function);
    return mhai_transformer_reject(function, t, mha_layer_forward_only,
                                   ", which supports forward calls only");
}

mha_status mhai_transformer_plain_mixers(const char *function, const mha_transformer *t)
{
    return mhai_transformer_reject(function, t, mha_layer_difference,
                                   "; only transformers whose layers all attend without output "
                                   "gates and latents are supported");
}

const char *mhai_layer_beyond_values(const mha_layer_desc *layer)
{
    return layer && layer->latent_dim > 0 ? NULL : mha_layer_difference(layer);
}

mha_status mhai_transformer_weighs_values(const char *function, const mha_transformer *t)
{
    return mhai_transformer_reject(function, t, mhai_layer_beyond_values,
                                   "; only transformers whose layers all attend without output "
                                   "gates are supported");
}

/* A layer of a call in progress. */
typedef struct layer_job {
    const mhai_call *c;
    const mhai_place_attention *place;
    const mhai_kept_attention *kept;
    mhai_mix mix;
    int64_t layer;
} layer_job;

static layer_job job_of(const mhai_call *c, int64_t layer)
{
    return (layer_job){.c = c,
                       .place = &c->t->layers[layer].self,
                       .kept = &c->a->layers[layer].self,
                       .mix = mhai_transformer_mix(&c->t->desc, layer),
                       .layer = layer};
}

/* Rows of one sequence in a step: up to the next length at which a copy of the states is kept. */
typedef struct stretch {
    int64_t b, at, rows;
    mhai_delta_state *now, *copy; /* copy: to be filled after these rows; NULL: none */
} stretch;

/* Advance to the next stretch, from {b}; false: none is left. */
static bool advance(const layer_job *job, stretch *s)
{
    const mhai_step *step = job->c->step;
    const mhai_delta_copy *next;
    s->at += s->rows;
    s->rows = step->counts[s->b] - s->at;
    s->now = &step->states->now[job->layer * job->c->a->B + s->b];
    if (s->rows == 0) return false;
    const int64_t length = step->offsets[s->b] + step->firsts[s->b] + s->at;
    next = mhai_states_after(step->states, s->b, length);
    s->copy = next ? &next->layers[job->layer] : NULL;
    if (next) s->rows = next->length - length;
    return true;
}

static mha_tensor taken(const mhai_call *c, const mha_tensor *x, int axis, const stretch *s)
{
    mha_tensor part = *x;
    part.shape[0] = 1;
    part.shape[axis] = s->rows;
    part.data =
        (float *)x->data + s->b * x->stride[0] + (c->step->firsts[s->b] + s->at) * x->stride[axis];
    return part;
}

/* ---- before the recurrence ------------------------------------------------------------------- */

static mha_status convolve(const layer_job *job, uint32_t flags)
{
    const mhai_call *c = job->c;
    const int64_t B = c->a->B, T = c->a->T, width = job->mix.width, channels = job->mix.channels;
    const int64_t taps = c->t->desc.layers[job->layer].conv_kernel;
    const mha_tensor weight = mhai_transformer_rows(
        mhai_transformer_numbers(c->t, job->place->conv), channels, taps, taps);
    mha_tensor x =
        mha_tensor_contiguous(job->kept->qkv, MHA_F32, 3, (const int64_t[]){B, T, width});
    mha_tensor numbers, *bias = NULL;
    x.data = job->kept->qkv + job->mix.first;
    x.shape[2] = channels;
    if (job->mix.mixer == MHA_MIXER_STATE_SPACE) {
        bias = &numbers;
        numbers = mhai_transformer_vector(mhai_transformer_numbers(c->t, job->place->conv_bias),
                                          channels);
    }
    if (!c->step) return mha_short_convolution(c->context, flags, &x, &weight, bias, NULL, &x);
    for (int64_t b = 0; b < B; b++)
        for (stretch s = {.b = b}; advance(job, &s);) {
            const mha_tensor part = taken(c, &x, 1, &s);
            const mha_tensor inputs = mha_tensor_contiguous(
                s.now->inputs, MHA_F32, 3, (const int64_t[]){1, taps - 1, channels});
            MHA_TRY(mha_short_convolution(c->context, flags, &part, &weight, bias, &inputs, &part));
            s.now->length += s.rows;
            if (s.copy) mhai_delta_keep_inputs(s.now, s.copy);
        }
    return MHA_OK;
}

static double softplus(double x)
{
    const double e = mha_exp(x);
    if (x > 40) return x;
    return e < 1e-5 ? e - e * e / 2 : mha_log(1 + e);
}

double mhai_delta_step(const mha_layer_desc *layer, double x, double *slope)
{
    const double most = layer->step_most > 0 ? (double)layer->step_most : INFINITY;
    const double least = (double)layer->step_least, step = softplus(x);
    if (slope) *slope = step < least || step > most ? 0 : mhai_sigmoid(x);
    return step < least ? least : step > most ? most : step;
}

/* Scale the queries and keys of a gated delta net to unit length. */
static void position_heads(const mhai_mix *mix, float *x)
{
    for (int64_t h = 0; h < mix->q + mix->k; h++, x += mix->D) {
        double squares = 1e-6;
        for (int64_t d = 0; d < mix->D; d++) squares += (double)x[d] * (double)x[d];
        const double factor = 1 / sqrt(squares);
        for (int64_t d = 0; d < mix->D; d++) x[d] = (float)((double)x[d] * factor);
    }
}

/* Compute strengths and decays. A gated delta net projects both. A state space projects only the
 * step sizes, which determine both. */
static void position_row(void *argument, int64_t row, int worker)
{
    const layer_job *job = argument;
    const mhai_mix *mix = &job->mix;
    const bool delta = mix->mixer == MHA_MIXER_GATED_DELTA;
    const mha_layer_desc *l = &job->c->t->desc.layers[job->layer];
    float *x = job->kept->qkv + row * mix->width, *b = x + mix->strengths, *a = x + mix->decays;
    const float *rate = mhai_transformer_numbers(job->c->t, job->place->decay);
    const float *shift = mhai_transformer_numbers(job->c->t, job->place->shift);
    (void)worker;
    if (delta) position_heads(mix, x);
    for (int64_t h = 0; h < mix->v; h++) {
        const double factor = -mha_exp((double)rate[h]);
        if (delta) b[h] = (float)((double)l->strength_scale * mhai_sigmoid((double)b[h]));
        for (int64_t i = h * mix->each; i < (h + 1) * mix->each; i++) {
            const double step =
                mhai_delta_step(l, (double)(delta ? a[i] : b[h]) + (double)shift[i], NULL);
            if (!delta) b[h] = (float)step;
            a[i] = (float)(factor * step);
        }
    }
}

mha_status mhai_delta_expand(const mhai_call *c, int64_t layer, bool gates, float *rows)
{
    const layer_job job = job_of(c, layer);
    const int64_t r = job.mix.rank, tokens = mhai_tokens(c->a);
    const mhai_place_linear *place = gates ? &job.place->gates : &job.place->decays;
    const mha_tensor x = mhai_transformer_rows(job.kept->down + (gates ? 0 : r), tokens, r, 2 * r);
    const mha_tensor y = mhai_transformer_rows(rows + (gates ? job.mix.gates : job.mix.decays),
                                               tokens, place->outputs, job.mix.width);
    return mha_linear_forward(c->context, place->packed, MHA_ACTIVATION_NONE, &x, &y);
}

/* The gates and decays of Kimi delta attention, before their functions. */
static mha_status project_gates(const layer_job *job)
{
    const mhai_call *c = job->c;
    MHA_TRY(mhai_call_project(c, &job->place->down, MHA_ACTIVATION_NONE, job->kept->step.in,
                              mhai_tokens(c->a), job->kept->down));
    MHA_TRY(mhai_delta_expand(c, job->layer, true, job->kept->qkv));
    return mhai_delta_expand(c, job->layer, false, job->kept->qkv);
}

mha_status mhai_delta_position(const mhai_call *c, int64_t layer)
{
    layer_job job = job_of(c, layer);
    if (job.mix.rank > 0) MHA_TRY(project_gates(&job));
    MHA_TRY(convolve(&job, MHA_CONVOLUTION_SILU));
    mha_parallel_for(c->context, mhai_tokens(c->a), position_row, &job);
    return MHA_OK;
}

static void open_row(void *argument, int64_t row, int worker)
{
    const layer_job *job = argument;
    const int64_t E = job->mix.channels;
    const float *b = job->kept->qkv + row * job->mix.width;
    float *x = job->kept->qkv + row * job->mix.width + job->mix.first;
    (void)worker;
    for (int64_t i = 0; i < E; i++) x[i] *= b[i];
}

static void close_row(void *argument, int64_t row, int worker)
{
    const layer_job *job = argument;
    const int64_t E = job->mix.channels;
    const float *c = job->kept->qkv + row * job->mix.width + E, *x = c + E;
    (void)worker;
    for (int64_t i = 0; i < E; i++) job->kept->heads[row * E + i] = c[i] * x[i];
}

mha_status mhai_convolution_run(const mhai_call *c, int64_t layer)
{
    layer_job job = job_of(c, layer);
    mha_parallel_for(c->context, mhai_tokens(c->a), open_row, &job);
    MHA_TRY(convolve(&job, 0));
    mha_parallel_for(c->context, mhai_tokens(c->a), close_row, &job);
    return MHA_OK;
}

/* ---- the recurrence -------------------------------------------------------------------------- */

void mhai_delta_gates(const mha_activations *a, int64_t layer, float *rows, mha_tensor *log_decay,
                      mha_tensor *strength)
{
    const mhai_mix mix = mhai_transformer_mix(&a->transformer->desc, layer);
    const int64_t shape[] = {a->B, mix.v, a->T, mix.each};
    *strength = mha_tensor_contiguous(rows + mix.strengths, MHA_F32, 3, shape);
    strength->stride[0] = a->T * mix.width;
    strength->stride[1] = 1;
    strength->stride[2] = mix.width;
    *log_decay = *strength;
    log_decay->data = rows + mix.decays;
    if (mix.rank == 0) return;
    log_decay->ndim = 4;
    log_decay->shape[3] = log_decay->stride[1] = mix.each;
    log_decay->stride[3] = 1;
}

void mhai_recurrent_view(const mha_activations *a, int64_t layer, mha_layer_view *view)
{
    const mha_transformer *t = a->transformer;
    const mhai_mix mix = mhai_transformer_mix(&t->desc, layer);
    mhai_delta_gates(a, layer, a->layers[layer].self.qkv, &view->log_decay, &view->strength);
    view->mixer = mix.mixer;
    if (mix.mixer != MHA_MIXER_STATE_SPACE) return;
    const mha_tensor x =
        mhai_transformer_vector(mhai_transformer_numbers(t, t->layers[layer].self.skip), mix.v);
    view->skip = mha_tensor_contiguous(x.data, MHA_F32, 3, (const int64_t[]){1, mix.v, 1});
}

mha_recurrent_desc mhai_recurrent_of(const mha_layer_view *view)
{
    const bool delta = view->mixer == MHA_MIXER_GATED_DELTA;
    return (mha_recurrent_desc){.struct_size = sizeof(mha_recurrent_desc),
                                .flags = delta ? MHA_RECURRENT_DELTA : 0,
                                .scale = delta ? 0 : 1,
                                .log_decay = &view->log_decay,
                                .strength = &view->strength,
                                .skip = view->skip.ndim > 0 ? &view->skip : NULL};
}

static mha_status write_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const mha_tensor *to = user;
    const int64_t rows = p->shape[1];
    for (int64_t i = 0; i < p->shape[0] * rows; i++) {
        const int64_t h = i / rows, r = i % rows;
        const float *from = (const float *)p->data + h * p->stride[0] + r * p->stride[1];
        float *x =
            (float *)to->data + b * to->stride[0] + h * to->stride[1] + (row + r) * to->stride[2];
        for (int64_t k = 0; k < to->shape[3]; k++)
            x[k * to->stride[3]] = k < p->shape[2] ? from[k] : 0;
    }
    return MHA_OK;
}

static mha_status write_map(const layer_job *job, const mha_recurrent_desc *desc,
                            const mhai_qkv *qkv, const mha_tensor *to)
{
    mha_tensor rows = *to;
    return mha_recurrent_visit_rows(job->c->context, desc, &qkv->q, &qkv->k, job->mix.v, 0,
                                    write_rows, &rows);
}

static mha_status write_maps(const layer_job *job, const mha_recurrent_desc *desc,
                             const mhai_qkv *qkv)
{
    const mhai_call *c = job->c;
    mha_attention_outputs outputs = {.struct_size = 0};
    if (c->probabilities) {
        mha_tensor part = mhai_call_layer_part(c->probabilities, job->layer);
        part.shape[1] = job->mix.v;
        MHA_TRY(write_map(job, desc, qkv, &part));
    }
    MHA_TRY(mhai_delta_check_outputs(c, job->layer));
    if (c->input.outputs)
        MHA_TRY(mhai_call_read_outputs(c->input.outputs[job->layer], job->layer, &outputs));
    return outputs.probabilities ? write_map(job, desc, qkv, outputs.probabilities) : MHA_OK;
}

mha_status mhai_delta_check_outputs(const mhai_call *c, int64_t layer)
{
    const mhai_mix mix = mhai_transformer_mix(&c->t->desc, layer);
    const int64_t shape[] = {c->a->B, mix.v, c->a->T, c->a->T};
    mha_attention_outputs outputs = {.struct_size = 0};
    const mha_tensor *all[MHAI_CALL_OUTPUTS];
    if (!c->input.outputs) return MHA_OK;
    MHA_TRY(mhai_call_read_outputs(c->input.outputs[layer], layer, &outputs));
    mhai_call_list_outputs(&outputs, all);
    for (int i = 1; i < MHAI_CALL_OUTPUTS; i++)
        if (all[i])
            return mha_fail(MHA_ERR_UNSUPPORTED,
                            "outputs of layer %lld: it %s, which has probabilities (its signed "
                            "map) and no others",
                            (long long)layer, mha_layer_difference(&c->t->desc.layers[layer]));
    if (!all[0]) return MHA_OK;
    MHA_TRY(mhai_tensor_check("probabilities", all[0], MHA_F32, 4, shape));
    return mhai_tensor_check_output("probabilities", all[0]);
}

mha_status mhai_delta_run(const mhai_call *c, int64_t layer)
{
    const layer_job job = job_of(c, layer);
    const mhai_qkv qkv = mhai_transformer_qkv(c->a, layer, false, job.kept->qkv, NULL);
    const mha_tensor heads = mhai_transformer_heads(c->a, layer, false, job.kept->heads);
    mha_layer_view view = {.struct_size = sizeof view};
    mhai_recurrent_view(c->a, layer, &view);
    mha_recurrent_desc desc = mhai_recurrent_of(&view);
    desc.lengths = c->input.lengths;
    if (!c->step) {
        MHA_TRY(mha_recurrent_forward(c->context, &desc, &qkv.q, &qkv.k, &qkv.v, NULL, &heads));
        return write_maps(&job, &desc, &qkv);
    }
    for (int64_t b = 0; b < c->a->B; b++)
        for (stretch s = {.b = b}; advance(&job, &s);) {
            const mha_tensor q = taken(c, &qkv.q, 2, &s), k = taken(c, &qkv.k, 2, &s),
                             v = taken(c, &qkv.v, 2, &s), o = taken(c, &heads, 2, &s),
                             a = taken(c, &view.log_decay, 2, &s),
                             w = taken(c, &view.strength, 2, &s);
            desc.log_decay = &a;
            desc.strength = &w;
            MHA_TRY(mha_recurrent_forward(c->context, &desc, &q, &k, &v, s.now->state, &o));
            if (s.copy) MHA_TRY(mha_recurrent_state_copy(s.now->state, 0, s.copy->state, 0));
        }
    return MHA_OK;
}

/* ---- the heads ------------------------------------------------------------------------------- */

/* Apply the norm and the gate of each head, and the call's factor for the head, in double, rounded
 * once. */
static void gate_delta(const layer_job *job, float *x, const float *gate)
{
    const mhai_mix *mix = &job->mix;
    const float *weight = mhai_transformer_numbers(job->c->t, job->place->o_norm);
    const float *open = mhai_nn_row(job->c->input.gates, job->layer);
    const double epsilon = (double)job->c->t->desc.layers[job->layer].head_norm_epsilon;
    for (int64_t h = 0; h < mix->v; h++, x += mix->Dv, gate += mix->Dv) {
        double squares = 0;
        for (int64_t d = 0; d < mix->Dv; d++) squares += (double)x[d] * (double)x[d];
        const double factor =
            (open ? (double)open[h] : 1) / sqrt(squares / (double)mix->Dv + epsilon);
        for (int64_t d = 0; d < mix->Dv; d++) {
            const double g = (double)gate[d];
            x[d] = (float)((double)x[d] * factor * (double)weight[d] * (mix->rank > 0 ? 1 : g) *
                           mhai_sigmoid(g));
        }
    }
}

/* The same for a state space, which applies the gate before the norm of each group. */
static void gate_space(const layer_job *job, float *x, const float *gate)
{
    const mhai_mix *mix = &job->mix;
    const int64_t channels = mix->out / mix->k;
    const float *weight = mhai_transformer_numbers(job->c->t, job->place->o_norm);
    const float *open = mhai_nn_row(job->c->input.gates, job->layer);
    const double epsilon = (double)job->c->t->desc.norm_epsilon;
    for (int64_t first = 0; first < mix->out; first += channels) {
        double squares = 0;
        for (int64_t i = first; i < first + channels; i++) {
            const double g = (double)gate[i];
            x[i] = (float)((double)x[i] * g * mhai_sigmoid(g));
            squares += (double)x[i] * (double)x[i];
        }
        const double factor = 1 / sqrt(squares / (double)channels + epsilon);
        for (int64_t i = first; i < first + channels; i++)
            x[i] = (float)((double)x[i] * factor * (double)weight[i] *
                           (open ? (double)open[i / mix->Dv] : 1));
    }
}

static void gate_row(void *argument, int64_t row, int worker)
{
    const layer_job *job = argument;
    const mhai_mix *mix = &job->mix;
    float *x = job->kept->heads + row * mix->out;
    const float *gate = job->kept->qkv + row * mix->width + mix->gates;
    (void)worker;
    if (mix->mixer == MHA_MIXER_STATE_SPACE)
        gate_space(job, x, gate);
    else if (mix->mixer)
        gate_delta(job, x, gate);
    else
        for (int64_t i = 0; i < mix->out; i++)
            x[i] = (float)((double)x[i] * mhai_sigmoid((double)gate[i]));
}

void mhai_gate_heads(const mhai_call *c, int64_t layer)
{
    layer_job job = job_of(c, layer);
    if (job.mix.gated) mha_parallel_for(c->context, mhai_tokens(c->a), gate_row, &job);
}
