"""More rows as families.py has them: models of texts and of images or sounds, of which these are the texts."""
import json
import pathlib

from architectures import (GAINS, LAYER, Q_K_V_O, Q_K_V_OUT, RMS, ROPE, SECTIONS, TINY, TINY_GQA, TINY_MOE,
                           TINY_TOWER, WINDOW, Row)
from families_texts import INTERLEAVED

SECOND = "layers.1.self_attn"
PART = " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}"
TOWER = dict(TINY_TOWER, depth=1, num_heads=2, embed_dim=32, out_hidden_size=64, encoder_layers=1,
             encoder_attention_heads=2, encoder_ffn_dim=16, d_model=32, deepstack_visual_indexes=[0], num_layers=1)
EXPERTS = {**TINY_MOE, "n_routed_experts": 2, "n_shared_experts": 1, "moe_num_experts": 2, "moe_k": 1,
           "moe_num_shared_experts": 1, "moe_topk": 1}


DEFAULTS = json.loads((pathlib.Path(__file__).parent / "configs/defaults.json").read_text())


def tower(kind, part, fields):
    """Those fields that the config of a tower has, of which others would be refused."""
    own = DEFAULTS.get(kind, {}).get(part)
    return {name: value for name, value in fields.items() if own is None or name in own}


def composite(name, kind, keys=ROPE, of=None, text={}, at=SECOND, weights={}, matrices=Q_K_V_O, **more):
    """A text whose layers are of two, with towers of other types. of: its type, if the config does not know it."""
    fields = more.pop("tower", TOWER)
    towers = {part: tower(kind, part, fields) for part in more.pop("towers", ["vision_config"])}
    known = {**TINY, **TINY_GQA, "num_hidden_layers": 2, **({"model_type": of} if of else {}), **text}
    return Row(f"{name}, text", kind, at, matrices, keys, {
        "text_config": known, **towers, **more}, weights, since=5)


FEW_SECTIONS = dict(rope_scaling=dict(rope_type="default", mrope_section=[2, 1, 1]))
TEXT_MODEL = "text_model.layers.1.self_attn"
GRANITE = "scale={attention_multiplier}"
SOUNDS = dict(towers=["audio_config"])

COMPOSITES = [
    composite("Aria", "aria", text=dict(attention_bias=True, **EXPERTS)),
    composite("ERNIE 4.5 VL", "ernie4_5_vl_moe", INTERLEAVED, text=dict(
        rope_scaling=dict(rope_type="default", mrope_section=[3, 3, 2]), use_bias=True,
        **{**EXPERTS, "moe_intermediate_size": [8, 8]}, mlp_layer_types=["dense", "dense"])),
    composite("EXAONE 4.5", "exaone4_5", f"{ROPE} {WINDOW} {RMS}", of="exaone4", weights=GAINS, text=dict(
        sliding_window=4, layer_types=["full_attention", "sliding_attention"])),
    composite("GLM 4 V", "glm4v", INTERLEAVED + PART, text=dict(FEW_SECTIONS, partial_rotary_factor=0.5,
                                                                    head_dim=...)),
    composite("GLM OCR", "glm_ocr", INTERLEAVED, text=SECTIONS),
    composite("GLM 4 V, experts", "glm4v_moe", ROPE + PART, text=dict(FEW_SECTIONS, partial_rotary_factor=0.5,
                                                                      head_dim=..., **EXPERTS)),
    composite("GLM image", "glm_image", text=SECTIONS),
    composite("Granite 4 Vision", "granite4_vision", f"{ROPE} {GRANITE}", text=dict(attention_multiplier=0.4),
              tower=dict(TINY_TOWER, hidden_size=64), towers=["vision_config"], downsample_rate="1/2",
              deepstack_layer_map=[[0, 0]], spatial_target_layers=[0]),
    composite("GOT OCR 2", "got_ocr2"), composite("InternVL", "internvl"),
    composite("Qianfan OCR", "qianfan_ocr", f"{ROPE} {RMS}", weights=GAINS),
    composite("Ovis 2", "ovis2"), composite("PaddleOCR VL", "paddleocr_vl", text=dict(SECTIONS, use_bias=True)),
    composite("Qwen 3 VL, experts", "qwen3_vl_moe", f"{ROPE} {RMS}", weights=GAINS, text=dict(EXPERTS, **SECTIONS)),
    composite("VideoLLaMA 3", "video_llama_3"), composite("Cosmos 3 Edge", "cosmos3_edge", text=SECTIONS),
    Row("Cosmos 3 Edge, text alone", "cosmos3_edge_text", LAYER, Q_K_V_O, ROPE, dict(SECTIONS, **TINY_GQA), since=5),
    composite("Qwen 3 ASR", "qwen3_asr", f"{ROPE} {RMS}", weights=GAINS, **SOUNDS),
    composite("Fun-ASR Nano", "fun_asr_nano", f"{ROPE} {RMS}", weights=GAINS, adaptor_config=dict(
        hidden_size=64, intermediate_size=16, num_attention_heads=4, num_hidden_layers=1),
              **SOUNDS),
    composite("Granite Speech", "granite_speech", f"{ROPE} {GRANITE}", text=dict(attention_multiplier=0.4),
              towers=["encoder_config", "projector_config"]),
    composite("Granite Speech Plus", "granite_speech_plus", f"{ROPE} {GRANITE}", text=dict(attention_multiplier=0.4),
              towers=["encoder_config", "projector_config"]),
    composite("LightOn OCR", "lighton_ocr", f"{ROPE} {RMS}", weights=GAINS),
    composite("Command A Vision", "cohere2_vision", f"{INTERLEAVED} {WINDOW}", tower=TINY_TOWER, text=dict(
        sliding_window=4, layer_types=["full_attention", "sliding_attention"])),
    composite("LFM2 VL", "lfm2_vl", f"{ROPE} qk_norm=rms norm_eps={{norm_eps}}", matrices=Q_K_V_OUT,
              tower=TINY_TOWER, text=dict(layer_types=["conv", "full_attention"]),
              weights=dict(q_norm="q_layernorm.weight", k_norm="k_layernorm.weight")),
    composite("DeepSeek VL", "deepseek_vl", tower=TINY_TOWER), composite("Janus", "janus", of="llama"),
    composite("Emu 3", "emu3", towers=[], vocabulary_map={},
              vq_config=dict(base_channels=32, channel_multiplier=[1], attn_resolutions=[], num_res_blocks=1)),
    composite("Idefics 2", "idefics2", f"{ROPE} {WINDOW}", at=TEXT_MODEL, text=dict(sliding_window=4),
              towers=["vision_config", "perceiver_config"]),
    composite("Idefics 3", "idefics3", at=TEXT_MODEL), composite("SmolVLM", "smolvlm", at=TEXT_MODEL),
    composite("Granite Docling", "granite_docling", f"{ROPE} {GRANITE}", at=TEXT_MODEL, text=dict(
        attention_multiplier=0.4)),
    Row("Kosmos 2.5, text", "kosmos-2.5", "text_model.model.layers.1.self_attn", Q_K_V_OUT,
        "causal=true h=4 d_model=64 dk=16", dict(
            text_config=dict(embed_dim=64, attention_heads=4, layers=2, ffn_dim=32, vocab_size=50),
            vision_config=tower("kosmos-2.5", "vision_config", dict(TOWER, head_dim=16))), since=5),
    Row("Phi-4 multimodal", "phi4_multimodal", LAYER, "qkv_proj o_proj", f"{ROPE} {WINDOW}", dict(
        sliding_window=4, vision_config=TOWER, audio_config=TOWER, **TINY, **TINY_GQA), since=5),
    *[composite(name, kind, "causal=true", text=dict(
        model_type="opt", word_embed_proj_dim=64, ffn_dim=32, max_position_embeddings=64, **{
            field: ... for field in ("num_key_value_heads", "head_dim", "rope_theta")}), matrices=Q_K_V_OUT,
        at="language_model.model.decoder.layers.1.self_attn", num_query_tokens=2, image_token_index=49,
        video_token_index=49,
        tower={**TINY_TOWER, "encoder_hidden_size": 32}, towers=["vision_config", "qformer_config"])
      for name, kind in [("BLIP 2", "blip-2"), ("InstructBLIP", "instructblip"),
                         ("InstructBLIP, videos", "instructblipvideo")]],
    Row("Llama 3.2 Vision, text", "mllama_text_model", SECOND, Q_K_V_O, ROPE, dict(
        cross_attention_layers=[0], num_hidden_layers=2, **TINY_GQA), since=5),
    Row("Llama 3.2 Vision, text to images", "mllama_text_model", "layers.0.cross_attn", Q_K_V_O,
        f"attention=cross {RMS} mask=add mask_dims=bqk", dict(
            cross_attention_layers=[0], num_hidden_layers=2, **TINY_GQA), GAINS, dict(
            mask="attention_mask[:, 0].expand(batch, seq, seq_kv)"), since=5),
]
PARTS = ["aria_text", "ernie4_5_vl_moe_text", "glm4v_text", "glm_ocr_text", "glm4v_moe_text", "glm_image_text",
         "paddleocr_vl_text", "qwen3_vl_moe_text", "emu3_text_model", "granite_docling_text", "cosmos3_edge_text",
         "kosmos_2_5_text_model", "mllama", "granite4_vision_text"]


def with_places(frames=()):
    """Texts that begin with the places of an image, and images."""
    def given(torch, config, batch):
        ids = torch.randint(1, 49, (batch, 11))
        places = config.num_query_tokens * (frames[0] if frames else 1)
        ids[:, :places] = 49
        more = dict(qformer_input_ids=torch.randint(1, 50, (batch, 5))) if "instruct" in config.model_type else {}
        return dict(pixel_values=torch.randn(batch, *frames, 3, 12, 12), input_ids=ids, **more)
    return given


def seen_image(torch, config, batch):
    """A text, and five rows of an image, of which some texts see some."""
    seen = (torch.randn(batch, 1, 11, 5) > -1).double().log().clamp(min=-1e9)
    return dict(input_ids=torch.randint(1, 50, (batch, 11)), cross_attention_mask=seen, use_cache=False,
                cross_attention_states=torch.randn(batch, 5, config.hidden_size))


INPUTS = {"blip-2": with_places(), "instructblip": with_places(), "instructblipvideo": with_places((4,)),
          "mllama_text_model": seen_image}
BUILT_BY = {"blip-2": "Blip2ForConditionalGeneration", "instructblip": "InstructBlipForConditionalGeneration",
            "instructblipvideo": "InstructBlipVideoForConditionalGeneration", "mllama_text_model": "MllamaTextModel"}
WITHOUT_CACHE = {"granite4_vision", "blip-2", "instructblip", "instructblipvideo", "mllama_text_model"}
