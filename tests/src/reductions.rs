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

    /// Products by element: PyTorch rounds after each factor on a CPU and not at all on a GPU, where the references are from. Each rounding
    /// may be off by half a unit, and numbers below the normal ones have no precision to lose.
    fn check_product(&self, got: &Tensor, want: &Tensor) -> Result<(), String> {
        let (unit, smallest) = match got.dtype() {
            DType::F16 => (2f64.powi(-11), 2f64.powi(-14)),
            DType::Bf16 => (2f64.powi(-8), 2f64.powi(-126)),
            _ => (2f64.powi(-24), 2f64.powi(-126)),
        };
        let factors = self.shape.iter().product::<usize>() as f64;
        for (got, want) in in_f64(got).into_iter().zip(in_f64(want)) {
            let near = (got - want).abs() <= factors * unit * want.abs() + smallest;
            if !(near || got == want || got.is_nan() && want.is_nan()) {
                return Err(format!("gives {got:e}, PyTorch {want:e}"));
            }
        }
        Ok(())
    }

    /// What is wrong with these results.
    pub fn check(&self, got: Result<Vec<Tensor>, String>, tensors: &IndexMap<String, Tensor>) -> Result<(), String> {
        let got = match (got, &self.error) {
            (Err(_), Some(_)) => return Ok(()),
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
            // The mean of no complex numbers is NaN in both parts on a CPU, and in one on a GPU, where the references are from.
            if self.op == "mean" && dtype.is_complex() && self.shape.contains(&0) && in_f64(got).iter().all(|x| x.is_nan()) {
                continue;
            }
            if self.op == "prod" && matches!(dtype, DType::F16 | DType::Bf16 | DType::F32) {
                self.check_product(got, &reference)?;
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

/// The elements, in f64.
fn in_f64(tensor: &Tensor) -> Vec<f64> {
    let cast = Cast { dtype: DType::F64 }.into();
    eval_op(&cast, &[EvalOperand::Tensor(tensor)], &Default::default()).expect("floats cast")[0].as_slice().to_vec()
}
