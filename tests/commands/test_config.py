"""Configs: which are refused, and with which words; hostile ones neither hang nor write anything."""
import os
import re
import resource
import subprocess

import pytest

from tools import ISAS, MHAGEN, cpu_time, explain, in_turn

BASE = {"h": 2, "d_model": 32, "dk": 16, "seq": 16, "isa": "scalar"}


def run(*args, **options):
    return subprocess.run([MHAGEN, *map(str, args)], capture_output=True, text=True, timeout=600,
                          errors="surrogateescape", **options)


def arguments(**changes):
    return [f"{key}={value}" for key, value in {**BASE, **changes}.items()]


def assert_refused(result, *parts):
    """One line on standard error, exit 2."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("mhagen: ") and result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr[:-1].isprintable() and len(result.stderr) < 500
    for part in parts:
        assert part in result.stderr


# ---- key=value ----

INT = "must be an integer from"


@pytest.mark.parametrize("argument, message", [
    ("dk=0", f"dk = 0: {INT} 1 to 1024"),
    ("dk=1025", f"dk = 1025: {INT} 1 to 1024"),
    ("h=-1", f"h = -1: {INT} 1 to 1024"),
    ("h=", f"h = : {INT} 1 to 1024"),
    ("h=1.0", f"h = 1.0: {INT}"),
    ("h=1e1", f"h = 1e1: {INT}"),
    ("h=0x10", f"h = 0x10: {INT}"),
    ("h= 1", f"h =  1: {INT}"),
    ("h = 1", "h =  1: must be one word without blanks, h=1"),
    ("h=1\n", f"h = 1?: {INT}"),
    ("h=\u0663", f"h = ??: {INT}"),
    ("d_model=99999999999999999999", f"d_model = 99999999999999999999: {INT} 1 to 16384"),
    ("seq=18446744073709551617", f"{INT} 1 to 65536"),
    ("seq=" + "9" * 4000, f"9...: {INT} 1 to 65536"),
    ("seq=" + "9" * 100000, "argument longer than 4096 characters"),
    ("k_block=15", f"k_block = 15: {INT} 16 to 256: longer sums may err by more than mhagen_kernel.error"),
    ("k_block=257", f"k_block = 257: {INT} 16 to 256: longer sums may err by more than mhagen_kernel.error"),
    ("causal=yes", "causal = yes: must be true or false"),
    ("causal=1", "causal = 1: must be true or false"),
    ("isa=avx", f"isa = avx: must be one of {', '.join(ISAS)}, several of one machine with +, one of x86, arm, or "
     "native on the command line, did you mean avx2?"),
    ("isa=AVX512", "did you mean avx512?"),
    ("unroll=fulll", "did you mean full?"),
    ("isa=natve", "did you mean native?"),
    ("ffn_act=gelu_new", "relu, relu2, silu, tanh, did you mean gelu_tanh?"),
    ("out_act=gelu", "out_act = gelu: must be none with attention = self, whose rows of Y have no activation"),
    ("attention=none", "h = 2: must be 1 with attention = none"),
    ("dtype=float16", "dtype = float16: must be one of f32, bf16, f16, int8, did you mean f16?"),
    ("cache_dtype=bfloat16", "did you mean bf16?"),
    ("unroll=2", "unroll = 2: must be one of auto, full"),
    ("d_modle=3", "d_modle = 3: unknown key, did you mean d_model?"),
    ("kd=3", "kd = 3: unknown key, did you mean dk?"),
    ("H=3", "unknown key"),
    ("num_heads=3", "num_heads = 3: unknown key: it is h here\n"),
    ("num_head=3", "num_head = 3: unknown key, did you mean h?\n"),
    ("embed_dim=3", "it is d_model here"),
    ("hidden_size=3", "it is d_model here"),
    ("num_attention_heads=3", "it is h here"),
    ("head_dim=3", "it is dk here"),
    ("max_position_embeddings=3", "did you mean seq?"),
    ("kv_heads=3", "kv_heads = 3: unknown key: it is h_kv here\n"),
    ("num_key_value_heads=3", "num_key_value_heads = 3: unknown key: it is h_kv here"),
    ("kvheads=3", "unknown key, did you mean h_kv?"),
    ("rope=true", "rope = true: must be one of none, half, interleaved"),
    ("rope=true", "interleaved; half turns columns i and i + rope_dims / 2, as Llama"),
    ("dtype=int4", "int8; weights alone may have 4 bits: weight_dtype=int4\n"),
    ("mask=causal", "add; causal=true is a key of its own, and needs no mask\n"),
    ("seq=dynamic", "commas; give the most rows of a run, and q_len=true kv_len=true for shorter ones"),
    ("isa=sse4", "or native on the command line; compilers use SSE for scalar\n"),
    ("isa=", "arm, or native on the command line\n"),
    ("cpu=x", "apple_m2, or native on the command line\n"),
    ("local_window_size=8", "as window_left, and ONNX Runtime's counts the row itself\n"),
    ("past=4", "past = 4: is no key: runs have it as args.past with cache=append\n"),
    ("w_q=3", "w_q = 3: is no key: matrices are pointers in mhagen_weights, and files of `mhagen pack`"),
    ("norm_eps=0.1", "norm_eps = 0.1: has no effect without qk_norm"),
    ("qk_layernorm=true", "qk_layernorm = true: unknown key, did you mean qk_norm?"),
    ("rotary_dim=8", "rotary_dim = 8: unknown key: it is rope_dims here"),
    ("rope_scaling=2", "rope_scaling = 2: is no key: scaled angles are tables, rope_cos and rope_sin"),
    ("rope_dims=4", "rope_dims = 4: has no effect without rope"),
    ("rope_tables=apart", "rope_tables = apart: has no effect without rope"),
    ("rope_at=run", "rope_at = run: has no effect without rope"),
    ("rope_at=runs", "rope_at = runs: must be one of pack, run"),
    ("position_ids=true", "position_ids = true: unknown key, did you mean rope_at?"),
    ("row_keys=true", "row_keys = true: must be one of none, range"),
    ("cu_seqlens=true", "cu_seqlens = true: unknown key, did you mean row_keys?"),
    ("sliding_window=8", "sliding_window = 8: is no key: it counts the row itself, so window_left is "
     "sliding_window - 1"),
    ("k_unroll=2", "k_unroll = 2: is no key any more, for it made no kernel faster: leave it out"),
    ("window_left=-1", "window_left = -1: must be an integer from 0 to 65536"),
    ("softcap=0", "softcap = 0: must be a number from 1e-09 to 1000000000"),
    ("attn_logit_softcapping=50", "attn_logit_softcapping = 50: unknown key: it is softcap here"),
    ("add_zero_attn=true", "add_zero_attn = true: unknown key, did you mean sink?"),
    ("sink=1", "sink = 1: must be true or false"),
    ("scores=raw", "scores = raw: must be one of none, scaled, capped, masked"),
    ("qk_matmul_output=true", "qk_matmul_output = true: unknown key, did you mean scores?"),
    ("causal_align=bottom_right", "causal_align = bottom_right: has no effect without causal or window_left or "
     "window_right"),
    ("mask=causal", "mask = causal: must be one of none, bool, add"),
    ("bf16=true", "is no key, but a value of dtype and attend_dtype"),
    ("bias=true", "bias = true: is no key: a bias is a pointer in mhagen_weights"),
    ("zzzzzz=3", "zzzzzz = 3: unknown key\n"),
    ("=3", "unknown key"),
    ("a\x1b[31m\nb=3", "a?[31m?b = 3: unknown key"),
    ("seq_kv=32", "seq_kv = 32: must equal seq = 16 with attention = self"),
    ("k_width=8", "must equal d_model = 32 with attention = self, which has one input"),
    ("head_block=3", "head_block = 3: must divide h = 2"),
    ("h_kv=3", "h_kv = 3: must divide h = 2"),
    ("name=for", "name = for: must not be a keyword of C or C++"),
    ("name=nullptr", "keyword"),
    ("name=template", "keyword"),
    ("name=math", "name = math: must not be the name of a header of C or POSIX"),
    ("name=Stdlib", "header"),
    ("name=_x", "name = _x: must be a C identifier that starts with a letter"),
    ("name=9x", "identifier"),
    ("name=", "identifier"),
    ("name=a-b", "identifier"),
    ("name=../x", "identifier"),
    ("name=a/b", "identifier"),
    ("name=\u00e9", "identifier"),
    ("name=MhaGen_x", "must not start with mhagen"),
    ("name=" + "a" * 129, "must have at most 128 characters"),
])
def test_bad_argument(argument, message, tmp_path):
    key = argument.split("=")[0]
    given = [a for a in arguments() if not a.startswith(key + "=")]
    result = run("gen", *given, argument, "-o", tmp_path / "out")
    assert_refused(result, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words, message", [
    (["causal"], "config: causal: is no key=value; causal has the values true, false"),
    (["wq"], "config: wq: is neither key=value nor a file"),
    (["num_heads"], "config: num_heads: is no key=value; h has the values 1..1024"),
    (["h", "=", "4"], "config: h = 4: must be one word, h=4"),
    (["h", "=4"], "config: h = 4: must be one word, h=4"),
    (["h=", "4"], "config: h = 4: must be one word, h=4"),
    (["h:4"], "config: h:4: is neither key=value nor a file"),
    (["none.lua"], "config: none.lua: No such file or directory"),
    (["cfg.json"], "config: cfg.json: is JSON; such a file is one Lua table, return { h = 12"),
    (["cfg.json", "causal"], "config: causal: is no key=value"),
    (["cfg.json", "cfg.json"], "config: cfg.json: cfg.json is the config file already"),
    (["tuned=cfg.json"], "tuned: cfg.json: is JSON; such a file is one Lua table, as `tune`"),
])
def test_words_that_are_no_config(words, message, tmp_path):
    (tmp_path / "cfg.json").write_text('{"h": 12}')
    assert_refused(run("explain", *arguments(), *words, cwd=tmp_path), message)


def test_a_config_has_any_name(tmp_path):
    """A file may be named as a key is."""
    (tmp_path / "causal").write_text("return { causal = true }")
    assert "causal=true" in run("explain", *arguments(), "causal", cwd=tmp_path).stdout


def test_native(tmp_path):
    """It stands for this machine where a command is given, and is refused where it is written down."""
    for dtype in "f32", "bf16":
        widest = run("isas", "--widest", "--dtype", dtype).stdout.strip()
        core = run("isas", "--cpu").stdout.strip()
        words = [word for word in arguments() if not word.startswith("isa=")] + [f"dtype={dtype}"]
        wanted = run("explain", *words, f"isa={widest}", f"cpu={core}").stdout
        assert wanted and run("explain", *words, "isa=native", "cpu=native").stdout == wanted
    for text in 'isa = "native"', 'isa = "avx2", cpu = "native"':
        (tmp_path / "c.lua").write_text(f"return {{ h = 2, d_model = 32, dk = 16, seq = 16, {text} }}")
        assert_refused(run("explain", tmp_path / "c.lua"), "= native: works only on the command line; in a file write ")
    assert_refused(run("explain", *arguments(), "unroll=native"), "unroll = native: must be one of auto, full")


def test_head_block_of_shared_keys():
    """Heads that share keys and values are projected together."""
    given = [*arguments(), "h_kv=1"]
    assert_refused(run("explain", *given, "head_block=1"), "head_block = 1: must be a multiple of h / h_kv = 2\n")
    assert run("explain", *given, "head_block=2").returncode == 0


def test_head_block_of_a_norm_of_all_heads():
    given = [*arguments(), "qk_norm=rms"]
    assert_refused(run("explain", *given, "norm_span=all", "head_block=1"),
                   "head_block = 1: must be h with norm_span = all, a norm of all heads\n")
    assert run("explain", *given, "norm_span=all", "head_block=2").returncode == 0
    told = explain(*given, "norm_span=all")
    assert "2 of 2 heads projected together: norm_span = all is a norm of all of them " in told
    assert run("explain", *given, "head_block=1").returncode == 0


@pytest.mark.parametrize("given, message", [
    ("rope=half rope_at=run rope_theta=500", "rope_theta = 500.0: must be 10000.0 with rope_at = run, where a run"),
    ("rope=half rope_at=run rope_tables=apart", "rope_tables = apart: must be packed with rope_at = run, where a run"),
    ("rope=half rope_at=run causal_align=bottom_right", "causal_align = bottom_right: has no effect without causal or "
     "window_left or window_right or rope (not rope_at = run)"),
    ("project=kq", "project = kq: must be letters of qkvo in this order, or none\n"),
    ("project=", "project = : must be letters of qkvo"),
    ("project=none attention=self", "project = none: must be qkvo or qkv with attention = self, which has one input"),
    ("project=q k_width=8", "k_width = 8: must be 32 with project = q, which does not project K"),
    ("project=qko v_width=8", "v_width = 8: must be 32 with project = qko, which does not project V"),
    ("project=qkv y_width=8", "y_width = 8: must be 32 with project = qkv, which does not project Y"),
    ("project=kvo q_lanes=columns", "q_lanes = columns: has no effect with project = kvo, which does not project Q"),
    ("project=none q_rows=2", "q_rows = 2: has no effect with project = none: no product has lanes over queries"),
    ("project=none kv_rows=2", "kv_rows = 2: has no effect with project = none where neither K nor V is projected\n"),
    ("project=qkv out_rows=2", "out_rows = 2: has no effect with project = qkv, which does not project Y"),
    ("layout=bhsd", "layout = bhsd: must be bshd with project = qkvo, which leaves no array with this layout\n")])
def test_what_is_not_projected(given, message):
    """Keys without effect are refused, by the name of both."""
    assert_refused(run("explain", *arguments(), *given.split()), message)


def test_shapes_of_layouts(tmp_path):
    """The header says how what is not projected lies."""
    def shape(config):
        run("gen", "h=4", "h_kv=2", "dk=6", "dv=5", "seq=19", "seq_kv=23", "isa=scalar", "name=kernel", *config.split(),
            "-o", tmp_path)
        return re.search(r"shape +(.*),", (tmp_path / "kernel.h").read_text())[1]

    assert shape("project=none").startswith("q[19][24], k[23][12] and v[23][10] -> y[19][20], ")
    assert shape("project=none layout=bhsd").startswith("q[4][19][6], k[2][23][6] and v[2][23][5] -> y[4][19][5], ")
    assert shape("project=ko layout=bhsd d_model=9").startswith("q[4][19][6], k[23][9] and v[2][23][5] -> y[19][9], ")


def test_d_model_may_be_left_out():
    """Where Q is not projected; elsewhere it is asked for."""
    given = [word for word in arguments() if not word.startswith("d_model=")]
    told = run("explain", *given, "project=none").stdout
    assert "mhagen gen h=2 dk=16 seq=16 isa=scalar project=none\n" in told
    assert run("explain", *given, "project=o").returncode == 0
    assert_refused(run("explain", *given, "project=qkv"), "d_model: is required and must be an integer from 1 to 16384")


@pytest.mark.parametrize("given, message", [
    ("causal_align=top_left cache=append causal=true",
     "causal_align = top_left: must be bottom_right with cache = append, where pos(r) is past + r\n"),
    ("causal_align=top_left cache=append", "causal_align = top_left: must be bottom_right with cache = append"),
    ("cache=append seq_kv=15", "seq_kv = 15: must be at least seq = 16 with cache = append\n"),
    ("cache=fixed", "cache = fixed: must be none with attention = self, which projects its one input in every run\n"),
    ("cache=append cache_layout=bhsd qk_norm=rms norm_span=all",
     "cache_layout = bhsd: must be packed with norm_span = all, a norm over all heads, which this layout separates"),
    ("cache=append qk_norm=rms norm_span=all head_block=1", "head_block = 1: must be h with norm_span = all"),
    ("cache=append project=none kv_rows=1", "kv_rows = 1: has no effect with project = none"),
    ("cache=append h_kv=1 head_block=1", "head_block = 1: must be a multiple of h / h_kv = 2\n"),
    ("cache=append head_block=2", "head_block = 2: must be h / h_kv = 1 with a cache, which lies head by head"),
    ("cache_layout=bhsd", "cache_layout = bhsd: has no effect without cache\n"),
    ("past_key_values=true", "past_key_values = true: unknown key, did you mean cache?\n")])
def test_cache(given, message):
    assert_refused(run("explain", *arguments(), *given.split()), message)


@pytest.mark.parametrize("given, default", [
    ("cache=append causal=true causal_align=bottom_right", True),
    ("cache=fixed attention=cross causal=true causal_align=bottom_right", True),
    ("cache=fixed attention=cross causal=true causal_align=top_left", False),
    ("causal=true causal_align=top_left", True), ("causal=true causal_align=bottom_right", False)])
def test_places(given, default):
    """Where causal_align is not said the last row stands at the last key with a cache, else the first at the first."""
    words = given.split()
    names = [run("explain", *arguments(), *keys).stdout.split("\n")[0] for keys in (words, words[:-1])]
    assert all(name.startswith("mha_f32_h2_") for name in names) and (names[0] == names[1]) == default


def test_columns_of_merged_weights():
    """q_lanes=columns is what the plan does then, or it is refused."""
    shape = ["h=2", "d_model=24", "dk=24", "seq=16", "isa=avx512", "q_lanes=columns"]
    assert re.search(r"^  queries   tiles .*; 1 of 2 heads together$", run("explain", *shape).stdout, re.M)
    assert_refused(run("explain", *shape, "head_block=2"), "head_block = 2: must be 1 with q_lanes = columns")


def test_columns_of_few_rows():
    """Tiles of queries end where q_len does, unless the lanes are said."""
    assert run("explain", *arguments(), "q_len=true", "q_lanes=queries").returncode == 0
    told = explain(*arguments(), "q_len=true")
    assert "lanes are columns in the query projection: its tiles end where q_len does" in told


MERGED = "h=1 d_model=24 dk=32 seq=19 isa=avx2"


@pytest.mark.parametrize("words, message", [
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 q_lanes=columns q_rows=4",
     "q_rows = 4: has no effect with q_lanes = columns: no product has lanes over queries"),
    (f"{MERGED} q_lanes=columns q_rows=1", "q_rows = 1: has no effect with q_lanes = columns"),
    (f"{MERGED} q_lanes=queries kv_rows=2", "kv_rows = 2: has no effect with q_lanes = queries where neither K nor V"),
    (f"{MERGED} q_lanes=queries kv_vectors=1", "kv_vectors = 1: has no effect with q_lanes = queries"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 qkv=joint kv_len=true",
     "qkv = joint: has no effect with lengths that a run says"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 qkv=joint attention=cross",
     "qkv = joint: has no effect with fewer than two projections of the same rows"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 qkv=joint dtype=bf16",
     "qkv = joint: has no effect with operands of a smaller"),
    (f"{MERGED} q_rows=2 kv_rows=2", "kv_rows = 2: has no effect with q_lanes = queries"),
    ("h=2 d_model=24 dk=4 seq=16 isa=scalar fetch=panels",
     "fetch = panels: has no effect with isa = scalar, which has no such instruction"),
    ("h=2 d_model=24 dk=4 seq=16 isa=scalar fetch=shares",
     "fetch = shares: has no effect with isa = scalar, which has no such instruction"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 weight_dtype=int8 fetch=panels",
     "fetch = panels: has no effect with weights that no vectors of numbers are"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 weight_dtype=int8 fetch=shares",
     "fetch = shares: has no effect with weights that no vectors of numbers are"),
    ("h=2 d_model=64 dk=32 seq=16 isa=amx dtype=bf16 fetch=panels",
     "fetch = panels: tile registers take shares"),
    ("h=2 d_model=64 dk=32 seq=16 isa=amx dtype=bf16 fetch=ahead", "fetch = ahead: tile registers take shares"),
    ("h=2 d_model=24 dk=4 seq=16 isa=scalar fetch=ahead",
     "fetch = ahead: has no effect with isa = scalar, which has no such instruction"),
    ("h=2 d_model=24 dk=4 seq=16 isa=avx2 project=qkv qkv=joint fetch=panels",
     "fetch = panels: has no effect where no projection goes through the rows panel by panel"),
])
def test_schedule_keys_without_effect(words, message):
    """What nothing obeys is refused; tests/unit/unit_plan.lua tries all keys."""
    assert_refused(run("explain", *words.split()), "config: " + message)


@pytest.mark.parametrize("dtype, most", [("f32", 64), ("bf16", 4096)])
def test_long_blocks_of_keys(dtype, most):
    """Only sums of rounded operands may be longer: in float32 their own roundings show."""
    words = f"h=2 d_model=24 dk=4 seq=5000 isa=avx2 attend_dtype={dtype}".split()
    assert run("explain", *words, f"key_block={most}").returncode == 0
    message = "must be at most 64 with attend_dtype = f32: longer sums may err by more than mhagen_kernel.error\n"
    refused = f"key_block = {most + 1}: " + (message if dtype == "f32" else "must be an integer from 1 to 4096\n")
    assert_refused(run("explain", *words, f"key_block={most + 1}"), "config: " + refused)


def reasons(words):
    """The choices that explain tells of."""
    text = run("explain", *words.split(), "--why").stdout
    return re.findall(r"^  (\S[^:]*): ", text.split("\nwhy\n")[1].split("\nbuffers")[0], re.M)


REASONS = [
    ("h=4 d_model=32 dk=8 seq=4 isa=avx512", "tiles of four keys", False),
    ("h=4 d_model=32 dk=8 seq=8 isa=avx512", "tiles of four keys", False),
    ("h=4 d_model=32 dk=8 seq=9 isa=avx512", "tiles of four keys", True),
    ("h=4 d_model=32 dk=8 seq=9 isa=avx512 key_rows=4", "tiles of four keys", False),
    ("h=2 d_model=24 dk=4 seq=80 isa=avx2", "key blocks of 64", True),
    ("h=2 d_model=24 dk=4 seq=80 isa=avx2 key_block=16", "key blocks of 64", False),
    ("h=2 d_model=300 dk=4 seq=4 isa=avx2", "sums of up to 256 steps", True),
    ("h=2 d_model=300 dk=4 seq=4 isa=avx2 k_block=64", "sums of up to 256 steps", False),
    ("h=1 d_model=8 dk=513 seq=4 fold=off isa=avx2", "scores of more than 512 steps", True),
    ("h=1 d_model=8 dk=512 seq=4 fold=off isa=avx2", "scores of more than 512 steps", False),
    ("h=1 d_model=8 dk=513 seq=4 fold=off isa=avx2 dtype=bf16", "scores of more than 512 steps", False),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar", "tiles of X in the outer loop", True),
    ("h=1 d_model=16 dk=16 seq=16 isa=avx512", "a lane tail", False),
    ("h=1 d_model=17 dk=17 seq=17 isa=avx512", "a lane tail", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar", "rounds of four K steps", True),
    ("h=20 d_model=1280 dk=64 seq=8 isa=avx512 cpu=zen5", "panels of weights in the outer loop, the next", True),
    ("h=20 d_model=1280 dk=64 seq=8 isa=avx512 cpu=zen5 fetch=none", "panels of weights in the outer loop, the", False),
    ("h=20 d_model=1280 dk=64 seq=1 isa=avx512 cpu=zen5", "panels of weights in the outer loop, the next", False),
    ("h=20 d_model=1280 dk=64 seq=80 isa=avx512 cpu=zen5", "panels of weights in the outer loop, the next", False),
    ("h=12 d_model=768 dk=64 seq=8 isa=avx512 cpu=zen5", "panels of weights in the outer loop, the next", False),
    ("h=20 d_model=1280 dk=64 seq=8 isa=avx512", "panels of weights in the outer loop, the next", False),
    ("h=12 d_model=768 dk=64 seq=80 isa=avx512", "the next weights are fetched", True),
    ("h=12 d_model=768 dk=64 seq=80 isa=avx512 fetch=none", "the next weights are fetched", False),
    ("h=12 d_model=768 dk=64 seq=80 isa=avx512 cpu=zen4", "the next weights are fetched", False),
    ("h=12 d_model=768 dk=64 seq=64 isa=avx512", "the next weights are fetched", False),
    ("h=4 d_model=240 dk=60 seq=80 isa=avx512", "the next weights are fetched", False),
    ("h=28 d_model=1792 dk=64 seq=8 isa=avx512 cpu=sapphirerapids",
     "panels of weights in the outer loop, whose tiles fetch", True),
    ("h=28 d_model=1792 dk=64 seq=1 isa=avx512 cpu=sapphirerapids",
     "panels of weights in the outer loop, whose tiles fetch", False),
    ("h=28 d_model=1792 dk=64 seq=1 isa=avx512 cpu=sapphirerapids", "lanes are columns in the query", True),
    *((f"h=16 d_model=1024 dk=64 seq={config} isa=avx512", "tiles fetch the words of weights 8 KB before", chosen)
      for config, chosen in [("8 weight_dtype=int4", True), ("8 weight_dtype=int8", True),
                             ("8 weight_dtype=bf16", True), ("1 weight_dtype=f16", True),
                             ("9 weight_dtype=int8", False), ("1 weight_dtype=int8 fetch=none", False),
                             ("1 dtype=int8", False), ("1", False)]),
    ("h=8 d_model=512 dk=64 seq=1 isa=avx512 weight_dtype=int4", "tiles fetch the words of weights 8 KB", False),
    ("h=16 d_model=2048 dk=64 seq=1 isa=avx512 cpu=sapphirerapids weight_dtype=int8",
     "tiles fetch the words of weights 24 KB before", True),
    ("h=16 d_model=1024 dk=64 seq=1 isa=amx weight_dtype=int8", "tiles fetch the words of weights 24 KB before", True),
    ("h=2 d_model=32 dk=16 seq=1 seq_kv=90 cache=append cache_dtype=int8 isa=avx2", "scales of integers in a", True),
    ("h=2 d_model=32 dk=16 seq=1 seq_kv=90 cache=append cache_dtype=int8 attend_dtype=bf16 isa=avx2",
     "scales of integers in a", False),
    ("h=28 d_model=1792 dk=64 seq=8 isa=avx512", "panels of weights in the outer loop, whose tiles fetch", False),
    ("h=4 d_model=288 dk=64 seq=8 isa=avx512 cpu=sapphirerapids",
     "panels of weights in the outer loop, whose tiles fetch", False),
    ("h=4 d_model=304 dk=64 seq=8 isa=avx512 cpu=sapphirerapids",
     "panels of weights in the outer loop, whose tiles fetch", True),
    ("h=28 d_model=1792 dk=64 seq=8 isa=avx512 cpu=sapphirerapids", "the next weights are fetched", False),
    ("h=28 d_model=1792 dk=64 seq=24 isa=avx512 cpu=sapphirerapids", "the next weights are fetched", True),
    ("h=6 d_model=384 dk=64 seq=97 isa=amx dtype=bf16 cpu=sapphirerapids", "the next weights are fetched", True),
    ("h=6 d_model=384 dk=64 seq=96 isa=amx dtype=bf16 cpu=sapphirerapids", "the next weights are fetched", False),
    ("h=10 d_model=900 dk=90 seq=80 isa=avx2", "panels of weights in the outer loop of keys and values", True),
    ("h=12 d_model=768 dk=64 seq=80 isa=avx512", "panels of weights in the outer loop of keys and values", False),
    ("h=5 d_model=900 dk=65 seq=100 isa=avx512 fetch=none", "one product of all", False),
    ("h=1 d_model=656 dk=4 seq=16 isa=avx512", "one product of all", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar unroll=full", "rounds of four K steps", False),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar", "no bk", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar rope=half", "no bk", False),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar alibi=true", "no bk", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar sink=true", "no bk", False),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar", "bv within", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar kv_len=true", "bv within", False),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar kv_len=true", "no products of weights", True),
    ("h=2 d_model=32 dk=16 seq=4 isa=scalar fold=off", "bv within", False),
]


# Under sanitizers some: most of them tell nothing new of the host.
@pytest.mark.parametrize("words, choice, taken",
                         in_turn(REASONS, "reasons", count=8) if MHAGEN.name == "mhagen-sanitized" else REASONS)
def test_reasons_are_true(words, choice, taken):
    assert any(told.startswith(choice) for told in reasons(words)) is taken


@pytest.mark.parametrize("changes", [
    {"h": 1, "d_model": 1, "dk": 1, "seq": 1}, {"h": "007"}, {"name": "a" * 128}, {"name": "X"},
    {"dv": 3, "attention": "cross", "seq_kv": 5, "causal": "true", "kv_len": "true",
     "probs": "true", "batch": 2, "unroll": "tile"}, {"head_block": 2, "code_limit": 10000000},
])
def test_good_arguments(changes):
    result = run("explain", *arguments(**changes))
    assert result.returncode == 0 and result.stderr == ""


@pytest.mark.parametrize("key", BASE)
def test_required(key):
    given = [a for a in arguments() if not a.startswith(key + "=")]
    assert_refused(run("explain", *given), f"mhagen: config: {key}: is required and must be ", f", as in {key}=")


def test_all_mistakes_at_once():
    """Of the file and of the arguments; what is missing for another mistake is not told again."""
    assert_refused(run("explain", "h=2", "dk=0", "dk=1", "isa=avx"),
                   "mhagen: config: dk = 0: must be an integer from 1 to 1024; config: isa = avx: must be "
                   f"one of {', '.join(ISAS)}, several of one machine with +, one of x86, arm, or native on the "
                   "command line, did you mean avx2?; config: d_model, seq: are required, as in d_model=384 seq=128\n")
    result = run("explain", *(f"zzzzzz{i}=1" for i in range(900)))
    assert_refused(result, "config: zzzzzz4 = 1: unknown key; ...\n")


def test_what_a_line_has_room_for():
    result = run("explain", *(f"isa={letter * 30}" for letter in "abcde"))
    assert_refused(result, "mhagen: config: isa = aaaaaaaa", "; ...\n")
    assert 200 < len(result.stderr) < 500


def test_given_twice():
    assert_refused(run("explain", *arguments(), "dk=16"), "config: dk = 16: is given twice")


# ---- CONFIG.lua ----

def little_memory():
    """What is within the limits of a config needs no more."""
    if MHAGEN.name != "mhagen-sanitized":  # whose shadow memory is terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (2**27, 2**27))


def test_file_and_arguments(tmp_path):
    config = tmp_path / "c.lua"
    config.write_text('local width = 2 * 16\n'
                      'return { h = 2, d_model = width, dk = 16.0, seq = 16, isa = "scalar" }\n')
    from_file = run("explain", config)
    assert from_file.returncode == 0
    assert from_file.stdout == run("explain", *arguments()).stdout
    assert run("explain", "dk=8", config).stdout == run("explain", *arguments(dk=8)).stdout
    assert_refused(run("explain", config, config), "is the config file already")


DEEP = 100000
ATTACKS = {
    "while": ("while true do end", ":1: runs for more than 100000 instructions"),
    "goto": ("::a:: goto a", "instructions"),
    "for": ("for i = 1, math do end", "bad 'for' limit"),
    "long for": ("for i = 1, 1e18 do end", "instructions"),
    "tail calls": ("local function f() return f() end return f()", "instructions"),
    "recursion": ("local function f() return 1 + f() end return f()", ":1: "),
    "endless string": ("local s = 'x' while true do s = s .. s end", "8 MiB of memory"),
    "slow string": ("local s = 'x' while true do s = s .. 'y' end", "8 MiB of memory"),
    "endless table": ("local t = {} while true do t[#t + 1] = { t } end", ":1: runs for more"),
    "big tables": ("local t = {} while true do t = {" + "1," * 50000 + "t} end", "runs for more"),
    "comparisons": ("local a = 'x' for i = 1, 20 do a = a .. a end local b = a .. '1' a = a .. '2' "
                    "while true do local c = a < b end", ":1: runs for more than "),
    "one text many times": ("local s = 'x' for i = 1, 20 do s = s .. s end local t = {} "
                            "for i = 1, 20000 do t[i] = s end return t",
                            "c.lua: returns more than 8 MiB of keys and values"),
    "many entries": ("local t = {} for i = 1, 33000 do t[i] = 0 end return t", "returns more than 8 MiB"),
    "repeat": ("return { h = ('x'):rep(1e9) }", "attempt to index a string value"),
    "pattern": ("return { h = (('a'):rep(99)):find(('a-'):rep(99) .. 'b') }",
                "attempt to index a string value"),
    "format": ("return { h = ('%d'):format(3) }", "attempt to index a string value"),
    "os": ("os.exit(0)", "attempt to index a nil value (global 'os')"),
    "io": ("return { h = io.read() }", "global 'io'"),
    "load": ("return load('return {}')()", "global 'load'"),
    "require": ("return require 'host'", "global 'require'"),
    "pcall": ("pcall(function() while true do end end)", "global 'pcall'"),
    "coroutine": ("coroutine.wrap(f)()", "global 'coroutine'"),
    "print": ("print(1) return {}", "global 'print'"),
    "_G": ("return _G.x", "global '_G'"),
    "metatable": ("return setmetatable({}, { __index = function() end })", "'setmetatable'"),
    "string metatable": ("getmetatable('').__index = nil", "'getmetatable'"),
    "close": ("local x <close> = {} return {}", "non-closable"),
    "bytecode": ("\x1bLua", "attempt to load a binary chunk"),
    "parentheses": ("return " + "(" * DEEP + "1" + ")" * DEEP, "c.lua: C stack overflow"),
    "braces": ("return " + "{" * DEEP + "}" * DEEP, "c.lua: C stack overflow"),
    "blocks": ("do " * DEEP + "end " * DEEP, "c.lua: C stack overflow"),
    "operators": ("return " + "-" + "- " * DEEP + "1", ""),
    "concatenation": ("return 1" + " .. 1" * DEEP, "c.lua: C stack overflow"),
    "long token": ('x = "' + "a" * 900000, "unfinished string"),
    "long name": ("return { h = 1, " + "a" * 900000 + " = 1 }", "unknown key"),
    "long value": ('return { h = "' + "a" * 900000 + '" }', "a...: must be an integer"),
    "many keys": ("local t = {} for i = 1, 9999 do t['k' .. i] = i end return t", "unknown key"),
    "syntax": ("return { h = }", ":1: unexpected symbol near '}'"),
    "empty": ("", "must return one table"),
    "a number": ("return 1", "must return one table"),
    "a function": ("return function() end", "must return one table"),
    "two values": ("return {}, 1", "must return one table"),
    "nothing set": ("return {}", "h, d_model, dk, seq, isa: are required"),
    "NaN": ("return { h = 0/0 }", "h = nan: must be an integer"),
    "infinity": ("return { h = 1/0 }", "h = inf: must be an integer"),
    "2^53 + 1": ("return { h = 9007199254740993 }", "h = 9007199254740993: must be an integer"),
    "-0": ("return { h = -0.0 }", "h = -0.0: must be an integer"),
    "1e308": ("return { h = 1e308 }", "h = 1e+308: must be an integer"),
    "a fraction": ("return { h = 12.5 }", "h = 12.5: must be an integer"),
    "text for number": ("return { h = '12' }", "h = 12: must be an integer"),
    "boolean for number": ("return { h = true }", "h = true: must be an integer"),
    "number for boolean": ("return { causal = 1 }", "causal = 1: must be true or false"),
    "text for boolean": ("return { causal = 'true' }", "causal = true: must be true or false"),
    "function value": ("return { h = function() end }", "h = a function: must be an integer"),
    "table value": ("return { isa = {} }", "isa = a table: must be one of"),
    "table name": ("return { name = {} }", "name = a table: must be a C identifier"),
    "cycle": ("local t = {} t.h = t return t", "h = a table: must be an integer"),
    "table key": ("return { [{}] = 1 }", "[a table] = 1: keys must be names"),
    "float key": ("return { [1.5] = 1 }", "[1.5] = 1: keys must be names"),
    "boolean key": ("return { [true] = 1 }", "[true] = 1: keys must be names"),
    "positions": ("return { 12, 384 }", "[1] = 12: keys must be names"),
    "control characters": ('return { h = "a\\n\\27[31m" }', "h = a??[31m: must be"),
    "zero bytes": ('return { ["h\\0"] = 1 }', "h? = 1: unknown key"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_config(attack, tmp_path):
    text, message = ATTACKS[attack]
    config = tmp_path / "c.lua"
    config.write_text(text)
    start = cpu_time()
    result = run("gen", config, "-o", tmp_path / "out", preexec_fn=little_memory)
    assert_refused(result, "mhagen: config: ", message)
    assert cpu_time() - start < 10
    assert [p.name for p in tmp_path.iterdir()] == ["c.lua"]


def test_hostile_tuning_file(tmp_path):
    """One table that is in the file many times."""
    tuned = tmp_path / "t.lua"
    tuned.write_text("local t = {} for i = 1, 3000 do t['f' .. i] = i end local all = {} "
                     "for i = 1, 8000 do all['k' .. i] = t end return all")
    result = run("explain", *arguments(tuned=tuned), preexec_fn=little_memory)
    assert_refused(result, "mhagen: tuned: ", "t.lua: returns more than 8 MiB of keys and values")


def test_compiled_lua(tmp_path):
    """Real bytecode, not just its first byte, where a compiler for it is at hand."""
    source, config = tmp_path / "source.lua", tmp_path / "c.lua"
    source.write_text("return {}")
    try:
        subprocess.run(["luac5.4", "-o", config, source], check=True)
    except FileNotFoundError:
        pytest.skip("no luac5.4")
    assert_refused(run("explain", config), "attempt to load a binary chunk")


def test_same_mistake_each_time(tmp_path):
    """Of several mistakes the same one is named, whatever the order of Lua's hashes."""
    config = tmp_path / "c.lua"
    config.write_text("return { a = 1, b = 2, c = 3, [{}] = 4, [5] = 6, [true] = 7, z = 8 }")
    assert len({run("explain", config).stderr for _ in range(30)}) == 1


def test_odd_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "large").write_bytes(b" " * 100_000_000)
    (tmp_path / "just too large").write_bytes(b" " * (2**20 + 1))
    (tmp_path / "loop").symlink_to("loop")
    for name, message in {
        "fifo": "is not a regular file", "directory": "is a directory",
        "large": "is larger than 1 MiB", "just too large": "is larger than 1 MiB",
        "missing": "No such file or directory", "loop": "Too many levels of symbolic links",
        "x" * 300: "File name too long", "missing\n\x1b[31m": "missing??[31m: No such file",
    }.items():
        start = cpu_time()
        result = run("gen", tmp_path / name, "-o", tmp_path / "out")
        assert_refused(result, "mhagen: config: ", message)
        assert cpu_time() - start < 5
    for path in "/dev/zero", "/dev/null", "/dev/tty", "":
        assert_refused(run("gen", path, "-o", tmp_path / "out"), "mhagen: config: ")
    assert not (tmp_path / "out").exists()


def test_unreadable_file(open_dir, unprivileged):
    config = open_dir / "c.lua"
    config.write_text("return {}")
    config.chmod(0)
    assert_refused(run("explain", config, **unprivileged), "c.lua: Permission denied")
