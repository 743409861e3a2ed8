/* Requests and replies, without a socket: access checks (token, host, origin), dispatch, and error
 * replies. The library (live.h) computes the answers.
 *
 *   GET  /TOKEN/            the page       GET  /TOKEN/page.css, page.js
 *   POST /TOKEN/look        maps of all heads and predictions        JSON in, JSON out
 *   POST /TOKEN/trace       the steps at a token and of a head        JSON in, JSON out
 *   POST /TOKEN/map         one map                                  JSON in, float32 out
 *   POST /TOKEN/save        a report                                 JSON in, HTML out
 *   POST /TOKEN/quit        end the server */
#ifndef CLI_SERVE_HTTP_H
#define CLI_SERVE_HTTP_H

#include "common/exits.h"

#include <multihead/live.h>

enum {
    SERVE_TOKEN_BYTES = 32,      /* hexadecimal digits of 128 random bits */
    SERVE_MOST_BODY = 1 << 20,   /* bytes: 4,096 tokens are about 20 KB of text */
    SERVE_ADDRESS_BYTES = 46 + 2 /* length of an IPv6 address in brackets */
};

/* The headers of a request; NULL: absent. */
typedef struct serve_request {
    const char *method, *path, *host, *origin, *type;
    const char *fetch_site; /* Sec-Fetch-Site */
    const char *length;     /* Content-Length */
    const char *twice;      /* the name of a header that occurs twice */
    const char *body;
    size_t bytes;
} serve_request;

typedef struct serve_reply {
    int status;
    const char *type; /* Content-Type */
    const char *file; /* NULL: displayed; else downloaded under that name */
    mha_buffer body;  /* freed by the caller */
    bool quit;
} serve_reply;

typedef struct serve_site {
    char token[SERVE_TOKEN_BYTES + 1];
    char address[SERVE_ADDRESS_BYTES]; /* as in a URL */
    int port;
    bool wildcard;  /* listening on all interfaces: accept any IP address as host */
    mha_live *live; /* the backend that answers */
} serve_site;

/* Check the headers of a request. Returns false and the reply if the request must be rejected.
 * Otherwise its body, of at most SERVE_MOST_BODY bytes, must be read. */
bool serve_admit(const serve_site *site, const serve_request *request, serve_reply *reply);

/* The reply to an accepted request, possibly an error. */
void serve_answer(const serve_site *site, const serve_request *request, serve_reply *reply);

/* The reply to a body that is too long. */
void serve_refuse_length(serve_reply *reply);

#endif
