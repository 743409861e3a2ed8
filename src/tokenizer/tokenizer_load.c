/* Loading a tokenizer: read its folder into lists, and build searchable sets from these. */
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

/* Copy all texts into one block, so that tokens no longer borrow from the folder. */
static mha_status copy_texts(mhai_loader *l)
{
    mha_tokenizer *t = l->tokenizer;
    const char *const *tokens = l->tokens.items;
    size_t size = 0;
    for (size_t i = 0; i < l->tokens.count; i++) size += strlen(tokens[i]) + 1;
    t->texts = mhai_vector_alloc(&t->allocator, size, 1);
    t->texts_size = size;
    t->spoken = mhai_vector_alloc(&t->allocator, size, 1);
    t->spoken_end = mhai_vector_alloc(&t->allocator, l->tokens.count, sizeof *t->spoken_end);
    t->flags = mhai_vector_alloc(&t->allocator, l->tokens.count, 1);
    t->tokens = mhai_vector_alloc(&t->allocator, l->tokens.count, sizeof *t->tokens);
    t->entries = mhai_vector_alloc(&t->allocator, l->tokens.count, sizeof *t->entries);
    t->count = (int32_t)l->tokens.count;
    t->model_count = l->model_count;
    if (!t->texts || !t->spoken || !t->spoken_end || !t->flags || !t->tokens || !t->entries)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate a vocabulary of %zu tokens",
                        l->tokens.count);
    memset(t->flags, 0, l->tokens.count);
    char *to = t->texts;
    for (size_t i = 0; i < l->tokens.count; i++) {
        const size_t bytes = strlen(tokens[i]) + 1;
        memcpy(to, tokens[i], bytes);
        t->tokens[i] = to;
        to += bytes;
    }
    return MHA_OK;
}

/* Add tokens [from, to) to the lexicon, except empty tokens, which are blank lines of vocab.txt and
 * only take up ids. */
static int32_t fill_entries(mha_tokenizer *t, int32_t from, int32_t to)
{
    int32_t count = 0;
    for (int32_t id = from; id < to; id++) {
        const char *text = t->tokens[id];
        if (text[0] != '\0')
            t->entries[from + count++] = (mhai_lexicon_entry){text, (int32_t)strlen(text), id};
    }
    return count;
}

static mha_status build_vocabulary(mhai_loader *l)
{
    mha_tokenizer *t = l->tokenizer;
    mhai_lexicon_entry *first = t->entries, *extra = t->entries + t->model_count;
    const int32_t count = fill_entries(t, 0, t->model_count);
    const int32_t twice = mhai_lexicon_build(first, count, &t->vocabulary);
    if (twice >= 0)
        return mhai_path_fail(
            MHA_ERR_FORMAT, l->vocabulary_path, "token '%s' occurs twice, with ids %d and %d",
            mhai_show_name(first[twice].text).text, first[twice].id, first[twice + 1].id);
    /* Duplicates among added tokens were detected when they were read. */
    (void)mhai_lexicon_build(extra, fill_entries(t, t->model_count, t->count), &t->extra);
    mhai_lexicon_branch_make(&t->vocabulary, "", &t->first_pieces);
    return MHA_OK;
}

/* Find the id of an added token, which must match its file. */
static mha_status resolve(const mhai_loader *l, const mhai_added *added, int32_t *id)
{
    *id = mha_tokenizer_id(l->tokenizer, added->text);
    if (*id < 0)
        return mhai_path_fail(MHA_ERR_MODEL, added->path, "token '%s' is not in the vocabulary",
                              mhai_show_name(added->text).text);
    if (added->id >= 0 && added->id != *id)
        return mhai_path_fail(MHA_ERR_MODEL, added->path,
                              "token '%s' has id %d, in the vocabulary it has %d",
                              mhai_show_name(added->text).text, added->id, *id);
    return MHA_OK;
}

/* Append the normalised text of an added token to texts, NUL-terminated. *size
 * does not include the NUL. */
static mha_status normalize_added(const mha_tokenizer *t, const mhai_added *added,
                                  mhai_vector *texts, size_t *size)
{
    const size_t before = texts->count;
    MHA_TRY(t->kind->normalize(t, added->text, texts));
    *size = texts->count - before;
    return mhai_vector_push(texts, "");
}

static mha_status check_length(const mhai_added *added, size_t size)
{
    if (size > 0 && size <= MHAI_ADDED_BYTES) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, added->path,
                          "added token '%s' has %zu bytes, 1 to %d are supported",
                          mhai_show_name(added->text).text, size, (int)MHAI_ADDED_BYTES);
}

/* Add the entries of added tokens of one kind, starting at entry `first`. */
static mha_status fill_added(mhai_loader *l, bool normal, size_t first, int32_t *count)
{
    mha_tokenizer *t = l->tokenizer;
    const mhai_added *added = l->added.items;
    mhai_lexicon_entry *entries = t->added_entries + first;
    *count = 0;
    for (size_t i = 0; i < l->added.count; i++) {
        if (added[i].normal != normal) continue;
        size_t size = strlen(added[i].text);
        int32_t id = -1;
        MHA_TRY(resolve(l, &added[i], &id));
        MHA_TRY(check_length(&added[i], size));
        t->flags[id] = added[i].flags | MHAI_IS_ADDED;
        if (normal) {
            MHA_TRY(normalize_added(t, &added[i], &t->normal_texts, &size));
            MHA_TRY(check_length(&added[i], size));
        }
        entries[(*count)++] = (mhai_lexicon_entry){t->tokens[id], (int32_t)size, id};
    }
    /* The normalised texts no longer move, so entries can point to them. */
    const char *text = t->normal_texts.items;
    for (int32_t i = 0; normal && i < *count; i++) {
        entries[i].text = text;
        text += entries[i].size + 1;
    }
    return MHA_OK;
}

static mha_status build_added(mhai_loader *l)
{
    mha_tokenizer *t = l->tokenizer;
    int32_t raw = 0, normal = 0;
    t->normal_texts = mhai_vector_make(&t->allocator, 1);
    t->added_entries = mhai_vector_alloc(&t->allocator, l->added.count, sizeof *t->added_entries);
    t->added_count = l->added.count;
    if (!t->added_entries)
        return mha_fail(MHA_ERR_NOMEM, "tokenizer: cannot allocate %zu added tokens",
                        l->added.count);
    MHA_TRY(fill_added(l, false, 0, &raw));
    MHA_TRY(fill_added(l, true, (size_t)raw, &normal));
    (void)mhai_lexicon_build(t->added_entries, raw, &t->raw);
    const int32_t twice = mhai_lexicon_build(t->added_entries + raw, normal, &t->normal);
    if (twice >= 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "added tokens '%s' and '%s' are the same once they are normalized",
                        mhai_show_name(t->tokens[t->normal.entries[twice].id]).text,
                        mhai_show_name(t->tokens[t->normal.entries[twice + 1].id]).text);
    mhai_lexicon_branch_make(&t->raw, "", &t->raw_tokens);
    mhai_lexicon_branch_make(&t->normal, "", &t->normal_tokens);
    return MHA_OK;
}

/* Store the bytes of all tokens, after the added tokens are known. */
static void speak(mha_tokenizer *t)
{
    char *to = t->spoken;
    for (int32_t id = 0; id < t->count; id++) {
        const char *text = t->tokens[id];
        if (t->flags[id] & MHAI_IS_ADDED) {
            const size_t size = strlen(text);
            memcpy(to, text, size);
            to += size;
        } else {
            to += t->kind->speak(t, text, to);
        }
        t->spoken_end[id] = (size_t)(to - t->spoken);
    }
}

mha_status mhai_tokenizer_finish(mhai_loader *l)
{
    mha_tokenizer *t = l->tokenizer;
    MHA_TRY(copy_texts(l));
    MHA_TRY(build_vocabulary(l));
    for (int i = 0; i < MHAI_NAMED; i++)
        if (l->folder.names[i]) t->named[i] = mha_tokenizer_id(t, l->folder.names[i]);
    MHA_TRY(t->kind->build(l));
    MHA_TRY(build_added(l));
    speak(t);
    return MHA_OK;
}

static mha_status load(const char *folder, mhai_loader *l)
{
    MHA_TRY(mhai_tokenizer_folder_open(folder, &l->folder));
    l->tokenizer->max_length = l->folder.max_length;
    MHA_TRY(mhai_tokenizer_kind_read(l));
    MHA_TRY(mhai_tokenizer_vocab_read(l));
    MHA_TRY(mhai_tokenizer_added_read(l));
    MHA_TRY(mhai_tokenizer_vocab_compare(l));
    return mhai_tokenizer_finish(l);
}

/* ---- Loaders --------------------------------------------------------------------------------- */

mha_status mhai_loader_begin(const mha_tokenizer_options *options, mhai_loader *l)
{
    mha_tokenizer_options own;
    *l = (mhai_loader){0};
    MHA_TRY(mha_struct_read("mha_tokenizer_options", &own, sizeof own, sizeof own, options,
                            options ? options->struct_size : 0));
    if (own.reserved != 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_tokenizer_options: reserved must be 0");
    if (!own.allocator.alloc != !own.allocator.release)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_tokenizer_options: allocator requires both alloc and release, or neither");
    l->allocator = mhai_vector_allocator(own.allocator);
    l->tokens = mhai_vector_make(&l->allocator, sizeof(const char *));
    l->added = mhai_vector_make(&l->allocator, sizeof(mhai_added));
    l->merges = mhai_vector_make(&l->allocator, sizeof(mhai_merge));
    l->tokenizer = mhai_vector_alloc(&l->allocator, 1, sizeof *l->tokenizer);
    if (!l->tokenizer) return MHA_NO_MEMORY("tokenizer");
    *l->tokenizer = (mha_tokenizer){.allocator = l->allocator};
    for (int i = 0; i < MHAI_NAMED; i++) l->tokenizer->named[i] = -1;
    return MHA_OK;
}

mha_status mhai_loader_end(mhai_loader *l, mha_status status, mha_tokenizer **tokenizer)
{
    if (status == MHA_OK) {
        *tokenizer = l->tokenizer;
        l->tokenizer = NULL;
    }
    mha_tokenizer_destroy(l->tokenizer);
    json_decref(l->added_places);
    mhai_vector_free(&l->merges);
    mhai_vector_free(&l->added);
    mhai_vector_free(&l->tokens);
    mhai_tokenizer_folder_close(&l->folder);
    return status;
}

mha_status mha_tokenizer_load(const char *folder, const mha_tokenizer_options *options,
                              mha_tokenizer **tokenizer)
{
    mhai_loader l;
    MHA_NEED("mha_tokenizer_load", folder, tokenizer);
    mha_status status = mhai_loader_begin(options, &l);
    if (status == MHA_OK) status = load(folder, &l);
    return mhai_loader_end(&l, status, tokenizer);
}
