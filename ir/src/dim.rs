//! Symbolic dims: integer polynomials over named symbols, in canonical form, so that equal dims compare equal.

pub mod bounds;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::{collections::BTreeMap, fmt, ops, sync::Arc};

/// The extents of a tensor, outermost first.
pub type Shape = SmallVec<[Dim; 4]>;

/// The values given to symbols for one run.
pub type Bindings = IndexMap<Arc<str>, i64>;

/// The values a symbol may take; `max` is `None` where the archive bounds it by nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SymbolRange {
    pub min: i64,
    pub max: Option<i64>,
}

/// An extent: an integer, or an expression over symbols.
///
/// Sums of products are kept sorted and merged. Division, remainder, minimum and maximum that do not simplify are opaque factors.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A known extent.
    Const(i64),
    /// A polynomial with at least one symbol.
    Poly(Arc<Poly>),
}

/// Sum of coefficient × monomial; the empty monomial is the constant term. No coefficient is zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Poly(BTreeMap<Monomial, i64>);

type Monomial = Vec<(Factor, u32)>;

/// Mentions of symbols and constants in a dim, and how deep its functions nest, at most: expressions of real graphs have a handful.
/// Without bounds, products of sums grow exponentially, and recursion over nested functions overflows the stack.
const SIZE: usize = 1024;
const DEPTH: usize = 32;

/// The size of an expression, written out as a tree.
#[derive(Clone, Copy)]
struct Measure {
    size: usize,
    depth: usize,
}

impl Poly {
    /// `None` where the size overflows.
    fn measure(&self) -> Option<Measure> {
        let mut whole = Measure { size: 0, depth: 0 };
        for monomial in self.0.keys() {
            whole.size = whole.size.checked_add(1)?;
            for (factor, power) in monomial {
                let one = match factor {
                    Factor::Symbol(_) => Measure { size: 1, depth: 0 },
                    Factor::FloorDiv(a, b) | Factor::Rem(a, b) | Factor::Min(a, b) | Factor::Max(a, b) => {
                        let (a, b) = (a.measure()?, b.measure()?);
                        Measure { size: a.size.checked_add(b.size)?, depth: a.depth.max(b.depth) + 1 }
                    }
                };
                // Powers are written out as repeated factors.
                whole.size = whole.size.checked_add(one.size.checked_mul(*power as usize)?)?;
                whole.depth = whole.depth.max(one.depth);
            }
        }
        Some(whole)
    }
}

/// What a monomial multiplies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Factor {
    Symbol(Arc<str>),
    FloorDiv(Dim, Dim),
    Rem(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
}

/// Why a dim has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DimError {
    #[error("the dim `{0}` has no value: give it one")]
    Unbound(Arc<str>),
    #[error("the dim `{0}` overflows 64 bits or divides by zero")]
    Overflow(String),
    #[error("the dim `{dim}` is {value}, but an extent cannot be negative")]
    Negative { dim: String, value: i64 },
}

impl From<i64> for Dim {
    fn from(value: i64) -> Self {
        Dim::Const(value)
    }
}

impl Dim {
    /// The dim that is the symbol itself.
    pub fn symbol(name: &str) -> Dim {
        Self::factor(Factor::Symbol(name.into()))
    }

    fn factor(factor: Factor) -> Dim {
        Self::normal(Poly(BTreeMap::from([(vec![(factor, 1)], 1)])))
    }

    /// The value, if it is the same for every choice of the symbols.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Dim::Const(value) => Some(*value),
            Dim::Poly(_) => None,
        }
    }

    /// True for the constant `value`.
    pub fn is(&self, value: i64) -> bool {
        self.as_const() == Some(value)
    }

    fn poly(&self) -> Poly {
        match self {
            Dim::Const(0) => Poly::default(),
            Dim::Const(value) => Poly(BTreeMap::from([(vec![], *value)])),
            Dim::Poly(poly) => (**poly).clone(),
        }
    }

    fn normal(poly: Poly) -> Dim {
        match poly.0.len() {
            0 => Dim::Const(0),
            1 if poly.0.contains_key(&vec![]) => Dim::Const(poly.0[&vec![]]),
            _ if poly.measure().is_none_or(|measure| measure.size > SIZE || measure.depth > DEPTH) => Dim::TOO_LARGE,
            _ => Dim::Poly(Arc::new(poly)),
        }
    }

    /// What stands for expressions beyond [`SIZE`] and [`DEPTH`]: no such extent can be allocated, and evaluation reports it.
    const TOO_LARGE: Dim = Dim::Const(i64::MAX);

    fn measure(&self) -> Option<Measure> {
        match self {
            Dim::Const(_) => Some(Measure { size: 1, depth: 0 }),
            Dim::Poly(poly) => poly.measure(),
        }
    }

    /// The quotient if `divisor` is a single term that divides every term exactly.
    pub fn exact_div(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor && !self.is(0) {
            return Some(Dim::Const(1));
        }
        let divisor = divisor.poly();
        let (by, &scale) = divisor.0.first_key_value().filter(|_| divisor.0.len() == 1)?;
        let mut quotient = Poly::default();
        for (monomial, &coefficient) in &self.poly().0 {
            let mut rest = monomial.clone();
            for (factor, power) in by {
                let at = rest.iter().position(|(f, p)| f == factor && p >= power)?;
                rest[at].1 -= power;
                if rest[at].1 == 0 {
                    rest.remove(at);
                }
            }
            if coefficient.checked_rem(scale)? != 0 {
                return None;
            }
            quotient.0.insert(rest, coefficient / scale);
        }
        Some(Dim::normal(quotient))
    }

    /// Division rounding down.
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        if *self == Dim::TOO_LARGE {
            return Dim::TOO_LARGE;
        }
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) if b != 0 && a.checked_div(b).is_some() => return Dim::Const(floor_div(a, b)),
            _ => {}
        }
        if let Some(quotient) = self.exact_div(divisor) {
            return quotient;
        }
        match divisor.as_const().filter(|&divisor| divisor > 0) {
            Some(by) => self.floor_div_by(by),
            None => Self::factor(Factor::FloorDiv(self.clone(), divisor.clone())),
        }
    }

    /// Division rounding down by a positive number, in one form for all spellings: `(2·h + 3) / 2` is `h + 1`, `-((-x) / 8)` (PyTorch's
    /// padding to a multiple) is `(x + 7) / 8`, and `((x + 1) / 2 + 1) / 2` (strided convolutions in a row) is `(x + 3) / 4`.
    fn floor_div_by(&self, by: i64) -> Dim {
        let (quotient, rest) = self.multiples(by);
        let poly = rest.poly();
        let constant = poly.0.get(&vec![]).copied().unwrap_or(0);
        let mut terms = poly.0.iter().filter(|(monomial, _)| !monomial.is_empty());
        let Some((monomial, &coefficient)) = terms.next() else { return quotient };
        let alone = terms.next().is_none();
        let divided = match &monomial[..] {
            [(Factor::FloorDiv(x, Dim::Const(inner)), 1)] if alone && coefficient == 1 && *inner > 0 => {
                let both = inner.checked_mul(by).zip(inner.checked_mul(constant));
                both.map(|(by, constant)| (x.clone() + Dim::from(constant)).floor_div(&Dim::from(by)))
            }
            _ => None,
        };
        let negative = poly.0.iter().all(|(monomial, &coefficient)| monomial.is_empty() || coefficient < 0);
        quotient
            + match divided {
                Some(divided) => divided,
                None if negative && by > 1 => -(-rest + Dim::from(by - 1)).floor_div(&Dim::from(by)),
                None => Self::factor(Factor::FloorDiv(rest, Dim::from(by))),
            }
    }

    /// The terms that a positive number divides, divided by it, and the other terms; of the constant term the rest of its division.
    fn multiples(&self, divisor: i64) -> (Dim, Dim) {
        let (mut quotient, mut rest) = (Poly::default(), Poly::default());
        for (monomial, coefficient) in self.poly().0 {
            let (whole, part) = match coefficient % divisor {
                0 => (coefficient / divisor, 0),
                _ if monomial.is_empty() => (coefficient.div_euclid(divisor), coefficient.rem_euclid(divisor)),
                _ => (0, coefficient),
            };
            if whole != 0 {
                quotient.0.insert(monomial.clone(), whole);
            }
            if part != 0 {
                rest.0.insert(monomial, part);
            }
        }
        (Dim::normal(quotient), Dim::normal(rest))
    }

    /// Division rounding up, for grids.
    pub fn ceil_div(&self, divisor: i64) -> Dim {
        (self.clone() + Dim::from(divisor - 1)).floor_div(&Dim::from(divisor))
    }

    /// Remainder with the sign of the divisor (Python's `%`).
    pub fn rem(&self, divisor: &Dim) -> Dim {
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) if b != 0 && a.checked_div(b).is_some() => {
                return Dim::Const(a.wrapping_sub(floor_div(a, b).wrapping_mul(b)));
            }
            _ => {}
        }
        if self.exact_div(divisor).is_some() {
            return Dim::Const(0);
        }
        match divisor.as_const() {
            Some(by) if by > 0 && *self != Dim::TOO_LARGE => self.clone() - self.floor_div(divisor) * Dim::from(by),
            _ => Self::factor(Factor::Rem(self.clone(), divisor.clone())),
        }
    }

    /// The smaller of two dims.
    pub fn min(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::Const(a.min(b)),
            _ if self == other => self.clone(),
            _ => Self::factor(Factor::Min(self.min_of(other).clone(), self.max_of(other).clone())),
        }
    }

    /// The larger of two dims.
    pub fn max(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::Const(a.max(b)),
            _ if self == other => self.clone(),
            _ => Self::factor(Factor::Max(self.min_of(other).clone(), self.max_of(other).clone())),
        }
    }

    // Operands of min and max are ordered, so that both spellings are the same dim.
    fn min_of<'a>(&'a self, other: &'a Dim) -> &'a Dim {
        std::cmp::Ord::min(self, other)
    }

    fn max_of<'a>(&'a self, other: &'a Dim) -> &'a Dim {
        std::cmp::Ord::max(self, other)
    }

    /// The value under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let poly = match self {
            Dim::Const(value) => return Ok(*value),
            Dim::Poly(poly) => poly,
        };
        let overflow = || DimError::Overflow(self.to_string());
        let mut sum = 0i64;
        for (monomial, &coefficient) in &poly.0 {
            let mut term = coefficient;
            for (factor, power) in monomial {
                let value = factor.eval(bindings)?.ok_or_else(overflow)?;
                term = value.checked_pow(*power).and_then(|v| term.checked_mul(v)).ok_or_else(overflow)?;
            }
            sum = sum.checked_add(term).ok_or_else(overflow)?;
        }
        Ok(sum)
    }

    /// The value under `bindings`, as an extent.
    pub fn extent(&self, bindings: &Bindings) -> Result<usize, DimError> {
        let value = self.eval(bindings)?;
        usize::try_from(value).map_err(|_| DimError::Negative { dim: self.to_string(), value })
    }

    /// Adds the names of the symbols in this dim to `into`, in order of first mention.
    pub fn collect_symbols(&self, into: &mut indexmap::IndexSet<Arc<str>>) {
        let Dim::Poly(poly) = self else { return };
        for factor in poly.0.keys().flatten().map(|(factor, _)| factor) {
            match factor {
                Factor::Symbol(name) => {
                    into.insert(name.clone());
                }
                Factor::FloorDiv(a, b) | Factor::Rem(a, b) | Factor::Min(a, b) | Factor::Max(a, b) => {
                    a.collect_symbols(into);
                    b.collect_symbols(into);
                }
            }
        }
    }

    /// The terms `(coefficient, factors with powers)`, for emitters; a constant is one term without factors.
    pub fn terms(&self) -> Vec<(i64, Vec<(Factor, u32)>)> {
        self.poly().0.into_iter().map(|(monomial, coefficient)| (coefficient, monomial)).collect()
    }
}

impl Factor {
    fn eval(&self, bindings: &Bindings) -> Result<Option<i64>, DimError> {
        Ok(match self {
            Factor::Symbol(name) => Some(*bindings.get(name).ok_or_else(|| DimError::Unbound(name.clone()))?),
            Factor::FloorDiv(a, b) => {
                let (a, b) = (a.eval(bindings)?, b.eval(bindings)?);
                a.checked_div(b).map(|_| floor_div(a, b))
            }
            Factor::Rem(a, b) => {
                let (a, b) = (a.eval(bindings)?, b.eval(bindings)?);
                a.checked_rem(b).map(|_| a.wrapping_sub(floor_div(a, b).wrapping_mul(b)))
            }
            Factor::Min(a, b) => Some(a.eval(bindings)?.min(b.eval(bindings)?)),
            Factor::Max(a, b) => Some(a.eval(bindings)?.max(b.eval(bindings)?)),
        })
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let quotient = a / b;
    if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

/// Overflowing coefficients saturate: no such extent can be allocated, and evaluation reports it.
fn merge(into: &mut BTreeMap<Monomial, i64>, monomial: Monomial, coefficient: i64) {
    let sum = into.entry(monomial.clone()).or_insert(0);
    *sum = sum.saturating_add(coefficient);
    if *sum == 0 {
        into.remove(&monomial);
    }
}

/// The product of two monomials.
fn join(a: &Monomial, b: &Monomial) -> Monomial {
    let mut powers: BTreeMap<Factor, u32> = a.iter().cloned().collect();
    for (factor, power) in b {
        let sum = powers.entry(factor.clone()).or_insert(0);
        *sum = sum.saturating_add(*power);
    }
    powers.into_iter().collect()
}

impl ops::Add for Dim {
    type Output = Dim;

    fn add(self, other: Dim) -> Dim {
        let mut sum = self.poly();
        for (monomial, coefficient) in other.poly().0 {
            merge(&mut sum.0, monomial, coefficient);
        }
        Dim::normal(sum)
    }
}

impl ops::Neg for Dim {
    type Output = Dim;

    fn neg(self) -> Dim {
        self * Dim::from(-1)
    }
}

impl ops::Sub for Dim {
    type Output = Dim;

    fn sub(self, other: Dim) -> Dim {
        self + -other
    }
}

impl ops::Mul for Dim {
    type Output = Dim;

    fn mul(self, other: Dim) -> Dim {
        if let (Dim::Const(a), Dim::Const(b)) = (&self, &other) {
            return Dim::Const(a.saturating_mul(*b));
        }
        let (left, right) = (self.poly(), other.poly());
        if left.0.len() * right.0.len() > 4 * SIZE {
            return Dim::TOO_LARGE;
        }
        let mut product = BTreeMap::new();
        for (a, x) in &left.0 {
            for (b, y) in &right.0 {
                merge(&mut product, join(a, b), x.saturating_mul(*y));
            }
        }
        Dim::normal(Poly(product))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poly = match self {
            Dim::Const(value) => return write!(f, "{value}"),
            Dim::Poly(poly) => poly,
        };
        // The constant term sorts first but reads best last.
        let constant = poly.0.get(&vec![]).copied();
        let symbolic = poly.0.iter().filter(|(monomial, _)| !monomial.is_empty());
        for (i, (monomial, &coefficient)) in symbolic.enumerate() {
            if i > 0 {
                f.write_str("+")?;
            }
            if coefficient != 1 {
                write!(f, "{coefficient}*")?;
            }
            for (j, (factor, power)) in monomial.iter().enumerate() {
                for k in 0..*power {
                    write!(f, "{}{factor}", if j > 0 || k > 0 { "*" } else { "" })?;
                }
            }
        }
        match constant {
            Some(value) => write!(f, "+{value}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::Symbol(name) => f.write_str(name),
            Factor::FloorDiv(a, b) => write!(f, "floordiv({a}, {b})"),
            Factor::Rem(a, b) => write!(f, "rem({a}, {b})"),
            Factor::Min(a, b) => write!(f, "min({a}, {b})"),
            Factor::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
