#!/usr/bin/env python3
"""Breaks the generator in many ways, one at a time, and shows that the checker catches each.

  python3 tests/mutate.py            all of them
  python3 tests/mutate.py -k causal  those with this word

Goldens would catch any change of the text; here only results count, of those kernels of the small configs below
whose text a mutation changes.
Not in the list, because results stay right: values behind kv_len or past that are not cleared. They are NaN
at worst, and the second attempt keeps these out; clearing them is what makes that rare.
Nor tasks that share their scratch: two must run at the same moment for that to show.
"""
import argparse
import collections
import concurrent.futures
import functools
import hashlib
import itertools
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile

import fuzz
import tools
from tools import ISAS

# Small, and together they reach every path: tails of lanes and tiles, chunks, blocks, masks, levels.
CONFIGS = [
    "h=3 d_model=37 dk=5 seq=21",
    "h=2 d_model=20 dk=7 dv=9 seq=19 seq_kv=23 attention=cross probs=true",
    "h=2 d_model=20 dk=7 seq=37 causal=true probs=true",
    "h=3 d_model=9 dk=7 seq=21 causal=true qkv=joint q_lanes=columns kv_rows=4 batch=2",
    "h=4 h_kv=2 d_model=9 dk=7 seq=5 qkv=joint fold=off kv_vectors=2",
    "h=2 d_model=12 dk=4 seq=9 kv_len=true batch=3 causal=true",
    "h=2 d_model=12 dk=4 seq=140",  # so long that a maximum rises
    "h=2 d_model=40 dk=8 dv=3 seq=35 key_block=8 k_block=16 batch=2",
    "h=2 d_model=18 dk=4 seq=33 key_block=8 k_block=16 kv_len=true probs=true",
    "h=2 d_model=8 dk=4 seq=17 unroll=full",
    "h=1 d_model=2 dk=1 seq=37 seq_kv=2 attention=cross causal=true causal_align=bottom_right unroll=full "
    "query_vectors=1",  # groups that see no key
    "h=3 d_model=7 dk=13 dv=5 seq=37 batch=2",
    "h=2 d_model=40 dk=16 seq=2 seq_kv=33 attention=cross batch=2",
    "h=1 d_model=40 dk=16 seq=1 seq_kv=9 attention=cross",  # so small that several keys are made infinite
    "h=3 d_model=12 dk=5 seq=3",
    "h=1 d_model=38 dk=40 seq=2",
    "h=4 h_kv=2 d_model=12 dk=26 seq=9 seq_kv=13 attention=cross rope=half rope_dims=18 causal_align=bottom_right",
    "h=2 d_model=7 dk=6 seq=19 rope=interleaved rope_tables=apart kv_len=true",
    "h=4 h_kv=2 d_model=20 dk=7 seq=19 qk_norm=layer norm_span=each head_block=2 kv_len=true",
    "h=2 d_model=20 dk=6 seq=9 qk_norm=rms norm_span=all norm_eps=0.5 rope=half",
    "h=16 d_model=5 dk=1 dv=1024 seq=20 seq_kv=3 attention=cross fold=off query_vectors=1 kv_len=true",  # blocks
    "h=6 h_kv=2 dk=5 dv=7 seq=19 seq_kv=21 project=none batch=2",
    "h=4 h_kv=2 dk=5 dv=7 seq=3 seq_kv=23 project=none key_rows=4 causal=true kv_len=true causal_align=bottom_right",
    "h=4 h_kv=2 dk=5 dv=7 seq=19 seq_kv=23 project=none layout=bhsd key_rows=4 causal=true batch=2",
    "h=3 d_model=12 dk=4 seq=70 alibi=true",
    "h=2 d_model=12 dk=4 seq=21 kv_start=true scale=0.7 batch=2",
    "h=2 d_model=12 dk=20 seq=75 rope=half rope_at=run q_len=true batch=2",
    "h=2 d_model=12 dk=20 seq=75 rope=interleaved rope_dims=18 rope_at=run batch=2",
    "h=4 h_kv=2 d_model=12 dk=6 seq=9 seq_kv=70 attention=cross rope=interleaved rope_at=run",
    "h=4 h_kv=2 d_model=12 dk=6 seq=9 seq_kv=33 attention=cross cache=fixed rope=interleaved rope_at=run batch=2",
    "h=4 h_kv=2 d_model=10 dk=6 seq=3 seq_kv=40 cache=append rope=half rope_at=run qk_norm=rms",
    "h=2 d_model=12 dk=4 seq=75 row_keys=range q_len=true probs=true batch=2",
    "h=2 d_model=12 dk=4 seq=37 seq_kv=90 attention=cross row_keys=range key_block=16",
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=2 seq_kv=75 cache=append row_keys=range",
    "h=2 d_model=12 dk=4 seq=21 seq_kv=19 attention=cross q_len=true causal=true probs=true batch=2",
    "h=3 d_model=9 dk=4 seq=21 mask=bool mask_dims=bhqk batch=2",
    "h=2 d_model=9 dk=4 seq=37 mask=add mask_dims=hk probs=true",
    "h=8 d_model=3 dk=19 seq=2 attention=cross seq_kv=85 causal=true causal_align=bottom_right alibi=true mask=bool "
    "mask_dims=bhqk batch=4",
    "h=2 d_model=10 dk=4 seq=21 softcap=2 sink=true alibi=true",
    "h=2 d_model=10 dk=4 seq=9 seq_kv=33 attention=cross causal=true kv_start=true q_len=true scores=scaled key_rows=4",
    "h=2 d_model=10 dk=4 seq=21 kv_len=true causal=true alibi=true scores=masked",
    "h=4 h_kv=2 d_model=12 dk=5 seq=6 seq_kv=33 cache=append causal=true probs=true batch=2",
    "h=2 d_model=12 dk=5 dv=3 seq=2 seq_kv=19 attention=cross cache=fixed",
    "h=2 d_model=10 dk=4 seq=3 seq_kv=21 cache=append rope=half window_left=6",
    "h=4 h_kv=2 d_model=10 dk=5 dv=3 seq=3 seq_kv=21 cache=append cache_layout=bhsd causal=true batch=2",
    "h=2 d_model=10 dk=5 dv=3 seq=3 seq_kv=21 cache=append cache_layout=bhsd window_left=4 kv_start=true",
    "h=2 d_model=20 dk=7 seq=21 dtype=bf16",
    "h=2 d_model=9 dk=10 seq=5 dtype=f16 probs=true",
    "h=4 h_kv=2 d_model=17 dk=6 dv=4 seq=21 seq_kv=35 attention=cross causal=true dtype=bf16",
    "h=2 d_model=20 dk=6 seq=19 dtype=bf16",
    "h=2 d_model=34 dk=32 dv=20 seq=37 dtype=bf16",
    "h=2 d_model=70 dk=16 seq=140 k_block=16 dtype=bf16",
    "h=2 d_model=34 dk=33 dv=5 seq=37 dtype=bf16",
    "h=1 d_model=1 dk=2 seq=11 probs=true mask=add dtype=bf16",
    "h=2 d_model=20 dk=18 seq=35 kv_len=true dtype=bf16",
    "h=2 d_model=2 dk=6 seq=1 kv_len=true alibi=true dtype=bf16",
    "h=4 h_kv=2 dk=6 dv=3 seq=3 seq_kv=21 project=none layout=bhsd cache=append rope=half batch=2",
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=3 seq_kv=11 attention=cross cache=fixed qk_norm=rms norm_span=all",
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=1 seq_kv=75 cache=append kv_start=true alibi=true sink=true batch=2",
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=2 seq_kv=75 cache=append mask=add mask_dims=hqk sink=true probs=true",
    "h=4 h_kv=2 d_model=20 dk=6 seq=2 seq_kv=85 cache=append mask=add sink=true",
    "h=2 d_model=12 dk=6 dv=32 seq=2 seq_kv=33 cache=append dtype=bf16",
    "h=2 dk=18 dv=16 seq=2 seq_kv=21 project=none cache=append cache_layout=bhsd causal=true",
    "h=2 d_model=75 dk=6 dv=5 seq=21 dtype=int8",
    "h=1 d_model=3 dk=1 seq=2 seq_kv=5 attention=cross dtype=int8",
    "h=2 d_model=10 dk=7 seq=3 seq_kv=19 attention=cross cache=fixed dtype=int8 batch=2",
    "h=4 h_kv=2 d_model=17 dk=6 dv=4 seq=21 attention=cross causal=true dtype=int8",
    "h=2 d_model=37 dk=11 seq=5 weight_dtype=int8 k_block=16 fold=off",
    "h=2 h_kv=1 d_model=37 dk=11 seq=5 weight_dtype=f16 k_block=16",
    "h=2 h_kv=1 d_model=37 dk=11 seq=5 weight_dtype=int4 group=8 fold=off",
    "h=2 h_kv=1 d_model=37 dk=11 seq=5 weight_dtype=int4 value_weight_dtype=int8",
    "h=2 h_kv=1 d_model=37 dk=11 seq=5 dtype=int8 weight_dtype=int4 group=8 value_weight_dtype=int8",
    "h=2 h_kv=1 d_model=37 dk=11 seq=5 weight_dtype=int8 group=16 fold=off",
    "h=2 d_model=37 dk=11 seq=5 dtype=int8 weight_dtype=int8 group=8",
    "h=4 d_model=20 dk=6 seq=70 q_len=true io_dtype=bf16 k_block=16",
    "h=2 d_model=9 dk=6 dv=4 seq=3 seq_kv=70 attention=cross cache=fixed dtype=bf16 io_dtype=f16",
    "h=2 d_model=9 dk=10 seq=5 seq_kv=7 attention=cross io_dtype=f16 batch=2",
    "h=4 h_kv=2 d_model=20 dk=18 dv=9 seq=1 seq_kv=90 cache=append cache_dtype=int8 window_left=70 rope=half",
    "h=4 h_kv=2 d_model=20 dk=5 dv=3 seq=6 seq_kv=21 cache=append cache_dtype=int8 cache_layout=bhsd batch=2",
    "h=4 h_kv=2 d_model=20 dk=18 dv=9 seq=1 seq_kv=75 cache=append dtype=f16 batch=2",
    "h=4 h_kv=2 dk=6 dv=4 seq=3 seq_kv=21 project=none attention=cross cache=fixed cache_dtype=int8 rope=half",
    "h=8 d_model=150 dk=6 dv=18 seq=9 dtype=f16 sum_dtype=f16",
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=3 seq_kv=21 cache=append qk_norm=rms norm_span=all cache_dtype=int8",
    "h=2 d_model=10 dk=6 dv=3 seq=1 seq_kv=75 cache=append cache_dtype=int8 cpu=neoverse_v2",  # several vectors of keys
    "h=4 h_kv=2 d_model=10 dk=6 dv=3 seq=1 seq_kv=75 cache=append cache_dtype=int8 attend_dtype=bf16",
    "h=4 h_kv=1 d_model=9 dk=64 seq=2 seq_kv=150 cache=append cache_dtype=int8",  # products of integers
    "h=4 h_kv=1 d_model=9 dk=64 seq=2 seq_kv=150 cache=append cache_dtype=int8 mask=add",
    "h=4 h_kv=2 dk=6 dv=3 seq=1 seq_kv=75 project=none attention=cross cache=append mask=add mask_dims=hk",
    "h=8 d_model=150 dk=6 dv=18 seq=9 seq_kv=11 attention=cross dtype=f16 sum_dtype=f16",
    "h=2 d_model=12 dk=8 seq=19 seq_kv=30 attention=cross causal=true key_rows=8 probs=true",
    "h=2 dk=18 dv=16 seq=21 project=none kv_start=true dtype=bf16 layout=bhsd batch=3",
    "h=4 h_kv=2 d_model=37 dk=10 seq=21 dtype=bf16 weight_dtype=int4 value_weight_dtype=int8",
    "h=2 d_model=75 dk=34 seq=9 dtype=bf16 weight_dtype=int4 group=40",
    "h=2 d_model=40 dk=10 seq=21 seq_kv=9 attention=cross k_block=16 q_len=true batch=2 residual=true",
    "h=2 d_model=37 dk=5 seq=21 q_len=true batch=2 norm=post",
    "h=2 d_model=37 dk=5 seq=21 batch=2 norm=pre q_len=true dtype=bf16",
    "h=2 d_model=37 dk=5 seq=21 q_len=true norm=pre residual=true ffn=50 ffn_act=silu ffn_gate=true k_block=16",
    "h=2 d_model=37 dk=5 seq=21 norm=post residual=true ffn=40 ffn_act=gelu_tanh dtype=int8",
    "h=2 d_model=12 dk=5 y_width=33 seq=21 ffn=40 dtype=bf16",
    "h=2 d_model=12 dk=5 seq=21 ffn=64 dtype=bf16",
    "h=2 d_model=12 dk=5 seq=21 ffn=20 norm=sandwich norm_kind=rms residual=true q_len=true",
    "h=2 d_model=12 dk=5 seq=21 ffn=20 norm=pre residual=true parallel=true dtype=bf16",
    "h=2 d_model=40 dk=6 seq=9 dtype=int8 weight_dtype=int4 group=16 attend_dtype=bf16",
    "h=2 d_model=12 dk=5 seq=9 ffn=21 ffn_act=relu2 batch=2 norm=ffn",
    "h=2 d_model=24 dk=5 seq=9 dtype=bf16 norm=pre residual=true ffn=40 ffn_act=relu ffn_dtype=int8",
    "h=2 d_model=24 dk=5 seq=21 dtype=bf16 weight_dtype=int8 norm=pre ffn=40 parallel=true ffn_dtype=f16",
    "attention=none d_model=37 seq=21 q_len=true batch=2 norm=pre residual=true out_act=silu",
    "attention=none d_model=37 y_width=29 seq=41 dtype=bf16 io_dtype=bf16",
    "attention=none d_model=37 seq=21 dtype=bf16 norm=pre residual=true ffn=20 parallel=true",
    "attention=none d_model=37 y_width=29 seq=21 dtype=int8 ffn=20",
    "h=1 d_model=20 dk=6 seq=70 window_left=5 window_right=35 dtype=bf16",  # a maximum of all tiles
]
PARTS = 8  # of the configs, which are tried one after the other: most mutations are seen soon

HEALTHY = ("nothing", "base/version.lua", "return", "return")  # must survive

KERNEL = "../templates/kernel.c.in"
CALLS, PACKING, POOL = (f"../runtime/parts/{part}.c" for part in ("calls", "packing", "pool"))
RUN = "if (status == MHAGEN_OK) run_all(args);"
REFUSE = "if (status != MHAGEN_OK) return status;\n  const environment before"
PACK = "if (status == MHAGEN_OK) mhagen_pack("

# what breaks, file below gen/, text, its replacement
MUTATIONS = [
    ("columns of Q, K and V in each other's place", "stage/product.lua", "column = stage.c.column })",
     "column = 0 })"),
    ("a part's panel from another lane on", "stage/product_packed.lua", "to = to + from - at,", "to = to,"),
    ("a part's columns from another one on", "stage/product_packed.lua", "(matrix, from - c.column)",
     "(matrix, 0)"),
    ("a part's bias in another place", "stage/product_packed.lua", "whole.bias.section), 1",
     "whole.bias.section) - c.column, 1"),
    ("rows of one product in the first place", "stage/product.lua", "{ row = i * run.size + run.at, size",
     "{ row = 0, size"),
    ("a stride of K rows", "stage/product.lua", "p.x:at(layouts.at(a, row))", "p.x:at(row * (a.row - 1))"),
    ("a K step of A", "way/outer.lua", "a.p:at(step.k * a.k_stride + r * a.row)", "a.p:at(step.k + r * a.row)"),
    ("a last block of rows, some of them made twice", "schedule/cut.lua", "at = n - size }", "at = n - size - 1 }"),
    ("the lane of a row of A", "way/lane.lua", "fma(r, b, acc, held, r % lanes)", "fma(r, b, acc, held, 0)"),
    ("the lane of a K step of A", "way/lane.lua", "fma(r, b, acc, held[r], step.i % lanes)",
     "fma(r, b, acc, held[r], 0)"),
    ("columns of mmla", "way/mmla.lua", "(c - 1) + r % 2]", "(c - 1)]"),
    ("words of the context that lie side by side", "stage/attend.lua",
     "ways.interleave(plan.attend.context.scheme) > 1", "ways.interleave(plan.attend.context.scheme) < 2"),
    ("rows of pairs that lie side by side", "stage/convert.lua", "+ interleave * n)", "+ n)"),
    ("rows of bytes that lie side by side", "emit/quantize.lua", 'integers(1, word, used)', 'integers(0, word, used)'),
    ("the bias of mmla", "emit/ending.lua", "(next_chunk or bias_last and more)", "next_chunk"),
    ("the second word of a column", PACKING, "fill->width + behind, deep,", "fill->width + behind, 1,"),
    ("halves of a pair on Arm", "isa/neon_i8mm.lua", "vzip1q_u16(low, high)", "vzip1q_u16(high, low)"),
    ("a row of A in a tile", "way/outer.lua", "a.p:at(step.k * a.k_stride + r * a.row)",
     "a.p:at(step.k * a.k_stride + (r - r % 2) * a.row)"),
    ("the last K steps of a tile", "emit/gemm.lua", "block(t, tile, sums, tile.steps % tile.unroll,",
     "block(t, tile, sums, tile.steps % tile.unroll - 1,"),
    ("an accumulator that starts elsewhere", "emit/gemm.lua", "t:start(op, w, name, bias:at((c - 1)",
     "t:start(op, w, name, bias:at(c"),
    ("the scale of queries that are not projected", "emit/transpose.lua", 'return scale and t:op("mul"',
     'return not scale and t:op("mul"'),
    ("heads of keys that are not projected", "schedule/memory.lua", "(tensor.heads // self.head_blocks * tensor.head)",
     "(tensor.heads // self.head_blocks)"),
    ("heads that lie apart", "graph/layout.lua", "head = by_head and rows * width",
     "head = by_head and (rows - 1) * width"),
    ("rows of a head that lies apart", "graph/layout.lua", "row = by_head and width", "row = by_head and 2 * width"),
    ("the rows of keys that lie apart", "graph/init.lua", 'name = "k", rows = "seq_kv"', 'name = "k", rows = "seq"'),
    ("rows of y that are not projected", "emit/transpose.lua", "{ at = p.x:at(word_at(to, column)), row = to.row,",
     "{ at = p.x:at(word_at(to, column)), row = d,"),
    ("the end of y", "emit/transpose.lua", "at, out[j], to.columns)", "at, out[j], lanes)"),
    ("the last vector of a copied row", "stage/copy.lua", "row)), v.used)", "row)), 1)"),
    ("rows that tiles touch behind an input", "stage/copy.lua", "rows % group.key_rows > 0", "false"),
    ("the bias of queries", "emit/product.lua", "start = gemm.from_row", "start = gemm.from_zero"),
    ("the bias of columns", "emit/product.lua", "start = gemm.from_columns", "start = gemm.from_zero"),
    ("the bias of every chunk", "emit/ending.lua", 'tile.mode ~= "next" and tile.bias', "tile.bias"),
    ("rounds that move unevenly", "tape/roll.lua", "item.constants[s] - before.constants[s] ~= by", "not by"),
    ("arrays of two widths in one", "tape/arrays.lua", "ref.of.kind, ref.of.w.lanes }", "ref.of.kind }"),
    ("a value of one round that others use", "tape/arrays.lua", "other.text ~= ref.text or not", "not"),
    ("partial sums lost between chunks", "emit/ending.lua",
     'local t, next_chunk = K.t, tile.mode == "next"', "local t, next_chunk = K.t, false"),
    ("sums of groups that lose those before", "emit/epilogue.lua",
     'value, factors[at.c], old_value(t, target, at))', "value, factors[at.c], value)"),
    ("the words of the first group for all", "emit/product.lua", "group and expr.div(k0, group) or 0", "0"),
    ("scales of the first group of a row for all", "emit/product.lua",
     "count * scheme.scales_of_group * expr.div(k0, group)", "0"),
    ("sums of a group in the place of its scales", "emit/quantize.lua", "and scales:at(steps.scales)", "and scales"),
    ("values of bytes with a scale for each group", PACKING, "bits == packing->quant_bits ? packing->quant_group : 0",
     "packing->quant_group"),
    ("bytes with a scale for a whole column", "plan/init.lua",
     "kind == plan.cfg.weight_dtype and not quant.type and plan.cfg.group or nil", "nil"),
    ("values of bytes that are read as nibbles", "emit/product.lua",
     "local scheme = tile.b.scheme\n  local unroll", "local scheme = K.plan.weights.scheme\n  local unroll"),
    ("weights of the next step", "emit/gemm.lua", "step.i % in_step, {}", "(step.i + 1) % in_step, {}"),
    ("values times their scales twice", "emit/decode_context.lua", "{ scales = false }", "{}"),
    ("scores times the scales of other keys", "emit/decode.lua", "at.scales:at(c * w.lanes)", "at.scales:at(0)"),
    ("the second half of words of weights", "emit/gemm.lua", "part * (quant.deinterleave or 1)", "0"),
    ("weights in f16 that lie as those in bf16", "plan/pack.lua", "then return quant.deinterleave end",
     "then return 0 end"),
    ("quants and the scale of scores", PACKING, "(float)(to.scale * (double)*at)", "*at"),
    ("a write beyond the row of y", "emit/ending.lua",
     "row = row, rows = rows })", "row = row, rows = rows, exact = false })"),
    ("a read beyond the columns of x", "emit/transpose.lua", "at, columns, seconds)",
     "at, lanes, seconds)"),
    ("a read of the row after x", "emit/transpose.lua", "if r < used then", "if r <= used then"),
    ("the maximum of a tile", "emit/softmax.lua", 'local top = weights.reduce(t, w, "max"',
     'local top = weights.reduce(t, w, "min"'),
    ("how far a maximum rises", "emit/softmax.lua", 'local top = largest(t, tile, w, list, ("top_%s_"):format(name))',
     'local top = list[1]'),
    ("sums that stay as they are where a maximum rises", "emit/stored.lua",
     'put("sum", scaled(', 'put("test", scaled('),
    ("the largest score of the last tile alone", "emit/softmax.lua",
     't:op("max", w, "top_" .. name, t:op("load", w, "old_top_" .. name, at), top))', "top)"),
    ("the sum before a block that is done again", "emit/guard.lua", 'put("sum", load "before")',
     'put("sum", load "sum")'),
    ("integers of a pair in each other's place", "stage/widened.lua", "2 * k + n - 1", "2 * k + 2 - n"),
    ("the last pairs of weights", "stage/widened.lua", "if rows % each > 0 then", "if false then"),
    ("the last group of pairs of weights", "stage/widened.lua", "if steps % size > 0 then", "if false then"),
    ("zeros behind pairs of weights", "stage/widened.lua", 'K:each("row", all - rows,', 'K:each("row", 0,'),
    ("scales of the first integers for all", "stage/widened.lua", "from.scales:at(column)", "from.scales:at(0)"),
    ("the sum of weights", "emit/weights.lua", 't:op("add", w, "sum_" .. at.name, chains[chain], value)',
     't:op("max", w, "sum_" .. at.name, chains[chain], value)'),
    ("a pair of sums lost", "emit/weights.lua", "for i = 1, #list - step, 2 * step do",
     "for i = 1, #list - 2 * step, 2 * step do"),
    ("numbers that are cut off", "isa/scalar.lua", "bits + 0x7FFFu + ((bits >> 16) & 1u)", "bits"),
    ("small numbers of half precision", "isa/scalar.lua", "nearest(a * 16777216.0f) * 5.9604644775390625e-8f",
     "0.0f"),
    ("weights of attention that are not rounded", "emit/weights.lua",
     'return round and tile.scheme.group == 1 and round(t, at.v.w, name, p) or p', "return p"),
    ("weights over a maximum that is no integer", "emit/softmax.lua",
     "if tile.scheme.b.round then m, small[c] = weights.whole(", "if not t then m = weights.whole("),
    ("queries that are not rounded", "emit/rounding.lua",
     'if round then result = round(t, v.w, "rounded" .. name, result) end', ""),
    ("zeros behind rows that tiles read", "stage/convert.lua",
     "for word = paired.words_of_row(K.plan.isa, scheme, input.cols),", "for word = to.words,"),
    ("zeros behind rows of the context", "emit/transpose.lua", "to.filled and lanes or columns", "columns"),
    ("a tile of the first rows for all", "way/tile.lua", "s * (size * a.k_stride) + i * (size * a.row)",
     "s * (size * a.k_stride)"),
    ("a block of words of all rows", "graph/layout.lua", "tile_words and height or interleave",
     "tile_words and height - tile_words or interleave"),
    ("a word in its block", "graph/layout.lua",
     "block * (layout.tile_words * layout.k_stride)", "block * layout.tile_words"),
    ("what sums of tiles begin with", "way/tile.lua", "tile.init and t:op(does.add,",
     "false and t:op(does.add,"),
    ("products of the first tile for the next one", "emit/head.lua",
     "if behind then guard.products(K, group, ptrs, behind.key, behind.rows) end", ""),
    ("the products of a tile of keys twice", "emit/head.lua", "local behind = at + 1", "local behind = at"),
    ("scores in the place of others", "way/tile.lua", "of.store(sums, i, c - 1, 0)", "of.store(sums, i, 0, 0)"),
    ("sums that chunks begin anew", "way/tile.lua", "tile.continues and of.load_sum", "tile.blocks and of.load_sum"),
    ("sums of the first of four tiles", "emit/product.lua", "kept and sums:at(i * size) or sums", "sums"),
    ("the end of the tile that is being made", "emit/product.lua", "from = kept and -size or 0", "from = 0"),
    ("rows of the end of a tile that are made twice", "way/tile.lua", "record(full * some, among", "record(0, among"),
    ("words of one row for two", "emit/ending.lua", "layouts.rows_of_word(ends)", "1"),
    ("queries that are not scaled", "emit/epilogue.lua", "if scale then value =", "if not t then value ="),
    ("what is behind words of queries", "stage/attention.lua", "rows.height - rows.width)", "0)"),
    ("rows of V in the place of others", "stage/convert.lua", "p.rows:at((at + j) * row)", "p.rows:at(j * row)"),
    ("rows of V that no run has written", "stage/convert.lua", "p.bounds.stop + 1, all", "p.bounds.stop - 31, all"),
    ("words of another head behind those of a row of K", "stage/convert.lua", '"words", from:at(at), used)',
     '"words", from:at(at), K.plan.isa.lanes)'),
    ("a number of another head behind an odd dk", "emit/transpose.lua", "n - 1 - whole * lanes)", "n - whole * lanes)"),
    ("keys of an odd dk in pairs of others", "stage/convert.lua", "from:at(at + stage.words)", "from:at(at + 1)"),
    ("rows of Wo behind an odd dv", "stage/product_packed.lua", "row = steps }", "row = steps + 1 }"),
    ("what was behind pairs of queries", "emit/rounding.lua", "tiles.padded(x.scheme, words) - words)", "0)"),
    ("weights behind the last key", "emit/weights.lua", "tiles.padded(scheme, 1) - 1 do", "-1 do"),
    ("tiles that are not given back", "way/tile.lua", 't:op("tiles_off", t.isa.full)', ""),
    ("the context of the first group", "stage/product_groups.lua", "rows_at(piece, piece.a, a, g, from)",
     "rows_at(piece, piece.a, a, 0, from)"),
    ("blocks of half precision that are lost", "way/f16sum.lua", "if add then value =", "if not t then value ="),
    ("the first span for all", "way/f16sum.lua", "add(i * SPAN, SPAN)", "add(0, SPAN)"),
    ("the words behind the last span", "way/f16sum.lua", "if rest > 0 then add(whole * SPAN, rest) end", ""),
    ("sums of half precision that stay infinite", "way/f16sum.lua", "t:unless(found(), function()",
     "t:unless({}, function()"),
    ("sums that are finite made again", "way/f16sum.lua", "finite, own, value)", "finite, value, value)"),
    ("weights rounded to the wrong type", PACKING, "p->f16 ? write_rounded_f16 : write_rounded_bf16",
     "p->f16 ? write_rounded_bf16 : write_rounded_f16"),
    ("half precision that is cut off", PACKING, "half + (rest > middle ||", "half + (rest < 0 ||"),
    ("halves of pairs exchanged", "emit/epilogue.lua", "even[at.c], high)", "high, even[at.c])"),
    ("the last of odd rows twice", "emit/epilogue.lua", 't:op("zero", at.v.w, "none_" .. at.name)', "even[at.c]"),
    ("a sum of every second weight", "emit/weights.lua", '"\\x80\\x3F\\x80\\x3F"', '"\\x80\\x3F\\0\\0"'),
    ("powers of two that are too large", "isa/powers.lua", "math.floor(23.5 + 256", "math.floor(26.5 + 256"),
    ("powers of large maxima", "emit/stored.lua", "small, from, at_zero))", "small, from, from))"),
    ("weights that products take for zeros", "emit/probs.lua", '"normal" .. suffix, 2.0 ^ -126',
     '"normal" .. suffix, 0.0'),
    ("weights that overwrite those of another pair", "emit/weights.lua", '"store", w, nil, place(row, at.c), pair',
     '"store", w, nil, place(row // 2 * 2, at.c), pair'),
    ("values behind the last pair of rows", "stage/rows.lua", "t:when(whole * 2, stop,",
     "t:when(whole * 2 + 1, stop,"),
    ("copied values from the next pair on", "stage/copy.lua", "expr.div(first, 2) * 2", "expr.div(first, 2) * 2 + 2"),
    ("turned keys in pairs where they were not", "stage/rows.lua", "row:at(expr.share(at, 2)), numbers",
     "row:at(at), numbers"),
    ("second steps packed over the first ones", PACKING, "(int)(step % in_word) * bits", "(int)(step % in_word) * 0"),
    ("hidden values of every second key", "emit/context.lua", '"zero_low_if", "zero_high_if"',
     '"zero_low_if", "zero_low_if"'),
    ("rows of words at the scale of another row", "emit/ending.lua",
     '{ "row_scales", "in", of.row_scales }', '{ "row_scales", "in", of.row_scales:at(1) }'),
    ("sums of bytes that begin at zero", "emit/ending.lua", "init = scheme.unsigned and", "init = false and"),
    ("the bias of sums of words", "emit/ending.lua", "bias = p.bias and t:op", "bias = false and t:op"),
    ("the largest number of a row but its last ones", "emit/quantize.lua", 'K:vectors("i", numbers, function',
     'K:vectors("i", numbers // 2, function'),
    ("a row of integers beside the scale of the one before", "emit/quantize.lua",
     "q.scales:at(first * interleave + n))", "q.scales:at(0))"),
    ("the words of odd bytes", "emit/quantize.lua", "(row * parts + part) * own.group.width",
     "row * parts * own.group.width"),
    ("half of the words of a sum", "schedule/tiles.lua", "scheme.group > 1 and M.in_step(scheme) or 1", "1"),
    ("the last words of a row", "emit/quantize.lua", "if rest > 0 then words(whole * lanes, rest) end", ""),
    ("rows that are not finite", "emit/quantize.lua", 't:op("sub", w, "none" .. name, largest, largest)',
     't:op("zero", w, "none" .. name)'),
    ("the largest of a context but its last rows", "emit/quantize.lua",
     "if own.x.rows % 4 > 0 then look(own.x.rows // 4, own.x.rows % 4) end", ""),
    ("the scale of a context in the next vector", "emit/quantize.lua", "at.scales:at(lane), scale)",
     "at.scales:at(lane * 2), scale)"),
    ("inputs that no fill quantizes", "plan/walk.lua", "    run(nil)\n", ""),
    ("the last bytes of a word exchanged", "isa/scalar.lua", "(bits[2] & 255u) << 16 | (bits[3] & 255u) << 24",
     "(bits[3] & 255u) << 16 | (bits[2] & 255u) << 24"),
    ("the scale of every second row of queries", "emit/rounding.lua",
     'read(v, "1" .. name, at:at(distance * group.width), scale)',
     'read(v, "1" .. name, at:at(distance * group.width))'),
    ("rows of an input that are not widened", "stage/convert.lua", "(i * part.size + part.at) * input.cols",
     "part.at * input.cols"),
    ("rows before those of a run in a small cache", "stage/cache_append.lua",
     "memory:at(place, c.name):at(past * c.row)",
     "memory:at(place, c.name)"),
    ("scales of other rows", "stage/cache_append.lua", "memory:at(place, c.scales):at(past)",
     "memory:at(place, c.scales)"),
    ("the scales of a head", "stage/cache_append.lua", "p.scales:at(head * rows + row)", "p.scales:at(head + row)"),
    ("NaN in a row of integers", "stage/cache_append.lua", 'transpose.of_lanes(t, "add", test, "tests")', "zero"),
    ("the part of a tile of scores that some heads have", "emit/decode.lua",
     "r // own * w.lanes + part * own + r % own", "r // own * w.lanes + r % own"),
    ("scores of heads in the place of others", "emit/decode.lua", "parts = transpose.blocks(t, parts, \"t\", own)", ""),
    ("keys of a step that are rounded, with the scales of others", "emit/decode.lua", "scales and scales:at(row(r))",
     "scales"),
    ("values of a step with the scales of others", "emit/decode_context.lua", "ptrs.scales:at(from)", "ptrs.scales"),
    ("weights of a step that are not rounded", "emit/decode.lua",
     'if round then list[i] = round(', 'if false then list[i] = round('),
    ("a scale that copies leave out", "emit/widening.lua", 'if scale then\n', 'if false then\n'),
    ("the last numbers of a widened input", "stage/convert.lua",
     'suffix, p.x:at(at), v.used)', 'suffix, p.x:at(at), 1)'),
    ("an input that is not rounded", "stage/convert.lua",
     'return to.scheme.a.round(K.t, w, "nearest" .. name, number)', "return number"),
    ("rows of keys and values that are not rounded", "graph/layout.lua", "round = layout.held and scheme.b",
     "round = false"),
    ("a context that is not rounded", "emit/context.lua", "round = block.final and p.o.type.rounded", "round = false"),
    ("an input that fills a cache and is not widened", "rewrite/conversions.lua",
     "for _, fill in ipairs { true, false }", "for _, fill in ipairs { false }"),
    ("gains of a norm of rows", "stage/norm.lua", 'load("gain", p.gains)', 't:op("set", w, "gain", 1.0)'),
    ("biases of a norm of rows", "stage/norm.lua", "p.biases and t:op(", "false and t:op("),
    ("the mean of a norm of rows", "stage/norm.lua", "if mean then value", "if false then value"),
    ("rows of a norm that nobody asks for", "stage/norm.lua", "if not p.asked then return", "if true then return"),
    ("rows of keys without their norm", "stage/norm.lua", "if stage.of_keys then axis.queries = nil end", ""),
    ("the second block of a norm's rows", "stage/norm.lua", "block(own, b * lanes, lanes)", "block(own, 0, lanes)"),
    ("rows of X that are added to each chunk", "emit/ending.lua", "ipairs(tile.last and BESIDE or {})",
     "ipairs(BESIDE)"),
    ("columns of X that are added to others", "stage/product_groups.lua",
     "layouts.column_at(tensor, column)", "(tensor == stage.c and layouts.column_at(tensor, column) or 0)"),
    ("chunks that are activated", "emit/ending.lua", "return tile.last and activations", "return activations"),
    ("a gate that is added", "graph/layer.lua", "{ times = gate }", "{ add = gate }"),
    ("a gate without its activation", "graph/layer.lua", "{ c = gate, activate = cfg.ffn_act,", "{ c = gate,"),
    ("a feed-forward without its residual", "graph/layer.lua",
     "add = not in_branch and made or nil", "add = nil"),
    ("a feed-forward before its norm", "graph/layer.lua", "name, a = read,", "name, a = made,"),
    ("a feed-forward behind attention instead of beside it", "graph/layer.lua",
     "if (normed or cfg.norm == \"ffn\") and not cfg.parallel then", "read = made\n    if normed then"),
    ("weights of the feed-forward as those of the projections", "plan/pack.lua", "stage.apart and feeding or pack",
     "pack"),
    ("weights of the feed-forward that are left out", PACKING, "for (; p; p = p->beside)", "for (; p; p = NULL)"),
    ("rows of two types in one place", "rewrite/conversions.lua", '(stage.apart and "ffn_" or "")', '""'),
    ("a norm of the feed-forward's input left out", "graph/layer.lua", "(normed or cfg.norm == \"ffn\")", "(normed)"),
    ("words of an input that another product has made", "rewrite/conversions.lua",
     "(attend.passes or is_shared(list, input, scheme)) and of_layer(made) or made", "made"),
    ("a product alone without its activation", "graph/init.lua",
     'activate = cfg.out_act ~= "none" and cfg.out_act', 'activate = false and cfg.out_act'),
    ("a product alone of rows before their norm", "graph/layer.lua",
     "(reads or stage.passes) and graph.with(stage, { a = normed,",
     '(reads or stage.passes) and graph.with(stage, { a = stage.name ~= "output" and normed,'),
    ("a product alone whose gain is activated", "graph/layer.lua",
     'x and cfg.out_act == "none" and "gain1"', 'x and "gain1"'),
    ("a gain that the bias lacks", "stage/product_packed.lua",
     "gain = stage.branch_gain, terms = stage.bias.terms", "terms = stage.bias.terms"),
    ("a gain of a branch that its norm lacks", "stage/norm.lua", "gain = stage.branch_gain, terms", "terms"),
    ("a gain of the other branch", "graph/layer.lua", 'branch_gain = not in_branch and "gain2"',
     'branch_gain = not in_branch and "gain1"'),
    ("rows that a norm of a branch leaves out", "stage/norm.lua", "if add then result", "if false then result"),
    ("a norm of a branch with the weights of the other", "graph/layer.lua", 'norm(cfg, "2b"', 'norm(cfg, "1b"'),
    ("a branch without its norm", "graph/layer.lua", 'norm_behind(cfg, list, "1b", "branch", x, gain)', "list"),
    ("a norm with the weights of the other", "graph/layer.lua", "norm_behind(cfg, list, 2,",
     "norm_behind(cfg, list, 1,"),
    ("a coefficient of gelu beside bf16", "tape/activation.lua", "0.398805261", "0.418805261"),
    ("the denominator of gelu", "tape/activation.lua", "2.50663495", "2.5166"),
    ("the sign of a smooth activation", "tape/activation.lua", 't:op("sub", w, "minus", zero, x)', "zero"),
    ("a square of relu", "tape/activation.lua", 't:op("mul", w, "result", positive, positive)', "positive"),
    ("rows of X that are added to others", "stage/product_groups.lua",
     "rows_at(piece, piece[field], other, g, from)", "rows_at(piece, piece[field], other, 0, from)"),
    ("partial sums of y that are rounded", "stage/product_groups.lua", "or plan.arrays.round and stage.c.at",
     "or false and stage.c.at"),
    ("words of a feed-forward beside their places", "graph/layout.lua",
     "expr.share(column, M.stored(layout).across)", "column"),
    ("groups of values that are taken for one", "rewrite/paired.lua",
     "and not chosen.products.integers then\n    known", "then\n    known"),
    ("bfloat16 that is cut off in memory", "isa/avx2.lua", "_mm256_srli_epi32(_mm256_or_si256(sum, none), 16)",
     "_mm256_srli_epi32(_mm256_or_si256(bits, none), 16)"),
    ("inputs in pairs of a shorter row", "rewrite/paired.lua", "tiles.round_up(width, isa.lanes)",
     "tiles.round_up(width - 1, isa.lanes)"),
    ("heads of keys in pairs as far apart as ever", "graph/layout.lua", '"columns" and tiles.words(',
     '"columns" and 2 * tiles.words('),
    ("the scale of queries whose weights are rounded", "graph/init.lua", "query_scale = rounded and scale",
     "query_scale = rounded and 1.0"),
    ("a dropped causal limit", "score/causal.lua", "return s.place end", "return s.cfg.seq_kv - 1 end"),
    ("a causal limit off by one", "score/causal.lua", "return s.place end", "return s.place + 1 end"),
    ("masked tiles taken for open ones", "score/init.lua", "expr.div(row.last(inner or s) + 1, rows)",
     "expr.div(row.last(inner or s) + rows, rows)"),
    ("too few causal tiles", "score/init.lua", "expr.ceil_div(row.last(outer or final) + 1, rows)",
     "expr.div(row.last(outer or final) + 1, rows)"),
    ("a slope of another head", "stage/attend.lua", "own:packed_from(i)", "own:packed_from(0)"),
    ("a mask that hides what may be seen", "emit/mask.lua", '"allowed_" .. name, zero, x)',
     '"allowed_" .. name, x, zero)'),
    ("keys that a mask hides", "emit/softmax.lua", "if tile.edge or #scores.hides > 0 then", "if tile.edge then"),
    ("the mask of the first head", "score/mask.lua", "head * steps.h + query", "query"),
    ("the mask of the first queries", "score/mask.lua", "head * steps.h + query * steps.q", "head * steps.h"),
    ("the mask of the first batch entry", "score/mask.lua", "return M.steps(cfg).b end", "return 0 end"),
    ("a mask of another base", "emit/mask.lua", "\"log2e_\" .. name, types.LOG2E", "\"log2e_\" .. name, 1.0"),
    ("values of keys that a mask hides", "emit/softmax.lua", "for i, row in ipairs(tile.scores.hides) do",
     "for i, row in ipairs(tile.pass and tile.scores.hides or {}) do"),
    ("a byte beyond the mask", "emit/mask.lua", "p.mask:at(key), count)", "p.mask:at(key), w.lanes)"),
    ("slopes beside a power of two", "score/alibi.lua", "2 * (i - power) - 1", "2 * (i - power)"),
    ("a sink that takes no weight", "emit/head.lua", 'sum = t:op("add", w, "sum_" .. name, sum, p)',
     'sum = t:op("max", w, "sum_" .. name, sum, p)'),
    ("keys behind the last one of a part", "emit/head.lua", "local all = stop == group.keys.tiles",
     "local all = false"),
    ("tiles before the first one", "emit/head.lua", "from = early, to = span.lead",
     "from = span.lead, to = span.lead"),
    ("distances of the wrong sign", "score/alibi.lua", "key, at.origin)\n", "at.origin, key)\n"),
    ("biases beside a sink", "rewrite/fold.lua", ' and #scores.extras == 0', ''),
    ("biases that scores show", "rewrite/fold.lua", ' and not scores.shown\n', '\n'),
    ("scores in base 2", "emit/probs.lua", "1.0 / types.LOG2E", "1.0"),
    ("scores of the first head", "stage/attend.lua", "show(own, ptrs, p.scores:at(numbers))",
     "show(own, ptrs, p.scores)"),
    ("ends of the interval behind scores that are shown", "stage/attend.lua", "  ends_of(scores)\n", ""),
    ("keys that only scores show", "score/init.lua", "ipairs((scores.shown or scores).rows) do",
     "ipairs(scores.rows) do"),
    ("keys before the first one in scores", "emit/probs.lua", "name, -math.huge) end", "name, 0.0) end"),
    ("the sign of a capped score", "score/softcap.lua", 't:op("sub", w, "minus_far", zero, far), far)', "far, far)"),
    ("small scores that are capped", "score/softcap.lua", "0.13331923", "0.13"),
    ("places that do not move on with a cache", "score/past.lua", 'if cfg.cache == "append" then return s.past end',
     'if cfg.cache == "append" then return 0 end'),
    ("a key behind those in a cache", "score/past.lua", "(s.rows or s.cfg.seq) - 1 end",
     "(s.rows or s.cfg.seq) end"),
    ("rows of a cache in the first place", "stage/rows.lua",
     "return stage.c.at == \"cache\" and past or 0", "return 0"),
    ("the place of a key behind those in a cache", "emit/qk.lua", "(p.past or 0) + first - qk.first",
     "first - qk.first"),
    ("a past that has no room", "options/init.lua", "need.less and (plan.shortest or cfg)[need.less] or 0", "0"),
    ("one head's place in a cache for all", "schedule/memory.lua", "place.hb * section.each", "0 * section.each"),
    ("a cache of others as wide as tiles", "graph/layout.lua", "exact = layout.exact,", "exact = false,"),
    ("a margin in a cache of others", "schedule/memory.lua", "section.exact and section.count or", ""),
    ("values behind those in a cache of others", "stage/rows.lua", 'stage.c.operand ~= "values" or stage.c.exact',
     'stage.c.operand ~= "values"'),
    ("the last row of a cache that is copied", "score/init.lua", "bounds.stop, last + 1) or last + 1",
     "bounds.stop, last) or last"),
    ("copies of keys that are not there yet", "stage/copy.lua", 'cached and "copies" or nil', "nil"),
    ("rows that a cache keeps in the first place", "stage/copy.lua", "rows_of.rows_before(stage, past) * copy.row",
     "0"),
    ("rows of the input of a cache", "graph/init.lua", 'rows == "seq" and cfg.seq or options.key_rows(cfg)',
     'rows == "seq" and cfg.seq or cfg.seq_kv'),
    ("a norm of heads in a cache that lie apart", "plan/arrange.lua",
     "if lanes_of.spans_heads(list) then least = cfg.h end", ""),
    ("a norm that finds no workspace when filling", "plan/init.lua", "or stage.qk and stage.qk.norm\n", "\n"),
    ("inputs that are widened where there is no workspace", "plan/init.lua",
     "local needs = stage.inputs or", "local needs ="),
    ("rows that are kept where there is no workspace", "plan/init.lua",
     "stage.c and stage.c.staged or stage.qk and", "stage.qk and"),
    ("a last tile of keys before its place", "emit/decode.lua", "plan.cfg.seq_kv - step.keys",
     "plan.cfg.seq_kv - 2 * step.keys"),
    ("the queries of a step's first head", "emit/decode.lua", "q = p.q:at(h * ptrs.q_head)", "q = p.q"),
    ("weights behind the last key of a step", "emit/decode.lua", "p.p:at(p.stop + i * w.lanes), none)",
     "p.p:at(p.stop + (i + 1) * w.lanes), none)"),
    ("the last keys of a step", "emit/decode_context.lua", "t:when(from, p.stop,", "t:when(from + 1, p.stop,"),
    ("the last keys of a step of integers", "emit/decode_context.lua", "{ from = from, stop = p.stop }",
     "{ from = from, stop = p.stop - 1 }"),
    ("rows of values in words", "emit/decode_words.lua", "rows[2], rows[3], n)", "rows[3], rows[2], n)"),
    ("words of a step's context", "emit/decode_context.lua", "p:at(expr.share(at, context.scheme.group)), value)",
     "p:at(at), value)"),
    ("words of a step's heads", "rewrite/decode.lua", "head = width(attend.out)", "head = attend.out"),
    ("a step's query that sees no key", "emit/decode.lua",
     "end, function() clear(K, ptrs.out, ptrs.probs) end)", "end)"),
    ("keys that a mask hides from a step", "emit/decode.lua",
     "for i, row in ipairs(scores.hides) do", "for i, row in ipairs {} do"),
    ("a step's mask of the first head", "emit/decode.lua",
     "mask.by_head(K.plan) and h * mask.row_count(K.plan) or 0)", "0)"),
    ("a step's query from which a mask hides all keys", "emit/decode.lua",
     "function() without_keys(K, p) end", "function() end"),
    ("a step's sink of a query that sees no key", "emit/decode.lua",
     "      if p.test then\n        local none", "      if false then\n        local none"),
    ("hidden values of a step", "emit/decode.lua",
     "if #scores.hides > 0 and not step.words then context.without_hidden(K, step, ptrs) end", ""),
    ("hidden values of a step of integers", "emit/decode_words.lua", '"seen" .. i, hidden, value)',
     '"seen" .. i, small, value)'),
    ("values that a step hides from another head", "emit/decode_context.lua",
     "if not mask.by_head(K.plan) then return masked", "if true then return masked"),
    ("weights of a step's unseen keys", "emit/decode.lua",
     't:op("zero_if", w, "visible", t:op("lt", w, "behind", last, key), value)', "value"),
    ("probs of a step's first query", "stage/decode.lua",
     "* cfg.seq * cfg.seq_kv) + r * cfg.seq_kv)", "* cfg.seq * cfg.seq_kv))"),
    ("kv_len ignored", "score/kv_len.lua", "return s.len - 1 end", "return s.cfg.seq_kv - 1 end"),
    ("kv_start ignored", "score/kv_start.lua", "return s.pad end", "return 0 end"),
    ("a key before kv_start", "score/kv_start.lua", "return s.pad end", "return s.pad - 1 end"),
    ("angles of a kind's first group", "stage/angles.lua", "i * group.used + group.q0", "group.q0"),
    ("angles of the first group of rows", "stage/angles.lua", "(i + part.first) * ROWS", "i * ROWS"),
    ("a sine with the sign of the other coordinate", "stage/angles.lua", '"second", minus, cosine',
     '"second", sine, cosine'),
    ("angles of keys that stop at a vector", "stage/angles.lua", "if 2 * used > lanes then", "if used > lanes then"),
    ("angles of keys at their places", "emit/qk.lua", "qk.given and first or (p.past", "(p.past"),
    ("angles of queries a table's row apart", "emit/qk.lua", "along, at = group.width, 0",
     "along, at = group.width + 1, 0"),
    ("angles of the first batch entry", "plan/walk.lua", "b * (angles.rows * cfg.rope_dims // 2)", "0"),
    ("cosines of queries for keys", "graph/qk.lua", "given[#given - 1].name", "given[1].name"),
    ("angles that no run needs", "options/rows.lua",
     '{ pointer = "k_rope_sin", of = "run", with = { attention = "cross", cache = "none" } }',
     '{ pointer = "rope_cos", of = "pack" }'),
    ("angles that no fill needs", "options/rows.lua",
     '{ pointer = "k_rope_sin", of = "run", with = { cache = "fixed" } }', '{ pointer = "k_rope_cos", of = "pack" }'),
    ("a fill without a workspace for angles", "plan/init.lua", "stage.inputs or stage.as_given or", "stage.inputs or"),
    ("ranges of rows that begin at 0", "emit/row_keys.lua", "first = to, last", "first = to:at(stride(K.plan)), last"),
    ("a key behind the range of a row", "emit/row_keys.lua", 't:op("set", w, "one", 1.0)', 't:op("zero", w, "one")'),
    ("a key behind the range of a row, one by one", "emit/row_keys.lua",
     't:op("index", w, "row_last", stop - 1)', 't:op("index", w, "row_last", stop)'),
    ("tiles that some row of a group sees", "emit/row_keys.lua",
     'of = "row_first", sign = -1, seen = true', 'of = "row_first", sign = 1, seen = true'),
    ("tiles that not all rows of a group see", "emit/row_keys.lua",
     '"common_to", of = "row_last", sign = -1', '"common_to", of = "row_last", sign = 1'),
    ("ranges from the first row of a run", "score/row_keys.lua", "return 2 * query end", "return query end"),
    ("ranges of the first batch entry", "score/row_keys.lua", "return 2 * cfg.seq end", "return 0 end"),
    ("the range of a row that nobody asks for", "emit/row_keys.lua",
     "p.left and expr.min(p.left, group.used) or group.used", "group.used"),
    ("the range of a decode step's first row", "emit/row_keys.lua", "s.ranges:at(2 * r)", "s.ranges:at(0)"),
    ("a key behind the range of a decode step", "emit/row_keys.lua",
     "usual = K.plan.cfg.seq_kv }) - 1", "usual = K.plan.cfg.seq_kv })"),
    ("a block that is taken for the only one", "emit/head.lua",
     "expr.max(span.lead - span.begin, span.finish - span.lead - most), 1", "span.finish - span.lead - most, 1"),
    ("a long span that is taken for one block", "emit/head.lua",
     "expr.max(span.lead - span.begin, span.finish - span.lead - most), 1", "span.lead - span.begin, 1"),
    ("ranges that are not checked", CALLS, "in_range(ints, need->ints *", "in_range(ints, 0 *"),
    ("ranges of the first batch entry alone are checked", CALLS, "++b, ints += (ptrdiff_t)need->ints * kernel->seq",
     "++b"),
    ("ranges of rows that nobody asks for are checked", CALLS, "(rows ? rows[b] : kernel->seq)", "kernel->seq"),
    ("a valid key that is not projected", "stage/rows.lua",
     '"from" .. run.at, expr.div', '"from" .. run.at, expr.ceil_div'),
    ("a row of y that nobody asks for", "emit/asked.lua", "t:when(of.size - 1, of.left,",
     "t:when(of.size - 2, of.left,"),
    ("a row of y too many from a tile", "emit/asked.lua", '"int", of.left }', '"int", of.left + 1 }'),
    ("weights of a row that nobody asks for", "emit/transpose.lua", "t:when(query, to.asked, store)",
     "t:when(query - 1, to.asked, store)"),
    ("a group of queries left out", "schedule/groups.lua", "return group.q0, group.used end",
     "return group.q0 + 1, group.used end"),
    ("queries that are not projected", "stage/rows.lua", "{ stop = place.rows }", "{ stop = place.rows - 1 }"),
    ("keys that causal rows see left out", "score/init.lua", 'bound(row, "last", values.rows - 1)',
     'bound(row, "last", values.rows - 2)'),
    ("a lane that is done again in another way", "emit/safe_path.lua", 'good, load "max_end", negmax)',
     'good, t:op("zero", w, "never_" .. name), negmax)'),
    ("values of hidden keys that leak", "emit/head.lua", "filtered = masked and head.safe", "filtered = false"),
    ("a row without keys that is not bo", "rewrite/fold.lua",
     "if scores.keyless or shared(cfg) or", "if shared(cfg) or"),
    ("a group without keys that is left out", "emit/head.lua", "if #parts > 1 and last", "if last"),
    ("a row without keys divided by its sum", "emit/head.lua", "sum, K.plan.scores.keyless and K.plan)", "sum, false)"),
    ("the maximum of a row without keys", "emit/softmax.lua",
     "if scores.keyless and #scores.hides == 0 and not old then", "if false then"),
    ("no way back from an overflow", "emit/safe_path.lua", '"below", both[c],',
     '"below", t:op("zero", v.w, name "none"),'),
    ("no test for finite results", "emit/epilogue.lua",
     't:update(tests[at.c], "fma", value, zeros[at.c], tests[at.c])', ""),
    ("the maximum over the first keys only", "emit/stored.lua", "bound = full, stop = group.keys.tiles }",
     "bound = 1, stop = 1 }"),
    ("a division by the sum left out", "emit/context.lua",
     'if block.final then ends[#ends + 1] = epilogue.scale(t, "o", inverse) end', ""),
    ("a chain of a sum left out", "emit/gemm.lua", "while distance < #sums do", "while distance < 1 do"),
    ("merged weights of another column", "stage/product_packed.lua", "pack.term(stage.weights, block.at)",
     "pack.term(stage.weights, 0)"),
    ("weights not normalized", "emit/probs.lua", 'large, inverse)', 'large, large)'),
    ("subnormal weights", "emit/probs.lua", "2.0 ^ -125", "0.0"),
    ("weights of unseen keys", "emit/probs.lua", "if what.scores.masked then", "if false then"),
    ("a wrong scale of scores", "graph/init.lua",
     "types.LOG2E / math.sqrt(cfg.dk)", "types.LOG2E / math.sqrt(cfg.dk + 1)"),
    ("a scale that is ignored", "graph/init.lua", "return cfg.scale and types.LOG2E * cfg.scale or", "return"),
    ("another scale in the bias", "stage/product_packed.lua",
     "used = used, width = width, scale = stage.scale", "used = used, width = width, scale = 1.0"),
    ("a packed column off by one", "stage/product_packed.lua", "at = run.at }", "at = run.at + 1 }"),
    ("a root of two", "isa/avx512.lua", "1.04427373f", "1.04428373f"),
    ("exp2 of the lowest numbers", "tape/exp.lua", "M.lowest = -100.0", "M.lowest = -160.0"),
    ("heads that share their values", "stage/attention.lua", "kv * context_of.operand(plan).head", "0"),
    ("keys of tasks in one place", "plan/tasks.lua", "e.heads_slot, e.task_slot = e.hb, i",
     "e.heads_slot, e.task_slot = 0, i"),
    ("batch entries in one place", "plan/walk.lua", "slot * plan.memory.entry.total", "0"),
    ("a workspace one section short", "stage/attend.lua", "statistics.count(plan))", "1)"),
    ("a block of the output left out", "schedule/groups.lua", "add(run.at + i * run.size,", "add(run.at,"),
    ("the low part of another broadcast", "isa/avx512.lua", 'low = "$low$1)"',
     'low = "$p_setzero_ps()"'),
    ("a merged matrix transposed", "rewrite/fold.lua", "b_flipped = true", "b_flipped = false"),
    ("the bias of a merged matrix", "rewrite/fold.lua", 'bias = times_wk "bq"', "bias = false"),
    ("the next head's absorbed values", "stage/product.lua", "at(at.head * size)",
     "at((plan.hb - 1 - at.head) * size)"),
    ("an infinite key that is lost", "emit/weights.lua", "if tile.test then", "if false then"),
    ("the rows of transposed queries", "stage/attention.lua",
     "row = rows.tensor.row, columns", "row = columns, columns"),
    ("the bias of values twice", "rewrite/fold.lua", "[values] = { graph.with(values, { bias = false }) }",
     "[values] = { values }"),
    ("y written after an error", KERNEL, RUN, RUN + " else if (args && args->y) args->y[0] = 0;"),
    ("the workspace written after an error", KERNEL, RUN,
     RUN + " else if (args && args->workspace) *(char *)args->workspace = 0;"),
    ("packed weights written after an error", KERNEL, RUN,
     RUN + " else if (args && args->packed) *(char *)args->packed = 0;"),
    ("an input written after an error", KERNEL, RUN, RUN + " else if (args && args->q) *(char *)args->q = 0;"),
    ("y written after an error on a pool", POOL, REFUSE,
     "if (status != MHAGEN_OK && args && args->y) args->y[0] = 0; " + REFUSE),
    ("the workspace written after an error on a pool", POOL, REFUSE,
     "if (status != MHAGEN_OK && args && args->workspace) *(char *)args->workspace = 0; " + REFUSE),
    ("a length that is corrected", CALLS, "need->most)) return MHAGEN_ERR_LENGTH;",
     "need->most)) return *(int *)(uintptr_t)pointer = 0, MHAGEN_ERR_LENGTH;"),
    ("packed written after an error of packing", KERNEL, PACK,
     "if (status != MHAGEN_OK && packed) *(char *)packed = 0; " + PACK),
    ("a bias written after an error of packing", KERNEL, PACK,
     "if (status != MHAGEN_OK && weights && weights->bo) *(char *)weights->bo = 0; " + PACK),
    ("a variable that counts the runs", KERNEL, RUN,
     RUN + " static int runs; if (++runs < 0) return MHAGEN_ERR_NULL;"),
    ("a function of libc", KERNEL, RUN, RUN + " else if ((int)status == 100) __builtin_abort();"),
    ("a turn in the other direction", "emit/qk.lua", 't:op("sub", w, "first_turned"',
     't:op("add", w, "first_turned"'),
    ("pairs of another kind", "emit/qk.lua", "rows = { first = 2 * i, second = 2 * i + 1 } end",
     "rows.second = i + 1 end"),
    ("the place of a query", "emit/qk.lua", "p.place - qk.first", "0"),
    ("the place of a key", "emit/qk.lua", "row_of_tables * width", "(row_of_tables + 1) * width"),
    ("columns of a pair's sine", "graph/qk.lua", '{ "rope_sin", -1.0 }', '{ "rope_sin", 1.0 }'),
    ("weights merged across a turn", "rewrite/fold.lua", 'and not attend.qk', ""),
    ("a bias of keys that softmax would not drop", "rewrite/fold.lua", "#scores.changes == 0 and not keys.qk",
     "#scores.changes == 0"),
    ("a mean of other columns", "emit/norm.lua", "used - 0.5", "used + 0.5"),
    ("the share of a mean square", "emit/norm.lua", 'constant("share", 1.0 / n)', 'constant("share", 1.0 / (n + 1))'),
    ("an epsilon that is left out", "emit/norm.lua", 'constant("epsilon", norm.eps)', 'constant("epsilon", 0.0)'),
    ("the gain of a query", "emit/qk.lua", "own.gains:at(row)", "own.gains:at(0)"),
    ("a gain of a key's head", "emit/qk.lua", "(span * within + head) * qk.dk", "span // 8"),
    ("a block of heads and its gains", "graph/qk.lua", '"column", width = qk.dk', '"column", width = 0'),
    ("a gain for each head", "stage/attention.lua", "p.gains:at(qk.q_heads and i * cfg.dk or 0)", "p.gains"),
    ("a gain that is not given", PACKING, "? 1.0 : 0.0;", "? 0.5 : 0.0;"),
    ("the angle of a pair", "graph/rotation.lua", "log(theta) * i / pairs", "log(theta) * i / (pairs + 1)"),
    ("tables of another kernel that are taken", CALLS, "== kernel->tables_fingerprint;", "!= 0;"),
    ("a quarter of a turn", PACKING, "m->null == MHAGEN_COSINES);", "m->null == MHAGEN_SINES);"),
    ("a batch that rounds otherwise", "plan/init.lua",
     "cfg.k_block or 256", "cfg.k_block or cfg.batch > 1 and 16 or 256"),
]


def prepare(directory):
    """A copy of what the generator is built from, already built."""
    for name in "bench", "gen", "scripts", "templates", "runtime":
        shutil.copytree(fuzz.ROOT / name, directory / name)
    shutil.copytree(fuzz.ROOT / "tests/check", directory / "tests/check")
    shutil.copy(fuzz.ROOT / "tests/many.lua", directory / "tests")
    shutil.copy(fuzz.ROOT / "build.ninja", directory)
    build(directory)


def build(directory):
    subprocess.run(["ninja", "-C", directory, "build/mhagen", "build/mhagen-many"], check=True,
                   stdout=subprocess.DEVNULL)


def stale():
    """The mutations whose text is not there exactly once."""
    return [name for name, file, old, _ in MUTATIONS if (fuzz.ROOT / "gen" / file).read_text().count(old) != 1]


def no_lua():
    """The mutations that luac does not read: these would be caught without a kernel."""
    def read(file, old, new):
        text = (fuzz.ROOT / "gen" / file).read_text().replace(old, new)
        return subprocess.run(["luac5.4", "-p", "-"], input=text, text=True, stderr=subprocess.DEVNULL).returncode == 0
    return [name for name, file, old, new in MUTATIONS if file.endswith(".lua") and not read(file, old, new)]


def texts(directory, configs, isa):
    """{number of a config: digest of its kernel} by a tree's generator, without those that it does not write.
    configs: (number, config) of each."""
    digests = collections.defaultdict(hashlib.sha256)
    with tempfile.TemporaryDirectory() as out:
        lines = pathlib.Path(out, "configs")
        lines.write_text("".join(f"{config} isa={isa} name=c{i}\n" for i, config in configs))
        (lines.parent / "kernels").mkdir()
        subprocess.run([directory / "build/mhagen-many", lines.parent / "kernels", lines], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for path in sorted((lines.parent / "kernels").glob("c[0-9]*")):
            digests[int(re.match(r"c(\d+)", path.name)[1])].update(path.read_bytes())
    return {number: digest.hexdigest() for number, digest in digests.items()}


@functools.cache
def healthy_texts(configs, isa):
    return texts(fuzz.ROOT, configs, isa)


def reached(directory, mutation, configs, isa):
    """Those whose kernel a mutation changes; all of them where the change is not in the kernel."""
    if mutation is HEALTHY or mutation[1] in (CALLS, PACKING, POOL):
        return configs
    healthy, mutated = healthy_texts(configs, isa), texts(directory, configs, isa)
    return [(i, config) for i, config in configs if healthy.get(i) != mutated.get(i)]


def survives(directory, mutation, run_directory, configs):
    """None if the checker catches it with one of the configs, else what happened."""
    _, file, old, new = mutation
    source = directory / "gen" / file
    text = source.read_text()
    source.write_text(text.replace(old, new))
    try:
        build(directory)
        run = fuzz.Run(directory / "build/mhagen", run_directory, 1, precompile=True)
        chains = {isa: found for isa in ISAS if (found := fuzz.toolchains(isa)[0])}
        assert chains, "mutate: no ISA can be tried; build/mhagen lists them: ninja build/mhagen"
        widest, tried = max(filter(tools.native, chains), key=list(chains).index), 0
        others = [isa for isa in chains if isa != widest]
        for isa, part in itertools.product([widest, *others], range(PARTS)):
            items = [fuzz.Item(fuzz.parse_config(config), isa, chains[isa][0], 0, i)
                     for i, config in reached(directory, mutation, tuple(enumerate(configs))[part::PARTS], isa)]
            if items:
                run.check(items)
            tried += len(items)
            if any(item.failed for item in items):
                return None
        return f"survived: {tried} kernels passed"
    finally:
        source.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-k", metavar="WORD", default="", help="only mutations with this word")
    parser.add_argument("--configs", metavar="WORD", default="", help="try only configs with this word")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if stale():
        sys.exit(f"mutate: these are stale: {', '.join(stale())}")
    chosen = [mutation for mutation in MUTATIONS if options.k in mutation[0]]
    chosen.insert(0, HEALTHY)
    configs = tuple(config for config in CONFIGS if options.configs in config)
    build(fuzz.ROOT)
    alive = 0
    with tempfile.TemporaryDirectory(prefix="mhagen-mutate-") as temporary:
        trees = queue.Queue()
        for i in range(options.jobs):
            tree = pathlib.Path(temporary) / f"tree{i}"
            tree.mkdir()
            prepare(tree)
            trees.put(tree)

        def one(number):
            tree = trees.get()
            run_directory = pathlib.Path(temporary) / f"run{number}"
            run_directory.mkdir()
            try:
                return survives(tree, chosen[number], run_directory, configs)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for mutation, outcome in zip(chosen, pool.map(one, range(len(chosen)))):
                if mutation is HEALTHY:
                    if outcome is None:
                        sys.exit("mutate: the healthy generator fails; see tests/fuzz.py --grid")
                    continue
                alive += outcome is not None
                print(f"{'caught ' if outcome is None else 'MISSED '} {mutation[0]}"
                      + (f": {outcome}" if outcome else ""), flush=True)
    print(f"{len(chosen) - 1} mutations, {len(chosen) - 1 - alive} caught, {alive} missed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
