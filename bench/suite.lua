-- Shapes of models in use, and the fraction of the peak that one core should reach on each with
-- the widest vectors. (kwt1 may exceed 1: with one head as wide as the model, projections fold.)
-- With norm and ffn a row has its model's whole layer as well, which --layers times.
-- Read by bench/suite.py: one row a line.
return {
  { id = "micro", d_model = 32, h = 4, dk = 8, seq = 16, target = 0.86 },
  { id = "small", d_model = 64, h = 4, dk = 16, seq = 32, target = 0.92 },
  { id = "odd", d_model = 100, h = 5, dk = 20, seq = 37, target = 0.88 },
  { id = "kwt1", d_model = 64, h = 1, dk = 64, seq = 98, target = 1.15, norm = "post", ffn = 256 },
  { id = "berttiny", d_model = 128, h = 2, dk = 64, seq = 128, target = 0.95, norm = "post", ffn = 512 },
  { id = "kwt3", d_model = 192, h = 3, dk = 64, seq = 98, target = 0.94, norm = "post", ffn = 768 },
  { id = "deit_ti", d_model = 192, h = 3, dk = 64, seq = 197, target = 0.95, norm = "pre", ffn = 768 },
  { id = "minilm", d_model = 384, h = 12, dk = 32, seq = 128, target = 0.95, norm = "post", ffn = 1536 },
  { id = "deit_s", d_model = 384, h = 6, dk = 64, seq = 197, target = 0.95, norm = "pre", ffn = 1536 },
  { id = "xformer_base", d_model = 512, h = 8, dk = 64, seq = 128, target = 0.95, norm = "post", ffn = 2048 },
  { id = "bert_base_128", d_model = 768, h = 12, dk = 64, seq = 128, target = 0.95, norm = "post", ffn = 3072 },
  { id = "bert_base_512", d_model = 768, h = 12, dk = 64, seq = 512, target = 0.95, norm = "post", ffn = 3072 },
  { id = "gpt2_1024", d_model = 768, h = 12, dk = 64, seq = 1024, causal = true, target = 0.93, norm = "pre", ffn = 3072, ffn_act = "gelu_tanh" },
  { id = "whisper_tiny", d_model = 384, h = 6, dk = 64, seq = 1500, target = 0.93, norm = "pre", ffn = 1536 },
}
