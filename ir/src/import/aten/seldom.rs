//! The table, continued: operators of images, ranks, layouts and gradients.

use super::{
    Build, activations, attention, channels, complex, diagonals, einsum, gradients, indexing, layouts, losses, matmul, norms,
    pointwise, pooling, ranks, reductions,
    resample::{self, Filter},
    selections, slopes, special, statistics, views,
};
use crate::ops::{Pointwise as P, ReduceKind as R};

/// Operators with a counterpart, beside those of [`table`](super::table) and [`rarer`](super::rarer).
pub const ROWS: &[(&str, Build)] = &[
    // Complex numbers.
    ("aten.view_as_real.default(self)", complex::view_as_real),
    ("aten.view_as_complex.default(self)", complex::view_as_complex),
    ("aten.complex.default(real, imag)", complex::complex),
    ("aten.polar.default(abs, angle)", complex::polar),
    ("aten.imag.default(self)", complex::imaginary),
    ("aten.angle.default(self)", complex::angle),
    ("aten._conj_physical.default(self)", |c| pointwise::unary(c, P::Conj)),
    // Elementwise.
    ("aten.sinc[_].default(self)", special::sinc),
    ("aten.special_entr.default(self)", special::entropy),
    ("aten.special_ndtr.default(self)", special::normal_below),
    ("aten.special_xlog1py.default(self, other)", |c| special::times_log(c, P::Log1p)),
    ("aten.special_xlog1py.other_scalar(self, other)", |c| special::times_log(c, P::Log1p)),
    ("aten.special_xlog1py.self_scalar(self, other)", |c| special::times_log(c, P::Log1p)),
    ("aten.ldexp[_].Tensor(self, other)", special::ldexp),
    ("aten.isclose.default(self, other, rtol=1e-05, atol=1e-08, equal_nan=False)", special::isclose),
    ("aten.isin.Tensor_Tensor(elements, test_elements, assume_unique=False, invert=False)", special::isin),
    ("aten.isin.Tensor_Scalar(elements, test_element, assume_unique=False, invert=False)", special::isin),
    ("aten.isreal.default(self)", special::isreal),
    ("aten.float_power.Scalar(self, exponent)", special::float_power),
    ("aten.true_divide[_].Scalar(self, other)", |c| pointwise::binary(c, P::Div)),
    ("aten.bitwise_left_shift.Scalar_Tensor(self, other)", |c| pointwise::binary(c, P::ShiftLeft)),
    ("aten.bitwise_right_shift.Scalar_Tensor(self, other)", |c| pointwise::binary(c, P::ShiftRight)),
    ("aten.bitwise_and.Scalar_Tensor(self, other)", |c| pointwise::binary(c, P::BitAnd)),
    ("aten.bitwise_or.Scalar_Tensor(self, other)", |c| pointwise::binary(c, P::BitOr)),
    ("aten.bitwise_xor.Scalar_Tensor(self, other)", |c| pointwise::binary(c, P::BitXor)),
    ("aten.log_sigmoid_forward.default(self)", activations::log_sigmoid_forward),
    // Ranks and running extremes.
    ("aten.median.default(self)", |c| ranks::median_of_all(c, false)),
    ("aten.median.dim(self, dim, keepdim=False)", ranks::median),
    ("aten.nanmedian.default(self)", |c| ranks::median_of_all(c, true)),
    ("aten.nanmedian.dim(self, dim, keepdim=False)", ranks::nanmedian),
    ("aten.kthvalue.default(self, k, dim=-1, keepdim=False)", ranks::kthvalue),
    ("aten.mode.default(self, dim=-1, keepdim=False)", ranks::mode),
    ("aten.quantile.default(self, q, dim=None, keepdim=False, interpolation='linear')", ranks::quantile),
    ("aten.quantile.scalar(self, q, dim=None, keepdim=False, interpolation='linear')", ranks::quantile),
    ("aten.cummax.default(self, dim)", |c| ranks::running_extreme(c, R::Amax)),
    ("aten.cummin.default(self, dim)", |c| ranks::running_extreme(c, R::Amin)),
    ("aten.logcumsumexp.default(self, dim)", ranks::logcumsumexp),
    // Images: pooling and resampling.
    ("aten.max_pool1d.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool(c, 1)
    }),
    ("aten.max_pool2d.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool(c, 2)
    }),
    ("aten.max_pool3d.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool(c, 3)
    }),
    ("aten.max_pool1d_with_indices.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool_with_indices(c, 1)
    }),
    ("aten.max_pool2d_with_indices.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool_with_indices(c, 2)
    }),
    ("aten.max_pool3d_with_indices.default(self, kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False)", |c| {
        pooling::max_pool_with_indices(c, 3)
    }),
    (
        "aten.max_pool2d_with_indices_backward.default(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)",
        |c| pooling::max_pool_backward(c, 2),
    ),
    (
        "aten.max_pool3d_with_indices_backward.default(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)",
        |c| pooling::max_pool_backward(c, 3),
    ),
    ("aten.adaptive_max_pool1d.default(self, output_size)", |c| pooling::adaptive_max_pool(c, 1)),
    ("aten.adaptive_max_pool2d.default(self, output_size)", |c| pooling::adaptive_max_pool(c, 2)),
    ("aten.adaptive_max_pool3d.default(self, output_size)", |c| pooling::adaptive_max_pool(c, 3)),
    ("aten.adaptive_max_pool2d_backward.default(grad_output, self, indices)", |c| pooling::max_pool_backward(c, 2)),
    ("aten.adaptive_max_pool3d_backward.default(grad_output, self, indices)", |c| pooling::max_pool_backward(c, 3)),
    ("aten.avg_pool1d.default(self, kernel_size, stride=[], padding=0, ceil_mode=False, count_include_pad=True)", |c| {
        pooling::avg_pool(c, 1)
    }),
    (
        "aten.avg_pool2d.default(self, kernel_size, stride=[], padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None)",
        |c| pooling::avg_pool(c, 2),
    ),
    (
        "aten.avg_pool3d.default(self, kernel_size, stride=[], padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None)",
        |c| pooling::avg_pool(c, 3),
    ),
    (
        "aten.avg_pool2d_backward.default(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
        |c| pooling::avg_pool_backward(c, 2),
    ),
    (
        "aten.avg_pool3d_backward.default(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
        |c| pooling::avg_pool_backward(c, 3),
    ),
    ("aten.adaptive_avg_pool1d.default(self, output_size)", |c| pooling::adaptive_avg_pool(c, 1)),
    ("aten.adaptive_avg_pool2d.default(self, output_size)", |c| pooling::adaptive_avg_pool(c, 2)),
    ("aten.adaptive_avg_pool3d.default(self, output_size)", |c| pooling::adaptive_avg_pool(c, 3)),
    ("aten._adaptive_avg_pool2d.default(self, output_size)", |c| pooling::adaptive_avg_pool(c, 2)),
    ("aten._adaptive_avg_pool3d.default(self, output_size)", |c| pooling::adaptive_avg_pool(c, 3)),
    ("aten._adaptive_avg_pool2d_backward.default(grad_output, self)", |c| pooling::adaptive_avg_pool_backward(c, 2)),
    ("aten._adaptive_avg_pool3d_backward.default(grad_output, self)", |c| pooling::adaptive_avg_pool_backward(c, 3)),
    ("aten.upsample_nearest1d.default(self, output_size, scales=None)", |c| resample::upsample(c, Filter::Nearest, 1)),
    ("aten.upsample_nearest1d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::Nearest, 1)),
    ("aten.upsample_nearest2d.default(self, output_size, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::Nearest, 2)
    }),
    ("aten.upsample_nearest2d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::Nearest, 2)),
    ("aten.upsample_nearest3d.default(self, output_size, scales_d=None, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::Nearest, 3)
    }),
    ("aten.upsample_nearest3d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::Nearest, 3)),
    ("aten._upsample_nearest_exact1d.default(self, output_size, scales=None)", |c| {
        resample::upsample(c, Filter::NearestExact, 1)
    }),
    ("aten._upsample_nearest_exact1d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::NearestExact, 1)),
    ("aten._upsample_nearest_exact2d.default(self, output_size, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::NearestExact, 2)
    }),
    ("aten._upsample_nearest_exact2d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::NearestExact, 2)),
    ("aten._upsample_nearest_exact3d.default(self, output_size, scales_d=None, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::NearestExact, 3)
    }),
    ("aten._upsample_nearest_exact3d.vec(input, output_size, scale_factors)", |c| resample::upsample(c, Filter::NearestExact, 3)),
    ("aten.upsample_linear1d.default(self, output_size, align_corners, scales=None)", |c| {
        resample::upsample(c, Filter::Linear, 1)
    }),
    ("aten.upsample_linear1d.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::Linear, 1)
    }),
    ("aten.upsample_bilinear2d.default(self, output_size, align_corners, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::Linear, 2)
    }),
    ("aten.upsample_bilinear2d.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::Linear, 2)
    }),
    ("aten.upsample_trilinear3d.default(self, output_size, align_corners, scales_d=None, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::Linear, 3)
    }),
    ("aten.upsample_trilinear3d.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::Linear, 3)
    }),
    ("aten.upsample_bicubic2d.default(self, output_size, align_corners, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::Cubic, 2)
    }),
    ("aten.upsample_bicubic2d.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::Cubic, 2)
    }),
    ("aten._upsample_bilinear2d_aa.default(self, output_size, align_corners, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::LinearAntialiased, 2)
    }),
    ("aten._upsample_bilinear2d_aa.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::LinearAntialiased, 2)
    }),
    ("aten._upsample_bicubic2d_aa.default(self, output_size, align_corners, scales_h=None, scales_w=None)", |c| {
        resample::upsample(c, Filter::CubicAntialiased, 2)
    }),
    ("aten._upsample_bicubic2d_aa.vec(input, output_size, align_corners, scale_factors)", |c| {
        resample::upsample(c, Filter::CubicAntialiased, 2)
    }),
    ("aten.upsample_nearest1d_backward.default(grad_output, output_size, input_size, scales=None)", |c| {
        resample::upsample_backward(c, Filter::Nearest, 1)
    }),
    ("aten.upsample_nearest2d_backward.default(grad_output, output_size, input_size, scales_h=None, scales_w=None)", |c| {
        resample::upsample_backward(c, Filter::Nearest, 2)
    }),
    ("aten.upsample_linear1d_backward.default(grad_output, output_size, input_size, align_corners, scales=None)", |c| {
        resample::upsample_backward(c, Filter::Linear, 1)
    }),
    (
        "aten.upsample_bilinear2d_backward.default(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None)",
        |c| resample::upsample_backward(c, Filter::Linear, 2),
    ),
    (
        "aten.upsample_bicubic2d_backward.default(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None)",
        |c| resample::upsample_backward(c, Filter::Cubic, 2),
    ),
    ("aten.grid_sampler.default(input, grid, interpolation_mode, padding_mode, align_corners)", resample::grid_sampler),
    ("aten.grid_sampler_2d.default(input, grid, interpolation_mode, padding_mode, align_corners)", resample::grid_sampler),
    ("aten.im2col.default(self, kernel_size, dilation, padding, stride)", layouts::im2col),
    ("aten.col2im.default(self, output_size, kernel_size, dilation, padding, stride)", layouts::col2im),
    ("aten.pixel_shuffle.default(self, upscale_factor)", |c| layouts::pixel_shuffle(c, true)),
    ("aten.pixel_unshuffle.default(self, downscale_factor)", |c| layouts::pixel_shuffle(c, false)),
    ("aten.channel_shuffle.default(self, groups)", layouts::channel_shuffle),
    // Layouts.
    ("aten.dropout_.default(self, p, train)", views::dropout),
    ("aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)", channels::batch_norm_of_batch),
    ("aten.as_strided.default(self, size, stride, storage_offset=None)", layouts::as_strided),
    ("aten.as_strided_copy.default(self, size, stride, storage_offset=None)", |c| layouts::copy_of(c, layouts::as_strided)),
    ("aten.as_strided_scatter.default(self, src, size, stride, storage_offset=None)", layouts::as_strided_scatter),
    ("aten.diag.default(self, diagonal=0)", diagonals::diag),
    ("aten.diag_embed.default(self, offset=0, dim1=-2, dim2=-1)", diagonals::diag_embed),
    ("aten.diagonal_copy.default(self, offset=0, dim1=0, dim2=1)", |c| layouts::copy_of(c, diagonals::diagonal)),
    ("aten.diagonal_scatter.default(self, src, offset=0, dim1=0, dim2=1)", diagonals::diagonal_scatter),
    ("aten.linalg_diagonal.default(A, offset=0, dim1=-2, dim2=-1)", diagonals::diagonal),
    ("aten.alias_copy.default(self)", views::copied),
    ("aten.detach_copy.default(self)", views::copied),
    ("aten.expand_copy.default(self, size, implicit=False)", |c| layouts::copy_of(c, views::expand)),
    ("aten.permute_copy.default(self, dims)", |c| layouts::copy_of(c, views::permute)),
    ("aten.transpose_copy.int(self, dim0, dim1)", |c| layouts::copy_of(c, views::transpose)),
    ("aten.t_copy.default(self)", |c| layouts::copy_of(c, views::t)),
    ("aten.view_copy.default(self, size)", |c| layouts::copy_of(c, views::view)),
    ("aten.view_copy.dtype(self, dtype)", |c| layouts::copy_of(c, views::view_dtype)),
    ("aten._reshape_copy.default(self, size)", |c| layouts::copy_of(c, views::view)),
    ("aten.select_copy.int(self, dim, index)", |c| layouts::copy_of(c, views::select)),
    ("aten.slice_copy.Tensor(self, dim=0, start=None, end=None, step=1)", |c| layouts::copy_of(c, views::slice)),
    ("aten.split_copy.Tensor(self, split_size, dim=0)", |c| layouts::copy_of(c, views::split)),
    ("aten.split_with_sizes_copy.default(self, split_sizes, dim=0)", |c| layouts::copy_of(c, views::split_with_sizes)),
    ("aten.squeeze_copy.default(self)", |c| layouts::copy_of(c, views::squeeze)),
    ("aten.squeeze_copy.dim(self, dim)", |c| layouts::copy_of(c, views::squeeze)),
    ("aten.squeeze_copy.dims(self, dim)", |c| layouts::copy_of(c, views::squeeze)),
    ("aten.unbind_copy.int(self, dim=0)", |c| layouts::copy_of(c, views::unbind)),
    ("aten.unfold_copy.default(self, dimension, size, step)", |c| layouts::copy_of(c, selections::unfold)),
    ("aten.unsqueeze_copy.default(self, dim)", |c| layouts::copy_of(c, views::unsqueeze)),
    ("aten.narrow_copy.default(self, dim, start, length)", |c| layouts::copy_of(c, views::narrow)),
    ("aten.unsafe_chunk.default(self, chunks, dim=0)", views::chunk),
    ("aten.unsafe_split.Tensor(self, split_size, dim=0)", views::split),
    ("aten.unsafe_split_with_sizes.default(self, split_sizes, dim=0)", views::split_with_sizes),
    ("aten.squeeze_.default(self)", views::squeeze),
    ("aten.squeeze_.dim(self, dim)", views::squeeze),
    ("aten.squeeze_.dims(self, dim)", views::squeeze),
    ("aten.unsqueeze_.default(self, dim)", views::unsqueeze),
    ("aten.transpose_.default(self, dim0, dim1)", views::transpose),
    ("aten.t_.default(self)", views::t),
    ("aten.mH.default(self)", complex::adjoint),
    ("aten.matrix_H.default(self)", complex::adjoint),
    ("aten.adjoint.default(self)", complex::adjoint),
    ("aten.erfinv[_].default(self)", |c| pointwise::unary(c, P::Erfinv)),
    ("aten.digamma[_].default(self)", |c| pointwise::unary(c, P::Digamma)),
    ("aten.special_psi.default(self)", |c| pointwise::unary(c, P::Digamma)),
    ("aten.round[_].decimals(self, decimals)", special::round_decimals),
    ("aten._safe_softmax.default(self, dim, dtype=None)", activations::safe_softmax),
    ("aten.inner.default(self, other)", einsum::inner),
    ("aten.kron.default(self, other)", layouts::kron),
    ("aten.dist.default(self, other, p=2)", statistics::dist),
    ("aten.diagflat.default(self, offset=0)", diagonals::diagflat),
    ("aten.msort.default(self)", indexing::msort),
    ("aten.hsplit.int(self, sections)", |c| views::split_along(c, 1)),
    ("aten.vsplit.int(self, sections)", |c| views::split_along(c, 0)),
    ("aten.dsplit.int(self, sections)", |c| views::split_along(c, 2)),
    ("aten.atleast_1d.default(self)", |c| layouts::atleast(c, 1)),
    ("aten.atleast_2d.default(self)", |c| layouts::atleast(c, 2)),
    ("aten.atleast_3d.default(self)", |c| layouts::atleast(c, 3)),
    ("aten.hstack.default(tensors)", |c| layouts::stacked(c, 1, 1)),
    ("aten.vstack.default(tensors)", |c| layouts::stacked(c, 2, 0)),
    ("aten.row_stack.default(tensors)", |c| layouts::stacked(c, 2, 0)),
    ("aten.dstack.default(tensors)", |c| layouts::stacked(c, 3, 2)),
    ("aten.column_stack.default(tensors)", layouts::column_stack),
    ("aten.meshgrid.default(tensors)", layouts::meshgrid),
    ("aten.meshgrid.indexing(tensors, indexing)", layouts::meshgrid),
    ("aten.broadcast_tensors.default(tensors)", layouts::broadcast_tensors),
    ("aten.block_diag.default(tensors)", layouts::block_diag),
    ("aten.cartesian_prod.default(tensors)", layouts::cartesian_prod),
    ("aten.rot90.default(self, k=1, dims=[0,1])", layouts::rot90),
    ("aten.fliplr.default(self)", |c| layouts::flip_along(c, 1)),
    ("aten.flipud.default(self)", |c| layouts::flip_along(c, 0)),
    ("aten.sum_to_size.default(self, size)", reductions::sum_to_size),
    ("aten.repeat_interleave.Tensor(repeats, output_size=None)", layouts::repeat_by_counts),
    ("aten.repeat_interleave.self_Tensor(self, repeats, dim=None, output_size=None)", layouts::repeat_by_counts),
    ("aten.tril_indices.default(row, col, offset=0, dtype=None, layout=None, device=None, pin_memory=None)", |c| {
        layouts::triangle_indices(c, true)
    }),
    ("aten.triu_indices.default(row, col, offset=0, dtype=None, layout=None, device=None, pin_memory=None)", |c| {
        layouts::triangle_indices(c, false)
    }),
    ("aten.to.other(self, other, non_blocking=False, copy=False, memory_format=None)", views::type_as),
    ("aten.linalg_cross.default(self, other, dim=-1)", special::cross),
    ("aten.cross.default(self, other, dim=None)", special::cross),
    ("aten.addr[_].default(self, vec1, vec2, beta=1, alpha=1)", matmul::add_outer),
    ("aten.linalg_matmul.default(self, other)", matmul::matmul),
    ("aten.cosine_similarity.default(x1, x2, dim=1, eps=1e-08)", statistics::cosine_similarity),
    ("aten.pairwise_distance.default(x1, x2, p=2.0, eps=1e-06, keepdim=False)", statistics::pairwise_distance),
    // Losses.
    ("aten.smooth_l1_loss.default(self, target, reduction=1, beta=1.0)", |c| losses::elementwise(c, losses::clipped_error)),
    ("aten.huber_loss.default(self, target, reduction=1, delta=1.0)", |c| losses::elementwise(c, losses::clipped_error)),
    ("aten.kl_div.default(self, target, reduction=1, log_target=False)", |c| losses::elementwise(c, losses::divergence)),
    ("aten.binary_cross_entropy.default(self, target, weight=None, reduction=1)", |c| losses::elementwise(c, losses::binary)),
    ("aten.binary_cross_entropy_with_logits.default(self, target, weight=None, pos_weight=None, reduction=1)", |c| {
        losses::elementwise(c, losses::binary_of_logits)
    }),
    ("aten._fused_rms_norm.default(input, normalized_shape, weight, eps)", norms::rms_norm_with_scale),
    (
        "aten._native_batch_norm_legit.default(input, weight, bias, running_mean, running_var, training, momentum, eps)",
        channels::native_batch_norm,
    ),
    (
        "aten._native_batch_norm_legit_functional.default(input, weight, bias, running_mean, running_var, training, momentum, eps)",
        channels::functional_batch_norm,
    ),
    (
        "aten._batch_norm_no_update.default(input, weight, bias, running_mean, running_var, momentum, eps)",
        channels::native_batch_norm,
    ),
    // Gradients.
    ("aten.sigmoid_backward.default(grad_output, output)", slopes::sigmoid),
    ("aten.tanh_backward.default(grad_output, output)", slopes::tanh),
    ("aten.silu_backward.default(grad_output, self)", slopes::silu),
    ("aten.gelu_backward.default(grad_output, self, approximate='none')", slopes::gelu),
    ("aten.threshold_backward.default(grad_output, self, threshold)", slopes::threshold),
    ("aten.hardtanh_backward.default(grad_output, self, min_val, max_val)", slopes::hardtanh),
    ("aten.hardsigmoid_backward.default(grad_output, self)", slopes::hardsigmoid),
    ("aten.hardswish_backward.default(grad_output, self)", slopes::hardswish),
    ("aten.leaky_relu_backward.default(grad_output, self, negative_slope, self_is_result)", slopes::leaky_relu),
    ("aten.elu_backward.default(grad_output, alpha, scale, input_scale, is_result, self_or_result)", slopes::elu),
    ("aten.softplus_backward.default(grad_output, self, beta, threshold)", slopes::softplus),
    ("aten.log_sigmoid_backward.default(grad_output, self, buffer)", slopes::log_sigmoid),
    ("aten.mish_backward.default(grad_output, self)", slopes::mish),
    ("aten.glu_backward.default(grad_output, self, dim)", slopes::glu),
    ("aten._softmax_backward_data.default(grad_output, output, dim, input_dtype)", |c| gradients::softmax(c, false)),
    ("aten._log_softmax_backward_data.default(grad_output, output, dim, input_dtype)", |c| gradients::softmax(c, true)),
    (
        "aten.native_layer_norm_backward.default(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)",
        gradients::layer_norm,
    ),
    ("aten._fused_rms_norm_backward.default(grad_out, input, normalized_shape, rstd, weight, output_mask)", gradients::rms_norm),
    (
        "aten.native_group_norm_backward.default(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)",
        gradients::group_norm,
    ),
    (
        "aten.native_batch_norm_backward.default(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask)",
        gradients::batch_norm,
    ),
    (
        "aten.embedding_dense_backward.default(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)",
        gradients::embedding,
    ),
    (
        "aten.nll_loss_backward.default(grad_output, self, target, weight, reduction, ignore_index, total_weight)",
        gradients::nll_loss,
    ),
    (
        "aten.nll_loss2d_backward.default(grad_output, self, target, weight, reduction, ignore_index, total_weight)",
        gradients::nll_loss,
    ),
    ("aten.mse_loss_backward.default(grad_output, self, target, reduction)", |c| {
        gradients::elementwise(c, gradients::squared_error)
    }),
    ("aten.smooth_l1_loss_backward.default(grad_output, self, target, reduction, beta)", |c| {
        gradients::elementwise(c, gradients::clipped_error)
    }),
    ("aten.huber_loss_backward.default(grad_output, self, target, reduction, delta)", |c| {
        gradients::elementwise(c, gradients::clipped_error)
    }),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=None, scale=None)",
        attention::backward,
    ),
    ("aten.select_backward.default(grad_output, input_sizes, dim, index)", gradients::of_select),
    ("aten.slice_backward.default(grad_output, input_sizes, dim, start, end, step)", gradients::of_slice),
    ("aten.diagonal_backward.default(grad_output, input_sizes, offset, dim1, dim2)", diagonals::diagonal_backward),
    ("aten.value_selecting_reduction_backward.default(grad, dim, indices, sizes, keepdim)", gradients::of_selection),
    ("aten.unfold_backward.default(grad_in, input_sizes, dim, size, step)", gradients::of_windows),
    ("aten.native_dropout_backward.default(grad_output, mask, scale)", gradients::dropout),
    // What no shape is known of before the data is.
    ("aten.nonzero.default(self)", indexing::of_unknown_size),
    ("aten.argwhere.default(self)", indexing::of_unknown_size),
    ("aten.where.default(condition)", indexing::of_unknown_size),
    ("aten.masked_select.default(self, mask)", indexing::of_unknown_size),
    ("aten._unique2.default(self, sorted=True, return_inverse=False, return_counts=False)", indexing::of_unknown_size),
    ("aten.unique_consecutive.default(self, return_inverse=False, return_counts=False, dim=None)", indexing::of_unknown_size),
    ("aten.unique_dim.default(self, dim, sorted=True, return_inverse=False, return_counts=False)", indexing::of_unknown_size),
    ("aten.bincount.default(self, weights=None, minlength=0)", selections::bincount),
    ("aten._unsafe_masked_index.default(self, mask, indices, fill)", indexing::masked_index),
    ("aten.masked_scatter[_].default(self, mask, source)", indexing::masked_scatter),
    ("aten.index_reduce[_].default(self, dim, index, source, reduce, include_self=True)", selections::index_reduce),
];
