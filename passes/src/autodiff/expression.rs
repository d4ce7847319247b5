//! Derivatives of elementwise ops: expressions of the op table, built as calls.

use super::tape::Tape;
use eglu_ir::{
    DType, GraphError, Operand, Scalar, Value,
    ops::{Derivative, OpCode, Pointwise},
};
use rustc_hash::FxHashMap;

/// What the names of an expression stand for.
pub(super) struct Names<'a> {
    pub op: Pointwise,
    pub operands: &'a [Operand],
    pub out: Value,
    pub gradient: Value,
}

/// The gradient by operand `i`, in the shape and dtype of the result; none where it is zero.
pub(super) fn gradient(tape: &mut Tape, names: &Names<'_>, i: usize) -> Result<Option<Value>, GraphError> {
    let Derivative::Expression(each) = names.op.derivative() else { return Ok(None) };
    let text = each[i];
    let dtype = tape.dtype(names.gradient);
    // As PyTorch's backward kernels: 16-bit floats are computed with in f32 and rounded once.
    let wide = if arithmetic(text) > 1 { dtype.opmath() } else { dtype };
    let mut build = Build { tape, names, wide, widened: wide != dtype, made: FxHashMap::default() };
    let (built, _) = build.operand(text)?;
    match built {
        Operand::Value(value) => tape.cast(value, dtype).map(Some),
        _ => Ok(None),
    }
}

/// How many ops of an expression round.
fn arithmetic(text: &str) -> usize {
    const EXACT: [&str; 11] = ["where", "number?", "le", "lt", "ge", "gt", "eq", "neg", "sign", "logical_and", "conj"];
    text.split('(').skip(1).filter(|rest| !EXACT.iter().any(|name| rest.split(' ').next() == Some(name))).count()
}

struct Build<'t, 'n, 'a> {
    tape: &'t mut Tape,
    names: &'n Names<'a>,
    wide: DType,
    widened: bool,
    made: FxHashMap<&'static str, Operand>,
}

impl Build<'_, '_, '_> {
    /// The operand at the start of `text`, and the text behind it.
    fn operand(&mut self, text: &'static str) -> Result<(Operand, &'static str), GraphError> {
        let text = text.trim_start();
        let Some(inside) = text.strip_prefix('(') else {
            let end = text.find([' ', ')']).unwrap_or(text.len());
            return Ok((self.atom(&text[..end])?, &text[end..]));
        };
        let end = inside.find(' ').unwrap_or(inside.len());
        let (head, mut rest) = (&inside[..end], &inside[end..]);
        if head == "number?" {
            return self.choice(rest);
        }
        let mut operands = Vec::new();
        while !rest.trim_start().starts_with(')') {
            let (operand, behind) = self.operand(rest)?;
            operands.push(operand);
            rest = behind;
        }
        let rest = &rest.trim_start()[1..];
        let whole = &text[..text.len() - rest.len()];
        if let Some(&made) = self.made.get(whole) {
            return Ok((made, rest));
        }
        let built = self.apply(head, &operands)?;
        self.made.insert(whole, built);
        Ok((built, rest))
    }

    /// `(number? y a b)`: only one of the branches is built.
    fn choice(&mut self, text: &'static str) -> Result<(Operand, &'static str), GraphError> {
        let (asked, then) = self.operand(text)?;
        let otherwise = skip(then);
        let built = match asked {
            Operand::Scalar(_) => self.operand(then)?.0,
            _ => self.operand(otherwise)?.0,
        };
        Ok((built, &skip(otherwise).trim_start()[1..]))
    }

    fn atom(&mut self, name: &str) -> Result<Operand, GraphError> {
        if let Ok(number) = name.parse::<i64>() {
            return Ok(Scalar::Int(number).into());
        }
        if let Ok(number) = name.parse::<f64>() {
            return Ok(Scalar::Float(number).into());
        }
        let operand = match name {
            "g" => self.names.gradient.into(),
            "out" => self.names.out.into(),
            _ => {
                let at = self.names.op.operands().iter().position(|&operand| operand == name);
                at.map_or_else(
                    || unreachable!("`{name}` in the derivative of {}", self.names.op.name()),
                    |i| self.names.operands[i],
                )
            }
        };
        match operand {
            Operand::Value(value) if self.widened && self.tape.dtype(value).is_float() => {
                Ok(self.tape.cast(value, self.wide)?.into())
            }
            other => Ok(other),
        }
    }

    /// A call; of numbers alone, its value.
    fn apply(&mut self, head: &str, operands: &[Operand]) -> Result<Operand, GraphError> {
        let Ok(OpCode::Pointwise(op)) = OpCode::from_name(head) else {
            unreachable!("`{head}` in the derivative of {}", self.names.op.name())
        };
        if let (Pointwise::Where, Operand::Scalar(mask)) = (op, operands[0]) {
            return Ok(if mask.as_f64() != 0.0 { operands[1] } else { operands[2] });
        }
        let numbers = operands.iter().map(|operand| match operand {
            Operand::Scalar(number) => Some(number.as_f64()),
            _ => None,
        });
        match numbers.collect::<Option<Vec<f64>>>() {
            Some(numbers) => Ok(Scalar::Float(op.eval_real(&numbers)).into()),
            None => Ok(self.tape.call(op, operands.iter().copied())?.into()),
        }
    }
}

/// The text behind the expression at the start of `text`.
fn skip(text: &'static str) -> &'static str {
    let text = text.trim_start();
    let mut depth = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return &text[at..],
            ')' => depth -= 1,
            ' ' if depth == 0 => return &text[at..],
            _ => {}
        }
        if character == ')' && depth == 0 {
            return &text[at + 1..];
        }
    }
    ""
}
