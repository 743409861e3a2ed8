/* See likes.h. The one list of models. */
#include "common/likes.h"
#include "common/args.h"

#include <stddef.h>
#include <string.h>

#define VASWANI "Vaswani et al. 2017, Attention Is All You Need, table 3"
#define DEVLIN "Devlin et al. 2019, BERT, section 3"
#define RADFORD "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, table 2"
#define BROWN "Brown et al. 2020, Language Models are Few-Shot Learners, table 2.1"
#define RAFFEL "Raffel et al. 2020, Exploring the Limits of Transfer Learning (T5), section 3.7"
#define TOUVRON "Touvron et al. 2023, LLaMA, table 2"
#define TOUVRON2 "Touvron et al. 2023, Llama 2, table 1 and its released config.json"
#define LLAMA3 "Grattafiori et al. 2024, The Llama 3 Herd of Models, table 3"
#define JIANG "Jiang et al. 2023, Mistral 7B, table 1"
#define PALM "Chowdhery et al. 2022, PaLM, table 1 and section 2"
#define GEMMA "Gemma Team 2024, Gemma, tables 1 and 2"
#define FALCON "Almazrouei et al. 2023, The Falcon Series of Open Language Models; its config.json"
#define QWEN2 "Yang et al. 2024, Qwen2 Technical Report, table 1 and section 2.2.1"
#define VIT "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, table 1"

static const char gpt2_note[] = "heads from the released hparams.json; parameters are those of the "
                                "released weights, the paper says 117M, 345M, 762M, 1542M";
static const char both_note[] =
    "encoder and decoder: a decoder layer has two attentions, one over the encoder's tokens; "
    "counted here as if all were alike";
static const char encoder_note[] =
    "an encoder: every token sees every other, and no keys and values are kept";

/* name, modules, cached, E, H, Hk, D, N, window, causal, qkv bias, out bias, published, source */
static const like_model models[] = {
    {"transformer-base", 18, 12, 512, 8, 8, 64, 512, 0, false, false, false, 65e6, VASWANI,
     both_note},
    {"transformer-big", 18, 12, 1024, 16, 16, 64, 512, 0, false, false, false, 213e6, VASWANI,
     both_note},
    {"bert-base", 12, 0, 768, 12, 12, 64, 512, 0, false, true, true, 110e6, DEVLIN, encoder_note},
    {"bert-large", 24, 0, 1024, 16, 16, 64, 512, 0, false, true, true, 340e6, DEVLIN, encoder_note},
    {"gpt2", 12, 12, 768, 12, 12, 64, 1024, 0, true, true, true, 124439808, RADFORD, gpt2_note},
    {"gpt2-medium", 24, 24, 1024, 16, 16, 64, 1024, 0, true, true, true, 354823168, RADFORD,
     gpt2_note},
    {"gpt2-large", 36, 36, 1280, 20, 20, 64, 1024, 0, true, true, true, 774030080, RADFORD,
     gpt2_note},
    {"gpt2-xl", 48, 48, 1600, 25, 25, 64, 1024, 0, true, true, true, 1557611200, RADFORD,
     gpt2_note},
    {"t5-small", 18, 12, 512, 8, 8, 64, 512, 0, false, false, false, 60e6, RAFFEL, both_note},
    {"t5-base", 36, 24, 768, 12, 12, 64, 512, 0, false, false, false, 220e6, RAFFEL, both_note},
    {"t5-large", 72, 48, 1024, 16, 16, 64, 512, 0, false, false, false, 770e6, RAFFEL, both_note},
    {"t5-3b", 72, 48, 1024, 32, 32, 128, 512, 0, false, false, false, 2.8e9, RAFFEL, both_note},
    {"t5-11b", 72, 48, 1024, 128, 128, 128, 512, 0, false, false, false, 11e9, RAFFEL, both_note},
    {"gpt3", 96, 96, 12288, 96, 96, 128, 2048, 0, true, true, true, 175e9, BROWN,
     "counted dense; the paper alternates dense and locally banded layers"},
    {"vit-base", 12, 0, 768, 12, 12, 64, 197, 0, false, true, true, 86e6, VIT, encoder_note},
    {"vit-large", 24, 0, 1024, 16, 16, 64, 197, 0, false, true, true, 307e6, VIT, encoder_note},
    {"palm-540b", 118, 118, 18432, 48, 1, 256, 2048, 0, true, false, false, 540.35e9, PALM,
     "multi-query attention; H D is not E"},
    {"llama-7b", 32, 32, 4096, 32, 32, 128, 2048, 0, true, false, false, 6.7e9, TOUVRON, NULL},
    {"llama-13b", 40, 40, 5120, 40, 40, 128, 2048, 0, true, false, false, 13.0e9, TOUVRON, NULL},
    {"llama-65b", 80, 80, 8192, 64, 64, 128, 2048, 0, true, false, false, 65.2e9, TOUVRON, NULL},
    {"llama-2-7b", 32, 32, 4096, 32, 32, 128, 4096, 0, true, false, false, 7e9, TOUVRON2, NULL},
    {"llama-2-13b", 40, 40, 5120, 40, 40, 128, 4096, 0, true, false, false, 13e9, TOUVRON2, NULL},
    {"llama-2-70b", 80, 80, 8192, 64, 8, 128, 4096, 0, true, false, false, 70e9, TOUVRON2, NULL},
    {"llama-3-8b", 32, 32, 4096, 32, 8, 128, 8192, 0, true, false, false, 8e9, LLAMA3, NULL},
    {"llama-3-70b", 80, 80, 8192, 64, 8, 128, 8192, 0, true, false, false, 70e9, LLAMA3, NULL},
    {"llama-3-405b", 126, 126, 16384, 128, 8, 128, 8192, 0, true, false, false, 405e9, LLAMA3,
     NULL},
    {"mistral-7b", 32, 32, 4096, 32, 8, 128, 8192, 4096, true, false, false, 7.3e9, JIANG, NULL},
    {"falcon-7b", 32, 32, 4544, 71, 1, 64, 2048, 0, true, false, false, 7e9, FALCON,
     "multi-query attention"},
    {"gemma-2b", 18, 18, 2048, 8, 1, 256, 8192, 0, true, false, false, 2506434560, GEMMA,
     "multi-query attention"},
    {"gemma-7b", 28, 28, 3072, 16, 16, 256, 8192, 0, true, false, false, 8538074112, GEMMA,
     "H D is not E"},
    {"qwen2-7b", 28, 28, 3584, 28, 4, 128, 32768, 0, true, true, false, 7e9, QWEN2, NULL},
};

enum { MODELS = sizeof models / sizeof *models };

const like_model *likes_at(int i)
{
    return i >= 0 && i < MODELS ? &models[i] : NULL;
}

const like_model *likes_find(const char *name)
{
    for (int i = 0; i < MODELS; i++)
        if (!strcmp(models[i].name, name)) return &models[i];
    return NULL;
}

const char *likes_nearest(const char *name)
{
    const char *names[MODELS];
    for (int i = 0; i < MODELS; i++) names[i] = models[i].name;
    return mha_nearest_name(name, names, MODELS);
}
