/* See conllu.h. A file is read as a whole and parsed line by line; a sentence is complete at its
 * final empty line. */
#include "heads/conllu.h"

#include "common/arena.h"
#include "common/texts.h"

#include <multihead/io.h>

#include <inttypes.h>
#include <string.h>

enum { COLUMNS = 10, MOST_WORDS = 100000, MOST_RELATIONS = 256, MOST_NAME = 64 };
enum { ID = 0, FORM = 1, HEAD = 6, DEPREL = 7, MISC = 9 };

/* A part of the file. */
typedef struct piece {
    const char *at;
    size_t bytes;
} piece;

/* A line with a word or a multiword token. */
typedef struct word {
    piece form;
    int64_t line, head, coref; /* numbers from 1; 0: none */
    int64_t unit;              /* the word of the text that contains it */
    int relation;              /* -1: none */
    bool space;
} word;

/* A file being parsed. */
typedef struct reading {
    const char *path;
    bool spaced;
    conllu *out;
    int64_t line;
    word *words; /* words of the current sentence, in order of ID */
    int64_t count, room;
    word *units; /* the words of the text: multiword tokens replace their words */
    int64_t unit_count, unit_room;
    int64_t covered; /* words up to this one belong to the last multiword token */
    int64_t sentences_room;
} reading;

static cli_exit bad(const reading *r, const char *what)
{
    return cli_fail(CLI_BAD_INPUT, "%s: line %" PRId64 ": %s", r->path, r->line, what);
}

/* Make room for one more element; items is the address of a pointer. */
static cli_exit grow(void *items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return CLI_OK;
    *room = *room ? 2 * *room : 16;
    return arena_grow(*room, size, items);
}

/* ---- columns ------------------------------------------------------------------------------- */

static bool is(piece p, const char *text)
{
    return p.bytes == strlen(text) && !memcmp(p.at, text, p.bytes);
}

/* Parse digits only, at most `most` of them. */
static bool read_number(piece p, int64_t most, int64_t *value)
{
    int64_t number = 0;
    if (p.bytes == 0 || p.bytes > 9) return false;
    for (size_t i = 0; i < p.bytes; i++) {
        if (p.at[i] < '0' || p.at[i] > '9') return false;
        number = 10 * number + (p.at[i] - '0');
    }
    *value = number;
    return number <= most;
}

/* The text before the first `mark`, and the text after it. */
static bool split(piece p, char mark, piece *before, piece *after)
{
    const char *at = p.bytes ? memchr(p.at, mark, p.bytes) : NULL;
    if (!at) return false;
    *before = (piece){p.at, (size_t)(at - p.at)};
    *after = (piece){at + 1, p.bytes - before->bytes - 1};
    return true;
}

static bool split_columns(piece line, piece columns[COLUMNS])
{
    for (int i = 0; i + 1 < COLUMNS; i++)
        if (!split(line, '\t', &columns[i], &line)) return false;
    columns[COLUMNS - 1] = line;
    return !memchr(line.at, '\t', line.bytes);
}

/* Whether p can name a relation in tables and files: 1 to 64 letters, digits, ':', '_', '-'. */
static bool is_name(piece p)
{
    static const char also[] = ":_-";
    for (size_t i = 0; i < p.bytes; i++) {
        const char c = p.at[i], lower = (char)(c | 0x20);
        const bool plain = (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9');
        if (!plain && !memchr(also, c, sizeof also - 1)) return false;
    }
    return p.bytes > 0 && p.bytes <= MOST_NAME;
}

static cli_exit find_relation(reading *r, piece name, int *relation)
{
    conllu *c = r->out;
    *relation = -1;
    if (is(name, "_") || is(name, "root") || is(name, "punct")) return CLI_OK;
    if (!is_name(name))
        return bad(r, "DEPREL (column 8) must have 1 to 64 letters, digits, ':', '_' and '-'");
    for (int64_t i = 0; i < c->relations; i++)
        if (is(name, c->names[i])) *relation = (int)i;
    if (*relation >= 0) return CLI_OK;
    if (c->relations == MOST_RELATIONS) return bad(r, "more than 256 kinds of relations");
    if (!c->names) CLI_TRY(ARENA_ALLOC(MOST_RELATIONS, &c->names));
    *relation = (int)c->relations;
    CLI_TRY(arena_text(name.at, name.bytes, &c->names[c->relations++]));
    return CLI_OK;
}

/* SpaceAfter and Coref of "Key=value|Key=value". */
static cli_exit read_misc(reading *r, piece misc, word *w)
{
    piece field, key, value;
    for (bool more = !is(misc, "_"); more;) {
        more = split(misc, '|', &field, &misc);
        if (!more) field = misc;
        if (!split(field, '=', &key, &value)) continue;
        if (is(key, "SpaceAfter")) w->space = !is(value, "No");
        if (is(key, "Coref") && (!read_number(value, MOST_WORDS, &w->coref) || w->coref == 0))
            return bad(r, "Coref in MISC (column 10) is not the number of a word, as in Coref=3");
    }
    return CLI_OK;
}

/* ---- lines --------------------------------------------------------------------------------- */

static cli_exit add_unit(reading *r, const word *w)
{
    CLI_TRY(grow(&r->units, r->unit_count, &r->unit_room, sizeof *r->units));
    r->units[r->unit_count++] = *w;
    return CLI_OK;
}

static cli_exit add_word(reading *r, const piece columns[COLUMNS], word *w)
{
    int64_t id;
    if (!read_number(columns[ID], MOST_WORDS, &id) || id != r->count + 1)
        return bad(r, "ID (column 1) must count the words: 1, 2, 3, ... (at most 100000)");
    if (!is(columns[HEAD], "_") && !read_number(columns[HEAD], MOST_WORDS, &w->head))
        return bad(r, "HEAD (column 7) must be a word's number, 0 or _");
    CLI_TRY(find_relation(r, columns[DEPREL], &w->relation));
    if (id > r->covered) CLI_TRY(add_unit(r, w));
    w->unit = r->unit_count - 1;
    CLI_TRY(grow(&r->words, r->count, &r->room, sizeof *r->words));
    r->words[r->count++] = *w;
    return CLI_OK;
}

/* "3-4": replaces words 3 and 4, which follow, in the text. */
static cli_exit add_multiword(reading *r, piece first, piece last, const word *w)
{
    int64_t from, to;
    if (!read_number(first, MOST_WORDS, &from) || !read_number(last, MOST_WORDS, &to) ||
        from != r->count + 1 || from <= r->covered || to < from)
        return bad(r,
                   "ID (column 1) of a multiword token must be a range such as 3-4 before word 3");
    r->covered = to;
    return add_unit(r, w);
}

static cli_exit take_word(reading *r, piece line)
{
    piece columns[COLUMNS], first, last;
    if (!split_columns(line, columns))
        return bad(r, "a word's line must have ten columns with tabs between them");
    word w = {.form = columns[FORM], .line = r->line, .relation = -1, .space = true};
    if (w.form.bytes == 0) return bad(r, "FORM (column 2) is empty");
    if (split(columns[ID], '.', &first, &last)) return CLI_OK; /* an empty node */
    CLI_TRY(read_misc(r, columns[MISC], &w));
    return split(columns[ID], '-', &first, &last) ? add_multiword(r, first, last, &w)
                                                  : add_word(r, columns, &w);
}

/* ---- sentences ----------------------------------------------------------------------------- */

static cli_exit make_text(const reading *r, conllu_sentence *s)
{
    size_t bytes = 1;
    for (int64_t i = 0; i < r->unit_count; i++) bytes += r->units[i].form.bytes + 1;
    CLI_TRY(ARENA_ALLOC((int64_t)bytes, &s->text));
    CLI_TRY(ARENA_ALLOC(r->unit_count, &s->begin));
    CLI_TRY(ARENA_ALLOC(r->unit_count, &s->end));
    for (int64_t i = 0; i < r->unit_count; i++) {
        const word *w = &r->units[i];
        s->begin[i] = (int64_t)s->bytes;
        memcpy(s->text + s->bytes, w->form.at, w->form.bytes);
        s->bytes += w->form.bytes;
        s->end[i] = (int64_t)s->bytes;
        if (i + 1 < r->unit_count && (w->space || r->spaced)) s->text[s->bytes++] = ' ';
    }
    s->text[s->bytes] = '\0';
    s->words = r->unit_count;
    return CLI_OK;
}

static cli_exit add_link(reading *r, const word *w, int64_t to, int relation, conllu_sentence *s)
{
    if (to == 0 || relation < 0) return CLI_OK;
    if (to > r->count) {
        r->line = w->line;
        return bad(r, "HEAD or Coref is beyond the sentence's last word");
    }
    const int64_t from = w->unit, partner = r->words[to - 1].unit;
    if (from != partner) s->links[s->link_count++] = (mha_heads_link){from, partner, relation};
    return CLI_OK;
}

static cli_exit make_links(reading *r, conllu_sentence *s)
{
    static const char coref[] = "coref";
    CLI_TRY(arena_alloc(r->count, 2 * sizeof *s->links, &s->links));
    for (int64_t i = 0; i < r->count; i++) {
        const word *w = &r->words[i];
        int relation = -1;
        CLI_TRY(add_link(r, w, w->head, w->relation, s));
        if (w->coref) CLI_TRY(find_relation(r, (piece){coref, sizeof coref - 1}, &relation));
        CLI_TRY(add_link(r, w, w->coref, relation, s));
    }
    return CLI_OK;
}

static cli_exit end_sentence(reading *r)
{
    conllu *c = r->out;
    if (r->unit_count == 0) return CLI_OK;
    if (r->covered > r->count) return bad(r, "the words of a multiword token are missing");
    CLI_TRY(grow(&c->sentences, c->count, &r->sentences_room, sizeof *c->sentences));
    conllu_sentence *s = &c->sentences[c->count++];
    *s = (conllu_sentence){.line = r->units[0].line};
    CLI_TRY(make_text(r, s));
    CLI_TRY(make_links(r, s));
    r->count = r->unit_count = r->covered = 0;
    return CLI_OK;
}

static cli_exit take_line(reading *r, piece line)
{
    if (line.bytes && line.at[line.bytes - 1] == '\r') line.bytes--;
    if (line.bytes == 0) return end_sentence(r);
    if (memchr(line.at, '\0', line.bytes)) return bad(r, "a zero byte");
    const size_t valid = mha_utf8_span(line.at, line.bytes, NULL);
    if (valid < line.bytes) return bad(r, "is not valid UTF-8; save it as UTF-8");
    return line.at[0] == '#' ? CLI_OK : take_word(r, line);
}

static cli_exit take_file(reading *r, const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t bytes = end ? (size_t)(end - text) - at : size - at;
        r->line++;
        CLI_TRY(take_line(r, (piece){text + at, bytes}));
        at += bytes + 1;
    }
    CLI_TRY(end_sentence(r));
    if (r->out->count > 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: holds no sentence", r->path);
}

cli_exit conllu_read(const char *path, bool spaced, conllu *out)
{
    char *text = NULL;
    size_t size = 0;
    *out = (conllu){0};
    CLI_TRY(texts_read_file(path, &text, &size));
    reading r = {.path = path, .spaced = spaced, .out = out};
    return take_file(&r, text, size);
}
