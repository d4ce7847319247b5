//! The cases of `fixtures/reductions`: every reduction × dtype × shape × dims, with PyTorch's results, refusals included. Each goes the way of
//! an imported node.

use crate::fixture;
use eglu::{
    DType, Graph, Tensor, TensorType,
    compare::{compare, tolerance},
    import::single::{Argument, call},
    ir::{
        eval::{EvalOperand, eval_op},
        ops::Cast,
    },
    reference::{in_dtype, read_tensors},
};
use indexmap::IndexMap;
use serde::Deserialize;

/// Every case, and the tensors they name.
pub fn cases() -> (Vec<Case>, IndexMap<String, Tensor>) {
    let text = std::fs::read(fixture("reductions/cases.json")).expect("the cases");
    let cases = serde_json::from_slice(&text).expect("the cases are JSON");
    (cases, read_tensors(&fixture("reductions/tensors.safetensors")).expect("the tensors"))
}

/// One case.
#[derive(Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Case {
    pub op: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub dim: Option<Dims>,
    pub keepdim: bool,
    pub input: Option<String>,
    #[serde(default)]
    pub outputs: Vec<Output>,
    pub error: Option<String>,
}

/// Why a reduction has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// There is nothing to take the extreme of.
    Empty,
    /// Complex numbers are not ordered.
    NoOrder,
    /// The position of an extreme among truth values.
    Bool,
    /// Means, deviations and norms are of floats.
    NeedsFloats,
}

/// The `dim` argument.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Dims {
    One(i64),
    Several(Vec<i64>),
}

/// A result of PyTorch's.
#[derive(Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Output {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub key: Option<String>,
}

/// A dtype by its short name or PyTorch's.
fn dtype(name: &str) -> DType {
    match name {
        "f64" | "float64" => DType::F64,
        "f32" | "float32" => DType::F32,
        "f16" | "float16" => DType::F16,
        "bf16" | "bfloat16" => DType::Bf16,
        "f8e4m3fn" | "float8_e4m3fn" => DType::F8E4M3Fn,
        "f8e5m2" | "float8_e5m2" => DType::F8E5M2,
        "i64" | "int64" => DType::I64,
        "i32" | "int32" => DType::I32,
        "i16" | "int16" => DType::I16,
        "i8" | "int8" => DType::I8,
        "u8" | "uint8" => DType::U8,
        "bool" => DType::Bool,
        "c64" | "complex64" => DType::C64,
        "c128" | "complex128" => DType::C128,
        other => panic!("the dtype {other}"),
    }
}

impl Case {
    /// The operator that `torch.OP(x, dim, keepdim)` dispatches to, with its arguments.
    pub fn graph(&self) -> Result<Graph, String> {
        let op = &*self.op;
        let target = match (op, &self.dim) {
            ("norm", _) => "aten.linalg_vector_norm.default".into(),
            ("amax" | "amin" | "aminmax" | "argmax" | "argmin" | "nansum" | "logsumexp", _) => format!("aten.{op}.default"),
            ("var" | "std", _) => format!("aten.{op}.correction"),
            ("count_nonzero", Some(Dims::Several(_))) => "aten.count_nonzero.dim_IntList".into(),
            ("count_nonzero", _) | (_, None) => format!("aten.{op}.default"),
            ("sum", _) => "aten.sum.dim_IntList".into(),
            ("prod", _) => "aten.prod.dim_int".into(),
            ("any" | "all", Some(Dims::Several(_))) => format!("aten.{op}.dims"),
            _ => format!("aten.{op}.dim"),
        };
        let single = matches!(op, "argmax" | "argmin" | "aminmax" | "count_nonzero" | "prod" | "max" | "min" | "any" | "all");
        let mut arguments = vec![("self", Argument::Input(0))];
        match &self.dim {
            Some(Dims::One(dim)) if single => arguments.push(("dim", Argument::Int(*dim))),
            Some(Dims::One(dim)) => arguments.push(("dim", Argument::Ints(vec![*dim]))),
            Some(Dims::Several(dims)) => arguments.push(("dim", Argument::Ints(dims.clone()))),
            // It has no form without dims: `torch.logsumexp` of all of them.
            None if op == "logsumexp" => arguments.push(("dim", Argument::Ints(Vec::new()))),
            None => {}
        }
        // It has no such argument; the reference is without.
        if self.keepdim && op != "count_nonzero" {
            arguments.push(("keepdim", Argument::Bool(true)));
        }
        let dims: Vec<i64> = self.shape.iter().map(|&extent| extent as i64).collect();
        call(&target, &[TensorType::fixed(dtype(&self.dtype), &dims)], &arguments).map_err(|e| e.to_string())
    }

    /// The input tensor.
    pub fn input(&self, tensors: &IndexMap<String, Tensor>) -> Tensor {
        let dtype = dtype(&self.dtype);
        let input = match &self.input {
            Some(key) => in_dtype(tensors[key].clone(), dtype),
            None => Tensor::zeros(dtype, &self.shape).expect("small"),
        };
        assert_eq!((input.dtype(), input.shape()), (dtype, &*self.shape), "{self:?}");
        input
    }

    /// The condition under which PyTorch refuses, by its message.
    fn refusal(message: &str) -> Condition {
        let says = |text: &str| message.contains(text);
        if says("non-zero size")
            || says("Expected reduction dim to be specified for input.numel() == 0")
            || says("has no identity")
        {
            Condition::Empty
        } else if says("does not support complex input") || says("not implemented for 'Complex") {
            Condition::NoOrder
        } else if says("does not support bool input") {
            Condition::Bool
        } else if says("only support floating point and complex dtypes")
            || says("must be either a floating point or complex dtype")
            || says("Expected a floating point or complex tensor as input")
        {
            Condition::NeedsFloats
        } else {
            panic!("an unknown refusal of PyTorch: {message}")
        }
    }

    /// The condition under which eglu refuses, by its message; none if the message is of something else.
    fn our_refusal(message: &str) -> Option<Condition> {
        let kinds = [
            ("of no elements has no value", Condition::Empty),
            ("has no order", Condition::NoOrder),
            ("not defined for bool", Condition::Bool),
            ("needs floats or complex numbers, not", Condition::NeedsFloats),
            ("needs a float or complex dtype, not", Condition::NeedsFloats),
        ];
        kinds.into_iter().find(|(text, _)| message.contains(text)).map(|(_, condition)| condition)
    }

    /// Refused under the same condition. Of no complex numbers there are two reasons to refuse an extreme, and either may be told.
    fn check_refusal(&self, why: &str, pytorch: &str) -> Result<(), String> {
        let (got, want) = (Self::our_refusal(why), Self::refusal(pytorch));
        let both = self.shape.contains(&0) && dtype(&self.dtype).is_complex();
        let either = |condition| matches!(condition, Condition::Empty | Condition::NoOrder);
        match got {
            Some(got) if got == want || both && either(got) && either(want) => Ok(()),
            _ => Err(format!("refuses for another reason: {why}; PyTorch: {pytorch}")),
        }
    }

    /// Products of halves. The references are from a GPU, where PyTorch accumulates in f32 and rounds once: they are checked to be just
    /// that. On a CPU, as here, it rounds after each factor: the results must be just that, in the order of the elements.
    fn check_product(&self, got: &Tensor, want: &Tensor, tensors: &IndexMap<String, Tensor>) -> Result<(), String> {
        let x = in_f64(&self.input(tensors));
        let rank = self.shape.len();
        let reduced: Vec<usize> = match &self.dim {
            Some(Dims::One(dim)) => vec![dim.rem_euclid(rank as i64) as usize],
            Some(Dims::Several(dims)) => dims.iter().map(|dim| dim.rem_euclid(rank as i64) as usize).collect(),
            None => (0..rank).collect(),
        };
        let dtype = got.dtype();
        let round = |x: f64| in_f64(&rounded(x, dtype))[0];
        let (mut once, mut each) = (vec![1f64; got.numel()], vec![1f64; got.numel()]);
        for (at, &factor) in x.iter().enumerate() {
            let (mut rest, mut to, mut stride) = (at, 0, 1);
            for dim in (0..rank).rev() {
                let index = rest % self.shape[dim];
                rest /= self.shape[dim];
                if !reduced.contains(&dim) {
                    to += index * stride;
                    stride *= self.shape[dim];
                }
            }
            once[to] = f64::from((once[to] * factor) as f32);
            each[to] = round(each[to] * factor);
        }
        let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
        let once: Vec<f64> = once.into_iter().map(round).collect();
        if !same(&once, &in_f64(want)) {
            return Err(format!("PyTorch's {:?} is not {once:?}, rounded once", in_f64(want)));
        }
        if !same(&each, &in_f64(got)) {
            return Err(format!("gives {:?}, not {each:?}, rounded after each factor", in_f64(got)));
        }
        Ok(())
    }

    /// What is wrong with these results.
    pub fn check(&self, got: Result<Vec<Tensor>, String>, tensors: &IndexMap<String, Tensor>) -> Result<(), String> {
        let got = match (got, &self.error) {
            (Err(why), Some(error)) => return self.check_refusal(&why, error),
            (Ok(_), Some(error)) => return Err(format!("gives a result, PyTorch refuses: {error}")),
            (Err(why), None) => return Err(why),
            (Ok(got), None) => got,
        };
        if got.len() != self.outputs.len() {
            return Err(format!("{} results", got.len()));
        }
        for (got, want) in got.iter().zip(&self.outputs) {
            let dtype = dtype(&want.dtype);
            if (got.dtype(), got.shape()) != (dtype, &*want.shape) {
                return Err(format!("gives {got:?}, PyTorch {} {:?}", want.dtype, want.shape));
            }
            // Tensors without elements are not in the file.
            let Some(reference) = want.key.as_ref().map(|key| &tensors[key]) else { continue };
            let reference = in_dtype(reference.clone(), dtype);
            if self.op == "mean" && dtype.is_complex() && self.shape.contains(&0) {
                // 0 / 0 is NaN in both parts on a CPU and here, and in one on a GPU, where the references are from; either is the number NaN.
                let (ours, theirs) = (in_f64(got), in_f64(&reference));
                let is_nan = |number: &[f64]| number.iter().any(|part| part.is_nan());
                match ours.iter().all(|part| part.is_nan()) && theirs.chunks_exact(2).all(is_nan) {
                    true => continue,
                    false => return Err(format!("gives {ours:?}, PyTorch {theirs:?}")),
                }
            }
            if self.op == "prod" && dtype == DType::F32 && within_subnormal_units(got, &reference) {
                continue;
            }
            if self.op == "prod" && matches!(dtype, DType::F16 | DType::Bf16) {
                self.check_product(got, &reference, tensors)?;
                continue;
            }
            let difference = compare("result", got, &reference).map_err(|e| e.to_string())?;
            if !difference.within {
                return Err(format!("differs by {:.1e}, {:?} allowed", difference.relative, tolerance(dtype)));
            }
        }
        Ok(())
    }
}

/// True for numbers below the normal ones that are one or two of their units apart: they have no precision for a relative tolerance.
fn within_subnormal_units(got: &Tensor, want: &Tensor) -> bool {
    let near =
        |(&got, &want): (&f32, &f32)| got.is_subnormal() && want.is_subnormal() && got.to_bits().abs_diff(want.to_bits()) <= 2;
    got.as_slice::<f32>().iter().zip(want.as_slice::<f32>()).all(near)
}

/// A number, rounded to f32 and then to this dtype.
fn rounded(x: f64, dtype: DType) -> Tensor {
    let wide = Tensor::from_slice(DType::F32, &[], &[x as f32]).expect("small");
    eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Default::default()).expect("floats cast").remove(0)
}

/// The elements, in f64.
fn in_f64(tensor: &Tensor) -> Vec<f64> {
    let cast = Cast { dtype: DType::F64 }.into();
    eval_op(&cast, &[EvalOperand::Tensor(tensor)], &Default::default()).expect("floats cast")[0].as_slice().to_vec()
}
