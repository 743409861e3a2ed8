/* See train_print.h. The links are the probes that score training. */
#include "train/train_print.h"

#include <inttypes.h>
#include <stdio.h>

/* The range of the printed words, between the begin token, which tokenizers may add, and the end
 * token. */
static void find_words(const train_task *task, const train_batch *batch, int64_t b, int64_t *from,
                       int64_t *to)
{
    const int32_t *row = batch->tokens + b * batch->T;
    *from = task->begin >= 0 && row[0] == task->begin;
    *to = *from;
    while (*to < batch->lengths[b] && row[*to] != task->end) ++*to;
}

/* The first probe of a row, or NULL. */
static const train_probe *probe_of(const train_batch *batch, int64_t b, int64_t row)
{
    for (int64_t i = 0; i < batch->probe_count; i++)
        if (batch->probes[i].b == b && batch->probes[i].row == row) return &batch->probes[i];
    return NULL;
}

static void print_sequence(const train_task *task, const train_batch *batch, int64_t b,
                           int64_t number)
{
    int64_t from, to;
    find_words(task, batch, b, &from, &to);
    cli_print("# sent_id = %s-%" PRId64 "\n# text =", task->name, number);
    for (int64_t i = from; i < to; i++)
        cli_print(" %s", task->words[batch->tokens[b * batch->T + i]]);
    cli_print("\n");
    for (int64_t i = from; i < to; i++) {
        const train_probe *probe = probe_of(batch, b, i);
        cli_print("%" PRId64 "\t%s\t_\t_\t_\t_\t", i - from + 1,
                  task->words[batch->tokens[b * batch->T + i]]);
        if (probe && probe->rights > 0 && probe->right[0] >= from && probe->right[0] < to)
            cli_print("%" PRId64 "\tanswer\t_\t_\n", probe->right[0] - from + 1);
        else
            cli_print("_\t_\t_\t_\n");
    }
    cli_print("\n");
}

cli_exit train_print(const train_task *task, int64_t count)
{
    enum { AT_ONCE = 64 };
    train_batch batch;
    random_source r = random_make(TRAIN_SPLIT_REPORT, 3);
    if (task->recipe->encoder.num_layers > 0)
        return cli_fail(CLI_UNSUPPORTED,
                        "--print: a sequence of '%s' is two texts, which CoNLL-U cannot link",
                        task->name);
    CLI_TRY(train_batch_make(AT_ONCE, task->longest, task->probes, &batch));
    for (int64_t done = 0; done < count; done += batch.B) {
        const train_ask ask = {.task = task,
                               .random = &r,
                               .split = TRAIN_SPLIT_REPORT,
                               .first = done,
                               .count = count - done < AT_ONCE ? count - done : AT_ONCE};
        task->draw(&ask, &batch);
        for (int64_t b = 0; b < batch.B && done + b < count;
             b++) /* small tasks draw more: all their sequences */
            print_sequence(task, &batch, b, done + b + 1);
    }
    return cli_finish_stdout(CLI_OK);
}
