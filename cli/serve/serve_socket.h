/* The socket: libmicrohttpd, in the program's own thread. */
#ifndef CLI_SERVE_SOCKET_H
#define CLI_SERVE_SOCKET_H

#include "serve/serve_http.h"

/* Listen at a numeric address (NULL: 127.0.0.1) and a port (0: any free port). Both are stored in
 * site with a new token. Errors are printed. */
cli_exit serve_listen(const char *address, int port, serve_site *site);

/* Answer requests until a signal arrives or a client sends quit; then close the socket. */
cli_exit serve_until_end(serve_site *site);

/* Whether the client of the current request has disconnected. */
bool serve_reader_left(void);

/* Whether other machines can connect. */
bool serve_is_open(const serve_site *site);

#endif
