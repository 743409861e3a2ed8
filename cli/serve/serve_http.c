/* See serve_http.h. */
#include "serve/serve_http.h"

#include "common/arena.h"
#include "common/json_out.h"

#include <multihead/render_live.h>

#include <stdio.h>
#include <string.h>

static const char HTML[] = "text/html; charset=utf-8", JSON[] = "application/json";

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuse(serve_reply *reply, int status, const char *why)
{
    mha_buffer_free(&reply->body);
    *reply = (serve_reply){.status = status, .type = JSON};
    const mha_sink sink = mha_buffer_sink(&reply->body);
    json_out json = {.sink = &sink};
    json_print(&json, "{\"error\":");
    json_text(&json, why);
    json_print(&json, "}\n");
}

void serve_refuse_length(serve_reply *reply)
{
    refuse(reply, 413, "the request is longer than 1 MiB; shorten the text");
}

/* ---- who asks -------------------------------------------------------------------------------- */

/* Whether two texts of the token's length are the same, in a time that does not tell where not. */
static bool same_token(const char *a, const char *b)
{
    unsigned difference = 0;
    for (int i = 0; i < SERVE_TOKEN_BYTES; i++)
        difference |= (unsigned)((unsigned char)a[i] ^ (unsigned char)b[i]);
    return difference == 0;
}

/* What follows "/TOKEN/", or NULL. */
static const char *after_token(const serve_site *site, const char *path)
{
    if (path[0] != '/' || strnlen(path, SERVE_TOKEN_BYTES + 2) < SERVE_TOKEN_BYTES + 2) return NULL;
    if (path[SERVE_TOKEN_BYTES + 1] != '/' || !same_token(path + 1, site->token)) return NULL;
    return path + SERVE_TOKEN_BYTES + 2;
}

/* An address as a number, which no name server can have been made to say: digits and dots, or
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

/* A page of another name that a name server made point here (DNS rebinding) sends that name. */
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

/* ---- what is asked --------------------------------------------------------------------------- */

enum { TO_PAGE, TO_STYLE, TO_SCRIPT, TO_LOOK, TO_MAP, TO_SAVE, TO_QUIT, TO_NOTHING };

static const struct {
    const char *name, *type;
    bool post;
} places[] = {
    [TO_PAGE] = {"", HTML, false},
    [TO_STYLE] = {"page.css", "text/css; charset=utf-8", false},
    [TO_SCRIPT] = {"page.js", "text/javascript; charset=utf-8", false},
    [TO_LOOK] = {"look", JSON, true},
    [TO_MAP] = {"map", "application/octet-stream", true},
    [TO_SAVE] = {"save", HTML, true},
    [TO_QUIT] = {"quit", JSON, true},
};

static int find_place(const char *name)
{
    int i = 0;
    while (i < TO_NOTHING && strcmp(places[i].name, name) != 0) i++;
    return i;
}

static bool is_json(const char *type)
{
    const size_t length = strlen(JSON);
    return type && !strncmp(type, JSON, length) && (type[length] == '\0' || type[length] == ';');
}

/* The order is that of what a stranger may learn: nothing before the token is right. */
bool serve_admit(const serve_site *site, const serve_request *request, serve_reply *reply)
{
    *reply = (serve_reply){0};
    const char *rest = after_token(site, request->path);
    if (request->twice)
        refuse(reply, 400, "a header that decides who is answered is there twice");
    else if (!request->host || !is_own_host(site, request->host))
        refuse(reply, 403, "this host name is not the server's");
    else if (request->origin && !is_own_origin(request->origin, request->host))
        refuse(reply, 403, "a page of another origin asks");
    else if (!rest)
        refuse(reply, 403,
               "the address has no or a wrong token; 'multihead serve' prints the right one");
    else if (find_place(rest) == TO_NOTHING)
        refuse(reply, 404, "there is nothing at this address");
    else if (strcmp(request->method, places[find_place(rest)].post ? "POST" : "GET") != 0)
        refuse(reply, 405, "wrong method");
    else if (places[find_place(rest)].post && request->fetch_site &&
             strcmp(request->fetch_site, "same-origin") != 0)
        refuse(reply, 403, "a page of another site asks");
    else if (places[find_place(rest)].post && !is_json(request->type))
        refuse(reply, 415, "expected Content-Type: application/json");
    else
        return true;
    return false;
}

/* ---- answers --------------------------------------------------------------------------------- */

static cli_exit write_file(mha_live_file file, const mha_sink *sink)
{
    return cli_check(SERVE, mha_render_live_file(file, sink));
}

static cli_exit work_at(const serve_site *site, int place, const serve_state *state,
                        const mha_sink *sink)
{
    const serve_work *work = site->work;
    switch (place) {
    case TO_PAGE: return work->page(site->user, sink);
    case TO_STYLE: return write_file(MHA_LIVE_STYLE, sink);
    case TO_SCRIPT: return write_file(MHA_LIVE_SCRIPT, sink);
    case TO_LOOK: return work->look(site->user, state, sink);
    case TO_MAP: return work->map(site->user, state, sink);
    case TO_SAVE: return work->save(site->user, state, sink);
    default: return cli_check(SERVE, sink->write(sink->user, "{}\n", 3));
    }
}

/* What a failure is to a browser: the request's fault, or ours. */
static int status_of(cli_exit code)
{
    if (code == CLI_BAD_INPUT || code == CLI_USAGE || code == CLI_UNSUPPORTED) return 422;
    return code == CLI_NO_OUTPUT ? 503 : 500;
}

void serve_answer(const serve_site *site, const serve_request *request, serve_reply *reply)
{
    char why[400];
    serve_state state = {0};
    if (!serve_admit(site, request, reply)) return;
    if (request->bytes > SERVE_MOST_BODY) {
        serve_refuse_length(reply);
        return;
    }
    const int place = find_place(after_token(site, request->path));
    const size_t mark = arena_mark();
    const mha_sink sink = mha_buffer_sink(&reply->body);
    cli_fail_into(why, sizeof why);
    cli_exit code = CLI_OK;
    if (places[place].post && place != TO_QUIT)
        code = serve_read_state(request->body, request->bytes, &state);
    if (code == CLI_OK) code = work_at(site, place, &state, &sink);
    cli_fail_into(NULL, 0);
    arena_release(mark);
    if (code != CLI_OK) {
        refuse(reply, status_of(code), *why ? why : "the work was interrupted");
        return;
    }
    reply->status = 200;
    reply->type = places[place].type;
    reply->file = place == TO_SAVE ? "heads.html" : NULL;
    reply->quit = place == TO_QUIT;
}
