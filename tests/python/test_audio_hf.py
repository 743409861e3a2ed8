"""Whisper from folders of transformers: wav files, log-mel features, encoder rows, logits, maps and greedy tokens,
compared with transformers in float64. The models are random; the sounds are computed here."""
import json
import re
import struct
import subprocess
import wave

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import multihead
from shared import PROGRAM, rounds_like
from test_towers_hf import VOCAB, write_tokenizer

RATE, ROWS = 16000, 25  # the models read half a second
SIZES = {"vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
         "decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 56, "max_source_positions": ROWS,
         "max_target_positions": 80, "num_mel_bins": 80, "decoder_start_token_id": 3, "pad_token_id": 2,
         "bos_token_id": 2, "eos_token_id": 2, "begin_suppress_tokens": [40, 41], "suppress_tokens": [7, 8, 9]}
KINDS = {"plain": {}, "wide": {"num_mel_bins": 128, "encoder_layers": 1, "decoder_layers": 1, "scale_embedding": True},
         "three heads": {"d_model": 36, "encoder_attention_heads": 3, "decoder_attention_heads": 2,
                         "encoder_layers": 4}}


def sound(count, seed=1):
    """A chord that grows, with noise."""
    rng, t = np.random.default_rng(seed), np.arange(count) / RATE
    chord = sum(np.sin(2 * np.pi * f * t) for f in (220, 330.5, 1250, 5100))
    return (0.1 * chord * t / t.max() + 0.02 * rng.standard_normal(count)).astype(np.float32)


def exact_mel(samples, bins, frames):
    """The features in float64, by NumPy's FFT."""
    x = np.zeros(frames * 160)
    x[:len(samples)] = samples
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    x = np.pad(x, 200, mode="reflect")
    parts = np.stack([x[160 * f:160 * f + 400] * window for f in range(frames)])
    power = np.abs(np.fft.rfft(parts)) ** 2
    filters = transformers.audio_utils.mel_filter_bank(201, bins, 0.0, 8000.0, RATE, "slaney", "slaney")
    logs = np.log10(np.maximum(1e-10, power @ filters)).T
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize("bins, count, frames", [(80, 479000, 3000), (128, 8000, 50), (80, 0, 2), (80, 321, 3)])
def test_features_are_those_of_transformers_in_double(bins, count, frames):
    samples = sound(count) if count else np.zeros(0, np.float32)
    ours, exact = multihead.log_mel(samples, bins=bins, frames=frames), exact_mel(samples, bins, frames)
    assert np.abs(ours - exact).max() < 1e-6
    if frames == 3000:
        theirs = WhisperFeatureExtractor(bins)(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
        assert rounds_like(ours, theirs, exact)


def save(path, samples, width):
    """A wav file, by Python's module or with floats."""
    if width:
        whole = np.round(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype("<i4")
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1), out.setsampwidth(width), out.setframerate(RATE)
            out.writeframes(b"".join(int(n).to_bytes(width, "little", signed=True) for n in whole))
        return whole / 2 ** (8 * width - 1)
    data = samples.astype("<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, 1, RATE, 4 * RATE, 4, 32)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + 8 + len(data)) + b"WAVEfmt " + struct.pack("<I", 16) + head +
                     b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"data" + struct.pack("<I", len(data)) + data)
    return samples


@pytest.mark.parametrize("width", [2, 3, 4, 0])
def test_wav_files(tmp_path, width):
    path, samples = tmp_path / "a.wav", sound(1000)
    wanted = save(path, samples, width)
    assert np.array_equal(multihead.read_audio(path), wanted.astype(np.float32))
    content = path.read_bytes()
    for cut in [*range(0, 60, 3), *range(60, len(content), 251)]:  # no prefix crashes; those with samples are shorter
        path.write_bytes(content[:cut])
        try:
            assert np.array_equal(multihead.read_audio(path), wanted.astype(np.float32)[:len(multihead.read_audio(path))])
        except multihead.Error as error:
            assert "a.wav" in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("at, form, value, error", [
    (0, "4s", b"RIFX", "is not a wav file (RIFF, WAVE); convert it: sox FILE -r 16000 -c 1 -b 16"),
    (8, "4s", b"AVI ", "is not a wav file"), (20, "<H", 2, "encoding 2 with 16 bits"),
    (22, "<H", 2, "has 2 channels, expected 1; convert it: sox FILE -r 16000 -c 1"),
    (22, "<H", 0, "has 0 channels"), (24, "<I", 44100, "has 44100 samples per second"),
    (34, "<H", 8, "with 8 bits"), (34, "<H", 0, "with 0 bits"),
    (16, "<I", 4, "'fmt ' has 4 bytes, expected at least 16"),
    (12, "4s", b"fmX ", "has no chunk 'fmt '"), (36, "4s", b"datX", "has no chunk 'data'"),
    (16, "<I", 2**32 - 1, "has no chunk 'data'")])
def test_wrong_wav_files(tmp_path, at, form, value, error):
    path = tmp_path / "a.wav"
    save(path, sound(500), 2)
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at, value)
    path.write_bytes(content)
    with pytest.raises(multihead.Error, match=re.escape(error)):
        multihead.read_audio(path)


def net_of(kind):
    torch.manual_seed(7)
    config = WhisperConfig(**{**SIZES, **KINDS[kind]})
    config._attn_implementation = "eager"
    net = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name else .8 / p[0].numel() ** .5)
            elif "norm" in name or "bias" in name:
                p += torch.randn_like(p) * .2
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        setattr(net.generation_config, name, SIZES[name])
    return net


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net, folder = net_of(request.param), tmp_path_factory.mktemp("whisper")
    net.save_pretrained(folder)
    write_tokenizer(folder)
    return net, multihead.Model(folder), folder


def run(net, features, target):
    kind = next(net.parameters()).dtype
    with torch.no_grad():
        out = net(input_features=torch.from_numpy(features)[None].to(kind), decoder_input_ids=target,
                  output_attentions=True, use_cache=False)
    return [out.encoder_last_hidden_state[0], out.logits[0], *([x[0] for x in part] for part in (
        out.encoder_attentions, out.decoder_attentions, out.cross_attentions))]


def test_rows_logits_and_maps_are_those_of_transformers_in_double(made):
    net, model, _ = made
    samples, target = sound(7000), torch.randint(0, VOCAB, (1, 70))
    features = multihead.log_mel(samples, bins=net.config.num_mel_bins, frames=2 * ROWS)
    rounded, exact = run(net, features, target), run(net.double(), features, target)
    net.float()
    written = target[0].tolist()
    assert model.reads_audio and model.encoder.reads_audio
    seen = model.attention(written, source=samples, outputs=("probabilities", "cross_probabilities"))
    ours = [model._encode(samples)[1][0], model.logits(written, source=samples),
            model.encoder.attention(samples).probabilities, seen.probabilities, seen.cross_probabilities]
    assert seen.source.texts[:3] == ["0.00", "0.02", "0.04"] and len(seen.source) == ROWS
    for mine, theirs, wanted in zip(ours[:2], rounded, exact):
        assert rounds_like(mine, theirs.numpy(), wanted.numpy())
    for layers in zip(ours[2:], rounded[2:], exact[2:]):
        assert len({len(maps) for maps in layers}) == 1
        for mine, theirs, wanted in zip(*layers):
            assert rounds_like(mine, theirs.numpy(), wanted.numpy())


def test_greedy_tokens_are_those_of_transformers(made, tmp_path):
    net, model, folder = made
    samples = sound(8000, 3)
    features = multihead.log_mel(samples, bins=net.config.num_mel_bins, frames=2 * ROWS)
    config = transformers.GenerationConfig(
        max_new_tokens=50, do_sample=False, eos_token_id=2, pad_token_id=2, suppress_tokens=SIZES["suppress_tokens"],
        begin_suppress_tokens=SIZES["begin_suppress_tokens"], decoder_start_token_id=3)
    theirs = transformers.GenerationMixin.generate(
        net, torch.from_numpy(features)[None], generation_config=config,
        decoder_input_ids=torch.tensor([[3]]))[0].tolist()
    assert model.start_tokens == [3] and len(theirs) > 10
    text = theirs[1:-1] if theirs[-1] == 2 else theirs[1:]
    wanted = model.detokenize(text)
    assert model.generate(source=samples, max_tokens=50) == wanted
    rows = model.logits(theirs[:-1], source=samples)
    rows[:, SIZES["suppress_tokens"]] = rows[0, SIZES["begin_suppress_tokens"]] = -np.inf
    assert rows.argmax(-1).tolist() == theirs[1:]
    save(tmp_path / "a.wav", samples, 0)
    done = subprocess.run([PROGRAM, "generate", folder, "--audio", tmp_path / "a.wav", "--max-tokens", "50"],
                          capture_output=True, text=True, check=False)
    assert done.stdout == wanted + "\n", done.stderr


def test_audio_is_required_and_refused(made, tmp_path):
    _, model, folder = made
    with pytest.raises(multihead.Error, match="8001 samples, expected at most 8000"):
        model.logits([1], source=sound(8001))
    with pytest.raises(multihead.Error, match=r"samples\[5\] is not finite"):
        multihead.log_mel([0] * 5 + [np.nan])
    with pytest.raises(ValueError, match="one channel"):
        multihead.log_mel(np.zeros((2, 9)))
    for samples in np.zeros(9, np.int16), b"a.wav":
        with pytest.raises(ValueError, match="source: .*, expected a path, or one channel of floats"):
            model.logits([1], source=samples)
    with pytest.raises(multihead.Unsupported, match="reads audio"):
        model.encoder.hidden_states([1, 2])
    for arguments, error in ((("view", folder, "a", "b"), "reads audio; use 'generate --audio', 'view --audio'"), (("heads", folder / "encoder", "a"), "reads audio"),
                             (("generate", folder, "a"), "give --audio FILE.wav"), (("serve", folder), "reads audio"),
                             (("generate", folder, "--audio", tmp_path / "no.wav"), "no.wav")):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode in (2, 3, 5) and error in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("fields, error", [
    ({"num_mel_bins": 81}, "encoder.conv1.weight' has shape"), ({"num_mel_bins": 300}, "'num_mel_bins' is 300"),
    ({"max_source_positions": 26}, "encoder.embed_positions.weight' has shape"),
    ({"max_source_positions": None}, "'max_source_positions' is missing"),
    ({"max_target_positions": 81}, "decoder.embed_positions.weight' has shape"),
    ({"activation_function": "relu"}, "activation_function 'relu' is not supported"),
    ({"num_key_value_heads": 2}, "'num_key_value_heads' is 2, "), ({"decoder_layers": 4}, "decoder.layers.3."), ({"decoder_attention_heads": 5}, "'decoder_attention_heads' is 5"),
    ({"begin_suppress_tokens": "x"}, "'begin_suppress_tokens' is neither")], ids=str)
def test_wrong_fields_are_named(tmp_path, fields, error):
    net_of("plain").save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(multihead.Error, match=re.escape(error)):
        multihead.Model(tmp_path)


@pytest.mark.parametrize("name", ["encoder.conv1.weight", "encoder.conv2.bias", "encoder.embed_positions.weight",
                                  "decoder.layers.0.encoder_attn.q_proj.bias"])
def test_missing_weights_are_named(tmp_path, name):
    net_of("plain").save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model." + name]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(multihead.Error, match=re.escape(f"{name}' is missing")):
        multihead.Model(tmp_path)
