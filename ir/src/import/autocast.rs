//! What autocast does to operands. An archive keeps the region alone, and the types of results, which tell the conversions
//! (aten/src/ATen/autocast_mode.h).

use crate::DType;

/// The dtype to which an operand of dtype `of` is converted for an operator whose result is a `result`; none where it is not. Products run in 16 bits;
/// others that give f32 take f32.
pub fn operand(target: &str, of: DType, result: DType) -> Option<DType> {
    let narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::Bf16);
    let operator = target.trim_start_matches("torch.ops.").trim_start_matches("aten.").split('.').next().unwrap_or_default();
    let converts = match (narrow(of), narrow(result)) {
        (true, false) => result == DType::F32 && !is_conversion(operator),
        (false, true) => of.is_float() && is_product(operator),
        _ => false,
    };
    converts.then_some(result)
}

/// True for the operators that convert on request, which autocast leaves alone.
fn is_conversion(operator: &str) -> bool {
    matches!(operator, "to" | "_to_copy" | "type_as")
}

/// True for the operators that run in 16 bits.
fn is_product(operator: &str) -> bool {
    let matrices = matches!(operator, "mm" | "mv" | "bmm" | "matmul" | "linear" | "einsum" | "chain_matmul" | "linalg_multi_dot");
    let sums = matches!(operator, "addmm" | "addmv" | "addbmm" | "baddbmm");
    let convolution = operator.trim_start_matches('_').starts_with("conv");
    matrices || sums || convolution || operator == "scaled_dot_product_attention"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_narrow_and_the_rest_widens() {
        let (narrow, wide) = (DType::Bf16, DType::F32);
        for target in ["torch.ops.aten.linear.default", "aten.mm.default", "aten._convolution.default", "aten.conv2d.default"] {
            assert_eq!(operand(target, wide, narrow), Some(narrow), "{target}");
            assert_eq!(operand(target, narrow, narrow), None, "{target}");
        }
        assert_eq!(operand("aten.softmax.int", narrow, wide), Some(wide));
        // On request, and where the op keeps the dtype of its rows beside wider weights.
        assert_eq!(operand("aten.to.dtype", narrow, wide), None);
        assert_eq!(operand("aten.to.dtype", wide, narrow), None);
        assert_eq!(operand("aten.layer_norm.default", wide, narrow), None);
        // Indices stay.
        assert_eq!(operand("aten.linear.default", DType::I64, narrow), None);
        assert_eq!(operand("aten.nll_loss.default", DType::I64, wide), None);
    }
}
