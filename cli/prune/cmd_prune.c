/* multihead prune: remove heads from a model, least important first. */
#include "common/commands.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "prune/prune.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const args_option option_table[] = {
    ROW_HEADING("Data to measure the model on"),
    ROW_TEXT("text", prune_options, text, "FILE",
             "read sentences, one per line, UTF-8; - is stdin. Lines\nlonger than the model's "
             "limit are truncated"),
    ROW_TEXT(
        "task", prune_options, task, "NAME",
        "use held-out sentences of a task of 'multihead train',\nfor models that know its words"),
    ROW_NUMBER("lines", prune_options, lines, 1, 1000000,
               "use at most N lines of the text or sentences of the\ntask; default: all lines, 300 "
               "sentences"),
    ROW_HEADING("Importance"),
    ROW_TEXT("measure", prune_options, measured_by, "NAME",
             "select the measure: gradient (of the head's gate, per\nexample; the default), "
             "gradient-token, gradient-batch,\ngradient-signed, ablation (the loss without the "
             "head)\nor mean-ablation (the loss with its mean output)"),
    ROW_FLAG(0, "normalise", prune_options, normalise, 1,
             "divide the importances of a layer by their l2 norm"),
    ROW_NUMBER("step", prune_options, step, 1, 1000000,
               "remove N heads between two measurements; default: a\ntenth of all"),
    ROW_NUMBER("seed", prune_options, seed, 0, INT64_MAX, "seed the random orders; default 0"),
    ROW_HEADING("How many"),
    ROW_NUMBER("keep", prune_options, keep, 0, 1000000, "keep N heads"),
    ROW_REAL("fraction", prune_options, fraction, "remove this fraction of the heads, 0 to 1"),
    ROW_REAL("stop", prune_options, stop,
             "without --keep or --fraction: remove heads while\naccuracy or cosine is at least X "
             "times its original\nvalue; default 0.9"),
    ROW_NUMBER("min-per-layer", prune_options, least, 0, 1000000,
               "leave at least N heads in every layer; default 0"),
    ROW_NUMBER("kv-heads", prune_options, kv_heads, 1, 1000000,
               "keep all heads; let them share N key/value heads,\neach the mean of its group",
               .excludes =
                   "--keep --fraction --stop --min-per-layer --mask --csv --svg --pdf --html "
                   "--measure --normalise --step --seed",
               .why = "it removes no heads"),
    ROW_HEADING("Output"),
    ROW_OUTPUT(prune_options, folder, "FOLDER",
               "write the smaller model, with the original tokenizer"),
    ROW_FLAG(0, "mask", prune_options, mask, 1,
             "keep the model's shape and zero the output of removed\nheads; the model loads "
             "wherever the original does"),
    ROW_FLAG('n', "dry-run", prune_options, dry_run, 1, "measure, but write no FOLDER"),
    ROW_TEXT("csv", prune_options, csv, "FILE", "write the curve; - is stdout", .ending = ".csv"),
    ROW_TEXT("json", prune_options, json, "FILE", "write the curve and every head; - is stdout",
             .ending = ".json"),
    ROW_TEXT("svg", prune_options, svg, "FILE", "draw the curve; - is stdout", .ending = ".svg"),
    ROW_TEXT("pdf", prune_options, pdf, "FILE", "draw the curve as PDF, for papers; - is stdout",
             .ending = ".pdf"),
    ROW_TEXT("html", prune_options, html, "FILE",
             "write an interactive report of the curves and every\nhead; - is stdout",
             .ending = ".html"),
    ROW_HEADING("Other"),
    ROW_THREADS(prune_options),
    ROW_QUIET(prune_options, "print no progress or notes on stderr"),
    ROW_HELP,
};

const args_page prune_page = {
    .usage = "prune [options] MODEL --text FILE\n"
             "prune [options] MODEL --task NAME",
    .examples = "multihead prune demo --task sentences --svg curve.svg\n"
                "multihead prune demo --task sentences --keep 4 -o small\n"
                "multihead prune MiniLM --text lines.txt --fraction 0.5 -o half\n"
                "multihead prune MiniLM --text lines.txt --fraction 0.5 --mask -o masked\n"
                "multihead prune demo --text lines.txt --kv-heads 2 -o grouped",
    .notes = "MODEL is a folder or a GGUF file, but not an encoder-decoder. A GGUF file can\n"
             "only be measured; -o needs a folder, whose tokenizer it copies. A model that\n"
             "predicts the next token is scored by its accuracy, an encoder by the cosine of\n"
             "its embeddings (the mean over tokens) to those of the full model. The reversed\n"
             "order and five random ones are measured for comparison.\n"
             "docs/pruning.md has the details.",
    .takes = "MODEL",
    .spare = "give the texts as a file: --text FILE",
    ARGS_OPTIONS(option_table),
};

/* ---- options --------------------------------------------------------------------------------- */

static cli_exit check_part(const char *option, const args_real *x)
{
    if (!x->given || (x->value >= 0 && x->value <= 1)) return CLI_OK;
    return cli_fail(CLI_USAGE, "%s is %g, expected 0 to 1", option, x->value);
}

static cli_exit check_options(const prune_options *o)
{
    const int ways = (o->keep >= 0) + o->fraction.given + o->stop.given;
    if (!o->text == !o->task)
        return cli_fail(CLI_USAGE, o->text ? "--text and --task exclude each other"
                                           : "the data are missing: --text FILE or --task NAME");
    if (ways > 1) return cli_fail(CLI_USAGE, "--keep, --fraction and --stop exclude each other");
    CLI_TRY(check_part("--fraction", &o->fraction));
    return check_part("--stop", &o->stop);
}

static cli_exit find_measure(prune_options *o)
{
    const char *name;
    if (!o->measured_by) return CLI_OK;
    for (o->measure = 0; (name = mha_importance_name((mha_importance)o->measure)); o->measure++)
        if (!strcmp(o->measured_by, name)) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    "--measure %.40s: expected one of gradient, gradient-token, gradient-batch, "
                    "gradient-signed, ablation, mean-ablation",
                    o->measured_by);
}

/* Report unwritable outputs before the work. */
static cli_exit check_places(const prune_options *o)
{
    const char *const paths[] = {o->csv, o->json, o->svg, o->pdf, o->html};
    int stdouts = 0;
    for (int i = 0; i < 5; i++) {
        stdouts += paths[i] && !strcmp(paths[i], "-");
        if (!paths[i] || !strcmp(paths[i], "-")) continue;
        CLI_TRY(cli_check(files_check_place(paths[i])));
        for (int k = 0; k < i; k++)
            if (paths[k] && files_same(paths[i], paths[k]))
                return cli_fail(CLI_USAGE, "'%s' is named twice; give each output its own",
                                paths[i]);
    }
    if (stdouts <= 1) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    "only one of --csv, --json, --svg, --pdf and --html can go to stdout");
}

static bool to_stdout(const prune_options *o)
{
    const char *const paths[] = {o->csv, o->json, o->svg, o->pdf, o->html};
    for (int i = 0; i < 5; i++)
        if (paths[i] && !strcmp(paths[i], "-")) return true;
    return false;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Decide by the first bytes; the reader rejects files that are not models. */
static bool is_gguf(const char *path)
{
    struct stat status;
    char magic[4] = "";
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool found = read(file, magic, 4) == 4 && !memcmp(magic, "GGUF", 4);
    close(file);
    return found;
}

/* Report unwritable outputs before the model is opened. */
static cli_exit check_folder(const prune_options *o, const char *model)
{
    if (!o->folder) return CLI_OK;
    if (files_same(o->folder, model))
        return cli_fail(CLI_USAGE, "-o %s: is the model itself; name another folder", o->folder);
    if (!o->dry_run) CLI_TRY(cli_check(files_check_folder(o->folder)));
    if (!is_gguf(model)) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED,
                    "-o %s: %s is a GGUF file, whose tokenizer cannot be copied to a folder; "
                    "prune the model's Hugging Face folder, or omit -o",
                    o->folder, model);
}

/* Only rank 0 checks outputs, because only it writes them. */
static cli_exit check_outputs(const prune_options *o, const char *model)
{
    CLI_TRY(check_places(o));
    return check_folder(o, model);
}

static cli_exit open_model(prune_job *job, const char *folder)
{
    int64_t layer = 0;
    CLI_TRY(text_model_open(folder, job->options->threads, false, &job->model));
    if (job->model.encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "%s is an encoder-decoder, which cannot be pruned; give %s/encoder", folder,
                        folder);
    for (int64_t l = 0; l < job->model.desc.num_layers; l++)
        job->heads += mha_transformer_heads(&job->model.desc, l);
    const char *why = mha_transformer_phrase(&job->model.desc, mha_layer_keeps_heads, &layer);
    if (!why) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED,
                    "%s: layer %" PRId64 " %s, so its heads can be neither removed nor merged",
                    folder, layer, why);
}

/* Set the defaults that depend on the model. */
static cli_exit fill_options(const prune_job *job, prune_options *o)
{
    if (o->step == 0) o->step = (job->heads + 5) / 10 > 1 ? (job->heads + 5) / 10 : 1;
    if (o->fraction.given)
        o->keep = job->heads - (int64_t)(o->fraction.value * (double)job->heads + 0.5);
    if (o->keep <= job->heads) return CLI_OK;
    return cli_fail(CLI_USAGE, "--keep %" PRId64 ": the model has %" PRId64 " heads", o->keep,
                    job->heads);
}

static cli_exit share(prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    if (d->layer_heads || d->kv_heads % job->options->kv_heads != 0)
        return cli_fail(
            CLI_USAGE,
            "--kv-heads %" PRId64 ": the model has %" PRId64 " key/value heads%s; choose a divisor",
            job->options->kv_heads, d->kv_heads, d->layer_heads ? ", not in every layer" : "");
    CLI_TRY(cli_check(mha_transformer_share_kv(job->model.context, job->model.net,
                                               job->options->kv_heads, &job->made)));
    CLI_TRY(prune_keep(job->made));
    job->shared_parameters = mha_transformer_size(job->made);
    CLI_TRY(prune_measure(job, job->model.net, &job->whole));
    CLI_TRY(prune_measure(job, job->made, &job->shared));
    if (!to_stdout(job->options)) prune_print_shared(job);
    return CLI_OK;
}

static cli_exit prune(prune_job *job)
{
    CLI_TRY(prune_order(job));
    CLI_TRY(prune_curve(job));
    if (!ranks_first()) return CLI_OK;
    CLI_TRY(prune_choose(job));
    if (!to_stdout(job->options)) prune_print(job);
    return CLI_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static cli_exit write_files(const prune_job *job)
{
    const struct {
        const char *path;
        files_draw_fn *draw;
    } all[] = {{job->options->csv, prune_write_csv},
               {job->options->json, prune_write_json},
               {job->options->svg, prune_write_svg},
               {job->options->pdf, prune_write_pdf},
               {job->options->html, prune_write_html}};
    for (int i = 0; i < 5; i++)
        if (all[i].path) CLI_TRY(cli_check(files_draw(all[i].path, all[i].draw, job)));
    return CLI_OK;
}

static cli_exit write_folder(prune_job *job)
{
    const prune_options *o = job->options;
    if (!o->folder || o->dry_run) {
        cli_note(o->quiet, "nothing was written%s",
                 o->folder ? "" : "; -o FOLDER writes the smaller model");
        return CLI_OK;
    }
    if (!job->made) CLI_TRY(prune_make(job));
    return prune_save(job);
}

cli_exit cmd_prune(int argument_count, char *const *arguments)
{
    prune_options o = {.keep = -1};
    args_line line = {0};
    CLI_TRY(args_parse(&prune_page, argument_count, arguments, &o, &line));
    CLI_TRY(args_check(&prune_page, &line));
    CLI_TRY(check_options(&o));
    CLI_TRY(find_measure(&o));
    prune_job job = {.options = &o};
    CLI_TRY(ranks_agree(ranks_first() ? check_outputs(&o, line.plain.items[0]) : CLI_OK));
    CLI_TRY(open_model(&job, line.plain.items[0]));
    CLI_TRY(fill_options(&job, &o));
    CLI_TRY(o.text ? prune_data_from_text(&job) : prune_data_from_task(&job));
    if (o.kv_heads > 0) ranks_release(); /* two passes: not worth dividing among ranks */
    if (ranks_first() || o.kv_heads < 1) CLI_TRY(o.kv_heads > 0 ? share(&job) : prune(&job));
    if (!ranks_first()) return CLI_OK;
    CLI_TRY(write_files(&job));
    return write_folder(&job);
}
