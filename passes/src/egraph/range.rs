//! Integer ranges: what is known of the values of integer and bool tensors, and how ops carry it on.

use eglu_ir::{DType, Dim, Op, Scalar, ops::Pointwise, ops::ReduceKind};

/// Inclusive bounds; the extremes of `i64` mean that nothing is known on that side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Range {
    pub lo: i64,
    pub hi: i64,
}

impl Range {
    /// Nothing known.
    pub const ANY: Range = Range { lo: i64::MIN, hi: i64::MAX };
    /// False or true.
    pub const TRUTH: Range = Range { lo: 0, hi: 1 };

    /// Bounds as given.
    pub fn new(lo: i64, hi: i64) -> Range {
        Range { lo, hi }
    }

    /// One value.
    pub fn only(value: i64) -> Range {
        Range { lo: value, hi: value }
    }

    /// What a dtype alone tells.
    pub fn of_dtype(dtype: DType) -> Range {
        match dtype {
            DType::Bool => Range::TRUTH,
            DType::U8 => Range::new(0, 255),
            DType::I8 => Range::new(-128, 127),
            DType::I16 => Range::new(-32768, 32767),
            DType::U16 => Range::new(0, 65535),
            DType::I32 => Range::new(i64::from(i32::MIN), i64::from(i32::MAX)),
            DType::U32 => Range::new(0, i64::from(u32::MAX)),
            DType::U64 => Range::new(0, i64::MAX),
            _ => Range::ANY,
        }
    }

    /// Positions along an extent: `0..extent`.
    pub fn positions(extent: &Dim) -> Range {
        Range::new(0, extent.as_const().map_or(i64::MAX, |n| n.saturating_sub(1).max(0)))
    }

    /// Both hold.
    pub fn meet(self, other: Range) -> Range {
        Range::new(self.lo.max(other.lo), self.hi.min(other.hi))
    }

    /// Either holds.
    pub fn join(self, other: Range) -> Range {
        Range::new(self.lo.min(other.lo), self.hi.max(other.hi))
    }

    /// No value can satisfy it.
    pub fn is_empty(self) -> bool {
        self.lo > self.hi
    }

    /// The value, if there is just one.
    pub fn as_const(self) -> Option<i64> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// The range that also lies within the dtype's; a range that may leave it says nothing (values wrap).
    fn within(self, dtype: DType) -> Range {
        let limits = Range::of_dtype(dtype);
        if limits.lo <= self.lo && self.hi <= limits.hi { self } else { limits }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.lo, self.hi) {
            (i64::MIN, i64::MAX) => f.write_str("anything"),
            (i64::MIN, hi) => write!(f, "at most {hi}"),
            (lo, i64::MAX) => write!(f, "at least {lo}"),
            (lo, hi) => write!(f, "{lo} to {hi}"),
        }
    }
}

/// The range of a number; fractions say nothing.
pub fn of_scalar(scalar: Scalar) -> Range {
    match scalar {
        Scalar::Float(value) if value.fract() != 0.0 || !value.is_finite() || value.abs() > 2f64.powi(53) => Range::ANY,
        other => Range::only(other.as_i64()),
    }
}

/// The range of an op's first output, from those of its operands. `operands` are ranges with dtypes; a number has no dtype.
pub fn transfer(op: &Op, operands: &[(Range, Option<DType>)], result: DType) -> Range {
    let first = operands.first().map_or(Range::ANY, |operand| operand.0);
    let known = match op {
        Op::Reshape(_)
        | Op::Permute(_)
        | Op::Expand(_)
        | Op::Slice(_)
        | Op::Index(_)
        | Op::Gather(_)
        | Op::Sort(_)
        | Op::TopK(_) => first,
        Op::Cat(_) => operands.iter().fold(first, |sum, operand| sum.join(operand.0)),
        Op::Reduce(reduce) if matches!(reduce.kind, ReduceKind::Amax | ReduceKind::Amin) => first,
        Op::Cast(_) => cast(first, operands.first().and_then(|operand| operand.1), result),
        Op::Full(full) => of_scalar(full.value),
        Op::Iota(iota) => {
            let steps = iota.len.as_const().map(|n| iota.step.saturating_mul(n.saturating_sub(1).max(0)));
            match steps {
                Some(span) => Range::only(iota.start).join(Range::only(iota.start.saturating_add(span))),
                None if iota.step >= 0 => Range::new(iota.start, i64::MAX),
                None => Range::new(i64::MIN, iota.start),
            }
        }
        Op::Pointwise(op) => pointwise(*op, operands, result),
        _ => Range::ANY,
    };
    // Floats carry a range only where it came from integers; of their own they may be NaN.
    known.meet(Range::of_dtype(result))
}

fn cast(from: Range, source: Option<DType>, to: DType) -> Range {
    if source.is_none_or(|dtype| dtype.is_complex()) || from == Range::ANY {
        return Range::of_dtype(to);
    }
    match to {
        DType::Bool => match from {
            Range { lo: 0, hi: 0 } => Range::only(0),
            Range { lo, hi } if lo > 0 || hi < 0 => Range::only(1),
            _ => Range::TRUTH,
        },
        // Exactly representable only: a rounded bound would move.
        DType::F32 if from.lo < -(1 << 24) || from.hi > 1 << 24 => Range::ANY,
        DType::F64 if from.lo < -(1 << 53) || from.hi > 1 << 53 => Range::ANY,
        DType::F32 | DType::F64 => from,
        int if int.is_int() => from.within(int),
        _ => Range::ANY,
    }
}

fn pointwise(op: Pointwise, operands: &[(Range, Option<DType>)], result: DType) -> Range {
    let truth = |known: Option<bool>| known.map_or(Range::TRUTH, |value| Range::only(i64::from(value)));
    let integer = result.is_int() || result == DType::Bool;
    match (op, operands) {
        (Pointwise::Ge, [a, b]) => truth(at_least(a.0, b.0)),
        (Pointwise::Lt, [a, b]) => truth(at_least(a.0, b.0).map(|known| !known)),
        (Pointwise::Le, [a, b]) => truth(at_least(b.0, a.0)),
        (Pointwise::Gt, [a, b]) => truth(at_least(b.0, a.0).map(|known| !known)),
        (Pointwise::Eq, [a, b]) => truth(equal(a.0, b.0)),
        (Pointwise::Ne, [a, b]) => truth(equal(a.0, b.0).map(|known| !known)),
        (Pointwise::LogicalNot, [a]) => truth(nonzero(a.0).map(|known| !known)),
        (Pointwise::BitNot, [a]) if result == DType::Bool => truth(nonzero(a.0).map(|known| !known)),
        (Pointwise::LogicalAnd | Pointwise::BitAnd, [a, b]) if result == DType::Bool => truth(both(a.0, b.0)),
        (Pointwise::LogicalOr | Pointwise::BitOr, [a, b]) if result == DType::Bool => truth(either(a.0, b.0)),
        (Pointwise::Where, [_, x, y]) if integer => x.0.join(y.0),
        (Pointwise::Maximum, [a, b]) if integer => Range::new(a.0.lo.max(b.0.lo), a.0.hi.max(b.0.hi)),
        (Pointwise::Minimum, [a, b]) if integer => Range::new(a.0.lo.min(b.0.lo), a.0.hi.min(b.0.hi)),
        (Pointwise::Add, [a, b]) if result.is_int() => sum(a.0, b.0).within(result),
        (Pointwise::Sub, [a, b]) if result.is_int() => sum(a.0, negate(b.0)).within(result),
        (Pointwise::FloorDiv, [a, b]) if result.is_int() => match b.0.as_const() {
            Some(by) if by > 0 => Range::new(bounded(a.0.lo, |v| v.div_euclid(by)), bounded(a.0.hi, |v| v.div_euclid(by))),
            _ => Range::ANY,
        },
        (Pointwise::Remainder, [_, b]) if result.is_int() => match b.0.as_const() {
            Some(by) if by > 0 => Range::new(0, by - 1),
            _ => Range::ANY,
        },
        _ => Range::ANY,
    }
}

fn bounded(bound: i64, f: impl Fn(i64) -> i64) -> i64 {
    if bound == i64::MIN || bound == i64::MAX { bound } else { f(bound) }
}

fn negate(a: Range) -> Range {
    let flip = |bound: i64| if bound == i64::MIN { i64::MAX } else { -bound };
    Range::new(if a.hi == i64::MAX { i64::MIN } else { flip(a.hi) }, flip(a.lo))
}

/// The sum; an unknown or overflowing side makes the whole unknown, as integers wrap.
fn sum(a: Range, b: Range) -> Range {
    let known = |r: Range| r.lo != i64::MIN && r.hi != i64::MAX;
    match (a.lo.checked_add(b.lo), a.hi.checked_add(b.hi)) {
        (Some(lo), Some(hi)) if known(a) && known(b) => Range::new(lo, hi),
        _ => Range::ANY,
    }
}

fn at_least(a: Range, b: Range) -> Option<bool> {
    // A float compared without a range may be NaN: unknown bounds never decide.
    if a == Range::ANY || b == Range::ANY {
        return None;
    }
    match () {
        () if a.lo >= b.hi && a.lo != i64::MIN => Some(true),
        () if a.hi < b.lo => Some(false),
        () => None,
    }
}

fn equal(a: Range, b: Range) -> Option<bool> {
    match (a.as_const(), b.as_const()) {
        (Some(x), Some(y)) => Some(x == y),
        _ if a.hi < b.lo || b.hi < a.lo => Some(false),
        _ => None,
    }
}

fn nonzero(a: Range) -> Option<bool> {
    equal(a, Range::only(0)).map(|zero| !zero)
}

fn both(a: Range, b: Range) -> Option<bool> {
    match (nonzero(a), nonzero(b)) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn either(a: Range, b: Range) -> Option<bool> {
    match (nonzero(a), nonzero(b)) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}
