/* Man pages, man(7): generated from a subcommand's page (args.h). */
#include "help/help.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Write text of a page. roff interprets these characters, or prints typographic ones instead. */
static void put(const char *text, int length)
{
    static const struct {
        char character;
        const char *roff;
    } escapes[] = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"}, {'`', "\\(ga"},
                   {'^', "\\(ha"}, {'~', "\\(ti"}, {'"', "\\(dq"}};
    for (int at = 0; at < length;) {
        int plain = (int)strcspn(text + at, "\\-'`^~\"");
        if (plain > length - at) plain = length - at;
        cli_print("%.*s", plain, text + at);
        at += plain;
        for (size_t i = 0; at < length && i < sizeof escapes / sizeof *escapes; i++)
            if (escapes[i].character == text[at]) {
                cli_print("%s", escapes[i].roff);
                at++;
                break;
            }
    }
}

static void put_text(const char *text)
{
    put(text, (int)strlen(text));
}

/* Write lines of text after prefix. \& prevents a leading period from being a request. */
static void put_lines(const char *prefix, const char *text)
{
    const char *line;
    int length;
    while ((line = help_line(&text, &length))) {
        if (!length) {
            cli_print(".PP\n");
            continue;
        }
        cli_print("%s", *prefix ? prefix : *line == '.' ? "\\&" : "");
        put(line, length);
        cli_print("\n");
    }
}

static void put_unfilled(const char *prefix, const char *text)
{
    cli_print(".nf\n");
    put_lines(prefix, text);
    cli_print(".fi\n");
}

/* The date is that of the sources, if the build sets it (reproducible-builds.org). Otherwise there
 * is none, so that pages do not depend on the day. */
static void put_title(const char *name)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH"), *rest;
    int64_t seconds = 0;
    char date[32] = "";
    struct tm day;
    if (epoch && args_whole(epoch, "", &seconds, &rest)) {
        const time_t when = (time_t)seconds;
        if (gmtime_r(&when, &day)) strftime(date, sizeof date, "%Y-%m-%d", &day);
    }
    cli_print(".\\\" Written by 'multihead help --format man'.\n");
    cli_print(".TH MULTIHEAD%s", *name ? "\\-" : "");
    for (const char *c = name; *c; c++) cli_print("%c", *c - 'a' + 'A');
    cli_print(" 1 \"%s\" \"multihead " CLI_VERSION "\" \"User Commands\"\n", date);
}

static void put_option(const args_option *option)
{
    cli_print(".TP\n");
    if (option->letter) cli_print("\\fB\\-%c\\fR, ", option->letter);
    cli_print("\\fB\\-\\-");
    put_text(option->name);
    cli_print("\\fR");
    if (option->value) {
        cli_print(" \\fI");
        put_text(option->value);
        cli_print("\\fR");
    }
    for (int i = 0; option->choices && option->choices[i]; i++) {
        cli_print("%s\\fB", i ? "|" : " ");
        put_text(option->choices[i]);
        cli_print("\\fR");
    }
    cli_print("\n");
    put_lines("", option->help);
}

static void put_endings(const cli_command *but)
{
    cli_print(".SH EXIT STATUS\n");
#define PUT_EXIT(name, value, text)        \
    cli_print(".TP\n\\fB%d\\fR\n", value); \
    put_lines("", text);
    CLI_EXIT_LIST(PUT_EXIT)
#undef PUT_EXIT
    cli_print(".SH ENVIRONMENT\n");
#define PUT_VARIABLE(name, text)          \
    cli_print(".TP\n\\fB%s\\fR\n", name); \
    put_lines("", text);
    HELP_ENVIRONMENT_LIST(PUT_VARIABLE)
#undef PUT_VARIABLE
    cli_print(".SH SEE ALSO\n");
    if (but) cli_print(".BR multihead (1),\n");
    const cli_command *command;
    for (int i = 0; (command = cli_command_at(i)); i++)
        if (command != but) cli_print(".BR multihead\\-%s (1),\n", command->name);
    cli_print(
        ".BR libmultihead (3)\n.PP\nThe pages of docs/ are installed in share/doc/multihead.\n");
}

static void put_command(const cli_command *command)
{
    const args_page *page = command->page;
    put_title(command->name);
    cli_print(".SH NAME\nmultihead\\-%s \\- ", command->name);
    put_text(command->summary);
    cli_print("\n.SH SYNOPSIS\n");
    put_unfilled("multihead ", page->usage);
    cli_print(".SH DESCRIPTION\n");
    put_lines("", page->notes ? page->notes : command->summary);
    cli_print(".SH OPTIONS\n");
    for (size_t i = 0; i < page->option_count; i++) {
        const args_option *option = &page->options[i];
        if (option->kind != ARGS_HEADING) {
            put_option(option);
        } else if (strcmp(option->name, "Options") != 0) {
            cli_print(".SS ");
            put_text(option->name);
            cli_print("\n");
        }
    }
    cli_print(".SH EXAMPLES\n");
    put_unfilled("", page->examples);
    put_endings(command);
}

static void put_overview(void)
{
    put_title("");
    cli_print(".SH NAME\n"
              "multihead \\- show what the heads of multi\\-head attention attend to\n"
              ".SH SYNOPSIS\n"
              ".B multihead\n"
              ".I SUBCOMMAND\n"
              "[options] [arguments]\n"
              ".SH DESCRIPTION\n"
              "Draws and measures the attention heads of a model, computes attention of arrays,\n"
              "and trains small transformers. Each subcommand has a page of its own,\n"
              ".BR multihead\\-view (1)\n"
              "and so on.\n");
    const cli_command *command;
    for (int i = 0; (command = cli_command_at(i)); i++) {
        cli_print(".TP\n\\fB%s\\fR\n", command->name);
        put_lines("", command->summary);
    }
    cli_print(".SH OPTIONS\n"
              ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nshow help, or that of a subcommand\n"
              ".TP\n\\fB\\-\\-version\\fR\nprint the version\n"
              ".SH EXAMPLES\n");
    put_unfilled("", help_examples);
    put_endings(NULL);
}

void help_man(const cli_command *command)
{
    if (command)
        put_command(command);
    else
        put_overview();
}
