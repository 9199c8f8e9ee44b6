"""Further rows of sounds and of series of numbers, as families.py has them."""
from architectures import GAINS, Q_K_V_O, Q_K_V_OUT, RMS, ROPE, TINY, TINY_GQA, TINY_SPEECH, WINDOW, Row

LAYER = "layers.0.self_attn"
TURNED = "rope=half rope_theta={rope_theta}"
PARTLY = TURNED + " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}"
FRAMES = dict(max_source_positions=11, num_mel_bins=8)
CONVOLUTIONS = dict(conv_dim=[16], conv_kernel=[10], conv_stride=[5], num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=4)


def encoder(name, kind, keys="", since=5, at=LAYER, matrices=Q_K_V_OUT, weights={}, **config):
    return Row(name, kind, at, matrices, keys, {**FRAMES, **config}, weights, since=since)


WIDE_WINDOW = dict(sliding_windows=[[64, 63]])
ROWS = [
    encoder("Qwen 2 Audio", "qwen2_audio_encoder", "kv_len=true", 4, d_model=64, encoder_layers=1,
            encoder_attention_heads=4, encoder_ffn_dim=32),
    encoder("Voxtral", "voxtral_encoder", since=4),
    encoder("Audio Flamingo 3", "audioflamingo3_encoder", "kv_len=true"),
    encoder("MOSS Transcribe", "moss_transcribe_diarize_audio"),
    encoder("OmniASR", "omniasr_audio", "kv_len=true", at="layers.0.attention", **CONVOLUTIONS),
    encoder("GLM ASR", "glmasr_encoder", PARTLY, matrices=Q_K_V_O),
    encoder("LASR", "lasr_encoder", f"{TURNED} kv_len=true", matrices=Q_K_V_O, attention_bias=True),
    encoder("Nemotron 3 diarization", "nemotron3_diarization_audio", f"{PARTLY} kv_len=true", matrices=Q_K_V_O),
    encoder("Perception Encoder, audio", "pe_audio_encoder", f"{TURNED} {RMS} kv_len=true".replace(
        "half", "interleaved"), matrices=Q_K_V_O, weights=GAINS, head_dim=16, num_key_value_heads=2,
            dac_config=dict(model_type="dac", encoder_hidden_size=4)),
    encoder("Moonshine, streaming", "moonshine_streaming_encoder", "window_left=63 window_right=62 kv_len=true",
            matrices=Q_K_V_O, num_key_value_heads=2, **WIDE_WINDOW),
    *[Row(f"Mimi, {part}", "mimi", f"{part}_transformer.{LAYER}", Q_K_V_O, f"{ROPE} {WINDOW}", dict(
        TINY_GQA, sliding_window=3, upsample_groups=64)) for part in ("encoder", "decoder")],
    Row("Pocket TTS", "pocket_tts", LAYER, Q_K_V_O, ROPE, dict(flow_head_config=dict(condition_dim=64)), since=5),
    Row("CSM, depth", "csm_depth_decoder_model", LAYER, Q_K_V_O, ROPE, dict(TINY_GQA, backbone_hidden_size=64),
        since=5),
    Row("Dia, encoder", "dia_encoder", "layers.0.self_attention", Q_K_V_O, f"{TURNED} scale=1 kv_len=true",
        TINY_GQA, since=5),
    *[Row(f"MusicGen, {part}", "musicgen_decoder", f"layers.0.{at}", Q_K_V_OUT, keys, {}, since=5)
      for part, at, keys in [("words", "self_attn", "causal=true"),
                             ("text", "encoder_attn", "attention=cross kv_len=true")]],
    Row("MusicGen, melodies", "musicgen_melody_decoder", LAYER, Q_K_V_OUT, "causal=true", {}, since=5),
    Row("PatchTST", "patchtst", "encoder." + LAYER, Q_K_V_OUT, "d_model={d_model}",
        dict(d_model=64, context_length=24, patch_length=4, patch_stride=4, num_input_channels=2)),
    *[Row(f"{name}, {part}", kind, f"{at.split()[0]}.layers.0.{at.split()[1]}", Q_K_V_OUT, keys, dict(
        TINY_SPEECH, prediction_length=4, context_length=6, num_time_features=1, lags_sequence=[1, 2], **more))
      for name, kind, more in [("Time series", "time_series_transformer", {}),
                               ("Informer, whole", "informer", dict(attention_type="full", distil=False))]
      for part, at, keys in [("encoder", "encoder self_attn", ""), ("decoder", "decoder self_attn", "causal=true"),
                             ("decoder to encoder", "decoder encoder_attn", "attention=cross")]],
]
TEXT = {**TINY, **TINY_GQA, "num_hidden_layers": 2}
SOUND = dict(TINY, **FRAMES)
SMALL = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)
CODES = dict(text_encoder=dict(model_type="t5", d_model=64, d_kv=16, num_heads=4, num_layers=1, d_ff=32, vocab_size=50),
             audio_encoder=dict(model_type="encodec", hidden_size=16, num_filters=4, upsampling_ratios=[2, 2]))
ROWS += [Row(f"{name}, text", kind, "layers.1.self_attn", Q_K_V_O, keys, dict(
    text_config=dict(TEXT, model_type=text), audio_config={**SOUND, **more}), weights, since=since)
    for name, kind, text, keys, weights, since, more in [
        ("Qwen 2 Audio", "qwen2_audio", "qwen2", ROPE, {}, 4, dict(
            d_model=64, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=32)),
        ("Voxtral", "voxtral", "llama", ROPE, {}, 4, {}),
        ("Audio Flamingo 3", "audioflamingo3", "qwen2", ROPE, {}, 5, {}),
        ("MOSS Transcribe", "moss_transcribe_diarize", "qwen3", f"{ROPE} {RMS}", GAINS, 5, {}),
        ("OmniASR", "omniasr", "llama", ROPE, {}, 5, CONVOLUTIONS),
        ("GLM ASR", "glmasr", "llama", ROPE, {}, 5, {})]]
ROWS += [
    *[Row(f"Dia, {part}", "dia", at, Q_K_V_O, keys, dict(encoder_config={**SMALL, **TINY_GQA}, decoder_config={
        **SMALL, **TINY_GQA, "num_channels": 2, "cross_num_attention_heads": 2, "cross_num_key_value_heads": 2,
        "cross_head_dim": 16, "cross_hidden_size": 64, "vocab_size": 50}, delay_pattern=[0, 1]), since=5)
      for part, at, keys in [
          ("text", "encoder.layers.0.self_attention", f"{TURNED} scale=1 kv_len=true"),
          ("decoder", "decoder.layers.0.self_attention", f"{ROPE} scale=1"),
          ("decoder to text", "decoder.layers.0.cross_attention", "attention=cross kv_len=true scale=1")]],
    *[Row(f"MusicGen whole, {part}", "musicgen", at, Q_K_V_OUT, keys, dict(CODES, decoder=dict(
        SMALL, ffn_dim=32, vocab_size=50)), since=5)
      for part, at, keys in [
          ("words", f"decoder.model.decoder.{LAYER}", "causal=true"),
          ("text", "decoder.model.decoder.layers.0.encoder_attn", "attention=cross kv_len=true")]],
    Row("MusicGen whole, melodies", "musicgen_melody", f"decoder.model.decoder.{LAYER}", Q_K_V_OUT, "causal=true",
        dict(CODES, decoder=dict(SMALL, ffn_dim=32, vocab_size=50)), since=5),
    Row("CSM", "csm", f"backbone_model.{LAYER}", Q_K_V_O, ROPE, dict(
        TINY_GQA, **SMALL, num_codebooks=2, text_vocab_size=50, vocab_size=51, depth_decoder_config=dict(
            TINY_GQA, **SMALL, num_codebooks=2, backbone_hidden_size=64, vocab_size=51), codec_config=dict(
            SMALL, num_key_value_heads=4, upsample_groups=64, num_filters=4)), since=5),
    Row("LASR whole", "lasr_ctc", f"encoder.{LAYER}", Q_K_V_O, f"{TURNED} kv_len=true", dict(encoder_config=dict(
        SMALL, num_mel_bins=8), vocab_size=50), since=5),
    Row("Nemotron 3 diarization whole", "nemotron3_diarization", f"audio_tower.{LAYER}", Q_K_V_O,
        f"{TURNED} kv_len=true", dict(audio_config=dict(SMALL, num_mel_bins=8), head_config=dict(
            audio_hidden_size=64)), since=5),
]


def texts(torch, config, batch):
    return dict(input_ids=torch.randint(1, 50, (batch, 11)))


def padded_texts(torch, config, batch):
    return dict(texts(torch, config, batch), attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


def dia(torch, config, batch):
    return dict(padded_texts(torch, config, batch), decoder_input_ids=torch.randint(1, 50, (batch, 9, 2)))


def written(torch, config, batch):
    return dict(padded_texts(torch, config, batch),
                decoder_input_ids=torch.randint(1, 50, (batch * config.decoder.num_codebooks, 9)))


def sung(torch, config, batch):
    """Texts stand before what is written."""
    return dict(written(torch, config, batch), attention_mask=None)


def features(torch, config, batch):
    return dict(input_features=torch.randn(batch, config.num_mel_bins, 22))


def padded_features(torch, config, batch):
    return dict(features(torch, config, batch), input_features_mask=torch.arange(22) < torch.tensor([[12], [22]]))


def masked_features(torch, config, batch):
    """The mask is that of attention itself."""
    real = torch.arange(11) < torch.tensor([[7], [11]])
    return dict(features(torch, config, batch), attention_mask=torch.where(real, 0.0, -1e30)[:, None, None].expand(
        -1, 1, 11, -1))


def rows_of_features(torch, config, batch):
    return dict(input_features=torch.randn(batch, 44, config.num_mel_bins),
                attention_mask=torch.arange(44) < torch.tensor([[28], [44]]))


def waves(torch, config, batch):
    return dict(input_values=torch.randn(batch, 1, 60), padding_mask=torch.arange(60) < torch.tensor([[40], [60]]))


def coded_waves(torch, config, batch):
    real = torch.arange(9600) < torch.tensor([[5760], [9600]])
    return dict(input_values=torch.randn(batch, 1, 9600), padding_mask=real)


def long_waves(torch, config, batch):
    return dict(input_values=torch.randn(batch, 1, 4 * 1920))


def streamed_waves(torch, config, batch):
    """Without a mask, for a mask is made of float32. Windows are there with a mask only."""
    return dict(input_values=torch.randn(batch, 3200), attention_mask=None)


def words(torch, config, batch):
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch * config.num_codebooks, 9)),
                encoder_hidden_states=torch.randn(batch, 7, config.hidden_size),
                encoder_attention_mask=torch.arange(7) < torch.tensor([[5], [7]]))


def melodies(torch, config, batch):
    """Those that are heard stand before what is written."""
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch * config.num_codebooks, 9)),
                encoder_hidden_states=torch.randn(batch, 7, config.hidden_size))


def series(torch, config, batch):
    past, future = 8, config.prediction_length
    return dict(past_values=torch.randn(batch, past), past_time_features=torch.randn(batch, past, 1),
                past_observed_mask=torch.ones(batch, past), future_values=torch.randn(batch, future),
                future_time_features=torch.randn(batch, future, 1))


# As families.py has them.
INPUTS = {
    "qwen2_audio_encoder": masked_features, "voxtral_encoder": features, "audioflamingo3_encoder": padded_features,
    "moss_transcribe_diarize_audio": features, "omniasr_audio": waves, "glmasr_encoder": features,
    "lasr_encoder": rows_of_features, "nemotron3_diarization_audio": rows_of_features, "mimi": long_waves,
    "pe_audio_encoder": coded_waves, "moonshine_streaming_encoder": streamed_waves, "musicgen_decoder": words,
    "musicgen_melody_decoder": melodies, "dia": dia, "musicgen": written, "musicgen_melody": sung, "csm": texts,
    "lasr_ctc": lambda torch, config, batch: rows_of_features(torch, config.encoder_config, batch),
    "nemotron3_diarization": lambda torch, config, batch: rows_of_features(torch, config.audio_config, batch),
    "patchtst": lambda torch, config, batch: dict(past_values=torch.randn(batch, 24, 2)),
    "time_series_transformer": series, "informer": series}
BUILT_BY = {
    "moonshine_streaming_encoder": "models.moonshine_streaming.modeling_moonshine_streaming.MoonshineStreamingEncoder",
    "dia_encoder": "models.dia.modeling_dia.DiaEncoder", "glmasr_encoder": "GlmAsrEncoder",
    "musicgen": "MusicgenForConditionalGeneration", "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "musicgen_decoder": "MusicgenModel", "musicgen_melody_decoder": "MusicgenMelodyModel",
    "csm": "CsmForConditionalGeneration", "csm_depth_decoder_model": "CsmDepthDecoderModel", "lasr_ctc": "LasrForCTC",
    "audioflamingo3_encoder": "AudioFlamingo3Encoder", "voxtral_encoder": "VoxtralEncoder",
    "qwen2_audio_encoder": "Qwen2AudioEncoder"}
PARTS = ["dia_decoder"]
OF_TWO = set()
WITHOUT_CACHE = {
    "mimi", "dia", "musicgen", "musicgen_melody", "csm", "omniasr", "moss_transcribe_diarize", "musicgen_decoder",
    "musicgen_melody_decoder", "csm_depth_decoder_model", "time_series_transformer", "informer"}
