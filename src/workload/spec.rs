//! The texts that say how an input is drawn.

use std::str::FromStr;

/// How the elements of an input are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputSpec {
    /// Normal, deviation 1.
    Normal,
    /// Uniform in [lo, hi).
    Uniform {
        /// The least value.
        lo: f64,
        /// The bound above.
        hi: f64,
    },
    /// Uniform integers in [lo, hi).
    RandInt {
        /// The least value.
        lo: i64,
        /// The bound above.
        hi: i64,
    },
    /// Expert ids below `experts`, distinct in each row.
    TopK {
        /// How many experts there are.
        experts: usize,
    },
}

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Routing {
    /// Every expert is as likely as any other.
    #[default]
    Uniform,
    /// The expert of rank r is chosen in proportion to 1 / r.
    Zipf,
    /// Every expert gets the same number of tokens, as far as they divide.
    Balanced,
}

/// A text that says no way to draw an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` {why}: give normal, uniform:LO:HI, randint:LO:HI or topk:E")]
pub struct SpecError {
    text: String,
    why: &'static str,
}

impl FromStr for InputSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<InputSpec, SpecError> {
        let error = |why| SpecError { text: text.into(), why };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["normal"] => Ok(InputSpec::Normal),
            ["uniform", lo, hi] => match (lo.parse(), hi.parse()) {
                (Ok(lo), Ok(hi)) if lo < hi && f64::is_finite(hi - lo) => Ok(InputSpec::Uniform { lo, hi }),
                _ => Err(error("has no two numbers in ascending order")),
            },
            ["randint", lo, hi] => match (lo.parse(), hi.parse()) {
                (Ok(lo), Ok(hi)) if lo < hi => Ok(InputSpec::RandInt { lo, hi }),
                _ => Err(error("has no two integers in ascending order")),
            },
            ["topk", experts] => match experts.parse() {
                Ok(experts) if experts > 0 => Ok(InputSpec::TopK { experts }),
                _ => Err(error("has no number of experts")),
            },
            _ => Err(error("is no way to draw an input")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form() {
        assert_eq!("normal".parse(), Ok(InputSpec::Normal));
        assert_eq!("uniform:-1:0.5".parse(), Ok(InputSpec::Uniform { lo: -1.0, hi: 0.5 }));
        assert_eq!("randint:0:128".parse(), Ok(InputSpec::RandInt { lo: 0, hi: 128 }));
        assert_eq!("topk:8".parse(), Ok(InputSpec::TopK { experts: 8 }));
    }

    #[test]
    fn refuses_nonsense() {
        for text in ["", "norm", "uniform:1", "uniform:2:1", "uniform:0:inf", "randint:0:0", "topk:0", "topk:-1", "normal:1"] {
            assert!(text.parse::<InputSpec>().is_err(), "{text}");
        }
    }
}
