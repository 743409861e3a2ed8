/* See serve_http.h. */
#include "serve/serve_http.h"

#include <stdio.h>
#include <string.h>

#include <multihead/json.h>

static const char JSON[] = "application/json";

/* ---- errors ---------------------------------------------------------------------------------- */

static void refuse(serve_reply *reply, int status, const char *why)
{
    mha_buffer_free(&reply->body);
    *reply = (serve_reply){.status = status, .type = JSON};
    const mha_sink sink = mha_buffer_sink(&reply->body);
    mha_json json = {.sink = &sink, .compact = true};
    mha_json_object(&json, NULL);
    mha_json_text(&json, "error", why);
    mha_json_end(&json);
}

void serve_refuse_length(serve_reply *reply)
{
    refuse(reply, 413, "the request is longer than 1 MiB; shorten the text");
}

/* ---- authentication -------------------------------------------------------------------------- */

/* Compare two texts of the token's length in constant time. */
static bool same_token(const char *a, const char *b)
{
    unsigned difference = 0;
    for (int i = 0; i < SERVE_TOKEN_BYTES; i++)
        difference |= (unsigned)((unsigned char)a[i] ^ (unsigned char)b[i]);
    return difference == 0;
}

/* The part after "/TOKEN/", or NULL. */
static const char *after_token(const serve_site *site, const char *path)
{
    if (path[0] != '/' || strnlen(path, SERVE_TOKEN_BYTES + 2) < SERVE_TOKEN_BYTES + 2) return NULL;
    if (path[SERVE_TOKEN_BYTES + 1] != '/' || !same_token(path + 1, site->token)) return NULL;
    return path + SERVE_TOKEN_BYTES + 2;
}

/* Whether a host is an IP address, which DNS rebinding cannot forge: digits and dots, or
 * hexadecimal digits and colons in brackets. */
static bool is_number(const char *host, size_t length)
{
    const bool six = length > 2 && host[0] == '[' && host[length - 1] == ']';
    const char *digits = six ? "0123456789abcdefABCDEF:." : "0123456789.";
    size_t at = six ? 1 : 0;
    const size_t end = six ? length - 1 : length;
    while (at < end && strchr(digits, host[at])) at++;
    return length > 0 && at == end;
}

/* With DNS rebinding, a page of another host name connects here and sends that name. */
static bool is_own_host(const serve_site *site, const char *host)
{
    char port[16];
    const int digits = snprintf(port, sizeof port, ":%d", site->port);
    const size_t length = strlen(host);
    if (length <= (size_t)digits || strcmp(host + length - digits, port) != 0) return false;
    const size_t name = length - (size_t)digits;
    const char *const own[] = {site->address, "localhost", "127.0.0.1"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == name && !strncmp(own[i], host, name)) return true;
    return site->wildcard && is_number(host, name);
}

static bool is_own_origin(const char *origin, const char *host)
{
    return !strncmp(origin, "http://", 7) && !strcmp(origin + 7, host);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* The library answers the other requests. The server handles the request to quit. */
static const mha_live_place quit = {"quit", JSON, NULL, true};

static const mha_live_place *find_place(const char *name)
{
    if (!strcmp(name, quit.name)) return &quit;
    return !strcmp(name, "page") ? NULL : mha_live_find(*name ? name : "page");
}

static bool is_json(const char *type)
{
    const size_t length = strlen(JSON);
    return type && !strncmp(type, JSON, length) && (type[length] == '\0' || type[length] == ';');
}

/* The token is checked before the place, so that a client without the token cannot learn which
 * places exist. */
bool serve_admit(const serve_site *site, const serve_request *request, serve_reply *reply)
{
    *reply = (serve_reply){0};
    const char *rest = after_token(site, request->path);
    const mha_live_place *place = rest ? find_place(rest) : NULL;
    if (request->twice)
        refuse(reply, 400, "a header that controls access occurs twice");
    else if (!request->host || !is_own_host(site, request->host))
        refuse(reply, 403, "this host name is not the server's");
    else if (request->origin && !is_own_origin(request->origin, request->host))
        refuse(reply, 403, "the request is from a page of another origin");
    else if (!rest)
        refuse(reply, 403,
               "the address has no token or a wrong one; 'multihead serve' prints the right one");
    else if (!place)
        refuse(reply, 404, "there is nothing at this address");
    else if (strcmp(request->method, place->asks ? "POST" : "GET") != 0)
        refuse(reply, 405, "wrong method");
    else if (place->asks && request->fetch_site && strcmp(request->fetch_site, "same-origin") != 0)
        refuse(reply, 403, "the request is from a page of another site");
    else if (place->asks && !is_json(request->type))
        refuse(reply, 415, "expected Content-Type: application/json");
    else
        return true;
    return false;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The HTTP status of a failure: of the request, or of the server. */
static int status_of(mha_status status)
{
    switch (status) {
    case MHA_ERR_CALLBACK: return 503;
    case MHA_ERR_FORMAT:
    case MHA_ERR_UTF8:
    case MHA_ERR_SIZE:
    case MHA_ERR_MODEL:
    case MHA_ERR_SHAPE:
    case MHA_ERR_NUMERIC:
    case MHA_ERR_ARGUMENT:
    case MHA_ERR_UNSUPPORTED: return 422;
    default: return 500;
    }
}

void serve_answer(const serve_site *site, const serve_request *request, serve_reply *reply)
{
    if (!serve_admit(site, request, reply)) return;
    if (request->bytes > SERVE_MOST_BODY) {
        serve_refuse_length(reply);
        return;
    }
    const mha_live_place *place = find_place(after_token(site, request->path));
    const mha_sink sink = mha_buffer_sink(&reply->body);
    const mha_status status =
        place == &quit ? sink.write(sink.user, "{}\n", 3)
                       : mha_live_answer(site->live, place, request->body, request->bytes, &sink);
    if (status != MHA_OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", mha_error_detail());
        refuse(reply, status_of(status), why);
        return;
    }
    reply->status = 200;
    reply->type = place->type;
    reply->file = place->file;
    reply->quit = place == &quit;
}
