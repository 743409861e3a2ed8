"""A vision transformer whose heads have known purposes, and a picture for it: a red disc on a blue background."""
import numpy as np
import torch
import transformers

SIZE, PATCH, GRID = 128, 8, 16


def scene():
    """Pixels [128,128,3] and the mask [16,16] of patches that are mostly inside the disc."""
    y, x = np.mgrid[:SIZE, :SIZE]
    inside = (y - 52) ** 2 + (x - 76) ** 2 < 34 ** 2
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    pixels[...] = np.stack([40 + x // 8, 60 + y // 4, 170 + x // 4], -1)
    pixels[inside] = np.stack([230 - y // 8, 70 + x // 8, 40 + y // 8], -1)[inside]
    return pixels, inside.reshape(GRID, PATCH, GRID, PATCH).mean((1, 3)) > 0.5


def outliner(registers=0):
    """Head 0: CLS attends to red patches. Head 1: patches attend to patches of their colour. Head 2: to CLS (and
    registers). Head 3: to all tokens equally. A second layer equals the first."""
    fields = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=SIZE, patch_size=PATCH)
    if registers:
        config = transformers.Dinov2WithRegistersConfig(**fields, mlp_ratio=1, num_register_tokens=registers)
        model = transformers.Dinov2WithRegistersModel(config)
    else:
        model = transformers.ViTModel(transformers.ViTConfig(**fields, intermediate_size=32), add_pooling_layer=False)
    with torch.no_grad():
        for name, p in model.named_parameters():
            keeps = ("norm" in name or "lambda" in name) and not name.endswith("bias")
            p.fill_(1 if keeps else 0)
        state = model.state_dict()
        embeddings = {name: p for name, p in state.items() if name.startswith("embeddings.")}
        for channel, sign in (0, 1), (2, -1):  # redness in dimension 0, and its opposite in 1
            for out, turn in (0, 1), (1, -1):
                embeddings["embeddings.patch_embeddings.projection.weight"][out, channel] = 10 * sign * turn / PATCH ** 2
        embeddings["embeddings.cls_token"][..., 2:4] = torch.tensor([4.0, -4.0])
        if registers:
            embeddings["embeddings.register_tokens"][..., 2:4] = torch.tensor([4.0, -4.0])
        for name, p in state.items():
            if name.endswith(("q_proj.weight", "query.weight")):
                p[0, 2] = 4  # head 0: CLS asks
                p[8, 0] = 4  # head 1: redness asks
            if name.endswith(("q_proj.bias", "query.bias")):
                p[16] = 8  # head 2: all ask for CLS
            if name.endswith(("k_proj.weight", "key.weight")):
                p[0, 0] = 1
                p[8, 0] = 1
                p[16, 2] = 1
    return model.eval()
