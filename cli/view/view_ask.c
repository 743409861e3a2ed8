/* Which heads look from one word at another: by weight, by the length of what arrives, and by what
 * changes when a head is removed. The text runs once for the first two, and once more without each
 * head for the third. Only the rows in question are computed: O(H T) memory. */
#include "view/view_ask.h"

#include "common/arena.h"
#include "common/screen.h"
#include "common/text_model.h"

#include <multihead/attribution.h>
#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model at work on a question. */
typedef struct ask_run {
    const view_options *options;
    text_model model;
    text_tokens tokens;
    maps_picks picks;
    view_ask *ask;
    mha_activations *kept;
    int64_t T, width;      /* of an output row */
    int64_t predicted;     /* the token that the last row of `from` predicts */
    float *output, *whole; /* [T,width] of a run; rows of `from` with all heads */
    float *gates;          /* [L,H] */
    float *rows, *heads;   /* [H, rows, T] weights; [H D] of one query */
} ask_run;

/* ---- Runs ------------------------------------------------------------------------------------ */

static mha_status forward(ask_run *run)
{
    const mha_transformer_desc *d = &run->model.desc;
    const mha_tensor ids =
        mha_tensor_contiguous(run->tokens.ids, MHA_I32, 2, (const int64_t[]){1, run->T});
    const mha_tensor output =
        mha_tensor_contiguous(run->output, MHA_F32, 3, (const int64_t[]){1, run->T, run->width});
    const mha_tensor gates = mha_tensor_contiguous(run->gates, MHA_F32, 2,
                                                   (const int64_t[]){d->num_layers, d->num_heads});
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &ids, .gates = &gates};
    return mha_transformer_forward(run->model.context, run->model.net, &input, run->kept, &output,
                                   NULL, NULL);
}

static float *row_of(const ask_run *run, int64_t row)
{
    return run->output + (run->ask->from.first + row) * run->width;
}

/* log softmax of a row at one token. */
static double log_probability(const float *row, int64_t count, int64_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, (double)row[i]);
    for (int64_t i = 0; i < count; i++) sum += mha_exp((double)row[i] - most);
    return (double)row[token] - most - mha_log(sum);
}

static double cosine(const float *a, const float *b, int64_t count)
{
    double dot = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < count; i++) {
        dot += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return dot / sqrt(aa * bb);
}

static int64_t argmax(const float *row, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* ---- Weights and shares ---------------------------------------------------------------------- */

/* The weights of all heads of a layer in row number r of `from`. */
static mha_status weigh_row(ask_run *run, const mha_layer_view *view, int64_t r)
{
    const int64_t rows = run->ask->from.count, H = view->q.shape[1], t = run->ask->from.first + r;
    mha_attention_desc desc = {.struct_size = sizeof desc};
    mha_tensor q = view->q, o, p;
    q.data = (float *)q.data + t * q.stride[2];
    q.shape[2] = 1;
    o = mha_tensor_contiguous(run->heads, MHA_F32, 4, (const int64_t[]){1, H, 1, view->v.shape[3]});
    p = mha_tensor_contiguous(run->rows + r * run->T, MHA_F32, 4,
                              (const int64_t[]){1, H, 1, run->T});
    p.stride[1] = rows * run->T;
    if (run->model.causal) {
        desc.flags = MHA_ATTENTION_CAUSAL;
        desc.q_offset = t;
    }
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &p};
    return mha_attention_forward(run->model.context, &desc, &q, &view->k, &view->v, &o, &outputs);
}

/* Mean over the rows of `from` of the sum over the columns of `to`; as a part of each row if so. */
static double mass(const ask_run *run, int64_t head, bool part)
{
    const ask_word *from = &run->ask->from, *to = &run->ask->to;
    double mean = 0;
    for (int64_t r = 0; r < from->count; r++) {
        const float *row = run->rows + (head * from->count + r) * run->T;
        double sum = 0, all = 0;
        for (int64_t s = 0; s < run->T; s++) all += (double)row[s];
        for (int64_t s = to->first; s < to->first + to->count; s++) sum += (double)row[s];
        mean += (!part ? sum : all > 0 ? sum / all : 0) / (double)from->count;
    }
    return mean;
}

static ask_head *head_of(const view_ask *ask, int64_t layer, int64_t head)
{
    for (int64_t i = 0; i < ask->count; i++)
        if (ask->heads[i].layer == layer && ask->heads[i].head == head) return &ask->heads[i];
    return NULL;
}

static mha_status measure_layer(ask_run *run, int64_t layer)
{
    view_ask *ask = run->ask;
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(mha_activations_layer(run->kept, layer, MHA_PART_SELF_ATTENTION, &view));
    const int64_t H = view.q.shape[1];
    for (int64_t h = 0; h < H; h++)
        if (run->picks.on[layer * run->picks.heads + h])
            ask->heads[ask->count++] = (ask_head){.layer = layer, .head = h};
    if (H == 0 || maps_picks_in_layer(&run->picks, layer) == 0) return MHA_OK;
    for (int64_t r = 0; r < ask->from.count; r++) MHA_TRY(weigh_row(run, &view, r));
    for (int64_t h = 0; h < H; h++) {
        ask_head *head = head_of(ask, layer, h);
        if (head) head->value[ASK_WEIGHT] = mass(run, h, false);
    }
    const mha_tensor p = mha_tensor_contiguous(run->rows, MHA_F32, 4,
                                               (const int64_t[]){1, H, ask->from.count, run->T});
    const mha_norm_maps maps = {.struct_size = sizeof maps, .heads = &p};
    MHA_TRY(mha_layer_norm_maps(run->model.context, run->model.net, run->kept, layer,
                                MHA_PART_SELF_ATTENTION, NULL, &p, &maps));
    for (int64_t h = 0; h < H; h++) {
        ask_head *head = head_of(ask, layer, h);
        if (head) head->value[ASK_SHARE] = mass(run, h, true);
    }
    return MHA_OK;
}

/* ---- Effects --------------------------------------------------------------------------------- */

/* How much less likely the last row of `from` makes what it predicted; without an output, how far
 * the rows turned. */
static double change(const ask_run *run)
{
    const int64_t rows = run->ask->from.count;
    double sum = 0;
    if (run->ask->predicts)
        return mha_log(run->ask->probability) -
               log_probability(row_of(run, rows - 1), run->width, run->predicted);
    for (int64_t r = 0; r < rows; r++)
        sum += 1 - cosine(run->whole + r * run->width, row_of(run, r), run->width);
    return sum / (double)rows;
}

static mha_status measure_effects(ask_run *run)
{
    view_ask *ask = run->ask;
    const bool shown = screen_shows_progress(run->options->quiet);
    mha_status status = MHA_OK;
    for (int64_t i = 0; i < ask->count && status == MHA_OK; i++) {
        float *gate =
            run->gates + ask->heads[i].layer * run->model.desc.num_heads + ask->heads[i].head;
        if (shown)
            cli_print_to(stderr, "\r\033[Kwithout head %" PRId64 " of %" PRId64, i + 1, ask->count);
        *gate = 0;
        status = forward(run);
        *gate = 1;
        ask->heads[i].value[ASK_EFFECT] = change(run);
    }
    if (shown) cli_print_to(stderr, "\r\033[K");
    return status;
}

static void note_prediction(ask_run *run)
{
    view_ask *ask = run->ask;
    const float *last = run->whole + (ask->from.count - 1) * run->width;
    ask->predicts = !(run->model.desc.flags & MHA_TRANSFORMER_NO_OUTPUT);
    if (!ask->predicts) return;
    run->predicted = argmax(last, run->width);
    ask->probability = mha_exp(log_probability(last, run->width, run->predicted));
}

static mha_status measure(ask_run *run)
{
    const ask_word *from = &run->ask->from;
    MHA_TRY(forward(run));
    memcpy(run->whole, row_of(run, 0), (size_t)(from->count * run->width) * sizeof(float));
    note_prediction(run);
    for (int64_t l = 0; l < run->model.layers; l++) MHA_TRY(measure_layer(run, l));
    return measure_effects(run);
}

/* ---- The question ---------------------------------------------------------------------------- */

static cli_exit find_words(ask_run *run)
{
    view_ask *ask = run->ask;
    CLI_TRY(view_find_word("--from", run->options->from, &ask->source, &ask->from));
    CLI_TRY(view_find_word("--to", run->options->to, &ask->source, &ask->to));
    const int64_t from_end = ask->from.first + ask->from.count;
    if (run->model.causal && ask->to.first >= from_end)
        return cli_fail(
            CLI_USAGE, VIEW,
            "--to %s comes after --from %s, and this model attends only to earlier tokens: "
            "ask the other way round",
            ask->to.given, ask->from.given);
    for (int64_t t = ask->from.first; t < from_end; t++) {
        const int64_t seen = run->model.causal ? t + 1 : run->T;
        int64_t there = 0;
        for (int64_t s = ask->to.first; s < ask->to.first + ask->to.count; s++) there += s < seen;
        ask->chance += (double)there / (double)seen / (double)ask->from.count;
    }
    return CLI_OK;
}

static cli_exit take_memory(ask_run *run)
{
    const mha_transformer_desc *d = &run->model.desc;
    const int64_t heads = d->num_layers * d->num_heads, rows = run->ask->from.count;
    run->width = d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size;
    const size_t row = (size_t)run->width * sizeof(float);
    CLI_TRY(arena_alloc(VIEW, run->T, row, &run->output));
    CLI_TRY(arena_alloc(VIEW, rows, row, &run->whole));
    CLI_TRY(ARENA_ALLOC(VIEW, heads, &run->gates));
    CLI_TRY(arena_alloc(VIEW, d->num_heads * rows, (size_t)run->T * sizeof(float), &run->rows));
    CLI_TRY(ARENA_ALLOC(VIEW, d->num_heads * d->head_dim, &run->heads));
    for (int64_t i = 0; i < heads; i++) run->gates[i] = 1;
    return text_model_activations(&run->model, run->T, &run->kept);
}

/* Ranks from 1, ties by layer and head. */
static cli_exit rank(view_ask *ask)
{
    for (int by = 0; by < ASK_MEASURES; by++) {
        int64_t *order;
        CLI_TRY(view_ask_order(ask, (ask_measure)by, &order));
        for (int64_t i = 0; i < ask->count; i++) ask->heads[order[i]].rank[by] = i + 1;
    }
    return CLI_OK;
}

static cli_exit open_model(ask_run *run)
{
    CLI_TRY(text_model_open(VIEW, run->options->model, run->options->threads, &run->model));
    if (run->model.encoder)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--from and --to ask about self-attention; give the encoder alone: "
                        "%s/encoder",
                        run->options->model);
    return view_name_source(&run->model, &run->ask->source);
}

cli_exit view_ask_measure(const view_options *options, view_ask *ask)
{
    ask_run run = {.options = options, .ask = ask};
    attention_maps *source = &ask->source;
    *ask = (view_ask){0};
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    CLI_TRY(view_take_texts(options, source));
    CLI_TRY(open_model(&run));
    CLI_TRY(maps_pick(VIEW, &options->layers, &options->heads, run.model.layers, run.model.heads,
                      &run.picks));
    CLI_TRY(text_model_encode(&run.model, &limits, source->text[0], source->text_bytes[0], NULL, 0,
                              &run.tokens));
    source->rows = source->cols = run.tokens.list;
    run.T = source->rows.count;
    CLI_TRY(find_words(&run));
    CLI_TRY(ARENA_ALLOC(VIEW, run.model.layers * run.model.heads, &ask->heads));
    const size_t mark = arena_mark();
    CLI_TRY(take_memory(&run));
    CLI_TRY(cli_check(VIEW, measure(&run)));
    arena_release(mark);
    if (ask->predicts)
        CLI_TRY(text_model_token(&run.model, (int32_t)run.predicted, &ask->predicted));
    text_model_close(&run.model);
    return rank(ask);
}
