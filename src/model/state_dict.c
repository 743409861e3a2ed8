/* See multihead/state.h. Loading checks and converts all parameters before it sets the first one.
 * Setting parameters cannot fail. */
#include "io/file.h"
#include "model/model_weights.h"

#include <multihead/component.h>
#include <multihead/io.h>
#include <multihead/state.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far more than any module has. */
enum { MOST_PARAMETERS = 32 };

/* The tensors of a state, with their full names and their names in the module. */
typedef struct state {
    const char *path, *prefix;
    int64_t count;
    const char *own[MOST_PARAMETERS];
    char *name[MOST_PARAMETERS];
    mha_tensor tensor[MOST_PARAMETERS];
    float *memory[MOST_PARAMETERS]; /* memory of tensors that are not views of a file */
} state;

static void free_state(state *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        free(s->name[i]);
        free(s->memory[i]);
    }
}

/* List names and shapes of the module's tensors, without data. */
static mha_status list_state(const mha_module *module, const char *path, const char *prefix,
                             state *s)
{
    mha_module_parameter p;
    *s = (state){.path = path, .prefix = prefix ? prefix : ""};
    while (s->count < MOST_PARAMETERS && mha_module_parameter_at(module, s->count, &p)) {
        size_t bytes = strlen(s->prefix) + strlen(p.name) + 1;
        char *name = malloc(bytes);
        if (!name) return mha_fail(MHA_ERR_NOMEM, "state: cannot allocate %zu bytes", bytes);
        snprintf(name, bytes, "%s%s", s->prefix, p.name);
        s->own[s->count] = p.name;
        s->tensor[s->count] = mha_tensor_contiguous(NULL, MHA_F32, p.ndim, p.shape);
        s->name[s->count++] = name;
    }
    return MHA_OK;
}

/* Allocate tensor i, with count floats. */
static mha_status own_memory(state *s, int64_t i, int64_t *count)
{
    MHA_TRY(mha_tensor_count(&s->tensor[i], count));
    s->memory[i] = malloc((size_t)*count * sizeof(float));
    if (!s->memory[i])
        return mha_fail(MHA_ERR_NOMEM, "%s: cannot allocate %lld floats",
                        mhai_show_name(s->name[i]).text, (long long)*count);
    s->tensor[i].data = s->memory[i];
    return MHA_OK;
}

/* ---- loading ------------------------------------------------------------------------------- */

static mha_status check_shape(const state *s, int64_t i, const mha_tensor *found)
{
    const mha_tensor *expected = &s->tensor[i];
    bool same = found->ndim == expected->ndim;
    for (int d = 0; same && d < found->ndim; d++) same = found->shape[d] == expected->shape[d];
    if (same) return MHA_OK;
    char has[160], wants[160];
    mhai_weights_print_shape(has, sizeof has, found);
    mhai_weights_print_shape(wants, sizeof wants, expected);
    return mhai_path_fail(MHA_ERR_MODEL, s->path, "tensor '%s' has shape %s, the module has %s",
                          mhai_show_name(s->name[i]).text, has, wants);
}

static mha_status read_tensor(const mha_safetensors *file, state *s, int64_t i)
{
    int64_t index = mha_safetensors_find(file, s->name[i]);
    mha_tensor found;
    if (index < 0)
        return mhai_path_fail(MHA_ERR_MODEL, s->path, "tensor '%s' is missing, the module needs it",
                              mhai_show_name(s->name[i]).text);
    MHA_TRY(mha_safetensors_peek(file, index, &found));
    MHA_TRY(check_shape(s, i, &found));
    if (found.dtype == MHA_F32 && found.data) {
        s->tensor[i] = found;
        return MHA_OK;
    }
    if (found.dtype != MHA_F32 && found.dtype != MHA_F16 && found.dtype != MHA_BF16 &&
        found.dtype != MHA_F64)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, s->path,
                              "tensor '%s' is %s; save the state as float32, float16, bfloat16 or "
                              "float64",
                              mhai_show_name(s->name[i]).text, mha_dtype_name(found.dtype));
    int64_t count;
    MHA_TRY(own_memory(s, i, &count));
    return mha_safetensors_read(file, index, MHA_F32, count, s->memory[i]);
}

/* Reject unknown tensors under the prefix. */
static mha_status check_unexpected(const mha_safetensors *file, const state *s)
{
    size_t length = strlen(s->prefix);
    for (int64_t n = 0; n < mha_safetensors_count(file); n++) {
        const char *name = mha_safetensors_name(file, n);
        bool known = strncmp(name, s->prefix, length) != 0;
        for (int64_t i = 0; i < s->count && !known; i++) known = strcmp(name, s->name[i]) == 0;
        if (!known)
            return mhai_path_fail(
                MHA_ERR_MODEL, s->path,
                "tensor '%s' is unexpected, the module has no such parameter; make "
                "it with other flags or sizes, or give a longer prefix",
                mhai_show_name(name).text);
    }
    return MHA_OK;
}

static mha_status read_state(const mha_safetensors *file, state *s)
{
    for (int64_t i = 0; i < s->count; i++) MHA_TRY(read_tensor(file, s, i));
    return check_unexpected(file, s);
}

mha_status mha_module_load_state(mha_module *module, const char *path, const char *prefix)
{
    MHA_NEED("mha_module_load_state", module, path);
    mha_safetensors *file = NULL;
    state s;
    mha_status status;
    MHA_TRY_GOTO(list_state(module, path, prefix, &s), done);
    MHA_TRY_GOTO(mha_safetensors_open(path, &file), done);
    MHA_TRY_GOTO(read_state(file, &s), done);
    for (int64_t i = 0; i < s.count; i++)
        MHA_TRY_GOTO(mha_module_set_parameter(module, s.own[i], &s.tensor[i]), done);
done:
    mha_safetensors_close(file);
    free_state(&s);
    return status;
}

/* ---- saving -------------------------------------------------------------------------------- */

mha_status mha_module_save_state(const mha_module *module, const char *path, const char *prefix)
{
    MHA_NEED("mha_module_save_state", module, path);
    static const char *const metadata[] = {"format", "pt", NULL};
    state s;
    mha_status status;
    MHA_TRY_GOTO(list_state(module, path, prefix, &s), done);
    for (int64_t i = 0; i < s.count; i++) {
        int64_t count;
        MHA_TRY_GOTO(own_memory(&s, i, &count), done);
        MHA_TRY_GOTO(mha_module_get_parameter(module, s.own[i], &s.tensor[i]), done);
    }
    status = mha_safetensors_write(path, (const char *const *)s.name, s.tensor, s.count, metadata);
done:
    free_state(&s);
    return status;
}
