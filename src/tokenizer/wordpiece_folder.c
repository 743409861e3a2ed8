/* The settings of a WordPiece tokenizer. If files contradict each other, transformers silently uses
 * one of them. Here, a contradiction is an error. A setting of tokenizer.json that this tokenizer
 * would handle differently is also an error. */
#include "tokenizer/tokenizer_load.h"

#include "io/file.h"

#include <multihead/component.h>

#include <string.h>

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

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
    const char *class = mhai_show_json(json);
    f->generic = is_one_of(class, generic);
    if (!f->generic && !is_one_of(class, bert))
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, path,
            "tokenizer_class '%s' is not supported for a WordPiece, only BERT's is",
            mhai_show_name(class).text);
    if (f->generic && !f->json[MHAI_TOKENIZER_JSON])
        return mhai_path_fail(MHA_ERR_MODEL, path,
                              "tokenizer_class '%s' needs tokenizer.json beside it", class);
    return MHA_OK;
}

static mha_status read_config(mhai_folder *f, mhai_rules *rules)
{
    const char *path = f->paths[MHAI_CONFIG_JSON];
    const json_t *config = f->json[MHAI_CONFIG_JSON];
    mhai_answer lower, strip, cjk;
    MHA_TRY(check_class(f));
    MHA_TRY(mhai_tokenizer_folder_flag(path, config, "do_lower_case", &lower));
    MHA_TRY(mhai_tokenizer_folder_flag(path, config, "strip_accents", &strip));
    MHA_TRY(mhai_tokenizer_folder_flag(path, config, "tokenize_chinese_chars", &cjk));
    rules->clean = true;
    rules->lower = mhai_or_default(lower, true);
    rules->strip = mhai_or_default(strip, rules->lower);
    rules->cjk = mhai_or_default(cjk, true);
    return MHA_OK;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static mha_status check_type(const char *path, const json_t *root, const char *part,
                             const char *wanted)
{
    const json_t *object = json_object_get(root, part), *type = json_object_get(object, "type");
    if (json_is_string(type) && strcmp(json_string_value(type), wanted) == 0) return MHA_OK;
    return mhai_path_fail(
        MHA_ERR_UNSUPPORTED, path, "%s is '%s', only %s is supported", part,
        mhai_show_name(mhai_show_json(json_is_object(object) ? type : object)).text, wanted);
}

static mha_status check_model(const mhai_folder *f)
{
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    const json_t *model = json_object_get(f->json[MHAI_TOKENIZER_JSON], "model");
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    const json_t *unknown = json_object_get(model, "unk_token");
    if (prefix && strcmp(mhai_show_json(prefix), "##") != 0)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "continuing_subword_prefix is '%s', only ## is supported",
                              mhai_show_name(mhai_show_json(prefix)).text);
    if (most && json_number_value(most) != MHAI_WORD_CHARS)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "max_input_chars_per_word is %.17g, only %d is supported",
                              json_number_value(most), MHAI_WORD_CHARS);
    if (unknown && strcmp(mhai_show_json(unknown), f->names[MHAI_UNK]) != 0)
        return mhai_path_fail(MHA_ERR_MODEL, path, "unk_token is '%s', but '%s' in the other files",
                              mhai_show_name(mhai_show_json(unknown)).text,
                              mhai_show_name(f->names[MHAI_UNK]).text);
    return MHA_OK;
}

static mha_status check_normalizer(mhai_folder *f, mhai_rules *own)
{
    static const char *const keys[] = {"clean_text", "handle_chinese_chars", "strip_accents",
                                       "lowercase"};
    const char *path = f->paths[MHAI_TOKENIZER_JSON];
    const json_t *json = json_object_get(f->json[MHAI_TOKENIZER_JSON], "normalizer");
    mhai_answer said[4];
    MHA_TRY(check_type(path, f->json[MHAI_TOKENIZER_JSON], "normalizer", "BertNormalizer"));
    for (int i = 0; i < 4; i++) MHA_TRY(mhai_tokenizer_folder_flag(path, json, keys[i], &said[i]));
    const bool lower = mhai_or_default(said[3], true);
    const mhai_rules rules = {mhai_or_default(said[0], true), mhai_or_default(said[1], true),
                              mhai_or_default(said[2], lower), lower};
    if (f->generic) {
        *own = rules;
        return MHA_OK;
    }
    const bool differs[4] = {rules.clean != own->clean, rules.cjk != own->cjk,
                             rules.strip != own->strip, rules.lower != own->lower};
    for (int i = 3; i >= 0; i--) /* lowercase is first, because strip_accents may only follow it */
        if (differs[i])
            return mhai_path_fail(MHA_ERR_MODEL, path,
                                  "%s contradicts tokenizer_config.json, where do_lower_case and "
                                  "tokenize_chinese_chars are true unless it says otherwise",
                                  keys[i]);
    return MHA_OK;
}

/* The parts of the two templates: [CLS] A [SEP], and [CLS] A [SEP] B [SEP]. */
typedef struct part {
    const char *kind;
    int named; /* MHAI_NAMED: the text `sequence`, not a special token */
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
        return mhai_path_fail(
            MHA_ERR_UNSUPPORTED, path, "post_processor is another template than %s A %s B %s",
            mhai_show_name(f->names[MHAI_CLS]).text, mhai_show_name(f->names[MHAI_SEP]).text,
            mhai_show_name(f->names[MHAI_SEP]).text);
    const json_t *tokens = json_object_get(processor, "special_tokens");
    const int which[2] = {MHAI_CLS, MHAI_SEP};
    for (int i = 0; i < 2; i++) {
        const char *name = f->names[which[i]];
        const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
        if (json_array_size(ids) != 1)
            return mhai_path_fail(MHA_ERR_FORMAT, path, "post_processor must give one id for '%s'",
                                  mhai_show_name(name).text);
        MHA_TRY(mhai_tokenizer_folder_id(path, name, json_array_get(ids, 0),
                                         &f->template_ids[which[i]]));
    }
    return MHA_OK;
}

/* Read {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}. */
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
            return mhai_path_fail(MHA_ERR_MODEL, path, "post_processor has no '%s' as its %s",
                                  mhai_show_name(name).text, keys[i]);
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
    /* BERT's class builds its own template. A generic class without one adds no special tokens. */
    if ((!processor || json_is_null(processor)) && !f->generic) return MHA_OK;
    if (type && strcmp(type, "BertProcessing") == 0) return read_bert_processing(f, processor);
    MHA_TRY(
        check_type(f->paths[MHAI_TOKENIZER_JSON], root, "post_processor", "TemplateProcessing"));
    return read_template(f, processor);
}

static mha_status read_tokenizer_json(mhai_folder *f, mhai_rules *rules)
{
    if (!f->json[MHAI_TOKENIZER_JSON]) return MHA_OK;
    MHA_TRY(check_model(f));
    MHA_TRY(check_normalizer(f, rules));
    MHA_TRY(check_type(f->paths[MHAI_TOKENIZER_JSON], f->json[MHAI_TOKENIZER_JSON], "pre_tokenizer",
                       "BertPreTokenizer"));
    return check_processor(f);
}

mha_status mhai_wordpiece_read(mhai_loader *loader)
{
    mhai_folder *f = &loader->folder;
    static const char *const usual[MHAI_NAMED] = {
        [MHAI_UNK] = "[UNK]", [MHAI_SEP] = "[SEP]",   [MHAI_PAD] = "[PAD]",
        [MHAI_CLS] = "[CLS]", [MHAI_MASK] = "[MASK]",
    };
    for (int i = 0; i < MHAI_NAMED; i++)
        if (!f->names[i]) f->names[i] = usual[i];
    loader->tokenizer->kind = &mhai_kind_wordpiece;
    MHA_TRY(read_config(f, &loader->tokenizer->rules));
    f->defaults = !f->generic;
    return read_tokenizer_json(f, &loader->tokenizer->rules);
}

/* ---- The template ---------------------------------------------------------------------------- */

/* Check the special tokens. Those for masks and padding are optional. */
static mha_status check_named(const mhai_loader *l)
{
    static const int needed[] = {MHAI_UNK, MHAI_CLS, MHAI_SEP};
    const mha_tokenizer *t = l->tokenizer;
    const mhai_folder *f = &l->folder;
    const mhai_shown path = mhai_show_path(l->vocabulary_path);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (t->named[needed[i]] < 0)
            return mha_fail(MHA_ERR_MODEL, "%s: the vocabulary has no '%s'", path.text,
                            mhai_show_name(f->names[needed[i]]).text);
    if (t->named[MHAI_UNK] >= t->model_count)
        return mha_fail(MHA_ERR_MODEL, "%s: '%s' is an added token, but not in model.vocab",
                        path.text, mhai_show_name(f->names[MHAI_UNK]).text);
    for (int i = 0; i < MHAI_NAMED; i++)
        if (f->template_ids[i] >= 0 && f->template_ids[i] != t->named[i])
            return mha_fail(MHA_ERR_MODEL,
                            "%s: post_processor gives '%s' the id %d, in the vocabulary it has %d",
                            path.text, mhai_show_name(f->names[i]).text, f->template_ids[i],
                            t->named[i]);
    return MHA_OK;
}

mha_status mhai_wordpiece_template(mhai_loader *l)
{
    mha_tokenizer *t = l->tokenizer;
    MHA_TRY(check_named(l));
    const int32_t cls = t->named[MHAI_CLS], sep = t->named[MHAI_SEP];
    for (int paired = 0; paired < 2; paired++) {
        mhai_template *to = &t->templates[paired];
        mhai_template_add(to, cls, 0);
        mhai_template_add(to, MHAI_TEXT_A, 0);
        mhai_template_add(to, sep, 0);
        if (!paired) continue;
        mhai_template_add(to, MHAI_TEXT_B, 1);
        mhai_template_add(to, sep, 1);
    }
    return MHA_OK;
}
