//! What the attributes of [`Route`] say together.

use super::{Route, RouteScore};
use crate::DType;

/// Experts in groups of neighbours, of which a token may use only the best (DeepSeek-V2 and V3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteGroups {
    /// Groups.
    pub count: usize,
    /// Best experts of each group whose sum ranks it.
    pub best: usize,
    /// Groups that stay.
    pub kept: usize,
}

impl RouteGroups {
    /// Experts of each group, if they divide evenly.
    pub fn width(self, experts: usize) -> Option<usize> {
        (self.count > 0 && experts.is_multiple_of(self.count)).then(|| experts / self.count)
    }
}

impl Route {
    /// The groups, where there are any.
    pub fn groups(&self) -> Option<RouteGroups> {
        match self.groups[..] {
            [count, best, kept] => Some(RouteGroups { count, best, kept }),
            _ => None,
        }
    }

    /// The dtype of what experts are chosen by: the score (or logit) plus the bias.
    pub fn choice_dtype(&self, logits: DType, bias: Option<DType>) -> DType {
        let by = match self.score {
            RouteScore::TopKSoftmax | RouteScore::TopKSigmoid => logits,
            RouteScore::Softmax | RouteScore::Sigmoid => self.scores,
        };
        bias.and_then(|bias| by.promote(bias)).unwrap_or(by)
    }

    /// The dtype of the values that are weighed.
    pub fn value_dtype(&self, logits: DType, bias: Option<DType>) -> DType {
        match self.score {
            RouteScore::Softmax | RouteScore::Sigmoid if !self.gathered => self.choice_dtype(logits, bias),
            _ => self.scores,
        }
    }
}
