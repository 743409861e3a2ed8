/* Completions for zsh, by its _arguments. */
#include "help/help.h"

#include <string.h>

/* Write text within '...' of a specification, whose syntax includes brackets and colons. */
static void put_quoted(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            cli_print("'\\''");
        else
            cli_print("%s%c", strchr("[]:\\", *c) ? "\\" : "", *c);
    }
}

static void put_option(const args_option *option)
{
    char text[256];
    const char kind = help_value_kind(option), *end = kind ? "=" : "";
    const bool repeated = option->kind == ARGS_TEXTS;
    help_short(option, text, sizeof text);
    cli_print("        ");
    if (option->letter) {
        if (repeated)
            cli_print("'*'");
        else
            cli_print("'(-%c --%s)'", option->letter, option->name);
        cli_print("{-%c%s,--%s%s}'", option->letter, kind ? "+" : "", option->name, end);
    } else {
        cli_print("'%s--%s%s", repeated ? "*" : "", option->name, end);
    }
    cli_print("[");
    put_quoted(text);
    cli_print("]");
    if (kind) cli_print(":%s:", option->value ? option->value : "CHOICE");
    if (kind == 'f') cli_print("_files");
    if (kind == 'c') {
        cli_print("(");
        for (int i = 0; option->choices[i]; i++)
            cli_print("%s%s", i ? " " : "", option->choices[i]);
        cli_print(")");
    }
    cli_print("' \\\n");
}

static void put_command(const cli_command *command)
{
    const args_page *page = command->page;
    cli_print("    %s)\n      _arguments -s -S \\\n", command->name);
    for (size_t i = 0; i < page->option_count; i++)
        if (page->options[i].kind != ARGS_HEADING) put_option(&page->options[i]);
    cli_print("        '*:argument:");
    if (page->word) {
        cli_print("(");
        for (int i = 0; page->word(i); i++) cli_print("%s%s", i ? " " : "", page->word(i));
        cli_print(")");
    } else {
        cli_print("_files");
    }
    cli_print("' ;;\n");
}

void help_zsh(void)
{
    const cli_command *command;
    cli_print("#compdef multihead\n"
              "# Completions of multihead for zsh, written by 'multihead help --format zsh'.\n"
              "_multihead() {\n"
              "  local -a subcommands\n"
              "  subcommands=(\n");
    for (int i = 0; (command = cli_command_at(i)); i++) {
        cli_print("    '%s:", command->name);
        put_quoted(command->summary);
        cli_print("'\n");
    }
    cli_print(
        "  )\n"
        "  if ((CURRENT == 2)); then\n"
        "    _describe -t commands subcommand subcommands\n"
        "    _arguments '(-h --help)'{-h,--help}'[show help]' '--version[print the version]'\n"
        "    return\n"
        "  fi\n"
        "  local subcommand=$words[2]\n"
        "  shift words\n"
        "  ((CURRENT--))\n"
        "  case $subcommand in\n");
    for (int i = 0; (command = cli_command_at(i)); i++) put_command(command);
    cli_print("  esac\n"
              "}\n"
              "if [[ $funcstack[1] == _multihead ]]; then _multihead \"$@\"; "
              "else compdef _multihead multihead; fi\n");
}
