/* Uses the installed companions: a missing model is an error, and a colour map has its name. */
#include <multihead/model.h>
#include <multihead/render.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    mha_context *context = NULL;
    mha_model *model = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (status) return 1;
    status = mha_model_load(context, "no-such-folder", NULL, &model);
    mha_context_destroy(context);
    printf("status %d, %s\n", status, mha_error_detail());
    return status != MHA_ERR_FILE || strcmp(mha_cmap_name(MHA_CMAP_BLUES), "blues") != 0;
}
