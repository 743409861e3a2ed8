/* mha_head_corpus: the functions that return results. */
#include "analysis/head_corpus.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

/* The index of a head among all heads, or -1. */
static int64_t find(const mha_head_corpus *c, int64_t layer, int64_t head)
{
    if (!c || layer < 0 || layer >= c->layers || head < 0) return -1;
    const int64_t h = c->first_head[layer] + head;
    return h < c->first_head[layer + 1] ? h : -1;
}

static bool is_measure(mha_head_measure which)
{
    return (int)which >= 0 && which < MHA_MEASURES;
}

/* ---- distributions --------------------------------------------------------------------------- */

/* The lower edge of a bin. */
static double edge_of(mha_head_measure which, int bin)
{
    switch (mha_measure_describe(which).kind) {
    case MHA_KIND_NATS: return bin / 16.0;
    case MHA_KIND_CORRELATION: return bin / 128.0 - 1;
    case MHA_KIND_TOKENS:
        return bin == 0 ? 0 : ldexp(1 + (bin - 1) % 16 / 16.0, (bin - 1) / 16) / 16;
    default: return (double)bin / MHA_HEAD_CORPUS_BINS;
    }
}

/* Estimate the value at a rank from the bins. Values are assumed to be
 * evenly spaced within a bin. */
static double row_of_rank(const mhai_corpus_score *s, mha_head_measure which, double rank)
{
    int64_t before = 0;
    int bin = 0;
    while (bin < MHA_HEAD_CORPUS_BINS - 1 && (double)(before + s->bin[bin]) <= rank)
        before += s->bin[bin++];
    const double part = s->bin[bin] > 0 ? (rank - (double)before + 0.5) / (double)s->bin[bin] : 0;
    const double low = edge_of(which, bin), high = edge_of(which, bin + 1);
    const double value = low + (high - low) * (part < 1 ? part : 1);
    return value < s->smallest ? s->smallest : value > s->largest ? s->largest : value;
}

static void deciles(const mhai_corpus_score *s, mha_head_measure which, mha_head_distribution *d)
{
    d->rows = s->binned;
    if (d->rows == 0) return;
    for (int i = 1; i < 10; i++)
        d->deciles[i] = row_of_rank(s, which, (double)(d->rows - 1) * i / 10);
    d->deciles[0] = s->smallest;
    d->deciles[10] = s->largest;
}

/* The q-quantile of `numbers`, which are sorted in place. */
static double quantile(double *numbers, int64_t count, double q)
{
    for (int64_t i = 1; i < count; i++) { /* insertion sort: on the second call the
                                           * numbers are nearly sorted */
        const double moved = numbers[i];
        int64_t at = i;
        for (; at > 0 && numbers[at - 1] > moved; at--) numbers[at] = numbers[at - 1];
        numbers[at] = moved;
    }
    const int64_t rank = (int64_t)ceil(q * (double)count) - 1;
    return numbers[rank < 0 ? 0 : rank];
}

static double mean_of(const mhai_corpus_sum *sum, mha_head_measure which)
{
    return (double)sum->value / mhai_corpus_unit(which) / (double)sum->rows;
}

static void interval(const mha_head_corpus *c, int64_t h, mha_head_measure which,
                     mha_head_distribution *d)
{
    double few[MHA_HEAD_CORPUS_MOST_REPLICATES];
    int64_t count = 0;
    for (int64_t r = 0; r < c->replicates; r++) {
        const mhai_corpus_sum *sum = c->replicate + (r * c->heads + h) * MHA_MEASURES + which;
        if (sum->rows > 0) few[count++] = mean_of(sum, which);
    }
    d->low = d->high = d->mean;
    if (count == 0) return;
    d->low = quantile(few, count, 0.025);
    d->high = quantile(few, count, 0.975);
}

mha_head_distribution mha_head_corpus_distribution(const mha_head_corpus *c, int64_t layer,
                                                   int64_t head, mha_head_measure which)
{
    mha_head_distribution d = {0};
    const int64_t h = find(c, layer, head);
    if (h < 0 || !is_measure(which)) return d;
    const mhai_corpus_score *s = &c->head[h].score[which];
    d.texts = s->texts;
    if (s->rows > 0) d.mean = mhai_exact_value(&s->value) / (double)s->rows;
    interval(c, h, which, &d);
    deciles(s, which, &d);
    return d;
}

double mha_head_corpus_luck(const mha_head_corpus *c, mha_head_measure which)
{
    double best[MHA_HEAD_CORPUS_MOST_REPLICATES];
    int64_t count = 0;
    if (!c || !is_measure(which)) return 0;
    for (int64_t r = 0; r < c->permutations; r++) {
        bool any = false;
        for (int64_t h = 0; h < c->heads; h++) {
            const mhai_corpus_sum *sum = c->permutation + (r * c->heads + h) * MHA_MEASURES + which;
            if (sum->rows == 0) continue;
            const double mean = mean_of(sum, which);
            if (!any || mean > best[count]) best[count] = mean;
            any = true;
        }
        count += any;
    }
    return count > 0 ? quantile(best, count, 0.95) : 0;
}

/* ---- places and tokens ----------------------------------------------------------------------- */

int64_t mha_head_corpus_places(const mha_head_corpus *c, int64_t layer, int64_t head,
                               mha_head_measure which, bool least, mha_head_place *places,
                               int64_t most)
{
    const int64_t h = find(c, layer, head);
    if (h < 0 || !is_measure(which)) return 0;
    const int64_t held = c->head[h].score[which].held[least];
    const mha_head_place *list = c->place + ((h * MHA_MEASURES + which) * 2 + least) * c->places;
    for (int64_t i = 0; places && i < most && i < held; i++) places[i] = list[i];
    return held;
}

static mha_head_token token_of(const mha_head_corpus *c, int64_t layer, int64_t h,
                               mha_head_token_list list, int64_t id)
{
    const mhai_corpus_head *head = &c->head[h];
    const int64_t at = layer * c->vocab + id;
    mha_head_token t = {.token = id};
    if (list == MHA_HEAD_READS) {
        t.mass = (double)c->read[h * c->vocab + id] / MHAI_CORPUS_MASS;
        t.expected = (double)c->expected[at] / MHAI_CORPUS_MASS;
        t.count = c->key_count[at];
    } else {
        t.mass = (double)c->written[h * c->vocab + id] / MHAI_CORPUS_NATS;
        t.count = c->row_count[at];
        if (head->written_rows > 0)
            t.expected = (double)head->written / MHAI_CORPUS_NATS / (double)head->written_rows *
                         (double)t.count;
    }
    t.mean = t.count > 0 ? t.mass / (double)t.count : 0;
    return t;
}

static bool token_first(const mha_head_token *a, const mha_head_token *b, mha_head_token_list list)
{
    const double x = list == MHA_HEAD_READS ? a->mass : a->mean;
    const double y = list == MHA_HEAD_READS ? b->mass : b->mean;
    return x != y ? x > y : a->token < b->token;
}

int64_t mha_head_corpus_tokens(const mha_head_corpus *c, int64_t layer, int64_t head,
                               mha_head_token_list list, int64_t least_count,
                               mha_head_token *tokens, int64_t most)
{
    const int64_t h = find(c, layer, head);
    int64_t held = 0;
    if (h < 0 || !tokens || most < 1 || (list != MHA_HEAD_READS && list != MHA_HEAD_WRITES))
        return 0;
    if (list == MHA_HEAD_WRITES && c->head[h].written_rows == 0) return 0;
    for (int64_t id = 0; id < c->vocab; id++) {
        const mha_head_token t = token_of(c, layer, h, list, id);
        if (t.count < 1 || t.count < least_count) continue;
        int64_t at = held < most ? held++ : most;
        if (at == most && !token_first(&t, &tokens[--at], list)) continue;
        for (; at > 0 && token_first(&t, &tokens[at - 1], list); at--) tokens[at] = tokens[at - 1];
        tokens[at] = t;
    }
    return held;
}

/* ---- positions, and the first token ---------------------------------------------------------- */

int64_t mha_head_corpus_positions(const mha_head_corpus *c, int64_t layer, int64_t head,
                                  mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS])
{
    const int64_t h = find(c, layer, head);
    int64_t count = 0;
    if (h < 0 || !bins) return 0;
    for (int i = 0; i < MHA_HEAD_CORPUS_POSITIONS; i++) {
        const mhai_corpus_position *at = &c->head[h].position[i];
        const int64_t first = i == 0 ? 0 : INT64_C(1) << (i - 1);
        bins[i] = (mha_head_position){
            .first = first, .last = i == 0 ? 0 : 2 * first - 1, .rows = at->rows};
        if (at->rows == 0) continue;
        bins[i].entropy = (double)at->entropy / MHAI_CORPUS_NATS / (double)at->rows;
        bins[i].distance = (double)at->distance / MHAI_CORPUS_TOKENS / (double)at->rows;
        count = i + 1;
    }
    return count;
}

mha_head_rest mha_head_corpus_rest(const mha_head_corpus *c, int64_t layer, int64_t head)
{
    mha_head_rest rest = {0};
    const int64_t h = find(c, layer, head);
    if (h < 0) return rest;
    const mhai_corpus_head *x = &c->head[h];
    rest.rows = x->rest_rows;
    rest.moved_rows = x->moved_rows;
    if (rest.rows > 0) rest.mass = (double)x->rest / MHAI_CORPUS_SHARE / (double)rest.rows;
    if (rest.moved_rows > 0)
        rest.moved = (double)x->moved / MHAI_CORPUS_SHARE / (double)rest.moved_rows;
    return rest;
}
