//! Scalars written in the graph itself, as PyTorch's "wrapped numbers": they never raise a tensor's dtype within its category.

use serde::{Deserialize, Serialize};

/// A number among an op's operands or attributes. Equality and hashing go by bits, so NaN equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(#[serde(with = "float_bits")] f64),
}

impl Scalar {
    /// The value as f64, as a float op sees it.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// The value as i64, truncated toward zero, as an integer op sees it.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => i64::from(b),
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Bool(b) => (0, u64::from(b)),
            Scalar::Int(i) => (1, i as u64),
            Scalar::Float(f) => (2, f.to_bits()),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scalar {}

impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => f.write_str(&float_text(*x)),
        }
    }
}

/// The shortest text that [`parse_float`] reads back to the same bits.
pub fn float_text(value: f64) -> String {
    match value.to_bits() {
        _ if !value.is_nan() => format!("{value:?}"),
        bits if bits == f64::NAN.to_bits() => "nan".to_string(),
        bits if bits == (-f64::NAN).to_bits() => "-nan".to_string(),
        bits => format!("nan:{bits:016x}"),
    }
}

/// The float that [`float_text`] wrote; `None` for any other text.
pub fn parse_float(text: &str) -> Option<f64> {
    match text.strip_prefix("nan:") {
        Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits).filter(|x| x.is_nan()),
        None => text.parse().ok(),
    }
}

/// JSON has no NaN or infinities: floats travel as their shortest round-trip text.
mod float_bits {
    use super::{float_text, parse_float};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&float_text(*value))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        let text = String::deserialize(d)?;
        parse_float(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not a float")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_bits() {
        let odd = f64::from_bits(0x7ff8_0000_0000_0123);
        for value in [0.1, -0.0, 1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, odd] {
            let text = float_text(value);
            assert_eq!(parse_float(&text).map(f64::to_bits), Some(value.to_bits()), "{text}");
            let json = serde_json::to_string(&Scalar::Float(value)).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Scalar>(&json).ok(), Some(Scalar::Float(value)), "{json}");
        }
        assert_eq!(parse_float("1.0.0"), None);
    }
}
