/* Files of tokens: one token per line, or a JSON list of texts if the name ends in .json. */
#ifndef CLI_TOKEN_FILES_H
#define CLI_TOKEN_FILES_H

#include "common/maps.h"

cli_exit token_files_read(const char *path, mha_tokens *tokens);

#endif
