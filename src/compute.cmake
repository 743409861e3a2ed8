# libmultihead: base, kernels, attention, module, nn.
mha_library(multihead SOURCES
  base/buffer.c base/context.c base/convert.c base/cpu.c base/file.c base/pool.c base/scratch.c
  base/status.c base/struct_copy.c base/tensor.c
  kernels/kern_dispatch.c kernels/isa/isa_portable.c
  attention/attn_backward.c attention/attn_backward_plain.c
  attention/attn_check.c attention/attn_forward.c attention/attn_mask.c attention/attn_plain.c
  attention/attn_position.c attention/attn_qk_norm.c attention/attn_rope.c attention/attn_row.c
  attention/attn_tiled.c attention/attn_visible.c
  attention/attn_wanted.c
  attention/feature_map.c attention/linear_attention.c
  attention/attn_merge.c attention/patterns.c
  module/kv_cache.c module/linear.c module/matmul.c module/module.c module/module_extra.c
  module/module_forward.c module/module_parameters.c
  nn/layers.c)

# So that the choices in it become masks and the loop becomes vectors.
set_source_files_properties(attention/feature_map.c PROPERTIES COMPILE_OPTIONS -fno-trapping-math)

# The files of src/kernels/isa are the only ones with machine flags.
set(isa_flags -O3 -fno-trapping-math)
set_source_files_properties(kernels/isa/isa_portable.c PROPERTIES COMPILE_OPTIONS "${isa_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(multihead_objects PRIVATE MHAI_HAVE_X86)
  target_sources(multihead_objects PRIVATE kernels/isa/isa_avx2.c kernels/isa/isa_avx512.c)
  set_source_files_properties(kernels/isa/isa_avx2.c PROPERTIES COMPILE_OPTIONS
    "${isa_flags};-mavx2;-mfma;-mf16c")
  set_source_files_properties(kernels/isa/isa_avx512.c PROPERTIES COMPILE_OPTIONS
    "${isa_flags};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
endif()
