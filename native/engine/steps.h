/* The kinds of steps and their fields: the one declaration of them, which Python reads, too (`_native.step_fields`).

   A field is READ (the index of a value), MAYBE (the same, or -1), WRITE (the index of a value), or NUMBER (an integer, or
   the bits of a float32). All are int64. A step may have a list of further values that it reads. */

#ifndef INTACT8_STEPS_H
#define INTACT8_STEPS_H

/* A step that the caller computes: `index` says which. It reads the values of its list. */
#define FIELDS_call(READ, MAYBE, WRITE, NUMBER) WRITE(y) NUMBER(index)

/* y[i, …] = x[offset_x + Σ i·stride_x] at y[offset_y + Σ i·stride_y], of elements of `size` bytes; rank up to 8. Strides are
   in elements and may be negative or 0 (of x). */
#define FIELDS_copy(READ, MAYBE, WRITE, NUMBER)                                                                       \
    READ(x) WRITE(y) NUMBER(size) NUMBER(rank) NUMBER(offset_x) NUMBER(offset_y)                                      \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(d4) NUMBER(d5) NUMBER(d6) NUMBER(d7)                           \
    NUMBER(x0) NUMBER(x1) NUMBER(x2) NUMBER(x3) NUMBER(x4) NUMBER(x5) NUMBER(x6) NUMBER(x7)                           \
    NUMBER(y0) NUMBER(y1) NUMBER(y2) NUMBER(y3) NUMBER(y4) NUMBER(y5) NUMBER(y6) NUMBER(y7)

/* y[i] = the element of `size` bytes whose bits are `bits`. */
#define FIELDS_fill(READ, MAYBE, WRITE, NUMBER) WRITE(y) NUMBER(size) NUMBER(count) NUMBER(bits)

/* uint8 y = clamp(R(x / divisor) + zero, low, high) of float32 images (N, C, P) as (N, P, C); with C = 1: of any tensor. */
#define FIELDS_quantize(READ, MAYBE, WRITE, NUMBER)                                                                   \
    READ(x) WRITE(y) NUMBER(batch) NUMBER(channels) NUMBER(pixels) NUMBER(divisor) NUMBER(zero) NUMBER(low) NUMBER(high)

/* Operations of every element: y[i] of sizes d0 … is what the last instruction computes. `code` holds int64 words: for each
   value of the list its type, the dimensions that it has (bit i: d_i; it is broadcast along the others), zero and the bits of
   a float32 scale; for each instruction its operation, the registers of two arguments, and the bits of two doubles. Registers
   are the values of the list, and then the results of instructions; without any, the last value is the result. Types of what
   is read as float32: 0 float32, 1 (x - zero) scale of uint8, 2 int64; as int64: 3 int64, 4 uint8. y: 0 float32, 1 uint8
   clamp(R(v / divisor) + zero, low, high), both of floats only; 2 int64, 3 bool. */
#define FIELDS_chain(READ, MAYBE, WRITE, NUMBER)                                                                      \
    READ(code) WRITE(y) NUMBER(rank) NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(d4) NUMBER(d5) NUMBER(d6)     \
    NUMBER(d7) NUMBER(instructions) NUMBER(type) NUMBER(divisor) NUMBER(zero) NUMBER(low) NUMBER(high)

/* A convolution of uint8 images (N, D, H, W, C) with int8 weights (O, kernel_d, kernel_h, kernel_w, C / groups), with
   `channels_first` (O, C / groups, kernel_d, kernel_h, kernel_w), or a transposed one with flipped weights of the same order:
   acc = bias + Σ (x - zero_x)·w; y = clamp(R(float32(acc)·ratio) + zero, low, high). ratio_negative holds for acc < 0. `bits`
   is 8, or 4 where the weights are pairs of w + 8 in a byte, the first in its low half.

   Behind it, in the same pass over the results where they are given: with `residual`, y = clamp(R((y - zero) own_ratio +
   (residual - residual_zero) residual_ratio) + sum_zero, sum_low, sum_high); with `table`, y = table[y]. With
   residual_joint, the residual is added before the only rounding: R(acc·ratio + (residual - residual_zero) residual_ratio). */
#define CONV_GEOMETRY(NUMBER)                                                                                         \
    NUMBER(batch) NUMBER(depth) NUMBER(height) NUMBER(width) NUMBER(channels) NUMBER(out_channels) NUMBER(groups)     \
    NUMBER(out_depth) NUMBER(out_height) NUMBER(out_width)                                                            \
    NUMBER(kernel_d) NUMBER(kernel_h) NUMBER(kernel_w) NUMBER(stride_d) NUMBER(stride_h) NUMBER(stride_w)             \
    NUMBER(pad_d) NUMBER(pad_h) NUMBER(pad_w) NUMBER(dilation_d) NUMBER(dilation_h) NUMBER(dilation_w)                \
    NUMBER(transposed) NUMBER(channels_first) NUMBER(bits) NUMBER(zero_x)
#define FIELDS_conv(READ, MAYBE, WRITE, NUMBER)                                                                       \
    READ(x) READ(weight) READ(bias) READ(ratio) MAYBE(ratio_negative) MAYBE(residual) MAYBE(table) WRITE(y)           \
    CONV_GEOMETRY(NUMBER) NUMBER(zero) NUMBER(low) NUMBER(high)                                                       \
    NUMBER(residual_joint) NUMBER(own_ratio) NUMBER(residual_ratio) NUMBER(residual_zero)                             \
    NUMBER(sum_zero) NUMBER(sum_low) NUMBER(sum_high)

/* The same convolution, whose sums become float32: v = float32(acc)·scale + bias, each operation rounded, and then what the
   code of a chain (see above) of two dimensions, places and channels, computes of v, its first operand, and of the values of
   the list, the others. Written are the result, float32 (`floats`), and the same as a byte clamp(R(result / divisor) + zero,
   low, high) (`bytes`).

   `joined_x` says that the step before is a convolution of that x whose float32 results this step alone reads, as one value of
   its list: kernels may compute both here, so that these results never are in memory. */
#define FIELDS_dequantized_conv(READ, MAYBE, WRITE, NUMBER)                                                           \
    READ(x) READ(weight) READ(scale) MAYBE(bias) MAYBE(code) MAYBE(joined_x) WRITE(y) WRITE(q) CONV_GEOMETRY(NUMBER)  \
    NUMBER(instructions) NUMBER(floats) NUMBER(bytes) NUMBER(divisor) NUMBER(zero) NUMBER(low) NUMBER(high)

/* uint8 y = table[x]. */
#define FIELDS_table(READ, MAYBE, WRITE, NUMBER) READ(x) READ(entries) WRITE(y) NUMBER(count)

/* uint8 y = clamp(R(Σ_j (x_j - zero_j)·ratio_j) + zero, low, high) over the values of the list. ratios: float32, zeros:
   int32, one for each; y has the sizes d0, d1, … of its `rank` dimensions, in the order of memory. broadcast: a constant
   byte for each value, whose bit k says that the value has one element along dimension k. */
#define FIELDS_add(READ, MAYBE, WRITE, NUMBER)                                                                        \
    READ(ratios) READ(zeros) READ(broadcast) WRITE(y) NUMBER(rank)                                                    \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(d4) NUMBER(d5) NUMBER(d6) NUMBER(d7)                           \
    NUMBER(zero) NUMBER(low) NUMBER(high)

/* uint8 y = clamp(R((x - zero_x) (w - zero_w) ratio) + zero, low, high), broadcasting as above. */
#define FIELDS_mul(READ, MAYBE, WRITE, NUMBER)                                                                        \
    READ(x) READ(w) WRITE(y) NUMBER(rank)                                                                             \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(d4) NUMBER(d5) NUMBER(d6) NUMBER(d7)                           \
    NUMBER(broadcast_x) NUMBER(broadcast_w) NUMBER(zero_x) NUMBER(zero_w) NUMBER(ratio) NUMBER(zero) NUMBER(low) NUMBER(high)

/* y = the largest element of every window of images (N, D, H, W, C) of uint8 (size 1) or float32 (size 4). */
#define FIELDS_max_pool(READ, MAYBE, WRITE, NUMBER)                                                                   \
    READ(x) WRITE(y) NUMBER(size) NUMBER(batch) NUMBER(depth) NUMBER(height) NUMBER(width) NUMBER(channels)           \
    NUMBER(out_depth) NUMBER(out_height) NUMBER(out_width)                                                            \
    NUMBER(kernel_d) NUMBER(kernel_h) NUMBER(kernel_w) NUMBER(stride_d) NUMBER(stride_h) NUMBER(stride_w)             \
    NUMBER(pad_d) NUMBER(pad_h) NUMBER(pad_w) NUMBER(dilation_d) NUMBER(dilation_h) NUMBER(dilation_w)

/* uint8 y = clamp(R(Σ (x - zero_x)·ratio_n) + zero, low, high) over windows of images (N, D, H, W, C). windows: constant
   int32 (out_depth + out_height + out_width, 3), start, end and divisor along one axis each; n is the product of the three
   divisors of a window, and `ratios` (float32) has one entry for each n among `divisors` (int32). */
#define FIELDS_avg_pool(READ, MAYBE, WRITE, NUMBER)                                                                   \
    READ(x) READ(windows) READ(divisors) READ(ratios) WRITE(y)                                                        \
    NUMBER(batch) NUMBER(depth) NUMBER(height) NUMBER(width) NUMBER(channels)                                         \
    NUMBER(out_depth) NUMBER(out_height) NUMBER(out_width) NUMBER(count)                                              \
    NUMBER(zero_x) NUMBER(zero) NUMBER(low) NUMBER(high)

/* uint8 y = clamp(R(Σ (x - zero_x) ratio) + zero, low, high): x is (outer, terms, inner), y is (outer, inner). */
#define FIELDS_mean(READ, MAYBE, WRITE, NUMBER)                                                                       \
    READ(x) WRITE(y) NUMBER(outer) NUMBER(terms) NUMBER(inner) NUMBER(zero_x) NUMBER(ratio)                           \
    NUMBER(zero) NUMBER(low) NUMBER(high)

/* Linear resizing of uint8 images (N, D, H, W, C): y = R(Σ w·x / total). taps: constant int32 (out_depth + out_height +
   out_width, 3), two source indices along one axis and the weight of the second, that of the first being the axis's
   denominator less it. */
#define FIELDS_resize(READ, MAYBE, WRITE, NUMBER)                                                                     \
    READ(x) READ(taps) WRITE(y) NUMBER(batch) NUMBER(depth) NUMBER(height) NUMBER(width) NUMBER(channels)             \
    NUMBER(out_depth) NUMBER(out_height) NUMBER(out_width)                                                            \
    NUMBER(denominator_d) NUMBER(denominator_h) NUMBER(denominator_w)

/* y[o, i] = x[o, index[i]]: `count` of `rows` rows of `bytes` bytes, `outer` times; index: int64. */
#define FIELDS_take_rows(READ, MAYBE, WRITE, NUMBER)                                                                  \
    READ(x) READ(index) WRITE(y) NUMBER(outer) NUMBER(rows) NUMBER(count) NUMBER(bytes)

/* float32 y[i] = the row index[i] of a table of codes (rows, bytes of `columns` codes), times its scales: one for each
   group of `group` columns (0: one group). Codes have 8 or 4 bits. */
#define FIELDS_decode_rows(READ, MAYBE, WRITE, NUMBER)                                                                \
    READ(codes) READ(scales) READ(index) WRITE(y) NUMBER(rows) NUMBER(count) NUMBER(columns) NUMBER(group) NUMBER(bits)

/* Norms of uint8 x (outer, places, groups, each): every (outer, group) is normalised over its places and elements.
   x' = x - shift; S = Σ x' (0 unless centered), Q = Σ x'²; r = float32(n / √(n·Q - S² + epsilon));
   y = clamp(R((x' - S/n) r gain + offset), low, high); gain and offset: float32 (groups, each); epsilon: a float64. */
#define FIELDS_norm(READ, MAYBE, WRITE, NUMBER)                                                                       \
    READ(x) READ(gain) READ(offset) WRITE(y) NUMBER(outer) NUMBER(places) NUMBER(groups) NUMBER(each)                 \
    NUMBER(shift) NUMBER(centered) NUMBER(epsilon) NUMBER(low) NUMBER(high)

/* Softmax of uint8 x along its last dimension: y = clamp(R(t·(levels / Σ t)) + zero, low, high), t = entries[max(x) - x],
   entries: int32 (256,); 0 where the bytes of `mask`, which may broadcast, are not 0. */
#define FIELDS_softmax(READ, MAYBE, WRITE, NUMBER)                                                                    \
    READ(x) READ(entries) MAYBE(mask) WRITE(y) NUMBER(rank)                                                           \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(d4) NUMBER(d5) NUMBER(d6) NUMBER(d7)                           \
    NUMBER(broadcast_mask) NUMBER(levels) NUMBER(zero) NUMBER(low) NUMBER(high)

/* uint8 y = clamp(R(Σ (x - zero_x)(w - zero_w)·ratio) + zero, low, high): products of matrices x (rows, depth) and w (depth,
   columns) for d0 d1 d2 d3 leading indices. Strides in elements: x_row, w_depth, w_column and y_row, and x0 … y3 of the
   leading indices; elements of the rows of x and y lie side by side. */
#define FIELDS_matmul(READ, MAYBE, WRITE, NUMBER)                                                                     \
    READ(x) READ(w) WRITE(y) NUMBER(rows) NUMBER(depth) NUMBER(columns)                                               \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(x0) NUMBER(x1) NUMBER(x2) NUMBER(x3)                           \
    NUMBER(w0) NUMBER(w1) NUMBER(w2) NUMBER(w3) NUMBER(y0) NUMBER(y1) NUMBER(y2) NUMBER(y3)                           \
    NUMBER(x_row) NUMBER(w_depth) NUMBER(w_column) NUMBER(y_row)                                                      \
    NUMBER(zero_x) NUMBER(zero_w) NUMBER(ratio) NUMBER(zero) NUMBER(low) NUMBER(high)

/* Rows of float32 as bytes q = R(x / scale) + 128, each row filled up to a multiple of four bytes, and the scales: max(max |x|
   / 127, 2^-60) of each row, or one of all of them (`together`). With `gelu`, gelu(x) in the place of x. */
#define FIELDS_quantize_rows(READ, MAYBE, WRITE, NUMBER)                                                              \
    READ(x) WRITE(q) WRITE(scales) NUMBER(rows) NUMBER(width) NUMBER(together) NUMBER(gelu)

/* float32 y = ((Σ (q - 128) weight)·scale)·scales + bias of such rows and int8 weights (columns, depth), one rounding each;
   with `single`, all rows have one scale; `bits` as of `conv`. */
#define FIELDS_dynamic_linear(READ, MAYBE, WRITE, NUMBER)                                                             \
    READ(q) READ(scales) READ(weight) READ(scale) MAYBE(bias) WRITE(y)                                                \
    NUMBER(rows) NUMBER(depth) NUMBER(columns) NUMBER(single) NUMBER(bits)

/* One direction of a recurrent layer, see intact8.arithmetic.recurrent. kind: 0 LSTM, 1 GRU, 2 RNN with tanh, 3 with ReLU.
   input (time, batch, gates·size): products of the inputs, whose rows had the scales row_scales; weight (gates·size, size),
   scale (gates·size); bias (size) of the GRU; the table of tanh; h0 and c0 from h0_offset on (batch, size); lengths int64.
   y (rows, batch, y_row) from y_offset on: the last states where `states` says so, then every step where `steps` does. `bits`
   as of `conv`. */
#define FIELDS_recurrent(READ, MAYBE, WRITE, NUMBER)                                                                  \
    READ(input) READ(row_scales) READ(weight) READ(scale) MAYBE(bias) MAYBE(tanh) MAYBE(h0) MAYBE(c0) MAYBE(lengths)  \
    WRITE(y) NUMBER(kind) NUMBER(time) NUMBER(batch) NUMBER(size) NUMBER(reverse) NUMBER(states) NUMBER(steps)        \
    NUMBER(h0_offset) NUMBER(y_offset) NUMBER(y_row) NUMBER(bits)

/* Attention: y = softmax(q k^T + mask) v of `samples` times `heads` matrices q (queries, depth), k (keys, depth), v (keys,
   width). Strides in elements; rows of q, v, mask and y are contiguous. What lies between says `form`:
   0: all uint8, as `matmul`, `softmax` (whose levels are `probability`, and whose mask is bool) and `matmul` compute it;
   1: the same with (score - score_zero) score_scale + mask and its softmax in float32, divided by `probability` and rounded;
   2: uint8 q, k, v; scores Σ (q - zero_q)(k - zero_k) score_scale, values (v - zero_v) value_scale, y in float32;
   3: float32; the scores are multiplied by score_scale. */
#define FIELDS_attention(READ, MAYBE, WRITE, NUMBER)                                                                  \
    READ(q) READ(k) READ(v) MAYBE(mask) MAYBE(table) WRITE(y) NUMBER(form)                                            \
    NUMBER(samples) NUMBER(heads) NUMBER(queries) NUMBER(keys) NUMBER(depth) NUMBER(width)                            \
    NUMBER(q_sample) NUMBER(q_head) NUMBER(q_row) NUMBER(k_sample) NUMBER(k_head) NUMBER(k_row) NUMBER(k_depth)       \
    NUMBER(v_sample) NUMBER(v_head) NUMBER(v_row) NUMBER(mask_sample) NUMBER(mask_head) NUMBER(mask_row)              \
    NUMBER(y_sample) NUMBER(y_head) NUMBER(y_row) NUMBER(zero_q) NUMBER(zero_k) NUMBER(zero_v) NUMBER(value_scale)    \
    NUMBER(score_ratio) NUMBER(score_zero) NUMBER(score_low) NUMBER(score_high) NUMBER(score_scale)                   \
    NUMBER(probability) NUMBER(zero_p) NUMBER(low_p) NUMBER(high_p)                                                   \
    NUMBER(ratio) NUMBER(zero) NUMBER(low) NUMBER(high)

/* Norms of float32 x (outer, groups, each, places): every (outer, group) is normalised over its elements and places, in
   float64: (x - mean) / √(variance + epsilon)·weight + bias, the last two (groups, each); without the mean where it is not
   centered. epsilon: the bits of a double. */
#define FIELDS_float_norm(READ, MAYBE, WRITE, NUMBER)                                                                 \
    READ(x) MAYBE(weight) MAYBE(bias) WRITE(y) NUMBER(outer) NUMBER(groups) NUMBER(each) NUMBER(places)               \
    NUMBER(epsilon) NUMBER(centered)

/* Softmax of the rows of float32 x, or its logarithm. */
#define FIELDS_float_softmax(READ, MAYBE, WRITE, NUMBER) READ(x) WRITE(y) NUMBER(rows) NUMBER(columns) NUMBER(logarithm)

/* Mean (0), sum (1), largest (2) or least (3) element of float32 x (outer, count, inner) over the second dimension, or their
   product (4). */
#define FIELDS_float_reduce(READ, MAYBE, WRITE, NUMBER)                                                               \
    READ(x) WRITE(y) NUMBER(outer) NUMBER(count) NUMBER(inner) NUMBER(function)

/* float32 y = x w (+ bias, one element a column): products of matrices x (rows, depth) and w (depth, columns) for d0 d1 d2 d3
   leading indices, of which those of the bias are b0 … b3 apart; strides as of `matmul`. With `bits`, 8 or 4, w holds rows of
   codes, one for each column, as of `decode_rows`. */
#define FIELDS_float_matmul(READ, MAYBE, WRITE, NUMBER)                                                               \
    READ(x) READ(w) MAYBE(bias) MAYBE(scales) WRITE(y) NUMBER(rows) NUMBER(depth) NUMBER(columns)                     \
    NUMBER(d0) NUMBER(d1) NUMBER(d2) NUMBER(d3) NUMBER(x0) NUMBER(x1) NUMBER(x2) NUMBER(x3)                           \
    NUMBER(w0) NUMBER(w1) NUMBER(w2) NUMBER(w3) NUMBER(y0) NUMBER(y1) NUMBER(y2) NUMBER(y3)                           \
    NUMBER(b0) NUMBER(b1) NUMBER(b2) NUMBER(b3) NUMBER(x_row) NUMBER(w_depth) NUMBER(w_column) NUMBER(y_row)          \
    NUMBER(bits) NUMBER(group)

/* float32 y (N, out_depth, out_height, out_width, O) = a convolution of images x (N, depth, height, width, C), whose windows
   begin at result times stride - pad, with zeros where they lie outside (+ bias). w: for each group, blocks of 64 columns, the
   last of as many as are left, filled up to a multiple of 16, of (kernel_d, kernel_h, kernel_w, C / groups, columns); with one
   channel a group, and several groups, (kernel_d, kernel_h, kernel_w, C). */
#define FIELDS_float_conv(READ, MAYBE, WRITE, NUMBER)                                                                 \
    READ(x) READ(w) MAYBE(bias) WRITE(y) NUMBER(batch) NUMBER(channels) NUMBER(out_channels) NUMBER(groups)           \
    NUMBER(depth) NUMBER(height) NUMBER(width) NUMBER(out_depth) NUMBER(out_height) NUMBER(out_width)                 \
    NUMBER(kernel_d) NUMBER(kernel_h) NUMBER(kernel_w) NUMBER(stride_d) NUMBER(stride_h) NUMBER(stride_w)             \
    NUMBER(pad_d) NUMBER(pad_h) NUMBER(pad_w) NUMBER(dilation_d) NUMBER(dilation_h) NUMBER(dilation_w)

/* Of x (outer, size, inner), whose elements are of a type: 0 float32, 1 int64, 2 bytes. gather: y[o, j, i] = x[o, index[o, j,
   i], i] for j < count. scatter: y = x, and then for j = 0, 1 … y[o, index[o, j, i], i] becomes source[o, j, i] (function 0),
   or their sum (1), product (2), largest (3) or least (4) element. Indices are int64; one outside counts as the nearest
   inside. */
#define FIELDS_gather(READ, MAYBE, WRITE, NUMBER)                                                                     \
    READ(x) READ(index) WRITE(y) NUMBER(type) NUMBER(outer) NUMBER(size) NUMBER(inner) NUMBER(count)
#define FIELDS_scatter(READ, MAYBE, WRITE, NUMBER)                                                                    \
    READ(x) READ(index) READ(source) WRITE(y)                                                                         \
    NUMBER(type) NUMBER(outer) NUMBER(size) NUMBER(inner) NUMBER(count) NUMBER(function)

/* The same x: sums of all elements up to each one, float32 or int64; the int64 order that sorts, equal elements as they were
   and NaN as the largest; and the int64 sum (0), product (1), largest (2) or least (3) element, or the place of the first
   largest one (4, the only one of float32). */
#define FIELDS_cumsum(READ, MAYBE, WRITE, NUMBER) READ(x) WRITE(y) NUMBER(type) NUMBER(outer) NUMBER(size) NUMBER(inner)
#define FIELDS_argsort(READ, MAYBE, WRITE, NUMBER)                                                                    \
    READ(x) WRITE(y) NUMBER(type) NUMBER(outer) NUMBER(size) NUMBER(inner) NUMBER(descending)
#define FIELDS_integer_reduce(READ, MAYBE, WRITE, NUMBER)                                                             \
    READ(x) WRITE(y) NUMBER(type) NUMBER(outer) NUMBER(size) NUMBER(inner) NUMBER(function)

/* Every kind, in the order of their numbers. */
#define STEP_KINDS(STEP) \
    STEP(call) \
    STEP(copy) \
    STEP(fill) \
    STEP(quantize) \
    STEP(chain) \
    STEP(conv) \
    STEP(dequantized_conv) \
    STEP(table) \
    STEP(add) \
    STEP(matmul) \
    STEP(mul) \
    STEP(max_pool) \
    STEP(avg_pool) \
    STEP(mean) \
    STEP(resize) \
    STEP(take_rows) \
    STEP(decode_rows) \
    STEP(norm) \
    STEP(softmax) \
    STEP(quantize_rows) \
    STEP(dynamic_linear) \
    STEP(recurrent) \
    STEP(attention) \
    STEP(float_norm) \
    STEP(float_softmax) \
    STEP(float_reduce) \
    STEP(float_matmul) \
    STEP(float_conv) \
    STEP(gather) \
    STEP(scatter) \
    STEP(cumsum) \
    STEP(argsort) \
    STEP(integer_reduce)

#endif
