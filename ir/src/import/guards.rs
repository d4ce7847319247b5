//! `guards_code`: the conditions, in Python, under which a dynamic program holds. Those that say that a size is a multiple of a
//! number are used: such a size becomes that number times a new symbol, which makes its halves equal by their form.

use super::{
    schema::{GraphJson, SymInt},
    srepr,
};
use crate::{Bindings, Dim, SymbolRange};
use indexmap::{IndexMap, IndexSet};
use std::{collections::HashMap, sync::Arc};

/// Largest number tried as a divisor.
const LARGEST: i64 = 64;
/// Values that conditions are tried on: what holds from some number to the last of these is no bound.
const SAMPLES: i64 = 1024;
/// Conditions longer than this are not looked at.
const LENGTH: usize = 4096;

/// Symbols that are multiples of another: what to write for each. The new symbols take their place in `ranges`.
pub fn multiples(guards: &[String], graph: &GraphJson, ranges: &mut IndexMap<Arc<str>, SymbolRange>) -> HashMap<String, Dim> {
    let mut replaced = HashMap::new();
    for guard in guards.iter().filter(|guard| guard.len() <= LENGTH) {
        let Some((symbol, divisor)) = multiple(guard, graph, ranges) else { continue };
        let Some(range) = ranges.get(&*symbol).copied() else { continue };
        let name: Arc<str> = format!("_{symbol}").into();
        if ranges.contains_key(&name) {
            continue;
        }
        let max = range.max.map(|max| max.div_euclid(divisor));
        let min = range.min.div_euclid(divisor) + i64::from(range.min.rem_euclid(divisor) > 0);
        ranges.shift_remove(&*symbol);
        ranges.insert(name.clone(), SymbolRange { min, max });
        replaced.insert(symbol.to_string(), Dim::symbol(&name) * Dim::from(divisor));
    }
    // A symbol with one value is a number.
    let fixed: Vec<(Arc<str>, i64)> =
        ranges.iter().filter(|(_, range)| range.max == Some(range.min)).map(|(name, range)| (name.clone(), range.min)).collect();
    for (name, value) in fixed {
        ranges.shift_remove(&name);
        match name.strip_prefix('_').and_then(|source| replaced.get_mut(source)) {
            Some(multiple) => *multiple = multiple.exact_div(&Dim::symbol(&name)).unwrap_or(Dim::from(1)) * Dim::from(value),
            None => {
                replaced.insert(name.to_string(), Dim::from(value));
            }
        }
    }
    replaced
}

/// Narrows the ranges by conditions on one symbol, such as `8 >= L['ids'].size()[1]`: those that hold exactly from one number to
/// another. `torch.export` keeps such conditions beside wider ranges, and has simplified sizes by them.
pub fn narrow(guards: &[String], graph: &GraphJson, ranges: &mut IndexMap<Arc<str>, SymbolRange>) {
    for guard in guards.iter().filter(|guard| guard.len() <= LENGTH) {
        let Some((symbol, holds)) = truths(guard, graph, ranges) else { continue };
        let (Some(first), Some(last)) = (holds.iter().position(|&h| h), holds.iter().rposition(|&h| h)) else { continue };
        if last + 1 == holds.len() || !holds[first..=last].iter().all(|&h| h) {
            continue;
        }
        if let Some(range) = ranges.get_mut(&symbol) {
            let (first, last) = (first as i64 + 1, last as i64 + 1);
            range.min = range.min.max(first);
            range.max = Some(range.max.map_or(last, |max| max.min(last)));
        }
    }
}

/// Where a comparison of dims of one symbol holds, for the symbol's values from 1 on.
fn truths(guard: &str, graph: &GraphJson, ranges: &IndexMap<Arc<str>, SymbolRange>) -> Option<(Arc<str>, Vec<bool>)> {
    let mut parser = Parser { rest: guard, graph };
    let left = parser.sum(0)?;
    type Comparison = (&'static str, fn(i64, i64) -> bool);
    let comparisons: [Comparison; 6] = [
        ("==", |a, b| a == b),
        ("!=", |a, b| a != b),
        ("<=", |a, b| a <= b),
        (">=", |a, b| a >= b),
        ("<", |a, b| a < b),
        (">", |a, b| a > b),
    ];
    let (_, compare) = comparisons.into_iter().find(|(token, _)| parser.accept(token))?;
    let right = parser.sum(0)?;
    parser.rest.trim().is_empty().then_some(())?;
    let mut symbols = IndexSet::new();
    left.collect_symbols(&mut symbols);
    right.collect_symbols(&mut symbols);
    let symbol = symbols.pop().filter(|symbol| symbols.is_empty() && ranges.contains_key(symbol))?;
    let holds = |value: i64| {
        let bindings = Bindings::from([(symbol.clone(), value)]);
        matches!((left.eval(&bindings), right.eval(&bindings)), (Ok(a), Ok(b)) if compare(a, b))
    };
    Some((symbol.clone(), (1..=SAMPLES).map(holds).collect()))
}

/// The symbol and the number of which a condition makes it a multiple: it is an equation that holds exactly at the multiples.
fn multiple(guard: &str, graph: &GraphJson, ranges: &IndexMap<Arc<str>, SymbolRange>) -> Option<(Arc<str>, i64)> {
    if !guard.contains("==") {
        return None;
    }
    let (symbol, holds) = truths(guard, graph, ranges)?;
    let exact = |divisor: &i64| holds.iter().zip(1..).all(|(&holds, value)| holds == (value % divisor == 0));
    Some((symbol, (2..=LARGEST).find(exact)?))
}

/// Reads the arithmetic of sizes; gives up on everything else.
struct Parser<'a> {
    rest: &'a str,
    graph: &'a GraphJson,
}

impl<'a> Parser<'a> {
    fn accept(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self, depth: usize) -> Option<Dim> {
        let mut sum = self.product(depth)?;
        loop {
            if self.accept("+") {
                sum = sum + self.product(depth)?;
            } else if self.accept("-") {
                sum = sum - self.product(depth)?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Option<Dim> {
        let mut product = self.factor(depth)?;
        loop {
            if self.accept("//") {
                product = product.floor_div(&self.factor(depth)?);
            } else if self.accept("%") {
                product = product.rem(&self.factor(depth)?);
            } else if self.accept("*") {
                product = product * self.factor(depth)?;
            } else {
                return Some(product);
            }
        }
    }

    fn factor(&mut self, depth: usize) -> Option<Dim> {
        if depth > 32 {
            return None;
        }
        if self.accept("(") {
            let inner = self.sum(depth + 1)?;
            return self.accept(")").then_some(inner);
        }
        if self.accept("-") {
            return self.factor(depth + 1).map(|dim| -dim);
        }
        for (name, of) in [("min(", Dim::min as fn(&Dim, &Dim) -> Dim), ("max(", Dim::max)] {
            if self.accept(name) {
                let first = self.sum(depth + 1)?;
                self.accept(",").then_some(())?;
                let second = self.sum(depth + 1)?;
                return self.accept(")").then(|| of(&first, &second));
            }
        }
        if self.accept("L['") {
            let (name, rest) = self.rest.split_once("']")?;
            self.rest = rest;
            self.accept(".size()[").then_some(())?;
            let axis = self.digits()?.parse::<usize>().ok()?;
            self.accept("]").then_some(())?;
            return match self.graph.tensor_values.get(name)?.sizes.get(axis)? {
                SymInt::AsInt(value) => Some(Dim::from(*value)),
                SymInt::AsExpr(expr) => srepr::parse(&expr.expr_str, &HashMap::new()).ok(),
            };
        }
        self.digits()?.parse::<i64>().ok().map(Dim::from)
    }

    fn digits(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!digits.is_empty()).then_some(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(guard: &str) -> Option<(String, i64)> {
        let size = r#"{"as_expr":{"expr_str":"Symbol('s27', positive=True, integer=True)"}}"#;
        let json = format!(
            r#"{{"inputs":[],"outputs":[],"nodes":[],"tensor_values":{{"x":{{"dtype":7,"sizes":[{{"as_int":3}},{size}]}}}}}}"#
        );
        let graph: GraphJson = serde_json::from_str(&json).unwrap();
        let ranges = IndexMap::from([("s27".into(), SymbolRange { min: 3, max: Some(9) })]);
        multiple(guard, &graph, &ranges).map(|(symbol, divisor)| (symbol.to_string(), divisor))
    }

    #[test]
    fn an_equation_that_holds_at_multiples_makes_one() {
        let s = "L['x'].size()[1]";
        assert_eq!(found(&format!("((1 + {s}) // 2) == ({s} + (-1)*((1 + {s}) // 2))")), Some(("s27".into(), 2)));
        assert_eq!(found(&format!("{s} % 8 == 0")), Some(("s27".into(), 8)));
        assert_eq!(found(&format!("(((-1) + {s} + ((1 + {s}) // 2)) // ((1 + {s}) // 2)) == 2")), None);
        assert_eq!(found(&format!("{s} == 6")), None);
        assert_eq!(found(&format!("{s} != 1")), None);
        assert_eq!(found("L['x'].size()[0] == 3"), None);
        assert_eq!(found(&"(".repeat(4000)), None);
    }

    #[test]
    fn conditions_narrow_ranges() {
        let size = r#"{"as_expr":{"expr_str":"Symbol('s27', positive=True, integer=True)"}}"#;
        let json = format!(r#"{{"inputs":[],"outputs":[],"nodes":[],"tensor_values":{{"x":{{"dtype":7,"sizes":[{size}]}}}}}}"#);
        let graph: GraphJson = serde_json::from_str(&json).unwrap();
        let narrowed = |guard: &str| {
            let mut ranges = IndexMap::from([("s27".into(), SymbolRange { min: 2, max: None })]);
            narrow(&[guard.replace('s', "L['x'].size()[0]")], &graph, &mut ranges);
            (ranges["s27"].min, ranges["s27"].max)
        };
        assert_eq!(narrowed("8 >= s + ((8 + (-1)*(s % 8)) % 8)"), (2, Some(8)));
        assert_eq!(narrowed("((255 + s) // 256) == 1"), (2, Some(256)));
        assert_eq!(narrowed("s == min(100, s)"), (2, Some(100)));
        assert_eq!(narrowed("(s // 8) == 2"), (16, Some(23)));
        assert_eq!(narrowed("s != 5"), (2, None));
        assert_eq!(narrowed("s % 4 == 0"), (2, None));
        assert_eq!(narrowed("s >= 4"), (2, None));
    }

    #[test]
    fn a_multiple_is_a_number_times_a_new_symbol() {
        let json = r#"{"inputs":[],"outputs":[],"nodes":[],"tensor_values":{"x":{"dtype":7,"sizes":[
            {"as_expr":{"expr_str":"Symbol('s0', positive=True, integer=True)"}}]}}}"#;
        let graph: GraphJson = serde_json::from_str(json).unwrap();
        let mut ranges = IndexMap::from([("s0".into(), SymbolRange { min: 3, max: Some(9) })]);
        let replaced = multiples(&["L['x'].size()[0] % 2 == 0".into()], &graph, &mut ranges);
        assert_eq!(replaced["s0"], Dim::symbol("_s0") * Dim::from(2));
        assert_eq!(ranges, IndexMap::from([("_s0".into(), SymbolRange { min: 2, max: Some(4) })]));
        // Between 3 and 5 there is one multiple of 2.
        let mut ranges = IndexMap::from([("s0".into(), SymbolRange { min: 3, max: Some(5) })]);
        let replaced = multiples(&["L['x'].size()[0] % 2 == 0".into()], &graph, &mut ranges);
        assert_eq!((replaced["s0"].clone(), ranges.len()), (Dim::from(4), 0));
    }
}
