/* See tokenizer_folder.h. Where files say different things, transformers takes one and does not
 * tell; here that is an error. So is whatever this tokenizer would do otherwise than
 * tokenizer.json says. */
#include "tokenizer/tokenizer_folder.h"

#include "io/file.h"
#include "io/json_file.h"

#include <multihead/component.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const file_names[MHAI_FILES] = {"tokenizer.json", "tokenizer_config.json",
                                                   "special_tokens_map.json", "vocab.txt"};

/* A vocabulary of a million tokens has about 30 MB. */
static const size_t most_bytes = (size_t)256 << 20;

static const struct {
    const char *key, *text;
} named[MHAI_NAMED] = {
    [MHAI_UNK] = {"unk_token", "[UNK]"},    [MHAI_SEP] = {"sep_token", "[SEP]"},
    [MHAI_PAD] = {"pad_token", "[PAD]"},    [MHAI_CLS] = {"cls_token", "[CLS]"},
    [MHAI_MASK] = {"mask_token", "[MASK]"},
};

/* ---- Fields ---------------------------------------------------------------------------------- */

typedef enum answer { UNSAID = -1, NO = 0, YES = 1 } answer;

static mha_status get_flag(const char *path, const json_t *object, const char *key, answer *value)
{
    const json_t *json = json_object_get(object, key);
    *value = UNSAID;
    if (!json || json_is_null(json)) return MHA_OK;
    if (!json_is_boolean(json))
        return mha_fail(MHA_ERR_FORMAT, "%s: %s must be true, false or null",
                        mhai_show_path(path).text, key);
    *value = json_is_true(json) ? YES : NO;
    return MHA_OK;
}

static bool or_default(answer value, bool otherwise)
{
    return value == UNSAID ? otherwise : value == YES;
}

/* For messages: a string's text, or what else it is. */
static const char *show_json(const json_t *json)
{
    if (!json) return "nothing";
    switch (json_typeof(json)) {
    case JSON_STRING: return json_string_value(json);
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_NULL: return "null";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "a number";
    }
}

mha_status mhai_tokenizer_folder_id(const char *path, const char *what, const json_t *json,
                                    int32_t *id)
{
    const double value = json_number_value(json);
    if (!json_is_number(json) || !(value >= 0) || value >= INT32_MAX ||
        value != (double)(int32_t)value)
        return mha_fail(MHA_ERR_FORMAT, "%s: the id of '%s' must be an integer from 0 to %d",
                        mhai_show_path(path).text, mhai_show_name(what).text, INT32_MAX - 1);
    *id = (int32_t)value;
    return MHA_OK;
}

mha_status mhai_tokenizer_folder_flags(const char *path, const json_t *json, bool *normal)
{
    static const char *const refused[] = {"lstrip", "rstrip", "single_word"};
    answer value = UNSAID, special = UNSAID;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        MHA_TRY(get_flag(path, json, refused[i], &value));
        if (value == YES)
            return mha_fail(MHA_ERR_UNSUPPORTED, "%s: token '%s' has %s, which is not supported",
                            mhai_show_path(path).text,
                            mhai_show_name(show_json(json_object_get(json, "content"))).text,
                            refused[i]);
    }
    MHA_TRY(get_flag(path, json, "special", &special));
    MHA_TRY(get_flag(path, json, "normalized", &value));
    *normal = or_default(value, special != YES);
    return MHA_OK;
}

mha_status mhai_tokenizer_folder_token(const char *path, const char *key, const json_t *json,
                                       const char **text)
{
    bool normal = false;
    *text = NULL;
    if (!json || json_is_null(json)) return MHA_OK;
    if (json_is_object(json)) {
        MHA_TRY(mhai_tokenizer_folder_flags(path, json, &normal));
        json = json_object_get(json, "content");
    }
    if (!json_is_string(json) || json_string_length(json) == 0)
        return mha_fail(MHA_ERR_FORMAT, "%s: %s must be a text that is not empty",
                        mhai_show_path(path).text, key);
    *text = json_string_value(json);
    return MHA_OK;
}

/* ---- tokenizer_config.json and special_tokens_map.json --------------------------------------- */

static mha_status read_names(mhai_folder *f)
{
    for (int which = 0; which < MHAI_NAMED; which++) {
        f->names[which] = named[which].text;
        for (int file = MHAI_CONFIG_JSON; file <= MHAI_MAP_JSON; file++) {
            const char *text = NULL, *key = named[which].key;
            MHA_TRY(mhai_tokenizer_folder_token(f->paths[file], key,
                                                json_object_get(f->json[file], key), &text));
            if (!text) continue;
            if (f->stated[which] && strcmp(text, f->names[which]) != 0)
                return mha_fail(MHA_ERR_MODEL, "%s: %s is '%s', but '%s' in %s",
                                mhai_show_path(f->paths[file]).text, key, mhai_show_name(text).text,
                                mhai_show_name(f->names[which]).text, file_names[MHAI_CONFIG_JSON]);
            f->names[which] = text;
            f->stated[which] = true;
        }
    }
    return MHA_OK;
}

static bool is_one_of(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(text, *list) == 0) return true;
    return false;
}

static mha_status check_class(mhai_folder *f)
{
    static const char *const bert[] = {"BertTokenizer",
                                       "BertTokenizerFast",
                                       "DistilBertTokenizer",
                                       "DistilBertTokenizerFast",
                                       "ElectraTokenizer",
                                       "ElectraTokenizerFast",
                                       NULL};
    static const char *const generic[] = {"PreTrainedTokenizerFast", "TokenizersBackend", NULL};
    const char *path = f->paths[MHAI_CONFIG_JSON];
    const json_t *json = json_object_get(f->json[MHAI_CONFIG_JSON], "tokenizer_class");
    if (!json || json_is_null(json)) return MHA_OK;
    const char *class = show_json(json);
    f->generic = is_one_of(class, generic);
    if (!f->generic && !is_one_of(class, bert))
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: tokenizer_class '%s' is not supported, only BERT's WordPiece is",
                        mhai_show_path(path).text, mhai_show_name(class).text);
    if (f->generic && !f->json[MHAI_TOKENIZER_JSON])
        return mha_fail(MHA_ERR_MODEL, "%s: tokenizer_class '%s' needs tokenizer.json beside it",
                        mhai_show_path(path).text, class);
    return MHA_OK;
}

static mha_status read_config(mhai_folder *f)
{
    const char *path = f->paths[MHAI_CONFIG_JSON];
    const json_t *config = f->json[MHAI_CONFIG_JSON];
    answer lower, strip, cjk, split;
    MHA_TRY(check_class(f));
    MHA_TRY(get_flag(path, config, "do_lower_case", &lower));
    MHA_TRY(get_flag(path, config, "strip_accents", &strip));
    MHA_TRY(get_flag(path, config, "tokenize_chinese_chars", &cjk));
    MHA_TRY(get_flag(path, config, "split_special_tokens", &split));
    if (split == YES)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: split_special_tokens is not supported",
                        mhai_show_path(path).text);
    f->rules.clean = true;
    f->rules.lower = or_default(lower, true);
    f->rules.strip = or_default(strip, f->rules.lower);
    f->rules.cjk = or_default(cjk, true);
    const json_t *length = json_object_get(config, "model_max_length");
    const double tokens = json_number_value(length);
    if (length && !json_is_null(length) && !(json_is_number(length) && tokens >= 1))
        return mha_fail(MHA_ERR_FORMAT, "%s: model_max_length must be a number from 1",
                        mhai_show_path(path).text);
    /* transformers writes 1e30 for "no limit known". */
    f->max_length = tokens >= 1 && tokens < 1e15 ? (int64_t)tokens : 0;
    return MHA_OK;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static mha_status check_type(const char *path, const json_t *root, const char *part,
                             const char *wanted)
{
    const json_t *object = json_object_get(root, part), *type = json_object_get(object, "type");
    if (json_is_string(type) && strcmp(json_string_value(type), wanted) == 0) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: %s is '%s', only %s is supported",
                    mhai_show_path(path).text, part,
                    mhai_show_name(show_json(json_is_object(object) ? type : object)).text, wanted);
}

static mha_status check_model(const mhai_folder *f)
{
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    const json_t *model = json_object_get(f->json[MHAI_TOKENIZER_JSON], "model");
    /* Old files have no type; only BPE has merges. */
    if (!json_is_object(model) || json_object_get(model, "type") ||
        json_object_get(model, "merges"))
        MHA_TRY(check_type(path, f->json[MHAI_TOKENIZER_JSON], "model", "WordPiece"));
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    const json_t *unknown = json_object_get(model, "unk_token");
    if (prefix && strcmp(show_json(prefix), "##") != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: continuing_subword_prefix is '%s', only ## is supported",
                        mhai_show_path(path).text, mhai_show_name(show_json(prefix)).text);
    if (most && json_number_value(most) != MHAI_WORD_CHARS)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: max_input_chars_per_word is %.17g, only %d is supported",
                        mhai_show_path(path).text, json_number_value(most), MHAI_WORD_CHARS);
    if (unknown && strcmp(show_json(unknown), f->names[MHAI_UNK]) != 0)
        return mha_fail(MHA_ERR_MODEL, "%s: unk_token is '%s', but '%s' in the other files",
                        mhai_show_path(path).text, mhai_show_name(show_json(unknown)).text,
                        mhai_show_name(f->names[MHAI_UNK]).text);
    return MHA_OK;
}

static mha_status check_normalizer(mhai_folder *f)
{
    static const char *const keys[] = {"clean_text", "handle_chinese_chars", "strip_accents",
                                       "lowercase"};
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    const json_t *json = json_object_get(f->json[MHAI_TOKENIZER_JSON], "normalizer");
    answer said[4];
    MHA_TRY(check_type(path, f->json[MHAI_TOKENIZER_JSON], "normalizer", "BertNormalizer"));
    for (int i = 0; i < 4; i++) MHA_TRY(get_flag(path, json, keys[i], &said[i]));
    const bool lower = or_default(said[3], true);
    const mhai_rules rules = {or_default(said[0], true), or_default(said[1], true),
                              or_default(said[2], lower), lower};
    if (f->generic) {
        f->rules = rules;
        return MHA_OK;
    }
    const bool differs[4] = {rules.clean != f->rules.clean, rules.cjk != f->rules.cjk,
                             rules.strip != f->rules.strip, rules.lower != f->rules.lower};
    for (int i = 3; i >= 0; i--) /* lowercase first: strip_accents may only follow it */
        if (differs[i])
            return mha_fail(MHA_ERR_MODEL,
                            "%s: %s contradicts tokenizer_config.json, where do_lower_case and "
                            "tokenize_chinese_chars are true unless it says otherwise",
                            mhai_show_path(path).text, keys[i]);
    return MHA_OK;
}

/* The parts of the two templates: [CLS] A [SEP], and [CLS] A [SEP] B [SEP]. */
typedef struct part {
    const char *kind;
    int named; /* MHAI_NAMED: not a special token but sequence */
    const char *sequence;
    int type;
} part;

static const part single[] = {{"SpecialToken", MHAI_CLS, NULL, 0},
                              {"Sequence", MHAI_NAMED, "A", 0},
                              {"SpecialToken", MHAI_SEP, NULL, 0}};
static const part couple[] = {{"SpecialToken", MHAI_CLS, NULL, 0},
                              {"Sequence", MHAI_NAMED, "A", 0},
                              {"SpecialToken", MHAI_SEP, NULL, 0},
                              {"Sequence", MHAI_NAMED, "B", 1},
                              {"SpecialToken", MHAI_SEP, NULL, 1}};

static bool matches(const mhai_folder *f, const json_t *list, const part *parts, size_t count)
{
    if (!json_is_array(list) || json_array_size(list) != count) return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *json = json_object_get(json_array_get(list, i), parts[i].kind);
        const json_t *type = json_object_get(json, "type_id");
        const char *id = json_string_value(json_object_get(json, "id"));
        const char *want =
            parts[i].named < MHAI_NAMED ? f->names[parts[i].named] : parts[i].sequence;
        if (!id || strcmp(id, want) != 0 || !json_is_number(type) ||
            json_number_value(type) != parts[i].type)
            return false;
    }
    return true;
}

static mha_status read_template(mhai_folder *f, const json_t *processor)
{
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    if (!matches(f, json_object_get(processor, "single"), single, 3) ||
        !matches(f, json_object_get(processor, "pair"), couple, 5))
        return mha_fail(
            MHA_ERR_UNSUPPORTED, "%s: post_processor is another template than %s A %s B %s",
            mhai_show_path(path).text, mhai_show_name(f->names[MHAI_CLS]).text,
            mhai_show_name(f->names[MHAI_SEP]).text, mhai_show_name(f->names[MHAI_SEP]).text);
    const json_t *tokens = json_object_get(processor, "special_tokens");
    const int which[2] = {MHAI_CLS, MHAI_SEP};
    for (int i = 0; i < 2; i++) {
        const char *name = f->names[which[i]];
        const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
        if (json_array_size(ids) != 1)
            return mha_fail(MHA_ERR_FORMAT, "%s: post_processor must give one id for '%s'",
                            mhai_show_path(path).text, mhai_show_name(name).text);
        MHA_TRY(mhai_tokenizer_folder_id(path, name, json_array_get(ids, 0),
                                         &f->template_ids[which[i]]));
    }
    return MHA_OK;
}

/* {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]} */
static mha_status read_bert_processing(mhai_folder *f, const json_t *processor)
{
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    const int which[2] = {MHAI_CLS, MHAI_SEP};
    const char *const keys[2] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const json_t *pair = json_object_get(processor, keys[i]);
        const char *text = json_string_value(json_array_get(pair, 0));
        const char *name = f->names[which[i]];
        if (!text || strcmp(text, name) != 0)
            return mha_fail(MHA_ERR_MODEL, "%s: post_processor has no '%s' as its %s",
                            mhai_show_path(path).text, mhai_show_name(name).text, keys[i]);
        MHA_TRY(mhai_tokenizer_folder_id(path, name, json_array_get(pair, 1),
                                         &f->template_ids[which[i]]));
    }
    return MHA_OK;
}

static mha_status check_processor(mhai_folder *f)
{
    const json_t *root = f->json[MHAI_TOKENIZER_JSON];
    const json_t *processor = json_object_get(root, "post_processor");
    const char *type = json_string_value(json_object_get(processor, "type"));
    /* BERT's class makes its own; a generic one would add no special tokens at all. */
    if ((!processor || json_is_null(processor)) && !f->generic) return MHA_OK;
    if (type && strcmp(type, "BertProcessing") == 0) return read_bert_processing(f, processor);
    MHA_TRY(
        check_type(f->paths[MHAI_TOKENIZER_JSON], root, "post_processor", "TemplateProcessing"));
    return read_template(f, processor);
}

static mha_status read_tokenizer_json(mhai_folder *f)
{
    if (!f->json[MHAI_TOKENIZER_JSON]) return MHA_OK;
    MHA_TRY(check_model(f));
    MHA_TRY(check_normalizer(f));
    MHA_TRY(check_type(f->paths[MHAI_TOKENIZER_JSON], f->json[MHAI_TOKENIZER_JSON], "pre_tokenizer",
                       "BertPreTokenizer"));
    return check_processor(f);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* A path in the folder; NULL without memory. */
static char *join(const char *folder, const char *name)
{
    const size_t length = strlen(folder), rest = strlen(name);
    char *path = malloc(length + rest + 2);
    if (!path) return NULL;
    memcpy(path, folder, length);
    path[length] = '/';
    memcpy(path + length + 1, name, rest + 1);
    return path;
}

/* Whatever stands there, readable or not, so that what cannot be read is an error and not a
 * missing file. */
static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static mha_status read_file(mhai_folder *f, int file)
{
    const char *path = f->paths[file];
    if (!exists(path)) return MHA_OK;
    if (file == MHAI_VOCAB_TXT) return mha_file_read(path, most_bytes, &f->vocab, &f->vocab_size);
    MHA_TRY(mhai_json_read_reals(path, most_bytes, &f->json[file]));
    if (json_is_object(f->json[file])) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "%s: holds %s, expected a JSON object",
                    mhai_show_path(path).text, show_json(f->json[file]));
}

/* Tokens of older folders that only this file tells of. */
static mha_status refuse_added_tokens_file(const char *path, const mhai_folder *f)
{
    if (f->json[MHAI_TOKENIZER_JSON] ||
        json_object_get(f->json[MHAI_CONFIG_JSON], "added_tokens_decoder"))
        return MHA_OK;
    char *added = join(path, "added_tokens.json");
    if (!added)
        return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate names", mhai_show_path(path).text);
    const bool there = exists(added);
    free(added);
    if (!there) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED,
                    "%s: added_tokens.json is not supported; save the tokenizer again with "
                    "transformers, which writes tokenizer.json",
                    mhai_show_path(path).text);
}

mha_status mhai_tokenizer_folder_open(const char *path, mhai_folder *folder)
{
    *folder = (mhai_folder){.template_ids = {-1, -1, -1, -1, -1}};
    for (int i = 0; i < MHAI_FILES; i++) {
        folder->paths[i] = join(path, file_names[i]);
        if (!folder->paths[i])
            return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate names", mhai_show_path(path).text);
    }
    for (int i = 0; i < MHAI_FILES; i++) MHA_TRY(read_file(folder, i));
    if (!folder->vocab && !folder->json[MHAI_TOKENIZER_JSON])
        return mha_fail(MHA_ERR_FILE, "%s: neither vocab.txt nor tokenizer.json is there",
                        mhai_show_path(path).text);
    MHA_TRY(refuse_added_tokens_file(path, folder));
    MHA_TRY(read_names(folder));
    MHA_TRY(read_config(folder));
    return read_tokenizer_json(folder);
}

void mhai_tokenizer_folder_close(mhai_folder *folder)
{
    for (int i = 0; i < MHAI_FILES; i++) {
        free(folder->paths[i]);
        json_decref(folder->json[i]);
    }
    mha_file_free(folder->vocab);
}
