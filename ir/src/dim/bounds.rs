//! What ranges of symbols say of dims: bounds, and the forms that follow, such as `min(256, s)` for `s` of at most 256.

use super::{Dim, Factor, SymbolRange};
use indexmap::IndexMap;
use std::sync::Arc;

/// Ranges of symbols by name.
pub type Ranges = IndexMap<Arc<str>, SymbolRange>;

/// The least and the largest value; `None` where there is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bounds {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

impl Bounds {
    const ANY: Bounds = Bounds { min: None, max: None };

    fn exactly(value: i64) -> Bounds {
        Bounds { min: Some(value), max: Some(value) }
    }

    /// The value, if there is only one.
    pub fn only(self) -> Option<i64> {
        self.min.filter(|_| self.min == self.max)
    }

    fn plus(self, other: Bounds) -> Bounds {
        let sum = |a: Option<i64>, b: Option<i64>| a.zip(b).and_then(|(a, b)| a.checked_add(b));
        Bounds { min: sum(self.min, other.min), max: sum(self.max, other.max) }
    }

    fn times(self, other: Bounds) -> Bounds {
        let (Some(a), Some(b)) = (self.min, other.min) else { return Bounds::ANY };
        match (self.max, other.max) {
            (Some(c), Some(d)) => {
                let products = [a.checked_mul(b), a.checked_mul(d), c.checked_mul(b), c.checked_mul(d)];
                match products.into_iter().collect::<Option<Vec<i64>>>() {
                    Some(all) => Bounds { min: all.iter().copied().min(), max: all.iter().copied().max() },
                    None => Bounds::ANY,
                }
            }
            // What is not negative grows without bound.
            _ if a >= 0 && b >= 0 => Bounds { min: a.checked_mul(b), max: None },
            _ => Bounds::ANY,
        }
    }

    fn negated(self) -> Bounds {
        let minus = |bound: Option<i64>| bound.and_then(i64::checked_neg);
        Bounds { min: minus(self.max), max: minus(self.min) }
    }
}

/// The values that a dim may have.
pub fn bounds(dim: &Dim, ranges: &Ranges) -> Bounds {
    dim.terms().into_iter().fold(Bounds::exactly(0), |sum, (coefficient, factors)| {
        let product = factors.iter().fold(Bounds::exactly(1), |product, (factor, power)| {
            let own = of_factor(factor, ranges);
            (0..*power).fold(product, |product, _| product.times(own))
        });
        let size = Bounds::exactly(coefficient.saturating_abs());
        let term = product.times(size);
        sum.plus(if coefficient < 0 { product.negated().times(size) } else { term })
    })
}

fn of_factor(factor: &Factor, ranges: &Ranges) -> Bounds {
    match factor {
        Factor::Symbol(name) => {
            ranges.get(name).map_or(Bounds { min: Some(0), max: None }, |range| Bounds { min: Some(range.min), max: range.max })
        }
        Factor::FloorDiv(a, b) => match b.as_const() {
            Some(by) if by > 0 => {
                let a = bounds(a, ranges);
                Bounds { min: a.min.map(|min| min.div_euclid(by)), max: a.max.map(|max| max.div_euclid(by)) }
            }
            _ => Bounds::ANY,
        },
        Factor::Rem(_, b) => match bounds(b, ranges) {
            Bounds { min: Some(1..), max } => Bounds { min: Some(0), max: max.map(|max| max - 1) },
            _ => Bounds::ANY,
        },
        Factor::Min(a, b) => {
            let (a, b) = (bounds(a, ranges), bounds(b, ranges));
            Bounds { min: a.min.zip(b.min).map(|(a, b)| a.min(b)), max: a.max.into_iter().chain(b.max).min() }
        }
        Factor::Max(a, b) => {
            let (a, b) = (bounds(a, ranges), bounds(b, ranges));
            Bounds { min: a.min.into_iter().chain(b.min).max(), max: a.max.zip(b.max).map(|(a, b)| a.max(b)) }
        }
    }
}

/// The same dim for all values in the ranges, with every function decided that they decide.
pub fn simplified(dim: &Dim, ranges: &Ranges) -> Dim {
    if dim.as_const().is_some() {
        return dim.clone();
    }
    dim.terms().into_iter().fold(Dim::from(0), |sum, (coefficient, factors)| {
        let product = factors.iter().fold(Dim::from(coefficient), |product, (factor, power)| {
            let own = factor_simplified(factor, ranges);
            (0..*power).fold(product, |product, _| product * own.clone())
        });
        sum + product
    })
}

fn factor_simplified(factor: &Factor, ranges: &Ranges) -> Dim {
    if !matches!(factor, Factor::Symbol(_))
        && let Some(value) = of_factor(factor, ranges).only()
    {
        return Dim::from(value);
    }
    let both = |a: &Dim, b: &Dim| (simplified(a, ranges), simplified(b, ranges));
    // True if the first is never above the second.
    let ordered = |a: &Dim, b: &Dim| bounds(&(b.clone() - a.clone()), ranges).min.is_some_and(|least| least >= 0);
    match factor {
        Factor::Symbol(name) => Dim::symbol(name),
        Factor::FloorDiv(a, b) => {
            let (a, b) = both(a, b);
            a.floor_div(&b)
        }
        Factor::Rem(a, b) => {
            let (a, b) = both(a, b);
            a.rem(&b)
        }
        Factor::Min(a, b) => {
            let (a, b) = both(a, b);
            if ordered(&a, &b) {
                a
            } else if ordered(&b, &a) {
                b
            } else {
                Dim::min(&a, &b)
            }
        }
        Factor::Max(a, b) => {
            let (a, b) = both(a, b);
            if ordered(&a, &b) {
                b
            } else if ordered(&b, &a) {
                a
            } else {
                Dim::max(&a, &b)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bindings;

    fn ranges() -> Ranges {
        Ranges::from([("s".into(), SymbolRange { min: 2, max: Some(8) }), ("t".into(), SymbolRange { min: 1, max: None })])
    }

    #[test]
    fn bounds_hold_for_every_value() {
        let (s, t) = (Dim::symbol("s"), Dim::symbol("t"));
        let dims = [
            s.clone() * Dim::from(-3) + Dim::from(1),
            s.clone() * t.clone(),
            (s.clone() + Dim::from(5)).floor_div(&Dim::from(3)),
            t.rem(&s),
            Dim::min(&s, &t) - Dim::max(&t, &Dim::from(4)),
            s.clone() * s.clone() - t,
        ];
        for dim in dims {
            let Bounds { min, max } = bounds(&dim, &ranges());
            for (s, t) in (2..=8).flat_map(|s| (1..40).map(move |t| (s, t))) {
                let bindings = Bindings::from([("s".into(), s), ("t".into(), t)]);
                let value = dim.eval(&bindings).unwrap();
                assert!(min.is_none_or(|min| min <= value) && max.is_none_or(|max| value <= max), "{dim} is {value}");
                assert_eq!(simplified(&dim, &ranges()).eval(&bindings), Ok(value));
            }
        }
    }

    #[test]
    fn ranges_decide_functions() {
        let (s, t) = (Dim::symbol("s"), Dim::symbol("t"));
        let ranges = ranges();
        assert_eq!(simplified(&Dim::min(&Dim::from(256), &s), &ranges), s);
        assert_eq!(simplified(&Dim::max(&t, &Dim::from(1)), &ranges), t);
        assert_eq!(simplified(&(s.clone() + Dim::from(7)).floor_div(&Dim::from(8)), &ranges), Dim::from(1));
        assert_eq!(simplified(&Dim::min(&t, &(t.clone() + s)), &ranges), t);
    }
}
