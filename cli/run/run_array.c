/* Arrays that `multihead run` reads: lists on the command line, .npy files, tensors of safetensors
 * files; and their elements in the type that is wanted. */
#include "common/arena.h"
#include "run/run.h"

#include <multihead/io.h>

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, mha_tensor *array)
{
    int64_t count;
    *array = mha_tensor_contiguous(NULL, dtype, ndim, shape);
    CLI_TRY(cli_check(RUN, mha_tensor_count(array, &count)));
    array->data = arena_try(count, mha_dtype_size(dtype));
    if (array->data) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY, RUN,
                    "out of memory: an array of %" PRId64 " elements of %zu bytes; --pick-heads "
                    "and --pick-rows write only a part of weights and scores",
                    count, mha_dtype_size(dtype));
}

cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, mha_tensor *array)
{
    CLI_TRY(run_array_make(dtype, tensor->ndim, tensor->shape, array));
    return cli_check(RUN, mha_tensor_convert(tensor, array));
}

/* ---- Elements -------------------------------------------------------------------------------- */

static bool is_whole(mha_dtype dtype)
{
    return dtype == MHA_I8 || dtype == MHA_U8 || dtype == MHA_I32 || dtype == MHA_I64;
}

static int64_t whole_element(const mha_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case MHA_I8: return ((const int8_t *)tensor->data)[i];
    case MHA_U8: return ((const uint8_t *)tensor->data)[i];
    case MHA_I32: return ((const int32_t *)tensor->data)[i];
    default: return ((const int64_t *)tensor->data)[i];
    }
}

static double real_element(const mha_tensor *tensor, int64_t i)
{
    return tensor->dtype == MHA_F64 ? ((const double *)tensor->data)[i]
                                    : (double)whole_element(tensor, i);
}

/* ---- Changing the type ----------------------------------------------------------------------- */

/* One array on its way: what messages call it, and where it comes from. */
typedef struct conversion {
    const char *option, *name;
    const mha_tensor *from;
    int64_t count;
    bool quiet;
} conversion;

static cli_exit to_real(const conversion *c, mha_tensor *to)
{
    if (c->from->dtype == MHA_F16 || c->from->dtype == MHA_BF16)
        return cli_check(RUN, mha_tensor_convert(c->from, to));
    int64_t rounded = 0;
    for (int64_t i = 0; i < c->count; i++) {
        double value = real_element(c->from, i);
        float near = (float)value;
        if (isinf(near) && !isinf(value))
            return cli_fail(CLI_BAD_INPUT, RUN,
                            "%s (%s): element %" PRId64 " is %g, beyond float32; scale the array",
                            c->name, c->option, i, value);
        rounded += !isnan(value) && (double)near != value;
        ((float *)to->data)[i] = near;
    }
    if (rounded > 0 && c->from->dtype != MHA_F64)
        cli_note(c->quiet, "%s: %s, %" PRId64 " of %" PRId64 " numbers rounded to float32", c->name,
                 mha_dtype_name(c->from->dtype), rounded, c->count);
    else if (c->from->dtype == MHA_F64)
        cli_note(c->quiet,
                 "%s: float64, taken as float32 (a.astype('f4')), in which all is computed",
                 c->name);
    return CLI_OK;
}

static cli_exit wrong_type(const conversion *c, const char *wanted, const char *fix)
{
    return cli_fail(CLI_BAD_INPUT, RUN, "%s (%s): holds %s, expected %s: %s", c->name, c->option,
                    mha_dtype_name(c->from->dtype), wanted, fix);
}

/* Whether the type can be turned into that of the kind, which *dtype then is. */
static cli_exit check_type(const conversion *c, run_kind kind, mha_dtype *dtype)
{
    static const mha_dtype types[] = {[RUN_FLOAT] = MHA_F32,
                                      [RUN_REAL] = MHA_F32,
                                      [RUN_KEEP] = MHA_U8,
                                      [RUN_INDEX] = MHA_I64,
                                      [RUN_INDEX32] = MHA_I32};
    const mha_dtype from = c->from->dtype;
    *dtype = kind == RUN_FLOAT && (from == MHA_F16 || from == MHA_BF16) ? from : types[kind];
    if (types[kind] == MHA_F32 || is_whole(from)) return CLI_OK;
    return kind == RUN_KEEP
               ? wrong_type(c, "booleans, true where something is kept",
                            "save mask.astype(bool), or add numbers to the scores with --bias")
               : wrong_type(c, "whole numbers", "save a.astype('i8')");
}

static cli_exit to_keep(const conversion *c, mha_tensor *to)
{
    for (int64_t i = 0; i < c->count; i++)
        ((uint8_t *)to->data)[i] = whole_element(c->from, i) != 0;
    return CLI_OK;
}

static cli_exit to_index(const conversion *c, mha_tensor *to)
{
    for (int64_t i = 0; i < c->count; i++) {
        int64_t value = whole_element(c->from, i);
        if (to->dtype == MHA_I64) {
            ((int64_t *)to->data)[i] = value;
            continue;
        }
        if (value < INT32_MIN || value > INT32_MAX)
            return cli_fail(CLI_BAD_INPUT, RUN,
                            "%s (%s): element %" PRId64 " is %" PRId64 ", beyond 32 bits; number "
                            "the documents from 0",
                            c->name, c->option, i, value);
        ((int32_t *)to->data)[i] = (int32_t)value;
    }
    return CLI_OK;
}

/* The same array in the type of its kind; array stays as it is if that is the type. */
static cli_exit convert(const char *option, const char *name, run_kind kind, bool quiet,
                        mha_tensor *array)
{
    mha_dtype dtype;
    mha_tensor made;
    conversion c = {.option = option, .name = name, .from = array, .quiet = quiet};
    CLI_TRY(check_type(&c, kind, &dtype));
    if (dtype == array->dtype) return CLI_OK;
    CLI_TRY(cli_check(RUN, mha_tensor_count(array, &c.count)));
    CLI_TRY(run_array_make(dtype, array->ndim, array->shape, &made));
    CLI_TRY(dtype == MHA_F32   ? to_real(&c, &made)
            : kind == RUN_KEEP ? to_keep(&c, &made)
                               : to_index(&c, &made));
    *array = made;
    return CLI_OK;
}

/* ---- Where they come from -------------------------------------------------------------------- */

/* An array as it was read, and the thing of the arena that holds its elements. */
typedef struct source {
    mha_tensor array;
    void *owner;
    bool list; /* it stood on the command line */
} source;

/* "1,2.5,-inf": how many numbers, 0 if it is not such a list. No file is called so by chance. */
static int64_t list_length(const char *text, bool *whole)
{
    int64_t count = 0;
    *whole = true;
    for (const char *at = text;; at++) {
        char *end;
        (void)strtod(at, &end);
        if (end == at || isspace((unsigned char)*at)) return 0;
        for (; at < end; at++) *whole = *whole && (isdigit((unsigned char)*at) || *at == '-');
        count++;
        if (*at != ',') return *at ? 0 : count;
    }
}

/* A list as i64 if its numbers are whole, else as f64. */
static cli_exit read_list(const char *text, int64_t count, bool whole, source *from)
{
    CLI_TRY(run_array_make(whole ? MHA_I64 : MHA_F64, 1, &count, &from->array));
    from->owner = from->array.data;
    for (int64_t i = 0; i < count; i++) {
        char *end;
        if (whole)
            ((int64_t *)from->array.data)[i] = strtoll(text, &end, 10);
        else
            ((double *)from->array.data)[i] = strtod(text, &end);
        text = end + 1;
    }
    return CLI_OK;
}

/* The first names of a file, for messages. */
static void name_list(const mha_safetensors *file, char *text, size_t size)
{
    int64_t count = mha_safetensors_count(file);
    const int64_t most = 6;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < count && i < most && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 mha_safetensors_name(file, i));
    if (count > most && used < size) snprintf(text + used, size - used, ", ...");
}

static void close_safetensors(void *file)
{
    mha_safetensors_close(file);
}

static void destroy_npy(void *npy)
{
    mha_npy_destroy(npy);
}

static cli_exit open_safetensors(const char *text, size_t path_bytes, bool head, source *from)
{
    char *path, names[256];
    mha_safetensors *file = NULL;
    CLI_TRY(arena_text(RUN, text, path_bytes, &path));
    CLI_TRY(cli_check(RUN, mha_safetensors_open(path, &file)));
    CLI_TRY(arena_keep(RUN, file, close_safetensors));
    from->owner = file;
    const char *name = text[path_bytes] ? text + path_bytes + 1 : NULL;
    int64_t count = mha_safetensors_count(file);
    int64_t index = name ? mha_safetensors_find(file, name) : count == 1 ? 0 : -1;
    if (index < 0) {
        name_list(file, names, sizeof names);
        return cli_fail(name ? CLI_BAD_INPUT : CLI_USAGE, RUN,
                        "%.*s: %s%s%s it has %" PRId64 ": %s; write FILE.safetensors:NAME",
                        (int)path_bytes, text, name ? "no tensor '" : "which of its tensors?",
                        name ? name : "", name ? "';" : "", count, names);
    }
    return cli_check(RUN, head ? mha_safetensors_peek(file, index, &from->array)
                               : mha_safetensors_tensor(file, index, &from->array));
}

static cli_exit open_npy(const char *path, bool head, source *from)
{
    if (!strcmp(path, "-"))
        return cli_fail(CLI_USAGE, RUN,
                        "-: arrays are not read from a pipe; write a file, and name it");
    if (head) return cli_check(RUN, mha_npy_peek(path, &from->array));
    mha_npy *npy = NULL;
    CLI_TRY(cli_check(RUN, mha_npy_read(path, &npy)));
    from->owner = npy;
    from->array = mha_npy_tensor(npy);
    return arena_keep(RUN, npy, destroy_npy);
}

/* Bytes of the path in "a.safetensors" or "a.safetensors:name"; 0 if it is neither. */
static size_t safetensors_path(const char *text)
{
    static const char end[] = ".safetensors";
    for (const char *at = text; (at = strstr(at, end)); at++)
        if (!at[sizeof end - 1] || at[sizeof end - 1] == ':')
            return (size_t)(at - text) + sizeof end - 1;
    return 0;
}

/* The array as it stands in its file, or only its head. */
static cli_exit open_array(const char *text, bool head, source *from)
{
    bool whole;
    int64_t numbers = list_length(text, &whole);
    size_t path_bytes = safetensors_path(text);
    *from = (source){.list = numbers > 0};
    return numbers > 0      ? read_list(text, numbers, whole, from)
           : path_bytes > 0 ? open_safetensors(text, path_bytes, head, from)
                            : open_npy(text, head, from);
}

cli_exit run_array_read(const char *option, const char *text, run_kind kind, bool quiet,
                        mha_tensor *array)
{
    source from;
    CLI_TRY(run_array_peek(option, text, kind, array));
    CLI_TRY(open_array(text, false, &from));
    *array = from.array;
    /* A list has no type of its own: nothing to be said of rounding. */
    CLI_TRY(convert(option, text, kind, quiet || from.list, array));
    if (array->data != from.array.data) arena_drop(from.owner);
    return CLI_OK;
}

cli_exit run_array_peek(const char *option, const char *text, run_kind kind, mha_tensor *array)
{
    const size_t mark = arena_mark();
    mha_dtype dtype;
    source from;
    const conversion c = {.option = option, .name = text, .from = &from.array};
    CLI_TRY(open_array(text, true, &from));
    CLI_TRY(check_type(&c, kind, &dtype));
    arena_release(mark);
    *array = from.array;
    array->dtype = dtype;
    array->data = NULL;
    return CLI_OK;
}

/* ---- Lists of heads, rows and keys ----------------------------------------------------------- */

/* A number without sign; *at steps behind it. */
static bool take_number(const char **at, int64_t *number)
{
    const int64_t too_large = INT64_C(1) << 40;
    const char *start = *at;
    for (*number = 0; isdigit((unsigned char)**at); ++*at)
        if (*number < too_large) *number = *number * 10 + (**at - '0');
    return *at != start;
}

/* Walk over "0,2-4"; numbers NULL: only count them. Returns how many, -1 if it is no such list, -2
 * if a number is too large, which *beyond then is. */
static int64_t walk_list(const char *text, int64_t limit, int64_t *numbers, int64_t *beyond)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        int64_t first, last;
        if (!take_number(&at, &first)) return -1;
        last = first;
        if (*at == '-') {
            at++;
            if (!take_number(&at, &last) || last < first) return -1;
        }
        *beyond = last;
        if (last >= limit) return -2;
        for (int64_t i = first; i <= last; i++, count++)
            if (numbers) numbers[count] = i;
        if (*at != ',') return *at ? -1 : count;
    }
}

static cli_exit check_list(const char *option, const char *text, const char *what, int64_t limit,
                           const mha_tensor *list)
{
    char shape[128];
    if (list->ndim != 1)
        return cli_fail(CLI_BAD_INPUT, RUN, "%s %s: has shape %s, expected a list such as 0,2-4",
                        option, text, run_shape_text(list, shape, sizeof shape));
    for (int64_t i = 0; i < list->shape[0]; i++) {
        int64_t number = ((const int64_t *)list->data)[i];
        if (number < 0 || number >= limit)
            return cli_fail(CLI_USAGE, RUN,
                            "%s %s: there is no %s %" PRId64 "; they are 0 to %" PRId64, option,
                            text, what, number, limit - 1);
    }
    return CLI_OK;
}

cli_exit run_list_read(const char *option, const char *text, const char *what, int64_t count,
                       mha_tensor *list)
{
    int64_t beyond, items = walk_list(text, count, NULL, &beyond);
    if (items == -2)
        return cli_fail(CLI_USAGE, RUN, "%s %s: there is no %s %" PRId64 "; they are 0 to %" PRId64,
                        option, text, what, beyond, count - 1);
    if (items == -1 && text[strspn(text, "0123456789,-")] == '\0')
        return cli_fail(CLI_USAGE, RUN, "%s %s: expected a list such as 0,2-4", option, text);
    if (items == -1) {
        CLI_TRY(run_array_read(option, text, RUN_INDEX, true, list));
        return check_list(option, text, what, count, list);
    }
    CLI_TRY(run_array_make(MHA_I64, 1, &items, list));
    (void)walk_list(text, count, list->data, &beyond);
    return CLI_OK;
}
