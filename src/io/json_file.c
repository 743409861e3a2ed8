/* See json_file.h. */
#include "io/json_file.h"

#include "io/file.h"

#include <multihead/component.h>

#include <pthread.h>

/* If jansson cannot allocate, it drops the current value and continues. It may then report
 * malformed text, return a document with parts of names and numbers missing, or read beyond its
 * buffer. Therefore, after the first failed allocation, all further allocations of a parse fail.
 *
 * jansson's allocators are global to the process, and other code of the process may use jansson.
 * The replacements are therefore installed only during a parse. They forward the calls of other
 * threads and free nothing themselves. */
static _Thread_local enum { ELSEWHERE, PARSING, SHORT_OF_MEMORY } state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int parsing; /* number of threads */
static json_malloc_t host_malloc;
static json_free_t host_free;

static void *take(size_t size)
{
    void *memory = state == SHORT_OF_MEMORY ? NULL : host_malloc(size);
    if (!memory && state == PARSING) state = SHORT_OF_MEMORY;
    return memory;
}

static void stand_between(void)
{
    pthread_mutex_lock(&lock);
    if (parsing++ == 0) {
        json_get_alloc_funcs(&host_malloc, &host_free);
        json_set_alloc_funcs(take, host_free);
    }
    pthread_mutex_unlock(&lock);
}

static void step_aside(void)
{
    json_malloc_t now = NULL;
    json_free_t release;
    pthread_mutex_lock(&lock);
    json_get_alloc_funcs(&now, &release);
    if (--parsing == 0 && now == take) json_set_alloc_funcs(host_malloc, host_free);
    pthread_mutex_unlock(&lock);
}

static mha_status parse(const char *path, const char *text, size_t size, size_t flags,
                        json_t **root)
{
    json_error_t error;
    stand_between();
    state = PARSING;
    json_t *made = json_loadb(text, size, JSON_REJECT_DUPLICATES | flags, &error);
    const bool no_memory = state == SHORT_OF_MEMORY;
    state = ELSEWHERE;
    step_aside();
    if (no_memory) {
        json_decref(made);
        return mhai_path_fail(MHA_ERR_NOMEM, path, "out of memory while parsing JSON");
    }
    if (!made)
        return mhai_path_fail(MHA_ERR_FORMAT, path, "malformed JSON at byte %d: %s", error.position,
                              mhai_show_name(error.text).text);
    *root = made;
    return MHA_OK;
}

mha_status mhai_json_parse(const char *path, const char *text, size_t size, json_t **root)
{
    return parse(path, text, size, 0, root);
}

static mha_status read_file(const char *path, size_t limit, size_t flags, json_t **root)
{
    char *text = NULL;
    size_t size = 0;
    MHA_TRY(mha_file_read(path, limit, &text, &size));
    mha_status status = parse(path, text, size, flags, root);
    mha_file_free(text);
    return status;
}

mha_status mhai_json_read(const char *path, size_t limit, json_t **root)
{
    return read_file(path, limit, 0, root);
}

mha_status mhai_json_read_reals(const char *path, size_t limit, json_t **root)
{
    return read_file(path, limit, JSON_DECODE_INT_AS_REAL, root);
}
