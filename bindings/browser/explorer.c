/* A model in a browser, opened from the worker's files and queried through live.h. An instance holds one model;
 * worker.js calls these functions and starts a new instance for the next model. */
#include <multihead/live.h>

#include <stdlib.h>
#include <string.h>

/* Export a function to worker.js under this name. */
#define FOR_WORKER(type, name, ...)                                        \
    __attribute__((export_name(#name))) type explorer_##name(__VA_ARGS__); \
    type explorer_##name(__VA_ARGS__)

static struct {
    mha_context *context;
    mha_model *model;
    mha_live *live;
    char *name;        /* borrowed by live */
    mha_buffer answer; /* or the details of an error */
} page;

static int finish(mha_status status)
{
    if (status == MHA_OK) return 0;
    const char *detail = mha_error_detail();
    mha_buffer_free(&page.answer);
    const mha_sink sink = mha_buffer_sink(&page.answer);
    if (sink.write(sink.user, detail, strlen(detail)) != MHA_OK) mha_buffer_free(&page.answer);
    return (int)status;
}

/* Allocate a buffer for a text from the worker, which frees it with give(). NULL: out of memory. */
FOR_WORKER(void *, take, size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

FOR_WORKER(void, give, void *text)
{
    free(text);
}

/* Open the model at a path of the worker's files, under a name. Returns 0, or a status; the answer explains it. */
FOR_WORKER(int, open, const char *path, const char *name)
{
    page.name = strdup(name);
    const mha_live_options options = {.struct_size = sizeof options,
                                      .name = page.name ? page.name : "model",
                                      .folder = path,
                                      .advise_words =
                                          "the model's vocab.txt or tokenizer.json lists them"};
    mha_status status = mha_context_create(NULL, &page.context);
    if (status == MHA_OK) status = mha_model_load(page.context, path, NULL, &page.model);
    if (status == MHA_OK) status = mha_live_create(page.context, page.model, &options, &page.live);
    return finish(status);
}

/* Answer a request for a place of live.h, with the same result as there. */
FOR_WORKER(int, answer, const char *place, const char *request, size_t bytes)
{
    mha_buffer_free(&page.answer);
    const mha_sink sink = mha_buffer_sink(&page.answer);
    return finish(mha_live_answer(page.live, mha_live_find(place), request, bytes, &sink));
}

FOR_WORKER(const void *, answer_data, void)
{
    return page.answer.data;
}

FOR_WORKER(size_t, answer_bytes, void)
{
    return page.answer.size;
}
