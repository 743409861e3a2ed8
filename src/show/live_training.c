/* The snapshots that `multihead train` keeps beside its model: maps of one text during training.
 * The page plays them back. */
#include "show/live.h"

#include <multihead/component.h>
#include <multihead/io.h>
#include <multihead/study.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A weight w is stored as TOP * sqrt(w), rounded. This is the code of a report's maps (html_map.c)
 * with a largest weight of 1, so weights are not rounded again. */
enum { MOST_FRAMES = 12, MOST_CODES = 1 << 20, TOP = 253, MOST_COUNT = 1 << 16 };

static const char FILE_NAME[] = "training.safetensors";

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct snapshots {
    mha_tensor steps, frames, ids;
    int64_t count; /* up to the step whose parameters became the model */
} snapshots;

static bool find(const mha_safetensors *file, const char *name, int ndim, mha_tensor *tensor)
{
    const int64_t i = mha_safetensors_find(file, name);
    return i >= 0 && mha_safetensors_tensor(file, i, tensor) == MHA_OK && tensor->ndim == ndim &&
           tensor->shape[0] >= 1 && tensor->shape[0] <= MOST_COUNT;
}

static int64_t count_steps(const mha_safetensors *file, const mha_tensor *steps)
{
    const char *best = mha_safetensors_metadata(file, "best_step"); /* "0": the last one */
    const double most = best ? strtod(best, NULL) : 0, *step = steps->data;
    int64_t count = 0;
    while (count < steps->shape[0] && (!(most > 0) || step[count] <= most)) count++;
    return count;
}

/* Maps of recurrent layers are signed. */
static bool are_weights(const mha_tensor *frames)
{
    const float *values = frames->data;
    if (frames->dtype != MHA_F32) return frames->dtype == MHA_U8;
    for (int64_t i = 0; i < frames->shape[0] * frames->shape[1]; i++)
        if (!(values[i] >= 0 && values[i] <= 1.001F)) return false;
    return true;
}

/* Whether the file has snapshots of maps of this model. */
static bool find_snapshots(const mha_live *live, const mha_safetensors *file, snapshots *s)
{
    if (!find(file, "frame_steps", 1, &s->steps) || !find(file, "frames", 2, &s->frames) ||
        !find(file, "example", 1, &s->ids) || s->steps.dtype != MHA_F64 ||
        s->ids.dtype != MHA_I32 || !are_weights(&s->frames))
        return false;
    const int64_t heads = live->info.layers * live->info.heads, side = s->ids.shape[0];
    const double *steps = s->steps.data;
    for (int64_t i = 0; i < s->steps.shape[0]; i++)
        if (!(steps[i] >= 0 && steps[i] < 0x1p53) || (i > 0 && !(steps[i] > steps[i - 1])))
            return false;
    s->count = count_steps(file, &s->steps);
    return s->count > 0 && !live->desc.layer_heads && heads <= MOST_COUNT / side &&
           s->frames.shape[0] == s->steps.shape[0] && s->frames.shape[1] == heads * side * side &&
           s->frames.shape[1] <= MOST_CODES;
}

static uint8_t code_of(float weight)
{
    return (uint8_t)lroundf(TOP * sqrtf(fminf(weight, 1)));
}

/* Keep every n-th snapshot. */
static mha_status keep_frames(const snapshots *s, mhai_live_training *t)
{
    const int64_t fit = MOST_CODES / s->frames.shape[1],
                  most = fit < MOST_FRAMES ? fit : MOST_FRAMES;
    const int64_t each = (s->count + most - 1) / most;
    const int64_t kept = (s->count + each - 1) / each;
    t->cells = s->frames.shape[1];
    MHA_TRY(MHA_ROOM_ALLOC(&t->room, kept, &t->steps));
    MHA_TRY(MHA_ROOM_ALLOC(&t->room, kept * t->cells, &t->codes));
    for (int64_t k = 0; k < kept; k++) {
        const int64_t from = k * each * t->cells;
        uint8_t *to = t->codes + k * t->cells;
        t->steps[k] = ((const double *)s->steps.data)[k * each];
        if (s->frames.dtype == MHA_U8)
            memcpy(to, (uint8_t *)s->frames.data + from, (size_t)t->cells);
        for (int64_t i = 0; i < t->cells && s->frames.dtype == MHA_F32; i++)
            to[i] = code_of(((const float *)s->frames.data)[from + i]);
    }
    t->frames = kept;
    return MHA_OK;
}

static mha_status write_tokens(mha_text_writer *writer, mhai_live_training *t)
{
    const char *part;
    size_t used = 0, bytes;
    bool stopped;
    for (int64_t i = 0; i <= t->tokens; i++) {
        MHA_TRY(i < t->tokens ? mha_text_writer_add(writer, t->ids[i], &part, &bytes, &stopped)
                              : mha_text_writer_end(writer, &part, &bytes));
        MHA_TRY(mha_room_grow(&t->room, (int64_t)(used + bytes + 1), 1, &t->text));
        memcpy(t->text + used, part, bytes);
        used += bytes;
        t->text[used] = '\0';
    }
    return MHA_OK;
}

static mha_status keep_text(const mha_live *live, const snapshots *s, mhai_live_training *t)
{
    mha_text_writer *writer;
    t->tokens = s->ids.shape[0];
    MHA_TRY(MHA_ROOM_ALLOC(&t->room, t->tokens, &t->ids));
    memcpy(t->ids, s->ids.data, (size_t)t->tokens * sizeof *t->ids);
    MHA_TRY(mha_text_writer_create(live->model, NULL, 0, &writer));
    const mha_status status = write_tokens(writer, t);
    mha_text_writer_destroy(writer);
    return status;
}

mha_status mhai_live_training_read(mha_live *live)
{
    mhai_live_training *t = &live->training;
    const char *folder = live->options.folder;
    mha_safetensors *file;
    snapshots s;
    char *path;
    if (!folder) return MHA_OK;
    const size_t room = strlen(folder) + sizeof FILE_NAME + 1;
    MHA_TRY(MHA_ROOM_ALLOC(&t->room, (int64_t)room, &path));
    mha_format(path, room, "%s/%s", folder, FILE_NAME);
    mha_status status = mha_safetensors_open(path, &file);
    if (status == MHA_ERR_FILE) return MHA_OK; /* not trained by this program */
    MHA_TRY(status);
    if (find_snapshots(live, file, &s)) {
        status = keep_text(live, &s, t);
        if (status == MHA_OK) status = keep_frames(&s, t);
        if (status == MHA_ERR_ARGUMENT) { /* the tokens are of another vocabulary */
            t->text = NULL;
            status = MHA_OK;
        }
    }
    mha_safetensors_close(file);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

mha_status mha_live_training(const mha_live *live, const mha_sink *sink)
{
    static const char *const names[] = {"frame_steps", "frames", "example"};
    MHA_NEED("live", live, sink);
    const mhai_live_training *t = &live->training;
    if (!t->frames) return MHA_OK;
    const mha_tensor tensors[] = {
        mha_tensor_contiguous(t->steps, MHA_F64, 1, &t->frames),
        mha_tensor_contiguous(t->codes, MHA_U8, 2, (const int64_t[]){t->frames, t->cells}),
        mha_tensor_contiguous(t->ids, MHA_I32, 1, &t->tokens)};
    return mha_safetensors_write_to(sink, names, tensors, 3, NULL);
}

/* ---- frames of an answer --------------------------------------------------------------------- */

/* Whether the request is a run of the unchanged model on the recorded text. */
static bool is_recorded(const mhai_live_asked *a, const mha_figure *figure)
{
    const mhai_live_training *t = &a->live->training;
    return t->frames && a->trials == a->live->trials && !a->trial.off_count &&
           !a->trial.patched_count && !(a->trial.noise > 0) && a->trial.count == t->tokens &&
           figure->rows == t->tokens && figure->panel_count * t->tokens * t->tokens == t->cells &&
           !memcmp(a->trial.tokens, t->ids, (size_t)t->tokens * sizeof *t->ids);
}

mha_status mhai_live_frames(mhai_live_asked *a, const mha_figure *figure, mha_report *report)
{
    const mhai_live_training *t = &a->live->training;
    const int64_t panels = figure->panel_count;
    enum { LABEL = 32 };
    mha_frame *frames;
    const float **maps;
    float *values;
    char *labels;
    if (!is_recorded(a, figure)) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, t->frames, &frames));
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, t->frames * panels, &maps));
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, t->frames * t->cells, &values));
    MHA_TRY(mha_room_alloc(&a->room, t->frames, LABEL, &labels));
    for (int64_t i = 0; i < t->frames * t->cells; i++) {
        const float root = (float)t->codes[i] / TOP;
        values[i] = root < 1 ? root * root : 1;
    }
    for (int64_t i = 0; i < t->frames * panels; i++) maps[i] = values + i * t->tokens * t->tokens;
    for (int64_t k = 0; k < t->frames; k++) {
        mha_format(labels + k * LABEL, LABEL, "step %.0f", t->steps[k]);
        frames[k] = (mha_frame){labels + k * LABEL, t->steps[k], maps + k * panels};
    }
    report->frames = frames;
    report->frame_count = t->frames;
    return MHA_OK;
}
