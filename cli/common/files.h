/* Files that the program writes, and stdout.
 *
 * A file appears whole or not at all: while one is written, signals are held (signals.h).
 */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <multihead/json.h>
#include <multihead/render.h>

/* stdout as a sink. A closed pipe gives MHA_ERR_CALLBACK, the silent status. */
extern const mha_sink files_stdout;

/* What fills an output. */
typedef mha_status files_draw_fn(const void *user, const mha_sink *sink);

/* Of a mha_figure. */
files_draw_fn files_draw_svg, files_draw_png, files_draw_pdf;
files_draw_fn files_draw_npy; /* of a mha_tensor */

/* Begin the object that a subcommand writes with --json, one line for each member. Its first members are the
 * format, its version and the producer. */
void files_begin_json(mha_json *json, const char *format);

/* Let draw write to path, or to stdout if that is "-". */
mha_status files_draw(const char *path, files_draw_fn *draw, const void *user);

/* Likewise a file of a folder of ours, where links are replaced. */
mha_status files_draw_in(const char *folder, const char *name, files_draw_fn *draw,
                         const void *user);

/* Let draw write after what path has. The file may stay half-written: for folders that have no name
 * yet. */
mha_status files_append(const char *path, files_draw_fn *draw, const void *user);

/* tensor as .npy, "-" being stdout. */
mha_status files_write_npy(const char *path, const mha_tensor *tensor);

/* Whether a file can be written there, as far as can be told without writing. */
mha_status files_check_place(const char *path);

/* The same of a folder, which need not exist. */
mha_status files_check_folder(const char *path);

/* The path of a name in the program's own folder; false if it is not known or too long. */
bool files_beside_program(const char *name, char *path, size_t bytes);

/* True if two paths lead to the same file, which need not exist: "a" and "./a". "-" is no file. */
bool files_same(const char *a, const char *b);

#endif
