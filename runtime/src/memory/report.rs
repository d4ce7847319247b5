//! A memory plan for people.

use super::MemoryPlan;
use eglu_codegen::{Plan, Source};
use serde::Serialize;
use std::fmt;

/// What of an arena is whose, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Bytes of the arena.
    pub peak: u64,
    /// Bytes that its tenants would take without sharing.
    pub sum: u64,
    /// Bytes of weights and constants, which lie elsewhere.
    pub weights: u64,
    /// The tenants, by offset, then by time.
    pub tenants: Vec<Tenant>,
}

/// A stretch of the arena for some steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tenant {
    /// The node that fills it, or what scratch memory is for.
    pub name: String,
    /// `input`, `value` or `scratch`.
    pub kind: &'static str,
    /// Bytes from the arena's start.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The first and the last step that use it; the last is the number of steps for what a caller gets.
    pub steps: (usize, usize),
}

impl MemoryReport {
    /// `scratch` follows the plan's buffers in `memory` and `bytes`: names, with first and last steps.
    pub fn new<'a>(
        plan: &Plan,
        scratch: impl IntoIterator<Item = (&'a str, (usize, usize), u64)>,
        (memory, bytes): (&MemoryPlan, &[u64]),
        weights: u64,
    ) -> MemoryReport {
        let lives = plan.lifetimes();
        let buffers = plan.buffers.iter().zip(lives).zip(bytes).map(|((buffer, life), &bytes)| match buffer.source {
            Source::Input(_) => (&*buffer.name, "input", Some((0, plan.steps.len())), bytes),
            _ => (&*buffer.name, "value", life, bytes),
        });
        let scratch = scratch.into_iter().map(|(name, steps, bytes)| (name, "scratch", Some(steps), bytes));
        let mut tenants: Vec<Tenant> = buffers
            .chain(scratch)
            .zip(&memory.offsets)
            .filter_map(|((name, kind, steps, bytes), offset)| {
                Some(Tenant { name: name.into(), kind, offset: (*offset)?, bytes, steps: steps? })
            })
            .collect();
        tenants.sort_by_key(|tenant| (tenant.offset, tenant.steps));
        MemoryReport { peak: memory.peak, sum: memory.sum, weights, tenants }
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryReport { peak, sum, weights, .. } = self;
        writeln!(f, "memory: {peak} bytes for values at the peak ({sum} without sharing), {weights} bytes of weights")?;
        writeln!(f, "{:>14} {:>14}  {:11}  {:7}  name", "offset", "bytes", "steps", "")?;
        for tenant in &self.tenants {
            let steps = format!("{}..{}", tenant.steps.0, tenant.steps.1);
            writeln!(f, "{:>14} {:>14}  {steps:11}  {:7}  {}", tenant.offset, tenant.bytes, tenant.kind, tenant.name)?;
        }
        Ok(())
    }
}
