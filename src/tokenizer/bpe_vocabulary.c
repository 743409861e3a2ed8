/* A BPE tokenizer from a vocabulary in memory, as in GGUF files (bpe.h). */
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest token that is split at every boundary to find its pairs, which takes quadratic time. */
enum { MOST_PIECE = 256 };

/* A NUL, and the "##" of a WordPiece. */
enum { MOST_MORE = 3 };

#define SPACE_AND_LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OTHERS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* Words divided before capital letters, each with an ending. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ending)                                                                             \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*" ending
#define OTHERS_AND_SLASHES " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* llama.cpp's names for settings in tokenizer.json. Names share a row if splitter, NFC
 * and merges are all equal. */
static const struct splitter {
    const char *names;
    bool digits, nfc, ignore_merges, add_bos;
    const char *pattern;
} splitters[] = {
    {.names = "gpt-2 phi-2 jais gigachat mellum trillion a.x-4.0 exaone4 granite-docling jina-es "
              "jina-de jina-v2-es jina-v2-de",
     .pattern = mhai_gpt2_pattern},
    {.names = "mpt olmo modern-bert", .nfc = true, .pattern = mhai_gpt2_pattern}, /* GPT-NeoX's */
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b",
     .digits = true,
     .pattern = mhai_gpt2_pattern},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .ignore_merges = true,
     .add_bos = true,
     .pattern = ENDINGS "|" SPACE_AND_LETTERS "|\\p{N}{1,3}|" OTHERS},
    {.names = "dbrx smaug-bpe glm4 chatglm-bpe jais-2",
     .pattern = ENDINGS "|" SPACE_AND_LETTERS "|\\p{N}{1,3}|" OTHERS},
    {.names = "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez",
     .nfc = true,
     .pattern = ENDINGS "|" SPACE_AND_LETTERS "|\\p{N}|" OTHERS},
    {.names = "stablelm2 hunyuan grok-2",
     .pattern = ENDINGS "|" SPACE_AND_LETTERS "|\\p{N}|" OTHERS},
    {.names = "gpt-4o minimax-m2",
     .pattern = CASED(ENDINGS "?") "|\\p{N}{1,3}|" OTHERS_AND_SLASHES},
    {.names = "tekken",
     .ignore_merges = true,
     .add_bos = true,
     .pattern = CASED("") "|\\p{N}|" OTHERS_AND_SLASHES},
};

/* The row with this name; NULL: none. */
static const struct splitter *find_splitter(const char *name)
{
    const size_t size = strlen(name);
    for (size_t i = 0; i < sizeof splitters / sizeof splitters[0]; i++)
        for (const char *at = splitters[i].names; *at; at += strspn(at, " ")) {
            const size_t length = strcspn(at, " ");
            if (length == size && memcmp(at, name, size) == 0) return &splitters[i];
            at += length;
        }
    return NULL;
}

bool mhai_splitter_adds_bos(const char *name)
{
    const struct splitter *splitter = find_splitter(name);
    return splitter && splitter->add_bos;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static mha_status check_token(const mhai_vocabulary_desc *d, int64_t id, size_t *bytes)
{
    const mhai_text *token = &d->tokens[id];
    const size_t valid = mha_utf8_span(token->text, token->size, NULL);
    if (token->size >= INT32_MAX || *bytes > PTRDIFF_MAX - token->size - MOST_MORE)
        return mhai_path_fail(MHA_ERR_SIZE, d->where, "token %lld has %zu bytes", (long long)id,
                              token->size);
    if (valid < token->size)
        return mhai_path_fail(MHA_ERR_UTF8, d->where,
                              "token %lld: byte %zu does not begin a valid UTF-8 character",
                              (long long)id, valid);
    if (token->size && memchr(token->text, '\0', token->size))
        return mhai_path_fail(MHA_ERR_FORMAT, d->where, "token %lld holds a zero byte",
                              (long long)id);
    *bytes += token->size + MOST_MORE;
    return MHA_OK;
}

static mha_status add_token(mhai_loader *l, const mhai_vocabulary_desc *d, int64_t id,
                            const char *text)
{
    const int32_t type = d->types ? d->types[id] : MHAI_TOKEN_NORMAL;
    MHA_TRY(mhai_vector_push(&l->tokens, &text));
    if (type < MHAI_TOKEN_NORMAL || type > MHAI_TOKEN_BYTE)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: token %lld is of type %d, 1 to 6 are known",
                        l->vocabulary_path, (long long)id, type);
    if ((type != MHAI_TOKEN_CONTROL && type != MHAI_TOKEN_USER_DEFINED) || text[0] == '\0')
        return MHA_OK;
    const mhai_added added = {.text = text,
                              .id = (int32_t)id,
                              .flags = type == MHAI_TOKEN_CONTROL ? MHAI_IS_SPECIAL : 0,
                              .path = d->where};
    return mhai_vector_push(&l->added, &added);
}

static mha_status add_tokens(mhai_loader *l, const mhai_vocabulary_desc *d, mhai_vector *texts)
{
    size_t bytes = 0;
    void *place = NULL;
    if (d->count < 1 || d->count >= INT32_MAX)
        return mhai_path_fail(MHA_ERR_MODEL, d->where,
                              "a vocabulary of %lld tokens, 1 to %d are supported",
                              (long long)d->count, INT32_MAX - 1);
    for (int64_t i = 0; i < d->count; i++) MHA_TRY(check_token(d, i, &bytes));
    MHA_TRY(mhai_vector_add(texts, bytes, &place));
    char *to = place;
    for (int64_t i = 0; i < d->count; i++) {
        size_t size = d->tokens[i].size;
        if (l->tokenizer->kind == &mhai_kind_wordpiece)
            size = mhai_wordpiece_text(d, i, to);
        else if (size > 0)
            memcpy(to, d->tokens[i].text, size);
        to[size] = '\0';
        MHA_TRY(add_token(l, d, i, to));
        to += size + 1;
    }
    l->model_count = (int32_t)d->count;
    return MHA_OK;
}

static mha_status add_merges(mhai_loader *l, const mhai_vocabulary_desc *d)
{
    for (int64_t i = 0; i < d->merge_count; i++) {
        const mhai_text *m = &d->merges[i];
        const char *gap = m->size > 0 ? memchr(m->text, ' ', m->size) : NULL;
        const size_t left = gap ? (size_t)(gap - m->text) : 0;
        if (!gap || m->size >= INT32_MAX || memchr(gap + 1, ' ', m->size - left - 1))
            return mhai_path_fail(MHA_ERR_FORMAT, d->where,
                                  "merge %lld must be two tokens with a space "
                                  "between them",
                                  (long long)i + 1);
        const mhai_merge merge = {m->text, gap + 1, (int32_t)left, (int32_t)(m->size - left - 1)};
        MHA_TRY(mhai_vector_push(&l->merges, &merge));
    }
    return MHA_OK;
}

/* ---- Settings -------------------------------------------------------------------------------- */

/* Report an unknown splitter, with the first name of each row. */
static mha_status fail_splitter(const char *where, const char *name)
{
    char known[128] = "";
    for (size_t i = 0; i < sizeof splitters / sizeof splitters[0]; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%.*s", i > 0 ? ", " : "",
                 (int)strcspn(splitters[i].names, " "), splitters[i].names);
    }
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, where,
                          "pre-tokenizer '%s' is not supported; %s and their other names are",
                          mhai_show_name(name).text, known);
}

static mha_status set_bytes(mhai_bpe *bpe, const mhai_vocabulary_desc *d)
{
    const char *where = d->where, *name = d->splitter ? d->splitter : "none";
    const mhai_step_desc nfc = {.like = {.what = MHAI_STEP_FORM, .form = {.compose = true}}};
    const struct splitter *splitter = find_splitter(name);
    if (!splitter) return fail_splitter(where, name);
    bpe->byte_level = true;
    bpe->ignore_merges = splitter->ignore_merges;
    if (splitter->nfc) MHA_TRY(mhai_bpe_add_step(bpe, where, &nfc));
    bpe->normal_count = bpe->step_count;
    if (splitter->digits) MHA_TRY(mhai_bpe_add_digits(bpe, where, true));
    return mhai_bpe_add_split(bpe, where, splitter->pattern);
}

static mha_status set_pieces(mhai_bpe *bpe, const mhai_vocabulary_desc *d)
{
    const mhai_step_desc prefix = {.like = {.what = MHAI_STEP_PREPEND, .prepend = MHAI_ALWAYS},
                                   .text = "\xE2\x96\x81"};
    if (!d->scores)
        return mhai_path_fail(MHA_ERR_MODEL, d->where,
                              "a vocabulary of SentencePiece without scores");
    bpe->byte_fallback = bpe->fuse_unk = true;
    if (d->add_space_prefix) MHA_TRY(mhai_bpe_add_step(bpe, d->where, &prefix));
    MHA_TRY(mhai_bpe_add_spaces(bpe, d->where));
    bpe->normal_count = bpe->step_count;
    return MHA_OK;
}

/* What SentencePiece does with extra spaces. */
static mha_status add_trimming(mhai_bpe *bpe, const char *where)
{
    const mhai_step_desc desc = {.like = {.what = MHAI_STEP_REPLACE},
                                 .pattern = "\\A +| +\\z|(?<= ) +",
                                 .text = "",
                                 .own = true};
    return mhai_bpe_add_step(bpe, where, &desc);
}

static mha_status set_unigram(mhai_bpe *bpe, const mhai_vocabulary_desc *d)
{
    const mhai_step_desc map = {.like = {.what = MHAI_STEP_CHARSMAP, .longest = true},
                                .map = d->charsmap,
                                .map_size = d->charsmap_size};
    if (!d->scores)
        return mhai_path_fail(MHA_ERR_MODEL, d->where, "a unigram vocabulary without scores");
    if (d->charsmap) MHA_TRY(mhai_bpe_add_step(bpe, d->where, &map));
    if (d->remove_extra_spaces) MHA_TRY(add_trimming(bpe, d->where));
    MHA_TRY(set_pieces(bpe, d));
    bpe->byte_fallback = false;
    bpe->unk = d->unk_id;
    for (int64_t i = 0; i < d->count; i++) {
        if (d->types && d->types[i] == MHAI_TOKEN_BYTE) bpe->byte_fallback = true;
        if (d->types && d->types[i] == MHAI_TOKEN_UNKNOWN && bpe->unk < 0) bpe->unk = (int32_t)i;
    }
    return mhai_unigram_scores(bpe, d);
}

/* Check a special id. If given, its token must exist. */
static mha_status check_id(const mhai_vocabulary_desc *d, const char *name, int32_t id)
{
    if (id >= -1 && id < d->count) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, d->where, "%s is %d, the vocabulary has %lld tokens", name,
                          id, (long long)d->count);
}

static mha_status set_names(mha_tokenizer *t, const mhai_vocabulary_desc *d)
{
    MHA_TRY(check_id(d, "bos_id", d->bos_id));
    MHA_TRY(check_id(d, "eos_id", d->eos_id));
    MHA_TRY(check_id(d, "unk_id", d->unk_id));
    MHA_TRY(check_id(d, "pad_id", d->pad_id));
    if ((d->add_bos && d->bos_id < 0) || (d->add_eos && d->eos_id < 0))
        return mhai_path_fail(MHA_ERR_MODEL, d->where,
                              "texts should begin or end with a token that is not named");
    t->named[MHAI_BOS] = d->bos_id;
    t->named[MHAI_EOS] = d->eos_id;
    t->named[MHAI_UNK] = d->unk_id;
    t->named[MHAI_PAD] = d->pad_id;
    return MHA_OK;
}

void mhai_template_add(mhai_template *to, int32_t id, int32_t type)
{
    to->parts[to->count].id = id;
    to->parts[to->count++].type = type;
}

static void set_templates(mha_tokenizer *t, const mhai_vocabulary_desc *d)
{
    /* the second text of XLM-R, the unigram model with a first token, follows two end tokens */
    const int32_t second = t->kind == &mhai_kind_unigram && d->add_eos ? d->eos_id : d->bos_id;
    for (int which = 0; which < 2; which++)
        for (int32_t text = 0; text <= which; text++) {
            mhai_template *to = &t->templates[which];
            if (d->add_bos) mhai_template_add(to, text == 0 ? d->bos_id : second, text);
            mhai_template_add(to, text == 0 ? MHAI_TEXT_A : MHAI_TEXT_B, text);
            if (d->add_eos) mhai_template_add(to, d->eos_id, text);
        }
}

/* ---- Pairs from scores ----------------------------------------------------------------------- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The normal token with exactly these bytes; -1: none. */
static int32_t find_piece(const mha_tokenizer *t, const mhai_vocabulary_desc *d, const char *text,
                          size_t size)
{
    size_t matched = 0;
    const int32_t id = mhai_lexicon_longest(&t->first_pieces, text, size, &matched);
    if (id < 0 || matched != size) return -1;
    return !d->types || d->types[id] == MHAI_TOKEN_NORMAL ? id : -1;
}

/* Append all pairs that form a token. */
static mha_status add_pairs(mha_tokenizer *t, const mhai_vocabulary_desc *d, int32_t id,
                            int32_t rank)
{
    const char *text = t->tokens[id];
    const size_t size = strlen(text);
    if (size > MOST_PIECE)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, d->where,
                              "token %d has %zu bytes, at most %d are supported", id, size,
                              (int)MOST_PIECE);
    for (size_t at = 1; at < size; at++) {
        if (((unsigned char)text[at] & 0xC0) == 0x80) continue;
        mhai_pair pair = {.rank = rank, .merged = id};
        pair.left = find_piece(t, d, text, at);
        if (pair.left < 0) continue;
        pair.right = find_piece(t, d, text + at, size - at);
        if (pair.right >= 0) MHA_TRY(mhai_vector_push(&t->bpe->pairs, &pair));
    }
    return MHA_OK;
}

/* Rank pairs like SentencePiece: first the pair whose token has the highest score. Tokens with
 * equal scores share a rank, and the leftmost of their pairs is merged first. */
static mha_status rank_pairs(mha_tokenizer *t, const mhai_vocabulary_desc *d, scored *order)
{
    int32_t count = 0;
    for (int32_t id = 0; id < t->count; id++) {
        if (d->types && d->types[id] != MHAI_TOKEN_NORMAL) continue;
        if (isnan(d->scores[id]))
            return mhai_path_fail(MHA_ERR_MODEL, d->where, "the score of token %d is not a number",
                                  id);
        order[count++] = (scored){d->scores[id], id};
    }
    qsort(order, (size_t)count, sizeof *order, by_score);
    for (int32_t i = 0, rank = 0; i < count; i++) {
        if (i > 0 && order[i].score != order[i - 1].score) rank = i;
        MHA_TRY(add_pairs(t, d, order[i].id, rank));
    }
    return MHA_OK;
}

mha_status mhai_bpe_score_pairs(mha_tokenizer *t, const mhai_vocabulary_desc *d)
{
    const size_t count = (size_t)t->count;
    scored *order = mhai_vector_alloc(&t->allocator, count, sizeof *order);
    if (!order) return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu scores", count);
    const mha_status status = rank_pairs(t, d, order);
    mhai_vector_release(&t->allocator, order, count, sizeof *order);
    return status;
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* GGUF's names of kinds. set NULL: not a kind of BPE. */
static const struct memory_kind {
    const char *name;
    const mhai_kind *kind;
    mha_status (*set)(mhai_bpe *bpe, const mhai_vocabulary_desc *d);
} memory_kinds[] = {{"gpt2", &mhai_kind_byte_bpe, set_bytes},
                    {"llama", &mhai_kind_sentencepiece_bpe, set_pieces},
                    {"t5", &mhai_kind_unigram, set_unigram},
                    {"bert", &mhai_kind_wordpiece, NULL}};

static const struct memory_kind *find_kind(const char *name)
{
    for (size_t i = 0; name && i < sizeof memory_kinds / sizeof memory_kinds[0]; i++)
        if (strcmp(memory_kinds[i].name, name) == 0) return &memory_kinds[i];
    return NULL;
}

static mha_status make(mhai_loader *l, const mhai_vocabulary_desc *d, mhai_vector *texts)
{
    mha_tokenizer *t = l->tokenizer;
    const struct memory_kind *kind = find_kind(d->model);
    l->vocabulary_path = d->where;
    if (!kind)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, d->where,
                              "tokenizer '%s' is not supported, gpt2, llama, t5 and bert are",
                              mhai_show_name(d->model ? d->model : "none").text);
    t->kind = kind->kind;
    if (kind->set) {
        MHA_TRY(mhai_bpe_create(&l->allocator, &t->bpe));
        MHA_TRY(kind->set(t->bpe, d));
    }
    MHA_TRY(add_tokens(l, d, texts));
    MHA_TRY(set_names(t, d));
    if (!kind->set) {
        MHA_TRY(mhai_wordpiece_set(l, d));
        return mhai_tokenizer_finish(l);
    }
    if (t->kind == &mhai_kind_byte_bpe) MHA_TRY(add_merges(l, d));
    if (t->kind == &mhai_kind_sentencepiece_bpe) l->scores = d;
    set_templates(t, d);
    return mhai_tokenizer_finish(l);
}

mha_status mhai_tokenizer_make(const mhai_vocabulary_desc *desc,
                               const mha_tokenizer_options *options, mha_tokenizer **tokenizer)
{
    mhai_loader l;
    mha_status status = mhai_loader_begin(options, &l);
    mhai_vector texts = mhai_vector_make(&l.allocator, 1);
    if (status == MHA_OK) status = make(&l, desc, &texts);
    mhai_vector_free(&texts);
    return mhai_loader_end(&l, status, tokenizer);
}
