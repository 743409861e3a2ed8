/* State of the conversion of metadata to config.json, shared by the gguf_*.c files. */
#ifndef MHAI_GGUF_READING_H
#define MHAI_GGUF_READING_H

#include "model/arch/family.h"

#include <multihead/gguf.h>

/* Traits of an architecture. */
enum {
    MHAI_GGUF_WINDOWS = 1,    /* a pattern says which layers have a window */
    MHAI_GGUF_SWITCH = 2,     /* rope.scaling.finetuned false: no positions */
    MHAI_GGUF_NETS = 4,       /* gated delta nets */
    MHAI_GGUF_REORDERED = 8,  /* converters reorder value heads that share a key head */
    MHAI_GGUF_SPACES = 16,    /* layers of Mamba-2 */
    MHAI_GGUF_KINDS = 32,     /* layers with a feed-forward length have nothing else */
    MHAI_GGUF_LATENT = 64,    /* latent attention */
    MHAI_GGUF_ENCODER = 128,  /* attention in both directions */
    MHAI_GGUF_TOWERS = 256,   /* an encoder in layers of its own, with or without a decoder */
    MHAI_GGUF_FIRST = 512,    /* of each period of windows, the first layer has none */
    MHAI_GGUF_PREDICTS = 1024 /* block_count includes layers that predict further tokens */
};

typedef struct mhai_gguf_reading {
    const mha_gguf *file;
    const char *path;
    const char *name; /* name of the architecture, which begins its keys */
    const struct architecture *of;
    uint32_t traits;
    json_t *root, *names; /* names: those of fields; owned by root */
} mhai_gguf_reading;

/* An integer field of root; 0 if absent. */
int64_t mhai_gguf_count(const mhai_gguf_reading *r, const char *field);

/* Find the value of "llama.KEY"; false if there is none. */
bool mhai_gguf_key(const mhai_gguf_reading *r, const char *key, mha_gguf_value *value);

mha_status mhai_gguf_refuse(const mhai_gguf_reading *r, const mha_gguf_value *value,
                            const char *why);

extern const char mhai_gguf_differs[]; /* why a value per layer is rejected */

/* The error of a missing key. */
mha_status mhai_gguf_missing(const mhai_gguf_reading *r, const char *key);

/* Check that an array has one element per layer. */
MHA_NODISCARD mha_status mhai_gguf_check_array(const mhai_gguf_reading *r,
                                               const mha_gguf_value *value);

/* Read a number, or an array of equal numbers. */
mha_status mhai_gguf_number(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                            json_t **number);

/* Copy a value into a field of object. Messages use the key's name. */
mha_status mhai_gguf_take(const mhai_gguf_reading *r, const mha_gguf_value *value, bool real,
                          json_t *object, const char *field);

/* How an architecture routes tokens to experts. NONE: it has no experts. SIGMOID: by sigmoids. The
 * others use a softmax and divide the chosen weights by their sum: SUM always, NORMALISED unless a
 * key disables it, PLAIN only if a key enables it. */
typedef enum mhai_gguf_routing {
    MHAI_GGUF_ROUTING_NONE = 0,
    MHAI_GGUF_ROUTING_SUM,
    MHAI_GGUF_ROUTING_NORMALISED,
    MHAI_GGUF_ROUTING_PLAIN,
    MHAI_GGUF_ROUTING_SIGMOID
} mhai_gguf_routing;

/* gguf_experts.c: the number of experts (1 if its key is invalid), and their settings. Call it
 * after the keys that correspond to a field are read. */
int64_t mhai_gguf_expert_count(const mhai_gguf_reading *r);
MHA_NODISCARD mha_status mhai_gguf_experts(const mhai_gguf_reading *r, mhai_gguf_routing routing);

/* gguf_mixers.c: change a list of layer types by their feed-forward lengths (MHAI_GGUF_KINDS); read
 * the settings of mixers other than attention. */
MHA_NODISCARD mha_status mhai_gguf_kinds(const mhai_gguf_reading *r, json_t *types);
MHA_NODISCARD mha_status mhai_gguf_mixers(const mhai_gguf_reading *r);

/* gguf_latent.c: the sizes of latent attention, and the groups of its experts. */
MHA_NODISCARD mha_status mhai_gguf_latent(const mhai_gguf_reading *r);

/* gguf_encoders.c: settings of encoders (MHAI_GGUF_ENCODER), and of two towers. */
MHA_NODISCARD mha_status mhai_gguf_encoder(const mhai_gguf_reading *r);
MHA_NODISCARD mha_status mhai_gguf_towers(const mhai_gguf_reading *r);

/* Whether the key for the scores of experts says sigmoid. */
bool mhai_gguf_sigmoid(const mhai_gguf_reading *r);

/* Read the rotation into root, which must already have heads and widths. */
mha_status mhai_gguf_rotation(const mhai_gguf_reading *r);

#endif
