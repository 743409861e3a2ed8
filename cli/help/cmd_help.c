/* multihead help: the overview, a subcommand's help, and both as man pages and completions. */
#include "help/help.h"

#include "common/option_rows.h"

#include <multihead/heads.h>

#include <stdio.h>
#include <string.h>

static const char *const formats[] = {"text", "man", "bash", "zsh", "fish", NULL};

enum { FORMAT_TEXT, FORMAT_MAN, FORMAT_BASH, FORMAT_ZSH, FORMAT_FISH };

typedef struct help_options {
    int format, shown;
} help_options;

static const args_option option_table[] = {
    ROW_HEADING("Options"),
    ROW_CHOICE("format", help_options, format, formats,
               "print text (the default), a man page, or completions\nfor a shell"),
    ROW_HELP,
};

static const char exit_codes[] = "exit-codes", scores[] = "scores";

/* The topics: subcommands, then these two. */
static const char *topic_at(int i)
{
    const cli_command *command = cli_command_at(i);
    if (command) return command->name;
    if (cli_command_at(i - 1)) return exit_codes;
    return cli_command_at(i - 2) ? scores : NULL;
}

const args_page help_page = {
    .bare = true,
    .usage = "help [SUBCOMMAND | exit-codes | scores]\n"
             "help [SUBCOMMAND] --format man\n"
             "help --format bash|zsh|fish",
    .examples =
        "multihead help view\n"
        "multihead help view --format man | man -l -\n"
        "multihead help --format bash > ~/.local/share/bash-completion/completions/multihead",
    .notes = "An installation already has the man pages and completions.",
    .takes = "[TOPIC]",
    .spare = "name one topic: a subcommand, 'exit-codes' or 'scores'",
    ARGS_OPTIONS(option_table),
    .word = topic_at,
};

const char help_examples[] = "multihead view MODEL \"The cat sat on the mat\"\n"
                             "multihead view MODEL --example animal -o report.html\n"
                             "multihead heads MODEL --text letters.txt --sort role\n"
                             "multihead run --example --causal\n"
                             "multihead explain --like llama-2-70b --svg attention.svg\n"
                             "multihead help view";

const char *help_line(const char **text, int *length)
{
    const char *line = *text;
    if (!line || !*line) return NULL;
    *length = (int)strcspn(line, "\n");
    *text = line + *length + (line[*length] == '\n');
    return line;
}

void help_overview(FILE *file)
{
    cli_print_to(file, "multihead " CLI_VERSION CLI_LEFT_OUT
                       ": show what the heads of multi-head attention attend to\n"
                       "\n"
                       "Usage:\n"
                       "  multihead SUBCOMMAND [options] [arguments]\n"
                       "\n"
                       "Examples:\n");
    const char *rest = help_examples, *line;
    int length;
    while ((line = help_line(&rest, &length))) cli_print_to(file, "  %.*s\n", length, line);
    cli_print_to(file, "\nSubcommands:\n");
    const cli_command *command;
    for (int i = 0; (command = cli_command_at(i)); i++)
        cli_print_to(file, "  %-10s %s\n", command->name, command->summary);
    cli_print_to(file, "\nOptions:\n"
                       "  -h, --help     show this help, or that of a subcommand\n"
                       "      --version  print the version\n"
                       "\nEnvironment:\n");
#define PRINT_VARIABLE(name, text) cli_print_to(file, "  %-17s  %s\n", name, text);
    HELP_ENVIRONMENT_LIST(PRINT_VARIABLE)
#undef PRINT_VARIABLE
}

char help_value_kind(const args_option *option)
{
    if (option->kind == ARGS_CHOICE) return 'c';
    if (!option->value) return 0;
    const char *const files[] = {"FILE", "FOLDER", "ARRAY"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strstr(option->value, files[i])) return 'f';
    return 'x';
}

void help_short(const args_option *option, char *line, size_t size)
{
    const size_t length = strcspn(option->help, ";:");
    snprintf(line, size, "%.*s", (int)length, option->help);
    for (char *c = line; *c; c++)
        if (*c == '\n') *c = ' ';
}

static void print_exit_codes(void)
{
    cli_print("Exit codes:\n");
#define PRINT_EXIT(name, value, text) cli_print("  %d  %s\n", value, text);
    CLI_EXIT_LIST(PRINT_EXIT)
#undef PRINT_EXIT
}

/* Print the tables of docs/heads.md. */
static void print_scores(void)
{
    cli_print("Scores of heads, as named in options and files:\n");
    for (int n = 0; n < MHA_MEASURES; n++) {
        const mha_measure_info info = mha_measure_describe((mha_head_measure)n);
        cli_print("  %-15s  %s (%s)\n%19s%s\n", info.name, info.label, info.source, "", info.text);
    }
    cli_print("  random_NAME      the score on repeated random tokens\n"
              "  RELATION         accuracy on gold links; RELATION-back: reversed\n"
              "\nRoles, by the score that must reach the threshold:\n");
    for (int n = 0; n < MHA_ROLES; n++) {
        const mha_role_info info = mha_role_describe((mha_role)n);
        const bool links = n == MHA_ROLE_LINKS;
        cli_print("  %-15s  %s %s%g%s (%s)\n%19s%s\n", info.name,
                  links ? "relation" : mha_measure_describe(info.measure).name,
                  info.corrected ? "corrected " : "", info.threshold,
                  links ? " above the baseline" : "", info.source, "", info.text);
    }
    cli_print("\ndocs/heads.md has the formulas and references.\n");
}

static cli_exit print_topic(const char *topic)
{
    const cli_command *command;
    char flag[] = "--help", *help[] = {flag};
    bool done;
    if (!strcmp(topic, exit_codes)) {
        print_exit_codes();
        return CLI_OK;
    }
    if (!strcmp(topic, scores)) {
        print_scores();
        return CLI_OK;
    }
    CLI_TRY(cli_command_find(topic, &command));
    return args_help(command->name, command->summary, command->page, 1, help, &done);
}

cli_exit cmd_help(int count, char *const *arguments)
{
    help_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&help_page, count, arguments, &options, &line));
    const char *topic = line.plain.count ? line.plain.items[0] : NULL;
    const cli_command *command = NULL;
    if (options.format == FORMAT_TEXT) {
        if (topic) return print_topic(topic);
        help_overview(stdout);
        return CLI_OK;
    }
    if (topic && options.format != FORMAT_MAN)
        return cli_fail(CLI_USAGE, "completions cover all subcommands: omit '%s'", topic);
    if (topic) CLI_TRY(cli_command_find(topic, &command));
    if (options.format == FORMAT_MAN) help_man(command);
    if (options.format == FORMAT_BASH) help_bash();
    if (options.format == FORMAT_ZSH) help_zsh();
    if (options.format == FORMAT_FISH) help_fish();
    return CLI_OK;
}
