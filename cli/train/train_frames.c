/* See train_frames.h. */
#include "train/train_frames.h"

#include "common/arena.h"
#include "train/train_report.h"

#include <string.h>

enum { LEAST = 4 };

static const int64_t most_bytes = INT64_C(64) << 20;

/* Cells of all maps of the text in the probe batch. */
static int64_t cells(const train_model *model)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder, &d);
    return d.num_layers * d.num_heads * model->probe.T *
           (model->encoder ? model->probe.S : model->probe.T);
}

static cli_exit keep_ids(const train_model *model, train_frames *frames)
{
    frames->tokens = model->probe.T;
    CLI_TRY(ARENA_ALLOC(frames->tokens, &frames->ids));
    memcpy(frames->ids, model->probe.tokens, (size_t)frames->tokens * sizeof *frames->ids);
    return CLI_OK;
}

cli_exit train_frames_make(train_model *model, train_frames *frames)
{
    int64_t bytes = 0;
    *frames = (train_frames){.spacing = 1, .examples = model->task->examples[1] ? 2 : 1};
    for (int i = 0; i < frames->examples; i++) {
        CLI_TRY(train_report_set_text(model, model->task->examples[i]));
        frames->size[i] = cells(model);
        if (i == 0) CLI_TRY(keep_ids(model, frames));
        bytes += frames->size[i] * (int64_t)sizeof(float);
    }
    if (bytes * LEAST > most_bytes) return CLI_OK; /* too large: take no snapshots */
    frames->most = most_bytes / bytes < TRAIN_MOST_FRAMES ? most_bytes / bytes : TRAIN_MOST_FRAMES;
    for (int i = 0; i < frames->examples; i++)
        CLI_TRY(ARENA_ALLOC(frames->most * frames->size[i], &frames->maps[i]));
    return CLI_OK;
}

/* Drop every second snapshot. */
static void thin(train_frames *frames)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < frames->count; k += 2, kept++) {
        frames->steps[kept] = frames->steps[k];
        for (int i = 0; i < frames->examples; i++)
            memmove(frames->maps[i] + kept * frames->size[i], frames->maps[i] + k * frames->size[i],
                    (size_t)frames->size[i] * sizeof(float));
    }
    frames->count = kept;
    frames->spacing *= 2;
}

cli_exit train_frames_record(train_model *model, int64_t looks, train_frames *frames)
{
    if (frames->most == 0) return CLI_OK;
    if (frames->count == frames->most) thin(frames);
    if (looks % frames->spacing != 0) return CLI_OK;
    for (int i = 0; i < frames->examples; i++) {
        CLI_TRY(train_report_set_text(model, model->task->examples[i]));
        CLI_TRY(train_model_look(model, NULL, NULL));
        memcpy(frames->maps[i] + frames->count * frames->size[i], model->probabilities,
               (size_t)frames->size[i] * sizeof(float));
    }
    frames->steps[frames->count++] = (double)model->step;
    return CLI_OK;
}
