/* The routes of a run's tokens, taken layer by layer. */
#ifndef MHAI_ROUTES_H
#define MHAI_ROUTES_H

#include <multihead/json.h>
#include <multihead/maps.h>

/* Fill routes, without values, for `tokens` tokens; routes->layers is 0 if no layer has experts. */
MHA_NODISCARD mha_status mhai_routes_make(const mha_transformer_desc *d, int64_t tokens,
                                          mha_room *room, mha_routes *routes);

/* Copy those of a layer whose activations are kept, of the first sequence. */
MHA_NODISCARD mha_status mhai_routes_take(const mha_routes *routes, const mha_activations *kept,
                                          int64_t layer);

void mhai_routes_write_json(const mha_routes *routes, mha_json *json);

#endif
