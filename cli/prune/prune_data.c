/* What a model is measured on: the lines of a text, or what a task draws, in batches of sequences
 * of like length; with the next token as the target, or for encoders the embeddings that the whole
 * model gives. */
#include "common/arena.h"
#include "common/texts.h"
#include "prune/prune.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 32 }; /* of a batch: as many rows as a product wants, and no more memory */

void prune_data_free(prune_data *d)
{
    free(d->lengths);
    free(d->ids);
    free(d->targets);
    free(d->embeddings);
    free(d->directions);
    free(d->tensors);
    free(d->inputs);
    free(d->input_list);
    free(d->target_list); /* and the two lists behind it */
    *d = (prune_data){0};
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* A sequence before it is in a batch. */
typedef struct sequence {
    int32_t *ids, *targets;
    int64_t length, place; /* place in the text: ties are settled by it */
} sequence;

typedef struct sequences {
    sequence *items;
    int64_t count, room;
} sequences;

static void free_sequences(sequences *list)
{
    for (int64_t i = 0; i < list->count; i++) free(list->items[i].ids);
    free(list->items);
    *list = (sequences){0};
}

/* length tokens with room for as many targets behind them; ids may be NULL. */
static cli_exit add(sequences *list, const int32_t *ids, int64_t length, sequence **added)
{
    if (list->count == list->room) {
        const int64_t room = list->room ? 2 * list->room : 64;
        sequence *more = realloc(list->items, (size_t)room * sizeof *more);
        if (!more) return cli_fail(CLI_NO_MEMORY, PRUNE, "out of memory: the text");
        list->items = more;
        list->room = room;
    }
    void *memory;
    cli_exit code = maps_alloc(PRUNE, 2 * length, sizeof(int32_t), &memory);
    if (code != CLI_OK) return code;
    sequence *one = &list->items[list->count];
    *one = (sequence){memory, (int32_t *)memory + length, length, list->count};
    memcpy(one->ids, ids, (size_t)length * sizeof *ids);
    for (int64_t i = 0; i < length; i++) one->targets[i] = i + 1 < length ? ids[i + 1] : -1;
    list->count++;
    *added = one;
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
    void *m[10] = {0};
    const struct {
        int64_t count;
        size_t size;
    } wanted[] = {{d->sequences, sizeof *d->lengths},
                  {tokens, sizeof *d->ids},
                  {tokens, sizeof *d->targets},
                  {d->sequences * width, sizeof(float)},
                  {d->sequences * width, sizeof(float)},
                  {4 * d->batches, sizeof *d->tensors},
                  {d->batches, sizeof *d->inputs},
                  {d->batches, sizeof *d->input_list},
                  {3 * d->batches, sizeof *d->target_list}};
    cli_exit code = CLI_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && code == CLI_OK; i++)
        code = maps_alloc(PRUNE, wanted[i].count, wanted[i].size, &m[i]);
    d->lengths = m[0], d->ids = m[1], d->targets = m[2], d->embeddings = m[3];
    d->directions = m[4], d->tensors = m[5], d->inputs = m[6], d->input_list = m[7];
    d->target_list = m[8];
    return code;
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
            d->ids[at + b * T + t] = there ? from->ids[t] : 0;
            d->targets[at + b * T + t] = there ? from->targets[t] : -1;
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
    cli_exit code = allocate(d, tokens, width);
    if (code != CLI_OK) return code;
    d->embedding_list = d->target_list + d->batches;
    d->direction_list = d->embedding_list + d->batches;
    for (int64_t i = 0; i < d->batches; i++) {
        fill(d, list, i, i * MOST_SEQUENCES, at, width);
        at += d->tensors[4 * i].shape[0] * d->tensors[4 * i].shape[1];
    }
    return CLI_OK;
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Box and Muller: any good numbers will do, the same for the same seed. */
static void draw_directions(prune_data *d, int64_t count, uint64_t seed)
{
    random_source r = random_make(seed, 0);
    for (int64_t i = 0; i < count; i++) {
        const double u = 1 - random_part(&r), turn = random_part(&r);
        d->directions[i] = (float)(sqrt(-2 * mha_log(u)) * mha_cos_turns(turn));
    }
}

/* A loss that keeps the embedding of each sequence instead. */
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
    mha_status status = mha_gated_loss(job->model.context, job->model.net, &data, NULL, &unused);
    return status == MHA_OK ? CLI_OK : cli_fail_status(PRUNE, status);
}

static cli_exit finish(prune_job *job, sequences *list, cli_exit code)
{
    if (code == CLI_OK) code = make_batches(job, list);
    if (code == CLI_OK && !job->data.predicts) code = remember(job);
    free_sequences(list);
    return code;
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
    text_tokens tokens;
    sequence *unused;
    cli_exit code = text_model_encode(&job->model, &limits, line, bytes, NULL, 0, &tokens);
    if (code == CLI_OK) {
        job->data.cut += tokens.dropped;
        if (tokens.list.count > 1 || !job->data.predicts)
            code = add(list, tokens.ids, tokens.list.count, &unused);
    }
    arena_release(mark);
    return code;
}

cli_exit prune_data_from_text(prune_job *job)
{
    char *text = NULL;
    size_t size = 0;
    sequences list = {0};
    const uint32_t flags = job->model.desc.flags;
    job->data.predicts = job->model.causal && !(flags & MHA_TRANSFORMER_NO_OUTPUT);
    cli_exit code = texts_read_file(PRUNE, job->options->text, &text, &size);
    const int64_t most = job->options->lines;
    for (size_t at = 0; at < size && code == CLI_OK && (most == 0 || list.count < most);) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t bytes = end ? (size_t)(end - text) - at : size - at;
        if (!is_blank(text + at, bytes)) code = add_line(job, &list, text + at, bytes);
        at += bytes + 1;
    }
    if (code == CLI_OK && list.count == 0)
        code = cli_fail(CLI_BAD_INPUT, PRUNE,
                        "%s: no line with enough words to measure; give sentences, one a line",
                        job->options->text);
    return finish(job, &list, code);
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
    return cli_fail(CLI_USAGE, PRUNE, "--task: there is no task '%.40s'; there are %s",
                    job->options->task, names);
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
    return cli_fail(CLI_BAD_INPUT, PRUNE,
                    "%s: does not know the words of the task '%s'; give the model of 'multihead "
                    "train %s -o', or a text with --text",
                    m->folder, task->name, task->name);
}

/* The rows that the task asks about have targets, the others none. */
static cli_exit take_drawn(const train_batch *batch, sequences *list)
{
    cli_exit code = CLI_OK;
    for (int64_t b = 0; b < batch->B && code == CLI_OK; b++) {
        sequence *one;
        code = add(list, batch->tokens + b * batch->T, batch->lengths[b], &one);
        for (int64_t i = 0; code == CLI_OK && i < one->length; i++) one->targets[i] = -1;
        for (int64_t p = 0; code == CLI_OK && p < batch->probe_count; p++) {
            const train_probe *probe = &batch->probes[p];
            if (probe->b == b && probe->row < one->length)
                one->targets[probe->row] = batch->targets[b * batch->T + probe->row];
        }
    }
    return code;
}

cli_exit prune_data_from_task(prune_job *job)
{
    enum { DRAWN = 60 }; /* at once: exhaustive tasks are drawn whole */
    const train_task *task = NULL;
    const int64_t most = job->options->lines ? job->options->lines : 300;
    train_batch batch;
    sequences list = {0};
    cli_exit code = find_task(job, &task);
    if (code == CLI_OK) code = check_task(job, task);
    if (code != CLI_OK) return code;
    job->data.predicts = true;
    job->data.class_of = task->class_of;
    code = train_batch_make(DRAWN, task->longest, task->probes, &batch);
    for (int64_t done = 0; done < most && code == CLI_OK; done += batch.B) {
        random_source r = random_make((uint64_t)TRAIN_SPLIT_REPORT, (uint64_t)done);
        const train_ask ask = {.task = task,
                               .random = &r,
                               .split = TRAIN_SPLIT_REPORT,
                               .first = done,
                               .count = most - done < DRAWN ? most - done : DRAWN};
        task->draw(&ask, &batch);
        code = take_drawn(&batch, &list);
    }
    train_batch_free(&batch);
    return finish(job, &list, code);
}
