//! Higher-order operators: their sub-graphs are expanded in place.

use super::super::{
    call::{Built, Call, Fault, Out},
    schema::{Argument, GraphJson},
    translate::{Binding, Scope},
};

/// `flex_gemm(op, body, tensors, …)`: the body holds the product and its epilogue, so that the body alone is the meaning.
pub fn flex_gemm(c: &mut Call<'_, '_>) -> Built {
    let argument = |wanted: fn(&Argument) -> bool| c.node.inputs.iter().map(|input| &input.arg).find(|arg| wanted(arg));
    let (Some(Argument::Graph(body)), Some(Argument::Tensors(tensors))) =
        (argument(|arg| matches!(arg, Argument::Graph(_))), argument(|arg| matches!(arg, Argument::Tensors(_))))
    else {
        return Err(Fault::Unsupported("it needs a sub-graph and a list of tensors".into()));
    };
    expand(c, &body.graph, tensors)
}

/// The nodes of a sub-graph, its inputs standing for `tensors`.
fn expand<'a>(c: &mut Call<'_, 'a>, body: &'a GraphJson, tensors: &'a [String]) -> Built {
    if body.inputs.len() != tensors.len() {
        return Err(Fault::Bad(format!("its sub-graph takes {} tensors, {} given", body.inputs.len(), tensors.len())));
    }
    let mut scope = Scope::new(body, format!("{}.", c.name));
    for (input, tensor) in body.inputs.iter().zip(tensors) {
        let Argument::Tensor(input) = input else {
            return Err(Fault::Unsupported("its sub-graph takes other things than tensors".into()));
        };
        let binding = c.scope.lookup(tensor).cloned();
        let binding = binding.ok_or_else(|| Fault::Bad(format!("`{tensor}` is not defined")))?;
        scope.define(input, binding, &c.name)?;
    }
    c.translator.nodes(&mut scope)?;
    let mut results = Vec::with_capacity(body.outputs.len());
    for output in &body.outputs {
        let Argument::Tensor(output) = output else {
            return Err(Fault::Unsupported("its sub-graph returns other things than tensors".into()));
        };
        match scope.lookup(output) {
            Some(Binding::Tensor(alias)) => results.push(*alias),
            Some(Binding::Unknown) => return Err(Fault::Unsupported("its sub-graph holds ops without counterpart".into())),
            Some(_) => return Err(Fault::Bad(format!("its sub-graph returns `{output}`, which is no tensor"))),
            None => return Err(Fault::Bad(format!("its sub-graph returns `{output}`, which nothing defines"))),
        }
    }
    Ok(Out::Aliases(results))
}
