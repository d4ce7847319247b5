//! Derivatives of the rows: of an elementwise op an expression in ops of the same table, of a structured op a rule of the `autodiff` pass.
//!
//! Both matches name every row, so that one without an entry does not compile.

use super::{OpCode, Pointwise};

/// How the gradient by an op's operands follows from that by its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivative {
    /// The gradient by each operand as an expression, `0` where it is none: `g` is the gradient by the result, `out` the result, operands go by
    /// the names of the row. `(number? y a b)` is `a` where y is a number written in the graph, as the bounds of a clamp are, else `b`.
    Expression(&'static [&'static str]),
    /// A rule of the pass, as the gradient has attributes or shapes of its own.
    Rule,
    /// None is carried on: results are integers or bools, constants, or constant between steps.
    Zero,
    /// The op has no derivative, and why.
    None(&'static str),
}

const FUSED: &str = "it is a fused op; a graph is differentiated before it is fused";

impl Pointwise {
    /// The row's derivative. Where a function has none (at 0 of `abs`, at ties) it is PyTorch's choice (tools/autograd/derivatives.yaml).
    pub fn derivative(self) -> Derivative {
        use Derivative::{Expression, None, Zero};
        match self {
            Pointwise::Neg => Expression(&["(neg g)"]),
            Pointwise::Abs => Expression(&["(mul g (sign x))"]),
            Pointwise::Exp => Expression(&["(mul g out)"]),
            Pointwise::Expm1 => Expression(&["(mul g (add out 1))"]),
            Pointwise::Log => Expression(&["(div g x)"]),
            Pointwise::Log2 => Expression(&["(div g (mul x 0.6931471805599453))"]),
            Pointwise::Log1p => Expression(&["(div g (add x 1))"]),
            Pointwise::Sqrt => Expression(&["(div g (mul out 2))"]),
            Pointwise::Rsqrt => Expression(&["(mul (mul g -0.5) (mul out (mul out out)))"]),
            Pointwise::Reciprocal => Expression(&["(neg (mul g (mul out out)))"]),
            Pointwise::Sin => Expression(&["(mul g (cos x))"]),
            Pointwise::Cos => Expression(&["(neg (mul g (sin x)))"]),
            Pointwise::Tanh => Expression(&["(mul g (sub 1 (mul out out)))"]),
            Pointwise::Erf => Expression(&["(mul g (mul (exp (neg (mul x x))) 1.1283791670955126))"]),
            Pointwise::Tan => Expression(&["(mul g (add (mul out out) 1))"]),
            Pointwise::Asin => Expression(&["(mul g (rsqrt (sub 1 (mul x x))))"]),
            Pointwise::Acos => Expression(&["(neg (mul g (rsqrt (sub 1 (mul x x)))))"]),
            Pointwise::Atan => Expression(&["(div g (add (mul x x) 1))"]),
            Pointwise::Sinh => Expression(&["(mul g (cosh x))"]),
            Pointwise::Cosh => Expression(&["(mul g (sinh x))"]),
            Pointwise::Asinh => Expression(&["(mul g (rsqrt (add (mul x x) 1)))"]),
            Pointwise::Acosh => Expression(&["(mul g (rsqrt (sub (mul x x) 1)))"]),
            Pointwise::Atanh => Expression(&["(div g (sub 1 (mul x x)))"]),
            Pointwise::Exp2 => Expression(&["(mul g (mul out 0.6931471805599453))"]),
            Pointwise::Log10 => Expression(&["(div g (mul x 2.302585092994046))"]),
            Pointwise::Erfc => Expression(&["(mul g (mul (exp (neg (mul x x))) -1.1283791670955126))"]),
            Pointwise::Erfinv => Expression(&["(mul g (mul (exp (mul out out)) 0.886226925452758))"]),
            Pointwise::Digamma => None("the table has no trigamma function"),
            Pointwise::Lgamma => Expression(&["(mul g (digamma x))"]),
            Pointwise::Conj => Expression(&["(conj g)"]),
            Pointwise::Sigmoid => Expression(&["(mul g (mul out (sub 1 out)))"]),
            Pointwise::Silu => Expression(&["(mul g (mul (sigmoid x) (add (mul x (sub 1 (sigmoid x))) 1)))"]),
            // NaN passes the gradient on, as in `threshold_backward`.
            Pointwise::Relu => Expression(&["(where (le x 0) 0 g)"]),
            Pointwise::GeluErf => Expression(&["(mul g (add (mul (add (erf (mul x 0.7071067811865476)) 1) 0.5) \
                 (mul x (mul (exp (mul (mul x x) -0.5)) 0.3989422804014327))))"]),
            Pointwise::GeluTanh => Expression(&["(mul g (add \
                 (mul (add (tanh (mul x (add (mul (mul x x) 0.03567740813630014) 0.7978845608028654))) 1) 0.5) \
                 (mul (mul (mul x 0.5) (add (mul (mul x x) 0.10703222440890041) 0.7978845608028654)) \
                 (sub 1 (mul (tanh (mul x (add (mul (mul x x) 0.03567740813630014) 0.7978845608028654))) \
                 (tanh (mul x (add (mul (mul x x) 0.03567740813630014) 0.7978845608028654))))))))"]),
            Pointwise::Add => Expression(&["g", "g"]),
            Pointwise::Sub => Expression(&["g", "(neg g)"]),
            Pointwise::Mul => Expression(&["(mul g y)", "(mul g x)"]),
            Pointwise::Div => Expression(&["(div g y)", "(neg (mul g (div out y)))"]),
            Pointwise::Remainder => Expression(&["g", "(neg (mul g (floor_divide x y)))"]),
            Pointwise::Fmod => Expression(&["g", "(neg (mul g (trunc_divide x y)))"]),
            Pointwise::Pow => Expression(&[
                "(where (eq y 0) 0 (mul g (mul y (pow x (sub y 1)))))",
                "(where (logical_and (eq x 0) (ge y 0)) 0 (mul g (mul out (log x))))",
            ]),
            // Clamping passes the gradient on at its bounds; of two equal tensors each gets half.
            Pointwise::Maximum => Expression(&[
                "(number? y (where (ge x y) g 0) (where (eq x y) (mul g 0.5) (where (lt x y) 0 g)))",
                "(number? x (where (ge y x) g 0) (where (eq x y) (mul g 0.5) (where (lt y x) 0 g)))",
            ]),
            Pointwise::Minimum => Expression(&[
                "(number? y (where (le x y) g 0) (where (eq x y) (mul g 0.5) (where (gt x y) 0 g)))",
                "(number? x (where (le y x) g 0) (where (eq x y) (mul g 0.5) (where (gt y x) 0 g)))",
            ]),
            Pointwise::Atan2 => {
                Expression(&["(mul g (div y (add (mul x x) (mul y y))))", "(neg (mul g (div x (add (mul x x) (mul y y)))))"])
            }
            Pointwise::Hypot => Expression(&["(mul g (div x out))", "(mul g (div y out))"]),
            Pointwise::CopySign => Expression(&["(mul g (mul (sign x) (copysign 1 y)))", "0"]),
            Pointwise::Where => Expression(&["0", "(where c g 0)", "(where c 0 g)"]),
            Pointwise::Sign
            | Pointwise::SignBit
            | Pointwise::Floor
            | Pointwise::Ceil
            | Pointwise::Trunc
            | Pointwise::Round
            | Pointwise::IsNan
            | Pointwise::LogicalNot
            | Pointwise::BitNot
            | Pointwise::FloorDiv
            | Pointwise::TruncDiv
            | Pointwise::Eq
            | Pointwise::Ne
            | Pointwise::Lt
            | Pointwise::Le
            | Pointwise::Gt
            | Pointwise::Ge
            | Pointwise::BitAnd
            | Pointwise::BitOr
            | Pointwise::BitXor
            | Pointwise::ShiftLeft
            | Pointwise::ShiftRight
            | Pointwise::LogicalAnd
            | Pointwise::LogicalOr => Zero,
        }
    }
}

impl OpCode {
    /// The row's derivative.
    pub fn derivative(self) -> Derivative {
        use Derivative::{None, Rule, Zero};
        match self {
            OpCode::Pointwise(op) => op.derivative(),
            OpCode::Reshape
            | OpCode::Permute
            | OpCode::Expand
            | OpCode::Slice
            | OpCode::Cast
            | OpCode::Reduce
            | OpCode::Cumsum
            | OpCode::Softmax
            | OpCode::RmsNorm
            | OpCode::LayerNorm
            | OpCode::MatMul
            | OpCode::GroupedMm
            | OpCode::Convolution
            | OpCode::ConvolutionInput
            | OpCode::ConvolutionWeight
            | OpCode::Index
            | OpCode::IndexPut
            | OpCode::Gather
            | OpCode::ScatterAdd
            | OpCode::Cat
            | OpCode::Sort
            | OpCode::TopK
            | OpCode::ExpertMatmul
            | OpCode::ExpertOuter
            | OpCode::Combine => Rule,
            OpCode::Iota | OpCode::Full | OpCode::InversePermutation => Zero,
            OpCode::Bitcast => None("it reads the bytes of its operand"),
            OpCode::Histc => None("it counts"),
            OpCode::Map
            | OpCode::MapReduce
            | OpCode::ReduceChain
            | OpCode::Contract
            | OpCode::ExpertContract
            | OpCode::Glu
            | OpCode::DenseGlu
            | OpCode::Route
            | OpCode::Moe => None(FUSED),
        }
    }
}
