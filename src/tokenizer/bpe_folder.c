/* The settings of a BPE tokenizer from tokenizer.json. Any setting that this tokenizer would handle
 * differently is rejected by name. */
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"
#include "tokenizer/bpe_encode.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

enum { MOST_NESTED = 8 };

typedef struct reader {
    mhai_loader *l;
    mhai_bpe *bpe;
    mhai_shown path;
    bool has_bytes;    /* ByteLevel is one of the pre_tokenizers */
    bool has_template; /* the post_processor has a template */
} reader;

/* A supported type. */
typedef struct row {
    const char *type;
    mha_status (*read)(reader *r, const json_t *json);
} row;

static mha_status refuse(const reader *r, const char *part, const char *what)
{
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: %s: %s is not supported", r->path.text, part,
                    mhai_show_name(what).text);
}

static mha_status malformed(const reader *r, const char *part, const char *what)
{
    return mha_fail(MHA_ERR_FORMAT, "%s: %s: %s", r->path.text, part, what);
}

/* Read an object by its type, or a "Sequence" of objects. null or no object means none. */
static mha_status read_part(reader *r, const char *part, const char *list, const row *rows,
                            const json_t *json, int depth)
{
    if (!json || json_is_null(json)) return MHA_OK;
    const char *type = mhai_show_json(json_is_object(json) ? json_object_get(json, "type") : json);
    if (strcmp(type, "Sequence") == 0 && depth < MOST_NESTED) {
        const json_t *items = json_object_get(json, list);
        if (!json_is_array(items)) return malformed(r, part, "Sequence without a list");
        for (size_t i = 0; i < json_array_size(items); i++)
            MHA_TRY(read_part(r, part, list, rows, json_array_get(items, i), depth + 1));
        return MHA_OK;
    }
    for (; rows->type; rows++)
        if (strcmp(type, rows->type) == 0) return rows->read(r, json);
    return refuse(r, part, type);
}

static mha_status get_flag(const reader *r, const json_t *json, const char *key, bool otherwise,
                           bool *value)
{
    mhai_answer answer = MHAI_UNSAID;
    MHA_TRY(mhai_tokenizer_folder_flag(r->path.text, json, key, &answer));
    *value = mhai_or_default(answer, otherwise);
    return MHA_OK;
}

/* {"String": "..."} or {"Regex": "..."} */
static mha_status get_pattern(const reader *r, const char *part, const json_t *json,
                              mhai_step_desc *desc)
{
    const json_t *pattern = json_object_get(json, "pattern");
    desc->literal = json_string_value(json_object_get(pattern, "String"));
    desc->pattern = json_string_value(json_object_get(pattern, "Regex"));
    if (!desc->literal == !desc->pattern || (desc->literal && !desc->literal[0]))
        return malformed(r, part, "the pattern must be a String or a Regex that is not empty");
    return MHA_OK;
}

/* Append a step, which may have a pattern. part is its place in the file, for messages. */
static mha_status add_step(const reader *r, const char *part, const mhai_step_desc *desc)
{
    char where[208];
    snprintf(where, sizeof where, "%s: %s", r->path.text, part);
    return mhai_bpe_add_step(r->bpe, where, desc);
}

/* ---- normalizer ------------------------------------------------------------------------------ */

/* NFC, NFD, NFKC or NFKD. */
static mha_status read_form(reader *r, const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const mhai_step_desc desc = {
        .like = {.what = MHAI_STEP_FORM,
                 .form = {.compatible = strlen(type) == 4, .compose = strchr(type, 'C') != NULL}}};
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_lowercase(reader *r, const json_t *json)
{
    const mhai_step_desc desc = {.like = {.what = MHAI_STEP_LOWERCASE}};
    (void)json;
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_strip_accents(reader *r, const json_t *json)
{
    const mhai_step_desc desc = {.like = {.what = MHAI_STEP_STRIP_MARKS}};
    (void)json;
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_strip(reader *r, const json_t *json)
{
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_STRIP_SPACES}};
    MHA_TRY(get_flag(r, json, "strip_left", true, &desc.like.ends.left));
    MHA_TRY(get_flag(r, json, "strip_right", true, &desc.like.ends.right));
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

/* The value of a digit of base64; -1: none. */
static int digit_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Decode base64 with its padding into bytes. Returns false if it is malformed. */
static bool decode_base64(const char *text, size_t size, unsigned char *bytes, size_t *count)
{
    uint32_t group = 0;
    *count = 0;
    if (size % 4 != 0) return false;
    const size_t padding = size == 0 || text[size - 1] != '=' ? 0 : text[size - 2] != '=' ? 1 : 2;
    for (size_t i = 0; i < size; i++) {
        const int digit = i < size - padding ? digit_of(text[i]) : 0;
        if (digit < 0) return false;
        group = group << 6 | (uint32_t)digit;
        for (int k = 16; i % 4 == 3 && k >= 0; k -= 8) bytes[(*count)++] = group >> k & 0xFF;
    }
    *count -= padding;
    return true;
}

static mha_status read_precompiled(reader *r, const json_t *json)
{
    const json_t *map = json_object_get(json, "precompiled_charsmap");
    const size_t size = json_string_length(map);
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_CHARSMAP}};
    unsigned char *bytes = mhai_vector_alloc(&r->l->allocator, size, 1);
    if (!bytes) return MHA_NO_MEMORY("tokenizer: charsmap");
    desc.map = bytes;
    mha_status status =
        json_is_string(map) && decode_base64(json_string_value(map), size, bytes, &desc.map_size)
            ? mhai_bpe_add_step(r->bpe, r->path.text, &desc)
            : malformed(r, "normalizer Precompiled", "precompiled_charsmap must be base64");
    mhai_vector_release(&r->l->allocator, bytes, size, 1);
    return status;
}

static mha_status read_prepend(reader *r, const json_t *json)
{
    const mhai_step_desc desc = {.like = {.what = MHAI_STEP_PREPEND, .prepend = MHAI_ALWAYS},
                                 .text = json_string_value(json_object_get(json, "prepend"))};
    if (!desc.text) return malformed(r, "normalizer Prepend", "prepend must be a text");
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_replace(reader *r, const json_t *json)
{
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_REPLACE},
                           .text = json_string_value(json_object_get(json, "content"))};
    if (!desc.text) return malformed(r, "normalizer Replace", "content must be a text");
    MHA_TRY(get_pattern(r, "normalizer Replace", json, &desc));
    if (desc.literal && strcmp(desc.literal, " ") == 0 && strcmp(desc.text, "\xE2\x96\x81") == 0)
        r->bpe->marks_spaces = true;
    return add_step(r, "normalizer Replace", &desc);
}

static const row normalizers[] = {{"NFC", read_form},
                                  {"NFD", read_form},
                                  {"NFKC", read_form},
                                  {"NFKD", read_form},
                                  {"Lowercase", read_lowercase},
                                  {"StripAccents", read_strip_accents},
                                  {"Strip", read_strip},
                                  {"Precompiled", read_precompiled},
                                  {"Prepend", read_prepend},
                                  {"Replace", read_replace},
                                  {NULL, NULL}};

/* ---- pre_tokenizer --------------------------------------------------------------------------- */

/* Check that no other step is behind ByteLevel: it would see letters instead of bytes. */
static mha_status check_last(const reader *r)
{
    return r->has_bytes ? refuse(r, "pre_tokenizer", "another step behind ByteLevel") : MHA_OK;
}

static mha_status read_byte_level(reader *r, const json_t *json)
{
    bool prefix = false, regex = false;
    MHA_TRY(check_last(r));
    MHA_TRY(get_flag(r, json, "add_prefix_space", true, &prefix));
    MHA_TRY(get_flag(r, json, "use_regex", true, &regex));
    r->has_bytes = true;
    if (prefix) {
        const mhai_step_desc desc = {
            .like = {.what = MHAI_STEP_PREPEND, .prepend = MHAI_UNLESS_THERE}, .text = " "};
        MHA_TRY(mhai_bpe_add_step(r->bpe, r->path.text, &desc));
    }
    return regex ? mhai_bpe_add_split(r->bpe, r->path.text, mhai_gpt2_pattern) : MHA_OK;
}

static mha_status get_behavior(const reader *r, const char *what, const json_t *json,
                               enum mhai_split *split)
{
    static const char *const behaviors[] = {
        [MHAI_ISOLATED] = "Isolated",
        [MHAI_REMOVED] = "Removed",
        [MHAI_WITH_PREVIOUS] = "MergedWithPrevious",
        [MHAI_WITH_NEXT] = "MergedWithNext",
        [MHAI_CONTIGUOUS] = "Contiguous",
    };
    const char *behavior = mhai_show_json(json_object_get(json, "behavior"));
    for (size_t i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++)
        if (strcmp(behavior, behaviors[i]) == 0) {
            *split = (enum mhai_split)i;
            return MHA_OK;
        }
    return refuse(r, what, behavior);
}

/* Behind ByteLevel, Falcon splits three digits. */
static mha_status read_split(reader *r, const json_t *json)
{
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_SPLIT}};
    MHA_TRY(get_flag(r, json, "invert", false, &desc.like.invert));
    MHA_TRY(get_pattern(r, "pre_tokenizer Split", json, &desc));
    MHA_TRY(get_behavior(r, "pre_tokenizer Split: behavior", json, &desc.like.split));
    if (r->has_bytes && desc.pattern && strcmp(desc.pattern, "[0-9][0-9][0-9]") == 0) {
        desc.like.class = MHAI_THREE_DIGITS;
        desc.pattern = NULL;
        return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
    }
    MHA_TRY(check_last(r));
    return add_step(r, "pre_tokenizer Split", &desc);
}

static mha_status read_punctuation(reader *r, const json_t *json)
{
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_SPLIT, .class = MHAI_PUNCTUATION}};
    MHA_TRY(check_last(r));
    MHA_TRY(get_behavior(r, "pre_tokenizer Punctuation: behavior", json, &desc.like.split));
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_digits(reader *r, const json_t *json)
{
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_SPLIT, .class = MHAI_NUMERIC_BYTE}};
    bool individual = false;
    MHA_TRY(get_flag(r, json, "individual_digits", false, &individual));
    if (!r->has_bytes) return mhai_bpe_add_digits(r->bpe, r->path.text, individual);
    desc.like.split = individual ? MHAI_ISOLATED : MHAI_CONTIGUOUS;
    return mhai_bpe_add_step(r->bpe, r->path.text, &desc);
}

static mha_status read_metaspace(reader *r, const json_t *json)
{
    static const char mark[] = "\xE2\x96\x81";
    const char *replacement = mhai_show_json(json_object_get(json, "replacement"));
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    const char *name = scheme ? mhai_show_json(scheme) : "always";
    mhai_step_desc desc = {.like = {.what = MHAI_STEP_PREPEND}, .text = mark};
    bool prefix = false, split = false;
    MHA_TRY(check_last(r));
    MHA_TRY(get_flag(r, json, "add_prefix_space", true, &prefix));
    MHA_TRY(get_flag(r, json, "split", true, &split));
    if (strcmp(replacement, mark) != 0)
        return refuse(r, "pre_tokenizer Metaspace: replacement", replacement);
    if (strcmp(name, "always") != 0 && strcmp(name, "first") != 0 && strcmp(name, "never") != 0)
        return refuse(r, "pre_tokenizer Metaspace: prepend_scheme", name);
    MHA_TRY(mhai_bpe_add_spaces(r->bpe, r->path.text));
    desc.like.prepend = name[0] == 'f' ? MHAI_FIRST : MHAI_UNLESS_THERE;
    if (name[0] != 'n' && prefix) MHA_TRY(mhai_bpe_add_step(r->bpe, r->path.text, &desc));
    desc = (mhai_step_desc){.like = {.what = MHAI_STEP_SPLIT, .split = MHAI_WITH_NEXT},
                            .literal = mark};
    return split ? mhai_bpe_add_step(r->bpe, r->path.text, &desc) : MHA_OK;
}

static mha_status read_whitespace_split(reader *r, const json_t *json)
{
    (void)json;
    MHA_TRY(check_last(r));
    return mhai_bpe_add_whitespace(r->bpe, r->path.text);
}

static const row pre_tokenizers[] = {{"ByteLevel", read_byte_level},
                                     {"Split", read_split},
                                     {"Digits", read_digits},
                                     {"Punctuation", read_punctuation},
                                     {"Metaspace", read_metaspace},
                                     {"WhitespaceSplit", read_whitespace_split},
                                     {NULL, NULL}};

/* ---- post_processor -------------------------------------------------------------------------- */

static mha_status take_trimming(reader *r, const json_t *json)
{
    MHA_TRY(get_flag(r, json, "trim_offsets", true, &r->bpe->trim_offsets));
    return get_flag(r, json, "add_prefix_space", true, &r->bpe->trim_prefix);
}

static mha_status begin_template(reader *r)
{
    if (r->has_template) return refuse(r, "post_processor", "a second template");
    r->has_template = true;
    for (int i = 0; i < 2; i++) r->l->tokenizer->templates[i].count = 0;
    return MHA_OK;
}

static mha_status add_part(const reader *r, mhai_template *to, int32_t id, int32_t type)
{
    if (to->count == MHAI_TEMPLATE_PARTS)
        return refuse(r, "post_processor", "a template of so many parts");
    to->parts[to->count].id = id;
    to->parts[to->count++].type = type;
    return MHA_OK;
}

/* Read {"SpecialToken": {"id": "<s>", "type_id": 0}}. Its ids are in "special_tokens". */
static mha_status read_special(const reader *r, const json_t *special_tokens, const json_t *json,
                               int32_t type, mhai_template *to)
{
    const char *name = mhai_show_json(json_object_get(json, "id"));
    const json_t *ids = json_object_get(json_object_get(special_tokens, name), "ids");
    if (json_array_size(ids) == 0)
        return malformed(r, "post_processor", "special_tokens lacks one of the template's");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id = -1;
        MHA_TRY(mhai_tokenizer_folder_id(r->path.text, name, json_array_get(ids, i), &id));
        MHA_TRY(add_part(r, to, id, type));
    }
    return MHA_OK;
}

static mha_status read_list(const reader *r, const json_t *processor, const char *key,
                            mhai_template *to)
{
    const json_t *list = json_object_get(processor, key);
    const json_t *special_tokens = json_object_get(processor, "special_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *special = json_object_get(json_array_get(list, i), "SpecialToken");
        const json_t *text = json_object_get(json_array_get(list, i), "Sequence");
        const json_t *json = special ? special : text;
        const char *name = mhai_show_json(json_object_get(json, "id"));
        int32_t type = 0;
        MHA_TRY(mhai_tokenizer_folder_id(r->path.text, "type_id", json_object_get(json, "type_id"),
                                         &type));
        if (special)
            MHA_TRY(read_special(r, special_tokens, json, type, to));
        else if (strcmp(name, "A") == 0 || strcmp(name, "B") == 0)
            MHA_TRY(add_part(r, to, name[0] == 'A' ? MHAI_TEXT_A : MHAI_TEXT_B, type));
        else
            return malformed(r, "post_processor", "a Sequence must be A or B");
    }
    return MHA_OK;
}

/* Check that each text occurs once, the first before the second. */
static mha_status check_template(const reader *r, const mhai_template *template, int32_t texts)
{
    int32_t seen = 0;
    for (int32_t i = 0; i < template->count; i++) {
        if (template->parts[i].id >= 0) continue;
        if (template->parts[i].id != (seen == 0 ? MHAI_TEXT_A : MHAI_TEXT_B)) seen = texts;
        seen++;
    }
    return seen == texts ? MHA_OK : refuse(r, "post_processor", "a template other than A and A B");
}

static mha_status read_template(reader *r, const json_t *json)
{
    mhai_template *templates = r->l->tokenizer->templates;
    MHA_TRY(begin_template(r));
    MHA_TRY(read_list(r, json, "single", &templates[0]));
    MHA_TRY(read_list(r, json, "pair", &templates[1]));
    MHA_TRY(check_template(r, &templates[0], 1));
    return check_template(r, &templates[1], 2);
}

/* Build <s> A </s> and <s> A </s> </s> B </s>, all in segment 0. */
static mha_status read_roberta(reader *r, const json_t *json)
{
    mhai_template *templates = r->l->tokenizer->templates;
    const json_t *cls = json_object_get(json, "cls"), *sep = json_object_get(json, "sep");
    int32_t ids[2] = {0, 0};
    MHA_TRY(take_trimming(r, json));
    MHA_TRY(begin_template(r));
    MHA_TRY(mhai_tokenizer_folder_id(r->path.text, "cls", json_array_get(cls, 1), &ids[0]));
    MHA_TRY(mhai_tokenizer_folder_id(r->path.text, "sep", json_array_get(sep, 1), &ids[1]));
    const int32_t parts[] = {ids[0], MHAI_TEXT_A, ids[1], ids[1], MHAI_TEXT_B, ids[1]};
    for (int i = 0; i < 6; i++) {
        if (i < 3) MHA_TRY(add_part(r, &templates[0], parts[i], 0));
        MHA_TRY(add_part(r, &templates[1], parts[i], 0));
    }
    return MHA_OK;
}

static const row processors[] = {{"ByteLevel", take_trimming},
                                 {"TemplateProcessing", read_template},
                                 {"RobertaProcessing", read_roberta},
                                 {NULL, NULL}};

static void set_plain_templates(mha_tokenizer *t)
{
    for (int which = 0; which < 2; which++) {
        mhai_template *to = &t->templates[which];
        to->count = 1 + which;
        for (int32_t i = 0; i <= which; i++) {
            to->parts[i].id = -1 - i;
            to->parts[i].type = i;
        }
    }
}

/* ---- model ----------------------------------------------------------------------------------- */

static mha_status read_merge(const reader *r, const json_t *json, mhai_merge *merge)
{
    const char *line = json_string_value(json), *gap = line ? strchr(line, ' ') : NULL;
    const json_t *left = json_array_get(json, 0), *right = json_array_get(json, 1);
    if (line && gap && !strchr(gap + 1, ' ')) {
        *merge = (mhai_merge){line, gap + 1, (int32_t)(gap - line), (int32_t)strlen(gap + 1)};
        return MHA_OK;
    }
    if (json_array_size(json) != 2 || !json_is_string(left) || !json_is_string(right))
        return malformed(r, "model", "each of the merges must be \"a b\" or [\"a\", \"b\"]");
    *merge = (mhai_merge){json_string_value(left), json_string_value(right),
                          (int32_t)json_string_length(left), (int32_t)json_string_length(right)};
    return MHA_OK;
}

static mha_status read_suffix(reader *r, const json_t *json)
{
    if (!json || json_is_null(json)) return MHA_OK;
    const char *suffix = json_string_value(json);
    if (!suffix || strlen(suffix) > MHAI_SUFFIX_BYTES || strlen(suffix) < json_string_length(json))
        return refuse(r, "model", "such an end_of_word_suffix");
    if (suffix[0]) r->bpe->suffix = suffix;
    return MHA_OK;
}

static mha_status read_model(reader *r, const json_t *model)
{
    const json_t *merges = json_object_get(model, "merges"), *json;
    const double dropout = json_number_value(json_object_get(model, "dropout"));
    json = json_object_get(model, "continuing_subword_prefix");
    if (json && !json_is_null(json) && json_string_length(json) != 0)
        return refuse(r, "model", "continuing_subword_prefix");
    MHA_TRY(read_suffix(r, json_object_get(model, "end_of_word_suffix")));
    if (dropout != 0.0) return refuse(r, "model", "dropout");
    MHA_TRY(get_flag(r, model, "fuse_unk", false, &r->bpe->fuse_unk));
    MHA_TRY(get_flag(r, model, "byte_fallback", false, &r->bpe->byte_fallback));
    MHA_TRY(get_flag(r, model, "ignore_merges", false, &r->bpe->ignore_merges));
    json = json_object_get(model, "unk_token");
    r->bpe->unk_text = json_string_value(json);
    if (json && !json_is_null(json) && json_string_length(json) == 0)
        return malformed(r, "model", "unk_token must be a text that is not empty");
    if (json_string_length(json) > MHAI_ADDED_BYTES) /* limited, because it is looked
                                                      * up for each unknown byte */
        return refuse(r, "model", "an unk_token of so many bytes");
    if (!json_is_array(merges)) return malformed(r, "model", "merges must be a list");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        mhai_merge merge;
        MHA_TRY(read_merge(r, json_array_get(merges, i), &merge));
        MHA_TRY(mhai_vector_push(&r->l->merges, &merge));
    }
    return MHA_OK;
}

/* The unknown token is written for what has no piece; without one, the reference fails. */
static mha_status read_unigram_model(reader *r, const json_t *model)
{
    const json_t *unk = json_object_get(model, "unk_id");
    r->bpe->fuse_unk = true;
    MHA_TRY(get_flag(r, model, "byte_fallback", false, &r->bpe->byte_fallback));
    if (!unk || json_is_null(unk)) return refuse(r, "model", "a Unigram without unk_id");
    return mhai_tokenizer_folder_id(r->path.text, "unk_id", unk, &r->bpe->unk);
}

static mha_status read_steps(reader *r, const json_t *root)
{
    MHA_TRY(read_part(r, "normalizer", "normalizers", normalizers,
                      json_object_get(root, "normalizer"), 0));
    r->bpe->normal_count = r->bpe->step_count;
    MHA_TRY(read_part(r, "pre_tokenizer", "pretokenizers", pre_tokenizers,
                      json_object_get(root, "pre_tokenizer"), 0));
    set_plain_templates(r->l->tokenizer);
    return read_part(r, "post_processor", "processors", processors,
                     json_object_get(root, "post_processor"), 0);
}

static mha_status begin(mhai_loader *l, reader *r)
{
    *r = (reader){.l = l, .path = mhai_show_path(l->folder.paths[MHAI_TOKENIZER_JSON])};
    MHA_TRY(mhai_bpe_create(&l->allocator, &l->tokenizer->bpe));
    r->bpe = l->tokenizer->bpe;
    l->folder.generic = true;
    return MHA_OK;
}

mha_status mhai_bpe_read(mhai_loader *l)
{
    const json_t *root = l->folder.json[MHAI_TOKENIZER_JSON];
    reader r;
    MHA_TRY(begin(l, &r));
    MHA_TRY(read_model(&r, json_object_get(root, "model")));
    MHA_TRY(read_steps(&r, root));
    r.bpe->byte_level = r.has_bytes;
    if (r.bpe->suffix && (!r.has_bytes || r.bpe->ignore_merges))
        return refuse(&r, "model", "end_of_word_suffix with ignore_merges or without ByteLevel");
    if (!r.has_bytes && !r.bpe->marks_spaces)
        return refuse(&r, "pre_tokenizer",
                      "neither ByteLevel nor one that writes spaces as \u2581");
    l->tokenizer->kind = r.has_bytes ? &mhai_kind_byte_bpe : &mhai_kind_sentencepiece_bpe;
    return MHA_OK;
}

mha_status mhai_unigram_read(mhai_loader *l)
{
    const json_t *root = l->folder.json[MHAI_TOKENIZER_JSON];
    reader r;
    MHA_TRY(begin(l, &r));
    MHA_TRY(read_unigram_model(&r, json_object_get(root, "model")));
    MHA_TRY(read_steps(&r, root));
    if (r.has_bytes) return refuse(&r, "pre_tokenizer", "ByteLevel with Unigram");
    l->tokenizer->kind = &mhai_kind_unigram;
    return MHA_OK;
}
