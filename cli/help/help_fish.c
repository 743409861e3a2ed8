/* Completions for fish: a line per subcommand and per option. */
#include "help/help.h"

/* Within '...' fish reads \' and \\ only. */
static void put_quoted(const char *text)
{
    cli_print("'");
    for (const char *c = text; *c; c++) cli_print("%s%c", *c == '\'' || *c == '\\' ? "\\" : "", *c);
    cli_print("'");
}

static void put_option(const char *command, const args_option *option)
{
    char text[256];
    const char kind = help_value_kind(option);
    help_short(option, text, sizeof text);
    cli_print("complete -c multihead -n '__fish_seen_subcommand_from %s' -l %s", command,
              option->name);
    if (option->letter) cli_print(" -s %c", option->letter);
    if (kind == 'f') cli_print(" -rF");
    if (kind == 'x') cli_print(" -x");
    if (kind == 'c') {
        cli_print(" -xa '");
        for (int i = 0; option->choices[i]; i++)
            cli_print("%s%s", i ? " " : "", option->choices[i]);
        cli_print("'");
    }
    cli_print(" -d ");
    put_quoted(text);
    cli_print("\n");
}

static void put_words(const cli_command *command)
{
    const args_page *page = command->page;
    cli_print("complete -c multihead -n '__fish_seen_subcommand_from %s' ", command->name);
    if (!page->word) {
        cli_print("-F\n");
        return;
    }
    cli_print("-f -a '");
    for (int i = 0; page->word(i); i++) cli_print("%s%s", i ? " " : "", page->word(i));
    cli_print("'\n");
}

void help_fish(void)
{
    const cli_command *command;
    cli_print("# Completions of multihead for fish, written by 'multihead help --format fish'.\n"
              "complete -c multihead -n __fish_use_subcommand -f\n"
              "complete -c multihead -n __fish_use_subcommand -s h -l help -d 'show help'\n"
              "complete -c multihead -n __fish_use_subcommand -l version -d 'print the version'\n");
    for (int i = 0; (command = cli_command_at(i)); i++) {
        cli_print("complete -c multihead -n __fish_use_subcommand -a %s -d ", command->name);
        put_quoted(command->summary);
        cli_print("\n");
    }
    for (int i = 0; (command = cli_command_at(i)); i++) {
        const args_page *page = command->page;
        put_words(command);
        for (size_t o = 0; o < page->option_count; o++)
            if (page->options[o].kind != ARGS_HEADING) put_option(command->name, &page->options[o]);
    }
}
