/* A model in training: parameters, the optimizer's state, and one step after the other. */
#include "train/train.h"

#include "common/maps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_SEQUENCES = 60 };

/* ---- making -------------------------------------------------------------------------------- */

static void part_free(train_part *part)
{
    mha_activations_destroy(part->kept);
    mha_transformer_destroy(part->net);
    free(part->gradient);
    free(part->rates);
    *part = (train_part){0};
}

/* Head h learns at grade^h of the speed of head 0: its rows of W_V, its columns of W_O. */
static cli_exit make_rates(train_part *part, double grade)
{
    void *memory;
    mha_transformer_desc d;
    cli_exit code = maps_alloc(TRAIN, part->size, sizeof(float), &memory);
    part->rates = memory;
    if (code != CLI_OK) return code;
    mha_transformer_describe(part->net, &d);
    for (int64_t i = 0; i < part->size; i++) part->rates[i] = 1;
    for (int64_t i = 0; i < mha_transformer_parameters(part->net); i++) {
        mha_parameter p;
        if (mha_transformer_parameter(part->net, i, &p) != MHA_OK) continue;
        bool rows = strstr(p.name, ".v_proj.weight"), cols = strstr(p.name, ".o_proj.weight");
        for (int64_t k = 0; (rows || cols) && k < p.count; k++) {
            int64_t head = (rows ? k / p.shape[1] : k % p.shape[1]) / d.head_dim;
            for (; head > 0; head--) part->rates[p.offset + k] *= (float)grade;
        }
    }
    return CLI_OK;
}

static cli_exit part_make(train_model *model, const mha_transformer_desc *desc, uint64_t seed,
                          train_part *part)
{
    const train_recipe *recipe = &model->recipe;
    const bool cross = desc->flags & MHA_TRANSFORMER_CROSS;
    const int64_t tokens = model->probe.most * model->probe.longest;
    const int64_t most = recipe->batch * model->probe.longest > tokens
                             ? recipe->batch * model->probe.longest
                             : tokens;
    mha_transformer_init init = recipe->init;
    init.struct_size = sizeof init;
    init.seed = seed;
    mha_status status = mha_transformer_create(model->context, desc, &part->net);
    if (status == MHA_OK) status = mha_transformer_initialise(model->context, part->net, &init);
    if (status == MHA_OK)
        status =
            mha_activations_create(model->context, part->net, most, cross ? most : 0, &part->kept);
    if (status != MHA_OK) return cli_fail_status(TRAIN, status);
    void *memory;
    part->size = mha_transformer_size(part->net);
    cli_exit code = maps_alloc(TRAIN, 3 * part->size, sizeof(float), &memory);
    part->gradient = memory;
    if (code != CLI_OK) return code;
    part->m = part->gradient + part->size;
    part->v = part->m + part->size;
    return init.head_grade > 0 && init.head_grade < 1 ? make_rates(part, init.head_grade) : CLI_OK;
}

static cli_exit make_room(train_model *model, const mha_transformer_desc *desc)
{
    void *memory;
    const int64_t longest = model->task->longest;
    const int64_t sequences =
        model->batch.most > model->probe.most ? model->batch.most : model->probe.most;
    cli_exit code =
        maps_alloc(TRAIN, sequences * longest * desc->vocab_size, sizeof(float), &memory);
    model->logits = memory;
    if (code == CLI_OK)
        code = maps_alloc(TRAIN, 2 * sequences * longest * desc->embed_dim, sizeof(float), &memory);
    model->memory = memory;
    if (code != CLI_OK) return code;
    model->memory_gradient = model->memory + sequences * longest * desc->embed_dim;
    code = maps_alloc(TRAIN,
                      desc->num_layers * desc->num_heads * model->probe.most * longest * longest,
                      sizeof(float), &memory);
    model->probabilities = memory;
    return code;
}

cli_exit train_model_make(mha_context *context, const train_task *task, const train_recipe *recipe,
                          uint64_t seed, train_model *model)
{
    *model = (train_model){.context = context, .task = task, .recipe = *recipe, .seed = seed};
    mha_transformer_desc desc = recipe->model, encoder = recipe->encoder;
    desc.struct_size = encoder.struct_size = sizeof desc;
    desc.vocab_size = encoder.vocab_size = task->word_count;
    desc.max_length = encoder.max_length = task->longest;
    if (desc.num_layers > TRAIN_MOST_LAYERS || desc.num_heads > TRAIN_MOST_HEADS)
        return cli_fail(CLI_USAGE, TRAIN, "%lld layers of %lld heads, at most %d of %d",
                        (long long)desc.num_layers, (long long)desc.num_heads,
                        (int)TRAIN_MOST_LAYERS, (int)TRAIN_MOST_HEADS);
    cli_exit code = train_batch_make(recipe->batch, task->longest, task->probes, &model->batch);
    if (code == CLI_OK)
        code = train_batch_make(task->looked_at ? task->looked_at : PROBE_SEQUENCES, task->longest,
                                task->probes, &model->probe);
    if (code == CLI_OK) code = part_make(model, &desc, seed, &model->decoder);
    if (code == CLI_OK && encoder.num_layers > 0)
        code = part_make(model, &encoder, seed + 1, &model->encoder);
    if (code == CLI_OK) code = make_room(model, &desc);
    if (code != CLI_OK) train_model_free(model);
    return code;
}

void train_model_free(train_model *model)
{
    part_free(&model->decoder);
    part_free(&model->encoder);
    train_batch_free(&model->batch);
    train_batch_free(&model->probe);
    free(model->logits);
    free(model->memory);
    free(model->probabilities);
    *model = (train_model){0};
}

/* ---- forward, backward --------------------------------------------------------------------- */

/* A batch as tensors. */
typedef struct views {
    mha_tensor tokens, source, memory, logits, rows, targets, weights, memory_gradient;
    mha_transformer_input input, encoder;
} views;

static void make_views(train_model *model, const train_batch *batch, views *v)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder.net, &d);
    const int64_t B = batch->B, T = batch->T, S = batch->S, rows = B * T;
    v->tokens = mha_tensor_contiguous(batch->tokens, MHA_I32, 2, (int64_t[]){B, T});
    v->source = mha_tensor_contiguous(batch->source, MHA_I32, 2, (int64_t[]){B, S});
    v->memory = mha_tensor_contiguous(model->memory, MHA_F32, 3, (int64_t[]){B, S, d.embed_dim});
    v->memory_gradient = v->memory;
    v->memory_gradient.data = model->memory_gradient;
    v->logits = mha_tensor_contiguous(model->logits, MHA_F32, 3, (int64_t[]){B, T, d.vocab_size});
    v->rows = mha_tensor_contiguous(model->logits, MHA_F32, 2, (int64_t[]){rows, d.vocab_size});
    v->targets = mha_tensor_contiguous(batch->targets, MHA_I32, 1, &rows);
    v->weights = mha_tensor_contiguous(batch->weights, MHA_F32, 1, &rows);
    const bool encoded = model->encoder.net;
    v->encoder = (mha_transformer_input){
        .struct_size = sizeof v->encoder, .tokens = &v->source, .lengths = batch->source_lengths};
    v->input = (mha_transformer_input){.struct_size = sizeof v->input,
                                       .tokens = &v->tokens,
                                       .lengths = batch->lengths,
                                       .memory = encoded ? &v->memory : NULL,
                                       .memory_lengths = encoded ? batch->source_lengths : NULL};
}

static mha_status forward(train_model *model, views *v, const mha_tensor *probabilities)
{
    const bool encoded = model->encoder.net;
    if (encoded) {
        mha_status status = mha_transformer_forward(model->context, model->encoder.net, &v->encoder,
                                                    model->encoder.kept, &v->memory, NULL, NULL);
        if (status != MHA_OK) return status;
    }
    return mha_transformer_forward(model->context, model->decoder.net, &v->input,
                                   model->decoder.kept, &v->logits, encoded ? NULL : probabilities,
                                   encoded ? probabilities : NULL);
}

static mha_status backward(train_model *model, views *v)
{
    const bool encoded = model->encoder.net;
    train_part *parts[] = {&model->decoder, &model->encoder};
    for (int i = 0; i < 1 + encoded; i++)
        memset(parts[i]->gradient, 0, (size_t)parts[i]->size * sizeof(float));
    if (encoded) {
        int64_t count = v->memory.shape[0] * v->memory.shape[1] * v->memory.shape[2];
        memset(model->memory_gradient, 0, (size_t)count * sizeof(float));
    }
    mha_transformer_gradients out = {.struct_size = sizeof out,
                                     .parameters = model->decoder.gradient,
                                     .memory = encoded ? &v->memory_gradient : NULL};
    mha_status status = mha_transformer_backward(model->context, model->decoder.net, &v->input,
                                                 model->decoder.kept, &v->logits, &out);
    if (status != MHA_OK || !encoded) return status;
    out = (mha_transformer_gradients){.struct_size = sizeof out,
                                      .parameters = model->encoder.gradient};
    return mha_transformer_backward(model->context, model->encoder.net, &v->encoder,
                                    model->encoder.kept, &v->memory_gradient, &out);
}

/* ---- moving -------------------------------------------------------------------------------- */

/* Parameters of one kind that follow each other take one call. */
static mha_status move_part(train_model *model, train_part *part, mha_adamw settings)
{
    const int64_t parameters = mha_transformer_parameters(part->net);
    float *data = mha_transformer_data(part->net);
    for (int64_t i = 0; i < parameters; i++) {
        mha_parameter p;
        mha_status status = mha_transformer_parameter(part->net, i, &p);
        if (status != MHA_OK) return status;
        settings.weight_decay = p.kind == MHA_PARAMETER_MATRIX ? model->recipe.weight_decay : 0;
        settings.rates = part->rates ? part->rates + p.offset : NULL;
        status = mha_adamw_step(model->context, &settings, p.count, data + p.offset,
                                part->gradient + p.offset, part->m + p.offset, part->v + p.offset);
        if (status != MHA_OK) return status;
    }
    return mha_transformer_update(model->context, part->net);
}

static mha_status move(train_model *model)
{
    const train_recipe *r = &model->recipe;
    train_part *parts[] = {&model->decoder, &model->encoder};
    const int count = 1 + (model->encoder.net != NULL);
    double squares = 0, rate;
    mha_status status = MHA_OK;
    for (int i = 0; i < count && status == MHA_OK; i++) {
        double norm = 0;
        status = mha_gradient_norm(model->context, parts[i]->size, parts[i]->gradient, &norm);
        squares += norm * norm;
    }
    const mha_schedule schedule = {.struct_size = sizeof schedule,
                                   .peak = r->learning_rate,
                                   .warm_up = r->warm_up,
                                   .decay = r->decay};
    if (status == MHA_OK) status = mha_learning_rate(&schedule, model->step + 1, &rate);
    if (status != MHA_OK) return status;
    const double norm = sqrt(squares);
    const mha_adamw settings = {.struct_size = sizeof settings,
                                .learning_rate = rate,
                                .beta1 = r->beta1,
                                .beta2 = r->beta2,
                                .gradient_scale =
                                    r->clip > 0 && norm > r->clip ? r->clip / norm : 1,
                                .step = model->step + 1};
    for (int i = 0; i < count && status == MHA_OK; i++)
        status = move_part(model, parts[i], settings);
    return status;
}

/* Training mode: attention weights are dropped, others in every step and in the encoder. Who looks
 * at held-out data drops nothing. */
static void drop(const train_model *model, views *v)
{
    random_source r = random_make(model->seed ^ UINT64_C(0x64726F70), (uint64_t)model->step);
    v->input.dropout = v->encoder.dropout = (float)model->recipe.dropout;
    v->input.dropout_seed = random_next(&r);
    v->encoder.dropout_seed = random_next(&r);
}

cli_exit train_model_step(train_model *model)
{
    views v;
    random_source r = random_make(model->seed, (uint64_t)model->step);
    const train_ask ask = {.task = model->task,
                           .random = &r,
                           .split = TRAIN_SPLIT_TRAIN,
                           .count = model->recipe.batch};
    model->task->draw(&ask, &model->batch);
    make_views(model, &model->batch, &v);
    drop(model, &v);
    mha_status status = forward(model, &v, NULL);
    if (status == MHA_OK)
        status = mha_cross_entropy(model->context, &v.rows, &v.targets, &v.weights, &model->loss,
                                   NULL, &v.rows);
    if (status == MHA_OK) status = backward(model, &v);
    if (status == MHA_OK) status = move(model);
    if (status != MHA_OK) return cli_fail_status(TRAIN, status);
    model->step++;
    return CLI_OK;
}

cli_exit train_model_look(train_model *model, const mha_tensor *gates, double *loss)
{
    views v;
    mha_transformer_desc d;
    mha_transformer_describe(model->decoder.net, &d);
    const train_batch *batch = &model->probe;
    make_views(model, batch, &v);
    if (model->encoder.net)
        v.input.cross_gates = gates;
    else
        v.input.gates = gates;
    mha_tensor probabilities =
        mha_tensor_contiguous(model->probabilities, MHA_F32, 5,
                              (int64_t[]){d.num_layers, batch->B, d.num_heads, batch->T,
                                          model->encoder.net ? batch->S : batch->T});
    mha_status status = forward(model, &v, &probabilities);
    if (status == MHA_OK && loss)
        status = mha_cross_entropy(model->context, &v.rows, &v.targets, NULL, loss, NULL, NULL);
    return status == MHA_OK ? CLI_OK : cli_fail_status(TRAIN, status);
}
