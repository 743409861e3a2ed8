/* What is measured on held-out data: is the prediction at each probe right, and where does each
 * head look from there? */
#include "train.h"

#include <math.h>

double train_accuracy_of(const train_scores *s, int kind)
{
    return s->probes[kind] ? (double)s->correct[kind] / (double)s->probes[kind] : 0;
}

double train_accuracy(const train_scores *s)
{
    int64_t probes = 0, correct = 0;
    for (int kind = 0; kind < TRAIN_KINDS; kind++) {
        probes += s->probes[kind];
        correct += s->correct[kind];
    }
    return probes ? (double)correct / (double)probes : 0;
}

double train_right(const train_scores *s, int kind, int64_t layer, int64_t head)
{
    return s->probes[kind] ? s->right[kind][layer][head] / (double)s->probes[kind] : 0;
}

double train_wrong(const train_scores *s, int kind, int64_t layer, int64_t head)
{
    return s->probes[kind] ? s->wrong[kind][layer][head] / (double)s->probes[kind] : 0;
}

double train_previous(const train_scores *s, int64_t layer, int64_t head)
{
    return s->rows ? s->previous[layer][head] / (double)s->rows : 0;
}

static int64_t largest(const float *x, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[at]) at = i;
    return at;
}

/* Row `row` of a head's map of sequence b. */
static const float *map_row(const train_model *model, const mha_transformer_desc *d, int64_t layer,
                            int64_t b, int64_t head, int64_t row)
{
    const train_batch *batch = &model->probe;
    const int64_t keys = model->encoder.net ? batch->S : batch->T;
    return model->probabilities +
           (((layer * batch->B + b) * d->num_heads + head) * batch->T + row) * keys;
}

static void score_probe(const train_model *model, const mha_transformer_desc *d,
                        const train_probe *p, train_scores *s)
{
    const train_batch *batch = &model->probe;
    const int64_t at = p->b * batch->T + p->row;
    s->probes[p->kind]++;
    s->correct[p->kind] +=
        largest(model->logits + at * d->vocab_size, d->vocab_size) == batch->targets[at];
    for (int64_t layer = 0; layer < d->num_layers; layer++)
        for (int64_t head = 0; head < d->num_heads; head++) {
            const float *row = map_row(model, d, layer, p->b, head, p->row);
            for (int i = 0; i < p->rights; i++)
                s->right[p->kind][layer][head] += (double)row[p->right[i]];
            if (p->wrong >= 0) s->wrong[p->kind][layer][head] += (double)row[p->wrong];
        }
}

static void score_previous(const train_model *model, const mha_transformer_desc *d, train_scores *s)
{
    const train_batch *batch = &model->probe;
    for (int64_t b = 0; b < batch->B; b++)
        for (int64_t row = 1; row < batch->lengths[b]; row++) {
            s->rows++;
            for (int64_t layer = 0; layer < d->num_layers; layer++)
                for (int64_t head = 0; head < d->num_heads; head++)
                    s->previous[layer][head] +=
                        (double)map_row(model, d, layer, b, head, row)[row - 1];
        }
}

cli_exit train_model_score(train_model *model, train_split split, int64_t count,
                           const mha_tensor *gates, train_scores *scores)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder.net, &d);
    *scores = (train_scores){0};
    int64_t batches = 0;
    for (int64_t done = 0; done < count; done += model->probe.B, batches++) {
        /* The same held-out data whatever the seed: scores of different runs can be compared. */
        train_random r = train_random_make((uint64_t)split, (uint64_t)done);
        int64_t left = count - done;
        model->task->draw(&r, split, left < model->probe.most ? left : model->probe.most,
                          &model->probe);
        cli_exit code = train_model_look(model, gates);
        if (code != CLI_OK) return code;
        for (int64_t i = 0; i < model->probe.probe_count; i++)
            score_probe(model, &d, &model->probe.probes[i], scores);
        if (!model->encoder.net) score_previous(model, &d, scores);
    }
    return CLI_OK;
}
