/* The data on which a model is measured: lines of a text, or sequences of a task, in batches of
 * sequences of similar length. Targets are the next tokens, or for encoders the embeddings of the
 * whole model. */
#include "common/arena.h"
#include "common/texts.h"
#include "prune/prune.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 32 }; /* per batch: enough rows for efficient products in little memory */

/* ---- sequences ------------------------------------------------------------------------------- */

/* A sequence before it is batched. */
typedef struct sequence {
    int64_t at, length; /* at: index into the tokens of the list */
    int64_t place;      /* order in the text, to break ties */
} sequence;

typedef struct sequences {
    sequence *items;
    int32_t *ids, *targets; /* arrays of all sequences, concatenated */
    int64_t count, room, tokens, token_room;
} sequences;

/* Allocate first, so that these arrays outlive marks that are set later. */
static cli_exit begin_list(sequences *list)
{
    *list = (sequences){.room = 64, .token_room = 4096};
    CLI_TRY(ARENA_ALLOC(list->room, &list->items));
    CLI_TRY(ARENA_ALLOC(list->token_room, &list->ids));
    return ARENA_ALLOC(list->token_room, &list->targets);
}

/* Make room for one more sequence of length tokens. */
static cli_exit grow(sequences *list, int64_t length)
{
    if (list->count == list->room) {
        list->room *= 2;
        CLI_TRY(arena_grow(list->room, sizeof *list->items, &list->items));
    }
    if (length <= list->token_room - list->tokens) return CLI_OK;
    while (length > list->token_room - list->tokens) list->token_room *= 2;
    CLI_TRY(arena_grow(list->token_room, sizeof *list->ids, &list->ids));
    return arena_grow(list->token_room, sizeof *list->targets, &list->targets);
}

/* The targets are the next tokens. */
static cli_exit add(sequences *list, const int32_t *ids, int64_t length)
{
    CLI_TRY(grow(list, length));
    int32_t *targets = list->targets + list->tokens;
    memcpy(list->ids + list->tokens, ids, (size_t)length * sizeof *ids);
    for (int64_t i = 0; i < length; i++) targets[i] = i + 1 < length ? ids[i + 1] : -1;
    list->items[list->count] = (sequence){list->tokens, length, list->count};
    list->count++;
    list->tokens += length;
    return CLI_OK;
}

static int longer(const void *a, const void *b)
{
    const sequence *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? 1 : -1;
    return x->place < y->place ? -1 : 1;
}

/* ---- batches --------------------------------------------------------------------------------- */

static cli_exit allocate(prune_data *d, int64_t tokens, int64_t width)
{
    CLI_TRY(ARENA_ALLOC(d->sequences, &d->lengths));
    CLI_TRY(ARENA_ALLOC(tokens, &d->ids));
    CLI_TRY(ARENA_ALLOC(tokens, &d->targets));
    CLI_TRY(ARENA_ALLOC(d->sequences * width, &d->embeddings));
    CLI_TRY(ARENA_ALLOC(d->sequences * width, &d->directions));
    CLI_TRY(ARENA_ALLOC(4 * d->batches, &d->tensors));
    CLI_TRY(ARENA_ALLOC(d->batches, &d->inputs));
    CLI_TRY(ARENA_ALLOC(d->batches, &d->input_list));
    CLI_TRY(ARENA_ALLOC(d->batches, &d->target_list));
    CLI_TRY(ARENA_ALLOC(d->batches, &d->embedding_list));
    return ARENA_ALLOC(d->batches, &d->direction_list);
}

/* Batch i: sequences first .. first + B - 1, padded to the first one's length. */
static void fill(prune_data *d, const sequences *list, int64_t i, int64_t first, int64_t at,
                 int64_t width)
{
    const int64_t left = list->count - first, B = left < MOST_SEQUENCES ? left : MOST_SEQUENCES;
    const int64_t T = list->items[first].length, shape[] = {B, T}, wide[] = {B, width};
    mha_tensor *tensors = &d->tensors[4 * i];
    for (int64_t b = 0; b < B; b++) {
        const sequence *from = &list->items[first + b];
        d->lengths[first + b] = from->length;
        for (int64_t t = 0; t < T; t++) {
            const bool there = t < from->length;
            d->ids[at + b * T + t] = there ? list->ids[from->at + t] : 0;
            d->targets[at + b * T + t] = there ? list->targets[from->at + t] : -1;
        }
    }
    tensors[0] = mha_tensor_contiguous(d->ids + at, MHA_I32, 2, shape);
    tensors[1] = mha_tensor_contiguous(d->targets + at, MHA_I32, 2, shape);
    tensors[2] = mha_tensor_contiguous(d->embeddings + first * width, MHA_F32, 2, wide);
    tensors[3] = mha_tensor_contiguous(d->directions + first * width, MHA_F32, 2, wide);
    d->inputs[i] = (mha_transformer_input){
        .struct_size = sizeof d->inputs[i], .tokens = &tensors[0], .lengths = d->lengths + first};
    d->input_list[i] = &d->inputs[i];
    d->target_list[i] = &tensors[1];
    d->embedding_list[i] = &tensors[2];
    d->direction_list[i] = &tensors[3];
}

static cli_exit make_batches(prune_job *job, sequences *list)
{
    prune_data *d = &job->data;
    const mha_transformer_desc *desc = &job->model.desc;
    const int64_t width =
        desc->flags & MHA_TRANSFORMER_NO_OUTPUT ? desc->embed_dim : desc->vocab_size;
    int64_t tokens = 0, at = 0;
    qsort(list->items, (size_t)list->count, sizeof *list->items, longer);
    d->sequences = list->count;
    for (int64_t i = 0; i < list->count; i++) {
        const int64_t first = i / MOST_SEQUENCES * MOST_SEQUENCES;
        tokens += list->items[first].length;
        d->tokens += list->items[i].length;
    }
    d->batches = (list->count + MOST_SEQUENCES - 1) / MOST_SEQUENCES;
    CLI_TRY(allocate(d, tokens, width));
    for (int64_t i = 0; i < d->batches; i++) {
        fill(d, list, i, i * MOST_SEQUENCES, at, width);
        at += d->tensors[4 * i].shape[0] * d->tensors[4 * i].shape[1];
    }
    return CLI_OK;
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Draw normally distributed numbers by the method of Box and Muller, reproducible for a seed. */
static void draw_directions(prune_data *d, int64_t count, uint64_t seed)
{
    random_source r = random_make(seed, 0);
    for (int64_t i = 0; i < count; i++) {
        const double u = 1 - random_part(&r), turn = random_part(&r);
        d->directions[i] = (float)(sqrt(-2 * mha_log(u)) * mha_cos_turns(turn));
    }
}

/* A loss that stores the embedding of each sequence instead. */
static mha_status keep_embeddings(mha_context *context, int64_t batch,
                                  const mha_transformer_input *input, const mha_tensor *output,
                                  const mha_tensor *output_gradient, double *losses, void *user)
{
    const prune_data *d = user;
    (void)context;
    (void)output_gradient;
    for (int64_t b = 0; b < output->shape[0]; b++) losses[b] = 0;
    return mha_mean_embedding(output, input->lengths, d->embedding_list[batch]);
}

static cli_exit remember(prune_job *job)
{
    prune_data *d = &job->data;
    double unused;
    const mha_importance_data data = {.struct_size = sizeof data,
                                      .batches = d->batches,
                                      .inputs = d->input_list,
                                      .loss = keep_embeddings,
                                      .user = d};
    draw_directions(d, d->sequences * d->embedding_list[0]->shape[1], (uint64_t)job->options->seed);
    return cli_check(mha_gated_loss(job->model.context, job->model.net, &data, NULL, &unused));
}

static cli_exit finish(prune_job *job, sequences *list)
{
    CLI_TRY(make_batches(job, list));
    arena_drop(list->items), arena_drop(list->ids), arena_drop(list->targets);
    return job->data.predicts ? CLI_OK : remember(job);
}

/* ---- a text ---------------------------------------------------------------------------------- */

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r\v\f", line[i]) || !line[i]) return false;
    return true;
}

static cli_exit add_line(prune_job *job, sequences *list, const char *line, size_t bytes)
{
    const text_limits limits = {.truncate = true};
    const size_t mark = arena_mark();
    mha_tokens *tokens;
    CLI_TRY(text_model_encode(&job->model, &limits, line, bytes, NULL, 0, &tokens));
    job->data.cut += tokens->dropped[0];
    if (tokens->count > 1 || !job->data.predicts) CLI_TRY(add(list, tokens->ids, tokens->count));
    arena_release(mark);
    return CLI_OK;
}

cli_exit prune_data_from_text(prune_job *job)
{
    char *text = NULL;
    size_t size = 0;
    sequences list;
    const uint32_t flags = job->model.desc.flags;
    job->data.predicts = job->model.causal && !(flags & MHA_TRANSFORMER_NO_OUTPUT);
    CLI_TRY(texts_read_file(job->options->text, &text, &size));
    CLI_TRY(begin_list(&list));
    const int64_t most = job->options->lines;
    int64_t number = 0;
    for (size_t at = 0; at < size && (most == 0 || list.count < most);) {
        text_model_where(&job->model, job->options->text, ++number);
        const char *end = memchr(text + at, '\n', size - at);
        const size_t bytes = end ? (size_t)(end - text) - at : size - at;
        if (!is_blank(text + at, bytes)) CLI_TRY(add_line(job, &list, text + at, bytes));
        at += bytes + 1;
    }
    if (list.count == 0)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: no line with enough words to measure; give sentences, one per line",
                        job->options->text);
    return finish(job, &list);
}

/* ---- a task ---------------------------------------------------------------------------------- */

static cli_exit find_task(prune_job *job, const train_task **task)
{
    char names[256] = "";
    for (int i = 0; train_tasks[i]; i++) {
        *task = train_tasks[i];
        if (strcmp(job->options->task, (*task)->name) == 0) return CLI_OK;
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", (*task)->name);
    }
    return cli_fail(CLI_USAGE, "--task %.40s: expected one of %s", job->options->task, names);
}

static cli_exit check_task(const prune_job *job, const train_task *task)
{
    const text_model *m = &job->model;
    bool same = m->vocabulary && m->desc.vocab_size == task->word_count &&
                mha_vocabulary_count(m->vocabulary) == task->word_count &&
                m->max_length >= task->longest && !(m->desc.flags & MHA_TRANSFORMER_NO_OUTPUT);
    for (int64_t i = 0; same && i < task->word_count; i++)
        same = strcmp(mha_vocabulary_word(m->vocabulary, i), task->words[i]) == 0;
    if (same) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "%s: does not know the words of the task '%s'; give the model of 'multihead "
                    "train %s -o', or a text with --text",
                    m->folder, task->name, task->name);
}

/* Only the rows that the task scores have targets. */
static cli_exit take_drawn(const train_batch *batch, sequences *list)
{
    for (int64_t b = 0; b < batch->B; b++) {
        const int64_t length = batch->lengths[b];
        CLI_TRY(add(list, batch->tokens + b * batch->T, length));
        int32_t *targets = list->targets + list->tokens - length;
        for (int64_t i = 0; i < length; i++) targets[i] = -1;
        for (int64_t p = 0; p < batch->probe_count; p++) {
            const train_probe *probe = &batch->probes[p];
            if (probe->b == b && probe->row < length)
                targets[probe->row] = batch->targets[b * batch->T + probe->row];
        }
    }
    return CLI_OK;
}

cli_exit prune_data_from_task(prune_job *job)
{
    enum { DRAWN = 60 }; /* in one call: exhaustive tasks return all their data */
    const train_task *task = NULL;
    const int64_t most = job->options->lines ? job->options->lines : 300;
    train_batch batch;
    sequences list;
    CLI_TRY(find_task(job, &task));
    CLI_TRY(check_task(job, task));
    CLI_TRY(begin_list(&list));
    job->data.predicts = true;
    job->data.class_of = task->class_of;
    const size_t mark = arena_mark();
    CLI_TRY(train_batch_make(DRAWN, task->longest, task->probes, &batch));
    for (int64_t done = 0; done < most; done += batch.B) {
        random_source r = random_make((uint64_t)TRAIN_SPLIT_REPORT, (uint64_t)done);
        const train_ask ask = {.task = task,
                               .random = &r,
                               .split = TRAIN_SPLIT_REPORT,
                               .first = done,
                               .count = most - done < DRAWN ? most - done : DRAWN};
        task->draw(&ask, &batch);
        CLI_TRY(take_drawn(&batch, &list));
    }
    arena_release(mark);
    return finish(job, &list);
}
