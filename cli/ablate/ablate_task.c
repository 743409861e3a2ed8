/* Task files: prompts with a right and a wrong continuation, and optionally a corrupted prompt to patch
 * from. A line is a JSON object or tab-separated fields. This file also parses the receivers of
 * --paths. */
#include "ablate/ablate.h"

#include "common/arena.h"
#include "common/texts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SET_TASK = 2, FIELDS = 4 };

static const char *const field_names[FIELDS] = {"prompt", "right", "wrong", "corrupted"};

/* A line of the file. */
typedef struct task_line {
    const char *fields[FIELDS]; /* corrupted may be NULL */
    int64_t number;
} task_line;

typedef struct task_lines {
    const char *path;
    task_line *items;
    int64_t count, room;
} task_lines;

/* ---- lines ----------------------------------------------------------------------------------- */

static cli_exit wrong_line(const task_lines *t, int64_t number, const char *what)
{
    return cli_fail(CLI_BAD_INPUT, "%s: line %" PRId64 ": %s", t->path, number, what);
}

static cli_exit take_json(const task_lines *t, const char *text, size_t bytes, task_line *line)
{
    json_error_t error;
    json_t *object;
    CLI_TRY(texts_json(t->path, text, bytes, JSON_REJECT_DUPLICATES, &object, &error));
    if (!object) return wrong_line(t, line->number, error.text);
    if (!json_is_object(object))
        return wrong_line(t, line->number, "expected an object with prompt, right and wrong");
    for (int i = 0; i < FIELDS; i++) {
        const json_t *value = json_object_get(object, field_names[i]);
        if (value && !json_is_string(value))
            return cli_fail(CLI_BAD_INPUT, "%s: line %" PRId64 ": %s must be a string", t->path,
                            line->number, field_names[i]);
        if (value) line->fields[i] = json_string_value(value);
    }
    return CLI_OK;
}

static cli_exit take_tabs(const task_lines *t, const char *text, size_t bytes, task_line *line)
{
    for (int i = 0; i < FIELDS; i++) {
        const char *end = memchr(text, '\t', bytes);
        const size_t length = end ? (size_t)(end - text) : bytes;
        char *field;
        CLI_TRY(arena_text(text, length, &field));
        line->fields[i] = field;
        if (!end) return CLI_OK;
        text += length + 1;
        bytes -= length + 1;
    }
    return wrong_line(t, line->number, "has more than four fields");
}

static cli_exit take_line(task_lines *t, const char *text, size_t bytes, int64_t number)
{
    task_line line = {.number = number};
    if (bytes > 0 && text[bytes - 1] == '\r') bytes--;
    if (bytes == 0 || text[0] == '#') return CLI_OK;
    if (memchr(text, '\0', bytes)) return wrong_line(t, number, "holds a zero byte");
    CLI_TRY(text[0] == '{' ? take_json(t, text, bytes, &line) : take_tabs(t, text, bytes, &line));
    for (int i = 0; i < FIELDS - 1; i++)
        if (!line.fields[i] || !line.fields[i][0])
            return cli_fail(CLI_BAD_INPUT,
                            "%s: line %" PRId64 ": %s is missing; expected prompt, right and wrong "
                            "continuation, separated by tabs or as JSON",
                            t->path, number, field_names[i]);
    if (line.fields[3] && !line.fields[3][0]) line.fields[3] = NULL;
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 64;
        CLI_TRY(arena_grow(t->room, sizeof *t->items, &t->items));
    }
    t->items[t->count++] = line;
    return CLI_OK;
}

static cli_exit read_lines(task_lines *t)
{
    const char *text;
    size_t size;
    int64_t number = 1;
    CLI_TRY(texts_read_utf8(t->path, &text, &size));
    for (size_t at = 0; at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t bytes = end ? (size_t)(end - text) - at : size - at;
        CLI_TRY(take_line(t, text + at, bytes, number));
        at += bytes + 1;
    }
    if (t->count > 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s has no prompts", t->path);
}

/* ---- prompts --------------------------------------------------------------------------------- */

typedef struct ids_of {
    int32_t *ids;
    int64_t count;
} ids_of;

/* The tokens of a prompt and its continuation, without special tokens at the end. */
static cli_exit encode(text_model *model, const char *path, const task_line *line,
                       const char *prompt, const char *more, ids_of *ids)
{
    const text_limits limits = {0};
    const size_t first = strlen(prompt), second = strlen(more);
    mha_tokens *tokens;
    char *text;
    CLI_TRY(ARENA_ALLOC((int64_t)(first + second + 1), &text));
    memcpy(text, prompt, first);
    memcpy(text + first, more, second);
    text_model_where(model, path, line->number);
    CLI_TRY(text_model_encode(model, &limits, text, first + second, NULL, 0, &tokens));
    ids->ids = tokens->ids;
    ids->count = tokens->count;
    while (ids->count > 0 && tokens->special[ids->count - 1]) ids->count--;
    return CLI_OK;
}

/* The continuation must begin a new token: no token may span the end of the prompt. */
static cli_exit check_joint(const char *path, const task_line *line, const ids_of *prompt,
                            const ids_of *whole, int field)
{
    bool same = whole->count > prompt->count && prompt->count > 0;
    for (int64_t i = 0; i < prompt->count && same; i++) same = whole->ids[i] == prompt->ids[i];
    if (same) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "%s: line %" PRId64 ": %s \"%s\" does not begin a token after the prompt; for "
                    "most models a word begins with a space: \" word\"",
                    path, line->number, field_names[field], line->fields[field]);
}

static void add_terms(const ids_of *prompt, const ids_of *whole, int64_t first_row, double factor,
                      mha_effect_term **terms)
{
    for (int64_t t = prompt->count; t < whole->count; t++)
        *(*terms)++ =
            (mha_effect_term){.factor = factor, .row = first_row + t - 1, .token = whole->ids[t]};
}

/* One sequence ending with the prompt if both continuations are single tokens; otherwise one per
 * continuation. */
static cli_exit fill(const ids_of *prompt, const ids_of whole[2], mha_effect_text *text,
                     int32_t **ids)
{
    const int64_t more[] = {whole[0].count - prompt->count, whole[1].count - prompt->count};
    const bool single = more[0] == 1 && more[1] == 1;
    const int64_t longest = whole[0].count > whole[1].count ? whole[0].count : whole[1].count;
    const int64_t B = single ? 1 : 2, T = single ? prompt->count : longest - 1;
    int64_t *lengths;
    mha_effect_term *terms;
    CLI_TRY(ablate_text(B, T, more[0] + more[1], text, ids, &lengths, &terms));
    for (int64_t b = 0; b < B; b++) {
        lengths[b] = single ? T : whole[b].count - 1; /* no prediction follows the last token */
        memcpy(*ids + b * T, whole[b].ids, (size_t)lengths[b] * sizeof **ids);
    }
    add_terms(prompt, &whole[0], 0, 1, &terms);
    add_terms(prompt, &whole[1], single ? 0 : T, -1, &terms);
    return CLI_OK;
}

/* Replace the prompt by the corrupted prompt, with the same continuations. */
static cli_exit corrupt(text_model *model, const char *path, const task_line *line,
                        const ids_of *prompt, const int32_t *ids, mha_effect_text *text,
                        effect_prompt *made)
{
    const int64_t *shape = text->tokens->shape;
    ids_of other;
    int32_t *copy;
    if (!line->fields[3]) return CLI_OK;
    CLI_TRY(encode(model, path, line, line->fields[3], "", &other));
    if (other.count != prompt->count)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: line %" PRId64 ": the prompt has %" PRId64
                        " tokens, the corrupted one %" PRId64 "; patching needs equal numbers",
                        path, line->number, prompt->count, other.count);
    CLI_TRY(ARENA_ALLOC(shape[0] * shape[1], &copy));
    memcpy(copy, ids, (size_t)(shape[0] * shape[1]) * sizeof *copy);
    for (int64_t b = 0; b < shape[0]; b++)
        memcpy(copy + b * shape[1], other.ids, (size_t)other.count * sizeof *copy);
    made->corrupted = mha_tensor_contiguous(copy, MHA_I32, 2, shape);
    return CLI_OK;
}

static cli_exit add_prompt(text_model *model, const char *path, const task_line *line,
                           mha_effect_text *text, effect_prompt *made)
{
    ids_of prompt, whole[2];
    int32_t *ids;
    CLI_TRY(encode(model, path, line, line->fields[0], "", &prompt));
    for (int k = 0; k < 2; k++) {
        CLI_TRY(encode(model, path, line, line->fields[0], line->fields[1 + k], &whole[k]));
        CLI_TRY(check_joint(path, line, &prompt, &whole[k], 1 + k));
    }
    CLI_TRY(fill(&prompt, whole, text, &ids));
    return corrupt(model, path, line, &prompt, ids, text, made);
}

cli_exit ablate_read_task(ablate_effects *effects)
{
    effect_set *set = &effects->sets[SET_TASK];
    task_lines t = {.path = effects->options->task};
    CLI_TRY(read_lines(&t));
    set->data = (mha_effect_data){.struct_size = sizeof set->data, .texts = t.count, .measures = 1};
    CLI_TRY(ARENA_ALLOC(t.count, &set->texts));
    CLI_TRY(ARENA_ALLOC(t.count, &set->list));
    CLI_TRY(ARENA_ALLOC(t.count, &effects->prompts));
    set->data.text = set->list;
    for (int64_t i = 0; i < t.count; i++) {
        set->list[i] = &set->texts[i];
        CLI_TRY(
            add_prompt(effects->model, t.path, &t.items[i], &set->texts[i], &effects->prompts[i]));
        set->tokens += set->texts[i].tokens->shape[0] * set->texts[i].tokens->shape[1];
    }
    return CLI_OK;
}

/* ---- receivers ------------------------------------------------------------------------------- */

/* "L18H6.k" names a head. For an input that a group of heads shares, the receiver is the group. */
static bool take_receiver(const text_model *model, const char *text, size_t bytes,
                          mha_path_receiver *receiver)
{
    char copy[32], *at = copy, *end;
    if (bytes >= sizeof copy || bytes < 6) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    if (*at++ != 'L' || *at < '0' || *at > '9') return false;
    receiver->layer = strtoll(at, &end, 10);
    if (*end != 'H' || end[1] < '0' || end[1] > '9') return false;
    receiver->head = strtoll(end + 1, &end, 10);
    if (*end != '.' || end[1] == '\0' || end[2] != '\0') return false;
    const mha_transformer_desc *d = &model->desc;
    const char *const parts = "qkv", *part = strchr(parts, end[1]);
    if (!part || receiver->layer >= d->num_layers) return false;
    const int64_t heads = mha_transformer_heads(d, receiver->layer);
    const int64_t kv = mha_transformer_kv_heads(d, receiver->layer);
    if (receiver->head >= heads) return false;
    const bool attends = !d->layers || !d->layers[receiver->layer].mixer;
    receiver->part = (mha_patch_part)(MHA_PATCH_QUERY + (part - parts));
    /* Heads of a group share keys and values or, in a gated delta net, queries and keys. */
    if (receiver->part != (attends ? MHA_PATCH_QUERY : MHA_PATCH_VALUE))
        receiver->head /= heads / kv;
    return true;
}

cli_exit ablate_read_paths(ablate_effects *effects)
{
    const char *const paths = effects->options->paths, *at = paths;
    if (!at || !strcmp(at, "logits")) return CLI_OK;
    CLI_TRY(ARENA_ALLOC((int64_t)strlen(at) / 6 + 1, &effects->receivers));
    for (bool more = true; more;) {
        const char *end = strchr(at, ',');
        const size_t bytes = end ? (size_t)(end - at) : strlen(at);
        mha_path_receiver *next = &effects->receivers[effects->receiver_count++];
        if (!take_receiver(effects->model, at, bytes, next))
            return cli_fail(CLI_USAGE,
                            "--paths %s: expected logits, or inputs of heads that the model has, "
                            "such as L18H6.k,L18H6.q",
                            paths);
        more = end;
        at = end ? end + 1 : at;
    }
    return CLI_OK;
}
