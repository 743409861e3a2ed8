/* multihead train: train a small transformer on a task from random initialisation, until its heads
 * specialise. */
#include "common/commands.h"
#include "common/contexts.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "common/screen.h"
#include "common/signals.h"
#include "train/train_print.h"
#include "train/train_report.h"
#include "train/train_save.h"
#include "train/train_text.h"
#include "view/view.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const train_task *const train_tasks[] = {
    &train_sentences, &train_pronouns,  &train_induction, &train_ioi,
    &train_reverse,   &train_agreement, &train_brackets,  NULL};

typedef struct train_options {
    const char *folder, *resume;
    int64_t seed, steps, tries, batch, layers, heads, embed, ff, every, seconds, threads;
    args_real learning_rate, dropout;
    const char *text, *mixer;
    mha_layer_desc mixers[TRAIN_MOST_LAYERS];
    int64_t context, words;
    int characters;
    int no_report, quiet, fresh;
    int64_t print; /* number of sequences to print instead of training */
} train_options;

#define NUMBER(name, field, ...) ROW_NUMBER(name, train_options, field, __VA_ARGS__)

static const args_option option_table[] = {
    ROW_HEADING("The model; defaults are those of the task"),
    NUMBER("layers", layers, 1, TRAIN_MOST_LAYERS, "set the number of layers"),
    NUMBER("heads", heads, 1, TRAIN_MOST_HEADS,
           "set the number of heads per layer, at the same width"),
    NUMBER("embed", embed, 2, 4096, "set the width of the model"),
    NUMBER("ff", ff, 0, 65536, "set the width of the feed-forward layers; 0: none"),
    ROW_TEXT(
        "mixer", train_options, mixer, "LIST",
        "set the mixer of all layers, or of each: attention,\ngdn (gated delta net) or mamba2; for "
        "induction and\n--text"),
    ROW_HEADING("Your own text instead of a task"),
    ROW_TEXT(
        "text", train_options, text, "FILE",
        "train on this UTF-8 text to predict the next word;\npunctuation marks are separate words"),
    ROW_FLAG(0, "chars", train_options, characters, 1, "predict characters instead of words",
             .needs = "--text FILE"),
    NUMBER("context", context, 8, 4096,
           "set the number of tokens per sequence; default 64\nwords or 128 characters",
           .needs = "--text FILE"),
    NUMBER("words", words, 8, 65536,
           "limit the vocabulary to N words; default 4096. Other\nwords, and words that occur "
           "once, are <unk>",
           .needs = "--text FILE"),
    ROW_HEADING("Training"),
    NUMBER("seed", seed, 0, INT64_MAX, "seed parameters and data; default 0"),
    NUMBER("steps", steps, 1, INT64_C(1) << 40, "limit the steps per attempt"),
    NUMBER("tries", tries, 1, 1000, "limit the attempts; default: the recipe's number"),
    NUMBER("seconds", seconds, 1, 1000000, "limit the time of all attempts, in seconds"),
    NUMBER("batch", batch, 1, 256, "set the number of sequences per step"),
    NUMBER("every", every, 1, 1000000, "evaluate on held-out data every N steps"),
    ROW_REAL("learning-rate", train_options, learning_rate,
             "set the learning rate of AdamW after the warm-up"),
    ROW_REAL("dropout", train_options, dropout,
             "drop this fraction (0 to 1) of attention weights in\ntraining"),
    ROW_HEADING("Output"),
    ROW_OUTPUT(train_options, folder, "FOLDER",
               "write the model as a Hugging Face folder, with a\ncheckpoint, the learning curve "
               "and reports on its\nheads"),
    ROW_FLAG(0, "fresh", train_options, fresh, 1,
             "start over even if the folder holds a training run", .needs = "--output FOLDER"),
    ROW_FLAG(0, "no-report", train_options, no_report, 1, "skip the measurements and the reports"),
    ROW_HEADING("Other"),
    NUMBER(
        "print", print, 1, 1000000,
        "print N held-out sequences as CoNLL-U, with links to\nthe words to attend to, instead "
        "of training",
        .excludes =
            "--text --mixer --layers --heads --embed --ff --seed --steps --tries --seconds --batch "
            "--every --learning-rate --dropout --output --fresh --no-report",
        .why = "it trains nothing"),
    ROW_THREADS(train_options),
    ROW_QUIET(train_options, "print no progress on stderr"),
    ROW_HELP,
};

static const char *task_at(int i)
{
    return train_tasks[i] ? train_tasks[i]->name : NULL;
}

const args_page train_page = {
    .usage = "train [options] TASK | --text FILE",
    .examples = "multihead train sentences -o demo\n"
                "multihead train sentences --seed 3 --heads 8\n"
                "multihead train induction --layers 1      (the control: it fails)\n"
                "multihead train induction --mixer gdn,attention -o hybrid\n"
                "multihead train reverse -o reverse\n"
                "multihead train --text novel.txt -o novel",
    .notes = "Tasks: sentences (which noun is \"it\"?), pronouns (the same for an encoder),\n"
             "induction (a repeated block), ioi (\"B\" follows \"A B A\"), reverse (encoder and\n"
             "decoder), agreement (of verb and subject), brackets (which one to close).\n"
             "docs/training.md describes them. Training stops when the task's goal is reached\n"
             "on held-out data; the figures reported are measured on other held-out data. Some\n"
             "recipes restart a stuck attempt with a derived seed and report how often.\n"
             "\n"
             "--text trains two layers of four heads, width 64, dropout 0.3, tied embeddings.\n"
             "It suits texts of a few hundred kilobytes. White space separates words; case is\n"
             "kept. The last twentieth is the test set. The twentieth before it is the\n"
             "validation set: training stops after six evaluations without a lower loss on it,\n"
             "or after --steps (1000). The model with the lowest validation loss is kept.\n"
             "\n"
             "FOLDER: config.json, model.safetensors and the tokenizer, which transformers\n"
             "loads (reverse: folders encoder and decoder); training.safetensors, the\n"
             "checkpoint, replaced after every evaluation; curve.csv, one line per evaluation.\n"
             "report.html and report-2.html show every head on the task's example and on a\n"
             "variant of it. A second run with the same folder resumes training,\n"
             "bit-identically. Ctrl-C saves and stops. The same seed gives the same model for\n"
             "any number of threads and ranks.",
    ARGS_OPTIONS(option_table),
    .word = task_at,
};

/* ---- progress ------------------------------------------------------------------------------ */

/* The rate since the last evaluation. */
typedef struct pace {
    double tokens, seconds;
    int64_t steps;
} pace;

enum { LINE = 320, BAR = 10 };

/* The accuracy of each kind of probes, or the held-out loss of a text; empty if there is none. */
static void describe_look(const train_task *task, const train_scores *s, char text[LINE])
{
    int used = 0;
    *text = '\0';
    if (task->text)
        snprintf(text, LINE, "  held out %.3f (perplexity %.1f)", s->loss, mha_exp(s->loss));
    if (!task->kinds[1]) return;
    for (int kind = 0; kind < TRAIN_KINDS && task->kinds[kind]; kind++)
        used += snprintf(text + used, LINE - (size_t)used, "%s%s %.1f", kind ? ", " : " (",
                         task->kinds[kind], 100 * train_accuracy_of(s, kind));
    snprintf(text + used, LINE - (size_t)used, ")");
}

/* Show a line with a bar, which is overwritten and truncated to the width on a terminal. Elsewhere
 * print a new line each time. */
static void show_progress(const train_options *options, const train_run *run, const train_scores *s,
                          const pace *p)
{
    const train_model *model = &run->model;
    const bool terminal = screen_shows_progress(options->quiet);
    char look[LINE], line[2 * LINE], bar[BAR + 3] = "", tries[32] = "";
    if (options->quiet) return;
    const int64_t left = model->recipe.steps - model->step;
    const double each = p->steps > 0 ? p->seconds / (double)p->steps : 0;
    const int64_t full = model->step * BAR / (model->recipe.steps > 0 ? model->recipe.steps : 1);
    for (int i = 0; terminal && i < BAR; i++) bar[i] = i < full ? '#' : '.';
    if (terminal) bar[BAR] = ' ';
    describe_look(model->task, s, look);
    if (run->attempt > 0) snprintf(tries, sizeof tries, "try %" PRId64 "  ", run->attempt + 1);
    snprintf(line, sizeof line,
             "%s%sstep %" PRId64 "/%" PRId64
             "  loss %.3f  right %.1f %%%s  %.0f s, at most %.0f more  %.0f tokens/s",
             bar, tries, model->step, model->recipe.steps, model->loss, 100 * train_accuracy(s),
             look, run->seconds, each * (double)left, p->seconds > 0 ? p->tokens / p->seconds : 0);
    if (terminal)
        cli_print_to(stderr, "\r\033[K%.*s", (int)screen_width(2, 0) - 1, line);
    else
        cli_print_to(stderr, "%s\n", line);
    fflush(stderr);
}

/* ---- training ------------------------------------------------------------------------------ */

/* Whether a signal should stop training. All ranks stop after the same step. */
static bool stopped(const train_run *run)
{
    return run->stopped || (!ranks_transport() && signals_came());
}

/* Run a step, or none if a rank received a signal. That rank still takes part in the agreement at
 * the beginning of a step. */
static cli_exit step(train_run *run)
{
    if (ranks_transport() && signals_came()) {
        mha_status status = mha_fail(MHA_ERR_CALLBACK, "stopped by a signal");
        status = mha_transport_agree(ranks_transport(), status);
        run->stopped = status == MHA_ERR_CALLBACK;
        return run->stopped ? CLI_OK : ranks_check(status);
    }
    return train_model_step(&run->model, &run->stopped);
}

/* Run the steps up to the next evaluation, and add their time to the run's. */
static cli_exit train_on(train_run *run, int64_t until, pace *p)
{
    const double begin = seconds_now();
    *p = (pace){.steps = -run->model.step};
    while (run->model.step < until && !stopped(run)) {
        CLI_TRY(step(run));
        p->tokens += (double)run->model.batch.B * (double)run->model.batch.T;
    }
    p->seconds = seconds_now() - begin;
    p->steps += run->model.step;
    run->seconds += p->seconds;
    return CLI_OK;
}

/* After some steps rank 0 evaluates held-out data and broadcasts its decision. */
static cli_exit look(const train_options *options, train_run *run, const pace *p,
                     train_verdict *verdict)
{
    const train_recipe *recipe = &run->model.recipe;
    if (ranks_first()) {
        train_scores s;
        CLI_TRY(train_model_score(&run->model, TRAIN_SPLIT_STOP, recipe->probes_to_stop, NULL, &s));
        *verdict = run->model.task->judge(recipe, run->model.step, &s);
        show_progress(options, run, &s, p);
        run->done = *verdict == TRAIN_DONE;
        CLI_TRY(train_save_point(run, &s));
        if (run->done) *verdict = TRAIN_DONE; /* patience also ends training */
    }
    return train_save_share(run, verdict);
}

static cli_exit train_try(const train_options *options, train_run *run, train_verdict *verdict)
{
    const train_recipe *recipe = &run->model.recipe;
    *verdict = run->done ? TRAIN_DONE : TRAIN_GO_ON; /* an earlier call finished training */
    while (*verdict == TRAIN_GO_ON && train_save_looked(run) < recipe->steps && !stopped(run) &&
           (options->seconds == 0 || run->seconds < (double)options->seconds)) {
        pace speed;
        int64_t next = train_save_looked(run) + recipe->every;
        CLI_TRY(train_on(run, next < recipe->steps ? next : recipe->steps, &speed));
        if (stopped(run)) break;
        CLI_TRY(look(options, run, &speed, verdict));
    }
    return CLI_OK;
}

/* Repeat attempts until one reaches the goal or none are left. */
static cli_exit train_all(const train_options *options, train_run *run, train_verdict *verdict)
{
    for (;;) {
        CLI_TRY(train_try(options, run, verdict));
        const bool more = run->attempt + 1 < run->model.recipe.tries;
        const bool out_of_time = options->seconds > 0 && run->seconds >= (double)options->seconds;
        if (*verdict == TRAIN_DONE || stopped(run) || out_of_time || !more) return CLI_OK;
        cli_note(
            options->quiet, "%sstuck at step %" PRId64 ": restarting with the seed of try %" PRId64,
            screen_shows_progress(options->quiet) ? "\n" : "", run->model.step, run->attempt + 2);
        run->attempt++;
        CLI_TRY(train_save_try(run));
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Find the named task in train_tasks. */
static cli_exit find_task(const args_texts *plain, const train_task **task)
{
    const char *names[16];
    char all[256] = "";
    size_t count = 0, used = 0;
    for (; train_tasks[count]; count++) {
        names[count] = train_tasks[count]->name;
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", count ? ", " : "",
                                 names[count]);
    }
    if (plain->count > 1)
        return cli_fail(CLI_USAGE,
                        "one task at a time: '%s' is one argument too many; -o %s writes there",
                        plain->items[1], plain->items[1]);
    if (plain->count == 0)
        return cli_fail(CLI_USAGE, "name a task, one of %s; or give --text FILE", all);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(plain->items[0], names[i])) *task = train_tasks[i];
    if (*task) return CLI_OK;
    const char *near = mha_nearest_name(plain->items[0], names, count);
    if (near)
        return cli_fail(CLI_USAGE, "unknown task '%s'; did you mean '%s'?", plain->items[0], near);
    return cli_fail(CLI_USAGE, "unknown task '%s'; expected one of %s", plain->items[0], all);
}

/* Set another number of heads at the same width. */
static cli_exit set_heads(int64_t heads, mha_transformer_desc *model)
{
    const int64_t width = model->head_dim ? model->head_dim * model->num_heads : model->embed_dim;
    if (width % heads != 0)
        return cli_fail(CLI_USAGE, "--heads %" PRId64 ": expected a divisor of the width %" PRId64,
                        heads, width);
    if (model->head_dim) model->head_dim = width / heads;
    model->num_heads = heads;
    return CLI_OK;
}

/* Read a list of mixers: one for all layers, or one for each. */
static cli_exit set_mixers(train_options *o, const train_task *task, mha_transformer_desc *model)
{
    int64_t count = 0;
    bool attends = true;
    for (const char *at = o->mixer, *end; at; at = *end ? end + 1 : NULL, count++) {
        end = at + strcspn(at, ",");
        const int kind = train_mixer_of(at, (size_t)(end - at));
        if (kind < 0 || count == TRAIN_MOST_LAYERS)
            return cli_fail(
                CLI_USAGE,
                "--mixer %s: expected up to %d of attention, gdn, mamba2, such as gdn,attention",
                o->mixer, (int)TRAIN_MOST_LAYERS);
        o->mixers[count].mixer = (mha_mixer)kind;
        attends = attends && !kind;
    }
    if (count > 1 && !o->layers) model->num_layers = count;
    if (count > 1 && count != model->num_layers)
        return cli_fail(CLI_USAGE,
                        "--mixer %s: %" PRId64 " mixers for %" PRId64
                        " layers; give one for all, or one for each",
                        o->mixer, count, model->num_layers);
    if (attends) return CLI_OK;
    if (!task->hybrid_goal)
        return cli_fail(
            CLI_USAGE,
            "--mixer %s: the goal of the task %s is for attention; choose induction, or "
            "--text",
            o->mixer, task->name);
    const int64_t width = model->head_dim ? model->head_dim : model->embed_dim / model->num_heads;
    for (int64_t i = 0; i < model->num_layers; i++) {
        mha_layer_desc *l = &o->mixers[i];
        *l =
            (mha_layer_desc){.struct_size = sizeof *l, .mixer = o->mixers[count > 1 ? i : 0].mixer};
        if (!l->mixer) continue;
        l->conv_kernel = 4;
        l->key_dim = l->value_dim = width;
    }
    model->layers = o->mixers;
    return CLI_OK;
}

/* Make the task's recipe, changed by the options. */
static cli_exit make_recipe(train_options *o, const train_task *task, train_recipe *recipe)
{
    *recipe = *task->recipe;
    mha_transformer_desc *parts[] = {&recipe->model, &recipe->encoder};
    for (int i = 0; i < 2 && (i == 0 || recipe->encoder.num_layers > 0); i++) {
        if (o->layers) parts[i]->num_layers = o->layers;
        if (o->embed) parts[i]->embed_dim = o->embed;
        if (o->ff >= 0) parts[i]->ff_dim = o->ff;
        if (o->heads) CLI_TRY(set_heads(o->heads, parts[i]));
    }
    if (o->mixer) CLI_TRY(set_mixers(o, task, &recipe->model));
    if (o->steps) recipe->steps = o->steps;
    if (task->text) recipe->decay = recipe->steps - recipe->warm_up; /* down to 0 at the end */
    if (recipe->decay < 0) recipe->decay = 0;
    if (o->tries) recipe->tries = o->tries;
    if (o->batch && task->draws_all && o->batch != recipe->batch)
        return cli_fail(CLI_USAGE,
                        "--batch is %" PRId64
                        ", but each step of the task %s takes all of its %" PRId64
                        " sequences; omit --batch",
                        o->batch, task->name, recipe->batch);
    if (o->batch) recipe->batch = o->batch;
    if (o->every) recipe->every = o->every;
    if (o->dropout.given) recipe->dropout = o->dropout.value;
    if (!(recipe->dropout >= 0 && recipe->dropout <= 1))
        return cli_fail(CLI_USAGE, "--dropout is %g, expected 0 to 1", recipe->dropout);
    if (!o->learning_rate.given) return CLI_OK;
    if (!(o->learning_rate.value > 0 && o->learning_rate.value <= 1))
        return cli_fail(CLI_USAGE, "--learning-rate is %g, expected more than 0, at most 1",
                        o->learning_rate.value);
    recipe->learning_rate = o->learning_rate.value;
    return CLI_OK;
}

/* Print the result of the last evaluation, compared with the goal. */
static void print_goal(const train_run *run)
{
    const train_task *task = run->model.task;
    cli_print("  goal:     %s\n", run->model.recipe.model.layers ? task->hybrid_goal : task->goal);
    if (run->looks == 0) return;
    const double *last = run->curve + (run->looks - 1) * TRAIN_CURVE_COLUMNS;
    cli_print("  reached:  %.1f %%", 100 * last[TRAIN_CURVE_RIGHT]);
    for (int kind = 0; kind < TRAIN_KINDS && task->kinds[1] && task->kinds[kind]; kind++)
        cli_print("%s%s %.1f %%", kind ? ", " : " (", task->kinds[kind],
                  100 * last[TRAIN_CURVE_KIND + kind]);
    cli_print(
        "%s, with a loss of %.3g; the best head has %.0f %% of its weight on the right tokens\n",
        task->kinds[1] ? ")" : "", last[TRAIN_CURVE_HELD_OUT], 100 * last[TRAIN_CURVE_BEST]);
}

static void say_how_it_ended(const train_options *options, const train_run *run,
                             train_verdict verdict)
{
    const train_model *model = &run->model;
    if (screen_shows_progress(options->quiet)) cli_print_to(stderr, "\n");
    if (run->stopped) {
        cli_note(options->quiet, "interrupted after step %" PRId64 "%s", model->step,
                 options->folder ? "; run it again with the same folder to resume" : "");
        return;
    }
    if (model->task->text) {
        cli_print("%" PRId64 " steps, %.1f s of training; ", model->step, run->seconds);
        if (run->best_step > 0)
            cli_print(
                "the saved model is that after %" PRId64
                " steps, with the lowest perplexity, %.2f, on the validation part of the text\n",
                run->best_step, mha_exp(run->best_loss));
        else
            cli_print("too few for an evaluation on held-out text\n");
        return;
    }
    cli_print("%s after %" PRId64 " steps of try %" PRId64 ", %.1f s of training\n",
              verdict == TRAIN_DONE ? "Goal reached" : "Goal missed", model->step, run->attempt + 1,
              run->seconds);
    print_goal(run);
}

static cli_exit finish(const train_options *options, train_run *run, train_verdict verdict)
{
    train_finding found;
    const cli_exit code = train_save_folder(run);
    run->stopped |= signals_postpone();
    say_how_it_ended(options, run, verdict);
    if (code != CLI_OK || options->no_report || run->stopped) return code;
    CLI_TRY(train_report_print(&run->model, options->quiet, &found));
    CLI_TRY(train_report_pictures(run, &found, options->quiet));
    if (run->folder)
        cli_note(options->quiet, "next: multihead heads %s%s", run->folder,
                 run->model.encoder ? "/encoder" : "");
    else
        cli_note(options->quiet,
                 "nothing was saved; -o FOLDER saves the model and reports of all its heads");
    return CLI_OK;
}

static cli_exit learn(const train_options *options, train_run *run, train_verdict *verdict)
{
    CLI_TRY(train_save_begin(options->fresh, run));
    if (!run->done && run->model.step > run->model.recipe.steps)
        return cli_fail(CLI_USAGE,
                        "%s: is already at step %" PRId64 ", --steps is %" PRId64
                        "; give more, or --fresh to start over",
                        options->folder, run->model.step, run->model.recipe.steps);
    return train_all(options, run, verdict);
}

static cli_exit run_training(train_options *options, const train_task *task)
{
    train_verdict verdict = TRAIN_GO_ON;
    train_run run = {.model.task = task,
                     .folder = ranks_first() ? options->folder : NULL,
                     .seed = (uint64_t)options->seed,
                     .pictures = !options->no_report && ranks_first()};
    CLI_TRY(make_recipe(options, task, &run.model.recipe));
    CLI_TRY(context_make(MHA_ISA_AUTO, options->threads, &run.model.context));
    /* Hold signals from the first file to the last, so that none loses completed work. */
    signals_hold();
    CLI_TRY(learn(options, &run, &verdict));
    ranks_release();
    return ranks_first() ? finish(options, &run, verdict) : CLI_OK;
}

static cli_exit train_on_text(train_options *options, const args_texts *plain)
{
    if (plain->count > 0)
        return cli_fail(CLI_USAGE, "'%s' and --text: give a task or a text", plain->items[0]);
    const train_text_options how = {.path = options->text,
                                    .characters = options->characters,
                                    .context = options->context,
                                    .words = options->words};
    train_text text;
    CLI_TRY(train_text_make(&how, &text));
    return run_training(options, &text.task);
}

cli_exit cmd_train(int count, char *const *arguments)
{
    train_options options = {.ff = -1};
    args_line line = {0};
    const train_task *task = NULL;
    CLI_TRY(args_parse(&train_page, count, arguments, &options, &line));
    CLI_TRY(args_check(&train_page, &line));
    if (options.text) return train_on_text(&options, &line.plain);
    CLI_TRY(find_task(&line.plain, &task));
    if (options.print) return train_print(task, options.print);
    return run_training(&options, task);
}
