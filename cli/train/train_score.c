/* Measurements on held-out data: whether the prediction at each probe is right, and where each head
 * attends from the probe's row. */
#include "train/train.h"

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

double train_hits(const train_scores *s, int kind, int64_t layer, int64_t head)
{
    return s->probes[kind] ? (double)s->hits[kind][layer][head] / (double)s->probes[kind] : 0;
}

double train_worst_right(const train_scores *s, int64_t layer, int64_t head)
{
    double worst = 1;
    for (int kind = 0; kind < TRAIN_KINDS; kind++)
        if (s->probes[kind] && train_right(s, kind, layer, head) < worst)
            worst = train_right(s, kind, layer, head);
    return worst;
}

double train_worst_wrong(const train_scores *s, int64_t layer, int64_t head)
{
    double worst = 0;
    for (int kind = 0; kind < TRAIN_KINDS; kind++)
        if (train_wrong(s, kind, layer, head) > worst) worst = train_wrong(s, kind, layer, head);
    return worst;
}

double train_worst_accuracy(const train_scores *s)
{
    double worst = 1;
    for (int kind = 0; kind < TRAIN_KINDS; kind++)
        if (s->probes[kind] && train_accuracy_of(s, kind) < worst)
            worst = train_accuracy_of(s, kind);
    return worst;
}

double train_previous(const train_scores *s, int64_t layer, int64_t head)
{
    return s->rows ? s->previous[layer][head] / (double)s->rows : 0;
}

double train_first(const train_scores *s, int64_t layer, int64_t head)
{
    return s->rows ? s->first[layer][head] / (double)s->rows : 0;
}

static int64_t largest(const float *x, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[at]) at = i;
    return at;
}

static int64_t largest_weight(const float *row, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (fabsf(row[i]) > fabsf(row[at])) at = i;
    return at;
}

/* The divisor of the weights of a row. */
static double mass_of(const mha_transformer_desc *d, int64_t layer, const float *row, int64_t n)
{
    double sum = 0;
    if (!d->layers || !d->layers[layer].mixer) return 1;
    for (int64_t i = 0; i < n; i++) sum += fabs((double)row[i]);
    return sum > 0 ? sum : 1;
}

/* Row `row` of a head's map of sequence b. */
static const float *map_row(const train_model *model, const mha_transformer_desc *d, int64_t layer,
                            int64_t b, int64_t head, int64_t row)
{
    const train_batch *batch = &model->probe;
    const int64_t keys = model->encoder ? batch->S : batch->T;
    return model->probabilities +
           (((layer * batch->B + b) * d->num_heads + head) * batch->T + row) * keys;
}

/* Whether a prediction counts as correct. */
static bool is_right(const train_task *task, int64_t word, int32_t target)
{
    return word == target ||
           (task->class_of && task->class_of((int32_t)word) == task->class_of(target));
}

static void score_row(const train_probe *p, const float *row, int64_t keys, double mass,
                      int64_t layer, int64_t head, train_scores *s)
{
    const int64_t most = largest_weight(row, keys);
    for (int i = 0; i < p->rights; i++) {
        s->right[p->kind][layer][head] += fabs((double)row[p->right[i]]) / mass;
        s->hits[p->kind][layer][head] += p->right[i] == most;
    }
    if (p->wrong >= 0) s->wrong[p->kind][layer][head] += fabs((double)row[p->wrong]) / mass;
}

static void score_probe(const train_model *model, const mha_transformer_desc *d,
                        const train_probe *p, train_scores *s)
{
    const train_batch *batch = &model->probe;
    const int64_t at = p->b * batch->T + p->row, keys = model->encoder ? batch->S : batch->T;
    s->probes[p->kind]++;
    s->correct[p->kind] +=
        is_right(model->task, largest(model->logits + at * d->vocab_size, d->vocab_size),
                 batch->targets[at]);
    for (int64_t layer = 0; layer < d->num_layers; layer++)
        for (int64_t head = 0; head < d->num_heads; head++) {
            const float *row = map_row(model, d, layer, p->b, head, p->row);
            score_row(p, row, keys, mass_of(d, layer, row, keys), layer, head, s);
        }
}

static void score_previous(const train_model *model, const mha_transformer_desc *d, train_scores *s)
{
    const train_batch *batch = &model->probe;
    for (int64_t b = 0; b < batch->B; b++)
        for (int64_t row = 1; row < batch->lengths[b]; row++) {
            s->rows++;
            for (int64_t layer = 0; layer < d->num_layers; layer++)
                for (int64_t head = 0; head < d->num_heads; head++) {
                    const float *map = map_row(model, d, layer, b, head, row);
                    const double mass = mass_of(d, layer, map, batch->T);
                    s->previous[layer][head] += fabs((double)map[row - 1]) / mass;
                    s->first[layer][head] += fabs((double)map[0]) / mass;
                }
        }
}

/* Update the mean loss over batches. */
static void add_loss(const train_batch *batch, double loss, train_scores *s)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < batch->B * batch->T; i++) rows += batch->targets[i] >= 0;
    s->lost += rows;
    if (rows > 0) s->loss += (loss - s->loss) * (double)rows / (double)s->lost;
}

cli_exit train_model_score(train_model *model, train_split split, int64_t count,
                           const mha_tensor *gates, train_scores *scores)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    *scores = (train_scores){0};
    int64_t batches = 0;
    for (int64_t done = 0; done < count; done += model->probe.B, batches++) {
        /* The held-out data does not depend on the seed, so that scores of different runs can be
         * compared. */
        random_source r = random_make((uint64_t)split, (uint64_t)done);
        int64_t left = count - done;
        const train_ask ask = {model->task, &r, split, done,
                               left < model->probe.most ? left : model->probe.most};
        double loss;
        model->task->draw(&ask, &model->probe);
        CLI_TRY(train_model_look(model, gates, &loss));
        add_loss(&model->probe, loss, scores);
        for (int64_t i = 0; i < model->probe.probe_count; i++)
            score_probe(model, &d, &model->probe.probes[i], scores);
        if (!model->encoder) score_previous(model, &d, scores);
    }
    return CLI_OK;
}

double train_best_right(const train_recipe *recipe, const train_scores *s)
{
    double best = 0;
    for (int64_t l = 0; l < recipe->model.num_layers; l++)
        for (int64_t h = 0; h < recipe->model.num_heads; h++)
            if (train_worst_right(s, l, h) > best) best = train_worst_right(s, l, h);
    return best;
}
