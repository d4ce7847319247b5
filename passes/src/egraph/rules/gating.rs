//! Pointwise expressions between products, read from the e-graph as one program: any activation gates, not only those that have a name.

use super::choice::ops;
use crate::egraph::{language::Head, rule::Site};
use egg::Id;
use eglu_ir::{
    DType, Op, Program, Ref, Shape,
    ops::{ExpertMatmul, MatMul, Pointwise},
    program::InstrOp,
};
use indexmap::IndexMap;

/// Deepest expression that is read.
const DEEPEST: usize = 16;

/// A program of one or two products.
pub struct Gating {
    /// What it computes of the products.
    pub program: Program,
    /// The products: rows, weight, bias.
    pub products: Vec<[Id; 3]>,
}

impl Gating {
    /// Limits of a clamp that are not symmetric, in words: no model is known to mean that.
    pub fn asymmetric(&self) -> Option<String> {
        let number = |arg: &Ref| match arg {
            Ref::Scalar(scalar) => Some(scalar.as_f64()),
            _ => None,
        };
        let limit = |of: Ref, by: Pointwise| match of {
            Ref::Instr(i) => {
                let instr = &self.program.instrs[i as usize];
                (instr.op == InstrOp::Pointwise(by)).then(|| instr.args.iter().find_map(number)).flatten()
            }
            _ => None,
        };
        self.program.instrs.iter().find_map(|instr| {
            let (op, other) = match instr.op {
                InstrOp::Pointwise(op @ Pointwise::Minimum) => (op, Pointwise::Maximum),
                InstrOp::Pointwise(op @ Pointwise::Maximum) => (op, Pointwise::Minimum),
                _ => return None,
            };
            let outer = instr.args.iter().find_map(number)?;
            let inner = instr.args.iter().find_map(|&arg| limit(arg, other))?;
            let (lo, hi) = if op == Pointwise::Minimum { (inner, outer) } else { (outer, inner) };
            // What is bounded from 0 up is an activation, such as relu6.
            (lo != -hi && lo != 0.0).then(|| format!("{lo}..{hi}"))
        })
    }
}

/// What a class computes of products by the experts of these ids, if it is pointwise in at most two of them.
pub fn of_experts(site: &Site<'_>, class: Id, ids: Id) -> Option<Gating> {
    let ids = site.egraph.find(ids);
    read(site, class, &|op, operands| match (op, operands) {
        (Op::ExpertMatmul(ExpertMatmul {}), &[x, w, b, by]) if by == ids => Some([x, w, b]),
        _ => None,
    })
}

/// What a class computes of products by matrices, if it is pointwise in at most two of them, which may be seen in another shape. They have no
/// bias: the matrix stands in for it.
pub fn of_matrices(site: &Site<'_>, class: Id) -> Option<Gating> {
    read(site, class, &|op, operands| product(site, op, operands))
}

/// True for a class that is a product by a matrix.
pub fn is_product(site: &Site<'_>, class: Id) -> bool {
    ops(site, class).iter().any(|(op, operands)| product(site, op, operands).is_some())
}

fn product(site: &Site<'_>, op: &Op, operands: &[Id]) -> Option<[Id; 3]> {
    let by_matrix = |op: &Op, operands: &[Id]| match (op, operands) {
        (Op::MatMul(MatMul {}), &[x, w]) if site.ty_of(w).is_some_and(|ty| ty.rank() == 2) => Some([x, w, w]),
        _ => None,
    };
    match (op, operands) {
        (Op::Reshape(_), &[y]) => ops(site, y).iter().find_map(|(op, operands)| by_matrix(op, operands)),
        _ => by_matrix(op, operands),
    }
}

/// The rows, weight and bias of an op that is a product.
type Product<'p> = &'p dyn Fn(&Op, &[Id]) -> Option<[Id; 3]>;

fn read(site: &Site<'_>, class: Id, product: Product<'_>) -> Option<Gating> {
    let ty = site.ty_of(class).filter(|ty| ty.dtype.is_float())?;
    let mut reading = Reading {
        site,
        product,
        shape: ty.shape.clone(),
        program: Program::new([]),
        seen: IndexMap::new(),
        products: Vec::new(),
    };
    let result = reading.value(site.egraph.find(class), DEEPEST)?;
    let dtype = ty.dtype;
    let Reading { mut program, products, .. } = reading;
    let alike = program.params.iter().all(|&param| param == program.params[0]);
    program.results.push((result, dtype));
    (alike && !products.is_empty() && !program.instrs.is_empty()).then_some(Gating { program, products })
}

struct Reading<'s, 'e> {
    site: &'s Site<'e>,
    product: Product<'s>,
    shape: Shape,
    program: Program,
    seen: IndexMap<Id, Ref>,
    products: Vec<[Id; 3]>,
}

impl Reading<'_, '_> {
    fn value(&mut self, class: Id, depth: usize) -> Option<Ref> {
        if let Some(Head::Scalar(scalar)) = self.site.egraph[class].data.leaf {
            return Some(Ref::Scalar(scalar));
        }
        if let Some(&found) = self.seen.get(&class) {
            return Some(found);
        }
        let ty =
            self.site.ty_of(class).filter(|ty| ty.shape == self.shape && (ty.dtype.is_float() || ty.dtype == DType::Bool))?;
        let nodes = ops(self.site, class);
        let result = match nodes.iter().find_map(|(op, operands)| (self.product)(op, operands)) {
            Some(product) if self.products.len() < 2 => {
                self.products.push(product);
                self.program.params.push(ty.dtype);
                Ref::Param(self.products.len() as u32 - 1)
            }
            Some(_) => return None,
            None => nodes.iter().filter(|_| depth > 0).find_map(|(op, operands)| self.call(class, op, operands, depth))?,
        };
        self.seen.insert(class, result);
        Some(result)
    }

    /// One op of the class, or nothing changed.
    fn call(&mut self, class: Id, op: &Op, operands: &[Id], depth: usize) -> Option<Ref> {
        let instr = match op {
            Op::Pointwise(op) => InstrOp::Pointwise(*op),
            Op::Cast(_) => InstrOp::Cast,
            _ => return None,
        };
        let dtype = self.site.ty_of(class)?.dtype;
        let (instrs, seen, products) = (self.program.instrs.len(), self.seen.len(), self.products.len());
        let args: Option<Vec<Ref>> = operands.iter().map(|&operand| self.value(operand, depth - 1)).collect();
        if args.is_none() {
            self.program.instrs.truncate(instrs);
            self.program.params.truncate(products);
            self.products.truncate(products);
            self.seen.truncate(seen);
        }
        args.map(|args| self.program.push(instr, args, dtype))
    }
}
