/* A model in training (training.h), and the batches for training and probing. */
#include "common/arena.h"
#include "common/launched.h"
#include "train/train.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

enum { PROBE_SEQUENCES = 60 };

/* ---- mixers -------------------------------------------------------------------------------- */

static const char *const mixers[] = {[MHA_MIXER_ATTENTION] = "attention",
                                     [MHA_MIXER_GATED_DELTA] = "gdn",
                                     [MHA_MIXER_STATE_SPACE] = "mamba2"};

int train_mixer_of(const char *name, size_t length)
{
    for (int i = 0; i < (int)(sizeof mixers / sizeof *mixers); i++)
        if (mixers[i] && strlen(mixers[i]) == length && !strncmp(mixers[i], name, length)) return i;
    return -1;
}

void train_recipe_mixers(const train_recipe *recipe, char *text, size_t size)
{
    const mha_layer_desc *layers = recipe->model.layers;
    *text = '\0';
    for (int64_t i = 0; layers && i < recipe->model.num_layers; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? "," : "", mixers[layers[i].mixer]);
    }
}

/* ---- making -------------------------------------------------------------------------------- */

ARENA_RELEASE(destroy_net, mha_transformer_destroy)
ARENA_RELEASE(destroy_trainer, mha_trainer_destroy)

static cli_exit part_make(train_model *model, const mha_transformer_desc *desc, uint64_t seed,
                          mha_transformer **net)
{
    mha_transformer_init init = model->recipe.init;
    init.struct_size = sizeof init;
    init.seed = seed;
    CLI_TRY(cli_check(mha_transformer_create(model->context, desc, net)));
    CLI_TRY(arena_keep(*net, destroy_net));
    return cli_check(mha_transformer_initialise(model->context, *net, &init));
}

static cli_exit make_trainer(train_model *model)
{
    const train_recipe *r = &model->recipe;
    const int64_t most = r->batch > model->probe.most ? r->batch : model->probe.most;
    const int64_t tokens = most * model->probe.longest;
    const double grade = r->init.head_grade;
    const mha_trainer_desc desc = {.struct_size = sizeof desc,
                                   .max_tokens = tokens,
                                   .max_source = model->encoder ? tokens : 0,
                                   .learning_rate = r->learning_rate,
                                   .warm_up = r->warm_up,
                                   .decay = r->decay,
                                   .beta1 = r->beta1,
                                   .beta2 = r->beta2,
                                   .weight_decay = r->weight_decay,
                                   .clip = r->clip,
                                   .head_grade = grade > 0 && grade < 1 ? grade : 0,
                                   .transport = ranks_transport()};
    CLI_TRY(ranks_check(mha_trainer_create(model->context, model->decoder, model->encoder, &desc,
                                           &model->trainer)));
    return arena_keep(model->trainer, destroy_trainer);
}

cli_exit train_model_make(uint64_t seed, train_model *model)
{
    const train_task *task = model->task;
    const train_recipe recipe = model->recipe;
    *model = (train_model){.context = model->context, .task = task, .recipe = recipe, .seed = seed};
    mha_transformer_desc desc = recipe.model, encoder = recipe.encoder;
    desc.struct_size = encoder.struct_size = sizeof desc;
    desc.vocab_size = encoder.vocab_size = task->word_count;
    desc.max_length = encoder.max_length = task->longest;
    if (desc.num_layers > TRAIN_MOST_LAYERS || desc.num_heads > TRAIN_MOST_HEADS)
        return cli_fail(CLI_USAGE, "%lld layers of %lld heads, at most %d of %d",
                        (long long)desc.num_layers, (long long)desc.num_heads,
                        (int)TRAIN_MOST_LAYERS, (int)TRAIN_MOST_HEADS);
    CLI_TRY(train_batch_make(recipe.batch, task->longest, task->probes, &model->batch));
    CLI_TRY(train_batch_make(task->looked_at ? task->looked_at : PROBE_SEQUENCES, task->longest,
                             task->probes, &model->probe));
    CLI_TRY(part_make(model, &desc, seed, &model->decoder));
    if (encoder.num_layers > 0) CLI_TRY(part_make(model, &encoder, seed + 1, &model->encoder));
    CLI_TRY(make_trainer(model));
    return ARENA_ALLOC(desc.num_layers * desc.num_heads * model->probe.most * task->longest *
                           task->longest,
                       &model->probabilities);
}

/* ---- steps and evaluations ----------------------------------------------------------------- */

/* A batch in the trainer's form. */
typedef struct views {
    mha_tensor tokens, source, targets, weights;
    mha_transformer_input input, encoder;
    mha_training_batch batch;
} views;

static void make_views(const train_model *model, const train_batch *batch, views *v)
{
    const int64_t shape[] = {batch->B, batch->T};
    v->tokens = mha_tensor_contiguous(batch->tokens, MHA_I32, 2, shape);
    v->targets = mha_tensor_contiguous(batch->targets, MHA_I32, 2, shape);
    v->weights = mha_tensor_contiguous(batch->weights, MHA_F32, 2, shape);
    v->source = mha_tensor_contiguous(batch->source, MHA_I32, 2, (int64_t[]){batch->B, batch->S});
    v->encoder = (mha_transformer_input){
        .struct_size = sizeof v->encoder, .tokens = &v->source, .lengths = batch->source_lengths};
    v->input = (mha_transformer_input){
        .struct_size = sizeof v->input, .tokens = &v->tokens, .lengths = batch->lengths};
    v->batch = (mha_training_batch){.struct_size = sizeof v->batch,
                                    .input = &v->input,
                                    .source = model->encoder ? &v->encoder : NULL,
                                    .targets = &v->targets};
}

/* Apply dropout to attention weights in training steps, with a different mask in every step and in
 * the encoder. Evaluations have no dropout. */
static void drop(const train_model *model, views *v)
{
    random_source r = random_make(model->seed ^ UINT64_C(0x64726F70), (uint64_t)model->step);
    v->input.dropout = v->encoder.dropout = (float)model->recipe.dropout;
    v->input.dropout_seed = random_next(&r);
    v->encoder.dropout_seed = random_next(&r);
}

cli_exit train_model_step(train_model *model, bool *stopped)
{
    views v;
    random_source r = random_make(model->seed, (uint64_t)model->step);
    const train_ask ask = {.task = model->task,
                           .random = &r,
                           .split = TRAIN_SPLIT_TRAIN,
                           .count = model->recipe.batch};
    model->task->draw(&ask, &model->batch);
    make_views(model, &model->batch, &v);
    v.batch.weights = &v.weights;
    drop(model, &v);
    mha_status status = mha_trainer_step(model->trainer, &v.batch, &model->loss);
    *stopped = status == MHA_ERR_CALLBACK;
    if (*stopped) return CLI_OK;
    if (status == MHA_ERR_NUMERIC)
        status = mha_fail(MHA_ERR_NUMERIC,
                          "the loss is not finite after step %lld"
                          "; give a smaller --learning-rate, and --fresh to start over",
                          (long long)model->step + 1);
    CLI_TRY(ranks_check(status));
    model->step = mha_trainer_steps(model->trainer);
    return CLI_OK;
}

cli_exit train_model_look(train_model *model, const mha_tensor *gates, double *loss)
{
    views v;
    mha_transformer_desc d;
    mha_tensor logits;
    mha_transformer_describe(model->decoder, &d);
    const train_batch *batch = &model->probe;
    const bool encoded = model->encoder;
    make_views(model, batch, &v);
    *(encoded ? &v.input.cross_gates : &v.input.gates) = gates;
    const mha_tensor probabilities = mha_tensor_contiguous(
        model->probabilities, MHA_F32, 5,
        (int64_t[]){d.num_layers, batch->B, d.num_heads, batch->T, encoded ? batch->S : batch->T});
    CLI_TRY(
        cli_check(mha_trainer_evaluate(model->trainer, &v.batch, encoded ? NULL : &probabilities,
                                       encoded ? &probabilities : NULL, &logits, loss)));
    model->logits = logits.data;
    return CLI_OK;
}
