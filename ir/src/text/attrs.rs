//! Attributes and programs, both ways.

use super::{
    cursor::{Cursor, ParseError},
    dims,
};
use crate::{
    DType, Program, Ref, Scalar,
    ops::{Attr, AttrKind, Axes, OpCode, ReduceKind, RouteScore},
    program::{Instr, InstrOp},
    scalar::parse_float,
};
use std::sync::Arc;

fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

pub(super) fn print(attr: &Attr) -> String {
    match attr {
        Attr::Bool(value) => value.to_string(),
        Attr::Int(value) => value.to_string(),
        Attr::Axes(axes) => format!("[{}]", listed(axes)),
        Attr::Scalar(scalar) => scalar.to_string(),
        Attr::DType(dtype) => dtype.to_string(),
        Attr::Dim(dim) => dim.to_string(),
        Attr::Shape(shape) => format!("[{}]", listed(shape)),
        Attr::Reduce(kind) => kind.name().to_string(),
        Attr::Score(score) => score.name().to_string(),
        Attr::Program(program) => print_program(program),
        Attr::Programs(programs) => format!("[{}]", listed(programs.iter().map(|program| print_program(program)))),
        Attr::Reduces(kinds) => format!("[{}]", listed(kinds.iter().map(|kind| kind.name()))),
    }
}

fn reference(operand: Ref) -> String {
    match operand {
        Ref::Param(i) => format!("p{i}"),
        Ref::Instr(i) => format!("v{i}"),
        Ref::Scalar(scalar) => scalar.to_string(),
    }
}

/// `{(p0: f32) v0: f32 = silu(p0); return (v0: bf16)}`
fn print_program(program: &Program) -> String {
    let params = listed(program.params.iter().enumerate().map(|(i, dtype)| format!("p{i}: {dtype}")));
    let mut text = format!("{{({params}) ");
    for (i, instr) in program.instrs.iter().enumerate() {
        let name = match instr.op {
            InstrOp::Pointwise(op) => op.name(),
            InstrOp::Cast => "cast",
        };
        let args = listed(instr.args.iter().map(|&arg| reference(arg)));
        text += &format!("v{i}: {} = {name}({args}); ", instr.dtype);
    }
    let results = listed(program.results.iter().map(|&(result, dtype)| format!("{}: {dtype}", reference(result))));
    text + &format!("return ({results})}}")
}

pub(super) fn parse(cursor: &mut Cursor<'_>, kind: AttrKind) -> Result<Attr, ParseError> {
    Ok(match kind {
        AttrKind::Bool if cursor.eat_word("true") => Attr::Bool(true),
        AttrKind::Bool if cursor.eat_word("false") => Attr::Bool(false),
        AttrKind::Bool => return Err(cursor.expected("true or false")),
        AttrKind::Int => Attr::Int(cursor.integer("an integer")?),
        AttrKind::Axes => {
            let axes = cursor.list("[", "]", |cursor| cursor.integer("a dim, counted from 0"))?;
            Attr::Axes(Axes::from_vec(axes))
        }
        AttrKind::Scalar => Attr::Scalar(scalar(cursor, "a number")?),
        AttrKind::DType => Attr::DType(dtype(cursor)?),
        AttrKind::Dim => Attr::Dim(dims::dim(cursor)?),
        AttrKind::Shape => Attr::Shape(cursor.list("[", "]", dims::dim)?.into()),
        AttrKind::Reduce => Attr::Reduce(reduce_kind(cursor)?),
        AttrKind::Score => Attr::Score(named(cursor, "a routing score", RouteScore::from_name)?),
        AttrKind::Program => Attr::Program(Arc::new(program(cursor)?)),
        AttrKind::Programs => Attr::Programs(cursor.list("[", "]", |cursor| program(cursor).map(Arc::new))?),
        AttrKind::Reduces => Attr::Reduces(cursor.list("[", "]", reduce_kind)?),
    })
}

fn named<T>(cursor: &mut Cursor<'_>, wanted: &str, find: impl Fn(&str) -> Option<T>) -> Result<T, ParseError> {
    match cursor.peek_word().and_then(find) {
        Some(value) => cursor.word(wanted).map(|_| value),
        None => Err(cursor.expected(wanted)),
    }
}

pub(super) fn dtype(cursor: &mut Cursor<'_>) -> Result<DType, ParseError> {
    named(cursor, "a dtype", DType::from_name)
}

fn reduce_kind(cursor: &mut Cursor<'_>) -> Result<ReduceKind, ParseError> {
    named(cursor, "a reduction", ReduceKind::from_name)
}

pub(super) fn scalar(cursor: &mut Cursor<'_>, wanted: &str) -> Result<Scalar, ParseError> {
    let place = cursor.place();
    let text = cursor.number();
    let integer = text.trim_start_matches('-').chars().all(|c| c.is_ascii_digit());
    let scalar = match text {
        "" => return Err(cursor.expected(wanted)),
        "true" => Some(Scalar::Bool(true)),
        "false" => Some(Scalar::Bool(false)),
        text if integer => text.parse().ok().map(Scalar::Int),
        text => parse_float(text).map(Scalar::Float),
    };
    scalar.ok_or_else(|| cursor.error_at(place, format!("expected {wanted}, found `{text}`")))
}

fn program(cursor: &mut Cursor<'_>) -> Result<Program, ParseError> {
    cursor.expect("{")?;
    let mut count = 0;
    let params = cursor.list("(", ")", |cursor| {
        count += 1;
        numbered(cursor, "p", count - 1)?;
        dtype(cursor)
    })?;
    let mut program = Program::new(params);
    while !cursor.eat_word("return") {
        numbered(cursor, "v", program.instrs.len())?;
        let dtype = dtype(cursor)?;
        cursor.expect("=")?;
        let op = named(cursor, "a pointwise op", |name| match OpCode::from_name(name) {
            Ok(OpCode::Pointwise(op)) => Some(InstrOp::Pointwise(op)),
            Ok(OpCode::Cast) => Some(InstrOp::Cast),
            _ => None,
        })?;
        let args = cursor.list("(", ")", operand)?.into();
        cursor.expect(";")?;
        program.instrs.push(Instr { op, args, dtype });
    }
    let results = cursor.list("(", ")", |cursor| {
        let result = operand(cursor)?;
        cursor.expect(":")?;
        Ok((result, dtype(cursor)?))
    })?;
    program.results = results.into();
    cursor.expect("}")?;
    Ok(program)
}

/// Reads `p0:`: parameters and instructions are numbered in order.
fn numbered(cursor: &mut Cursor<'_>, prefix: &str, number: usize) -> Result<(), ParseError> {
    let name = format!("{prefix}{number}");
    if !cursor.eat_word(&name) {
        return Err(cursor.expected(&format!("`{name}`")));
    }
    cursor.expect(":")
}

fn operand(cursor: &mut Cursor<'_>) -> Result<Ref, ParseError> {
    let position = |word: &str, prefix: &str| word.strip_prefix(prefix).and_then(|digits| digits.parse().ok());
    let found =
        cursor.peek_word().and_then(|word| position(word, "p").map(Ref::Param).or_else(|| position(word, "v").map(Ref::Instr)));
    match found {
        Some(operand) => cursor.word("an operand").map(|_| operand),
        None => scalar(cursor, "a parameter, an earlier value or a number").map(Ref::Scalar),
    }
}
