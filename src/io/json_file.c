/* See json_file.h. */
#include "io/json_file.h"

#include "io/file.h"

#include <multihead/component.h>

mha_status mhai_json_parse(const char *path, const char *text, size_t size, json_t **root)
{
    json_error_t error;
    json_t *made = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!made && json_error_code(&error) == json_error_out_of_memory)
        return mha_fail(MHA_ERR_NOMEM, "%s: out of memory while parsing JSON",
                        mhai_show_path(path).text);
    if (!made)
        return mha_fail(MHA_ERR_FORMAT, "%s: malformed JSON at byte %d: %s",
                        mhai_show_path(path).text, error.position, mhai_show_name(error.text).text);
    *root = made;
    return MHA_OK;
}

mha_status mhai_json_read(const char *path, size_t limit, json_t **root)
{
    char *text = NULL;
    size_t size = 0;
    MHA_TRY(mha_file_read(path, limit, &text, &size));
    mha_status status = mhai_json_parse(path, text, size, root);
    mha_file_free(text);
    return status;
}
