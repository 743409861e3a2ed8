/* The command line of 'heads', 'ablate' and 'circuits'. Files and folders are checked before the work,
 * which may take hours. */
#include "common/files.h"
#include "common/launched.h"
#include "heads/heads.h"
#include "heads/heads_folder.h"

#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_RANDOM = 10 };

static cli_exit check_state(const heads_options *o)
{
    struct stat status;
    if (!ranks_first()) return CLI_OK; /* only the first rank reads and writes the file */
    if (!strcmp(o->state, "-") || (stat(o->state, &status) == 0 && !S_ISREG(status.st_mode)))
        return cli_fail(CLI_USAGE, "--state %s is not a regular file; name a file on disk",
                        o->state);
    if ((o->page && files_same(o->state, o->page)) ||
        (o->text_file && files_same(o->state, o->text_file)))
        return cli_fail(CLI_USAGE, "--state and %s are the same file: %s",
                        o->page && files_same(o->state, o->page) ? "-o" : "--text", o->state);
    return cli_check(files_check_place(o->state));
}

cli_exit heads_parse(const args_page *page, int count, char *const *arguments, heads_options *o)
{
    args_line line = {0};
    o->random = o->save_every = -1;
    CLI_TRY(args_parse(page, count, arguments, o, &line));
    CLI_TRY(args_check(page, &line));
    o->model = line.plain.count > 0 ? line.plain.items[0] : NULL;
    args_texts *plain = o->images.count > 0 ? &o->images : &o->texts; /* --image *.png */
    for (int i = 1; i < line.plain.count; i++) plain->items[plain->count++] = line.plain.items[i];
    o->named = o->images.count > 0 || o->text_file || o->conllu || o->example || o->texts.count > 0;
    const bool cuttable = o->text_file || o->example || o->texts.count > 0;
    const char *of_texts = o->cut && !cuttable          ? "cut"
                           : o->max_tokens && !o->named ? "max-tokens"
                           : o->truncate && !o->named   ? "truncate"
                                                        : NULL;
    if (of_texts)
        return cli_fail(CLI_USAGE, "--%s requires a text: --text FILE, --example NAME or \"text\"",
                        of_texts);
    if (!o->model && o->attention.count == 0)
        return cli_fail(CLI_USAGE, "MODEL is missing: multihead %s MODEL", cli_running);
    if (o->page && !strcmp(o->page, "-") && (o->json || o->csv || o->details))
        return cli_fail(CLI_USAGE, "-o - and --%s both write to stdout",
                        o->json  ? "json"
                        : o->csv ? "csv"
                                 : "details");
    if (o->state) CLI_TRY(ranks_agree(check_state(o)));
    CLI_TRY(heads_folder_check("--npy", o->npy));
    CLI_TRY(heads_folder_check("--headvis", o->headvis));
    CLI_TRY(heads_folder_check("--pictures", o->pictures));
    if (o->page) CLI_TRY(cli_check(files_check_place(o->page)));
    o->corpus = o->corpus || o->page || o->npy || o->headvis || o->pictures;
    o->drawn = o->random >= 0;
    o->alone = o->state && !o->named && !o->drawn;
    if (o->random < 0) o->random = o->images.count > 0 ? 0 : DEFAULT_RANDOM;
    return CLI_OK;
}
