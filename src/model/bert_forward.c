/* The forward pass of a BERT encoder (model.h has its formula).
 *
 * No output byte may be written before everything that can fail has succeeded. Arguments are
 * checked by model_forward.c; what is left is memory. So the pass takes its own scratch, then takes
 * and gives back as much as the largest of its steps will want: the scratch stack keeps what it
 * has, so no step can fail afterwards. */
#include "model/bert.h"

#include <multihead/component.h>

#include <string.h>

/* What flows through the pass. Matrices are [B*T, width] in scratch. */
typedef struct flow {
    const mhai_bert *bert;
    const mhai_pass *pass;
    int64_t rows;     /* B*T */
    mha_tensor x, y;  /* the hidden states, and a step's result: [rows,E] */
    mha_tensor inner; /* between the two feed-forward layers: [rows,I] */
    int64_t *lengths; /* [B] a copy, since an output may lie where the caller's are; or NULL */
} flow;

/* ---- memory -------------------------------------------------------------------------------- */

static mha_status take_matrix(mha_context *context, int64_t rows, int64_t width, mha_tensor *matrix)
{
    int64_t count;
    void *memory = NULL;
    if (__builtin_mul_overflow(rows, width, &count))
        return mha_fail(MHA_ERR_SIZE, "batch: %lld tokens of width %lld overflow 64 bits",
                        (long long)rows, (long long)width);
    MHA_TRY(mha_scratch_alloc(context, count, sizeof(float), &memory));
    *matrix = mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){rows, width});
    return MHA_OK;
}

/* The largest scratch that an attention module will want. */
static mha_status measure_attention(const flow *f, int64_t layer, size_t *most)
{
    const mhai_pass *pass = f->pass;
    const mha_attention_desc desc = {.struct_size = sizeof desc, .key_lengths = f->lengths};
    const int64_t shape[] = {pass->B, pass->T, f->bert->width};
    const mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, 3, shape);
    const mha_module_call call = {.struct_size = sizeof call,
                                  .attention = &desc,
                                  .query = &x,
                                  .key = &x,
                                  .value = &x,
                                  .outputs =
                                      pass->want.attention ? pass->want.attention[layer] : NULL};
    size_t bytes = 0;
    MHA_TRY(mha_module_scratch(pass->context, f->bert->layer[layer].attention, &call, &bytes));
    *most = bytes > *most ? bytes : *most;
    return MHA_OK;
}

static mha_status take_memory(flow *f)
{
    mha_context *context = f->pass->context;
    const mhai_pass *pass = f->pass;
    void *memory = NULL;
    size_t most = 0;
    MHA_TRY(take_matrix(context, f->rows, f->bert->width, &f->x));
    MHA_TRY(take_matrix(context, f->rows, f->bert->width, &f->y));
    MHA_TRY(take_matrix(context, f->rows, f->bert->inner, &f->inner));
    if (pass->lengths) {
        MHA_TRY(mha_scratch_alloc(context, pass->B, sizeof(int64_t), &memory));
        f->lengths = memory;
        if (pass->B > 0) memcpy(f->lengths, pass->lengths, (size_t)pass->B * sizeof(int64_t));
    }
    for (int64_t l = 0; l < f->bert->layers; l++) MHA_TRY(measure_attention(f, l, &most));
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, (int64_t)most, 1, &memory));
    mha_scratch_release(context, mark);
    return MHA_OK;
}

/* ---- steps --------------------------------------------------------------------------------- */

static const float *row_of(const mha_tensor *table, int64_t row)
{
    return (const float *)table->data + row * table->stride[0];
}

/* The sum of three embeddings, rounded once. */
static void embed_token(void *argument, int64_t item, int worker)
{
    const flow *f = argument;
    const mhai_pass *pass = f->pass;
    (void)worker;
    const float *word = row_of(&f->bert->word, pass->ids[item]);
    const float *position = row_of(&f->bert->position, item % pass->T);
    const float *type = row_of(&f->bert->type, pass->type_ids ? pass->type_ids[item] : 0);
    float *x = (float *)f->x.data + item * f->bert->width;
    for (int64_t i = 0; i < f->bert->width; i++)
        x[i] = (float)((double)word[i] + (double)position[i] + (double)type[i]);
}

/* x = norm(y + x), or norm(x) if y is NULL. */
static mha_status add_and_norm(const flow *f, const mha_tensor *y, const mhai_bert_norm *norm)
{
    return mha_layer_norm(f->pass->context, y ? y : &f->x, y ? &f->x : NULL, &norm->weight,
                          &norm->bias, f->bert->epsilon, &f->x);
}

static mha_status attend(const flow *f, int64_t layer)
{
    const mhai_pass *pass = f->pass;
    const mha_attention_desc desc = {.struct_size = sizeof desc, .key_lengths = f->lengths};
    const int64_t shape[] = {pass->B, pass->T, f->bert->width};
    const mha_tensor x = mha_tensor_contiguous(f->x.data, MHA_F32, 3, shape);
    const mha_tensor y = mha_tensor_contiguous(f->y.data, MHA_F32, 3, shape);
    return mha_module_forward(pass->context, f->bert->layer[layer].attention, &desc, &x, &x, &x, &y,
                              pass->want.attention ? pass->want.attention[layer] : NULL);
}

static mha_status run_layer(const flow *f, int64_t index)
{
    const mhai_bert_layer *layer = &f->bert->layer[index];
    mha_context *context = f->pass->context;
    MHA_TRY(attend(f, index));
    MHA_TRY(add_and_norm(f, &f->y, &layer->attention_norm));
    MHA_TRY(mha_linear_forward(context, layer->up, f->bert->activation, &f->x, &f->inner));
    MHA_TRY(mha_linear_forward(context, layer->down, MHA_ACTIVATION_NONE, &f->inner, &f->y));
    return add_and_norm(f, &f->y, &layer->output_norm);
}

static void give(const flow *f, const mha_tensor *output)
{
    if (!output) return;
    int64_t T = f->pass->T, E = f->bert->width;
    for (int64_t row = 0; row < f->rows; row++)
        memcpy((float *)output->data + row / T * output->stride[0] + row % T * output->stride[1],
               row_of(&f->x, row), (size_t)E * sizeof(float));
}

static mha_status run(flow *f)
{
    const mha_model_outputs *want = &f->pass->want;
    mha_parallel_for(f->pass->context, f->rows, embed_token, f);
    MHA_TRY(add_and_norm(f, NULL, &f->bert->embedding_norm));
    if (want->hidden) give(f, want->hidden[0]);
    for (int64_t l = 0; l < f->bert->layers; l++) {
        MHA_TRY(run_layer(f, l));
        if (want->hidden) give(f, want->hidden[l + 1]);
        if (l == f->bert->layers - 1) give(f, want->last_hidden);
        if (want->after_layer) MHA_TRY(want->after_layer(want->after_layer_user, l));
    }
    return MHA_OK;
}

mha_status mhai_bert_forward(const mha_model *model, const mhai_pass *pass)
{
    flow f = {.bert = model->body, .pass = pass, .rows = pass->B * pass->T};
    mha_scratch_mark mark = mha_scratch_top(pass->context);
    mha_status status = take_memory(&f);
    if (status == MHA_OK) status = run(&f);
    mha_scratch_release(pass->context, mark);
    return status;
}
