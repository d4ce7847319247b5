//! Dims as text: `8`, `2*s0+1`, `floordiv(s0, 2)`. JSON uses it too.

use super::cursor::{Cursor, ParseError};
use crate::Dim;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::str::FromStr;

/// How deep quotients, remainders, minima and maxima may nest.
const DEPTH: usize = 32;

/// A function of two dims.
type Function = fn(&Dim, &Dim) -> Dim;

/// The functions of dims by name.
const FUNCTIONS: [(&str, Function); 4] = [("floordiv", Dim::floor_div), ("rem", Dim::rem), ("min", Dim::min), ("max", Dim::max)];

/// True if a symbol of this name can be told from the rest of a dim.
pub(crate) fn is_symbol(name: &str) -> bool {
    super::cursor::is_word(name) && FUNCTIONS.iter().all(|(function, _)| *function != name)
}

pub(super) fn dim(cursor: &mut Cursor<'_>) -> Result<Dim, ParseError> {
    sum(cursor, DEPTH)
}

fn sum(cursor: &mut Cursor<'_>, depth: usize) -> Result<Dim, ParseError> {
    let mut sum = product(cursor, depth)?;
    loop {
        if cursor.eat("+") {
            sum = sum + product(cursor, depth)?;
        } else if cursor.eat("-") {
            sum = sum - product(cursor, depth)?;
        } else {
            return Ok(sum);
        }
    }
}

fn product(cursor: &mut Cursor<'_>, depth: usize) -> Result<Dim, ParseError> {
    let mut product = factor(cursor, depth)?;
    while cursor.eat("*") {
        product = product * factor(cursor, depth)?;
    }
    Ok(product)
}

fn factor(cursor: &mut Cursor<'_>, depth: usize) -> Result<Dim, ParseError> {
    let Some(word) = cursor.peek_word() else { return cursor.integer("an extent").map(Dim::Const) };
    let function = FUNCTIONS.iter().find(|(name, _)| *name == word);
    let place = cursor.place();
    cursor.word("a symbol")?;
    let Some((_, apply)) = function else { return Ok(Dim::symbol(word)) };
    let Some(depth) = depth.checked_sub(1) else {
        return Err(cursor.error_at(place, format!("expected a simpler extent: functions nest more than {DEPTH} deep")));
    };
    cursor.expect("(")?;
    let left = sum(cursor, depth)?;
    cursor.expect(",")?;
    let right = sum(cursor, depth)?;
    cursor.expect(")")?;
    Ok(apply(&left, &right))
}

impl FromStr for Dim {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Dim, ParseError> {
        let mut cursor = Cursor::new(text);
        let dim = dim(&mut cursor)?;
        if cursor.at_end() { Ok(dim) } else { Err(cursor.expected("the end of the extent")) }
    }
}

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.as_const() {
            Some(value) => s.serialize_i64(value),
            None => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Dim, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Dim;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an integer, or an extent such as \"2*s0\"")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Dim, E> {
                Ok(Dim::Const(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Dim, E> {
                i64::try_from(value).map(Dim::Const).map_err(|_| E::custom(format!("the extent {value} is too large")))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Dim, E> {
                text.parse().map_err(|e| E::custom(format!("the extent `{text}`: {e}")))
            }
        }

        d.deserialize_any(Visitor)
    }
}
