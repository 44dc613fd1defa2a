// Sparse, wire: codes whole blocks of float32 values in SIMD, chosen at run time, and gives the
// same bytes and values as block_formats.hpp. It does not handle shorter blocks.
#pragma once

#include <cstddef>

namespace gtopk::sparse {

void encode_bf16_blocks(const float* values, std::size_t blocks, std::byte* out);
void encode_fp16_blocks(const float* values, std::size_t blocks, std::byte* out);
void encode_int8_blocks(const float* values, std::size_t blocks, std::byte* out);
void decode_int8_blocks(const std::byte* in, std::size_t blocks, float* values);
void encode_four_bit_blocks(const float* values, std::size_t blocks, std::byte* out);
void decode_four_bit_blocks(const std::byte* in, std::size_t blocks, float* values);
void encode_two_bit_blocks(const float* values, std::size_t blocks, std::byte* out);
void encode_ternary_blocks(const float* values, std::size_t blocks, std::byte* out);
void decode_ternary_blocks(const std::byte* in, std::size_t blocks, float* values);
void encode_sign_blocks(const float* values, std::size_t blocks, std::byte* out);

}  // namespace gtopk::sparse
