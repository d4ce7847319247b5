//! Elements of constants: small tensors as numbers, others as the bytes in hexadecimal.

use super::cursor::{Cursor, ParseError};
use crate::{
    DType, Tensor, TensorType,
    dtype::Category,
    eval::{decode, encode},
    scalar::{float_text, parse_float},
};
use std::fmt::Write;

/// Tensors of more elements are written in hexadecimal.
const INLINE: usize = 32;

/// The numbers of a small tensor, if reading them gives back the very bytes.
fn numbers(tensor: &Tensor) -> Option<Vec<String>> {
    if tensor.numel() > INLINE {
        return None;
    }
    let texts: Vec<String> = match (tensor.dtype(), tensor.dtype().category()) {
        (_, Category::Complex) => return None,
        (DType::Bool, _) => decode::<i64>(tensor).iter().map(|&x| (x != 0).to_string()).collect(),
        (DType::U64, _) => decode::<i64>(tensor).iter().map(|&x| (x as u64).to_string()).collect(),
        (_, Category::Int) => decode::<i64>(tensor).iter().map(i64::to_string).collect(),
        (DType::F64, _) => decode::<f64>(tensor).iter().map(|&x| float_text(x)).collect(),
        _ => decode::<f32>(tensor).iter().map(f32_text).collect(),
    };
    let again = from_numbers(tensor.dtype(), tensor.shape(), &texts.iter().map(String::as_str).collect::<Vec<_>>());
    (again.as_ref() == Some(tensor)).then_some(texts)
}

fn f32_text(x: &f32) -> String {
    match (x.is_nan(), x.is_sign_negative()) {
        (true, true) => "-nan".to_string(),
        (true, false) => "nan".to_string(),
        _ => format!("{x:?}"),
    }
}

fn from_numbers(dtype: DType, shape: &[usize], texts: &[&str]) -> Option<Tensor> {
    fn all<T>(texts: &[&str], read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
        texts.iter().map(|text| read(text)).collect()
    }
    match (dtype, dtype.category()) {
        (_, Category::Complex) => None,
        (DType::Bool, _) => encode(dtype, shape, &all(texts, |t| t.parse::<bool>().ok().map(i64::from))?).ok(),
        (DType::U64, _) => encode(dtype, shape, &all(texts, |t| t.parse::<u64>().ok().map(|x| x as i64))?).ok(),
        (_, Category::Int) => encode(dtype, shape, &all(texts, |t| t.parse::<i64>().ok())?).ok(),
        (DType::F64, _) => encode(dtype, shape, &all(texts, parse_float)?).ok(),
        _ => encode(dtype, shape, &all(texts, |t| t.parse::<f32>().ok())?).ok(),
    }
}

/// Two lower-case hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of pairs of hexadecimal digits; `None` for anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

pub(super) fn print(tensor: &Tensor) -> String {
    match numbers(tensor) {
        Some(texts) => format!("[{}]", texts.join(", ")),
        None => format!("hex \"{}\"", to_hex(tensor.bytes())),
    }
}

pub(super) fn parse(cursor: &mut Cursor<'_>, ty: &TensorType) -> Result<Tensor, ParseError> {
    let place = cursor.place();
    let shape: Vec<usize> = ty
        .shape
        .iter()
        .map(|dim| dim.as_const().and_then(|extent| usize::try_from(extent).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| cursor.error_at(place, format!("expected a constant of fixed shape, not {ty}")))?;
    if cursor.eat_word("hex") {
        let text = cursor.string("the bytes")?;
        let bytes = from_hex(&text).ok_or_else(|| cursor.error_at(place, "expected pairs of hexadecimal digits"))?;
        return Tensor::from_bytes(ty.dtype, &shape, &bytes).map_err(|e| cursor.error_at(place, e.to_string()));
    }
    let texts = cursor.list("[", "]", |cursor| match cursor.number() {
        "" => Err(cursor.expected("a number")),
        text => Ok(text),
    })?;
    let want = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    if want != Some(texts.len()) {
        return Err(cursor.error_at(place, format!("expected the elements of {ty}, found {}", texts.len())));
    }
    let wrong = || cursor.error_at(place, format!("expected numbers of dtype {}", ty.dtype));
    from_numbers(ty.dtype, &shape, &texts).ok_or_else(wrong)
}
