/* Unigram models: of all ways to write a word as pieces, the one with the largest sum of scores
 * (Kudo 2018, arXiv:1804.10959). Sums and ties are those of Hugging Face's tokenizers: scores are
 * added from the left in double precision, and of two ways with the same sum to the same place, the
 * one whose last piece begins first wins. */
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "io/utf8.h"

#include <multihead/component.h>

#include <math.h>
#include <string.h>

/* Longest piece: every byte of a text is compared with up to as many. */
enum { MOST_PIECE = 256 };

/* ---- Pieces ---------------------------------------------------------------------------------- */

#define UNREACHED SIZE_MAX

/* The best way to the end of a piece. */
typedef struct node {
    double sum;
    size_t from; /* where its last piece begins; UNREACHED: no piece ends here */
    int32_t id;
} node;

static void offer(node *to, double sum, size_t from, int32_t id)
{
    if (to->from == UNREACHED || sum > to->sum) *to = (node){sum, from, id};
}

/* Offer the pieces at byte at, and the unknown token if none is exactly its character. */
static void offer_pieces(const mha_tokenizer *t, const char *word, size_t size, size_t at,
                         size_t next, node *nodes)
{
    const mhai_bpe *bpe = t->bpe;
    mhai_lexicon_walk walk = mhai_lexicon_walk_make(&t->first_pieces, word + at, size - at);
    bool alone = false;
    size_t matched = 0;
    for (int32_t id; (id = mhai_lexicon_walk_next(&walk, &matched)) >= 0;) {
        if (isinf(bpe->scores[id])) continue;
        offer(&nodes[at + matched], bpe->scores[id] + nodes[at].sum, at, id);
        alone |= matched == next - at;
    }
    if (!alone) offer(&nodes[next], bpe->unk_score + nodes[at].sum, at, bpe->unk);
}

/* Append the pieces of the best way, from the last to the first. Consecutive unknown characters are
 * one piece. */
static mha_status trace_back(const mhai_bpe *bpe, const node *nodes, size_t size,
                             mhai_vector *pieces)
{
    for (size_t to = size; to > 0;) {
        mhai_piece piece = {nodes[to].from, to, nodes[to].id};
        while (bpe->fuse_unk && piece.id == bpe->unk && piece.from > 0 &&
               nodes[piece.from].id == bpe->unk)
            piece.from = nodes[piece.from].from;
        MHA_TRY(mhai_vector_push(pieces, &piece));
        to = piece.from;
    }
    return MHA_OK;
}

mha_status mhai_unigram_pieces(const mha_tokenizer *t, const char *word, size_t size,
                               mhai_vector *nodes, mhai_vector *pieces)
{
    void *memory = NULL;
    nodes->count = 0;
    MHA_TRY(mhai_vector_add(nodes, size + 1, &memory));
    node *n = memory;
    for (size_t i = 0; i <= size; i++) n[i] = (node){0.0, UNREACHED, -1};
    for (size_t at = 0, next = 0; at < size; at = next) {
        (void)mhai_utf8_next(word, &next);
        offer_pieces(t, word, size, at, next, n);
    }
    const size_t first = pieces->count;
    MHA_TRY(trace_back(t->bpe, n, size, pieces));
    mhai_piece *low = (mhai_piece *)pieces->items + first;
    for (mhai_piece *high = (mhai_piece *)pieces->items + pieces->count; low + 1 < high; low++) {
        const mhai_piece last = *--high;
        *high = *low;
        *low = last;
    }
    return MHA_OK;
}

mhai_vector mhai_unigram_nodes(const mha_allocator *allocator)
{
    return mhai_vector_make(allocator, sizeof(node));
}

/* ---- Loading --------------------------------------------------------------------------------- */

mha_status mhai_unigram_vocabulary(mhai_loader *l)
{
    const char *path = l->folder.paths[MHAI_TOKENIZER_JSON];
    const json_t *model = json_object_get(l->folder.json[MHAI_TOKENIZER_JSON], "model");
    const json_t *vocab = json_object_get(model, "vocab");
    const size_t count = json_array_size(vocab);
    mhai_bpe *bpe = l->tokenizer->bpe;
    if (!json_is_array(vocab) || count >= INT32_MAX)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "model.vocab must be a list of [piece, score] with at most %d",
                              INT32_MAX - 1);
    bpe->scores = mhai_vector_alloc(&bpe->allocator, count, sizeof *bpe->scores);
    bpe->score_count = count;
    if (!bpe->scores)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu scores", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(vocab, i), *score = json_array_get(pair, 1);
        const char *text = json_string_value(json_array_get(pair, 0));
        if (!text || !json_is_number(score))
            return mhai_path_fail(MHA_ERR_FORMAT, path,
                                  "model.vocab: entry %zu is not [piece, score]", i);
        bpe->scores[i] = json_number_value(score);
        MHA_TRY(mhai_vector_push(&l->tokens, &text));
    }
    return MHA_OK;
}

mha_status mhai_unigram_scores(mhai_bpe *bpe, const mhai_vocabulary_desc *d)
{
    const size_t count = (size_t)d->count;
    bpe->scores = mhai_vector_alloc(&bpe->allocator, count, sizeof *bpe->scores);
    bpe->score_count = count;
    if (!bpe->scores)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu scores", count);
    for (size_t i = 0; i < count; i++) {
        const int32_t type = d->types ? d->types[i] : MHAI_TOKEN_NORMAL;
        if (!isfinite(d->scores[i]))
            return mhai_path_fail(MHA_ERR_MODEL, d->where, "the score of token %zu is not finite",
                                  i);
        bpe->scores[i] = type == MHAI_TOKEN_NORMAL ? (double)d->scores[i] : -INFINITY;
    }
    return MHA_OK;
}

mha_status mhai_unigram_build(const mhai_loader *l)
{
    static const double penalty = 10.0; /* SentencePiece's */
    const mha_tokenizer *t = l->tokenizer;
    mhai_bpe *bpe = t->bpe;
    double least = INFINITY;
    if (bpe->unk < 0 || bpe->unk >= l->model_count)
        return mhai_path_fail(MHA_ERR_MODEL, l->vocabulary_path,
                              "unk_id is %d, the vocabulary has %d pieces", bpe->unk,
                              l->model_count);
    for (int32_t id = 0; id < l->model_count; id++) {
        const size_t size = strlen(t->tokens[id]);
        if (size > MOST_PIECE)
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, l->vocabulary_path,
                                  "token %d has %zu bytes, at most %d are supported", id, size,
                                  (int)MOST_PIECE);
        if (isinf(bpe->scores[id]) && bpe->scores[id] < 0) continue;
        if (!isfinite(bpe->scores[id]))
            return mhai_path_fail(MHA_ERR_MODEL, l->vocabulary_path,
                                  "the score of token %d is not finite", id);
        if (bpe->scores[id] < least) least = bpe->scores[id];
    }
    bpe->unk_score = least - penalty;
    return MHA_OK;
}
