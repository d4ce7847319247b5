//! Higher-order operators: their sub-graphs are expanded in place.
//!
//! The operators are those of torch/_higher_order_ops. Their arguments have no names, only an order.

use super::{
    super::{
        call::{Built, Call, Fault, Out},
        schema::{Argument, GraphJson, SymIntArgument},
        translate::{Binding, Scope},
    },
    indexing::stacked,
};
use crate::{
    DType, Dim, Operand, Value,
    ops::{Pointwise, Reshape, Slice},
};

/// Rounds of a loop over a tensor that are written out one by one.
const ROUNDS: i64 = 256;

/// `flex_gemm(op, body, tensors, …)`: the body holds the product and its epilogue, so that the body alone is the meaning.
pub fn flex_gemm(c: &mut Call<'_, '_>) -> Built {
    let body = graph(c, 0)?;
    let tensors = c.node.inputs.iter().map(|input| &input.arg).find_map(|arg| match arg {
        Argument::Tensors(names) => Some(names),
        _ => None,
    });
    let tensors = tensors.ok_or_else(|| Fault::Unsupported("it needs a list of tensors".into()))?;
    let tensors = tensors.iter().map(|name| named(c, name)).collect::<Built<_>>()?;
    expand(c, body, tensors, c.scope.autocast).map(results)
}

/// `wrap_with_set_grad_enabled(enabled, body, …)` and `wrap_with_autocast(device, dtype, enabled, cache, body, …)`, of which only the latter changes
/// what the body computes; `invoke_subgraph(body, name, …)`: a region that is called several times.
pub fn region(c: &mut Call<'_, '_>) -> Built {
    let inputs = &c.node.inputs;
    let at = inputs.iter().position(|input| matches!(input.arg, Argument::Graph(_)));
    let at = at.ok_or_else(|| Fault::Unsupported("it needs a sub-graph".into()))?;
    let autocast = match (&*c.node.target, &inputs[..at]) {
        (target, [_, _, enabled, ..]) if target.ends_with("wrap_with_autocast") => matches!(enabled.arg, Argument::Bool(true)),
        _ => c.scope.autocast,
    };
    let given = inputs[at + 1..].iter().map(|input| &input.arg).filter(|arg| !matches!(arg, Argument::Str(_)));
    let given: Vec<Binding> = given.map(|arg| bindings(c, arg)).collect::<Built<Vec<_>>>()?.concat();
    let body = graph(c, 0)?;
    expand(c, body, given, autocast).map(results)
}

/// `cond(predicate, if_true, if_false, operands)`: both, of which the predicate then chooses. Neither may have effects.
pub fn cond(c: &mut Call<'_, '_>) -> Built {
    let (truly, falsely) = (graph(c, 0)?, graph(c, 1)?);
    let [predicate, _, _, given @ ..] = &c.node.inputs[..] else {
        return Err(Fault::Bad("it needs a predicate, two sub-graphs and their operands".into()));
    };
    let given: Vec<Binding> = given.iter().map(|input| bindings(c, &input.arg)).collect::<Built<Vec<_>>>()?.concat();
    let predicate = match &predicate.arg {
        Argument::Bool(known) => {
            return expand(c, if *known { truly } else { falsely }, given, c.scope.autocast).map(results);
        }
        Argument::Tensor(name) => named(c, name)?,
        _ => return Err(Fault::Unsupported("with a predicate that depends on a dynamic size".into())),
    };
    let Binding::Tensor(predicate) = predicate else { return Err(Fault::Bad("its predicate is no tensor".into())) };
    let predicate = c.read(predicate)?;
    let predicate = c.cast(predicate, DType::Bool)?;
    let rank = c.ty(predicate).rank();
    let predicate = if rank == 0 { predicate } else { c.op(Reshape { shape: Default::default() }, [predicate.into()])? };
    let (a, b) = (expand(c, truly, given.clone(), c.scope.autocast)?, expand(c, falsely, given, c.scope.autocast)?);
    let mut chosen = Vec::with_capacity(a.len());
    for (a, b) in a.into_iter().zip(b) {
        let (Binding::Tensor(a), Binding::Tensor(b)) = (a, b) else {
            return Err(Fault::Unsupported("with results that are no tensors".into()));
        };
        let (a, b) = (c.read(a)?, c.read(b)?);
        if c.ty(a) != c.ty(b) {
            return Err(Fault::Unsupported("with results of different types".into()));
        }
        chosen.push(c.op(Pointwise::Where, [predicate, a, b].map(Operand::from))?);
    }
    Ok(Out::Values(chosen.into()))
}

/// `map_impl(body, over, others)`: the body for each row of `over`.
pub fn map(c: &mut Call<'_, '_>) -> Built {
    let body = graph(c, 0)?;
    let [_, over, others] = &c.node.inputs[..] else {
        return Err(Fault::Bad("it needs a sub-graph and two lists".into()));
    };
    let (over, others) = (tensors(c, &over.arg)?, bindings(c, &others.arg)?);
    let mut rows: Vec<Vec<Value>> = Vec::new();
    for round in 0..rounds(c, &over)? {
        let mut given = picks(c, &over, round)?;
        given.extend(others.iter().cloned());
        let row = expand(c, body, given, c.scope.autocast)?;
        rows.push(values(c, row)?);
    }
    let results = columns(rows).into_iter().map(|column| stacked(c, &column, 0)).collect::<Built<Vec<_>>>()?;
    Ok(Out::Values(results.into()))
}

/// `scan(body, carried, over, others)`: the body for each row of `over` in turn, which gives what is carried on and a row of each further result.
pub fn scan(c: &mut Call<'_, '_>) -> Built {
    let body = graph(c, 0)?;
    let [_, carried, over, others] = &c.node.inputs[..] else {
        return Err(Fault::Bad("it needs a sub-graph and three lists".into()));
    };
    let (mut carried, over, others) = (bindings(c, &carried.arg)?, tensors(c, &over.arg)?, bindings(c, &others.arg)?);
    let mut rows: Vec<Vec<Value>> = Vec::new();
    for round in 0..rounds(c, &over)? {
        let mut given = carried.clone();
        given.extend(picks(c, &over, round)?);
        given.extend(others.iter().cloned());
        let mut results = expand(c, body, given, c.scope.autocast)?;
        if results.len() < carried.len() {
            return Err(Fault::Bad("its sub-graph returns less than it carries".into()));
        }
        let row = results.split_off(carried.len());
        carried = results;
        rows.push(values(c, row)?);
    }
    let mut results = values(c, carried)?;
    for column in columns(rows) {
        results.push(stacked(c, &column, 0)?);
    }
    Ok(Out::Values(results.into()))
}

/// How often its body runs is in the data.
pub fn while_loop(_: &mut Call<'_, '_>) -> Built {
    Err(Fault::Unsupported("how often its body runs is in the data: export the body, and call it in a loop".into()))
}

/// The sub-graph number `which` of a node.
fn graph<'a>(c: &Call<'_, 'a>, which: usize) -> Built<&'a GraphJson> {
    let graphs = c.node.inputs.iter().filter_map(|input| match &input.arg {
        Argument::Graph(body) => Some(&body.graph),
        _ => None,
    });
    graphs.clone().nth(which).ok_or_else(|| Fault::Unsupported("it needs a sub-graph".into()))
}

fn named(c: &Call<'_, '_>, name: &str) -> Built<Binding> {
    c.scope.lookup(name).cloned().ok_or_else(|| Fault::Bad(format!("`{name}` is not defined")))
}

/// What an argument hands to a sub-graph.
fn bindings(c: &Call<'_, '_>, argument: &Argument) -> Built<Vec<Binding>> {
    let integer = |argument: &SymIntArgument| match argument {
        SymIntArgument::AsInt(value) => Ok(Binding::Int(Dim::from(*value))),
        SymIntArgument::AsName(name) => named(c, name),
    };
    match argument {
        Argument::Tensor(name) => Ok(vec![named(c, name)?]),
        Argument::Tensors(names) => names.iter().map(|name| named(c, name)).collect(),
        Argument::Int(value) => Ok(vec![Binding::Int(Dim::from(*value))]),
        Argument::Ints(list) => Ok(list.iter().map(|&value| Binding::Int(Dim::from(value))).collect()),
        Argument::SymInt(argument) => Ok(vec![integer(argument)?]),
        Argument::SymInts(list) => list.iter().map(integer).collect(),
        other => Err(Fault::Unsupported(format!("its sub-graph is given {}", other.kind()))),
    }
}

fn tensors(c: &mut Call<'_, '_>, argument: &Argument) -> Built<Vec<Value>> {
    let given = bindings(c, argument)?;
    values(c, given)
}

/// The tensors that bindings show now.
fn values(c: &mut Call<'_, '_>, bindings: Vec<Binding>) -> Built<Vec<Value>> {
    let value = |binding| match binding {
        Binding::Tensor(alias) => c.read(alias),
        _ => Err(Fault::Unsupported("over other things than tensors".into())),
    };
    bindings.into_iter().map(value).collect()
}

/// How many rows the tensors of a loop have.
fn rounds(c: &Call<'_, '_>, over: &[Value]) -> Built<i64> {
    let rows = over.first().and_then(|&value| c.ty(value).shape.first().cloned());
    let rows = rows.ok_or_else(|| Fault::Bad("it has no rows to go over".into()))?;
    match rows.as_const() {
        Some(rows) if (1..=ROUNDS).contains(&rows) => Ok(rows),
        Some(rows) => Err(Fault::Unsupported(format!("over {rows} rows: only 1 to {ROUNDS} are written out"))),
        None => Err(Fault::Unsupported(format!("over {rows} rows, a dynamic number"))),
    }
}

/// Row `round` of each tensor.
fn picks(c: &mut Call<'_, '_>, over: &[Value], round: i64) -> Built<Vec<Binding>> {
    let mut picks = Vec::with_capacity(over.len());
    for &value in over {
        let slice = Slice { dim: 0, start: Dim::from(round), end: Dim::from(round + 1), step: 1 };
        let row = c.op(slice, [value.into()])?;
        let shape = c.ty(row).shape[1..].iter().cloned().collect();
        let row = c.op(Reshape { shape }, [row.into()])?;
        picks.push(Binding::Tensor(c.translator.aliases.storage(row)));
    }
    Ok(picks)
}

/// Rows of results as columns.
fn columns(rows: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    let width = rows.first().map_or(0, Vec::len);
    (0..width).map(|i| rows.iter().filter_map(|row| row.get(i).copied()).collect()).collect()
}

/// What a sub-graph returns, as a node's results.
fn results(bindings: Vec<Binding>) -> Out {
    Out::Bindings(bindings)
}

/// The nodes of a sub-graph, its inputs standing for what is given.
fn expand<'a>(c: &mut Call<'_, 'a>, body: &'a GraphJson, given: Vec<Binding>, autocast: bool) -> Built<Vec<Binding>> {
    if body.inputs.len() != given.len() {
        return Err(Fault::Bad(format!("its sub-graph takes {} values, {} given", body.inputs.len(), given.len())));
    }
    let mut scope = Scope::new(body, format!("{}.", c.name));
    scope.autocast = autocast;
    for (input, binding) in body.inputs.iter().zip(given) {
        match input {
            Argument::Tensor(name) | Argument::SymInt(SymIntArgument::AsName(name)) => scope.define(name, binding, &c.name)?,
            Argument::Int(_) | Argument::SymInt(SymIntArgument::AsInt(_)) => {}
            other => return Err(Fault::Unsupported(format!("its sub-graph takes {}", other.kind()))),
        }
    }
    c.translator.nodes(&mut scope)?;
    let mut results = Vec::with_capacity(body.outputs.len());
    for output in &body.outputs {
        let name = match output {
            Argument::Tensor(name) | Argument::SymInt(SymIntArgument::AsName(name)) => name,
            // A gap, as a gradient that is not needed.
            Argument::None => {
                results.push(Binding::Ignored);
                continue;
            }
            other => return Err(Fault::Unsupported(format!("its sub-graph returns {}", other.kind()))),
        };
        match scope.lookup(name) {
            Some(Binding::Unknown) => return Err(Fault::Unsupported("its sub-graph holds ops without counterpart".into())),
            Some(binding) => results.push(binding.clone()),
            None => return Err(Fault::Bad(format!("its sub-graph returns `{name}`, which nothing defines"))),
        }
    }
    Ok(results)
}
