/* See speech.h. */
#include "model/speech.h"

#include "io/file.h"
#include "io/json_file.h"
#include "model/folder.h"
#include "model/model.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

static const size_t most_bytes = 16u << 20;
enum { MOST_WIDTH = 1001 };

/* The file that is being read. */
typedef struct reading {
    const char *path;
    const json_t *root;
    const mha_model_info *info;
    mhai_speech *speech;
} reading;

void mhai_speech_free(mhai_speech *speech)
{
    free(speech->heads);
    free(speech->languages.ids);
    *speech = (mhai_speech){0};
}

static const json_t *field(const reading *r, const char *name)
{
    const json_t *value = json_object_get(r->root, name);
    return json_is_null(value) ? NULL : value;
}

/* Read a number from least to most; absent: *to is unchanged. */
static mha_status read_number(const reading *r, const char *name, const json_t *value,
                              int64_t least, int64_t most, int64_t *to)
{
    if (!value) return MHA_OK;
    const int64_t number = (int64_t)json_integer_value(value);
    if (!json_is_integer(value) || number < least || number > most)
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a number from %lld to %lld",
                              name, (long long)least, (long long)most);
    *to = number;
    return MHA_OK;
}

static mha_status read_token(const reading *r, const char *name, const json_t *value, int64_t *to)
{
    return read_number(r, name, value, 0, r->info->vocab_size - 1, to);
}

static mha_status read_heads(const reading *r)
{
    static const char name[] = "alignment_heads";
    const json_t *list = field(r, name);
    const size_t count = json_array_size(list);
    if (!list) return MHA_OK;
    if (!json_is_array(list) || count > MHAI_MOST_HEADS)
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a list of at most %d pairs",
                              name, (int)MHAI_MOST_HEADS);
    r->speech->heads = calloc(2 * count + 1, sizeof *r->speech->heads);
    if (!r->speech->heads) return MHA_NO_MEMORY("model");
    for (size_t i = 0; i < 2 * count; i++) {
        const json_t *pair = json_array_get(list, i / 2);
        const int64_t below = i % 2 ? r->info->heads : r->info->layers;
        int64_t number = -1;
        if (json_array_size(pair) == 2)
            MHA_TRY(read_number(r, name, json_array_get(pair, i % 2), 0, below - 1, &number));
        if (number < 0)
            return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s': entry %zu is not [layer, head]",
                                  name, i / 2);
        r->speech->heads[i] = (int32_t)number;
    }
    r->speech->head_count = (int64_t)count;
    return MHA_OK;
}

/* Read the tokens of a table of names; *named is that of `name`. */
static mha_status read_table(const reading *r, const char *table, const char *name, mhai_ends *all,
                             int64_t *named)
{
    const json_t *names = field(r, table), *value;
    const char *key;
    if (names && (!json_is_object(names) || json_object_size(names) > MHAI_MOST_HEADS))
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a table of at most %d tokens",
                              table, (int)MHAI_MOST_HEADS);
    json_object_foreach((json_t *)(uintptr_t)names, key, value) /* only read */
    {
        int64_t id = -1;
        MHA_TRY(read_token(r, table, value, &id));
        if (all) MHA_TRY(mhai_ends_add(all, id, r->info->vocab_size));
        if (name && !strcmp(key, name)) *named = id;
    }
    return MHA_OK;
}

/* forced_decoder_ids: [[1, language or null], [2, task], ...]. */
static mha_status read_forced(const reading *r)
{
    static const char name[] = "forced_decoder_ids";
    const json_t *list = field(r, name);
    const size_t count = json_array_size(list);
    if (!list) return MHA_OK;
    if (!json_is_array(list) || count > MHAI_MOST_PROMPT - 2)
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is not a list of at most %d pairs",
                              name, (int)MHAI_MOST_PROMPT - 2);
    r->speech->prompt_count = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(list, i), *id = json_array_get(pair, 1);
        int64_t token = -1;
        if (json_array_size(pair) != 2 ||
            json_integer_value(json_array_get(pair, 0)) != (json_int_t)i + 1)
            return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s': entry %zu is not [%zu, token]",
                                  name, i, i + 1);
        MHA_TRY(read_token(r, name, json_is_null(id) ? NULL : id, &token));
        r->speech->prompt[r->speech->prompt_count++] = (int32_t)token;
    }
    return MHA_OK;
}

/* "language" and "task", which replace forced_decoder_ids. */
static mha_status read_task(const reading *r)
{
    mhai_speech *s = r->speech;
    const json_t *language = field(r, "language"), *task = field(r, "task");
    char name[64] = "";
    int64_t id = -1;
    MHA_TRY(read_table(r, "lang_to_id", NULL, &s->languages, NULL));
    MHA_TRY(read_table(r, "task_to_id", "transcribe", NULL, &s->transcribe));
    if (!language && !task) return read_forced(r);
    s->prompt_count = 0;
    if (language) {
        const char *given = json_is_string(language) ? json_string_value(language) : "?";
        mha_format(name, sizeof name, *given == '<' ? "%.48s" : "<|%.48s|>", given);
        MHA_TRY(read_table(r, "lang_to_id", name, NULL, &id));
        if (id < 0)
            return mhai_path_fail(MHA_ERR_UNSUPPORTED, r->path,
                                  "'language' is '%.48s', which 'lang_to_id' does not list; give a "
                                  "code such as 'en'",
                                  given);
        s->prompt[s->prompt_count++] = (int32_t)id;
    } else if (s->languages.count > 0) {
        s->prompt[s->prompt_count++] = -1;
    }
    id = s->transcribe;
    if (task) {
        id = -1;
        const char *given = json_is_string(task) ? json_string_value(task) : "?";
        MHA_TRY(read_table(r, "task_to_id", given, NULL, &id));
        if (id < 0)
            return mhai_path_fail(MHA_ERR_MODEL, r->path,
                                  "'task' is '%.48s', which 'task_to_id' does not list", given);
    }
    if (id >= 0) s->prompt[s->prompt_count++] = (int32_t)id;
    return MHA_OK;
}

static mha_status read_file(const reading *r)
{
    mhai_speech *s = r->speech;
    const char *width = "median_filter_width", *silent = "no_timestamps_token_id";
    MHA_TRY(read_number(r, width, field(r, width), 1, MOST_WIDTH, &s->median_width));
    if (s->median_width % 2 == 0)
        return mhai_path_fail(MHA_ERR_MODEL, r->path, "'%s' is %lld, expected an odd number", width,
                              (long long)s->median_width);
    MHA_TRY(read_token(r, silent, field(r, silent), &s->no_timestamps));
    MHA_TRY(read_number(r, "max_initial_timestamp_index", field(r, "max_initial_timestamp_index"),
                        0, INT32_MAX, &s->latest_start));
    MHA_TRY(read_heads(r));
    return read_task(r);
}

mha_status mhai_speech_read(const char *folder, const mha_model_info *info, mhai_speech *speech)
{
    mha_status status = MHA_OK;
    *speech = (mhai_speech){.first_timestamp = -1,
                            .latest_start = -1,
                            .median_width = 7,
                            .no_timestamps = -1,
                            .transcribe = -1};
    for (const char *const *name = mhai_configuration_files; *name && status == MHA_OK; name++) {
        json_t *root = NULL;
        if (!mhai_model_holds(folder, *name)) continue;
        char *path = mhai_model_join(folder, *name);
        status = path ? mhai_json_read(path, most_bytes, &root) : MHA_NO_MEMORY("model");
        free(speech->heads); /* the second file decides */
        speech->heads = NULL;
        speech->head_count = 0;
        if (status == MHA_OK) status = read_file(&(reading){path, root, info, speech});
        json_decref(root);
        free(path);
    }
    if (speech->no_timestamps >= 0 && speech->no_timestamps + 1 < info->vocab_size) {
        speech->first_timestamp = speech->no_timestamps + 1;
        speech->timestamps = info->vocab_size - speech->first_timestamp;
    }
    if (status == MHA_OK && speech->prompt_count == 0 && speech->languages.count > 0) {
        speech->prompt[speech->prompt_count++] = -1;
        if (speech->transcribe >= 0)
            speech->prompt[speech->prompt_count++] = (int32_t)speech->transcribe;
    }
    return status;
}

mha_status mha_model_speech_settings(const mha_model *model, mha_speech_settings *settings)
{
    MHA_NEED("mha_model_speech_settings", model, settings);
    MHA_TRY(mha_struct_check_size("mha_speech_settings", settings->struct_size, sizeof *settings));
    const mhai_speech *s = &model->speech;
    if (!model->encoder || !model->encoder->audio_stem)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: the model does not transcribe audio",
                        model->info.architecture);
    *settings = (mha_speech_settings){.struct_size = settings->struct_size,
                                      .first_timestamp = (int32_t)s->first_timestamp,
                                      .timestamps = s->timestamps,
                                      .latest_start = s->latest_start,
                                      .median_width = s->median_width,
                                      .heads = s->heads,
                                      .head_count = s->head_count,
                                      .languages = s->languages.ids,
                                      .language_count = s->languages.count,
                                      .prompt = s->prompt,
                                      .prompt_count = s->prompt_count};
    return MHA_OK;
}
