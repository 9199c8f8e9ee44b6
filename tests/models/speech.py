"""Further rows of models that listen and speak, as families.py has them."""
from architectures import LAYER, Q_K_V_O, Q_K_V_OUT, ROPE, TINY, TINY_GQA, WINDOW, Row

SECOND = LAYER.replace("0", "1")
LINEAR = " ".join(f"{of}_proj.linear" for of in "qkvo")
MIMI = dict(model_type="mimi", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            intermediate_size=16, num_filters=4, upsampling_ratios=[2, 2], codebook_size=8, codebook_dim=8,
            vector_quantization_hidden_dimension=8, num_quantizers=8, num_semantic_quantizers=1, upsample_groups=16)
CODES = dict(ffn_dim=32, num_codebooks=2, **TINY_GQA)
ENCODER = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_mel_bins=16,
               subsampling_conv_channels=8)
WRITTEN = dict(TINY, num_key_value_heads=2, head_dim=16, max_position_embeddings=64)
SEMANTIC = dict(model_type="wav2vec2-bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=16)
CODEC = {**TINY_GQA, "semantic_model_config": SEMANTIC, "quantization_dim": 80, "num_key_value_heads": 4}


def written(name, kind, config, at, **more):
    return [Row(f"{name}, {part}", kind, at, more.get("matrices", Q_K_V_O), keys, config, since=5, of_5=dict(
                matrices=Q_K_V_O, at=f"decoder.layers.0.{of}") if more else None)
            for at, (part, of, keys) in zip(at, [
                ("decoder", "self_attn", "causal=true h=4 d_model=64"),
                ("decoder to encoder", "encoder_attn", "attention=cross h=4 d_model=64 kv_len=true")])]


ROWS = [
    Row("Moshi", "moshi", LAYER, LINEAR, ROPE, dict(CODES, audio_encoder_config=MIMI), since=5),
    Row("Kyutai", "kyutai_speech_to_text", LAYER, LINEAR, ROPE, dict(
        CODES, codec_config=MIMI, codebook_vocab_size=8, audio_bos_token_id=8, audio_pad_token_id=9), since=5),
    Row("Phonon", "gradium_phonon_tts", LAYER, "in_proj o_proj", ROPE, dict(
        TINY_GQA | dict(num_key_value_heads=4), latent_dim=8, flow_head_config=dict(
            condition_dim=64, latent_dim=8, hidden_size=16, num_hidden_layers=1)), since=5,
        of_5=dict(matrices=Q_K_V_O)),
    Row("Higgs Audio 2", "higgs_audio_v2", LAYER, Q_K_V_O, ROPE, dict(
        TINY_GQA, rope_theta=..., codebook_size=8, audio_token_id=40, audio_bos_token_id=41,
        audio_delay_token_id=42, audio_stream_bos_id=8, audio_stream_eos_id=9), since=5),
    Row("Voxtral Realtime, text", "voxtral_realtime", SECOND, Q_K_V_O, f"{ROPE} {WINDOW}", dict(
        text_config={**TINY, **TINY_GQA, "sliding_window": 4, "num_hidden_layers": 2}, audio_config=dict(
            hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16)), since=5),
    Row("Voxtral Realtime, sound", "voxtral_realtime_encoder", LAYER, Q_K_V_O, f"{ROPE} {WINDOW}", dict(
        TINY_GQA, sliding_window=4, num_key_value_heads=..., num_mel_bins=8), since=5),
    *[Row(f"Pocket TTS, {side}", "pocket_tts_audio_tokenizer", f"{side}.{side}_transformer.{LAYER}", Q_K_V_O,
          f"{ROPE} {WINDOW}", dict(TINY_GQA, sliding_window=3, num_filters=4, upsampling_ratios=[2, 2], latent_dim=8,
                                   upsample_groups=8, latent_stride=2, attention_bias=True), since=5)
      for side in ("encoder", "decoder")],
    *written("Canary", "canary", dict(encoder_config=ENCODER, decoder_config=WRITTEN, vocab_size=50),
             [f"decoder.layers.0.{at}" for at in ("self_attn", "encoder_attn")]),
    *written("Command A Speech", "cohere_asr", dict(WRITTEN, encoder_config=ENCODER), [
        f"transf_decoder._decoder.layers.0.{at}_sub_layer" for at in ("first", "second")],
             matrices="query_net key_net value_net out_projection"),
    *[Row(name, kind, f"acoustic_decoder.{LAYER}", Q_K_V_O, "", CODEC, since=5)
      for name, kind in [("NeuCodec", "neucodec"), ("X-codec 2", "xcodec2")]],
]

TEXTS = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=2,
             encoder_ffn_dim=32, decoder_ffn_dim=32, t2u_encoder_layers=1, t2u_decoder_layers=1,
             speech_encoder_layers=1, speech_encoder_attention_heads=4, t2u_encoder_attention_heads=4,
             t2u_decoder_attention_heads=4,
             speech_encoder_intermediate_size=32, t2u_encoder_ffn_dim=32, t2u_decoder_ffn_dim=32, t2u_vocab_size=50,
             unit_hifi_gan_vocab_size=20, lang_embed_dim=8, spkr_embed_dim=8, unit_embed_dim=16,
             upsample_initial_channel=64)
ROWS += [Row(f"{name}, {part}", kind, f"text_{at}", Q_K_V_OUT, keys, TEXTS, since=5)
         for name, kind in [("Seamless M4T", "seamless_m4t"), ("Seamless M4T 2", "seamless_m4t_v2")]
         for part, at, keys in [
             ("encoder", "encoder.layers.0.self_attn", "kv_len=true"),
             ("decoder", "decoder.layers.0.self_attn", "causal=true"),
             ("decoder to encoder", "decoder.layers.0.cross_attention", "attention=cross kv_len=true")]]


def heard(torch, config, batch):
    """Sounds and texts. The encoder makes NaN of padding in double precision."""
    return dict(input_features=torch.randn(batch, 96, 16), attention_mask=torch.ones(batch, 96, dtype=torch.bool),
                decoder_input_ids=torch.randint(1, 50, (batch, 7)))


def coded(torch, config, batch):
    return dict(input_values=torch.randn(batch, 1, 3200), input_features=torch.randn(batch, 10, 160))


def told(torch, config, batch):
    """A text of a word for each piece of a sound, which are eight frames."""
    return dict(input_ids=torch.randint(1, 50, (batch, 9)), input_features=torch.randn(batch, 128, 72))


def codes(torch, config, batch):
    return dict(input_ids=torch.randint(1, 8, (batch, 48, config.num_codebooks + 1)))


INPUTS = {"kyutai_speech_to_text": codes, "Voxtral Realtime, text": told, "canary": heard, "cohere_asr": heard,
          "pocket_tts_audio_tokenizer": lambda torch, config, batch: dict(input_values=torch.randn(batch, 1, 96)),
          "voxtral_realtime_encoder": lambda torch, config, batch: dict(input_features=torch.randn(batch, 8, 40)),
          "neucodec": coded,
          "xcodec2": coded}
BUILT_BY, OF_TWO, LAST_ROWS_FIRST = {}, set(), set()
PARTS = ["voxtral_realtime_text", "canary_decoder"]
WITHOUT_CACHE = {"pocket_tts_audio_tokenizer", "voxtral_realtime_encoder", "canary", "cohere_asr", "voxtral_realtime",
                 "seamless_m4t", "seamless_m4t_v2"}
