/* --module: the projections around attention.
 *
 *   q = x W_q^T    k = memory W_k^T    v = memory W_v^T    out = concat(heads) W_o^T
 *
 * memory is x except in cross-attention. The weights are those of the example, or random with
 * --seed. */
#include "common/arena.h"
#include "run/run.h"

#include <multihead/nn.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"W_q", "W_k", "W_v", "W_o"};

/* ---- Inputs ---------------------------------------------------------------------------------- */

static cli_exit load_tokens(const run_problem *p, const char *option, const char *text,
                            mha_tensor *tokens)
{
    if (p->options->example && (!text || !strcmp(text, "example")))
        return run_example_make(text ? RUN_EXAMPLE_MEMORY : RUN_EXAMPLE_X, 0, tokens);
    CLI_TRY(run_array_read(p, option, text, RUN_F32, tokens));
    if (tokens->ndim == 2 || tokens->ndim == 3) return CLI_OK;
    return RUN_BAD_INPUT("%s (%s): has shape %s, expected [T,E] or [B,T,E]: a row of E numbers for "
                         "each token",
                         text, option, run_shape_of(tokens).text);
}

static int64_t width_of(const mha_tensor *tokens)
{
    return tokens->shape[tokens->ndim - 1];
}

static cli_exit check_widths(const run_options *o, const run_module *module)
{
    const int64_t width = width_of(&module->x), of_memory = width_of(&module->memory);
    if (of_memory != width)
        return RUN_BAD_INPUT("%s (--memory): its tokens have %" PRId64
                             " numbers, those of x %" PRId64,
                             o->memory, of_memory, width);
    if (module->x.ndim != module->memory.ndim)
        return RUN_BAD_INPUT("%s (--memory): x has %d axes, and this %d", o->memory, module->x.ndim,
                             module->memory.ndim);
    if (width % o->heads != 0)
        return RUN_BAD_INPUT("--heads %" PRId64 ": does not divide the %" PRId64
                             " numbers of a token; each head gets E / H of them",
                             o->heads, width);
    if (o->kv_heads && o->heads % o->kv_heads != 0)
        return RUN_USAGE("--kv-heads %" PRId64 ": does not divide the %" PRId64
                         " query heads, which share key/value heads in groups",
                         o->kv_heads, o->heads);
    return CLI_OK;
}

/* Add the encoding of Vaswani et al. 2017 to x, and to the memory if it is x. */
static cli_exit add_positions(run_problem *p)
{
    run_module *module = &p->module;
    const mha_tensor x = module->plain_x = module->x;
    const int64_t rows = x.shape[x.ndim - 2], width = width_of(&x);
    const int64_t all[] = {x.ndim == 3 ? x.shape[0] : 1, rows, width};
    mha_tensor sum;
    CLI_TRY(run_array_make(MHA_F32, 2, all + 1, &module->encoding));
    CLI_TRY(cli_check(mha_sinusoidal_encoding(p->context, 0, &module->encoding)));
    CLI_TRY(run_array_make(MHA_F32, 3, all, &sum));
    const mha_tensor from = mha_tensor_contiguous(x.data, MHA_F32, 3, all);
    CLI_TRY(cli_check(mha_add_positions(p->context, NULL, &from, &module->encoding, &sum)));
    module->x = mha_tensor_contiguous(sum.data, MHA_F32, x.ndim, x.shape);
    if (!p->options->memory) module->memory = module->x;
    return CLI_OK;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Random weights are divided by a power of two near sqrt(E), so that outputs are exact and about as
 * large as inputs. */
static cli_exit make_weights(run_problem *p)
{
    const run_options *o = p->options;
    const int64_t width = width_of(&p->module.x);
    const int64_t shared = width / o->heads * (o->kv_heads ? o->kv_heads : o->heads);
    const int64_t rows[] = {width, shared, shared, width};
    for (int i = 0; i < 4; i++) {
        mha_tensor *w = &p->module.weights[i];
        char shape[64];
        if (o->example) {
            CLI_TRY(run_example_make(RUN_EXAMPLE_W + i, rows[i], w));
            continue;
        }
        snprintf(shape, sizeof shape, "random:%" PRId64 "x%" PRId64, rows[i], width);
        CLI_TRY(run_array_read(p, names[i], shape, RUN_F32, w));
        float scale = 1;
        for (int64_t most = 4; most <= width && most < INT64_MAX / 4; most *= 4) scale /= 2;
        for (int64_t j = 0; w->data && j < rows[i] * width; j++) ((float *)w->data)[j] *= scale;
    }
    return CLI_OK;
}

/* ---- Projections ----------------------------------------------------------------------------- */

ARENA_RELEASE(destroy_linear, mha_linear_destroy)

/* y = x W^T; y has the axes of x. */
static cli_exit project(mha_context *context, const mha_tensor *x, const mha_tensor *weight,
                        mha_tensor *y)
{
    const int64_t outputs = weight->shape[0], inputs = weight->shape[1];
    mha_linear *linear = NULL;
    int64_t shape[3], count;
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim - 1] = outputs;
    *y = mha_tensor_contiguous(NULL, MHA_F32, x->ndim, shape);
    if (!x->data) return CLI_OK; /* only shapes are known so far */
    CLI_TRY(run_array_make(MHA_F32, x->ndim, shape, y));
    CLI_TRY(cli_check(mha_tensor_count(x, &count)));
    CLI_TRY(cli_check(mha_linear_create(context, weight, NULL, &linear)));
    CLI_TRY(arena_keep(linear, destroy_linear));
    const int64_t rows = inputs ? count / inputs : 0;
    const mha_tensor from = mha_tensor_contiguous(x->data, MHA_F32, 2, (int64_t[]){rows, inputs});
    const mha_tensor to = mha_tensor_contiguous(y->data, MHA_F32, 2, (int64_t[]){rows, outputs});
    mha_status status = mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &from, &to);
    arena_drop(linear);
    return cli_check(status);
}

cli_exit run_module_make(run_problem *p)
{
    const run_options *o = p->options;
    run_module *module = &p->module;
    CLI_TRY(load_tokens(p, "--x", o->x, &module->x));
    module->memory = module->x;
    if (o->memory) CLI_TRY(load_tokens(p, "--memory", o->memory, &module->memory));
    CLI_TRY(check_widths(o, module));
    if (o->sinusoidal && !p->heads_only) CLI_TRY(add_positions(p));
    CLI_TRY(make_weights(p));
    for (int i = 0; i < 3; i++)
        CLI_TRY(project(p->context, i ? &module->memory : &module->x, &module->weights[i],
                        &module->projected[i]));
    return CLI_OK;
}

cli_exit run_module_out(const run_problem *p, const mha_tensor *heads, mha_tensor *out)
{
    return project(p->context, heads, &p->module.weights[3], out);
}
