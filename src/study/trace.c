/* Attention and the residual stream step by step, from views of a run's layers: see trace.h. */
#include "study/trial.h"

#include <multihead/attribution.h>
#include <multihead/nn.h>
#include <multihead/position.h>
#include <multihead/trace.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct tracing {
    mha_trials *trials;
    const mha_trial *run;
    mha_trace *trace;
    mha_room scratch;
} tracing;

/* ---- parts ----------------------------------------------------------------------------------- */

static mha_status copy(mha_room *room, const float *from, int64_t count, float **to)
{
    MHA_TRY(MHA_ROOM_ALLOC(room, count, to));
    memcpy(*to, from, (size_t)count * sizeof **to);
    return MHA_OK;
}

/* Row t of [1,T,width]. */
static const float *row_of(const mha_tensor *x, int64_t t)
{
    return (const float *)x->data + t * x->stride[1];
}

static mha_status copy_row(tracing *g, const mha_tensor *x, int64_t t, float **to)
{
    return copy(&g->trace->memory, row_of(x, t), x->shape[2], to);
}

/* Row t of head h of [1,H,T,D]. */
static const float *head_row(const mha_tensor *x, int64_t h, int64_t t)
{
    return (const float *)x->data + h * x->stride[1] + t * x->stride[2];
}

static mha_status read_rows(tracing *g, const mha_parameter *p, int64_t row, int64_t rows,
                            mha_room *room, float **to)
{
    const int64_t columns = p->ndim == 2 ? p->shape[1] : 1;
    MHA_TRY(MHA_ROOM_ALLOC(room, rows * columns, to));
    return mha_transformer_read(g->trials->transformer, p, row, rows, *to);
}

static bool find(const tracing *g, int64_t layer, const char *name, mha_parameter *p)
{
    return mha_transformer_find(g->trials->transformer, layer, name, p) == MHA_OK;
}

/* ---- the embedding --------------------------------------------------------------------------- */

/* RoBERTa counts tokens that are not padding, from 1 on. */
static int64_t position_of(const tracing *g)
{
    const mha_transformer_desc *d = &g->trials->desc;
    const int64_t t = g->trace->row;
    if (!(d->flags & MHA_TRANSFORMER_PADDING)) return t;
    int64_t count = 0;
    for (int64_t i = 0; i <= t; i++) count += g->run->tokens[i] != d->padding_token;
    return g->run->tokens[t] == d->padding_token ? 0 : count;
}

static mha_status trace_position(tracing *g)
{
    mha_trace *x = g->trace;
    mha_parameter p;
    if (find(g, -1, "embed_positions.weight", &p))
        return read_rows(g, &p, position_of(g), 1, &x->memory, &x->position);
    if (g->trials->desc.positions != MHA_ENCODING_SINUSOIDAL) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, x->width, &x->position));
    const mha_tensor row = mha_tensor_contiguous(x->position, MHA_F32, 2, (int64_t[]){1, x->width});
    return mha_sinusoidal_encoding(g->trials->context, x->row, &row);
}

static mha_status trace_embedding(tracing *g)
{
    mha_trace *x = g->trace;
    const float scale = g->trials->desc.embed_scale;
    mha_parameter p;
    if (!find(g, -1, "embed_tokens.weight", &p)) return MHA_OK;
    MHA_TRY(read_rows(g, &p, g->run->tokens[x->row], 1, &x->memory, &x->token));
    for (int64_t e = 0; e < x->width; e++) x->token[e] *= scale;
    if (find(g, -1, "embed_types.weight", &p))
        MHA_TRY(
            read_rows(g, &p, g->run->types ? g->run->types[x->row] : 0, 1, &x->memory, &x->type));
    return trace_position(g);
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* Record the terms of the heads at the row: their norms, their sum and, unless `head` is -1, the
 * term of that head. */
static mha_status trace_writing(tracing *g, int64_t layer, const mha_layer_view *view, int64_t head,
                                mha_trace_layer *to)
{
    mha_trace *x = g->trace;
    const int64_t H = view->heads.shape[1], E = x->width;
    const float scale = g->trials->desc.residual_scale;
    mha_parameter p;
    float *weight, *bias = NULL, *written;
    mha_tensor heads = view->heads, bias_view = {0};
    if (!find(g, layer, "self_attn.o_proj.weight", &p))
        return mha_fail(MHA_ERR_MODEL, "layer %" PRId64 " has no o_proj.weight", layer);
    MHA_TRY(read_rows(g, &p, 0, E, &g->scratch, &weight));
    for (int64_t i = 0; i < E * p.shape[1]; i++) weight[i] *= scale;
    const mha_tensor weight_view = mha_tensor_contiguous(weight, MHA_F32, 2, p.shape);
    if (find(g, layer, "self_attn.o_proj.bias", &p)) {
        MHA_TRY(read_rows(g, &p, 0, E, &g->scratch, &bias));
        for (int64_t e = 0; e < E; e++) bias[e] *= scale;
        bias_view = mha_tensor_contiguous(bias, MHA_F32, 1, &E);
    }
    heads.data = (float *)heads.data + x->row * heads.stride[2];
    heads.shape[2] = 1;
    MHA_TRY(MHA_ROOM_ALLOC(&g->scratch, H * E, &written));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, H, &to->norms));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, E, &to->attention));
    const mha_tensor each = mha_tensor_contiguous(written, MHA_F32, 4, (int64_t[]){1, H, 1, E});
    const mha_tensor norms = mha_tensor_contiguous(to->norms, MHA_F32, 3, (int64_t[]){1, H, 1});
    const mha_tensor sum = mha_tensor_contiguous(to->attention, MHA_F32, 3, (int64_t[]){1, 1, E});
    const mha_head_writing out = {
        .struct_size = sizeof out, .written = &each, .norms = &norms, .output = &sum};
    MHA_TRY(mha_heads_write(g->trials->context, &heads, &weight_view, bias ? &bias_view : NULL,
                            NULL, NULL, &out));
    return head < 0 ? MHA_OK : copy(&x->memory, written + head * E, E, &x->written);
}

static mha_status trace_feed_forward(tracing *g, mha_trace_layer *to)
{
    if (g->trials->desc.flags & MHA_TRANSFORMER_POST_NORM) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(&g->trace->memory, g->trace->width, &to->feed_forward));
    for (int64_t e = 0; e < g->trace->width; e++) to->feed_forward[e] = to->next[e] - to->middle[e];
    return MHA_OK;
}

static mha_status trace_layer(tracing *g, int64_t layer, const mha_activations *activations,
                              const mha_layer_view *view)
{
    mha_trace *x = g->trace;
    mha_trace_layer *to = &x->layers[layer];
    mha_layer_view after = {.struct_size = sizeof after};
    to->norms_input = mha_transformer_norms_input(&g->trials->desc, layer);
    to->norms_branch = mha_transformer_norms_branch(&g->trials->desc, layer);
    MHA_TRY(copy_row(g, &view->stream, x->row, &to->stream));
    MHA_TRY(copy_row(g, &view->next, x->row, &to->middle));
    to->next = to->middle;
    if (mha_transformer_feeds(&g->trials->desc, layer)) {
        MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_FEED_FORWARD, &after));
        MHA_TRY(copy_row(g, &after.next, x->row, &to->next));
        MHA_TRY(trace_feed_forward(g, to));
    }
    if (view->q.ndim == 0) return MHA_OK;
    to->heads = view->q.shape[1];
    to->kv_heads = view->k.shape[1];
    return trace_writing(g, layer, view, layer == x->layer ? x->head : -1, to);
}

/* ---- a head: from x to q and k --------------------------------------------------------------- */

/* Compute head h of a projection of one input row, and return the row of the weight for the
 * channel. */
static mha_status project(tracing *g, const char *name, int64_t h, float *input, float **plain,
                          float **weight)
{
    mha_trace *x = g->trace;
    mha_context *context = g->trials->context;
    const int64_t D = x->head_dim, E = x->width;
    char text[48];
    mha_parameter p;
    mha_linear *linear = NULL;
    float *rows, *bias = NULL;
    mha_tensor bias_view = {0};
    mha_format(text, sizeof text, "self_attn.%s.bias", name);
    if (find(g, x->layer, text, &p)) {
        MHA_TRY(read_rows(g, &p, h * D, D, &g->scratch, &bias));
        bias_view = mha_tensor_contiguous(bias, MHA_F32, 1, &D);
    }
    mha_format(text, sizeof text, "self_attn.%s.weight", name);
    MHA_TRY(mha_transformer_find(g->trials->transformer, x->layer, text, &p));
    MHA_TRY(read_rows(g, &p, h * D, D, &g->scratch, &rows));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, D, plain));
    const mha_tensor matrix = mha_tensor_contiguous(rows, MHA_F32, 2, (int64_t[]){D, E});
    const mha_tensor from = mha_tensor_contiguous(input, MHA_F32, 2, (int64_t[]){1, E});
    const mha_tensor to = mha_tensor_contiguous(*plain, MHA_F32, 2, (int64_t[]){1, D});
    MHA_TRY(mha_linear_create(context, &matrix, bias ? &bias_view : NULL, &linear));
    const mha_status status = mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &from, &to);
    mha_linear_destroy(linear);
    MHA_TRY(status);
    return copy(&x->memory, rows + x->channel * E, E, weight);
}

static mha_status trace_projections(tracing *g, const mha_layer_view *view)
{
    mha_trace *x = g->trace;
    mha_layer_rotation rotation = {.struct_size = sizeof rotation};
    const mha_layer_desc *layers = g->trials->desc.layers;
    MHA_TRY(copy_row(g, &view->input, x->row, &x->query_input));
    MHA_TRY(copy_row(g, &view->input, x->key, &x->key_input));
    MHA_TRY(project(g, "q_proj", x->head, x->query_input, &x->query_plain, &x->query_weight));
    MHA_TRY(project(g, "k_proj", x->kv_head, x->key_input, &x->key_plain, &x->key_weight));
    if (g->trials->desc.positions == MHA_ENCODING_ROTARY)
        MHA_TRY(mha_transformer_rotation(g->trials->transformer, x->layer, &rotation));
    x->rotary_dim = rotation.rotary_dim;
    x->normalised = layers && layers[x->layer].flags & MHA_LAYER_QK_NORM;
    return MHA_OK;
}

/* ---- a head: from q and k to weights --------------------------------------------------------- */

/* Compute one row of one head like the layer's attention: the scores at a stage, or the weights if
 * stage is negative. */
static mha_status attend(tracing *g, const mha_layer_view *view, mha_attention_desc desc, int stage,
                         float **to)
{
    mha_trace *x = g->trace;
    const int64_t H = view->q.shape[1], D = x->head_dim, first = 0;
    mha_tensor q = view->q, bias;
    float *o;
    q.data = (float *)q.data + x->row * q.stride[2];
    q.shape[2] = 1;
    if (desc.bias) {
        bias = *desc.bias;
        bias.data = (float *)bias.data + x->row * bias.stride[2];
        bias.shape[2] = 1;
        desc.bias = &bias;
    }
    if (desc.flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) || desc.alibi_slopes ||
        desc.t5_table)
        desc.q_offset = x->row;
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, x->tokens, to));
    MHA_TRY(MHA_ROOM_ALLOC(&g->scratch, H * D, &o));
    const mha_tensor out = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, H, 1, D});
    const mha_tensor row = mha_tensor_contiguous(*to, MHA_F32, 4, (int64_t[]){1, 1, 1, x->tokens});
    const mha_attention_outputs wanted = {.struct_size = sizeof wanted,
                                          .scores = stage < 0 ? NULL : &row,
                                          .probabilities = stage < 0 ? &row : NULL,
                                          .score_stage = (mha_score_stage)(stage < 0 ? 0 : stage),
                                          .heads = &x->head,
                                          .heads_count = 1,
                                          .rows = &first,
                                          .rows_count = 1};
    return mha_attention_forward(g->trials->context, &desc, &q, &view->k, &view->v, &out, &wanted);
}

static mha_status trace_scores(tracing *g, const mha_layer_view *view)
{
    mha_trace *x = g->trace;
    mha_attention_desc plain = view->attention;
    const bool given = plain.flags & MHA_ATTENTION_SCALE_GIVEN || fabsf(plain.scale) > 0;
    x->scale = given ? (double)plain.scale : 1 / sqrt((double)x->head_dim);
    x->softcap = (double)plain.softcap;
    plain.flags |= MHA_ATTENTION_SCALE_GIVEN;
    plain.scale = 1;
    MHA_TRY(attend(g, view, plain, MHA_SCORES_RAW, &x->raw));
    MHA_TRY(attend(g, view, view->attention, MHA_SCORES_RAW, &x->scaled));
    if (x->softcap > 0) MHA_TRY(attend(g, view, view->attention, MHA_SCORES_CAPPED, &x->capped));
    MHA_TRY(attend(g, view, view->attention, MHA_SCORES_BIASED, &x->biased));
    return attend(g, view, view->attention, -1, &x->weights);
}

/* Choose the key of the largest weight, unless a key was given. */
static void choose_key(mha_trace *x)
{
    if (x->key >= 0) return;
    x->key = 0;
    for (int64_t s = 1; s < x->tokens; s++)
        if (x->weights[s] > x->weights[x->key]) x->key = s;
}

static mha_status trace_pair(tracing *g, const mha_layer_view *view)
{
    mha_trace *x = g->trace;
    const int64_t D = x->head_dim, T = x->tokens;
    MHA_TRY(copy(&x->memory, head_row(&view->q, x->head, x->row), D, &x->query));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, T * D, &x->keys));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, T * D, &x->values));
    for (int64_t s = 0; s < T; s++) {
        memcpy(x->keys + s * D, head_row(&view->k, x->kv_head, s), (size_t)D * sizeof(float));
        memcpy(x->values + s * D, head_row(&view->v, x->kv_head, s), (size_t)D * sizeof(float));
    }
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, D, &x->products));
    for (int64_t i = 0; i < D; i++) {
        x->products[i] = (double)x->query[i] * (double)x->keys[x->key * D + i];
        if (fabs(x->products[i]) > fabs(x->products[x->channel])) x->channel = i;
    }
    return MHA_OK;
}

static mha_status trace_head(tracing *g, const mha_layer_view *view)
{
    mha_trace *x = g->trace;
    x->heads = view->q.shape[1];
    x->head_dim = view->q.shape[3];
    x->kv_head = x->head / (x->heads / view->k.shape[1]);
    MHA_TRY(trace_scores(g, view));
    choose_key(x);
    MHA_TRY(trace_pair(g, view));
    MHA_TRY(trace_projections(g, view));
    MHA_TRY(copy(&x->memory, head_row(&view->heads, x->head, x->row), x->head_dim, &x->output));
    return copy_row(g, &view->concatenated, x->row, &x->concatenated);
}

/* ---- the trace ------------------------------------------------------------------------------- */

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    tracing *g = user;
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    if (layer == g->trace->layer) MHA_TRY(trace_head(g, &view));
    MHA_TRY(trace_layer(g, layer, activations, &view));
    mha_room_release(&g->scratch, 0);
    return MHA_OK;
}

/* The steps of a trace are those of softmax attention without gates. */
static mha_status check_mixers(const mha_transformer_desc *d)
{
    int64_t layer = 0;
    const char *phrase = mha_transformer_phrase(d, mha_layer_difference, &layer);
    return phrase ? mha_fail(MHA_ERR_UNSUPPORTED, "mha_trials_trace: layer %" PRId64 " %s", layer,
                             phrase)
                  : MHA_OK;
}

static mha_status check(const tracing *g)
{
    const mha_transformer_desc *d = &g->trials->desc;
    const mha_trace *x = g->trace;
    MHA_TRY(check_mixers(d));
    if (x->row >= x->tokens || x->key >= x->tokens)
        return mha_fail(MHA_ERR_MODEL,
                        "trace: row %" PRId64 ", key %" PRId64 "; the text has %" PRId64 " tokens",
                        x->row, x->key, x->tokens);
    if (x->layer < 0) return MHA_OK;
    if (x->layer < d->num_layers && x->head >= 0 && x->head < mha_transformer_heads(d, x->layer))
        return MHA_OK;
    return mha_fail(MHA_ERR_MODEL, "the model has no head L%" PRId64 "H%" PRId64, x->layer,
                    x->head);
}

static mha_status trace_all(tracing *g, const mha_trial *given)
{
    mha_trace *x = g->trace;
    MHA_TRY(check(g));
    MHA_TRY(mha_trials_run(g->trials, given, -1, NULL, NULL, NULL));
    MHA_TRY(MHA_ROOM_ALLOC(&x->memory, x->layer_count, &x->layers));
    MHA_TRY(trace_embedding(g));
    MHA_TRY(mhai_trial_watch(g->trials, g->run, after_layer, g));
    return copy(&x->memory, g->trials->now.hidden + x->row * x->width, x->width, &x->last);
}

mha_status mha_trials_trace(mha_trials *trials, const mha_trial *given,
                            const mha_trace_options *options, mha_trace *trace)
{
    mha_trial run;
    mha_trace_options o;
    MHA_NEED("mha_trials_trace", options, trace);
    MHA_TRY(mha_struct_check_size("mha_trace", trace->struct_size, sizeof *trace));
    *trace = (mha_trace){.struct_size = trace->struct_size, .layer = -1, .key = -1};
    MHA_TRY(mha_struct_read("mha_trace_options", &o, sizeof o, sizeof o, options,
                            options->struct_size));
    MHA_TRY(mhai_trial_read(trials, given, &run));
    tracing g = {.trials = trials, .run = &run, .trace = trace};
    *trace = (mha_trace){.struct_size = trace->struct_size,
                         .row = o.row < 0 ? run.count - 1 : o.row,
                         .key = o.head.layer < 0 || o.key < 0 ? -1 : o.key,
                         .tokens = run.count,
                         .width = trials->desc.embed_dim,
                         .layer_count = trials->desc.num_layers,
                         .layer = o.head.layer < 0 ? -1 : o.head.layer,
                         .head = o.head.head};
    const mha_status status = trace_all(&g, given);
    mha_room_release(&g.scratch, 0);
    if (status != MHA_OK) mha_trace_free(trace);
    return status;
}

void mha_trace_free(mha_trace *trace)
{
    if (!trace) return;
    mha_room_release(&trace->memory, 0);
    *trace = (mha_trace){.struct_size = trace->struct_size, .layer = -1, .key = -1};
}
