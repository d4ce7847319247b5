//! Sympy expressions as `srepr` writes them: `Mul(Integer(2), Symbol('s87', positive=True, integer=True))`.

use crate::Dim;
use std::collections::HashMap;

/// Deeper nesting is refused, so that no file overflows the stack.
const DEPTH: usize = 64;

/// The dim that an expression stands for, or why it is none; `replaced` says what to write for some symbols.
pub fn parse(text: &str, replaced: &HashMap<String, Dim>) -> Result<Dim, String> {
    let mut parser = Parser { text, at: 0, replaced };
    let dim = parser.expression(0)?.integer()?;
    parser.end()?;
    Ok(dim)
}

/// A rational number or dim while an expression is put together: `dim / divisor`.
struct Term {
    dim: Dim,
    divisor: i64,
}

impl Term {
    fn integer(self) -> Result<Dim, String> {
        let divided = self.dim.exact_div(&Dim::from(self.divisor));
        divided.ok_or_else(|| format!("{} / {} is no integer", self.dim, self.divisor))
    }
}

impl From<Dim> for Term {
    fn from(dim: Dim) -> Term {
        Term { dim, divisor: 1 }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    replaced: &'a HashMap<String, Dim>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn accept(&mut self, token: char) -> bool {
        self.skip_blanks();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len_utf8() } else { 0 };
        found
    }

    fn expect(&mut self, token: char) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(format!("`{token}` is missing at position {}", self.at)) }
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip_blanks();
        if self.rest().is_empty() { Ok(()) } else { Err(format!("`{}` is left over", self.rest())) }
    }

    fn word(&mut self) -> Result<&'a str, String> {
        self.skip_blanks();
        let rest = self.rest();
        let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.' || c == '-')).unwrap_or(rest.len());
        if len == 0 {
            return Err(format!("a name is missing at position {}", self.at));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn number(&mut self) -> Result<i64, String> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("`{word}` is no 64-bit integer"))
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        self.expect('\'')?;
        let rest = self.rest();
        let len = rest.find('\'').ok_or("a quote is not closed")?;
        self.at += len + 1;
        Ok(&rest[..len])
    }

    fn expression(&mut self, depth: usize) -> Result<Term, String> {
        if depth > DEPTH {
            return Err(format!("it nests more than {DEPTH} levels"));
        }
        let head = self.word()?;
        self.expect('(')?;
        let term = match head {
            "Symbol" => {
                let name = self.quoted()?;
                while self.accept(',') {
                    self.word()?;
                    self.expect('=')?;
                    self.word()?;
                }
                self.replaced.get(name).cloned().unwrap_or_else(|| Dim::symbol(name)).into()
            }
            "Integer" => Dim::from(self.number()?).into(),
            "Rational" => {
                let dim = Dim::from(self.number()?);
                self.expect(',')?;
                let divisor = self.number()?;
                if divisor < 1 {
                    return Err(format!("a rational with the denominator {divisor}"));
                }
                Term { dim, divisor }
            }
            _ => {
                let mut operands = Vec::new();
                while !self.accept(')') {
                    if !operands.is_empty() {
                        self.expect(',')?;
                    }
                    operands.push(self.expression(depth + 1)?);
                }
                return apply(head, operands);
            }
        };
        self.expect(')')?;
        Ok(term)
    }
}

/// The application of a sympy function to its operands.
fn apply(head: &str, operands: Vec<Term>) -> Result<Term, String> {
    let wrong = || format!("{head} with {} operands", operands.len());
    match head {
        "Mul" => {
            let mut product = Term::from(Dim::from(1));
            for term in operands {
                product.dim = bounded(product.dim * term.dim)?;
                product.divisor = product.divisor.checked_mul(term.divisor).ok_or("a denominator overflows")?;
            }
            return Ok(reduce(product));
        }
        // floor(n / d) over a rational is a floor division.
        "floor" => {
            let [term] = operands.try_into().map_err(|o: Vec<Term>| format!("floor with {} operands", o.len()))?;
            return Ok(term.dim.floor_div(&Dim::from(term.divisor)).into());
        }
        _ => {}
    }
    let count = operands.len();
    let fold = |terms: Vec<Term>, by: fn(Dim, Dim) -> Dim| -> Result<Term, String> {
        let dims: Vec<Dim> = terms.into_iter().map(Term::integer).collect::<Result<_, _>>()?;
        dims.into_iter().reduce(by).map(Term::from).ok_or_else(|| format!("{head} without operands"))
    };
    match head {
        "Add" => fold(operands, |a, b| a + b),
        "Max" => fold(operands, |a, b| Dim::max(&a, &b)),
        "Min" => fold(operands, |a, b| Dim::min(&a, &b)),
        "FloorDiv" | "IntTrueDiv" | "CleanDiv" if count == 2 => fold(operands, |a, b| a.floor_div(&b)),
        "Mod" | "PythonMod" if count == 2 => fold(operands, |a, b| a.rem(&b)),
        "Pow" | "PowByNatural" if count == 2 => {
            let mut operands = operands.into_iter().map(Term::integer);
            let (base, exponent) = (operands.next().ok_or("")??, operands.next().ok_or("")??);
            match exponent.as_const() {
                Some(n @ 0..=16) => (0..n).try_fold(Dim::from(1), |power, _| bounded(power * base.clone())).map(Term::from),
                _ => Err(format!("the exponent {exponent} is no integer from 0 to 16")),
            }
        }
        "FloorDiv" | "CleanDiv" | "Mod" | "PythonMod" | "Pow" | "PowByNatural" => Err(wrong()),
        other => Err(format!("the function `{other}` is not supported")),
    }
}

/// Products of sums multiply out: refuses what no real size expression grows to.
fn bounded(dim: Dim) -> Result<Dim, String> {
    match dim.terms().len() {
        0..=1024 => Ok(dim),
        terms => Err(format!("it multiplies out to {terms} terms")),
    }
}

/// Cancels a denominator against the dim where it divides exactly.
fn reduce(term: Term) -> Term {
    match term.dim.exact_div(&Dim::from(term.divisor)) {
        Some(dim) => dim.into(),
        None => term,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Dim, String> {
        super::parse(text, &HashMap::new())
    }

    fn symbol(name: &str) -> String {
        format!("Symbol('{name}', positive=True, integer=True)")
    }

    #[test]
    fn reads_the_forms_of_real_archives() {
        let s = symbol("s27");
        let dim = parse(&format!("Add({s}, Mul(Integer(-1), FloorDiv(Add({s}, Integer(1)), Integer(2))))")).unwrap();
        let half = (Dim::symbol("s27") + Dim::from(1)).floor_div(&Dim::from(2));
        assert_eq!(dim, Dim::symbol("s27") - half);
        assert_eq!(parse(&format!("Mul(Rational(1, 2), Integer(4), {s})")).unwrap(), Dim::symbol("s27") * Dim::from(2));
        assert_eq!(parse(&format!("floor(Mul(Rational(1, 2), {s}))")).unwrap(), Dim::symbol("s27").floor_div(&Dim::from(2)));
        assert_eq!(parse(&format!("Pow({s}, Integer(2))")).unwrap(), Dim::symbol("s27") * Dim::symbol("s27"));
        assert_eq!(parse(&format!("Mod({s}, Integer(8))")).unwrap(), Dim::symbol("s27").rem(&Dim::from(8)));
    }

    #[test]
    fn refuses_what_is_no_integer_or_no_expression() {
        let s = symbol("s0");
        for text in [
            format!("Mul(Rational(1, 2), {s})"),
            "Integer(2".into(),
            "Integer(x)".into(),
            "Log(Integer(2))".into(),
            "".into(),
            s + "x",
        ] {
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(parse("Integer(99999999999999999999)").is_err());
    }

    #[test]
    fn deep_nesting_ends_in_an_error() {
        let text = "Add(".repeat(100_000) + "Integer(1)" + &")".repeat(100_000);
        assert!(parse(&text).unwrap_err().contains("nests"));
    }
}
