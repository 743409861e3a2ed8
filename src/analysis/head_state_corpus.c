/* Serialisation of a corpus. */
#include "analysis/head_state.h"

#include "base/checked.h"

void mhai_state_corpus_desc(mhai_state_io *io, mha_head_corpus_desc *d)
{
    uint64_t seed = d->seed;
    io->what = "the description of the corpus";
    mhai_state_number(io, &d->vocab_size, 0, INT32_MAX);
    mhai_state_number(io, &d->places, 0, MHA_HEAD_CORPUS_MOST_PLACES);
    mhai_state_number(io, &d->replicates, 0, MHA_HEAD_CORPUS_MOST_REPLICATES);
    mhai_state_number(io, &d->permutations, 0, MHA_HEAD_CORPUS_MOST_REPLICATES);
    mhai_state_word(io, &seed);
    d->seed = seed;
}

bool mhai_state_corpus_words(const mha_head_corpus_desc *d, int64_t heads, int64_t layers,
                             int64_t *words)
{
    const int64_t sums = d->replicates + d->permutations;
    const int64_t score = MHAI_EXACT_PARTS + 2 + MHA_HEAD_CORPUS_BINS + 3 + 2 + 2 * sums;
    const int64_t head = MHA_MEASURES * score + 3 * MHA_HEAD_CORPUS_POSITIONS + 6;
    int64_t of_heads, of_layers;
    return mhai_mul_i64(heads, head + 2 * d->vocab_size, &of_heads) &&
           mhai_mul_i64(layers, 3 * d->vocab_size, &of_layers) &&
           mhai_add_i64(of_heads, of_layers, words);
}

/* When read, the bins must add up to the number of rows, and smallest and
 * largest must be in order. */
static void put_histogram(mhai_state_io *io, mhai_corpus_score *s)
{
    int64_t rows = 0;
    io->what = "a histogram";
    mhai_state_numbers(io, s->bin, MHA_HEAD_CORPUS_BINS, 0, MHAI_COUNT_MOST);
    mhai_state_number(io, &s->binned, 0, MHAI_COUNT_MOST);
    mhai_state_real(io, &s->smallest);
    mhai_state_real(io, &s->largest);
    if (!io->from) return;
    for (int i = 0; i < MHA_HEAD_CORPUS_BINS; i++) rows += s->bin[i];
    if (rows != s->binned) mhai_state_fail(io, "does not sum to its number of rows");
    if (s->binned > 0 ? s->smallest > s->largest : s->smallest != 0 || s->largest != 0)
        mhai_state_fail(io, "has its largest row below its smallest");
}

static void put_places(mhai_state_io *io, mha_head_place *place, int64_t *held, int64_t most,
                       int side)
{
    io->what = "a place";
    mhai_state_number(io, held, 0, most);
    for (int64_t i = 0; i < *held; i++) {
        mhai_state_number(io, &place[i].text, 0, MHAI_COUNT_MOST);
        mhai_state_number(io, &place[i].row, -1, MHAI_COUNT_MOST);
        mhai_state_number(io, &place[i].key, -1, MHAI_COUNT_MOST);
        mhai_state_real(io, &place[i].value);
        if (io->from && i > 0 && mhai_corpus_comes_first(&place[i], &place[i - 1], side))
            mhai_state_fail(io, "is not sorted");
    }
}

static void put_score(mhai_state_io *io, mha_head_corpus *c, int64_t h, int n)
{
    mhai_corpus_score *s = &c->head[h].score[n];
    io->what = "a score of the corpus";
    mhai_state_number(io, &s->rows, 0, MHAI_COUNT_MOST);
    mhai_state_number(io, &s->texts, 0, c->texts);
    mhai_state_sum(io, &s->value, s->rows, mha_measure_describe((mha_head_measure)n).kind);
    put_histogram(io, s);
    for (int side = 0; side < 2; side++)
        put_places(io, c->place + ((h * MHA_MEASURES + n) * 2 + side) * c->places, &s->held[side],
                   c->places, side);
}

static void put_sum(mhai_state_io *io, int64_t *x)
{
    mhai_state_number(io, x, -MHAI_SUM_MOST, MHAI_SUM_MOST);
}

static void put_head(mhai_state_io *io, mha_head_corpus *c, int64_t h)
{
    mhai_corpus_head *head = &c->head[h];
#define SUM(field) put_sum(io, &head->field);
#define COUNT(field) mhai_state_number(io, &head->field, 0, MHAI_COUNT_MOST);
    for (int n = 0; n < MHA_MEASURES; n++) put_score(io, c, h, n);
    io->what = "a position";
    for (int i = 0; i < MHA_HEAD_CORPUS_POSITIONS; i++) {
        MHAI_CORPUS_POSITION(SUM, COUNT, i)
    }
    io->what = "a rest";
    MHAI_CORPUS_REST(SUM, COUNT)
#undef SUM
#undef COUNT
}

static void put_pairs(mhai_state_io *io, mhai_corpus_sum *sum, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        put_sum(io, &sum[i].value);
        mhai_state_number(io, &sum[i].rows, 0, MHAI_SUM_MOST);
    }
}

void mhai_state_corpus(mhai_state_io *io, mha_head_corpus *c)
{
    io->what = "the number of texts of the corpus";
    mhai_state_number(io, &c->texts, 0, MHAI_COUNT_MOST);
    for (int64_t h = 0; h < c->heads; h++) put_head(io, c, h);
    io->what = "a replicate";
    put_pairs(io, c->replicate, c->replicates * c->heads * MHA_MEASURES);
    io->what = "a permutation";
    put_pairs(io, c->permutation, c->permutations * c->heads * MHA_MEASURES);
    io->what = "a count of tokens";
#define SUMS(name, count) mhai_state_numbers(io, c->name, count, -MHAI_SUM_MOST, MHAI_SUM_MOST);
#define COUNTS(name, count) mhai_state_numbers(io, c->name, count, 0, MHAI_COUNT_MOST);
    MHAI_CORPUS_TOKEN_SUMS(SUMS)
    MHAI_CORPUS_TOKEN_COUNTS(COUNTS)
#undef SUMS
#undef COUNTS
}
