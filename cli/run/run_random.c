/* Arrays that need no file: "random:4x8", "random:8xH". */
#include "common/random.h"
#include "run/run.h"

#include <inttypes.h>
#include <string.h>

static const char prefix[] = "random:";

bool run_random_is(const char *text)
{
    return text && !strncmp(text, prefix, sizeof prefix - 1);
}

/* The length that a letter stands for; -1: none. */
static int64_t letter_length(const run_problem *problem, char letter)
{
    const mha_tensor *q = &problem->q, *v = &problem->v;
    if (v->ndim != 4) return -1; /* q, k or v itself */
    switch (letter) {
    case 'B': return problem->ragged ? problem->desc.sequences : q->shape[0];
    case 'H': return q->shape[1];
    case 'T': return q->shape[2];
    case 'S': return problem->k.shape[2];
    case 'D': return q->shape[3];
    case 'V': return v->shape[3];
    default: return -1;
    }
}

/* "4x8xH"; false if it is no shape. */
static bool read_shape(const run_problem *problem, const char *text, int64_t *shape, int *ndim)
{
    for (*ndim = 0; *ndim < 4; text++) {
        int64_t *length = &shape[(*ndim)++];
        const char *rest;
        if (!args_whole(text, "x", length, &rest)) {
            *length = letter_length(problem, *text);
            rest = *text ? text + 1 : text;
        }
        if (*length < 1 || (*rest && *rest != 'x')) return false;
        if (!*rest) return true;
        text = rest;
    }
    return false;
}

/* Different options draw different numbers. */
static uint64_t stream_of(const char *option)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (; *option; option++) hash = (hash ^ (uint8_t)*option) * 1099511628211u;
    return hash;
}

cli_exit run_random_make(const run_options *options, const run_problem *problem, const char *option,
                         const char *text, run_kind kind, mha_tensor *array)
{
    int64_t shape[4], count;
    int ndim;
    if (kind == RUN_INDEX || kind == RUN_INDEX32)
        return cli_fail(CLI_USAGE, RUN, "%s %s: takes whole numbers, such as 3,5, not random ones",
                        option, text);
    if (!read_shape(problem, text + sizeof prefix - 1, shape, &ndim))
        return cli_fail(
            CLI_USAGE, RUN,
            "%s %s: expected a shape of up to four axes, such as random:4x8; where q, k "
            "and v are known, B, H, T, S, D and V name their sizes: random:8xH",
            option, text);
    if (problem->heads_only) {
        *array = mha_tensor_contiguous(NULL, kind == RUN_KEEP ? MHA_U8 : MHA_F32, ndim, shape);
        return CLI_OK;
    }
    CLI_TRY(run_array_make(kind == RUN_KEEP ? MHA_U8 : MHA_F32, ndim, shape, array));
    random_source source = random_make((uint64_t)options->seed, stream_of(option));
    CLI_TRY(cli_check(RUN, mha_tensor_count(array, &count)));
    for (int64_t i = 0; i < count; i++) {
        if (kind == RUN_KEEP)
            ((uint8_t *)array->data)[i] = random_chance(&source, 0.5);
        else
            ((float *)array->data)[i] = (float)(random_below(&source, 9) - 4) / 2;
    }
    return CLI_OK;
}
