/* Requests to 'multihead serve', without a socket and with the process's own model: access control and status codes.
 * Parts: choices, the body, a path, a host, an origin. */
#include "fuzz.h"

#include "serve/serve_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FUZZ_MUTATOR("btttt")

static serve_site site = {
    .token = "0123456789abcdef0123456789abcdef", .address = "127.0.0.1", .port = 8000};

static void make_site(void)
{
    char folder[FUZZ_PATH_BYTES];
    const mha_live_options options = {
        .struct_size = sizeof options, .name = "fuzzed", .max_tokens = 16, .most_bytes = 1e6};
    mha_context *context;
    mha_model *model;
    fuzz_make_model(folder);
    fuzz_must(mha_context_create(NULL, &context) == MHA_OK &&
                  mha_model_load(context, folder, NULL, &model) == MHA_OK &&
                  mha_live_create(context, model, &options, &site.live) == MHA_OK,
              "the model does not open");
}

/* A rejected client must not receive information for authorised clients. */
static void check_reply(const serve_request *request, const serve_reply *reply)
{
    static const int known[] = {200, 400, 403, 404, 405, 413, 415, 422, 500, 503};
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= reply->status == known[i];
    fuzz_must(found, "a status that is not promised");
    fuzz_must(reply->type != NULL && reply->body.size > 0, "a reply without a body");
    fuzz_must(!(reply->status != 200 && reply->quit), "a refusal ends the server");
    if (reply->status != 200) {
        fuzz_must(!strncmp(reply->body.data, "{\"error\":", 9), "an error without a text");
        return;
    }
    fuzz_must(!strncmp(request->path + 1, site.token, SERVE_TOKEN_BYTES),
              "let in without the token");
    fuzz_must(!request->twice, "let in with a header twice");
    fuzz_must(request->host && strstr(request->host, ":8000"), "let in under another host");
    fuzz_must(!request->origin || !strncmp(request->origin, "http://", 7), "let in from elsewhere");
}

static const char *choose(fuzz_part *choices, const char *own, char *given)
{
    const uint64_t way = fuzz_take(choices, 1) % 4;
    return way == 0 ? given : way == 1 ? NULL : own;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const places[] = {"",    "page.css", "page.js", "look",
                                         "map", "save",     "quit",    "trace"};
    static const char *const methods[] = {"POST", "GET", "PUT"};
    fuzz_part parts[5];
    char path[SERVE_TOKEN_BYTES + 64], *texts[3];
    if (!site.live) make_site();
    fuzz_cut(data, size, parts, 5);
    for (int i = 0; i < 3; i++) texts[i] = fuzz_string(parts[i + 2]);
    const uint64_t place = fuzz_take(&parts[0], 1) % 12;
    if (place < 8)
        snprintf(path, sizeof path, "/%s/%s", site.token, places[place]);
    else if (place < 10)
        snprintf(path, sizeof path, "/%s/look", site.token);
    else
        snprintf(path, sizeof path, place == 10 ? "/%.80s" : "/0123456789abcdef%.60s", texts[0]);
    serve_request request = {.method = methods[place >= 3 ? 0 : 1], .path = path};
    if (fuzz_take(&parts[0], 1) % 8 == 1) request.method = methods[fuzz_take(&parts[0], 1) % 3];
    const char *own = fuzz_take(&parts[0], 1) & 1 ? "localhost:8000" : "127.0.0.1:8000";
    request.host = choose(&parts[0], own, texts[1]);
    request.origin = fuzz_take(&parts[0], 1) & 1 ? texts[2] : NULL;
    request.type = fuzz_take(&parts[0], 1) % 8 == 1 ? texts[2] : "application/json; charset=utf-8";
    request.fetch_site = fuzz_take(&parts[0], 1) % 8 == 1 ? texts[2] : NULL;
    request.twice = fuzz_take(&parts[0], 1) % 16 == 1 ? "Host" : NULL;
    request.body = (const char *)parts[1].data;
    request.bytes = parts[1].size;
    serve_reply reply = {0};
    serve_answer(&site, &request, &reply);
    check_reply(&request, &reply);
    mha_buffer_free(&reply.body);
    for (int i = 0; i < 3; i++) free(texts[i]);
    return 0;
}
