/* See train_save.h. The state of training is one safetensors file that is replaced atomically:
 * after a kill at any moment the last complete state remains. */
#include "train/train_save.h"

#include "common/arena.h"
#include "common/csv.h"
#include "common/files.h"
#include "common/launched.h"

#include <multihead/checkpoint.h>
#include <multihead/io.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TENSORS = 12, SETTINGS_BYTES = 768, PATH_BYTES = 4096 };

static const char STATE[] = "training.safetensors";
static const uint64_t MOST_STEPS = UINT64_C(1) << 40; /* the limit of --steps */

static cli_exit folder_path(const train_run *run, const char *name, char path[PATH_BYTES])
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", run->folder, name);
    if (length > 0 && length < PATH_BYTES) return CLI_OK;
    return cli_fail(CLI_NO_OUTPUT, "the folder's name is too long");
}

/* Describe every setting that training depends on. */
static void describe(const train_model *model, char text[SETTINGS_BYTES])
{
    const train_recipe *r = &model->recipe;
    const mha_transformer_desc *d = &r->model;
    char mixers[TRAIN_MOST_LAYERS * 16];
    train_recipe_mixers(r, mixers, sizeof mixers);
    snprintf(text, SETTINGS_BYTES,
             "layers %" PRId64 " heads %" PRId64 " head_dim %" PRId64 " embed %" PRId64
             " ff %" PRId64 " batch %" PRId64 " every %" PRId64
             " learning-rate %.9g dropout %.9g decay %" PRId64 "%s%s%s%s",
             d->num_layers, d->num_heads, d->head_dim, d->embed_dim, d->ff_dim, r->batch, r->every,
             r->learning_rate, r->dropout, r->decay, *mixers ? " mixer " : "", mixers,
             model->task->mark ? " text " : "", model->task->mark ? model->task->mark : "");
}

/* ---- the state ----------------------------------------------------------------------------- */

typedef struct state_list {
    const char *names[MOST_TENSORS];
    mha_tensor tensors[MOST_TENSORS];
    int64_t count;
} state_list;

static void add(state_list *list, const char *name, void *data, mha_dtype dtype, int64_t rows,
                int64_t cols)
{
    list->names[list->count] = name;
    list->tensors[list->count++] =
        mha_tensor_contiguous(data, dtype, cols ? 2 : 1, (const int64_t[]){rows, cols});
}

static void list_state(train_run *run, state_list *list)
{
    const mha_trainer_state d = mha_trainer_state_of(run->model.trainer, false),
                            e = mha_trainer_state_of(run->model.trainer, true);
    *list = (state_list){0};
    add(list, "parameters", mha_transformer_data(d.transformer), MHA_F32, d.count, 0);
    add(list, "m", d.m, MHA_F32, d.count, 0);
    add(list, "v", d.v, MHA_F32, d.count, 0);
    if (e.transformer) {
        add(list, "encoder.parameters", mha_transformer_data(e.transformer), MHA_F32, e.count, 0);
        add(list, "encoder.m", e.m, MHA_F32, e.count, 0);
        add(list, "encoder.v", e.v, MHA_F32, e.count, 0);
    }
    if (run->best) add(list, "best", run->best, MHA_F32, d.count, 0);
    train_frames *f = &run->frames;
    if (f->count > 0) {
        add(list, "frame_steps", f->steps, MHA_F64, f->count, 0);
        add(list, "example", f->ids, MHA_I32, f->tokens, 0);
        add(list, "frames", f->maps[0], MHA_F32, f->count, f->size[0]);
        if (f->examples > 1) add(list, "frames_2", f->maps[1], MHA_F32, f->count, f->size[1]);
    }
    add(list, "curve", run->curve, MHA_F64, run->looks, TRAIN_CURVE_COLUMNS);
}

static mha_status write_state(train_run *run, const mha_sink *sink)
{
    char settings[SETTINGS_BYTES], numbers[8][32];
    state_list list;
    list_state(run, &list);
    describe(&run->model, settings);
    snprintf(numbers[0], sizeof numbers[0], "%" PRIu64, run->seed);
    snprintf(numbers[1], sizeof numbers[1], "%" PRId64, run->attempt);
    snprintf(numbers[2], sizeof numbers[2], "%" PRId64, run->model.step);
    snprintf(numbers[3], sizeof numbers[3], "%.3f", run->seconds);
    snprintf(numbers[4], sizeof numbers[4], "%.17g", run->model.loss);
    snprintf(numbers[5], sizeof numbers[5], "%" PRId64, run->best_step);
    snprintf(numbers[6], sizeof numbers[6], "%.17g", run->best_loss);
    snprintf(numbers[7], sizeof numbers[7], "%" PRId64, run->frames.spacing);
    const char *const metadata[] = {"task",
                                    run->model.task->name,
                                    "settings",
                                    settings,
                                    "seed",
                                    numbers[0],
                                    "try",
                                    numbers[1],
                                    "step",
                                    numbers[2],
                                    "seconds",
                                    numbers[3],
                                    "loss",
                                    numbers[4],
                                    "best_step",
                                    numbers[5],
                                    "best_loss",
                                    numbers[6],
                                    "frame_spacing",
                                    numbers[7],
                                    "done",
                                    run->done ? "yes" : "no",
                                    NULL};
    return mha_safetensors_write_to(sink, list.names, list.tensors, list.count, metadata);
}

static cli_exit save_state(train_run *run)
{
    mha_file *file = NULL;
    mha_status status = mha_file_create_in(run->folder, STATE, &file);
    if (status == MHA_OK) status = write_state(run, mha_file_sink(file));
    return cli_check(mha_file_finish(file, status));
}

static cli_exit foreign(const char *path, const char *what)
{
    return cli_fail(CLI_BAD_INPUT, "%s: %s; --fresh starts over, -o names another folder", path,
                    what);
}

/* Create the model and the records of an attempt, and release those of the previous attempt. */
static cli_exit make_try(train_run *run)
{
    CLI_TRY(ranks_share(&run->attempt, sizeof run->attempt));
    arena_release(run->mark);
    run->curve = NULL;
    run->looks = run->room = run->best_step = 0;
    CLI_TRY(train_model_make(train_try_seed(run->seed, run->attempt), &run->model));
    if (run->model.recipe.patience > 0) {
        CLI_TRY(ARENA_ALLOC(mha_transformer_size(run->model.decoder), &run->best));
        run->best_loss = INFINITY;
    }
    return run->pictures ? train_frames_make(&run->model, &run->frames) : CLI_OK;
}

static bool read_number(const mha_safetensors *file, const char *key, uint64_t *value)
{
    const char *text = mha_safetensors_metadata(file, key);
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* Read one array of the state; its length must match the current model. */
static bool read_array(const mha_safetensors *file, const char *name, mha_dtype dtype,
                       int64_t count, void *out)
{
    mha_tensor tensor;
    const int64_t index = mha_safetensors_find(file, name);
    return index >= 0 && mha_safetensors_peek(file, index, &tensor) == MHA_OK &&
           tensor.dtype == dtype && mha_safetensors_read(file, index, dtype, count, out) == MHA_OK;
}

static cli_exit grow_curve(train_run *run, int64_t looks)
{
    if (looks <= run->room) return CLI_OK;
    run->room = looks < 64 ? 64 : 2 * looks;
    return arena_grow(run->room * TRAIN_CURVE_COLUMNS, sizeof *run->curve, &run->curve);
}

static cli_exit read_curve(train_run *run, const char *path, const mha_safetensors *file)
{
    mha_tensor curve;
    int64_t index = mha_safetensors_find(file, "curve"), most = INT64_C(1) << 24;
    if (index < 0 || mha_safetensors_peek(file, index, &curve) != MHA_OK || curve.ndim != 2 ||
        curve.shape[1] != TRAIN_CURVE_COLUMNS || curve.shape[0] > most)
        return foreign(path, "not a training state");
    CLI_TRY(grow_curve(run, curve.shape[0]));
    run->looks = curve.shape[0];
    if (!read_array(file, "curve", MHA_F64, run->looks * TRAIN_CURVE_COLUMNS, run->curve))
        return foreign(path, "not a training state");
    for (int64_t i = 0; i < run->looks; i++) {
        double step = run->curve[i * TRAIN_CURVE_COLUMNS + TRAIN_CURVE_STEP];
        if (!(step >= 1 && step <= (double)run->model.step))
            return foreign(path, "its curve has an evaluation at a step that was not run");
    }
    return CLI_OK;
}

/* Read the snapshots, if any. Their number and the sizes of their maps must match. */
static cli_exit read_frames(train_run *run, const char *path, const mha_safetensors *file)
{
    train_frames *f = &run->frames;
    mha_tensor steps;
    uint64_t spacing;
    const int64_t index = mha_safetensors_find(file, "frame_steps");
    if (index < 0 || f->most == 0) return CLI_OK;
    if (mha_safetensors_peek(file, index, &steps) != MHA_OK || steps.ndim != 1 ||
        steps.shape[0] < 1 || steps.shape[0] > f->most ||
        !read_number(file, "frame_spacing", &spacing) || spacing < 1 || spacing > MOST_STEPS)
        return foreign(path, "not a training state");
    f->count = steps.shape[0];
    f->spacing = (int64_t)spacing;
    if (!read_array(file, "frame_steps", MHA_F64, f->count, f->steps) ||
        !read_array(file, "frames", MHA_F32, f->count * f->size[0], f->maps[0]) ||
        (f->examples > 1 &&
         !read_array(file, "frames_2", MHA_F32, f->count * f->size[1], f->maps[1])))
        return foreign(path, "not a training state");
    for (int64_t i = 0; i < f->count; i++)
        if (!(f->steps[i] >= 0 && f->steps[i] <= (double)run->model.step) ||
            (i > 0 && !(f->steps[i] > f->steps[i - 1])))
            return foreign(path, "its snapshots are of steps that were not run");
    return CLI_OK;
}

/* Recompute everything derived from the parameters and the state, which have changed. */
static cli_exit take_parameters(train_run *run)
{
    CLI_TRY(cli_check(mha_transformer_update(run->model.context, run->model.decoder)));
    if (run->model.encoder)
        CLI_TRY(cli_check(mha_transformer_update(run->model.context, run->model.encoder)));
    return cli_check(mha_trainer_resume(run->model.trainer, run->model.step));
}

static cli_exit read_parameters(train_run *run, const char *path, const mha_safetensors *file)
{
    state_list list;
    list_state(run, &list);
    for (int64_t i = 0; i + 1 < list.count; i++) /* without snapshots; the last array is the
                                                    curve */
        if (!read_array(file, list.names[i], MHA_F32, list.tensors[i].shape[0],
                        list.tensors[i].data))
            return foreign(path, "its model differs from the model of these options");
    return take_parameters(run);
}

/* Read seed, attempt and settings first: they determine the model. */
static cli_exit read_state(const char *path, const mha_safetensors *file, train_run *run)
{
    uint64_t seed, attempt, step, best_step;
    char settings[SETTINGS_BYTES];
    const char *name = mha_safetensors_metadata(file, "task");
    const char *saved = mha_safetensors_metadata(file, "settings");
    const char *done = mha_safetensors_metadata(file, "done");
    const char *seconds = mha_safetensors_metadata(file, "seconds");
    const char *loss = mha_safetensors_metadata(file, "loss");
    const char *best_loss = mha_safetensors_metadata(file, "best_loss");
    if (!name || !saved || !done || !seconds || !loss || !best_loss ||
        !read_number(file, "best_step", &best_step) || !read_number(file, "seed", &seed) ||
        !read_number(file, "try", &attempt) || !read_number(file, "step", &step) ||
        attempt > 1000 || step > MOST_STEPS || best_step > step || !(strtod(seconds, NULL) >= 0) ||
        !(strtod(seconds, NULL) < 1e9))
        return foreign(path, "not a training state");
    if (strcmp(name, run->model.task->name) != 0)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: a training of '%s', not of '%s'; -o names "
                        "another folder",
                        path, name, run->model.task->name);
    if (seed != run->seed)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: begun with --seed %" PRIu64
                        "; give that, or --fresh, or another folder",
                        path, seed);
    run->attempt = (int64_t)attempt;
    CLI_TRY(make_try(run));
    describe(&run->model, settings);
    if (strcmp(settings, saved) != 0)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: begun with other settings (%s); give those, or "
                        "--fresh, or another folder",
                        path, saved);
    run->model.step = (int64_t)step;
    run->best_step = (int64_t)best_step;
    run->best_loss = strtod(best_loss, NULL);
    CLI_TRY(read_parameters(run, path, file));
    CLI_TRY(read_curve(run, path, file));
    CLI_TRY(read_frames(run, path, file));
    run->seconds = strtod(seconds, NULL);
    run->done = !strcmp(done, "yes");
    run->model.loss = strtod(loss, NULL);
    return CLI_OK;
}

/* ---- other ranks ----------------------------------------------------------------------------- */

typedef struct shared_look {
    double seconds, point[TRAIN_CURVE_COLUMNS];
    int64_t step, looks;
    int32_t done, verdict;
} shared_look;

cli_exit train_save_share(train_run *run, train_verdict *verdict)
{
    shared_look x = {.seconds = run->seconds,
                     .step = run->model.step,
                     .looks = run->looks,
                     .done = run->done,
                     .verdict = (int32_t)*verdict};
    if (!ranks_transport()) return CLI_OK;
    if (run->looks > 0)
        memcpy(x.point, run->curve + (run->looks - 1) * TRAIN_CURVE_COLUMNS, sizeof x.point);
    CLI_TRY(ranks_share(&x, sizeof x));
    if (ranks_first()) return CLI_OK;
    run->seconds = x.seconds;
    run->model.step = x.step;
    run->done = x.done;
    *verdict = (train_verdict)x.verdict;
    if (x.looks == 0) return CLI_OK;
    CLI_TRY(grow_curve(run, 1)); /* the last point is enough */
    memcpy(run->curve, x.point, sizeof x.point);
    run->looks = 1;
    return CLI_OK;
}

/* Broadcast the state that rank 0 read: only rank 0 needs the file. */
static cli_exit share_state(train_run *run)
{
    train_verdict verdict = TRAIN_GO_ON;
    state_list list;
    if (!ranks_transport()) return CLI_OK;
    CLI_TRY(train_save_share(run, &verdict));
    if (run->model.step == 0) return CLI_OK; /* all ranks created the same model */
    list_state(run, &list);
    for (int64_t i = 0; i < list.count && list.tensors[i].dtype == MHA_F32 &&
                        list.tensors[i].data != run->best && list.tensors[i].ndim == 1;
         i++)
        CLI_TRY(
            ranks_share(list.tensors[i].data, (size_t)list.tensors[i].shape[0] * sizeof(float)));
    return ranks_first() ? CLI_OK : take_parameters(run);
}

static cli_exit begin(bool fresh, train_run *run)
{
    char path[PATH_BYTES];
    struct stat there;
    if (run->folder) CLI_TRY(folder_path(run, STATE, path));
    /* Do not overwrite an existing state that cannot be examined. */
    if (!run->folder || fresh ||
        (stat(path, &there) != 0 && (errno == ENOENT || errno == ENOTDIR))) {
        CLI_TRY(train_save_try(run));
        /* Save now, so that a failure to save is reported before training. */
        return run->folder ? save_state(run) : CLI_OK;
    }
    mha_safetensors *file;
    mha_status status = mha_safetensors_open(path, &file);
    if (status == MHA_ERR_FORMAT) return foreign(path, "is not a safetensors file");
    CLI_TRY(cli_check(status));
    const cli_exit code = read_state(path, file, run);
    mha_safetensors_close(file);
    return code;
}

cli_exit train_save_begin(bool fresh, train_run *run)
{
    run->mark = arena_mark();
    CLI_TRY(begin(fresh, run));
    return share_state(run);
}

cli_exit train_save_try(train_run *run)
{
    CLI_TRY(make_try(run));
    return train_frames_record(&run->model, 0, &run->frames);
}

int64_t train_save_looked(const train_run *run)
{
    if (run->looks == 0) return 0;
    return (int64_t)run->curve[(run->looks - 1) * TRAIN_CURVE_COLUMNS + TRAIN_CURVE_STEP];
}

/* Whether the recipe's patience has run out. */
static bool is_out_of_patience(const train_run *run)
{
    const train_recipe *r = &run->model.recipe;
    return run->best && run->model.step - run->best_step >= r->patience * r->every;
}

cli_exit train_save_point(train_run *run, const train_scores *scores)
{
    CLI_TRY(grow_curve(run, run->looks + 1));
    double *point = run->curve + run->looks++ * TRAIN_CURVE_COLUMNS;
    point[TRAIN_CURVE_STEP] = (double)run->model.step;
    point[TRAIN_CURVE_LOSS] = run->model.loss;
    point[TRAIN_CURVE_RIGHT] = train_accuracy(scores);
    for (int kind = 0; kind < TRAIN_KINDS; kind++)
        point[TRAIN_CURVE_KIND + kind] = train_accuracy_of(scores, kind);
    point[TRAIN_CURVE_HELD_OUT] = scores->loss;
    if (run->best && scores->loss < run->best_loss) {
        memcpy(run->best, mha_transformer_data(run->model.decoder),
               (size_t)mha_transformer_size(run->model.decoder) * sizeof(float));
        run->best_loss = scores->loss;
        run->best_step = run->model.step;
    }
    run->done = run->done || is_out_of_patience(run);
    point[TRAIN_CURVE_BEST] = train_best_right(&run->model.recipe, scores);
    CLI_TRY(train_frames_record(&run->model, run->looks, &run->frames));
    return run->folder ? save_state(run) : CLI_OK;
}

/* ---- the folder ---------------------------------------------------------------------------- */

static mha_status draw_curve(const void *user, const mha_sink *sink)
{
    const train_run *run = user;
    csv_out csv = {.sink = sink};
    csv_names(&csv,
              "step,loss,right,right_kind_0,right_kind_1,right_kind_2,best_head,held_out_loss");
    for (int64_t i = 0; i < run->looks; i++) {
        const double *p = run->curve + i * TRAIN_CURVE_COLUMNS;
        csv_integer(&csv, (int64_t)p[0]);
        for (int k = 1; k < 8; k++) csv_number(&csv, p[k], 6, true);
        csv_end_row(&csv);
    }
    return csv.status;
}

/* An encoder's input has no start token. */
static cli_exit save_model(const train_run *run, const char *name, mha_transformer *net)
{
    const bool encoder = net == run->model.encoder;
    char path[PATH_BYTES];
    const train_task *task = run->model.task;
    const mha_checkpoint_settings settings = {
        .struct_size = sizeof settings,
        .words = task->words,
        .word_count = task->word_count,
        .bos_word = encoder || task->begin < 0 ? NULL : task->words[task->begin],
        .eos_word = task->end < 0 ? NULL : task->words[task->end],
        .unknown_word = task->text ? task->words[task->unknown] : NULL,
        .splitting = task->splitting};
    struct stat there;
    CLI_TRY(folder_path(run, name, path));
    if (lstat(path, &there) == 0 && S_ISLNK(there.st_mode))
        unlink(path); /* a link may lead out of
                                                                             the folder */
    return cli_check(mha_checkpoint_save(path, net, &settings));
}

/* The saved model has the lowest held-out loss; the state has both models. */
static cli_exit take_best(train_run *run)
{
    mha_transformer *net = run->model.decoder;
    if (!run->best || run->best_step == 0) return CLI_OK;
    memcpy(mha_transformer_data(net), run->best, (size_t)mha_transformer_size(net) * sizeof(float));
    return cli_check(mha_transformer_update(run->model.context, net));
}

cli_exit train_save_folder(train_run *run)
{
    if (!run->folder) return take_best(run);
    CLI_TRY(save_state(run));
    CLI_TRY(cli_check(files_draw_in(run->folder, "curve.csv", draw_curve, run)));
    CLI_TRY(take_best(run));
    CLI_TRY(save_model(run, run->model.encoder ? "decoder" : ".", run->model.decoder));
    return run->model.encoder ? save_model(run, "encoder", run->model.encoder) : CLI_OK;
}
