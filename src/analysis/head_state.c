/* Serialisation of a head measurement: the public functions, the description,
 * and mha_head_measures. */
#include "analysis/head_state.h"

#include "base/checked.h"

#include <string.h>

#define MAGIC UINT64_C(0x534441454841484D) /* "MHAHEADS" */
enum { VERSION = 1, HEAD_WORDS = 3 };

static const uint64_t FIRST_CHECK = UINT64_C(0xCBF29CE484222325);

/* ---- mha_head_measures ----------------------------------------------------------------------- */

/* Details may refer only to the first `texts` texts, which have been added. */
static void put_details(mhai_state_io *io, mhai_head_kept *kept, int64_t texts)
{
    mha_head_details *d = &kept->details;
    io->what = "a text of details";
    mhai_state_number(io, &d->column_text, -1, texts - 1);
    mhai_state_number(io, &d->columns, 0, 3);
    mhai_state_numbers(io, d->column, 3, 0, MHAI_COUNT_MOST);
    mhai_state_number(io, &d->cut_text, -1, texts - 1);
    mhai_state_number(io, &d->cut, 0, MHAI_COUNT_MOST);
    mhai_state_real(io, &kept->best_column);
    mhai_state_real(io, &kept->best_cut);
}

static void put_links(mhai_state_io *io, mhai_head_link_sum *link, mhai_exact **exact)
{
    io->what = "a relation";
    mhai_state_number(io, &link->links, 0, MHAI_COUNT_MOST);
    mhai_state_number(io, &link->hits, 0, link->links);
    double *const rounded[] = {&link->mass, &link->chance, &link->share};
    for (int i = 0; i < 3; i++) {
        mhai_state_sum(io, *exact, link->links, MHA_KIND_SHARE);
        if (io->from) *rounded[i] = mhai_exact_value(*exact);
        ++*exact;
    }
}

/* Exact sums are in the order of join() in head_measures.c. Reading recomputes the doubles from the
 * exact sums. */
static void put_head(mhai_state_io *io, const mha_head_measures *m, int64_t h, int64_t texts)
{
    mhai_head_kept *kept = &m->kept[h];
    mhai_exact *exact = m->exact + h * mhai_head_measures_exacts(m);
    for (int n = 0; n < MHA_MEASURES; n++, exact += 2) {
        mhai_head_sum *sum = &kept->sum[n];
        const mha_measure_kind kind = mha_measure_describe((mha_head_measure)n).kind;
        io->what = "a score";
        mhai_state_number(io, &sum->rows, 0, MHAI_COUNT_MOST);
        mhai_state_sum(io, exact, sum->rows, kind);
        mhai_state_sum(io, exact + 1, sum->rows, kind);
        if (!io->from) continue;
        sum->value = mhai_exact_value(exact);
        sum->chance = mhai_exact_value(exact + 1);
    }
    for (int64_t n = 0; n <= 2 * m->offsets; n++, exact += 2) {
        mhai_head_at *at = &kept->at[n];
        io->what = "an offset";
        mhai_state_number(io, &at->rows, 0, MHAI_COUNT_MOST);
        mhai_state_number(io, &at->largest, 0, at->rows);
        mhai_state_sum(io, exact, at->rows, MHA_KIND_SHARE);
        mhai_state_sum(io, exact + 1, at->rows, MHA_KIND_SHARE);
        if (!io->from) continue;
        at->mass = mhai_exact_value(exact);
        at->chance = mhai_exact_value(exact + 1);
    }
    for (int64_t n = 0; n < 2 * m->relations; n++) put_links(io, &kept->links[n], &exact);
    put_details(io, kept, texts);
}

static void put_measures(mhai_state_io *io, const mha_head_measures *m, int64_t *texts)
{
    const int64_t links = m->layers * 2 * m->relations, offsets = 2 * MHAI_HEAD_FAR_LINK + 1;
    io->what = "the number of texts";
    mhai_state_number(io, texts, 0, MHAI_COUNT_MOST);
    for (int64_t h = 0; h < m->first_head[m->layers]; h++) put_head(io, m, h, *texts);
    io->what = "a count of links";
    mhai_state_numbers(io, m->link_count, links, 0, MHAI_COUNT_MOST);
    mhai_state_numbers(io, m->link_offsets, links * offsets, 0, MHAI_COUNT_MOST);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_fixed(mhai_state_io *io, int64_t x)
{
    mhai_state_number(io, &x, 0, 0);
}

static void put_name(mhai_state_io *io, const char *name)
{
    const size_t bytes = strlen(name);
    put_fixed(io, (int64_t)bytes);
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < bytes; i++)
            word |= (uint64_t)(unsigned char)name[at + i] << 8 * i;
        mhai_state_word(io, &word);
    }
}

static void put_desc(mhai_state_io *io, const mha_head_measures *m)
{
    put_fixed(io, MHA_MEASURES);
    put_fixed(io, m->layers);
    put_fixed(io, m->offsets);
    put_fixed(io, m->near_tokens);
    put_fixed(io, m->rare_rank);
    put_fixed(io, m->relations);
    put_fixed(io, m->corpus != NULL);
    for (int64_t l = 0; l < m->layers; l++) put_fixed(io, m->first_head[l + 1] - m->first_head[l]);
    for (int64_t r = 0; r < m->relations; r++) put_name(io, m->names[r]);
}

static void put_all(mhai_state_io *io, const mha_head_measures *m, int64_t bytes)
{
    uint64_t head[HEAD_WORDS] = {MAGIC, VERSION, (uint64_t)bytes};
    int64_t texts = m->texts;
    for (int i = 0; i < HEAD_WORDS; i++) mhai_state_word(io, &head[i]);
    put_desc(io, m);
    put_measures(io, m, &texts);
    const mha_head_corpus *c = m->corpus;
    if (c) {
        mha_head_corpus_desc d = {.vocab_size = c->vocab,
                                  .places = c->places,
                                  .replicates = c->replicates,
                                  .permutations = c->permutations,
                                  .seed = c->seed};
        mhai_state_corpus_desc(io, &d);
        mhai_state_corpus(io, m->corpus);
    }
    uint64_t check = io->check;
    mhai_state_word(io, &check);
}

int64_t mha_head_state_bytes(const mha_head_measures *m)
{
    mhai_state_io io = {.check = FIRST_CHECK};
    if (!m) return 0;
    put_all(&io, m, 0);
    return io.at * 8;
}

mha_status mha_head_state_write(const mha_head_measures *m, const mha_sink *sink)
{
    mhai_state_io io = {.sink = sink, .check = FIRST_CHECK};
    MHA_NEED_AS("mha_head_state_write", "measures, sink", m, sink && sink->write);
    if (m->open)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_state_write: a text is open; end it first");
    put_all(&io, m, mha_head_state_bytes(m));
    mhai_state_flush(&io);
    return io.status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The words before the sums. */
typedef struct described {
    mha_head_measures_desc desc;
    int64_t scores, corpus, heads;
    int64_t *each; /* [layers] */
    char **names;  /* [relations] */
} described;

/* Check magic, version, length and checksum. */
static mha_status check_bytes(mhai_state_io *io, const uint8_t *bytes, size_t size, size_t *used)
{
    uint64_t head[HEAD_WORDS], check = FIRST_CHECK, word;
    if (size < sizeof head) /* bytes may be NULL, which would make io write */
        return mha_fail(MHA_ERR_FORMAT, "state of heads: too short to be one");
    *io = (mhai_state_io){.from = bytes, .count = (int64_t)(size / 8), .what = "the head"};
    for (int i = 0; i < HEAD_WORDS; i++) mhai_state_word(io, &head[i]);
    if (head[0] != MAGIC)
        return mha_fail(MHA_ERR_FORMAT, "state of heads: does not begin with MHAHEADS");
    if (head[1] != VERSION)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "state of heads: version %llu; this library reads version %d",
                        (unsigned long long)head[1], (int)VERSION);
    if (head[2] % 8 != 0 || head[2] < 8 * (HEAD_WORDS + 1) || head[2] > size ||
        (!used && head[2] != size))
        return mha_fail(MHA_ERR_FORMAT,
                        "state of heads: has %zu bytes, expected %llu: truncated or too long", size,
                        (unsigned long long)head[2]);
    io->count = (int64_t)(head[2] / 8);
    io->at = 0;
    while (io->at < io->count - 1) {
        mhai_state_word(io, &word);
        check = mhai_state_mix(check, word);
    }
    mhai_state_word(io, &word);
    if (check != word)
        return mha_fail(MHA_ERR_FORMAT,
                        "state of heads: the checksum does not match: the data are corrupt");
    if (used) *used = (size_t)head[2];
    io->count--;
    io->at = HEAD_WORDS;
    return MHA_OK;
}

static mha_status read_name(mhai_state_io *io, mha_context *context, char **name)
{
    int64_t bytes;
    io->what = "a relation's name";
    mhai_state_number(io, &bytes, 0, 8 * (io->count - io->at));
    MHA_TRY(io->status);
    MHA_TRY(mha_scratch_zeros(context, bytes + 8, 1, name));
    for (int64_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        mhai_state_word(io, &word);
        for (int64_t i = 0; i < 8; i++) {
            (*name)[at + i] = (char)(word >> 8 * i & 0xFF);
            if ((at + i < bytes) != ((*name)[at + i] != '\0')) mhai_state_fail(io, "is no string");
        }
    }
    return io->status;
}

/* The minimum number of words of the sums; false if it exceeds int64. */
static bool least_words(const described *d, int64_t *words)
{
    const int64_t each =
        9 * MHA_MEASURES + 10 * (2 * d->desc.farthest_offset + 1) + 28 * d->desc.relations + 9;
    const int64_t links = 2 * d->desc.relations * (2 * MHAI_HEAD_FAR_LINK + 2);
    int64_t heads, layers;
    return mhai_mul_i64(each, d->heads, &heads) && mhai_mul_i64(links, d->desc.layers, &layers) &&
           mhai_add_i64(heads, layers, words);
}

/* Read the description. Sizes are compared with the length of the data
 * before memory is allocated. */
static mha_status read_desc(mhai_state_io *io, mha_context *context, described *d)
{
    void *memory;
    io->what = "the description";
    *d = (described){.desc = {.struct_size = sizeof d->desc}};
    mhai_state_number(io, &d->scores, 0, INT32_MAX);
    mhai_state_number(io, &d->desc.layers, 1, INT32_MAX);
    mhai_state_number(io, &d->desc.farthest_offset, 1, INT16_MAX);
    mhai_state_number(io, &d->desc.near_tokens, 1, INT16_MAX);
    mhai_state_number(io, &d->desc.rare_rank, -1, INT64_MAX);
    mhai_state_number(io, &d->desc.relations, 0, INT16_MAX);
    mhai_state_number(io, &d->corpus, 0, 1);
    MHA_TRY(io->status);
    if (d->scores != MHA_MEASURES)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "state of heads: has %lld scores, this library %d; measure again",
                        (long long)d->scores, (int)MHA_MEASURES);
    if (d->desc.rare_rank == 0) mhai_state_fail(io, "lacks the rank of rare tokens");
    if (d->desc.layers > io->count - io->at || d->desc.relations > io->count - io->at)
        mhai_state_fail(io, "exceeds the data");
    MHA_TRY(io->status);
    MHA_TRY(mha_scratch_alloc(context, d->desc.layers, sizeof *d->each, &memory));
    d->desc.heads = d->each = memory;
    mhai_state_numbers(io, d->each, d->desc.layers, 0, INT16_MAX);
    for (int64_t l = 0; l < d->desc.layers; l++) d->heads += d->each[l];
    MHA_TRY(mha_scratch_alloc(context, d->desc.relations, sizeof *d->names, &memory));
    d->names = memory;
    d->desc.names = memory;
    for (int64_t r = 0; r < d->desc.relations; r++) MHA_TRY(read_name(io, context, &d->names[r]));
    return io->status;
}

static mha_status too_short(mhai_state_io *io)
{
    io->what = "the description";
    mhai_state_fail(io, "exceeds the data");
    return io->status;
}

static mha_status read_corpus(mhai_state_io *io, mha_context *context, const described *d,
                              mha_head_measures *m, mha_head_corpus **corpus)
{
    mha_head_corpus_desc desc = {.struct_size = sizeof desc};
    int64_t words;
    mhai_state_corpus_desc(io, &desc);
    MHA_TRY(io->status);
    if (!mhai_state_corpus_words(&desc, d->heads, d->desc.layers, &words) ||
        words > io->count - io->at)
        return too_short(io);
    /* In a description, 0 means the default number, and -1 means none. */
    if (desc.places == 0) desc.places = -1;
    if (desc.replicates == 0) desc.replicates = -1;
    if (desc.permutations == 0) desc.permutations = -1;
    MHA_TRY(mha_head_corpus_create(context, m, &desc, corpus));
    mhai_state_corpus(io, *corpus);
    MHA_TRY(io->status);
    return mha_head_corpus_attach(m, *corpus);
}

static mha_status read_all(mhai_state_io *io, mha_context *context, mha_head_measures **m,
                           mha_head_corpus **corpus)
{
    described d;
    int64_t words;
    MHA_TRY(read_desc(io, context, &d));
    if (!least_words(&d, &words) || words > io->count - io->at) return too_short(io);
    MHA_TRY(mha_head_measures_create(context, &d.desc, m));
    put_measures(io, *m, &(*m)->texts);
    MHA_TRY(io->status);
    if (d.corpus) MHA_TRY(read_corpus(io, context, &d, *m, corpus));
    io->what = "the end";
    if (io->at != io->count) mhai_state_fail(io, "ends before the last byte");
    return io->status;
}

mha_status mha_head_state_read(mha_context *context, const void *bytes, size_t size, size_t *used,
                               mha_head_measures **measures, mha_head_corpus **corpus)
{
    mhai_state_io io;
    mha_head_measures *m = NULL;
    mha_head_corpus *c = NULL;
    size_t taken = 0;
    MHA_NEED_AS("mha_head_state_read", "context, measures, corpus, bytes", context, measures,
                corpus, bytes || size == 0);
    MHA_TRY(check_bytes(&io, bytes, size, used ? &taken : NULL));
    const mha_scratch_mark mark = mha_scratch_top(context);
    const mha_status status = read_all(&io, context, &m, &c);
    mha_scratch_release(context, mark);
    if (status != MHA_OK) {
        mha_head_corpus_destroy(c);
        mha_head_measures_destroy(m);
        return status;
    }
    if (used) *used = taken;
    *measures = m;
    *corpus = c;
    return MHA_OK;
}
