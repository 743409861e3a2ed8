/* See ablate.h. The gradient of every measure estimates the effects of all heads. The best heads of
 * each measure, and pairs of these heads, are then measured exactly. */
#include "ablate/ablate.h"

#include "common/arena.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_HEADS = 40, SEED = 1 };
enum { SET_TEXTS, SET_RANDOM, SET_TASK };

typedef struct effects_job {
    ablate_effects *effects;
    text_model *model;    /* effects->model */
    int64_t heads, pairs; /* numbers of heads and of heads in pairs to measure exactly */
    progress progress;
    const char *what;
    double done, total; /* work of finished calls; of all known calls */
    bool said, patching_paths;
} effects_job;

static cli_exit check_model(const text_model *m)
{
    if (m->encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "%s is an encoder-decoder, whose heads cannot be ablated; 'multihead prune "
                        "%s/encoder' measures those of its encoder",
                        m->folder, m->folder);
    if (mha_transformer_predicts(&m->desc)) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED,
                    "%s does not predict the next token, which ablation requires; 'multihead "
                    "prune' measures encoders by their embeddings",
                    m->folder);
}

/* ---- texts ----------------------------------------------------------------------------------- */

cli_exit ablate_text(int64_t B, int64_t T, int64_t terms, mha_effect_text *text, int32_t **ids,
                     int64_t **lengths, mha_effect_term **list)
{
    mha_tensor *tokens;
    CLI_TRY(ARENA_ALLOC(1, &tokens));
    CLI_TRY(ARENA_ALLOC(B * T, ids));
    CLI_TRY(ARENA_ALLOC(B, lengths));
    CLI_TRY(ARENA_ALLOC(terms, list));
    *tokens = mha_tensor_contiguous(*ids, MHA_I32, 2, (int64_t[]){B, T});
    for (int64_t b = 0; b < B; b++) (*lengths)[b] = T;
    *text = (mha_effect_text){.struct_size = sizeof *text,
                              .tokens = tokens,
                              .lengths = *lengths,
                              .terms = *list,
                              .term_count = terms};
    return CLI_OK;
}

static cli_exit make_list(effect_set *set, int64_t texts)
{
    set->data = (mha_effect_data){.struct_size = sizeof set->data, .texts = texts, .measures = 1};
    CLI_TRY(ARENA_ALLOC(texts, &set->texts));
    CLI_TRY(ARENA_ALLOC(texts, &set->list));
    for (int64_t i = 0; i < texts; i++) set->list[i] = &set->texts[i];
    set->data.text = set->list;
    return CLI_OK;
}

/* Add text i: its loss, and in-context learning if the text is long enough. */
static cli_exit add_text(const effects_job *j, effect_set *set, int64_t i,
                         const heads_source *source, int64_t *late)
{
    mha_tokens *tokens;
    int32_t *ids;
    int64_t *lengths;
    mha_effect_term *terms;
    CLI_TRY(heads_source_encode(&j->effects->options->heads, j->model, source, &tokens, NULL));
    int64_t end = tokens->count;
    while (end > 0 && tokens->special[end - 1]) end--;
    const bool whole = end >= EFFECT_LATE_END;
    const int64_t early = EFFECT_EARLY_END - EFFECT_EARLY, rest = EFFECT_LATE_END - EFFECT_LATE;
    const int64_t losses = end > 1 ? end - 1 : 0;
    CLI_TRY(ablate_text(1, tokens->count, losses + (whole ? early + rest : 0), &set->texts[i], &ids,
                        &lengths, &terms));
    memcpy(ids, tokens->ids, (size_t)tokens->count * sizeof *ids);
    set->tokens += tokens->count;
    if (losses > 0) CLI_TRY(cli_check(mha_effect_loss(ids, 1, end, 1, 0, terms)));
    if (!whole) return CLI_OK;
    ++*late;
    terms += losses;
    CLI_TRY(cli_check(mha_effect_loss(ids, EFFECT_EARLY, EFFECT_EARLY_END, 1, 1, terms)));
    return cli_check(mha_effect_loss(ids, EFFECT_LATE, EFFECT_LATE_END, -1, 1, terms + early));
}

static void add_measure(ablate_effects *e, int set, int index, const char *name, const char *label,
                        const char *text)
{
    e->measures[e->measure_count++] =
        (effect_measure){.name = name, .label = label, .text = text, .set = set, .index = index};
    if (e->sets[set].data.measures <= index) e->sets[set].data.measures = index + 1;
}

static cli_exit add_texts(effects_job *j, const heads_sources *sources)
{
    ablate_effects *e = j->effects;
    const int64_t most = j->effects->options->max_texts;
    const int64_t count = sources->count < most ? sources->count : most;
    int64_t late = 0;
    if (count == 0) return CLI_OK;
    CLI_TRY(make_list(&e->sets[SET_TEXTS], count));
    for (int64_t i = 0; i < count; i++)
        CLI_TRY(add_text(j, &e->sets[SET_TEXTS], i, &sources->items[i * sources->count / count],
                         &late));
    add_measure(e, SET_TEXTS, 0, "loss", "loss", "mean loss of the tokens of a text, in nats");
    if (late > 0)
        add_measure(e, SET_TEXTS, 1, "in_context", "in-context learning",
                    "in-context learning: mean loss of tokens 41 to 61 minus that of tokens 451 to "
                    "551");
    return CLI_OK;
}

/* Add repeated random tokens; the loss covers the second and later repetitions. */
static cli_exit add_drawn(effect_set *set, int64_t i, mha_random_tokens *plan)
{
    const int64_t block = plan->how.block, first = plan->how.first >= 0;
    const int64_t end = first + block * plan->how.repeats;
    mha_tokens drawn = {.struct_size = sizeof drawn};
    int32_t *ids;
    int64_t *lengths;
    mha_effect_term *terms;
    CLI_TRY(cli_check(mha_random_tokens_draw(plan, &drawn)));
    /* the first token of the second repetition cannot be predicted */
    const cli_exit made = ablate_text(1, drawn.count, end - first - block - 1, &set->texts[i], &ids,
                                      &lengths, &terms);
    if (made == CLI_OK) memcpy(ids, drawn.ids, (size_t)drawn.count * sizeof *ids);
    set->tokens += drawn.count;
    mha_tokens_free(&drawn);
    CLI_TRY(made);
    return cli_check(mha_effect_loss(ids, first + block + 1, end, 1, 0, terms));
}

static cli_exit add_random(effects_job *j)
{
    effect_set *set = &j->effects->sets[SET_RANDOM];
    mha_random_tokens plan = {.struct_size = sizeof plan};
    const int64_t count = j->effects->options->heads.random;
    if (count == 0) return CLI_OK;
    CLI_TRY(cli_check(mha_random_tokens_plan(j->model->model, &plan)));
    const bool drawn = plan.how.block >= MHA_RANDOM_LEAST_BLOCK && plan.how.repeats >= 2;
    cli_exit result = drawn ? make_list(set, count) : CLI_OK;
    for (int64_t i = 0; drawn && i < count && result == CLI_OK; i++)
        result = add_drawn(set, i, &plan);
    mha_random_tokens_free(&plan);
    if (!drawn || result != CLI_OK) return result;
    add_measure(
        j->effects, SET_RANDOM, 0, "repeats", "loss on repeated random tokens",
        "mean loss of repeated random tokens, from the second token of the second repetition");
    return CLI_OK;
}

static cli_exit add_task(effects_job *j)
{
    if (!j->effects->options->task) return CLI_OK;
    CLI_TRY(ablate_read_task(j->effects));
    add_measure(j->effects, SET_TASK, 0, "task", "right against wrong continuation",
                "log-probability of the right continuation minus that of the wrong one");
    return CLI_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* "45 s", "12 min", "2.5 h". Printed once, after the first texts have been timed. */
static void say_time(effects_job *j, double seconds)
{
    if (seconds < 5)
        cli_note(j->effects->options->heads.quiet, "this takes a few seconds");
    else if (seconds < 100)
        cli_note(j->effects->options->heads.quiet, "this takes about %.0f s", seconds);
    else if (seconds < 6000)
        cli_note(j->effects->options->heads.quiet, "this takes about %.0f min", seconds / 60);
    else
        cli_note(j->effects->options->heads.quiet,
                 "this takes about %.1f h; reduce --max-texts, --heads or --pairs to shorten it",
                 seconds / 3600);
}

static mha_status show_progress(int64_t done, int64_t total, void *user)
{
    effects_job *j = user;
    const double all = j->done + (double)done;
    (void)total;
    if (!j->said && all > 0) {
        progress_clear(&j->progress);
        say_time(j, (seconds_now() - j->progress.begin) * j->total / all);
        j->said = true;
    }
    progress_show(&j->progress, j->total > 0 && all < j->total ? all / j->total : 1, "%s", j->what);
    return MHA_OK;
}

/* End a call whose cost was estimated as `work`. */
static cli_exit finish(effects_job *j, int64_t work, mha_status status)
{
    j->done += (double)work;
    progress_clear(&j->progress);
    return cli_check(status);
}

static mha_ablation_desc ablation_of(const effects_job *j, const effect_set *set)
{
    return (mha_ablation_desc){.struct_size = sizeof(mha_ablation_desc),
                               .kind = j->effects->kind,
                               .seed = SEED,
                               .means = set->means.data ? &set->means : NULL};
}

/* Make `count` sets of `size` heads from a list [count, size]. */
static cli_exit make_sets(const int64_t *heads, int64_t count, int64_t size, mha_head_sets *sets)
{
    int64_t *first;
    CLI_TRY(ARENA_ALLOC(count + 1, &first));
    for (int64_t s = 0; s <= count; s++) first[s] = s * size;
    *sets = (mha_head_sets){
        .struct_size = sizeof *sets, .count = count, .first = first, .heads = heads};
    return CLI_OK;
}

static cli_exit add_work(effects_job *j, const mha_head_sets *sets, double *total)
{
    for (int s = 0; s < EFFECT_SETS; s++) {
        const effect_set *set = &j->effects->sets[s];
        const mha_ablation_desc how = ablation_of(j, set);
        int64_t work = 0;
        if (set->data.texts == 0) continue;
        CLI_TRY(cli_check(mha_effect_work(j->model->net, &how, &set->data, sets, &work)));
        *total += (double)work;
    }
    return CLI_OK;
}

/* The first head of a layer: the layers with heads are divided evenly among `places`. */
static int64_t head_at(const effects_job *j, int64_t place, int64_t places)
{
    const int64_t *heads = j->effects->found->of.heads, layers = j->effects->found->of.layers;
    int64_t with = 0, layer = 0;
    for (int64_t l = 0; l < layers; l++) with += heads[l] > 0;
    for (int64_t skip = place * with / places; heads[layer] == 0 || skip-- > 0;) layer++;
    return layer * j->model->heads;
}

/* Estimate the total work before heads are chosen: as if spread evenly over the layers. */
static cli_exit estimate_work(effects_job *j)
{
    const size_t mark = arena_mark();
    const int64_t pairs = j->pairs * (j->pairs - 1) / 2;
    mha_head_sets none, single, two;
    int64_t *heads, *both;
    double once = 0, texts = 0;
    CLI_TRY(ARENA_ALLOC(j->heads + 1, &heads));
    CLI_TRY(ARENA_ALLOC(2 * pairs + 1, &both));
    for (int64_t k = 0; k < j->heads; k++) heads[k] = head_at(j, k, j->heads);
    for (int64_t a = 0, at = 0; a < j->pairs; a++)
        for (int64_t b = a + 1; b < j->pairs; b++, at += 2) {
            both[at] = head_at(j, a, j->pairs);
            both[at + 1] = head_at(j, b, j->pairs);
        }
    CLI_TRY(make_sets(NULL, 0, 1, &none));
    CLI_TRY(make_sets(heads, j->heads, 1, &single));
    CLI_TRY(make_sets(both, pairs, 2, &two));
    CLI_TRY(add_work(j, &none, &once));
    j->total = once; /* means or resampled outputs; direct effects */
    if (j->effects->estimated) CLI_TRY(add_work(j, NULL, &j->total));
    CLI_TRY(add_work(j, &single, &j->total));
    if (pairs > 0) CLI_TRY(add_work(j, &two, &j->total));
    for (int s = 0; s < EFFECT_SETS; s++) texts += (double)j->effects->sets[s].data.texts;
    cli_note(j->effects->options->heads.quiet,
             "%s ablation on %.0f text%s: %s%" PRId64 " heads and %" PRId64
             " pairs exactly; equivalent to %.0f passes over all tokens",
             mha_ablation_name(j->effects->kind), texts, texts > 1 ? "s" : "",
             j->effects->estimated ? "a gradient for all heads, then " : "", j->heads, pairs,
             j->total / once);
    arena_release(mark);
    return CLI_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static cli_exit find_means(effects_job *j, effect_set *set)
{
    const mha_transformer_desc *d = &j->model->desc;
    const int64_t shape[] = {d->num_layers, mha_transformer_heads_width(d)};
    float *means;
    if (j->effects->kind != MHA_ABLATION_MEAN) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(shape[0] * shape[1], &means));
    set->means = mha_tensor_contiguous(means, MHA_F32, 2, shape);
    return cli_check(mha_effect_means(j->model->context, j->model->net, &set->data, &set->means));
}

/* Estimate all heads on a set of texts by gradients, and their direct effects if the norms allow it. */
static cli_exit estimate(effects_job *j, effect_set *set)
{
    const int64_t all = j->effects->found->of.layers * j->model->heads;
    const int64_t numbers = all * set->data.texts * set->data.measures;
    const mha_ablation_desc how = ablation_of(j, set);
    int64_t work = 0;
    j->what = "effects: gradients for all heads";
    if (j->effects->estimated) {
        CLI_TRY(ARENA_ALLOC(numbers, &set->estimates));
        CLI_TRY(cli_check(mha_effect_work(j->model->net, &how, &set->data, NULL, &work)));
        CLI_TRY(finish(j, work,
                       mha_effect_gradients(j->model->context, j->model->net, &how, &set->data,
                                            set->estimates)));
    }
    if (mha_transformer_norms_follow(&j->model->desc)) return CLI_OK;
    mha_effect_data silent = set->data;
    silent.progress = NULL;
    CLI_TRY(ARENA_ALLOC(numbers, &set->direct));
    return cli_check(mha_effect_direct(j->model->context, j->model->net, &silent, set->direct));
}

static cli_exit measure_sets(effects_job *j, const mha_head_sets *sets, bool pairs)
{
    for (int s = 0; s < EFFECT_SETS; s++) {
        effect_set *set = &j->effects->sets[s];
        const int64_t numbers = set->data.texts * set->data.measures;
        const mha_ablation_desc how = ablation_of(j, set);
        double **to = pairs ? &set->without : &set->single;
        int64_t work = 0;
        if (numbers == 0) continue;
        CLI_TRY(ARENA_ALLOC(numbers * (sets->count + 1), to));
        if (!set->whole) CLI_TRY(ARENA_ALLOC(numbers, &set->whole));
        CLI_TRY(cli_check(mha_effect_work(j->model->net, &how, &set->data, sets, &work)));
        CLI_TRY(finish(j, work,
                       mha_effect_sets(j->model->context, j->model->net, &how, &set->data, sets,
                                       set->whole, *to)));
    }
    return CLI_OK;
}

/* The mean over texts of one measure of one head, minus `less`. */
static double mean_of(const effect_set *set, const double *numbers, int index, const double *less)
{
    double sum = 0;
    int64_t texts = 0;
    for (int64_t i = 0; i < set->data.texts; i++) {
        const int64_t at = i * set->data.measures + index;
        if (isnan(numbers[at])) continue;
        sum += numbers[at] - (less ? less[at] : 0);
        texts++;
    }
    return texts > 0 ? sum / (double)texts : NAN;
}

/* Rank rows of measures: the estimates of all heads, or the exact effects of the chosen heads. */
static cli_exit rank(const effects_job *j, bool exact, int64_t wanted, int64_t *places,
                     int64_t *made)
{
    const ablate_effects *e = j->effects;
    const int64_t rows = exact ? e->chosen_count : j->effects->found->of.layers * j->model->heads;
    double *sizes;
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(rows * e->measure_count + 1, &sizes));
    for (int64_t k = 0; k < rows; k++)
        for (int m = 0; m < e->measure_count; m++) {
            const effect_set *set = &e->sets[e->measures[m].set];
            const int64_t numbers = set->data.texts * set->data.measures;
            sizes[k * e->measure_count + m] =
                exact ? mean_of(set, set->single + k * numbers, e->measures[m].index, set->whole)
                      : mean_of(set, set->estimates + k * numbers, e->measures[m].index, NULL);
        }
    const mha_status status = mha_effect_best(sizes, rows, e->measure_count, wanted, places, made);
    arena_release(mark);
    return cli_check(status);
}

/* Choose the heads with the best estimates. Without estimates, choose heads from the last layer
 * backwards, because late layers cost least. */
static cli_exit choose(effects_job *j)
{
    ablate_effects *e = j->effects;
    const int64_t all = j->effects->found->of.layers * j->model->heads;
    if (e->chosen) return CLI_OK; /* chosen by name */
    CLI_TRY(ARENA_ALLOC(j->heads + 1, &e->chosen));
    if (e->estimated) return rank(j, false, j->heads, e->chosen, &e->chosen_count);
    for (int64_t k = all - 1; k >= 0 && e->chosen_count < j->heads; k--)
        if (k % j->model->heads < j->effects->found->of.heads[k / j->model->heads])
            e->chosen[e->chosen_count++] = k;
    return CLI_OK;
}

static cli_exit measure_pairs(effects_job *j)
{
    ablate_effects *e = j->effects;
    int64_t *best, *heads, count = 0;
    mha_head_sets sets;
    if (j->pairs < 2 || e->chosen_count < 2) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(j->pairs, &best));
    CLI_TRY(rank(j, true, j->pairs, best, &count));
    for (int64_t k = 0; k < e->chosen_count && count < j->pairs; k++) { /* heads without effects */
        bool there = false;
        for (int64_t i = 0; i < count; i++) there |= best[i] == k;
        if (!there) best[count++] = k;
    }
    CLI_TRY(ARENA_ALLOC(count * count + 1, &e->pairs));
    CLI_TRY(ARENA_ALLOC(count * count + 1, &heads));
    for (int64_t a = 0; a < count; a++)
        for (int64_t b = a + 1; b < count; b++, e->pair_count++) {
            e->pairs[2 * e->pair_count] = best[a];
            e->pairs[2 * e->pair_count + 1] = best[b];
            heads[2 * e->pair_count] = e->chosen[best[a]];
            heads[2 * e->pair_count + 1] = e->chosen[best[b]];
        }
    j->what = "effects: pairs of heads";
    CLI_TRY(make_sets(heads, e->pair_count, 2, &sets));
    return e->pair_count > 0 ? measure_sets(j, &sets, true) : CLI_OK;
}

/* ---- patching -------------------------------------------------------------------------------- */

/* A run counts 1; a path counts 2, because it needs two runs. j->done counts finished prompts and
 * kinds. */
static mha_status show_patching(int64_t done, int64_t total, void *user)
{
    effects_job *j = user;
    const double weight = j->patching_paths ? 2 : 1;
    progress_show(&j->progress, (j->done + weight * (double)done / (double)total) / j->total,
                  "effects: %s", j->what);
    return MHA_OK;
}

/* Prompt i: patch the clean prompt's heads into the corrupted run (restored share), or paths from the
 * corrupted prompt into the clean run. */
static cli_exit patch_prompt(effects_job *j, int64_t i, bool paths, double *values)
{
    ablate_effects *e = j->effects;
    const mha_effect_text *clean = &e->sets[SET_TASK].texts[i];
    j->patching_paths = paths;
    j->what = paths ? "paths patched from one prompt to the other"
                    : "heads patched from one prompt to the other";
    mha_effect_text corrupted = *clean;
    corrupted.tokens = &e->prompts[i].corrupted;
    const mha_patching desc = {.struct_size = sizeof desc,
                               .to = paths ? clean : &corrupted,
                               .from = paths ? corrupted.tokens : clean->tokens,
                               .receivers = paths ? e->receivers : NULL,
                               .receiver_count = paths ? e->receiver_count : 0,
                               .measures = 1,
                               .progress = show_patching,
                               .progress_user = j};
    double *const to = paths ? &e->prompts[i].clean : &e->prompts[i].other;
    double *const from = paths ? &e->prompts[i].other : &e->prompts[i].clean;
    const mha_status status = (paths ? mha_path_patching : mha_activation_patching)(
        j->model->context, j->model->net, &desc, to, from, values);
    j->done += paths ? 2 : 1;
    progress_clear(&j->progress);
    return cli_check(status);
}

static cli_exit patch(effects_job *j)
{
    ablate_effects *e = j->effects;
    const int64_t all = j->effects->found->of.layers * j->model->heads,
                  prompts = e->sets[SET_TASK].data.texts;
    int64_t with = 0;
    double *values;
    for (int64_t i = 0; i < prompts; i++) with += e->prompts[i].corrupted.ndim > 0;
    if (with == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(all, &values));
    CLI_TRY(ARENA_ALLOC(all * prompts, &e->patched));
    if (j->effects->options->paths) CLI_TRY(ARENA_ALLOC(all * prompts, &e->paths));
    e->paths_to = j->effects->options->paths;
    j->progress = progress_begin(j->effects->options->heads.quiet);
    j->done = 0;
    j->total = (double)with * (e->paths ? 3 : 1);
    for (int64_t i = 0; i < prompts; i++) {
        const bool has = e->prompts[i].corrupted.ndim > 0;
        if (has) CLI_TRY(patch_prompt(j, i, false, values));
        const double gap = e->prompts[i].clean - e->prompts[i].other;
        for (int64_t k = 0; k < all; k++)
            e->patched[k * prompts + i] =
                has && fabs(gap) > 0 ? (values[k] - e->prompts[i].other) / gap : NAN;
        if (!e->paths) continue;
        if (has) CLI_TRY(patch_prompt(j, i, true, values));
        for (int64_t k = 0; k < all; k++)
            e->paths[k * prompts + i] = has ? values[k] - e->prompts[i].clean : NAN;
    }
    return CLI_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Reject unusable requests before any work. */
static cli_exit check_sets(const effects_job *j)
{
    const ablate_effects *e = j->effects;
    bool corrupted = false;
    if (e->measure_count == 0)
        return cli_fail(
            CLI_USAGE,
            "nothing to measure on: give --text FILE, a text, --random 10 or --task FILE");
    for (int s = 0; s < EFFECT_SETS; s++)
        if (e->sets[s].data.texts == 1 && e->kind == MHA_ABLATION_RESAMPLE)
            return cli_fail(CLI_USAGE,
                            "--with resample takes outputs from another %s; give at least two",
                            s == SET_TASK     ? "prompt"
                            : s == SET_RANDOM ? "of --random"
                                              : "text");
    for (int64_t i = 0; i < e->sets[SET_TASK].data.texts; i++)
        corrupted |= e->prompts[i].corrupted.ndim > 0;
    if (corrupted || !j->effects->options->paths) return CLI_OK;
    return cli_fail(CLI_USAGE, "--paths: %s has no corrupted prompts; add them as a fourth column",
                    j->effects->options->task);
}

/* --head */
static cli_exit choose_named(ablate_effects *e)
{
    const args_texts none = {0};
    maps_picks picks;
    if (e->options->named.count == 0) return CLI_OK;
    CLI_TRY(text_model_pick(e->model, &none, &e->options->named, &picks));
    CLI_TRY(ARENA_ALLOC(picks.count + 1, &e->chosen));
    for (int64_t k = 0; k < picks.layers * picks.heads; k++)
        if (picks.on[k]) e->chosen[e->chosen_count++] = k;
    return CLI_OK;
}

cli_exit ablate_begin(ablate_effects *e, const heads_sources *sources)
{
    effects_job j = {.effects = e, .model = e->model};
    e->kind = (mha_ablation)e->options->kind;
    CLI_TRY(check_model(e->model));
    CLI_TRY(add_texts(&j, sources));
    CLI_TRY(add_random(&j));
    CLI_TRY(add_task(&j));
    CLI_TRY(check_sets(&j));
    CLI_TRY(choose_named(e));
    CLI_TRY(ablate_read_paths(e));
    if (e->sets[SET_TEXTS].data.measures == 1)
        cli_note(e->options->heads.quiet,
                 "in-context learning is not measured: no text has %d tokens; --cut %d cuts a book "
                 "into texts of that length",
                 EFFECT_LATE_END, EFFECT_LATE_END);
    return CLI_OK;
}

static cli_exit measure(effects_job *j)
{
    ablate_effects *e = j->effects;
    mha_head_sets sets;
    j->progress = progress_begin(j->effects->options->heads.quiet);
    j->what = "effects";
    CLI_TRY(estimate_work(j));
    for (int s = 0; s < EFFECT_SETS; s++) {
        if (e->sets[s].data.texts == 0) continue;
        CLI_TRY(find_means(j, &e->sets[s]));
        CLI_TRY(estimate(j, &e->sets[s]));
    }
    CLI_TRY(choose(j));
    j->what = "effects: heads one by one";
    CLI_TRY(make_sets(e->chosen, e->chosen_count, 1, &sets));
    CLI_TRY(measure_sets(j, &sets, false));
    return measure_pairs(j);
}

cli_exit ablate_measure(ablate_effects *e)
{
    effects_job j = {.effects = e, .model = e->model};
    const ablate_options *o = e->options;
    for (int s = 0; s < EFFECT_SETS; s++) {
        e->sets[s].data.progress = show_progress;
        e->sets[s].data.progress_user = &j;
    }
    const char *why = mha_transformer_phrase(&e->model->desc, mha_layer_forward_only, NULL);
    e->estimated = !why;
    if (why)
        cli_note(o->heads.quiet,
                 "a layer %s: it has no gradients, so heads are not selected by estimates", why);
    const int64_t heads = e->estimated ? DEFAULT_HEADS : e->found->count;
    j.heads = o->head_count >= 0 ? o->head_count : heads;
    if (e->chosen) j.heads = e->chosen_count;
    if (j.heads > e->found->count) j.heads = e->found->count;
    j.pairs = o->pairs < j.heads ? o->pairs : j.heads;
    int64_t most = 0;
    for (int s = 0; s < EFFECT_SETS; s++)
        if (e->sets[s].data.texts > most) most = e->sets[s].data.texts;
    CLI_TRY(ARENA_ALLOC(most, &e->row));
    CLI_TRY(ARENA_ALLOC(1, &e->failed));
    CLI_TRY(measure(&j));
    return patch(&j);
}
