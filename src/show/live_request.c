/* See live_request.h. */
#include "show/live_request.h"

#include <multihead/component.h>
#include <multihead/render.h>

#include <errno.h>
#include <jansson.h>
#include <string.h>

enum { MOST_HEADS = 1 << 16 };

static mha_status wrong(const char *name, const char *expected)
{
    return mha_fail(MHA_ERR_FORMAT, "%s: expected %s", name, expected);
}

static mha_status take_text(mha_room *room, const json_t *value, const char *name,
                            const char **text, size_t *bytes)
{
    char *copy;
    if (!json_is_string(value)) return wrong(name, "a text");
    *bytes = json_string_length(value);
    MHA_TRY(mha_room_text(room, json_string_value(value), *bytes, &copy));
    *text = copy;
    return MHA_OK;
}

static bool take_digits(const char **at, int64_t *number)
{
    const char *from = *at;
    for (*number = 0; **at >= '0' && **at <= '9' && *at - from < 9; ++*at)
        *number = *number * 10 + (**at - '0');
    return *at != from;
}

/* "L3H11". */
static mha_status take_head(const json_t *value, const char *name, mha_trial_head *head)
{
    const char *at = json_string_value(value);
    if (!at || *at++ != 'L' || !take_digits(&at, &head->layer) || *at++ != 'H' ||
        !take_digits(&at, &head->head) || *at)
        return wrong(name, "heads such as L3H11");
    return MHA_OK;
}

static mha_status take_heads(mha_room *room, const json_t *value, const char *name,
                             mhai_live_heads *heads)
{
    if (!json_is_array(value) || json_array_size(value) > MOST_HEADS)
        return wrong(name, "a list of heads");
    heads->count = (int64_t)json_array_size(value);
    MHA_TRY(MHA_ROOM_ALLOC(room, heads->count, &heads->items));
    for (int64_t i = 0; i < heads->count; i++)
        MHA_TRY(take_head(json_array_get(value, (size_t)i), name, &heads->items[i]));
    return MHA_OK;
}

static mha_status take_whole(const json_t *value, const char *name, int64_t *number)
{
    const int64_t most = INT64_C(1) << 40;
    *number = json_integer_value(value);
    if (json_is_integer(value) && *number >= -1 && *number <= most) return MHA_OK;
    return wrong(name, "a whole number, -1 or more");
}

static mha_status take_flag(const json_t *value, const char *name, bool *flag)
{
    *flag = json_is_true(value);
    return json_is_boolean(value) ? MHA_OK : wrong(name, "true or false");
}

static mha_status take_number(const json_t *value, const char *name, double most, double *number)
{
    *number = json_number_value(value);
    if (json_is_number(value) && *number >= 0 && *number <= most) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "%s: expected a number from 0 to %g", name, most);
}

/* The index of a text in a NULL-terminated list. */
static mha_status take_choice(const json_t *value, const char *name, const char *const *choices,
                              int *choice)
{
    const char *text = json_string_value(value);
    for (*choice = 0; text && choices[*choice]; ++*choice)
        if (!strcmp(choices[*choice], text)) return MHA_OK;
    return wrong(name, "one of the names on the page");
}

static mha_status take_cell(const json_t *value, mhai_live_request *state)
{
    if (!json_is_array(value) || json_array_size(value) != 2)
        return wrong("cell", "a row and a column");
    MHA_TRY(take_whole(json_array_get(value, 0), "cell", &state->cell_row));
    return take_whole(json_array_get(value, 1), "cell", &state->cell_col);
}

#define CMAP_NAME(name, value, text, is_signed) text,
#define SCALE_NAME(name, value, text) text,
static const char *const cmaps[] = {MHA_CMAP_LIST(CMAP_NAME) NULL};
static const char *const scales[] = {MHA_SCALE_LIST(SCALE_NAME) NULL};
static const char *const views[] = {"map", "lines", "model",
                                    NULL}; /* neurons need queries and keys */
static const char *const ats[] = {"all", "last", NULL};
static const char *const attentions[] = {"cross", "self", NULL};

static mha_status take_description(const char *name, const json_t *value, mhai_live_vary *v)
{
    bool flag = false;
    if (!strcmp(name, "positions"))
        return take_choice(value, name, mhai_live_positions, &v->positions);
    if (!strcmp(name, "rope_base")) {
        MHA_TRY(take_number(value, name, 1e9, &v->rope_base));
        return v->rope_base > 1 ? MHA_OK : wrong(name, "a number above 1");
    }
    if (!strcmp(name, "window")) {
        MHA_TRY(take_whole(value, name, &v->window));
        return v->window > 0 ? MHA_OK : wrong(name, "at least 1 key");
    }
    if (!strcmp(name, "kv_heads")) {
        MHA_TRY(take_whole(value, name, &v->kv_heads));
        return v->kv_heads > 0 ? MHA_OK : wrong(name, "at least 1 head");
    }
    if (!strcmp(name, "causal")) {
        MHA_TRY(take_flag(value, name, &flag));
        v->causal = flag;
        return MHA_OK;
    }
    if (!strcmp(name, "scaled")) {
        MHA_TRY(take_flag(value, name, &flag));
        v->unscaled = !flag;
        return MHA_OK;
    }
    return mha_fail(MHA_ERR_FORMAT, "%.40s: no such field", name);
}

static mha_status take_member(mha_room *room, const char *name, const json_t *value,
                              mhai_live_request *s)
{
    if (!strcmp(name, "text")) return take_text(room, value, name, &s->text, &s->text_bytes);
    if (!strcmp(name, "other")) return take_text(room, value, name, &s->other, &s->other_bytes);
    if (!strcmp(name, "source")) return take_text(room, value, name, &s->source, &s->source_bytes);
    if (!strcmp(name, "attention")) {
        int attention;
        MHA_TRY(take_choice(value, name, attentions, &attention));
        s->self = attention == 1;
        return MHA_OK;
    }
    if (!strcmp(name, "off")) return take_heads(room, value, name, &s->off);
    if (!strcmp(name, "patched")) return take_heads(room, value, name, &s->patched);
    if (!strcmp(name, "row")) return take_whole(value, name, &s->row);
    if (!strcmp(name, "head")) return take_head(value, name, &s->head);
    if (!strcmp(name, "cell")) return take_cell(value, s);
    if (!strcmp(name, "dark")) return take_flag(value, name, &s->dark);
    if (!strcmp(name, "view")) return take_choice(value, name, views, &s->view);
    if (!strcmp(name, "cmap")) return take_choice(value, name, cmaps, &s->cmap);
    if (!strcmp(name, "scale")) return take_choice(value, name, scales, &s->scale);
    if (!strcmp(name, "maps")) {
        MHA_TRY(take_flag(value, name, &s->no_maps));
        s->no_maps = !s->no_maps;
        return MHA_OK;
    }
    if (!strcmp(name, "at")) {
        int at;
        MHA_TRY(take_choice(value, name, ats, &at));
        s->at_last = at == 1;
        return MHA_OK;
    }
    if (!strcmp(name, "temperature")) return take_number(value, name, 1e3, &s->temperature);
    if (!strcmp(name, "top_k")) return take_whole(value, name, &s->top_k);
    if (!strcmp(name, "cache")) return take_choice(value, name, mhai_live_caches, &s->cache);
    if (!strcmp(name, "draws")) return take_flag(value, name, &s->draws);
    if (!strcmp(name, "seed")) return take_whole(value, name, &s->seed);
    if (!strcmp(name, "noise")) return take_number(value, name, 1e3, &s->noise);
    if (!strcmp(name, "noisy")) return take_head(value, name, &s->noisy);
    return take_description(name, value, &s->vary);
}

static mha_status take_all(mha_room *room, json_t *root, mhai_live_request *state)
{
    const char *name;
    json_t *value;
    if (!json_is_object(root)) return wrong("the request", "a JSON object");
    json_object_foreach(root, name, value) MHA_TRY(take_member(room, name, value, state));
    if (!state->text) return wrong("text", "a text");
    if (state->noise > 0 && state->noisy.layer < 0) return wrong("noisy", "the head of the noise");
    if (state->patched.count > 0 && !state->other)
        return mha_fail(
            MHA_ERR_FORMAT,
            "patched: a second text is missing, from which heads are patched; type one");
    return MHA_OK;
}

mha_status mhai_live_read(const char *json, size_t bytes, mha_room *room, mhai_live_request *state)
{
    json_error_t error;
    *state = (mhai_live_request){.row = -1,
                                 .head = {-1, -1},
                                 .cell_row = -1,
                                 .cell_col = -1,
                                 .scale = -1,
                                 .vary = {.causal = -1, .positions = -1},
                                 .noisy = {-1, -1}};
    errno = 0; /* if memory is short, jansson continues or reports malformed text */
    json_t *root = json_loadb(bytes ? json : "", bytes, JSON_REJECT_DUPLICATES, &error);
    if (errno == ENOMEM) {
        json_decref(root);
        return MHA_NO_MEMORY("the request");
    }
    if (!root)
        return mha_fail(MHA_ERR_FORMAT, "the request is not JSON: byte %d: %s", error.position,
                        error.text);
    const mha_status code = take_all(room, root, state);
    json_decref(root);
    return code;
}
