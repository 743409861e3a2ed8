/* --module: the projections around attention.
 *
 *   q = x W_q^T    k = memory W_k^T    v = memory W_v^T    out = concat(heads) W_o^T
 *
 * memory is x but for cross-attention. The weights are the example's, or random by --seed.
 */
#include "common/arena.h"
#include "run/run.h"

#include <multihead/nn.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"W_q", "W_k", "W_v", "W_o"};

/* ---- Inputs ---------------------------------------------------------------------------------- */

static cli_exit load_tokens(const run_options *options, const run_problem *problem,
                            const char *option, const char *text, mha_tensor *tokens)
{
    char shape[128];
    bool example = options->example && (!text || !strcmp(text, "example"));
    if (example)
        CLI_TRY(run_example_tokens(text != NULL, tokens));
    else
        CLI_TRY(run_array_load(options, problem, option, text, RUN_REAL, tokens));
    if (tokens->ndim == 2 || tokens->ndim == 3) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, RUN,
                    "%s (%s): has shape %s, expected [T,E] or [B,T,E]: a row of E numbers for each "
                    "token",
                    text, option, run_shape_text(tokens, shape, sizeof shape));
}

static int64_t width_of(const mha_tensor *tokens)
{
    return tokens->shape[tokens->ndim - 1];
}

static cli_exit check_widths(const run_options *options, const run_module *module)
{
    int64_t width = width_of(&module->x);
    if (width_of(&module->memory) != width)
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "%s (--memory): its tokens have %" PRId64 " numbers, those of x %" PRId64,
                        options->memory, width_of(&module->memory), width);
    if (module->x.ndim != module->memory.ndim)
        return cli_fail(CLI_BAD_INPUT, RUN, "%s (--memory): x has %d axes, and this %d",
                        options->memory, module->x.ndim, module->memory.ndim);
    if (width % options->heads != 0)
        return cli_fail(CLI_BAD_INPUT, RUN,
                        "--heads %" PRId64 ": does not divide the %" PRId64
                        " numbers of a token; each head gets E / H of them",
                        options->heads, width);
    if (options->kv_heads && options->heads % options->kv_heads != 0)
        return cli_fail(CLI_USAGE, RUN,
                        "--kv-heads %" PRId64 ": does not divide the %" PRId64
                        " query heads, which share key/value heads in groups",
                        options->kv_heads, options->heads);
    return CLI_OK;
}

/* The encoding of Vaswani et al. 2017 is added to x, and to the memory if that is x. */
static cli_exit add_positions(mha_context *context, bool shared, run_module *module)
{
    const mha_tensor *x = &module->x;
    int64_t rows = x->shape[x->ndim - 2], width = width_of(x);
    int64_t all[] = {x->ndim == 3 ? x->shape[0] : 1, rows, width};
    module->plain_x = *x;
    CLI_TRY(run_array_make(MHA_F32, 2, (int64_t[]){rows, width}, &module->encoding));
    CLI_TRY(cli_check(RUN, mha_sinusoidal_encoding(context, 0, &module->encoding)));
    mha_tensor sum;
    CLI_TRY(run_array_make(MHA_F32, 3, all, &sum));
    const mha_tensor from = mha_tensor_contiguous(x->data, MHA_F32, 3, all);
    CLI_TRY(cli_check(RUN, mha_add_positions(context, NULL, &from, &module->encoding, &sum)));
    module->x = mha_tensor_contiguous(sum.data, MHA_F32, x->ndim, all + 3 - x->ndim);
    if (shared) module->memory = module->x;
    return CLI_OK;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Random weights are divided by a power of two near sqrt(E), so that outputs are about as large as
 * inputs, and exact. */
static cli_exit make_weights(const run_options *options, const run_problem *problem,
                             run_module *module)
{
    int64_t width = width_of(&module->x), heads = options->heads;
    int64_t shared = width / heads * (options->kv_heads ? options->kv_heads : heads);
    const int64_t rows[] = {width, shared, shared, width};
    for (int i = 0; i < 4; i++) {
        mha_tensor *w = &module->weights[i];
        char shape[64];
        if (options->example) {
            CLI_TRY(run_example_weight(i, rows[i], w));
            continue;
        }
        snprintf(shape, sizeof shape, "random:%" PRId64 "x%" PRId64, rows[i], width);
        CLI_TRY(run_random_make(options, problem, names[i], shape, RUN_REAL, w));
        float scale = 1;
        for (int64_t most = 4; most <= width && most < INT64_MAX / 4; most *= 4) scale /= 2;
        for (int64_t j = 0; w->data && j < rows[i] * width; j++) ((float *)w->data)[j] *= scale;
    }
    return CLI_OK;
}

/* ---- Projections ----------------------------------------------------------------------------- */

static void destroy_linear(void *linear)
{
    mha_linear_destroy(linear);
}

/* y = x W^T; y has the axes of x. */
static cli_exit project(mha_context *context, const mha_tensor *x, const mha_tensor *weight,
                        mha_tensor *y)
{
    int64_t shape[3], count, outputs = weight->shape[0], inputs = weight->shape[1];
    for (int i = 0; i < x->ndim; i++) shape[i] = x->shape[i];
    shape[x->ndim - 1] = outputs;
    *y = mha_tensor_contiguous(NULL, MHA_F32, x->ndim, shape);
    if (!x->data) return CLI_OK; /* only shapes are known yet */
    CLI_TRY(run_array_make(MHA_F32, x->ndim, shape, y));
    CLI_TRY(cli_check(RUN, mha_tensor_count(x, &count)));
    mha_linear *linear = NULL;
    CLI_TRY(cli_check(RUN, mha_linear_create(context, weight, NULL, &linear)));
    CLI_TRY(arena_keep(RUN, linear, destroy_linear));
    int64_t rows = inputs ? count / inputs : 0;
    const mha_tensor from = mha_tensor_contiguous(x->data, MHA_F32, 2, (int64_t[]){rows, inputs});
    const mha_tensor to = mha_tensor_contiguous(y->data, MHA_F32, 2, (int64_t[]){rows, outputs});
    mha_status status = mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &from, &to);
    arena_drop(linear);
    return cli_check(RUN, status);
}

cli_exit run_module_make(const run_options *options, mha_context *context, run_problem *problem,
                         const mha_tensor *arrays[3])
{
    run_module *module = &problem->module;
    CLI_TRY(load_tokens(options, problem, "--x", options->x, &module->x));
    module->memory = module->x;
    if (options->memory)
        CLI_TRY(load_tokens(options, problem, "--memory", options->memory, &module->memory));
    CLI_TRY(check_widths(options, module));
    if (options->sinusoidal && !problem->heads_only)
        CLI_TRY(add_positions(context, !options->memory, module));
    CLI_TRY(make_weights(options, problem, module));
    for (int i = 0; i < 3; i++) {
        CLI_TRY(project(context, i ? &module->memory : &module->x, &module->weights[i],
                        &module->projected[i]));
        arrays[i] = &module->projected[i];
    }
    return CLI_OK;
}

cli_exit run_module_out(mha_context *context, const run_problem *problem, const mha_tensor *heads,
                        mha_tensor *out)
{
    return project(context, heads, &problem->module.weights[3], out);
}
