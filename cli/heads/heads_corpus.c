/* Write the results of a corpus, except the means, as JSON. Divide long texts into pieces. */
#include "common/arena.h"
#include "heads/heads.h"

#include <string.h>

enum { FEW_TOKENS = 12 };

/* ---- cutting --------------------------------------------------------------------------------- */

size_t heads_whole_characters(const char *text, size_t bytes, size_t most)
{
    if (bytes <= most) return bytes;
    while (most > 0 && ((unsigned char)text[most] & 0xC0) == 0x80) most--;
    return most;
}

/* The end of the last token that fits. */
static size_t end_of(const mha_tokens *tokens, const char *text, size_t bytes)
{
    size_t end = 0;
    for (int64_t i = 0; i < tokens->count; i++)
        if (!tokens->special[i] && tokens->end[i] > 0 && (size_t)tokens->end[i] > end)
            end = (size_t)tokens->end[i];
    return heads_whole_characters(text, bytes, end);
}

/* Encode at most 16 bytes per token at a time; bytes after the last token go to the next piece. */
cli_exit heads_corpus_cut(const heads_options *options, text_model *model,
                          const heads_source *whole, heads_sources *into)
{
    const text_limits limits = {.most = options->cut, .truncate = true};
    size_t at = 0;
    text_model_where(model, whole->file, whole->line);
    while (at < whole->bytes) {
        const char *text = whole->text + at;
        const size_t most =
            (size_t)options->cut < whole->bytes / 16 ? (size_t)options->cut * 16 : whole->bytes;
        const size_t bytes = heads_whole_characters(text, whole->bytes - at, most);
        const size_t mark = arena_mark();
        mha_tokens *tokens;
        size_t end = strspn(text, " \t\r\n\f\v");
        if (end >= whole->bytes - at) return CLI_OK;
        CLI_TRY(text_model_encode(model, &limits, text, bytes, NULL, 0, &tokens));
        end = end_of(tokens, text, bytes);
        arena_release(mark);
        if (end == 0) end = bytes;
        CLI_TRY(heads_sources_add(into, (heads_source){.text = text,
                                                       .bytes = end,
                                                       .file = whole->file,
                                                       .line = whole->line,
                                                       .offset = whole->offset + (int64_t)at}));
        at += end;
    }
    return CLI_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_distributions(mha_json *json, const mha_head_corpus *corpus, const heads_row *row)
{
#define SPREAD(type, member) MHA_JSON_FIELD(type, mha_head_distribution, member)
    static const mha_json_field fields[] = {SPREAD(NUMBER, mean),   SPREAD(NUMBER, low),
                                            SPREAD(NUMBER, high),   SPREAD(INTEGER, rows),
                                            SPREAD(INTEGER, texts), {0}};
#undef SPREAD
    mha_json_line(json, 5);
    mha_json_object(json, "distributions");
    for (int n = 0; n < MHA_MEASURES; n++) {
        const mha_head_measure which = (mha_head_measure)n;
        const mha_head_distribution d =
            mha_head_corpus_distribution(corpus, row->layer, row->head, which);
        if (d.rows == 0) continue;
        mha_json_line(json, 6);
        mha_json_object(json, mha_measure_describe(which).name);
        mha_json_fields(json, fields, &d);
        mha_json_numbers(json, "deciles", d.deciles, 11);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static cli_exit put_tokens(mha_json *json, const heads_found *found, const heads_row *row,
                           mha_head_token_list list, const char *name)
{
    static const mha_json_field fields[] = {
        MHA_JSON_NAMED("token", TEXT, heads_token, text),
        MHA_JSON_NAMED("id", INTEGER, heads_token, id),
        MHA_JSON_NAMED("mass", NUMBER, heads_token, found.mass),
        MHA_JSON_NAMED("expected", NUMBER, heads_token, found.expected),
        MHA_JSON_NAMED("mean", NUMBER, heads_token, found.mean),
        MHA_JSON_NAMED("count", INTEGER, heads_token, found.count),
        {0}};
    heads_token tokens[HEADS_MOST_TOKENS];
    int64_t count;
    const size_t mark = arena_mark();
    CLI_TRY(heads_corpus_tokens(found, row->layer, row->head, list, tokens, FEW_TOKENS, &count));
    mha_json_line(json, 5);
    mha_json_structs(json, name, fields, tokens, sizeof *tokens, count);
    arena_release(mark);
    return CLI_OK;
}

static void put_places(mha_json *json, const mha_head_corpus *corpus, const heads_row *row)
{
#define PLACE(type, member) MHA_JSON_FIELD(type, mha_head_place, member)
    static const mha_json_field fields[] = {
        PLACE(INTEGER, text), PLACE(INTEGER, row), PLACE(INTEGER, key), PLACE(NUMBER, value), {0}};
#undef PLACE
    mha_json_line(json, 5);
    mha_json_object(json, "places");
    for (int n = 0; n < MHA_MEASURES; n++) {
        mha_head_place places[MHA_HEAD_CORPUS_MOST_PLACES];
        const int64_t count =
            mha_head_corpus_places(corpus, row->layer, row->head, (mha_head_measure)n, false,
                                   places, MHA_HEAD_CORPUS_MOST_PLACES);
        if (count == 0) continue;
        mha_json_line(json, 6);
        mha_json_structs(json, mha_measure_describe((mha_head_measure)n).name, fields, places,
                         sizeof *places, count);
    }
    mha_json_end(json);
}

static void put_positions(mha_json *json, const mha_head_corpus *corpus, const heads_row *row)
{
#define BIN(type, member) MHA_JSON_FIELD(type, mha_head_position, member)
    static const mha_json_field fields[] = {BIN(INTEGER, first),   BIN(INTEGER, last),
                                            BIN(INTEGER, rows),    BIN(NUMBER, entropy),
                                            BIN(NUMBER, distance), {0}};
#undef BIN
    mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS];
    const int64_t count = mha_head_corpus_positions(corpus, row->layer, row->head, bins);
    const mha_head_rest rest = mha_head_corpus_rest(corpus, row->layer, row->head);
    mha_json_line(json, 5);
    mha_json_structs(json, "positions", fields, bins, sizeof *bins, count);
    mha_json_line(json, 5);
    mha_json_object(json, "first_token");
    mha_json_integer(json, "rows", rest.rows);
    mha_json_number(json, "mass", rest.mass);
    mha_json_number(json, "moved", rest.moved);
    mha_json_end(json);
}

cli_exit heads_corpus_json(mha_json *json, const heads_found *found, const heads_row *row)
{
    put_distributions(json, found->of.corpus, row);
    CLI_TRY(put_tokens(json, found, row, MHA_HEAD_READS, "reads"));
    CLI_TRY(put_tokens(json, found, row, MHA_HEAD_WRITES, "writes"));
    put_places(json, found->of.corpus, row);
    put_positions(json, found->of.corpus, row);
    return CLI_OK;
}

void heads_corpus_json_luck(mha_json *json, const mha_head_corpus *corpus)
{
    mha_json_line(json, 2);
    mha_json_object(json, "luck");
    for (int n = 0; n < MHA_MEASURES; n++) {
        mha_json_line(json, 4);
        mha_json_number(json, mha_measure_describe((mha_head_measure)n).name,
                        mha_head_corpus_luck(corpus, (mha_head_measure)n));
    }
    mha_json_end(json);
}

/* ---- tokens by name -------------------------------------------------------------------------- */

/* List a kind of token only if it is at least 0.01 % of all tokens and occurs three times. */
cli_exit heads_corpus_tokens(const heads_found *found, int64_t layer, int64_t head,
                             mha_head_token_list list, heads_token *tokens, int64_t most,
                             int64_t *count)
{
    mha_head_token held[HEADS_MOST_TOKENS];
    const int64_t least = found->of.token_count / 10000 > 3 ? found->of.token_count / 10000 : 3;
    *count = mha_head_corpus_tokens(found->of.corpus, layer, head, list, least, held, most);
    for (int64_t i = 0; i < *count; i++) {
        const bool special = held[i].token >= found->of.kinds;
        const int64_t id = special ? -1 : found->of.id_of[held[i].token];
        char *text = NULL;
        if (!special)
            CLI_TRY(text_model_token_of(found->cross ? mha_model_encoder(found->model->model)
                                                     : found->model->model,
                                        (int32_t)id, &text));
        tokens[i] =
            (heads_token){.text = special ? "(special tokens)" : text, .id = id, .found = held[i]};
    }
    return CLI_OK;
}
