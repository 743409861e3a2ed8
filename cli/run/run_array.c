/* Arrays that `multihead run` reads: lists on the command line, .npy files, tensors of safetensors
 * files, random ones. Converts their elements to the requested type. */
#include "common/arena.h"
#include "common/random.h"
#include "run/run.h"

#include <multihead/io.h>

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, mha_tensor *array)
{
    int64_t count;
    *array = mha_tensor_contiguous(NULL, dtype, ndim, shape);
    CLI_TRY(cli_check(mha_tensor_count(array, &count)));
    array->data = arena_try(count, mha_dtype_size(dtype));
    if (array->data) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY,
                    "out of memory: an array of %" PRId64 " elements of %zu bytes; --pick-heads "
                    "and --pick-rows write only a part of weights and scores",
                    count, mha_dtype_size(dtype));
}

cli_exit run_array_count(int64_t count, mha_tensor *array)
{
    CLI_TRY(run_array_make(MHA_I64, 1, &count, array));
    for (int64_t i = 0; i < count; i++) ((int64_t *)array->data)[i] = i;
    return CLI_OK;
}

cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, mha_tensor *array)
{
    CLI_TRY(run_array_make(dtype, tensor->ndim, tensor->shape, array));
    return cli_check(mha_tensor_convert(tensor, array));
}

/* ---- Changing the type ----------------------------------------------------------------------- */

/* Whether elements can be converted to the kind; *dtype becomes the resulting type. */
static cli_exit check_type(const char *option, const char *text, run_kind kind, mha_dtype from,
                           mha_dtype *dtype)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F32, MHA_U8, MHA_I32, MHA_I64};
    const bool whole = from == MHA_I8 || from == MHA_U8 || from == MHA_I32 || from == MHA_I64;
    *dtype = kind == RUN_REAL && (from == MHA_F16 || from == MHA_BF16) ? from : types[kind];
    if (kind == RUN_REAL || kind == RUN_F32 || whole) return CLI_OK;
    return RUN_BAD_INPUT("%s (%s): holds %s, expected %s", text, option, mha_dtype_name(from),
                         kind == RUN_U8
                             ? "booleans, true for visible keys: save mask.astype(bool), or add "
                               "numbers to the scores with --bias"
                             : "whole numbers: save a.astype('i8')");
}

static int64_t whole_element(const mha_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case MHA_I8: return ((const int8_t *)tensor->data)[i];
    case MHA_U8: return ((const uint8_t *)tensor->data)[i];
    case MHA_I32: return ((const int32_t *)tensor->data)[i];
    case MHA_I64: return ((const int64_t *)tensor->data)[i];
    default: return 0;
    }
}

/* Convert one element to the type of `to`; *rounded counts inexact conversions. */
static cli_exit convert_element(const char *option, const char *text, const mha_tensor *from,
                                int64_t i, mha_tensor *to, int64_t *rounded)
{
    const int64_t whole = whole_element(from, i);
    const double real = from->dtype == MHA_F64 ? ((const double *)from->data)[i] : (double)whole;
    const float near = (float)real;
    if (to->dtype == MHA_U8) {
        ((uint8_t *)to->data)[i] = whole != 0;
    } else if (to->dtype == MHA_I64) {
        ((int64_t *)to->data)[i] = whole;
    } else if (to->dtype == MHA_I32) {
        if (whole < INT32_MIN || whole > INT32_MAX)
            return RUN_BAD_INPUT("%s (%s): element %" PRId64 " is %" PRId64
                                 ", beyond 32 bits; number the documents from 0",
                                 text, option, i, whole);
        ((int32_t *)to->data)[i] = (int32_t)whole;
    } else {
        if (isinf(near) && !isinf(real))
            return RUN_BAD_INPUT("%s (%s): element %" PRId64
                                 " is %g, beyond float32; scale the array",
                                 text, option, i, real);
        *rounded += !isnan(real) && (double)near != real;
        ((float *)to->data)[i] = near;
    }
    return CLI_OK;
}

static cli_exit convert(const char *option, const char *text, bool quiet, const mha_tensor *from,
                        mha_dtype dtype, mha_tensor *to)
{
    int64_t count, rounded = 0;
    if (from->dtype == MHA_F16 || from->dtype == MHA_BF16)
        return run_array_convert(from, dtype, to);
    CLI_TRY(run_array_make(dtype, from->ndim, from->shape, to));
    CLI_TRY(cli_check(mha_tensor_count(from, &count)));
    for (int64_t i = 0; i < count; i++)
        CLI_TRY(convert_element(option, text, from, i, to, &rounded));
    if (from->dtype == MHA_F64)
        cli_note(quiet,
                 "%s: float64, read as float32 (a.astype('f4')), the type of the computation",
                 text);
    else if (rounded > 0)
        cli_note(quiet, "%s: %s, %" PRId64 " of %" PRId64 " numbers rounded to float32", text,
                 mha_dtype_name(from->dtype), rounded, count);
    return CLI_OK;
}

/* ---- Sources of arrays ----------------------------------------------------------------------- */

/* An array in the type of its file; the arena owns the elements. */
typedef struct source {
    mha_tensor array;
    void *owner;
    bool list; /* whether the array is from the command line and therefore has no type */
} source;

/* Parse a list of numbers, "1,2.5,-inf". Returns the number of elements; 0: text is not a list, as
 * file names never are in practice. The array has type i64 if all elements are integers, otherwise
 * f64. */
static int64_t walk_numbers(const char *text, mha_tensor *array)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        char *end;
        const double number = strtod(at, &end);
        if (end == at || isspace((unsigned char)*at)) return 0;
        if (array && array->dtype == MHA_F64) ((double *)array->data)[count] = number;
        if (array && array->dtype == MHA_I64)
            ((int64_t *)array->data)[count] = strtoll(at, NULL, 10);
        count++;
        at = end;
        if (*at != ',') return *at ? 0 : count;
    }
}

/* List the first tensor names of a file, for messages. */
static void name_list(const mha_safetensors *file, char *text, size_t size)
{
    const int64_t count = mha_safetensors_count(file), most = 6;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < count && i < most && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 mha_safetensors_name(file, i));
    if (count > most && used < size) snprintf(text + used, size - used, ", ...");
}

ARENA_RELEASE(close_safetensors, mha_safetensors_close)
ARENA_RELEASE(destroy_npy, mha_npy_destroy)

static cli_exit open_safetensors(const char *text, size_t path_bytes, bool head, source *from)
{
    char *path, names[256];
    mha_safetensors *file = NULL;
    CLI_TRY(arena_text(text, path_bytes, &path));
    CLI_TRY(cli_check(mha_safetensors_open(path, &file)));
    CLI_TRY(arena_keep(file, close_safetensors));
    from->owner = file;
    const char *name = text[path_bytes] ? text + path_bytes + 1 : NULL;
    int64_t count = mha_safetensors_count(file);
    int64_t index = name ? mha_safetensors_find(file, name) : count == 1 ? 0 : -1;
    if (index < 0) {
        name_list(file, names, sizeof names);
        return cli_fail(name ? CLI_BAD_INPUT : CLI_USAGE,
                        "%s: %s%s%s it has %" PRId64 ": %s; write FILE.safetensors:NAME", path,
                        name ? "no tensor '" : "which of its tensors?", name ? name : "",
                        name ? "';" : "", count, names);
    }
    return cli_check(head ? mha_safetensors_peek(file, index, &from->array)
                          : mha_safetensors_tensor(file, index, &from->array));
}

static cli_exit open_npy(const char *path, bool head, source *from)
{
    if (!strcmp(path, "-")) return RUN_USAGE("-: arrays are not read from a pipe; give a file");
    if (head) return cli_check(mha_npy_peek(path, &from->array));
    mha_npy *npy = NULL;
    CLI_TRY(cli_check(mha_npy_read(path, &npy)));
    from->owner = npy;
    from->array = mha_npy_tensor(npy);
    return arena_keep(npy, destroy_npy);
}

/* The length of the path in "a.safetensors" or "a.safetensors:name"; 0 for other texts. */
static size_t safetensors_path(const char *text)
{
    static const char end[] = ".safetensors";
    for (const char *at = text; (at = strstr(at, end)); at++)
        if (!at[sizeof end - 1] || at[sizeof end - 1] == ':')
            return (size_t)(at - text) + sizeof end - 1;
    return 0;
}

/* Open the array, or only its header. */
static cli_exit open_array(const char *text, bool head, source *from)
{
    const int64_t numbers = walk_numbers(text, NULL);
    const size_t path_bytes = safetensors_path(text);
    *from = (source){.list = numbers > 0};
    if (numbers > 0) {
        const bool whole = !text[strspn(text, "-0123456789,")];
        CLI_TRY(run_array_make(whole ? MHA_I64 : MHA_F64, 1, &numbers, &from->array));
        from->owner = from->array.data;
        walk_numbers(text, &from->array);
        return CLI_OK;
    }
    return path_bytes > 0 ? open_safetensors(text, path_bytes, head, from)
                          : open_npy(text, head, from);
}

/* ---- Random arrays --------------------------------------------------------------------------- */

static const char prefix[] = "random:";

bool run_random_is(const char *text)
{
    return text && !strncmp(text, prefix, sizeof prefix - 1);
}

/* The size that a letter stands for; -1: none. */
static int64_t letter_length(const run_problem *p, char letter)
{
    if (p->v.ndim != 4) return -1; /* q, k or v is being read */
    const int64_t lengths[] = {run_sequences(p), p->q.shape[1], p->q.shape[2],
                               p->k.shape[2],    p->q.shape[3], p->v.shape[3]};
    static const char letters[] = "BHTSDV";
    const char *at = letter ? strchr(letters, letter) : NULL;
    return at ? lengths[at - letters] : -1;
}

/* Parse a shape, "4x8xH". Returns false if text is not a shape. */
static bool read_shape(const run_problem *p, const char *text, int64_t *shape, int *ndim)
{
    for (*ndim = 0; *ndim < 4; text++) {
        int64_t *length = &shape[(*ndim)++];
        const char *rest;
        if (!args_whole(text, "x", length, &rest)) {
            *length = letter_length(p, *text);
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

static cli_exit make_random(const run_problem *p, const char *option, const char *text,
                            run_kind kind, mha_tensor *array)
{
    const mha_dtype dtype = kind == RUN_U8 ? MHA_U8 : MHA_F32;
    int64_t shape[4], count;
    int ndim;
    if (kind == RUN_I64 || kind == RUN_I32)
        return RUN_USAGE("%s %s: takes whole numbers, such as 3,5, not random ones", option, text);
    if (!read_shape(p, text + sizeof prefix - 1, shape, &ndim))
        return RUN_USAGE("%s %s: expected a shape of up to four axes, such as random:4x8; where q, "
                         "k and v are known, B, H, T, S, D and V name their sizes: random:8xH",
                         option, text);
    *array = mha_tensor_contiguous(NULL, dtype, ndim, shape);
    if (p->heads_only) return CLI_OK;
    CLI_TRY(run_array_make(dtype, ndim, shape, array));
    random_source random = random_make((uint64_t)p->options->seed, stream_of(option));
    CLI_TRY(cli_check(mha_tensor_count(array, &count)));
    for (int64_t i = 0; i < count; i++) {
        if (kind == RUN_U8)
            ((uint8_t *)array->data)[i] = random_chance(&random, 0.5);
        else
            ((float *)array->data)[i] = (float)(random_below(&random, 9) - 4) / 2;
    }
    return CLI_OK;
}

/* ---- Any array ------------------------------------------------------------------------------- */

cli_exit run_array_read(const run_problem *p, const char *option, const char *text, run_kind kind,
                        mha_tensor *array)
{
    const size_t mark = arena_mark();
    mha_dtype dtype;
    source from;
    if (run_random_is(text)) return make_random(p, option, text, kind, array);
    CLI_TRY(open_array(text, true, &from));
    CLI_TRY(check_type(option, text, kind, from.array.dtype, &dtype));
    arena_release(mark);
    *array = mha_tensor_contiguous(NULL, dtype, from.array.ndim, from.array.shape);
    if (p->heads_only && kind != RUN_I64) return CLI_OK;
    CLI_TRY(open_array(text, false, &from));
    CLI_TRY(
        check_type(option, text, kind, from.array.dtype, &dtype)); /* the file may have changed */
    *array = from.array;
    if (dtype == from.array.dtype) return CLI_OK;
    CLI_TRY(convert(option, text, p->options->quiet || from.list, &from.array, dtype, array));
    arena_drop(from.owner);
    return CLI_OK;
}

/* ---- Lists of heads, rows and keys ----------------------------------------------------------- */

/* Parse a list, "0,2-4". numbers NULL: only count. Returns -1 if text is not a list. A range beyond
 * the limit yields only its last number. */
static int64_t walk_list(const char *text, int64_t limit, int64_t *numbers)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        int64_t first, last;
        if (!args_digits(&at, &first)) return -1;
        last = first;
        if (*at == '-' && (at++, !args_digits(&at, &last) || last < first)) return -1;
        if (last >= limit) first = last;
        for (int64_t i = first; i <= last; i++, count++)
            if (numbers) numbers[count] = i;
        if (*at != ',') return *at ? -1 : count;
    }
}

cli_exit run_list_read(const run_problem *p, const char *option, const char *text, const char *what,
                       int64_t count, mha_tensor *list)
{
    if (text[strspn(text, "0123456789,-")]) {
        CLI_TRY(run_array_read(p, option, text, RUN_I64, list));
        if (list->ndim != 1)
            return RUN_BAD_INPUT("%s %s: has shape %s, expected a list such as 0,2-4", option, text,
                                 run_shape_of(list).text);
    } else {
        int64_t items = walk_list(text, count, NULL);
        if (items < 0) return RUN_USAGE("%s %s: expected a list such as 0,2-4", option, text);
        CLI_TRY(run_array_make(MHA_I64, 1, &items, list));
        (void)walk_list(text, count, list->data);
    }
    for (int64_t i = 0; i < list->shape[0]; i++)
        if (run_entry(list, i) < 0 || run_entry(list, i) >= count)
            return RUN_USAGE("%s %s: there is no %s %" PRId64 "; %ss are 0 to %" PRId64, option,
                             text, what, run_entry(list, i), what, count - 1);
    return CLI_OK;
}
