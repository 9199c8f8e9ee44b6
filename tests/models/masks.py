"""Further rows of models that draw what a point asks for, as families.py has them."""
from architectures import Q_K_V_O, Q_K_V_OUT, Row

DECODER = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, mlp_dim=16, iou_head_hidden_dim=16)
PROMPTS = dict(hidden_size=32, image_size=16, patch_size=4, image_embedding_size=4, mask_input_channels=4)
VISION = dict(hidden_size=16, output_channels=32, num_hidden_layers=1, num_attention_heads=2, image_size=16,
              patch_size=4, window_size=2, global_attn_indexes=[0], num_pos_feats=16, mlp_dim=16)
SAM = dict(vision_config=VISION, prompt_encoder_config=PROMPTS, mask_decoder_config=DECODER)
BLOCKS = dict(model_type="sam2_hiera_det_model", hidden_size=8, image_size=[64, 64],
              embed_dim_per_stage=[8, 16, 16, 16], num_attention_heads_per_stage=[1, 2, 2, 2],
              blocks_per_stage=[1, 1, 1, 1],
              window_positional_embedding_background_size=[1, 1],
              global_attention_blocks=[])
SAM_2 = dict(SAM, prompt_encoder_config=dict(PROMPTS, image_size=64, patch_size=16), vision_config=dict(
    backbone_config=BLOCKS, backbone_channel_list=[16, 16, 16, 8], fpn_hidden_size=32,
    backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]]))
SAM_3 = dict(SAM, vision_config=dict(fpn_hidden_size=32, backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
                                     backbone_config=dict(
    model_type="sam3_vit_model", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16,
    image_size=16, patch_size=4,
    window_size=4, global_attn_indexes=[0], pretrain_image_size=8)))
FEWER = "attention=cross h=4 d_model=32 dk=4"


def decoder(name, kind, config, matrices=Q_K_V_O):
    return [Row(f"{name}, {part}", kind, f"mask_decoder.transformer.{at}", matrices, keys, config, since=5)
            for part, at, keys in [
                ("tokens", "layers.1.self_attn", "attention=cross h=4 d_model=32"),
                ("tokens to image", "layers.1.cross_attn_token_to_image", FEWER),
                ("image to tokens", "layers.0.cross_attn_image_to_token", FEWER),
                ("last tokens to image", "final_attn_token_to_image", FEWER)]]


ROWS = [*decoder("SAM", "sam", SAM, Q_K_V_OUT),
        *decoder("SAM-HQ", "sam_hq", dict(SAM, mask_decoder_config=dict(DECODER, vit_dim=16)), Q_K_V_OUT),
        *decoder("SAM 2", "sam2", SAM_2), *decoder("SAM 3, tracker", "sam3_tracker", SAM_3),
        Row("SAM 3, tracker, vision", "sam3_tracker", "vision_encoder.backbone.layers.0.attention", Q_K_V_O,
            "rope=interleaved", SAM_3, since=5)]


def asked(torch, config, batch):
    """Images with points: two of each."""
    return dict(pixel_values=torch.randn(batch, 3, 16, 16), input_points=16 * torch.rand(batch, 1, 2, 2),
                input_labels=torch.ones(batch, 1, 2, dtype=torch.long))


def seen(torch, config, batch):
    """The same of what an encoder has made of images."""
    sides = [(4, 16), (8, 8), (32, 4)]
    return dict(asked(torch, config, batch), pixel_values=None, image_embeddings=[
        torch.randn(batch, channels, side, side) for channels, side in sides])


INPUTS = {"sam": asked, "sam_hq": asked, "sam2": seen, "sam3_tracker": asked}
BUILT_BY = {"sam": "SamModel", "sam_hq": "SamHQModel", "sam2": "Sam2Model", "sam3_tracker": "Sam3TrackerModel"}
PARTS = ["sam3_vision_model"]
OF_TWO, LAST_ROWS_FIRST = set(), set()
WITHOUT_CACHE = set(BUILT_BY)
