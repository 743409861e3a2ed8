/* Completions for bash; the package bash-completion is not required. */
#include "help/help.h"

static void put_names(const args_page *page)
{
    for (size_t i = 0; i < page->option_count; i++) {
        const args_option *option = &page->options[i];
        if (option->kind != ARGS_HEADING) cli_print(" --%s", option->name);
    }
}

/* Write the pattern that matches an option before the cursor's word: view:-o|view:--output) */
static void put_pattern(const char *command, const args_option *option)
{
    cli_print("    ");
    if (option->letter) cli_print("%s:-%c | ", command, option->letter);
    cli_print("%s:--%s)", command, option->name);
}

static void put_values(const cli_command *command)
{
    const args_page *page = command->page;
    for (size_t i = 0; i < page->option_count; i++) {
        const args_option *option = &page->options[i];
        const char kind = option->kind == ARGS_HEADING ? 0 : help_value_kind(option);
        if (!kind) continue;
        put_pattern(command->name, option);
        if (kind == 'c') {
            cli_print(" words='");
            for (int c = 0; option->choices[c]; c++)
                cli_print("%s%s", c ? " " : "", option->choices[c]);
            cli_print("' ;;\n");
        } else {
            cli_print(" %s ;;\n", kind == 'f' ? "kind=files" : "kind=none");
        }
    }
}

static void put_words(const cli_command *command)
{
    const args_page *page = command->page;
    cli_print("    %s:-*) words='", command->name);
    put_names(page);
    cli_print("' ;;\n    %s:*) ", command->name);
    if (page->word) {
        cli_print("words='");
        for (int i = 0; page->word(i); i++) cli_print("%s%s", i ? " " : "", page->word(i));
        cli_print("' ;;\n");
    } else {
        cli_print("kind=files ;;\n");
    }
}

void help_bash(void)
{
    const cli_command *command;
    cli_print("# Completions of multihead for bash, written by 'multihead help --format bash'.\n"
              "_multihead() {\n"
              "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
              "    local command=${COMP_WORDS[1]} kind=words words='' i\n"
              "    COMPREPLY=()\n"
              "    # --option=value is three words.\n"
              "    if [[ $current == '=' ]]; then\n"
              "        current=''\n"
              "    elif [[ $before == '=' ]]; then\n"
              "        before=${COMP_WORDS[COMP_CWORD-2]}\n"
              "    fi\n"
              "    if ((COMP_CWORD == 1)); then\n"
              "        command='' before=''\n"
              "    fi\n"
              "    # After -- no word is an option.\n"
              "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
              "        if [[ ${COMP_WORDS[i]} == -- ]]; then before='' kind=plain; fi\n"
              "    done\n"
              "    case $command:$before in\n"
              "    :) words='");
    for (int i = 0; (command = cli_command_at(i)); i++) cli_print("%s ", command->name);
    cli_print("--help --version' ;;\n");
    for (int i = 0; (command = cli_command_at(i)); i++) put_values(command);
    cli_print("    *) ;;\n    esac\n"
              "    if [[ -z $words && $kind != none && $kind != files ]]; then\n"
              "        [[ $kind == plain ]] && command=$command:\n"
              "        kind=words\n"
              "        case $command:$current in\n"
              "        *::*) kind=files ;;\n");
    for (int i = 0; (command = cli_command_at(i)); i++) put_words(command);
    cli_print("    *) ;;\n    esac\n    fi\n"
              "    case $kind in\n"
              "    words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\") ;;\n"
              "    files)\n"
              "        compopt -o filenames 2>/dev/null\n"
              "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
              "        ;;\n"
              "    *) ;;\n    esac\n"
              "}\n"
              "complete -F _multihead multihead\n");
}
