/* Serves answers of a live page without a socket. A request on stdin is "look 42", a line end and
 * 42 bytes. An answer on stdout is "0 1234" (the status and the size), a line end and the bytes.
 * The program needs only public headers. */
#include <multihead/live.h>

#include <stdio.h>
#include <string.h>

static int answer(mha_live *live, const char *place, char *request, size_t bytes)
{
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    if (fread(request, 1, bytes, stdin) != bytes) return 1;
    const mha_status status = mha_live_answer(live, mha_live_find(place), request, bytes, &sink);
    if (status != MHA_OK) {
        mha_buffer_free(&buffer);
        if (sink.write(sink.user, mha_error_detail(), strlen(mha_error_detail())) != MHA_OK)
            return 1;
    }
    printf("%d %zu\n", (int)status, buffer.size);
    fwrite(buffer.data, 1, buffer.size, stdout);
    mha_buffer_free(&buffer);
    return 0;
}

int main(int count, char **arguments)
{
    static char request[1 << 20];
    char place[32];
    size_t bytes;
    mha_context *context = NULL;
    mha_model *model = NULL;
    mha_live *live = NULL;
    const mha_live_options options = {
        .struct_size = sizeof options, .name = arguments[count - 1], .folder = arguments[1]};
    int failed = count != 3 || mha_context_create(NULL, &context) ||
                 mha_model_load(context, arguments[1], NULL, &model) ||
                 mha_live_create(context, model, &options, &live);
    while (!failed && scanf("%31s %zu", place, &bytes) == 2 && bytes < sizeof request) {
        (void)getchar();
        failed = answer(live, place, request, bytes);
    }
    mha_live_destroy(live);
    mha_model_destroy(model);
    mha_context_destroy(context);
    return failed;
}
