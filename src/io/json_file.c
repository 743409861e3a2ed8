/* See json_file.h. */
#include "io/json_file.h"

#include "io/file.h"

#include <multihead/component.h>

static mha_status parse(const char *path, const char *text, size_t size, size_t flags,
                        json_t **root)
{
    json_error_t error;
    json_t *made = json_loadb(text, size, JSON_REJECT_DUPLICATES | flags, &error);
    /* Without a text: memory that jansson did not get somewhere. */
    if (!made && (json_error_code(&error) == json_error_out_of_memory || !error.text[0]))
        return mha_fail(MHA_ERR_NOMEM, "%s: out of memory while parsing JSON",
                        mhai_show_path(path).text);
    if (!made)
        return mha_fail(MHA_ERR_FORMAT, "%s: malformed JSON at byte %d: %s",
                        mhai_show_path(path).text, error.position, mhai_show_name(error.text).text);
    *root = made;
    return MHA_OK;
}

mha_status mhai_json_parse(const char *path, const char *text, size_t size, json_t **root)
{
    return parse(path, text, size, 0, root);
}

static mha_status read_file(const char *path, size_t limit, size_t flags, json_t **root)
{
    char *text = NULL;
    size_t size = 0;
    MHA_TRY(mha_file_read(path, limit, &text, &size));
    mha_status status = parse(path, text, size, flags, root);
    mha_file_free(text);
    return status;
}

mha_status mhai_json_read(const char *path, size_t limit, json_t **root)
{
    return read_file(path, limit, 0, root);
}

mha_status mhai_json_read_reals(const char *path, size_t limit, json_t **root)
{
    return read_file(path, limit, JSON_DECODE_INT_AS_REAL, root);
}
