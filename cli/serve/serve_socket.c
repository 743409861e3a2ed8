/* See serve_socket.h. Everything runs in one thread: requests are answered one after the other, and
 * connections wait while the model computes. The resources of clients are bounded:
 *
 *   connections   PLACES for strangers, which have not sent the token, and as many for readers,
 *                 which have sent it. When a group exceeds its limit, its connection with the
 *                 oldest last request is closed, so that strangers cannot displace readers.
 *   a stranger    one request, READ_SECONDS from the connection to the end of the answer
 *   a reader      READ_SECONDS for a whole request, even if bytes trickle in; WRITE_SECONDS to
 *                 receive a reply
 *   headers       HEADER_BYTES       a body   SERVE_MOST_BODY */
#define _GNU_SOURCE /* accept4, POLLRDHUP */
#include "serve/serve_socket.h"

#include "common/arena.h"
#include "common/signals.h"

#include <microhttpd.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PLACES = 32,
    MOST_CONNECTIONS = 4 * PLACES, /* including those that are being closed */
    HEADER_BYTES = 32768,
    READ_SECONDS = 20,
    WRITE_SECONDS = 120,
    TICK_MS = 250 /* between checks of the clock and of signals */
};

typedef enum standing { FREE, STRANGER, READER, LEAVING } standing;

typedef struct visitor {
    struct MHD_Connection *connection;
    int socket;
    standing standing;
    uint64_t order; /* global order of its last request, or of the connection */
    double until;   /* seconds; the deadline */
} visitor;

typedef struct server {
    serve_site *site;
    struct MHD_Daemon *daemon;
    struct sockaddr_storage address;
    int listener;
    bool open, ended;
    bool paused; /* accept no connections for one round: out of descriptors */
    uint64_t order;
    const visitor *answering; /* the client whose request is being computed */
    visitor visitors[MOST_CONNECTIONS];
} server;

static server the_server = {.listener = -1}; /* one per process, like the arena */

/* ---- clients --------------------------------------------------------------------------------- */

/* The client with this connection; NULL finds a free entry. */
static visitor *find_visitor(server *s, const struct MHD_Connection *connection)
{
    for (int i = 0; i < MOST_CONNECTIONS; i++)
        if (s->visitors[i].connection == connection) return &s->visitors[i];
    return NULL;
}

/* Close a connection: libmicrohttpd notices in its next round. */
static void disconnect(visitor *v)
{
    shutdown(v->socket, SHUT_RDWR);
    v->standing = LEAVING;
}

/* The client of a group with the oldest last request, if the group has more than `most` clients;
 * otherwise NULL. */
static visitor *oldest_visitor(server *s, standing group, int most)
{
    visitor *oldest = NULL;
    int count = 0;
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        visitor *v = &s->visitors[i];
        if (v->standing != group) continue;
        count++;
        if (!oldest || v->order < oldest->order) oldest = v;
    }
    return count > most ? oldest : NULL;
}

static void take_place(server *s, visitor *v, standing group)
{
    v->standing = group;
    v->order = ++s->order;
    visitor *first = oldest_visitor(s, group, PLACES);
    if (first) disconnect(first);
}

static void allow(visitor *v, double seconds)
{
    if (v && v->standing == READER) v->until = seconds_now() + seconds;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    server *s = user;
    visitor *v = find_visitor(s, code == MHD_CONNECTION_NOTIFY_STARTED ? NULL : connection);
    (void)socket_context;
    if (!v) return;
    *v = (visitor){0};
    if (code != MHD_CONNECTION_NOTIFY_STARTED) return;
    v->connection = connection;
    v->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    v->until = seconds_now() + READ_SECONDS;
    take_place(s, v, STRANGER);
}

static void look_at_clock(server *s)
{
    const double now = seconds_now();
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        visitor *v = &s->visitors[i];
        if ((v->standing == STRANGER || v->standing == READER) && now > v->until) disconnect(v);
    }
}

/* Extend the deadlines: no client was served while the model computed. */
static void extend_deadlines(server *s, double seconds)
{
    for (int i = 0; i < MOST_CONNECTIONS; i++) s->visitors[i].until += seconds;
}

bool serve_reader_left(void)
{
    struct pollfd answering = {.events = POLLRDHUP};
    if (!the_server.answering) return false;
    answering.fd = the_server.answering->socket;
    return poll(&answering, 1, 0) > 0;
}

/* ---- a request ------------------------------------------------------------------------------- */

typedef struct upload {
    char *body;
    size_t bytes;
    bool quit; /* the server ends when the reply has been sent */
    /* Whether the headers were rejected. The body is still read and dropped, because closing a
     * socket with unread bytes discards the reply. */
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

/* The response now owns the reply's bytes. */
static enum MHD_Result send_reply(server *s, struct MHD_Connection *connection, serve_reply *reply)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(reply->body.size, reply->body.data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        mha_buffer_free(&reply->body);
        return MHD_NO;
    }
    visitor *v = find_visitor(s, connection);
    add_headers(response, reply);
    if (!v || v->standing != READER)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    const enum MHD_Result result =
        MHD_queue_response(connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    allow(v, WRITE_SECONDS);
    return result;
}

/* Reject duplicate headers, which other software may resolve differently. */
static enum MHD_Result take_header(void *user, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    serve_request *r = user;
    const struct {
        const char *name, **value;
    } all[] = {{MHD_HTTP_HEADER_HOST, &r->host},
               {MHD_HTTP_HEADER_ORIGIN, &r->origin},
               {MHD_HTTP_HEADER_CONTENT_TYPE, &r->type},
               {MHD_HTTP_HEADER_CONTENT_LENGTH, &r->length},
               {"Sec-Fetch-Site", &r->fetch_site}};
    (void)kind;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcasecmp(name, all[i].name) != 0) continue;
        if (*all[i].value) r->twice = all[i].name;
        *all[i].value = value ? value : "";
    }
    return MHD_YES;
}

static serve_request read_head(struct MHD_Connection *connection, const char *path,
                               const char *method)
{
    serve_request request = {.method = method, .path = path};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, take_header, &request);
    return request;
}

static bool is_too_long(const serve_request *request)
{
    return request->length && strtoull(request->length, NULL, 10) > SERVE_MOST_BODY;
}

/* Do not unescape the path: valid paths need no escapes, and "page.js%00" is not page.js. */
static size_t leave_escaped(void *user, struct MHD_Connection *connection, char *text)
{
    (void)user, (void)connection;
    return strlen(text);
}

/* The headers are complete: reject the request, or read its body. */
static enum MHD_Result begin_request(server *s, struct MHD_Connection *connection,
                                     const serve_request *request, void **context)
{
    serve_reply reply;
    const bool admitted = serve_admit(s->site, request, &reply);
    visitor *v = find_visitor(s, connection);
    if (v && admitted) take_place(s, v, READER);
    if (is_too_long(request)) {
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

/* A body without a declared length closes the connection if it is too long. */
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
    s->answering = find_visitor(s, connection);
    serve_answer(s->site, &request, &reply);
    s->answering = NULL;
    extend_deadlines(s, seconds_now() - start);
    taken->quit = reply.quit;
    return send_reply(s, connection, &reply);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    server *s = user;
    upload *taken = *context;
    (void)code;
    allow(find_visitor(s, connection), READ_SECONDS);
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
        return cli_fail(CLI_UNSUPPORTED, "the system provides no random numbers: %s",
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

/* The scope of an address: this machine, all interfaces, or one. */
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

/* Names are rejected: they need a lookup, and may resolve to several addresses. */
static cli_exit read_address(const char *text, int port, server *s)
{
    char number[16];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    snprintf(number, sizeof number, "%d", port);
    if (strlen(text) >= SERVE_ADDRESS_BYTES - 2 || getaddrinfo(text, number, &hints, &found) != 0)
        return cli_fail(CLI_USAGE,
                        "--address %s: expected a numeric address, such as 127.0.0.1, or "
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
    if (s->daemon) MHD_stop_daemon(s->daemon);
    if (s->listener >= 0) close(s->listener);
    *s = (server){.listener = -1};
}

/* Listen with SO_REUSEADDR only, so that a port in use is an error. Sets the address's port. */
static bool listen_at(server *s)
{
    const int on = 1;
    const bool six = s->address.ss_family == AF_INET6;
    socklen_t size = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    struct sockaddr *address = (void *)&s->address;
    s->listener = socket(s->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listener >= FD_SETSIZE) errno = EMFILE;
    return s->listener >= 0 && s->listener < FD_SETSIZE &&
           setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
           (!six || setsockopt(s->listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0) &&
           bind(s->listener, address, size) == 0 && listen(s->listener, SOMAXCONN) == 0 &&
           getsockname(s->listener, address, &size) == 0;
}

cli_exit serve_listen(const char *address, int port, serve_site *site)
{
    server *s = &the_server;
    s->site = site;
    CLI_TRY(make_token(site->token));
    CLI_TRY(read_address(address ? address : "127.0.0.1", port, s));
    CLI_TRY(arena_keep(s, stop));
    s->daemon = MHD_start_daemon(
        MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, s, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
        MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL, MHD_OPTION_END);
    if (!s->daemon || !listen_at(s))
        return cli_fail(CLI_NO_OUTPUT, "cannot listen at %s port %d: %s; try another --port",
                        site->address, port, strerror(errno));
    site->port = ntohs(((const struct sockaddr_in *)(const void *)&s->address)->sin_port);
    return CLI_OK;
}

bool serve_is_open(const serve_site *site)
{
    return the_server.site == site && the_server.open;
}

/* Accept one connection per round, so that a reader whose request has arrived is served before many
 * strangers are accepted. */
static void take_connection(server *s)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    const int made =
        accept4(s->listener, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (made >= 0) {
        MHD_add_connection(s->daemon, made, (struct sockaddr *)&from, size);
        return;
    }
    s->paused = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    visitor *first = s->paused ? oldest_visitor(s, STRANGER, 0) : NULL;
    if (first) disconnect(first);
}

static cli_exit take_turn(server *s)
{
    fd_set reads, writes, errors;
    int most = s->listener;
    MHD_UNSIGNED_LONG_LONG ms = TICK_MS;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_ZERO(&errors);
    MHD_get_fdset(s->daemon, &reads, &writes, &errors, &most);
    if (!s->paused) FD_SET(s->listener, &reads);
    s->paused = false;
    if (MHD_get_timeout(s->daemon, &ms) != MHD_YES || ms > TICK_MS) ms = TICK_MS;
    struct timeval wait = {.tv_usec = (suseconds_t)ms * 1000};
    if (select(most + 1, &reads, &writes, &errors, &wait) < 0)
        return errno == EINTR
                   ? CLI_OK
                   : cli_fail(CLI_INTERNAL, "cannot wait for the socket: %s", strerror(errno));
    MHD_run_from_select(s->daemon, &reads, &writes, &errors);
    if (FD_ISSET(s->listener, &reads)) take_connection(s);
    look_at_clock(s);
    return CLI_OK;
}

cli_exit serve_until_end(serve_site *site)
{
    server *s = &the_server;
    cli_exit code = CLI_OK;
    (void)site;
    while (code == CLI_OK && !signals_came() && !s->ended) code = take_turn(s);
    arena_drop(s);
    return code;
}
