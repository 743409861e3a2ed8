/* See serve_socket.h. Everything runs in one thread: requests are answered one after the other, and while
 * the model computes, connections wait. What clients can take is bounded:
 *
 *   connections   SOFT_LIMIT; one more ends the oldest that has not asked anything with the token
 *   headers       HEADER_BYTES       a body   SERVE_MOST_BODY
 *   time          READ_SECONDS for a whole request, also if a byte comes now and then; WRITE_SECONDS for
 *                 a client to take a reply
 */
#include "serve/serve_socket.h"

#include "common/arena.h"
#include "common/signals.h"

#include <microhttpd.h>

#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

enum {
    SOFT_LIMIT = 64,
    HARD_LIMIT = 8 * SOFT_LIMIT, /* with those that were sent away and are being closed */
    HEADER_BYTES = 32768,
    READ_SECONDS = 20,
    WRITE_SECONDS = 120,
    TICK_MS = 250 /* between two looks at the clock and at signals */
};

typedef struct visitor {
    struct MHD_Connection *connection; /* NULL: the place is free */
    int socket;
    double since; /* it came, was answered last, or its reply began */
    bool known;   /* it has shown the token */
    bool replying;
    bool leaving; /* it was sent away */
} visitor;

typedef struct server {
    serve_site *site;
    struct MHD_Daemon *daemon;
    struct sockaddr_storage address;
    bool open, ending, ended;
    visitor visitors[HARD_LIMIT];
} server;

static server the_server; /* one a process, as the arena */

/* ---- visitors -------------------------------------------------------------------------------- */

static visitor *find_visitor(server *s, const struct MHD_Connection *connection)
{
    for (int i = 0; i < HARD_LIMIT; i++)
        if (s->visitors[i].connection == connection) return &s->visitors[i];
    return NULL;
}

/* libmicrohttpd notices at its next turn, and takes the connection down. */
static void send_away(visitor *v)
{
    shutdown(v->socket, SHUT_RDWR);
    v->leaving = true;
}

/* The oldest stranger goes, or else the oldest of all that gets no reply now. */
static void make_place(server *s)
{
    visitor *oldest = NULL;
    int count = 0;
    for (int i = 0; i < HARD_LIMIT; i++) {
        visitor *v = &s->visitors[i];
        if (!v->connection || v->leaving) continue;
        count++;
        if (v->replying) continue;
        if (!oldest || v->known < oldest->known ||
            (v->known == oldest->known && v->since < oldest->since))
            oldest = v;
    }
    if (count >= SOFT_LIMIT && oldest) send_away(oldest);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    server *s = user;
    visitor *v = find_visitor(s, code == MHD_CONNECTION_NOTIFY_STARTED ? NULL : connection);
    (void)socket_context;
    if (!v) return;
    if (code != MHD_CONNECTION_NOTIFY_STARTED) {
        *v = (visitor){0};
        return;
    }
    make_place(s);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *v = (visitor){connection, info ? (int)info->connect_fd : -1, seconds_now(), false, false,
                   false};
}

static void look_at_clock(server *s)
{
    const double now = seconds_now();
    for (int i = 0; i < HARD_LIMIT; i++) {
        visitor *v = &s->visitors[i];
        if (v->connection && !v->leaving &&
            now - v->since > (v->replying ? WRITE_SECONDS : READ_SECONDS))
            send_away(v);
    }
}

/* While the model computed nobody could be read. */
static void forgive(server *s, double seconds)
{
    for (int i = 0; i < HARD_LIMIT; i++) s->visitors[i].since += seconds;
}

/* ---- a request ------------------------------------------------------------------------------- */

typedef struct upload {
    char *body;
    size_t bytes;
    bool quit; /* the server ends when the reply is out */
    /* It was refused by its head. The body is read all the same, and dropped: a socket that is closed
     * before its bytes are read takes the reply with it. */
    bool refused;
    serve_reply reply;
} upload;

static void add_headers(struct MHD_Response *response, const serve_reply *reply)
{
    static const char *const all[][2] = {
        {"Cache-Control", "no-store"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
         "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Referrer-Policy", "no-referrer"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
    };
    char name[80];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        MHD_add_response_header(response, all[i][0], all[i][1]);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply->type);
    if (!reply->file) return;
    snprintf(name, sizeof name, "attachment; filename=\"%.40s\"", reply->file);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_DISPOSITION, name);
}

/* The reply's bytes are the response's from here on. */
static enum MHD_Result send_reply(server *s, struct MHD_Connection *connection, serve_reply *reply)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(reply->body.size, reply->body.data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        mha_buffer_free(&reply->body);
        return MHD_NO;
    }
    add_headers(response, reply);
    const enum MHD_Result result =
        MHD_queue_response(connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    visitor *v = find_visitor(s, connection);
    if (v) v->replying = true, v->since = seconds_now();
    return result;
}

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static serve_request read_head(struct MHD_Connection *connection, const char *path,
                               const char *method)
{
    return (serve_request){.method = method,
                           .path = path,
                           .host = header_of(connection, MHD_HTTP_HEADER_HOST),
                           .origin = header_of(connection, MHD_HTTP_HEADER_ORIGIN),
                           .type = header_of(connection, MHD_HTTP_HEADER_CONTENT_TYPE),
                           .fetch_site = header_of(connection, "Sec-Fetch-Site")};
}

static bool is_too_long(struct MHD_Connection *connection)
{
    const char *length = header_of(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length && strtoull(length, NULL, 10) > SERVE_MOST_BODY;
}

/* The head is there: refuse it, or take what follows. */
static enum MHD_Result begin_request(server *s, struct MHD_Connection *connection,
                                     const serve_request *request, void **context)
{
    serve_reply reply;
    const bool admitted = serve_admit(s->site, request, &reply);
    visitor *v = find_visitor(s, connection);
    if (v && admitted) v->known = true;
    if (is_too_long(connection)) {
        if (admitted) serve_refuse_length(&reply);
        return send_reply(s, connection, &reply);
    }
    upload *taken = calloc(1, sizeof *taken);
    *context = taken;
    if (!taken) {
        mha_buffer_free(&reply.body);
        return MHD_NO;
    }
    taken->refused = !admitted;
    taken->reply = reply;
    return MHD_YES;
}

/* A body whose length no header told ends the connection where it is too long. */
static enum MHD_Result take_bytes(upload *taken, const char *bytes, size_t *count)
{
    if (*count > SERVE_MOST_BODY - taken->bytes) return MHD_NO;
    if (taken->refused) {
        taken->bytes += *count;
        *count = 0;
        return MHD_YES;
    }
    char *more = realloc(taken->body, taken->bytes + *count);
    if (!more) return MHD_NO;
    memcpy(more + taken->bytes, bytes, *count);
    taken->body = more;
    taken->bytes += *count;
    *count = 0;
    return MHD_YES;
}

static enum MHD_Result send_refusal(server *s, struct MHD_Connection *connection, upload *taken)
{
    serve_reply reply = taken->reply;
    taken->reply = (serve_reply){0};
    return send_reply(s, connection, &reply);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *bytes,
                                  size_t *count, void **context)
{
    server *s = user;
    upload *taken = *context;
    serve_request request = read_head(connection, path, method);
    (void)version;
    if (!taken) return begin_request(s, connection, &request, context);
    if (*count > 0) return take_bytes(taken, bytes, count);
    if (taken->refused) return send_refusal(s, connection, taken);
    serve_reply reply;
    const double start = seconds_now();
    request.body = taken->body;
    request.bytes = taken->bytes;
    serve_answer(s->site, &request, &reply);
    forgive(s, seconds_now() - start);
    taken->quit = reply.quit;
    if (reply.quit) s->ending = true;
    return send_reply(s, connection, &reply);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    server *s = user;
    upload *taken = *context;
    visitor *v = find_visitor(s, connection);
    (void)code;
    if (v) v->replying = false, v->since = seconds_now();
    if (!taken) return;
    if (taken->quit) s->ended = true;
    mha_buffer_free(&taken->reply.body);
    free(taken->body);
    free(taken);
    *context = NULL;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static cli_exit make_token(char token[SERVE_TOKEN_BYTES + 1])
{
    unsigned char bytes[SERVE_TOKEN_BYTES / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return cli_fail(CLI_UNSUPPORTED, SERVE, "the system gives no random numbers: %s",
                        strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return CLI_OK;
}

static bool is_zero(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    while (count > 0 && *at == 0) at++, count--;
    return count == 0;
}

/* What the address means: of this machine only, of all interfaces, or of one. */
static void classify(server *s)
{
    const struct sockaddr_in *four = (const void *)&s->address;
    const struct sockaddr_in6 *six = (const void *)&s->address;
    if (s->address.ss_family == AF_INET6) {
        s->open = !IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
        s->site->wildcard = is_zero(&six->sin6_addr, sizeof six->sin6_addr);
    } else {
        s->open = ntohl(four->sin_addr.s_addr) >> 24 != 127;
        s->site->wildcard = four->sin_addr.s_addr == 0;
    }
}

/* A name would be looked up, and may mean any number of addresses. */
static cli_exit read_address(const char *text, int port, server *s)
{
    char number[16];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    snprintf(number, sizeof number, "%d", port);
    if (strlen(text) >= SERVE_ADDRESS_BYTES - 2 || getaddrinfo(text, number, &hints, &found) != 0)
        return cli_fail(CLI_USAGE, SERVE,
                        "--address %s: expected an address as a number, such as 127.0.0.1, or "
                        "0.0.0.0 for all interfaces",
                        text);
    memcpy(&s->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    classify(s);
    const bool six = s->address.ss_family == AF_INET6;
    snprintf(s->site->address, sizeof s->site->address, six ? "[%s]" : "%s",
             s->site->wildcard ? (six ? "::1" : "127.0.0.1") : text);
    return CLI_OK;
}

static void stop(void *user)
{
    server *s = user;
    MHD_stop_daemon(s->daemon);
    *s = (server){0};
}

cli_exit serve_listen(const char *address, int port, serve_site *site)
{
    server *s = &the_server;
    *s = (server){.site = site};
    CLI_TRY(make_token(site->token));
    CLI_TRY(read_address(address ? address : "127.0.0.1", port, s));
    const unsigned flags = s->address.ss_family == AF_INET6 ? MHD_USE_IPv6 : MHD_NO_FLAG;
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)port, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR, &s->address,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HARD_LIMIT, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)WRITE_SECONDS,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1U, MHD_OPTION_END);
    if (!s->daemon)
        return cli_fail(CLI_NO_OUTPUT, SERVE, "cannot listen at %s port %d: %s; try another --port",
                        site->address, port, strerror(errno));
    CLI_TRY(arena_keep(SERVE, s, stop));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    site->port = info ? (int)info->port : port;
    return CLI_OK;
}

bool serve_is_open(const serve_site *site)
{
    return the_server.site == site && the_server.open;
}

cli_exit serve_until_end(serve_site *site)
{
    server *s = &the_server;
    (void)site;
    while (!signals_came() && !s->ended) {
        if (MHD_run_wait(s->daemon, TICK_MS) == MHD_NO && !signals_came())
            return cli_fail(CLI_INTERNAL, SERVE, "the socket cannot be waited for: %s",
                            strerror(errno));
        look_at_clock(s);
    }
    arena_drop(s);
    return CLI_OK;
}
