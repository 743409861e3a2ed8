/* Command lines: see args.h. One pass over the arguments, one table lookup per option. */
#include "common/args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_NAME = 31 };

/* ---- Parsing --------------------------------------------------------------------------------- */

/* An option in the arguments. */
typedef struct args_shown {
    char shown[LONGEST_NAME + 3]; /* "--layer" or "-l" */
    const char *value;            /* the text after '=', or the next argument; NULL: none */
} args_shown;

static const args_option *find_option(const args_page *page, const char *shown)
{
    for (size_t i = 0; i < page->option_count; i++) {
        const args_option *option = &page->options[i];
        if (option->kind == ARGS_HEADING) continue;
        if (shown[1] == '-' && !strcmp(option->name, shown + 2)) return option;
        if (shown[1] == option->letter && shown[1] && !shown[2]) return option;
    }
    return NULL;
}

static cli_exit unknown_option(const args_page *page, const char *shown, const char *word)
{
    if (strchr(word, ' '))
        return cli_fail(CLI_USAGE, "'%s' begins with '-'; if it is a text, put '--' before it",
                        word);
    const char *names[ARGS_MOST_OPTIONS];
    size_t count = 0;
    for (size_t i = 0; i < page->moved_count; i++)
        if (!strcmp(shown + strspn(shown, "-"), page->moved[i].option))
            return cli_fail(CLI_USAGE, "%s is now '%s'", shown, page->moved[i].now);
    for (size_t i = 0; i < page->option_count && count < ARGS_MOST_OPTIONS; i++)
        if (page->options[i].kind != ARGS_HEADING) names[count++] = page->options[i].name;
    const char *near = mha_nearest_name(shown + strspn(shown, "-"), names, count);
    if (near) return cli_fail(CLI_USAGE, "unknown option '%s'; did you mean '--%s'?", shown, near);
    return cli_fail(CLI_USAGE, "unknown option '%s'; 'multihead %s --help' lists them all", shown,
                    cli_running);
}

/* Stricter than strtoll() and strtod(), which accept leading blanks, a plus sign, hexadecimals and
 * names. */
static bool begins_number(const char *text, const char *characters, const char *ends,
                          const char **rest)
{
    *rest = text + strspn(text, characters);
    return *rest != text && *text != '+' && (!**rest || strchr(ends, **rest));
}

bool args_whole(const char *text, const char *ends, int64_t *number, const char **rest)
{
    char *end;
    if (!begins_number(text, "-0123456789", ends, rest)) return false;
    errno = 0;
    *number = strtoll(text, &end, 10);
    return end == *rest && !errno;
}

bool args_decimal(const char *text, const char *ends, double *number, const char **rest)
{
    char *end;
    if (!begins_number(text, "+-.0123456789eE", ends, rest)) return false;
    *number = strtod(text, &end);
    return end == *rest && isfinite(*number);
}

bool args_digits(const char **at, int64_t *number)
{
    const int64_t too_large = INT64_C(1) << 40;
    const char *start = *at;
    for (*number = 0; **at >= '0' && **at <= '9'; ++*at)
        if (*number < too_large) *number = *number * 10 + (**at - '0');
    return *at != start;
}

static cli_exit store_number(const args_option *option, const args_shown *given, int64_t *field)
{
    int64_t number;
    const char *rest;
    if (!args_whole(given->value, "", &number, &rest) || number < option->least ||
        number > option->most)
        return cli_fail(CLI_USAGE, "%s %s: expected an integer from %" PRId64 " to %" PRId64,
                        given->shown, given->value, option->least, option->most);
    *field = number;
    return CLI_OK;
}

static cli_exit store_real(const args_shown *given, args_real *field)
{
    double number;
    const char *rest;
    if (!args_decimal(given->value, "", &number, &rest))
        return cli_fail(CLI_USAGE, "%s %s: expected a number such as 0.125", given->shown,
                        given->value);
    *field = (args_real){.value = number, .given = true};
    return CLI_OK;
}

static cli_exit store_choice(const args_option *option, const args_shown *given, int *field)
{
    char all[256] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (!strcmp(option->choices[i], given->value)) {
            *field = i;
            return CLI_OK;
        }
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", option->choices[i]);
    }
    return cli_fail(CLI_USAGE, "%s %s: expected one of %s", given->shown, given->value, all);
}

static bool ends_in(const char *name, const char *ending)
{
    const size_t length = strlen(name), bytes = strlen(ending);
    return length > bytes && !strcmp(name + length - bytes, ending);
}

/* The name of an output may have any ending except that of another format. */
static cli_exit check_ending(const args_page *page, const args_option *option,
                             const args_shown *given)
{
    const char *const formats[] = {".svg", ".png",  ".pdf", ".html",
                                   ".csv", ".json", ".npy", ".safetensors"};
    const args_option *better = NULL;
    const char *name = given->value, *format = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (ends_in(name, formats[i])) format = formats[i];
    if (!format || !strcmp(format, option->ending)) return CLI_OK;
    for (size_t i = 0; i < page->option_count; i++)
        if (page->options[i].ending && !strcmp(page->options[i].ending, format))
            better = &page->options[i];
    return cli_fail(CLI_USAGE, "%s: \"%s\" must end in %s%s%s%s%s", given->shown, name,
                    option->ending, better ? "; or use --" : "", better ? better->name : "",
                    better ? " " : "", better ? name : "");
}

static cli_exit store_text(const args_page *page, const args_option *option,
                           const args_shown *given, const char **field)
{
    if (option->ending) CLI_TRY(check_ending(page, option, given));
    if (*field)
        return cli_fail(CLI_USAGE, "%s is given twice: '%s' and '%s'", given->shown, *field,
                        given->value);
    *field = given->value;
    return CLI_OK;
}

static cli_exit append_text(const char *what, const char *value, args_texts *texts)
{
    if (texts->count == ARGS_MOST_TEXTS)
        return cli_fail(CLI_USAGE, "%s: more than %d of them", what, (int)ARGS_MOST_TEXTS);
    texts->items[texts->count++] = value;
    return CLI_OK;
}

static cli_exit store(const args_page *page, const args_option *option, const args_shown *given,
                      void *fields)
{
    void *field = (char *)fields + option->field;
    switch (option->kind) {
    case ARGS_FLAG: *(int *)field = (int)option->least; return CLI_OK;
    case ARGS_TEXT: return store_text(page, option, given, field);
    case ARGS_TEXTS: return append_text(given->shown, given->value, field);
    case ARGS_NUMBER: return store_number(option, given, field);
    case ARGS_REAL: return store_real(given, field);
    case ARGS_CHOICE: return store_choice(option, given, field);
    case ARGS_HEADING: break;
    }
    return CLI_OK;
}

/* Parse the option at arguments[*i] and its value, and advance *i past them. */
static cli_exit take_option(const args_page *page, int count, char *const *arguments, int *i,
                            void *fields, args_line *line)
{
    const char *word = arguments[*i];
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    args_shown given = {.value = equals ? equals + 1 : NULL};
    int length = equals ? (int)(equals - word) : (int)strlen(word);
    snprintf(given.shown, sizeof given.shown, "%.*s", length, word);
    const args_option *option =
        length < (int)sizeof given.shown ? find_option(page, given.shown) : NULL;
    if (!option) return unknown_option(page, given.shown, word);
    if (option->kind == ARGS_FLAG) {
        if (equals) return cli_fail(CLI_USAGE, "%s takes no value", given.shown);
    } else if (!equals) {
        if (*i + 1 >= count)
            return cli_fail(CLI_USAGE, "%s: its value is missing: %s %s", given.shown, given.shown,
                            option->value ? option->value : "CHOICE");
        given.value = arguments[++*i];
    }
    if (given.value && !*given.value)
        return cli_fail(CLI_USAGE, "%s: its value is empty: %s %s", given.shown, given.shown,
                        option->value ? option->value : "CHOICE");
    line->given[option - page->options] = true;
    return store(page, option, &given, fields);
}

/* Each word of page->takes is one argument. */
static cli_exit check_plain(const args_page *page, const args_texts *plain)
{
    int at = 0;
    if (!page->takes) return CLI_OK;
    for (const char *name = page->takes; *name; at++) {
        const int length = (int)strcspn(name, " ");
        if (*name != '[' && (at >= plain->count || !*plain->items[at]))
            return cli_fail(CLI_USAGE, "%.*s is missing: multihead %.*s", length, name,
                            (int)strcspn(page->usage, "\n"), page->usage);
        name += length + (name[length] == ' ');
    }
    if (plain->count <= at) return CLI_OK;
    return cli_fail(CLI_USAGE, "'%s' is one argument too many; %s", plain->items[at], page->spare);
}

cli_exit args_parse(const args_page *page, int count, char *const *arguments, void *fields,
                    args_line *line)
{
    bool options_ended = false;
    for (int i = 0; i < count; i++) {
        const char *word = arguments[i];
        cli_exit code = CLI_OK;
        if (!options_ended && !strcmp(word, "--"))
            options_ended = true;
        else if (options_ended || word[0] != '-' || !word[1])
            code = append_text("arguments", word, &line->plain);
        else
            code = take_option(page, count, arguments, &i, fields, line);
        if (code != CLI_OK) return code;
    }
    return check_plain(page, &line->plain);
}

/* ---- Options given ---------------------------------------------------------------------------- */

void args_imply(const args_page *page, const char *name, args_line *line)
{
    for (size_t i = 0; i < page->option_count; i++)
        if (page->options[i].kind != ARGS_HEADING && !strcmp(page->options[i].name, name))
            line->given[i] = true;
}

/* The first given option among those that the text names, or NULL. */
static const args_option *first_given(const args_page *page, const char *text,
                                      const args_line *line)
{
    char shown[LONGEST_NAME + 3];
    for (const char *at = text; at && (at = strstr(at, "--")); at += 2) {
        snprintf(shown, sizeof shown, "%.*s", (int)strcspn(at, " ,"), at);
        const args_option *option = find_option(page, shown);
        if (option && line->given[option - page->options]) return option;
    }
    return NULL;
}

cli_exit args_check(const args_page *page, const args_line *line)
{
    for (size_t i = 0; i < page->option_count; i++) {
        const args_option *option = &page->options[i];
        if (!line->given[i]) continue;
        if (option->needs && !first_given(page, option->needs, line))
            return cli_fail(CLI_USAGE, "--%s requires %s", option->name, option->needs);
        const args_option *other = first_given(page, option->excludes, line);
        if (other)
            return cli_fail(CLI_USAGE, "--%s and --%s exclude each other%s%s", option->name,
                            other->name, option->why ? ": " : "", option->why ? option->why : "");
    }
    return CLI_OK;
}

/* ---- Help ------------------------------------------------------------------------------------ */

/* Print each line of text after prefix. */
static void print_lines(FILE *file, const char *prefix, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        cli_print_to(file, "%s%.*s\n", length ? prefix : "", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static void print_head(FILE *file, const char *command, const char *summary, const args_page *page)
{
    cli_print_to(file, "multihead %s: %s\n\nUsage:\n", command, summary);
    print_lines(file, "  multihead ", page->usage);
    cli_print_to(file, "\nExamples:\n");
    print_lines(file, "  ", page->examples);
}

static void print_option(const args_option *option)
{
    enum { HELP_COLUMN = 26, NAMES_BYTES = 256 };
    char names[NAMES_BYTES], letter[] = "    ";
    if (option->letter) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    int used = snprintf(names, sizeof names, "  %s--%s", letter, option->name);
    if (option->value)
        used += snprintf(names + used, sizeof names - (size_t)used, " %s", option->value);
    for (int i = 0; option->choices && option->choices[i] && used < NAMES_BYTES; i++)
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i ? "|" : " ",
                         option->choices[i]);
    cli_print("%s", names);
    /* The first line of the help is on the line of the names, if it fits there. */
    int column = used;
    for (const char *text = option->help; *text;) {
        size_t length = strcspn(text, "\n");
        if (column + 2 > HELP_COLUMN) {
            cli_print("\n");
            column = 0;
        }
        cli_print("%*s%.*s", HELP_COLUMN - column, "", (int)length, text);
        column = HELP_COLUMN + (int)length;
        text += length + (text[length] == '\n');
    }
    cli_print("\n");
}

static void print_rest(const args_page *page)
{
    for (size_t i = 0; i < page->option_count; i++)
        if (page->options[i].kind == ARGS_HEADING)
            cli_print("\n%s:\n", page->options[i].name);
        else
            print_option(&page->options[i]);
    if (page->notes) {
        cli_print("\n");
        print_lines(stdout, "", page->notes);
    }
}

static bool wants_help(int count, char *const *arguments)
{
    for (int i = 0; i < count && strcmp(arguments[i], "--") != 0; i++)
        if (!strcmp(arguments[i], "-h") || !strcmp(arguments[i], "--help")) return true;
    return false;
}

cli_exit args_help(const char *command, const char *summary, const args_page *page, int count,
                   char *const *arguments, bool *done)
{
    const bool whole = wants_help(count, arguments);
    *done = whole || (count == 0 && !page->bare);
    if (*done) print_head(whole ? stdout : stderr, command, summary, page);
    if (whole) print_rest(page);
    if (whole || !*done) return CLI_OK;
    cli_print_to(stderr, "\n'multihead %s --help' lists all options.\n", command);
    return CLI_USAGE;
}
