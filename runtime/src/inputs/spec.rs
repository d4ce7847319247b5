//! The short descriptions of contents: `normal`, `uniform:LO:HI`, `randint:LO:HI`, `topk:E`.

use std::{fmt, str::FromStr};

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spec {
    /// Normal numbers of mean 0 and variance 1.
    Normal,
    /// Numbers from LO to HI.
    Uniform(f64, f64),
    /// Integers from LO up to, but without, HI.
    RandInt(i64, i64),
    /// In each row, distinct ids below E.
    TopK(i64),
}

// Bounds are never NaN: parsing refuses it.
impl Eq for Spec {}

/// More experts than any model has; their numbers are held in a list.
const MOST_EXPERTS: i64 = 1 << 20;

/// How often each expert is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Each as likely as the others.
    #[default]
    Uniform,
    /// Expert i with weight 1 / (i + 1).
    Zipf,
    /// Each as often as the others, to one.
    Balanced,
}

/// A text that describes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SpecError {
    #[error("`{0}` describes no contents: give `normal`, `uniform:LO:HI`, `randint:LO:HI` or `topk:E`")]
    Spec(String),
    #[error("`{0}` asks for more than {MOST_EXPERTS} experts")]
    Experts(String),
    #[error("`{0}` has no numbers: LO must be below HI")]
    Empty(String),
    #[error("`{0}` is no routing: give `uniform`, `zipf` or `balanced`")]
    Routing(String),
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let bad = || SpecError::Spec(text.into());
        let parts: Vec<&str> = text.split(':').collect();
        let float = |s: &str| s.parse::<f64>().ok().filter(|x| x.is_finite()).ok_or_else(bad);
        let int = |s: &str| s.parse::<i64>().map_err(|_| bad());
        match parts[..] {
            ["normal"] => Ok(Spec::Normal),
            ["uniform", low, high] => {
                let (low, high) = (float(low)?, float(high)?);
                if low <= high { Ok(Spec::Uniform(low, high)) } else { Err(SpecError::Empty(text.into())) }
            }
            ["randint", low, high] => {
                let (low, high) = (int(low)?, int(high)?);
                if low < high { Ok(Spec::RandInt(low, high)) } else { Err(SpecError::Empty(text.into())) }
            }
            ["topk", experts] => match int(experts)? {
                experts if experts > MOST_EXPERTS => Err(SpecError::Experts(text.into())),
                experts if experts > 0 => Ok(Spec::TopK(experts)),
                _ => Err(bad()),
            },
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Normal => f.write_str("normal"),
            Spec::Uniform(low, high) => write!(f, "uniform:{low}:{high}"),
            Spec::RandInt(low, high) => write!(f, "randint:{low}:{high}"),
            Spec::TopK(experts) => write!(f, "topk:{experts}"),
        }
    }
}

impl FromStr for Routing {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Routing, SpecError> {
        match text {
            "uniform" => Ok(Routing::Uniform),
            "zipf" => Ok(Routing::Zipf),
            "balanced" => Ok(Routing::Balanced),
            _ => Err(SpecError::Routing(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["normal", "uniform:-1:0.5", "randint:0:32000", "topk:8"] {
            assert_eq!(text.parse::<Spec>().map(|spec| spec.to_string()), Ok(text.into()));
        }
        for bad in ["", "normal:1", "uniform:1:0", "uniform:nan:1", "randint:3:3", "topk:0", "topk", "topk:9999999999", "zipf"] {
            assert!(bad.parse::<Spec>().is_err(), "{bad}");
        }
    }
}
