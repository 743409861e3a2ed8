/* Requests in, replies out, without a socket: who may ask (token, host, origin), for what, and the
 * errors that a browser is told. What is answered is the library's (live.h).
 *
 *   GET  /TOKEN/            the page       GET  /TOKEN/page.css, page.js
 *   POST /TOKEN/look        maps of all heads and predictions        JSON in, JSON out
 *   POST /TOKEN/trace       the steps at a token and of a head        JSON in, JSON out
 *   POST /TOKEN/map         one map                                  JSON in, float32 out
 *   POST /TOKEN/save        a report                                 JSON in, HTML out
 *   POST /TOKEN/quit        the server ends
 */
#ifndef CLI_SERVE_HTTP_H
#define CLI_SERVE_HTTP_H

#include "common/exits.h"

#include <multihead/live.h>

#define SERVE "serve" /* the name in messages */

enum {
    SERVE_TOKEN_BYTES = 32,      /* hexadecimal digits of 128 random bits */
    SERVE_MOST_BODY = 1 << 20,   /* bytes: 4,096 tokens are some 20 KB of text */
    SERVE_ADDRESS_BYTES = 46 + 2 /* of an IPv6 address in brackets */
};

/* What a browser asks; NULL: no such header. */
typedef struct serve_request {
    const char *method, *path, *host, *origin, *type;
    const char *fetch_site; /* Sec-Fetch-Site */
    const char *length;     /* Content-Length */
    const char *twice;      /* the name of one of these headers that is there again */
    const char *body;
    size_t bytes;
} serve_request;

typedef struct serve_reply {
    int status;
    const char *type; /* Content-Type */
    const char *file; /* NULL: shown; else saved under that name */
    mha_buffer body;  /* the caller frees it */
    bool quit;
} serve_reply;

typedef struct serve_site {
    char token[SERVE_TOKEN_BYTES + 1];
    char address[SERVE_ADDRESS_BYTES]; /* as in a URL */
    int port;
    bool wildcard;  /* of all interfaces: any address as a number is its own */
    mha_live *live; /* what answers */
} serve_site;

/* False, and the reply, where the head of a request is enough to refuse it; true: read its body, of
 * SERVE_MOST_BODY bytes at most. */
bool serve_admit(const serve_site *site, const serve_request *request, serve_reply *reply);

/* The reply to a request that was admitted, or a refusal. */
void serve_answer(const serve_site *site, const serve_request *request, serve_reply *reply);

/* The reply to a body that is too long. */
void serve_refuse_length(serve_reply *reply);

#endif
