"""Further rows of images, whose rope turns by places in two dimensions, as families.py has them."""
import images
from architectures import GAINS, Q_K_V_O, Q_K_V_OUT, TINY_IMAGE, Row

LAYER = "layer.0.attention"
SAPIENS = "blocks.0.attn", "wq wk wv proj"
IN_MODULE = dict(at=LAYER, matrices=Q_K_V_O)
WIDE = dict(image_size=[8, 12], patch_size=[4, 4])
ROWS = [
    Row("DINOv3", "dinov3_vit", LAYER, Q_K_V_O, "rope=half", dict(WIDE, num_register_tokens=2, key_bias=True),
        since=5, of_5={}),
    Row("DINOv3, squares", "dinov3_vit", LAYER, Q_K_V_O, "rope=half", dict(TINY_IMAGE, rope_theta=7.0,
        query_bias=False), since=5, of_5={}),
    Row("Sapiens 2", "sapiens2", *SAPIENS, "rope=half qk_norm=rms norm_eps={rms_norm_eps} h_kv=2", dict(
        WIDE, num_key_value_heads_per_layer=[2]), GAINS, since=5, of_5=IN_MODULE),
    Row("Sapiens 2, without norms", "sapiens2", *SAPIENS, "rope=half h_kv=4", dict(
        WIDE, use_qk_norm=False), since=5, of_5=IN_MODULE),
    Row("Pixtral, vision", "pixtral", "transformer.layers.0.attention", Q_K_V_O, "rope=half", dict(
        TINY_IMAGE, rope_parameters=dict(rope_type="axial", rope_theta=50.0)), since=5),
    Row("MLCD", "mlcd_vision_model", "encoder.layers.0.self_attn", Q_K_V_OUT, "rope=half", dict(
        TINY_IMAGE, num_hidden_layers=2), since=5),
    *[Row(f"SAM 3, {part}", "sam3_vit_model", f"layers.{i}.attention", Q_K_V_O, "rope=interleaved", dict(
        image_size=16, patch_size=4, window_size=2, num_hidden_layers=2, global_attn_indexes=[1],
        pretrain_image_size=8), since=5) for i, part in enumerate(["windows", "image"])],
]
INPUTS = {"pixtral": lambda torch, config, batch: dict(pixel_values=images.images(torch, config, 1))}
BUILT_BY = {}
PARTS = ["mlcd"]
OF_TWO, WITHOUT_CACHE = set(), set()
# Types whose maps of o have the rows of all images ahead of the images.
LAST_ROWS_FIRST = {"mlcd_vision_model"}
