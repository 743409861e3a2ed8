/* See pattern.h. */
#include "tokenizer/pattern.h"

#include "io/file.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct mhai_pattern {
    mha_allocator allocator;
    pcre2_general_context *general;
    pcre2_code *code;
    /* The steps of a match between two callouts: weight is the cost of trying every item once, and
     * costliest the cost of the most expensive repeated item per byte in between. */
    uint64_t weight, costliest;
    mhai_shown shown;
    char where[208]; /* end of the path, and the place in the file, for messages */
};

enum {
    MOST_BYTES = 4096,          /* in a pattern; GPT-4o's has 300 */
    MOST_COUNT = 1000,          /* in a repetition {...}, which PCRE2 matches
                                 * without counting steps */
    MOST_KIBIBYTES = 64 * 1024, /* memory for one match */
    MOST_WEIGHT = 1024,         /* for a pattern, see below; known models have at most 74 */
    FIRST_STEPS = 100000,       /* for all matches of a text, plus MORE_STEPS per byte */
    MORE_STEPS = 3000,          /* known models take at most 850 */
    CALLOUT_STEPS = 10          /* the cost of a callout */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *allocate(size_t size, void *user)
{
    void *memory = NULL, *items = NULL;
    /* The block stores its own size, because PCRE2 frees memory without a size. */
    if (mhai_vector_block_make(user, 0, 1, size, &memory, &items) != MHA_OK) return NULL;
    return items;
}

static void release(void *items, void *user)
{
    (void)user;
    if (items) mhai_vector_block_free(mhai_vector_block_of(items));
}

/* ---- Accept constructs that Oniguruma and PCRE2 interpret alike ------------------------------ */

typedef struct scanner {
    const char *where, *text;
    size_t size, at;
    mhai_shown shown;
    uint64_t weight, costliest; /* as in mhai_pattern */
    uint64_t members, least;    /* of the current item: members of its class, and minimum of its
                                 * repetitions */
    int depth, folded;          /* number of open groups, now and when (?i: was opened; folded
                                 * is 0 if case-sensitive */
    bool folds;                 /* some part is case-insensitive */
    bool nests;                 /* some class has others inside it, which PCRE2 lacks */
    mhai_vector counted;        /* the pattern, with callouts that count steps */
} scanner;

static mha_status refuse(const scanner *s, size_t from, size_t to, const char *what)
{
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: %s '%.*s' in the pattern '%s' is not supported",
                    s->where, what, (int)(to - from), s->text + from, s->shown.text);
}

static bool looks(const scanner *s, const char *text)
{
    const size_t size = strlen(text);
    return s->size - s->at >= size && memcmp(s->text + s->at, text, size) == 0;
}

/* Scan \p{L}, \P{Lu}, \p{^N}: general categories, which both engines define by Unicode alone. */
static mha_status take_property(scanner *s)
{
    static const char groups[] = "CLMNPSZ";
    const size_t from = s->at;
    size_t at = from + 2;
    if (s->folded) return refuse(s, from, from + 2, "in (?i:...), the property");
    if (at < s->size && s->text[at] == '{') at++;
    if (at < s->size && s->text[at] == '^') at++;
    size_t letters = 0;
    for (; at < s->size && s->text[at] != '}' && letters < 3; at++) letters++;
    const char *name = s->text + at - letters;
    if (at >= s->size || s->text[at] != '}' || s->text[from + 2] != '{' || letters < 1 ||
        letters > 2 || !strchr(groups, name[0]) ||
        (letters == 2 && !(name[1] >= 'a' && name[1] <= 'z')))
        return refuse(s, from, at < s->size ? at + 1 : at, "the property");
    s->at = at + 1;
    return MHA_OK;
}

static mha_status take_escape(scanner *s)
{
    const unsigned char c = s->at + 1 < s->size ? (unsigned char)s->text[s->at + 1] : 0;
    if (c == 'p' || c == 'P') return take_property(s);
    const bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (c == 0 || c >= 0x80 || (letter && !strchr("rntsSdD", c)))
        return refuse(s, s->at, s->at + (c ? 2 : 1), "the escape");
    s->at += 2;
    return MHA_OK;
}

/* Scan a byte that is matched literally. In (?i:...), Oniguruma, unlike PCRE2, matches some
 * characters with several others ("ss" with "\u00DF"). */
static mha_status take_byte(scanner *s)
{
    const size_t from = s->at++;
    if (!s->folded || (unsigned char)s->text[from] < 0x80) return MHA_OK;
    while (s->at < s->size && ((unsigned char)s->text[s->at] & 0xC0) == 0x80) s->at++;
    return refuse(s, from, s->at, "in (?i:...), the character");
}

/* Scan the members of a class, without nested classes and set operations. */
static mha_status take_members(scanner *s)
{
    while (s->at < s->size && s->text[s->at] != ']' && s->text[s->at] != '[') {
        s->members++;
        if (s->text[s->at] == '\\')
            MHA_TRY(take_escape(s));
        else if (looks(s, "&&"))
            return refuse(s, s->at, s->at + 1, "inside a class,");
        else
            MHA_TRY(take_byte(s));
    }
    return MHA_OK;
}

/* Scan [...] inside a class, whose members are also those of the outer one. */
static mha_status take_nested(scanner *s)
{
    const size_t from = s->at++;
    const bool plain = s->text[from - 1] != '-' && !looks(s, "^") && !looks(s, ":") &&
                       !looks(s, "-") && !looks(s, "]");
    s->nests = true;
    MHA_TRY(take_members(s));
    if (!plain || !looks(s, "]") || s->text[s->at - 1] == '-' ||
        (s->at + 1 < s->size && s->text[s->at + 1] == '-'))
        return refuse(s, from, from + 1, "inside a class,");
    s->at++;
    return MHA_OK;
}

/* Scan [^...], without set operations. */
static mha_status take_class(scanner *s)
{
    const size_t from = s->at++;
    if (looks(s, "^")) s->at++;
    if (looks(s, "]")) return refuse(s, from, s->at + 1, "the class");
    s->members = 0;
    MHA_TRY(take_members(s));
    while (looks(s, "[")) {
        MHA_TRY(take_nested(s));
        MHA_TRY(take_members(s));
    }
    if (s->at == s->size && s->nests) return refuse(s, from, s->at, "the open class");
    if (s->at < s->size) s->at++;
    return MHA_OK; /* PCRE2 will report the missing part */
}

/* Append an item to the pattern for PCRE2, without the brackets of nested classes. */
static mha_status add_item(scanner *s, size_t from)
{
    const bool class = s->text[from] == '[';
    for (size_t i = from; class && i + 1 < s->at; i++) {
        const bool escaped = s->text[i] == '\\';
        const bool bracket = i > from && (s->text[i] == '[' || s->text[i] == ']');
        if (!bracket) MHA_TRY(mhai_vector_append(&s->counted, s->text + i, escaped ? 2 : 1));
        if (escaped) i++;
    }
    return class ? mhai_vector_append(&s->counted, s->text + s->at - 1, 1)
                 : mhai_vector_append(&s->counted, s->text + from, s->at - from);
}

static mha_status take_group(scanner *s)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:"};
    s->depth++;
    if (looks(s, "(?i:")) {
        if (!s->folded) s->folded = s->depth;
        s->folds = true;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (looks(s, known[i])) {
            s->at += strlen(known[i]);
            return MHA_OK;
        }
    if (looks(s, "(?") || looks(s, "(*")) return refuse(s, s->at, s->at + 2, "the group");
    s->at++;
    return MHA_OK;
}

static void leave_group(scanner *s)
{
    if (s->folded == s->depth) s->folded = 0;
    s->depth--;
    s->at++;
}

/* Scan a literal. In (?i:...), Oniguruma may match several characters with one. */
static mha_status take_literal(scanner *s)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; s->folded && s->size - s->at > 1 && i < 5; i++)
        if ((s->text[s->at] | 0x20) == pairs[i][0] && (s->text[s->at + 1] | 0x20) == pairs[i][1])
            return refuse(s, s->at, s->at + 2, "in (?i:...), the text");
    return take_byte(s);
}

/* Scan {2}, {1,3}, {1,}. Oniguruma interprets a + after it differently; PCRE2 interprets
 * {,3} and {2}? differently. */
static mha_status take_count(scanner *s)
{
    const size_t from = s->at++;
    int64_t digits = 0, commas = 0, count = 0;
    for (; s->at < s->size && s->text[s->at] != '}'; s->at++) {
        const char c = s->text[s->at];
        if (c == ',' && digits > 0 && commas == 0) {
            commas++;
            s->least = (uint64_t)count;
            count = 0;
        } else if (c >= '0' && c <= '9' && count <= MOST_COUNT) {
            digits++;
            count = 10 * count + (c - '0');
        } else {
            break;
        }
    }
    const bool closed = s->at < s->size && s->text[s->at] == '}' && digits > 0;
    if (commas == 0) s->least = (uint64_t)count;
    if (closed) s->at++;
    if (!closed || count > MOST_COUNT || looks(s, "+") || (commas == 0 && looks(s, "?")))
        return refuse(s, from, s->at, "the repetition");
    return MHA_OK;
}

static bool looks_repeated(const scanner *s)
{
    return looks(s, "*") || looks(s, "+") || looks(s, "?") || looks(s, "{");
}

/* Scan *, +, ?, {...}, followed by ? (as few as possible), + (possessive) or nothing. */
static mha_status take_repetition(scanner *s)
{
    if (looks(s, "{")) {
        MHA_TRY(take_count(s));
    } else {
        s->at++;
        if (looks(s, "+")) s->at++;
    }
    if (looks(s, "?")) s->at++;
    return looks_repeated(s) ? refuse(s, s->at, s->at + 1, "repeated again, the repetition")
                             : MHA_OK;
}

static mha_status add_callout(scanner *s)
{
    static const char callout[] = "(?C)";
    return mhai_vector_append(&s->counted, callout, sizeof callout - 1);
}

/* Scan an item with its repetition. Everything that can match in several ways (a repeated item,
 * each alternative of a group) ends in a callout. All attempts of a match pass through callouts and
 * are counted. Between two callouts, no item is tried twice. */
static mha_status take_item(scanner *s)
{
    const size_t from = s->at;
    const char first = s->text[s->at];
    const bool one = first != '(' && first != ')' && first != '|';
    if (s->depth > 0 && (first == ')' || first == '|')) MHA_TRY(add_callout(s));
    s->members = s->least = 1;
    switch (first) {
    case '\\': MHA_TRY(take_escape(s)); break;
    case '[': MHA_TRY(take_class(s)); break;
    case '(': MHA_TRY(take_group(s)); break;
    case ')': leave_group(s); break;
    case '^':
    case '$': return refuse(s, s->at, s->at + 1, "the anchor");
    default: MHA_TRY(take_literal(s));
    }
    MHA_TRY(add_item(s, from));
    const size_t end = s->at;
    const bool repeated = looks_repeated(s);
    if (repeated) MHA_TRY(take_repetition(s));
    if (one) s->weight += s->members * (s->least > 0 ? s->least : 1);
    if (one && repeated && s->members > s->costliest) s->costliest = s->members;
    MHA_TRY(mhai_vector_append(&s->counted, s->text + end, s->at - end));
    return one && repeated ? add_callout(s) : MHA_OK;
}

static mha_status check(scanner *s)
{
    while (s->at < s->size) MHA_TRY(take_item(s));
    return MHA_OK;
}

/* ---- Compiling ------------------------------------------------------------------------------- */

static mha_status explain(int error, size_t offset, const mhai_pattern *p)
{
    PCRE2_UCHAR text[128];
    if (error == PCRE2_ERROR_NOMEMORY || error == 121 /* malloc failed */)
        return MHA_NO_MEMORY("tokenizer: regular expression");
    if (pcre2_get_error_message(error, text, sizeof text) < 0) text[0] = '\0';
    return mha_fail(MHA_ERR_FORMAT, "%s: pattern '%s': at byte %zu: %s", p->where, p->shown.text,
                    offset, (const char *)text);
}

static mha_status compile(mhai_pattern *p, const char *text, size_t size, uint32_t options)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code_free(p->code);
    pcre2_compile_context *context = pcre2_compile_context_create(p->general);
    if (!context) return MHA_NO_MEMORY("tokenizer: regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* the only line end that . does not match */
    options |= PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    p->code = pcre2_compile((PCRE2_SPTR)text, size, options, &error, &offset, context);
    pcre2_compile_context_free(context);
    return p->code ? MHA_OK : explain(error, offset, p);
}

/* Compile the original pattern first, unless PCRE2 reads its classes otherwise, so that errors have the
 * right offset.
 *
 * If matches begin with a certain letter in either case, PCRE2 searches the rest of the text for
 * both cases, again for every match. This optimisation is disabled. */
static mha_status make(mhai_pattern *p, scanner *s, bool own)
{
    uint32_t empty = 0, first = 0;
    p->general = pcre2_general_context_create(allocate, release, &p->allocator);
    if (!p->general) return MHA_NO_MEMORY("tokenizer: regular expression");
    if (!own) MHA_TRY(check(s));
    MHA_TRY(compile(p, s->nests ? s->counted.items : s->text, s->nests ? s->counted.count : s->size,
                    0));
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: the pattern '%s' may match the empty text, which is not supported",
                        p->where, p->shown.text);
    if (own) return MHA_OK;
    p->weight = s->weight;
    p->costliest = s->costliest;
    if (p->weight > MOST_WEIGHT)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: the pattern '%s' may take %llu steps at one character, at most %d are "
                        "supported; give the model a simpler pattern",
                        p->where, p->shown.text, (unsigned long long)p->weight, (int)MOST_WEIGHT);
    pcre2_pattern_info(p->code, PCRE2_INFO_FIRSTCODETYPE, &first);
    return compile(p, s->counted.items, s->counted.count,
                   s->folds && first == 1 ? PCRE2_NO_START_OPTIMIZE : 0);
}

mha_status mhai_pattern_make(const mha_allocator *allocator, const char *where, const char *text,
                             size_t size, bool own, mhai_pattern **pattern)
{
    scanner s = {.where = where, .text = text, .size = size, .shown = mhai_show_name(text)};
    if (size > MOST_BYTES)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "%s: the pattern '%s' has %zu bytes, at most %d are "
                        "supported",
                        where, s.shown.text, size, (int)MOST_BYTES);
    mhai_pattern *made = mhai_vector_alloc(allocator, 1, sizeof *made);
    if (!made) return MHA_NO_MEMORY("tokenizer: regular expression");
    *made = (mhai_pattern){.allocator = *allocator, .shown = s.shown};
    snprintf(made->where, sizeof made->where, "%s", where);
    s.counted = mhai_vector_make(&made->allocator, 1);
    const mha_status status = make(made, &s, own);
    mhai_vector_free(&s.counted);
    if (status == MHA_OK)
        *pattern = made;
    else
        mhai_pattern_free(made);
    return status;
}

void mhai_pattern_free(mhai_pattern *pattern)
{
    if (!pattern) return;
    const mha_allocator allocator = pattern->allocator;
    pcre2_code_free(pattern->code);
    pcre2_general_context_free(pattern->general);
    mhai_vector_release(&allocator, pattern, 1, sizeof *pattern);
}

/* ---- Matching -------------------------------------------------------------------------------- */

/* Count the steps since the previous callout. Every item may have been tried once, and a repeated
 * item at every byte passed, forwards or backwards. */
static int count_steps(pcre2_callout_block *block, void *user)
{
    mhai_matcher *m = user;
    const size_t at = block->current_position;
    const size_t from =
        block->callout_flags & PCRE2_CALLOUT_STARTMATCH ? block->start_match : m->last;
    m->last = at;
    m->steps += CALLOUT_STEPS + m->pattern->weight +
                m->pattern->costliest * (at > from ? at - from : from - at);
    return m->steps <= m->most_steps ? 0 : PCRE2_ERROR_MATCHLIMIT;
}

mha_status mhai_matcher_make(const mha_allocator *allocator, mhai_matcher *m)
{
    *m = (mhai_matcher){.subject = mhai_vector_make(allocator, 1), .most_steps = FIRST_STEPS};
    /* PCRE2 only passes the pointer on, and the functions only read the allocator. */
    void *user = (void *)(uintptr_t)allocator;
    m->general = pcre2_general_context_create(allocate, release, user);
    m->data = m->general ? pcre2_match_data_create(1, m->general) : NULL;
    m->context = m->data ? pcre2_match_context_create(m->general) : NULL;
    if (!m->context) return MHA_NO_MEMORY("tokenizer: regular expression");
    pcre2_set_callout(m->context, count_steps, m);
    pcre2_set_match_limit(m->context, UINT32_MAX); /* PCRE2's own limit applies to one match only */
    pcre2_set_heap_limit(m->context, MOST_KIBIBYTES);
    return MHA_OK;
}

void mhai_matcher_free(mhai_matcher *m)
{
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    pcre2_general_context_free(m->general);
    if (m->subject.allocator) mhai_vector_free(&m->subject);
}

/* Characters that PCRE2 10.42 (Unicode 14) classifies differently from Oniguruma in the tokenizers
 * (Unicode 16). Each has a substitute with the same number of bytes, which both classify as
 * Oniguruma classifies the original. Generated by comparing both for every code point. U+180E is
 * white space in PCRE2 only. */
static const struct {
    int32_t first, last, stand_in;
} newer[] = {{0x0897, 0x0897, 0x0816},    {0x0CF3, 0x0CF3, 0x0903},    {0x0ECE, 0x0ECE, 0x0816},
             {0x180E, 0x180E, 0x200B},    {0x1B4E, 0x1B4F, 0x0830},    {0x1B7F, 0x1B7F, 0x0830},
             {0x1C89, 0x1C89, 0x10A0},    {0x1C8A, 0x1C8A, 0x10D0},    {0x2427, 0x2429, 0x09FA},
             {0x2FFC, 0x2FFF, 0x09FA},    {0x31E4, 0x31E5, 0x09FA},    {0x31EF, 0x31EF, 0x09FA},
             {0xA7CB, 0xA7CC, 0x10A0},    {0xA7CD, 0xA7CD, 0x10D0},    {0xA7DA, 0xA7DA, 0x10A0},
             {0xA7DB, 0xA7DB, 0x10D0},    {0xA7DC, 0xA7DC, 0x10A0},    {0x105C0, 0x105F3, 0x10000},
             {0x10D40, 0x10D49, 0x104A0}, {0x10D4A, 0x10D4D, 0x10000}, {0x10D4E, 0x10D4E, 0x10780},
             {0x10D4F, 0x10D4F, 0x10000}, {0x10D50, 0x10D65, 0x10400}, {0x10D69, 0x10D6D, 0x101FD},
             {0x10D6E, 0x10D6E, 0x10EAD}, {0x10D6F, 0x10D6F, 0x10780}, {0x10D70, 0x10D85, 0x10428},
             {0x10D8E, 0x10D8F, 0x1D6C1}, {0x10EC2, 0x10EC4, 0x10000}, {0x10EFC, 0x10EFF, 0x101FD},
             {0x1123F, 0x11240, 0x10000}, {0x11241, 0x11241, 0x101FD}, {0x11380, 0x11389, 0x10000},
             {0x1138B, 0x1138B, 0x10000}, {0x1138E, 0x1138E, 0x10000}, {0x11390, 0x113B5, 0x10000},
             {0x113B7, 0x113B7, 0x10000}, {0x113B8, 0x113BA, 0x11000}, {0x113BB, 0x113C0, 0x101FD},
             {0x113C2, 0x113C2, 0x11000}, {0x113C5, 0x113C5, 0x11000}, {0x113C7, 0x113CA, 0x11000},
             {0x113CC, 0x113CD, 0x11000}, {0x113CE, 0x113CE, 0x101FD}, {0x113CF, 0x113CF, 0x11000},
             {0x113D0, 0x113D0, 0x101FD}, {0x113D1, 0x113D1, 0x10000}, {0x113D2, 0x113D2, 0x101FD},
             {0x113D3, 0x113D3, 0x10000}, {0x113D4, 0x113D5, 0x10100}, {0x113D7, 0x113D8, 0x10100},
             {0x113E1, 0x113E2, 0x101FD}, {0x116D0, 0x116E3, 0x104A0}, {0x1171E, 0x1171E, 0x11000},
             {0x11B00, 0x11B09, 0x10100}, {0x11BC0, 0x11BE0, 0x10000}, {0x11BE1, 0x11BE1, 0x10100},
             {0x11BF0, 0x11BF9, 0x104A0}, {0x11F00, 0x11F01, 0x101FD}, {0x11F02, 0x11F02, 0x10000},
             {0x11F03, 0x11F03, 0x11000}, {0x11F04, 0x11F10, 0x10000}, {0x11F12, 0x11F33, 0x10000},
             {0x11F34, 0x11F35, 0x11000}, {0x11F36, 0x11F3A, 0x101FD}, {0x11F3E, 0x11F3F, 0x11000},
             {0x11F40, 0x11F40, 0x101FD}, {0x11F41, 0x11F41, 0x11000}, {0x11F42, 0x11F42, 0x101FD},
             {0x11F43, 0x11F4F, 0x10100}, {0x11F50, 0x11F59, 0x104A0}, {0x11F5A, 0x11F5A, 0x101FD},
             {0x1342F, 0x1342F, 0x10000}, {0x13439, 0x1343F, 0x110BD}, {0x13440, 0x13440, 0x101FD},
             {0x13441, 0x13446, 0x10000}, {0x13447, 0x13455, 0x101FD}, {0x13460, 0x143FA, 0x10000},
             {0x16100, 0x1611D, 0x10000}, {0x1611E, 0x16129, 0x101FD}, {0x1612A, 0x1612C, 0x11000},
             {0x1612D, 0x1612F, 0x101FD}, {0x16130, 0x16139, 0x104A0}, {0x16D40, 0x16D42, 0x10780},
             {0x16D43, 0x16D6A, 0x10000}, {0x16D6B, 0x16D6C, 0x10780}, {0x16D6D, 0x16D6F, 0x10100},
             {0x16D70, 0x16D79, 0x104A0}, {0x18CFF, 0x18CFF, 0x10000}, {0x1B132, 0x1B132, 0x10000},
             {0x1B155, 0x1B155, 0x10000}, {0x1CC00, 0x1CCEF, 0x10137}, {0x1CCF0, 0x1CCF9, 0x104A0},
             {0x1CD00, 0x1CEB3, 0x10137}, {0x1D2C0, 0x1D2D3, 0x10107}, {0x1DF25, 0x1DF2A, 0x10428},
             {0x1E030, 0x1E06D, 0x10780}, {0x1E08F, 0x1E08F, 0x101FD}, {0x1E4D0, 0x1E4EA, 0x10000},
             {0x1E4EB, 0x1E4EB, 0x10780}, {0x1E4EC, 0x1E4EF, 0x101FD}, {0x1E4F0, 0x1E4F9, 0x104A0},
             {0x1E5D0, 0x1E5ED, 0x10000}, {0x1E5EE, 0x1E5EF, 0x101FD}, {0x1E5F0, 0x1E5F0, 0x10000},
             {0x1E5F1, 0x1E5FA, 0x104A0}, {0x1E5FF, 0x1E5FF, 0x10100}, {0x1F6DC, 0x1F6DC, 0x10137},
             {0x1F774, 0x1F776, 0x10137}, {0x1F77B, 0x1F77F, 0x10137}, {0x1F7D9, 0x1F7D9, 0x10137},
             {0x1F8B2, 0x1F8BB, 0x10137}, {0x1F8C0, 0x1F8C1, 0x10137}, {0x1FA75, 0x1FA77, 0x10137},
             {0x1FA87, 0x1FA89, 0x10137}, {0x1FA8F, 0x1FA8F, 0x10137}, {0x1FAAD, 0x1FAAF, 0x10137},
             {0x1FABB, 0x1FABF, 0x10137}, {0x1FAC6, 0x1FAC6, 0x10137}, {0x1FACE, 0x1FACF, 0x10137},
             {0x1FADA, 0x1FADC, 0x10137}, {0x1FADF, 0x1FADF, 0x10137}, {0x1FAE8, 0x1FAE9, 0x10137},
             {0x1FAF7, 0x1FAF8, 0x10137}, {0x1FBCB, 0x1FBEF, 0x10137}, {0x2B739, 0x2B739, 0x10000},
             {0x2EBF0, 0x2EE5D, 0x10000}, {0x31350, 0x323AF, 0x10000}};

int32_t mhai_pattern_stand_in(int32_t c)
{
    size_t low = 0, high = sizeof newer / sizeof newer[0];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (newer[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof newer / sizeof newer[0] && newer[low].first <= c ? newer[low].stand_in : c;
}

mha_status mhai_matcher_text(mhai_matcher *m, const char *text, size_t from, size_t to)
{
    m->text = text + from;
    m->base = from;
    m->most_steps += MORE_STEPS * (uint64_t)(to - from);
    for (size_t at = from; at < to;) {
        const size_t first = at;
        if ((unsigned char)text[at] < 0xE0) { /* all of them are U+0800 or above */
            at++;
            continue;
        }
        const int32_t c = mhai_utf8_next(text, &at), other = mhai_pattern_stand_in(c);
        if (other == c) continue;
        if (m->text == text + from) {
            m->subject.count = 0;
            MHA_TRY(mhai_vector_append(&m->subject, text + from, to - from));
            m->text = m->subject.items;
        }
        mhai_utf8_put(other, (char *)m->subject.items + (first - from));
    }
    return MHA_OK;
}

static mha_status too_slow(const mhai_matcher *m, const mhai_pattern *p, int error)
{
    if (error == PCRE2_ERROR_NOMEMORY) return MHA_NO_MEMORY("tokenizer: regular expression");
    if (error != PCRE2_ERROR_MATCHLIMIT)
        return mha_fail(MHA_ERR_SIZE,
                        "%s: the pattern '%s' needs more than %d MiB for a match; give the model a "
                        "simpler pattern",
                        p->where, p->shown.text, MOST_KIBIBYTES / 1024);
    return mha_fail(MHA_ERR_SIZE,
                    "%s: the pattern '%s' has too many ways to match the text: it takes more than "
                    "%llu steps (%d and %d per byte); give the model a simpler pattern",
                    p->where, p->shown.text, (unsigned long long)m->most_steps, (int)FIRST_STEPS,
                    (int)MORE_STEPS);
}

mha_status mhai_matcher_next(mhai_matcher *m, const mhai_pattern *pattern, size_t begin, size_t at,
                             size_t end, size_t *from, size_t *to)
{
    m->pattern = pattern;
    const int found = pcre2_match(pattern->code, (PCRE2_SPTR)m->text + (begin - m->base),
                                  end - begin, at - begin, PCRE2_NO_UTF_CHECK, m->data, m->context);
    *from = *to = end;
    if (found == PCRE2_ERROR_NOMATCH) return MHA_OK;
    if (found < 0) return too_slow(m, pattern, found);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(m->data);
    *from = begin + places[0];
    *to = begin + places[1];
    return MHA_OK;
}
