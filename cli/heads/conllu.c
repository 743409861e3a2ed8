/* See conllu.h. A file is read as a whole and taken line by line; a sentence is kept when its last
 * line, an empty one, is there. */
#include "heads/conllu.h"

#include "common/maps.h"
#include "common/texts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 10, MOST_WORDS = 100000, MOST_RELATIONS = 256, MOST_NAME = 64 };
enum { ID = 0, FORM = 1, HEAD = 6, DEPREL = 7, MISC = 9 };

/* A piece of the file. */
typedef struct piece {
    const char *at;
    size_t bytes;
} piece;

/* A line of a word, or of a multiword token. */
typedef struct word {
    piece form;
    int64_t line, head, coref; /* numbers from 1; 0: none */
    int64_t unit;              /* the word of the text that it is, or is a part of */
    int relation;              /* -1: none */
    bool space;
} word;

/* A file on its way. */
typedef struct reading {
    const char *command, *path;
    bool spaced;
    conllu *out;
    int64_t line;
    word *words; /* of the sentence at hand, in order of ID */
    int64_t count, room;
    word *units; /* what stands in the text: words, and multiword tokens in place of theirs */
    int64_t unit_count, unit_room;
    int64_t covered; /* words up to this one belong to the last multiword token */
    int64_t sentences_room;
} reading;

static cli_exit bad(const reading *r, const char *what)
{
    return cli_fail(CLI_BAD_INPUT, r->command, "%s: line %" PRId64 ": %s", r->path, r->line, what);
}

static cli_exit no_memory(const reading *r)
{
    return cli_fail(CLI_NO_MEMORY, r->command, "%s: out of memory", r->path);
}

/* Room for one element more. */
static bool grow(void **items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return true;
    const int64_t wanted = *room ? 2 * *room : 16;
    void *grown = realloc(*items, (size_t)wanted * size);
    if (!grown) return false;
    *items = grown;
    *room = wanted;
    return true;
}

/* ---- columns ------------------------------------------------------------------------------- */

static bool is(piece p, const char *text)
{
    return p.bytes == strlen(text) && !memcmp(p.at, text, p.bytes);
}

/* Digits alone, at most `most`. */
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

/* What stands before the first `mark`, and behind it. */
static bool split(piece p, char mark, piece *before, piece *behind)
{
    const char *at = p.bytes ? memchr(p.at, mark, p.bytes) : NULL;
    if (!at) return false;
    *before = (piece){p.at, (size_t)(at - p.at)};
    *behind = (piece){at + 1, p.bytes - before->bytes - 1};
    return true;
}

static bool split_columns(piece line, piece columns[COLUMNS])
{
    for (int i = 0; i + 1 < COLUMNS; i++)
        if (!split(line, '\t', &columns[i], &line)) return false;
    columns[COLUMNS - 1] = line;
    return !memchr(line.at, '\t', line.bytes);
}

/* As it will stand in tables and files. */
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
    if (!c->names) c->names = calloc(MOST_RELATIONS, sizeof *c->names);
    char *copy = c->names ? maps_copy_text(name.at, name.bytes) : NULL;
    if (!copy) return no_memory(r);
    *relation = (int)c->relations;
    c->names[c->relations++] = copy;
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
    void *units = r->units;
    if (!grow(&units, r->unit_count, &r->unit_room, sizeof *r->units)) return no_memory(r);
    r->units = units;
    r->units[r->unit_count++] = *w;
    return CLI_OK;
}

static cli_exit add_word(reading *r, const piece columns[COLUMNS], word *w)
{
    void *words = r->words;
    int64_t id;
    if (!read_number(columns[ID], MOST_WORDS, &id) || id != r->count + 1)
        return bad(r, "ID (column 1) must count the words: 1, 2, 3, ... (at most 100000)");
    if (!is(columns[HEAD], "_") && !read_number(columns[HEAD], MOST_WORDS, &w->head))
        return bad(r, "HEAD (column 7) must be a word's number, 0 or _");
    cli_exit code = find_relation(r, columns[DEPREL], &w->relation);
    if (code == CLI_OK && id > r->covered) code = add_unit(r, w);
    if (code != CLI_OK) return code;
    w->unit = r->unit_count - 1;
    if (!grow(&words, r->count, &r->room, sizeof *r->words)) return no_memory(r);
    r->words = words;
    r->words[r->count++] = *w;
    return CLI_OK;
}

/* "3-4": stands in the text in place of words 3 and 4, which follow. */
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
    cli_exit code = read_misc(r, columns[MISC], &w);
    if (code != CLI_OK) return code;
    return split(columns[ID], '-', &first, &last) ? add_multiword(r, first, last, &w)
                                                  : add_word(r, columns, &w);
}

/* ---- sentences ----------------------------------------------------------------------------- */

static cli_exit make_text(const reading *r, conllu_sentence *s)
{
    size_t bytes = 1;
    for (int64_t i = 0; i < r->unit_count; i++) bytes += r->units[i].form.bytes + 1;
    void *text = NULL, *begin = NULL, *end = NULL;
    cli_exit code = maps_alloc(r->command, (int64_t)bytes, 1, &text);
    s->text = text;
    if (code == CLI_OK) code = maps_alloc(r->command, r->unit_count, sizeof *s->begin, &begin);
    s->begin = begin;
    if (code == CLI_OK) code = maps_alloc(r->command, r->unit_count, sizeof *s->end, &end);
    s->end = end;
    if (code != CLI_OK) return code;
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
    if (from != partner) s->links[s->link_count++] = (conllu_link){from, partner, relation};
    return CLI_OK;
}

static cli_exit make_links(reading *r, conllu_sentence *s)
{
    static const char coref[] = "coref";
    void *links;
    cli_exit code = maps_alloc(r->command, r->count, 2 * sizeof *s->links, &links);
    s->links = links;
    for (int64_t i = 0; i < r->count && code == CLI_OK; i++) {
        const word *w = &r->words[i];
        int relation = -1;
        code = add_link(r, w, w->head, w->relation, s);
        if (code == CLI_OK && w->coref)
            code = find_relation(r, (piece){coref, sizeof coref - 1}, &relation);
        if (code == CLI_OK) code = add_link(r, w, w->coref, relation, s);
    }
    return code;
}

static cli_exit end_sentence(reading *r)
{
    conllu *c = r->out;
    void *sentences = c->sentences;
    if (r->unit_count == 0) return CLI_OK;
    if (r->covered > r->count) return bad(r, "the words of a multiword token are missing");
    if (!grow(&sentences, c->count, &r->sentences_room, sizeof *c->sentences)) return no_memory(r);
    c->sentences = sentences;
    conllu_sentence *s = &c->sentences[c->count++];
    *s = (conllu_sentence){.line = r->units[0].line};
    cli_exit code = make_text(r, s);
    if (code == CLI_OK) code = make_links(r, s);
    r->count = r->unit_count = r->covered = 0;
    return code;
}

static cli_exit take_line(reading *r, piece line)
{
    if (line.bytes && line.at[line.bytes - 1] == '\r') line.bytes--;
    if (line.bytes == 0) return end_sentence(r);
    if (memchr(line.at, '\0', line.bytes)) return bad(r, "a zero byte");
    const size_t valid = maps_valid_utf8(line.at, line.bytes);
    if (valid < line.bytes) return bad(r, "is not valid UTF-8; save it as UTF-8");
    return line.at[0] == '#' ? CLI_OK : take_word(r, line);
}

static cli_exit take_file(reading *r, const char *text, size_t size)
{
    cli_exit code = CLI_OK;
    for (size_t at = 0; at < size && code == CLI_OK;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t bytes = end ? (size_t)(end - text) - at : size - at;
        r->line++;
        code = take_line(r, (piece){text + at, bytes});
        at += bytes + 1;
    }
    if (code == CLI_OK) code = end_sentence(r);
    if (code == CLI_OK && r->out->count == 0)
        code = cli_fail(CLI_BAD_INPUT, r->command, "%s: holds no sentence", r->path);
    return code;
}

cli_exit conllu_read(const char *command, const char *path, bool spaced, conllu *out)
{
    char *text = NULL;
    size_t size = 0;
    *out = (conllu){0};
    cli_exit code = texts_read_file(command, path, &text, &size);
    if (code != CLI_OK) return code;
    reading r = {.command = command, .path = path, .spaced = spaced, .out = out};
    code = take_file(&r, text, size);
    free(r.words);
    free(r.units);
    return code;
}

void conllu_free(conllu *c)
{
    for (int64_t i = 0; i < c->count; i++) {
        free(c->sentences[i].text);
        free(c->sentences[i].begin);
        free(c->sentences[i].end);
        free(c->sentences[i].links);
    }
    for (int64_t i = 0; i < c->relations; i++) free(c->names[i]);
    free(c->names);
    free(c->sentences);
    *c = (conllu){0};
}
