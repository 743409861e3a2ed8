/* The socket: libmicrohttpd, in the program's own thread. */
#ifndef CLI_SERVE_SOCKET_H
#define CLI_SERVE_SOCKET_H

#include "serve/serve_http.h"

/* Listen at an address that is a number (NULL: 127.0.0.1) and a port (0: any free one), which site then
 * has; a new token too. Errors are printed. */
cli_exit serve_listen(const char *address, int port, serve_site *site);

/* Answer until a signal comes or a reader asks for the end; then the socket is closed. */
cli_exit serve_until_end(serve_site *site);

/* Whether the client whose request is being answered has closed its side. */
bool serve_reader_left(void);

/* Whether other machines can reach it. */
bool serve_is_open(const serve_site *site);

#endif
